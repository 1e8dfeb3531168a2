"""Partners for the devices of a guest: on one host with every reason, and over many hosts at once."""

from __future__ import annotations

import itertools
import json
import random

from hypothesis import given
from hypothesis import strategies as st
import testtools

from devicetrack import exception
from devicetrack.compatibility import partners
from devicetrack.compatibility.facts import Facts
from devicetrack.compatibility.facts import Sort
from devicetrack.compatibility.facts import STATELESS
from devicetrack.compatibility.facts import Version
from devicetrack.compatibility.partners import Held
from devicetrack.compatibility.partners import Offer
from devicetrack.compatibility.rules import REFUSED
from devicetrack.compatibility.rules import Rules
from devicetrack.objects.values import DeviceKey
from devicetrack.tests import base

OLD, NEW = Version(2, 0, 0), Version(2, 1, 0)
GIB = 1 << 30


def vgpu(version: Version) -> Facts:
    return Facts(Sort('mdev', 'nvidia-35'), 'vfio-pci', version)


def pmem(size_bytes: int) -> Facts:
    return Facts(Sort('vpmem', f'4GB {size_bytes}'), 'nvdimm', STATELESS)


class FindTestCase(base.TestCase):

    scenarios = base.table(
        ('nothing', {}, {}, {}, []),
        ('nothing of something', {}, {'x': vgpu(OLD)}, {}, []),
        ('nothing there', {'a': vgpu(OLD)}, {}, {}, ['a']),
        ('one', {'a': vgpu(OLD)}, {'x': vgpu(OLD)}, {'a': 'x'}, []),
        ('in the order of identifiers', {'b': vgpu(OLD), 'a': vgpu(OLD)}, {'y': vgpu(OLD), 'x': vgpu(OLD)},
         {'a': 'x', 'b': 'y'}, []),
        ('who can go anywhere makes room', {'a': vgpu(OLD), 'b': vgpu(NEW)}, {'x': vgpu(NEW), 'y': vgpu(OLD)},
         {'a': 'y', 'b': 'x'}, []),
        ('two of three make room', {'a': vgpu(OLD), 'b': vgpu(NEW), 'c': vgpu(Version(2, 2, 0))},
         {'x': vgpu(Version(2, 2, 0)), 'y': vgpu(NEW), 'z': vgpu(OLD)}, {'a': 'z', 'b': 'y', 'c': 'x'}, []),
        ('too few', {'a': vgpu(OLD), 'b': vgpu(OLD)}, {'x': vgpu(OLD)}, {'a': 'x'}, ['b']),
        ('one that is too old', {'a': vgpu(OLD), 'b': vgpu(NEW)}, {'x': vgpu(OLD), 'y': vgpu(OLD)}, {'a': 'x'}, ['b']),
        ('two kinds', {'a': vgpu(OLD), 'b': pmem(GIB)}, {'x': pmem(GIB), 'y': vgpu(OLD)}, {'a': 'y', 'b': 'x'}, []),
        ('a larger namespace', {'a': pmem(GIB)}, {'x': pmem(2 * GIB)}, {}, ['a']),
        names=('guest', 'destination', 'pairs', 'alone'))

    def test_find(self) -> None:
        found = partners.find([Held(*one) for one in self.guest.items()],
                              [Offer(*one) for one in self.destination.items()], Rules())
        self.assertEqual(self.pairs, {pair.source.identifier: pair.destination.identifier for pair in found.pairs})
        self.assertEqual(self.alone, [alone.source.identifier for alone in found.alone])
        self.assertEqual(not self.alone, found.accepted)
        self.assertEqual(REFUSED if self.alone else '', found.for_tenant)
        self.assertEqual(found.accepted, json.loads(json.dumps(found.as_data()))['accepted'])


class ReasonsTestCase(base.TestCase):

    def test_every_device_of_the_destination_has_its_reason(self) -> None:
        found = partners.find([Held('a', vgpu(NEW)), Held('b', vgpu(NEW))],
                              [Offer('x', vgpu(NEW)), Offer('y', vgpu(OLD)), Offer('z', pmem(GIB))], Rules())
        self.assertEqual(
            'mdev/b has no partner: mdev/x: is the partner of mdev/a | mdev/y: no: the guest may have seen version '
            '2.1.0, the destination has the older 2.0.0 | vpmem/z: no: mdev nvidia-35 and vpmem 4GB 1073741824 are of '
            'different kinds; api is vfio-pci at the source, nvdimm at the destination\n'
            'mdev/a becomes mdev/x: yes', str(found))
        [alone] = found.alone
        self.assertEqual([DeviceKey('mdev', 'a'), None, None], [passed.partner_of for passed in alone.passed])

    def test_a_destination_without_devices(self) -> None:
        self.assertIn('mdev/a has no partner: the destination has no device',
                      str(partners.find([Held('a', vgpu(OLD))], [], Rules())))

    def test_what_each_guest_device_has_seen_counts(self) -> None:
        found = partners.find([Held('a', vgpu(NEW)), Held('b', vgpu(NEW), OLD)],
                              [Offer('x', vgpu(OLD)), Offer('y', vgpu(OLD))], Rules())
        self.assertEqual([DeviceKey('mdev', 'a')], [alone.source for alone in found.alone])

    def test_a_device_that_is_named_twice(self) -> None:
        twice = [Held('a', vgpu(OLD)), Held('a', vgpu(NEW))]
        error = self.assertRaises(exception.BadRequest, partners.find, twice, [], Rules())
        self.assertIn('mdev/a', str(error))
        self.assertRaises(exception.BadRequest, partners.find, [], [Offer(*one[:2]) for one in twice], Rules())

    def test_an_identifier_may_be_of_two_kinds(self) -> None:
        found = partners.find([Held('a', vgpu(OLD)), Held('a', pmem(GIB))],
                              [Offer('a', vgpu(OLD)), Offer('a', pmem(GIB))], Rules())
        self.assertEqual(2, len(found.pairs))


def most_pairs(accepted: list[list[int]]) -> int:
    """Tried out: every choice of a partner, or of none, for each."""
    choices = itertools.product(*[[None, *row] for row in accepted])
    tried = ([one for one in chosen if one is not None] for chosen in choices)
    return max(len(chosen) for chosen in tried if len(set(chosen)) == len(chosen))


# Few enough that devices are often partners, and often not of all.
_SORTS = st.sampled_from((Sort('mdev', 'nvidia-35'), Sort('vf', '10de:2235')))
_FACTS = st.builds(Facts, _SORTS, st.just('vfio-pci'), st.builds(Version, st.just(2), st.integers(0, 3), st.just(0)),
                   st.frozensets(st.just('A')), st.frozensets(st.just('A')))
_RULES = st.builds(Rules, st.just(True), st.frozensets(st.tuples(_SORTS, _SORTS).filter(lambda two: two[0] != two[1])))
_GUEST = st.lists(st.tuples(_FACTS, st.none() | st.just(OLD)), max_size=4)
_DESTINATION = st.lists(_FACTS, max_size=6)
_LETTERS = st.frozensets(st.sampled_from('ABCD'), max_size=3)


def named(guest: list[tuple[Facts, Version | None]], destination: list[Facts]) -> tuple[list[Held], list[Offer]]:
    return ([Held(f'g{index}', facts, seen) for index, (facts, seen) in enumerate(guest)],
            [Offer(f'd{index}', facts) for index, facts in enumerate(destination)])


def one_by_one(guest: list[Held], hosts: dict[str, list[Facts]], rules: Rules) -> tuple[str, ...]:
    return tuple(name for name, devices in hosts.items()
                 if partners.find(guest, named([], devices)[1], rules).accepted)


class PropertiesTestCase(testtools.TestCase):

    @given(st.lists(st.lists(st.integers(0, 4), unique=True), max_size=5))
    def test_no_matching_has_more_pairs(self, accepted: list[list[int]]) -> None:
        found = partners.maximum(accepted)
        self.assertEqual(most_pairs(accepted), len(found))
        self.assertEqual(len(found), len(set(found.values())))
        for left, right in found.items():
            self.assertIn(right, accepted[left])

    @given(_GUEST, _DESTINATION, _RULES, st.randoms())
    def test_the_order_of_what_is_handed_in_does_not_matter(
            self, guest: list[tuple[Facts, Version | None]], destination: list[Facts], rules: Rules,
            chance: random.Random) -> None:
        held, offers = named(guest, destination)
        expected = partners.find(held, offers, rules)
        chance.shuffle(held)
        chance.shuffle(offers)
        self.assertEqual(expected, partners.find(held, offers, rules))

    @given(_GUEST, _DESTINATION, _RULES)
    def test_every_device_of_the_guest_is_accounted_for(
            self, guest: list[tuple[Facts, Version | None]], destination: list[Facts], rules: Rules) -> None:
        held, offers = named(guest, destination)
        found = partners.find(held, offers, rules)
        self.assertEqual(sorted(DeviceKey(one.facts.sort.kind, one.identifier) for one in held),
                         sorted([pair.source for pair in found.pairs] + [alone.source for alone in found.alone]))
        self.assertTrue(all(pair.verdict.accepted for pair in found.pairs))
        for alone in found.alone:
            self.assertEqual(len(offers), len(alone.passed))
            for passed in alone.passed:
                self.assertEqual(passed.verdict.accepted, passed.partner_of is not None)

    @given(_GUEST, st.lists(_DESTINATION, max_size=6), _RULES)
    def test_a_fleet_answers_as_its_hosts_do_one_by_one(
            self, guest: list[tuple[Facts, Version | None]], hosts: list[list[Facts]], rules: Rules) -> None:
        held = named(guest, [])[0]
        by_name = {f'host-{index}': devices for index, devices in enumerate(hosts)}
        self.assertEqual(one_by_one(held, by_name, rules), partners.Fleet(by_name).hosts_for(held, rules))

    @given(st.lists(_LETTERS, max_size=4), st.lists(st.lists(_LETTERS, max_size=8), max_size=6))
    def test_a_fleet_whose_devices_serve_any_of_the_guest(
            self, guest: list[frozenset[str]], hosts: list[list[frozenset[str]]]) -> None:
        held = [Held(f'g{index}', vgpu(OLD)._replace(required=letters)) for index, letters in enumerate(guest)]
        by_name = {f'host-{index}': [vgpu(OLD)._replace(offered=letters) for letters in devices]
                   for index, devices in enumerate(hosts)}
        self.assertEqual(one_by_one(held, by_name, Rules()), partners.Fleet(by_name).hosts_for(held, Rules()))


class FleetTestCase(testtools.TestCase):

    def test_hosts_are_named_in_the_order_in_which_they_came(self) -> None:
        hosts = partners.Fleet({'two': [vgpu(NEW)] * 2, 'none': [], 'old': [vgpu(OLD)] * 3,
                                'one': [vgpu(NEW), pmem(GIB)],
                             'mixed': [vgpu(OLD), pmem(GIB), vgpu(NEW)]})
        self.assertEqual(('two', 'mixed'), hosts.hosts_for([Held('a', vgpu(OLD)), Held('b', vgpu(NEW))], Rules()))
        self.assertEqual(('two', 'none', 'old', 'one', 'mixed'), hosts.hosts_for([], Rules()))

    def test_the_table_lets_a_guest_go_to_another_kind(self) -> None:
        function = vgpu(OLD)._replace(sort=Sort('vf', '10de:2235'))
        rules = Rules(crossings=frozenset({(vgpu(OLD).sort, function.sort)}))
        hosts = partners.Fleet({'functions': [function]})
        self.assertEqual(('functions',), hosts.hosts_for([Held('a', vgpu(OLD))], rules))
        self.assertEqual((), hosts.hosts_for([Held('a', vgpu(OLD))], Rules()))

    def test_what_each_guest_device_has_seen_counts(self) -> None:
        hosts = partners.Fleet({'old': [vgpu(OLD)] * 2})
        self.assertEqual(('old',), hosts.hosts_for([Held('a', vgpu(NEW), OLD)] * 2, Rules()))
        self.assertEqual((), hosts.hosts_for([Held('a', vgpu(NEW), OLD), Held('b', vgpu(NEW))], Rules()))

    def test_a_guest_with_many_devices(self) -> None:
        letters = 'ABCDEFGHIJKL'
        guest = [Held(letter, vgpu(OLD)._replace(required=frozenset(letter))) for letter in letters]
        chance = random.Random(1)
        hosts = {f'host-{index}': [vgpu(OLD)._replace(offered=frozenset(chance.sample(letters, 2))) for _ in range(20)]
                 for index in range(50)}
        found = partners.Fleet(hosts).hosts_for(guest, Rules())
        self.assertEqual(one_by_one(guest, hosts, Rules()), found)
        self.assertTrue(0 < len(found) < len(hosts))

    def test_a_fleet_without_hosts(self) -> None:
        self.assertEqual((), partners.Fleet({}).hosts_for([Held('a', vgpu(OLD))], Rules()))
