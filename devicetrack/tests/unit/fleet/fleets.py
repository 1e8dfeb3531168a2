"""A fleet for tests: real hosts, and a mirror that says what they say."""

from __future__ import annotations

import json
import os
from typing import Any

import fixtures as base_fixtures
import sqlalchemy as sa

from devicetrack.claims import report
from devicetrack.fleet import inventory
from devicetrack.fleet import mirror as mirrors
from devicetrack.fleet import models
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
        known = serials or {}
        ours = self.useFixture(program.Program(host.configuration, host.machine))
        uuid = host.manager.host_uuid
        lines = json.loads(ours.run('device', 'list', '-f', 'json').out)
        devices = [{'host_uuid': uuid, 'position': number, 'digest': '', 'line': json.dumps(line),
                    'serial': known.get(line['identifier'], line['serial']),
                    **{name: line[name] for name in ('kind', 'identifier', 'status', 'amount', 'resource_class',
                                                     'parent', 'numa_node', 'instance_uuid')}}
                   for number, line in enumerate(lines)]
        events = [{**dict.fromkeys(models.fleet_events.columns.keys()), **one.event._asdict(), 'number': one.number,
                   'digest': f'{one.number}', 'serial': known.get(one.event.identifier, one.event.serial)}
                  for one in host.store.latest_events(uuid, 1000)]

        observer = report.Observer(host.store.hosts()[0], ours._load_driver(host.configuration.conf, host.name),
                                   host.store, host.configuration.conf)
        snapshot, _names = observer._snapshot(observer.read(), observer._marks())

        declared = json.dumps([one._asdict() for one in host.store.declarations_of_host(uuid)])

        def write(connection: sa.Connection) -> None:
            for table in (models.fleet_hosts, models.fleet_devices, models.fleet_parts, models.fleet_events):
                connection.execute(sa.delete(table).where(table.c.host_uuid == uuid))
            now = connection.execute(sa.select(models.now_ms())).scalar()
            connection.execute(sa.insert(models.fleet_hosts), {
                **{one.name: None if one.nullable else one.type.python_type() for one in models.fleet_hosts.columns},
                'host_uuid': uuid, 'name': host.name, 'interval_s': 60, 'read_at_ms': now, 'findings': '[]'})
            connection.execute(sa.insert(models.fleet_parts), [
                {'host_uuid': uuid, 'part': part, 'digest': '', 'document': document} for part, document in (
                    (models.INVENTORY, inventory.to_text(snapshot)), (models.DECLARATIONS, declared))])
            for table, rows in ((models.fleet_devices, devices), (models.fleet_events, events)):
                if rows:
                    connection.execute(sa.insert(table), rows)

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
            models.fleet_devices.c.host_uuid == host.manager.host_uuid)))

    def _change(self, host: fixtures.Host, **values: Any) -> None:
        self.mirror.transact(lambda connection: connection.execute(sa.update(models.fleet_hosts).where(
            models.fleet_hosts.c.host_uuid == host.manager.host_uuid).values(**values)))
