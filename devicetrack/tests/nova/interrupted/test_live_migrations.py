"""Live migrations that fail: what both hosts do with the devices, also if the guest has moved all the same."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import Any
from unittest import mock

import fixtures
from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from nova.compute import rpcapi
from nova.compute import vm_states
from nova.conductor.tasks import live_migrate
import nova.conf
from nova.scheduler.client import report
from nova.tests.fixtures import libvirt as fakelibvirt
from nova.tests.functional.libvirt import base as nova_base
from nova.virt.libvirt import driver
from oslo_messaging import exceptions as messaging_exceptions

from devicetrack import vocabulary
from devicetrack.claims import releasing
from devicetrack.nova import service
from devicetrack.tests.nova import adapted
from devicetrack.tests.nova.stock_failures import base

_DRIVER = 'nova.virt.libvirt.driver.LibvirtDriver'
_POST = 'nova.compute.rpcapi.ComputeAPI.post_live_migration_at_destination'


class _Guest(nova_base.LibvirtMigrationMixin, base.MdevGuests):

    def setUp(self) -> None:
        # Those that can do it.
        self.FAKE_LIBVIRT_VERSION, self.FAKE_QEMU_VERSION = 8_006_000, 8_001_000
        super().setUp()
        self.src = self.start_compute_with_vgpu('src')
        self.dest = self.start_compute_with_vgpu('dest')
        self.server = self.boot('src', self.flavor)
        self.definition_at_source = self.fake('src').lookupByUUIDString(self.server['id']).XMLDesc(0)

    def held(self, host: str) -> list[str]:
        manager = self.computes[host].driver.devicetrack.manager
        return [one.identifier for one in manager.assignments(self.server['id'])]

    def allocations(self) -> list[Any]:
        """The allocations of the instance and of its only migration."""
        [migration] = self.moves()
        return [self.allocations_of(consumer) for consumer in (self.server['id'], migration.uuid)]

    def allocations_of(self, consumer: str) -> dict[str, Any]:
        return {provider: found['resources']
                for provider, found in self._get_allocations_by_server_uuid(consumer).items()}

    def moves(self) -> list[Any]:
        """The migrations of the instance, the newest first."""
        return service.moves(nova_context.get_admin_context(), self.server['id'])

    def act(self, action: Any) -> None:
        self.api.post_server_action(self.server['id'], action, check_response_status=[202, 400, 409, 500])
        self._wait_for_server_parameter(self.server, {'OS-EXT-STS:task_state': None})

    def refuse(self, method: str) -> None:
        """A live migration ends in a method, and placement does not answer when Nova undoes what came before."""
        with contextlib.ExitStack() as faults:
            def refuse(*_args: Any, **_kwargs: Any) -> None:
                faults.enter_context(mock.patch.object(report.SchedulerReportClient, 'move_allocations', autospec=True,
                                                       return_value=None))
                raise nova_exception.NoValidHost(reason='no')

            faults.enter_context(fixtures.MonkeyPatch(method, refuse))
            self.act({'os-migrateLive': {'host': None, 'block_migration': 'auto'}})
            self._wait_for_migration_status(self.server, ['error'])
        self.kept = self.allocations()[1]
        self.assertNotEqual({}, self.kept)

    def assert_moved(self) -> None:
        self.assertTrue(self.wait_for(lambda: not self.held('src')), self.held('src'))
        self.assertEqual(set(), self.existing('src'))
        self.assertEqual(self.mdevs('dest', self.server), set(self.held('dest')))
        self.assertEqual(1, len(self.held('dest')))


class _LostAnswer(_Guest):
    """The destination has finished, or never heard that it should, and the source waits in vain for its answer."""

    def migrate(self, heard: bool = True) -> None:
        with self.losing_the_answer(heard):
            self._live_migrate(self.server, 'error', 'ERROR')
        self.assertEqual('dest', self.instance(self.server).host)

    def losing_the_answer(self, heard: bool = True) -> Any:
        original = rpcapi.ComputeAPI.post_live_migration_at_destination

        def lose_the_answer(*args: Any, **kwargs: Any) -> None:
            if heard:
                original(*args, **kwargs)
            raise messaging_exceptions.MessagingTimeout()

        return fixtures.MonkeyPatch(_POST, lose_the_answer)


class LostAnswerTestCase(_LostAnswer):

    def test_the_source_gives_its_device_back(self) -> None:
        self.migrate()
        self.assert_moved()

    def test_so_it_does_when_the_destination_never_heard(self) -> None:
        self.migrate(heard=False)
        self.assert_moved()

    def test_so_it_does_when_its_service_starts(self) -> None:
        self.migrate()
        self.assertEqual(1, len(self.held('src')))
        self.src = self.restart_compute_service('src')
        self.assertEqual([], self.held('src'))
        self.assert_moved()

    def test_placement_no_longer_counts_the_guest_at_the_source_once_its_service_starts(self) -> None:
        self.migrate()
        left = self.fake('src').defineXML(self.definition_at_source)
        left.create()
        self.src = self.restart_compute_service('src')
        self.assertNotEqual({}, self.allocations()[1])
        left.destroy()
        self.src = self.restart_compute_service('src')
        self.assertEqual({}, self.allocations()[1])

    def test_nor_does_it_count_a_guest_that_can_be_restored(self) -> None:
        self.migrate()
        instance = self.instance(self.server)
        instance.vm_state = vm_states.SOFT_DELETED
        instance.save()
        self.src = self.restart_compute_service('src')
        self.assertEqual({}, self.allocations()[1])

    def test_while_the_source_runs_a_domain_of_the_guest_it_keeps_the_device(self) -> None:
        self.migrate()
        left = self.fake('src').defineXML(self.definition_at_source)
        left.create()
        self.audit()
        self.assertEqual(self.mdevs('src', self.server), set(self.held('src')))
        left.destroy()
        self.assert_moved()

    def test_a_domain_of_the_guest_that_is_off_at_the_source_goes_with_its_device(self) -> None:
        self.migrate()
        self.fake('src').defineXML(self.definition_at_source)
        self.assert_moved()
        self.assertRaises(fakelibvirt.libvirtError, self.fake('src').lookupByUUIDString, self.server['id'])


class CameBackTestCase(_LostAnswer):
    """The guest left by a live migration whose answer was lost, and is at its old host again."""

    def setUp(self) -> None:
        super().setUp()
        self.migrate()
        [self.first] = self.moves()
        self.assertTrue(self.wait_for(lambda: not self.held('src')))
        self.api.post_server_action(self.server['id'], {'os-resetState': {'state': 'active'}})
        # libvirt keeps the domain of a guest that came, and the stand-in forgets it when the guest is off.
        self.fake('dest').lookupByUUIDString(self.server['id'])._transient = False

    def come_back_live(self) -> None:
        self.src, self.dest = self.dest, self.src       # the stand-in for a copy goes by these names
        with self.losing_the_answer():
            self.api.post_server_action(self.server['id'],
                                        {'os-migrateLive': {'host': 'src', 'block_migration': 'auto'}})
            self._wait_for_server_parameter(self.server, {
                'OS-EXT-SRV-ATTR:host': 'src', 'OS-EXT-STS:task_state': None, 'status': 'ERROR'})
        self.api.post_server_action(self.server['id'], {'os-resetState': {'state': 'active'}})
        self.src, self.dest = self.dest, self.src
        self.fake('src').lookupByUUIDString(self.server['id'])._transient = False

    def come_back_cold(self) -> None:
        self.api.post_server_action(self.server['id'], {'migrate': None})
        self._wait_for_server_parameter(self.server, {'status': 'VERIFY_RESIZE'})

    def go_off(self) -> None:
        self.fake('src').lookupByUUIDString(self.server['id']).destroy()

    def assert_runs_at_the_source_alone(self) -> None:
        self.assertEqual(1, self.fake('src').lookupByUUIDString(self.server['id']).isActive())
        self.assertEqual([], [domain for domain in self.fake('dest')._vms.values() if domain.isActive()])

    def start_again(self) -> None:
        """The service at the source starts again, and leaves the guest the allocations that it came with."""
        came_with = self.allocations_of(self.server['id'])
        self.src = self.restart_compute_service('src')
        self.assertEqual(came_with, self.allocations_of(self.server['id']))
        self.assertEqual({}, self.allocations_of(self.first.uuid))
        self.assertEqual(1, len(self.held('src')))

    def test_it_is_rebooted_though_it_came_by_another_such_move(self) -> None:
        self.come_back_live()
        self.go_off()
        self.act({'reboot': {'type': 'HARD'}})
        self.assertEqual(['error', 'error'], [one.status for one in self.moves()])
        self.assert_runs_at_the_source_alone()

    def test_so_it_is_while_a_cold_migration_waits_to_be_confirmed(self) -> None:
        self.flags(resume_guests_state_on_host_boot=True)
        self.come_back_cold()
        self.go_off()
        self.src = self.restart_compute_service('src')
        self.assertEqual('VERIFY_RESIZE', self.api.get_server(self.server['id'])['status'])
        self.assert_runs_at_the_source_alone()

    def test_placement_counts_it_once_when_the_service_starts(self) -> None:
        self.come_back_live()
        self.start_again()

    def test_so_it_does_though_the_guest_is_off(self) -> None:
        self.come_back_cold()
        self.go_off()
        self.start_again()

    def test_it_gets_no_second_copy_once_it_has_left_again(self) -> None:
        self.come_back_live()

        def leave(*_args: Any, **_kwargs: Any) -> None:
            self.go_off()
            raise nova_exception.InternalError('no')

        with fixtures.MonkeyPatch('nova.compute.manager.ComputeManager._post_live_migration_update_host', leave):
            self.act({'os-migrateLive': {'host': 'dest', 'block_migration': 'auto'}})
        self.assertEqual(('error', 'src'), (self.moves()[0].status, self.instance(self.server).host))
        self.api.post_server_action(self.server['id'], {'os-resetState': {'state': 'active'}})
        self.act({'reboot': {'type': 'HARD'}})
        self.assertEqual([], [domain for domain in self.fake('src')._vms.values() if domain.isActive()])


class NoDestinationTestCase(_Guest):
    """The scheduler found no destination, and placement did not answer when Nova undid that."""

    def setUp(self) -> None:
        super().setUp()
        self.refuse('nova.conductor.tasks.live_migrate.LiveMigrationTask._find_destination')
        self.fake('src').lookupByUUIDString(self.server['id']).destroy()

    def test_its_guest_starts_again_after_it_went_off(self) -> None:
        self.act({'reboot': {'type': 'HARD'}})
        self.assertEqual(1, self.fake('src').lookupByUUIDString(self.server['id']).isActive())

    def test_its_guest_gets_its_allocations_back_though_it_is_off(self) -> None:
        self.src = self.restart_compute_service('src')
        self.assertEqual([self.kept, {}], self.allocations())


class KeptAllocationsTestCase(_Guest):
    """A live migration failed after the scheduler had claimed, and placement did not answer when Nova undid that."""

    def test_the_next_one_to_the_same_host_succeeds_after_an_audit(self) -> None:
        self.refuse('nova.conductor.tasks.live_migrate.LiveMigrationTask._call_livem_checks_on_host')
        names = [self.placement.get(f'/resource_providers/{uuid}').body['name']
                 for uuid in self.allocations_of(self.server['id'])]
        [parent] = [name.removeprefix('dest_') for name in names if name != 'dest']
        # So the scheduler takes the other one, and placement has two devices here for a guest with one.
        self.dest.driver.devicetrack.manager.operator.cordon('mdev', parent, parent=True)
        self.audit()
        self.api.post_server_action(self.server['id'], {'os-resetState': {'state': 'active'}})
        self.act({'os-migrateLive': {'host': 'dest', 'block_migration': 'auto'}})
        self.assertEqual('dest', self.instance(self.server).host)
        self.assert_moved()


class NeverLeftTestCase(_Guest):
    """Nova's driver failed before the copy began. Nova undoes nothing then, so the migration keeps its allocations."""

    def setUp(self) -> None:
        super().setUp()
        os.makedirs(os.path.join(nova.conf.CONF.instances_path, self.server['id']), exist_ok=True)
        self.refuse(f'{_DRIVER}.live_migration')
        self.api.post_server_action(self.server['id'], {'os-resetState': {'state': 'active'}})

    def assert_runs(self) -> None:
        self.assertEqual(1, self.fake('src').lookupByUUIDString(self.server['id']).isActive())

    def assert_off(self) -> None:
        self.assertEqual([], [domain for domain in self.fake('src')._vms.values() if domain.isActive()])

    def test_it_is_rescued(self) -> None:
        self._rescue_server(self.server)
        self.assert_runs()

    def test_after_a_rescue_that_failed_it_is_rebooted(self) -> None:
        with mock.patch(f'{_DRIVER}._create_guest', autospec=True, side_effect=nova_exception.InternalError('no')):
            self.act({'rescue': {}})
        self.assertEqual('ERROR', self.api.get_server(self.server['id'])['status'])
        self.assert_off()
        self.act({'reboot': {'type': 'HARD'}})
        self.assert_runs()

    def test_it_stops_and_starts(self) -> None:
        self._stop_server(self.server)
        self.assert_off()
        self.act({'os-start': None})
        self.assert_runs()

    def test_if_it_was_off_already_it_may_have_left(self) -> None:
        self.fake('src').lookupByUUIDString(self.server['id']).destroy()
        self._stop_server(self.server)
        self.act({'os-start': None})
        self.assert_off()

    def test_if_it_has_no_domain_when_it_is_off_it_may_have_left(self) -> None:
        domain = self.fake('src').lookupByUUIDString(self.server['id'])
        self.after('_destroy', lambda _arguments: domain.undefine())
        self._stop_server(self.server)
        self.act({'os-start': None})
        self.assert_off()


class RanBeforeTheCopyTestCase(_Guest):
    """The guest was seen here after the source had let it go, and before the copy began."""

    def test_it_may_have_left(self) -> None:
        def leave(*_args: Any, **_kwargs: Any) -> None:
            self.fake('src').lookupByUUIDString(self.server['id']).destroy()
            raise nova_exception.InternalError('no')

        self.after('pre_live_migration', lambda _arguments: self.src.driver.devicetrack.make_ready(
            self.instance(self.server)))
        with fixtures.MonkeyPatch('nova.compute.manager.ComputeManager._post_live_migration_update_host', leave):
            self.act({'os-migrateLive': {'host': 'dest', 'block_migration': 'auto'}})
        self.assertEqual('error', self.moves()[0].status)
        self.api.post_server_action(self.server['id'], {'os-resetState': {'state': 'active'}})
        self.act({'reboot': {'type': 'HARD'}})
        self.assertEqual([], [domain for domain in self.fake('src')._vms.values() if domain.isActive()])


class AnotherDestinationTestCase(_Guest):
    """A port cannot be bound at a destination that has claimed, so Nova goes on to another host."""

    def test_the_first_one_gives_its_device_back(self) -> None:
        self.start_compute_with_vgpu('other')
        original = live_migrate.LiveMigrationTask._bind_ports_on_destination
        asked: list[str] = []

        def bind(task: Any, destination: str, *arguments: Any) -> Any:
            asked.append(destination)
            if len(asked) == 1:
                self.assertEqual(1, len(self.held(destination)))
                raise nova_exception.MigrationPreCheckError(reason='a port cannot be bound')
            self.dest = self.computes[destination]
            return original(task, destination, *arguments)

        self.useFixture(fixtures.MonkeyPatch(
            'nova.conductor.tasks.live_migrate.LiveMigrationTask._bind_ports_on_destination', bind))
        self._live_migrate(self.server)
        given_up, there = asked
        self.src = self.dest
        self.assertEqual(there, self.instance(self.server).host)
        self.assertTrue(self.wait_for(lambda: not self.held(given_up)), self.held(given_up))
        self.assertEqual(set(), self.existing(given_up))
        self.assertEqual(self.mdevs(there, self.server), set(self.held(there)))
        # It takes the instance again.
        self.api.post_server_action(self.server['id'],
                                    {'os-migrateLive': {'host': given_up, 'block_migration': 'auto'}})
        self._wait_for_server_parameter(self.server, {'OS-EXT-SRV-ATTR:host': given_up, 'OS-EXT-STS:task_state': None})
        self.assertEqual(self.mdevs(given_up, self.server), set(self.held(given_up)))


class KilledAfterTheCopyTestCase(_Guest):
    """The source's service was killed after the guest had left, before Nova gave the instance its new host."""

    def setUp(self) -> None:
        super().setUp()
        left = threading.Event()

        def leave(*_args: Any, **_kwargs: Any) -> None:
            self.leave_the_source()
            left.set()

        with fixtures.MonkeyPatch('nova.compute.manager.ComputeManager._post_live_migration_update_host', leave):
            self.api.post_server_action(self.server['id'],
                                        {'os-migrateLive': {'host': 'dest', 'block_migration': 'auto'}})
            self.assertTrue(left.wait(60))
            self.moving = self.allocations()
            self.src = self.restart_compute_service('src')

    def leave_the_source(self) -> None:
        self.fake('src').lookupByUUIDString(self.server['id']).destroy()
        self.undefine()

    def undefine(self) -> None:
        self.fake('src').lookupByUUIDString(self.server['id']).undefine()

    def be_refused(self, move: Any) -> None:
        """Try another move, which ends in error."""
        self.act(move)
        self.assertTrue(self.wait_for(lambda: [one.status for one in self.moves()] == ['error', 'error']), self.moves())

    def assert_not_at_the_source(self) -> None:
        self.assertEqual([], [domain for domain in self.fake('src')._vms.values() if domain.isActive()])

    def test_placement_counts_the_guest_on_both_hosts(self) -> None:
        self.audit()
        self.assertEqual(self.moving, self.allocations())
        self.assertEqual(self.mdevs('dest', self.server), set(self.held('dest')))

    def test_the_guest_gets_no_second_copy_at_the_source(self) -> None:
        self.act({'reboot': {'type': 'HARD'}})
        self.assert_not_at_the_source()

    def test_nor_does_it_by_a_rescue(self) -> None:
        os.makedirs(os.path.join(nova.conf.CONF.instances_path, self.server['id']), exist_ok=True)
        self.act({'rescue': {}})
        self.assertEqual('ERROR', self.api.get_server(self.server['id'])['status'])
        self.assert_not_at_the_source()

    def test_nor_after_a_later_live_migration_that_the_destination_refused(self) -> None:
        self.be_refused({'os-migrateLive': {'host': 'dest', 'block_migration': 'auto'}})
        self.act({'reboot': {'type': 'HARD'}})
        self.assert_not_at_the_source()

    def test_nor_after_a_later_cold_migration_that_the_destination_refused(self) -> None:
        self.be_refused({'migrate': None})
        self.act({'reboot': {'type': 'HARD'}})
        self.assert_not_at_the_source()

    def test_nothing_is_left_at_the_source_once_an_operator_has_corrected_the_host(self) -> None:
        instance, node = self.instance(self.server), objects.ComputeNode.get_first_node_by_host_for_old_compat(
            nova_context.get_admin_context(), 'dest')
        instance.host, instance.node, instance.compute_id = 'dest', node.hypervisor_hostname, node.id
        instance.save()
        self.src = self.restart_compute_service('src')
        self.assert_moved()
        self.assertEqual([self.moving[0], {}], self.allocations())


class PowerLostAfterTheCopyTestCase(KilledAfterTheCopyTestCase):
    """The source lost its power after the guest had left, before libvirt undefined it there."""

    def leave_the_source(self) -> None:
        self.fake('src').lookupByUUIDString(self.server['id']).destroy()

    def test_the_guest_gets_no_second_copy_when_the_source_boots(self) -> None:
        self.flags(resume_guests_state_on_host_boot=True)
        self.src = self.restart_compute_service('src')
        self.assert_not_at_the_source()

    def test_nothing_is_left_at_the_source_once_an_operator_has_corrected_the_host(self) -> None:
        self.undefine()
        super().test_nothing_is_left_at_the_source_once_an_operator_has_corrected_the_host()


class _Namespaces(nova_base.LibvirtMigrationMixin, base.PmemGuests):
    """A guest with a namespace, whose copies fail. Casts do not wait for their work, as on real hosts."""

    CAST_AS_CALL = False

    def setUp(self) -> None:
        self.FAKE_LIBVIRT_VERSION, self.FAKE_QEMU_VERSION = 8_006_000, 8_001_000
        super().setUp()
        self.start('src', 'ns_1')
        self.start('dest', 'ns_2', 'ns_3')
        self.server = self.boot('src', self.flavor_of(1))
        self.copies = 0

    def _migrate_stub(self, domain: str, destination: str, params: Any, flags: int) -> None:
        self.copies += 1
        [named] = self.held()
        with open(self._file('dest', named), 'r+b') as file:
            file.write(b'secret')
        self.fake('src').lookupByUUIDString(self.server['id']).fail_job()

    def held(self) -> list[str]:
        """The namespaces that the guest has at the destination, without those that go back."""
        manager = self.computes['dest'].driver.devicetrack.manager
        return [one.identifier for one in manager.assignments(self.server['id']) if one.state != vocabulary.RELEASING]

    def begin(self) -> None:
        self.api.post_server_action(self.server['id'], {'os-migrateLive': {'host': 'dest', 'block_migration': 'auto'}})

    def wait_until_failed(self) -> None:
        self._wait_for_migration_status(self.server, ['failed', 'error'])
        self._wait_for_server_parameter(self.server, {'OS-EXT-STS:task_state': None})

    def stop_at(self, method: str, call: int) -> tuple[threading.Event, threading.Event]:
        """Stop a method of Nova's driver before its end.

        :param call: which of its calls, from 1
        :returns: the first event says that it has stopped there, and the second one lets it go on
        """
        owner = adapted.running(driver.LibvirtDriver)
        original, calls = getattr(owner, method), list[bool]()
        there, go_on = threading.Event(), threading.Event()

        def stop(*args: Any, **kwargs: Any) -> Any:
            answer = original(*args, **kwargs)
            calls.append(True)
            if len(calls) == call:
                there.set()
                go_on.wait(120)
            return answer

        self.useFixture(fixtures.MockPatchObject(owner, method, stop))
        self.addCleanup(go_on.set)
        return there, go_on


class FailedTestCase(_Namespaces):

    def test_a_late_rollback_takes_nothing_from_the_next_migration(self) -> None:
        rolling, roll = self.stop_at('rollback_live_migration_at_destination', 1)
        prepared, go_on = self.stop_at('pre_live_migration', 2)
        ended = self.end_of('manager.ComputeManager.rollback_live_migration_at_destination')
        self.begin()
        self.wait_until_failed()
        self.assertTrue(rolling.wait(60))
        self.begin()
        self.assertTrue(prepared.wait(60))
        had = self.held()
        roll.set()
        self.assertTrue(ended.wait(60))
        self.assertIn(had[0], self.held())
        go_on.set()
        self.wait_until_failed()

    def test_nothing_is_copied_to_devices_that_the_migration_has_no_more(self) -> None:
        def lose(_arguments: Any) -> None:
            self.computes['dest'].driver.devicetrack.manager.release(None, self.instance(self.server))

        self.before('pre_live_migration', lose)
        self.begin()
        self.wait_until_failed()
        self.assertEqual(0, self.copies)
        self.assertEqual('src', self.instance(self.server).host)

    def test_the_source_waits_for_no_wipe(self) -> None:
        self.flags(rpc_response_timeout=20)
        wiping, go_on = threading.Event(), threading.Event()
        leave_host = releasing.Releasing.leave_host

        def last(*args: Any) -> releasing.Answers:
            wiping.set()
            go_on.wait(120)
            return leave_host(*args)

        self.useFixture(fixtures.MonkeyPatch('devicetrack.claims.releasing.Releasing.leave_host', last))
        self.addCleanup(go_on.set)
        self.begin()
        self.wait_until_failed()
        self.assertTrue(wiping.wait(60))
        instance = self.instance(self.server)
        self.assertEqual(('active', 'src'), (instance.vm_state, instance.host))
