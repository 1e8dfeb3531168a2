"""A process that is killed twenty times in the middle of its claims and releases.

The host is one that outlives the process: libvirt's test driver, which has no guests of ours, and namespaces that are
files and are really wiped, by a child process that may outlive its parent.
"""

import os
import random

from devicetrack.claims.manager import ClaimManager
from devicetrack.engine import selection
from devicetrack.testing import fixtures
from devicetrack.tests import base
from devicetrack.tests.functional.claims import programs

NAMES = [f'n{number}' for number in range(4)]
SIZE = 4 << 20
LIVES = 60
AT_LEAST_ROUNDS = 20


class KillTestCase(base.TestCase):

    def setUp(self):
        super().setUp()
        self.directory = self.temp_dir()
        for name in NAMES:
            with open(os.path.join(self.directory, name), 'wb') as file:
                file.truncate(SIZE)
        self.settings: dict[str, dict[str, object]] = {
            'libvirt': {'connection_uri': 'test:///default', 'pmem_namespaces': ['4GB:' + '|'.join(NAMES)]},
            'devicetrack_vpmem': {'directory': self.directory}}
        for group, values in self.settings.items():
            self.configuration.set(group, **values)
        self.store = self.useFixture(fixtures.SQLiteStore(self.conf)).store
        self.service = fixtures.Service()

    def killed_after(self, lives):
        """Let a process live so many lives and kill it; how many it said."""
        options = programs.options_of(self.conf, settings=self.settings, resource_class=fixtures.PMEM,
                                      threads=len(NAMES))
        process = programs.start('live', options)
        self.assertEqual('ready', process.stdout.readline().strip())
        said = 0
        while said < lives:
            self.assertNotEqual('', process.stdout.readline(), 'the process ended by itself')
            said += 1
        process.kill()
        said += len(process.communicate()[0].split())
        self.assertEqual(-9, process.returncode)
        return said

    def restarted(self):
        manager = ClaimManager('host', programs.libvirt_driver(self.conf), self.store, self.conf, self.service)
        manager.init_host(self.context)
        manager.wait_for_wipes()
        self.addCleanup(manager.close)
        return manager

    def check(self, manager):
        """Every device is owned by a recorded instance or free, and none is unknown."""
        owners = {record.identifier: record.instance_uuid
                  for record in self.store.records_of_host(manager.state().host_uuid)}
        units = {device.identifier: device for device in vars(manager)['_running'].ledger.now.states()}
        self.assertEqual(set(NAMES), set(units))
        for name, unit in units.items():
            self.assertFalse(unit.withheld)
            if name in owners:
                self.assertEqual(owners[name], unit.instance_uuid)
            else:
                self.assertEqual((selection.FREE, None), (unit.state, unit.instance_uuid))

    def test_every_device_is_owned_by_a_recorded_instance_or_free(self):
        lots = random.Random(20)
        lives = rounds = 0
        while lives < LIVES or rounds < AT_LEAST_ROUNDS:
            lives += self.killed_after(lots.randrange(1, 2 * LIVES // AT_LEAST_ROUNDS))
            rounds += 1
            manager = self.restarted()
            self.check(manager)
            self.service.known = {record.instance_uuid: 'deleted'
                                  for record in self.store.records_of_host(manager.state().host_uuid)}
            manager.update_available_resource(self.context, 'host')
            manager.wait_for_wipes()
            self.check(manager)
            self.assertEqual([], self.store.records_of_host(manager.state().host_uuid))
            manager.close()
