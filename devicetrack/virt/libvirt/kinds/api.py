"""What the libvirt driver asks of a device kind: the code that knows one sort of device.

The driver does what is the same for all kinds: it keeps two operations off one device, asks the hypervisor who
uses what, refuses to take back what anybody uses, and orders the guest's elements. A kind does the rest, and
may count on that.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import ClassVar
from typing import NamedTuple

from devicetrack.objects import DeviceAssignment
from devicetrack.objects.values import Capacity
from devicetrack.objects.values import InventoryDevice
from devicetrack.objects.values import MigrationType
from devicetrack.objects.values import Missing
from devicetrack.objects.values import Realized
from devicetrack.virt.libvirt import connection
from devicetrack.virt.libvirt import domain_xml
from devicetrack.virt.libvirt import guest_xml

NAMESPACE = 'devicetrack.libvirt.device_kinds'


class Stock(NamedTuple):
    """What a host has of one kind: devices that exist, what can still be made, and what options name in vain."""

    devices: tuple[InventoryDevice, ...] = ()
    capacities: tuple[Capacity, ...] = ()
    missing: tuple[Missing, ...] = ()


class DeviceKind(abc.ABC):
    """One sort of device.

    The constructor reads and checks every option of the kind and touches nothing else: it neither connects nor
    runs anything.

    :param conf: the configuration (an ``oslo_config.cfg.ConfigOpts``); the kind registers the options that it
        needs
    :param hypervisor: the connection that the kind may use; it opens when it is first used
    :raises InvalidConfiguration: an option cannot be used
    """

    name: ClassVar[str]
    """The device kind, as it stands in the identity of every device."""

    form: ClassVar[guest_xml.Form | None] = None
    """How definitions name its devices. Without a form they count by their addresses in every boot, and no
    definition can be given other devices of this kind."""

    def __init__(self, conf: Any, hypervisor: connection.Connection) -> None:
        self.conf, self.hypervisor = conf, hypervisor

    @property
    @abc.abstractmethod
    def configured(self) -> bool:
        """Whether any device of this kind may be handed out here. One that is not has an empty stock."""

    @property
    @abc.abstractmethod
    def resource_classes(self) -> frozenset[str]:
        """The resource classes that the options count devices as, whether or not any is there."""

    @property
    def wait_s(self) -> float:
        """How long :meth:`unclaim` waits for another process that works on the device. By default not at all."""
        return 0.0

    def live_migration_obstacle(self) -> str | None:
        """Why no running guest with such a device can leave this host or come to it; None where nothing is known of it.

        :raises HypervisorUnreachable: no answer
        """
        return None

    def migration_types(self) -> Sequence[MigrationType]:
        """What parents say of the types that options enable there, for guests that move live. By default nothing.

        Each is of this kind, and has the parent and the migration type that the details of its devices have. Only
        what is there is read, and nothing is written. What cannot be read of one is a problem in its attribute, and
        of the others is told all the same.

        :raises HypervisorUnreachable: no answer
        :raises DriverError: nothing can be said of any; any other error is taken for a mistake
        """
        return ()

    @abc.abstractmethod
    def stock(self) -> Stock:
        """Read what the host has now.

        Every device and capacity is of this kind, of one of :attr:`resource_classes`, and has details as
        :func:`devicetrack.objects.details.to_text` makes them: with a stock that has not, all of the kind is unknown.

        :raises DriverError: it cannot be read, and is unknown; any other error is taken for a mistake, and is logged
            with its traceback
        """

    @abc.abstractmethod
    def addresses(self, domain: domain_xml.Domain) -> Sequence[str]:
        """The addresses in a definition that are of this kind's form. No I/O."""

    @abc.abstractmethod
    def identify(self, addresses: Iterable[str]) -> Mapping[str, str | None]:
        """Say which device each address means now; None for one that means no device of this host.

        An address that is left out is certainly that of another sort of device, which is no business of this kind.
        It is called at least once for every answer about usage, and with all addresses of all domains together.

        :raises DriverError: it cannot be said, and who uses what is unknown
        """

    @abc.abstractmethod
    def realize(self, assignment: DeviceAssignment) -> Realized:
        """As :meth:`devicetrack.virt.driver.VirtDriver.realize`, with the device's lock file held."""

    @abc.abstractmethod
    def unclaim(self, assignment: DeviceAssignment, lock_fd: int) -> None:
        """Take one device back: remove it or make it clean, and prove that.

        No domain names it, and its lock is held.

        :param lock_fd: the descriptor that holds the lock; every child that touches the device is given it, so
            that the lock lasts until the child's end whatever becomes of this process
        :raises DeviceError: it is not given back; it stays held
        :raises DriverError: likewise
        """

    @abc.abstractmethod
    def guest_elements(self, assignments: Sequence[DeviceAssignment]) -> Sequence[str]:
        """One element for each assignment, in their order, with the addresses of this boot.

        :raises DeviceGone: a device is not there, is not ready or is another one of its name
        :raises DriverError: the host cannot be read
        """
