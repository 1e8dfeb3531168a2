"""What one look at a host makes of its ledger, and what several looks withhold and admit."""

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.engine import ledger as ledgers
from devicetrack.engine import opening
from devicetrack.engine import selection
from devicetrack.engine import snapshot
from devicetrack.engine.views import Views
from devicetrack.engine.withholding import Cause
from devicetrack.engine.withholding import Target
from devicetrack.objects import values
from devicetrack.tests import base
from devicetrack.tests.unit.engine import hosts
from devicetrack.tests.unit.engine.hosts import capacity
from devicetrack.tests.unit.engine.hosts import mdev
from devicetrack.tests.unit.engine.hosts import namespace
from devicetrack.tests.unit.engine.hosts import PMEM
from devicetrack.tests.unit.engine.hosts import provider
from devicetrack.tests.unit.engine.hosts import VGPU
from devicetrack.tests.unit.engine.hosts import wants

A, B = namespace('a'), namespace('b')
BY_OPERATOR, BY_AUDIT = Cause(1, 'firmware', vocabulary.BY_OPERATOR), Cause(1, 'seen', vocabulary.BY_AUDIT)
BY_HOST = Cause(1, 'hot', vocabulary.BY_HOST)


def look(*parts, rows=(), named=(), unknown=False, known=('vpmem', 'mdev')):
    """Views of a host on which one domain names these devices; with ``unknown`` another could not be read."""
    uses = tuple(values.Use(key.kind, key.identifier, key.identifier, 'domain', True, True, True) for key in named)
    usage = values.Usage(uses, frozenset(('domain',)), frozenset(('domain',)),
                         (values.Unknown('domain', 'garbled'),) if unknown else ())
    return Views(usage, hosts.inventory(*parts, known=known), tuple(rows), None)


def open_ledger(views, marks=None):
    now = opening.first_snapshot(vocabulary.PACK, provider, views, marks or {})
    return hosts.Ledger(vocabulary.PACK, provider, now)


def withheld(ledger):
    return {key.identifier: set(reasons) for key, reasons in ledger.reasons().items()}


class RowsTestCase(base.TestCase):

    def test_each_row_holds_its_device(self):
        rows = [hosts.row(A, 'i'), hosts.row(B, 'k')]
        ledger = open_ledger(look(A, B, namespace('c'), rows=rows))
        self.assertEqual([], ledger.not_held(rows))
        self.assertEqual([[True]] * 2, [hosts.from_rows(ledger, uuid) for uuid in 'ik'])
        self.assertEqual(['c'], hosts.taken(ledger.take('new', wants((PMEM, 1)))))

    def test_rows_on_their_way_back_are_releasing(self):
        ledger = open_ledger(look(A, B, rows=[hosts.row(A, 'i', vocabulary.RELEASING), hosts.row(B, 'i')]))
        self.assertEqual([selection.RELEASING, selection.HELD],
                         [device.state for device in hosts.held(ledger, 'i')])
        [pool] = ledger.pools()
        self.assertEqual((1, 1, 0), (pool.held, pool.releasing, pool.room))

    def test_a_device_that_is_away_is_held_and_gone(self):
        ledger = open_ledger(look(A, rows=[hosts.row(B, 'i')]))
        self.assertEqual({snapshot.GONE}, ledger.device(B.key).withheld)
        self.assertEqual('i', ledger.device(B.key).instance_uuid)

    def test_a_row_of_a_device_that_is_away_counts_where_its_parent_counts_now(self):
        for part in (mdev('there', 'p0'), capacity('p0', 3)):
            row = hosts.row(mdev('away', 'p0'), 'i')._replace(provider_uuid=provider('before'))
            ledger = open_ledger(look(part, rows=[row]))
            self.assertEqual(provider('p0'), ledger.device(row.key).provider_uuid)
            self.assertEqual({(VGPU, provider('p0'))}, ledger.counted_classes())

    def test_a_row_whose_parent_is_away_counts_where_its_claim_did(self):
        row = hosts.row(mdev('away', 'p0'), 'i')._replace(provider_uuid=provider('before'))
        self.assertEqual(provider('before'), open_ledger(look(A, rows=[row])).device(row.key).provider_uuid)

    def test_a_device_that_is_there_counts_where_the_host_says(self):
        row = hosts.row(A, 'i')._replace(provider_uuid=provider('before'))
        self.assertEqual(provider(''), open_ledger(look(A, rows=[row])).device(A.key).provider_uuid)

    def test_a_device_that_was_to_be_made_is_to_be_made(self):
        row = hosts.row(mdev('m', 'p0'), 'i')
        ledger = open_ledger(look(capacity('p0', 3), rows=[row]))
        self.assertTrue(ledger.device(row.key).unborn)
        self.assertEqual([2], [pool.room for pool in ledger.pools()])


class MarksTestCase(base.TestCase):
    """What the store says is withheld."""

    scenarios = base.table(
        ('cordoned', {Target.of(A.key): {'cordoned': BY_OPERATOR}}, {'a': {'cordoned'}}),
        ('cordoned and away', {Target.of(namespace('c').key): {'cordoned': BY_OPERATOR}}, {}),
        ('its parent is cordoned', {Target.named('vpmem', 'region0', True): {'cordoned': BY_OPERATOR}},
         {'a': {'cordoned'}, 'b': {'cordoned'}}),
        ('foreign before', {Target.of(A.key): {'foreign': BY_AUDIT}}, {'a': {'foreign'}}),
        ('in doubt before, and held', {Target.of(B.key): {'in doubt': BY_AUDIT}}, {}),
        ('unhealthy before, and the host says it is well', {Target.of(A.key): {'unhealthy': BY_HOST}}, {}),
        ('two reasons', {Target.of(A.key): {'cordoned': BY_OPERATOR, 'foreign': BY_AUDIT}},
         {'a': {'cordoned', 'foreign'}}),
        names=('marks', 'expected'))

    def test_withholds(self):
        # A domain could not be read, so that nothing is admitted again; what is free is in doubt for it.
        views = look(A, B, rows=[hosts.row(B, 'i')], unknown=True)
        found = {name: reasons - {vocabulary.IN_DOUBT} for name, reasons in
                 withheld(open_ledger(views, self.marks)).items()}
        self.assertEqual(self.expected, {name: reasons for name, reasons in found.items() if reasons})

    def test_what_an_operator_said_stands_until_it_is_taken_back(self):
        ledger = open_ledger(look(A, B), self.marks)
        for target, causes in self.marks.items():
            for reason, cause in causes.items():
                if cause.stands:
                    ledger.admit(values.DeviceKey(target.kind, target.name), reason)
        self.assertEqual({name: {vocabulary.CORDONED} for name, reasons in self.expected.items()
                          if vocabulary.CORDONED in reasons}, withheld(ledger))
        for target, causes in self.marks.items():
            for reason in causes:
                ledger.now = ledgers.stand_down(ledger.now, target, reason)
        self.assertEqual({}, withheld(ledger))


class UnreadKindTestCase(base.TestCase):

    def test_what_was_unhealthy_is_withheld_until_it_is_read_again(self):
        for known, expected in ((('vpmem', 'mdev'), {snapshot.GONE}), (('mdev',), {snapshot.GONE, 'unhealthy'})):
            ledger = open_ledger(look(rows=[hosts.row(B, 'i')], known=known),
                                 {Target.of(B.key): {'unhealthy': BY_HOST}})
            self.assertEqual({'b': expected}, withheld(ledger))


class SightTestCase(base.TestCase):
    """What looks show of the device ``a``, which is free, and what becomes of it."""

    WELL: dict[str, object] = {}
    USED, DARK = {'named': [A.key]}, {'unknown': True}

    scenarios = base.table(
        ('nobody names it', (), [WELL], ()),
        ('a domain names it', (), [USED], ('foreign',)),
        ('every look shows it', (), [USED, USED], ('foreign',)),
        ('one look shows it and another does not', (), [USED, WELL], ()),
        ('one look shows it and the other cannot tell', (), [USED, DARK], ('foreign',)),
        ('no look can tell', (), [DARK, DARK], ('in doubt',)),
        ('one look cannot tell', (), [DARK, WELL], ()),
        ('foreign, and nobody names it any more', ('foreign',), [WELL, WELL], ()),
        ('foreign, and a look shows it', ('foreign',), [WELL, USED], ('foreign',)),
        ('foreign, and a look cannot tell', ('foreign',), [WELL, DARK], ('foreign',)),
        ('in doubt, and nobody names it', ('in doubt',), [WELL], ()),
        ('in doubt, and it is certainly foreign', ('in doubt',), [USED, USED], ('foreign',)),
        ('in doubt, and one look shows it', ('in doubt',), [WELL, USED], ('in doubt',)),
        ('in doubt, and a look cannot tell', ('in doubt',), [WELL, DARK], ('in doubt',)),
        names=('before', 'looks', 'expected'))

    def setUp(self):
        super().setUp()
        self.ledger = hosts.ledger(A, B)
        self.ledger.take('i', wants((PMEM, 2)))
        self.ledger.free([A.key])
        for reason in self.before:
            self.ledger.withhold(A.key, reason)

    def test_of_a_free_device(self):
        self.ledger.withhold_by_sight([look(A, B, rows=[hosts.row(B, 'i')], **one) for one in self.looks])
        self.assertEqual({'a': set(self.expected)} if self.expected else {}, withheld(self.ledger))
        if self.expected:
            self.assertRaises(exception.NoFit, self.ledger.take, 'k', wants((PMEM, 1)))
        else:
            self.ledger.take('k', wants((PMEM, 1)))

    def test_what_an_operator_said_goes_on(self):
        for reason in self.before:
            self.ledger.stand(A.key, reason)
        self.ledger.withhold_by_sight([look(A, B, rows=[hosts.row(B, 'i')], **one) for one in self.looks])
        self.assertEqual({*self.before, *self.expected}, withheld(self.ledger).get('a', set()))


class DoubtTestCase(base.TestCase):

    def test_a_device_with_a_row_stays_in_doubt_until_it_is_held_for_the_owner(self):
        ledger, views = hosts.ledger(A), look(A, rows=[hosts.row(A, 'i')])
        ledger.withhold(A.key, vocabulary.IN_DOUBT)
        ledger.withhold_by_sight([views])
        self.assertEqual({'a': {'in doubt'}}, withheld(ledger))
        ledger.hold(views.records)
        ledger.withhold_by_sight([views])
        self.assertEqual({}, withheld(ledger))

    def test_a_domain_that_names_a_device_with_its_row_withholds_nothing(self):
        self.assertEqual({}, withheld(open_ledger(look(A, rows=[hosts.row(A, 'i')], named=[A.key]))))
