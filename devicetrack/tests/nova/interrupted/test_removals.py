"""Mediated devices that go while Nova reads those of the host."""

from __future__ import annotations

import threading
import time
from typing import Any

import fixtures
from nova.tests.fixtures import libvirt as fakelibvirt
from nova.virt.libvirt import host

from devicetrack.tests.nova.stock_failures import base

_LIST = 'nova.virt.libvirt.host.Host.list_mediated_devices'


def no_device(name: str) -> Any:
    return fakelibvirt.make_libvirtError(
        fakelibvirt.libvirtError, f'Node device not found: no node device with matching name {name!r}',
        error_code=fakelibvirt.VIR_ERR_NO_NODE_DEVICE, error_domain=fakelibvirt.VIR_FROM_NODEDEV)


class RemovalTestCase(base.MdevGuests):

    def setUp(self) -> None:
        super().setUp()
        self.useFixture(fixtures.MonkeyPatch('nova.tests.fixtures.libvirt.HostMdevDevicesInfo.get_device_by_name',
                                             self._find))
        self.start_compute_with_vgpu('host1')

    @staticmethod
    def _find(found: Any, name: str) -> Any:
        """Answer as libvirt does about a device that is gone, where Nova's fake raises KeyError."""
        if name not in found.devices:
            raise no_device(name)
        return found.devices[name]

    def after_a_list(self, action: Any) -> None:
        """Do something after Nova has listed the devices, and before it looks each of them up, once."""
        original, done = host.Host.list_mediated_devices, list[bool]()

        def list_them(*args: Any, **kwargs: Any) -> Any:
            found = list(original(*args, **kwargs))     # Nova's fake returns a view
            if not done:
                done.append(True)
                action()
            return found

        self.useFixture(fixtures.MonkeyPatch(_LIST, list_them))
        self.addCleanup(lambda: self.assertEqual([True], done))

    def test_two_guests_are_deleted_at_once(self) -> None:
        one, other = (self.boot('host1', self.flavor) for _ in range(2))
        [gone] = self.mdevs('host1', other)
        delete = threading.Thread(target=self._delete_server, args=(other,))

        def remove_the_other() -> None:
            delete.start()
            until = time.monotonic() + 60
            while gone in self.existing('host1') and time.monotonic() < until:
                time.sleep(.05)
            self.assertNotIn(gone, self.existing('host1'))

        self.after_a_list(remove_the_other)
        self._delete_server(one)
        delete.join()
        self.assertEqual(set(), self.existing('host1'))
        self.assertEqual([], list(self.computes['host1'].driver.devicetrack.manager.assignments()))

    def test_an_error_that_stays_is_novas(self) -> None:
        self.boot('host1', self.flavor)
        driver, asked = self.computes['host1'].driver, list[str]()

        def find_none(_host: Any, name: str) -> Any:
            asked.append(name)
            raise no_device(name)

        self.useFixture(fixtures.MonkeyPatch('nova.virt.libvirt.host.Host.device_lookup_by_name', find_none))
        self.assertRaises(fakelibvirt.libvirtError, driver._get_mediated_devices)
        self.assertEqual(4, len(asked))             # Nova looks each one up twice
