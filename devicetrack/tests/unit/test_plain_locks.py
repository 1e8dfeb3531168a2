"""What the library takes for granted of threading.Lock in a with statement, where it has no lock of its own making.

CPython 3.11 to 3.13 runs handlers of signals after calls, at jumps back and where a function begins. It does so neither
between the acquisition of a lock that is written in C and the block, nor between the block's end and the release. So
no such lock is left held by what a handler raises, nor by the lack of memory: the release needs none. A trace function
alone can leave one held, where the block ends, because there the line of the statement begins once more.
"""

from __future__ import annotations

import random
import signal
import threading
import types

from devicetrack.tests import base
from devicetrack.tests.interrupts import Interrupt

_ROUNDS = 3000
_LONGEST_S = 6e-5


class PlainLockTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.lock = threading.Lock()
        self.shared: dict[int, int] = {}
        self.armed = False
        before = signal.signal(signal.SIGALRM, self.interrupt)
        self.addCleanup(signal.signal, signal.SIGALRM, before)
        self.addCleanup(signal.setitimer, signal.ITIMER_REAL, 0)

    def interrupt(self, _number: int, _frame: types.FrameType | None) -> None:
        if self.armed:
            self.armed = False
            raise Interrupt

    def use(self, number: int) -> int | None:
        with self.lock:
            self.shared[number % 7] = number
            if number % 2:
                return number
            for key in range(3):
                self.shared[key] = len(self.shared)
        return None

    def test_what_a_signal_raises_leaves_it_free(self) -> None:
        chance = random.Random(0)
        for _round in range(_ROUNDS):
            number, self.armed = 0, True
            try:
                signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-5, _LONGEST_S))
                while True:
                    self.use(number)
                    number += 1
            except Interrupt:
                self.assertFalse(self.lock.locked())
