"""Ask several things at a time: a daemon that answers in threads of its own then uses several processors."""

from __future__ import annotations

import collections
from collections.abc import Callable
from collections.abc import Iterable
import threading
from typing import Final
from typing import TypeVar

# A libvirtd works on five requests of a client at a time (``max_client_requests``). This leaves one of them to others.
THREADS: Final = 4

Name = TypeVar('Name')
Answer = TypeVar('Answer')


def ask(names: Iterable[Name], question: Callable[[Name], Answer]) -> list[Answer]:
    """Return ``question(name)`` for each of the names, in their order. The caller's thread is one of those that ask.

    The first error ends the asking and is raised once no thread works any more.
    """
    todo = collections.deque(enumerate(names))
    answers: dict[int, Answer] = {}
    errors: list[BaseException] = []

    def work() -> None:
        try:
            while True:
                try:
                    number, name = todo.popleft()
                except IndexError:
                    break
                answers[number] = question(name)
        except BaseException as error:
            errors.append(error)
            todo.clear()

    threads = [threading.Thread(target=work, name='devicetrack-ask', daemon=True)
               for _ in range(min(THREADS, len(todo)) - 1)]
    try:
        for thread in threads:
            thread.start()
        work()
    finally:
        todo.clear()
        for thread in threads:
            if thread.ident is not None:
                thread.join()
    if errors:
        raise errors[0]
    return [answers[number] for number in range(len(answers))]
