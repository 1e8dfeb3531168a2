"""``devicetrack-manage placement heal``: moves allocations to the providers of their devices. No guest moves."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
import functools
import time
from typing import Any
from typing import Final

from devicetrack import exception
from devicetrack.claims import report
from devicetrack.cmd import base
from devicetrack.cmd import options
from devicetrack.cmd import placement
from devicetrack.cmd import progress
from devicetrack.cmd import records
from devicetrack.conf import placement as placement_options
from devicetrack.placement import errors
from devicetrack.placement import healer
from devicetrack.placement.client import Client
from devicetrack.placement.healer import Healing
from devicetrack.placement.healer import NodeToHeal
from devicetrack.placement.resolver import ProvidersByName
from devicetrack.store.api import Host

# The outcomes of a node in addition to those of a heal.
WOULD_HEAL: Final = 'would be healed'
ALREADY: Final = 'already healed'

HYPERVISOR: Final = 'hypervisor'
RECORD: Final = 'record'


class Heal(base.Lister):
    """Move the allocations of devices from a node's provider to the providers that the record names.

    One request to placement moves all allocations of a node or none, and no guest moves. If anything differs at a node,
    the command does not change the node, and lists the differences. After an interruption, run it again. It compares
    the node of this machine with the devices of its guests; for other nodes it has only the record in the store. The
    exit code is the number of unchanged nodes plus 10, at most 125; 3 when --max-count left some, and with --dry-run
    when any would be healed.
    """

    columns = ('node', 'host', 'outcome', 'moved', 'checked', 'consumers', 'obstacles')
    in_table = ('node', 'outcome', 'moved', 'checked')

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        which = parser.add_mutually_exclusive_group(required=True)
        which.add_argument('--node', metavar='NAME', help='The hypervisor node.')
        which.add_argument('--all', action='store_true', help='The nodes of all hosts in the store, by their names.')
        parser.add_argument('--host', metavar='NAME',
                            help='With --node: its host in the store, if the host has another name than the node.')
        parser.add_argument('--max-count', type=options.at_least_one, metavar='N', help='Heal at most N nodes.')
        parser.add_argument('--dry-run', action='store_true', help='Only show what would be moved.')

    def rows(self, parsed_args: argparse.Namespace) -> Iterator[Mapping[str, Any]]:
        if parsed_args.host and parsed_args.all:
            raise base.UsageError('--host goes with --node')
        client = placement.open_client(self.app.conf)
        if self.app.conf[placement_options.GROUP].nested == 'off' and not parsed_args.dry_run:
            raise exception.InvalidConfiguration(
                f'[{placement_options.GROUP}] nested', 'off', 'devices are to be counted at the node, and a heal moves '
                'them away from there: set manual, restart the services, and then heal')
        hosts = self._hosts(client, parsed_args)
        here = self.app.machine_id
        healed = left = 0
        with progress.Progress(self) as shown:
            for number, host in enumerate(hosts):
                if healed == parsed_args.max_count:
                    shown.clear()
                    self.exit_code = base.ATTENTION
                    self.say(f'{base.count(len(hosts) - number, "node")} not checked')
                    break
                name, is_here = parsed_args.node or host.name, host.machine_id == here
                so_far = f'{number:,} of {base.count(len(hosts), "node")}: node {name}'
                shown.show(so_far)
                healing = healer.Healer(client).attempt(functools.partial(self._node, client, host, name, is_here),
                                                        parsed_args.dry_run, _teller(shown, so_far))
                unrecorded = None if parsed_args.dry_run else self._record(host, healing)
                if healing.obstacles or unrecorded:
                    shown.clear()
                for obstacle in healing.obstacles:
                    self.say(f'node {name} is not changed: {obstacle}')
                if unrecorded:
                    self.exit_code = base.ATTENTION
                    self.say(f'node {name} is healed, but the store could not record it: {unrecorded}: run the command '
                             'again')
                left += healing.outcome == healer.LEFT
                healed += healing.outcome == healer.HEALED
                yield {'node': name, 'host': host.name, 'outcome': self._outcome(host, healing, parsed_args.dry_run),
                       'moved': len(healing.consumers), 'checked': HYPERVISOR if is_here else RECORD,
                       'consumers': healing.consumers,
                       'obstacles': [obstacle._asdict() for obstacle in healing.obstacles]}
        if parsed_args.dry_run:
            self.say('nothing was done')
            if healed:
                self.exit_code = base.ATTENTION
        if left:
            self.exit_code = min(base.SOME_LEFT + left, base.MOST_LEFT)

    def _hosts(self, client: Client, parsed_args: argparse.Namespace) -> list[Host]:
        store = self.app.checked_store
        if parsed_args.all:
            return list(store.hosts())
        found = records.host_of(store, parsed_args.host or parsed_args.node)
        placement.check_node(client, store, found, parsed_args.node, parsed_args.host is not None)
        return [found]

    def _record(self, host: Host, healing: Healing) -> str | None:
        """Record that a host's node is healed, unless it was left; return why the store could not."""
        if healing.outcome != healer.LEFT and host.nested_version != healer.VERSION:
            try:
                self.app.store.set_nested(host.uuid, healer.VERSION, int(time.time()))
            except exception.DeviceTrackError as error:
                return base.sentence(error)
        return None

    def _node(self, client: Client, host: Host, name: str, is_here: bool) -> NodeToHeal:
        if is_here:
            observer = report.Observer(host, self.app.driver(host.name), self.app.store, self.app.conf,
                                       ProvidersByName(client, name))
            return healer.NodeToHeal.of_host(observer.placed, *observer.providers(name))
        found = client.find_provider(name)
        if found is None:
            raise errors.NoSuchProvider(name)
        return placement.recorded_node(client, self.app.store, host, found)

    @staticmethod
    def _outcome(host: Host, healing: Healing, dry_run: bool) -> str:
        if healing.outcome == healer.NOTHING and host.nested_version is not None:
            return ALREADY
        return WOULD_HEAL if dry_run and healing.outcome == healer.HEALED else healing.outcome


def _teller(shown: progress.Progress, so_far: str) -> Callable[[int, int], None]:
    def tell(done: int, of: int) -> None:
        shown.show(f'{so_far}: {done:,} of {base.count(of, "consumer")} read')

    return tell
