"""A start anew after an interrupt takes the host only from the process's own start, never from another manager."""

from __future__ import annotations

from devicetrack import exception
from devicetrack.claims.manager import ClaimManager
from devicetrack.store.api import Changes
from devicetrack.store.api import Store
from devicetrack.testing import fixtures
from devicetrack.testing.fixtures import Instance
from devicetrack.tests import base
from devicetrack.tests.functional.store import records
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
            for call in (lambda: self.older.update_available_resource(None, 'host'), self.older.assignments,
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
        self.assertRaises(exception.OutcomeUnknown, self.older.assignments)
        newer = self.start_newer()
        self.assert_stays_taken_over(newer, self.boot(newer))

    def test_the_store_of_the_service_knows_too(self) -> None:
        store = self.older.store
        newer = self.start_newer()
        self.assertRaises(exception.HostTakenOver, store.set_boot_id, newer.state().host_uuid, 'another')
        self.assertRaises(exception.HostTakenOver, self.older.state)
        self.began.end()
        for call in (store.check_epoch, self.older.state):
            self.assertRaises(exception.HostTakenOver, call)
        self.assert_stays_taken_over(newer, self.boot(newer))

    def test_the_store_of_the_service_refuses_after_a_start_anew_too(self) -> None:
        store = self.older.store
        self.began.end()
        self.older.assignments()
        store.check_epoch()
        newer = self.start_newer()
        self.assertRaises(exception.HostTakenOver, store.check_epoch)
        self.assertRaises(exception.HostTakenOver, store.write, Changes())
        self.assert_stays_taken_over(newer, self.boot(newer))

    def test_a_restart_takes_it_back(self) -> None:
        newer = self.start_newer()
        self.began.end()
        self.assertRaises(exception.HostTakenOver, self.older.assignments)
        newer.close()
        self.older.close()
        self.older.init_host(None)
        self.host.manager = self.older
        self.assertEqual((), self.older.assignments())


class ServiceStoreTestCase(base.TestCase):
    """``manager.store`` goes on over every start anew."""

    def assert_works(self, host: fixtures.Host, store: Store) -> None:
        self.assertIs(store, host.manager.store)
        for _time in range(2):
            store.check_epoch()
            store.set_boot_id(host.manager.state().host_uuid, 'boot')
            instance = records.record('ns7')._replace(host_uuid=host.manager.state().host_uuid)
            store.write(Changes(insert=(instance,)))
            store.write(Changes(delete=(instance,)))
        self.assertFalse(store.is_taken_over)

    def test_over_starts_anew_and_those_that_fail(self) -> None:
        host = self.useFixture(fixtures.Host(devices=1))
        store = host.manager.store
        gone = exception.HypervisorUnreachable('fake', 'gone')
        for stage in (lambda: host.machine.before('get_usage', gone, times=1),
                      lambda: host.store.before('take_epoch', GONE, times=1),
                      lambda: host.store.after('take_epoch', exception.OutcomeUnknown('store'), times=1),
                      lambda: host.store.after('take_epoch', Interrupt(), times=1)):
            host.running.end()
            self.assert_works(host, store)
            stage()
            self.assertRaises((type(GONE), type(gone), exception.OutcomeUnknown, Interrupt), host.manager.assignments)
            self.assert_works(host, store)
            self.assertEqual((), host.manager.assignments())
            self.assert_works(host, store)

    def test_while_the_host_starts_anew(self) -> None:
        host = self.useFixture(fixtures.Host(devices=1))
        store, asked = host.manager.store, []

        def check() -> None:
            store.check_epoch()
            asked.append(True)

        for stage in (host.store.before, host.store.after):
            host.running.end()
            stage('take_epoch', check, times=1)
            self.assertEqual((), host.manager.assignments())
        self.assertEqual([True, True], asked)


class OwnEpochsTestCase(base.TestCase):
    """A process knows its own epochs, also those of starts that failed."""

    def test_starts_anew_that_failed_are_the_processs_own(self) -> None:
        host = self.useFixture(fixtures.Host(devices=1))
        for error in (GONE, exception.OutcomeUnknown('store'), Interrupt()):
            for stage in (host.store.before, host.store.after):
                host.running.end()
                stage('take_epoch', error, times=1)
                self.assertRaises(type(error), host.manager.assignments)
                self.assertEqual((), host.manager.assignments())
                self.assertEqual({one.epoch for one in host.store.hosts()}, host.running.memory.epochs)

    def test_a_start_anew_that_failed_after_its_epoch_is_the_processs_own(self) -> None:
        host = self.useFixture(fixtures.Host(devices=1))
        host.running.end()
        for _time in range(2):
            host.machine.before('get_usage', exception.HypervisorUnreachable('fake', 'gone'), times=1)
            self.assertRaises(exception.HypervisorUnreachable, host.audit)
        host.audit()
        host.claim(instance := Instance(), pmem=1)
        self.assertEqual({'d0': instance.uuid}, host.owners())
