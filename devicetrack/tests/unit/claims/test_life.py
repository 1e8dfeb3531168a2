"""The steps of an assignment's life one by one: what a step that fails leaves, and what a step that works records."""

from unittest import mock

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.claims.claim import Arrival
from devicetrack.claims.claim import Claim
from devicetrack.engine.demand import Demand
from devicetrack.engine.demand import Item
from devicetrack.objects.values import Attribute
from devicetrack.objects.values import MigrationType
from devicetrack.store.api import Changes
from devicetrack.testing import fixtures
from devicetrack.testing.fixtures import FREE
from devicetrack.testing.fixtures import Instance
from devicetrack.testing.fixtures import PMEM
from devicetrack.testing.fixtures import VGPU
from devicetrack.tests import base

THEIRS = '99999999-9999-4999-8999-999999999999'
GONE = exception.StoreUnavailable('store', 'gone')


def full(parent):
    return exception.ParentFull('mdev', parent, 'nvidia-35', 'no available instances')


class HostTestCase(base.TestCase):

    def host(self, attempts=5, **facts):
        configuration = self.useFixture(fixtures.Configuration())
        configuration.set('devicetrack', claim_attempts=attempts)
        return self.useFixture(fixtures.Host(configuration=configuration, **facts))

    def in_doubt(self, host):
        return sorted(key.identifier for key in host.running.ledger.now.withheld_for(vocabulary.IN_DOUBT))


class RefusedByTheStoreTestCase(HostTestCase):
    """The store says that devices have owners whom nobody here knows of."""

    def refuse(self, host, *names, times=None):
        host.store.before('write', exception.DeviceTaken([('vpmem', name) for name in names]), times=times)

    def test_a_claim_gives_up_after_so_many_refusals(self):
        for attempts in (1, 3):
            host = self.host(attempts, devices=5)
            self.refuse(host)
            self.assertRaises(exception.DeviceTaken, host.claim, Instance(), pmem=1)
            self.assertEqual((attempts, {}, 5), (len(host.store.written), host.held(), host.free()))

    def test_a_look_whether_anything_is_over_is_no_refusal(self):
        host = self.host(3, devices=2)
        self.refuse(host, 'd0', 'd1', times=1)                   # then both are looked at, and come back
        self.refuse(host, 'd0', times=1)
        self.refuse(host, 'd1')
        self.assertRaises(exception.DeviceTaken, host.claim, Instance(), pmem=1)
        self.assertEqual(3, len(host.store.written))

    def test_a_claim_looks_as_often_as_it_may_choose(self):
        host = self.host(3, devices=1)
        self.refuse(host, 'd0')
        before = host.machine.calls['get_usage']
        self.assertRaises(exception.DeviceTaken, host.claim, Instance(), pmem=1)
        self.assertEqual((3, 2), (len(host.store.written), host.machine.calls['get_usage'] - before))
        self.assertEqual(({}, ['d0']), (host.held(), self.in_doubt(host)))

    def test_without_devices_in_doubt_there_is_nothing_to_look_at(self):
        host = self.host(devices=1)
        before = host.machine.calls['get_usage']
        self.assertRaises(exception.NoFit, host.claim, Instance(), pmem=2)
        self.assertEqual(before, host.machine.calls['get_usage'])


class InDoubtTestCase(HostTestCase):
    """A look at devices in doubt: those that nobody owns or uses can be had again."""

    def setUp(self):
        super().setUp()
        self.fixture = self.host(devices=3)
        other = Instance()
        claim = self.fixture.claim(other, pmem=3)
        rows = tuple(row._replace(instance_uuid=THEIRS, claim_id='theirs') for row in self.fixture.records(other))
        claim.abort()
        self.fixture.store.store.write(Changes(insert=rows))
        self.assertRaises(exception.NoFit, self.fixture.claim, Instance(), pmem=1)
        self.fixture.store.store.write(Changes(delete=rows[1:]))
        [used] = [one for one in self.fixture.machine.inventory().devices if one.identifier == 'd1']
        self.fixture.machine.start_guest('x', [f'<device kind="vpmem" address="{fixtures.path_of(used)}"/>'])
        self.written = len(self.fixture.store.written)

    def test_neither_one_with_an_owner_nor_one_in_use_comes_back(self):
        host, instance = self.fixture, Instance()
        host.claim(instance, pmem=1)
        self.assertEqual({'d0': THEIRS, 'd2': instance.uuid}, host.owners())
        self.assertEqual((['d0', 'd1'], 1), (self.in_doubt(host), len(host.store.written) - self.written))
        host.audit()

    def test_none_comes_back_while_some_guest_cannot_be_read(self):
        host = self.fixture
        host.machine.unknown_domains['x'] = 'no document'
        self.assertRaises(exception.NoFit, host.claim, Instance(), pmem=1)
        self.assertEqual(['d0', 'd1', 'd2'], self.in_doubt(host))
        host.machine.clear()
        host.claim(Instance(), pmem=1)
        host.audit()


class NotRecordedTestCase(HostTestCase):
    """Between the hold and the store, whatever happens puts the hold back and goes on to the caller."""

    scenarios = base.table(
        ('an error of the driver', exception.HypervisorUnreachable('fake', 'gone')),
        ('any error', ZeroDivisionError()),
        ('an interrupt', KeyboardInterrupt()),
        names=('error',))

    def test_when_the_driver_names_devices(self):
        host = self.host(devices=1, parents={'p0': 1})
        with mock.patch.object(host.driver, 'claim_for_instance', autospec=True, side_effect=self.error):
            self.assertRaises(type(self.error), host.claim, Instance(), pmem=1, vgpu=1)
        self.assertEqual(({}, 2, []), (host.held(), host.free(), host.store.written))

    def test_when_rows_are_made(self):
        host = self.host(devices=1, parents={'p0': 1})
        with mock.patch.object(Arrival, 'changes', autospec=True, side_effect=self.error):
            self.assertRaises(type(self.error), host.manager._go_on, host.running, lambda running: (
                running.claiming.take(Claim(running.failed_claims, Instance('i')),
                                      Demand((Item(PMEM, 1), Item(VGPU, 1))), Arrival('i', 'm', (), None))))
        self.assertEqual(({}, 2, []), (host.held(), host.free(), host.store.written))

    def test_when_the_driver_names_what_takes_the_place_of_another(self):
        host, instance = self.host(parents={'p0': 1, 'p1': 1}), Instance()
        host.claim(instance, vgpu=1)
        [row] = host.records()
        host.machine.before('create', full('p0'), times=1)
        with mock.patch.object(host.driver, 'claim_for_instance', autospec=True, side_effect=self.error):
            self.assertRaises(type(self.error), host.manager.realize, self.context, instance)
        self.assertEqual(([row], {row.identifier: instance.uuid}, 1), (host.records(), host.held(), host.free()))


class ClaimIdTestCase(HostTestCase):

    def test_no_claim_has_the_id_of_another_one_or_of_one_before_a_restart(self):
        host = self.host(devices=4)
        for start in range(2):
            for _ in range(2):
                host.claim(Instance(), pmem=1)
            if not start:
                host.restart()
        self.assertEqual(4, len({record.claim_id for record in host.records()}))

    def test_all_rows_of_one_claim_have_its_id_and_their_places_in_the_guest(self):
        host = self.host(devices=1, parents={'p0': 2})
        claim = host.claim(Instance(), pmem=1, vgpu=2)
        self.assertEqual([(claim.claim_id, position, 1) for position in range(3)],
                         [(record.claim_id, record.position, record.generation) for record in host.records()])


class GenerationTestCase(HostTestCase):

    def test_grows_with_every_update(self):
        host, instance = self.host(devices=2, parents={'p0': 2}), Instance()
        host.spawn(instance, pmem=1, vgpu=1)
        host.machine.declare(MigrationType('mdev', 'p0', 'nvidia-35', Attribute('2.0.0')))
        host.audit()
        host.manager.rebooted(self.context, instance)
        migration = host.resize(instance, pmem=1, vgpu=1)
        host.manager.drop_move_claim_at_dest(self.context, instance, migration)
        self.assertEqual(host.manager.assignments(instance.uuid), instance.resources)
        host.delete(instance)
        updates = [update for changes in host.store.written for update in changes.update]
        self.assertEqual([], [update for update in updates if update.after.generation <= update.before.generation])
        states = {(update.before.role, update.before.state, update.after.role, update.after.state)
                  for update in updates}
        # The guest started and rebooted, its rows became old and current again, and went back.
        self.assertLessEqual({
            ('current', 'claimed', 'current', 'claimed'), ('current', 'claimed', 'current', 'active'),
            ('current', 'active', 'current', 'active'), ('current', 'active', 'old', 'active'),
            ('old', 'active', 'current', 'active'), ('current', 'active', 'current', 'releasing')}, states)


class FullParentTestCase(HostTestCase):

    def setUp(self):
        super().setUp()
        self.fixture, self.instance = self.host(parents={'p0': 1, 'p1': 1}), Instance()
        self.fixture.claim(self.instance, vgpu=1)
        [self.row] = self.fixture.records()

    def realize(self):
        return self.fixture.manager.realize(self.context, self.instance)

    def test_once_another_parent_serves(self):
        self.fixture.machine.before('create', full('p0'), times=1)
        self.realize()
        [row] = self.fixture.records()
        self.assertEqual(('p1', self.row.claim_id, 'current', 'claimed', 0),
                         (row.parent, row.claim_id, row.role, row.state, row.position))
        # The first one still shows room, so it is held back.
        self.assertEqual(({row.identifier: self.instance.uuid}, [row.identifier], 0),
                         (self.fixture.held(), self.fixture.mdevs(), self.fixture.free()))
        [device] = self.fixture.manager.assignments(self.instance.uuid)
        self.assertEqual(device.provider_uuid, row.provider_uuid)
        self.assertNotEqual(self.row.provider_uuid, row.provider_uuid)
        self.assertEqual(
            [(self.row.identifier, 'claimed'), (self.row.identifier, 'released'), (self.row.identifier, 'freed'),
             (row.identifier, 'claimed'), (row.identifier, 'realized')],
            [(one.event.identifier, one.event.event)
             for one in self.fixture.store.store.events_of_instance(self.instance.uuid)])

    def test_an_interrupt_when_another_is_held_and_has_no_row_yet_leaves_it_to_nobody(self):
        self.fixture.machine.before('create', full('p0'), times=1)
        with mock.patch.object(self.fixture.running.claiming, 'named', autospec=True, side_effect=KeyboardInterrupt):
            self.assertRaises(KeyboardInterrupt, self.realize)
        self.assertEqual(({self.row.identifier: self.instance.uuid}, 1), (self.fixture.held(), self.fixture.free()))

    def test_a_parent_that_is_full_when_it_is_read_again_is_not_held_back(self):
        self.fixture.machine.before('create', lambda: self.fixture.machine.add_mdev('p0'), times=1)
        self.realize()
        self.assertEqual(['p1'], [row.parent for row in self.fixture.records()])
        self.assertEqual({}, dict(self.fixture.running.withheld.not_realized))

    def test_twice_is_an_error_and_the_second_choice_stays_recorded(self):
        self.fixture.machine.before('create', full('whichever'), times=2)
        self.assertRaises(exception.NoFit, self.realize)
        self.assertEqual(2, self.fixture.machine.calls['create'])
        [row] = self.fixture.records()
        self.assertEqual(('p1', {row.identifier: self.instance.uuid}), (row.parent, self.fixture.held()))
        self.realize()
        self.assertEqual([row.identifier], self.fixture.mdevs())

    def test_a_refused_write_leaves_the_first_choice(self):
        self.fixture.machine.before('create', full('p0'), times=1)
        self.fixture.store.before('write', GONE)
        self.assertRaises(exception.StoreUnavailable, self.realize)
        self.assertEqual(([self.row], {self.row.identifier: self.instance.uuid}, 1),
                         (self.fixture.records(), self.fixture.held(), self.fixture.free()))

    def test_an_answer_that_was_lost_undoes_nothing_for_nobody_was_told_that_the_claim_failed(self):
        self.fixture.machine.before('create', full('p0'), times=1)
        self.fixture.store.lose_answer()
        self.assertRaises(exception.OutcomeUnknown, self.realize)
        self.assertEqual(2, len(self.fixture.held()))
        self.fixture.running.failed_claims.settle_doubts()
        [row] = self.fixture.records()
        self.assertEqual(((), 'p1', 'claimed'), (self.fixture.running.rows.doubts, row.parent, row.state))
        self.fixture.audit()
        self.assertEqual({row.identifier: self.instance.uuid}, self.fixture.held())


class SettledDoubtTestCase(HostTestCase):

    def claim(self, stage):
        host, instance = self.host(devices=1), Instance()
        stage(host.store)
        self.assertRaises(exception.OutcomeUnknown, host.claim, instance, pmem=1)
        return host, instance

    @staticmethod
    def wait(host):
        """For the devices that the background gives back."""
        host.running.wipes.go_on()
        host.wait()

    def test_a_claim_that_happened_is_given_back(self):
        host, _instance = self.claim(lambda store: store.lose_answer())
        host.running.failed_claims.settle_doubts()
        self.wait(host)
        self.assertEqual(((), {'d0': FREE}, {}), (host.running.rows.doubts, host.states(), host.held()))

    def test_what_a_claim_that_happened_made_old_is_current_again(self):
        host = self.host(devices=2)
        instance = host.spawn(pmem=1)
        host.store.lose_answer()
        self.assertRaises(exception.OutcomeUnknown, host.resize, instance, pmem=1)
        self.assertEqual(['old', 'incoming'], [record.role for record in host.records()])
        host.running.failed_claims.settle_doubts()
        self.wait(host)
        self.assertEqual([('d0', 'current', 'active', None)], [
            (record.identifier, record.role, record.state, record.migration_uuid) for record in host.records()])
        self.assertEqual([], host.store.contexts(host.manager.state().host_uuid))

    def test_of_a_claim_that_did_not_happen_there_is_nothing_to_give_back(self):
        host, instance = self.claim(lambda store: store.lose_commit())
        written, reads = len(host.store.written), host.store.calls['records_of_instance']
        host.running.failed_claims.settle_doubts()
        self.assertEqual((written, reads), (len(host.store.written), host.store.calls['records_of_instance']))
        host.running.rows.let_go(instance.uuid)
        self.assertEqual(((), {'d0': FREE}), (host.running.rows.doubts, host.states()))

    def test_while_somebody_works_on_the_instance_it_stays_in_doubt(self):
        host, instance = self.claim(lambda store: store.lose_answer())
        with host.running.rows.working(instance.uuid):
            self.assertEqual([None], self.together(host.running.failed_claims.settle_doubts))
        self.assertEqual((1, 0), (len(host.running.rows.doubts), host.store.calls['settle']))

    def test_one_that_has_to_wait_keeps_no_other_from_being_settled(self):
        def busy(host, instance):
            with host.running.rows.working(instance.uuid):
                self.together(host.running.failed_claims.settle_doubts)

        def without_an_answer(host, _instance):
            host.store.before('settle', GONE)
            host.running.failed_claims.settle_doubts()
        for settle in (busy, without_an_answer):
            host, instances = self.host(devices=2), [Instance(), Instance()]
            for instance in instances:
                host.store.lose_answer()
                self.assertRaises(exception.OutcomeUnknown, host.claim, instance, pmem=1)
            settle(host, instances[0])
            self.wait(host)
            self.assertEqual({'d0': 'claimed', 'd1': FREE}, host.states())
            self.assertEqual([instances[0].uuid], [doubt.instance_uuid for doubt in host.running.rows.doubts])

    def test_the_finding_names_every_device_of_the_commit(self):
        host, instance = self.host(devices=2), Instance()
        host.store.lose_answer()
        self.assertRaises(exception.OutcomeUnknown, host.claim, instance, pmem=2)
        host.store.before('settle', GONE, times=None)
        [finding] = [one for one in host.audit() if one.kind == 'commit in doubt']
        self.assertEqual((('vpmem', 'd0'), instance.uuid, (), 0), (
            finding.device, finding.recorded_owner, finding.users, finding.generation))
        self.assertIn('whether the commit for vpmem/d0, vpmem/d1 happened', str(finding))


class SeenTestCase(HostTestCase):
    """What the guest has seen of its device is recorded before it starts, and anew when it started."""

    def setUp(self):
        super().setUp()
        self.fixture, self.instance = self.host(parents={'p0': 1}), Instance()
        self.declare('2.1.1')
        self.fixture.claim(self.instance, vgpu=1)

    def declare(self, version):
        self.fixture.machine.declare(MigrationType('mdev', 'p0', 'nvidia-35', Attribute(version)))
        self.fixture.audit()

    def seen(self):
        return [record.seen for record in self.fixture.records()]

    def start(self):
        self.fixture.machine.start_guest(self.instance.uuid, self.fixture.manager.guest_config(self.instance).devices)
        self.fixture.manager.started(self.context, self.instance)

    def test_before_the_start_it_is_what_the_guest_will_see(self):
        self.assertEqual([None], self.seen())
        self.fixture.manager.realize(self.context, self.instance)
        self.assertEqual(['2.1.1'], self.seen())

    def test_a_start_is_a_boot_which_sees_what_is_there_now(self):
        self.fixture.manager.realize(self.context, self.instance)
        self.declare('2.0.1')
        self.start()
        self.assertEqual(['2.0.1'], self.seen())

    def test_what_is_made_ready_again_takes_nothing_back(self):
        self.fixture.manager.realize(self.context, self.instance)
        self.declare('2.0.1')
        rows, written = self.fixture.records(), len(self.fixture.store.written)
        self.fixture.manager.realize(self.context, self.instance)
        self.assertEqual((['2.1.1'], rows), (self.seen(), self.fixture.records()))
        self.assertEqual(written, len(self.fixture.store.written))

    def test_a_second_report_takes_nothing_back(self):
        self.fixture.manager.realize(self.context, self.instance)
        self.start()
        self.declare('2.0.1')
        self.fixture.manager.started(self.context, self.instance)
        self.assertEqual(['2.1.1'], self.seen())
