"""Asks several questions at a time, so that a daemon that answers in several threads uses several processors."""

from __future__ import annotations

import collections
from collections.abc import Callable
from collections.abc import Iterable
import queue
import threading
import time
from typing import Final
from typing import TypeVar

from devicetrack.virt.libvirt import bounded

# libvirtd works on five requests of a client at a time (``max_client_requests``). This leaves one for other requests.
THREADS: Final = 4

Name = TypeVar('Name')
Answer = TypeVar('Answer')


def ask(names: Iterable[Name], question: Callable[[Name], Answer], timeout_s: float) -> list[Answer]:
    """Return ``question(name)`` for each of the names, in their order. Other threads ask; the caller's thread waits.

    After the first error no further question is asked. The error is raised once no thread works any more.

    :raises Late: no thread got an answer within ``timeout_s``; the threads end when their answers have come
    """
    asked = list(names)
    # Numbers alone: a tuple with each name would be one more thing for the garbage collector to go through.
    todo = collections.deque(range(len(asked)))
    if not todo:
        return []
    answers: dict[int, Answer] = {}
    errors: list[BaseException] = []
    ended: queue.SimpleQueue[None] = queue.SimpleQueue()
    answered_at = time.monotonic()

    def work() -> None:
        nonlocal answered_at
        try:
            while True:
                try:
                    number = todo.popleft()
                except IndexError:
                    break
                answers[number] = question(asked[number])
                answered_at = time.monotonic()
        except BaseException as error:
            errors.append(error)
            todo.clear()
        finally:
            ended.put(None)

    threads = [threading.Thread(target=work, name='devicetrack-ask', daemon=True)
               for _ in range(min(THREADS, len(todo)))]
    try:
        for thread in threads:
            thread.start()
        for _thread in threads:
            while True:
                try:
                    ended.get(timeout=max(0.0, answered_at + timeout_s - time.monotonic()))
                    break
                except queue.Empty:
                    if time.monotonic() >= answered_at + timeout_s:
                        raise bounded.Late(f'no answer within {timeout_s} s') from None
    finally:
        todo.clear()
    if errors:
        raise errors[0]
    return [answers[number] for number in range(len(answers))]
