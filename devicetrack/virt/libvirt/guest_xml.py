"""The elements for devices in a guest's definition, and how to replace the devices. Pure: text in, text out.

Devices of several kinds may have elements of one form. A new definition names other devices of the host. The guest
sees the same as before, and foreign metadata, comments and everything else stay as they are.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import copy

from lxml import etree

from devicetrack import exception
from devicetrack.objects import details
from devicetrack.objects.values import DeviceKey
from devicetrack.virt import metadata
from devicetrack.virt.libvirt import document as documents
from devicetrack.virt.libvirt import domain_xml


class Form(abc.ABC):
    """One sort of element by which definitions name devices. Several kinds of devices may share it.

    ``of_one_boot``: an address means its device only in the boot of the host in which it was written. ``may_move``: an
    address means its device in other boots too, except where a recorded device's details have this address in a field
    ``address``: that device may have another address now. ``others_too``: a definition may also name foreign devices in
    this form, and these stay as they are. ``untracked_too``: the same for devices that a kind takes for its own,
    because it takes every address for that of a device, and that nobody here tracks.
    """

    tag: str
    of_one_boot: bool
    may_move = False
    others_too = False
    untracked_too = False

    @abc.abstractmethod
    def addresses(self, domain: domain_xml.Domain) -> Sequence[str]:
        """Return the addresses of the elements of this form, in the order of the definition."""

    @abc.abstractmethod
    def elements(self, devices: etree._Element) -> Sequence[etree._Element]:
        """Return the same elements, among all devices of a definition."""

    @abc.abstractmethod
    def address(self, element: etree._Element, document: str) -> str:
        """Return the address that an element names.

        :raises InvalidDocument: it names none
        """

    @abc.abstractmethod
    def retarget(self, element: etree._Element, partner: etree._Element, document: str) -> None:
        """Let an element name the device of ``partner``, an element of this form.

        :raises InvalidDocument: the guest would see another sort of device than it has now
        """


class _Memory(Form):
    """A guest's memory that is backed by a path: NVDIMM and virtio-pmem. Each boot of the host assigns new paths."""

    tag = 'memory'
    of_one_boot = True

    def addresses(self, domain: domain_xml.Domain) -> Sequence[str]:
        return domain.memory_paths

    def elements(self, devices: etree._Element) -> Sequence[etree._Element]:
        return domain_xml.memories(devices)

    def address(self, element: etree._Element, document: str) -> str:
        return (domain_xml.memory_path(element, document).text or '').strip()

    def retarget(self, element: etree._Element, partner: etree._Element, document: str) -> None:
        if element.get('model') != partner.get('model'):
            raise exception.InvalidDocument(document, 'memory/@model', 'not that of its partner')
        there, here = partner.find('source'), element.find('source')
        if there is None or here is None:
            raise exception.InvalidDocument(document, 'memory/source', 'missing')
        # The guest keeps the size that it has, so its partner must be able to give as much.
        size, room = _kibibytes(element, document), _kibibytes(partner, document)
        if size is not None and room is not None and size > room:
            raise exception.InvalidDocument(document, 'memory/target/size', 'more than its partner can give')
        # These elements describe the path, so they come from the partner too, in the order of libvirt's schema.
        for name in ('path', 'alignsize', 'pmem'):
            for found in here.findall(name):
                here.remove(found)
        for index, name in enumerate(('path', 'alignsize', 'pmem')):
            wanted = there.find(name)
            if wanted is not None:
                new = copy.deepcopy(wanted)
                new.tail = None
                here.insert(index, new)


class _Mdev(Form):
    """Mediated devices. A UUID means its device in every boot."""

    tag = 'hostdev'
    of_one_boot = False
    untracked_too = True

    def addresses(self, domain: domain_xml.Domain) -> Sequence[str]:
        return domain.mdev_uuids

    def elements(self, devices: etree._Element) -> Sequence[etree._Element]:
        return domain_xml.hostdevs(devices, 'mdev')

    def address(self, element: etree._Element, document: str) -> str:
        return domain_xml.mdev_uuid(element, document)

    def retarget(self, element: etree._Element, partner: etree._Element, document: str) -> None:
        if element.get('model') != partner.get('model'):
            raise exception.InvalidDocument(document, 'hostdev/@model', 'not that of its partner')
        _address_of(element, document).set('uuid', self.address(partner, document))


def pci_attributes(address: str) -> str:
    """Return a PCI address as the attributes of an element ``address``."""
    domain, bus, rest = address.split(':')
    slot, function = rest.split('.')
    return f"domain='0x{domain}' bus='0x{bus}' slot='0x{slot}' function='0x{function}'"


def pci_hostdev(address: str, managed: str) -> str:
    """Make the element of a PCI function in a guest's definition.

    :param managed: ``yes`` if libvirt binds the function to the driver for guests, and back
    """
    return (f"<hostdev mode='subsystem' type='pci' managed='{managed}'><source><address {pci_attributes(address)}/>"
            '</source></hostdev>')


class _PCI(Form):
    """PCI devices. Guests also have network cards and disks of this form.

    An address means its device in every boot, unless somebody moved the card. The element of a function that is a port
    of a network is an ``interface``.
    """

    tag = 'hostdev'
    of_one_boot = False
    may_move = True
    others_too = True

    def addresses(self, domain: domain_xml.Domain) -> Sequence[str]:
        return domain.pci_addresses

    def elements(self, devices: etree._Element) -> Sequence[etree._Element]:
        return domain_xml.functions(devices)

    def address(self, element: etree._Element, document: str) -> str:
        return domain_xml.pci_address(element, document)

    def retarget(self, element: etree._Element, partner: etree._Element, document: str) -> None:
        if element.tag == domain_xml.INTERFACE:
            _retarget_port(element, partner, document)
        for name, part in domain_xml.pci_parts(partner, document).items():
            _address_of(element, document).set(name, f'0x{part}')
        # Each host decides for itself who binds the function.
        managed = partner.get('managed')
        if managed is not None:
            element.set('managed', managed)


def _retarget_port(element: etree._Element, partner: etree._Element, document: str) -> None:
    """Give an interface the VLAN of its partner, which the guest does not see.

    :raises InvalidDocument: the guest would have another MAC address
    """
    if domain_xml.mac(element) != domain_xml.mac(partner):
        raise exception.InvalidDocument(document, 'interface/mac', 'not that of its partner')
    if _vlans(element) == _vlans(partner):
        return
    for vlan in element.findall('vlan'):
        _drop(element, vlan)
    for vlan in partner.findall('vlan'):
        new = copy.deepcopy(vlan)
        new.tail = None
        element.append(new)


def _vlans(interface: etree._Element) -> list[list[tuple[object, object]]]:
    return [sorted(element.attrib.items())
            for vlan in interface.findall('vlan') for element in vlan.iter(etree.Element)]


def _address_of(hostdev: etree._Element, document: str) -> etree._Element:
    address = hostdev.find('source/address')
    if address is None:
        raise exception.InvalidDocument(document, 'hostdev/source/address', 'missing')
    return address


MEMORY: Form = _Memory()
MDEV: Form = _Mdev()
PCI: Form = _PCI()
FORMS = (MEMORY, MDEV, PCI)


def recorded(domain: domain_xml.Domain, forms: Mapping[str, Form], boot_id: str,
             document: str) -> Mapping[Form, Sequence[DeviceKey | None]]:
    """Find the devices that an inactive definition of another boot means, by its record.

    :param forms: the form of every device kind, by its name
    :param boot_id: this boot
    :returns: for every form whose devices may have other addresses now, the devices in the order of the elements; None
        for an element that the record does not have: its address counts. Empty for a definition without such elements,
        for one of this boot, and for one without a record: then all its addresses count
    :raises InvalidDocument: the record does not say which element means which device
    """
    if domain.boot_id in (None, boot_id):
        return {}
    named = [form for form in FORMS if form.of_one_boot and form.addresses(domain)]
    found: dict[Form, Sequence[DeviceKey | None]] = {
        form: keys for form in FORMS if form.may_move and (keys := _by_address(form, domain, forms))}
    if not named:
        return found
    record = domain.record
    if record is None:
        raise exception.InvalidDocument(document, 'metadata', f'it is of another boot: {domain.record_problem}')
    if record.instance_uuid != domain.uuid:
        raise exception.InvalidDocument(document, 'metadata', 'it is of another boot and of another instance')
    for form in named:
        keys = tuple(device.key for device in record.devices
                     if not device.beside and forms.get(device.kind) is form)
        count = len(form.addresses(domain))
        if len(keys) != count:
            raise exception.InvalidDocument(
                document, 'metadata', f'it is of another boot and records {len(keys)} devices for {count} elements')
        found[form] = keys
    return found


def _by_address(form: Form, domain: domain_xml.Domain, forms: Mapping[str, Form]) -> tuple[DeviceKey | None, ...]:
    """Find the devices of elements by the addresses that they had when the definition was written.

    :returns: empty if the record has none of them
    """
    addresses, record = form.addresses(domain), domain.record
    if not addresses or record is None or record.instance_uuid != domain.uuid:
        return ()
    then = {}
    for device in record.devices:
        if not device.beside and forms.get(device.kind) is form:
            with contextlib.suppress(exception.MalformedObject, exception.UnknownObject):
                # The details of kinds whose devices never move have no address.
                address = getattr(details.peek(device.details), 'address', None)
                then[address] = device.key
    found = tuple(map(then.get, addresses))
    return found if any(found) else ()


def retarget(text: str, document: str, partners: Mapping[Form, Sequence[str | None]], record: str) -> str:
    """Make a definition with other devices in place of its own.

    :param document: what it is, for messages
    :param partners: by form, an element for each element of the form, in the definition's order, and None for one that
        stays as it is. The definition has no elements of a form that is left out
    :param record: the element that replaces ours among the metadata; '' for none
    :raises InvalidDocument: it cannot be read, the elements differ in number, or the guest would see other devices
    """
    root = documents.parse(text, document, 'domain', everything=True)
    devices = root.find('devices')
    expected = {}
    for form in FORMS:
        elements = () if devices is None else form.elements(devices)
        texts = partners.get(form, (None,) * len(elements) if form.others_too else ())
        if len(elements) != len(texts):
            raise exception.InvalidDocument(document, f'devices/{form.tag}',
                                            f'{len(elements)} elements, but {len(texts)} devices')
        new = [element if partner is None
               else documents.parse(partner, f'partner of a {element.tag} of {document}', str(element.tag),
                                    everything=True)
               for element, partner in zip(elements, texts, strict=True)]
        expected[form] = [form.address(partner, document) for partner in new]
        if len(set(expected[form])) != len(expected[form]):
            raise exception.InvalidDocument(document, f'devices/{form.tag}', 'two elements would name one device')
        for element, partner in zip(elements, new, strict=True):
            if partner is not element:
                form.retarget(element, partner, document)
    _put_record(root, record, document)
    made = etree.tostring(root.getroottree(), encoding='unicode')
    _check(made, document, expected, record)
    return made


def _put_record(root: etree._Element, record: str, document: str) -> None:
    """Replace all elements of our namespace in the definition's metadata by our new element."""
    new = None
    if record:
        new = documents.parse(record, f'new metadata of {document}', f'{{{metadata.NAMESPACE}}}{metadata.ELEMENT}',
                              everything=True)
    ours = [(parent, child) for parent in root.findall('metadata') for child in parent
            if isinstance(child.tag, str) and etree.QName(child).namespace == metadata.NAMESPACE]
    for parent, child in ours:
        if new is not None and new.getparent() is None:
            new.tail = child.tail
            parent.replace(child, new)
        else:
            _drop(parent, child)
    if new is not None and new.getparent() is None:
        place = root.find('metadata')
        if place is None:
            place = etree.Element('metadata')
            after = root.find('uuid')
            root.insert(0 if after is None else root.index(after) + 1, place)
        place.append(new)


def _drop(parent: etree._Element, child: etree._Element) -> None:
    """Remove a child and keep the text after it, which lxml counts as part of the child."""
    before = child.getprevious()
    if before is not None:
        before.tail = (before.tail or '') + (child.tail or '')
    else:
        parent.text = (parent.text or '') + (child.tail or '')
    parent.remove(child)


def _check(made: str, document: str, expected: Mapping[Form, Sequence[str]], record: str) -> None:
    """Check that a reader of the new definition finds the new devices and the new record."""
    domain = domain_xml.parse(made, document)
    for form, addresses in expected.items():
        if list(form.addresses(domain)) != list(addresses):
            raise exception.InvalidDocument(document, f'devices/{form.tag}', 'they cannot be told apart')
    if domain.record_problem is not None or (domain.record is None) == bool(record):
        raise exception.InvalidDocument(document, 'metadata', domain.record_problem or 'it cannot be replaced')


def _kibibytes(element: etree._Element, document: str) -> int | None:
    """Return the size of a memory device; None if it has none, or in a unit that libvirt does not print."""
    size = element.find('target/size')
    if size is None or size.get('unit', 'KiB') != 'KiB':
        return None
    return documents.number(size.text, document, 'memory/target/size')
