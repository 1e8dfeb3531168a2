"""The content of a picture of many hosts, in a form that is small enough for a page: 200,000 devices in 5 MB.

Texts are written down as JSON, one line a host, and compressed. UUIDs do not compress, so they are beside that, 16
bytes each. ``templates/fleet.js`` reads this form.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
import itertools
import json
import operator
from typing import Any
from typing import Final
from typing import NamedTuple
import zlib

from devicetrack import log
from devicetrack import vocabulary
from devicetrack.claims import report
from devicetrack.objects.values import DeviceKey
from devicetrack.pictures.host import HostPicture
from devicetrack.pictures.host import STATES

# The states of devices, in the order of legends. Nobody knows the state of a device of a silent host.
ALL_STATES: Final = (*STATES, report.UNKNOWN)
_DIGITS: Final = {state: str(number) for number, state in enumerate(ALL_STATES)}

# So many UUIDs have room on a page of 5 MB, beside everything else. Of others only the first bytes are there.
_MOST_UUIDS: Final = 210_000
_FIRST_BYTES: Final = 3

# The list of hosts that need attention has so many.
_LISTED: Final = 100

_UUID_LENGTH: Final = 36

# In the list of a column: nothing, and the next UUID of the first or of the second sequence.
_NOTHING, _UUID, _SPARE_UUID = 0, -1, -2

# 4 bytes are 5 characters, and the size of a piece is divisible by both. No character means anything within HTML.
_PIECE: Final = 1 << 16
_MARKUP, _HARMLESS = b'<&', b',.'


class Square(NamedTuple):
    """One device, or a line of an inventory without an identifier: what a parent can still make, or the parent itself.

    ``state`` is one of :data:`ALL_STATES`. ``amount`` is 0 for a device that is not there. ``why`` says why the device
    is withheld or missing, or is ''.
    """

    kind: str
    identifier: str | None
    state: str
    amount: int
    resource_class: str | None
    parent: str | None
    numa_node: int | None
    instance_uuid: str | None
    serial: str | None
    why: str = ''


# What squares of one run have in common.
_RUN: Final = operator.attrgetter('kind', 'parent', 'resource_class', 'numa_node')


class Critical(NamedTuple):
    """A critical finding. Both parts of ``device`` are '' if it is about no device."""

    device: DeviceKey
    finding: str
    detail: str


class Tile(NamedTuple):
    """One host. ``age`` says how old its picture is, ``unknown_since`` since when nobody knows it; or both are ''.

    ``notes`` are sentences about the host that need attention.
    """

    name: str
    group: str
    squares: Sequence[Square]
    age: str = ''
    unknown_since: str = ''
    release: str = ''
    notes: tuple[str, ...] = ()
    critical: tuple[Critical, ...] = ()

    @property
    def needs_attention(self) -> bool:
        return bool(self.unknown_since or self.notes or self.critical)


class Group(NamedTuple):
    """The hosts of a group, and how many devices they have by state."""

    name: str
    hosts: int
    counts: dict[str, int]


class FleetPicture(NamedTuple):
    """A picture of many hosts. ``attention`` has the first of those that need it, and ``worrying`` counts all.

    ``data`` is what the script of the page draws. ``lengths`` are those of its parts, and of a UUID in the last;
    in bytes.
    """

    hosts: int
    counts: dict[str, int]
    groups: tuple[Group, ...]
    attention: tuple[tuple[str, str], ...]
    worrying: int
    data: str
    lengths: tuple[int, int, int, int]


def of_host(host: HostPicture, group: str) -> Tile:
    """Make the tile of a host of which there is a picture of its own."""
    squares = [Square(field.kind, field.identifier, field.state, field.amount, field.resource_class, parent.name,
                      node.number, None if field.owner is None else field.owner.instance_uuid, field.serial,
                      '; '.join(map(str, field.reasons)))
               for node in host.nodes for parent in node.parents for field in parent.fields]
    notes = [f'report-only: {host.report_only}'] if host.report_only is not None else []
    notes += [could_not_be_read(one.what) for one in host.unread]
    critical = tuple(Critical(one.device, one.kind, one.detail) for one in host.findings
                     if one.severity == vocabulary.CRITICAL)
    return Tile(host.name, group, squares, '' if host.is_read else 'by the store alone', notes=tuple(notes),
                critical=critical)


def could_not_be_read(what: str) -> str:
    return f'could not be read: {what}'


def of(tiles: Iterable[Tile], link: str | None = None) -> FleetPicture:
    """Make the picture of some hosts, in their order, in which those of a group stand together.

    It never has all of them in memory in another form than that of the page.

    :param link: the address of a host's own page, in which ``{host}`` stands for the host's name; None for no link
    """
    packed = zlib.compressobj()
    uuids, spare = bytearray(), bytearray()
    text = [packed.compress(_line({'states': ALL_STATES, 'link': link}))]
    groups: list[Group] = []
    total = dict.fromkeys(ALL_STATES, 0)
    attention: list[tuple[str, str]] = []
    hosts = worrying = 0
    for name, of_group in itertools.groupby(tiles, key=lambda tile: tile.group):
        before, counts = hosts, dict.fromkeys(ALL_STATES, 0)
        for tile in of_group:
            hosts += 1
            text.append(packed.compress(_line(_host(tile, len(groups), uuids, spare))))
            for state, count in counted(tile.squares).items():
                counts[state] += count
            if tile.needs_attention:
                worrying += 1
                if worrying <= _LISTED:
                    attention.append((tile.name, words(tile)))
        groups.append(Group(name, hosts - before, _some(counts)))
        for state in ALL_STATES:
            total[state] += counts[state]
    text.append(packed.flush())
    of_spare = 16
    if len(uuids) + len(spare) > _MOST_UUIDS * of_spare:
        whole, of_spare = spare, _FIRST_BYTES
        spare = bytearray(len(whole) // 16 * of_spare)
        for byte in range(of_spare):
            spare[byte::of_spare] = whole[byte::16]
    size = sum(map(len, text))
    return FleetPicture(hosts, _some(total), tuple(groups), tuple(attention), worrying,
                        _characters(b''.join((*text, uuids, spare))), (size, len(uuids), len(spare), of_spare))


def counted(squares: Iterable[Square]) -> dict[str, int]:
    """Count devices by state, and what parents can still make. The types of one parent share its room.

    A line without an identifier is no device, and a device that is not there counts only as missing.
    """
    counts: dict[str, int] = {}
    room: dict[tuple[str, str | None], int] = {}
    for one in squares:
        if one.identifier is None and one.state == report.CREATABLE:
            parent = one.kind, one.parent
            room[parent] = max(room.get(parent, 0), one.amount)
        elif one.identifier is not None and (one.amount or one.state == report.MISSING):
            counts[one.state] = counts.get(one.state, 0) + 1
    if room:
        counts[report.CREATABLE] = sum(room.values())
    return counts


def words(tile: Tile) -> str:
    """Return why a host needs attention."""
    told = [f'unknown since {tile.unknown_since}'] if tile.unknown_since else []
    if tile.critical:
        number, kinds = len(tile.critical), sorted({one.finding for one in tile.critical})
        told.append(f'{number} critical finding{"s" if number > 1 else ""}: {", ".join(kinds)}')
    return '; '.join((*told, *tile.notes))


def _some(counts: dict[str, int]) -> dict[str, int]:
    return {state: count for state, count in counts.items() if count}


def _host(tile: Tile, group: int, uuids: bytearray, spare: bytearray) -> list[Any]:
    """Return what the script gets of a host. Its lists have one entry for each square, or none if all are empty."""
    squares = tile.squares
    runs = [[*map(_shown, key), sum(1 for _one in of_run)] for key, of_run in itertools.groupby(
        squares, key=_RUN)]
    found: dict[tuple[str, str | None], str] = {
        (one.device.kind, one.device.identifier): log.printable(f'{one.finding}: {one.detail}')
        for one in reversed(tile.critical)}
    return [
        log.printable(tile.name), group, tile.age, tile.unknown_since, log.printable(tile.release),
        log.printable(words(tile)), runs,
        ''.join(_DIGITS[one.state] for one in squares),
        # One UUID of each device has room on any page: that of its owner, or else its own, or else its serial number.
        _packed(squares, 'identifier', lambda one: spare if one.instance_uuid is not None else uuids, spare),
        _filled(_packed(squares, 'instance_uuid', lambda _one: uuids, spare)),
        _filled(_packed(squares, 'serial', lambda one: spare if one.instance_uuid is not None or _is_uuid(
            one.identifier) else uuids, spare)),
        [[number, one.amount] for number, one in enumerate(squares) if one.amount != 1],
        [[number, log.printable(one.why)] for number, one in enumerate(squares) if one.why],
        [[number, found[one.kind, one.identifier]] for number, one in enumerate(squares)
         if (one.kind, one.identifier) in found]]


def _packed(squares: Sequence[Square], column: str, beside: Callable[[Square], bytearray],
            spare: bytearray) -> list[int | str]:
    """Pack the values of a column of a host: each only once, and UUIDs beside the others.

    :param beside: returns the sequence for a UUID of a square
    :returns: for each square the text, the place of a UUID, or the number of an equal value before it, from 1
    """
    found: list[int | str] = []
    known: dict[str, int] = {}
    for one, value in zip(squares, map(operator.attrgetter(column), squares), strict=True):
        if value is None:
            found.append(_NOTHING)
        elif value in known:
            found.append(known[value])
        else:
            known[value] = len(known) + 1
            if _is_uuid(value):
                sequence = beside(one)
                sequence += bytes.fromhex(value.replace('-', ''))
                found.append(_SPARE_UUID if sequence is spare else _UUID)
            else:
                found.append(log.printable(value))
    return found


def _is_uuid(value: str | None) -> bool:
    # Most names are none, and a fleet has hundreds of thousands.
    return value is not None and len(value) == _UUID_LENGTH and vocabulary.UUID.fullmatch(value) is not None


def _filled(values: list[int | str]) -> list[int | str]:
    return values if any(values) else []


def _shown(value: Any) -> Any:
    return log.printable(value) if isinstance(value, str) else value


def _line(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(',', ':')).encode() + b'\n'


def _characters(data: bytes) -> str:
    table = bytes.maketrans(_MARKUP, _HARMLESS)
    return b''.join(base64.b85encode(data[start:start + _PIECE], pad=True).translate(table)
                    for start in range(0, len(data), _PIECE)).decode('ascii')
