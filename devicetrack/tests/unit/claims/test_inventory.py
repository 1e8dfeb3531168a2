"""What the scheduler is told of a host: what there is, what nobody may have, and what the devices are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from devicetrack import exception
from devicetrack.claims.providers import Count
from devicetrack.claims.providers import for_scheduler
from devicetrack.compatibility.facts import Declaration
from devicetrack.compatibility.facts import Facts
from devicetrack.compatibility.facts import Sort
from devicetrack.compatibility.facts import STATELESS
from devicetrack.compatibility.traits import offered
from devicetrack.engine import migrations
from devicetrack.objects import Provider
from devicetrack.objects.values import DeviceKey
from devicetrack.store.api import Changes
from devicetrack.store.api import Update
from devicetrack.testing import fake
from devicetrack.testing import fixtures
from devicetrack.testing.fixtures import Instance
from devicetrack.testing.fixtures import PMEM
from devicetrack.testing.fixtures import VGPU
from devicetrack.tests import base
from devicetrack.tests.unit.claims.test_report import observer_of

D0 = DeviceKey('vpmem', 'd0')
ROOT = '11111111-1111-4111-8111-111111111111'
NUMA0 = '22222222-2222-4222-8222-222222222222'
OUR_MDEV = 'CUSTOM_MIG_MDEV_NVIDIA_35'
BEFORE = {'node': {PMEM: (3, 0)}, 'p0': {VGPU: (2, 0)}, 'p1': {VGPU: (1, 0)}}


def counted(providers: list[Provider]) -> dict[str, dict[str, tuple[int, int]]]:
    """Totals and reserved, by parent and class."""
    return {provider.name.partition('_')[2] or 'node': {
        name: (total, provider.reserved[name]) for name, total in provider.totals.items()} for provider in providers}


def cordon_device(host: fixtures.Host) -> None:
    host.manager.operator.cordon('vpmem', 'd0')


def cordon_parent(host: fixtures.Host) -> None:
    host.manager.operator.cordon('mdev', 'p0', parent=True)


def break_device(host: fixtures.Host) -> None:
    host.machine.change(D0, unhealthy='hot')
    host.audit()


def use_it_elsewhere(host: fixtures.Host) -> None:
    path = fixtures.path_of(host.machine.devices[D0])
    host.machine.start_guest(Instance().uuid, [f'<device kind="vpmem" address="{path}"/>'])
    host.audit()


def leave_one_over(host: fixtures.Host) -> None:
    host.machine.change(host.machine.add_mdev('p1'), assignable=False)
    host.audit()


def hide_usage(host: fixtures.Host) -> None:
    host.machine.unknown_domains['x'] = 'garbage'
    host.audit()


def wipe(host: fixtures.Host) -> None:
    """A wipe that failed: the device is being released still."""
    instance = host.spawn(pmem=1)
    host.machine.before('wipe', exception.UnclaimFailed('vpmem', 'd0', 'stuck'))
    with_error(lambda: host.delete(instance))


def be_full(host: fixtures.Host) -> None:
    host.spawn(pmem=3, vgpu=3)


def be_away(host: fixtures.Host) -> None:
    """A device that an instance has and the host has not any more."""
    host.spawn(pmem=1)
    host.machine.remove(D0)
    host.audit()


def lose_answer(host: fixtures.Host) -> None:
    host.store.lose_answer()
    with_error(lambda: host.claim(Instance(), pmem=1, vgpu=1))


def with_error(call: Callable[[], Any]) -> None:
    try:
        call()
    except exception.DeviceTrackError:
        return
    raise AssertionError('it went well')


class TestReserved(base.TestCase):
    scenarios = base.table(
        ('nothing', lambda host: None, {}),
        ('a cordoned device', cordon_device, {'node': {PMEM: (3, 1)}}),
        ('a cordoned parent', cordon_parent, {'p0': {VGPU: (2, 2)}}),
        ('an unhealthy device', break_device, {'node': {PMEM: (3, 1)}}),
        ('a foreign device', use_it_elsewhere, {'node': {PMEM: (3, 1)}}),
        ('one that was made by others', leave_one_over, {'p1': {VGPU: (1, 1)}}),
        ('a device that is being wiped', wipe, {'node': {PMEM: (3, 1)}}),
        ('devices of instances', be_full, {}),
        ('a device of an instance, gone from the host', be_away, {}),
        names=('happens', 'differs'))

    def setUp(self) -> None:
        super().setUp()
        self.host = self.useFixture(fixtures.Host(devices=3, parents={'p0': 2, 'p1': 1}))

    def test_is_what_nobody_may_have(self) -> None:
        self.happens(self.host)
        self.assertEqual({**BEFORE, **self.differs}, counted(self.host.manager.providers()))

    def test_leaves_what_can_be_claimed_and_what_instances_have(self) -> None:
        self.happens(self.host)
        left = sum(total - reserved for of_provider in counted(self.host.manager.providers()).values()
                   for total, reserved in of_provider.values())
        instances = [record for record in self.host.records() if record.state != 'releasing']
        self.assertEqual(self.host.free() + len(instances), left)

    def test_is_the_same_for_a_command_and_after_a_restart(self) -> None:
        self.happens(self.host)
        before = self.host.manager.providers()
        self.assertEqual((before, True), observer_of(self.host).providers())
        if self.differs and self.happens is not wipe:               # which the start goes on with
            self.host.restart()
            self.assertEqual(before, self.host.manager.providers())


class TestHeldForNobody(base.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.host = self.useFixture(fixtures.Host(devices=3, parents={'p0': 2, 'p1': 1}))

    def counted(self) -> dict[str, dict[str, tuple[int, int]]]:
        return counted(self.host.manager.providers())

    def test_after_a_claim_whose_commit_is_in_doubt(self) -> None:
        lose_answer(self.host)
        self.assertEqual({'node': {PMEM: (3, 1)}, 'p0': {VGPU: (2, 1)}, 'p1': {VGPU: (1, 0)}}, self.counted())
        self.host.audit()
        self.assertEqual(BEFORE, self.counted())

    def test_while_a_running_instance_is_in_doubt_is_nothing(self) -> None:
        instance = Instance()
        self.host.claim(instance, pmem=1)
        self.host.manager.realize(None, instance)
        self.host.store.lose_answer()
        with_error(lambda: self.host.manager.started(None, instance))
        self.assertEqual(BEFORE, self.counted())

    def test_when_the_instance_is_over_and_its_guest_is_not(self) -> None:
        instance = self.host.spawn(pmem=1)
        self.host.service.known = {instance.uuid: migrations.INSTANCE_DELETED}
        self.host.audit()
        self.assertEqual({**BEFORE, 'node': {PMEM: (3, 1)}}, self.counted())

    def test_while_nobody_can_tell_who_uses_what_is_all_that_is_free(self) -> None:
        self.host.spawn(pmem=1)
        hide_usage(self.host)
        self.assertEqual((3, 2), self.counted()['node'][PMEM])

    def test_while_the_store_is_older_than_the_guests_is_all_that_is_free(self) -> None:
        instance = self.host.spawn(pmem=1)
        [record] = self.host.records(instance)
        self.host.spawn(vgpu=1)
        self.host.store.store.write(Changes(delete=(record,)))
        self.host.restart()
        self.assertIsNotNone(self.host.running.gate.report_only)
        expected = {'node': {PMEM: (3, 3)}, 'p0': {VGPU: (2, 1)}, 'p1': {VGPU: (1, 1)}}
        self.assertEqual(expected, self.counted())
        self.assertEqual(expected, counted(observer_of(self.host).providers()[0]))
        self.host.store.store.write(Changes(insert=(record,)))
        self.host.restart()


class TestProviders(base.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.host = self.useFixture(fixtures.Host(devices=1, parents={'p0': 2, 'p1': 1}))

    def test_say_what_their_devices_are(self) -> None:
        traits = {provider.name: provider.traits for provider in self.host.manager.providers()}
        expected = ['CUSTOM_DEVICETRACK_DEVICE_API_VFIO_PCI', 'CUSTOM_DEVICETRACK_MDEV_TYPE_NVIDIA_35',
                    'CUSTOM_DEVICETRACK_VENDOR_NVIDIA', f'{OUR_MDEV}_ANY', f'{OUR_MDEV}_VUNKNOWN']
        [pmem] = [place for place in self.host.running.declarations.known if place[0] == 'vpmem']
        self.assertEqual({'host': sorted(offered(self.host.running.declarations.known[pmem].facts)),
                          'host_p0': expected, 'host_p1': expected}, traits)

    def test_say_what_is_declared_of_all_types_of_a_kind_and_parent(self) -> None:
        """A pool may have devices of several, and knows the details of one."""
        sorts = [Sort('vpmem', '4GB 1'), Sort('vpmem', '4GB 2'), Sort('mdev', 'nvidia-35')]
        declared = [Declaration(parent, Facts(sort, '', STATELESS))
                    for sort, parent in zip(sorts, (None, None, 'p0'), strict=True)]
        found = [Count(ROOT, PMEM, 2, 0, '', 'vpmem', None),
                 Count(NUMA0, VGPU, 1, 0, '', 'mdev', 'p0')]
        made = for_scheduler({'': ROOT, 'p0': NUMA0}, 'node', found, declared)
        self.assertEqual([sorted(offered(declared[0].facts) | offered(declared[1].facts)),
                          sorted(offered(declared[2].facts))], [one.traits for one in made])

    def test_of_what_the_host_cannot_migrate_offer_nothing_to_running_guests(self) -> None:
        self.host.machine.live_migration_obstacles[fake.MDEV] = 'QEMU is too old'
        self.host.audit()
        self.assertEqual([], [trait for provider in self.host.manager.providers() for trait in provider.traits
                              if trait.startswith(OUR_MDEV)])

    def test_say_so_too_when_all_of_them_are_held(self) -> None:
        before = self.host.manager.providers()
        self.host.spawn(pmem=1, vgpu=3)
        self.assertEqual(before, self.host.manager.providers())

    def test_are_those_whose_parent_is_there(self) -> None:
        self.host.spawn(vgpu=1)
        for name in ('p0', 'p1'):
            for key in [key for key, device in self.host.machine.devices.items() if device.parent == name]:
                self.host.machine.remove(key)
            del self.host.machine.parents[name]
        self.host.audit()
        expected = {'node': {PMEM: (1, 0)}}
        self.assertEqual(expected, counted(self.host.manager.providers()))
        self.host.restart()
        self.assertEqual(expected, counted(self.host.manager.providers()))
        self.assertTrue(self.host.manager.state().complete)

    def test_of_what_could_not_be_read_stay_as_they_were(self) -> None:
        before = self.host.manager.providers()
        self.host.machine.unknown_kinds[fake.MDEV] = 'libvirt failed'
        self.host.audit()
        self.assertEqual((before, False), (self.host.manager.providers(), self.host.manager.state().complete))
        self.host.restart()
        self.assertEqual(({'node': {PMEM: (1, 0)}}, False),
                         (counted(self.host.manager.providers()), self.host.manager.state().complete))
        self.host.machine.clear()
        self.host.audit()
        self.assertEqual((before, True), (self.host.manager.providers(), self.host.manager.state().complete))

    def test_that_a_service_calls_the_same_are_one(self) -> None:
        found = [Count(ROOT, VGPU, 2, 1, '', 'mdev', 'p0'),
                 Count(ROOT, VGPU, 1, 0, '', 'mdev', 'p1'),
                 Count(NUMA0, VGPU, 1, 0, '', 'mdev', 'p1')]
        [one] = for_scheduler(dict.fromkeys(('', 'p0', 'p1'), ROOT), 'node', found)
        self.assertEqual(('node', None, {VGPU: 3}, {VGPU: 1}), (one.name, one.parent_uuid, one.totals, one.reserved))

    def test_of_a_numa_node_say_so(self) -> None:
        self.assertEqual([[], ['HW_NUMA_ROOT']],
                         [one.traits for one in for_scheduler({'': ROOT, 'numa0': NUMA0}, 'node', [])])

    def test_of_devices_of_a_newer_release_have_no_traits_that_are_made_up(self) -> None:
        found = [Count(ROOT, VGPU, 1, 0, '{"newer": 1}', 'mdev', 'p0')]
        [one] = for_scheduler({'': ROOT}, 'node', found)
        self.assertEqual(([], {VGPU: 1}), (one.traits, one.totals))


class TestPlaced(base.TestCase):
    def test_rows_name_the_providers_of_now_and_guests_what_they_use(self) -> None:
        """A manager and a report count by what they know, and not by what the claim knew."""
        host = self.useFixture(fixtures.Host(devices=1, parents={'p0': 1}))
        host.spawn(pmem=1, vgpu=1)
        before = host.records()
        host.store.store.write(Changes(update=tuple(
            Update(record, record._replace(provider_uuid=NUMA0, generation=record.generation + 1))
            for record in before)))
        expected = [(record.key, record.provider_uuid) for record in before]
        manager = host.manager
        for records, usage in ((manager.assignments(), manager.usage()), observer_of(host).placed()):
            self.assertEqual(expected, [(record.key, record.provider_uuid) for record in records])
            self.assertEqual({record.key for record in before}, {(use.kind, use.identifier) for use in usage.uses})
