"""Names of traits: what hosts offer and guests require as tables, and what holds for all facts."""

from __future__ import annotations

import re
from typing import Any
from unittest import mock
from urllib import parse

from hypothesis import example
from hypothesis import given
from hypothesis import strategies as st
import testtools

from devicetrack import exception
from devicetrack.compatibility import traits
from devicetrack.compatibility.facts import Facts
from devicetrack.compatibility.facts import MigrationVersion
from devicetrack.compatibility.facts import Opaque
from devicetrack.compatibility.facts import Sort
from devicetrack.compatibility.facts import STATELESS
from devicetrack.compatibility.facts import UnknownVersion
from devicetrack.compatibility.facts import Version
from devicetrack.compatibility.partners import Held
from devicetrack.compatibility.rules import AGGREGATION
from devicetrack.compatibility.rules import API
from devicetrack.compatibility.rules import decide
from devicetrack.compatibility.rules import MINOR
from devicetrack.compatibility.rules import Rules
from devicetrack.objects.traits import is_of_migration
from devicetrack.objects.traits import LONGEST
from devicetrack.tests import base

MDEV = Sort('mdev', 'nvidia-35')
VF = Sort('vf', '10de:2235')
PMEM = Sort('vpmem', '4GB 1073741824')
NEW = Version(2, 1, 0)
UNKNOWN = UnknownVersion('nobody said')
STRICT, LENIENT = Rules(), Rules(require_version=False)
CROSSING = frozenset({(MDEV, VF)})
OUR_MDEV = 'CUSTOM_MIG_MDEV_NVIDIA_35'
OUR_VF = 'CUSTOM_MIG_VF_10DE_2235_HB73261EDE06C452E'


def device(version: MigrationVersion = NEW, sort: Sort = MDEV, **facts: Any) -> Facts:
    return Facts(sort, 'vfio-pci', version)._replace(**facts)


class NamesTestCase(base.TestCase):

    scenarios = base.table(
        ('a type of hyphens', MDEV, 'MDEV_NVIDIA_35'),
        ('a number', Sort('vf', '558'), 'VF_558'),
        ('capitals and underscores', Sort('mdev', 'i915-GVTg_V5_4'), 'MDEV_I915_GVTG_4_H'),
        ('ids of a function', VF, 'VF_10DE_2235_H'),
        ('label and size', PMEM, 'VPMEM_4GB_1073741824_H'),
        ('no type', Sort('gpu', ''), 'GPU_H'),
        ('none of our letters', Sort('gpu', 'ä'), 'GPU_H'),
        ('two hyphens', Sort('mdev', 'nvidia--35'), 'MDEV_NVIDIA_35_H'),
        ('a line', Sort('mdev', 'nvidia-35\n'), 'MDEV_NVIDIA_35_H'),
        ('a part that means a version', Sort('mdev', 'gpu-v2'), 'MDEV_GPU_H'),
        ('a part that means a feature', Sort('mdev', 'gpu-f-x'), 'MDEV_GPU_X_H'),
        ('a part that is like a digest', Sort('mdev', 'gpu-h0123456789abcdef'), 'MDEV_GPU_H'),
        ('a part that means something once it is cut', Sort('mdev', 'x' * 62 + '-fgh'), f'MDEV_{"X" * 62}_H'),
        ('a kind of two parts', Sort('my-gpu', 'x'), 'MY_GPU_H'),
        ('a kind that means something', Sort('any', 'x'), 'H'),
        ('as long as may be', Sort('mdev', 'x' * 64), f'MDEV_{"X" * 64}'),
        ('longer', Sort('mdev', 'x' * 65), f'MDEV_{"X" * 64}_H'),
        names=('sort', 'expected'))

    def test_of_sorts(self) -> None:
        _any, name = sorted(traits.offered(device(UNKNOWN, self.sort)))
        pattern = self.expected + ('[0-9A-F]{16}(_X)?' if self.expected.endswith('H') else '')
        self.assertIsNotNone(re.fullmatch(f'CUSTOM_MIG_{pattern}_VUNKNOWN', name), name)


class OfferedTestCase(base.TestCase):

    scenarios = base.table(
        ('the first minor', device(Version(2, 0, 5)), {'_V2_0', '_ANY'}),
        ('every minor that it accepts', device(Version(2, 2, 0)), {'_V2_0', '_V2_1', '_V2_2', '_ANY'}),
        ('no version', device(STATELESS), {'_VNONE', '_ANY'}),
        ('unknown', device(UNKNOWN), {'_VUNKNOWN', '_ANY'}),
        ("a vendor's own", device(Opaque('470.1')), {'_VOPAQUE_29B2A230ADBD00DF', '_ANY'}),
        ('features', device(STATELESS, offered=frozenset({'HW_GPU_A', 'b 1'})),
         {'_VNONE', '_ANY', '_F_HW_GPU_A', '_F_B_1_HDC67949BDCA3C2E1'}),
        ('what a guest on it requires is nothing that it offers', device(STATELESS, required=frozenset({'A'})),
         {'_VNONE', '_ANY'}),
        ('an obstacle', device(obstacle='QEMU is too old'), set()),
        names=('facts', 'expected'))

    def test_offered(self) -> None:
        self.assertEqual({OUR_MDEV + suffix for suffix in self.expected}, traits.offered(self.facts))

    def test_of_many_minors_no_more_are_told_than_the_largest(self) -> None:
        names = traits.offered(device(Version(2, 10 ** 9 - 1, 0)))
        self.assertEqual(traits.LARGEST_MINOR + 2, len(names))
        self.assertEqual((frozenset({f'{OUR_MDEV}_V2_99'}),),
                         traits.required(Held('a', device(Version(2, 120, 0))), STRICT))


def crossed(*suffixes: str) -> set[str]:
    return {name + suffix for name in (OUR_MDEV, OUR_VF) for suffix in suffixes}


class RequiredTestCase(base.TestCase):

    scenarios = base.table(
        ('a version', device(), None, STRICT, [{f'{OUR_MDEV}_V2_1'}]),
        ('the patch does not matter', device(Version(2, 1, 7)), None, STRICT, [{f'{OUR_MDEV}_V2_1'}]),
        ('more was seen', device(), Version(2, 3, 0), STRICT, [{f'{OUR_MDEV}_V2_3'}]),
        ('less was seen', device(), Version(2, 0, 0), STRICT, [{f'{OUR_MDEV}_V2_0'}]),
        ('what was seen of another major', device(), Version(1, 9, 0), STRICT, [{f'{OUR_MDEV}_V2_1'}]),
        ('none needed', device(STATELESS), None, STRICT, [{f'{OUR_MDEV}_VNONE'}]),
        ('not required', device(), None, LENIENT, [{f'{OUR_MDEV}_V2_1', f'{OUR_MDEV}_VUNKNOWN'}]),
        ('none needed and not required', device(STATELESS), None, LENIENT,
         [{f'{OUR_MDEV}_VNONE', f'{OUR_MDEV}_VUNKNOWN'}]),
        ('unknown and not required', device(UNKNOWN), Version(2, 1, 0), LENIENT, [{f'{OUR_MDEV}_ANY'}]),
        ('features', device(required=frozenset('BA')), None, STRICT,
         [{f'{OUR_MDEV}_V2_1'}, {f'{OUR_MDEV}_F_A'}, {f'{OUR_MDEV}_F_B'}]),
        ('what it offers itself is not asked for', device(offered=frozenset('A')), None, STRICT,
         [{f'{OUR_MDEV}_V2_1'}]),
        ('another kind by the table', device(required=frozenset('A')), None, Rules(crossings=CROSSING),
         [crossed('_V2_1'), crossed('_F_A')]),
        ('another kind by the table, not required', device(), None, Rules(False, CROSSING),
         [crossed('_V2_1', '_VUNKNOWN')]),
        ('a rule of the same kind is none', device(), None,
         Rules(crossings=frozenset({(MDEV, Sort('mdev', 'nvidia-36'))})), [{f'{OUR_MDEV}_V2_1'}]),
        ('the rule has the other way', device(), None, Rules(crossings=frozenset({(VF, MDEV)})),
         [{f'{OUR_MDEV}_V2_1'}]),
        names=('facts', 'seen', 'rules', 'expected'))

    def test_required(self) -> None:
        self.assertEqual(self.expected, [*map(set, traits.required(Held('a', self.facts, self.seen),
                                                                             self.rules))])


class NoDestinationTestCase(base.TestCase):

    scenarios = base.table(
        ('an obstacle', device(obstacle='QEMU is too old'), LENIENT, 'mdev/a: QEMU is too old'),
        ('unknown and required', device(UNKNOWN), STRICT, 'unknown (nobody said), and the deployment requires'),
        ('never heard of', device(Version(7, 0, 0)), STRICT, 'no host ever had CUSTOM_MIG_MDEV_NVIDIA_35_V7_0'),
        names=('facts', 'rules', 'said'))

    def test_no_host_is_to_be_asked(self) -> None:
        error = self.assertRaises(exception.NoDestination, traits.query,
                                  [('VGPU', Held('a', self.facts))], self.rules, traits.offered(device()))
        self.assertIn(self.said, str(error))


class QueryTestCase(testtools.TestCase):

    KNOWN = traits.offered(device(offered=frozenset('A'))) | traits.offered(
        device(UNKNOWN)) | traits.offered(device(STATELESS, PMEM))

    def test_a_guest_without_devices_asks_for_nothing(self) -> None:
        self.assertEqual([], traits.query([], STRICT, self.KNOWN))

    def test_one_device_has_a_group_and_no_policy(self) -> None:
        self.assertEqual([('resources_MIG1', 'VGPU:1'), ('required_MIG1', f'{OUR_MDEV}_V2_1'),
                          ('required_MIG1', f'{OUR_MDEV}_F_A')],
                         traits.query([('VGPU', Held('a', device(required=frozenset('A'))))], STRICT,
                                                self.KNOWN))

    def test_each_device_has_a_group_of_its_own(self) -> None:
        asked = traits.query([('VGPU', Held('a', device())), ('CUSTOM_PMEM', Held('b', device(
            STATELESS, PMEM))), ('VGPU', Held('c', device(Version(2, 0, 0))))], LENIENT, self.KNOWN)
        pmem, = [name for name in self.KNOWN if name.endswith('_VNONE')]
        self.assertEqual({
            'resources_MIG1': ['VGPU:1'], 'required_MIG1': [f'in:{OUR_MDEV}_V2_1,{OUR_MDEV}_VUNKNOWN'],
            'resources_MIG2': ['CUSTOM_PMEM:1'], 'required_MIG2': [pmem],
            'resources_MIG3': ['VGPU:1'], 'required_MIG3': [f'in:{OUR_MDEV}_V2_0,{OUR_MDEV}_VUNKNOWN'],
            'group_policy': ['none']}, parse.parse_qs(parse.urlencode(asked)))


ALIKE = mock.patch.object(traits, '_digest', autospec=True, return_value='0' * 16)


class CollisionTestCase(testtools.TestCase):

    def test_two_things_of_one_name_are_named(self) -> None:
        one, other = device(sort=Sort('mdev', 'a_b')), device(sort=Sort('mdev', 'A_B'))
        self.assertEqual({one, other}, traits.of_host([one, other]).keys())
        with ALIKE:
            error = self.assertRaises(exception.BadRequest, traits.of_host, [one, other])
        self.assertIn('mdev a_b', str(error))
        self.assertIn('mdev A_B', str(error))

    def test_of_features_and_versions_too(self) -> None:
        for one, other in ((device(offered=frozenset({'a'})), device(offered=frozenset({'A '}))),
                           (device(Opaque('x')), device(Opaque('y')))):
            with ALIKE:
                self.assertRaises(exception.BadRequest, traits.of_host, [one, other])

    def test_what_nobody_knows_for_different_reasons_is_one_thing(self) -> None:
        self.assertEqual(2, len(traits.of_host([device(UnknownVersion('a')), device(UnknownVersion('b'))])))


# -- for all facts ----------------------------------------------------------------------------------------------------

# What means something, what comes near it, and what takes the place of something.
_PIECES = st.sampled_from(('any', 'f', 'v1', 'v1x', 'vnone', 'vopaque', 'vunknown', 'h0123456789abcdef', 'a', 'A', '0',
                           'F', 'ANY', 'V1', 'H0123456789ABCDEF', '-', '--', '_', '.', ' ', '', 'ä', 'ß'))
_TEXTS = st.text(max_size=300) | st.lists(_PIECES, max_size=5).map('-'.join) | st.lists(_PIECES, max_size=8).map(
    ''.join) | st.lists(_PIECES, max_size=5).map('_'.join) | st.integers(1, 300).map(lambda count: 'x' * count)
_PARTS = st.integers(0, 120)
_VERSIONS = (st.builds(Version, st.integers(0, 10 ** 9 - 1), _PARTS, _PARTS) | st.builds(Opaque, _TEXTS)
             | st.builds(UnknownVersion, _TEXTS) | st.just(STATELESS))
_ANYTHING = st.builds(Facts, st.builds(Sort, _TEXTS, _TEXTS), st.just('vfio-pci'), _VERSIONS, st.just(frozenset()),
                      st.frozensets(_TEXTS, max_size=3))

# Few enough that devices are often partners.
_SORTS = st.sampled_from((MDEV, VF, Sort('mdev', 'nvidia-36')))
_MINORS = st.integers(0, 3) | st.integers(97, 102)
_FEW = (st.builds(Version, st.integers(1, 2), _MINORS, st.integers(0, 1)) | st.sampled_from((Opaque('a'), Opaque('b')))
        | st.just(UNKNOWN) | st.just(STATELESS))
_NAMES = st.frozensets(st.sampled_from(('A', 'b c')))
_FACTS = st.builds(Facts, _SORTS, st.sampled_from(('vfio-pci', 'vfio-ccw')), _FEW, _NAMES, _NAMES,
                   st.sampled_from((None, 1, 2)), st.none() | st.just('QEMU is too old'))
_RULES = st.builds(Rules, st.booleans(), st.frozensets(st.tuples(_SORTS, _SORTS)), st.frozensets(_SORTS))
_SEEN = st.none() | st.builds(Version, st.integers(1, 2), _MINORS, st.just(0))


class PropertiesTestCase(testtools.TestCase):

    @given(_ANYTHING)
    @example(device(sort=Sort('.' + 'k' * 99, '.' + 't' * 99), offered=frozenset({'.' + 'f' * 99})))
    def test_placement_takes_every_name(self, facts: Facts) -> None:
        for name in traits.offered(facts):
            self.assertIsNotNone(re.fullmatch('CUSTOM_[A-Z0-9_]+', name), name)
            self.assertLessEqual(len(name), LONGEST)
            self.assertTrue(is_of_migration(name), name)

    @given(_ANYTHING, _ANYTHING)
    @example(device(sort=Sort('a-b', 'c')), device(sort=Sort('a', 'b-c')))
    @example(device(sort=Sort('a', 'b-v1')), device(Version(1, 0, 0), Sort('a', 'b')))
    @example(device(STATELESS, Sort('a', 'b-f-x')), device(STATELESS, Sort('a', 'b'), offered=frozenset({'X_VNONE'})))
    def test_two_sorts_share_no_name(self, one: Facts, other: Facts) -> None:
        if one.sort != other.sort:
            self.assertEqual(set(), traits.offered(one) & traits.offered(other))

    @given(st.builds(Sort, _TEXTS, _TEXTS), st.lists(_ANYTHING, max_size=4))
    def test_no_two_things_of_a_sort_have_one_name(self, sort: Sort, host: list[Facts]) -> None:
        traits.of_host([facts._replace(sort=sort) for facts in host])

    @given(_FACTS, _FACTS, _RULES, _SEEN)
    def test_no_partner_is_excluded(self, source: Facts, there: Facts, rules: Rules, seen: Version | None) -> None:
        verdict = decide(source, there, rules, seen)
        try:
            asked = traits.required(Held('a', source, seen), rules)
        except exception.NoDestination:
            self.assertFalse(verdict.accepted)
            return
        passes = all(names & traits.offered(there) for names in asked)
        if verdict.accepted:
            self.assertTrue(passes, (asked, traits.offered(there)))
        elif passes:
            # One device has nothing that is of another.
            self.assertLessEqual({reason.about for reason in verdict.reasons}, {API, AGGREGATION, MINOR}, verdict)
            for reason in verdict.reasons:
                if reason.about == MINOR:
                    assert isinstance(reason.destination, Version)
                    self.assertLessEqual(traits.LARGEST_MINOR, reason.destination.minor)

    @given(_FACTS, _RULES, _SEEN)
    def test_one_version_is_asked_for_where_versions_are_required(
            self, source: Facts, rules: Rules, seen: Version | None) -> None:
        try:
            versions, *features = traits.required(
                Held('a', source, seen), rules._replace(require_version=True, crossings=frozenset()))
        except exception.NoDestination:
            return
        self.assertEqual([1] * (1 + len(source.required)), [len(versions), *map(len, features)])
