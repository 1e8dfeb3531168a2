"""Calls have an end, whatever becomes of what they call."""

import threading
import time
import types

from devicetrack.claims.locked_ledger import LedgerLock
from devicetrack.testing import no_io
from devicetrack.tests import base
from devicetrack.virt.libvirt import bounded


class CallsTestCase(base.TestCase):

    def test_answers_and_errors_are_those_of_the_call(self):
        calls = bounded.Calls(base.HANGS_S)
        self.assertEqual(7, calls.call(lambda: 7))
        self.assertRaises(KeyError, calls.call, lambda: {'a': 1}['gone'])

    def test_one_that_hangs_is_given_up(self):
        calls, goes_on = bounded.Calls(0.01), threading.Event()
        self.assertRaises(bounded.Late, calls.call, goes_on.wait)
        goes_on.set()
        while calls._unanswered:
            pass
        calls.timeout_s = base.HANGS_S
        self.assertEqual(7, calls.call(lambda: 7))

    def test_while_many_hang_no_other_is_made(self):
        self.patch(bounded, 'MOST_UNANSWERED', 2)
        calls, goes_on = bounded.Calls(0.01), threading.Event()
        for _number in range(2):
            self.assertRaises(bounded.Late, calls.call, goes_on.wait)
        self.assertRaises(bounded.Late, calls.call, self.fail)
        goes_on.set()

    def test_while_many_are_on_their_way_others_wait_for_a_place(self):
        self.patch(bounded, 'MOST_UNANSWERED', 2)
        calls, goes_on = bounded.Calls(base.HANGS_S), threading.Event()
        busy = [threading.Thread(target=calls.call, args=(goes_on.wait,)) for _number in range(2)]
        for thread in busy:
            thread.start()
        while len(calls._unanswered) < 2:
            pass
        calls.timeout_s = 0.01
        self.assertRaises(bounded.NotMade, calls.call, self.fail)
        calls.timeout_s = base.HANGS_S
        self.patch(bounded, 'time', types.SimpleNamespace(monotonic=time.monotonic, sleep=lambda _s: goes_on.set()))
        self.assertEqual(7, calls.call(lambda: 7))
        for thread in busy:
            thread.join()

    def test_those_of_the_callers_own_thread_count_too(self):
        self.patch(bounded, 'MOST_UNANSWERED', 1)
        calls, goes_on = bounded.Calls(0.01), threading.Event()
        thread = threading.Thread(target=calls.natively, args=(goes_on.wait, 'a'))
        thread.start()
        while not calls.is_late('a'):
            pass
        self.assertFalse(calls.is_late('b'))
        self.assertRaises(bounded.NotMade, calls.natively, self.fail)
        goes_on.set()
        thread.join()
        self.assertFalse(calls.is_late('a'))
        self.assertEqual(7, calls.natively(lambda: 7))

    def test_many_are_made_by_one_thread_and_answered_in_their_order(self):
        for number in (0, 1, 100):
            answers = [*bounded.Calls(base.HANGS_S).each(range(number), lambda one: (one, threading.get_ident()))]
            self.assertEqual([*range(number)], [one for one, _thread in answers])
            self.assertEqual(min(number, 1), len({thread for _one, thread in answers}))

    def test_an_error_ends_many(self):
        asked: list[int] = []

        def work(one):
            asked.append(one)
            raise KeyError(one)

        self.assertRaises(KeyError, lambda: [*bounded.Calls(base.HANGS_S).each(range(100), work)])
        self.assertEqual([0], asked)

    def test_one_of_many_that_hangs_is_given_up(self):
        goes_on = threading.Event()
        self.assertRaises(bounded.Late, lambda: [*bounded.Calls(0.01).each(range(3), lambda one: goes_on.wait())])
        goes_on.set()

    def test_one_under_the_lock_of_the_ledger_is_seen(self):
        def call():
            with LedgerLock().held():
                bounded.Calls(base.HANGS_S).call(lambda: None)

        self.assertRaises(no_io.IOUnderTheLock, call)
        self.assertNotEqual([], self.no_io.expect())
