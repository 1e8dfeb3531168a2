"""``devicetrack-manage fleet map``: a fleet as a page of HTML, and what other pages of many hosts have of it."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from collections.abc import Iterator
import json
import re
from typing import Final
import urllib.parse

from devicetrack import vocabulary
from devicetrack.claims import report
from devicetrack.cmd import base
from devicetrack.cmd import fleet_devices
from devicetrack.cmd import mirrored
from devicetrack.cmd import page_file
from devicetrack.fleet.reading import Outline
from devicetrack.fleet.reading import Picture
from devicetrack.fleet.reading import Reader
from devicetrack.objects.values import DeviceKey
from devicetrack.pictures import fleet as pictures
from devicetrack.pictures import moments
from devicetrack.pictures import natural
from devicetrack.pictures import pages

_HOST: Final = '{host}'
_SCHEMES: Final = ('', 'http', 'https', 'file')


class Map(base.Command):
    """Draw the fleet as a page of HTML: hosts as small pictures in their groups, devices as fields, and a filter.

    A host that is silent for three of its intervals is hatched, and none of its devices counts as free. Exit code 3
    when a host is unknown or report-only, has a critical finding, or could not read a part of itself. Reads only the
    mirror.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        page_file.add_output(parser, required=True)
        mirrored.add_hosts(parser)
        add_options(parser, "By default each host's own \"[devicetrack_fleet] group\".")

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        reader = Reader(self.app.mirror)
        found = mirrored.in_order(reader.pictures(parsed_args.host))
        groups = {one.uuid: group_of(one.name, parsed_args.group, one.group) for one in found}
        shown = sorted(found, key=lambda one: natural.key(groups[one.uuid]))
        self.exit_code = write(parsed_args, _tiles(reader, shown, groups), 'Read from the mirror')
        mirrored.say_age(self, shown)


def add_options(parser: argparse.ArgumentParser, otherwise: str) -> None:
    """Add the options of a page of many hosts.

    :param otherwise: the sentence that says how hosts are grouped without an option
    """
    parser.add_argument('--group', metavar='EXPRESSION', type=_expression,
                        help='Group the hosts by their names: by the first group of this regular expression, such as '
                             f"'^(rack[0-9]+)-', or by all that it matches. {otherwise}")
    parser.add_argument('--link', metavar='ADDRESS', type=_link,
                        help="The address of a host's own page, as \"host map --output\" draws it, with {host} for the "
                             "name of the host: 'maps/{host}.html'. By default hosts have no link.")


def write(parsed_args: argparse.Namespace, tiles: Iterable[pictures.Tile], told: str) -> int:
    """Draw hosts into a page, and return the exit code.

    :raises UsageError: the page cannot be drawn or written
    """
    found = pictures.of(tiles, parsed_args.link)
    page_file.write(parsed_args.output, lambda: pages.fleet_map(found, told))
    return base.ATTENTION if found.worrying else base.OK


def group_of(name: str, expression: re.Pattern[str] | None, otherwise: str = '') -> str:
    """Return the group of a host. Hosts whose names do not match are in the group without a name."""
    if expression is None:
        return otherwise
    found = expression.search(name)
    return (found.group(1 if expression.groups else 0) or '') if found else ''


def _tiles(reader: Reader, shown: list[Picture], groups: dict[str, str]) -> Iterator[pictures.Tile]:
    worst = dict(reader.findings([one for one in shown if one.critical]))
    for one, lines in reader.outlines(shown):
        notes = [] if one.report_only is None else [f'report-only: {one.report_only}']
        notes += [pictures.could_not_be_read(line.kind) for line in lines if line.status == report.UNKNOWN]
        since = one.unknown_since
        yield pictures.Tile(
            one.name, groups[one.uuid], list(filter(None, (_square(line, one.is_silent) for line in lines))),
            f'{moments.age(one.age_s)} ago', '' if since is None else moments.local(since), one.release,
            tuple(notes), tuple(
                pictures.Critical(DeviceKey(finding['kind'] or '', finding['identifier'] or ''), finding['finding'],
                                  finding['detail'])
                for finding in worst.get(one, ()) if finding['severity'] == vocabulary.CRITICAL))


def _square(line: Outline, is_silent: bool) -> pictures.Square | None:
    """Return the field of a line; None for a part that could not be read, and for what a silent host could make."""
    if line.status == report.UNKNOWN or is_silent and line.identifier is None:
        return None
    why = '' if line.line is None else '; '.join(map(str, fleet_devices.reasons(json.loads(line.line))))
    square = pictures.Square(*line[:-1], why)
    if is_silent:
        why = f'{line.status} when it was last read' + (f': {why}' if why else '')
        return square._replace(state=report.UNKNOWN, why=why)
    return square


def _expression(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f'{text!r} is no regular expression: {error}') from error


def _link(text: str) -> str:
    if _HOST not in text:
        raise argparse.ArgumentTypeError(f'{text!r} has no {_HOST}: all hosts would have one page')
    if urllib.parse.urlsplit(text).scheme not in _SCHEMES:
        raise argparse.ArgumentTypeError(f'{text!r} is no address of a page')
    return text
