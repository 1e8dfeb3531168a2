"""Domain XML in, the devices that it names out.

Pure: text in, tuples out. It serves live and inactive definitions, persistent and transient, of every libvirt
that we support (formatdomain in libvirt's documentation). A document that names a device in a form that cannot
be read is an error as a whole: what it names is then unknown, not nothing.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from lxml import etree

from devicetrack import exception
from devicetrack.objects import values
from devicetrack.virt import metadata
from devicetrack.virt.libvirt import document as documents
from devicetrack.virt.libvirt import excerpt

# Memory devices that are backed by a path: the others (dimm, virtio-mem, sgx-epc) take the host's own memory.
PATH_BACKED_MEMORY = frozenset(('nvdimm', 'virtio-pmem'))

_RECORD = f'{{{metadata.NAMESPACE}}}{metadata.ELEMENT}'
# Attributes are found one behind the other, so that nothing inside a value is taken for one.
_FIRST_TAG = re.compile(r"""<[^\s"'<>]+(?:[^"'<>]|"[^"]*"|'[^']*')*>""")
_ATTRIBUTES = re.compile(r"""\s([\w:.-]+)\s*=\s*(?:"([^"]*)"|'([^']*)')""")


class Domain(NamedTuple):
    """What one definition says.

    ``memory_paths`` are the sources of its persistent memory, ``mdev_uuids`` its mediated devices, each in the
    definition's order. ``live`` says that it is the definition of a running guest. ``record_text`` is our element
    among its metadata, '' when there is none: it takes longer to read than all else, and few ask for it.
    """

    uuid: str
    live: bool
    memory_paths: tuple[str, ...]
    mdev_uuids: tuple[str, ...]
    record_text: str = ''

    @property
    def boot_id(self) -> str | None:
        """The boot of the host for which the record says that the addresses are valid; None where it does not say."""
        if not self.record_text:
            return None
        tag = _FIRST_TAG.match(self.record_text)
        attributes = _ATTRIBUTES.findall(tag[0]) if tag else ()
        return next((either or other for name, either, other in attributes if name == 'boot'), None)

    @property
    def record(self) -> values.GuestRecord | None:
        """Our element, read; None when there is none or it cannot be read."""
        return self._read_record()[0]

    @property
    def record_problem(self) -> str | None:
        """Why a record that is there cannot be read, which makes nothing else of the definition doubtful."""
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
    found = excerpt.read(text, PATH_BACKED_MEMORY) if len(text) <= documents.MAX_LENGTH else None
    if found is not None:
        return Domain(*found)
    return parse_all(text, document)


def parse_all(text: str, document: str = 'domain XML') -> Domain:
    """As :func:`parse`, with an XML parser whatever the text looks like."""
    root = documents.parse(text, document, 'domain')
    devices = root.find('devices')
    # Our element among the definition's own metadata, not one of a definition that is quoted inside.
    record = root.find(f'metadata/{_RECORD}')
    return Domain(
        documents.canonical_uuid(root.findtext('uuid'), document, 'uuid'),
        # A definition has an id exactly while its guest runs; asking the hypervisor beside it would be a race.
        root.get('id') is not None,
        () if devices is None else _memory_paths(devices, document),
        () if devices is None else _mdev_uuids(devices, document),
        '' if record is None else etree.tostring(record, encoding='unicode', with_tail=False))


def _memory_paths(devices: etree._Element, document: str) -> tuple[str, ...]:
    return tuple(documents.required(memory, 'source/path', document)
                 for memory in devices.findall('memory') if memory.get('model') in PATH_BACKED_MEMORY)


def _mdev_uuids(devices: etree._Element, document: str) -> tuple[str, ...]:
    found = []
    for hostdev in devices.findall('hostdev'):
        if hostdev.get('type') == 'mdev':
            address = hostdev.find('source/address')
            found.append(documents.canonical_uuid(
                None if address is None else address.get('uuid'), document, 'hostdev/source/address/@uuid'))
    return tuple(found)


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
