"""Thousands of named tuples that the garbage collector does not see."""

from __future__ import annotations

import gc
import uuid

from oslotest import base

from devicetrack.objects.compact import Compact
from devicetrack.objects.values import Use


def plain(*identifiers: str | None, domain: str = 'one') -> list[tuple[object, ...]]:
    return [('vpmem', identifier, f'/dev/{identifier}', domain, True, True, False) for identifier in identifiers]


def use(identifier: str | None, domain: str = 'one') -> Use:
    return Use('vpmem', identifier, f'/dev/{identifier}', domain, True, True, False)


class CompactTestCase(base.BaseTestCase):

    def setUp(self) -> None:
        super().setUp()
        self.uses = Compact(Use, plain('a', 'b', None))

    def test_has_the_named_ones_in_their_order(self) -> None:
        self.assertEqual([use('a'), use('b'), use(None)], list(self.uses))
        self.assertEqual([Use] * 3, [type(one) for one in self.uses])
        self.assertEqual((3, use('b'), use(None)), (len(self.uses), self.uses[1], self.uses[-1]))
        self.assertEqual([Use], [type(one) for one in self.uses[1:2]])
        self.assertIn(use('b'), self.uses)

    def test_equals_any_sequence_of_the_same(self) -> None:
        for same in ([use('a'), use('b'), use(None)], (use('a'), use('b'), use(None)),
                     Compact(Use, iter(plain('a', 'b', None))), Compact(Use, self.uses)):
            self.assertEqual(same, self.uses)
        for other in ([use('a'), use('b')], [use('a'), use('b'), use('c')], Compact(Use), 'abc', None):
            self.assertNotEqual(other, self.uses)
        self.assertEqual(hash(Compact(Use, plain('a'))), hash(Compact(Use, [use('a')])))
        self.assertEqual(repr((use('a'),)), repr(Compact(Use, plain('a'))))

    def test_by_key_has_the_last_of_each(self) -> None:
        by_key = Compact(Use, [*plain('a', 'b'), *plain('a', domain='two')]).by('kind', 'identifier')
        self.assertEqual([('vpmem', 'a'), ('vpmem', 'b')], list(by_key))
        self.assertEqual((use('a', 'two'), use('b')), (by_key['vpmem', 'a'], by_key.get(('vpmem', 'b'))))
        self.assertEqual((None, 'none'), (by_key.get(('vpmem', 'c')), by_key.get(('vpmem', 'c'), 'none')))
        self.assertRaises(KeyError, lambda: by_key['vpmem', 'c'])
        self.assertEqual((2, True, False), (len(by_key), ('vpmem', 'a') in by_key, ('vpmem', 'c') in by_key))
        self.assertEqual([Use, Use], [type(one) for one in by_key.values()])
        self.assertEqual({('vpmem', 'a'): 'two', ('vpmem', 'b'): use('b').domain_uuid}, by_key.column('domain_uuid'))
        self.assertEqual([(('vpmem', 'a'), ('two', 'a')), (('vpmem', 'b'), (use('b').domain_uuid, 'b'))],
                         list(by_key.columns('domain_uuid', 'identifier')))

    def test_all_who_ask_for_the_same_keys_share_them(self) -> None:
        by_key = self.uses.by('kind', 'identifier')
        self.assertIs(by_key, Compact(Use, self.uses).by('kind', 'identifier'))
        self.assertEqual([('one', 'a'), ('one', 'b'), ('one', None)], list(self.uses.by('domain_uuid', 'identifier')))

    def test_the_collector_goes_through_none_of_them(self) -> None:
        only_here = uuid.uuid4().hex
        many = Compact(Use, ((only_here, str(number), *plain('a')[0][2:]) for number in range(1000)))
        by_key = many.by('kind', 'identifier')
        self.assertEqual(1000, len(by_key))
        gc.collect()
        # Others' objects may raise when they are compared with a text.
        tracked = [found for found in gc.get_objects()
                   if isinstance(found, tuple) and found and isinstance(found[0], str) and found[0] == only_here]
        self.assertEqual([], tracked)
