"""vGPU types in sysfs: what the driver writes there, and what else stands there."""

from __future__ import annotations

import errno
import os
from typing import Any

from devicetrack import exception
from devicetrack.testing import vgpu
from devicetrack.tests import base
from devicetrack.virt.libvirt import vgpu_sysfs

CARD = '0000:3d:00.0'
ADDRESS = '0000:3d:00.4'


class TreeTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.cards = self.useFixture(vgpu.Cards())
        self.tree = vgpu_sysfs.VGPUs(self.cards.root)

    def write(self, name: str, text: str) -> None:
        with open(os.path.join(self.cards.root, 'bus/pci/devices', ADDRESS, name), 'w') as file:
            file.write(text)

    def function(self) -> Any:
        found, = self.tree.vgpus()
        return found


class FunctionsTestCase(TreeTestCase):

    def test_every_function_with_its_card_and_what_it_can_be_given(self) -> None:
        self.cards.add(CARD, 6, {'558': ('NVIDIA L40-1B', 2), '559': ('NVIDIA L40-2B', 1)}, numa_node=1)
        found = self.tree.vgpus()
        self.assertEqual([f'0000:3d:{place}' for place in ('00.4', '00.5', '00.6', '00.7', '01.0', '01.1')],
                         [function.address for function in found])
        self.assertEqual({(CARD, 1, '0', None)}, {
            (function.parent, function.numa_node, function.current, function.problem) for function in found})
        self.assertEqual({'558': 'NVIDIA L40-1B', '559': 'NVIDIA L40-2B'}, found[0].creatable)
        self.assertEqual(found[1], self.tree.vgpu('0000:3d:00.5'))

    def test_other_pci_devices_are_none(self) -> None:
        self.cards.add(CARD, 0, {})
        self.assertEqual([], self.tree.vgpus())
        for address in (CARD, '0000:5e:00.2'):
            self.assertIsNone(self.tree.vgpu(address))
            self.assertEqual(set(), self.tree.known((address,)))
            self.assertIsNone(self.tree.card(address))

    def test_without_a_node(self) -> None:
        for text in ('-1\n', 'x', ''):
            self.cards = self.useFixture(vgpu.Cards())
            self.tree = vgpu_sysfs.VGPUs(self.cards.root)
            self.cards.add(CARD, 1, {})
            self.write('numa_node', text)
            self.assertIsNone(self.function().numa_node)

    def test_no_directory_of_pci_devices_is_no_answer(self) -> None:
        tree = vgpu_sysfs.VGPUs(self.temp_dir())
        for call in (tree.vgpus, lambda: tree.vgpu(ADDRESS), lambda: tree.known((ADDRESS,))):
            error = self.assertRaises(exception.CommandFailed, call)
            self.assertIn('bus/pci/devices', str(error))

    def test_one_that_cannot_be_read_has_a_problem(self) -> None:
        self.cards.add(CARD, 2, {'558': ('NVIDIA L40-1B', 2)})
        self.cards.fail(ADDRESS)
        problem, well = self.tree.vgpus()
        self.assertIn('cannot be read: Is a directory', problem.problem or '')
        self.assertIsNone(well.problem)


    def test_one_that_goes_away_while_it_is_read_is_none(self) -> None:
        self.cards.add(CARD, 2, {})
        os.unlink(os.path.join(self.cards.root, 'bus/pci/devices', ADDRESS, 'physfn'))
        self.assertEqual(['0000:3d:00.5'], [function.address for function in self.tree.vgpus()])

    def test_one_that_cannot_be_looked_for_is_no_answer(self) -> None:
        self.cards.add(CARD, 1, {})
        self.assertRaises(exception.CommandFailed, self.tree.vgpu, 'x' * 300)

    def test_and_has_a_problem_beside_others(self) -> None:
        self.cards.add(CARD, 2, {})
        stat, path = os.stat, os.path.join(self.cards.root, 'bus/pci/devices', ADDRESS, 'nvidia/current_vgpu_type')

        def refused(name: Any, *arguments: Any, **more: Any) -> os.stat_result:
            if name == path:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return stat(name, *arguments, **more)

        self.patch(os, 'stat', refused)
        self.cards.fail(ADDRESS)
        self.assertEqual([True, False], [function.problem is not None for function in self.tree.vgpus()])


class TypesTestCase(TreeTestCase):
    """What sibling functions list while types are set, and what other versions of the driver write."""

    scenarios = base.table(
        ('as printed', 'ID    : vGPU Name\n1145  : NVIDIA L40S-1B\n2164  : NVIDIA L40S-3B\n',
         {'1145': 'NVIDIA L40S-1B', '2164': 'NVIDIA L40S-3B'}),
        ('long numbers', 'ID    : vGPU Name\n123456 : NVIDIA H200X-1-18C\n', {'123456': 'NVIDIA H200X-1-18C'}),
        ('a name with a colon', 'ID    : vGPU Name\n1     : A: B \n', {'1': 'A: B'}),
        ('a full card', 'ID    : vGPU Name\n', {}),
        ('no heading', '558   : NVIDIA L40-1B\n', {'558': 'NVIDIA L40-1B'}),
        ('nothing', '', {}),
        names=('text', 'types'))

    def test_are_read(self) -> None:
        self.cards.add(CARD, 1, {})
        self.write('nvidia/creatable_vgpu_types', self.text)
        self.assertEqual(self.types, self.function().creatable)


class UnknownFormTestCase(TreeTestCase):

    scenarios = base.table(
        ('another heading', 'creatable_vgpu_types', 'Type  : Name\n', 'line 1'),
        ('a heading further down', 'creatable_vgpu_types', '558   : A\nID    : vGPU Name\n', 'line 2'),
        ('no number', 'creatable_vgpu_types', 'ID    : vGPU Name\nsecret : A\n', 'line 2'),
        ('no name', 'creatable_vgpu_types', 'ID    : vGPU Name\n558   :\n', 'line 2'),
        ('a type that is no number', 'current_vgpu_type', 'secret\n', 'line 1'),
        ('no type', 'current_vgpu_type', '', 'line 1'),
        names=('name', 'text', 'where'))

    def test_is_unknown_and_not_nothing_and_costs_itself_alone(self) -> None:
        self.cards.add(CARD, 2, {'558': ('NVIDIA L40-1B', 2)})
        self.write(f'nvidia/{self.name}', self.text)
        bad, good = self.tree.vgpus()
        self.assertIn(f'nvidia/{self.name} of {ADDRESS}', str(bad.problem))
        self.assertIn(self.where, str(bad.problem))
        self.assertNotIn('secret', str(bad.problem))
        self.assertEqual((None, {'558': 'NVIDIA L40-1B'}), (good.problem, good.creatable))


class DriverTestCase(TreeTestCase):
    """The driver of the fixture does what the documents say of the real one."""

    def setUp(self) -> None:
        super().setUp()
        self.functions = self.cards.add(CARD, 3, {'558': ('NVIDIA L40-1B', 2), '559': ('NVIDIA L40-2B', 1)})

    def lists(self) -> list[list[str]]:
        return [sorted(function.creatable) for function in self.tree.vgpus()]

    def refused(self, function: str, number: str) -> int | None:
        return self.assertRaises(OSError, self.tree.set_type, function, number).errno

    def test_siblings_are_left_with_the_same_type_and_then_with_none(self) -> None:
        one, two, three = self.functions
        self.assertEqual([['558', '559']] * 3, self.lists())
        self.tree.set_type(one, '558')
        self.assertEqual([[], ['558'], ['558']], self.lists())
        self.assertEqual(22, self.refused(two, '559'))              # EINVAL
        self.tree.set_type(two, '558')
        self.assertEqual([[], [], []], self.lists())
        self.assertEqual(28, self.refused(three, '558'))            # ENOSPC
        self.tree.set_type(one, vgpu_sysfs.NO_TYPE)
        self.assertEqual([['558'], [], ['558']], self.lists())

    def test_only_one_without_a_type_gets_one_and_only_one_with_a_type_loses_it(self) -> None:
        function = self.functions[0]
        self.assertEqual(1, self.refused(function, vgpu_sysfs.NO_TYPE))     # EPERM
        self.tree.set_type(function, '558')
        self.assertEqual(1, self.refused(function, '558'))
        with self.cards.opened(function):
            self.assertEqual(16, self.refused(function, vgpu_sysfs.NO_TYPE))        # EBUSY
            self.assertTrue(self.tree.is_open(function))
        self.assertFalse(self.tree.is_open(function))
        self.tree.set_type(function, vgpu_sysfs.NO_TYPE)
        self.assertEqual('0', self.cards.type_of(function))

    def test_a_boot_takes_every_type(self) -> None:
        self.tree.set_type(self.functions[0], '559')
        self.cards.boot()
        self.assertEqual([['558', '559']] * 3, self.lists())
