"""What an exception from outside does to a call of the manager: it ends the present start of the host.

A signal or the lack of memory may raise an exception between any two steps. No step guards itself against that: the
next call starts the host anew, by the code of a restart, and so whatever holds after a crash holds after an interrupt.
"""

from __future__ import annotations

from collections.abc import Callable
import functools
import traceback
import types
from typing import Any
from typing import Concatenate
from typing import ParamSpec
from typing import Protocol
from typing import TypeVar

from devicetrack import exception
from devicetrack.claims import instance_fields
from devicetrack.claims import locks
from devicetrack.claims import service

Arguments = ParamSpec('Arguments')
Result = TypeVar('Result')
Class = TypeVar('Class', bound=type[Any])


class _Caller(Protocol):
    """An object whose calls may be interrupted."""

    def _call_failed(self, error: BaseException) -> None:
        ...


def is_answer(error: BaseException) -> bool:
    """Whether a call raises an error between its steps: ours, or one of the service's own that passes through."""
    return isinstance(error, exception.DeviceTrackError) or any(
        frame.f_globals.get('__name__') in (instance_fields.__name__, service.__name__)
        for frame, _line in traceback.walk_tb(error.__traceback__))


def ending_start(call: Callable[Concatenate[Any, Arguments], Result],
                 ) -> Callable[Concatenate[Any, Arguments], Result]:
    """Decorate a call of a manager, to tell the manager of the error that leaves it."""
    @functools.wraps(call)
    def told(self: _Caller, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        kept = len(locks.held())
        try:
            return call(self, *args, **kwargs)
        except BaseException as error:
            locks.let_go(kept)
            self._call_failed(error)
            raise

    return told


def ending_starts(of: Class) -> Class:
    """Decorate a class, and so each of its public methods, as :func:`ending_start` does."""
    for name, method in list(vars(of).items()):
        if isinstance(method, types.FunctionType) and not name.startswith('_'):
            setattr(of, name, ending_start(method))
    return of
