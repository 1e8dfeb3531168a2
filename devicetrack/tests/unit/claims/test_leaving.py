"""A resize on one host to a flavor without devices takes nothing. If it fails, the devices that it left come back."""

from __future__ import annotations

import os

from devicetrack import exception
from devicetrack.claims.claim import Claim
from devicetrack.testing import fixtures
from devicetrack.testing.compute_service import Migration
from devicetrack.tests import base
from devicetrack.tests import interrupts

GONE = exception.StoreUnavailable('store', 'gone')


class BootFails(Exception):
    """Stands for whatever a compute service raises."""


class HostTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.host = self.useFixture(fixtures.Host(devices=2))
        self.instance = self.host.spawn(pmem=1)
        self.instance.host = 'host'
        self.migration = Migration('host', 'host', self.instance.uuid)
        self.host.service.moves = [self.migration]

    def resize(self, pmem: int = 0) -> Claim:
        return self.host.manager.resize_claim(self.context, self.instance, 'host', fixtures.a_request(pmem=pmem),
                                              self.migration)

    def lose(self, staged: str) -> None:
        """The claim fails with a commit in doubt."""
        getattr(self.host.store, staged)()
        self.assertRaises(exception.OutcomeUnknown, self.resize)

    def remembered(self) -> list[str]:
        directory = os.path.join(self.host.conf.devicetrack.state_path, 'given-up')
        return sorted(os.listdir(directory)) if os.path.isdir(directory) else []

    def roles(self) -> list[tuple[str, str, str | None]]:
        return [(row.identifier, row.role, row.migration_uuid) for row in self.host.records()]

    def check_it_is_undone(self) -> None:
        self.assertEqual([('d0', 'current', None)], self.roles())
        self.assertEqual([], self.host.store.contexts(self.host.manager.state().host_uuid))
        self.assertEqual(((), []), (self.host.running.rows.doubts, self.remembered()))
        self.host.machine.stop_guest(self.instance.uuid)
        self.host.manager.realize(self.context, self.instance)
        self.assertEqual(1, len(self.host.manager.guest_config(self.instance).devices))

    def check_it_stands(self) -> None:
        for restarts in (False, True):
            if restarts:
                self.host.restart()
            self.host.audit()
            self.assertEqual([('d0', 'old', self.migration.uuid)], self.roles())


class FailedTestCase(HostTestCase):

    scenarios = base.table(
        ('its answer is lost', lambda case: case.lose('lose_answer')),
        ('its commit is lost', lambda case: case.lose('lose_commit')),
        ('an interrupt comes after its commit', lambda case: case.interrupted()),
        ('the store is gone when its block fails', lambda case: case.block_fails()),
        ('the service aborts it while the store is gone', lambda case: case.aborts()),
        names=('fails',))

    def interrupted(self) -> None:
        self.host.store.after('write', interrupts.Interrupt())
        self.assertRaises(interrupts.Interrupt, self.resize)

    def block_fails(self) -> None:
        def block() -> None:
            with self.resize():
                self.host.store.before('write', GONE, times=1)
                raise BootFails

        self.assertRaises(BootFails, block)

    def aborts(self) -> None:
        claim = self.resize()
        self.host.store.before('write', GONE, times=1)
        self.assertRaises(exception.StoreUnavailable, claim.abort)

    def test_an_audit_undoes_it(self) -> None:
        self.fails(self)
        self.host.audit()
        self.check_it_is_undone()

    def test_so_does_a_start(self) -> None:
        self.fails(self)
        self.host.restart()
        self.check_it_is_undone()

    def test_so_does_the_next_claim_of_the_migration_which_stands(self) -> None:
        self.fails(self)
        self.resize()
        self.check_it_stands()
        self.assertEqual([], self.remembered())


class InDoubtTestCase(HostTestCase):

    def test_one_without_devices_waits_until_the_store_says_what_became_of_the_earlier_one(self) -> None:
        self.lose('lose_commit')
        self.host.store.before('settle', GONE, times=1)
        self.assertRaises(exception.StoreUnavailable, self.resize)
        self.assertEqual([('d0', 'current', None)], self.roles())
        self.resize()
        self.check_it_stands()

    def test_it_stays_remembered_until_the_store_says_what_became_of_it(self) -> None:
        self.lose('lose_commit')
        self.host.store.before('settle', GONE, times=1)
        self.host.audit()
        self.assertEqual((1, 1), (len(self.host.running.rows.doubts), len(self.remembered())))
        self.host.audit()
        self.check_it_is_undone()

    def test_one_with_devices_stands_though_the_earlier_one_left_the_same_device(self) -> None:
        self.lose('lose_commit')
        self.resize(pmem=1)
        rows = self.host.records()
        for restarts in (False, True):
            if restarts:
                self.host.restart()
            self.host.audit()
            self.assertEqual(rows, self.host.records())

    def test_a_claim_that_leaves_nothing_has_nothing_to_undo(self) -> None:
        self.assertEqual((True, []), (self.resize_of_another().is_over, self.remembered()))

    def resize_of_another(self) -> Claim:
        other = fixtures.Instance(host='host')
        return self.host.manager.resize_claim(self.context, other, 'host', fixtures.a_request(),
                                              Migration('host', 'host', other.uuid))
