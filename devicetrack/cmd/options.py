"""Options that several commands have."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import math
import re
from typing import Any
from typing import Final
from typing import NamedTuple
import uuid

from devicetrack import exception
from devicetrack.claims import arguments
from devicetrack.objects.values import DeviceKey

_LONGEST_S: Final = 10 ** 9
_MS: Final = 1000

_NEGATIVE: Final = re.compile(r'-[0-9]')
_UNITS: Final = {'s': 'seconds', 'm': 'minutes', 'h': 'hours', 'd': 'days', 'w': 'weeks'}
_AGO: Final = re.compile(f'-?(?P<amount>[0-9]{{1,9}})(?P<unit>[{"".join(_UNITS)}])')
_DAYS: Final = {'today': 0, 'yesterday': 1}

# The device kind whose identifiers are UUIDs. Other kinds choose any names, even ones that look like a UUID.
_MDEV: Final = 'mdev'


def add_host(parser: argparse.ArgumentParser) -> None:
    """``--host``, for commands that look at this machine."""
    parser.add_argument('--host', metavar='NAME',
                        help='The host, when this machine is more than one in the store. By default the host that '
                             'this machine is.')


def add_instance(parser: argparse.ArgumentParser) -> None:
    """The instance, for commands about one."""
    parser.add_argument('instance', metavar='INSTANCE', type=canonical_uuid, help='The UUID of the instance.')


def add_reason(parser: argparse.ArgumentParser, default: str = '') -> None:
    """``--reason``, for an operator's decision.

    :param default: a sentence on what it is by default
    """
    parser.add_argument('--reason', type=reason, default='', metavar='TEXT',
                        help='The reason, which lists and errors show: one line of at most 255 characters.' + default)


def add_period(parser: argparse.ArgumentParser, things: str, more: str = '') -> None:
    """``--since`` and ``--until``, in milliseconds since 1970, or None.

    :param more: what else ``--since`` does
    """
    # argparse takes -1h for an option.
    parser._negative_number_matcher = _NEGATIVE
    parser.add_argument('--since', metavar='TIME', type=moment,
                        help=f'Only {things} at this time or later: 2026-11-20, 2026-11-20T14:30, yesterday, or 7d, '
                             f'12h or 30m ago. A time without a zone is local.{more}')
    parser.add_argument('--until', metavar='TIME', type=moment, help=f'Only {things} before this time.')


def is_within(parsed_args: argparse.Namespace, at_s: float) -> bool:
    """Whether a time in seconds since 1970 is in the period of :func:`add_period`."""
    return ((parsed_args.since is None or at_s * _MS >= parsed_args.since)
            and (parsed_args.until is None or at_s * _MS < parsed_args.until))


def within(parsed_args: argparse.Namespace) -> str:
    """Return the period in words."""
    return '' if parsed_args.since is None and parsed_args.until is None else ' in that time'


def moment(text: str) -> int:
    """Parse a time into milliseconds since 1970: in ISO 8601, a day in words, or how long ago it was.

    A time without a zone is local.
    """
    now = datetime.datetime.now().astimezone()
    try:
        if (ago := _AGO.fullmatch(text)) is not None:
            found = now - datetime.timedelta(**{_UNITS[ago['unit']]: int(ago['amount'])})
        elif text in _DAYS:
            found = datetime.datetime.combine(now.date() - datetime.timedelta(days=_DAYS[text]), datetime.time())
        else:
            found = now if text == 'now' else datetime.datetime.fromisoformat(text)
        return int(found.astimezone().timestamp() * _MS)
    except (ValueError, OverflowError, OSError):
        raise argparse.ArgumentTypeError(
            f'{text!r} is not a time like 2026-11-20, 2026-11-20T14:30, 2026-11-20T14:30:00Z, yesterday, 7d or 1h'
        ) from None


def add_extra_specs(parser: Any) -> None:
    """``--extra-specs``, for a request: the extra specs by their names, or None."""
    parser.add_argument('--extra-specs', metavar='FILE', type=extra_specs,
                        help='The extra specs of a flavor: a JSON object in a file, also as "openstack flavor show -f '
                             'json" prints it.')


def extra_specs(path: str) -> dict[str, str]:
    """Read a file of extra specs."""
    try:
        with open(path, encoding='utf-8') as file:
            data = json.load(file)
    except (OSError, ValueError) as error:
        raise argparse.ArgumentTypeError(f'{path} cannot be read: {error}') from error
    if isinstance(data, dict) and isinstance(data.get('properties'), dict):
        data = data['properties']
    if not isinstance(data, dict) or not all(isinstance(value, str) for value in data.values()):
        raise argparse.ArgumentTypeError(f'{path} is no JSON object of extra specs, all of them texts')
    return data


def seconds(text: str) -> float:
    """Parse a time to wait."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= _LONGEST_S:
        raise argparse.ArgumentTypeError(f'{text!r} is not a number of seconds from 0 to {_LONGEST_S}')
    return value


def at_least_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f'{text} is less than 1')
    return number


def reason(text: str) -> str:
    """Parse an operator's reason."""
    try:
        return arguments.check_reason(text)
    except exception.BadRequest as error:
        raise argparse.ArgumentTypeError(error.reason) from error


def canonical_uuid(text: str) -> str:
    """Parse a UUID in any form that Python knows: in capitals, without hyphens, in braces, as a URN."""
    try:
        return str(uuid.UUID(text))
    except ValueError:
        raise argparse.ArgumentTypeError(f'{text!r} is no UUID') from None


class DeviceName(NamedTuple):
    """A device as a person names it; a ``kind`` of None means any kind."""

    kind: str | None
    identifier: str

    def __str__(self) -> str:
        return f'{self.kind}/{self.identifier}' if self.kind else self.identifier


def device_key(text: str) -> DeviceKey:
    """Parse ``KIND/IDENTIFIER``, as :func:`device_name` does."""
    kind, identifier = device_name(text)
    if kind is None:
        raise argparse.ArgumentTypeError(f'{text} has no kind: say KIND/{text}')
    return DeviceKey(kind, identifier)


def device_name(text: str) -> DeviceName:
    """Parse ``[KIND/]IDENTIFIER``. The identifier of a mediated device is a UUID."""
    kind, separator, identifier = text.rpartition('/')
    if not identifier or (separator and not kind):
        raise argparse.ArgumentTypeError(f'{text!r} is not [KIND/]IDENTIFIER')
    if kind in ('', _MDEV):
        with contextlib.suppress(argparse.ArgumentTypeError):
            identifier = canonical_uuid(identifier)
    return DeviceName(kind or None, identifier)
