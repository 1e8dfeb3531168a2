"""The generation of a row says whether its device was made ready for a guest, whatever else has changed the row."""

from alembic import op
import sqlalchemy as sa

revision = '0012'
down_revision = '0011'


def upgrade() -> None:
    # Before, a claimed row that was written again counted as ready, and a releasing one at the third write. MariaDB
    # writes the version last: a row that has its new generation stays as it is when the run is repeated.
    op.execute(sa.text(
        "UPDATE assignments SET generation = generation + 1000000 WHERE generation BETWEEN 0 AND 999999 "
        "AND NOT (state = 'claimed' AND generation = 1) AND NOT (state = 'releasing' AND generation = 2)"))
