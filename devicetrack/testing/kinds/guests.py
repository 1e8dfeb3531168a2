"""Tests of the elements that a kind writes into guests' definitions, and reads from them."""

from __future__ import annotations

import os

from lxml import etree

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.objects.values import DeviceKey
from devicetrack.testing.kinds import answers
from devicetrack.testing.kinds import base
from devicetrack.testing.kinds import watch
from devicetrack.virt.libvirt import containment
from devicetrack.virt.libvirt import domain_xml
from devicetrack.virt.libvirt import guest_xml
from devicetrack.virt.libvirt import overlaps
from devicetrack.virt.libvirt.kinds import api

# FOREIGN has devices that no kind knows. STRANGE has for every form a device that no host of a test has.
FOREIGN = (
    "<disk type='file' device='disk'><source file='/var/lib/images/other.img'/><target dev='vda'/></disk>",
    "<interface type='network'><mac address='52:54:00:00:00:01'/><source network='default'/></interface>",
    "<memory model='dimm'><target><size unit='KiB'>524288</size><node>0</node></target></memory>",
)
STRANGE = (
    "<memory model='nvdimm'><source><path>/nonexistent/dir/pmem0</path></source>"
    "<target><size unit='KiB'>524288</size></target></memory>",
    "<hostdev mode='subsystem' type='mdev' model='vfio-pci'><source>"
    "<address uuid='a3e0f6f4-55d1-4a2c-8b5f-9c1de1ea7c50'/></source></hostdev>",
    "<hostdev mode='subsystem' type='pci' managed='no'><source>"
    "<address domain='0xfffe' bus='0xfe' slot='0x1e' function='0x6'/></source></hostdev>",
)


class GuestContract(base.KindTestCase):

    def elements(self, *identifiers: str) -> list[str]:
        wanted = [self.realized(name, position) for position, name in enumerate(identifiers)]
        return list(self.kind.guest_elements(wanted))

    def named(self, definition: str) -> list[str | None]:
        """The devices that a definition names, in order. Addresses that certainly mean another sort are left out."""
        addresses = list(self.kind.addresses(domain_xml.parse(definition)))
        meant = answers.named(self.kind, addresses)
        return [meant[address] for address in addresses if address in meant]

    def test_what_is_written_is_read_as_the_same_devices(self) -> None:
        names = list(self.world.devices[:2])
        for ordered in (names, names[::-1]):
            elements = self.elements(*ordered)
            self.assertEqual(len(ordered), len(elements))
            self.assertEqual(ordered, self.named(self.definition(elements)))

    def test_elements_are_the_same_alone_and_beside_others(self) -> None:
        names = self.world.devices[:2]
        self.assertEqual([self.elements(name)[0] for name in names], self.elements(*names))

    def test_elements_name_absolute_paths(self) -> None:
        wanted = [self.realized(name, position) for position, name in enumerate(self.world.devices[:2])]
        elements = self.kind.guest_elements(wanted)
        # The hypervisor has another working directory than this process.
        self.assertEqual([], [path for element in elements for path in answers.paths(element)
                              if not os.path.isabs(path)])

    def test_no_device_is_no_element(self) -> None:
        self.assertEqual([], list(self.kind.guest_elements([])))
        self.assertEqual({}, dict(self.kind.identify([])))
        self.assertEqual([], list(self.kind.addresses(domain_xml.parse(self.definition([])))))

    def test_elements_of_others_are_ignored(self) -> None:
        name = self.world.devices[0]
        own = self.elements(name)
        self.assertEqual([], list(self.kind.addresses(domain_xml.parse(self.definition(FOREIGN)))))
        known = self.stock()
        self.assertEqual([], [found for found in self.named(self.definition(STRANGE)) if found in known])
        definition = self.definition([*FOREIGN, *STRANGE, *own])
        self.assertEqual([name], [found for found in self.named(definition) if found in known])

    def test_addresses_that_mean_nothing_mean_no_device(self) -> None:
        strange = ['', '/', 'nonsense', '../../etc/passwd', '/dev/null', '0000:ff:1f.7', '\N{SNOWMAN}']
        meant = self.kind.identify(strange)
        self.assertEqual(set(), set(meant) - set(strange))
        self.assertEqual(set(), set(meant.values()) & set(self.stock()))

    def test_other_addresses_of_a_device_mean_it_too(self) -> None:
        name = self.world.devices[0]
        addresses = self.world.other_addresses(name)
        self.assertTrue(addresses)
        self.assertEqual(dict.fromkeys(addresses, name), dict(self.kind.identify(addresses)))

    def test_a_device_in_an_element_of_another_sort_is_seen(self) -> None:
        name = self.world.devices[0]
        address, = self.kind.addresses(domain_xml.parse(self.definition(self.elements(name))))
        if type(self.kind).other_addresses is api.DeviceKind.other_addresses or address[:1] != '/':
            self.skipTest('definitions name its devices by no paths, or the kind has no other_addresses')
        disk = f"<disk type='file'><source file='{address}'/><target dev='vda'/></disk>"
        domain = domain_xml.parse(self.definition([disk]))
        self.assertIn(name, self.kind.identify(self.kind.other_addresses(domain)).values())

    def test_another_kind_that_offers_the_same_device_is_noticed(self) -> None:
        name = self.world.devices[0]
        address, = self.kind.addresses(domain_xml.parse(self.definition(self.elements(name))))
        if address[:1] != '/' and vocabulary.PCI_ADDRESS.fullmatch(address) is None:
            self.skipTest('definitions name its devices neither by paths nor by PCI addresses')
        nodes = answers.nodes(self.kind, self.stock().values())
        ours = DeviceKey(self.kind.name, name)
        self.assertIn(ours, nodes, 'the kind names no node')
        self.assertTrue(overlaps.find({ours: nodes[ours], DeviceKey('of another kind', name): address},
                                      containment.Look()))

    def test_what_a_device_is_and_what_contains_it_asks_nobody(self) -> None:
        """The driver asks of the devices of rows too, which the host may not have."""
        devices = list(self.stock().values())
        with watch.watching() as seen:
            answers.nodes(self.kind, devices)
            for device in devices:
                if device.parent is not None:
                    answers.text(self.kind.container(device.parent))
        self.assertEqual([], list(seen))

    def test_reading_a_definition_asks_nobody(self) -> None:
        domain = domain_xml.parse(self.definition(self.elements(*self.world.devices[:2])))
        with watch.watching() as seen:
            self.kind.addresses(domain)
            self.kind.other_addresses(domain)
        self.assertEqual([], list(seen))

    def test_an_element_whose_source_is_damaged_is_an_error(self) -> None:
        element = etree.fromstring(self.elements(self.world.devices[0])[0])
        source = element.find('source')
        assert source is not None, 'the element has no source'
        element.remove(source)
        self.assertRaises(exception.InvalidDocument, domain_xml.parse,
                          self.definition([etree.tostring(element, encoding='unicode')]))

    def test_another_device_takes_the_place_in_a_definition(self) -> None:
        form = self.kind.form
        if form is None:
            self.skipTest('the kind has no form, so its guests do not move')
        first, second = self.world.devices[:2]
        definition = self.definition([*FOREIGN, *self.elements(first)])
        self.assertEqual(list(form.addresses(domain_xml.parse(definition))),
                         list(self.kind.addresses(domain_xml.parse(definition))))
        moved = guest_xml.retarget(definition, 'definition', {form: self.elements(second)}, '')
        self.assertEqual([second], self.named(moved))
        for element in FOREIGN:
            tag = etree.fromstring(element).tag
            self.assertEqual(etree.fromstring(definition).findtext(f'devices/{tag}'),
                             etree.fromstring(moved).findtext(f'devices/{tag}'))

    def test_a_device_that_is_gone_has_no_element(self) -> None:
        wanted = self.realized()
        self.world.remove(wanted.identifier)
        self.assertRaises(exception.DeviceGone, self.kind.guest_elements, [wanted])

    def test_another_device_of_the_name_has_no_element(self) -> None:
        wanted = self.realized()
        self.world.replace(wanted.identifier)
        self.assertRaises(exception.DriverError, self.kind.guest_elements, [wanted])
