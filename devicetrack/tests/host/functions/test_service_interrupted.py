"""Disks that the service hands out itself, while the service is killed, the power is cut and a disk is pulled.

The service reserves a disk when a guest gets it, and that ends only when the disk is clean. So after each disturbance,
a disk is reserved or all zeros. These tests drive the host from outside.
"""

from __future__ import annotations

import json
from typing import Any

from devicetrack.tests.host import machine as machines
from devicetrack.tests.host.functions import test_interrupted
from devicetrack.tests.host.functions.test_interrupted import DRIVER
from devicetrack.tests.host.functions.test_interrupted import FILL
from devicetrack.tests.host.functions.test_interrupted import IS_FULL
from devicetrack.tests.host.functions.test_interrupted import IS_ZERO
from devicetrack.tests.host.scenarios import base
from devicetrack.tests.host.scenarios import conductor

# What one audit could not end, the next one does.
TRIES = 5


class Host(conductor.Host):
    """A compute service that hands out disks itself, and has the library clean them."""

    def configure(self, *_: Any, **__: Any) -> None:
        self.machine.write(conductor.CONFIGURATION, '\n'.join([
            '[devicetrack]', 'virt_driver = libvirt', 'state_path = /var/lib/compute-of-service',
            '[devicetrack_pci]', 'release_wait_s = 30', f'cleaning = {json.dumps({"policy": "zero"})}']).encode())


class ServiceDevicesInterruptedTestCase(base.MachineTestCase):

    ALONE = True

    def setUp(self) -> None:
        super().setUp()
        self.database = conductor.Database()
        self.host_machine = self.machine('host-a')
        self.disks = [self.sh(test_interrupted.ADDRESS_OF, serial) for serial in machines.DISKS]
        for address in self.disks:
            self.database.device(address)
        self.host = Host(self.host_machine, self.database)
        self.host.launch()
        self.addCleanup(self.host.kill)
        self.host.start()
        self.assertEqual([], self.look_after())

    def sh(self, script: str, *arguments: str) -> str:
        return self.host_machine.run(['sh', '-e', '-c', script, 'sh', *arguments]).out.strip()

    def holds(self, script: str, address: str) -> bool:
        """Whether a comparison comes out even."""
        return self.host_machine.run(['sh', '-e', '-c', script, 'sh', address], check=False).status == 0

    def look_after(self) -> list[str]:
        """One audit of the service, and all that it begins. Returns what it says of devices that are not clean."""
        return [text for text in self.host.order('look_after')['findings'] if 'not cleaned' in text]

    def reserved(self) -> list[bool]:
        return [self.database.devices[address]['reserved'] for address in self.disks]

    def use(self, address: str) -> None:
        """A guest has a disk, from its boot to its end. It finds zeros, and leaves bytes all over the disk."""
        self.assertFalse(self.database.devices[address]['reserved'])
        self.assertTrue(self.holds(IS_ZERO, address), f'{address} has bytes of its former guest')
        instance = self.database.instance(self.host.name)
        self.database.claim(address, instance)
        self.host.order('run_with', instance=instance, address=address)
        self.assertEqual('vfio-pci', self.sh(DRIVER, address))
        self.assertEqual([], self.look_after())
        self.sh('virsh --quiet destroy $1; virsh --quiet undefine $1', instance)
        self.sh(FILL, address)
        self.database.claim(address, None)
        self.database.instances[instance]['word'] = 'deleted'

    def kill(self) -> None:
        self.host.kill()
        self.host.launch()
        self.host.start()

    def assert_comes_back_clean(self, address: str) -> None:
        """Nobody asks for it but audits."""
        said: list[str] = []
        for _ in range(TRIES):
            if not self.database.devices[address]['reserved']:
                break
            said = self.look_after()
        self.assertFalse(self.database.devices[address]['reserved'], said)
        self.assertEqual('nvme', self.sh(DRIVER, address))
        self.assertTrue(self.holds(IS_ZERO, address), f'{address} has bytes of its former guest')
        self.assertEqual([], self.look_after())

    def test_the_service_is_killed_in_every_step(self) -> None:
        first, second = self.disks
        for point, is_reserved in (('cleaning', True), ('wiping', True), ('proven', True), ('lifted', False)):
            self.use(first)
            self.host.order_until(point, 'look_after')
            self.assertEqual([is_reserved, False], self.reserved())
            self.kill()
            self.assertEqual([is_reserved, False], self.reserved())
            self.assert_comes_back_clean(first)
        self.use(second)
        self.use(first)
        self.kill()                             # nobody has begun
        self.assert_comes_back_clean(first)
        self.assert_comes_back_clean(second)

    def test_the_power_is_cut_in_the_middle(self) -> None:
        address, other = self.disks
        for point in ('cleaning', 'proven'):
            self.use(address)
            self.host.order_until(point, 'look_after')
            self.host_machine.cut()
            self.host_machine.start()
            self.assertEqual(self.disks, [self.sh(test_interrupted.ADDRESS_OF, serial) for serial in machines.DISKS])
            self.assertEqual([True, False], self.reserved())
            self.host.launch()
            self.host.start()
            self.assert_comes_back_clean(address)
        self.use(other)
        self.assert_comes_back_clean(other)

    def test_another_disk_in_the_slot(self) -> None:
        address, number = self.disks[0], 0
        self.use(address)
        self.host.order_until('proven', 'look_after')
        # Even if the disk of the guest is clean by now.
        self.replace(number, address, machines.OTHER_DISK)
        self.sh(FILL, address)
        for _ in range(2):
            self.kill()
            self.assertIn('its serial is disk-c, recorded was disk-a', ' '.join(self.look_after()))
            self.assertEqual([True, False], self.reserved())
        self.assertTrue(self.holds(IS_FULL, address))

        self.replace(number, address, machines.DISKS[number])
        self.assert_comes_back_clean(address)
        self.use(address)
        self.replace(number, address, machines.OTHER_DISK)
        self.assertIn('its serial is disk-c, recorded was disk-a', ' '.join(self.look_after()))
        self.assertEqual([True, False], self.reserved())
        self.assertTrue(self.holds(IS_FULL, address))
        self.replace(number, address, machines.DISKS[number])
        self.assertTrue(self.holds(IS_FULL, address))       # as its guest left it
        self.assert_comes_back_clean(address)

    def replace(self, number: int, address: str, serial: str) -> None:
        self.host_machine.replace_disk(number, serial)
        self.assertEqual(address, self.sh(test_interrupted.ADDRESS_OF, serial))
