"""A host as somebody sees it who is not its manager: what is free and held, what would fit, what differs.

Everything here reads and nothing changes anything: no row is written, no device touched and no lock taken, so a report
can be made beside the host's manager at any moment. It is made from the store, the hypervisor and the host by the same
pure functions that the manager uses. What only the manager's memory has is missing: a claim between its hold and its
record, a commit whose outcome is not known yet, and the compute service's word on its instances.
"""

from __future__ import annotations

from collections.abc import Mapping
import itertools
import socket
from typing import Any
from typing import Final
from typing import NamedTuple

from oslo_utils import uuidutils

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.claims import doubt
from devicetrack.claims import host as host_identity
from devicetrack.claims import inventory as inventories
from devicetrack.claims import looking
from devicetrack.claims import providers as provider_resolvers
from devicetrack.claims import repairs
from devicetrack.claims import withheld
from devicetrack.compatibility import host_facts
from devicetrack.conf import manager as options
from devicetrack.engine import demand as demands
from devicetrack.engine import ledger as ledgers
from devicetrack.engine import reconcile
from devicetrack.engine import withholding
from devicetrack.engine.explanation import Shortage
from devicetrack.engine.reconcile import Finding
from devicetrack.engine.reconcile import Views
from devicetrack.engine.withholding import Marks
from devicetrack.engine.withholding import Place
from devicetrack.objects import DeviceRequest
from devicetrack.objects import Provider
from devicetrack.objects.values import Record
from devicetrack.objects.values import Usage
from devicetrack.store import api as store_api
from devicetrack.virt.driver import VirtDriver

# What a line of the inventory says of a device.
FREE: Final = 'free'
HELD: Final = 'held'
RELEASING: Final = 'releasing'
WITHHELD: Final = 'withheld'
CREATABLE: Final = 'creatable'
UNKNOWN: Final = 'unknown'
MISSING: Final = 'missing'
STATUSES: Final = (FREE, HELD, RELEASING, WITHHELD, CREATABLE, MISSING, UNKNOWN)

NOT_MADE_YET: Final = 'not made yet'


class Line(NamedTuple):
    """One line of a host's inventory.

    ``status`` is one of :data:`STATUSES`. A device has ``amount`` 1. A line that is ``creatable`` has no
    ``identifier``: its parent can make ``amount`` more, which types of one parent share; of a parent that is drained
    the line is ``withheld``. A line that is ``missing`` is
    a device that an option names in vain, and ``reason`` says which option; one that was drained or forgotten is
    ``withheld``, as gone. A line that is ``unknown`` names in ``kind`` what could not be read and in ``reason`` why.
    The ``amount`` of what is not there is 0. ``reason`` has also every reason why a device is withheld. ``provider`` is
    the stable name of the parent that placement counts the device at, '' for the node, None when only a row says where.
    ``details`` is the stored text of the details, '' where there are none.
    """

    kind: str
    identifier: str | None
    status: str
    amount: int
    resource_class: str | None
    provider: str | None
    provider_uuid: str | None
    parent: str | None
    numa_node: int | None
    instance_uuid: str | None
    reason: str | None
    details: str


class Explanation(NamedTuple):
    """What became of a request. ``fits`` is about the whole of it: parts that fit alone may be too much together.

    ``unknown`` says what could not be read: devices of it count as none. ``providers`` has the stable names of parents
    by the UUIDs of their providers.
    """

    fits: bool
    parts: tuple[Shortage, ...]
    unknown: tuple[str, ...]
    providers: Mapping[str, str]


def locate(store: store_api.Store, name: str | None, machine_id_path: str) -> store_api.Host:
    """The host that a report on this machine is about.

    :param name: None means the host that this machine is in the store; in a store without hosts, one with the machine's
        name, as it will be when its manager starts for the first time
    :raises UnknownHost: the store knows this machine by other names than the one given; or it knows others and not this
        one, and none was given
    :raises AmbiguousHost: the store knows it by several names, and neither was one given nor is one the machine's own
    :raises NotThisMachine: the host of this name is another machine
    :raises InvalidConfiguration: the machine's id cannot be read
    """
    digest = host_identity.machine_digest(machine_id_path)
    here = {host.name: host for host in store.hosts() if host.machine_id == digest}
    hostname = socket.gethostname()
    if name is None and len(here) == 1:
        return next(iter(here.values()))
    wanted = name or hostname
    if wanted in here:
        return here[wanted]
    if store.host(wanted) is not None:
        raise exception.NotThisMachine(wanted)
    if name is None and here:
        raise exception.AmbiguousHost(here)
    if here:
        raise exception.UnknownHost(wanted, here)
    if name is None and (known := [host.name for host in store.hosts()]):
        # Perhaps this machine is one of them and got a new id. A host that nobody is has no rows and differs from all.
        raise exception.UnknownHost(None, known)
    return host_identity.new_host(wanted, digest)


class Observer:
    """Reads one host. Every method reads everything anew and may block; none is cheap and none needs a lock.

    :param host: from :func:`locate`
    :param conf: the configuration; ``[devicetrack]`` is registered in it when it is not yet
    :param providers: says the UUIDs of resource providers; by default they are derived, as a manager does
    """

    def __init__(self, host: store_api.Host, driver: VirtDriver, store: store_api.Store, conf: Any,
                 providers: provider_resolvers.ProviderResolver | None = None) -> None:
        options.register(conf)
        self.host = host
        self._driver, self._store = driver, store
        self._policy: str = conf[options.GROUP].selection_policy
        self._providers = providers or provider_resolvers.DerivedProviders(host.uuid)

    def read(self) -> Views:
        """Read the views, innermost first.

        :raises HypervisorUnreachable, StoreError: no answer
        """
        usage = self._driver.get_usage()
        inventory = self._driver.get_inventory()
        records = tuple(self._store.records(self.host.uuid))
        views = Views(usage, inventory, records, None, host=self.host.name, host_uuid=self.host.uuid,
                      boot_changed=self.host.boot_id not in (None, self._driver.boot_id()))
        return looking.with_guests(views, self._driver)

    def plan(self, accept: bool = False) -> repairs.Plan:
        """What a manager would repair that had no word from the compute service."""
        return repairs.plan(self.read, accept)[1]

    def audit(self) -> list[Finding]:
        """Look twice, and report what both looks show: what only passes by is no finding."""
        marks = self._marks()
        first, second = self.read(), self.read()
        return reconcile.confirmed(_compare(first, marks), _compare(second, marks))

    def inventory(self) -> list[Line]:
        """Every device that the host has or a row names, what can still be made, and what could not be read."""
        views, marks = self.read(), self._marks()
        ledger, uuids = self._ledger(views, marks)
        names = {uuid: name for name, uuid in uuids.items()}
        lines = [_device(unit, names) for unit in ledger.units()]
        for pool in ledger.pools():
            if pool.makes():
                drained = pool.room() == pool.free_count
                lines.append(Line(pool.kind, None, WITHHELD if drained else CREATABLE, pool.makes(),
                                  pool.resource_class, names.get(pool.provider_uuid), pool.provider_uuid,
                                  pool.parent_name, pool.numa_node, None, vocabulary.DRAINED if drained else None,
                                  pool.details))
        lines.sort(key=lambda line: (line.kind, line.parent or '', line.identifier is None, line.identifier or '',
                                     line.resource_class or ''))
        listed = {(line.kind, line.identifier) for line in lines}
        for missing in views.inventory.missing:
            if missing.key not in listed:           # one that somebody owns stays held
                causes = marks.get(Place.of(missing.key))
                status, reason = (WITHHELD, withholding.text((*causes, ledgers.GONE))) if causes \
                    else (MISSING, f'{missing.option} names it: {missing.reason}')
                lines.append(Line(*missing.key, status, 0, None, None, None, None, None, None, reason, ''))
        for unknown in (*views.usage.unknown, *views.inventory.unknown):
            lines.append(Line(unknown.what, None, UNKNOWN, 0, None, None, None, None, None, None, unknown.reason, ''))
        return lines

    def withheld(self) -> list[withheld.Withheld]:
        """Every device and parent that is withheld, why, and who has it still."""
        views, marks = self.read(), self._marks()
        ledger, _uuids = self._ledger(views, marks)
        return withheld.listed(marks, ledger.reasons(), views.records, views)

    def _marks(self) -> Marks:
        return withheld.load(self._store, self.host.uuid).marks

    def provider_uuid(self, provider: str) -> str:
        """The UUID of a provider that is named by it, or by the stable name of its parent device.

        :raises BadRequest: this host has no parent device of this name
        """
        if uuidutils.is_uuid_like(provider):
            return provider
        inventory = self._driver.get_inventory()
        known = inventory.providers - {''}
        if provider not in known:
            some = ' (a part of them could not be read)' if inventory.unknown else ''
            raise exception.BadRequest('provider', provider, 'no parent device of this host has this name; it has '
                                       f'{", ".join(sorted(known)) or "none"}{some}')
        return self._providers.uuid_of(provider)

    def providers(self, nodename: str | None = None) -> tuple[list[Provider], bool]:
        """The resource providers of the host, as its manager lists them, and whether nothing of it was unknown.

        What only the manager's memory has is missing from what is reserved.
        """
        views = self.read()
        ledger, uuids = self._ledger(views, self._marks())
        closed = bool(looking.lost_rows(views))
        declared = [host_facts.declared_in(row) for row in self._store.declarations(self.host.uuid)]
        return (inventories.providers(uuids, nodename or self.host.name, inventories.counts(ledger, closed=closed),
                                      declared), not views.inventory.unknown)

    def placed(self) -> tuple[list[Record], Usage]:
        """Who has which device: the host's rows, and what guests use.

        A row has the provider and class that its device is counted at now, whatever its claim knew.

        :raises HypervisorUnreachable, StoreError: no answer
        """
        views = self.read()
        ledger, _uuids = self._ledger(views, self._marks())
        return inventories.counted_now(views.records, ledger), views.usage

    @property
    def resource_classes(self) -> frozenset[str]:
        """The resource classes that count devices by the options, whether the host has any or not."""
        return self._driver.resource_classes()

    def explain(self, request: DeviceRequest) -> Explanation:
        """Say whether a request would fit now and, for each part of it, what there is.

        :raises BadRequest: the request means nothing on this host
        """
        views = self.read()
        ledger, uuids = self._ledger(views, self._marks())
        demand = demands.from_request(request, ledger.provider_uuids() | set(uuids.values()))
        if not demand.items:
            raise exception.BadRequest('request', None, 'it asks for no device')
        parts = tuple(shortage._replace(instances=ledger.owners(shortage.resource_class, shortage.provider_uuid),
                                        unread=bool(views.inventory.unknown))
                      for shortage in ledger.shortages(demand, everything=True))
        try:
            ledger.take('', demand)             # from a ledger that ends here
        except exception.NoFit:
            fits = False
        else:
            fits = True
        unknown = tuple(f'{unknown.what}: {unknown.reason}'
                        for unknown in (*views.usage.unknown, *views.inventory.unknown))
        return Explanation(fits, parts, unknown, {uuid: name for name, uuid in uuids.items()})

    def _ledger(self, views: Views, marks: Marks) -> tuple[ledgers.Ledger, dict[str, str]]:
        """A ledger of what the views say, as a manager that starts would have it; and UUIDs by provider name."""
        inventory = views.inventory
        uuids = {name: self._providers.uuid_of(name) for name in inventory.providers | {''}}
        ledger = ledgers.Ledger(self._policy, uuids.__getitem__)
        withheld.enforce(ledger, marks)
        ledger.read_inventory(inventory)
        # A row names the provider that its claim knew: the service's own resolver may call it otherwise than we do, and
        # a device counts where its parent counts now.
        counted: dict[tuple[str, str | None], str] = {
            **{(device.kind, device.parent): uuids[device.provider] for device in inventory.devices},
            **{(capacity.kind, capacity.parent): uuids[capacity.provider] for capacity in inventory.capacities}}
        for _instance, rows in itertools.groupby(views.records, key=lambda record: record.instance_uuid):
            records = [record._replace(provider_uuid=counted.get((record.kind, record.parent), record.provider_uuid))
                       for record in rows]
            holding = ledger.hold(records)
            ledger.releasing(unit for record, unit in zip(records, holding.units, strict=True)
                             if record.state == vocabulary.RELEASING)
        withheld.resume(ledger, marks, views)
        doubt.withhold(ledger, (views,))
        return ledger, uuids


def _compare(views: Views, marks: Marks) -> list[Finding]:
    """What differs, and what keeps a manager from starting: a device that an option names and nobody ever knew."""
    return reconcile.compare(views) + [
        Finding(reconcile.GONE, reconcile.WARNING, missing.key, None, (), 0, f'{missing.option} names it: '
                f'{missing.reason}', 'nothing', 'mend the option, or make the device: no manager starts with it')
        for missing in withheld.mistakes(views, marks)]


def _device(unit: ledgers.Unit, names: Mapping[str, str]) -> Line:
    pool = unit.pool
    reasons = {NOT_MADE_YET, *unit.withheld} if unit.unborn else unit.withheld
    status = {ledgers.HELD: HELD, ledgers.RELEASING: RELEASING}.get(
        unit.state, WITHHELD if unit.withheld else FREE)
    return Line(pool.kind, unit.identifier, status, 1, pool.resource_class, names.get(pool.provider_uuid),
                pool.provider_uuid, pool.parent_name, pool.numa_node,
                unit.holding.instance_uuid if unit.holding is not None else None,
                withholding.text(reasons) or None, unit.details)
