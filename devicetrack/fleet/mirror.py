"""The database of a mirror: which one it is, and its schema."""

from __future__ import annotations

import functools
from typing import Final
from typing import NamedTuple

from oslo_config import cfg
import sqlalchemy as sa

from devicetrack import exception
from devicetrack.conf import fleet as options
from devicetrack.fleet import models
from devicetrack.store.sql import schema
from devicetrack.store.sql.backend import FaultCause
from devicetrack.store.sql.backend import StoreFault
from devicetrack.store.sql.database import Database

OPTION: Final = f'[{options.GROUP}] connection'
SYNC: Final = 'run devicetrack-manage fleet sync with an account that may make tables'

_TERMS: Final = sa.select(models.fleet_schema)


class Terms(NamedTuple):
    """What a mirror says of itself: its format, and how many days it keeps events; 0 is for ever."""

    format: int
    days: int


class Mirror(Database):
    """The database that ``[devicetrack_fleet] connection`` names. It connects when it is first asked something.

    :raises InvalidConfiguration: the option is missing or cannot be used, or the driver is not installed
    """

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        options.register(conf)
        if not conf[options.GROUP].connection:
            raise exception.InvalidConfiguration(OPTION, '(empty)', 'name the database of the mirror')
        super().__init__(conf, group=options.GROUP)

    def close(self) -> None:
        """Close every connection. The mirror may be used again: it opens new ones."""
        self.notice_fork()
        self.engine.dispose()

    def terms(self) -> Terms:
        """Read the schema, for a command that reads.

        :raises SchemaMismatch: the database is no mirror, or of an older format than this release reads
        :raises StoreUnavailable: it cannot be reached
        """
        if not self.is_there():
            raise self._mismatch(None, SYNC)
        return self.check([Terms(*row) for row in self.rows(_TERMS)])

    def check(self, terms: list[Terms]) -> Terms:
        """Check the rows of the table of the schema.

        :raises SchemaMismatch: as :meth:`terms`
        """
        if not terms:
            raise self._mismatch(None, SYNC)
        if terms[0].format < models.FORMAT:
            raise self._mismatch(terms[0].format, f'{SYNC}; until then hosts of this release wait, and lose nothing')
        return terms[0]

    def unavailable(self, fault: StoreFault) -> exception.NothingWritten:
        if fault.cause is not FaultCause.NO_SCHEMA:
            return super().unavailable(fault)
        return self._mismatch(None, self._is_store() or SYNC)

    def _mismatch(self, found: int | None, remedy: str) -> exception.SchemaMismatch:
        return exception.SchemaMismatch(self.name, None if found is None else str(found), str(models.FORMAT), remedy)

    def _is_store(self) -> str | None:
        """The remedy for a database that is a store; None if it is none."""
        if schema.revision(self) is None:
            return None
        return f'it is a store, and no mirror: give the mirror a database of its own in {OPTION}'

    def sync(self, days: int) -> Terms:
        """Make the schema or bring it to this release, while hosts push; make the file of an SQLite mirror.

        It only adds, so hosts of an older release go on.

        :param days: how many days the mirror keeps events from now on
        :raises SchemaMismatch: the database is a store, or of a newer format; nothing was changed
        :raises StoreUnavailable: it cannot be reached or written
        """
        if self.path is not None:
            schema.make_file(self)
        remedy = self._is_store()
        if remedy is not None:
            raise self._mismatch(None, remedy)
        terms = Terms(models.FORMAT, days)
        with self.unhurried() as database:
            found = database.transact(functools.partial(_bring, database, terms))
            if found > models.FORMAT:
                raise self._mismatch(found, 'the mirror is of a newer release: upgrade this one')
            if self.path is None:
                schema.make_indexes(database, models.metadata)
        return terms


def _bring(database: Database, terms: Terms, connection: sa.Connection) -> int:
    """Add what is missing, and return the format that the mirror has then: its own if that is newer."""
    with schema.only_one(database, connection):
        table = models.fleet_schema
        table.create(connection, checkfirst=True)
        found: int | None = connection.execute(sa.select(table.c.format)).scalar()
        if found is not None and found > terms.format:
            return found
        models.metadata.create_all(connection)
        inspector = sa.inspect(connection)
        for one in models.metadata.sorted_tables:
            there = {column['name'] for column in inspector.get_columns(one.name)}
            for column in one.columns:
                if column.name not in there:
                    text = sa.schema.CreateColumn(column).compile(dialect=connection.dialect)
                    connection.execute(sa.text(f'ALTER TABLE {one.name} ADD COLUMN {text}'))
            for index in one.indexes if database.path is not None else ():
                index.create(connection, checkfirst=True)
        connection.execute(sa.delete(table))
        connection.execute(sa.insert(table).values(terms._asdict()))
    return terms.format
