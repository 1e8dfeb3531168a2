"""What a host declares about its devices: asked anew at every audit, kept in the store for who is elsewhere.

A declaration is for the devices of one type at one parent. Guests are compared by them, the scheduler is told them, and
commands on other hosts read them.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from typing import TYPE_CHECKING

from oslo_log import log as logging

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.compatibility.facts import Declaration
from devicetrack.compatibility.facts import Facts
from devicetrack.compatibility.facts import look_at
from devicetrack.compatibility.facts import TypeAtParent
from devicetrack.compatibility.facts_data import declaration_as_text
from devicetrack.compatibility.rules import Rules
from devicetrack.compatibility.versions import MigrationVersion
from devicetrack.compatibility.versions import seen_since_boot
from devicetrack.compatibility.versions import Version
from devicetrack.compatibility.versions import version_seen
from devicetrack.objects.values import Capacity
from devicetrack.objects.values import Inventory
from devicetrack.objects.values import InventoryDevice
from devicetrack.objects.values import MigrationType
from devicetrack.objects.values import Record
from devicetrack.store.api import StoredDeclaration

if TYPE_CHECKING:
    from devicetrack.claims.steps import Steps

LOG = logging.getLogger(__name__)


def rules_here(manager: Steps) -> Rules:
    """The deployment's rules as far as this host's hypervisor follows them."""
    return manager.declarer.rules.followed_by(manager.driver.can_become)


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
    said = {TypeAtParent(one.kind, one.parent, one.type): one for one in manager.driver.migration_types()}
    declared: dict[TypeAtParent, Declaration] = {
        place: one for place, one in manager.declarations.items() if place.kind not in inventory.known_kinds}
    there: tuple[Capacity | InventoryDevice, ...] = (*inventory.capacities, *inventory.devices)
    for one in there:
        look = look_at(one.details)
        place = TypeAtParent(one.kind, one.parent, look.type)
        if place not in declared:
            declared[place] = manager.declarer.declare(look, said.get(place, MigrationType(*place)),
                                                       obstacles.get(one.kind))
    if declared != manager.declarations or at_start:
        _write(manager, declared)
        manager.declarations = declared


def _write(manager: Steps, declared: Mapping[TypeAtParent, Declaration]) -> None:
    rows = [StoredDeclaration(manager.host_uuid, kind, parent or '', device_type, declaration_as_text(one))
            for (kind, parent, device_type), one in declared.items()]
    rows.sort()
    if rows != manager.store.declarations(manager.host_uuid):
        manager.store.set_declarations(manager.host_uuid, rows)


def declared(manager: Steps, kind: str, parent: str | None, text: str) -> Facts | None:
    """What was declared about a device when the host was last asked; None for one that it did not have then. No I/O.

    :param text: its details as they are stored
    """
    found = manager.declarations.get(TypeAtParent(kind, parent, look_at(text).type))
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
    look = look_at(record.details)
    return manager.declarer.declare(look, MigrationType(record.kind, record.parent, look.type), obstacle).facts


def like(manager: Steps, record: Record) -> Callable[[str | None, str], bool]:
    """Says of a device, by its parent and its details, whether this host declares the same of it as of a row's."""
    facts = facts_of(manager, record)

    def accepts(parent: str | None, text: str) -> bool:
        return declared(manager, record.kind, parent, text) == facts

    return accepts


def seen_at_start(manager: Steps, record: Record) -> str | None:
    """What a guest has seen of a device that it has just started on."""
    if _came_running(record):
        return record.seen
    return _as_seen(seen_since_boot(None, _version_of(manager, record)))


def seen_before_start(manager: Steps, record: Record) -> str | None:
    """What a guest will have seen of a device that is made ready for it, whether or not it starts."""
    return record.seen if _came_running(record) else seen_at_reboot(manager, record)


def _came_running(record: Record) -> bool:
    """Whether a guest comes to a device as it was: only a live migration brings along what it has seen."""
    return record.role == vocabulary.INCOMING and record.seen is not None


def seen_at_reboot(manager: Steps, record: Record) -> str | None:
    """What a guest may have seen of a device after it rebooted."""
    before = version_seen(record.seen)
    return _as_seen(seen_since_boot(before, _version_of(manager, record)))


def _version_of(manager: Steps, record: Record) -> MigrationVersion:
    """Without a question to the hypervisor, which a guest that runs already need not wait for."""
    facts = declared(manager, record.kind, record.parent, record.details) or _declare_now(manager, record, None)
    return facts.version


def _as_seen(version: Version | None) -> str | None:
    return None if version is None else str(version)
