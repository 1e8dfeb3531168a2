"""Rows, and commits in doubt: what is let go, what is followed, and what stays held."""


from devicetrack import exception
from devicetrack.store.api import Changes
from devicetrack.testing import fixtures
from devicetrack.testing.fixtures import FREE
from devicetrack.testing.fixtures import HELD
from devicetrack.testing.fixtures import Instance
from devicetrack.tests import base


class RowsTestCase(base.TestCase):

    def setUp(self):
        super().setUp()
        self.host, self.instance = self.useFixture(fixtures.Host(devices=3)), Instance()
        self.rows = self.host.running.rows

    def held_for_rows(self, pmem=2):
        """Hold devices of an instance because of rows, as after a start."""
        self.host.claim(self.instance, pmem=pmem)
        self.host.restart()
        self.rows = self.host.running.rows
        return self.host.records(self.instance)

    def delete(self, *records):
        """End rows of which this process does not know: a commit in doubt wrote them, and they were never there."""
        self.rows.known.leave(Changes(delete=records))
        self.host.store.store.write(Changes(delete=records))


class LetGoTestCase(RowsTestCase):

    def test_frees_what_has_no_row_any_more_and_keeps_what_has_one(self):
        first, _second = self.held_for_rows()
        self.delete(first)
        self.rows.let_go(self.instance.uuid)
        self.assertEqual(({'d1': self.instance.uuid}, 2), (self.host.held(), self.host.free()))

    def test_frees_nothing_that_a_claim_is_just_taking(self):
        self.host.store.before('write', lambda: self.rows.let_go(self.instance.uuid))
        self.host.claim(self.instance, pmem=1)
        self.assertEqual({'d0': self.instance.uuid}, self.host.held())

    def test_frees_nothing_in_doubt_until_the_store_has_said(self):
        first, second = self.held_for_rows()
        self.host.store.lose_answer()
        self.assertRaises(exception.OutcomeUnknown, self.rows.write, Changes(delete=(first, second)))
        self.rows.let_go(self.instance.uuid)
        self.assertEqual({'d0': HELD, 'd1': HELD, 'd2': FREE}, self.host.states())
        [doubt] = self.rows.doubts
        self.assertTrue(self.rows.settle(doubt))
        self.rows.let_go(self.instance.uuid)
        self.assertEqual({'d0': FREE, 'd1': FREE, 'd2': FREE}, self.host.states())

    def test_the_doubt_of_another_instance_keeps_nothing(self):
        records, other = self.held_for_rows(), Instance()
        self.host.store.lose_answer()
        self.assertRaises(exception.OutcomeUnknown, self.host.claim, other, pmem=1)
        self.delete(*records)
        self.rows.let_go(self.instance.uuid)
        self.assertEqual(({'d2': other.uuid}, 2), (self.host.held(), self.host.free()))

    def test_waits_for_who_works_on_the_instance(self):
        records = self.held_for_rows()
        self.delete(*records)
        with self.rows.working(self.instance.uuid):
            self.assertEqual([None], self.together(lambda: self.rows.let_go(self.instance.uuid)))
        self.assertEqual({'d0': HELD, 'd1': HELD, 'd2': FREE}, self.host.states())
        self.rows.let_go(self.instance.uuid)
        self.assertEqual(3, self.host.free())


class FollowTestCase(RowsTestCase):

    def theirs(self, number):
        """A row that nobody in this process wrote, of the device of this number."""
        other = Instance()
        claim = self.host.claim(other, pmem=3)
        record = self.host.records(other)[number]
        claim.abort()
        record = record._replace(instance_uuid=self.instance.uuid, claim_id='theirs')
        self.host.store.store.write(Changes(insert=(record,)))
        return record

    def test_holds_what_a_row_says_and_frees_it_when_the_row_is_gone(self):
        record = self.theirs(1)
        self.rows.follow(self.rows.all())
        self.assertEqual({'d1': self.instance.uuid}, self.host.held())
        self.delete(record)
        self.rows.follow(self.rows.all())
        self.assertEqual({}, self.host.held())

    def test_leaves_an_instance_alone_that_somebody_works_on(self):
        record = self.theirs(1)
        with self.rows.working(self.instance.uuid):
            self.assertEqual([None], self.together(lambda: self.rows.follow([record])))
        self.assertEqual({}, self.host.held())
        self.rows.follow([record])

    def test_reads_the_rows_of_a_strange_instance_again(self):
        record = self.theirs(1)
        self.delete(record)
        self.rows.follow([record])
        self.assertEqual({}, self.host.held())


class DoubtTestCase(RowsTestCase):

    def test_is_of_all_that_a_write_touches(self):
        first, second = self.held_for_rows()
        self.host.store.lose_commit()
        self.assertRaises(exception.OutcomeUnknown, self.rows.write, Changes(delete=(first, second)))
        [doubt] = self.rows.doubts
        self.assertEqual((self.instance.uuid, (first.key, second.key), False),
                         (doubt.instance_uuid, doubt.changes.keys, doubt.undo))
        self.assertEqual(([doubt], []), (self.rows.doubts_of(self.instance.uuid), self.rows.doubts_of('other')))
        self.assertFalse(self.rows.settle(doubt))
        self.assertEqual(((), 'claimed'), (self.rows.doubts, self.host.states()['d0']))

    def test_of_a_write_of_no_rows_there_is_none(self):
        self.host.store.lose_commit()
        self.assertRaises(exception.OutcomeUnknown, self.rows.write, Changes())
        self.assertEqual((), self.rows.doubts)

    def test_of_a_write_that_was_refused_there_is_none(self):
        records = self.held_for_rows()
        self.host.store.before('write', exception.StoreUnavailable('store', 'gone'))
        self.assertRaises(exception.StoreUnavailable, self.rows.write, Changes(delete=tuple(records)))
        self.assertEqual(((), 2), (self.rows.doubts, len(self.host.held())))

    def test_is_settled_once_and_the_store_is_asked_once(self):
        self.host.store.lose_answer()
        self.assertRaises(exception.OutcomeUnknown, self.host.claim, self.instance, pmem=1)
        [doubt] = self.rows.doubts
        self.assertEqual([True, False], [self.rows.settle(doubt), self.rows.settle(doubt)])
        self.assertEqual(1, self.host.store.calls['settle'])

    def test_without_an_answer_it_goes_on(self):
        self.host.store.lose_answer()
        self.assertRaises(exception.OutcomeUnknown, self.host.claim, self.instance, pmem=1)
        self.host.store.before('settle', exception.StoreUnavailable('store', 'gone'))
        [doubt] = self.rows.doubts
        self.assertRaises(exception.StoreUnavailable, self.rows.settle, doubt)
        self.assertEqual((doubt,), self.rows.doubts)

    def test_once_it_is_settled_rows_alone_say_what_is_held(self):
        self.host.store.lose_answer()
        self.assertRaises(exception.OutcomeUnknown, self.host.claim, self.instance, pmem=1)
        self.delete(*self.host.records())
        self.rows.let_go(self.instance.uuid)
        self.assertEqual({'d0': self.instance.uuid}, self.host.held())
        self.assertFalse(self.rows.settle(*self.rows.doubts))
        self.rows.let_go(self.instance.uuid)
        self.assertEqual({}, self.host.held())

    def test_every_commit_in_doubt_has_a_number_of_its_own(self):
        instances = [Instance() for _ in range(3)]
        for instance in instances:
            self.host.store.lose_answer()
            self.assertRaises(exception.OutcomeUnknown, self.host.claim, instance, pmem=1)
        self.assertEqual([one.uuid for one in instances], [doubt.instance_uuid for doubt in self.rows.doubts])
