"""Asking side by side: everything is asked once, errors come out, and no thread is left."""

import threading

from devicetrack.tests import base
from devicetrack.virt.libvirt import side_by_side


class SideBySideTestCase(base.TestCase):

    def setUp(self):
        super().setUp()
        before = set(threading.enumerate())
        self.addCleanup(lambda: self.assertEqual(before, set(threading.enumerate())))

    def test_asks_each_once(self):
        for number in (0, 1, side_by_side.THREADS, 100 * side_by_side.THREADS):
            asked: list[int] = []
            answers = side_by_side.ask(range(number), lambda name, asked=asked: asked.append(name) or -name)
            self.assertEqual(list(range(number)), sorted(asked))
            self.assertEqual([-name for name in range(number)], answers)

    def test_asks_several_at_a_time(self):
        together = threading.Barrier(side_by_side.THREADS)
        side_by_side.ask(range(side_by_side.THREADS), lambda name: together.wait(60))

    def test_an_error_ends_it(self):
        asked: list[int] = []

        def question(name):
            asked.append(name)
            if name == 3:
                raise KeyError('gone')

        self.assertRaises(KeyError, side_by_side.ask, range(10_000), question)
        self.assertLess(len(asked), 10_000)

    def test_an_interrupt_of_the_caller_ends_it(self):
        caller = threading.current_thread()
        begun = threading.Event()

        def question(name):
            if threading.current_thread() is caller:
                begun.wait(60)
                raise KeyboardInterrupt
            begun.set()

        self.assertRaises(KeyboardInterrupt, side_by_side.ask, range(1_000_000), question)
