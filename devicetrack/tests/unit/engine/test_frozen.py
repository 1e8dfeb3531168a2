"""Collections that never change, beside those of Python in random histories."""

import pickle

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from devicetrack.engine.frozen import FrozenLine
from devicetrack.engine.frozen import FrozenMap
from devicetrack.tests import base

KEYS = st.integers(0, 60)
HISTORIES = st.lists(st.dictionaries(KEYS, st.none() | st.integers(), max_size=30), max_size=12)
ENTRIES = st.lists(st.lists(st.tuples(st.integers(-5, 2000), st.sampled_from('ab')), max_size=8), max_size=30)


class FrozenMapTestCase(base.TestCase):

    @settings(deadline=None, database=None)
    @given(HISTORIES)
    def test_has_what_a_dictionary_has_and_earlier_ones_keep_theirs(self, history):
        found: FrozenMap[int, int] = FrozenMap()
        expected: dict[int, int] = {}
        before = []
        for changes in history:
            before.append((found, dict(expected)))
            found = found.changed(changes)
            expected.update(changes)
            expected = {key: value for key, value in expected.items() if value is not None}
            self.assertEqual(expected, found.plain())
            self.assertEqual(sorted(expected), sorted(found))
            self.assertEqual(sorted(expected.values()), sorted(found.each()))
            self.assertEqual([len(expected), expected.get(3), 7 in expected],
                             [len(found), found.get(3), 7 in found])
            self.assertEqual(found, pickle.loads(pickle.dumps(found)))
        for earlier, what in before:
            self.assertEqual(what, dict(earlier))
            self.assertEqual({key for key in {*what, *expected} if what.get(key) != expected.get(key)},
                             {key for key in found.differing(earlier) if what.get(key) != expected.get(key)})

    def test_a_key_that_is_not_there(self):
        self.assertRaises(KeyError, FrozenMap({1: 2}).__getitem__, 3)
        self.assertEqual('none', FrozenMap({1: 2}).get(3, 'none'))

    def test_thousands_differ_by_what_was_changed(self):
        first = FrozenMap({number: str(number) for number in range(5000)})
        self.assertEqual({17, 6000}, first.changed({17: 'other', 6000: 'new'}).differing(first))
        self.assertEqual({17}, first.changed({17: None}).differing(first))


class LineTestCase(base.TestCase):

    @settings(deadline=None, database=None)
    @given(st.integers(0, 1500), ENTRIES)
    def test_is_in_order_whatever_comes_and_goes(self, number, history):
        expected = {(one, 'a') for one in range(number)}
        line = FrozenLine(expected)
        for some in history:
            into, out = set(some) - expected, set(some) & expected
            before = line
            line = line.changed(into, out)
            self.assertEqual((len(expected), sorted(expected)), (len(before), list(before)))
            expected = (expected | into) - out
            self.assertEqual((len(expected), sorted(expected)), (len(line), list(line)))
            self.assertEqual(min(expected), line.first) if expected else self.assertFalse(line)
