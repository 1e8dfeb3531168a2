"""One guest against the devices that many hosts declare, in memory."""

from __future__ import annotations

import random
import time

from benchmarks import measure
from benchmarks.measure import Effort
from benchmarks.report import Row
from benchmarks.report import Table
from devicetrack.engine.compatibility import Facts
from devicetrack.engine.compatibility import Rules
from devicetrack.engine.compatibility import Sort
from devicetrack.engine.compatibility import Version
from devicetrack.engine.fleet import Fleet
from devicetrack.engine.partners import Held

_DEVICES = 8                                # of a host
# All of one type: then each device of the guest is compared with each of the 3,000 sets of facts.
_FACTS = [Facts(Sort('mdev', 'type'), 'vfio-pci', Version(2, minor, patch))
          for minor in range(30) for patch in range(100)]
_GUEST = [Held(f'device-{position}', Facts(Sort('mdev', 'type'), 'vfio-pci', Version(2, 8 * position, 0)))
          for position in range(4)]


def _fleet(hosts: int) -> Fleet:
    chance = random.Random(1)
    return Fleet({f'host-{host}': chance.choices(_FACTS, k=_DEVICES) for host in range(hosts)})


def run(effort: Effort) -> Table:
    few, many = _fleet(effort.fleet // 4), _fleet(effort.fleet)
    samples = measure.side_by_side({'few': lambda: _ask(few), 'many': lambda: _ask(many)}, effort.fleet_rounds)
    hosts = f'{effort.fleet:,}'
    return Table('One guest against a fleet', [
        Row(f'{hosts} hosts', samples.median('many') * 1000, 'ms', note=f'4 devices, {_DEVICES} of each host'),
        Row('of these, a host', samples.median('many') / effort.fleet * 1e6, 'µs'),
        Row(f'{hosts} hosts against a quarter of them', samples.ratio('many', 'few'), at_most=4.4,
            note='four times the hosts, four times the time'),
    ])


def _ask(fleet: Fleet) -> float:
    began = time.perf_counter()
    fleet.hosts_for(_GUEST, Rules())
    return time.perf_counter() - began
