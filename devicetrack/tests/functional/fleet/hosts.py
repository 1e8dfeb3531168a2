"""Hosts that push, and what a mirror should say of them."""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import os
import sqlite3
import time
from typing import Any

import fixtures as base_fixtures
import sqlalchemy as sa

from devicetrack.claims import recovery
from devicetrack.claims import report
from devicetrack.cmd import fleet
from devicetrack.fleet import models
from devicetrack.fleet import push
from devicetrack.fleet.mirror import Mirror
from devicetrack.store.sql.store import SQLStore
from devicetrack.testing import databases
from devicetrack.testing import fake
from devicetrack.testing import fixtures


class Killed(BaseException):
    """The process of a push ends here."""


class PushingHost(base_fixtures.Fixture):
    """A host with a manager, a machine in memory and an SQLite store, that pushes to a mirror."""

    def __init__(self, name: str, devices: int = 4, parents: dict[str, int] | None = None) -> None:
        self.name, self._devices, self._parents = name, devices, parents

    def _setUp(self) -> None:
        configuration = self.useFixture(fixtures.Configuration(machine=self.name))
        self.host = self.useFixture(fixtures.Host(
            devices=self._devices, parents=self._parents, name=self.name, configuration=configuration))

    @property
    def store(self) -> SQLStore:
        """The store on SQLite."""
        store = self.host.store.store
        assert isinstance(store, SQLStore)
        return store

    @property
    def uuid(self) -> str:
        found = self.host.store.host(self.name)
        assert found is not None
        return found.uuid

    def said(self) -> push.Said:
        """What the host says of itself now."""
        host = self.host.store.host(self.name)
        assert host is not None
        observer = report.Observer(host, fake.FakeDriver(self.name, self.host.conf, '', self.host.machine),
                                   self.store, self.host.conf)
        return fleet.said(host, observer.picture(), self.store, self.host.conf.devicetrack_fleet)

    def push(self, mirror: Mirror) -> push.Pushed:
        began = time.monotonic()
        return push.push(mirror, self.store, self.said(), began)

    def backup(self) -> bytes:
        """A copy of the store's file."""
        with contextlib.closing(sqlite3.connect(str(self.store.path))) as found:
            return found.serialize()

    def restore(self, backup: bytes) -> None:
        """Put a copy in place of the store's file, and start the manager again."""
        with open(os.open(self._remove(), os.O_WRONLY | os.O_CREAT, 0o600), 'wb') as file:
            file.write(backup)
        self.host.restart()

    def lose(self) -> None:
        """Lose the file of the store, rebuild it from the guests as an operator does, and start the manager again."""
        databases.write_empty_sqlite(self._remove())
        driver = fake.FakeDriver(self.name, self.host.conf, '', self.host.machine)
        recovery.write(recovery.plan(self.name, driver, self.store, self.host.conf), self.store)
        self.host.restart()

    def _remove(self) -> str:
        """Remove the file of the store. Returns its path."""
        self.host.manager.close()
        self.store.engine.dispose()
        path = str(self.store.path)
        for name in ('', '-wal', '-shm'):
            with contextlib.suppress(FileNotFoundError):
                os.remove(path + name)
        return path

    def events(self) -> set[str]:
        """The digests of the events that the store has."""
        return {push.digest_of(one) for one in self.store.events_after(self.uuid, 0, 10 ** 6)}


def mirrored(mirror: Mirror, host_uuid: str) -> push.Said | None:
    """What a mirror says of a host that it knows, in one transaction."""
    with mirror.reading() as connection:
        hosts = models.fleet_hosts
        row = connection.execute(sa.select(hosts).where(hosts.c.host_uuid == host_uuid)).mappings().one_or_none()
        if row is None:
            return None
        devices, parts = models.fleet_devices, models.fleet_parts
        found = connection.execute(sa.select(devices).where(devices.c.host_uuid == host_uuid).order_by(
            devices.c.position)).mappings().all()
        documents = connection.execute(sa.select(parts.c.part, parts.c.document).where(
            parts.c.host_uuid == host_uuid)).all()
    ours = ('host_uuid', 'cursor_since', 'cursor_number', 'cursor_digest', 'picture', 'read_at_ms', 'host_read_at_ms',
            'trimmed_at_ms', 'forgotten_at_ms')
    return push.Said(host_uuid, {name: value for name, value in row.items() if name not in ours}, [
        {name: value for name, value in one.items() if name not in ('host_uuid', 'position', 'digest')}
        for one in found], dict(map(tuple, documents)))


def events_in(mirror: Mirror, host_uuid: str) -> list[str]:
    """The digests of the events of a host that a mirror has."""
    events = models.fleet_events
    return [found for found, in mirror.rows(sa.select(events.c.digest).where(events.c.host_uuid == host_uuid))]


def interrupted(mirror: Mirror, at: int, work: Callable[[], Any]) -> bool:
    """Do something, and die before a statement to the mirror, or after the last one before COMMIT.

    :param at: the number of the statement, from 0; each COMMIT counts as one
    :returns: whether it came so far
    """
    left = [at]

    def step(*_given: Any, **_named: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Killed

    for event in ('before_cursor_execute', 'commit'):
        sa.event.listen(mirror.engine, event, step)
    try:
        work()
    except Killed:
        return True
    finally:
        for event in ('before_cursor_execute', 'commit'):
            sa.event.remove(mirror.engine, event, step)
    return False
