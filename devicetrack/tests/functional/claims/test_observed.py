"""PCI functions that the service hands out itself: what audits say of them, and who had which card; on files."""

from __future__ import annotations

import json
import os
from typing import Any
from typing import Final
import uuid

from devicetrack import vocabulary
from devicetrack.claims import report
from devicetrack.engine import findings
from devicetrack.engine.findings import Finding
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import GuestConfig
from devicetrack.objects.values import Holding
from devicetrack.pictures import host as pictures
from devicetrack.pictures import terminal
from devicetrack.testing import libvirt as libvirt_fixtures
from devicetrack.testing import pci as made
from devicetrack.testing import pci_guests
from devicetrack.testing import pci_models
from devicetrack.tests import base
from devicetrack.tests.functional.claims import libvirt_hosts
from devicetrack.virt.libvirt import guest_xml
from devicetrack.virt.libvirt import pci_sysfs
from devicetrack.virt.libvirt.kinds import pci
from devicetrack.virt.libvirt.kinds import pci_options

DISK, OTHER = '0000:01:00.0', '0000:02:00.0'
BRIDGE, BUS = '0000:06:00.0', '0000:07'
NVME: Final = {'vendor_id': '1b36', 'product_id': '0010'}


class ObservedTestCase(base.TestCase):
    """A host with two disks, which the service hands out."""

    def setUp(self) -> None:
        super().setUp()
        hardware = self.hardware = self.useFixture(made.PCIHost())
        self.functions = pci_guests.GuestFunctions(hardware)
        hardware.add_nvme(DISK, 'S1')
        hardware.add_nvme(OTHER, 'S2')
        self.held: dict[str, Holding] = {}
        self.hand_out(DISK, OTHER)

    def start(self, *specs: dict[str, str]) -> None:
        hardware = self.hardware

        class PCI(pci.PCI):
            def __init__(self, *arguments: Any) -> None:
                super().__init__(*arguments)
                self.host_use = hardware.use

        self.configuration.set('pci', device_spec=[json.dumps(one) for one in specs or (NVME,)])
        self.configuration.set('devicetrack_nova', pci='observe')
        self.configuration.set('devicetrack_pci', sysfs_root=hardware.root)
        node = self.useFixture(libvirt_fixtures.TestNode())
        self.host: Any = self.useFixture(libvirt_hosts.LibvirtHost(
            node.connect, {}, self.temp_dir(), kinds=[PCI], configuration=self.configuration))
        vars(self.host.service)['holdings'] = lambda: list(self.held.values())
        self.host.audit()

    def hand_out(self, *addresses: str, owner: str | None = None, **fields: Any) -> str:
        """Have the service record functions for an instance; returns it."""
        for address in addresses:
            self.held[address] = Holding('pci', address, owner, **{'is_expected': owner is not None, **fields})
        return owner or ''

    def define(self, *addresses: str, instance: str | None = None, run: bool = True) -> str:
        guest = instance or str(uuid.uuid4())
        domain = self.host.machine.connection.defineXML(libvirt_fixtures.guest(guest, GuestConfig(
            tuple(guest_xml.pci_hostdev(address, 'yes') for address in addresses), '')))
        if run:
            domain.create()
            self.functions.start(guest, addresses)
        return guest

    def boot(self, *addresses: str) -> str:
        guest = self.define(*addresses)
        self.hand_out(*addresses, owner=guest)
        return guest

    def audit(self) -> list[Finding]:
        self.host.audit()
        found: list[Finding] = self.host.findings
        return found

    def one(self, kind: str, address: str = DISK, severity: str = vocabulary.CRITICAL) -> Finding:
        """The one finding of an audit."""
        [found] = self.audit()
        self.assertEqual((kind, DeviceKey('pci', address), severity), (found.kind, found.device, found.severity))
        self.assertEqual('nothing: the compute service hands it out', found.held)
        return found

    def test_objects_of_the_option_that_match_nothing_are_a_finding(self) -> None:
        self.start(NVME, {'vendor_id': '144d'}, {'address': '0000:04:00.0'})
        for address, product, found in (('', '', 'entry 2, entry 3'), ('0000:03:00.0', '144d:a80a', 'entry 3'),
                                        ('0000:04:00.0', '8086:10d3', '')):
            if address:
                self.hardware.add(address, pci_models.E1000E._replace(product=product))
            self.assertEqual([(findings.NOT_AS_CONFIGURED, 'warning', '[pci] device_spec: no function of this host '
                               f'matches {found}')][:bool(found)],
                             [(one.kind, one.severity, one.detail) for one in self.audit()])

    def test_a_cleaner_without_anything_to_clean_is_a_finding(self) -> None:
        for spec, found in ((NVME, 1), ({**NVME, 'one_time_use': 'yes'}, 0)):
            self.configuration.set('pci', device_spec=[json.dumps(spec)])
            self.configuration.set('devicetrack_nova', pci='clean')
            options = pci_options.read(self.configuration.conf)
            functions = pci_sysfs.Tree(self.hardware.root).functions()
            self.assertEqual(['no entry has one_time_use, so nothing is cleaned'][:found],
                             [one for one in [options.nothing_observed(functions)] if one])

    def history(self, name: str) -> list[tuple[str, str | None]]:
        return [(one.event.event, one.event.instance_uuid) for one in self.host.store.events_of_device(name)]

    def test_nothing_is_wrong_through_the_life_of_a_guest(self) -> None:
        self.start()
        self.assertEqual([], self.audit())
        guest = self.boot(DISK)
        self.assertEqual([], self.audit())
        self.host.machine.stop_guest(guest)
        self.functions.end(guest)
        self.assertEqual([], self.audit())
        self.host.machine.delete_guest(guest)
        self.hand_out(DISK)
        self.assertEqual([], self.audit())
        self.assertEqual([], self.host.store.records())

    def test_the_host_uses_one(self) -> None:
        self.start()
        self.hardware.mount('nvme0n1', '/srv')
        self.assertIn('the host uses it: /srv is mounted', self.one(
            findings.UNHEALTHY, severity=vocabulary.WARNING).detail)
        guest = self.hand_out(DISK, owner=self.define(DISK, run=False))
        self.assertEqual(guest, self.one(findings.UNHEALTHY).recorded_owner)

    def test_the_host_may_keep_the_card_of_virtual_functions(self) -> None:
        card = self.hardware.add_igb('0000:03:00.0')
        self.hardware.make_vfs(card, 1)
        self.start({'address': card})
        self.hand_out(card)
        self.hardware.route(self.hardware.interface_of(card), default=True)
        self.assertIn('the host uses it', self.one(findings.UNHEALTHY, card, vocabulary.NOTE).detail)

    def test_the_interface_of_a_port_is_used_by_its_guest(self) -> None:
        self.start()
        self.hardware.mount('nvme0n1', '/srv')
        self.hand_out(DISK, owner=str(uuid.uuid4()), by_interface=True)
        self.assertEqual([], self.audit())

    def test_a_card_does_not_answer(self) -> None:
        self.start()
        guest = self.boot(DISK)
        self.hardware.fall_silent(DISK)
        self.assertIn(guest, self.one(findings.UNHEALTHY).detail)
        self.hardware.answer_again(DISK)
        self.assertEqual([], self.audit())

    def test_a_guest_has_one_that_the_service_gave_to_nobody_or_to_another(self) -> None:
        self.start()
        guest = self.define(DISK)
        self.assertEqual((guest,), self.one(findings.USED_UNRECORDED).users)
        self.hand_out(DISK, owner=str(uuid.uuid4()), is_expected=False)
        self.assertIn(guest, self.one(findings.WRONG_OWNER).detail)
        other = self.define(DISK, run=False)
        self.hand_out(DISK, owner=other)
        self.assertEqual({guest, other}, set(self.one(findings.SHARED).users))

    def test_a_guest_lacks_one_that_the_service_gave_it(self) -> None:
        self.start()
        guest = self.boot(OTHER)
        self.hand_out(DISK, owner=guest)
        self.assertIn(guest, self.one(findings.RECORDED_UNUSED, severity=vocabulary.WARNING).detail)
        # It boots, moves, or is suspended.
        self.hand_out(DISK, owner=guest, is_expected=False)
        self.assertEqual([], self.audit())

    def test_one_is_gone(self) -> None:
        self.start()
        guest = self.boot(DISK)
        self.audit()
        self.functions.end(guest)
        self.hardware.remove(DISK)
        self.assertIn(guest, self.one(findings.GONE).detail)
        # The service keeps one that its options no longer name until the instance is gone.
        self.hand_out(DISK, owner=guest, is_named=False)
        self.assertEqual([], self.audit())

    def test_another_card_is_in_the_slot_and_the_card_is_elsewhere(self) -> None:
        self.start()
        guest = self.boot(DISK)
        self.audit()
        self.functions.end(guest)
        for address in (DISK, OTHER):
            self.hardware.remove(address)
        self.hardware.add_nvme(DISK, 'S3')
        self.hardware.add_nvme(OTHER, 'S1')
        by_device = {one.device.identifier: one for one in self.audit()}
        self.assertEqual({(findings.DETAILS_DIFFER, vocabulary.CRITICAL), (findings.DETAILS_DIFFER, vocabulary.NOTE)},
                         {(one.kind, one.severity) for one in by_device.values()})
        for words in (f'owner {guest} got', 'serial is S3 and was S1', f'S1 is at {OTHER} now'):
            self.assertIn(words, by_device[DISK].detail)
        # The next owner gets what is there.
        self.host.machine.delete_guest(guest)
        self.boot(DISK)
        self.boot(OTHER)
        self.audit()
        self.assertEqual([], self.audit())

    def test_a_free_card_comes_to_another_slot(self) -> None:
        self.start()
        self.audit()
        self.hardware.remove(DISK)
        del self.held[DISK]
        slot = self.hardware.add_nvme('0000:09:00.0', 'S1')
        self.hand_out(slot)
        self.assertIn(f'which was at {DISK}', self.one(findings.DETAILS_DIFFER, slot, vocabulary.NOTE).detail)
        self.assertEqual([], self.audit())

    def test_the_host_keeps_a_part_of_a_group(self) -> None:
        _edu, nic, test = self.hardware.add_shared_group(BRIDGE, BUS)
        self.start({'address': test})
        self.hand_out(test)
        detail = self.one(findings.UNHEALTHY, test, vocabulary.WARNING).detail
        self.assertIn(f'also has {nic}, which has the driver', detail)
        self.hardware.unbind(nic)
        self.assertEqual([], self.audit())

    def test_two_guests_have_parts_of_a_group(self) -> None:
        first, second = self.hardware.add_card('0000:08:00', ['a', 'b'])
        self.start()
        one, other = (self.hand_out(address, owner=str(uuid.uuid4()), is_expected=False)
                      for address in (first, second))
        for address in (first, second):
            self.hardware.unbind(address)
        detail = self.one(findings.EXCLUSION_BROKEN, first).detail
        self.assertIn(one, detail)
        self.assertIn(other, detail)

    def test_a_history_says_who_had_which_card(self) -> None:
        self.start()
        first = self.boot(DISK)
        self.audit()
        self.host.restart()
        vars(self.host.service)['holdings'] = lambda: list(self.held.values())
        self.host.machine.delete_guest(first)
        self.functions.end(first)
        second = self.boot(DISK)
        self.audit()
        told = [('claimed', first), ('freed', first), ('claimed', second)]
        self.assertEqual(told, self.history(DISK))
        self.assertEqual(self.host.store.events_of_device(DISK), self.host.store.events_of_serial('S1'))
        self.assertEqual({'by': 'the service'}, self.host.store.events_of_device(DISK)[0].event.more)

    def test_the_service_does_not_tell(self) -> None:
        self.start()
        guest = self.boot(DISK)
        self.audit()
        vars(self.host.service)['holdings'] = lambda: None
        self.assertEqual([], self.audit())
        self.assertEqual([('claimed', guest)], self.history(DISK))

    def test_a_command_sees_what_the_host_shows(self) -> None:
        self.start()
        guest = self.boot(DISK)
        self.audit()
        self.functions.end(guest)
        self.hardware.remove(DISK)
        self.hardware.add_nvme(DISK, 'S3')
        observer = report.Observer(self.host.store.hosts()[0], self.host.machine.driver, self.host.store, self.conf)
        self.hardware.mount('nvme1n1', '/srv')
        self.assertEqual({(findings.DETAILS_DIFFER, DISK), (findings.UNHEALTHY, OTHER)},
                         {(one.kind, one.device.identifier) for one in observer.audit()})

    def test_lists_and_maps_show_whose_they_are(self) -> None:
        self.start()
        guest = self.boot(DISK)
        self.audit()
        self.hardware.mount('nvme1n1', '/srv')
        observer = report.Observer(self.host.store.hosts()[0], self.host.machine.driver, self.host.store, self.conf)
        lines = observer.inventory()
        told = {line.identifier: '; '.join(map(str, line.reasons)) for line in lines if line.status == report.OBSERVED}
        by_service = 'handed out by the compute service'
        self.assertEqual({DISK: f'{by_service}: instance {guest}', OTHER: (
            f'unhealthy: the host uses it: /srv is mounted from nvme1n1; {by_service}')}, told)
        drawn = '\n'.join(terminal.Pen(120).hosts([pictures.read('host', lines, [], [])]))
        for words in (guest, '/srv', '2 observed'):
            self.assertIn(words, drawn)

    def test_what_was_seen_is_damaged(self) -> None:
        self.start()
        guest = self.boot(DISK)
        self.audit()
        with open(os.path.join(self.configuration.state_path, 'observed.json'), 'w', encoding='ascii') as file:
            file.write('{')
        self.assertEqual([], self.audit())
        self.assertEqual([('claimed', guest)] * 2, self.history(DISK))

    def test_without_the_option_nobody_looks(self) -> None:
        self.start()
        self.configuration.set('devicetrack_nova', pci='off')
        self.host.restart()
        self.hardware.mount('nvme0n1', '/srv')
        self.assertEqual([], self.audit())
