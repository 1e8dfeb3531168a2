"""What is withheld on a host, and why."""

from typing import Any

from alembic import op
import sqlalchemy as sa
from sqlalchemy.dialects import mysql

revision = '0003'
down_revision = '0002'

_MARIADB: dict[str, Any] = {'mysql_engine': 'InnoDB', 'mysql_charset': 'utf8mb4', 'mysql_collate': 'utf8mb4_bin'}


def upgrade() -> None:
    # MariaDB commits after this: when the run was cut short then, the version says that it is still to do.
    if not sa.inspect(op.get_bind()).has_table('withheld'):
        op.create_table(
            'withheld',
            sa.Column('host_uuid', sa.String(36), primary_key=True),
            sa.Column('kind', sa.String(64), primary_key=True),
            sa.Column('scope', sa.String(16), primary_key=True),
            sa.Column('name', sa.String(255), primary_key=True),
            sa.Column('reasons', sa.Text().with_variant(mysql.MEDIUMTEXT(), 'mysql', 'mariadb'), nullable=False),
            sa.Column('generation', sa.Integer, nullable=False),
            sa.Column('updated_at', sa.BigInteger, nullable=False),
            **_MARIADB)
