"""Which device of a destination takes the place of which device of a guest, where more than equals are partners.

Partners are those that :func:`.rules.decide` accepts. The map is a maximum matching: no other has more pairs.
It depends on the devices alone and not on the order in which they are named: they are tried in the order of kinds and
identifiers.
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
from devicetrack.compatibility.rules import decide
from devicetrack.compatibility.rules import REFUSED
from devicetrack.compatibility.rules import Rules
from devicetrack.compatibility.rules import Verdict
from devicetrack.compatibility.versions import Version
from devicetrack.objects.values import DeviceKey


class Held(NamedTuple):
    """A device of the guest. ``seen`` is the highest version that the guest may have seen of it since its boot."""

    identifier: str
    facts: Facts
    seen: Version | None = None


class Offer(NamedTuple):
    """A device of the destination that the guest may have."""

    identifier: str
    facts: Facts


Device = TypeVar('Device', Held, Offer)


class Pair(NamedTuple):
    """A device of the guest, its partner, and what was overlooked between them."""

    source: DeviceKey
    destination: DeviceKey
    verdict: Verdict


class Passed(NamedTuple):
    """A device that became no partner: it does not fit, or it is the partner of ``partner_of``."""

    destination: DeviceKey
    verdict: Verdict
    partner_of: DeviceKey | None

    def __str__(self) -> str:
        if not self.verdict.accepted:
            return f'{_said(self.destination)}: {self.verdict}'
        assert self.partner_of is not None
        return f'{_said(self.destination)}: is the partner of {_said(self.partner_of)}'


class Alone(NamedTuple):
    """A device of the guest that has no partner, and why every device of the destination is none."""

    source: DeviceKey
    passed: tuple[Passed, ...]

    def __str__(self) -> str:
        why = ' | '.join(map(str, self.passed)) or 'the destination has no device'
        return f'{_said(self.source)} has no partner: {why}'


class Partners(NamedTuple):
    """The map from source to destination. The guest can go when nothing is ``alone``."""

    pairs: tuple[Pair, ...]
    alone: tuple[Alone, ...]

    @property
    def accepted(self) -> bool:
        return not self.alone

    @property
    def for_tenant(self) -> str:
        """What the owner of the guest may read; empty when accepted."""
        return REFUSED if self.alone else ''

    def __str__(self) -> str:
        return '\n'.join([*map(str, self.alone),
                          *(f'{_said(pair.source)} becomes {_said(pair.destination)}: {pair.verdict}'
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
            # An accepted one is taken, or the matching would not be a maximum.
            alone.append(Alone(source, tuple(
                Passed(there, verdict, sources[taken_by[number]] if verdict.accepted else None)
                for number, (there, verdict) in enumerate(zip(destinations, verdicts[index], strict=True)))))
    return Partners(tuple(pairs), tuple(alone))


def maximum(accepted: Sequence[Iterable[int]]) -> dict[int, int]:
    """Pair each left one with a right one that it accepts, as many as there can be; left to right, by index.

    Breadth-first search for a path that gives one more a partner: whoever had a partner before has one afterwards.
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
    """Go back on the path that ends in ``right``, and give everyone on it the partner that the search went on to."""
    while True:
        left = came_from[right]
        before = right_of.get(left)
        right_of[left], left_of[right] = right, left
        if before is None:                      # it is ``start``: all others on the path had a partner
            return
        right = before


def _said(key: DeviceKey) -> str:
    return f'{key.kind} {key.identifier}'


def _by_name(where: str, devices: Iterable[Device]) -> dict[DeviceKey, Device]:
    found: dict[DeviceKey, Device] = {}
    for device in devices:
        name = DeviceKey(device.facts.sort.kind, device.identifier)
        if name in found:
            raise exception.BadRequest(where, _said(name), 'is named twice; name each device once')
        found[name] = device
    return found
