"""What becomes of the rows of an instance that moves: a table of situations."""

import types
from typing import Any
import uuid

from devicetrack import exception
from devicetrack.engine import migrations
from devicetrack.objects.values import Record
from devicetrack.tests import base

M = '00000000-0000-4000-8000-000000000001'
NEWER = '00000000-0000-4000-8000-000000000002'
INSTANCE = '00000000-0000-4000-8000-00000000000a'
NODE = migrations.Endpoint('here', 'here')

AWAY = (('here', 'here'), ('there', 'there'))
COMES = (('there', 'there'), ('here', 'here'))
NOWHERE = ((None, None), (None, None))
WITHIN = (('here', 'here'), ('here', 'here'))
BEYOND = (('there', 'there'), ('far', 'far'))


def row(identifier, role, state='active', migration=M):
    return Record('host', 'vpmem', identifier, INSTANCE, migration, role, state, 0, 'claim', 1, 'provider', 'CLASS',
                  None, None, '{}', 0)


def move(status, ends, uuid=M, number=1):
    return migrations.Move(uuid, number, status, INSTANCE, *ends)


OLD, NEW, ARRIVED = row('o', 'old'), row('n', 'incoming', 'claimed'), row('n', 'current')
AT_REST, LEAVING = row('o', 'current', migration=None), row('o', 'old', 'releasing')


class SettleTestCase(base.TestCase):
    """What is left out of the expectation stays as it is."""

    scenarios = base.table(
        # name, rows, migrations, guest's devices (None: no domain), running, state, expected
        ('pending, both ends here', (OLD, NEW), [move('migrating', WITHIN)], 'o', True, 'here', {}),
        ('pending, the new guest runs', (OLD, NEW), [move('post-migrating', WITHIN)], 'n', True, 'here',
         {'arrive': (NEW,)}),
        ('pending, the new guest waits to arrive', (NEW,), [move('running', COMES)], 'n', False, 'elsewhere', {}),
        ('pending, the guest arrived', (NEW,), [move('running', COMES)], 'n', True, 'elsewhere', {'arrive': (NEW,)}),
        ('nobody knows the migration', (OLD, NEW), [], None, False, 'here', {}),
        ('the service does not answer', (OLD, NEW), None, None, False, None, {}),
        ('a status that nobody knows', (OLD, NEW), [move('mended', WITHIN)], None, False, 'here', {}),
        ('done here, the guest has left the old', (OLD, ARRIVED), [move('confirmed', WITHIN)], 'n', True, 'here',
         {'settle': (ARRIVED,), 'give': (OLD,), 'over': True}),
        ('done here, a definition names the old', (OLD, ARRIVED), [move('confirmed', WITHIN)], 'no', True, 'here',
         {'settle': (ARRIVED,)}),
        ('done here, the guest is off', (OLD, ARRIVED), [move('confirmed', WITHIN)], 'n', False, 'here',
         {'settle': (ARRIVED,), 'give': (OLD,), 'over': True}),
        ('done here, but the guest was started again on the old', (AT_REST, NEW), [move('confirmed', WITHIN)], 'o',
         True, 'here', {'give': (NEW,), 'over': True}),
        ('the same, it is off, and its definition is gone', (AT_REST, NEW), [move('confirmed', WITHIN)], None, False,
         'here', {'give': (NEW,), 'over': True}),
        ('the same, it is defined on the new', (AT_REST, NEW), [move('confirmed', WITHIN)], 'n', False, 'here', {}),
        ('the same, nobody knows the guests', (AT_REST, NEW), [move('confirmed', WITHIN)], '?', False, 'here', {}),
        ('pending, started again on the old', (AT_REST, NEW), [move('finished', WITHIN)], 'o', True, 'here', {}),
        ('done, this was the source', (OLD,), [move('completed', AWAY)], None, False, 'elsewhere',
         {'give': (OLD,), 'over': True}),
        ('done, this was the source, the service says nothing more', (OLD,), [move('completed', AWAY)], None, False,
         None, {'give': (OLD,), 'over': True}),
        ('done, this was the source, the guest is there', (OLD,), [move('completed', AWAY)], 'o', False, 'elsewhere',
         {}),
        ('done, this was the source, and its domain is there without it', (OLD,), [move('completed', AWAY)], 'x', False,
         'elsewhere', {}),
        ('done, this was the source, and it is here', (OLD,), [move('completed', AWAY)], None, False, 'here', {}),
        ('done, this was the source, nobody knows the guests', (OLD,), [move('completed', AWAY)], '?', False,
         'elsewhere', {}),
        ('done, both of two that left', (OLD, row('m', 'old', migration=NEWER)),
         [move('completed', AWAY), move('completed', AWAY, NEWER, 2)], None, False, 'elsewhere',
         {'give': (OLD, row('m', 'old', migration=NEWER)), 'over': True}),
        ('done, this was the destination', (ARRIVED,), [move('completed', COMES)], 'n', True, 'here',
         {'settle': (ARRIVED,), 'over': True}),
        ('done, this was the destination, and nobody said that the guest arrived', (NEW,), [move('completed', COMES)],
         'n', True, 'here', {'settle': (NEW,), 'over': True}),
        ('done, both of two', (ARRIVED, row('m', 'current', migration=NEWER)),
         [move('completed', COMES), move('completed', COMES, NEWER, 2)], 'nm', True, 'here',
         {'settle': (ARRIVED, row('m', 'current', migration=NEWER)), 'over': True}),
        ('undone, both of two', (NEW, row('m', 'incoming', 'claimed', NEWER)),
         [move('failed', COMES), move('failed', COMES, NEWER, 2)], None, False, 'elsewhere',
         {'give': (NEW, row('m', 'incoming', 'claimed', NEWER)), 'over': True}),
        ('undone, both of two, and this was the source', (OLD, row('m', 'old', migration=NEWER)),
         [move('failed', AWAY), move('failed', AWAY, NEWER, 2)], None, False, 'here',
         {'settle': (OLD, row('m', 'old', migration=NEWER)), 'over': True}),
        ('pending, the guest arrived by two', (NEW, row('m', 'incoming', 'claimed', NEWER)),
         [move('running', COMES), move('running', COMES, NEWER, 2)], 'nm', True, 'elsewhere',
         {'arrive': (NEW, row('m', 'incoming', 'claimed', NEWER))}),
        ('done, this was the destination and the guest is lost', (NEW,), [move('completed', COMES)], None, False,
         'here', {'settle': (NEW,), 'over': True}),
        ('done elsewhere, and this destination was given up before', (NEW,), [move('completed', BEYOND)], None, False,
         'elsewhere', {'give': (NEW,), 'over': True}),
        ('the same, the service says nothing more', (NEW,), [move('completed', BEYOND)], None, False, None,
         {'give': (NEW,), 'over': True}),
        ('the same, and a definition names it', (NEW,), [move('completed', BEYOND)], 'n', False, 'elsewhere', {}),
        ('the same, nobody knows the guests', (NEW,), [move('completed', BEYOND)], '?', False, 'elsewhere', {}),
        ('the same, and the guest runs here', (NEW,), [move('completed', BEYOND)], 'n', True, 'elsewhere',
         {'arrive': (NEW,)}),
        ('the same, and the instance is here: the host has another name now', (NEW,), [move('completed', BEYOND)],
         None, False, 'here', {'settle': (NEW,), 'over': True}),
        ('done elsewhere, though the guest has been here', (ARRIVED,), [move('completed', BEYOND)], None, False,
         'elsewhere', {'settle': (ARRIVED,), 'over': True}),
        ('done elsewhere, and the source was its destination before', (OLD, NEW), [move('completed', AWAY)], 'o', False,
         'elsewhere', {'give': (NEW,)}),
        ('done, this was the destination, and the instance is not here', (NEW,), [move('completed', COMES)], None,
         False, 'elsewhere', {}),
        ('the same, and a definition names its device', (NEW,), [move('completed', COMES)], 'n', False, 'elsewhere',
         {}),
        ('the same, and the guest runs', (NEW,), [move('completed', COMES)], 'n', True, 'elsewhere',
         {'arrive': (NEW,)}),
        ('the same, since a newer one took it away', (NEW,),
         [move('completed', COMES), move('completed', AWAY, NEWER, 2)], None, False, 'elsewhere',
         {'settle': (NEW,), 'over': True}),
        ('undone here', (OLD, NEW), [move('reverted', WITHIN)], 'o', True, 'here',
         {'settle': (OLD,), 'give': (NEW,), 'over': True}),
        ('undone here, the definition names the new', (OLD, ARRIVED), [move('reverted', WITHIN)], 'n', False, 'here',
         {'settle': (OLD,), 'give': (ARRIVED,), 'over': True}),
        ('undone here, the guest runs on the new', (OLD, ARRIVED), [move('reverted', WITHIN)], 'n', True, 'here', {}),
        ('an error here, before the new guest', (OLD, NEW), [move('error', WITHIN)], 'o', False, 'here',
         {'settle': (OLD,), 'give': (NEW,), 'over': True}),
        ('an error here, after it', (OLD, NEW), [move('error', WITHIN)], 'n', False, 'here', {}),
        ('an error here, after it, and the guest is defined on the old', (OLD, ARRIVED), [move('error', WITHIN)], 'o',
         False, 'here', {'settle': (OLD,), 'give': (ARRIVED,), 'over': True}),
        ('an error here, after it, and the guest is defined anew just now', (OLD, ARRIVED), [move('error', WITHIN)],
         None, False, 'here', {}),
        ('an error here, and no guest was started since', (OLD, NEW), [move('error', WITHIN)], None, False, 'here',
         {'settle': (OLD,), 'give': (NEW,), 'over': True}),
        ('an error here, nobody knows the guests', (OLD, NEW), [move('error', WITHIN)], '?', False, 'here', {}),
        ('undone, this was the destination', (NEW,), [move('failed', COMES)], None, False, 'elsewhere',
         {'give': (NEW,), 'over': True}),
        ('undone, this was the destination, the service says nothing more', (NEW,), [move('cancelled', COMES)], None,
         False, None, {'give': (NEW,), 'over': True}),
        ('undone, this was the destination, and it is here', (NEW,), [move('reverted', COMES)], None, False, 'here',
         {}),
        ('undone, this was the destination, and it runs', (NEW,), [move('failed', COMES)], 'n', True, None,
         {'arrive': (NEW,)}),
        ('an error, and the instance is left here', (NEW,), [move('error', COMES)], None, False, 'here',
         {'settle': (NEW,), 'over': True}),
        ('undone, this was the source', (OLD,), [move('reverted', AWAY)], None, False, 'here',
         {'settle': (OLD,), 'over': True}),
        ('an error, and the instance is left there', (OLD,), [move('error', AWAY)], None, False, 'elsewhere', {}),
        ('undone, and the instance left later', (OLD,), [move('failed', AWAY)], None, False, 'elsewhere',
         {'settle': (OLD,), 'over': True}),
        ('the same, and a guest of it is here', (OLD,), [move('failed', AWAY)], 'o', False, 'elsewhere', {}),
        ('the same, nobody knows the guests', (OLD,), [move('failed', AWAY)], '?', False, 'elsewhere', {}),
        ('a newer one took its place', (NEW, row('m', 'incoming', 'claimed', NEWER)),
         [move('pre-migrating', COMES), move('pre-migrating', COMES, NEWER, 2)], None, False, 'elsewhere',
         {'give': (NEW,), 'failed': (M,)}),
        ('a newer one elsewhere took its place', (NEW,),
         [move('pre-migrating', COMES), move('pre-migrating', (('there', None), ('third', None)), NEWER, 2)], None,
         False, 'elsewhere', {'give': (NEW,), 'failed': (M,), 'over': True}),
        ('a newer one elsewhere took its place, and nobody knows whether a guest is here', (NEW,),
         [move('pre-migrating', COMES), move('pre-migrating', (('there', None), ('third', None)), NEWER, 2)], '?',
         False, 'elsewhere', {}),
        ('undone here, and nobody knows what the guest has', (OLD, ARRIVED), [move('failed', WITHIN)], '?', False,
         'here', {}),
        ('done here, and nobody knows what the guest has', (OLD, ARRIVED), [move('confirmed', WITHIN)], '?', False,
         'here', {'settle': (ARRIVED,)}),
        ('nobody knows which is newer', (NEW, row('m', 'incoming', 'claimed', NEWER)),
         [move('pre-migrating', COMES, number=None), move('pre-migrating', COMES, NEWER, 2)], None, False, 'elsewhere',
         {}),
        ('it left and nobody said so here', (AT_REST,), [move('completed', AWAY)], None, False, 'elsewhere',
         {'leave': ((AT_REST, M),)}),
        ('it left with two, one of them without a number', (AT_REST,),
         [move('completed', AWAY, number=None), move('completed', AWAY, NEWER, 2)], None, False, 'elsewhere',
         {'leave': ((AT_REST, NEWER),)}),
        ('it is leaving, and comes back with a newer one', (OLD, row('m', 'incoming', 'claimed', NEWER)),
         [move('migrating', AWAY), move('pre-migrating', COMES, NEWER, 2)], None, False, 'elsewhere', {}),
        ('it left, and the service tells of no migrations', (AT_REST,), None, None, False, 'elsewhere', {}),
        ('it came here, and is elsewhere', (AT_REST,), [move('completed', COMES)], None, False, 'elsewhere', {}),
        ('it moved between others', (AT_REST,), [move('completed', (('there', 'there'), ('third', 'third')))], None,
         False, 'elsewhere', {}),
        ('it left with a newer one than what failed to here', (AT_REST, NEW),
         [move('failed', COMES), move('completed', AWAY, NEWER, 2)], None, False, 'elsewhere',
         {'give': (NEW,), 'leave': ((AT_REST, NEWER),)}),
        ('it moved within this host and left nothing', (AT_REST,), [move('completed', WITHIN)], None, False,
         'elsewhere', {}),
        ('it left, by the first migration that has a number', (AT_REST,),
         [move('completed', AWAY, number=None), move('completed', AWAY, NEWER, 1)], None, False, 'elsewhere',
         {'leave': ((AT_REST, NEWER),)}),
        ('another instance left', (AT_REST,), [move('completed', AWAY)._replace(instance_uuid='another')], None, False,
         'elsewhere', {}),
        ('it left and the guest runs here', (AT_REST,), [move('completed', AWAY)], 'o', True, 'elsewhere', {}),
        ('it left long ago and is here again', (AT_REST,), [move('completed', AWAY)], None, False, 'here', {}),
        ('it left with a newer one', (OLD,), [move('error', AWAY), move('confirmed', AWAY, NEWER, 2)], None, False,
         'elsewhere', {'leave': ((OLD, NEWER),)}),
        ('it left with a newer one, and the older was undone', (OLD,),
         [move('failed', AWAY), move('confirmed', AWAY, NEWER, 2)], None, False, 'elsewhere',
         {'leave': ((OLD, NEWER),)}),
        ('it left with the one that is done, and neither has a number', (OLD,),
         [move('error', AWAY, number=None), move('confirmed', AWAY, NEWER, None)], None, False, 'elsewhere',
         {'leave': ((OLD, NEWER),)}),
        ('it left long ago, came back, and a newer one was undone', (row('o', 'old', migration=NEWER),),
         [move('confirmed', AWAY), move('reverted', AWAY, NEWER, 2)], None, False, 'elsewhere',
         {'settle': (row('o', 'old', migration=NEWER),), 'over': True}),
        ('it left long ago, came back, and a newer one that left nothing was undone', (AT_REST,),
         [move('confirmed', AWAY), move('reverted', AWAY, NEWER, 2)], None, False, 'elsewhere', {}),
        ('it left with a newer one, and the older is not over', (OLD,),
         [move('migrating', AWAY), move('confirmed', AWAY, NEWER, 2)], None, False, 'elsewhere', {}),
        ('it left with a newer one that is not over', (OLD,), [move('error', AWAY), move('finished', AWAY, NEWER, 2)],
         None, False, 'elsewhere', {'leave': ((OLD, NEWER),)}),
        ('a migration to here failed, and a newer one took it away', (NEW,),
         [move('failed', COMES), move('completed', AWAY, NEWER, 2)], None, False, 'elsewhere',
         {'give': (NEW,), 'over': True}),
        ('done here, and the service names no hosts', (OLD, ARRIVED), [move('confirmed', NOWHERE)], 'n', True, 'here',
         {'settle': (ARRIVED,), 'give': (OLD,), 'over': True}),
        ('what goes back is left alone', (LEAVING,), [move('reverted', AWAY)], None, False, 'here', {}),
        names=('rows', 'known', 'guest', 'running', 'state', 'expected'))

    def test_settle(self):
        named = {record.key for record in self.rows if record.identifier in (self.guest or '')}
        there = {None: False, '?': None}.get(self.guest, True)
        known = None if self.known is None else {one.uuid: one for one in self.known}
        settled = migrations.settle(migrations.Situation(NODE, self.rows, known, there, self.running, named, named,
                                                         self.state))
        self.assertEqual(migrations.Settlement(**self.expected), settled)
        changed = [*settled.arrive, *settled.settle, *settled.give, *(record for record, _by in settled.leave)]
        self.assertEqual(len(changed), len(set(changed)))           # one transaction changes each once


class LeavesWithTestCase(base.TestCase):
    """Which devices a migration away from here takes an instance off."""

    scenarios = base.table(
        ('at rest', AT_REST, (), True),
        ('left already', OLD, (), True),
        ('left, and another migration brought the instance', OLD, (row('m', 'current', migration=NEWER),), True),
        ('left for others of this host', OLD, (ARRIVED,), False),
        ('what a migration brought it to', ARRIVED, (), False),
        names=('record', 'others', 'expected'))

    def test_it(self):
        self.assertEqual(self.expected, migrations.leaves_with(self.record, (self.record, *self.others)))


class StatusTestCase(base.TestCase):

    def test_what_each_status_means(self):
        expected = {
            migrations.PENDING: ('queued', 'accepted', 'preparing', 'pre-migrating', 'running', 'migrating',
                            'post-migrating', 'finished', 'confirming', 'reverting'),
            migrations.DONE: ('completed', 'confirmed', 'done'),
            migrations.UNDONE: ('reverted', 'cancelled', 'failed', 'error')}
        for outcome, statuses in expected.items():
            self.assertEqual([outcome] * len(statuses), list(map(migrations.outcome_of, statuses)))

    def test_an_unknown_status_is_not_over(self):
        for status in ('mended', '', None):
            self.assertEqual(migrations.UNKNOWN, migrations.outcome_of(status))

    def test_completed_undone_or_neither(self):
        self.assertEqual([True, True, False, False, None, None, None, None], list(map(migrations.is_completed, (
            'confirmed', 'done', 'reverted', 'cancelled', 'error', 'finished', 'mended', None))))

    def test_an_end_is_here_by_its_host_and_by_its_node_if_the_service_says_it(self):
        node = migrations.Endpoint('here', 'n1')
        self.assertEqual([True, True, False, False], [
            node.is_at(end) for end in (('here', 'n1'), ('here', None), ('here', 'n2'), (None, None))])

    def test_a_migration_is_read_as_the_service_has_it(self):
        class Migration:
            uuid, id, status, source_compute, dest_compute = M, 7, 'running', 'there', 'here'

        found = migrations.Move.of(Migration())
        self.assertEqual((7, migrations.PENDING, False, True),
                         (found.number, found.outcome, NODE.is_at(found.source), NODE.is_at(found.destination)))

    def test_whatever_form_its_uuids_have(self):
        for form in (str, str.upper, uuid.UUID):
            found = migrations.Move.of(types.SimpleNamespace(uuid=form(NEWER), instance_uuid=form(INSTANCE)))
            self.assertEqual((NEWER, INSTANCE), (found.uuid, found.instance_uuid))

    def test_a_part_that_means_nothing_is_no_part_that_is_unknown(self):
        """It may be the part by which an instance is known to move."""
        odd: list[tuple[str, Any]] = [
            ('uuid', 7), ('uuid', None), ('instance_uuid', 7), ('instance_uuid', 'x'), ('status', []),
            ('source_compute', b'here'), ('dest_node', {}), ('id', '7'), ('id', 7.0), ('id', True)]
        for name, value in odd:
            error = self.assertRaises(exception.BadRequest, migrations.Move.of,
                                      types.SimpleNamespace(**{'uuid': M, name: value}))
            self.assertEqual(f'migration.{name}', error.where)


class TakenAwayTestCase(base.TestCase):
    """Whether an instance that is elsewhere may be there because of a migration."""

    scenarios = base.table(
        ('completed, from here', 'completed', AWAY, True),
        ('completed, to here', 'completed', COMES, False),
        ('completed, on this host', 'completed', WITHIN, False),
        ('completed, from one other host to another', 'completed', BEYOND, False),
        ('an error from here: nobody knows', 'error', AWAY, True),
        ('an error from one other host to another', 'error', BEYOND, False),
        ('undone, from here', 'reverted', AWAY, False),
        ('completed, and the service does not say from where', 'completed', NOWHERE, True),
        ('undone, and the service does not say from where', 'reverted', NOWHERE, False),
        ('under way, whichever ends it names', 'migrating', BEYOND, True),
        ('a status that nobody knows', 'mended', BEYOND, True),
        names=('status', 'ends', 'expected'))

    def test_by_what_the_service_says_of_it(self):
        self.assertEqual(self.expected, move(self.status, self.ends).may_have_taken_away_from(NODE))
