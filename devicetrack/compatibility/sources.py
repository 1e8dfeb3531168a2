"""Who says what devices of a type are to guests that move while they run.

A source is named by an entry point of ``devicetrack.compatibility.sources``; the option ``sources`` puts them in order.
None of them finds out by trying: to write a version to a driver and see whether it takes it would need privileges on
the very host that may be the wrong one, answers for one host at a time, and changes with the driver.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
import os
import re
from typing import Any
from typing import Final
from typing import NamedTuple
from typing import TYPE_CHECKING

from oslo_config import cfg
from oslo_log import log as logging
from stevedore import named

from devicetrack import exception
from devicetrack.conf import compatibility as options
from devicetrack.engine.compatibility import MigrationVersion
from devicetrack.engine.compatibility import Opaque
from devicetrack.engine.compatibility import parse_version
from devicetrack.engine.compatibility import Sort
from devicetrack.engine.compatibility import STATELESS
from devicetrack.engine.compatibility import Unknown
from devicetrack.engine.compatibility import Version
from devicetrack.objects.values import MigrationType

if TYPE_CHECKING:
    from devicetrack.claims import compatibility_table

LOG = logging.getLogger(__name__)

NAMESPACE: Final = 'devicetrack.compatibility.sources'

TABLE: Final = f'[{options.GROUP}] table'

_UNITS: Final = re.compile('[1-9][0-9]{0,8}')
_SHOWN: Final = 40
# Where an object is in memory: an obstacle with that in it would be another one at every audit.
_AT: Final = re.compile(' at 0x[0-9a-f]+')


class Said(NamedTuple):
    """What one source says of a type. Each of the five stands by itself.

    None is "I do not know", and so is an unknown version: the next source is asked, and the reason of the unknown one
    is kept. An empty set is an answer. An obstacle keeps guests from moving with the type.
    """

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

        What was read before counts after any error.

        :raises InvalidConfiguration: an operator must mend something first; the service does not start
        """
        return

    @abc.abstractmethod
    def say(self, sort: Sort, said: MigrationType) -> Said:
        """Say of a type what the source knows.

        Any error that this raises keeps guests from moving with the type, until it is gone. So does an answer that is
        not made of what :class:`Said` is made of.

        :param said: what its parent says of it
        :returns: ``Said()`` of a type that it does not know
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
        self._path = table_path(conf)
        self._table: compatibility_table.Table | None = None
        self._strange: frozenset[str] = frozenset()

    def refresh(self) -> None:
        if self._path is not None:
            # A parser of YAML costs ten milliseconds, and most deployments have no table.
            from devicetrack.claims import compatibility_table
            self._table = compatibility_table.read(self._path, TABLE)
            self.crossings, self.growing = self._table.crossings, self._table.growing

    def say(self, sort: Sort, said: MigrationType) -> Said:
        if self._table is None:
            return NOTHING
        return Said(*self._table.declared(sort, self.host, said.driver))

    def compare_kinds(self, installed: frozenset[str]) -> None:
        """Warn of kinds in the table that are not installed, of each once while it is there.

        Types and hosts that are not here are no mistake: a deployment has one table for all its hosts.
        """
        strange = self._table.kinds - installed if self._table is not None else frozenset()
        for kind in sorted(strange - self._strange):
            LOG.warning('Table %s: no device kind %s is installed here; there are %s', self._path, kind,
                        ', '.join(sorted(installed)))
        self._strange = strange


def table_path(conf: Any) -> str | None:
    """Where the deployment's table is; None where there is none.

    :raises InvalidConfiguration: the option cannot be used
    """
    path: str | None = conf[options.GROUP].table
    if path and not os.path.isabs(path):
        raise exception.InvalidConfiguration(TABLE, path, 'must be absolute: a service starts in any directory')
    return path or None


def mistake(says: object) -> str | None:
    """What is wrong with the answer of a source, which may come from another project; None when nothing is."""
    if not isinstance(says, Said):
        return f'{_shown(says)}, which is no {Said.__name__}'
    for subject, is_good, expected in (
            ('version', _is_version, 'Version of three numbers, Opaque, Unknown or STATELESS'),
            ('required', _is_features, 'frozenset of texts'), ('offered', _is_features, 'frozenset of texts'),
            ('aggregation', _is_units, 'number of units from 1'), ('obstacle', _is_text, 'text')):
        value = getattr(says, subject)
        if value is not None and not is_good(value):
            return f'{subject} {_shown(value)}, which is no {expected}'
    return None


def _is_version(value: object) -> bool:
    if isinstance(value, Version):
        return parse_version(str(value)) == value
    return (value is STATELESS or isinstance(value, Opaque) and _is_text(value.text)
            or isinstance(value, Unknown) and _is_text(value.reason))


def _is_features(value: object) -> bool:
    return isinstance(value, frozenset) and all(map(_is_text, value))


def _is_units(value: object) -> bool:
    return type(value) is int and value >= 1


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _shown(value: object) -> str:
    text = _AT.sub('', ascii(value))
    return text[:_SHOWN] + ('…' if len(text) > _SHOWN else '')


def load(conf: Any, host: str) -> list[tuple[str, Source]]:
    """The sources that the option names, in its order.

    :raises InvalidConfiguration: one is not there, cannot be loaded, is none, or cannot use an option
    """
    names: Sequence[str] = conf[options.GROUP].sources
    where = f'[{options.GROUP}] sources'

    def failed(_manager: object, entry_point: Any, error: BaseException) -> None:
        raise exception.InvalidConfiguration(where, entry_point.name, f'cannot be loaded: {error}') from error

    manager: Any = named.NamedExtensionManager(NAMESPACE, names, name_order=True, on_load_failure_callback=failed,
                                               warn_on_missing_entrypoint=False)
    found = {extension.name: extension.plugin for extension in manager}
    loaded = []
    for name in dict.fromkeys(names):
        if name not in found:
            raise exception.InvalidConfiguration(where, name, f'no entry point of {NAMESPACE} has this name')
        loaded.append((name, _make(name, found[name], conf, host, where)))
    return loaded


def _make(name: str, cls: Any, conf: Any, host: str, where: str) -> Source:
    if not (isinstance(cls, type) and issubclass(cls, Source)):
        raise exception.InvalidConfiguration(where, name, f'{_path(cls)} is no subclass of {_path(Source)}')
    try:
        return cls(conf, host)
    except (exception.InvalidConfiguration, cfg.Error):
        raise
    except Exception as error:
        raise exception.InvalidConfiguration(
            where, name, f'{_path(cls)} fails with {type(error).__name__}: {error}') from error


def _path(cls: Any) -> str:
    """Where a class is, as an entry point names it."""
    return f'{getattr(cls, "__module__", "")}:{getattr(cls, "__qualname__", repr(cls))}'
