"""How a driver is found."""

from __future__ import annotations

import os

import libvirt
from stevedore import named

from devicetrack import exception
from devicetrack.testing import fake
from devicetrack.tests import base
from devicetrack.virt import loader


class LoaderTestCase(base.TestCase):

    def stevedore(self, *classes: type, error: Exception | None = None) -> None:
        """Answer in place of installed entry points."""
        def manager(namespace: str, _names: list[str], on_load_failure_callback, **_options):
            self.assertEqual('devicetrack.virt_drivers', namespace)
            if error is not None:
                on_load_failure_callback(None, None, error)
            return [type('Extension', (), {'plugin': cls}) for cls in classes]

        self.patch(named, 'NamedExtensionManager', manager)

    def test_the_driver_that_the_option_names(self) -> None:
        self.stevedore(fake.FakeDriver)
        path = os.path.join(self.state_path, 'new')
        self.configuration.set('devicetrack', state_path=path, virt_driver='fake')
        driver = loader.load_driver(self.conf, 'compute-1')
        assert isinstance(driver, fake.FakeDriver)
        self.assertEqual(('compute-1', path), (driver.host, driver.state_path))
        self.assertFalse(os.path.exists(path))
        self.assertIs(fake.FakeHost.named('compute-1'), driver.machine)
        fake.FakeHost.forget('compute-1')

    def test_a_host_has_a_state_directory_of_its_own(self) -> None:
        self.stevedore(fake.FakeDriver)
        path = os.path.join(self.state_path, 'hosts', 'compute-1')
        self.addCleanup(fake.FakeHost.forget, 'compute-1')
        self.assertEqual(path, loader.load_driver(self.conf, 'compute-1', state_path=path).state_path)
        self.assertFalse(os.path.exists(os.path.dirname(path)))

    def test_a_state_directory_of_its_own_must_be_absolute(self) -> None:
        self.stevedore(fake.FakeDriver)
        for path in ('', 'hosts/compute-1'):
            error = self.assertRaises(exception.InvalidConfiguration, loader.load_driver, self.conf, state_path=path)
            self.assertEqual('[devicetrack] state_path', error.option)

    def test_a_service_uses_its_own_libvirt_connection(self) -> None:
        connections = [libvirt.open('test:///default') for _ in range(2)]
        for connection in connections:
            self.addCleanup(connection.close)
        opened = iter(connections)
        self.configuration.set('devicetrack', virt_driver='libvirt')
        driver = loader.load_driver(self.conf, 'compute-1', connect=lambda: next(opened))
        [guest] = connections[0].listAllDomains()
        self.assertEqual({guest.UUIDString()}, driver.get_usage().running)
        guest.destroy()
        self.assertEqual(frozenset(), driver.get_usage().running)
        driver.close()
        self.assertTrue(connections[0].isAlive())
        driver.get_usage()
        self.assertEqual([], list(opened))

    def test_a_connection_that_the_service_cannot_open(self) -> None:
        self.configuration.set('devicetrack', virt_driver='libvirt')
        driver = loader.load_driver(self.conf, 'compute-1', connect=lambda: libvirt.open('nosuch:///'))
        error = self.assertRaises(exception.HypervisorUnreachable, driver.get_usage)
        self.assertIsInstance(error.__cause__, libvirt.libvirtError)

    def test_a_driver_without_a_connection_refuses_one(self) -> None:
        self.configuration.set('devicetrack', virt_driver='fake')
        error = self.assertRaises(exception.InvalidConfiguration, loader.load_driver, self.conf, 'compute-1',
                                  connect=lambda: libvirt.open('test:///default'))
        self.assertEqual(('[devicetrack] virt_driver', 'fake'), (error.option, error.value))

    def test_there_is_no_such_driver(self) -> None:
        self.configuration.set('devicetrack', virt_driver='nosuch')
        error = self.assertRaises(exception.InvalidConfiguration, loader.load_driver, self.conf)
        self.assertEqual(('[devicetrack] virt_driver', 'nosuch'), (error.option, error.value))
        self.assertIn('there is no entry point of this name', error.reason)

    def test_two_packages_have_a_driver_of_this_name(self) -> None:
        self.stevedore(fake.FakeDriver, fake.FakeDriver)
        error = self.assertRaises(exception.InvalidConfiguration, loader.load_driver, self.conf)
        self.assertIn('several entry points have this name', error.reason)

    def test_a_driver_that_cannot_be_imported_says_why(self) -> None:
        self.stevedore(error=ImportError('No module named libvirt'))
        error = self.assertRaises(exception.InvalidConfiguration, loader.load_driver, self.conf)
        self.assertIn('No module named libvirt', error.reason)
        self.assertIsInstance(error.__cause__, ImportError)

    def test_a_state_directory_that_cannot_be_used(self) -> None:
        self.stevedore(fake.FakeDriver)
        self.configuration.set('devicetrack', state_path='/proc/version/state')
        error = self.assertRaises(exception.InvalidConfiguration, loader.load_driver, self.conf)
        self.assertEqual('[devicetrack] state_path', error.option)

    def test_a_state_directory_that_others_can_change(self) -> None:
        self.stevedore(fake.FakeDriver)
        os.chmod(self.state_path, 0o777)
        error = self.assertRaises(exception.UnsafePath, loader.load_driver, self.conf)
        self.assertEqual(self.state_path, error.path)
