"""The queue of writers, on a database that does as it is told."""

from __future__ import annotations

import collections
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import functools
import threading
from typing import Any

from devicetrack import exception
from devicetrack.store.sql import backend as backends
from devicetrack.store.sql import changing
from devicetrack.store.sql import committer as committers
from devicetrack.store.sql.backend import FaultCause
from devicetrack.store.sql.backend import TransactionFailed
from devicetrack.tests import base
from devicetrack.tests import interrupts
from devicetrack.tests.functional.store.records import insert
from devicetrack.tests.functional.store.records import record


class _Database:
    """Keeps rows in a set and lets a test step in before a statement or a commit."""

    def __init__(self) -> None:
        self.rows: set[str] = set()
        self.transactions: list[list[str]] = []         # that were tried
        self.commits = 0
        self.at_statement: Callable[[list[str]], Any] = lambda keys: None
        self.at_commit: Callable[[], Any] = lambda: None
        self._written: list[str] = []
        self._in_transaction = False

    def attempt(self, work: Callable[[Any], None]) -> None:
        if self._in_transaction:
            raise AssertionError('two transactions at once')
        self._in_transaction = True
        try:
            work(None)
            self.at_commit()
            self.rows.update(self._written)
            self.commits += 1
        finally:
            self._in_transaction = False

    def carry_out(self, connection: None, members: Sequence[changing.Member]) -> None:
        keys = self._written = sorted(row.identifier for changes, _fence in members for row in changes.insert)
        self.transactions.append(keys)
        self.at_statement(keys)
        if len({*keys} | self.rows) < len(keys) + len(self.rows):
            raise TransactionFailed.by(FaultCause.DUPLICATE)


def _fail(cause: FaultCause) -> Any:
    raise TransactionFailed.by(cause)


def _interrupt() -> None:
    raise KeyboardInterrupt


def causes(answers: Sequence[Any]) -> list[FaultCause | None]:
    """The causes of what calls raised; None for those that returned."""
    return [answer if answer is None else answer.fault.cause for answer in answers]


class _Wake:
    """Wakes a caller as its own queue would, after it was interrupted as often as there are ``moments`` to wait for."""

    def __init__(self, wake: Any, *moments: Callable[[], Any]) -> None:
        self._wake, self._moments = wake, [*moments]
        self.put = wake.put
        self.waits = threading.Event()          # for the last time

    def get(self) -> None:
        if self._moments:
            self._moments.pop(0)()
            raise KeyboardInterrupt
        self.waits.set()
        self._wake.get()


class _InterruptsWhoWakes:
    """A caller's own queue, at which who wakes it first is interrupted just afterwards."""

    def __init__(self, wake: Any) -> None:
        self._wake, self.get = wake, wake.get
        self._interrupts = [KeyboardInterrupt()]

    def put(self, item: None) -> None:
        self._wake.put(item)
        if self._interrupts:
            raise self._interrupts.pop()


class _Queue(collections.deque[Any]):
    """Says when somebody begins to wait, and lets a test change what wakes the first or second one."""

    def __init__(self) -> None:
        super().__init__()
        self.arrived = threading.Semaphore(0)
        self.wakes: list[Callable[[Any], Any]] = []

    def append(self, item: Any) -> None:
        waits = bool(self)
        if waits and self.wakes:
            item.wake = self.wakes.pop(0)(item.wake)
        super().append(item)
        if waits:
            self.arrived.release()


class TestCommitter(base.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.database = _Database()
        self.patch(changing, 'carry_out', self.database.carry_out)
        self.committer = committers.Committer(
            self.database.attempt, lambda error: backends.StoreFault(FaultCause.OTHER, FaultCause.OTHER.value, error))
        self.queue = self.committer._line = _Queue()

    def commit(self, *identifiers: str) -> None:
        self.committer.commit(insert(*map(record, identifiers)))

    def gathered(self, *calls: Callable[[], Any], in_the_turn: Callable[[], Any] = lambda: None) -> list[Any]:
        """Run calls so that all wait while the first transaction is on its way: they form one batch.

        ``in_the_turn`` runs in that first transaction when all others wait.
        """
        began = threading.Event()
        answers: list[Any] = [None] * (len(calls) + 1)

        def first_statement(keys: list[str]) -> None:
            self.database.at_statement = lambda keys: None
            began.set()
            for _call in calls:
                self.queue.arrived.acquire()
            in_the_turn()

        def run(index: int, call: Callable[[], Any]) -> None:
            try:
                answers[index] = call()
            except BaseException as error:
                answers[index] = error

        self.database.at_statement = first_statement
        threads = [threading.Thread(target=run, args=(0, functools.partial(self.commit, 'first')))]
        threads[0].start()
        began.wait()
        for index, call in enumerate(calls, 1):
            threads.append(threading.Thread(target=run, args=(index, call)))
            threads[-1].start()
        for thread in threads:
            thread.join()
        return answers

    def calls(self, *identifiers: str) -> Iterator[Callable[[], Any]]:
        return (functools.partial(self.commit, identifier) for identifier in identifiers)

    def test_one_caller_commits_at_once(self) -> None:
        self.commit('ns0')
        self.assertEqual((1, {'ns0'}), (self.database.commits, self.database.rows))

    def test_who_waits_together_is_committed_together(self) -> None:
        answers = self.gathered(*self.calls('a', 'b', 'c'))
        self.assertEqual([None] * 4, answers)
        self.assertEqual(2, self.database.commits)
        self.assertEqual([['first'], ['a', 'b', 'c']], self.database.transactions)

    def test_who_is_answered_just_before_it_looks_at_the_line_returns(self) -> None:
        looked, left = threading.Event(), threading.Event()
        answers = list[Any]()

        class Ticket(committers._Ticket):
            """Its caller sees that it is not answered, and goes on when it is answered and nobody is in the line."""

            @property
            def answered(self) -> bool:
                found = self._answered
                if not found and threading.current_thread() is follower:
                    looked.set()
                    left.wait(base.HANGS_S)
                return found

            @answered.setter
            def answered(self, answered: bool) -> None:
                self._answered = answered

        def gather() -> None:
            follower.start()
            looked.wait(base.HANGS_S)

        def follow() -> None:
            try:
                self.commit('b')
                answers.append(None)
            except Exception as error:
                answers.append(error)

        follower = threading.Thread(target=follow, daemon=True)
        self.patch(committers, '_Ticket', Ticket)
        self.patch(self.committer, '_gather', gather)
        self.commit('a')
        self.assertEqual(0, len(self.queue))
        left.set()
        follower.join(base.HANGS_S)
        self.assertEqual(([None], [['a', 'b']]), (answers, self.database.transactions))

    def test_a_batch_is_bounded(self) -> None:
        many = [f'ns{number:03}' for number in range(committers.MEMBERS_A_BATCH + 1)]
        self.gathered(*self.calls(*many))
        self.assertEqual([1, committers.MEMBERS_A_BATCH, 1], [len(keys) for keys in self.database.transactions])

    def test_a_duplicate_is_the_failure_of_one(self) -> None:
        self.database.rows.add('b')
        answers = self.gathered(*self.calls('a', 'b', 'c'))
        self.assertEqual([None, None, FaultCause.DUPLICATE, None], causes(answers))
        self.assertEqual({'first', 'a', 'b', 'c'}, self.database.rows)

    def test_a_fault_of_the_store_is_everybodys_and_asked_once(self) -> None:
        def full() -> None:
            self.database.at_commit = lambda: _fail(FaultCause.FULL)

        answers = self.gathered(*self.calls('a', 'b'), in_the_turn=full)
        self.assertEqual([FaultCause.FULL] * 3, causes(answers))
        self.assertEqual(3, len(set(map(id, answers))))
        self.assertEqual(2, len(self.database.transactions))
        self.assertEqual(set(), self.database.rows)

    def test_a_fault_of_the_store_ends_what_was_begun_one_by_one(self) -> None:
        def refuse_and_be_full() -> None:
            faults = [FaultCause.FULL, FaultCause.DUPLICATE]
            self.database.at_statement = lambda keys: _fail(faults.pop())

        answers = self.gathered(*self.calls('a', 'b', 'c'), in_the_turn=refuse_and_be_full)
        self.assertEqual([FaultCause.FULL] * 3, causes(answers[1:]))
        self.assertEqual([1, 3, 1], list(map(len, self.database.transactions)))

    def test_a_lost_answer_to_one_by_itself_is_that_ones_alone(self) -> None:
        def lose() -> None:
            self.database.at_commit = lambda: None
            raise TransactionFailed.by(FaultCause.IN_DOUBT)

        def refuse(keys: list[str]) -> None:
            self.database.at_statement = lambda keys: None
            self.database.at_commit = lose
            raise TransactionFailed.by(FaultCause.DUPLICATE)

        def next_is_refused() -> None:
            self.database.at_statement = refuse

        answers = self.gathered(*self.calls('a', 'b', 'c'), in_the_turn=next_is_refused)
        self.assertEqual(1, causes(answers).count(FaultCause.IN_DOUBT))
        self.assertEqual(3, sum(answer is None for answer in answers))

    def test_a_lost_answer_is_unknown_to_every_member(self) -> None:
        def lose() -> None:
            self.database.at_commit = lambda: _fail(FaultCause.IN_DOUBT)

        answers = self.gathered(*self.calls('a', 'b'), in_the_turn=lose)
        self.assertEqual([FaultCause.IN_DOUBT] * 3, causes(answers))

    def test_a_batch_that_gives_way_is_tried_one_by_one(self) -> None:
        def conflict(keys: list[str]) -> None:
            if len(keys) > 1:
                raise TransactionFailed.by(FaultCause.CONFLICT)

        def let_batches_give_way() -> None:
            self.database.at_statement = conflict

        answers = self.gathered(*self.calls('a', 'b'), in_the_turn=let_batches_give_way)
        self.assertEqual([None] * 3, answers)
        # Whoever came first leads; threads begin in any order.
        self.assertEqual([['first'], ['a', 'b'], ['a'], ['b']],
                         [*self.database.transactions[:2], *sorted(self.database.transactions[2:])])

    def test_the_lock_that_one_waits_for_fails_no_other(self) -> None:
        answers = self.gathered(*self.calls('a', 'b', 'c'), in_the_turn=functools.partial(self.lock, 'a'))
        self.assertEqual([None, FaultCause.LOCKED, None, None], causes(answers))

    def test_a_lock_that_all_wait_for_is_waited_for_thrice(self) -> None:
        answers = self.gathered(*self.calls('a', 'b', 'c', 'd', 'e'),
                                in_the_turn=functools.partial(self.lock, *'abcde'))
        self.assertEqual([FaultCause.LOCKED] * 5, causes(answers[1:]))
        self.assertEqual([1, 5, 1, 1], list(map(len, self.database.transactions)))

    def test_a_connection_that_none_of_them_gets_is_waited_for_once(self) -> None:
        def let_none_be_free() -> None:
            self.database.at_statement = lambda keys: _fail(FaultCause.NONE_FREE)

        answers = self.gathered(*self.calls('a', 'b', 'c'), in_the_turn=let_none_be_free)
        self.assertEqual([None] + [FaultCause.NONE_FREE] * 3, causes(answers))
        self.assertEqual([1, 3], list(map(len, self.database.transactions)))

    def test_locks_of_their_own_that_some_wait_for_fail_no_other(self) -> None:
        def wait_in_vain(keys: list[str]) -> None:
            if len(self.database.transactions) % 2 == 0:            # the batch, and every second of its members
                raise TransactionFailed.by(FaultCause.LOCKED)

        def let_others_lock() -> None:
            self.database.at_statement = wait_in_vain

        answers = self.gathered(*self.calls('a', 'b', 'c', 'd', 'e'), in_the_turn=let_others_lock)
        self.assertEqual([1, 5, 1, 1, 1, 1, 1], list(map(len, self.database.transactions)))
        self.assertEqual(4, answers.count(None))

    def lock(self, *identifiers: str) -> None:
        def wait_in_vain(keys: list[str]) -> None:
            if {*keys} & {*identifiers}:
                raise TransactionFailed.by(FaultCause.LOCKED)

        self.database.at_statement = wait_in_vain

    def test_an_interrupt_before_the_commit_writes_nothing(self) -> None:
        self.database.at_statement = lambda keys: _interrupt()
        self.assertRaises(KeyboardInterrupt, self.commit, 'ns0')
        self.database.at_statement = lambda keys: None
        self.commit('ns0')
        self.assertEqual({'ns0'}, self.database.rows)

    def test_an_interrupt_in_the_commit_is_not_swallowed(self) -> None:
        self.database.at_commit = _interrupt
        self.assertRaises(KeyboardInterrupt, self.commit, 'ns0')
        self.database.at_commit = lambda: None
        self.commit('ns1')

    def test_the_interrupt_of_the_leader_does_not_fail_those_who_wait(self) -> None:
        answers = self.gathered(*self.calls('a', 'b'), in_the_turn=_interrupt)
        self.assertEqual([KeyboardInterrupt, type(None), type(None)], list(map(type, answers)))
        self.assertEqual({'a', 'b'}, self.database.rows)

    def test_an_interrupted_leader_gives_its_turn_away_once(self) -> None:
        leader = threading.Thread(target=self.assertRaises, args=(KeyboardInterrupt, self.commit, 'first'))
        follower, third = (threading.Thread(target=call) for call in self.calls('a', 'b'))

        def interrupt(keys: list[str]) -> None:
            self.database.at_statement = follow
            follower.start()
            self.queue.arrived.acquire()
            raise KeyboardInterrupt

        def follow(keys: list[str]) -> None:
            leader.join()
            self.database.at_statement = lambda keys: self.queue.arrived.release()
            third.start()
            self.queue.arrived.acquire()        # it waits, or has begun beside us

        self.database.at_statement = interrupt
        leader.start()
        leader.join()
        follower.join()
        third.join()
        self.assertEqual({'a', 'b'}, self.database.rows)

    def test_members_whose_leader_is_interrupted_go_to_the_next_one(self) -> None:
        def in_the_second() -> None:
            def interrupt(keys: list[str]) -> None:
                self.database.at_statement = lambda keys: None
                raise KeyboardInterrupt
            self.database.at_statement = interrupt

        answers = self.gathered(*self.calls('a', 'b', 'c'), in_the_turn=in_the_second)
        self.assertEqual([None, None, None], [answer for answer in answers if answer is None])
        self.assertEqual(1, sum(isinstance(answer, KeyboardInterrupt) for answer in answers))
        self.assertEqual(3, len(self.database.rows))
        # The next one carries them together, as the interrupted one would have.
        self.assertEqual([1, 3, 2], [len(keys) for keys in self.database.transactions])

    def test_a_leader_that_is_interrupted_when_it_has_left_takes_nothing_from_the_next_one(self) -> None:
        self.queue.wakes.append(_InterruptsWhoWakes)
        answers = self.gathered(*self.calls('a'))
        self.assertEqual([KeyboardInterrupt, type(None)], list(map(type, answers)))
        self.assertEqual({'first', 'a'}, self.database.rows)

    def test_who_is_interrupted_while_it_waits_leaves_the_queue(self) -> None:
        self.queue.wakes.append(lambda lock: _Wake(lock, lambda: None))
        answers: list[Any] = []

        def wait_and_be_interrupted(keys: list[str]) -> None:
            self.database.at_statement = lambda keys: None
            answers.extend(self.together(*self.calls('ns1')))

        self.database.at_statement = wait_and_be_interrupted
        self.commit('ns0')
        self.commit('ns2')
        self.assertEqual([KeyboardInterrupt], list(map(type, answers)))
        self.assertEqual([['ns0'], ['ns2']], self.database.transactions)

    def test_the_turn_of_who_is_interrupted_when_it_comes_goes_to_the_next_one(self) -> None:
        self.queue.wakes.append(lambda lock: _Wake(lock, lock.get))
        answers = self.gathered(*self.calls('a', 'b'))
        self.assertEqual({type(None), KeyboardInterrupt}, set(map(type, answers[1:])))
        self.assertEqual(2, len(self.database.rows))
        self.commit('c')
        self.assertEqual(3, len(self.database.rows))

    def test_who_is_interrupted_while_somebody_carries_its_changes_hears_of_it_at_once(self) -> None:
        carried, left = threading.Event(), threading.Event()

        def wait(keys: list[str]) -> None:
            carried.set()
            left.wait()

        def carry_both() -> None:
            self.database.at_statement = wait

        self.queue.wakes += [lambda wake: wake, lambda wake: _Wake(wake, carried.wait)]
        calls = [self.told_when_it_leaves(call, left) for call in self.calls('a', 'b')]
        answers = self.gathered(*calls, in_the_turn=carry_both)
        self.assertEqual({type(None), KeyboardInterrupt}, set(map(type, answers[1:])))
        self.assertEqual({'first', 'a', 'b'}, self.database.rows)

    def told_when_it_leaves(self, call: Callable[[], Any], left: threading.Event) -> Callable[[], Any]:
        def run() -> Any:
            try:
                return call()
            finally:
                left.set()

        return run

    def test_a_mistake_in_one_members_changes_is_its_own(self) -> None:
        def mistaken(keys: list[str]) -> None:
            if 'b' in keys:
                raise TypeError

        def let_it_be_mistaken() -> None:
            self.database.at_statement = mistaken

        answers = self.gathered(*self.calls('a', 'b'), in_the_turn=let_it_be_mistaken)
        self.assertEqual([None, None, FaultCause.OTHER], causes(answers))
        self.assertEqual({'first', 'a'}, self.database.rows)

    def test_an_error_of_ours_after_the_commit_was_sent_leaves_it_in_doubt(self) -> None:
        self.database.at_commit = lambda: [][0]
        error = self.assertRaises(TransactionFailed, self.commit, 'ns0')
        self.assertIs(FaultCause.IN_DOUBT, error.fault.cause)

    def test_members_whose_commit_an_interrupted_leader_has_sent_are_in_doubt(self) -> None:
        def interrupt_the_second() -> None:
            self.database.at_statement = lambda keys: setattr(self.database, 'at_commit', interrupt)

        def interrupt() -> None:
            raise KeyboardInterrupt

        answers = self.gathered(*self.calls('a', 'b'), in_the_turn=interrupt_the_second)
        self.assertIsNone(answers[0])
        [interrupted] = [answer for answer in answers[1:] if isinstance(answer, KeyboardInterrupt)]
        self.assertEqual([FaultCause.IN_DOUBT], causes([answer for answer in answers[1:] if answer is not interrupted]))

    def test_who_commits_in_the_middle_of_a_commit_of_its_own_is_refused(self) -> None:
        refused = []

        def again(keys: list[str]) -> None:
            refused.append(self.assertRaises(exception.ReentrantCall, self.commit, 'inner'))

        self.database.at_statement = again
        self.commit('outer')
        self.assertEqual(({'outer'}, 1), (self.database.rows, len(refused)))

    def test_whatever_line_is_interrupted_the_next_one_commits(self) -> None:
        for error in (interrupts.Interrupt, MemoryError):
            lines = interrupts.Lines()
            lines.run(functools.partial(self.commit, f'counted {error.__name__}'))
            for number in range(lines.count):
                interrupts.Lines(number, error).run(functools.partial(self.commit, f'{error.__name__}{number}'))
                self.assertEqual(0, len(self.queue), str(number))
                self.commit(f'after {error.__name__}{number}')
