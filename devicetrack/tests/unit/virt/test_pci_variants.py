"""Which driver a function gets for a guest, by the modules of the kernel."""

from __future__ import annotations

import os

from devicetrack.testing import pci
from devicetrack.testing import pci_models
from devicetrack.tests import base
from devicetrack.virt.libvirt import pci_sysfs
from devicetrack.virt.libvirt import pci_variants

VF = pci_sysfs.Function('0000:03:10.0', '15b3', '101e', '15b3:0078', '020000', physfn='0000:03:00.0', vf_number=0)


class NamesTestCase(base.TestCase):

    scenarios = base.table(
        ('none', None, False, False),
        ('of the host', 'mlx5_core', False, False),
        ('plain', 'vfio-pci', True, False),
        ('the module of the plain one', 'vfio_pci', True, False),
        ('a variant', 'mlx5_vfio_pci', True, True),
        ('a variant with hyphens', 'pds-vfio-pci', True, True),
        names=('driver', 'is_vfio', 'is_variant'))

    def test_drivers_for_guests_are_known_by_them(self) -> None:
        self.assertEqual((self.is_vfio, self.is_variant), (
            pci_variants.is_vfio(self.driver), pci_variants.is_variant(self.driver)))


class BestTestCase(base.TestCase):

    def best(self, *lines: str) -> str | None:
        path = os.path.join(self.temp_dir(), 'modules.alias')
        with open(path, 'w') as file:
            file.write('# Aliases extracted from modules themselves.\n' + ''.join(f'alias {line}\n' for line in lines))
        variants = pci_variants.Variants(path)
        return variants.best(VF)

    def test_nothing_but_the_plain_one(self) -> None:
        self.assertIsNone(self.best('pci:v000015B3d0000101Esv*sd*bc*sc*i* mlx5_core',
                                    'vfio_pci:v*d*sv*sd*bc*sc*i* vfio_pci'))

    def test_a_module_for_its_product(self) -> None:
        self.assertEqual('mlx5_vfio_pci', self.best('vfio_pci:v*d*sv*sd*bc*sc*i* vfio_pci',
                                                    'vfio_pci:v000015B3d0000101Esv*sd*bc*sc*i* mlx5_vfio_pci'))

    def test_a_module_for_another_product(self) -> None:
        self.assertIsNone(self.best('vfio_pci:v000015B3d0000101Dsv*sd*bc*sc*i* mlx5_vfio_pci'))

    def test_the_one_that_says_most_about_it(self) -> None:
        broad, narrow = ('vfio_pci:v000015B3d*sv*sd*bc02sc00i* broad_vfio_pci',
                         'vfio_pci:v000015B3d0000101Esv000015B3sd00000078bc02sc00i00 narrow_vfio_pci')
        self.assertEqual('narrow_vfio_pci', self.best(broad, narrow))
        self.assertEqual('narrow_vfio_pci', self.best(narrow, broad))

    def test_a_kernel_without_modules_has_none(self) -> None:
        variants = pci_variants.Variants(os.path.join(self.temp_dir(), 'modules.alias'))
        self.assertIsNone(variants.best(VF))

    def test_the_file_of_the_kernel_that_runs_is_read(self) -> None:
        host = self.useFixture(pci.PCIHost())
        host.add_module(pci_models.Model('15b3:101e', '020000', None), 'mlx5_vfio_pci')
        variants = pci_variants.Variants()
        self.assertEqual('mlx5_vfio_pci', variants.best(VF))


class SaidByVFIOTestCase(base.TestCase):

    def test_only_a_function_that_it_shows_without_migration(self) -> None:
        root = self.temp_dir()
        self.assertFalse(pci_variants.says_no(root, VF.address))
        os.makedirs(os.path.join(root, 'kernel/debug/vfio', VF.address))
        self.assertTrue(pci_variants.says_no(root, VF.address))
        os.mkdir(os.path.join(root, 'kernel/debug/vfio', VF.address, 'migration'))
        self.assertFalse(pci_variants.says_no(root, VF.address))
