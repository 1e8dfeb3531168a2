"""Names of operators in placement's form."""

from __future__ import annotations

import os_traits

from devicetrack.tests import base
from devicetrack.virt.libvirt.kinds import pci_options
from devicetrack.virt.libvirt.kinds import placement_names


class ResourceClassTestCase(base.TestCase):

    scenarios = base.table(
        ('a standard class', 'PGPU', 'PGPU'),
        ('in small letters', 'pgpu', 'PGPU'),
        ('one of its own', 'GPU_VF', 'CUSTOM_GPU_VF'),
        ('with the prefix', 'CUSTOM_NVME256G', 'CUSTOM_NVME256G'),
        ('with the prefix in small letters', 'custom_nvme', 'CUSTOM_NVME'),
        ('other characters', 'a16 - 16a!', 'CUSTOM_A16_16A_'),
        ('underscores that follow one another', 'a__b', 'CUSTOM_A_B'),
        ('another alphabet', 'größe', 'CUSTOM_GR_SSE'),
        names=('text', 'name'))

    def test_becomes(self) -> None:
        self.assertEqual(self.name, placement_names.resource_class(self.text))


class TraitsTestCase(base.TestCase):

    scenarios = base.table(
        ('none', '', set()),
        ('a standard trait', 'HW_GPU_API_VULKAN', {'HW_GPU_API_VULKAN'}),
        ('a standard trait in small letters is none', 'hw_gpu_api_vulkan', {'CUSTOM_HW_GPU_API_VULKAN'}),
        ('of its own', 'my-awesome-gpu', {'CUSTOM_MY_AWESOME_GPU'}),
        ('several', 'HW_GPU_API_VULKAN,blue', {'HW_GPU_API_VULKAN', 'CUSTOM_BLUE'}),
        ('a blank is a part of the name', 'blue, big', {'CUSTOM_BLUE', 'CUSTOM__BIG'}),
        ('with the prefix', 'custom_x', {'CUSTOM_X'}),
        ('twice', 'x,X', {'CUSTOM_X'}),
        names=('text', 'names'))

    def test_become(self) -> None:
        self.assertEqual(self.names, placement_names.traits(self.text))

    def test_what_a_spec_gives_by_itself_are_standard_traits(self) -> None:
        self.assertLessEqual({pci_options.MANAGED_HERE, pci_options.LIVE_MIGRATABLE, pci_options.ONE_TIME_USE},
                             set(os_traits.get_traits()))


class NoNameTestCase(base.TestCase):

    scenarios = base.table(
        ('the processors', placement_names.resource_class, 'vcpu', 'VCPU counts resources of the compute service'),
        ('a prefix alone', placement_names.resource_class, 'custom_', 'a name is empty'),
        ('a prefix before other characters', placement_names.resource_class, 'CUSTOM_A-B', "'CUSTOM_A-B' would be"),
        ('too long', placement_names.resource_class, 'x' * 249, 'at most 255'),
        ('an empty trait', placement_names.traits, 'a,,b', 'a name is empty'),
        ('a comma at the end', placement_names.traits, 'a,', 'a name is empty'),
        ('a trait too long', placement_names.traits, 'x' * 249, 'at most 255'),
        ('a trait with other characters', placement_names.traits, 'CUSTOM_A B', "'CUSTOM_A B' would be"),
        names=('read', 'text', 'reason'))

    def test_is_refused(self) -> None:
        self.assertIn(self.reason, str(self.assertRaises(ValueError, self.read, self.text)))

    def test_the_longest_is_not(self) -> None:
        self.assertEqual(255, len(placement_names.resource_class('x' * 248)))
