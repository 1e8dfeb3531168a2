"""What was allocated, shared out among those that ask for it."""

from __future__ import annotations

import itertools

import hypothesis
from hypothesis import strategies

from devicetrack.engine import shares
from devicetrack.tests import base


class ClassesTestCase(base.TestCase):

    scenarios = base.table(
        ('one class', [('A', 2)], 'AAB', ['AA']),
        ('the first of two', [('AB', 2)], 'AABB', ['AA']),
        ('the rest of the second', [('AB', 3)], 'AAB', ['AAB']),
        ('an earlier one gives its class to a later one', [('AB', 1), ('A', 1)], 'AB', ['B', 'A']),
        ('through a third', [('AB', 1), ('BC', 1), ('A', 1)], 'ABC', ['B', 'C', 'A']),
        ('too little of one', [('A', 2)], 'ABB', None),
        ('too little for all', [('AB', 1), ('AB', 1), ('A', 1)], 'AB', None),
        ('nothing of it', [('C', 1)], 'AB', None),
        names=('asked', 'there', 'given'))

    def test_are_decided(self) -> None:
        free = {name: self.there.count(name) for name in self.there}
        given = shares.classes([(tuple(names), amount) for names, amount in self.asked], free)
        self.assertEqual(self.given, None if given is None else [
            ''.join(name * amount for name, amount in sorted(one.items())) for one in given])


class AnyClassesTestCase(base.TestCase):

    @hypothesis.settings(max_examples=300, deadline=None)
    @hypothesis.given(
        asked=strategies.lists(strategies.tuples(strategies.sampled_from(
            ['A', 'B', 'C', 'AB', 'BC', 'CA', 'ABC']), strategies.integers(1, 2)), max_size=3),
        there=strategies.text('ABC', max_size=6))
    def test_are_found_whenever_there_is_a_way(self, asked: list[tuple[str, int]], there: str) -> None:
        wanted = [names for names, amount in asked for _ in range(amount)]
        fits = any(all(name in names for name, names in zip(some, wanted, strict=False))
                   for some in itertools.permutations(there, len(wanted)))
        free = {name: there.count(name) for name in 'ABC'}
        given = shares.classes([(tuple(names), amount) for names, amount in asked], free)
        self.assertEqual(fits, given is not None)
        for (names, amount), one in zip(asked, given or (), strict=given is not None):
            self.assertEqual(amount, sum(one.values()))
            self.assertLessEqual(set(one), set(names))
        for name in free if given is not None else ():
            self.assertLessEqual(sum(one.get(name, 0) for one in given or ()), free[name])


class WaysTestCase(base.TestCase):

    def test_every_way_once_and_the_first_places_first(self) -> None:
        found = list(shares.ways([1, 1], [1, 2]))
        self.assertEqual([[{0: 1}, {1: 1}], [{1: 1}, {0: 1}], [{1: 1}, {1: 1}]], found)

    def test_a_few_of_many(self) -> None:
        self.assertEqual(shares.MOST, len(list(shares.ways([5, 5], [1] * 10))))

    def test_one_way_over_very_many_places(self) -> None:
        [[first, second]] = shares.ways([1000, 1000], [1] * 3000)
        self.assertEqual((set(range(1000)), set(range(1000, 2000))), (set(first), set(second)))
