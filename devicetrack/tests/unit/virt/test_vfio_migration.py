"""Which software can migrate guests with VFIO devices."""

import os

from devicetrack.tests import base
from devicetrack.virt.libvirt import connection
from devicetrack.virt.libvirt import vfio_migration
from devicetrack.virt.libvirt.vfio_migration import Versions


class ObstacleTestCase(base.TestCase):

    def test_all_of_it_is_new_enough(self):
        for kernel in ('6.12.107+deb13-amd64', '5.18', '5.18.0-rc1', '10.0'):
            self.assertIsNone(vfio_migration.obstacle(Versions(8_006_000, 8_001_000, kernel)))

    def test_the_first_that_is_too_old_is_named(self):
        for versions, reason in (
                (Versions(9_000_000, 7_002_022, '6.1.0-50-amd64'),
                 'QEMU 7.2.22 cannot migrate VFIO devices, QEMU 8.1.0 can'),
                (Versions(8_005_000, 8_001_000, '6.1.0'),
                 'libvirt 8.5.0 cannot migrate VFIO devices, libvirt 8.6.0 can'),
                (Versions(8_006_000, 8_001_000, '5.17.15'),
                 'Linux 5.17.15 cannot migrate VFIO devices, Linux 5.18.0 can'),
                (Versions(8_006_000, 8_001_000, 'odd'), 'Linux 0.0.0 cannot migrate VFIO devices, Linux 5.18.0 can')):
            self.assertEqual(reason, vfio_migration.obstacle(versions))

    def test_another_hypervisor_has_none(self):
        self.assertIsNone(connection.Connection('test:///default').versions())


class QEMUTestCase(base.TestCase):

    def test_what_runs_here(self):
        asked = type('QEMU', (), {'getType': lambda _: 'QEMU', 'getLibVersion': lambda _: 11_003_000,
                                  'getVersion': lambda _: 10_000_013, 'isAlive': lambda _: 1})()
        self.assertEqual(Versions(11_003_000, 10_000_013, os.uname().release),
                         connection.Connection(connect=lambda: asked).versions())
