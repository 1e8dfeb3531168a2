"""A host with guests goes from Nova alone to the adapter, and back: API, conductor, placement and compute are Nova's.

The tests begin with stock Nova, and each installs the adapter itself.
"""

from __future__ import annotations

from collections.abc import Iterable
import contextlib
import json
import os
import types
from typing import Any
from unittest import mock

import fixtures
from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from nova.compute import vm_states
import nova.conf
from nova.scheduler.client import report
from nova.tests.fixtures import libvirt as fakelibvirt
from nova.tests.functional.libvirt import test_vgpu
from nova.virt.libvirt import config as nova_config

import devicetrack
from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.claims import withheld
from devicetrack.claims.manager import ClaimManager
from devicetrack.cmd import nova_host
from devicetrack.engine import findings
from devicetrack.nova import adoption
from devicetrack.nova import interrupted
from devicetrack.nova import record
from devicetrack.tests.nova import adapted
from devicetrack.tests.nova import hypervisor
from devicetrack.tests.nova import pmem
from devicetrack.tests.nova.stock_failures import base

adapted.as_on_a_host()
vars(record)['nova_context'] = types.SimpleNamespace(get_admin_context=adapted.WORLD.context)

HOST = 'host1'
SECRET = b'what the guest wrote'


def namespace(number: int) -> dict[str, Any]:
    """What ndctl lists of a namespace."""
    size = 4292870144
    return {'dev': f'namespace0.{number}', 'mode': 'devdax', 'map': 'mem', 'size': size, 'name': f'ns_{number}',
            'uuid': f'24ffd5e4-2b39-4f28-88b3-d6dc1ec4486{number}', 'numa_node': 0,
            'daxregion': {'id': 0, 'size': size, 'align': 2097152,
                          'devices': [{'chardev': f'dax0.{number}', 'size': size}]}}


class HostTestCase(test_vgpu.VGPUTestBase):
    """A stock compute service with two cards and four namespaces, and a guest with one of each."""

    def setUp(self) -> None:
        super().setUp()
        self.flags(enabled_mdev_types=fakelibvirt.NVIDIA_11_VGPU_TYPE, group='devices')
        self.flags(pmem_namespaces='SMALL:ns_0|ns_1,LARGE:ns_2|ns_3', group='libvirt')
        self.useFixture(fixtures.MockPatch('nova.privsep.libvirt.cleanup_vpmem'))
        self.useFixture(fixtures.MockPatch('nova.privsep.libvirt.get_pmem_namespaces', return_value=json.dumps(
            [namespace(number) for number in range(4)])))
        self.findings: list[Any] = []
        init_host = ClaimManager.init_host

        def keep(manager: ClaimManager, *args: Any, **kwargs: Any) -> Any:
            found = init_host(manager, *args, **kwargs)
            self.findings = differences(found)
            return found

        self.useFixture(fixtures.MonkeyPatch('devicetrack.claims.manager.ClaimManager.init_host', keep))
        self.start_compute_with_vgpu(HOST)
        devicetrack.register_options(nova.conf.CONF)
        self.connection = self.computes[HOST].driver._host.get_connection()
        self.both = self.boot('LARGE,SMALL', vgpu=1)

    # -- what operators and users do ----------------------------------------------------------------------------------

    def boot(self, asked: str = '', vgpu: int = 0) -> str:
        """Boot a guest; returns its UUID."""
        specs = {**({'hw:pmem': asked} if asked else {}), **({'resources:VGPU': str(vgpu)} if vgpu else {})}
        uuid: str = self._create_server(
            image_uuid='155d900f-4e14-4e4c-a73d-069cbf4541e6', flavor_id=self._create_flavor(extra_spec=specs),
            host=HOST, networks='none', expected_state='ACTIVE')['id']
        return uuid

    def stop_service(self) -> None:
        self.computes[HOST].stop()

    def adopting(self) -> nova_host.NovaHost:
        return nova_host.NovaHost(
            nova.conf.CONF, record.NovaRecord(HOST), lambda: hypervisor.Connection(lambda: self.connection),
            adapted.WORLD.state_path(HOST))

    def start_with_adapter(self) -> Any:
        """Start the compute service with the adapter; returns its claim manager."""
        self.adapter = adapted.with_adapter()
        self.adapter.start()
        self.addCleanup(self.adapter.stop)
        self.restart_compute_service(HOST)
        return self.computes[HOST].driver.devicetrack.manager

    def stop_with_adapter(self) -> None:
        self.stop_service()
        self.computes[HOST].driver.close_devicetrack()

    def restart_with_adapter(self) -> Any:
        """Start the compute service again; returns its claim manager."""
        self.restart_compute_service(HOST)
        return self.computes[HOST].driver.devicetrack.manager

    def start_alone(self) -> Any:
        """Start the compute service as it was; returns its resource tracker."""
        self.computes[HOST].driver.close_devicetrack()
        self.adapter.stop()
        self.restart_compute_service(HOST)
        return self.computes[HOST].manager.rt

    # -- what is there ------------------------------------------------------------------------------------------------

    def lines(self, plan: Any) -> dict[str, tuple[str, list[str]]]:
        return {line.instance_uuid: (line.outcome, [key.identifier for key in line.devices])
                for line in (plan.lines if isinstance(plan, adoption.AdoptionPlan) else plan)}

    def reason(self, plan: Any, uuid: str) -> str:
        [reason] = [line.reason for line in plan.lines if line.instance_uuid == uuid]
        return str(reason)

    def definition(self, uuid: str) -> Any:
        """A guest's definition, as Nova reads it."""
        read = nova_config.LibvirtConfigGuest()
        read.parse_str(self.connection.lookupByUUIDString(uuid).XMLDesc(0))
        return read

    def mdevs(self, uuid: str) -> list[str]:
        return [one.uuid for one in self.definition(uuid).devices
                if isinstance(one, nova_config.LibvirtConfigGuestHostdevMDEV)]

    def paths(self, uuid: str) -> list[str]:
        return [one.source_path for one in self.definition(uuid).devices
                if isinstance(one, nova_config.LibvirtConfigGuestVPMEM)]

    def instance(self, uuid: str) -> Any:
        return objects.Instance.get_by_uuid(nova_context.get_admin_context(), uuid, expected_attrs=['resources'])

    def file(self, name: str) -> str:
        return pmem.file_of(adapted.WORLD.pmem(HOST), name)

    def write(self, name: str) -> None:
        with open(self.file(name), 'r+b') as file:
            file.write(SECRET)

    def free(self) -> str:
        """A namespace that no guest has, and that somebody wrote to."""
        paths = {path for domain in self.connection._vms.values() for path in self.paths(domain.UUIDString())}
        name = next(f'ns_{number}' for number in range(4) if f'/dev/dax0.{number}' not in paths)
        self.write(name)
        return name

    def is_written(self, name: str) -> bool:
        with open(self.file(name), 'rb') as file:
            return file.read(len(SECRET)) == SECRET

    def undefine(self, uuid: str) -> None:
        domain = self.connection.lookupByUUIDString(uuid)
        with contextlib.suppress(Exception):
            domain.destroy()
        domain.undefine()


def differences(found: Iterable[findings.Finding]) -> list[findings.Finding]:
    """What an audit found, without the notes on guests that Nova alone defined."""
    return [finding for finding in found if finding.kind != findings.NOT_RECOVERABLE]


class AdoptTestCase(HostTestCase):

    def test_a_plan_changes_nothing(self) -> None:
        self.stop_service()
        free = self.free()
        self.flags(unproven_devices='wipe', group='devicetrack')
        before = self.connection.lookupByUUIDString(self.both).XMLDesc(0)
        plan = self.adopting().plan()
        devices = [*(f'ns_{path[-1]}' for path in self.paths(self.both)), *self.mdevs(self.both)]
        self.assertEqual(3, len(devices))
        self.assertEqual({self.both: (adoption.ADOPT, devices)}, self.lines(plan))
        self.assertEqual([], plan.obstacles + plan.unread)
        self.assertFalse(os.path.exists(adapted.WORLD.state_path(HOST)))
        self.assertEqual(before, self.connection.lookupByUUIDString(self.both).XMLDesc(0))
        self.assertTrue(self.is_written(free))

    def test_the_first_start_finds_no_difference(self) -> None:
        vgpu, small = self.boot(vgpu=1), self.boot('SMALL')
        self.stop_service()
        free = self.free()
        self.flags(unproven_devices='wipe', group='devicetrack')
        adopting = self.adopting()
        lines = list(adopting.apply(adopting.plan()))
        self.assertEqual({self.both: adoption.ADOPTED, vgpu: adoption.ADOPTED, small: adoption.ADOPTED},
                         {line.instance_uuid: line.outcome for line in lines}, lines)
        self.assertTrue(self.is_written(free))          # that is the service's business
        self.assertEqual({adoption.ALREADY}, {line.outcome for line in adopting.plan().lines})
        self.assertEqual({adoption.ALREADY}, {line.outcome for line in adopting.apply(adopting.plan())})
        self.flags(unproven_devices='verify', group='devicetrack')
        manager = self.start_with_adapter()
        self.assertEqual([], self.findings)
        found = manager.update_available_resource(None, manager.nodename)
        self.assertEqual([], differences(found))
        # Until they are started anew, which writes our record into their definitions.
        self.assertEqual({self.both, vgpu, small}, {user for finding in found for user in finding.users})
        self.assertEqual({line.instance_uuid: {key.identifier for key in line.devices} for line in lines},
                         {uuid: {one.identifier for one in manager.assignments(uuid)}
                          for uuid in (self.both, vgpu, small)})

    def test_the_devices_are_its_own_from_then_on(self) -> None:
        self.stop_service()
        adopting = self.adopting()
        list(adopting.apply(adopting.plan()))
        manager = self.start_with_adapter()
        mdevs, paths = self.mdevs(self.both), self.paths(self.both)
        names = [held.identifier for held in manager.assignments(self.both) if held.kind == adoption.NAMESPACE]
        for name in names:
            self.write(name)
        self._reboot_server({'id': self.both}, hard=True)
        self.assertEqual((mdevs, paths), (self.mdevs(self.both), self.paths(self.both)))
        self.assertTrue(all(map(self.is_written, names)))
        self._delete_server({'id': self.both})
        manager.wait_for_wipes()
        self.assertEqual([], list(manager.assignments()))
        self.assertFalse(any(map(self.is_written, names)))
        self.assertEqual([], manager.update_available_resource(None, manager.nodename))

    def test_after_a_boot_of_the_host_a_guest_starts_on_what_it_had(self) -> None:
        # Nova alone has written the definitions, so they have no record. One guest runs when the host goes down.
        small = self.boot('SMALL')
        self._stop_server({'id': small})
        self.stop_service()
        adopting = self.adopting()
        list(adopting.apply(adopting.plan()))
        self.start_with_adapter()
        has = {uuid: (self.mdevs(uuid), self.paths(uuid)) for uuid in (self.both, small)}
        self.connection.lookupByUUIDString(self.both).destroy()
        self.useFixture(fixtures.MonkeyPatch('devicetrack.virt.libvirt.driver.LibvirtDriver.boot_id',
                                             lambda _driver: '2f1e0c7a-5b64-4d38-9a0f-7c6d5e4b3a29'))
        self.flags(resume_guests_state_on_host_boot=True)
        manager = self.restart_with_adapter()
        self._start_server({'id': small})
        for uuid, devices in has.items():
            self._wait_for_state_change({'id': uuid}, 'ACTIVE')
            self.assertTrue(self.connection.lookupByUUIDString(uuid).isActive())
            self.assertEqual(devices, (self.mdevs(uuid), self.paths(uuid)))
        self.assertEqual([], manager.update_available_resource(None, manager.nodename))

    def test_a_host_that_was_changed_without_adoption_keeps_its_guests_and_can_be_adopted_later(self) -> None:
        self.stop_service()
        self.start_with_adapter()
        self.assertEqual(3, len(self.findings))
        has = self.mdevs(self.both), self.paths(self.both)
        # It is refused before Nova takes the guest apart.
        self.api.post_server_action(self.both, {'reboot': {'type': 'HARD'}})
        self._wait_for_server_parameter({'id': self.both}, {'OS-EXT-STS:task_state': None})
        self.assertTrue(self.connection.lookupByUUIDString(self.both).isActive())
        self.assertEqual(has, (self.mdevs(self.both), self.paths(self.both)))
        self.stop_with_adapter()
        adopting = self.adopting()
        self.assertEqual([adoption.ADOPTED], [line.outcome for line in adopting.apply(adopting.plan())])
        self.restart_compute_service(HOST)
        self.assertEqual([], self.findings)
        self._reboot_server({'id': self.both}, hard=True)
        self.assertEqual(has, (self.mdevs(self.both), self.paths(self.both)))

    def test_what_cannot_be_told_stays_withheld(self) -> None:
        odd = self.boot('SMALL')
        instance = self.instance(odd)
        instance.resources = None
        instance.save()
        self.stop_service()
        adopting = self.adopting()
        plan = adopting.plan()
        self.assertEqual(adoption.ADOPT, self.lines(plan)[self.both][0])
        self.assertIn("which Nova's record lacks", self.reason(plan, odd))
        self.assertEqual([adoption.ADOPTED, adoption.WITHHELD],
                         sorted(outcome for outcome, _devices in self.lines(adopting.apply(plan)).values()))
        manager = self.start_with_adapter()
        self.assertEqual([(odd, 'used but unrecorded')], [
            (*finding.users, finding.kind) for finding in self.findings])
        self.assertEqual(3, len(manager.assignments()))
        self.boot('LARGE')
        self._create_server(image_uuid='155d900f-4e14-4e4c-a73d-069cbf4541e6', host=HOST, networks='none',
                            flavor_id=self._create_flavor(extra_spec={'hw:pmem': 'SMALL'}), expected_state='ERROR')

    def test_an_instance_without_a_domain_is_known_by_its_record(self) -> None:
        small = self.boot('SMALL')
        self.stop_service()
        for uuid in (self.both, small):
            self.undefine(uuid)
        adopting = self.adopting()
        plan = adopting.plan()
        self.assertEqual(adoption.ADOPT, self.lines(plan)[small][0])
        self.assertIn('it has no domain', self.reason(plan, small))
        self.assertIn('VGPU', self.reason(plan, self.both))
        self.assertEqual(adoption.ADOPTED, self.lines(adopting.apply(plan))[small][0])

    def cordons(self, manager: ClaimManager) -> dict[str, str]:
        """The reasons of the cordons, by namespace."""
        return {target.name: causes[vocabulary.CORDONED].detail for target, causes in withheld.load(
            manager.store, manager.state().host_uuid).items() if vocabulary.CORDONED in causes}

    def cordoned(self, manager: ClaimManager) -> set[str]:
        """The namespaces that the command keeps from everybody."""
        return {name for name, reason in self.cordons(manager).items() if self.both in reason}

    def without_domain(self) -> tuple[set[str], nova_host.NovaHost]:
        """Withhold an instance without a domain. Returns its namespaces, which have data, and what adopts it."""
        has = {path.replace('/dev/dax0.', 'ns_') for path in self.paths(self.both)}
        for name in has:
            self.write(name)
        self.stop_service()
        self.undefine(self.both)
        adopting = self.adopting()
        self.assertEqual(adoption.WITHHELD, self.lines(adopting.apply(adopting.plan()))[self.both][0])
        return has, adopting

    def check_kept(self, has: set[str]) -> None:
        """The service starts, and may wipe what nobody owns."""
        self.flags(unproven_devices='wipe', group='devicetrack')
        manager = self.start_with_adapter()
        self.assertEqual(has, self.cordoned(manager))
        manager.wait_for_wipes()
        for name in has:
            self.assertTrue(self.is_written(name))

    def test_a_namespace_that_only_novas_record_names_is_kept(self) -> None:
        has, adopting = self.without_domain()
        self.check_kept(has)
        # The operator finds out that the guest had no vGPU any more, and adopts it.
        self.stop_with_adapter()
        with mock.patch.object(adoption._Comparison, '_of_placement', autospec=True, return_value=None), \
                mock.patch.object(adoption._Comparison, '_of_flavor', autospec=True, return_value=None):
            self.assertEqual(adoption.ADOPTED, self.lines(adopting.apply(adopting.plan()))[self.both][0])
        manager = self.restart_with_adapter()
        self.assertEqual(set(), self.cordoned(manager))
        self.assertEqual(has, {record.identifier for record in manager.assignments()})
        for name in has:
            self.assertTrue(self.is_written(name))

    def test_a_namespace_that_the_options_do_not_name_meanwhile_is_kept(self) -> None:
        has, adopting = self.without_domain()
        others = sorted({'ns_0', 'ns_1', 'ns_2', 'ns_3'} - has)
        self.flags(pmem_namespaces=f'SMALL:{"|".join(others)}', group='libvirt')
        outcome, named = self.lines(adopting.apply(adopting.plan()))[self.both]
        self.assertEqual((adoption.WITHHELD, has), (outcome, set(named)))
        self.flags(pmem_namespaces='SMALL:ns_0|ns_1,LARGE:ns_2|ns_3', group='libvirt')
        self.check_kept(has)

    def test_the_cordon_of_an_operator_stays(self) -> None:
        has = sorted(path.replace('/dev/dax0.', 'ns_') for path in self.paths(self.both))
        self.stop_service()
        manager = self.start_with_adapter()
        manager.operator.cordon(adoption.NAMESPACE, has[0], reason='it shows errors')
        self.stop_with_adapter()
        self.undefine(self.both)
        adopting = self.adopting()
        self.assertEqual(adoption.WITHHELD, self.lines(adopting.apply(adopting.plan()))[self.both][0])
        manager = self.restart_with_adapter()
        self.assertEqual({has[0]: 'it shows errors', has[1]: f'{nova_host._KEPT} {self.both}'}, self.cordons(manager))
        self.stop_with_adapter()
        self.instance(self.both).destroy()
        self.assertEqual([], list(adopting.apply(adopting.plan())))
        self.assertEqual({has[0]: 'it shows errors'}, self.cordons(self.restart_with_adapter()))

    def test_a_domain_that_nova_does_not_know(self) -> None:
        self.stop_service()
        instance = self.instance(self.both)
        instance.destroy()
        self.assertIn('Nova has deleted the instance', self.reason(self.adopting().plan(), self.both))

    def test_an_instance_that_moves(self) -> None:
        self.flags(allow_resize_to_same_host=True)
        self._resize_server({'id': self.both}, self._create_flavor(memory_mb=4096, extra_spec={'resources:VGPU': '1'}))
        self.stop_service()
        plan = self.adopting().plan()
        self.assertEqual([adoption.WITHHELD], [outcome for outcome, _devices in self.lines(plan).values()])
        self.assertIn('is finished: confirm or revert it', self.reason(plan, self.both))
        [moves] = [check for check in self.adopting().checks() if check.check == 'moves']
        self.assertEqual(adoption.WARNING, moves.result)
        self.assertIn('in the middle of a move: 1;', moves.details)

    def migration(self, status: str, **facts: Any) -> Any:
        """A live migration away from the host, by default of the guest, as its source's service left it."""
        made = objects.Migration(
            nova_context.get_admin_context(), migration_type='live-migration', status=status,
            **{'instance_uuid': self.both, 'source_compute': HOST, 'source_node': HOST, 'dest_compute': 'host2',
               **facts})
        made.create()
        return made

    def status_of(self, migration: Any) -> str:
        return str(objects.Migration.get_by_id(nova_context.get_admin_context(), migration.id).status)

    def test_an_instance_whose_move_nobody_continues(self) -> None:
        left = self.migration('queued')
        self.stop_service()
        adopting = self.adopting()
        plan = adopting.plan()
        self.assertIn(f'is queued, but it was interrupted: --apply on {HOST} ends it', self.reason(plan, self.both))
        self.assertEqual([adoption.WITHHELD], [line.outcome for line in adopting.apply(plan._replace(is_up=True))])
        self.assertEqual('queued', self.status_of(left))
        [line] = adopting.apply(plan._replace(is_up=False))
        self.assertEqual(adoption.WITHHELD, line.outcome)
        self.assertIn(f'; migration {left.uuid}: ended', line.reason)
        self.assertEqual('error', self.status_of(left))
        self.assertEqual([adoption.ADOPTED], [line.outcome for line in adopting.apply(adopting.plan())])

    def test_a_soft_deleted_instance_whose_move_nobody_continues(self) -> None:
        left = self.migration('queued')
        instance = self.instance(self.both)
        instance.vm_state = vm_states.SOFT_DELETED
        instance.save()
        self.stop_service()
        adopting = self.adopting()
        plan = adopting.plan()
        self.assertIn(f'it was interrupted: --apply on {HOST} ends it', self.reason(plan, self.both))
        list(adopting.apply(plan._replace(is_up=False)))
        self.assertEqual('error', self.status_of(left))

    def test_the_line_says_why_a_move_was_not_ended(self) -> None:
        left = self.migration('queued')
        self.stop_service()
        adopting = self.adopting()
        plan = adopting.plan()._replace(is_up=False)
        client = report.SchedulerReportClient
        unread = nova_exception.ResourceProviderAllocationRetrievalFailed(rp_uuid=left.uuid, error='503')
        with mock.patch.object(client, 'get_allocations_for_resource_provider', autospec=True, side_effect=unread):
            [line] = adopting.apply(plan)
        self.assertIn('; moves that were interrupted: not ended: ', line.reason)
        self.assertIn('503', line.reason)
        failed = nova_exception.AllocationMoveFailed(source_consumer='a', target_consumer='b', error='no')
        with mock.patch.object(interrupted, '_end', autospec=True, side_effect=failed):
            [line] = adopting.apply(plan)
        self.assertIn(f'; migration {left.uuid}: not ended: ', line.reason)
        self.assertEqual('queued', self.status_of(left))

    def test_the_moves_of_instances_that_are_not_in_the_plan_stay_as_they_are(self) -> None:
        self.migration('queued')
        other = self.boot()
        instance, left = self.instance(other), self.migration('error', instance_uuid=other)
        instance.host = 'host2'
        instance.save()
        found = self.placement.get(f'/allocations/{other}', version='1.28').body
        [(provider, _found)] = found['allocations'].items()
        self.assertEqual(204, self.placement.put(f'/allocations/{left.uuid}', {
            **found, 'allocations': {provider: {'resources': {'MEMORY_MB': 1}}}, 'consumer_generation': None},
            version='1.28').status)
        self.stop_service()
        adopting = self.adopting()
        [line] = adopting.apply(adopting.plan()._replace(is_up=False))
        self.assertIn(': ended', line.reason)
        self.assertNotEqual({}, self.placement.get(f'/allocations/{left.uuid}', version='1.28').body['allocations'])

    def test_a_move_of_an_instance_that_is_being_deleted_means_nothing(self) -> None:
        self.migration('accepted')
        self.stop_service()
        with base.migrations_deleted():
            self.assertEqual(adoption.ADOPT, self.lines(self.adopting().plan())[self.both][0])

    def test_a_move_that_a_newer_one_followed_means_nothing(self) -> None:
        self.migration('accepted')
        self.migration('completed', source_compute='host2', source_node='host2', dest_compute=HOST)
        self.stop_service()
        self.assertEqual(adoption.ADOPT, self.lines(self.adopting().plan())[self.both][0])

    def test_an_instance_that_lost_what_its_flavor_asks_for(self) -> None:
        small = self.boot('SMALL')
        instance = self.instance(small)
        instance.resources = None
        instance.save()
        self.stop_service()
        self.undefine(small)
        allocation = self.placement.delete(f'/allocations/{small}')
        self.assertEqual(204, allocation.status)
        self.assertIn('its flavor asks for CUSTOM_PMEM_NAMESPACE_SMALL, but no source lists',
                      self.reason(self.adopting().plan(), small))

    def test_whether_it_can_be_done_now(self) -> None:
        before = {check.check: check.result for check in self.adopting().checks()}
        self.assertEqual(adoption.WARNING, before.pop('nova-compute'))
        self.stop_service()
        self.assertEqual(adoption.WARNING, before.pop('guests'))
        self.assertEqual({'state directory', 'Nova', 'command line', 'options', 'privileges', 'record', 'moves'},
                         before.keys())
        self.assertEqual({adoption.OK}, set(before.values()))
        self.flags(pmem_namespaces='SMALL:ns_0|ns_9', group='libvirt')
        [options] = [check for check in self.adopting().checks() if check.check == 'options']
        self.assertEqual(adoption.FAILURE, options.result)
        self.assertIn('ns_9', options.details)

    def test_a_host_whose_manager_works_is_refused(self) -> None:
        self.stop_service()
        self.start_with_adapter()
        self.assertRaises(exception.HostInUse, self.adopting().plan)
        [state] = [check for check in self.adopting().checks() if check.check == 'host']
        self.assertEqual(adoption.FAILURE, state.result)


class BackTestCase(HostTestCase):

    def test_nova_alone_works_with_what_the_adapter_wrote(self) -> None:
        self.stop_service()
        adopting = self.adopting()
        list(adopting.apply(adopting.plan()))
        self.start_with_adapter()
        new = self.boot('LARGE,SMALL', vgpu=1)
        self._reboot_server({'id': self.both}, hard=True)
        has = {uuid: (self.mdevs(uuid), self.paths(uuid)) for uuid in (self.both, new)}
        self.assertIn('devicetrack', self.connection.lookupByUUIDString(new).XMLDesc(0))
        tracker = self.start_alone()
        driver = self.computes[HOST].driver
        for uuid, (mdevs, paths) in has.items():
            instance = self.instance(uuid)
            self.assertEqual((1, 2), (len(mdevs), len(paths)))
            self.assertEqual(set(mdevs), set(driver._get_all_assigned_mediated_devices(instance)))
            self.assertEqual(paths, [one.devpath for one in driver._get_ordered_vpmems(instance, instance.flavor)])
        self.assertEqual({'ns_0', 'ns_1', 'ns_2', 'ns_3'}, {
            resource.identifier for by_class in tracker.assigned_resources.values()
            for resources in by_class.values() for resource in resources})
        self._reboot_server({'id': new}, hard=True)
        self.assertEqual(has[new], (self.mdevs(new), self.paths(new)))
        self._delete_server({'id': new})
        self.boot('LARGE,SMALL', vgpu=1)
