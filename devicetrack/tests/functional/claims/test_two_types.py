"""Two types of mediated devices, with a resource class each, that take the room of the same parents."""

from __future__ import annotations

from typing import Any

from devicetrack import exception
from devicetrack.conf import libvirt as libvirt_options
from devicetrack.objects import DeviceRequest
from devicetrack.testing import fixtures
from devicetrack.testing import libvirt as libvirt_fixtures
from devicetrack.testing.fixtures import VGPU
from devicetrack.tests import base
from devicetrack.tests.functional.claims import libvirt_hosts
from devicetrack.tests.unit.virt import mdev_node
from devicetrack.virt.libvirt import mdev_sysfs
from devicetrack.virt.libvirt import mdevctl
from devicetrack.virt.libvirt.kinds import mdev

DOUBLE = 'CUSTOM_DOUBLE'                    # takes two units of its parent, and VGPU one
SINGLE, DOUBLE_ONE = DeviceRequest.of((VGPU, 1)), DeviceRequest.of((DOUBLE, 1))


class TwoTypesTestCase(base.TestCase):
    """A parent with four units, on a host whose guests are on libvirt's test driver."""

    scenarios = [(policy, {'policy': policy}) for policy in ('pack', 'spread')]
    policy: str

    def setUp(self) -> None:
        super().setUp()
        self.node = node = mdev_node.Node(self.temp_dir())
        node.units = 4
        self.patch(mdevctl, 'DIRECTORY', node.definitions)

        class Mediated(mdev.Mdev):
            def __init__(self, conf: Any, _hypervisor: Any) -> None:
                super().__init__(conf, node)    # type: ignore[arg-type]
                self.devices.kernel, self.patience.settle_s = mdev_sysfs.Kernel(node.sysfs), 0.0

        self.configuration.set('devicetrack_mdev', release_wait_s=0)
        for name in mdev_node.COSTS:
            libvirt_options.register_mdev_type(self.conf, name)
        self.configuration.set('mdev_mtty-1', device_addresses=[mdev_node.PARENT])
        self.configuration.set('mdev_mtty-2', device_addresses=[mdev_node.PARENT], mdev_class=DOUBLE)
        self.host: Any = self.useFixture(libvirt_hosts.LibvirtHost(
            self.useFixture(libvirt_fixtures.TestNode()).connect, {}, self.temp_dir(), kinds=[Mediated],
            mdev_types=['mtty-1', 'mtty-2'], configuration=self.configuration, policy=self.policy))

    def room(self) -> dict[str, int]:
        """What the scheduler may still give away of each class."""
        found: dict[str, int] = {}
        for provider in self.host.manager.providers():
            for name, total in provider.totals.items():
                used = sum(record.resource_class == name for record in self.host.records())
                found[name] = found.get(name, 0) + total - provider.reserved.get(name, 0) - used
        return found

    def test_what_one_takes_the_other_lacks(self) -> None:
        for request, left in ((SINGLE, (3, 1)), (DOUBLE_ONE, (1, 0)), (SINGLE, (0, 0))):
            self.host.spawn(request=request)
            self.assertEqual({VGPU: left[0], DOUBLE: left[1]}, self.room())
            self.assertEqual([], self.host.audit())
            self.assertEqual({VGPU: left[0], DOUBLE: left[1]}, self.room())
        self.assertEqual(0, self.node.free())

    def test_a_class_without_room_is_refused_and_says_who_has_it(self) -> None:
        for _ in range(2):
            self.host.spawn(request=DOUBLE_ONE)
        for request, says in ((SINGLE, f'1 {VGPU} wanted, 0 of 0 free: no room left on {mdev_node.PARENT}'),
                              (DOUBLE_ONE, f'1 {DOUBLE} wanted, 0 of 2 free: 2 held by 2 instances, no room left on '
                                           f'{mdev_node.PARENT}')):
            error = self.assertRaises(exception.NoFit, self.host.claim, fixtures.Instance(), request)
            self.assertEqual(says, str(error))
        self.assertEqual(2, len(self.host.records()))

    def test_a_claim_takes_the_room_of_both_before_its_device_exists(self) -> None:
        first, second = fixtures.Instance(), fixtures.Instance()
        self.host.claim(first, DOUBLE_ONE)
        self.host.claim(second, DeviceRequest.of((VGPU, 3)))
        self.assertEqual({VGPU: 0, DOUBLE: 0}, self.room())
        self.host.manager.realize(self.host.context, first)
        error = self.assertRaises(exception.NoFit, self.host.manager.realize, self.host.context, second)
        self.assertIn(f'no room left on {mdev_node.PARENT}', str(error))
        self.host.manager.release(self.host.context, second)
        self.assertEqual(([], 2), (self.host.audit(), self.node.free()))
        self.assertEqual({VGPU: 2, DOUBLE: 1}, self.room())

    def test_what_goes_back_is_room_for_both(self) -> None:
        first, second = self.host.spawn(request=DOUBLE_ONE), self.host.spawn(request=DOUBLE_ONE)
        for instance, left in ((first, (2, 1)), (second, (4, 2))):
            self.host.delete(instance)
            self.host.wait()
            self.assertEqual([], self.host.audit())
            self.assertEqual({VGPU: left[0], DOUBLE: left[1]}, self.room())
        self.host.spawn(request=DeviceRequest.of((VGPU, 4)))
        self.assertEqual(({VGPU: 0, DOUBLE: 0}, 0), (self.room(), self.node.free()))

    def test_one_claim_has_both_in_either_order(self) -> None:
        for request in (DeviceRequest.of((VGPU, 2), (DOUBLE, 1)), DeviceRequest.of((DOUBLE, 1), (VGPU, 2))):
            instance = self.host.spawn(request=request)
            self.assertEqual(({VGPU: 0, DOUBLE: 0}, 0), (self.room(), self.node.free()))
            self.host.delete(instance)
            self.host.wait()
            self.host.audit()

    def test_what_fits_alone_and_not_together_takes_nothing(self) -> None:
        error = self.assertRaises(exception.NoFit, self.host.claim, fixtures.Instance(),
                                  DeviceRequest.of((VGPU, 4), (DOUBLE, 1)))
        self.assertEqual([(VGPU, 4), (DOUBLE, 1)], [(one.resource_class, one.wanted) for one in error.shortages])
        self.assertEqual(([], {VGPU: 4, DOUBLE: 2}), (self.host.records(), self.room()))
