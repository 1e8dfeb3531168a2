"""Compares one guest with the devices that many hosts declare, in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
import itertools
import random
import time
from typing import NamedTuple

from benchmarks import measure
from benchmarks.measure import Effort
from benchmarks.report import Row
from benchmarks.report import Table
from devicetrack.compatibility.facts import Facts
from devicetrack.compatibility.facts import Sort
from devicetrack.compatibility.facts import Version
from devicetrack.compatibility.partners import Fleet
from devicetrack.compatibility.partners import Held
from devicetrack.compatibility.rules import Rules

_DEVICES = 8                                # devices of a host
_DISTINCT = 3_000                           # different sets of facts in each fleet
_FEATURES = 'ABCD'
_OFFERED = [frozenset(some) for number in range(5) for some in itertools.combinations(_FEATURES, number)]


class _Subject(NamedTuple):
    name: str
    facts: Sequence[Facts]
    guest: Sequence[Held]


def _facts(type_: str, minor: int, required: str = '', offered: frozenset[str] = frozenset()) -> Facts:
    return Facts(Sort('mdev', type_), 'vfio-pci', Version(2, minor, 0), frozenset(required), offered)


_SUBJECTS = (
    # Five types, and the guest has one of them: the others are left out before the comparison.
    _Subject('easy', [_facts(f'type-{index % 5}', index // 5) for index in range(_DISTINCT)],
             [Held(f'device-{index}', _facts('type-0', index * 100)) for index in range(4)]),
    # One type, so each device of the guest is compared with every set of facts. Each set serves any of the four devices
    # or none, so hosts differ as much as they can.
    _Subject('hard', [_facts('type', index, offered=_OFFERED[index % len(_OFFERED)]) for index in range(_DISTINCT)],
             [Held(f'device-{feature}', _facts('type', 0, required=feature)) for feature in _FEATURES]),
)


def run(effort: Effort) -> Table:
    return Table('One guest against a fleet', [row for subject in _SUBJECTS for row in _rows_of(subject, effort)])


def _rows_of(subject: _Subject, effort: Effort) -> list[Row]:
    chance = random.Random(1)
    hosts = {f'host-{host}': chance.choices(subject.facts, k=_DEVICES) for host in range(effort.fleet)}
    many, few = Fleet(hosts), Fleet(dict(itertools.islice(hosts.items(), effort.fleet // 2)))
    samples = measure.side_by_side({'few': lambda: _ask(few, subject.guest), 'many': lambda: _ask(many, subject.guest)},
                                   effort.fleet_rounds)
    able = len(many.hosts_for(subject.guest, Rules()))
    return [
        Row(f'{subject.name}: hosts, all different', len({frozenset(Counter(one).items()) for one in hosts.values()}),
            at_least=effort.fleet, note=f'{_DEVICES} devices each; {able:,} can take the guest with its four'),
        Row(f'{subject.name}: sets of facts, all different', len({facts for one in hosts.values() for facts in one}),
            at_least=_DISTINCT),
        Row(f'{subject.name}: time', samples.median('many') * 1000, 'ms'),
        Row(f'{subject.name}: time of all to half of them', samples.ratio('many', 'few'), at_most=2.2),
    ]


def _ask(fleet: Fleet, guest: Sequence[Held]) -> float:
    began = time.perf_counter()
    fleet.hosts_for(guest, Rules())
    return time.perf_counter() - began
