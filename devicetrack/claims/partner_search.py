"""Searches for the partners of a running guest's devices among the free devices of a host, before they are claimed.

:mod:`devicetrack.compatibility` decides which devices are compatible.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import itertools
from typing import Final
from typing import NamedTuple

from devicetrack import exception
from devicetrack.compatibility import partners
from devicetrack.compatibility.facts import Facts
from devicetrack.compatibility.facts import TypeAtParent
from devicetrack.compatibility.facts import Version
from devicetrack.compatibility.partners import Held
from devicetrack.compatibility.partners import Offer
from devicetrack.compatibility.rules import decide
from devicetrack.compatibility.rules import Rules
from devicetrack.compatibility.rules import Verdict
from devicetrack.engine import allocator
from devicetrack.engine.demand import Demand
from devicetrack.engine.demand import Item
from devicetrack.engine.snapshot import Snapshot
from devicetrack.objects.values import DeviceKey

# Gets a kind, a parent and the details of a device here, and returns what this host declares about it. None if it
# declares nothing about such devices.
FactsOf = Callable[[str, str | None, str], Facts | None]


class Wanted(NamedTuple):
    """A device that a running guest has on another host. Its partner here has the same resource class."""

    resource_class: str
    held: Held

    @property
    def key(self) -> DeviceKey:
        return DeviceKey(self.held.facts.sort.kind, self.held.identifier)

    @property
    def seen(self) -> str | None:
        """The version that the row of its partner records as seen by the guest. A move does not change it."""
        seen = self.held.seen or self.held.facts.version
        return str(seen) if isinstance(seen, Version) else None


# A text names at most this many of equivalent devices.
_SHOWN: Final = 3


class _Group(NamedTuple):
    """Equivalent devices here: the free ones that exist, and the number that can be made."""

    kind: str
    parent: str | None
    facts: Facts
    names: list[str]
    makes: int = 0

    def __str__(self) -> str:
        shown = ', '.join(f'{self.kind}/{name}' for name in sorted(self.names)[:_SHOWN])
        if not shown:
            return f'{self.kind} {self.facts.sort.type} to be made on {self.parent}'
        more = len(self.names) + self.makes - _SHOWN
        return shown + (f' and {more} more' if more > 0 else '')

    def offers(self, most: int) -> list[Offer]:
        """As many offers as there can be partners, with names that are unique on this host."""
        made = (f'{number} {self.facts.sort.type} to be made on {self.parent}' for number in range(self.makes))
        return [Offer(name, self.facts) for name in itertools.islice(itertools.chain(sorted(self.names), made), most)]


class PartnerSearch:
    """Searches for the partners of one guest's devices among the free devices here. It holds none.

    :param host: this host's name, for error texts
    :param now: returns the snapshot of this host
    :param guest: the guest's devices, in its order
    :param tell: is called with each pair that an option or the table allows: the device of the guest, its partner, and
        why
    """

    def __init__(self, host: str, now: Callable[[], Snapshot], facts_of: FactsOf, rules: Rules,
                 guest: Sequence[Wanted], tell: Callable[[str, str, str], object] = lambda *_pair: None) -> None:
        self._host, self._now, self._facts_of, self._rules, self._guest = host, now, facts_of, rules, guest
        self._tell = tell
        self.seen = tuple(wanted.seen for wanted in guest)

    def choose(self, demand: Demand) -> Demand:
        """Turn a demand into one for partners: an item for each device, in the order of the guest.

        The pairs are a maximum matching among the devices of each class at each provider.

        :raises NoDevicePair: a device has no partner among the free devices; the error says why each is none
        """
        items: dict[int, Item] = {}
        for resource_class in sorted({wanted.resource_class for wanted in self._guest}):
            indices = [index for index, wanted in enumerate(self._guest) if wanted.resource_class == resource_class]
            slots = [item.provider_uuid for item in demand.items if item.resource_class == resource_class
                     for _ in range(item.amount)]
            # It is unknown which alias asked for which device of the guest, so the policy of the first item counts.
            policy = next((item.numa_policy for item in demand.items if item.resource_class == resource_class), None)
            asked = demand._replace(numa_policy=policy or demand.numa_policy)
            groups = {provider: self._groups(resource_class, provider, asked) for provider in sorted(
                set(slots), key=lambda uuid: uuid or '')}
            for provider, some in self._over_providers(indices, slots, groups):
                found = self._within(some, resource_class, provider, groups[provider])
                items |= {index: item._replace(numa_policy=policy) for index, item in found.items()}
        return demand.with_items(tuple(items[index] for index in range(len(self._guest))))._replace(order=())

    def _groups(self, resource_class: str, provider_uuid: str | None, demand: Demand) -> list[_Group]:
        groups: dict[TypeAtParent, _Group] = {}
        found = allocator.available(self._now(), resource_class, provider_uuid, demand)
        for (kind, parent, details), some in itertools.groupby(
                found, key=lambda one: (one[0].key.kind, one[0].place.parent, one[0].details)):
            facts = self._facts_of(kind, parent, details)
            if facts is None:
                continue                        # they came since the last audit
            key = TypeAtParent(kind, parent, facts.sort.type)
            group = groups.get(key, _Group(kind, parent, facts, []))
            for device, amount in some:
                if device.is_named:
                    group.names.append(device.key.identifier)
                else:
                    group = group._replace(makes=group.makes + amount)
            groups[key] = group
        return list(groups.values())

    def _over_providers(self, indices: Sequence[int], slots: Sequence[str | None],
                        groups: Mapping[str | None, Sequence[_Group]]) -> list[tuple[str | None, list[int]]]:
        """Decide which provider gives partners to which devices of one class."""
        if len(groups) == 1 and len(slots) == len(indices):
            return [(slots[0], list(indices))]
        accepted = [[slot for slot, provider in enumerate(slots) if any(
            self._decide(self._guest[index], group).accepted for group in groups[provider])] for index in indices]
        slot_of = partners.maximum(accepted)
        alone = [self._guest[index] for number, index in enumerate(indices) if number not in slot_of]
        if alone:
            raise self._no_pair(alone, [one for some in groups.values() for one in some],
                                f'{len(slots)} of class {alone[0].resource_class} are allocated here')
        return [(provider, [index for number, index in enumerate(indices) if slots[slot_of[number]] == provider])
                for provider in groups]

    def _decide(self, wanted: Wanted, group: _Group) -> Verdict:
        return decide(wanted.held.facts, group.facts, self._rules, wanted.held.seen)

    def _within(self, indices: Sequence[int], resource_class: str, provider: str | None,
                groups: Sequence[_Group]) -> dict[int, Item]:
        offers = {DeviceKey(group.kind, offer.identifier): (group, offer)
                  for group in groups for offer in group.offers(len(indices))}
        found = partners.find([self._guest[index].held for index in indices],
                              [offer for _group, offer in offers.values()], self._rules)
        index_of = {self._guest[index].key: index for index in indices}
        if found.alone:
            raise self._no_pair([self._guest[index_of[alone.source]] for alone in found.alone], groups,
                                'no device of its class is free here', found)
        items = {}
        for pair in found.pairs:
            group, _offer = offers[pair.destination]
            if pair.verdict.notes:
                self._tell(' '.join(pair.source), str(group), str(pair.verdict))

            def accepts(parent: str | None, text: str, group: _Group = group) -> bool:
                return parent == group.parent and self._facts_of(group.kind, parent, text) == group.facts

            items[index_of[pair.source]] = Item(resource_class, 1, provider, accepts)
        return items

    def _no_pair(self, alone: Sequence[Wanted], groups: Sequence[_Group], otherwise: str,
                 found: partners.Partners | None = None) -> exception.NoDevicePair:
        """Explain why no device here is the first device's partner, and name the others without a partner."""
        wanted = alone[0]
        reasons = []
        for group in groups:
            verdict = self._decide(wanted, group)
            reasons.append(f'{group}: {"partners of other devices" if verdict.accepted else verdict}')
        text = f'on host {self._host}, {" | ".join(reasons) or otherwise}'
        if alone[1:]:
            text += f'; also without a partner: {", ".join(str(other.key) for other in alone[1:])}'
        return exception.NoDevicePair(*wanted.key, text, None if found is None else found.as_data())
