"""Guests that move, running, between two hosts: there and back, and when it does not come off."""

from __future__ import annotations

import copy
from typing import Any
import uuid

from devicetrack.tests.host.scenarios import base
from devicetrack.tests.host.scenarios import conductor

OURS = 0x5a                                     # what the guest has all over its memory


class MigrationTestCase(base.MachineTestCase):

    def setUp(self) -> None:
        super().setUp()
        self.database = conductor.Database()
        self.one, self.two = (conductor.Host(self.machine(name), self.database) for name in ('host-a', 'host-b'))
        for host in (self.one, self.two):
            host.configure(pmem=conductor.EQUAL)
            host.launch()
            self.addCleanup(host.kill)
            host.start()
        # mtty migrates since Linux 6.8; QEMU 7.2 migrates no VFIO device.
        self.vgpu = 0 if self.release == 12 else 1

    def claim(self, instance: str, source: conductor.Host, destination: conductor.Host, vgpu: int) -> tuple[str, Any]:
        migration = self.database.migration(instance, source.name, destination.name)
        answer = destination.order('check_destination', instance=instance, migration=migration, pmem=1, vgpu=vgpu)
        self.database.set_status(migration, 'running')
        return migration, answer['map']

    def send(self, instance: str, migration: str, source: conductor.Host, destination: conductor.Host,
             device_map: Any) -> dict[str, Any]:
        return source.order('live_migrate', instance=instance, migration=migration, device_map=device_map,
                            uri=f'qemu+tcp://{destination.machine.address}/system')

    def move(self, instance: str, source: conductor.Host, destination: conductor.Host) -> list[list[str]]:
        """Migrate an instance, and see that both hosts know it.

        :returns: what it has now
        """
        left = source.order('show', instance=instance)['rows']
        migration, device_map = self.claim(instance, source, destination, self.vgpu)
        self.assertEqual({}, self.send(instance, migration, source, destination, device_map))
        self.database.instances[instance]['host'] = destination.name
        self.database.set_status(migration, 'completed')
        destination.order('arrived', instance=instance)
        self.assert_runs(destination, instance)
        self.assertEqual([], source.order('left', instance=instance, migration=migration)['rows'])
        self.assertEqual({'rows': [], 'mdevs': [], 'defined': [], 'running': []}, source.order('look'))
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
        self.assertEqual(sorted(row[1] for row in rows if row[0] == 'mdev'), host.order('look')['mdevs'])
        [namespace] = self.namespaces(rows)
        self.assertTrue(host.order('contents', name=namespace, byte=OURS)['all'])
        return rows

    def spawn(self, vgpu: int) -> str:
        instance = self.database.instance(self.one.name)
        rows = self.one.order('boot', instance=instance, pmem=1, vgpu=vgpu)['rows']
        [namespace] = self.namespaces(rows)
        self.one.order('fill', name=namespace, byte=OURS)
        return instance

    def end(self, instance: str, host: conductor.Host, last: bool = True) -> None:
        """Delete an instance; with the last one everything is as it was before the first."""
        self.assertEqual([], host.order('delete', instance=instance)['rows'])
        self.database.instances[instance]['word'] = 'deleted'
        if not last:
            return
        for one in (self.one, self.two):
            self.assertEqual({'rows': [], 'mdevs': [], 'defined': [], 'running': []}, one.order('look'))
            for name in conductor.NAMESPACES:
                self.assertTrue(one.order('contents', name=name)['all'], f'{name} of {one.name}')

    def test_there_and_back(self) -> None:
        instance = self.spawn(self.vgpu)
        self.move(instance, self.one, self.two)
        self.move(instance, self.two, self.one)
        self.end(instance, self.one)

    def test_what_fails_leaves_the_guest_where_it_is(self) -> None:
        instance = self.spawn(self.vgpu)
        rows = self.assert_runs(self.one, instance)
        other_type = str(uuid.uuid4())
        # Into a larger one it would fit: its NVDIMM stays as large as it was.
        wrong = [('vpmem', '/dev/dax7.7'), ('vpmem', self.two.order('paths')[conductor.SMALLER])]
        if self.vgpu:
            self.two.machine.run(['mdevctl', 'start', '-u', other_type, '-p', 'mtty', '-t', 'mtty-1'])
            wrong += [('mdev', str(uuid.uuid4())), ('mdev', other_type)]
        for kind, address in wrong:
            migration, device_map = self.claim(instance, self.one, self.two, self.vgpu)
            claimed = self.two.order('show', instance=instance)['rows']
            answer = self.send(instance, migration, self.one, self.two,
                               self.tampered(device_map, kind, claimed, address))
            self.assertEqual(['failed'], list(answer), f'{kind} {address}')
            self.assertEqual([], self.two.order('roll_back', instance=instance, migration=migration)['rows'])
            self.database.set_status(migration, 'failed')
            self.assertEqual([], self.one.order('audit')['findings'])
            self.assertEqual(rows, self.assert_runs(self.one, instance))
        if self.vgpu:
            self.two.machine.run(['mdevctl', 'stop', '-u', other_type])
        self.end(instance, self.one)

    def tampered(self, device_map: Any, kind: str, claimed: list[list[str]], address: str) -> Any:
        """A map that gives the guest another device than the one that was claimed."""
        [identifier] = [row[1] for row in claimed if row[0] == kind]
        right = self.two.order('paths')[identifier] if kind == 'vpmem' else identifier
        tampered = copy.deepcopy(device_map)
        for pair in tampered['versioned_object.data']['pairs']:
            fields = pair['versioned_object.data']
            fields['element'] = fields['element'].replace(right, address)
        self.assertNotEqual(device_map, tampered)
        return tampered

    def test_what_cannot_move_is_refused_beforehand(self) -> None:
        """The destination has other sizes and other types, or, on Debian 12, no way to migrate an mdev at all."""
        with_pmem, with_vgpu = self.database.instance(self.one.name), self.database.instance(self.one.name)
        kept = [self.one.order('boot', instance=with_pmem, pmem=1)['rows'],
                self.one.order('boot', instance=with_vgpu, vgpu=1)['rows']]
        self.two.kill()
        self.two.configure(pmem=(conductor.LARGER,), mdev_type='mtty-2' if self.release == 12 else 'mtty-1')
        self.two.launch()
        self.two.start()
        for instance, pmem, vgpu in ((with_pmem, 1, 0), (with_vgpu, 0, 1)):
            migration = self.database.migration(instance, self.one.name, self.two.name)
            refused = self.assertRaises(conductor.OrderFailed, self.two.order, 'check_destination', instance=instance,
                                        migration=migration, pmem=pmem, vgpu=vgpu)
            if vgpu and self.release == 12:
                self.assertEqual('LiveMigrationUnsupported', refused.error)
                self.assertRegex(refused.text, r'kind mdev: QEMU 7\.2\.\d+ cannot migrate VFIO devices')
            else:
                self.assertEqual('NoDevicePair', refused.error)
            self.database.set_status(migration, 'error')
        self.assertEqual({'rows': [], 'mdevs': [], 'defined': [], 'running': []}, self.two.order('look'))
        self.assertEqual(kept, [self.one.order('show', instance=one)['rows'] for one in (with_pmem, with_vgpu)])
        self.assertEqual(sorted((with_pmem, with_vgpu)), self.one.order('look')['running'])
        self.end(with_pmem, self.one, last=False)
        self.end(with_vgpu, self.one)
