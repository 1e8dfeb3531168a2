"""The store on SQLite, PostgreSQL or MariaDB."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oslo_config import cfg

if TYPE_CHECKING:
    from devicetrack.store.sql.store import SQLStore


def open_store(conf: cfg.ConfigOpts) -> SQLStore:
    """Open the store that ``[devicetrack_database]`` names. Nothing is connected or made yet.

    SQLAlchemy is loaded here, not when this package is imported.

    :raises InvalidConfiguration: the option cannot be used, or the driver of the database is not installed
    """
    from devicetrack.store.sql.store import SQLStore
    return SQLStore(conf)
