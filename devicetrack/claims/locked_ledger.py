"""The ledger of a started host, behind its lock: the only module that takes that lock.

Nothing but the ledger is touched while the lock is held: no SQL, no libvirt, no file, no HTTP. ``testing.no_io``
enforces that wherever it is switched on.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import functools
import itertools
from types import TracebackType
from typing import Any
from typing import Concatenate
from typing import ParamSpec
from typing import TypeVar

from oslo_concurrency import lockutils

from devicetrack import vocabulary
from devicetrack.claims import locks
from devicetrack.engine import opening
from devicetrack.engine.ledger import DeviceState
from devicetrack.engine.ledger import GONE
from devicetrack.engine.ledger import Hold
from devicetrack.engine.ledger import Ledger
from devicetrack.engine.ledger import PoolState
from devicetrack.engine.views import Views
from devicetrack.engine.withholding import Marks
from devicetrack.engine.withholding import Target
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Record

_NUMBERS = itertools.count()

Arguments = ParamSpec('Arguments')
Result = TypeVar('Result')


class LedgerLock:
    """A fair lock between threads. Kept, because making a lock costs more than taking it."""

    __slots__ = ('_lock',)

    def __init__(self) -> None:
        # The name only has to be unique: oslo.concurrency keeps fair locks by name.
        self._lock: Any = lockutils.internal_fair_lock(f'devicetrack-ledger-{next(_NUMBERS)}')

    def __enter__(self) -> None:
        if locks.TRACE.wanted:
            locks.TRACE.asks(locks.LEDGER)
        self._lock.acquire_write_lock()
        if locks.TRACE.wanted:
            locks.TRACE.held.append(locks.LEDGER)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        if locks.TRACE.wanted:
            locks.TRACE.gives_back(locks.LEDGER)
        self._lock.release_write_lock()


def _locked(method: Callable[Concatenate[Ledger, Arguments], Result],
            ) -> Callable[Concatenate[LockedLedger, Arguments], Result]:
    """The ledger's method of the same name, under the lock."""
    name = method.__name__

    @functools.wraps(method)
    def locked(self: LockedLedger, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        with self._lock:
            result: Result = getattr(self._ledger, name)(*args, **kwargs)
            return result

    return locked


class LockedLedger:
    """The ledger's calls, each under the lock, and those that take several steps in one moment.

    :param policy: ``pack`` or ``spread``
    :param provider_uuid_of: the UUID of the provider with this stable name; it does no I/O
    """

    def __init__(self, policy: str, provider_uuid_of: Callable[[str], str]) -> None:
        self._policy, self._provider_uuid_of = policy, provider_uuid_of
        self._lock = LedgerLock()
        self._ledger = Ledger(policy, provider_uuid_of)

    take = _locked(Ledger.take)
    exchange = _locked(Ledger.exchange)
    name = _locked(Ledger.name)
    put_back = _locked(Ledger.put_back)
    realized = _locked(Ledger.realized)
    releasing = _locked(Ledger.releasing)
    free = _locked(Ledger.free)
    let_go = _locked(Ledger.let_go)
    hold = _locked(Ledger.hold)
    not_held = _locked(Ledger.not_held)
    without_row = _locked(Ledger.without_row)
    free_without_row = _locked(Ledger.free_without_row)
    trust_rows = _locked(Ledger.trust_rows)
    has_claim_of_rows = _locked(Ledger.has_claim_of_rows)
    has_claim_of_this_process = _locked(Ledger.has_claim_of_this_process)
    counted_now = _locked(Ledger.counted_now)
    read_parents = _locked(Ledger.read_parents)
    unproven = _locked(Ledger.unproven)
    proven = _locked(Ledger.proven)
    withheld = _locked(Ledger.withheld)
    reasons = _locked(Ledger.reasons)
    device = _locked(Ledger.device)
    devices = _locked(Ledger.devices)
    parents = _locked(Ledger.parents)
    counted_classes = _locked(Ledger.counted_classes)
    available = _locked(Ledger.available)
    shortages = _locked(Ledger.shortages)

    # -- several steps in one moment ----------------------------------------------------------------------------------

    def open(self, views: Views, marks: Marks) -> None:
        """Replace the ledger by the one that views and operators' reasons make."""
        ledger = opening.open_ledger(self._policy, self._provider_uuid_of, views, marks)
        with self._lock:
            self._ledger = ledger

    @contextlib.contextmanager
    def put_back_on_error(self, hold: Hold) -> Iterator[None]:
        """For what is done with a hold before anything of it is recorded."""
        try:
            yield
        except BaseException:
            self.put_back(hold)
            raise

    def distrust(self, hold: Hold, owned: Iterable[DeviceKey]) -> None:
        """Put a hold back and withhold the devices that have owners by the store."""
        with self._lock:
            self._ledger.put_back(hold)
            self._ledger.withhold_free(owned, vocabulary.IN_DOUBT)

    def forget(self, key: DeviceKey) -> None:
        """Free a device that the host does not have any more."""
        with self._lock:
            self._ledger.withhold(key, GONE)
            self._ledger.free((key,))

    def hold_unless_taken(self, records: Sequence[Record], owners: Mapping[DeviceKey, str | None]) -> DeviceKey | None:
        """Hold devices for new rows of one instance, or nothing when one of them is held for somebody else.

        :param owners: by device, the instance that the rows have it for until now
        :returns: the device that is being taken or given back just now
        """
        with self._lock:
            for record in records:
                device = self._ledger.device(record.key)
                if device is not None and device.instance_uuid not in (None, owners[record.key]):
                    return record.key
            self._ledger.hold(records)
            return None

    def hold_missing(self, records: Sequence[Record]) -> None:
        """Hold those of an instance's rows that are not held for it."""
        with self._lock:
            missing = self._ledger.not_held(records)
            if missing:
                self._ledger.hold(missing)

    @contextlib.contextmanager
    def watching(self) -> Iterator[int]:
        """Have the ledger note what changes while the host is read."""
        with self._lock:
            watch = self._ledger.watch()
        try:
            yield watch
        finally:
            with self._lock:
                self._ledger.unwatch(watch)

    def read_inventory(self, looks: Sequence[Views], watch: int) -> None:
        """Take over the last of an audit's looks, and withhold what all of them show in use without a row."""
        with self._lock:
            self._ledger.read_inventory(looks[-1].inventory, watch)
            opening.withhold_by_sight(self._ledger, looks)

    def admit(self, keys: Iterable[DeviceKey], reason: str) -> None:
        """End one reason of several devices."""
        with self._lock:
            for key in keys:
                self._ledger.admit(key, reason)

    def stand(self, target: Target, reason: str) -> None:
        """Withhold a device or a parent until :meth:`stand_down`."""
        with self._lock:
            opening.stand(self._ledger, target, reason)

    def stand_down(self, target: Target, reason: str, stays: bool = False) -> None:
        """End what :meth:`stand` began; a device that ``stays`` is withheld still, until an audit admits it."""
        with self._lock:
            opening.stand_down(self._ledger, target, reason)
            if stays:
                self._ledger.withhold(DeviceKey(target.kind, target.name), reason)

    def pools_and_devices(self, keys: Iterable[DeviceKey]) -> tuple[list[PoolState], list[DeviceState]]:
        """Every pool, and of these devices those that are known."""
        with self._lock:
            devices = [self._ledger.device(key) for key in keys]
            return self._ledger.pools(), [device for device in devices if device is not None]
