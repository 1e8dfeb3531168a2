"""The parent of the device that an event is about. Older events have none."""

from alembic import op
import sqlalchemy as sa

revision = '0010'
down_revision = '0009'


def upgrade() -> None:
    # MariaDB commits the statement before the version is written.
    there = {column['name'] for column in sa.inspect(op.get_bind()).get_columns('events')}
    if 'parent' not in there:
        op.add_column('events', sa.Column('parent', sa.String(255), nullable=True))
