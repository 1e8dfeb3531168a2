"""The configurations and stores with which the processes of a run start."""

from __future__ import annotations

import contextlib
import os
from typing import Any
from typing import Final

from devicetrack.testing import databases
from devicetrack.testing import fixtures

# Ends the name of the seat of another manager of a host.
_NEWER: Final = '+'


class Seats:
    """The configuration and the store of each host, with which its processes start. The store is closed.

    Both stay from run to run, because making them takes longer than a run.
    """

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self._configurations: dict[str, fixtures.Configuration] = {}
        self._stores: dict[tuple[str, str | None], Any] = {}
        self._stack = contextlib.ExitStack()

    def configuration(self, host: str, newer: bool = False) -> fixtures.Configuration:
        """The configuration of a host.

        :param newer: that of another manager of the host, with another state directory
        """
        name = host + _NEWER if newer else host
        if name not in self._configurations:
            path = os.path.join(self.directory, name)
            os.makedirs(path)
            made = fixtures.Configuration(path, machine=host)
            self._configurations[name] = self._stack.enter_context(made)
        return self._configurations[name]

    def store(self, host: str, url: str | None, newer: bool = False) -> Any:
        """The store of a host at a URL. Its database exists, and the store is closed."""
        if newer:
            url = url or f'sqlite:///{os.path.join(self.configuration(host).state_path, "devicetrack.sqlite")}'
        if (host, url) not in self._stores:
            conf = self.configuration(host, newer).conf
            conf.set_override('connection', url, 'devicetrack_database')
            store = self._stores[host, url] = databases.open_store(conf)
            # Use the store once here, so that forked processes inherit everything that the first use makes.
            store.check()
            store.hosts()
            store.host(host)
            store.records_of_host(host)
            store.contexts(host)
            store.close()
        return self._stores[host, url]

    def close(self) -> None:
        self._stack.close()
