"""Group commit: changes that wait at the same time are committed in one transaction.

Every commit waits for the disk, however small it is. So callers stand in a line with their changes. The first of them
carries out all waiting changes in one transaction, and answers all callers. This needs no thread of its own, and a
single caller pays next to nothing: it is the first, so it commits.

The committer has a connection of its own. Every transaction is explicit: statements, their answers, then COMMIT. So the
outcome is unknown only if the answer to COMMIT is lost.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from collections.abc import Sequence
import contextlib
import math
import queue
import threading
import time
from typing import Any
from typing import Final

from devicetrack import exception
from devicetrack.store import api
from devicetrack.store.sql import backend as backends
from devicetrack.store.sql.backend import Cause
from devicetrack.store.sql.backend import Fault

# A transaction has at most this many members, so that its first member does not wait for ever for the others.
MEMBERS_A_BATCH: Final = 64

# If this many members of a batch wait for a lock in vain, each by itself and one right after the other, the lock is
# probably one that all of them need, as that of their host's row. If each were tried, the last would wait for as many
# timeouts as there are members.
_LOCKED_ALONE: Final = 2


class Refused(Exception):
    """The store refuses these changes: a key exists, a row moved on, or their writer is of an older epoch.

    Nothing was written. The caller finds out which row it was, so that the others do not wait for that read.
    """

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault)
        self.fault = fault


class _Ticket:
    """One caller's changes on their way through the committer.

    ``right`` is the right to decide about the changes: whoever takes its one item out carries them out, or takes them
    back. An interrupted leader returns the right of members that it has not answered.
    """

    __slots__ = ('changes', 'fence', 'thread', 'error', 'answered', 'right', 'wake', 'batch')

    def __init__(self, changes: api.Changes | None, fence: api.Fence | None = None) -> None:
        self.changes = changes              # None only closes the connection
        self.fence = fence
        self.thread = threading.get_ident()
        self.error: BaseException | None = None
        self.answered = False
        self.right = [None]                 # taking the one item out of a list is indivisible
        self.wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.batch: list[_Ticket] = []      # the tickets that this one carries, if it leads

    def take(self) -> bool:
        """Take the right to decide about the changes. If several try at once, one succeeds."""
        try:
            self.right.pop()
        except IndexError:
            return False
        return True


class Committer:
    """The writing half of a store.

    The callers stand in a line, and the first one leads: it carries out the changes behind it too. One indivisible step
    joins the line and takes a free turn, and no other state says who leads. An exception may reach a thread between any
    two steps (a signal, no memory left). Even then the caller leaves the line, the next one gets what it carried, and
    nobody waits in vain. The connection that it used is dropped, because an answer may be on its way.

    :param name: the store, for messages
    :param connect: opens a connection of the driver, prepared for writing
    :param disconnect: closes it
    :param unavailable: makes the error for a fault of the whole store
    """

    # The committer tries a connection that was idle for longer before it sends any work, so that the first write after
    # a restart of the database does not fail.
    _ping_after_s = 2.0

    def __init__(self, name: str, backend: backends.Backend, connect: Callable[[], Any],
                 disconnect: Callable[[Any], None],
                 unavailable: Callable[[Fault], exception.NothingWritten]) -> None:
        self._name = name
        self._backend = backend
        self._connect = connect
        self._disconnect = disconnect
        self._unavailable = unavailable
        self._start_anew()

    def _start_anew(self) -> None:
        self._line: collections.deque[_Ticket] = collections.deque()
        self._closing: list[None] = []      # a request to close the connection, for the leader
        self._connection: Any = None
        self._used = 0.0
        self._sent: Sequence[_Ticket] = ()  # their COMMIT was sent, or is about to be; its outcome may be unknown

    def abandon(self) -> Any:
        """In a forked child, forget the connection and the line without touching them: they belong to the parent.

        :returns: the connection, which the caller must keep from the garbage collector
        """
        connection = self._connection
        self._start_anew()
        return connection

    def close(self) -> None:
        """Close the connection, now or when the caller that leads is done. The next write opens another."""
        self._closing.append(None)
        self._close_if_free()

    def _close_if_free(self) -> None:
        ticket = _Ticket(None)
        try:
            self._line.append(ticket)
        finally:
            self._leave(ticket)

    # -- the line ------------------------------------------------------------------------------------------------------

    def commit(self, changes: api.Changes, fence: api.Fence | None = None) -> None:
        """Carry out changes in one transaction, maybe together with those of other callers.

        :param fence: the epoch of their writer; None for a writer without one
        :raises Refused: a key exists, a row moved on, or the epoch is over; nothing was written
        :raises StoreUnavailable, SchemaMismatch: nothing was written
        :raises ReentrantCall: this thread stands in the line further up its stack; nothing was written
        :raises OutcomeUnknown: the COMMIT that carried them was not answered
        :raises BaseException: the caller was interrupted (KeyboardInterrupt); it is unknown what was written
        """
        ticket, line = _Ticket(changes, fence), self._line
        # The line moves on only when the outer call does, which waits for this one. A list copies it in one step; a
        # tuple may collect garbage first, meanwhile the line moves, and that is an error.
        if line and any(other.thread == ticket.thread for other in list(line)):
            raise exception.ReentrantCall('commit')
        try:
            line.append(ticket)
            while not ticket.answered:
                if line[0] is ticket:
                    self._lead(ticket)
                    self._leave(ticket)
                    if self._closing:
                        self._close_if_free()
                    break
                ticket.wake.get()
        except BaseException:
            self._interrupted(ticket)
            raise
        if ticket.error is not None:
            raise ticket.error

    def _lead(self, own: _Ticket) -> None:
        """Carry out the own changes and those that wait behind them. The first in line calls this."""
        if self._closing:
            self._close()
        self._sent = ()
        own.batch.append(own)
        own.take()
        if len(self._line) > 1:
            # Others may join and leave meanwhile, so an iterator over the line would fail.
            with contextlib.suppress(IndexError):
                while len(own.batch) < MEMBERS_A_BATCH:
                    ticket = self._line[len(own.batch)]
                    if ticket.changes is None or not ticket.take():
                        break               # it is about to leave the line
                    own.batch.append(ticket)
        self._carry(own.batch)

    def _leave(self, own: _Ticket) -> None:
        """Leave the line, with all tickets that this one carried and answered. Idempotent: interrupts may repeat it."""
        line = self._line
        if self._closing and line and line[0] is own:
            self._close()
        for ticket in own.batch or (own,):
            if ticket is own or ticket.answered:
                try:
                    line.remove(ticket)
                except ValueError:
                    pass
        # Wake the next leader first, then those that need only return. Each of them looks for itself.
        if line:
            with contextlib.suppress(IndexError):
                line[0].wake.put(None)
        for ticket in own.batch:
            if ticket.answered and ticket is not own:
                ticket.wake.put(None)

    def _close(self) -> None:
        self._closing.clear()
        self._drop()

    def _interrupted(self, own: _Ticket) -> None:
        """Leave the line after an exception from anywhere. Changes that were not sent stay for the next leader."""
        line = self._line
        if own.batch:
            if line and line[0] is own:
                self._drop()                # an answer may be on its way
                for ticket in own.batch:
                    if ticket in self._sent and not ticket.answered:
                        self._answer((ticket,), Fault(Cause.IN_DOUBT, Cause.IN_DOUBT.value))
                    elif not ticket.answered and not ticket.right:
                        ticket.right.append(None)
        elif not own.take():
            # A leader has it in a transaction, and answers within the database's timeouts.
            while not own.answered and own in line and line[0] is not own:
                try:
                    own.wake.get()
                except BaseException:
                    continue
        self._leave(own)

    # -- the transaction -----------------------------------------------------------------------------------------------

    def _carry(self, batch: Sequence[_Ticket]) -> None:
        """Answer every ticket: by one transaction, or by one for each ticket if the first is refused."""
        fault = self._transact(batch)
        if fault is None or len(batch) == 1 or self._is_of_all(fault):
            self._answer(batch, fault)
            return
        # The store refused one of them and wrote nothing. So each is tried by itself.
        locked = 0
        for index, ticket in enumerate(batch):
            fault = self._transact((ticket,))
            # After any other answer, the locks that were waited for are not one that all need.
            locked = locked + 1 if fault is not None and fault.cause is Cause.LOCKED else 0
            if fault is not None and (locked == _LOCKED_ALONE or self._is_of_all(fault)) and (
                    fault.cause is not Cause.IN_DOUBT):
                self._answer(batch[index:], fault)
                return
            self._answer((ticket,), fault)

    def _transact(self, batch: Sequence[_Ticket]) -> Fault | None:
        """Run one transaction. Run it again if its single member had to give way to another transaction."""
        for _attempt in range(1 if len(batch) > 1 else backends.ATTEMPTS):
            fault = self._attempt(batch)
            if fault is None or fault.cause is not Cause.CONFLICT:
                break
        return fault

    def _attempt(self, batch: Sequence[_Ticket]) -> Fault | None:
        backend, self._sent = self._backend, ()
        try:
            connection = self._ready()
        except Exception as error:
            return backend.fault(error)
        try:
            fences, members = [], []
            for ticket in batch:
                if ticket.fence is not None:
                    fences.append(ticket.fence)
                if ticket.changes is not None:
                    members.append(ticket.changes)
            if len(fences) > 1:
                fences = sorted(set(fences))        # in order, like all that locks rows
            backend.carry_out(connection, backends.Merged.of(members), fences)
            self._sent = batch
            backend.commit(connection)
            self._used = time.monotonic()
            return None
        except (backends.StaleRows, backends.OldEpoch) as refusal:
            self._undo()
            cause = Cause.STALE if isinstance(refusal, backends.StaleRows) else Cause.TAKEN_OVER
            return Fault(cause, cause.value)
        except Exception as error:
            fault, origin = backend.fault(error), backends.origin_of(error)
            if self._sent and not backend.undone_in_commit(origin):
                self._drop()
                return Fault(Cause.IN_DOUBT, Cause.IN_DOUBT.value, error)
            self._sent = ()
            # After an error from elsewhere than the driver, an answer may be on its way.
            if fault.cause in (Cause.GONE, Cause.DISK) or not isinstance(origin, backend.Error):
                self._drop()
            else:
                self._undo()
            return fault

    def _ready(self) -> Any:
        """The connection. It is tried if it was idle, and opened if there is none."""
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

    def distrust(self) -> None:
        """Try the connection before the next commit, however short it was idle, because another one was lost."""
        self._used = -math.inf

    def _undo(self) -> None:
        try:
            self._backend.rollback(self._connection)
        except Exception:                   # closing the connection undoes the transaction too
            self._drop()

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            # Closing a lost connection may fail; that changes nothing.
            with contextlib.suppress(Exception):
                self._disconnect(connection)

    # -- answers -------------------------------------------------------------------------------------------------------

    def _is_of_all(self, fault: Fault) -> bool:
        """Whether a fault is the store's, so that every member of a batch has it."""
        return fault.cause in _OF_ALL or (fault.cause is Cause.LOCKED and self._backend.locks_whole_store)

    def _answer(self, batch: Sequence[_Ticket], fault: Fault | None) -> None:
        for ticket in batch:
            if fault is not None:
                ticket.error = self._error(fault)
            ticket.answered = True

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


# Faults of the store, not of one member's changes.
_OF_ALL: Final = frozenset((Cause.GONE, Cause.DISK, Cause.READ_ONLY, Cause.FULL, Cause.NO_SCHEMA, Cause.NOT_A_STORE,
                            Cause.TOO_SLOW, Cause.IN_DOUBT))
