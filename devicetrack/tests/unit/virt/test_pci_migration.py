"""What the device kind ``pci`` declares for guests that move while they run."""

from __future__ import annotations

import json
import os
from typing import Any
import uuid

from devicetrack.objects import details
from devicetrack.objects.values import MigrationType
from devicetrack.testing import pci as made
from devicetrack.testing import pci_models
from devicetrack.tests import base
from devicetrack.tests.drivers import contract
from devicetrack.virt.libvirt import connection
from devicetrack.virt.libvirt import vfio_migration
from devicetrack.virt.libvirt.kinds import pci

CARD, OTHER = '0000:03:00.0', '0000:04:00.0'
TYPE = 'type-VF 8086:10ca'
VARIANT = 'igbvf_vfio_pci'
FUNCTIONS = {'product_id': '10ca', 'live_migratable': 'yes'}


class MigrationTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.host = self.useFixture(made.PCIHost())
        for card in (CARD, OTHER):
            self.host.add_igb(card)
            self.host.make_vfs(card, 2)
        self.first, self.second = self.host.vfs_of(CARD)

    def kind(self, *specs: dict[str, Any]) -> pci.PCI:
        self.configuration.set('pci', device_spec=list(map(json.dumps, specs)))
        self.configuration.set('devicetrack_pci', sysfs_root=self.host.root, release_wait_s=0, functions=['all'])
        kind = pci.PCI(self.conf, connection.Connection('', None))
        kind.state_path, kind.boot_id, kind.host_use = self.state_path, lambda: 'this boot', self.host.use
        return kind

    def declared(self, kind: Any, libvirt: int = 10_000_000) -> dict[str | None, MigrationType]:
        """What the kind declares, by physical function."""
        versions = vfio_migration.Versions(libvirt, 10_000_000, '6.12.0')
        self.patch(kind.hypervisor, 'versions', lambda: versions)
        kind.stock()
        return {one.parent: one for one in kind.migration_types()}

    def test_functions_for_which_the_kernel_has_a_module(self) -> None:
        self.host.add_module(pci_models.IGB.vf or pci_models.IGB, VARIANT)
        self.assertEqual({CARD: MigrationType('pci', CARD, TYPE), OTHER: MigrationType('pci', OTHER, TYPE)},
                         self.declared(self.kind(FUNCTIONS)))

    def test_functions_that_are_not_declared_declare_nothing(self) -> None:
        self.host.add_module(pci_models.IGB.vf or pci_models.IGB, VARIANT)
        kind = self.kind({**FUNCTIONS, 'address': CARD}, {'product_id': '10ca'})
        self.assertEqual({CARD}, set(self.declared(kind)))
        known = {device.identifier: details.from_text(device.details) for device in kind.stock().devices}
        self.assertEqual((TYPE, None), (known[self.first].migration_type, known[self.first].migration_obstacle))
        other = known[self.host.vfs_of(OTHER)[0]]
        self.assertEqual((f'{TYPE} that stays', 'its [pci] device_spec does not say live_migratable'),
                         (other.migration_type, other.migration_obstacle))

    def test_without_a_module_the_first_function_is_the_reason(self) -> None:
        self.assertEqual(f'{self.first} gets the driver vfio-pci: this kernel has no module that can migrate 8086:10ca',
                         self.declared(self.kind(FUNCTIONS))[CARD].obstacle)

    def test_a_libvirt_that_binds_no_variant(self) -> None:
        self.host.add_module(pci_models.IGB.vf or pci_models.IGB, VARIANT)
        self.assertEqual(f'libvirt 9.10.0 does not bind {self.first} to {VARIANT}, but libvirt 10.0.0 does',
                         self.declared(self.kind(FUNCTIONS), 9_010_000)[CARD].obstacle)

    def test_whoever_binds_functions_by_hand_binds_them_to_a_variant(self) -> None:
        kind = self.kind({**FUNCTIONS, 'managed': 'no'})
        self.assertEqual(f'{self.first} has the driver igbvf: bind it to one that can migrate it',
                         self.declared(kind)[CARD].obstacle)
        self.host.unbind(self.second)
        self.host.bind(self.second, VARIANT)
        declared = self.declared(kind, 9_000_000)
        self.assertIsNone(declared[CARD].obstacle)
        self.assertIsNotNone(declared[OTHER].obstacle)

    def test_the_driver_declares_versions_as_for_other_kinds(self) -> None:
        with open(self.host.path(CARD, 'migration_version'), 'w') as file:
            file.write('2.1.0\n')
        declared = self.declared(self.kind(FUNCTIONS))
        self.assertEqual(('2.1.0', None), (declared[CARD].version.text, declared[OTHER].version.text))

    def test_without_a_spec_that_declares_it_no_function_moves(self) -> None:
        kind = self.kind({'product_id': '10ca'})
        self.assertEqual(({}, 'no [pci] device_spec says live_migratable'),
                         (self.declared(kind), kind.live_migration_obstacle()))
        kind = self.kind(FUNCTIONS)
        self.declared(kind)
        self.assertIsNone(kind.live_migration_obstacle())

    def test_qemu_counts_too(self) -> None:
        kind = self.kind(FUNCTIONS)
        self.patch(kind.hypervisor, 'versions', lambda: vfio_migration.Versions(9_000_000, 7_002_000, '6.1.0'))
        self.assertEqual('QEMU 7.2.0 cannot migrate VFIO devices, QEMU 8.1.0 can', kind.live_migration_obstacle())

    # -- the function of a guest --------------------------------------------------------------------------------------

    def given(self, kind: pci.PCI, driver: str) -> Any:
        """A function that a guest has, as recorded before libvirt bound it to a driver."""
        device, = (device for device in kind.stock().devices if device.identifier == self.first)
        self.host.unbind(self.first)
        self.host.bind(self.first, driver)
        return contract.assignment(str(uuid.uuid4()), 'pci', self.first, device.parent, device.details)

    def obstacle(self, driver: str, **spec: str) -> str | None:
        kind = self.kind({**FUNCTIONS, **spec})
        assigned = self.given(kind, driver)
        return kind.migration_obstacle_of(assigned)

    def test_a_guest_leaves_with_one_that_has_a_variant(self) -> None:
        self.assertIsNone(self.obstacle(VARIANT))

    def test_a_guest_stays_with_one_that_has_the_plain_driver(self) -> None:
        self.assertEqual(f'{self.first} has the driver vfio-pci, which cannot copy its state',
                         self.obstacle(made.VFIO_PCI))

    def test_a_guest_stays_with_one_that_was_not_declared(self) -> None:
        self.assertEqual('its [pci] device_spec does not say live_migratable',
                         self.obstacle(VARIANT, live_migratable='no'))

    def test_a_guest_stays_with_one_that_vfio_says_it_of(self) -> None:
        os.makedirs(os.path.join(self.host.root, 'kernel/debug/vfio', self.first))
        self.assertEqual(f'VFIO says that its driver {VARIANT} cannot migrate {self.first}', self.obstacle(VARIANT))

    # -- and back -----------------------------------------------------------------------------------------------------

    def test_a_function_comes_back_from_a_variant(self) -> None:
        kind = self.kind(FUNCTIONS)
        assigned = self.given(kind, VARIANT)
        with open(os.path.join(self.state_path, 'lock'), 'w') as lock:
            kind.unclaim(assigned, lock.fileno())
        self.assertEqual(('igbvf', [(self.first, 'flr')]), (self.host.driver_of(self.first), self.host.resets))
