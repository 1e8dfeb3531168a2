"""A host goes back from the adapter to Nova alone, which hands out namespaces by its own record.

The tests install and remove the adapter themselves.
"""

from __future__ import annotations

from unittest import mock

import fixtures
from nova import exception as nova_exception
from nova.virt.libvirt import driver

from devicetrack.nova import service
from devicetrack.tests.nova import adapted
from devicetrack.tests.nova.interrupted.test_starts import ANOTHER_BOOT
from devicetrack.tests.nova.stock_failures import base

adapted.as_on_a_host()

HOST = 'host1'


class WayBackTestCase(base.PmemGuests):
    """A host with eight namespaces, and a guest with four of them."""

    def setUp(self) -> None:
        super().setUp()
        self.adapter = adapted.with_adapter()
        self.adapter.start()
        self.addCleanup(self.adapter.stop)
        self.start(HOST, *(f'ns_{number}' for number in range(1, 9)))
        self.server = self.boot(HOST, self.flavor_of(4))
        self.had = self.namespaces(HOST, self.server)

    def boot_the_host(self) -> None:
        """The host boots, and its namespaces get other paths."""
        for domain in self.fake(HOST)._vms.values():
            domain.destroy()
        self.renumber(HOST, by=5)
        self.useFixture(fixtures.MonkeyPatch('devicetrack.virt.libvirt.driver.LibvirtDriver.boot_id',
                                             lambda _driver: ANOTHER_BOOT))
        self.restart(HOST)

    def go_back(self) -> None:
        self.computes[HOST].driver.close_devicetrack()
        self.adapter.stop()
        self.restart(HOST)

    def paths(self) -> dict[str, str]:
        """The paths of the guest's namespaces in Nova's record, by name."""
        return {one.identifier: one.metadata.devpath for one in self.instance(self.server).resources}

    def assert_others_for_the_next_guest(self) -> None:
        new = self.boot(HOST, self.flavor_of(4))
        self.assertEqual(set(), self.had & self.namespaces(HOST, new))

    def test_nova_alone_gives_no_namespace_twice(self) -> None:
        self.go_back()
        self.assert_others_for_the_next_guest()

    def test_nor_after_a_boot_of_the_host_that_changed_its_paths(self) -> None:
        before = self.paths()
        self.boot_the_host()
        self.assertEqual({name: path.replace('dax0', 'dax5') for name, path in before.items()}, self.paths())
        self._reboot_server(self.server, hard=True)
        self.go_back()
        self.assert_others_for_the_next_guest()

    def test_nor_those_of_a_guest_that_can_be_restored(self) -> None:
        self.flags(reclaim_instance_interval=30000)
        before = self.paths()
        self.api.delete_server(self.server['id'])
        self._wait_for_server_parameter(self.server, {'status': 'SOFT_DELETED'})
        self.boot_the_host()
        self.assertEqual({name: path.replace('dax0', 'dax5') for name, path in before.items()}, self.paths())
        self.go_back()
        self.assert_others_for_the_next_guest()

    def test_what_nova_cannot_save_now_the_next_start_saves(self) -> None:
        before = self.paths()
        with mock.patch.object(service, 'record_paths', autospec=True, side_effect=nova_exception.NovaException('no')):
            self.boot_the_host()
        self.assertEqual(before, self.paths())
        self.restart(HOST)
        self.assertNotEqual(before, self.paths())

    def test_a_process_has_hosts_with_the_adapter_and_without_it(self) -> None:
        self.adapter.stop()
        self.start('host2', 'ns_11', 'ns_12')
        self.assertIs(driver.LibvirtDriver, type(self.computes['host2'].driver))
        self.assertEqual({'ns_11', 'ns_12'}, self.namespaces('host2', self.boot('host2', self.flavor_of(2))))
        self.assert_others_for_the_next_guest()
        self.assertEqual(8, len(self.computes[HOST].driver.devicetrack.manager.assignments()))

    def test_the_paths_of_an_instance_without_rows_stay_for_its_adoption(self) -> None:
        before = self.paths()
        domain = self.fake(HOST).lookupByUUIDString(self.server['id'])
        domain.destroy()
        domain.undefine()
        self.computes[HOST].driver.devicetrack.manager.release(None, self.instance(self.server))
        self.boot_the_host()
        self.assertEqual(before, self.paths())
