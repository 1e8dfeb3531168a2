"""PCI functions of a host, and the host's own use of them, without the hardware.

::

    host = self.useFixture(pci.PCIHost())
    host.add_nvme('0000:01:00.0', 'S1')                             # nvme0, nvme0n1
    host.add_igb('0000:03:00.0')                                    # enp3s0
    first, second = host.make_vfs('0000:03:00.0', 2)                # 0000:03:10.0, .2: enp3s0v0, enp3s0v1
    host.mount('nvme0n1', '/srv')
    tree, use = pci_sysfs.Tree(host.root), host.use()
    with host.opened(first):                                        # a guest has it
        ...

The files are those of QEMU's emulated devices on Linux 6.12. If :mod:`devicetrack.virt.libvirt.privileged` writes to
them, the fixture does what the kernel's drivers do: see :class:`PCIHost`. Other writes have no effect.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import errno
import os
import shutil
import struct
from typing import Final
from typing import NamedTuple

import fixtures

from devicetrack.testing import pci_links
from devicetrack.virt.libvirt import pci_use
from devicetrack.virt.libvirt import pci_variants
from devicetrack.virt.libvirt import root
from devicetrack.virt.libvirt import vf_link

VFIO_PCI: Final = 'vfio-pci'
_NOBODY: Final = '(null)\n'
_BRIDGE_CLASS: Final = '060400'
_FIRST_PROCESS: Final = 1
_FIRST_GROUP: Final = 12
_GROUPS: Final = 1000                           # no host has more IOMMU groups
_FIRST_INTERFACE: Final = 100_000               # no interface of the machine that runs the test has this number
_BLOCK_MAJOR: Final = 259
_CHAR_MAJOR: Final = 240
_NVME_REGISTERS: Final = '010802'
_ETHERNET: Final = '020000'


class Kind(NamedTuple):
    """A model of function. ``driver`` takes it if nobody names another driver.

    ``vf`` is the model of its virtual functions. ``vf_offset`` and ``vf_stride`` give their addresses, as in the SR-IOV
    capability of the function. ``drops_vfs`` says whether the virtual functions vanish when the driver ends.
    """

    product: str
    class_code: str
    driver: str | None
    reset_methods: tuple[str, ...] = ('flr', 'bus')
    total_vfs: int = 0
    vf: Kind | None = None
    vf_offset: int = 0
    vf_stride: int = 1
    drops_vfs: bool = True


NVME: Final = Kind('1b36:0010', _NVME_REGISTERS, 'nvme')
# Its virtual functions have no driver: their controllers are offline until somebody assigns resources.
NVME_SRIOV: Final = NVME._replace(total_vfs=4, vf=NVME._replace(driver=None, reset_methods=('flr',)), vf_offset=1,
                                  drops_vfs=False)
IGB: Final = Kind('8086:10c9', _ETHERNET, 'igb', ('flr', 'pm', 'bus'), 7,
                  Kind('8086:10ca', _ETHERNET, 'igbvf', ('flr',)), 128, 2)
E1000: Final = Kind('8086:100e', _ETHERNET, 'e1000', ())
E1000E: Final = Kind('8086:10d3', _ETHERNET, 'e1000e', ('pm', 'bus'))
EDU: Final = Kind('1234:11e8', '00ff00', None, ('bus',))
TEST_DEVICE: Final = Kind('1b36:0005', '00ff00', None, ())
BRIDGE: Final = Kind('1b36:000e', _BRIDGE_CLASS, None, ())

_NETWORK: Final = frozenset(kind.driver for kind in (IGB, IGB.vf, E1000, E1000E) if kind is not None)


class _Function(NamedTuple):
    kind: Kind
    group: int
    serial: str
    physfn: str | None
    interface: str


class PCIHost(fixtures.Fixture):
    """Parts of sysfs, of the process file system and of ``/dev`` in a temporary directory: ``root``, ``proc``, ``dev``.

    ``written`` has the paths below ``root`` and the texts that the privileged functions wrote, including refused ones.
    These writes have effects:

    - ``driver_override``, ``unbind`` and ``drivers_probe`` give functions to drivers and take them away. With nvme a
      function has a controller and a block device, which gets another number each time; with a network driver it has an
      interface. vfio-pci takes no physical function that has virtual ones. While a guest has a function, no host driver
      takes another function of its group: that function stays without a driver.
    - ``sriov_numvfs`` makes virtual functions, with their drivers unless ``sriov_drivers_autoprobe`` is 0. Here it is a
      FIFO, so a reader hangs, as on a host where somebody removes virtual functions while a guest has one. The kernel
      does not answer about a function in ``hanging``. When igb ends, its virtual functions vanish.
    - ``reset_method`` accepts the methods that the function has. ``resets`` has the functions that were reset, each
      with the methods. The reset of a function in ``failing`` fails.

    ``links`` has the MAC addresses, VLANs and trust of virtual functions, which privileged functions set by rtnetlink.

    Only root can make the device nodes that processes have open. :class:`.libvirt.Libvirtd` accepts ``root`` as the PCI
    devices of its host.

    :param beside: another host of the same test. Questions to the kernel by the number of an IOMMU group go to both
        hosts. So this one has other numbers, and uses the other's directory of ``/dev/vfio``
    """

    def __init__(self, beside: PCIHost | None = None) -> None:
        self._beside = beside

    def _setUp(self) -> None:
        top = self.useFixture(fixtures.TempDir()).path
        self.root, self.proc, self.dev = (os.path.join(top, name) for name in ('sys', 'proc', 'dev'))
        self.written: list[tuple[str, str]] = []
        self.resets: list[tuple[str, str]] = []
        self.failing: set[str] = set()
        self.hanging: set[str] = set()
        self._before_failing: int | None = None
        self._functions: dict[str, _Function] = {}
        self._directories: dict[str, str] = {}
        self._open: set[str] = set()
        self._controllers: dict[str, int] = {}
        self._next_controller = 0
        self._next_group: int = _FIRST_GROUP if self._beside is None else self._beside._next_group + _GROUPS
        self._next_number = 0
        self._first_interface: int = _FIRST_INTERFACE + (
            0 if self._beside is None else self._beside._first_interface - _FIRST_INTERFACE + _GROUPS)
        self._numbers: dict[str, str] = {}
        self._interfaces: list[str] = []
        self.links = pci_links.Links(self._card_of)
        for name in ('bus/pci/devices', 'bus/pci/drivers', 'class/net', 'class/block', 'class/nvme', 'dev/block',
                     'dev/char', 'kernel/iommu_groups'):
            os.makedirs(self._at(name))
        self._gone = os.path.join(top, 'gone')
        os.mkdir(self._gone)
        self._vfio: str = os.path.join(self.dev, 'vfio') if self._beside is None else self._beside._vfio
        os.makedirs(self._vfio, exist_ok=True)
        os.makedirs(self.dev, exist_ok=True)
        self._put(self._at('bus/pci/drivers_probe'), '')
        self.add_process(_FIRST_PROCESS, 'systemd')
        os.symlink(str(_FIRST_PROCESS), os.path.join(self.proc, 'self'))
        os.mkdir(os.path.join(self.proc, 'net'))
        self._put(self._of_proc('swaps'), 'Filename\t\tType\t\tSize\t\tUsed\t\tPriority\n')
        self._put(self._of_proc('net/route'), 'Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\t'
                                              'Window\tIRTT\n')
        for name in ('net/ipv6_route', 'net/if_inet6'):
            self._put(self._of_proc(name), '')
        self._write_attribute, self._is_group_open = root.write_attribute, root.is_vfio_group_open
        self._exchange = vf_link.exchange
        self.useFixture(fixtures.MonkeyPatch(f'{vf_link.__name__}.exchange', self._ask_links))
        self._modules = os.path.join(top, 'modules.alias')
        self._put(self._modules, 'alias vfio_pci:v*d*sv*sd*bc*sc*i* vfio_pci\n')
        self.useFixture(fixtures.MonkeyPatch(f'{pci_variants.__name__}.MODULES', self._modules))
        self.useFixture(fixtures.MonkeyPatch(f'{root.__name__}.VFIO', self._vfio))
        self.useFixture(fixtures.MonkeyPatch(f'{root.__name__}.write_attribute', self._store))
        self.useFixture(fixtures.MonkeyPatch(f'{root.__name__}.write_apart', self._store_apart))
        self.useFixture(fixtures.MonkeyPatch(f'{root.__name__}.is_vfio_group_open', self._is_open))
        self.useFixture(fixtures.MonkeyPatch(f'{root.__name__}.host_use', self.use))

    # -- hardware -----------------------------------------------------------------------------------------------------

    def add(self, address: str, kind: Kind, *, serial: str = '', behind: str = '', group: int | None = None,
            numa_node: int = -1, physfn: str | None = None, interface: str = '') -> str:
        """Add a function, and let its driver take it.

        :param serial: the serial number of an NVMe controller
        :param behind: the address of the bridge above it; a root port by default
        :param group: the number of its IOMMU group, a new one by default
        :param physfn: the physical function of a virtual one
        :param interface: the name of its interface while a network driver has it; by the address by default
        :returns: the address
        """
        number = self._new_group() if group is None else group
        above = self._directories[behind] if behind else self._at('devices/pci0000:00/0000:00:03.0')
        directory = self._directories[address] = os.path.join(above, address)
        _domain, bus, place = address.split(':')
        slot, function = place.split('.')
        self._functions[address] = _Function(kind, number, serial, physfn, interface or (
            f'enp{int(bus, 16)}s{int(slot, 16)}' + (f'f{function}' if function != '0' else '')))
        os.makedirs(directory)
        os.symlink(os.path.relpath(directory, self._at('bus/pci/devices')), self._at('bus/pci/devices', address))
        vendor, product = kind.product.split(':')
        for name, text in (('vendor', f'0x{vendor}'), ('device', f'0x{product}'), ('subsystem_vendor', '0x1af4'),
                           ('subsystem_device', '0x1100'), ('class', f'0x{kind.class_code}'),
                           ('numa_node', str(numa_node)), ('modalias', _modalias(kind))):
            self._put(os.path.join(directory, name), f'{text}\n')
        self._put(os.path.join(directory, 'driver_override'), _NOBODY)
        self._put(os.path.join(directory, 'config'), _header(kind).decode('latin-1'))
        self._put(os.path.join(directory, 'resource'), _RESOURCE)
        self._put(os.path.join(directory, 'uevent'), f'PCI_CLASS={kind.class_code.upper()}\nPCI_SLOT_NAME={address}\n')
        self._link(self._at('bus/pci'), directory, 'subsystem')
        if kind.reset_methods:
            self._put(os.path.join(directory, 'reset_method'), ' '.join(kind.reset_methods) + '\n')
            self._put(os.path.join(directory, 'reset'), '')
        if kind.total_vfs:
            self._put(os.path.join(directory, 'sriov_totalvfs'), f'{kind.total_vfs}\n')
            self._put(os.path.join(directory, 'sriov_drivers_autoprobe'), '1\n')
            os.mkfifo(os.path.join(directory, 'sriov_numvfs'))
        members = self._at(f'kernel/iommu_groups/{number}/devices')
        os.makedirs(members, exist_ok=True)
        os.symlink(os.path.relpath(directory, members), os.path.join(members, address))
        self._link(self._at(f'kernel/iommu_groups/{number}'), directory, 'iommu_group')
        autoprobe = True
        if physfn is not None:
            self._link(self._directories[physfn], directory, 'physfn')
            with open(self.path(physfn, 'sriov_drivers_autoprobe')) as file:
                autoprobe = file.read() != '0\n'
        if kind.driver is not None and autoprobe:
            self.bind(address, kind.driver)
        return address

    def add_nvme(self, address: str, serial: str, group: int | None = None, numa_node: int = -1) -> str:
        return self.add(address, NVME, serial=serial, group=group, numa_node=numa_node)

    def give_serial(self, address: str, serial: str) -> None:
        """Write a serial number into the product data of a function."""
        field = b'SN' + bytes((len(serial),)) + serial.encode()
        data = b'\x82\x04\0card\x90' + len(field).to_bytes(2, 'little') + field + b'\x78'
        self._put(self.path(address, 'vpd'), data.decode('latin-1'))

    def add_nvme_with_vfs(self, address: str, serial: str) -> str:
        """Add an NVMe controller that can have four virtual functions."""
        return self.add(address, NVME_SRIOV, serial=serial)

    def add_igb(self, address: str, numa_node: int = -1) -> str:
        """Add a network adapter that can have seven virtual functions."""
        return self.add(address, IGB, numa_node=numa_node)

    def add_numa_nodes(self, sockets: Sequence[int]) -> None:
        """Add NUMA nodes, each with two processors, on these sockets."""
        for node, socket in enumerate(sockets):
            directory = self._at(f'devices/system/node/node{node}')
            os.makedirs(directory)
            self._put(os.path.join(directory, 'cpulist'), f'{2 * node}-{2 * node + 1}\n')
            for processor in (2 * node, 2 * node + 1):
                directory = self._at(f'devices/system/cpu/cpu{processor}/topology')
                os.makedirs(directory)
                self._put(os.path.join(directory, 'physical_package_id'), f'{socket}\n')

    def add_shared_group(self, bridge: str, bus: str) -> list[str]:
        """Add a bridge and three functions behind it, all in one IOMMU group.

        :param bus: the beginning of their addresses, ``0000:06``
        :returns: the addresses of the three: without a driver, a network adapter without a reset, without either
        """
        group = self._new_group()
        self.add(bridge, BRIDGE, group=group)
        return [self.add(f'{bus}:{slot:02x}.0', kind, behind=bridge, group=group)
                for slot, kind in enumerate((EDU, E1000, TEST_DEVICE), 1)]

    def add_card(self, slot: str, serials: Sequence[str]) -> list[str]:
        """Add a card with an NVMe controller in each function, all in one IOMMU group.

        :param slot: the addresses without the number of the function, ``0000:07:00``
        """
        group = self._new_group()
        return [self.add_nvme(f'{slot}.{number}', serial, group) for number, serial in enumerate(serials)]

    def make_vfs(self, address: str, number: int) -> list[str]:
        """Make virtual functions of a physical one.

        :returns: their addresses
        """
        kind = self._functions[address].kind
        assert kind.vf is not None
        domain, bus, place = address.split(':')
        slot, function = place.split('.')
        first = (int(bus, 16) << 8 | int(slot, 16) << 3 | int(function)) + kind.vf_offset
        with open(self.path(address, 'numa_node'), encoding='ascii') as file:
            numa_node = int(file.read())
        made = []
        for index in range(number):
            routing = first + index * kind.vf_stride
            vf = f'{domain}:{routing >> 8:02x}:{routing >> 3 & 31:02x}.{routing & 7}'
            self.add(vf, kind.vf, serial=self._functions[address].serial, physfn=address, numa_node=numa_node,
                     interface=f'{self.interface_of(address)}v{index}')
            self._link(self._directories[vf], self._directories[address], f'virtfn{index}')
            made.append(vf)
        return made

    def remove(self, address: str) -> None:
        """Remove a function: somebody pulls the card out, or it was a virtual function."""
        self.unbind(address)
        physfn = self._functions[address].physfn
        if physfn is not None:
            for entry in os.scandir(self._directories[physfn]):
                if entry.name.startswith('virtfn') and os.path.basename(os.readlink(entry.path)) == address:
                    os.unlink(entry.path)
        # The number of a link in sysfs goes to no other one, and that of a file only while the file is there.
        os.rename(self._at('bus/pci/devices', address), os.path.join(self._gone, str(len(os.listdir(self._gone)))))
        self.links.settings.pop(address, None)
        os.unlink(self._at(f'kernel/iommu_groups/{self._functions.pop(address).group}/devices', address))
        shutil.rmtree(self._directories.pop(address))

    @property
    def addresses(self) -> list[str]:
        """The functions that are there."""
        return list(self._functions)

    def path(self, address: str, name: str = '') -> str:
        """The path of a function's directory, or of an attribute in it."""
        return os.path.join(self._directories[address], name) if name else self._directories[address]

    # -- drivers ------------------------------------------------------------------------------------------------------

    def driver_of(self, address: str) -> str | None:
        with contextlib.suppress(FileNotFoundError):
            return os.path.basename(os.readlink(self.path(address, 'driver')))
        return None

    def total_vfs_of(self, address: str) -> int:
        """How many virtual functions a function can have."""
        return self._functions[address].kind.total_vfs

    def vfs_of(self, address: str) -> list[str]:
        """The virtual functions that a function has now."""
        return [vf for vf, function in self._functions.items() if function.physfn == address]

    def bind(self, address: str, driver: str) -> None:
        """Let a driver take a function that has no driver."""
        function = self._functions[address]
        directory = self._at('bus/pci/drivers', driver)
        if not os.path.isdir(directory):
            os.mkdir(directory)
            self._put(os.path.join(directory, 'unbind'), '')
        self._link(directory, self._directories[address], 'driver')
        self._link(self._directories[address], directory, address)
        if pci_variants.is_vfio(driver):
            self._put(os.path.join(self._vfio, str(function.group)), '')
        elif driver == 'nvme':
            self._add_controller(address, function.serial)
        elif driver in _NETWORK:
            self.add_device(f'{address}/net', self.interface_of(address), 'net')

    def unbind(self, address: str) -> None:
        """Take a function from its driver, if it has one."""
        driver = self.driver_of(address)
        if driver is None:
            return
        os.unlink(self._at('bus/pci/drivers', driver, address))
        os.unlink(self.path(address, 'driver'))
        function = self._functions[address]
        if pci_variants.is_vfio(driver) and not any(
                pci_variants.is_vfio(self.driver_of(other)) for other, of in self._functions.items()
                if of.group == function.group):
            os.unlink(os.path.join(self._vfio, str(function.group)))
        elif driver == 'nvme':
            number = self._controllers.pop(address)
            for name, kind in ((f'nvme{number}n1', 'block'), (f'nvme{number}', 'nvme')):
                os.unlink(self._at('class', kind, name))
            for name in (f'nvme{number}n1', f'nvme{number}', f'ng{number}n1'):
                os.unlink(self._at('dev', self._numbers.pop(name)))
        elif driver in _NETWORK:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._at('class/net', self.interface_of(address)))
        for name in ('nvme', 'net'):
            if os.path.isdir(self.path(address, name)):
                shutil.rmtree(self.path(address, name))
        if function.kind.drops_vfs:
            for vf in self.vfs_of(address):
                self.remove(vf)

    def controller_of(self, address: str) -> str:
        """The name of an NVMe controller, ``nvme0``; its namespace is ``nvme0n1``."""
        return f'nvme{self._controllers[address]}'

    def add_module(self, kind: Kind, name: str) -> None:
        """Add a module of the kernel: a vendor's own driver of VFIO for functions of a kind."""
        vendor, product = kind.product.upper().split(':')
        with open(self._modules, 'a') as file:
            file.write(f'alias vfio_pci:v0000{vendor}d0000{product}sv*sd*bc*sc*i* {name}\n')

    def interface_of(self, address: str) -> str:
        """The name of a function's interface while a network driver has the function."""
        return self._functions[address].interface

    def fail_after(self, writes: int | None) -> None:
        """Let only so many more writes of the privileged functions pass; with None all pass again."""
        self._before_failing = writes

    @contextlib.contextmanager
    def opened(self, address: str) -> Iterator[None]:
        """Let a guest have a function, which vfio-pci has already, during the block."""
        self._open.add(address)
        try:
            yield
        finally:
            self._open.discard(address)

    def use(self, root: str = '') -> pci_use.HostUse:
        """Read what the host uses now.

        :param root: where sysfs is, by default in this fixture
        """
        return pci_use.HostUse(root or self.root, self.proc, self.dev)

    # -- what the host does with them ---------------------------------------------------------------------------------

    def add_process(self, pid: int, program: str, namespace: int = 4026531841) -> None:
        """Let a process run.

        :param namespace: the number of its mount namespace; processes in one have the same mounts
        """
        os.makedirs(self._of_proc(f'{pid}/ns'))
        os.mkdir(self._of_proc(f'{pid}/fd'))
        os.symlink(f'mnt:[{namespace}]', self._of_proc(f'{pid}/ns/mnt'))
        self._put(self._of_proc(f'{pid}/comm'), f'{program}\n')
        self._put(self._of_proc(f'{pid}/mountinfo'), '22 27 0:21 / /proc rw,relatime shared:5 - proc proc rw\n')

    def mount(self, name: str, where: str, pid: int = _FIRST_PROCESS) -> None:
        """Mount a block device, in the mount namespace of a process. ``where`` is as the kernel writes it."""
        self._append(f'{pid}/mountinfo', f'40 27 {self._numbers[name].rpartition("/")[2]} / {where} rw,relatime '
                                         f'shared:1 - ext4 /dev/{name} rw\n')

    def swap(self, name: str) -> None:
        self._append('swaps', f'/dev/{name}                            partition\t1048572\t\t0\t\t-2\n')

    def open_device(self, pid: int, name: str) -> None:
        """Let a process open a device node: ``nvme0``, ``nvme0n1`` or ``ng0n1``."""
        sort, _slash, number = self._numbers[name].partition('/')
        node = os.path.join(self.dev, name)
        if not os.path.lexists(node):
            major, minor = map(int, number.split(':'))
            os.mknod(node, 0o600 | (0o060000 if sort == 'block' else 0o020000), os.makedev(major, minor))
        directory = self._of_proc(f'{pid}/fd')
        os.symlink(node, os.path.join(directory, str(3 + len(os.listdir(directory)))))

    def add_device(self, below: str, name: str, kind: str = '', number: str = '') -> None:
        """Add a device that a driver makes: its directory, and the links of its class and its number.

        :param below: where in ``devices``, or an address and where below that function
        :param kind: its class, ``net``, by default none
        :param number: ``char/240`` or ``block/259``: the sort of its node and the major number, by default no node
        """
        address, slash, rest = below.partition('/')
        above = (os.path.join(self._directories[address], rest) if slash and address in self._directories
                 else self._at('devices', below))
        directory = os.path.join(above, name)
        os.makedirs(directory)
        if kind:
            self._link(directory, self._at('class', kind), name)
        if kind == 'net':
            # As in the kernel, an interface that comes again has another number.
            self._interfaces.append(name)
            self._put(os.path.join(directory, 'ifindex'), f'{self._first_interface + len(self._interfaces)}\n')
            self._put(os.path.join(directory, 'flags'), '0x1003\n')
        if number:
            self._numbers[name] = f'{number}:{self._next_number}'
            self._next_number += 1
            self._link(directory, self._at('dev', os.path.dirname(number)), os.path.basename(self._numbers[name]))

    def add_partition(self, disk: str, name: str) -> None:
        self.add_device(os.path.relpath(os.path.realpath(self._at('class/block', disk)), self._at('devices')), name,
                     'block', f'block/{_BLOCK_MAJOR}')

    def build(self, name: str, on: Sequence[str], label: str = '') -> None:
        """Build a block device on others, ``dm-0`` or ``md0``. ``label`` is the name in ``/dev/mapper``."""
        self.add_device('virtual/block', name, 'block', f'block/{253 if label else 9}')
        directory = os.path.realpath(self._at('class/block', name))
        os.mkdir(os.path.join(directory, 'slaves'))
        for one in on:
            self._link(os.path.realpath(self._at('class/block', one)), os.path.join(directory, 'slaves'), one)
        if label:
            os.mkdir(os.path.join(directory, 'dm'))
            self._put(os.path.join(directory, 'dm/name'), f'{label}\n')

    def route(self, interface: str, default: bool = False) -> None:
        """Let a route of IPv4 go through an interface."""
        destination, mask = ('00000000', '00000000') if default else ('000200C0', '00FFFFFF')
        self._append('net/route', f'{interface}\t{destination}\t00000000\t0001\t0\t0\t0\t{mask}\t0\t0\t0\n')

    def give_address(self, interface: str, link_local: bool = False) -> None:
        """Give an interface an IPv6 address, and let it be up."""
        prefix, scope = ('fe80', 0x20) if link_local else ('fd00', 0)
        self._append('net/if_inet6', f'{prefix}{2:028x} 02 40 {scope:02x} 80 {interface:>8}\n')
        if link_local:
            self._append('net/ipv6_route', f'fe80{0:028x} 40 {0:032x} 00 {0:032x} 00000100 00000001 00000000 00000001 '
                                           f'{interface:>8}\n')
        self.turn_up(interface)

    def turn_down(self, interface: str) -> None:
        self._put(self._at('class/net', interface, 'flags'), '0x1002\n')

    def turn_up(self, interface: str) -> None:
        self._put(self._at('class/net', interface, 'flags'), '0x1003\n')

    def build_interface(self, name: str, on: str) -> None:
        """Build an interface on another: a bridge, a bond, a VLAN."""
        self.add_device('virtual/net', name, 'net')
        self._link(os.path.realpath(self._at('class/net', on)), self._at('class/net', name), f'lower_{on}')

    def hide_interface(self, address: str) -> None:
        """Move the interface of a function to another network namespace."""
        name = self.interface_of(address)
        os.unlink(self._at('class/net', name))
        os.rename(self.path(address, f'net/{name}'), self.path(address, f'{name} elsewhere'))

    # -- the kernel ---------------------------------------------------------------------------------------------------

    def _store(self, path: str, data: bytes) -> None:
        name, text = os.path.relpath(path, os.path.realpath(self.root)), data.decode()
        if name.startswith('..'):
            self._write_attribute(path, data)
            return
        if not os.path.lexists(path):
            raise _refused(errno.ENOENT)
        if self._before_failing is not None:
            if self._before_failing == 0:
                raise _refused(errno.EIO)
            self._before_failing -= 1
        self.written.append((name, text))
        attribute, address = os.path.basename(path), os.path.basename(os.path.dirname(path))
        if attribute == 'driver_override':
            self._put(path, f'{text.strip()}\n' if text.strip() else _NOBODY)
        elif attribute == 'unbind':
            if self.driver_of(text) != address:
                raise _refused(errno.ENODEV)
            self.unbind(text)
        elif attribute == 'drivers_probe':
            self._probe(text)
        elif attribute == 'sriov_numvfs':
            self._set_vfs(address, int(text))
        elif attribute == 'reset_method':
            methods = text.split()
            if not set(methods) <= set(self._functions[address].kind.reset_methods):
                raise _refused(errno.EINVAL)
            self._put(path, ' '.join(methods) + '\n')
        elif attribute == 'reset' and address in self.failing:
            raise _refused(errno.ENOTTY)
        elif attribute == 'reset':
            with open(self.path(address, 'reset_method')) as file:
                self.resets.append((address, file.read().strip()))
        else:
            self._write_attribute(path, data)

    def _store_apart(self, path: str, data: bytes, timeout_s: float) -> None:
        if os.path.basename(os.path.dirname(path)) in self.hanging:
            raise OSError(errno.ETIMEDOUT, f'the kernel has not answered within {timeout_s:g} s')
        self._store(path, data)

    def _probe(self, address: str) -> None:
        if address not in self._functions:
            raise _refused(errno.ENODEV)
        if self.driver_of(address) is not None:
            return
        with open(self.path(address, 'driver_override')) as file:
            override = file.read()
        driver = self._functions[address].kind.driver if override == _NOBODY else override.strip()
        if driver is None or (pci_variants.is_vfio(driver) and self.vfs_of(address)):
            return
        if not pci_variants.is_vfio(driver) and self._has_guest(self._functions[address].group):
            raise _refused(errno.EINVAL)
        self.bind(address, driver)

    def _set_vfs(self, address: str, number: int) -> None:
        if number > self._functions[address].kind.total_vfs:
            raise _refused(errno.ERANGE)
        if (driver := self.driver_of(address)) is None or pci_variants.is_vfio(driver):
            raise _refused(errno.ENOENT)
        if self.vfs_of(address):
            raise _refused(errno.EBUSY)
        self.make_vfs(address, number)

    def _ask_links(self, request: bytes) -> bytes:
        # A host beside this one passes on what it does not know, and so does the machine that runs the test.
        [index] = struct.unpack_from('=i', request, 20)
        is_ours = self._first_interface < index <= self._first_interface + len(self._interfaces)
        return self.links.exchange(request) if is_ours else self._exchange(request)

    def _card_of(self, index: int) -> pci_links.Card | None:
        """Return the interface with a number, while a driver has it."""
        name = self._interfaces[index - self._first_interface - 1]
        for address in self._functions:
            path = self.path(address, f'net/{name}/ifindex')
            with contextlib.suppress(FileNotFoundError), open(path, encoding='ascii') as file:
                if int(file.read()) == index:
                    return pci_links.Card(name, {
                        int(entry.name.removeprefix('virtfn')): os.path.basename(os.readlink(entry.path))
                        for entry in os.scandir(self.path(address)) if entry.name.startswith('virtfn')})
        return None

    def _is_open(self, number: int) -> bool:
        return self._has_guest(number) or self._is_group_open(number)

    def _has_guest(self, group: int) -> bool:
        return any(self._functions[address].group == group for address in self._open)

    # -- files --------------------------------------------------------------------------------------------------------

    def _new_group(self) -> int:
        self._next_group += 1
        return self._next_group - 1

    def _add_controller(self, address: str, serial: str) -> None:
        number = self._controllers[address] = self._next_controller
        self._next_controller += 1
        self.add_device(f'{address}/nvme', f'nvme{number}', 'nvme', f'char/{_CHAR_MAJOR}')
        # The kernel pads it to the 20 characters of the controller's.
        self._put(self._at(f'class/nvme/nvme{number}/serial'), f'{serial:20}\n')
        self.add_device(f'{address}/nvme/nvme{number}', f'nvme{number}n1', 'block', f'block/{_BLOCK_MAJOR}')
        self.add_device(f'{address}/nvme/nvme{number}', f'ng{number}n1', '', f'char/{_CHAR_MAJOR + 1}')

    def _at(self, *names: str) -> str:
        return os.path.join(self.root, *names)

    def _of_proc(self, name: str) -> str:
        return os.path.join(self.proc, name)

    def _append(self, name: str, text: str) -> None:
        with open(self._of_proc(name), 'a') as file:
            file.write(text)

    @staticmethod
    def _link(target: str, directory: str, name: str) -> None:
        relative = os.path.relpath(os.path.realpath(target), os.path.realpath(directory))
        os.symlink(relative, os.path.join(directory, name))

    @staticmethod
    def _put(path: str, text: str) -> None:
        with open(path, 'w', encoding='latin-1') as file:
            file.write(text)


# A register of 16 KiB of memory, and none besides.
_RESOURCE: Final = ('0x00000000fe000000 0x00000000fe003fff 0x0000000000140204\n'
                    + '0x0000000000000000 0x0000000000000000 0x0000000000000000\n' * 12)


def _header(kind: Kind) -> bytes:
    """The first 64 bytes of the configuration space."""
    numbers = [int(word, 16) for word in kind.product.split(':')]
    return struct.pack('<HHHHB3sBBBB7IHHII8x', *numbers, 0x0006, 0x0010, 0x02,
                       bytes.fromhex(kind.class_code)[::-1], 0x10, 0, 0, 0, 0xFE000004, *[0] * 6, 0x1AF4, 0x1100, 0,
                       0x40)


def _modalias(kind: Kind) -> str:
    vendor, product = kind.product.upper().split(':')
    base, sub, interface = (kind.class_code[place:place + 2].upper() for place in (0, 2, 4))
    return f'pci:v0000{vendor}d0000{product}sv00001AF4sd00001100bc{base}sc{sub}i{interface}'


def _refused(number: int) -> OSError:
    return OSError(number, os.strerror(number))
