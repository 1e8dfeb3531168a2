"""A part and its whole that two device kinds offer never have two owners: on a host of files, with real drivers."""

from __future__ import annotations

import json
import os
from typing import Any
import uuid

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.claims.manager import ClaimManager
from devicetrack.conf import libvirt as libvirt_options
from devicetrack.engine import findings
from devicetrack.objects import DeviceAssignment
from devicetrack.objects import DeviceRequest
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import GuestConfig
from devicetrack.objects.values import InventoryDevice
from devicetrack.objects.values import Record
from devicetrack.store.api import Changes
from devicetrack.testing import fixtures
from devicetrack.testing import libvirt as test_libvirt
from devicetrack.testing import pci as made
from devicetrack.testing import pci_models
from devicetrack.tests import base
from devicetrack.virt.libvirt import containment
from devicetrack.virt.libvirt import driver as libvirt_driver
from devicetrack.virt.libvirt.kinds import mdev
from devicetrack.virt.libvirt.kinds import pci
from devicetrack.virt.libvirt.kinds import vf

CARD, PARENT = '0000:42:00.0', '0000:84:00.0'
VGPU_VF = pci_models.Model('10de:2236', '030200', 'nvidia', ('flr',))
GPU = VGPU_VF._replace(product='10de:2235', total_vfs=4, vf=VGPU_VF, vf_offset=4, drops_vfs=False)
PARENT_OF_MDEVS = GPU._replace(product='10de:0ff2')

WHOLE, OF_VF, OF_MDEV = 'CUSTOM_WHOLE', 'CUSTOM_VF', 'CUSTOM_MDEV'


def a(resource_class: str, amount: int = 1) -> DeviceRequest:
    return DeviceRequest.of((resource_class, amount))


class HostTestCase(base.TestCase):
    """A host with a card whose virtual functions get vGPU types, and one that makes mediated devices.

    Kind ``pci`` offers both cards, kind ``vf`` the functions of the first, and kind ``mdev`` the second one's devices.
    """

    def setUp(self) -> None:
        super().setUp()
        self.host = self.useFixture(made.PCIHost())
        self.host.add(CARD, GPU)
        self.host.add(PARENT, PARENT_OF_MDEVS)
        self.functions = self.host.make_vfs(CARD, 2)
        for function in self.functions:
            os.mkdir(self.host.path(function, 'nvidia'))
            for name, text in (('current_vgpu_type', '0\n'), ('creatable_vgpu_types', 'ID : Name\n558 : L40-1B\n')):
                with open(self.host.path(function, f'nvidia/{name}'), 'w', encoding='ascii') as file:
                    file.write(text)
        self.node = self.useFixture(test_libvirt.TestNode())
        self.parent = self.node.add_parent(PARENT, {'nvidia-35': 4})
        self.store: Any = self.useFixture(fixtures.SQLiteStore(self.conf)).store
        configuration = self.configuration
        configuration.set('pci', device_spec=[
            json.dumps({'vendor_id': '10de', 'product_id': model.product[5:], 'resource_class': WHOLE})
            for model in (GPU, PARENT_OF_MDEVS)])
        configuration.set('devicetrack_pci', sysfs_root=self.host.root, release_wait_s=0, functions=['all'],
                          cleaning=[json.dumps({'policy': 'none'})])
        configuration.set('devicetrack_vf', sysfs_root=self.host.root, enabled_types=['558'], release_wait_s=0)
        libvirt_options.register_vf_type(self.conf, '558')
        configuration.set('vf_558', resource_class=OF_VF)
        configuration.set('devices', enabled_mdev_types=['nvidia-35'])
        libvirt_options.register_mdev_type(self.conf, 'nvidia-35')
        configuration.set('mdev_nvidia-35', mdev_class=OF_MDEV)

    def start(self, *kinds: Any) -> ClaimManager:
        """Start a manager, as a service does that starts now."""
        host = self.host

        class PCI(pci.PCI):
            def __init__(self, *arguments: Any) -> None:
                super().__init__(*arguments)
                self.host_use = host.use

        driver = libvirt_driver.LibvirtDriver('host', self.conf, self.state_path, kinds or (PCI, vf.VF, mdev.Mdev),
                                              self.node.connect)
        self.addCleanup(driver.close)
        self.driver = driver
        manager = ClaimManager('host', driver, self.store, self.conf)
        self.addCleanup(manager.close)
        self.found = manager.init_host(self.context)
        self.manager = manager
        return manager

    def claim(self, request: DeviceRequest) -> fixtures.Instance:
        instance = fixtures.Instance()
        self.manager.instance_claim(self.context, instance, 'host', request)
        return instance

    def refused(self, request: DeviceRequest) -> str:
        return str(self.assertRaises(exception.NoFit, self.claim, request))

    def owned(self) -> set[str]:
        [host] = self.store.hosts()
        return {record.identifier for record in self.store.records_of_host(host.uuid)}

    def insert(self, *devices: InventoryDevice) -> list[str]:
        """Write rows as an older release left them, each for an instance of its own."""
        [host] = self.store.hosts()
        owners = [str(uuid.uuid4()) for _device in devices]
        self.store.write(Changes(insert=tuple(
            Record(host.uuid, device.kind, device.identifier, owner, None, vocabulary.CURRENT, vocabulary.ACTIVE, 0,
                   'older', 1, host.uuid, device.resource_class, device.parent, device.numa_node, device.details, 0)
            for device, owner in zip(devices, owners, strict=True))))
        return owners

    def devices(self) -> dict[tuple[str, str], InventoryDevice]:
        return {tuple(device.key): device for device in self.driver.get_inventory().devices}

    def define(self, *elements: str) -> str:
        """Define a guest of somebody else."""
        owner = str(uuid.uuid4())
        self.node.connect().defineXML(test_libvirt.guest(owner, GuestConfig(elements)))
        return owner


def hostdev(address: str) -> str:
    domain, bus, rest = address.split(':')
    slot, function = rest.split('.')
    return ("<hostdev mode='subsystem' type='pci' managed='yes'><source>"
            f"<address domain='0x{domain}' bus='0x{bus}' slot='0x{slot}' function='0x{function}'/></source></hostdev>")


class ClaimTestCase(HostTestCase):

    def setUp(self) -> None:
        super().setUp()
        self.start()

    def test_a_card_is_not_given_while_a_guest_has_a_function_of_it(self) -> None:
        instance = self.claim(a(OF_VF))
        self.claim(a(WHOLE))
        self.assertIn('1 withheld (excluded)', self.refused(a(WHOLE)))
        self.assertIn(PARENT, self.owned())
        [withheld] = [one for one in self.manager.operator.withheld() if one.target.name == CARD]
        self.assertIn(f'instance {instance.uuid} has vf/', str(withheld))

    def test_no_function_is_given_while_a_guest_has_the_card(self) -> None:
        self.claim(a(WHOLE, 2))
        self.assertIn('2 withheld (excluded)', self.refused(a(OF_VF)))

    def test_a_parent_makes_nothing_while_a_guest_has_it(self) -> None:
        self.claim(a(WHOLE, 2))
        self.assertIn('4 withheld (excluded)', self.refused(a(OF_MDEV)))

    def test_a_parent_is_not_given_while_a_device_of_it_is_claimed(self) -> None:
        instance = self.claim(a(OF_MDEV))
        self.claim(a(WHOLE))
        self.assertIn(CARD, self.owned())
        self.refused(a(WHOLE))
        self.manager.release(self.context, instance)
        self.claim(a(WHOLE))

    def test_one_instance_does_not_get_both_either(self) -> None:
        self.assertRaises(exception.NoFit, self.claim, DeviceRequest.of((WHOLE, 2), (OF_VF, 1)))
        self.assertRaises(exception.NoFit, self.claim, DeviceRequest.of((OF_MDEV, 1), (WHOLE, 2)))
        self.claim(DeviceRequest.of((OF_MDEV, 1), (WHOLE, 1)))
        self.assertIn(CARD, self.owned())

    def test_it_is_the_same_after_a_restart(self) -> None:
        self.claim(a(OF_MDEV))
        self.claim(a(OF_VF))
        self.manager.close()
        self.start()
        self.refused(a(WHOLE))

    def test_a_card_that_goes_back_gives_its_functions_back(self) -> None:
        instance = self.claim(a(WHOLE, 2))
        self.manager.release(self.context, instance)
        self.manager.update_available_resource(self.context, 'host')
        self.claim(a(OF_VF, 2))
        self.claim(a(OF_MDEV, 4))


class RestartTestCase(HostTestCase):

    def test_a_row_of_a_kind_that_left_the_options_excludes_its_card(self) -> None:
        self.start()
        self.claim(a(OF_VF))
        self.claim(a(OF_MDEV))
        self.manager.close()
        self.configuration.set('devicetrack_vf', enabled_types=[])
        self.configuration.set('devices', enabled_mdev_types=[])
        self.start()
        self.refused(a(WHOLE))

    def test_a_row_of_a_function_that_is_not_made_yet_excludes_its_card(self) -> None:
        self.start()
        self.claim(a(OF_VF))
        self.manager.close()
        for function in self.functions:
            self.host.remove(function)
        self.start()
        self.claim(a(WHOLE))
        self.assertIn(PARENT, self.owned())
        self.refused(a(WHOLE))

    def test_a_row_of_a_mediated_device_on_a_function_that_is_not_made_yet_excludes_the_card(self) -> None:
        function = self.functions[0]
        self.node.add_parent(function, {'nvidia-35': 1})
        self.start()
        self.claim(a(OF_MDEV, 5))
        self.refused(a(WHOLE))
        self.manager.close()
        for one in self.functions:
            self.host.remove(one)
        self.node._connection.close()
        self.node._connection = None
        self.node._devices = []
        self.start()
        self.refused(a(WHOLE))

    def test_rows_of_a_part_and_its_whole_are_a_critical_finding_and_both_stay_held(self) -> None:
        self.start()
        devices = self.devices()
        owners = self.insert(devices['pci', CARD], devices['vf', self.functions[0]])
        self.manager.close()
        self.start()
        for look in (self.found, self.manager.update_available_resource(self.context, 'host')):
            [broken] = [one for one in look if one.kind == findings.EXCLUSION_BROKEN]
            self.assertEqual(vocabulary.CRITICAL, broken.severity)
            for owner in owners:
                self.assertIn(owner, broken.detail)
        self.assertEqual({CARD, self.functions[0]}, self.owned())

    def test_the_card_is_not_taken_back_under_the_other_owner_until_that_one_leaves_too(self) -> None:
        self.start()
        devices = self.devices()
        owners = self.insert(devices['pci', CARD], devices['vf', self.functions[0]])
        self.manager.close()
        self.start()
        of_card, of_function = map(fixtures.Instance, owners)
        error = self.assertRaises(exception.DeviceInUse, self.manager.release, self.context, of_card)
        self.assertIn(of_function.uuid, str(error))
        self.manager.release(self.context, of_function)
        self.manager.update_available_resource(self.context, 'host')
        self.manager.wait_for_wipes()
        self.assertEqual(set(), self.owned())


class ForeignTestCase(HostTestCase):

    def test_a_foreign_guest_with_a_card_keeps_its_functions_and_its_devices_from_everybody(self) -> None:
        self.define(hostdev(CARD), hostdev(PARENT))
        self.start()
        self.assertIn('2 withheld (excluded)', self.refused(a(OF_VF)))
        self.refused(a(OF_MDEV))

    def test_a_foreign_guest_with_a_function_or_a_device_keeps_the_card_from_everybody(self) -> None:
        self.define(hostdev(self.functions[1]))
        self.start()
        self.claim(a(WHOLE))
        self.assertIn(PARENT, self.owned())
        self.refused(a(WHOLE))
        self.claim(a(OF_VF))
        self.refused(a(OF_VF))

    def test_so_does_one_with_a_function_of_no_kind(self) -> None:
        self.configuration.set('devicetrack_vf', enabled_types=[])
        functions = self.host.make_vfs(PARENT, 2)
        guest = self.define(hostdev(functions[0]))
        self.start()
        self.refused(a(WHOLE, 2))
        self.assertIn(f'a domain has {functions[0]}', str(self.manager.operator.withheld()))
        self.claim(a(OF_MDEV))                  # a function and a mediated device are not the same part of the card
        self.node.connect().lookupByUUIDString(guest).undefine()
        self.manager.update_available_resource(self.context, 'host')
        self.assertEqual(['1'], [str(len(self.manager.operator.withheld()))])

    def test_a_card_that_comes_into_foreign_hands_is_noticed_by_an_audit(self) -> None:
        self.configuration.set('pci', device_spec=[])
        self.start()
        self.define(hostdev(CARD), hostdev(PARENT))
        self.manager.update_available_resource(self.context, 'host')
        self.refused(a(OF_VF))
        self.refused(a(OF_MDEV))

    def test_a_card_is_not_cleaned_while_a_domain_has_a_function_of_it(self) -> None:
        self.start()
        device = self.devices()['pci', CARD]
        assignment = DeviceAssignment.from_record(Record(
            str(uuid.uuid4()), 'pci', CARD, str(uuid.uuid4()), None, vocabulary.CURRENT, vocabulary.RELEASING, 0, '',
            2, str(uuid.uuid4()), WHOLE, device.parent, None, device.details, 0))
        guest = self.define(hostdev(self.functions[0]))
        error = self.driver.unclaim([assignment])[assignment.key]
        self.assertIsInstance(error, exception.DeviceInUse)
        self.assertIn(f'domain {guest} names {self.functions[0]}', str(error))
        wiped = self.driver.prove([assignment], vocabulary.WIPE)[assignment.key]
        self.assertIsInstance(wiped, exception.DeviceInUse)


class IdleTestCase(HostTestCase):
    """Somebody else made a device on a card, and nobody uses it now. It would vanish with the card."""

    OTHER = '11111111-2222-4333-8444-555555555555'

    def make(self, on: str, uuid: str = OTHER) -> None:
        """Let the kernel have a mediated device on a function."""
        directory, devices = self.host.path(on, uuid), os.path.join(self.host.root, 'bus/mdev/devices')
        os.makedirs(devices, exist_ok=True)
        os.mkdir(directory)
        os.symlink(os.path.realpath(directory), os.path.join(devices, uuid))

    def remove(self, on: str, uuid: str = OTHER) -> None:
        os.unlink(os.path.join(self.host.root, 'bus/mdev/devices', uuid))
        os.rmdir(self.host.path(on, uuid))

    def audit(self) -> None:
        self.manager.update_available_resource(self.context, 'host')

    def withheld(self) -> dict[str, str]:
        return {one.target.name: str(one) for one in self.manager.operator.withheld()}

    def test_its_card_is_given_to_nobody_whichever_kinds_are_configured(self) -> None:
        for kinds in ((), (pci.PCI,)):
            self.make(PARENT)
            self.start(*kinds)
            self.assertIn('excluded)', self.refused(a(WHOLE, 2)))
            self.assertIn(f'somebody else made {self.OTHER}', self.withheld()[PARENT])
            self.remove(PARENT)
            self.audit()
            self.manager.release(self.context, self.claim(a(WHOLE, 2)))
            self.manager.close()

    def test_nor_is_the_card_of_a_function_that_has_one(self) -> None:
        self.make(self.functions[1])
        self.start(pci.PCI)
        self.assertEqual({CARD}, set(self.withheld()))

    def test_the_parent_makes_more_beside_it(self) -> None:
        self.make(PARENT)
        self.start()
        self.claim(a(OF_MDEV))

    def test_one_of_an_instance_is_none_of_somebody_else(self) -> None:
        self.start()
        instance = self.claim(a(OF_MDEV))
        self.make(PARENT, *self.owned())
        self.audit()
        self.assertIn(f'instance {instance.uuid} has mdev/', self.withheld()[PARENT])
        self.assertNotIn('somebody else', self.withheld()[PARENT])

    def test_one_that_came_after_the_claim_of_the_card_keeps_it_from_its_guest(self) -> None:
        self.start(pci.PCI)
        owner = self.claim(a(WHOLE, 2))
        self.make(PARENT)
        error = self.assertRaises(exception.NoFit, self.manager.realize, self.context, owner)
        self.assertIn(f'the mediated device {self.OTHER} is on it', str(error))
        self.assertTrue(os.path.exists(self.host.path(PARENT, self.OTHER)))

    def test_a_function_with_a_type_of_somebody_else_keeps_its_card_from_everybody(self) -> None:
        with open(self.host.path(self.functions[0], 'nvidia/current_vgpu_type'), 'w', encoding='ascii') as file:
            file.write('558')
        self.start()
        self.assertIn('excluded)', self.refused(a(WHOLE, 2)))
        self.assertIn(f'somebody may have (made by others) vf/{self.functions[0]}', self.withheld()[CARD])

    def test_a_function_that_holds_nothing_excludes_nothing(self) -> None:
        self.start()
        self.claim(a(WHOLE, 2))


class AdoptionTestCase(HostTestCase):

    def test_a_function_of_a_card_that_has_an_owner_is_not_adopted(self) -> None:
        self.start()
        owner = self.claim(a(WHOLE, 2))
        guest = fixtures.Instance(uuid=self.define(hostdev(self.functions[0])))
        error = self.assertRaises(exception.NotAdopted, self.manager.adopt, self.context, guest,
                                  [DeviceKey('vf', self.functions[0])])
        self.assertIn(f'instance {owner.uuid} has pci/{CARD}', str(error))
        self.assertEqual({CARD, PARENT}, self.owned())

    def test_nor_are_a_card_and_its_function_together(self) -> None:
        self.start()
        guest = fixtures.Instance(uuid=self.define(hostdev(self.functions[0]), hostdev(CARD)))
        keys = [DeviceKey('vf', self.functions[0]), DeviceKey('pci', CARD)]
        self.assertRaises(exception.NotAdopted, self.manager.adopt, self.context, guest, keys)
        self.assertEqual(set(), self.owned())
        self.manager.adopt(self.context, guest, keys[:1])
        self.assertRaises(exception.NotAdopted, self.manager.adopt, self.context, guest, keys[1:])
        self.assertEqual({self.functions[0]}, self.owned())

    def test_a_card_that_a_claim_just_took_is_refused_under_the_lock_too(self) -> None:
        self.start()
        ledger = self.manager._started().ledger
        self.claim(a(WHOLE, 2))
        device = self.devices()['vf', self.functions[0]]
        host_uuid = self.manager.state().host_uuid
        row = Record(host_uuid, 'vf', device.identifier, str(uuid.uuid4()), None, vocabulary.CURRENT,
                     vocabulary.ACTIVE, 0, 'adopted', 3, host_uuid, OF_VF, device.parent, None,
                     device.details, 0)
        self.assertEqual(row.key, ledger.hold_unless_taken([row], {row.key: None}))
        self.assertEqual([], [one for one in self.manager.assignments() if one.identifier == device.identifier])


class LookTestCase(base.TestCase):
    """What the driver finds on a host."""

    def setUp(self) -> None:
        super().setUp()
        self.host = self.useFixture(made.PCIHost())

    def test_a_disk_contains_its_partitions_and_what_is_built_on_them(self) -> None:
        self.host.add_nvme('0000:01:00.0', 'S1')
        self.host.add_partition('nvme0n1', 'nvme0n1p1')
        self.host.build('dm-0', ['nvme0n1p1'], 'data')
        for name in ('nvme0n1', 'nvme0n1p1', 'dm-0'):
            self.host.make_node(name)
        look = containment.Look(self.host.root)
        disk, partition, volume = (look.thing(os.path.join(self.host.dev, name))
                                   for name in ('nvme0n1', 'nvme0n1p1', 'dm-0'))
        self.assertEqual('sriov:0000:01:00.0', disk[1][0])
        self.assertEqual((disk[0], *disk[1]), partition[1])
        self.assertEqual((partition[0], *partition[1]), volume[1])

    def test_a_mediated_device_is_a_part_of_its_function_and_of_the_card(self) -> None:
        self.host.add(CARD, GPU)
        [function] = self.host.make_vfs(CARD, 1)
        identifier = str(uuid.uuid4())
        os.mkdir(self.host.path(function, identifier))
        os.makedirs(os.path.join(self.host.root, 'bus/mdev/devices'))
        os.symlink(os.path.relpath(self.host.path(function, identifier), os.path.join(
            self.host.root, 'bus/mdev/devices')), os.path.join(self.host.root, 'bus/mdev/devices', identifier))
        look = containment.Look(self.host.root)
        for node, parent in ((None, function), (identifier, None)):
            self.assertIn((f'sriov:{CARD}', vocabulary.PART), look.exclusions(node, parent))
            self.assertIn((f'sriov:{function}', vocabulary.PART), look.exclusions(node, parent))
        self.assertLessEqual({function, identifier}, set(look.relatives(CARD, None)))
        self.assertLessEqual({CARD, identifier}, set(look.relatives(function, None)))

    def test_functions_behind_a_controller_are_a_part_of_it(self) -> None:
        self.host.add('0000:64:00.5', pci_models.VMD)
        self.host.add('10000:01:00.0', pci_models.NVME, serial='S1', behind='0000:64:00.5')
        look = containment.Look(self.host.root)
        self.assertIn('sriov:0000:64:00.5', look.thing('10000:01:00.0')[1])

    def test_functions_of_an_iommu_group_go_together_whichever_kinds_offer_them(self) -> None:
        first, second, _third = self.host.add_shared_group('0000:06:00.0', '0000:07')
        look = containment.Look(self.host.root)
        [of_first], [of_second] = ([one for one in look.exclusions(address, None) if one[1] == vocabulary.TOGETHER]
                                   for address in (first, second))
        self.assertEqual(of_first, of_second)
