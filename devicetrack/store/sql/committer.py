"""Group commit: changes that wait at the same time are committed in one transaction.

Every commit waits for the disk, however little it holds. So callers queue their changes, and the caller that has the
turn carries out everything that waits in one transaction, and answers all. No thread does it, and a single caller pays
next to nothing: nobody waits before it, so it has the turn and commits.

The committer has a connection of its own. Every transaction is explicit: statements, their answers, then COMMIT. So the
outcome is unknown in one case alone: when the answer to COMMIT is lost.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from collections.abc import Sequence
import contextlib
import threading
import time
from typing import Any
from typing import Final

from devicetrack import exception
from devicetrack.store import api
from devicetrack.store.sql import backend as backends
from devicetrack.store.sql.backend import Cause
from devicetrack.store.sql.backend import Fault

# The bound of one transaction, so that its first member does not wait for ever for the others.
MEMBERS_A_BATCH: Final = 64


class Refused(Exception):
    """The store refuses these changes: a key exists, a row moved on, or their writer is of an older epoch.

    Nothing was written.

    The caller finds out which row it was: the others do not wait for its reading.
    """

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault)
        self.fault = fault


# The places of a ticket. A ticket changes its place under the mutex alone.
_WAITING: Final = 'waiting'
_LEADS: Final = 'leads'                     # has the turn
_CARRIED: Final = 'carried'                 # another thread has it in its transaction
_ANSWERED: Final = 'answered'


class _Ticket:
    """One caller's changes on their way through the committer."""

    __slots__ = ('changes', 'error', 'fence', 'place', 'wake')

    def __init__(self, changes: api.Changes, fence: api.Fence | None) -> None:
        self.changes = changes
        self.fence = fence
        self.place = _WAITING
        self.error: BaseException | None = None
        self.wake: Any = None               # a lock that is released when the ticket is answered or has the turn


class Committer:
    """The writing half of a store.

    :param name: the store, for messages
    :param connect: opens a connection of the driver, prepared for writing
    :param disconnect: closes it
    :param unavailable: makes the error for a fault of the whole store
    :param ping_after_s: the committer tries a connection that was idle for longer before it sends any work, so that the
        first write after a restart of the database does not fail
    """

    def __init__(self, name: str, backend: backends.Backend, connect: Callable[[], Any],
                 disconnect: Callable[[Any], None],
                 unavailable: Callable[[Fault], exception.NothingWritten], ping_after_s: float = 2.0) -> None:
        self._name = name
        self._backend = backend
        self._connect = connect
        self._disconnect = disconnect
        self._unavailable = unavailable
        self._ping_after_s = ping_after_s
        self._start_anew()

    def _start_anew(self) -> None:
        self._mutex = threading.Lock()
        self._waiting: collections.deque[_Ticket] = collections.deque()
        self._busy = False                  # somebody has the turn
        self._closing = False
        self._connection: Any = None
        self._used = 0.0

    def abandon(self) -> Any:
        """In a forked child, forget the connection and the queue without touching them: they belong to the parent.

        :returns: the connection, which the caller must keep from the garbage collector
        """
        connection = self._connection
        self._start_anew()
        return connection

    def close(self) -> None:
        """Close the connection, now or when the caller that has the turn is done. The next write opens another."""
        with self._mutex:
            self._closing = True
            if self._busy:
                return
            self._busy = True
        self._hand_over(())

    # -- the queue -----------------------------------------------------------------------------------------------------

    def commit(self, changes: api.Changes, fence: api.Fence | None = None) -> None:
        """Carry out changes in one transaction, maybe together with those of other callers.

        :param fence: the epoch of their writer; None for a writer that has none
        :raises Refused: a key exists, a row moved on, or the epoch is over; nothing was written
        :raises StoreUnavailable, SchemaMismatch: nothing was written
        :raises OutcomeUnknown: the COMMIT that carried them was not answered, or the caller was interrupted
            (KeyboardInterrupt) when it was too late to take them back
        """
        ticket = _Ticket(changes, fence)
        try:
            with self._mutex:
                leads = not self._busy
                if leads:
                    self._busy = True
                    ticket.place = _LEADS
                else:
                    ticket.wake = threading.Lock()
                    ticket.wake.acquire()
                    self._waiting.append(ticket)
            if not leads:
                ticket.wake.acquire()
                leads = ticket.place is _LEADS
            if leads:
                self._lead(ticket)
        except BaseException as interrupt:
            self._interrupted(ticket, interrupt)
        if ticket.error is not None:
            raise ticket.error

    def _lead(self, own: _Ticket) -> None:
        batch = [own]
        try:
            if self._waiting:
                with self._mutex:
                    while self._waiting and len(batch) < MEMBERS_A_BATCH:
                        ticket = self._waiting.popleft()
                        ticket.place = _CARRIED
                        batch.append(ticket)
            self._carry(batch)
        except BaseException as interrupt:
            if own.place is not _ANSWERED:
                own.error = interrupt       # undone
                own.place = _ANSWERED
            raise
        finally:
            self._hand_over(batch)

    def _hand_over(self, batch: Sequence[_Ticket]) -> None:
        """Answer the batch, and give the turn to the caller that has waited longest.

        Members without an answer (the leader was interrupted) go back to the head of the queue.
        """
        unanswered = [ticket for ticket in batch if ticket.place is _CARRIED]
        answered = [ticket for ticket in batch if ticket.place is _ANSWERED and ticket.wake is not None]
        successor = None
        with self._mutex:
            for ticket in reversed(unanswered):
                ticket.place = _WAITING
                self._waiting.appendleft(ticket)
            if self._closing:
                self._closing = False
                self._drop()
            if self._waiting:
                successor = self._waiting.popleft()
                successor.place = _LEADS
            else:
                self._busy = False
        if successor is not None:
            successor.wake.release()
        for ticket in answered:
            if ticket is not batch[0]:
                ticket.wake.release()

    def _interrupted(self, ticket: _Ticket, interrupt: BaseException) -> None:
        """Leave the queue after an interrupt (KeyboardInterrupt), with an outcome that the caller can rely on.

        Raises the interrupt when nothing was written, and OutcomeUnknown because of it when something may have been.
        """
        while ticket.place is not _ANSWERED:
            with self._mutex:
                if ticket.place is _WAITING:
                    if ticket in self._waiting:
                        self._waiting.remove(ticket)
                    raise interrupt
                leads = ticket.place is _LEADS
            if leads:                       # it was given the turn and has not used it
                self._hand_over((ticket,))
                raise interrupt
            try:
                ticket.wake.acquire()       # it is being committed; the answer comes within the database's timeouts
            except BaseException:
                continue
        if ticket.error is None or isinstance(ticket.error, exception.OutcomeUnknown):
            raise exception.OutcomeUnknown(self._name) from interrupt
        raise interrupt

    # -- the transaction -----------------------------------------------------------------------------------------------

    def _carry(self, batch: Sequence[_Ticket]) -> None:
        """Give every ticket its answer: in one transaction, or in one for each when that one is refused."""
        fault = self._transact(batch)
        if fault is None or len(batch) == 1 or self._is_of_all(fault):
            self._answer(batch, fault)
            return
        # The store refuses one of them, and nothing was written: each is tried by itself.
        for index, ticket in enumerate(batch):
            fault = self._transact((ticket,))
            if fault is not None and self._is_of_all(fault) and fault.cause is not Cause.IN_DOUBT:
                self._answer(batch[index:], fault)
                return
            self._answer((ticket,), fault)

    def _transact(self, batch: Sequence[_Ticket]) -> Fault | None:
        """Run one transaction, and again when its single member had to give way to another transaction."""
        for _attempt in range(1 if len(batch) > 1 else backends.ATTEMPTS):
            fault = self._attempt(batch)
            if fault is None or fault.cause is not Cause.CONFLICT:
                break
        return fault

    def _attempt(self, batch: Sequence[_Ticket]) -> Fault | None:
        backend = self._backend
        try:
            connection = self._ready()
        except Exception as error:
            return backend.fault(error)
        committing = committed = False
        try:
            # Sorted, as all that locks rows.
            fences = sorted({ticket.fence for ticket in batch if ticket.fence is not None})
            backend.carry_out(connection, backends.Merged.of([ticket.changes for ticket in batch]), fences)
            committing = True
            backend.commit(connection)
            committed = True
            self._used = time.monotonic()
            return None
        except (backends.StaleRows, backends.OldEpoch) as refusal:
            self._undo()
            cause = Cause.STALE if isinstance(refusal, backends.StaleRows) else Cause.TAKEN_OVER
            return Fault(cause, cause.value)
        except Exception as error:
            fault = backend.fault(error)
            if committing and not backend.undone_in_commit(backends.origin_of(error)):
                self._drop()
                return Fault(Cause.IN_DOUBT, Cause.IN_DOUBT.value, error)
            if fault.cause is Cause.GONE:
                self._drop()
            else:
                self._undo()
            return fault
        except BaseException as interrupt:
            # The driver may have been in the middle of an answer, so the connection cannot be used any more.
            self._drop()
            if committing:
                self._answer(batch, None if committed else Fault(Cause.IN_DOUBT, Cause.IN_DOUBT.value, interrupt))
            raise

    def _ready(self) -> Any:
        """The connection, tried when it was idle, opened when there is none."""
        if self._connection is not None and time.monotonic() - self._used > self._ping_after_s:
            try:
                self._backend.ping(self._connection)
            except BaseException as error:
                self._drop()
                if not isinstance(error, Exception):
                    raise                   # an answer may be on its way
        if self._connection is None:
            self._connection = self._connect()
        return self._connection

    def _undo(self) -> None:
        try:
            self._backend.rollback(self._connection)
        except Exception:                   # closing the connection undoes the transaction too
            self._drop()

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            # Closing a lost connection may fail, and that changes nothing.
            with contextlib.suppress(Exception):
                self._disconnect(connection)

    # -- answers -------------------------------------------------------------------------------------------------------

    def _is_of_all(self, fault: Fault) -> bool:
        """Whether a fault is the store's, and so meets every member of a batch."""
        return fault.cause in _OF_ALL or (fault.cause is Cause.LOCKED and self._backend.locks_whole_store)

    def _answer(self, batch: Sequence[_Ticket], fault: Fault | None) -> None:
        for ticket in batch:
            if fault is not None:
                ticket.error = self._error(fault)
            ticket.place = _ANSWERED

    def _error(self, fault: Fault) -> BaseException:
        error: BaseException
        if fault.cause is Cause.IN_DOUBT:
            error = exception.OutcomeUnknown(self._name)
        elif fault.cause in (Cause.DUPLICATE, Cause.STALE, Cause.TAKEN_OVER):
            error = Refused(fault)
        else:
            error = self._unavailable(fault)
        error.__cause__ = fault.error
        return error


# Faults of the store, and not of one member's changes.
_OF_ALL: Final = frozenset((Cause.GONE, Cause.READ_ONLY, Cause.FULL, Cause.NO_SCHEMA, Cause.NOT_A_STORE,
                            Cause.IN_DOUBT))
