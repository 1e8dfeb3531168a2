"""Mediated devices of the kernel's samples (mtty, mdpy, mbochs), by every hand that makes them."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
import contextlib
import json
import os
import subprocess
import tempfile
import time
from typing import Any
import uuid

import libvirt

from devicetrack.conf import libvirt as options
from devicetrack.objects import DeviceRequest
from devicetrack.objects.values import GuestConfig
from devicetrack.testing import fixtures
from devicetrack.testing import libvirt as libvirt_fixtures
from devicetrack.tests import base
from devicetrack.tests.functional.claims import libvirt_hosts
from devicetrack.tests.host.inside import firmware
from devicetrack.tests.host.inside import hosts
from devicetrack.virt.libvirt import mdev_sysfs
from devicetrack.virt.libvirt.kinds import mdev

PARENT = 'mtty_mtty'
DEFINITIONS = '/etc/mdevctl.d'
BUS = '/sys/class/mdev_bus'

# How long the host may take for anything; where a processor is emulated all is slow.
WAIT_S = 120


class Host(hosts.KernelHost):
    """This compute host.

    :param types: what may be handed out: the parent (None for any) and the resource class, by type
    :param existing: whether what exists is handed out
    """

    kinds = (mdev.Mdev,)

    def __init__(self, types: Mapping[str, tuple[str | None, str]], existing: bool = True,
                 release_wait_s: int = 10) -> None:
        super().__init__()
        self._types, self._existing, self._release_wait_s = types, existing, release_wait_s

    def configure(self, configuration: fixtures.Configuration) -> None:
        configuration.set('devices', enabled_mdev_types=list(self._types), use_existing_mdevs=self._existing)
        configuration.set('devicetrack_mdev', release_wait_s=self._release_wait_s)
        for name, (parent, resource_class) in self._types.items():
            options.register_mdev_type(configuration.conf, name)
            configuration.set(f'mdev_{name}', device_addresses=[parent] if parent else [], mdev_class=resource_class)

    @property
    def kind(self) -> Any:
        return self.machine.driver._kinds['mdev']

    def take(self, instance: fixtures.Instance | None = None, amount: int = 1,
             of: str = fixtures.VGPU) -> fixtures.Instance:
        """Claim devices and make them ready."""
        instance = instance or fixtures.Instance()
        with self.claim(instance, DeviceRequest.of((of, amount))):
            self.manager.realize(self.context, instance)
        return instance

    def release(self, instance: fixtures.Instance) -> None:
        self.manager.release(self.context, instance)

    def devices(self, instance: fixtures.Instance | None = None) -> list[str]:
        return [record.identifier for record in self.records(instance)]


class MdevTestCase(base.TestCase):
    """A host without mediated devices, and again without any when the test ends."""

    own_processes = False

    def setUp(self) -> None:
        super().setUp()
        self.kernel = mdev_sysfs.Kernel()
        self.libvirt = libvirt.open(hosts.URI)
        self.addCleanup(self._clean)
        self.assertEqual(([], {}, []), (self.there(), self.defined(), self.listed()))

    def host(self, types: Mapping[str, tuple[str | None, str]] | None = None, **options: Any) -> Host:
        host: Host = self.useFixture(Host(types or {'mtty-2': (None, 'VGPU')}, **options))
        return host

    def _clean(self) -> None:
        for name in self.there():
            self.remove(name)
        for parent, names in self.defined().items():
            for name in names:
                os.unlink(os.path.join(DEFINITIONS, parent, name))
        self.wait_for(lambda: not self.listed())

    # -- what there is ------------------------------------------------------------------------------------------------

    def there(self) -> list[str]:
        """The devices that the kernel has."""
        with contextlib.suppress(FileNotFoundError):
            return sorted(os.listdir(self.kernel.directory))
        return []

    def defined(self) -> dict[str, list[str]]:
        """The devices that mdevctl has, by the address of the parent."""
        found = {}
        for parent in os.listdir(DEFINITIONS):
            path = os.path.join(DEFINITIONS, parent)
            names = [name for name in os.listdir(path) if os.path.isfile(os.path.join(path, name))]
            if names and parent != 'scripts.d':
                found[parent] = sorted(names)
        return found

    def made(self, identifier: str) -> mdev_sysfs.Made:
        made = self.kernel.read(identifier)
        assert made is not None
        return made

    def definition(self, identifier: str, parent: str = 'mtty') -> Any:
        with open(os.path.join(DEFINITIONS, parent, identifier)) as file:
            return json.load(file)

    def listed(self) -> list[str]:
        """The devices that libvirt has, also those whose end it missed, which neither exist nor are defined."""
        found = []
        for device in self.libvirt.listAllDevices(libvirt.VIR_CONNECT_LIST_NODE_DEVICES_CAP_MDEV):
            with contextlib.suppress(libvirt.libvirtError):
                if device.isActive() or device.isPersistent():
                    found.append(device.name())
        return sorted(found)

    def node_device(self, identifier: str) -> Any:
        """One mediated device as libvirt has it, or None."""
        name = 'mdev_' + identifier.replace('-', '_')
        with contextlib.suppress(libvirt.libvirtError):
            for device in self.libvirt.listAllDevices(libvirt.VIR_CONNECT_LIST_NODE_DEVICES_CAP_MDEV):
                if device.name().startswith(name):
                    return device
        return None

    def seen(self, identifier: str) -> tuple[bool, ...]:
        """Whether libvirt has a device as active, as defined, and as starting with the host."""
        with contextlib.suppress(libvirt.libvirtError, AttributeError):
            device = self.node_device(identifier)
            return device.isActive(), device.isPersistent(), device.autostart()
        return (False,) * 3

    def seen_anew(self, identifier: str) -> tuple[bool, ...]:
        """The same, after a change at which libvirt reads all definitions: it may have missed an earlier one."""
        with tempfile.TemporaryDirectory(dir=DEFINITIONS):
            time.sleep(0.5)
        return self.seen(identifier)

    def room(self, parent: str, device_type: str) -> int:
        """How many more devices a parent can make, as the kernel reports."""
        path = os.path.join(BUS, parent, 'mdev_supported_types', device_type, 'available_instances')
        with open(path) as file:
            return int(file.read())

    def wait_for(self, answer: Callable[[], Any]) -> Any:
        """Ask until the answer is true: libvirt and udev are told of what others do, and take their time."""
        deadline = time.monotonic() + WAIT_S
        while not (found := answer()):
            self.assertLess(time.monotonic(), deadline, 'it does not happen')
            time.sleep(0.1)
        return found

    # -- what others do -----------------------------------------------------------------------------------------------

    def run_program(self, *command: str) -> str:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        self.assertEqual(0, done.returncode, done.stderr)
        return done.stdout

    def make(self, parent: str, device_type: str, seen: bool = True) -> str:
        """Make a device as the kernel's documentation says.

        :param seen: wait until libvirt has it
        """
        identifier = str(uuid.uuid4())
        with open(os.path.join(BUS, parent, 'mdev_supported_types', device_type, 'create'), 'w') as file:
            file.write(identifier)
        if seen:
            self.wait_for(lambda: self.node_device(identifier))
        return identifier

    def start_definitions(self) -> None:
        """Let definitions start with their parents, as mdevctl means it: Debian's rule for udev calls it elsewhere."""
        path = '/usr/sbin/mdevctl'
        if not os.path.exists(path):
            os.symlink('/usr/bin/mdevctl', path)
            self.addCleanup(os.unlink, path)

    def make_by_mdevctl(self, parent: str, device_type: str) -> str:
        identifier = str(uuid.uuid4())
        self.run_program('mdevctl', 'start', '--uuid', identifier, '--parent', parent, '--type', device_type)
        self.wait_for(lambda: self.node_device(identifier))
        return identifier

    def make_by_libvirt(self, device_type: str) -> str:
        identifier = str(uuid.uuid4())
        self.libvirt.nodeDeviceCreateXML(
            f"<device><parent>{PARENT}</parent><capability type='mdev'><type id='{device_type}'/>"
            f'<uuid>{identifier}</uuid></capability></device>')
        return identifier

    def define(self, parent: str, device_type: str, identifier: str | None = None) -> str:
        """Define a device with mdevctl alone."""
        identifier = identifier or str(uuid.uuid4())
        before = len(self.listed())
        self.run_program('mdevctl', 'define', '--uuid', identifier, '--parent', parent, '--type', device_type)
        self.wait_for(lambda: len(self.listed()) > before)
        return identifier

    def remove(self, identifier: str) -> None:
        with open(os.path.join(self.kernel.directory, identifier, 'remove'), 'w') as file:
            file.write('1')

    def hold(self, identifier: str) -> Callable[[], None]:
        """Open the group of a device, as its user does.

        :returns: closes it
        """
        group = os.path.basename(os.readlink(os.path.join(self.kernel.directory, identifier, 'iommu_group')))
        fd = os.open(f'/dev/vfio/{group}', os.O_RDWR)
        open_ones = [fd]

        def close() -> None:
            while open_ones:
                os.close(open_ones.pop())

        self.addCleanup(close)
        return close

    def start_qemu(self, identifier: str) -> subprocess.Popen[bytes]:
        """Start a guest that libvirt does not know, with a device."""
        process = subprocess.Popen(
            ('qemu-system-x86_64', '-machine', 'q35,accel=tcg', '-m', '64', '-nodefaults', '-display', 'none', '-S',
             '-device', f'vfio-pci,sysfsdev={self.kernel.directory}/{identifier}'), stdin=subprocess.DEVNULL)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        self.wait_for(lambda: self.kernel.is_open(identifier))
        return process

    def start_guest(self, *identifiers: str) -> str:
        """Start a guest that nobody placed, under libvirt, with devices.

        :returns: its UUID
        """
        elements = tuple(f"<hostdev mode='subsystem' type='mdev' model='vfio-pci'><source>"
                         f"<address uuid='{identifier}'/></source></hostdev>" for identifier in identifiers)
        guest = str(uuid.uuid4())
        domain = self.libvirt.createXML(libvirt_fixtures.guest(
            guest, GuestConfig(elements), libvirt_hosts.QEMU, firmware=firmware.path()), 0)

        def end() -> None:
            with contextlib.suppress(libvirt.libvirtError):
                domain.destroy()

        self.addCleanup(end)
        return guest

    def restart_libvirt(self) -> None:
        self.run_program('systemctl', 'restart', 'libvirtd')
        self.libvirt = libvirt.open(hosts.URI)

    # -- what must hold -----------------------------------------------------------------------------------------------

    def assert_made(self, identifiers: Collection[str], device_type: str = 'mtty-2') -> None:
        """The kernel has these and no others, each of this type and defined to start with the host."""
        self.assertEqual(sorted(identifiers), self.there())
        self.assertEqual({'mtty': sorted(identifiers)} if identifiers else {}, self.defined())
        for identifier in identifiers:
            self.assertEqual((device_type, 'mtty'), self.made(identifier)[:2])
            self.assertEqual([device_type, 'auto'],
                             [self.definition(identifier)[name] for name in ('mdev_type', 'start')])

    def assert_nothing_left(self) -> None:
        """Neither the kernel nor mdevctl has any, and libvirt hears of that."""
        self.assertEqual(([], {}), (self.there(), self.defined()))
        self.wait_for(lambda: not self.listed())
