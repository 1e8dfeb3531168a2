"""Threads that find no memory in their first lines: CPython's own start waits for them for ever."""

from __future__ import annotations

from collections.abc import Callable
import threading

from devicetrack import exception
from devicetrack import threads
from devicetrack import watchdog
from devicetrack.claims import workers
from devicetrack.testing import fixtures
from devicetrack.testing.fixtures import FREE
from devicetrack.tests import base
from devicetrack.virt.libvirt import bounded


class ThreadsTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.patch(threads, '_START_S', 0.01)
        self.patch(threading, 'excepthook', lambda _arguments: None)
        self.has_memory = False
        bootstrap = threads.Thread._bootstrap       # type: ignore[attr-defined]

        def begin(thread: threads.Thread) -> None:
            if self.has_memory:
                bootstrap(thread)

        self.patch(threads.Thread, '_bootstrap', begin)

    def ends(self, call: Callable[[], object]) -> None:
        """The call ends, whatever it raises. It hangs in a thread of its own."""
        caller = threading.Thread(target=self.quietly, args=(call,), daemon=True)
        caller.start()
        caller.join(base.HANGS_S)
        self.assertFalse(caller.is_alive())

    def quietly(self, call: Callable[[], object]) -> None:
        try:
            call()
        except (OSError, bounded.Late, exception.DeviceTrackError):
            pass


class StartTestCase(ThreadsTestCase):

    def test_a_thread_that_died_is_not_waited_for(self) -> None:
        self.assertRaises(threads.NotStarted, threads.Thread('test', lambda: None).start)

    def test_a_system_without_threads_is_the_same_error(self) -> None:
        def refuse(*_arguments: object) -> None:
            raise RuntimeError("can't start new thread")

        self.patch(threading.Thread, 'start', refuse)
        self.assertRaises(threads.NotStarted, threads.Thread('test', lambda: None).start)

    def test_a_thread_that_was_only_slow_does_nothing(self) -> None:
        done: list[None] = []
        thread = threads.Thread('test', lambda: done.append(None))
        self.assertRaises(threads.NotStarted, thread.start)
        thread.run()
        self.assertEqual([], done)

    def test_a_thread_with_memory_runs(self) -> None:
        self.has_memory = True
        self.patch(threads, '_START_S', base.HANGS_S)
        done: list[str] = []
        thread = threads.Thread('test', done.append, ('x',))
        thread.start()
        thread.join()
        self.assertEqual(['x'], done)


class PrivateNamesTestCase(base.TestCase):
    """What :mod:`devicetrack.threads` takes of CPython's threads, which promise none of it."""

    scenarios = base.table(
        ('the event that start waits for', threading.Thread(), '_started', threading.Event),
        ('the list of threads that start', threading, '_limbo', dict),
        ('the lock of this list', threading, '_active_limbo_lock', type(threading.RLock())),
        names=('owner', 'name', 'type'))
    owner: object
    name: str
    type: type

    def test_start_uses_it(self) -> None:
        self.assertIsInstance(getattr(self.owner, self.name, None), self.type, self.name)
        self.assertIn(self.name, threading.Thread.start.__code__.co_names)


class UsersTestCase(ThreadsTestCase):

    def remember(self) -> None:
        self.has_memory = True
        self.patch(threads, '_START_S', base.HANGS_S)

    def test_work_in_the_background_waits_for_memory_and_no_lock_is_held(self) -> None:
        pieces = [1, 2]
        done: list[int] = []
        crew = workers.Workers('test', 1, lambda: pieces.pop() if pieces else None, done.append)
        held: list[bool] = []
        begin = threads.Thread._bootstrap           # type: ignore[attr-defined]

        def look(thread: threads.Thread) -> None:
            with crew._lock.held(wait=False) as is_free:
                held.append(not is_free)
            begin(thread)

        self.patch(threads.Thread, '_bootstrap', look)
        self.ends(crew.start)
        self.assertEqual(([], [False]), (done, held))
        self.remember()
        crew.start()
        crew.wait()
        self.assertEqual([2, 1], done)

    def test_a_call_of_a_library_is_not_made(self) -> None:
        calls = bounded.Calls(base.HANGS_S)
        for _ in range(bounded.MOST_UNANSWERED + 1):
            self.assertRaises(bounded.NotMade, calls.call, lambda: 1)
        self.assertRaises(bounded.NotMade, lambda: [*calls.each('ab', str)])
        self.remember()
        self.assertEqual(1, calls.call(lambda: 1))

    def end(self, dog: watchdog.Watchdog) -> None:
        """End its thread, which other tests would count."""
        def end() -> None:
            raise SystemExit

        thread = dog._thread
        assert thread is not None
        with dog.watch(0.0, end):
            thread.join()

    def test_a_watch_without_its_thread_is_an_error_of_the_store(self) -> None:
        dog = watchdog.Watchdog()
        self.addCleanup(self.end, dog)

        def block() -> None:
            with dog.watch(base.HANGS_S, lambda: None):
                pass

        self.assertRaises(OSError, block)
        self.remember()
        block()

    def test_a_block_is_not_held_by_a_watch_whose_thread_dies(self) -> None:
        self.remember()
        dog, late = watchdog.Watchdog(), threading.Event()

        def dies() -> None:
            late.set()
            raise SystemExit

        def block() -> None:
            with dog.watch(0.01, dies):
                late.wait(base.HANGS_S)

        self.ends(block)

    def test_a_release_and_an_audit_end_and_the_wipe_comes_later(self) -> None:
        host = self.useFixture(fixtures.Host(devices=2))
        instances = [host.spawn(pmem=1) for _ in range(2)]
        for instance in instances:
            host.machine.delete_guest(instance.uuid)
        host.machine.before('unclaim', KeyboardInterrupt(), times=1)
        self.assertRaises(KeyboardInterrupt, host.manager.release, None, instances[0])
        self.ends(lambda: host.restart(wait=False))
        self.ends(lambda: host.manager.release(None, instances[1]))
        self.ends(lambda: host.audit(wait=False))
        self.remember()
        host.audit()
        self.assertEqual({'d0': FREE, 'd1': FREE}, host.states())
