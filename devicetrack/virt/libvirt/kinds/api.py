"""The interface of a device kind: the code of the libvirt driver that knows one sort of device.

A kind may rely on the driver for the work that is the same for all kinds. The driver allows one operation at a time on
a device, asks the hypervisor which domain uses which device, refuses to take back a device in use, and orders the
guest's elements.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import AbstractContextManager
import errno
import os
import threading
from typing import Any
from typing import ClassVar
from typing import NamedTuple
from typing import Self

from devicetrack import vocabulary
from devicetrack.exception import CommandFailed
from devicetrack.exception import DeviceInUse
from devicetrack.exception import NotProven
from devicetrack.objects import details
from devicetrack.objects import DeviceAssignment
from devicetrack.objects import things
from devicetrack.objects.pci_alias import PCIAlias
from devicetrack.objects.values import Capacity
from devicetrack.objects.values import Fault
from devicetrack.objects.values import InventoryDevice
from devicetrack.objects.values import MigrationType
from devicetrack.objects.values import Missing
from devicetrack.objects.values import Realized
from devicetrack.virt.libvirt import connection
from devicetrack.virt.libvirt import device_users
from devicetrack.virt.libvirt import domain_xml
from devicetrack.virt.libvirt import guest_xml


class Stock(NamedTuple):
    """The stock of one kind: devices that exist, those that can still be made, and those that only options name.

    ``written`` are the identifiers of devices that the host itself uses now, so their proofs no longer count. It is for
    kinds whose devices store data. ``nothing_kept`` are the identifiers of devices of which an operator says that they
    keep nothing (:meth:`DeviceKind.keeps_nothing`). ``by_person`` are those of devices that :meth:`DeviceKind.unclaim`
    never cleans, because the options leave that to a person. ``faults`` list where the host differs from the options.
    The kind fills them in :meth:`DeviceKind.stock`, from the host or from the things that :meth:`DeviceKind.prepare`
    could not make.
    """

    devices: Sequence[InventoryDevice] = ()
    capacities: tuple[Capacity, ...] = ()
    missing: tuple[Missing, ...] = ()
    written: Collection[str] = ()
    faults: tuple[Fault, ...] = ()
    nothing_kept: Collection[str] = ()
    by_person: Collection[str] = ()


Locked = Callable[[str], AbstractContextManager[bool]]
"""Takes the lock file of one device, by its identifier, for a block: ``with locked(identifier) as is_locked``. In the
block nobody realizes the device or takes it back. ``is_locked`` is False if somebody else has the lock, or if its file
cannot be used: then leave the device alone. The call does not wait for the lock, and does not lock
:meth:`DeviceKind.own_path`."""


def as_device(assignment: DeviceAssignment) -> InventoryDevice:
    """Return the device of a row for :meth:`DeviceKind.node`: the host may not have it."""
    return InventoryDevice(assignment.kind, assignment.identifier, '', assignment.resource_class, assignment.parent,
                           assignment.numa_node, details.to_text(assignment.details))


class DeviceKind(abc.ABC):
    """One sort of device.

    Several threads may call every method at once, for different devices, and commands call it in other processes. The
    driver sets no time limit: a call that waits for a device or a program needs its own, and raises CommandFailed then.

    The constructor reads and checks every option of the kind. It does nothing else: it neither connects nor runs
    anything.

    :param conf: the configuration (an ``oslo_config.cfg.ConfigOpts``); the kind registers the options that it needs
    :param hypervisor: the connection that the kind may use. Its first use opens it
    :raises InvalidConfiguration: an option cannot be used

    ``state_path`` is the host's state directory, an absolute path, for a kind that has to remember something.
    ``boot_id()`` names this boot of the host. The driver makes a kind with :meth:`made_for`, so the constructor can
    read both. A kind that was made without :meth:`made_for` has neither until they are set.
    """

    name: ClassVar[str]
    """The name in the identity of every device of this kind."""

    keeps_bytes: ClassVar[bool]
    """Whether a guest can read the bytes that an earlier guest wrote to a device, unless somebody cleans it in between.
    Every kind must set this: there is no default. A device that stores data is free only while the host has a proof
    that it is clean, which the driver records after :meth:`unclaim`, :meth:`is_blank` and :meth:`read_through`."""

    form: ClassVar[guest_xml.Form | None] = None
    """How definitions name its devices. Without a form their addresses count in every boot, and the driver cannot
    replace the devices of this kind in a definition."""

    state_path: str
    boot_id: Callable[[], str]

    def __init__(self, conf: Any, hypervisor: connection.Connection) -> None:
        self.conf, self.hypervisor = conf, hypervisor

    @classmethod
    def made_for(cls, conf: Any, hypervisor: connection.Connection, state_path: str,
                 boot_id: Callable[[], str]) -> Self:
        """Make the kind as the driver does: its constructor knows the state directory and the boot."""
        kind = cls.__new__(cls)
        kind.state_path, kind.boot_id = os.path.abspath(state_path), boot_id
        cls.__init__(kind, conf, hypervisor)
        return kind

    @property
    @abc.abstractmethod
    def configured(self) -> bool:
        """Whether the options allow any device of this kind here. If not, the driver does not ask for its stock."""

    def is_named(self, identifier: str, stored: str) -> bool:
        """Whether the options ask for a device, whether the host has it or not. It only looks at the options.

        A row or a guest may still have a device that no option names any more, and the operator is told so. By default
        the options name every device of a kind that is configured.

        :param stored: the text of the device's details, for :func:`devicetrack.objects.details.from_text`
        """
        return self.configured

    @property
    @abc.abstractmethod
    def resource_classes(self) -> frozenset[str]:
        """Return all resource classes that the options name, including those without a device."""

    def may_count(self, resource_class: str) -> bool | None:
        """As :meth:`devicetrack.virt.driver.VirtDriver.may_count`; by default None. No I/O, and no error."""
        return None

    def possible_parents(self) -> Collection[str]:
        """Return the providers' names of parents that the host has, whatever the options say; by default none.

        As :meth:`devicetrack.virt.driver.VirtDriver.possible_parents`. A kind without options is asked too, so look
        only where such devices would be.
        """
        return ()

    @property
    def aliases(self) -> Mapping[str, PCIAlias] | None:
        """As :meth:`devicetrack.virt.driver.VirtDriver.aliases`; by default None. At most one kind has aliases."""
        return None

    @property
    def wait_s(self) -> float:
        """How many seconds a release waits for another process that has the device's lock. The default is 0."""
        return 0.0

    def own_path(self, assignment: DeviceAssignment) -> str | None:
        """Return the path of the node or file that is the device on the host, to lock it; None if there is none yet.

        The driver holds this lock (flock(2)) beside its own lock file while it calls :meth:`realize`,
        :meth:`is_untouched` and :meth:`unclaim`. Managers with other state directories have other lock files, so only
        this lock keeps them away. A child that outlives the service inherits the lock file and not this lock. If a wipe
        goes on in a child, return None, open the device in the kind, lock that descriptor, and let the child inherit
        it: then the lock lasts as long as the wipe. The kind ``vpmem`` does so. The default is None. :meth:`check_free`
        finds the device by :meth:`node` too.
        """
        return None

    def check_host(self) -> None:
        """Check that this host can do what the options ask for. The driver calls it at each start, before the stock.

        The default checks nothing.

        :raises InvalidConfiguration: the host cannot; the error says which device, and what to do
        :raises DriverError: the host cannot be read; then the stock reports it
        """
        return None

    def live_migration_obstacle(self) -> str | None:
        """Say why no running guest with such a device can leave this host or come to it; None if no reason is known.

        :raises HypervisorUnreachable: no answer
        """
        return None

    def migration_obstacle_of(self, assignment: DeviceAssignment) -> str | None:
        """Say why the guest that has this device here cannot leave while it runs; None if no reason is known.

        :raises DriverError: the host cannot be read
        """
        return None

    def migration_types(self) -> Sequence[MigrationType]:
        """Read what parents declare for live migration about the types that options enable. The default is empty.

        Each answer has this kind, and the parent and the migration type that are in the details of its devices. If an
        attribute of a type cannot be read, its field holds the problem, and the other types are read all the same. An
        obstacle keeps guests from moving to devices of this type at this parent, and from leaving them.

        :raises HypervisorUnreachable: no answer
        :raises DriverError: no type can be read. Any other error counts as a mistake in the kind's code
        """
        return ()

    def prepare(self, recorded: Mapping[str, str], locked: Locked) -> None:
        """Set the host up as the options say, before its devices are read. The default does nothing.

        The manager calls it at its start and in every audit, if the kind implements it and is configured.
        Commands read the stock without it. It may take long, but every step of it has a deadline.

        It never takes a device from an owner. It may make a device again that a row names and that the host certainly
        does not have. It never replaces, resets or clears an existing device.

        :param recorded: the texts of the details of the devices of this kind that rows name, by identifier; for
            :func:`devicetrack.objects.details.from_text`
        :param locked: takes the lock file of a device (:data:`Locked`)
        :raises DriverError: it ended early. The audit reports the error as ``not as configured``, until a later call
            returns; the stock is read all the same. If only a part cannot be made, return, and have :meth:`stock`
            report that part in :attr:`Stock.faults`
        """

    def call_in_place(self, identifier: str) -> bool:
        """Note durably that a device of a row is where it was, because an operator says so.

        The next :meth:`prepare` relies on it. This is for a kind that cannot tell all its devices apart, and withholds
        those that may have changed places. The default is False: nobody doubts the place of the device.

        :returns: whether its place was in doubt
        :raises DriverError: that cannot be noted
        """
        return False

    def row_ended(self, identifier: str) -> None:
        """Forget what the kind remembers of the row of a device, because the store has confirmed that the row is gone.

        A store may not show a row for a while, for example after a restore. So the absence of a row, as in
        :meth:`prepare`, says nothing. After a crash of the manager this call may be missing. The default does nothing.

        :raises DriverError: that cannot be noted
        """

    @abc.abstractmethod
    def stock(self) -> Stock:
        """Read the devices that the host has now.

        Every device and capacity is of this kind, has one of :attr:`resource_classes`, and its details come from
        :func:`devicetrack.objects.details.to_text`. A provider is '' or has 1 to 128 characters, a parent is None or
        has 1 to 255 characters, as an identifier has. The characters are printable and not slashes. An identifier is
        unique in the kind, and a NUMA node is None or a number from 0. A parent has at most one capacity of a resource
        class, because a claim asks for a class and cannot choose the type. The contract's tests check these rules. The
        driver checks the kinds, the classes, the identifiers, the exclusions and the types of all values: if they are
        wrong, all devices of the kind are unknown.

        :raises DriverError: the stock cannot be read, so it is unknown. Any other error counts as a mistake in the
            kind's code and is logged with its traceback
        """

    def node(self, device: InventoryDevice) -> str | None:
        """Return the thing that a device is on the host: a PCI address, or the path of a device node or a file. Quick.

        If a device of another kind is the same thing, nobody gets either of them. If it is a part of this one, or
        contains it, it is not handed out while somebody has this one. None says that no other kind can offer the
        device, or a part of it. The default is the identifier if that is a PCI address. An identifier is never a path.

        The driver asks for devices of rows, too, which the host may not have: look only at the identifier, the parent
        and the details.
        """
        return device.identifier if vocabulary.PCI_ADDRESS.fullmatch(device.identifier) else None

    def container(self, parent: str) -> str | None:
        """Return the thing that a parent of devices is on the host, in the form of :meth:`node`. Quick, no I/O.

        Whoever has this thing has the devices too, so nobody else gets one of them, and the parent makes none. None
        says that the parent is no thing that anybody could have. By default a parent is a PCI function if its name is
        the function's address, or libvirt's name of it (``pci_0000_84_00_0``).

        The driver itself finds the physical function of a virtual one, and the controller and the disk of a partition.
        """
        return things.address_in(parent)

    @abc.abstractmethod
    def addresses(self, domain: domain_xml.Domain) -> Sequence[str]:
        """Return the addresses in a definition that have this kind's form. No I/O, and no error.

        Several threads may call this at a time, each for another definition.
        """

    def other_addresses(self, domain: domain_xml.Domain) -> Sequence[str]:
        """Return possible addresses of this kind's devices in other forms than :meth:`addresses` reads. No I/O.

        Several threads may call this at a time, each for another definition.
        :meth:`identify` tells which of them mean a device of this host; the others are ignored. The default is none.
        """
        return ()

    @abc.abstractmethod
    def identify(self, addresses: Iterable[str]) -> Mapping[str, str | None]:
        """Find the device that each address means now; None for one that leads to no device now.

        None says that the address may mean a device of this kind that is away. So an audit does not call a row of the
        guest unused, but says that nobody can tell whether the guest uses the row's device. An address that is left out
        certainly means another sort of device, so its domain does not use a device of this kind by it. The driver calls
        this for every answer about usage, with the addresses of all domains together, even for a kind that is not
        configured.

        :raises DriverError: the devices are unknown, and so is their usage
        """

    def check_free(self, assignment: DeviceAssignment) -> None:
        """Check that no process and no other part of the host uses a device that its guest is about to get first.

        The driver asks before the first :meth:`realize` of an assignment, with the device's lock, and no domain of
        anybody else names the device. Its proof is still there. A device that is to be made may not be there yet. By
        default, no other process may have the device node or file of :meth:`node` or :meth:`own_path` open or mapped
        (:func:`devicetrack.virt.libvirt.device_users.check_path_not_open`).

        :raises DeviceInUse: a process or the host itself uses it
        :raises DeviceBusy: somebody else works on it
        :raises DriverError: its users are unknown, or it cannot be given to a guest; nothing was changed
        """
        for path in {self.node(as_device(assignment)), self.own_path(assignment)}:
            if path is None or not os.path.isabs(path):         # a PCI address
                continue
            try:
                device_users.check_path_not_open(os.path.realpath(path))
            except FileNotFoundError:
                continue
            except OSError as error:
                if error.errno == errno.EBUSY:
                    raise DeviceInUse(self.name, assignment.identifier, str(error.strerror)) from error
                raise CommandFailed(f'see who uses {path}', str(error.strerror)) from error

    def observed(self) -> Stock:
        """List the devices of this kind that the compute service hands out itself, if the options say to look at them.

        They are not part of the kind's own stock, and nobody gets them from this library. An audit compares them with
        the service's own record, so their ``unhealthy`` says what a guest would meet. Only the ``devices`` and
        ``faults`` count. The default has none.

        :raises DriverError: the host cannot be read
        """
        return Stock()

    def evidence(self, identifiers: Collection[str]) -> Mapping[str, str]:
        """Read what the host shows of writes to devices, for example counters and times. Quick: this reads no device.

        For a kind that stores data. The driver keeps the text with the proof that a device is clean. It compares it in
        every audit, and when a guest is about to get the device. Leave a device out if nothing tells: then only those
        are seen who have it open at such a moment. The default is none.

        :returns: by identifier, texts of one line without tabs
        :raises DriverError: the host cannot be read
        """
        return {}

    def is_written(self, before: str, now: str) -> bool:
        """Whether somebody may have written to a device between two texts of :meth:`evidence`. No I/O.

        By default somebody has if they differ.
        """
        return before != now

    def opened(self, identifiers: Collection[str]) -> Collection[str]:
        """Find those of some free devices that a process has open or mapped now.

        For a kind that stores data. Audits ask, because such a process may write and leave no trace. A kind that names
        them in ``Stock.written`` already need not do it again. The default finds none.

        :raises DriverError: the users of a device are unknown
        """
        return ()

    @abc.abstractmethod
    def realize(self, assignment: DeviceAssignment) -> Realized:
        """Make one device ready for its guest: create it, or check that it is there and is the recorded one.

        The driver has the device's lock, and has removed the proof that the device is clean. The manager may call this
        again for the same assignment, for example after a crash in the middle or after a boot of the host.

        :returns: the key of the assignment; the details to store from now on, in which the fields that only the row
            knows (``OF_THE_ROW``) are those of the assignment; and, if the device was made, the capacities of its
            parent after that
        :raises ParentFull: the parent can make no more; nothing is left behind. The manager takes another device
        :raises ParentGone: the parent is certainly away, and so is the device, which keeps nothing; nothing is left
            behind. The manager takes another device, of any provider
        :raises DeviceGone: the device is certainly not there, or another device has its name
        :raises DeviceInUse: the host itself uses it
        :raises RealizeFailed: anything else about this device, including that its identity cannot be told now
        :raises HypervisorUnreachable: no answer; the device may be half made, and the next call completes the work
        :raises DriverError: the host cannot be read
        """

    @abc.abstractmethod
    def unclaim(self, assignment: DeviceAssignment, lock_fd: int) -> None:
        """Take one device back: remove it or clean it, and prove that. No domain names it, and the driver has its lock.

        For a kind that stores data, the driver also passes a device without an owner here when an operator wants it
        wiped. The manager may call this again, even if an earlier call has already cleaned or removed the device.
        Nothing stops it early.

        :param lock_fd: the descriptor that holds the lock. Every child that touches the device inherits it, so the lock
            lasts until the child ends, even if this process ends before
        :raises DeviceGone: the device is certainly not there, or another device has its name; nothing was changed
        :raises DeviceInUse: the host itself or a process uses it; nothing was changed
        :raises DeviceBusy: somebody else works on it; nothing was changed
        :raises UnclaimFailed: it is not clean, nothing proves that it is clean, or its identity cannot be told now
        :raises DriverError: anything else, handled like UnclaimFailed. After any error the device stays held
        """

    def vacate(self, assignment: DeviceAssignment) -> None:
        """Take off a device what leads others to the guest that has left it, such as a MAC address.

        The driver asks when a guest has left for a move that somebody may still revert: then :meth:`realize` puts it
        back. The driver has the device's lock. The contents of the device stay. If a guest has the device, change
        nothing. The default does nothing.

        :raises DriverError: it may still be there
        """

    def within_reach(self, owned: Collection[str], proven: Mapping[str, str]) -> Collection[str]:
        """Find other devices of this kind whose bytes the owner of a device can reach, as all parts of a whole disk.

        For a kind that stores data. The driver asks before a guest gets devices, and removes the proofs of the devices
        in the answer with theirs. The driver itself finds the devices of other kinds, by :meth:`node`,
        :meth:`container` and the exclusions. The texts are of details; the host need not have these devices now. The
        default is none.

        :param owned: the texts of the devices that a guest is about to get
        :param proven: by identifier, the texts of all devices of this kind that are proven clean, perhaps thousands
        :returns: identifiers of ``proven``
        """
        return ()

    def keeps_nothing(self, assignment: DeviceAssignment) -> bool:
        """Whether an operator says that a device keeps nothing of its guest, so that :meth:`unclaim` cleans nothing.

        A proof of such a device counts only while :meth:`stock` names it in ``nothing_kept``.

        :raises DriverError: that cannot be told
        """
        return False

    def check_unused(self, assignment: DeviceAssignment) -> None:
        """Check once more that nobody has used a device since :meth:`unclaim` returned.

        The driver asks this before the device is free, if it has given back other devices since, which may have taken
        hours. It asks the hypervisor itself. The default does nothing.

        :raises DriverError: as :meth:`unclaim`; the device stays held
        """

    def is_untouched(self, assignment: DeviceAssignment) -> bool:
        """Say whether a device that is proven clean and was only claimed can be freed as it is.

        For a kind that stores data. The driver has the device's lock, and no domain names it. The default is False: the
        kind cannot tell, and the device becomes unproven.

        The kind checks that the device is there, is the recorded one and is not in use. The driver relies on the
        answer, and frees the device.

        :returns: True only if the device can be freed; otherwise it becomes unproven
        :raises DriverError: as :meth:`unclaim`, if the host does not have the device or somebody uses it
        """
        return False

    def is_blank(self, assignments: Sequence[DeviceAssignment]) -> Collection[str]:
        """Find the devices whose bytes are all zero, as far as the host knows that without reading any of them.

        For a kind that stores data. The driver has the devices' locks, nobody owns the devices, and no domain names
        them. A kind that can tell leaves out a device that a process has open or mapped: the process may be a guest
        that the hypervisor does not know. The default finds none.

        :param assignments: the devices, as assignments of nobody
        :returns: the identifiers of the zero devices
        :raises DriverError: the host cannot be read
        """
        return ()

    def read_through(self, assignment: DeviceAssignment, lock_fd: int, stop: threading.Event) -> None:
        """Read every byte of a device, and check that all of them are zero. Never writes.

        For a kind that stores data. The driver has the device's lock, nobody owns the device, and no domain names it.
        The default raises NotProven.

        :param lock_fd: as for :meth:`unclaim`
        :param stop: once it is set, reading ends soon, with NotProven
        :raises NotProven: a byte is not zero, or reading was stopped
        :raises DriverError: it cannot be read
        """
        raise NotProven(self.name, assignment.identifier, 'its kind cannot read its devices')

    @abc.abstractmethod
    def guest_elements(self, assignments: Sequence[DeviceAssignment]) -> Sequence[str]:
        """Make an element for each assignment, in their order, with the addresses of this boot. Paths are absolute.

        Their guest may run. If the host hides a part of a device's identity while a guest has it, compare the rest.

        :raises DeviceGone: a device is not there, is not ready, or another device has its name
        :raises DriverError: the host cannot be read
        """
