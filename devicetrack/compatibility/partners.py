"""Pairs the devices of a guest with those of a destination: one host, with reasons, or a whole fleet.

A pair is a device of the guest and one that :func:`.rules.decide` accepts for it. The map is a maximum matching: no
other map has more pairs. It does not depend on the order of the input: devices are tried by kind and identifier.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import NamedTuple
from typing import TypeVar

from devicetrack import exception
from devicetrack.compatibility.facts import Facts
from devicetrack.compatibility.facts import Version
from devicetrack.compatibility.rules import decide
from devicetrack.compatibility.rules import REFUSED
from devicetrack.compatibility.rules import Rules
from devicetrack.compatibility.rules import Verdict
from devicetrack.objects.values import DeviceKey


class Held(NamedTuple):
    """A device of the guest. ``seen`` is the highest version of it that the guest may have seen since its boot."""

    identifier: str
    facts: Facts
    seen: Version | None = None


class Offer(NamedTuple):
    """A device of the destination that the guest may have."""

    identifier: str
    facts: Facts


Device = TypeVar('Device', Held, Offer)


class Pair(NamedTuple):
    """A device of the guest, its partner, and the verdict with what was allowed."""

    source: DeviceKey
    destination: DeviceKey
    verdict: Verdict


class Passed(NamedTuple):
    """A device that did not become the partner: it does not fit, or ``partner_of`` has it."""

    destination: DeviceKey
    verdict: Verdict
    partner_of: DeviceKey | None

    def __str__(self) -> str:
        if not self.verdict.accepted:
            return f'{self.destination}: {self.verdict}'
        assert self.partner_of is not None
        return f'{self.destination}: is the partner of {self.partner_of}'


class Alone(NamedTuple):
    """A device of the guest without a partner, and why each device of the destination is not its partner."""

    source: DeviceKey
    passed: tuple[Passed, ...]

    def __str__(self) -> str:
        why = ' | '.join(map(str, self.passed)) or 'the destination has no device'
        return f'{self.source} has no partner: {why}'


class Partners(NamedTuple):
    """The map from source to destination. The guest can move if no device is ``alone``."""

    pairs: tuple[Pair, ...]
    alone: tuple[Alone, ...]

    @property
    def accepted(self) -> bool:
        return not self.alone

    @property
    def for_tenant(self) -> str:
        """The text that the owner of the guest may read; empty if accepted."""
        return REFUSED if self.alone else ''

    def __str__(self) -> str:
        return '\n'.join([*map(str, self.alone),
                          *(f'{pair.source} becomes {pair.destination}: {pair.verdict}'
                            for pair in self.pairs)])

    def as_data(self) -> Mapping[str, object]:
        return {
            'accepted': self.accepted,
            'pairs': [{'source': pair.source._asdict(), 'destination': pair.destination._asdict(),
                       'verdict': pair.verdict.as_data()} for pair in self.pairs],
            'alone': [{'source': alone.source._asdict(),
                       'passed': [{'destination': passed.destination._asdict(), 'verdict': passed.verdict.as_data(),
                                   'partner_of': passed.partner_of and passed.partner_of._asdict()}
                                  for passed in alone.passed]} for alone in self.alone],
        }


def find(guest: Iterable[Held], destination: Iterable[Offer], rules: Rules) -> Partners:
    """Find as many partners as there can be.

    Pairs, and devices without a partner, come in the order of kinds and identifiers.

    :raises BadRequest: a device is named twice at one end
    """
    held, offers = _by_name('guest', guest), _by_name('destination', destination)
    sources, destinations = sorted(held), sorted(offers)
    verdicts = [[decide(held[source].facts, offers[there].facts, rules, held[source].seen)
                 for there in destinations] for source in sources]
    partner = maximum([[index for index, verdict in enumerate(row) if verdict.accepted] for row in verdicts])
    taken_by = {there: source for source, there in partner.items()}
    pairs, alone = [], []
    for index, source in enumerate(sources):
        if index in partner:
            pairs.append(Pair(source, destinations[partner[index]], verdicts[index][partner[index]]))
        else:
            # Every device that it accepts is taken, since otherwise the matching would not be a maximum.
            alone.append(Alone(source, tuple(
                Passed(there, verdict, sources[taken_by[number]] if verdict.accepted else None)
                for number, (there, verdict) in enumerate(zip(destinations, verdicts[index], strict=True)))))
    return Partners(tuple(pairs), tuple(alone))


def maximum(accepted: Sequence[Iterable[int]]) -> dict[int, int]:
    """Pair as many left indexes as possible, each with a right index that it accepts; maps left to right.

    A breadth-first search finds a path that gives one more left index a partner. All that had a partner keep one.
    """
    right_of: dict[int, int] = {}
    left_of: dict[int, int] = {}
    for start in range(len(accepted)):
        came_from: dict[int, int] = {}
        waiting = deque([start])
        while waiting:
            left = waiting.popleft()
            found = None
            for right in accepted[left]:
                if right in came_from:
                    continue
                came_from[right] = left
                if right not in left_of:
                    found = right
                    break
                waiting.append(left_of[right])
            if found is not None:
                _turn(found, came_from, right_of, left_of)
                break
    return right_of


def _turn(right: int, came_from: Mapping[int, int], right_of: dict[int, int], left_of: dict[int, int]) -> None:
    """Go back along the path that ends in ``right``, and pair each left index on it with the right one after it."""
    while True:
        left = came_from[right]
        before = right_of.get(left)
        right_of[left], left_of[right] = right, left
        if before is None:                      # this is ``start``: all others on the path had a partner
            return
        right = before


def _by_name(where: str, devices: Iterable[Device]) -> dict[DeviceKey, Device]:
    found: dict[DeviceKey, Device] = {}
    for device in devices:
        name = DeviceKey(device.facts.sort.kind, device.identifier)
        if name in found:
            raise exception.BadRequest(where, str(name), 'is named twice; name each device once')
        found[name] = device
    return found


# -- one guest against many hosts -------------------------------------------------------------------------------------


class Fleet:
    """The free devices of many hosts, by the name of the host. It never changes: make a new one after each reading.

    Hosts declare the same facts over and over, so each set of facts is decided once for each device of a guest.
    """

    def __init__(self, hosts: Mapping[str, Iterable[Facts]]) -> None:
        self._numbers: dict[Facts, int] = {}
        self._hosts = {name: [self._numbers.setdefault(facts, len(self._numbers)) for facts in devices]
                       for name, devices in hosts.items()}

    def hosts_for(self, guest: Sequence[Held], rules: Rules) -> tuple[str, ...]:
        """Return the hosts where each device of a guest has a partner, in the order of the constructor's argument.

        :func:`find` says why another host is not among them.
        """
        fitting = [{number for facts, number in self._numbers.items()
                    if decide(held.facts, facts, rules, held.seen).accepted} for held in guest]
        return tuple(name for name, numbers in self._hosts.items() if len(maximum([
            [index for index, number in enumerate(numbers) if number in fits] for fits in fitting])) == len(guest))
