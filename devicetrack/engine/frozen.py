"""Two collections that never change. A change makes another one, and copies only the small part that it touches."""

from __future__ import annotations

import bisect
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
import itertools
import operator
from typing import Any
from typing import Final
from typing import Generic
from typing import overload
from typing import TypeVar

Key = TypeVar('Key')
Value = TypeVar('Value')
Entry = TypeVar('Entry', bound=tuple[Any, ...])
Default = TypeVar('Default')

# The entries of a part of a line. A part with twice as many is divided.
_PART: Final = 256


class FrozenMap(Mapping[Key, Value]):
    """A mapping in buckets, by the hash of the key: about as many buckets as each has keys. Its order means nothing."""

    __slots__ = ('_buckets', '_length')

    def __init__(self, items: Mapping[Key, Value] | Iterable[tuple[Key, Value]] = ()) -> None:
        found = dict(items)
        self._length, number = len(found), 1
        while self._length > 4 * number * number:
            number *= 2
        self._buckets: list[dict[Key, Value]] = [found]
        if number > 1:
            self._buckets = [{} for _ in range(number)]
            for key, value in found.items():
                self._buckets[hash(key) % number][key] = value

    def __getitem__(self, key: Key) -> Value:
        return self._buckets[hash(key) % len(self._buckets)][key]

    @overload
    def get(self, key: Key, /) -> Value | None: ...

    @overload
    def get(self, key: Key, /, default: Value | Default) -> Value | Default: ...

    def get(self, key: Key, /, default: Any = None) -> Any:
        return self._buckets[hash(key) % len(self._buckets)].get(key, default)

    def __contains__(self, key: object) -> bool:
        return key in self._buckets[hash(key) % len(self._buckets)]

    def __iter__(self) -> Iterator[Key]:
        return itertools.chain.from_iterable(self._buckets)

    def __len__(self) -> int:
        return self._length

    def plain(self) -> dict[Key, Value]:
        """The same entries in one dictionary, for loops over thousands."""
        found: dict[Key, Value] = {}
        for bucket in self._buckets:
            found.update(bucket)
        return found

    def each(self) -> Iterator[Value]:
        """The values, for loops over thousands."""
        return itertools.chain.from_iterable(bucket.values() for bucket in self._buckets)

    def changed(self, changes: Mapping[Key, Value | None]) -> FrozenMap[Key, Value]:
        """Return the mapping with these values. None removes a key."""
        number = len(self._buckets)
        if len(changes) > number or self._length + len(changes) > 4 * number * number:
            found = self.plain()
            _change(found, changes)
            return FrozenMap(found)
        made: FrozenMap[Key, Value] = FrozenMap.__new__(FrozenMap)
        made._buckets, made._length = self._buckets.copy(), self._length
        for key, value in changes.items():
            place = hash(key) % number
            bucket = self._buckets[place].copy() if made._buckets[place] is self._buckets[place] \
                else made._buckets[place]
            before = len(bucket)
            _change(bucket, {key: value})
            made._length += len(bucket) - before
            made._buckets[place] = bucket
        return made

    def differing(self, other: FrozenMap[Key, Value]) -> set[Key]:
        """The keys with other values, or none, in one of the two. Quick if one was made from the other."""
        if len(self._buckets) != len(other._buckets):
            return self._differing(self.plain(), other.plain())
        found: set[Key] = set()
        for ours, theirs in zip(self._buckets, other._buckets, strict=True):
            if ours is not theirs:
                found |= self._differing(ours, theirs)
        return found

    @staticmethod
    def _differing(ours: Mapping[Key, Value], theirs: Mapping[Key, Value]) -> set[Key]:
        return {key for key in ours.keys() | theirs.keys() if ours.get(key) is not theirs.get(key)}

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process may have other hashes.
        return FrozenMap, (self.plain(),)


def _change(found: dict[Key, Value], changes: Mapping[Key, Value | None]) -> None:
    for key, value in changes.items():
        if value is None:
            found.pop(key, None)
        else:
            found[key] = value


class FrozenLine(Generic[Entry]):
    """Tuples in their order, in parts of some hundred."""

    __slots__ = ('_parts', '_length')

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        ordered = sorted(entries)
        self._length = len(ordered)
        self._parts = tuple(tuple(ordered[start:start + _PART]) for start in range(0, len(ordered), _PART))

    def __iter__(self) -> Iterator[Entry]:
        return itertools.chain.from_iterable(self._parts)

    def __len__(self) -> int:
        return self._length

    @property
    def first(self) -> Entry:
        """:raises IndexError: the line is empty"""
        return self._parts[0][0]

    def changed(self, into: Collection[Entry], out: Collection[Entry]) -> FrozenLine[Entry]:
        """Return the line with some entries, and without others that are in it."""
        if len(into) + len(out) > len(self._parts) + 2:
            return FrozenLine({*self}.difference(out).union(into))
        line = self
        for entry in out:
            line = line._without(entry)
        for entry in into:
            line = line._with(entry)
        return line

    def _with(self, entry: Entry) -> FrozenLine[Entry]:
        place = max(0, self._part_of(entry))
        part = list(self._parts[place]) if self._parts else []
        bisect.insort(part, entry)
        parts = (tuple(part),) if len(part) <= 2 * _PART else (tuple(part[:_PART]), tuple(part[_PART:]))
        return self._replaced(place, parts, 1)

    def _without(self, entry: Entry) -> FrozenLine[Entry]:
        place = self._part_of(entry)
        part = self._parts[place]
        index = bisect.bisect_left(part, entry)
        rest = part[:index] + part[index + 1:]
        return self._replaced(place, (rest,) if rest else (), -1)

    def _part_of(self, entry: Entry) -> int:
        return bisect.bisect_right(self._parts, entry, key=operator.itemgetter(0)) - 1

    def _replaced(self, place: int, parts: tuple[tuple[Entry, ...], ...], more: int) -> FrozenLine[Entry]:
        line: FrozenLine[Entry] = FrozenLine.__new__(FrozenLine)
        line._parts = self._parts[:place] + parts + self._parts[place + 1:]
        line._length = self._length + more
        return line

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenLine, (tuple(self),)
