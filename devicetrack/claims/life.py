"""The life of an assignment after its claim: the guest starts, the instance moves, the device goes back.

These steps change rows, and give devices back from the guest outwards: the guest leaves a device, then the device
leaves the host, then its row leaves the store, then the ledger frees it. Calls, recovery and moves consist of these
steps and of those of :mod:`.claiming`.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Sequence

from devicetrack import exception
from devicetrack import log
from devicetrack import vocabulary
from devicetrack.claims.declarations import Declarations
from devicetrack.claims.giving import Giving
from devicetrack.claims.guest_rows import GuestRows
from devicetrack.claims.guest_rows import is_set_aside
from devicetrack.claims.rows import Rows
from devicetrack.claims.unrecorded_starts import UnrecordedStarts
from devicetrack.claims.wipes import Wipes
from devicetrack.engine import lifecycle
from devicetrack.engine.migrations import Settlement
from devicetrack.objects import details
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
    :param starts: forgets the start of a guest whose devices go back
    """

    def __init__(self, rows: Rows, guest_rows: GuestRows, declarations: Declarations, giving: Giving,
                 wipes: Wipes, starts: UnrecordedStarts) -> None:
        self._rows, self._guest_rows, self._declarations = rows, guest_rows, declarations
        self._giving, self._wipes, self._starts = giving, wipes, starts

    # -- changing rows ------------------------------------------------------------------------------------------------

    def settle(self, settlement: Settlement, wait: bool = True, note: Note = NO_NOTE) -> None:
        """Change rows of one instance in one transaction; then give back the devices that the settlement says.

        :param wait: as :meth:`give_back`
        :param note: facts for the events that are not in the rows
        """
        self.give_back(self.advance(settlement, note), wait)

    def advance(self, settlement: Settlement, note: Note = NO_NOTE) -> list[Record]:
        """Run only the transaction of a settlement.

        :returns: the rows of ``give`` as they are after it, for :meth:`give_back`
        """
        after = [(record, record._replace(role=lifecycle.next_role(record.role, lifecycle.STAYS),
                                          state=lifecycle.next_state(record.state, lifecycle.STARTED),
                                          seen=self._declarations.seen_at_start(record)))
                 for record in settlement.arrive]
        after += [(record, record._replace(role=lifecycle.next_role(record.role, lifecycle.STAYS), migration_uuid=None))
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

    # -- the guest ----------------------------------------------------------------------------------------------------

    def start(self, instance_uuid: str, before_move: bool) -> list[Record]:
        """Record that a guest runs on its devices.

        :returns: the rows of the devices that it uses
        :raises InvalidTransition: its devices are on their way back
        :raises StoreError: the guest runs anyway, and an audit records that
        """
        records = self._rows.of_instance(instance_uuid)
        released = self._guest_rows.is_released(records, before_move)
        used_now = records if released else self._guest_rows.used_by_guest(records, before_move)
        old = tuple(record for record in used_now if record.role == vocabulary.OLD and not released)
        # If no other row is part of the move that this undoes, nobody else will end it.
        over = bool(old) and all(record.migration_uuid is None or record in old for record in records)
        self.settle(Settlement(arrive=tuple(record for record in used_now if record not in old), settle=old, over=over))
        return self._guest_rows.used_by_guest(self._rows.of_instance(instance_uuid), before_move)

    def set_aside(self, instance_uuid: str) -> None:
        """Record that an instance comes to this host without devices: its guest misses none that is on its way back.

        Such a device may be here for long, if its wipe fails. The row says it, since only a claim knows it. A wipe that
        waits or runs ends without effect, as the row has changed, and an audit begins it again.

        :raises StoreError: nothing was changed, or that is unknown
        """
        left = [record for record in self._rows.of_instance(instance_uuid)
                if record.state == vocabulary.RELEASING and not is_set_aside(record)]
        if left:
            self._wipes.leave(left)
            self._rows.write(Changes(update=tuple(Update(record, record.changed(
                role=lifecycle.next_role(record.role, lifecycle.SET_ASIDE), migration_uuid=None)) for record in left)))

    def note_reboot(self, instance_uuid: str) -> None:
        """Record the versions that the guest may have seen of its devices since it rebooted, if they are newer."""
        seen = [(record, self._declarations.seen_at_reboot(record))
                for record in self._guest_rows.used_by_guest(self._rows.of_instance(instance_uuid))
                if record.state == vocabulary.ACTIVE]
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
            self._giving.vacate([record for record in ports if record.migration_uuid in known])
        except exception.DeviceTrackError as error:
            LOG.warning('Devices that the guest of instance %(instance)s has left still have the addresses of its '
                        'ports: %(error)s', {'instance': instance_uuid, 'error': error})

    # -- giving back --------------------------------------------------------------------------------------------------

    def give(self, records: Sequence[Record], wait: bool) -> None:
        """Run the give path for rows of one instance.

        :param wait: as :meth:`give_back`
        """
        self.settle(Settlement(give=tuple(records)), wait)

    def give_back(self, leaving: Sequence[Record], wait: bool = True) -> None:
        """Take devices that are on their way back from the host, and then their rows from the store.

        :param wait: wait for wipes; False wipes devices in the background
        """
        if wait:
            self._wipes.leave(leaving)
            self._giving.give_back(leaving)
        else:
            self._wipes.give_back(leaving)

    def give_back_replaced(self, leaving: Sequence[Record], wait: bool = False) -> None:
        """As :meth:`give_back`, for devices in whose place their claim took others. What fails waits for an audit."""
        try:
            self.give_back(leaving, wait)
        except exception.DeviceTrackError as error:
            LOG.warning('Devices of instance %(instance)s in whose place it has others cannot go back yet: %(error)s',
                        {'instance': leaving[0].instance_uuid, 'error': error})

    def start_wipes(self) -> None:
        """Start the waiting wipes in the background. Quick. The caller must not work on an instance."""
        self._wipes.go_on()

    def is_wiped(self, record: Record) -> bool:
        """Whether the background gives a device back already."""
        return record.state == vocabulary.RELEASING and self._wipes.has(record.key)

    def are_wiped(self, records: Sequence[Record]) -> bool:
        """Whether rows of one instance only need wipes of their devices in the background."""
        return all(record.state == vocabulary.RELEASING and record.migration_uuid is None for record in records) \
            and self._wipes.takes(records)

    def release(self, records: Sequence[Record], wait: bool, then: Callable[[], object] = lambda: None) -> None:
        """Give back everything that an instance holds here, in whatever role.

        :param wait: as :meth:`give_back`
        :param then: called after the transaction, when the instance does not have the devices any more
        """
        if records:
            self._starts.forget(records[0].instance_uuid)
        leaving = self.advance(Settlement(give=tuple(records), over=any(
            record.migration_uuid is not None for record in records)))
        try:
            then()
        finally:
            self.give_back(leaving, wait)


def leaving(record: Record) -> Update:
    """The change of the row of a device that goes back because its claim has another one in its place."""
    return Update(record, record.changed(state=lifecycle.next_state(record.state, lifecycle.RELEASE)))
