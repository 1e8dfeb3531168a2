"""Live migrations: the checks at both ends, the claim at the destination, and the map of the devices.

:mod:`devicetrack.compatibility` decides which devices are compatible; :class:`PartnerSearch` chooses among the free
devices here, before they are claimed.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import itertools
from typing import Any
from typing import Final
from typing import NamedTuple

from devicetrack import exception
from devicetrack import log
from devicetrack import vocabulary
from devicetrack.claims import moves
from devicetrack.claims.claim import Claim
from devicetrack.claims.declarations import Declarations
from devicetrack.claims.failed_claims import FailedClaims
from devicetrack.claims.host import ThisHost
from devicetrack.claims.locked_ledger import LockedLedger
from devicetrack.claims.moves import Moves
from devicetrack.claims.rows import Rows
from devicetrack.compatibility import partners
from devicetrack.compatibility.facts import Facts
from devicetrack.compatibility.facts import facts_as_data
from devicetrack.compatibility.facts import facts_from_data
from devicetrack.compatibility.facts import facts_undeclared
from devicetrack.compatibility.facts import TypeAtParent
from devicetrack.compatibility.facts import Version
from devicetrack.compatibility.facts import version_seen
from devicetrack.compatibility.partners import Held
from devicetrack.compatibility.partners import Offer
from devicetrack.compatibility.rules import decide
from devicetrack.compatibility.rules import Verdict
from devicetrack.engine import allocator
from devicetrack.engine.demand import Demand
from devicetrack.engine.demand import Item
from devicetrack.objects import DeclaredDevice
from devicetrack.objects import DeviceAssignment
from devicetrack.objects import DeviceMap
from devicetrack.objects import DevicePair
from devicetrack.objects import extra_specs as extra_specs_of
from devicetrack.objects import InstanceResources
from devicetrack.objects import LiveMigrationCheck
from devicetrack.objects.migration_context import Carried
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import MigrationDefinitions
from devicetrack.objects.values import Record

LOG = log.logger(__name__)


class Wanted(NamedTuple):
    """A device that a running guest has on another host. Its partner here has the same resource class."""

    resource_class: str
    held: Held

    @property
    def key(self) -> DeviceKey:
        return DeviceKey(self.held.facts.sort.kind, self.held.identifier)

    @property
    def seen(self) -> str | None:
        """The version that the row of its partner records as seen by the guest. A move does not change it."""
        seen = self.held.seen or self.held.facts.version
        return str(seen) if isinstance(seen, Version) else None


# A text names at most this many of equivalent devices.
_SHOWN: Final = 3


class _Group(NamedTuple):
    """Equivalent devices here: the free ones that exist, and the number that can be made."""

    kind: str
    parent: str | None
    facts: Facts
    names: list[str]
    makes: int = 0

    def __str__(self) -> str:
        shown = ', '.join(sorted(self.names)[:_SHOWN])
        if not shown:
            return f'{self.kind} {self.facts.sort.type} to be made on {self.parent}'
        more = len(self.names) + self.makes - _SHOWN
        return f'{self.kind} {shown}' + (f' and {more} more' if more > 0 else '')

    def offers(self, most: int) -> list[Offer]:
        """As many offers as there can be partners, with names that are unique on this host."""
        made = (f'{number} {self.facts.sort.type} to be made on {self.parent}' for number in range(self.makes))
        return [Offer(name, self.facts) for name in itertools.islice((*sorted(self.names), *made), most)]


def from_declared(devices: Sequence[DeclaredDevice]) -> list[Wanted]:
    """The devices that the source declared.

    :raises BadRequest: a declaration is not valid here
    """
    found = []
    for index, device in enumerate(devices):
        where = f'check.devices[{index}]'
        for name in device.unset_fields():
            raise exception.BadRequest(f'{where}.{name}', None, 'is missing')
        facts = facts_from_data({name: getattr(device, name) for name in device.fields}, where)
        found.append(Wanted(device.resource_class, Held(device.identifier, facts, version_seen(device.seen))))
    return found


def from_resources(devices: Iterable[DeviceAssignment]) -> list[Wanted]:
    """The devices of a source that declares nothing."""
    return [Wanted(device.resource_class, Held(device.identifier, facts_undeclared(device))) for device in devices]


class PartnerSearch:
    """Searches for the partners of one guest's devices among the free devices here. It holds none.

    :param host: this host's name, for error texts
    :param guest: the guest's devices, in its order
    """

    def __init__(self, host: str, ledger: LockedLedger, declarations: Declarations, guest: Sequence[Wanted]) -> None:
        self._host, self._ledger, self._declarations, self._guest = host, ledger, declarations, guest
        self._rules = declarations.rules
        self.seen = tuple(wanted.seen for wanted in guest)

    def choose(self, demand: Demand) -> Demand:
        """Turn a demand into one for partners: an item for each device, in the order of the guest.

        The pairs are a maximum matching among the devices of each class at each provider.

        :raises NoDevicePair: a device has no partner among the free devices; the error says why each is none
        """
        items: dict[int, Item] = {}
        for resource_class in sorted({wanted.resource_class for wanted in self._guest}):
            indices = [index for index, wanted in enumerate(self._guest) if wanted.resource_class == resource_class]
            slots = [item.provider_uuid for item in demand.items if item.resource_class == resource_class
                     for _ in range(item.amount)]
            # It is unknown which alias asked for which device of the guest, so the policy of the first item counts.
            policy = next((item.numa_policy for item in demand.items if item.resource_class == resource_class), None)
            asked = demand._replace(numa_policy=policy or demand.numa_policy)
            groups = {provider: self._groups(resource_class, provider, asked) for provider in sorted(
                set(slots), key=lambda uuid: uuid or '')}
            for provider, some in self._over_providers(indices, slots, groups):
                found = self._within(some, resource_class, provider, groups[provider])
                items |= {index: item._replace(numa_policy=policy) for index, item in found.items()}
        return demand.with_items(tuple(items[index] for index in range(len(self._guest))))._replace(order=())

    def _groups(self, resource_class: str, provider_uuid: str | None, demand: Demand) -> list[_Group]:
        groups: dict[TypeAtParent, _Group] = {}
        for device, amount in allocator.available(self._ledger.now, resource_class, provider_uuid, demand):
            kind, parent = device.key.kind, device.place.parent
            facts = self._declarations.of_device(kind, parent, device.details)
            if facts is None:
                continue                        # it came since the last audit
            key = TypeAtParent(kind, parent, facts.sort.type)
            group = groups.get(key, _Group(kind, parent, facts, []))
            if device.is_named:
                group.names.append(device.key.identifier)
            else:
                group = group._replace(makes=group.makes + amount)
            groups[key] = group
        return list(groups.values())

    def _over_providers(self, indices: Sequence[int], slots: Sequence[str | None],
                        groups: Mapping[str | None, Sequence[_Group]]) -> list[tuple[str | None, list[int]]]:
        """Decide which provider gives partners to which devices of one class."""
        if len(groups) == 1 and len(slots) == len(indices):
            return [(slots[0], list(indices))]
        accepted = [[slot for slot, provider in enumerate(slots) if any(
            self._decide(self._guest[index], group).accepted for group in groups[provider])] for index in indices]
        slot_of = partners.maximum(accepted)
        alone = [self._guest[index] for number, index in enumerate(indices) if number not in slot_of]
        if alone:
            raise self._no_pair(alone, [one for some in groups.values() for one in some],
                                f'{len(slots)} of class {alone[0].resource_class} are allocated here')
        return [(provider, [index for number, index in enumerate(indices) if slots[slot_of[number]] == provider])
                for provider in groups]

    def _decide(self, wanted: Wanted, group: _Group) -> Verdict:
        return decide(wanted.held.facts, group.facts, self._rules, wanted.held.seen)

    def _within(self, indices: Sequence[int], resource_class: str, provider: str | None,
                groups: Sequence[_Group]) -> dict[int, Item]:
        offers = {DeviceKey(group.kind, offer.identifier): (group, offer)
                  for group in groups for offer in group.offers(len(indices))}
        found = partners.find([self._guest[index].held for index in indices],
                              [offer for _group, offer in offers.values()], self._rules)
        index_of = {self._guest[index].key: index for index in indices}
        if found.alone:
            raise self._no_pair([self._guest[index_of[alone.source]] for alone in found.alone], groups,
                                'no device of its class is free here', found)
        items = {}
        for pair in found.pairs:
            group, _offer = offers[pair.destination]
            if pair.verdict.notes:
                LOG.warning('A running guest comes with %(source)s, which becomes %(destination)s: %(verdict)s',
                            {'source': ' '.join(pair.source), 'destination': group, 'verdict': pair.verdict})

            def accepts(parent: str | None, text: str, group: _Group = group) -> bool:
                return parent == group.parent and (
                    self._declarations.of_device(group.kind, parent, text) == group.facts)

            items[index_of[pair.source]] = Item(resource_class, 1, provider, accepts)
        return items

    def _no_pair(self, alone: Sequence[Wanted], groups: Sequence[_Group], otherwise: str,
                 found: partners.Partners | None = None) -> exception.NoDevicePair:
        """Explain why no device here is the first device's partner, and name the others without a partner."""
        wanted = alone[0]
        reasons = []
        for group in groups:
            verdict = self._decide(wanted, group)
            reasons.append(f'{group}: {"partners of other devices" if verdict.accepted else verdict}')
        text = f'on host {self._host}, {" | ".join(reasons) or otherwise}'
        if alone[1:]:
            text += f'; also without a partner: {", ".join(" ".join(other.key) for other in alone[1:])}'
        return exception.NoDevicePair(*wanted.key, text, None if found is None else found.as_data())


_ROLES_AT_SOURCE: Final = (vocabulary.CURRENT, vocabulary.OLD, vocabulary.INCOMING)


class LiveMigrations:
    """Both ends of the live migrations of guests with devices. :class:`.manager.ClaimManager` documents each call."""

    def __init__(self, host: ThisHost, rows: Rows, declarations: Declarations, moving: Moves,
                 failed: FailedClaims) -> None:
        self._host, self._driver, self._rows, self._ledger = host.name, host.driver, rows, rows.ledger
        self._declarations, self._moves, self._failed, self._instances = declarations, moving, failed, failed.instances

    # -- before anything is claimed -----------------------------------------------------------------------------------

    def check_at_destination(self, instance: Any) -> LiveMigrationCheck:
        """Check that this host takes running guests with such devices."""
        resources = self._instances.read(instance).get('resources')
        if resources is not None:
            self._check_partners(from_resources(resources))
        return LiveMigrationCheck(instance_uuid=instance.uuid, devices=None)

    def check_at_source(self, instance: Any, check: LiveMigrationCheck | None, post_copy: bool) -> LiveMigrationCheck:
        """Check that the guest can leave with its devices, and declare them."""
        if check is not None:
            _check_is_of(instance, check)
        there = self._rows.there(instance.uuid)
        # After an earlier call to the source for this guest its devices are old. After a resize on this host, the old
        # devices are not the guest's. If nobody told this host that a move to here is over, they are incoming still.
        roles = {record.role for record in there}
        role = next((role for role in _ROLES_AT_SOURCE if role in roles), None)
        records = [record for record in there if record.role == role]
        if role == vocabulary.OLD and self._moves.left_for_nothing(records):
            records = []
        kinds = {record.kind for record in records}
        self._check_kinds(kinds)
        self._check_devices(instance, records)
        _check_post_copy(instance, kinds, post_copy)
        return LiveMigrationCheck(instance_uuid=instance.uuid, devices=[
            DeclaredDevice(identifier=record.identifier, resource_class=record.resource_class, seen=record.seen,
                           **facts_as_data(self._declarations.of_row(record))) for record in records])

    def _check_kinds(self, kinds: Collection[str]) -> None:
        """Check that this host can take part in the live migration of a guest with devices of these kinds.

        :raises LiveMigrationUnsupported: it cannot
        """
        if not kinds:
            return
        for kind, reason in sorted(self._driver.live_migration_obstacles().items()):
            if kind in kinds:
                raise exception.LiveMigrationUnsupported(self._host, kind, reason)

    def _check_devices(self, instance: Any, records: Sequence[Record]) -> None:
        """Check that the guest can leave with each of its devices, and that their aliases allow it.

        :raises LiveMigrationUnsupported: it cannot
        """
        extra_specs = getattr(getattr(instance, 'flavor', None), 'extra_specs', None) or {}
        asked = extra_specs_of.asked_aliases(extra_specs, self._driver.aliases() or {})
        for record in records:
            fixed = [alias.name for alias in asked if record.resource_class in alias.resource_classes
                     and not alias.is_live_migratable]
            reason = f'the alias {fixed[0]} does not say live_migratable' if fixed else \
                self._driver.migration_obstacle_of(DeviceAssignment.from_record(record))
            if reason is not None:
                raise exception.LiveMigrationUnsupported(self._host, record.kind, reason)

    def _check_partners(self, guest: Sequence[Wanted]) -> None:
        """Check the kinds whose partners are certainly of the same kind, since no rule maps them to other types.

        :raises LiveMigrationUnsupported: it cannot
        """
        crossing = {source for source, _destination in self._declarations.rules.crossings}
        self._check_kinds({wanted.held.facts.sort.kind for wanted in guest
                           if wanted.held.facts.sort not in crossing})

    # -- at the destination -------------------------------------------------------------------------------------------

    def claim(self, context: Any, instance: Any, migration: Any, demand: Demand, numa_topology: Any,
              check: LiveMigrationCheck | None) -> Claim:
        """Claim a partner for each device that the guest runs on."""
        if migration is not None and self._moves.is_source(migration):
            raise exception.BadRequest('migration.source_compute', self._host, 'a live migration has two hosts')
        guest = _source_devices(instance, self._instances.read(instance).get('resources'), check, demand)
        self._check_partners(guest)
        search = PartnerSearch(self._host, self._ledger, self._declarations, guest)
        return self._moves.claim(context, instance, migration, moves.LIVE_MIGRATION, demand, Carried(numa_topology),
                                 search)

    def device_map(self, instance: Any, migration: Any) -> DeviceMap:
        """Say which device of this host each device of the running guest becomes."""
        records = [record for record in self._rows.there(instance.uuid)
                   if record.migration_uuid == migration.uuid and record.role != vocabulary.OLD]
        stored = self._rows.stored_context(instance.uuid)
        if stored is None or stored.migration_uuid != migration.uuid:
            if records:
                raise exception.InstanceNotClaimed(instance.uuid,
                                                   f'part of migration {migration.uuid} with its context')
            return DeviceMap.of(instance.uuid, migration.uuid, (), '')
        # The claim gave each partner the position of the device that it is the partner of.
        self._failed.check_kept(instance.uuid, records)
        source = sorted(stored.old_resources or (), key=lambda one: one.position)
        there = [DeviceAssignment.from_record(record) for record in records]
        for left in source[len(there):]:
            raise exception.NoDevicePair(left.kind, left.identifier, 'the claim has fewer devices')
        if len(there) > len(source):
            raise exception.BadRequest('migration', migration.uuid,
                                       f'its claim has {len(there)} devices, and the guest {len(source)}: that is no '
                                       'claim for a live migration')
        config = self._driver.guest_config(there, getattr(getattr(instance, 'flavor', None), 'name', None))
        pairs = [DevicePair(kind=left.kind, resource_class=one.resource_class, source=left.identifier,
                            destination=one.identifier, type=left.details.type_name, element=element, seen=one.seen)
                 for left, one, element in zip(source, there, config.devices, strict=True)]
        return DeviceMap.of(instance.uuid, migration.uuid, pairs, config.metadata)

    # -- at the source ------------------------------------------------------------------------------------------------

    def definitions(self, instance: Any, migration: Any, device_map: DeviceMap, post_copy: bool,
                    definition: str | None) -> MigrationDefinitions:
        """Return the guest's definitions with the destination's devices, and make the devices of this host old."""
        _check_map_is_of(instance, migration, device_map)
        kinds = {pair.kind for pair in device_map.pairs}
        self._check_kinds(kinds)
        _check_post_copy(instance, kinds, post_copy)
        with self._rows.working(instance.uuid):
            self._moves.check_goes_on(instance.uuid, migration.uuid)
            self._check_seen(instance, device_map)
            self._moves.mark_old(instance, migration.uuid, moves.ends_of(migration))
        return self._driver.migration_definitions(device_map, definition)

    def _check_seen(self, instance: Any, device_map: DeviceMap) -> None:
        """Before the copy, check that the guest has not booted since the destination decided.

        :raises NoDevicePair: the guest may have seen a newer version since
        """
        seen = {record.key: version_seen(record.seen) for record in self._rows.of_instance(instance.uuid)}
        for pair in device_map.pairs:
            then, now = version_seen(pair.seen), seen.get(DeviceKey(pair.kind, pair.source))
            if then is not None and now is not None and now > then:
                raise exception.NoDevicePair(
                    pair.kind, pair.source, f'the guest has rebooted since the check: it may have seen version {now}, '
                                            f'and the check used {then}; check and claim again')


def _check_post_copy(instance: Any, kinds: Iterable[str], post_copy: bool) -> None:
    """:raises PostCopyRefused: the caller asks for post-copy, and the guest has a device"""
    for kind in sorted(kinds):
        if post_copy:
            raise exception.PostCopyRefused(instance.uuid, kind)


def _check_is_of(instance: Any, check: LiveMigrationCheck) -> None:
    if not isinstance(check, LiveMigrationCheck):
        raise exception.BadRequest('check', type(check).__name__, 'must be a LiveMigrationCheck, or None')
    if check.instance_uuid != instance.uuid:
        raise exception.BadRequest('check.instance_uuid', check.instance_uuid, f'the instance is {instance.uuid}')


def _check_map_is_of(instance: Any, migration: Any, device_map: DeviceMap) -> None:
    if not isinstance(device_map, DeviceMap):
        raise exception.BadRequest('device_map', type(device_map).__name__, 'must be a DeviceMap')
    for where, found, wanted in (('instance_uuid', device_map.instance_uuid, instance.uuid),
                                 ('migration_uuid', device_map.migration_uuid, migration.uuid)):
        if found != wanted:
            raise exception.BadRequest(f'device_map.{where}', found, f'the call is about {wanted}')


def _source_devices(instance: Any, resources: InstanceResources | None, check: LiveMigrationCheck | None,
                    demand: Demand) -> list[Wanted]:
    """The devices that the guest runs on, each of which needs a partner here.

    :raises BadRequest: the devices are not known, or they are more or fewer than the allocated ones
    """
    has = sorted(resources or (), key=lambda one: one.position)
    wanted = sum(item.amount for item in demand.items)
    if len(has) != wanted:
        raise exception.BadRequest(
            'instance.resources', len(has),
            f'each device of the guest gets one partner: {wanted} devices are allocated here')
    if check is None:
        # A source of an older release names the devices and declares nothing about them.
        if has:
            LOG.warning('Live migration of instance %s without a check of its source: only the types of its devices '
                        'are known', instance.uuid)
        return from_resources(has)
    _check_is_of(instance, check)
    if check.devices is None:
        raise exception.BadRequest('check.devices', None, 'the source has not filled them in: pass what its '
                                   'check_can_live_migrate_source returned')
    devices = from_declared(check.devices)
    if [device.key for device in devices] != [one.key for one in has]:
        raise exception.BadRequest('check.devices', [device.key for device in devices],
                                   'instance.resources has other devices: read the instance again')
    return devices
