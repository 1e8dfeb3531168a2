"""Interrupts at every line: an exception as a signal, or the lack of memory, raises it between any two steps.

One of these steps is none of CPython's, and is left out: where the block of a plain lock ends, nothing but a trace
function can raise before the release. See :mod:`devicetrack.tests.unit.test_plain_locks`.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import dis
import functools
import inspect
import os
import pathlib
import sys
import threading
import types
from typing import Any
from typing import Final

from oslo_concurrency import lockutils

import devicetrack
from devicetrack.claims import locks

# By hand, at every line; otherwise at so many of them, other ones for each test.
ALL: Final = 'DEVICETRACK_EVERY_INTERRUPT'
SAMPLES: Final = 12

_FAIR_LOCKS: Final = inspect.getsourcefile(lockutils.ReaderWriterLock.is_writer)
_OLDER_LOCKS: Final = (locks.acquire_older.__code__, locks.release_older.__code__)
_ROOT: Final = str(pathlib.Path(devicetrack.__file__).parent) + os.sep
_TESTS: Final = tuple(_ROOT + part + os.sep for part in ('testing', 'tests'))
# It stands for the world, which is not interrupted, nor what it calls.
_WORLD: Final = _ROOT + os.path.join('testing', 'fake')


class Interrupt(BaseException):
    """Nothing in the library expects it."""


class Lines:
    """Counts the lines of the library that the calling thread runs in a call, and interrupts it at one of them.

    :param at: the number of the line, from 0; None only counts
    :param error: what interrupts it
    """

    def __init__(self, at: int | None = None, error: type[BaseException] = Interrupt) -> None:
        self.count, self.where = 0, ''
        self._at, self._error = at, error

    def run(self, call: Callable[[], Any]) -> bool:
        """:returns: whether the interrupt, or what was made of it, came out of the call"""
        try:
            raise LookupError
        except LookupError:
            # Where a trace function raises as a handler ends, CPython keeps the handled exception as the thread's,
            # and later ones get it as their context. The end of this handler lets go of it.
            return self._run(call)

    def _run(self, call: Callable[[], Any]) -> bool:
        before = sys.gettrace()
        sys.settrace(self._calls)
        try:
            call()
        except BaseException:
            if not self.where:
                raise
            return True
        finally:
            sys.settrace(before)
        return False

    def _calls(self, frame: types.FrameType, event: str, argument: Any) -> Any:
        name = frame.f_code.co_filename
        if not name.startswith(_ROOT) or name.startswith(_TESTS):
            return None
        caller: types.FrameType | None = frame
        while caller is not None and caller.f_code.co_filename.startswith(_ROOT):
            if caller.f_code.co_filename.startswith(_WORLD):
                return None
            caller = caller.f_back
        return self._lines

    def _lines(self, frame: types.FrameType, event: str, argument: Any) -> Any:
        if event == 'line' and not _is_end_of_block(frame):
            self.count += 1
            if self._is_it(frame):
                self.where = _name_of(frame)
                sys.settrace(None)
                raise self._error
        return self._lines

    def _is_it(self, frame: types.FrameType) -> bool:
        return self.count - 1 == self._at


class At(Lines):
    """Interrupts the calling thread when it first comes to one line of a module.

    :param where: as ``claims/rows.py:12``
    """

    def __init__(self, where: str) -> None:
        super().__init__()
        self._line = where

    def _is_it(self, frame: types.FrameType) -> bool:
        return _name_of(frame) == self._line


class LinesOfLocks(Lines):
    """Counts the lines of the locks of oslo.concurrency instead, which the library does not see."""

    def _calls(self, frame: types.FrameType, event: str, argument: Any) -> Any:
        caller = frame if frame.f_code.co_filename != threading.__file__ else frame.f_back
        return self._lines if caller is not None and (
            caller.f_code.co_filename == _FAIR_LOCKS or caller.f_code in _OLDER_LOCKS) else None


@functools.cache
def _ends_of_blocks(code: types.CodeType) -> frozenset[int]:
    """Where a with statement calls what ends its block, with three times None."""
    steps = [step for step in dis.get_instructions(code) if step.opname != 'CACHE']
    return frozenset(first.offset for first, *others in zip(steps, steps[1:], steps[2:], strict=False) if all(
        step.opname == 'LOAD_CONST' and step.argval is None for step in (first, *others)))


def _is_end_of_block(frame: types.FrameType) -> bool:
    return frame.f_lasti in _ends_of_blocks(frame.f_code)


def _name_of(frame: types.FrameType) -> str:
    return f'{frame.f_code.co_filename.removeprefix(_ROOT)}:{frame.f_lineno}'


def chosen(count: int, seed: int) -> Iterator[int]:
    """The lines of ``count`` to interrupt at."""
    if os.environ.get(ALL):
        yield from range(count)
        return
    step = max(1, count // SAMPLES)
    yield from range(seed % step, count, step)
