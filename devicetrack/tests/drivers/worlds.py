"""What a driver's tests need of the world around it: hardware, guests, and bytes on devices."""

from __future__ import annotations

import abc
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import os
import subprocess
from typing import Any
import urllib.parse
import uuid

import fixtures
import libvirt

from devicetrack import filelock
from devicetrack.objects import details
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import GuestConfig
from devicetrack.objects.values import MigrationDefinitions
from devicetrack.objects.values import MigrationType
from devicetrack.testing import fake
from devicetrack.testing import fixtures as our_fixtures
from devicetrack.testing import libvirt as libvirt_fixtures
from devicetrack.testing import vgpu
from devicetrack.tests import sysfs
from devicetrack.virt import driver as interface
from devicetrack.virt.libvirt import domain_xml
from devicetrack.virt.libvirt import driver as libvirt_driver
from devicetrack.virt.libvirt import mdev_sysfs
from devicetrack.virt.libvirt import proofs
from devicetrack.virt.libvirt.kinds import mdev
from devicetrack.virt.libvirt.kinds import vf
from devicetrack.virt.libvirt.kinds import vpmem

NAMESPACES = ('ns0', 'ns1')
TYPE = 'nvidia-35'
FUNCTION_TYPE = '558'
SIZE = 8 << 20


class World(fixtures.Fixture, abc.ABC):
    """A host with the namespaces :data:`NAMESPACES`, one parent of type :data:`TYPE` and one mdev on it.

    What drivers differ in is declared: ``creates`` says whether mediated devices can be made here, ``arrives`` whether
    a guest can arrive by a live migration. ``functions`` are virtual functions that can be given a type, where the
    driver knows such devices.
    """

    creates: bool
    arrives: bool
    mdev: str
    functions: Sequence[str] = ()

    @abc.abstractmethod
    def driver(self) -> interface.VirtDriver:
        """Another driver of this same host."""

    @abc.abstractmethod
    def start_guest(self, uuid: str, config: GuestConfig, define: bool = True) -> None:
        """Run a guest with what ``guest_config`` returned."""

    @abc.abstractmethod
    def stop_guest(self, uuid: str) -> None:
        """Turn it off."""

    @abc.abstractmethod
    def delete_guest(self, uuid: str) -> None:
        """Undefine one that is off."""

    @abc.abstractmethod
    def reboot(self) -> None:
        """Boot the host again: guests are off, and what was the path of one namespace is the other's now."""

    @abc.abstractmethod
    def definition(self, uuid: str) -> str:
        """The inactive definition of a domain, as text of this world."""

    @abc.abstractmethod
    def as_defined(self, uuid: str, config: GuestConfig) -> str:
        """A definition with what ``guest_config`` returned."""

    @abc.abstractmethod
    def named_in(self, definition: str) -> list[str]:
        """The addresses in a definition, in their order."""

    def arrive(self, uuid: str, definitions: MigrationDefinitions) -> None:
        """Let a guest arrive that is to be defined, and does not run yet."""
        raise NotImplementedError

    def arrived(self, uuid: str) -> None:
        """Let it run."""
        raise NotImplementedError

    @abc.abstractmethod
    def write(self, namespace: str, data: bytes) -> None:
        """Leave bytes at the start of a namespace."""

    @abc.abstractmethod
    def write_beside(self, namespace: str, data: bytes) -> None:
        """Leave bytes at the start of a namespace that no guest has, as a program of the host does."""

    def forget_writes(self) -> None:
        """Remove from the proofs what the host showed of writes."""

    @abc.abstractmethod
    def is_clean(self, namespace: str) -> bool:
        """Whether every byte is zero."""

    @abc.abstractmethod
    def replace(self, namespace: str) -> None:
        """Put another namespace of the same name there, with bytes of its own."""

    @abc.abstractmethod
    def remove(self, namespace: str) -> None:
        """Take a namespace away."""

    def type_of(self, function: str) -> str:
        """The vGPU type of a virtual function, '0' for none."""
        raise NotImplementedError

    @abc.abstractmethod
    def declare(self, said: MigrationType) -> None:
        """Let the parent of mediated devices say this of its type."""

    @abc.abstractmethod
    def hold(self, key: DeviceKey) -> contextlib.AbstractContextManager[Any]:
        """Work on a device as another process of this host does."""

    @abc.abstractmethod
    def opened(self, namespace: str) -> contextlib.AbstractContextManager[Any]:
        """Have a namespace open in another process, as a database has."""

    @abc.abstractmethod
    def unreachable(self) -> None:
        """Let the hypervisor give no answer any more."""


class FakeWorld(World):
    creates = True
    arrives = True

    def _setUp(self) -> None:
        self.machine = fake.FakeHost()
        for name in NAMESPACES:
            self.machine.add_namespace(name, size_bytes=SIZE)
        self.machine.add_parent('pci_0000_84_00_0', {TYPE: 1}, units=3, address='0000:84:00.0', numa_node=1)
        self.mdev = self.machine.add_mdev('pci_0000_84_00_0', TYPE).identifier

    def driver(self) -> interface.VirtDriver:
        return fake.FakeDriver('host', machine=self.machine)

    def start_guest(self, uuid: str, config: GuestConfig, define: bool = True) -> None:
        self.machine.start_guest(uuid, config.devices, define, config.metadata)

    def stop_guest(self, uuid: str) -> None:
        self.machine.stop_guest(uuid)

    def delete_guest(self, uuid: str) -> None:
        self.machine.delete_guest(uuid)

    def reboot(self) -> None:
        self.machine.reboot()

    def definition(self, uuid: str) -> str:
        return self.machine.definition(uuid)

    def as_defined(self, uuid: str, config: GuestConfig) -> str:
        return ''.join(config.devices)

    def named_in(self, definition: str) -> list[str]:
        return list(fake.addresses_in(fake.elements_in(definition)))

    def arrive(self, uuid: str, definitions: MigrationDefinitions) -> None:
        self.machine.receive_guest(uuid, definitions)

    def arrived(self, uuid: str) -> None:
        self.machine.arrived(uuid)

    def write(self, namespace: str, data: bytes) -> None:
        self.machine.write(DeviceKey(fake.VPMEM, namespace), data)

    def write_beside(self, namespace: str, data: bytes) -> None:
        self.machine.write_beside(DeviceKey(fake.VPMEM, namespace), data)

    def is_clean(self, namespace: str) -> bool:
        return not self.machine.read(DeviceKey(fake.VPMEM, namespace)).strip(b'\0')

    def replace(self, namespace: str) -> None:
        key = DeviceKey(fake.VPMEM, namespace)
        self.machine.change(key, namespace_uuid=str(uuid.uuid4()))
        self.machine.write(key, b'somebody else')

    def remove(self, namespace: str) -> None:
        self.machine.remove(DeviceKey(fake.VPMEM, namespace))

    def declare(self, said: MigrationType) -> None:
        self.machine.declare(said)

    def hold(self, key: DeviceKey) -> contextlib.AbstractContextManager[Any]:
        return self.machine.working_on(*key)

    @contextlib.contextmanager
    def opened(self, namespace: str) -> Iterator[None]:
        self.machine.opened[DeviceKey(fake.VPMEM, namespace)] = '4711'
        yield
        del self.machine.opened[DeviceKey(fake.VPMEM, namespace)]

    def unreachable(self) -> None:
        self.machine.disconnected = 'gone'


class LibvirtTestWorld(World):
    """The libvirt driver on libvirt's in-process test driver, with files for namespaces."""

    creates = False
    arrives = False

    def _setUp(self) -> None:
        self.files = self.useFixture(fixtures.TempDir()).path
        for name in NAMESPACES:
            self._file(name)
        self.node = self.useFixture(libvirt_fixtures.TestNode())
        parent = self.node.add_parent('0000:84:00.0', {TYPE: 2}, numa_node=1)
        self.mdev = self.node.add_mdev(parent, TYPE)
        self.configuration = self.useFixture(our_fixtures.Configuration())
        self.configuration.set('libvirt', pmem_namespaces=[f'4GB:{"|".join(NAMESPACES)}'])
        self.configuration.set('devicetrack_vpmem', directory=self.files, wipe_wait_s=0)
        self.configuration.set('devices', enabled_mdev_types=[TYPE])
        self.cards = self.useFixture(vgpu.Cards())
        self.functions = self.cards.add('0000:3d:00.0', 2, {FUNCTION_TYPE: ('NVIDIA L40-24Q', 2)}, numa_node=1)
        self.configuration.set('devicetrack_vf', sysfs_root=self.cards.root, enabled_types=[FUNCTION_TYPE],
                               release_wait_s=0)
        self._reachable = True
        self._boot = 0

    def driver(self) -> libvirt_driver.LibvirtDriver:
        return _BootedDriver(self, self.configuration, self._connect)

    @property
    def boot(self) -> str:
        return f'boot {self._boot}'

    def _connect(self) -> Any:
        return self.node.connect() if self._reachable else libvirt.open('nosuch:///')

    def start_guest(self, uuid: str, config: GuestConfig, define: bool = True) -> None:
        definition = libvirt_fixtures.guest(uuid, config)
        if define:
            self.node.connect().defineXML(definition).create()
        else:
            self.node.connect().createXML(definition, 0)

    def stop_guest(self, uuid: str) -> None:
        self.node.connect().lookupByUUIDString(uuid).destroy()

    def delete_guest(self, uuid: str) -> None:
        self.node.connect().lookupByUUIDString(uuid).undefine()

    def reboot(self) -> None:
        self._boot += 1
        for domain in self.node.connect().listAllDomains(libvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE):
            domain.destroy()
        # Files keep their names when a host boots, and device-dax nodes do not. So the definitions of before name
        # each namespace by the path that is the other's now.
        for domain in self.node.connect().listAllDomains():
            text = domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE)
            for name, other in (NAMESPACES, NAMESPACES[::-1]):
                text = text.replace(f'<path>{self.files}/{name}<', f'<path >{self.files}/{other}<')
            self.node.connect().defineXML(text)

    def definition(self, uuid: str) -> str:
        text: str = self.node.connect().lookupByUUIDString(uuid).XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE)
        return text

    def as_defined(self, uuid: str, config: GuestConfig) -> str:
        return libvirt_fixtures.guest(uuid, config)

    def named_in(self, definition: str) -> list[str]:
        found = domain_xml.parse(definition)
        return [*found.memory_paths, *found.mdev_uuids, *found.pci_addresses]

    def type_of(self, function: str) -> str:
        return self.cards.type_of(function)

    def write(self, namespace: str, data: bytes) -> None:
        with open(os.path.join(self.files, namespace), 'r+b') as file:
            file.write(data)

    write_beside = write

    def forget_writes(self) -> None:
        known = proofs.Proofs(self.configuration.state_path)
        known.renew(vpmem.VPMEM.name, {name: (text, '') for name, text in known.evidence(vpmem.VPMEM.name).items()})

    def is_clean(self, namespace: str) -> bool:
        with open(os.path.join(self.files, namespace), 'rb') as file:
            return file.read() == bytes(SIZE)

    def replace(self, namespace: str) -> None:
        self._file('new')
        os.rename(os.path.join(self.files, 'new'), os.path.join(self.files, namespace))
        self.write(namespace, b'somebody else')

    def remove(self, namespace: str) -> None:
        os.unlink(os.path.join(self.files, namespace))

    def declare(self, said: MigrationType) -> None:
        device = 'class/mdev_bus/0000:84:00.0'
        sysfs.declare(self.cards.root, said, f'{device}/mdev_supported_types/{said.type}', device)

    def hold(self, key: DeviceKey) -> contextlib.AbstractContextManager[Any]:
        locks = os.path.join(self.configuration.state_path, 'locks')
        os.makedirs(locks, exist_ok=True)
        name = urllib.parse.quote(f'{key.kind}-{key.identifier}', safe='')
        return filelock.FileLock(os.path.join(locks, f'{name}.lock'))

    @contextlib.contextmanager
    def opened(self, namespace: str) -> Iterator[None]:
        with open(os.path.join(self.files, namespace), 'r+b') as file, \
                subprocess.Popen(('cat',), stdin=subprocess.PIPE, pass_fds=(file.fileno(),)) as child:
            file.close()
            yield
            child.communicate()

    def unreachable(self) -> None:
        self._reachable = False

    def _file(self, name: str) -> None:
        with open(os.path.join(self.files, name), 'wb') as file:
            file.truncate(SIZE)


class _BootedDriver(libvirt_driver.LibvirtDriver):
    """The driver on a host that a test can boot."""

    def __init__(self, world: LibvirtTestWorld, configuration: our_fixtures.Configuration, connect: Any) -> None:
        super().__init__('host', configuration.conf, configuration.state_path, [mdev.Mdev, vf.VF, vpmem.VPMEM],
                         connect)
        self._world = world
        kind = self._kinds['mdev']
        assert isinstance(kind, mdev.Mdev)
        kind.devices.kernel = mdev_sysfs.Kernel(world.cards.root)

    def boot_id(self) -> str:
        return self._world.boot


def text_of(assignment: Any) -> str:
    """The stored text of an assignment's details."""
    return details.to_text(assignment.details)
