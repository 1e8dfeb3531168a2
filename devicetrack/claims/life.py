"""The life of an assignment after its claim: the guest starts, the instance moves, the device goes back.

These steps change rows, and release devices from the guest outwards: the guest leaves a device, then the device
leaves the host, then its row leaves the store, then the ledger frees it. Calls, recovery and moves consist of these
steps and of those of :mod:`.claim`.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Sequence

from devicetrack import exception
from devicetrack import log
from devicetrack import vocabulary
from devicetrack.claims.declarations import Declarations
from devicetrack.claims.host import ThisHost
from devicetrack.claims.releasing import Releasing
from devicetrack.claims.releasing import Wipes
from devicetrack.claims.rows import Rows
from devicetrack.claims.unfinished import ToldStart
from devicetrack.engine import lifecycle
from devicetrack.engine import migrations
from devicetrack.engine.migrations import Move
from devicetrack.engine.migrations import Settlement
from devicetrack.engine.views import named_migrations
from devicetrack.objects import details
from devicetrack.objects import DeviceAssignment
from devicetrack.objects.event import NO_NOTE
from devicetrack.objects.event import Note
from devicetrack.objects.values import Record
from devicetrack.store.api import Changes
from devicetrack.store.api import Update

LOG = log.logger(__name__)


class Life:
    """The steps in the lives of the assignments of one host.

    The caller of a step that changes rows of one instance works on the instance (:meth:`.rows.Rows.working`).

    :param wipes: wipes devices in the background
    """

    def __init__(self, host: ThisHost, rows: Rows, declarations: Declarations, releasing: Releasing,
                 wipes: Wipes) -> None:
        self._here, self._service, self._host_uuid = host.here, host.service, host.uuid
        self._rows, self._declarations, self.releasing, self.wipes = rows, declarations, releasing, wipes

    # -- which rows a guest uses --------------------------------------------------------------------------------------

    def used_by_guest(self, records: Sequence[Record], before_move: bool = False) -> list[Record]:
        """Choose the rows of one instance whose devices its guest should have now.

        While the instance moves to other devices of this host, these are the new ones, unless its guest was started
        again on the old ones.

        :param before_move: choose the old ones: the guest should be as it was before the move
        """
        there = [record for record in records if record.state != vocabulary.RELEASING]
        roles = {record.role for record in there}
        if before_move:
            if vocabulary.OLD in roles:
                return [record for record in there if record.role == vocabulary.OLD]
            # Rows of a migration are new. Before it, the instance had the rows without a migration, or none.
            return [record for record in there if record.migration_uuid is None]
        if migrations.taken_back(records):
            return [record for record in there if record.migration_uuid is None]
        order = (vocabulary.INCOMING, vocabulary.CURRENT, vocabulary.OLD)
        role = next((role for role in order if role in roles), None)
        if role == vocabulary.OLD and self.moves_to_nothing(there):
            return []
        return [record for record in there if record.role == role]

    def is_before_move(self, records: Sequence[Record], is_realized: bool = True) -> bool:
        """Whether an instance moves on this host, and its guest still has the devices from before, as the service says.

        If the service ends then, it may return to these devices by itself and record that nowhere.

        :param is_realized: ``realize`` has chosen the guest's devices, and has ended the move if it was over
        :raises MigrationUndecided: the service does not know the migration, or does not answer; or it has begun to undo
            the migration since ``realize``
        """
        named = named_migrations(records)
        if not named:
            return False
        known = self._service.migrations(named) or {}
        if self.has_not_left(map(known.get, named)):
            return True
        undecided = set(named) - known.keys()
        if is_realized and not migrations.taken_back(records):
            ran = {record.migration_uuid for record in records if record.role == vocabulary.CURRENT}
            # After an error a guest that ran on its new devices may have them: see migrations.settle().
            undecided |= {uuid for uuid, move in known.items() if not move.goes_on and move.outcome != migrations.DONE
                          and not (move.outcome == migrations.UNDONE and uuid in ran)}
        self.check_decided(records[0].instance_uuid, undecided)
        return False

    def has_not_left(self, moves: Iterable[Move | None]) -> bool:
        """Whether an instance that moves on this host still has the devices from before one of these moves."""
        return any(move is not None and move.has_not_left and self._stayed_here(move) for move in moves)

    def check_decided(self, instance_uuid: str, undecided: Collection[str]) -> None:
        """Check that none of these migrations moves an instance on this host.

        In a move between two hosts the guest has one set of devices at each host, however the move ends.

        :raises MigrationUndecided: one does, so the guest's devices depend on it
        """
        if not undecided or self._service.ends_moves_by_calls:
            return
        stored = self._rows.stored_context(instance_uuid)
        if stored is not None and stored.migration_uuid in undecided and stored.old_resources is not None \
                and stored.old_resources.host_uuid == self._host_uuid:
            raise exception.MigrationUndecided(instance_uuid, stored.migration_uuid)

    def devices_of_guest(self, instance_uuid: str) -> tuple[list[DeviceAssignment], list[DeviceAssignment]]:
        """The devices in the definition of an instance's guest, and others that only its metadata records."""
        records = self._rows.of_instance(instance_uuid)
        used = self.used_by_guest(records, self.is_before_move(records))
        beside = [record for record in records if record not in used and record.state != vocabulary.RELEASING]
        return list(map(DeviceAssignment.from_record, used)), list(map(DeviceAssignment.from_record, beside))

    def is_released(self, records: Sequence[Record], before_move: bool) -> bool:
        """Whether all devices of an instance are being released, although its guest should have some here.

        These do not count, since a guest that should have no other devices starts without any: devices that are set
        aside, those that the instance left for none in a move on this host, and those of a move on this host that was
        undone. If only such a move may explain the rows, this asks the service. While that is unknown, they count.

        :param before_move: as :meth:`used_by_guest`
        """
        if any(record.state != vocabulary.RELEASING for record in records):
            return False
        counted = [record for record in records if not is_set_aside(record)]
        if any(record.migration_uuid is None for record in counted):
            return True
        left, new = ({record.migration_uuid for record in counted if record.migration_uuid is not None
                      and (record.role == vocabulary.OLD) == is_old} for is_old in (True, False))
        if self._service.ends_moves_by_calls:
            left.clear()                        # nobody can tell where that move went
        if before_move:
            new.clear()
        if not left | new:
            return False
        known = self._service.migrations(sorted(left | new)) or {}
        return not (known.keys() >= left | new
                    and all(self._stayed_here(known[uuid]) and not self._is_undone_here(known[uuid]) for uuid in left)
                    and all(self._is_undone_here(known[uuid]) for uuid in new))

    def misses(self, records: Sequence[Record], gave: Sequence[Record]) -> bool:
        """Whether a guest without devices should have some, because claims of its instance failed.

        A guest that was to move on this host starts with what it had before. This asks the service where it was to
        move, and without an answer the guest misses its devices.

        :param records: the rows of the instance now
        :param gave: the rows that these claims had
        """
        moves = {record.migration_uuid for record in gave}
        if not moves or None in moves or any(
                record.role == vocabulary.OLD and record.migration_uuid in moves for record in records):
            return bool(moves)
        known = self._service.migrations(sorted(filter(None, moves))) or {}
        return not all(uuid in known and self._stayed_here(known[uuid]) for uuid in moves)

    def _stayed_here(self, move: Move) -> bool:
        """Whether a migration moved an instance on this host. After any other, an instance that is here came back."""
        return self._here.is_at(move.source) and self._here.is_at(move.destination)

    def _is_undone_here(self, move: Move) -> bool:
        """Whether a migration left from this host and was undone, or is about to be."""
        return self._here.is_at(move.source) and (
            move.outcome == migrations.UNDONE or move.status == migrations.REVERTING)

    def moves_to_nothing(self, old: Sequence[Record]) -> bool:
        """Whether an instance with only old rows moves on this host to no devices. Then its claim was here."""
        context = self._rows.context(old[0].instance_uuid)
        return context is not None and context.migration_uuid == old[0].migration_uuid

    # -- changing rows ------------------------------------------------------------------------------------------------

    def settle(self, settlement: Settlement, wait: bool = True, note: Note = NO_NOTE) -> None:
        """Change rows of one instance in one transaction; then give back the devices that the settlement says.

        :param wait: as :meth:`release`
        :param note: facts for the events that are not in the rows
        """
        self.release(self.advance(settlement, note), wait)

    def advance(self, settlement: Settlement, note: Note = NO_NOTE) -> list[Record]:
        """Run only the transaction of a settlement.

        :returns: the rows of ``give`` as they are after it, for :meth:`release`
        """
        after = [(record, self._arrived(record)) for record in settlement.arrive if record not in settlement.settle]
        after += [(record, (self._arrived(record) if record in settlement.arrive else record)._replace(
            role=lifecycle.next_role(record.role, lifecycle.STAYS), migration_uuid=None))
                  for record in settlement.settle]
        after += [(record, record._replace(role=lifecycle.next_role(record.role, lifecycle.LEAVES),
                                           migration_uuid=migration_uuid))
                  for record, migration_uuid in settlement.leave]
        after += [(record, record._replace(state=lifecycle.next_state(record.state, lifecycle.RELEASE)))
                  for record in settlement.give]
        changed = [Update(before, later.changed()) for before, later in after if before != later]
        if changed:
            contexts = (self._rows.end_of_move(changed[0].before.instance_uuid),) if settlement.over else ()
            self._rows.write(Changes(update=tuple(changed), contexts=contexts, note=note))
        now = {update.before.key: update.after for update in changed}
        return [now.get(record.key, record) for record in settlement.give]

    def _arrived(self, record: Record) -> Record:
        return record._replace(role=lifecycle.next_role(record.role, lifecycle.STAYS),
                               state=lifecycle.next_state(record.state, lifecycle.STARTED),
                               seen=self._declarations.seen_at_start(record))

    # -- the guest ----------------------------------------------------------------------------------------------------

    def start(self, instance_uuid: str) -> list[Record]:
        """Record that a guest runs on its devices.

        :returns: the rows of the devices that it uses
        :raises InvalidTransition: its devices are being released
        :raises StoreError: the guest runs anyway, and an audit records that
        """
        records = self._rows.of_instance(instance_uuid)
        before_move = self.is_before_move(records)
        released = self.is_released(records, before_move)
        used_now = records if released else self.used_by_guest(records, before_move)
        old = tuple(record for record in used_now if record.role == vocabulary.OLD and not released)
        # If no other row is part of the move that this undoes, nobody else will end it.
        over = bool(old) and all(record.migration_uuid is None or record in old for record in records)
        self.settle(Settlement(arrive=tuple(used_now), settle=old, over=over))
        return self.used_by_guest(self._rows.of_instance(instance_uuid), before_move)

    def set_aside(self, instance_uuid: str) -> None:
        """Record that an instance comes to this host without devices: its guest misses none that is being released.

        Such a device may be here for long, if its wipe fails. The row says it, since only a claim knows it. A wipe that
        waits or runs ends without effect, as the row has changed, and an audit begins it again.

        :raises StoreError: nothing was changed, or that is unknown
        """
        left = [record for record in self._rows.of_instance(instance_uuid)
                if record.state == vocabulary.RELEASING and not is_set_aside(record)]
        if left:
            self.wipes.leave(left)
            self._rows.write(Changes(update=tuple(Update(record, record.changed(
                role=lifecycle.next_role(record.role, lifecycle.SET_ASIDE), migration_uuid=None)) for record in left)))

    def note_reboot(self, instance_uuid: str) -> None:
        """Record the versions that the guest may have seen of its devices since it rebooted, if they are newer.

        While it moves on this host, this also records them of those that it left: it may still have them.
        """
        seen = [(record, self._declarations.seen_at_reboot(record))
                for record in self._rows.of_instance(instance_uuid) if record.state == vocabulary.ACTIVE]
        changed = tuple(Update(record, record.changed(seen=now))
                        for record, now in seen if record.seen != now)
        if changed:
            self._rows.write(Changes(update=changed))

    def vacate(self, instance_uuid: str, left_for: Callable[[list[str]], Collection[str | None]]) -> None:
        """Take the addresses of a guest's network ports off the devices that the guest has left for a move.

        The devices stay the instance's, and a revert realizes them again. Otherwise others would reach a dead device
        under the guest's address until the move is confirmed. The caller works on the instance. An error is only
        logged: the next audit tries again.

        :param left_for: says for which of these migrations the guest has certainly left its devices
        """
        try:
            ports = [record for record in self._rows.of_instance(instance_uuid)
                     if record.role == vocabulary.OLD and record.state != vocabulary.RELEASING
                     and record.migration_uuid is not None and details.port_of(record.details) is not None]
            known = left_for(sorted({str(record.migration_uuid) for record in ports})) if ports else ()
            self.releasing.vacate([record for record in ports if record.migration_uuid in known])
        except exception.DeviceTrackError as error:
            LOG.warning('Devices that the guest of instance %(instance)s has left still have the addresses of its '
                        'ports: %(error)s', {'instance': instance_uuid, 'error': error})

    # -- giving back --------------------------------------------------------------------------------------------------

    def release_some(self, records: Sequence[Record], wait: bool) -> None:
        """Release the devices of some rows of one instance.

        :param wait: as :meth:`release`
        """
        self.settle(Settlement(give=tuple(records)), wait)

    def release(self, leaving: Sequence[Record], wait: bool = True) -> None:
        """Take devices that are being released from the host, and then their rows from the store.

        :param wait: wait for wipes; False wipes devices in the background
        """
        if wait:
            self.wipes.leave(leaving)
            self.releasing.release(leaving)
        else:
            self.wipes.release(leaving)

    def release_replaced(self, leaving: Sequence[Record], wait: bool = False) -> None:
        """As :meth:`release`, for devices in whose place their claim took others. What fails waits for an audit."""
        try:
            self.release(leaving, wait)
        except exception.DeviceTrackError as error:
            LOG.warning('Devices of instance %(instance)s in whose place it has others cannot go back yet: %(error)s',
                        {'instance': leaving[0].instance_uuid, 'error': error})

    def release_left(self, instance_uuid: str) -> None:
        """Try again to give back what the guest had before its start. What fails waits for an audit."""
        if leaving := [record for record in self._rows.of_instance(instance_uuid)
                       if record.state == vocabulary.RELEASING]:
            self.release_replaced(leaving)

    def is_wiped(self, record: Record) -> bool:
        """Whether the background gives a device back already."""
        return record.state == vocabulary.RELEASING and self.wipes.has(record.key)

    def are_wiped(self, records: Sequence[Record]) -> bool:
        """Whether rows of one instance only need wipes of their devices in the background."""
        return all(record.state == vocabulary.RELEASING and record.migration_uuid is None for record in records) \
            and self.wipes.takes(records)

    def release_all(self, records: Sequence[Record], wait: bool, then: Callable[[], object] = lambda: None) -> None:
        """Give back everything that an instance holds here, in whatever role.

        :param wait: as :meth:`release`
        :param then: called after the transaction, when the instance does not have the devices any more
        """
        if records:
            self._rows.unfinished.end(ToldStart, records[0].instance_uuid)
        leaving = self.advance(Settlement(give=tuple(records), over=any(
            record.migration_uuid is not None for record in records)))
        try:
            then()
        finally:
            self.release(leaving, wait)


def is_set_aside(record: Record) -> bool:
    """Whether a device being released is none that the guest should have: see :meth:`Life.set_aside`."""
    return record.role == vocabulary.OLD and record.migration_uuid is None


def leaving(record: Record) -> Update:
    """The change of the row of a device that goes back because its claim has another one in its place."""
    return Update(record, record.changed(state=lifecycle.next_state(record.state, lifecycle.RELEASE)))
