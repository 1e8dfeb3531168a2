"""Fleets of hosts on a real placement server, and running guests that ask it where they may go."""

from __future__ import annotations

import collections
from collections.abc import Collection
from collections.abc import Sequence
import itertools
import random
from typing import Final
from typing import NamedTuple
import uuid

import fixtures

from devicetrack import exception
from devicetrack.claims.providers import Count
from devicetrack.claims.providers import for_scheduler
from devicetrack.compatibility import partners
from devicetrack.compatibility import traits
from devicetrack.compatibility.facts import Declaration
from devicetrack.compatibility.facts import Facts
from devicetrack.compatibility.facts import MigrationVersion
from devicetrack.compatibility.facts import Opaque
from devicetrack.compatibility.facts import Sort
from devicetrack.compatibility.facts import STATELESS
from devicetrack.compatibility.facts import UnknownVersion
from devicetrack.compatibility.facts import Version
from devicetrack.compatibility.partners import Held
from devicetrack.compatibility.partners import Offer
from devicetrack.compatibility.rules import Rules
from devicetrack.objects.traits import MIGRATION
from devicetrack.objects.values import Attribute
from devicetrack.objects.values import MigrationType
from devicetrack.placement import tree
from devicetrack.placement.reporter import PlacementReporter
from devicetrack.testing import fixtures as our_fixtures
from devicetrack.testing import placement as placements
from devicetrack.tests import base
from devicetrack.tests.functional.docs.test_documented_code import code_blocks
from devicetrack.tests.functional.docs.test_documented_code import DOCS

MDEV, OTHER_MDEV = Sort('mdev', 'nvidia-35'), Sort('mdev', 'i915-GVTg_V5_4')
VF = Sort('vf', '10de:2235')
PMEM = Sort('vpmem', '4GB 1073741824')

# What placement cannot be told, so that it lets a host through which has no partner.
API: Final = 'device API'
UNITS: Final = 'units'
MANY_MINORS: Final = 'a minor beyond the largest'
TOGETHER: Final = 'devices of different facts at one provider'
BLURS: Final = (API, UNITS, MANY_MINORS)
DOCUMENTED: Final = (*BLURS, TOGETHER)

# So that minors of a handful are beyond it now and then. The rule is the same.
_LARGEST: Final = 4


class Pool(NamedTuple):
    """Devices of one type at one parent; so many are free."""

    parent: str | None
    facts: Facts
    room: int


class Host(NamedTuple):
    uuid: str
    layout: str
    pools: tuple[Pool, ...]

    def provider(self, name: str) -> str:
        return str(uuid.uuid5(uuid.UUID(self.uuid), name)) if name else self.uuid

    def counts_together(self) -> bool:
        """Whether a provider has the traits of devices of different facts."""
        at: dict[str | None, set[Facts]] = collections.defaultdict(set)
        for pool in self.pools:
            at[pool.parent if self.layout == tree.NESTED else None].add(pool.facts)
        return any(len(facts) > 1 for facts in at.values())


class Chance:
    """Makes fleets and guests; the same seed makes the same ones."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.rules = Rules(self._random.random() < 0.6,
                           frozenset({(MDEV, VF)} if self._random.random() < 0.5 else ()),
                           frozenset({MDEV} if self._random.random() < 0.5 else ()))

    def hosts(self, count: int) -> list[Host]:
        return [self._host() for _ in range(count)]

    def _host(self) -> Host:
        chance = self._random
        pools = []
        for card in range(chance.randint(1, 3)):
            sorts = chance.sample((MDEV, OTHER_MDEV, VF), 2 if chance.random() < 0.3 else 1)
            pools += [Pool(f'card{card}', self.facts(sort), chance.randint(0, 2)) for sort in sorts]
        if chance.random() < 0.5:
            pools.append(Pool(None, self.facts(PMEM), chance.randint(0, 2)))
        return Host(str(uuid.uuid4()), chance.choice((tree.NESTED, tree.NESTED, tree.FLAT)), tuple(pools))

    def facts(self, sort: Sort) -> Facts:
        chance = self._random
        return Facts(sort, 'vfio-ccw' if chance.random() < 0.08 else 'vfio-pci', self._version(sort),
                     self._features(0.12), self._features(0.7), chance.choice((None,) * 8 + (1, 2)),
                     'QEMU is too old' if chance.random() < 0.05 else None)

    def _version(self, sort: Sort) -> MigrationVersion:
        if sort == PMEM:
            return STATELESS
        others: list[MigrationVersion] = [Opaque('470.1'), UnknownVersion('nobody said')]
        return self._random.choice([*others, *(self._numbered() for _ in range(9))])

    def _numbered(self) -> Version:
        return Version(self._random.choice((1, 2, 2, 2)), self._random.randint(0, _LARGEST + 2),
                       self._random.randint(0, 9))

    def _features(self, each: float) -> frozenset[str]:
        return frozenset(name for name in ('HW_GPU_A', 'b 1') if self._random.random() < each)

    def guest(self, hosts: Sequence[Host]) -> list[Held]:
        """Its devices are like some of the fleet, and not too old, so that it can go somewhere now and then."""
        chance = self._random
        devices = []
        for number in range(chance.choice((1, 1, 2, 3))):
            facts = chance.choice(chance.choice(hosts).pools).facts
            if isinstance(facts.version, Version) and chance.random() < 0.8:
                facts = facts._replace(version=facts.version._replace(minor=chance.randint(0, facts.version.minor)))
            seen = self._numbered() if chance.random() < 0.3 else None
            devices.append(Held(f'device{number}', facts, seen))
        return devices


def blurred(facts: Facts, what: Collection[str]) -> Facts:
    """Facts as placement knows them, where it is not told everything."""
    if API in what:
        facts = facts._replace(api='')
    if UNITS in what:
        facts = facts._replace(aggregation=None)
    if MANY_MINORS in what and isinstance(facts.version, Version):
        facts = facts._replace(version=_at_most_the_largest(facts.version))
    return facts


def _at_most_the_largest(version: Version) -> Version:
    return version._replace(minor=min(version.minor, _LARGEST))


class FleetTestCase(base.TestCase):
    """A fleet on the server. Its classes are its own, so that the providers of others are no candidates."""

    def setUp(self) -> None:
        super().setUp()
        self.useFixture(fixtures.MonkeyPatch('devicetrack.compatibility.traits.LARGEST_MINOR', _LARGEST))
        self.direct = self.useFixture(placements.Placement()).direct
        mark = uuid.uuid4().hex.upper()
        self._pmem, self._vgpu = f'CUSTOM_PMEM_{mark}', f'CUSTOM_VGPU_{mark}'

    def class_of(self, facts: Facts) -> str:
        return self._pmem if facts.sort == PMEM else self._vgpu

    def report(self, host: Host) -> None:
        names = {'', *(pool.parent or '' for pool in host.pools)}
        counts = [Count(host.provider(pool.parent or ''), self.class_of(pool.facts), 2, 2 - pool.room, '',
                                  pool.facts.sort.kind, pool.parent) for pool in host.pools]
        declared = [Declaration(pool.parent, pool.facts) for pool in host.pools]
        providers = for_scheduler({name: host.provider(name) for name in names}, host.uuid, counts, declared)
        reporter = PlacementReporter(self.direct)
        self.assertEqual({}, reporter.sync(providers, host.layout).refused)
        self.assertEqual((), reporter.sync(providers, host.layout).changes)

    def let_through(self, guest: Sequence[Held], rules: Rules, known: Collection[str]) -> frozenset[str]:
        """The hosts that placement names; none where no host is to be asked."""
        try:
            query = traits.query([(self.class_of(held.facts), held) for held in guest], rules, known)
        except exception.NoDestination:
            return frozenset()
        return self.direct.find_roots(query)

    def accepts(self, guest: Sequence[Held], host: Host, rules: Rules, what: Collection[str] = ()) -> bool:
        """The pure decision, class by class: the scheduler gives a device for one of the same class.

        :param what: this is blurred
        """
        offers: dict[str, list[Offer]] = collections.defaultdict(list)
        for index, pool in enumerate(host.pools):
            offers[self.class_of(pool.facts)] += [Offer(f'{index}-{number}', blurred(pool.facts, what))
                                                  for number in range(pool.room)]
        wanted: dict[str, list[Held]] = collections.defaultdict(list)
        for held in guest:
            seen = _at_most_the_largest(held.seen) if held.seen is not None and MANY_MINORS in what else held.seen
            wanted[self.class_of(held.facts)].append(Held(held.identifier, blurred(held.facts, what), seen))
        return all(partners.find(devices, offers[name], rules).accepted for name, devices in wanted.items())

    def why_let_through(self, guest: Sequence[Held], host: Host, rules: Rules) -> tuple[str, ...]:
        """The fewest of what placement is not told that keep the guest from going there."""
        for count in range(1, len(BLURS) + 1):
            for what in itertools.combinations(BLURS, count):
                if self.accepts(guest, host, rules, what):
                    return what
        return (TOGETHER,) if host.counts_together() else ()


class TestFleets(FleetTestCase):
    def test_no_host_that_has_partners_is_excluded(self) -> None:
        reasons: collections.Counter[str] = collections.Counter()
        answers: collections.Counter[tuple[bool, bool]] = collections.Counter()
        for seed in range(6):
            chance = Chance(seed)
            hosts = chance.hosts(8)
            for host in hosts:
                self.report(host)
            known = self.direct.find_traits(MIGRATION)
            for _ in range(40):
                guest = chance.guest(hosts)
                passed = self.let_through(guest, chance.rules, known)
                for host in hosts:
                    accepted = self.accepts(guest, host, chance.rules)
                    answers[host.uuid in passed, accepted] += 1
                    if accepted:
                        self.assertIn(host.uuid, passed, str((seed, guest, host)))
                    elif host.uuid in passed:
                        why = self.why_let_through(guest, host, chance.rules)
                        self.assertNotEqual((), why, str((seed, guest, host)))
                        reasons.update(why)
        # The fleets are such that all of this happens, and most of what has no partners is excluded.
        self.assertEqual(set(DOCUMENTED), set(reasons))
        self.assertLess(100, answers[True, True])
        self.assertLess(answers[True, False] * 3, answers[False, False])


class TestNesting(FleetTestCase):
    scenarios = base.table(('nested', tree.NESTED), ('flat', tree.FLAT), names=('layout',))

    def test_devices_of_one_guest_may_come_from_several_parents(self) -> None:
        old, new = (Facts(MDEV, 'vfio-pci', Version(2, minor, 0)) for minor in (0, 1))
        host = Host(str(uuid.uuid4()), self.layout, (Pool('card0', old, 1), Pool('card1', new, 1)))
        self.report(host)
        known = self.direct.find_traits(MIGRATION)
        for guest, expected in (([old, new], True), ([old, old], True), ([old, old, old], False),
                                ([new, new], self.layout == tree.FLAT)):
            held = [Held(f'device{number}', facts) for number, facts in enumerate(guest)]
            self.assertEqual(expected, host.uuid in self.let_through(held, Rules(), known), str(guest))

    def test_devices_of_another_kind_are_asked_for_by_their_own_names(self) -> None:
        mdev, function = (Facts(sort, 'vfio-pci', Version(2, 1, 0), frozenset('A'), frozenset('A'))
                          for sort in (MDEV, VF))
        hosts = [Host(str(uuid.uuid4()), self.layout, (Pool('card0', facts, 1),)) for facts in (mdev, function)]
        for host in hosts:
            self.report(host)
        known = self.direct.find_traits(MIGRATION)
        guest = [Held('device', mdev)]
        self.assertEqual({hosts[0].uuid}, self.let_through(guest, Rules(), known))
        self.assertEqual({host.uuid for host in hosts},
                         self.let_through(guest, Rules(crossings=frozenset({(MDEV, VF)})), known))
        # And of a kind that nobody ever had, no name is there that placement would refuse.
        self.assertEqual({hosts[0].uuid},
                         self.let_through(guest, Rules(crossings=frozenset({(MDEV, Sort('vf', 'none'))})), known))


class TestDocumentedCode(base.TestCase):
    """From what a host's driver says of its types to the hosts that placement names for a guest of one of them."""

    def setUp(self) -> None:
        super().setUp()
        self.direct = self.useFixture(placements.Placement()).direct
        self.hosts = {version: self.useFixture(our_fixtures.Host(parents={'p0': 2}, name=f'host-{uuid.uuid4()}'))
                      for version in ('2.0.0', '2.1.0')}
        for version, host in self.hosts.items():
            host.machine.declare(MigrationType('mdev', 'p0', 'nvidia-35', Attribute(version)))
            host.audit()
            manager = host.manager
            PlacementReporter(self.direct).sync(manager.providers(), tree.FLAT, manager.state().classes,
                                                manager.state().complete)

    def found(self, source: str) -> set[str]:
        """The versions of the hosts to which a guest of this version may go."""
        instance = self.hosts[source].spawn(vgpu=1)
        [example] = code_blocks(DOCS / 'user' / 'compatibility.rst')
        names = {'manager': self.hosts[source].manager, 'context': self.context, 'instance': instance,
                 'client': self.direct, 'others': []}
        exec(compile(example, 'compatibility.rst', 'exec'), names)
        roots, nodes = names['roots'], names['nodes']
        assert isinstance(roots, frozenset) and isinstance(nodes, list)
        for host in self.hosts.values():
            [root] = [provider.uuid for provider in host.manager.providers() if provider.parent_uuid is None]
            self.assertEqual(root in roots, host.name in nodes)
        return {version for version, host in self.hosts.items() if host.name in nodes}

    def test_finds_the_hosts_that_a_guest_may_go_to(self) -> None:
        self.assertEqual({'2.0.0', '2.1.0'}, self.found('2.0.0'))
        self.assertEqual({'2.1.0'}, self.found('2.1.0'))

    def test_a_host_that_was_updated_is_told_anew(self) -> None:
        host = self.hosts['2.0.0']
        host.machine.declare(MigrationType('mdev', 'p0', 'nvidia-35', Attribute('2.1.7')))
        host.audit()
        report = PlacementReporter(self.direct).sync(host.manager.providers(), tree.FLAT, host.manager.state().classes)
        [change] = report.changes
        assert change.before is not None and change.after is not None
        self.assertEqual({'CUSTOM_MIG_MDEV_NVIDIA_35_V2_1'}, change.after.traits - change.before.traits)
        self.assertEqual({'2.0.0', '2.1.0'}, self.found('2.1.0'))
