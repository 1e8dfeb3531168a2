"""Asks several questions at a time, so that a daemon that answers in several threads uses several processors."""

from __future__ import annotations

import collections
from collections.abc import Callable
from collections.abc import Iterable
import queue
import threading
from typing import Final
from typing import TypeVar

from devicetrack import threads
from devicetrack.virt.libvirt import bounded

# libvirtd works on five requests of a client at a time (``max_client_requests``). This leaves one for other requests.
THREADS: Final = 4
# How many answers may wait in memory. With fewer, the threads would wait for the caller more often.
_WAITING: Final = 4 * THREADS

Name = TypeVar('Name')
Answer = TypeVar('Answer')
Result = TypeVar('Result')


def ask(names: Iterable[Name], question: Callable[[Name], Answer], use: Callable[[Answer], Result],
        timeout_s: float) -> list[Result]:
    """Return ``use(question(name))`` for each of the names, in their order.

    Other threads ask. The caller's thread uses each answer as it comes: a thread that did so itself would not ask
    meanwhile. After the first error no further question is asked and no answer is used. The error is raised once no
    thread works any more.

    :raises Late: no thread got an answer within ``timeout_s``; the threads end when their answers have come
    """
    asked = list(names)
    # Numbers alone: a tuple with each name would be one more thing for the garbage collector to go through.
    todo = collections.deque(range(len(asked)))
    results: dict[int, Result] = {}
    errors: list[BaseException] = []
    answers: queue.SimpleQueue[tuple[int, Answer] | None] = queue.SimpleQueue()     # None: a thread has ended
    room = threading.Semaphore(_WAITING)

    def work() -> None:
        try:
            while True:
                room.acquire()
                try:
                    number = todo.popleft()
                except IndexError:
                    break
                answers.put((number, question(asked[number])))
        except BaseException as error:
            errors.append(error)
            todo.clear()
        finally:
            room.release()                      # another thread may wait to learn that nothing is left to do
            answers.put(None)

    working = 0
    try:
        for _ in range(min(THREADS, len(todo))):
            try:
                threads.Thread('devicetrack-ask', work).start()
            except threads.NotStarted as error:
                if not working:
                    raise bounded.NotMade(error.strerror) from error
                break                           # the others do the work
            working += 1
        while working:
            try:
                answer = answers.get(timeout=timeout_s)
            except queue.Empty:
                raise bounded.Late(f'no answer within {timeout_s} s') from None
            if answer is None:
                working -= 1
                continue
            room.release()
            if not errors:
                try:
                    results[answer[0]] = use(answer[1])
                except Exception as error:
                    errors.append(error)
                    todo.clear()
    finally:
        todo.clear()
        room.release()
    if errors:
        raise errors[0]
    return [results[number] for number in range(len(asked))]
