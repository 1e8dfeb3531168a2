"""The serial number of the card that an event is about. Older events have none."""

from alembic import op
import sqlalchemy as sa

revision = '0014'
down_revision = '0013'


def upgrade() -> None:
    # MariaDB commits the statement before the version is written.
    there = {column['name'] for column in sa.inspect(op.get_bind()).get_columns('events')}
    if 'serial' not in there:
        op.add_column('events', sa.Column('serial', sa.String(255), nullable=True))
