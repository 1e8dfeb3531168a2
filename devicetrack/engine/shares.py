"""Shares out what was allocated among those that ask for it. Pure arithmetic, no devices."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import itertools
from typing import Final

# So many ways to share something out are tried.
MOST: Final = 24
# Over more places than this there is one way, which takes from the first place that has something.
_PLACES: Final = 32


def classes(asked: Sequence[tuple[Sequence[str], int]], free: Mapping[str, int]) -> list[dict[str, int]] | None:
    """Decide of which resource class what is asked for is, where it may be of several.

    It finds a way whenever there is one: what an earlier one got of a class is exchanged for another class of its own.

    :param asked: the classes that will do, in the order of preference, and an amount
    :param free: the amount that there is of each class
    :returns: for each, its amounts by class; None when there is too little
    """
    left = dict(free)
    given: list[dict[str, int]] = [{} for _ in asked]
    if sum(amount for _classes, amount in asked) > sum(left.values()):
        return None

    def get_one(index: int, tried: set[int]) -> bool:
        tried.add(index)
        for name in asked[index][0]:
            if left.get(name, 0) > 0:
                left[name] -= 1
                given[index][name] = given[index].get(name, 0) + 1
                return True
        for name in asked[index][0]:
            for other, its in enumerate(given):
                if other not in tried and its.get(name, 0) and get_one(other, tried):
                    its[name] -= 1
                    given[index][name] = given[index].get(name, 0) + 1
                    return True
        return False

    for index, (names, amount) in enumerate(asked):
        if len(names) == 1 and left.get(names[0], 0) >= amount:
            left[names[0]] -= amount
            given[index][names[0]] = amount
        elif not all(get_one(index, set()) for _ in range(amount)):
            return None
    return [{name: amount for name, amount in one.items() if amount} for one in given]


def ways(asked: Sequence[int], places: Sequence[int]) -> Iterator[list[dict[int, int]]]:
    """The ways to take each amount that is asked for from places that together have enough, at most :data:`MOST`.

    :param places: the amount that each place has
    :returns: for each that asks, what it gets by index of the place
    """
    many = len(places) > _PLACES
    return itertools.islice(_ways(list(asked), list(places), many), 1 if many else MOST)


def _ways(asked: list[int], places: list[int], many: bool) -> Iterator[list[dict[int, int]]]:
    if not asked:
        yield []
        return
    for first in iter((_greedy(asked[0], places),)) if many else _takes(asked[0], places, 0):
        left = [amount - first.get(index, 0) for index, amount in enumerate(places)]
        for rest in _ways(asked[1:], left, many):
            yield [first, *rest]


def _greedy(amount: int, places: Sequence[int]) -> dict[int, int]:
    taken = {}
    for index, there in enumerate(places):
        if amount and there:
            taken[index] = min(amount, there)
            amount -= taken[index]
    return taken


def _takes(amount: int, places: Sequence[int], start: int) -> Iterator[dict[int, int]]:
    if not amount:
        yield {}
        return
    if sum(places[start:]) < amount:
        return
    for number in range(min(amount, places[start]), -1, -1):
        for rest in _takes(amount - number, places, start + 1):
            yield {start: number, **rest} if number else rest
