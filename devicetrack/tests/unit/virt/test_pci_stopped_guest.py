"""A guest that is off has a disk by the path of its block device: no process has that open."""

from __future__ import annotations

import errno
import os
import threading
from typing import Any
from unittest import mock
import uuid

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.testing import libvirt as libvirt_fixtures
from devicetrack.testing import pci_disks
from devicetrack.testing import pci_models
from devicetrack.tests import base
from devicetrack.tests.drivers import contract
from devicetrack.tests.unit.virt import pci_hosts

DENIED = PermissionError(errno.EACCES, 'Permission denied')


class StoppedGuestTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.node, self.host = self.useFixture(libvirt_fixtures.TestNode()), self.useFixture(pci_disks.DiskHost())
        self.address = self.host.add_disk('0000:01:00.0', 'S1', 1 << 20)
        self.driver = self.another_driver()
        self.connection = self.node.connect()

    def another_driver(self, **options: Any) -> Any:
        spec = {'vendor_id': '1b36', 'resource_class': 'CUSTOM_DISK'}
        return pci_hosts.driver_of(self, self.host, spec, 'zero', self.node.connect, **options)

    def link(self, path: str) -> str:
        link = os.path.join(self.temp_dir(), 'link')
        os.symlink(path, link)
        return link

    def define(self, sort: str, source: str, more: str = '', boots: str = '') -> None:
        for domain in self.connection.listAllDomains():
            domain.undefine()
        self.connection.defineXML(
            f"<domain type='test'><name>guest</name><uuid>{uuid.uuid4()}</uuid><memory>65536</memory>"
            f"<os><type>hvm</type>{boots}</os><devices><disk type='{sort}' device='disk'><source {source}/>"
            f"<target dev='vda' bus='virtio'/></disk>{more}</devices></domain>")

    def uses(self) -> list[tuple[str, str | None]]:
        return [(use.kind, use.identifier) for use in self.driver.get_usage().uses]

    def test_it_is_in_use(self) -> None:
        self.assertEqual([], self.uses())
        self.define('block', "dev='/dev/nvme0n1'")
        self.assertEqual([('pci', self.address)], self.uses())
        [device] = self.driver.get_inventory().devices
        [error] = self.driver.prove([contract.assignment(
            str(uuid.uuid4()), 'pci', self.address, device.parent, device.details)], vocabulary.WIPE).values()
        self.assertIsInstance(error, exception.DeviceInUse)

    def test_so_is_one_in_a_file_of_that_path(self) -> None:
        self.define('file', "file='/dev/ng0n1'")
        self.assertEqual([('pci', self.address)], self.uses())

    def test_so_is_one_whose_path_is_written_in_another_way(self) -> None:
        for path in ('//dev/nvme0n1', '/dev/./nvme0n1', '/tmp/../dev/nvme0n1', '/proc/self/root/dev/nvme0n1'):
            self.define('block', f"dev='{path}'")
            self.assertEqual([('pci', self.address)], self.uses(), path)
            self.define('file', f"file='{path}'")
            self.assertEqual([('pci', self.address)], self.uses(), path)

    def test_so_is_one_by_a_link_anywhere(self) -> None:
        link = self.link('/dev/nvme0n1')
        self.define('block', f"dev='{link}'")
        self.assertEqual([('pci', self.address)], self.uses())
        self.define('file', f"file='{self.link(link)}'")
        self.assertEqual([('pci', self.address)], self.uses())
        [device] = self.driver.get_inventory().devices
        [error] = self.driver.prove([contract.assignment(
            str(uuid.uuid4()), 'pci', self.address, device.parent, device.details)], vocabulary.WIPE).values()
        self.assertIsInstance(error, exception.DeviceInUse)

    def test_so_is_one_in_the_arguments_of_qemu_by_a_link(self) -> None:
        """libvirt's test driver keeps no arguments, so its answer is replaced."""
        self.define('file', "file='/tmp/none'")
        [domain] = self.connection.listAllDomains()
        text = domain.XMLDesc()
        for argument in ('driver=host_device,filename={},node-name=n',
                         '{{"driver":"host_device","filename":"{}","node-name":"n"}}'):
            own = ("<qemu:commandline xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>"
                   "<qemu:arg value='-blockdev'/>"
                   f"<qemu:arg value='{argument.format(self.link('/dev/nvme0n1'))}'/></qemu:commandline></domain>")
            with mock.patch.object(type(domain), 'XMLDesc', autospec=True,
                                   return_value=text.replace('</domain>', own)):
                self.assertEqual([('pci', self.address)], self.uses(), argument)

    def test_so_is_one_by_a_node_of_another_name(self) -> None:
        for name in ('nvme0n1', 'ng0n1'):
            self.host.make_node(name)
            node = os.path.join(self.temp_dir(), 'scratch')
            os.rename(os.path.join(self.host.dev, name), node)
            self.define('block', f"dev='{node}'")
            self.assertEqual([('pci', self.address)], self.uses(), name)
            self.define('file', f"file='{self.link(node)}'")
            self.assertEqual([('pci', self.address)], self.uses(), name)

    def test_a_character_device_that_is_the_disk(self) -> None:
        serial = f"<serial type='dev'><source path='{self.link('/dev/nvme0n1')}'/></serial>"
        self.define('file', "file='/tmp/none'", serial)
        self.assertEqual([('pci', self.address)], self.uses())

    def test_the_firmware_or_the_kernel_of_a_guest(self) -> None:
        link = self.link('/dev/nvme0n1')
        for element in ('<kernel>/dev/nvme0n1</kernel>', '<initrd>/dev/ng0n1</initrd>', f'<kernel>{link}</kernel>',
                        "<loader type='pflash' readonly='no'>/dev/nvme0n1</loader>",
                        "<loader type='pflash' readonly='yes'>/usr/share/OVMF/OVMF_CODE.fd</loader>"
                        "<nvram type='block'><source dev='/dev/nvme0n1'/></nvram>"):
            self.define('file', "file='/tmp/none'", boots=element)
            self.assertEqual([('pci', self.address)], self.uses(), element)

    def test_files_and_sockets_are_not(self) -> None:
        file = os.path.join(self.temp_dir(), 'disk')
        with open(file, 'x'):
            pass
        channel = ("<channel type='unix'><source mode='bind' path='/dev/nvme0n1.socket'/><target type='virtio'/>"
                   '</channel>')
        for path in (file, f'{file}/below', '/none/of/this', '/dev/null', self.temp_dir(), '/' + 'a' * 300):
            self.define('file', f"file='{path}'", channel)
            self.assertEqual(([], ()), (self.uses(), self.driver.get_usage().unknown), path)

    def test_a_path_that_cannot_be_followed_leaves_it_unknown(self) -> None:
        self.define('file', "file='/srv/disk'")
        with mock.patch.object(os, 'stat', autospec=True, side_effect=DENIED):
            [unknown] = self.driver.get_usage().unknown
        self.assertEqual('pci devices that domains name', unknown.what)
        self.assertIn('stat: a path of memory or of a disk of a guest: Permission denied', unknown.reason)

    def test_a_path_without_an_answer_hangs_no_look(self) -> None:
        self.define('file', "file='/srv/disk'")
        self.configuration.set('devicetrack_libvirt', call_timeout_s=1)
        driver = self.another_driver()
        answers, asked, stat = threading.Event(), [], os.stat
        self.addCleanup(answers.set)

        def hangs(path: Any, *more: Any, **named: Any) -> os.stat_result:
            if path == '/srv/disk':
                asked.append(path)
                answers.wait()
            return stat(path, *more, **named)

        with mock.patch.object(os, 'stat', hangs):
            for _ in range(2):
                [unknown] = driver.get_usage().unknown
                self.assertEqual('pci devices that domains name', unknown.what)
            self.assertEqual(1, len(asked))     # one thread that hangs is enough

    def test_each_path_is_followed_once_a_look(self) -> None:
        asked, stat = [], os.stat

        def counts(path: Any, *more: Any, **named: Any) -> os.stat_result:
            asked.append(path)
            return stat(path, *more, **named)

        file = os.path.join(self.temp_dir(), 'disk')
        with open(file, 'x'):
            pass
        for _ in range(3):
            self.define('file', f"file='{file}'")
        with mock.patch.object(os, 'stat', counts), mock.patch.object(
                os.path, 'realpath', autospec=True, side_effect=AssertionError):
            self.assertEqual([], self.uses())
        self.assertEqual(1, asked.count(file))

    def test_a_kind_that_is_not_configured_follows_none(self) -> None:
        driver = self.another_driver(functions='')
        self.define('file', "file='/srv/disk'")
        with mock.patch.object(os, 'stat', autospec=True, side_effect=DENIED):
            self.assertEqual((), driver.get_usage().unknown)

    def test_a_bridge_in_front_of_a_disk_of_others_is_not(self) -> None:
        bridge = self.host.add('0000:02:00.0', pci_models.BRIDGE)
        self.host.add('0000:03:00.0', pci_models.NVME._replace(product='8086:0a54'), behind=bridge)
        self.define('block', "dev='/dev/nvme1n1'")
        self.assertEqual([], self.uses())

    def test_another_path_is_none_of_them(self) -> None:
        self.define('block', "dev='/dev/sda'")
        self.assertEqual([], self.uses())
