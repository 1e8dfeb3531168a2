"""The machine of the demo, in one directory: devices, guests, and the configuration of its service.

Everything is a plain file, so the machine needs neither hardware nor a daemon. Like hardware, it stays when the service
is killed:

``node.xml``
    The host of libvirt's test driver: PCI devices that make mediated devices, and the mediated devices that an operator
    made on them. The test driver cannot make more.
``pmem/``
    Files that stand for namespaces of persistent memory.
``guests/``
    The definition of every guest that runs. The test driver lives inside the process that opened it, so its guests die
    with that process. On a real host guests are processes of their own. So a guest's definition is put here when the
    guest has started, and all definitions are written into ``node.xml`` before the service starts.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator
from collections.abc import Sequence
import os
import pathlib
from typing import NamedTuple
import uuid
from xml.etree import ElementTree

MIB = 1 << 20
NAME = 'demo-host'

# Slow enough to watch a wipe.
SLOW_WIPE_MIB_S = 12


class Card(NamedTuple):
    """A PCI device that makes mediated devices of one type."""

    bus: int
    numa_node: int
    mdev_type: str
    title: str
    resource_class: str
    device_count: int

    @property
    def address(self) -> str:
        return f'0000:{self.bus:02x}:00.0'

    @property
    def name(self) -> str:
        return f'pci_0000_{self.bus:02x}_00_0'

    def mdevs(self) -> list[str]:
        """The UUIDs of the mediated devices on it."""
        return [str(uuid.uuid5(uuid.NAMESPACE_OID, f'{self.address}/{number}'))
                for number in range(self.device_count)]


CARDS = (
    Card(0x84, 0, 'nvidia-35', 'GRID M60-0B', 'VGPU', 4),
    Card(0x85, 0, 'nvidia-35', 'GRID M60-0B', 'VGPU', 4),
    Card(0xc4, 1, 'nvidia-36', 'GRID M60-0Q', 'CUSTOM_VGPU_XL', 2),
)
NAMESPACES = {'16MB': ('ns0', 'ns1', 'ns2', 'ns3', 'ns4', 'ns5'), '32MB': ('ns6', 'ns7', 'ns8')}
SIZES = {'16MB': 16 * MIB, '32MB': 32 * MIB}

FLAVORS = {
    'g1.small': {'resources:VGPU': '1', 'hw:pmem': '16MB'},
    'g1.large': {'resources:VGPU': '2', 'hw:pmem': '32MB'},
    'g2.large': {'resources:CUSTOM_VGPU_XL': '1', 'hw:pmem': '32MB,16MB'},
    'm1.small': {'hw:pmem': '16MB'},
}

# The flavors of another host: see functions_host.py.
FUNCTION_FLAVORS = {name: {'pci_passthrough:alias': f'{name}:1'} for name in ('disk', 'card', 'port')}

_CONFIGURATION = """\
[DEFAULT]
log_file = {directory}/service.log
debug = false

[devicetrack]
state_path = {directory}/state
machine_id_path = {directory}/machine-id

[libvirt]
connection_uri = test://{directory}/node.xml
pmem_namespaces = {namespaces}

[devices]
enabled_mdev_types = nvidia-35,nvidia-36

[mdev_nvidia-35]
device_addresses = {first_type}

[mdev_nvidia-36]
device_addresses = {second_type}
mdev_class = CUSTOM_VGPU_XL

[devicetrack_vpmem]
directory = {directory}/pmem
wipe_rate_mib_s = {wipe_rate_mib_s}
"""

_PLACEMENT = """
[placement]
auth_type = admin_token
endpoint = {placement_url}
token = admin
nested = at_start
"""

_CARD = """\
  <device>
    <name>{card.name}</name>
    <parent>computer</parent>
    <capability type='pci'>
      <domain>0</domain><bus>{card.bus}</bus><slot>0</slot><function>0</function>
      <product id='0x0ff2'>{card.title}</product>
      <vendor id='0x10de'/>
      <capability type='mdev_types'>
        <type id='{card.mdev_type}'>
          <name>{card.title}</name>
          <deviceAPI>vfio-pci</deviceAPI>
          <availableInstances>0</availableInstances>
        </type>
      </capability>
      <iommuGroup number='{card.bus}'>
        <address domain='0x0000' bus='0x{card.bus:02x}' slot='0x00' function='0x0'/>
      </iommuGroup>
      <numa node='{card.numa_node}'/>
    </capability>
  </device>
"""

_MDEV = """\
  <device>
    <name>mdev_{name}_{parent}</name>
    <parent>{card.name}</parent>
    <capability type='mdev'>
      <type id='{card.mdev_type}'/>
      <uuid>{uuid}</uuid>
      <parent_addr>{card.address}</parent_addr>
      <iommuGroup number='{group}'/>
    </capability>
  </device>
"""

_NODE = """\
<node>
  <cpu>
    <mhz>2600</mhz><model>x86_64</model><active>8</active>
    <nodes>2</nodes><sockets>1</sockets><cores>4</cores><threads>1</threads>
  </cpu>
  <memory>16777216</memory>
{devices}{guests}</node>
"""


class Machine:
    """The machine in a directory. ``name`` is that of its host."""

    name = NAME

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = pathlib.Path(directory)
        self.configuration = self.directory / 'service.conf'
        self.log = self.directory / 'service.log'
        self.guests = Guests(self.directory / 'guests')
        self._pmem = self.directory / 'pmem'

    def make(self) -> None:
        """Make the machine: every device is free, every namespace is zero, and there is no guest."""
        for directory in (self._pmem, self.guests.directory):
            directory.mkdir()
        for label, names in NAMESPACES.items():
            for name in names:
                with open(self._pmem / name, 'xb') as file:
                    file.truncate(SIZES[label])
        # devicetrack takes hosts of one name on one machine for one host. Each demo must be a machine of its own.
        (self.directory / 'machine-id').write_text(f'{uuid.uuid4().hex}\n')

    def configure(self, wipe_rate_mib_s: int = 0, placement_url: str = '') -> None:
        """Write the configuration of a service that starts now, and the guests that run.

        :param wipe_rate_mib_s: an upper bound for wiping; 0 means none
        :param placement_url: the URL of the placement service; '' means that there is none
        """
        configuration = _CONFIGURATION + (_PLACEMENT if placement_url else '')
        self.configuration.write_text(configuration.format(
            placement_url=placement_url,
            directory=self.directory, wipe_rate_mib_s=wipe_rate_mib_s,
            namespaces=','.join(f'{label}:{"|".join(names)}' for label, names in NAMESPACES.items()),
            first_type=','.join(card.address for card in CARDS if card.mdev_type == 'nvidia-35'),
            second_type=','.join(card.address for card in CARDS if card.mdev_type == 'nvidia-36')))
        self.write_node()

    def write_node(self) -> None:
        """Write the host of the test driver: the devices, and the guests that run."""
        devices = [_CARD.format(card=card) + ''.join(_mdevs(card)) for card in CARDS]
        (self.directory / 'node.xml').write_text(_NODE.format(
            devices=''.join(devices), guests=''.join(guest.document for guest in self.guests)))

    def devices(self) -> dict[str, str]:
        """The name of every device, and the resource class that counts it."""
        named = {name: card.resource_class for card in CARDS for name in card.mdevs()}
        return named | {name: pmem_class(label) for label, names in NAMESPACES.items() for name in names}

    def read_namespace(self, name: str) -> bytes:
        """The bytes that a guest finds in this namespace."""
        return (self._pmem / name).read_bytes()

    def fill_namespace(self, name: str, text: str) -> None:
        """Fill a namespace with a text, as a guest may do."""
        path = self._pmem / name
        with open(path, 'r+b') as file:
            file.write(text_to_fill(text, path.stat().st_size))


def _mdevs(card: Card) -> Iterator[str]:
    for number, name in enumerate(card.mdevs()):
        yield _MDEV.format(card=card, uuid=name, name=name.replace('-', '_'),
                           parent=card.address.replace(':', '_').replace('.', '_'),
                           group=card.bus + 1 + number)


def text_to_fill(text: str, size: int) -> bytes:
    """A text, repeated line by line until it fills a namespace of this size."""
    line = f'{text}\n'.encode()
    return (line * (size // len(line) + 1))[:size]


def pmem_class(label: str) -> str:
    return f'CUSTOM_PMEM_NAMESPACE_{label}'


def needs(flavor: str) -> collections.Counter[str]:
    """How many devices of each resource class a flavor needs."""
    amounts: collections.Counter[str] = collections.Counter()
    for name, value in FLAVORS[flavor].items():
        if name == 'hw:pmem':
            amounts.update(pmem_class(label) for label in value.split(','))
        else:
            amounts[name.removeprefix('resources:')] += int(value)
    return amounts


class Guest(NamedTuple):
    """A guest that runs, by its definition."""

    uuid: str
    document: str

    def devices(self) -> list[str]:
        """The names of its devices, read from the definition without the library."""
        devices = ElementTree.fromstring(self.document).find('devices')
        assert devices is not None
        paths = [pathlib.Path(path.text or '').name for path in devices.iterfind('memory/source/path')]
        addresses = devices.iterfind("hostdev[@type='mdev']/source/address")
        return paths + [address.attrib['uuid'] for address in addresses]

    def functions(self) -> list[str]:
        """The addresses of its PCI functions, read in the same way."""
        found = ElementTree.fromstring(self.document).iterfind("devices/hostdev[@type='pci']/source/address")
        return [':'.join(one.attrib[part].removeprefix('0x') for part in ('domain', 'bus', 'slot'))
                + '.' + one.attrib['function'].removeprefix('0x') for one in found]

    def elements(self) -> str:
        """The elements of its definition that name its devices, without anything that libvirt has added."""
        devices = ElementTree.fromstring(self.document).find('devices')
        assert devices is not None
        shown = [*devices.iterfind('memory'), *devices.iterfind('hostdev')]
        for element in shown:
            ElementTree.indent(element)
            element.tail = ''
        return '\n'.join(ElementTree.tostring(element, encoding='unicode') for element in shown)


class Guests:
    """The definitions of the guests that run."""

    def __init__(self, directory: pathlib.Path) -> None:
        self.directory = directory

    def __iter__(self) -> Iterator[Guest]:
        return iter([Guest(path.stem, path.read_text()) for path in sorted(self.directory.glob('*.xml'))])

    def put(self, guest_uuid: str, document: str) -> None:
        new = self.directory / f'{guest_uuid}.new'
        new.write_text(document)
        new.replace(self.directory / f'{guest_uuid}.xml')

    def remove(self, guest_uuid: str) -> None:
        (self.directory / f'{guest_uuid}.xml').unlink(missing_ok=True)


def guest_document(name: str, guest_uuid: str, devices: Sequence[str], metadata: str) -> str:
    """The definition of a guest, with the result of the library's ``guest_config``.

    :param devices: an element for each device
    """
    return f"""\
<domain type='test'>
  <name>{name}</name>
  <uuid>{guest_uuid}</uuid>
  <metadata>{metadata}</metadata>
  <maxMemory slots='8' unit='MiB'>1024</maxMemory>
  <memory unit='MiB'>64</memory>
  <vcpu>1</vcpu>
  <os><type>hvm</type></os>
  <cpu><numa><cell id='0' cpus='0' memory='64' unit='MiB'/></numa></cpu>
  <devices>{''.join(devices)}</devices>
</domain>
"""
