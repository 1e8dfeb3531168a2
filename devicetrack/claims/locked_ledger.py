"""The ledger of a started host, behind its lock. Only this module takes that lock.

A thread that holds the lock touches only the ledger: no SQL, no libvirt, no file, no HTTP. ``testing.no_io`` enforces
this in tests that switch it on.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
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
from devicetrack.engine.states import DeviceState
from devicetrack.engine.states import PoolState
from devicetrack.engine.stock import GONE
from devicetrack.engine.views import by_instance
from devicetrack.engine.views import Views
from devicetrack.engine.withholding import Marks
from devicetrack.engine.withholding import Target
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Record

Arguments = ParamSpec('Arguments')
Result = TypeVar('Result')


class LedgerLock(locks.FairLock):
    """The fair lock of one ledger."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(locks.LEDGER)


def _finding(method: Callable[Concatenate[Ledger, Arguments], Result],
             ) -> Callable[[Ledger], Callable[Arguments, Result]]:
    """Bind a call to a ledger: a method by its name, since the crash kit replaces methods."""
    name = method.__name__
    return operator.attrgetter(name) if getattr(Ledger, name, None) is method else functools.partial(
        functools.partial, method)


def _asking(method: Callable[Concatenate[Ledger, Arguments], Result],
            ) -> Callable[Concatenate[LockedLedger, Arguments], Result]:
    """A call of the ledger under its lock that returns an answer. A discarded ledger has none."""
    of = _finding(method)

    @functools.wraps(method)
    def locked(self: LockedLedger, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        turn = self._lock.turn()
        try:
            with turn:
                ledger = self._ledger
                if ledger is None:
                    raise exception.StartIsOver
                return of(ledger)(*args, **kwargs)
        except exception.DeviceTrackError:
            raise                               # an answer of the ledger, which has not changed
        except BaseException:
            turn.end()                          # an exception may have come while the turn ended
            self.discard()
            raise

    return locked


def _noting(method: Callable[Concatenate[Ledger, Arguments], None],
            ) -> Callable[Concatenate[LockedLedger, Arguments], None]:
    """A call of the ledger under its lock that tells it something. A discarded ledger need not know."""
    of = _finding(method)

    @functools.wraps(method)
    def locked(self: LockedLedger, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
        turn = self._lock.turn()
        try:
            with turn:
                ledger = self._ledger
                if ledger is not None:
                    of(ledger)(*args, **kwargs)
        except BaseException:                   # the ledger refuses none of these calls
            turn.end()                          # an exception may have come while the turn ended
            self.discard()
            raise

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
        if ledger.owners_around(key) is not None:
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


def _read_inventory(ledger: Ledger, looks: Sequence[Views], watch: int) -> None:
    """Take over the last look of an audit, and withhold devices that all looks show in use without a row."""
    ledger.read_inventory(looks[-1].inventory, watch)
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
    """The ledger's calls, each under the lock, and calls that make several steps under one lock.

    The rows are the authority, and this is a copy of them. An exception that the ledger does not raise itself, such as
    one from a signal, may come between any two steps. It discards the copy, and that ends this start of the host: the
    next one opens another ledger.

    :param policy: ``pack`` or ``spread``
    :param provider_uuid_of: returns the UUID of the provider with a stable name, without I/O
    :param being_wiped: the devices without a row that threads of this process wipe, also for an earlier start
    """

    def __init__(self, policy: str, provider_uuid_of: Callable[[str], str],
                 being_wiped: set[DeviceKey] | None = None) -> None:
        self._policy, self._provider_uuid_of = policy, provider_uuid_of
        self._being_wiped = set() if being_wiped is None else being_wiped
        self._wiped_before = frozenset[DeviceKey]()             # for an earlier start, when this one began
        self._lock = LedgerLock()
        self._ledger: Ledger | None = Ledger(policy, provider_uuid_of)

    take = _asking(Ledger.take)
    exchange = _asking(Ledger.exchange)
    exchange_elsewhere = _asking(Ledger.exchange_elsewhere)
    shows_room = _asking(Ledger.shows_room)
    narrow = _asking(Ledger.narrow)
    name = _asking(Ledger.name)
    put_back = _noting(Ledger.put_back)
    withhold_free = _noting(Ledger.withhold_free)
    realized = _noting(Ledger.realized)
    releasing_of = _noting(Ledger.releasing_of)
    free_of = _noting(Ledger.free_of)
    hold = _noting(Ledger.hold)
    not_held = _asking(Ledger.not_held)
    without_row = _asking(Ledger.without_row)
    free_without_row = _noting(Ledger.free_without_row)
    trust_rows = _noting(Ledger.trust_rows)
    counted_now = _asking(Ledger.counted_now)
    read_parents = _noting(Ledger.read_parents)
    unproven = _asking(Ledger.unproven)
    proven = _noting(Ledger.proven)
    withheld = _asking(Ledger.withheld)
    reasons = _asking(Ledger.reasons)
    excluded = _asking(Ledger.excluded)
    why_excluded = _asking(Ledger.why_excluded)
    owners_of_parts = _asking(Ledger.owners_of_parts)
    held = _asking(Ledger.held)
    device = _asking(Ledger.device)
    devices = _asking(Ledger.devices)
    parents = _asking(Ledger.parents)
    counted_classes = _asking(Ledger.counted_classes)
    available = _asking(Ledger.available)
    shortages = _asking(Ledger.shortages)

    # -- several steps under one lock ---------------------------------------------------------------------------------

    def open(self, views: Views, marks: Marks, lost: Sequence[Record] = ()) -> None:
        """Replace the ledger by a new one, made from views and the stored reasons.

        :param lost: rows that the store had confirmed and the views lack; they are held
        """
        ledger = opening.open_ledger(self._policy, self._provider_uuid_of, views, marks)
        for records in by_instance(ledger.not_held(lost)):
            ledger.hold(records)
        self._wiped_before = frozenset(self._being_wiped)
        for key in self._wiped_before:
            ledger.begin_wipe(key)
        with self._lock.held():
            self._ledger = ledger

    def discard(self) -> None:
        """Drop the ledger, since an exception left it in an unknown state: this start of the host is over.

        After that, changes are not noted, because the rows and the host will show them to the next start, and questions
        raise StartIsOver.
        """
        self._ledger = None

    @property
    def is_discarded(self) -> bool:
        return self._ledger is None

    def begin_wipe(self, key: DeviceKey) -> str | None:
        """As :meth:`.stock.Stock.begin_wipe`. The next start will know of the wipe, too."""
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

    @contextlib.contextmanager
    def watching(self) -> Iterator[int]:
        """Have the ledger note changes while the host is read.

        :raises StartIsOver: an interrupt has ended this start of the host
        """
        watch = -1
        try:
            watch = self._watch()
            yield watch
        finally:
            self._unwatch(watch)

    _watch = _asking(Ledger.watch)
    _unwatch = _noting(Ledger.unwatch)

    read_inventory = _asking(_read_inventory)

    admit = _noting(_admit)

    stand = _noting(opening.stand)

    stand_down = _noting(_stand_down)

    pools_and_devices = _asking(_pools_and_devices)
