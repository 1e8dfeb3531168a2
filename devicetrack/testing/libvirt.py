"""Hypervisors for tests: libvirt's in-process test driver, and a real libvirtd whose QEMU emulates processors.

Neither touches the machine's own libvirt::

    node = self.useFixture(libvirt.TestNode())
    node.add_parent('0000:84:00.0', {'nvidia-35': 16})
    driver = LibvirtDriver('host', conf, state_path, connect=node.connect)

    daemon = self.useFixture(libvirt.Libvirtd())
    conf.set_override('connection_uri', daemon.uri, group='libvirt')
    connection = daemon.connect()
    connection.createXML(libvirt.guest(uuid, driver.guest_config(assignments), kind='qemu'), 0)
"""

from __future__ import annotations

import atexit
from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import functools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any
from typing import Final
import uuid as uuids

import fixtures
import libvirt
from lxml import etree

from devicetrack.objects.values import GuestConfig
from devicetrack.testing import private_libvirtd
from devicetrack.testing import scratch
from devicetrack.testing import stopping
from devicetrack.virt.libvirt import pci_sysfs

_HANGS_S: Final = 900

_NODE = """
  <cpu><mhz>2600</mhz><model>x86_64</model><active>8</active><nodes>2</nodes>
  <sockets>1</sockets><cores>4</cores><threads>1</threads></cpu>
  <memory>16777216</memory>
"""


def guest(uuid: str, config: GuestConfig, kind: str = 'test', memory_kib: int = 65536,
          firmware: str | None = None) -> str:
    """The definition of a small guest with the devices that a driver's ``guest_config`` returned.

    It has ``memory_kib`` of RAM and the memory of its NVDIMMs. It has no disk, and so waits in its firmware.

    :param kind: ``test``, or ``qemu`` for software emulation
    :param firmware: a file with firmware. QEMU's own firmware takes seconds on a machine that is itself emulated
    """
    nvdimm_kib = sum(int(etree.fromstring(device).findtext('target/size') or 0) for device in config.devices)
    os_type = "<type arch='x86_64' machine='q35'>hvm</type>" if kind == 'qemu' else '<type>hvm</type>'
    # The kernel pins all memory of a guest with a PCI function, and it refuses to pin the pages of a file.
    backing = "<memoryBacking><source type='memfd'/></memoryBacking>" if any(
        "type='pci'" in device for device in config.devices) else ''
    loader = f"<loader readonly='yes' type='rom'>{firmware}</loader>" if firmware else ''
    return f"""
      <domain type='{kind}'>
        <name>guest-{uuid}</name><uuid>{uuid}</uuid>
        <metadata>{config.metadata}</metadata>
        <maxMemory slots='16' unit='GiB'>8</maxMemory>
        <memory unit='KiB'>{memory_kib + nvdimm_kib}</memory>
        <currentMemory unit='KiB'>{memory_kib}</currentMemory>{backing}
        <vcpu>1</vcpu><os>{os_type}{loader}</os><features><acpi/></features>
        <cpu><numa><cell id='0' cpus='0' memory='{memory_kib}' unit='KiB' memAccess='shared'/></numa></cpu>
        <devices>{''.join(config.devices)}</devices>
      </domain>"""


def _address_of(address: str) -> str:
    domain, bus, place = address.split(':')
    slot, function = place.split('.')
    return f"<address domain='0x{domain}' bus='0x{bus}' slot='0x{slot}' function='0x{function}'/>"


class TestNode(fixtures.Fixture):
    """A host of libvirt's in-process test driver. Add its devices before you call :meth:`connect`.

    ``uri`` names its file. Every ``libvirt.open(uri)`` makes another host from the same file. ``connect`` returns the
    one connection that all parts of a test share.
    """

    def __init__(self) -> None:
        self._devices: list[str] = []
        self._connection: Any = None

    def _setUp(self) -> None:
        self._path = os.path.join(self.useFixture(fixtures.TempDir()).path, 'node.xml')
        self.uri = f'test://{self._path}'
        self.addCleanup(self._close)

    def add_parent(self, address: str, types: Mapping[str, int], numa_node: int | None = 0) -> str:
        """Add a PCI device that can make mediated devices.

        :param types: how many devices of each type it can make, by the type's name
        :returns: its node-device name
        """
        domain, bus, rest = address.split(':')
        slot, function = rest.split('.')
        name = f'pci_{domain}_{bus}_{slot}_{function}'
        made = ''.join(
            f"<type id='{device_type}'><name>{device_type}</name><deviceAPI>vfio-pci</deviceAPI>"
            f'<availableInstances>{available}</availableInstances></type>' for device_type, available in types.items())
        numa = '' if numa_node is None else f"<numa node='{numa_node}'/>"
        self._devices.append(
            f"<device><name>{name}</name><parent>computer</parent><capability type='pci'>"
            f'<domain>{int(domain, 16)}</domain><bus>{int(bus, 16)}</bus><slot>{int(slot, 16)}</slot>'
            f"<function>{int(function, 16)}</function><product id='0x0ff2'>GPU</product>"
            f"<vendor id='0x10de'>Vendor</vendor><capability type='mdev_types'>{made}</capability>{numa}"
            f'</capability></device>')
        return name

    def add_function(self, function: pci_sysfs.Function) -> str:
        """Add a PCI function. libvirt describes it with its driver, its IOMMU group and its physical function.

        :returns: its node-device name
        """
        name, address = f'pci_{function.address.replace(":", "_").replace(".", "_")}', _address_of(function.address)
        driver = f'<driver><name>{function.driver}</name></driver>' if function.driver else ''
        relatives = ''
        if function.physfn is not None:
            relatives = f"<capability type='phys_function'>{_address_of(function.physfn)}</capability>"
        elif function.total_vfs:
            relatives = (f"<capability type='virt_functions' maxCount='{function.total_vfs}'>"
                         f"{''.join(map(_address_of, function.vfs))}</capability>")
        group = ('' if function.iommu_group is None else
                 f"<iommuGroup number='{function.iommu_group}'>{address}</iommuGroup>")
        domain, bus, place = function.address.split(':')
        slot, number = place.split('.')
        self._devices.append(
            f"<device><name>{name}</name><parent>computer</parent>{driver}<capability type='pci'>"
            f'<class>0x{function.class_code}</class><domain>{int(domain, 16)}</domain><bus>{int(bus, 16)}</bus>'
            f'<slot>{int(slot, 16)}</slot><function>{number}</function>'
            f"<product id='0x{function.product_id}'>Function</product>"
            f"<vendor id='0x{function.vendor_id}'>Vendor</vendor>"
            f'{relatives}{group}</capability></device>')
        return name

    def add_mdev(self, parent: str, device_type: str, uuid: str | None = None, group: int = 12) -> str:
        """Add a mediated device.

        :param parent: the node-device name of its parent
        :returns: its UUID
        """
        uuid = uuid or str(uuids.uuid4())
        self._devices.append(
            f"<device><name>mdev_{uuid.replace('-', '_')}</name><parent>{parent}</parent><capability type='mdev'>"
            f"<type id='{device_type}'/><uuid>{uuid}</uuid><iommuGroup number='{group}'/></capability></device>")
        return uuid

    def write(self) -> str:
        """Write the file of the host.

        :returns: ``uri``
        """
        with open(self._path, 'w', encoding='utf-8') as file:
            file.write(f"<node>{_NODE}{''.join(self._devices)}</node>")
        return self.uri

    def connect(self) -> Any:
        """The connection to this host. The first call writes the file and opens the connection."""
        if self._connection is None:
            self._connection = libvirt.open(self.write())
        return self._connection

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()


@functools.cache
def _capabilities() -> str:
    """The directory in which all daemons of this process cache QEMU's capabilities. Asking QEMU takes seconds."""
    directory = scratch.make('libvirt')
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


class Libvirtd(fixtures.Fixture):
    """A libvirtd of the test's own, with its QEMU and node-device drivers. Needs root, libvirtd and qemu-system-x86.

    The daemon runs in a mount namespace, where a temporary directory replaces libvirt's directories. So it shares no
    file, socket or guest with the machine's own libvirtd. The test reaches it by ``uri``. At the end of the test the
    daemon and its guests end.

    :param sysfs: a directory with the PCI devices of the daemon's host (:class:`.pci.PCIHost`)
    """

    def __init__(self, sysfs: str = '') -> None:
        self._sysfs = sysfs

    def _setUp(self) -> None:
        # Not the test's own directory: a socket's path may have a hundred bytes, and test runners nest deeply.
        directory = tempfile.TemporaryDirectory(prefix='dt-')
        self.addCleanup(directory.cleanup)
        self.path = directory.name
        self.uri = f'qemu+unix:///system?socket={self.path}/run/libvirt-sock'
        self._process: subprocess.Popen[bytes] | None = None
        self.addCleanup(self._end)
        self.start()

    def start(self) -> None:
        """Start the daemon, or start it again. Guests that run are still there."""
        with open(os.path.join(self.path, 'log'), 'ab') as log:
            self._process = subprocess.Popen(
                ('unshare', '--mount', '--propagation', 'private', sys.executable, private_libvirtd.__file__,
                 self.path, _capabilities(), self._sysfs),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + _HANGS_S
        while True:
            try:
                self.connect().close()
                return
            except libvirt.libvirtError as error:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError(f'libvirtd does not answer: {error}\n{self.log()}') from error
                time.sleep(0.1)

    def stop(self, how: int = signal.SIGTERM) -> None:
        """Stop the daemon. Its guests go on running, as on a real host."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(how)
            self._process.wait()
            self._process = None

    @contextlib.contextmanager
    def hanging(self) -> Iterator[None]:
        """Suspend the daemon during the block. Connections stay open, but get no answer."""
        assert self._process is not None
        stopping.stop(self._process.pid)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def connect(self) -> Any:
        """Open a new connection."""
        libvirt.registerErrorHandler(lambda _context, _error: None, None)
        return libvirt.open(self.uri)

    def log(self) -> str:
        """The output of the daemon."""
        with open(os.path.join(self.path, 'log'), errors='replace') as log:
            return log.read()

    def _end(self) -> None:
        # We kill the guests: the daemon would give each of them seconds to end by itself.
        self.stop()
        for pid in self._guests():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _guests(self) -> list[int]:
        """The process ids of the guests, from the files that libvirt writes. The guests outlive the daemon."""
        found = []
        run = os.path.join(self.path, 'run', 'qemu')
        for name in os.listdir(run) if os.path.isdir(run) else ():
            if name.endswith('.pid'):
                with open(os.path.join(run, name), encoding='ascii') as file, contextlib.suppress(ValueError):
                    found.append(int(file.read()))
        return found
