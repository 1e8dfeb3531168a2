"""A fleet for tests: real hosts, and a mirror that says what they say."""

from __future__ import annotations

import os
from typing import Any

import fixtures as base_fixtures
import sqlalchemy as sa

from devicetrack.fleet import mirror as mirrors
from devicetrack.fleet import models
from devicetrack.fleet import push
from devicetrack.testing import fixtures
from devicetrack.tests.unit.cmd import program


class Fleet(base_fixtures.Fixture):
    """The mirror at a URL, and the program of an operator whose configuration names it alone."""

    def __init__(self, url: str) -> None:
        self._url = url

    def _setUp(self) -> None:
        self._directory = self.useFixture(base_fixtures.TempDir()).path
        self.config_file = os.path.join(self._directory, 'mirror.conf')
        with open(self.config_file, 'w', encoding='utf-8') as file:
            file.write(f'[devicetrack_fleet]\nconnection = {self._url}\n')
        self.program = self.useFixture(program.Program(self.useFixture(fixtures.Configuration())))
        self.ask('fleet', 'sync')
        conf = self.useFixture(fixtures.Configuration()).conf
        conf.set_override('connection', self._url, 'devicetrack_fleet')
        self.mirror = mirrors.Mirror(conf)
        self.addCleanup(self.mirror.close)

    def run(self, *arguments: str) -> program.Answer:
        """Run a command with the operator's configuration."""
        return self.program.run(*arguments, config_file=self.config_file)

    def ask(self, *arguments: str) -> Any:
        return self.program.ask(*arguments, config_file=self.config_file)

    def push(self, host: fixtures.Host, serials: dict[str, str] | None = None) -> None:
        """Put into the mirror what a host says of itself.

        :param serials: other serial numbers than the host's, by the identifiers of devices
        """
        ours = self.useFixture(program.Program(host.configuration, host.machine))
        config_file = program.write_configuration(
            self._directory, host.configuration.conf, '[devicetrack_fleet]', f'connection = {self._url}')
        ours.ask('fleet', 'push', '--host', host.name, config_file=config_file)

        uuid, known = host.manager.state().host_uuid, serials or {}
        events, devices = models.fleet_events, models.fleet_devices

        def write(connection: sa.Connection) -> None:
            for identifier, serial in known.items():
                connection.execute(sa.update(devices).where(
                    devices.c.host_uuid == uuid, devices.c.identifier == identifier).values(serial=serial))
            for one in host.store.latest_events(uuid, 1000):
                connection.execute(sa.update(events).where(
                    events.c.host_uuid == uuid, events.c.digest == push.digest_of(one)).values(
                    serial=known.get(one.event.identifier, one.event.serial)))

        self.mirror.transact(write)

    def close(self, host: fixtures.Host) -> None:
        """Let a host have said that it is report-only."""
        self._change(host, report_only='its store is older than its guests')

    def grow_old(self, host: fixtures.Host, seconds: int) -> None:
        """Let the last push of a host be so many seconds older."""
        self._change(host, read_at_ms=models.fleet_hosts.c.read_at_ms - seconds * 1000)

    def forget(self, host: fixtures.Host) -> None:
        self._change(host, forgotten_at_ms=1)
        self.mirror.transact(lambda connection: connection.execute(sa.delete(models.fleet_devices).where(
            models.fleet_devices.c.host_uuid == host.manager.state().host_uuid)))

    def _change(self, host: fixtures.Host, **values: Any) -> None:
        self.mirror.transact(lambda connection: connection.execute(sa.update(models.fleet_hosts).where(
            models.fleet_hosts.c.host_uuid == host.manager.state().host_uuid).values(**values)))
