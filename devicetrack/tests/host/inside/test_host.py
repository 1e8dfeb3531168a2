"""That the host is what the other tests take it for."""

from __future__ import annotations

import json
import os
import pathlib
import socket
import subprocess

import libvirt
import testtools

from devicetrack.tests.host import machine

MDEV_BUS = pathlib.Path('/sys/class/mdev_bus')


class HostTestCase(testtools.TestCase):

    def output(self, *argv: str) -> str:
        return subprocess.run(argv, check=True, capture_output=True, text=True).stdout

    def test_the_samples_of_the_kernel_have_their_types(self) -> None:
        types = {parent.name: sorted(os.listdir(parent / 'mdev_supported_types')) for parent in MDEV_BUS.iterdir()}
        self.assertEqual({
            'mtty': ['mtty-1', 'mtty-2'],
            'mdpy': ['mdpy-hd', 'mdpy-vga', 'mdpy-xga'],
            'mbochs': ['mbochs-large', 'mbochs-medium', 'mbochs-small'],
        }, types)

    def test_namespaces_have_names_and_sizes(self) -> None:
        namespaces = json.loads(self.output('ndctl', 'list', '--namespaces'))
        mib = [size - machine.OVERHEAD_MIB for size in machine.NAMESPACES] * machine.NVDIMMS
        self.assertEqual(
            {f'pmem{number}': ('devdax', size << 20) for number, size in enumerate(mib)},
            {one['name']: (one['mode'], one['size']) for one in namespaces})
        for one in namespaces:
            self.assertTrue(pathlib.Path('/dev', one['chardev']).is_char_device(), one)

    def test_libvirt_answers_and_sees_a_parent(self) -> None:
        connection = libvirt.open('qemu:///system')
        self.addCleanup(connection.close)
        self.assertEqual(socket.gethostname(), connection.getHostname())
        self.assertEqual(['mtty_mtty'], connection.listDevices('mdev_types'))

    def test_no_network_can_be_reached(self) -> None:
        routes = json.loads(self.output('ip', '-json', 'route'))
        self.assertEqual([], [route for route in routes if route['dst'] == 'default'])
