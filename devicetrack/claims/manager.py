"""The claim manager: who gets which device of this host. These are the public calls; the rooms below do the work.

Each call that changes something keeps the invariant: in use by a guest ⊆ realized on the host ⊆ rows in the store ⊆
held in the ledger. What takes goes from the ledger inwards, what gives goes from the guest outwards, and the lock
covers the ledger alone.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
import os
from typing import Any

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.claims import arguments
from devicetrack.claims import metering
from devicetrack.claims import moves
from devicetrack.claims.claim import Claim
from devicetrack.claims.claim import take_off
from devicetrack.claims.host_state import HostState
from devicetrack.claims.instance_fields import Fields
from devicetrack.claims.instance_fields import InstanceFields
from devicetrack.claims.metering import metered
from devicetrack.claims.metering import Metering
from devicetrack.claims.providers import ProviderResolver
from devicetrack.claims.requests import of_request
from devicetrack.claims.running import Parts
from devicetrack.claims.running import Running
from devicetrack.claims.service import ComputeService
from devicetrack.claims.wipes import Wipe
from devicetrack.claims.withheld import Withheld
from devicetrack.compatibility.rules import Rules
from devicetrack.conf import manager as options
from devicetrack.engine.explanation import Shortage
from devicetrack.engine.findings import Finding
from devicetrack.engine.migrations import Endpoint
from devicetrack.engine.states import HeldDevice
from devicetrack.engine.withholding import Target
from devicetrack.objects import DeviceMap
from devicetrack.objects import DeviceRequest
from devicetrack.objects import InstanceResources
from devicetrack.objects import LiveMigrationCheck
from devicetrack.objects import Provider
from devicetrack.objects.migration_context import Carried
from devicetrack.objects.pci_alias import PCIAlias
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import GuestConfig
from devicetrack.objects.values import MigrationDefinitions
from devicetrack.objects.values import Record
from devicetrack.objects.values import Usage
from devicetrack.store.api import Store
from devicetrack.virt.driver import VirtDriver


class ClaimManager:
    """Decides, records, realizes and takes back the devices of one host.

    Calls that change something of an instance begin with the service's request context; reads do without. All claims
    take ``context, instance, nodename, allocations``, those for moves then ``migration``.

    Every call checks what it is given, and raises ``BadRequest`` before it has changed anything. A UUID, of an instance
    or of a migration, is a text in the canonical form: lower case, with hyphens. No value means "all of them".

    One process manages a host at a time. Once another one has started with the same store, in spite of all locks, the
    store refuses what this one writes, and from then on every call raises ``HostTakenOver``. Calls whose answer a guest
    is started or moved by raise it already before that. Every method may be called from any number of native threads;
    those that work on one instance's devices wait for one another, claims wait only for the ledger and for their
    commit.

    :param host: the host's name, unique among the hosts of the store
    :param driver: the virt driver
    :param store: where assignments last
    :param conf: the configuration; :meth:`init_host` registers ``[devicetrack]`` in it when nobody has
    :param service: the compute service's view of its instances; without it nothing is concluded about instances
    :param providers: says the UUIDs of resource providers; by default they are derived from the host's UUID
    :param nodename: the hypervisor node of this host, when its name is another than the host's
    :param instance_fields: reads and sets what instances keep of their devices; by default their attributes. A service
        whose instances take no objects of ours hands in a
        :class:`~devicetrack.claims.instance_fields.ReturnedFields`, and keeps what the calls return

    ``metering`` tells a :class:`~devicetrack.claims.metering.Meter` of the work, once it has one:
    :func:`devicetrack.metrics.register` gives it one.
    """

    def __init__(self, host: str, driver: VirtDriver, store: Store, conf: Any, service: ComputeService | None = None,
                 providers: ProviderResolver | None = None, nodename: str | None = None,
                 instance_fields: InstanceFields | None = None) -> None:
        self.host, self.nodename = host, nodename or host
        self.metering = Metering()
        self._parts = Parts(Endpoint(self.host, self.nodename), driver, store, conf, service, providers,
                            instance_fields or InstanceFields(), self.metering)
        self._pid = os.getpid()
        self._running: Running | None = None

    # -- start and stop -----------------------------------------------------------------------------------------------

    def init_host(self, context: Any, background: bool = True) -> list[Finding]:
        """Take the host, read every view and go on with what a crash interrupted. Blocks for as long as that takes.

        :param background: wipe and read devices in the background until :meth:`close`, as ``[devicetrack]
            unproven_devices`` says. A program that only runs for a short time leaves that to the service
        :returns: what differs between the views
        :raises HostInUse: another process, or another manager in this one, manages this host
        :raises UnsafePath: others than the service's user can change the state directory or its lock
        :raises HostIdentityChanged: the store knows the host as another machine
        :raises MachineHasHost: the store has devices of this machine under another host's name
        :raises SchemaMismatch, StoreError: the store cannot be used
        :raises HypervisorUnreachable: no answer, so nobody can say which devices are in use
        :raises InvalidConfiguration: an option cannot be used, or does not fit what the host has

        After an error no other call works, and the host is free for another process. On a host that runs already it is
        an audit, with the errors of :meth:`update_available_resource`.
        """
        self._check_process()
        if self._running is not None:
            return self._started().audit()
        self._running, findings = Running.start(self._parts)
        if background:
            self._running.work_in_background()
        return findings

    def close(self) -> None:
        """Let go of the host. What is held stays recorded; :meth:`init_host` begins anew."""
        running, self._running = self._running, None
        if running is not None:
            running.close()

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise exception.ForkedManager(self.host, self._pid)

    def _started(self) -> Running:
        """The host as it runs, with a ledger, for a call about all of it.

        :raises HypervisorUnreachable, StoreError: an interrupt left no ledger, and it cannot be built anew
        :raises NotReady, ForkedManager: as :meth:`_ready`
        """
        host = self._ready()
        host.rebuild.ensure()
        return host

    def _ready(self) -> Running:
        """The host as it runs. Only this method refuses calls that come too early or from another process.

        :raises NotReady: ``init_host`` has not succeeded
        :raises ForkedManager: this process is a child of the manager's
        :raises HostTakenOver: another manager of this host has started since
        """
        self._check_process()
        running = self._running
        if running is None:
            raise exception.NotReady(self.host)
        running.check()
        return running

    def _started_for(self, instance: Any, *migrations: Any) -> Running:
        """The host as it runs, for a call about an instance and these migrations.

        :raises BadRequest: one of them has no UUID
        :raises NotReady, ForkedManager: as :meth:`_ready`
        """
        host = self._ready()
        arguments.instance_uuid(instance)
        for migration in migrations:
            arguments.migration_uuid(migration)
        return host

    def _owner_for(self, instance: Any, *migrations: Any) -> Running:
        """The host as it runs, for a call whose answer starts or moves a guest. Makes one query to the store.

        :raises HostTakenOver: another manager of this host has started, also if no write of this one was refused yet
        :raises StoreError: no answer
        :raises BadRequest, NotReady, ForkedManager: as :meth:`_started_for`
        """
        host = self._started_for(instance, *migrations)
        host.store.check_epoch()
        return host

    def _open_for(self, nodename: str, instance: Any, migration: Any = None) -> Running:
        """The host as it runs, for a claim. Without a migration, the claim may have one created.

        :raises NodeUnavailable: the node is not of this host, or takes no claims at the moment
        :raises BadRequest, NotReady, ForkedManager: as :meth:`_started_for`
        :raises HypervisorUnreachable, StoreError: as :meth:`_started`
        """
        host = self._started_for(instance) if migration is None else self._started_for(instance, migration)
        host.gate.check(nodename)
        host.rebuild.ensure()
        return host

    # -- taking -------------------------------------------------------------------------------------------------------

    @metered(metering.INSTANCE_CLAIM)
    @of_request
    def instance_claim(self, context: Any, instance: Any, nodename: str,
                       allocations: Mapping[str, Any] | DeviceRequest | None, limits: Any = None) -> Claim:
        """Hold devices for an instance and record it, now. Blocks for one commit; never under our lock.

        Sets ``instance.resources``; the caller saves the instance. When setting it raises, the claim is given back.

        :param instance: ``uuid`` is read, ``flavor.extra_specs`` when there is a flavor, and of
            ``image_meta.properties`` the NUMA policy, when there is an image
        :param allocations: placement's ``{provider UUID: {'resources': {CLASS: amount}}}``, of which classes that
            are not ours are skipped, and so are providers of other hosts: the claim's ``skipped`` names those; or a
            :class:`~devicetrack.objects.DeviceRequest`; None and {} claim nothing
        :param limits: taken for the sake of callers that pass it, and not used: devices have no overcommit
        :raises NoFit: nothing free matches; nothing is held; says why
        :raises exception.UnknownProvider: all that is allocated of a class, or more than here, is at providers that
            this host does not know; or it does not know all of its own, and no flavor says what is needed; nothing is
            held
        :raises BadRequest: the request means nothing here; nothing is held
        :raises InstanceHasClaim: it holds devices already, which stay as they are
        :raises NodeUnavailable: the node is not of this host, or disabled
        :raises NothingWritten: the store refused; nothing is held
        :raises OutcomeUnknown: the commit may have happened; the devices stay held until the store has said
        """
        host = self._open_for(nodename, instance)
        demand = host.views.demand(allocations, getattr(instance, 'flavor', None), instance)
        records = host.life.take(instance.uuid, demand) if demand.items else []
        resources = host.life.resources(instance.uuid, records)
        return Claim(host.life, host.instances, instance, resources, {'resources': resources},
                     skipped=demand.skipped).keep()

    @of_request
    def narrow_claim(self, context: Any, claim: Claim, numa_nodes: Collection[int],
                     numa_affinity_policy: str | None = vocabulary.REQUIRED, wait: bool = True) -> Fields:
        """Exchange devices of a claim for such on these NUMA nodes, for a service that knows the nodes after the claim.

        For a claim that was made just now, before :meth:`realize`. Each device that is not on one of the nodes is
        exchanged for one of its resource class that is, from its provider, unless the request left every provider to
        this host; an alias means the new device too. The claim keeps its id and its order, and has the new devices in
        ``resources`` and ``fields``. New rows and the end of the old ones are one transaction, so the claim has one
        device or the other at any time, also after a crash; then the old ones go back as by
        :meth:`.claim.Claim.abort`. What of them cannot go back now waits for the audit.

        :param numa_nodes: those that the guest is pinned to; none of them means no wish
        :param numa_affinity_policy: ``required``; ``preferred``: a device stays when there is none near; ``legacy``:
            so does one that knows no node; ``socket``: so does one on a socket of the nodes; ``none`` exchanges
            nothing. None is, for functions that were asked for by an alias, the policy of flavor, image or alias, and
            ``preferred`` for all others
        :param wait: without it what has to be wiped of the old devices is wiped in the background
        :returns: what it set on the instance; nothing when nothing was exchanged
        :raises NoFit: there is none near; the claim has what it had
        :raises BadRequest: these are no nodes or no policy, or the claim is not this host's
        :raises InstanceNotClaimed, InvalidTransition: the claim was given back, or its guest has been started
        :raises NothingWritten: the store refused; the claim has what it had
        :raises OutcomeUnknown: the commit may have happened; all of the devices stay held until the store has said
        """
        host = self._started()
        nodes, policy = arguments.check_affinity(numa_nodes, numa_affinity_policy)
        if not isinstance(claim, Claim):
            raise exception.BadRequest('claim', type(claim).__name__, 'must be what a claim call returned')
        if claim.is_over or not nodes or policy == vocabulary.NONE:
            return {}
        fields = host.narrowing.narrow(claim, nodes, policy, wait)
        host.wipes.go_on()
        return fields

    def disable_node(self, nodename: str, reason: str) -> None:
        """Refuse new claims on a node, until :meth:`enable_node` or :meth:`close`.

        The decision is the service's, which says it again after each start.

        :raises NodeUnavailable: the node is not of this host
        """
        self._ready().gate.disable(nodename, reason)

    def enable_node(self, nodename: str) -> None:
        """Take claims on a node again.

        :raises NodeUnavailable: the node is not of this host
        """
        self._ready().gate.enable(nodename)

    def explain(self, allocations: Mapping[str, Any] | DeviceRequest | None, instance: Any = None) -> list[Shortage]:
        """Say for each part of a request which devices are free, and why the others cannot be had. Claims nothing.

        :raises BadRequest: as :meth:`instance_claim`
        """
        host = self._started()
        demand = host.views.demand(allocations, getattr(instance, 'flavor', None), instance)
        return host.ledger.shortages(demand, everything=True)

    # -- making it real -----------------------------------------------------------------------------------------------

    @metered(metering.REALIZE)
    @of_request
    def realize(self, context: Any, instance: Any, before_move: bool = False) -> InstanceResources:
        """Make the instance's devices ready for its guest. Slow; call it outside the service's own locks.

        Idempotent: call it before every start of the guest. Details that are new (an IOMMU group, this boot's path)
        are recorded. A move that the service says is over ends here first, when nobody told this host. A parent that
        turns out to be full is read again and another device chosen, once.

        :param before_move: while the instance moves to other devices of this host: those that it had before, not the
            new ones; none if it had none
        :raises InstanceNotClaimed: it was released: its devices are on their way back
        :raises RowsMissing: the store is older than the instance's guest, which has devices that it does not know of
        :raises MigrationUndecided: the instance moves on this host, or did, and the service does not say which
        :raises StoreError: a move that is over could not be ended
        :raises DeviceError, ParentFull, NoFit: a device could not be made ready; all of them stay held and recorded
        :raises HypervisorUnreachable: no answer; devices may be half made, the next call goes on
        """
        host, uuid = self._started_for(instance), instance.uuid
        with host.rows.working(uuid):
            host.store.check_epoch()
            host.gate.check_complete(uuid)
            records = host.rows.of_instance(uuid)
            if host.moves.settle_ended(uuid, records, before_move):
                records = host.rows.of_instance(uuid)
            used = host.life.used_by_guest(records, before_move)
            if host.life.is_released(records):
                raise exception.InstanceNotClaimed(uuid, 'not on its way back')
            real = host.life.realize(used)
            host.definitions.bring_one(uuid)
            return host.life.resources(uuid, real)

    def guest_config(self, instance: Any, before_move: bool = False) -> GuestConfig:
        """Return the devices for the guest's definition, with the paths of this boot, in the order of the request.

        Besides them an element for the definition's metadata. Both are empty for an instance without devices. Asks
        about this instance alone: no other guest is read.

        Make it the last call before the guest starts. It asks the store twice whether another manager of this host has
        started: before it reads anything, and again when the answer is made. So a guest cannot start by an answer that
        such a manager has made worthless meanwhile.

        :param before_move: as :meth:`realize`
        :raises DeviceGone: a device is not there or is another one of its name
        :raises HostTakenOver: another manager of this host has started: start no guest, and remove none
        :raises RowsMissing: as :meth:`realize`
        """
        host = self._owner_for(instance)
        host.gate.check_complete(instance.uuid)
        used, beside = host.life.devices_of_guest(instance.uuid, before_move)
        config = GuestConfig()
        if used or beside:
            flavor = getattr(getattr(instance, 'flavor', None), 'name', None)
            config = self._parts.driver.guest_config(used, flavor, beside)
        host.store.check_epoch()                # a manager that started meanwhile may have taken these devices back
        return config

    def rewrite_definition(self, instance: Any, definition: str, before_move: bool = False) -> str:
        """Write this boot's device addresses into a definition that the service has kept since another boot.

        :meth:`realize` does that to the definition that the hypervisor has. This one is for a service that keeps a
        definition elsewhere and is about to start the guest from it. Call it after :meth:`realize`, and then
        :meth:`check_definition` with what it returned: a definition that is of this boot, or does not say of which, is
        returned as it is. The text holds secrets of the guest: never log it.

        :param before_move: as :meth:`realize`
        :returns: the definition with the same devices in the same places, and with our record of them
        :raises InvalidDocument: it is of another boot, and cannot be read, does not say which element was which device,
            or names others than the instance has
        :raises DeviceGone: a device is not there or is another one of its name
        :raises RowsMissing: as :meth:`realize`
        """
        host = self._owner_for(instance)
        arguments.check_text('definition', definition)
        host.gate.check_complete(instance.uuid)
        rewritten = host.definitions.rewrite(instance.uuid, definition, before_move)
        host.store.check_epoch()                # as in guest_config
        return rewritten

    def check_definition(self, instance: Any, definition: str, before_move: bool = False) -> None:
        """Check that a definition names all devices of the instance, and no device of another.

        For a service that starts guests from definitions that it has kept, or whose definitions others may change. The
        addresses in it must be those of this boot.

        :param definition: what the hypervisor is about to get
        :param before_move: as :meth:`realize`
        :raises DefinitionRefused: a device of the instance is missing, or it names a device that another instance has,
            or that this host hands out; ``reason`` says which
        :raises InvalidDocument: it cannot be read
        :raises DriverError, HypervisorUnreachable, StoreError: what it names, or who has it, is unknown
        """
        host = self._owner_for(instance)
        records = host.rows.of_instance(instance.uuid)
        has = {record.key for record in host.life.used_by_guest(records, before_move)}
        named = self._parts.driver.devices_in(arguments.check_text('definition', definition))
        for key in sorted(has - named):
            raise exception.DefinitionRefused(instance.uuid, *key, 'the instance has it, and it is missing')
        for key in sorted(named - has):
            # A device that neither has a row nor may get one is the service's own business, as an accelerator's is.
            if host.ledger.device(key) is not None:
                raise exception.DefinitionRefused(instance.uuid, *key, 'the instance does not have it')
        host.store.check_epoch()                # as in guest_config

    @of_request
    def started(self, context: Any, instance: Any, before_move: bool = False) -> InstanceResources:
        """Record that the guest runs on its devices. If it is never called, the audit settles it.

        Sets ``instance.resources``, and returns them. When the instance moved to here, the new devices are its current
        ones from now on; those that it left on this host stay its own until the move is confirmed.

        :param before_move: as :meth:`realize`
        :raises InvalidTransition: its devices are on their way back
        """
        host, uuid = self._started_for(instance), instance.uuid
        host.life.note_start(uuid)              # before the store is asked: it may not answer, and the guest runs
        host.store.check_epoch()
        with host.rows.working(uuid):
            resources = host.life.resources(uuid, host.life.start(uuid, before_move))
            host.instances.set(instance, {'resources': resources})
            return resources

    @of_request
    def adopt(self, context: Any, instance: Any, devices: Iterable[DeviceKey]) -> InstanceResources:
        """Record devices that the instance's guest has already, as the service says. Idempotent, all or nothing.

        For a host that ran guests before it used this library: the devices of these guests have no rows, and no claim
        gets them. From this call on the instance owns the devices, as if it had claimed them and started. No guest is
        touched. Sets ``instance.resources``.

        :param devices: kind and identifier of each, in the order in which the guest's request names them
        :returns: what the instance has here now
        :raises NotAdopted: the host has no such healthy device, another instance has it, another domain names it, the
            service's own view says that the instance is not here, or one of these cannot be told; ``reason`` says which
        :raises RowsMissing: as :meth:`realize`
        :raises DriverError, HypervisorUnreachable, StoreError: no answer; nothing was recorded
        """
        host, uuid = self._owner_for(instance), instance.uuid
        keys = [DeviceKey(arguments.check_text('kind', kind), arguments.check_text('identifier', identifier))
                for kind, identifier in devices]
        host.gate.check_complete(uuid)
        with host.rows.working(uuid):
            host.repairs.adopt(uuid, keys)
            resources = host.life.resources(uuid, host.rows.there(uuid))
            host.instances.set(instance, {'resources': resources})
            return resources

    @of_request
    def rebooted(self, context: Any, instance: Any) -> None:
        """Record that a guest rebooted, or may have, without being started anew.

        A guest examines its devices when it boots. From then on it may rely on features of this host's driver that its
        earlier host lacks, so it cannot go back there while it runs. Call it for every reboot that the service makes
        and for those that the hypervisor tells of (libvirt: ``VIR_DOMAIN_EVENT_ID_REBOOT``). Idempotent.

        :raises StoreError: nothing was noted
        """
        host = self._started_for(instance)
        with host.rows.working(instance.uuid):
            host.life.note_reboot(instance.uuid)

    # -- giving back --------------------------------------------------------------------------------------------------

    @metered(metering.RELEASE)
    @of_request
    def release(self, context: Any, instance: Any, wait: bool = True) -> Fields:
        """Give back all devices of the instance on this host, old and new ones during a move. Idempotent.

        Sets ``instance.resources`` to None. Call it after the guest is gone. Blocks while devices are removed or wiped,
        which for persistent memory takes as long as writing it.

        :param wait: without it what has to be wiped is wiped in the background, and is held until then: :meth:`wipes`
            says how far that is, and audits report what of it fails
        :returns: what it set on the instance
        :raises DeviceInUse: a domain still names a device; what is not in use was given back. Without ``wait`` only
            for devices that are not wiped
        :raises DriverError, StoreError: not everything was given back; the audit goes on with it
        """
        host, released, fields = self._started_for(instance), False, Fields(resources=None)
        while not released:
            if wait:
                host.wipes.wait_for(instance.uuid)
            with host.rows.working(instance.uuid):
                if wait and host.wipes.is_wiping(instance.uuid):
                    continue                    # an audit has just begun with it
                host.life.release(host.rows.of_instance(instance.uuid), wait)
                host.instances.set(instance, fields)
                released = True
        host.wipes.go_on()
        return fields

    @of_request
    def abort_instance_claim(self, context: Any, instance: Any, claim_id: str | None = None,
                             migration_uuid: str | None = None) -> Fields:
        """Give back the devices of a claim: all that the instance holds here, or only those that ``claim_id`` took.

        What a claim for a move made old is current again. Sets ``instance.resources`` to what the instance had before
        the claim.

        :returns: what it set on the instance
        :raises DriverError, StoreError: as :meth:`release`
        """
        if claim_id is None:
            return self.release(context, instance)
        host = self._started_for(instance)
        arguments.check_text('claim_id', claim_id)
        if migration_uuid is not None:
            arguments.check_uuid('migration_uuid', migration_uuid)
        host.life.abort(instance.uuid, claim_id, migration_uuid)
        return take_off(host.instances, instance, host.instances.read(instance), claim_id, migration_uuid)

    # -- moving -------------------------------------------------------------------------------------------------------

    @metered(metering.RESIZE_CLAIM)
    @of_request
    def resize_claim(self, context: Any, instance: Any, nodename: str,
                     allocations: Mapping[str, Any] | DeviceRequest | None, migration: Any, flavor: Any = None,
                     limits: Any = None, *, numa_topology: Any = None, pci_devices: Any = None,
                     pci_requests: Any = None) -> Claim:
        """Claim at the destination of a resize or cold migration, which may be this very host. Blocks for one commit.

        The new rows and the migration context are written in one transaction; when the instance moves on this host,
        that its present devices are old is written in it too. Sets ``instance.migration_context``;
        ``instance.resources`` stays what it was until the guest runs here.

        :param allocations: those of the instance at its destination, as :meth:`instance_claim` takes them
        :param migration: ``uuid, id, source_compute, source_node`` are read; None has the service create one
        :param flavor: the flavor that the instance gets; its ``extra_specs`` order what ``allocations`` hold, and are
            the least that they must hold; not read with a :class:`~devicetrack.objects.DeviceRequest`
        :param limits: as :meth:`instance_claim`
        :param numa_topology: the topology that the service pinned the guest to: a versioned object of its own with
            ``cells``, each with the ``id`` of its host NUMA node; devices follow it
        :param pci_devices: for a service that tracks PCI functions itself, the list of those that the instance gets: a
            versioned object of its own, for the migration context, as ``instance.pci_devices`` is for what it had
        :param pci_requests: likewise the requests that they are for, beside ``instance.pci_requests``
        :returns: a claim; its block left by an error gives back what it took, and makes current what it made old
        :raises NoFit, BadRequest, NodeUnavailable, NothingWritten, OutcomeUnknown: as :meth:`instance_claim`
        :raises InstanceHasStaleRows: an earlier move of the instance is not over here; nothing was changed
        :raises InstanceHasClaim: this migration has its claim here already
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

        :param check: what the destination gave; None from one of an older release
        :param post_copy: whether the migration may be switched to post-copy
        :raises LiveMigrationUnsupported: no running guest with such a device leaves this host
        :raises PostCopyRefused: with devices there is no post-copy
        :raises BadRequest: the check is of another instance
        :raises HypervisorUnreachable, StoreError: no answer
        """
        return self._started_for(instance).live.check_at_source(instance, check, post_copy)

    @metered(metering.LIVE_MIGRATION_CLAIM)
    @of_request
    def live_migration_claim(self, context: Any, instance: Any, nodename: str,
                             allocations: Mapping[str, Any] | DeviceRequest | None, migration: Any,
                             limits: Any = None, *, numa_topology: Any = None,
                             check: LiveMigrationCheck | None = None) -> Claim:
        """Claim at the destination of a live migration: a partner for each device that the guest runs on.

        Which those are is read from ``instance.resources``. Partners are of one resource class, and compatible by what
        both hosts declare; as many devices find one as can.

        :param check: what :meth:`check_can_live_migrate_source` gave. Without it, as from a source of an older
            release, nothing is known of the devices but their types, and their migration versions are unknown
        :raises NoDevicePair: a device has no partner among what was free; nothing is held
        :raises LiveMigrationUnsupported: this host takes no running guest with such a device; nothing is held
        :raises BadRequest: also when ``instance.resources`` does not have as many devices as are allocated here, or
            others than ``check``
        :raises Exception: all others as :meth:`resize_claim`
        """
        host = self._open_for(nodename, instance, migration)
        demand = host.views.demand(allocations, getattr(instance, 'flavor', None), instance)
        return host.live.claim(context, instance, migration, demand, numa_topology, check)

    @metered(metering.REBUILD_CLAIM)
    @of_request
    def rebuild_claim(self, context: Any, instance: Any, nodename: str,
                      allocations: Mapping[str, Any] | DeviceRequest | None, migration: Any = None,
                      limits: Any = None, *, numa_topology: Any = None, pci_devices: Any = None,
                      pci_requests: Any = None) -> Claim:
        """Claim for an instance that is evacuated to this host. Its allocations name both hosts, as a rule.

        A rebuild in place (no migration, and the instance is on this host) takes nothing: the claim has the devices
        that the instance has, and giving it up gives none of them back.

        :raises Exception: as :meth:`resize_claim`
        """
        host = self._open_for(nodename, instance, migration)
        if migration is None and getattr(instance, 'host', None) == self.host:
            return host.moves.claim_in_place(instance)
        demand = host.views.demand(allocations, getattr(instance, 'flavor', None), instance)
        return host.moves.claim(context, instance, migration, moves.EVACUATION, demand,
                                Carried(numa_topology, pci_devices, pci_requests))

    @of_request
    def drop_move_claim_at_source(self, context: Any, instance: Any, migration: Any) -> Fields:
        """Confirm a move: give back the devices that the instance left on this host. Idempotent.

        On one host the new devices are at rest from the same transaction on. Call it after the guest that ran on the
        old devices is gone, or runs on the new ones. Sets ``instance.migration_context`` to None.

        :returns: what it set on the instance
        :raises DriverError, StoreError: as :meth:`release`
        """
        return self._started_for(instance, migration).moves.drop_at_source(instance, migration)

    @of_request
    def drop_move_claim_at_dest(self, context: Any, instance: Any, migration: Any) -> Fields:
        """Revert or roll back a move: give back the devices that it claimed on this host. Idempotent.

        On one host the old devices are current again from the same transaction on, their contents untouched. Sets
        ``instance.resources`` to what the instance had, where that is known, and ``instance.migration_context`` to
        None.

        :returns: what it set on the instance
        :raises BadRequest: the service says that the migration is done; nothing was changed
        :raises DeviceInUse: the guest's definition still names the new devices; they go back at an audit after it is
            defined anew
        :raises DriverError, StoreError: as :meth:`release`
        """
        return self._started_for(instance, migration).moves.drop_at_destination(instance, migration.uuid)

    @of_request
    def drop_move_claim(self, context: Any, instance: Any, nodename: str, flavor: Any = None,
                        prefix: str = moves.NEW) -> Fields:
        """End a move for a caller without the migration: the prefix ``new_`` reverts it here, ``old_`` confirms it.

        The migration is that of ``instance.migration_context``, or the only one that rows of the instance name here.

        :returns: what it set on the instance
        :raises NodeUnavailable: the node is not of this host
        :raises Exception: as :meth:`drop_move_claim_at_dest`
        """
        host = self._started_for(instance)
        host.gate.check_name(nodename)
        return host.moves.drop(instance, prefix)

    @of_request
    def finish_evacuation(self, context: Any, instance: Any, nodename: str, migration: Any) -> Fields:
        """The evacuated guest runs here. Sets ``instance.resources``, and ``instance.migration_context`` to None.

        :returns: what it set on the instance
        """
        host = self._started_for(instance)
        host.gate.check_name(nodename)
        return host.moves.finish_evacuation(instance, migration)

    @of_request
    def update_usage(self, context: Any, instance: Any, nodename: str, sign: int = 1) -> None:
        """Take note of a change of an instance on this host: a migration that its context names takes it away.

        :param sign: taken for the sake of callers that pass it, and not used
        """
        host = self._started_for(instance)
        host.gate.check_name(nodename)
        host.moves.update_usage(instance)

    def device_map(self, instance: Any, migration: Any) -> DeviceMap:
        """At the destination of a live migration, after :meth:`realize`: what each device of the guest becomes here.

        It is for the source, on the wire: see :meth:`migration_definitions`. With any device in it post-copy is not
        allowed. It holds paths of this boot of this host: after a boot the migration is over, and a claim for another
        one gives another map.

        :raises InstanceNotClaimed: the migration has no claim here
        :raises NoDevicePair: a device has no partner; the claim is the caller's to drop
        :raises DeviceGone: a device is not there
        """
        return self._owner_for(instance, migration).live.device_map(instance, migration)

    @of_request
    def migration_definitions(self, context: Any, instance: Any, migration: Any,
                              device_map: DeviceMap, *, post_copy: bool = False,
                              definition: str | None = None) -> MigrationDefinitions:
        """At the source of a live migration: the guest's definitions for the destination, live and persistent.

        Each device is replaced by its partner, in the same order; nothing else is changed. The devices of this host
        are old from now on, until the move is over or undone.

        :param post_copy: whether the migration may be switched to post-copy
        :param definition: the guest's live definition, in which the service has changed other things for the
            destination already; then there is no persistent one
        :raises LiveMigrationUnsupported: no running guest with such a device leaves this host; nothing was changed
        :raises PostCopyRefused: with devices there is no post-copy; nothing was changed
        :raises NoDevicePair: the guest rebooted since it was checked and may have seen more; nothing was changed
        :raises DomainGone: no domain of the instance runs here
        :raises InvalidDocument: a device in its definition has no partner in the map, or cannot be read
        """
        return self._owner_for(instance, migration).live.definitions(instance, migration, device_map, post_copy,
                                                                      definition)

    # -- what operators ask for ---------------------------------------------------------------------------------------

    def cordon(self, kind: str, name: str, parent: bool = False, reason: str = '') -> Withheld:
        """Let nobody have a device from now on, or with ``parent`` anything that a parent has or could make.

        Whoever has it keeps it. It lasts, over restarts too and while the device is away, until :meth:`uncordon`.
        Idempotent.

        :returns: why it is withheld, and the rows of those who have it still
        :raises BadRequest: this host has no such device or parent
        :raises NothingWritten: it is not cordoned
        :raises OutcomeUnknown: it is cordoned, and the next audit sees that the store knows
        """
        return self._started().withheld.cordon(Target.named(kind, name, parent), reason)

    def uncordon(self, kind: str, name: str, parent: bool = False) -> Withheld:
        """End what :meth:`cordon` began. Idempotent. Other reasons stay.

        :raises BadRequest: it is not cordoned, and this host has no such device or parent
        :raises StoreError: it stays cordoned
        """
        return self._started().withheld.uncordon(Target.named(kind, name, parent))

    def admit(self, kind: str, identifier: str, wipe: bool = False) -> Withheld:
        """End the doubt about a device that was forgotten and came back: somebody knows that it is clean.

        A device that keeps bytes is read through after that, in the background, unless it is proven clean.

        :param wipe: have a device that was forgotten, or that is unproven, wiped, whatever is on it. That goes on in
            the background; the device is admitted when it is proven clean, and a restart ends the wish
        :raises BadRequest: it was not forgotten; with ``wipe``, and is not unproven either
        :raises NotAdmitted: the host does not have it, somebody owns or uses it, or one of these cannot be told
        :raises HypervisorUnreachable, StoreError: no answer; it stays withheld
        """
        host = self._started()
        host.store.check_epoch()                # a wipe that is requested begins before anything is written
        return host.unproven.admit(DeviceKey(kind, identifier), wipe)

    def list_withheld(self) -> list[Withheld]:
        """Every device and parent that is withheld, why, and who has it still."""
        return self._started().withheld.all()

    def retire(self, kind: str, identifier: str, instance_uuid: str, reason: str = '') -> Withheld:
        """End the row of a device that is on its way back and cannot be wiped, and never hand the device out again.

        It is withheld as retired, over restarts too, until :meth:`admit`. Nothing is wiped. Idempotent.

        :param instance_uuid: the device's owner, to confirm that this device is meant
        :returns: why it is withheld; its ``changed`` is False when it was retired already
        :raises NotAssigned: nobody has the device, and it is not retired
        :raises NotRetired: it is not on its way back, has another owner, is being wiped just now, a domain names it, or
            one of these cannot be told; nothing was changed
        :raises BadRequest: a name is no text, ``instance_uuid`` no UUID, or people could not read the reason
        :raises HypervisorUnreachable, StoreError: no answer; it may be withheld as retired, and has its row
        """
        host = self._started()
        key = DeviceKey(arguments.check_text('kind', kind), arguments.check_text('identifier', identifier))
        return host.repairs.retire(key, arguments.check_uuid('instance_uuid', instance_uuid), reason)

    # -- audit and questions ------------------------------------------------------------------------------------------

    def update_available_resource(self, context: Any, nodename: str, startup: bool = False) -> list[Finding]:
        """The periodic audit: read every view again, go on with interrupted work, say what differs.

        Frees nothing that any view says is in use, and nothing on an unknown view. Carries out what commands requested.

        :param startup: taken for the sake of callers that pass it, and not used
        :raises NodeUnavailable: the node is not of this host
        :raises HypervisorUnreachable, StoreError: no answer; nothing was changed
        """
        host = self._started()
        host.gate.check_name(nodename)
        return host.audit()

    def resources_of(self, instance_uuid: str) -> InstanceResources:
        """What an instance holds on this host, as it is recorded."""
        host = self._started()
        arguments.check_uuid('instance_uuid', instance_uuid)
        return host.life.resources(instance_uuid, host.rows.of_instance(instance_uuid))

    def held(self, instance_uuid: str | None = None) -> tuple[HeldDevice, ...]:
        """What an instance holds on this host, or without one all instances, by the manager's memory. No I/O.

        For a service that asks often, or under a lock of its own: it takes microseconds, and some more for each device.
        Devices come in no order, in every role, and on their way back too; values that do not change. Rows are the
        authority and this is a copy of them: in the middle of a claim it has devices that no row has yet, and a row
        that somebody else wrote is in it from the next audit on. :meth:`resources_of` reads the rows.

        Only after an interrupt that left no memory it is built anew first, from the rows and the host, as for a claim.
        """
        host = self._started()
        if instance_uuid is not None:
            arguments.check_uuid('instance_uuid', instance_uuid)
        return host.held(instance_uuid)

    def state(self) -> HostState:
        """The host in numbers, for metrics: devices by state, and what the last audit found. Without a query."""
        return self._ready().state()

    @property
    def state_path(self) -> str:
        """The host's state directory. It is known before :meth:`init_host`, too."""
        options.register(self._parts.conf)
        return self._parts.state_path

    def wipes(self) -> list[Wipe]:
        """The devices on their way back that are wiped before anybody gets them: how far that is, and what failed."""
        host = self._started()
        return host.wipes.of(host.rows.all())

    def wait_for_wipes(self) -> None:
        """Wait until nothing is wiped in the background any more. What could not be wiped waits for the next audit.

        No service has to: it is for those that end, and for tests.
        """
        self._ready().wipes.wait()

    def providers(self, wait: bool = True) -> list[Provider]:
        """The resource providers of this host: what exists and can still be made, and what of it nobody may have.

        One whose parent device is not there any more is not among them, nor one that the resolver does not name yet,
        and none is until it names the node's. :attr:`complete` says whether all of the host could be read.

        By the manager's memory, without I/O. Only after an interrupt that left no memory it is built anew first, from
        the rows and the host, as for a claim.

        :param wait: without it nothing is built anew: for a service that asks under a lock of its own
        :raises LedgerDiscarded: without ``wait``, when an interrupt left no memory. The next claim or audit builds it
        """
        return (self._started() if wait else self._ready()).providers()

    def placed(self) -> tuple[list[Record], Usage]:
        """Who has which device: the host's rows, and what guests use.

        A row has the provider and class that its device is counted at now, whatever its claim knew.

        :raises HypervisorUnreachable, StoreError: no answer
        """
        return self._started().placed()

    @property
    def complete(self) -> bool:
        """Whether all of the host could be read when it was last read."""
        return self._ready().views.providers.complete

    @property
    def classes(self) -> frozenset[str]:
        """The resource classes that count devices of this host."""
        return self._ready().views.providers.classes

    @property
    def aliases(self) -> Mapping[str, PCIAlias] | None:
        """The names by which flavors ask for PCI functions of this host; None when its driver hands out none."""
        return self._ready().views.providers.aliases

    @property
    def rules(self) -> Rules:
        """What the deployment decides about devices of guests that move while they run."""
        return self._ready().declarations.deployment_rules

    @property
    def store(self) -> Store:
        """The store, for what a service keeps of this host beside its manager, from this start on.

        Whatever it writes there is refused with ``HostTakenOver`` once another manager of this host has started, as all
        that the manager writes. Another start, by :meth:`close` and :meth:`init_host`, has another one.
        """
        return self._ready().store

    @property
    def host_uuid(self) -> str:
        """The host's UUID in the store."""
        return self._ready().host_uuid
