"""Shows the progress of long work: a changing line on a terminal, else a line now and then."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import itertools
import threading
import time
from typing import Final
from typing import Self

from devicetrack import exception
from devicetrack import log
from devicetrack import threads
from devicetrack.cmd import base
from devicetrack.cmd import screen

# Seconds between two lines when stderr is not a terminal.
LINE_EVERY_S: Final = 30.0

_FRAMES: Final = '|/-\\'
_LOOK_EVERY_S: Final = 0.5
_CLEAR: Final = '\r\x1b[K'


class Progress:
    """Shows a command's progress on stderr. The line on a terminal disappears at the end of the ``with`` block.

    If stderr is not a terminal, short work writes no line: the first one comes after ``LINE_EVERY_S``.
    """

    def __init__(self, command: base.Command) -> None:
        self._command, self._stream = command, command.app.stderr
        self._is_terminal = screen.is_terminal(self._stream)
        self._frames = itertools.cycle(_FRAMES)
        self._told_at = time.monotonic()
        self._shown = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.clear()

    def show(self, text: str) -> None:
        if self._is_terminal:
            line = f'{next(self._frames)} {log.printable(text)}'
            self._stream.write(_CLEAR + line[:screen.width_of(self._stream) - 1])
            self._stream.flush()
            self._shown = True
        elif time.monotonic() - self._told_at >= LINE_EVERY_S:
            self._told_at = time.monotonic()
            self._command.say(text)

    def clear(self) -> None:
        """Remove the line before something else is written."""
        if self._shown:
            self._stream.write(_CLEAR)
            self._stream.flush()
            self._shown = False


def duration(seconds: float) -> str:
    """Return a time to wait, or one that has passed, in words, fine enough that lines every ``LINE_EVERY_S`` differ."""
    whole = round(seconds)
    return f'{whole} s' if whole < 60 else f'{whole // 60} min {whole % 60} s'


@contextlib.contextmanager
def watching(command: base.Command, look: Callable[[], str | None]) -> Iterator[None]:
    """Show the progress of the block's work, which does not return before it is done.

    :param look: returns the progress, or None while there is nothing to show; called in a separate thread
    """
    over = threading.Event()

    def watch() -> None:
        with Progress(command) as progress:
            while not over.wait(_LOOK_EVERY_S):
                # The block meets the same error, and reports it.
                with contextlib.suppress(exception.DeviceTrackError):
                    text = look()
                    if text is not None:
                        progress.show(text)

    thread = threads.Thread('devicetrack-progress', watch)
    with contextlib.suppress(threads.NotStarted):       # the work matters, and nobody sees its progress
        thread.start()
    try:
        yield
    finally:
        over.set()
        if thread.is_alive():
            thread.join()
