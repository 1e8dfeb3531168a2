"""Which request of the compute service the present call is of, for the events that it leads to.

It goes with the thread of control and not as an argument: between the public call and the transaction lie a dozen calls
that have no other use for it. What the manager does by itself (an audit, a wipe in the background) is of no request.
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
    """The request id of the context that the present call came with, None without one."""
    return _present.get()


@contextlib.contextmanager
def during(request_id: str | None) -> Iterator[None]:
    """Let what happens in the block be of a request."""
    token = _present.set(request_id)
    try:
        yield
    finally:
        _present.reset(token)


def of_request(call: Callable[Concatenate[_Owner, Any, _Parameters], _Result],
               ) -> Callable[Concatenate[_Owner, Any, _Parameters], _Result]:
    """Decorate a method whose first argument is the service's context: its events are of that request."""
    @functools.wraps(call)
    def with_request(self: _Owner, context: Any, *args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        request_id = getattr(context, 'request_id', None)
        # Not by during(), which would take longer than the rest: every claim comes by here.
        token = _present.set(request_id[:REQUEST_ID_LENGTH] if isinstance(request_id, str) else None)
        try:
            return call(self, context, *args, **kwargs)
        finally:
            _present.reset(token)

    return with_request     # type: ignore[return-value]    # wraps() forgets that context may be given by name
