"""The snapshot of one host: its devices, who has them, and why some are withheld. A value that never changes.

Every change makes another snapshot, which shares with the first one all that did not change. So whoever has one may
read it without a lock, and whoever makes another one has nothing to undo: until the new one takes the place of the old
one, nothing has happened. What follows from the devices (the lines of free devices, the numbers of a pool, what
excludes what) is derived at one place, :meth:`Snapshot.with_devices`, when a device gets another value.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import functools
import heapq
from typing import Any
from typing import Final
from typing import NamedTuple

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.engine import exclusion
from devicetrack.engine import withholding
from devicetrack.engine.exclusion import BEING_WIPED
from devicetrack.engine.exclusion import EXCLUDED
from devicetrack.engine.exclusion import TAKEN_BY_OTHERS
from devicetrack.engine.exclusion import Token
from devicetrack.engine.frozen import FrozenLine
from devicetrack.engine.frozen import FrozenMap
from devicetrack.engine.selection import FREE
from devicetrack.engine.selection import HELD
from devicetrack.engine.selection import Place
from devicetrack.engine.selection import RELEASING
from devicetrack.engine.states import DeviceState
from devicetrack.engine.states import PoolState
from devicetrack.engine.withholding import NO_REASON
from devicetrack.engine.withholding import Standing
from devicetrack.objects import things
from devicetrack.objects.choice import Choice
from devicetrack.objects.choice import Features
from devicetrack.objects.compact import Compact
from devicetrack.objects.details import traits_of
from devicetrack.objects.things import Exclusions
from devicetrack.objects.values import Candidate
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Record

# The reason of a held device that the host does not have. The ledger does not know such a device if it is free.
GONE: Final = 'gone from the host'
UNPROVEN: Final = frozenset((vocabulary.UNPROVEN,))
# A text names at most this many devices.
_SHOWN: Final = 3
_STATES: Final = (FREE, HELD, RELEASING)
# The kind of what domains use and that is no device here.
_NO_KIND: Final = ''


class Claimed(NamedTuple):
    """The claim that has a device. All devices of one claim have the same ``number``.

    ``from_rows`` says that rows say so, and not a take of this process. ``anywhere`` says that the request left the
    choice of every provider to this host.
    ``affinity`` has the request's NUMA nodes and policy, or None. ``choices`` and ``numa_policy`` are those by which
    the device was taken.
    """

    instance_uuid: str
    number: int
    from_rows: bool = False
    anywhere: bool = False
    affinity: tuple[frozenset[int | None], str] | None = None
    choices: tuple[Choice, ...] = ()
    numa_policy: str | None = None


class Device(NamedTuple):
    """One device.

    ``since`` is its place in the line of free devices, and ``changed`` the number of the last change that a look at the
    host, which began before, may not show. ``is_unborn`` is true while it is claimed and does not exist on the host
    yet, and ``is_named`` once the driver has named it. ``is_unproven`` says that a guest may have left bytes on it, and
    nobody has removed them. ``exclusions`` say which devices may not be held beside it; nearly always there are none.
    ``reasons`` are those why it may not be handed out, without the one that others exclude it.
    """

    key: DeviceKey
    place: Place
    details: str
    since: int = 0
    changed: int = 0
    owner: Claimed | None = None
    reasons: frozenset[str] = NO_REASON
    exclusions: Exclusions = ()
    is_releasing: bool = False
    is_unborn: bool = False
    is_unproven: bool = False
    is_named: bool = True

    @property
    def state(self) -> int:
        return FREE if self.owner is None else RELEASING if self.is_releasing else HELD

    @property
    def instance_uuid(self) -> str | None:
        return None if self.owner is None else self.owner.instance_uuid

    @property
    def is_taken(self) -> bool:
        """Whether somebody has it, or may have it."""
        return self.owner is not None or not TAKEN_BY_OTHERS.isdisjoint(self.reasons)

    @property
    def candidate(self) -> Candidate:
        place = self.place
        return Candidate(place.kind, self.key.identifier if self.is_named else None, place.provider_uuid,
                         place.resource_class, place.parent, place.numa_node, self.details)


Free = tuple[int, DeviceKey]
_EMPTY: Final[FrozenLine[Free]] = FrozenLine()
_NOBODY: Final[frozenset[Free]] = frozenset()


class Pool(NamedTuple):
    """The devices of one place, and how many more of them can be made (``available``).

    ``lines`` has the free devices that nothing withholds, by their exclusions and in the order in which claims take
    them. Those of ``shut`` are excluded now. ``free`` counts the others. ``details`` are those of a device made here,
    or else of one in the pool. ``is_creatable`` says whether the parent makes devices of this pool at all, and
    ``taken_by`` what takes the room of a parent that has none left. ``counted`` are the instances of held devices that
    the snapshot counts and does not have: one that was a document.
    """

    place: Place
    details: str = ''
    is_creatable: bool = False
    available: int = 0
    taken_by: str = ''
    lines: Mapping[Exclusions, FrozenLine[Free]] = {}
    shut: frozenset[Exclusions] = frozenset()
    total: int = 0
    free: int = 0
    held: int = 0
    releasing: int = 0
    counted: frozenset[str] = frozenset()

    @property
    def words(self) -> Features:
        """What a request may ask of its devices: their features, and the traits that the scheduler knows."""
        return _words(self.place.features, self.details)

    def fits(self, choices: tuple[Choice, ...]) -> bool:
        """Whether its devices fit one of these choices."""
        return _fits(choices, self.place.resource_class, self.place.features, self.details)

    def in_line(self) -> Iterator[Free]:
        """The free devices, in the order in which claims take them."""
        lines = [line for exclusions, line in self.lines.items() if exclusions not in self.shut]
        return iter(lines[0]) if len(lines) == 1 else heapq.merge(*lines)

    def first(self) -> DeviceKey:
        """The device that claims take next. There is one."""
        return min(line.first for exclusions, line in self.lines.items() if exclusions not in self.shut)[1]

    def changed(self, change: _Change | None, turned: Iterable[Exclusions], tokens: Mapping[str, Token]) -> Pool:
        """Return the pool after a change of devices.

        :param turned: the lines that may be excluded now, or no longer
        :param tokens: those after the change
        """
        lines, total, held, releasing = dict(self.lines), self.total, self.held, self.releasing
        touched = {*turned}
        if change is not None:
            total, held, releasing = total + change.total, held + change.held, releasing + change.releasing
            for exclusions in change.into.keys() | change.out.keys():
                into, out = change.into.get(exclusions, _NOBODY), change.out.get(exclusions, _NOBODY)
                if into != out:
                    line = lines.get(exclusions, _EMPTY).changed(into - out, out - into)
                    if line:
                        lines[exclusions] = line
                    else:
                        lines.pop(exclusions, None)
                    touched.add(exclusions)
        free, shut = self.free, self.shut
        for one in touched:
            if one not in self.shut:
                free -= len(self.lines.get(one, ()))
            if one and one in lines and exclusion.is_excluded(tokens, one):
                shut |= {one}
                continue
            if one in shut:
                shut -= {one}
            free += len(lines.get(one, ()))
        return Pool(self.place, self.details, self.is_creatable, self.available, self.taken_by, lines, shut, total,
                    free, held, releasing, self.counted)


@functools.lru_cache(maxsize=4096)
def _words(features: Features, details: str) -> Features:
    return (*features, *traits_of(details))


@functools.lru_cache(maxsize=4096)
def _fits(choices: tuple[Choice, ...], resource_class: str, features: Features, details: str) -> bool:
    words = _words(features, details)
    return any(choice.resource_class == resource_class and choice.accepts(words) for choice in choices)


class _Change:
    """What some devices change in their pool."""

    __slots__ = ('total', 'held', 'releasing', 'into', 'out')

    def __init__(self) -> None:
        self.total = self.held = self.releasing = 0
        self.into: dict[Exclusions, set[Free]] = {}
        self.out: dict[Exclusions, set[Free]] = {}

    def count(self, device: Device, one: int) -> None:
        self.total += one
        if device.owner is None:
            if not device.reasons:
                lines = self.into if one > 0 else self.out
                lines.setdefault(device.exclusions, set()).add((device.since, device.key))
        elif device.is_releasing:
            self.releasing += one
        else:
            self.held += one


class _OfToken(NamedTuple):
    """A member of a token that comes (1) or goes (-1), or that somebody has now (1) or no longer (-1).

    ``line`` is the place and the exclusions of a device, None for what is no device.
    """

    key: DeviceKey
    mode: str
    member: int
    taken: int
    line: tuple[Place, Exclusions] | None


class Snapshot(NamedTuple):
    """One host.

    ``pools`` are in the order of names, and ``scopes`` name those of a resource class at a provider, or at any (None).
    ``pending`` counts for each parent the devices that were claimed on it and do not exist yet: all types of a parent
    share its room, so each counts as one device of every type. ``instances`` has the devices of each instance in the
    order in which it took them, claim by claim. ``left`` are the devices that left the host, with their place and the
    number of the change, as far as a look since ``left_since`` may still show them. ``keeping`` are the kinds whose
    devices keep what a guest wrote, and ``sockets`` are by NUMA node, and empty while they are unknown.
    ``tokens`` are those of exclusions, and ``groups`` those of devices that go together. ``made`` has the exclusions of
    what a parent makes, ``recorded`` those of devices that only rows name, and ``strangers`` those of what domains use
    that is no device here, by address. ``number`` is the next number of a change.
    """

    policy: str
    number: int = 0
    devices: FrozenMap[DeviceKey, Device] = FrozenMap()
    pools: Mapping[Place, Pool] = {}
    scopes: Mapping[tuple[str, str | None], tuple[Place, ...]] = {}
    pending: Mapping[tuple[str, str | None], int] = {}
    instances: FrozenMap[str, tuple[DeviceKey, ...]] = FrozenMap()
    left: FrozenMap[DeviceKey, tuple[int, Place]] = FrozenMap()
    left_since: int = 0
    standing: Standing = Standing()
    keeping: frozenset[str] = frozenset()
    sockets: Mapping[int, int] = {}
    tokens: FrozenMap[str, Token] = FrozenMap()
    groups: tuple[str, ...] = ()
    made: Mapping[tuple[str, str], Exclusions] = {}
    recorded: Mapping[DeviceKey, Exclusions] = {}
    strangers: Mapping[str, Exclusions] = {}

    # -- the successor ------------------------------------------------------------------------------------------------

    def with_devices(self, changes: Mapping[DeviceKey, Device | None], number: int | None = None) -> Snapshot:
        """Return the snapshot in which these devices are so. None forgets a device.

        :param number: the next number of a change, if that is another one
        """
        pools: dict[Place, _Change] = {}
        tokens: dict[str, list[_OfToken]] = {}
        pending = dict(self.pending)
        for key, new in changes.items():
            old = self.devices.get(key)
            for device, one in ((old, -1), (new, 1)):
                if device is None:
                    continue
                change = pools.get(device.place)
                if change is None:
                    change = pools[device.place] = _Change()
                change.count(device, one)
                if device.is_unborn:
                    parent = device.place.kind, device.place.parent
                    pending[parent] = pending.get(parent, 0) + one
            if (old is not None and old.exclusions) or (new is not None and new.exclusions):
                _note_tokens(tokens, key, old, new)
        return self._derived(pools, tokens, devices=self.devices.changed(changes), pending=pending,
                             number=self.number if number is None else number)

    def with_strangers(self, strangers: Mapping[str, Exclusions]) -> Snapshot:
        """Return the snapshot in which domains use these things, by address, that are no devices here."""
        tokens: dict[str, list[_OfToken]] = {}
        for found, one in ((self.strangers, -1), (strangers, 1)):
            for address, exclusions in found.items():
                for name, mode in exclusions:
                    tokens.setdefault(name, []).append(_OfToken(DeviceKey(_NO_KIND, address), mode, one, one, None))
        return self._derived({}, tokens, strangers=strangers)

    def _derived(self, changes: Mapping[Place, _Change], of_tokens: Mapping[str, list[_OfToken]],
                 **fields: Any) -> Snapshot:
        """Return the snapshot with other devices, and with the pools and tokens that follow from them."""
        tokens, groups = self.tokens, self.groups
        turned: dict[Place, set[Exclusions]] = {}
        if of_tokens:
            after = {name: _token(self.tokens.get(name, Token()), some) for name, some in of_tokens.items()}
            tokens = tokens.changed(after)
            if any(member for some in of_tokens.values() for _key, _mode, member, _taken, _line in some):
                groups = tuple(sorted({*groups}.difference(after).union(
                    name for name, token in after.items() if token is not None and token.is_group)))
            for name, token in after.items():
                for place, exclusions in _turned(name, self.tokens.get(name, Token()), token or Token()):
                    turned.setdefault(place, set()).add(exclusions)
        pools = dict(self.pools)
        for place in {**changes, **turned}:
            pools[place] = pools[place].changed(changes.get(place), turned.get(place, ()), tokens)
        return self._replace(pools=pools, tokens=tokens, groups=groups, **fields)

    def with_pools(self, some: Iterable[Pool]) -> Snapshot:
        """Return the snapshot with these pools too. Those that are there stay as they are."""
        new = {pool.place: pool for pool in some if pool.place not in self.pools}
        if not new:
            return self
        pools = {**self.pools, **new}
        ordered = {place: pools[place] for place in sorted(pools, key=lambda place: place.order)}
        scopes: dict[tuple[str, str | None], list[Place]] = {}
        for place in ordered:
            for provider_uuid in (None, place.provider_uuid):
                scopes.setdefault((place.resource_class, provider_uuid), []).append(place)
        return self._replace(pools=ordered, scopes={name: tuple(found) for name, found in scopes.items()})

    def with_pool(self, pool: Pool) -> Snapshot:
        """Return the snapshot with another value of a pool, without a change of its devices."""
        return self._replace(pools={**self.pools, pool.place: pool})

    def of_instances(self, owned: Mapping[str, Iterable[DeviceKey]]) -> Snapshot:
        """Return the snapshot in which instances have these devices, as the devices themselves say."""
        def number(key: DeviceKey) -> int:
            owner = self.devices[key].owner
            return 0 if owner is None else owner.number

        return self._replace(instances=self.instances.changed(
            {uuid: tuple(sorted(keys, key=number)) or None for uuid, keys in owned.items()}))

    # -- questions ----------------------------------------------------------------------------------------------------

    def closed(self, kind: str, parent: str | None) -> frozenset[str]:
        """Why a parent makes no more devices."""
        return self.standing.closing(kind, parent) if self.standing else NO_REASON

    def is_maker_excluded(self, place: Place) -> bool:
        """Whether somebody has what contains the devices that the parent of a pool could make."""
        made = self.made.get((place.kind, place.parent or ''))
        return made is not None and exclusion.is_excluded(self.tokens, made)

    def makes(self, pool: Pool) -> int:
        """How many more devices the parent of a pool could make, closed or excluded or not."""
        if not pool.is_creatable:
            return 0
        return max(0, pool.available - self.pending.get((pool.place.kind, pool.place.parent), 0))

    def room(self, pool: Pool) -> int:
        """How many devices can be taken from a pool now."""
        place = pool.place
        if not pool.is_creatable or not place.provider_uuid or self.closed(place.kind, place.parent) \
                or self.is_maker_excluded(place):
            return pool.free
        return pool.free + self.makes(pool)

    def scope(self, resource_class: str, provider_uuid: str | None,
              choices: tuple[Choice, ...] = ()) -> list[Pool]:
        """The pools of a class or, with choices, all that fit a choice; in the order of names."""
        if not choices:
            return [self.pools[place] for place in self.scopes.get((resource_class, provider_uuid), ())]
        counted = dict.fromkeys(choice.resource_class for choice in choices)
        places = [place for name in counted for place in self.scopes.get((name, provider_uuid), ())
                  if self.pools[place].fits(choices)]
        if len(counted) > 1:
            places.sort(key=lambda place: place.order)
        return [self.pools[place] for place in places]

    def absent(self, key: DeviceKey, parent: str | None) -> Exclusions:
        """The exclusions of a device that only a row names: it is a part of its parent, if the parent is a whole."""
        return *exclusion.of_row(key.kind, parent), *self.recorded.get(
            key, self.made.get((key.kind, parent or ''), ()))

    def is_excluded(self, device: Device) -> bool:
        return bool(device.exclusions) and device.owner is None and exclusion.is_excluded(
            self.tokens, device.exclusions, device.is_taken)

    def withheld(self, device: Device) -> frozenset[str]:
        """All reasons why a device may not be handed out. A held one is never excluded: its owner keeps it."""
        return device.reasons | EXCLUDED if self.is_excluded(device) else device.reasons

    def stands(self, device: Device, reason: str) -> bool:
        """Whether a reason of a device stands until somebody takes it back."""
        return bool(self.standing) and reason in self.standing.of(device.key, device.place.parent)

    def withheld_devices(self) -> list[Device]:
        """The named devices that are withheld, in the order of names."""
        return sorted([device for device in self.devices.each() if (device.reasons or device.exclusions)
                       and device.is_named and self.withheld(device)])

    def holdings(self, instance_uuid: str) -> list[Device]:
        """The devices that an instance has, in the order in which it took them, claim by claim."""
        return [self.devices[key] for key in self.instances.get(instance_uuid, ())]

    def with_exclusions(self, instance_uuid: str) -> list[Device]:
        """The instance's devices that exclude others. It may get those others that must go together with its own."""
        return [device for device in self.holdings(instance_uuid) if device.exclusions]

    def of_claim(self, owner: Claimed) -> list[Device]:
        """The devices of one claim."""
        return [device for device in self.holdings(owner.instance_uuid)
                if device.owner is not None and device.owner.number == owner.number]

    def changed_since(self, before: Snapshot) -> dict[DeviceKey, Place]:
        """The devices that were made or given back since an earlier snapshot, each with its place.

        It takes time to read the host. If a device is made or given back meanwhile, the host's report may be from
        before or after that. For such a device the snapshot is right.
        """
        found = {key: place for key, (number, place) in self.left.items() if number >= before.number}
        for key in self.devices.differing(before.devices):
            device = self.devices.get(key)
            if device is not None and device.changed >= before.number and device.changed:
                found[key] = device.place
        return found

    # -- devices that exclude one another -----------------------------------------------------------------------------

    def excluding(self, exclusions: Exclusions, but: DeviceKey | None = None,
                  ) -> Iterator[tuple[str, str, DeviceKey, Device | None]]:
        """The devices that somebody has and that exclude a device with these exclusions.

        Each comes with the token and with the device's own mode. A device of None is what a domain uses.

        :param but: the device itself
        """
        for name, mode in exclusions:
            for key in self.tokens[name].against(mode) if name in self.tokens else ():
                device = self.devices.get(key)
                if key != but and (device is None or device.is_taken):
                    yield name, mode, key, device

    def beside(self, ours: Iterable[Device]) -> Iterator[Device]:
        """The free devices that only these devices exclude, and that the owner of these devices may have too."""
        ours = list(ours)
        keys = {device.key for device in ours}
        for one in ours:
            for name, mode in one.exclusions:
                if mode == vocabulary.TOGETHER:
                    for key in self.tokens[name].against(mode):
                        other = self.devices.get(key)
                        if other is not None and other.owner is None and not other.reasons and all(
                                mode_of == vocabulary.TOGETHER and taken in keys
                                for _name, mode_of, taken, _device in self.excluding(other.exclusions, key)):
                            yield other

    def free_groups(self) -> Iterator[list[Device]]:
        """The free devices of each group that goes together and that nobody has a part of, if there are two or more."""
        for name in self.groups:
            token = self.tokens[name]
            if not token.taken.get(vocabulary.TOGETHER):
                free = [device for key in token.against(vocabulary.TOGETHER)
                        if (device := self.devices.get(key)) is not None and device.owner is None
                        and not device.reasons and not self.is_excluded(device)]
                if len(free) > 1:
                    yield free

    def who_excludes(self, exclusions: Exclusions, but: DeviceKey | None = None, states: Sequence[int] = _STATES,
                     modes: Sequence[str] = vocabulary.EXCLUSION_MODES) -> str:
        """Name the owners whose devices exclude a device with these exclusions, for people.

        :param but: the device itself
        :param states: only devices in one of these states
        :param modes: only for tokens of which the device is one of these
        """
        found = [f'{_who_has(key, device)} of {things.in_words(name)}'
                 for name, mode, key, device in self.excluding(exclusions, but)
                 if (FREE if device is None else device.state) in states and mode in modes]
        return exception.in_short(sorted(found), _SHOWN)

    # -- answers ------------------------------------------------------------------------------------------------------

    def state_of(self, device: Device) -> DeviceState:
        return DeviceState(*device.candidate, device.state, device.instance_uuid, self.withheld(device),
                           device.is_unborn)

    def device(self, key: DeviceKey) -> DeviceState | None:
        """One device, None when it is not known here."""
        device = self.devices.get(key)
        return None if device is None else self.state_of(device)

    def states(self) -> list[DeviceState]:
        """Every device in the order of names, and then those that are claimed and not named yet."""
        return [self.state_of(device) for device in sorted(
            self.devices.each(), key=lambda device: (not device.is_named, device.key))]

    def unproven(self) -> list[DeviceState]:
        """The free devices that are withheld because nothing proves them clean, and for no other reason."""
        return [self.state_of(device) for device in self.withheld_devices()
                if self.withheld(device) - {BEING_WIPED} == UNPROVEN]

    def reasons(self) -> dict[DeviceKey, frozenset[str]]:
        """The reasons of every device that has any."""
        return {device.key: self.withheld(device) for device in self.withheld_devices()}

    def withheld_for(self, reason: str) -> list[DeviceKey]:
        """The devices that are withheld for a reason, without those for which the reason stands."""
        return [device.key for device in self.withheld_devices()
                if reason in self.withheld(device) and not self.stands(device, reason)]

    def excluded(self) -> dict[DeviceKey, str]:
        """For each excluded device, the owners and devices that exclude it, for people."""
        return {device.key: self.who_excludes(device.exclusions, device.key)
                for device in self.withheld_devices() if self.is_excluded(device)}

    def why_excluded(self, key: DeviceKey) -> str | None:
        """As :meth:`excluded`, for one device; None if it is not excluded."""
        device = self.devices.get(key)
        return self.who_excludes(device.exclusions, key) if device is not None and self.is_excluded(device) else None

    def owners_of_parts(self, key: DeviceKey) -> str | None:
        """Name the owners of parts of a device, or of it by another name; None if there are none.

        Work on a device reaches its parts. Parts being released do not count, or two would wait for one another.
        """
        device = self.devices.get(key)
        return None if device is None else self.who_excludes(
            device.exclusions, key, (HELD,), (vocabulary.WHOLE,)) or None

    def is_work_around(self, key: DeviceKey) -> bool:
        """Whether somebody has a part of a device, or what contains it, gives that back or wipes it."""
        device = self.devices.get(key)
        return device is not None and any(
            other is not None
            and (BEING_WIPED in other.reasons or (mode != vocabulary.TOGETHER and other.state != FREE))
            for _name, mode, _key, other in self.excluding(device.exclusions, key))

    def shows_room(self, key: DeviceKey) -> bool:
        """Whether by the last report a held device is there, or its parent can make it."""
        device = self.devices.get(key)
        if device is None:
            return False
        if not device.is_unborn:
            return GONE not in device.reasons
        return self.pools[device.place].available >= self.pending.get((key.kind, device.place.parent), 0)

    def counted_classes(self) -> frozenset[tuple[str, str]]:
        """Resource classes, each with the UUID of a provider that counts it."""
        return frozenset((place.resource_class, place.provider_uuid) for place in self.pools)

    def parents(self) -> list[tuple[str, str]]:
        """Kind and name of every parent since the start."""
        return sorted({(place.kind, place.parent) for place in self.pools if place.parent is not None})

    # -- rows ---------------------------------------------------------------------------------------------------------

    def not_held(self, records: Sequence[Record]) -> list[Record]:
        """The rows whose devices are not held for the rows' instances."""
        devices: Mapping[Any, Device] = self.devices
        of_devices = Compact(Record, records).columns('kind', 'identifier', 'instance_uuid')
        return [records[number] for number, (kind, identifier, instance_uuid) in enumerate(of_devices)
                if (device := devices.get((kind, identifier))) is None
                or device.owner is None or device.owner.instance_uuid != instance_uuid]

    def without_row(self, records: Collection[Record], all_held: bool) -> list[str]:
        """The instances that hold a device because of a row that no longer exists.

        :param records: every row of the host
        :param all_held: whether the device of each row is held
        """
        if all_held and sum(map(len, self.instances.values())) == len(records):
            return []                           # one device is held for each row, and nothing else
        recorded = {(record.instance_uuid, record.key) for record in records}
        return sorted({device.owner.instance_uuid for device in self.devices.each()
                       if device.owner is not None and device.owner.from_rows
                       and (device.owner.instance_uuid, device.key) not in recorded})

    def counted_now(self, records: Iterable[Record]) -> list[Record]:
        """Return rows with the provider and class that count their devices now. A row names those of its claim."""
        return [record if (device := self.devices.get(record.key)) is None else record._replace(
            provider_uuid=device.place.provider_uuid or record.provider_uuid,
            resource_class=device.place.resource_class) for record in records]

    def pool_states(self) -> list[PoolState]:
        """Every pool, in the order of names."""
        return [PoolState(place.kind, place.provider_uuid, place.resource_class, place.parent, place.numa_node,
                          pool.details, pool.total, self.makes(pool), self.room(pool), pool.free, pool.held,
                          pool.releasing, self._why_none_made(place))
                for place, pool in self.pools.items()]

    def _why_none_made(self, place: Place) -> str | None:
        return self.who_excludes(self.made[place.kind, place.parent or '']) if self.is_maker_excluded(place) else None


def _note_tokens(tokens: dict[str, list[_OfToken]], key: DeviceKey, old: Device | None, new: Device | None) -> None:
    """Note what a device with exclusions changes in its tokens.

    :raises ValueError: as :func:`.exclusion.check`
    """
    before = () if old is None else old.exclusions
    after = () if new is None else new.exclusions
    if before != after and new is not None:
        exclusion.check(key, after)
    was, now = old is not None and old.is_taken, new is not None and new.is_taken
    if old is not None and new is not None and before == after and old.place == new.place:
        if was != now:
            for name, mode in after:
                tokens.setdefault(name, []).append(_OfToken(key, mode, 0, now - was, None))
        return
    for device, one, taken in ((old, -1, was), (new, 1, now)):
        for name, mode in device.exclusions if device is not None else ():
            tokens.setdefault(name, []).append(_OfToken(
                key, mode, one, one * taken, None if device is None else (device.place, device.exclusions)))


def _token(token: Token, changes: Sequence[_OfToken]) -> Token | None:
    """The token after some changes; None if it has no members any more."""
    taken = dict(token.taken)
    for change in changes:
        taken[change.mode] = taken.get(change.mode, 0) + change.taken
    if not any(change.member for change in changes):
        return token._replace(taken=taken) if token.members else None       # the same members, by identity
    members, lines = dict(token.members), dict(token.lines)
    for key, mode, member, _taken, line in changes:
        if member > 0:
            members[key] = mode
        elif member < 0:
            del members[key]
        if member and line is not None:
            lines[line] = lines.get(line, 0) + member
    return Token(members, taken, lines) if members else None


def _turned(name: str, before: Token, after: Token) -> Iterator[tuple[Place, Exclusions]]:
    """The lines of a token that may be excluded now, or no longer."""
    if before.members is after.members:
        turned = [mode for mode in vocabulary.EXCLUSION_MODES if before.excludes(mode) != after.excludes(mode)]
    else:
        turned = [*vocabulary.EXCLUSION_MODES]
    if turned:
        for line, number in after.lines.items():
            if number and dict(line[1])[name] in turned:
                yield line


def _who_has(key: DeviceKey, device: Device | None) -> str:
    if device is None:
        return (f'somebody else made {key.identifier}' if vocabulary.is_uuid(key.identifier)
                else f'a domain has {key.identifier}')
    if BEING_WIPED in device.reasons:
        return f'a wipe has {key}'
    if device.owner is None:
        return f'somebody may have ({withholding.text(device.reasons & TAKEN_BY_OTHERS)}) {key}'
    return f'instance {device.instance_uuid} {"gives back" if device.is_releasing else "has"} {key}'
