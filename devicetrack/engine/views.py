"""The views of one host, as they were read, and what follows from them alone."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Container
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from collections.abc import Set
import contextlib
import functools
import itertools
import operator
from typing import Final
from typing import NamedTuple

from devicetrack import vocabulary
from devicetrack.engine.migrations import Endpoint
from devicetrack.engine.migrations import Move
from devicetrack.objects import details
from devicetrack.objects.compact import ByKey
from devicetrack.objects.compact import Compact
from devicetrack.objects.compact import Key
from devicetrack.objects.things import Exclusions
from devicetrack.objects.values import Containment
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import ESCAPE
from devicetrack.objects.values import GuestRecord
from devicetrack.objects.values import Holding
from devicetrack.objects.values import Inventory
from devicetrack.objects.values import InventoryDevice
from devicetrack.objects.values import NOTHING_CONTAINED
from devicetrack.objects.values import Record
from devicetrack.objects.values import SeenDevice
from devicetrack.objects.values import UNKNOWN_GENERATION
from devicetrack.objects.values import Usage
from devicetrack.objects.values import Use

_instance_of = operator.attrgetter('instance_uuid')


class LostRow(NamedTuple):
    """A row that the store has confirmed to this manager, and that it does not show any more.

    ``known`` is the row, and ``shown`` is what the store shows of the device now: None, or an older row. Without
    ``known`` the store shows a row that the manager had ended, of an instance that has lost others.
    """

    known: Record | None
    shown: Record | None

    @property
    def row(self) -> Record:
        row = self.known or self.shown
        assert row is not None
        return row

    @property
    def instance_uuid(self) -> str:
        return self.row.instance_uuid


class _Views(NamedTuple):
    usage: Usage
    inventory: Inventory
    records: Sequence[Record]
    instances: Mapping[str, str] | None
    migrations: Mapping[str, Move] | None = None
    host: str = ''
    host_uuid: str = ''
    boot_changed: bool = False
    guests: tuple[GuestRecord, ...] = ()
    node: str = ''
    unnamed: frozenset[DeviceKey] = frozenset()
    realized: frozenset[str] = frozenset()
    containment: Containment = NOTHING_CONTAINED
    lost: tuple[LostRow, ...] = ()
    holdings: tuple[Holding, ...] | None = None
    seen: Mapping[DeviceKey, SeenDevice] = {}


class Views(_Views):
    """Everything that was read, innermost first.

    ``instances`` are the states of instances by the compute service, and ``migrations`` its migrations by UUID; None is
    unknown. ``host`` and ``node`` are the host's names in the service; ``node`` is '' when it has the host's name.
    ``boot_changed`` means that the host booted, and that rows and definitions are not up to date yet. ``guests`` are
    the records in the definitions of guests, as far as they were read. ``unnamed`` are devices of rows that the host
    did not show because no option names them. ``realized`` are the instances whose devices were made ready since the
    host booted, as far as ``boot_changed`` matters: a definition of one of them may still be of an earlier boot.
    ``containment`` says of everything that the host does not show as a device what contains it
    (:func:`devicetrack.engine.containment.complete`).
    ``lost`` are the rows that the manager of the host knows, and that the store does not show.
    ``holdings`` are the devices that the service itself hands out, by its own record; None is unknown. ``seen`` is what
    was seen of these devices before.
    """

    @property
    def here(self) -> Endpoint:
        """The host as migrations name it."""
        return Endpoint(self.host, self.node or self.host)

    def waits_for_devices(self, instance_uuid: str) -> bool:
        """Whether the host booted, and the devices of an instance are yet to be made ready."""
        return self.boot_changed and instance_uuid not in self.realized

    def is_to_be_made(self, record: Record) -> bool:
        """Whether the host need not have the device of a row yet: it is made for its instance, and after each boot."""
        return details.is_made(record.details) and (
            record.state == vocabulary.CLAIMED or self.waits_for_devices(record.instance_uuid))

    # Each is computed once for everybody who compares the same look. The keys are plain tuples, which equal a DeviceKey
    # and hash as it does. There are thousands, and the garbage collector need not look at them again.

    @functools.cached_property
    def owners(self) -> ByKey[Record]:
        """The rows by device."""
        return Compact(Record, self.records).by('kind', 'identifier')

    @functools.cached_property
    def devices(self) -> ByKey[InventoryDevice]:
        """The devices of the host by kind and identifier."""
        return Compact(InventoryDevice, self.inventory.devices).by('kind', 'identifier')

    @functools.cached_property
    def parents(self) -> frozenset[tuple[str, str | None]]:
        """Parents that make devices, or have some, or cannot be read now."""
        return frozenset({(capacity.kind, capacity.parent) for capacity in self.inventory.capacities}
                         | {(device.kind, device.parent) for device in self.inventory.devices}
                         | {(fault.key.kind, fault.key.identifier) for fault in self.inventory.faults})

    def exclusions_of(self, key: DeviceKey) -> Exclusions:
        """What may not be held beside a device: one that the host has, or that only a row or an earlier look names."""
        device = self.devices.get(key)
        if device is not None:
            return device.exclusions
        return self.containment.unread.get(key) or self.containment.recorded.get(key, ())

    @functools.cached_property
    def names(self) -> Names:
        """The devices and addresses that domains name."""
        uses, rows = Compact(Use, self.usage.uses), self.owners
        strange, nowhere = set[Key](), set[Key]()
        missed = self._missed_by_owners(uses)
        # Nearly always every device is its domain's own, and thousands are compared at once.
        with contextlib.suppress(KeyError):
            if all(map(operator.eq, rows.of(uses.columns('kind', 'identifier'), 'instance_uuid'),
                       uses.column('domain_uuid'))):
                # Each key is that of a row. If there are as many names as rows, every row is named.
                is_each = len(set(uses.column('identifier'))) == len(rows)
                return Names(rows.keys() if is_each else set(uses.columns('kind', 'identifier')), strange, nowhere,
                             missed)
        named: set[Key] = set(uses.columns('kind', 'identifier'))
        owners = rows.column('instance_uuid')
        for key, (address, domain_uuid, live, defined) in zip(
                uses.columns('kind', 'identifier'), uses.columns('address', 'domain_uuid', 'live', 'defined'),
                strict=True):
            if key[1] is None:
                named.discard(key)
                nowhere.add((key[0], address))
                if live or defined:             # by the rule of Use.may_mean()
                    nowhere.add((key[0], domain_uuid))
            elif owners.get(key) != domain_uuid:
                strange.add(key)
        if strange:
            strange -= named_for_another_kind(
                self.usage, self.devices, lambda key, domain_uuid: owners.get(key) == domain_uuid)
        return Names(named, strange, nowhere, missed)

    def _missed_by_owners(self, uses: Compact[Use]) -> set[Key]:
        # Nearly always each guest that runs has what its domain names, and each that is off will have it.
        if not set(uses.columns('running', 'live', 'defined')) & _NOT_HAD:
            return set()
        owners, running = self.owners.column('instance_uuid'), self.usage.running
        own = [use for use in uses if owners.get((use.kind, use.identifier)) == use.domain_uuid]
        had = {(use.kind, use.identifier) for use in own
               if use.live or (use.defined and use.domain_uuid not in running)}
        return {(use.kind, use.identifier) for use in own} - had


# How a domain names a device that its guest does not have now: the definition of one that runs, or a snapshot.
_NOT_HAD: Final = {(True, False, True), (False, False, False)}


class Names(NamedTuple):
    """The devices and addresses that the domains of a host name, by kind.

    ``named`` has the devices. ``strange`` has those without a row, and those that another domain than their owner's
    names. ``nowhere`` has the domains with addresses that lead to no device, and these addresses. ``missed`` has those
    that the domain of their owner names, but not so that its guest has them: the guest runs, and only the definition
    for its next start names them, or only a snapshot does.
    """

    named: Set[Key]
    strange: Set[Key]
    nowhere: Set[Key]
    missed: Set[Key]


def by_instance(records: Iterable[Record]) -> Iterator[list[Record]]:
    """Rows in the store's order, in one list for each instance. Nobody keeps all of them: there may be thousands."""
    for _, rows in itertools.groupby(records, key=_instance_of):
        yield list(rows)


def named_migrations(records: Iterable[Record]) -> list[str]:
    """The migrations that rows name."""
    return sorted(set(Compact(Record, records).column('migration_uuid')) - {None})


def named_instances(records: Iterable[Record]) -> set[str]:
    """The instances that rows name."""
    return set(Compact(Record, records).column('instance_uuid'))


def used(usage: Usage) -> set[DeviceKey]:
    """The devices that any domain names."""
    return {DeviceKey(use.kind, use.identifier) for use in usage.uses if use.identifier is not None}


def named_by_domain(usage: Usage) -> dict[str, set[DeviceKey]]:
    """The devices that the definitions of each domain name. Those that only a snapshot names are left out."""
    named: dict[str, set[DeviceKey]] = {}
    for use in usage.uses:
        if use.identifier is not None and not use.in_snapshot_only:
            named.setdefault(use.domain_uuid, set()).add(DeviceKey(use.kind, use.identifier))
    return named


def naming_domains(usage: Usage) -> set[str]:
    """The domains whose definitions name anything, also if nobody knows the device. Those of snapshots are left out."""
    return {use.domain_uuid for use in usage.uses if not use.in_snapshot_only}


def domains_by_device(usage: Usage) -> dict[DeviceKey, set[str]]:
    """The UUIDs of the domains that name each device."""
    users: dict[DeviceKey, set[str]] = {}
    for use in usage.uses:
        if use.identifier is not None:
            users.setdefault(DeviceKey(use.kind, use.identifier), set()).add(use.domain_uuid)
    return users


def named_for_another_kind(usage: Usage, there: Container[Key], is_own: Callable[[Key, str], bool]) -> set[Key]:
    """The devices that are only another reading of addresses by which domains name devices of their own.

    The kind ``mdev`` takes every UUID for a device of its own, and kinds of other packages have UUIDs too.

    :param there: the devices of the host, which are never such a reading
    :param is_own: whether a device is a domain's own
    """
    own, others = set[tuple[str, str]](), dict[Key, set[tuple[str, str]]]()
    for use in usage.uses:
        if use.identifier is not None:
            key, name = (use.kind, use.identifier), (use.domain_uuid, use.address)
            if is_own(key, use.domain_uuid):
                own.add(name)
            elif key not in there:
                others.setdefault(key, set()).add(name)
    return {key for key, names in others.items() if names <= own}


def foreign(views: Views) -> set[DeviceKey]:
    """The devices that a domain names and no row does."""
    owners = views.owners
    return {DeviceKey(kind, identifier) for kind, identifier in views.names.strange
            if identifier is not None and (kind, identifier) not in owners}


def needs_guest_records(views: Views) -> bool:
    """Whether a domain names a device that is not its own by the rows. Only then the guests' records are needed.

    Reading them takes as long as reading the usage.
    """
    return bool(views.names.strange)


def lost_rows(views: Views) -> dict[DeviceKey, GuestRecord]:
    """The devices that a guest of ours uses by its own record, though they have no row or one of another owner.

    Then the store is older than the guest. A device that several domains name does not count, nor does one whose row
    the manager knows (``views.lost``).
    """
    if not views.guests:
        return {}
    known = {one.row.key for one in views.lost}
    records = {record.instance_uuid: record for record in views.guests}
    lost = {}
    for key, domains in domains_by_device(views.usage).items():
        record = records.get(min(domains)) if len(domains) == 1 else None
        owner = views.owners.get(key)
        if record is None or key in known:
            continue
        if (owner is None or owner.instance_uuid != record.instance_uuid) and any(
                (device.kind, device.identifier) == key and not device.beside for device in record.devices):
            lost[key] = record
    return lost


class _EveryKind(Container[str]):

    def __contains__(self, _kind: object) -> bool:
        return True


def kinds_with_unread_names(records: Sequence[Record]) -> Container[str]:
    """The kinds of rows whose identifier is no text: each may be the row of any device of its kind.

    The row of a kind that is no text may be of any device.
    """
    found = Compact(Record, records)
    if UNKNOWN_GENERATION not in set(found.column('generation')):
        return frozenset()
    unread = {kind for kind, identifier, generation in found.columns('kind', 'identifier', 'generation')
              if generation == UNKNOWN_GENERATION and (ESCAPE in kind or ESCAPE in identifier)}
    return _EveryKind() if any(ESCAPE in kind for kind in unread) else unread
