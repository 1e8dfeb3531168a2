"""The options of device kinds: what operators write, and every mistake in it."""

from __future__ import annotations

import logging
import os
import textwrap
from typing import Any

import fixtures
from oslo_config import cfg

from devicetrack import exception
from devicetrack.conf import libvirt as libvirt_options
from devicetrack.conf import manager as manager_options
from devicetrack.conf.opts import register_options
from devicetrack.testing import fixtures as our_fixtures
from devicetrack.tests import base
from devicetrack.virt.libvirt.kinds import type_options
from devicetrack.virt.libvirt.kinds import vpmem_options

ENABLED = '[devices] enabled_mdev_types'


def mdev(case: base.TestCase, types: list[str], **of_type: dict[str, Any]) -> type_options.Options:
    case.configuration.set('devices', enabled_mdev_types=types)
    for name in types:
        libvirt_options.register_mdev_type(case.conf, name.strip() or 'x')
    for name, values in of_type.items():
        case.configuration.set(f'mdev_{name}', **values)
    return type_options.read_mdevs(case.conf)


class NamespacesTestCase(base.TestCase):
    scenarios = base.table(
        ('none', [], {}),
        ('the documented form', ['4GB:ns0', 'SMALL:ns1|ns2'], {'ns0': '4GB', 'ns1': 'SMALL', 'ns2': 'SMALL'}),
        ('blanks', [' 4GB : ns0 | ns1 '], {'ns0': '4GB', 'ns1': '4GB'}),
        ('a name with dots', ['L:namespace0.0'], {'namespace0.0': 'L'}),
        names=('value', 'labels'))

    def test_are_read(self) -> None:
        self.configuration.set('libvirt', pmem_namespaces=self.value)
        self.assertEqual(self.labels, vpmem_options.read(self.conf).labels)


class ValuesTestCase(base.TestCase):

    scenarios = base.table(
        ('no number', 'vf_558', 'max_instances', 'two'),
        ('too small', 'vf_558', 'max_instances', '-1'),
        ('no choice', 'devicetrack', 'selection_policy', 'random'),
        names=('group', 'option', 'value'))

    def test_one_that_is_none_is_refused_by_section_and_option(self) -> None:
        path = os.path.join(self.temp_dir(), 'service.conf')
        with open(path, 'w') as file:
            file.write(f'[devicetrack_vf]\nenabled_types = 558\n[{self.group}]\n{self.option} = {self.value}\n')
        conf = cfg.ConfigOpts()
        register_options(conf)
        conf(['--config-file', path])

        def read() -> None:
            manager_options.register(conf)
            type_options.read_vfs(conf)

        error = self.assertRaises(exception.InvalidConfiguration, read)
        self.assertIn(f'[{self.group}] {self.option} = {self.value}: ', str(error))
        self.assertNotIn('LocationInfo', str(error))


class ResourceClassTestCase(base.TestCase):

    def test_a_label_becomes_a_class(self) -> None:
        for label, wanted in (('4GB', '4GB'), ('small', 'SMALL'), ('4.5-gb_x', '4_5_GB_X')):
            self.assertEqual(f'CUSTOM_PMEM_NAMESPACE_{wanted}', vpmem_options.resource_class(label))


class BadNamespacesTestCase(base.TestCase):
    scenarios = base.table(
        ('empty', [''], 'colon'),
        ('no colon', ['ns0'], 'colon'),
        ('no label', [':ns0'], 'no label'),
        ('a label with a blank', ['4 GB:ns0'], 'no label'),
        ('a label of other letters', ['größe:ns0'], 'no label'),
        ('a label too long', ['x' * 240 + ':ns0'], 'too long'),
        ('no name', ['4GB:'], 'no name'),
        ('an empty name', ['4GB:ns0||ns1'], 'no name'),
        ('a name with a slash', ['4GB:../ns0'], 'no name'),
        ('a name with a colon', ['4GB:ns0:ns1'], 'no name'),
        ('a name longer than the kernel keeps', ['4GB:' + 'n' * 64], 'no name'),
        ('a name twice', ['4GB:ns0|ns0'], 'twice'),
        ('a name under two labels', ['4GB:ns0', 'SMALL:ns0'], 'under 4GB too'),
        ('a label twice', ['4GB:ns0', '4GB:ns1'], 'there twice'),
        ('two labels of one class', ['4-GB:ns0', '4.gb:ns1'], 'both counted'),
        names=('value', 'reason'))

    def test_are_refused_with_option_value_and_reason(self) -> None:
        self.configuration.set('libvirt', pmem_namespaces=self.value)
        error = self.assertRaises(exception.InvalidConfiguration, vpmem_options.read, self.conf)
        self.assertEqual('[libvirt] pmem_namespaces', error.option)
        self.assertIn(error.value, self.value)
        self.assertIn(self.reason, error.reason)


class TypesTestCase(base.TestCase):

    def types_of(self, read: type_options.Options, *names: str) -> list[str]:
        return [found.id for found in read.types_of(*names)]

    def test_no_type_makes_nothing(self) -> None:
        self.assertEqual([], self.types_of(mdev(self, []), 'mtty_mtty'))

    def test_one_type_alone_is_for_every_parent(self) -> None:
        read = mdev(self, ['nvidia-35'])
        self.assertEqual(['nvidia-35'], self.types_of(read, 'mtty_mtty'))
        self.assertEqual(['nvidia-35'], self.types_of(read, '0000:84:00.0'))
        self.assertEqual(('VGPU', None), read.types['nvidia-35'][2:])
        self.assertTrue(read.use_existing)

    def test_one_type_with_addresses_is_for_those(self) -> None:
        read = mdev(self, ['nvidia-35'], **{'nvidia-35': {'device_addresses': ['0000:84:00.0']}})
        self.assertEqual(['nvidia-35'], self.types_of(read, '0000:84:00.0'))
        self.assertEqual([], self.types_of(read, '0000:85:00.0'))

    def test_a_type_without_addresses_takes_what_no_other_names(self) -> None:
        read = mdev(self, ['a', 'b'], b={'device_addresses': ['pci_0000_84_00_0', 'mtty_mtty'],
                                         'mdev_class': 'CUSTOM_B', 'max_instances': 3})
        self.assertEqual(['b'], self.types_of(read, '0000:84:00.0'))
        self.assertEqual(['b'], self.types_of(read, 'mtty_mtty', 'mtty'))
        self.assertEqual(['a'], self.types_of(read, '0000:85:00.0'))
        self.assertEqual(('CUSTOM_B', 3), read.types['b'][2:])

    def test_what_the_service_registered_is_read(self) -> None:
        other = cfg.ConfigOpts()
        other.register_opt(cfg.ListOpt('enabled_mdev_types', default=['theirs']), group='devices')
        other.register_opt(cfg.StrOpt('mdev_class', default='CUSTOM_THEIRS'), group='mdev_theirs')
        other([], default_config_files=[], default_config_dirs=[])
        self.assertEqual('CUSTOM_THEIRS', type_options.read_mdevs(other).types['theirs'].resource_class)


class BadTypesTestCase(base.TestCase):
    scenarios = base.table(
        ('an empty type', [''], {}, ENABLED, ''),
        ('a type that is a path', ['../x'], {}, ENABLED, '../x'),
        ('a type twice', ['a', 'a'], {}, ENABLED, 'a'),
        ('two without addresses', ['a', 'b', 'c'], {'c': {'device_addresses': ['0000:84:00.0']}}, ENABLED, 'a,b,c'),
        ('a malformed address', ['a'], {'a': {'device_addresses': ['84:00.0']}},
         '[mdev_a] device_addresses', '84:00.0'),
        ('an address with a path', ['a'], {'a': {'device_addresses': ['/sys/x']}},
         '[mdev_a] device_addresses', '/sys/x'),
        ('two types on one address', ['a', 'b'],
         {'a': {'device_addresses': ['0000:84:00.0']}, 'b': {'device_addresses': ['0000:84:00.0']}},
         '[mdev_b] device_addresses', '0000:84:00.0'),
        ('two types on one device by two names', ['a', 'b'],
         {'a': {'device_addresses': ['0000:AF:00.0']}, 'b': {'device_addresses': ['pci_0000_af_00_0']}},
         '[mdev_b] device_addresses', 'pci_0000_af_00_0'),
        ('an address twice', ['a'], {'a': {'device_addresses': ['0000:84:00.0', '0000:84:00.0']}},
         '[mdev_a] device_addresses', '0000:84:00.0'),
        ('another standard class', ['a'], {'a': {'mdev_class': 'VCPU'}}, '[mdev_a] mdev_class', 'VCPU'),
        ('a class without CUSTOM_', ['a'], {'a': {'mdev_class': 'GPU'}}, '[mdev_a] mdev_class', 'GPU'),
        ('a class in small letters', ['a'], {'a': {'mdev_class': 'CUSTOM_gpu'}}, '[mdev_a] mdev_class', 'CUSTOM_gpu'),
        ('a class that is only CUSTOM_', ['a'], {'a': {'mdev_class': 'CUSTOM_'}}, '[mdev_a] mdev_class', 'CUSTOM_'),
        names=('types', 'of_type', 'option', 'value'))

    def test_are_refused_with_option_value_and_reason(self) -> None:
        error = self.assertRaises(exception.InvalidConfiguration, mdev, self, self.types, **self.of_type)
        self.assertEqual((self.option, self.value), (error.option, error.value))
        self.assertTrue(error.reason)


class NegativeMaximumTestCase(base.TestCase):

    def test_a_negative_maximum_is_refused_also_where_the_service_takes_it(self) -> None:
        conf = self.useFixture(our_fixtures.Configuration()).conf
        conf.register_opt(cfg.IntOpt('max_instances', default=-1), group='mdev_a')
        conf.set_override('enabled_mdev_types', ['a'], group='devices')
        error = self.assertRaises(exception.InvalidConfiguration, type_options.read_mdevs, conf)
        self.assertEqual(('[mdev_a] max_instances', -1), (error.option, error.value))


class UnreadGroupTestCase(base.TestCase):

    def warnings(self, text: str) -> list[str]:
        """What reading the options of a configuration file warns of."""
        file = os.path.join(self.temp_dir(), 'service.conf')
        with open(file, 'w', encoding='utf-8') as opened:
            opened.write(textwrap.dedent(text))
        conf = cfg.ConfigOpts()
        logged = self.useFixture(fixtures.FakeLogger('devicetrack', level=logging.WARNING))
        conf([], default_config_files=[file], default_config_dirs=[])
        type_options.read_mdevs(conf)
        type_options.read_vfs(conf)
        return str(logged.output).splitlines()

    def test_a_group_of_a_type_that_is_not_enabled_is_named(self) -> None:
        [misspelt, other] = self.warnings("""
            [devices]
            enabled_mdev_types = nvidia-35
            [mdev_nvidia-35]
            max_instances = 3
            [mdev_nvidia_36]
            max_instances = 4
            [vf_1155]
            max_instances = 5
        """)
        self.assertIn('[mdev_nvidia_36] of the configuration is ignored', misspelt)
        self.assertIn(f'{ENABLED} does not name nvidia_36: name it there, or remove the group', misspelt)
        self.assertIn('[vf_1155] of the configuration is ignored', other)
        self.assertIn('[devicetrack_vf] enabled_types does not name 1155', other)

    def test_a_group_that_is_read_is_not(self) -> None:
        self.assertEqual([], self.warnings("""
            [devices]
            enabled_mdev_types = nvidia-35
            [MDEV_nvidia-35]
            max_instances = 3
            [mdevctl]
            [devicetrack_mdev]
            release_wait_s = 1
        """))

    def test_without_files_there_are_none(self) -> None:
        logged = self.useFixture(fixtures.FakeLogger('devicetrack', level=logging.WARNING))
        mdev(self, ['nvidia-35'])
        self.assertEqual('', logged.output)


def vf(case: base.TestCase, types: list[str], **of_type: dict[str, Any]) -> type_options.Options:
    case.configuration.set('devicetrack_vf', enabled_types=types)
    for name in types:
        libvirt_options.register_vf_type(case.conf, name.strip() or 'x')
    for name, values in of_type.items():
        case.configuration.set(f'vf_{name}', **values)
    return type_options.read_vfs(case.conf)


class VFTypesTestCase(base.TestCase):

    def test_by_number_for_the_cards_that_they_name_and_one_for_the_others(self) -> None:
        read = vf(self, [' 558', '559 '], **{
            '559': {'device_addresses': ['0000:3D:00.0', 'pci_0000_41_00_0'], 'resource_class': 'CUSTOM_BIG',
                    'max_instances': 24}})
        self.assertEqual(['559', '559', '558'], [
            found.id for address in ('0000:3d:00.0', '0000:41:00.0', '0000:84:00.0')
            for found in read.types_of(address)])
        self.assertEqual([('VGPU', None), ('CUSTOM_BIG', 24)],
                         [(one.resource_class, one.max_instances) for one in read.types.values()])

    def test_of_two_classes_for_one_card(self) -> None:
        of_type: dict[str, Any] = {
            '558': {'device_addresses': ['0000:3d:00.0']},
            '559': {'device_addresses': ['0000:3d:00.0', '0000:41:00.0'], 'resource_class': 'CUSTOM_BIG'}}
        read = vf(self, ['558', '559'], **of_type)
        self.assertEqual([['558', '559'], ['559'], []], [
            [found.id for found in read.types_of(address)] for address in (
                '0000:3d:00.0', '0000:41:00.0', '0000:84:00.0')])

    def test_without_one_for_the_others_they_have_none(self) -> None:
        read = vf(self, ['558'], **{'558': {'device_addresses': ['0000:3d:00.0']}})
        self.assertEqual((), read.types_of('0000:84:00.0'))

    def test_what_is_not_said(self) -> None:
        read = vf(self, [])
        self.assertEqual(({}, None, False, '/sys'),
                         (read.types, read.default, read.use_existing, read.sysfs_root))


class BadVFTypesTestCase(base.TestCase):
    scenarios = base.table(
        ('an empty type', [''], {}, '[devicetrack_vf] enabled_types', '', 'not the number of a vGPU type'),
        ('a name', ['NVIDIA L40-1B'], {}, '[devicetrack_vf] enabled_types', 'NVIDIA L40-1B',
         'not the number of a vGPU type'),
        ('no type at all', ['0'], {}, '[devicetrack_vf] enabled_types', '0', 'not the number of a vGPU type'),
        ('a type twice', ['558', '558'], {}, '[devicetrack_vf] enabled_types', '558', 'twice'),
        ('two without addresses', ['558', '559'], {}, '[devicetrack_vf] enabled_types', '558,559',
         'set [vf_559] device_addresses'),
        ('a name of a virtual parent', ['558'], {'558': {'device_addresses': ['mtty_mtty']}},
         '[vf_558] device_addresses', 'mtty_mtty', 'not a PCI address'),
        ('two types on one card', ['558', '559'],
         {'558': {'device_addresses': ['0000:3d:00.0']}, '559': {'device_addresses': ['0000:3d:00.0']}},
         '[vf_559] device_addresses', '0000:3d:00.0', 'by [vf_558] too'),
        ('another standard class', ['558'], {'558': {'resource_class': 'VCPU'}}, '[vf_558] resource_class', 'VCPU',
         'neither VGPU nor CUSTOM_'),
        names=('types', 'of_type', 'option', 'value', 'reason'))

    def test_are_refused_with_option_value_and_reason(self) -> None:
        error = self.assertRaises(exception.InvalidConfiguration, vf, self, self.types, **self.of_type)
        self.assertEqual((self.option, self.value), (error.option, error.value))
        self.assertIn(self.reason, error.reason)
