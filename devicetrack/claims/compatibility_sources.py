"""Who says what devices of a type are to guests that move while they run.

A source is named by an entry point of ``devicetrack.compatibility.sources``; the option ``sources`` puts them in order.
None of them finds out by trying: to write a version to a driver and see whether it takes it would need privileges on
the very host that may be the wrong one, answers for one host at a time, and changes with the driver.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
import re
from typing import Any
from typing import Final
from typing import NamedTuple

from oslo_log import log as logging
from stevedore import exception as stevedore_exceptions
from stevedore import named

from devicetrack import exception
from devicetrack.claims import compatibility_table
from devicetrack.conf import compatibility as options
from devicetrack.engine.compatibility import MigrationVersion
from devicetrack.engine.compatibility import Opaque
from devicetrack.engine.compatibility import parse_version
from devicetrack.engine.compatibility import Sort
from devicetrack.engine.compatibility import Unknown
from devicetrack.objects.values import MigrationType

LOG = logging.getLogger(__name__)

NAMESPACE: Final = 'devicetrack.compatibility.sources'

_UNITS: Final = re.compile('[1-9][0-9]{0,8}')


class Said(NamedTuple):
    """What one source says. None leaves it to the next source; so does an unknown version, and its reason is kept."""

    version: MigrationVersion | None = None
    required: frozenset[str] | None = None
    offered: frozenset[str] | None = None
    aggregation: int | None = None
    obstacle: str | None = None


NOTHING: Final = Said()


class Source(abc.ABC):
    """One source. It is made once in a process, and asked again at every audit.

    :param conf: the configuration (an ``oslo_config.cfg.ConfigOpts``); the source registers the options that it needs
    :param host: the host's name, as the compute service has it
    :raises InvalidConfiguration: an option cannot be used; the service does not start
    """

    crossings: frozenset[tuple[Sort, Sort]] = frozenset()
    """Pairs of source and destination that may differ in kind."""

    growing: frozenset[Sort] = frozenset()
    """Types of a source whose guests may get more units than they have."""

    def __init__(self, conf: Any, host: str) -> None:
        self.conf, self.host = conf, host

    def refresh(self) -> None:
        """Read again what is read once for all types. Called at the start and before every audit; may block.

        :raises InvalidConfiguration: it cannot be read; at an audit, what was read before counts
        """
        return

    @abc.abstractmethod
    def say(self, sort: Sort, said: MigrationType) -> Said:
        """Say of a type what the source knows.

        Any error that this raises keeps guests from moving with the type, until it is gone.

        :param said: what its parent says of it
        """


class Sysfs(Source):
    """What drivers declare in sysfs; the virt driver has read it."""

    def __init__(self, conf: Any, host: str) -> None:
        super().__init__(conf, host)
        self._opaque = conf[options.GROUP].opaque_versions

    def say(self, sort: Sort, said: MigrationType) -> Said:
        units, problem = None, said.aggregation.problem
        if said.aggregation.text is not None:
            if _UNITS.fullmatch(said.aggregation.text):
                units = int(said.aggregation.text)
            else:
                problem = f'{said.aggregation.text[:20]!a} is no number of units'
        obstacle = None if problem is None else f'how many units {sort} has is not known: {problem}'
        return Said(self._version(said), aggregation=units, obstacle=obstacle)

    def _version(self, said: MigrationType) -> MigrationVersion | None:
        text, problem = said.version
        if text is None:
            return None if problem is None else Unknown(problem)
        version = parse_version(text)
        return Opaque(text) if self._opaque and isinstance(version, Unknown) else version


class Table(Source):
    """What the deployment's table says; nothing, where there is none."""

    def __init__(self, conf: Any, host: str) -> None:
        super().__init__(conf, host)
        self._path = conf[options.GROUP].table
        self._table: compatibility_table.Table | None = None

    def refresh(self) -> None:
        if self._path is not None:
            self._table = compatibility_table.read(self._path)
            self.crossings, self.growing = self._table.crossings, self._table.growing

    def say(self, sort: Sort, said: MigrationType) -> Said:
        if self._table is None:
            return NOTHING
        return Said(*self._table.declared(sort, self.host, said.driver))


def load(conf: Any, host: str) -> list[tuple[str, Source]]:
    """The sources that the option names, in its order.

    :raises InvalidConfiguration: one is not there, cannot be loaded or is none
    """
    names: Sequence[str] = conf[options.GROUP].sources
    where = f'[{options.GROUP}] sources'

    def failed(_manager: object, entry_point: Any, error: BaseException) -> None:
        raise exception.InvalidConfiguration(where, entry_point.name, f'cannot be loaded: {error}') from error

    try:
        manager: Any = named.NamedExtensionManager(NAMESPACE, names, name_order=True, on_load_failure_callback=failed,
                                                   warn_on_missing_entrypoint=False)
    except stevedore_exceptions.NoMatches:      # nothing is installed in this namespace
        manager = ()
    found = {extension.name: extension.plugin for extension in manager}
    loaded = []
    for name in dict.fromkeys(names):
        if name not in found:
            raise exception.InvalidConfiguration(where, name, f'no entry point of {NAMESPACE} has this name')
        source = found[name](conf, host)
        if not isinstance(source, Source):
            raise exception.InvalidConfiguration(where, name, f'it is no {Source.__module__}.{Source.__qualname__}')
        loaded.append((name, source))
    return loaded
