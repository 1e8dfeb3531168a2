"""Explains why a request does not fit, as data and as one sentence."""

from __future__ import annotations

from collections.abc import Container
from typing import Final
from typing import NamedTuple

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.engine import withholding
from devicetrack.engine.demand import Item
from devicetrack.engine.selection import Affinity
from devicetrack.engine.selection import allows
from devicetrack.engine.selection import Place
from devicetrack.engine.snapshot import Claimed
from devicetrack.engine.snapshot import Snapshot
from devicetrack.objects.choice import Choice
from devicetrack.objects.choice import classes
from devicetrack.objects.traits import is_of_device
from devicetrack.objects.values import DeviceKey

# A text names at most this many devices.
_SHOWN: Final = 10


class Shortage(NamedTuple):
    """One part of a request, and why each device that could serve it does or does not.

    ``wanted`` counts the devices of this resource class in the whole request (from ``provider_uuid``, if it names one).
    ``exist`` counts the devices that exist and those that could still be made when the host was last read, ``free`` the
    ones that can be taken now. The others are ``held`` by ``instances`` instances; ``releasing``, so they are being
    wiped or removed, or wait for another try after that failed; ``withheld``; or free on a ``wrong_numa_node``.
    ``withheld`` counts each device once, by its reasons, and also the devices that a cordoned parent, one without a
    provider, or one that failed to make a device, could make. ``failed`` names the devices that could not be made ready
    for a guest, and these parents, each with the cause. Each parent in ``full_parents`` can make no more; ``taken_by``
    says what takes their room, if these are no devices that count.
    ``wrong_provider`` devices of the class are free at other providers, ``wrong_type`` devices of the same provider
    count as another class. ``unread`` means that a part of the host could not be read, and may have some.

    If the part asks by an alias, it counts only devices that the alias means. ``resource_class`` then names all classes
    of the alias, and ``not_meant`` counts their free devices that the alias does not mean: they are of another product
    or type, or lack its traits. ``by_traits`` says that no alias but traits of devices limit them. ``near`` names the
    classes of this host that are close to one that it does not have.
    """

    resource_class: str
    provider_uuid: str | None
    wanted: int
    exist: int
    free: int
    held: int
    instances: int
    releasing: int
    withheld: tuple[tuple[str, int], ...]
    wrong_numa_node: int
    wrong_provider: int
    wrong_type: int
    full_parents: tuple[str, ...]
    unread: bool = False
    not_meant: int = 0
    failed: tuple[str, ...] = ()
    taken_by: tuple[str, ...] = ()
    by_traits: bool = False
    near: str = ''

    @property
    def fits(self) -> bool:
        return self.free >= self.wanted

    @property
    def why(self) -> str:
        """Why the devices that are not free are not; '' when all are."""
        if not self.exist and not self.wrong_provider and not self.full_parents:
            none = 'none is known, and a part of this host could not be read' if self.unread else 'this host has none'
            none += f', close to it: {self.near}' if self.near else ''
            parts = [*([self._not_meant()] if self.not_meant else []), *self._failed()]
            return none + (f': {", ".join(parts)}' if parts else '') + self._wrong_type()
        parts = []
        if self.held:
            parts.append(f'{self.held} held by {_count(self.instances, "instance")}')
        if self.releasing:
            parts.append(f'{self.releasing} still to be wiped or removed')
        parts += [f'{count} withheld ({reason})' for reason, count in self.withheld]
        if self.wrong_numa_node:
            parts.append(f'{self.wrong_numa_node} on another NUMA node')
        if self.not_meant:
            parts.append(self._not_meant())
        if self.full_parents:
            parts.append(f'no room left on {", ".join(self.full_parents)}'
                         + (f' ({"; ".join(self.taken_by[:_SHOWN])})' if self.taken_by else ''))
        if self.wrong_provider:
            parts.append(f'{self.wrong_provider} free at other providers')
        return ', '.join(parts + self._failed()) + self._wrong_type()

    def __str__(self) -> str:
        wanted = f'{self.wanted} {self.resource_class} wanted'
        if self.provider_uuid:
            wanted += f' from provider {self.provider_uuid}'
        why = self.why
        if not self.exist and not self.wrong_provider and not self.full_parents:
            return f'{wanted}, {why}'
        # A reason comes after a colon. A text in parentheses is not a reason.
        return f'{wanted}, {self.free} of {self.exist} free' + (why if why.startswith(' ') else why and f': {why}')

    def _not_meant(self) -> str:
        if self.by_traits:
            return f'{self.not_meant} free of another product or type than the traits of the request allow'
        return f'{self.not_meant} free of another product or type than the alias means, or without its traits'

    def _failed(self) -> list[str]:
        return [f'not realized: {exception.in_short(self.failed, _SHOWN, "; ")}'] if self.failed else []

    def _wrong_type(self) -> str:
        return f' ({_count(self.wrong_type, "device")} of another type there)' if self.wrong_type else ''


def _count(number: int, noun: str) -> str:
    return f'{number} {noun}' if number == 1 else f'{number} {noun}s'


def is_meant(now: Snapshot, item: Item, place: Place) -> bool:
    """Whether an item may take devices of a pool."""
    if item.provider_uuid not in (None, place.provider_uuid):
        return False
    if not item.choices:
        return place.resource_class == item.resource_class
    return now.pools[place].fits(item.choices)


def shortage(now: Snapshot, item: Item, affinity: Affinity, but: Claimed | None = None) -> Shortage:
    """Count the devices for one part of a demand.

    :param but: the claim that does not count among the ``instances``
    """
    choices = item.choices or (Choice(item.resource_class),)
    counted, provider_uuid = classes(choices), item.provider_uuid
    of_class = [pool for pool in now.pools.values() if pool.place.resource_class in counted]
    pools = [pool for pool in of_class if is_meant(now, item._replace(provider_uuid=None), pool.place)]
    ours = {pool.place: pool for pool in pools if provider_uuid in (None, pool.place.provider_uuid)}
    allowed = [pool for pool in ours.values() if allows(pool.place.numa_node, *affinity)]
    kinds = {pool.place.kind for pool in of_class}
    free = sum(map(now.room, allowed))
    free_anywhere = sum(map(now.room, ours.values()))
    withheld: dict[str, int] = {}
    if any(pool.total - pool.free - pool.held - pool.releasing for pool in ours.values()):
        for device in now.devices.each():
            if device.owner is None and device.is_named and device.place in ours and (why := now.withheld(device)):
                withheld[withholding.text(why)] = withheld.get(withholding.text(why), 0) + 1
    for place, pool in ours.items():
        not_made = pool.free + now.makes(pool) - now.room(pool)
        if not_made:
            reason = withholding.text(now.closed(place.kind, place.parent) or (
                vocabulary.EXCLUDED if now.is_maker_excluded(place) else vocabulary.NO_PROVIDER,))
            withheld[reason] = withheld.get(reason, 0) + not_made
    return Shortage(
        ' or '.join(counted), provider_uuid, item.amount,
        exist=sum(pool.total + now.makes(pool) for pool in ours.values()),
        free=free,
        held=sum(pool.held for pool in ours.values()),
        instances=_owners(now, ours, but),
        releasing=sum(pool.releasing for pool in ours.values()),
        withheld=tuple(sorted(withheld.items())),
        wrong_numa_node=free_anywhere - free,
        wrong_provider=sum(now.room(pool) for pool in pools if pool.place not in ours),
        wrong_type=sum(pool.total for place, pool in now.pools.items() if place.resource_class not in counted
                       and provider_uuid is not None and place.provider_uuid == provider_uuid
                       and (not kinds or place.kind in kinds)),
        # All devices of a cordoned parent are withheld. It makes no more for that reason, and is not full.
        full_parents=tuple(sorted({
            place.parent or '' for place, pool in ours.items() if pool.is_creatable and not now.makes(pool)
            and now.room(pool) <= 0
            and not (vocabulary.CORDONED in now.closed(place.kind, place.parent) and pool.total)})),
        not_meant=sum(now.room(pool) for pool in of_class if pool not in pools
                      and provider_uuid in (None, pool.place.provider_uuid)),
        by_traits=bool(item.choices) and all(is_of_device(word) for choice in choices
                                             for word in choice.needs | choice.refuses),
        near='' if of_class else exception.close_to(item.resource_class, sorted({
            place.resource_class for place in now.pools})),
        taken_by=tuple(sorted({pool.taken_by for pool in ours.values() if pool.taken_by})),
        failed=tuple(sorted(f'{target}: {why}' for target, why in now.standing.why.items()
                            if _is_of(now, target, ours))))


def _owners(now: Snapshot, places: Container[Place], but: Claimed | None) -> int:
    """How many instances hold devices of some pools."""
    return len({device.owner.instance_uuid for device in now.devices.each()
                if device.owner is not None and not device.is_releasing and device.place in places
                and not (but is not None and device.owner.number == but.number)}.union(
                    *(pool.counted for place, pool in now.pools.items() if place in places)))


def _is_of(now: Snapshot, target: withholding.Target, places: Container[Place]) -> bool:
    if target.scope == vocabulary.PARENT:
        return any(target.has(place.kind, None, place.parent) and place in places for place in now.pools)
    device = now.devices.get(DeviceKey(target.kind, target.name))
    return device is not None and device.place in places
