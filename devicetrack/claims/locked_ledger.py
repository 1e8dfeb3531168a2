"""The ledger of a started host, behind its lock. Only this module takes that lock.

A thread that holds the lock touches only the ledger: no SQL, no libvirt, no file, no HTTP. ``testing.no_io`` enforces
this in tests that switch it on.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import functools
import operator
from typing import Concatenate
from typing import ParamSpec
from typing import TypeVar

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.claims import locks
from devicetrack.engine import opening
from devicetrack.engine.exclusion import BEING_WIPED
from devicetrack.engine.ledger import Ledger
from devicetrack.engine.snapshot import GONE
from devicetrack.engine.snapshot import Snapshot
from devicetrack.engine.states import DeviceState
from devicetrack.engine.states import PoolState
from devicetrack.engine.views import by_instance
from devicetrack.engine.views import Views
from devicetrack.engine.withholding import Marks
from devicetrack.engine.withholding import Target
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Record

Arguments = ParamSpec('Arguments')
Result = TypeVar('Result')


class LedgerLock(locks.Lock):
    """The fair lock of one ledger."""

    __slots__ = ()

    def __init__(self, of: str = '') -> None:
        super().__init__(locks.LEDGER, of)


def _finding(method: Callable[Concatenate[Ledger, Arguments], Result],
             ) -> Callable[[Ledger], Callable[Arguments, Result]]:
    """Bind a call to a ledger: a method by its name, since the crash kit replaces methods."""
    name = method.__name__
    return operator.attrgetter(name) if getattr(Ledger, name, None) is method else functools.partial(
        functools.partial, method)


def _reading(method: Callable[Concatenate[Ledger, Arguments], Result],
             ) -> Callable[Concatenate[LockedLedger, Arguments], Result]:
    """A question to the present snapshot, without the lock: nobody changes a snapshot. A discarded ledger has none."""
    of = _finding(method)

    @functools.wraps(method)
    def asked(self: LockedLedger, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        return of(self._of_now())(*args, **kwargs)

    return asked


def _asking(method: Callable[Concatenate[Ledger, Arguments], Result],
            ) -> Callable[Concatenate[LockedLedger, Arguments], Result]:
    """A call of the ledger under its lock that returns an answer. A discarded ledger has none."""
    of = _finding(method)

    @functools.wraps(method)
    def locked(self: LockedLedger, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        try:
            with self._lock.held():
                ledger = self._of_now()
                answer = of(ledger)(*args, **kwargs)
                self._now = ledger.now          # all that the call has changed, at once
                return answer
        except exception.DeviceTrackError:
            raise                               # an answer of the ledger, which has not changed
        except BaseException:
            self._lock.leave()                  # an exception may have come while the block ended
            self.discard()                      # or when the caller was to get its answer
            raise

    return locked


def _noting(method: Callable[Concatenate[Ledger, Arguments], None],
            ) -> Callable[Concatenate[LockedLedger, Arguments], None]:
    """A call of the ledger under its lock that tells it something. A discarded ledger need not know."""
    noted = _asking(method)

    @functools.wraps(method)
    def locked(self: LockedLedger, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
        with contextlib.suppress(exception.StartIsOver):
            noted(self, *args, **kwargs)

    return locked


# Several steps under one lock.

def _forget(ledger: Ledger, key: DeviceKey) -> None:
    """Free a device that the host no longer has."""
    ledger.withhold(key, GONE)
    ledger.free((key,))


def _retire(ledger: Ledger, instance_uuid: str, key: DeviceKey, keeps_bytes: bool) -> None:
    """Take from its owner a device that the driver could not take back. An audit may have seen it clean before."""
    ledger.let_go_of(instance_uuid, (key,))
    if keeps_bytes:
        ledger.withhold(key, vocabulary.UNPROVEN)


def _hold_unless_taken(ledger: Ledger, records: Sequence[Record],
                      owners: Mapping[DeviceKey, str | None]) -> DeviceKey | None:
    """Hold devices that a guest has for new rows of its instance, or none if one is held for another instance.

    :param owners: by device, its present owner in the rows
    :returns: the device that another operation is taking, giving back or wiping, or of which somebody has a part, or
        what contains it; None if all are held
    """
    for record in records:
        device = ledger.device(record.key)
        if device is not None and (device.instance_uuid not in (None, owners[record.key])
                                   or BEING_WIPED in device.withheld):
            return record.key
    free = [record.key for record in records if owners[record.key] is None]
    ledger.hold(records)
    for key in free:
        if ledger.is_work_around(key):
            _not_adopted(ledger, records[0].instance_uuid, free)
            return key
    ledger.used([record.key for record in records])
    return None


def _not_adopted(ledger: Ledger, instance_uuid: str, keys: Collection[DeviceKey]) -> None:
    """Let go of devices that a guest has, and whose rows were not written. Until an audit, they count as in use."""
    ledger.let_go_of(instance_uuid, keys)
    ledger.withhold_free(keys, vocabulary.FOREIGN)


def _hold_missing(ledger: Ledger, records: Sequence[Record]) -> None:
    """Hold the devices of an instance's rows that are not held for it."""
    missing = ledger.not_held(records)
    if missing:
        ledger.hold(missing)


def _read_inventory(ledger: Ledger, looks: Sequence[Views], before: Snapshot) -> None:
    """Take over the last look of an audit, and withhold devices that all looks show in use without a row."""
    ledger.read_inventory(looks[-1].inventory, before)
    ledger.read_containment(looks[-1].containment)
    opening.withhold_by_sight(ledger, looks)


def _admit(ledger: Ledger, keys: Iterable[DeviceKey], reason: str) -> None:
    """End one reason for several devices."""
    for key in keys:
        ledger.admit(key, reason)


def _stand_down(ledger: Ledger, target: Target, reason: str, stays: bool = False) -> None:
    """End what :meth:`stand` began. If it ``stays``, the device remains withheld until an audit admits it."""
    opening.stand_down(ledger, target, reason)
    if stays:
        ledger.withhold(DeviceKey(target.kind, target.name), reason)


def _pools_and_devices(ledger: Ledger, keys: Iterable[DeviceKey]) -> tuple[list[PoolState], list[DeviceState]]:
    """Return every pool, and the known ones among these devices."""
    devices = [ledger.device(key) for key in keys]
    return ledger.pools(), [device for device in devices if device is not None]


class LockedLedger:
    """The reference to the present snapshot of a host, and the calls that replace it, each under the lock.

    A call works on a ledger of its own, and its last step lets the snapshot of that one be the present one. So whoever
    interrupts it leaves the old snapshot or the new one. But the call may not have told its caller what it held. So an
    exception that the ledger does not raise itself, such as one from a signal, discards the ledger, and that ends this
    start of the host: the next one opens another ledger. The rows are the authority.

    :param policy: ``pack`` or ``spread``
    :param provider_uuid_of: returns the UUID of the provider with a stable name, without I/O
    :param being_wiped: the devices without a row that threads of this process wipe, also for an earlier start
    :param of: the host, for the name of the lock
    """

    def __init__(self, policy: str, provider_uuid_of: Callable[[str], str],
                 being_wiped: set[DeviceKey] | None = None, of: str = '') -> None:
        self._policy, self._provider_uuid_of = policy, provider_uuid_of
        self._being_wiped = set() if being_wiped is None else being_wiped
        self._wiped_before = frozenset[DeviceKey]()             # for an earlier start, when this one began
        self._lock = LedgerLock(of)
        self._now = Ledger(policy, provider_uuid_of).now
        self.is_discarded = False

    def _of_now(self) -> Ledger:
        """A ledger that begins with the present snapshot.

        :raises StartIsOver: the ledger was discarded
        """
        if self.is_discarded:
            raise exception.StartIsOver
        return Ledger(self._policy, self._provider_uuid_of, self._now)

    @property
    def now(self) -> Snapshot:
        """The present snapshot, for whoever reads the host: what differs later changed meanwhile.

        :raises StartIsOver: the ledger was discarded
        """
        return self._of_now().now

    take = _asking(Ledger.take)
    exchange = _asking(Ledger.exchange)
    exchange_elsewhere = _asking(Ledger.exchange_elsewhere)
    shows_room = _reading(Ledger.shows_room)
    narrow = _asking(Ledger.narrow)
    name = _asking(Ledger.name)
    put_back = _noting(Ledger.put_back)
    withhold_free = _noting(Ledger.withhold_free)
    realized = _noting(Ledger.realized)
    releasing_of = _noting(Ledger.releasing_of)
    free_of = _noting(Ledger.free_of)
    hold = _noting(Ledger.hold)
    not_held = _reading(Ledger.not_held)
    without_row = _reading(Ledger.without_row)
    free_without_row = _noting(Ledger.free_without_row)
    trust_rows = _noting(Ledger.trust_rows)
    counted_now = _reading(Ledger.counted_now)
    read_parents = _noting(Ledger.read_parents)
    unproven = _reading(Ledger.unproven)
    proven = _noting(Ledger.proven)
    withheld = _reading(Ledger.withheld)
    reasons = _reading(Ledger.reasons)
    excluded = _reading(Ledger.excluded)
    why_excluded = _reading(Ledger.why_excluded)
    owners_of_parts = _reading(Ledger.owners_of_parts)
    held = _reading(Ledger.held)
    device = _reading(Ledger.device)
    devices = _reading(Ledger.devices)
    parents = _reading(Ledger.parents)
    counted_classes = _reading(Ledger.counted_classes)
    available = _reading(Ledger.available)
    shortages = _reading(Ledger.shortages)

    # -- several steps under one lock ---------------------------------------------------------------------------------

    def open(self, views: Views, marks: Marks, lost: Sequence[Record] = ()) -> None:
        """Replace the ledger by a new one, made from views and the stored reasons.

        :param lost: rows that the store had confirmed and the views lack; they are held
        """
        ledger = opening.open_ledger(self._policy, self._provider_uuid_of, views, marks)
        ledger.hold_all(by_instance(ledger.not_held(lost)))
        self._wiped_before = frozenset(self._being_wiped)
        for key in self._wiped_before:
            ledger.begin_wipe(key)
        with self._lock.held():
            self._now = ledger.now

    def discard(self) -> None:
        """Drop the ledger, since a caller may not know what it holds: this start of the host is over.

        After that, changes are not noted, because the rows and the host will show them to the next start, and questions
        raise StartIsOver.
        """
        self.is_discarded = True

    def begin_wipe(self, key: DeviceKey) -> str | None:
        """As :meth:`.ledger.Ledger.begin_wipe`. The next start will know of the wipe, too."""
        self._being_wiped.add(key)
        return self._begin_wipe(key)

    _begin_wipe = _asking(Ledger.begin_wipe)

    def end_wipe(self, key: DeviceKey) -> None:
        self._being_wiped.discard(key)
        self._end_wipe(key)

    _end_wipe = _noting(Ledger.end_wipe)

    def end_earlier_wipes(self) -> None:
        """Note which wipes of an earlier start have ended. Every audit calls it."""
        for key in self._wiped_before - self._being_wiped:
            self._end_wipe(key)
        self._wiped_before &= self._being_wiped

    forget = _noting(_forget)

    retire = _noting(_retire)

    hold_unless_taken = _asking(_hold_unless_taken)

    not_adopted = _noting(_not_adopted)

    hold_missing = _noting(_hold_missing)

    read_inventory = _asking(_read_inventory)

    admit = _noting(_admit)

    stand = _noting(opening.stand)

    stand_down = _noting(_stand_down)

    pools_and_devices = _reading(_pools_and_devices)
