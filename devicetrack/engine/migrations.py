"""Decides what a migration's status means, and what becomes of the rows of an instance that moves.

Pure: it takes rows, a guest and the compute service's state of both, and returns what to do with each row. It leaves a
row as it is while anything is uncertain: a device that is held too long costs capacity, a device that is given back too
early costs data.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import Final
from typing import NamedTuple

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Record

DONE: Final = 'done'
UNDONE: Final = 'undone'
PENDING: Final = 'pending'
UNKNOWN: Final = 'unknown'

# The meaning of the statuses of a compute service's migrations. A status that is not listed is unknown, and a migration
# of unknown status is not over.
STATUSES: Final[Mapping[str, str]] = {
    'queued': PENDING,
    'accepted': PENDING,
    'preparing': PENDING,
    'pre-migrating': PENDING,
    'running': PENDING,
    'migrating': PENDING,
    'post-migrating': PENDING,
    'finished': PENDING,                    # a resize that waits for its confirmation
    'confirming': PENDING,
    'reverting': PENDING,
    'completed': DONE,
    'confirmed': DONE,
    'done': DONE,                           # an evacuation
    'reverted': UNDONE,
    'cancelled': UNDONE,
    'failed': UNDONE,
    'error': UNDONE,                        # nobody knows where it left the instance: see settle()
}
ERROR: Final = 'error'
REVERTED: Final = 'reverted'
REVERTING: Final = 'reverting'
# While a migration has one of these, its source may have no domain of the instance any more.
_LEAVING: Final = ('running', 'migrating', 'post-migrating')
# While a migration has one of these, the guest has the devices that it had before.
_NOT_LEFT: Final = ('queued', 'accepted', 'preparing', 'pre-migrating', 'migrating')
# While a migration has one of these, the guest has left its source, and only a revert brings it back.
_LEFT: Final = ('post-migrating', 'finished', 'confirming')

# The states of instances by the compute service. Any other state is unknown, and nothing is concluded from it.
INSTANCE_HERE: Final = 'here'
INSTANCE_ELSEWHERE: Final = 'elsewhere'
INSTANCE_DELETED: Final = 'deleted'
INSTANCE_OFFLOADED: Final = 'offloaded'
# The service has looked everywhere, among deleted instances too, and has no record of the instance.
INSTANCE_FORGOTTEN: Final = 'forgotten'
INSTANCE_OVER: Final = (INSTANCE_DELETED, INSTANCE_OFFLOADED)
# What an audit reports. One answer proves less of a forgotten instance than of one that is over.
INSTANCE_OVER_OR_FORGOTTEN: Final = (*INSTANCE_OVER, INSTANCE_FORGOTTEN)


def outcome_of(status: str | None) -> str:
    """Whether a migration of this status is done, undone, pending or of unknown outcome."""
    return STATUSES.get(status or '', UNKNOWN)


def is_completed(status: str | None) -> bool | None:
    """Whether a migration of this status is completed; False if it was undone, and None while nobody knows.

    After an error nobody knows.
    """
    return None if status == ERROR else {DONE: True, UNDONE: False}.get(outcome_of(status))


class Move(NamedTuple):
    """A migration of the compute service. ``number`` orders the migrations of an instance: the greatest is the newest.

    ``source`` and ``destination`` are (host, node) by the service's names, with None for an unknown part.
    """

    uuid: str
    number: int | None
    status: str | None
    instance_uuid: str | None
    source: tuple[str | None, str | None]
    destination: tuple[str | None, str | None]

    @classmethod
    def of(cls, migration: Any) -> Move:
        """Read the service's own object. A part that it lacks is unknown, and a UUID may have any form.

        :raises BadRequest: a part has no meaning
        """
        def text(name: str) -> str | None:
            value = getattr(migration, name, None)
            if value is None or isinstance(value, str):
                return value
            raise exception.BadRequest(f'migration.{name}', value, 'must be a string or None')

        def uuid(name: str) -> str:
            found = vocabulary.as_uuid(value := getattr(migration, name, None))
            if found is None:
                raise exception.BadRequest(f'migration.{name}', value, 'must be a UUID')
            return found

        number, instance = getattr(migration, 'id', None), getattr(migration, 'instance_uuid', None)
        # Read as unknown, the migration would be neither older nor newer than any other one.
        if number is not None and (isinstance(number, bool) or not isinstance(number, int)):
            raise exception.BadRequest('migration.id', number, 'must be an integer or None')
        return cls(uuid('uuid'), number, text('status'),
                   None if instance is None else uuid('instance_uuid'),
                   (text('source_compute'), text('source_node')), (text('dest_compute'), text('dest_node')))

    @property
    def ends(self) -> tuple[str | None, str | None]:
        """The names of the two hosts: from, and to."""
        return self.source[0], self.destination[0]

    @property
    def outcome(self) -> str:
        return outcome_of(self.status)

    @property
    def goes_on(self) -> bool:
        """Whether the instance is to have its new devices: the migration is under way, and nobody reverts it."""
        return self.outcome == PENDING and self.status != REVERTING

    @property
    def has_left(self) -> bool:
        """Whether the guest has left its devices at the source for good, unless somebody reverts the migration."""
        return self.outcome == DONE or self.status in _LEFT

    @property
    def has_not_left(self) -> bool:
        """Whether the guest still has its devices at the source."""
        return self.status in _NOT_LEFT

    def may_have_taken_away_from(self, here: Endpoint) -> bool:
        """Whether an instance that is elsewhere may be there because of this migration, or is still moving.

        A migration that was undone, or does not lead away from here, took nobody away. After an error nobody knows.
        """
        if self.outcome in (PENDING, UNKNOWN):
            return True
        may_lead_away = self.source[0] is None or (here.is_at(self.source) and not here.is_at(self.destination))
        return may_lead_away and (self.outcome == DONE or self.status == ERROR)

    def may_have_removed_domain_from(self, here: Endpoint) -> bool:
        """Whether a host may have no domain of an instance that is still said to be there, because of this migration.

        The guest leaves the source before the service can save that, and the destination before a revert is over.
        """
        at_source, at_destination = here.is_at(self.source), here.is_at(self.destination)
        if self.status == REVERTING:
            return at_destination and not at_source
        return self.status in _LEAVING and at_source and not at_destination

    def is_older_than(self, other: Move) -> bool | None:
        """Whether the other is newer, or None if that is unknown."""
        if self.number is None or other.number is None:
            return None
        return self.number < other.number


class Endpoint(NamedTuple):
    """A host and its node, as a migration names them."""

    host: str
    node: str

    def is_at(self, end: tuple[str | None, str | None]) -> bool:
        """Whether an end of a migration is here."""
        host, node = end
        return host == self.host and node in (None, self.node)


class Situation(NamedTuple):
    """Everything that one host knows about one instance that moves.

    ``moves`` are the service's migrations by UUID, None when it did not answer. ``domain`` says whether the hypervisor
    has a domain of the instance, None if that is unknown, or which devices domains name. ``running`` means that its
    guest runs, and does not only wait to arrive. ``named`` are the devices that its definitions name, ``live`` those of
    the running guest; without a known ``domain``, they may lack some. ``state`` is the state of the instance by the
    service.
    """

    here: Endpoint
    records: Sequence[Record]
    moves: Mapping[str, Move] | None
    domain: bool | None
    running: bool
    named: Collection[DeviceKey]
    live: Collection[DeviceKey]
    state: str | None


class Settlement(NamedTuple):
    """The changes of one transaction to the rows of an instance. After it, the devices of ``give`` go back.

    Rows in ``arrive`` become current and active, and keep their migration. Rows in ``settle`` become current and at
    rest; those in both also become active. Rows in ``leave`` become old for the migration beside them. ``failed`` has
    the migrations that a newer one replaced. ``over`` means that no row moves any more.
    """

    arrive: tuple[Record, ...] = ()
    settle: tuple[Record, ...] = ()
    give: tuple[Record, ...] = ()
    leave: tuple[tuple[Record, str], ...] = ()
    failed: tuple[str, ...] = ()
    over: bool = False


def settle(seen: Situation) -> Settlement:
    """Decide what becomes of the rows of an instance that moves or moved. Releasing rows are left alone."""
    rows = [record for record in seen.records if record.state != vocabulary.RELEASING]
    arrive: list[Record] = []
    at_rest: list[Record] = []
    give: list[Record] = []
    failed, back = _replaced(seen, rows), taken_back(rows)
    for migration_uuid in sorted({record.migration_uuid for record in rows if record.migration_uuid is not None}):
        ours = [record for record in rows if record.migration_uuid == migration_uuid]
        new = [record for record in ours if record.role != vocabulary.OLD]
        old = [record for record in ours if record.role == vocabulary.OLD]
        move = (seen.moves or {}).get(migration_uuid)
        outcome = UNDONE if migration_uuid in failed else move.outcome if move is not None else UNKNOWN
        one_host = bool(old and new) or (move is not None and seen.here.is_at(move.source)
                                         and seen.here.is_at(move.destination))
        if outcome == DONE and one_host and migration_uuid in back:
            outcome = UNDONE                            # whatever the service says: the guest never left its devices
        if outcome == DONE and move is not None:
            stays, goes = _done(seen, move, new)
            at_rest += stays
            give += goes
            give += [record for record in old if _has_left(record, seen, one_host)]
        elif outcome == UNDONE:
            stays, goes = _undone(seen, move, new, old, one_host)
            at_rest += stays
            give += goes
        arrive += [record for record in new if record.role == vocabulary.INCOMING and record not in at_rest
                   and seen.running and record.key in seen.live]
    leave = _leaving(seen, rows)
    # A later migration takes the instance off what an undone one would have left.
    left = {record.key for record, _by in leave}
    at_rest = [record for record in at_rest if record.key not in left]
    moving = {record.key for record in rows if record.migration_uuid is not None}
    settled = {record.key for record in (*at_rest, *give)}
    return Settlement(tuple(arrive), tuple(at_rest), tuple(give), leave, failed,
                      bool(settled) and settled >= moving and not leave)


def undo(records: Sequence[Record], migrations: Collection[str], taken: Sequence[Record] | None = None) -> Settlement:
    """Give back the devices of a claim, and make the rows current again that it made old for ``migrations``.

    :param records: every row of the instance on this host
    :param taken: the rows of the claim; None means every row of the migrations that is not old
    """
    ours = [record for record in records if record.migration_uuid in migrations]
    if taken is None:
        taken = [record for record in ours if record.role != vocabulary.OLD]
    stay = [record for record in ours if record.role == vocabulary.OLD and record.state != vocabulary.RELEASING]
    return Settlement(give=tuple(taken), settle=tuple(stay), over=bool(migrations))


def taken_back(records: Sequence[Record]) -> list[str]:
    """The migrations on this host whose guest was started again on its old devices, and which nobody has ended.

    A claim for a move on this host leaves no device at rest, and one for a move to here finds none. So beside a new
    device, one at rest was left before, and a start before the guest had moved took it back.

    :param records: the rows of one instance
    """
    there = [record for record in records if record.state != vocabulary.RELEASING]
    new = {record.migration_uuid for record in there if record.role == vocabulary.INCOMING}
    return sorted(uuid for uuid in new if uuid is not None) \
        if any(record.migration_uuid is None for record in there) else []


def _replaced(seen: Situation, rows: Sequence[Record]) -> tuple[str, ...]:
    """Migrations with incoming rows here that a newer migration of the instance replaced: the newest counts.

    This is decided only if no guest is on their devices, and if the service gives both a number.
    """
    moves = seen.moves or {}
    here = [moves[uuid] for uuid in {record.migration_uuid for record in rows} if uuid is not None and uuid in moves]
    known = [*here, *(move for move in moves.values() if rows and move.instance_uuid == rows[0].instance_uuid)]
    replaced = []
    for move in here:
        incoming = [record for record in rows
                    if record.migration_uuid == move.uuid and record.role == vocabulary.INCOMING]
        if (incoming and move.outcome == PENDING and seen.domain is not None
                and not any(record.key in seen.named for record in incoming)
                and any(move.is_older_than(other) for other in known)):
            replaced.append(move.uuid)
    return tuple(sorted(set(replaced)))


def _has_left(record: Record, seen: Situation, one_host: bool) -> bool:
    """Whether the guest has certainly left a device that its migration took it from."""
    if seen.domain is None or record.key in seen.named:
        return False
    # A guest that moved to another host has left when it has no domain here. But libvirt may have lost the domain
    # before the move, so the service must not say that the instance is here.
    return one_host or (not seen.domain and seen.state != INSTANCE_HERE)


def _done(seen: Situation, move: Move, new: Sequence[Record]) -> tuple[list[Record], list[Record]]:
    """The new rows that the instance keeps and those that go back, after a migration that is done."""
    incoming = [record for record in new if record.role == vocabulary.INCOMING]
    came = [record for record in new if record not in incoming]
    if not incoming or seen.state == INSTANCE_HERE:
        return list(new), []
    if move.destination[0] is not None and not seen.here.is_at(move.destination):
        # The service gave this destination up after its claim, and the instance went to another one.
        if seen.domain is None or any(record.key in seen.named for record in incoming):
            return came, []
        return came, incoming
    # The source of an evacuation that comes back may call it done before the guest is here, and it may yet fail.
    waits = seen.state == INSTANCE_ELSEWHERE and not _has_left_since(move, incoming[0], seen.moves or {}, seen.here)
    return (came, []) if waits else (list(new), [])


def _has_left_since(move: Move, record: Record, known: Mapping[str, Move], here: Endpoint) -> bool:
    """Whether a newer migration than this one takes the instance of a row away from here."""
    return any(other.instance_uuid == record.instance_uuid and here.is_at(other.source)
               and not here.is_at(other.destination) and bool(move.is_older_than(other)) for other in known.values())


def _undone(seen: Situation, move: Move | None, new: Sequence[Record], old: Sequence[Record],
            one_host: bool) -> tuple[list[Record], list[Record]]:
    """The rows that the instance keeps and those that go back, after a migration that failed."""
    unclear = move is not None and (move.status == ERROR or move.outcome == DONE)
    if seen.running and any(record.key in seen.live for record in new):
        return [], []                                   # a guest runs on them, whatever the service says
    if one_host:
        # An error may have come after the guest was defined on its new devices. Then a person must decide. While a
        # reboot defines the guest anew there is no definition.
        if seen.domain is None or (unclear and any(
                record.key in seen.named or (not seen.domain and record.role == vocabulary.CURRENT) for record in new)):
            return [], []
        return list(old), list(new)
    if new and seen.state == INSTANCE_HERE:
        # The service says that the instance is at the end that was given up. After an error that may be true.
        return (list(new), []) if unclear else ([], [])
    if old and seen.state == INSTANCE_ELSEWHERE and (unclear or seen.domain is not False):
        return [], []                                   # else it left later, and this migration took nothing along
    if new and (seen.domain is None or any(record.key in seen.named for record in new)):
        return [], []                                   # the guest may be here, shut off
    if unclear and seen.state in (None, INSTANCE_FORGOTTEN) and any(
            record.role == vocabulary.CURRENT for record in new):
        return [], []                                   # it has been here, and its domain may be defined anew just now
    return list(old), list(new)


def _leaving(seen: Situation, rows: Sequence[Record]) -> tuple[tuple[Record, str], ...]:
    """The rows that an instance leaves by a migration away from here, if only the service has named it so far."""
    if seen.moves is None or seen.state != INSTANCE_ELSEWHERE:
        return ()
    left = [record for record in rows if leaves_with(record, rows) and (
        record.migration_uuid is None or _is_undone(seen.moves.get(record.migration_uuid)))]
    if not left or seen.running:
        return ()
    away = [move for move in seen.moves.values() if move.instance_uuid == left[0].instance_uuid
            and seen.here.is_at(move.source) and not seen.here.is_at(move.destination)]
    by_which = [move for move in away if move.outcome in (PENDING, DONE)]
    if not by_which:
        return ()
    newest = max(by_which, key=lambda move: -1 if move.number is None else move.number)
    # A newer one began here, so the instance had probably come back since. How the newer one ended does not matter. An
    # operator can release what then stays; what is given back by mistake is lost.
    if newest.outcome == DONE and any(newest.is_older_than(move) for move in away):
        return ()
    # What a newer one left stays with it: the older one cannot have taken the instance away since.
    return tuple((record, newest.uuid) for record in left if record.migration_uuid is None
                 or not newest.is_older_than(seen.moves[record.migration_uuid]))


def _is_undone(move: Move | None) -> bool:
    return move is not None and move.outcome == UNDONE


def may_come_back(instance_uuid: str, left_for: Collection[str | None], known: Mapping[str, Move],
                  here: Endpoint) -> bool:
    """Whether the end of a migration away from here may bring an instance back.

    A migration that is older than another one away from here that is done, such as an evacuation, brings nothing back.

    :param left_for: the migrations for which the instance has left devices here
    """
    moves = [move for move in known.values() if move.uuid in left_for or (
        move.instance_uuid == instance_uuid and here.is_at(move.source))]
    done = [move for move in moves if move.outcome == DONE]
    # After an error nobody knows where the instance is.
    not_over = [move for move in moves if move.outcome in (PENDING, UNKNOWN) or move.status == ERROR]
    return (not known.keys() >= set(left_for)
            or any(not any(move.is_older_than(other) for other in done) for move in not_over))


def may_leave_with(record: Record, migration_uuid: str, instance_uuid: str, known: Mapping[str, Move] | None,
                   here: Endpoint) -> bool:
    """Whether a migration away from here may take an instance off this device, by all that the service tells.

    It may not if a newer migration left from here or brought the instance back: what the instance has here since then
    has nothing to do with the older one. Nor if an earlier migration is done that left the device: the instance left it
    for good. If the service cannot tell, an audit finds out later.

    :param record: one for which :func:`leaves_with` is true
    """
    move = None if known is None else known.get(migration_uuid)
    if known is None or move is None:
        return False
    if record.migration_uuid is not None:
        other = known.get(record.migration_uuid)
        return other is not None and other.outcome != DONE and bool(other.is_older_than(move))
    return not any(move.is_older_than(other) and other.instance_uuid == instance_uuid and (
        here.is_at(other.source) or (here.is_at(other.destination) and is_completed(other.status) is not False))
        for other in known.values())


def leaves_with(record: Record, rows: Sequence[Record]) -> bool:
    """Whether a migration away from here takes an instance off this device.

    It does for a device at rest, and for one that an earlier migration away from here should leave: the newer migration
    replaces it. It does not for a device that a migration to here holds.
    """
    if record.migration_uuid is None:
        return record.role == vocabulary.CURRENT
    return record.role == vocabulary.OLD and not any(
        other.migration_uuid == record.migration_uuid and other.role != vocabulary.OLD for other in rows)
