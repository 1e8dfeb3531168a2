"""Every error of devicetrack.

One base and one class for each thing that a caller may do next. The facts are attributes, the text is made from
them, and ``args`` rebuild the error from a pickle. What holds after an error is said in its docstring.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any


class DeviceTrackError(Exception):
    """Base of every error that this library raises on purpose."""


# -- configuration ----------------------------------------------------------------------------------------------------


class InvalidConfiguration(DeviceTrackError):
    """An option has a value that cannot be used. Nothing was started; mend the option and start again."""

    def __init__(self, option: str, value: object, reason: str) -> None:
        super().__init__(option, value, reason)
        self.option, self.value, self.reason = option, value, reason

    def __str__(self) -> str:
        return f'{self.option} = {self.value}: {self.reason}'


# -- the manager and its host -----------------------------------------------------------------------------------------


class NotReady(DeviceTrackError):
    """``init_host`` has not succeeded yet. Nothing was done; call it first."""

    def __init__(self, host: str) -> None:
        super().__init__(host)
        self.host = host

    def __str__(self) -> str:
        return f'the claim manager of host {self.host} is not ready: call init_host first'


class HostInUse(DeviceTrackError):
    """Another manager has this host, or a host with the same state directory: in another process, or in this one.

    Nothing was read or changed; stop it, or ask it. A manager of this process lets go with its ``close()``.
    """

    def __init__(self, host: str, path: str) -> None:
        super().__init__(host, path)
        self.host, self.path = host, path

    def __str__(self) -> str:
        return (f'another process manages host {self.host}, or another host with the same state_path, or a manager '
                f'of this process was not closed: it holds {self.path}')


class HostIdentityChanged(DeviceTrackError):
    """The store knows a host of this name that is another machine. Nothing was changed.

    Two machines with one name would hand out each other's devices. Give this machine its own host name; or, when it is
    the same machine and its id is new, give it back the old id.
    """

    def __init__(self, host: str) -> None:
        super().__init__(host)
        self.host = host

    def __str__(self) -> str:
        return (f'the store knows host {self.host} as another machine: if it is this one with a new id, name a file '
                f'that has the old id in [devicetrack] machine_id_path (the guide to recovery says more); otherwise '
                f'give this machine a name of its own')


class MachineHasHost(DeviceTrackError):
    """This machine has devices in the store under another name. Nothing was changed.

    Under both names the same devices would be handed out twice. ``rows`` says how many the other name has.
    """

    def __init__(self, host: str, other: str, rows: int) -> None:
        super().__init__(host, other, rows)
        self.host, self.other, self.rows = host, other, rows

    def __str__(self) -> str:
        return (f'this machine is host {self.other} in the store and has devices there ({self.rows}), which host '
                f'{self.host} would hand out again: start it as {self.other}; to call it {self.host} from now on, '
                f'first release every instance of "devicetrack-manage assignment list --host {self.other}", or, if '
                f'recover was told a wrong name, do as the guide to recovery says; a second host on one machine needs '
                f'devices, a state_path and a store of its own')


class UnknownHost(DeviceTrackError):
    """The store has no host of this name. Nothing was read of it; ``known`` has the names that there are.

    ``host`` is None when no name was given and the store knows this machine by none.
    """

    def __init__(self, host: str | None, known: Iterable[str]) -> None:
        self.host, self.known = host, tuple(known)
        super().__init__(self.host, self.known)

    def __str__(self) -> str:
        known = f'it knows {", ".join(self.known) or "none"}'
        if self.host is None:
            return f'the store knows this machine as no host; {known}: say with --host which one is meant'
        return f'the store has no host {self.host}; {known}'


class AmbiguousHost(DeviceTrackError):
    """This machine is several hosts in the store, and none was named. Nothing was read; name one of ``known``."""

    def __init__(self, known: Iterable[str]) -> None:
        self.known = tuple(known)
        super().__init__(self.known)

    def __str__(self) -> str:
        return f'this machine is several hosts in the store ({", ".join(self.known)}): name one with --host'


class NotThisMachine(DeviceTrackError):
    """The host is another machine than the one this runs on. Nothing was read; ask there.

    Its rows beside the devices of this machine would only show differences that do not exist.
    """

    def __init__(self, host: str) -> None:
        super().__init__(host)
        self.host = host

    def __str__(self) -> str:
        return (f'host {self.host} is another machine than this one: run the command there; if it is this one with a '
                f'new id, name a file that has the old id in [devicetrack] machine_id_path')


class GuestsOfSeveralHosts(DeviceTrackError):
    """The guests of one hypervisor record that they belong to different hosts. Nothing was written.

    ``hosts`` has the hosts' UUIDs, and how many guests name each. One of them is this host; a guest that names another
    was defined by hand, or left behind by a move.
    """

    def __init__(self, host: str, hosts: Mapping[str, int]) -> None:
        self.host, self.hosts = host, dict(hosts)
        super().__init__(self.host, self.hosts)

    def __str__(self) -> str:
        hosts = ', '.join(f'{uuid} ({guests})' for uuid, guests in sorted(self.hosts.items()))
        return (f'the guests on host {self.host} record different hosts as theirs: {hosts}: see which is this one, and '
                'move or undefine the guests that belong to another')


class UnknownOrder(DeviceTrackError):
    """The store has no such order. It may have been answered and dropped: of a host's answers the newest are kept."""

    def __init__(self, order: str) -> None:
        super().__init__(order)
        self.order = order

    def __str__(self) -> str:
        return f'there is no order {self.order}: see devicetrack-manage order list'


class NotForgotten(DeviceTrackError):
    """A device must not be forgotten as it is now. Its row stays; ``reason`` says why, and what to do first."""

    def __init__(self, device: str, reason: str) -> None:
        super().__init__(device, reason)
        self.device, self.reason = device, reason

    def __str__(self) -> str:
        return f'device {self.device} is not forgotten: {self.reason}'


class NotAdmitted(DeviceTrackError):
    """A device that was forgotten cannot be handed out as it is now. It stays withheld; ``reason`` says why."""

    def __init__(self, device: str, reason: str) -> None:
        super().__init__(device, reason)
        self.device, self.reason = device, reason

    def __str__(self) -> str:
        return f'device {self.device} stays withheld: {self.reason}'


class ForkedManager(DeviceTrackError):
    """A claim manager was called in a forked child. Nothing was done; only the process that made it may call it."""

    def __init__(self, host: str, owner_pid: int) -> None:
        super().__init__(host, owner_pid)
        self.host, self.owner_pid = host, owner_pid

    def __str__(self) -> str:
        return f'the claim manager of host {self.host} belongs to process {self.owner_pid}, not to a child of it'


class NodeUnavailable(DeviceTrackError):
    """The node is not one of this host's, or is disabled. Nothing was held; choose another node."""

    def __init__(self, nodename: str, reason: str) -> None:
        super().__init__(nodename, reason)
        self.nodename, self.reason = nodename, reason

    def __str__(self) -> str:
        return f'node {self.nodename} takes no claims: {self.reason}'


# -- requests ---------------------------------------------------------------------------------------------------------


class BadRequest(DeviceTrackError):
    """The request means nothing, here or anywhere. Nothing was held; the caller must ask otherwise."""

    def __init__(self, where: str, value: object, reason: str) -> None:
        super().__init__(where, value, reason)
        self.where, self.value, self.reason = where, value, reason

    def __str__(self) -> str:
        return f'{self.where}: {self.value!r}: {self.reason}'


class UnknownProvider(BadRequest):
    """The allocations name a provider that this host does not have. Nothing was held."""

    def __init__(self, provider_uuid: str, resource_classes: Iterable[str], known: Iterable[str]) -> None:
        self.provider_uuid = provider_uuid
        self.resource_classes = tuple(resource_classes)
        self.known = tuple(known)
        super().__init__(
            'allocations', provider_uuid,
            f'no provider of this host has this UUID; it was asked for {", ".join(self.resource_classes)}; '
            f'this host has {", ".join(self.known) or "none"}')
        self.args = (self.provider_uuid, self.resource_classes, self.known)


class NoFit(DeviceTrackError):
    """Nothing free matches. Nothing is held.

    ``shortages`` says why, one :class:`devicetrack.engine.explanation.Shortage` for each part of the request that
    could not be had.
    """

    def __init__(self, shortages: Sequence[Any]) -> None:
        super().__init__(tuple(shortages))
        self.shortages = tuple(shortages)

    def __str__(self) -> str:
        return '; '.join(str(shortage) for shortage in self.shortages)


class InstanceHasClaim(DeviceTrackError):
    """The instance holds devices already. Nothing more was held; ``held`` names what it has."""

    def __init__(self, instance_uuid: str, held: Iterable[tuple[str, str | None]]) -> None:
        self.instance_uuid, self.held = instance_uuid, tuple(held)
        super().__init__(self.instance_uuid, self.held)

    def __str__(self) -> str:
        held = ', '.join(f'{kind} {identifier or "not named yet"}' for kind, identifier in self.held)
        return f'instance {self.instance_uuid} has a claim already: {held or "one that is being made"}'


class InstanceHasStaleRows(InstanceHasClaim):
    """An earlier move of the instance is not over on this host, so it cannot move here. Nothing was changed.

    The compute service says when a migration is over; the next audit then gives back what it left.
    """

    def __str__(self) -> str:
        held = ', '.join(f'{kind} {identifier}' for kind, identifier in self.held)
        return (f'instance {self.instance_uuid} has devices here that an earlier stay or move left: {held}; '
                f'the audit gives them back when the compute service says that it is over')


class MigrationSuperseded(DeviceTrackError):
    """A newer migration of the instance has a claim here. Nothing was changed; this one has failed."""

    def __init__(self, migration_uuid: str, newer_uuid: str) -> None:
        super().__init__(migration_uuid, newer_uuid)
        self.migration_uuid, self.newer_uuid = migration_uuid, newer_uuid

    def __str__(self) -> str:
        return f'migration {self.migration_uuid} is older than {self.newer_uuid}, which has a claim here'


class MigrationUndecided(DeviceTrackError):
    """The instance moves on this host, or its move failed, and the compute service does not say which.

    Its guest is to have the new devices in the one case, in the other the old ones with its data. Nothing was done; try
    again when the service answers.
    """

    def __init__(self, instance_uuid: str, migration_uuid: str) -> None:
        super().__init__(instance_uuid, migration_uuid)
        self.instance_uuid, self.migration_uuid = instance_uuid, migration_uuid

    def __str__(self) -> str:
        return (f'the guest of instance {self.instance_uuid} is to have its new devices or, if migration '
                f'{self.migration_uuid} failed, the old ones; the compute service does not say now which: try again')


class InstanceNotClaimed(DeviceTrackError):
    """The instance holds nothing here that the call could work on. Nothing was done."""

    def __init__(self, instance_uuid: str, wanted: str) -> None:
        super().__init__(instance_uuid, wanted)
        self.instance_uuid, self.wanted = instance_uuid, wanted

    def __str__(self) -> str:
        return f'instance {self.instance_uuid} has no assignment that is {self.wanted}'


class LiveMigrationRefused(DeviceTrackError):
    """A running guest cannot move with its devices. Its text is for operators: it tells of hosts and devices."""

    for_tenant = 'The instance cannot be migrated live with its devices; it can be moved while it is stopped.'
    """What the owner of the guest may read, whatever the reason."""


class NoDevicePair(LiveMigrationRefused):
    """A device of the source has no partner at the destination. Nothing was changed; the guest cannot move live.

    ``found`` has the partners that were found and every reason as data, as
    :meth:`devicetrack.compatibility.partners.Partners.as_data` says it; None where no partners were sought. Choose
    another destination, or move the guest while it is off.
    """

    def __init__(self, kind: str, identifier: str, reason: str, found: Mapping[str, object] | None = None) -> None:
        super().__init__(kind, identifier, reason)
        self.kind, self.identifier, self.reason, self.found = kind, identifier, reason, found

    def __str__(self) -> str:
        return f'{self.kind} {self.identifier} of the source has no partner at the destination: {self.reason}'


class LiveMigrationUnsupported(LiveMigrationRefused):
    """This host cannot migrate running guests with devices of a kind. Nothing was changed.

    Choose other hosts, or move the guest while it is off.
    """

    def __init__(self, host: str, kind: str, reason: str) -> None:
        super().__init__(host, kind, reason)
        self.host, self.kind, self.reason = host, kind, reason

    def __str__(self) -> str:
        return (f'host {self.host} takes part in no live migration of a guest with a device of kind {self.kind}: '
                f'{self.reason}')


class PostCopyRefused(LiveMigrationRefused):
    """A guest with devices is to be switched to post-copy. Nothing was changed; migrate it without.

    A guest that runs at the destination before all of its memory is there cannot come back, and an assigned device
    cannot wait for memory.
    """

    def __init__(self, instance_uuid: str, kind: str) -> None:
        super().__init__(instance_uuid, kind)
        self.instance_uuid, self.kind = instance_uuid, kind

    def __str__(self) -> str:
        return (f'instance {self.instance_uuid} has a device of kind {self.kind}, which cannot wait for memory: '
                'migrate it without post-copy')


class NoDestination(LiveMigrationRefused):
    """No host can take over a running guest with this device, so none is to be asked. Nothing was changed.

    The reason is for operators. Move the guest while it is off.
    """

    def __init__(self, kind: str, identifier: str, reason: str) -> None:
        super().__init__(kind, identifier, reason)
        self.kind, self.identifier, self.reason = kind, identifier, reason

    def __str__(self) -> str:
        return f'no host can take over a running guest with {self.kind} {self.identifier}: {self.reason}'


class MigrationUntold(DeviceTrackError):
    """Whether a running guest could move cannot be told. Nothing was done; ``reason`` says what is not known."""

    def __init__(self, instance_uuid: str, reason: str) -> None:
        super().__init__(instance_uuid, reason)
        self.instance_uuid, self.reason = instance_uuid, reason

    def __str__(self) -> str:
        return f'whether instance {self.instance_uuid} could move cannot be told: {self.reason}'


class RowsMissing(DeviceTrackError):
    """The instance's guest has devices that the store does not know as its own: the store is older. Nothing was done.

    Leave the guest as it is, defined and running, until the rows are recorded.
    """

    def __init__(self, instance_uuid: str, reason: str) -> None:
        super().__init__(instance_uuid, reason)
        self.instance_uuid, self.reason = instance_uuid, reason

    def __str__(self) -> str:
        return f'the guest of instance {self.instance_uuid} must stay as it is for now: {self.reason}'


class StoreLost(DeviceTrackError):
    """The store has no row of the host at all, and guests that use its devices: it is not old, it is lost.

    Nothing was written. Rows are recovered from the guests, which also tells which devices nobody can vouch for.
    """

    def __init__(self, host: str) -> None:
        super().__init__(host)
        self.host = host

    def __str__(self) -> str:
        return (f'the store has no row of host {self.host}, so it was lost: stop the service and run '
                f'devicetrack-manage recover --from-hypervisor --host {self.host}')


class NotAssigned(DeviceTrackError):
    """Nobody holds the device, as far as the store knows. Nothing was done."""

    def __init__(self, device: str, host: str | None = None) -> None:
        super().__init__(device, host)
        self.device, self.host = device, host

    def __str__(self) -> str:
        return f'device {self.device} is not assigned on {"host " + self.host if self.host else "any host"}'


class InvalidTransition(DeviceTrackError):
    """An assignment in this state does not take this event. It stays as it was."""

    def __init__(self, state: str, event: str) -> None:
        super().__init__(state, event)
        self.state, self.event = state, event

    def __str__(self) -> str:
        return f'an assignment that is {self.state} cannot take the event {self.event}'


# -- versioned objects ------------------------------------------------------------------------------------------------


class UnknownObject(DeviceTrackError):
    """A serialized object has a class or a version that this release does not know.

    It comes from a newer peer, a newer release's store, or a device kind that is not installed here. Nothing was
    changed; upgrade this end, or install the device kind.
    """

    def __init__(self, name: str, version: str | None, where: str) -> None:
        super().__init__(name, version, where)
        self.name, self.version, self.where = name, version, where

    def __str__(self) -> str:
        version = f' version {self.version}' if self.version else ''
        return (f'{self.where}: {self.name}{version} is of a newer release than this, or of a device kind '
                'that is not installed')


class MalformedObject(DeviceTrackError):
    """A serialized object is not in the form of one. Nothing was changed."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(where, reason)
        self.where, self.reason = where, reason

    def __str__(self) -> str:
        return f'{self.where}: {self.reason}'


# -- the store --------------------------------------------------------------------------------------------------------


class StoreError(DeviceTrackError):
    """Base of what the store raises."""


class OutcomeUnknown(StoreError):
    """The commit was sent and its answer never came: it may have happened.

    What it touched stays held until :meth:`devicetrack.store.api.Store.settle` has an answer; the audit asks for it.
    """

    def __init__(self, store: str) -> None:
        super().__init__(store)
        self.store = store

    def __str__(self) -> str:
        return f'the connection to {self.store} broke while it committed: the outcome is not known yet'


class NothingWritten(StoreError):
    """Base of the store's errors after which certainly nothing was written."""


class DeviceTaken(NothingWritten):
    """A device of the transaction has an owner in the store already. Nothing was written; choose again."""

    def __init__(self, devices: Iterable[tuple[str, str]]) -> None:
        self.devices = tuple(devices)
        super().__init__(self.devices)

    def __str__(self) -> str:
        return 'owned in the store already: ' + ', '.join(f'{kind} {name}' for kind, name in self.devices)


class StaleAssignment(NothingWritten):
    """A row changed after it was read. Nothing was written; read again, decide again."""

    def __init__(self, kind: str, identifier: str, generation: int) -> None:
        super().__init__(kind, identifier, generation)
        self.kind, self.identifier, self.generation = kind, identifier, generation

    def __str__(self) -> str:
        return f'the assignment of {self.kind} {self.identifier} has moved on from generation {self.generation}'


class HostHoldsDevices(NothingWritten):
    """A host that has rows cannot be replaced by another machine. Nothing was written; ``rows`` says how many it has.

    What they name may still be there, with a guest's data on it.
    """

    def __init__(self, host: str, rows: int) -> None:
        super().__init__(host, rows)
        self.host, self.rows = host, rows

    def __str__(self) -> str:
        return (f'host {self.host} still has devices in the store ({self.rows}): release the instances that have them, '
                f'or, when the machine is gone for good, forget each with devicetrack-manage device forget')


class StoreUnavailable(NothingWritten):
    """The store cannot be used now: gone, read-only, full or locked. ``reason`` says which; nothing was written."""

    def __init__(self, store: str, reason: str) -> None:
        super().__init__(store, reason)
        self.store, self.reason = store, reason

    def __str__(self) -> str:
        return f'{self.store}: {self.reason}'


class SchemaMismatch(NothingWritten):
    """The store's schema is not the one of this release. Nothing was written; ``remedy`` says what to run."""

    def __init__(self, store: str, found: str | None, wanted: str, remedy: str) -> None:
        super().__init__(store, found, wanted, remedy)
        self.store, self.found, self.wanted, self.remedy = store, found, wanted, remedy

    def __str__(self) -> str:
        return f'{self.store}: schema {self.found or "none"}, this release needs {self.wanted}: {self.remedy}'


# -- the hypervisor and the host --------------------------------------------------------------------------------------


class DriverError(DeviceTrackError):
    """Base of what a virt driver raises."""


class HypervisorUnreachable(DriverError):
    """The hypervisor did not answer. Conclude nothing and try later; nothing was freed."""

    def __init__(self, hypervisor: str, reason: str) -> None:
        super().__init__(hypervisor, reason)
        self.hypervisor, self.reason = hypervisor, reason

    def __str__(self) -> str:
        return f'{self.hypervisor} gives no answer: {self.reason}'


class DomainGone(DriverError):
    """The domain is not there any more. It uses nothing."""

    def __init__(self, domain: str) -> None:
        super().__init__(domain)
        self.domain = domain

    def __str__(self) -> str:
        return f'domain {self.domain} is gone'


class GuestNotRemoved(DriverError):
    """The guest could not be stopped, or a definition of it stays. It may be off by now; its devices stay in use."""

    def __init__(self, domain: str, reason: str) -> None:
        super().__init__(domain, reason)
        self.domain, self.reason = domain, reason

    def __str__(self) -> str:
        return f'domain {self.domain} was not removed: {self.reason}'


class InvalidDocument(DriverError):
    """A document of the host or the hypervisor cannot be read. What it would have said is unknown, not empty."""

    def __init__(self, document: str, where: str, reason: str) -> None:
        super().__init__(document, where, reason)
        self.document, self.where, self.reason = document, where, reason

    def __str__(self) -> str:
        return f'{self.document}: {self.where}: {self.reason}'


class CommandFailed(DriverError):
    """A command of the host could not be run or failed. What it would have said is unknown."""

    def __init__(self, command: str, reason: str) -> None:
        super().__init__(command, reason)
        self.command, self.reason = command, reason

    def __str__(self) -> str:
        return f'{self.command}: {self.reason}'


class DeviceKindFailed(DriverError):
    """The code of a device kind made a mistake. What it would have said is unknown; tell its author."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(kind, reason)
        self.kind, self.reason = kind, reason

    def __str__(self) -> str:
        return f'device kind {self.kind} made a mistake: {self.reason}'


class DeviceError(DriverError):
    """Base of errors about one device; the device stays held."""

    text = 'failed'

    def __init__(self, kind: str, identifier: str, reason: str) -> None:
        super().__init__(kind, identifier, reason)
        self.kind, self.identifier, self.reason = kind, identifier, reason

    def __str__(self) -> str:
        return f'{self.kind} {self.identifier} {self.text}: {self.reason}'


class DeviceGone(DeviceError):
    """The host does not have the device, or has another one of its name."""

    text = 'is not there'


class DeviceInUse(DeviceError):
    """A domain still names or uses the device: it was neither wiped nor removed."""

    text = 'is in use'


class DeviceBusy(DeviceError):
    """Somebody else realizes or wipes the device and holds its lock file: nothing was done to it."""

    text = 'is being worked on'


class RealizeFailed(DeviceError):
    """The device could not be made ready for its guest."""

    text = 'could not be realized'


class UnclaimFailed(DeviceError):
    """The device could not be given back, or nothing proves that it was; it is not free."""

    text = 'could not be given back'


class ParentFull(DriverError):
    """The parent cannot make one more device of this type, whatever its last reading said. Choose another."""

    def __init__(self, kind: str, parent: str, device_type: str, reason: str) -> None:
        super().__init__(kind, parent, device_type, reason)
        self.kind, self.parent, self.device_type, self.reason = kind, parent, device_type, reason

    def __str__(self) -> str:
        return f'{self.parent} cannot make one more {self.device_type}: {self.reason}'
