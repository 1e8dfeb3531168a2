"""The store on SQLite, PostgreSQL or MariaDB."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oslo_config import cfg

if TYPE_CHECKING:
    from devicetrack.store.sql.store import SQLStore


def open_store(conf: cfg.ConfigOpts, state_path: str | None = None) -> SQLStore:
    """Open the store that ``[devicetrack_database]`` names. Nothing is connected or made yet.

    SQLAlchemy is loaded here, not when this package is imported.

    :param state_path: the host's state directory, where the SQLite file is when no option names a database; by default
        ``[devicetrack] state_path``, as for :func:`devicetrack.virt.loader.load_driver`
    :raises InvalidConfiguration: the option cannot be used, or the driver of the database is not installed
    """
    from devicetrack.store.sql.store import SQLStore
    return SQLStore(conf, state_path)


def sync_store(conf: cfg.ConfigOpts, state_path: str | None = None) -> str:
    """Make the store that ``[devicetrack_database]`` names, or bring its schema to this release, as ``db sync`` does.

    For services that do this themselves before they open the store. Call it before
    :meth:`~devicetrack.claims.manager.ClaimManager.init_host`, which refuses a store of another release. Idempotent: a
    store that is up to date is only read. When two processes do this at once, one waits for the other. A store that
    many hosts share is upgraded for all of them, so stop the managers of the older release first.

    Blocks for as long as the migrations take. The directory of an SQLite store gets mode 0700 when it is made here, the
    file 0600.

    :param state_path: as :func:`open_store`
    :returns: the revision that the schema has now
    :raises SchemaMismatch: the store is of a newer release, or it is no store; nothing was changed
    :raises StoreUnavailable: it cannot be reached or written
    :raises InvalidConfiguration: as :func:`open_store`
    """
    from devicetrack.store.sql import schema
    store = open_store(conf, state_path)
    try:
        return schema.sync(store)
    finally:
        store.close()
