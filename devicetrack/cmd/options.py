"""Options that several commands have."""

from __future__ import annotations

import argparse
import math
from typing import Final
from typing import NamedTuple

from devicetrack import exception
from devicetrack.claims import arguments

_LONGEST_S: Final = 10 ** 9


def add_host(parser: argparse.ArgumentParser) -> None:
    """``--host``, for commands that look at this machine."""
    parser.add_argument('--host', metavar='NAME',
                        help='The host, when this machine is more than one in the store. By default the host that '
                             'this machine is.')


def seconds(text: str) -> float:
    """Read a time to wait."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= _LONGEST_S:
        raise argparse.ArgumentTypeError(f'{text!r} is not a number of seconds from 0 to {_LONGEST_S}')
    return value


def reason(text: str) -> str:
    """Read why an operator does something."""
    try:
        return arguments.check_reason(text)
    except exception.BadRequest as error:
        raise argparse.ArgumentTypeError(error.reason) from error


class DeviceName(NamedTuple):
    """A device as a person names it; ``kind`` is None for one of any kind."""

    kind: str | None
    identifier: str

    def __str__(self) -> str:
        return f'{self.kind}/{self.identifier}' if self.kind else self.identifier


def device_name(text: str) -> DeviceName:
    """Read ``[KIND/]IDENTIFIER``."""
    kind, separator, identifier = text.rpartition('/')
    if not identifier or (separator and not kind):
        raise argparse.ArgumentTypeError(f'{text!r} is not [KIND/]IDENTIFIER')
    return DeviceName(kind or None, identifier)
