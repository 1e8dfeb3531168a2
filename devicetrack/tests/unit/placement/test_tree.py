"""What placement should say, as tables; and random histories of reports beside others who write there too."""

from __future__ import annotations

import textwrap
from typing import Any
import uuid

from hypothesis import settings
from hypothesis import stateful
from hypothesis import strategies as st
import os_traits

from devicetrack.objects import Provider
from devicetrack.objects import traits as names
from devicetrack.placement import tree
from devicetrack.placement.values import ClassInventory
from devicetrack.tests import base

VGPU = 'VGPU'
PMEM = 'CUSTOM_PMEM_NAMESPACE_4GB'
OLD = 'CUSTOM_OLD'                              # a class that an operator gives up, or takes up again
THEIRS = {'VCPU': ClassInventory(8, 1, 1, 8, 1, 4.0)}
NVIDIA = names.ours('vendor', 'NVIDIA')
ANY_MDEV, ANY_PMEM = 'CUSTOM_MIG_MDEV_NVIDIA_35_ANY', 'CUSTOM_MIG_VPMEM_4GB_ANY'


def uuid_of(name: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_DNS, name))


ROOT = uuid_of('node')


def provider(name: str = '', totals: Any = (), reserved: Any = (), traits: Any = ()) -> Provider:
    return Provider(uuid=uuid_of(f'node_{name}') if name else ROOT, name=f'node_{name}' if name else 'node',
                    parent_uuid=ROOT if name else None, totals=dict(totals), reserved=dict(reserved),
                    traits=list(traits))


def ours(total: int, reserved: int = 0) -> ClassInventory:
    return ClassInventory(total, reserved, 1, total, 1, 1.0)


def node(name: str = '', inventories: Any = (), traits: Any = (), generation: int = 1, used: Any = (),
         aggregated: bool = False) -> tree.ProviderState:
    like = provider(name)
    return tree.ProviderState(like.uuid, like.name, like.parent_uuid, dict(inventories), frozenset(traits), generation,
                     dict(used), aggregated)


def placement(*nodes: tree.ProviderState) -> tree.ProviderTree:
    return tree.ProviderTree(ROOT, {one.uuid: one for one in nodes})


def applied(actual: tree.ProviderTree, difference: tree.Difference) -> tree.ProviderTree:
    nodes = dict(actual.providers)
    for change in difference.changes:
        if change.after is None:
            del nodes[change.provider.uuid]
        else:
            nodes[change.provider.uuid] = change.after._replace(
                generation=(change.before.generation or 0) + 1 if change.before else 1, aggregated=bool(
                    change.before and change.before.aggregated), used=change.before.used if change.before else {})
    return tree.ProviderTree(actual.root, nodes)


CARD = provider('card', {VGPU: 4}, {VGPU: 1}, [NVIDIA])
OTHER_CARD = provider('other', {VGPU: 2})
NODE = provider('', {PMEM: 3}, {PMEM: 1})
MARKED = {tree.MADE, tree.mark(tree.COUNTS, VGPU), NVIDIA}


class TestDesired(base.TestCase):
    scenarios = base.table(
        ('nested', tree.NESTED, {'node': {PMEM: ours(3, 1)}, 'node_card': {VGPU: ours(4, 1)},
                                 'node_other': {VGPU: ours(2)}}),
        ('flat', tree.FLAT, {'node': {PMEM: ours(3, 1), VGPU: ours(6, 1)}}),
        ('announced', tree.ANNOUNCED, {'node': {PMEM: ours(3, 1), VGPU: ours(6, 1)}, 'node_card': {VGPU: ours(4, 4)},
                                       'node_other': {VGPU: ours(2, 2)}}),
        names=('layout', 'inventories'))

    def test_inventories(self) -> None:
        wanted = tree.desired([NODE, CARD, OTHER_CARD], self.layout)
        self.assertEqual(self.inventories, {one.name: one.inventories for one in wanted.providers.values()})
        self.assertEqual(ROOT, wanted.root)

    def test_what_a_parent_cannot_have_is_no_inventory_of_none(self) -> None:
        wanted = tree.desired([provider(), provider('card', {VGPU: 0})], self.layout)
        self.assertEqual([], [name for one in wanted.providers.values() for name in one.inventories])


    def test_a_running_guest_finds_what_is_told_it_where_devices_are_counted(self) -> None:
        wanted = tree.desired([provider('', {PMEM: 3}, traits=[ANY_PMEM]),
                               provider('card', {VGPU: 4}, traits=[NVIDIA, ANY_MDEV])], self.layout)
        at_card = {'node_card': {NVIDIA, ANY_MDEV}} if self.layout != tree.FLAT else {}
        self.assertEqual({'node': {ANY_PMEM} if self.layout == tree.NESTED else {ANY_PMEM, ANY_MDEV}, **at_card},
                         {one.name: one.traits for one in wanted.providers.values()})


class TestPossible(base.TestCase):
    """A layout changes only when nothing is allocated in the other."""

    scenarios = base.table(
        ('nested, nothing allocated', tree.NESTED, {}, {}, tree.NESTED),
        ('nested, devices at the node', tree.NESTED, {VGPU: 1}, {}, tree.ANNOUNCED),
        ('nested, what stays at the node', tree.NESTED, {PMEM: 1, 'VCPU': 4}, {}, tree.NESTED),
        ('nested, devices where they belong', tree.NESTED, {}, {VGPU: 3}, tree.NESTED),
        ('flat, nothing allocated', tree.FLAT, {}, {}, tree.FLAT),
        ('flat, devices at the node', tree.FLAT, {VGPU: 1}, {}, tree.FLAT),
        ('flat, devices at their providers', tree.FLAT, {}, {VGPU: 1}, tree.NESTED),
        ('flat, devices at both', tree.FLAT, {VGPU: 1}, {VGPU: 1}, tree.FLAT),
        ('nested, devices at both', tree.NESTED, {VGPU: 1}, {VGPU: 1}, tree.ANNOUNCED),
        ('announced, devices at the node', tree.ANNOUNCED, {VGPU: 1}, {}, tree.ANNOUNCED),
        ('announced, devices at their providers', tree.ANNOUNCED, {}, {VGPU: 1}, tree.NESTED),
        names=('layout', 'at_node', 'at_card', 'expected'))

    def test_layout(self) -> None:
        actual = placement(node(used=self.at_node), node('card', used=self.at_card))
        self.assertEqual(self.expected, tree.possible(actual, [NODE, CARD], self.layout, {VGPU, PMEM}))


class TestPossibleOfAClassAtBothLevels(base.TestCase):
    """The node counts one device of a class, and a provider below it two."""

    scenarios = base.table(
        ('no more at the node than it counts', 1, 0, tree.NESTED),
        ('more at the node than it counts', 2, 0, tree.ANNOUNCED),
        ('also below', 1, 2, tree.NESTED),
        ('more at the node, also below', 2, 2, tree.ANNOUNCED),
        names=('at_node', 'at_numa', 'expected'))

    def test_layout(self) -> None:
        actual = placement(node(used={PMEM: self.at_node}), node('numa0', used={PMEM: self.at_numa}))
        providers = [provider('', {PMEM: 1}), provider('numa0', {PMEM: 2})]
        self.assertEqual(self.expected, tree.possible(actual, providers, tree.NESTED, {PMEM}))


class TestSurplusAtNode(base.TestCase):
    """The node counted two devices of a class and has only one left, but both are allocated."""

    scenarios = base.table(
        ('in a nested tree', 2, 4, 1, tree.NESTED, {'node': ours(1), 'node_numa0': ours(4, 1)}),
        ('in a nested tree that reserved it', 1, 4, 1, tree.NESTED, {'node': ours(1), 'node_numa0': ours(4, 1)}),
        ('in one that reserved it in full', 1, 1, 1, tree.NESTED, {'node': ours(1), 'node_numa0': ours(1, 1)}),
        ('in a flat tree', 6, 4, 4, tree.ANNOUNCED, {'node': ours(5, 0), 'node_numa0': ours(4, 4)}),
        names=('at_node', 'at_numa', 'reserved', 'layout', 'expected'))

    def test_is_reserved_below_it(self) -> None:
        providers = [provider('', {PMEM: 1}), provider('numa0', {PMEM: self.at_numa})]
        actual = placement(node('', {PMEM: ours(self.at_node)}, {tree.mark(tree.COUNTS, PMEM)}, used={PMEM: 2}),
                           node('numa0', {PMEM: ours(self.at_numa, self.reserved)},
                                {tree.MADE, tree.mark(tree.COUNTS, PMEM)}, used={}))
        self.assertEqual({ROOT, *actual.providers}, set(tree.to_ask(
            actual, tree.desired(providers), tree.desired(providers), {PMEM})))
        layout = tree.possible(actual, providers, tree.NESTED, {PMEM})
        wanted = tree.desired(providers, layout, tree.held_below(actual, providers, layout),
                              tree.surplus_at_node(actual, providers, layout))
        self.assertEqual((self.layout, self.expected),
                         (layout, {one.name: dict(one.inventories)[PMEM] for one in wanted.providers.values()}))


class TestPossibleWithoutAProvider(base.TestCase):
    scenarios = [(layout, {'layout': layout}) for layout in (tree.FLAT, tree.ANNOUNCED, tree.NESTED)]
    layout: str

    def test_what_is_allocated_at_one_that_the_host_no_longer_has_keeps_the_tree_nested(self) -> None:
        gone = node('gone', {VGPU: ours(4, 4)}, MARKED, used={VGPU: 3})
        self.assertEqual(tree.NESTED, tree.possible(placement(node(), gone), [provider(), OTHER_CARD], self.layout,
                                                    {VGPU}))

    def test_what_is_allocated_at_one_of_others_does_not(self) -> None:
        theirs = node('theirs', {VGPU: ours(4)}, used={VGPU: 3})
        self.assertEqual(self.layout, tree.possible(placement(node(), theirs), [provider(), OTHER_CARD], self.layout,
                                                    {VGPU}))


class TestHeldBelow(base.TestCase):
    scenarios = base.table(
        ('flat', tree.FLAT, {VGPU: 3}),
        ('announced', tree.ANNOUNCED, {VGPU: 3}),
        ('nested', tree.NESTED, {}),
        names=('layout', 'expected'))

    def test_is_what_the_node_counts_and_is_allocated_below_it(self) -> None:
        actual = placement(node(used={VGPU: 1}), node('card', {VGPU: ours(4)}, MARKED, used={VGPU: 3}),
                           node('gone', {VGPU: ours(4)}, MARKED, used={VGPU: 2}))
        held = tree.held_below(actual, [NODE, CARD], self.layout)
        self.assertEqual(self.expected, held)
        wanted = tree.desired([NODE, CARD], self.layout, held).providers[ROOT].inventories
        self.assertEqual(None if self.layout == tree.NESTED else ours(4, 4), wanted.get(VGPU))

    def test_also_at_a_provider_that_the_host_no_longer_has_if_the_node_counts_the_class_itself(self) -> None:
        numa = node('numa0', {PMEM: ours(2)}, {tree.MADE, tree.mark(tree.COUNTS, PMEM)}, used={PMEM: 2})
        self.assertEqual({PMEM: 2}, tree.held_below(placement(node(), numa), [NODE, CARD], self.layout))


class DiffTestCase(base.TestCase):
    def diff(self, actual: tree.ProviderTree, *providers: Provider, layout: str = tree.NESTED,
             complete: bool = True) -> tree.Difference:
        return tree.diff(actual, tree.desired(providers, layout), {VGPU, PMEM}, complete)

    def after(self, actual: tree.ProviderTree, *providers: Provider, **options: Any) -> dict[str, tree.ProviderState]:
        difference = self.diff(actual, *providers, **options)
        return {one.name: one for one in applied(actual, difference).providers.values()}


class TestDiff(DiffTestCase):
    def test_of_what_is_so_already_is_nothing(self) -> None:
        actual = placement(node(), node('card', {VGPU: ours(4, 1)}, MARKED))
        self.assertEqual(tree.Difference((), ()), self.diff(actual, provider(), CARD))

    def test_a_provider_that_is_missing_is_made_below_the_node(self) -> None:
        made = self.after(placement(node()), provider(), CARD)['node_card']
        self.assertEqual(({VGPU: ours(4, 1)}, MARKED, ROOT), (made.inventories, made.traits, made.parent_uuid))

    def test_the_node_is_made_first(self) -> None:
        difference = self.diff(placement(), CARD, NODE)
        self.assertEqual(['node', 'node_card'], [change.provider.name for change in difference.changes])

    def test_a_provider_that_we_were_interrupted_making_is_ours(self) -> None:
        self.assertIn(tree.MADE, self.after(placement(node(), node('card', generation=0)),
                                            provider(), CARD)['node_card'].traits)

    def test_a_provider_that_others_made_is_not(self) -> None:
        self.assertNotIn(tree.MADE, self.after(placement(node(), node('card', {VGPU: ours(1)})),
                                               provider(), CARD)['node_card'].traits)

    def test_what_others_say_of_the_node_stays(self) -> None:
        root = self.after(placement(node('', {**THEIRS, VGPU: ours(9)}, {'COMPUTE_NODE', 'CUSTOM_GOLD'})), NODE,
                          CARD)['node']
        self.assertEqual({**THEIRS, PMEM: ours(3, 1)}, root.inventories)
        self.assertEqual({'COMPUTE_NODE', 'CUSTOM_GOLD', tree.mark(tree.COUNTS, PMEM)}, root.traits)

    def test_overcommit_of_devices_is_put_right(self) -> None:
        actual = placement(node(), node('card', {VGPU: ClassInventory(4, 1, 1, 4, 1, 16.0)}, MARKED))
        self.assertEqual({VGPU: ours(4, 1)}, self.after(actual, provider(), CARD)['node_card'].inventories)

    def test_a_class_that_was_ours_and_counts_nothing_any_more_goes(self) -> None:
        traits = {tree.mark(tree.COUNTS, OLD)}
        root = self.after(placement(node('', {OLD: ours(4), **THEIRS}, traits)), provider())['node']
        self.assertEqual((THEIRS, frozenset()), (root.inventories, root.traits))

    def test_a_class_that_was_never_ours_stays(self) -> None:
        self.assertEqual((), self.diff(placement(node('', {OLD: ours(4)})), provider()).changes)

    def test_no_more_is_reserved_than_is_not_allocated(self) -> None:
        """Placement before 14.0 compares every write of an owner's allocation with what is not reserved."""
        for used, reserved in ((0, 3), (1, 3), (2, 2), (4, 0), (5, 0)):
            actual = placement(node(), node('card', {VGPU: ours(4)}, MARKED, used={VGPU: used}))
            after = self.after(actual, provider(), provider('card', {VGPU: 4}, {VGPU: 3}))
            self.assertEqual({VGPU: ours(4, reserved)}, after['node_card'].inventories)

    def test_a_class_in_use_stays_without_room_for_more(self) -> None:
        actual = placement(node('', {OLD: ours(4)}, {tree.mark(tree.COUNTS, OLD)}, used={OLD: 3}))
        difference = self.diff(actual, provider())
        self.assertEqual({OLD: ours(4, 1)}, applied(actual, difference).providers[ROOT].inventories)
        self.assertEqual((tree.Left(ROOT, 'node', OLD, 3),), difference.left)
        again = self.diff(applied(actual, difference), provider())
        self.assertEqual(((), difference.left), again)

    def test_whether_it_is_in_use_must_be_known_for_it_to_go(self) -> None:
        unasked = node('', {VGPU: ours(4)})._replace(used=None)
        self.assertEqual({VGPU: ours(4, 4)}, self.after(placement(unasked), provider())['node'].inventories)

    def test_a_standard_trait_of_ours_goes_with_its_reason(self) -> None:
        numa = provider('numa0', {PMEM: 1}, traits=[names.NUMA_ROOT])
        actual = applied(placement(node()), self.diff(placement(node()), provider(), numa))
        self.assertIn(names.NUMA_ROOT, actual.providers[numa.uuid].traits)
        without = self.after(actual, provider(), provider('numa0', {PMEM: 1}))['node_numa0']
        self.assertEqual({tree.MADE, tree.mark(tree.COUNTS, PMEM)}, without.traits)

    def test_a_standard_trait_that_others_had_set_stays_without_ours(self) -> None:
        actual = placement(node(), node('numa0', traits={names.NUMA_ROOT}))
        actual = applied(actual, self.diff(actual, provider(), provider('numa0', {}, traits=[names.NUMA_ROOT])))
        self.assertIn(names.NUMA_ROOT, self.after(actual, provider(), provider('numa0'))['node_numa0'].traits)

    def test_what_running_guests_ask_for_is_ours_by_its_name(self) -> None:
        actual = applied(placement(node()), self.diff(placement(node()), provider('', traits=[ANY_MDEV])))
        self.assertEqual({ANY_MDEV}, actual.providers[ROOT].traits)
        self.assertEqual(set(), self.after(actual, provider())['node'].traits)

    def test_a_slice_of_a_card_that_an_operator_names_is_not(self) -> None:
        slices = {'CUSTOM_MIG_1G_5GB', 'CUSTOM_MIG_ANY', 'CUSTOM_MIG_ENABLED'}
        self.assertEqual((), self.diff(placement(node('', traits=slices)), provider()).changes)

    def test_names_of_standard_traits_are_those_of_os_traits(self) -> None:
        self.assertIn(names.NUMA_ROOT, os_traits.get_traits())


class TestVanished(DiffTestCase):
    """A provider whose parent device is not there any more."""

    scenarios = base.table(
        ('nothing on it', {}, True),
        ('what others count on it', {'inventories': {**THEIRS, VGPU: ours(4)}}, False),
        ('a trait of theirs', {'traits': MARKED | {'CUSTOM_GOLD'}}, False),
        ('in an aggregate', {'aggregated': True}, False),
        ('made by somebody else', {'traits': MARKED - {tree.MADE}}, False),
        ('in use', {'used': {VGPU: 1}}, False),
        names=('facts', 'goes'))

    def test_goes_unless_anybody_has_anything_on_it(self) -> None:
        card = node('card', **{'inventories': {VGPU: ours(4)}, 'traits': MARKED, **self.facts})
        after = self.after(placement(node(), card), provider())
        self.assertEqual(not self.goes, 'node_card' in after)
        if not self.goes:
            used = self.facts.get('used', {})
            self.assertEqual({name: ours(4, 3) if used else inventory for name, inventory in card.inventories.items()
                              if name in used or name in THEIRS}, after['node_card'].inventories)
            self.assertEqual(card.traits & {'CUSTOM_GOLD'}, {trait for trait in after['node_card'].traits
                                                             if not trait.startswith(names.PREFIX)})

    def test_stays_without_room_when_a_part_of_the_host_is_unknown(self) -> None:
        card = node('card', **{'inventories': {VGPU: ours(4)}, 'traits': MARKED, **self.facts})
        difference = self.diff(placement(node(), card), provider(), complete=False)
        [left] = difference.left
        self.assertEqual((VGPU, None), (left.resource_class, left.used))
        [change] = difference.changes
        assert change.after is not None
        used = self.facts.get('used', {}).get(VGPU, 0)
        self.assertEqual({**card.inventories, VGPU: ours(4, 4 - used)}, change.after.inventories)
        self.assertEqual(set(), card.traits - change.after.traits)

    def test_stays_for_what_others_put_below_it(self) -> None:
        card = node('card', {VGPU: ours(4)}, MARKED)
        below = node('below')._replace(parent_uuid=card.uuid)
        self.assertEqual({'node', 'node_card', 'node_below'}, self.after(placement(node(), card, below),
                                                                         provider()).keys())

    def test_one_that_was_never_ours_is_left_alone(self) -> None:
        bridge = node('bridge', {'NET_BW_EGR_KILOBIT_PER_SEC': ClassInventory(1000)}, {'CUSTOM_PHYSNET_1'})
        self.assertEqual((), self.diff(placement(node(), bridge), provider(), CARD).changes[1:])


class TestOrder(base.TestCase):
    def test_devices_leave_one_provider_before_they_come_to_another(self) -> None:
        nested = applied(placement(node()), tree.diff(placement(node()), tree.desired([NODE, CARD]), {VGPU, PMEM}))
        to_flat = tree.diff(nested, tree.desired([NODE, CARD], tree.FLAT), {VGPU, PMEM})
        self.assertEqual(['node_card', 'node'], [change.provider.name for change in to_flat.changes])
        to_nested = tree.diff(applied(nested, to_flat), tree.desired([NODE, CARD]), {VGPU, PMEM})
        self.assertEqual(['node', 'node_card'], [change.provider.name for change in to_nested.changes])


class TestRefused(base.TestCase):
    """What a change may still do while another one that removes room is refused."""

    def test_a_change_removes_room_of_what_it_lowers(self) -> None:
        before = node('', {VGPU: ours(4), PMEM: ours(2), **THEIRS})
        self.assertEqual({VGPU, PMEM}, tree.closed(tree.ProviderChange(before, before._replace(
            inventories={VGPU: ours(4, 1), **THEIRS}))))
        self.assertEqual({VGPU}, tree.closed(tree.ProviderChange(node('card', {VGPU: ours(4)}), None)))
        self.assertEqual(set(), tree.closed(tree.ProviderChange(None, before)))

    def test_a_new_provider_reserves_the_room(self) -> None:
        change = tree.without_room(tree.ProviderChange(None, node('card', {VGPU: ours(4), PMEM: ours(2)})), {VGPU})
        assert change.after is not None
        self.assertEqual({VGPU: ours(4, 4), PMEM: ours(2)}, change.after.inventories)

    def test_a_provider_keeps_the_room_that_it_has(self) -> None:
        before = node('card', {VGPU: ours(3, 1)})
        for after, expected in ((ours(6), ours(6, 4)), (ours(1), ours(1))):
            change = tree.without_room(tree.ProviderChange(before, node('card', {VGPU: after})), {VGPU})
            assert change.after is not None
            self.assertEqual({VGPU: expected}, change.after.inventories)

    def test_what_goes_goes(self) -> None:
        change = tree.ProviderChange(node('card', {VGPU: ours(3, 1)}), None)
        self.assertEqual(change, tree.without_room(change, {VGPU}))


class TestMark(base.TestCase):
    def test_of_a_long_name_fits(self) -> None:
        longest = 'CUSTOM_' + 'X' * 248
        mark = tree.mark(tree.COUNTS, longest)
        self.assertLessEqual(len(mark), names.LONGEST)
        self.assertNotEqual(mark, tree.mark(tree.COUNTS, longest[:-1] + 'Y'))
        root = node('', {longest: ours(1)}, {mark})
        self.assertEqual({longest}, tree.to_go(root, tree.desired([provider()]), ()))


class TestRender(base.TestCase):
    def test_shows_what_changes_where(self) -> None:
        actual = placement(
            node('', {VGPU: ClassInventory(9, 0, 1, 9, 1, 16.0), PMEM: ours(3), **THEIRS},
                 {tree.mark(tree.COUNTS, PMEM)}),
            node('gone', {VGPU: ours(4)}, {tree.MADE, tree.mark(tree.COUNTS, VGPU)}, used={VGPU: 2}),
            node('left', {}, {tree.MADE}))
        difference = tree.diff(actual, tree.desired([NODE, CARD]), {VGPU, PMEM})
        self.assertEqual(textwrap.dedent("""\
            node
              ~ CUSTOM_PMEM_NAMESPACE_4GB: 3, 0 reserved -> 3, 1 reserved
              - VGPU: 9, 0 reserved, allocation_ratio 16
              node_gone
                ~ VGPU: 4, 0 reserved -> 4, 2 reserved
                ! VGPU: kept without room: 2 allocated, and the host counts none here
              - node_left
                - CUSTOM_DEVICETRACK_PROVIDER
              + node_card
                + VGPU: 4, 1 reserved
                + CUSTOM_DEVICETRACK_COUNTS_VGPU
                + CUSTOM_DEVICETRACK_PROVIDER
                + CUSTOM_DEVICETRACK_VENDOR_NVIDIA"""), tree.render(actual.providers[ROOT], difference))

    def test_names_of_others_reach_no_terminal(self) -> None:
        actual = placement(node(), node('\x1b]0;x\x07\n  + FORGED', {VGPU: ours(4)}, {tree.MADE}))
        shown = tree.render(actual.providers[ROOT], tree.diff(actual, tree.desired([NODE]), {VGPU}))
        self.assertIn('\\x1b]0;x\\x07\\n  + FORGED', shown)
        self.assertTrue(all(map(str.isprintable, shown.split('\n'))))

    def test_of_nothing_is_nothing(self) -> None:
        self.assertEqual('', tree.render(node(), tree.Difference((), ())))


# -- random histories -------------------------------------------------------------------------------------------------

CLASSES = st.sampled_from([VGPU, PMEM, OLD])
PARENTS = ('', 'card', 'other')
TOTALS = st.dictionaries(CLASSES, st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=2)
TRAITS = st.sets(st.sampled_from([NVIDIA, ANY_MDEV, names.NUMA_ROOT, names.ours('device_api', 'vfio-pci')]))
PROVIDERS = st.tuples(TOTALS, st.dictionaries(st.sampled_from(PARENTS[1:]), st.tuples(TOTALS, TRAITS))).map(
    lambda drawn: [_drawn('', drawn[0], ()), *(_drawn(name, *facts) for name, facts in drawn[1].items())])


def _drawn(name: str, totals: dict[str, tuple[int, int]], traits: Any) -> Provider:
    return provider(name, {one: total for one, (total, _reserved) in totals.items()},
                    {one: reserved for one, (_total, reserved) in totals.items()}, sorted(traits))


def room(one: tree.ProviderState, name: str) -> int:
    """How much the scheduler may hand out."""
    inventory = one.inventories.get(name)
    used = (one.used or {}).get(name, 0)
    return 0 if inventory is None else max(0, inventory.total - inventory.reserved - used)


class PlacementMachine(stateful.RuleBasedStateMachine):
    """Placement, written to by reports of this host, by an operator and by whoever allocates."""

    def __init__(self) -> None:
        super().__init__()
        self.actual = placement(node('', THEIRS, {'COMPUTE_NODE'}))
        self.theirs: dict[tuple[str, str], object] = {(ROOT, 'VCPU'): THEIRS['VCPU'], (ROOT, 'COMPUTE_NODE'): True}

    def change(self, provider_uuid: str, **facts: Any) -> None:
        before = self.actual.providers[provider_uuid]
        self.actual = tree.ProviderTree(ROOT, {**self.actual.providers, provider_uuid: before._replace(
            generation=(before.generation or 0) + 1, **facts)})

    def draw(self, data: st.DataObject) -> tree.ProviderState:
        return data.draw(st.sampled_from(sorted(self.actual.providers.values(), key=lambda one: one.name)))

    @stateful.rule(providers=PROVIDERS, layout=st.sampled_from([*tree.LAYOUT_OF.values()]),
                   complete=st.booleans())
    def report(self, providers: list[Provider], layout: str, complete: bool) -> None:
        classes = tree.counted(providers)
        nested = tree.desired(providers)
        asked = tree.to_ask(self.actual, tree.desired(providers, layout), nested, classes)
        seen = tree.ProviderTree(ROOT, {uuid: one if uuid in asked else one._replace(used=None)
                                        for uuid, one in self.actual.providers.items()})
        layout = tree.possible(seen, providers, layout, classes)
        wanted = tree.desired(providers, layout, tree.held_below(seen, providers, layout),
                              tree.surplus_at_node(seen, providers, layout))
        difference = tree.diff(seen, wanted, classes, complete)
        before, self.actual = self.actual, applied(self.actual, tree.Difference(tuple(
            change if change.before is None else change._replace(before=self.actual.providers[change.before.uuid])
            for change in difference.changes), difference.left))

        again = tree.diff(self.actual, wanted, classes, complete)
        assert again == tree.Difference((), difference.left), again
        for one in self.actual.providers.values():
            for name in {*classes, *one.inventories}:
                if (one.uuid, name) not in self.theirs:         # ours, now or before
                    want = wanted.providers.get(one.uuid)
                    assert room(one, name) <= (room(want, name) if want else 0), (one, name)
        for name in classes:
            everywhere = sum(room(one, name) for one in self.actual.providers.values())
            assert everywhere <= sum(max(0, provider.totals.get(name, 0) - provider.reserved.get(name, 0))
                                     for provider in providers), name
            for one in self.actual.providers.values():
                if (one.uuid, name) not in self.theirs and (inventory := one.inventories.get(name)) is not None:
                    used = min(inventory.total, (one.used or {}).get(name, 0))
                    assert inventory.total - inventory.reserved >= used, (one, name)
            # What guests have is not offered, wherever it is allocated.
            offered = sum(room(one, name) for one in self.actual.providers.values())
            free = 0
            for listed in providers:
                there = self.actual.providers.get(listed.uuid)
                used = there.used.get(name, 0) if there is not None and there.used else 0
                total = listed.totals.get(name, 0)
                free += total - (used if listed.parent_uuid is None else min(used, total))
            assert offered <= max(0, free), (name, offered, free)
        if not complete:
            assert before.providers.keys() <= self.actual.providers.keys()

    @stateful.rule(data=st.data(), name=st.sampled_from(['CUSTOM_GOLD', names.NUMA_ROOT]))
    def somebody_sets_a_trait(self, data: st.DataObject, name: str) -> None:
        one = self.draw(data)
        if name not in one.traits:
            self.change(one.uuid, traits=one.traits | {name})
            self.theirs[one.uuid, name] = True

    @stateful.rule(data=st.data())
    def somebody_counts_something(self, data: st.DataObject) -> None:
        one = self.draw(data)
        self.change(one.uuid, inventories={**one.inventories, 'CUSTOM_THEIRS': ClassInventory(5)})
        self.theirs[one.uuid, 'CUSTOM_THEIRS'] = ClassInventory(5)

    @stateful.rule(data=st.data())
    def somebody_aggregates(self, data: st.DataObject) -> None:
        one = self.draw(data)
        self.change(one.uuid, aggregated=True)
        self.theirs[one.uuid, 'aggregate'] = True

    @stateful.rule(data=st.data(), name=CLASSES, amount=st.integers(1, 3))
    def allocate(self, data: st.DataObject, name: str, amount: int) -> None:
        one = self.draw(data)
        used = dict(one.used or {})
        if room(one, name) - used.get(name, 0) >= amount:
            self.change(one.uuid, used={**used, name: used.get(name, 0) + amount})

    @stateful.rule(data=st.data())
    def deallocate(self, data: st.DataObject) -> None:
        self.change(self.draw(data).uuid, used={})

    @stateful.invariant()
    def what_is_allocated_has_its_inventory(self) -> None:
        for one in self.actual.providers.values():
            assert all(name in one.inventories for name, used in (one.used or {}).items() if used)

    @stateful.invariant()
    def what_is_theirs_is_as_they_left_it(self) -> None:
        for (provider_uuid, name), value in self.theirs.items():
            one = self.actual.providers[provider_uuid]
            if name == 'aggregate':
                assert one.aggregated
            else:
                assert value == one.inventories.get(name, name in one.traits), (one, name)

    @stateful.invariant()
    def every_inventory_of_ours_is_marked(self) -> None:
        for one in self.actual.providers.values():
            for name in one.inventories:
                assert (one.uuid, name) in self.theirs or tree.mark(tree.COUNTS, name) in one.traits


class TestRandomHistories(base.TestCase):
    def test_placement_is_never_told_of_more_than_there_is(self) -> None:
        stateful.run_state_machine_as_test(PlacementMachine, settings=settings(
            max_examples=200, stateful_step_count=20))
