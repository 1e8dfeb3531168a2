"""PCI functions in sysfs (Linux: Documentation/ABI/testing/sysfs-bus-pci, Documentation/PCI/pci-iov-howto.rst).

::

    bus/pci/devices/<function>               links to the directory of the function
    bus/pci/devices/<function>/modalias      vendor, product, subsystem and class in one line
    bus/pci/devices/<function>/driver        links to the driver that has it; no link without a driver
    bus/pci/devices/<function>/iommu_group   links to a directory that is called by its number
    bus/pci/devices/<function>/physfn        links a virtual function to its physical function
    bus/pci/devices/<function>/virtfn<n>     links a physical function to its virtual function number n
    bus/pci/devices/<function>/net/<interface>
    bus/pci/devices/<function>/virtio<n>/net/<interface>    while its driver is virtio-pci
    bus/pci/devices/<function>/nvme/<controller>/serial     while its driver is nvme
    class/net/<interface>                    links to a directory below that of its function

Three attributes are never opened here, because reading them waits for the lock of the device (device_lock in Linux:
drivers/pci/iov.c, drivers/pci/pci-sysfs.c, drivers/base/core.c): ``sriov_numvfs``, ``driver_override`` and, in some
releases of Linux, ``uevent``. While somebody disables virtual functions and a guest has one of them, that lock is held
until the guest is gone, and nothing can end a process that waits for it. Only :meth:`Tree.driver_override` opens one of
the three. Reading ``config`` wakes a device that sleeps. So only :meth:`Tree.silence` opens it, and not while the
device sleeps.

Attributes are read by the descriptor of the function's directory, with one read each, since a host has thousands of
virtual functions. All come from one device, even if another one takes the address meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
import contextlib
import errno
import functools
import os
import re
from typing import Final
from typing import NamedTuple
from typing import TypeVar

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.virt.libvirt import kernel_files

TYPE_PCI: Final = 'type-PCI'
TYPE_PF: Final = 'type-PF'
TYPE_VF: Final = 'type-VF'

# modalias_show in Linux: drivers/pci/pci-sysfs.c. The identifiers have four digits of eight.
_MODALIAS: Final = re.compile(r'pci:v0000([0-9A-F]{4})d0000([0-9A-F]{4})sv0000([0-9A-F]{4})sd0000([0-9A-F]{4})'
                              r'bc([0-9A-F]{2})sc([0-9A-F]{2})i([0-9A-F]{2})')
_VIRTFN: Final = re.compile(r'virtfn([0-9]+)')
# A network interface is below the function itself, or below virtio's device, which is below the function.
_INTERFACE: Final = re.compile(rf'.*/({vocabulary.PCI_ADDRESS.pattern})(?:/virtio[0-9]+)?/net/([^/]+)')
_VIRTIO: Final = re.compile(r'virtio[0-9]+')
NVME_NAME: Final = re.compile(r'nvme[0-9]+')
# PCI-to-PCI, CardBus and semitransparent PCI-to-PCI bridges (PCI Code and ID Assignment Specification).
_BRIDGES: Final = ('0604', '0607', '0609')
_NO_SUBSYSTEM: Final = '0000:0000'

# The registers of every function begin with these: vendor to header type, of which bit 7 says something else.
_HEADER: Final = 16
_HEADER_TYPE: Final = 0x0E
_LAYOUT: Final = 0x7F

_DIRECTORY: Final = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_LIST: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC

_Value = TypeVar('_Value')


class Function(NamedTuple):
    """A PCI function: a device of its own, or one of several on a card, a physical or a virtual one.

    ``address`` is as the kernel writes it, ``0000:81:00.0``. ``vendor_id``, ``product_id`` and ``class_code`` have 4,
    4 and 6 hexadecimal digits in lower case, and are empty where they cannot be read. ``subsystem`` is
    ``vendor:product``, or None. ``driver``, ``iommu_group`` and ``numa_node`` are None where there is none.

    Only a virtual function has ``physfn`` and ``vf_number``. ``vfs`` are the virtual functions of a physical one in the
    order of their numbers, and ``total_vfs`` is the number that it can have, 0 for any other function.

    ``reset_methods`` are in the order in which the kernel tries them. ``serial`` is the serial number of an NVMe
    controller while its own driver has it, else None. The controllers of one NVMe subsystem, such as those of a
    physical function and of its virtual ones, have one serial number. ``net`` are the names of its network interfaces
    in this network namespace.

    ``problem`` is None, or a phrase with the first thing that could not be read. The field for that thing is then
    empty, as if the function had none.

    ``parent`` is the physical function of a virtual one, read with it; None if there is none any more.
    """

    address: str
    vendor_id: str = ''
    product_id: str = ''
    subsystem: str | None = None
    class_code: str = ''
    driver: str | None = None
    iommu_group: int | None = None
    numa_node: int | None = None
    physfn: str | None = None
    vf_number: int | None = None
    vfs: tuple[str, ...] = ()
    total_vfs: int = 0
    reset_methods: tuple[str, ...] = ()
    serial: str | None = None
    net: tuple[str, ...] = ()
    problem: str | None = None
    parent: Function | None = None

    @property
    def device_type(self) -> str:
        """:data:`TYPE_VF`, :data:`TYPE_PF` or :data:`TYPE_PCI`, as libvirt and Nova tell them apart.

        A function that can have virtual functions is a physical one, even if it has none now.
        """
        if self.physfn is not None:
            return TYPE_VF
        return TYPE_PF if self.total_vfs else TYPE_PCI

    @property
    def is_bridge(self) -> bool:
        """Whether other devices are behind it. No guest can have a bridge, and VFIO tolerates its driver in a group."""
        return self.class_code.startswith(_BRIDGES)


class Tree:
    """The PCI functions of this host. Nothing here needs root. Threads may share it.

    :param root: where sysfs is
    """

    def __init__(self, root: str = '/sys') -> None:
        self.root = root
        self._devices = os.path.join(root, 'bus/pci/devices')

    def path(self, address: str) -> str:
        """Return the path of a function, whether it exists or not."""
        return os.path.join(self._devices, address)

    def addresses(self) -> list[str]:
        """List the addresses of all functions, in their order.

        :raises CommandFailed: they cannot be listed
        """
        try:
            return sorted(filter(vocabulary.PCI_ADDRESS.fullmatch, os.listdir(self._devices)))
        except OSError as error:
            raise exception.CommandFailed(f'listing {self._devices}', str(error.strerror)) from error

    def functions(self) -> list[Function]:
        """Read every function, in the order of their addresses. One that goes away meanwhile is left out.

        :raises CommandFailed: they cannot be listed; one that cannot be read has a ``problem`` instead
        """
        with self._listing() as devices:
            return [function for function in map(_Reader(devices).function, self.addresses()) if function is not None]

    def function(self, address: str) -> Function | None:
        """Read one function; None if there is none of this address.

        :raises CommandFailed: the functions of this host cannot be listed
        """
        if not vocabulary.PCI_ADDRESS.fullmatch(address):
            return None
        with self._listing() as devices:
            return _Reader(devices).function(address)

    def group(self, number: int) -> tuple[str, ...]:
        """Return the addresses of the functions in an IOMMU group, bridges too; none if there is no such group.

        :raises CommandFailed: they cannot be listed
        """
        names = kernel_files.names(self.root, f'kernel/iommu_groups/{number}/devices')
        return tuple(sorted(filter(vocabulary.PCI_ADDRESS.fullmatch, names)))

    def is_alone(self, address: str) -> bool:
        """Whether no other function is on a function's bus; False if that cannot be read."""
        # The functions of a bus, virtual ones too, are in the directory of the bridge above it.
        try:
            beside = os.listdir(os.path.join(self._devices, address, os.pardir))
        except OSError:
            return False
        bus = address.rpartition(':')[0]
        functions = filter(vocabulary.PCI_ADDRESS.fullmatch, beside)
        return {name for name in functions if name.rpartition(':')[0] == bus} == {address}

    def owner_of(self, interface: str) -> str | None:
        """Return the address of the function that has a network interface; None if no function has it."""
        found = _INTERFACE.fullmatch(kernel_files.target(self.root, 'class/net', interface))
        return None if found is None else found[1]

    def has_interface(self, name: str) -> bool:
        """Whether there is a network interface of this name in this network namespace."""
        return os.path.lexists(os.path.join(self.root, 'class/net', name))

    def driver_override(self, address: str) -> str | None:
        """Read the name of the only driver that may take a function; None if any driver that knows it may.

        This waits for the lock of the device while a driver binds to it or unbinds from it. The module's docstring says
        when that wait can last forever. So call this only where the caller may also write the attribute.

        :raises CommandFailed: it cannot be read
        """
        try:
            name = kernel_files.text(self._devices, address, 'driver_override')
        except OSError as error:
            raise exception.CommandFailed('reading', f'driver_override of {address}: {error.strerror}') from error
        return None if name in ('', '(null)') else name

    def nvm_subsystem(self, address: str) -> str | None:
        """Return the name of the NVM subsystem of a function; None if its driver does not tell it now."""
        directory = os.path.join(self._devices, address, 'nvme')
        with contextlib.suppress(OSError, ValueError):
            for name in filter(NVME_NAME.fullmatch, os.listdir(directory)):
                return _serial(kernel_files.text(directory, name, 'subsysnqn')) or None
        return None

    def has_left(self, address: str, driver: str) -> bool:
        """Whether a card is certainly no longer at an address: its bus is empty, or another driver has what is there.

        A function of the card may come late, a driver may bind late, and a virtual function is made late. So anything
        else proves nothing.

        :param driver: the card's own driver
        """
        there = [name for name in kernel_files.names_in_reach(self._devices) if vocabulary.PCI_ADDRESS.fullmatch(name)]
        if there and not any(name.startswith(f'{address.rpartition(":")[0]}:') for name in there):
            return True
        found = kernel_files.link(self.path(address), 'driver')
        return found is not None and found != driver and 'vfio' not in found

    def silence(self, address: str) -> str | None:
        """Say that a function does not answer on its bus; None if it answers, sleeps, or shows no registers.

        The kernel still shows a function that has fallen off its bus, with everything that it read when it found it.
        Then each register reads as ones. No function has such a header type (PCI Local Bus Specification 3.0, 6.1),
        and only a virtual one has such a vendor.
        """
        directory = os.path.join(self._devices, address)
        with contextlib.suppress(OSError):
            if kernel_files.text(directory, 'power/runtime_status').startswith('suspend'):
                return None
        try:
            header = kernel_files.data(os.path.join(directory, 'config'), _HEADER)
        except FileNotFoundError:
            return None                         # the function is gone, and whoever asks sees that
        except OSError as error:
            return f'{address} does not answer on its bus: its registers cannot be read ({error.strerror})'
        if len(header) < _HEADER or not (header[_HEADER_TYPE] & _LAYOUT == _LAYOUT or (
                header[:2] == b'\xff\xff' and not os.path.lexists(os.path.join(directory, 'physfn')))):
            return None
        return f'{address} does not answer on its bus: its registers read as ff'

    @contextlib.contextmanager
    def _listing(self) -> Iterator[int]:
        try:
            devices = os.open(self._devices, _LIST)
        except OSError as error:
            raise exception.CommandFailed(f'listing {self._devices}', str(error.strerror)) from error
        try:
            yield devices
        finally:
            os.close(devices)


class _Reader:
    """Reads functions, each once, and a physical function before its virtual ones.

    :param devices: the descriptor of the directory with all functions
    """

    def __init__(self, devices: int) -> None:
        self._devices = devices
        self._known: dict[str, Function | None] = {}
        self._numbers: dict[str, int] = {}      # of virtual functions, by address

    def function(self, address: str) -> Function | None:
        if address not in self._known:
            self._known[address] = None         # nothing is its own physical function
            self._known[address] = self._opened(address)
        return self._known[address]

    def _opened(self, address: str) -> Function | None:
        try:
            directory = os.open(address, _DIRECTORY, dir_fd=self._devices)
        except FileNotFoundError:
            return None
        except OSError as error:
            return Function(address, problem=f'its directory cannot be opened: {error.strerror}')
        try:
            return self._read(address, _Directory(directory))
        finally:
            os.close(directory)

    def _read(self, address: str, at: _Directory) -> Function | None:
        names = at.names()
        total_vfs = at.read('sriov_totalvfs', _count) or 0
        vfs = self._vfs(at, names) if total_vfs else ()
        physfn = at.link('physfn', _address)
        parent = None if physfn is None else self.function(physfn)
        number = self._numbers.get(address)
        if number is None and parent is not None and parent.problem is not None:
            at.problem = at.problem or f'its physical function {physfn}: {parent.problem}'
        driver = at.link('driver', str)
        group = at.link('iommu_group', int)
        node = at.read('numa_node', int)
        methods = at.read('reset_method', str.split)
        interfaces = [interface for name in names if name == 'net' or _VIRTIO.fullmatch(name)
                      for interface in at.names(name if name == 'net' else f'{name}/net')]
        controller = next(filter(NVME_NAME.fullmatch, at.names('nvme') if 'nvme' in names else ()), None)
        serial = None if controller is None else at.read(f'nvme/{controller}/serial', _serial)
        # Every function has a modalias. If it can be read last, the function was there all the time, and an attribute
        # that was missing before really does not exist.
        identity = at.read('modalias', _identity)
        if identity is None:
            if at.problem is None and not self._is_there(address):
                return None
            at.problem = at.problem or 'it has no modalias'
            identity = _Identity('', '', None, '')
        return Function(
            address, identity.vendor_id, identity.product_id, identity.subsystem, identity.class_code, driver, group,
            node if node is not None and node >= 0 else None, physfn, number, vfs, total_vfs, tuple(methods or ()),
            serial or None, tuple(sorted(interfaces)), at.problem, parent)

    def _is_there(self, address: str) -> bool:
        try:
            os.stat(address, dir_fd=self._devices)
        except FileNotFoundError:
            return False
        return True

    def _vfs(self, at: _Directory, names: Iterable[str]) -> tuple[str, ...]:
        """Read the virtual functions of a physical one, and remember their numbers."""
        found = {}
        for name in names:
            number = _VIRTFN.fullmatch(name)
            if number is not None and (vf := at.link(name, _address)) is not None:
                found[int(number[1])] = vf
                self._numbers[vf] = int(number[1])
        return tuple(found[number] for number in sorted(found))


class _Directory:
    """The directory of a function. ``problem`` is the first thing that cannot be read in it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.problem: str | None = None

    def names(self, name: str = '.') -> list[str]:
        """Return the names in the directory, or in one below it; none if there is no such directory."""
        try:
            listed = os.open(name, _LIST, dir_fd=self._descriptor)
            try:
                return os.listdir(listed)
            finally:
                os.close(listed)
        except OSError as error:
            self.fail('directory' if name == '.' else name, error)
            return []

    def read(self, name: str, parse: Callable[[str], _Value]) -> _Value | None:
        """Read an attribute; None if there is none or it cannot be read."""
        try:
            file = os.open(name, kernel_files.READ, dir_fd=self._descriptor)
            try:
                data = os.read(file, kernel_files.PAGE)
            finally:
                os.close(file)
        except OSError as error:
            self.fail(name, error)
            return None
        return self._parsed(os.path.basename(name), data.decode('ascii', 'replace'), parse)

    def link(self, name: str, parse: Callable[[str], _Value]) -> _Value | None:
        """Read the last part of a link's target; None if there is no link or it cannot be read."""
        try:
            target = os.readlink(name, dir_fd=self._descriptor)
        except OSError as error:
            self.fail(name, error)
            return None
        return self._parsed(name, target.rpartition('/')[2], parse)

    def fail(self, name: str, error: OSError) -> None:
        # ENODEV: the device went away after the attribute was opened.
        if error.errno not in (errno.ENOENT, errno.ENODEV) and self.problem is None:
            self.problem = f'its {os.path.basename(name)} cannot be read: {error.strerror}'

    def _parsed(self, name: str, text: str, parse: Callable[[str], _Value]) -> _Value | None:
        try:
            return parse(text)
        except ValueError:
            if self.problem is None:
                self.problem = f'its {name} cannot be understood: {exception.shown(repr(text), 80)}'
            return None


class _Identity(NamedTuple):
    vendor_id: str
    product_id: str
    subsystem: str | None
    class_code: str


@functools.lru_cache(maxsize=1024)          # nearly all virtual functions of a host have the same one
def _identity(text: str) -> _Identity:
    found = _MODALIAS.fullmatch(text.removesuffix('\n'))
    if found is None:
        raise ValueError(text)
    vendor, product, of_vendor, of_product, *codes = found.group(*range(1, 8))
    subsystem = f'{of_vendor}:{of_product}'.lower()
    return _Identity(vendor.lower(), product.lower(), None if subsystem == _NO_SUBSYSTEM else subsystem,
                     ''.join(codes).lower())


def _address(text: str) -> str:
    if not vocabulary.PCI_ADDRESS.fullmatch(text):
        raise ValueError(text)
    return text


def _count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError(text)
    return number


def _serial(text: str) -> str:
    """Return a serial number without the blanks around it. The device chooses the text, so it may be anything."""
    found = text.strip()
    if not (found.isascii() and found.isprintable()):
        raise ValueError(text)
    return found
