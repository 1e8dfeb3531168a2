"""Counts how many instances fit on a host now: pure functions of the document of its snapshot."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
import itertools
from typing import NamedTuple

from devicetrack.engine import allocator
from devicetrack.engine.demand import Demand
from devicetrack.engine.snapshot import Snapshot
from devicetrack.fleet import inventory
from devicetrack.objects.choice import Choice
from devicetrack.objects.choice import classes


class Fitting(NamedTuple):
    """How many instances with the same demand fit on a host, one after the other.

    ``free`` counts the devices that a claim could get before the first of them, by the classes of the demand, and
    ``stranded`` those that are left after the last one.
    """

    instances: int
    free: dict[str, int]
    stranded: dict[str, int]


def wanted(demand: Demand) -> dict[tuple[str, ...], int]:
    """How many devices an instance wants, by the resource classes of which any will do."""
    found: dict[tuple[str, ...], int] = {}
    for item in demand.items:
        names = classes(item.choices or (Choice(item.resource_class),))
        found[names] = found.get(names, 0) + item.amount
    return found


def fitting(text: str, demand: Demand, numa_nodes: int) -> Fitting:
    """Count by the allocator that claims use.

    :param text: the document of a host's snapshot
    :param numa_nodes: on how many NUMA nodes of the host each guest runs, any of them; 0 if devices need not be near
    """
    counted = [name for names in wanted(demand) for name in names]
    before = now = inventory.from_text(text)
    if not numa_nodes and only_numbers_count(now, demand):
        free = _room(now, counted)
        instances = min(free[name] // amount for (name,), amount in wanted(demand).items())
        return Fitting(instances, free, {name: free[name] - instances * amount
                                         for (name,), amount in wanted(demand).items()})
    instances = 0
    for nodes in places(now, numa_nodes):
        near = demand._replace(numa_nodes=nodes)
        # What one instance takes never makes room for another one. So nothing fits any more on nodes on which one did
        # not fit.
        while not isinstance(chosen := allocator.choose(now, f'instance {instances}', near), list):
            now, instances = chosen.after, instances + 1
    return Fitting(instances, _room(before, counted), _room(now, counted))


def _room(now: Snapshot, names: Iterable[str]) -> dict[str, int]:
    return {name: sum(map(now.room, now.scope(name, None))) for name in names}


def only_numbers_count(now: Snapshot, demand: Demand) -> bool:
    """Whether any free device of a class is as good as another, and takes no room of others.

    Then the allocator need not be asked instance by instance, which for thousands of hosts takes seconds.
    """
    if now.tokens or now.made or any(item.choices or item.accepts or item.provider_uuid for item in demand.items):
        return False
    makers = [pool.place[:1] + (pool.place.parent,) for name in {item.resource_class for item in demand.items}
              for pool in now.scope(name, None) if pool.is_creatable]
    return len(makers) == len(set(makers))


def places(now: Snapshot, numa_nodes: int) -> Iterator[frozenset[int | None]]:
    """The sets of NUMA nodes on which a guest may run; none if the host has too few nodes."""
    known = sorted({*now.sockets, *(place.numa_node for place in now.pools if place.numa_node is not None)}) or [0]
    return map(frozenset, itertools.combinations(known, numa_nodes))
