"""Several hosts that one process manages with one configuration, side by side."""

import os
import threading

from devicetrack import exception
from devicetrack.claims.manager import ClaimManager
from devicetrack.store.sql import open_store
from devicetrack.store.sql import schema
from devicetrack.testing import fake
from devicetrack.testing.fixtures import a_request
from devicetrack.testing.fixtures import Instance
from devicetrack.tests import base
from devicetrack.virt import loader


class SeveralHostsTestCase(base.TestCase):

    def setUp(self):
        super().setUp()
        self.configuration.set('devicetrack', virt_driver='fake')

    def manager(self, name, own_directory=True):
        path = os.path.join(self.state_path, name) if own_directory else None
        self.addCleanup(fake.FakeHost.forget, name)
        driver = loader.load_driver(self.conf, name, state_path=path)
        machine = fake.FakeHost.named(name)
        if not machine.devices:
            for number in range(2):
                machine.add_namespace(f'd{number}')
        store = open_store(self.conf, path)
        self.addCleanup(store.close)
        schema.sync(store)
        manager = ClaimManager(name, driver, store, self.conf)
        self.addCleanup(manager.close)
        manager.init_host(None)
        return manager

    def test_a_driver_of_another_host_is_refused(self):
        driver = loader.load_driver(self.conf, 'one')
        store = open_store(self.conf)
        self.addCleanup(store.close)
        error = self.assertRaises(exception.BadRequest, ClaimManager, 'two', driver, store, self.conf)
        self.assertIn('but the manager is for two', str(error))

    def test_work_side_by_side(self):
        managers = [self.manager(name) for name in ('one', 'two')]
        for name in ('one', 'two'):
            self.assertLessEqual({'manager.lock', 'devicetrack.sqlite'}, set(os.listdir(f'{self.state_path}/{name}')))
        errors = []

        def lives(manager):
            try:
                for _again in range(5):
                    instance = Instance()
                    with manager.instance_claim(None, instance, manager.host, a_request(pmem=2)):
                        manager.realize(None, instance)
                        manager.guest_config(instance)
                        manager.started(None, instance)
                    manager.update_available_resource(None, manager.host)
                    manager.release(None, instance)
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=lives, args=(manager,)) for manager in managers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual([], errors)

    def test_have_devices_of_the_same_names_each_for_its_own_instance(self):
        managers = {name: self.manager(name) for name in ('one', 'two')}
        instances = {name: Instance() for name in managers}
        for name, manager in managers.items():
            manager.instance_claim(None, instances[name], name, a_request(pmem=1))
        managers['one'].close()
        managers['one'].init_host(None)
        for name, manager in managers.items():
            self.assertEqual(['d0'], [one.identifier for one in manager.assignments(instances[name].uuid)])
            [row] = manager.assignments()
            self.assertEqual(instances[name].uuid, row.instance_uuid)

    def test_keep_apart_the_claims_that_the_store_kept_from_going_back(self):
        manager = self.manager('one')
        claim = manager.instance_claim(None, Instance(), 'one', a_request(pmem=1))
        manager._parts.store.engine.dispose()
        path = os.path.join(self.state_path, 'one', 'devicetrack.sqlite')
        os.chmod(path, 0o600)
        os.rename(path, f'{path}.away')
        self.assertRaises(exception.StoreError, claim.abort)
        os.rename(f'{path}.away', path)
        self.assertEqual([claim.claim_id], os.listdir(os.path.join(self.state_path, 'one', 'given-up')))
        self.assertFalse(os.path.exists(os.path.join(self.state_path, 'given-up')))

    def test_without_directories_of_their_own_the_second_one_is_refused(self):
        self.manager('one', own_directory=False)
        self.assertRaises(exception.HostInUse, self.manager, 'two', own_directory=False)

    def test_a_second_manager_of_a_host_is_refused(self):
        self.manager('one')
        self.assertRaises(exception.HostInUse, self.manager, 'one')
