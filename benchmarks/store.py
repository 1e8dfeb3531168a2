"""Compares a durable claim with a plain INSERT and COMMIT of the same row, on each database.

The claim is all of ``ClaimManager.instance_claim``: it reads allocations and flavor, holds and records the devices, and
makes the objects for the caller. The plain write is ``engine.begin()`` and ``execute(insert(table), row)`` of
SQLAlchemy Core: the same row of the same table in the same store. Its statement is compiled before. Its pool has an
open connection for every thread, with the store's own settings of durability. The rows are deleted between rounds,
outside the timing.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
import contextlib
import threading
import time
from typing import Any
import uuid

import sqlalchemy as sa

from benchmarks import fsyncs
from benchmarks.host import Host
from benchmarks.measure import Effort
from benchmarks.measure import side_by_side
from benchmarks.report import Row
from benchmarks.report import Table
from devicetrack.store.sql import models
from devicetrack.store.sql.store import SQLStore
from devicetrack.testing import databases

DATABASES: dict[str, type[databases.StoreFixture]] = {
    'SQLite': databases.SQLiteStore, 'PostgreSQL': databases.PostgreSQLStore, 'MariaDB': databases.MariaDBStore}
MICROSECONDS = 1e6
CLAIM, PLAIN = 'claim', 'plain'


def run(effort: Effort) -> Table:
    rows = []
    for name in DATABASES:
        rows += _rows_of(name, effort)
    rows.append(_fsyncs(effort))
    return Table('Durable claim, to a plain INSERT and COMMIT by SQLAlchemy Core', rows)


def _rows_of(name: str, effort: Effort) -> list[Row]:
    what = f'{name}, one thread: time'
    try:
        with contextlib.ExitStack() as stack:
            database = stack.enter_context(DATABASES[name](durable=effort.durable))
            devices = max(effort.rows, effort.threads * effort.rows_a_thread)
            host = stack.enter_context(Host(database.store, database.conf, devices))
            core = Core(database.store, effort.threads)
            stack.callback(core.close)
            return [*_one_thread(name, host, core, effort), *_threads(name, host, core, effort)]
    except Exception as error:
        return [Row(what, None, note=f'{type(error).__name__}: {error}'.splitlines()[0])]


def _one_thread(name: str, host: Host, core: Core, effort: Effort) -> list[Row]:
    samples = side_by_side({CLAIM: _claims(host, effort.rows), PLAIN: _inserts(host, core, effort.rows)},
                           effort.commit_rounds)
    claim, plain = (samples.median(subject) / effort.rows * MICROSECONDS for subject in (CLAIM, PLAIN))
    return [Row(f'{name}, one thread: time', samples.ratio(CLAIM, PLAIN), at_most=1.15,
                note=f'{claim:.0f} µs to {plain:.0f} µs')]


def _threads(name: str, host: Host, core: Core, effort: Effort) -> list[Row]:
    samples = side_by_side({CLAIM: _claims(host, effort.rows_a_thread, effort.threads),
                            PLAIN: _inserts(host, core, effort.rows_a_thread, effort.threads)},
                           effort.thread_rounds)
    count = effort.rows_a_thread * effort.threads
    claims, plain = (count / samples.median(subject) for subject in (CLAIM, PLAIN))
    return [Row(f'{name}, {effort.threads} threads: rate', samples.ratio(PLAIN, CLAIM), at_least=1.0,
                note=f'{claims:,.0f} to {plain:,.0f} a second')]


def _claims(host: Host, count: int, threads: int = 1) -> Callable[[], float]:
    def measure() -> float:
        work = [[host.instance() for _ in range(count)] for _ in range(threads)]
        took = in_threads(host.claim, work)
        host.take_back(instance for instances in work for instance in instances)
        return took

    return measure


def _inserts(host: Host, core: Core, count: int, threads: int = 1) -> Callable[[], float]:
    """The rows that claims would write, for another host."""
    instances = [host.instance() for _ in range(count * threads)]
    for instance in instances:
        host.claim(instance)
    rows = [record._replace(host_uuid=core.host_uuid)._asdict() for record in host.records_of(instances)]
    host.take_back(instances)
    work = [rows[index::threads] for index in range(threads)]

    def measure() -> float:
        took = in_threads(core.insert, work)
        core.delete()
        return took

    return measure


def in_threads(call: Callable[[Any], object], work: Sequence[Sequence[Any]]) -> float:
    """Call a function for each item of each thread's work. Returns the seconds from the first start to the last end.

    The calling thread does the work of one thread.
    """
    errors: list[BaseException] = []

    def do(items: Sequence[Any]) -> None:
        for item in items:
            call(item)

    def thread(items: Sequence[Any]) -> None:
        try:
            ready.wait()
            do(items)
        except BaseException as error:
            errors.append(error)

    if len(work) == 1:
        began = time.perf_counter()
        do(work[0])
        return time.perf_counter() - began
    ready = threading.Barrier(len(work) + 1)
    threads = [threading.Thread(target=thread, args=(items,)) for items in work]
    for one in threads:
        one.start()
    ready.wait()
    began = time.perf_counter()
    for one in threads:
        one.join()
    took = time.perf_counter() - began
    if errors:
        raise errors[0]
    return took


class Core:
    """SQLAlchemy Core on the database of a store."""

    def __init__(self, store: SQLStore, threads: int) -> None:
        self.host_uuid = str(uuid.uuid4())
        self._insert = sa.insert(models.assignments)
        # A thread waits for a lock as long as a thread of our store does.
        waits = {'timeout': store.backend.patience.busy_s} if store.path is not None else {}
        self._engine = sa.create_engine(store.engine.url, poolclass=sa.pool.QueuePool, pool_size=threads,
                                        max_overflow=0, connect_args=waits)

        @sa.event.listens_for(self._engine, 'connect')
        def prepare(connection: Any, record: Any) -> None:
            store.backend.prepare(connection)

        with contextlib.ExitStack() as stack:               # a connection for every thread
            for _ in range(threads):
                stack.enter_context(self._engine.connect())

    def insert(self, row: dict[str, Any]) -> None:
        with self._engine.begin() as connection:
            connection.execute(self._insert, row)

    def delete(self) -> None:
        with self._engine.begin() as connection:
            connection.execute(sa.delete(models.assignments)
                               .where(models.assignments.c.host_uuid == self.host_uuid))

    def close(self) -> None:
        self._engine.dispose()


def _fsyncs(effort: Effort) -> Row:
    what = 'SQLite: fsync or fdatasync a claim'
    try:
        return Row(what, fsyncs.a_claim(effort.fsyncs), 'calls', at_most=1, note='counted by strace')
    except fsyncs.NotCounted as error:
        return Row(what, None, note=str(error))
