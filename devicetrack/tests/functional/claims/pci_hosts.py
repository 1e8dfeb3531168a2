"""Hosts with PCI functions that are made of files, and guests of libvirt's test driver on them."""

from __future__ import annotations

from collections.abc import Collection
import json
from typing import Any
from typing import Final

from devicetrack.claims.manager import ClaimManager
from devicetrack.testing import libvirt as libvirt_fixtures
from devicetrack.testing import pci as made
from devicetrack.testing import pci_guests
from devicetrack.testing import region as regions
from devicetrack.tests import base
from devicetrack.tests.functional.claims import libvirt_hosts
from devicetrack.virt.libvirt.driver import LibvirtDriver
from devicetrack.virt.libvirt.kinds import mdev
from devicetrack.virt.libvirt.kinds import pci
from devicetrack.virt.libvirt.kinds import vpmem

DISK, VF, CARD, PAIR = 'CUSTOM_DISK', 'CUSTOM_VF', 'CUSTOM_CARD', 'CUSTOM_PAIR'
PMEM = 'CUSTOM_PMEM_NAMESPACE_4GB'
SPECS: Final = (
    {'address': '*:07:00.*', 'resource_class': PAIR},
    {'address': '*:05:*', 'physical_network': 'physnet1'},
    {'vendor_id': '1b36', 'product_id': '0010', 'resource_class': DISK},
    {'vendor_id': '8086', 'product_id': '10c9', 'resource_class': CARD},
    {'vendor_id': '8086', 'product_id': '10ca', 'resource_class': VF, 'traits': 'fast'})


class Machine(libvirt_hosts.Machine):
    """A libvirt that gives guests their functions, and takes them back."""

    functions: pci_guests.GuestFunctions

    def start_guest(self, domain_uuid: str, elements: Collection[str], define: bool = True, metadata: str = '') -> None:
        super().start_guest(domain_uuid, elements, define, metadata)
        self.functions.start(domain_uuid, self.live(domain_uuid).pci_addresses)

    def power_on(self, domain_uuid: str) -> None:
        """Start a guest by its definition."""
        self.domain(domain_uuid).create()
        self.functions.start(domain_uuid, self.live(domain_uuid).pci_addresses)

    def stop_guest(self, domain_uuid: str) -> None:
        super().stop_guest(domain_uuid)
        self.functions.end(domain_uuid)

    def delete_guest(self, domain_uuid: str) -> None:
        super().delete_guest(domain_uuid)
        self.functions.end(domain_uuid)


class PCIHost(libvirt_hosts.LibvirtHost):
    """A compute host with a namespace and with these functions.

    Two disks at bus 01 and 02; a card at bus 03 with three virtual functions; a card at bus 07 with two disks in one
    IOMMU group, of class :data:`PAIR`; a card at bus 05 with two virtual functions of ``physnet1``.

    :param beside: another such host of the test
    """

    def __init__(self, test: base.TestCase, beside: PCIHost | None = None, **kwargs: Any) -> None:
        node = test.useFixture(libvirt_fixtures.TestNode())
        self.hardware: made.PCIHost = test.useFixture(made.PCIHost(None if beside is None else beside.hardware))
        hardware = self.hardware
        self.functions = pci_guests.GuestFunctions(hardware)
        self.disks = [hardware.add_nvme(f'0000:0{bus}:00.0', f'{kwargs["name"]} {bus}') for bus in (1, 2)]
        self.card = hardware.add_igb('0000:03:00.0')
        self.vfs = hardware.make_vfs(self.card, 3)
        self.network_card = hardware.add_igb('0000:05:00.0')
        self.network_vfs = hardware.make_vfs(self.network_card, 2)
        self.pair = hardware.add_card('0000:07:00', [f'{kwargs["name"]} {number}' for number in 'ab'])
        self.at_home = self.drivers()
        self.boot_id = 'the first boot'

        class PCI(pci.PCI):
            def __init__(self, conf: Any, hypervisor: Any) -> None:
                super().__init__(conf, hypervisor)
                self.host_use = hardware.use

        super().__init__(node.connect, {'4GB': ['ns0', 'ns1']}, test.temp_dir(), kinds=[mdev.Mdev, PCI, vpmem.VPMEM],
                         **kwargs)

    def _setUp(self) -> None:
        assert self._configuration is not None
        self._configuration.set('pci', device_spec=list(map(json.dumps, SPECS)))
        # Cleaning by more than a reset needs disks, and is tested with the kind.
        self._configuration.set('devicetrack_pci', sysfs_root=self.hardware.root, release_wait_s=0, functions=['all'],
                                cleaning=[json.dumps({'policy': 'none'})])
        super()._setUp()

    def make_machine(self) -> Machine:
        machine = Machine(self._connect, self._kind, self._directory)
        machine.functions = self.functions
        return machine

    def another_manager(self) -> ClaimManager:
        manager = super().another_manager()
        driver = self.machine.driver
        destroy = driver.destroy_guest

        def destroy_guest(domain_uuid: str, stop: bool = True) -> None:
            destroy(domain_uuid, stop)
            self.functions.end(domain_uuid)

        vars(driver)['destroy_guest'] = destroy_guest           # libvirt takes functions back, whoever ends a guest
        return manager

    def reboot(self) -> None:
        """Boot the host: guests are off, functions have the host's drivers, and virtual ones are there again."""
        self.boot_id = f'after {self.boot_id}'
        for domain in self.machine.connection.listAllDomains():
            if domain.isActive():
                domain.destroy()
        self.functions.boot()
        for card, number in ((self.card, 3), (self.network_card, 2)):
            if card in self.hardware.addresses and not self.hardware.vfs_of(card):
                self.hardware.make_vfs(card, number)

    def drivers(self) -> dict[str, str | None]:
        """By address, the driver that a function has."""
        return {address: self.hardware.driver_of(address) for address in self.hardware.addresses}

    def used(self) -> set[str]:
        """The functions that have the driver for guests."""
        return {address for address, driver in self.drivers().items() if driver == made.VFIO_PCI}

    def astray(self) -> dict[str, str | None]:
        """The functions without an owner whose driver is not that of the beginning, and the driver."""
        owned = self.owners()
        return {address: driver for address, driver in self.drivers().items()
                if address not in owned and driver != self.at_home[address]}


class PCIHostsTestCase(base.TestCase):
    """Hosts ``one`` and ``two``."""

    def setUp(self) -> None:
        super().setUp()
        hosts: dict[str, PCIHost] = {}
        self.patch(LibvirtDriver, 'boot_id', lambda driver: hosts[driver.host].boot_id)

        def host(_devices: int, _parents: Any, name: str, **kwargs: Any) -> PCIHost:
            hosts[name] = PCIHost(self, hosts.get('one'), name=name, **kwargs)
            return hosts[name]

        self.region = self.useFixture(regions.Region(host=host))
        self.one, self.two = hosts['one'], hosts['two']

    def identifiers(self, host: PCIHost, instance: Any, role: str = 'current') -> list[str]:
        return [record.identifier for record in host.records(instance) if record.role == role]

    def assert_runs_on(self, host: PCIHost, instance: Any, addresses: list[str]) -> None:
        """Both definitions of the guest, its record and the kernel say that it has these functions, in this order."""
        for domain in (host.machine.live(instance.uuid), host.machine.defined(instance.uuid)):
            self.assertEqual(tuple(addresses), domain.pci_addresses)
            assert domain.record is not None
            self.assertEqual(addresses, [device.identifier for device in domain.record.devices
                                         if device.kind == 'pci' and not device.beside])
        self.assertLessEqual(set(addresses), host.used())
        self.assertEqual([], host.disagreements())

    def assert_nothing_left(self, host: PCIHost) -> None:
        """No function has an owner, and each has its driver."""
        self.assertEqual(({}, {}), (host.owners(), host.astray()))
