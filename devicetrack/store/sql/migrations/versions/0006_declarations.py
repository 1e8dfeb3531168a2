"""What hosts declare of their devices for migrations, and what a guest may have seen of its own."""

from typing import Any

from alembic import op
import sqlalchemy as sa
from sqlalchemy.dialects import mysql

revision = '0006'
down_revision = '0005'

_MARIADB: dict[str, Any] = {'mysql_engine': 'InnoDB', 'mysql_charset': 'utf8mb4', 'mysql_collate': 'utf8mb4_bin'}


def upgrade() -> None:
    # MariaDB commits after each: when the run was cut short then, the version says that it is still to do.
    there = sa.inspect(op.get_bind())
    if 'seen' not in {column['name'] for column in there.get_columns('assignments')}:
        op.add_column('assignments', sa.Column('seen', sa.String(32), nullable=True))
    if not there.has_table('declarations'):
        op.create_table(
            'declarations',
            sa.Column('host_uuid', sa.String(36), primary_key=True),
            sa.Column('kind', sa.String(64), primary_key=True),
            sa.Column('parent', sa.String(255), primary_key=True),
            sa.Column('type', sa.String(255), primary_key=True),
            sa.Column('document', sa.Text().with_variant(mysql.MEDIUMTEXT(), 'mysql', 'mariadb'), nullable=False),
            **_MARIADB)
