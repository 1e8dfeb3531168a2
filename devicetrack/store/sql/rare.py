"""What is seldom written: hosts, orders, what is withheld, declarations, leftovers.

Each function is the work of one transaction. Claims have no part in it, so it goes the plain way, through SQLAlchemy.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import Final

import sqlalchemy as sa

from devicetrack import exception
from devicetrack.objects.values import Leftover
from devicetrack.store import api
from devicetrack.store.sql import convert
from devicetrack.store.sql import models

# Of each host. An order that waits is never dropped.
ANSWERED_ORDERS_KEPT: Final = 100


# -- hosts ------------------------------------------------------------------------------------------------------------


def set_of_host(connection: sa.Connection, host_uuid: str, values: Mapping[str, Any]) -> bool:
    """Change columns of a host; whether there is such a host."""
    table = models.hosts
    return connection.execute(sa.update(table).where(table.c.uuid == host_uuid).values(**values)).rowcount == 1


def replace_host(connection: sa.Connection, before: api.Host, after: api.Host) -> None:
    """Delete a host and all that is left of it, and insert another.

    :raises HostHoldsDevices, HostIdentityChanged: nothing was written
    :raises DBDuplicateEntry: a third host has the name or the UUID of the new one
    """
    table = models.hosts
    # For update: of two who replace one machine, the second sees what the first has done.
    found = [host.identity for host in convert.hosts(connection.execute(
        sa.select(table).where(table.c.uuid.in_((before.uuid, after.uuid))).with_for_update()))]
    if before.identity not in found:
        if after.identity in found:          # done before, by a commit whose answer was lost
            return
        raise exception.HostIdentityChanged(before.name)
    rows = connection.execute(sa.select(sa.func.count()).select_from(models.assignments).where(
        models.assignments.c.host_uuid == before.uuid)).scalar_one()
    if rows:
        raise exception.HostHoldsDevices(before.name, rows)
    for left in (models.migration_contexts, models.orders, models.declarations):
        connection.execute(sa.delete(left).where(left.c.host_uuid == before.uuid))
    for kept in (models.withheld, models.leftovers):
        connection.execute(sa.update(kept).where(kept.c.host_uuid == before.uuid).values(host_uuid=after.uuid))
    connection.execute(sa.delete(table).where(table.c.uuid == before.uuid))
    connection.execute(sa.insert(table).values(after._asdict()))


# -- orders -----------------------------------------------------------------------------------------------------------


def add_order(connection: sa.Connection, order: api.Order) -> None:
    """Insert an order, and delete the answered ones of its host that nobody will ask for any more.

    :raises DBDuplicateEntry: the UUID is there already
    """
    table = models.orders
    connection.execute(sa.insert(table).values(order._asdict()))
    # Two statements: MariaDB takes no LIMIT in a subquery of IN.
    old = connection.execute(
        sa.select(table.c.number).where(table.c.host_uuid == order.host_uuid, table.c.answered_at.is_not(None))
        .order_by(table.c.number.desc()).offset(ANSWERED_ORDERS_KEPT)).scalars().all()
    if old:
        connection.execute(sa.delete(table).where(table.c.number.in_(old)))


def order(connection: sa.Connection, uuid: str) -> api.Order | None:
    """The order of this UUID."""
    found = convert.orders(connection.execute(sa.select(models.orders).where(models.orders.c.uuid == uuid)))
    return found[0] if found else None


def orders(connection: sa.Connection, host_uuid: str | None, waiting: bool) -> list[api.Order]:
    """Orders, in the order in which they were added."""
    table = models.orders
    statement = sa.select(table).order_by(table.c.number)
    if host_uuid is not None:
        statement = statement.where(table.c.host_uuid == host_uuid)
    if waiting:
        statement = statement.where(table.c.answered_at.is_(None))
    return convert.orders(connection.execute(statement))


def answer_order(connection: sa.Connection, uuid: str, answered_at: int, answer: str) -> bool:
    """Whether this became the answer."""
    table = models.orders
    return connection.execute(
        sa.update(table).where(table.c.uuid == uuid, table.c.answered_at.is_(None))
        .values(answered_at=answered_at, answer=answer)).rowcount == 1


# -- what is withheld -------------------------------------------------------------------------------------------------


def withheld(connection: sa.Connection, host_uuid: str) -> list[api.WithheldRow]:
    """What is withheld on a host, by kind, scope and name."""
    table = models.withheld
    return convert.withheld(connection.execute(sa.select(table).where(table.c.host_uuid == host_uuid)
                                               .order_by(table.c.kind, table.c.scope, table.c.name)))


def set_withheld(connection: sa.Connection, write: Sequence[api.WithheldRow],
                 delete: Sequence[api.WithheldRow]) -> None:
    """Put rows in the place of those that have their keys, and delete others."""
    table = models.withheld
    # Deleted and inserted: of what the three databases have for "insert or update" no form is the same.
    connection.execute(
        sa.delete(table).where(*[table.c[name] == sa.bindparam(f'of_{name}') for name in _KEY_OF_WITHHELD]),
        [{f'of_{name}': getattr(row, name) for name in _KEY_OF_WITHHELD} for row in (*write, *delete)])
    if write:
        connection.execute(sa.insert(table), [row._asdict() for row in write])


_KEY_OF_WITHHELD: Final = ('host_uuid', 'kind', 'scope', 'name')


# -- what hosts declare -----------------------------------------------------------------------------------------------


def declarations(connection: sa.Connection, host_uuid: str | None) -> list[api.StoredDeclaration]:
    """What hosts declare, by host, kind, parent and type."""
    table = models.declarations
    statement = sa.select(table).order_by(*table.primary_key)
    if host_uuid is not None:
        statement = statement.where(table.c.host_uuid == host_uuid)
    return convert.declarations(connection.execute(statement))


def set_declarations(connection: sa.Connection, host_uuid: str,
                     declarations: Sequence[api.StoredDeclaration]) -> None:
    """Put these in the place of all that a host declares."""
    table, hosts = models.declarations, models.hosts
    # One at a time for each host: a lost transaction that is still open would add its rows to these.
    connection.execute(sa.select(hosts.c.uuid).where(hosts.c.uuid == host_uuid).with_for_update())
    connection.execute(sa.delete(table).where(table.c.host_uuid == host_uuid))
    if declarations:
        connection.execute(sa.insert(table), [declaration._asdict() for declaration in declarations])


# -- leftovers --------------------------------------------------------------------------------------------------------


def leftovers(connection: sa.Connection, host_uuid: str) -> list[Leftover]:
    """What a host's confirms have yet to remove, by migration."""
    table = models.leftovers
    return convert.leftovers(connection.execute(sa.select(table).where(table.c.host_uuid == host_uuid)
                                                .order_by(table.c.migration_uuid)))


def add_leftover(connection: sa.Connection, host_uuid: str, leftover: Leftover) -> None:
    """:raises DBDuplicateEntry: it is there already"""
    connection.execute(sa.insert(models.leftovers).values(host_uuid=host_uuid, **leftover._asdict()))


def remove_leftover(connection: sa.Connection, host_uuid: str, leftover: Leftover) -> None:
    """Delete it, if it is there."""
    table = models.leftovers
    connection.execute(sa.delete(table).where(table.c.host_uuid == host_uuid,
                                              table.c.migration_uuid == leftover.migration_uuid))
