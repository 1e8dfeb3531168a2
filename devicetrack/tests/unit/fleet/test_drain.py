"""Which hosts can take a running guest: where only numbers count, as many as the search of claims finds."""

from __future__ import annotations

import random
from typing import Any

import fixtures

from devicetrack.claims.partner_search import Wanted
from devicetrack.compatibility.facts import Declaration
from devicetrack.compatibility.facts import Facts
from devicetrack.compatibility.facts import Sort
from devicetrack.compatibility.facts import Version
from devicetrack.compatibility.host_facts import HostFacts
from devicetrack.compatibility.partners import Held
from devicetrack.compatibility.rules import Rules
from devicetrack.fleet import drain
from devicetrack.fleet import inventory
from devicetrack.tests import base
from devicetrack.tests.unit.engine import hosts
from devicetrack.tests.unit.fleet import test_capacity


class TestTakesLive(base.TestCase):
    def test_numbers_say_as_much_as_the_search_for_each_device(self) -> None:
        answers = set()
        for seed in range(300):
            lots = random.Random(seed)
            text = inventory.to_text(test_capacity.a_host(lots).now)
            facts = HostFacts('host', tuple(_declared(lots, *about) for about in (
                ('vpmem', 'region0'), ('mdev', 'p0'), ('mdev', 'p1'))))
            classes = lots.sample((hosts.PMEM, hosts.VGPU, hosts.VGPU_B), lots.randint(1, 2))
            amounts = [(name, lots.randint(1, 3)) for name in classes]
            need = drain.Need(hosts.wants(*amounts), tuple(
                Wanted(name, Held(f'{name} {number}', _facts(lots, 'vpmem' if name == hosts.PMEM else 'mdev')))
                for name, amount in amounts for number in range(amount)))
            found = drain.Destination(text, facts, Rules(), 0).takes_live(need)
            answers.add(found)
            with fixtures.MonkeyPatch('devicetrack.fleet.capacity.only_numbers_count', lambda *_given: False):
                self.assertEqual(drain.Destination(text, facts, Rules(), 0).takes_live(need), found, f'seed {seed}')
        self.assertEqual({True, False}, answers)


def _declared(lots: Any, kind: str, parent: str) -> Declaration:
    return Declaration(parent, _facts(lots, kind))


def _facts(lots: Any, kind: str) -> Facts:
    # These tests have no details from which a type can be read.
    return Facts(Sort(kind, ''), '', Version(2, lots.randint(0, 2), 0))
