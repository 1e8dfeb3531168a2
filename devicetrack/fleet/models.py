"""The tables of a mirror. They have nothing to do with the revision of a store, so hosts of several releases push.

A later format only adds tables, indexes and columns that may be NULL. An older host leaves those alone, and ``fleet
sync`` needs no steps: it adds what is missing.
"""

from __future__ import annotations

from typing import Any
from typing import Final

import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.ext import compiler

from devicetrack.objects import event
from devicetrack.store.sql import schema

# A host pushes to a mirror of its own format or of a later one.
FORMAT: Final = 1

metadata: Final = sa.MetaData()

# As in a store: identifiers are compared byte by byte.
_MARIADB: Final[dict[str, Any]] = {'mysql_engine': 'InnoDB', 'mysql_charset': 'utf8mb4', 'mysql_collate': 'utf8mb4_bin'}

_DOCUMENT: Final = sa.Text().with_variant(mysql.MEDIUMTEXT(), 'mysql', 'mariadb')


class now_ms(sa.sql.functions.FunctionElement[int]):
    """Milliseconds since 1970 by the clock of the mirror's server. No age depends on another clock."""

    type = sa.BigInteger()
    inherit_cache = True


@compiler.compiles(now_ms, 'sqlite')
def _now_of_sqlite(_element: Any, _compiler: Any, **_others: Any) -> str:
    return "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"


@compiler.compiles(now_ms, 'postgresql')
def _now_of_postgresql(_element: Any, _compiler: Any, **_others: Any) -> str:
    return 'CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)'


@compiler.compiles(now_ms, 'mysql')
@compiler.compiles(now_ms, 'mariadb')
def _now_of_mariadb(_element: Any, _compiler: Any, **_others: Any) -> str:
    return 'CAST(UNIX_TIMESTAMP(SYSDATE(3)) * 1000 AS SIGNED)'


# One row. ``days`` is how long the mirror keeps events; 0 is for ever.
fleet_schema: Final = sa.Table(
    schema.MIRROR, metadata,
    sa.Column('format', sa.Integer, primary_key=True, autoincrement=False),
    sa.Column('days', sa.Integer, nullable=False),
    **_MARIADB)

# ``read_at_ms`` is when the host was read, by the server's clock; ``host_read_at_ms`` is the same by the host's own.
# ``findings`` is the list that "audit -f json" prints. ``cursor_number`` is the number of the last event that the host
# has pushed, and ``cursor_digest`` that of the last events after ``cursor_since``. ``picture`` is a digest of all
# that the host said of itself except its events. A host that is forgotten, or has another UUID now, has
# ``forgotten_at_ms`` and no devices and parts any more.
fleet_hosts: Final = sa.Table(
    'fleet_hosts', metadata,
    sa.Column('host_uuid', sa.String(36), primary_key=True),
    sa.Column('name', sa.String(255), nullable=False),
    sa.Column('machine_id', sa.String(128), nullable=False),
    sa.Column('release', sa.String(64), nullable=False),
    sa.Column('epoch', sa.BigInteger, nullable=False),
    sa.Column('report_only', sa.Text, nullable=True),
    sa.Column('group_name', sa.String(255), nullable=False),
    sa.Column('interval_s', sa.Integer, nullable=False),
    sa.Column('read_at_ms', sa.BigInteger, nullable=False),
    sa.Column('host_read_at_ms', sa.BigInteger, nullable=False),
    sa.Column('findings', _DOCUMENT, nullable=False),
    sa.Column('critical', sa.Integer, nullable=False),
    sa.Column('cursor_since', sa.BigInteger, nullable=False),
    sa.Column('cursor_number', sa.BigInteger, nullable=False),
    sa.Column('cursor_digest', sa.String(32), nullable=False),
    sa.Column('picture', sa.String(32), nullable=False),
    sa.Column('trimmed_at_ms', sa.BigInteger, nullable=False),
    sa.Column('forgotten_at_ms', sa.BigInteger, nullable=True),
    sa.Index('ix_fleet_hosts_name', 'name'),
    **_MARIADB)

# A host that was silent for so many of its intervals is unknown: nobody knows which of its devices are free.
SILENT_INTERVALS: Final = 3


def is_silent() -> sa.ColumnElement[bool]:
    """Whether a row of ``fleet_hosts`` is that of a host that is unknown now."""
    return now_ms() - fleet_hosts.c.read_at_ms > fleet_hosts.c.interval_s * (SILENT_INTERVALS * 1000)


# The lines of "device list" of a host. ``line`` is the element that it prints with "-f json". A line of devices that a
# parent can still make has no identifier, and its ``amount`` says how many.
fleet_devices: Final = sa.Table(
    'fleet_devices', metadata,
    sa.Column('host_uuid', sa.String(36), primary_key=True),
    sa.Column('position', sa.Integer, primary_key=True, autoincrement=False),
    sa.Column('digest', sa.String(32), nullable=False),
    sa.Column('kind', sa.String(64), nullable=False),
    sa.Column('identifier', sa.String(255), nullable=True),
    sa.Column('status', sa.String(16), nullable=False),
    sa.Column('amount', sa.Integer, nullable=False),
    sa.Column('resource_class', sa.String(255), nullable=True),
    sa.Column('parent', sa.String(255), nullable=True),
    sa.Column('numa_node', sa.Integer, nullable=True),
    sa.Column('instance_uuid', sa.String(36), nullable=True),
    sa.Column('serial', sa.String(255), nullable=True),
    sa.Column('line', _DOCUMENT, nullable=False),
    sa.Index('ix_fleet_devices_identifier', 'identifier'),
    sa.Index('ix_fleet_devices_parent', 'parent'),
    sa.Index('ix_fleet_devices_resource_class', 'resource_class'),
    sa.Index('ix_fleet_devices_instance_uuid', 'instance_uuid'),
    sa.Index('ix_fleet_devices_serial', 'serial'),
    sa.Index('ix_fleet_devices_status', 'status'),
    **_MARIADB)

# What else a host said: the documents below.
fleet_parts: Final = sa.Table(
    'fleet_parts', metadata,
    sa.Column('host_uuid', sa.String(36), primary_key=True),
    sa.Column('part', sa.String(32), primary_key=True),
    sa.Column('digest', sa.String(32), nullable=False),
    sa.Column('document', _DOCUMENT, nullable=False),
    **_MARIADB)

# Documents of JSON: lists of the fields of each row of the host's store, by their names and without its UUID, and the
# inventory, from which ``devicetrack.fleet.inventory`` makes the snapshot of the host.
ROWS: Final = 'rows'
WITHHELD: Final = 'withheld'
DECLARATIONS: Final = 'declarations'
CONTEXTS: Final = 'contexts'
INVENTORY: Final = 'inventory'

# Events of all times. The digest is that of the event without its number, which changes when the host moves to another
# store; so the mirror has an event once, also if a backup of the store was restored. Within a host, order them by
# ``at_ms`` and then by ``number``. The mirror keeps them by ``arrived_at_ms``, by the clock of its server: that
# of a host may be wrong.
fleet_events: Final = sa.Table(
    'fleet_events', metadata,
    sa.Column('host_uuid', sa.String(36), primary_key=True),
    sa.Column('digest', sa.String(32), primary_key=True),
    sa.Column('arrived_at_ms', sa.BigInteger, nullable=False),
    sa.Column('number', sa.BigInteger, nullable=False),
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
    sa.Index('ix_fleet_events_host_uuid_arrived_at_ms', 'host_uuid', 'arrived_at_ms'),
    sa.Index('ix_fleet_events_identifier', 'identifier'),
    sa.Index('ix_fleet_events_parent', 'parent'),
    sa.Index('ix_fleet_events_instance_uuid', 'instance_uuid'),
    sa.Index('ix_fleet_events_serial', 'serial'),
    **_MARIADB)
