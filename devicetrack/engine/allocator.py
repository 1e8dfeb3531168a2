"""Chooses devices for claims: pure functions of a snapshot.

Each choice makes another snapshot, in which the chosen device has its owner, and the next choice goes on from there. A
choice that leads nowhere is dropped with its snapshots, so nothing is ever undone.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import itertools
from typing import Final
from typing import NamedTuple

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.engine.demand import arrange
from devicetrack.engine.demand import Demand
from devicetrack.engine.demand import Item
from devicetrack.engine.demand import NOTHING
from devicetrack.engine.explanation import is_meant
from devicetrack.engine.explanation import Shortage
from devicetrack.engine.explanation import shortage
from devicetrack.engine.selection import Affinity
from devicetrack.engine.selection import allows
from devicetrack.engine.selection import HELD
from devicetrack.engine.snapshot import Claimed
from devicetrack.engine.snapshot import Device
from devicetrack.engine.snapshot import Pool
from devicetrack.engine.snapshot import Snapshot
from devicetrack.objects.choice import Choice
from devicetrack.objects.values import DeviceKey

# Says by the parent's name and the details of a device whether a claim may take it.
Accepts = Callable[[str | None, str], bool]

_NO_NODES: Final[frozenset[int | None]] = frozenset()
# At most this many orders of a demand's items are tried, if the sets of devices that they allow may overlap.
_ORDERS: Final = 24


class Chosen(NamedTuple):
    """The devices of a choice, in the order of the guest, and the snapshot in which their claim has them."""

    after: Snapshot
    devices: tuple[Device, ...]


def choose(now: Snapshot, instance_uuid: str, demand: Demand) -> Chosen | list[Shortage]:
    """Choose devices for a whole demand.

    Items that name a provider choose first, and the others choose from what is left. For two items of one class, one
    set of allowed pools contains the other, or the two have nothing in common. So if the demand fits, this order finds
    a way. If classes share parents, the class with the fewest parents chooses first.

    :returns: without a choice, what is short
    """
    for items in (demand.items, *demand.alternatives):
        anywhere = all(item.provider_uuid is None for item in items)
        affinity = (demand.numa_nodes, demand.numa_policy) if demand.numa_nodes and (
            demand.numa_policy != vocabulary.NONE or any(item.numa_policy for item in items)) else None
        claimed = Claimed(instance_uuid, now.number, False, anywhere, affinity)
        for order in _orders(now, demand, items):
            found = _take_items(now._replace(number=now.number + 1), demand, items, order, claimed)
            if found is not None:
                after, taken = found
                devices = [device for index in range(len(items)) for device in taken[index]]
                after = after.of_instances({instance_uuid: (*after.instances.get(instance_uuid, ()), *(
                    device.key for some in taken.values() for device in some))})
                if demand.order:
                    devices = arrange(devices, [device.place.resource_class for device in devices], demand.order)
                return Chosen(after, tuple(devices))
    return shortages(now, demand)


def _orders(now: Snapshot, demand: Demand, items: Sequence[Item]) -> Iterable[Sequence[int]]:
    """The orders in which the items of a demand may choose."""
    if len(items) == 1:
        return ((0,),)
    order = sorted(range(len(items)), key=lambda index: (items[index].provider_uuid is None, len(now.scope(
        items[index].resource_class, items[index].provider_uuid, items[index].choices))))
    if any(item.choices for item in items):
        # The sets of two items may overlap, and the first item may have taken the only device for the second.
        return (order, order[::-1]) if demand.alternatives else itertools.chain(
            (order, order[::-1]), itertools.islice(itertools.permutations(order), 1, _ORDERS))
    # What was chosen first may have excluded what the next item needs, or the parent has fewer devices of its class
    # left than it really has. The opposite order finds what fits then, but not every mix.
    return order, order[::-1]


def _take_items(now: Snapshot, demand: Demand, items: Sequence[Item], order: Sequence[int],
                claimed: Claimed) -> tuple[Snapshot, dict[int, list[Device]]] | None:
    """Take devices for each item, in this order."""
    own = now.with_exclusions(claimed.instance_uuid)
    taken: dict[int, list[Device]] = {}
    for index in order:
        item = items[index]
        owner = claimed._replace(choices=item.choices, numa_policy=item.numa_policy) \
            if item.choices or item.numa_policy else claimed
        affinity = _affinity(now, demand, item.numa_policy)
        taken[index] = []
        for wanted in range(item.amount, 0, -1):
            picked = _pick(now, item, affinity, own, wanted)
            if picked is None:
                return None
            now, device = _taken(now, picked, owner)
            taken[index].append(device)
            if device.exclusions:
                own = [*own, device]
    return now, taken


def _taken(now: Snapshot, picked: Device, owner: Claimed) -> tuple[Snapshot, Device]:
    """Give a free device to a claim, or one that will be made."""
    device = picked._replace(owner=owner)
    return now.with_devices({device.key: device}, now.number + (not picked.is_named)), device


def _pick(now: Snapshot, item: Item, affinity: Affinity, own: Sequence[Device], wanted: int = 1) -> Device | None:
    """Pick a device for an item.

    Devices that only devices of the same instance exclude come first, because nobody else can have them; but a near
    device comes before a far one.

    :param own: the instance's devices that exclude others
    :param wanted: how many devices the item still needs, this one included
    """
    picked = _pick_beside(now, item, affinity, own, near=True) if own else None
    if picked is None:
        pools = now.scope(item.resource_class, item.provider_uuid, item.choices)
        picked = _pick_accepted(now, pools, affinity, item.accepts) if item.accepts is not None \
            else _pick_best(now, pools, item, affinity, wanted)
    return _pick_beside(now, item, affinity, own, near=False) if picked is None and own else picked


def _pick_best(now: Snapshot, pools: Sequence[Pool], item: Item, affinity: Affinity, wanted: int) -> Device | None:
    """Pick the device that the policy chooses or, if some go together, one that leaves no part of a group behind.

    For several devices this is one of the smallest group that has them all, and for one device a lone one: nobody else
    can have what is left of a group.
    """
    if now.groups and wanted > 1:
        near = ([device for device in group if _is_near(now, item, device, affinity)] for group in now.free_groups())
        index = {place: number for number, place in enumerate(now.pools)}
        fits = [(len(meant), index[meant[0].place], number, meant[0])
                for number, meant in enumerate(near) if len(meant) >= wanted]
        if fits:
            return min(fits, key=lambda one: one[:3])[3]
    pool = best(now, pools, affinity)
    if pool is None:
        return None
    picked = _first_of(now, pool)
    if wanted == 1 and any(mode == vocabulary.TOGETHER for _name, mode in picked.exclusions):
        together = {device.key for group in now.free_groups() for device in group}
        if picked.key not in together:
            return picked
        for other in (now.devices[key] for pool in pools for _since, key in pool.in_line()):
            if other.key not in together and _is_near(now, item, other, affinity):
                return other
    return picked


def _first_of(now: Snapshot, pool: Pool) -> Device:
    """The device that has been free for the longest time, or one that will be made. The pool has room."""
    return now.devices[pool.first()] if pool.free else unborn(now, pool)


def unborn(now: Snapshot, pool: Pool) -> Device:
    """A device that will be made. No device of any kind has its name."""
    place = pool.place
    return Device(DeviceKey(place.kind, f'(unnamed {now.number})'), place, pool.details, now.number,
                  exclusions=now.made.get((place.kind, place.parent or ''), ()), is_unborn=True, is_named=False)


def best(now: Snapshot, pools: Sequence[Pool], affinity: Affinity) -> Pool | None:
    """The pool to take the next device from, or None when none has room.

    :param pools: those that may be, in the order of names
    """
    nodes, policy, on_socket = affinity
    if policy == vocabulary.NONE or not nodes:
        return _best_of(now, pools)
    near = _best_of(now, (pool for pool in pools if pool.place.numa_node in nodes))
    if near is not None or policy == vocabulary.REQUIRED:
        return near
    if policy == vocabulary.SOCKET:
        return _best_of(now, (pool for pool in pools if pool.place.numa_node in on_socket))
    unknown = _best_of(now, (pool for pool in pools if pool.place.numa_node is None))   # its node may be a near one
    return unknown if unknown is not None or policy == vocabulary.LEGACY else _best_of(now, pools)


def _best_of(now: Snapshot, pools: Iterable[Pool]) -> Pool | None:
    """The first pool that has room or, if claims are spread, the one with the most room."""
    if now.policy != vocabulary.SPREAD:
        return next((pool for pool in pools if now.room(pool) > 0), None)
    most = max(pools, key=now.room, default=None)
    return most if most is not None and now.room(most) > 0 else None


def _is_near(now: Snapshot, item: Item, device: Device, affinity: Affinity) -> bool:
    """Whether an item may take a device, and no nearer one comes before it."""
    nodes, policy, _on_socket = affinity
    return is_meant(now, item, device.place) and (
        policy == vocabulary.NONE or not nodes or device.place.numa_node in nodes)


def _pick_beside(now: Snapshot, item: Item, affinity: Affinity, own: Sequence[Device], near: bool) -> Device | None:
    """Pick a device that only devices of the same instance exclude."""
    return next((device for device in now.beside(own)
                 if (_is_near(now, item, device, affinity) if near else is_meant(now, item, device.place))
                 and allows(device.place.numa_node, *affinity)
                 and (item.accepts is None or item.accepts(device.place.parent, device.details))), None)


def _pick_accepted(now: Snapshot, pools: Sequence[Pool], affinity: Affinity, accepts: Accepts) -> Device | None:
    """Search for an accepted device. Only a guest that comes from another host needs this search."""
    nodes = affinity[0]
    picked, rank = None, (True, True)
    for device, _amount in _available(now, pools, affinity):
        its = bool(nodes) and device.place.numa_node not in nodes, not device.is_named
        if (picked is None or its < rank) and accepts(device.place.parent, device.details):
            picked, rank = device, its
            if not any(rank):
                break
    return picked


def _available(now: Snapshot, pools: Iterable[Pool], affinity: Affinity) -> Iterator[tuple[Device, int]]:
    for pool in pools:
        if allows(pool.place.numa_node, *affinity):
            yield from ((now.devices[key], 1) for _since, key in pool.in_line())
            if now.room(pool) > pool.free:
                yield unborn(now, pool), now.room(pool) - pool.free


def available(now: Snapshot, resource_class: str, provider_uuid: str | None,
              demand: Demand) -> list[tuple[Device, int]]:
    """The devices that an item of a demand could get. One that is not named stands for so many that can be made."""
    return list(_available(now, now.scope(resource_class, provider_uuid), _affinity(now, demand, None)))


def _affinity(now: Snapshot, demand: Demand, item_policy: str | None) -> Affinity:
    """The nodes and the policy for an item and, for the policy ``socket``, all nodes on their sockets."""
    nodes, policy = demand.numa_nodes, item_policy or demand.numa_policy
    return nodes, policy, _on_socket(now, nodes) if policy == vocabulary.SOCKET else _NO_NODES


def _on_socket(now: Snapshot, nodes: frozenset[int | None]) -> frozenset[int | None]:
    near = {socket for node, socket in now.sockets.items() if node in nodes}
    return frozenset(node for node, socket in now.sockets.items() if socket in near)


# -- another device in place of one -------------------------------------------------------------------------------


def exchange(now: Snapshot, key: DeviceKey, accepts: Accepts | None = None,
             numa_nodes: frozenset[int | None] = _NO_NODES, numa_policy: str = vocabulary.REQUIRED,
             parent_gone: bool = False) -> Chosen | None:
    """Choose another device to replace one that could not be made ready. The first one stays held.

    The other device comes from the same provider, unless the request left the provider to this host. It has the
    features and the affinity of the request. A claim that was made from rows does not know these; then the other device
    has the same features and the same NUMA node as the first.

    :param accepts: as for an :class:`~devicetrack.engine.demand.Item`
    :param numa_nodes: the other device must be near these nodes instead, by ``numa_policy``
    :param parent_gone: nobody can have a device of the same parent any more, so the other one may be of any
        provider, and of any NUMA node if the request is not known
    :returns: the other device alone; None if nobody holds the first one
    :raises NoFit: there is no other device; the error does not count the claim's own devices
    """
    device = now.devices.get(key)
    if device is None or device.owner is None:
        return None
    owner, place = device.owner, device.place
    choices, words = owner.choices, now.pools[place].words
    if owner.from_rows and words:
        # Nobody knows which of its features the request asked for, so the other device must have all of them.
        choices = (Choice(place.resource_class, frozenset(words)),)
    provider_uuid = None if owner.anywhere or parent_gone else place.provider_uuid
    wanted = NOTHING
    if numa_nodes:
        wanted = affinity = NOTHING._replace(numa_nodes=numa_nodes, numa_policy=numa_policy)
    elif owner.from_rows:
        affinity = NOTHING._replace(numa_nodes=frozenset((place.numa_node,)),
                                    numa_policy=vocabulary.PREFERRED if parent_gone else vocabulary.REQUIRED)
    else:
        nodes, policy = owner.affinity or (frozenset(), vocabulary.NONE)
        affinity = NOTHING._replace(numa_nodes=nodes, numa_policy=owner.numa_policy or policy)
    item = Item(place.resource_class, 1, provider_uuid, accepts, choices)
    uuid = owner.instance_uuid
    picked = _pick(now, item, _affinity(now, affinity, None), now.with_exclusions(uuid))
    if picked is None:
        short = _shortage(now, item, wanted, owner)
        own = sum(one.state == HELD and one.place.resource_class == place.resource_class
                  and provider_uuid in (None, one.place.provider_uuid) for one in now.of_claim(owner))
        if numa_nodes:                          # its own exist too, on the wrong node
            short = short._replace(exist=short.exist + own, wrong_numa_node=short.wrong_numa_node + own)
        raise exception.NoFit([short._replace(exist=short.exist - own, held=short.held - own)])
    after, taken = _taken(now, picked, owner._replace(choices=choices))
    keys = [taken.key if one == key else one for one in after.instances[uuid]]
    return Chosen(after.of_instances({uuid: (*keys, key)}), (taken,))


def exchange_elsewhere(now: Snapshot, key: DeviceKey, accepts: Accepts | None = None,
                       parent_gone: bool = False) -> Chosen | None:
    """As :func:`exchange`, and by another parent if possible: what fails at one device may fail at its siblings."""
    device = now.devices.get(key)
    failing = None if device is None else device.place.parent
    if failing is not None:
        with contextlib.suppress(exception.NoFit):
            return exchange(now, key, lambda parent, details: parent != failing and (
                accepts is None or accepts(parent, details)), parent_gone=parent_gone)
    return exchange(now, key, accepts, parent_gone=parent_gone)


def narrow(now: Snapshot, accepts: Mapping[DeviceKey, Accepts | None], numa_nodes: frozenset[int | None],
           numa_policy: str | None) -> tuple[Snapshot, list[tuple[DeviceKey, Device]]]:
    """Choose devices near NUMA nodes, to replace the devices of a claim that are far. The far ones stay held.

    A far device that the policy allows is exchanged only if a near device is free.

    :param accepts: by device of the claim, as for :func:`exchange`
    :param numa_policy: None for each device's own policy: ``preferred`` if the request named none, and ``required``
        if nobody knows it any more
    :returns: the snapshot after that, and the exchanged devices, each with its replacement
    :raises NoFit: a device that the policy does not allow has no near one
    """
    exchanged: list[tuple[DeviceKey, Device]] = []
    owners: dict[int, Claimed] = {}
    on_socket = _on_socket(now, numa_nodes)
    for key, accepts_one in accepts.items():
        device = now.devices.get(key)
        if device is None or device.owner is None:
            continue                            # the ledger does not know it; its row decides
        owner, node = device.owner, device.place.numa_node
        owners[owner.number] = owner
        if node in numa_nodes:
            continue
        policy = numa_policy or (vocabulary.REQUIRED if owner.from_rows else owner.numa_policy or vocabulary.PREFERRED)
        chosen = _exchange_for_nearer(now, key, accepts_one, numa_nodes, policy,
                                      allows(node, numa_nodes, policy, on_socket))
        if chosen is not None:
            now = chosen.after
            exchanged.append((key, chosen.devices[0]))
    affinity = numa_nodes, numa_policy or vocabulary.PREFERRED
    return now.with_devices({device.key: device._replace(owner=device.owner._replace(
        affinity=affinity, numa_policy=None if numa_policy is not None else device.owner.numa_policy))
        for owner in owners.values() for device in now.of_claim(owner) if device.owner is not None}), exchanged


def _exchange_for_nearer(now: Snapshot, key: DeviceKey, accepts: Accepts | None, numa_nodes: frozenset[int | None],
                         policy: str, allowed: bool) -> Chosen | None:
    """Exchange a device for one on the nodes. If it is not ``allowed``, one that the policy allows is enough.

    :returns: None if the device stays
    :raises NoFit: the device may not stay, and there is no other
    """
    try:
        return exchange(now, key, accepts, numa_nodes)
    except exception.NoFit:
        if allowed:
            return None
    return exchange(now, key, accepts, numa_nodes, policy)


# -- why a demand does not fit ----------------------------------------------------------------------------------------


def shortages(now: Snapshot, demand: Demand, everything: bool = False) -> list[Shortage]:
    """The parts of a demand that do not fit, or with ``everything`` all parts."""
    wanted: dict[Item, int] = {}
    for item in demand.items:
        alike = item._replace(amount=0, accepts=None)
        wanted[alike] = wanted.get(alike, 0) + item.amount
    all_of = [_shortage(now, item._replace(amount=amount), demand) for item, amount in wanted.items()]
    if everything:
        return all_of
    # Each item may fit alone, and all of them together may not. Then all of them are short.
    return [one for one in all_of if not one.fits] or all_of


def _shortage(now: Snapshot, item: Item, demand: Demand, but: Claimed | None = None) -> Shortage:
    return shortage(now, item, _affinity(now, demand, item.numa_policy), but)
