"""What pushes leave in a mirror, on each database."""

from __future__ import annotations

import time
from typing import Any

import fixtures as base_fixtures
import sqlalchemy as sa

from devicetrack import exception
from devicetrack.fleet import models
from devicetrack.fleet import push
from devicetrack.store.api import Changes
from devicetrack.testing import fixtures
from devicetrack.tests import base
from devicetrack.tests.functional.fleet import hosts
from devicetrack.tests.functional.fleet.test_mirror import MirrorTestCase

_DAY_MS = 86_400_000


class PushTestCase(MirrorTestCase):
    """A test with an empty mirror and a host."""

    def setUp(self) -> None:
        super().setUp()
        self.mirror.sync(days=30)
        self.pushing = self.useFixture(hosts.PushingHost('compute-1', parents={'gpu': 2}))
        self.host = self.pushing.host

    def push(self, pushing: hosts.PushingHost | None = None) -> push.Pushed:
        return (pushing or self.pushing).push(self.mirror)

    def check(self, pushing: hosts.PushingHost | None = None) -> None:
        """The mirror says exactly what the host says, and has all of its events once."""
        pushing = pushing or self.pushing
        self.assertEqual(pushing.said(), hosts.mirrored(self.mirror, pushing.uuid))
        found = hosts.events_in(self.mirror, pushing.uuid)
        self.assertEqual(len(set(found)), len(found))
        self.assertEqual(set(), pushing.events() - set(found))

    def row(self, name: str = 'compute-1') -> Any:
        """The row of a host that is not forgotten."""
        found = self.mirror.rows(sa.select(models.fleet_hosts).where(
            models.fleet_hosts.c.name == name, models.fleet_hosts.c.forgotten_at_ms.is_(None)))
        return found[0] if found else None

    def set_back(self, **back: int) -> None:
        """Set columns of all hosts back by so many milliseconds."""
        self.mirror.transact(lambda connection: connection.execute(sa.update(models.fleet_hosts).values(
            {name: models.fleet_hosts.c[name] - ms for name, ms in back.items()})))


class TestPush(PushTestCase):
    def test_the_mirror_says_what_the_host_says(self) -> None:
        instance = self.host.spawn(pmem=2, vgpu=1)
        self.host.manager.operator.cordon('vpmem', 'd3', reason='bad')
        pushed = self.push()
        self.assertEqual(push.Pushed(True, len(self.pushing.events())), pushed)
        self.check()
        self.host.delete(instance)
        self.host.manager.operator.uncordon('vpmem', 'd3')
        self.assertTrue(self.push().changed)
        self.check()

    def test_nothing_changed_nothing_is_written_but_the_moment_with_two_statements(self) -> None:
        self.host.spawn(pmem=2)
        self.push()
        before = self.row()._mapping
        said: list[str] = []
        sa.event.listen(self.mirror.engine, 'before_cursor_execute',
                        lambda _connection, _cursor, statement, *_others: said.append(statement))
        self.assertEqual(push.Pushed(False, 0), self.push())
        self.assertEqual(['SELECT', 'UPDATE'], [statement.split()[0] for statement in said])
        self.assertIn('SET read_at_ms=', said[1])
        self.assertEqual({'read_at_ms', 'host_read_at_ms'} | {
            name for name, value in self.row()._mapping.items() if before[name] == value},
            set(models.fleet_hosts.columns.keys()))

    def test_a_change_writes_the_rows_that_changed(self) -> None:
        self.push()
        self.host.spawn(pmem=1)
        written: dict[str, int] = {}

        def count(_connection: Any, _cursor: Any, statement: str, parameters: Any, _context: Any, many: bool) -> None:
            words = statement.split()
            if words[0] == 'INSERT' and 'fleet_devices' in statement:
                written[words[0]] = written.get(words[0], 0) + (len(parameters) if many else 1)

        sa.event.listen(self.mirror.engine, 'before_cursor_execute', count)
        self.push()
        self.assertEqual({'INSERT': 1}, written)
        self.check()

    def test_every_answer_has_an_age_by_the_clock_of_the_mirror(self) -> None:
        push.push(self.mirror, self.pushing.store, self.pushing.said(), began=time.monotonic() - 30)
        [(age_ms,)] = self.mirror.rows(sa.select(models.now_ms() - models.fleet_hosts.c.read_at_ms))
        self.assertTrue(30_000 <= age_ms < 30_000 + 1000 * base.HANGS_S, age_ms)

    def test_all_of_a_host_or_nothing_at_each_statement(self) -> None:
        self.useFixture(base_fixtures.MonkeyPatch('devicetrack.fleet.push.BATCH', 3))
        self.useFixture(base_fixtures.MonkeyPatch('devicetrack.fleet.push.WINDOW', 2))
        said: list[push.Said | None] = [None]
        for change in (lambda: self.host.spawn(pmem=2, vgpu=1), lambda: self.host.spawn(pmem=1)):
            change()
            said.append(self.pushing.said())
            at = 0
            while hosts.interrupted(self.mirror, at, self.push):
                self.assertIn(hosts.mirrored(self.open(), self.pushing.uuid), said)
                self.assertEqual(set(), set(hosts.events_in(self.open(), self.pushing.uuid)) - self.pushing.events())
                at += 1
            self.assertGreater(at, 3)
            self.check()


class TestCursor(PushTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.useFixture(base_fixtures.MonkeyPatch('devicetrack.fleet.push.BATCH', 4))
        self.useFixture(base_fixtures.MonkeyPatch('devicetrack.fleet.push.WINDOW', 3))

    def live(self, times: int = 1) -> None:
        for _time in range(times):
            self.host.delete(self.host.spawn(pmem=1))

    def test_events_of_days_come_in_batches(self) -> None:
        self.live(5)
        self.assertEqual(len(self.pushing.events()), self.push().events)
        self.check()
        self.live()
        self.assertEqual(5, self.push().events)
        self.assertEqual(0, self.push().events)
        self.check()

    def test_a_restored_store_is_mirrored_anew_and_the_history_stays(self) -> None:
        self.live()
        backup = self.pushing.backup()
        self.live(2)
        self.push()
        before = set(hosts.events_in(self.mirror, self.pushing.uuid))
        self.pushing.restore(backup)
        self.push()
        self.check()
        self.live(3)
        self.push()
        self.check()
        self.assertEqual(before, before & set(hosts.events_in(self.mirror, self.pushing.uuid)))

    def test_a_trimmed_history_is_no_loss(self) -> None:
        self.live(3)
        self.push()
        before = hosts.events_in(self.mirror, self.pushing.uuid)
        self.pushing.store.trim_events(self.pushing.uuid, 0, len(before) - 1, 1000)
        self.push()
        self.assertEqual(sorted(before), sorted(hosts.events_in(self.mirror, self.pushing.uuid)))
        self.live()
        self.push()
        self.check()

    def test_an_event_that_is_committed_late_comes_too(self) -> None:
        self.live(2)
        store = self.pushing.store
        late = store.events_after(self.pushing.uuid, 0, 1000)[-2]
        from devicetrack.store.sql import models as of_store
        store.transact(lambda connection: connection.execute(sa.delete(of_store.events).where(
            of_store.events.c.number == late.number)))
        self.push()
        store.transact(lambda connection: connection.execute(sa.insert(of_store.events).values(
            number=late.number, **late.event._asdict())))
        self.push()
        self.check()

    def test_a_lost_store_that_is_made_anew_has_another_uuid_and_one_name(self) -> None:
        self.host.spawn(pmem=1)
        self.push()
        old, before = self.pushing.uuid, hosts.events_in(self.mirror, self.pushing.uuid)
        store = self.pushing.store
        host = store.host('compute-1')
        assert host is not None
        store.write(Changes(delete=tuple(store.records_of_host(old))))
        store.replace_host(host, host._replace(uuid='7c9e6f2e-3a58-4a0e-8a53-0b8a3f8f0001'))
        self.push()
        self.check()
        self.assertEqual(self.pushing.uuid, self.row().host_uuid)
        gone = hosts.mirrored(self.mirror, old)
        assert gone is not None
        self.assertEqual(([], {}), (gone.devices, gone.parts))
        self.assertEqual(sorted(before), sorted(hosts.events_in(self.mirror, old)))

    def test_a_mirror_that_was_lost_gets_everything_again(self) -> None:
        self.live(2)
        self.push()
        with self.mirror.unhurried() as database:
            database.transact(models.metadata.drop_all)
        self.assertRaises(exception.SchemaMismatch, self.push)
        self.mirror.sync(days=30)
        self.push()
        self.check()


class TestNames(PushTestCase):
    def test_another_machine_of_the_name_is_refused_until_the_first_is_silent(self) -> None:
        self.push()
        other = self.useFixture(hosts.PushingHost('compute-2'))
        self.mirror.transact(lambda connection: connection.execute(
            sa.update(models.fleet_hosts).values(name='compute-2')))
        self.assertRaises(exception.MirrorHasHost, self.push, other)
        self.set_back(read_at_ms=3 * 60_000 + 1000)
        self.push(other)
        self.check(other)
        self.assertEqual(other.uuid, self.row('compute-2').host_uuid)
        self.push()                             # its real name is another one, so it is back
        self.check()

    def test_a_forgotten_host_keeps_its_history_and_may_come_back(self) -> None:
        self.host.spawn(pmem=1)
        self.push()
        before = hosts.events_in(self.mirror, self.pushing.uuid)
        self.assertRaises(exception.BadRequest, push.forget, self.mirror, 'compute-1')
        self.set_back(read_at_ms=3 * 60_000 + 1000)
        self.assertRaises(exception.BadRequest, push.forget, self.mirror, 'compute-9')
        self.assertEqual(self.pushing.uuid, push.forget(self.mirror, 'compute-1'))
        gone = hosts.mirrored(self.mirror, self.pushing.uuid)
        assert gone is not None
        self.assertEqual(([], {}), (gone.devices, gone.parts))
        self.assertEqual(before, hosts.events_in(self.mirror, self.pushing.uuid))
        self.assertIsNone(self.row())
        self.assertTrue(self.push().changed)
        self.check()


class TestReleases(PushTestCase):
    def test_a_newer_host_waits_and_an_older_one_pushes(self) -> None:
        self.set_format(models.FORMAT - 1)
        error = self.assertRaises(exception.SchemaMismatch, self.push)
        self.assertIn('hosts of this release wait', error.remedy)
        self.set_format(models.FORMAT + 1)
        self.push()
        self.check()

    def set_format(self, number: int) -> None:
        self.mirror.transact(lambda connection: connection.execute(
            sa.update(models.fleet_schema).values(format=number)))


class TestDays(PushTestCase):
    def test_events_end_by_the_days_of_the_mirror_also_those_of_a_silent_host(self) -> None:
        silent = self.useFixture(hosts.PushingHost('compute-2'))
        for one in (self.pushing, silent):
            one.host.spawn(pmem=1)
            self.push(one)
        self.mirror.transact(lambda connection: connection.execute(sa.update(models.fleet_events).values(
            arrived_at_ms=models.fleet_events.c.arrived_at_ms - 31 * _DAY_MS)))
        self.push()
        self.assertNotEqual([], hosts.events_in(self.mirror, self.pushing.uuid))
        self.set_back(trimmed_at_ms=_DAY_MS)
        self.push()
        self.assertEqual([], hosts.events_in(self.mirror, self.pushing.uuid))
        self.assertNotEqual([], hosts.events_in(self.mirror, silent.uuid))
        push.trim_all(self.mirror)
        self.assertEqual([], hosts.events_in(self.mirror, silent.uuid))
        self.host.spawn(pmem=1)
        self.push()
        self.assertEqual(3, len(hosts.events_in(self.mirror, self.pushing.uuid)))


class TestAway(PushTestCase):
    def test_a_mirror_that_is_away_costs_nothing_and_gets_everything_later(self) -> None:
        self.push()
        self.options.set_override('connection', 'postgresql+psycopg2://nobody@127.0.0.1:1/none', 'devicetrack_fleet')
        away = self.open()
        self.assertRaises(exception.StoreUnavailable, self.pushing.push, away)
        self.host.claim(fixtures.Instance(), pmem=1)
        self.push()
        self.check()
