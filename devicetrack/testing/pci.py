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
from typing import Any
from typing import Final
from typing import NamedTuple

import fixtures

from devicetrack.testing import host_files
from devicetrack.testing import pci_links
from devicetrack.testing import pci_models
from devicetrack.testing.pci_models import Model
from devicetrack.virt.libvirt import pci_privileged
from devicetrack.virt.libvirt import pci_use
from devicetrack.virt.libvirt import pci_variants
from devicetrack.virt.libvirt import privileged
from devicetrack.virt.libvirt import root
from devicetrack.virt.libvirt import vf_link

VFIO_PCI: Final = 'vfio-pci'
_NOBODY: Final = '(null)\n'
_FIRST_GROUP: Final = 12
_GROUPS: Final = 1000                           # no host has more IOMMU groups
_CHAR_MAJOR: Final = 240


class _Function(NamedTuple):
    model: Model
    group: int
    serial: str
    physfn: str | None
    interface: str


class PCIHost(host_files.HostFiles):
    """A host with PCI functions. Its sysfs is in ``root``.

    :class:`~devicetrack.testing.host_files.HostFiles` has the methods that let the host use its devices, for example
    :meth:`~devicetrack.testing.host_files.HostFiles.mount`.

    ``written`` has the paths below ``root`` and the texts that the privileged functions wrote, including refused ones.
    These writes have effects:

    - ``driver_override``, ``unbind`` and ``drivers_probe`` give functions to drivers and take them away. With nvme
      a function has a controller and a block device, which gets another number each time. With a network driver it has
      an interface. vfio-pci takes no physical function that has virtual ones. While a guest has a function, no host
      driver takes another function of the same IOMMU group: that function stays without a driver.
    - ``sriov_numvfs`` makes virtual functions. Their drivers take them unless ``sriov_drivers_autoprobe`` is 0. This
      attribute is a FIFO here, so a reader hangs, as on a host where somebody removes virtual functions while a guest
      has one. The kernel does not answer about a function in ``hanging``. When igb ends, its virtual functions vanish.
    - ``reset_method`` accepts the methods that the function has. ``resets`` has the functions that were reset, and the
      methods of each reset. The reset of a function in ``failing`` fails.

    ``links`` has the MAC addresses, VLANs and trust of virtual functions, which privileged functions set by rtnetlink.

    :class:`.libvirt.Libvirtd` accepts ``root`` as the PCI devices of its host.

    :param beside: another host of the same test. The kernel knows IOMMU groups and interfaces by number, and a
        question about a number goes to both hosts. So this host has other numbers, and shares the ``/dev/vfio`` of
        ``beside``
    """

    def __init__(self, beside: PCIHost | None = None) -> None:
        self._beside = beside

    def _setUp(self) -> None:
        super()._setUp()
        self.written: list[tuple[str, str]] = []
        self.resets: list[tuple[str, str]] = []
        self.failing: set[str] = set()
        self.hanging: set[str] = set()
        self._before_failing: int | None = None
        self._functions: dict[str, _Function] = {}
        self._open: set[str] = set()
        self._controllers: dict[str, int] = {}
        self._next_controller = 0
        self._next_group: int = _FIRST_GROUP if self._beside is None else self._beside._next_group + _GROUPS
        if self._beside is not None:
            self._first_interface = self._beside._first_interface + _GROUPS
        self.links = pci_links.Links(self._card_of)
        for name in ('bus/pci/devices', 'bus/pci/drivers', 'kernel/iommu_groups'):
            os.makedirs(self._at(name))
        self._gone = os.path.join(self._top, 'gone')
        os.mkdir(self._gone)
        self._vfio: str = os.path.join(self.dev, 'vfio') if self._beside is None else self._beside._vfio
        os.makedirs(self._vfio, exist_ok=True)
        self._put(self._at('bus/pci/drivers_probe'), '')
        self._write_attribute, self._is_group_open = privileged.write_attribute, privileged.is_group_open
        self._other_links = vf_link.link
        self.useFixture(fixtures.MonkeyPatch(f'{vf_link.__name__}.link', self._ask_links))
        self._modules = os.path.join(self._top, 'modules.alias')
        self._put(self._modules, 'alias vfio_pci:v*d*sv*sd*bc*sc*i* vfio_pci\n')
        self.useFixture(fixtures.MonkeyPatch(f'{pci_variants.__name__}.MODULES', self._modules))
        self.useFixture(fixtures.MonkeyPatch(f'{root.__name__}.VFIO', self._vfio))
        self.useFixture(fixtures.MonkeyPatch(f'{privileged.__name__}.write_attribute', self._store))
        self.useFixture(fixtures.MonkeyPatch(f'{privileged.__name__}.write_apart', self._store_apart))
        self.useFixture(fixtures.MonkeyPatch(f'{privileged.__name__}.is_group_open', self._is_open))
        self.useFixture(fixtures.MonkeyPatch(f'{pci_privileged.__name__}.host_use', self.use))

    # -- hardware -----------------------------------------------------------------------------------------------------

    def add(self, address: str, model: Model, *, serial: str = '', behind: str = '', group: int | None = None,
            numa_node: int = -1, physfn: str | None = None, interface: str = '') -> str:
        """Add a function, and let its driver take it.

        :param serial: the serial number of an NVMe controller
        :param behind: the address of the bridge or controller above it, which is a bridge of its own for another
            domain, as Intel's VMD is; by default it is behind a root port
        :param group: the number of its IOMMU group; by default a new group
        :param physfn: the physical function, if this one is virtual
        :param interface: the name of its interface while a network driver has it; by default made from the address
        :returns: the address
        """
        number = self._new_group() if group is None else group
        above = self._directories[behind] if behind else self._at('devices/pci0000:00/0000:00:03.0')
        domain, bus, place = address.split(':')
        if behind and domain != behind.split(':')[0]:
            above = os.path.join(above, f'pci{domain}:00')
        directory = self._directories[address] = os.path.join(above, address)
        slot, function = place.split('.')
        self._functions[address] = _Function(model, number, serial, physfn, interface or (
            f'enp{int(bus, 16)}s{int(slot, 16)}' + (f'f{function}' if function != '0' else '')))
        os.makedirs(directory)
        os.symlink(os.path.relpath(directory, self._at('bus/pci/devices')), self._at('bus/pci/devices', address))
        vendor, product = model.product.split(':')
        for name, text in (('vendor', f'0x{vendor}'), ('device', f'0x{product}'), ('subsystem_vendor', '0x1af4'),
                           ('subsystem_device', '0x1100'), ('class', f'0x{model.class_code}'),
                           ('numa_node', str(numa_node)), ('modalias', pci_models.modalias(model))):
            self._put(os.path.join(directory, name), f'{text}\n')
        self._put(os.path.join(directory, 'driver_override'), _NOBODY)
        self._put(os.path.join(directory, 'config'), pci_models.config_header(model).decode('latin-1'))
        self._put(os.path.join(directory, 'resource'), pci_models.RESOURCE)
        self._put(os.path.join(directory, 'uevent'), f'PCI_CLASS={model.class_code.upper()}\nPCI_SLOT_NAME={address}\n')
        self._link(self._at('bus/pci'), directory, 'subsystem')
        if model.reset_methods:
            self._put(os.path.join(directory, 'reset_method'), ' '.join(model.reset_methods) + '\n')
            self._put(os.path.join(directory, 'reset'), '')
        if model.total_vfs:
            for name, number_of in (('totalvfs', model.total_vfs), ('offset', model.vf_offset),
                                    ('stride', model.vf_stride)):
                self._put(os.path.join(directory, f'sriov_{name}'), f'{number_of}\n')
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
        if model.driver is not None and autoprobe:
            self.bind(address, model.driver)
        return address

    def add_nvme(self, address: str, serial: str, group: int | None = None, numa_node: int = -1) -> str:
        return self.add(address, pci_models.NVME, serial=serial, group=group, numa_node=numa_node)

    def give_serial(self, address: str, serial: str) -> None:
        """Write a serial number into the vital product data of a function."""
        field = b'SN' + bytes((len(serial),)) + serial.encode()
        data = b'\x82\x04\0card\x90' + len(field).to_bytes(2, 'little') + field + b'\x78'
        self._put(self.path(address, 'vpd'), data.decode('latin-1'))

    def add_nvme_with_vfs(self, address: str, serial: str) -> str:
        """Add an NVMe controller that can have four virtual functions."""
        return self.add(address, pci_models.NVME_SRIOV, serial=serial)

    def add_igb(self, address: str, numa_node: int = -1) -> str:
        """Add a network adapter that can have seven virtual functions."""
        return self.add(address, pci_models.IGB, numa_node=numa_node)

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
        :returns: the addresses of the three: a function without a driver, a network adapter without a reset, and a
            function with neither driver nor reset
        """
        group = self._new_group()
        self.add(bridge, pci_models.BRIDGE, group=group)
        return [self.add(f'{bus}:{slot:02x}.0', model, behind=bridge, group=group)
                for slot, model in enumerate((pci_models.EDU, pci_models.E1000, pci_models.TEST_DEVICE), 1)]

    def add_card(self, slot: str, serials: Sequence[str]) -> list[str]:
        """Add a card whose functions are NVMe controllers, all in one IOMMU group.

        :param slot: the beginning of their addresses, ``0000:07:00``
        :param serials: a serial number for each function
        """
        group = self._new_group()
        return [self.add_nvme(f'{slot}.{number}', serial, group) for number, serial in enumerate(serials)]

    def make_vfs(self, address: str, number: int) -> list[str]:
        """Make virtual functions of a physical function.

        :returns: their addresses
        """
        model = self._functions[address].model
        assert model.vf is not None
        domain, bus, place = address.split(':')
        slot, function = place.split('.')
        first = (int(bus, 16) << 8 | int(slot, 16) << 3 | int(function)) + model.vf_offset
        with open(self.path(address, 'numa_node'), encoding='ascii') as file:
            numa_node = int(file.read())
        made = []
        for index in range(number):
            routing = first + index * model.vf_stride
            vf = f'{domain}:{routing >> 8:02x}:{routing >> 3 & 31:02x}.{routing & 7}'
            self.add(vf, model.vf, serial=self._functions[address].serial, physfn=address, numa_node=numa_node,
                     interface=f'{self.interface_of(address)}v{index}')
            self._link(self._directories[vf], self._directories[address], f'virtfn{index}')
            made.append(vf)
        return made

    def remove(self, address: str) -> None:
        """Remove a function, as if somebody pulled the card out or destroyed the virtual function."""
        self.unbind(address)
        physfn = self._functions[address].physfn
        if physfn is not None:
            for entry in os.scandir(self._directories[physfn]):
                if entry.name.startswith('virtfn') and os.path.basename(os.readlink(entry.path)) == address:
                    os.unlink(entry.path)
        # sysfs never gives the inode number of a link to another link. A file system may, once the link is deleted. So
        # the link is kept.
        os.rename(self._at('bus/pci/devices', address), os.path.join(self._gone, str(len(os.listdir(self._gone)))))
        self.links.settings.pop(address, None)
        os.unlink(self._at(f'kernel/iommu_groups/{self._functions.pop(address).group}/devices', address))
        shutil.rmtree(self._directories.pop(address))

    @property
    def addresses(self) -> list[str]:
        """The addresses of all functions."""
        return list(self._functions)

    def path(self, address: str, name: str = '') -> str:
        """The path of a function's directory, or of an attribute in it."""
        return os.path.join(self._directories[address], name) if name else self._directories[address]

    def _new_group(self) -> int:
        self._next_group += 1
        return self._next_group - 1

    # -- drivers ------------------------------------------------------------------------------------------------------

    def driver_of(self, address: str) -> str | None:
        with contextlib.suppress(FileNotFoundError):
            return os.path.basename(os.readlink(self.path(address, 'driver')))
        return None

    def total_vfs_of(self, address: str) -> int:
        """How many virtual functions a function can have."""
        return self._functions[address].model.total_vfs

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
        elif driver in pci_models.NETWORK_DRIVERS:
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
        elif driver in pci_models.NETWORK_DRIVERS:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._at('class/net', self.interface_of(address)))
        for name in ('nvme', 'net'):
            if os.path.isdir(self.path(address, name)):
                shutil.rmtree(self.path(address, name))
        if function.model.drops_vfs:
            for vf in self.vfs_of(address):
                self.remove(vf)

    def _add_controller(self, address: str, serial: str) -> None:
        number = self._controllers[address] = self._next_controller
        self._next_controller += 1
        self.add_device(f'{address}/nvme', f'nvme{number}', 'nvme', f'char/{_CHAR_MAJOR}')
        # The kernel pads it to the 20 characters that the controller reports.
        self._put(self._at(f'class/nvme/nvme{number}/serial'), f'{serial:20}\n')
        self.add_device(f'{address}/nvme/nvme{number}', f'nvme{number}n1', 'block', f'block/{host_files.BLOCK_MAJOR}')
        self.add_device(f'{address}/nvme/nvme{number}', f'ng{number}n1', '', f'char/{_CHAR_MAJOR + 1}')

    def controller_of(self, address: str) -> str:
        """The name of an NVMe controller, ``nvme0``; its namespace is ``nvme0n1``."""
        return f'nvme{self._controllers[address]}'

    def add_module(self, model: Model, name: str) -> None:
        """Add a kernel module: a vendor's own VFIO driver for functions of this model."""
        vendor, product = model.product.upper().split(':')
        with open(self._modules, 'a') as file:
            file.write(f'alias vfio_pci:v0000{vendor}d0000{product}sv*sd*bc*sc*i* {name}\n')

    def interface_of(self, address: str) -> str:
        """The name of a function's interface while a network driver has the function."""
        return self._functions[address].interface

    def fall_silent(self, address: str) -> None:
        """Let a function fall off its bus: the kernel still shows it, and its registers read as ones."""
        self._put(self.path(address, 'config'), '\xff' * 256)

    def answer_again(self, address: str) -> None:
        """End what :meth:`fall_silent` began."""
        self._put(self.path(address, 'config'), pci_models.config_header(
            self._functions[address].model).decode('latin-1'))

    def hide_interface(self, address: str) -> None:
        """Move the interface of a function to another network namespace."""
        name = self.interface_of(address)
        os.unlink(self._at('class/net', name))
        os.rename(self.path(address, f'net/{name}'), self.path(address, f'{name} elsewhere'))

    def fail_after(self, writes: int | None) -> None:
        """Let the privileged functions write only so many more times. With None all writes succeed again."""
        self._before_failing = writes

    @contextlib.contextmanager
    def opened(self, address: str) -> Iterator[None]:
        """Let a guest have a function during the block. vfio-pci must have the function already."""
        self._open.add(address)
        try:
            yield
        finally:
            self._open.discard(address)

    def use(self, root: str = '') -> pci_use.HostUse:
        """Read what the host uses now.

        :param root: where sysfs is, by default in this fixture
        """
        return pci_use.HostUse(root or self.root, self.proc, self.dev, lambda: self._with_ipv4)

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
            if not set(methods) <= set(self._functions[address].model.reset_methods):
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
        driver = self._functions[address].model.driver if override == _NOBODY else override.strip()
        if driver is None or (pci_variants.is_vfio(driver) and self.vfs_of(address)):
            return
        if not pci_variants.is_vfio(driver) and self._has_guest(self._functions[address].group):
            raise _refused(errno.EINVAL)
        self.bind(address, driver)

    def _set_vfs(self, address: str, number: int) -> None:
        if number > self._functions[address].model.total_vfs:
            raise _refused(errno.ERANGE)
        if (driver := self.driver_of(address)) is None or pci_variants.is_vfio(driver):
            raise _refused(errno.ENOENT)
        if self.vfs_of(address):
            raise _refused(errno.EBUSY)
        model = self._functions[address].model
        self.make_vfs(address, model.total_vfs if model.makes_all_vfs else number)

    def _ask_links(self, command: str, index: int, **arguments: Any) -> Sequence[Any]:
        # Another host of the test, or the machine that runs the test, answers about an interface that is not ours.
        is_ours = self._first_interface < index <= self._first_interface + len(self._interfaces)
        return (self.links.link if is_ours else self._other_links)(command, index=index, **arguments)

    def _card_of(self, index: int) -> pci_links.Card | None:
        """Return the interface with this number, or None if no driver has it."""
        name = self._interfaces[index - self._first_interface - 1]
        for address in self._functions:
            path = self.path(address, f'net/{name}/ifindex')
            with contextlib.suppress(FileNotFoundError), open(path, encoding='ascii') as file:
                if int(file.read()) == index:
                    return pci_links.Card(name, {
                        int(entry.name.removeprefix('virtfn')): os.path.basename(os.readlink(entry.path))
                        for entry in os.scandir(self.path(address)) if entry.name.startswith('virtfn')})
        return None

    def _is_open(self, number: int, sysfs: str | None = None) -> bool:
        return self._has_guest(number) or self._is_group_open(number, sysfs)

    def _has_guest(self, group: int) -> bool:
        return any(self._functions[address].group == group for address in self._open)


def _refused(number: int) -> OSError:
    return OSError(number, os.strerror(number))
