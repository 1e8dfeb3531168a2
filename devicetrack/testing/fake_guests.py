"""The guests of a fake host, and their definitions.

A definition is a document with our metadata and, for each device, an empty element with the device's address. It is
short, but its reader must take the same care as a reader of libvirt's definitions.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import functools
import re
from xml.sax import saxutils

from devicetrack import exception
from devicetrack.objects import DeviceMap
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import GuestRecord
from devicetrack.virt import metadata
from devicetrack.virt.libvirt import domain_xml

_ELEMENT = re.compile(r'<device kind="[^"]*" address=(?P<value>"[^"]*"|\'[^\']*\')/>')
_METADATA = re.compile(f'<devicetrack:{metadata.ELEMENT} .*</devicetrack:{metadata.ELEMENT}>', re.DOTALL)


@dataclasses.dataclass
class Domain:
    """A guest. ``live`` and ``defined`` are the addresses in its definitions; None without such a definition.

    Both definitions have ``metadata``, which says in which boot they were written. A guest that is ``arriving`` waits
    for an incoming migration; when it has arrived, ``will_be_defined`` becomes ``defined``. ``saved`` are the addresses
    in its managed-save image. The guest resumes with them, whatever has been defined since.
    """

    uuid: str
    live: tuple[str, ...] | None
    defined: tuple[str, ...] | None
    metadata: str = ''
    arriving: bool = False
    will_be_defined: tuple[str, ...] | None = None
    saved: tuple[str, ...] | None = None

    @property
    def record(self) -> GuestRecord | None:
        """The record in its metadata; None if there is none.

        :raises InvalidDocument: the record cannot be read, or belongs to another instance
        """
        return _record(self.uuid, self.metadata) if self.metadata else None

    def is_of_boot(self, boot: str) -> bool:
        """Whether its addresses count in this boot. Without a record they always do."""
        return f' boot="{boot}"' in self.metadata or ' boot="' not in self.metadata


@functools.lru_cache(maxsize=1024)
def _record(domain_uuid: str, element: str) -> GuestRecord | None:
    document = f'domain {domain_uuid}'
    domain = domain_xml.parse(f'<domain><uuid>{domain_uuid}</uuid><metadata>{element}</metadata></domain>', document)
    record = domain.record
    if domain.record_problem is not None:
        raise exception.InvalidDocument(document, 'metadata', domain.record_problem)
    if record is not None and record.instance_uuid != domain_uuid:
        raise exception.InvalidDocument(document, 'metadata', 'it is of another instance')
    return record


def element(kind: str, address: str) -> str:
    """Make the device element of a guest."""
    return f'<device kind={saxutils.quoteattr(kind)} address={saxutils.quoteattr(address)}/>'


def definition(uuid: str, elements: Iterable[str], element_of_metadata: str) -> str:
    return (f'<domain><uuid>{uuid}</uuid><metadata>{element_of_metadata}</metadata>'
            f'<devices>{"".join(elements)}</devices></domain>')


def addresses_in(elements: Iterable[str]) -> Iterator[str]:
    """Find the addresses in elements of this driver's ``guest_config``, in their order."""
    for text in elements:
        match = _ELEMENT.fullmatch(text)
        if match:
            yield saxutils.unescape(match['value'][1:-1], {'&quot;': '"'})


def elements_in(definition: str) -> list[str]:
    """Find the device elements of a definition."""
    return [match[0] for match in _ELEMENT.finditer(definition)]


def metadata_in(definition: str) -> str:
    """Find our element among the metadata of a definition; '' if there is none."""
    match = _METADATA.search(definition)
    return match[0] if match else ''


def recorded(domain: Domain, kind: str, addresses: Sequence[str]) -> Mapping[str, DeviceKey]:
    """Find, by the record, the device of a kind that each address of a definition meant in its own boot.

    :raises InvalidDocument: the record cannot be read, or its number of devices differs
    """
    record = domain.record
    keys = [device.key for device in (record.devices if record else ())
            if device.kind == kind and not device.beside]
    if len(keys) != len(addresses):
        raise exception.InvalidDocument(f'domain {domain.uuid}', 'metadata',
                                        f'{len(keys)} devices are recorded where {len(addresses)} are named')
    return dict(zip(addresses, keys, strict=True))


def moved(named: Sequence[DeviceKey | None], device_map: DeviceMap) -> str:
    """Write the definition for a migration's destination, for a guest whose definition names these devices.

    :raises InvalidDocument: the map has other devices
    """
    document = f'domain {device_map.instance_uuid}'
    partners = {DeviceKey(pair.kind, pair.source): pair.element for pair in device_map.pairs}
    elements = [partners[key] for key in named if key in partners]
    if not len(elements) == len(named) == len(partners):
        raise exception.InvalidDocument(document, 'devices', 'they are not those of the device map, each once')
    return definition(device_map.instance_uuid, elements, device_map.metadata)
