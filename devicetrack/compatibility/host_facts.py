"""What hosts have declared: read from the store, or from what a command printed where another store is.

With a store of its own on each host, which is the default, nobody sees what all of them declare. So rows are printed as
plain data on one machine and read on another.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import json
from typing import Any
from typing import Final
from typing import NamedTuple

from devicetrack import exception
from devicetrack.compatibility import facts_data
from devicetrack.compatibility.facts import Declaration
from devicetrack.compatibility.facts import Facts
from devicetrack.compatibility.facts import Sort
from devicetrack.compatibility.facts import TypeAtParent

# A declaration as a store has it: the host's UUID, kind, parent or '', type, and the text of the declaration.
StoredRow = tuple[str, str, str, str, str]

COLUMNS: Final = ('host', 'kind', 'parent', 'type', 'api', 'version_form', 'version', 'required', 'offered',
                  'aggregation', 'obstacle', 'sources', 'problem', 'driver')
# What an older release did not print.
_OPTIONAL: Final = ('driver',)
_IN_JSON: Final = {dict: 'an object', list: 'a list', str: 'a text', bool: 'true or false', type(None): 'null'}

NOTHING_DECLARED: Final = 'the host declares nothing'


class Unread(NamedTuple):
    """A declaration that is there and cannot be read, and why."""

    sort: Sort
    parent: str | None
    problem: str

    @property
    def about(self) -> TypeAtParent:
        """As that of one that can be read."""
        return TypeAtParent(self.sort.kind, self.parent, self.sort.type)


class HostFacts(NamedTuple):
    """All that one host declares."""

    host: str
    declarations: tuple[Declaration, ...] = ()
    unread: tuple[Unread, ...] = ()

    @property
    def is_silent(self) -> bool:
        return not self.declarations and not self.unread

    def drivers(self) -> Iterator[tuple[Sort, str | None]]:
        """Every type that the host declares at a parent, and the version of the driver there."""
        for one in self.declarations:
            yield one.facts.sort, one.driver
        for unread in self.unread:
            yield unread.sort, None

    def parents_of(self, facts: Facts) -> list[str]:
        """The parents where the host declares this; none for devices without a parent."""
        return [one.parent for one in self.declarations if one.facts == facts and one.parent is not None]


def from_rows(names: Mapping[str, str], stored: Iterable[StoredRow]) -> list[HostFacts]:
    """What hosts declare, in their order.

    :param names: of these hosts, by UUID
    """
    found: dict[str, list[Declaration | Unread]] = {uuid: [] for uuid in names}
    for row in stored:
        if row[0] in found:
            found[row[0]].append(_from_row(row))
    return [_of_host(names[uuid], its) for uuid, its in found.items()]


def declared_in(row: StoredRow) -> Declaration:
    """Read one row.

    :raises BadRequest: a newer release wrote it, or it is damaged
    """
    host_uuid, kind, _parent, device_type, document = row
    return facts_data.declaration_from_text(document, f'declaration of {kind} {device_type} of host {host_uuid}')


def _from_row(row: StoredRow) -> Declaration | Unread:
    try:
        return declared_in(row)
    except exception.BadRequest as error:
        _host_uuid, kind, parent, device_type, _document = row
        return Unread(Sort(kind, device_type), parent or None, f'cannot be read: {error}; if the host runs a newer '
                      'release, use its own commands or upgrade here')


def _of_host(name: str, found: Sequence[Declaration | Unread]) -> HostFacts:
    return HostFacts(name, tuple(one for one in found if isinstance(one, Declaration)),
                    tuple(one for one in found if isinstance(one, Unread)))


def rows(host: HostFacts) -> Iterator[dict[str, Any]]:
    """The values of :data:`COLUMNS` for all that a host declares, as plain data.

    Each host has a row: one that declares nothing has nothing in it but that.
    """
    nothing = dict.fromkeys(COLUMNS)
    for one in host.declarations:
        yield {**nothing, 'host': host.host, **facts_data.declaration_as_data(one)}
    for unread in host.unread:
        yield {**nothing, 'host': host.host, **unread.sort._asdict(), 'parent': unread.parent,
               'problem': unread.problem}
    if host.is_silent:
        yield {**nothing, 'host': host.host, 'problem': NOTHING_DECLARED}


def read(path: str) -> list[HostFacts]:
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
        one = facts_data.declaration_from_data(row, where) if row.get('problem') is None else _unread(row, where)
        if (name, one.about) in named:
            raise exception.BadRequest(where, f'{name}, {", ".join(filter(None, one.about))}',
                                       'has a row already; a host declares it once')
        named.add((name, one.about))
        of_host.append(one)
    return [_of_host(name, of_host) for name, of_host in found.items()]


def _shown(data: object) -> str:
    return _IN_JSON.get(type(data), 'a number')


def _unread(row: Mapping[str, Any], where: str) -> Unread:
    for field, may_be_missing in (('kind', False), ('type', False), ('parent', True), ('problem', False)):
        value = row.get(field)
        if not isinstance(value, str) and not (value is None and may_be_missing):
            raise exception.BadRequest(f'{where}.{field}', value, 'must be a text')
    return Unread(Sort(row['kind'], row['type']), row.get('parent'), row['problem'])


def merge(stored: Iterable[HostFacts], files: Mapping[str, Iterable[HostFacts]]) -> dict[str, HostFacts]:
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


def declarers(hosts: Iterable[HostFacts], sort: Sort, driver: str | None = None,
              host: str | None = None) -> tuple[list[str], str | None]:
    """The names of hosts that declare a type, and why there is none.

    :param driver: only those with a parent for it whose driver has this version
    :param host: only the one of this name
    """
    of_kind: set[str] = set()
    drivers: dict[str, set[str | None]] = {}
    for one in hosts:
        for its_sort, its_driver in one.drivers():
            if its_sort.kind == sort.kind:
                of_kind.add(its_sort.type)
            if its_sort == sort:
                drivers.setdefault(one.host, set()).add(its_driver)
    found = [name for name, its in drivers.items() if driver in (None, *its) and host in (None, name)]
    if found:
        return found, None
    if not drivers:
        return found, f'no host declares this type; of this kind there are {", ".join(sorted(of_kind)) or "none"}'
    if host is not None:
        return found, f'this host does not declare the type; those that do are {", ".join(drivers)}'
    known = {its for of_host in drivers.values() for its in of_host if its is not None}
    return found, f'no host declares the type with this driver; there are {", ".join(sorted(known)) or "none known"}'
