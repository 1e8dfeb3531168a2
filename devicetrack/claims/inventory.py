"""What the scheduler is to know of a host: its providers, with totals, with what is reserved, and with traits.

Reserved is what nobody may have and no instance that the scheduler knows holds: withheld, wiped or removed at the
moment, what a drained parent could make, and what is held without an instance to show for it. An instance that is going
away may be known to the scheduler still, and then it counts twice for a while, never too little.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
import functools
from typing import NamedTuple
from typing import TYPE_CHECKING

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.compatibility import traits as migration_traits
from devicetrack.compatibility.facts import Declaration
from devicetrack.engine import ledger as ledgers
from devicetrack.engine import reconcile
from devicetrack.objects import details as details_objects
from devicetrack.objects import Provider
from devicetrack.objects import traits
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Record
from devicetrack.objects.values import Usage

if TYPE_CHECKING:
    from devicetrack.claims.steps import Steps

# Rows of instances that have no allocation any more.
_OVER = (reconcile.ABANDONED, reconcile.STALE_MIGRATION)


class Count(NamedTuple):
    """The devices of one pool. ``details`` is the text of those of one of them, '' when nobody has seen one.

    ``kind`` and ``parent`` are those of what is declared about its devices.
    """

    provider_uuid: str
    resource_class: str
    total: int
    reserved: int
    details: str
    kind: str
    parent: str | None


def of(manager: Steps) -> list[Provider]:
    """The providers of a manager's host."""
    # Who was told that its claim failed holds nothing as far as the scheduler knows.
    undone = {DeviceKey(unit.pool.kind, unit.identifier or '') for doubt in list(manager.doubts) if doubt.undo
              for unit in doubt.holding.units}
    over = {key for kind, key in manager.first_seen if kind in _OVER}
    with manager.lock:
        found = counts(manager.ledger, undone | over, manager.report_only is not None)
    return providers(manager.present, manager.nodename, found, list(manager.declarations.values()))


def placed(manager: Steps) -> tuple[list[Record], Usage]:
    """The rows of a manager's host as :func:`counted_now` gives them, and what guests use."""
    usage = manager.driver.get_usage()                  # before the rows: what is taken meanwhile has a row by then
    records = manager.store.records(manager.host_uuid)
    with manager.lock:
        return counted_now(records, manager.ledger), usage


def counted_now(records: Iterable[Record], ledger: ledgers.Ledger) -> list[Record]:
    """Rows with the provider and class that their devices are counted at now; a row names what its claim knew."""
    found = []
    for record in records:
        unit = ledger.find(record.key)
        found.append(record if unit is None else record._replace(provider_uuid=unit.pool.provider_uuid,
                                                                 resource_class=unit.pool.resource_class))
    return found


def counts(ledger: ledgers.Ledger, unclaimed: Collection[DeviceKey] = (), closed: bool = False) -> list[Count]:
    """Count a ledger's devices, under its lock.

    :param unclaimed: devices that are held for nobody whom the scheduler knows
    :param closed: nothing of the host may be had at the moment
    """
    beside: dict[int, int] = {}
    for key in unclaimed:
        unit = ledger.find(key)
        if unit is not None and unit.state == ledgers.HELD:
            beside[unit.pool.index] = beside.get(unit.pool.index, 0) + 1
    found = []
    for pool in ledger.pools():
        total = pool.total + pool.makes()
        available = 0 if closed else pool.room()
        reserved = total - pool.held_count - available + beside.get(pool.index, 0)
        found.append(Count(pool.provider_uuid, pool.resource_class, total, reserved, pool.details,
                           pool.kind, pool.parent_name))
    return found


def providers(names: Mapping[str, str], nodename: str, found: Iterable[Count],
              declared: Collection[Declaration] = ()) -> list[Provider]:
    """The providers of a host.

    :param names: UUIDs by the stable names of providers, '' for the node; what is counted elsewhere is left out
    :param declared: what the host declares. A pool may have devices of several types and knows the details of one, so
        its provider has the traits of all types of the same kind and parent
    """
    offered = migration_traits.of_host(one.facts for one in declared)
    offers: dict[tuple[str, str | None], set[str]] = {}
    for one in declared:
        offers.setdefault((one.facts.sort.kind, one.parent), set()).update(offered[one.facts])
    at: dict[str, list[Count]] = {}
    for count in found:
        at.setdefault(count.provider_uuid, []).append(count)
    made: dict[str, Provider] = {}
    for name, uuid in sorted(names.items()):
        if uuid not in made:                    # whoever says the UUIDs may say one for several
            here = at.get(uuid, ())
            known = {trait for count in here
                     for trait in (*_traits(count.details), *offers.get((count.kind, count.parent), ()))}
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


@functools.lru_cache(maxsize=1024)
def _traits(text: str) -> tuple[str, ...]:
    """The traits of stored details. What a newer release or another device kind stored has none that we know."""
    try:
        return details_objects.from_text(text).traits if text else ()
    except (exception.UnknownObject, exception.MalformedObject):
        return ()
