"""Divides allocated amounts among the parts of a request that ask for them. Pure arithmetic, no devices."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import itertools
from typing import Final

# At most this many ways to divide an amount are tried.
MOST: Final = 24
# With more places than this, only one way is tried: to take from the first places that have something.
_PLACES: Final = 32


def classes(asked: Sequence[tuple[Sequence[str], int]], free: Mapping[str, int]) -> list[dict[str, int]] | None:
    """Decide which resource class each part of a request gets, if it accepts several.

    It finds a way whenever there is one: if needed, an earlier part exchanges its class for another that it accepts.

    :param asked: for each part, the classes that it accepts, in the order of preference, and an amount
    :param free: the free amount of each class
    :returns: for each part, its amounts by class; None if there is too little
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
    """The ways to take each amount from the places, at most :data:`MOST`. The places together have enough.

    :param asked: the amount that each part of a request asks for
    :param places: the amount that each place has
    :returns: for each way, a list with the amounts of each part, by the index of the place
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
