"""The end of the give path: devices leave the host, then their rows leave the store, then they are free.

No start and no audit waits for a wipe. A thread gives back a device that stores data by the steps of a release, one
device at a time. Until the wipe is proven, the row says that the device is being released, and the ledger holds it. If
a wipe ends early (an error, the end of the process, another manager), that stays so, and the next audit starts the wipe
again. The wipe itself is a child process with the device's lock: see
:meth:`devicetrack.virt.driver.VirtDriver.unclaim`. The thread holds no lock of this process while it wipes. It takes
the lock of the instance only to remove the row.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import threading
import time
from typing import NamedTuple
from typing import TypeGuard

from devicetrack import exception
from devicetrack import log
from devicetrack import vocabulary
from devicetrack.claims import locks
from devicetrack.claims.gate import Gate
from devicetrack.claims.host import ThisHost
from devicetrack.claims.metering import Meter
from devicetrack.claims.metering import Wiping
from devicetrack.claims.rows import Rows
from devicetrack.claims.withheld import pause
from devicetrack.claims.withheld import WithheldDevices
from devicetrack.claims.workers import Workers
from devicetrack.objects import details
from devicetrack.objects import DeviceAssignment
from devicetrack.objects.event import Note
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Record
from devicetrack.objects.values import WipeProgress
from devicetrack.store.api import Changes

LOG = log.logger(__name__)


# For each device None, or the reason why it was not taken back.
Answers = Mapping[DeviceKey, exception.DriverError | None]


class Releasing:
    """Releases devices whose rows say that they are being released."""

    def __init__(self, host: ThisHost, rows: Rows, withheld: WithheldDevices) -> None:
        self._ledger, self._rows, self._driver, self._withheld = rows.ledger, rows, host.driver, withheld
        self._metering, self._wiped = host.metering, host.driver.wiped_kinds()

    def release(self, leaving: Sequence[Record]) -> None:
        """Take devices of one instance from the host, and their rows from the store. The caller works on the instance.

        :raises DriverError: some devices stay held, and this is the first error; the others went back
        """
        if leaving:
            self.end(leaving, self.leave_host(leaving))

    def vacate(self, left: Sequence[Record]) -> None:
        """As :meth:`.VirtDriver.vacate`.

        :raises DriverError: as that
        """
        for record in left:
            self._driver.vacate(DeviceAssignment.from_record(record))

    def leave_host(self, leaving: Sequence[Record], check: Callable[[], None] = lambda: None) -> Answers:
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

        The row of a device that stores data, that was only claimed and cannot be taken back, ends too. No guest of the
        instance had the device, so nothing on it is the instance's, and no wipe for the instance may touch it. It stays
        withheld until something proves that it is clean. If a row has changed since :meth:`leave_host`, all rows stay.

        :raises DriverError: as :meth:`release`
        :raises StoreError: the rows stay, or it is unknown; the devices stay held
        """
        done = [record for record in leaving if answers[record.key] is None]
        never_had = [record for record in leaving if self._never_had(record, answers[record.key])]
        if never_had:
            self.end_as_it_is(never_had, Changes(delete=tuple(never_had)), True)
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

    def end_as_it_is(self, records: Sequence[Record], changes: Changes, has_bytes: bool) -> None:
        """End rows of devices that no guest of their instance had, without a wipe.

        :param changes: end the rows; they may also begin others
        :param has_bytes: the devices may have bytes of others, so they stay withheld as unproven
        :raises DriverError, StoreError: the rows stay, or it is unknown; the devices stay held
        """
        keys = [record.key for record in records]
        if has_bytes:
            self._driver.disprove(keys)         # first: nobody gets it as clean
        self._rows.write(changes)
        self._withheld.went_back(keys)
        for record in records:
            self._ledger.retire(record.instance_uuid, record.key, has_bytes)

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


class Wipe(NamedTuple):
    """A device being released that needs a wipe before anybody gets it.

    ``progress`` is None while the device waits for its turn, or if the driver does not know it. ``failed`` counts the
    failed tries to give it back. ``reason`` says why the last try did not give it back, also if that was no failure (a
    domain still names it), and is '' if there was no try.
    """

    device: DeviceKey
    instance_uuid: str
    progress: WipeProgress | None
    failed: int = 0
    reason: str = ''


class _Work(NamedTuple):
    record: Record
    thread: int
    ended: threading.Event


class _Try(NamedTuple):
    """The last try to wipe a device of a claim that did not release it: why, and the audit that tries it again."""

    claim_id: str
    why: str
    due: int = 0


class _Stopped(exception.DeviceTrackError):
    """The manager releases the host; the next one continues."""


class Wipes:
    """The wipes of a started host in the background.

    :param interrupted: called with an exception from outside that reaches a thread
    :param then: called by a thread after its work on a device
    """

    def __init__(self, host: ThisHost, rows: Rows, gate: Gate, withheld: WithheldDevices, releasing: Releasing,
                 interrupted: Callable[[BaseException], None], then: Callable[[], object]) -> None:
        self._driver, self._ledger, self._rows, self._gate = host.driver, rows.ledger, rows, gate
        self._withheld, self._releasing = withheld, releasing
        self._kinds = host.driver.wiped_kinds()
        self._lock = locks.Lock(locks.BACKGROUND)           # for the fields below; no call while it is held
        self._waiting: dict[DeviceKey, Record] = {}
        self._working: dict[DeviceKey, _Work] = {}
        self._tried: dict[DeviceKey, _Try] = {}
        self._audits = 0
        self._begun = False
        self._closed = False
        self._workers = Workers('devicetrack-wipes', host.options.wipes_at_once, self._next, self._wipe,
                                interrupted, then)

    # -- handing over -------------------------------------------------------------------------------------------------

    def release(self, leaving: Sequence[Record]) -> None:
        """Release at once the devices that need no wipe, and queue the others; :meth:`go_on` starts the wipes.

        A device whose last tries failed waits until its next try is due. The caller works on the instance.

        :raises DriverError: as :meth:`.Releasing.release`, for the devices that need no wipe
        """
        wiped = [record for record in leaving if record.kind in self._kinds]
        with self._lock.held():
            for record in wiped:
                tried = self._tried.get(record.key)
                if tried is not None and tried.claim_id != record.claim_id:
                    del self._tried[record.key]                 # it was about an earlier owner
                elif tried is not None and tried.due > self._audits:
                    continue
                # The row as it is now. A wipe that goes on may find a guest on the device that has left it by now.
                self._waiting[record.key] = record
        if wiped:
            self._ledger.releasing_of(wiped[0].instance_uuid, [record.key for record in wiped])
        self._releasing.release([record for record in leaving if record.kind not in self._kinds])

    def leave(self, records: Iterable[Record]) -> None:
        """Begin no wipe of these devices, since the caller releases them itself. It works on the instance."""
        with self._lock.held():
            for record in records:
                self._waiting.pop(record.key, None)

    def takes(self, records: Sequence[Record]) -> bool:
        """Whether all these devices need a wipe before they go back."""
        return all(record.kind in self._kinds for record in records)

    def try_now(self, keys: Iterable[DeviceKey]) -> None:
        """Allow another try at once for devices that wait for another audit, because an operator says so."""
        with self._lock.held():
            for key in self._tried.keys() & set(keys):
                self._tried[key] = self._tried[key]._replace(due=0)

    def next_audit(self) -> None:
        """Count an audit that begins. Audits and not a clock decide when a try is due."""
        with self._lock.held():
            self._audits += 1

    # -- working ------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Wipe from now on, until :meth:`close`. A command that starts a host for a moment does not call it."""
        self._begun = True
        self.go_on()

    def go_on(self) -> None:
        """Let the threads start the waiting wipes. Quick. The caller must not work on an instance."""
        with self._lock.held():
            count = len(self._waiting) if self._begun and not self._closed else 0
        if count:
            self._workers.start(count)

    def wait(self) -> None:
        """Wait until all wipes have ended and none waits. For tests, and for programs that stop a service.

        :raises ReentrantCall: a wipe would wait for the calling thread, which works on an instance or is that of a wipe
        """
        self._rows.check_not_inside()
        self._workers.wait()

    def wait_for(self, instance_uuid: str) -> None:
        """Wait until no device of an instance is being wiped, and leave its waiting devices to the caller.

        :raises ReentrantCall: the calling thread works on this instance, or wipes its device; nothing was changed
        """
        self._rows.check_not_inside(instance_uuid)
        with self._lock.held():
            if any(work.thread == threading.get_ident() for work in self._work_on(instance_uuid)):
                raise exception.ReentrantCall(locks.BACKGROUND)
        while working := self._leave_all(instance_uuid):
            for work in working:
                work.ended.wait()

    def _leave_all(self, instance_uuid: str) -> list[_Work]:
        """Leave the waiting devices of an instance to the caller. Return the work on the others."""
        with self._lock.held():
            for key in [key for key, record in self._waiting.items() if record.instance_uuid == instance_uuid]:
                del self._waiting[key]
            return self._work_on(instance_uuid)

    @contextlib.contextmanager
    def releasing(self, instance_uuid: str, wait: bool) -> Iterator[None]:
        """Work on an instance whose devices the block releases, and start the wipes that it leaves waiting.

        :param wait: the block wipes devices itself, so first wait until none of them is wiped in the background
        """
        try:
            while True:
                if wait:
                    self.wait_for(instance_uuid)
                with self._rows.working(instance_uuid):
                    if wait and self._leave_all(instance_uuid):
                        continue                # an audit has just begun to wipe it
                    yield
                break
        except Exception:                       # an interrupt ends this start, and may have left a lock of it held
            self.go_on()
            raise
        self.go_on()

    def is_wiping(self, instance_uuid: str) -> bool:
        """Whether a device of an instance is being wiped."""
        with self._lock.held():
            return bool(self._work_on(instance_uuid))

    def _work_on(self, instance_uuid: str) -> list[_Work]:
        return [work for work in self._working.values() if work.record.instance_uuid == instance_uuid]

    def close(self) -> None:
        """Begin no other wipe. The running wipes go on to their end, and nobody waits for them.

        The rows stay, and the next manager finds them.
        """
        self._closed = True

    def _next(self) -> _Work | None:
        with self._lock.held():
            if not self._waiting or self._closed or self._gate.report_only is not None:
                return None
            key = next((key for key in self._waiting if key not in self._working), None)
            if key is None:
                return None
            work = self._working[key] = _Work(self._waiting.pop(key), threading.get_ident(), threading.Event())
            return work

    def _wipe(self, work: _Work) -> None:
        record = work.record
        try:
            answers = self._releasing.leave_host([record], self._check_open)
            with self._rows.working(record.instance_uuid):
                self._check_open()
                self._releasing.end([record], answers)
            with self._lock.held():
                self._tried.pop(record.key, None)
            self._wait_no_more(record)
        except _Stopped:
            pass
        except exception.DeviceTrackError as error:
            self._note_try(record, str(error), is_failure(error))
            LOG.warning('%(kind)s/%(identifier)s stays held: %(error)s',
                        {'kind': record.kind, 'identifier': record.identifier, 'error': error})
        except MemoryError:
            raise                               # as any interrupt
        except Exception as error:
            # A mistake in the code holds the device as a failed wipe does; the log shows where.
            LOG.exception('%(kind)s/%(identifier)s stays held',
                          {'kind': record.kind, 'identifier': record.identifier})
            why = f'an unexpected {type(error).__name__}: the log has more'
            self._withheld.did_not_go_back(record.key, why)
            self._note_try(record, why, True)
        finally:
            with self._lock.held():
                del self._working[record.key]
            work.ended.set()

    def _note_try(self, record: Record, why: str, failed: bool) -> None:
        """Note a try without success. More audits pass after each failure before the next one."""
        failure = self._withheld.failures.get(record.key) if failed else None
        if failure is not None:
            self._wait_no_more(record)
        with self._lock.held():
            self._tried[record.key] = _Try(
                record.claim_id, why, 0 if failure is None else self._audits + pause(failure.tries - 1))

    def _wait_no_more(self, record: Record) -> None:
        with self._lock.held():
            if record.key in self._waiting and self._waiting[record.key].claim_id == record.claim_id:
                del self._waiting[record.key]

    def _check_open(self) -> None:
        if self._closed:
            raise _Stopped

    # -- questions ----------------------------------------------------------------------------------------------------

    def is_well_under_way(self, key: DeviceKey) -> bool:
        """Whether a device is being wiped here or waits for it, and no try has ended without success."""
        with self._lock.held():
            return (key in self._waiting or key in self._working) and key not in self._tried

    def news_of(self, key: DeviceKey) -> str:
        """The news about a device that does not come back: its running wipe, and why the last try ended."""
        progress = self._driver.wiping([key]).get(key)
        with self._lock.held():
            tried = self._tried.get(key)
        said = [f'it is being wiped: {progress}'] if progress is not None else []
        if tried is not None and key not in self._withheld.failures:
            said.append(f'the last try: {tried.why}')
        return '; '.join(said)

    def counted(self) -> Wiping:
        """The progress of each running wipe here, and the number of devices that wait. Quick."""
        with self._lock.held():
            working, waiting = list(self._working), len(self._waiting)
        progress = self._driver.wiping(working) if working else {}
        return Wiping([progress.get(key) for key in working], waiting)

    def has(self, key: DeviceKey) -> bool:
        """Whether a device is being wiped here or waits for it."""
        with self._lock.held():
            return key in self._waiting or key in self._working

    def works_on(self, keys: Iterable[DeviceKey]) -> bool:
        """Whether any of these devices is being wiped here."""
        with self._lock.held():
            return any(key in self._working for key in keys)

    def of(self, records: Collection[Record]) -> list[Wipe]:
        """The progress of the devices being released by these rows that need a wipe. Quick."""
        rows = [record for record in records if record.state == vocabulary.RELEASING and record.kind in self._kinds]
        progress = self._driver.wiping([record.key for record in rows]) if rows else {}
        failures = self._withheld.failures
        with self._lock.held():
            tried = {key: (0, one.why) for key, one in self._tried.items()}
        tried |= {key: (failure.tries, failure.detail) for key, failure in failures.items()}
        return [Wipe(record.key, record.instance_uuid, progress.get(record.key), *tried.get(record.key, ()))
                for record in rows]
