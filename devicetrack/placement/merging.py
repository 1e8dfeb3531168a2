"""Views of what a consumer holds, put together. Pure.

Several parties write one consumer's allocations: the service its CPU and memory, a network service a port's bandwidth,
this library its devices. Placement keeps one amount for each provider and resource class, and nobody's name on it. So
a party's part is what it says itself, its own view, and what is there beyond that belongs to others.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Container
from collections.abc import Iterator

from devicetrack.placement.values import Resources


def merge(own: Resources, current: Resources, wanted: Resources) -> Resources:
    """What a consumer shall hold when our part of it becomes another one.

    What is held beyond our own view stays; our part is what is wanted, also where somebody took some of it away: it
    follows what we have recorded, and nobody else gives that back.
    """
    return _combined(lambda provider, name: _amount(wanted, provider, name) + max(
        0, _amount(current, provider, name) - _amount(own, provider, name)), own, current, wanted)


def common(first: Resources, second: Resources) -> Resources:
    """What both have: the smaller amount of each."""
    return _combined(lambda provider, name: min(_amount(first, provider, name), _amount(second, provider, name)), first)


def either(first: Resources, second: Resources) -> Resources:
    """What suffices for each: the larger amount of each, so that doing it again adds nothing."""
    return _combined(lambda provider, name: max(_amount(first, provider, name), _amount(second, provider, name)),
                     first, second)


def without(resources: Resources, providers: Container[str]) -> Resources:
    """What is held of other providers than these."""
    return _combined(lambda provider, name: 0 if provider in providers else resources[provider][name], resources)


def contains(resources: Resources, part: Resources) -> bool:
    """Whether at least this much is held."""
    return all(_amount(resources, provider, name) >= _amount(part, provider, name) for provider, name in _keys(part))


def agree(first: Resources, second: Resources, *named: Resources) -> bool:
    """Whether of everything that is named both hold the same."""
    return all(_amount(first, provider, name) == _amount(second, provider, name)
               for view in named for provider, name in _keys(view))


def plain(resources: Resources) -> Resources:
    """The same without amounts of nothing: placement knows none, and two views compare."""
    return _combined(lambda provider, name: resources[provider][name], resources)


def _keys(resources: Resources) -> Iterator[tuple[str, str]]:
    return ((provider, name) for provider, amounts in resources.items() for name in amounts)


def _amount(resources: Resources, provider: str, name: str) -> int:
    return resources.get(provider, {}).get(name, 0)


def _combined(amount: Callable[[str, str], int], *views: Resources) -> Resources:
    """What ``amount`` says of everything that the views name."""
    combined: dict[str, dict[str, int]] = {}
    for view in views:
        for provider, name in _keys(view):
            held = amount(provider, name)
            if held:
                combined.setdefault(provider, {})[name] = held
    return combined
