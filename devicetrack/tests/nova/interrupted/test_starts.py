"""Starts that are refused: Nova must not have taken the guest apart by then."""

from __future__ import annotations

import os
from typing import Any
from unittest import mock

import fixtures
import nova.conf
from nova.tests.fixtures import libvirt as fakelibvirt

from devicetrack import exception
from devicetrack.claims import manager
from devicetrack.nova import binding
from devicetrack.tests.nova.stock_failures import base

CONF = nova.conf.CONF

ANOTHER_BOOT = '2f1e0c7a-5b64-4d38-9a0f-7c6d5e4b3a29'


class _Guest(base.PmemGuests):

    def setUp(self) -> None:
        super().setUp()
        os.makedirs(os.path.join(CONF.instances_path), exist_ok=True)
        self.start('host1', 'ns_1', 'ns_2')
        self.server = self.boot('host1', self.flavor_of(1))
        self.write('host1', self.server)
        self.had = self.namespaces('host1', self.server)

    def assert_on_its_own(self) -> None:
        self.assertEqual(self.had, self.namespaces('host1', self.server))
        self.assertTrue(self.has_its_bytes('host1', self.server))

    def rescue(self) -> None:
        directory = os.path.join(CONF.instances_path, self.server['id'])
        os.makedirs(directory, exist_ok=True)
        self._rescue_server(self.server)


class RefusedTestCase(_Guest):

    def refuse(self, call: str, error: Exception) -> Any:
        """Have a call of the manager fail."""
        return mock.patch.object(manager.ClaimManager, call, autospec=True, side_effect=error)

    def test_a_guest_that_may_not_resume_stays_suspended(self) -> None:
        self._suspend_server(self.server)
        domains = set(self.fake('host1')._vms)
        with self.refuse('kept_definition', exception.HypervisorUnreachable('qemu:///system', 'gone')):
            self.api.post_server_action(self.server['id'], {'resume': {}}, check_response_status=[202, 500])
            self._wait_for_server_parameter(self.server, {'OS-EXT-STS:task_state': None})
        self.assertEqual(domains, set(self.fake('host1')._vms))
        self._resume_server(self.server)
        self.assert_on_its_own()

    def test_a_guest_that_may_not_leave_its_rescue_stays_there(self) -> None:
        self.rescue()
        with self.refuse('kept_definition', exception.HypervisorUnreachable('qemu:///system', 'gone')):
            self.api.post_server_action(self.server['id'], {'unrescue': None}, check_response_status=[202, 500])
            self._wait_for_server_parameter(self.server, {'OS-EXT-STS:task_state': None})
        self.assertEqual(1, self.fake('host1').lookupByUUIDString(self.server['id']).info()[0])


class SchemaTestCase(_Guest):

    def test_a_release_that_starts_while_another_one_runs_leaves_its_schema_alone(self) -> None:
        compute = self.computes['host1']
        with mock.patch('devicetrack.sync_store', autospec=True) as sync:
            self.assertRaises(exception.HostInUse, binding.Binding(compute.driver, compute.manager.rt).start)
        sync.assert_not_called()


class HostBootTestCase(_Guest):

    def test_a_guest_leaves_its_rescue_though_its_namespaces_have_other_paths(self) -> None:
        self.rescue()
        self.fake('host1').lookupByUUIDString(self.server['id']).destroy()
        self.renumber('host1', by=5)
        self.useFixture(fixtures.MonkeyPatch('devicetrack.virt.libvirt.driver.LibvirtDriver.boot_id',
                                             lambda _driver: ANOTHER_BOOT))
        self.restart('host1')
        self.api.post_server_action(self.server['id'], {'unrescue': None}, check_response_status=[202, 500])
        self._wait_for_server_parameter(self.server, {'OS-EXT-STS:task_state': None})
        self.assertEqual('ACTIVE', self.api.get_server(self.server['id'])['status'])
        self.assertEqual(1, self.fake('host1').lookupByUUIDString(self.server['id']).isActive())
        self.assert_on_its_own()


class SoftRebootTestCase(_Guest):

    def setUp(self) -> None:
        super().setUp()
        # libvirt has no id for a domain that is off; Nova goes by that, and its tests have one for good.
        self.useFixture(fixtures.MonkeyPatch('nova.tests.fixtures.libvirt.Domain.ID',
                                             lambda domain: domain._id if domain.isActive() else -1))
        self.starts: list[Any] = []
        create = fakelibvirt.Domain.createWithFlags

        def note_and_create(domain: Any, flags: int) -> None:
            self.starts.append(domain.UUIDString())
            create(domain, flags)

        self.useFixture(fixtures.MonkeyPatch('nova.tests.fixtures.libvirt.Domain.createWithFlags', note_and_create))

    def test_a_guest_starts_again_on_what_it_has_and_that_it_did_is_noted(self) -> None:
        noted = []
        rebooted = manager.ClaimManager.rebooted

        def note(ours: manager.ClaimManager, context: Any, instance: Any) -> None:
            rebooted(ours, context, instance)
            noted.append(instance.uuid)

        self.useFixture(fixtures.MonkeyPatch('devicetrack.claims.manager.ClaimManager.rebooted', note))
        self._reboot_server(self.server)
        self.assertEqual([self.server['id']], self.starts)
        self.assertEqual([self.server['id']], noted)
        self.assert_on_its_own()

    def test_a_guest_whose_definition_names_another_device_by_now_runs_on(self) -> None:
        [named] = self.definition('host1', self.server)['vpmems']
        [path] = {'/dev/dax0.0', '/dev/dax0.1'} - {named['path']}
        named['path'] = path
        self._reboot_server(self.server)
        self.assertEqual([], self.starts)
        self.assertEqual(1, self.fake('host1').lookupByUUIDString(self.server['id']).isActive())
        self.assertEqual('ACTIVE', self.api.get_server(self.server['id'])['status'])
