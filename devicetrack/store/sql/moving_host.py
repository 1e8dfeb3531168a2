"""Moves a host from one store to another: all rows of the host, and the right to manage it.

At no moment can a manager start on both stores. Four transactions do it:

1. The new store gets the host without its rows, as one that moves. So no manager can begin there with none.
2. The old store says that the host moves, which also ends the epoch of every manager.
3. The new store gets the host and all its rows.
4. The old store says that the host has moved. From then on its rows go nowhere: they are old.

If the third one fails, the second is taken back. If nobody can say whether it did, the next run settles it. The host
moves meanwhile; an error of that run takes nothing back, since the lost transaction may still come.
"""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import functools
import hashlib
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
_LONGEST: Final = 54                            # of the name of a store, behind the machine in a column of 128
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
    if host.moved_to is not None and host.machine_id not in (_mark(host, target), _mark(host, target, api.MOVED)):
        raise exception.HostMoved(host.name, host.moved_to)
    return host


def move(source: SQLStore, target: SQLStore, host: api.Host, told: Callable[[int], None] | None = None) -> Moved:
    """Move a host. The caller holds the host's lock.

    It may be called again after it was cut short, for the same target.

    :param host: as :func:`host_of` returns it
    :param told: called with the number of rows that were written so far
    :raises SchemaMismatch: one of the two has another schema than this release; nothing was changed
    :raises TargetHasHost: the target has this host, or one of its name or of this machine; nothing was changed
    :raises HostMoved: it has moved to the target, and from there to another store; nothing was changed
    :raises StoreUnavailable: one of the two cannot be read or written; nothing was changed
    :raises OutcomeUnknown: one of the two did not answer a COMMIT: call this again
    """
    for store in (source, target):
        store.check()
    mark, moved_mark = _mark(host, target), _mark(host, target, api.MOVED)
    if host.machine_id == moved_mark:
        there = target.host(host.name)
        if there is None or there.identity != _as_owner(host).identity:
            raise exception.HostMoved(host.name, host.moved_to or target.name)
        return Moved(there, None)
    target.transact(functools.partial(_announce, target, host, mark))
    moving = None
    try:
        moving = source.transact(functools.partial(_set_machine, host, mark))
        with target.unhurried() as unhurried:
            moved = unhurried.transact(functools.partial(_write, source, target, host, moving, told))
    except exception.OutcomeUnknown:
        raise
    except Exception:                           # an interrupt may have come in COMMIT, as an unknown outcome
        if host.machine_id != mark:             # else an earlier call may have a COMMIT on its way
            if moving is not None:
                source.transact(functools.partial(_set_machine, moving, host.machine))
            with contextlib.suppress(exception.StoreError):
                target.transact(functools.partial(_withdraw, host, mark))
        raise
    try:
        source.transact(functools.partial(_set_machine, moving, moved_mark))
    except (exception.StoreError, exception.HostIdentityChanged) as error:
        # The host is in its new store. The old one refuses it all the same.
        LOG.warning('%(store)s does not record that the move of host %(host)s has ended: %(error)s',
                    {'store': source.name, 'host': host.name, 'error': error})
    LOG.info('Host %(host)s has moved from %(source)s to %(target)s',
             {'host': host.name, 'source': source.name, 'target': target.name})
    return moved


def _mark(host: api.Host, target: SQLStore, verb: str = api.MOVING) -> str:
    """What the old store has in place of the machine. Stores with different names have different marks."""
    name = target.name
    if len(name) > _LONGEST:
        digest = hashlib.sha256(name.encode()).hexdigest()[:12]
        name = f'{name[:_LONGEST - len(digest) - 1]} {digest}'
    return f'{host.machine}{verb}{name}'


def _as_owner(host: api.Host) -> api.Host:
    return host._replace(machine_id=host.machine)


def _set_machine(host: api.Host, machine_id: str, connection: sa.Connection) -> api.Host:
    """Change the machine of a host in the old store, and end the epoch of every manager. Returns the host after it.

    Of two calls for one epoch only one succeeds. While the host moves there is no manager whose epoch could come again,
    and a small step keeps the epoch below the one in the new store.
    """
    connection.execute(queries.LOCK_HOST, {'uuid': host.uuid})
    step = 1 if host.moved_to is not None and machine_id != host.machine else next_step()
    changed = connection.execute(sa.update(_HOSTS).where(
        _HOSTS.c.uuid == host.uuid, _HOSTS.c.name == host.name, _HOSTS.c.machine_id == host.machine_id,
        _HOSTS.c.epoch == host.epoch).values(machine_id=machine_id, epoch=host.epoch + step)).rowcount
    if not changed:
        raise exception.HostIdentityChanged(host.name)
    return convert.tuples(api.Host, connection.execute(sa.select(_HOSTS).where(_HOSTS.c.uuid == host.uuid)).all())[0]


def _in_the_way(connection: sa.Connection, host: api.Host) -> api.Host | None:
    """The host of the new store that is this one, or has its name or its machine.

    None if there is none, or if it is this host as it was before it moved from there. If this host moves already, the
    one there may have moved there with it since, and on to a third store: then its epoch is later.
    """
    found = convert.tuples(api.Host, connection.execute(sa.select(_HOSTS).where(sa.or_(
        _HOSTS.c.uuid == host.uuid, _HOSTS.c.name == host.name,
        _HOSTS.c.machine_id.startswith(host.machine, autoescape=True)))).all())
    for other in sorted(found, key=lambda one: one.uuid != host.uuid):
        if (other.uuid, other.name) != (host.uuid, host.name) or other.moved_to is None or (
                host.moved_to is not None and other.epoch > host.epoch):
            return other
    return None


def _announce(target: SQLStore, host: api.Host, mark: str, connection: sa.Connection) -> None:
    """Write the host as one that moves, unless its old row says so already."""
    there = _in_the_way(connection, host)
    if there is not None and not (host.machine_id == mark and there.identity == _as_owner(host).identity):
        raise exception.TargetHasHost(there.name, target.name)
    if connection.execute(queries.EPOCH, {'uuid': host.uuid}).scalar() is None:
        connection.execute(sa.insert(_HOSTS).values(host._replace(machine_id=mark, epoch=0)._asdict()))


def _withdraw(host: api.Host, mark: str, connection: sa.Connection) -> None:
    connection.execute(sa.delete(_HOSTS).where(_HOSTS.c.uuid == host.uuid, _HOSTS.c.machine_id == mark))


def _write(source: SQLStore, target: SQLStore, asked: api.Host, host: api.Host, told: Callable[[int], None] | None,
           connection: sa.Connection) -> Moved:
    """Write the host and all its rows, in place of those that it had before it moved from there."""
    connection.execute(queries.LOCK_HOST, {'uuid': host.uuid})      # first an earlier call's transaction ends
    there, now = _in_the_way(connection, asked), _as_owner(host)
    if there is not None:
        if asked.moved_to is not None and there.identity == now.identity:
            return Moved(there, None)
        raise exception.TargetHasHost(there.name, target.name)
    for table in _OF_HOSTS:
        connection.execute(sa.delete(table).where(table.c.host_uuid == host.uuid))
    connection.execute(sa.delete(_HOSTS).where(_HOSTS.c.uuid == host.uuid))
    now = now._replace(epoch=host.epoch + next_step())
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
