"""What libvirt's refusals about node devices mean, in the words that virsh was told; and what the kernel says."""

from __future__ import annotations

import errno
import os
import re
from typing import Any

import libvirt

from devicetrack.tests import base
from devicetrack.tests.unit.virt import data
from devicetrack.tests.unit.virt.test_driver import libvirt_error
from devicetrack.virt.libvirt import connection
from devicetrack.virt.libvirt import mdev_sysfs
from devicetrack.virt.libvirt import privileged
from devicetrack.virt.libvirt import root
from devicetrack.virt.libvirt.connection import Meaning

UUID = '83b8f4f2-509f-382f-3c1e-e6bfe0fa1001'

# What libvirt puts before the text of an error, by its number.
CODES = {
    'internal error: ': libvirt.VIR_ERR_INTERNAL_ERROR,
    'unsupported configuration: ': libvirt.VIR_ERR_CONFIG_UNSUPPORTED,
    'Node device not found: ': libvirt.VIR_ERR_NO_NODE_DEVICE,
}


class Raw:
    def isAlive(self) -> bool:
        return True


class RefusalTestCase(base.TestCase):
    scenarios = base.table(
        *((f'{case}, libvirt {version}', f'libvirt-{version}-virsh-nodedev-{case}.txt', meaning, text)
          for version in data.LIBVIRTS
          for case, meaning, text in (
              ('create-until-full', Meaning.FULL, 'No available instances of mtty-2 on mtty'),
              ('create-again', Meaning.EXISTS, 'Device already exists'),
              ('destroy-in-use', Meaning.IN_USE, 'device in use'),
              ('lookup-gone', Meaning.NO_SUCH_DEVICE, 'no node device with matching name'),
              ('create-unknown-type', Meaning.OTHER, 'Parent mtty does not support mdev type mtty-9'),
              ('create-unknown-parent', Meaning.OTHER, "invalid parent device 'nosuch'"))),
        names=('document', 'meaning', 'text'))

    def test_it_means_what_it_says(self) -> None:
        # virsh says in a first line what it wanted, and in a second one what it was told.
        text = re.findall('^error: (.*)$', data.read(self.document), re.MULTILINE)[-1]
        code, = (code for prefix, code in CODES.items() if text.startswith(prefix))
        hypervisor = connection.Connection(connect=Raw)
        hypervisor.raw()

        def refuse() -> None:
            raise libvirt_error(code, text, libvirt.VIR_FROM_NODEDEV)

        refused = self.assertRaises(connection.Refused, hypervisor.call, 'virNodeDevice…', refuse)
        self.assertEqual(self.meaning, refused.meaning)
        self.assertIn(self.text, refused.reason)


class UntoldTestCase(base.TestCase):

    def test_a_refusal_whose_words_were_lost(self) -> None:
        hypervisor = connection.Connection(connect=Raw)
        hypervisor.raw()

        def refuse() -> None:
            # As libvirt's Python does when its library has no error for this thread.
            libvirt.virResetLastError()
            raise libvirt.libvirtError('virNodeDeviceDestroy() failed')

        refused = self.assertRaises(connection.Refused, hypervisor.call, 'virNodeDeviceDestroy', refuse)
        self.assertEqual((Meaning.UNTOLD, Meaning.UNTOLD.value), (refused.meaning, refused.reason))


class KernelTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.kernel = mdev_sysfs.Kernel(self.temp_dir())
        os.makedirs(self.kernel.directory)

    def add(self) -> None:
        path = os.path.join(self.temp_dir(), 'mtty', UUID)
        os.makedirs(path)
        os.symlink('../mdev_supported_types/mtty-2', os.path.join(path, 'mdev_type'))
        os.symlink('../../../../../kernel/iommu_groups/3', os.path.join(path, 'iommu_group'))
        os.symlink(path, os.path.join(self.kernel.directory, UUID))

    def test_a_device_that_is_not_there_is_not_open(self) -> None:
        self.assertEqual(([], False, None, False), (self.kernel.uuids(), self.kernel.has(UUID), self.kernel.read(UUID),
                                                    self.kernel.is_open(UUID)))

    def test_one_that_is_there(self) -> None:
        self.add()
        self.patch(privileged, 'is_vfio_group_open', lambda group: group == 3)
        self.assertEqual(
            ([UUID], True, mdev_sysfs.Made('mtty-2', 'mtty', 3), True),
            (self.kernel.uuids(), self.kernel.has(UUID), self.kernel.read(UUID), self.kernel.is_open(UUID)))

    def test_a_kernel_without_any_answers_nothing(self) -> None:
        self.assertTrue(self.kernel.answers)
        os.rmdir(self.kernel.directory)
        self.assertEqual((False, []), (self.kernel.answers, self.kernel.uuids()))

    def test_without_its_group_nobody_says(self) -> None:
        self.add()
        self.patch(root, 'VFIO', self.temp_dir())
        self.patch(os, 'geteuid', lambda: 0)
        self.assertRaises(FileNotFoundError, self.kernel.is_open, UUID)
        os.unlink(os.path.join(self.kernel.directory, UUID, 'iommu_group'))
        self.assertRaises(OSError, self.kernel.is_open, UUID)


class GroupTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.patch(root, 'VFIO', self.temp_dir())
        self.patch(os, 'geteuid', lambda: 0)
        with open(os.path.join(root.VFIO, '3'), 'w'):
            pass

    def test_who_can_open_it_is_alone(self) -> None:
        self.assertFalse(privileged.is_vfio_group_open(3))

    def test_a_busy_one_is_open(self) -> None:
        real = os.open

        def opened(path: str, flags: int) -> int:
            if path == os.path.join(root.VFIO, '3'):
                raise OSError(errno.EBUSY, 'Device or resource busy')
            return real(path, flags)

        self.patch(os, 'open', opened)
        self.assertTrue(privileged.is_vfio_group_open(3))

    def test_a_number_and_nothing_else(self) -> None:
        name: Any = '../3'
        self.assertRaises(OSError, privileged.is_vfio_group_open, name)
