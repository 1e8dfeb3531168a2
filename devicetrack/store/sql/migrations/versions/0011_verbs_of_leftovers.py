"""Whether a leftover is of a confirm or of a revert, and what the move gave. Nobody knows that of older leftovers."""

from alembic import op
import sqlalchemy as sa

revision = '0011'
down_revision = '0010'


def upgrade() -> None:
    # MariaDB commits after each: when the run was cut short then, the version says that it is still to do.
    there = {column['name'] for column in sa.inspect(op.get_bind()).get_columns('leftovers')}
    for column in (sa.Column('verb', sa.String(16), nullable=True), sa.Column('own', sa.Text, nullable=True)):
        if column.name not in there:
            op.add_column('leftovers', column)
