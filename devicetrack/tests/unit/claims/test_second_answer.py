"""A call asks its service about a thing once, and goes by that answer to its end."""

from __future__ import annotations

import collections
from collections.abc import Callable
from collections.abc import Iterable
from typing import Any

from devicetrack import exception
from devicetrack.claims import public_calls
from devicetrack.testing import fixtures
from devicetrack.testing.compute_service import View
from devicetrack.tests.unit.claims.test_moving import RegionTestCase

UNDONE = ('reverted', 'failed', 'cancelled', 'error')
SILENCES: tuple[Any, ...] = (None, {}, RuntimeError('no database'))


class UndoneMoveTestCase(RegionTestCase):
    """A resize on one host was undone, the call that says so was lost, and the service answers only once."""

    def answers_once(self, silence: Any) -> None:
        said: list[Any] = []

        def migrations(uuids: Iterable[str]) -> Any:
            if said:
                if isinstance(silence, Exception):
                    raise silence
                return silence
            said.append(uuids)
            return View.migrations(self.one.service, list(uuids))

        self.patch(self.one.service, 'migrations', migrations)

    def test_a_guest_starts_on_the_devices_that_it_had(self) -> None:
        for status in UNDONE:
            for names_the_new_ones in (True, False):
                for silence in SILENCES:
                    region = self.region(devices=2)
                    instance = region.spawn('one', pmem=1)
                    before = self.one.machine.domains[instance.uuid].defined
                    migration = region.migration(instance, 'one')
                    self.one.resize(instance, pmem=1, migration=migration)
                    if names_the_new_ones and status != 'error':        # then a person must decide
                        region.finish_resize(instance, migration)
                    self.one.machine.stop_guest(instance.uuid)
                    migration.status = status
                    self.answers_once(silence)
                    self.one.boot(instance)
                    self.assertEqual(before, self.one.machine.domains[instance.uuid].live)

    def test_nor_does_one_without_devices_get_those_of_the_move(self) -> None:
        for status in UNDONE:
            for silence in SILENCES:
                region = self.region(devices=2)
                instance = region.spawn('one')
                migration = region.migration(instance, 'one')
                self.one.resize(instance, pmem=1, migration=migration)
                self.one.machine.stop_guest(instance.uuid)
                migration.status = status
                self.answers_once(silence)
                self.one.run_guest(instance)
                self.assertEqual((), self.one.machine.domains[instance.uuid].live)

    def test_an_answer_that_comes_only_later_counts_in_the_next_call(self) -> None:
        region = self.region(devices=2)
        instance = region.spawn('one', pmem=1)
        before = self.one.machine.domains[instance.uuid].defined
        migration = region.migration(instance, 'one')
        self.one.resize(instance, pmem=1, migration=migration)
        self.one.machine.stop_guest(instance.uuid)
        migration.status = 'reverted'
        silent = [None]
        self.patch(self.one.service, 'migrations',
                   lambda uuids: silent.pop() if silent else View.migrations(self.one.service, list(uuids)))
        self.assertRaises(exception.MigrationUndecided, self.one.manager.realize, None, instance)
        self.one.boot(instance)
        self.assertEqual(before, self.one.machine.domains[instance.uuid].live)


class AskedOnceTestCase(RegionTestCase):
    """No public call, and no look of an audit, asks a second time about an instance or a migration."""

    def setUp(self) -> None:
        super().setUp()
        self.moves = self.region(devices=4)
        self.asked: collections.Counter[tuple[str, str, str]] = collections.Counter()
        for name, host in self.moves.hosts.items():
            for question in ('instances', 'migrations', 'evacuated_from_here'):
                self.patch(host.service, question, self._counting(name, question, getattr(host.service, question)))

    def _counting(self, name: str, question: str, answer: Callable[..., Any]) -> Callable[..., Any]:
        def asked(*uuids: Any) -> Any:
            self.asked.update((name, question, uuid) for uuid in (uuids[0] if uuids else ('',)))
            return answer(*uuids)
        return asked

    def once(self, call: Callable[..., Any], *arguments: Any, looks: int = 1, **named: Any) -> None:
        self.asked.clear()
        call(*arguments, **named)
        self.assertEqual({}, {about: times for about, times in self.asked.items()
                              if times > (looks if about[1] != 'evacuated_from_here' else 1)})

    def lost_revert(self) -> tuple[Any, Any]:
        instance = self.moves.spawn('one', pmem=1)
        migration = self.moves.resize(instance, 'one', pmem=1)
        self.one.machine.stop_guest(instance.uuid)
        migration.status = 'reverted'
        return instance, migration

    def test_before_a_guest_starts(self) -> None:
        instance, _migration = self.lost_revert()
        self.once(self.one.manager.realize, None, instance)

    def test_when_it_has_started(self) -> None:
        instance, _migration = self.lost_revert()
        self.once(self.one.manager.started, None, instance)

    def test_at_a_claim_that_finds_an_earlier_move(self) -> None:
        instance, _migration = self.lost_revert()
        move = self.moves.migration(instance, 'one')
        self.once(self.one.manager.resize_claim, None, instance, 'one', fixtures.a_request(pmem=1), move)

    def test_at_a_claim_whose_earlier_move_is_forgotten(self) -> None:
        instance = self.moves.spawn('two', pmem=1)
        forgotten = self.moves.migration(instance, 'one')
        self.one.resize(instance, pmem=1, migration=forgotten)
        self.moves.migrations.remove(forgotten)
        self.moves.instances.remove(instance)
        move = self.moves.migration(instance, 'one')
        self.once(self.one.manager.resize_claim, None, instance, 'one', fixtures.a_request(pmem=1), move)

    def test_at_the_ends_of_a_move(self) -> None:
        for drop in (lambda instance, move: self.one.manager.drop_move_claim_at_source(None, instance, move),
                     lambda instance, move: self.one.manager.update_usage(None, instance, 'one'),
                     lambda instance, move: self.one.manager.drop_move_claim(None, instance, 'one', prefix='old_')):
            for first in (True, False):
                instance = self.moves.spawn('two', pmem=1)
                self.moves.confirm(instance, self.moves.resize(instance, 'one', pmem=1))  # its end is not heard here
                move = self.moves.migration(instance, 'two')
                self.two.resize(instance, pmem=1, migration=move)
                if not first:
                    self.moves.finish_resize(instance, move)
                    move.status, instance.migration_context = 'confirmed', None
                    self.one.machine.delete_guest(instance.uuid)
                try:
                    self.once(drop, instance, move)
                except exception.BadRequest:
                    self.assertNotEqual({}, self.asked)
                move.status = 'error' if first else 'confirmed'
                self.moves.audit()
                self.moves.delete(instance)
                self.moves.audit()

    def test_at_a_revert(self) -> None:
        instance = self.moves.spawn('one', pmem=1)
        move = self.moves.resize(instance, 'two', pmem=1)
        move.status, instance.migration_context = 'reverting', None
        self.two.machine.delete_guest(instance.uuid)
        self.once(self.two.manager.drop_move_claim, None, instance, 'two')

    def test_at_the_abort_of_a_claim(self) -> None:
        for where in ('one', 'two'):
            instance = self.moves.spawn('one', pmem=1)
            move = self.moves.migration(instance, where)
            host = self.moves.hosts[where]
            claim = host.manager.resize_claim(host.context, instance, where, fixtures.a_request(pmem=1), move)
            move.status = 'error'
            self.once(claim.abort)

    def test_in_the_work_that_an_operator_asked_for(self) -> None:
        instance, _migration = self.lost_revert()
        ask = self.one.running.service.instances
        with public_calls.during(None):
            self.once(ask, [instance.uuid])
            self.once(ask, [instance.uuid], looks=0)

    def test_in_an_audit(self) -> None:
        instance, _migration = self.lost_revert()
        self.once(self.one.audit, looks=2)
        evacuated = self.moves.evacuate(instance, 'two', pmem=1)
        self.assertEqual('done', evacuated.status)
        self.once(self.one.audit, looks=2)
