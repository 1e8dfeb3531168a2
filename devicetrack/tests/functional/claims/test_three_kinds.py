"""Claims for namespaces, mediated devices and virtual functions at once: all of them, or none.

The host is libvirt's test driver, with files for namespaces, mediated devices of its own, and cards without a card.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
from typing import Any
import uuid

from devicetrack import exception
from devicetrack import filelock
from devicetrack import vocabulary
from devicetrack.compatibility.facts import facts_as_data
from devicetrack.conf import libvirt as libvirt_options
from devicetrack.objects import DeclaredDevice
from devicetrack.objects import details
from devicetrack.objects import DeviceRequest
from devicetrack.objects import InstanceResources
from devicetrack.objects import LiveMigrationCheck
from devicetrack.objects import MdevDetails
from devicetrack.objects.values import Record
from devicetrack.testing import fixtures
from devicetrack.testing import libvirt as libvirt_fixtures
from devicetrack.testing import vgpu
from devicetrack.testing.fixtures import Instance
from devicetrack.testing.fixtures import Migration
from devicetrack.tests import base
from devicetrack.tests.functional.claims import libvirt_hosts
from devicetrack.virt.libvirt.driver import LibvirtDriver
from devicetrack.virt.libvirt.kinds import mdev
from devicetrack.virt.libvirt.kinds import vf
from devicetrack.virt.libvirt.kinds import vpmem

CARDS = ('0000:3d:00.0', '0000:41:00.0')
TYPE = '558'
PMEM, MDEV, VF = 'CUSTOM_PMEM_NAMESPACE_4GB', fixtures.VGPU, 'CUSTOM_VGPU_FUNCTION'
ALL = DeviceRequest.of((VF, 2), (PMEM, 1), (MDEV, 1))


class ThreeKindsTestCase(base.TestCase):
    """A host with two namespaces, one mediated device, and two cards: four functions each, and room for two types."""

    def setUp(self) -> None:
        super().setUp()
        self.boot_id = 'this boot'
        self.patch(LibvirtDriver, 'boot_id', lambda _driver: self.boot_id)
        self.cards = self.useFixture(vgpu.Cards())
        self.functions = [self.cards.add(card, 4, {TYPE: ('NVIDIA L40-24Q', 2)}) for card in CARDS]
        node = self.useFixture(libvirt_fixtures.TestNode())
        self.mdev = node.add_mdev(node.add_parent('0000:84:00.0', {'nvidia-35': 0}), 'nvidia-35')
        libvirt_options.register_vf_type(self.conf, TYPE)
        self.configuration.set('devicetrack_vf', sysfs_root=self.cards.root, enabled_types=[TYPE], release_wait_s=0)
        self.configuration.set(f'vf_{TYPE}', resource_class=VF)
        self.configuration.set('devicetrack_mdev', release_wait_s=0)
        self.host: Any = self.useFixture(libvirt_hosts.LibvirtHost(
            node.connect, {'4GB': ['ns0', 'ns1']}, self.temp_dir(), mdev_types=['nvidia-35'],
            kinds=[mdev.Mdev, vf.VF, vpmem.VPMEM], configuration=self.configuration))

    def types(self) -> list[str]:
        """The functions that have a type."""
        return [function for functions in self.functions for function in functions
                if self.cards.type_of(function) == TYPE]

    def fill(self, card: int) -> None:
        for function in self.functions[card][2:]:
            self.cards.set_type(function, TYPE)

    def assert_nothing_left(self, functions: int = 8) -> None:
        """No row, nothing held, no type, no byte. ``functions`` are as many as can be had."""
        states = self.host.states()
        self.assertEqual(({}, []), (self.host.owners(), self.types()))
        self.assertEqual({fixtures.FREE}, set(states.values()))
        self.assertEqual(functions + 3, len(states))
        self.assertFalse(any(any(self.host.machine.read(name)) for name in self.host.names))


class TakenAndGivenBackTestCase(ThreeKindsTestCase):

    def test_together(self) -> None:
        instance = self.host.spawn(request=ALL)
        wanted = [*self.functions[0][:2], 'ns0', self.mdev]
        self.assertEqual(wanted, [record.identifier for record in self.host.records(instance)])
        for domain in (self.host.machine.live(instance.uuid), self.host.machine.defined(instance.uuid)):
            self.assertEqual((tuple(wanted[:2]), (self.mdev,), ('ns0',)), (
                domain.pci_addresses, domain.mdev_uuids, tuple(map(os.path.basename, domain.memory_paths))))
            assert domain.record is not None
            self.assertEqual(wanted, [device.identifier for device in domain.record.devices])
        self.assertEqual(wanted[:2], self.types())
        self.host.machine.write('ns0', b'secret')
        self.assertEqual([], self.host.audit())
        self.assertEqual([], self.host.restart())
        self.host.delete(instance)
        self.assertEqual([], self.host.audit())
        self.assert_nothing_left()

    def test_what_is_given_back_can_be_had_at_once(self) -> None:
        for _again in range(3):
            instance = self.host.spawn(request=ALL)
            self.assertEqual([], self.host.audit())
            self.host.delete(instance)
            self.assert_nothing_left(len(self.host.states()) - 3)

    def test_a_guest_keeps_what_it_names(self) -> None:
        instance = self.host.spawn(request=ALL)
        self.assertRaises(exception.DeviceInUse, self.host.manager.release, self.context, instance)
        self.assertEqual(self.functions[0][:2], self.types())
        self.host.delete(instance)
        self.assert_nothing_left()

    def test_after_a_boot_the_types_are_there_again_before_the_guest(self) -> None:
        instance = self.host.spawn(request=ALL)
        before = self.host.machine.defined(instance.uuid)
        self.host.machine.stop_guest(instance.uuid)
        self.cards.boot()
        self.boot_id = 'the next boot'
        self.assertEqual([], self.host.restart())
        self.assertEqual(self.functions[0][:2], self.types())
        after = self.host.machine.defined(instance.uuid)
        self.assertEqual(('the next boot', before.pci_addresses), (after.boot_id, after.pci_addresses))
        self.host.machine.domain(instance.uuid).create()
        self.assertEqual([], self.host.audit())

    def test_a_foreign_guest_on_a_function_keeps_it_from_others(self) -> None:
        function = self.functions[0][0]
        bus = "domain='0x0000' bus='0x3d' slot='0x00' function='0x4'"
        self.cards.set_type(function, TYPE)
        self.host.machine.start_guest(Instance().uuid, [
            f"<hostdev mode='subsystem' type='pci' managed='no'><source><address {bus}/></source></hostdev>"])
        found, = self.host.audit()
        self.assertEqual(('used but unrecorded', function), (found.kind, found.device.identifier))
        instance = self.host.spawn(request=ALL)
        self.assertNotIn(function, self.host.owners())
        self.host.delete(instance)
        self.assertEqual([function], self.types())


class RefusedTestCase(ThreeKindsTestCase):
    """A claim that lacks one device of one kind."""

    scenarios = base.table(
        ('namespaces', DeviceRequest.of((VF, 2), (MDEV, 1), (PMEM, 3)), PMEM),
        ('mediated devices', DeviceRequest.of((PMEM, 1), (VF, 2), (MDEV, 2)), MDEV),
        ('virtual functions', DeviceRequest.of((PMEM, 1), (MDEV, 1), (VF, 9)), VF),
        names=('request', 'short'))

    def test_holds_nothing(self) -> None:
        error = self.assertRaises(exception.NoFit, self.host.claim, Instance(), self.request)
        self.assertEqual([self.short], [shortage.resource_class for shortage in error.shortages])
        self.assert_nothing_left()
        self.assertEqual([], self.cards.written)


class UnrealizedTestCase(ThreeKindsTestCase):
    """One device that cannot be made ready, of each kind and in each place."""

    scenarios = base.table(
        *((f'{kind}, {place}', kind, error, order)
          for kind, error in (('vpmem', exception.DeviceGone), ('mdev', exception.DeviceBusy),
                              ('vf', exception.RealizeFailed))
          for place, order in (('first', 1), ('last', -1))),
        names=('kind', 'error', 'order'))

    @contextlib.contextmanager
    def unable(self) -> Any:
        """The kind's device cannot be realized in the block, and given back after it."""
        if self.kind == 'vpmem':
            path = self.host.machine.path('ns0')
            os.rename(path, path + '.away')
            yield
            os.rename(path + '.away', path)
        elif self.kind == 'mdev':
            locks = os.path.join(self.state_path, 'locks')
            os.makedirs(locks, exist_ok=True)
            with filelock.FileLock(os.path.join(locks, f'mdev-{self.mdev}.lock')):
                yield
        else:
            with self.cards.opened(self.functions[0][0]):
                yield

    def alone(self) -> str:
        """Let claims have only one device of the kind; returns its name."""
        name = {'vpmem': 'ns0', 'mdev': self.mdev, 'vf': self.functions[0][0]}[self.kind]
        for kind, identifier in [(one.kind, one.identifier) for one in self.host.running.ledger.now.states()]:
            if kind == self.kind and identifier != name:
                self.host.manager.operator.cordon(kind, identifier)
        return name

    def test_leaves_nothing_of_the_others(self) -> None:
        wanted = {'vpmem': (PMEM, 1), 'mdev': (MDEV, 1), 'vf': (VF, 1)}
        last = wanted.pop(self.kind)
        request = DeviceRequest.of(*[*wanted.values(), last][::-self.order])
        instance, name = Instance(), self.alone()

        def boot() -> None:
            with self.host.claim(instance, request):
                with self.unable():
                    short = self.assertRaises(exception.NoFit, self.host.manager.realize, self.context, instance)
                self.assertIsInstance(short.__cause__, self.error)
                if self.kind != 'vpmem' and self.order == -1:       # else nobody was to have it
                    self.host.machine.write('ns0', b'what a guest may have left')
                raise InterruptedError

        self.assertRaises(InterruptedError, boot)
        self.host.wait()
        # A device on which another process works has not failed.
        self.assertEqual([] if self.error is exception.DeviceBusy else [(self.kind, name)], [
            (one.target.kind, one.target.name) for one in self.host.manager.operator.withheld()
            if vocabulary.NOT_REALIZED in one.causes])
        for one in self.host.manager.operator.withheld():
            if vocabulary.CORDONED in one.causes:
                self.host.manager.operator.uncordon(one.target.kind, one.target.name)
        for _audit in range(2):                 # after these, claims try again what failed once
            self.host.audit()
        self.assert_nothing_left()
        self.assertEqual([], self.host.audit())
        self.host.spawn(request=ALL)            # nothing of it is in anybody's way


class FullCardTestCase(ThreeKindsTestCase):
    """Functions of a card that others filled since it was read."""

    def test_are_exchanged_for_those_of_another_card(self) -> None:
        instance = Instance()
        self.host.claim(instance, ALL)
        self.assertEqual({'pci_0000_3d_00_0'}, {record.parent for record in self.host.records()[:2]})
        self.fill(0)
        self.host.boot(instance)
        self.assertEqual(self.functions[1][:2], [record.identifier for record in self.host.records()[:2]])
        self.assertEqual([*self.functions[0][2:], *self.functions[1][:2]], self.types())
        self.host.delete(instance)
        self.assertEqual(self.functions[0][2:], self.types())

    def test_when_there_is_no_other_the_claim_ends_with_what_is_short(self) -> None:
        instance = Instance()

        def boot() -> None:
            with self.host.claim(instance, ALL):
                self.fill(0)
                self.fill(1)
                self.cards.written.clear()
                self.host.boot(instance)

        error = self.assertRaises(exception.NoFit, boot)
        self.assertEqual([(VF, 1)], [(shortage.resource_class, shortage.wanted) for shortage in error.shortages])
        self.assertEqual([], self.cards.written)
        self.assertEqual({}, self.host.owners())
        self.assertRaises(exception.NoFit, self.host.claim, instance, ALL)

    def test_when_the_second_of_two_is_one_too_many_the_first_has_its_type_no_more(self) -> None:
        self.fill(1)
        self.host.audit()
        instance = Instance()

        def boot() -> None:
            with self.host.claim(instance, ALL):
                self.cards.set_type(self.functions[0][3], TYPE)
                self.host.boot(instance)

        self.assertRaises(exception.NoFit, boot)
        self.assertEqual([self.functions[0][3], *self.functions[1][2:]], self.types())
        self.assertEqual({}, self.host.owners())
        self.host.audit()
        self.host.spawn(request=DeviceRequest.of((VF, 1), (PMEM, 1), (MDEV, 1)))


class DeclaredTestCase(ThreeKindsTestCase):
    """Units of a type that its driver declares in another way than with a number."""

    scenarios = base.table(
        ('a word', b'four\n', "'four' is no number of units"),
        ('none', b'0\n', "'0' is no number of units"),
        ('less than none', b'-1\n', "'-1' is no number of units"),
        ('no text', b'\xff\n', 'aggregation has bytes that are not printable ASCII'),
        names=('content', 'says'))

    def test_are_an_obstacle(self) -> None:
        for card in CARDS:
            pathlib.Path(self.cards.root, 'bus/pci/devices', card, 'aggregation').write_bytes(self.content)
        self.host.audit()
        obstacles = {place: one.facts.obstacle for place, one in self.host.running.declarations.known.items()
                     if place[0] == 'vf'}
        self.assertEqual({('vf', 'pci_0000_3d_00_0', TYPE), ('vf', 'pci_0000_41_00_0', TYPE)}, set(obstacles))
        for obstacle in obstacles.values():
            self.assertIn(self.says, str(obstacle))


class CrossingTestCase(ThreeKindsTestCase):
    """A guest that comes, running, with a mediated device of another host, where functions are free."""

    def setUp(self) -> None:
        super().setUp()
        table = pathlib.Path(self.temp_dir(), 'table.yaml')
        table.write_text(
            'types: {mdev: {nvidia-35: {version: 2.0.0}}, vf: {558: {version: 2.1.0}}}\n'
            'cross_kind: [{from: {kind: mdev, type: nvidia-35}, to: {kind: vf, type: 558}}]\n')
        self.configuration.set('devicetrack_compatibility', table=str(table))
        self.host.restart()
        self.instance, self.migration = Instance(host='elsewhere'), Migration('elsewhere', 'host')
        self.uuid = str(uuid.uuid4())
        facts = next(one.facts for place, one in self.host.running.declarations.known.items() if place[0] == 'mdev')
        self.check = LiveMigrationCheck(instance_uuid=self.instance.uuid, devices=[DeclaredDevice(
            identifier=self.uuid, resource_class=VF, seen=None, **facts_as_data(facts))])
        text = MdevDetails(type='nvidia-35', parent='pci_0000_84_00_0', parent_address='0000:84:00.0',
                           device_api='vfio-pci', iommu_group=None, origin='created')
        self.instance.resources = InstanceResources.from_records('', '', [Record(
            str(uuid.uuid4()), 'mdev', self.uuid, self.instance.uuid, None, 'current', 'active', 0, 'claim', 1,
            str(uuid.uuid4()), VF, 'pci_0000_84_00_0', None, details.to_text(text), 0)])
        self.instance.resources.instance_uuid = self.instance.uuid
        self.instance.resources.host_uuid = str(uuid.uuid4())

    def claim(self) -> Any:
        return self.host.manager.live_migration_claim(None, self.instance, 'host',
                                                      DeviceRequest.of((VF, 1)), self.migration, check=self.check)

    def test_libvirt_shows_no_running_guest_another_sort_of_device(self) -> None:
        refused = self.assertRaises(exception.NoDevicePair, self.claim)
        self.assertIn('mdev nvidia-35 and vf 558 are of different kinds', str(refused))
        self.assertEqual([], self.host.records())

    def test_a_hypervisor_that_does_gives_it_a_function_by_the_table(self) -> None:
        self.patch(LibvirtDriver, 'can_become', lambda _driver, _source, _destination: True)
        with self.claim():
            self.host.manager.realize(None, self.instance)
            [pair] = self.host.manager.device_map(self.instance, self.migration).pairs
            [record] = self.host.records()
        self.assertEqual(('mdev', self.uuid, self.functions[0][0]), (pair.kind, pair.source, pair.destination))
        self.assertEqual(('vf', '2.0.0'), (record.kind, record.seen))
        self.host.manager.drop_move_claim_at_dest(None, self.instance, self.migration)
