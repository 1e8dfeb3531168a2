"""PCI functions in sysfs: what Linux has there, what goes away, and what else may stand there."""

from __future__ import annotations

import os
import pathlib
import re
from typing import Any

from devicetrack import exception
from devicetrack.testing import pci
from devicetrack.testing import pci_models
from devicetrack.tests import base
from devicetrack.virt.libvirt import pci_sysfs

NVME, SRIOV, IGB = '0000:01:00.0', '0000:02:00.0', '0000:03:00.0'
VF = '0000:03:10.2'


class TreeTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.host = self.useFixture(pci.PCIHost())
        self.tree = pci_sysfs.Tree(self.host.root)

    def read(self) -> dict[str, Any]:
        """All functions, after a check that each is the same when it is read alone."""
        found = {function.address: function for function in self.tree.functions()}
        self.assertEqual(sorted(found), list(found))
        self.assertEqual(found, {address: self.tree.function(address) for address in found})
        return found

    def write(self, address: str, name: str, text: str) -> None:
        with open(self.host.path(address, name), 'w') as file:
            file.write(text)

    def relink(self, address: str, name: str, target: str) -> None:
        path = self.host.path(address, name)
        if os.path.lexists(path):
            os.unlink(path)
        os.symlink(target, path)


class FunctionsTestCase(TreeTestCase):

    def test_a_controller_of_nvme(self) -> None:
        self.host.add_nvme(NVME, 'nvme-m0', group=12, numa_node=1)
        self.assertEqual({NVME: pci_sysfs.Function(
            NVME, '1b36', '0010', '1af4:1100', '010802', 'nvme', 12, 1, reset_methods=('flr', 'bus'),
            serial='nvme-m0')}, self.read())
        self.assertEqual(pci_sysfs.TYPE_PCI, self.read()[NVME].device_type)

    def test_its_serial_number_is_known_while_its_own_driver_has_it(self) -> None:
        self.host.add_nvme(NVME, 'nvme-m0')
        for driver, serial in ((None, None), (pci.VFIO_PCI, None), ('nvme', 'nvme-m0')):
            self.host.unbind(NVME)
            if driver is not None:
                self.host.bind(NVME, driver)
            found = self.read()[NVME]
            self.assertEqual((driver, serial), (found.driver, found.serial))

    def test_a_physical_function_without_virtual_ones_is_one_all_the_same(self) -> None:
        self.host.add_igb(IGB)
        found = self.read()[IGB]
        self.assertEqual((pci_sysfs.TYPE_PF, 7, ()), (found.device_type, found.total_vfs, found.vfs))

    def test_virtual_functions_on_another_slot_than_their_physical_one(self) -> None:
        self.host.add_igb(IGB)
        vfs = self.host.make_vfs(IGB, 3)
        found = self.read()
        self.assertEqual((pci_sysfs.TYPE_PF, tuple(vfs)), (found[IGB].device_type, found[IGB].vfs))
        self.assertEqual(['0000:03:10.0', VF, '0000:03:10.4'], vfs)
        self.assertEqual([(pci_sysfs.TYPE_VF, IGB, number, '10ca', 'igbvf', ('flr',), (f'enp3s0v{number}',))
                          for number in range(3)],
                         [(vf.device_type, vf.physfn, vf.vf_number, vf.product_id, vf.driver, vf.reset_methods, vf.net)
                          for vf in map(found.__getitem__, vfs)])
        self.assertEqual(4, len({function.iommu_group for function in found.values()}))

    def test_a_virtual_function_has_the_physical_one_with_it(self) -> None:
        self.host.add_igb(IGB)
        vf, = self.host.make_vfs(IGB, 1)
        card, alone = self.read()[IGB], self.tree.function(vf)
        self.assertEqual(([card], card, None), ([one.parent for one in self.read().values() if one.physfn],
                                                alone and alone.parent, card.parent))

    def test_virtual_functions_in_the_order_of_their_numbers(self) -> None:
        self.host.add(IGB, pci_models.IGB._replace(total_vfs=12))
        self.assertEqual(tuple(self.host.make_vfs(IGB, 12)), self.read()[IGB].vfs)

    def test_virtual_functions_of_nvme_have_no_driver(self) -> None:
        self.host.add_nvme_with_vfs(SRIOV, 'nvme-s')
        vfs = self.host.make_vfs(SRIOV, 2)
        found = self.read()
        self.assertEqual((('0000:02:00.1', '0000:02:00.2'), 'nvme-s'), (tuple(vfs), found[SRIOV].serial))
        self.assertEqual({(None, None)}, {(found[vf].driver, found[vf].serial) for vf in vfs})

    def test_a_virtual_function_whose_number_has_a_gap_before_it(self) -> None:
        self.host.add_igb(IGB)
        self.host.make_vfs(IGB, 3)
        self.host.remove(VF)
        found = self.read()
        self.assertEqual(('0000:03:10.0', '0000:03:10.4'), found[IGB].vfs)
        self.assertEqual(2, found['0000:03:10.4'].vf_number)

    def test_a_virtual_function_that_its_physical_one_does_not_link_to(self) -> None:
        self.host.add_igb(IGB)
        self.host.make_vfs(IGB, 2)
        os.unlink(self.host.path(IGB, 'virtfn1'))
        found = self.read()[VF]
        self.assertEqual((IGB, None, None), (found.physfn, found.vf_number, found.problem))

    def test_a_bridge_and_the_group_behind_it(self) -> None:
        edu, network, other = self.host.add_shared_group('0000:05:00.0', '0000:06')
        found = self.read()
        self.assertEqual({'0000:05:00.0': True, edu: False, network: False, other: False},
                         {address: function.is_bridge for address, function in found.items()})
        group, = {function.iommu_group for function in found.values()}
        self.assertEqual(tuple(found), self.tree.group(group))
        self.assertEqual([(None, ('bus',)), ('e1000', ()), (None, ())],
                         [(found[one].driver, found[one].reset_methods) for one in (edu, network, other)])

    def test_a_function_is_alone_while_its_bus_has_no_other_one(self) -> None:
        bridge = self.host.add('0000:08:00.0', pci_models.BRIDGE)
        self.host.add('0000:09:00.0', pci_models.EDU, behind=bridge)
        self.assertIs(True, self.tree.is_alone('0000:09:00.0'))
        self.host.add('0000:09:01.0', pci_models.EDU, behind=bridge)
        self.assertIs(False, self.tree.is_alone('0000:09:00.0'))
        self.assertIs(False, self.tree.is_alone('0000:0a:00.0'))

    def test_two_functions_of_one_card(self) -> None:
        card = self.host.add_card('0000:07:00', ['one', 'two'])
        found = self.read()
        self.assertEqual([('one', card), ('two', card)], [
            (found[one].serial, list(self.tree.group(found[one].iommu_group))) for one in card])

    def test_a_group_that_is_not_there_has_no_members(self) -> None:
        self.assertEqual((), self.tree.group(99))

    def test_a_domain_with_more_digits(self) -> None:
        self.host.add_nvme('10000:e1:00.0', 'x')
        self.assertEqual('x', self.read()['10000:e1:00.0'].serial)

    def test_a_kernel_that_says_less(self) -> None:
        # Without an IOMMU, NUMA and reset_method, which Linux has since 5.15.
        self.host.add_nvme(NVME, '')
        for name in ('iommu_group', 'numa_node', 'reset_method', 'reset'):
            os.unlink(self.host.path(NVME, name))
        self.assertEqual(pci_sysfs.Function(NVME, '1b36', '0010', '1af4:1100', '010802', 'nvme'), self.read()[NVME])

    def test_an_interface_of_virtio_is_below_another_device(self) -> None:
        self.host.add(IGB, pci_models.E1000._replace(driver='virtio-pci'))
        os.makedirs(self.host.path(IGB, 'virtio2/net/eth0'))
        for name, target in (('eth0', f'../../devices/pci0000:00/{IGB}/virtio2/net/eth0'),
                             ('eth1', f'../../devices/pci0000:00/{IGB}/usb1/1-1/1-1:1.0/net/eth1')):
            os.symlink(target, os.path.join(self.host.root, 'class/net', name))
        with open(os.path.join(self.host.root, 'class/net/bonding_masters'), 'w') as file:
            file.write('\n')
        self.assertEqual(('eth0',), self.read()[IGB].net)

    def test_without_a_subsystem(self) -> None:
        self.host.add_nvme(NVME, '')
        self.write(NVME, 'modalias', 'pci:v00008086d00000D57sv00000000sd00000000bc06sc00i00\n')
        self.assertEqual(('8086', '0d57', None, '060000'), self.read()[NVME][1:5])

    def test_nothing_that_can_wait_for_a_lock_is_opened(self) -> None:
        self.host.add_nvme_with_vfs(SRIOV, 'nvme-s')
        self.host.make_vfs(SRIOV, 2)
        self.host.add_igb(IGB)
        self.host.make_vfs(IGB, 7)
        opened = []
        real = os.open

        def noted(path: Any, *arguments: Any, **named: Any) -> int:
            opened.append(os.path.basename(path))
            return real(path, *arguments, **named)

        self.patch(os, 'open', noted)
        self.assertEqual(11, len(self.read()))
        self.assertLessEqual({'modalias', 'numa_node', 'sriov_totalvfs', 'reset_method'}, set(opened))
        self.assertEqual(set(), set(opened) & {'sriov_numvfs', 'driver_override', 'uevent', 'config', 'vpd'})


class WhatIsMissingTestCase(TreeTestCase):

    def test_no_directory_of_functions_is_no_answer(self) -> None:
        os.rename(os.path.join(self.host.root, 'bus'), os.path.join(self.host.root, 'gone'))
        for call in (self.tree.functions, lambda: self.tree.function(NVME)):
            error = self.assertRaises(exception.CommandFailed, call)
            self.assertIn('bus/pci/devices', str(error))

    def test_no_function_of_this_address(self) -> None:
        self.host.add_nvme(NVME, '')
        for address in (SRIOV, '', '..', f'{NVME}/', f'{NVME}\n', f'../devices/{NVME}', NVME + '\0'):
            self.assertIsNone(self.tree.function(address))

    def test_what_else_stands_there_is_no_function(self) -> None:
        self.host.add_nvme(NVME, '')
        for name in ('README', '0000:01:00', '0000:01:20.0', '0000:01:00.8'):
            os.symlink(self.host.path(NVME), os.path.join(self.host.root, 'bus/pci/devices', name))
        self.assertEqual([NVME], list(self.read()))

    def test_one_that_went_away_is_left_out(self) -> None:
        self.host.add_nvme(NVME, '')
        self.host.add_igb(IGB)
        os.rename(self.host.path(NVME), self.host.path(NVME) + ' is gone')
        self.assertEqual([IGB], list(self.read()))

    def test_one_that_goes_away_while_it_is_read_is_left_out(self) -> None:
        # The last thing that is read of it is missing.
        self.host.add_nvme(NVME, '')
        self.host.add_igb(IGB)
        real = os.readlink

        def pull_out(path: Any, *arguments: Any, **named: Any) -> Any:
            found = real(path, *arguments, **named)
            if path == 'driver' and found.endswith('/nvme'):
                self.host.remove(NVME)
            return found

        self.patch(os, 'readlink', pull_out)
        self.assertEqual([IGB], [function.address for function in self.tree.functions()])
        self.assertEqual([IGB], list(self.read()))

    def test_another_one_that_takes_the_address_meanwhile_is_not_mixed_with_it(self) -> None:
        self.host.add_nvme(NVME, 'first')
        real = os.readlink

        def replace(path: Any, *arguments: Any, **named: Any) -> Any:
            found = real(path, *arguments, **named)
            if path == 'driver' and found.endswith('/nvme'):
                self.host.remove(NVME)
                self.host.add(NVME, pci_models.E1000E)
            return found

        self.patch(os, 'readlink', replace)
        found, = self.tree.functions()
        self.assertEqual((NVME, '', None, 'it has no modalias'),
                         (found.address, found.vendor_id, found.iommu_group, found.problem))
        self.assertEqual(('10d3', None), (self.read()[NVME].product_id, self.read()[NVME].problem))

    def test_a_physical_function_that_went_before_its_virtual_ones(self) -> None:
        self.host.add_igb(IGB)
        self.host.make_vfs(IGB, 1)
        os.unlink(os.path.join(self.host.root, 'bus/pci/devices', IGB))
        found = self.read()['0000:03:10.0']
        self.assertEqual((IGB, None, None), (found.physfn, found.vf_number, found.problem))

    def test_interfaces_that_cannot_be_listed_are_no_answer(self) -> None:
        self.host.add_igb(IGB)
        directory = self.host.path(IGB, 'net')
        os.rename(directory, directory + ' before')
        open(directory, 'w').close()
        self.assertEqual('its net cannot be read: Not a directory', self.read()[IGB].problem)


class OddContentTestCase(TreeTestCase):

    scenarios = base.table(
        ('no number', 'numa_node', 'x\n', r"its numa_node cannot be understood: 'x\n'"),
        ('an empty number', 'numa_node', '', "its numa_node cannot be understood: ''"),
        ('a negative count', 'sriov_totalvfs', '-1\n', r"its sriov_totalvfs cannot be understood: '-1\n'"),
        ('bytes', 'sriov_totalvfs', '\xff\0', "its sriov_totalvfs cannot be understood: '��\\x00'"),
        ('no modalias', 'modalias', '\n', r"its modalias cannot be understood: '\n'"),
        ('another modalias', 'modalias', 'usb:v1D6Bp0002\n', r"its modalias cannot be understood: 'usb:v1D6Bp0002\n'"),
        ('a wide modalias', 'modalias', 'pci:v0001808600000D57', "its modalias cannot be understood: "
                                                                "'pci:v0001808600000D57'"),
        names=('attribute', 'text', 'problem'))

    def test_is_a_problem(self) -> None:
        self.host.add_nvme(NVME, 'nvme-m0')
        with open(self.host.path(NVME, self.attribute), 'w', encoding='utf-8') as file:
            file.write(self.text)
        found = self.read()[NVME]
        self.assertEqual(self.problem, found.problem)
        self.assertEqual(('nvme', 'nvme-m0'), (found.driver, found.serial))
        self.assertEqual(self.attribute == 'modalias', found.vendor_id == '')


class OddFilesTestCase(TreeTestCase):

    def setUp(self) -> None:
        super().setUp()
        self.host.add_nvme(NVME, 'nvme-m0')

    def problem(self) -> str:
        return str(self.read()[NVME].problem)

    def test_links_that_lead_to_something_else(self) -> None:
        for name, target, shown in (('iommu_group', '../iommu_groups/x', "'x'"), ('physfn', '../x', "'x'"),
                                    ('virtfn0', '../0000:01:00', "'0000:01:00'")):
            self.relink(NVME, name, target)
            if name == 'virtfn0':
                self.write(NVME, 'sriov_totalvfs', '4\n')
            self.assertEqual(f'its {name} cannot be understood: {shown}', self.problem())
            os.unlink(self.host.path(NVME, name))

    def test_a_long_one_is_shortened(self) -> None:
        self.write(NVME, 'numa_node', 'x' * 5000)
        self.assertEqual('its numa_node cannot be understood: ' + repr('x' * 4096)[:40] + '… (4098 characters)',
                         self.problem())

    def test_a_serial_number_that_is_not_printable(self) -> None:
        path = os.path.join(self.host.root, 'class/nvme', self.host.controller_of(NVME), 'serial')
        for serial, shown in (('S1\nERROR forged', r"'S1\nERROR forged'"), ('S\x1b[2J', r"'S\x1b[2J'")):
            with open(path, 'w') as file:
                file.write(serial)
            self.assertEqual(f'its serial cannot be understood: {shown}', self.problem())
            self.assertIsNone(self.read()[NVME].serial)

    def test_a_serial_number_that_goes_with_the_driver_meanwhile(self) -> None:
        os.unlink(os.path.join(self.host.root, 'class/nvme', self.host.controller_of(NVME), 'serial'))
        self.assertEqual((None, None), (self.read()[NVME].serial, self.read()[NVME].problem))

    def test_the_name_of_a_controller_that_another_function_has_meanwhile(self) -> None:
        self.host.add_nvme(SRIOV, 'another one')
        real = os.readlink

        def renumber(path: Any, *arguments: Any, **named: Any) -> Any:
            found = real(path, *arguments, **named)
            if path == 'driver' and not renumbered:
                renumbered.append(path)
                names = [os.path.join(self.host.path(one, 'nvme'), self.host.controller_of(one))
                         for one in (NVME, SRIOV)]
                os.rename(names[0], names[0] + ' before')
                os.rename(names[1], os.path.join(self.host.path(SRIOV, 'nvme'), self.host.controller_of(NVME)))
            return found

        renumbered: list[str] = []
        self.patch(os, 'readlink', renumber)
        first, _second = self.tree.functions()
        self.assertEqual((NVME, None), (first.address, first.serial))

    def test_a_fifo_a_directory_a_socket_and_a_link_in_the_place_of_an_attribute(self) -> None:
        for make, reason in ((os.mkfifo, "cannot be understood: ''"), (os.mkdir, 'cannot be read: Is a directory'),
                             (lambda path: os.mknod(path, 0o140600), 'cannot be read: No such device or address'),
                             (lambda path: os.symlink('class', path), 'cannot be read: Too many levels of symbolic '
                                                                      'links')):
            path = self.host.path(NVME, 'numa_node')
            os.rename(path, f'{path} before')
            make(path)
            self.assertEqual(f'its numa_node {reason}', self.problem())
            os.rename(path, f'{path} {reason}')
            os.rename(f'{path} before', path)

    def test_what_the_kernel_refuses_to_read(self) -> None:
        real = os.read

        def refused(descriptor: int, most: int) -> bytes:
            if os.readlink(f'/proc/self/fd/{descriptor}').endswith('/reset_method'):
                raise OSError(answers[-1], os.strerror(answers[-1]))
            return real(descriptor, most)

        self.patch(os, 'read', refused)
        answers = []
        for answer, problem in ((5, 'its reset_method cannot be read: Input/output error'),
                                (13, 'its reset_method cannot be read: Permission denied'), (19, 'None')):
            answers.append(answer)
            self.assertEqual(problem, self.problem())
            self.assertEqual((), self.read()[NVME].reset_methods)

    def test_a_directory_that_may_not_be_entered(self) -> None:
        os.unlink(os.path.join(self.host.root, 'bus/pci/devices', NVME))
        os.symlink(NVME, os.path.join(self.host.root, 'bus/pci/devices', NVME))
        self.assertEqual('its directory cannot be opened: Too many levels of symbolic links', self.problem())


class PermissionTestCase(TreeTestCase):

    def test_a_user_who_may_not_read(self) -> None:
        self.host.add_nvme(NVME, 'nvme-m0')
        self.host.add_igb(IGB)
        for above in pathlib.Path(self.host.root).parents:
            if above.stat().st_mode & 0o005 != 0o005:       # a test's directories are its own
                above.chmod(0o755)
        os.chmod(self.host.path(NVME, 'numa_node'), 0)
        os.chmod(self.host.path(IGB), 0)
        self.addCleanup(os.chmod, self.host.path(IGB), 0o755)
        listing = os.open(os.path.join(self.host.root, 'bus/pci/devices'), os.O_RDONLY)
        self.addCleanup(os.close, listing)
        os.seteuid(65534)
        try:
            found = {function.address: function for function in self.tree.functions()}
        finally:
            os.seteuid(0)
        self.assertEqual({NVME: 'its numa_node cannot be read: Permission denied',
                          IGB: 'its directory cannot be read: Permission denied'},
                         {address: function.problem for address, function in found.items()})
        self.assertEqual(('nvme-m0', ''), (found[NVME].serial, found[IGB].vendor_id))


class DriverOverrideTestCase(TreeTestCase):

    def test_the_name_or_none(self) -> None:
        self.host.add_nvme(NVME, '')
        self.assertIsNone(self.tree.driver_override(NVME))
        for text, name in (('vfio-pci\n', 'vfio-pci'), ('\n', None), ('', None)):
            self.write(NVME, 'driver_override', text)
            self.assertEqual(name, self.tree.driver_override(NVME))

    def test_of_a_function_that_is_not_there(self) -> None:
        error = self.assertRaises(exception.CommandFailed, self.tree.driver_override, NVME)
        self.assertIn(f'driver_override of {NVME}: No such file or directory', str(error))


class ThisMachineTestCase(base.TestCase):
    """The kernel that runs the tests, with whatever it runs on."""

    def test_every_function_is_read_as_its_attributes_say(self) -> None:
        tree = pci_sysfs.Tree()
        directory = '/sys/bus/pci/devices'
        if not os.path.isdir(directory):
            self.assertRaises(exception.CommandFailed, tree.functions)
            return
        found = {function.address: function for function in tree.functions()}
        self.assertEqual(sorted(os.listdir(directory)), list(found))
        for address, function in found.items():
            self.assertIsNone(function.problem)
            said = {name: self._attribute(address, name) for name in (
                'vendor', 'device', 'subsystem_vendor', 'subsystem_device', 'class')}
            subsystem = f'{said["subsystem_vendor"]}:{said["subsystem_device"]}'
            self.assertEqual((said['vendor'], said['device'], said['class'], subsystem), (
                function.vendor_id, function.product_id, function.class_code, function.subsystem or '0000:0000'))
            driver = os.path.join(directory, address, 'driver')
            self.assertEqual(os.path.basename(os.readlink(driver)) if os.path.lexists(driver) else None,
                             function.driver)
            self.assertEqual(function, tree.function(address))
            self.assertIsNone(tree.driver_override(address))

    @staticmethod
    def _attribute(address: str, name: str) -> str:
        with open(f'/sys/bus/pci/devices/{address}/{name}') as file:
            return re.sub('^0x', '', file.read().strip())


class SilenceTestCase(TreeTestCase):
    """A function that has fallen off its bus, and all that may look like one."""

    def setUp(self) -> None:
        super().setUp()
        self.host.add_igb(IGB)
        self.vf = self.host.make_vfs(IGB, 1)[0]

    def test_registers_of_ones_say_so(self) -> None:
        for address in (IGB, self.vf):
            self.assertIsNone(self.tree.silence(address))
            self.host.fall_silent(address)
            self.assertEqual(f'{address} does not answer on its bus: its registers read as ff',
                             self.tree.silence(address))
            self.host.answer_again(address)
            self.assertIsNone(self.tree.silence(address))

    def test_so_does_the_header_type_or_the_vendor_alone(self) -> None:
        with open(self.host.path(IGB, 'config'), 'rb') as file:
            header = bytearray(file.read())
        for at, ones in ((0x0E, b'\x7f'), (0x0E, b'\xff'), (0, b'\xff\xff')):
            with open(self.host.path(IGB, 'config'), 'wb') as file:
                file.write(header[:at] + ones + header[at + len(ones):])
            self.assertIsNotNone(self.tree.silence(IGB), f'{ones!r} at {at}')

    def test_a_virtual_function_has_no_vendor_in_its_registers(self) -> None:
        with open(self.host.path(self.vf, 'config'), 'r+b') as file:
            file.write(b'\xff\xff\xff\xff')
        self.assertIsNone(self.tree.silence(self.vf))

    def test_one_that_sleeps_is_not_woken(self) -> None:
        self.host.fall_silent(IGB)
        os.makedirs(self.host.path(IGB, 'power'), exist_ok=True)
        for status, silent in (('suspended', False), ('active', True)):
            self.write(IGB, 'power/runtime_status', f'{status}\n')
            self.assertEqual(silent, self.tree.silence(IGB) is not None)

    def test_one_without_registers_or_that_is_gone_says_nothing(self) -> None:
        os.unlink(self.host.path(IGB, 'config'))
        self.assertEqual([None, None], [self.tree.silence(address) for address in (IGB, NVME)])

    def test_registers_that_cannot_be_read_say_so(self) -> None:
        os.unlink(self.host.path(IGB, 'config'))
        os.mkdir(self.host.path(IGB, 'config'))
        self.assertIn('its registers cannot be read', str(self.tree.silence(IGB)))
