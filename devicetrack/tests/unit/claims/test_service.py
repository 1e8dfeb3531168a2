"""Whatever the compute service answers where a mapping is meant: what means nothing is unknown."""

from collections.abc import Mapping
import threading
import types
from typing import Any
import uuid

import fixtures as fixtures_of_tests

from devicetrack import exception
from devicetrack.claims.service import ServiceView
from devicetrack.store import api
from devicetrack.testing import fixtures
from devicetrack.testing.region import Region
from devicetrack.tests import base

INSTANCE = '4f1c9c7e-2d0b-4f0e-9a55-0c6d7e8f9a10'
MIGRATION = '7b0d5c1e-93a4-4c68-8f21-5e6a7d8c9b01'


class Says:
    """A service whose every answer is the same."""

    def __init__(self, answer):
        self.instances = self.migrations = self.evacuated_from_here = lambda *_args: answer


class AnswerTestCase(base.TestCase):

    scenarios = [(repr(answer)[:20], {'answer': answer}) for answer in (
        0, 7, True, 1.5, '', 'here', b'deleted', object(), object)]

    def test_it_is_unknown(self):
        view = ServiceView(Says(self.answer))
        self.assertEqual((None, None, set()),
                         (view.instances([INSTANCE]), view.migrations([INSTANCE]), view.evacuated_from_here()))

    def test_an_audit_goes_on_and_frees_nothing(self):
        host = self.useFixture(fixtures.Host(devices=2))
        host.spawn(pmem=1)
        host.resize(host.spawn(pmem=0), pmem=1)
        before = host.records()
        host.service.known = host.service.evacuated = self.answer
        vars(host.service)['migrations'] = lambda _uuids: self.answer
        host.audit()
        host.restart()
        self.assertEqual(before, host.records())


class AskedTestCase(base.TestCase):
    """Which instances the service is asked for: a service with a million of them is not to list them all."""

    def setUp(self):
        super().setUp()
        self.host = self.useFixture(fixtures.Host(devices=4))
        self.asked: list[set[str]] = []
        answer = self.host.service.instances

        def instances(uuids):
            self.asked.append(set(uuids))
            return answer(uuids)

        self.patch(self.host.service, 'instances', instances)

    def test_a_start_and_an_audit_ask_for_who_has_rows_or_a_domain_here(self):
        with_rows = {self.host.spawn(pmem=1).uuid, self.host.spawn(pmem=1).uuid}
        without = fixtures.Instance()
        self.host.machine.start_guest(without.uuid, ())
        self.host.audit()
        self.host.restart()
        self.assertEqual({frozenset(with_rows | {without.uuid})}, set(map(frozenset, self.asked)))

    def test_a_host_that_has_nothing_asks_for_nobody(self):
        self.host.audit()
        self.assertEqual({frozenset()}, set(map(frozenset, self.asked)))

    def test_before_a_guest_starts_only_its_instance_is_asked_for(self):
        self.host.spawn(pmem=1)
        moving = self.host.spawn(pmem=1)
        self.host.resize(moving, pmem=1).status = 'error'
        del self.asked[:]
        self.host.manager.realize(self.host.context, moving)
        self.assertEqual([{moving.uuid}], self.asked)

    def test_who_was_asked_for_can_be_looked_up_at_once(self):
        """A service looks each of its instances up in what it is given: in a list that would take quadratic time."""
        self.host.spawn(pmem=1)
        given: list[Any] = []
        answer = self.host.service.instances

        def instances(uuids):
            given.append(uuids)
            return answer(uuids)

        self.patch(self.host.service, 'instances', instances)
        self.host.audit()
        self.assertEqual({frozenset}, set(map(type, given)))

    def test_a_service_that_takes_no_question_is_unknown_and_frees_nothing(self):
        self.host.spawn(pmem=1)
        deleted = self.host.spawn(pmem=1)
        self.host.machine.delete_guest(deleted.uuid)
        before = self.host.records()
        logged = self.useFixture(fixtures_of_tests.FakeLogger())
        self.patch(self.host.service, 'instances', lambda: {deleted.uuid: 'deleted'})
        self.host.audit()
        self.host.restart()
        self.assertEqual(before, self.host.records())
        self.assertIn('does not answer instances: TypeError', logged.output)

    def test_a_guest_that_came_back_without_devices_is_not_removed(self):
        """It has no row, and the service's word that it is here is all that speaks for it."""
        region = self.useFixture(Region())
        guest = fixtures.Instance(host='one', state='active')
        region.save(guest)
        region.one.machine.start_guest(guest.uuid, ())
        region.one.service.evacuated = [guest.uuid]
        region.one.restart()
        self.assertIn(guest.uuid, region.one.machine.usage().domains)


class LateTestCase(base.TestCase):

    def test_an_answer_that_is_late_is_reported_while_it_is_waited_for(self):
        logged = self.useFixture(fixtures_of_tests.FakeLogger())
        reported = threading.Event()

        def answer(_uuids):
            while 'has not answered instances' not in logged.output:
                reported.wait(0.01)
            return {INSTANCE: 'here'}

        view = ServiceView(types.SimpleNamespace(instances=answer), late_s=0.05)
        self.assertEqual({INSTANCE: 'here'}, view.instances([INSTANCE]))
        self.assertIn('s to answer instances', logged.output)

    def test_one_in_time_is_not(self):
        logged = self.useFixture(fixtures_of_tests.FakeLogger())
        ServiceView(types.SimpleNamespace(instances=dict.fromkeys), late_s=base.HANGS_S).instances([])
        self.assertEqual('', logged.output)


class ListTestCase(base.TestCase):

    def test_a_list_is_no_mapping(self):
        view = ServiceView(Says([INSTANCE]))
        self.assertEqual((None, None, {INSTANCE}),
                         (view.instances([INSTANCE]), view.migrations([INSTANCE]), view.evacuated_from_here()))


def migration(**facts):
    return types.SimpleNamespace(**{'uuid': MIGRATION, 'status': 'finished', 'instance_uuid': INSTANCE, **facts})


class LoadsLazily:
    """A migration that the service can no longer load."""

    uuid = MIGRATION

    @property
    def status(self):
        raise RuntimeError('no session')


class GoneMapping(Mapping[str, Any]):
    """An answer that the service can no longer load."""

    def _fail(self, *_key):
        raise RuntimeError('no session')

    __getitem__ = __iter__ = __len__ = _fail


class FormTestCase(base.TestCase):
    """The forms in which a service may write the same UUID."""

    scenarios = base.table(
        ('text', str), ('capitals', str.upper), ('object', uuid.UUID), names=('form',))

    def test_each_is_read(self):
        view = ServiceView(types.SimpleNamespace(
            instances=lambda _uuids: {self.form(INSTANCE): 'here'},
            migrations=lambda _uuids: {self.form(MIGRATION): migration(
                uuid=self.form(MIGRATION), instance_uuid=self.form(INSTANCE))},
            evacuated_from_here=lambda: [self.form(INSTANCE)]))
        self.assertEqual(({INSTANCE: 'here'}, {INSTANCE}), (view.instances([INSTANCE]), view.evacuated_from_here()))
        known = view.migrations([MIGRATION])
        assert known is not None
        self.assertEqual([(MIGRATION, MIGRATION, INSTANCE)],
                         [(key, move.uuid, move.instance_uuid) for key, move in known.items()])


class PartTestCase(base.TestCase):
    """One part of an answer cannot be read. It may be the part that keeps a device."""

    scenarios = base.table(
        ('an attribute that cannot be loaded', {MIGRATION: LoadsLazily()}, 'no session'),
        ('no migration', {MIGRATION: None}, 'migration.uuid'),
        ('no instance, and no row names it', {INSTANCE: migration(uuid=INSTANCE, instance_uuid=None)},
         'names no instance'),
        ('an instance without a UUID', {MIGRATION: migration(instance_uuid='guest-7')}, 'guest-7'),
        ('an end that is no name', {MIGRATION: migration(source_compute=b'compute-7')}, 'migration.source_compute'),
        ('the key of another', {INSTANCE: migration()}, f'its own UUID is {MIGRATION}'),
        ('a key that is no UUID', {7: migration()}, '7 is no UUID'),
        ('the same one twice', {MIGRATION: migration(), MIGRATION.upper(): migration()}, 'there twice'),
        names=('odd', 'why'))

    def test_then_all_migrations_are_unknown_and_the_log_says_which_it_was(self):
        logged = self.useFixture(fixtures_of_tests.FakeLogger())
        other = str(uuid.uuid4())
        answer = {other: migration(uuid=other), **self.odd}
        view = ServiceView(types.SimpleNamespace(migrations=lambda _uuids: answer))
        self.assertIsNone(view.migrations([MIGRATION]))
        [line] = logged.output.splitlines()
        self.assertIn('an invalid answer to migrations', line)
        self.assertIn(self.why, line)

    def test_a_migration_that_a_row_names_need_not_name_its_instance(self):
        view = ServiceView(types.SimpleNamespace(migrations=lambda _uuids: {MIGRATION: migration(instance_uuid=None)}))
        self.assertEqual([MIGRATION], list(view.migrations([MIGRATION]) or ()))

    def test_and_the_device_of_an_instance_that_left_by_it_is_not_wiped(self):
        host = self.useFixture(fixtures.Host(devices=1))
        guest = host.spawn(pmem=1)
        host.machine.write(host.records()[0].key, b'all that there is')
        host.delete_guest(guest.uuid)
        host.service.known = {guest.uuid: 'elsewhere'}
        vars(host.service)['migrations'] = lambda _uuids: self.odd
        before = host.records()
        host.audit()
        host.restart()
        host.audit()
        self.assertEqual((before, b'all that there is'), (host.records(), host.machine.read(before[0].key)[:17]))


class GoneTestCase(base.TestCase):
    """An answer that fails while it is read."""

    scenarios = base.table(
        *((question, question) for question in ('instances', 'migrations', 'evacuated_from_here')), names=('question',))

    def test_it_is_unknown_and_audits_and_starts_go_on(self):
        host = self.useFixture(fixtures.Host(devices=2))
        host.spawn(pmem=1)
        before = host.records()
        logged = self.useFixture(fixtures_of_tests.FakeLogger())
        vars(host.service)[self.question] = lambda *_uuids: GoneMapping()
        host.audit()
        host.restart()
        self.assertEqual(before, host.records())
        self.assertIn(f'does not answer {self.question}: RuntimeError', logged.output)


class StateTestCase(base.TestCase):

    def test_a_state_that_is_no_text_makes_the_answer_unknown_and_the_log_says_whose_it_is(self):
        other = str(uuid.uuid4())
        logged = self.useFixture(fixtures_of_tests.FakeLogger())
        for odd in (None, 7, b'deleted', ['here']):
            view = ServiceView(types.SimpleNamespace(
                instances=lambda _uuids, odd=odd: {INSTANCE: 'here', other: odd}))
            self.assertIsNone(view.instances([INSTANCE, other]))
            self.assertIn(f'instance {other}: its state is {odd!r}', logged.output)

    def test_an_instance_with_such_a_state_is_not_one_that_the_service_has_forgotten(self):
        """A move whose instance and migration are both left out is one that failed, and its claim goes back."""
        region = self.useFixture(Region())
        moving = fixtures.Instance(host='one')
        migration = region.migration(moving, 'two')
        region.two.resize(moving, pmem=1, migration=migration)
        region.migrations.remove(migration)
        before = region.two.records(moving)
        unreadable: Any = {moving.uuid: None}
        region.two.service.known = unreadable
        for _ in range(3):
            region.two.audit()
        region.two.restart()
        self.assertEqual((1, before), (len(before), region.two.records(moving)))
        region.two.service.known = {}
        region.two.audit()
        region.two.audit()
        self.assertEqual([], region.two.records(moving))

    def test_a_mapping_is_no_list_of_the_evacuated(self):
        view = ServiceView(types.SimpleNamespace(evacuated_from_here=lambda: {INSTANCE: False}))
        self.assertEqual(set(), view.evacuated_from_here())

    def test_an_entry_of_no_instance_makes_the_answer_unknown(self):
        for odd in (7, 'x', None):
            view = ServiceView(types.SimpleNamespace(
                instances=lambda _uuids, odd=odd: {INSTANCE: 'here', odd: 'deleted'},
                evacuated_from_here=lambda odd=odd: [INSTANCE, odd]))
            self.assertEqual((None, set()), (view.instances([INSTANCE]), view.evacuated_from_here()))


DEEP = '[' * 200_000 + ']' * 200_000


class DeepTestCase(base.TestCase):
    """JSON that is nested too deep is bad input, and never a RecursionError."""

    def test_of_a_row_and_of_what_is_withheld(self):
        host = self.useFixture(fixtures.Host(devices=2))
        guest = host.spawn(pmem=1)
        host.manager.operator.cordon('vpmem', 'd1')
        [row], store = host.records(guest), host.store.store
        [withheld] = store.withheld(host.manager.state().host_uuid)
        store.write(api.Changes(update=(api.Update(
            row, row._replace(details=DEEP, generation=row.generation + 1)),)))
        store.set_withheld([withheld._replace(reasons=DEEP)])
        host.audit()
        host.restart()
        self.assertEqual({'d0': 'active', 'd1': 'withheld: in doubt'}, host.states())

    def test_of_an_operator_request_and_of_the_context_of_a_move(self):
        host = self.useFixture(fixtures.Host(devices=2))
        guest = host.spawn(pmem=1)
        migration = host.resize(guest, pmem=1)
        store, host_uuid = host.store.store, host.manager.state().host_uuid
        [context] = store.contexts(host_uuid)
        row = host.records(guest)[0]
        store.write(api.Changes(
            update=(api.Update(row, row._replace(generation=row.generation + 1)),),
            contexts=(api.StoredContext(host_uuid, guest.uuid, migration.uuid, DEEP),)))
        self.assertNotEqual(DEEP, context.context)
        store.add_operator_request(api.OperatorRequest(INSTANCE, host_uuid, 'cordon', DEEP, 1))
        host.audit()
        host.restart()
        [request] = store.operator_requests()
        self.assertIn('refused', request.answer or '')
        self.assertRaises(exception.DeviceTrackError, host.manager.device_map, guest, migration)
