"""The declarations of a started host about its device types. Every audit asks for them anew.

A declaration is about the devices of one type at one parent. Live migrations compare devices by it, the scheduler gets
traits from it, and commands on other hosts read it in the store.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping

from devicetrack import exception
from devicetrack import log
from devicetrack import vocabulary
from devicetrack.claims.host import ThisHost
from devicetrack.compatibility.facts import Declaration
from devicetrack.compatibility.facts import declaration_as_text
from devicetrack.compatibility.facts import Facts
from devicetrack.compatibility.facts import look_at
from devicetrack.compatibility.facts import MigrationVersion
from devicetrack.compatibility.facts import seen_since_boot
from devicetrack.compatibility.facts import TypeAtParent
from devicetrack.compatibility.facts import Version
from devicetrack.compatibility.facts import version_seen
from devicetrack.compatibility.rules import Rules
from devicetrack.compatibility.sources import Declarer
from devicetrack.objects.compact import Compact
from devicetrack.objects.values import Inventory
from devicetrack.objects.values import InventoryDevice
from devicetrack.objects.values import MigrationType
from devicetrack.objects.values import Record
from devicetrack.store.api import StoredDeclaration

LOG = log.logger(__name__)


class Declarations:
    """The host's latest declarations, as one mapping that is replaced as a whole.

    :param declarer: asks the sources
    """

    def __init__(self, host: ThisHost, declarer: Declarer) -> None:
        self._driver, self._store, self._host_uuid, self._declarer = host.driver, host.store, host.uuid, declarer
        self.known: Mapping[TypeAtParent, Declaration] = {}

    @property
    def deployment_rules(self) -> Rules:
        """The deployment's rules, as the sources were last read."""
        return self._declarer.rules

    @property
    def rules(self) -> Rules:
        """The deployment's rules as far as this host's hypervisor follows them."""
        return self.deployment_rules.followed_by(self._driver.can_become)

    def refresh(self, inventory: Inventory, at_start: bool = False) -> None:
        """Get this host's declarations again, and write them to the store if they changed. Blocks.

        :raises InvalidConfiguration: at the start, if a source cannot be read
        :raises HypervisorUnreachable, StoreError: no answer; the earlier declarations stay valid
        """
        try:
            self._declarer.refresh()
        except exception.InvalidConfiguration as error:
            if at_start:
                raise
            LOG.error('The sources that were read before stay valid: %s', error)
        self._declarer.compare_kinds(inventory.known_kinds.union(part.what for part in inventory.unknown))
        obstacles = self._driver.live_migration_obstacles()
        types = {TypeAtParent(one.kind, one.parent, one.type): one for one in self._driver.migration_types()}
        declared = {where: one for where, one in self.known.items() if where.kind not in inventory.known_kinds}
        for where, text in _one_of_each_type(inventory).items():
            if where not in declared:
                declared[where] = self._declarer.declare(look_at(text), types.get(where, MigrationType(*where)),
                                                         obstacles.get(where.kind))
        if declared != self.known or at_start:
            self._write(declared)
            self.known = declared

    def _write(self, declared: Mapping[TypeAtParent, Declaration]) -> None:
        rows = sorted(StoredDeclaration(self._host_uuid, kind, parent or '', device_type, declaration_as_text(one))
                      for (kind, parent, device_type), one in declared.items())
        if rows != self._store.declarations_of_host(self._host_uuid):
            self._store.set_declarations(self._host_uuid, rows)

    # -- of devices ---------------------------------------------------------------------------------------------------

    def of_device(self, kind: str, parent: str | None, text: str) -> Facts | None:
        """The declared facts about a device, or None if the host did not have such devices then. No I/O.

        :param text: the details of the device, as they are stored
        """
        found = self.known.get(TypeAtParent(kind, parent, look_at(text).type))
        return None if found is None else found.facts

    def of_row(self, record: Record) -> Facts:
        """The facts that this host declares about the device of a row.

        :raises HypervisorUnreachable: options no longer name its kind or parent, and it is unknown whether it can be
            migrated
        """
        known = self.of_device(record.kind, record.parent, record.details)
        if known is not None:
            return known
        return self._declare_now(record, self._driver.live_migration_obstacles().get(record.kind))

    def _declare_now(self, record: Record, obstacle: str | None) -> Facts:
        look = look_at(record.details)
        return self._declarer.declare(look, MigrationType(record.kind, record.parent, look.type), obstacle).facts

    def like(self, record: Record) -> Callable[[str | None, str], bool]:
        """Return a test, by parent and details, for devices with the same declared facts as the device of a row."""
        facts = self.of_row(record)
        return lambda parent, text: self.of_device(record.kind, parent, text) == facts

    # -- what guests have seen ----------------------------------------------------------------------------------------

    def seen_at_start(self, record: Record) -> str | None:
        """The version that a guest has seen of a device when the service or the hypervisor reports that it runs.

        A report for an active row may repeat an earlier one. A guest that came running has not booted since, and
        :meth:`seen_before_start` has raised the version for any other.
        """
        if record.state == vocabulary.ACTIVE or _came_running(record):
            return record.seen
        return _as_seen(seen_since_boot(None, self._version_of(record)))

    def seen_before_start(self, record: Record) -> str | None:
        """The version that a guest will have seen of a device that is made ready for it, whether or not it starts.

        An incoming device has a version only if its guest comes running, so :meth:`seen_at_start` sets any other.
        """
        return record.seen if record.role == vocabulary.INCOMING else self.seen_at_reboot(record)

    def seen_at_reboot(self, record: Record) -> str | None:
        """The version that a guest may have seen of a device after a reboot."""
        return _as_seen(seen_since_boot(version_seen(record.seen), self._version_of(record)))

    def _version_of(self, record: Record) -> MigrationVersion:
        """Ask the hypervisor nothing, since the guest runs already and need not wait for an answer."""
        facts = self.of_device(record.kind, record.parent, record.details) or self._declare_now(record, None)
        return facts.version


def _came_running(record: Record) -> bool:
    """Whether a guest arrives running: only a live migration sets ``seen`` for an incoming device."""
    return record.role == vocabulary.INCOMING and record.seen is not None


def _as_seen(version: Version | None) -> str | None:
    return None if version is None else str(version)


def _one_of_each_type(inventory: Inventory) -> dict[TypeAtParent, str]:
    """The details of one device of each type at each parent. Thousands of devices have only a few types."""
    found: dict[tuple[str, str | None, str], str] = {}
    for capacity in inventory.capacities:
        found.setdefault((capacity.kind, capacity.parent, look_at(capacity.details).type), capacity.details)
    devices = Compact(InventoryDevice, inventory.devices)
    # The last one of each is as good as the first, and a dictionary keeps the last without a loop.
    for (kind, parent, known), text in dict(zip(
            devices.columns('kind', 'parent', 'migration_type'), devices.column('details'), strict=True)).items():
        if known is not None:
            found.setdefault((kind, parent, known), text)
    if None in devices.column('migration_type'):
        for kind, parent, known, text in devices.columns('kind', 'parent', 'migration_type', 'details'):
            if known is None:
                found.setdefault((kind, parent, look_at(text).type), text)
    return {TypeAtParent(*where): text for where, text in found.items()}
