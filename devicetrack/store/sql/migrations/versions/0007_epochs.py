"""The epoch of a host: which of its managers may write."""

from alembic import op
import sqlalchemy as sa

revision = '0007'
down_revision = '0006'


def upgrade() -> None:
    # MariaDB commits the statement before the version is written.
    if 'epoch' not in {column['name'] for column in sa.inspect(op.get_bind()).get_columns('hosts')}:
        op.add_column('hosts', sa.Column('epoch', sa.BigInteger, nullable=False, server_default='0'))
