"""Functions while the service is killed, the power of the host is cut, and a disk is pulled: driven from outside.

After each there is one owner, nothing of the former one, and no function is lost.
"""

from __future__ import annotations

import json
from typing import Any

from devicetrack.tests.host import machine as machines
from devicetrack.tests.host.scenarios import base
from devicetrack.tests.host.scenarios import conductor

CLASS, PART = 'CUSTOM_PCI_1B36_0010', 'CUSTOM_PART'
PATTERN = 'of the first owner'
BYTES = machines.DISK_MIB << 20
# What one audit could not end, the next one does.
TRIES = 5

# Programs inside, by sh -c; $1 is a serial number or an address.
# The kernel finds a disk some time after the boot, or after it was put in. It numbers the namespaces of a controller as
# it meets them, several at the same time: the only one that is left may be called n2.
ADDRESS_OF = ('until f=$(grep -lsx "$1 *" /sys/class/nvme/*/serial) && ls -d ${f%serial}nvme*n[0-9]*; do sleep 0.2; '
              'done >&2; cat ${f%serial}address')
WHERE = ('cd /sys/bus/pci/devices/$1; until ls -d nvme/nvme*/nvme*n[0-9]*; do sleep 0.2; done >/dev/null 2>&1; '
         'disk=/dev/$(ls -d nvme/nvme*/nvme*n[0-9]* | sed "s,.*/,,"); ')
FILL = WHERE + f'yes "{PATTERN}" | head -c {BYTES} >$disk; sync'
IS_FULL = WHERE + f'yes "{PATTERN}" | head -c {BYTES} | cmp $disk -'
IS_ZERO = WHERE + f'cmp -n {BYTES} $disk /dev/zero'
DRIVER = 'basename "$(readlink /sys/bus/pci/devices/$1/driver)"'
# As libvirt leaves it that is killed before the guest starts.
GIVE_TO_GUESTS = ('cd /sys/bus/pci/devices/$1; echo vfio-pci >driver_override; echo $1 >driver/unbind; '
                  'echo $1 >/sys/bus/pci/drivers_probe')
PARTS = 'cd /sys/bus/pci/devices/$1; for link in virtfn*; do [ ! -e $link ] || basename $(readlink $link); done'
REMOVE_PARTS = 'echo 0 >/sys/bus/pci/devices/$1/sriov_numvfs'


class Host(conductor.Host):
    """The compute service of a machine that gives its disks to guests, and two virtual functions of another one.

    :param disks: their addresses
    :param physical: the address of that other one
    """

    def __init__(self, of: machines.Machine, database: conductor.Database, disks: list[str], physical: str) -> None:
        self._disks, self._physical = disks, physical
        super().__init__(of, database)

    def configure(self, *_: Any, release_wait_s: int = 30, **__: Any) -> None:
        domain, bus, rest = self._physical.split(':')
        parts = {'domain': domain, 'bus': bus, 'slot': rest.partition('.')[0], 'function': '[1-7]'}
        specs = [*({'address': address} for address in self._disks), {'address': parts, 'resource_class': PART}]
        rules = [{'address': parts, 'policy': 'none'}, {'policy': 'zero'}]
        vfs = {'address': self._physical, 'number': 2, 'autoprobe': False, 'private_namespaces': True}
        self.machine.write(conductor.CONFIGURATION, '\n'.join([
            '[devicetrack]', 'virt_driver = libvirt', 'state_path = /var/lib/compute', 'unproven_devices = trust',
            '[pci]', *(f'device_spec = {json.dumps(spec)}' for spec in specs),
            '[devicetrack_pci]', 'functions = all', f'release_wait_s = {release_wait_s}', f'vfs = {json.dumps(vfs)}',
            *(f'cleaning = {json.dumps(rule)}' for rule in rules)]).encode())


class InterruptedTestCase(base.MachineTestCase):

    ALONE = True

    def setUp(self) -> None:
        super().setUp()
        self.database = conductor.Database()
        self.host_machine = self.machine('host-a')
        self.disks = [self.sh(ADDRESS_OF, serial) for serial in machines.DISKS]
        self.physical = self.sh(ADDRESS_OF, machines.SPLIT)
        self.addCleanup(self.sh, REMOVE_PARTS, self.physical)
        self.host = Host(self.host_machine, self.database, self.disks, self.physical)
        self.host.launch()
        self.addCleanup(self.empty)
        self.host.start()
        self.assertEqual([], self.host.order('audit')['findings'])

    def sh(self, script: str, *arguments: str) -> str:
        return self.host_machine.run(['sh', '-e', '-c', script, 'sh', *arguments]).out.strip()

    def holds(self, script: str, address: str) -> bool:
        """Whether a comparison comes out even."""
        return self.host_machine.run(['sh', '-e', '-c', script, 'sh', address], check=False).status == 0

    def parts(self) -> list[str]:
        """Where there are virtual functions now."""
        return self.sh(PARTS, self.physical).split()

    def empty(self) -> None:
        """Leave nothing for the next test."""
        for instance, fields in self.database.instances.items():
            if fields['word'] != 'deleted':
                self.host.order('delete', instance=instance)
        self.assertEqual([], self.host.order('look')['rows'])
        self.host.kill()

    # -- what happens -------------------------------------------------------------------------------------------------

    def boot(self, name: str = CLASS) -> tuple[str, str]:
        """An instance that runs with a function, and where that is."""
        instance = self.database.instance(self.host.name)
        [row] = self.host.order('boot', instance=instance, **{name: 1})['rows']
        return instance, row[1]

    def end_guest(self, instance: str, address: str) -> None:
        """Its guest is gone, and has left bytes all over the disk."""
        self.sh('virsh --quiet destroy $1; virsh --quiet undefine $1', instance)
        self.assertEqual('nvme', self.sh(DRIVER, address))
        self.sh(FILL, address)

    def delete_until(self, point: str, instance: str) -> None:
        self.host.order_until(point, 'delete', instance=instance)
        self.database.instances[instance]['word'] = 'deleted'

    def kill(self) -> None:
        self.host.kill()
        self.host.launch()

    # -- what must hold -----------------------------------------------------------------------------------------------

    def owners(self) -> dict[str, str]:
        """By address, the instance that a function has been recorded for."""
        rows = self.host.order('look')['rows']
        self.assertEqual(len(rows), len({row[1] for row in rows}))
        return {row[1]: row[2] for row in rows}

    def assert_runs(self, instance: str, address: str) -> None:
        """Row, guest and definition name the same function, which has the driver for guests."""
        shown = self.host.order('show', instance=instance)
        self.assertEqual([['pci', address]], [row[:2] for row in shown['rows']])
        self.assertEqual(([['pci', address]], [['pci', address]]), (shown['live'], shown['defined']))
        self.assertEqual('vfio-pci', self.sh(DRIVER, address))

    def assert_comes_back_clean(self, *addresses: str) -> None:
        """Nobody asks for it but audits."""
        for _ in range(TRIES):
            if not set(self.owners()) & set(addresses):
                break
            self.host.order('audit')
        self.assertEqual(set(), set(self.owners()) & set(addresses))
        for address in addresses:
            self.assertEqual('nvme', self.sh(DRIVER, address))
            self.assertTrue(self.holds(IS_ZERO, address), f'{address} has bytes of its former owner')
        self.assertEqual([], self.host.order('audit')['findings'])

    # -- the tests ----------------------------------------------------------------------------------------------------

    def test_killed_in_the_middle_of_everything(self) -> None:
        claimed, booted = (self.database.instance(self.host.name) for _ in range(2))
        self.host.order_until('recorded', 'boot', instance=claimed, **{CLASS: 1})
        self.host.order_until('booted', 'boot', instance=booted, **{CLASS: 1})
        # The next service waits for no libvirt that brings functions back.
        self.host.configure(release_wait_s=0)
        self.kill()
        self.host.start()
        self.assertEqual(({claimed, booted}, set(self.disks)),
                         (set(self.owners().values()), set(self.owners())))
        [address] = [address for address, owner in self.owners().items() if owner == booted]
        self.assert_runs(booted, address)
        self.assertEqual([], self.host.order('delete', instance=claimed)['rows'])
        self.database.instances[claimed]['word'] = 'deleted'

        other, place = self.boot()
        for instance, where, point in ((booted, address, 'resetting'), (other, place, 'unbound')):
            self.end_guest(instance, where)
            self.sh(GIVE_TO_GUESTS, where)
            self.assertEqual('vfio-pci', self.sh(DRIVER, where))
            self.delete_until(point, instance)
        self.host.configure()
        self.kill()
        self.host.start()
        self.assert_comes_back_clean(*self.disks)

        for point in ('cleaning', 'wiping'):
            instance, where = self.boot()
            self.end_guest(instance, where)
            self.delete_until(point, instance)
        self.kill()
        self.host.start()
        self.assert_comes_back_clean(*self.disks)

    def test_the_power_is_cut_and_the_host_boots_without_virtual_functions(self) -> None:
        parts = self.parts()
        self.assertEqual(2, len(parts))
        (instance, part), (kept, place), (deleted, cleaned) = self.boot(PART), self.boot(), self.boot()
        self.end_guest(deleted, cleaned)
        # So are both definitions on the disk.
        self.sh('sync')
        self.delete_until('cleaning', deleted)
        self.assertEqual({part: instance, place: kept, cleaned: deleted}, self.owners())
        self.host_machine.cut()
        self.host_machine.start()
        self.assertEqual(self.disks, [self.sh(ADDRESS_OF, serial) for serial in machines.DISKS])
        self.assertEqual([], self.parts())
        self.assertTrue(self.holds(IS_FULL, cleaned))

        self.host.launch()
        self.host.start()
        self.assertEqual(parts, self.parts())
        self.assert_comes_back_clean(cleaned)
        self.assertEqual({part: instance, place: kept}, self.owners())
        for owner, address in ((instance, part), (kept, place)):
            self.host.order('power_on', instance=owner)
            self.assert_runs(owner, address)
        self.end_guest(kept, place)
        for owner in (instance, kept):
            self.assertEqual([], self.host.order('delete', instance=owner)['rows'])
            self.database.instances[owner]['word'] = 'deleted'
        self.assert_comes_back_clean(*self.disks)
        self.assertEqual({}, self.owners())

    def test_another_disk_in_the_slot(self) -> None:
        instance, address = self.boot()
        number = self.disks.index(address)
        self.end_guest(instance, address)
        self.replace(number, address, machines.OTHER_DISK)
        self.sh(FILL, address)
        for _ in range(2):
            refused = self.assertRaises(conductor.OrderFailed, self.host.order, 'delete', instance=instance)
            self.assertIn('another function is there', refused.text)
            self.assertEqual({address: instance}, self.owners())
            self.kill()
            self.host.start()
        self.assertIn(address, str(self.host.order('audit')['findings']))
        # Nobody gets the other disk in its place.
        waiting = self.database.instance(self.host.name)
        refused = self.assertRaises(conductor.OrderFailed, self.host.order, 'boot', instance=waiting, **{CLASS: 2})
        self.assertEqual('NoFit', refused.error)
        self.assertTrue(self.holds(IS_FULL, address))

        self.replace(number, address, machines.DISKS[number])
        self.assertTrue(self.holds(IS_FULL, address))       # as its guest left it
        self.database.instances[instance]['word'] = 'deleted'
        self.assert_comes_back_clean(address)

    def replace(self, number: int, address: str, serial: str) -> None:
        self.host_machine.replace_disk(number, serial)
        self.assertEqual(address, self.sh(ADDRESS_OF, serial))
