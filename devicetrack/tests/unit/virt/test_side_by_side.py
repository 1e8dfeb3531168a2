"""Asking side by side: everything is asked once, errors come out, and no thread is left."""

import threading
import time
from typing import Any

from devicetrack.tests import base
from devicetrack.virt.libvirt import bounded
from devicetrack.virt.libvirt import side_by_side


def same(answer: Any) -> Any:
    return answer


class SideBySideTestCase(base.TestCase):

    def setUp(self):
        super().setUp()
        before = set(threading.enumerate())
        self.addCleanup(lambda: self.assertEqual(before, set(threading.enumerate())))

    def test_asks_each_once(self):
        for number in (0, 1, side_by_side.THREADS, 100 * side_by_side.THREADS):
            asked: list[int] = []
            answers = side_by_side.ask(range(number), lambda name, asked=asked: asked.append(name) or -name,
                                       lambda answer: 2 * answer, base.HANGS_S)
            self.assertEqual(list(range(number)), sorted(asked))
            self.assertEqual([-2 * name for name in range(number)], answers)

    def test_asks_several_at_a_time(self):
        together = threading.Barrier(side_by_side.THREADS)
        side_by_side.ask(range(side_by_side.THREADS), lambda name: together.wait(60), same, base.HANGS_S)

    def test_an_error_ends_it(self):
        asked: list[int] = []

        def question(name):
            asked.append(name)
            if name == 3:
                raise KeyError('gone')

        self.assertRaises(KeyError, side_by_side.ask, range(10_000), question, same, base.HANGS_S)
        self.assertLess(len(asked), 10_000)

    def test_the_caller_uses_the_answers_in_its_own_thread(self):
        users = side_by_side.ask(range(100), same, lambda answer: threading.current_thread(), base.HANGS_S)
        self.assertEqual({threading.current_thread()}, set(users))

    def test_few_answers_wait_for_the_caller(self):
        asked: list[int] = []

        def question(name):
            asked.append(name)
            return name

        def use(answer):
            if answer == 0:
                time.sleep(0.3)
            return len(asked)

        ahead = side_by_side.ask(range(1000), question, use, base.HANGS_S)
        self.assertLess(ahead[0], 100)

    def test_an_error_of_the_caller_ends_it(self):
        for error in (KeyError, KeyboardInterrupt):
            asked: list[int] = []

            def question(name, asked=asked):
                asked.append(name)

            def use(answer, error=error):
                raise error(answer)

            self.assertRaises(error, side_by_side.ask, range(10_000), question, use, base.HANGS_S)
            self.assertLess(len(asked), 100)
            for thread in threading.enumerate():
                if thread.name == 'devicetrack-ask':
                    thread.join(base.HANGS_S)

    def test_an_interrupt_in_an_answer_comes_out(self):
        def question(name):
            raise KeyboardInterrupt

        self.assertRaises(KeyboardInterrupt, side_by_side.ask, range(1_000_000), question, same, base.HANGS_S)

    def test_who_hangs_does_not_hold_up_the_caller(self):
        goes_on, began = threading.Event(), time.monotonic()
        self.assertRaises(bounded.Late, side_by_side.ask, range(3), lambda name: name and goes_on.wait(), same, 2)
        self.assertLess(time.monotonic() - began, 4)
        goes_on.set()
        for thread in threading.enumerate():
            if thread.name == 'devicetrack-ask':
                thread.join()
