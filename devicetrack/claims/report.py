"""Reports on a host without its manager: its devices, the answer to a request, and its findings.

A report only reads, without a lock, so it can run beside the host's manager at any moment. It reads the store, the
hypervisor and the host, and uses the same pure functions as the manager. It lacks the facts that are only in the
manager's memory: a claim between its hold and its record, a commit of unknown outcome, and the state of instances in
the compute service.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import socket
from typing import Any
from typing import Final
from typing import NamedTuple
import uuid

from oslo_utils import uuidutils

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.claims import gate as gates
from devicetrack.claims import host as host_identity
from devicetrack.claims import repairs
from devicetrack.claims import withheld
from devicetrack.claims.host import ThisHost
from devicetrack.claims.metering import Audited
from devicetrack.claims.metering import HostState
from devicetrack.claims.metering import Metering
from devicetrack.claims.providers import counts
from devicetrack.claims.providers import DerivedProviders
from devicetrack.claims.providers import for_scheduler
from devicetrack.claims.providers import KnownProviders
from devicetrack.claims.providers import ProviderResolver
from devicetrack.claims.repairs import Adopting
from devicetrack.claims.rows import KnownRows
from devicetrack.claims.service import ComputeService
from devicetrack.claims.service import ServiceView
from devicetrack.claims.views import Boot
from devicetrack.claims.views import HostReader
from devicetrack.compatibility import host_facts
from devicetrack.compatibility.host_facts import Guest
from devicetrack.compatibility.host_facts import HostFacts
from devicetrack.conf import manager as options
from devicetrack.engine import allocator
from devicetrack.engine import demand as demands
from devicetrack.engine import findings
from devicetrack.engine import reconcile
from devicetrack.engine import selection
from devicetrack.engine import states
from devicetrack.engine import withholding
from devicetrack.engine.explanation import Shortage
from devicetrack.engine.findings import Finding
from devicetrack.engine.migrations import Endpoint
from devicetrack.engine.opening import first_snapshot
from devicetrack.engine.snapshot import GONE
from devicetrack.engine.snapshot import Snapshot
from devicetrack.engine.views import lost_rows
from devicetrack.engine.views import Views
from devicetrack.engine.withholding import Marks
from devicetrack.engine.withholding import Target
from devicetrack.objects import DeviceRequest
from devicetrack.objects import Provider
from devicetrack.objects.choice import Choice
from devicetrack.objects.choice import classes
from devicetrack.objects.pci_alias import PCIAlias
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import InventoryDevice
from devicetrack.objects.values import Record
from devicetrack.objects.values import SeenDevice
from devicetrack.objects.values import Usage
from devicetrack.objects.values import WipeProgress
from devicetrack.store import api as store_api
from devicetrack.virt.driver import VirtDriver

# The statuses of lines in an inventory.
FREE: Final = 'free'
HELD: Final = 'held'
RELEASING: Final = 'releasing'
WITHHELD: Final = 'withheld'
CREATABLE: Final = 'creatable'
UNKNOWN: Final = 'unknown'
MISSING: Final = 'missing'
OBSERVED: Final = 'observed'
STATUSES: Final = (FREE, HELD, RELEASING, WITHHELD, CREATABLE, MISSING, OBSERVED, UNKNOWN)

# So many rows of the store, and those of the next host, are in memory at once.
_AT_ONCE: Final = 5000

NOT_MADE_YET: Final = 'not made yet'
# The detail of the reason "unknown" of a device that nobody could look for.
UNREAD: Final = 'its kind could not be read'


class Reason(NamedTuple):
    """The reason why a device is not assigned, is not reassigned, or cannot be used.

    ``detail`` is a text, or ''. ``since`` is in seconds since 1970, or None if no audit has noted the reason yet.
    ``by`` is the origin of the reason: ``operator``, ``host`` or ``audit``; None for a state that nobody set.
    ``parent`` is the cordoned parent, if the device is cordoned with it.
    """

    reason: str
    detail: str = ''
    since: int | None = None
    by: str | None = None
    parent: str | None = None

    @property
    def is_no_option(self) -> bool:
        """Whether the device may be there, but the host does not read it because it is in no option."""
        return (self.reason, self.detail) == (GONE, findings.NO_OPTION)

    def __str__(self) -> str:
        if self.parent is not None:
            return f'{self.reason} with parent {self.parent}'       # the line of the parent has the detail
        return self.reason + (f': {self.detail}' if self.detail else '')


def _said_once(reasons: Sequence[Reason]) -> Iterator[str]:
    """Describe reasons. Reasons with the same detail share it."""
    by_detail: dict[object, list[Reason]] = {}
    for number, one in enumerate(reasons):
        by_detail.setdefault(number if one.parent is not None or not one.detail else one.detail, []).append(one)
    for *others, last in by_detail.values():
        yield ''.join(f'{one.reason}, ' for one in others) + str(last)


class Line(NamedTuple):
    """One line of a host's inventory.

    ``status`` is one of ``STATUSES``. A device has ``amount`` 1. A ``creatable`` line has no ``identifier``: its parent
    can make ``amount`` more, which the types of one parent share. For a cordoned parent the line is ``withheld``, and a
    cordoned parent always has such a line, maybe with ``amount`` 0. A ``missing`` line is a device in an option that
    the host does not have; the reason contains the option. If such a device was cordoned or forgotten, it is
    ``withheld``, as gone. The ``kind`` of an ``unknown`` line is the part that could not be read. A device that is not
    there has ``amount`` 0. ``provider`` is the stable name of the parent whose provider has the device in placement, ''
    for the node, None if only a row has its provider. ``details`` is the stored text of the details, or ''. ``wipe``
    has the progress of a running wipe. ``instance_name`` is the name in the row of the owner, if it has one.
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
    reasons: tuple[Reason, ...]
    details: str
    wipe: WipeProgress | None = None
    instance_name: str | None = None

    @property
    def reason(self) -> str | None:
        """A text with all reasons and the progress of a wipe."""
        wiped = () if self.wipe is None else (f'being {"wiped" if self.wipe.is_wipe else "read"}: {self.wipe}',)
        return '; '.join((*_said_once(self.reasons), *wiped)) or None


class Explanation(NamedTuple):
    """The answer to a request. ``fits`` is about the whole request: parts that fit alone may be too much together.

    ``unknown`` lists the parts that could not be read, with the reasons; their devices are left out. ``providers`` has
    the stable names of parents by the UUIDs of their providers. ``withheld`` has the withheld devices of the wanted
    classes that no instance holds, with the reasons. ``report_only`` is the reason if the host refuses every claim, so
    that nothing fits; None if it accepts claims. ``cordoned`` has the cordoned parents of the wanted classes, with the
    reasons. ``kept`` has the withheld devices that an instance holds, with the reasons. ``mistakes`` are those in the
    options: the host's manager does not start until you correct them.
    """

    fits: bool
    parts: tuple[Shortage, ...]
    unknown: tuple[str, ...]
    providers: Mapping[str, str]
    withheld: tuple[Line, ...]
    report_only: str | None = None
    cordoned: tuple[Line, ...] = ()
    kept: tuple[Line, ...] = ()
    mistakes: tuple[str, ...] = ()


class Picture(NamedTuple):
    """The state of a host at one moment: its lines, its findings, its rows, and the snapshot of its manager.

    ``report_only`` is the reason if the host refuses claims and releases nothing; None if it works.
    """

    lines: list[Line]
    findings: list[Finding]
    report_only: str | None
    records: Sequence[Record]
    snapshot: Snapshot


class Checked(NamedTuple):
    """The result of a report's audit.

    ``report_only`` is the reason if the host refuses claims and releases nothing; None if it works.
    """

    findings: list[Finding]
    report_only: str | None


def locate(store: store_api.Store, name: str | None, machine_id_path: str) -> store_api.Host:
    """The host for a report on this machine.

    :param name: None means the host of this machine in the store. In a store without hosts, it means a host with the
        machine's name, as its manager will record it at the first start
    :raises HostMoved: the host has moved to another store
    :raises UnknownHost: the store has this machine only under other names; or no name was given, and the store has only
        other machines
    :raises AmbiguousHost: no name was given, and the store has the machine under several names, none of them its own
    :raises NotThisMachine: the host of this name is another machine
    :raises InvalidConfiguration: the machine's id cannot be read
    """
    digest = host_identity.machine_digest(machine_id_path)
    hosts = store.hosts()
    here = {host.name: host for host in hosts if host.machine_id == digest}
    host_identity.check_not_moved(hosts, digest)
    known = [host.name for host in hosts]
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
        raise exception.UnknownHost(wanted, known)
    if name is None and known:
        # This machine may be one of them with a new id. A new host would have no rows, so every device would differ.
        raise exception.UnknownHost(None, known)
    return host_identity.new_host(wanted, digest)


def declared(store: store_api.Store, names: Collection[str] = ()) -> list[HostFacts]:
    """The declarations of the hosts of a store, by name.

    :param names: only these hosts; empty means all
    :raises UnknownHost: the store has no host of such a name
    """
    known = {host.uuid: host.name for host in store.hosts()}
    for name in names:
        if name not in known.values():
            raise exception.UnknownHost(name, known.values())
    if not names:
        return host_facts.from_rows(known, store.declarations())
    wanted = {uuid: name for uuid, name in known.items() if name in names}
    return host_facts.from_rows(wanted, [row for uuid in wanted for row in store.declarations_of_host(uuid)])


def guest(store: store_api.Store, hosts: Mapping[str, HostFacts], instance_uuid: str) -> Guest:
    """The current devices of an instance, and the declarations of their host.

    :raises CompatibilityUnknown: the store has no such instance, or has it on two hosts
    """
    return host_facts.find_guest(instance_uuid, store.records_everywhere(instance_uuid),
                                 {host.uuid: host.name for host in store.hosts()}, hosts)


class Observer:
    """Reads one host. Every method reads everything again, may block and is expensive. None needs a lock.

    :param host: from :func:`locate`
    :param conf: the configuration; the observer registers ``[devicetrack]`` in it if nobody has
    :param providers: gives the UUIDs of resource providers; by default they are derived, as in a manager
    :param service: the compute service's view of its instances; without it the observer concludes nothing about
        instances
    """

    def __init__(self, host: store_api.Host, driver: VirtDriver, store: store_api.Store, conf: Any,
                 providers: ProviderResolver | None = None,
                 service: ComputeService | None = None) -> None:
        options.register(conf)
        self.host = host
        self._driver, self._store = driver, store
        self._policy: str = conf[options.GROUP].selection_policy
        self._providers = KnownProviders(
            providers or DerivedProviders(host.uuid))
        seen = ThisHost(Endpoint(host.name, ''), host.uuid, driver, store, ServiceView(service), conf[options.GROUP],
                        Metering())
        self.read = HostReader(seen, Boot(seen, host.boot_id), KnownRows()).read

    def plan(self, accepted: repairs.Accepted = repairs.NOTHING) -> repairs.Plan:
        """Plan the repairs as a manager does if the compute service does not answer."""
        return repairs.plan(self.read, accepted)[1]

    def audit(self) -> list[Finding]:
        """Look twice, and report only the findings of both looks: a passing state is no finding."""
        return self.audited().findings

    def audited(self) -> Checked:
        """As :meth:`audit`, with the reason if the host is report-only."""
        return self._look_twice()[2]

    def _look_twice(self) -> tuple[Views, Marks, Checked]:
        """Return the second look, the reasons for withholding, and what both looks show."""
        marks, first, views = self._marks(), self.read(), self.read()
        return views, marks, Checked(findings.confirmed(_compare(first, marks), _compare(views, marks)),
                                     _report_only(first, lambda: views))

    def report_only(self) -> str | None:
        """Return why the host refuses claims and releases nothing, by the rule of its manager; None if it works."""
        return _report_only(self.read(), self.read)

    def picture(self) -> Picture:
        """Look twice, and return everything that the second look shows, with the findings of both."""
        views, marks, checked = self._look_twice()
        now, names = self._snapshot(views, marks)
        return Picture(self._lines(views, marks, now, names), *checked, views.records, now)

    def state(self) -> HostState:
        """Look twice, and count devices and findings, for metrics."""
        views, marks, checked = self._look_twice()
        now, _names = self._snapshot(views, marks)
        return HostState(self.host.name, now.pool_states(),
                         Audited.of(None, checked.findings, now.reasons().values()))

    def adopting(self) -> Adopting:
        """Look once, for a caller that is about to adopt devices of guests."""
        views = self.read()
        self._providers.resolve(views.inventory.providers | {''})
        return Adopting(views, self._marks(), self._driver,
                        lambda name: self._providers.uuid_of(name) if name in self._providers else None)

    def inventory(self) -> list[Line]:
        """List every device that exists, has a row, is withheld or can be made, and the parts that cannot be read."""
        views, marks = self.read(), self._marks()
        return self._lines(views, marks, *self._snapshot(views, marks))

    def _lines(self, views: Views, marks: Marks, now: Snapshot, names: Mapping[str, str]) -> list[Line]:
        causes = _causes(now, views, marks)
        busy = [record.key for record in views.records if record.state == vocabulary.RELEASING] + [
            DeviceKey(target.kind, target.name) for target, of_one in causes.items() if withheld.may_be_wiped(of_one)]
        wiping = self._driver.wiping(busy) if busy else {}
        lines = [_line_of(device, names, wiping, causes, views) for device in now.states()]
        replaced = reconcile.replaced(views)
        if replaced:                            # the owners keep the rows, so the ledger withholds nothing
            lines = [line if (another := replaced.get(DeviceKey(line.kind, line.identifier or ''))) is None else
                     line._replace(reasons=(*line.reasons, Reason(vocabulary.UNHEALTHY, another, None,
                                                                  vocabulary.BY_AUDIT))) for line in lines]
        for pool in now.pool_states():
            if pool.makes:
                why: tuple[Reason, ...] = ()
                if pool.room == pool.free:
                    target = Target.named(pool.kind, pool.parent or '', parent=True)
                    why = reasons(causes[target]) if target in causes else of_host_in(causes) or (
                        Reason(vocabulary.EXCLUDED, pool.excluded) if pool.excluded is not None else
                        Reason(vocabulary.CORDONED if pool.provider_uuid else vocabulary.NO_PROVIDER),)
                lines.append(Line(pool.kind, None, WITHHELD if why else CREATABLE, pool.makes, pool.resource_class,
                                  names.get(pool.provider_uuid), pool.provider_uuid, pool.parent, pool.numa_node, None,
                                  why, pool.details))
        listed = {Target.named(line.kind, line.identifier or line.parent or '', line.identifier is None)
                  for line in lines if line.identifier is not None or line.status == WITHHELD}
        options = {Target.of(missing.key): missing for missing in views.inventory.missing}
        for target, of_one in causes.items():
            if target not in listed and target.scope != vocabulary.HOST:
                parent = target.name if target.scope == vocabulary.PARENT else None
                away = parent is None or not any(parent == line.parent for line in lines)
                lines.append(_line_without_device(
                    target.kind, None if parent is not None else target.name, WITHHELD,
                    (*reasons(of_one), *((_absent(views, target.kind),) if away else ())), parent))
        lines += [_line_without_device(*missing.key, MISSING, (
            Reason(f'{missing.option} names it', missing.reason),))
            for target, missing in options.items() if target not in listed and target not in causes]
        lines += map(_observed, views.inventory.observed, map(views.seen.get, (
            device.key for device in views.inventory.observed)))
        lines.sort(key=lambda line: (line.kind, line.parent or '', line.identifier is None, line.identifier or '',
                                     line.resource_class or ''))
        lines += [_line_without_device(unknown.what, None, UNKNOWN, (Reason(unknown.reason),))
                  for unknown in (*views.usage.unknown, *views.inventory.unknown)]
        return lines

    def proof_of(self, line: Line) -> str | None:
        """How the device of a line was proven clean, and when; None without a valid proof on the host."""
        return None if line.identifier is None else self._driver.proof_of(DeviceKey(line.kind, line.identifier),
                                                                          line.details)

    def _marks(self) -> Marks:
        return withheld.load(self._store, self.host.uuid)

    def check_known(self, target: Target) -> None:
        """Check that the host has a device or a parent of this name, or that it is withheld or in an option.

        If a part of the host could not be read, every name may be right.

        :raises BadRequest: it has none; the error is that of the manager, and its reason lists some that the host has
        :raises DriverError, StoreError: no answer
        """
        views, marks = self.read(), self._marks()
        if (target in marks or views.usage.unknown or views.inventory.unknown
                or any(Target.of(missing.key) == target for missing in views.inventory.missing)
                or any(Target.of(device.key) == target for device in views.inventory.observed)):
            return
        now, _names = self._snapshot(views, marks)
        reason = withheld.why_unknown(target, now.parents(), [
            device.key for device in now.states() if device.identifier is not None])
        if reason is not None:
            raise exception.BadRequest(target.scope, f'{target.kind}/{target.name}', reason)

    def details_of(self, key: DeviceKey) -> str | None:
        """The details of a device, as the host shows it now; None if it has none of this name or cannot be read."""
        try:
            inventory = self._driver.get_inventory()
        except (exception.DriverError, exception.InvalidConfiguration):
            return None
        return next((device.details for device in (*inventory.devices, *inventory.observed) if device.key == key),
                    None)

    def provider_uuid(self, provider: str) -> str:
        """The UUID of a provider, from the UUID itself or from the provider's name in the device kinds.

        :raises BadRequest: no device of this host has a provider of this name, or placement does not have it yet
        """
        if uuidutils.is_uuid_like(provider):
            return str(uuid.UUID(provider))
        inventory = self._driver.get_inventory()
        known = inventory.providers - {''}
        self._providers.resolve(known)
        if provider not in known:
            some = ' (some could not be read)' if inventory.unknown else ''
            raise exception.BadRequest('provider', provider, 'this host has no provider of this name; it has '
                                       f'{exception.some_of(sorted(known), provider) or "none"}{some}')
        if provider not in self._providers:
            raise exception.BadRequest('provider', provider, 'the compute service has not created it yet')
        return self._providers.uuid_of(provider)

    def providers(self, nodename: str | None = None) -> tuple[list[Provider], bool]:
        """The resource providers of the host, as its manager lists them, and whether the whole host could be read.

        The reserved amounts lack the facts that only the manager's memory has.
        """
        views = self.read()
        now, names = self._snapshot(views, self._marks())
        found = counts(now.pool_states(), closed=bool(lost_rows(views)))
        declared = [host_facts.declared_in(row) for row in self._store.declarations_of_host(self.host.uuid)]
        uuids = {name: uuid for uuid, name in names.items()}
        return (for_scheduler(uuids, nodename or self.host.name, found, declared), not views.inventory.unknown)

    def placed(self) -> tuple[list[Record], Usage]:
        """The host's rows, and the usage by guests.

        A row has the provider and class of its device now, even if its claim had others.

        :raises HypervisorUnreachable, StoreError: no answer
        """
        views = self.read()
        now, _names = self._snapshot(views, self._marks())
        return now.counted_now(views.records), views.usage

    @property
    def resource_classes(self) -> frozenset[str]:
        """The resource classes of devices in the options, even if the host has no such device."""
        return self._driver.resource_classes()

    @property
    def aliases(self) -> Mapping[str, PCIAlias] | None:
        """The names by which flavors ask for PCI functions; None if the options assign no function."""
        return self._driver.aliases()

    def explain(self, request: DeviceRequest) -> Explanation:
        """Return whether a request would fit now, with the number of devices for each part of it.

        :raises BadRequest: the request has no meaning on this host
        """
        views = self.read()
        marks = self._marks()
        now, names = self._snapshot(views, marks)
        demand = demands.from_request(request, {provider for _class, provider in now.counted_classes()}
                                      | names.keys())
        if not demand.items:
            raise exception.BadRequest('request', None, 'it asks for no device')
        parts = tuple(shortage._replace(unread=bool(views.inventory.unknown))
                      for shortage in allocator.shortages(now, demand, everything=True))
        wanted = {one for item in demand.items for one in classes(item.choices or (Choice(item.resource_class),))}
        causes = _causes(now, views, marks)
        held_back = [_line_of(device, names, {}, causes, views) for device in now.states()
                     if device.withheld and device.resource_class in wanted]
        parents = {Target.named(pool.kind, pool.parent or '', parent=True) for pool in now.pool_states()
                   if pool.resource_class in wanted}
        cordoned = tuple(_line_without_device(target.kind, None, WITHHELD, reasons(of_one), target.name)
                         for target, of_one in sorted(causes.items()) if target in parents)
        report_only = _report_only(views, self.read)
        fits = report_only is None and not isinstance(allocator.choose(now, '', demand), list)
        unknown = tuple(f'{unknown.what}: {unknown.reason}'
                        for unknown in (*views.usage.unknown, *views.inventory.unknown))
        return Explanation(fits, parts, unknown, names, tuple(line for line in held_back if line.status == WITHHELD),
                           report_only, cordoned, tuple(line for line in held_back if line.status != WITHHELD),
                           tuple(f'{missing.option} names {missing.key.identifier}: {missing.reason}'
                                 for missing in withheld.mistakes(views, marks)))

    def _snapshot(self, views: Views, marks: Marks) -> tuple[Snapshot, dict[str, str]]:
        """The snapshot that a manager would make of these views, and provider names by UUID."""
        here = views.inventory.providers | {''}
        self._providers.resolve(here)
        names = {self._providers.uuid_of(name): name for name in sorted(here, reverse=True) if name in self._providers}
        return first_snapshot(self._policy, self._providers.uuid_of, views, marks), names


def _report_only(first: Views, again: Callable[[], Views]) -> str | None:
    """Why a host is report-only, if another look shows it too."""
    found = gates.behind(first) and gates.behind(again())
    return found.reason if found is not None else None


def _compare(views: Views, marks: Marks) -> list[Finding]:
    """The differences, and the mistakes that keep a manager from starting: options that name an unknown device."""
    found = reconcile.compare(views, withholding.failures(marks), withholding.retired(marks),
                              withholding.not_realized(marks))
    return repairs.proposed(found, views) + [
        Finding(findings.GONE, vocabulary.WARNING, missing.key, None, (), 0, f'{missing.option} names it: '
                f'{missing.reason}', 'nothing', 'fix the option, or make the device: until then no manager starts')
        for missing in withheld.mistakes(views, marks)]


def _causes(now: Snapshot, views: Views, marks: Marks) -> dict[Target, withholding.Causes]:
    """The reasons of each withheld device and parent."""
    return {one.target: one.causes
            for one in withheld.listed(marks, now.reasons(), now.excluded(), views.records, views)}


def _line_of(device: states.DeviceState, names: Mapping[str, str], wiping: Mapping[DeviceKey, WipeProgress],
             causes: Mapping[Target, withholding.Causes], views: Views) -> Line:
    key = device.key
    status = {selection.HELD: HELD, selection.RELEASING: RELEASING}.get(
        device.state, WITHHELD if device.withheld else FREE)
    # Without an owner and a reason in the snapshot, what the store has ended since the last audit.
    own = {} if status == FREE else causes.get(Target.of(key), {})
    found = list(reasons(own))
    with_parent = Target.named(device.kind, device.parent or '', parent=True)
    for reason in withholding.in_order(device.withheld - own.keys()):
        if reason == vocabulary.CORDONED and reason in causes.get(with_parent, {}):
            cordoned, = reasons({reason: causes[with_parent][reason]})
            found.append(cordoned._replace(parent=device.parent))
        elif reason == vocabulary.CORDONED and (of_host := of_host_in(causes)):
            found += of_host
        else:
            found.append(Reason(reason) if reason != GONE else
                         Reason(GONE, findings.NO_OPTION) if key in views.unnamed else _absent(views, device.kind))
    if device.unborn:
        found.append(Reason(NOT_MADE_YET))
    owner = views.owners.get(key)
    return Line(device.kind, device.identifier, status, 1, device.resource_class, names.get(device.provider_uuid),
                device.provider_uuid, device.parent, device.numa_node, device.instance_uuid, tuple(found),
                device.details, wiping.get(key), None if owner is None else owner.instance_name)


def _absent(views: Views, kind: str) -> Reason:
    """Why a device or a parent is not among those that the host showed."""
    return Reason(GONE) if kind in views.inventory.known_kinds else Reason(UNKNOWN, UNREAD)


def of_host_in(causes: Mapping[Target, withholding.Causes]) -> tuple[Reason, ...]:
    """The reasons of the whole host."""
    return tuple(reason._replace(detail=f'with its host{": " if reason.detail else ""}{reason.detail}')
                 for target, of_one in causes.items() if target.scope == vocabulary.HOST for reason in reasons(of_one))


def stored(records: Sequence[Record], marks: Marks) -> list[Line]:
    """The lines of a host as the store alone knows them: devices with an owner, and what is withheld.

    The store knows no free device.
    """
    lines, of_host = [], of_host_in(marks)
    for record in records:
        found = list(reasons(marks.get(Target.of(record.key), {})))
        of_parent = marks.get(Target.named(record.kind, record.parent or '', parent=True), {})
        if vocabulary.CORDONED in of_parent:
            cordoned, = reasons({vocabulary.CORDONED: of_parent[vocabulary.CORDONED]})
            found.append(cordoned._replace(parent=record.parent))
        lines.append(Line(
            record.kind, record.identifier, RELEASING if record.state == vocabulary.RELEASING else HELD, 1,
            record.resource_class, None, record.provider_uuid, record.parent, record.numa_node, record.instance_uuid,
            (*found, *of_host), record.details, instance_name=record.instance_name))
    owned = {Target.of(record.key) for record in records}
    for target, causes in marks.items():
        if target.scope == vocabulary.PARENT:
            lines.append(_line_without_device(target.kind, None, WITHHELD, reasons(causes), target.name))
        elif target.scope == vocabulary.DEVICE and target not in owned:
            lines.append(_line_without_device(target.kind, target.name, WITHHELD, reasons(causes))._replace(
                amount=1))
    return lines


def stored_of(store: store_api.Store, hosts: Sequence[store_api.Host]) -> Iterator[tuple[store_api.Host, list[Line]]]:
    """The lines of some hosts as their store alone knows them, host by host in their order.

    Reads some thousand rows at a time.
    """
    tallies = store.tallies([host.uuid for host in hosts])
    some: list[store_api.Host] = []
    left = _AT_ONCE
    for number, host in enumerate(hosts, 1):
        some.append(host)
        left -= 1 + tallies[host.uuid].held + tallies[host.uuid].releasing + tallies[host.uuid].withheld
        if left > 0 and number < len(hosts):
            continue
        records: dict[str, list[Record]] = {one.uuid: [] for one in some}
        rows: dict[str, list[store_api.WithheldRow]] = {one.uuid: [] for one in some}
        for record in store.records_of_hosts(list(records)):
            records[record.host_uuid].append(record)
        for row in store.withheld_of_hosts(list(rows), vocabulary.SCOPES):
            rows[row.host_uuid].append(row)
        for one in some:
            yield one, stored(records.pop(one.uuid), withheld.marks_of(withheld.by_target(rows.pop(one.uuid))))
        some, left = [], _AT_ONCE


def _observed(device: InventoryDevice, seen: SeenDevice | None) -> Line:
    """A device that the service hands out itself, and its owner by the last audit of the manager."""
    owner = None if seen is None else seen.instance_uuid
    found = [Reason('handed out by the compute service', '' if owner is None else f'instance {owner}')]
    if device.unhealthy is not None:
        found.insert(0, Reason(vocabulary.UNHEALTHY, device.unhealthy))
    return Line(device.kind, device.identifier, OBSERVED, 1, device.resource_class, None, None, device.parent,
                device.numa_node, owner, tuple(found), device.details)


def _line_without_device(kind: str, identifier: str | None, status: str, reasons: tuple[Reason, ...],
                         parent: str | None = None) -> Line:
    return Line(kind, identifier, status, 0, None, None, None, parent, None, None, reasons, '')


def reasons(causes: withholding.Causes) -> tuple[Reason, ...]:
    """The reasons why a device or a parent is withheld, the worst first."""
    return tuple(Reason(reason, causes[reason].text, causes[reason].since or None, causes[reason].by)
                 for reason in withholding.in_order(causes))
