"""What sysfs says of types, read whatever is there; and what kinds make of it."""

from __future__ import annotations

import errno
import os
import pathlib
from typing import Any

from devicetrack import exception
from devicetrack.conf import libvirt as libvirt_options
from devicetrack.objects.values import Attribute
from devicetrack.objects.values import MigrationType
from devicetrack.testing import vgpu
from devicetrack.tests import base
from devicetrack.tests import sysfs
from devicetrack.tests.unit.virt import data
from devicetrack.tests.unit.virt import mdev_node
from devicetrack.virt.libvirt import attributes
from devicetrack.virt.libvirt import connection
from devicetrack.virt.libvirt import driver as libvirt_driver
from devicetrack.virt.libvirt.kinds import vf

LISTING = 'linux-6.12-sysfs-mdev.txt'           # that of Linux 6.1 is the same
DIRECTORY = 'class/mdev_bus/mtty/mdev_supported_types/mtty-2'
NAME = 'migration_version'


class ReadTestCase(base.TestCase):
    """A tree beside which there is another; nothing is opened but below the first, and that for reading."""

    def setUp(self) -> None:
        super().setUp()
        self.outside = pathlib.Path(self.temp_dir())
        self.root = self.outside / 'sys'
        self.path = self.root / DIRECTORY / NAME
        self.path.parent.mkdir(parents=True)
        self.opened: list[str] = []
        self.bytes_read = 0
        really_open, really_read = os.open, os.read

        def opened(path: str, flags: int, *arguments: Any, **keywords: Any) -> int:
            if str(path).startswith(str(self.outside)):
                self.opened.append(str(path))
                self.assertEqual(os.O_RDONLY, flags & (os.O_ACCMODE | os.O_CREAT | os.O_TRUNC | os.O_APPEND))
            return really_open(path, flags, *arguments, **keywords)

        def was_read(fd: int, size: int) -> bytes:
            found = really_read(fd, size)
            self.bytes_read += len(found)
            return found

        self.patch(os, 'open', opened)
        self.patch(os, 'read', was_read)

    def read(self, name: str = NAME) -> Attribute:
        found = attributes.read(str(self.root), DIRECTORY, name)
        self.assertEqual([], [path for path in self.opened if not path.startswith(f'{self.root}/')])
        return found

    def problem(self, name: str = NAME) -> str:
        found = self.read(name)
        self.assertIsNone(found.text)
        problem = str(found.problem)
        self.assertTrue(problem.startswith(f'{self.root}/{DIRECTORY}/{name} '), problem)
        return problem


class TextTestCase(ReadTestCase):

    scenarios = base.table(
        ('a line', b'2.1.0\n', '2.1.0'),
        ('without its end', b'2.1.0', '2.1.0'),
        ('blanks around', b'  2.1.0 \n', '2.1.0'),
        ('blanks within', b'vendor a, 2\n', 'vendor a, 2'),
        ('a page', b'x' * 4096, 'x' * 4096),
        names=('content', 'text'))

    def test_is_read(self) -> None:
        self.path.write_bytes(self.content)
        self.assertEqual(Attribute(self.text), self.read())


class GarbageTestCase(ReadTestCase):

    scenarios = base.table(
        ('nothing', b'', 'is empty'),
        ('an empty line', b'\n', 'is empty'),
        ('blanks', b'   \n', 'is empty'),
        ('lines', b'2.1.0\n2.0.0\n', 'has 2 lines, one is expected'),
        ('a line and an empty one', b'2.1.0\n\n', 'has 2 lines'),
        ('bytes of a machine', bytes(range(256)), 'has bytes that are not printable ASCII'),
        ('a NUL at the end', b'2.1.0\0', 'not printable'),
        ('a carriage return', b'2.1.0\r\n', 'not printable'),
        ('a tab', b'2.1.0\t\n', 'not printable'),
        ('an escape', b'\x1b[2J2.1.0\n', 'not printable'),
        ('UTF-8', '2.1.0\u00a0\n'.encode(), 'not printable'),
        ('more than a page', b'x' * 4097, 'has more than 4096 bytes'),
        ('a megabyte', b'x' * (1 << 20), 'has more than 4096 bytes'),
        names=('content', 'says'))

    def test_is_a_problem_that_names_the_path_and_none_of_the_bytes(self) -> None:
        self.path.write_bytes(self.content)
        problem = self.problem()
        self.assertIn(self.says, problem)
        self.assertTrue(problem.isprintable() and problem.isascii(), problem)
        self.assertLessEqual(self.bytes_read, 4097)


class PlaceTestCase(ReadTestCase):

    def test_what_is_not_there_is_no_attribute(self) -> None:
        self.assertEqual(Attribute(), self.read())
        self.assertEqual(Attribute(), self.read('vendor/version'))
        self.path.parent.rmdir()
        self.assertEqual(Attribute(), self.read())

    def test_nor_is_a_link_that_leads_nowhere(self) -> None:
        self.path.symlink_to('gone')
        self.assertEqual(Attribute(), self.read())

    def test_a_directory(self) -> None:
        self.path.mkdir()
        self.assertIn('cannot be read: it is not a regular file', self.problem())

    def test_a_fifo_keeps_nobody_waiting(self) -> None:
        os.mkfifo(self.path)
        self.assertIn('it is not a regular file', self.problem())

    def test_a_device(self) -> None:
        self.path.symlink_to('/dev/zero')
        self.assertIn('is refused', self.problem())
        self.assertEqual([], self.opened)

    def test_a_file_in_the_place_of_a_directory(self) -> None:
        self.path.write_text('2.1.0\n')
        self.assertIn(f'cannot be read: {os.strerror(errno.ENOTDIR)}', self.problem(f'{NAME}/x'))

    def test_a_loop_of_links(self) -> None:
        self.path.symlink_to(NAME)
        self.assertIn(f'cannot be read: {os.strerror(errno.ELOOP)}', self.problem())

    def test_an_error_of_the_kernel(self) -> None:
        # The first page of a process is nobody's to read; permissions would not keep root from anything.
        found = attributes.read('/proc', 'self', 'mem')
        self.assertEqual(Attribute(problem=f'/proc/self/mem cannot be read: {os.strerror(errno.EIO)}'), found)

    def test_a_link_within_the_tree_is_followed(self) -> None:
        target = self.root / 'module/mtty/version'
        target.parent.mkdir(parents=True)
        target.write_text('0.1\n')
        self.path.symlink_to('../../../../../module/mtty/version')
        self.assertEqual(Attribute('0.1'), self.read())

    def test_so_is_one_to_the_tree(self) -> None:
        self.path.write_text('2.1.0\n')
        (self.outside / 'link').symlink_to('sys')
        self.assertEqual(Attribute('2.1.0'), attributes.read(str(self.outside / 'link'), DIRECTORY, NAME))


class LinkOutTestCase(ReadTestCase):

    scenarios = base.table(
        ('a file', NAME, '{outside}/secret', NAME),
        ('by a relative path', NAME, '../../../../../../secret', NAME),
        ('a file that is not there', NAME, '{outside}/nothing', NAME),
        ('a directory', 'vendor', '{outside}', 'vendor/secret'),
        ('a tree whose name begins alike', 'vendor', '{outside}/sys2', 'vendor/secret'),
        names=('link', 'target', 'name'))

    def test_is_refused_and_nothing_opened(self) -> None:
        for directory in (self.outside, self.outside / 'sys2'):
            directory.mkdir(exist_ok=True)
            (directory / 'secret').write_text('2.1.0\n')
        (self.path.parent / self.link).symlink_to(self.target.format(outside=self.outside))
        self.assertIn(f'is refused: it leads out of {self.root}', self.problem(self.name))
        self.assertEqual([], self.opened)


class OptionTestCase(base.TestCase):

    scenarios = [(f'{option} {name}', {'option': option, **facts})
                 for option in ('version_attribute', 'aggregation_attribute')
                 for name, facts in base.table(
                     ('absolute', '/etc/shadow', '/etc/shadow', 'neither absolute'),
                     ('out at once', '../version', '../version', 'nor with ".."'),
                     ('out later', 'a/../../b', 'a/../../b', 'nor with ".."'),
                     ('out at the end', 'a/..', 'a/..', 'nor with ".."'),
                     ('with a NUL', 'a\0b', r'a\0b', 'a path cannot contain a NUL'),
                     names=('value', 'shown', 'says'))]

    def test_a_path_that_leads_elsewhere_makes_no_driver(self) -> None:
        self.configuration.set('devicetrack_compatibility', **{self.option: self.value})
        error = self.assertRaises(exception.InvalidConfiguration, libvirt_driver.LibvirtDriver, 'host', self.conf,
                                  self.state_path)
        self.assertEqual((f'[devicetrack_compatibility] {self.option}', self.shown), (error.option, error.value))
        self.assertIn(self.says, error.reason)


class GoodOptionTestCase(base.TestCase):

    scenarios = base.table(
        ('none', ''), ('one', 'version'), ('below', 'vendor/version'), ('dots that lead nowhere', '..a/b..'),
        names=('path',))

    def test_is_taken(self) -> None:
        self.configuration.set('devicetrack_compatibility', version_attribute=self.path, aggregation_attribute='a')
        self.assertEqual((self.path, 'a'), attributes.paths(self.conf))


class ListingTestCase(base.TestCase):
    """The types of mtty, mdpy and mbochs, as a kernel has them: none says anything of migrations."""

    def test_what_is_there_can_be_read_and_what_is_not_is_none(self) -> None:
        root = self.temp_dir()
        directories = sysfs.build(root, data.read(LISTING))
        self.assertEqual({'mbochs-large', 'mbochs-medium', 'mbochs-small', 'mdpy-hd', 'mdpy-vga', 'mdpy-xga', 'mtty-1',
                          'mtty-2'}, set(map(os.path.basename, directories)))
        for directory in directories:
            self.assertEqual(Attribute('vfio-pci'), attributes.read(root, directory, 'device_api'))
            self.assertIn('cannot be read', str(attributes.read(root, directory, 'create').problem))
            self.assertIn('not a regular file', str(attributes.read(root, directory, 'devices').problem))
            for name in ('migration_version', 'aggregation'):
                self.assertEqual(Attribute(), attributes.read(root, directory, name))
        self.assertEqual(Attribute('Dual port serial'), attributes.read(root, DIRECTORY, 'name'))
        self.assertEqual(Attribute('11'), attributes.read(root, DIRECTORY, 'available_instances'))


class MdevTestCase(mdev_node.MdevTestCase):
    """The same, of which libvirt knows mtty alone."""

    def setUp(self) -> None:
        super().setUp()
        sysfs.build(self.node.sysfs, data.read(LISTING))

    def enable(self, **addresses: list[str]) -> None:
        names = {name.replace('_', '-'): of for name, of in addresses.items()}
        for name, of in names.items():
            libvirt_options.register_mdev_type(self.conf, name)
            self.configuration.set(f'mdev_{name}', device_addresses=of)
        self.kind = self.make_kind(types=list(names))

    def declare(self, parent: str, device_type: str, version: Attribute) -> None:
        device = f'class/mdev_bus/{parent}'
        sysfs.declare(self.node.sysfs, MigrationType('mdev', parent, device_type, version),
                      f'{device}/mdev_supported_types/{device_type}', device)

    def test_types_of_which_nothing_is_said(self) -> None:
        self.enable(mtty_2=['mtty_mtty'], mdpy_vga=['mdpy'], mbochs_small=[])
        self.assertEqual([MigrationType('mdev', 'mbochs', 'mbochs-small'), MigrationType('mdev', 'mdpy', 'mdpy-vga'),
                          MigrationType('mdev', 'mtty_mtty', 'mtty-2')], self.kind.migration_types())

    def test_a_type_that_a_parent_does_not_make_is_none_of_its(self) -> None:
        self.enable(mtty_2=[])
        self.assertEqual([('mtty_mtty', 'mtty-2')], [found[1:3] for found in self.kind.migration_types()])

    def test_parents_go_by_the_names_that_their_devices_have(self) -> None:
        self.enable(mtty_2=['mtty'])
        capacity, = self.kind.stock().capacities
        self.assertEqual([(capacity.parent, capacity.device_type)],
                         [found[1:3] for found in self.kind.migration_types()])

    def test_a_bad_parent_hides_no_other(self) -> None:
        self.enable(mtty_2=['mtty_mtty'], mdpy_vga=['mdpy'], mbochs_small=['mbochs'])
        self.declare('mtty', 'mtty-2', Attribute('2.1.0'))
        self.declare('mdpy', 'mdpy-vga', Attribute(problem='a directory'))
        os.symlink('/etc/hostname', os.path.join(self.node.sysfs, 'class/mdev_bus/mbochs/mdev_supported_types/'
                                                 'mbochs-small/migration_version'))
        bochs, mdpy, mtty = self.kind.migration_types()
        self.assertIn('is refused', str(bochs.version.problem))
        self.assertIn('cannot be read', str(mdpy.version.problem))
        self.assertEqual(Attribute('2.1.0'), mtty.version)

    def test_options_say_where_attributes_are_and_whether_there_are_any(self) -> None:
        self.configuration.set('devicetrack_compatibility', version_attribute='',
                               aggregation_attribute='available_instances')
        self.enable(mtty_2=['mtty_mtty'])
        self.declare('mtty', 'mtty-2', Attribute('2.1.0'))
        found, = self.kind.migration_types()
        self.assertEqual((Attribute(), Attribute('11')), (found.version, found.aggregation))

    def test_a_kernel_without_mediated_devices_says_nothing_of_what_libvirt_knows(self) -> None:
        os.rename(self.node.sysfs, self.node.sysfs + '-gone')
        self.enable(mtty_2=['mtty_mtty'])
        self.assertEqual([MigrationType('mdev', 'mtty_mtty', 'mtty-2')], self.kind.migration_types())


class VFTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.cards = self.useFixture(vgpu.Cards())
        self.functions = [function for address in ('0000:3d:00.0', '0000:41:00.0', '0000:c1:00.0')
                          for function in self.cards.add(address, 2, {'558': ('NVIDIA L40-1B', 2)})]
        libvirt_options.register_vf_type(self.conf, '558')
        self.configuration.set('vf_558', device_addresses=['0000:3d:00.0', '0000:41:00.0'])
        self.configuration.set('devicetrack_vf', sysfs_root=self.cards.root, enabled_types=['558'])
        self.kind = vf.VF(self.conf, connection.Connection('', None))

    def declare(self, said: MigrationType, address: str) -> None:
        directory = f'bus/pci/devices/{address}'
        sysfs.declare(self.cards.root, said, directory, directory)

    def test_the_cards_that_options_give_a_type(self) -> None:
        said = MigrationType('vf', 'pci_0000_3d_00_0', '558', Attribute('1.2.3'), Attribute('4'), '550.54')
        self.declare(said, '0000:3d:00.0')
        self.assertEqual([said, MigrationType('vf', 'pci_0000_41_00_0', '558')], self.kind.migration_types())
        self.assertEqual({found.parent for found in self.kind.migration_types()},
                         {device.parent for device in self.kind.stock().devices})

    def test_a_bad_card_hides_no_other(self) -> None:
        self.declare(MigrationType('vf', 'pci_0000_41_00_0', '558', Attribute('1.2.3')), '0000:41:00.0')
        pathlib.Path(self.cards.root, 'bus/pci/devices', self.functions[0], 'nvidia/current_vgpu_type').write_text('?')
        self.assertEqual([True, False, False, False],
                         [device.unhealthy is not None for device in self.kind.stock().devices])
        self.assertEqual([('pci_0000_3d_00_0', Attribute()), ('pci_0000_41_00_0', Attribute('1.2.3'))],
                         [(found.parent, found.version) for found in self.kind.migration_types()])

    def test_a_card_without_virtual_functions_has_no_devices(self) -> None:
        for function in self.functions[:2]:
            self.cards.remove(function)
        self.assertEqual(['pci_0000_41_00_0'], [found.parent for found in self.kind.migration_types()])

    def test_without_a_list_of_devices_nothing_can_be_said(self) -> None:
        os.rename(self.cards.root, self.cards.root + '-gone')
        self.addCleanup(os.rename, self.cards.root + '-gone', self.cards.root)
        self.assertRaises(exception.CommandFailed, self.kind.migration_types)
