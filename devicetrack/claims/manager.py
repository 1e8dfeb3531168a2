"""The claim manager: who gets which device of this host. These are the public calls; other modules do the work.

Every call that changes something keeps this invariant: in use by a guest ⊆ realized on the host ⊆ rows in the store ⊆
held in the ledger. A call that takes devices starts at the ledger and goes inwards. A call that gives devices back
starts at the guest and goes outwards. The lock covers only the ledger.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import copy
import threading
from typing import Any
from typing import overload

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.claims import arguments
from devicetrack.claims import failed_claims
from devicetrack.claims import metering
from devicetrack.claims import moves
from devicetrack.claims import public_calls
from devicetrack.claims.claim import Claim
from devicetrack.claims.host import OwnProcess
from devicetrack.claims.instance_fields import Fields
from devicetrack.claims.instance_fields import InstanceFields
from devicetrack.claims.metering import HostState
from devicetrack.claims.metering import metered
from devicetrack.claims.metering import Metering
from devicetrack.claims.operators import Operator
from devicetrack.claims.providers import ProviderResolver
from devicetrack.claims.public_calls import of_request
from devicetrack.claims.refusals import refusable
from devicetrack.claims.refusals import Refusals
from devicetrack.claims.releasing import Wipe
from devicetrack.claims.running import Parts
from devicetrack.claims.running import Running
from devicetrack.claims.running import start
from devicetrack.claims.running import start_anew
from devicetrack.claims.running import Starter
from devicetrack.claims.service import ComputeService
from devicetrack.claims.service_cleaning import DeviceService
from devicetrack.claims.unfinished import FailedClaim
from devicetrack.claims.unfinished import ToldStart
from devicetrack.claims.unfinished import Unfinished
from devicetrack.engine import allocator
from devicetrack.engine.explanation import Shortage
from devicetrack.engine.findings import Finding
from devicetrack.engine.migrations import Endpoint
from devicetrack.objects import DeviceAssignment
from devicetrack.objects import DeviceMap
from devicetrack.objects import DeviceRequest
from devicetrack.objects import InstanceResources
from devicetrack.objects import LiveMigrationCheck
from devicetrack.objects import Provider
from devicetrack.objects.migration_context import Carried
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import GuestConfig
from devicetrack.objects.values import MigrationDefinitions
from devicetrack.objects.values import Usage
from devicetrack.store.api import Store
from devicetrack.virt.driver import VirtDriver


@public_calls.ending_starts
class ClaimManager:
    """Decides, records, realizes and takes back the devices of one host.

    Calls that change an instance take the service's request context first; calls that only read do not take it. All
    claims take ``context, instance, nodename, allocations``; claims for moves also take ``migration``.

    Every call checks its arguments, and raises ``BadRequest`` before it changes anything. The UUID of an instance or a
    migration is a string in canonical form: lower case, with hyphens. No call that changes something takes a value that
    means "all of them".

    One process manages a host at a time. If another process starts with the same store in spite of all locks, the store
    refuses the writes of this process, and after that every call raises ``HostTakenOver``. Calls whose answer starts or
    moves a guest ask the store first, so they raise it even earlier. Any number of native threads may call every
    method. Calls that work on the devices of one instance wait for one another; apart from that, a claim waits only for
    the ledger and for its commit.

    :param host: the host's name, unique among the hosts of the store
    :param driver: the virt driver
    :param store: keeps the assignments durably
    :param conf: the configuration; :meth:`init_host` registers ``[devicetrack]`` in it if nobody has
    :param service: the compute service's view of its instances; without it the manager concludes nothing about
        instances
    :param providers: gives the UUIDs of resource providers; by default they are derived from the host's UUID
    :param nodename: the hypervisor node of this host, if it has another name than the host
    :param instance_fields: reads and sets the fields of instances that concern devices; by default these are attributes
        of the instance. A service whose instances cannot keep objects of this library passes a
        :class:`~devicetrack.claims.instance_fields.ReturnedFields`, and keeps what the calls return
    :param after_wipe: called in a thread of the background when it has wiped or read a device, for a service that then
        reports the host to the scheduler. It may call the manager, and the next wipe of the thread waits for it. Its
        error is logged

    :raises BadRequest: the driver was made for another host

    ``host`` and ``nodename`` are attributes too. ``operator`` has the calls of operators
    (:class:`~devicetrack.claims.operators.Operator`). ``metering`` reports the work to a
    :class:`~devicetrack.claims.metering.Meter`, if it has one: :func:`devicetrack.metrics.register` gives it one.
    """

    def __init__(self, host: str, driver: VirtDriver, store: Store, conf: Any, service: ComputeService | None = None,
                 providers: ProviderResolver | None = None, nodename: str | None = None,
                 instance_fields: InstanceFields | None = None,
                 after_wipe: Callable[[], object] = lambda: None) -> None:
        if driver.host != host:
            raise exception.BadRequest('driver', driver.host, f'it is for this host, but the manager is for {host}')
        self.host, self.nodename = host, nodename or host
        self.metering, self.refusals, self._unfinished = Metering(), Refusals(), Unfinished()
        self._parts = Parts(Endpoint(self.host, self.nodename), driver, store, conf, service, providers,
                            instance_fields or InstanceFields(), after_wipe)
        self._process = OwnProcess(self.host)
        self.operator = Operator(self._started, self._call_failed)
        self._running: Running | None = None
        self._starting = threading.RLock()      # it knows whether this thread has it
        self._not_started: exception.DeviceTrackError | None = None     # why the last start anew failed

    # -- start and stop -----------------------------------------------------------------------------------------------

    def init_host(self, context: Any, background: bool = True,
                  prepare: Callable[[], object] = lambda: None) -> list[Finding]:
        """Take the host, read every view and continue what a crash interrupted. Blocks until that is done.

        :param background: wipe and read devices in the background until :meth:`close`, as ``[devicetrack]
            unproven_devices`` says. A program that runs only for a short time passes False and leaves that to the
            service. It counts as a command: it carries out no requests of other commands, and they do not wait for it
        :param prepare: called once the host is taken and before the store is read. A service that brings the schema of
            its store up to date when it starts calls :func:`devicetrack.store.sql.sync_store` there: no other process
            manages the host then. Its error ends the call
        :returns: the differences between the views
        :raises HostInUse: another process, or another manager in this one, manages this host
        :raises UnsafePath: users other than the service's can change the state directory or its lock
        :raises HostIdentityChanged: the store knows the host as another machine
        :raises MachineHasHost: the store has devices of this machine under another host's name
        :raises SchemaMismatch, StoreError: the store cannot be used
        :raises HypervisorUnreachable: no answer, so it is unknown which devices are in use
        :raises InvalidConfiguration: an option cannot be used, or does not fit what the host has

        After an error no other call works, and another process can take the host. If this manager has started already,
        the call is an audit and raises the errors of :meth:`update_available_resource`.
        """
        self._process.check()
        with self._starting_alone():
            if self._running is not None and self._running.is_closed:
                self._end()                     # what an interrupt left of close()
            if self._running is None:
                starter = Starter(self.metering, self.refusals, self._unfinished, self._go_on,
                                  by_command=not background)
                self._running, findings = start(self._parts, starter, prepare)
                if background:
                    self._running.work_in_background()
                return findings
        return self._started().audit()

    def close(self) -> None:
        """Release the host. Its devices stay recorded for their instances; :meth:`init_host` starts again.

        :raises ForkedManager: this process is a child of the manager's; at once, and nothing was released
        """
        self._process.check()                   # first: a thread of the parent may have had any lock during the fork
        with self._starting_alone():
            self._end()

    def _end(self) -> None:
        # In this order: after an interrupt the next call closes what is left.
        if self._running is not None:
            self._running.close()
        self._running = None

    def _starting_alone(self) -> contextlib.AbstractContextManager[bool]:
        """Start or close the host in this thread alone. The lock is none of a start's, and no line has to be fair.

        The lock itself is the block, and no generator: an interrupt can leave nothing between the two.
        """
        # As threading.Condition asks it; typeshed does not list the method.
        if self._starting._is_owned():  # type: ignore[attr-defined]
            raise exception.ReentrantCall('starting')
        return self._starting

    def _started(self) -> Running:
        """Return the running host. If an interrupt ended its last start, first start it anew.

        :raises HypervisorUnreachable, StoreError: no answer for a start; the next call tries again. All who waited for
            this start get the error
        :raises NotReady, ForkedManager, HostTakenOver: as :meth:`_ready`
        """
        host = self._ready()
        if not host.is_over:
            return host
        earlier = self._not_started
        with self._starting_alone():
            host = self._ready()                # another thread may have started it, or closed the manager
            if host.is_over:
                if (failed := self._not_started) is not earlier and failed is not None:
                    raise copy.copy(failed)
                try:
                    self._running, _findings = start_anew(host)
                except exception.DeviceTrackError as error:
                    self._not_started = copy.copy(error)
                    raise
            return self._ready()

    def _ready(self) -> Running:
        """Return the last start. Only this method refuses calls that come too early or from another process.

        :raises NotReady: ``init_host`` has not succeeded
        :raises ForkedManager: this process is a child of the manager's
        :raises HostTakenOver: another manager of this host has started since
        """
        self._process.check()
        running = self._running
        if running is None or running.is_closed:
            raise exception.NotReady(self.host)
        if running.is_taken_over:
            raise exception.HostTakenOver(self.host)
        return running

    @public_calls.ending_start
    def _go_on(self, began: Running, work: Callable[[Running], Any]) -> Any:
        """Let the present start go on with what an earlier one began; after :meth:`close` that one itself does."""
        return work(began if self._running is None or self._running.is_closed else self._started())

    def _call_failed(self, error: BaseException) -> None:
        """End the present start if what ended a call is no answer. Every public call runs this when an error leaves it.

        :raises StartIsOver: the call was one of an earlier start, whose writes the store refuses
        """
        running = self._running
        if running is None:
            return
        if isinstance(error, exception.HostTakenOver):
            if not running.is_taken_over:
                raise exception.StartIsOver from error
        elif not public_calls.is_answer(error):
            running.end()

    def _started_for(self, instance: Any, *migrations: Any) -> Running:
        """Return the running host, for a call about an instance and these migrations.

        :raises BadRequest: one of them has no UUID
        :raises Exception: as :meth:`_started`
        """
        host = self._started()
        arguments.instance_uuid(instance)
        for migration in migrations:
            arguments.migration_uuid(migration)
        return host

    def _owner_for(self, instance: Any, *migrations: Any) -> Running:
        """Return the running host, for a call whose answer starts or moves a guest. Makes one query to the store.

        :raises HostTakenOver: another manager of this host has started, even if the store has not refused a write of
            this one yet
        :raises StoreError: no answer
        :raises BadRequest, NotReady, ForkedManager: as :meth:`_started_for`
        """
        host = self._started_for(instance, *migrations)
        host.store.check_epoch()
        return host

    def _hearing(self, host: Running) -> Running:
        """Return the running host once it has carried out all requests to cordon, for a call that chooses devices.

        :raises StoreError: one of them may still wait
        :raises HypervisorUnreachable, NotReady, ForkedManager, HostTakenOver: as :meth:`_started`
        """
        host.hear()
        return self._started() if host.is_over else host

    def _open_for(self, nodename: str, instance: Any, migration: Any = None) -> Running:
        """Return the running host, for a claim. A claim without a migration may have one created.

        :raises NodeUnavailable: the node does not belong to this host, or takes no claims at the moment
        :raises BadRequest, NotReady, ForkedManager: as :meth:`_started_for`
        :raises HypervisorUnreachable, StoreError: as :meth:`_started`
        """
        host = self._started_for(instance) if migration is None else self._started_for(instance, migration)
        host = self._hearing(host)
        host.gate.check(nodename)
        return host

    # -- taking -------------------------------------------------------------------------------------------------------

    @metered(metering.INSTANCE_CLAIM)
    @of_request
    @refusable
    def instance_claim(self, context: Any, instance: Any, nodename: str,
                       allocations: Mapping[str, Any] | DeviceRequest | None, limits: Any = None) -> Claim:
        """Hold devices for an instance and record them at once. Blocks for one commit, without holding the lock.

        Sets ``instance.resources``; save the instance. If setting it raises an error, the claim releases its devices.

        :param instance: the claim reads ``uuid``, ``flavor.extra_specs`` if there is a flavor, and the NUMA policy in
            ``image_meta.properties`` if there is an image
        :param allocations: placement's ``{provider UUID: {'resources': {CLASS: amount}}}``, or a
            :class:`~devicetrack.objects.DeviceRequest`; None and {} claim no device, for a flavor without devices. The
            claim skips classes that cannot count devices of this library, and providers of other hosts; its ``skipped``
            lists those providers. After an empty claim the guest may start without the instance's devices that are
            being released; like every claim for a move, it waits while another call releases devices of the instance
        :param limits: unused, since devices have no overcommit; accepted because callers pass it
        :raises NoFit: no free device matches a part of the request; the error has the reasons, and nothing is held
        :raises exception.UnknownProvider: the allocations have providers that this host does not know, and those at
            this host may be incomplete: there is less of a class than the flavor needs; or the flavor does not specify
            a need, and there is less than at the unknown providers, or this host does not know all of its own
            providers. Nothing is held
        :raises BadRequest: the request has no meaning on this host; nothing is held
        :raises InstanceHasClaim: the instance holds devices already, which stay unchanged. Before that, the call ended
            moves of the instance that are over, as the next audit would
        :raises NodeUnavailable: the node does not belong to this host, or its store is older than its guests
        :raises NothingWritten: the store refused, perhaps to undo an earlier claim of the instance that failed; this
            call holds nothing
        :raises HypervisorUnreachable, UsersUnknown: an earlier claim of the instance failed, and a guest may run on its
            devices; this call holds nothing
        :raises OutcomeUnknown: the commit may have happened; the devices stay held until the store answers
        """
        host = self._open_for(nodename, instance)
        demand = host.views.demand(allocations, getattr(instance, 'flavor', None), instance)
        return host.claiming.claim(instance, demand, host.moves.end_earlier)

    @of_request
    def narrow_claim(self, context: Any, claim: Claim, numa_nodes: Collection[int],
                     numa_affinity_policy: str | None = vocabulary.REQUIRED, wait: bool = True) -> Fields:
        """Exchange devices of a claim for devices on these NUMA nodes, for a service that chooses the nodes later.

        Call it after the claim and before :meth:`realize`. It exchanges each device that is not on one of the nodes for
        one that is. The new device has the same resource class and, unless the request left every provider to this
        host, the same provider. If the request named an alias, the alias means the new device too. The claim keeps its
        id and its order, and has the new devices in ``resources`` and ``fields``. One transaction inserts the new rows
        and ends the old ones, so the claim has one device or the other at any time, also after a crash. Then the old
        devices go back as by :meth:`.claim.Claim.abort`; those that cannot go back now wait for the audit.

        :param numa_nodes: the nodes that the guest is pinned to; with none of them nothing is exchanged
        :param numa_affinity_policy: with ``required`` every device must be on the nodes. The other policies let a
            device stay if no nearer one is free: ``preferred`` any device, ``legacy`` one whose node is unknown,
            ``socket`` one on a socket of the nodes. ``none`` exchanges nothing. None means the policy of the flavor,
            the image or the alias for functions that an alias asked for, and ``preferred`` for all other devices
        :param wait: False wipes the old devices in the background
        :returns: the fields that it set on the instance; empty if nothing was exchanged
        :raises NoFit: a device that must be exchanged has no replacement; the claim keeps its devices
        :raises BadRequest: the nodes, the policy or the claim is not valid
        :raises InstanceNotClaimed, InvalidTransition: the claim was given back, or its guest has been started
        :raises NothingWritten: the store refused; the claim keeps its devices
        :raises OutcomeUnknown: the commit may have happened; the old and the new devices stay held until the store
            answers
        """
        host = self._started()
        nodes, policy = arguments.check_affinity(numa_nodes, numa_affinity_policy)
        if not isinstance(claim, Claim):
            raise exception.BadRequest('claim', type(claim).__name__, 'must be what a claim call returned')
        if claim.is_over or not nodes or policy == vocabulary.NONE:
            return {}
        host = self._hearing(host)
        fields = host.claiming.narrow(claim, nodes, policy, wait)
        host.wipes.go_on()
        return fields

    def explain(self, allocations: Mapping[str, Any] | DeviceRequest | None, instance: Any = None) -> list[Shortage]:
        """Say for each part of a request which devices are free, and why the others cannot be had. Claims nothing.

        :raises BadRequest: as :meth:`instance_claim`
        """
        host = self._started()
        demand = host.views.demand(allocations, getattr(instance, 'flavor', None), instance)
        return allocator.shortages(host.ledger.now, demand, everything=True)

    # -- making it real -----------------------------------------------------------------------------------------------

    @metered(metering.REALIZE)
    @of_request
    def realize(self, context: Any, instance: Any, new_definition: bool = False) -> InstanceResources:
        """Make the instance's devices ready for its guest. Slow; call it outside the service's own locks.

        Idempotent: call it before every start of the guest. It records new details, such as an IOMMU group or the path
        of this boot. If a move is over in the service and not yet on this host, the call ends the move first. It also
        undoes earlier failed claims of the instance. If a device that no guest has had cannot be made ready for a cause
        of its own, the call takes another one instead, a few times at most, and withholds the first one for a while, or
        further devices of its parent.

        While the instance moves to other devices of this host, the guest keeps its former devices (or none) until the
        migration is ``post-migrating`` in the service. This call, :meth:`guest_config`, :meth:`kept_definition` and
        :meth:`started` use these.

        :param new_definition: the guest does not start from the definition that the hypervisor has now: the service
            makes a new one with :meth:`guest_config`, or has kept one. Then the call does not change that definition.
            Otherwise, after a boot of the host, it writes the paths of this boot into it
        :raises InvalidDocument: without ``new_definition``, after a boot: the hypervisor's definition does not say
            which device each of its paths meant, for example because this library did not write it. The guest can
            start only from a new one
        :raises InstanceNotClaimed: all devices that the instance has here are being released. It was released; or
            its claim failed; or it left them in a move to another host, and nothing was claimed for it here since
        :raises RowsMissing: the store is older than the instance's guest, and does not know all devices of the guest
        :raises MigrationUndecided: the instance moves on this host, and it is unknown whether the move continues or has
            failed, or the guest's definition cannot be read. Or the guest was started again on its old devices, and the
            move has not failed in the service. The calls that follow also raise it if the service has begun to undo the
            move since: repeat this one
        :raises StoreError: no answer; a move that is over, or a claim that failed, may not have ended here
        :raises NoFit: a device could not be made ready, and there is no other; the error has each that failed
        :raises DeviceError, ParentFull: a device could not be made ready. As after NoFit, all of them stay held and
            recorded, except one that stores data and that others use or have written to
        :raises HypervisorUnreachable: no answer; devices may be half made, and the next call continues
        :raises UsersUnknown: a claim of the instance failed, and it is unknown whether a guest runs on its devices
        """
        host, uuid = self._hearing(self._started_for(instance)), instance.uuid
        with host.wipes.releasing(uuid, wait=False):
            host.store.check_epoch()
            host.gate.check_complete(uuid)
            gave = host.failed_claims.undo_earlier(uuid) if host.gate.report_only is None else []
            records = host.rows.of_instance(uuid)
            if host.moves.settle_ended(uuid, records):
                records = host.rows.of_instance(uuid)
            before_move = host.life.is_before_move(records, is_realized=False)
            used = host.life.used_by_guest(records, before_move)
            host.failed_claims.check_kept(uuid, used)
            if not used and not before_move and host.life.misses(records, gave):
                raise exception.InstanceNotClaimed(uuid, failed_claims.NOT_FAILED)
            if host.life.is_released(records, before_move):
                raise exception.InstanceNotClaimed(uuid, 'not being released')
            real = host.claiming.realize(used)
            if not new_definition:
                host.definitions.bring_one(uuid)
            return host.rows.resources(uuid, real)

    def guest_config(self, instance: Any) -> GuestConfig:
        """Return the devices for the guest's definition, with the paths of this boot, in the order of the request.

        The answer also has an element for the definition's metadata. Both are empty for an instance without devices.
        The call reads no other guest.

        Make it the last call before the guest starts. It asks the store twice whether another manager of this host has
        started: before it reads anything, and again when the answer is ready. So no guest starts with an answer that
        another manager has made invalid meanwhile.

        :raises DeviceGone: a device is not there, or the host has another device of its name
        :raises InstanceNotClaimed: the claim of the devices failed, so they go back
        :raises HostTakenOver: another manager of this host has started; start no guest and remove none
        :raises RowsMissing, MigrationUndecided: as :meth:`realize`
        """
        host = self._owner_for(instance)
        host.gate.check_complete(instance.uuid)
        used, beside = host.life.devices_of_guest(instance.uuid)
        host.failed_claims.check_kept(instance.uuid, used)
        config = GuestConfig()
        if used or beside:
            flavor = getattr(getattr(instance, 'flavor', None), 'name', None)
            config = self._parts.driver.guest_config(used, flavor, beside)
        host.store.check_epoch()                # a manager that started meanwhile may have taken these devices back
        return config

    def kept_definition(self, instance: Any, definition: str) -> str:
        """Return a definition that the service has kept, perhaps since another boot, with the addresses of this boot.

        For a service that starts a guest from it, or has the hypervisor do so. Call it after :meth:`realize`, instead
        of :meth:`guest_config`. The definition may hold secrets of the guest: never log it.

        :returns: the definition with all devices of the instance in the same places, no other device that this host
            tracks, and this library's record of them. A definition of this boot, or of an unknown boot, is returned
            unchanged
        :raises InvalidDocument: the definition cannot be read; or it is of another boot, and its record does not
            explain every device, or it contains devices that the instance does not have
        :raises DefinitionRefused: a device of the instance is missing, or the definition contains another device that
            this host tracks, as in ``reason``
        :raises DeviceGone: a device is not there, or the host has another device of its name
        :raises InstanceNotClaimed: as :meth:`guest_config`
        :raises RowsMissing, MigrationUndecided: as :meth:`realize`
        :raises DriverError, HypervisorUnreachable, StoreError: the devices of the definition, or their owners, are
            unknown
        """
        host = self._owner_for(instance)
        arguments.check_text('definition', definition)
        host.gate.check_complete(instance.uuid)
        used, beside = host.life.devices_of_guest(instance.uuid)
        host.failed_claims.check_kept(instance.uuid, used)
        kept = host.definitions.kept(instance.uuid, definition, used, beside)
        host.store.check_epoch()                # as in guest_config
        return kept

    def started(self, context: Any, instance: Any) -> InstanceResources:
        """Record that the guest runs on its devices. Without this call, the audit records it.

        Sets ``instance.resources`` and returns it. If the instance moved here, the new devices are its current ones
        from now on. Devices that it left on this host stay its own until the move is confirmed. If devices that are
        being released were still in the definition before this start, the release continues now, with wipes in the
        background.

        :raises InvalidTransition: its devices are being released
        :raises MigrationUndecided: as :meth:`realize`; an audit records the start
        """
        # First and last: wherever an error comes from, the guest runs, and the claim must not give its devices back.
        self._unfinished.note_start(uuid := str(getattr(instance, 'uuid', None)))
        resources = self._record_start(context, instance)
        self._unfinished.end(ToldStart, uuid)
        return resources

    @of_request
    def _record_start(self, context: Any, instance: Any) -> InstanceResources:
        host, uuid = self._started_for(instance), instance.uuid
        host.store.check_epoch()
        with host.wipes.releasing(uuid, wait=False):
            used = host.life.start(uuid)
            # The guest runs on these, so it has left those that it had before the same move.
            host.life.vacate(uuid, lambda _uuids: {record.migration_uuid for record in used
                                                   if record.role == vocabulary.CURRENT})
            host.life.release_left(uuid)
            resources = host.rows.resources(uuid, used)
            self._parts.instances.set(instance, {'resources': resources})
            return resources

    @of_request
    def adopt(self, context: Any, instance: Any, devices: Iterable[DeviceKey]) -> InstanceResources:
        """Record devices that the instance's guest has already. Idempotent, all or nothing.

        For a host that ran guests before it used this library: the devices of these guests have no rows and are
        withheld. From this call on the instance owns the devices, as if it had claimed them and started. The call
        touches no guest. Sets ``instance.resources``.

        :param devices: kind and identifier of each, in the order of the guest's request
        :returns: all devices that the instance has here now
        :raises NotAdopted: the host has no such healthy device, another instance has it, another domain uses it, it is
            being wiped, the instance is not here in the service, or one of these is unknown; see ``reason``
        :raises RowsMissing: as :meth:`realize`
        :raises DriverError, HypervisorUnreachable, StoreError: no answer; nothing was recorded. Devices that may
            have lost their proof are withheld
        """
        host, uuid = self._owner_for(instance), instance.uuid
        keys = arguments.check_devices(devices)
        host.gate.check_complete(uuid)
        with host.rows.working(uuid):
            host.repairs.adopt(uuid, keys)
            resources = host.rows.resources(uuid, host.rows.there(uuid))
            self._parts.instances.set(instance, {'resources': resources})
            return resources

    @of_request
    def rebooted(self, context: Any, instance: Any) -> None:
        """Record that a guest rebooted, or may have, without a new start.

        A guest examines its devices when it boots. From then on it may rely on features of this host's driver that its
        earlier host lacks, so it cannot go back there while it runs. Call it for every reboot that the service makes or
        the hypervisor reports (libvirt: ``VIR_DOMAIN_EVENT_ID_REBOOT``). Idempotent.

        :raises StoreError: the reboot may not be recorded
        """
        host = self._started_for(instance)
        with host.rows.working(instance.uuid):
            host.life.note_reboot(instance.uuid)

    # -- giving back --------------------------------------------------------------------------------------------------

    @metered(metering.RELEASE)
    @of_request
    def release(self, context: Any, instance: Any, wait: bool = True) -> Fields:
        """Release all devices of the instance on this host, old and new ones during a move. Idempotent.

        Sets ``instance.resources`` to None, also if devices cannot be released yet: they are not the instance's any
        more. Call it after the guest is gone. Blocks while devices are removed or wiped; wiping persistent memory takes
        as long as writing all of it.

        :param wait: False wipes devices in the background, and they stay held until then. :meth:`wipes` returns the
            progress, and audits report wipes that fail
        :returns: the fields that it set on the instance
        :raises DeviceInUse: a domain still uses a device; the other devices were released. Without ``wait``, only for
            devices that need no wipe
        :raises DriverError, StoreError: not all devices were released; the audit continues
        """
        host, fields = self._started_for(instance), Fields(resources=None)
        with host.wipes.releasing(instance.uuid, wait):
            host.life.release_all(host.rows.of_instance(instance.uuid), wait,
                                  lambda: self._parts.instances.set(instance, fields))
        return fields

    @of_request
    def abort_instance_claim(self, context: Any, instance: Any, claim_id: str | None = None,
                             migration_uuid: str | None = None) -> Fields:
        """Give back all devices that the instance holds here, or only those of the claim ``claim_id``.

        Devices that a claim for a move made old are current again. Sets ``instance.resources`` to its value before the
        claim. A later claim of the same migration stays as it is, with its fields.

        :returns: the fields that it set on the instance
        :raises DriverError, StoreError: as :meth:`release`
        """
        if claim_id is None:
            return self.release(context, instance)
        host = self._started_for(instance)
        arguments.check_text('claim_id', claim_id)
        if migration_uuid is not None:
            arguments.check_uuid('migration_uuid', migration_uuid)
        return host.failed_claims.abort(
            FailedClaim(instance.uuid, claim_id, migration_uuid),
            lambda: host.failed_claims.take_off(instance, {}, claim_id, migration_uuid))

    # -- moving -------------------------------------------------------------------------------------------------------

    @metered(metering.RESIZE_CLAIM)
    @of_request
    @refusable
    def resize_claim(self, context: Any, instance: Any, nodename: str,
                     allocations: Mapping[str, Any] | DeviceRequest | None, migration: Any, flavor: Any = None,
                     limits: Any = None, *, numa_topology: Any = None, pci_devices: Any = None,
                     pci_requests: Any = None) -> Claim:
        """Claim at the destination of a resize or cold migration, even on one host. Blocks for one commit.

        One transaction writes the new rows and the migration context. If the instance moves on one host, the same
        transaction marks its present devices as old. Sets ``instance.migration_context``; ``instance.resources`` does
        not change until the guest runs here.

        :param allocations: the instance's allocations at its destination, as for :meth:`instance_claim`
        :param migration: the claim reads ``uuid, id, source_compute, source_node``; if it is None, the service creates
            one
        :param flavor: the new flavor of the instance; its ``extra_specs`` give the order of the devices, and the least
            that ``allocations`` must hold. Not read with a :class:`~devicetrack.objects.DeviceRequest`
        :param limits: as :meth:`instance_claim`
        :param numa_topology: the topology that the service pinned the guest to: a versioned object of the service with
            ``cells``, each with the ``id`` of its host NUMA node. The claim applies the NUMA policy to these nodes
        :param pci_devices: if the service tracks PCI functions itself, the list of those that the instance gets, for
            the migration context: a versioned object of the service, as ``instance.pci_devices`` is for the old
            functions
        :param pci_requests: the requests for these functions, as ``instance.pci_requests`` has those for the old
            functions
        :returns: a claim. If an error leaves its block, it releases the devices that it took, and makes the old devices
            current again
        :raises NoFit, BadRequest, NodeUnavailable, NothingWritten, OutcomeUnknown: as :meth:`instance_claim`
        :raises InstanceHasStaleRows: an earlier move of the instance has not ended here; nothing was claimed. Before
            that, the call did the work of the next audit for this instance
        :raises InstanceHasClaim: this migration has a claim here already
        :raises MigrationSuperseded: a newer migration of the instance has a claim here; nothing was changed
        """
        host = self._open_for(nodename, instance, migration)
        demand = host.views.demand(allocations, flavor, instance)
        return host.moves.claim(context, instance, migration, moves.RESIZE, demand,
                                Carried(numa_topology, pci_devices, pci_requests))

    def check_can_live_migrate_destination(self, instance: Any) -> LiveMigrationCheck:
        """At the destination, before the claim: check that this host can take running guests with such devices.

        Changes nothing. Pass the result to :meth:`check_can_live_migrate_source` at the source.

        :raises LiveMigrationUnsupported: this host takes no running guest with a device of a kind that the instance has
        :raises HypervisorUnreachable: no answer
        """
        return self._started_for(instance).live.check_at_destination(instance)

    def check_can_live_migrate_source(self, instance: Any, check: LiveMigrationCheck | None = None, *,
                                      post_copy: bool = False) -> LiveMigrationCheck:
        """At the source, before the claim: return what this host declares about the devices of the guest.

        Changes nothing. Pass the result to :meth:`live_migration_claim` at the destination, which decides.

        :param check: the destination's result; None if the destination has an older release
        :param post_copy: whether the migration may be switched to post-copy
        :raises LiveMigrationUnsupported: no running guest with such a device leaves this host
        :raises PostCopyRefused: a guest with devices cannot use post-copy
        :raises BadRequest: the check is for another instance
        :raises HypervisorUnreachable, StoreError: no answer
        """
        return self._started_for(instance).live.check_at_source(instance, check, post_copy)

    @metered(metering.LIVE_MIGRATION_CLAIM)
    @of_request
    @refusable
    def live_migration_claim(self, context: Any, instance: Any, nodename: str,
                             allocations: Mapping[str, Any] | DeviceRequest | None, migration: Any,
                             limits: Any = None, *, numa_topology: Any = None,
                             check: LiveMigrationCheck | None = None) -> Claim:
        """Claim at the destination of a live migration: a partner for each device that the guest runs on.

        The claim reads these devices from ``instance.resources``. A partner has the same resource class, and is
        compatible by the declarations of both hosts. The claim finds partners for as many devices as possible.

        :param check: the result of :meth:`check_can_live_migrate_source`. None if the source has an older release: then
            only the types of its devices are known, not their migration versions
        :raises NoDevicePair: a device has no partner among the free devices; nothing is held
        :raises LiveMigrationUnsupported: this host takes no running guest with such a device; nothing is held
        :raises BadRequest: also if ``instance.resources`` has another number of devices than are allocated here, or
            other devices than ``check``
        :raises Exception: all others as :meth:`resize_claim`
        """
        host = self._open_for(nodename, instance, migration)
        demand = host.views.demand(allocations, getattr(instance, 'flavor', None), instance)
        return host.live.claim(context, instance, migration, demand, numa_topology, check)

    @metered(metering.REBUILD_CLAIM)
    @of_request
    @refusable
    def rebuild_claim(self, context: Any, instance: Any, nodename: str,
                      allocations: Mapping[str, Any] | DeviceRequest | None, migration: Any = None,
                      limits: Any = None, *, numa_topology: Any = None, pci_devices: Any = None,
                      pci_requests: Any = None) -> Claim:
        """Claim for an instance that is evacuated to this host. Its allocations are usually at both hosts.

        A rebuild in place (no migration, and the instance is on this host) takes no devices. The claim has the devices
        of the instance, and an abort of the claim releases none of them.

        :raises Exception: as :meth:`resize_claim`
        """
        host = self._open_for(nodename, instance, migration)
        if migration is None and getattr(instance, 'host', None) == self.host:
            return host.moves.claim_in_place(instance)
        demand = host.views.demand(allocations, getattr(instance, 'flavor', None), instance)
        return host.moves.claim(context, instance, migration, moves.EVACUATION, demand,
                                Carried(numa_topology, pci_devices, pci_requests))

    @of_request
    def drop_move_claim_at_source(self, context: Any, instance: Any, migration: Any, wait: bool = True) -> Fields:
        """Confirm a move: release the devices that the instance left on this host. Idempotent.

        If the instance moved on one host, one transaction starts the release of the old devices and takes the new ones
        out of the move. Call it after the guest that ran on the old devices is gone, or runs on the new ones. If this
        is the first call with the migration here, and the service does not answer where the instance is, the call
        releases no device, and an audit does if the service reports migrations. Sets ``instance.migration_context`` to
        None, unless that is the context of another migration.

        :param wait: as :meth:`release`; False returns after the transaction
        :returns: the fields that it set on the instance
        :raises BadRequest: the migration was undone in the service, or ended in an error; or the guest was started
            again on the devices that it would leave. Nothing was changed
        :raises DepartureUnknown: the service does not answer, and reports no migrations; nothing was changed
        :raises DriverError, StoreError: as :meth:`release`
        """
        return self._started_for(instance, migration).moves.drop_at_source(instance, migration, wait)

    @of_request
    def drop_move_claim_at_dest(self, context: Any, instance: Any, migration: Any, wait: bool = True) -> Fields:
        """Revert or roll back a move: release the devices that it claimed on this host. Idempotent.

        If the instance moved on one host, one transaction starts the release of the new devices and makes the old ones
        current again, with their contents untouched. Sets ``instance.resources`` to its old value if that is known, and
        ``instance.migration_context`` to None, unless that is the context of another migration.

        :param wait: as :meth:`drop_move_claim_at_source`
        :returns: the fields that it set on the instance
        :raises BadRequest: the migration is done in the service; nothing was changed
        :raises DeviceInUse: the guest's definition still contains the new devices; an audit releases them after the
            guest is defined again. Without ``wait``, only for devices that need no wipe
        :raises DriverError, StoreError: as :meth:`release`
        """
        return self._started_for(instance, migration).moves.drop_at_destination(instance, migration.uuid, wait)

    @of_request
    def drop_move_claim(self, context: Any, instance: Any, nodename: str, flavor: Any = None,
                        prefix: str = moves.NEW, wait: bool = True) -> Fields:
        """End a move for a caller without the migration: the prefix ``new_`` reverts it here, ``old_`` confirms it.

        The call ends the migration of ``instance.migration_context``. Without a context it ends the only one in the
        instance's rows here. Because these may be of the instance's next move, that one must be done in the service for
        ``old_``, or undone or ``reverting`` for ``new_``. If the rows have several migrations, the call does nothing.

        :param wait: as :meth:`drop_move_claim_at_source`
        :returns: the fields that it set on the instance
        :raises NodeUnavailable: the node does not belong to this host
        :raises BadRequest: there is no context, and the only migration does not end so in the service; nothing was
            changed
        :raises Exception: as :meth:`drop_move_claim_at_dest` or :meth:`drop_move_claim_at_source`
        """
        host = self._started_for(instance)
        host.gate.check_name(nodename)
        return host.moves.drop(instance, prefix, wait)

    @of_request
    def finish_evacuation(self, context: Any, instance: Any, nodename: str, migration: Any) -> Fields:
        """Record that an evacuated guest runs here.

        Sets ``instance.resources``, and ``instance.migration_context`` to None, unless that is the context of another
        migration.

        :param migration: None means that of ``instance.migration_context``; without a context, none
        :returns: the fields that it set on the instance
        """
        host = self._started_for(instance)
        host.gate.check_name(nodename)
        return host.moves.finish_evacuation(instance, migration)

    @of_request
    def update_usage(self, context: Any, instance: Any, nodename: str, sign: int = 1) -> None:
        """Mark the instance's devices as old if its migration context has a migration away from this host.

        :param sign: unused; accepted because callers pass it
        """
        host = self._started_for(instance)
        host.gate.check_name(nodename)
        host.moves.update_usage(instance)

    def device_map(self, instance: Any, migration: Any) -> DeviceMap:
        """At the destination of a live migration, after :meth:`realize`: map the guest's devices to partners here.

        Send the map to the source, which passes it to :meth:`migration_definitions`. If the map has a device, post-copy
        is not allowed. The map holds paths of this boot of this host. After a boot the migration is over, and the claim
        for the next migration gives another map.

        :raises InstanceNotClaimed: the migration has no claim here, or its claim failed
        :raises NoDevicePair: a device has no partner; the caller drops the claim
        :raises BadRequest: the claim has more devices than the guest, so it is not for a live migration
        :raises DeviceGone: a device is not there
        """
        return self._owner_for(instance, migration).live.device_map(instance, migration)

    @of_request
    def migration_definitions(self, context: Any, instance: Any, migration: Any,
                              device_map: DeviceMap, *, post_copy: bool = False,
                              definition: str | None = None) -> MigrationDefinitions:
        """At the source of a live migration: return the guest's live and persistent definitions for the destination.

        They contain the partner of each device, in the same order; nothing else changes. The devices of this host are
        old from now on, until the move is over or undone.

        :param post_copy: whether the migration may be switched to post-copy
        :param definition: the guest's live definition, if the service has already changed other parts of it for the
            destination; then the call returns no persistent one
        :raises LiveMigrationUnsupported: no running guest with such a device leaves this host; nothing was changed
        :raises PostCopyRefused: a guest with devices cannot use post-copy; nothing was changed
        :raises NoDevicePair: the guest rebooted since the check, and may have seen a newer version; nothing was changed
        :raises BadRequest: the migration is over in the service; nothing was changed
        :raises MigrationSuperseded: the service knows a newer migration of the instance; nothing was changed
        :raises DomainGone: no domain of the instance runs here
        :raises InvalidDocument: a device in its definition has no partner in the map, or cannot be read
        """
        return self._owner_for(instance, migration).live.definitions(instance, migration, device_map, post_copy,
                                                                      definition)

    # -- audit and questions ------------------------------------------------------------------------------------------

    def update_available_resource(self, context: Any, nodename: str, startup: bool = False) -> list[Finding]:
        """Run the periodic audit: read every view again, continue interrupted work and report the differences.

        Frees no device that any view shows in use, and none because of an unknown view. Carries out what commands
        requested.

        :param startup: unused; accepted because callers pass it
        :raises NodeUnavailable: the node does not belong to this host
        :raises HypervisorUnreachable, StoreError: no answer; nothing was changed
        """
        host = self._started()
        host.gate.check_name(nodename)
        return host.audit()

    def look_after(self, devices: DeviceService) -> None:
        """Clean the devices that the service itself assigns and that wait for it. Quick: threads do that.

        They ask ``devices`` which devices these are, and also note which device the service gives to its next guest. So
        call this after every audit. The findings of audits list the devices that are not cleaned, with the reasons.
        """
        self._started().service_cleaning.look(devices)

    def note_given(self, devices: Collection[DeviceKey]) -> None:
        """Note that the service gave some of the devices of :meth:`look_after` to a guest. Blocks for a file.

        Call it before the guest starts. If it is not called or fails, the next audit notes that, if the guest still has
        the device then. A device without such a note is not cleaned, because somebody else may have reserved it.

        :raises DriverError: the file cannot be written
        """
        self._started().service_cleaning.note_given(devices)

    @overload
    def assignments(self, instance_uuid: str) -> InstanceResources: ...

    @overload
    def assignments(self) -> Sequence[DeviceAssignment]: ...

    def assignments(self, instance_uuid: str | None = None) -> Sequence[DeviceAssignment]:
        """Return the devices of one instance, or of all instances, on this host. Reads memory, without I/O.

        For one instance these are its resources, to set and save as ``instance.resources``. They come in the order of
        the request, in every role and state, also those that are being released. Each has the provider and class that
        count its device now, even if its claim had others.

        Memory has the rows that the store has confirmed to this process, which alone writes them, and the rows of
        commits that have no answer yet. It forgets a row just before the row is deleted.

        After an interrupt, the call first starts the host anew, and so reads it.
        """
        host = self._started()
        if instance_uuid is None:
            return tuple(map(DeviceAssignment.from_record, host.views.assignments()))
        arguments.check_uuid('instance_uuid', instance_uuid)
        return host.rows.resources(instance_uuid, host.views.assignments(instance_uuid))

    def usage(self) -> Usage:
        """Read which guests use which devices. Blocks until the hypervisor has answered.

        If this host assigned a device in the answer, a later call of :meth:`assignments` has it.

        :raises HypervisorUnreachable: no answer
        """
        return self._started().views.usage()

    def state(self) -> HostState:
        """Return the state of the host: devices by state, findings of the last audit, classes and aliases.

        Reads memory, without I/O.
        """
        return self._ready().audits.state()

    def wipes(self) -> list[Wipe]:
        """List the devices being released that need a wipe, with the progress and the failures."""
        host = self._started()
        return host.wipes.of(host.rows.all())

    def wait_for_wipes(self) -> None:
        """Wait until no wipe runs in the background. A device that could not be wiped waits for the next audit.

        A service need not call it. It is for programs that end, and for tests. For the work on unproven devices, call
        :meth:`wait_for_proofs`.

        :raises ReentrantCall: a wipe would wait for this call, which comes in the middle of another one
        """
        self._started().wipes.wait()

    def wait_for_proofs(self) -> None:
        """Wait until the background neither reads unproven devices nor wipes one for an operator.

        A device that could not be proven clean waits for the next audit. As :meth:`wait_for_wipes`, the call is for
        programs that end, and for tests.

        :raises ReentrantCall: the thread that reads would wait for this call
        """
        self._started().unproven.wait()

    def providers(self, wait: bool = True) -> list[Provider]:
        """List the resource providers of this host, with total and reserved amounts.

        The totals count the devices that exist and those that can still be made; the reserved amounts count those that
        are withheld. The list leaves out a provider whose parent device is gone, and one that the resolver does not
        know yet. It is empty until the resolver knows the node's provider. ``complete`` of :meth:`state` says whether
        the whole host could be read.

        Reads memory, without I/O. After an interrupt, the call first starts the host anew, and so reads it.

        :param wait: False starts nothing, for a service that asks while it holds a lock of its own
        :raises StartIsOver: without ``wait``, after an interrupt; the next claim or audit starts the host anew
        """
        return (self._started() if wait else self._ready()).audits.providers()

    @property
    def store(self) -> Store:
        """The store of this manager, for data that a service keeps about this host.

        Once another manager of this host has started, the store refuses every write with ``HostTakenOver``, as it
        refuses the manager's own. After an interrupt it stays the same object. After :meth:`close` and
        :meth:`init_host` there is another store.
        """
        return self._ready().service_store
