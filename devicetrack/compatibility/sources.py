"""Sources of the facts about types of devices, for guests that move while they run.

An entry point of ``devicetrack.compatibility.sources`` names a source; the option ``sources`` puts them in order. No
source tries out whether a driver accepts a version: that would need privileges on a host that may be the wrong one,
would answer for one host at a time, and would change with the driver.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
import re
from typing import Any
from typing import Final
from typing import NamedTuple
from typing import TYPE_CHECKING

from oslo_config import cfg

from devicetrack import conf as registry
from devicetrack import exception
from devicetrack import log
from devicetrack import vocabulary
from devicetrack.compatibility.facts import Declaration
from devicetrack.compatibility.facts import Facts
from devicetrack.compatibility.facts import MigrationVersion
from devicetrack.compatibility.facts import Opaque
from devicetrack.compatibility.facts import parse_version
from devicetrack.compatibility.facts import Sort
from devicetrack.compatibility.facts import STATELESS
from devicetrack.compatibility.facts import SUBJECTS
from devicetrack.compatibility.facts import TypeLook
from devicetrack.compatibility.facts import UnknownVersion
from devicetrack.compatibility.facts import Version
from devicetrack.compatibility.rules import Rules
from devicetrack.conf import compatibility as options
from devicetrack.objects.values import MigrationType

if TYPE_CHECKING:
    from devicetrack.compatibility import table

LOG = log.logger(__name__)

NAMESPACE: Final = 'devicetrack.compatibility.sources'

TABLE: Final = f'[{options.GROUP}] table'

_UNITS: Final = re.compile('[1-9][0-9]{0,8}')
_SHOWN: Final = 40
# The address of an object in memory. An obstacle with an address in its text would differ at every audit.
_AT: Final = re.compile(' at 0x[0-9a-f]+')


class Said(NamedTuple):
    """The answer of one source about a type. Each of the five fields counts by itself.

    None means "I do not know", and so does an unknown version: then the next source is asked, and the reason of the
    unknown version is kept. An empty set is an answer. An obstacle keeps guests from moving with the type.
    """

    version: MigrationVersion | None = None
    required: frozenset[str] | None = None
    offered: frozenset[str] | None = None
    aggregation: int | None = None
    obstacle: str | None = None


NOTHING: Final = Said()


class Source(abc.ABC):
    """One source. A process makes it once, and asks it again at every audit.

    :param conf: the configuration (an ``oslo_config.cfg.ConfigOpts``); the source registers the options that it needs
    :param host: the host's name, as the compute service has it
    :raises InvalidConfiguration: an option cannot be used; the service does not start
    """

    crossings: frozenset[tuple[Sort, Sort]] = frozenset()
    """Pairs of source and destination that may differ in kind."""

    growing: frozenset[Sort] = frozenset()
    """Types of a source whose guests may get more units than they have now."""

    def __init__(self, conf: Any, host: str) -> None:
        self.conf, self.host = conf, host

    def refresh(self) -> None:
        """Read the data for all types again. It is called at the start and before every audit, and may block.

        After any error the data that were read before count.

        :raises InvalidConfiguration: an operator must fix something first; the service does not start
        """
        return

    @abc.abstractmethod
    def say(self, sort: Sort, said: MigrationType) -> Said:
        """Say what the source knows about a type.

        While this raises any error, guests do not move with the type. The same is true while it returns anything but a
        valid :class:`Said`.

        :param said: the type as its parent reports it
        :returns: ``Said()`` for a type that the source does not know
        """


class Sysfs(Source):
    """The declarations of drivers in sysfs, which the virt driver has read."""

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
            return None if problem is None else UnknownVersion(problem)
        version = parse_version(text)
        return Opaque(text) if self._opaque and isinstance(version, UnknownVersion) else version


class Table(Source):
    """The deployment's table, if there is one."""

    def __init__(self, conf: Any, host: str) -> None:
        super().__init__(conf, host)
        self._path = table_path(conf)
        self._table: table.CompatibilityTable | None = None
        self._strange: frozenset[str] = frozenset()

    def refresh(self) -> None:
        if self._path is not None:
            # Importing the YAML parser takes ten milliseconds, and most deployments have no table.
            from devicetrack.compatibility import table
            self._table = table.read(self._path, TABLE)
            self.crossings, self.growing = self._table.crossings, self._table.growing

    def say(self, sort: Sort, said: MigrationType) -> Said:
        if self._table is None:
            return NOTHING
        return Said(*self._table.declared(sort, self.host, said.driver))

    def compare_kinds(self, installed: frozenset[str]) -> None:
        """Warn about each kind in the table that is not installed, once as long as the table names it.

        Types and hosts that are not here are not a mistake: a deployment has one table for all its hosts.
        """
        strange = self._table.kinds - installed if self._table is not None else frozenset()
        for kind in sorted(strange - self._strange):
            LOG.warning('Table %s: no device kind %s is installed here; there are %s', self._path, kind,
                        ', '.join(sorted(installed)))
        self._strange = strange


def table_path(conf: Any) -> str | None:
    """Return the path of the deployment's table, or None.

    :raises InvalidConfiguration: the option cannot be used
    """
    path: str | None = conf[options.GROUP].table
    return path or None


def mistake(says: object) -> str | None:
    """Return the mistake in the answer of a source, or None. The source may come from another project."""
    if not isinstance(says, Said):
        return f'{_shown(says)}, which is no {Said.__name__}'
    for subject, is_good, expected in (
            ('version', _is_version, 'Version of three numbers, Opaque, UnknownVersion or STATELESS'),
            ('required', _is_features, 'frozenset of texts'), ('offered', _is_features, 'frozenset of texts'),
            ('aggregation', lambda units: type(units) is int and units >= 1, 'number of units from 1'),
            ('obstacle', vocabulary.is_text, 'text')):
        value = getattr(says, subject)
        if value is not None and not is_good(value):
            return f'{subject} {_shown(value)}, which is no {expected}'
    return None


def _is_version(value: object) -> bool:
    if isinstance(value, Version):
        return parse_version(str(value)) == value
    return (value is STATELESS or isinstance(value, Opaque) and vocabulary.is_text(value.text)
            or isinstance(value, UnknownVersion) and vocabulary.is_text(value.reason))


def _is_features(value: object) -> bool:
    return isinstance(value, frozenset) and all(map(vocabulary.is_text, value))


def _shown(value: object) -> str:
    text = _AT.sub('', ascii(value))
    return text[:_SHOWN] + ('…' if len(text) > _SHOWN else '')


def load(conf: Any, host: str) -> list[tuple[str, Source]]:
    """Load the sources that the option names, in its order.

    :raises InvalidConfiguration: one is not installed, cannot be loaded, is not a source, or cannot use an option
    """
    names: Sequence[str] = conf[options.GROUP].sources
    where = f'[{options.GROUP}] sources'
    loaded = {name: registry.load_plugin(NAMESPACE, where, name) for name in names}
    return [(name, _make(name, cls, conf, host, where)) for name, cls in loaded.items()]


def _make(name: str, cls: Any, conf: Any, host: str, where: str) -> Source:
    if not (isinstance(cls, type) and issubclass(cls, Source)):
        raise exception.InvalidConfiguration(
            where, name, f'{registry.class_path(cls)} is no subclass of {registry.class_path(Source)}')
    try:
        return cls(conf, host)
    except (exception.InvalidConfiguration, cfg.Error):
        raise
    except Exception as error:
        raise exception.InvalidConfiguration(
            where, name, f'{registry.class_path(cls)} fails with {type(error).__name__}: {error}') from error


class Declarer:
    """Asks the sources, in their order.

    :raises InvalidConfiguration: an option cannot be used
    """

    def __init__(self, conf: Any, host: str) -> None:
        options.register(conf)
        self._require_version = conf[options.GROUP].require_version
        self._sources: list[tuple[str, Source]] = load(conf, host)
        self._failed: set[tuple[str, str]] = set()

    @property
    def rules(self) -> Rules:
        """The rules of the deployment, as the sources were last read."""
        crossings = frozenset(pair for _name, source in self._sources for pair in source.crossings)
        growing = frozenset(sort for _name, source in self._sources for sort in source.growing)
        return Rules(self._require_version, crossings, growing)

    def refresh(self) -> None:
        """Let the sources read their data again. If one fails, the data that it read before count.

        :raises InvalidConfiguration: an operator must fix something for one source; the others were read
        """
        failed = None
        for name, source in self._sources:
            try:
                source.refresh()
            except exception.InvalidConfiguration as error:
                failed = failed or error
            except Exception as error:
                # A vendor's inventory may be down for a while. The compute service must start all the same.
                self._log_once(name, f'source {name} cannot be read: {type(error).__name__}: {error}',
                               'What was read before counts', error)
        if failed is not None:
            raise failed

    def compare_kinds(self, installed: frozenset[str]) -> None:
        """Log a warning about device kinds in the table that are not installed."""
        for _name, source in self._sources:
            if isinstance(source, Table):
                source.compare_kinds(installed)

    def declare(self, look: TypeLook, said: MigrationType, obstacle: str | None) -> Declaration:
        """Make the declaration of a type at a parent: each subject comes from the first source that knows it."""
        sort = Sort(said.kind, said.type)
        found = Said(STATELESS if look.is_stateless else None)
        sources: dict[str, str] = {}
        reasons = []
        for name, source in self._sources:
            says = self._ask(name, source, sort, said)
            if isinstance(says.version, UnknownVersion):
                reasons.append(f'{name}: {says.version.reason}')
                says = says._replace(version=None)
            for subject, value in says._asdict().items():
                if value is not None and getattr(found, subject) is None:
                    found = found._replace(**{subject: value})
                    if subject in SUBJECTS:
                        sources[subject] = name
        version = found.version
        if version is None:
            version = UnknownVersion('; '.join(reasons) or 'no source knows it')
        facts = Facts(sort, look.api, version, found.required or frozenset(), found.offered or frozenset(),
                      found.aggregation, obstacle or look.obstacle or said.obstacle or found.obstacle)
        return Declaration(said.parent, facts, tuple(sorted(sources.items())), said.driver)

    def _ask(self, name: str, source: Source, sort: Sort, said: MigrationType) -> Said:
        # The source may come from another project. If it fails, its requirements are unknown, so no guest may move.
        failed = None
        try:
            says = source.say(sort, said)
            wrong = mistake(says)
            if wrong is None:
                return says
            text = f'source {name} says {wrong}'
        except Exception as error:
            text, failed = f'source {name} fails with {type(error).__name__}: {error}', error
        self._log_once(name, text, f'Nothing is known of the compatibility of {sort}', failed)
        return NOTHING._replace(obstacle=text)

    def _log_once(self, name: str, text: str, outcome: str, error: Exception | None) -> None:
        if (name, text) not in self._failed:
            self._failed.add((name, text))
            LOG.error('%s: %s', outcome, text, exc_info=error)
