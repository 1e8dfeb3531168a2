"""The claim manager: who gets which device of this host.

The order of every step is that of the invariant: in use by a guest ⊆ realized on the host ⊆ rows in the store ⊆ held in
the ledger. What takes goes from the ledger inwards, what gives goes from the guest outwards, and the lock covers the
ledger alone.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import functools
import itertools
import os
import secrets
import threading
import time
from typing import Any
from typing import TypeVar
import weakref

from oslo_concurrency import lockutils
from oslo_log import log as logging

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.claims import host as host_identity
from devicetrack.claims import providers as provider_resolvers
from devicetrack.claims import recovery
from devicetrack.claims.claim import Claim
from devicetrack.claims.ledger_lock import LedgerLock
from devicetrack.claims.service import ComputeService
from devicetrack.conf import manager as options
from devicetrack.engine import demand as demands
from devicetrack.engine import ledger as ledgers
from devicetrack.engine import lifecycle
from devicetrack.engine.explanation import Shortage
from devicetrack.engine.reconcile import Finding
from devicetrack.objects import DeviceAssignment
from devicetrack.objects import DeviceRequest
from devicetrack.objects import InstanceResources
from devicetrack.objects import Provider
from devicetrack.objects.values import Candidate
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import GuestConfig
from devicetrack.objects.values import Inventory
from devicetrack.objects.values import Record
from devicetrack.store import api as store_api
from devicetrack.store.api import Changes
from devicetrack.store.api import Update
from devicetrack.virt.driver import VirtDriver

LOG = logging.getLogger(__name__)

Method = TypeVar('Method', bound=Any)


def _when_ready(method: Method) -> Method:
    """Refuse a call before ``init_host`` has succeeded, and any call in a forked child."""

    @functools.wraps(method)
    def checked(self: ClaimManager, *args: Any, **kwargs: Any) -> Any:
        self.check_ready()
        return method(self, *args, **kwargs)

    return checked  # type: ignore[return-value]


class ClaimManager:
    """Decides, records, realizes and takes back the devices of one host.

    One process manages a host at a time. Every method may be called from any number of native threads; those that
    work on one instance's devices wait for one another, claims wait only for the ledger and for their commit.

    :param host: the host's name, unique among the hosts of the store
    :param driver: the virt driver
    :param store: where assignments last
    :param conf: the configuration; ``[devicetrack]`` is registered in it when it is not yet
    :param service: the compute service's view of its instances; without it nothing is concluded about instances
    :param providers: says the UUIDs of resource providers; by default they are derived from the host's UUID
    :param nodename: the hypervisor node of this host, when its name is another than the host's
    """

    def __init__(self, host: str, driver: VirtDriver, store: store_api.Store, conf: Any,
                 service: ComputeService | None = None,
                 providers: provider_resolvers.ProviderResolver | None = None, nodename: str | None = None) -> None:
        options.register(conf)
        self.host, self.nodename = host, nodename or host
        self.driver, self.store, self.service = driver, store, service
        self._conf = conf[options.GROUP]
        self._providers = providers
        self._pid = os.getpid()
        self._host_lock: host_identity.HostLock | None = None
        self._ready = False
        self._disabled: dict[str, str] = {}
        self._host_uuid = ''
        self._provider_names: dict[str, str] = {}               # by stable name, its UUID
        self._provider_uuids: frozenset[str] = frozenset()
        self._classes: frozenset[str] = frozenset()
        self._lock = LedgerLock()
        self._ledger = self._new_ledger()
        self._working = lockutils.Semaphores()
        self._doubts: list[recovery.Doubt] = []
        self._auditing = threading.Lock()
        self._reading = threading.Lock()
        # Claim ids only have to differ from one another, over restarts too; a UUID for each would cost more.
        self._claim_prefix = secrets.token_hex(8)
        self._claim_numbers = itertools.count(1)
        forget = weakref.WeakMethod(self._forget_host_lock)
        os.register_at_fork(after_in_child=lambda: (method := forget()) and method())

    def _new_ledger(self) -> ledgers.Ledger:
        return ledgers.Ledger(self._conf.selection_policy, self._provider_names.__getitem__)

    # -- start and stop -----------------------------------------------------------------------------------------------

    def init_host(self, context: Any) -> list[Finding]:
        """Take the host, read every view and go on with what a crash interrupted. Blocks for as long as that takes.

        :returns: what differs between the views
        :raises HostInUse: another process manages this host
        :raises HostIdentityChanged: the store knows the host as another machine
        :raises SchemaMismatch, StoreError: the store cannot be used
        :raises HypervisorUnreachable: no answer, so nobody can say which devices are in use
        :raises InvalidConfiguration: an option does not fit what the host has

        After an error no other call works, and the host is free for another process.
        """
        self._check_process()
        if self._ready:
            return self.update_available_resource(context, self.nodename)
        lock = host_identity.HostLock(self.host, self._conf.state_path)
        lock.acquire()
        self._host_lock = lock
        try:
            self.store.check()
            self._host_uuid = host_identity.identify(self.store, self.host, self._conf.machine_id_path).uuid
            if self._providers is None:
                self._providers = provider_resolvers.DerivedProviders(self._host_uuid)
            self._ledger, self._doubts = self._new_ledger(), []
            findings = recovery.start(self)
        except BaseException:
            self._host_lock = None
            lock.release()
            raise
        self._ready = True
        recovery.report(self.host, findings)
        return findings

    def close(self) -> None:
        """Let go of the host. What is held stays recorded."""
        self._ready = False
        if self._host_lock is not None:
            self._host_lock.release()
            self._host_lock = None

    def _forget_host_lock(self) -> None:
        """In a forked child: close our copy of the lock's descriptor, so that it ends with the manager's process."""
        if self._host_lock is not None:
            self._host_lock.release()

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise exception.ForkedManager(self.host, self._pid)

    def check_ready(self) -> None:
        """Refuse calls that come too early or from the wrong process.

        :raises NotReady: ``init_host`` has not succeeded
        :raises ForkedManager: this process is a child of the manager's
        """
        if os.getpid() != self._pid:
            raise exception.ForkedManager(self.host, self._pid)
        if not self._ready:
            raise exception.NotReady(self.host)

    @property
    def host_uuid(self) -> str:
        """The host's UUID in the store; '' before ``init_host``."""
        return self._host_uuid

    # -- taking -------------------------------------------------------------------------------------------------------

    def instance_claim(self, context: Any, instance: Any, nodename: str,
                       allocations: Mapping[str, Any] | DeviceRequest | None, limits: Any = None) -> Claim:
        """Hold devices for an instance and record it, now. Blocks for one commit; never under our lock.

        Sets ``instance.resources``; the caller saves the instance.

        :param instance: ``uuid`` is read, and ``flavor.extra_specs`` when there is a flavor
        :param allocations: placement's ``{provider UUID: {'resources': {CLASS: amount}}}``, of which classes that
            are not ours are skipped, or a :class:`~devicetrack.objects.DeviceRequest`; None and {} claim nothing
        :param limits: taken for the sake of callers that pass it, and not used: devices have no overcommit
        :raises NoFit: nothing free matches; nothing is held; says why
        :raises BadRequest: the request means nothing here; nothing is held
        :raises InstanceHasClaim: it holds devices already, which stay as they are
        :raises NodeUnavailable: the node is not of this host, or disabled
        :raises NothingWritten: the store refused; nothing is held
        :raises OutcomeUnknown: the commit may have happened; the devices stay held until the store has said
        """
        self.check_ready()
        self._check_node(nodename)
        demand = self._demand(instance, allocations)
        uuid = instance.uuid
        if not demand.items:
            claim = Claim(self, context, instance, '', InstanceResources.from_records(uuid, self._host_uuid, ()))
        else:
            claim_id = f'{self._claim_prefix}-{next(self._claim_numbers):x}'
            records = self._take(uuid, claim_id, demand)
            claim = Claim(self, context, instance, claim_id,
                          InstanceResources.from_records(uuid, self._host_uuid, records))
        instance.resources = claim.resources
        return claim

    def _take(self, instance_uuid: str, claim_id: str, demand: demands.Demand) -> list[Record]:
        """Hold and record; when the store says that devices have owners we did not know of, choose again."""
        attempts, reconsidered = 0, False
        while True:
            try:
                with self._lock:
                    holding = self._ledger.take(instance_uuid, demand)
            except exception.InstanceHasClaim:
                if not self._doubts or reconsidered:
                    raise
                reconsidered = True
                recovery.settle_instance(self, instance_uuid)
                continue
            except exception.NoFit as short:
                if not reconsidered and recovery.reconsider(self):
                    reconsidered = True
                    continue
                raise exception.NoFit(self._with_owners(short.shortages)) from None
            changes = Changes()
            try:
                records = self._records_for(holding, claim_id, demand)
                changes = Changes(insert=tuple(records))
                self.store.write(changes)
                return records
            except exception.DeviceTaken as taken:
                recovery.distrust(self, holding, taken.devices)
                attempts += 1
                if attempts >= self._conf.claim_attempts:
                    raise
            except exception.NothingWritten:
                self._put_back(holding)
                raise
            except (exception.DriverError, exception.BadRequest):
                self._put_back(holding)
                raise
            except BaseException:
                # Whatever interrupted the commit, its outcome is for the store to say.
                self._doubt(holding, changes, undo=True)
                raise

    def _put_back(self, holding: ledgers.Holding) -> None:
        with self._lock:
            self._ledger.put_back(holding)

    def _doubt(self, holding: ledgers.Holding, changes: Changes, undo: bool = False) -> None:
        holding.in_doubt = True
        self._doubts.append(recovery.Doubt(holding, changes, undo))

    def _records_for(self, holding: ledgers.Holding, claim_id: str, demand: demands.Demand) -> list[Record]:
        """The rows of what was taken, in the order of the guest; the driver names what will be made."""
        units: Sequence[ledgers.Unit] = holding.units
        if demand.order:
            units = demands.arrange(units, [unit.pool.resource_class for unit in units], demand.order)
        candidates = self._named(units, demand)
        now = int(time.time())
        return [Record(self._host_uuid, candidate.kind, candidate.identifier,       # type: ignore[arg-type]
                       holding.instance_uuid, None, vocabulary.CURRENT, vocabulary.CLAIMED, position,
                       claim_id, 1, candidate.provider_uuid, candidate.resource_class, candidate.parent,
                       candidate.numa_node, candidate.details, now)
                for position, candidate in enumerate(candidates)]

    def _named(self, units: Sequence[ledgers.Unit], demand: demands.Demand | None = None) -> Sequence[Candidate]:
        """Let the driver name what will be made, and the ledger know the names."""
        holding = units[0].holding
        assert holding is not None
        candidates = self.driver.claim_for_instance(holding.instance_uuid, demand,
                                                    [unit.candidate() for unit in units])
        for unit in units:
            if unit.identifier is None:
                with self._lock:
                    self._ledger.name(units, candidates)
                break
        return candidates

    def _demand(self, instance: Any, allocations: Mapping[str, Any] | DeviceRequest | None) -> demands.Demand:
        if isinstance(allocations, DeviceRequest):
            return demands.from_request(allocations, self._provider_uuids)
        if not allocations:
            return demands.NOTHING
        flavor = getattr(instance, 'flavor', None)
        extra_specs = getattr(flavor, 'extra_specs', None)
        return demands.from_allocations(allocations, self._provider_uuids, self._classes, extra_specs)

    def _check_node(self, nodename: str) -> None:
        if nodename != self.nodename:
            raise exception.NodeUnavailable(nodename, f'host {self.host} has node {self.nodename}')
        if self._disabled and nodename in self._disabled:
            raise exception.NodeUnavailable(nodename, self._disabled[nodename])

    def disable_node(self, nodename: str, reason: str) -> None:
        """Refuse new claims on a node, until the end of this process.

        The decision is the service's, which says it again after a restart.
        """
        self._disabled[nodename] = f'disabled: {reason}'

    def enable_node(self, nodename: str) -> None:
        """Take claims on a node again."""
        self._disabled.pop(nodename, None)

    @_when_ready
    def explain(self, allocations: Mapping[str, Any] | DeviceRequest | None, instance: Any = None) -> list[Shortage]:
        """Say for each part of a request what there is and why the rest cannot be had. Claims nothing.

        :raises BadRequest: as :meth:`instance_claim`
        """
        demand = self._demand(instance, allocations)
        with self._lock:
            shortages = self._ledger.shortages(demand, everything=True)
        return self._with_owners(shortages)

    def _with_owners(self, shortages: Sequence[Shortage]) -> list[Shortage]:
        return [shortage._replace(instances=self._ledger.owners(shortage.resource_class, shortage.provider_uuid))
                for shortage in shortages]

    # -- making it real -----------------------------------------------------------------------------------------------

    @_when_ready
    def realize(self, context: Any, instance: Any) -> InstanceResources:
        """Make the instance's devices ready for its guest. Slow; call it outside the service's own locks.

        Idempotent: call it before every start of the guest. Details that are new (an IOMMU group, this boot's path)
        are recorded. A parent that turns out to be full is read again and another device chosen, once.

        :raises InstanceNotClaimed: a device is on its way back already
        :raises DeviceError, ParentFull, NoFit: a device could not be made ready; all of them stay held and recorded
        :raises HypervisorUnreachable: no answer; devices may be half made, the next call goes on
        """
        with self.working(instance.uuid):
            records = self.records_of(instance.uuid)
            if any(record.state == vocabulary.RELEASING for record in records):
                raise exception.InstanceNotClaimed(instance.uuid, 'not on its way back')
            realized = []
            for record in records:
                realized.append(self._realize(record))
            changed = tuple(Update(before, after) for before, after in realized if before != after)
            if changed:
                self.write(Changes(update=changed))
            return InstanceResources.from_records(instance.uuid, self._host_uuid, [after for _, after in realized])

    def _realize(self, record: Record, again: bool = True) -> tuple[Record, Record]:
        try:
            with self.watching() as watch:
                realized = self.driver.realize(DeviceAssignment.from_record(record))
                # Providers that nobody resolved yet wait for the next audit.
                capacities = [one for one in realized.capacities if one.provider in self._provider_names]
                with self._lock:
                    unit = self._ledger.find(record.key)
                    if unit is not None:
                        self._ledger.realized(unit, realized.details, capacities, watch)
        except exception.ParentFull as full:
            if not again:
                raise
            return self._realize(self._exchange(record, full), again=False)
        if realized.details == record.details:
            return record, record
        return record, record._replace(details=realized.details, generation=record.generation + 1)

    def _exchange(self, record: Record, full: exception.ParentFull) -> Record:
        """Put another device in the place of one whose parent turned out to be full: one transaction."""
        LOG.warning('%(full)s; choosing another device for instance %(instance)s',
                    {'full': full, 'instance': record.instance_uuid})
        with self.reading() as watch:
            inventory = self.read_inventory()
            with self._lock:
                self._ledger.read_parents(inventory, watch)
                unit = self._ledger.find(record.key)
                if unit is None or unit.holding is None:
                    raise full
                other = self._ledger.exchange(unit)
                holding = unit.holding
        changes = Changes()
        try:
            candidate = self._named([other])[0]
            chosen = record._replace(
                kind=candidate.kind, identifier=candidate.identifier or '', provider_uuid=candidate.provider_uuid,
                parent=candidate.parent, numa_node=candidate.numa_node, details=candidate.details, generation=1,
                state=vocabulary.CLAIMED)
            changes = Changes(insert=(chosen,), delete=(record,))
            self.store.write(changes)
        except exception.NothingWritten:
            with self._lock:
                self._ledger.free(other)
            raise
        except BaseException:
            self._doubt(holding, changes)
            raise
        with self._lock:
            self._ledger.free(unit)
        return chosen

    @_when_ready
    def guest_config(self, instance: Any) -> GuestConfig:
        """What the guest's definition needs: its devices with the paths of this boot, in the order that was asked for.

        Besides them an element for the definition's metadata. Both are empty for an instance without devices. Asks
        about this instance alone: no other guest is read.

        :raises DeviceGone: a device is not there or is another one of its name
        """
        assignments = [DeviceAssignment.from_record(record) for record in self.records_of(instance.uuid)
                       if record.state != vocabulary.RELEASING]
        flavor = getattr(getattr(instance, 'flavor', None), 'name', None)
        return self.driver.guest_config(assignments, flavor) if assignments else GuestConfig()

    @_when_ready
    def started(self, context: Any, instance: Any) -> InstanceResources:
        """Record that the guest runs on its devices. If it is never called, the audit settles it.

        :raises InvalidTransition: its devices are on their way back
        """
        with self.working(instance.uuid):
            records = self.records_of(instance.uuid)
            return InstanceResources.from_records(
                instance.uuid, self._host_uuid, self.advance(records, lifecycle.STARTED))

    # -- giving back --------------------------------------------------------------------------------------------------

    @_when_ready
    def release(self, context: Any, instance: Any) -> None:
        """Give back everything that the instance holds here. Call it after the guest is gone. Idempotent.

        Blocks while devices are removed or wiped, which for persistent memory takes as long as writing it.

        :raises DeviceInUse: a domain still names a device; what is not in use was given back
        :raises DriverError, StoreError: not everything was given back; the audit goes on with it
        """
        with self.working(instance.uuid):
            self.give(self.records_of(instance.uuid))

    @_when_ready
    def abort_instance_claim(self, context: Any, instance: Any, claim_id: str | None = None) -> None:
        """Give back what a claim took: everything that the instance holds here, or only what ``claim_id`` took.

        :raises DriverError, StoreError: as :meth:`release`
        """
        with self.working(instance.uuid):
            self.give([record for record in self.records_of(instance.uuid) if claim_id in (None, record.claim_id)])

    def give(self, records: Sequence[Record]) -> None:
        """The give path, for rows of one instance whose ``working`` lock the caller holds."""
        if not records:
            return
        records = self.advance(records, lifecycle.RELEASE)
        with self._lock:
            units = {record.key: self._ledger.find(record.key) for record in records}
            self._ledger.releasing(unit for unit in units.values() if unit is not None)
        assignments = [DeviceAssignment.from_record(record) for record in records]
        answers = self.driver.unclaim(assignments)
        given = [record for record in records if answers[record.key] is None]
        if given:
            self.write(Changes(delete=tuple(given)))
            removed = {DeviceKey(one.kind, one.identifier) for one in assignments
                       if one.details.goes_with_its_assignment}
            with self._lock:
                for record in given:
                    unit = units[record.key]
                    if unit is not None:
                        self._ledger.free(unit, gone=record.key in removed)
        for error in answers.values():
            if error is not None:
                raise error

    # -- rows ---------------------------------------------------------------------------------------------------------

    def advance(self, records: Sequence[Record], event: str) -> list[Record]:
        """Give rows the state that an event leads to, in one transaction; those that have it stay as they are."""
        after = [record._replace(state=state, generation=record.generation + 1)
                 if (state := lifecycle.next_state(record.state, event)) != record.state else record
                 for record in records]
        changed = tuple(Update(before, later) for before, later in zip(records, after, strict=True)
                        if before is not later)
        if changed:
            self.write(Changes(update=changed))
        return after

    def write(self, changes: Changes) -> None:
        """Write rows of devices that are held; when the outcome is unknown they stay so until the store has said."""
        try:
            self.store.write(changes)
        except exception.NothingWritten:
            raise
        except BaseException:
            with self._lock:
                holdings = {id(unit.holding): unit.holding for key in changes.keys
                            if (unit := self._ledger.find(key)) is not None and unit.holding is not None}
            for holding in holdings.values():
                self._doubt(holding, changes)
            raise

    def records_of(self, instance_uuid: str) -> list[Record]:
        """The rows of one instance on this host, in the order of the request."""
        return self.store.records(self._host_uuid, instance_uuid)

    @contextlib.contextmanager
    def working(self, instance_uuid: str, wait: bool = True) -> Iterator[None]:
        """One operation at a time on one instance's devices.

        :raises lockutils.AcquireLockFailedException: with ``wait`` false, when one is under way
        """
        with lockutils.lock(instance_uuid, semaphores=self._working, do_log=False, blocking=wait):
            yield

    # -- audit and questions ------------------------------------------------------------------------------------------

    @_when_ready
    def update_available_resource(self, context: Any, nodename: str, startup: bool = False) -> list[Finding]:
        """The periodic audit: read every view again, go on with interrupted work, say what differs.

        Frees nothing that any view says is in use, and nothing on an unknown view.

        :raises NodeUnavailable: the node is not of this host
        :raises HypervisorUnreachable, StoreError: no answer; nothing was changed
        """
        if nodename != self.nodename:
            raise exception.NodeUnavailable(nodename, f'host {self.host} has node {self.nodename}')
        with self._auditing:
            findings = recovery.audit(self)
        recovery.report(self.host, findings)
        return findings

    @_when_ready
    def resources_of(self, instance_uuid: str) -> InstanceResources:
        """What an instance holds on this host, as it is recorded."""
        return InstanceResources.from_records(instance_uuid, self._host_uuid, self.records_of(instance_uuid))

    @_when_ready
    def providers(self) -> list[Provider]:
        """The resource providers of this host with what exists and can still be made, by resource class."""
        with self._lock:
            pools = [(pool.provider_uuid, pool.resource_class, pool.total - pool.free_count + pool.room())
                     for pool in self._ledger.pools()]
        totals: dict[str, dict[str, int]] = {}
        for uuid, resource_class, total in pools:
            of_provider = totals.setdefault(uuid, {})
            of_provider[resource_class] = of_provider.get(resource_class, 0) + total
        root = self._provider_names['']
        return [Provider(uuid=uuid, name=f'{self.nodename}_{name}' if name else self.nodename,
                         parent_uuid=root if name else None, totals=totals.get(uuid, {}))
                for name, uuid in sorted(self._provider_names.items())]

    # -- what recovery works on ---------------------------------------------------------------------------------------

    @property
    def lock(self) -> LedgerLock:
        """The ledger's lock."""
        return self._lock

    @property
    def ledger(self) -> ledgers.Ledger:
        """The ledger; every call of it is made under :attr:`lock`."""
        return self._ledger

    @property
    def doubts(self) -> list[recovery.Doubt]:
        """Commits whose outcome the store has not said yet."""
        return self._doubts

    @contextlib.contextmanager
    def reading(self) -> Iterator[ledgers.Watch]:
        """Read the host and take it over into the ledger: one at a time, so that none is overtaken by a later one."""
        with self._reading, self.watching() as watch:
            yield watch

    @contextlib.contextmanager
    def watching(self) -> Iterator[ledgers.Watch]:
        """Have the ledger note what changes while the host is read."""
        with self._lock:
            watch = self._ledger.watch()
        try:
            yield watch
        finally:
            with self._lock:
                self._ledger.unwatch(watch)

    def read_inventory(self) -> Inventory:
        """Read what the host has, and resolve its providers, which may block."""
        inventory = self.driver.get_inventory()
        self.resolve({device.provider for device in inventory.devices}
                     | {capacity.provider for capacity in inventory.capacities} | {''})
        return inventory

    def resolve(self, names: Collection[str]) -> None:
        assert self._providers is not None
        for name in names:
            if name not in self._provider_names:
                self._provider_names[name] = self._providers.uuid_of(name)

    def refresh(self) -> None:
        """Let requests see the providers and classes that the ledger knows now."""
        with self._lock:
            self._classes = self._ledger.resource_classes() | self.driver.resource_classes()
            self._provider_uuids = self._ledger.provider_uuids() | frozenset(self._provider_names.values())
