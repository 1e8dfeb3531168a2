"""Work on one thing while a thread fetches the next one.

The thread lives no longer than the loop over the things. It keeps a few things ready, so memory does not grow with
their number.
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
    """Follows the last thing. ``error`` ended the fetching; None after the last thing that there was."""

    __slots__ = ('error',)

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


def of(fetch: Callable[[], Iterator[Thing]]) -> Generator[Thing, None, None]:
    """Yield what ``fetch`` yields, in its order. A thread runs ``fetch``.

    An error of ``fetch`` is raised here, after the things that came before it. Closing the generator ends the thread:
    it waits until the thread has fetched the thing that it works on.
    """
    # Simple queues are several times as fast as a bounded one, and so they pass permits the other way.
    ready: queue.SimpleQueue[Any] = queue.SimpleQueue()
    permits: queue.SimpleQueue[None] = queue.SimpleQueue()
    for _ in range(READY):
        permits.put(None)
    closed = False

    def run() -> None:
        error: BaseException | None = None
        try:
            for thing in fetch():
                permits.get()
                if closed:
                    break
                ready.put(thing)
        except BaseException as raised:
            error = raised
        ready.put(_End(error))

    thread = threading.Thread(target=run, name='devicetrack-ahead', daemon=True)
    thread.start()
    try:
        while type(thing := ready.get()) is not _End:
            permits.put(None)
            yield thing
    finally:
        closed = True
        permits.put(None)                       # the thread may wait for one
        thread.join()
    if thing.error is not None:
        raise thing.error
