"""Since when a host's devices are counted at providers of their own."""

from alembic import op
import sqlalchemy as sa

revision = '0005'
down_revision = '0004'


def upgrade() -> None:
    # MariaDB commits after each: when the run was cut short then, the version says that it is still to do.
    there = {column['name'] for column in sa.inspect(op.get_bind()).get_columns('hosts')}
    for column in (sa.Column('nested_version', sa.Integer, nullable=True),
                   sa.Column('nested_at', sa.BigInteger, nullable=True)):
        if column.name not in there:
            op.add_column('hosts', column)
