"""A clock that stands still while a process waits for a processor."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import time

from devicetrack.tests import base
from devicetrack.tests.host import clock as clocks

# Says when it is on the processor that it is to share, and is busy.
BUSY = 'import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])}); print(flush=True)\nwhile True: pass'


class ClockTestCase(base.TestCase):

    def busy(self, processor: int) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, '-c', BUSY, str(processor)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        with process.stdout as said:
            said.readline()
        return process

    def test_stands_still_while_the_process_waits_for_a_processor(self) -> None:
        processor = min(os.sched_getaffinity(0))
        first, _second = self.busy(processor), self.busy(processor)
        clock = clocks.Clock(first.pid)
        before, began, real = clocks.waited_s(first.pid), clock.now(), time.monotonic()
        # Two that share a processor wait half of the time each; it does not matter how long that takes.
        while clocks.waited_s(first.pid) < before + 0.2:
            time.sleep(0.01)
        self.assertLess(clock.now() - began, time.monotonic() - real - 0.1)

    def test_goes_on_while_the_process_sleeps(self) -> None:
        process = subprocess.Popen(['sleep', '600'])
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        clock = clocks.Clock(process.pid)
        self.assertRaises(queue.Empty, clock.get, queue.SimpleQueue(), 0.05)

    def test_never_goes_back(self) -> None:
        processor = min(os.sched_getaffinity(0))
        first, _second = self.busy(processor), self.busy(processor)
        clock = clocks.Clock(first.pid)
        while clocks.waited_s(first.pid) < 0.05:
            time.sleep(0.01)
        before = clock.now()
        first.kill()
        first.wait()
        self.assertEqual(0.0, clocks.waited_s(first.pid))
        self.assertGreaterEqual(clock.now(), before)

    def test_an_item_comes_at_once(self) -> None:
        items: queue.SimpleQueue[str] = queue.SimpleQueue()
        items.put('item')
        self.assertEqual('item', clocks.Clock().get(items, 0))
