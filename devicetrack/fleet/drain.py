"""Says which hosts can take the guests of others now: pure functions of a host's snapshot and declarations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.claims.partner_search import PartnerSearch
from devicetrack.claims.partner_search import Wanted
from devicetrack.compatibility.facts import Facts
from devicetrack.compatibility.facts import look_at
from devicetrack.compatibility.facts import TypeAtParent
from devicetrack.compatibility.facts import version_seen
from devicetrack.compatibility.host_facts import Guest
from devicetrack.compatibility.host_facts import HostFacts
from devicetrack.compatibility.host_facts import NOTHING_DECLARED
from devicetrack.compatibility.partners import Held
from devicetrack.compatibility.partners import maximum
from devicetrack.compatibility.rules import decide
from devicetrack.compatibility.rules import Rules
from devicetrack.engine import allocator
from devicetrack.engine.demand import Demand
from devicetrack.engine.demand import Item
from devicetrack.fleet import capacity
from devicetrack.fleet import inventory
from devicetrack.objects.values import Record

# Rows do not say what the flavor asked of its devices except their classes.
_NOBODY = ''


class Need(NamedTuple):
    """What a guest needs elsewhere. Guests with equal needs have equal answers.

    ``running`` are its devices, each of which needs a compatible partner if the guest moves while it runs. It is None
    if nobody knows what they are; then ``unknown`` says why.
    """

    demand: Demand
    running: tuple[Wanted, ...] | None
    unknown: str = ''


class Refusal(NamedTuple):
    """Why a host cannot take a guest. ``missing`` counts the devices that it lacks, for the nearest host has least.

    ``has_none`` is true if it has no such devices at all, not even for others.
    """

    missing: int
    has_none: bool
    text: str


def need_of(records: Sequence[Record], guest: Guest, numa_policy: str) -> Need:
    """What a guest needs, by its rows.

    :param guest: the same devices with what their host declares about them
    """
    amounts: dict[str, int] = {}
    for record in records:
        amounts[record.resource_class] = amounts.get(record.resource_class, 0) + 1
    demand = Demand(tuple(Item(*one) for one in sorted(amounts.items())), numa_policy=numa_policy)
    unknown = next((device.unknown for device in guest.devices if device.facts is None), '')
    if unknown:
        return Need(demand, None, unknown)
    # The names of devices make no difference to what their partners are.
    return Need(demand, tuple(
        Wanted(device.record.resource_class, Held(f'number {number}', device.facts, version_seen(device.record.seen)))
        for number, device in enumerate(guest.devices, 1) if device.facts is not None))


class Destination:
    """A host that takes claims, by the picture that it pushed last.

    :param text: the document of its snapshot
    :param numa_nodes: on how many NUMA nodes of the host each guest runs, any of them; 0 if devices need not be near
    """

    def __init__(self, text: str, facts: HostFacts, rules: Rules, numa_nodes: int) -> None:
        self._now, self._facts, self._rules, self._numa_nodes = inventory.from_text(text), facts, rules, numa_nodes
        self._places = tuple(capacity.places(self._now, numa_nodes))
        self._declared = {one.about: one.facts for one in facts.declarations}
        self._few = f'it has fewer than {numa_nodes} NUMA nodes'

    def cold(self, need: Need) -> Refusal | None:
        """Why a guest that is shut off cannot come here; None if it can."""
        refusals = []
        for nodes in self._places:
            chosen = allocator.choose(self._now, _NOBODY, need.demand._replace(numa_nodes=nodes))
            if not isinstance(chosen, list):
                return None
            refusals.append(Refusal(
                sum(max(0, one.wanted - one.free) for one in chosen), not any(one.exist for one in chosen),
                str(max(chosen, key=lambda one: one.wanted - one.free))))
        wanted = sum(item.amount for item in need.demand.items)
        return min(refusals, default=Refusal(wanted, True, self._few))

    def takes_live(self, need: Need) -> bool:
        """Whether a running guest can come here."""
        running = need.running
        if running is None or self._facts.is_silent:
            return False
        now = self._now
        pools = {one.resource_class: now.scope(one.resource_class, None) for one in running}
        # A pool with lines has free devices of several types.
        if self._numa_nodes or not capacity.only_numbers_count(now, need.demand) or any(
                pool.lines for some in pools.values() for pool in some):
            return self.live(need) is None
        # As many devices of each pool as the guest could have.
        free = [(name, facts) for name, some in pools.items() for pool in some
                if (facts := self._facts_of(pool.place.kind, pool.place.parent, pool.details)) is not None
                for _ in range(min(now.room(pool), len(running)))]
        return len(maximum([[
            number for number, (name, facts) in enumerate(free)
            if name == one.resource_class and decide(one.held.facts, facts, self._rules, one.held.seen).accepted]
            for one in running])) == len(running)

    def live(self, need: Need) -> str | None:
        """Why a running guest cannot come here; None if it can."""
        if need.running is None:
            return need.unknown
        if self._facts.is_silent:
            return NOTHING_DECLARED
        search = PartnerSearch(self._facts.host, lambda: self._now, self._facts_of, self._rules, need.running)
        why = self._few
        for nodes in self._places:
            try:
                partners = search.choose(need.demand._replace(numa_nodes=nodes))
            except exception.NoDevicePair as refused:
                why = refused.reason.removeprefix(f'on host {self._facts.host}, ')
                continue
            chosen = allocator.choose(self._now, _NOBODY, partners)
            if not isinstance(chosen, list):
                return None
            why = '; '.join(map(str, chosen))
        # The host may know itself what cannot be read here.
        return '; '.join([why, *(f'{one.sort}: {one.problem}' for one in self._facts.unread)])

    def _facts_of(self, kind: str, parent: str | None, text: str) -> Facts | None:
        return self._declared.get(TypeAtParent(kind, parent, look_at(text).type))


def is_moving(records: Sequence[Record]) -> bool:
    """Whether some of a guest's devices are those that it leaves, or those to which it comes."""
    return any(record.role != vocabulary.CURRENT for record in records)
