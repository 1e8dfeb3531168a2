"""The name that people gave the instance of a row. Rows that are there already have none."""

from alembic import op
import sqlalchemy as sa

revision = '0015'
down_revision = '0014'


def upgrade() -> None:
    # MariaDB commits the statement before the version is written.
    there = {column['name'] for column in sa.inspect(op.get_bind()).get_columns('assignments')}
    if 'instance_name' not in there:
        op.add_column('assignments', sa.Column('instance_name', sa.String(255), nullable=True))
