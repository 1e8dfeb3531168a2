"""Run by alembic for every command. The connection is handed in; no configuration is read and no logging set up."""

from alembic import context

from devicetrack.store.sql import models

context.configure(connection=context.config.attributes['connection'], target_metadata=models.metadata)
with context.begin_transaction():
    context.run_migrations()
