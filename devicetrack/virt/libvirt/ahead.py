"""Work on one thing while the next one is being fetched.

The thread that fetches is the caller's own for as long as it goes through what comes, and ends with that. A few things
are kept ready and no more, so memory does not grow with their number.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Generator
from collections.abc import Iterator
import queue
import threading
from typing import Any
from typing import Final
from typing import TypeVar

READY: Final = 8

Thing = TypeVar('Thing')


class _End:
    """The last that comes. ``error`` is what ended it, None when there was no more."""

    __slots__ = ('error',)

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


def of(fetch: Callable[[], Iterator[Thing]]) -> Generator[Thing, None, None]:
    """What ``fetch`` yields, in its order, fetched in a thread of its own.

    Whatever it raises is raised here, behind what came before. Closing this ends it: the thing that is being fetched is
    the last, and that is waited for.
    """
    ready: queue.Queue[Any] = queue.Queue(READY)
    stopped = threading.Event()

    def run() -> None:
        error: BaseException | None = None
        try:
            for thing in fetch():
                ready.put(thing)
                if stopped.is_set():
                    break
        except BaseException as raised:
            error = raised
        ready.put(_End(error))

    thread = threading.Thread(target=run, name='devicetrack-ahead', daemon=True)
    thread.start()
    thing: Any = None
    try:
        while type(thing := ready.get()) is not _End:
            yield thing
    finally:
        stopped.set()
        while type(thing) is not _End:          # the thread may wait for room
            thing = ready.get()
        thread.join()
    if thing.error is not None:
        raise thing.error
