"""The steps with PCI functions that need root: what they write, what it does, and what they refuse."""

from __future__ import annotations

import errno
import os
from typing import Any

from devicetrack.testing import pci
from devicetrack.tests import base
from devicetrack.virt.libvirt import pci_sysfs
from devicetrack.virt.libvirt import privileged

NVME, SRIOV, IGB = '0000:01:00.0', '0000:02:00.0', '0000:03:00.0'

# Each step, with arguments that it takes after sysfs and the address.
STEPS: tuple[tuple[Any, tuple[Any, ...]], ...] = (
    (privileged.set_driver_override, (None,)), (privileged.unbind, ()), (privileged.probe, ()),
    (privileged.reset, (None,)), (privileged.set_vfs, (1,)), (privileged.read_config, ()), (privileged.read_vpd, ()),
    (privileged.check_host_use, ()))


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
        privileged.set_driver_override(self.sysfs, address, pci.VFIO_PCI)
        privileged.unbind(self.sysfs, address)
        privileged.probe(self.sysfs, address)

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
        privileged.set_driver_override(self.sysfs, NVME, None)
        privileged.unbind(self.sysfs, NVME)
        privileged.probe(self.sysfs, NVME)
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
        privileged.unbind(self.sysfs, NVME)
        self.assertEqual([], self.host.written)

    def test_an_interface_comes_and_goes_with_its_driver(self) -> None:
        vf, = self.host.make_vfs(IGB, 1)
        self.give_to_guests(vf)
        self.assertEqual((), self.read(vf).net)
        privileged.set_driver_override(self.sysfs, vf, None)
        privileged.unbind(self.sysfs, vf)
        privileged.probe(self.sysfs, vf)
        self.assertEqual(('enp3s0v0',), self.read(vf).net)

    def test_a_function_that_a_guest_has_keeps_its_driver(self) -> None:
        self.give_to_guests(NVME)
        with self.host.opened(NVME):
            self.refused(errno.EBUSY, f'a guest has {NVME}', privileged.unbind, NVME)
        privileged.unbind(self.sysfs, NVME)
        self.assertIsNone(self.host.driver_of(NVME))

    def test_nor_does_one_of_whose_virtual_functions_a_guest_has_one(self) -> None:
        first, second = self.host.make_vfs(IGB, 2)
        self.give_to_guests(second)
        with self.host.opened(second):
            self.refused(errno.EBUSY, f'a guest has {second}', privileged.unbind, IGB)
            privileged.unbind(self.sysfs, first)
        privileged.unbind(self.sysfs, IGB)
        self.assertEqual([NVME, IGB], [function.address for function in self.tree.functions()])

    def test_nor_does_one_that_the_host_uses(self) -> None:
        self.host.mount('nvme0n1', '/srv')
        vf, = self.host.make_vfs(IGB, 1)
        self.host.route('enp3s0v0')
        for step, arguments in ((privileged.unbind, ()), (privileged.reset, (None,)), (privileged.check_host_use, ())):
            for address, reason in ((NVME, f'the host uses {NVME}: /srv is mounted from nvme0n1'),
                                    (IGB, f'the host uses {vf}: a route goes through its interface enp3s0v0')):
                self.refused(errno.EBUSY, reason, step, address, *arguments)

    def test_nor_does_any_while_nobody_knows_what_the_host_uses(self) -> None:
        os.unlink(os.path.join(self.host.proc, 'self/mountinfo'))
        self.refused(errno.EIO, 'nobody knows what the host uses', privileged.unbind, NVME)

    def test_virtual_functions_of_nvme_stay_without_the_driver_of_their_physical_one(self) -> None:
        self.host.add_nvme_with_vfs(SRIOV, 'nvme-s')
        vfs = self.host.make_vfs(SRIOV, 2)
        self.give_to_guests(SRIOV)
        self.assertEqual((tuple(vfs), None), (self.read(SRIOV).vfs, self.read(SRIOV).driver))

    def test_no_host_driver_comes_beside_a_guest_in_a_group(self) -> None:
        edu, network, other = self.host.add_shared_group('0000:05:00.0', '0000:06')
        privileged.unbind(self.sysfs, network)
        self.give_to_guests(edu)
        with self.host.opened(edu):
            self.refused(errno.EBUSY, f'a guest has {network}, or another', privileged.probe, network)
            self.give_to_guests(other)
        self.assertEqual([pci.VFIO_PCI, None, pci.VFIO_PCI], list(map(self.host.driver_of, (edu, network, other))))
        privileged.probe(self.sysfs, network)
        self.assertEqual('e1000', self.host.driver_of(network))

    def test_names_that_are_none_of_a_driver(self) -> None:
        for name in ('', '../nvme', 'nvme\nx', 'nvme ', 'a' * 65, '-x', '\0'):
            self.refused(errno.EINVAL, 'not the name of a driver', privileged.set_driver_override, NVME, name)


class ResetTestCase(StepTestCase):

    def test_by_the_methods_of_the_function(self) -> None:
        privileged.reset(self.sysfs, IGB, None)
        self.assertEqual([(IGB, 'flr pm bus')], self.host.resets)

    def test_by_one_method_and_the_others_come_back(self) -> None:
        privileged.reset(self.sysfs, IGB, 'pm')
        self.assertEqual([(IGB, 'pm')], self.host.resets)
        self.assertEqual(('flr', 'pm', 'bus'), self.read(IGB).reset_methods)

    def test_a_method_that_the_function_has_not(self) -> None:
        error = self.assertRaises(OSError, privileged.reset, self.sysfs, NVME, 'pm')
        self.assertEqual((errno.EINVAL, []), (error.errno, self.host.resets))
        for name in ('', 'flr bus', 'flr\n', '../x', 'FLR'):
            self.refused(errno.EINVAL, 'not the name of a reset method', privileged.reset, NVME, name)

    def test_the_methods_come_back_after_a_reset_that_failed(self) -> None:
        self.host.failing.add(IGB)
        error = self.assertRaises(OSError, privileged.reset, self.sysfs, IGB, 'pm')
        self.assertEqual(errno.ENOTTY, error.errno)
        self.assertEqual(('flr', 'pm', 'bus'), self.read(IGB).reset_methods)

    def test_a_function_without_any(self) -> None:
        _edu, network, _other = self.host.add_shared_group('0000:05:00.0', '0000:06')
        os.unlink(self.host.path(NVME, 'reset_method'))
        self.refused(errno.ENOENT, 'reset_method', privileged.reset, NVME, 'flr')
        self.refused(errno.ENOENT, 'No such file', privileged.reset, network, None)

    def test_not_while_a_guest_has_it(self) -> None:
        self.give_to_guests(NVME)
        with self.host.opened(NVME):
            for method in (None, 'flr'):
                self.refused(errno.EBUSY, f'a guest has {NVME}', privileged.reset, NVME, method)
        self.assertEqual([], self.host.resets)


class VirtualFunctionsTestCase(StepTestCase):

    def test_some_of_a_function_that_has_none(self) -> None:
        privileged.set_vfs(self.sysfs, IGB, 3)
        self.assertEqual(('0000:03:10.0', '0000:03:10.2', '0000:03:10.4'), self.read(IGB).vfs)

    def test_none_more_and_none_less_of_one_that_has_some(self) -> None:
        self.host.make_vfs(IGB, 2)
        for number in (1, 2, 3):
            self.refused(errno.EBUSY, 'it has virtual functions', privileged.set_vfs, IGB, number)

    def test_what_is_no_number_of_them(self) -> None:
        for number in (0, -1, 2**16, True, '3', None, 3.0):
            self.refused(errno.EINVAL, 'not a number of virtual functions', privileged.set_vfs, IGB, number)

    def test_what_the_kernel_refuses(self) -> None:
        for number, address, refusal in ((8, IGB, errno.ERANGE), (1, NVME, errno.ENOENT)):
            error = self.assertRaises(OSError, privileged.set_vfs, self.sysfs, address, number)
            self.assertEqual(refusal, error.errno)
        self.host.unbind(IGB)
        self.assertRaises(FileNotFoundError, privileged.set_vfs, self.sysfs, IGB, 1)


class ReadingTestCase(StepTestCase):

    def test_the_configuration_space(self) -> None:
        data = privileged.read_config(self.sysfs, NVME)
        self.assertEqual((b'\x36\x1b', 64), (data[:2], len(data)))

    def test_no_more_of_it_than_there_can_be(self) -> None:
        with open(self.host.path(NVME, 'config'), 'wb') as file:
            file.write(b'\xff' * 5000)
        self.assertEqual(4096, len(privileged.read_config(self.sysfs, NVME)))

    def test_the_vital_product_data_or_none(self) -> None:
        self.assertIsNone(privileged.read_vpd(self.sysfs, NVME))
        with open(self.host.path(NVME, 'vpd'), 'wb') as file:
            file.write(b'\x82\x01\x00x\x78' + bytes(40_000))
        data = privileged.read_vpd(self.sysfs, NVME)
        self.assertEqual((b'\x82\x01\x00x\x78', 32768), ((data or b'')[:5], len(data or b'')))

    def test_a_fifo_in_their_place_is_not_waited_for(self) -> None:
        os.unlink(self.host.path(NVME, 'config'))
        for name in ('config', 'vpd'):
            os.mkfifo(self.host.path(NVME, name))
        self.assertEqual((b'', b''), (privileged.read_config(self.sysfs, NVME), privileged.read_vpd(self.sysfs, NVME)))


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
        self.refused(errno.EXDEV, 'driver/unbind leads out of', privileged.unbind, NVME)

    def test_a_link_in_the_place_of_an_attribute_is_not_followed(self) -> None:
        secret = os.path.join(self.host.dev, 'secret')
        with open(secret, 'w') as file:
            file.write('tenants')
        for name, step, arguments in (('config', privileged.read_config, ()), ('vpd', privileged.read_vpd, ())):
            path = self.host.path(NVME, name)
            if os.path.lexists(path):
                os.unlink(path)
            os.symlink(secret, path)
            self.refused(errno.ELOOP, name, step, NVME, *arguments)
