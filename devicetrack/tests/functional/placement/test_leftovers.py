"""A process that is killed while it ends a move, and the next one, which finds what it left in the store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
import uuid

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.engine import migrations
from devicetrack.objects.values import Leftover
from devicetrack.placement import errors
from devicetrack.placement import values
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
        self.ends = self.world.instance, self.world.migration
        self.leftover = Leftover(*self.ends, vocabulary.CONFIRM)
        self.begin()
        self.migration = fixtures.Migration(uuid=self.world.migration, status='confirming')

    def begin(self) -> None:
        """What the service makes after each start of its manager."""
        self.leftovers = HostLeftovers(self.host.manager.store, self.host.manager.state().host_uuid)
        self.client = AllocationClient(self.world.placement.client, leftovers=self.leftovers)

    def is_completed(self, migration_uuid: str) -> bool | None:
        """The service's word."""
        self.assertEqual(self.migration.uuid, migration_uuid)
        return migrations.is_completed(self.migration.status)

    def finish(self, is_deleted: Callable[[str], bool | None] | None = None) -> list[Any]:
        return list(self.client.finish_moves(self.is_completed, is_deleted).values())


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
        process = processes.Process(ending.__name__, self.how, config_file, self.host.manager.state().host_uuid,
                                    *self.ends)
        self.world.proxy.before_next(self.method, '/allocations', process.kill, self.loss)
        process.communicate()
        self.assertEqual(-9, process.returncode)
        self.assertEqual(([Leftover(*self.ends, self.how)], self.holds),
                         (self.leftovers.kept(), 'migration' in self.world.held()))

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
        self.assertRaises(errors.ConsumerConflict, self.client.confirm, *self.ends)

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

    def test_a_damaged_note_keeps_none_of_the_others(self) -> None:
        """Neither what the instance holds nor what its migration holds changes; the note waits for a person."""
        self.conflict()
        held = self.world.held()
        other = Leftover(self.world.instance, self.world.migration, vocabulary.REVERT, '{"x": {"VC')
        confirmed = Leftover(str(uuid.uuid4()), str(uuid.uuid4()), vocabulary.CONFIRM)
        self.world.leftovers.notes = [other, confirmed]
        client = AllocationClient(self.world.placement.client, leftovers=self.world.leftovers)
        for _call in range(2):
            failed = client.finish_moves(lambda migration_uuid: migration_uuid == confirmed.migration_uuid)
            self.assertEqual([other], list(failed))
            self.assertIsInstance(failed[other], exception.MalformedObject)
            self.assertIn(f'the note of migration {other.migration_uuid}: ', str(failed[other]))
            self.assertEqual(([other], held), (self.world.leftovers.notes, self.world.held()))
        self.assertEqual({}, client.finish_moves(lambda _uuid: True))
        self.assertEqual(({'instance'}, []), (set(self.world.held()), self.world.leftovers.notes))

    def test_an_error_of_the_service_about_one_keeps_none_of_the_others(self) -> None:
        self.conflict()
        broken = [Leftover(str(uuid.uuid4()), str(uuid.uuid4()), vocabulary.CONFIRM) for _note in range(2)]
        for leftover in broken:
            self.leftovers.record(leftover)
            self.world.write(leftover.migration_uuid, {self.world.source: {worlds.CPU: 1}}, values.MIGRATION)

        def is_completed(migration_uuid: str) -> bool:
            if migration_uuid != self.world.migration:
                raise ConnectionError('no answer')
            return True

        self.assertEqual({}, self.client.finish_moves(is_completed))
        self.assertCountEqual(broken, self.leftovers.kept())
        for leftover in broken:
            self.assertTrue(self.world.direct.get_allocations(leftover.migration_uuid).exists)

    def test_what_was_reverted_by_somebody_else_is_forgotten(self) -> None:
        self.conflict()
        self.migration.status = 'reverted'
        AllocationClient(self.world.direct).revert(*self.ends)
        self.assertEqual(([], []), (self.finish(), self.leftovers.kept()))
        self.assertEqual({'instance': self.world.old}, self.world.held())

    def test_without_a_store_nothing_is_sent(self) -> None:
        self.host.store.before('add_leftover', exception.StoreUnavailable('store', 'gone'))
        self.assertRaises(exception.StoreUnavailable, self.client.confirm, *self.ends)
        self.assertEqual([], self.world.placement.requests)

    def test_a_note_that_cannot_be_taken_back_spoils_no_confirm(self) -> None:
        self.host.store.before('remove_leftover', exception.StoreUnavailable('store', 'gone'))
        self.assertEqual(Outcome.DONE, self.client.confirm(*self.ends).outcome)
        self.assertEqual([self.leftover], self.leftovers.kept())
        self.assertEqual(([], []), (self.finish(), self.leftovers.kept()))


class TestRevert(LeftoversTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.leftover = self.leftover._replace(verb=vocabulary.REVERT)

    def test_of_an_instance_that_was_deleted_meanwhile(self) -> None:
        self.leftovers.record(self.leftover)
        AllocationClient(self.world.direct).delete(self.world.instance)
        self.migration.status = 'reverted'
        self.assertEqual(([], {}, []), (self.finish(lambda _uuid: True), self.world.held(), self.leftovers.kept()))

    def test_of_an_instance_that_lost_its_allocations_gives_them_back(self) -> None:
        """Deleted after a claim that failed, for example."""
        AllocationClient(self.world.direct).delete(self.world.instance)
        self.assertRaises(errors.UnknownConsumer, self.client.revert, *self.ends, old=self.world.old)
        self.migration.status = 'failed'
        self.assertEqual(([], {'instance': self.world.old}, []),
                         (self.finish(lambda _uuid: False), self.world.held(), self.leftovers.kept()))
        found = self.world.direct.get_allocations(self.world.instance)
        self.assertEqual((worlds.PROJECT, worlds.USER, values.INSTANCE), (found.project_id, found.user_id, found.type))

    def test_of_an_instance_that_holds_nothing_waits_until_the_service_can_tell(self) -> None:
        def fails(_uuid: str) -> bool:
            raise ConnectionError('no answer')

        self.leftovers.record(self.leftover)
        AllocationClient(self.world.direct).delete(self.world.instance)
        self.migration.status = 'failed'
        for is_deleted in (None, lambda _uuid: None, fails):
            [error] = self.finish(is_deleted)
            self.assertIsInstance(error, errors.UnknownConsumer)
            self.assertEqual(({'migration': self.world.old}, [self.leftover]),
                             (self.world.held(), self.leftovers.kept()))

    def test_leaves_the_instance_what_others_put_there(self) -> None:
        for own in (self.world.new, None):
            worlds.CASES['revert'].prepare(self.world)
            self.world.proxy.before_next('POST', '/allocations',
                                         lambda: self.world.add(self.world.instance, self.world.dest))
            self.assertRaises(errors.ConsumerConflict, self.client.revert, *self.ends, own=own)
            self.migration.status = 'reverted'
            self.assertEqual(([], {'instance': {**self.world.old, self.world.dest: {worlds.NET: 1}}}, []),
                             (self.finish(), self.world.held(), self.leftovers.kept()))

    def test_a_second_that_reads_nothing_keeps_what_the_first_noted(self) -> None:
        self.world.proxy.before_next('POST', '/allocations', lambda: self.world.touch(self.world.instance))
        self.assertRaises(errors.ConsumerConflict, self.client.revert, *self.ends)
        [noted] = self.leftovers.kept()
        self.world.lose_reads()
        self.assertRaises(errors.PlacementUnavailable, self.client.revert, *self.ends)
        self.assertEqual([noted], self.leftovers.kept())

    def conflict(self, own: values.Resources | None = None) -> None:
        """Revert while somebody else allocates something to the instance."""
        self.world.proxy.before_next('POST', '/allocations',
                                     lambda: self.world.add(self.world.instance, self.world.dest))
        self.assertRaises(errors.ConsumerConflict, self.client.revert, *self.ends, own=own)

    def check_reverted(self) -> None:
        self.migration.status = 'reverted'
        self.assertEqual(([], {'instance': {**self.world.old, self.world.dest: {worlds.NET: 1}}}, []),
                         (self.finish(), self.world.held(), self.leftovers.kept()))

    def test_a_second_that_reads_more_keeps_what_the_first_noted(self) -> None:
        for _call in range(2):
            self.conflict()
        self.check_reverted()

    def test_a_second_leaves_the_instance_what_others_put_there_since_the_first(self) -> None:
        """Whether or not the first names what the move gave."""
        kept = {'instance': {**self.world.old, self.world.dest: {worlds.NET: 1}}}
        for first in (self.world.new, None):
            worlds.CASES['revert'].prepare(self.world)
            self.conflict(first)
            self.assertEqual(Outcome.DONE, self.client.revert(*self.ends).outcome)
            self.assertEqual((kept, []), (self.world.held(), self.leftovers.kept()))

    def test_a_second_whose_first_was_done_is_known_by_what_the_first_noted(self) -> None:
        """The instance holds more than before the move, so without the note it could be a confirm."""
        self.conflict()
        self.world.proxy.before_next('POST', '/allocations', self.world.lose_reads, Loss.ANSWER)
        self.assertRaises(errors.PlacementUnavailable, self.client.revert, *self.ends, old=self.world.old)
        self.assertEqual(Outcome.REPEATED, self.client.revert(*self.ends, old=self.world.old).outcome)
        self.assertEqual(({'instance': {**self.world.old, self.world.dest: {worlds.NET: 1}}}, []),
                         (self.world.held(), self.leftovers.kept()))

    def test_a_second_replaces_a_damaged_note(self) -> None:
        self.leftovers.record(self.leftover._replace(own='{"x": {"VC'))
        self.conflict()
        self.check_reverted()

    def test_a_note_that_cannot_be_completed_hides_no_conflict(self) -> None:
        def add() -> None:
            self.world.add(self.world.instance, self.world.dest)
            self.host.store.before('add_leftover', exception.StoreUnavailable('store', 'gone'))

        self.world.proxy.before_next('POST', '/allocations', add)
        self.assertRaises(errors.ConsumerConflict, self.client.revert, *self.ends)
        self.assertEqual([self.leftover], self.leftovers.kept())

    def test_without_a_store_nothing_is_sent(self) -> None:
        self.host.store.before('add_leftover', exception.StoreUnavailable('store', 'gone'))
        self.assertRaises(exception.StoreUnavailable, self.client.revert, *self.ends)
        self.assertEqual([], self.world.placement.requests)

    def test_what_the_instance_got_meanwhile_goes_too(self) -> None:
        """Its migration has everything that it had before."""
        self.leftovers.record(self.leftover)
        self.world.touch(self.world.instance)
        self.migration.status = 'cancelled'
        self.assertEqual([], self.finish())
        self.assertEqual({'instance'}, set(self.world.held()))
        self.assertEqual([], self.leftovers.kept())
