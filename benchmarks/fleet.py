"""Compares commands and pushes with the bare SQL of the same answers, in a mirror of many simulated hosts.

All hosts are copies of one in memory, each with its own names, instances, serial numbers and history. The bare SQL is
one statement of the server's driver, from opening a connection to the last row. A command also has a part that does not
grow with the fleet. That is its time on the mirror of one small host, and it does not count.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Final
from typing import NamedTuple
import uuid

from oslo_config import cfg
import sqlalchemy as sa

from benchmarks.measure import Effort
from benchmarks.measure import side_by_side
from benchmarks.report import Row
from benchmarks.report import Table
from devicetrack.claims import report
from devicetrack.cmd import base
from devicetrack.cmd import fleet as commands
from devicetrack.cmd import manage
from devicetrack.fleet import mirror as mirrors
from devicetrack.fleet import models
from devicetrack.fleet import push
from devicetrack.objects.event import Event
from devicetrack.objects.event import EVENTS
from devicetrack.objects.values import Attribute
from devicetrack.objects.values import MigrationType
from devicetrack.store.api import StoredEvent
from devicetrack.store.sql import models as of_store
from devicetrack.store.sql import queries
from devicetrack.store.sql.store import SQLStore
from devicetrack.testing import databases
from devicetrack.testing import fake
from devicetrack.testing import fixtures

SERVERS: Final[dict[str, type[databases.ServerStore]]] = {
    'PostgreSQL': databases.PostgreSQLStore, 'MariaDB': databases.MariaDBStore}
MILLISECONDS: Final = 1e3
COMMAND, SMALL, BARE, PUSH = 'command', 'small', 'bare', 'push'
# The number of a host, wherever its name, its UUID and its instances and serial numbers have it.
_MARK: Final = 'f1ee70'
_OF_ONE_PARENT: Final = 10
# What getrusage says of a child that was forked has the memory of its parent in it.
_MEASURED: Final = """
import sys
from devicetrack.cmd import manage
code = manage.main(sys.argv[1:])
[line] = [line for line in open('/proc/self/status') if line.startswith('VmHWM')]
print(line, file=sys.stderr)
sys.exit(code)
"""
_CHANGES: Final = 100


def run(effort: Effort) -> Table:
    found: list[Row] = []
    for name, database in SERVERS.items():
        rows: list[Row] = []
        with contextlib.ExitStack() as stack:
            asked = effort.mirrored_hosts // 2
            fleets = [_Fleet(stack, database, effort, hosts) for hosts in (
                range(effort.mirrored_hosts), range(asked, asked + 1))]
            with _Pushing(fleets[0], effort) as host:
                rows += _pushes(host, effort)
            page = os.path.join(stack.enter_context(tempfile.TemporaryDirectory()), 'fleet.html')
            questions = list(_questions(effort, page))
            rows += [_asked(*fleets, question, effort) for question in questions]
            memory = {one.arguments: fleets[0].memory(one.arguments) for one in questions if one.grows}
            rows.append(Row('the page of fleet map', os.stat(page).st_size / 1e6, 'MB', at_most=5))
            most = max(memory, key=lambda arguments: memory[arguments])
            rows.append(Row('the memory of a command', memory[most], 'MB', at_most=200,
                            note=f'most of all: {_shown(most)}'))
        found += [row._replace(what=f'{name}: {row.what}') for row in rows]
    return Table(f'A mirror of {effort.mirrored_hosts:,} hosts with {effort.mirrored_devices} devices and '
                 f'{effort.mirrored_events:,} events each', found)


# -- commands ----------------------------------------------------------------------------------------------------------


class _Question(NamedTuple):
    """The arguments of a command, and the SQL of its answer. ``grows`` says that the answer is larger for a fleet."""

    arguments: str
    sql: str
    grows: bool = True


def _questions(effort: Effort, page: str) -> Iterator[_Question]:
    hosts = 'SELECT h.*, f.* FROM fleet_hosts h JOIN'
    devices = 'SELECT h.read_at_ms, d.line FROM fleet_devices d JOIN fleet_hosts h USING (host_uuid)'
    events = 'SELECT h.name, h.read_at_ms, e.* FROM fleet_events e JOIN fleet_hosts h USING (host_uuid)'
    # These answers name the hosts that are silent, whose devices may be others by now.
    ages = 'SELECT host_uuid, name, report_only, read_at_ms, interval_s, forgotten_at_ms FROM fleet_hosts'
    parts = 'SELECT h.name, h.read_at_ms, p.document FROM fleet_parts p JOIN fleet_hosts h USING (host_uuid)'
    number = f'{effort.mirrored_hosts // 2:06x}'
    serial, instance = f'S-{number}-0', _instance(0).replace(_MARK, number)
    in_order = 'ORDER BY h.name, d.position'
    yield _Question('fleet host list', f'{hosts} (SELECT host_uuid, status, count(*), sum(amount) FROM fleet_devices '
                                       'GROUP BY host_uuid, status) f USING (host_uuid)')
    yield _Question(f'fleet device list --serial {serial}', f"{devices} WHERE d.serial = '{serial}'; {ages}", False)
    yield _Question(f'fleet device list --instance {instance}',
                    f"{devices} WHERE d.instance_uuid = '{instance}'; {ages}", False)
    yield _Question(f'fleet device list --host compute-{number}', f"{devices} WHERE h.name = 'compute-{number}' "
                                                                  'ORDER BY d.position', False)
    yield _Question('fleet device list --status withheld', f"{devices} WHERE d.status = 'withheld' {in_order}")
    yield _Question('fleet device list --parent gpu0', f"{devices} WHERE d.parent = 'gpu0' {in_order}")
    yield _Question('fleet device list --class VGPU', f"{devices} WHERE d.resource_class = 'VGPU' {in_order}")
    yield _Question('fleet device list', f'{devices} {in_order}')
    yield _Question(f'fleet device history --serial {serial}', f"{events} WHERE e.serial = '{serial}' ORDER BY e.at_ms",
                    False)
    yield _Question(f'fleet instance history {instance}', f"{events} WHERE e.instance_uuid = '{instance}' "
                                                          'ORDER BY e.at_ms', False)
    amounts = ('SELECT resource_class, status, count(*), sum(amount), count(DISTINCT host_uuid) FROM fleet_devices '
               'GROUP BY resource_class, status')
    room = ("SELECT host_uuid, resource_class, sum(amount) FROM fleet_devices WHERE status IN ('free', 'creatable') "
            'GROUP BY host_uuid, resource_class')
    yield _Question('fleet capacity', amounts)
    yield _Question(f'fleet capacity --request VGPU=1,{fixtures.PMEM}=2',
                    f"{amounts}; {parts} WHERE p.part = 'inventory'")
    yield _Question(f'fleet map --output {page}', 'SELECT h.name, h.read_at_ms, d.kind, d.identifier, d.status, '
                    'd.amount, d.resource_class, d.parent, d.numa_node, d.instance_uuid, d.serial FROM fleet_devices d '
                    f'JOIN fleet_hosts h USING (host_uuid) {in_order}')
    yield _Question(f'fleet drain compute-{number}',
                    f"{room}; {parts} WHERE p.part IN ('inventory', 'declarations')")
    yield _Question('fleet migration matrix', f"{parts} WHERE p.part = 'declarations'")


def _shown(arguments: str) -> str:
    return arguments.partition(' --output')[0]


def _asked(fleet: _Fleet, small: _Fleet, question: _Question, effort: Effort) -> Row:
    samples = side_by_side({
        COMMAND: lambda: fleet.ask(question.arguments), SMALL: lambda: small.ask(question.arguments),
        BARE: lambda: fleet.read(question.sql)}, effort.mirror_rounds)
    ours = [max(0.0, one - other) / bare for one, other, bare in zip(
        *(samples.measured[name] for name in (COMMAND, SMALL, BARE)), strict=True)]
    command, less, bare = (samples.median(name) * MILLISECONDS for name in (COMMAND, SMALL, BARE))
    return Row(_shown(question.arguments), statistics.median(ours), at_most=3,
               note=f'{command:.1f} ms, less {less:.1f} ms, to {bare:.1f} ms')


# -- pushes ------------------------------------------------------------------------------------------------------------


class _Pushing(fixtures.Host):
    """A real host that pushes, and claims of which the bare SQL is known."""

    def __init__(self, fleet: _Fleet, effort: Effort) -> None:
        super().__init__(devices=effort.mirrored_devices, name='pushing',
                         configuration=fixtures.Configuration(machine='pushing'))
        self.fleet, self.changes = fleet, min(_CHANGES, effort.mirrored_devices)

    def _setUp(self) -> None:
        self.useFixture(self._configuration)
        super()._setUp()
        self._instances: list[fixtures.Instance] = []
        claims = self.useFixture(type(self.fleet.database)())
        self._claims: SQLStore = claims.store
        self._engine = sa.create_engine(claims.url())
        self.addCleanup(self._engine.dispose)

    def said(self) -> push.Said:
        return _said(self)

    def push(self, said: push.Said) -> float:
        began = time.perf_counter()
        push.push(self.fleet.mirror, self.store.store, said, time.monotonic())
        self.fleet.mirror.close()
        return time.perf_counter() - began

    def change(self) -> float:
        """Claim devices, or give them all back, and push that."""
        if self._instances:
            while self._instances:
                self.delete(self._instances.pop())
        else:
            self._instances = [self.spawn(pmem=1) for _ in range(self.changes)]
            self._rows = [record._asdict() for record in self.records()]
        return self.push(self.said())

    def claims(self) -> float:
        """Write the rows of as many claims, each in a transaction of its own, on the same server."""
        now_ms = time.time_ns() // 1_000_000
        host_uuid = str(uuid.uuid4())
        rows = [{**row, 'host_uuid': host_uuid} for row in self._rows]
        events = [Event(host_uuid, row['kind'], row['identifier'], EVENTS[0], now_ms, row['instance_uuid'], None,
                        'claim', 'req')._asdict() for row in rows]
        began = time.perf_counter()
        for row, event in zip(rows, events, strict=True):
            with self._engine.begin() as connection:
                connection.execute(sa.insert(of_store.assignments), row)
                connection.execute(queries.ADD_EVENTS, event)
        return time.perf_counter() - began


def _pushes(host: _Pushing, effort: Effort) -> list[Row]:
    said = host.said()
    host.push(said)
    idle = side_by_side({PUSH: lambda: host.push(said), BARE: lambda: host.fleet.touch(said.host_uuid)},
                        effort.push_rounds)
    changed = side_by_side({PUSH: host.change, BARE: host.claims}, effort.change_rounds)
    milliseconds = [samples.median(name) * MILLISECONDS for samples in (idle, changed) for name in (PUSH, BARE)]
    ours, bare = (_processor(host.fleet, work, effort.push_rounds) for work in (
        lambda: host.push(said), lambda: host.fleet.touch(said.host_uuid)))
    return [Row('an idle push, to its two statements', idle.ratio(PUSH, BARE),
                note=f'{milliseconds[0]:.1f} ms to {milliseconds[1]:.1f} ms'),
            Row('idle pushes a second on two cores', 2 / sum(ours), at_least=40,
                note=f'{_shares(ours)}; the two statements alone: {_shares(bare)}'),
            Row(f'a push of {host.changes} changes, to the SQL of the claims', changed.ratio(PUSH, BARE), at_most=5,
                note=f'{milliseconds[2]:.1f} ms to {milliseconds[3]:.1f} ms')]


def _processor(fleet: _Fleet, work: Callable[[], object], rounds: int) -> tuple[float, float]:
    """The processor time that work takes here and on the server. Other work of the machine has no part in it."""
    began = time.process_time(), fleet.database.server.processor_s()
    for _ in range(rounds):
        work()
    return (time.process_time() - began[0]) / rounds, (fleet.database.server.processor_s() - began[1]) / rounds


def _shares(times: tuple[float, float]) -> str:
    client, server = (one * MILLISECONDS for one in times)
    return f'{client:.1f} ms of the client and {server:.1f} ms of the server'


def _said(host: fixtures.Host) -> push.Said:
    known = host.store.host(host.name)
    assert known is not None
    observer = report.Observer(known, fake.FakeDriver(host.name, host.conf, '', host.machine), host.store.store,
                               host.conf)
    return commands.said(known, observer.picture(), host.store.store, host.conf.devicetrack_fleet)


# -- the fleet ---------------------------------------------------------------------------------------------------------


class _Fleet:
    """A mirror on a server, with hosts of these numbers."""

    def __init__(self, stack: contextlib.ExitStack, database: type[databases.ServerStore], effort: Effort,
                 hosts: range) -> None:
        self.database = stack.enter_context(database(synced=False))
        url = self.database.server.text_url(self.database.database)
        self.engine = sa.create_engine(self.database.url(), poolclass=sa.pool.NullPool)
        configuration = stack.enter_context(fixtures.Configuration())
        configuration.set('devicetrack_fleet', connection=url)
        self._config_file = os.path.join(configuration.state_path, 'mirror.conf')
        with open(self._config_file, 'w', encoding='utf-8') as file:
            file.write(f'[devicetrack_fleet]\nconnection = {url}\n')
        self.mirror = mirrors.Mirror(configuration.conf)
        stack.callback(self.mirror.close)
        self.mirror.sync(days=0)
        self._fill(effort, hosts)

    def _fill(self, effort: Effort, hosts: range) -> None:
        # Servers make an index of many rows faster than they add rows to it.
        with self.mirror.unhurried() as database:
            tables = models.metadata.sorted_tables
            indexes = [index for table in tables for index in table.indexes]
            database.transact(lambda connection: [index.drop(connection) for index in indexes])
            with fixtures.Host(devices=effort.mirrored_devices // 2, name=f'compute-{_MARK}', parents={
                    f'gpu{number}': _OF_ONE_PARENT for number in range(
                        max(1, effort.mirrored_devices // 2 // _OF_ONE_PARENT))}) as host:
                self._push(host, effort)
            database.transact(lambda connection: _multiply(connection, hosts))
            if self.database.server.kind == 'PostgreSQL':
                with database.reading() as connection:
                    connection.execution_options(isolation_level='AUTOCOMMIT').exec_driver_sql('VACUUM ANALYZE')
        self.mirror.sync(days=0)

    def _push(self, host: fixtures.Host, effort: Effort) -> None:
        """Push the first of all hosts: half of its devices are held, and some are withheld."""
        for parent in list(host.machine.parents):
            host.machine.declare(MigrationType(fake.MDEV, parent, 'nvidia-35', Attribute('2.1.0')))
        host.audit()
        for number in range(effort.mirrored_devices // 4):
            host.spawn(fixtures.Instance(_instance(number)), pmem=1, vgpu=1)
        host.manager.operator.cordon('vpmem', f'd{effort.mirrored_devices // 2 - 1}', reason='firmware')
        said = _said(host)
        marked = f'{_MARK}00-0000-4000-8000-000000000000'
        for number, device in enumerate(said.devices):
            serial = f'S-{_MARK}-{number}'
            device.update(serial=serial, line=device['line'].replace('"serial": null', f'"serial": "{serial}"'))
        events = [StoredEvent(number, Event(
            marked, 'vpmem', f'd{number // 5 % effort.mirrored_devices}', EVENTS[number % 5],
            1_700_000_000_000 + number * 1000, _instance(number // 5), None, f'claim-{number // 5:x}', None, None, None,
            f'S-{_MARK}-{number // 5 % effort.mirrored_devices}')) for number in range(effort.mirrored_events)]
        push.push(self.mirror, _Past(events), said._replace(
            host_uuid=marked, columns={**said.columns, 'interval_s': 100_000},
            parts={name: text.replace(said.host_uuid, marked) for name, text in said.parts.items()}), time.monotonic())

    def ask(self, arguments: str) -> float:
        """The time of a command in this process."""
        said = io.StringIO()
        with open(os.devnull, 'w', encoding='utf-8') as output:
            began = time.perf_counter()
            code = manage.Manage(cfg.ConfigOpts(), output, said).run(
                self._words(arguments))
            took = time.perf_counter() - began
        _check(arguments, code, said.getvalue())
        return took

    def _words(self, arguments: str) -> list[str]:
        form = [] if 'fleet map' in arguments else ['-f', 'json']
        return ['--config-file', self._config_file, *arguments.split(), *form]

    def memory(self, arguments: str) -> float:
        """The most memory that a process of a command has."""
        done = subprocess.run([sys.executable, '-W', 'ignore', '-c', _MEASURED, *self._words(arguments)], text=True,
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
        _check(arguments, done.returncode, done.stderr)
        return int(done.stderr.split()[-2]) / 1024

    def touch(self, host_uuid: str) -> float:
        """The time of the two statements of a push without a change."""
        of_host = f"host_uuid = '{host_uuid}'"
        began = time.perf_counter()
        connection = self.engine.raw_connection()
        try:
            cursor = connection.cursor()
            cursor.execute(f'SELECT * FROM fleet_schema LEFT JOIN fleet_hosts ON {of_host}')
            cursor.fetchall()
            cursor.execute(f'UPDATE fleet_hosts SET read_at_ms = read_at_ms + 1 WHERE {of_host}')
            connection.commit()
        finally:
            connection.close()
        return time.perf_counter() - began

    def read(self, sql: str) -> float:
        """The time of statements and of all their rows, and of reading documents, which no SQL looks into."""
        began = time.perf_counter()
        connection = self.engine.raw_connection()
        try:
            cursor = connection.cursor()
            for statement in sql.split('; '):
                cursor.execute(statement)
                for row in cursor.fetchall():
                    if 'p.document' in statement:
                        json.loads(row[-1])
        finally:
            connection.close()
        return time.perf_counter() - began


def _check(arguments: str, code: int, said: str) -> None:
    """Check that a command has answered. The host that pushed is silent after some minutes, and then it says so."""
    if code not in (base.OK, base.ATTENTION):
        raise RuntimeError(f'{arguments}: exit code {code}: {said}')


class _Past:
    """The events of a store."""

    def __init__(self, events: Sequence[StoredEvent]) -> None:
        self._events = events

    def events_after(self, _host_uuid: str, number: int, limit: int) -> Sequence[StoredEvent]:
        return [one for one in self._events if one.number > number][:limit]


def _instance(number: int) -> str:
    return f'{_MARK}01-0000-4000-8000-{number:012x}'


def _multiply(connection: sa.Connection, hosts: range) -> None:
    """Make hosts with these numbers of the one that the mirror has."""
    first, *others = models.fleet_hosts, models.fleet_devices, models.fleet_parts, models.fleet_events
    [host] = connection.execute(sa.select(first)).mappings()
    connection.execute(sa.insert(first), [
        {name: value.replace(_MARK, f'{number:06x}') if isinstance(value, str) else value
         for name, value in host.items()} for number in hosts])
    for table in others:
        connection.execute(sa.insert(table).from_select(table.columns.keys(), sa.select(*[
            sa.func.replace(column, _MARK, sa.func.substr(first.c.host_uuid, 1, len(_MARK)))
            if isinstance(column.type, sa.String) else column for column in table.columns]).where(
            table.c.host_uuid == host['host_uuid'], first.c.host_uuid != host['host_uuid'])))
    for table in (first, *others):
        connection.execute(sa.delete(table).where(table.c.host_uuid == host['host_uuid']))
