"""Knows the compute service's request of the present call, and what the service has answered in the call.

A context variable carries both instead of arguments, because the dozen calls between the public call and the
transaction do not need them. Work that the manager does by itself (an audit, a wipe in the background) has no request.
An audit keeps no answers while it looks: each look asks anew.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import contextvars
import functools
from typing import Any
from typing import Concatenate
from typing import Final
from typing import ParamSpec
from typing import TypeVar

from devicetrack.objects.event import REQUEST_ID_LENGTH

_Parameters = ParamSpec('_Parameters')
_Result = TypeVar('_Result')
_Owner = TypeVar('_Owner')

# The request id, and the answers of the service; None where nobody keeps them.
_Call = tuple[str | None, dict[Any, Any] | None]
_present: Final[contextvars.ContextVar[_Call]] = contextvars.ContextVar('devicetrack_call', default=(None, None))


def present() -> str | None:
    """The request id in the context of the present call, or None without one."""
    return _present.get()[0]


def answers() -> dict[Any, Any] | None:
    """What the service has answered in the present call, by question; None outside of a call."""
    return _present.get()[1]


def keeping_answers() -> contextlib.AbstractContextManager[None]:
    """Keep the service's answers during the block, as a public call does."""
    return during(present())


@contextlib.contextmanager
def during(request_id: str | None) -> Iterator[None]:
    """Let the events of the block belong to a request, and keep the service's answers, as a public call does.

    In a call that keeps them already, its own answers count.
    """
    kept = answers()
    token = _present.set((request_id, {} if kept is None else kept))
    try:
        yield
    finally:
        _present.reset(token)


def of_request(call: Callable[Concatenate[_Owner, Any, _Parameters], _Result],
               ) -> Callable[Concatenate[_Owner, Any, _Parameters], _Result]:
    """Decorate a method whose first argument is the service's context: its events belong to that request.

    What the service answers is the same during the whole call.
    """
    @functools.wraps(call)
    def with_request(self: _Owner, context: Any, *args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        request_id = getattr(context, 'request_id', None)
        # Not with during(), which would take longer than the rest: every claim runs this.
        token = _present.set((request_id[:REQUEST_ID_LENGTH] if isinstance(request_id, str) else None, {}))
        try:
            return call(self, context, *args, **kwargs)
        finally:
            _present.reset(token)

    return with_request     # type: ignore[return-value]    # wraps() forgets that context may be given by name
