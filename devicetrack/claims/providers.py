"""The resource providers that count the devices of a host: their UUIDs, and what the scheduler learns of each.

A device is reserved if nobody may have it and no instance that the scheduler knows holds it: it is withheld, being
wiped or removed, a cordoned parent could make it, or it is held without an instance. The scheduler may still know an
instance that goes away. Then its devices count twice for a while, which is safe.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from typing import NamedTuple
from typing import Protocol
import uuid

from devicetrack import vocabulary
from devicetrack.compatibility import traits as compatibility_traits
from devicetrack.compatibility.facts import Declaration
from devicetrack.engine.selection import HELD
from devicetrack.engine.selection import NO_UUID
from devicetrack.engine.states import DeviceState
from devicetrack.engine.states import PoolState
from devicetrack.objects import details
from devicetrack.objects import Provider
from devicetrack.objects import traits


class ProviderResolver(Protocol):
    """Gives the UUIDs of providers. If the service itself creates the providers, look them up by name."""

    def uuid_of(self, name: str) -> str | None:
        """The UUID of the provider for the parent device with this stable name; '' is the node.

        It must give the same answer after a restart and in another process, unless the service has made the provider
        anew. Each audit asks for every name, so an answer that takes long should be kept. It may block; the lock is not
        held.

        :returns: None if the provider does not exist now. The manager goes on with an earlier answer. Without one, no
            claim gets its devices; an instance that has such a device keeps it.
        """


class DerivedProviders:
    """Provider UUIDs derived from the node's UUID and the parent's stable name (version 5, RFC 9562)."""

    def __init__(self, node_uuid: str) -> None:
        self._node = uuid.UUID(node_uuid)

    def uuid_of(self, name: str) -> str:
        return str(uuid.uuid5(self._node, name)) if name else str(self._node)


class KnownProviders:
    """Keeps the last UUIDs of providers, so that later look-ups need no I/O."""

    def __init__(self, resolver: ProviderResolver) -> None:
        self._resolver = resolver
        self._uuids: dict[str, str] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._uuids

    def resolve(self, names: Iterable[str]) -> None:
        """Ask for the names. A provider that does not exist just now keeps its UUID. May block."""
        for name in names:
            if found := self._resolver.uuid_of(name):
                self._uuids[name] = found

    def uuid_of(self, name: str) -> str:
        """The UUID of a resolved provider; :data:`~devicetrack.engine.selection.NO_UUID` for any other."""
        return self._uuids.get(name, NO_UUID)

    def missing(self, names: Iterable[str]) -> set[str]:
        """The names among these that are not resolved yet."""
        return {name for name in names if name not in self._uuids}

    def all(self) -> frozenset[str]:
        """Every known UUID."""
        return frozenset(self._uuids.values())


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


def for_scheduler(names: Mapping[str, str], nodename: str, found: Iterable[Count],
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
    for name, provider_uuid in sorted(names.items()):
        if provider_uuid not in made:           # a resolver may give several names one UUID
            here = at.get(provider_uuid, ())
            known = {trait for count in here
                     for trait in (*details.traits_of(count.details), *offers.get((count.kind, count.parent), ()))}
            if vocabulary.is_numa_provider(name):
                known.add(traits.NUMA_ROOT)
            made[provider_uuid] = Provider(
                uuid=provider_uuid, name=f'{nodename}_{name}' if name else nodename,
                parent_uuid=names[''] if name else None,
                totals=_sums((count.resource_class, count.total) for count in here),
                reserved=_sums((count.resource_class, count.reserved) for count in here), traits=sorted(known))
    return list(made.values())


def _sums(amounts: Iterable[tuple[str, int]]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for name, amount in amounts:
        sums[name] = sums.get(name, 0) + amount
    return sums
