"""Calls with a timeout: another thread makes the call, and the caller waits for its answer only so long.

A call into a library cannot be ended from outside. So the thread of a late call goes on waiting and keeps the objects
that the call needs, until its answer has come. While many calls are late, no further call is made: the same daemon
would not answer that either. A call waits for a place while too many others are on their way.

In a process whose threads are eventlet's, a call into a C library stops all of them until it returns, also the one that
waits for its answer only so long. There such calls are made in the native threads of eventlet's pool.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
import importlib
import os
import queue
import sys
import threading
import time
from typing import Any
from typing import Final
from typing import TypeVar

from devicetrack import threads

# More calls than a host's operations usually wait for at a time, and few enough threads to do no harm.
MOST_UNANSWERED: Final = 16
# A thread of eventlet's pool cannot wake one of eventlet's own, so whoever waits for a place looks so often.
_POLL_S: Final = 0.02

Answer = TypeVar('Answer')
Item = TypeVar('Item')


class Late(Exception):
    """No answer came in time. The call may still be carried out."""


class NotMade(Late):
    """The call was not made: too many earlier ones have no answer yet, or no thread could be started."""


class _Call:
    """A call on its way, and its answer: a value, or an error that was raised."""

    __slots__ = ('work', 'about', 'deadline', 'answer')

    def __init__(self, work: Callable[[], Any], about: str | None, timeout_s: float) -> None:
        self.work, self.about = work, about
        self.deadline = time.monotonic() + timeout_s
        self.answer: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

    @property
    def left_s(self) -> float:
        return max(0.0, self.deadline - time.monotonic())


class Calls:
    """Makes calls, each in a thread of its own, and many of one sort in one thread.

    :param timeout_s: how long each may take
    :param into_c: the calls do nothing but call a C library: they may run in a native thread beside eventlet's
    """

    def __init__(self, timeout_s: float, into_c: bool = False) -> None:
        self.timeout_s, self._into_c = timeout_s, into_c
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._unanswered: dict[int, _Call] = {}
        self._placing = threading.RLock()      # a signal handler may come in the middle

    def call(self, work: Callable[[], Answer], about: str | None = None) -> Answer:
        """Return or raise what ``work`` does.

        :param about: what the call asks about, for :meth:`is_late`
        :raises NotMade: too many earlier calls have no answer yet; ``work`` is never done
        :raises Late: no answer in time
        """
        call = self._placed(work, about)
        result: Answer
        if self._into_c and (eventlet := _green()) is not None:
            with eventlet.Timeout(call.left_s, Late(f'no answer within {self.timeout_s} s')):
                result = eventlet.tpool.execute(self._carry_out, call)
                return result
        try:
            threads.Thread('devicetrack-libvirt', self._answer, (call,)).start()
        except threads.NotStarted as unstarted:
            self._unanswered.pop(id(call), None)
            raise NotMade(unstarted.strerror) from unstarted
        except BaseException:
            self._unanswered.pop(id(call), None)
            raise
        try:
            result, error = call.answer.get(timeout=call.left_s)
        except queue.Empty:
            raise Late(f'no answer within {self.timeout_s} s') from None
        if error is not None:
            try:
                raise error
            finally:
                del error                       # else it would refer to this frame, which refers to it
        return result

    def each(self, items: Iterable[Item], work: Callable[[Item], Answer]) -> Iterator[Answer]:
        """Yield ``work(item)`` for each item. One thread does them all, ahead of the caller, by :meth:`natively`.

        :raises NotMade: no thread could be started
        :raises Late: no answer in time
        """
        todo = collections.deque(items)
        answers: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

        def work_through() -> None:
            try:
                while todo:
                    answers.put((work(todo.popleft()), None))
            except BaseException as error:
                answers.put((None, error))

        number = len(todo)
        try:
            if number:
                threads.Thread('devicetrack-libvirt', work_through).start()
            for _item in range(number):
                answer, error = answers.get(timeout=self.timeout_s)
                if error is not None:
                    raise error
                yield answer
        except threads.NotStarted as unstarted:
            raise NotMade(unstarted.strerror) from unstarted
        except queue.Empty:
            raise Late(f'no answer within {self.timeout_s} s') from None
        finally:
            todo.clear()

    def natively(self, work: Callable[[], Answer], about: str | None = None) -> Answer:
        """As :meth:`call` if threads are eventlet's. Otherwise this thread does ``work``, for as long as it takes."""
        if _green() is not None:
            return self.call(work, about)
        return self._carry_out(self._placed(work, about))       # type: ignore[no-any-return]

    def is_late(self, about: str) -> bool:
        """Whether an earlier call about the same has no answer yet, although its time is over."""
        return any(call.about == about and not call.left_s for call in self._now())

    def _now(self) -> list[_Call]:
        return list(self._unanswered.values())  # one step, which tuple() is not: it may collect garbage in between

    def _placed(self, work: Callable[[], Any], about: str | None) -> _Call:
        """Wait for a place among the unanswered calls, and make the call one of them."""
        if self._pid != os.getpid():            # the threads are the parent's
            self._begin()
        call = _Call(work, about, self.timeout_s)
        while True:
            with self._placing:
                if len(self._unanswered) < MOST_UNANSWERED:
                    call.deadline = time.monotonic() + self.timeout_s       # libvirt is asked only now
                    self._unanswered[id(call)] = call
                    return call
            late = sum(not earlier.left_s for earlier in self._now())
            if late >= MOST_UNANSWERED:
                raise NotMade(f'{late} earlier calls are not answered yet')
            if not call.left_s:
                raise NotMade(f'{MOST_UNANSWERED} other calls were on their way for {self.timeout_s} s')
            time.sleep(_POLL_S)

    def _carry_out(self, call: _Call) -> Any:
        try:
            return call.work()
        finally:
            self._unanswered.pop(id(call), None)

    def _answer(self, call: _Call) -> None:
        answer: tuple[Any, BaseException | None]
        try:
            answer = self._carry_out(call), None
        except BaseException as error:
            answer = None, error
        call.answer.put(answer)
        del answer                              # else the traceback of an error would refer to it


def _green() -> Any:
    """Return eventlet, with its pool of native threads, if it has replaced the threads of this process; else None."""
    patcher = sys.modules.get('eventlet.patcher')
    if patcher is None or not patcher.is_monkey_patched('thread'):
        return None
    importlib.import_module('eventlet.tpool')
    return sys.modules['eventlet']
