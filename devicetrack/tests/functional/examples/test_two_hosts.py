"""The compute service of ``examples/compute``: what it prints, what its errors leave, and how it survives a kill."""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import os
import pathlib
import textwrap
from typing import Any
from unittest import mock

import devicetrack
from devicetrack import exception
from devicetrack.objects import DeviceRequest
from devicetrack.service.document import Document
from devicetrack.tests import base
from devicetrack.tests import processes
from devicetrack.tests.functional.examples import two_hosts

NAMESPACE = 'CUSTOM_PMEM_NAMESPACE_4GB'
PAGE = pathlib.Path(devicetrack.__file__).parent.parent / 'doc' / 'source' / 'user' / 'wiring.rst'


class TestProgram(base.TestCase):

    def test_it_prints_what_the_page_says(self) -> None:
        answer = processes.run(os.fspath(two_hosts.ROOT / 'two_hosts.py'), cwd=self.temp_dir())
        self.assertEqual((0, ''), (answer.returncode, answer.stderr))
        self.assertIn('::\n\n' + textwrap.indent(answer.stdout, '    ') + '\n', PAGE.read_text(encoding='utf-8'))

    def test_the_service_is_short(self) -> None:
        self.assertLessEqual(len((two_hosts.ROOT / 'service.py').read_text(encoding='utf-8').splitlines()), 130)


class TestErrors(two_hosts.TwoHostsTestCase):
    """What holds after an error, and what may be repeated."""

    def refuse(self, name: str, **where: Any) -> Any:
        """Let calls of the guests of all hosts fail."""
        return mock.patch.object(self.names['Guests'], name, mock.Mock(side_effect=ZeroDivisionError, **where))

    def test_a_boot_without_devices_leaves_nothing_and_may_be_repeated(self) -> None:
        huge = {**two_hosts.SMALL, 'extra_specs': {'hw:pmem': '4GB,4GB,4GB,4GB'}}
        error = self.assertRaises(exception.OperationFailed, self.one.claim, self.instance, huge)
        self.assertIsInstance(error.__cause__, exception.NoFit)
        self.assertEqual('deleted', self.check('refused').state)
        self.one.claim(self.instance, two_hosts.SMALL)
        self.assertEqual('active', self.check('repeated').state)

    def test_a_service_may_remove_a_document_as_it_saves_it_without_hosts(self) -> None:
        save, remove = self.names['Database'].save, 'DELETE FROM instances WHERE uuid = ?'

        def save_or_remove(database: Any, instance_uuid: str, document: str, replaces: str | None, hosts: Any) -> bool:
            saved: bool = save(database, instance_uuid, document, replaces, hosts)
            if saved and not hosts:
                database._do(remove, instance_uuid)
            return saved

        huge = {**two_hosts.SMALL, 'extra_specs': {'hw:pmem': '4GB,4GB,4GB,4GB'}}
        with mock.patch.object(self.names['Database'], 'save', save_or_remove):
            error = self.assertRaises(exception.OperationFailed, self.one.claim, self.instance, huge)
            self.assertIsInstance(error.__cause__, exception.NoFit)
            self.assertIn('NoFit', error.reason)
            self.assertEqual(getattr(error.__cause__, 'for_tenant', None), error.for_tenant)
            self.one.claim(self.instance, two_hosts.SMALL)
            self.one.resize(self.instance, two_hosts.LARGE, 'two')
            busy = self.assertRaises(exception.InstanceBusy, self.two.resize, self.instance, two_hosts.SMALL)
            self.assertIn('is moving to two (resize, finished): confirm or revert that first', str(busy))
            self.assertEqual('two', busy.host)
            self.two.confirm(self.instance)
            self.two.release(self.instance)
            self.one.go_on(self.instance)
        self.assertIsNone(self.document())

    def test_a_boot_whose_guest_does_not_start_leaves_nothing(self) -> None:
        with self.refuse('start'):
            error = self.assertRaises(exception.OperationFailed, self.one.claim, self.instance, two_hosts.SMALL)
        self.assertIsInstance(error.__cause__, ZeroDivisionError)
        self.assertEqual('deleted', self.check('failed').state)

    def test_a_flavor_without_a_meaning_changes_nothing(self) -> None:
        wrong = {**two_hosts.SMALL, 'extra_specs': {'resources:VGPU': 'many'}}
        self.assertRaises(exception.BadRequest, self.one.claim, self.instance, wrong)
        self.assertIsNone(self.document())

    def test_an_operation_on_an_instance_that_nobody_knows_is_refused(self) -> None:
        self.assertRaises(exception.BadRequest, self.one.resize, self.instance, two_hosts.LARGE)
        self.one.release(self.instance)

    def test_a_resize_whose_guest_does_not_start_is_undone(self) -> None:
        start = self.names['Guests'].start

        def start_small(guests: Any, instance_uuid: str, flavor: Any, config: Any) -> None:
            if flavor == two_hosts.LARGE:
                raise ZeroDivisionError
            start(guests, instance_uuid, flavor, config)

        for host in (None, 'two'):
            self.one.claim(self.instance, two_hosts.SMALL)
            with mock.patch.object(self.names['Guests'], 'start', start_small):
                self.assertRaises(exception.OperationFailed, self.one.resize, self.instance, two_hosts.LARGE, host)
            document = self.check(f'resize to {host}')
            self.assertEqual(('one', 'active', two_hosts.SMALL), (document.host, document.state, document.flavor))

    def test_the_owner_of_an_instance_reads_why_it_failed_at_the_other_host(self) -> None:
        self.one.claim(self.instance, two_hosts.SMALL)
        huge = {**two_hosts.SMALL, 'extra_specs': {'hw:pmem': '4GB,4GB,4GB,4GB'}}
        error = self.assertRaises(exception.OperationFailed, self.one.resize, self.instance, huge, 'two')
        self.assertIsNone(error.__cause__)
        self.assertEqual(f'Not enough devices are free for the instance. It needs: 4 {NAMESPACE}.', error.for_tenant)

    def test_a_resize_to_a_host_that_is_down_is_undone(self) -> None:
        self.one.claim(self.instance, two_hosts.SMALL)
        self.hosts['two'].end()
        error = self.assertRaises(exception.OperationFailed, self.one.resize, self.instance, two_hosts.LARGE, 'two')
        self.assertEqual('The operation failed. The instance is as it was before.', error.for_tenant)
        self.hosts['two'].start()
        self.assertEqual(('one', 'active'), (self.check('undone').host, self.document().state))

    def test_a_move_to_a_host_that_does_not_answer_writes_nothing(self) -> None:
        self.one.claim(self.instance, two_hosts.VGPU)
        before = self.database.document(self.instance)
        self.hosts['two'].end()
        for host in ('two', 'nowhere'):
            for move in (lambda: self.one.resize(self.instance, two_hosts.LARGE, host),     # noqa: B023
                         lambda: self.one.live_migrate(self.instance, host)):               # noqa: B023
                error = self.assertRaises(exception.OperationFailed, move)
                self.assertIn(f'host {host} does not answer, or failed: ', error.reason)
                self.assertEqual(before, self.database.document(self.instance))
        self.assertEqual(['one'], [host for host in ('one', 'two', 'nowhere') if self.database.documents(host)])

    def test_a_repeated_move_does_not_ask_the_destination_again(self) -> None:
        self.one.claim(self.instance, two_hosts.VGPU)
        self.one.live_migrate(self.instance, 'two')
        self.hosts['two'].end()
        self.one.live_migrate(self.instance, 'two')

    def test_a_save_that_did_not_hold_is_an_error_and_the_operation_may_be_repeated(self) -> None:
        """Each save is lost once: the service says that it saved, and did not."""
        save, held = self.names['Database'].save, 0

        def lose(database: Any, *args: Any) -> bool:
            nonlocal held
            held -= 1
            return save(database, *args) if held >= 0 else True

        lost = []
        for operation in (lambda: self.one.claim(self.instance, two_hosts.SMALL),
                          lambda: self.one.stop(self.instance), lambda: self.one.start(self.instance),
                          lambda: self.one.resize(self.instance, two_hosts.LARGE, 'two'),
                          lambda: self.one.confirm(self.instance), lambda: self.two.release(self.instance)):
            for number in range(10):
                held = min(number, 1)
                try:
                    with mock.patch.object(self.names['Database'], 'save', lose):
                        operation()
                    break
                except exception.DocumentNotSaved as error:
                    self.assertEqual(self.instance, error.instance_uuid)
                    lost.append(error.replaced)
                except exception.OperationPending as error:
                    lost.append(f'at {error.host}')
        self.assertEqual([
            'none', 'building on host one', 'active on host one', 'off on host one', 'starting on host one',
            'active on host one', 'at two', 'moving to two (resize, pre-migrating)', 'at two',
            'moving to two (resize, finished)', 'active on host two', 'active on host two', 'deleting on host two'],
            lost)
        self.check('deleted')

    def test_a_document_of_before_the_last_save_is_an_error(self) -> None:
        self.one.claim(self.instance, two_hosts.SMALL)
        before = self.database.document(self.instance)
        self.one.stop(self.instance)
        with mock.patch.object(self.names['Database'], 'document', mock.Mock(return_value=before)):
            error = self.assertRaises(exception.DocumentNotSaved, self.one.resize, self.instance, two_hosts.LARGE)
        self.assertIn('the document before it: active on host one', str(error))

    def test_a_live_migration_that_goes_well_logs_no_warning(self) -> None:
        self.one.claim(self.instance, two_hosts.VGPU)
        with self.assertNoLogs(level='WARNING'):
            self.one.live_migrate(self.instance, 'two')

    def test_a_live_migration_that_does_not_arrive_leaves_the_guest(self) -> None:
        self.one.claim(self.instance, two_hosts.VGPU)
        with self.refuse('migrate'):
            self.assertRaises(exception.OperationFailed, self.one.live_migrate, self.instance, 'two')
        self.assertEqual('one', self.check('failed').host)

    def test_a_start_that_failed_may_be_repeated(self) -> None:
        self.one.claim(self.instance, two_hosts.SMALL)
        self.one.stop(self.instance)
        with self.refuse('start'):
            self.assertRaises(ZeroDivisionError, self.one.start, self.instance)
        self.one.start(self.instance)
        self.assertEqual('active', self.check('repeated').state)

    def test_a_guest_that_was_stopped_stays_off_after_a_start(self) -> None:
        self.one.claim(self.instance, two_hosts.SMALL)
        self.one.stop(self.instance)
        self.hosts['one'].end()
        self.hosts['one'].start()
        self.assertEqual({self.instance: False}, self.hosts['one'].guests())
        self.one.start(self.instance)
        self.check('started')

    def test_after_a_revert_on_one_host_the_new_devices_go_back_without_an_audit(self) -> None:
        for small, large in ((two_hosts.SMALL, two_hosts.LARGE), (two_hosts.VGPU, {
                **two_hosts.VGPU, 'name': 'other', 'memory_mb': 2048})):
            self.one.claim(self.instance, small)
            for _ in range(2):
                self.one.resize(self.instance, large)
                self.one.revert(self.instance)
                self.one.manager.wait_for_wipes()
                rows = self.one.manager.assignments()
                self.assertEqual([('current', 'active')], [(row.role, row.state) for row in rows])
                self.assertEqual((), self.document().ended)
            self.one.release(self.instance)
            self.one.manager.wait_for_wipes()

    def test_an_audit_goes_on_with_a_stop_that_failed(self) -> None:
        self.one.claim(self.instance, two_hosts.SMALL)
        with self.refuse('stop'):
            self.assertRaises(ZeroDivisionError, self.one.stop, self.instance)
        self.settle()
        self.assertEqual({self.instance: False}, self.hosts['one'].guests())
        self.one.start(self.instance)
        self.check('started')

    def test_a_guest_that_was_off_stays_off_when_it_moves(self) -> None:
        self.one.claim(self.instance, two_hosts.SMALL)
        self.one.stop(self.instance)
        for host in (None, 'two'):
            for end in ('confirm', 'revert'):
                home = self.document().host
                for flavor in (two_hosts.LARGE, two_hosts.SMALL):
                    there = host and {'one': 'two', 'two': 'one'}[self.document().host]
                    now = self.hosts[self.document().host].lifecycle
                    now.resize(self.instance, flavor, there)
                    self.assertEqual('off', self.document().state, f'{host=} {end=}')
                    getattr(now, end)(self.instance)
                    self.settle()
                    document = self.document()
                    self.assertEqual('off', document.state, f'{host=} {end=}')
                    for one in self.hosts.values():
                        self.assertNotIn(True, one.guests().values(), f'{host=} {end=}')
                    if end == 'revert':
                        self.assertEqual(home, document.host)
                    if host is None:
                        now.start(self.instance)
                        self.check(f'{host=} {end=} started')
                        now.stop(self.instance)
        self.hosts[self.document().host].lifecycle.start(self.instance)
        self.check('started')

    def test_a_guest_that_moved_to_no_devices_starts_while_the_old_ones_cannot_go_back(self) -> None:
        none = {**two_hosts.SMALL, 'name': 'none', 'extra_specs': {}}
        for before, after, end in ((two_hosts.SMALL, none, 'confirm'), (none, two_hosts.SMALL, 'revert')):
            self.one.claim(self.instance, before)
            if end == 'confirm':
                self.one.stop(self.instance)
            self.one.resize(self.instance, after)
            getattr(self.one, end)(self.instance)
            self.settle()
            self.one.start(self.instance)
            self.assertEqual(none, self.check(end).flavor)
            self.one.release(self.instance)
            self.settle()

    def test_a_guest_that_was_off_stays_off_when_it_is_evacuated(self) -> None:
        self.one.claim(self.instance, two_hosts.SMALL)
        self.one.stop(self.instance)
        self.hosts['one'].lose_power()
        self.two.evacuate(self.instance)
        self.assertEqual('off', self.document().state)
        self.hosts['one'].start()
        self.settle()
        self.assertEqual([{}, {}], [host.guests() for host in self.hosts.values()])
        self.two.start(self.instance)
        self.check('started')

    def test_guests_run_again_after_a_power_cut(self) -> None:
        self.one.claim(self.instance, two_hosts.SMALL)
        self.hosts['one'].lose_power()
        self.hosts['one'].start()
        self.check('after the power cut')

    def test_an_instance_moves_between_hosts_whose_nodes_have_other_names(self) -> None:
        for name, host in self.hosts.items():
            host.end()
            host.nodename = f'node-of-{name}'
            host.start()
        self.one.claim(self.instance, two_hosts.SMALL)
        self.one.resize(self.instance, two_hosts.LARGE)
        self.one.confirm(self.instance)
        self.one.resize(self.instance, two_hosts.SMALL, 'two')
        self.two.revert(self.instance)
        self.one.live_migrate(self.instance, 'two')
        self.settle()
        self.hosts['two'].lose_power()
        self.one.evacuate(self.instance)
        self.hosts['two'].start()
        self.assertEqual('one', self.check('moved').host)

    def test_a_call_at_another_host_is_told_the_host_of_the_instance(self) -> None:
        self.one.claim(self.instance, two_hosts.SMALL)
        for call in (self.two.stop, self.two.start, lambda uuid: self.two.claim(uuid, two_hosts.SMALL),
                     lambda uuid: self.two.resize(uuid, two_hosts.LARGE),
                     lambda uuid: self.two.live_migrate(uuid, 'two')):
            busy = self.assertRaises(exception.InstanceBusy, call, self.instance)
            self.assertEqual(('active', 'one'), (busy.state, busy.host))
        self.assertIn('is active; its host is one', str(busy))

    def test_an_instance_whose_boot_failed_cannot_move_and_the_error_says_so(self) -> None:
        huge = {**two_hosts.SMALL, 'extra_specs': {'hw:pmem': '4GB,4GB,4GB,4GB'}}
        self.assertRaises(exception.OperationFailed, self.one.claim, self.instance, huge)
        for call in (self.one.evacuate, self.two.evacuate, self.one.revert,
                     lambda uuid: self.one.live_migrate(uuid, 'one')):
            busy = self.assertRaises(exception.InstanceBusy, call, self.instance)
            self.assertEqual('deleted', busy.state)

    def test_another_operation_is_refused_while_a_resize_waits(self) -> None:
        self.one.claim(self.instance, two_hosts.SMALL)
        self.one.resize(self.instance, two_hosts.LARGE)
        for refused in (lambda: self.one.resize(self.instance, two_hosts.SMALL), lambda: self.one.stop(self.instance),
                        lambda: self.one.live_migrate(self.instance, 'two')):
            self.assertRaises(exception.InstanceBusy, refused)
        self.one.release(self.instance)
        self.assertEqual('deleted', self.check('released').state)

    def test_a_delete_while_the_other_host_is_down_ends_when_it_is_back(self) -> None:
        self.one.claim(self.instance, two_hosts.SMALL)
        self.one.resize(self.instance, two_hosts.LARGE, 'two')
        self.hosts['one'].lose_power()
        self.two.release(self.instance)
        self.assertEqual('deleting', self.document().state)
        self.hosts['one'].start()
        self.assertEqual('deleted', self.check('released').state)

    def test_a_delete_by_another_host_amid_a_resize_wins(self) -> None:
        self.one.claim(self.instance, two_hosts.SMALL)
        stop = self.names['Guests'].stop

        def stop_and_be_deleted(guests: Any, instance_uuid: str) -> None:
            stop(guests, instance_uuid)
            document = self.document()
            if not document.is_over:
                self.database.save(instance_uuid, document.deleting().text, document.saved, ['one', 'two'])

        with mock.patch.object(self.names['Guests'], 'stop', stop_and_be_deleted):
            self.assertRaises(exception.OperationFailed, self.one.resize, self.instance, two_hosts.LARGE, 'two')
        self.assertEqual('deleted', self.check('deleted').state)

    def test_a_delete_amid_a_revert_wins(self) -> None:
        self.one.claim(self.instance, two_hosts.SMALL)
        self.one.resize(self.instance, two_hosts.LARGE)
        stop = self.names['Guests'].stop

        def stop_and_be_deleted(guests: Any, instance_uuid: str) -> None:
            stop(guests, instance_uuid)
            document = self.document()
            if not document.is_over:
                self.database.save(instance_uuid, document.deleting().text, document.saved, ['one'])

        with mock.patch.object(self.names['Guests'], 'stop', stop_and_be_deleted):
            self.assertRaises(exception.OperationFailed, self.one.revert, self.instance)
        self.assertEqual('deleted', self.check('deleted').state)

    def test_a_delete_of_what_another_call_has_deleted_meanwhile_does_nothing(self) -> None:
        self.one.claim(self.instance, two_hosts.SMALL)
        text = self.database.document(self.instance)
        self.two.release(self.instance)
        self.database._do('DELETE FROM instances WHERE uuid = ?', self.instance)
        read = mock.Mock(side_effect=[text, None, None])
        with mock.patch.object(self.names['Database'], 'document', read):
            self.one.release(self.instance)
        self.assertIsNone(self.check('deleted'))

    def test_two_calls_at_once_are_one_operation(self) -> None:
        first, second = self.together(*[lambda: self.one.claim(self.instance, two_hosts.SMALL)] * 2)
        self.assertEqual([device.identifier for device in first], [device.identifier for device in second])
        moved = self.together(*[lambda: self.one.resize(self.instance, two_hosts.LARGE, 'two')] * 2)
        self.assertEqual([None, None], moved)
        self.assertEqual('two', self.check('moved').host)

    def test_a_host_that_was_away_for_several_moves_keeps_nothing(self) -> None:
        self.one.claim(self.instance, two_hosts.SMALL)
        self.hosts['one'].lose_power()
        self.two.evacuate(self.instance)
        self.two.resize(self.instance, two_hosts.LARGE)
        self.two.confirm(self.instance)
        self.hosts['one'].start()
        self.assertEqual('two', self.check('back').host)


class TestAllocations(two_hosts.TwoHostsTestCase):
    """A service with placement passes the allocations of its instances."""

    def at(self, *names: str, amount: int = 1) -> Any:
        """Allocations of namespaces at the nodes of these hosts."""
        return {self.hosts[name].lifecycle.manager.providers()[0].uuid: {'resources': {NAMESPACE: amount, 'VCPU': 2}}
                for name in names}

    def test_they_say_where_the_devices_are_in_every_operation(self) -> None:
        self.one.claim(self.instance, two_hosts.SMALL, self.at('one'))
        self.one.resize(self.instance, two_hosts.LARGE, 'two', self.at('two', amount=2))
        self.one.revert(self.instance)
        self.assertEqual(self.at('one'), self.check('reverted').allocations)
        self.one.resize(self.instance, two_hosts.LARGE, 'two', self.at('two', amount=2))
        self.one.confirm(self.instance)
        self.assertEqual(self.at('two', amount=2), self.check('confirmed').allocations)
        self.hosts['two'].lose_power()
        self.one.evacuate(self.instance, allocations := {**self.wanted, **self.at('one', amount=2)})
        self.hosts['two'].start()
        self.assertEqual(allocations, self.check('evacuated').allocations)

    @property
    def wanted(self) -> Any:
        """Allocations of another host."""
        return {'aaaaaaaa-0000-4000-8000-000000000000': {'resources': {NAMESPACE: 2}}}

    def test_allocations_of_another_host_are_refused(self) -> None:
        error = self.assertRaises(exception.OperationFailed, self.one.claim, self.instance, two_hosts.SMALL,
                                  self.wanted)
        self.assertIsInstance(error.__cause__, exception.UnknownProvider)
        self.one.claim(self.instance, two_hosts.SMALL, self.at('one'))
        self.assertRaises(exception.OperationFailed, self.one.resize, self.instance, two_hosts.LARGE, None,
                          self.wanted)
        self.check('refused')

    def test_a_live_migration_takes_those_of_the_destination(self) -> None:
        node, card = (provider.uuid for provider in self.two.manager.providers())
        self.one.claim(self.instance, two_hosts.VGPU)
        for wrong in ({node: {'resources': {'VGPU': 2}}}, self.wanted):
            self.assertRaises(exception.OperationFailed, self.one.live_migrate, self.instance, 'two', wrong)
        self.one.live_migrate(self.instance, 'two', {card: {'resources': {'VGPU': 1}}})
        self.assertEqual('two', self.check('migrated').host)

    def test_the_next_process_claims_by_them(self) -> None:
        request = DeviceRequest.of((NAMESPACE, 2), numa_nodes=[0])
        victim = self.hosts['one']
        with mock.patch.object(self.one.manager, 'instance_claim', mock.Mock(side_effect=two_hosts.Killed)):
            self.assertRaises(two_hosts.Killed, self.one.claim, self.instance, two_hosts.SMALL, request)
        victim.end()
        victim.start()
        self.assertEqual(2, len(self.one.manager.assignments(self.instance)))
        self.assertEqual(2, len(self.one.claim(self.instance, two_hosts.SMALL, request)))
        self.assertRaises(exception.InstanceBusy, self.one.claim, self.instance, two_hosts.SMALL)

    def test_a_move_without_them_is_refused(self) -> None:
        self.one.claim(self.instance, two_hosts.SMALL, self.at('one'))
        self.assertRaises(exception.BadRequest, self.one.resize, self.instance, two_hosts.LARGE)
        self.assertRaises(exception.BadRequest, self.one.live_migrate, self.instance, 'two')
        self.assertRaises(exception.BadRequest, self.two.evacuate, self.instance)
        self.assertRaises(exception.BadRequest, self.one.claim, self.instance, two_hosts.SMALL, {'a': {1, 2}})
        self.check('refused')


class TestDocument(base.TestCase):

    def test_one_of_a_newer_release_is_refused(self) -> None:
        text = Document('a', 'one', {}).text.replace('"version": 1', '"version": 2')
        self.assertRaises(exception.UnknownObject, Document.read, text)

    def test_it_is_read_as_it_was_written(self) -> None:
        document = Document('a', 'one', {'extra_specs': {}}, leaving=('one',))
        self.assertEqual(document, Document.read(document.text))


class TestKilled(two_hosts.TwoHostsTestCase):
    """An operation is killed at every moment, on each host. Then it is repeated, or the next start is killed too."""

    def explore(self, prepare: Callable[[], None], operation: Callable[[], Any], end: dict[str, Any]) -> None:
        for repeated in (True, False):
            for victim in self.hosts.values():
                number = 1
                while self.kill(victim, number, prepare, operation):
                    moment = f'{number}: {victim.passed[number - 1]} of host {victim.name}, {repeated=}'
                    victim.end()
                    if not repeated:
                        self.kill_while_it_starts(victim, number)
                    victim.start()
                    for host in self.hosts.values():
                        if host.lifecycle is not None:
                            host.lifecycle.manager.wait_for_wipes()     # of what was undone
                    if repeated:
                        operation()
                    for host in self.hosts.values():
                        if host.lifecycle is None:
                            host.start()
                    document = self.check(moment)
                    if repeated:
                        self.assertEqual(end, {name: getattr(document, name) for name in end}, moment)
                    self.clear()
                    number += 1
                self.clear()

    def kill(self, victim: two_hosts.Host, number: int, prepare: Callable[[], None],
             operation: Callable[[], Any]) -> bool:
        """Kill a host at this moment of an operation. Returns whether the operation has so many moments there."""
        prepare()
        victim.passed.clear()
        victim.kill_at = number
        try:
            operation()
        except two_hosts.Killed:
            pass
        except exception.DeviceTrackError:
            self.assertGreaterEqual(len(victim.passed), number)         # the other host died
        victim.kill_at = 0
        return len(victim.passed) >= number

    def kill_while_it_starts(self, victim: two_hosts.Host, number: int) -> None:
        victim.passed.clear()
        victim.kill_at = number
        with contextlib.suppress(two_hosts.Killed):
            victim.start()
        victim.end()

    def clear(self) -> None:
        for host in self.hosts.values():
            if host.lifecycle is None:
                host.start()
        for host in self.hosts.values():
            host.lifecycle.release(self.instance)
        self.settle()

    def boot(self, flavor: Any = two_hosts.SMALL) -> None:
        self.one.claim(self.instance, flavor)

    def test_boot(self) -> None:
        self.explore(lambda: None, self.boot, {'state': 'active', 'host': 'one'})

    def test_delete(self) -> None:
        self.explore(self.boot, lambda: self.one.release(self.instance), {'state': 'deleted'})

    def test_resize_on_one_host(self) -> None:
        self.explore(self.boot, lambda: self.one.resize(self.instance, two_hosts.LARGE),
                     {'host': 'one', 'flavor': two_hosts.LARGE})

    def resized(self, host: str | None = None) -> None:
        self.boot()
        self.one.resize(self.instance, two_hosts.LARGE, host)

    def test_confirm_and_revert_on_one_host(self) -> None:
        self.explore(self.resized, lambda: self.one.confirm(self.instance), {'host': 'one', 'flavor': two_hosts.LARGE})
        self.explore(self.resized, lambda: self.one.revert(self.instance), {'host': 'one', 'flavor': two_hosts.SMALL})

    def test_resize_to_another_host(self) -> None:
        self.explore(self.boot, lambda: self.one.resize(self.instance, two_hosts.LARGE, 'two'),
                     {'host': 'two', 'flavor': two_hosts.LARGE})

    def test_confirm_and_revert_on_two_hosts(self) -> None:
        self.explore(lambda: self.resized('two'), lambda: self.one.confirm(self.instance),
                     {'host': 'two', 'flavor': two_hosts.LARGE})
        self.explore(lambda: self.resized('two'), lambda: self.two.revert(self.instance),
                     {'host': 'one', 'flavor': two_hosts.SMALL})

    def test_live_migration(self) -> None:
        self.explore(lambda: self.boot(two_hosts.VGPU), lambda: self.one.live_migrate(self.instance, 'two'),
                     {'host': 'two', 'state': 'active'})

    def test_evacuation(self) -> None:
        def lose_power() -> None:
            self.boot()
            self.hosts['one'].lose_power()

        self.explore(lose_power, lambda: self.two.evacuate(self.instance), {'host': 'two', 'state': 'active'})
