"""Reads the declarations of hosts, and a guest's devices on its host, from the rows of a store or a printed file.

By default each host has a store of its own, so no store has the declarations of all hosts. A command prints the rows as
plain data on one machine, and another machine reads them.
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
from devicetrack import vocabulary
from devicetrack.compatibility.facts import Declaration
from devicetrack.compatibility.facts import declaration_as_data
from devicetrack.compatibility.facts import declaration_from_data
from devicetrack.compatibility.facts import declaration_from_text
from devicetrack.compatibility.facts import Facts
from devicetrack.compatibility.facts import facts_undeclared
from devicetrack.compatibility.facts import get_optional_text
from devicetrack.compatibility.facts import get_text
from devicetrack.compatibility.facts import Sort
from devicetrack.compatibility.facts import TypeAtParent
from devicetrack.objects import DeviceAssignment
from devicetrack.objects.values import Record

# A declaration as a store has it: the host's UUID, kind, parent or '', type, and the text of the declaration.
StoredRow = tuple[str, str, str, str, str]

COLUMNS: Final = ('host', 'kind', 'parent', 'type', 'api', 'version_form', 'version', 'required', 'offered',
                  'aggregation', 'obstacle', 'sources', 'problem', 'driver')
# Older releases did not print these.
_OPTIONAL: Final = ('driver',)
_IN_JSON: Final = {dict: 'an object', list: 'a list', str: 'a text', bool: 'true or false', type(None): 'null'}

NOTHING_DECLARED: Final = 'the host declares nothing'


class UnreadDeclaration(NamedTuple):
    """A declaration that cannot be read, and why."""

    sort: Sort
    parent: str | None
    problem: str

    @property
    def about(self) -> TypeAtParent:
        """The subject, as ``about`` of a declaration that can be read."""
        return TypeAtParent(self.sort.kind, self.parent, self.sort.type)


class HostFacts(NamedTuple):
    """Everything that one host declares."""

    host: str
    declarations: tuple[Declaration, ...] = ()
    unread: tuple[UnreadDeclaration, ...] = ()

    @classmethod
    def of(cls, host: str, found: Sequence[Declaration | UnreadDeclaration]) -> HostFacts:
        return cls(host, tuple(one for one in found if isinstance(one, Declaration)),
                   tuple(one for one in found if isinstance(one, UnreadDeclaration)))

    @property
    def is_silent(self) -> bool:
        return not self.declarations and not self.unread

    def parents_of(self, facts: Facts) -> list[str]:
        return [one.parent for one in self.declarations if one.facts == facts and one.parent is not None]


def from_rows(names: Mapping[str, str], stored: Iterable[StoredRow]) -> list[HostFacts]:
    """Return the declarations of hosts, in the order of ``names``.

    :param names: the names of these hosts, by UUID
    """
    found: dict[str, list[Declaration | UnreadDeclaration]] = {uuid: [] for uuid in names}
    for row in stored:
        if row[0] in found:
            found[row[0]].append(_from_row(row))
    return [HostFacts.of(names[uuid], its) for uuid, its in found.items()]


def declared_in(row: StoredRow) -> Declaration:
    """Read one row.

    :raises BadRequest: a newer release wrote it, or it is damaged
    """
    host_uuid, kind, _parent, device_type, document = row
    return declaration_from_text(document, f'declaration of {kind} {device_type} of host {host_uuid}')


def _from_row(row: StoredRow) -> Declaration | UnreadDeclaration:
    try:
        return declared_in(row)
    except exception.BadRequest as error:
        _host_uuid, kind, parent, device_type, _document = row
        return UnreadDeclaration(Sort(kind, device_type), parent or None, f'cannot be read: {error}; if the host runs '
                                 'a newer release, use its own commands or upgrade here')


def rows(host: HostFacts) -> Iterator[dict[str, Any]]:
    """Yield the values of :data:`COLUMNS` for each declaration of a host, as plain data.

    A host that declares nothing has one row, which says so.
    """
    nothing = {**dict.fromkeys(COLUMNS), 'host': host.host}
    for one in host.declarations:
        yield {**nothing, **declaration_as_data(one)}
    for unread in host.unread:
        yield {**nothing, **unread.sort._asdict(), 'parent': unread.parent, 'problem': unread.problem}
    if host.is_silent:
        yield {**nothing, 'problem': NOTHING_DECLARED}


# The largest file, in characters: the facts of some thousand hosts.
_LONGEST: Final = 16 << 20


def read(path: str) -> list[HostFacts]:
    """Read a file with a JSON list of the rows that ``rows`` makes.

    :raises BadRequest: the file has something else; the message names the file, the row and the field
    """
    try:
        with open(path, encoding='utf-8') as file:
            text = file.read(_LONGEST + 1)
        if len(text) > _LONGEST:
            raise exception.BadRequest('file of facts', path, f'has more than {_LONGEST} characters')
        data = json.loads(text)
    except OSError as error:
        raise exception.BadRequest('file of facts', path, f'cannot be read: {error.strerror}') from error
    except (ValueError, RecursionError) as error:
        raise exception.BadRequest('file of facts', path, f'is no JSON: {error}') from error
    if not isinstance(data, list):
        raise exception.BadRequest('file of facts', path, f'has {_shown(data)}, and a list of rows is wanted, as '
                                                          '"migration facts -f json" prints it')
    found: dict[str, list[Declaration | UnreadDeclaration]] = {}
    named = set()
    for number, row in enumerate(data, 1):
        where = f'{path}, row {number}'
        if not isinstance(row, Mapping):
            raise exception.BadRequest(where, _shown(row), 'must be an object, with the columns of "migration facts"')
        for column in COLUMNS:
            if column not in row and column not in _OPTIONAL:
                raise exception.BadRequest(where, column, 'is missing; print all columns, without -c')
        name = row.get('host')
        if not isinstance(name, str) or not vocabulary.is_text(name) or not name:
            raise exception.BadRequest(f'{where}.host', name, 'must be the name of a host')
        of_host = found.setdefault(name, [])
        if row.get('problem') is not None and row.get('kind') is None:
            continue                            # the host declares nothing
        one = declaration_from_data(row, where) if row.get('problem') is None else UnreadDeclaration(
            Sort(get_text(row, 'kind', where), get_text(row, 'type', where)), get_optional_text(row, 'parent', where),
            get_text(row, 'problem', where))
        if (name, one.about) in named:
            raise exception.BadRequest(where, f'{name}, {", ".join(filter(None, one.about))}',
                                       'has a row already; a host declares it once')
        named.add((name, one.about))
        of_host.append(one)
    return [HostFacts.of(name, of_host) for name, of_host in found.items()]


def _shown(data: object) -> str:
    return _IN_JSON.get(type(data), 'a number')


def merge(stored: Iterable[HostFacts], files: Mapping[str, Iterable[HostFacts]]) -> dict[str, HostFacts]:
    """Return all hosts by name. The store's facts about a host are newer than any file's.

    :param files: the hosts that were read, by path
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
    """Return the names of the hosts that declare a type, and the reason if there is none.

    :param driver: only hosts with a parent for the type whose driver has this version
    :param host: only the host of this name
    """
    of_kind: set[str] = set()
    drivers: dict[str, set[str | None]] = {}
    for one in hosts:
        for its_sort, its_driver in (*((its.facts.sort, its.driver) for its in one.declarations),
                                     *((its.sort, None) for its in one.unread)):
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


class GuestDevice(NamedTuple):
    """A device of an instance. ``facts`` is None if its host declares nothing about it; then ``unknown`` says why."""

    record: Record
    sort: Sort
    facts: Facts | None
    unknown: str = ''


class Guest(NamedTuple):
    """An instance, its host and its devices there."""

    source: HostFacts
    devices: tuple[GuestDevice, ...]


def find_guest(instance_uuid: str, rows: Iterable[Record], names: Mapping[str, str],
               hosts: Mapping[str, HostFacts]) -> Guest:
    """Return the current devices of an instance, with their host's declarations about them.

    While an instance moves, these are the devices that it leaves, until it runs on the new ones.

    :param rows: all rows of the instance, on all hosts
    :param names: the names of hosts, by UUID
    :param hosts: the facts of hosts, by name
    :raises CompatibilityUnknown: the rows place the instance on no host, or on two, or it left a host and the store
        does not have the other end of the move
    """
    held = [row for row in rows if row.state != vocabulary.RELEASING]
    arriving = {row.migration_uuid for row in held if row.role == vocabulary.INCOMING}
    left = [row for row in held if row.role == vocabulary.OLD]
    records = [row for row in held if row.role == vocabulary.CURRENT] or [
        row for row in left if row.migration_uuid in arriving]
    found = sorted({names.get(record.host_uuid, record.host_uuid) for record in records})
    if not found and left:
        raise exception.CompatibilityUnknown(
            instance_uuid, f'migration {left[0].migration_uuid} takes it away from host '
            f'{names.get(left[0].host_uuid, left[0].host_uuid)}, and the store has none of its devices elsewhere')
    if not found:
        raise exception.CompatibilityUnknown(instance_uuid, 'the store has no device that it has now')
    if len(found) > 1:
        raise exception.CompatibilityUnknown(instance_uuid, f'the store has it at {" and at ".join(found)}')
    host = hosts.get(found[0], HostFacts(found[0]))
    return Guest(host, tuple(_device(record, host) for record in records))


def _device(record: Record, host: HostFacts) -> GuestDevice:
    try:
        sort = facts_undeclared(DeviceAssignment.from_record(record)).sort
    except (exception.UnknownObject, exception.MalformedObject) as error:
        return GuestDevice(record, Sort(record.kind, ''), None, f'at the source, its row cannot be read: {error}')
    about = TypeAtParent(record.kind, record.parent, sort.type)
    for one in host.declarations:
        if one.about == about:
            return GuestDevice(record, sort, one.facts)
    for unread in host.unread:
        if unread.about == about:
            return GuestDevice(record, sort, None, f'at the source, {unread.problem}')
    return GuestDevice(record, sort, None, f'at the source, host {host.host} declares nothing of it')
