"""Moves a host from one store to another: all rows of the host, and the right to manage it.

At no moment can a manager start on both stores. First the old store says that the host has moved, in a transaction that
also ends the epoch of every manager. Then one transaction writes the host and all its rows to the new store. If that
one fails, the host is taken back; if nobody can say whether it did, the host has moved, and the next run settles it.
"""

from __future__ import annotations

from collections.abc import Callable
import functools
from typing import Final
from typing import NamedTuple

import sqlalchemy as sa

from devicetrack import exception
from devicetrack import log
from devicetrack.store import api
from devicetrack.store.sql import backend as backends
from devicetrack.store.sql import convert
from devicetrack.store.sql import models
from devicetrack.store.sql import queries
from devicetrack.store.sql.store import next_step
from devicetrack.store.sql.store import SQLStore

LOG = log.logger(__name__)

_HOSTS: Final = models.hosts
_OF_HOSTS: Final = [table for table in models.TABLES.values() if table is not _HOSTS]
_LONGEST: Final = 128                           # of the column
# The new store numbers these rows itself: it may have those of other hosts.
_NUMBER: Final = 'number'


class Moved(NamedTuple):
    """The host in its new store, and the number of rows that were written there, by their table.

    ``rows`` is None if an earlier call had written all of them.
    """

    host: api.Host
    rows: dict[str, int] | None


def host_of(source: SQLStore, target: SQLStore, name: str | None, digest: str) -> api.Host:
    """The host of this machine in a store, also one whose move to ``target`` did not end.

    :param digest: of the machine's id
    :raises UnknownHost, AmbiguousHost: there is none of this name, or there are several and no name
    :raises HostMoved: it has moved to another store
    """
    hosts = source.hosts()
    found = [host for host in hosts if host.machine == digest and name in (None, host.name)]
    if not found:
        raise exception.UnknownHost(name, [host.name for host in hosts])
    if len(found) > 1:
        raise exception.AmbiguousHost([host.name for host in found])
    [host] = found
    if host.moved_to is not None and host.machine_id != _mark(host, target):
        raise exception.HostMoved(host.name, host.moved_to)
    return host


def move(source: SQLStore, target: SQLStore, host: api.Host, told: Callable[[int], None] | None = None) -> Moved:
    """Move a host. The caller holds the host's lock.

    It may be called again after it was cut short, for the same target.

    :param host: as :func:`host_of` returns it
    :param told: called with the number of rows that were written so far
    :raises SchemaMismatch: one of the two has another schema than this release; nothing was changed
    :raises TargetHasHost: the target has this host, or one of its name or of this machine; nothing was changed
    :raises StoreUnavailable: one of the two cannot be read or written; nothing was changed
    :raises OutcomeUnknown: one of the two did not answer a COMMIT: call this again
    """
    for store in (source, target):
        store.check()
    mark = _mark(host, target)
    with target.reading() as connection:
        there = _in_the_way(connection, host)
    if host.machine_id == mark and there is not None and there.identity == (host.uuid, host.name, host.machine):
        return Moved(there, None)
    _refuse(there, target)
    if host.machine_id != mark:
        host = source.transact(functools.partial(_set_machine, host, mark))
    try:
        with target.unhurried() as unhurried:
            moved = unhurried.transact(functools.partial(_write, source, target, host, told))
    except exception.OutcomeUnknown:
        raise
    except Exception:                           # an interrupt may have come in COMMIT, as an unknown outcome
        source.transact(functools.partial(_set_machine, host, host.machine))
        raise
    LOG.info('Host %(host)s has moved from %(source)s to %(target)s',
             {'host': host.name, 'source': source.name, 'target': target.name})
    return moved


def _mark(host: api.Host, target: SQLStore) -> str:
    """What the old store has in place of the machine."""
    return f'{host.machine}{api.MOVED}{target.name}'[:_LONGEST]


def _set_machine(host: api.Host, machine_id: str, connection: sa.Connection) -> api.Host:
    """Change the machine of a host in the old store, and end the epoch of every manager. Returns the host after it."""
    connection.execute(queries.LOCK_HOST, {'uuid': host.uuid})
    changed = connection.execute(sa.update(_HOSTS).where(
        _HOSTS.c.uuid == host.uuid, _HOSTS.c.name == host.name, _HOSTS.c.machine_id == host.machine_id).values(
            machine_id=machine_id, epoch=_HOSTS.c.epoch + next_step())).rowcount
    if not changed:
        raise exception.HostIdentityChanged(host.name)
    return convert.tuples(api.Host, connection.execute(sa.select(_HOSTS).where(_HOSTS.c.uuid == host.uuid)).all())[0]


def _in_the_way(connection: sa.Connection, host: api.Host) -> api.Host | None:
    """The host of the new store that is this one, or has its name or its machine.

    None if there is none, or if it is this host as it was before it moved from there.
    """
    found = convert.tuples(api.Host, connection.execute(sa.select(_HOSTS).where(sa.or_(
        _HOSTS.c.uuid == host.uuid, _HOSTS.c.name == host.name, _HOSTS.c.machine_id == host.machine))).all())
    for other in found:
        if other.uuid != host.uuid or other.name != host.name or other.moved_to is None:
            return other
    return None


def _refuse(there: api.Host | None, target: SQLStore) -> None:
    if there is not None:
        raise exception.TargetHasHost(there.name, target.name)


def _write(source: SQLStore, target: SQLStore, host: api.Host, told: Callable[[int], None] | None,
           connection: sa.Connection) -> Moved:
    """Write the host and all its rows, in place of those that it had before it moved from there."""
    _refuse(_in_the_way(connection, host), target)
    for table in _OF_HOSTS:
        connection.execute(sa.delete(table).where(table.c.host_uuid == host.uuid))
    connection.execute(sa.delete(_HOSTS).where(_HOSTS.c.uuid == host.uuid))
    now = host._replace(machine_id=host.machine, epoch=host.epoch + next_step())
    connection.execute(sa.insert(_HOSTS).values(now._asdict()))
    rows: dict[str, int] = {}
    for table in _OF_HOSTS:
        rows[table.name] = 0
        numbered = _NUMBER in table.c
        for page in source.pages(sa.select(table).where(table.c.host_uuid == host.uuid),
                                 list(table.primary_key.columns), backends.ROWS_A_STATEMENT):
            connection.execute(sa.insert(table), [
                {name: value for name, value in row._mapping.items() if not numbered or name != _NUMBER}
                for row in page])
            rows[table.name] += len(page)
            if told is not None:
                told(sum(rows.values()))
    return Moved(now, rows)
