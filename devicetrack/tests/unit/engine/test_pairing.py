"""Pairs of devices: tables of named cases, and what holds for all of them."""

from __future__ import annotations

import collections
import pickle

from hypothesis import given
from hypothesis import strategies as st
import testtools

from devicetrack import exception
from devicetrack.engine import pairing
from devicetrack.tests import base

GIB = 1 << 30


def vgpu(identifier: str, device_type: str = 'nvidia-35', resource_class: str = 'VGPU') -> pairing.Paired:
    return pairing.Paired('mdev', identifier, resource_class, (device_type,))


def pmem(identifier: str, size_bytes: int = 4 * GIB, label: str = '4GB') -> pairing.Paired:
    return pairing.Paired('vpmem', identifier, f'CUSTOM_PMEM_NAMESPACE_{label}', (label, size_bytes))


class PairTestCase(base.TestCase):

    scenarios = base.table(
        ('nothing', [], [], ()),
        ('nothing of something', [], [vgpu('x')], ()),
        ('one', [vgpu('a')], [vgpu('x')], ((0, 0),)),
        ('the same identifier on both hosts means nothing',
         [pmem('ns0'), pmem('ns1')], [pmem('ns1'), pmem('ns0')], ((0, 0), (1, 1))),
        ('two kinds', [vgpu('a'), pmem('b')], [pmem('x'), vgpu('y')], ((0, 1), (1, 0))),
        ('two types', [vgpu('a', 'nvidia-36'), vgpu('b')], [vgpu('x'), vgpu('y', 'nvidia-36')], ((0, 1), (1, 0))),
        ('two sizes of one label', [pmem('a', GIB), pmem('b')], [pmem('x'), pmem('y', GIB)], ((0, 1), (1, 0))),
        ('two classes of one type', [vgpu('a', resource_class='CUSTOM_A'), vgpu('b')],
         [vgpu('x'), vgpu('y', resource_class='CUSTOM_A')], ((0, 1), (1, 0))),
        ('the order of equals is kept', [vgpu('a'), pmem('b'), vgpu('c')], [vgpu('x'), vgpu('y'), pmem('z')],
         ((0, 0), (1, 2), (2, 1))),
        ('more than are wanted', [vgpu('a')], [pmem('x'), vgpu('y'), vgpu('z')], ((0, 1),)),
        names=('source', 'destination', 'pairs'))

    def test_pairs(self) -> None:
        self.assertEqual(self.pairs, pairing.pair(self.source, self.destination))


class NoPairTestCase(base.TestCase):

    scenarios = base.table(
        ('nothing there', [vgpu('a')], [], 'a', 'no device of its kind'),
        ('another kind', [vgpu('a')], [pmem('x')], 'a', 'no device of its kind'),
        ('another class', [vgpu('a')], [vgpu('x', resource_class='CUSTOM_A')], 'a', 'class VGPU.* of CUSTOM_A'),
        ('another type', [vgpu('a')], [vgpu('x', 'nvidia-36')], 'a', 'has nvidia-35.*VGPU there have nvidia-36'),
        ('a larger one', [pmem('a', GIB)], [pmem('x')], 'a', f'4GB {GIB}.* 4GB {4 * GIB}'),
        ('too few', [vgpu('a'), vgpu('b'), vgpu('c')], [vgpu('x'), vgpu('y')], 'c', 'all 2 devices like it'),
        names=('source', 'destination', 'identifier', 'reason'))

    def test_the_device_is_named_with_the_reason(self) -> None:
        error = self.assertRaises(exception.NoDevicePair, pairing.pair, self.source, self.destination)
        self.assertEqual(self.identifier, error.identifier)
        self.assertRegex(error.reason, self.reason)
        self.assertIn(self.identifier, str(error))
        self.assertEqual(str(error), str(pickle.loads(pickle.dumps(error))))


_DEVICES = st.lists(st.builds(
    pairing.Paired, st.sampled_from(('vpmem', 'mdev')), st.text('abc', max_size=2), st.sampled_from(('A', 'B')),
    st.sampled_from((('x',), ('y',)))), max_size=12)


class PropertiesTestCase(testtools.TestCase):

    @given(_DEVICES, _DEVICES)
    def test_every_answer_is_a_pairing_and_every_refusal_is_right(
            self, source: list[pairing.Paired], destination: list[pairing.Paired]) -> None:
        def classes(devices: list[pairing.Paired]) -> collections.Counter[object]:
            return collections.Counter((device.kind, device.resource_class, device.traits) for device in devices)

        missing = classes(source) - classes(destination)
        try:
            pairs = pairing.pair(source, destination)
        except exception.NoDevicePair:
            self.assertTrue(missing)
            return
        self.assertFalse(missing)
        self.assertEqual(list(range(len(source))), [one for one, _other in pairs])
        self.assertEqual(len(pairs), len({other for _one, other in pairs}))
        for one, other in pairs:
            self.assertEqual(source[one]._replace(identifier=''), destination[other]._replace(identifier=''))
        for one, other in pairs:
            for later, its_partner in pairs[one + 1:]:
                if source[later]._replace(identifier='') == source[one]._replace(identifier=''):
                    self.assertLess(other, its_partner)

    @given(_DEVICES)
    def test_identifiers_decide_nothing(self, source: list[pairing.Paired]) -> None:
        renamed = [device._replace(identifier=str(index)) for index, device in enumerate(source)]
        self.assertEqual(pairing.pair(source, source), pairing.pair(renamed, source))
