"""A compute service that is killed, and a host whose power is cut, in the middle of everything.

A cut host boots with its memory modules in another order: every ``/dev/dax`` has another number than before.
"""

from __future__ import annotations

from collections.abc import Callable

from devicetrack.tests.host.scenarios import base
from devicetrack.tests.host.scenarios import conductor

OURS = 0x5a                                     # what the first owner leaves everywhere


class InterruptedTestCase(base.MachineTestCase):

    def setUp(self) -> None:
        super().setUp()
        self.database = conductor.Database()
        # So slow that there is a middle.
        self.host = conductor.Host(self.machine('host-a'), self.database, wipe_rate_mib_s=8)
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
        self.host.cut(self.nvdimms)
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

    def assert_clean(self, *names: str) -> None:
        for name in names:
            self.assertTrue(self.host.order('contents', name=name)['all'], name)

    # -- the tests ----------------------------------------------------------------------------------------------------

    def test_killed(self) -> None:
        self._life(self.kill, 'defined', 'made')

    def test_power_cut(self) -> None:
        self._life(self.cut, 'made', 'booted')

    def _life(self, interrupt: Callable[[], None], while_creating: str, while_resizing: str) -> None:
        instance = self.database.instance(self.host.name)
        rows = self.host.order('boot', instance=instance, pmem=1, vgpu=1)['rows']
        [namespace] = [row[1] for row in rows if row[0] == 'vpmem']
        self.assertTrue(self.host.order('fill', name=namespace, byte=OURS)['all'])
        self.assert_runs(instance, rows)
        self._creating(interrupt, while_creating, instance, rows)
        self._resizing(interrupt, while_resizing, instance, rows, namespace)
        self._wiping(interrupt, instance, namespace)

    def _comes_back(self, interrupt: Callable[[], None], instance: str, rows: list[list[str]], also: int) -> None:
        """Interrupt, and see that what the instance has is still there, the kernel's part before anybody asked for it.

        :param also: so many more mediated devices may be there
        """
        interrupt()
        found = self.host.start()
        uuids = {row[1] for row in rows if row[0] == 'mdev'}
        self.assertLessEqual(uuids, set(found['before']['mdevs']))
        self.assertLessEqual(len(found['before']['mdevs']), len(uuids) + also)
        shown = self.host.order('show', instance=instance)
        self.assertEqual([row[:2] for row in rows], [row[:2] for row in shown['rows']][:len(rows)])

    def _creating(self, interrupt: Callable[[], None], point: str, instance: str, rows: list[list[str]]) -> None:
        other = self.database.instance(self.host.name)
        self.host.order_until(point, 'boot', instance=other, pmem=1, vgpu=1)
        self._comes_back(interrupt, instance, rows, also=1)
        self.assertEqual(['claimed', 'claimed'],
                         [row[3] for row in self.host.order('show', instance=other)['rows']])
        self.host.order('delete', instance=other)
        self.database.instances[other]['word'] = 'deleted'
        self.assert_exists(rows)
        self._runs_again(instance, rows)

    def _runs_again(self, instance: str, rows: list[list[str]]) -> None:
        if instance not in self.host.order('look')['running']:
            self.host.order('power_on', instance=instance)
        self.assert_runs(instance, rows)
        self.assertEqual([], self.host.order('audit')['findings'])

    def _resizing(self, interrupt: Callable[[], None], point: str, instance: str, rows: list[list[str]],
                  namespace: str) -> None:
        migration = self.database.migration(instance, self.host.name, self.host.name)
        self.host.order_until(point, 'resize', instance=instance, migration=migration, pmem=1, vgpu=1)
        self._comes_back(interrupt, instance, rows, also=1)
        new = [row for row in self.host.order('show', instance=instance)['rows'] if row[2] != 'old']
        self.assertEqual(['mdev', 'vpmem'], sorted(row[0] for row in new))
        [incoming] = [row[1] for row in new if row[0] == 'vpmem']
        self.assertNotEqual(namespace, incoming)
        self.host.order('fill', name=incoming, byte=OURS + 1)
        self.database.set_status(migration, 'reverting')
        self.host.order('revert', instance=instance, migration=migration)
        self.database.set_status(migration, 'reverted')
        self.assert_exists(rows)
        self._runs_again(instance, rows)
        self.assertTrue(self.host.order('contents', name=namespace, byte=OURS)['all'])
        self.assert_clean(incoming)

    def _wiping(self, interrupt: Callable[[], None], instance: str, namespace: str) -> None:
        self.host.order_until('wiping', 'delete', instance=instance)
        interrupt()
        if interrupt == self.cut:               # else the wiper, a process of its own, goes on to the end
            self.assertTrue(self.host.order('contents', name=namespace, byte=OURS)['any'])
        self.host.start()
        self.host.order('delete', instance=instance)
        self.database.instances[instance]['word'] = 'deleted'
        self.assert_exists()
        self.assertEqual([], self.host.order('audit')['findings'])
        self.assert_clean(*conductor.NAMESPACES)
