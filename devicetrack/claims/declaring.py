"""What a host declares about its devices: asked anew at every audit, kept in the store for who is elsewhere.

A declaration is for the devices of one type at one parent. Guests are compared by them, the scheduler is told them, and
commands on other hosts read them.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
import functools
import json
from typing import Any
from typing import NamedTuple
from typing import TYPE_CHECKING

from oslo_log import log as logging

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.claims import compatibility_sources
from devicetrack.claims.compatibility_sources import NOTHING
from devicetrack.claims.compatibility_sources import Said
from devicetrack.claims.compatibility_sources import Source
from devicetrack.conf import compatibility as options
from devicetrack.engine import compatibility
from devicetrack.engine import declaration
from devicetrack.engine.compatibility import Facts
from devicetrack.engine.compatibility import Rules
from devicetrack.engine.compatibility import Sort
from devicetrack.engine.compatibility import STATELESS
from devicetrack.engine.compatibility import Unknown
from devicetrack.engine.compatibility import Version
from devicetrack.engine.declaration import Declaration
from devicetrack.objects import details
from devicetrack.objects import DeviceAssignment
from devicetrack.objects.values import Capacity
from devicetrack.objects.values import Inventory
from devicetrack.objects.values import InventoryDevice
from devicetrack.objects.values import MigrationType
from devicetrack.objects.values import Record
from devicetrack.store.api import StoredDeclaration
from devicetrack.virt.driver import VirtDriver

if TYPE_CHECKING:
    from devicetrack.claims.steps import Steps

LOG = logging.getLogger(__name__)

# Kind, parent and type: what a declaration is about.
Place = tuple[str, str | None, str]


class Look(NamedTuple):
    """What the details of a device say of its type."""

    type: str
    api: str
    is_stateless: bool


class Declarer:
    """Asks the sources.

    :raises InvalidConfiguration: an option cannot be used
    """

    def __init__(self, conf: Any, host: str) -> None:
        options.register(conf)
        self._require_version = conf[options.GROUP].require_version
        self._sources: list[tuple[str, Source]] = compatibility_sources.load(conf, host)
        self._failed: set[tuple[str, str]] = set()

    @property
    def rules(self) -> Rules:
        """What the deployment decided, as the sources were last read."""
        crossings = frozenset(pair for _name, source in self._sources for pair in source.crossings)
        growing = frozenset(sort for _name, source in self._sources for sort in source.growing)
        return Rules(self._require_version, crossings, growing)

    def refresh(self) -> None:
        """Let the sources read again what they read once. Of one that fails, what it read before counts.

        :raises InvalidConfiguration: of one an operator must mend something; the others were read
        """
        failed = None
        for name, source in self._sources:
            try:
                source.refresh()
            except exception.InvalidConfiguration as error:
                failed = failed or error
            except Exception as error:
                # A vendor's inventory may be down for a while; that is no reason to be without a compute service.
                self._log_once(name, f'source {name} cannot be read: {type(error).__name__}: {error}',
                               'What was read before counts', error)
        if failed is not None:
            raise failed

    def compare_kinds(self, installed: frozenset[str]) -> None:
        """Have the log warn of device kinds in the table that are not installed."""
        for _name, source in self._sources:
            if isinstance(source, compatibility_sources.Table):
                source.compare_kinds(installed)

    def declare(self, look: Look, said: MigrationType, obstacle: str | None) -> Declaration:
        """What is declared of a type at a parent: of each subject what the first source says that knows it."""
        sort = Sort(said.kind, said.type)
        version: compatibility.MigrationVersion = Unknown('no source knows it')
        if look.is_stateless:
            version = STATELESS
        found = Said(None if isinstance(version, Unknown) else version)
        sources: dict[str, str] = {}
        reasons = []
        for name, source in self._sources:
            says = self._ask(name, source, sort, said)
            if isinstance(says.version, Unknown):
                reasons.append(f'{name}: {says.version.reason}')
                says = says._replace(version=None)
            for subject, value in says._asdict().items():
                if value is not None and getattr(found, subject) is None:
                    found = found._replace(**{subject: value})
                    if subject in declaration.SUBJECTS:
                        sources[subject] = name
        if found.version is not None:
            version = found.version
        elif reasons:
            version = Unknown('; '.join(reasons))
        facts = Facts(sort, look.api, version, found.required or frozenset(), found.offered or frozenset(),
                      found.aggregation, obstacle or found.obstacle)
        return Declaration(said.parent, facts, tuple(sorted(sources.items())), said.driver)

    def _ask(self, name: str, source: Source, sort: Sort, said: MigrationType) -> Said:
        # It may come from another project. What it would have required nobody knows then, so nothing moves.
        failed = None
        try:
            says = source.say(sort, said)
            mistake = compatibility_sources.mistake(says)
            if mistake is None:
                return says
            text = f'source {name} says {mistake}'
        except Exception as error:
            text, failed = f'source {name} fails with {type(error).__name__}: {error}', error
        self._log_once(name, text, f'Nothing is known of the compatibility of {sort}', failed)
        return NOTHING._replace(obstacle=text)

    def _log_once(self, name: str, text: str, outcome: str, error: Exception | None) -> None:
        if (name, text) not in self._failed:
            self._failed.add((name, text))
            LOG.error('%s: %s', outcome, text, exc_info=error)


def rules_here(manager: Steps) -> Rules:
    """The deployment's rules as far as this host's hypervisor follows them."""
    return followed(manager.declarer.rules, manager.driver)


def followed(rules: Rules, driver: VirtDriver) -> Rules:
    """Rules as far as a hypervisor follows them."""
    crossings = frozenset((source, destination) for source, destination in rules.crossings
                          if driver.can_become(source.kind, destination.kind))
    return rules._replace(crossings=crossings)


def refresh(manager: Steps, inventory: Inventory, at_start: bool = False) -> None:
    """Ask anew what this host declares, and write it where it changed. Blocks.

    :raises InvalidConfiguration: at the start, when a source cannot be read
    :raises HypervisorUnreachable, StoreError: no answer; what was declared before counts
    """
    try:
        manager.declarer.refresh()
    except exception.InvalidConfiguration as error:
        if at_start:
            raise
        LOG.error('What was read before counts: %s', error)
    manager.declarer.compare_kinds(inventory.known_kinds.union(part.what for part in inventory.unknown))
    obstacles = manager.driver.live_migration_obstacles()
    said = {(one.kind, one.parent, one.type): one for one in manager.driver.migration_types()}
    declared: dict[Place, Declaration] = {
        place: one for place, one in manager.declarations.items() if place[0] not in inventory.known_kinds}
    there: tuple[Capacity | InventoryDevice, ...] = (*inventory.capacities, *inventory.devices)
    for one in there:
        look = _look_at(one.details)
        place = one.kind, one.parent, look.type
        if place not in declared:
            declared[place] = manager.declarer.declare(look, said.get(place, MigrationType(*place)),
                                                       obstacles.get(one.kind))
    if declared != manager.declarations or at_start:
        _write(manager, declared)
        manager.declarations = declared


def _write(manager: Steps, declared: Mapping[Place, Declaration]) -> None:
    rows = [StoredDeclaration(manager.host_uuid, kind, parent or '', device_type,
                              json.dumps(one.as_data(), separators=(',', ':'), sort_keys=True))
            for (kind, parent, device_type), one in declared.items()]
    rows.sort()
    if rows != manager.store.declarations(manager.host_uuid):
        manager.store.set_declarations(manager.host_uuid, rows)


def stored(row: StoredDeclaration) -> Declaration:
    """A declaration as the store has it.

    :raises BadRequest: a newer release wrote it, or it is damaged
    """
    where = f'declaration of {row.kind} {row.type} of host {row.host_uuid}'
    try:
        data = json.loads(row.document)
    except ValueError as error:
        raise exception.BadRequest(where, row.document[:40], f'is no JSON: {error}') from error
    return declaration.from_data(data, where)


def declared(manager: Steps, kind: str, parent: str | None, text: str) -> Facts | None:
    """What was declared about a device when the host was last asked; None for one that it did not have then. No I/O.

    :param text: its details as they are stored
    """
    found = manager.declarations.get((kind, parent, _look_at(text).type))
    return None if found is None else found.facts


def facts_of(manager: Steps, record: Record) -> Facts:
    """What this host declares about the device of a row.

    :raises HypervisorUnreachable: options name its kind or parent no more, and nobody tells whether it can be migrated
    """
    known = declared(manager, record.kind, record.parent, record.details)
    if known is not None:
        return known
    return _declare_now(manager, record, manager.driver.live_migration_obstacles().get(record.kind))


def _declare_now(manager: Steps, record: Record, obstacle: str | None) -> Facts:
    look = _look_at(record.details)
    return manager.declarer.declare(look, MigrationType(record.kind, record.parent, look.type), obstacle).facts


def like(manager: Steps, record: Record) -> Callable[[str | None, str], bool]:
    """Says of a device, by its parent and its details, whether this host declares the same of it as of a row's."""
    facts = facts_of(manager, record)

    def accepts(parent: str | None, text: str) -> bool:
        return declared(manager, record.kind, parent, text) == facts

    return accepts


def facts_elsewhere(device: DeviceAssignment) -> Facts:
    """What is known of a device of another host that declares nothing."""
    look = _look_of(device.details)
    version = STATELESS if look.is_stateless else Unknown('its host declares nothing')
    return Facts(Sort(device.kind, look.type), look.api, version)


def seen_at_start(manager: Steps, record: Record) -> str | None:
    """What a guest has seen of a device that it has just started on."""
    if _came_running(record):
        return record.seen
    return _as_seen(compatibility.seen_since_boot(None, _version_of(manager, record)))


def seen_before_start(manager: Steps, record: Record) -> str | None:
    """What a guest will have seen of a device that is made ready for it, whether or not it starts."""
    return record.seen if _came_running(record) else seen_at_reboot(manager, record)


def _came_running(record: Record) -> bool:
    """Whether a guest comes to a device as it was: only a live migration brings along what it has seen."""
    return record.role == vocabulary.INCOMING and record.seen is not None


def seen_at_reboot(manager: Steps, record: Record) -> str | None:
    """What a guest may have seen of a device after it rebooted."""
    before = version_seen(record.seen)
    return _as_seen(compatibility.seen_since_boot(before, _version_of(manager, record)))


def version_seen(text: str | None) -> Version | None:
    """The version in a row; None when nobody knows, or when a newer release has another way of writing it."""
    version = compatibility.parse_version(text) if text is not None else None
    return version if isinstance(version, Version) else None


def _version_of(manager: Steps, record: Record) -> compatibility.MigrationVersion:
    """Without a question to the hypervisor, which a guest that runs already need not wait for."""
    facts = declared(manager, record.kind, record.parent, record.details) or _declare_now(manager, record, None)
    return facts.version


def _as_seen(version: Version | None) -> str | None:
    return None if version is None else str(version)


def _look_of(known: details.DeviceDetails) -> Look:
    return Look(known.migration_type, getattr(known, 'device_api', ''), known.is_stateless)


@functools.lru_cache(maxsize=1 << 14)
def _look_at(text: str) -> Look:
    """What details say. Those that a newer release or another kind stored say nothing that we know."""
    try:
        return _look_of(details.peek(text))
    except (exception.UnknownObject, exception.MalformedObject):
        return Look('', '', False)
