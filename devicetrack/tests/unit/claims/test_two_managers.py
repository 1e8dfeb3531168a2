"""Two managers of one host, with one store and a state directory each, as two containers of a service that overlap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fixtures import MockPatchObject

from devicetrack import exception
from devicetrack import objects
from devicetrack import vocabulary
from devicetrack.claims.manager import ClaimManager
from devicetrack.objects.values import Leftover
from devicetrack.store import api
from devicetrack.store.leftovers import HostLeftovers
from devicetrack.testing import fake
from devicetrack.testing import fixtures
from devicetrack.testing.compute_service import Migration
from devicetrack.testing.fixtures import Instance
from devicetrack.tests import base
from devicetrack.tests.unit.claims import test_process


class TwoManagersTestCase(base.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.host = self.useFixture(fixtures.Host(devices=2, parents={'p0': 4}))
        self.older = self.host.manager
        self.elsewhere = self.useFixture(fixtures.Configuration(self.temp_dir()))

    def start_newer(self) -> ClaimManager:
        """A manager of the same host with another state directory."""
        driver = fake.FakeDriver(self.host.name, self.elsewhere.conf, self.elsewhere.state_path, self.host.machine)
        newer = ClaimManager(self.host.name, driver, self.host.store, self.elsewhere.conf, self.host.service)
        self.addCleanup(newer.close)
        newer.init_host(self.context)
        self.host.manager = newer           # whose ledger and rows must agree when the test ends
        return newer


class TestEveryCall(TwoManagersTestCase):
    scenarios = test_process.CALLS

    def test_raises_once_a_write_was_refused(self) -> None:
        self.start_newer()
        self.assertRaises(exception.HostTakenOver, self.older.instance_claim, None, Instance(), 'host',
                          fixtures.a_request(pmem=1))
        error = self.assertRaises(exception.HostTakenOver, self.call, self.older, Instance())
        self.assertEqual('host', error.host)
        self.assertIn('state_path', str(error))


def _of(call: Callable[[ClaimManager, Instance, Migration], object]) -> Callable[..., object]:
    return call


# What a guest is started by, moved by or wiped by, and what changes rows: refused at once, before anybody was told.
REFUSED = {
    'init_host': _of(lambda manager, _instance, _migration: manager.init_host(None)),
    'update_available_resource': _of(lambda manager, _instance, _migration: manager.update_available_resource(
        None, 'host')),
    'instance_claim': _of(lambda manager, _instance, _migration: manager.instance_claim(
        None, Instance(), 'host', fixtures.a_request(pmem=1))),
    'resize_claim': _of(lambda manager, instance, migration: manager.resize_claim(
        None, instance, 'host', fixtures.a_request(pmem=1), migration)),
    'rebuild_claim': _of(lambda manager, _instance, migration: manager.rebuild_claim(
        None, Instance(), 'host', fixtures.a_request(pmem=1), migration)),
    'realize': _of(lambda manager, instance, _migration: manager.realize(None, instance)),
    'guest_config': _of(lambda manager, instance, _migration: manager.guest_config(instance)),
    'kept_definition': _of(lambda manager, instance, _migration: manager.kept_definition(instance, '<domain/>')),
    'started': _of(lambda manager, instance, _migration: manager.started(None, instance)),
    'adopt': _of(lambda manager, instance, _migration: manager.adopt(None, instance, ())),
    'device_map': _of(lambda manager, instance, migration: manager.device_map(instance, migration)),
    'migration_definitions': _of(lambda manager, instance, migration: manager.migration_definitions(
        None, instance, migration, objects.DeviceMap())),
    'release': _of(lambda manager, instance, _migration: manager.release(None, instance)),
    'abort_instance_claim': _of(lambda manager, instance, _migration: manager.abort_instance_claim(None, instance)),
    'cordon': _of(lambda manager, _instance, _migration: manager.operator.cordon('vpmem', 'd1')),
    'admit': _of(lambda manager, _instance, _migration: manager.operator.admit('vpmem', 'd1', wipe=True)),
}


class TestAtOnce(TwoManagersTestCase):
    scenarios = base.table(*REFUSED.items(), names=('call',))

    def test_raises_before_anything_else_was_refused(self) -> None:
        instance = self.host.spawn(pmem=1)
        self.host.delete_guest(instance.uuid)
        self.start_newer()
        before = self.host.records()
        self.assertRaises(exception.HostTakenOver, self.call, self.older, instance,
                          Migration('host', 'host', instance.uuid))
        self.assertEqual(before, self.host.records())
        self.assertRaises(exception.HostTakenOver, self.older.explain, None)


class TestWhileItAnswers(TwoManagersTestCase):
    """The newer manager starts after the older one has asked who it is, and before its caller has the answer."""

    scenarios = base.table(
        ('guest_config', 'guest_config', lambda manager, instance: manager.guest_config(instance)),
        ('kept_definition', 'devices_in', lambda manager, instance: manager.kept_definition(
            instance, f'<domain><devices>{"".join(manager.guest_config(instance).devices)}</devices></domain>')),
        names=('step', 'call'))

    def test_no_guest_may_start_by_the_answer(self) -> None:
        instance = self.host.spawn(pmem=1)
        self.host.machine.before(self.step, self.start_newer, times=1)
        self.assertRaises(exception.HostTakenOver, self.call, self.older, instance)


class TestTakenOver(TwoManagersTestCase):
    def test_no_guest_without_devices_may_start_by_an_answer_that_came_too_late(self) -> None:
        self.host.store.before('records_of_instance', self.start_newer)
        self.assertRaises(exception.HostTakenOver, self.older.guest_config, Instance())

    def test_the_older_one_makes_no_device_that_the_newer_one_may_have_given_back(self) -> None:
        instance = Instance()
        self.older.instance_claim(None, instance, 'host', fixtures.a_request(vgpu=1))
        realize = self.host.driver.realize

        def late(*arguments: Any, **named: Any) -> Any:
            self.start_newer()
            return realize(*arguments, **named)

        self.useFixture(MockPatchObject(self.host.driver, 'realize', late))
        self.assertRaises(exception.HostTakenOver, self.older.realize, None, instance)
        self.assertEqual({'d0', 'd1'}, {key.identifier for key in self.host.machine.devices})

    def test_the_newer_manager_works(self) -> None:
        instance = self.host.spawn(pmem=1)
        newer = self.start_newer()
        self.host.delete_guest(instance.uuid)
        newer.release(None, instance)
        self.assertEqual({}, self.host.owners())

    def test_the_older_one_claims_nothing(self) -> None:
        newer = self.start_newer()
        self.assertRaises(exception.HostTakenOver, self.older.instance_claim, None, Instance(), 'host',
                          fixtures.a_request(pmem=1))
        self.assertEqual({}, self.host.owners())
        newer.instance_claim(None, Instance(), 'host', fixtures.a_request(pmem=2))

    def test_an_audit_of_the_older_one_says_so_without_a_write(self) -> None:
        self.start_newer()
        self.assertRaises(exception.HostTakenOver, self.older.update_available_resource, None, 'host')
        self.assertRaises(exception.HostTakenOver, self.older.init_host, None)

    def test_the_older_one_works_again_when_it_starts_anew(self) -> None:
        newer = self.start_newer()
        self.assertRaises(exception.HostTakenOver, self.older.update_available_resource, None, 'host')
        self.older.close()
        self.older.init_host(None)
        self.host.manager = self.older
        self.assertRaises(exception.HostTakenOver, newer.update_available_resource, None, 'host')
        self.host.spawn(pmem=1)

    def test_the_older_one_releases_nothing(self) -> None:
        instance = self.host.spawn(pmem=1)
        self.host.delete_guest(instance.uuid)
        self.start_newer()
        self.assertRaises(exception.HostTakenOver, self.older.release, None, instance)
        self.assertEqual({'d0': vocabulary.ACTIVE, 'd1': fixtures.FREE}, self.host.states())

    def test_the_older_one_does_not_wipe_what_the_newer_one_has_given_to_another(self) -> None:
        """The older one has marked its row and waits for the device; the newer one does the whole release meanwhile."""
        instance, next_one = self.host.spawn(pmem=1), Instance()
        [key] = [record.key for record in self.host.records()]
        self.host.delete_guest(instance.uuid)

        def hand_out() -> None:
            newer = self.start_newer()
            newer.release(None, instance)
            with newer.instance_claim(None, next_one, 'host', fixtures.a_request(pmem=2)):
                newer.realize(None, next_one)
            self.host.machine.write(key, b'of the next one')

        # In another thread, as in another process: here this one works on the instance.
        self.host.store.after('write', lambda: self.assertEqual([None], self.together(hand_out)))
        self.assertRaises(exception.HostTakenOver, self.older.release, None, instance)
        self.assertEqual(b'of the next one', self.host.machine.read(key))
        self.assertEqual({next_one.uuid}, set(self.host.owners().values()))

    def test_what_moved_on_in_the_store_is_not_wiped(self) -> None:
        """Whoever changed the row: the release is of a row that is not there any more."""
        instance = self.host.spawn(pmem=1)
        [key] = [record.key for record in self.host.records()]
        self.host.machine.write(key, b'kept')
        self.host.delete_guest(instance.uuid)

        def forget() -> None:
            self.host.store.store.write(api.Changes(delete=tuple(self.host.records())))

        self.host.machine.before('unclaim', forget, times=1)
        self.assertRaises(exception.StaleAssignment, self.older.release, None, instance)
        self.assertEqual(b'kept', self.host.machine.read(key))


class TestKeptForPlacement(TwoManagersTestCase):
    """What the service of the older manager keeps in the store for placement is refused too."""

    def setUp(self) -> None:
        super().setUp()
        self.leftover = Leftover(Instance().uuid, Instance().uuid)
        self.leftovers = HostLeftovers(self.older.store, self.older.state().host_uuid)

    def test_no_end_of_a_move_is_noted(self) -> None:
        newer = self.start_newer()
        self.assertRaises(exception.HostTakenOver, self.leftovers.record, self.leftover)
        self.assertEqual([], HostLeftovers(newer.store, newer.state().host_uuid).kept())

    def test_no_note_is_taken_back(self) -> None:
        self.leftovers.record(self.leftover)
        newer = self.start_newer()
        self.assertRaises(exception.HostTakenOver, self.leftovers.remove, self.leftover)
        self.assertEqual([self.leftover], HostLeftovers(newer.store, newer.state().host_uuid).kept())

    def test_the_older_manager_hears_of_it(self) -> None:
        self.start_newer()
        self.assertRaises(exception.HostTakenOver, self.leftovers.record, self.leftover)
        self.assertRaises(exception.HostTakenOver, lambda: self.older.store)
        self.assertRaises(exception.HostTakenOver, self.older.explain, None)
