"""The steps with PCI functions that need root: what they write, what it does, and what they refuse."""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import threading
from typing import Any

import fixtures

from devicetrack.testing import pci
from devicetrack.testing import pci_models
from devicetrack.tests import base
from devicetrack.virt.libvirt import device_users
from devicetrack.virt.libvirt import disk_nodes
from devicetrack.virt.libvirt import pci_privileged
from devicetrack.virt.libvirt import pci_sysfs
from devicetrack.virt.libvirt import privileged
from devicetrack.virt.libvirt import root

NVME, SRIOV, IGB = '0000:01:00.0', '0000:02:00.0', '0000:03:00.0'
VMD, BEHIND_VMD = '0000:64:00.5', '10000:01:00.0'
BRIDGE = pci_models.BRIDGE._replace(driver='pcieport', reset_methods=('pm',))

# Product data with an identifier, a part number and a serial number, and a configuration space with capabilities for
# advanced error reporting and for a serial number.
VPD = b'\x82\x04\x00card' + b'\x90\x0c\x00PN\x03A-1SN\x03M75' + b'\x78'
CONFIG = bytes(256) + struct.pack('<I', 0x148 << 20 | 1 << 16 | 1) + bytes(0x44) + struct.pack(
    '<III', 1 << 16 | 3, 0xFF0A0B0C, 0x001B21FF) + bytes(0x100)

# Each step, with arguments that it takes after sysfs and the address.
STEPS: tuple[tuple[Any, tuple[Any, ...]], ...] = (
    (pci_privileged.set_driver_override, (None,)), (pci_privileged.unbind, ()), (pci_privileged.probe, ()),
    (pci_privileged.reset, (None,)), (pci_privileged.set_vfs, (1,)), (pci_privileged.read_serial, ()),
    (pci_privileged.check_host_use, ()))


class StepTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.host = self.useFixture(pci.PCIHost())
        self.sysfs = self.host.root
        self.tree = pci_sysfs.Tree(self.sysfs)
        self.host.add_nvme(NVME, 'nvme-m0')
        self.host.add_igb(IGB)

    def read(self, address: str) -> Any:
        return self.tree.function(address)

    def give_to_guests(self, address: str) -> None:
        pci_privileged.set_driver_override(self.sysfs, address, pci.VFIO_PCI)
        pci_privileged.unbind(self.sysfs, address)
        pci_privileged.probe(self.sysfs, address)

    def refused(self, number: int, reason: str, call: Any, *arguments: Any) -> None:
        before = list(self.host.written)
        error = self.assertRaises(OSError, call, self.sysfs, *arguments)
        self.assertEqual((number, True), (error.errno, reason in str(error)), str(error))
        self.assertEqual(before, self.host.written)


class DriverTestCase(StepTestCase):

    def test_a_function_goes_to_vfio_and_back(self) -> None:
        self.give_to_guests(NVME)
        self.assertEqual((pci.VFIO_PCI, None), (self.read(NVME).driver, self.read(NVME).serial))
        self.assertEqual(pci.VFIO_PCI, self.tree.driver_override(NVME))
        self.assertEqual([], os.listdir(os.path.join(self.sysfs, 'class/nvme')))
        pci_privileged.set_driver_override(self.sysfs, NVME, None)
        pci_privileged.unbind(self.sysfs, NVME)
        pci_privileged.probe(self.sysfs, NVME)
        self.assertEqual(('nvme', 'nvme-m0'), (self.read(NVME).driver, self.read(NVME).serial))
        self.assertIsNone(self.tree.driver_override(NVME))
        self.assertEqual('nvme1', self.host.controller_of(NVME))
        function = f'devices/pci0000:00/0000:00:03.0/{NVME}'
        self.assertEqual([
            (f'{function}/driver_override', 'vfio-pci\n'), ('bus/pci/drivers/nvme/unbind', NVME),
            ('bus/pci/drivers_probe', NVME), (f'{function}/driver_override', '\n'),
            ('bus/pci/drivers/vfio-pci/unbind', NVME), ('bus/pci/drivers_probe', NVME)], self.host.written)

    def test_unbinding_what_has_no_driver_writes_nothing(self) -> None:
        self.host.unbind(NVME)
        pci_privileged.unbind(self.sysfs, NVME)
        self.assertEqual([], self.host.written)

    def test_an_interface_comes_and_goes_with_its_driver(self) -> None:
        vf, = self.host.make_vfs(IGB, 1)
        self.give_to_guests(vf)
        self.assertEqual((), self.read(vf).net)
        pci_privileged.set_driver_override(self.sysfs, vf, None)
        pci_privileged.unbind(self.sysfs, vf)
        pci_privileged.probe(self.sysfs, vf)
        self.assertEqual(('enp3s0v0',), self.read(vf).net)

    def test_a_function_that_a_guest_has_keeps_its_driver(self) -> None:
        self.give_to_guests(NVME)
        with self.host.opened(NVME):
            self.refused(errno.EBUSY, f'a guest has {NVME}', pci_privileged.unbind, NVME)
        pci_privileged.unbind(self.sysfs, NVME)
        self.assertIsNone(self.host.driver_of(NVME))

    def test_nor_does_one_of_whose_virtual_functions_a_guest_has_one(self) -> None:
        first, second = self.host.make_vfs(IGB, 2)
        self.give_to_guests(second)
        with self.host.opened(second):
            self.refused(errno.EBUSY, f'a guest has {second}', pci_privileged.unbind, IGB)
            pci_privileged.unbind(self.sysfs, first)
        pci_privileged.unbind(self.sysfs, IGB)
        self.assertEqual([NVME, IGB], [function.address for function in self.tree.functions()])

    def test_nor_does_one_that_the_host_uses(self) -> None:
        self.host.mount('nvme0n1', '/srv')
        vf, = self.host.make_vfs(IGB, 1)
        self.host.route('enp3s0v0')
        steps = (pci_privileged.unbind, ()), (pci_privileged.reset, (None,)), (pci_privileged.check_host_use, ())
        for step, arguments in steps:
            for address, reason in ((NVME, f'the host uses {NVME}: /srv is mounted from nvme0n1'),
                                    (IGB, f'the host uses {vf}: a route goes through its interface enp3s0v0')):
                self.refused(errno.EBUSY, reason, step, address, *arguments)

    def test_nor_does_one_in_front_of_a_disk_that_the_host_uses(self) -> None:
        vmd = self.host.add(VMD, pci_models.VMD)
        self.host.add(BEHIND_VMD, pci_models.NVME, behind=vmd)
        self.host.mount('nvme1n1', '/')
        steps = (pci_privileged.unbind, ()), (pci_privileged.reset, (None,)), (pci_privileged.check_host_use, ())
        for step, arguments in steps:
            self.refused(errno.EBUSY, f'the host uses {vmd}: / is mounted from nvme1n1', step, vmd, *arguments)

    def test_nor_does_a_bridge_above_what_others_use(self) -> None:
        bridge = self.host.add('0000:05:00.0', BRIDGE)
        above = self.host.add('0000:06:00.0', BRIDGE, behind=bridge)
        disk = self.host.add('0000:07:00.0', pci_models.NVME, behind=above)
        network = self.host.add('0000:07:01.0', pci_models.E1000, behind=above)
        steps = (pci_privileged.unbind, ()), (pci_privileged.reset, (None,))
        self.give_to_guests(disk)
        with self.host.opened(disk):
            for step, arguments in steps:
                self.refused(errno.EBUSY, f'a guest has {disk}', step, bridge, *arguments)
        self.host.hide_interface(network)
        for step, arguments in (*steps, (pci_privileged.check_host_use, ())):
            self.refused(errno.EBUSY, f'the host uses {network}: its network interface is in another network namespace',
                         step, bridge, *arguments)
        self.host.unbind(network)
        pci_privileged.unbind(self.sysfs, bridge)
        self.assertIsNone(self.host.driver_of(bridge))

    def test_nor_does_any_while_nobody_knows_what_the_host_uses(self) -> None:
        os.unlink(os.path.join(self.host.proc, 'self/mountinfo'))
        self.refused(errno.EIO, 'the functions that the host uses are unknown', pci_privileged.unbind, NVME)

    def test_virtual_functions_of_nvme_stay_without_the_driver_of_their_physical_one(self) -> None:
        self.host.add_nvme_with_vfs(SRIOV, 'nvme-s')
        vfs = self.host.make_vfs(SRIOV, 2)
        self.give_to_guests(SRIOV)
        self.assertEqual((tuple(vfs), None), (self.read(SRIOV).vfs, self.read(SRIOV).driver))

    def test_no_host_driver_comes_beside_a_guest_in_a_group(self) -> None:
        edu, network, other = self.host.add_shared_group('0000:05:00.0', '0000:06')
        pci_privileged.unbind(self.sysfs, network)
        self.give_to_guests(edu)
        with self.host.opened(edu):
            self.refused(errno.EBUSY, f'a guest has {network}, or another', pci_privileged.probe, network)
            self.give_to_guests(other)
        self.assertEqual([pci.VFIO_PCI, None, pci.VFIO_PCI], list(map(self.host.driver_of, (edu, network, other))))
        pci_privileged.probe(self.sysfs, network)
        self.assertEqual('e1000', self.host.driver_of(network))

    def test_nobody_changes_the_override_that_a_probe_has_read(self) -> None:
        edu, network, _other = self.host.add_shared_group('0000:05:00.0', '0000:06')
        self.give_to_guests(edu)
        pci_privileged.set_driver_override(self.sysfs, network, pci.VFIO_PCI)
        pci_privileged.unbind(self.sysfs, network)
        changes = threading.Thread(target=pci_privileged.set_driver_override, args=(self.sysfs, network, None))
        write = privileged.write_attribute

        def write_late(path: str, data: bytes) -> None:
            if path.endswith('drivers_probe'):
                changes.start()
                changes.join(0.2)               # it waits for the end of this probe
            write(path, data)

        with self.host.opened(edu), fixtures.MonkeyPatch(f'{privileged.__name__}.write_attribute', write_late):
            pci_privileged.probe(self.sysfs, network)
            changes.join()
        self.assertEqual(['drivers_probe', 'driver_override'],
                         [os.path.basename(path) for path, _text in self.host.written[-2:]])
        self.assertEqual(pci.VFIO_PCI, self.host.driver_of(network))

    def test_a_probe_that_does_not_end_keeps_no_other_function(self) -> None:
        write = privileged.write_attribute

        def write_after_another(path: str, data: bytes) -> None:
            if path.endswith('drivers_probe'):
                pci_privileged.set_driver_override(self.sysfs, IGB, pci.VFIO_PCI)
            write(path, data)

        with fixtures.MonkeyPatch(f'{privileged.__name__}.write_attribute', write_after_another):
            pci_privileged.probe(self.sysfs, NVME)
        self.assertEqual(pci.VFIO_PCI, self.tree.driver_override(IGB))

    def test_names_that_are_none_of_a_driver(self) -> None:
        for name in ('', '../nvme', 'nvme\nx', 'nvme ', 'a' * 65, '-x', '\0'):
            self.refused(errno.EINVAL, 'not the name of a driver', pci_privileged.set_driver_override, NVME, name)


class ResetTestCase(StepTestCase):

    def test_by_the_methods_of_the_function(self) -> None:
        pci_privileged.reset(self.sysfs, IGB, None)
        self.assertEqual([(IGB, 'flr pm bus')], self.host.resets)

    def test_by_one_method_and_the_others_come_back(self) -> None:
        pci_privileged.reset(self.sysfs, IGB, 'pm')
        self.assertEqual([(IGB, 'pm')], self.host.resets)
        self.assertEqual(('flr', 'pm', 'bus'), self.read(IGB).reset_methods)

    def test_a_method_that_the_function_has_not(self) -> None:
        error = self.assertRaises(OSError, pci_privileged.reset, self.sysfs, NVME, 'pm')
        self.assertEqual((errno.EINVAL, []), (error.errno, self.host.resets))
        for name in ('', 'flr bus', 'flr\n', '../x', 'FLR'):
            self.refused(errno.EINVAL, 'not the name of a reset method', pci_privileged.reset, NVME, name)

    def test_the_methods_come_back_after_a_reset_that_failed(self) -> None:
        self.host.failing.add(IGB)
        error = self.assertRaises(OSError, pci_privileged.reset, self.sysfs, IGB, 'pm')
        self.assertEqual(errno.ENOTTY, error.errno)
        self.assertEqual(('flr', 'pm', 'bus'), self.read(IGB).reset_methods)

    def test_a_function_without_any(self) -> None:
        _edu, network, _other = self.host.add_shared_group('0000:05:00.0', '0000:06')
        os.unlink(self.host.path(NVME, 'reset_method'))
        self.refused(errno.ENOENT, 'reset_method', pci_privileged.reset, NVME, 'flr')
        self.refused(errno.ENOENT, 'No such file', pci_privileged.reset, network, None)

    def test_not_while_a_guest_has_it(self) -> None:
        self.give_to_guests(NVME)
        with self.host.opened(NVME):
            for method in (None, 'flr'):
                self.refused(errno.EBUSY, f'a guest has {NVME}', pci_privileged.reset, NVME, method)
        self.assertEqual([], self.host.resets)


class NoGroupTestCase(StepTestCase):
    """A kernel without VFIO groups, or a process that does not see them: there is no node of the group."""

    NUMBER = os.makedev(511, 7)

    def setUp(self) -> None:
        super().setUp()
        self.give_to_guests(NVME)
        group = self.read(NVME).iommu_group
        os.unlink(os.path.join(root.VFIO, str(group)))
        self.group = f'class/vfio/{group}'
        self.users: list[int] = []
        self.patch(device_users, 'users_of', lambda devices: self.users if self.NUMBER in devices else [])

    def has(self, node: str) -> None:
        path = os.path.join(self.sysfs, node)
        os.makedirs(path)
        with open(os.path.join(path, 'dev'), 'w') as file:
            file.write(f'{os.major(self.NUMBER)}:{os.minor(self.NUMBER)}\n')

    def check_is_kept(self) -> None:
        self.users.append(812)
        for step, arguments in ((pci_privileged.unbind, ()), (pci_privileged.reset, (None,))):
            self.refused(errno.EBUSY, f'a guest has {NVME}', step, NVME, *arguments)
        self.users.clear()
        pci_privileged.reset(self.sysfs, NVME, None)
        self.assertEqual([(NVME, 'flr bus')], self.host.resets)

    def test_what_a_guest_has_by_its_own_device_is_kept(self) -> None:
        self.has(f'bus/pci/devices/{NVME}/vfio-dev/vfio0')
        self.check_is_kept()

    def test_what_a_guest_has_by_a_group_without_a_node_here_is_kept(self) -> None:
        self.has(self.group)
        self.check_is_kept()

    def test_what_nothing_tells_of_is_kept(self) -> None:
        self.refused(errno.EIO, 'the kernel shows no VFIO device', pci_privileged.reset, NVME, None)

    def test_a_function_without_a_driver_for_guests_has_no_guest(self) -> None:
        pci_privileged.reset(self.sysfs, IGB, None)
        self.assertEqual([(IGB, 'flr pm bus')], self.host.resets)


class VirtualFunctionsTestCase(StepTestCase):

    def test_with_a_driver_of_the_host_or_without(self) -> None:
        pci_privileged.set_vfs(self.sysfs, IGB, 2, False)
        self.assertEqual([None, None], [self.host.driver_of(vf) for vf in self.read(IGB).vfs])
        for vf in reversed(self.read(IGB).vfs):
            self.host.remove(vf)
        pci_privileged.set_vfs(self.sysfs, IGB, 2, True)
        self.assertEqual(['igbvf'] * 2, [self.host.driver_of(vf) for vf in self.read(IGB).vfs])
        self.refused(errno.EINVAL, 'neither yes nor no', pci_privileged.set_vfs, IGB, 2, 'no')

    def test_no_driver_waits_for_one_of_a_disk_before_it_is_online(self) -> None:
        self.host.add_nvme_with_vfs(SRIOV, 'S2')
        probes = 'sriov_drivers_autoprobe'
        for said, written, kept in ((None, ['0', '2', '1'], '1'), (True, ['0', '2', '1'], '1'),
                                    (False, ['0', '2'], '0')):
            self.host.written.clear()
            pci_privileged.set_vfs(self.sysfs, SRIOV, 2, said)
            self.assertEqual(written, [text.strip() for name, text in self.host.written if 'sriov' in name])
            with open(self.host.path(SRIOV, probes)) as file:
                self.assertEqual(kept, file.read().strip())
            for vf in reversed(self.read(SRIOV).vfs):
                self.host.remove(vf)

    def test_the_setting_of_drivers_outlives_a_refusal(self) -> None:
        self.host.add_nvme_with_vfs(SRIOV, 'S2')
        error = self.assertRaises(OSError, pci_privileged.set_vfs, self.sysfs, SRIOV, 5)
        self.assertEqual(errno.ERANGE, error.errno)
        with open(self.host.path(SRIOV, 'sriov_drivers_autoprobe')) as file:
            self.assertEqual('1', file.read().strip())

    def test_none_of_a_function_that_somebody_uses(self) -> None:
        self.host.give_address('enp3s0')
        self.refused(errno.EBUSY, f'the host uses {IGB}', pci_privileged.set_vfs, IGB, 2)

    def test_nor_of_one_that_a_guest_has(self) -> None:
        self.give_to_guests(IGB)
        with self.host.opened(IGB):
            self.refused(errno.EBUSY, f'a guest has {IGB}', pci_privileged.set_vfs, IGB, 2)

    def test_some_of_a_function_that_has_none(self) -> None:
        pci_privileged.set_vfs(self.sysfs, IGB, 3)
        self.assertEqual(('0000:03:10.0', '0000:03:10.2', '0000:03:10.4'), self.read(IGB).vfs)

    def test_none_more_and_none_less_of_one_that_has_some(self) -> None:
        self.host.make_vfs(IGB, 2)
        for number in (1, 2, 3):
            self.refused(errno.EBUSY, 'it has virtual functions', pci_privileged.set_vfs, IGB, number)

    def test_what_is_no_number_of_them(self) -> None:
        for number in (0, -1, 2**16, True, '3', None, 3.0):
            self.refused(errno.EINVAL, 'not a number of virtual functions', pci_privileged.set_vfs, IGB, number)

    def test_what_the_kernel_refuses(self) -> None:
        for number, address, refusal in ((8, IGB, errno.ERANGE), (1, NVME, errno.ENOENT)):
            error = self.assertRaises(OSError, pci_privileged.set_vfs, self.sysfs, address, number)
            self.assertEqual(refusal, error.errno)
        self.host.unbind(IGB)
        self.assertRaises(FileNotFoundError, pci_privileged.set_vfs, self.sysfs, IGB, 1)


class SerialTestCase(StepTestCase):

    def put(self, name: str, data: bytes) -> None:
        with open(self.host.path(NVME, name), 'wb') as file:
            file.write(data)

    def test_of_the_product_data_before_the_one_of_the_configuration_space(self) -> None:
        self.put('config', CONFIG)
        self.assertEqual('00-1b-21-ff-ff-0a-0b-0c', pci_privileged.read_serial(self.sysfs, NVME))
        self.put('vpd', VPD)
        self.assertEqual('M75', pci_privileged.read_serial(self.sysfs, NVME))
        self.put('vpd', b'\x78')
        self.assertEqual('00-1b-21-ff-ff-0a-0b-0c', pci_privileged.read_serial(self.sysfs, NVME))

    def test_who_may_see_the_header_alone_cannot_tell(self) -> None:
        self.assertIsNone(pci_privileged.read_serial(self.sysfs, NVME))
        self.put('vpd', VPD)
        self.assertEqual('M75', pci_privileged.read_serial(self.sysfs, NVME))

    def test_a_fifo_in_their_place_is_not_waited_for(self) -> None:
        os.unlink(self.host.path(NVME, 'config'))
        os.mkfifo(self.host.path(NVME, 'config'))
        self.assertIsNone(pci_privileged.read_serial(self.sysfs, NVME))
        os.mkfifo(self.host.path(NVME, 'vpd'))
        self.assertRaises(OSError, pci_privileged.read_serial, self.sysfs, NVME)


class WriteApartTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.path = self.useFixture(fixtures.TempDir()).join('attribute')

    def test_writes(self) -> None:
        with open(self.path, 'w'):
            pass
        privileged.write_apart(self.path, b'8\n', base.HANGS_S)
        with open(self.path) as file:
            self.assertEqual('8\n', file.read())

    def test_says_what_the_kernel_refuses(self) -> None:
        self.have_full_device()
        error = self.assertRaises(OSError, privileged.write_apart, '/dev/full', b'8\n', base.HANGS_S)
        self.assertEqual(errno.ENOSPC, error.errno)

    def test_waits_no_longer_than_it_may(self) -> None:
        os.mkfifo(self.path)
        reader = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)
        self.addCleanup(os.close, reader)
        writer = os.open(self.path, os.O_WRONLY | os.O_NONBLOCK)
        self.addCleanup(os.close, writer)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writer, bytes(1 << 16))
        opened = os.open

        def blocking(path: str, flags: int, *arguments: Any, **others: Any) -> int:
            return opened(path, flags & ~os.O_NONBLOCK, *arguments, **others)

        self.useFixture(fixtures.MonkeyPatch('os.open', blocking))
        error = self.assertRaises(OSError, privileged.write_apart, self.path, b'8\n', 0.1)
        self.assertEqual(errno.ETIMEDOUT, error.errno)
        self.assertIn('within 0.1 s', str(error))


class ArgumentsTestCase(StepTestCase):

    def test_what_is_no_address(self) -> None:
        for step, arguments in STEPS:
            for address in ('', '..', f'../{NVME}', f'{NVME}/../{NVME}', f'{NVME}\n', '0000:01:00.8', '01:00.0',
                            NVME.upper().replace('0000', '000G')):
                self.refused(errno.EINVAL, 'not a PCI address', step, address, *arguments)
            self.assertRaises(TypeError, step, self.sysfs, None, *arguments)

    def test_a_function_that_is_not_there(self) -> None:
        for step, arguments in STEPS:
            self.refused(errno.ENOENT, '0000:99:00.0', step, '0000:99:00.0', *arguments)

    def test_a_path_that_leads_out_of_sysfs(self) -> None:
        outside = os.path.join(self.host.dev, 'function')
        os.rename(self.host.path(NVME), outside)
        os.unlink(os.path.join(self.sysfs, 'bus/pci/devices', NVME))
        os.symlink(outside, os.path.join(self.sysfs, 'bus/pci/devices', NVME))
        for step, arguments in STEPS:
            self.refused(errno.EXDEV, f'{NVME} leads out of {self.sysfs}', step, NVME, *arguments)

    def test_a_driver_outside_of_sysfs(self) -> None:
        os.rename(os.path.join(self.sysfs, 'bus/pci/drivers/nvme'), os.path.join(self.host.dev, 'nvme'))
        os.unlink(self.host.path(NVME, 'driver'))
        os.symlink(os.path.join(self.host.dev, 'nvme'), self.host.path(NVME, 'driver'))
        self.refused(errno.EXDEV, 'driver/unbind leads out of', pci_privileged.unbind, NVME)

    def test_a_link_in_the_place_of_an_attribute_is_not_followed(self) -> None:
        secret = os.path.join(self.host.dev, 'secret')
        with open(secret, 'w') as file:
            file.write('tenants')
        for name in ('config', 'vpd'):
            path = self.host.path(NVME, name)
            if os.path.lexists(path):
                os.unlink(path)
            os.symlink(secret, path)
            self.refused(errno.ELOOP, name, pci_privileged.read_serial, NVME)


class OwnerTestCase(base.TestCase):
    """Which functions have a disk, as the kernel shows it with and without several paths to it."""

    def setUp(self) -> None:
        super().setUp()
        self.sysfs = self.useFixture(fixtures.TempDir()).path
        self.subsystem = os.path.join(self.sysfs, 'devices/virtual/nvme-subsystem/nvme-subsys0')
        os.makedirs(os.path.join(self.sysfs, 'bus/pci/devices'))
        for number, address in enumerate((NVME, SRIOV)):
            controller = os.path.join(self.sysfs, f'devices/pci0000:00/{address}/nvme/nvme{number}')
            os.makedirs(controller)
            os.symlink(f'../../../devices/pci0000:00/{address}', os.path.join(self.sysfs, 'bus/pci/devices', address))
            os.makedirs(os.path.join(self.subsystem, 'nvme0n1'), exist_ok=True)
            os.symlink(controller, os.path.join(self.subsystem, f'nvme{number}'))

    def add_path(self, address: str, number: int, name: str) -> None:
        os.mkdir(os.path.join(self.sysfs, f'devices/pci0000:00/{address}/nvme/nvme{number}', name))

    def check(self, address: str, name: str = 'nvme0n1') -> None:
        disk_nodes.check_owner(self.sysfs, os.path.realpath(os.path.join(self.subsystem, name)), address)

    def test_a_disk_below_its_function(self) -> None:
        self.add_path(NVME, 0, 'nvme0n1')
        disk = os.path.realpath(os.path.join(self.sysfs, 'bus/pci/devices', NVME, 'nvme/nvme0/nvme0n1'))
        disk_nodes.check_owner(self.sysfs, disk, NVME)
        error = self.assertRaises(OSError, disk_nodes.check_owner, self.sysfs, disk, SRIOV)
        self.assertEqual((errno.EINVAL, f'not a disk of {SRIOV}'), (error.errno, error.strerror))

    def test_a_disk_to_which_one_function_has_the_only_path(self) -> None:
        self.add_path(SRIOV, 1, 'nvme0c1n1')
        self.add_path(NVME, 0, 'nvme0c0n11')
        self.check(SRIOV)
        self.assertRaises(OSError, self.check, NVME)

    def test_a_disk_that_several_functions_have(self) -> None:
        self.add_path(SRIOV, 1, 'nvme0c1n1')
        self.add_path(NVME, 0, 'nvme0c0n1')
        for address in (NVME, SRIOV):
            error = self.assertRaises(OSError, self.check, address)
            self.assertEqual((errno.EBUSY, 'several controllers have it: nvme0, nvme1'), (error.errno, error.strerror))
