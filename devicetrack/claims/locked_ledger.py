"""The ledger of a started host: the reference to its present snapshot, and the lock around each change.

Only this module takes that lock. A thread that holds it makes a snapshot and does nothing else: no SQL, no libvirt, no
file, no HTTP. ``testing.no_io`` enforces this in tests that switch it on.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
import contextlib
import functools
from typing import Concatenate
from typing import ParamSpec
from typing import TypeVar

from devicetrack import exception
from devicetrack.claims import locks
from devicetrack.claims.unfinished import OwnerlessWipe
from devicetrack.claims.unfinished import Unfinished
from devicetrack.engine import intake
from devicetrack.engine import ledger as changes
from devicetrack.engine import opening
from devicetrack.engine.snapshot import Snapshot
from devicetrack.engine.views import by_instance
from devicetrack.engine.views import Views
from devicetrack.engine.withholding import Marks
from devicetrack.objects.values import Capacity
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Inventory
from devicetrack.objects.values import Record

Arguments = ParamSpec('Arguments')
Result = TypeVar('Result')


class LedgerLock(locks.Lock):
    """The fair lock of one ledger."""

    __slots__ = ()

    def __init__(self, of: str = '') -> None:
        super().__init__(locks.LEDGER, of)


def _asking(change: Callable[Concatenate[Snapshot, Arguments], tuple[Snapshot, Result]],
            ) -> Callable[Concatenate[LockedLedger, Arguments], Result]:
    """A change that has an answer. A discarded ledger has none."""
    @functools.wraps(change)
    def asked(self: LockedLedger, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        return self._change(lambda now: change(now, *args, **kwargs))

    return asked


def _noting(change: Callable[Concatenate[Snapshot, Arguments], Snapshot],
            ) -> Callable[Concatenate[LockedLedger, Arguments], None]:
    """A change without an answer. A discarded ledger need not know."""
    @functools.wraps(change)
    def noted(self: LockedLedger, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
        self._note(lambda now: change(now, *args, **kwargs))

    return noted


class LockedLedger:
    """The reference to the present snapshot of a host, and the calls that replace it, each under the lock.

    A call computes another snapshot, and its last step lets that be the present one. So whoever interrupts it leaves
    the old snapshot or the new one. But the call may not have told its caller what it held. So an exception that the
    functions of the engine do not raise themselves, such as one from a signal, discards the ledger, and that ends this
    start of the host: the next one opens another ledger. The rows are the authority. Whoever has a question asks
    ``now``, without the lock: nobody changes a snapshot.

    :param policy: ``pack`` or ``spread``
    :param resolve: returns the UUID of the provider with a stable name, without I/O
    :param unfinished: has the devices without a row that threads of this process wipe, also for an earlier start
    :param of: the host, for the name of the lock
    """

    def __init__(self, policy: str, resolve: intake.Resolve, unfinished: Unfinished | None = None,
                 of: str = '') -> None:
        self._policy, self._resolve, self._unfinished = policy, resolve, unfinished or Unfinished()
        self._wiped_before = frozenset[DeviceKey]()             # for an earlier start, when this one began
        self._lock = LedgerLock(of)
        self._now = Snapshot(policy, 1)
        self.is_discarded = False

    @property
    def now(self) -> Snapshot:
        """The present snapshot, for whoever reads the host: what differs later changed meanwhile.

        :raises StartIsOver: the ledger was discarded
        """
        if self.is_discarded:
            raise exception.StartIsOver
        return self._now

    def _change(self, change: Callable[[Snapshot], tuple[Snapshot, Result]]) -> Result:
        try:
            with self._lock.held():
                after, answer = change(self.now)
                self._now = after
                return answer
        except exception.DeviceTrackError:
            raise                               # an answer, and the snapshot is the same
        except BaseException:
            self._lock.tear()                   # an exception may have come while the block ended
            self.discard()                      # or when the caller was to get its answer
            raise

    def _note(self, change: Callable[[Snapshot], Snapshot]) -> None:
        with contextlib.suppress(exception.StartIsOver):
            self._change(lambda now: (change(now), None))

    take = _asking(changes.take)
    exchange_elsewhere = _asking(changes.exchange_elsewhere)
    narrow = _asking(changes.narrow)
    name = _asking(changes.name)
    put_back = _noting(changes.put_back)
    hold = _noting(changes.hold)
    hold_missing = _noting(changes.hold_missing)
    hold_unless_taken = _asking(changes.hold_unless_taken)
    not_adopted = _noting(changes.not_adopted)
    trust_rows = _noting(changes.trust_rows)
    releasing_of = _noting(changes.releasing_of)
    free_of = _noting(changes.free_of)
    free_without_row = _noting(changes.free_without_row)
    forget = _noting(changes.forget)
    retire = _noting(changes.retire)
    proven = _noting(changes.proven)
    withhold_free = _noting(changes.withhold_free)
    admit = _noting(changes.admit)
    stand = _noting(changes.stand)
    stand_down = _noting(changes.stand_down)

    # -- what the host says -------------------------------------------------------------------------------------------

    def open(self, views: Views, marks: Marks, lost: Sequence[Record] = ()) -> None:
        """Let a new snapshot be the present one, made from views and the stored reasons.

        :param lost: rows that the store had confirmed and the views lack; they are held
        """
        after = opening.first_snapshot(self._policy, self._resolve, views, marks)
        after = changes.hold_all(after, by_instance(after.not_held(lost)))
        self._wiped_before = self._being_wiped()
        for key in self._wiped_before:
            after, _why_not = changes.begin_wipe(after, key)
        self._change(lambda _before: (after, None))

    def realized(self, key: DeviceKey, details: str, capacities: Sequence[Capacity] = (),
                 before: Snapshot | None = None) -> None:
        """As :func:`.ledger.realized`."""
        self._note(lambda now: changes.realized(now, self._resolve, key, details, capacities, before))

    def read_parents(self, inventory: Inventory, before: Snapshot) -> None:
        """As :func:`.intake.read_parents`."""
        self._note(lambda now: intake.read_parents(now, inventory, before, self._resolve))

    def read_inventory(self, looks: Sequence[Views], before: Snapshot) -> None:
        """Take over the last look of an audit, and withhold devices that all looks show in use without a row.

        :raises StartIsOver: the ledger was discarded
        """
        self._change(lambda now: (opening.withhold_by_sight(intake.read_containment(intake.read_inventory(
            now, looks[-1].inventory, self._resolve, before), looks[-1].containment), looks), None))

    def discard(self) -> None:
        """Drop the ledger, since a caller may not know what it holds: this start of the host is over.

        After that, changes are not noted, because the rows and the host will show them to the next start, and questions
        raise StartIsOver.
        """
        self.is_discarded = True

    # -- wipes of devices without a row -------------------------------------------------------------------------------

    def begin_wipe(self, key: DeviceKey) -> str | None:
        """As :func:`.ledger.begin_wipe`. The next start will know of the wipe, too."""
        self._unfinished.note(OwnerlessWipe(key))
        return self._change(lambda now: changes.begin_wipe(now, key))

    def end_wipe(self, key: DeviceKey) -> None:
        self._unfinished.end(OwnerlessWipe, key)
        self._note(lambda now: changes.end_wipe(now, key))

    def end_earlier_wipes(self) -> None:
        """Note which wipes of an earlier start have ended. Every audit calls it."""
        still = self._being_wiped()
        for key in self._wiped_before - still:
            self._note(functools.partial(changes.end_wipe, key=key))
        self._wiped_before &= still

    def _being_wiped(self) -> frozenset[DeviceKey]:
        return frozenset(wipe.key for wipe in self._unfinished.all(OwnerlessWipe))
