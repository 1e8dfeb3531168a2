"""The interface of a virt driver: what the claim manager asks of a hypervisor and its host.

Every method may block, and the manager calls none under the ledger's lock. A driver keeps no record of owners: it
reports the state of the host and changes it on request. Every driver passes the tests in
:mod:`devicetrack.tests.drivers`.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import itertools
from typing import Any
import uuid

from devicetrack import vocabulary
from devicetrack.exception import BadRequest
from devicetrack.exception import DeviceInUse
from devicetrack.exception import DriverError
from devicetrack.exception import NotProven
from devicetrack.exception import UsersUnknown
from devicetrack.objects import details
from devicetrack.objects import DeviceAssignment
from devicetrack.objects import DeviceMap
from devicetrack.objects import things
from devicetrack.objects.event import Wiped
from devicetrack.objects.network_port import Port
from devicetrack.objects.pci_alias import PCIAlias
from devicetrack.objects.things import Exclusions
from devicetrack.objects.values import Candidate
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import GuestConfig
from devicetrack.objects.values import GuestRecord
from devicetrack.objects.values import Inventory
from devicetrack.objects.values import InventoryDevice
from devicetrack.objects.values import MigrationDefinitions
from devicetrack.objects.values import MigrationType
from devicetrack.objects.values import Realized
from devicetrack.objects.values import Record
from devicetrack.objects.values import Unknown
from devicetrack.objects.values import Usage
from devicetrack.objects.values import WipeProgress

Confirm = Callable[[DeviceAssignment], object]
# Whether no row has a device and nobody on this host tracks it.
IsUntracked = Callable[[DeviceKey], bool]


# Why a device is not proven clean any more.
WRITTEN = 'somebody wrote to it since it was proven clean'

NO_PROOF = 'it has lost the proof that it is clean: somebody else could write to it'


def is_never_untracked(_key: DeviceKey) -> bool:
    """Default: every device is tracked."""
    return False


class VirtDriver(abc.ABC):
    """One hypervisor on one host.

    Several threads may call every method at once. The manager sets no time limit: set one for every call to the
    outside.

    :param host: the host's name, for messages
    :param conf: the configuration (an ``oslo_config.cfg.ConfigOpts``); the driver registers what it needs
    :param state_path: a directory for lock files of the devices; the first writer makes it, with mode 0700
    :raises InvalidConfiguration: an option cannot be used
    """

    takes_connection = False
    """Whether the constructor has an argument ``connect``, with which a service opens the driver's connection."""

    def __init__(self, host: str, conf: Any, state_path: str) -> None:
        self.host, self.conf, self.state_path = host, conf, state_path

    @abc.abstractmethod
    def boot_id(self) -> str:
        """Return the name of this boot of the host. Paths of another boot are not valid.

        :raises DriverError: it cannot be read now
        """

    def check_host(self) -> None:
        """Check that this host can do what the options ask for. A manager calls it at each start.

        The default checks nothing.

        :raises InvalidConfiguration: the host cannot; the error has the device and the next step
        """
        return None

    def check_rights(self) -> None:
        """Check that this process has the rights for all work of the driver, also for devices in no option now.

        It may start a process that the driver needs. The default checks nothing.

        :raises CommandFailed: a right is missing; the error has the next step
        """
        return None

    def resource_classes(self) -> frozenset[str]:
        """Return all resource classes in the driver's options, including those without a device now.

        With them the manager recognizes a request for its own devices even while the driver cannot read the devices.
        """
        return frozenset()

    def may_count(self, resource_class: str) -> bool | None:
        """Return whether a resource class is this driver's, though no option and no device of this host has it.

        True means that it certainly is: an option gives it to a device that is away, or a name by which flavors ask for
        devices stands for it. The manager refuses a claim for it. False means that other software certainly has such
        devices here. None, the default, means that this is unknown. Quick, no I/O.
        """
        return None

    def possible_parents(self) -> frozenset[str]:
        """Return the stable names of the host's parents, whether or not the options give their devices to guests.

        Their providers belong to this host: a claim takes what is allocated there or is refused, even if the option
        with its class was lost. The manager calls this at its start and in each audit. By default there are none. Never
        an error: a parent that cannot be found is left out.
        """
        return frozenset()

    def aliases(self) -> Mapping[str, PCIAlias] | None:
        """Return the names by which flavors ask for PCI functions of the driver (``pci_passthrough:alias``).

        The answer never changes. None, the default, means that the driver assigns no such functions. Then the extra
        spec is left to other software.
        """
        return None

    def wiped_kinds(self) -> frozenset[str]:
        """Return the device kinds that store data. Releasing such a device takes as long as writing all of it.

        The answer never changes. By default there are none, and the manager releases every device while its caller or
        its audit waits.
        """
        return frozenset()

    def prepared_kinds(self) -> frozenset[str]:
        """Return the device kinds that :meth:`prepare` works for, by default none. The answer never changes."""
        return frozenset()

    def prepare(self, records: Sequence[Record]) -> None:
        """Set up the host as the options require, before its devices are read: at every start and in every audit.

        Only the manager calls it, and only if there are :meth:`prepared_kinds`. It never takes a device from an owner.
        The ``faults`` of the next inventory list what could not be set up. The call may take long, but every step of
        it has a deadline.

        :param records: the rows of the prepared kinds
        """

    def call_in_place(self, key: DeviceKey) -> bool:
        """Record durably an operator's word that a device of a row is where it was. The default is False.

        :returns: whether its place was in doubt. The next :meth:`prepare` relies on the operator
        :raises DriverError: it cannot be recorded
        """
        return False

    def rows_ended(self, keys: Iterable[DeviceKey]) -> None:
        """Forget what the driver remembers of the rows of devices: the store has confirmed that they are gone.

        The default does nothing. Never an error: what is not forgotten only keeps a device withheld.
        """

    def cleaner_of_service(self, are_free: Callable[[], Mapping[DeviceKey, bool]]) -> VirtDriver | None:
        """Return another driver, for devices that the compute service assigns itself and this library only cleans.

        Such devices have no rows. :meth:`get_inventory` of that driver has those in the answer of ``are_free``.
        :meth:`realize` records durably which device the service gets, and :meth:`prove` with ``wipe`` cleans only a
        recorded device. So neither touches a device that the service may give to a guest at the same time. The driver
        has its own state directory. :meth:`close` of this driver closes it too. The default is None: there are no such
        devices.

        :param are_free: returns for each of these devices whether the service may give it to its next guest now.
            :meth:`realize` calls it in one step with the record
        """
        return None

    def lent(self) -> Mapping[DeviceKey, bool]:
        """Return the devices that :meth:`realize` recorded: True if the service has given one to no guest since.

        Only a driver of :meth:`cleaner_of_service` has some.

        :raises DriverError: the records cannot be read
        """
        return {}

    def note_given(self, keys: Collection[DeviceKey]) -> None:
        """Record durably that the service gave devices to guests, except those that :meth:`realize` did not record.

        :raises DriverError: it cannot be recorded
        """

    @abc.abstractmethod
    def get_inventory(self) -> Inventory:
        """Read the devices that the host has now, and those that its parents can still make.

        If a part cannot be read, it is in ``unknown`` and its kind is not in ``known_kinds``. A device that stores data
        is in ``unproven``, unless a proof on this host, apart from the store, shows that this very device is clean.

        :raises HypervisorUnreachable: no part could be read
        """

    @abc.abstractmethod
    def get_usage(self) -> Usage:
        """Ask the hypervisor which devices the live and the inactive definitions of all domains contain.

        Saved states and snapshots are inactive definitions too: a guest may come back with the devices in them. A
        document that cannot be read is in ``unknown``.

        The addresses in a live definition determine its devices. So do those in an inactive one, unless it was written
        in another boot of the host, by its record. Then the record's identifiers, in their order, replace the addresses
        that are valid for one boot only. If that record does not fit the elements, the definition is in ``unknown``.

        :raises HypervisorUnreachable: no answer; treat every device as in use
        """

    def claim_for_instance(self, instance_uuid: str, request: Any,
                           candidates: Sequence[Candidate]) -> Sequence[Candidate]:
        """Give identifiers to new devices, and write ports into the details of candidates for ports. Quick, no I/O.

        :param request: the demand that the candidates were chosen for, or another one with the ``ports`` of the
            candidates, in their order; None without ports
        :param candidates: in the order of the guest; ``identifier`` is None for a device that is to be created
        :returns: the same candidates in the same order, each with an identifier
        :raises BadRequest: a device is assigned only as a port and the request has no port for it, or the device cannot
            be the port
        """
        ports = getattr(request, 'ports', ()) or itertools.repeat(None)
        return [_as_port(candidate if candidate.identifier is not None
                         else candidate._replace(identifier=str(uuid.uuid4())), port)
                for candidate, port in zip(candidates, ports, strict=False)]

    @abc.abstractmethod
    def realize(self, assignment: DeviceAssignment, confirm: Confirm | None = None) -> Realized:
        """Make one device ready for its guest: create, define and start it, or check that it is there.

        Idempotent, and exclusive with :meth:`unclaim` of the same device in any process of this host. Before this
        method returns, it durably removes the proof that the device is clean: a guest writes to the device from now on.

        Unless its row records that the device was ready before, the driver first checks as ``check_free`` does.

        :param confirm: called with the assignment under the device's lock, before the device is changed. Its error
            passes through to the caller, and nothing was changed
        :raises DeviceInUse: a domain of another instance has it, or a process or the host uses it
        :raises NotProven: somebody wrote to it since it was proven clean, or it was never made ready before and has
            neither a proof nor a record that a guest of ours got it, unless devices without a proof are taken as clean
        :raises UsersUnknown: its users are unknown; the device keeps its proof
        :raises ParentFull: the parent can make no more; nothing is left behind
        :raises ParentGone: the parent is certainly gone, and the device stores no data; nothing is left behind
        :raises DeviceGone: the device is not there, or another device has its name
        :raises DeviceBusy: another process works on it
        :raises RealizeFailed: anything else about this device; the driver undid its work, or the next call finds it
        :raises HypervisorUnreachable: no answer; the device may be half made until the next realize or unclaim
        """

    @abc.abstractmethod
    def unclaim(self, assignments: Sequence[DeviceAssignment],
                confirm: Confirm | None = None) -> Mapping[DeviceKey, DriverError | None]:
        """Check that no domain has the devices, remove or wipe them, and prove that they are clean or gone.

        Idempotent: it does not repeat work that is done, except a wipe without proof. A device of an assignment that
        was only claimed (:attr:`~devicetrack.objects.DeviceAssignment.was_only_claimed`) is not wiped, if a proof on
        this host shows that it is clean, and nobody uses it. If others use or changed such a device, or it has lost its
        proof otherwise than by :meth:`realize`, the device and its proof stay as they are. When somebody uses another
        device, the driver removes its proof, so that the device is wiped once that use ends. The driver holds the
        devices' locks, and asks the hypervisor right before it changes each device and once more after the last one: a
        guest may have been started meanwhile. The proof of a device that stores data is durable before the answer.

        :param confirm: called with each assignment under its device's lock, before the device is changed. Its error
            ends the call and passes through to the caller: this device and those after it were not changed
        :returns: for every device None, if it may be assigned again, or the error that keeps it held.
            :class:`UnclaimFailed`: it was not removed or wiped, or that is not proven. :class:`UsersUnknown`: its users
            are unknown, before or after the work. After the others nothing was changed: :class:`DeviceInUse`: a domain
            has it, or may have it by an address that leads to no device. :class:`DeviceBusy`: another process works on
            it. :class:`DeviceGone`: it is not there, or another device has its name. :class:`NotProven`: it was only
            claimed, and others use or changed it
        :raises HypervisorUnreachable: no answer, so the devices may be in use; nothing was changed
        """

    def vacate(self, assignment: DeviceAssignment) -> None:
        """Remove from a device what leads others to the guest that has left it, such as the address of a network port.

        The device keeps its contents and its owner, which may come back to it after :meth:`realize`. Idempotent. If a
        guest has the device, nothing is changed. The default does nothing, for a driver without such devices.

        :raises DriverError: some of it may remain; call again
        """

    def unnamed(self, devices: Sequence[tuple[DeviceKey, str]]) -> frozenset[DeviceKey]:
        """Return those of some devices that are in no option, whether the host has them or not.

        Quick, and for people: such a device may be there all the same, but the driver does not look for it. The default
        returns none.

        :param devices: each with the stored text of its details
        """
        return frozenset()

    def containment(self, devices: Sequence[InventoryDevice]) -> Sequence[Exclusions]:
        """Describe what devices are on the host, and what contains them, whatever their kinds.

        The owner of a thing owns everything in it. So a device is the whole of its own token, if it can contain
        something, and a part of the token of each thing that contains it. The caller keeps the tokens that devices
        share. The host need not have the devices. Without a kind, the identifier of one is an address in a definition.

        The default is :func:`by_names`.

        :returns: for each device, in their order, its tokens and modes as :class:`.InventoryDevice` has them
        :raises DriverError: the host cannot be read
        """
        return [by_names(device) for device in devices]

    def wiping(self, keys: Iterable[DeviceKey]) -> Mapping[DeviceKey, WipeProgress]:
        """Report the progress of wipes and reads of these devices, whichever process of the host began them.

        Quick. The report is for people: no decision depends on it, and a device may be missing. The default reports
        nothing.
        """
        return {}

    def being_worked_on(self, assignments: Sequence[DeviceAssignment]) -> frozenset[DeviceKey]:
        """Return the devices that :meth:`realize`, :meth:`unclaim` or :meth:`prove` works on, in any process.

        Their locks are held now; this call does not wait for them. The manager calls it before it records an owner for
        a device that it did not choose itself. The default is none, for a driver whose devices store no data.

        :raises DriverError: a lock cannot be used, so the answer is unknown
        """
        return frozenset()

    def wipes_of(self, keys: Iterable[DeviceKey]) -> Mapping[DeviceKey, Wiped]:
        """Return what the last :meth:`unclaim` or :meth:`prove` of each device wiped.

        A device is left out if that call wiped nothing, or if its proof is no longer valid. Quick, and for the history
        alone: other devices may be missing too. The default reports nothing.
        """
        return {}

    def prove(self, assignments: Sequence[DeviceAssignment], how: str,
              confirm: Confirm | None = None) -> Mapping[DeviceKey, DriverError | None]:
        """Prove that devices without an owner are clean, and record that durably on the host.

        By default a driver can prove nothing. The manager does not call a driver without devices that store data.

        :param assignments: the devices, as assignments without an owner
        :param how: ``blank``: ask the host, and read no byte; ``read``: read every byte, and write none; ``wipe``: wipe
            the devices, whatever is on them, as an operator requested; :attr:`.Word.how`: neither read nor write, and
            record a person's word, which is valid as long as any other proof
        :param confirm: called while the driver has the locks: with each device that is to be wiped, right before its
            first byte changes; otherwise with each device that is clean, before that is recorded. A device may have got
            an owner since the manager chose it. Its error ends the call and passes through to the caller: this device
            and those after it were not changed, and no proof of them was recorded
        :returns: for every device None, or the error that keeps it withheld. :class:`NotProven`: it is not clean, or
            that is unknown. :class:`DeviceInUse`, :class:`DeviceBusy`, :class:`DeviceGone`, :class:`UnclaimFailed`: as
            :meth:`unclaim`
        :raises HypervisorUnreachable: no answer, so the devices may be in use; nothing was changed
        """
        return {one.key: NotProven(*one.key, 'its driver cannot prove it') for one in assignments}

    def proof_of(self, key: DeviceKey, details: str) -> str | None:
        """Return how a device was proven clean, and when; None without a valid proof. Quick, and for people.

        The default is None.

        :param details: the stored text of its details
        """
        return None

    def stop_proving(self) -> None:
        """Make a :meth:`prove` that reads in another thread end soon, with an error. The default does nothing."""

    def disprove(self, keys: Iterable[DeviceKey]) -> None:
        """Durably remove the proofs that devices are clean, because somebody else used them, and those of their parts.

        The default does nothing, for a driver that records no proofs.

        :raises DriverError: a proof may remain
        """

    @abc.abstractmethod
    def guest_config(self, assignments: Sequence[DeviceAssignment], flavor: str | None = None,
                     beside: Sequence[DeviceAssignment] = ()) -> GuestConfig:
        """Return the guest's devices, in the order of the assignments and with this boot's paths, and its metadata.

        :param flavor: the name of the instance's flavor, for the metadata, where it is known
        :param beside: other devices of the instance on this host, which the guest does not use now. The metadata
            records them, so that a lost store can be rebuilt, but there is no element for them
        :raises DeviceGone: a device among ``assignments`` is not there, or another device has its name
        """

    # -- existing guests ----------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def guest_records(self, told: Callable[[int, int], None] | None = None,
                      unread: Callable[[Unknown], object] | None = None) -> Sequence[GuestRecord]:
        """Read the records in guests' definitions: in the live one of a running guest, else in the inactive one.

        If a record cannot be read or belongs to another instance than its domain, the driver omits it and logs a
        warning. Records serve to rebuild a lost store. The audit compares rows with usage, not with records.

        :param told: called after each domain, with how many were read and how many there are, in another thread or
            in this one. An exception from it ends this call
        :param unread: called for each record that is omitted, as ``told``: its devices are unknown
        :raises HypervisorUnreachable: no answer
        """

    @abc.abstractmethod
    def destroy_guest(self, domain_uuid: str, stop: bool = True) -> None:
        """Stop a guest at once and remove every definition of it, with its firmware variables and saved state.

        Idempotent. The manager calls it for a guest whose instance, in the compute service, was evacuated from here or
        left by a completed migration. The guest's devices stay as it left them, and may then be released.

        :param stop: False leaves a guest that runs as it is, and raises GuestNotRemoved
        :raises GuestNotRemoved: the guest may be off by now, and something of it is left
        :raises HypervisorUnreachable: no answer; the guest may be off or gone by now. Call again
        """

    @abc.abstractmethod
    def rewrite_guest(self, assignments: Sequence[DeviceAssignment], beside: Sequence[DeviceAssignment] = (),
                      is_untracked: IsUntracked = is_never_untracked) -> bool:
        """Give an inactive definition that was written in another boot the addresses of this one.

        It gets new addresses, in its own order, and a new record with the flavor of the old one. Nothing else in it
        changes. If the guest starts from a saved state, the definition in that state gets both too; it may lack
        mediated devices and PCI functions, which a service detaches before it saves a guest. The manager calls this
        method after it realized the devices and before the guest starts. Idempotent. If somebody undefines the guest in
        the moment of the change, the guest may be defined again.

        :param assignments: the devices that the definition has elements for, one or more
        :param beside: as for :meth:`guest_config`
        :param is_untracked: whether a device has no row, and this host does not track it. If the definition contains
            such a mediated device, its element stays as it is: it may be an accelerator that the service itself manages
        :returns: False if there is no definition of another boot: nothing was changed
        :raises InvalidDocument: the definition does not show which element is which device, or has other devices than
            these; nothing was changed
        :raises DeviceGone: a device is not there, or another device has its name; nothing was changed
        :raises DriverError: the hypervisor refused the new definition, or somebody changed the old one meanwhile; the
            old one is still there
        :raises HypervisorUnreachable: no answer; the definition is the old or the new one. Call again
        """

    @abc.abstractmethod
    def rewrite_definition(self, definition: str, assignments: Sequence[DeviceAssignment],
                           beside: Sequence[DeviceAssignment] = (),
                           is_untracked: IsUntracked = is_never_untracked) -> str:
        """Give a definition that the service has kept, perhaps since another boot, the addresses of this boot.

        This does to a text what :meth:`rewrite_guest` does to a definition in the hypervisor, with the same parameters
        and errors of documents and devices. It defines nothing, and the hypervisor need not know the guest. The text
        holds secrets of the guest: never log it.

        :returns: the new text. A text of this boot, or of an unknown boot, is returned unchanged: its addresses are
            taken as valid
        """

    def live_migration_obstacles(self) -> Mapping[str, str]:
        """Return, by device kind, why no running guest with such a device can leave this host or come to it.

        A kind without a known obstacle is left out. The default returns none.

        :raises HypervisorUnreachable: no answer
        """
        return {}

    def migration_obstacle_of(self, assignment: DeviceAssignment) -> str | None:
        """Return why the guest that has this device here cannot leave while it runs.

        The answer is about this one device and does not repeat that of :meth:`live_migration_obstacles` for its kind.
        The default is None: no known reason.

        :raises HypervisorUnreachable: no answer
        """
        return None

    def can_become(self, source: str, destination: str) -> bool:
        """Whether a device of one kind can replace a device of another kind in a guest that moves here while it runs.

        By default only a device of the same kind can. No I/O.
        """
        return source == destination

    def migration_types(self) -> Sequence[MigrationType]:
        """Read what the host's parents declare about their types for live migration. By default they declare nothing.

        A type without a declaration may be left out.

        :raises HypervisorUnreachable: no answer
        """
        return ()

    @abc.abstractmethod
    def devices_in(self, definition: str) -> frozenset[DeviceKey]:
        """Return the devices in a definition that the hypervisor is about to get.

        Its addresses are valid in this boot. An address that certainly leads to no device of this driver is left out.

        :raises InvalidDocument: the definition cannot be read
        :raises DriverError, HypervisorUnreachable: the devices of its addresses are unknown
        """

    @abc.abstractmethod
    def migration_definitions(self, device_map: DeviceMap, definition: str | None = None) -> MigrationDefinitions:
        """At the source of a live migration, return the guest's definitions with the destination's devices in them.

        Each device's partner in the map replaces the device, and the map's metadata replaces our metadata. Nothing else
        in the texts differs, and nothing changes on either host. The texts hold secrets of the guest: never log them.

        :param definition: the guest's live definition, in which the service has changed other things for the
            destination. With it, ``persistent`` is None, and the driver only asks the hypervisor whether the guest runs

        :raises DomainGone: the guest does not run here
        :raises InvalidDocument: a definition cannot be read, or its devices are not those of the map
        :raises DriverError: the hypervisor refused to give the definitions
        :raises HypervisorUnreachable: no answer
        """

    def close(self) -> None:
        """Close connections. The driver may be used again."""


def _as_port(candidate: Candidate, port: Port | None) -> Candidate:
    try:
        text = details.as_port(candidate.details, port)
    except ValueError as error:
        raise BadRequest(f'{candidate.kind}/{candidate.identifier}', port and tuple(port), str(error)) from error
    return candidate if text is candidate.details else candidate._replace(details=text)


def by_names(device: InventoryDevice) -> Exclusions:
    """The tokens of a device, as :meth:`VirtDriver.containment` has them, by names alone.

    An identifier that is a PCI address is that function, and a parent that is named after one contains the device.
    """
    own, container = things.address_in(device.identifier), things.address_in(device.parent)
    return things.exclusions(own and things.of_function(own), [things.of_function(container)] if container else [])


def part_in_use(key: DeviceKey, relatives: Collection[str], usage: Usage) -> DeviceInUse | None:
    """Return an error if a domain has a part of a device, or a thing that contains it; else None.

    A mediated device on it is in use as long as it exists: somebody made it, and it would vanish.

    :param relatives: the addresses of all of these
    """
    uses = [(use.domain_uuid, use.address) for use in usage.uses
            if use.address in relatives and (use.kind, use.identifier) != key and not use.in_snapshot_only]
    found = min((*uses, *(one for one in usage.others if one[1] in relatives)), default=None)
    if found is not None:
        return DeviceInUse(*key, f'domain {found[0]} names {found[1]}, which is a part of it or contains it')
    made = sorted(filter(vocabulary.is_uuid, relatives))
    return DeviceInUse(*key, f'the mediated device {made[0]} is on it: remove that, if nobody needs it (mdevctl stop '
                             f'--uuid {made[0]})') if made else None


def obstacle(key: DeviceKey, usage: Usage, owner: str | None = None, if_named: str = '',
             if_unknown: str = '') -> DeviceInUse | UsersUnknown | None:
    """Return the error of a device that somebody uses; None if nobody uses it.

    The error's class tells a device in use from one whose users are unknown. An address that leads to no device is a
    use if it may be that of this device (:meth:`.Use.may_mean`).

    :param owner: the instance that has the device; None for a device without an owner
    :param if_named: what an operator can do about a domain that has the device, for the end of the reason
    :param if_unknown: what an operator can do about a domain that cannot be read, for the end of the reason
    """
    uses = [use for use in usage.uses if (use.kind, use.identifier) == key]
    users = sorted({use.domain_uuid for use in uses if not use.in_snapshot_only})
    if users:
        return DeviceInUse(*key, _advised(f'domain {", ".join(users)} names it', if_named))
    if uses:
        return DeviceInUse(*key, f'a snapshot of domain {", ".join(sorted({use.domain_uuid for use in uses}))} names '
                                 'it: delete the snapshot')
    if usage.unknown:
        what, reason = usage.unknown[0]
        return UsersUnknown(*key, _advised(f'its users are unknown: {what} cannot be read ({reason})', if_unknown))
    lost = min(((use.domain_uuid, use.address) for use in usage.uses if use.may_mean(key, owner)), default=None)
    if lost is not None:
        return DeviceInUse(*key, _advised(f'domain {lost[0]} may name it: its address {lost[1]} leads to no device of '
                                          f'kind {key.kind}', if_named))
    return None


def check_free(assignment: DeviceAssignment, is_proven: bool, ask: Callable[[], Usage],
               obstacle_of: Callable[[DeviceAssignment, Usage], DriverError | None], check: Callable[[], object],
               disprove: Callable[[Collection[DeviceKey]], object]) -> None:
    """Check that nobody else uses a device that its guest has not had yet. A wipe checks the same.

    A device that was made ready before may have its own guest, also after a restart. A device that somebody else uses
    loses its proof: that user may write to it, and be gone at the next look.

    :param is_proven: whether a proof shows that it is clean
    :param ask: asks the hypervisor which domains have devices
    :param obstacle_of: returns the error of a device that somebody uses, as :func:`obstacle`
    :param check: makes the driver's other checks, and raises their errors
    :param disprove: removes the proofs of devices
    """
    if assignment.was_realized and not is_proven:
        return
    usage, key, own = ask(), assignment.key, assignment.instance_uuid
    if any(use.live and (use.kind, use.identifier, use.domain_uuid) == (*key, own) for use in usage.uses):
        return
    try:
        error = obstacle_of(assignment, usage.without(own))
        if error is not None:
            raise error
        check()
    except (DeviceInUse, NotProven):
        disprove((key,))
        raise


def is_of_others(key: DeviceKey, usage: Usage, owner: str) -> bool:
    """Whether the domain of its owner certainly does not use a device."""
    return not usage.unknown and not any(
        use.domain_uuid == owner and ((use.kind, use.identifier) == key or use.may_mean(key, owner))
        for use in usage.uses)


def _advised(reason: str, advice: str) -> str:
    return f'{reason}: {advice}' if advice else reason
