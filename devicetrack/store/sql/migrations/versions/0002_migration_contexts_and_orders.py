"""Migration contexts, orders, and the boot that a host was seen in."""

from typing import Any

from alembic import op
import sqlalchemy as sa
from sqlalchemy.dialects import mysql

revision = '0002'
down_revision = '0001'

_MARIADB: dict[str, Any] = {'mysql_engine': 'InnoDB', 'mysql_charset': 'utf8mb4', 'mysql_collate': 'utf8mb4_bin'}


def upgrade() -> None:
    # MariaDB commits after each of these statements. So each accepts what an earlier run made before it was cut short.
    inspector = sa.inspect(op.get_bind())
    if 'boot_id' not in {column['name'] for column in inspector.get_columns('hosts')}:
        op.add_column('hosts', sa.Column('boot_id', sa.String(64), nullable=True))
    document = sa.Text().with_variant(mysql.MEDIUMTEXT(), 'mysql', 'mariadb')
    if not inspector.has_table('migration_contexts'):
        op.create_table(
            'migration_contexts',
            sa.Column('host_uuid', sa.String(36), primary_key=True),
            sa.Column('instance_uuid', sa.String(36), primary_key=True),
            sa.Column('migration_uuid', sa.String(36), nullable=False),
            sa.Column('context', document, nullable=False),
            **_MARIADB)
    op.create_index('ix_migration_contexts_migration_uuid', 'migration_contexts', ['migration_uuid'],
                    if_not_exists=True)
    if not inspector.has_table('orders'):
        op.create_table(
            'orders',
            sa.Column('number', sa.Integer, primary_key=True, autoincrement=True),
            sa.Column('uuid', sa.String(36), nullable=False),
            sa.Column('host_uuid', sa.String(36), nullable=False),
            sa.Column('verb', sa.String(64), nullable=False),
            sa.Column('arguments', document, nullable=False),
            sa.Column('created_at', sa.BigInteger, nullable=False),
            sa.Column('answered_at', sa.BigInteger, nullable=True),
            sa.Column('answer', document, nullable=True),
            sa.UniqueConstraint('uuid', name='uniq_orders0uuid'),
            **_MARIADB)
    op.create_index('ix_orders_host_uuid', 'orders', ['host_uuid'], if_not_exists=True)
