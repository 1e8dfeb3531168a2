"""Registers wrappers for methods of Nova, and puts them in place."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
import functools
import importlib
from typing import Any
from typing import Final

from devicetrack import exception

Wrapper = Callable[..., Any]

# By target, 'module:Class.method' or 'module:function'.
_WRAPPERS: Final[dict[str, Wrapper]] = {}


def wraps(target: str) -> Callable[[Wrapper], Wrapper]:
    """Register a function as the replacement of one of Nova's, which it gets as its first argument."""
    def note(wrapper: Wrapper) -> Wrapper:
        if target in _WRAPPERS:
            raise ValueError(f'{target} is wrapped twice')
        _WRAPPERS[target] = wrapper
        return wrapper
    return note


def wrappers() -> Mapping[str, Wrapper]:
    """Return every wrapper by its target."""
    return dict(_WRAPPERS)


class Installed:
    """Nova with its methods wrapped."""

    def __init__(self) -> None:
        self._originals: list[tuple[Any, str, Any]] = []

    def wrap(self, target: str, wrapper: Wrapper, untold: Callable[[exception.DeviceTrackError], Exception]) -> None:
        """Put one wrapper in its place.

        :param untold: converts an error of devicetrack that leaves the wrapper into one that Nova can pass on
        :raises UnknownNova: Nova has no such method
        """
        owner, name, original = find(target)
        setattr(owner, name, _wrapped(original, wrapper, untold))
        self._originals.append((owner, name, original))

    def remove(self) -> None:
        """Put Nova's own methods back. A second call does nothing."""
        while self._originals:
            owner, name, original = self._originals.pop()
            setattr(owner, name, original)


def find(target: str) -> tuple[Any, str, Any]:
    """Return the class or module that has a target, the target's name there, and the present object.

    :raises UnknownNova: Nova has no such method
    """
    module, _colon, path = target.partition(':')
    *parents, name = path.split('.')
    try:
        owner = functools.reduce(getattr, parents, importlib.import_module(module))
        return owner, name, vars(owner)[name]
    except (ImportError, AttributeError, KeyError) as error:
        raise exception.UnknownNova([f'{target}: missing']) from error


def _wrapped(original: Any, wrapper: Wrapper, untold: Callable[[exception.DeviceTrackError], Exception]) -> Any:
    @functools.wraps(original)
    def method(*args: Any, **kwargs: Any) -> Any:
        try:
            return wrapper(original, *args, **kwargs)
        except exception.DeviceTrackError as error:
            raise untold(error) from error
    return method
