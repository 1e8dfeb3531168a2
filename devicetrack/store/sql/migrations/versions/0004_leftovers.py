"""Leftovers: the allocations that confirms of moves have yet to remove from placement."""

from typing import Any

from alembic import op
import sqlalchemy as sa

revision = '0004'
down_revision = '0003'

_MARIADB: dict[str, Any] = {'mysql_engine': 'InnoDB', 'mysql_charset': 'utf8mb4', 'mysql_collate': 'utf8mb4_bin'}


def upgrade() -> None:
    # MariaDB commits after this: when the run was cut short then, the version says that it is still to do.
    if not sa.inspect(op.get_bind()).has_table('leftovers'):
        op.create_table(
            'leftovers',
            sa.Column('host_uuid', sa.String(36), primary_key=True),
            sa.Column('instance_uuid', sa.String(36), nullable=False),
            sa.Column('migration_uuid', sa.String(36), primary_key=True),
            **_MARIADB)
