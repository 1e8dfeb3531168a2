"""Mediated devices and their parents in node-device XML. Pure: text in, tuples out.

The documents differ by libvirt, kernel and driver (formatnode in libvirt's documentation;
Documentation/driver-api/vfio-mediated-device.rst in Linux):

- A PCI parent carries its types inside its PCI capability. A virtual parent has no PCI capability, and libvirt prints
  the capability of its types twice, one inside the other.
- libvirt does not know every virtual parent as a node device. An mdev of an unknown parent has the parent
  ``computer``, and only ``<parent_addr>`` names the real one. Old libvirt and its test driver do not print that.
- An mdev that is defined and not started has no path, no driver, and a meaningless IOMMU group 0.
"""

from __future__ import annotations

from typing import NamedTuple

from lxml import etree

from devicetrack import exception
from devicetrack.objects import details
from devicetrack.objects import things
from devicetrack.virt.libvirt import document as documents

ROOT_DEVICE = 'computer'


class MdevType(NamedTuple):
    """A type of mediated device that a parent makes, and how many more it can make now."""

    id: str
    device_api: str
    available: int


class Parent(NamedTuple):
    """A device that makes mediated devices.

    ``name`` is its node-device name, which is stable. ``address`` is its PCI address if ``pci``, else the last part of
    its path in sysfs. Its mdevs have the same parent address. An unknown NUMA node is None.
    """

    name: str
    address: str | None
    pci: bool
    numa_node: int | None
    types: tuple[MdevType, ...]


class Mdev(NamedTuple):
    """A mediated device. ``parent`` may be ``computer``. ``iommu_group`` is valid only while the device is active.

    ``type`` is None if the device appeared and vanished before libvirt noticed.
    """

    name: str
    uuid: str
    type: str | None
    parent: str
    parent_address: str | None
    iommu_group: int | None


def pci_name(address: str) -> str:
    """Return libvirt's node-device name of a PCI device, by its address in the form of sysfs."""
    return 'pci_' + details.NOT_IN_NAMES.sub('_', address)


def name_of(subsystem: str | None, address: str) -> str:
    """Return libvirt's node-device name of a parent of mediated devices, by its subsystem and its address.

    It is the address if the subsystem is unknown (udevGenerateDeviceName in libvirt's node-device driver).
    """
    if things.address_in(address) == address:
        return pci_name(address)
    if subsystem is None:
        return address
    # The one device whose name libvirt does not make so: the matrix of s390's cryptographic adapters.
    return 'ap_matrix' if subsystem == 'matrix' else details.NOT_IN_NAMES.sub('_', f'{subsystem}_{address}')


def parse_parent(text: str, document: str = 'node device XML', problems: list[str] | None = None) -> Parent | None:
    """Read a node device that may make mediated devices; None if it makes none.

    :param problems: gets the errors of types that cannot be read, which are left out; by default they are raised
    :raises InvalidDocument: it is not a node device, or its types cannot be read
    """
    root = documents.parse(text, document, 'device')
    capabilities = [element for element in root.iter('capability') if element.get('type') == 'mdev_types']
    if not capabilities:
        return None
    types = {kind.id: kind for element in capabilities for kind in _types(element, document, problems)}
    pci = root.find("capability[@type='pci']")
    address, numa_node = None, None
    if pci is not None:
        address = _address(pci, document)
        numa = pci.find('numa')
        if numa is not None:
            numa_node = documents.number(numa.get('node'), document, 'capability/numa/@node')
    else:
        address = (root.findtext('path') or '').strip().rpartition('/')[2] or None
    return Parent(documents.required(root, 'name', document), address, pci is not None, numa_node,
                  tuple(types[name] for name in sorted(types)))


def _types(capability: etree._Element, document: str, problems: list[str] | None) -> list[MdevType]:
    found = []
    for element in capability.findall('type'):
        try:
            found.append(_type(element, document))
        except exception.InvalidDocument as error:
            if problems is None:
                raise
            problems.append(f'type {element.get("id") or "without an id"}: {error}')
    return found


def _type(element: etree._Element, document: str) -> MdevType:
    identifier = element.get('id')
    if not identifier:
        raise exception.InvalidDocument(document, 'capability/type/@id', 'missing')
    available = documents.number(
        element.findtext('availableInstances'), document, 'capability/type/availableInstances')
    return MdevType(identifier, documents.required(element, 'deviceAPI', document), available)


def _address(pci: etree._Element, document: str) -> str:
    domain, bus, slot, function = (
        documents.number(pci.findtext(part), document, f'capability/{part}')
        for part in ('domain', 'bus', 'slot', 'function'))
    return f'{domain:04x}:{bus:02x}:{slot:02x}.{function:x}'


def parse_mdev(text: str, document: str = 'node device XML') -> Mdev:
    """Read a mediated device. Its UUID comes from the element: the name may end in anything.

    :raises InvalidDocument: it is not a node device or not a mediated one
    """
    root = documents.parse(text, document, 'device')
    capability = root.find("capability[@type='mdev']")
    if capability is None:
        raise exception.InvalidDocument(document, 'capability', 'not a mediated device')
    kind = capability.find('type')
    if kind is not None and not kind.get('id'):
        raise exception.InvalidDocument(document, 'capability/type/@id', 'missing')
    group = capability.find('iommuGroup')
    number = None if group is None else documents.number(
        group.get('number'), document, 'capability/iommuGroup/@number')
    return Mdev(
        documents.required(root, 'name', document),
        documents.canonical_uuid(capability.findtext('uuid'), document, 'capability/uuid'),
        None if kind is None else kind.get('id'),
        documents.required(root, 'parent', document),
        (capability.findtext('parent_addr') or '').strip() or None,
        number)


def definition(uuid: str, device_type: str, parent: str) -> str:
    """Write the document that makes one mediated device. ``parent`` is a node-device name."""
    device = etree.Element('device')
    etree.SubElement(device, 'parent').text = parent
    capability = etree.SubElement(device, 'capability', type='mdev')
    etree.SubElement(capability, 'type', id=device_type)
    etree.SubElement(capability, 'uuid').text = uuid
    return etree.tostring(device, encoding='unicode')
