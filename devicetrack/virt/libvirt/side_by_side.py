"""Asks several questions at a time, so that a daemon that answers in several threads uses several processors."""

from __future__ import annotations

import collections
from collections.abc import Callable
from collections.abc import Iterable
import queue
from typing import Final
from typing import TypeVar

from devicetrack import threads
from devicetrack.virt.libvirt import bounded

# libvirtd works on five requests of a client at a time (``max_client_requests``). This leaves one for other requests.
THREADS: Final = 4

Name = TypeVar('Name')
Answer = TypeVar('Answer')


def ask(names: Iterable[Name], question: Callable[[Name], Answer], timeout_s: float) -> list[Answer]:
    """Return ``question(name)`` for each of the names, in their order.

    Other threads ask. After the first error no further question is asked, and the error is raised once no thread works
    any more.

    :raises Late: no thread got an answer within ``timeout_s``; the threads end when their answers have come
    """
    asked = list(names)
    # Numbers alone: a tuple with each name would be one more thing for the garbage collector to go through.
    todo = collections.deque(range(len(asked)))
    results: dict[int, Answer] = {}
    errors: list[BaseException] = []
    answers: queue.SimpleQueue[tuple[int, Answer] | None] = queue.SimpleQueue()     # None: a thread has ended

    def work() -> None:
        try:
            while True:
                try:
                    number = todo.popleft()
                except IndexError:
                    break
                answers.put((number, question(asked[number])))
        except BaseException as error:
            errors.append(error)
            todo.clear()
        finally:
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
            else:
                results[answer[0]] = answer[1]
    finally:
        todo.clear()
    if errors:
        raise errors[0]
    return [results[number] for number in range(len(asked))]
