"""Plans how allocations move from a node's provider to the providers of their devices. Pure.

The record says which devices a consumer has, and so where its allocations belong. The hypervisor says whether the guest
has the same devices. Every disagreement is an obstacle, and a node with an obstacle stays as it is: if an allocation
were at the wrong provider, the scheduler would give one device to two guests.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Final
from typing import NamedTuple

from devicetrack import vocabulary
from devicetrack.objects import Provider
from devicetrack.objects.values import Usage
from devicetrack.placement import expected
from devicetrack.placement import merging
from devicetrack.placement import tree
from devicetrack.placement import values
from devicetrack.placement.expected import Assigned
from devicetrack.placement.expected import Share
from devicetrack.placement.values import Resources

NO_RECORD: Final = 'no record'
OTHER_AMOUNT: Final = 'other amount'
NO_GUEST: Final = 'no guest'
OTHER_GUEST: Final = 'other devices'
NO_PROVIDER: Final = 'no provider'
NO_ROOM: Final = 'no room'
UNREAD: Final = 'not read'
FAILED: Final = 'failed'


class Obstacle(NamedTuple):
    """A reason to leave a node as it is. ``consumer`` is None if the reason is not about a consumer."""

    consumer: str | None
    what: str
    detail: str

    def __str__(self) -> str:
        whose = f'consumer {self.consumer}: ' if self.consumer is not None else ''
        return f'{self.what}: {whose}{self.detail}'


class ReshapePlan(NamedTuple):
    """One request to the reshaper, which replaces everything in it or nothing. With obstacles it must not be sent."""

    inventories: Mapping[str, values.Inventories] = {}
    consumers: tuple[values.Consumer, ...] = ()
    obstacles: tuple[Obstacle, ...] = ()


def classes_below(root_uuid: str, records: Iterable[Assigned], providers: Iterable[Provider] = ()) -> frozenset[str]:
    """Return the resource classes that are counted below the node, by the rows and the host's providers."""
    return frozenset((*(record.resource_class for record in records if record.provider_uuid != root_uuid),
                      *(name for provider in providers if provider.uuid != root_uuid for name in provider.totals)))


def misplaced(root_uuid: str, listed: Mapping[str, values.Holding], records: Iterable[Assigned],
              classes: Collection[str]) -> list[str]:
    """Return the consumers that have more allocated at the node than devices that are counted there.

    :param listed: each consumer's allocations at the node
    """
    shares = expected.shares(records, root_uuid, tree.NESTED)
    return sorted(uuid for uuid, holding in listed.items() if any(
        amount > sum(_sum(part, (root_uuid,), name) for part in shares.get(uuid, _NOTHING)[1:])
        for name, amount in holding.resources.items() if name in classes))


_NOTHING: Final = Share('', {}, {})


def targets(root_uuid: str, consumers: Iterable[str], records: Iterable[Assigned]) -> frozenset[str]:
    """Return the providers below the node that count devices of these consumers."""
    found = expected.shares(records, root_uuid, tree.NESTED)
    return frozenset(provider for consumer in consumers if consumer in found
                     for part in (found[consumer].held, found[consumer].leaving) for provider in part) - {root_uuid}


def companions(root_uuid: str, consumers: Collection[str], records: Iterable[Assigned]) -> list[str]:
    """Return the other consumers of the same instances: while an instance moves, each holds a part of its devices.

    A revert exchanges the allocations of an instance and its migration, and the record changes before or after that.
    So each of the two consumers may seem right alone.
    """
    shares = expected.shares(records, root_uuid, tree.NESTED)
    moving = {shares[consumer].instance_uuid for consumer in consumers if consumer in shares}
    return sorted(consumer for consumer, share in shares.items()
                  if share.instance_uuid in moving and consumer not in consumers)


def plan(root_uuid: str, inventories: Mapping[str, values.Inventories], used: Mapping[str, Mapping[str, int]],
         consumers: Collection[values.Consumer], records: Sequence[Assigned], usage: Usage | None,
         classes: Collection[str]) -> ReshapePlan:
    """Plan how consumers move to the providers of their devices, or name the obstacles.

    Inventories change only as much as necessary: the node loses a class that nobody holds there any more, and a
    provider gets room for what is allocated there then. The host's next report does the rest.

    :param inventories: those of the node and of :func:`targets`, as far as placement has them
    :param used: the amounts by class that are allocated at :func:`targets` now
    :param consumers: all consumers that hold one of ``classes`` at the node, and their :func:`companions`
    :param records: the host's rows, each with the provider and class that its device is counted at now
    :param usage: the devices that guests use; None when the hypervisor cannot be asked
    :param classes: from :func:`classes_below`
    """
    shares = expected.shares(records, root_uuid, tree.NESTED)
    providers = {root_uuid, *inventories, *(record.provider_uuid for record in records)}
    obstacles = [Obstacle(None, UNREAD, f'what guests use could not be read: {unknown.what}: {unknown.reason}')
                 for unknown in (usage.unknown if usage is not None else ())]
    guests = None if usage is None else _Guests(records, usage)
    after: list[values.Consumer] = []
    changed: list[values.Consumer] = []
    needed = {(provider, name): amount for provider, amounts in used.items() for name, amount in amounts.items()}
    for consumer in sorted(consumers):
        share = shares.get(consumer.uuid)
        if share is None:
            obstacles.append(Obstacle(consumer.uuid, NO_RECORD, 'the record has no devices for it: it is on its way '
                                      'here or away, or was left over'))
            continue
        found = [*_amounts(consumer, share, providers, classes),
                 *(_guest(consumer.uuid, share.instance_uuid, guests) if guests is not None else ())]
        obstacles += found
        if found:
            continue
        moved = _moved(consumer, share, providers, classes)
        after.append(moved)
        if moved.resources != consumer.resources:
            changed.append(moved)
        counted = {provider: amounts for provider, amounts in consumer.resources.items() if provider in used}
        for sign, resources in ((1, moved.resources), (-1, counted)):
            for provider, amounts in resources.items():
                for name, amount in amounts.items():
                    needed[provider, name] = needed.get((provider, name), 0) + sign * amount
    obstacles += _places(inventories, changed, providers - {root_uuid}, classes)
    if obstacles or not changed:
        return ReshapePlan(obstacles=tuple(obstacles))
    return ReshapePlan(_inventories(root_uuid, inventories, after, needed, classes), tuple(changed))


# -- obstacles --------------------------------------------------------------------------------------------------------


def _amounts(consumer: values.Consumer, share: Share, providers: Collection[str],
             classes: Collection[str]) -> Iterator[Obstacle]:
    for name in sorted(classes):
        have, held, leaving = (_sum(view, providers, name) for view in (consumer.resources, share.held, share.leaving))
        if have not in (held, held + leaving):
            more = f', and {leaving} being released' if leaving else ''
            yield Obstacle(consumer.uuid, OTHER_AMOUNT, f'{have} {name} are allocated, but the record has {held}{more}')


class _Guests:
    """Each instance's rows, and the devices that its guest names."""

    def __init__(self, records: Iterable[Assigned], usage: Usage) -> None:
        self.domains = usage.domains
        self.rows: dict[str, list[Assigned]] = {}
        self.named: dict[str, set[tuple[str, str | None]]] = {}
        for record in records:
            self.rows.setdefault(record.instance_uuid, []).append(record)
        for use in usage.uses:
            self.named.setdefault(use.domain_uuid, set()).add((use.kind, use.identifier))


def _guest(consumer: str, instance: str, guests: _Guests) -> Iterator[Obstacle]:
    """Yield an obstacle unless a guest has every current, active device, and no device without a row of its instance.

    A claimed device is not in a guest yet, and an old one may no longer be in one.
    """
    rows, named = guests.rows[instance], guests.named.get(instance, set())
    here = {record.key for record in rows
            if record.role == vocabulary.CURRENT and record.state == vocabulary.ACTIVE}
    if here and instance not in guests.domains:
        yield Obstacle(consumer, NO_GUEST, f'the record has devices of instance {instance}, but the instance has no '
                       'guest here')
        return
    differ = sorted({*(here - named), *(named - {record.key for record in rows})}, key=repr)
    if differ:
        names = ', '.join(f'{kind}/{identifier}' if identifier else f'{kind} of an unknown address'
                          for kind, identifier in differ)
        yield Obstacle(consumer, OTHER_GUEST, f'the guest of instance {instance} and the record differ in these '
                       f'devices: {names}')


def _places(inventories: Mapping[str, values.Inventories], changed: Iterable[values.Consumer], below: Collection[str],
            classes: Collection[str]) -> Iterator[Obstacle]:
    """Yield an obstacle for each provider that consumers move to and that lacks an inventory, or room in it."""
    needed: dict[tuple[str, str], int] = {}
    for consumer in changed:
        for provider in consumer.resources.keys() & below:
            for name in consumer.resources[provider].keys() & classes:
                needed[provider, name] = needed.get((provider, name), 0) + consumer.resources[provider][name]
    for (provider, name), amount in sorted(needed.items()):
        there = inventories[provider].inventories.get(name) if provider in inventories else None
        if there is None:
            yield Obstacle(None, NO_PROVIDER, f'placement has no {name} at provider {provider}, but guests have '
                           f'{amount}: let the host report with [placement] nested = manual, or heal on the host')
        elif amount > there.total:
            yield Obstacle(None, NO_ROOM, f'provider {provider} has {there.total} {name}, but guests have {amount}')


# -- the request ------------------------------------------------------------------------------------------------------


def _moved(consumer: values.Consumer, share: Share, providers: Collection[str],
           classes: Collection[str]) -> values.Consumer:
    """Return the consumer with its amounts of the classes at the providers of its devices."""
    resources = {provider: {name: amount for name, amount in amounts.items()
                            if provider not in providers or name not in classes}
                 for provider, amounts in consumer.resources.items()}
    for name in classes:
        have, held = _sum(consumer.resources, providers, name), _sum(share.held, providers, name)
        for part in (share.held, share.leaving) if have > held else (share.held,) if have else ():
            for provider, amounts in part.items():
                if name in amounts:
                    there = resources.setdefault(provider, {})
                    there[name] = there.get(name, 0) + amounts[name]
    kind = consumer.type
    if kind == values.UNTYPED:                  # its writer gave no type, but a write must give one now
        kind = values.INSTANCE if share.instance_uuid == consumer.uuid else values.MIGRATION
    return consumer._replace(resources=merging.plain(resources), type=kind)


def _inventories(root_uuid: str, before: Mapping[str, values.Inventories], after: Iterable[values.Consumer],
                 needed: Mapping[tuple[str, str], int], classes: Collection[str]) -> dict[str, values.Inventories]:
    """Return the inventories that must change so that the consumers fit.

    :param needed: the amount that is allocated after the move, by provider and class
    """
    stays: dict[str, int] = {}
    for consumer in after:
        for name, amount in consumer.resources.get(root_uuid, {}).items():
            stays[name] = stays.get(name, 0) + amount
    wanted: dict[str, values.Inventories] = {}
    for provider, (generation, found) in before.items():
        inventories = {}
        for name, inventory in found.items():
            if name in classes and provider == root_uuid:
                if name not in stays:
                    continue
                inventory = inventory._replace(reserved=max(0, inventory.total - stays[name]))
            elif name in classes:
                inventory = inventory._replace(reserved=max(0, min(
                    inventory.reserved, inventory.total - needed.get((provider, name), 0))))
            inventories[name] = inventory
        if inventories != found or provider == root_uuid:       # the node's generation makes a new consumer conflict
            wanted[provider] = values.Inventories(generation, inventories)
    return wanted


def _sum(resources: Resources, providers: Collection[str], name: str) -> int:
    return sum(amounts.get(name, 0) for provider, amounts in resources.items() if provider in providers)
