"""The common part of the three databases. Each has a subclass for the rest: its settings and its errors."""

from __future__ import annotations

import abc
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import enum
import re
from typing import Any
from typing import Final
from typing import NamedTuple
from typing import TypeVar

from oslo_db import exception as db_exc
import sqlalchemy as sa
from sqlalchemy import exc as sa_exc

from devicetrack.objects.values import Record

# One statement has at most this many rows. More rows become several statements of the same transaction.
ROWS_A_STATEMENT: Final = 500

# The errors of Python's own conversion of a value. The last one is what oslo.db makes of a UnicodeEncodeError.
_UNFIT: Final = (ValueError, OverflowError, db_exc.DBInvalidUnicodeParameter)

# A transaction that has to give way to another one is tried this often.
ATTEMPTS: Final = 10


class FaultCause(enum.Enum):
    """The meaning of a driver's error for a store."""

    DUPLICATE = 'a row with this key exists'
    STALE = 'a row moved on'
    TAKEN_OVER = 'another manager of the host has started'
    CONFLICT = 'the database chose this transaction to give way to another one'
    LOCKED = 'another transaction holds the lock for too long'
    NONE_FREE = 'no connection of the pool was free in time'
    GONE = 'no connection to the database'
    TOO_MANY = 'the server takes no more connections'
    NO_ACCESS = 'the server refuses this account or database'
    NO_TLS = 'the server offers no TLS'
    UNTRUSTED = "the server's certificate cannot be verified"
    OTHER_NAME = "the server's certificate is for another name"
    DISK = 'the disk or the file system fails to read, write or lock it'
    READ_ONLY = 'it is read-only'
    NO_RIGHT = 'permission denied'
    FULL = 'it is full'
    NO_SCHEMA = 'a table or column is missing'
    NOT_A_STORE = 'it is not a database'
    TOO_SLOW = 'a statement took longer than it may'
    UNFIT = 'a value is too long, out of range or has a character that the database cannot hold'
    IN_DOUBT = 'the database cannot say what it did'
    OTHER = 'the database refused the statement'


class Timeouts(NamedTuple):
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


class StoreFault(NamedTuple):
    """An error with its cause. ``reason`` is a sentence of ours: it quotes no value, no user name and no password."""

    cause: FaultCause
    reason: str
    error: BaseException | None = None


class TransactionFailed(Exception):
    """A transaction has a fault. Nothing was written, unless the fault is that the outcome is in doubt."""

    def __init__(self, fault: StoreFault) -> None:
        super().__init__(fault)
        self.fault = fault

    @classmethod
    def by(cls, cause: FaultCause) -> TransactionFailed:
        return cls(StoreFault(cause, cause.value))


Row = TypeVar('Row')


def chunks(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    """The rows in portions that each fit into one statement."""
    for start in range(0, len(rows), ROWS_A_STATEMENT):
        yield rows[start:start + ROWS_A_STATEMENT]


class Backend(abc.ABC):
    """One database, by its driver.

    :param engine: the store's engine; its dialect compiles the statements and names the driver's module
    :param patience: how long its server may take
    """

    def __init__(self, engine: sa.Engine, patience: Timeouts) -> None:
        self.patience = patience
        self._account = Account(engine.url)
        self.Error: type[Exception] = engine.dialect.loaded_dbapi.Error

    # -- one connection ------------------------------------------------------------------------------------------------

    def connect_arguments(self) -> Mapping[str, Any]:
        """Further arguments for the driver's ``connect``."""
        return {}

    def prepare(self, connection: Any) -> None:
        """Give a new connection of the driver the settings of a store. Leaves no transaction open."""

    def prepare_to_write(self, connection: sa.Connection) -> None:
        """Prepare a connection, on which no transaction is open, for one that writes."""

    def catch_up(self, connection: sa.Connection, records: Collection[Record]) -> None:
        """In a cluster, end other nodes' open transactions that change these rows, and have this node see the rest.

        Also one ends whose COMMIT still arrives later.
        """

    # -- errors --------------------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def cause_of(self, error: BaseException) -> FaultCause:
        """The meaning of an error of the driver, by its code: the message is in the language of the server."""

    def cause_of_system(self, error: OSError) -> FaultCause:
        """The meaning of an error of the operating system, as of a socket or a file."""
        return FaultCause.GONE

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

    def fault(self, error: BaseException) -> StoreFault:
        """The meaning of an error of the driver, of SQLAlchemy or of oslo.db."""
        self._account.hide(error)
        origin = origin_of(error)
        # An error that is not the driver's comes from the operating system (a socket, a file), from Python's own
        # conversion of a value, or is a mistake of ours.
        cause = (self.cause_of(origin) if isinstance(origin, self.Error)
                 else FaultCause.CONFLICT if isinstance(origin, db_exc.DBDeadlock)
                 else FaultCause.NONE_FREE if isinstance(origin, sa_exc.TimeoutError)
                 else self.cause_of_system(origin) if isinstance(origin, OSError)
                 else FaultCause.UNFIT if isinstance(origin, _UNFIT) else FaultCause.OTHER)
        code = self.code_of(origin) if isinstance(origin, self.Error) else ''
        detail = ' '.join(part for part in (type(origin).__name__, code) if part)
        return StoreFault(cause, f'{cause.value} ({detail})', error)


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
