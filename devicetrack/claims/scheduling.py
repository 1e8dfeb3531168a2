"""The providers of a host for the scheduler: totals, reserved amounts and traits.

A device is reserved if nobody may have it and no instance that the scheduler knows holds it: it is withheld, being
wiped or removed, a cordoned parent could make it, or it is held without an instance. The scheduler may still know an
instance that goes away. Then its devices count twice for a while, which is safe.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from typing import NamedTuple

from devicetrack import vocabulary
from devicetrack.compatibility import traits as compatibility_traits
from devicetrack.compatibility.facts import Declaration
from devicetrack.engine.selection import HELD
from devicetrack.engine.states import DeviceState
from devicetrack.engine.states import PoolState
from devicetrack.objects import details
from devicetrack.objects import Provider
from devicetrack.objects import traits


class Count(NamedTuple):
    """The devices of one pool. ``details`` is the stored details of one of them, or '' if nobody has seen one.

    ``kind`` and ``parent`` are those of the declarations about its devices.
    """

    provider_uuid: str
    resource_class: str
    total: int
    reserved: int
    details: str
    kind: str
    parent: str | None


def counts(pools: Iterable[PoolState], unclaimed: Iterable[DeviceState] = (), closed: bool = False) -> list[Count]:
    """Count the devices of a ledger.

    :param unclaimed: held devices whose instance the scheduler does not know
    :param closed: no device of the host may be taken at the moment
    """
    beside: dict[tuple[object, ...], int] = {}
    for device in unclaimed:
        if device.state == HELD:
            where = device.kind, device.provider_uuid, device.resource_class, device.parent, device.numa_node
            beside[where] = beside.get(where, 0) + 1
    found = []
    for pool in pools:
        total, where = pool.total + pool.makes, pool[:5]
        reserved = total - pool.held - (0 if closed else pool.room) + beside.pop(where, 0)
        found.append(Count(pool.provider_uuid, pool.resource_class, total, reserved, pool.details,
                           pool.kind, pool.parent))
    return found


def providers(names: Mapping[str, str], nodename: str, found: Iterable[Count],
              declared: Collection[Declaration] = ()) -> list[Provider]:
    """The providers of a host.

    :param names: UUIDs by the stable names of providers, '' for the node; devices that other providers count are left
        out. Without the node the result is empty, because the others are below it
    :param declared: the host's declarations. A pool may have devices of several types and knows the details of one, so
        its provider has the traits of all types of the same kind and parent
    """
    if '' not in names:
        return []
    offered = compatibility_traits.of_host(one.facts for one in declared)
    offers: dict[tuple[str, str | None], set[str]] = {}
    for one in declared:
        offers.setdefault((one.facts.sort.kind, one.parent), set()).update(offered[one.facts])
    at: dict[str, list[Count]] = {}
    for count in found:
        at.setdefault(count.provider_uuid, []).append(count)
    made: dict[str, Provider] = {}
    for name, uuid in sorted(names.items()):
        if uuid not in made:                    # a resolver may give several names one UUID
            here = at.get(uuid, ())
            known = {trait for count in here
                     for trait in (*details.traits_of(count.details), *offers.get((count.kind, count.parent), ()))}
            if vocabulary.is_numa_provider(name):
                known.add(traits.NUMA_ROOT)
            made[uuid] = Provider(
                uuid=uuid, name=f'{nodename}_{name}' if name else nodename, parent_uuid=names[''] if name else None,
                totals=_sums((count.resource_class, count.total) for count in here),
                reserved=_sums((count.resource_class, count.reserved) for count in here), traits=sorted(known))
    return list(made.values())


def _sums(amounts: Iterable[tuple[str, int]]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for name, amount in amounts:
        sums[name] = sums.get(name, 0) + amount
    return sums
