"""Chapter 10: three hosts and their mirror. One falls silent."""

from __future__ import annotations

import contextlib
import pathlib
import re
import sqlite3

from functions import Functions
from functions_host import FunctionsHost
from observer import expect
from page import chapter
from page import listed
from page import say
from page import show
from process import ATTENTION
from process import command
from process import OK
from stage import Stage

HOSTS = ('compute-1', 'compute-2', 'compute-3')
SILENT = HOSTS[-1]
_HOUR_MS = 3_600_000


def mirrored(stage: Stage) -> None:
    chapter('10. A fleet and its mirror')
    directory = stage.machine.directory / 'fleet'
    directory.mkdir()
    fleet = Fleet(directory)
    _pushed(fleet)
    _who_had_it(fleet)
    _what_fits(fleet)
    _one_falls_silent(fleet)
    fleet.end()


class Fleet:
    """The hosts and the mirror, and an operator whose configuration names the mirror alone."""

    def __init__(self, directory: pathlib.Path) -> None:
        self.hosts: dict[str, Functions] = {}
        for name in HOSTS:
            host = FunctionsHost(directory / name)
            host.make()
            self.hosts[name] = Functions(host, {f'tenant-{name[-1]}': 'disk', f'next-{name[-1]}': 'disk'})
        self.mirror, self._log = directory / 'mirror.sqlite', directory.parent / 'service.log'
        self.configuration = directory / 'mirror.conf'
        self.configuration.write_text(f'[devicetrack_fleet]\nconnection = sqlite:///{self.mirror}\n')

    def run(self, status: int, *arguments: str) -> str:
        """Run a command of the operator, and show it as a terminal does."""
        answer = command(self.configuration, self._log, *arguments)
        expect(answer.status == status, f'devicetrack-manage {" ".join(arguments)} ends with status {status}')
        show(f'$ devicetrack-manage {" ".join(arguments)}\n{answer.told.rstrip()}')
        return answer.told

    def push(self, name: str) -> None:
        pushed = self.hosts[name].service.call('push')
        expect(pushed['status'] == OK, f'{name} pushes: {pushed["told"]}')

    def fits(self, status: int) -> int:
        """Show how many guests with a disk fit now, and return the number."""
        told = self.run(status, 'fleet', 'capacity', '--request', 'CUSTOM_PCI_1B36_0010=1')
        [number] = re.findall(r'(\d+) instances? with that would fit', told)
        return int(number)

    def silence(self, name: str) -> None:
        """Let the last push of a host be an hour older, by plain SQL."""
        with contextlib.closing(sqlite3.connect(self.mirror)) as connection, connection:
            connection.execute('UPDATE fleet_hosts SET read_at_ms = read_at_ms - ? WHERE name = ?', (_HOUR_MS, name))

    def end(self) -> None:
        for one in self.hosts.values():
            expect(one.service.end() == 0, 'the service ends in peace')


def _pushed(fleet: Fleet) -> None:
    first, second, _third = fleet.hosts.values()
    first.build_when_proven('tenant-1')
    second.build_when_proven('tenant-2')
    second.service.call('delete', name='tenant-2')
    say(f"""
        Three more hosts, {listed(HOSTS)}, are like the last one. Each has a disk and a card, and its own service and
        record. tenant-1 has the disk of {HOSTS[0]}. tenant-2 had the disk of {HOSTS[1]} and was deleted. Now the
        operator wants to see all hosts at once, and makes a mirror: a central database with a copy of what each host
        knows. At a real site that is PostgreSQL or MariaDB. Here it is one more file:""")
    fleet.run(OK, 'fleet', 'sync')
    for name in HOSTS:
        fleet.push(name)
    say("""
        Then each host runs `devicetrack-manage fleet push`. On real hosts a timer runs it once a minute. The operator's
        configuration names the mirror and nothing else, and the commands ask no host:""")
    told = fleet.run(OK, 'fleet', 'host', 'list')
    expect(all(name in told for name in HOSTS), 'the mirror knows each host')


def _who_had_it(fleet: Fleet) -> None:
    second = fleet.hosts[HOSTS[1]]
    serial = second.host.serial
    say(f'Somebody asks who had the disk with the serial number {serial}:')
    told = fleet.run(OK, 'fleet', 'device', 'history', '--serial', serial)
    expect(second.instances.get('tenant-2').uuid in told, 'the mirror knows who had the disk')
    expect(not second.owners(), 'nobody has the disk now')
    say('The instance is gone, and no host has a row of it any more. The mirror still knows.')


def _what_fits(fleet: Fleet) -> None:
    say('How many more guests with such a disk can the fleet take?')
    free = [name for name, one in fleet.hosts.items() if not one.owners()]
    expect(fleet.fits(OK) == len(free), 'as many fit as the records have free disks')


def _one_falls_silent(fleet: Fleet) -> None:
    fleet.silence(SILENT)
    say(f"""
        {SILENT} loses its network, and pushes no more. To save the time of waiting, the demo sets the time of its last
        push back by an hour:""")
    told = fleet.run(ATTENTION, 'fleet', 'host', 'list')
    expect(f'unknown, because they are silent: {SILENT}' in told, f'{SILENT} is unknown')
    say(f"""
        {SILENT} may have given its disk to somebody since. So the mirror says since when nobody knows, and none of its
        devices counts as free. The exit status {ATTENTION} tells scripts that something needs attention:""")
    free = [name for name, one in fleet.hosts.items() if not one.owners() and name != SILENT]
    expect(fleet.fits(ATTENTION) == len(free), f'nothing fits on {SILENT}')
    fleet.push(SILENT)
    say(f'The network comes back, and with its next push {SILENT} counts again:')
    expect(fleet.fits(OK) == len(free) + 1, f'{SILENT} is back')
    say('No claim ever asks the mirror or waits for it. If it is gone, the hosts work as before.')
