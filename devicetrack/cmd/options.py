"""Options that several commands have."""

from __future__ import annotations

import argparse
from typing import NamedTuple


def add_host(parser: argparse.ArgumentParser) -> None:
    """``--host``, for commands that look at this machine."""
    parser.add_argument('--host', metavar='NAME',
                        help='The host, when this machine is more than one in the store. By default the host that '
                             'this machine is.')


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
