"""A start anew after an interrupt takes the host only from the process's own start, never from another manager."""

from __future__ import annotations

from devicetrack import exception
from devicetrack.claims.manager import ClaimManager
from devicetrack.testing import fixtures
from devicetrack.testing.fixtures import Instance
from devicetrack.tests import base
from devicetrack.tests.interrupts import Interrupt
from devicetrack.tests.unit.claims import test_two_managers

GONE = exception.StoreUnavailable('store', 'gone')


class TakenOverTestCase(test_two_managers.TwoManagersTestCase):
    """Another manager took the host before or after the interrupt."""

    def setUp(self) -> None:
        super().setUp()
        self.began = self.host.running

    def assert_stays_taken_over(self, newer: ClaimManager, instance: Instance) -> None:
        for _call in range(2):
            for call in (lambda: self.older.update_available_resource(None, 'host'), self.older.held,
                         lambda: self.older.init_host(None), lambda: self.older.release(None, instance),
                         self.older.state, lambda: self.older.store):
                error = self.assertRaises(exception.HostTakenOver, call)
                self.assertEqual('host', error.host)
        newer.guest_config(instance)
        newer.update_available_resource(None, 'host')

    def boot(self, newer: ClaimManager) -> Instance:
        instance = Instance()
        newer.instance_claim(None, instance, 'host', fixtures.a_request(pmem=1))
        newer.realize(None, instance)
        return instance

    def test_an_interrupt_before_the_first_refusal_does_not_take_it_back(self) -> None:
        newer = self.start_newer()
        instance = self.boot(newer)
        self.began.end()
        self.assert_stays_taken_over(newer, instance)

    def test_an_interrupt_after_a_refusal_does_not_take_it_back(self) -> None:
        newer = self.start_newer()
        instance = self.boot(newer)
        self.assertRaises(exception.HostTakenOver, self.older.update_available_resource, None, 'host')
        self.began.end()
        self.assertRaises(exception.HostTakenOver, self.older.state)
        self.assert_stays_taken_over(newer, instance)

    def test_who_starts_between_an_interrupt_and_the_next_call_keeps_it(self) -> None:
        self.began.end()
        newer = self.start_newer()
        self.assert_stays_taken_over(newer, self.boot(newer))

    def test_who_starts_after_a_start_anew_that_failed_keeps_it(self) -> None:
        self.began.end()
        self.host.store.after('take_epoch', exception.OutcomeUnknown('store'), times=1)
        self.assertRaises(exception.OutcomeUnknown, self.older.held)
        newer = self.start_newer()
        self.assert_stays_taken_over(newer, self.boot(newer))

    def test_a_restart_takes_it_back(self) -> None:
        newer = self.start_newer()
        self.began.end()
        self.assertRaises(exception.HostTakenOver, self.older.held)
        newer.close()
        self.older.close()
        self.older.init_host(None)
        self.host.manager = self.older
        self.assertEqual((), self.older.held())


class OwnEpochsTestCase(base.TestCase):
    """A process knows its own epochs, also those of starts that failed."""

    def test_starts_anew_that_failed_are_the_processs_own(self) -> None:
        host = self.useFixture(fixtures.Host(devices=1))
        for error in (GONE, exception.OutcomeUnknown('store'), Interrupt()):
            for stage in (host.store.before, host.store.after):
                host.running.end()
                stage('take_epoch', error, times=1)
                self.assertRaises(type(error), host.manager.held)
                self.assertEqual((), host.manager.held())
                self.assertEqual({one.epoch for one in host.store.hosts()}, host.running._memory.epochs)

    def test_a_start_anew_that_failed_after_its_epoch_is_the_processs_own(self) -> None:
        host = self.useFixture(fixtures.Host(devices=1))
        host.running.end()
        for _time in range(2):
            host.machine.before('get_usage', exception.HypervisorUnreachable('fake', 'gone'), times=1)
            self.assertRaises(exception.HypervisorUnreachable, host.audit)
        host.audit()
        host.claim(instance := Instance(), pmem=1)
        self.assertEqual({'d0': instance.uuid}, host.owners())
