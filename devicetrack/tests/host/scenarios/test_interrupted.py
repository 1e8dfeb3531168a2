"""A compute service that is killed, and a host whose power is cut, in the middle of everything.

A cut host boots with its memory modules in another order: every ``/dev/dax`` has another number than before.
"""

from __future__ import annotations

from collections.abc import Callable

from devicetrack.tests.host.scenarios import base
from devicetrack.tests.host.scenarios import conductor

OURS = 0x5a                                     # what the first owner leaves everywhere
KEPT, LOST = '/var/tmp/kept', '/var/tmp/lost'
SMALLEST = ('pmem0', 'pmem3', 'pmem1', 'pmem4')


class InterruptedTestCase(base.MachineTestCase):

    ALONE = True

    def setUp(self) -> None:
        super().setUp()
        self.database = conductor.Database()
        # Slow enough to be interrupted, on the four smallest namespaces, which are as many as the test needs.
        self.host = conductor.Host(self.machine('host-a'), self.database)
        self.host.configure(wipe_rate_mib_s=16, pmem=SMALLEST)
        self.addCleanup(self.empty)
        self.nvdimms = (0, 1)
        self.host.launch()
        self.host.start()
        self.paths = self.host.order('paths')

    def empty(self) -> None:
        """Leave nothing for the next test."""
        for instance in self.database.instances:
            self.host.order('delete', instance=instance)
        self.assertEqual([], self.host.order('look')['rows'])
        self.host.kill()

    def kill(self) -> None:
        self.host.kill()
        self.host.launch()

    def cut(self) -> None:
        self.nvdimms = self.nvdimms[::-1]
        machine, boot_id = self.host.machine, self.host.machine.boot_id
        machine.run(['dd', f'of={KEPT}', 'conv=fsync'], stdin=b'data')
        machine.run(['dd', f'of={LOST}'], stdin=b'data')
        self.host.cut(self.nvdimms)
        # It was a cut: what was on the disk is there, unwritten data is not.
        self.assertNotEqual(boot_id, machine.boot_id)
        self.assertEqual((b'data', ''), (machine.read(KEPT), machine.run(['cat', LOST], check=False).out))
        self.host.launch()
        before, self.paths = self.paths, self.host.order('paths')
        self.assertEqual(set(before), set(self.paths))
        self.assertEqual([], [name for name in before if before[name] == self.paths[name]])

    # -- what must hold -----------------------------------------------------------------------------------------------

    def assert_runs(self, instance: str, rows: list[list[str]]) -> None:
        """The rows, the running guest and its definition name the same devices, in the same order."""
        shown = self.host.order('show', instance=instance)
        self.assertEqual(rows, shown['rows'])
        devices = sorted(row[:2] for row in rows if row[2] == 'current')
        self.assertEqual((devices, devices), (sorted(shown['live']), sorted(shown['defined'])))

    def assert_exists(self, *rows: list[list[str]]) -> None:
        """The kernel has the mediated devices of these rows and no others, and so has what starts with the host."""
        uuids = sorted(row[1] for of_instance in rows for row in of_instance if row[0] == 'mdev')
        look = self.host.order('look')
        self.assertEqual((uuids, uuids), (look['mdevs'], look['defined']))
        self.assertEqual(sorted(row[:2] for of_instance in rows for row in of_instance),
                         sorted(row[:2] for row in look['rows']))

    def namespaces(self, rows: list[list[str]]) -> list[str]:
        return [row[1] for row in rows if row[0] == 'vpmem']

    def assert_clean(self, *names: str) -> None:
        for name in names:
            self.assertTrue(self.host.order('contents', name=name)['all'], name)

    # -- the test -----------------------------------------------------------------------------------------------------

    def test_in_the_middle_of_everything(self) -> None:
        """First the service is killed, then the host is cut."""
        instance = self.database.instance(self.host.name)
        rows = self.host.order('boot', instance=instance, pmem=1, vgpu=1)['rows']
        [namespace] = self.namespaces(rows)
        self.assertTrue(self.host.order('fill', name=namespace, byte=OURS)['all'])
        self.assert_runs(instance, rows)
        for interrupt, while_creating, while_resizing in (
                (self.kill, 'defined', 'made'), (self.cut, 'made', 'booted')):
            self._interrupted(interrupt, while_creating, while_resizing, instance, rows, namespace)
        self.host.order('delete', instance=instance)
        self.database.instances[instance]['word'] = 'deleted'
        self.assert_exists()
        self.assert_clean(*SMALLEST)
        self.assertEqual([], self.host.order('audit')['findings'])

    def _interrupted(self, interrupt: Callable[[], None], while_creating: str, while_resizing: str,
                     instance: str, rows: list[list[str]], namespace: str) -> None:
        created, deleted = (self.database.instance(self.host.name) for _ in range(2))
        [wiped] = self.namespaces(self.host.order('boot', instance=deleted, pmem=1)['rows'])
        self.host.order('fill', name=wiped, byte=OURS)
        migration = self.database.migration(instance, self.host.name, self.host.name)
        self.host.order_until(while_creating, 'boot', instance=created, pmem=1, vgpu=1)
        self.host.order_until(while_resizing, 'resize', instance=instance, migration=migration, pmem=1, vgpu=1)
        self.host.order_until('wiping', 'delete', instance=deleted)
        interrupt()
        if interrupt == self.cut:               # else the wiper, a process of its own, goes on to the end
            self.assertTrue(self.host.order('contents', name=wiped, byte=OURS)['any'])
        found = self.host.start()

        [mdev] = [row[1] for row in rows if row[0] == 'mdev']
        if interrupt == self.kill:
            self.assertIn(mdev, found['before']['mdevs'])
        # After a cut it depends. mdevctl starts nothing while the file of a definition that was just made is empty, as
        # a cut leaves it; and on Debian 13 never, for the udev rule of mdevctl 1.4.0-1 calls /usr/sbin/mdevctl, and the
        # program is in /usr/bin. The manager's start makes it in any case, before any guest starts.
        self.assertIn(mdev, found['after']['mdevs'])
        self.assertLessEqual(len(found['after']['mdevs']), 3)
        moving = self.host.order('show', instance=instance)['rows']
        self.assertEqual(4, len(moving))
        self.assertEqual([], [row for row in rows if row[:2] not in [own[:2] for own in moving]])
        self.assertEqual(['claimed', 'claimed'],
                         [row[3] for row in self.host.order('show', instance=created)['rows']])

        # The service goes on with each of the three.
        self.database.set_status(migration, 'reverting')
        self.host.order('revert', instance=instance, migration=migration)
        self.database.set_status(migration, 'reverted')
        for gone in (created, deleted):
            self.host.order('delete', instance=gone)
            self.database.instances[gone]['word'] = 'deleted'
        self.assert_exists(rows)
        self.assert_runs(instance, rows)
        self.assertTrue(self.host.order('contents', name=namespace, byte=OURS)['all'])
        self.assert_clean(*(name for name in SMALLEST if name != namespace))
        self.assertEqual([], self.host.order('audit')['findings'])
