"""Options that several commands have."""

from __future__ import annotations

import argparse
import contextlib
import math
from typing import Final
from typing import NamedTuple
import uuid

from devicetrack import exception
from devicetrack.claims import arguments

_LONGEST_S: Final = 10 ** 9

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


def seconds(text: str) -> float:
    """Parse a time to wait."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= _LONGEST_S:
        raise argparse.ArgumentTypeError(f'{text!r} is not a number of seconds from 0 to {_LONGEST_S}')
    return value


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


def device_name(text: str) -> DeviceName:
    """Parse ``[KIND/]IDENTIFIER``. The identifier of a mediated device is a UUID."""
    kind, separator, identifier = text.rpartition('/')
    if not identifier or (separator and not kind):
        raise argparse.ArgumentTypeError(f'{text!r} is not [KIND/]IDENTIFIER')
    if kind in ('', _MDEV):
        with contextlib.suppress(argparse.ArgumentTypeError):
            identifier = canonical_uuid(identifier)
    return DeviceName(kind or None, identifier)
