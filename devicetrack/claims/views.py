"""Reads the views of a started host, and keeps the facts that claims need as one immutable snapshot."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import marshal
from typing import Any
from typing import Final
from typing import NamedTuple

from devicetrack import exception
from devicetrack import log
from devicetrack.claims import locks
from devicetrack.claims.holdings import SeenDevices
from devicetrack.claims.host import ThisHost
from devicetrack.claims.instance_fields import ImageProperties
from devicetrack.claims.providers import KnownProviders
from devicetrack.claims.rows import KnownRows
from devicetrack.claims.rows import Rows
from devicetrack.engine import containment
from devicetrack.engine import demand as demands
from devicetrack.engine.snapshot import Snapshot
from devicetrack.engine.views import named_instances
from devicetrack.engine.views import named_migrations
from devicetrack.engine.views import needs_guest_records
from devicetrack.engine.views import Views
from devicetrack.engine.withholding import Marks
from devicetrack.objects import DeviceRequest
from devicetrack.objects import extra_specs as specs
from devicetrack.objects.pci_alias import PCIAlias
from devicetrack.objects.values import Inventory
from devicetrack.objects.values import Record
from devicetrack.objects.values import Unknown
from devicetrack.objects.values import Usage

LOG = log.logger(__name__)


class Boot:
    """Paths in a definition are valid only for the boot that wrote them.

    :param recorded: the boot in the store, or None if no manager of the host ever ran
    """

    def __init__(self, host: ThisHost, recorded: str | None) -> None:
        self._driver, self._store, self._host_uuid = host.driver, host.store, host.uuid
        self._recorded = recorded
        self._realized: set[str] = set()
        self._ready: set[str] = set()

    @property
    def is_new_host(self) -> bool:
        """Whether no earlier boot is known, so that no definition has addresses of one."""
        return self._recorded is None

    @property
    def is_recorded(self) -> bool:
        """Whether the store has the present boot."""
        return self._recorded == self._driver.boot_id()

    @property
    def has_changed(self) -> bool:
        """Whether the host has booted, and some definitions have not been updated since."""
        return not self.is_new_host and not self.is_recorded

    @property
    def realized(self) -> frozenset[str]:
        """The instances whose devices have been made ready for the present boot, until that is recorded for all."""
        return frozenset(self._realized)

    def set_realized(self, instance_uuid: str) -> None:
        self._realized.add(instance_uuid)

    def is_ready(self, instance_uuid: str) -> bool:
        """Whether the devices and the definition of an instance have been updated for the present boot."""
        return instance_uuid in self._ready

    def set_ready(self, instance_uuid: str) -> None:
        self._realized.add(instance_uuid)
        self._ready.add(instance_uuid)

    def record(self) -> None:
        """Record the present boot, once all definitions are updated.

        :raises StoreError: the boot may not be recorded; call again
        """
        now = self._driver.boot_id()
        self._store.set_boot_id(self._host_uuid, now)
        self._recorded = now
        self._realized.clear()
        self._ready.clear()


NO_INVENTORY = Inventory((), (), frozenset())

# A host has guests of some dozens of flavors, and a provider or two for each.
_READ_DEMANDS: Final = 100


class Providers(NamedTuple):
    """The providers and classes that requests may name, by the last inventory.

    ``uuids`` are those of this host's providers, and ``classes`` are the resource classes that count its devices.
    ``below`` has, by provider, the classes that only providers below it count: a scheduler without nested providers
    allocates them at the provider itself. ``present`` has the UUIDs by the stable names of the providers with devices
    or room now, '' for the node. ``complete`` says whether the whole host could be read. ``missing`` are the names of
    the providers that the compute service has not created yet. ``aliases`` are the names by which flavors ask for PCI
    functions of this host; None without such functions. ``may_count`` is the driver's, for all other classes.
    """

    uuids: frozenset[str] = frozenset()
    classes: frozenset[str] = frozenset()
    below: Mapping[str, frozenset[str]] = {}
    present: Mapping[str, str] = {}
    complete: bool = False
    missing: frozenset[str] = frozenset()
    aliases: Mapping[str, PCIAlias] | None = None
    may_count: Callable[[str], bool | None] = specs.nobody_knows

    def demand(self, allocations: Mapping[str, Any] | DeviceRequest | None, flavor: Any,
               instance: Any) -> demands.Demand:
        """Return the demand of a claim with these allocations on this host. Parts for other hosts are skipped.

        :param flavor: the flavor of the claim
        :param instance: the call reads its image
        :raises BadRequest: the allocations have no meaning here
        :raises UnknownProvider: a part names no provider of this host, and may be meant for this host
        """
        if isinstance(allocations, DeviceRequest):
            return demands.from_request(allocations, self.uuids)
        demand = demands.from_allocations(
            allocations, self.uuids, self.classes, getattr(flavor, 'extra_specs', None), self.below,
            self.complete and not self.missing, self.aliases, ImageProperties(instance), self.may_count)
        if demand.skipped:
            LOG.debug('A claim skips the allocations at providers of other hosts: %s',
                      ', '.join(demand.skipped))
        return demand


def _text_of(allocations: Any, flavor: Any) -> bytes | None:
    """The input of a demand, as a key; None if it has parts of types that services do not send.

    It distinguishes values that Python calls equal and requests do not, such as 1 and True. Version 2 has no back
    references, so equal values have the same key.
    """
    extra_specs = getattr(flavor, 'extra_specs', None)
    try:
        # Services use dictionary classes of their own for extra specs.
        return marshal.dumps((allocations, extra_specs and tuple(extra_specs.items())), 2)
    except (ValueError, TypeError, AttributeError):
        return None


class HostReader:
    """Reads everything anew in each call and changes nothing. Managers and reports share it.

    :param known: the rows that the host's manager knows; a report knows none
    """

    def __init__(self, host: ThisHost, boot: Boot, known: KnownRows) -> None:
        self._driver, self._store, self._host_uuid = host.driver, host.store, host.uuid
        self._here, self._service = host.here, host.service
        self._boot, self._known, self._seen = boot, known, SeenDevices(host)

    def read(self, before: Snapshot | None = None) -> Views:
        """Read innermost first, so that a device taken meanwhile shows as recorded, never as used without a row.

        :param before: the last snapshot of a manager, as for :func:`.containment.complete`
        :raises HypervisorUnreachable, StoreError: no answer
        """
        usage = self._driver.get_usage()
        inventory = self._driver.get_inventory()
        holdings = self._service.holdings()
        known = self._known.all()
        records = self._store.records_of_host(self._host_uuid)
        # Also ask about guests without rows: the service may have evacuated them from here, and they may be back.
        views = Views(usage, inventory, records, self._service.instances(usage.domains | named_instances(records)),
                      self._service.migrations(named_migrations(records)), self._here.host, self._host_uuid,
                      self._boot.has_changed, node=self._here.node, realized=self._boot.realized,
                      lost=self._known.lost(known, records), holdings=holdings,
                      seen=self._seen.read() if inventory.observed or holdings else {})
        lacking = views.owners.keys() - views.devices.keys()
        if lacking:
            views = views._replace(unnamed=self._driver.unnamed(
                [(record.key, record.details) for record in map(views.owners.__getitem__, sorted(lacking))]))
        if needs_guest_records(views):
            views = views._replace(guests=tuple(self._driver.guest_records()))
        try:
            return containment.complete(views, self._driver.containment, before)
        except exception.HypervisorUnreachable:
            raise
        except exception.DriverError as error:
            # Whoever uses a thing may have a part of any device.
            return views._replace(usage=views.usage._replace(unknown=(
                *views.usage.unknown, Unknown('what contains what on the host', str(error)))))

    def read_for(self, records: Sequence[Record]) -> Views:
        """Read the views that settle the moves of one instance: the usage, its rows and the service's answers."""
        return Views(self._driver.get_usage(), NO_INVENTORY, records, self._service.instances(named_instances(records)),
                     self._service.migrations(named_migrations(records)))


class HostViews:
    """Takes over the views of the host into the ledger and the snapshot. No other code does.

    :param known: the host's providers
    """

    def __init__(self, host: ThisHost, rows: Rows, boot: Boot, known: KnownProviders) -> None:
        reader = HostReader(host, boot, rows.known)
        self._reader, self.read_for, self.check_host = reader, reader.read_for, host.driver.check_host
        self._driver, self._rows, self._ledger, self._known = host.driver, rows, rows.ledger, known
        self._prepared = host.driver.prepared_kinds()
        self._reading = locks.Lock(locks.READING)
        self.providers = Providers()
        # The demands that were read for these providers, by their input.
        self._read_demands: tuple[Providers, dict[bytes, demands.Demand]] = self.providers, {}

    def read(self) -> Views:
        """As :meth:`HostReader.read`."""
        return self._reader.read(self._ledger.now)

    def demand(self, allocations: Mapping[str, Any] | DeviceRequest | None, flavor: Any,
               instance: Any) -> demands.Demand:
        """As :meth:`Providers.demand`. Nearly every claim repeats the demand of an earlier claim of its flavor."""
        providers, known = self.providers, self._read_demands
        if known[0] is not providers:
            known = self._read_demands = providers, {}
        text = _text_of(allocations, flavor)
        if text is None:
            return providers.demand(allocations, flavor, instance)
        demand = known[1].get(text)
        if demand is not None and not (demand.items and specs.has_policy(ImageProperties(instance))):
            return demand
        demand = providers.demand(allocations, flavor, instance)
        # Parts for other hosts are logged each time.
        if not (demand.skipped or (demand.items and specs.has_policy(ImageProperties(instance)))):
            if len(known[1]) >= _READ_DEMANDS:
                known[1].clear()
            known[1][text] = demand
        return demand

    def prepare(self) -> None:
        """Prepare the host as the options say, before it is read. May take long; see the driver.

        :raises StoreError: no answer; nothing was changed
        """
        if self._prepared:
            self._driver.prepare([record for record in self._rows.all_not_ended() if record.kind in self._prepared])

    @contextlib.contextmanager
    def reading(self) -> Iterator[Snapshot]:
        """Read the host and update the ledger, one thread at a time, so that no look overtakes an earlier one.

        Yields the snapshot from before the look, by which the ledger knows what changed during the look.
        """
        with self._reading.held():
            yield self._ledger.now

    def open(self, views: Views, marks: Marks) -> None:
        """Open the ledger of a host, and update the snapshot for requests. Resolves providers, which may block."""
        self._known.resolve(views.inventory.providers | {''} | self._driver.possible_parents())
        lost = [one.known for one in views.lost if one.known is not None and one.shown is None]
        self._ledger.open(views, marks, lost)
        self._refresh(views.inventory)

    def take_over(self, looks: list[Views], before: Snapshot) -> None:
        """Update the ledger and the snapshot from an audit's looks. The caller is :meth:`reading`."""
        self._known.resolve(looks[-1].inventory.providers | {''} | self._driver.possible_parents())
        self._ledger.read_inventory(looks, before)
        self._refresh(looks[-1].inventory)

    def _refresh(self, inventory: Inventory) -> None:
        """Update the snapshot with the providers and classes of an inventory that the ledger has taken over."""
        counted = self._ledger.now.counted_classes()
        here = frozenset(resource_class for resource_class, _provider in counted)
        root = self._known.uuid_of('')
        complete = not inventory.unknown
        names = inventory.providers | {''}
        if not complete:
            names |= self.providers.present.keys()
        missing = self._known.missing(names)
        self.providers = Providers(
            frozenset(provider for _class, provider in counted if provider) | self._known.all(),
            here | self._driver.resource_classes(),
            {root: here - {resource_class for resource_class, provider in counted if provider == root}} if root else {},
            {name: self._known.uuid_of(name) for name in names - missing}, complete, frozenset(missing),
            self._driver.aliases(), self._driver.may_count)

    def read_parents(self) -> None:
        """Read again how many devices parents can make, after one turned out to be full. May block."""
        with self.reading() as before:
            inventory = self._driver.get_inventory()
            self._known.resolve(inventory.providers | {''})
            self._ledger.read_parents(inventory, before)

    def assignments(self, instance_uuid: str | None = None) -> list[Record]:
        """The rows in memory of one instance, or of all, as their devices are counted now."""
        return self._ledger.now.counted_now(self._rows.remembered(instance_uuid))

    def usage(self) -> Usage:
        """The usage by guests."""
        return self._driver.get_usage()

    def knows(self, provider: str) -> bool:
        """Whether a provider of this stable name is resolved. Others wait for the next audit."""
        return provider in self._known
