"""The end of the give path: devices leave the host, then their rows leave the store, then they are free."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import time
from typing import TypeGuard

from devicetrack import exception
from devicetrack.claims.locked_ledger import LockedLedger
from devicetrack.claims.metering import Meter
from devicetrack.claims.metering import Metering
from devicetrack.claims.rows import Rows
from devicetrack.claims.withheld_devices import WithheldDevices
from devicetrack.objects import details
from devicetrack.objects import DeviceAssignment
from devicetrack.objects.event import Note
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Record
from devicetrack.store.api import Changes
from devicetrack.virt.driver import VirtDriver

# For each device None, or the reason why it was not taken back.
Answers = Mapping[DeviceKey, exception.DriverError | None]


class Giving:
    """Gives devices back whose rows say that they are on their way back."""

    def __init__(self, ledger: LockedLedger, rows: Rows, driver: VirtDriver, withheld: WithheldDevices,
                 metering: Metering) -> None:
        self._ledger, self._rows, self._driver, self._withheld = ledger, rows, driver, withheld
        self._metering, self._wiped = metering, driver.wiped_kinds()

    def give_back(self, leaving: Sequence[Record]) -> None:
        """Take devices of one instance from the host, and their rows from the store. The caller works on the instance.

        :raises DriverError: some devices stay held, and this is the first error; the others went back
        """
        if leaving:
            self.end(leaving, self.take_back(leaving))

    def vacate(self, left: Sequence[Record]) -> None:
        """As :meth:`.VirtDriver.vacate`.

        :raises DriverError: as that
        """
        for record in left:
            self._driver.vacate(DeviceAssignment.from_record(record))

    def take_back(self, leaving: Sequence[Record], check: Callable[[], None] = lambda: None) -> Answers:
        """Take devices from the host. Blocks while they are wiped. Their rows stay, so the devices stay held.

        :param check: called under the lock of each device, before the device changes; its error ends the call
        """
        self._ledger.releasing_of(leaving[0].instance_uuid, [record.key for record in leaving])
        assignments, refused = _readable(leaving)
        if owned := self._owned_in_part(assignments):
            assignments = [one for one in assignments if one.key not in owned]
            refused |= owned
        rows = {record.key: record for record in leaving}

        def confirm(assignment: DeviceAssignment) -> None:
            # Under the lock of the device: another manager that took over this host, or changed the row, may have given
            # the device to another instance.
            check()
            self._rows.check(rows[assignment.key])

        began = time.perf_counter()
        answers = {**self._driver.unclaim(assignments, confirm), **refused}
        self._tell_of_wipes(leaving, answers, time.perf_counter() - began)
        return answers

    def _owned_in_part(self, assignments: Sequence[DeviceAssignment]) -> dict[DeviceKey, exception.DriverError]:
        """Find the devices of which others own parts, with the errors that keep work on them from reaching the parts.

        Only rows of an older release can say so. The audit reports them.
        """
        found: dict[DeviceKey, exception.DriverError] = {}
        with contextlib.suppress(exception.StartIsOver):    # the driver asks which guests have such a device
            for one in assignments:
                if (who := self._ledger.now.owners_of_parts(one.key)) is not None:
                    found[one.key] = exception.DeviceInUse(
                        *one.key, f'{who}, and work on this device may affect that one')
        return found

    def _tell_of_wipes(self, leaving: Sequence[Record], answers: Answers, seconds: float) -> None:
        if self._metering.meter is None:
            return
        # A device that was only claimed had no guest, and needs no wipe while its proof is valid.
        tried = [record for record in leaving if record.kind in self._wiped and record.was_realized]
        for record in tried:
            error = answers[record.key]
            if error is None:
                # They were wiped one after the other.
                self._metering.tell(Meter.wiped, record.kind, _size_of(record), seconds / len(tried))
            elif is_failure(error):
                self._metering.tell(Meter.wipe_failed, record.kind)

    def end(self, leaving: Sequence[Record], answers: Answers) -> None:
        """Remove the rows of the devices that were taken back, and free them. The caller works on the instance.

        The row of a device that keeps bytes, that was only claimed and cannot be taken back, ends too. No guest of the
        instance had the device, so nothing on it is the instance's, and no wipe for the instance may touch it. It stays
        withheld until something proves that it is clean. If a row has changed since :meth:`take_back`, all rows stay.

        :raises DriverError: as :meth:`give_back`
        :raises StoreError: the rows stay, or it is unknown; the devices stay held
        """
        done = [record for record in leaving if answers[record.key] is None]
        never_had = [record for record in leaving if self._never_had(record, answers[record.key])]
        if never_had:
            self._driver.disprove([record.key for record in never_had])         # first: nobody gets it as clean
            self._rows.write(Changes(delete=tuple(never_had)))
            self._withheld.went_back([record.key for record in never_had])
            for record in never_had:
                self._ledger.retire(record.instance_uuid, record.key, True)
            answers = {key: error for key, error in answers.items() if key not in {one.key for one in never_had}}
        if done:
            wiped = self._driver.wipes_of([record.key for record in done if record.kind in self._wiped])
            self._rows.write(Changes(delete=tuple(done), note=Note(wiped=wiped)) if wiped
                             else Changes(delete=tuple(done)))
            removed = {record.key for record in done if details.from_text(record.details).goes_with_its_assignment}
            self._withheld.went_back([record.key for record in done])
            self._ledger.free_of(done[0].instance_uuid, [record.key for record in done], removed)
        for key, error in answers.items():
            if is_failure(error):
                self._withheld.did_not_go_back(key, error.reason)
        for error in answers.values():
            if error is not None:
                raise error

    def _never_had(self, record: Record, error: exception.DriverError | None) -> bool:
        """Whether a device that cannot be taken back was only claimed, so that no guest of the instance ever had it."""
        return record.kind in self._wiped and not record.was_realized and _is_lost(error)


def _is_lost(error: exception.DriverError | None) -> bool:
    return is_failure(error) or isinstance(error, (exception.NotProven, exception.DeviceGone))


def is_failure(error: exception.DeviceTrackError | None) -> TypeGuard[exception.UnclaimFailed]:
    """Whether an error says that giving a device back was tried and failed."""
    return isinstance(error, exception.UnclaimFailed) and not isinstance(error, exception.UsersUnknown)


def _size_of(record: Record) -> int | None:
    size: int | None = getattr(details.from_text(record.details), 'size_bytes', None)
    return size


def _readable(records: Sequence[Record]) -> tuple[list[DeviceAssignment], dict[DeviceKey, exception.DriverError]]:
    """The assignments of rows, and an error for each unreadable row, which must not stop the others."""
    assignments: list[DeviceAssignment] = []
    unreadable: dict[DeviceKey, exception.DriverError] = {}
    for record in records:
        assignment = DeviceAssignment.from_record(record)
        try:
            _ = assignment.details
        except (exception.UnknownObject, exception.MalformedObject) as error:
            unreadable[record.key] = exception.UnclaimFailed(*record.key, f'its row cannot be read: {error}')
        else:
            assignments.append(assignment)
    return assignments, unreadable
