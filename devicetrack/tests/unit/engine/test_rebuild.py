"""What a lost store gets back from the guests, and what nobody gets."""

from devicetrack.engine import rebuild
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Usage
from devicetrack.tests import base
from devicetrack.tests.unit.engine import hosts
from devicetrack.tests.unit.engine.views import guest
from devicetrack.tests.unit.engine.views import pmem
from devicetrack.tests.unit.engine.views import recorded
from devicetrack.tests.unit.engine.views import usage
from devicetrack.tests.unit.engine.views import use

A, B = pmem('a'), pmem('b')
OFF = {'running': False, 'live': False}
ARRIVED = {'role': 'incoming', 'migration': 'M'}
LEFT = {'beside': True, 'role': 'old', 'migration': 'M'}
# A guest that was resized on its host from a to b.
RESIZED = guest(recorded(B, **ARRIVED), recorded(A, **LEFT))
ON_B = usage(use('i', identifier='b'))
OLD_A, NEW_B = ('a', 'i', 'old', 'active', 'M'), ('b', 'i', 'current', 'active', 'M')
NEW_A = ('a', 'i', 'current', 'active', None)
AS_RECORDED = hosts.row(A, 'i', 'active')._replace(claim_id='claim')


def arriving(seen, *domains):
    return Usage(seen.uses, seen.domains, seen.running, seen.unknown, frozenset(domains))


class RebuildTestCase(base.TestCase):

    scenarios = base.table(
        ('nothing', [], usage(), [], [], []),
        ('a guest that runs', [guest(recorded(A))], usage(use('i')), [], [NEW_A], []),
        ('a guest that is off', [guest(recorded(A))], usage(use('i', **OFF)), [], [NEW_A], []),
        ('its definition lost the device', [guest(recorded(A))], usage(domains=['i']), [], [NEW_A], []),
        ('another domain names it too', [guest(recorded(A))], usage(use('i'), use('x')), [], [NEW_A], []),
        ('a resize on one host, the new guest runs', [RESIZED], ON_B, [], [OLD_A, NEW_B], []),
        ('a resize on one host, the new guest is off', [RESIZED], usage(use('i', identifier='b', **OFF)), [],
         [OLD_A, ('b', 'i', 'incoming', 'claimed', 'M')], []),
        ('a guest that waits to arrive', [guest(recorded(A, **ARRIVED))], arriving(usage(use('i')), 'i'), [],
         [('a', 'i', 'incoming', 'claimed', 'M')], []),
        ('a guest that went back to what it had', [guest(recorded(A, role='old', migration='M'), recorded(
            B, beside=True, role='current', migration='M'))], usage(use('i')), [], [OLD_A, NEW_B], []),
        ('what it left has another guest', [RESIZED, guest(recorded(A), instance='j')],
         usage(*ON_B.uses, use('j')), [], [('a', 'j', 'current', 'active', None), NEW_B], []),
        ('what it left is named by a domain that records nothing', [RESIZED], usage(*ON_B.uses, use('x')), [],
         [NEW_B], [('contested', 'a', 'i')]),
        ('what it left is recorded by another guest, which does not name it', [RESIZED, guest(
            recorded(A), instance='j')], ON_B, [], [NEW_B], [('contested', 'a', None)]),
        ('two record it and one names it', [guest(recorded(A)), guest(recorded(A), instance='j')], usage(use('j')), [],
         [('a', 'j', 'current', 'active', None)], []),
        ('two record and name it', [guest(recorded(A)), guest(recorded(A), instance='j')],
         usage(use('i'), use('j')), [], [], [('contested', 'a', None)]),
        ('two record it and none names it', [guest(recorded(A)), guest(recorded(A), instance='j')], usage(), [], [],
         [('contested', 'a', None)]),
        ('one records it and another names it', [guest(recorded(A))], usage(use('x')), [], [],
         [('contested', 'a', 'i')]),
        ('a domain of somebody else', [], usage(use('x')), [], [], [('foreign', 'a', None)]),
        ('another kind takes what a guest records for its own', [guest(recorded(A))], usage(
            use('i'), use('i')._replace(kind='mdev', identifier='x')), [], [NEW_A], []),
        ('and another domain names that too', [guest(recorded(A))], usage(*[
            one._replace(kind='mdev', identifier='x') for one in (use('i'), use('x'))], use('i')), [], [NEW_A],
         [('foreign', 'x', None)]),
        ('it has its row', [guest(recorded(A))], usage(use('i')), [AS_RECORDED], [], [('present', 'a', 'i')]),
        ('it has a row of another', [guest(recorded(A))], usage(use('i')), [hosts.row(A, 'j', 'active')], [],
         [('differs', 'a', 'j')]),
        ('its row knows that the move is over', [guest(recorded(A, **ARRIVED))], usage(use('i')), [AS_RECORDED], [],
         [('differs', 'a', 'i')]),
        ('the store knows that what it left was given back', [RESIZED], ON_B, [hosts.row(B, 'i', 'active')], [],
         [('differs', 'b', 'i'), ('in doubt', 'a', 'i')]),
        ('a domain cannot be read', [RESIZED], usage(*ON_B.uses, unknown=['torn']), [], [NEW_B],
         [('in doubt', 'a', 'i')]),
        ('a record that makes no row', [guest(recorded(A, role='incoming'))], usage(use('i')), [], [],
         [('unreadable', 'a', 'i')]),
        ('details of a newer release', [guest(recorded(A, details='{}'))], usage(use('i')), [], [],
         [('unreadable', 'a', 'i')]),
        names=('guests', 'seen', 'rows', 'written', 'rest'))

    def rebuilt(self, *there):
        return rebuild.rebuild('host', self.guests, self.seen, hosts.inventory(*there), self.rows)

    def test_says_what_becomes_of_each_device(self):
        found = self.rebuilt()
        rows = sorted((row.identifier, row.instance_uuid, row.role, row.state, row.migration_uuid)
                      for row in (one.row for one in found if one.outcome == rebuild.WRITE) if row is not None)
        self.assertEqual(sorted(self.written), rows)
        self.assertEqual(self.rest, [(one.outcome, one.device.identifier, one.instance_uuid) for one in found
                                     if one.outcome != rebuild.WRITE])

    def test_what_the_host_has_beside_is_told(self):
        c = pmem('c')
        before, after = self.rebuilt(), self.rebuilt(c, A, B)
        told = {one.device for one in before}
        self.assertEqual(
            {one.key for one in (A, B, c) if one.key not in told},
            {one.device for one in after if one.outcome == rebuild.UNRECORDED})
        self.assertEqual(before, [one for one in after if one.outcome != rebuild.UNRECORDED])

    def test_the_order_of_the_views_does_not_count(self):
        turned = rebuild.rebuild('host', self.guests[::-1], self.seen._replace(uses=self.seen.uses[::-1]),
                                 hosts.inventory(), self.rows[::-1])
        self.assertEqual(self.rebuilt(), turned)


class RowTestCase(base.TestCase):

    def test_a_row_has_what_was_recorded(self):
        recorded_device = recorded(A, position=3)
        [rebuilt] = rebuild.rebuild('host', [guest(recorded_device)], usage(use('i')), hosts.inventory(), [])
        row = rebuilt.row
        assert row is not None
        self.assertEqual(DeviceKey('vpmem', 'a'), row.key)
        for field in ('resource_class', 'provider_uuid', 'parent', 'numa_node', 'position', 'claim_id', 'role',
                      'migration_uuid', 'details'):
            self.assertEqual(getattr(recorded_device, field), getattr(row, field), field)
        self.assertEqual(('host', 1, 0, True), (row.host_uuid, row.generation, row.created_at, row.was_realized))

    def test_a_device_that_nobody_may_have_is_not_told(self):
        there = hosts.inventory(A._replace(assignable=False))
        self.assertEqual([], rebuild.rebuild('host', [], usage(), there, []))

    def test_a_device_that_keeps_no_bytes_holds_nothing_that_an_instance_left(self):
        there = hosts.inventory(A)
        for byteless, outcome in (((), rebuild.UNRECORDED), (('vpmem',), rebuild.UNUSED)):
            [found] = rebuild.rebuild('host', [], usage(), there, [], byteless)
            self.assertEqual((outcome, DeviceKey('vpmem', 'a')), (found.outcome, found.device))
        self.assertIn(rebuild.UNUSED, rebuild.WELL)

    def test_guests_say_of_which_host_they_are(self):
        self.assertEqual({'h': 2, 'g': 1}, rebuild.hosts_of([
            guest(host='h'), guest(instance='j', host='h'), guest(instance='k', host='g')]))
