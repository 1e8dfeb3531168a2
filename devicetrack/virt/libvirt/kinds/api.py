"""The interface of a device kind: the code of the libvirt driver that knows one sort of device.

A kind may rely on the driver, which does the same work for all kinds. It allows one operation at a time on a device,
asks the hypervisor which domain uses which device, refuses to take back a device in use, and orders the guest's
elements.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import AbstractContextManager
import threading
from typing import Any
from typing import ClassVar
from typing import NamedTuple

from devicetrack.exception import NotProven
from devicetrack.objects import DeviceAssignment
from devicetrack.objects.pci_alias import PCIAlias
from devicetrack.objects.values import Capacity
from devicetrack.objects.values import Fault
from devicetrack.objects.values import InventoryDevice
from devicetrack.objects.values import MigrationType
from devicetrack.objects.values import Missing
from devicetrack.objects.values import Realized
from devicetrack.virt.libvirt import connection
from devicetrack.virt.libvirt import domain_xml
from devicetrack.virt.libvirt import guest_xml
from devicetrack.virt.libvirt import overlaps


class Stock(NamedTuple):
    """The stock of one kind: devices that exist, those that can still be made, and those that only options name.

    ``written`` are the identifiers of devices that the host itself uses now: what proved them clean counts no more. It
    is for kinds whose devices keep bytes. ``faults`` say what the host does not have as the options want it.
    """

    devices: Sequence[InventoryDevice] = ()
    capacities: tuple[Capacity, ...] = ()
    missing: tuple[Missing, ...] = ()
    written: Collection[str] = ()
    faults: tuple[Fault, ...] = ()


# Takes the lock file of one device by its identifier, for a block; the block is given False if somebody else has it.
Locked = Callable[[str], AbstractContextManager[bool]]


class DeviceKind(abc.ABC):
    """One sort of device.

    The constructor reads and checks every option of the kind. It does nothing else: it neither connects nor runs
    anything.

    :param conf: the configuration (an ``oslo_config.cfg.ConfigOpts``); the kind registers the options that it needs
    :param hypervisor: the connection that the kind may use. Its first use opens it
    :raises InvalidConfiguration: an option cannot be used

    ``state_path`` is the host's state directory, for a kind that has to remember something. ``boot_id()`` names this
    boot of the host.
    """

    name: ClassVar[str]
    """The name in the identity of every device of this kind."""

    keeps_bytes: ClassVar[bool]
    """Whether a guest finds on such a device what the guest before it wrote, unless somebody cleans it in between.
    Every kind says so: there is no default. A device that keeps bytes is free only while the host has a proof that it
    is clean, which the driver records after :meth:`unclaim`, :meth:`is_blank` and :meth:`read_through`."""

    form: ClassVar[guest_xml.Form | None] = None
    """How definitions name its devices. Without a form their addresses count in every boot, and the driver cannot give
    a definition other devices of this kind."""

    prepares: ClassVar[bool] = False
    """Whether :meth:`prepare` does anything."""

    def __init__(self, conf: Any, hypervisor: connection.Connection) -> None:
        self.conf, self.hypervisor = conf, hypervisor
        # Of the driver, which sets them before it asks for anything else.
        self.state_path = ''
        self.boot_id: Callable[[], str] = str

    @property
    @abc.abstractmethod
    def configured(self) -> bool:
        """Whether the options allow any device of this kind here. If not, the driver does not ask for its stock."""

    @property
    @abc.abstractmethod
    def resource_classes(self) -> frozenset[str]:
        """The resource classes that the options count devices as, also those without a device."""

    @property
    def aliases(self) -> Mapping[str, PCIAlias] | None:
        """As :meth:`devicetrack.virt.driver.VirtDriver.aliases`; by default None. One kind has them at most."""
        return None

    @property
    def wait_s(self) -> float:
        """How long :meth:`unclaim` waits for another process that works on the device."""
        return 0.0

    def own_path(self, assignment: DeviceAssignment) -> str | None:
        """Return the path of what stands for the device on the host, for a lock on that; None if there is nothing yet.

        The driver holds it beside its lock file while it works on the device, so that managers with other state
        directories keep away. By default None: a kind whose devices keep bytes locks what it wipes itself.
        """
        return None

    def check_host(self) -> None:
        """See that this host can do what the options ask for. Called at each start, before the stock.

        By default nothing.

        :raises InvalidConfiguration: it cannot; says which device, and what to do
        :raises DriverError: the host cannot be read; then the stock says so
        """
        return None

    def live_migration_obstacle(self) -> str | None:
        """Say why no running guest with such a device can leave this host or come to it; None without a known reason.

        :raises HypervisorUnreachable: no answer
        """
        return None

    def migration_obstacle_of(self, assignment: DeviceAssignment) -> str | None:
        """Say why the guest that has this device here cannot leave while it runs; None without a known reason.

        :raises DriverError: the host cannot be read
        """
        return None

    def migration_types(self) -> Sequence[MigrationType]:
        """Read what parents declare for live migrations of the types that options enable. By default nothing.

        Each is of this kind, and has the parent and the migration type that are in the details of its devices. If an
        attribute of a type cannot be read, it holds the problem, and the other types are read all the same. An
        obstacle keeps guests from coming to devices of this type at this parent, and from leaving them.

        :raises HypervisorUnreachable: no answer
        :raises DriverError: no type can be read; any other error counts as a mistake in the kind's code
        """
        return ()

    def prepare(self, recorded: Mapping[str, str], locked: Locked) -> None:
        """Make the host what the options say, before its devices are read. By default nothing.

        The manager calls it at its start and in every audit, and commands never do: what only they see stays as it is.
        It may take long, but everything in it has a deadline. What cannot be made is for :attr:`Stock.faults`.

        :param recorded: the details of the devices of this kind that rows name, by identifier
        :param locked: takes the lock file of a device, with which nobody realizes it or takes it back
        :raises DriverError: it cannot be made; the stock is read all the same
        """

    @abc.abstractmethod
    def stock(self) -> Stock:
        """Read the devices that the host has now.

        Every device and capacity is of this kind, has one of :attr:`resource_classes`, and its details come from
        :func:`devicetrack.objects.details.to_text`. Otherwise all devices of the kind are unknown.

        :raises DriverError: the stock cannot be read, so it is unknown; any other error counts as a mistake in the
            kind's code and is logged with its traceback
        """

    def node(self, device: InventoryDevice) -> str | None:
        """Return what a device is on the host: a PCI address, or the path of a device node or of a file. Quick.

        If a device of another kind is the same, nobody gets either of them. None says that no other kind can offer it.
        By default the identifier, when it is an address or a path.
        """
        identifier = device.identifier
        return identifier if identifier.startswith('/') or overlaps.PCI_ADDRESS.fullmatch(identifier) else None

    @abc.abstractmethod
    def addresses(self, domain: domain_xml.Domain) -> Sequence[str]:
        """Return the addresses in a definition that have this kind's form. No I/O."""

    def other_addresses(self, domain: domain_xml.Domain) -> Sequence[str]:
        """Return what may be addresses of this kind's devices in other forms than :meth:`addresses` reads. No I/O.

        :meth:`identify` tells which of them mean a device of this host; the others are ignored. By default none.
        """
        return ()

    @property
    def path_hints(self) -> Sequence[str]:
        """What the paths of its devices begin with, for kinds whose devices have paths."""
        return ()

    @abc.abstractmethod
    def identify(self, addresses: Iterable[str]) -> Mapping[str, str | None]:
        """Find the device that each address means now; None for one that means no device of this host.

        An address that is left out certainly means another sort of device. The driver calls this for every answer about
        usage, with the addresses of all domains together.

        :raises DriverError: the devices are unknown, and so is their usage
        """

    @abc.abstractmethod
    def realize(self, assignment: DeviceAssignment) -> Realized:
        """As :meth:`devicetrack.virt.driver.VirtDriver.realize`, with the device's lock file held."""

    @abc.abstractmethod
    def unclaim(self, assignment: DeviceAssignment, lock_fd: int) -> None:
        """Take one device back: remove it or clean it, and prove that. No domain names it, and the driver has its lock.

        Of a kind that keeps bytes also a device that nobody owned, when an operator wants it wiped.

        :param lock_fd: the descriptor that holds the lock. Every child that touches the device inherits it, so the lock
            lasts until the child ends, even if this process ends before
        :raises DriverError: the device is not given back; it stays held
        """

    def is_untouched(self, assignment: DeviceAssignment) -> bool:
        """Say whether a device, which is proven clean and was only claimed, can go back as it is.

        For a kind that keeps bytes. The driver has the device's lock, and no domain names it. By default the kind
        cannot tell, and the device is wiped.

        :returns: False when it has to be wiped
        :raises DriverError: as :meth:`unclaim`, where the host does not have the device, or somebody uses it
        """
        return False

    def is_blank(self, assignments: Sequence[DeviceAssignment]) -> Collection[str]:
        """Say of which devices the host knows, without reading any of their bytes, that all of them are zero.

        For a kind that keeps bytes. The driver has their locks, and nobody owns or names them. By default of none.

        :param assignments: the devices, as assignments of nobody
        :returns: the identifiers of these
        :raises DriverError: the host cannot be read
        """
        return ()

    def read_through(self, assignment: DeviceAssignment, lock_fd: int, stop: threading.Event) -> None:
        """Read every byte of a device, and see that all of them are zero. Never writes.

        For a kind that keeps bytes. The driver has the device's lock, and nobody owns or names the device. By default
        nothing can be read.

        :param lock_fd: as for :meth:`unclaim`
        :param stop: when it is set, reading ends soon
        :raises NotProven: a byte is not zero, or reading was stopped
        :raises DriverError: it cannot be read
        """
        raise NotProven(self.name, assignment.identifier, 'its kind cannot read its devices')

    @abc.abstractmethod
    def guest_elements(self, assignments: Sequence[DeviceAssignment]) -> Sequence[str]:
        """Make an element for each assignment, in their order, with the addresses of this boot.

        :raises DeviceGone: a device is not there, is not ready or is another one of its name
        :raises DriverError: the host cannot be read
        """
