"""Wipes devices in the background, a bounded number at a time. No start and no audit waits for a wipe.

A thread here gives back a device that keeps bytes by the steps of a release, one device at a time. Until the wipe is
proven, the row says that the device is on its way back, and the ledger holds it. If a wipe ends early (an error, the
end of the process, another manager), that stays so, and the next audit starts the wipe again. The wipe itself is a
child process with the device's lock: see :meth:`devicetrack.virt.driver.VirtDriver.unclaim`.

The thread holds no lock of this process while it wipes. It takes the lock of the instance only to remove the row.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import threading
from typing import Final
from typing import NamedTuple

from devicetrack import exception
from devicetrack import log
from devicetrack import vocabulary
from devicetrack.claims import locks
from devicetrack.claims.gate import Gate
from devicetrack.claims.giving import Giving
from devicetrack.claims.giving import is_failure
from devicetrack.claims.host_state import Wiping
from devicetrack.claims.locked_ledger import LockedLedger
from devicetrack.claims.rows import Rows
from devicetrack.claims.withheld_devices import WithheldDevices
from devicetrack.claims.workers import Workers
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Record
from devicetrack.objects.values import WipeProgress
from devicetrack.virt.driver import VirtDriver

LOG = log.logger(__name__)

# The largest number of audits between two tries of a wipe that fails.
_RAREST: Final = 64


class Wipe(NamedTuple):
    """A device on its way back that needs a wipe before anybody gets it.

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


class _Stopped(exception.DeviceTrackError):
    """The manager releases the host; the next one continues."""


class Wipes:
    """The wipes of a started host in the background.

    :param at_once: the largest number of wipes at the same time
    """

    def __init__(self, at_once: int, driver: VirtDriver, ledger: LockedLedger, rows: Rows, gate: Gate,
                 withheld: WithheldDevices, giving: Giving) -> None:
        self._driver, self._ledger, self._rows, self._gate = driver, ledger, rows, gate
        self._withheld, self._giving = withheld, giving
        self._kinds = driver.wiped_kinds()
        self._lock = locks.Lock(locks.BACKGROUND)           # for the fields below; no call while it is held
        self._waiting: dict[DeviceKey, Record] = {}
        self._working: dict[DeviceKey, _Work] = {}
        # The claim of each device, and why the last try did not give it back.
        self._refused: dict[DeviceKey, tuple[str, str]] = {}
        self._due: dict[DeviceKey, int] = {}                    # the audit that tries a device again
        self._audits = 0
        self._begun = False
        self._closed = False
        self._workers = Workers('devicetrack-wipes', at_once, self._next, self._wipe)

    # -- handing over -------------------------------------------------------------------------------------------------

    def give_back(self, leaving: Sequence[Record]) -> None:
        """Give back at once the devices that need no wipe, and queue the others; :meth:`go_on` starts the wipes.

        A device whose last tries failed waits until its next try is due. The caller works on the instance.

        :raises DriverError: as :meth:`.Giving.give_back`, for the devices that need no wipe
        """
        wiped = [record for record in leaving if record.kind in self._kinds]
        failures = self._withheld.failures if wiped else {}
        with self._lock.held():
            for record in wiped:
                key = record.key
                if self._refused.get(key, ('', ''))[0] != record.claim_id:
                    self._refused.pop(key, None)                # it was about an earlier owner
                is_due = key not in failures or self._due.get(key, 0) <= self._audits
                if is_due and key not in self._working:
                    self._waiting[key] = record                 # the row as it is now
        if wiped:
            self._ledger.releasing_of(wiped[0].instance_uuid, [record.key for record in wiped])
        self._giving.give_back([record for record in leaving if record.kind not in self._kinds])

    def leave(self, records: Iterable[Record]) -> None:
        """Begin no wipe of these devices, since the caller gives them back itself. It works on the instance."""
        with self._lock.held():
            for record in records:
                self._waiting.pop(record.key, None)

    def takes(self, records: Sequence[Record]) -> bool:
        """Whether all these devices need a wipe before they go back."""
        return all(record.kind in self._kinds for record in records)

    def try_now(self, keys: Iterable[DeviceKey]) -> None:
        """Allow another try at once for devices that wait for another audit, because an operator says so."""
        with self._lock.held():
            for key in keys:
                self._due.pop(key, None)

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
    def giving_back(self, instance_uuid: str, wait: bool) -> Iterator[None]:
        """Work on an instance whose devices the block gives back, and start the wipes that it leaves waiting.

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
                return
        finally:
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
            key = next(iter(self._waiting))
            work = self._working[key] = _Work(self._waiting.pop(key), threading.get_ident(), threading.Event())
            return work

    def _wipe(self, work: _Work) -> None:
        record = work.record
        try:
            answers = self._giving.take_back([record], self._check_open)
            with self._rows.working(record.instance_uuid):
                self._check_open()
                self._giving.end([record], answers)
            with self._lock.held():
                self._refused.pop(record.key, None)
                self._due.pop(record.key, None)
        except _Stopped:
            pass
        except exception.DeviceTrackError as error:
            with self._lock.held():
                self._refused[record.key] = (record.claim_id, str(error))
            if is_failure(error):
                self._put_off(record.key)
            LOG.warning('%(kind)s %(identifier)s stays held: %(error)s',
                        {'kind': record.kind, 'identifier': record.identifier, 'error': error})
        except Exception as error:
            # A mistake in the code holds the device as a failed wipe does; the log shows where.
            LOG.exception('%(kind)s %(identifier)s stays held',
                          {'kind': record.kind, 'identifier': record.identifier})
            self._withheld.did_not_go_back(record.key, f'an unexpected {type(error).__name__}: the log has more')
            self._put_off(record.key)
        finally:
            with self._lock.held():
                del self._working[record.key]
            work.ended.set()

    def _check_open(self) -> None:
        if self._closed:
            raise _Stopped

    def _put_off(self, key: DeviceKey) -> None:
        """Let more audits pass before each further try."""
        failed = self._withheld.failures.get(key)
        if failed is not None:
            with self._lock.held():
                self._due[key] = self._audits + min(1 << min(failed.tries - 1, _RAREST), _RAREST)

    # -- questions ----------------------------------------------------------------------------------------------------

    def is_well_under_way(self, key: DeviceKey) -> bool:
        """Whether a device is being wiped here or waits for it, and no try has ended without success."""
        with self._lock.held():
            return (key in self._waiting or key in self._working) and key not in self._refused

    def news_of(self, key: DeviceKey) -> str:
        """The news about a device that does not come back: its running wipe, and why the last try ended."""
        progress = self._driver.wiping([key]).get(key)
        with self._lock.held():
            refused = self._refused.get(key)
        said = [f'it is being wiped: {progress}'] if progress is not None else []
        if refused is not None and key not in self._withheld.failures:
            said.append(f'the last try: {refused[1]}')
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
        """The progress of the devices on their way back by these rows that need a wipe. Quick."""
        rows = [record for record in records if record.state == vocabulary.RELEASING and record.kind in self._kinds]
        progress = self._driver.wiping([record.key for record in rows]) if rows else {}
        failures = self._withheld.failures
        with self._lock.held():
            tried = {key: (0, why) for key, (_claim, why) in self._refused.items()}
        tried |= {key: (failure.tries, failure.detail) for key, failure in failures.items()}
        return [Wipe(record.key, record.instance_uuid, progress.get(record.key), *tried.get(record.key, ()))
                for record in rows]
