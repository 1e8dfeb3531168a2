"""Which devices of this host take the place of those that a guest has elsewhere, chosen before they are claimed."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import itertools
from typing import Final
from typing import NamedTuple
from typing import TYPE_CHECKING

from oslo_log import log as logging

from devicetrack import exception
from devicetrack.claims import declaring
from devicetrack.compatibility import facts_data
from devicetrack.compatibility import partners
from devicetrack.compatibility.facts import Facts
from devicetrack.compatibility.facts import facts_undeclared
from devicetrack.compatibility.facts import TypeAtParent
from devicetrack.compatibility.partners import Held
from devicetrack.compatibility.partners import Offer
from devicetrack.compatibility.rules import decide
from devicetrack.compatibility.versions import Version
from devicetrack.compatibility.versions import version_seen
from devicetrack.engine.demand import Demand
from devicetrack.engine.demand import Item
from devicetrack.objects import DeclaredDevice
from devicetrack.objects import DeviceAssignment
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Record

if TYPE_CHECKING:
    from devicetrack.claims.steps import Steps

LOG = logging.getLogger(__name__)


class Wanted(NamedTuple):
    """A device that a running guest has on another host, of the class that its partner here has too."""

    resource_class: str
    held: Held

    @property
    def key(self) -> DeviceKey:
        return DeviceKey(self.held.facts.sort.kind, self.held.identifier)

    @property
    def seen(self) -> str | None:
        """What a row of its partner says that the guest has seen: a move brings nothing new."""
        seen = self.held.seen or self.held.facts.version
        return str(seen) if isinstance(seen, Version) else None


class _Place(NamedTuple):
    """Devices here of which one is as good as another: those that are there and free, and how many can be made."""

    kind: str
    parent: str | None
    facts: Facts
    names: list[str]
    makes: int = 0

    def __str__(self) -> str:
        shown = ', '.join(sorted(self.names)[:_SHOWN])
        if not shown:
            return f'{self.kind} to be made on {self.parent}'
        more = len(self.names) + self.makes - _SHOWN
        return f'{self.kind} {shown}' + (f' and {more} more' if more > 0 else '')

    def offers(self, most: int) -> list[Offer]:
        """As many as can be partners, by names that nothing else here has."""
        made = (f'{number} to be made on {self.parent}' for number in range(self.makes))
        return [Offer(name, self.facts) for name in itertools.islice((*sorted(self.names), *made), most)]


# Of devices of which one is as good as another a text names so many.
_SHOWN: Final = 3


def from_declared(devices: Sequence[DeclaredDevice]) -> list[Wanted]:
    """What the source declared.

    :raises BadRequest: it means nothing here
    """
    found = []
    for index, device in enumerate(devices):
        data = {name: getattr(device, name) for name in device.fields if device.obj_attr_is_set(name)}
        facts = facts_data.facts_from_data(data, f'check.devices[{index}]')
        found.append(Wanted(device.resource_class,
                            Held(device.identifier, facts, version_seen(device.seen))))
    return found


def from_resources(devices: Iterable[DeviceAssignment]) -> list[Wanted]:
    """What a source that declares nothing has."""
    return [Wanted(device.resource_class, Held(device.identifier, facts_undeclared(device)))
            for device in devices]


def kinds_here(manager: Steps, guest: Sequence[Wanted]) -> set[str]:
    """The kinds that certainly are those of the partners: of no other one a rule of the deployment speaks."""
    crossing = {source for source, _destination in declaring.rules_here(manager).crossings}
    return {wanted.held.facts.sort.kind for wanted in guest if wanted.held.facts.sort not in crossing}


def declare(manager: Steps, records: Sequence[Record]) -> list[DeclaredDevice]:
    """What this host declares about devices of a guest."""
    return [DeclaredDevice(identifier=record.identifier, resource_class=record.resource_class, seen=record.seen,
                           **facts_data.facts_as_data(declaring.facts_of(manager, record)))
            for record in records]


def choose(manager: Steps, guest: Sequence[Wanted], demand: Demand) -> Demand:
    """The demand as one for partners: of each device one item, in the order of the guest.

    The map is a maximum matching within what each provider has of each class. Nothing is held by it.

    :raises NoDevicePair: a device has no partner among what is free; says why each device here is none
    """
    items: dict[int, Item] = {}
    for resource_class in sorted({wanted.resource_class for wanted in guest}):
        indices = [index for index, wanted in enumerate(guest) if wanted.resource_class == resource_class]
        slots = [item.provider_uuid for item in demand.items if item.resource_class == resource_class
                 for _ in range(item.amount)]
        places = {provider: _places(manager, resource_class, provider, demand) for provider in sorted(
            set(slots), key=lambda uuid: uuid or '')}
        for provider, some in _over_providers(manager, guest, indices, slots, places):
            items.update(_within(manager, guest, some, resource_class, provider, places[provider]))
    return demand._replace(items=tuple(items[index] for index in range(len(guest))), order=())


def _places(manager: Steps, resource_class: str, provider_uuid: str | None, demand: Demand) -> list[_Place]:
    with manager.lock:
        available = manager.ledger.available(resource_class, provider_uuid, demand)
    places: dict[TypeAtParent, _Place] = {}
    for pool, identifier, text, amount in available:
        facts = declaring.declared(manager, pool.kind, pool.parent_name, text)
        if facts is None:
            continue                            # it came since the last audit
        key = TypeAtParent(pool.kind, pool.parent_name, facts.sort.type)
        place = places.get(key, _Place(pool.kind, pool.parent_name, facts, []))
        if identifier is not None:
            place.names.append(identifier)
        else:
            place = place._replace(makes=place.makes + amount)
        places[key] = place
    return list(places.values())


def _over_providers(manager: Steps, guest: Sequence[Wanted], indices: Sequence[int], slots: Sequence[str | None],
                    places: Mapping[str | None, Sequence[_Place]]) -> list[tuple[str | None, list[int]]]:
    """Which of the devices of one class get their partners from which provider."""
    if len(places) == 1 and len(slots) == len(indices):
        return [(slots[0], list(indices))]
    rules = declaring.rules_here(manager)
    accepted = [[slot for slot, provider in enumerate(slots) if any(
        decide(guest[index].held.facts, place.facts, rules, guest[index].held.seen).accepted
        for place in places[provider])] for index in indices]
    slot_of = partners.maximum(accepted)
    alone = [index for number, index in enumerate(indices) if number not in slot_of]
    if alone:
        raise _no_pair(manager, [guest[index] for index in alone], [one for some in places.values() for one in some],
                       f'{len(slots)} of class {guest[alone[0]].resource_class} are allocated here')
    return [(provider, [index for number, index in enumerate(indices) if slots[slot_of[number]] == provider])
            for provider in places]


def _within(manager: Steps, guest: Sequence[Wanted], indices: Sequence[int], resource_class: str,
            provider: str | None, places: Sequence[_Place]) -> dict[int, Item]:
    place_of = {DeviceKey(place.kind, offer.identifier): place for place in places
                for offer in place.offers(len(indices))}
    found = partners.find([guest[index].held for index in indices],
                          [offer for place in places for offer in place.offers(len(indices))],
                          declaring.rules_here(manager))
    index_of = {guest[index].key: index for index in indices}
    if found.alone:
        raise _no_pair(manager, [guest[index_of[alone.source]] for alone in found.alone], places,
                       'nothing of its class is free here', found)
    items = {}
    for pair in found.pairs:
        place = place_of[pair.destination]
        if pair.verdict.notes:
            LOG.warning('A running guest comes with %(source)s, which becomes %(destination)s: %(verdict)s',
                        {'source': ' '.join(pair.source), 'destination': place, 'verdict': pair.verdict})

        def accepts(parent: str | None, text: str, place: _Place = place) -> bool:
            return parent == place.parent and declaring.declared(manager, place.kind, parent, text) == place.facts

        items[index_of[pair.source]] = Item(resource_class, 1, provider, accepts)
    return items


def _no_pair(manager: Steps, alone: Sequence[Wanted], places: Sequence[_Place], otherwise: str,
             found: partners.Partners | None = None) -> exception.NoDevicePair:
    """The refusal: of the first device why nothing here is its partner, and which others have none either."""
    wanted, rules = alone[0], declaring.rules_here(manager)
    reasons = []
    for place in places:
        verdict = decide(wanted.held.facts, place.facts, rules, wanted.held.seen)
        reasons.append(f'{place}: {"partners of others" if verdict.accepted else verdict}')
    text = f'on host {manager.host}, {" | ".join(reasons) or otherwise}'
    if alone[1:]:
        text += f'; nor has {", nor ".join(" ".join(other.key) for other in alone[1:])}'
    return exception.NoDevicePair(*wanted.key, text, None if found is None else found.as_data())
