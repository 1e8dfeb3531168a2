"""Explains why a request does not fit, as data and as one sentence."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final
from typing import NamedTuple

from devicetrack import vocabulary
from devicetrack.engine import withholding
from devicetrack.engine.demand import Item
from devicetrack.engine.selection import Affinity
from devicetrack.engine.selection import allows
from devicetrack.engine.selection import Pool
from devicetrack.engine.selection import Unit
from devicetrack.objects.choice import Choice
from devicetrack.objects.choice import classes
from devicetrack.objects.traits import is_of_device

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
    or type, or lack its traits. ``by_traits`` says that no alias but traits of devices limit them.
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

    @property
    def fits(self) -> bool:
        return self.free >= self.wanted

    @property
    def why(self) -> str:
        """Why the devices that are not free are not; '' when all are."""
        if not self.exist and not self.wrong_provider and not self.full_parents:
            none = 'none is known, and a part of this host could not be read' if self.unread else 'this host has none'
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
        more = len(self.failed) - _SHOWN
        return [f'not realized: {"; ".join(self.failed[:_SHOWN])}' + (f' and {more} more' if more > 0 else '')
                ] if self.failed else []

    def _wrong_type(self) -> str:
        return f' ({_count(self.wrong_type, "device")} of another type there)' if self.wrong_type else ''


def _count(number: int, noun: str) -> str:
    return f'{number} {noun}' if number == 1 else f'{number} {noun}s'


def shortage(item: Item, affinity: Affinity, all_pools: Iterable[Pool],
             units: Mapping[str, Mapping[str, Unit]], instances: int,
             failed: Mapping[withholding.Target, str] = MappingProxyType({})) -> Shortage:
    """Count the devices for one part of a demand.

    :param units: by kind and identifier
    :param instances: how many instances hold some of them
    :param failed: the devices that could not be made ready, and the parents that made none, with the causes
    """
    all_pools = list(all_pools)
    choices = item.choices or (Choice(item.resource_class),)
    counted, provider_uuid = classes(choices), item.provider_uuid
    of_class = [pool for pool in all_pools if pool.resource_class in counted]
    pools = [pool for pool in of_class if any(
        choice.resource_class == pool.resource_class and choice.accepts(pool.words) for choice in choices)]
    ours = [pool for pool in pools if provider_uuid in (None, pool.provider_uuid)]
    allowed = [pool for pool in ours if allows(pool.numa_node, *affinity)]
    kinds = {pool.kind for pool in of_class}
    free = sum(pool.room() for pool in allowed)
    free_anywhere = sum(pool.room() for pool in ours)
    withheld: dict[str, int] = {}
    for pool in ours:
        if pool.total - pool.free_count - pool.held_count - pool.releasing_count:
            for unit in units.get(pool.kind, {}).values():
                if unit.pool is pool and unit.holding is None and unit.withheld:
                    reasons = withholding.text(unit.withheld)
                    withheld[reasons] = withheld.get(reasons, 0) + 1
        not_made = pool.free_count + pool.makes() - pool.room()
        if not_made:
            reason = withholding.text(pool.parent.closed or (
                vocabulary.EXCLUDED if pool.parent.is_excluded else vocabulary.NO_PROVIDER,))
            withheld[reason] = withheld.get(reason, 0) + not_made
    return Shortage(
        ' or '.join(counted), provider_uuid, item.amount,
        exist=sum(pool.total + pool.makes() for pool in ours),
        free=free,
        held=sum(pool.held_count for pool in ours),
        instances=instances,
        releasing=sum(pool.releasing_count for pool in ours),
        withheld=tuple(sorted(withheld.items())),
        wrong_numa_node=free_anywhere - free,
        wrong_provider=sum(pool.room() for pool in pools if pool not in ours),
        wrong_type=sum(pool.total for pool in all_pools if pool.resource_class not in counted
                       and provider_uuid is not None and pool.provider_uuid == provider_uuid
                       and (not kinds or pool.kind in kinds)),
        # All devices of a cordoned parent are withheld. It makes no more for that reason, and is not full.
        full_parents=tuple(sorted({pool.parent_name or '' for pool in ours if pool.creatable and not pool.makes()
                                   and pool.room() <= 0
                                   and not (vocabulary.CORDONED in pool.parent.closed and pool.total)})),
        not_meant=sum(pool.room() for pool in of_class if pool not in pools
                      and provider_uuid in (None, pool.provider_uuid)),
        by_traits=bool(item.choices) and all(is_of_device(word) for choice in choices
                                             for word in choice.needs | choice.refuses),
        taken_by=tuple(sorted({pool.taken_by for pool in ours if pool.taken_by})),
        failed=tuple(sorted(f'{target}: {why}' for target, why in failed.items() if _is_of(target, ours, units))))


def _is_of(target: withholding.Target, pools: Iterable[Pool], units: Mapping[str, Mapping[str, Unit]]) -> bool:
    if target.scope == vocabulary.PARENT:
        return any(target.has(pool.kind, None, pool.parent_name) for pool in pools)
    unit = units.get(target.kind, {}).get(target.name)
    return unit is not None and unit.pool in pools
