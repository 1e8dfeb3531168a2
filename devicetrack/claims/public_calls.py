"""A public call of the manager: its request, what the service has answered in it, and what an interrupt does to it.

A context variable carries the request and the answers instead of arguments, because the dozen calls between the public
call and the transaction do not need them. Work that the manager does by itself (an audit, a wipe in the background) has
no request. An audit keeps no answers while it looks: each look asks anew.

A signal or the lack of memory may raise an exception between any two steps. No step guards itself against that: the
next call starts the host anew, by the code of a restart, and so whatever holds after a crash holds after an interrupt.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import contextvars
import functools
import traceback
import types
from typing import Any
from typing import cast
from typing import Final
from typing import Protocol
from typing import TypeVar
import weakref

from devicetrack import exception
from devicetrack.claims import locks
from devicetrack.objects.event import REQUEST_ID_LENGTH

# A decorated call has the signature of the call, which Concatenate would change: a context may be given by name.
_PublicCall = TypeVar('_PublicCall', bound=Callable[..., Any])
_Class = TypeVar('_Class', bound=type[Any])

# These call the service's own code, whose exceptions pass through.
_CALLS_THE_SERVICE: Final = ('devicetrack.claims.instance_fields', 'devicetrack.claims.service')


class _Call:
    """A call: the id of its request, and the answers of the service."""

    def __init__(self, request_id: str | None, answers: dict[Any, Any]) -> None:
        self.request_id, self.answers = request_id, answers


# Only the call itself keeps this object. So what an interrupt leaves here says nothing to a later call of the thread.
_present: Final[contextvars.ContextVar[weakref.ref[_Call] | None]] = contextvars.ContextVar(
    'devicetrack_call', default=None)


def _now() -> _Call | None:
    reference = _present.get()
    return None if reference is None else reference()


def present() -> str | None:
    """The request id in the context of the present call, or None without one."""
    call = _now()
    return None if call is None else call.request_id


def answers() -> dict[Any, Any] | None:
    """What the service has answered in the present call, by question; None outside of a call."""
    call = _now()
    return None if call is None else call.answers


def keeping_answers() -> contextlib.AbstractContextManager[None]:
    """Keep the service's answers during the block, as a public call does."""
    return during(present())


@contextlib.contextmanager
def during(request_id: str | None) -> Iterator[None]:
    """Let the events of the block belong to a request, and keep the service's answers, as a public call does.

    In a call that keeps them already, its own answers count.
    """
    kept = answers()
    call = _Call(request_id, {} if kept is None else kept)
    token = _present.set(weakref.ref(call))
    try:
        yield
    finally:
        _present.reset(token)


def of_request(call: _PublicCall) -> _PublicCall:
    """Decorate a method whose first argument is the service's context: its events belong to that request.

    What the service answers is the same during the whole call.
    """
    @functools.wraps(call)
    def with_request(self: Any, context: Any, *args: Any, **kwargs: Any) -> Any:
        request_id = getattr(context, 'request_id', None)
        # Not with during(), which would take longer than the rest: every claim runs this.
        own = _Call(request_id[:REQUEST_ID_LENGTH] if isinstance(request_id, str) else None, {})
        token = _present.set(weakref.ref(own))
        try:
            return call(self, context, *args, **kwargs)
        finally:
            _present.reset(token)

    return cast(_PublicCall, with_request)


class _Caller(Protocol):
    """An object whose calls may be interrupted."""

    def _call_failed(self, error: BaseException) -> None:
        ...


def is_answer(error: BaseException) -> bool:
    """Whether a call raises an error between its steps: ours, or one of the service's own that passes through."""
    return isinstance(error, exception.DeviceTrackError) or any(
        frame.f_globals.get('__name__') in _CALLS_THE_SERVICE
        for frame, _line in traceback.walk_tb(error.__traceback__))


def ending_start(call: _PublicCall) -> _PublicCall:
    """Decorate a call of a manager, to tell the manager of the error that leaves it."""
    @functools.wraps(call)
    def told(self: _Caller, /, *args: Any, **kwargs: Any) -> Any:
        kept = len(locks.held())
        try:
            return call(self, *args, **kwargs)
        except BaseException as error:
            locks.let_go(kept)
            self._call_failed(error)
            raise

    return cast(_PublicCall, told)


def ending_starts(of: _Class) -> _Class:
    """Decorate a class, and so each of its public methods, as :func:`ending_start` does."""
    for name, method in list(vars(of).items()):
        if isinstance(method, types.FunctionType) and not name.startswith('_'):
            setattr(of, name, ending_start(method))
    return of
