"""The devices that a domain's definition names. Pure: text in, tuples out.

It reads live and inactive definitions, persistent and transient, of every libvirt that we support (formatdomain in
libvirt's documentation). If one device has a form that cannot be read, the whole document is an error: its devices are
unknown, not absent.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Sequence
import re
from typing import NamedTuple

from lxml import etree

from devicetrack import exception
from devicetrack.objects import values
from devicetrack.virt import metadata
from devicetrack.virt.libvirt import document as documents

# The namespace for QEMU's own arguments in a definition (docs/drvqemu.rst in libvirt's source).
_QEMU = 'http://libvirt.org/schemas/domain/qemu/1.0'

# Models of memory devices that are backed by a path. The others (dimm, virtio-mem, sgx-epc) take the host's own memory.
PATH_BACKED_MEMORY = frozenset(('nvdimm', 'virtio-pmem'))

# The parts of a PCI address in libvirt's documents: the largest value, and how many digits sysfs prints at least.
_PCI_PARTS = {'domain': (0xffffffff, 4), 'bus': (0xff, 2), 'slot': (0x1f, 2), 'function': (7, 1)}
# libvirt makes the files of a guest's firmware and its sockets in the first two of these by itself. Others than its own
# user may often not enter them. The last is a control group: every running guest has one.
_LIBVIRTS = '/var/lib/libvirt/qemu/', '/run/libvirt/qemu/', '/machine/'

# By tag and type, the elements for PCI devices.
INTERFACE = 'interface'
_FUNCTIONS = frozenset((('hostdev', 'pci'), (INTERFACE, 'hostdev')))
_FUNCTION_TAGS = [tag for tag, _type in _FUNCTIONS]
# A PCI address in the text of an argument. QEMU adds the domain 0000, and takes numbers without their zeroes in front
# (qdev_prop_pci_host_devaddr in its hw/core/qdev-properties-system.c).
_PCI_ADDRESS = re.compile(
    r'(?<![\w.])(?:([0-9a-fA-F]{1,8}):)?([0-9a-fA-F]{1,2}):([01]?[0-9a-fA-F])\.([0-7])(?![\w.])')

# The children of a definition that are for people and programs, and name nothing for the guest.
_WORDS = frozenset(('name', 'title', 'description', 'metadata'))
_RECORD = f'{{{metadata.NAMESPACE}}}{metadata.ELEMENT}'


class Domain(NamedTuple):
    """The devices that one definition names, each sort in the definition's order.

    ``memory_paths`` are the sources of persistent memory, ``mdev_uuids`` mediated devices in canonical form (lower
    case, with hyphens), and ``pci_addresses`` PCI devices in the form of sysfs (``0000:3d:00.4``), including network
    interfaces that are functions. ``record_text`` is our element among the metadata, or ''. It is parsed only on
    demand, because parsing it takes longer than all the rest. ``boot_id`` is the boot of the host in which the
    addresses are valid; None if the record does not say.

    ``other_paths`` and ``other_pci_addresses`` come from other elements that may also name one of our devices: disks,
    file systems, character devices, and the firmware and the kernel that the guest boots. Nearly all of them mean other
    things. ``arguments`` are the arguments that the hypervisor gets unchanged. ``interfaces`` are the names of network
    interfaces of the host that the guest has to itself (macvtap in the mode ``passthrough``).

    ``files`` repeats those of ``other_paths`` that a kind may have to follow: the paths of files and device nodes that
    elements open, without sockets. They are those in the attributes ``dev``, ``file`` and ``path`` of devices, and all
    paths in other elements, except those of files that libvirt makes for itself.
    """

    uuid: str
    memory_paths: tuple[str, ...]
    mdev_uuids: tuple[str, ...]
    pci_addresses: tuple[str, ...] = ()
    record_text: str = ''
    other_paths: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    other_pci_addresses: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    interfaces: tuple[str, ...] = ()
    boot_id: str | None = None

    @property
    def record(self) -> values.GuestRecord | None:
        """The record; None if there is none or it cannot be read."""
        return self._read_record()[0]

    @property
    def record_problem(self) -> str | None:
        """Why the record cannot be read, or None. A bad record does not make the rest of the definition invalid."""
        return self._read_record()[1]

    def _read_record(self) -> tuple[values.GuestRecord | None, str | None]:
        if not self.record_text:
            return None, None
        try:
            return _record(documents.parse(self.record_text, 'record', _RECORD), 'record'), None
        except exception.InvalidDocument as error:
            return None, f'{error.where}: {error.reason}'


def parse(text: str, document: str = 'domain XML') -> Domain:
    """Read one definition.

    :param document: what it is, for messages: with a domain's UUID, never with its name
    :raises InvalidDocument: it is not a domain, or names a device in a form that cannot be read
    """
    root = documents.parse(text, document, 'domain')
    devices = root.find('devices')
    if devices is None:
        devices = etree.Element('devices')
    # Take our element from the definition's own metadata, not from a definition that is quoted inside.
    record = root.find(f'metadata/{_RECORD}')
    memory = [memory_path(device, document) for device in memories(devices)]
    outside = [named for element in root.iterchildren('*') if element is not devices and element.tag not in _WORDS
               for named in _paths(element)]
    within = _paths(devices, memory)
    return Domain(
        documents.canonical_uuid(root.findtext('uuid'), document, 'uuid'),
        tuple([(path.text or '').strip() for path in memory]),
        tuple([mdev_uuid(hostdev, document) for hostdev in hostdevs(devices, 'mdev')]),
        tuple([pci_address(function, document) for function in functions(devices)]),
        '' if record is None else etree.tostring(record, encoding='unicode', with_tail=False),
        tuple([path for _element, _attribute, path in (*outside, *within)]),
        (*(path for _element, _attribute, path in outside if not is_libvirts(path)),
         *(path for element, attribute, path in within if _is_file(element, attribute))),
        tuple(_other_pci_addresses(devices, document)),
        tuple(str(value) for element in root.iterchildren(f'{{{_QEMU}}}*') for inner in element.iter(etree.Element)
              for value in inner.values()),
        tuple(_interfaces(devices)),
        None if record is None else record.get('boot'))


def in_snapshot(text: str, document: str) -> list[str]:
    """Return the definitions in the document of a snapshot: that of the guest, and the inactive one that it also had.

    A snapshot of a libvirt before 0.9.5 has none. Such a guest keeps its definition when it is reverted.

    :raises InvalidDocument: it is not a snapshot
    """
    found = []
    for definition in documents.parse(text, document, 'domainsnapshot').iterchildren('domain', 'inactiveDomain'):
        definition.tag = 'domain'
        found.append(etree.tostring(definition, encoding='unicode', with_tail=False))
    return found


def is_libvirts(path: str) -> bool:
    """Whether a path is of a file or group that libvirt makes for itself, so that it is certainly no device of ours."""
    return f'{path}/'.startswith(_LIBVIRTS) and '/..' not in path


# An absolute path: the element that has it, and the attribute; None for the text of the element.
_Named = tuple[etree._Element, str | None, str]


def _paths(top: etree._Element, but: Collection[etree._Element] = ()) -> list[_Named]:
    """Find every absolute path in an element, except those in ``but``."""
    found: list[_Named] = []
    for element in top.iter(etree.Element):
        # Hardly any element has a path, so this looks once for all its attributes.
        if '/' in ''.join(element.values()):       # type: ignore[arg-type]
            found += [(element, str(name), str(value)) for name, value in element.items() if value[:1] == '/']
        text = element.text
        if text is not None and '/' in text and (path := text.strip())[:1] == '/':
            found.append((element, None, path))
    return [named for named in found if named[0] not in but] if but else found


def _is_file(element: etree._Element, attribute: str | None) -> bool:
    """Whether an element among the devices opens the file at its path."""
    if attribute is None:
        # The sources of host devices of a container (storage, misc), and of memory that no path should back.
        return element.tag in ('block', 'char', 'path')
    # Only a socket has a mode beside its path. Others than its owner may often not enter its directory.
    if element.get('mode') is not None or element.get('type') == 'unix':
        return False
    return attribute in ('file', 'path') or (attribute == 'dev' and element.tag == 'source')


def _other_pci_addresses(devices: etree._Element, document: str) -> Iterator[str]:
    """Yield the PCI addresses of the NVMe functions that disks read from, also as a backing file or a mirror."""
    for disk in devices.iterchildren('disk'):
        for storage in disk.iter(etree.Element):
            if storage.get('type') == 'nvme' and storage.find('source/address') is not None:
                yield pci_address(storage, document)


def _interfaces(devices: etree._Element) -> Iterator[str]:
    """Yield the names of the interfaces of the host that the guest has to itself."""
    for interface in devices.iterchildren(INTERFACE):
        source = interface.find('source') if interface.get('type') == 'direct' else None
        if source is not None and source.get('mode') == 'passthrough' and source.get('dev'):
            yield str(source.get('dev'))


def argument_pci_addresses(domain: Domain) -> Sequence[str]:
    """Return everything that looks like a PCI address in the hypervisor's arguments, in the form of sysfs."""
    return [f'{int(found[1] or "0", 16):04x}:{int(found[2], 16):02x}:{int(found[3], 16):02x}.{found[4]}'
            for text in domain.arguments for found in _PCI_ADDRESS.finditer(text)]


def memories(devices: etree._Element) -> list[etree._Element]:
    """Return the memory devices that a path backs, among all devices of a definition."""
    return [memory for memory in devices.iterchildren('memory') if memory.get('model') in PATH_BACKED_MEMORY]


def memory_path(memory: etree._Element, document: str) -> etree._Element:
    """Return the element with the path that backs a memory device.

    :raises InvalidDocument: it names none
    """
    path = next((path for source in memory.iterchildren('source') for path in source.iterchildren('path')), None)
    if path is None or not (path.text or '').strip():
        raise exception.InvalidDocument(document, 'source/path', 'missing')
    return path


def hostdevs(devices: etree._Element, sort: str) -> list[etree._Element]:
    """Return the host devices of a sort (``mdev``, ``pci``) among all devices of a definition."""
    return [hostdev for hostdev in devices.iterchildren('hostdev') if hostdev.get('type') == sort]


def functions(devices: etree._Element) -> list[etree._Element]:
    """Return the PCI devices among all devices of a definition: host devices, and interfaces that are functions."""
    return [device for device in devices.iterchildren(*_FUNCTION_TAGS) if (device.tag, device.get('type')) in _FUNCTIONS
            and (device.tag != INTERFACE or device.find('source/address') is not None)]


def mdev_uuid(hostdev: etree._Element, document: str) -> str:
    """Return the UUID of the mediated device that a host device names.

    :raises InvalidDocument: it names none
    """
    address = hostdev.find('source/address')
    return documents.canonical_uuid(None if address is None else address.get('uuid'), document,
                                    'hostdev/source/address/@uuid')


def mac(interface: etree._Element) -> str | None:
    """Return the MAC address of a guest's network interface in lower case; None if libvirt chooses one."""
    address = interface.find('mac')
    said = None if address is None else address.get('address')
    return None if said is None else said.lower()


def pci_address(hostdev: etree._Element, document: str) -> str:
    """Return the address of the PCI device that a host device names, in the form of sysfs.

    :raises InvalidDocument: it names none
    """
    return '{domain}:{bus}:{slot}.{function}'.format(**pci_parts(hostdev, document))


def pci_parts(hostdev: etree._Element, document: str) -> dict[str, str]:
    """Return the parts of a PCI address by the names of their attributes. A missing part is 0, as in libvirt.

    :raises InvalidDocument: it is no PCI address
    """
    address = hostdev.find('source/address')
    said: dict[str, str] = {} if address is None else {str(name): str(part) for name, part in address.items()}
    if said.keys().isdisjoint(_PCI_PARTS):
        raise exception.InvalidDocument(document, 'hostdev/source/address', 'missing')
    parts = {}
    for name, (most, digits) in _PCI_PARTS.items():
        try:
            part = int(said.get(name, '0'), 0)
        except ValueError:
            part = -1
        if not 0 <= part <= most:
            raise exception.InvalidDocument(document, f'hostdev/source/address/@{name}', 'not a part of a PCI address')
        parts[name] = f'{part:0{digits}x}'
    return parts


def _record(found: etree._Element, document: str) -> values.GuestRecord:
    devices = tuple(_recorded_device(device, document)
                    for device in found.findall(f'{{{metadata.NAMESPACE}}}{metadata.DEVICE}'))
    return values.GuestRecord(
        documents.canonical_uuid(found.get('instance'), document, 'metadata/@instance'),
        documents.canonical_uuid(found.get('host'), document, 'metadata/@host'), found.get('flavor'), devices,
        found.get('boot'))


def _recorded_device(device: etree._Element, document: str) -> values.RecordedDevice:
    def text(name: str) -> str:
        value = device.get(name)
        if not value:
            raise exception.InvalidDocument(document, f'metadata/device/@{name}', 'missing')
        return value

    migration, numa_node = device.get('migration'), device.get('numaNode')
    return values.RecordedDevice(
        kind=text('kind'),
        identifier=text('identifier'),
        resource_class=text('resourceClass'),
        provider_uuid=documents.canonical_uuid(device.get('provider'), document, 'metadata/device/@provider'),
        parent=device.get('parent'),
        numa_node=None if numa_node is None
        else documents.number(numa_node, document, 'metadata/device/@numaNode'),
        position=documents.number(device.get('position'), document, 'metadata/device/@position'),
        claim_id=text('claim'),
        role=text('role'),
        migration_uuid=None if migration is None
        else documents.canonical_uuid(migration, document, 'metadata/device/@migration'),
        details=(device.text or '').strip(),
        beside=device.get('beside') == metadata.BESIDE)
