"""Calls with a timeout: another thread makes the call, and the caller waits for its answer only so long.

A call into a library cannot be ended from outside. So the thread of a late call goes on waiting and keeps the objects
that the call needs. The thread is used again once its answer has come. While many calls are unanswered, no further call
is made: the same daemon would not answer that either.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
import os
import queue
import threading
from typing import Any
from typing import Final
from typing import TypeVar

# More calls than a host's operations wait for at a time, and few enough threads to do no harm.
MOST_UNANSWERED: Final = 16

Answer = TypeVar('Answer')


class Late(Exception):
    """No answer came in time. The call may still be carried out."""


class _Call:
    """A call on its way, and its answer: a value, or an error that was raised."""

    __slots__ = ('work', 'answer')

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work = work
        self.answer: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()


class Calls:
    """Makes calls.

    :param timeout_s: how long each may take
    """

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._idle: collections.deque[queue.SimpleQueue[_Call]] = collections.deque()
        self._unanswered: dict[int, _Call] = {}

    def call(self, work: Callable[[], Answer]) -> Answer:
        """Return or raise what ``work`` does.

        :raises Late: no answer in time, or too many earlier calls have no answer yet
        """
        if self._pid != os.getpid():            # the threads are the parent's
            self._begin()
        if len(self._unanswered) >= MOST_UNANSWERED:
            raise Late(f'{len(self._unanswered)} earlier calls are not answered yet')
        call = _Call(work)
        try:
            calls = self._idle.pop()
        except IndexError:
            calls = queue.SimpleQueue()
            threading.Thread(target=self._work, args=(calls,), name='devicetrack-libvirt', daemon=True).start()
        self._unanswered[id(call)] = call
        calls.put(call)
        try:
            answer, error = call.answer.get(timeout=self.timeout_s)
        except queue.Empty:
            raise Late(f'no answer within {self.timeout_s} s') from None
        if error is not None:
            try:
                raise error
            finally:
                del error                       # else it would refer to this frame, which refers to it
        result: Answer = answer
        return result

    def _work(self, calls: queue.SimpleQueue[_Call]) -> None:
        idle, unanswered = self._idle, self._unanswered
        while True:
            call = calls.get()
            answer: Any = None
            error: BaseException | None = None
            try:
                answer = call.work()
            except BaseException as raised:
                error = raised
            unanswered.pop(id(call), None)
            idle.append(calls)
            call.answer.put((answer, error))
            # The next call may be long in coming. The objects of this call must not stay in memory until then.
            del call, answer, error
