"""What commands that read the mirror of a fleet have in common: their hosts, and how old the answer is."""

from __future__ import annotations

import argparse
from collections.abc import Collection
from collections.abc import Sequence
from typing import Any
from typing import Final

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.cmd import base
from devicetrack.fleet.reading import Picture
from devicetrack.fleet.reading import Reader
from devicetrack.pictures import moments
from devicetrack.pictures import natural

# The columns that say how old the answer is. Every command that reads a mirror has them.
AGE: Final = ('age_s', 'unknown_since')


def add_hosts(parser: argparse.ArgumentParser) -> None:
    """``--host``, for commands about several hosts of a fleet."""
    parser.add_argument('--host', metavar='PATTERN', action='append', default=[],
                        help="Only hosts whose names match this pattern of a shell, such as 'rack7*'. May be "
                             'repeated.')


def add_numa(parser: argparse.ArgumentParser, by_default: str, policy_by_default: str) -> None:
    """``--numa-nodes`` and ``--numa-policy``, for commands that ask the allocator of hosts."""
    parser.add_argument('--numa-nodes', metavar='N', type=int, choices=range(17),
                        help=f'On how many NUMA nodes each guest runs, for devices that must be near. {by_default}')
    parser.add_argument('--numa-policy', choices=vocabulary.NUMA_AFFINITY_POLICIES,
                        help=f'How strictly devices follow the NUMA nodes. {policy_by_default}')


class OfMirror(base.Lister):
    """Base of commands that list what a mirror has: then they tell people how old the answer is."""

    _pictures: Sequence[Picture] = ()

    def read(self, patterns: Sequence[str] = ()) -> Reader:
        """Return the reader of the mirror, for an answer about the hosts whose names match, or about all.

        :raises InvalidConfiguration: no option names a mirror
        :raises SchemaMismatch, StoreUnavailable: it cannot be read
        """
        found = Reader(self.app.mirror)
        self._pictures = in_order(found.pictures(patterns))
        return found

    def produce_output(self, *args: Any) -> int:
        code = super().produce_output(*args)
        say_age(self, self._pictures)
        return code


def in_order(pictures: Collection[Picture]) -> list[Picture]:
    return sorted(pictures, key=lambda one: (natural.key(one.name), one.uuid))


def age_fields(picture: Picture) -> dict[str, Any]:
    """Return the values of the columns ``AGE``."""
    since = picture.unknown_since
    return {'age_s': picture.age_s, 'unknown_since': None if since is None else base.Moment(since)}


def say_age(command: base.Command, pictures: Sequence[Picture]) -> None:
    """Tell people how old an answer is, and which of its hosts are unknown. Then the command needs attention."""
    live = [one.age_s for one in pictures if not one.is_silent]
    if live:
        ages = list(dict.fromkeys(map(moments.age, (min(live), max(live)))))
        command.say(f'as {base.count(len(live), "host")} looked {" to ".join(ages)} ago')
    silent = sorted((one for one in pictures if one.is_silent), key=lambda one: -one.age_s)
    if silent:
        command.exit_code = base.ATTENTION
        command.say('unknown, because they are silent: ' + exception.in_short(
            [f'{one.name} since {moments.local(one.read_at)}' for one in silent]))
    if not pictures:
        command.say('the mirror has no host: run devicetrack-manage fleet push on the hosts')
