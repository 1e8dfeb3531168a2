"""The process of a host's manager: only this process may change the host."""

from __future__ import annotations

import os

from devicetrack import exception


class OwnProcess:
    """The process that makes this object.

    :param host: the host's name
    """

    __slots__ = ('_host', '_pid')

    def __init__(self, host: str) -> None:
        self._host, self._pid = host, os.getpid()

    @property
    def is_this(self) -> bool:
        """Whether this process is the one, and no forked child of it."""
        return os.getpid() == self._pid

    def check(self) -> None:
        """:raises ForkedManager: this process is a child of the manager's"""
        if not self.is_this:
            raise exception.ForkedManager(self._host, self._pid)
