"""The statements of a store, made once: SQLAlchemy takes as long for making a statement as for running it.

Parameters have names. A new value has the name of its column. If a statement has new values, the names of the
parameters that select its rows begin with ``of_``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from typing import Final

import sqlalchemy as sa

from devicetrack import vocabulary
from devicetrack.objects.event import Event
from devicetrack.objects.values import Record
from devicetrack.store.sql import models

_OF: Final = 'of_'
# For a statement on two tables, the names of the parameters of the rows of devices begin with this.
NEW: Final = 'new_'


def of(**key: Any) -> dict[str, Any]:
    """Parameters that select the rows that a statement changes."""
    return {_OF + name: value for name, value in key.items()}


def _where(table: sa.Table, names: Sequence[str], prefix: str = '') -> list[sa.ColumnElement[bool]]:
    return [table.c[name] == sa.bindparam(prefix + name) for name in names]


def _select(table: sa.Table, given: Sequence[str], order: Sequence[str] = ()) -> sa.Select[Any]:
    """Select all columns of the rows whose columns ``given`` have the values of the parameters."""
    return sa.select(table).where(*_where(table, given)).order_by(*[table.c[name] for name in order])


def _key(table: sa.Table) -> list[str]:
    return [column.name for column in table.primary_key]


def _by_host(table: sa.Table, *counts: sa.ColumnElement[Any]) -> sa.Select[Any]:
    """Select aggregates of the rows of each of some hosts that has any."""
    host = table.c.host_uuid
    return sa.select(host, *counts).where(host.in_(sa.bindparam('host_uuids', expanding=True))).group_by(host)


# -- hosts -------------------------------------------------------------------------------------------------------------

HOST: Final = _select(models.hosts, ['name'])
HOSTS: Final = _select(models.hosts, [], ['name'])
ADD_HOST: Final = sa.insert(models.hosts)
# The parameters decide which columns are set.
SET_OF_HOST: Final = sa.update(models.hosts).where(*_where(models.hosts, ['uuid'], _OF))

# Nobody takes a later epoch until the transaction ends, nor has the host for himself.
HOLD_HOST: Final = sa.select(models.hosts.c.epoch).where(*_where(models.hosts, ['uuid'])).with_for_update(read=True)
# For changes that only one transaction at a time may make to a host.
LOCK_HOST: Final = sa.select(models.hosts.c.epoch).where(*_where(models.hosts, ['uuid'])).with_for_update()
NEXT_EPOCH: Final = SET_OF_HOST.values(epoch=models.hosts.c.epoch + sa.bindparam('step'))
EPOCH: Final = sa.select(models.hosts.c.epoch).where(*_where(models.hosts, ['uuid']))

# A database that cannot be written refuses these. In any other they change nothing.
TRIES: Final = (
    sa.update(models.hosts).where(sa.false()).values(name=models.hosts.c.name),
    *(sa.delete(table).where(sa.false()) for table in (
        models.assignments, models.migration_contexts, models.operator_requests, models.withheld, models.leftovers,
        models.events)))

# -- assignments and the contexts of moves -----------------------------------------------------------------------------

# The store sorts what they find.
RECORDS: Final = _select(models.assignments, [])
RECORDS_OF_HOST: Final = _select(models.assignments, ['host_uuid'])
RECORDS_OF_HOSTS: Final = RECORDS.where(models.assignments.c.host_uuid.in_(
    sa.bindparam('host_uuids', expanding=True)))
# For SQLite: those whose host is no UUID.
RECORDS_OF_NO_HOST: Final = sa.select(models.assignments).where(sa.or_(
    sa.func.typeof(models.assignments.c.host_uuid) != 'text', sa.func.length(models.assignments.c.host_uuid) != 36))
RECORDS_OF_INSTANCE: Final = _select(models.assignments, ['host_uuid', 'instance_uuid'])
RECORDS_EVERYWHERE: Final = _select(models.assignments, ['instance_uuid'])
RECORDS_NAMED: Final = _select(models.assignments, ['identifier'])

# By host: the instances, the devices, and those of them that are given back.
TALLIES: Final = _by_host(models.assignments,
                          sa.func.count(models.assignments.c.instance_uuid.distinct()), sa.func.count(),
                          sa.func.count(sa.case((models.assignments.c.state == vocabulary.RELEASING, 1))))
TALLIES_WITHHELD: Final = _by_host(models.withheld, sa.func.count()).where(models.withheld.c.scope != vocabulary.HOST)
TALLIES_WAITING: Final = _by_host(models.operator_requests, sa.func.count()).where(
    models.operator_requests.c.answered_at.is_(None))

# Each finds one row at most.
NAMES_RECORD: Final = sa.select(sa.literal(1)).select_from(models.assignments).where(sa.or_(
    models.assignments.c.identifier == sa.bindparam('name'),
    models.assignments.c.parent == sa.bindparam('name'))).limit(1)
NAMES_WITHHELD: Final = sa.select(sa.literal(1)).select_from(models.withheld).where(*_where(
    models.withheld, ['name'])).limit(1)

RECORDS_OF_DEVICES: Final = RECORDS_OF_HOST.where(sa.tuple_(
    models.assignments.c.kind, models.assignments.c.identifier).in_(sa.bindparam('keys', expanding=True)))
ADD_RECORDS: Final = sa.insert(models.assignments)
# A row of a host at an epoch: one or none.
ADD_RECORD_AT_EPOCH: Final = sa.insert(models.assignments).from_select(
    Record._fields,
    sa.select(*[sa.bindparam(NEW + name, type_=models.assignments.c[name].type) for name in Record._fields])
    .select_from(models.hosts).where(*_where(models.hosts, ['uuid', 'epoch'], _OF)).with_for_update(read=True)
).execution_options(preserve_rowcount=True)
# Only PostgreSQL can insert into two tables at once. The event has no condition, so count the rows.
ADD_RECORD_AT_EPOCH_AND_EVENT: Final = ADD_RECORD_AT_EPOCH.add_cte(
    sa.insert(models.events).inline().values({name: sa.bindparam(name) for name in Event._fields}).cte('told'))
SET_RECORD: Final = sa.update(models.assignments).where(*_where(models.assignments, models.READ_AT, _OF))
DELETE_RECORD: Final = sa.delete(models.assignments).where(*_where(models.assignments, models.READ_AT, _OF))

CONTEXTS: Final = _select(models.migration_contexts, ['host_uuid'], ['instance_uuid'])
CONTEXT: Final = _select(models.migration_contexts, ['host_uuid', 'instance_uuid'])
ADD_CONTEXT: Final = sa.insert(models.migration_contexts)
DELETE_CONTEXT: Final = sa.delete(models.migration_contexts).where(
    *_where(models.migration_contexts, ['host_uuid', 'instance_uuid']))

# -- operator requests -------------------------------------------------------------------------------------------------

_UNANSWERED: Final = models.operator_requests.c.answered_at.is_(None)

OPERATOR_REQUEST: Final = _select(models.operator_requests, ['uuid'])
OPERATOR_REQUESTS: Final = _select(models.operator_requests, [], ['number'])
OPERATOR_REQUESTS_WAITING: Final = OPERATOR_REQUESTS.where(_UNANSWERED)
OPERATOR_REQUESTS_OF_HOST: Final = _select(models.operator_requests, ['host_uuid'], ['number'])
OPERATOR_REQUESTS_OF_HOST_WAITING: Final = OPERATOR_REQUESTS_OF_HOST.where(_UNANSWERED)
ADD_OPERATOR_REQUEST: Final = sa.insert(models.operator_requests)
ANSWER_OPERATOR_REQUEST: Final = sa.update(models.operator_requests).where(
    *_where(models.operator_requests, ['uuid'], _OF), _UNANSWERED)

# -- what is withheld, what hosts declare, and leftovers ---------------------------------------------------------------

WITHHELD: Final = _select(models.withheld, ['host_uuid'], ['kind', 'scope', 'name'])
WITHHELD_OF_HOSTS: Final = sa.select(models.withheld).where(
    models.withheld.c.host_uuid.in_(sa.bindparam('host_uuids', expanding=True)),
    models.withheld.c.scope.in_(sa.bindparam('scopes', expanding=True)))
ADD_WITHHELD: Final = sa.insert(models.withheld)
DELETE_WITHHELD: Final = sa.delete(models.withheld).where(*_where(models.withheld, _key(models.withheld)))

DECLARATIONS: Final = _select(models.declarations, [], _key(models.declarations))
DECLARATIONS_OF_HOST: Final = _select(models.declarations, ['host_uuid'], _key(models.declarations))
ADD_DECLARATIONS: Final = sa.insert(models.declarations)
DELETE_DECLARATIONS: Final = sa.delete(models.declarations).where(*_where(models.declarations, ['host_uuid']))

# The tables of a host in which a damaged row is looked for.
OF_HOST: Final = {table: _select(table, ['host_uuid']) for table in (
    models.migration_contexts, models.operator_requests, models.withheld, models.declarations, models.leftovers)}
OF_HOST[models.hosts] = sa.select(models.hosts).where(models.hosts.c.uuid == sa.bindparam('host_uuid'))

LEFTOVERS: Final = _select(models.leftovers, ['host_uuid'], ['migration_uuid'])
ADD_LEFTOVER: Final = sa.insert(models.leftovers)
DELETE_LEFTOVER: Final = sa.delete(models.leftovers).where(
    *_where(models.leftovers, ['host_uuid', 'migration_uuid']))

# -- events ------------------------------------------------------------------------------------------------------------

# Inline, because nobody needs the number that an event gets.
ADD_EVENTS: Final = sa.insert(models.events).inline()
# A name is that of a device, or of the parent of devices.
_IS_OF_DEVICE: Final = sa.or_(models.events.c.identifier == sa.bindparam('identifier'),
                              models.events.c.parent == sa.bindparam('identifier'))
EVENTS_OF_DEVICE: Final = _select(models.events, [], ['number']).where(_IS_OF_DEVICE)
# Events of earlier releases about what the service hands out have the serial number in place of the parent.
EVENTS_OF_SERIAL: Final = _select(models.events, [], ['number']).where(sa.or_(
    models.events.c.serial == sa.bindparam('serial'), models.events.c.parent == sa.bindparam('serial')))
EVENTS_OF_INSTANCE: Final = _select(models.events, ['instance_uuid'], ['number'])
LATEST_EVENTS: Final = sa.select(models.events).where(*_where(models.events, ['host_uuid'])).order_by(
    models.events.c.number.desc()).limit(sa.bindparam('at_most'))
EVENTS_AFTER: Final = _select(models.events, ['host_uuid'], ['number']).where(
    models.events.c.number > sa.bindparam('after')).limit(sa.bindparam('at_most'))
SINCE: Final = models.events.c.at_ms >= sa.bindparam('since_ms')
UNTIL: Final = models.events.c.at_ms < sa.bindparam('until_ms')
OLDEST_EVENTS: Final = sa.select(models.events.c.number, models.events.c.at_ms).where(
    *_where(models.events, ['host_uuid'])).order_by(models.events.c.number).limit(sa.bindparam('at_most'))
_COUNTED: Final = sa.select(models.events.c.number).where(
    *_where(models.events, ['host_uuid']), models.events.c.number > sa.bindparam('after')).order_by(
    models.events.c.number).limit(sa.bindparam('at_most')).subquery()
COUNT_EVENTS: Final = sa.select(sa.func.count(), sa.func.max(_COUNTED.c.number)).select_from(_COUNTED)
# Each has a statement of its own: for all together SQLite would read the whole table.
SPAN: Final = sa.select(*[sa.select(aggregate).scalar_subquery() for aggregate in (
    sa.func.min(models.events.c.number), sa.func.max(models.events.c.number), sa.func.count(models.hosts.c.uuid))])
DELETE_EVENTS: Final = sa.delete(models.events).where(
    *_where(models.events, ['host_uuid']), models.events.c.number <= sa.bindparam('last'))
