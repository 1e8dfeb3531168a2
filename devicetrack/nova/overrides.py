"""The adapter's subclasses of Nova's classes: what they override, and how Nova's objects become theirs."""

from __future__ import annotations

from collections.abc import Callable
import functools
from types import FunctionType
from typing import Any
from typing import Final
from typing import TypeVar

from devicetrack import exception
from devicetrack.nova import errors

_Class = TypeVar('_Class', bound=type)

_TARGETS: Final[set[str]] = set()
# Nova must not start without the manager, and the operator must read why. So errors leave these as they are.
_BEGIN: Final = frozenset({'__init__', '_check_for_host_rename'})


def targets() -> set[str]:
    """Return every method of Nova that is overridden, as ``package.module:Class.method``."""
    return set(_TARGETS)


def of_nova(adapter: _Class) -> _Class:
    """Note which methods of Nova a class overrides, and let no error of devicetrack leave one of them.

    Nova can pass on only its own errors. A class decorator for subclasses of Nova's classes.
    """
    for name, method in list(vars(adapter).items()):
        owner = next((base for base in adapter.__mro__[1:-1] if name in vars(base)), None)
        if owner is not None and isinstance(method, FunctionType):
            _TARGETS.add(f'{owner.__module__}:{owner.__qualname__}.{name}')
            if name not in _BEGIN:
                setattr(adapter, name, _translating(method))
    return adapter


def become(made: Any, adapter: type) -> None:
    """Make an object that Nova just made one of the adapter's subclass, since Nova names its own class where it does.

    :raises UnknownNova: Nova made an object of another class
    """
    if type(made) is not adapter.__base__:
        raise exception.UnknownNova([f'{type(made).__module__}:{type(made).__qualname__}: not what {adapter} extends'])
    made.__class__ = adapter


def _translating(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def override(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except exception.DeviceTrackError as error:
            raise errors.untold(error) from error
    return override
