"""Reads a mirror: the devices of a fleet, who has them and who had them, and how old each host's picture is.

It reads only. The answers come in pieces of some hosts, so that a fleet is never in memory as a whole.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import fnmatch
import json
import re
from typing import Any
from typing import Final
from typing import NamedTuple
from typing import TypeVar

import sqlalchemy as sa

from devicetrack import exception
from devicetrack.claims import report
from devicetrack.compatibility import host_facts
from devicetrack.compatibility.host_facts import HostFacts
from devicetrack.fleet import models
from devicetrack.fleet.mirror import Mirror
from devicetrack.objects.event import Event
from devicetrack.objects.values import Record
from devicetrack.store.api import StoredDeclaration
from devicetrack.store.api import StoredEvent

Item = TypeVar('Item')

_MS: Final = 1000
# One statement reads the documents of so many hosts, or all lines of so many, and looks for so many instances.
_HOSTS: Final = 100
_LISTED: Final = 20
_INSTANCES: Final = 500

# What makes a name a pattern of a shell.
_WILD: Final = re.compile('[*?[]')

_HOST: Final = models.fleet_hosts.c
_DEVICE: Final = models.fleet_devices.c
_PART: Final = models.fleet_parts.c
_EVENT: Final = models.fleet_events.c

_PICTURES: Final = sa.select(
    _HOST.host_uuid, _HOST.name, _HOST.group_name, _HOST.report_only, _HOST.read_at_ms, models.now_ms(),
    models.is_silent(), _HOST.forgotten_at_ms, _HOST.release, _HOST.critical)
# By host and status. A line without an identifier is no device: a parent that is withheld, or can make some.
_TALLIES: Final = sa.select(_DEVICE.host_uuid, _DEVICE.status, sa.func.count()).where(
    _DEVICE.identifier.is_not(None), _DEVICE.amount > 0).group_by(_DEVICE.host_uuid, _DEVICE.status)
# The types of one parent share its room.
_ROOM: Final = sa.select(_DEVICE.host_uuid, sa.func.max(_DEVICE.amount).label('room')).where(
    _DEVICE.status == report.CREATABLE).group_by(_DEVICE.host_uuid, _DEVICE.kind, _DEVICE.parent).subquery()
_ROOMS: Final = sa.select(_ROOM.c.host_uuid, sa.func.sum(_ROOM.c.room)).group_by(_ROOM.c.host_uuid)
_IN_ORDER: Final = _EVENT.at_ms, _EVENT.host_uuid, _EVENT.number
_EVENTS: Final = sa.select(_EVENT.number, *[_EVENT[name] for name in Event._fields]).order_by(*_IN_ORDER)


class Picture(NamedTuple):
    """How a host showed itself at its last push. ``age_s`` is by the clock of the mirror's server, as ``read_at`` is.

    ``report_only`` says why the host takes no claims; None if it takes them. ``critical`` counts its findings that are.
    """

    uuid: str
    name: str
    group: str
    report_only: str | None
    read_at: float
    age_s: int
    is_silent: bool
    is_forgotten: bool
    release: str
    critical: int

    @property
    def unknown_since(self) -> float | None:
        """Since when nobody knows the state of its devices; None while it pushes."""
        return self.read_at if self.is_silent else None


class Wanted(NamedTuple):
    """Which devices a question is about. None and an empty collection mean any."""

    serial: str | None = None
    instance_uuid: str | None = None
    resource_class: str | None = None
    kind: str | None = None
    parent: str | None = None
    statuses: Collection[str] = ()


class Mirrored(NamedTuple):
    """A line of a host's inventory in the mirror.

    ``status`` is ``unknown`` if the host is silent. ``text`` is the JSON that ``device list`` printed on the host.
    """

    picture: Picture
    status: str
    text: str

    @property
    def line(self) -> dict[str, Any]:
        """What ``device list`` printed, as data."""
        line: dict[str, Any] = json.loads(self.text)
        return line


class Outline(NamedTuple):
    """A line of a host's inventory. ``line`` is what ``device list`` printed of it, if it is withheld or missing."""

    kind: str
    identifier: str | None
    status: str
    amount: int
    resource_class: str | None
    parent: str | None
    numa_node: int | None
    instance_uuid: str | None
    serial: str | None
    line: str | None


class Reader:
    """Answers questions from a mirror.

    Every method raises SchemaMismatch or StoreUnavailable if the mirror cannot be read.
    """

    def __init__(self, mirror: Mirror) -> None:
        mirror.terms()
        self._mirror = mirror
        self._declared: dict[str, HostFacts] = {}

    # -- hosts ---------------------------------------------------------------------------------------------------------

    def hosts(self, *, names: Collection[str] = (), uuids: Collection[str] = ()) -> list[Picture]:
        """The hosts with these names or UUIDs, also those that are forgotten; all that the mirror knows without any."""
        statement = _PICTURES.where(sa.or_(_HOST.name.in_(names), _HOST.host_uuid.in_(uuids))) if names or uuids \
            else _PICTURES
        return [Picture(uuid, name, group, report_only, read_at_ms / _MS, max(0, (now_ms - read_at_ms) // _MS),
                        bool(is_silent), forgotten_at_ms is not None, *others)
                for uuid, name, group, report_only, read_at_ms, now_ms, is_silent, forgotten_at_ms, *others
                in self._mirror.rows(statement)]

    def tallies(self) -> dict[str, dict[str, int]]:
        """How many devices of each status each host has, by its UUID, and how many its parents can still make."""
        found: dict[str, dict[str, int]] = {}
        for uuid, status, count in self._mirror.rows(_TALLIES):
            found.setdefault(uuid, {})[status] = count
        for uuid, room in self._mirror.rows(_ROOMS):
            found.setdefault(uuid, {})[report.CREATABLE] = int(room)
        return found

    def pictures(self, patterns: Collection[str] = ()) -> list[Picture]:
        """The hosts that are not forgotten, or those whose names match a pattern of a shell.

        :raises BadRequest: a pattern matches none
        """
        names = () if any(map(_WILD.search, patterns)) else patterns
        known = [one for one in self.hosts(names=names) if not one.is_forgotten]
        for pattern in patterns:
            if not any(fnmatch.fnmatchcase(one.name, pattern) for one in known):
                raise unknown_host(pattern, (one.name for one in self.hosts() if not one.is_forgotten))
        return [one for one in known if not patterns or any(
            fnmatch.fnmatchcase(one.name, pattern) for pattern in patterns)]

    # -- devices -------------------------------------------------------------------------------------------------------

    def devices(self, pictures: Sequence[Picture], wanted: Wanted) -> Iterator[Mirrored]:
        """The devices of some hosts, host by host in their order."""
        conditions = [_DEVICE[name] == value for name, value in wanted._asdict().items()
                      if name != 'statuses' and value is not None]
        if wanted.statuses:
            silent = [one.uuid for one in pictures if one.is_silent and report.UNKNOWN in wanted.statuses]
            conditions.append(sa.or_(_DEVICE.status.in_(wanted.statuses), _DEVICE.host_uuid.in_(silent)))
        here = [_DEVICE.host_uuid.in_([one.uuid for one in pictures])] if len(pictures) <= _HOSTS else []
        there = {uuid for uuid, in self._mirror.rows(
            sa.select(_DEVICE.host_uuid).distinct().where(*here, *conditions))}
        for some in _pieces([one for one in pictures if one.uuid in there], _LISTED):
            numbers = {one.uuid: number for number, one in enumerate(some)}
            statement = sa.select(_DEVICE.host_uuid, _DEVICE.position, _DEVICE.status, _DEVICE.line).where(
                _DEVICE.host_uuid.in_(numbers), *conditions)
            for number, _position, status, line in sorted(
                    (numbers[uuid], *fields) for uuid, *fields in self._mirror.rows(statement)):
                picture = some[number]
                shown = report.UNKNOWN if picture.is_silent else status
                if not wanted.statuses or shown in wanted.statuses:
                    yield Mirrored(picture, shown, line)

    def outlines(self, pictures: Sequence[Picture]) -> Iterator[tuple[Picture, list[Outline]]]:
        """What a picture of some hosts shows of their devices, host by host in their order."""
        columns = [_DEVICE[name] for name in Outline._fields if name != 'line']
        line = sa.case((_DEVICE.status.in_((report.WITHHELD, report.MISSING)), _DEVICE.line), else_=None)
        for some in _pieces(pictures, _HOSTS):
            found: dict[str, list[Outline]] = {one.uuid: [] for one in some}
            for row in self._mirror.rows(sa.select(_DEVICE.host_uuid, *columns, line).where(
                    _DEVICE.host_uuid.in_(list(found))).order_by(_DEVICE.host_uuid, _DEVICE.position)):
                found[row[0]].append(Outline._make(row[1:]))
            for one in some:
                yield one, found[one.uuid]

    def findings(self, pictures: Sequence[Picture]) -> Iterator[tuple[Picture, list[dict[str, Any]]]]:
        """The findings of some hosts, as "audit -f json" printed them; host by host in their order."""
        for some in _pieces(pictures, _HOSTS):
            documents = dict(map(tuple, self._mirror.rows(sa.select(_HOST.host_uuid, _HOST.findings).where(
                _HOST.host_uuid.in_([one.uuid for one in some])))))
            for one in some:
                yield one, json.loads(documents.get(one.uuid, '[]'))

    def amounts(self, pictures: Sequence[Picture]) -> Iterator[tuple[Picture, str, str, int]]:
        """How many devices of each resource class and status some hosts have, or can make; the status as they said."""
        amount = sa.func.sum(sa.case((_DEVICE.identifier.is_(None), _DEVICE.amount), else_=1))
        grouped = _DEVICE.host_uuid, _DEVICE.resource_class, _DEVICE.status
        by_uuid = {one.uuid: one for one in pictures}
        for uuid, resource_class, status, found in self._mirror.rows(
                sa.select(*grouped, amount).where(_DEVICE.resource_class.is_not(None)).group_by(*grouped)):
            if uuid in by_uuid:
                yield by_uuid[uuid], resource_class, status, int(found)

    def hosts_of(self, instance_uuids: Sequence[str]) -> dict[str, set[str]]:
        """The UUIDs of the hosts on which each instance has devices that nobody gives back yet, by its UUID."""
        found: dict[str, set[str]] = {}
        for some in _pieces(instance_uuids, _INSTANCES):
            for instance_uuid, host_uuid in self._mirror.rows(
                    sa.select(_DEVICE.instance_uuid, _DEVICE.host_uuid).distinct().where(
                        _DEVICE.instance_uuid.in_(some),
                        _DEVICE.status.not_in((report.RELEASING, report.OBSERVED)))):
                found.setdefault(instance_uuid, set()).add(host_uuid)
        return found

    def is_known(self, host_uuids: Collection[str] = (), *, name: str | None = None, kind: str | None = None,
                 serial: str | None = None, instance_uuid: str | None = None) -> bool:
        """Whether a line of a host has all of these. A name is that of a device or of a parent.

        :param host_uuids: only on these hosts; empty means all
        """
        return bool(self._mirror.rows(sa.select(sa.literal(1)).select_from(models.fleet_devices).where(
            *_like(_DEVICE, host_uuids, name=name, kind=kind, serial=serial, instance_uuid=instance_uuid)).limit(1)))

    # -- events --------------------------------------------------------------------------------------------------------

    def events(self, since_ms: int | None, until_ms: int | None, *, name: str | None = None, kind: str | None = None,
               serial: str | None = None, instance_uuid: str | None = None,
               host_uuids: Collection[str] = ()) -> list[StoredEvent]:
        """The events of a device or a parent, of a serial number or of an instance, on all hosts; the oldest first.

        Each of two hosts tells the time by its own clock.

        :param host_uuids: only on these hosts; empty means all
        """
        conditions = _like(_EVENT, host_uuids, name=name, kind=kind, serial=serial, instance_uuid=instance_uuid)
        if since_ms is not None:
            conditions.append(_EVENT.at_ms >= since_ms)
        if until_ms is not None:
            conditions.append(_EVENT.at_ms < until_ms)
        return [StoredEvent(number, Event(*fields))
                for number, *fields in self._mirror.rows(_EVENTS.where(*conditions))]

    # -- parts ---------------------------------------------------------------------------------------------------------

    def parts(self, pictures: Sequence[Picture],
              names: Collection[str]) -> Iterator[tuple[Picture, dict[str, str]]]:
        """What some hosts said beside their devices, as texts by the names of the parts; host by host in their order.

        The parts of a host are of one push.
        """
        for some in _pieces(pictures, _HOSTS):
            found: dict[str, dict[str, str]] = {one.uuid: {} for one in some}
            for uuid, part, document in self._mirror.rows(
                    sa.select(_PART.host_uuid, _PART.part, _PART.document).where(
                        _PART.host_uuid.in_(list(found)), _PART.part.in_(names))):
                found[uuid][part] = document
            for one in some:
                yield one, found[one.uuid]

    def declared(self, picture: Picture, parts: Mapping[str, str]) -> HostFacts:
        """The declarations among the parts of a host. Most hosts of a fleet say the same, which is read once."""
        text = parts.get(models.DECLARATIONS, '[]')
        found = self._declared.get(text)
        if found is None:
            found, = host_facts.from_rows({picture.uuid: picture.name}, [
                StoredDeclaration(**{**row, 'host_uuid': picture.uuid}) for row in json.loads(text)])
            if not found.unread:                # else it names the host
                self._declared[text] = found
        return found._replace(host=picture.name)


def unknown_host(name: str, known: Iterable[str]) -> exception.BadRequest:
    """The error about a host or a pattern."""
    near = exception.close_to(name, known)
    return exception.BadRequest('host', name, 'no host of the mirror has such a name; ' + (
        f'close to it: {near}' if near else 'see devicetrack-manage fleet host list'))


def _like(columns: Any, host_uuids: Collection[str], *, name: str | None,
          **wanted: str | None) -> list[sa.ColumnElement[bool]]:
    """The conditions for rows of some hosts, or of all, with a name and these values. None means any."""
    found: list[sa.ColumnElement[bool]] = [columns[column] == value for column, value in wanted.items()
                                           if value is not None]
    if name is not None:
        found.append(sa.or_(columns.identifier == name, columns.parent == name))
    if host_uuids:
        found.append(columns.host_uuid.in_(host_uuids))
    return found


def _pieces(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    for start in range(0, len(items), size or 1):
        yield items[start:start + size]


def records(picture: Picture, parts: Mapping[str, str]) -> list[Record]:
    """The rows among the parts of a host."""
    return [Record(picture.uuid, **{name: row[name] for name in Record._fields[1:] if name in row})
            for row in json.loads(parts.get(models.ROWS, '[]'))]
