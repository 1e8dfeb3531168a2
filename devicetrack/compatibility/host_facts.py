"""What hosts have declared: read from the store, or from what a command printed where another store is.

With a store of its own on each host, which is the default, nobody sees what all of them declare. So rows are printed as
plain data on one machine and read on another.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import json
from typing import Any
from typing import Final
from typing import NamedTuple

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.claims import declaring
from devicetrack.engine import declaration
from devicetrack.engine import outlook
from devicetrack.engine.compatibility import Facts
from devicetrack.engine.compatibility import Sort
from devicetrack.engine.declaration import Declaration
from devicetrack.engine.outlook import Declared
from devicetrack.engine.outlook import Unread
from devicetrack.objects import DeviceAssignment
from devicetrack.objects.values import Record
from devicetrack.store.api import Store
from devicetrack.store.api import StoredDeclaration

COLUMNS: Final = ('host', 'kind', 'parent', 'type', 'api', 'version_form', 'version', 'required', 'offered',
                  'aggregation', 'obstacle', 'sources', 'problem', 'driver')
# What an older release did not print.
_OPTIONAL: Final = ('driver',)
_IN_JSON: Final = {dict: 'an object', list: 'a list', str: 'a text', bool: 'true or false', type(None): 'null'}


class GuestDevice(NamedTuple):
    """A device that an instance has. Without ``facts`` its host declares nothing of it, and ``untold`` says so."""

    record: Record
    sort: Sort
    facts: Facts | None
    untold: str = ''


class Guest(NamedTuple):
    """An instance on the host where it is, and what it has there."""

    source: Declared
    devices: tuple[GuestDevice, ...]


def of_store(store: Store, names: Collection[str] = ()) -> list[Declared]:
    """What hosts of a store declare, by name.

    :param names: these hosts; none means all
    :raises UnknownHost: the store has no host of such a name
    """
    known = {host.name: host.uuid for host in store.hosts()}
    for name in names:
        if name not in known:
            raise exception.UnknownHost(name, known)
    found: dict[str, list[Declaration | Unread]] = {}
    for row in store.declarations():
        found.setdefault(row.host_uuid, []).append(_stored(row))
    return [_declared(name, found.get(uuid, ())) for name, uuid in known.items() if not names or name in names]


def _stored(row: StoredDeclaration) -> Declaration | Unread:
    try:
        return declaring.stored(row)
    except exception.BadRequest as error:
        return Unread(Sort(row.kind, row.type), row.parent or None, f'cannot be read: {error}; if the host runs a '
                      'newer release, use its own commands or upgrade here')


def _declared(name: str, found: Sequence[Declaration | Unread]) -> Declared:
    return Declared(name, tuple(one for one in found if isinstance(one, Declaration)),
                    tuple(one for one in found if isinstance(one, Unread)))


def rows(host: Declared) -> Iterator[dict[str, Any]]:
    """The values of :data:`COLUMNS` for all that a host declares, as plain data.

    Each host has a row: one that declares nothing has nothing in it but that.
    """
    nothing = dict.fromkeys(COLUMNS)
    for one in host.declarations:
        yield {**nothing, 'host': host.host, **one.as_data()}
    for unread in host.unread:
        yield {**nothing, 'host': host.host, **unread.sort._asdict(), 'parent': unread.parent,
               'problem': unread.problem}
    if host.is_silent:
        yield {**nothing, 'host': host.host, 'problem': outlook.NOTHING_DECLARED}


def read(path: str) -> list[Declared]:
    """Read rows from a file: JSON, a list of what :func:`rows` made.

    :raises BadRequest: the file is something else; names file, row and field
    """
    try:
        with open(path, encoding='utf-8') as file:
            data = json.load(file)
    except OSError as error:
        raise exception.BadRequest('file of facts', path, f'cannot be read: {error.strerror}') from error
    except (ValueError, RecursionError) as error:
        raise exception.BadRequest('file of facts', path, f'is no JSON: {error}') from error
    if not isinstance(data, list):
        raise exception.BadRequest('file of facts', path, f'has {_shown(data)}, and a list of rows is wanted, as '
                                                          '"migration facts -f json" prints it')
    found: dict[str, list[Declaration | Unread]] = {}
    named = set()
    for number, row in enumerate(data, 1):
        where = f'{path}, row {number}'
        if not isinstance(row, Mapping):
            raise exception.BadRequest(where, _shown(row), 'must be an object, with the columns of "migration facts"')
        for column in COLUMNS:
            if column not in row and column not in _OPTIONAL:
                raise exception.BadRequest(where, column, 'is missing; print all columns, without -c')
        name = row.get('host')
        if not isinstance(name, str) or not name:
            raise exception.BadRequest(f'{where}.host', name, 'must be the name of a host')
        of_host = found.setdefault(name, [])
        if row.get('problem') is not None and row.get('kind') is None:
            continue                            # the host declares nothing
        one = declaration.from_data(row, where) if row.get('problem') is None else _unread(row, where)
        if (name, one.place) in named:
            raise exception.BadRequest(where, f'{name}, {", ".join(filter(None, one.place))}',
                                       'has a row already; a host declares it once')
        named.add((name, one.place))
        of_host.append(one)
    return [_declared(name, of_host) for name, of_host in found.items()]


def _shown(data: object) -> str:
    return _IN_JSON.get(type(data), 'a number')


def _unread(row: Mapping[str, Any], where: str) -> Unread:
    for field, may_be_missing in (('kind', False), ('type', False), ('parent', True), ('problem', False)):
        value = row.get(field)
        if not isinstance(value, str) and not (value is None and may_be_missing):
            raise exception.BadRequest(f'{where}.{field}', value, 'must be a text')
    return Unread(Sort(row['kind'], row['type']), row.get('parent'), row['problem'])


def together(stored: Iterable[Declared], files: Mapping[str, Iterable[Declared]]) -> dict[str, Declared]:
    """All hosts by name. What the store has of a host is newer than any file.

    :param files: what was read, by path
    :raises BadRequest: a host is in two files
    """
    found = {host.host: host for host in stored}
    ours = {name for name, host in found.items() if not host.is_silent}
    from_file: dict[str, str] = {}
    for path, hosts in files.items():
        for host in hosts:
            if host.host in from_file:
                raise exception.BadRequest(path, host.host, f'this host is in {from_file[host.host]} too; leave out '
                                                            'the older file')
            from_file[host.host] = path
            if host.host not in ours:
                found[host.host] = host
    return dict(sorted(found.items()))


def guest(store: Store, hosts: Mapping[str, Declared], instance_uuid: str) -> Guest:
    """The devices that an instance has now, and what their host declares of them.

    :raises MigrationUntold: the store has no such instance, or has it at two hosts
    """
    records = [record for record in store.records(instance_uuid=instance_uuid)
               if record.role == vocabulary.CURRENT and record.state != vocabulary.RELEASING]
    names = {host.uuid: host.name for host in store.hosts()}
    found = sorted({names.get(record.host_uuid, record.host_uuid) for record in records})
    if not found:
        raise exception.MigrationUntold(instance_uuid, 'the store has no device that it has now')
    if len(found) > 1:
        raise exception.MigrationUntold(instance_uuid, f'the store has it at {" and at ".join(found)}')
    host = hosts.get(found[0], Declared(found[0]))
    return Guest(host, tuple(_device(record, host) for record in records))


def _device(record: Record, host: Declared) -> GuestDevice:
    try:
        sort = declaring.facts_elsewhere(DeviceAssignment.from_record(record)).sort
    except (exception.UnknownObject, exception.MalformedObject) as error:
        return GuestDevice(record, Sort(record.kind, ''), None, f'at the source, its row cannot be read: {error}')
    for one in host.declarations:
        if one.place == (record.kind, record.parent, sort.type):
            return GuestDevice(record, sort, one.facts)
    for unread in host.unread:
        if unread.place == (record.kind, record.parent, sort.type):
            return GuestDevice(record, sort, None, f'at the source, {unread.problem}')
    return GuestDevice(record, sort, None, f'at the source, host {host.host} declares nothing of it')
