"""The table of operator requests gets their name. It was ``orders``; its rows stay."""

from alembic import op
import sqlalchemy as sa

revision = '0009'
down_revision = '0008'

# The primary key and the sequence have the names that PostgreSQL gave them after the table's.
_POSTGRESQL = (
    'ALTER TABLE orders RENAME TO operator_requests',
    'ALTER SEQUENCE orders_number_seq RENAME TO operator_requests_number_seq',
    'ALTER INDEX orders_pkey RENAME TO operator_requests_pkey',
    'ALTER INDEX uniq_orders0uuid RENAME TO uniq_operator_requests0uuid',
    'ALTER INDEX ix_orders_host_uuid RENAME TO ix_operator_requests_host_uuid')

# One statement, so that a run which is cut short has done all of it or nothing.
_MARIADB = ('ALTER TABLE orders RENAME INDEX uniq_orders0uuid TO uniq_operator_requests0uuid, '
            'RENAME INDEX ix_orders_host_uuid TO ix_operator_requests_host_uuid, RENAME TO operator_requests',)


def upgrade() -> None:
    # MariaDB commits the statement before the version is written.
    if not sa.inspect(op.get_bind()).has_table('orders'):
        return
    dialect = op.get_bind().dialect.name
    if dialect == 'sqlite':
        _copy()
        return
    for statement in _POSTGRESQL if dialect == 'postgresql' else _MARIADB:
        op.execute(statement)


def _copy() -> None:
    """SQLite cannot rename a constraint."""
    op.create_table(
        'operator_requests',
        sa.Column('number', sa.Integer, primary_key=True, autoincrement=True),
        sa.Column('uuid', sa.String(36), nullable=False),
        sa.Column('host_uuid', sa.String(36), nullable=False),
        sa.Column('verb', sa.String(64), nullable=False),
        sa.Column('arguments', sa.Text, nullable=False),
        sa.Column('created_at', sa.BigInteger, nullable=False),
        sa.Column('answered_at', sa.BigInteger, nullable=True),
        sa.Column('answer', sa.Text, nullable=True),
        sa.UniqueConstraint('uuid', name='uniq_operator_requests0uuid'))
    names = 'number, uuid, host_uuid, verb, arguments, created_at, answered_at, answer'
    op.execute(f'INSERT INTO operator_requests ({names}) SELECT {names} FROM orders')
    op.drop_table('orders')
    op.create_index('ix_operator_requests_host_uuid', 'operator_requests', ['host_uuid'])
