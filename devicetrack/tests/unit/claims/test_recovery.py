"""Starts and audits: what is concluded from which view, and what never is."""

import threading

import fixtures as patches

from devicetrack import exception
from devicetrack.claims import repairs
from devicetrack.engine import findings
from devicetrack.objects import DeviceRequest
from devicetrack.objects.values import DeviceKey
from devicetrack.store.api import Changes
from devicetrack.testing import fake
from devicetrack.testing import fake_guests
from devicetrack.testing import fixtures
from devicetrack.testing.fixtures import FREE
from devicetrack.testing.fixtures import Instance
from devicetrack.testing.fixtures import path_of
from devicetrack.tests import base

FOREIGN = 'withheld: foreign'
IN_DOUBT = 'withheld: in doubt'


class HostTestCase(base.TestCase):

    def host(self, **kwargs):
        return self.useFixture(fixtures.Host(**kwargs))

    @staticmethod
    def element_of(host, identifier):
        device = next(device for device in host.machine.inventory().devices if device.identifier == identifier)
        address = path_of(device) if device.kind == 'vpmem' else identifier
        return f'<device kind="{device.kind}" address="{address}"/>'

    def foreign_guest(self, host, identifier, name='foreign'):
        host.machine.start_guest(name, [self.element_of(host, identifier)])


def nothing(test, host, instance):
    """Claimed and recorded, and nothing more."""


def realized(test, host, instance):
    host.manager.realize(None, instance)


def booted(test, host, instance):
    host.manager.realize(None, instance)
    config = host.manager.guest_config(instance)
    host.machine.start_guest(instance.uuid, config.devices, metadata=config.metadata)


def started(test, host, instance):
    booted(test, host, instance)
    host.manager.started(None, instance)


def stopped(test, host, instance):
    started(test, host, instance)
    host.machine.stop_guest(instance.uuid)


def release_refused(test, host, instance):
    started(test, host, instance)
    test.assertRaises(exception.DeviceInUse, host.manager.release, None, instance)


def release_cut(test, host, instance):
    """Killed in the middle of removing and wiping: the driver never answered."""
    started(test, host, instance)
    host.machine.delete_guest(instance.uuid)
    host.machine.before('wiped', KeyboardInterrupt(), times=1)
    test.assertRaises(KeyboardInterrupt, host.manager.release, None, instance)


def half_realized(test, host, instance):
    host.machine.before('created', KeyboardInterrupt(), times=1)
    test.assertRaises(KeyboardInterrupt, host.manager.realize, None, instance)


class RestartTestCase(HostTestCase):
    """A new process in every state of an instance with a namespace and a vGPU."""

    scenarios = base.table(
        ('claimed', nothing, {'claimed'}, 2),
        ('half realized', half_realized, {'claimed'}, 2),
        ('realized', realized, {'claimed'}, 2),
        ('booted, and nobody said so', booted, {'active'}, 2),
        ('started', started, {'active'}, 2),
        ('stopped', stopped, {'active'}, 2),
        ('a release that was refused', release_refused, {'releasing'}, 2),
        ('a release that was cut', release_cut, set(), 0),
        names=('step', 'states', 'held'))

    def setUp(self):
        super().setUp()
        self.fixture, self.instance = self.host(devices=2, parents={'p0': 2}), Instance()
        self.fixture.claim(self.instance, pmem=1, vgpu=1)
        self.step(self, self.fixture, self.instance)
        self.owners = self.fixture.owners()
        self.fixture.restart()

    def test_everything_has_its_owner(self):
        host = self.fixture
        self.assertEqual(self.states, {record.state for record in host.records()})
        self.assertEqual(self.owners if self.held else {}, host.owners())
        self.assertEqual(host.owners(), host.held())
        self.assertEqual(4 - self.held, host.free())

    def test_a_second_start_changes_nothing(self):
        before = self.fixture.states()
        self.fixture.restart()
        self.fixture.audit()
        self.assertEqual(before, self.fixture.states())

    def test_its_life_goes_on(self):
        host = self.fixture
        if self.states <= {'claimed'} and self.held:
            host.manager.realize(self.context, self.instance)
            host.machine.start_guest(self.instance.uuid, host.manager.guest_config(self.instance).devices)
            host.manager.started(self.context, self.instance)
            self.assertEqual({'active'}, {record.state for record in host.records()})
        host.delete(self.instance)
        self.assertEqual(({'d0': FREE, 'd1': FREE}, [], 4), (host.states(), host.mdevs(), host.free()))

    def test_a_deleted_instance_gives_everything_back_once_its_domain_is_gone(self):
        host = self.fixture
        host.service.known = {self.instance.uuid: 'deleted'}
        host.audit()
        if self.instance.uuid in host.machine.domains:
            self.assertEqual(self.held, len(host.records()))
            host.machine.delete_guest(self.instance.uuid)
            host.audit()
        self.assertEqual(({'d0': FREE, 'd1': FREE}, [], 4), (host.states(), host.mdevs(), host.free()))


class ServiceTestCase(HostTestCase):
    """What the compute service says of an instance whose domain is gone."""

    scenarios = base.table(
        ('deleted', lambda uuid: {uuid: 'deleted'}, True),
        ('offloaded', lambda uuid: {uuid: 'offloaded'}, True),
        ('here', lambda uuid: {uuid: 'here'}, False),
        ('a word that we do not know', lambda uuid: {uuid: 'resizing'}, False),
        ('nothing of it', lambda uuid: {}, False),
        ('that it cannot tell', lambda uuid: None, False),
        ('an error', lambda uuid: ZeroDivisionError(), False),
        names=('says', 'given'))

    def audit(self, host, instance):
        known = self.says(instance.uuid)
        host.service.known = known
        return host.audit()

    def test_a_device_is_given_back_only_on_its_word(self):
        host = self.host(devices=1)
        instance = host.spawn(pmem=1)
        host.machine.delete_guest(instance.uuid)
        self.audit(host, instance)
        self.assertEqual({'d0': FREE if self.given else 'active'}, host.states())

    def test_nothing_is_given_back_while_the_domain_is_there(self):
        host = self.host(devices=1)
        instance = host.spawn(pmem=1)
        for _ in range(2):
            self.audit(host, instance)
            self.assertEqual({'d0': 'active'}, host.states())
            if instance.uuid in host.machine.domains and host.machine.domains[instance.uuid].live is not None:
                host.machine.stop_guest(instance.uuid)

    def test_nothing_is_given_back_while_a_domain_cannot_be_read(self):
        host = self.host(devices=1)
        instance = host.spawn(pmem=1)
        host.machine.delete_guest(instance.uuid)
        host.machine.unknown_domains['x'] = 'garbage'
        self.audit(host, instance)
        self.assertEqual({'d0': 'active'}, host.states())

    def test_nothing_is_given_back_of_a_host_that_says_nothing(self):
        host = self.host(devices=1)
        instance = host.spawn(pmem=1)
        host.machine.delete_guest(instance.uuid)
        host.machine.before('get_usage', exception.HypervisorUnreachable('fake', 'gone'))
        self.assertRaises(exception.HypervisorUnreachable, self.audit, host, instance)
        self.assertEqual({'d0': 'active'}, host.states())


class ClaimedAndNeverSavedTestCase(HostTestCase):
    """The service ends between a claim and its first save of the instance: its database never heard of the host."""

    def setUp(self):
        super().setUp()
        self.fixture, self.instance = self.host(devices=1), Instance()
        self.fixture.service.known = {}
        self.fixture.claim(self.instance, pmem=1)

    @staticmethod
    def said(found):
        return [(finding.kind, finding.recorded_owner, finding.repair) for finding in found]

    def test_the_next_start_and_every_audit_report_it_and_give_nothing_back(self):
        self.fixture.restart()
        reported = [(findings.UNKNOWN_OWNER, self.instance.uuid, None)]
        self.assertEqual(reported, self.said(self.fixture.findings))
        for _ in range(2):
            self.assertEqual(reported, self.said(self.fixture.audit()))
        self.assertEqual({'d0': 'claimed'}, self.fixture.states())

    def test_the_process_that_claimed_may_not_have_saved_it_yet(self):
        self.assertEqual([], self.fixture.audit())

    def test_it_is_over_when_the_service_knows_the_instance_boots_or_releases_it(self):
        self.fixture.restart()
        self.fixture.service.known = {self.instance.uuid: 'here'}
        self.assertEqual([], self.fixture.audit())
        self.fixture.service.known = {}
        started(self, self.fixture, self.instance)
        self.assertEqual([], self.fixture.audit())
        self.fixture.delete(self.instance)
        self.assertEqual(([], {'d0': FREE}), (self.fixture.audit(), self.fixture.states()))

    def test_a_service_that_does_not_answer_knows_everybody(self):
        self.fixture.service.known = None
        self.fixture.restart()
        self.assertEqual([], self.fixture.findings)


class RunsWithoutTestCase(HostTestCase):
    """Somebody takes a device away from a guest that runs, and its definition still names the device."""

    def test_each_look_at_the_host_says_it_until_the_guest_starts_again(self):
        host = self.host(devices=1, parents={'p0': 1})
        instance = host.spawn(pmem=1, vgpu=1)
        host.machine.domains[instance.uuid].live = ()
        for found in (host.audit(), host.restart(), host.audit()):
            self.assertEqual({(findings.RECORDED_UNUSED, instance.uuid)},
                             {(finding.kind, finding.recorded_owner) for finding in found})
            self.assertEqual(2, len(found))
            self.assertIn('runs without it', found[0].detail)
        host.machine.stop_guest(instance.uuid)
        self.assertEqual([], host.audit())
        host.machine.power_on(instance.uuid)
        self.assertEqual([], host.audit())


class ForeignTestCase(HostTestCase):

    def test_a_device_of_a_foreign_guest_is_withheld_reported_and_comes_back(self):
        host = self.host(devices=2)
        self.foreign_guest(host, 'd0')
        found = host.audit()
        self.assertEqual([('used but unrecorded', 'd0')],
                         [(finding.kind, finding.device.identifier) for finding in found])
        self.assertEqual({'d0': FOREIGN, 'd1': FREE}, host.states())
        host.machine.delete_guest('foreign')
        self.assertEqual([], host.audit())
        self.assertEqual({'d0': FREE, 'd1': FREE}, host.states())

    def test_it_is_withheld_from_the_start(self):
        host = self.host(devices=1)
        self.foreign_guest(host, 'd0')
        host.restart()
        self.assertEqual({'d0': FOREIGN}, host.states())
        self.assertRaises(exception.NoFit, host.claim, Instance(), pmem=1)

    def test_it_stays_withheld_when_one_of_two_looks_could_not_read_its_domain(self):
        host = self.host(devices=1)
        self.foreign_guest(host, 'd0')
        host.audit()
        for unreadable in (1, 2):
            looks = iter(range(1, 3))

            def look(looks=looks, unreadable=unreadable):
                host.machine.unknown_domains.clear()
                if next(looks) == unreadable:
                    host.machine.unknown_domains['foreign'] = 'garbage'
            host.machine.before('get_usage', look, times=2)
            host.audit()
            self.assertEqual(FOREIGN + ', unproven', host.states()['d0'])
            self.assertRaises(exception.NoFit, host.claim, Instance(), pmem=1)

    def test_it_is_never_free_in_between_when_it_was_unhealthy(self):
        host = self.host(devices=1)
        key = host.machine.inventory().devices[0].key
        self.foreign_guest(host, 'd0')
        host.machine.change(key, unhealthy='hot')
        host.audit()
        host.machine.change(key, unhealthy=None)
        free = []
        refresh = host.running.declarations.refresh

        def look_at_free_devices(inventory):
            free.append(host.free())
            refresh(inventory)
        self.patch(host.running.declarations, 'refresh', look_at_free_devices)
        host.audit()
        self.assertEqual(([0], {'d0': FOREIGN + ', unproven'}), (free, host.states()))

    def test_a_guest_that_passes_by_is_no_finding(self):
        host = self.host(devices=1)
        self.foreign_guest(host, 'd0')
        host.machine.before('get_inventory', lambda: host.machine.delete_guest('foreign'), times=1)
        self.assertEqual([], host.audit())
        self.assertEqual({'d0': FREE}, host.states())

    def test_a_foreign_guest_on_an_owned_device_is_critical_and_changes_no_owner(self):
        host = self.host(devices=1)
        instance = host.spawn(pmem=1)
        self.foreign_guest(host, 'd0')
        finding = host.audit()[0]
        self.assertEqual(('used by several', 'critical', {instance.uuid, 'foreign'}),
                         (finding.kind, finding.severity, set(finding.users)))
        self.assertEqual({'d0': instance.uuid}, host.owners())


class UnknownUsageTestCase(HostTestCase):

    def test_free_devices_are_withheld_and_none_is_freed(self):
        host = self.host(devices=2)
        instance = host.spawn(pmem=1)
        host.machine.unknown_domains['x'] = 'garbage'
        found = host.audit()
        self.assertEqual({'view unknown'}, {finding.kind for finding in found})
        self.assertEqual({'d0': 'active', 'd1': IN_DOUBT}, host.states())
        self.assertRaises(exception.NoFit, host.claim, Instance(), pmem=1)
        host.machine.clear()
        host.audit()
        self.assertEqual({'d0': 'active', 'd1': FREE}, host.states())
        host.delete(instance)

    def test_they_come_back_before_a_claim_is_refused(self):
        host = self.host(devices=1)
        host.machine.unknown_domains['x'] = 'garbage'
        host.audit()
        host.machine.clear()
        host.claim(Instance(), pmem=1)

    def test_at_the_start_too(self):
        host = self.host(devices=1)
        host.machine.unknown_domains['x'] = 'garbage'
        host.restart()
        self.assertEqual({'d0': IN_DOUBT}, host.states())

    def test_a_foreign_device_is_not_admitted(self):
        host = self.host(devices=1)
        self.foreign_guest(host, 'd0')
        host.audit()
        host.machine.unknown_domains['foreign'] = 'garbage'
        host.audit()
        self.assertEqual({'d0': 'withheld: foreign, in doubt, unproven'}, host.states())


class UnknownInventoryTestCase(HostTestCase):

    def test_what_could_not_be_read_stays_as_it_was(self):
        host = self.host(devices=1, parents={'p0': 2})
        instance = host.spawn(pmem=1, vgpu=1)
        before = (host.states(), host.free())
        host.machine.unknown_kinds.update(vpmem='ndctl failed', mdev='no sysfs')
        found = host.audit()
        self.assertEqual(['view unknown'] * 2, [finding.kind for finding in found])
        self.assertEqual(before, (host.states(), host.free()))
        host.delete(instance)

    def test_a_start_without_it_holds_what_rows_say(self):
        host = self.host(devices=1, parents={'p0': 2})
        instance = host.spawn(pmem=1, vgpu=1)
        host.machine.unknown_kinds.update(vpmem='ndctl failed', mdev='no sysfs')
        host.restart()
        self.assertEqual(({instance.uuid}, 0), (set(host.held().values()), host.free()))
        host.machine.clear()
        host.audit()
        self.assertEqual(1, host.free())
        host.delete(instance)
        self.assertEqual(({'d0': FREE}, [], 3), (host.states(), host.mdevs(), host.free()))


class UnreadPartTestCase(HostTestCase):
    """The part or the whole is of a kind that cannot be read for a while."""

    scenarios = base.table(
        *((f'{first} before {second}, {unread} unread', first, second, unread)
          for pair, kinds in ((('CUSTOM_GPU', 'VGPU'), ('pci', 'mdev')),
                              (('CUSTOM_CONTROLLER', 'CUSTOM_PMEM_NAMESPACE_DISK'), ('pci', 'vpmem')))
          for first, second in (pair, pair[::-1]) for unread in kinds), names=('first', 'second', 'unread'))

    def setUp(self):
        super().setUp()
        machine = fake.FakeHost()
        machine.add_parent('pci_0000_82_00_0', units=2, address='0000:82:00.0')
        machine.add_function('0000:82:00.0', 'CUSTOM_GPU')
        machine.add_function('0000:84:00.0', 'CUSTOM_CONTROLLER')
        machine.add_namespace('disk0', 'DISK', parent='0000:84:00.0')
        self.one = fixtures.Host(ready=False)
        self.one.machine = machine
        self.useFixture(self.one)
        self.one.manager.init_host(None)

    def claim(self, resource_class):
        return self.one.claim(Instance(), DeviceRequest.of((resource_class, 1)))

    def check_second(self):
        self.assertIn('1 withheld' if self.second != 'VGPU' else '2 withheld',
                      str(self.assertRaises(exception.NoFit, self.claim, self.second)))

    def test_no_claim_gets_the_other_one(self):
        self.one.machine.unknown_kinds[self.unread] = 'it fails'
        self.one.audit()
        self.claim(self.first)
        self.check_second()
        self.one.audit()
        self.check_second()
        self.one.machine.clear()
        self.one.audit()
        self.check_second()

    def test_nor_after_a_start_if_a_domain_of_others_has_the_first(self):
        machine = self.one.machine
        key = machine.add_mdev('pci_0000_82_00_0') if self.first == 'VGPU' else next(
            one.key for one in machine.devices.values() if one.resource_class == self.first)
        address = path_of(machine.devices[key]) if key.kind == fake.VPMEM else key.identifier
        machine.start_guest('x', [fake_guests.element(key.kind, address)])
        machine.unknown_kinds[self.unread] = 'it fails'
        self.one.restart()
        self.assertRaises(exception.NoFit, self.claim, self.second)
        machine.clear()
        machine.delete_guest('x')

    def test_nor_if_a_domain_of_others_gets_the_other_one_meanwhile(self):
        machine, instance = self.one.machine, Instance()
        self.one.claim(instance, DeviceRequest.of((self.first, 1)))
        [other] = [one for one in machine.devices.values() if one.resource_class == self.second] or [
            machine.devices[machine.add_mdev('pci_0000_82_00_0')]]
        address = path_of(other) if other.kind == fake.VPMEM else other.identifier
        machine.start_guest('x', [fake_guests.element(other.kind, address)])
        self.assertRaises((exception.DeviceInUse, exception.NoFit), self.one.manager.realize, None, instance)
        machine.delete_guest('x')

    def test_nor_if_it_fails_after_the_first_claim(self):
        first = self.claim(self.first)
        self.one.machine.unknown_kinds[self.unread] = 'it fails'
        self.one.audit()
        self.check_second()
        first.abort()
        self.claim(self.second)


class GoneTestCase(HostTestCase):

    def test_an_owned_device_that_vanished_is_reported_with_its_owner(self):
        host = self.host(devices=2)
        instance = host.spawn(pmem=1)
        host.machine.remove(host.records()[0].key)
        finding = host.audit()[0]
        self.assertEqual(('gone from the host', 'd0', instance.uuid),
                         (finding.kind, finding.device.identifier, finding.recorded_owner))
        self.assertEqual({'d0': 'active', 'd1': FREE}, host.states())
        host.restart()
        self.assertEqual({'d0': 'active', 'd1': FREE}, host.states())

    def test_a_free_device_that_vanished_is_not_handed_out(self):
        host = self.host(devices=1)
        host.machine.remove(host.machine.inventory().devices[0].key)
        host.audit()
        self.assertRaises(exception.NoFit, host.claim, Instance(), pmem=1)

    def test_a_new_device_is_handed_out(self):
        host = self.host()
        self.assertRaises(exception.NoFit, host.claim, Instance(), pmem=1)
        host.machine.add_namespace('d0')
        host.audit()
        host.claim(Instance(), pmem=1)


class AuditAmongClaimsTestCase(HostTestCase):

    def test_audits_change_no_owner_of_concurrent_claims(self):
        host = self.host(devices=24, parents={'p0': 24})
        instances = [Instance() for _ in range(20)]
        done = threading.Event()
        owners = {}

        def audits():
            while not done.is_set():
                host.audit()

        def life(instance):
            for round_number in range(3):
                host.spawn(instance, pmem=1, vgpu=1)
                mine = host.records(instance)
                self.assertEqual(2, len(mine))
                if round_number < 2:
                    host.delete(instance)
            owners[instance.uuid] = {record.identifier for record in mine}

        auditor = threading.Thread(target=audits)
        auditor.start()
        try:
            answers = self.together(*[lambda instance=instance: life(instance) for instance in instances])
        finally:
            done.set()
            auditor.join()
        self.assertEqual([None] * 20, answers)
        for instance in instances:
            self.assertEqual(owners[instance.uuid], {record.identifier for record in host.records(instance)})
        self.assertEqual([], host.audit())
        self.assertEqual(host.owners(), host.held())
        self.together(*[lambda instance=instance: host.delete(instance) for instance in instances])
        host.audit()
        self.assertEqual((48, [], []), (host.free(), host.mdevs(), host.records()))

    def test_an_audit_at_every_step_finds_nothing_and_changes_nothing(self):
        host, instance = self.host(devices=1, parents={'p0': 1}), Instance()
        audits = []

        def audit():
            if threading.current_thread() is threading.main_thread():       # an audit audits nothing of its own
                audits.extend(self.together(host.audit))

        for call in ('realize', 'created', 'guest_config', 'unclaim', 'wipe', 'wiped', 'destroy', 'destroyed'):
            host.machine.before(call, audit)
        host.store.before('write', audit, times=None)
        host.store.after('write', audit, times=None)
        host.spawn(instance, pmem=1, vgpu=1)
        self.assertEqual({'active'}, set(host.states().values()))
        host.delete(instance)
        self.assertEqual(({'d0': FREE}, [], 2), (host.states(), host.mdevs(), host.free()))
        self.assertEqual([], [audit for audit in audits if isinstance(audit, BaseException)])

    def test_an_audit_waits_for_nobody(self):
        host, instance = self.host(devices=2), Instance()
        other = host.spawn(pmem=1)
        host.machine.delete_guest(other.uuid)
        host.service.known = {other.uuid: 'deleted'}
        host.claim(instance, pmem=1)
        audits = []
        host.machine.before('realize', lambda: audits.extend(self.together(host.audit)), times=1)
        host.manager.realize(self.context, instance)
        self.assertEqual(([[]], {'d0': FREE, 'd1': 'claimed'}), (audits, host.states()))


class SinceTestCase(HostTestCase):

    def test_a_finding_says_since_when_it_is_seen_without_a_break(self):
        host = self.host(devices=2)
        instance = host.spawn(pmem=1)
        self.foreign_guest(host, 'd1')
        clock = iter(range(100, 200))
        self.useFixture(patches.MonkeyPatch('devicetrack.claims.audit.time.time', lambda: next(clock)))
        first = host.audit()[0].since
        self.assertEqual(first, host.audit()[0].since)
        host.machine.delete_guest('foreign')
        self.assertEqual([], host.audit())
        self.foreign_guest(host, 'd1')
        self.assertLess(first, host.audit()[0].since)
        host.delete(instance)


class OlderStoreTestCase(HostTestCase):
    """A backup was restored: guests run on devices that it does not know."""

    def test_nothing_is_claimed_and_nothing_freed_until_the_rows_are_there(self):
        host = self.host(devices=3)
        instance, gone = host.spawn(pmem=1), host.spawn(pmem=1)
        [row] = host.records(instance)
        host.store.store.write(Changes(delete=(row,)))
        host.service.known = {gone.uuid: 'deleted'}
        host.machine.delete_guest(gone.uuid)
        found = host.restart()
        self.assertIn((findings.USED_UNRECORDED, findings.ADOPT), [(one.kind, one.repair) for one in found])
        error = self.assertRaises(exception.NodeUnavailable, host.claim, Instance(), pmem=1)
        self.assertIn(instance.uuid, str(error))
        host.audit()
        self.assertEqual([gone.uuid], [record.instance_uuid for record in host.records()])
        host.store.store.write(Changes(insert=(row,)))
        host.audit()
        self.assertEqual([instance.uuid], [record.instance_uuid for record in host.records()])
        host.claim(Instance(), pmem=1)

    def test_a_device_that_the_old_store_has_for_somebody_else_goes_to_its_guest(self):
        host = self.host(devices=2)
        before = host.spawn(pmem=1)
        [old] = host.records(before)
        host.delete(before)
        instance, other = host.spawn(pmem=1), host.spawn(pmem=1)
        owned = {record.identifier: record for record in (*host.records(instance), *host.records(other))}
        row = owned[old.identifier]
        instance = instance if row.instance_uuid == instance.uuid else other
        host.machine.write(row.key, b'of the guest')
        host.store.store.write(Changes(delete=(row,)))
        host.store.store.write(Changes(insert=(old,)))
        host.service.known = {before.uuid: 'deleted'}
        host.restart()
        host.audit()
        self.assertRaises(exception.RowsMissing, host.manager.realize, None, instance)
        self.assertRaises(exception.RowsMissing, host.manager.guest_config, instance)
        self.assertRaises(exception.NodeUnavailable, host.claim, Instance(), pmem=1)
        accepted = repairs.Accepted(True, lambda _move: True)
        [outcome] = host.running.repairs.repair(host.running.repairs.plan(accepted).repairs)
        self.assertIsNone(outcome.error)
        self.assertEqual([], host.audit())
        self.assertEqual(instance.uuid, host.owners()[old.identifier])
        host.boot(instance)
        self.assertEqual(b'of the guest', host.machine.read(row.key))
        self.assertEqual([], host.restart())
        host.delete(instance)
        self.assertEqual(FREE, host.states()[old.identifier])

    def test_a_store_without_any_row_is_lost_and_not_accepted(self):
        host = self.host(devices=2)
        instance = host.spawn(pmem=1)
        [row] = host.records(instance)
        host.store.store.write(Changes(delete=(row,)))
        host.restart()
        self.assertIn('recover', str(self.assertRaises(exception.NodeUnavailable, host.claim, Instance(), pmem=1)))
        self.assertIn('recover', str(self.assertRaises(exception.StoreLost, host.running.repairs.plan,
                                                     repairs.Accepted(True))))
        self.assertEqual([], host.records())

    def test_a_guest_that_is_not_ours_makes_no_store_old(self):
        host = self.host(devices=2)
        self.foreign_guest(host, 'd0')
        host.restart()
        host.claim(Instance(), pmem=1)


class BootTestCase(HostTestCase):

    def test_paths_of_another_boot_are_brought_up_to_date_before_a_guest_starts(self):
        host = self.host(devices=3, parents={'card': 1})
        instances = [host.spawn(pmem=1, vgpu=int(number == 0)) for number in range(2)]
        for number, instance in enumerate(instances):
            for record in host.records(instance):
                host.machine.write(record.key, b'of %d' % number)
        before = {uuid: domain.defined for uuid, domain in host.machine.domains.items()}
        [mdev] = host.mdevs()
        host.machine.remove(DeviceKey('mdev', mdev))
        host.machine.reboot()
        self.assertEqual([], host.restart())
        self.assertEqual([mdev], host.mdevs())
        for instance in instances:
            self.assertNotEqual(before[instance.uuid], host.machine.domains[instance.uuid].defined)
            self.assertEqual(tuple(fake.addresses_in(host.manager.guest_config(instance).devices)),
                             host.machine.domains[instance.uuid].defined)
        self.assertEqual([], host.audit())
        for instance in instances:
            host.boot(instance)
        self.assertEqual([], host.audit())

    def test_a_definition_that_names_other_devices_than_the_guest_is_to_have(self):
        host = self.host(devices=2)
        instance = host.spawn(pmem=1)
        host.resize(instance, pmem=1)
        before = host.machine.domains[instance.uuid].defined
        host.machine.reboot()
        self.assertEqual([], host.restart())
        self.assertNotEqual(before, host.machine.domains[instance.uuid].defined)
        self.assertEqual(['d0'], [use.identifier for use in host.machine.usage().uses])

    def test_a_guest_of_which_nobody_said_that_it_started(self):
        host = self.host(devices=2)
        instance = Instance()
        host.claim(instance, pmem=1)
        booted(self, host, instance)
        before = host.machine.domains[instance.uuid].defined
        host.machine.reboot()
        self.assertEqual([], host.restart())
        self.assertNotEqual(before, host.machine.domains[instance.uuid].defined)

    def test_what_cannot_be_done_at_once_is_tried_at_every_audit(self):
        host = self.host(devices=2)
        instance = host.spawn(pmem=1)
        before = host.machine.domains[instance.uuid].defined
        host.machine.reboot()
        for call, error in (('rewrite_guest', exception.HypervisorUnreachable('fake', 'restarting')),
                            ('realize', exception.RealizeFailed('vpmem', 'd0', 'no answer'))):
            host.machine.before(call, error, times=1)
            host.restart() if call == 'rewrite_guest' else host.audit()
            self.assertEqual(before, host.machine.domains[instance.uuid].defined)
        host.audit()
        self.assertNotEqual(before, host.machine.domains[instance.uuid].defined)

    def test_a_guest_whose_definition_could_not_be_rewritten_starts_on_its_own_devices_all_the_same(self):
        host = self.host(devices=2)
        instances = [host.spawn(pmem=1) for _ in range(2)]
        before = host.machine.domains[instances[0].uuid].defined
        host.machine.reboot()
        host.machine.before('rewrite_guest', exception.HypervisorUnreachable('fake', 'restarting'), times=2)
        host.restart()
        self.assertEqual(before, host.machine.domains[instances[0].uuid].defined)
        for instance in instances:
            host.manager.realize(None, instance)        # and the guest is started by the definition that it has
            [use] = [use for use in host.machine.usage().uses if use.domain_uuid == instance.uuid]
            self.assertEqual(host.records(instance)[0].identifier, use.identifier)
        self.assertNotEqual(before, host.machine.domains[instances[0].uuid].defined)
        self.assertEqual([], host.audit())

    def test_a_device_that_did_not_come_back_is_named_and_the_rest_works(self):
        host = self.host(devices=3)
        lost, other = host.spawn(pmem=1), host.spawn(pmem=1)
        [row] = host.records(lost)
        host.machine.reboot()
        host.machine.remove(row.key)
        found = host.restart()
        self.assertIn((findings.GONE, row.key, lost.uuid),
                      [(one.kind, one.device, one.recorded_owner) for one in found])
        host.boot(other)
        host.spawn(pmem=1)


class BusyTestCase(HostTestCase):

    def test_what_this_process_works_on_is_no_finding(self):
        host = self.host(devices=1)
        instance = host.spawn(pmem=1)
        host.machine.delete_guest(instance.uuid)
        wiping, go_on = threading.Event(), threading.Event()

        def wipe():
            wiping.set()
            go_on.wait()

        host.machine.before('wipe', wipe, times=1)

        def audit():
            wiping.wait()
            try:
                return host.audit()
            finally:
                go_on.set()

        self.assertEqual([{'resources': None}, []],
                         self.together(lambda: host.manager.release(None, instance), audit))
