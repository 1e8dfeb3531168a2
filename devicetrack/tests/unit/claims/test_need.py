"""What an instance needs, by its flavor or its allocations, is compared with what its claim takes, in every claim."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
import uuid

from devicetrack import exception
from devicetrack.objects import DeviceRequest
from devicetrack.testing import fixtures
from devicetrack.testing.fixtures import PMEM
from devicetrack.testing.fixtures import VGPU
from devicetrack.tests import base

HUGE = 'CUSTOM_PMEM_NAMESPACE_HUGE'
# The provider of a parent that this host had before its options lost the types of mediated devices.
FORMER = str(uuid.uuid4())


def a_flavor(**extra_specs: str) -> fixtures.Flavor:
    return fixtures.Flavor(extra_specs={name.replace('__', ':'): value for name, value in extra_specs.items()})


class NeedTestCase(base.TestCase):
    """A host that has namespaces and no type of mediated devices: the option is lost, or misspelt."""

    def setUp(self) -> None:
        super().setUp()
        self.host = self.useFixture(fixtures.Host(devices=2))
        [self.root] = [one.uuid for one in self.host.manager.providers() if one.parent_uuid is None]

    def refused(self, allocations: Any, flavor: Any = None) -> exception.DeviceTrackError:
        error: exception.DeviceTrackError = self.assertRaises(
            exception.DeviceTrackError, self.claim, allocations, flavor)
        self.assertEqual([], self.host.records())
        return error

    def claim(self, allocations: Any, flavor: Any) -> Any:
        return self.host.manager.instance_claim(self.host.context, fixtures.Instance(flavor=flavor), self.host.name,
                                                allocations)

    def at(self, provider: str, **resources: int) -> dict[str, Any]:
        return {self.root: {'resources': {'VCPU': 2, 'MEMORY_MB': 512}}, provider: {'resources': resources}}

    def test_a_vgpu_at_a_former_provider_is_not_left_out(self) -> None:
        for flavor in (None, fixtures.Flavor(), a_flavor(resources__VGPU='1')):
            error = self.refused(self.at(FORMER, VGPU=1), flavor)
            self.assertIsInstance(error, exception.UnknownProvider)
            self.assertIn(FORMER, str(error))

    def test_a_vgpu_at_the_node_is_not_left_out(self) -> None:
        error = self.refused({self.root: {'resources': {'VCPU': 2, VGPU: 1}}})
        self.assertIn('1 VGPU wanted', str(error))
        self.assertIn('this host has none', str(error))

    def test_a_namespace_of_no_label_is_not_left_out(self) -> None:
        self.refused(self.at(FORMER, **{HUGE: 1}))
        self.refused(self.at(FORMER, **{HUGE: 1}), a_flavor(hw__pmem='HUGE'))

    def test_what_a_flavor_asks_for_is_asked_of_no_allocations_too(self) -> None:
        for allocations in (None, {}, self.at(self.root, VCPU=1)):
            for asked in ({'resources__VGPU': '1'}, {'resources_A__VGPU': '1'}, {'hw__pmem': '4GB'},
                          {f'resources__{PMEM}': '1'}):
                error = self.refused(allocations, a_flavor(**asked))
                self.assertIn('the flavor needs 1 ', str(error))

    def test_a_request_for_it_is_refused(self) -> None:
        self.assertIsInstance(self.refused(fixtures.a_request(vgpu=1)), exception.NoFit)
        self.assertIsInstance(self.refused(DeviceRequest.from_extra_specs({'resources:VGPU': '1'})),
                              exception.NoFit)

    def test_a_class_that_no_option_names_any_more_counts_at_our_own_provider(self) -> None:
        host = self.useFixture(fixtures.Host(name='other', parents={'card': 2}))
        [card] = [one.uuid for one in host.manager.providers() if one.parent_uuid is not None]
        error = self.assertRaises(exception.NoFit, host.claim, fixtures.Instance(), {card: {'resources': {
            'CUSTOM_NVIDIA_36': 1}}})
        self.assertIn('CUSTOM_NVIDIA_36', str(error))

    def test_a_custom_class_whose_option_is_lost_counts_at_a_parent_that_the_host_still_has(self) -> None:
        """No row, no option and no device name the class, and no device is left at the parent."""
        host = self.useFixture(fixtures.Host(name='other', devices=1))
        host.machine.add_parent('card', resource_class='CUSTOM_NVIDIA_36')
        host.audit()
        [card] = [one.uuid for one in host.manager.providers() if one.parent_uuid is not None]
        [root] = [one.uuid for one in host.manager.providers() if one.parent_uuid is None]
        host.machine.parents.clear()
        host.machine.resource_classes.clear()
        host.machine.idle_parents.add('card')
        host.restart()
        self.assertNotIn(card, [one.uuid for one in host.manager.providers()])
        wanted = {root: {'resources': {'VCPU': 1}}, card: {'resources': {'CUSTOM_NVIDIA_36': 1}}}
        for flavor in (None, a_flavor(resources__CUSTOM_NVIDIA_36='1')):
            error = self.assertRaises(exception.NoFit, host.claim, fixtures.Instance(flavor=flavor), wanted)
            self.assertIn('CUSTOM_NVIDIA_36', str(error))
        self.assertRaises(exception.NoFit, host.claim, fixtures.Instance(), DeviceRequest.of(
            ('CUSTOM_NVIDIA_36', 1, card)))
        self.assertEqual([], host.records())

    def test_what_a_row_names_counts_while_the_row_is_there(self) -> None:
        host = self.useFixture(fixtures.Host(name='other'))
        host.machine.add_parent('card', resource_class='CUSTOM_NVIDIA_36')
        host.audit()
        [card] = [one.uuid for one in host.manager.providers() if one.parent_uuid is not None]
        wanted = {card: {'resources': {'CUSTOM_NVIDIA_36': 1}}}
        host.spawn(request=wanted)
        host.machine.parents.clear()
        host.machine.resource_classes.clear()
        host.restart()
        self.assertRaises(exception.NoFit, host.claim, fixtures.Instance(), wanted)

    def test_everything_else_is_left_to_its_own_software(self) -> None:
        """Processors, a port's bandwidth, an operator's licences, and an accelerator of Cyborg's."""
        for allocations, flavor in (
                ({self.root: {'resources': {'VCPU': 2, 'CUSTOM_LICENCE': 1}}}, a_flavor(resources__CUSTOM_LICENCE='1')),
                (self.at(FORMER, NET_BW_EGR_KILOBIT_PER_SEC=2_000_000), None),
                (self.at(FORMER, FPGA=1, CUSTOM_FPGA_INTEL=1), None),
                (self.at(FORMER, VGPU=1), a_flavor(accel__device_profile='one-vgpu')),
                (None, None), ({}, fixtures.Flavor()), (None, a_flavor(resources__VGPU='0')),
                (None, a_flavor(resources__CUSTOM_FPGA_INTEL='1'))):
            claim = self.claim(allocations, flavor)
            self.assertEqual((0, ()), (len(claim.resources), claim.skipped))

    def test_an_accelerator_of_others_does_not_stand_for_what_the_flavor_names(self) -> None:
        self.refused(self.at(FORMER, VGPU=1), a_flavor(accel__device_profile='one-vgpu', resources__VGPU='1'))

    def test_every_claim_for_a_move_compares_too(self) -> None:
        host = self.host
        flavor = a_flavor(resources__VGPU='1')
        claims: tuple[tuple[str, Callable[[Any, Any, Any], Any]], ...] = (
            ('migration', lambda instance, migration, has: host.manager.resize_claim(
                host.context, instance, host.name, has, migration, flavor)),
            ('live-migration', lambda instance, migration, has: host.manager.live_migration_claim(
                host.context, instance, host.name, has, migration)),
            ('evacuation', lambda instance, migration, has: host.manager.rebuild_claim(
                host.context, instance, host.name, has, migration)))
        for sort, claim in claims:
            for allocations in (self.at(FORMER, VGPU=1), self.at(self.root, VCPU=2), None):
                instance = fixtures.Instance(flavor=flavor, host='elsewhere')
                migration = host.service.create_migration(host.context, instance, host.name, sort)
                self.assertRaises((exception.UnknownProvider, exception.BadRequest), claim, instance, migration,
                                  allocations)
        self.assertEqual([], host.records())


class TypesTestCase(base.TestCase):
    """Flavors that name the type of a mediated device, where no scheduler has chosen by it."""

    def setUp(self) -> None:
        super().setUp()
        self.host = self.useFixture(fixtures.Host())
        for number in (35, 36):
            self.host.machine.add_parent(f'card{number}', {f'nvidia-{number}': 1}, units=1)
        self.host.audit()

    def claim(self, **extra_specs: str) -> list[str]:
        request = DeviceRequest.from_extra_specs(a_flavor(**extra_specs).extra_specs)
        claim = self.host.claim(fixtures.Instance(), request)
        return [one.details.type for one in claim.resources]

    def test_get_this_type(self) -> None:
        for number, said in ((36, {'trait__CUSTOM_DEVICETRACK_MDEV_TYPE_NVIDIA_36': 'required'}),
                             (35, {'trait__CUSTOM_DEVICETRACK_MDEV_TYPE_NVIDIA_36': 'forbidden'})):
            self.assertEqual([f'nvidia-{number}'], self.claim(resources__VGPU='1', **said))
            error = self.assertRaises(exception.NoFit, self.claim, resources__VGPU='1', **said)
            self.assertNotIn('free of 2', str(error))
        self.assertEqual(2, len(self.host.records()))

    def test_get_no_other_instead(self) -> None:
        error = self.assertRaises(exception.NoFit, self.claim, resources__VGPU='1',
                                  trait__CUSTOM_DEVICETRACK_MDEV_TYPE_NVIDIA_37='required')
        self.assertIn('2 free of another product or type than the traits of the request allow', str(error))

    def test_get_no_other_instead_of_one_that_cannot_be_made(self) -> None:
        """A service that starts anew no longer has the request, but the row says the type."""
        for restart in (False, True):
            instance = fixtures.Instance()
            self.host.claim(instance, DeviceRequest.from_extra_specs({
                'resources:VGPU': '1', 'trait:CUSTOM_DEVICETRACK_MDEV_TYPE_NVIDIA_36': 'required'}))
            if restart:
                self.host.restart()
            self.host.machine.parents['card36'].used = 1
            self.assertRaises((exception.ParentFull, exception.NoFit), self.host.manager.realize, self.host.context,
                              instance)
            self.host.delete(instance)
            self.host.machine.parents['card36'].used = 0
            self.host.audit()
