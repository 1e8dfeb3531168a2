"""Combines views of a consumer's allocations. Pure.

Several parties write one consumer's allocations: the service its CPU and memory, a network service a port's bandwidth,
this library its devices. Placement keeps one amount for each provider and resource class, without its owner's name. So
each party must know its own part, and the rest belongs to others.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Container
from collections.abc import Iterator

from devicetrack.placement.values import Resources


def merge(own: Resources, current: Resources, wanted: Resources) -> Resources:
    """Replace ``own``, which is our part of ``current``, by ``wanted``; the parts of others stay.

    The result has all of ``wanted``, even if somebody removed some of our part: our record counts, and nobody else
    would restore that part.
    """
    return _combined(lambda provider, name: _amount(wanted, provider, name) + max(
        0, _amount(current, provider, name) - _amount(own, provider, name)), own, current, wanted)


def common(first: Resources, second: Resources) -> Resources:
    """Return the smaller of each two amounts, which both have."""
    return _combined(lambda provider, name: min(_amount(first, provider, name), _amount(second, provider, name)), first)


def either(first: Resources, second: Resources) -> Resources:
    """Return the larger of each two amounts, which suffices for both; repeating it adds nothing."""
    return _combined(lambda provider, name: max(_amount(first, provider, name), _amount(second, provider, name)),
                     first, second)


def without(resources: Resources, providers: Container[str]) -> Resources:
    """Leave out the allocations at these providers."""
    return _combined(lambda provider, name: 0 if provider in providers else resources[provider][name], resources)


def contains(resources: Resources, part: Resources) -> bool:
    """Whether at least this much is held."""
    return all(_amount(resources, provider, name) >= _amount(part, provider, name) for provider, name in _keys(part))


def agree(first: Resources, second: Resources, *named: Resources) -> bool:
    """Whether both hold the same amount of everything that ``named`` has."""
    return all(_amount(first, provider, name) == _amount(second, provider, name)
               for view in named for provider, name in _keys(view))


def plain(resources: Resources) -> Resources:
    """Leave out amounts of zero, which placement never returns, so that two views compare equal."""
    return _combined(lambda provider, name: resources[provider][name], resources)


def _keys(resources: Resources) -> Iterator[tuple[str, str]]:
    return ((provider, name) for provider, amounts in resources.items() for name in amounts)


def _amount(resources: Resources, provider: str, name: str) -> int:
    return resources.get(provider, {}).get(name, 0)


def _combined(amount: Callable[[str, str], int], *views: Resources) -> Resources:
    """Ask ``amount`` about everything that the views have."""
    combined: dict[str, dict[str, int]] = {}
    for view in views:
        for provider, name in _keys(view):
            held = amount(provider, name)
            if held:
                combined.setdefault(provider, {})[name] = held
    return combined
