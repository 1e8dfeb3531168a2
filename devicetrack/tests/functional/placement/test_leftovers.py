"""A process that is killed while it ends a move, and the next one, which finds what it left in the store."""

from __future__ import annotations

from typing import Any

from devicetrack import exception
from devicetrack.engine import migrations
from devicetrack.objects.values import Leftover
from devicetrack.placement import errors
from devicetrack.placement.allocations import AllocationClient
from devicetrack.placement.values import Outcome
from devicetrack.store.leftovers import HostLeftovers
from devicetrack.testing import fixtures
from devicetrack.testing import placement as placements
from devicetrack.testing.http_proxy import Loss
from devicetrack.tests import base
from devicetrack.tests import processes
from devicetrack.tests.functional.placement import ending
from devicetrack.tests.functional.placement import worlds
from devicetrack.tests.unit.cmd import program as programs


class LeftoversTestCase(base.TestCase):
    """A host whose service has moved a guest away, which is to be confirmed or reverted."""

    def setUp(self) -> None:
        super().setUp()
        self.world = self.useFixture(worlds.World())
        worlds.CASES['confirm'].prepare(self.world)
        self.host = self.useFixture(fixtures.Host())
        self.leftover = Leftover(self.world.instance, self.world.migration)
        self.begin()
        self.migration = fixtures.Migration(uuid=self.world.migration, status='confirming')

    def begin(self) -> None:
        """What the service makes after each start of its manager."""
        self.leftovers = HostLeftovers(self.host.manager.store, self.host.manager.host_uuid)
        self.client = AllocationClient(self.world.placement.client, leftovers=self.leftovers)

    def is_completed(self, migration_uuid: str) -> bool | None:
        """The service's word."""
        self.assertEqual(self.migration.uuid, migration_uuid)
        return migrations.is_completed(self.migration.status)

    def finish(self) -> list[Any]:
        return list(self.client.finish_moves(self.is_completed).values())


class TestKilled(LeftoversTestCase):
    scenarios = base.table(
        ('before it reads for a confirm', 'confirm', 'GET', Loss.REQUEST, True),
        ('before it writes a confirm', 'confirm', 'PUT', Loss.REQUEST, True),
        ('before it hears that a confirm was written', 'confirm', 'PUT', Loss.ANSWER, False),
        ('before it reads for a revert', 'revert', 'GET', Loss.REQUEST, True),
        ('before it writes a revert', 'revert', 'POST', Loss.REQUEST, True),
        ('before it hears that a revert was written', 'revert', 'POST', Loss.ANSWER, False),
        names=('how', 'method', 'loss', 'holds'))
    how: str
    method: str
    loss: Loss
    holds: bool

    def test_the_next_process_goes_on(self) -> None:
        config_file = programs.write_configuration(
            self.temp_dir(), self.host.conf, '[placement]', 'auth_type = admin_token',
            f'endpoint = {self.world.placement.url}', f'token = {placements.TOKEN}')
        process = processes.Process(ending.__name__, self.how, config_file, self.host.manager.host_uuid,
                                    *self.leftover)
        self.world.proxy.before_next(self.method, '/allocations', process.kill, self.loss)
        process.communicate()
        self.assertEqual(-9, process.returncode)
        self.assertEqual(([self.leftover], self.holds), (self.leftovers.kept(), 'migration' in self.world.held()))

        self.host.restart()
        self.begin()
        for self.migration.status in ('confirming', 'error', 'a new word'):
            self.assertEqual([], self.finish())
            self.assertEqual((self.holds, self.holds), (bool(self.leftovers.kept()), 'migration' in self.world.held()))
        self.migration.status = {'confirm': 'confirmed', 'revert': 'reverted'}[self.how]
        self.assertEqual([], self.finish())
        has = self.world.new if self.how == 'confirm' else self.world.old
        self.assertEqual(({'instance': has}, []), (self.world.held(), self.leftovers.kept()))


class TestRemove(LeftoversTestCase):
    def conflict(self) -> None:
        self.world.proxy.before_next('PUT', '/allocations/', lambda: self.world.touch(self.world.migration))
        self.assertRaises(errors.ConsumerConflict, self.client.confirm, *self.leftover)

    def test_nothing_of_a_move_that_goes_on(self) -> None:
        self.conflict()
        self.assertEqual([], self.finish())
        self.assertEqual(({'instance', 'migration'}, [self.leftover]), (set(self.world.held()), self.leftovers.kept()))

    def test_one_that_fails_keeps_none_of_the_others(self) -> None:
        self.conflict()
        self.migration.status = 'completed'
        other = self.leftover._replace(migration_uuid='0' * 36)
        self.leftovers.record(other)
        self.world.proxy.at_next('GET', f'/allocations/{other.migration_uuid}', Loss.REQUEST)
        self.world.proxy.at_next('GET', f'/allocations/{other.migration_uuid}', Loss.REQUEST)
        failed = self.client.finish_moves(lambda migration_uuid: True)
        self.assertEqual([other], list(failed))
        self.assertEqual(({'instance'}, [other]), (set(self.world.held()), self.leftovers.kept()))

    def test_what_was_reverted_by_somebody_else_is_forgotten(self) -> None:
        self.conflict()
        self.migration.status = 'reverted'
        AllocationClient(self.world.direct).revert(*self.leftover)
        self.assertEqual(([], []), (self.finish(), self.leftovers.kept()))
        self.assertEqual({'instance': self.world.old}, self.world.held())

    def test_without_a_store_nothing_is_sent(self) -> None:
        self.host.store.before('add_leftover', exception.StoreUnavailable('store', 'gone'))
        self.assertRaises(exception.StoreUnavailable, self.client.confirm, *self.leftover)
        self.assertEqual([], self.world.placement.requests)

    def test_a_note_that_cannot_be_taken_back_spoils_no_confirm(self) -> None:
        self.host.store.before('remove_leftover', exception.StoreUnavailable('store', 'gone'))
        self.assertEqual(Outcome.DONE, self.client.confirm(*self.leftover).outcome)
        self.assertEqual([self.leftover], self.leftovers.kept())
        self.assertEqual(([], []), (self.finish(), self.leftovers.kept()))


class TestRevert(LeftoversTestCase):
    def test_of_an_instance_that_was_deleted_meanwhile(self) -> None:
        self.leftovers.record(self.leftover)
        AllocationClient(self.world.direct).delete(self.world.instance)
        self.migration.status = 'reverted'
        self.assertEqual(([], {}, []), (self.finish(), self.world.held(), self.leftovers.kept()))

    def test_without_a_store_nothing_is_sent(self) -> None:
        self.host.store.before('add_leftover', exception.StoreUnavailable('store', 'gone'))
        self.assertRaises(exception.StoreUnavailable, self.client.revert, *self.leftover)
        self.assertEqual([], self.world.placement.requests)

    def test_what_the_instance_got_meanwhile_goes_too(self) -> None:
        """Its migration has everything that it had before."""
        self.leftovers.record(self.leftover)
        self.world.touch(self.world.instance)
        self.migration.status = 'cancelled'
        self.assertEqual([], self.finish())
        self.assertEqual({'instance'}, set(self.world.held()))
        self.assertEqual([], self.leftovers.kept())
