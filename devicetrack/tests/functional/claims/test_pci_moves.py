"""Instances with PCI functions, when they move between two hosts, on one, or not at all.

The functions are made of files, with what the kernel's drivers do. libvirt's test driver has the guests, and a machine
binds their functions as a libvirt does that manages them.
"""

from __future__ import annotations

from collections.abc import Callable
import os
from typing import Any

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.claims import recovery
from devicetrack.objects import DeviceRequest
from devicetrack.objects import NetworkPort
from devicetrack.objects import RequestedDevices
from devicetrack.objects.values import DeviceKey
from devicetrack.testing import compute_service
from devicetrack.testing import fixtures
from devicetrack.testing.fixtures import Instance
from devicetrack.tests import base
from devicetrack.tests.functional.claims import pci_hosts
from devicetrack.tests.functional.claims.pci_hosts import CARD
from devicetrack.tests.functional.claims.pci_hosts import DISK
from devicetrack.tests.functional.claims.pci_hosts import PAIR
from devicetrack.tests.functional.claims.pci_hosts import PMEM
from devicetrack.tests.functional.claims.pci_hosts import VF
from devicetrack.virt.libvirt.vf_link import Settings

# A guest's own order, and how the destination's placement may name the same.
ASKED = DeviceRequest.of((VF, 1), (PMEM, 1), (DISK, 1))
OTHERWISE = DeviceRequest.of((DISK, 1), (VF, 1), (PMEM, 1))


def pci_of(identifiers: list[str]) -> list[str]:
    return [one for one in identifiers if ':' in one]


class BetweenHostsTestCase(pci_hosts.PCIHostsTestCase):

    def test_resized_back_and_forth(self) -> None:
        region = self.region
        instance = region.spawn('one', request=ASKED)
        before = pci_of(self.identifiers(self.one, instance))
        self.assertEqual([self.one.vfs[0], self.one.disks[0]], before)
        self.assert_runs_on(self.one, instance, before)

        migration = region.resize(instance, 'two', request=OTHERWISE)
        self.assert_runs_on(self.two, instance, [self.two.disks[0], self.two.vfs[0]])
        self.assertEqual(set(), self.one.used())                # its guest is off there, and its rows keep them
        self.assertEqual(set(before), {one for one in self.one.owners() if ':' in one})
        self.assertEqual([], region.audit())
        region.revert(instance, migration)
        self.assert_runs_on(self.one, instance, before)
        self.assert_nothing_left(self.two)
        self.assertEqual([], region.audit())

        migration = region.resize(instance, 'two', request=ASKED)
        for host in (self.one, self.two):
            host.restart()
        region.confirm(instance, migration)
        self.assert_nothing_left(self.one)
        self.assertEqual([], region.audit())
        self.assertEqual({('current', 'active', None)}, {
            (record.role, record.state, record.migration_uuid) for record in self.two.records(instance)})

    def test_a_port_moves_with_its_instance(self) -> None:
        region, port = self.region, NetworkPort(physical_network='physnet1', mac='52:54:00:aa:bb:01', vlan=41)
        # libvirt writes interfaces before host devices, whatever the order.
        request = DeviceRequest(wanted=[RequestedDevices.of_port(port),
                                        RequestedDevices(resource_class=DISK, amount=1)])
        set_up = Settings(port.mac, port.vlan)
        instance = region.spawn('one', request=request)
        first, second = self.one.network_vfs
        self.assert_runs_on(self.one, instance, [first, self.one.disks[0]])
        self.assertEqual(set_up, self.one.hardware.links.of(first))
        migration = region.resize(instance, 'one', request=request)
        self.assert_runs_on(self.one, instance, [second, self.one.disks[1]])
        self.assertEqual(set_up, self.one.hardware.links.of(second))
        self.assertTrue(self.one.hardware.links.of(first).is_blank)
        region.confirm(instance, migration)
        self.assertTrue(self.one.hardware.links.of(first).is_blank)
        self.one.restart()
        self.assertEqual([], region.audit())

        migration = region.resize(instance, 'two', request=request)
        self.assertEqual(set_up, self.two.hardware.links.of(self.two.network_vfs[0]))
        region.revert(instance, migration)
        self.assertTrue(self.two.hardware.links.of(self.two.network_vfs[0]).is_blank)
        self.assert_runs_on(self.one, instance, [second, self.one.disks[1]])
        self.assertEqual(set_up, self.one.hardware.links.of(second))
        region.delete(instance)
        self.assertTrue(self.one.hardware.links.of(second).is_blank)
        self.assert_nothing_left(self.one)
        self.assert_nothing_left(self.two)

    def test_a_card_on_which_each_address_is_unique(self) -> None:
        region, port = self.region, NetworkPort(physical_network='physnet1', mac='52:54:00:aa:bb:01', vlan=41)
        request, links = DeviceRequest(wanted=[RequestedDevices.of_port(port)]), self.one.hardware.links
        first, second = self.one.network_vfs
        links.unique = {first, second}
        instance = region.spawn('one', request=request)
        migration = region.resize(instance, 'one', request=request)
        self.assert_runs_on(self.one, instance, [second])
        self.assertEqual((True, port.mac), (links.of(first).is_blank, links.of(second).mac))
        region.revert(instance, migration)
        self.assert_runs_on(self.one, instance, [first])
        self.assertEqual((port.mac, True), (links.of(first).mac, links.of(second).is_blank))
        self.assertEqual([], region.audit())

    def test_only_the_function_that_a_guest_uses_has_its_address(self) -> None:
        region, port = self.region, NetworkPort(physical_network='physnet1', mac='52:54:00:aa:bb:01', vlan=41)
        request = DeviceRequest(wanted=[RequestedDevices.of_port(port)])
        set_up = Settings(port.mac, port.vlan)
        instance = region.spawn('one', request=request)
        links = self.one.hardware.links
        first, second = self.one.network_vfs
        # Until the guest has left, the audit leaves its port alone; also one that is off now.
        migration = region.migration(instance, 'two')
        self.two.prep_resize(instance, migration, instance.flavor, request)
        self.assertEqual([], self.one.audit())
        self.assertEqual(set_up, links.of(first))
        self.one.stop_guest(instance.uuid)
        migration.status = 'migrating'
        self.one.audit()
        self.assertEqual(set_up, links.of(first))
        instance.host = instance.node = 'two'
        migration.status = 'post-migrating'
        self.one.audit()
        self.assertTrue(links.of(first).is_blank)
        self.two.finish_resize(instance, migration)
        # Also after a crash, and whatever wrote it again.
        links.settings[first] = set_up
        self.one.restart()
        self.assertTrue(links.of(first).is_blank)
        # It is there again before the guest is, and no audit takes it away.
        self.two.revert_resize(instance, migration)
        self.one.audit()
        self.one.manager.realize(self.one.context, instance)
        self.one.audit()
        self.assertEqual(set_up, links.of(first))
        self.one.finish_revert_resize(instance, migration)
        self.one.audit()
        self.assertEqual(set_up, links.of(first))

        migration = region.resize(instance, 'one', request=request)
        self.assertEqual((True, set_up), (links.of(first).is_blank, links.of(second)))
        self.one.restart()
        self.assertEqual((True, set_up), (links.of(first).is_blank, links.of(second)))
        region.revert(instance, migration)
        self.one.audit()
        self.assertEqual((set_up, True), (links.of(first), links.of(second).is_blank))
        # A resize that fails after its guest ran on the new function.
        migration = region.resize(instance, 'one', request=request)
        migration.status = 'error'
        self.one.stop_guest(instance.uuid)
        self.assertRaises(exception.DeviceInUse, self.one.manager.drop_move_claim_at_dest, None, instance, migration)
        self.one.boot(instance)
        self.one.audit()
        self.assertEqual((set_up, True), (links.of(first), links.of(second).is_blank))

    def test_its_context_names_the_functions_of_both_ends(self) -> None:
        region = self.region
        instance = region.spawn('one', request=ASKED)
        # Addresses of the destination that the source does not have too.
        region.spawn('two', request=ASKED)
        migration = region.migration(instance, 'two')
        self.two.resize(instance, migration=migration, request=OTHERWISE)
        context = instance.migration_context
        self.assertEqual([self.one.vfs[0], self.one.disks[0]], [one.address for one in context.old_pci_devices])
        self.assertEqual([self.two.disks[1], self.two.vfs[1]], [one.address for one in context.new_pci_devices])
        self.assertEqual(self.two.card, context.new_pci_devices[1].parent_addr)
        self.assertEqual({(1, VF), (1, DISK)}, {(one.count, one.spec[0]['resource_class'])
                                                for one in context.new_pci_requests.requests})
        self.assertEqual([one.request_id for one in context.old_pci_devices][::-1],
                         [one.request_id for one in context.new_pci_devices])
        self.two.restart()
        stored = self.two.running.rows.stored_context(instance.uuid)
        self.assertEqual(context.obj_to_primitive(), stored and stored.obj_to_primitive())
        region.finish_resize(instance, migration)
        region.confirm(instance, migration)

    def test_evacuated_and_the_source_comes_back(self) -> None:
        region = self.region
        instance, other = region.spawn('one', request=ASKED), region.spawn('one', request=ASKED)
        mine, of_other = (pci_of(self.identifiers(self.one, one)) for one in (instance, other))
        self.one.manager.close()
        region.evacuate(instance, 'two', request=OTHERWISE)
        after = pci_of(self.identifiers(self.two, instance))
        self.assert_runs_on(self.two, instance, after)
        self.assertEqual({*mine, *of_other}, self.one.used())   # guests of a host that is away may run on
        self.one.restart()
        self.assertEqual({other.uuid}, self.one.machine.domains())
        self.assertEqual((set(of_other), {}), (self.one.used(), self.one.astray()))
        self.assert_runs_on(self.one, other, of_other)
        self.assertEqual([], region.audit())
        region.confirm(instance, region.resize(instance, 'one', request=ASKED))
        self.assert_nothing_left(self.two)
        self.assertEqual([], region.audit())

    def test_evacuated_from_a_host_that_boots_afterwards(self) -> None:
        region = self.region
        instance = region.spawn('one', request=ASKED)
        self.one.manager.close()
        self.one.reboot()
        region.evacuate(instance, 'two', request=OTHERWISE)
        self.one.restart()
        self.assert_nothing_left(self.one)
        self.assertEqual([], region.audit())

    def test_a_whole_card_takes_its_functions_along(self) -> None:
        region = self.region
        instance = region.spawn('one', request=DeviceRequest.of((VF, 1)))
        migration = region.resize(instance, 'two', request=DeviceRequest.of((CARD, 1)))
        self.assert_runs_on(self.two, instance, [self.two.card])
        self.assertRaises(exception.NoFit, self.two.claim, Instance(), DeviceRequest.of((VF, 1)))
        self.assertEqual([], region.audit())
        region.revert(instance, migration)
        self.assert_runs_on(self.one, instance, [self.one.vfs[0]])
        self.assert_nothing_left(self.two)
        self.assertEqual([], region.audit())

    def test_no_guest_with_a_function_that_is_not_declared_moves_live(self) -> None:
        instance = self.region.spawn('one', request=ASKED)
        refused = self.assertRaises(exception.LiveMigrationUnsupported, self.region.check, instance, 'two')
        self.assertEqual('no [pci] device_spec says live_migratable', refused.reason)
        self.assertEqual([], self.region.rows(instance)['two'])


class OneHostTestCase(pci_hosts.PCIHostsTestCase):

    def test_resized_to_other_functions(self) -> None:
        region = self.region
        for end in (region.confirm, region.revert):
            instance = region.spawn('one', request=ASKED)
            before = pci_of(self.identifiers(self.one, instance))
            migration = region.resize(instance, 'one', request=OTHERWISE)
            after = pci_of([record.identifier for record in self.one.records(instance) if record.role != 'old'])
            self.assertEqual(set(), set(before) & set(after))
            self.assert_runs_on(self.one, instance, after)
            self.assertEqual([], region.audit())
            end(instance, migration)
            self.assert_runs_on(self.one, instance, after if end == region.confirm else before)
            self.assertEqual({}, self.one.astray())
            self.assertEqual([], region.audit())
            region.delete(instance)
            self.assert_nothing_left(self.one)

    def test_a_card_is_not_had_beside_an_old_function_of_it(self) -> None:
        instance = self.region.spawn('one', request=DeviceRequest.of((VF, 1)))
        rows = self.one.records(instance)
        refused = self.assertRaises(exception.NoFit, self.one.resize, instance, request=DeviceRequest.of((CARD, 1)))
        self.assertEqual('withheld: excluded', self.one.states()[self.one.card])
        self.assertEqual([CARD], [shortage.resource_class for shortage in refused.shortages])
        self.assertEqual(rows, self.one.records(instance))

    def test_an_iommu_group_goes_whole_wherever_it_goes(self) -> None:
        region = self.region
        instance = region.spawn('one', request=DeviceRequest.of((PAIR, 1)))
        self.assertEqual([self.one.pair[0]], self.identifiers(self.one, instance))
        self.assertRaises(exception.NoFit, self.one.claim, Instance(), DeviceRequest.of((PAIR, 1)))
        migration = region.resize(instance, 'two', request=DeviceRequest.of((PAIR, 2)))
        self.assert_runs_on(self.two, instance, self.two.pair)
        region.confirm(instance, migration)
        self.assert_nothing_left(self.one)
        region.spawn('one', request=DeviceRequest.of((PAIR, 2)))
        self.assertEqual([], region.audit())


class RestartTestCase(pci_hosts.PCIHostsTestCase):
    """Both managers end after each step of a move, and libvirt too, if that is said; others start and audit."""

    scenarios = base.table(
        ('confirmed, another host', 'two', 'confirm', False),
        ('reverted, another host', 'two', 'revert', False),
        ('confirmed, this host', 'one', 'confirm', False),
        ('reverted, this host', 'one', 'revert', False),
        ('confirmed, libvirt dies', 'two', 'confirm', True),
        ('reverted, libvirt dies', 'one', 'revert', True),
        names=('to', 'end', 'dies'))

    def test_after_each_step(self) -> None:
        region = self.region
        for host in (self.one, self.two):
            host.functions.dies = self.dies
        neighbours = [(host, region.spawn(host.name, request=DeviceRequest.of((PAIR, 2))))
                      for host in (self.one, self.two)]
        instance = region.spawn('one', request=ASKED)
        before = pci_of(self.identifiers(self.one, instance))
        migration = region.migration(instance, self.to)
        destination = region.hosts[self.to]
        steps: dict[str, list[Callable[[], object]]] = {
            'confirm': [lambda: self.one.confirm_resize(instance, migration)],
            'revert': [lambda: destination.revert_resize(instance, migration),
                       lambda: self.one.finish_revert_resize(instance, migration)]}
        for step in (lambda: destination.resize(instance, migration=migration, request=OTHERWISE),
                     lambda: self.one.resize_instance(instance, migration),
                     lambda: destination.finish_resize(instance, migration), *steps[self.end]):
            step()
            for host in (self.one, self.two):
                host.restart()
                self.assertEqual([], [found for found in host.audit() if found.severity == vocabulary.CRITICAL])
        where: Any = self.one if self.end == 'revert' else destination
        addresses = pci_of(self.identifiers(where, instance))
        self.assertEqual(self.end == 'revert', addresses == before)
        self.assert_runs_on(where, instance, addresses)
        self.assertEqual([], region.audit())
        for host in (self.one, self.two):
            self.assertEqual({}, host.astray())
            self.assertEqual({*host.pair, *(addresses if host is where else ())}, host.used())
        for host, neighbour in neighbours:
            self.assert_runs_on(host, neighbour, host.pair)


class InterruptedTestCase(pci_hosts.PCIHostsTestCase):

    def test_a_confirmation_is_interrupted_at_every_write_to_the_kernel(self) -> None:
        region, request = self.region, DeviceRequest.of((VF, 1), (DISK, 1))
        self.one.functions.dies = True          # so each function has to be brought back
        refused = 0
        while True:
            instance = region.spawn('one', request=request)
            mine = set(self.identifiers(self.one, instance))
            migration = region.resize(instance, 'two', request=request)
            self.one.hardware.fail_after(refused)
            try:
                region.confirm(instance, migration)
                break
            except exception.UnclaimFailed:
                refused += 1
            migration.status = 'confirmed'
            self.assertLessEqual({record.identifier for record in self.one.records()}, mine)
            self.one.restart()
            self.assertNotEqual([], self.one.records())         # what could not be given back is not lost
            self.one.hardware.fail_after(None)
            self.one.audit()
            self.assert_nothing_left(self.one)
            self.assertEqual([], region.audit())
            region.delete(instance)
        self.one.hardware.fail_after(None)
        self.assert_nothing_left(self.one)
        self.assertGreater(refused, 4)          # two functions, each with an override, a driver and a reset


class StayingTestCase(pci_hosts.PCIHostsTestCase):
    """Whatever is done to a guest that stays where it is, its functions stay its own."""

    def setUp(self) -> None:
        super().setUp()
        self.instance = self.region.spawn('one', request=ASKED)
        self.mine = pci_of(self.identifiers(self.one, self.instance))
        self.machine: Any = self.one.machine

    def start(self) -> None:
        self.one.manager.realize(None, self.instance)
        self.machine.power_on(self.instance.uuid)
        self.one.manager.started(None, self.instance)

    def assert_as_before(self) -> None:
        self.assert_runs_on(self.one, self.instance, self.mine)
        self.assertEqual([], self.one.hardware.resets)
        self.assertEqual([], self.region.audit())

    def test_stopped_and_started(self) -> None:
        for _again in range(2):
            self.machine.stop_guest(self.instance.uuid)
            self.assertEqual([], self.one.restart())
            self.start()
            self.assert_as_before()

    def test_rebooted_hard_and_rebuilt(self) -> None:
        self.one.hard_reboot(self.instance)
        self.assert_as_before()
        self.one.rebuild(self.instance, ASKED)
        self.assert_as_before()

    def test_over_a_boot_of_the_host(self) -> None:
        before = self.machine.defined(self.instance.uuid)
        self.one.reboot()
        self.assertEqual(set(), self.one.used())
        self.assertEqual([], self.one.restart())
        after = self.machine.defined(self.instance.uuid)
        self.assertEqual((before.pci_addresses, self.one.boot_id), (after.pci_addresses, after.boot_id))
        self.start()
        self.assert_as_before()

    def test_shelved_it_gives_everything_back_and_unshelved_it_claims_anew(self) -> None:
        self.one.delete(self.instance)
        self.instance.host = self.instance.node = None
        self.instance.state = compute_service.OFFLOADED
        self.assert_nothing_left(self.one)
        others = [self.region.spawn('one', request=ASKED) for _number in range(2)]
        self.assertRaises(exception.NoFit, self.one.spawn, self.instance, ASKED)
        self.two.spawn(self.instance, ASKED)
        self.assert_runs_on(self.two, self.instance, pci_of(self.identifiers(self.two, self.instance)))
        for other in others:
            self.assert_runs_on(self.one, other, pci_of(self.identifiers(self.one, other)))
        self.assertEqual([], self.region.audit())

    def test_what_a_dead_libvirt_left_comes_back(self) -> None:
        self.one.functions.dies = True
        self.machine.delete_guest(self.instance.uuid)
        self.assertEqual(set(self.mine), self.one.used())
        self.one.manager.release(None, self.instance)
        self.assert_nothing_left(self.one)
        self.assertEqual(set(self.mine), {address for address, _methods in self.one.hardware.resets})
        self.instance.state = compute_service.DELETED
        self.assertEqual([], self.region.audit())

    def test_what_a_dead_libvirt_left_comes_back_after_a_start(self) -> None:
        self.one.functions.dies = True
        self.one.manager.close()
        self.machine.delete_guest(self.instance.uuid)
        self.instance.state, self.instance.host = compute_service.DELETED, None
        self.one.restart()
        self.assertEqual([], self.region.audit())
        self.assert_nothing_left(self.one)

    def test_cordoned_it_stays_and_nobody_gets_it_afterwards(self) -> None:
        address = self.mine[0]
        self.one.manager.operator.cordon('pci', address)
        self.one.restart()
        self.assert_as_before()
        self.region.delete(self.instance)
        self.assertEqual('withheld: cordoned', self.one.states()[address])
        self.assertEqual([self.one.vfs[1]], self.identifiers(
            self.one, self.region.spawn('one', request=DeviceRequest.of((VF, 1)))))
        self.one.manager.operator.uncordon('pci', address)
        self.assertEqual(fixtures.FREE, self.one.states()[address])

    def test_a_cordoned_card_keeps_its_functions_from_everybody(self) -> None:
        self.one.manager.operator.cordon('pci', self.one.card, parent=True)
        self.assertRaises(exception.NoFit, self.one.claim, Instance(), DeviceRequest.of((VF, 1)))
        self.assertRaises(exception.NoFit, self.one.claim, Instance(), DeviceRequest.of((CARD, 1)))
        self.assert_as_before()


class LostStoreTestCase(pci_hosts.PCIHostsTestCase):

    def lose(self) -> None:
        self.one.manager.close()
        self.one.store.close()
        for name in os.listdir(self.one.configuration.state_path):
            if name.startswith('devicetrack.sqlite'):
                os.unlink(os.path.join(self.one.configuration.state_path, name))
        self.one.reopen()

    def test_it_is_written_anew_from_the_guests(self) -> None:
        instance = self.region.spawn('one', request=ASKED)
        other = self.region.spawn('one', request=DeviceRequest.of((PAIR, 2)))
        rows = {record.key: record for record in self.one.records()}
        self.lose()
        driver = self.one.machine.driver
        plan = recovery.plan('one', driver, self.one.store.store, self.one.conf)
        recovery.write(plan, self.one.store.store)
        self.one.restart()
        again = {record.key: record for record in self.one.records()}
        self.assertEqual({key: (row.instance_uuid, row.details, row.parent, row.resource_class, row.state)
                          for key, row in rows.items()},
                         {key: (row.instance_uuid, row.details, row.parent, row.resource_class, row.state)
                          for key, row in again.items()})
        for one in (instance, other):
            self.assert_runs_on(self.one, one, pci_of(self.identifiers(self.one, one)))
        self.assertRaises(exception.NoFit, self.one.claim, Instance(), DeviceRequest.of((CARD, 1)))
        self.region.delete(instance)
        self.region.delete(other)
        self.assert_nothing_left(self.one)


class AdoptedTestCase(pci_hosts.PCIHostsTestCase):

    def test_a_guest_that_was_there_before_keeps_its_functions(self) -> None:
        instance = self.region.spawn('one', request=DeviceRequest.of((VF, 1), (DISK, 1)))
        addresses = pci_of(self.identifiers(self.one, instance))
        elements = self.one.manager.guest_config(instance).devices
        self.region.delete(instance)
        self.one.machine.start_guest(instance.uuid, elements)
        instance.state, instance.host = compute_service.ACTIVE, 'one'
        found = {finding.device.identifier for finding in self.one.audit() if finding.device is not None}
        self.assertEqual(set(addresses), found)
        # Nobody saw what its guest wrote to the disk.
        self.assertEqual(['withheld: foreign', 'withheld: foreign, unproven'],
                         [self.one.states()[address] for address in addresses])
        self.assertRaises(exception.NoFit, self.one.claim, Instance(), DeviceRequest.of((CARD, 1)))
        self.one.manager.adopt(None, instance, [DeviceKey('pci', address) for address in addresses])
        self.assertEqual(dict.fromkeys(addresses, instance.uuid), self.one.owners())
        for notes in (self.region.audit(), self.one.restart()):
            self.assertEqual(['not recoverable'], [one.kind for one in notes])
        self.region.delete(instance)
        self.assert_nothing_left(self.one)
        self.assertEqual([], self.region.audit())
