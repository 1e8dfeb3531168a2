"""Verdicts about two devices: the rules as tables, and what holds for all facts."""

from __future__ import annotations

import json
import pickle
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
import testtools

from devicetrack.compatibility.facts import Facts
from devicetrack.compatibility.facts import Opaque
from devicetrack.compatibility.facts import parse_version
from devicetrack.compatibility.facts import seen_since_boot
from devicetrack.compatibility.facts import Sort
from devicetrack.compatibility.facts import STATELESS
from devicetrack.compatibility.facts import UnknownVersion
from devicetrack.compatibility.facts import Version
from devicetrack.compatibility.rules import decide
from devicetrack.compatibility.rules import REFUSED
from devicetrack.compatibility.rules import Rules
from devicetrack.compatibility.rules import VERSION_UNKNOWN
from devicetrack.tests import base

MDEV = Sort('mdev', 'nvidia-35')
VF = Sort('vf', '10de:2235')
UNKNOWN = UnknownVersion('nobody said')
CROSSING = Rules(crossings=frozenset({(MDEV, VF)}))
LENIENT = Rules(require_version=False)
GROWING = Rules(growing=frozenset({MDEV}))


def version(text: str) -> Version:
    parsed = parse_version(text)
    assert isinstance(parsed, Version)
    return parsed


def device(text: str = '2.0.1', sort: Sort = MDEV, api: str = 'vfio-pci', required: str = '', offered: str = '',
           **facts: Any) -> Facts:
    """A feature is a letter."""
    return Facts(sort, api, version(text), frozenset(required), frozenset(offered))._replace(**facts)


class VersionsTestCase(base.TestCase):
    """The examples that the rule was made for, and their neighbours."""

    scenarios = base.table(
        ('a newer minor', '2.0.1', '2.1.1', None, ()),
        ('an older minor', '2.1.1', '2.0.1', None, ('minor version',)),
        ('an older minor, of which the guest saw no newer', '2.1.1', '2.0.1', '2.0.0', ()),
        ('an older minor than the guest saw', '2.2.0', '2.0.1', '2.1.0', ('minor version',)),
        ('between what the guest saw and has', '2.2.0', '2.1.0', '2.1.9', ()),
        ('the guest saw more than it has', '2.0.0', '2.0.0', '2.1.0', ('minor version',)),
        ('what was seen of another major', '2.1.0', '2.0.0', '1.0.0', ('minor version',)),
        ('another major', '2.0.0', '3.0.0', None, ('major version',)),
        ('an older major', '3.0.0', '2.9.0', None, ('major version',)),
        ('an older patch', '2.0.1', '2.0.0', None, ()),
        ('a newer patch', '2.0.1', '2.0.7', None, ()),
        ('by number and not by letter', '2.9.0', '2.10.0', None, ()),
        names=('source', 'destination', 'seen', 'about'))

    def test_versions(self) -> None:
        verdict = decide(device(self.source), device(self.destination), Rules(),
                                       version(self.seen) if self.seen else None)
        self.assertEqual(self.about, tuple(reason.about for reason in verdict.reasons))
        self.assertEqual((not self.about, ()), (verdict.accepted, verdict.notes))


class RulesTestCase(base.TestCase):

    scenarios = base.table(
        ('the same', device(), device(), Rules(), (), ()),
        ('another type', device(), device(sort=Sort('mdev', 'nvidia-36')), Rules(), ('type',), ()),
        ('another type and major: of the second nothing is said', device(),
         device('3.0.0', sort=Sort('mdev', 'nvidia-36')), Rules(), ('type',), ()),
        ('another kind', device(), device(sort=VF), Rules(), ('kind',), ()),
        ('another kind by the table', device(), device(sort=VF), CROSSING, (), ('kind',)),
        ('the table has one way', device(sort=VF), device(), CROSSING, ('kind',), ()),
        ('the table has another type', device(), device(sort=Sort('vf', '10de:1')), CROSSING, ('kind',), ()),
        ('another kind by the table, another major', device(), device('3.0.0', sort=VF), CROSSING,
         ('major version',), ('kind',)),
        ('another device API', device(), device(api='vfio-ccw'), Rules(), ('api',), ()),
        ('the source cannot', device(obstacle='QEMU 7 is old'), device(), Rules(), ('source host',), ()),
        ('the destination cannot', device(), device(obstacle='QEMU 7 is old'), Rules(), ('destination host',), ()),
        ('no version', device(version=UNKNOWN), device(version=UNKNOWN), Rules(), ('version unknown',), ()),
        ('no version at the source', device(version=UNKNOWN), device(), Rules(), ('version unknown',), ()),
        ('no version at the destination', device(), device(version=UNKNOWN), Rules(), ('version unknown',), ()),
        ('no version, by option', device(version=UNKNOWN), device(), LENIENT, (), ('version unknown',)),
        ('another major is no matter of the option', device(), device('3.0.0'), LENIENT, ('major version',), ()),
        ('equal strings', device(version=Opaque('x')), device(version=Opaque('x')), Rules(), (), ()),
        ('other strings', device(version=Opaque('x')), device(version=Opaque('y')), Rules(), ('version string',), ()),
        ('other strings, by option', device(version=Opaque('x')), device(version=Opaque('y')), LENIENT,
         ('version string',), ()),
        ('a string and a version', device(version=Opaque('2.0.1')), device(), Rules(), ('version string',), ()),
        ('no state', device(version=STATELESS), device(version=STATELESS), Rules(), (), ()),
        ('no state at one end', device(version=STATELESS), device(), Rules(), ('version string',), ()),
        ('a feature', device(required='A'), device(offered='AB'), Rules(), (), ()),
        ('not every feature', device(required='AB'), device(offered='A'), Rules(), ('features',), ()),
        ('what the source offers does not matter', device(offered='AB'), device(), Rules(), (), ()),
        ('what the source offers does not help', device(required='A', offered='A'), device(), Rules(),
         ('features',), ()),
        ('what the destination requires does not matter', device(), device(required='A'), Rules(), (), ()),
        ('as many units', device(aggregation=2), device(aggregation=2), Rules(), (), ()),
        ('more units', device(aggregation=2), device(aggregation=3), Rules(), ('aggregation',), ()),
        ('more units of a type that grows', device(aggregation=2), device(aggregation=3), GROWING, (), ()),
        ('fewer units of a type that grows', device(aggregation=3), device(aggregation=2), GROWING,
         ('aggregation',), ()),
        ('units at one end of a type that grows', device(), device(aggregation=2), GROWING, ('aggregation',), ()),
        ('everything', device(required='A', aggregation=1, obstacle='old'),
         device('1.0.0', api='vfio-ccw', obstacle='old'), Rules(),
         ('source host', 'destination host', 'api', 'major version', 'features', 'aggregation'), ()),
        names=('source', 'destination', 'rules', 'about', 'notes'))

    def test_every_reason_is_given(self) -> None:
        verdict = decide(self.source, self.destination, self.rules)
        self.assertEqual((self.about, self.notes), (tuple(reason.about for reason in verdict.reasons),
                                                    tuple(note.about for note in verdict.notes)))
        self.assertEqual(not self.about, verdict.accepted)
        self.assertEqual(REFUSED if self.about else '', verdict.for_tenant)
        data = json.loads(json.dumps(verdict.as_data()))
        self.assertEqual([*self.about, *self.notes], [said['about'] for said in data['reasons'] + data['notes']])


class WordsTestCase(base.TestCase):

    scenarios = base.table(
        ('accepted', device(), device(), Rules(), 'yes'),
        ('kind', device(), device(sort=VF), Rules(), 'no: mdev nvidia-35 and vf 10de:2235 are of different kinds'),
        ('crossing', device(), device(sort=VF), CROSSING,
         'yes; allowed although mdev nvidia-35 and vf 10de:2235 are of different kinds'),
        ('type', device(), device(sort=Sort('mdev', 'nvidia-36')), Rules(),
         'no: type is nvidia-35 at the source, nvidia-36 at the destination'),
        ('minor', device('2.1.0'), device(), Rules(),
         'no: the guest may have seen version 2.1.0, the destination has the older 2.0.1'),
        ('major', device('3.0.0'), device(), Rules(),
         'no: versions 3.0.0 at the source and 2.0.1 at the destination differ in their major number'),
        ('unknown', device(version=UNKNOWN), device(), LENIENT,
         'yes; allowed although versions cannot be compared: unknown (nobody said) at the source, 2.0.1 at the '
         'destination'),
        ('strings', device(version=Opaque('x')), device(version=STATELESS), Rules(),
         "no: version string is 'x' at the source, none needed at the destination"),
        ('both hosts', device(obstacle='old'), device(obstacle='older'), Rules(),
         'no: at the source, old; at the destination, older'),
        ('features', device(required='BA'), device(), Rules(),
         'no: the guest requires A, B, the destination offers none'),
        ('units', device(aggregation=1), device(), Rules(),
         'no: aggregation is 1 at the source, none at the destination'),
        names=('source', 'destination', 'rules', 'words'))

    def test_words_for_an_operator(self) -> None:
        self.assertEqual(self.words, str(decide(self.source, self.destination, self.rules)))


class ParseVersionTestCase(base.TestCase):

    scenarios = base.table(
        ('three numbers', '2.0.10', Version(2, 0, 10)),
        ('zeros', '0.0.0', Version(0, 0, 0)),
        *[(f'{text[:12]!a}', text, None) for text in (
            '', '2', '2.0', '2.0.0.1', '2.0.x', ' 2.0.1', '2.0.1\n', '-2.0.1', '02.0.1', '2.0.1-rc1', '٢.0.1',
            '\x00\x7fELF', '1.1.1234567890', '1' * 1_000_000)],
        names=('text', 'expected'))

    def test_parse(self) -> None:
        parsed = parse_version(self.text)
        if self.expected is not None:
            self.assertEqual(self.expected, parsed)
            return
        self.assertIsInstance(parsed, UnknownVersion)
        self.assertIn('not major.minor.patch', str(parsed))
        self.assertLess(len(str(parsed)), 300)
        self.assertTrue(str(parsed).isprintable())


class SeenSinceBootTestCase(base.TestCase):

    scenarios = base.table(
        ('started', None, Version(2, 1, 0), Version(2, 1, 0)),
        ('rebooted on a newer', Version(2, 0, 0), Version(2, 1, 0), Version(2, 1, 0)),
        ('rebooted on an older', Version(2, 1, 0), Version(2, 0, 0), Version(2, 1, 0)),
        ('rebooted on an unknown', Version(2, 1, 0), UNKNOWN, None),
        ('started on an unknown', None, UNKNOWN, None),
        names=('seen', 'here', 'expected'))

    def test_seen(self) -> None:
        self.assertEqual(self.expected, seen_since_boot(self.seen, self.here))


_VERSIONS = st.builds(Version, *[st.integers(1, 3)] * 3)
_ANY_VERSION = st.one_of(_VERSIONS, st.builds(Opaque, st.sampled_from('xy')), st.just(UNKNOWN), st.just(STATELESS))
_FEATURES = st.frozensets(st.sampled_from('ABC'))
_SORTS = st.sampled_from((MDEV, VF, Sort('mdev', 'nvidia-36')))
FACTS = st.builds(Facts, _SORTS, st.sampled_from(('vfio-pci', 'vfio-ccw')), _ANY_VERSION, _FEATURES, _FEATURES,
                  st.sampled_from((None, 1, 2)), st.sampled_from((None, None, 'old')))
RULES = st.builds(Rules, st.booleans(), st.frozensets(st.tuples(_SORTS, _SORTS).filter(lambda two: two[0] != two[1])),
                  st.frozensets(_SORTS))
SEEN = st.none() | _VERSIONS


def accepts(source: Facts, destination: Facts, rules: Rules, seen: Version | None = None) -> bool:
    return decide(source, destination, rules, seen).accepted


class PropertiesTestCase(testtools.TestCase):

    @given(FACTS, RULES)
    def test_a_device_takes_its_own_place(self, facts: Facts, rules: Rules) -> None:
        whole = facts._replace(obstacle=None, offered=facts.required)
        self.assertEqual(rules.require_version and whole.version == UNKNOWN, not accepts(whole, whole, rules))

    @given(st.lists(_VERSIONS, min_size=3, max_size=3))
    def test_the_way_up_is_transitive(self, versions: list[Version]) -> None:
        one, two, three = (device(version=one) for one in versions)
        if accepts(one, two, Rules()) and accepts(two, three, Rules()):
            self.assertTrue(accepts(one, three, Rules()))

    @given(FACTS, FACTS, RULES, SEEN, _FEATURES)
    def test_a_feature_more_turns_no_yes_into_a_no(
            self, source: Facts, destination: Facts, rules: Rules, seen: Version | None,
            more: frozenset[str]) -> None:
        if accepts(source, destination, rules, seen):
            better = destination._replace(offered=destination.offered | more)
            self.assertTrue(accepts(source, better, rules, seen))

    @given(_VERSIONS, _VERSIONS, SEEN, st.integers(0, 9))
    def test_patch_never_matters(self, here: Version, there: Version, seen: Version | None, patch: int) -> None:
        expected = accepts(device(version=here), device(version=there), Rules(), seen)
        for changed in ((here._replace(patch=patch), there, seen), (here, there._replace(patch=patch), seen),
                        (here, there, seen and seen._replace(patch=patch))):
            self.assertEqual(expected, accepts(device(version=changed[0]), device(version=changed[1]), Rules(),
                                               changed[2]))

    @given(FACTS, FACTS, RULES, SEEN)
    def test_a_version_that_is_unknown_never_passes_in_silence(
            self, source: Facts, destination: Facts, rules: Rules, seen: Version | None) -> None:
        verdict = decide(source, destination, rules, seen)
        if verdict.accepted and UNKNOWN in (source.version, destination.version):
            self.assertFalse(rules.require_version)
            self.assertIn(VERSION_UNKNOWN, [note.about for note in verdict.notes])

    @given(FACTS, FACTS, RULES, SEEN)
    def test_a_tenant_reads_the_same_whatever_the_reason(
            self, source: Facts, destination: Facts, rules: Rules, seen: Version | None) -> None:
        verdict = decide(source, destination, rules, seen)
        self.assertIn(verdict.for_tenant, ('', REFUSED))
        self.assertNotRegex(verdict.for_tenant, '[0-9]|nvidia|vfio|QEMU|mdev|vf')

    @given(FACTS, FACTS, RULES, SEEN)
    def test_a_verdict_survives_a_pickle(
            self, source: Facts, destination: Facts, rules: Rules, seen: Version | None) -> None:
        verdict = decide(source, destination, rules, seen)
        self.assertEqual(verdict, pickle.loads(pickle.dumps(verdict)))
