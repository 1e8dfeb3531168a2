"""Group commit: changes that wait at the same time are committed in one transaction.

Every commit waits for the disk, however small it is. So callers stand in a line with their changes. The first of them
carries out all waiting changes in one transaction, and answers all callers. This needs no thread of its own, and a
single caller pays next to nothing: it is the first, so it commits.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from collections.abc import Sequence
import contextlib
import queue
import threading
import time
from typing import Final

import sqlalchemy as sa

from devicetrack import exception
from devicetrack.store import api
from devicetrack.store.sql import changing
from devicetrack.store.sql.backend import FaultCause
from devicetrack.store.sql.backend import StoreFault
from devicetrack.store.sql.backend import TransactionFailed

# A transaction has at most this many members, so that its first member does not wait for ever for the others.
MEMBERS_A_BATCH: Final = 64

# So long a leader waits for as many as were in the last transaction. All of those were answered at once, and the first
# of them to come back would commit alone while the others queue.
_GATHER_S: Final = 0.001

# If this many members of a batch wait for a lock in vain, each by itself and one right after the other, the lock is
# probably one that all of them need, as that of their host's row. If each were tried, the last would wait for as many
# timeouts as there are members.
_LOCKED_ALONE: Final = 2

# Faults of the store, not of one member's changes.
_OF_ALL: Final = frozenset((
    FaultCause.GONE, FaultCause.DISK, FaultCause.READ_ONLY, FaultCause.FULL, FaultCause.NO_SCHEMA,
    FaultCause.NOT_A_STORE, FaultCause.TOO_SLOW, FaultCause.IN_DOUBT, FaultCause.NONE_FREE, FaultCause.TOO_MANY,
    FaultCause.NO_ACCESS, FaultCause.NO_TLS, FaultCause.UNTRUSTED, FaultCause.OTHER_NAME))


class _Ticket:
    """One caller's changes in the line. ``sent`` says that their COMMIT was sent, or is about to be."""

    __slots__ = ('member', 'thread', 'sent', 'answered', 'fault', 'wake')

    def __init__(self, member: changing.Member) -> None:
        self.member = member
        self.thread = threading.get_ident()
        self.sent = self.answered = False
        self.fault: StoreFault | None = None
        self.wake: queue.SimpleQueue[None] = queue.SimpleQueue()

    def answer(self, fault: StoreFault | None) -> None:
        self.fault, self.answered = fault, True


class Committer:
    """The line of those who write.

    One indivisible step joins the line and takes a free turn, and no other state says who has it. An exception may
    reach a thread between any two steps (a signal, no memory left). Even then the caller leaves the line, the next one
    gets what it carried, and nobody waits in vain.

    :param attempt: carries out a function in a transaction of its own, or raises TransactionFailed
    :param fault_of: the meaning of any other error
    """

    def __init__(self, attempt: Callable[[Callable[[sa.Connection], None]], None],
                 fault_of: Callable[[BaseException], StoreFault]) -> None:
        self._attempt = attempt
        self._fault_of = fault_of
        self.empty()

    def empty(self) -> None:
        """In a forked child, forget those who wait: they are threads of the parent."""
        self._line: collections.deque[_Ticket] = collections.deque()
        self._together = 1

    def commit(self, changes: api.Changes, host: api.Host | None = None) -> None:
        """Carry out changes in one transaction, maybe together with those of other callers.

        :param host: their writer's, with its epoch; None for a writer without one
        :raises TransactionFailed: with its cause
        :raises ReentrantCall: this thread stands in the line further up its stack; nothing was written
        :raises BaseException: the caller was interrupted (KeyboardInterrupt); it is unknown what was written, and while
            somebody else has the turn, these changes may still be among those that are being carried out
        """
        ticket, line, batch = _Ticket((changes, host)), self._line, list[_Ticket]()
        # The line moves on only when the outer call does, which waits for this one. A list copies it in one step; a
        # tuple may collect garbage first, meanwhile the line moves, and that is an error.
        if line and any(other.thread == ticket.thread for other in list(line)):
            raise exception.ReentrantCall('commit')
        try:
            line.append(ticket)
            while not ticket.answered:
                # A copy, because the line may be empty: the first may have answered this one since the look above. Then
                # this one is woken and looks again.
                if list(line)[:1] == [ticket]:
                    self._gather()
                    batch += list(line)[:MEMBERS_A_BATCH]
                    self._carry(batch)
                else:
                    ticket.wake.get()
            self._leave(ticket, batch)
        except BaseException:
            for member in batch:
                if member.sent and not member.answered:
                    member.answer(TransactionFailed.by(FaultCause.IN_DOUBT).fault)
            self._leave(ticket, batch)
            raise
        if ticket.fault is not None:
            raise TransactionFailed(ticket.fault)

    def _gather(self) -> None:
        """Wait a moment for as many as were committed together last. Nobody waits who was alone."""
        until = time.monotonic() + _GATHER_S
        while len(self._line) < self._together and time.monotonic() < until:
            time.sleep(_GATHER_S / 10)
        self._together = min(len(self._line), MEMBERS_A_BATCH)

    def _leave(self, own: _Ticket, batch: Sequence[_Ticket]) -> None:
        """Leave the line, with all tickets that this one answered. Idempotent: interrupts may repeat it."""
        line = self._line
        for ticket in batch or (own,):
            if ticket is own or ticket.answered:
                with contextlib.suppress(ValueError):
                    line.remove(ticket)
        # Wake the next leader first, then those that need only return. Each of them looks for itself.
        if line:
            with contextlib.suppress(IndexError):
                line[0].wake.put(None)
        for ticket in batch:
            if ticket.answered and ticket is not own:
                ticket.wake.put(None)

    def _carry(self, batch: Sequence[_Ticket]) -> None:
        """Answer every ticket: by one transaction, or by one for each ticket if the first is refused."""
        fault = self._transact(batch)
        if fault is None or len(batch) == 1 or fault.cause in _OF_ALL:
            _answer(batch, fault)
            return
        # The store refused one of them and wrote nothing. So each is tried by itself.
        locked = 0
        for index, ticket in enumerate(batch):
            fault = self._transact((ticket,))
            # After any other answer, the locks that were waited for are not one that all need.
            locked = locked + 1 if fault is not None and fault.cause is FaultCause.LOCKED else 0
            if fault is not None and fault.cause is not FaultCause.IN_DOUBT and (
                    locked == _LOCKED_ALONE or fault.cause in _OF_ALL):
                _answer(batch[index:], fault)
                return
            _answer((ticket,), fault)

    def _transact(self, batch: Sequence[_Ticket]) -> StoreFault | None:
        """Run one transaction; returns what went wrong."""
        def work(connection: sa.Connection) -> None:
            _mark(batch, False)
            changing.carry_out(connection, [ticket.member for ticket in batch])
            _mark(batch, True)

        try:
            self._attempt(work)
            return None
        except TransactionFailed as failed:
            fault = failed.fault
        except Exception as error:
            fault = self._fault_of(error)
            if batch[0].sent:
                fault = fault._replace(cause=FaultCause.IN_DOUBT)
        _mark(batch, False)
        return fault


def _mark(batch: Sequence[_Ticket], sent: bool) -> None:
    for ticket in batch:
        ticket.sent = sent


def _answer(batch: Sequence[_Ticket], fault: StoreFault | None) -> None:
    for ticket in batch:
        ticket.answer(fault)
