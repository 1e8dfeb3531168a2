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
import operator
from types import TracebackType
from typing import Concatenate
from typing import ParamSpec
from typing import TypeVar

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.claims import locks
from devicetrack.engine import opening
from devicetrack.engine.ledger import Ledger
from devicetrack.engine.states import DeviceState
from devicetrack.engine.states import Hold
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
    """What binds a call to a ledger: by its name if it is the ledger's own, since the crash kit puts others there."""
    name = method.__name__
    return operator.attrgetter(name) if getattr(Ledger, name, None) is method else functools.partial(
        functools.partial, method)


def _asking(method: Callable[Concatenate[Ledger, Arguments], Result],
            ) -> Callable[Concatenate[LockedLedger, Arguments], Result]:
    """A call of the ledger under its lock, with an answer that counts: a discarded ledger has none."""
    of = _finding(method)

    @functools.wraps(method)
    def locked(self: LockedLedger, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        turn = self._lock.turn()
        try:
            with turn:
                ledger = self._ledger
                if ledger is None:
                    raise exception.LedgerDiscarded
                return of(ledger)(*args, **kwargs)
        except exception.DeviceTrackError:
            raise                               # the ledger's own word, after which it is as it was
        except BaseException:
            turn.end()                          # for one that came in the middle of ending it
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
        except BaseException:                   # what is told cannot be refused, so the ledger has no word of its own
            turn.end()                          # for one that came in the middle of ending it
            self.discard()
            raise

    return locked


# Several steps in one moment.

def _distrust(ledger: Ledger, hold: Hold, owned: Iterable[DeviceKey]) -> None:
    """Put a hold back and withhold the devices that have owners by the store."""
    ledger.put_back(hold)
    ledger.withhold_free(owned, vocabulary.IN_DOUBT)


def _forget(ledger: Ledger, key: DeviceKey) -> None:
    """Free a device that the host does not have any more."""
    ledger.withhold(key, GONE)
    ledger.free((key,))


def _retire(ledger: Ledger, instance_uuid: str, key: DeviceKey, keeps_bytes: bool) -> None:
    """Take a device from its owner that the driver did not take back; an audit may have seen it clean before that."""
    ledger.let_go_of(instance_uuid, (key,))
    if keeps_bytes:
        ledger.withhold(key, vocabulary.UNPROVEN)


def _hold_unless_taken(ledger: Ledger, records: Sequence[Record],
                      owners: Mapping[DeviceKey, str | None]) -> DeviceKey | None:
    """Hold devices for new rows of one instance, or nothing when one of them is held for somebody else.

    :param owners: by device, the instance that the rows have it for until now
    :returns: the device that is being taken or given back just now
    """
    for record in records:
        device = ledger.device(record.key)
        if device is not None and device.instance_uuid not in (None, owners[record.key]):
            return record.key
    ledger.hold(records)
    return None


def _hold_missing(ledger: Ledger, records: Sequence[Record]) -> None:
    """Hold those of an instance's rows that are not held for it."""
    missing = ledger.not_held(records)
    if missing:
        ledger.hold(missing)


def _read_inventory(ledger: Ledger, looks: Sequence[Views], watch: int) -> None:
    """Take over the last of an audit's looks, and withhold what all of them show in use without a row."""
    ledger.read_inventory(looks[-1].inventory, watch)
    opening.withhold_by_sight(ledger, looks)


def _admit(ledger: Ledger, keys: Iterable[DeviceKey], reason: str) -> None:
    """End one reason of several devices."""
    for key in keys:
        ledger.admit(key, reason)


def _stand(ledger: Ledger, target: Target, reason: str) -> None:
    """Withhold a device or a parent until :meth:`stand_down`."""
    opening.stand(ledger, target, reason)


def _stand_down(ledger: Ledger, target: Target, reason: str, stays: bool = False) -> None:
    """End what :meth:`stand` began; a device that ``stays`` is withheld still, until an audit admits it."""
    opening.stand_down(ledger, target, reason)
    if stays:
        ledger.withhold(DeviceKey(target.kind, target.name), reason)


def _pools_and_devices(ledger: Ledger, keys: Iterable[DeviceKey]) -> tuple[list[PoolState], list[DeviceState]]:
    """Every pool, and of these devices those that are known."""
    devices = [ledger.device(key) for key in keys]
    return ledger.pools(), [device for device in devices if device is not None]


class _PutBackOnError:
    """Puts a hold back when its block is left by an error."""

    __slots__ = ('_ledger', '_hold')

    def __init__(self, ledger: LockedLedger, hold: Hold) -> None:
        self._ledger, self._hold = ledger, hold

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        if kind is not None:
            self._ledger.put_back(self._hold)


class LockedLedger:
    """The ledger's calls, each under the lock, and those that take several steps in one moment.

    Rows are the authority and this is a copy of them. What leaves a call by an exception that is not the ledger's own
    word, as a signal may between any two steps, discards the copy. It is built anew before the next claim.

    :param policy: ``pack`` or ``spread``
    :param provider_uuid_of: the UUID of the provider with this stable name; it does no I/O

    ``build`` is another object for each ledger since the start: whoever sees another one than before knows that what it
    noted may have been lost.
    """

    def __init__(self, policy: str, provider_uuid_of: Callable[[str], str]) -> None:
        self._policy, self._provider_uuid_of = policy, provider_uuid_of
        self._lock = LedgerLock()
        self._numbers = itertools.count()       # for all ledgers: what one has named is never found in the next one
        self._ledger: Ledger | None = Ledger(policy, provider_uuid_of, self._numbers)
        self.build = object()

    take = _asking(Ledger.take)
    exchange = _asking(Ledger.exchange)
    narrow = _asking(Ledger.narrow)
    name = _asking(Ledger.name)
    put_back = _noting(Ledger.put_back)
    realized = _noting(Ledger.realized)
    releasing = _noting(Ledger.releasing)
    free_of = _noting(Ledger.free_of)
    let_go_of = _noting(Ledger.let_go_of)
    hold = _noting(Ledger.hold)
    not_held = _asking(Ledger.not_held)
    without_row = _asking(Ledger.without_row)
    free_without_row = _noting(Ledger.free_without_row)
    trust_rows = _noting(Ledger.trust_rows)
    has_claim_of_rows = _asking(Ledger.has_claim_of_rows)
    has_claim_of_this_process = _asking(Ledger.has_claim_of_this_process)
    counted_now = _asking(Ledger.counted_now)
    read_parents = _noting(Ledger.read_parents)
    unproven = _asking(Ledger.unproven)
    proven = _noting(Ledger.proven)
    withheld = _asking(Ledger.withheld)
    reasons = _asking(Ledger.reasons)
    excluded = _asking(Ledger.excluded)
    why_excluded = _asking(Ledger.why_excluded)
    held = _asking(Ledger.held)
    device = _asking(Ledger.device)
    devices = _asking(Ledger.devices)
    parents = _asking(Ledger.parents)
    counted_classes = _asking(Ledger.counted_classes)
    available = _asking(Ledger.available)
    shortages = _asking(Ledger.shortages)

    # -- several steps in one moment ----------------------------------------------------------------------------------

    def open(self, views: Views, marks: Marks, in_doubt: Sequence[Record] = ()) -> None:
        """Replace the ledger by the one that views and operators' reasons make.

        :param in_doubt: rows that are not in the views, of commits whose outcome nobody knows; they are held
        """
        ledger = opening.open_ledger(self._policy, self._provider_uuid_of, views, marks, self._numbers)
        for records in by_instance(ledger.not_held(in_doubt)):
            ledger.hold(records)
        with self._lock.held():
            self._ledger, self.build = ledger, object()

    def discard(self) -> None:
        """Drop the ledger, of which nobody knows what an exception left undone: the rows are what counts.

        Until :meth:`open`, changes are not noted, for rows and host will tell of them, and whoever asks hears
        LedgerDiscarded.
        """
        self._ledger, self.build = None, object()

    @property
    def is_discarded(self) -> bool:
        return self._ledger is None

    def put_back_on_error(self, hold: Hold) -> _PutBackOnError:
        """For what is done with a hold before anything of it is recorded."""
        return _PutBackOnError(self, hold)

    distrust = _noting(_distrust)

    forget = _noting(_forget)

    retire = _noting(_retire)

    hold_unless_taken = _asking(_hold_unless_taken)

    hold_missing = _noting(_hold_missing)

    @contextlib.contextmanager
    def watching(self) -> Iterator[int]:
        """Have the ledger note what changes while the host is read.

        :raises LedgerDiscarded: it must be built anew before
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

    stand = _noting(_stand)

    stand_down = _noting(_stand_down)

    pools_and_devices = _asking(_pools_and_devices)
