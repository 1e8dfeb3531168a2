"""Whether the device of a row was ever realized for its guest. Before, the generation of the row said it."""

from alembic import op
import sqlalchemy as sa

revision = '0013'
down_revision = '0012'


def upgrade() -> None:
    # MariaDB commits the first statement before the version is written, and the others together with it.
    if 'was_realized' not in {column['name'] for column in sa.inspect(op.get_bind()).get_columns('assignments')}:
        op.add_column('assignments', sa.Column('was_realized', sa.Boolean, nullable=False, server_default='1'))
    op.execute(sa.text(
        "UPDATE assignments SET was_realized = FALSE WHERE state <> 'active' "
        "AND generation BETWEEN CASE state WHEN 'releasing' THEN 2 ELSE 1 END AND 999999"))
    # A row that got the first of the high generations was written at least twice.
    op.execute(sa.text('UPDATE assignments SET generation = CASE WHEN generation < 1000002 THEN 2 '
                       'ELSE generation - 1000000 END WHERE generation >= 1000000'))
