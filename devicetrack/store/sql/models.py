"""The tables of a store, in the form that this release reads and writes.

Portable between SQLite, PostgreSQL and MariaDB. What the migrations make equals what stands here; a test compares.
"""

from __future__ import annotations

from typing import Any
from typing import Final

import sqlalchemy as sa

from devicetrack.objects import values

# The newest revision under migrations/, named here so that checking a store needs no alembic. A test compares.
REVISION: Final = '0001'

metadata: Final = sa.MetaData()

# Identifiers are compared byte by byte everywhere. MariaDB would otherwise take 'ns0' and 'NS0' for one device.
_MARIADB: Final[dict[str, Any]] = {'mysql_engine': 'InnoDB', 'mysql_charset': 'utf8mb4', 'mysql_collate': 'utf8mb4_bin'}

hosts: Final = sa.Table(
    'hosts', metadata,
    sa.Column('uuid', sa.String(36), primary_key=True),
    sa.Column('name', sa.String(255), nullable=False),
    sa.Column('machine_id', sa.String(128), nullable=False),
    sa.UniqueConstraint('name', name='uniq_hosts0name'),
    **_MARIADB)

# The identity of a device is the primary key: there is no way to write a second owner for it. The columns stand in
# the order of values.Record, so a record is a row and a row is a record.
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
    sa.Index('ix_assignments_instance_uuid', 'instance_uuid'),
    sa.Index('ix_assignments_migration_uuid', 'migration_uuid'),
    **_MARIADB)

if tuple(assignments.c.keys()) != values.Record._fields:      # python -O must not lose this, so it is no assert
    raise TypeError('the columns of assignments are not the fields of Record, in their order')

KEY: Final = ('host_uuid', 'kind', 'identifier')              # what names a row
READ_AT: Final = (*KEY, 'generation', 'claim_id')             # what names one version of it
