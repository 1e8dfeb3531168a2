"""Hosts and assignments."""

from typing import Any

from alembic import op
import sqlalchemy as sa

revision = '0001'
down_revision = None

_MARIADB: dict[str, Any] = {'mysql_engine': 'InnoDB', 'mysql_charset': 'utf8mb4', 'mysql_collate': 'utf8mb4_bin'}


def upgrade() -> None:
    # MariaDB commits after each of these statements. So each accepts what an earlier run made before it was cut short.
    there = sa.inspect(op.get_bind())
    if not there.has_table('hosts'):
        op.create_table(
            'hosts',
            sa.Column('uuid', sa.String(36), primary_key=True),
            sa.Column('name', sa.String(255), nullable=False),
            sa.Column('machine_id', sa.String(128), nullable=False),
            sa.UniqueConstraint('name', name='uniq_hosts0name'),
            **_MARIADB)
    if not there.has_table('assignments'):
        op.create_table(
            'assignments',
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
            **_MARIADB)
    op.create_index('ix_assignments_instance_uuid', 'assignments', ['instance_uuid'], if_not_exists=True)
    op.create_index('ix_assignments_migration_uuid', 'assignments', ['migration_uuid'], if_not_exists=True)
