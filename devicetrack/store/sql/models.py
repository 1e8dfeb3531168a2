"""The tables of a store, in the form that this release reads and writes.

They are portable between SQLite, PostgreSQL and MariaDB. A test checks that the migrations make the same tables.
"""

from __future__ import annotations

from typing import Any
from typing import Final

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from devicetrack.objects import event
from devicetrack.objects import values
from devicetrack.store import api

# The newest revision under migrations/, named here so that checking a store needs no alembic. A test compares.
REVISION: Final = '0015'

metadata: Final = sa.MetaData()

# Identifiers are compared byte by byte everywhere. MariaDB would otherwise take 'ns0' and 'NS0' for one device.
_MARIADB: Final[dict[str, Any]] = {'mysql_engine': 'InnoDB', 'mysql_charset': 'utf8mb4', 'mysql_collate': 'utf8mb4_bin'}

# The dialects of the databases that hosts share.
SERVERS: Final = ('postgresql', 'mysql', 'mariadb')


def _is_on_server(ddl: Any, target: Any, bind: Any, tables: Any = None, state: Any = None, *, dialect: sa.Dialect,
                  **others: Any) -> bool:
    """Whether a table or an index is made for a database that hosts share."""
    return dialect.name in SERVERS


# For documents: MariaDB's TEXT ends at 64 KiB. The TEXT of the others is as long as needed.
_DOCUMENT: Final = sa.Text().with_variant(mysql.MEDIUMTEXT(), 'mysql', 'mariadb')

# The columns of a table have the names and the order of the fields of its tuples, so a record is a row and a row is a
# record. Operator requests, leftovers and events have one column more, the first.
hosts: Final = sa.Table(
    'hosts', metadata,
    sa.Column('uuid', sa.String(36), primary_key=True),
    sa.Column('name', sa.String(255), nullable=False),
    sa.Column('machine_id', sa.String(128), nullable=False),
    sa.Column('boot_id', sa.String(64), nullable=True),
    sa.Column('nested_version', sa.Integer, nullable=True),
    sa.Column('nested_at', sa.BigInteger, nullable=True),
    sa.Column('epoch', sa.BigInteger, nullable=False, server_default='0'),
    sa.UniqueConstraint('name', name='uniq_hosts0name'),
    **_MARIADB)

# The identity of a device is the primary key, so nobody can write a second owner for it.
assignments: Final = sa.Table(
    'assignments', metadata,
    sa.Column('host_uuid', sa.String(36), primary_key=True),
    sa.Column('kind', sa.String(64), primary_key=True),
    sa.Column('identifier', sa.String(255), primary_key=True),
    sa.Column('instance_uuid', sa.String(36), nullable=False),
    sa.Column('migration_uuid', sa.String(36), nullable=True),
    sa.Column('role', sa.String(16), nullable=False),
    sa.Column('state', sa.String(16), nullable=False),
    sa.Column('position', sa.Integer, nullable=False),
    sa.Column('claim_id', sa.String(64), nullable=False),
    sa.Column('generation', sa.Integer, nullable=False),
    sa.Column('provider_uuid', sa.String(36), nullable=False),
    sa.Column('resource_class', sa.String(255), nullable=False),
    sa.Column('parent', sa.String(255), nullable=True),
    sa.Column('numa_node', sa.Integer, nullable=True),
    sa.Column('details', sa.Text, nullable=False),
    sa.Column('created_at', sa.BigInteger, nullable=False),
    sa.Column('seen', sa.String(32), nullable=True),
    sa.Column('was_realized', sa.Boolean, nullable=False, server_default='1'),
    sa.Column('instance_name', sa.String(values.NAME_LENGTH), nullable=True),
    sa.Index('ix_assignments_instance_uuid', 'instance_uuid'),
    sa.Index('ix_assignments_migration_uuid', 'migration_uuid'),
    **_MARIADB)

# An instance that does not move on a host has no row here.
migration_contexts: Final = sa.Table(
    'migration_contexts', metadata,
    sa.Column('host_uuid', sa.String(36), primary_key=True),
    sa.Column('instance_uuid', sa.String(36), primary_key=True),
    sa.Column('migration_uuid', sa.String(36), nullable=False),
    sa.Column('context', _DOCUMENT, nullable=False),
    sa.Index('ix_migration_contexts_migration_uuid', 'migration_uuid'),
    **_MARIADB)

# The number tells which request came first. Several may come in one second, and a clock may be set back.
operator_requests: Final = sa.Table(
    'operator_requests', metadata,
    sa.Column('number', sa.Integer, primary_key=True, autoincrement=True),
    sa.Column('uuid', sa.String(36), nullable=False),
    sa.Column('host_uuid', sa.String(36), nullable=False),
    sa.Column('verb', sa.String(64), nullable=False),
    sa.Column('arguments', _DOCUMENT, nullable=False),
    sa.Column('created_at', sa.BigInteger, nullable=False),
    sa.Column('answered_at', sa.BigInteger, nullable=True),
    sa.Column('answer', _DOCUMENT, nullable=True),
    sa.UniqueConstraint('uuid', name='uniq_operator_requests0uuid'),
    sa.Index('ix_operator_requests_host_uuid', 'host_uuid'),
    **_MARIADB)

# A device or a parent (the scope says which) that nothing withholds has no row here.
withheld: Final = sa.Table(
    'withheld', metadata,
    sa.Column('host_uuid', sa.String(36), primary_key=True),
    sa.Column('kind', sa.String(64), primary_key=True),
    sa.Column('scope', sa.String(16), primary_key=True),
    sa.Column('name', sa.String(255), primary_key=True),
    sa.Column('reasons', _DOCUMENT, nullable=False),
    sa.Column('generation', sa.Integer, nullable=False),
    sa.Column('updated_at', sa.BigInteger, nullable=False),
    **_MARIADB)

# A host declares this anew at every start. The key allows no NULL, so a device without a parent has ''.
declarations: Final = sa.Table(
    'declarations', metadata,
    sa.Column('host_uuid', sa.String(36), primary_key=True),
    sa.Column('kind', sa.String(64), primary_key=True),
    sa.Column('parent', sa.String(255), primary_key=True),
    sa.Column('type', sa.String(255), primary_key=True),
    sa.Column('document', _DOCUMENT, nullable=False),
    **_MARIADB)

# The confirms and reverts of a host that have yet to reach placement.
leftovers: Final = sa.Table(
    'leftovers', metadata,
    sa.Column('host_uuid', sa.String(36), primary_key=True),
    sa.Column('instance_uuid', sa.String(36), nullable=False),
    sa.Column('migration_uuid', sa.String(36), primary_key=True),
    sa.Column('verb', sa.String(16), nullable=True),
    sa.Column('own', sa.Text, nullable=True),
    **_MARIADB)

# Events: rows are added, and the oldest deleted. The number tells which came first, because a clock may be set back.
# The indexes serve the events of a host, of a device, parent or card, and of an instance. SQLite has none: a file has
# the events of one host, and the primary key finds the oldest. A person waits a second until a million events are read,
# but each index would cost every claim some hundredths of its time.
events: Final = sa.Table(
    'events', metadata,
    sa.Column('number', sa.BigInteger().with_variant(sa.Integer(), 'sqlite'), primary_key=True, autoincrement=True),
    sa.Column('host_uuid', sa.String(36), nullable=False),
    sa.Column('kind', sa.String(64), nullable=False),
    sa.Column('identifier', sa.String(255), nullable=False),
    sa.Column('event', sa.String(16), nullable=False),
    sa.Column('at_ms', sa.BigInteger, nullable=False),
    sa.Column('instance_uuid', sa.String(36), nullable=True),
    sa.Column('migration_uuid', sa.String(36), nullable=True),
    sa.Column('claim_id', sa.String(64), nullable=True),
    sa.Column('request_id', sa.String(event.REQUEST_ID_LENGTH), nullable=True),
    sa.Column('details', sa.Text, nullable=True),
    sa.Column('parent', sa.String(255), nullable=True),
    sa.Column('serial', sa.String(255), nullable=True),
    sa.Index('ix_events_host_uuid_number', 'host_uuid', 'number').ddl_if(callable_=_is_on_server),
    sa.Index('ix_events_instance_uuid', 'instance_uuid').ddl_if(callable_=_is_on_server),
    sa.Index('ix_events_identifier', 'identifier').ddl_if(callable_=_is_on_server),
    sa.Index('ix_events_parent', 'parent').ddl_if(callable_=_is_on_server),
    sa.Index('ix_events_serial', 'serial').ddl_if(callable_=_is_on_server),
    **_MARIADB)

TABLES: Final[dict[Any, sa.Table]] = {
    api.Host: hosts, values.Record: assignments, api.StoredContext: migration_contexts,
    api.OperatorRequest: operator_requests, api.WithheldRow: withheld, api.StoredDeclaration: declarations,
    values.Leftover: leftovers, event.Event: events}

for _of, _table in TABLES.items():
    _more = len(_table.c) > len(_of._fields)
    if tuple(_table.c.keys())[_more:] != _of._fields:         # not an assert, which python -O would leave out
        raise TypeError(f'the columns of {_table.name} are not the fields of what they become, in their order')

KEY: Final = ('host_uuid', 'kind', 'identifier')              # names a row of assignments
READ_AT: Final = (*KEY, 'generation', 'claim_id')             # names one version of it
