"""Live migrations: the checks at both ends, the claim at the destination, and the map of the devices."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Sequence
from typing import Any
from typing import Final

from devicetrack import exception
from devicetrack import log
from devicetrack import vocabulary
from devicetrack.claims import moves
from devicetrack.claims.claim import Claim
from devicetrack.claims.declarations import Declarations
from devicetrack.claims.failed_claims import FailedClaims
from devicetrack.claims.host import ThisHost
from devicetrack.claims.moves import Moves
from devicetrack.claims.partner_search import PartnerSearch
from devicetrack.claims.partner_search import Wanted
from devicetrack.claims.rows import Rows
from devicetrack.compatibility.facts import facts_as_data
from devicetrack.compatibility.facts import facts_from_data
from devicetrack.compatibility.facts import facts_undeclared
from devicetrack.compatibility.facts import version_seen
from devicetrack.compatibility.partners import Held
from devicetrack.engine.demand import Demand
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
        search = PartnerSearch(self._host, lambda: self._ledger.now, self._declarations.of_device,
                               self._declarations.rules, guest, _tell)
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


def _tell(source: str, destination: str, verdict: str) -> None:
    LOG.info('A running guest migrates here with %(source)s, and may get one of %(destination)s for it: %(verdict)s',
             {'source': source, 'destination': destination, 'verdict': verdict})


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
