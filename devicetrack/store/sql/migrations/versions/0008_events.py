"""Events: what happened to devices, kept after their rows are gone."""

from typing import Any

from alembic import op
import sqlalchemy as sa

revision = '0008'
down_revision = '0007'

_MARIADB: dict[str, Any] = {'mysql_engine': 'InnoDB', 'mysql_charset': 'utf8mb4', 'mysql_collate': 'utf8mb4_bin'}


def upgrade() -> None:
    # MariaDB commits after each statement, and the version is written last.
    there = sa.inspect(op.get_bind())
    if not there.has_table('events'):
        op.create_table(
            'events',
            sa.Column('number', sa.BigInteger().with_variant(sa.Integer(), 'sqlite'), primary_key=True,
                      autoincrement=True),
            sa.Column('host_uuid', sa.String(36), nullable=False),
            sa.Column('kind', sa.String(64), nullable=False),
            sa.Column('identifier', sa.String(255), nullable=False),
            sa.Column('event', sa.String(16), nullable=False),
            sa.Column('at_ms', sa.BigInteger, nullable=False),
            sa.Column('instance_uuid', sa.String(36), nullable=True),
            sa.Column('migration_uuid', sa.String(36), nullable=True),
            sa.Column('claim_id', sa.String(64), nullable=True),
            sa.Column('request_id', sa.String(64), nullable=True),
            sa.Column('details', sa.Text, nullable=True),
            **_MARIADB)
    if op.get_bind().dialect.name == 'sqlite':
        return                                  # a file has the events of one host
    made = {index['name'] for index in sa.inspect(op.get_bind()).get_indexes('events')}
    for name, columns in (('ix_events_host_uuid_number', ['host_uuid', 'number']),
                          ('ix_events_instance_uuid', ['instance_uuid'])):
        if name not in made:
            op.create_index(name, 'events', columns)
