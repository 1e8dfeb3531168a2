"""Makes tuples from rows, and parameters from tuples: both have the same fields in the same order."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
import operator
from typing import Any

from devicetrack.objects.compact import Compact
from devicetrack.objects.event import Event
from devicetrack.objects.values import Leftover
from devicetrack.objects.values import Record
from devicetrack.store import api
from devicetrack.store.sql import models

_PREFIX_NEW = 'new_'
_PREFIX_OLD = 'old_'
_WIDTH = len(Record._fields)


def records(rows: Iterable[tuple[Any, ...]]) -> Sequence[Record]:
    """Rows of ``assignments``, all columns in their order, as records. A host has thousands."""
    return Compact(Record, rows)


def hosts(rows: Iterable[Sequence[Any]]) -> list[api.Host]:
    """Rows of ``hosts``, all columns in their order."""
    return list(map(api.Host._make, rows))


def contexts(rows: Iterable[Sequence[Any]]) -> list[api.StoredContext]:
    """Rows of ``migration_contexts``, all columns in their order."""
    return list(map(api.StoredContext._make, rows))


def operator_requests(rows: Iterable[Sequence[Any]]) -> list[api.OperatorRequest]:
    """Rows of ``operator_requests``, all columns in their order."""
    return [api.OperatorRequest._make(row[1:]) for row in rows]


def withheld(rows: Iterable[Sequence[Any]]) -> list[api.WithheldRow]:
    """Rows of ``withheld``, all columns in their order."""
    return list(map(api.WithheldRow._make, rows))


def declarations(rows: Iterable[Sequence[Any]]) -> list[api.StoredDeclaration]:
    """Rows of ``declarations``, all columns in their order."""
    return list(map(api.StoredDeclaration._make, rows))


def leftovers(rows: Iterable[Sequence[Any]]) -> list[Leftover]:
    """Rows of ``leftovers``, all columns in their order."""
    return [Leftover._make(row[1:]) for row in rows]


def events(rows: Iterable[Sequence[Any]]) -> list[api.StoredEvent]:
    """Rows of ``events``, all columns in their order."""
    return [api.StoredEvent(row[0], Event._make(row[1:])) for row in rows]


def new(column: str) -> str:
    """The name of the parameter with the new value of a column."""
    return _PREFIX_NEW + column


def old(column: str) -> str:
    """The name of the parameter with the value that a column had when it was read."""
    return _PREFIX_OLD + column


def parameters_of_update(names: Sequence[str]) -> Callable[[api.Update], tuple[Any, ...]]:
    """A function from an Update to the positional parameters with these names (see :func:`new`, :func:`old`)."""
    pick = operator.itemgetter(*[_index(name) for name in names])
    return lambda update: pick(update.after + update.before)


def parameters_of_delete(names: Sequence[str]) -> Callable[[Record], tuple[Any, ...]]:
    """The same for a deleted record, which has only old values."""
    pick = operator.itemgetter(*[_index(name) - _WIDTH for name in names])
    return lambda record: pick(record)


def _index(name: str) -> int:
    if name.startswith(_PREFIX_NEW):
        return Record._fields.index(name.removeprefix(_PREFIX_NEW))
    return _WIDTH + Record._fields.index(name.removeprefix(_PREFIX_OLD))


# An update may change every column but those that name the row.
CHANGEABLE = tuple(name for name in Record._fields if name not in models.KEY)
