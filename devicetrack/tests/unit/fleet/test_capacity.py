"""How many instances fit: where only numbers count, as many as one after the other."""

from __future__ import annotations

import random
from typing import Any

import fixtures

from devicetrack import exception
from devicetrack.fleet import capacity
from devicetrack.fleet import inventory
from devicetrack.tests import base
from devicetrack.tests.unit.engine import hosts


class TestFitting(base.TestCase):
    def test_numbers_say_as_much_as_the_allocator_instance_by_instance(self) -> None:
        short_ways = 0
        for seed in range(300):
            lots = random.Random(seed)
            now = a_host(lots).now
            demand = hosts.wants(*[(name, lots.randint(1, 3)) for name in lots.sample(
                (hosts.PMEM, hosts.VGPU, hosts.VGPU_B, hosts.VGPU), lots.randint(1, 2))])
            short_ways += capacity.only_numbers_count(now, demand)
            text = inventory.to_text(now)
            found = capacity.fitting(text, demand, 0)
            with fixtures.MonkeyPatch('devicetrack.fleet.capacity.only_numbers_count', lambda *_given: False):
                self.assertEqual(capacity.fitting(text, demand, 0), found, f'seed {seed}')
        self.assertTrue(50 < short_ways < 300, short_ways)


def a_host(lots: random.Random) -> Any:
    """A host with parents that share their room between classes or do not, and with claims and closed parents."""
    made = hosts.ledger(
        *[hosts.namespace(f'd{number}', numa_node=number % 2) for number in range(lots.randint(0, 5))],
        *[hosts.capacity(f'p{parent}', lots.randint(0, 4), name, device_type=name) for parent in range(3)
          for name in lots.sample((hosts.VGPU, hosts.VGPU_B), lots.randint(1, 2))],
        *[hosts.mdev(f'm{number}', 'p0') for number in range(lots.randint(0, 2))])
    for number in range(3):
        try:
            made.take(str(number), hosts.wants((lots.choice((hosts.PMEM, hosts.VGPU)), 1)))
        except exception.NoFit:
            pass
    if lots.random() < 0.3:
        made.close_parent('mdev', 'p1', 'cordoned')
    return made
