"""Every error of devicetrack.

All errors have one base class, and each class calls for a reaction of its own. The facts of an error are its
attributes, and its text is made from them. The docstring of a class describes the state after the error.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import difflib
from typing import Any
from typing import dataclass_transform


def several(*, default: Any = dataclasses.MISSING) -> Any:
    """A fact of an error that has several items. They become a tuple, since their owner may change them later."""
    return dataclasses.field(default=default, metadata={'several': True})


@dataclass_transform(eq_default=False, field_specifiers=(several,))
class DeviceTrackError(Exception):
    """Base of every error that this library raises on purpose.

    A subclass is a dataclass of its facts, those of its base first, and formats them in ``template`` or ``__str__``.
    The facts are attributes and ``args``, so that the error can be pickled and copied.
    """

    template = ''

    def __init_subclass__(cls) -> None:
        if '__annotations__' in vars(cls) and '__init__' not in vars(cls):
            dataclasses.dataclass(eq=False, repr=False)(cls)

    def __init__(self) -> None:
        """Make an error without facts."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):     # type: ignore[arg-type]
            if field.metadata:
                setattr(self, field.name, tuple(getattr(self, field.name)))
        self.args = tuple(vars(self).values())

    def __str__(self) -> str:
        return self.template.format(**{name: shown(fact) if isinstance(fact, str) else fact
                                       for name, fact in vars(self).items()})


def shown(text: str, most: int = 1000) -> str:
    """Shorten a text for a message: a long one to its beginning and its length."""
    return text if len(text) <= most else f'{text[:most // 2]}… ({len(text)} characters)'


def close_to(name: str, known: Iterable[str], prefix: str = '') -> str:
    """Return the known names that a person may have meant, the nearest first; '' if there are none.

    :param prefix: what goes in front of each name in the answer
    """
    return ', '.join(prefix + near for near in difflib.get_close_matches(name, known))


# So many names are one sentence.
_NAMED = 10


def some_of(names: Iterable[str], meant: str = '') -> str:
    """Return names for a message. Of many, these are the nearest to the one that was meant, or the first."""
    found = tuple(names)
    if len(found) <= _NAMED:
        return ', '.join(found)
    near = close_to(meant, found)
    if near:
        return f'{len(found)}, close to it: {near}'
    return in_short(found)


def in_short(names: Sequence[str], most: int = _NAMED, between: str = ', ') -> str:
    """Return the first names for a message, and how many more there are."""
    return between.join(names[:most]) + (f' and {len(names) - most} more' if len(names) > most else '')


# -- configuration ----------------------------------------------------------------------------------------------------


class InvalidConfiguration(DeviceTrackError):
    """An option has a value that cannot be used. Nothing was started; correct the option and start again."""
    option: str
    value: object
    reason: str
    template = '{option} = {value}: {reason}'


class MissingExtra(DeviceTrackError):
    """A library that only this feature needs is not installed. Nothing was done; install it with the extra."""
    library: str
    extra: str
    template = '{library} is not installed: pip install devicetrack[{extra}]'


class NotExported(DeviceTrackError):
    """The metrics in this file could not be read or written. An old file stays as it was."""
    path: str
    reason: str
    template = 'the metrics file {path} could not be read or written: {reason}'


class UnsafePath(DeviceTrackError):
    """Users other than the service's can change a directory or file of its state, or it is a symbolic link.

    Nothing was started. ``reason`` has the fault and the next step; correct it and start again. If such a path makes an
    operation of a running service fail, the error of the operation has the same text.
    """
    path: str
    reason: str
    template = '{path}: {reason}'


# -- the manager and its host -----------------------------------------------------------------------------------------


class UnknownNova(DeviceTrackError):
    """The adapter does not know the Nova that is installed, or something else changed it in this process.

    ``differences`` has each method that differs from every release in ``known``, and the difference; it is empty if
    only the major version is unknown. Nothing of Nova was changed: install one of these releases, or port the adapter
    to this one.
    """
    differences: Sequence[str] = several()
    release: str = ''
    known: Sequence[str] = several(default=())

    def __str__(self) -> str:
        sentences = [f'devicetrack does not support this Nova ({self.release or "unknown release"})']
        if self.differences:
            sentences.append(f'It differs in {len(self.differences)} place(s): {"; ".join(self.differences)}')
        if self.known:
            sentences.append(f'It supports {", ".join(self.known)}, and later releases of the same major versions '
                             'with the same methods. Install one of them, remove other code that changes Nova, accept '
                             "a distribution's patch after you have read it (devicetrack-nova-adopt --check-package "
                             'PACKAGE --write-table FILE), or port devicetrack ("Porting to another release of Nova" '
                             'in its documentation)')
        return '. '.join(sentences)


class NovaUnavailable(DeviceTrackError):
    """Nova's conductor or placement did not answer, or refused. Only the code for hosts of Nova asks them."""
    what: str
    reason: str
    template = '{what} does not answer: {reason}'


class NotReady(DeviceTrackError):
    """``init_host`` has not succeeded yet. Nothing was done; call it first."""
    host: str
    template = 'the claim manager of host {host} is not ready: call init_host, or Lifecycle.open, first'


class StartIsOver(DeviceTrackError):
    """An exception from outside, such as a signal, interrupted another call, and that ended this start of the host.

    The next call first starts the host anew, as a restart of the process would. Earlier changes of this call are
    recorded; call it again.
    """
    template = 'an interrupt of another call ended this start of the host: call again, and the host starts anew'


class HostInUse(DeviceTrackError):
    """Another manager, in this process or another, manages this host or a host with the same state directory.

    Nothing was read or changed. Stop the other service; a manager of this process releases its host in ``close()``.
    ``pid`` is the process that holds the lock, or None if the kernel of this host does not show it. ``by_command`` is
    True for a command of devicetrack, which ends by itself.
    """
    host: str
    path: str
    pid: int | None = None
    by_command: bool = False

    def __str__(self) -> str:
        holder = 'another process' if self.pid is None else f'process {self.pid}'
        if self.by_command:
            return (f'{holder} holds {self.path}: a command works on host {self.host}, or on another host with the '
                    'same state_path. Try again when it has ended')
        return (f'{holder} holds {self.path}: it manages host {self.host}, or another host with the same state_path. '
                'Stop it first; if it is this process, close its manager')


class HostIdentityChanged(DeviceTrackError):
    """In the store, the host of this name is another machine. Nothing was changed.

    Two machines with one name would assign each other's devices. Give this machine its own host name. If it is the same
    machine with a new id, restore the old id.
    """
    host: str
    template = ('in the store, host {host} is another machine: if this machine has a new id, set [devicetrack] '
                'machine_id_path to a file with the old id (see the guide to recovery); otherwise give this machine '
                'its own host name')


class HostMoved(DeviceTrackError):
    """An operator has moved the host to another store. Nothing was changed.

    The host's rows in this store date from the move. Use the other store, ``store``; its name may be cut.
    """
    host: str
    store: str
    template = ('host {host} has moved to another store, {store}: set [devicetrack_database] connection to that one. '
                'If the move was not completed, run devicetrack-manage db move --to FILE again')


class TargetHasHost(DeviceTrackError):
    """The target store of a move already has this host, or one of its name or machine. Nothing was changed."""
    host: str
    store: str
    template = ('{store} already has host {host}, with the name, the UUID or the machine of the host to move: if it '
                'has no devices there, delete it with devicetrack-manage host forget {host} and the configuration of '
                'that store')


class MachineHasHost(DeviceTrackError):
    """The store has devices of this machine under another host name. Nothing was changed.

    Both hosts would assign the same devices. ``rows`` is the number of devices of the host ``other``.
    """
    host: str
    other: str
    rows: int
    template = ('in the store, this machine is host {other} with devices ({rows}), which host {host} would assign '
                'again: start the service as {other}; to rename it to {host}, first release every instance that '
                '"devicetrack-manage instance list --host {other}" lists or, if recover got a wrong name, follow the '
                'guide to recovery; a second host on one machine needs its own devices, state_path and store')


class UnknownHost(DeviceTrackError):
    """The store has no host of this name. Nothing was read; ``known`` has the names of its hosts.

    ``host`` is None when the caller gave no name and the store has no host of this machine.
    """
    host: str | None
    known: Collection[str] = several()

    def __str__(self) -> str:
        known = some_of(self.known, self.host or '') or 'none. The first start of its manager makes it'
        if self.host is None:
            return (f'the store has no host of this machine; its hosts: {known}. Choose one with --host, or set '
                    '[devicetrack] machine_id_path to the file with the id that this machine had')
        return f'the store has no host {self.host}; its hosts: {known}'


class AmbiguousHost(DeviceTrackError):
    """The store has several hosts of this machine, and none was chosen. Nothing was read; choose one of ``known``."""
    known: Collection[str] = several()

    def __str__(self) -> str:
        return (f'the store has several hosts of this machine ({", ".join(self.known)}): choose one with --host, or '
                "give --config-file with Nova's file; devicetrack-manage host forget NAME deletes one without devices")


class NotThisMachine(DeviceTrackError):
    """The host is another machine. Nothing was read; run the command there.

    A comparison of its rows with the devices of this machine would report differences that do not exist.
    """
    host: str
    template = ('host {host} is another machine: run the command there; if this machine has a new id, set '
                '[devicetrack] machine_id_path to a file with the old id')


class GuestsOfSeveralHosts(DeviceTrackError):
    """The guests of one hypervisor record that they belong to different hosts. Nothing was written.

    ``hosts`` maps the UUID of each host to the number of its guests. One of them is this host. A guest of another host
    was defined by hand, or a move left it behind.
    """
    host: str
    hosts: Mapping[str, int]

    def __str__(self) -> str:
        hosts = ', '.join(f'{uuid} ({guests})' for uuid, guests in sorted(self.hosts.items()))
        return (f'the guests on host {self.host} record that they belong to different hosts: {hosts}: find out which '
                'of these is this host, and move or undefine the other guests')


class RowStays(DeviceTrackError):
    """A device is not forgotten or retired, or an instance not released, as an operator asks (``event``).

    The rows are unchanged; ``reason`` has the cause and the first step.
    """
    what: str
    event: str
    reason: str
    template = '{what} is not {event}: {reason}'


class NotAdopted(DeviceTrackError):
    """A device cannot be recorded for an instance as its service asks. Nothing was recorded for the instance."""
    instance_uuid: str
    device: str
    reason: str
    template = 'device {device} is not recorded for instance {instance_uuid}: {reason}'


class NotAdmitted(DeviceTrackError):
    """A forgotten or unproven device cannot be admitted. It stays withheld, for ``reason``."""
    device: str
    reason: str
    template = 'device {device} stays withheld: {reason}'


class ForkedManager(DeviceTrackError):
    """A forked child called its parent's claim manager. Nothing was done; only the parent may call it."""
    host: str
    owner_pid: int
    template = 'the claim manager of host {host} belongs to process {owner_pid}, not to a child of it'


class NodeUnavailable(DeviceTrackError):
    """The node is disabled or does not belong to this host. Nothing was held; choose another node."""
    nodename: str
    reason: str
    template = 'node {nodename} takes no claims: {reason}'


# -- requests ---------------------------------------------------------------------------------------------------------


class BadRequest(DeviceTrackError):
    """The request has no meaning on any host. Nothing was held; correct the request."""
    where: str
    value: object
    reason: str
    template = '{where}: {value!r}: {reason}'


class NoFit(DeviceTrackError):
    """No free device matches a part of the request. Nothing is held.

    ``shortages`` has one :class:`devicetrack.engine.explanation.Shortage` for each such part, with the reasons. The
    text contains parents and numbers of other instances, so it is for operators only.
    """
    shortages: Sequence[Any] = several()

    @property
    def for_tenant(self) -> str:
        """The text that the owner of the instance may read: what was asked for, and nothing about the host."""
        wanted = ', '.join(f'{shortage.wanted} {shortage.resource_class}' for shortage in self.shortages)
        return f'Not enough devices are free for the instance. It needs: {wanted}.'

    def __str__(self) -> str:
        return '; '.join(str(shortage) for shortage in self.shortages)


class UnknownProvider(NoFit):
    """The request has a provider that is not, or no longer, on this host. Nothing is held.

    The provider's device may have disappeared after placement recorded it, so another host may fit the request.
    ``others`` lists more such providers in the request.
    """

    def __init__(self, provider_uuid: str, resource_classes: Iterable[str], known: Iterable[str],
                 others: Iterable[str] = ()) -> None:
        self.provider_uuid, self.resource_classes, self.known = provider_uuid, tuple(resource_classes), tuple(known)
        self.others = tuple(others)
        super().__init__(())
        self.args = (self.provider_uuid, self.resource_classes, self.known, self.others)

    @property
    def for_tenant(self) -> str:
        return f'Not enough devices are free for the instance. It needs: {", ".join(self.resource_classes)}.'

    def __str__(self) -> str:
        unknown = ', '.join(map(repr, (self.provider_uuid, *self.others)))
        return (f'allocations: {unknown}: no provider of this host has this UUID; the request asks it for '
                f'{", ".join(self.resource_classes)}; this host has {", ".join(self.known) or "none"}')


class InstanceHasClaim(DeviceTrackError):
    """The instance has devices already, of a claim that did not fail. No more were held; ``held`` has its devices."""
    instance_uuid: str
    held: Sequence[tuple[str, str | None]] = several()

    def __str__(self) -> str:
        held = ', '.join(f'{kind}/{identifier}' if identifier else f'{kind}, not named yet'
                         for kind, identifier in self.held)
        return f'instance {self.instance_uuid} has a claim already: {held or "one that is being made"}'


class InstanceHasStaleRows(InstanceHasClaim):
    """An earlier move of the instance has not ended here, so the instance cannot move here. Nothing was claimed.

    Before the refusal, the claim did the work of the next audit for this instance. Once the compute service reports the
    end of that migration, the next audit releases its devices.
    """

    def __str__(self) -> str:
        held = ', '.join(f'{kind}/{identifier}' for kind, identifier in self.held)
        return (f'instance {self.instance_uuid} has devices here from an earlier stay or move: {held}; '
                'the audit releases them once that stay or move is over in the compute service, and no domain uses '
                'them')


class MigrationSuperseded(DeviceTrackError):
    """The instance has a newer migration. Nothing was changed; this migration has failed."""
    migration_uuid: str
    newer_uuid: str
    template = 'migration {migration_uuid} is superseded by {newer_uuid}, a newer migration of the same instance'


class MigrationUndecided(DeviceTrackError):
    """It is unknown which devices a guest needs that moves on this host: the new ones, or the old ones with its data.

    The compute service does not answer whether the move continues or has failed, or the guest's definition cannot be
    read. Or the guest was started again on the old devices, and the move has not failed in the service. Or the service
    began to undo the move after ``realize``. No device was made ready; try again from ``realize`` on, when the service
    answers and the definition can be read.
    """
    instance_uuid: str
    migration_uuid: str
    template = ('it is unknown whether the guest of instance {instance_uuid} needs its new devices or, if migration '
                '{migration_uuid} failed, the old ones: try again when the compute service answers and the definition '
                'of the guest can be read')


class DepartureUnknown(DeviceTrackError):
    """It is unknown whether an instance has left this host, or is back.

    The compute service does not answer where the instance is, and reports no migrations. Nothing was changed; try again
    when the service answers. No audit can do this later.
    """
    instance_uuid: str
    migration_uuid: str
    template = ('it is unknown whether instance {instance_uuid} left this host by migration {migration_uuid}: try '
                'again when the compute service answers')


class InstanceNotClaimed(DeviceTrackError):
    """The instance has no assignment here for the call, or only some that are being released. Claim again."""
    instance_uuid: str
    wanted: str
    template = 'instance {instance_uuid} has no assignment here that is {wanted}: claim again'


class LiveMigrationRefused(DeviceTrackError):
    """A running guest cannot move with its devices. The text names hosts and devices, so it is for operators only."""
    for_tenant = 'The instance cannot be migrated live with its devices; it can be moved while it is stopped.'
    """The text that the owner of the guest may read, whatever the reason."""


class NoDevicePair(LiveMigrationRefused):
    """A device of the source has no partner at the destination. Nothing was changed; the guest cannot move live.

    ``found`` has the partners that were found and every reason as data, in the form of ``Partners.as_data``, or None if
    no pairs were compared. Choose another destination, or move the guest while it is off.
    """
    kind: str
    identifier: str
    reason: str
    found: Mapping[str, object] | None = None
    template = '{kind}/{identifier} of the source has no partner at the destination: {reason}'


class LiveMigrationUnsupported(LiveMigrationRefused):
    """This host cannot migrate running guests with devices of this kind. Nothing was changed.

    Choose other hosts, or move the guest while it is off.
    """
    host: str
    kind: str
    reason: str
    template = 'host {host} cannot take part in the live migration of a guest with a device of kind {kind}: {reason}'


class PostCopyRefused(LiveMigrationRefused):
    """A guest with devices cannot switch to post-copy. Nothing was changed; migrate it without post-copy.

    With post-copy a guest runs at the destination before all of its memory is there. It cannot go back then, and an
    assigned device cannot wait for memory.
    """
    instance_uuid: str
    kind: str
    template = ('instance {instance_uuid} has a device of kind {kind}, which cannot wait for memory: '
                'migrate it without post-copy')


class NoDestination(LiveMigrationRefused):
    """No host can take over a running guest with this device, so ask the scheduler for none. Nothing was changed.

    ``reason`` is for operators. Move the guest while it is off.
    """
    kind: str
    identifier: str
    reason: str
    template = 'no host can take over a running guest with {kind}/{identifier}: {reason}'


class CompatibilityUnknown(DeviceTrackError):
    """It is unknown whether a running guest could move. Nothing was done; see ``reason``."""
    instance_uuid: str
    reason: str
    template = 'it is unknown whether instance {instance_uuid} could move: {reason}'


class StoreLost(DeviceTrackError):
    """The store is lost: it has no row of the host, but guests of the host use devices. Nothing was written.

    Recover the rows from the guests. The recovery also reports the devices whose content is unknown.
    """
    host: str
    template = ('the store has no row of host {host}, so it was lost: stop the service and run '
                'devicetrack-manage recover --from-hypervisor --host {host}')


class NotAssigned(DeviceTrackError):
    """The store has no owner for this device. Nothing was done."""
    device: str
    host: str | None = None

    def __str__(self) -> str:
        return f'device {self.device} is not assigned on {"host " + self.host if self.host else "any host"}'


class UnknownToStore(DeviceTrackError):
    """The store has nothing of this name, now or in its history. Nothing was changed."""
    what: str
    name: str
    host: str | None
    remedy: str

    def __str__(self) -> str:
        return (f'the store has no {self.what} {self.name}{" on host " + self.host if self.host else ""}: '
                f'{self.remedy}')


class InvalidTransition(DeviceTrackError):
    """An assignment in this state does not take this event. It stays as it was."""
    state: str
    event: str
    template = 'an assignment that is {state} cannot take the event {event}'


# -- versioned objects ------------------------------------------------------------------------------------------------


class UnknownObject(DeviceTrackError):
    """A serialized object has a class or a version that this release does not know.

    It comes from a newer peer, from the store of a newer release, or from a device kind that is not loaded here.
    Nothing was changed; upgrade this end, or install the device kind and add it to ``[devicetrack] device_kinds``.
    """
    name: str
    version: str | None
    where: str

    def __str__(self) -> str:
        version = f' version {self.version}' if self.version else ''
        return (f'{self.where}: {self.name}{version} comes from a newer release, or from a device kind that is not '
                'installed or not in [devicetrack] device_kinds')


class MalformedObject(DeviceTrackError):
    """This is not the serialized form of an object. Nothing was changed."""
    where: str
    reason: str
    template = '{where}: {reason}'


# -- operations of a service on an instance ----------------------------------------------------------------------------


class InstanceBusy(DeviceTrackError):
    """The operation is not possible here in the state of the instance, or another one is running. Nothing was changed.

    ``host`` has the instance.
    """
    instance_uuid: str
    operation: str
    state: str
    host: str
    template = '{operation}: instance {instance_uuid} is {state}; its host is {host}'


class OperationFailed(DeviceTrackError):
    """A step of an operation failed, and the earlier steps were undone. ``reason`` has the error of the step.

    A boot left nothing, and after a move the instance is where it was. ``for_tenant`` is the text that the owner of the
    instance may read, wherever the step failed.
    """
    instance_uuid: str
    reason: str
    for_tenant: str
    template = 'instance {instance_uuid}: {reason}'


class OperationPending(DeviceTrackError):
    """A host did not take its step. Nothing is undone: the operation continues at the next audit of that host."""
    instance_uuid: str
    host: str
    template = 'the operation on instance {instance_uuid} waits for host {host}, and continues at its next audit'


class DocumentNotSaved(DeviceTrackError):
    """After a save, the service still has the document that the save replaced. ``replaced`` says what is in it.

    Its ``save`` did not save, or its ``document`` returns an older state. Nothing is undone: the operation continues at
    the next audit.
    """
    instance_uuid: str
    replaced: str
    template = ('instance {instance_uuid}: a save of its document did not hold. The service still returns the document '
                'before it: {replaced}')


# -- the store --------------------------------------------------------------------------------------------------------


class StoreError(DeviceTrackError):
    """Base of the store's errors."""


class RowsMissing(StoreError):
    """The store lacks rows of the instance that its guest records, or that it had confirmed. Nothing was done.

    Leave the guest as it is, defined and running, until its rows are recorded. Start no guest without them.
    """
    instance_uuid: str
    reason: str
    template = 'the store lacks rows of instance {instance_uuid}, so leave its guest as it is: {reason}'


class OutcomeUnknown(StoreError):
    """The store did not answer a commit, which may have happened.

    Its devices stay held until :meth:`devicetrack.store.api.Store.settle` has an answer; the audit asks for it.
    """
    store: str
    template = 'the connection to {store} broke during a commit: the outcome is not known yet'


class NothingWritten(StoreError):
    """Base of the store's errors after which it is certain that nothing was written."""


class ReentrantCall(NothingWritten):
    """A call of the manager began inside another one of the same thread, and both need the same lock.

    A signal handler, or a method of the compute service that the manager was calling, called the manager. If the inner
    call continued, both could change the same device, or it would wait for the outer one for ever. The inner call did
    nothing; the outer one continues.
    """
    lock: str
    template = ('this thread is inside another call of the manager, which needs the {lock} lock too: call after that '
                'one or from another thread, not from a signal handler or a method that the manager calls')


class DeviceTaken(NothingWritten):
    """A device of the transaction has an owner in the store already. Nothing was written; choose again."""
    devices: Sequence[tuple[str, str]] = several()

    def __str__(self) -> str:
        return 'already assigned in the store: ' + ', '.join(f'{kind}/{name}' for kind, name in self.devices)


class StaleAssignment(NothingWritten):
    """A row changed after it was read. Nothing was written; read again, decide again."""
    kind: str
    identifier: str
    generation: int
    template = 'the assignment of {kind}/{identifier} changed after generation {generation} was read'


class HostHoldsDevices(NothingWritten):
    """A host that has rows cannot be replaced by another machine. Nothing was written; ``rows`` is their number.

    The devices in those rows may still be there, with a guest's data on them.
    """
    host: str
    rows: int
    template = ('host {host} still has devices in the store ({rows}): release the instances that have them, '
                'or, if the machine is gone for good with all its data, run devicetrack-manage host forget {host} '
                '--machine-gone --confirm {host}')


class HostTakenOver(NothingWritten):
    """Another manager of the same host has started, with this store and another state directory.

    Nothing was written, and every later call of this manager raises this error. Two containers of one service overlap,
    or two services were set up for one host. The newer manager continues, so stop this one. To keep this one, stop the
    newer one and restart this one.
    """
    host: str
    template = ('another manager of host {host} has started with the same store and another state_path, so this one '
                'no longer works: stop this one; or, to keep it, stop the newer one and restart this one')


class StoreUnavailable(NothingWritten):
    """The store is gone, read-only, full or locked, or cannot hold a value: see ``reason``.

    Nothing was written.
    """
    store: str
    reason: str
    template = '{store}: {reason}'


class SchemaMismatch(NothingWritten):
    """The store does not have the schema of this release. Nothing was written; ``remedy`` is the command to run."""
    store: str
    found: str | None
    wanted: str
    remedy: str

    def __str__(self) -> str:
        return f'{self.store}: schema {self.found or "none"}, this release needs {self.wanted}: {self.remedy}'


class MirrorHasHost(NothingWritten):
    """In the mirror, the host of this name is another machine, which still pushes. Nothing was written."""
    host: str
    template = ('in the mirror, host {host} is another machine, which still pushes: give this machine its own host '
                'name')


# -- the hypervisor and the host --------------------------------------------------------------------------------------


class DriverError(DeviceTrackError):
    """Base of the errors of virt drivers."""


class HypervisorUnreachable(DriverError):
    """The hypervisor did not answer. Nothing was freed; treat every device as in use, and try later."""
    hypervisor: str
    reason: str
    template = '{hypervisor} does not answer: {reason}'


class DomainGone(DriverError):
    """The domain is gone, so it uses no device."""
    domain: str
    template = 'domain {domain} is gone'


class GuestNotRemoved(DriverError):
    """The guest did not stop, or its definition remains. The guest may be off already; its devices count as in use."""
    domain: str
    reason: str
    template = 'domain {domain} was not removed: {reason}'


class DefinitionRefused(DriverError):
    """The devices in a definition of a guest are not those of its instance."""
    instance_uuid: str
    kind: str
    identifier: str
    reason: str
    template = 'the definition for instance {instance_uuid} does not fit {kind}/{identifier}: {reason}'


class InvalidDocument(DriverError):
    """A document of the host or the hypervisor cannot be read. Its content is unknown, not empty."""
    document: str
    where: str
    reason: str
    template = '{document}: {where}: {reason}'


class CommandFailed(DriverError):
    """A command of the host did not run, or failed. Its answer is unknown."""
    command: str
    reason: str
    template = '{command}: {reason}'


class DeviceKindFailed(DriverError):
    """The code of a device kind has a fault. Its answer is unknown; report the fault to its author."""
    kind: str
    reason: str
    template = 'device kind {kind} made a mistake: {reason}'


class DeviceError(DriverError):
    """Base of errors about one device; the device stays held."""
    kind: str
    identifier: str
    reason: str
    template = '{kind}/{identifier} failed: {reason}'


class DeviceGone(DeviceError):
    """The host does not have the device, or has another device of the same name."""
    template = '{kind}/{identifier} is not there: {reason}'


class DeviceInUse(DeviceError):
    """A domain still has or uses the device. It was neither wiped nor removed."""
    template = '{kind}/{identifier} is in use: {reason}'


class DeviceBusy(DeviceError):
    """Another process or thread realizes or wipes the device and holds its lock file. Nothing was done to it."""
    template = '{kind}/{identifier} is busy: {reason}'


class RealizeFailed(DeviceError):
    """The device could not be made ready for its guest."""
    template = '{kind}/{identifier} could not be realized: {reason}'


class RealizeUnknown(RealizeFailed):
    """The host could not be read or changed, so the cause may not be this device. It is not withheld."""


class UnclaimFailed(DeviceError):
    """The device could not be released, or its release is not proven. It is not free."""
    template = '{kind}/{identifier} could not be given back: {reason}'


class UsersUnknown(UnclaimFailed):
    """The hypervisor's answer could not be read completely, so a guest may use the device. Nothing was tried."""


class NotProven(DeviceError):
    """A free device is not proven clean. It stays withheld."""
    template = '{kind}/{identifier} is not proven clean: {reason}'


class ParentFull(DriverError):
    """The parent cannot make one more device of this type, even if it had room before. Choose another parent."""
    kind: str
    parent: str
    device_type: str
    reason: str
    template = '{parent} cannot make one more {device_type}: {reason}'


class ParentGone(ParentFull):
    """The parent of a device that stores no data is certainly gone, and so is the device. Take any other device."""
    template = '{parent}, which makes {device_type}, is gone: {reason}'
