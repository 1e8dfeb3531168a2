"""Which rows of an instance its guest on this host uses."""

from __future__ import annotations

from collections.abc import Sequence

from devicetrack import vocabulary
from devicetrack.claims.rows import Rows
from devicetrack.claims.service import ServiceView
from devicetrack.engine import migrations
from devicetrack.engine.migrations import Endpoint
from devicetrack.engine.migrations import Move
from devicetrack.objects import DeviceAssignment
from devicetrack.objects.values import Record


class GuestRows:
    """The rows of the guests of one host. They change nothing.

    :param here: this host, as migrations name it
    """

    def __init__(self, rows: Rows, service: ServiceView, here: Endpoint) -> None:
        self._rows, self._service, self._here = rows, service, here

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
        if taken_back(records):
            return [record for record in there if record.migration_uuid is None]
        order = (vocabulary.INCOMING, vocabulary.CURRENT, vocabulary.OLD)
        role = next((role for role in order if role in roles), None)
        if role == vocabulary.OLD and self.moves_to_nothing(there):
            return []
        return [record for record in there if record.role == role]

    def devices_of_guest(self, instance_uuid: str, before_move: bool,
                         ) -> tuple[list[DeviceAssignment], list[DeviceAssignment]]:
        """The devices in the definition of an instance's guest, and others that only its metadata records.

        :param before_move: as :meth:`used_by_guest`
        """
        records = self._rows.of_instance(instance_uuid)
        used = self.used_by_guest(records, before_move)
        beside = [record for record in records if record not in used and record.state != vocabulary.RELEASING]
        return list(map(DeviceAssignment.from_record, used)), list(map(DeviceAssignment.from_record, beside))

    def is_released(self, records: Sequence[Record], before_move: bool) -> bool:
        """Whether all devices of an instance are on their way back, although its guest should have some here.

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


def taken_back(records: Sequence[Record]) -> list[str]:
    """The migrations on this host whose guest was started again on its old devices, and which nobody has ended.

    A claim for a move on this host leaves no device at rest, and one for a move to here finds none. So beside a new
    device, one at rest was left before, and a start with ``before_move`` took it back.

    :param records: the rows of one instance
    """
    there = [record for record in records if record.state != vocabulary.RELEASING]
    new = {record.migration_uuid for record in there if record.role == vocabulary.INCOMING}
    return sorted(uuid for uuid in new if uuid is not None) \
        if any(record.migration_uuid is None for record in there) else []


def is_set_aside(record: Record) -> bool:
    """Whether a device on its way back is none that the guest should have: see :meth:`.life.Life.set_aside`."""
    return record.role == vocabulary.OLD and record.migration_uuid is None
