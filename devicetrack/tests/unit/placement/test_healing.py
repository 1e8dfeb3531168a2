"""What brings allocations to the devices' own providers, and what stands against it: named cases and random nodes."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from devicetrack import vocabulary
from devicetrack.objects.values import Record
from devicetrack.objects.values import Unknown
from devicetrack.objects.values import Usage
from devicetrack.objects.values import Use
from devicetrack.placement import expected
from devicetrack.placement import healing
from devicetrack.placement import merging
from devicetrack.placement import tree
from devicetrack.placement import values
from devicetrack.placement.values import ClassInventory
from devicetrack.placement.values import Consumer
from devicetrack.placement.values import Holding
from devicetrack.placement.values import Inventories
from devicetrack.tests import base

VGPU = 'VGPU'
PMEM = 'CUSTOM_PMEM_NAMESPACE_4GB'
ROOT = 'node'
CPU = {'VCPU': 2}


def row(device: str, provider: str, instance: str = 'guest', role: str = vocabulary.CURRENT,
        state: str = vocabulary.ACTIVE, resource_class: str = VGPU, migration: str | None = None) -> Record:
    return Record('host', 'mdev', device, instance, migration, role, state, 0, 'claim', 1, provider, resource_class,
                  provider, None, '', 0)


def consumer(uuid: str, kind: str = values.INSTANCE, **resources: Any) -> Consumer:
    return Consumer(uuid, resources, 3, 'project', 'user', kind)


def usage(*records: Record, unknown: tuple[Unknown, ...] = ()) -> Usage:
    """Every instance has a guest, and each guest what it is recorded with."""
    domains = frozenset(record.instance_uuid for record in records)
    return Usage(tuple(Use(record.kind, record.identifier, '', record.instance_uuid, True, True, True)
                       for record in records), domains, domains, unknown)


def flat(total: int, **cards: int) -> dict[str, Inventories]:
    """A node that counts all devices, and announces those of each card."""
    return {ROOT: Inventories(7, {'VCPU': ClassInventory(8), VGPU: ClassInventory(total, max_unit=total)}),
            **{name: Inventories(2, {VGPU: ClassInventory(of_card, of_card)}) for name, of_card in cards.items()}}


def planned(inventories: dict[str, Inventories], consumers: list[Consumer], records: list[Record],
            used: Usage | None = None, allocated: Any = MappingProxyType({})) -> healing.ReshapePlan:
    return healing.plan(ROOT, inventories, allocated, consumers, records, used,
                        healing.classes_below(ROOT, records) | {VGPU})


class TestPlan(base.TestCase):
    def test_moves_what_consumers_hold_and_opens_as_much(self) -> None:
        records = [row('1', 'a'), row('2', 'b'), row('3', 'b', 'other')]
        plan = planned(flat(6, a=4, b=2), [consumer('guest', node={**CPU, VGPU: 2}), consumer('other', node={VGPU: 1})],
                       records, usage(*records))
        self.assertEqual({ROOT: Inventories(7, {'VCPU': ClassInventory(8)}),
                          'a': Inventories(2, {VGPU: ClassInventory(4, 3)}),
                          'b': Inventories(2, {VGPU: ClassInventory(2, 0)})}, plan.inventories)
        self.assertEqual((consumer('guest', node=CPU, a={VGPU: 1}, b={VGPU: 1}), consumer('other', b={VGPU: 1})),
                         plan.consumers)
        self.assertEqual((), plan.obstacles)

    def test_of_a_move_goes_to_both_consumers(self) -> None:
        records = [row('1', 'a', role=vocabulary.OLD, migration='move'),
                   row('2', 'b', role=vocabulary.INCOMING, state=vocabulary.CLAIMED, migration='move')]
        plan = planned(flat(4, a=2, b=2), [consumer('guest', node={VGPU: 1}),
                                           consumer('move', values.MIGRATION, node={VGPU: 1})],
                       records, usage(records[0]))
        self.assertEqual((consumer('guest', b={VGPU: 1}), consumer('move', values.MIGRATION, a={VGPU: 1})),
                         plan.consumers)

    def test_moves_what_is_on_its_way_back_while_it_is_allocated(self) -> None:
        records = [row('1', 'a'), row('2', 'b', state=vocabulary.RELEASING)]
        for amount, after in ((2, consumer('guest', a={VGPU: 1}, b={VGPU: 1})), (1, consumer('guest', a={VGPU: 1}))):
            plan = planned(flat(4, a=2, b=2), [consumer('guest', node={VGPU: amount})], records, usage(*records))
            self.assertEqual((after,), plan.consumers)

    def test_opens_nothing_for_devices_without_an_allocation(self) -> None:
        records = [row('1', 'a'), *(row(f'wiped {number}', 'a', 'gone', state=vocabulary.RELEASING)
                                    for number in range(2)), row('unallocated', 'a', 'other')]
        for there, reserved in ((0, 3), (2, 1)):
            plan = planned(flat(4, a=4), [consumer('guest', node={VGPU: 1})], records, allocated={'a': {VGPU: there}})
            self.assertEqual(ClassInventory(4, reserved), plan.inventories['a'].inventories[VGPU])

    def test_opens_as_much_as_consumers_hold_where_it_is_unknown_what_others_do(self) -> None:
        records = [row('1', 'a'), row('2', 'a'), row('3', 'a', 'other')]
        plan = planned(flat(4, a=4), [consumer('guest', node={VGPU: 1}, a={VGPU: 1})], records)
        self.assertEqual(ClassInventory(4, 2), plan.inventories['a'].inventories[VGPU])

    def test_leaves_at_the_node_what_is_counted_there(self) -> None:
        records = [row('1', ROOT, resource_class=PMEM), row('2', 'numa0', resource_class=PMEM)]
        there = {ROOT: Inventories(7, {PMEM: ClassInventory(4)}), 'numa0': Inventories(2, {PMEM: ClassInventory(3, 3)})}
        plan = planned(there, [consumer('guest', node={PMEM: 2})], records)
        self.assertEqual((consumer('guest', node={PMEM: 1}, numa0={PMEM: 1}),), plan.consumers)
        self.assertEqual({ROOT: Inventories(7, {PMEM: ClassInventory(4, 3)}),
                          'numa0': Inventories(2, {PMEM: ClassInventory(3, 2)})}, plan.inventories)

    def test_does_nothing_where_all_is_right(self) -> None:
        records = [row('1', ROOT, resource_class=PMEM), row('2', 'numa0', resource_class=PMEM)]
        there = {ROOT: Inventories(7, {PMEM: ClassInventory(4)}), 'numa0': Inventories(2, {PMEM: ClassInventory(3, 3)})}
        self.assertEqual(healing.ReshapePlan(), planned(there, [
            consumer('guest', values.UNTYPED, node={PMEM: 1}, numa0={PMEM: 1})], records))

    def test_leaves_what_is_held_of_another_host(self) -> None:
        records = [row('1', 'a')]
        plan = planned(flat(2, a=2), [consumer('guest', node={VGPU: 1}, elsewhere={VGPU: 1, **CPU})], records)
        self.assertEqual((consumer('guest', a={VGPU: 1}, elsewhere={VGPU: 1, **CPU}),), plan.consumers)

    def test_says_what_a_consumer_is_whose_writer_did_not(self) -> None:
        records = [row('1', 'a'), row('2', 'a', 'other', vocabulary.OLD, migration='move')]
        plan = planned(flat(2, a=2), [consumer('guest', values.UNTYPED, node={VGPU: 1}),
                                      consumer('move', values.UNTYPED, node={VGPU: 1})], records)
        self.assertEqual([values.INSTANCE, values.MIGRATION], [one.type for one in plan.consumers])


class TestMisplaced(base.TestCase):
    def test_is_what_is_held_of_the_node_beyond_its_own_devices(self) -> None:
        records = [row('1', ROOT, resource_class=PMEM), row('2', 'numa0', 'other', resource_class=PMEM),
                   row('3', 'a', 'gone', state=vocabulary.RELEASING)]
        listed = {'guest': Holding(1, {PMEM: 1, **CPU}), 'other': Holding(1, {PMEM: 1}), 'gone': Holding(1, {VGPU: 1}),
                  'stranger': Holding(1, {VGPU: 1}), 'nobody': Holding(1, dict(CPU))}
        self.assertEqual(['gone', 'other', 'stranger'],
                         healing.misplaced(ROOT, listed, records, healing.classes_below(ROOT, records)))


class TestObstacles(base.TestCase):

    RECORD = row('1', 'a')
    FLAT = flat(4, a=4)
    scenarios = base.table(
        ('no record', healing.NO_RECORD, 'stranger', 1, FLAT, [], lambda used: used),
        ('more is allocated', healing.OTHER_AMOUNT, 'guest', 2, FLAT, [], lambda used: used),
        ('less is allocated', healing.OTHER_AMOUNT, 'guest', 1, FLAT, [row('2', 'a')], lambda used: used),
        ('no guest', healing.NO_GUEST, 'guest', 1, FLAT, [], lambda used: Usage((), frozenset(), frozenset())),
        ('a guest without its device', healing.OTHER_GUEST, 'guest', 1, FLAT, [], lambda used: used._replace(uses=())),
        ('a guest with another device', healing.OTHER_GUEST, 'guest', 1, FLAT, [],
         lambda used: usage(TestObstacles.RECORD, row('9', 'a'))),
        ('a guest with one that nobody knows', healing.OTHER_GUEST, 'guest', 1, FLAT, [], lambda used: used._replace(
            uses=(*used.uses, Use('vpmem', None, '/dev/dax9.9', 'guest', True, True, True)))),
        ('the hypervisor does not say', healing.UNREAD, None, 1, FLAT, [],
         lambda used: used._replace(unknown=(Unknown('vpmem', 'ndctl failed'),))),
        ('a provider that is not there', healing.NO_PROVIDER, None, 1, flat(4), [], lambda used: used),
        ('one that is too small', healing.NO_ROOM, None, 1, flat(4, a=0), [], lambda used: used),
        names=('what', 'named', 'amount', 'there', 'more', 'changed'))

    def test_stops_the_node_and_is_named(self) -> None:
        records = [self.RECORD, *self.more]
        plan = planned(self.there, [consumer(self.named or 'guest', node={VGPU: self.amount})], records,
                       self.changed(usage(*records)))
        self.assertEqual(({}, (), [(self.named, self.what)]), (
            plan.inventories, plan.consumers, [(one.consumer, one.what) for one in plan.obstacles]))


class TestCompanions(base.TestCase):
    RECORDS = [row('1', 'a', role=vocabulary.OLD, migration='move'),
               row('2', 'b', role=vocabulary.INCOMING, migration='move'), row('3', 'a', 'other')]

    def test_are_who_holds_the_other_devices_of_an_instance_that_moves(self) -> None:
        self.assertEqual(['move'], healing.companions(ROOT, ['guest', 'other'], self.RECORDS))
        self.assertEqual([], healing.companions(ROOT, ['guest', 'move'], self.RECORDS))

    def test_one_that_holds_nothing_says_that_the_move_was_reverted_and_the_record_does_not_know(self) -> None:
        plan = planned(flat(4, a=2, b=2), [consumer('guest', node={VGPU: 1}), Consumer('move', {}, None)], self.RECORDS)
        self.assertEqual([('move', healing.OTHER_AMOUNT)], [(one.consumer, one.what) for one in plan.obstacles])


class TestWithoutAGuest(base.TestCase):
    """What need not have a guest, or not on these devices."""

    scenarios = base.table(
        ('a claim', [row('1', 'a', state=vocabulary.CLAIMED)], Usage((), frozenset(), frozenset())),
        ('a source', [row('1', 'a', role=vocabulary.OLD, migration='guest')], Usage((), frozenset(), frozenset())),
        ('a deletion', [row('1', 'a', state=vocabulary.RELEASING)], Usage((), frozenset(), frozenset())),
        ('nobody to ask', [row('1', 'a')], None),
        ('a destination before the guest', [row('1', 'a', role=vocabulary.INCOMING, migration='move')],
         Usage((), frozenset({'guest'}), frozenset({'guest'}))),
        names=('records', 'used'))

    def test_is_moved(self) -> None:
        plan = planned(flat(2, a=2), [consumer('guest', node={VGPU: 1})], self.records, self.used)
        self.assertEqual((consumer('guest', a={VGPU: 1}),), plan.consumers)


HELD = st.dictionaries(st.sampled_from('abc'), st.integers(1, 3), min_size=1)


class TestRandomNodes(base.TestCase):
    @given(st.dictionaries(st.sampled_from(['i1', 'i2', 'i3', 'i4']), HELD), st.data())
    def test_every_consumer_ends_where_its_devices_are_and_no_amount_is_lost(self, held: Any, data: Any) -> None:
        records = [row(f'{instance}-{provider}-{number}', provider, instance)
                   for instance, of in held.items() for provider, amount in of.items() for number in range(amount)]
        already = {instance: data.draw(st.booleans()) for instance in held}
        total = sum(sum(of.values()) for of in held.values())
        consumers = [consumer(instance, **({name: {VGPU: amount} for name, amount in of.items()} | {ROOT: dict(CPU)}
                                           if already[instance] else {ROOT: {**CPU, VGPU: sum(of.values())}}))
                     for instance, of in held.items()]
        at_node = [one for one in consumers if VGPU in one.resources[ROOT]]
        there = flat(total, a=total, b=total, c=total)
        allocated: dict[str, dict[str, int]] = {
            provider: {VGPU: sum(one.resources.get(provider, {}).get(VGPU, 0) for one in consumers)}
            for provider in 'abc'}
        plan = planned(there, at_node, records, usage(*records), allocated)
        self.assertEqual((), plan.obstacles)
        after = {one.uuid: one.resources for one in (*consumers, *plan.consumers)}
        shares = expected.shares(records, ROOT, tree.NESTED)
        self.assertEqual({instance: merging.plain({ROOT: CPU, **shares[instance].held}) for instance in held}, after)
        for provider, (_generation, inventories) in ({**there, **plan.inventories} if plan.consumers else {}).items():
            used = sum(of.get(provider, {}).get(VGPU, 0) for of in after.values())
            inventory = inventories.get(VGPU, ClassInventory(0))
            self.assertEqual(used, inventory.total - inventory.reserved if provider in plan.inventories else 0)
