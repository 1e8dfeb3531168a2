"""The ledger of a started host, behind its lock: the only module that takes that lock.

Nothing but the ledger is touched while the lock is held: no SQL, no libvirt, no file, no HTTP. ``testing.no_io``
enforces that wherever it is switched on.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import itertools
from types import TracebackType
from typing import Any

from oslo_concurrency import lockutils

from devicetrack import vocabulary
from devicetrack.claims import locks
from devicetrack.engine import opening
from devicetrack.engine.demand import Demand
from devicetrack.engine.explanation import Shortage
from devicetrack.engine.ledger import Available
from devicetrack.engine.ledger import DeviceState
from devicetrack.engine.ledger import GONE
from devicetrack.engine.ledger import Hold
from devicetrack.engine.ledger import Ledger
from devicetrack.engine.ledger import PoolState
from devicetrack.engine.views import Views
from devicetrack.engine.withholding import Marks
from devicetrack.engine.withholding import Target
from devicetrack.objects.values import Candidate
from devicetrack.objects.values import Capacity
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Inventory
from devicetrack.objects.values import Record

_NUMBERS = itertools.count()


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


class LockedLedger:
    """Every method takes the lock, calls the ledger's method of the same name and gives the lock back.

    :param policy: ``pack`` or ``spread``
    :param provider_uuid_of: the UUID of the provider with this stable name; it does no I/O
    """

    def __init__(self, policy: str, provider_uuid_of: Callable[[str], str]) -> None:
        self._policy, self._provider_uuid_of = policy, provider_uuid_of
        self._lock = LedgerLock()
        self._ledger = Ledger(policy, provider_uuid_of)

    def open(self, views: Views, marks: Marks) -> None:
        """Replace the ledger by the one that views and operators' reasons make."""
        ledger = opening.open_ledger(self._policy, self._provider_uuid_of, views, marks)
        with self._lock:
            self._ledger = ledger

    # -- taking and giving --------------------------------------------------------------------------------------------

    def take(self, instance_uuid: str, demand: Demand, beside: bool = False) -> Hold:
        with self._lock:
            return self._ledger.take(instance_uuid, demand, beside)

    def exchange(self, key: DeviceKey, accepts: Callable[[str | None, str], bool] | None) -> Hold | None:
        with self._lock:
            return self._ledger.exchange(key, accepts)

    def name(self, hold: Hold, candidates: Sequence[Candidate]) -> Hold:
        with self._lock:
            return self._ledger.name(hold, candidates)

    def put_back(self, hold: Hold) -> None:
        with self._lock:
            self._ledger.put_back(hold)

    @contextlib.contextmanager
    def put_back_on_error(self, hold: Hold) -> Iterator[None]:
        """For what is done with a hold before anything of it is recorded."""
        try:
            yield
        except BaseException:
            self.put_back(hold)
            raise

    def distrust(self, hold: Hold, owned: Iterable[DeviceKey]) -> None:
        """Put a hold back and withhold, in the same moment, the devices that have owners by the store."""
        with self._lock:
            self._ledger.put_back(hold)
            self._ledger.withhold_free(owned, vocabulary.IN_DOUBT)

    def realized(self, key: DeviceKey, details: str, capacities: Sequence[Capacity], watch: int) -> None:
        with self._lock:
            self._ledger.realized(key, details, capacities, watch)

    def releasing(self, keys: Iterable[DeviceKey]) -> None:
        with self._lock:
            self._ledger.releasing(keys)

    def free(self, keys: Iterable[DeviceKey], removed: Collection[DeviceKey] = ()) -> None:
        with self._lock:
            self._ledger.free(keys, removed)

    def forget(self, key: DeviceKey) -> None:
        """Free a device that the host does not have any more."""
        with self._lock:
            self._ledger.withhold(key, GONE)
            self._ledger.free((key,))

    # -- what rows say ------------------------------------------------------------------------------------------------

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

    def hold(self, records: Sequence[Record]) -> None:
        with self._lock:
            self._ledger.hold(records)

    def hold_missing(self, records: Sequence[Record]) -> None:
        """Hold those of an instance's rows that are not held for it."""
        with self._lock:
            missing = self._ledger.not_held(records)
            if missing:
                self._ledger.hold(missing)

    def not_held(self, records: Iterable[Record]) -> list[Record]:
        with self._lock:
            return self._ledger.not_held(records)

    def without_row(self, records: Collection[Record], all_held: bool) -> list[str]:
        with self._lock:
            return self._ledger.without_row(records, all_held)

    def free_without_row(self, instance_uuid: str, keep: Collection[DeviceKey]) -> None:
        with self._lock:
            self._ledger.free_without_row(instance_uuid, keep)

    def trust_rows(self, keys: Iterable[DeviceKey]) -> None:
        with self._lock:
            self._ledger.trust_rows(keys)

    def has_claim_of_rows(self, instance_uuid: str) -> bool:
        with self._lock:
            return self._ledger.has_claim_of_rows(instance_uuid)

    def has_claim_of_this_process(self, instance_uuid: str) -> bool:
        with self._lock:
            return self._ledger.has_claim_of_this_process(instance_uuid)

    def counted_now(self, records: Iterable[Record]) -> list[Record]:
        """Rows with the provider and class that their devices are counted at now; a row names what its claim knew."""
        with self._lock:
            return self._ledger.counted_now(records)

    # -- what the host says -------------------------------------------------------------------------------------------

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

    def read_parents(self, inventory: Inventory, watch: int) -> None:
        with self._lock:
            self._ledger.read_parents(inventory, watch)

    # -- withheld devices ---------------------------------------------------------------------------------------------

    def admit(self, keys: Iterable[DeviceKey], reason: str) -> None:
        with self._lock:
            for key in keys:
                self._ledger.admit(key, reason)

    def stand(self, target: Target, reason: str) -> None:
        with self._lock:
            opening.stand(self._ledger, target, reason)

    def stand_down(self, target: Target, reason: str, stays: bool = False) -> None:
        """End what :meth:`stand` began; a device that ``stays`` is withheld still, until an audit admits it."""
        with self._lock:
            opening.stand_down(self._ledger, target, reason)
            if stays:
                self._ledger.withhold(DeviceKey(target.kind, target.name), reason)

    def withheld(self, reason: str) -> list[DeviceKey]:
        with self._lock:
            return self._ledger.withheld(reason)

    def reasons(self) -> dict[DeviceKey, frozenset[str]]:
        with self._lock:
            return self._ledger.reasons()

    # -- questions ----------------------------------------------------------------------------------------------------

    def device(self, key: DeviceKey) -> DeviceState | None:
        with self._lock:
            return self._ledger.device(key)

    def devices(self) -> list[DeviceState]:
        with self._lock:
            return self._ledger.devices()

    def pools_and_devices(self, keys: Iterable[DeviceKey]) -> tuple[list[PoolState], list[DeviceState]]:
        """Every pool, and of these devices those that are known, at one moment."""
        with self._lock:
            devices = [self._ledger.device(key) for key in keys]
            return self._ledger.pools(), [device for device in devices if device is not None]

    def parents(self) -> list[tuple[str, str]]:
        with self._lock:
            return self._ledger.parents()

    def counted_classes(self) -> frozenset[tuple[str, str]]:
        with self._lock:
            return self._ledger.counted_classes()

    def available(self, resource_class: str, provider_uuid: str | None, demand: Demand) -> list[Available]:
        with self._lock:
            return self._ledger.available(resource_class, provider_uuid, demand)

    def shortages(self, demand: Demand) -> list[Shortage]:
        """What there is for each part of a demand."""
        with self._lock:
            return self._ledger.shortages(demand, everything=True)
