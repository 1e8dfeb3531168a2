"""What takes longer than it may is noticed, once, and nothing else is."""

import queue
import threading

from devicetrack import watchdog
from devicetrack.tests import base
from devicetrack.tests import interrupts


class WatchdogTestCase(base.TestCase):

    def test_what_is_late_is_told_while_it_goes_on(self):
        told: queue.SimpleQueue[str] = queue.SimpleQueue()
        with watchdog.watch(base.HANGS_S, lambda: told.put('outer')), watchdog.watch(0.01, lambda: told.put('inner')):
            self.assertEqual('inner', told.get(timeout=base.HANGS_S))
        self.assertTrue(told.empty())

    def test_when_the_block_has_ended_so_has_what_was_told(self):
        begun, ended = threading.Event(), []

        def late():
            begun.set()
            ended.append(threading.active_count())

        with watchdog.watch(0.01, late):
            begun.wait()
        self.assertEqual(1, len(ended))

    def test_an_error_of_one_does_not_end_the_others(self):
        told = threading.Event()

        def fail():
            raise RuntimeError

        with watchdog.watch(0.01, fail), watchdog.watch(0.02, told.set):
            self.assertTrue(told.wait(base.HANGS_S))

    def test_all_share_one_thread(self):
        for _number in range(5):
            with watchdog.watch(base.HANGS_S, lambda: None):
                pass
        self.assertEqual(1, [thread.name for thread in threading.enumerate()].count('devicetrack-watchdog'))

    def test_an_interrupt_at_any_line_of_a_block_keeps_nobody_waiting(self):
        def block():
            with watchdog.watch(base.HANGS_S, lambda: None):
                pass

        block()                                 # the thread is there
        counted = interrupts.Lines()
        counted.run(block)
        self.assertLess(5, counted.count)
        for number in range(counted.count):
            lines = interrupts.Lines(number)
            thread = threading.Thread(target=lines.run, args=(block,), daemon=True)
            thread.start()
            thread.join(base.HANGS_S)
            self.assertFalse(thread.is_alive(), lines.where)
