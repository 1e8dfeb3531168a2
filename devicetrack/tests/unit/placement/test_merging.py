"""Views of what a consumer holds, put together: named cases."""

from __future__ import annotations

from devicetrack.placement import merging
from devicetrack.placement.values import Resources
from devicetrack.tests import base


def view(**amounts: int) -> Resources:
    """``a_cpu=2`` is two of ``cpu`` of provider ``a``."""
    made: dict[str, dict[str, int]] = {}
    for key, amount in amounts.items():
        provider, name = key.split('_')
        made.setdefault(provider, {})[name] = amount
    return made


class TestMerge(base.TestCase):

    scenarios = base.table(
        ('nobody else', view(a_gpu=1), view(a_gpu=1), view(a_gpu=2), view(a_gpu=2)),
        ('nothing changes', view(a_gpu=1), view(a_gpu=1, a_cpu=2), view(a_gpu=1), view(a_gpu=1, a_cpu=2)),
        ('others hold another class', view(a_gpu=1), view(a_gpu=1, a_cpu=2), view(a_gpu=2), view(a_gpu=2, a_cpu=2)),
        ('others hold of another provider', view(a_gpu=1), view(a_gpu=1, b_net=5), view(a_gpu=2),
         view(a_gpu=2, b_net=5)),
        ('others hold more of ours', view(a_gpu=1), view(a_gpu=3), view(a_gpu=2), view(a_gpu=4)),
        ('others took some of ours', view(a_gpu=2), view(a_gpu=1), view(a_gpu=3), view(a_gpu=3)),
        ('others took all of ours', view(a_gpu=2), view(), view(a_gpu=2), view(a_gpu=2)),
        ('ours goes', view(a_gpu=1), view(a_gpu=1, a_cpu=2), view(), view(a_cpu=2)),
        ('ours goes, theirs of the same stays', view(a_gpu=1), view(a_gpu=2), view(), view(a_gpu=1)),
        ('ours comes', view(), view(a_cpu=2), view(b_gpu=1), view(a_cpu=2, b_gpu=1)),
        ('ours comes beside theirs of the same', view(), view(a_gpu=1), view(a_gpu=1), view(a_gpu=2)),
        ('ours goes elsewhere', view(a_gpu=1), view(a_gpu=1, a_cpu=2), view(b_gpu=1), view(a_cpu=2, b_gpu=1)),
        ('all goes', view(a_gpu=1), view(a_gpu=1), view(), view()),
        names=('own', 'current', 'wanted', 'merged'))

    def test_it_is(self):
        self.assertEqual(self.merged, merging.merge(self.own, self.current, self.wanted))

    def test_merged_again_nothing_changes(self):
        self.assertEqual(self.merged, merging.merge(self.wanted, self.merged, self.wanted))


class TestViews(base.TestCase):

    def test_either_is_enough_for_both_and_added_once(self):
        both = merging.either(view(a_cpu=2, s_disk=10), view(b_cpu=2, s_disk=5))
        self.assertEqual(view(a_cpu=2, b_cpu=2, s_disk=10), both)
        self.assertEqual(both, merging.either(both, view(b_cpu=2, s_disk=5)))

    def test_common(self):
        self.assertEqual(view(a_cpu=1), merging.common(view(a_cpu=2, a_gpu=1), view(a_cpu=1, b_gpu=1)))

    def test_without(self):
        self.assertEqual(view(b_cpu=2), merging.without(view(a_cpu=2, a_gpu=1, b_cpu=2), ['a', 'c']))

    def test_contains(self):
        self.assertTrue(merging.contains(view(a_cpu=2, b_gpu=1), view(a_cpu=1)))
        self.assertTrue(merging.contains(view(), view(a_cpu=0)))
        self.assertFalse(merging.contains(view(a_cpu=2), view(a_cpu=3)))
        self.assertFalse(merging.contains(view(a_cpu=2), view(b_cpu=1)))

    def test_agree_where_it_is_asked(self):
        one, two = view(a_cpu=2, a_gpu=1), view(a_cpu=2, b_gpu=1)
        self.assertTrue(merging.agree(one, two, view(a_cpu=9)))
        self.assertFalse(merging.agree(one, two, view(a_cpu=9), view(b_gpu=0)))

    def test_plain(self):
        self.assertEqual(view(a_cpu=1), merging.plain(view(a_cpu=1, a_gpu=0, b_gpu=0)))
