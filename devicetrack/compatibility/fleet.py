"""One guest against many hosts, with what they declare in memory.

Hosts declare the same facts over and over. So each distinct set of facts is kept once and decided on once for each
device of the guest, and only where kind and type may match.

Then every host costs the sum of one number for each of its devices, and nothing is searched. By Hall's theorem all
devices of the guest have partners if and only if every group of them is served by as many devices of the host as the
group has members. The number of a device has a digit for each group, 1 where it serves a member; the sum of a host has
each group's count. Few groups matter: those that some devices of the fleet, taken together, do not serve. For a guest
with four devices they are 15 at most, and their digits fit into a machine word, which is added without Python's help.
Hosts are kept as what fetches the numbers of all their devices in one call.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from operator import itemgetter
from typing import NamedTuple

from devicetrack.compatibility import partners
from devicetrack.compatibility.facts import Facts
from devicetrack.compatibility.facts import Sort
from devicetrack.compatibility.partners import Held
from devicetrack.compatibility.rules import acceptance
from devicetrack.compatibility.rules import Rules

# All groups of eight devices. Those of more may be too many to count.
_GROUPS = 256


class Fleet:
    """The free devices of many hosts, by the name of the host. It does not change: read anew, make a new one."""

    def __init__(self, hosts: Mapping[str, Iterable[Facts]]) -> None:
        number: dict[Facts, int] = {}
        rows = {name: [number.setdefault(facts, len(number)) for facts in devices] for name, devices in hosts.items()}
        self._largest = max(map(len, rows.values()), default=0)
        self._distinct = len(number)
        # An itemgetter of fewer than two gives no tuple. What stands for no device has the last number.
        self._hosts = [(name, itemgetter(*row, *[self._distinct] * (2 - len(row)))) for name, row in rows.items()]
        self._of_sort: dict[Sort, list[tuple[int, Facts]]] = {}
        for facts, index in number.items():
            self._of_sort.setdefault(facts.sort, []).append((index, facts))

    def hosts_for(self, guest: Sequence[Held], rules: Rules) -> tuple[str, ...]:
        """The hosts where each device of a guest has a partner, in the order in which they were handed in.

        Why another host is none of them, :func:`.partners.find` says.
        """
        serves = self._serves(guest, rules)
        tally = _tally(set(serves), len(guest), self._largest)
        numbers, short, reached = [tally.numbers[mask] for mask in serves], tally.short, tally.reached
        found = [(name, row) for name, row in self._hosts if sum(row(numbers), short) & reached == reached]
        if not tally.of_all_groups:
            found = [(name, row) for name, row in found if _fits(len(guest), row(serves))]
        return tuple(name for name, _row in found)

    def _serves(self, guest: Sequence[Held], rules: Rules) -> list[int]:
        """By distinct facts, the devices of the guest that they serve: a bit for each. No device serves none."""
        serves = [0] * (self._distinct + 1)
        alike: dict[Held, int] = {}
        for index, held in enumerate(guest):
            one = held._replace(identifier='')
            alike[one] = alike.get(one, 0) | 1 << index
        for held, bits in alike.items():
            accepts = acceptance(held.facts, rules, held.seen)
            sort = held.facts.sort
            for there in {sort, *(to for source, to in rules.crossings if source == sort)}:
                for index, facts in self._of_sort.get(there, ()):
                    if accepts(facts):
                        serves[index] |= bits
        return serves


class _Tally(NamedTuple):
    """The numbers of devices, by what they serve, and what a host's sum is to be.

    ``short`` is where a sum starts: each digit as far below its highest bit as the group has members. When the bits of
    ``reached`` are set at the end, the group is served.
    """

    numbers: Mapping[int, int]
    short: int
    reached: int
    of_all_groups: bool


def _tally(masks: Collection[int], wanted: int, largest: int) -> _Tally:
    """Find the groups that matter, and give each a digit.

    When a group is served by too few, so is the one of all whom nobody but those few serves. Hence the groups are what
    is left of the guest by one device or by several together.
    """
    unions = {0}
    for mask in masks:
        if mask not in unions:                  # else it adds no other
            unions |= {union | mask for union in unions}
            if len(unions) > _GROUPS:
                break
    everyone = (1 << wanted) - 1
    groups = [everyone & ~union for union in unions - {everyone}]
    highest = (max(largest, wanted) - 1).bit_length()
    digits = [(group, 1 << number * (highest + 1)) for number, group in enumerate(groups)]
    return _Tally({mask: sum(digit for group, digit in digits if mask & group) for mask in masks},
                  sum(digit * ((1 << highest) - group.bit_count()) for group, digit in digits),
                  sum(digit << highest for _group, digit in digits),
                  len(unions) <= _GROUPS)


def _fits(wanted: int, serves: Sequence[int]) -> bool:
    accepted = [[number for number, bits in enumerate(serves) if bits >> index & 1] for index in range(wanted)]
    return len(partners.maximum(accepted)) == wanted
