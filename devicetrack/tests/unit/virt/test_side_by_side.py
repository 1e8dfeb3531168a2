"""Asking side by side: everything is asked once, errors come out, and no thread is left."""

import threading
import time

from devicetrack.tests import base
from devicetrack.virt.libvirt import bounded
from devicetrack.virt.libvirt import side_by_side


class SideBySideTestCase(base.TestCase):

    def setUp(self):
        super().setUp()
        before = set(threading.enumerate())
        self.addCleanup(lambda: self.assertEqual(before, set(threading.enumerate())))

    def test_asks_each_once(self):
        for number in (0, 1, side_by_side.THREADS, 100 * side_by_side.THREADS):
            asked: list[int] = []
            answers = side_by_side.ask(range(number), lambda name, asked=asked: asked.append(name) or -name,
                                       base.HANGS_S)
            self.assertEqual(list(range(number)), sorted(asked))
            self.assertEqual([-name for name in range(number)], answers)

    def test_asks_several_at_a_time(self):
        together = threading.Barrier(side_by_side.THREADS)
        side_by_side.ask(range(side_by_side.THREADS), lambda name: together.wait(60), base.HANGS_S)

    def test_an_error_ends_it(self):
        asked: list[int] = []

        def question(name):
            asked.append(name)
            if name == 3:
                raise KeyError('gone')

        self.assertRaises(KeyError, side_by_side.ask, range(10_000), question, base.HANGS_S)
        self.assertLess(len(asked), 10_000)

    def test_an_interrupt_in_an_answer_comes_out(self):
        def question(name):
            raise KeyboardInterrupt

        self.assertRaises(KeyboardInterrupt, side_by_side.ask, range(1_000_000), question, base.HANGS_S)

    def test_who_hangs_does_not_hold_up_the_caller(self):
        goes_on, began = threading.Event(), time.monotonic()
        self.assertRaises(bounded.Late, side_by_side.ask, range(3), lambda name: name and goes_on.wait(), 2)
        self.assertLess(time.monotonic() - began, 4)
        goes_on.set()
        for thread in threading.enumerate():
            if thread.name == 'devicetrack-ask':
                thread.join()
