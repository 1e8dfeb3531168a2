"""Wipes in the background: a bounded number side by side, and no start and no audit waits for one.

A device that keeps bytes is given back by the steps that a release takes, one device at a time, in a thread here. Its
row says that it is on its way back, and the ledger holds it, until the wipe is proven. Whatever ends a wipe early (an
error, the end of the process, another manager) leaves it so, and the next audit hands it over again. The wipe itself is
a child process with the device's lock: see :meth:`devicetrack.virt.driver.VirtDriver.unclaim`.

The thread holds no lock of this process while it wipes. It works on the instance, as every call that changes rows does,
only to remove the row.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Sequence
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
from devicetrack.claims.withheld import WithheldDevices
from devicetrack.claims.workers import Workers
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Record
from devicetrack.objects.values import WipeProgress
from devicetrack.virt.driver import VirtDriver

LOG = log.logger(__name__)

# After so many audits a device whose wipe fails is tried again at the latest.
_RAREST: Final = 64


class Wipe(NamedTuple):
    """A device that is on its way back and is wiped before anybody gets it.

    ``progress`` is None while it waits for its turn, and where the driver does not know. ``failed`` says how often
    giving it back has failed. ``reason`` says why the last try ended without the device, also where that was no failure
    (a domain names it still), and is '' when nothing was tried.
    """

    device: DeviceKey
    instance_uuid: str
    progress: WipeProgress | None
    failed: int = 0
    reason: str = ''


class _Work(NamedTuple):
    record: Record
    ended: threading.Event


class _Stopped(exception.DeviceTrackError):
    """The manager lets go of the host; the next one goes on."""


class Wipes:
    """The wipes of a started host in the background.

    :param at_once: how many are wiped side by side at most
    """

    def __init__(self, at_once: int, driver: VirtDriver, ledger: LockedLedger, rows: Rows, gate: Gate,
                 withheld: WithheldDevices, giving: Giving) -> None:
        self._driver, self._ledger, self._rows, self._gate = driver, ledger, rows, gate
        self._withheld, self._giving = withheld, giving
        self._kinds = driver.wiped_kinds()
        self._lock = locks.FairLock(locks.BACKGROUND)           # of what follows; nothing is called while it is held
        self._waiting: dict[DeviceKey, Record] = {}
        self._working: dict[DeviceKey, _Work] = {}
        # Why the last try ended without the device, and the claim that it is on its way back from.
        self._refused: dict[DeviceKey, tuple[str, str]] = {}
        self._due: dict[DeviceKey, int] = {}                    # the audit that tries a device again
        self._audits = 0
        self._begun = False
        self._closed = False
        self._workers = Workers('devicetrack-wipes', at_once, self._next, self._wipe)

    # -- handing over -------------------------------------------------------------------------------------------------

    def give_back(self, leaving: Sequence[Record]) -> None:
        """Give back at once what is not wiped, and hand over the rest; :meth:`go_on` begins with it.

        A device whose last tries failed is passed over until its next one is due. For who works on the instance.

        :raises DriverError: as :meth:`.Giving.give_back`, of what is not wiped
        """
        wiped = [record for record in leaving if record.kind in self._kinds]
        failures = self._withheld.failures if wiped else {}
        with self._lock.held():
            for record in wiped:
                key = record.key
                if self._refused.get(key, ('', ''))[0] != record.claim_id:
                    self._refused.pop(key, None)                # that was an earlier owner's
                is_due = key not in failures or self._due.get(key, 0) <= self._audits
                if is_due and key not in self._working:
                    self._waiting[key] = record                 # as the row is now
        self._ledger.releasing([record.key for record in wiped])
        self._giving.give_back([record for record in leaving if record.kind not in self._kinds])

    def takes(self, records: Sequence[Record]) -> bool:
        """Whether all of some devices are wiped before they are given back."""
        return all(record.kind in self._kinds for record in records)

    def try_now(self, keys: Iterable[DeviceKey]) -> None:
        """Let devices be tried again that wait for another audit, because an operator says so."""
        with self._lock.held():
            for key in keys:
                self._due.pop(key, None)

    def next_audit(self) -> None:
        """An audit begins; tries are so many audits apart, for no clock decides anything."""
        with self._lock.held():
            self._audits += 1

    # -- working ------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Wipe from now on, until :meth:`close`. A command that starts a host for a moment does not."""
        self._begun = True
        self.go_on()

    def go_on(self) -> None:
        """Have the threads begin with the waiting wipes. Quick. Not for a caller that works on an instance."""
        with self._lock.held():
            count = len(self._waiting) if self._begun and not self._closed else 0
        for _ in range(count):
            self._workers.start()

    def wait(self) -> None:
        """Wait until all wipes have ended and none waits. For tests, and for programs that stop a service."""
        self._workers.wait()

    def wait_for(self, instance_uuid: str) -> None:
        """Leave the devices of an instance to the caller, once none of them is being wiped any more.

        Not for who works on an instance.
        """
        while True:
            with self._lock.held():
                for key in [key for key, record in self._waiting.items() if record.instance_uuid == instance_uuid]:
                    del self._waiting[key]
                working = self._work_on(instance_uuid)
            if not working:
                return
            for work in working:
                work.ended.wait()

    def is_wiping(self, instance_uuid: str) -> bool:
        """Whether a device of an instance is being wiped."""
        with self._lock.held():
            return bool(self._work_on(instance_uuid))

    def _work_on(self, instance_uuid: str) -> list[_Work]:
        return [work for work in self._working.values() if work.record.instance_uuid == instance_uuid]

    def close(self) -> None:
        """Begin no other wipe. The running wipes go on to their end, and nobody waits for them.

        Its row stays: the next manager finds it.
        """
        self._closed = True

    def _next(self) -> _Work | None:
        with self._lock.held():
            if not self._waiting or self._closed or self._gate.report_only is not None:
                return None
            key = next(iter(self._waiting))
            work = self._working[key] = _Work(self._waiting.pop(key), threading.Event())
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
            # A mistake somewhere keeps the device from coming back as a broken device does; the log has where.
            LOG.exception('%(kind)s %(identifier)s stays held',
                          {'kind': record.kind, 'identifier': record.identifier})
            self._withheld.did_not_go_back(record.key, f'an unexpected {type(error).__name__}, which the log tells of')
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
        """Whether a device is being wiped here, or waits for that, and no try has ended without it so far."""
        with self._lock.held():
            return (key in self._waiting or key in self._working) and key not in self._refused

    def news_of(self, key: DeviceKey) -> str:
        """What is to be said of a device that does not come back: who is at it, and why the last try ended."""
        progress = self._driver.wiping([key]).get(key)
        with self._lock.held():
            refused = self._refused.get(key)
        said = [f'it is being wiped: {progress}'] if progress is not None else []
        if refused is not None and key not in self._withheld.failures:
            said.append(f'the last try: {refused[1]}')
        return '; '.join(said)

    def counted(self) -> Wiping:
        """How many devices are being wiped here, how far each is, and how many wait for that. Quick."""
        with self._lock.held():
            working, waiting = list(self._working), len(self._waiting)
        progress = self._driver.wiping(working) if working else {}
        return Wiping([progress.get(key) for key in working], waiting)

    def works_on(self, keys: Iterable[DeviceKey]) -> bool:
        """Whether one of some devices is being wiped here."""
        with self._lock.held():
            return any(key in self._working for key in keys)

    def of(self, records: Collection[Record]) -> list[Wipe]:
        """How far the devices are that are on their way back by these rows and have to be wiped. Quick."""
        rows = [record for record in records if record.state == vocabulary.RELEASING and record.kind in self._kinds]
        progress = self._driver.wiping([record.key for record in rows]) if rows else {}
        failures = self._withheld.failures
        with self._lock.held():
            tried = {key: (0, why) for key, (_claim, why) in self._refused.items()}
        tried |= {key: (failure.tries, failure.detail) for key, failure in failures.items()}
        return [Wipe(record.key, record.instance_uuid, progress.get(record.key), *tried.get(record.key, ()))
                for record in rows]
