"""The common part of the three databases. Each has a subclass for the rest.

A backend knows how to carry out changes on one connection of its driver, and what the errors of that driver mean.
It holds no connection and no state of a transaction.

The committer uses the driver itself, not SQLAlchemy's connections: at every commit SQLAlchemy would take longer to
build, compile and run one INSERT than the driver takes for the whole commit. SQLAlchemy still makes the statements,
once for all stores of a kind. Readers use SQLAlchemy's connections.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import enum
import functools
import itertools
import re
from typing import Any
from typing import ClassVar
from typing import Final
from typing import NamedTuple
from typing import TypeVar

from oslo_db import exception as db_exc
import sqlalchemy as sa
from sqlalchemy.engine import interfaces

from devicetrack.objects.event import Event
from devicetrack.objects.values import Record
from devicetrack.store import api
from devicetrack.store import history
from devicetrack.store.sql import convert
from devicetrack.store.sql import models

# One statement has at most this many rows. More rows become several statements of the same transaction.
ROWS_A_STATEMENT: Final = 500

# The errors of Python's own conversion of a value. The last one is what oslo.db makes of a UnicodeEncodeError.
_UNFIT: Final = (ValueError, OverflowError, db_exc.DBInvalidUnicodeParameter)

# A transaction that has to give way to another one is tried this often.
ATTEMPTS: Final = 10


class Cause(enum.Enum):
    """The meaning of a driver's error for a store."""

    DUPLICATE = 'a row with this key exists'
    STALE = 'a row moved on'
    TAKEN_OVER = 'another manager of the host has started'
    CONFLICT = 'the database chose this transaction to give way to another one'
    LOCKED = 'another transaction holds the lock for too long'
    GONE = 'no connection to the database'
    DISK = 'the disk or the file system fails to read, write or lock it'
    READ_ONLY = 'it is read-only'
    FULL = 'it is full'
    NO_SCHEMA = 'a table or column is missing'
    NOT_A_STORE = 'it is not a database'
    TOO_SLOW = 'a statement took longer than it may'
    UNFIT = 'a value is too long, out of range or has a character that the database cannot hold'
    IN_DOUBT = 'the database cannot say what it did'
    OTHER = 'the database refused the statement'


class Patience(NamedTuple):
    """How long a transaction waits for the lock of another, and how long a statement may take with that, in seconds.

    The server ends a statement that takes longer. If the server has not ended it a little later, the server is lost.
    """

    busy_s: int
    statement_s: int

    @property
    def silence_s(self) -> int:
        return self.statement_s + _GRACE_S


# For the answer of a server that ends a statement in time.
_GRACE_S: Final = 5


class Fault(NamedTuple):
    """An error with its cause. ``reason`` is a sentence of ours: it quotes no value, no user name and no password."""

    cause: Cause
    reason: str
    error: BaseException | None = None


class StaleRows(Exception):
    """An update or delete matched fewer rows than it names. The transaction is still open and must be undone."""


class OldEpoch(Exception):
    """A host has a later epoch than the writer. The transaction is still open and must be undone."""


class Merged(NamedTuple):
    """The changes of all members of one transaction, in the order of their keys.

    Every transaction locks its rows in this order, so two transactions that meet seldom deadlock.
    """

    insert: Sequence[Record]
    update: Sequence[api.Update]
    delete: Sequence[Record]
    contexts: Sequence[api.ContextChange]
    events: Sequence[Event]

    @classmethod
    def of(cls, members: Sequence[api.Changes]) -> Merged:
        if len(members) == 1:
            insert, update, delete, contexts, _note = members[0]
            if len(insert) + len(update) + len(delete) == 1 and len(contexts) < 2:
                return cls(insert, update, delete, contexts, history.events_of(members[0]))
        return cls(sorted((record for changes in members for record in changes.insert), key=_key),
                   sorted((update for changes in members for update in changes.update), key=_key_before),
                   sorted((record for changes in members for record in changes.delete), key=_key),
                   _last_of_each([change for changes in members for change in changes.contexts]),
                   [event for changes in members for event in history.events_of(changes)])


def flat(rows: Iterable[Iterable[Any]]) -> tuple[Any, ...]:
    """The parameters of a statement with many rows."""
    return tuple(itertools.chain.from_iterable(rows))


def _key(record: Record) -> tuple[str, ...]:
    return record[:3]


def _key_before(update: api.Update) -> tuple[str, ...]:
    return update.before[:3]


def _last_of_each(contexts: Sequence[api.ContextChange]) -> Sequence[api.ContextChange]:
    """The last change to the context of each instance, in the order of their keys."""
    if not contexts:
        return ()
    last = {change[:2]: change for change in contexts}
    return [last[key] for key in sorted(last)]


Row = TypeVar('Row')


def chunks(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    """The rows in portions that each fit into one statement."""
    for start in range(0, len(rows), ROWS_A_STATEMENT):
        yield rows[start:start + ROWS_A_STATEMENT]


class _Statements(NamedTuple):
    """Texts of statements, and functions that make their parameters."""

    insert_one: str
    update_one: str
    of_update: Callable[[api.Update], tuple[Any, ...]]
    delete_one: str
    of_delete: Callable[[Record], tuple[Any, ...]]
    put_context: str
    drop_context: str
    check_epoch: str
    insert_one_at_epoch: str
    add_event: str


class Backend(abc.ABC):
    """One database, by its driver.

    :param engine: the store's engine; its dialect compiles the statements and names the driver's module
    :param patience: how long its server may take
    """

    paramstyle: ClassVar[interfaces._ParamStyle]
    locks_whole_store: ClassVar[bool] = False

    def __init__(self, engine: sa.Engine, patience: Patience) -> None:
        self.patience = patience
        self._account = Account(engine.url)
        self.Error: type[Exception] = engine.dialect.loaded_dbapi.Error
        make_dialect: Callable[..., sa.Dialect] = type(engine.dialect)
        (self.insert_one, self.update_one, self.of_update, self.delete_one, self.of_delete, self._put_context,
         self._drop_context, self.check_epoch, self.insert_one_at_epoch,
         self.add_event) = self._statements(make_dialect)

    @classmethod
    @functools.cache
    def _statements(cls, make_dialect: Callable[..., sa.Dialect]) -> _Statements:
        """Compile what the committer runs, once for all stores of this kind."""
        # Positional parameters, so that a Record is its own parameters.
        dialect = make_dialect(paramstyle=cls.paramstyle)

        def compiled(statement: sa.sql.ClauseElement) -> tuple[str, tuple[str, ...]]:
            text = statement.compile(dialect=dialect)
            return str(text), tuple(getattr(text, 'positiontup', ()))

        table, contexts = models.assignments, models.migration_contexts
        version = [table.c[name] == sa.bindparam(convert.old(name)) for name in models.READ_AT]
        insert_one, _ = compiled(sa.insert(table).values(
            {name: sa.bindparam(convert.new(name)) for name in Record._fields}))
        update_one, updated = compiled(sa.update(table).where(*version).values(
            {name: sa.bindparam(convert.new(name)) for name in convert.CHANGEABLE}))
        delete_one, deleted = compiled(sa.delete(table).where(*version))
        put_context, _ = compiled(cls._insert_or_replace(
            contexts, models.CONTEXT_KEY, [name for name in contexts.c.keys() if name not in models.CONTEXT_KEY]))
        drop_context, _ = compiled(sa.delete(contexts).where(
            *[contexts.c[name] == sa.bindparam(convert.old(name)) for name in models.CONTEXT_KEY]))
        check_epoch, _ = compiled(models.at_epoch(sa.bindparam('host_uuid'), sa.bindparam('epoch')))
        # A claim of one device is one statement with its fence: it inserts one row or none.
        insert_one_at_epoch, _ = compiled(sa.insert(table).from_select(
            Record._fields, models.at_epoch(sa.bindparam('host_uuid'), sa.bindparam('epoch')).with_only_columns(
                *[sa.bindparam(convert.new(name)) for name in Record._fields])))
        # Inline, because nobody needs the number that an event gets.
        add_event, _ = compiled(sa.insert(models.events).inline().values(
            {name: sa.bindparam(name) for name in Event._fields}))
        return _Statements(insert_one, update_one, convert.parameters_of_update(updated), delete_one,
                           convert.parameters_of_delete(deleted), put_context, drop_context, check_epoch,
                           insert_one_at_epoch, add_event)

    @staticmethod
    @abc.abstractmethod
    def _insert_or_replace(table: sa.Table, key: Sequence[str], others: Sequence[str]) -> sa.Insert:
        """A statement that inserts a row, all columns in their order, or replaces the one with this key.

        It is one statement: after a DELETE, an INSERT could meet the key of a lost transaction that was still open, and
        the store would report a device that somebody else has.
        """

    def is_one_insert(self, merged: Merged, fences: Sequence[api.Fence]) -> bool:
        """Whether a transaction is the insert of one row at one epoch, and nothing else but its event."""
        insert, update, delete, contexts, _events = merged
        return len(insert) == len(fences) == 1 and not (update or delete or contexts)

    def of_contexts(self, contexts: Sequence[api.ContextChange]) -> list[tuple[str, tuple[Any, ...]]]:
        """Each change of a context as a statement and its parameters."""
        return [(self._put_context, change) if change.context is not None else (self._drop_context, change[:2])
                for change in contexts]

    # -- one connection ------------------------------------------------------------------------------------------------

    def connect_arguments(self) -> Mapping[str, Any]:
        """Further arguments for the driver's ``connect``."""
        return {}

    @abc.abstractmethod
    def prepare(self, connection: Any) -> None:
        """Give a new connection of the driver the settings of a store. Leaves no transaction open."""

    def prepare_to_write(self, connection: Any) -> None:
        """Further settings of the one connection that writes."""

    @abc.abstractmethod
    def ping(self, connection: Any) -> None:
        """Check that an idle connection still has its server. One round trip; raises the driver's error."""

    # -- one transaction -----------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def carry_out(self, connection: Any, merged: Merged, fences: Sequence[api.Fence] = ()) -> None:
        """Begin a transaction and run the statements in it: fences, events, deletes, updates, inserts, contexts.

        Each fence locks the row of its host for sharing until the transaction ends, in the round trip of the first
        statement. So a manager that takes a later epoch waits for this transaction, and no later one passes. Deletes
        come next, so that a device that one member gives can be taken by another member of the same batch.

        :raises OldEpoch: a host has a later epoch; PostgreSQL raises an error of its own instead
        :raises StaleRows: an update or delete matched fewer rows than it names
        """

    @abc.abstractmethod
    def commit(self, connection: Any) -> None:
        """Send COMMIT and wait for its answer."""

    @abc.abstractmethod
    def rollback(self, connection: Any) -> None:
        """Undo the transaction, if one is open."""

    # -- errors --------------------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def cause_of(self, error: BaseException) -> Cause:
        """The meaning of an error of the driver, by its code: the message is in the language of the server."""

    @abc.abstractmethod
    def code_of(self, error: BaseException) -> str:
        """The code of an error of the driver, for messages."""

    def with_bytes(self, connection: sa.Connection,
                   error: BaseException) -> contextlib.AbstractContextManager[None] | None:
        """A block in which a connection returns texts that are none as bytes; None if ``error`` was not about one."""
        return None

    @abc.abstractmethod
    def undone_in_commit(self, error: BaseException) -> bool:
        """Whether an error of COMMIT proves that the database has undone the transaction."""

    def fault(self, error: BaseException) -> Fault:
        """The meaning of an error of the driver, of SQLAlchemy or of oslo.db."""
        self._account.hide(error)
        origin = origin_of(error)
        # An error that is not the driver's comes from the operating system (a socket, a file), from Python's own
        # conversion of a value, or is a mistake of ours.
        cause = (self.cause_of(origin) if isinstance(origin, self.Error)
                 else Cause.GONE if isinstance(origin, OSError)
                 else Cause.UNFIT if isinstance(origin, _UNFIT) else Cause.OTHER)
        code = self.code_of(origin) if isinstance(origin, self.Error) else ''
        detail = ' '.join(part for part in (type(origin).__name__, code) if part)
        return Fault(cause, f'{cause.value} ({detail})', error)


class Account:
    """The account in a URL. A server may name it in an error, and so may a driver in its parameters."""

    def __init__(self, url: sa.URL) -> None:
        words = {word for word in (url.username, url.password, *map(url.query.get, ('user', 'password', 'passwd')))
                 if isinstance(word, str) and word}
        found = '|'.join(sorted(map(re.escape, words), key=len, reverse=True))
        self._words = re.compile(rf'(?<!\w)(?:{found})(?!\w)' if words else r'(?!)')

    def hide(self, error: BaseException | None) -> None:
        """Take the account and its password out of the texts of an error and of its causes, because logs show them."""
        seen: set[int] = set()
        waiting = [error]
        while waiting:
            one = waiting.pop()
            if one is None or id(one) in seen:
                continue
            seen.add(id(one))
            one.args = tuple(self._words.sub('(not shown)', part) if isinstance(part, str) else part
                             for part in one.args)
            waiting += [one.__cause__, one.__context__, getattr(one, 'orig', None),
                        getattr(one, 'inner_exception', None)]


def origin_of(error: BaseException) -> BaseException:
    """The driver's own error, inside the one that SQLAlchemy or oslo.db made from it."""
    while True:
        inner = getattr(error, 'inner_exception', None) or getattr(error, 'orig', None)
        if not isinstance(inner, BaseException):
            return error
        error = inner
