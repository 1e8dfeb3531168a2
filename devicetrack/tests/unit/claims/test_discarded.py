"""An interrupt ends the start of a host, and the next call starts the host anew, by rows and host."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import configparser
import contextlib
import ctypes
import functools
import gc
import itertools
import pathlib
import signal
import sys
import threading
from typing import Any
from typing import NamedTuple
import uuid

from oslo_concurrency import lockutils
import sqlalchemy as sa

import devicetrack
from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.claims import locks
from devicetrack.claims.running import Running
from devicetrack.engine import allocator
from devicetrack.engine import findings
from devicetrack.engine.withholding import Target
from devicetrack.objects.values import DeviceKey
from devicetrack.testing import fake_guests
from devicetrack.testing import fixtures
from devicetrack.testing.fixtures import FREE
from devicetrack.testing.fixtures import Instance
from devicetrack.tests import base
from devicetrack.tests import interrupts
from devicetrack.tests.interrupts import Interrupt


class Bare(NamedTuple):
    """An instance that takes no fields."""

    uuid: str


Staged = tuple[fixtures.Host, Callable[[], object], Callable[[], None]]


def wrong(host: fixtures.Host) -> list[findings.Finding]:
    """What an audit finds. The guest of an adopted device was defined without our element, which is no fault."""
    return [finding for finding in host.audit() if finding.kind != findings.NOT_RECOVERABLE]


class DiscardedLedgerTestCase(base.TestCase):

    def host(self, **facts: Any) -> fixtures.Host:
        return self.useFixture(fixtures.Host(**facts))

    def interrupt_choice(self, error: BaseException) -> None:
        """Let the next choice of devices do its work, and then be interrupted."""
        plain = allocator.choose

        def interrupted(*arguments: Any) -> Any:
            self.patch(allocator, 'choose', plain)
            plain(*arguments)
            raise error

        self.patch(allocator, 'choose', interrupted)

    def test_a_take_that_is_interrupted_holds_nothing(self) -> None:
        host = self.host(devices=1)
        for error in (KeyboardInterrupt(), SystemExit(), MemoryError()):
            self.interrupt_choice(error)
            self.assertRaises(type(error), host.claim, Instance(), pmem=1)
            self.assertTrue(host.manager._ready().is_over)
            instance = Instance()
            host.claim(instance, pmem=1)
            self.assertEqual({'d0': instance.uuid}, host.held())
            host.manager.release(host.context, instance)

    def test_what_was_withheld_and_is_being_given_back_is_so_in_the_new_ledger(self) -> None:
        host = self.host(devices=2)
        instance = host.spawn(pmem=1)
        self.assertRaises(exception.DeviceInUse, host.manager.release, host.context, instance)
        host.manager.operator.cordon('vpmem', 'd1')
        before = host.running.ledger.now.states()
        host.running.ledger.discard()
        self.assertEqual(before, host.running.ledger.now.states())

    def end_start(self, host: fixtures.Host) -> None:
        """As an interrupt in another thread, after which a call of that thread starts the host anew."""
        host.running.end()
        [_started] = self.together(lambda: host.manager.assignments())

    def test_the_words_of_a_call_end_no_start(self) -> None:
        host = self.host(devices=1)
        before = host.running
        self.assertRaises(exception.NoFit, host.claim, Instance(), pmem=2)
        self.assertRaises(exception.BadRequest, host.manager.operator.cordon, 'vpmem', 'none')
        self.assertIs(before, host.running)

    def test_an_error_of_the_service_ends_no_start(self) -> None:
        host = self.host(devices=1)
        before = host.running
        self.assertRaises(AttributeError, host.claim, Bare(str(uuid.uuid4())), pmem=1)
        self.assertIs(before, host.running)
        self.assertEqual(({'d0': FREE}, []), (host.states(), host.audit()))

    def test_what_an_earlier_start_has_not_sent_is_refused_and_the_next_call_does_it(self) -> None:
        for operation in (self.claim, self.narrow, self.exchange, self.adopt):
            host, run, check = operation()
            host.store.before('write', functools.partial(self.end_start, host), times=1)
            self.assertRaises(exception.StartIsOver, run)
            self.assertEqual(([], host.owners()), (host.disagreements(), host.held()), operation.__name__)
            host.audit()
            run()
            check()
            self.assertEqual(([], host.owners(), []), (host.disagreements(), host.held(), wrong(host)),
                             operation.__name__)

    def test_what_an_earlier_start_has_sent_stands(self) -> None:
        for operation in (self.claim, self.narrow, self.exchange, self.adopt):
            host, run, check = operation()
            host.store.after('write', functools.partial(self.end_start, host), times=1)
            with contextlib.suppress(exception.StartIsOver):
                run()
            host.wait()
            self.assertEqual(([], host.owners()), (host.disagreements(), host.held()), operation.__name__)
            with contextlib.suppress(exception.InstanceHasClaim):
                run()
            host.audit()
            host.wait()
            check()
            self.assertEqual([], wrong(host), operation.__name__)

    def test_a_context_that_an_earlier_start_ended_is_known_to_nobody(self) -> None:
        host, instance = self.host(devices=2), Instance()
        host.spawn(instance, pmem=1)
        migration = host.resize(instance, pmem=1)
        self.assertIsNotNone(host.running.rows.known.context(instance.uuid))
        host.store.after('write', functools.partial(self.end_start, host), times=1)
        # The start anew may be the one that gives the device back by now.
        with contextlib.suppress(exception.StartIsOver, exception.DeviceBusy):
            host.manager.drop_move_claim_at_dest(host.context, instance, migration)
        self.assertEqual([], host.store.contexts(host.manager.state().host_uuid))
        self.assertIsNone(host.running.rows.known.context(instance.uuid))

    def test_a_row_that_a_start_anew_ended_before_it_failed_is_not_lost(self) -> None:
        host, ended = self.host(parents={'p0': 1}), list[object]()
        instance = host.spawn(vgpu=1)

        def interrupt() -> None:
            if not host.owners():
                ended.append(None)
                raise Interrupt

        host.machine.before('unclaim', exception.DeviceBusy('mdev', 'u', 'busy'), times=1)
        self.assertRaises(exception.DeviceBusy, host.delete, instance)
        host.running.end()
        host.store.after('write', interrupt)
        self.assertRaises(Interrupt, host.manager.providers)
        host.store.clear()
        self.assertEqual(([None], [], None), (ended, host.audit(), host.running.gate.report_only))
        host.spawn(vgpu=1)

    def test_who_waits_for_a_start_that_fails_gets_its_error(self) -> None:
        host, waiting = self.host(devices=1), list[int]()
        alone = host.manager._starting_alone

        def starting_alone() -> contextlib.AbstractContextManager[bool]:
            waiting.append(0)
            return alone()

        def fail() -> None:
            while len(waiting) < 4:
                pass
            raise exception.HypervisorUnreachable('fake', 'it does not answer')

        self.patch(host.manager, '_starting_alone', starting_alone)
        host.machine.before('get_usage', fail, times=4)
        before = host.machine.calls['get_usage']
        host.running.end()
        answers = self.together(*[host.manager.assignments] * 4)
        self.assertEqual([exception.HypervisorUnreachable] * 4, list(map(type, answers)))
        self.assertEqual((1, 4), (host.machine.calls['get_usage'] - before, len(set(map(id, answers)))))
        host.machine.clear()
        self.assertEqual((), host.manager.assignments())

    def test_an_interrupt_of_a_thread_in_the_background_ends_the_start(self) -> None:
        self.patch(threading, 'excepthook', lambda _error: None)
        for error in (Interrupt(), MemoryError()):
            host, instance = self.host(devices=1), Instance()
            host.spawn(instance, pmem=1)
            host.delete_guest(instance.uuid)
            before = host.running
            host.machine.before('unclaim', error, times=1)
            host.manager.release(host.context, instance, wait=False)
            before.wipes.wait()
            self.assertTrue(before.is_over)
            host.audit()
            host.wait()
            self.assertEqual(({'d0': FREE}, []), (host.states(), host.audit()))

    def test_an_interrupt_of_the_thread_that_reads_ends_the_start(self) -> None:
        self.patch(threading, 'excepthook', lambda _error: None)
        host = self.host(devices=1)
        host.machine.write(host.machine.add_namespace('new', proven=False), b'theirs')
        before = host.running
        host.machine.before('read', Interrupt(), times=1)
        host.audit()
        before.unproven.wait()
        self.assertTrue(before.is_over)
        host.audit()
        host.running.unproven.wait()
        self.assertEqual({'d0': FREE, 'new': 'withheld: unproven'}, host.states())

    def test_a_claim_of_an_earlier_start_is_this_ones_own(self) -> None:
        host, instance = self.host(devices=1), Instance()
        claim = host.claim(instance, pmem=1)
        host.running.end()
        claim.abort()
        self.assertEqual(({'d0': FREE}, []), (host.states(), host.audit()))

    def test_a_claim_that_fails_after_its_start_is_over_gives_its_devices_back(self) -> None:
        host, instance = self.host(devices=1), Instance()
        claim = host.claim(instance, pmem=1)
        host.store.before('write', functools.partial(self.end_start, host), times=1)
        self.assertRaises(exception.StartIsOver, claim.abort)
        host.audit()
        self.assertEqual(({'d0': FREE}, []), (host.states(), host.audit()))

    def test_no_other_process_can_take_the_host_meanwhile(self) -> None:
        host = self.host(devices=1)
        host.running.end()
        other = host.another_manager()
        self.assertRaises(exception.HostInUse, other.init_host, host.context)
        host.store.before('take_epoch', exception.StoreUnavailable('store', 'gone'), times=1)
        self.assertRaises(exception.StoreUnavailable, host.manager.assignments)
        self.assertRaises(exception.HostInUse, other.init_host, host.context)
        self.assertEqual((), host.manager.assignments())
        host.manager.close()
        other.init_host(host.context)
        other.close()

    def test_a_device_that_its_option_names_may_have_gone_meanwhile(self) -> None:
        """Only a start of the process refuses that."""
        host = self.host(devices=2)
        host.machine.remove(DeviceKey('vpmem', 'd0'))
        host.running.end()
        host.claim(instance := Instance(), pmem=1)
        self.assertEqual({'d1': instance.uuid}, host.owners())

    def test_a_start_that_was_interrupted_before_the_background_began_begins_it_anew(self) -> None:
        host, plain, begun = self.host(devices=1, ready=False), Running.work_in_background, list[Running]()

        def begin(running: Running) -> None:
            if not begun:
                begun.append(running)
                raise Interrupt
            begun.append(running)
            plain(running)

        self.patch(Running, 'work_in_background', begin)
        self.assertRaises(Interrupt, host.manager.init_host, host.context)
        host.manager.init_host(host.context)
        self.assertEqual([host.running], begun[1:])

    def test_a_start_without_a_background_gets_none_anew(self) -> None:
        host = self.host(devices=1, ready=False)
        host.manager.init_host(host.context, background=False)
        self.patch(Running, 'work_in_background', self.fail)
        host.running.end()
        self.assertEqual((), host.manager.assignments())

    # Each returns a host, a call that gives an instance another device, and a check of the result.

    def claim(self) -> Staged:
        host, instance = self.host(devices=2), Instance()
        return host, lambda: host.claim(instance, pmem=1), lambda: self.assertEqual(
            {'d0': instance.uuid}, host.owners())

    def narrow(self) -> Staged:
        host, instance = self.host(), Instance()
        for name, node in (('far', 0), ('near', 1)):
            host.machine.add_namespace(name, numa_node=node)
        host.audit()
        claim = host.claim(instance, pmem=1)
        return host, lambda: host.manager.narrow_claim(host.context, claim, {1}), lambda: self.assertEqual(
            {'near': instance.uuid}, host.owners())

    def exchange(self) -> Staged:
        host, instance = self.host(devices=2), Instance()
        host.claim(instance, pmem=1)
        host.machine.before('realize', lambda: host.machine.remove(DeviceKey('vpmem', 'd0')), times=1)
        host.machine.before('realize', exception.DeviceGone('vpmem', 'd0', 'it broke'), times=1)

        def check() -> None:
            host.wait()
            self.assertEqual({'d1': instance.uuid}, host.owners())
            host.audit()                # it forgets a device that is gone

        return host, lambda: host.manager.realize(host.context, instance), check

    def adopt(self) -> Staged:
        host, instance, key = self.host(devices=2), Instance(), DeviceKey('vpmem', 'd0')
        host.machine.start_guest(instance.uuid, [fake_guests.element('vpmem', fixtures.path_of(
            host.machine.devices[key]))])
        return host, lambda: host.manager.adopt(host.context, instance, [key]), lambda: self.assertEqual(
            {'d0': instance.uuid}, host.owners())

    def interrupt_before(self, host: fixtures.Host, name: str) -> None:
        """Interrupt the next call that tells the ledger something, before the ledger learns of it."""
        ledger = host.running.ledger
        plain = getattr(ledger, name)

        def interrupted(*_arguments: Any) -> None:
            self.patch(ledger, name, plain)
            raise Interrupt

        self.patch(ledger, name, interrupted)

    def test_an_end_of_a_row_that_the_ledger_did_not_learn_of(self) -> None:
        for name in ('retire', 'forget'):
            host, key = self.host(devices=1), DeviceKey('vpmem', 'd0')
            instance = host.spawn(pmem=1)
            host.delete_guest(instance.uuid)
            if name == 'retire':
                host.machine.before('wipe', exception.UnclaimFailed('vpmem', 'd0', 'a bad block'), times=1)
                self.assertRaises(exception.UnclaimFailed, host.manager.release, host.context, instance)
            else:
                host.machine.remove(key)
                host.audit()
            self.interrupt_before(host, name)
            self.assertRaises(Interrupt, host.manager._go_on, host.running, lambda running, name=name, key=key,
                              uuid=instance.uuid: getattr(running.repairs, name)(key, uuid))
            host.audit()
            self.assertEqual(({}, {}), (host.owners(), host.held()), name)

    def test_a_cordon_or_an_end_of_it_that_the_ledger_did_not_learn_of(self) -> None:
        host = self.host(devices=1)
        self.interrupt_before(host, 'stand')
        self.assertRaises(Interrupt, host.manager.operator.cordon, 'vpmem', 'd0')
        self.assertEqual(({'d0': FREE}, []), (host.states(), host.manager.operator.withheld()))
        host.manager.operator.cordon('vpmem', 'd0')
        self.interrupt_before(host, 'stand_down')
        self.assertRaises(Interrupt, host.manager.operator.uncordon, 'vpmem', 'd0')
        self.assertEqual(({'d0': FREE}, []), (host.states(), host.manager.operator.withheld()))

    def test_a_cordon_that_only_the_ledger_learned_of(self) -> None:
        host = self.host(devices=1)
        ledger, plain = host.running.ledger, host.running.ledger.stand

        def interrupted(*arguments: Any) -> None:
            plain(*arguments)
            raise Interrupt

        self.patch(ledger, 'stand', interrupted)
        self.assertRaises(Interrupt, host.manager.operator.cordon, 'vpmem', 'd0')
        self.assertEqual(({'d0': FREE}, []), (host.states(), host.manager.operator.withheld()))
        plain(Target.named('vpmem', 'd0', parent=False), vocabulary.CORDONED)
        host.manager.operator.uncordon('vpmem', 'd0')
        self.assertEqual({'d0': FREE}, host.states())

    def test_a_release_needs_no_ledger(self) -> None:
        host = self.host(devices=1)
        instance = Instance()
        host.claim(instance, pmem=1)
        host.running.ledger.discard()
        host.manager.release(host.context, instance)
        self.assertEqual({'d0': FREE}, host.states())

    def test_without_an_answer_of_the_host_there_is_no_ledger_yet(self) -> None:
        host = self.host(devices=1)
        host.running.ledger.discard()
        host.machine.disconnected = 'it is stopped'
        self.assertRaises(exception.HypervisorUnreachable, host.claim, Instance(), pmem=1)
        self.assertRaises(exception.HypervisorUnreachable, host.manager.providers)
        host.machine.disconnected = None
        host.claim(Instance(), pmem=1)

    def test_who_may_not_wait_for_providers_reads_nothing(self) -> None:
        host = self.host(devices=2)
        before = [(one.uuid, one.totals, one.reserved) for one in host.manager.providers(wait=False)]
        host.running.ledger.discard()
        calls = dict(host.machine.calls)
        self.assertRaises(exception.StartIsOver, host.manager.providers, wait=False)
        self.assertEqual(calls, dict(host.machine.calls))
        host.audit()
        self.assertEqual(before, [(one.uuid, one.totals, one.reserved) for one in host.manager.providers(wait=False)])

    def test_who_asks_one_that_is_gone_just_now_is_told_to_call_again(self) -> None:
        host = self.host(devices=1)
        ledger = host.running.ledger
        ledger.discard()
        self.assertRaises(exception.StartIsOver, lambda: ledger.now)


class LockTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.patch(locks.TRACE, 'wanted', 0)
        self.lock = locks.Lock(locks.READING, 'host')

    def has_it(self) -> bool:
        with self.lock.held(wait=False) as has_it:
            return has_it

    def start_waiter(self, work: Callable[[], object] = lambda: None) -> threading.Thread:
        """Start a thread that waits for the lock, when it waits in its turn."""
        def wait() -> None:
            with self.lock.held():
                work()

        return self.start_in_line(wait)

    def start_in_line(self, wait: Callable[[], object]) -> threading.Thread:
        before = len(self.lock._fair._pending_writers)
        waiter = threading.Thread(target=wait, daemon=True)
        waiter.start()
        while len(self.lock._fair._pending_writers) == before:
            pass
        return waiter

    def test_it_is_one_of_oslo_concurrency_named_by_its_host(self) -> None:
        known, entered = dict[str, Any](), list[Any]()
        find, acquire = lockutils.internal_fair_lock, locks._acquire

        def internal_fair_lock(name: str) -> Any:
            known[name] = find(name)
            return known[name]

        def entering(fair: Any) -> None:
            entered.append(fair)
            acquire(fair)

        self.patch(lockutils, 'internal_fair_lock', internal_fair_lock)
        host = self.useFixture(fixtures.Host(devices=1, name='compute7'))
        self.patch(locks, '_acquire', entering)
        host.claim(Instance(), pmem=1)
        names = [name.split('-') for name, fair in known.items() if fair in entered]
        self.assertLessEqual({'ledger'}, {name[2] for name in names})
        self.assertEqual({('devicetrack', 'compute7')}, {tuple(name[:2]) for name in names if 'ledger' in name})

    def test_the_package_requires_oslo_concurrency(self) -> None:
        setup = configparser.ConfigParser()
        setup.read(pathlib.Path(devicetrack.__file__).parents[1] / 'setup.cfg')
        self.assertIn('oslo.concurrency>=', setup['options']['install_requires'])

    def test_one_at_a_time_in_the_order_of_arrival(self) -> None:
        order: list[int] = []
        with self.lock.held():
            self.assertEqual([False], self.together(self.has_it))
            waiters = [self.start_waiter(functools.partial(order.append, number)) for number in range(5)]
        for waiter in waiters:
            waiter.join()
        self.assertEqual([0, 1, 2, 3, 4], order)

    def test_each_has_a_name_of_its_own(self) -> None:
        with self.lock.held(), locks.Lock(locks.READING, 'host').held(wait=False) as has_it:
            self.assertTrue(has_it)

    def test_who_waits_behind_a_waiter_that_is_torn_out_gets_it(self) -> None:
        """As a signal tears it out, which CPython delivers to the main thread alone."""
        began, go_on, behind = threading.Event(), threading.Event(), list[threading.Thread]()
        self.addCleanup(go_on.set)

        def hold() -> None:
            with self.lock.held():
                began.set()
                go_on.wait(base.HANGS_S)

        def tear() -> None:
            while not self.lock._fair._pending_writers:
                pass
            behind.append(self.start_waiter())
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
            go_on.set()

        def interrupt(_number: int, _frame: object) -> None:
            raise Interrupt

        self.addCleanup(signal.signal, signal.SIGUSR1, signal.signal(signal.SIGUSR1, interrupt))
        for work in (hold, tear):
            threading.Thread(target=work, daemon=True).start()
            began.wait(base.HANGS_S)
        self.assertRaises(Interrupt, self.lock.held().__enter__)
        [waiter] = behind
        waiter.join(base.HANGS_S)
        self.assertFalse(waiter.is_alive())
        self.assertEqual([True], self.together(self.has_it))
        self.assertTrue(self.has_it())

    def test_who_waits_gets_it_when_several_in_the_line_are_torn_out(self) -> None:
        def be_torn_out() -> None:
            with contextlib.suppress(Interrupt), self.lock.held():
                pass

        with self.lock.held():
            torn = [self.start_in_line(be_torn_out) for _ in range(3)]
            waiter = self.start_waiter()
            for thread in torn:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0),
                                                           ctypes.py_object(Interrupt))
        for thread in (*torn, waiter):
            thread.join(base.HANGS_S)
            self.assertFalse(thread.is_alive())
        self.assertTrue(self.has_it())

    def test_who_waits_gets_it_wherever_in_the_lock_an_interrupt_came(self) -> None:
        for number in itertools.count():
            self.lock, waiters = locks.Lock(locks.READING, 'host'), list[threading.Thread]()

            def hold(waiters: list[threading.Thread] = waiters) -> None:
                with self.lock.held():
                    waiters.append(self.start_waiter())

            lines = interrupts.LinesOfLocks(number)
            came_out = lines.run(hold)
            locks.let_go(0)
            for waiter in waiters:
                waiter.join(base.HANGS_S)
                self.assertFalse(waiter.is_alive(), lines.where)
            [answer] = self.together(self.has_it)
            self.assertTrue(answer is True or isinstance(answer, exception.StartIsOver), (answer, lines.where))
            if not came_out:
                break
        self.assertLess(10, number)

    def test_a_thread_that_has_it_does_not_get_it_again(self) -> None:
        with self.lock.held():
            error = self.assertRaises(exception.ReentrantCall, self.lock.held().__enter__)
            self.assertEqual(locks.READING, error.lock)
            self.assertFalse(self.has_it())
            self.assertEqual([False], self.together(self.has_it))
        self.assertTrue(self.has_it())

    def interrupted_as_its_block_begins(self, of: Callable[[], contextlib.AbstractContextManager[object]]) -> None:
        """Take the lock in a block that an interrupt keeps from its beginning, and let go of it."""
        lost = of()
        lost.__enter__()
        self.addCleanup(locks.let_go, 0)
        locks.let_go(0)
        with self.lock.held():
            del lost
            gc.collect()
            self.assertEqual([False], self.together(self.has_it))
        self.assertEqual([True], self.together(self.has_it))

    def test_who_has_it_keeps_it_when_a_block_is_collected_that_was_interrupted(self) -> None:
        self.interrupted_as_its_block_begins(self.lock.held)

    def test_who_has_it_keeps_it_when_a_generator_is_collected_that_was_interrupted(self) -> None:
        @contextlib.contextmanager
        def working() -> Iterator[None]:
            with self.lock.held():
                yield

        self.interrupted_as_its_block_begins(working)

    def test_who_has_it_keeps_it_after_an_interrupt_in_the_context_managers_of_others(self) -> None:
        """Between the first half of a generator and the block, where a signal may come."""
        enter, kept = contextlib._GeneratorContextManager.__enter__, list[BaseException]()

        def interrupted(of: Any) -> Any:
            enter(of)
            raise Interrupt

        self.patch(contextlib._GeneratorContextManager, '__enter__', interrupted)
        try:
            with self.lock.held():
                pass
        except Interrupt as error:
            kept.append(error)
        self.patch(contextlib._GeneratorContextManager, '__enter__', enter)
        locks.let_go(0)
        with self.lock.held():
            kept.clear()
            gc.collect()
            self.assertTrue(self.lock._fair.is_writer(check_pending=False))

    def test_what_an_interrupt_left_held_is_free_when_the_call_has_ended(self) -> None:
        lost = self.lock.held()
        lost.__enter__()
        self.assertEqual([False], self.together(self.has_it))
        locks.let_go(0)
        self.assertEqual([True], self.together(self.has_it))


class OlderLockTestCase(LockTestCase):
    """The same with the fasteners of Debian 13."""

    def setUp(self) -> None:
        super().setUp()
        self.patch(locks, '_acquire', locks.acquire_older)
        self.patch(locks, '_release', locks.release_older)


class ReentrantCallTestCase(base.TestCase):
    """A call inside another one of the same thread."""

    def setUp(self) -> None:
        super().setUp()
        self.patch(locks.TRACE, 'wanted', 0)
        self.host = self.useFixture(fixtures.Host(devices=2))

    def test_a_signal_handler_changes_nothing_in_the_middle_of_a_claim(self) -> None:
        errors: list[BaseException] = []
        inner, outer = Instance(), Instance()
        plain = allocator._taken

        def handler(_number: int, _frame: object) -> None:
            errors.append(self.assertRaises(exception.ReentrantCall, self.host.claim, inner, pmem=1))

        def interrupted(*arguments: Any, **named: Any) -> Any:
            signal.raise_signal(signal.SIGUSR1)
            return plain(*arguments, **named)

        self.addCleanup(signal.signal, signal.SIGUSR1, signal.signal(signal.SIGUSR1, handler))
        self.patch(allocator, '_taken', interrupted)
        self.host.claim(outer, pmem=2)
        # Once for each device that the outer claim takes.
        self.assertEqual(({'d0': outer.uuid, 'd1': outer.uuid}, 2), (self.host.held(), len(errors)))
        self.assertEqual([], self.host.audit())

    def test_a_signal_handler_that_claims_in_the_middle_of_a_commit_writes_nothing(self) -> None:
        host, errors, inner, outer = self.host, list[BaseException](), Instance(), Instance()
        store: Any = host.store.store

        def handler(_number: int, _frame: object) -> None:
            errors.append(self.assertRaises(exception.ReentrantCall, host.claim, inner, pmem=1))

        self.addCleanup(signal.signal, signal.SIGUSR1, signal.signal(signal.SIGUSR1, handler))
        sa.event.listen(store.engine, 'commit', lambda _connection: signal.raise_signal(signal.SIGUSR1), once=True)
        host.claim(outer, pmem=1)
        self.assertEqual(({'d0': outer.uuid}, 1), (host.held(), len(errors)))
        host.claim(inner, pmem=1)
        self.assertEqual([], host.audit())

    def test_who_works_on_an_instance_does_not_wait_for_a_wipe_that_waits_for_it(self) -> None:
        go_on, wiping = threading.Event(), threading.Event()
        self.addCleanup(go_on.set)

        def wipe() -> None:
            wiping.set()
            go_on.wait(base.HANGS_S)

        instance = self.host.spawn(pmem=1)
        self.host.machine.delete_guest(instance.uuid)
        self.host.machine.before('unclaim', KeyboardInterrupt(), times=1)
        self.assertRaises(KeyboardInterrupt, self.host.manager.release, None, instance)
        self.host.machine.before('wipe', wipe)
        self.host.restart(wait=False)
        wiping.wait(base.HANGS_S)
        manager, asked = self.host.manager, list[str]()

        def call(*_: object) -> None:
            for inner in (lambda: manager.release(None, instance), manager.wait_for_wipes):
                asked.append(self.assertRaises(exception.ReentrantCall, inner).lock)

        with manager._ready().rows.working(instance.uuid):      # as where the manager asks the service
            call()
        self.assertEqual([locks.INSTANCE] * 2, asked)
        go_on.set()
        self.host.wait()
        self.assertEqual({}, self.host.held())

    def test_who_looks_meanwhile_sees_no_half_of_the_others_work(self) -> None:
        rows, ended = self.host.manager._ready().rows, threading.Event()

        def work() -> None:
            with contextlib.ExitStack() as stack:
                for number in range(3000):
                    stack.enter_context(rows.working(f'instance {number}'))
            ended.set()

        def look() -> None:
            while not ended.is_set():
                rows.check_not_inside()
                rows.check_not_inside('instance 1')

        self.addCleanup(sys.setswitchinterval, sys.getswitchinterval())
        sys.setswitchinterval(1e-6)
        self.assertEqual([None] * 3, self.together(work, look, look))

    def test_the_thread_of_a_wipe_does_not_wait_for_itself(self) -> None:
        """It tells the service's meter of its work."""
        instance, errors = self.host.spawn(pmem=1), list[str]()
        self.host.machine.delete_guest(instance.uuid)
        self.host.machine.before('unclaim', KeyboardInterrupt(), times=1)
        self.assertRaises(KeyboardInterrupt, self.host.manager.release, None, instance)

        def wipe() -> None:
            manager = self.host.manager
            for inner in (lambda: manager.release(None, instance), manager.wait_for_wipes):
                errors.append(self.assertRaises(exception.ReentrantCall, inner).lock)

        self.host.machine.before('wipe', wipe)
        self.host.restart(wait=False)
        self.host.wait()
        self.assertEqual([locks.BACKGROUND] * 2, errors)

    def test_the_service_that_calls_while_it_is_asked_gets_an_error(self) -> None:
        errors: list[BaseException] = []
        instance = self.host.spawn(pmem=1)

        def asked(*_: object) -> None:
            errors.append(self.assertRaises(exception.ReentrantCall, self.host.audit))

        self.patch(self.host.service, 'instances', asked)
        self.host.audit()
        self.assertEqual(({'d0': instance.uuid}, 1), (self.host.held(), len(errors)))
