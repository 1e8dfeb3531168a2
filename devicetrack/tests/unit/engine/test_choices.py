"""Devices that are chosen by what they are: their features, and one class of several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.engine import demand
from devicetrack.objects import values
from devicetrack.objects.choice import Choice
from devicetrack.tests import base
from devicetrack.tests.unit.engine import hosts

A, B = 'CUSTOM_A', 'CUSTOM_B'
BIG, BLUE, RED = Choice(A, frozenset(('big',))), Choice(A, frozenset(('blue',))), Choice(A, frozenset(('red',)))
NEITHER = Choice(A, refuses=frozenset(('blue', 'red')))


def function(name: str, features: str = '', resource_class: str = A, parent: str = 'p0',
             numa_node: int | None = 0, exclusions: tuple[tuple[str, str], ...] = ()) -> values.InventoryDevice:
    return values.InventoryDevice('pci', name, parent, resource_class, parent, numa_node, f'details of {name}',
                                  exclusions=exclusions,
                                  features=tuple(sorted(features.split())))


def ledger(*devices: values.InventoryDevice, sockets: dict[int, int] | None = None) -> Any:
    made = hosts.ledger()
    made.read_inventory(hosts.inventory(*devices, known=('pci',))._replace(sockets=tuple((sockets or {}).items())))
    return made


def item(*choices: Choice, amount: int = 1, provider: str | None = None, policy: str | None = None) -> demand.Item:
    return demand.Item(choices[0].resource_class, amount, None if provider is None else hosts.provider(provider),
                       choices=choices, numa_policy=policy)


def wants(*items: demand.Item, **more: Any) -> demand.Demand:
    return demand.Demand(items, **more)


class ChoiceTestCase(base.TestCase):

    scenarios = base.table(
        ('has what is needed', BIG, 'blue', 'big red', 'b'),
        ('has what is needed, and more', BIG, 'big', 'big red', 'a'),
        ('has nothing that is refused', NEITHER, 'blue', 'big', 'b'),
        ('needs nothing', Choice(A), 'big', 'red', 'a'),
        ('none', BIG, 'blue', 'red', None),
        names=('choice', 'of_a', 'of_b', 'taken'))

    def test_takes_a_device_that(self) -> None:
        made = ledger(function('a', self.of_a), function('b', self.of_b))
        if self.taken is None:
            before = hosts.everything(made)
            self.assertRaises(exception.NoFit, made.take, 'i', wants(item(self.choice)))
            self.assertEqual(before, hosts.everything(made))
        else:
            self.assertEqual([self.taken], hosts.taken(made.take('i', wants(item(self.choice)))))


class ChoicesTestCase(base.TestCase):

    def test_any_of_several_will_do_and_they_may_be_of_several_classes(self) -> None:
        made = ledger(function('a', 'red'), function('b', 'big', B), function('c', 'blue'), function('d', 'red', B))
        either = item(BLUE, Choice(B, frozenset(('big',))), amount=2)
        self.assertEqual(['b', 'c'], sorted(hosts.taken(made.take('i', wants(either)))))
        self.assertRaises(exception.NoFit, made.take, 'j', wants(either._replace(amount=1)))

    def test_of_a_provider_are_its_own(self) -> None:
        made = ledger(function('a', 'big'), function('b', 'red', parent='p1'), function('c', 'big', parent='p1'))
        self.assertEqual(['c'], hosts.taken(made.take('i', wants(item(BIG, provider='p1')))))
        self.assertRaises(exception.NoFit, made.take, 'j', wants(item(BIG, provider='p1')))

    def test_one_item_leaves_to_another_what_only_that_can_have(self) -> None:
        devices = function('a', 'blue'), function('b', 'blue red'), function('c', 'red')
        either, blue = item(BLUE, RED), item(BLUE)
        for items in ([either, blue, item(RED)], [item(RED), blue, either], [blue, either, item(RED)]):
            made = ledger(*devices)
            hold = made.take('i', wants(*items))
            self.assertEqual({'a', 'b', 'c'}, set(hosts.taken(hold)))
        # Either choice alone may have b, and whoever takes it first leaves nothing to the other.
        made = ledger(function('b', 'blue red'), function('c', 'red'))
        self.assertEqual(['c', 'b'], hosts.taken(made.take('i', wants(item(RED), item(BLUE)))))
        made = ledger(function('b', 'blue red'), function('a', 'blue', parent='p1'))
        self.assertEqual(['b', 'a'], hosts.taken(made.take('i', wants(item(RED), item(BLUE)))))

    def test_what_is_shared_out_in_another_way_is_tried_too(self) -> None:
        made = ledger(function('a', 'blue'), function('b', 'red', parent='p1'))
        ways = [tuple(item(choice, provider=provider) for choice, provider in zip((RED, BLUE), some, strict=True))
                for some in (('p0', 'p1'), ('p1', 'p0'))]
        self.assertRaises(exception.NoFit, made.take, 'i', wants(*ways[0]))
        self.assertEqual(['b', 'a'], hosts.taken(made.take('i', wants(*ways[0], alternatives=(ways[1],)))))

    def test_a_device_that_has_other_features_now_is_chosen_by_these(self) -> None:
        made = ledger(function('a', 'blue'))
        made.read_inventory(hosts.inventory(function('a', 'red'), known=('pci',)))
        self.assertRaises(exception.NoFit, made.take, 'i', wants(item(BLUE)))
        hold = made.take('i', wants(item(RED)))
        made.free(hold.keys)
        self.assertEqual(['a'], hosts.taken(made.take('j', wants(item(RED)))))

    def test_a_device_that_became_free_is_seen_by_choices_that_were_asked_for_before(self) -> None:
        made = ledger(function('a', 'red'))
        hold = made.take('i', wants(item(RED)))
        self.assertRaises(exception.NoFit, made.take, 'j', wants(item(RED)))
        made.free(hold.keys)
        self.assertEqual(['a'], hosts.taken(made.take('j', wants(item(RED)))))

    def test_what_only_its_own_instance_excludes_is_chosen_by_its_features_too(self) -> None:
        together = (('iommu:1', vocabulary.TOGETHER),)
        made = ledger(function('a', 'blue', exclusions=together), function('b', 'red', exclusions=together))
        self.assertRaises(exception.NoFit, made.take, 'i', wants(item(BLUE, amount=2)))
        self.assertEqual(['a', 'b'], hosts.taken(made.take('i', wants(item(BLUE), item(RED)))))


class ShortageTestCase(base.TestCase):

    def shortage(self, made: Any, *items: demand.Item, **more: Any) -> Any:
        error = self.assertRaises(exception.NoFit, made.take, 'i', wants(*items, **more))
        [shortage] = error.shortages
        return shortage

    def test_counts_what_is_meant_and_says_what_is_not(self) -> None:
        made = ledger(function('a', 'red'), function('b', 'blue'), function('c', 'blue'))
        made.take('k', wants(item(BLUE)))
        found = self.shortage(made, item(BLUE, amount=2))
        self.assertEqual((2, 2, 1, 1, 1), (found.wanted, found.exist, found.free, found.held, found.not_meant))
        self.assertIn('1 free of another product or type than the alias means, or without its traits', str(found))

    def test_says_it_where_nothing_is_meant(self) -> None:
        found = self.shortage(ledger(function('a', 'red')), item(BLUE, Choice(B)))
        self.assertEqual('1 CUSTOM_A or CUSTOM_B wanted, this host has none: 1 free of another product or type than '
                         'the alias means, or without its traits', str(found))

    def test_counts_nodes_by_the_policy_of_the_item(self) -> None:
        found = self.shortage(ledger(function('a', 'red', numa_node=1)), item(RED, policy='required'),
                              numa_nodes=frozenset((0,)))
        self.assertEqual((0, 1), (found.free, found.wrong_numa_node))


class AffinityTestCase(base.TestCase):
    """What each policy takes for a guest on node 0, of devices on these nodes; one after the other."""

    SOCKETS = {0: 0, 1: 0, 2: 1, 3: 1}

    scenarios = base.table(
        ('required', vocabulary.REQUIRED, SOCKETS, ['near', 'near too']),
        ('socket', vocabulary.SOCKET, SOCKETS, ['near', 'near too', 'on the socket']),
        ('socket, where sockets are unknown', vocabulary.SOCKET, {}, ['near', 'near too']),
        ('legacy', vocabulary.LEGACY, SOCKETS, ['near', 'near too', 'nowhere']),
        ('preferred', vocabulary.PREFERRED, SOCKETS, ['near', 'near too', 'nowhere', 'far', 'on the socket']),
        ('none', vocabulary.NONE, SOCKETS, ['far', 'near', 'near too', 'nowhere', 'on the socket']),
        names=('policy', 'sockets', 'taken'))

    devices = (function('far', 'red', parent='a', numa_node=2), function('nowhere', 'red', parent='c', numa_node=None),
               function('on the socket', 'red', parent='d', numa_node=1), function('near', 'red', parent='b'),
               function('near too', 'red', parent='b'))

    def take_all(self, wanted: demand.Demand) -> list[str]:
        made, taken = ledger(*self.devices, sockets=self.sockets), []
        for number in range(len(self.devices)):
            try:
                taken += hosts.taken(made.take(str(number), wanted))
            except exception.NoFit:
                break
        return taken

    def test_of_the_demand(self) -> None:
        self.assertEqual(self.taken, self.take_all(wants(item(RED), numa_nodes=frozenset((0,)),
                                                         numa_policy=self.policy)))

    def test_of_the_item_comes_before_that_of_the_demand(self) -> None:
        self.assertEqual(self.taken, self.take_all(wants(item(RED, policy=self.policy), numa_nodes=frozenset((0,)),
                                                         numa_policy=vocabulary.REQUIRED)))

    def test_of_a_guest_that_is_not_pinned(self) -> None:
        self.assertEqual(5, len(self.take_all(wants(item(RED, policy=self.policy)))))


class NarrowTestCase(base.TestCase):
    """Devices for nodes that become known after the claim."""

    def narrow(self, devices: Sequence[values.InventoryDevice], wanted: demand.Demand,
               policy: str | None = None) -> list[str]:
        made = ledger(*devices, sockets={0: 0, 1: 0, 2: 1})
        hold = made.take('i', wanted)
        before = hosts.everything(made)
        try:
            exchanged = dict(made.narrow(dict.fromkeys(hold.keys), frozenset((0,)), policy))
        except exception.NoFit:
            self.assertEqual(before, hosts.everything(made))
            raise
        return [hosts.taken(exchanged[key])[0] if key in exchanged else key.identifier for key in hold.keys]

    far, near, blue = (function('a', 'red', numa_node=2), function('b', 'red', parent='p1'),
                       function('c', 'blue', parent='p2'))

    def test_what_is_chosen_then_is_meant_too(self) -> None:
        self.assertEqual(['b'], self.narrow((self.far, self.near), wants(item(RED, policy='required'))))
        self.assertRaises(exception.NoFit, self.narrow, (self.far, self.blue), wants(item(RED, policy='required')))
        self.assertEqual(['a'], self.narrow((self.far, self.blue), wants(item(RED, policy='preferred'))))

    def test_each_device_goes_by_its_own_policy(self) -> None:
        nowhere = function('b', 'blue', parent='p0', numa_node=None)
        both = item(RED, policy='preferred'), item(BLUE, policy='legacy')
        self.assertEqual(['a', 'b'], self.narrow((self.far, nowhere), wants(*both)))
        self.assertRaises(exception.NoFit, self.narrow, (self.far, nowhere._replace(numa_node=1)), wants(*both))
        self.assertEqual(['a', 'b'], self.narrow(
            (self.far, nowhere._replace(numa_node=1)), wants(both[0], both[1]._replace(numa_policy='socket'))))

    def test_one_policy_for_all_replaces_theirs(self) -> None:
        self.assertEqual(['a'], self.narrow((self.far,), wants(item(RED, policy='required')), 'preferred'))
        self.assertRaises(exception.NoFit, self.narrow, (self.far,), wants(item(RED, policy='preferred')), 'required')

    def test_what_was_asked_for_without_one_is_near_where_that_can_be(self) -> None:
        plain = demand.Item(A, 1)
        self.assertEqual(['b'], self.narrow((self.far, self.near), wants(plain)))
        self.assertEqual(['a'], self.narrow((self.far,), wants(plain)))

    def test_a_far_one_goes_for_one_that_the_policy_allows_when_none_is_near(self) -> None:
        devices = self.far, function('b', 'red', parent='p1', numa_node=None), function('c', 'red', parent='p2',
                                                                                      numa_node=1)
        self.assertEqual(['b'], self.narrow(devices, wants(item(RED, policy='legacy'))))
        self.assertEqual(['c'], self.narrow(devices, wants(item(RED, policy='socket'))))

    def test_what_rows_told_of_has_the_same_features_and_must_be_near(self) -> None:
        # Rows do not say whether the request named the provider, so the other device is of the same one.
        for near, fits in ((function('b', 'red'), True), (function('b', 'red big'), True),
                           (function('b', 'blue'), False), (function('b', 'red', parent='p1'), False)):
            made = ledger(self.far, near)
            keys = hosts.hold_rows(made, hosts.row(self.far, 'i'))
            if fits:
                [(_key, hold)] = made.narrow(dict.fromkeys(keys), frozenset((0,)), None)
                self.assertEqual(['b'], hosts.taken(hold))
            else:
                self.assertRaises(exception.NoFit, made.narrow, dict.fromkeys(keys), frozenset((0,)), None)
