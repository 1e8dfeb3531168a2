"""The device kind ``pci``, on a host that is made of files."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
import contextlib
import json
import os
import shutil
import threading
from typing import Any

import fixtures

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.objects import details
from devicetrack.objects import identity
from devicetrack.objects import network_port
from devicetrack.testing import nvme
from devicetrack.testing import pci as made
from devicetrack.testing import pci_models
from devicetrack.tests.unit.virt import pci_hosts
from devicetrack.tests.unit.virt.pci_hosts import BRIDGE
from devicetrack.tests.unit.virt.pci_hosts import CARD
from devicetrack.tests.unit.virt.pci_hosts import DISK
from devicetrack.tests.unit.virt.pci_hosts import NVME
from devicetrack.virt.libvirt import disk_nodes
from devicetrack.virt.libvirt import domain_xml
from devicetrack.virt.libvirt import pci_namespaces
from devicetrack.virt.libvirt import pci_privileged
from devicetrack.virt.libvirt import pci_sysfs
from devicetrack.virt.libvirt import pci_use
from devicetrack.virt.libvirt.kinds import pci
from devicetrack.virt.libvirt.kinds import pci_erasing

DISK_CLASS = 'CUSTOM_PCI_1B36_0010'


class PCITestCase(pci_hosts.PCIHostTestCase):

    # -- what options name ----------------------------------------------------------------------------------------

    def test_options_name_a_function_that_they_offer_whether_the_host_has_it_or_not(self) -> None:
        self.host.add_igb(CARD)
        vf = self.host.make_vfs(CARD, 1)[0]
        cards = {'vendor_id': '8086'}
        texts = {name: device.details for name, device in self.devices(self.kind(cards)).items()}
        for name in (vf, CARD):
            self.host.remove(name)
        for specs, functions, named in (
                ((cards,), 'all', {CARD, vf}),
                (({'vendor_id': '8087'},), 'all', set()),
                (({'vendor_id': '8086', 'product_id': '10ca'},), 'all', {vf}),
                (({'address': CARD},), 'all', {CARD, vf}),
                (({'address': '0000:04:00.0'},), 'all', set()),
                (({'devname': 'enp3s0'},), 'all', {CARD, vf}),
                (({'devname': 'enp3s1'},), 'all', set()),
                ((cards,), json.dumps({'product_id': '10c9'}), {CARD}),
                ((cards,), json.dumps({'vendor_id': '8068'}), set())):
            kind = self.kind(*specs, functions=functions)
            self.assertEqual(named, {name for name, text in texts.items() if kind.is_named(name, text)},
                             str((specs, functions)))
        self.assertTrue(kind.is_named(CARD, 'damaged'))

    # -- stock --------------------------------------------------------------------------------------------------------

    def test_the_stock_has_what_the_options_offer(self) -> None:
        self.host.add_nvme(DISK, 'S1', numa_node=1)
        self.host.add_igb(CARD)
        [device] = self.kind({**NVME, 'traits': 'fast'}).stock().devices
        self.assertEqual(('pci', DISK, DISK, DISK_CLASS, DISK, 1, None), (
            device.kind, device.identifier, device.provider, device.resource_class, device.parent, device.numa_node,
            device.unhealthy))
        known = details.from_text(device.details)
        self.assertEqual(('S1', 'nvme', 'type-PCI', '', -1), (
            known.serial, known.driver, known.device_type, known.parent_address, known.vf_number))
        self.assertIn('CUSTOM_FAST', known.traits)

    def test_its_provider_is_its_card_by_the_address_in_capitals(self) -> None:
        card = self.host.add_igb('0000:3d:00.0')
        [function] = self.host.make_vfs(card, 1)
        for device in self.devices(self.kind({'vendor_id': '8086'})).values():
            self.assertEqual(('0000:3D:00.0', card), (device.provider, device.parent))
        self.assertIn(function, self.devices(self.kind({'vendor_id': '8086'})))

    def test_an_alias_may_ask_for_what_a_function_is_and_what_options_say_of_it(self) -> None:
        self.host.add_nvme(DISK, 'S1')
        self.host.add_igb(CARD)
        [vf] = self.host.make_vfs(CARD, 1)
        specs = {**NVME, 'traits': 'fast', 'one_time_use': 'yes'}, {'vendor_id': '8086', 'product_id': '10c9'}, {
            'vendor_id': '8086', 'live_migratable': 'yes'}
        managed = 'COMPUTE_MANAGED_PCI_DEVICE'
        self.assertEqual({
            DISK: {'vendor_id=1b36', 'product_id=0010', 'type-PCI', managed, 'CUSTOM_FAST', 'HW_PCI_ONE_TIME_USE'},
            CARD: {'vendor_id=8086', 'product_id=10c9', 'type-PF', managed},
            vf: {'vendor_id=8086', 'product_id=10ca', 'type-VF', managed, 'HW_PCI_LIVE_MIGRATABLE',
                 'live_migratable=yes'}},
            {name: set(device.features) for name, device in self.devices(self.kind(*specs)).items()})

    def test_what_is_not_ours_is_not_in_stock(self) -> None:
        self.host.add_nvme(DISK, 'S1')
        other = self.host.add_nvme('0000:02:00.0', 'S2')
        self.assertEqual([other], list(self.devices(self.kind(NVME, functions=json.dumps({'address': other})))))
        kind = self.kind(NVME, functions=json.dumps({'address': '0000:0f:00.0'}))
        self.assertTrue(kind.configured)
        self.assertEqual({}, self.devices(kind))

    def test_a_card_excludes_its_virtual_functions(self) -> None:
        self.host.add_igb(CARD)
        first, second = self.host.make_vfs(CARD, 2)
        found = self.devices(self.kind({'vendor_id': '8086'}))
        token = f'sriov:{CARD}'
        self.assertEqual({CARD: ((token, vocabulary.WHOLE),), first: ((token, vocabulary.PART),),
                          second: ((token, vocabulary.PART),)},
                         {address: device.exclusions for address, device in found.items()})
        self.assertEqual({CARD}, {device.parent for device in found.values()})
        self.assertEqual([-1, 0, 1], [details.from_text(found[one].details).vf_number for one in (CARD, first, second)])

    def test_a_group_is_offered_together_or_not_at_all(self) -> None:
        edu, network, tester = self.host.add_shared_group(BRIDGE, '0000:07')
        [alone] = self.kind({'vendor_id': '8086', 'product_id': '100e'}).stock().devices
        self.assertIn(f'also has {edu}, which is not offered', str(alone.unhealthy))
        found = self.devices(self.kind({'address': '*:07:*.*'}))
        self.assertEqual({network, edu, tester}, set(found))
        self.assertEqual([None] * 3, [device.unhealthy for device in found.values()])
        [modes] = {device.exclusions for device in found.values()}
        self.assertEqual([vocabulary.TOGETHER], [mode for _token, mode in modes])

    def test_functions_of_one_nvm_subsystem_go_to_one_instance(self) -> None:
        self.host.add_nvme(DISK, 'S1')
        other = self.host.add_nvme('0000:01:00.1', 'S1')
        for address, serial in (('0000:03:00.0', 'S3'), ('0000:04:00.0', ''), ('0000:05:00.0', '')):
            self.host.add_nvme(address, serial)
        together = (('nvm:1b36:S1', vocabulary.TOGETHER),)

        def excluding(kind: pci.PCI) -> dict[str, Any]:
            return {address: device.exclusions for address, device in self.devices(kind).items() if device.exclusions}

        kind = self.kind(NVME)
        self.assertEqual({DISK: together, other: together}, excluding(kind))
        row = details.to_text(self.realized(kind, other).details)
        self.give_to_guest(other)
        self.assertEqual({DISK: together, other: together}, excluding(kind))
        # After a boot only the row of the guest has the serial number.
        self.boot = 'the next boot'
        kind = self.kind(NVME)
        kind.prepare({other: row}, lambda _name: contextlib.nullcontext(True))
        self.assertEqual({DISK: together, other: together}, excluding(kind))

    def test_disks_of_a_vendor_that_gives_all_one_serial_number_are_several(self) -> None:
        addresses = [self.host.add_nvme(f'0000:0{number}:00.0', 'nvme_card') for number in range(1, 5)]
        controllers = self.useFixture(nvme.Controllers(self.host))
        for address in addresses:
            controllers.add(address)

        def excluding() -> set[str]:
            return {address for address, device in self.devices(kind).items() if device.exclusions}

        kind = self.kind(NVME)
        self.assertEqual(set(), excluding())
        proven = {address: device.details for address, device in self.devices(kind).items()}
        # Each goes to a guest of its own, and no guest reaches the others.
        for address in addresses:
            assignment = self.realized(kind, address)
            self.assertEqual([], list(kind.within_reach([details.to_text(assignment.details)], proven)))
            self.give_to_guest(address)
            self.assertEqual(set(), excluding())
            self.assertEqual(1, len(kind.guest_elements([assignment])))

    def test_the_name_of_the_subsystem_tells_them_apart_where_controllers_cannot_be_asked(self) -> None:
        addresses = [self.host.add_nvme(f'0000:0{number}:00.0', 'nvme_card') for number in range(1, 5)]
        kind = self.kind(NVME)
        for address, name in zip(addresses, 'abcc', strict=True):
            with open(self.host.path(address, f'nvme/{self.host.controller_of(address)}/subsysnqn'), 'w') as file:
                file.write(f'nqn.2014-08.org.nvmexpress:uuid:{name}\n')
        for guests in range(3):
            self.assertEqual(set(addresses[2:]), {
                address for address, device in self.devices(kind).items() if device.exclusions})
            self.give_to_guest(addresses[guests])

    def test_a_row_knows_its_disk_by_the_name_of_the_subsystem(self) -> None:
        other = '0000:02:00.0'

        def attach(names: Mapping[str, str]) -> None:
            for address, name in names.items():
                self.host.add_nvme(address, 'nvme_card')
                with open(self.host.path(address, f'nvme/{self.host.controller_of(address)}/subsysnqn'), 'w') as file:
                    file.write(f'nqn.2014-08.org.nvmexpress:uuid:{name}\n')

        attach({DISK: 'a', other: 'b'})
        kind = self.kind(NVME)
        assignments = {address: self.realized(kind, address) for address in (DISK, other)}
        proven = self.devices(kind)[other].details
        rows = {address: details.to_text(one.details) for address, one in assignments.items()}
        for address in (DISK, other):
            self.host.remove(address)
        self.boot = 'the next boot'
        attach({DISK: 'b', other: 'a'})
        kind = self.kind(NVME)
        for one in assignments.values():
            self.assertIn('nvm subsystem', str(self.assertRaises(exception.DeviceGone, kind.realize, one)))
        self.assertFalse(identity.same_device(proven, self.devices(kind)[other].details))
        kind.prepare(rows, lambda _name: contextlib.nullcontext(True))
        self.assertEqual({DISK: other, other: DISK}, {
            name: details.from_text(device.details).address for name, device in self.devices(kind).items()})

    def test_its_row_gets_the_name_while_a_guest_has_the_disk_and_keeps_it_when_the_kernel_tells_none(self) -> None:
        def attach(name: str | None) -> str:
            self.host.add_nvme(DISK, 'S1')
            path = self.host.path(DISK, f'nvme/{self.host.controller_of(DISK)}/subsysnqn')
            with open(path, 'w') as file:
                file.write(name or '')
            return self.devices(self.kind(NVME))[DISK].details

        self.assertEqual('nqn.a', details.from_text(attach('nqn.a')).nvm_subsystem)
        older = self.realized(self.kind(NVME)).details
        older.nvm_subsystem = ''
        self.give_to_guest()
        shown = self.devices(self.kind(NVME))[DISK].details
        compared = identity.compare(details.to_text(older), shown)
        assert compared is not None
        self.assertEqual({'nvm_subsystem': ('', 'nqn.a')}, compared.others)             # update details writes it
        self.host.remove(DISK)
        self.boot = 'the next boot'
        compared = identity.compare(shown, attach(None))
        assert compared is not None
        self.assertEqual((True, {}), (compared.is_same, compared.others))

    def test_controllers_of_several_ports_stay_together_beside_such_disks(self) -> None:
        addresses = [self.host.add_nvme(f'0000:0{number}:00.0', 'nvme_card') for number in range(1, 4)]
        controllers = self.useFixture(nvme.Controllers(self.host))
        for address in addresses:
            controllers.add(address).others = {1} if address != addresses[0] else set()
        self.assertEqual(set(addresses[1:]), {
            address for address, device in self.devices(self.kind(NVME)).items() if device.exclusions})

    def test_what_the_host_uses_is_unhealthy_and_no_more_proven(self) -> None:
        self.host.add_nvme(DISK, 'S1')
        self.host.mount('nvme0n1', '/srv')
        stock = self.kind(NVME).stock()
        [device] = stock.devices
        self.assertIn('the host uses it', str(device.unhealthy))
        self.assertIn('/srv', str(device.unhealthy))
        self.assertEqual([DISK], list(stock.written))

    def test_so_is_what_is_in_front_of_it(self) -> None:
        vmd = self.host.add('0000:64:00.5', pci_models.VMD)
        self.host.add('10000:01:00.0', pci_models.NVME, serial='S1', behind=vmd)
        kind = self.kind({'vendor_id': '8086', 'product_id': '28c0'})
        assignment = self.assigned(kind, vmd)
        self.host.mount('nvme0n1', '/')
        stock = kind.stock()
        [device] = stock.devices
        self.assertIn('the host uses it: / is mounted from nvme0n1', str(device.unhealthy))
        self.assertEqual([vmd], list(stock.written))
        error = self.assertRaises(exception.RealizeFailed, kind.realize, assignment)
        self.assertIn('/ is mounted from nvme0n1', str(error))

    def test_a_file_of_sysfs_that_cannot_be_read_costs_its_function_alone(self) -> None:
        other = '0000:05:00.0'
        for address in (CARD, other):
            self.host.add_igb(address)
        for name in (f'net/{self.host.interface_of(CARD)}/ifindex', 'numa_node', 'modalias', 'sriov_totalvfs'):
            path = self.host.path(CARD, name)
            os.rename(path, f'{path}.before')
            os.mkdir(path)
            found = self.devices(self.kind({'vendor_id': '8086'}))
            self.assertIsNone(found[other].unhealthy)
            self.assertIn(os.path.basename(name), str(found[CARD].unhealthy))
            os.rmdir(path)
            os.rename(f'{path}.before', path)
        self.assertEqual({None}, {device.unhealthy for device in self.devices(
            self.kind({'vendor_id': '8086'})).values()})

    def unreadable(self, address: str) -> Callable[[], None]:
        """Let nobody read which function it is; gives what undoes that."""
        path = self.host.path(address, 'modalias')
        os.rename(path, f'{path}.before')
        os.mkdir(path)

        def undo() -> None:
            os.rmdir(path)
            os.rename(f'{path}.before', path)
        return undo

    def test_a_function_whose_product_cannot_be_read_is_there_by_its_name_where_an_option_may_mean_it(self) -> None:
        self.host.add_igb(CARD)
        [vf] = self.host.make_vfs(CARD, 1)
        for address in (CARD, vf):
            self.unreadable(address)
        card, part = {'vendor_id': '8086', 'product_id': '10c9'}, {'vendor_id': '8086', 'product_id': '10ca'}
        network = {**part, 'physical_network': 'net'}
        for specs, functions, there in (
                ((card,), 'all', {CARD: 'CUSTOM_PCI_8086_10C9', vf: 'CUSTOM_PCI_8086_10C9'}),
                (({'vendor_id': '8086'},), 'all', {CARD: 'CUSTOM_PCI_8086_UNKNOWN', vf: 'CUSTOM_PCI_8086_UNKNOWN'}),
                (({**card, 'resource_class': 'nic'},), 'all', {CARD: 'CUSTOM_NIC', vf: 'CUSTOM_NIC'}),
                ((network,), 'all', {vf: network_port.resource_class_of('net')}),
                ((network, card), 'all', {vf: network_port.resource_class_of('net'), CARD: 'CUSTOM_PCI_8086_10C9'}),
                (({**card, 'address': '0000:04:00.0'},), 'all', {}),
                ((card,), json.dumps({**card, 'address': '0000:04:00.0'}), {}),
                ((card,), json.dumps(card), {CARD: 'CUSTOM_PCI_8086_10C9', vf: 'CUSTOM_PCI_8086_10C9'})):
            kind = self.kind(*specs, functions=functions)
            kind.check_host()
            found = self.devices(kind)
            self.assertEqual(there, {address: device.resource_class for address, device in found.items()})
            for device in found.values():
                self.assertIn('modalias', str(device.unhealthy))
                self.assertIn(device.resource_class, kind.resource_classes)
            self.assertEqual(there.keys(), set(kind.identify((CARD, vf)).values()))
        # Placement may still have the class when they can be read again.
        self.assertTrue(self.kind({'vendor_id': '8086'}).may_count('CUSTOM_PCI_8086_UNKNOWN'))

    def test_a_row_whose_function_cannot_be_read_is_uncertain_and_counts_where_it_did(self) -> None:
        other = '0000:02:00.0'
        for address, serial in ((DISK, 'S1'), (other, 'S2')):
            self.host.add_nvme(address, serial)
        kind = self.kind({'vendor_id': '1b36'})
        before, assignment = self.devices(kind), self.assigned(kind)
        recorded = {DISK: details.to_text(assignment.details)}
        undo = self.unreadable(DISK)
        self.boot = 'the next boot'
        kind = self.kind({'vendor_id': '1b36'})
        for _audit in range(2):
            kind.prepare(recorded, lambda _name: contextlib.nullcontext(True))
            found = self.devices(kind)
            self.assertEqual({other}, {name for name, device in found.items() if device.unhealthy is None})
            compared = identity.compare(recorded[DISK], found[DISK].details)
            assert compared is not None
            self.assertEqual(({}, False), (compared.itself, compared.is_same))
            self.assertEqual(before[DISK][:6], found[DISK][:6])
        self.assertRaises(exception.CommandFailed, kind.realize, assignment)
        undo()
        kind.prepare(recorded, lambda _name: contextlib.nullcontext(True))
        found = self.devices(kind)
        self.assertEqual({None}, {device.unhealthy for device in found.values()})
        self.assertTrue(identity.same_device(recorded[DISK], found[DISK].details))

    def test_a_row_whose_function_cannot_be_read_follows_no_other_disk_of_its_serial_number(self) -> None:
        other = '0000:02:00.0'
        self.host.add_nvme(DISK, 'S1')
        recorded = {DISK: details.to_text(self.assigned(self.kind(NVME)).details)}
        self.host.add_nvme(other, 'S1')
        self.unreadable(DISK)
        self.boot = 'the next boot'
        kind = self.kind(NVME)
        kind.prepare(recorded, lambda _name: contextlib.nullcontext(True))
        found = self.devices(kind)
        self.assertEqual({DISK, other}, set(found))
        self.assertIn(DISK, str(found[other].unhealthy))
        # They may be one disk, which goes to one guest.
        self.assertEqual({DISK: found[other].exclusions, other: found[other].exclusions}, {
            name: device.exclusions for name, device in found.items()})

    def test_a_function_whose_product_cannot_be_read_keeps_something(self) -> None:
        self.host.add_nvme(DISK, 'S1')
        kind = self.kind({'vendor_id': '1b36'}, cleaning='none')
        self.assertEqual({DISK}, kind.stock().nothing_kept)
        self.unreadable(DISK)
        self.assertEqual(set(), kind.stock().nothing_kept)
        # With the driver for guests it may be a disk to which somebody wrote.
        self.give_to_guest()
        self.assertEqual([DISK], list(kind.stock().written))

    def test_a_guest_that_is_off_and_has_an_interface_to_itself_names_its_function(self) -> None:
        self.host.add_igb(CARD)
        [vf] = self.host.make_vfs(CARD, 1)
        self.host.build_interface('br0', self.host.interface_of(CARD))
        kind = self.kind({'vendor_id': '8086'})
        text = """<domain type='kvm'>
  <name>g</name>
  <uuid>{}</uuid>
  <devices>
    <interface type='direct'>
      <source dev='{}' mode='{}'/>
    </interface>
  </devices>
</domain>
"""
        for name, mode, means in ((self.host.interface_of(vf), 'passthrough', {vf}),
                                  (self.host.interface_of(vf), 'bridge', set()), ('br0', 'passthrough', set()),
                                  ('gone0', 'passthrough', {None})):
            domain = domain_xml.parse(text.format(self.instance, name, mode))
            self.assertEqual(means, set(kind.identify(kind.other_addresses(domain)).values()))

    def test_what_the_host_begins_to_use_is_offered_no_more_at_the_next_look(self) -> None:
        self.host.add_igb(CARD)
        vf, _other = self.host.make_vfs(CARD, 2)
        kind = self.kind({'vendor_id': '8086'})
        self.assertEqual({None}, {device.unhealthy for device in self.devices(kind).values()})
        self.host.give_address(self.host.interface_of(vf))
        self.assertEqual({CARD, vf}, {address for address, device in self.devices(kind).items() if device.unhealthy})

    def test_a_group_with_what_the_host_uses_is_unhealthy(self) -> None:
        edu, network, _tester = self.host.add_shared_group(BRIDGE, '0000:07')
        self.host.give_address(self.host.interface_of(network))
        found = self.devices(self.kind({'address': '*:07:*.*'}))
        self.assertIn(f'also has {network}, and the host uses it', str(found[edu].unhealthy))

    # -- which one it is ----------------------------------------------------------------------------------------------

    def test_a_serial_number_is_remembered_while_a_guest_has_the_disk(self) -> None:
        self.host.add_nvme(DISK, 'S1')
        kind = self.kind(NVME)
        assignment = self.assigned(kind)
        kind.realize(assignment)
        self.give_to_guest()
        self.assertEqual('S1', details.from_text(self.devices(kind)[DISK].details).serial)
        # A service that starts again has the file.
        self.assertEqual('S1', details.from_text(self.devices(self.kind(NVME))[DISK].details).serial)
        self.boot = 'the next boot'
        self.assertIsNone(details.from_text(self.devices(self.kind(NVME))[DISK].details).serial)

    def test_the_serial_number_of_another_disk_is_not_remembered_for_it(self) -> None:
        self.host.add_nvme(DISK, 'S1')
        kind = self.kind(NVME)
        self.devices(kind)
        self.host.remove(DISK)
        self.host.add_nvme(DISK, 'S2')
        self.give_to_guest()
        self.assertIsNone(details.from_text(self.devices(kind)[DISK].details).serial)

    def test_another_disk_in_the_slot_is_neither_given_nor_cleaned(self) -> None:
        self.host.add_nvme(DISK, 'S1')
        kind = self.kind(NVME, cleaning='none')
        assignment = self.assigned(kind)
        self.host.remove(DISK)
        self.host.add_nvme(DISK, 'S2')
        for call in (lambda: kind.realize(assignment), lambda: self.unclaim(kind, assignment),
                     lambda: kind.guest_elements([assignment])):
            error = self.assertRaises(exception.DeviceGone, call)
            self.assertIn('serial', str(error))
        self.assertEqual([], self.host.resets)

    def test_a_function_that_is_away_is_gone(self) -> None:
        self.host.add_nvme(DISK, 'S1')
        kind = self.kind(NVME)
        assignment = self.assigned(kind)
        self.host.remove(DISK)
        self.assertRaises(exception.DeviceGone, kind.realize, assignment)

    def test_a_memory_that_is_damaged_leaves_the_stock_unknown(self) -> None:
        self.host.add_nvme(DISK, 'S1')
        path = os.path.join(self.state_path, 'pci.json')
        with open(path, 'w') as file:
            file.write('{')
        os.chmod(path, 0o600)
        error = self.assertRaises(exception.CommandFailed, self.kind(NVME).stock)
        self.assertIn(path, str(error))
        self.assertIn('damaged', str(error))
        self.assertIn('no instance has a disk that only its address tells apart from others', str(error))

    def test_two_processes_remember_what_either_gave(self) -> None:
        self.host.add_nvme(DISK, 'S1')
        other = self.host.add_nvme('0000:02:00.0', 'S2')
        service, command = self.kind(NVME, cleaning='none'), self.kind(NVME, cleaning='none')
        first, second = self.assigned(service), self.assigned(command, other)
        service.realize(first)
        command.realize(second)
        self.devices(service)
        self.assertEqual({DISK: DISK, other: other}, self.kind({'vendor_id': '8086'}).identify([DISK, other]))
        self.unclaim(command, first)
        self.assertEqual({other: other}, self.kind({'vendor_id': '8086'}).identify([DISK, other]))

    def test_a_host_that_gives_nothing_away_has_no_file(self) -> None:
        self.host.add_igb(CARD)
        self.kind(functions='all').identify([CARD])
        self.kind(NVME).stock()
        self.assertEqual([], [name for name in os.listdir(self.state_path) if name.startswith('pci')])

    # -- realize ------------------------------------------------------------------------------------------------------

    def test_what_the_host_uses_is_not_given_to_a_guest(self) -> None:
        self.host.add_nvme(DISK, 'S1')
        kind = self.kind(NVME)
        assignment = self.assigned(kind)
        self.host.mount('nvme0n1', '/srv')
        error = self.assertRaises(exception.RealizeFailed, kind.realize, assignment)
        self.assertIn('/srv', str(error))

    def test_what_the_host_uses_is_not_free(self) -> None:
        self.host.add_nvme(DISK, 'S1')
        kind = self.kind(NVME)
        assignment = self.assigned(kind)
        self.host.mount('nvme0n1', '/srv')
        error = self.assertRaises(exception.DeviceInUse, kind.check_free, assignment)
        self.assertIn('/srv', str(error))

    def test_what_a_program_has_by_vfio_is_not_free(self) -> None:
        self.host.add_nvme(DISK, 'S1')
        kind = self.kind(NVME)
        assignment = self.assigned(kind)
        self.give_to_guest()
        with self.host.opened(DISK):
            error = self.assertRaises(exception.DeviceInUse, kind.check_free, assignment)
        self.assertIn('has the VFIO group', str(error))
        kind.check_free(assignment)

    def test_a_repeated_realize_keeps_the_driver_of_before(self) -> None:
        self.host.add_nvme(DISK, 'S1')
        kind = self.kind(NVME)
        assignment = self.assigned(kind)
        kind.realize(assignment)
        self.give_to_guest()
        found = details.from_text(kind.realize(assignment).details)
        self.assertEqual(('nvme', assignment.details.disks), (found.driver, found.disks))

    def test_libvirt_manages_a_function_unless_the_spec_says_otherwise(self) -> None:
        self.host.add_nvme(DISK, 'S1')
        for managed in ('yes', 'no'):
            kind = self.kind({**NVME, 'managed': managed})
            [element] = kind.guest_elements([self.assigned(kind)])
            self.assertIn(f"managed='{managed}'", element)
            self.assertIn("<address domain='0x0000' bus='0x01' slot='0x00' function='0x0'/>", element)

    # -- usage --------------------------------------------------------------------------------------------------------

    def test_other_functions_are_no_business_of_ours(self) -> None:
        self.host.add_nvme(DISK, 'S1')
        self.host.add_igb(CARD)
        away = '0000:0f:00.0'
        self.assertEqual({DISK: DISK, away: None}, self.kind(NVME).identify([DISK, CARD, away]))
        self.assertEqual({}, self.kind(functions='all').identify([DISK, CARD]))

    def test_a_function_that_was_given_is_ours_whatever_the_options_say_now(self) -> None:
        self.host.add_nvme(DISK, 'S1')
        kind = self.kind(NVME, cleaning='none')
        assignment = self.assigned(kind)
        kind.realize(assignment)
        self.assertEqual({DISK: DISK}, self.kind({'vendor_id': '8086'}).identify([DISK]))
        self.unclaim(kind, assignment)
        self.assertEqual({}, self.kind({'vendor_id': '8086'}).identify([DISK]))

    # -- unclaim ------------------------------------------------------------------------------------------------------

    def test_a_function_that_was_left_with_the_driver_for_guests_comes_back(self) -> None:
        self.host.add_nvme(DISK, 'S1')
        kind = self.kind(NVME, cleaning='none')
        assignment = self.assigned(kind)
        kind.realize(assignment)
        self.give_to_guest()
        self.unclaim(kind, assignment)
        self.assertEqual('nvme', self.host.driver_of(DISK))
        self.assertEqual([DISK], [address for address, _methods in self.host.resets])

    def test_a_function_without_a_driver_has_none_again(self) -> None:
        edu, _network, _tester = self.host.add_shared_group(BRIDGE, '0000:07')
        kind = self.kind({'address': '*:07:*.*'}, cleaning='none')
        assignment = self.assigned(kind, edu)
        kind.realize(assignment)
        self.give_to_guest(edu)
        self.unclaim(kind, assignment)
        self.assertIsNone(self.host.driver_of(edu))

    def test_a_function_that_a_process_has_open_is_in_use(self) -> None:
        self.host.add_nvme(DISK, 'S1')
        kind = self.kind(NVME, cleaning='none')
        assignment = self.assigned(kind)
        kind.realize(assignment)
        self.give_to_guest()
        with self.host.opened(DISK):
            self.assertRaises(exception.DeviceInUse, self.unclaim, kind, assignment)
        self.assertEqual(made.VFIO_PCI, self.host.driver_of(DISK))
        self.assertEqual([], self.host.resets)

    def test_a_reset_that_fails_gives_nothing_back(self) -> None:
        self.host.add_nvme(DISK, 'S1')
        kind = self.kind(NVME, cleaning='none')
        assignment = self.assigned(kind)
        kind.realize(assignment)
        self.give_to_guest()
        self.host.failing.add(DISK)
        self.assertRaises(exception.UnclaimFailed, self.unclaim, kind, assignment)
        self.assertIn(DISK, kind.identify([DISK]))
        self.host.failing.clear()
        self.unclaim(kind, assignment)
        self.assertEqual('nvme', self.host.driver_of(DISK))

    def test_what_the_host_has_mounted_meanwhile_is_not_cleaned(self) -> None:
        self.host.add_nvme(DISK, 'S1')
        kind = self.kind(NVME, cleaning='none')
        assignment = self.assigned(kind)
        kind.realize(assignment)
        self.host.mount('nvme0n1', '/srv')
        error = self.assertRaises(exception.DeviceInUse, self.unclaim, kind, assignment)
        self.assertIn('/srv', str(error))

    def test_who_looks_at_a_disk_that_has_come_back_is_waited_for(self) -> None:
        self.host.add_nvme(DISK, 'S1')
        kind = self.kind(NVME, cleaning='none')
        assignment = self.assigned(kind)
        kind.realize(assignment)
        self.host.add_process(99, '(udev-worker)')
        self.host.open_device(99, 'nvme0n1')
        error = self.assertRaises(exception.DeviceInUse, self.unclaim, kind, assignment)
        self.assertIn('udev-worker', str(error))

        def look() -> pci_use.HostUse:
            """Look, and then let the process end."""
            found = self.host.use()
            shutil.rmtree(os.path.join(self.host.proc, '99'), ignore_errors=True)
            return found

        kind.options, kind.host_use = kind.options._replace(release_wait_s=600), look
        self.unclaim(kind, assignment)
        self.assertIsNone(self.host.use().of(DISK))

    def test_a_disk_that_no_policy_cleans_waits_for_a_person(self) -> None:
        self.host.add_nvme(DISK, 'S1')
        kind = self.kind(NVME)
        assignment = self.assigned(kind)
        kind.realize(assignment)
        error = self.assertRaises(exception.UnclaimFailed, self.unclaim, kind, assignment)
        self.assertIn('a person has to clean it', str(error))
        self.assertIn('device retire', str(error))

    def test_only_what_keeps_nothing_is_blank_unread(self) -> None:
        self.host.add_nvme(DISK, 'S1')
        for policy, blank in (('none', [DISK]), ('zero', []), (None, [])):
            kind = self.kind(NVME, cleaning=policy)
            self.assertEqual(blank, list(kind.is_blank([self.assigned(kind)])))

    def test_a_function_that_was_only_claimed_is_untouched(self) -> None:
        self.host.add_nvme(DISK, 'S1')
        kind = self.kind(NVME)
        assignment = self.assigned(kind)
        self.assertTrue(kind.is_untouched(assignment))
        kind.realize(assignment)
        self.assertFalse(kind.is_untouched(assignment))

    # -- who was interrupted, or came between -------------------------------------------------------------------------

    def test_what_a_guest_made_of_a_function_is_not_what_the_claim_found(self) -> None:
        self.host.add_nvme(DISK, 'S1')
        kind = self.kind(NVME)
        assignment = self.realized(kind)
        self.give_to_guest()
        self.host.unbind(DISK)
        # libvirt is about to give it back, and the guest starts again.
        again = details.from_text(kind.realize(assignment).details)
        self.assertEqual(('nvme', assignment.details.disks), (again.driver, again.disks))

    def test_a_reset_that_fails_frees_no_function_without_a_driver(self) -> None:
        edu, _network, _tester = self.host.add_shared_group(BRIDGE, '0000:07')
        kind = self.kind({'address': '*:07:*.*'}, cleaning='none')
        assignment = self.realized(kind, edu)
        self.give_to_guest(edu)
        self.host.failing.add(edu)
        for _attempt in range(2):
            self.assertRaises(exception.UnclaimFailed, self.unclaim, kind, assignment)
        self.assertEqual([], self.host.resets)
        self.host.failing.clear()
        self.unclaim(kind, assignment)
        self.assertEqual([edu], [address for address, _methods in self.host.resets])

    def test_a_bus_reset_that_the_kernel_would_refuse_is_for_a_person(self) -> None:
        self.host.add(BRIDGE, pci_models.BRIDGE)
        edu = self.host.add('0000:07:01.0', pci_models.EDU, behind=BRIDGE)
        specs = {'address': '*:07:01.*'},
        self.unclaim(self.kind(*specs), self.realized(self.kind(*specs), edu))
        kind = self.kind(*specs)
        assignment = self.realized(kind, edu)
        self.give_to_guest(edu)
        self.host.add('0000:07:02.0', pci_models.EDU, behind=BRIDGE)
        self.host.failing.add(edu)
        self.host.unbind(edu)                   # libvirt gives it back
        error = self.assertRaises(exception.UnclaimFailed, self.unclaim, kind, assignment)
        self.assertIn('a person has to clean it', str(error))
        self.assertEqual(frozenset(), kind.stock().nothing_kept)
        self.unclaim(self.kind(*specs, cleaning='none'), assignment)

    def test_a_release_that_is_interrupted_in_any_step_is_repeated(self) -> None:
        edu, network, _tester = self.host.add_shared_group(BRIDGE, '0000:07')
        self.host.add_nvme(DISK, 'S1')
        specs = {'address': '*:07:*.*'}, NVME
        for address, steps in ((edu, 3), (network, 3), (DISK, 4)):
            for step in range(steps):
                kind = self.kind(*specs, cleaning='none')
                assignment = self.realized(kind, address)
                before = self.host.driver_of(address)
                self.give_to_guest(address)
                pci_privileged.set_driver_override(self.host.root, address, made.VFIO_PCI)
                self.host.resets.clear()
                self.host.fail_after(step)
                with contextlib.suppress(exception.UnclaimFailed):
                    self.unclaim(kind, assignment)
                self.host.fail_after(None)
                self.unclaim(self.kind(*specs, cleaning='none'), assignment)
                self.assertEqual((before, None), (self.host.driver_of(address), self.tree_override(address)))
                self.assertEqual(address != network, bool(self.host.resets), f'{address}, step {step}')

    def tree_override(self, address: str) -> str | None:
        return pci_sysfs.Tree(self.host.root).driver_override(address)

    def test_a_function_that_stays_with_the_driver_for_guests_is_not_free_while_it_is_open(self) -> None:
        self.host.add_igb(CARD)
        self.give_to_guest(CARD)
        kind = self.kind({'vendor_id': '8086'})
        assignment = self.realized(kind, CARD)
        with self.host.opened(CARD):
            self.assertRaises(exception.DeviceInUse, self.unclaim, kind, assignment)
        self.unclaim(kind, assignment)
        self.assertEqual(made.VFIO_PCI, self.host.driver_of(CARD))

    def test_a_function_that_was_adopted_from_a_guest_comes_back(self) -> None:
        self.host.add_igb(CARD)
        self.give_to_guest(CARD)
        kind = self.kind({'vendor_id': '8086'})
        assignment = self.assigned(kind, CARD)
        self.host.unbind(CARD)
        self.host.bind(CARD, 'igb')
        self.unclaim(kind, assignment)
        self.assertEqual('igb', self.host.driver_of(CARD))

    def test_a_card_is_not_given_while_the_host_uses_a_virtual_function_of_it(self) -> None:
        self.host.add_igb(CARD)
        first, second = self.host.make_vfs(CARD, 2)
        specs = [{'vendor_id': '8086', 'product_id': '10c9'}]
        kind = self.kind(*specs)
        assignment = self.assigned(kind, CARD)
        self.assertIsNone(self.devices(kind)[CARD].unhealthy)
        self.host.route(self.host.interface_of(second))
        self.assertIn(f'{second}, a virtual function of it: a route', str(self.devices(kind)[CARD].unhealthy))
        error = self.assertRaises(exception.RealizeFailed, kind.realize, assignment)
        self.assertIn(second, str(error))

    def test_a_card_is_not_given_while_somebody_has_a_virtual_function_that_is_not_offered(self) -> None:
        self.host.add_igb(CARD)
        vf, = self.host.make_vfs(CARD, 1)
        kind = self.kind({'vendor_id': '8086', 'product_id': '10c9'})
        assignment = self.assigned(kind, CARD)
        self.give_to_guest(vf)
        self.assertIn('that is not offered', str(self.devices(kind)[CARD].unhealthy))
        self.assertRaises(exception.RealizeFailed, kind.realize, assignment)
        # If it is offered, the ledger knows who has it.
        self.assertIsNone(self.devices(self.kind({'vendor_id': '8086'}))[CARD].unhealthy)

    def test_a_disk_that_cannot_be_told_is_not_given(self) -> None:
        self.host.add_nvme(DISK, 'S1')
        kind = self.kind(NVME)
        assignment = self.assigned(kind)
        self.host.remove(DISK)
        self.host.add_nvme(DISK, 'S2')
        self.give_to_guest()
        self.boot = 'the next boot'
        error = self.assertRaises(exception.RealizeFailed, self.kind(NVME).realize, assignment)
        self.assertIn('serial number', str(error))

    def test_root_looks_again_for_what_the_service_cannot_see(self) -> None:
        self.host.add_nvme(DISK, 'S1')
        kind = self.kind(NVME)
        assignment = self.assigned(kind)
        unseeing = self.host.use()
        kind.host_use = lambda: unseeing
        self.host.mount('nvme0n1', '/srv')
        error = self.assertRaises(exception.RealizeFailed, kind.realize, assignment)
        self.assertIn('/srv', str(error))
        self.assertEqual({}, self.kind({'vendor_id': '8086'}).identify([DISK]))

    def test_a_disk_with_the_driver_for_guests_is_no_more_proven(self) -> None:
        self.host.add_nvme(DISK, 'S1')
        kind = self.kind(NVME)
        self.assertEqual([], list(kind.stock().written))
        self.give_to_guest()
        self.assertEqual([DISK], list(kind.stock().written))

    def test_a_disk_of_which_another_namespace_came_meanwhile_is_not_read_through(self) -> None:
        self.host.add_nvme(DISK, 'S1')
        self.namespace(1)
        kind = self.kind(NVME)
        content = self.useFixture(fixtures.TempDir()).join('content')
        with open(content, 'wb') as file:
            file.truncate(1 << 20)
        coming = [2]

        def opened(*arguments: Any) -> int:
            if coming:
                self.namespace(coming.pop())
            return os.open(content, os.O_RDONLY)

        self.useFixture(fixtures.MonkeyPatch(f'{disk_nodes.__name__}.open_disk', opened))
        # No controller answers here.
        self.patch(pci_erasing, 'asked', lambda *_function: pci_namespaces.NamespaceRecord({}))
        assignment = self.assigned(kind)
        with open(os.path.join(self.state_path, 'lock'), 'w') as lock:
            error = self.assertRaises(exception.NotProven, kind.read_through, assignment, lock.fileno(),
                                      threading.Event())
            self.assertIn('its namespaces changed', str(error))
            kind.read_through(assignment, lock.fileno(), threading.Event())

    def namespace(self, nsid: int) -> None:
        """Let the disk's driver know a namespace of 1 MiB."""
        name = self.host.controller_of(DISK)
        controller = self.host.path(DISK, f'nvme/{name}')
        inside = os.path.join(controller, f'{name}n{nsid}')
        os.makedirs(os.path.join(inside, 'queue'))
        for path, text in ((f'{controller}/state', 'live'), (f'{inside}/nsid', str(nsid)), (f'{inside}/size', '2048'),
                           (f'{inside}/queue/logical_block_size', '512')):
            with open(path, 'w') as file:
                file.write(text)

    def test_what_an_argument_of_qemu_names_is_somebodys(self) -> None:
        domain = domain_xml.Domain('', (), (), arguments=('-device', 'vfio-pci,host=0A:00.0'))
        self.assertEqual(['0000:0a:00.0'], list(self.kind(NVME).other_addresses(domain)))
