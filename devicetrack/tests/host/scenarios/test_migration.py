"""Guests that move, running, between two hosts: there and back, and moves that fail."""

from __future__ import annotations

import json
import re
from typing import Any

from devicetrack.tests.host.scenarios import base
from devicetrack.tests.host.scenarios import conductor

OURS = 0x5a                                     # what the guest has all over its memory
PARTNER = conductor.EQUAL[1]                    # what its memory becomes on the second host
MIB = 1 << 20
SIZE = 46 * MIB                                 # of the guest's device, and of its partner
NOTHING: dict[str, list[Any]] = {'rows': [], 'mdevs': [], 'defined': [], 'running': []}


class MigrationTestCase(base.MachineTestCase):

    def setUp(self) -> None:
        super().setUp()
        self.database = conductor.Database()
        self.one, self.two = (conductor.Host(self.machine(name), self.database) for name in ('host-a', 'host-b'))
        # Not each namespace of the second host can be a partner: one is larger.
        for host, pmem in ((self.one, conductor.EQUAL), (self.two, (PARTNER, conductor.LARGER))):
            host.configure(pmem=pmem)
            host.launch()
            self.addCleanup(host.kill)
            host.start()
        # mtty migrates since Linux 6.8; QEMU 7.2 migrates no VFIO device.
        self.vgpu = 0 if self.release == 12 else 1
        self.unsupported: set[str] = set()
        self.rows: dict[str, list[list[str]]] = {}

    def claim(self, instance: str, source: conductor.Host, destination: conductor.Host,
              **request: int) -> tuple[str, Any]:
        """Claim after the checks of both hosts."""
        check = destination.order('check_destination', instance=instance)['check']
        check = source.order('check_source', instance=instance, check=check)['check']
        return self._claimed('claim_live', instance, source, destination, check=check, **request)

    def _claimed(self, order: str, instance: str, source: conductor.Host, destination: conductor.Host,
                 **arguments: Any) -> tuple[str, Any]:
        migration = self.database.migration(instance, source.name, destination.name)
        try:
            answer = destination.order(order, instance=instance, migration=migration, **arguments)
        except conductor.OrderFailed:
            self.database.set_status(migration, 'error')
            raise
        self.database.set_status(migration, 'running')
        return migration, answer['map']

    def send(self, instance: str, migration: str, source: conductor.Host, destination: conductor.Host,
             device_map: Any, order: str = 'live_migrate') -> dict[str, Any]:
        return source.order(order, instance=instance, migration=migration, device_map=device_map,
                            uri=f'qemu+tcp://{destination.machine.address}/system')

    def move(self, instance: str, source: conductor.Host, destination: conductor.Host) -> list[list[str]]:
        """Migrate an instance, and see that both hosts know it.

        :returns: what it has now
        """
        left = source.order('show', instance=instance)['rows']
        migration, device_map = self.claim(instance, source, destination, pmem=1, vgpu=self.vgpu)
        self.assertEqual({}, self.send(instance, migration, source, destination, device_map))
        self.database.instances[instance]['host'] = destination.name
        self.database.set_status(migration, 'completed')
        destination.order('arrived', instance=instance)
        self.assert_runs(destination, instance)
        self.assertEqual([], source.order('left', instance=instance, migration=migration)['rows'])
        self.assertEqual(NOTHING, source.order('look'))
        [namespace] = self.namespaces(left)
        self.assertTrue(source.order('contents', name=namespace)['all'])
        for host in (source, destination):
            self.assertEqual([], host.order('audit')['findings'])
        return self.assert_runs(destination, instance)

    def namespaces(self, rows: list[list[str]]) -> list[str]:
        return [row[1] for row in rows if row[0] == 'vpmem']

    def assert_runs(self, host: conductor.Host, instance: str) -> list[list[str]]:
        """The rows, the live and the persistent definition name the same, with the guest's bytes in it."""
        shown = host.order('show', instance=instance)
        rows: list[list[str]] = shown['rows']
        self.assertEqual({('current', 'active')}, {(row[2], row[3]) for row in rows})
        devices = sorted(row[:2] for row in rows)
        self.assertEqual((devices, devices), (sorted(shown['live']), sorted(shown['defined'])))
        look = host.order('look')
        self.assertEqual(sorted(row[1] for row in look['rows'] if row[0] == 'mdev'), look['mdevs'])
        for namespace in self.namespaces(rows):
            self.assertTrue(host.order('contents', name=namespace, byte=OURS)['all'])
        return rows

    def spawn(self, **request: int) -> str:
        instance = self.database.instance(self.one.name)
        if request.get('vgpu') and not self.vgpu:
            self.unsupported.add(instance)
        self.rows[instance] = self.one.order('boot', instance=instance, **request)['rows']
        for namespace in self.namespaces(self.rows[instance]):
            self.one.order('fill', name=namespace, byte=OURS)
        return instance

    def end(self, instance: str, host: conductor.Host, last: bool = True) -> None:
        """Delete an instance; with the last one everything is as it was before the first."""
        self.assertEqual([], host.order('delete', instance=instance)['rows'])
        self.database.instances[instance]['word'] = 'deleted'
        if not last:
            return
        for one in (self.one, self.two):
            self.assertEqual(NOTHING, one.order('look'))
            for name in conductor.NAMESPACES:
                self.assertTrue(one.order('contents', name=name)['all'], f'{name} of {one.name}')

    def test_there_and_back(self) -> None:
        instance = self.spawn(pmem=1, vgpu=self.vgpu)
        self.move(instance, self.one, self.two)
        self.move(instance, self.two, self.one)
        self.end(instance, self.one)

    def test_what_the_check_refuses_fails_when_forced(self) -> None:
        """Each guest has one device, so a hypervisor can object to no other."""
        pmem, vgpu = self.spawn(pmem=1), self.spawn(vgpu=1)
        pmem_gone, vgpu_gone = self.map_of_what_goes_back(pmem, pmem=1), self.map_of_what_goes_back(vgpu, vgpu=1)
        path, identifier = self.two.order('paths')[PARTNER], self.partner(vgpu_gone[1])

        # The partner is away. The remaining namespace is larger: the guest could go there, and not come back.
        self.addCleanup(self.make_anew, PARTNER, 2 * MIB)
        self.two.machine.run(['ndctl', 'disable-namespace', self.device(PARTNER)])
        self.assert_refused(pmem, self.reason(conductor.LARGER, 62 * MIB), pmem=1)
        self.assert_fails(pmem, pmem_gone, f"Path '{path}' is not accessible")

        self.make_anew(PARTNER, 4096)
        self.restart(self.two, pmem=(PARTNER,), mdev_type='mtty-1')
        self.assert_refused(pmem, self.reason(PARTNER, SIZE, 4096), pmem=1)
        self.assert_fails(pmem, self.claim_unchecked(pmem, pmem=1),
                          "NVDIMM alignment '2048' doesn't match source NVDIMM alignment '4'")
        self.assert_refused(vgpu, 'no: type is mtty-2 at the source, mtty-1 at the destination', vgpu=1)
        # The state of two ports goes to a driver with one port, whose error says no more than this.
        self.assert_fails(vgpu, self.claim_unchecked(vgpu, vgpu=1), 'load of migration failed')

        # No parent that libvirt knows makes the type.
        self.restart(self.two, pmem=(conductor.SMALLER,), mdev_type='mdpy-vga')
        self.assert_refused(pmem, self.reason(conductor.SMALLER, 30 * MIB), pmem=1)
        migration, device_map = self.claim_unchecked(pmem, pmem=1)
        refused = self.assertRaises(conductor.OrderFailed, self.send, pmem, migration, self.one, self.two, device_map)
        self.assertIn('memory/target/size: more than its partner can give', refused.text)
        self.assert_fails(pmem, (migration, self.enlarged(device_map)), f'size {30 * MIB:#x} .* {SIZE:#x}')
        self.assert_refused(vgpu, 'no device of its class is free here', vgpu=1)
        self.assert_fails(vgpu, vgpu_gone, f"mediated device '{identifier}' not found")

        self.end(pmem, self.one, last=False)
        self.end(vgpu, self.one)

    def reason(self, name: str, size: int, align: int = 2 * MIB) -> str:
        """Why a namespace of the second host is no partner."""
        return (f'vpmem/{name}: no: type is SMALL {SIZE} {2 * MIB} at the source, '
                f'SMALL {size} {align} at the destination')

    def claim_unchecked(self, instance: str, **request: int) -> tuple[str, Any]:
        return self._claimed('claim_unchecked', instance, self.one, self.two, **request)

    def map_of_what_goes_back(self, instance: str, **request: int) -> tuple[str, Any]:
        """A migration that was given up, and its map. The check accepts its devices, or would on newer hosts."""
        claimed = self.claim_unchecked(instance, **request) if instance in self.unsupported else self.claim(
            instance, self.one, self.two, **request)
        self.roll_back(instance, claimed[0])
        return claimed

    def partner(self, device_map: Any) -> str:
        [pair] = device_map['versioned_object.data']['pairs']
        return str(pair['versioned_object.data']['destination'])

    def roll_back(self, instance: str, migration: str) -> None:
        self.assertEqual([], self.two.order('roll_back', instance=instance, migration=migration)['rows'])
        self.database.set_status(migration, 'failed')

    def enlarged(self, device_map: Any) -> Any:
        """A map that says of a namespace that it is as large as the guest's."""
        text = json.dumps(device_map)
        enlarged = re.sub(r'(?<=<target><size unit=.KiB.>)\d+', str(SIZE >> 10), text)
        self.assertNotEqual(text, enlarged)
        return json.loads(enlarged)

    def assert_refused(self, instance: str, reason: str, **request: int) -> None:
        """Refused by both ends before anything is claimed, or by the claim, which takes nothing."""
        found = self.two.order('audit')['findings']
        if instance in self.unsupported:
            for host, order in ((self.two, 'check_destination'), (self.one, 'check_source')):
                refused = self.assertRaises(conductor.OrderFailed, host.order, order, instance=instance)
                self.assertEqual('LiveMigrationUnsupported', refused.error)
                self.assertRegex(refused.text, r'kind mdev: QEMU 7\.2\.\d+ cannot migrate VFIO devices')
        else:
            refused = self.assertRaises(conductor.OrderFailed, self.claim, instance, self.one, self.two, **request)
            self.assertEqual('NoDevicePair', refused.error)
            self.assertIn(reason, refused.text)
        self.assertEqual(NOTHING, self.two.order('look'))
        self.assertEqual(found, self.two.order('audit')['findings'])

    def assert_fails(self, instance: str, claimed: tuple[str, Any], message: str) -> None:
        """The hypervisors fail with a device; the guest goes on where it is, and nothing of it is left elsewhere.

        :param message: what they say when they can migrate such devices at all
        """
        migration, device_map = claimed
        self.database.set_status(migration, 'running')
        order = 'live_migrate'
        if instance in self.unsupported:
            refused = self.assertRaises(conductor.OrderFailed, self.send, instance, migration, self.one, self.two,
                                        device_map)
            self.assertEqual('LiveMigrationUnsupported', refused.error)
            order, message = 'live_migrate_unchecked', "VFIO device doesn't support migration"
        answer = self.send(instance, migration, self.one, self.two, device_map, order)
        self.assertRegex(answer.get('failed', 'it did not'), message)
        arrived = self.two.order('show', instance=instance)
        self.assertEqual((None, None), (arrived['live'], arrived['defined']))
        self.roll_back(instance, migration)
        self.assertEqual([], self.one.order('audit')['findings'])
        self.assertEqual(self.rows[instance], self.assert_runs(self.one, instance))
        self.assertEqual(NOTHING, self.two.order('look'))

    def restart(self, host: conductor.Host, **configuration: Any) -> None:
        host.kill()
        host.configure(**configuration)
        host.launch()
        host.start()

    def device(self, name: str) -> str:
        """A namespace of the second host, as ndctl has it."""
        listed = json.loads(self.two.machine.run(['ndctl', 'list', '--namespaces', '--idle']).out)
        [device] = [one['dev'] for one in listed if one.get('name') == name]
        return str(device)

    def make_anew(self, name: str, align: int) -> None:
        """Make a namespace of the second host anew in its place."""
        self.two.machine.run(['ndctl', 'create-namespace', '--force', f'--reconfig={self.device(name)}',
                              '--mode=devdax', f'--align={align}', f'--name={name}'])
