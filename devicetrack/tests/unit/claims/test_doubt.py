"""A store that fails at every step of every operation: what stays held, and how it ends."""

from devicetrack import exception
from devicetrack.store import api
from devicetrack.testing import fixtures
from devicetrack.testing.fixtures import FREE
from devicetrack.testing.fixtures import HELD
from devicetrack.testing.fixtures import Instance
from devicetrack.tests import base

GONE = exception.StoreUnavailable('store', 'gone')
FULL = exception.StoreUnavailable('store', 'full')


def lose_answer(store):
    """The transaction happens, and nobody hears of it."""
    store.lose_answer()


def lose_commit(store):
    """The transaction does not happen, and nobody hears of that either."""
    store.lose_commit()


def die_before(store):
    """Not an error of the store: whoever called is interrupted before the transaction."""
    store.before('write', KeyboardInterrupt())


def die_after(store):
    store.after('write', KeyboardInterrupt())


class HostTestCase(base.TestCase):

    def host(self, **kwargs):
        return self.useFixture(fixtures.Host(**kwargs))


class RefusedClaimTestCase(HostTestCase):
    """Certainly nothing was written: nothing is held."""

    scenarios = base.table(
        ('gone', GONE),
        ('full', FULL),
        ('a newer schema', exception.SchemaMismatch('store', '9999', '0001', 'upgrade')),
        names=('error',))

    def test_holds_nothing(self):
        host, instance = self.host(devices=2, parents={'p0': 1}), Instance()
        host.store.before('write', self.error)
        self.assertRaises(type(self.error), host.claim, instance, pmem=2, vgpu=1)
        self.assertEqual(({'d0': FREE, 'd1': FREE}, {}, 3), (host.states(), host.held(), host.free()))
        host.claim(instance, pmem=2, vgpu=1)


class ClaimInDoubtTestCase(HostTestCase):

    scenarios = base.table(
        ('it happened', lose_answer, exception.OutcomeUnknown),
        ('it did not', lose_commit, exception.OutcomeUnknown),
        names=('stage', 'error'))

    def setUp(self):
        super().setUp()
        self.fixture, self.instance = self.host(devices=2, parents={'p0': 1}), Instance()
        self.stage(self.fixture.store)
        self.assertRaises(self.error, self.fixture.claim, self.instance, pmem=1, vgpu=1)

    def test_its_devices_stay_held(self):
        host = self.fixture
        self.assertEqual(2, len(host.held()))
        self.assertEqual(1, host.free())
        error = self.assertRaises(exception.NoFit, host.claim, Instance(), pmem=2)
        self.assertEqual(1, error.shortages[0].held)

    def test_an_audit_that_learns_nothing_keeps_them(self):
        host = self.fixture
        host.store.before('settle', GONE, times=None)
        findings = host.audit()
        self.assertIn('commit in doubt', [finding.kind for finding in findings])
        self.assertEqual(2, len(host.held()))

    def test_an_audit_settles_it_and_frees_them(self):
        host = self.fixture
        host.audit()
        self.assertEqual(({'d0': FREE, 'd1': FREE}, {}, 3), (host.states(), host.held(), host.free()))
        self.assertEqual([], host.audit())

    def test_the_same_instance_can_be_claimed_for_again_at_once(self):
        host = self.fixture
        claim = host.claim(self.instance, pmem=2, vgpu=1)
        self.assertEqual(3, len(claim.resources))
        self.assertEqual({self.instance.uuid}, set(host.owners().values()))
        self.assertEqual(host.owners(), host.held())

    def test_while_the_store_cannot_say_it_cannot(self):
        host = self.fixture
        host.store.before('settle', GONE, times=None)
        self.assertRaises(exception.StoreUnavailable, host.claim, self.instance, pmem=1)
        host.store.clear()
        host.claim(self.instance, pmem=1)

    def test_a_restart_reads_what_is_there(self):
        host = self.fixture
        host.restart()
        self.assertEqual(host.owners(), host.held())
        host.service.known = {self.instance.uuid: 'deleted'}
        host.audit()
        self.assertEqual(({'d0': FREE, 'd1': FREE}, 3), (host.states(), host.free()))


class InterruptedClaimTestCase(HostTestCase):
    """The next call starts the host anew, and that settles the commit."""

    scenarios = base.table(('before', die_before), ('after', die_after), names=('stage',))

    def setUp(self):
        super().setUp()
        self.fixture, self.instance = self.host(devices=2, parents={'p0': 1}), Instance()
        self.stage(self.fixture.store)
        self.assertRaises(KeyboardInterrupt, self.fixture.claim, self.instance, pmem=1, vgpu=1)
        self.fixture.store.clear()

    def test_an_audit_frees_its_devices(self):
        host = self.fixture
        host.audit()
        self.assertEqual(({'d0': FREE, 'd1': FREE}, {}, 3), (host.states(), host.held(), host.free()))
        self.assertEqual([], host.audit())

    def test_the_same_instance_can_be_claimed_for_again_at_once(self):
        host = self.fixture
        claim = host.claim(self.instance, pmem=2, vgpu=1)
        self.assertEqual(3, len(claim.resources))
        self.assertEqual({self.instance.uuid}, set(host.owners().values()))
        self.assertEqual(host.owners(), host.held())

    def test_while_the_store_does_not_answer_it_cannot(self):
        host = self.fixture
        host.store.before('records_of_host', GONE, times=None)
        self.assertRaises(exception.StoreUnavailable, host.claim, self.instance, pmem=1)
        host.store.clear()
        host.claim(self.instance, pmem=1)


class ReleaseTestCase(HostTestCase):
    """Each of the two transactions of giving back: marking, and deleting."""

    scenarios = base.table(
        ('marking: refused', lambda store: store.before('write', GONE), GONE),
        ('marking: happened', lambda store: store.lose_answer(), exception.OutcomeUnknown('')),
        ('marking: did not', lambda store: store.lose_commit(), exception.OutcomeUnknown('')),
        ('deleting: refused', lambda store: store.before('write', GONE, skip=1), GONE),
        ('deleting: happened', lambda store: store.lose_answer(skip=1), exception.OutcomeUnknown('')),
        ('deleting: did not', lambda store: store.lose_commit(skip=1), exception.OutcomeUnknown('')),
        names=('stage', 'error'))

    def setUp(self):
        super().setUp()
        self.fixture = self.host(devices=1, parents={'p0': 1})
        self.instance = self.fixture.spawn(pmem=1, vgpu=1)
        self.fixture.machine.delete_guest(self.instance.uuid)
        self.stage(self.fixture.store)
        self.assertRaises(type(self.error), self.fixture.manager.release, self.context, self.instance)

    def test_keeps_the_devices_held(self):
        self.assertEqual(2, len(self.fixture.held()))
        self.assertEqual(0, self.fixture.free())

    def test_can_be_called_again(self):
        self.fixture.manager.release(self.context, self.instance)
        self.fixture.audit()
        self.assertEqual(({'d0': FREE}, [], 2),
                         (self.fixture.states(), self.fixture.mdevs(), self.fixture.free()))

    def test_an_audit_goes_on_with_it_once_it_is_asked_for(self):
        host = self.fixture
        host.service.known = {self.instance.uuid: 'deleted'}
        host.audit()
        self.assertEqual(({'d0': FREE}, [], 2), (host.states(), host.mdevs(), host.free()))

    def test_a_restart_goes_on_with_it(self):
        host = self.fixture
        host.service.known = {self.instance.uuid: 'deleted'}
        host.restart()
        host.audit()
        self.assertEqual(({'d0': FREE}, [], 2), (host.states(), host.mdevs(), host.free()))

    def test_what_is_given_back_can_be_claimed(self):
        self.fixture.service.known = {self.instance.uuid: 'deleted'}
        self.fixture.audit()
        self.fixture.spawn(pmem=1, vgpu=1)


class StartedTestCase(HostTestCase):

    scenarios = base.table(
        ('refused', lambda store: store.before('write', GONE)),
        ('happened', lambda store: store.lose_answer()),
        ('did not', lambda store: store.lose_commit()),
        names=('stage',))

    def test_an_answer_that_is_lost_is_settled_by_the_audit(self):
        host, instance = self.host(devices=1), Instance()
        host.claim(instance, pmem=1)
        host.manager.realize(self.context, instance)
        host.machine.start_guest(instance.uuid, host.manager.guest_config(instance).devices)
        self.stage(host.store)
        self.assertRaises(exception.StoreError, host.manager.started, self.context, instance)
        self.assertEqual({'d0': instance.uuid}, host.held())
        host.audit()
        self.assertEqual(({'d0': 'active'}, {'d0': instance.uuid}), (host.states(), host.held()))
        host.delete(instance)
        self.assertEqual({'d0': FREE}, host.states())

    def test_details_that_could_not_be_recorded_are_at_the_next_realize(self):
        host, instance = self.host(parents={'p0': 1}), Instance()
        host.claim(instance, vgpu=1)
        self.stage(host.store)
        self.assertRaises(exception.StoreError, host.manager.realize, self.context, instance)
        host.audit()
        resources = host.manager.realize(self.context, instance)
        self.assertIsNotNone(next(iter(resources)).details.iommu_group)
        self.assertEqual([True], [record.was_realized for record in host.records()])


class TakenBehindOurBackTestCase(HostTestCase):
    """Rows that another writer made. The unique constraint refuses, and the claim chooses again."""

    def taken(self, host, *names, owner='99999999-9999-4999-8999-999999999999'):
        template = self.template(host)
        records = tuple(template._replace(identifier=name, instance_uuid=owner, claim_id='theirs') for name in names)
        host.store.store.write(api.Changes(insert=records))
        return records

    @staticmethod
    def template(host):
        other = Instance()
        host.claim(other, pmem=1)
        record = host.records(other)[0]
        host.manager.abort_instance_claim(None, other)
        return record

    def test_another_device_is_chosen(self):
        host, instance = self.host(devices=8), Instance()
        self.taken(host, 'd0', 'd1', 'd2', 'd3', 'd4', 'd5', 'd6')
        host.claim(instance, pmem=1)
        self.assertEqual(instance.uuid, host.owners()['d7'])
        host.audit()

    def test_all_are_owned_and_it_says_why(self):
        host = self.host(devices=2)
        self.taken(host, 'd0', 'd1')
        error = self.assertRaises(exception.NoFit, host.claim, Instance(), pmem=1)
        self.assertEqual((('in doubt', 2),), error.shortages[0].withheld)
        host.audit()

    def test_they_come_back_before_a_claim_is_refused(self):
        host = self.host(devices=2)
        records = self.taken(host, 'd0', 'd1')
        self.assertRaises(exception.NoFit, host.claim, Instance(), pmem=1)
        host.store.store.write(api.Changes(delete=records))
        host.claim(Instance(), pmem=2)

    def test_they_come_back_with_an_audit(self):
        host = self.host(devices=2)
        records = self.taken(host, 'd0', 'd1')
        host.audit()
        self.assertEqual({record.identifier: record.instance_uuid for record in records}, host.held())
        host.store.store.write(api.Changes(delete=records))
        host.audit()
        self.assertEqual({'d0': FREE, 'd1': FREE}, host.states())
        self.assertEqual(2, host.free())

    def test_a_device_that_a_domain_uses_does_not_come_back(self):
        host = self.host(devices=1)
        records = self.taken(host, 'd0')
        self.assertRaises(exception.NoFit, host.claim, Instance(), pmem=1)
        path = host.machine.inventory().devices[0]
        host.machine.start_guest('x', [f'<device kind="vpmem" address="{fixtures.path_of(path)}"/>'])
        host.store.store.write(api.Changes(delete=records))
        self.assertRaises(exception.NoFit, host.claim, Instance(), pmem=1)

    def test_a_row_of_ours_that_another_deleted_ends_what_it_held_at_the_next_start(self):
        host, instance = self.host(devices=1), Instance()
        host.claim(instance, pmem=1)
        host.store.store.write(api.Changes(delete=tuple(host.records())))
        host.audit()
        self.assertEqual({'d0': HELD}, host.states())
        host.restart()
        self.assertEqual({'d0': FREE}, host.states())
