"""Knows the compute service's request of the present call, for the events that the call causes.

A context variable carries the request id instead of an argument, because the dozen calls between the public call and
the transaction do not need it. Work that the manager does by itself (an audit, a wipe in the background) has no
request.
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

_present: Final[contextvars.ContextVar[str | None]] = contextvars.ContextVar('devicetrack_request_id', default=None)


def present() -> str | None:
    """The request id in the context of the present call, or None without one."""
    return _present.get()


@contextlib.contextmanager
def during(request_id: str | None) -> Iterator[None]:
    """Let the events of the block belong to a request."""
    token = _present.set(request_id)
    try:
        yield
    finally:
        _present.reset(token)


def of_request(call: Callable[Concatenate[_Owner, Any, _Parameters], _Result],
               ) -> Callable[Concatenate[_Owner, Any, _Parameters], _Result]:
    """Decorate a method whose first argument is the service's context: its events belong to that request."""
    @functools.wraps(call)
    def with_request(self: _Owner, context: Any, *args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        request_id = getattr(context, 'request_id', None)
        # Not with during(), which would take longer than the rest: every claim runs this.
        token = _present.set(request_id[:REQUEST_ID_LENGTH] if isinstance(request_id, str) else None)
        try:
            return call(self, context, *args, **kwargs)
        finally:
            _present.reset(token)

    return with_request     # type: ignore[return-value]    # wraps() forgets that context may be given by name
