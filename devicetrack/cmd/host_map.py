"""``devicetrack-manage host map``: pictures of hosts, in a terminal or as a page of HTML."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from devicetrack.claims import report
from devicetrack.claims import withheld
from devicetrack.cmd import base
from devicetrack.cmd import fleet_map
from devicetrack.cmd import host as host_commands
from devicetrack.cmd import page_file
from devicetrack.cmd import screen
from devicetrack.cmd import watching
from devicetrack.objects.event import Event
from devicetrack.pictures import fleet as together
from devicetrack.pictures import host as pictures
from devicetrack.pictures import natural
from devicetrack.pictures import pages
from devicetrack.pictures import terminal
from devicetrack.store.api import Host
from devicetrack.store.api import Store

# Wider lines would be harder to follow than wrapped ones.
_WIDEST = 160
# The picture is made of so many events. It shows the last of the host and of each device.
_EVENTS = 2000


class Map(watching.Watched, base.Command):
    """Draw hosts: NUMA nodes, parents and devices, the owner of each device, why devices are withheld, and findings.

    Reads the devices and the hypervisor of this machine and the store, and changes nothing. For another host it draws
    what the store has, and the picture says so. It draws in the terminal; with --output it writes a page of HTML
    instead. The page of several hosts is that of "fleet map": small pictures, and a filter. Exit code 3 when something
    needs attention, as with "audit".
    """

    _has_events = True
    _store: Store

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument('hosts', metavar='HOST', nargs='*',
                            help="The hosts. By default this machine's.")
        parser.add_argument('--all', action='store_true', help='All hosts of the store.')
        page_file.add_output(parser)
        fleet_map.add_options(parser, 'For a page of several hosts.')

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        names = parsed_args.hosts
        if parsed_args.all and names:
            raise base.UsageError('--all means every host: name no host with it')
        self._store = self.app.checked_store
        known = {host.name: host for host in self._store.hosts()} if parsed_args.all or names else {}
        if parsed_args.all:
            names = sorted(known, key=natural.key)
        self._known, self._machine = known, host_commands.machine(self.app)
        names = list(dict.fromkeys(names or [None]))
        if parsed_args.output is None:
            self._draw_in_terminal(names)
        elif parsed_args.all or len(names) > 1:
            group = {name: fleet_map.group_of(name, parsed_args.group) for name in names}
            self._has_events = False
            fleet_map.write(parsed_args, (
                together.of_host(host, group[host.name])
                for host in map(self._picture, sorted(names, key=lambda name: natural.key(group[name])))),
                'Read from the store')
        else:
            page_file.write(parsed_args.output, lambda: pages.host_map(self._picture(names[0])))

    def _draw_in_terminal(self, names: Iterable[str | None]) -> None:
        out = self.app.stdout
        pen = terminal.Pen(min(screen.width_of(out), _WIDEST), screen.has_colours(out), out.encoding or 'ascii')
        for line in pen.hosts(map(self._picture, names)):
            out.write(f'{line}\n')

    def _picture(self, name: str | None) -> pictures.HostPicture:
        found = self._known.get(name) if name is not None else None
        picture = self._here(name) if found is None or found.machine_id == self._machine else self._stored(found)
        if picture.needs_attention:
            self.exit_code = base.ATTENTION
        return picture

    def _here(self, name: str | None) -> pictures.HostPicture:
        """Return the picture of this machine as read now.

        :raises UnknownHost: the store has no host of this name
        """
        observer: report.Observer = self.app.observer(name)
        host, seen = observer.host, observer.picture()
        return pictures.read(host.name, seen.lines, seen.findings, seen.records, self._events(host), seen.report_only)

    def _stored(self, host: Host) -> pictures.HostPicture:
        records = self._store.records_of_host(host.uuid)
        return pictures.stored(host.name, records, withheld.load(self._store, host.uuid), self._events(host))

    def _events(self, host: Host) -> list[Event]:
        if not self._has_events:
            return []
        return [stored.event for stored in self._store.latest_events(host.uuid, _EVENTS)]
