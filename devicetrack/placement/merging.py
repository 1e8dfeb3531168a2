"""Combines views of a consumer's allocations. Pure.

Several parties write one consumer's allocations: the service its CPU and memory, a network service a port's bandwidth,
this library its devices. Placement keeps one amount for each provider and resource class, without its owner's name. So
each party must know its own part, and the rest belongs to others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from collections.abc import Mapping

from devicetrack.placement.values import Resources


def merge(own: Resources, current: Resources, wanted: Resources) -> Resources:
    """Replace ``own``, which is our part of ``current``, by ``wanted``; the parts of others stay.

    The result has all of ``wanted``, even if somebody removed some of our part: our record counts, and nobody else
    would restore that part.
    """
    return _nested(_flat(wanted) + (_flat(current) - _flat(own)))


def common(first: Resources, second: Resources) -> Resources:
    """Return the smaller of each two amounts, which both have."""
    return _nested(_flat(first) & _flat(second))


def either(first: Resources, second: Resources) -> Resources:
    """Return the larger of each two amounts, which suffices for both; repeating it adds nothing."""
    return _nested(_flat(first) | _flat(second))


def without(resources: Resources, providers: Container[str]) -> Resources:
    """Leave out the allocations at these providers."""
    return plain({provider: amounts for provider, amounts in resources.items() if provider not in providers})


def contains(resources: Resources, part: Resources) -> bool:
    """Whether at least this much is held."""
    return _flat(resources) >= _flat(part)


def agree(first: Resources, second: Resources, *named: Resources) -> bool:
    """Whether both hold the same amount of everything that ``named`` has."""
    one, other = _flat(first), _flat(second)
    return all(one[key] == other[key] for view in named for key in _flat(view))


def plain(resources: Resources) -> Resources:
    """Leave out amounts of zero, which placement never returns, so that two views compare equal."""
    return _nested(_flat(resources))


def _flat(resources: Resources) -> Counter[tuple[str, str]]:
    return Counter({(provider, name): amount for provider, amounts in resources.items()
                    for name, amount in amounts.items()})


def _nested(amounts: Mapping[tuple[str, str], int]) -> Resources:
    nested: dict[str, dict[str, int]] = {}
    for (provider, name), amount in amounts.items():
        if amount:
            nested.setdefault(provider, {})[name] = amount
    return nested
