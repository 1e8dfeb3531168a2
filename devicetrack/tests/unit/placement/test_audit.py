"""What differs between placement and the record, and what of it is certain: named cases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from devicetrack import vocabulary
from devicetrack.objects.values import Leftover
from devicetrack.objects.values import Record
from devicetrack.objects.values import Unknown
from devicetrack.objects.values import Usage
from devicetrack.objects.values import Use
from devicetrack.placement import audit
from devicetrack.placement import tree
from devicetrack.placement import values
from devicetrack.placement.reporter import Report
from devicetrack.placement.values import ClassInventory
from devicetrack.placement.values import Consumer
from devicetrack.tests import base

VGPU = 'VGPU'
PMEM = 'CUSTOM_PMEM_NAMESPACE_4GB'
NAMES = {'root': 'node', 'a': 'node_a', 'b': 'node_b'}
ROOT = tree.ProviderState('root', 'node', None)


def row(provider: str, device: str = 'd0', role: str = vocabulary.CURRENT, migration: str | None = None,
        state: str = vocabulary.ACTIVE, resource_class: str = VGPU, instance: str = 'guest') -> Record:
    return Record('host', 'mdev', device, instance, migration, role, state, 0, 'claim', 1, provider, resource_class,
                  provider, None, '', 0)


def old(provider: str, device: str = 'd0', state: str = vocabulary.ACTIVE) -> Record:
    return row(provider, device, vocabulary.OLD, 'move', state)


def uses(*devices: str, instance: str = 'guest') -> Usage:
    return Usage(tuple(Use('mdev', device, '', instance, True, True, True) for device in devices),
                 frozenset([instance]), frozenset([instance]))


def holds(resources: Any, kind: str = values.INSTANCE) -> Consumer:
    return Consumer('', resources, 3, 'project', 'user', kind)


def views(records: Any = (), consumers: Mapping[str, Consumer] = {}, usage: Usage | None = None, notes: Any = (),
          layout: str = tree.NESTED, wanted: str | None = None, changes: Any = (), left: Any = (),
          complete: bool = True) -> audit.PlacementViews:
    return audit.PlacementViews(
        Report(ROOT, tuple(changes), tuple(left), {}, layout), wanted or layout, complete, NAMES,
        frozenset([VGPU, PMEM]), list(records), usage or uses('d0'), notes,
        {uuid: consumer._replace(uuid=uuid) for uuid, consumer in consumers.items()})


def found(seen: audit.PlacementViews) -> list[tuple[str | None, str, str | None]]:
    return [(one.consumer, one.kind, one.repair) for one in audit.compare(seen)]


MOVE = values.MIGRATION
CPU = {'VCPU': 2}


class TestConsumers(base.TestCase):

    scenarios = base.table(
        ('nothing', [], {}, []),
        ('as it should be', [row('a')], {'guest': holds({'a': {VGPU: 1}, 'root': CPU})}, []),
        ('of several classes', [row('a'), row('root', 'd1', resource_class=PMEM)],
         {'guest': holds({'a': {VGPU: 1}, 'root': {**CPU, PMEM: 1}})}, []),
        ('what is not ours is not looked at', [], {'other': holds({'root': CPU, 'elsewhere': {VGPU: 7}})}, []),
        ('a move on this host', [old('a'), row('b', 'd1', migration='move')],
         {'guest': holds({'b': {VGPU: 1}}), 'move': holds({'a': {VGPU: 1}}, MOVE)}, []),
        ('being deleted, and allocated still', [row('a', state=vocabulary.RELEASING)],
         {'guest': holds({'a': {VGPU: 1}})}, []),
        ('being deleted, and not allocated any more', [row('a', state=vocabulary.RELEASING)], {}, []),

        ('nobody knows it', [], {'other': holds({'a': {VGPU: 1}})}, [('other', audit.UNRECORDED, None)]),
        ('a guest without rows', [], {'guest': holds({'a': {VGPU: 1}})}, [('guest', audit.UNRECORDED, None)]),
        ('nothing allocated', [row('a')], {'guest': holds({'root': CPU})},
         [('guest', audit.UNALLOCATED, audit.ALLOCATE)]),
        ('no consumer, and so no project', [row('a')], {'guest': Consumer('', {}, None)},
         [('guest', audit.UNALLOCATED, None)]),
        ('one of two classes is not allocated', [row('a'), row('root', 'd1', resource_class=PMEM)],
         {'guest': holds({'a': {VGPU: 1}})}, [('guest', audit.UNALLOCATED, None)]),
        ('at another provider', [row('a')], {'guest': holds({'b': {VGPU: 1}})},
         [('guest', audit.WRONG_PROVIDER, audit.ALLOCATE)]),
        ('at the node, and the tree is nested', [row('a')], {'guest': holds({'root': {VGPU: 1}})},
         [('guest', audit.WRONG_PROVIDER, audit.ALLOCATE)]),
        ('too many', [row('a')], {'guest': holds({'a': {VGPU: 2}})}, [('guest', audit.WRONG_AMOUNT, audit.ALLOCATE)]),
        ('more than there is beside what leaves', [row('a'), row('b', 'd1', state=vocabulary.RELEASING)],
         {'guest': holds({'a': {VGPU: 1}, 'b': {VGPU: 2}})}, [('guest', audit.WRONG_AMOUNT, None)]),

        ('the guest has another device', [row('a', 'd9')], {'guest': holds({'b': {VGPU: 1}})},
         [('guest', audit.WRONG_PROVIDER, None)]),
        ('the guest has not started', [row('a', state=vocabulary.CLAIMED)], {'guest': holds({'b': {VGPU: 1}})},
         [('guest', audit.WRONG_PROVIDER, None)]),
        ('it moves', [row('a', migration='move')], {'guest': holds({'b': {VGPU: 1}})},
         [('guest', audit.WRONG_PROVIDER, None)]),
        ('a move of somebody has begun, by placement', [row('a')],
         {'guest': holds({'b': {VGPU: 1}}), 'move': holds({'b': {VGPU: 1}}, MOVE)},
         [('guest', audit.WRONG_PROVIDER, None), ('move', audit.LEFT_OVER_MIGRATION, None)]),
        ('a move of somebody may have begun', [row('a')],
         {'guest': holds({'b': {VGPU: 1}}), 'other': holds({'b': {VGPU: 1}}, values.UNTYPED)},
         [('guest', audit.WRONG_PROVIDER, None), ('other', audit.UNRECORDED, None)]),
        ('it is elsewhere, by placement', [row('a')], {'guest': holds({'elsewhere': {**CPU, VGPU: 1}})},
         [('guest', audit.UNALLOCATED, None)]),
        ('it is elsewhere too, by placement', [row('a')],
         {'guest': holds({'elsewhere': {**CPU, VGPU: 1}, 'root': CPU})}, [('guest', audit.UNALLOCATED, None)]),
        ('what a migration holds is never changed', [old('a')], {'move': holds({'b': {VGPU: 1}}, MOVE)},
         [('move', audit.WRONG_PROVIDER, None)]),
        names=('records', 'consumers', 'expected'))

    def test_nested(self) -> None:
        self.assertEqual(self.expected, found(views(self.records, self.consumers)))


CONFIRMED = Leftover('guest', 'move', vocabulary.CONFIRM)
REVERTED = Leftover('guest', 'move', vocabulary.REVERT)


def _after(repair: audit.PlacementRepair) -> list[tuple[str, Any]]:
    return [(change.after.uuid, change.after.resources) for change in repair.changes]


class TestNotes(base.TestCase):
    """What a migration holds that is confirmed by a note."""

    scenarios = base.table(
        ('and the source has no rows', [], {}, audit.REMOVE),
        ('and the instance has what it should have', [row('a')], {'guest': holds({'a': {VGPU: 1}})}, audit.REMOVE),
        ('and a row waits for it', [row('a', migration='move')], {'guest': holds({'a': {VGPU: 1}})}, None),
        ('and it is not all that the instance should have', [row('a'), row('a', 'd1')], {}, None),
        ('and it is of another provider than the rows', [row('a')], {}, None),
        names=('records', 'consumers', 'repair'))

    def test_goes_when_nothing_waits_for_it(self) -> None:
        seen = views(self.records, {**self.consumers, 'move': holds({'b': {VGPU: 1}, 'root': CPU}, MOVE)},
                     notes=[CONFIRMED])
        [mismatch] = [one for one in audit.compare(seen) if one.consumer == 'move']
        self.assertEqual((audit.LEFT_OVER_MIGRATION, self.repair), (mismatch.kind, mismatch.repair))
        if self.repair is not None:
            [repair] = audit.repairs(seen, [mismatch])
            self.assertEqual(([('move', {})], 'guest'), (_after(repair), repair.instance_uuid))

    def test_stays_unless_the_note_is_of_a_confirm(self) -> None:
        """The migration may hold what is to go back, and the rows look the same before and after the move."""
        for verb in (vocabulary.REVERT, None):
            seen = views([row('a')], {'guest': holds({'a': {VGPU: 1}}), 'move': holds({'b': {VGPU: 1}}, MOVE)},
                         notes=[CONFIRMED._replace(verb=verb)])
            self.assertEqual([('move', audit.LEFT_OVER_MIGRATION, None)], found(seen))

    def test_of_another_migration_changes_nothing(self) -> None:
        seen = views(consumers={'move': holds({'b': {VGPU: 1}}, MOVE)},
                     notes=[CONFIRMED._replace(migration_uuid='another')])
        self.assertEqual([('move', audit.LEFT_OVER_MIGRATION, None)], found(seen))


class TestReverted(base.TestCase):
    """What a migration still holds after its revert, by a note, for an instance that is back on its devices."""

    def views(self, **changes: Any) -> audit.PlacementViews:
        seen = {'records': [row('a')], 'notes': [REVERTED], 'consumers': {
            'guest': holds({'there': {VGPU: 1}, 'root': CPU}), 'move': holds({'a': {VGPU: 1}, 'root': CPU}, MOVE)}}
        return views(**{**seen, **changes})

    def test_goes_back(self) -> None:
        seen = self.views()
        self.assertEqual([('guest', audit.UNALLOCATED, audit.REVERT),
                          ('move', audit.LEFT_OVER_MIGRATION, audit.REVERT)], found(seen))
        [repair] = audit.repairs(seen, audit.compare(seen))
        self.assertEqual((audit.REVERT, 'move', 'guest', 2),
                         (repair.verb, repair.consumer, repair.instance_uuid, len(repair.why)))
        self.assertEqual([('move', {}), ('guest', {'a': {VGPU: 1}, 'root': CPU})], _after(repair))
        self.assertEqual([3, 3], [change.after.generation for change in repair.changes])

    def test_goes_back_where_the_devices_are_counted_as_before_the_move(self) -> None:
        seen = self.views(consumers={'guest': holds({'a': {VGPU: 1}, 'root': {'VCPU': 8}}),
                                     'move': holds({'a': {VGPU: 1}, 'root': CPU}, MOVE)})
        [repair] = audit.repairs(seen, audit.compare(seen))
        self.assertEqual((audit.REVERT, [('move', {}), ('guest', {'a': {VGPU: 1}, 'root': CPU})]),
                         (repair.verb, _after(repair)))

    def test_goes_back_to_an_instance_that_placement_does_not_know(self) -> None:
        seen = self.views(consumers={'move': holds({'a': {VGPU: 1}}, MOVE)})
        [repair] = audit.repairs(seen, audit.compare(seen))
        self.assertEqual(Consumer('guest', {'a': {VGPU: 1}}, None, 'project', 'user', values.INSTANCE),
                         repair.changes[1].after)

    def test_leaves_the_instance_what_others_put_there(self) -> None:
        given = '{"there": {"VGPU": 1}, "root": {"VCPU": 1}}'
        seen = self.views(notes=[REVERTED._replace(own=given)])
        [repair] = audit.repairs(seen, audit.compare(seen))
        self.assertEqual([('move', {}), ('guest', {'a': {VGPU: 1}, 'root': {'VCPU': 3}})], _after(repair))

    def test_stays_while_only_its_instance_is_certain(self) -> None:
        """The migration changed between two looks."""
        seen = self.views()
        certain = [one for one in audit.compare(seen) if one.consumer == 'guest']
        self.assertEqual([audit.REVERT], [one.repair for one in certain])
        self.assertEqual([], audit.repairs(seen, certain))

    def test_stays_while_its_note_is_damaged_and_the_others_go(self) -> None:
        over = holds({'b': {VGPU: 1}}, MOVE)._replace(uuid='over')
        for damaged in (REVERTED, CONFIRMED):
            seen = self.views(notes=[damaged._replace(own='{"there": {"VG'), Leftover('gone', 'over', CONFIRMED.verb)])
            seen = seen._replace(consumers={**seen.consumers, 'over': over})
            done = [(one.verb, one.consumer) for one in audit.repairs(seen, audit.compare(seen))]
            self.assertEqual([(audit.REMOVE, 'over')], done)

    def test_stays_while_anything_is_uncertain(self) -> None:
        for changes in ({'notes': ()}, {'notes': [CONFIRMED]}, {'notes': [REVERTED._replace(verb=None)]},
                        {'records': [row('a', migration='move')]},
                        {'usage': uses('d1')}, {'usage': uses('d0')._replace(unknown=(Unknown('x', 'torn'),))}):
            self.assertEqual({None}, {repair for _consumer, _kind, repair in found(self.views(**changes))})


class TestLayouts(base.TestCase):

    scenarios = [(layout, {'layout': layout}) for layout in (tree.FLAT, tree.ANNOUNCED)]
    layout: str

    def test_either_place_is_right_while_the_node_counts(self) -> None:
        for provider in ('root', 'a'):
            self.assertEqual([], found(views([row('a')], {'guest': holds({provider: {VGPU: 1}})}, layout=self.layout)))

    def test_what_is_at_neither_goes_to_the_node(self) -> None:
        seen = views([row('a')], {'guest': holds({'b': {VGPU: 1}, 'root': CPU})}, layout=self.layout)
        [repair] = audit.repairs(seen, audit.compare(seen))
        self.assertEqual([('guest', {'root': {**CPU, VGPU: 1}})], _after(repair))

    def test_that_is_not_the_one_that_is_wanted_is_said(self) -> None:
        seen = views(layout=self.layout, wanted=tree.NESTED)
        self.assertEqual([(None, audit.OTHER_LAYOUT, None)], found(seen))
        self.assertIn('nothing to move', audit.compare(seen)[0].proposal)


class TestRepairs(base.TestCase):
    def test_what_others_put_there_stays(self) -> None:
        seen = views([row('a')], {'guest': holds({'b': {VGPU: 1, 'NET': 1}, 'root': CPU, 'disk': {'DISK_GB': 5}})})
        [repair] = audit.repairs(seen, audit.compare(seen))
        self.assertEqual([('guest', {'a': {VGPU: 1}, 'b': {'NET': 1}, 'root': CPU, 'disk': {'DISK_GB': 5}})],
                         _after(repair))
        self.assertEqual(3, repair.changes[0].after.generation)

    def test_only_what_is_wrong_is_changed(self) -> None:
        seen = views([row('a'), row('root', 'd1', resource_class=PMEM)],
                     {'guest': holds({'b': {VGPU: 1}, 'root': {PMEM: 3}})}, uses('d0', 'd1'))
        [repair] = audit.repairs(seen, [one for one in audit.compare(seen) if one.resource_class == VGPU])
        self.assertEqual([('guest', {'a': {VGPU: 1}, 'root': {PMEM: 3}})], _after(repair))

    def test_all_of_a_consumer_is_one_write(self) -> None:
        seen = views([row('a'), row('root', 'd1', resource_class=PMEM)],
                     {'guest': holds({'b': {VGPU: 1}, 'root': {PMEM: 3}})}, uses('d0', 'd1'))
        [repair] = audit.repairs(seen, audit.compare(seen))
        self.assertEqual([('guest', {'a': {VGPU: 1}, 'root': {PMEM: 1}})], _after(repair))

    def test_room_is_made_before_it_is_taken(self) -> None:
        both = uses('d0')._replace(uses=(*uses('d0').uses, *uses('d1', instance='other').uses))
        seen = views([row('a'), row('a', 'd1', instance='other')],
                     {'guest': holds({'root': CPU}), 'other': holds({'a': {VGPU: 2}}),
                      'move': holds({'a': {VGPU: 1}}, MOVE)}, both,
                     notes=[CONFIRMED._replace(instance_uuid='gone')], changes=[tree.ProviderChange(None, ROOT)])
        done = [(one.verb, one.consumer) for one in audit.repairs(seen, audit.compare(seen))]
        self.assertEqual([(audit.REMOVE, 'move'), (audit.SYNC, None), (audit.ALLOCATE, 'other'),
                          (audit.ALLOCATE, 'guest')], done)


class TestTree(base.TestCase):
    def test_what_a_report_would_change_is_repaired_by_one(self) -> None:
        after = ROOT._replace(inventories={VGPU: ClassInventory(2, 1, max_unit=2)})
        for before in (None, ROOT, after._replace(inventories={VGPU: ClassInventory(2, 0, max_unit=2)}),
                       after._replace(inventories={VGPU: ClassInventory(3, 3, max_unit=3)})):
            [mismatch] = audit.compare(views(changes=[tree.ProviderChange(before, after)]))
            self.assertEqual((audit.INVENTORY_DIFFERS, vocabulary.WARNING, 'node', audit.SYNC),
                             (mismatch.kind, mismatch.severity, mismatch.provider, mismatch.repair))

    def test_more_reserved_than_we_can_see_is_the_services_word(self) -> None:
        after = ROOT._replace(inventories={VGPU: ClassInventory(2, 1, max_unit=2)})
        before = ROOT._replace(inventories={VGPU: ClassInventory(2, 2, max_unit=2)})
        [mismatch] = audit.compare(views(changes=[tree.ProviderChange(before, after)]))
        self.assertEqual((audit.INVENTORY_DIFFERS, vocabulary.NOTE, None),
                         (mismatch.kind, mismatch.severity, mismatch.repair))

    def test_what_a_heal_leaves_for_the_next_report_needs_nothing(self) -> None:
        after = ROOT._replace(inventories={PMEM: ClassInventory(2)}, traits=frozenset({tree.mark(tree.COUNTS, PMEM)}))
        told = after._replace(traits=after.traits | {'CUSTOM_MIG_MDEV_NVIDIA_35_ANY'})
        healed = told._replace(traits=told.traits | {tree.mark(tree.COUNTS, VGPU)})
        # Told of devices that are counted there still, it may be wrong.
        for before, repair in ((healed, None), (told, audit.SYNC)):
            self.assertEqual([(None, audit.INVENTORY_DIFFERS, repair)],
                             found(views(changes=[tree.ProviderChange(before, after)])))
        self.assertEqual([(None, audit.INVENTORY_DIFFERS, audit.SYNC)],
                         found(views(changes=[tree.ProviderChange(after, told)])))

    def test_what_cannot_go_yet_is_said(self) -> None:
        self.assertEqual([(None, audit.INVENTORY_DIFFERS, None)],
                         found(views(left=[tree.Left('a', 'node_a', VGPU, 1)])))


class TestUnknown(base.TestCase):
    def test_puts_no_allocation_right(self) -> None:
        usage = uses('d0')._replace(unknown=(Unknown('domains', 'no answer'),))
        self.assertEqual([(None, audit.VIEW_UNKNOWN, None), ('guest', audit.WRONG_PROVIDER, None)],
                         found(views([row('a')], {'guest': holds({'b': {VGPU: 1}})}, usage)))

    def test_part_of_the_host_is_said(self) -> None:
        self.assertEqual([(None, audit.VIEW_UNKNOWN, None)], found(views(complete=False)))
