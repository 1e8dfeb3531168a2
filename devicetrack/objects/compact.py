"""Thousands of named tuples, kept as plain tuples. A named one is made when somebody looks at it.

CPython's garbage collector goes through every named tuple that it knows, again and again, but it drops plain tuples of
texts and numbers from its lists when it first sees them (``_PyTuple_MaybeUntrack``). A host has tens of thousands of
rows and uses. As named tuples they would cause collections of the whole process, which stop a compute service for
longer than it takes to read them.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import KeysView
from collections.abc import Mapping
from collections.abc import Sequence
import functools
import operator
from typing import Any
from typing import NamedTuple
from typing import overload
from typing import TypeVar

Named = TypeVar('Named', bound=NamedTuple)
Key = tuple[str, str | None]


class Compact(Sequence[Named]):
    """A sequence of named tuples of one class. It equals any other sequence of equal tuples, and never changes.

    :param of: the class
    :param plain: the fields of each, in order, as a tuple of the right width. A list is not copied: do not change it
    """

    __slots__ = ('_of', '_make', '_plain', '_by')

    def __init__(self, of: type[Named], plain: Iterable[tuple[Any, ...]] = ()) -> None:
        self._of = of
        # Several views of the same tuples ask for the same keys. Each key is one more tuple to be collected.
        self._by: dict[tuple[str, ...], ByKey[Named]] = plain._by if isinstance(plain, Compact) else {}
        # The class's own _make would count the fields of each.
        self._make: Callable[[tuple[Any, ...]], Named] = functools.partial(tuple.__new__, of)
        self._plain: list[tuple[Any, ...]] = (
            plain._plain if isinstance(plain, Compact) else plain if isinstance(plain, list) else list(plain))

    @classmethod
    def joined(cls, of: type[Named], parts: Iterable[Sequence[Named]]) -> Compact[Named]:
        """Join sequences, one after the other."""
        some = [part for part in parts if part]
        if len(some) == 1 and isinstance(some[0], Compact):
            return some[0]                      # a list is copied: its owner may change it
        return cls(of, [one for part in some for one in Compact(of, part)._plain])

    def __len__(self) -> int:
        return len(self._plain)

    def __iter__(self) -> Iterator[Named]:
        return map(self._make, self._plain)

    @overload
    def __getitem__(self, index: int) -> Named: ...

    @overload
    def __getitem__(self, index: slice) -> Compact[Named]: ...

    def __getitem__(self, index: int | slice) -> Named | Compact[Named]:
        if isinstance(index, slice):
            return Compact(self._of, self._plain[index])
        return self._make(self._plain[index])

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Compact):
            return self._plain == other._plain
        if isinstance(other, list | tuple):
            return len(self) == len(other) and all(map(operator.eq, self._plain, other))
        return NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self._plain))

    def __repr__(self) -> str:
        return repr(tuple(self))

    def plain(self) -> list[tuple[Any, ...]]:
        """The plain tuples, in a list that the caller may change; for loops over thousands."""
        return self._plain.copy()

    def column(self, field: str) -> Iterator[Any]:
        """One field of each; for loops over thousands."""
        return map(operator.itemgetter(self._of._fields.index(field)), self._plain)

    def columns(self, first: str, second: str, *more: str) -> Iterator[tuple[Any, ...]]:
        """Some fields of each; for loops over thousands."""
        return map(operator.itemgetter(*map(self._of._fields.index, (first, second, *more))), self._plain)

    def by(self, *fields: str) -> ByKey[Named]:
        """The tuples by two of their fields. If several have the same key, the last one counts."""
        found = self._by.get(fields)
        if found is None:
            key = operator.itemgetter(*map(self._of._fields.index, fields))
            found = self._by[fields] = ByKey(self._of, dict(zip(map(key, self._plain), self._plain, strict=True)))
        return found


class ByKey(Mapping[Key, Named]):
    """Named tuples by key, made as :class:`Compact` makes them."""

    __slots__ = ('_of', '_make', '_plain')

    def __init__(self, of: type[Named], plain: Mapping[Key, tuple[Any, ...]]) -> None:
        self._of, self._plain = of, plain
        self._make: Callable[[tuple[Any, ...]], Named] = functools.partial(tuple.__new__, of)

    def __len__(self) -> int:
        return len(self._plain)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._plain)

    def __contains__(self, key: object) -> bool:
        return key in self._plain

    def __getitem__(self, key: Key) -> Named:
        return self._make(self._plain[key])

    def keys(self) -> KeysView[Key]:
        # The set operations of a dictionary's keys take a tenth of the time of a mapping's.
        return self._plain.keys()

    def column(self, field: str) -> dict[Key, Any]:
        """One field by key; for loops over thousands."""
        return dict(zip(self._plain, self.each(field), strict=True))

    def each(self, field: str) -> Iterator[Any]:
        """One field of each, in the order of the keys; for loops over thousands."""
        return map(operator.itemgetter(self._of._fields.index(field)), self._plain.values())

    def of(self, keys: Iterable[Key], field: str) -> Iterator[Any]:
        """One field for each of the keys; for loops over thousands.

        :raises KeyError: when it comes to a key that is not there
        """
        return map(operator.itemgetter(self._of._fields.index(field)), map(self._plain.__getitem__, keys))

    def columns(self, first: str, second: str, *more: str) -> Iterator[tuple[Key, tuple[Any, ...]]]:
        """Every key with some of the fields; for loops over thousands."""
        return zip(self._plain, Compact(self._of, list(self._plain.values())).columns(first, second, *more),
                   strict=True)
