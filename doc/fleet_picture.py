"""A picture of a fleet: ``python fleet_picture.py DIRECTORY`` draws it into ``demo-fleet.html``.

Each of its 20 hosts has a store of its own and pushes to a mirror in a file. Instances have devices; some devices are
withheld. One host is silent, two guests use one device of another, and a third one is report-only.
"""

from __future__ import annotations

import logging
import pathlib
import random
import sys
import tempfile
import uuid

import fixtures as base_fixtures

from devicetrack.cmd import base as cmd_base
from devicetrack.testing import fixtures
from devicetrack.tests.unit.fleet import fleets

_SILENT, _SHARED, _CLOSED = 6, 11, 17


class Hosts(base_fixtures.Fixture):
    """The fleet. ``fleet`` asks its mirror."""

    def _setUp(self) -> None:
        directory = self.useFixture(base_fixtures.TempDir()).path
        self.fleet = self.useFixture(fleets.Fleet(f'sqlite:///{directory}/mirror.db'))
        chance = random.Random(1)
        for number in range(20):
            name = f'rack{number // 10 + 1}-compute-{number % 10 + 1}'
            host = self.useFixture(fixtures.Host(
                devices=24, parents={'pci_0000_41_00_0': 8, 'pci_0000_c1_00_0': 8}, name=name,
                configuration=self.useFixture(fixtures.Configuration(machine=name))))
            for _instance in range(chance.randrange(4, 13)):
                last = host.spawn(pmem=chance.randrange(3), vgpu=1)
            if not chance.randrange(3):
                host.manager.operator.cordon('vpmem', f'd{chance.randrange(16, 24)}',
                                             reason='the module reports errors')
            if number == _SHARED:
                host.machine.start_guest(str(uuid.UUID(int=number)), host.manager.guest_config(last).devices)
            self.fleet.push(host)
            if number == _SILENT:
                self.fleet.grow_old(host, 7200)
            elif number == _CLOSED:
                self.fleet.close(host)


def main() -> int:
    logging.disable()
    path = pathlib.Path(sys.argv[1]) / 'demo-fleet.html'
    with tempfile.TemporaryDirectory(prefix='devicetrack-fleet-'), Hosts() as hosts:
        answer = hosts.fleet.run('fleet', 'map', '--output', str(path), '--group', '^(rack[0-9]+)-')
    if answer.code != cmd_base.ATTENTION:
        sys.stderr.write(answer.err)
    return answer.code != cmd_base.ATTENTION


if __name__ == '__main__':
    sys.exit(main())
