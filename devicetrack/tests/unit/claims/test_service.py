"""Whatever the compute service answers where a mapping is meant: what means nothing is unknown."""

import threading
import types

import fixtures as fixtures_of_tests

from devicetrack import exception
from devicetrack.claims.service import ServiceView
from devicetrack.store import api
from devicetrack.testing import fixtures
from devicetrack.tests import base

INSTANCE = '4f1c9c7e-2d0b-4f0e-9a55-0c6d7e8f9a10'


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
                         (view.instances(), view.migrations([INSTANCE]), view.evacuated_from_here()))

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


class LateTestCase(base.TestCase):

    def test_an_answer_that_is_late_is_reported_while_it_is_waited_for(self):
        logged = self.useFixture(fixtures_of_tests.FakeLogger())
        reported = threading.Event()

        def answer():
            while 'has not answered instances' not in logged.output:
                reported.wait(0.01)
            return {INSTANCE: 'here'}

        view = ServiceView(types.SimpleNamespace(instances=answer), late_s=0.05)
        self.assertEqual({INSTANCE: 'here'}, view.instances())
        self.assertIn('s to answer instances', logged.output)

    def test_one_in_time_is_not(self):
        logged = self.useFixture(fixtures_of_tests.FakeLogger())
        ServiceView(types.SimpleNamespace(instances=dict), late_s=base.HANGS_S).instances()
        self.assertEqual('', logged.output)


class ListTestCase(base.TestCase):

    def test_a_list_is_no_mapping(self):
        view = ServiceView(Says([INSTANCE]))
        self.assertEqual((None, None, {INSTANCE}),
                         (view.instances(), view.migrations([INSTANCE]), view.evacuated_from_here()))


class PartTestCase(base.TestCase):

    def test_a_part_that_means_nothing_is_left_out(self):
        def migration(**facts):
            return types.SimpleNamespace(uuid=INSTANCE, status='error', **facts)

        odd = {INSTANCE: types.SimpleNamespace(
            uuid=INSTANCE, status=[], source_compute={}), 7: migration(), 'x': None, None: {}}
        view = ServiceView(types.SimpleNamespace(
            instances=lambda: {INSTANCE: 'here', 7: 'deleted', 'x': [], None: None},
            migrations=lambda _uuids: odd, evacuated_from_here=lambda: [INSTANCE, 7, None, []]))
        self.assertEqual({INSTANCE: 'here'}, view.instances())
        self.assertEqual({INSTANCE}, view.evacuated_from_here())
        known = view.migrations([INSTANCE])
        assert known is not None
        self.assertEqual([(INSTANCE, None, 'unknown', (None, None))],
                         [(uuid, move.status, move.outcome, move.source) for uuid, move in known.items()])


DEEP = '[' * 200_000 + ']' * 200_000


class DeepTestCase(base.TestCase):
    """JSON that is nested too deep is bad input, and never a RecursionError."""

    def test_of_a_row_and_of_what_is_withheld(self):
        host = self.useFixture(fixtures.Host(devices=2))
        guest = host.spawn(pmem=1)
        host.manager.drain('vpmem', 'd1')
        [row], store = host.records(guest), host.store.store
        [withheld] = store.withheld(host.manager.host_uuid)
        store.write(api.Changes(update=(api.Update(
            row, row._replace(details=DEEP, generation=row.generation + 1)),)))
        store.set_withheld([withheld._replace(reasons=DEEP)])
        host.audit()
        host.restart()
        self.assertEqual({'d0': 'active', 'd1': 'withheld: in doubt'}, host.states())

    def test_of_an_order_and_of_the_context_of_a_move(self):
        host = self.useFixture(fixtures.Host(devices=2))
        guest = host.spawn(pmem=1)
        migration = host.resize(guest, pmem=1)
        store, host_uuid = host.store.store, host.manager.host_uuid
        [context] = store.contexts(host_uuid)
        row = host.records(guest)[0]
        store.write(api.Changes(
            update=(api.Update(row, row._replace(generation=row.generation + 1)),),
            contexts=(api.ContextChange(host_uuid, guest.uuid, migration.uuid, DEEP),)))
        self.assertNotEqual(DEEP, context.context)
        store.add_order(api.Order(INSTANCE, host_uuid, 'drain', DEEP, 1))
        host.audit()
        host.restart()
        [order] = store.orders()
        self.assertIn('refused', order.answer or '')
        self.assertRaises(exception.DeviceTrackError, host.manager.device_map, guest, migration)
