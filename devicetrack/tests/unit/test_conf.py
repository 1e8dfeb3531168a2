"""Options whose values cannot be used: refused at the start, with section, option, value and reason."""

from __future__ import annotations

import os
from typing import Any

from oslo_config import cfg

from devicetrack import conf as registry
from devicetrack import exception
from devicetrack.claims import host
from devicetrack.conf import opts
from devicetrack.placement import session
from devicetrack.tests import base


class FileTestCase(base.TestCase):

    def read(self, section: str, *lines: str) -> cfg.ConfigOpts:
        path = os.path.join(self.temp_dir(), 'service.conf')
        with open(path, 'w', encoding='utf-8') as file:
            file.write('\n'.join((f'[{section}]', *lines, '')))
        conf = cfg.ConfigOpts()
        conf([], default_config_files=[path], default_config_dirs=[])
        return conf

    def refused(self, section: str, option: str, value: str) -> exception.InvalidConfiguration:
        conf = self.read(section, f'{option} = {value}')
        error: exception.InvalidConfiguration = self.assertRaises(exception.InvalidConfiguration, register, conf)
        self.assertEqual(f'[{section}] {option}', error.option)
        self.assertTrue(error.reason)
        return error


def register(conf: cfg.ConfigOpts) -> None:
    opts.register_options(conf)
    session.is_configured(conf)


NUMBERS = [(group, option.name) for group, options in opts.list_opts() for option in options
           if isinstance(option, (cfg.IntOpt, cfg.FloatOpt)) and '_nvidia' not in group and 'vf_558' != group]
PATHS = [(group, option.name) for group, options in opts.list_opts() for option in options
         if isinstance(option, registry.PathOpt)]


class NumberTestCase(FileTestCase):

    scenarios = [('.'.join(one), {'section': one[0], 'option': one[1]}) for one in (
        *NUMBERS, ('placement', 'timeout'), ('placement', 'connect_retry_delay'))]

    def test_what_is_no_number_of_use_is_refused(self) -> None:
        for value in ('nan', 'inf', '-inf', '-1', 'many', '1e400', str(10 ** 30)):
            self.refused(self.section, self.option.replace('-', '_'), value)


class EmptyTestCase(FileTestCase):

    scenarios = [(f'{group}.{name}', {'section': group, 'option': name}) for group, name in (
        *[one for one in NUMBERS if one[1] != 'max_instances'], ('devicetrack', 'state_path'),
        ('devicetrack', 'machine_id_path'), ('devicetrack_vf', 'sysfs_root'), ('devices', 'use_existing_mdevs'),
        ('devicetrack_compatibility', 'require_version'), ('devicetrack', 'selection_policy'))]

    def test_an_option_that_needs_a_value_is_not_left_empty(self) -> None:
        self.refused(self.section, self.option, '')


class PathTestCase(FileTestCase):

    scenarios = [(f'{group}.{name}', {'section': group, 'option': name}) for group, name in PATHS]

    def test_a_path_is_absolute(self) -> None:
        for value in ('state', './state', '../state', '~/state', 'C:\\state'):
            error = self.refused(self.section, self.option, value)
            self.assertEqual((value, 'must be absolute: a service starts in any directory'),
                             (error.value, error.reason))


class EveryPathTestCase(base.TestCase):

    def test_these_are_paths(self) -> None:
        self.assertEqual({('devicetrack', 'state_path'), ('devicetrack', 'machine_id_path'),
                          ('devicetrack_pci', 'sysfs_root'), ('devicetrack_vf', 'sysfs_root'),
                          ('devicetrack_vpmem', 'directory'),
                          ('devicetrack_compatibility', 'table')}, set(PATHS))


class PlacementTestCase(FileTestCase):

    def test_what_a_plugin_cannot_read_names_section_and_option(self) -> None:
        conf = self.read('placement', 'auth_type = password', 'insecure = perhaps')
        error: Any = self.assertRaises(exception.InvalidConfiguration, session.open_adapter, conf)
        self.assertEqual('[placement] insecure', error.option)


class MachineIDTestCase(base.TestCase):

    def test_it_is_32_hex_digits(self) -> None:
        path = os.path.join(self.temp_dir(), 'machine-id')
        for text in ('', '\n', 'uninitialized', 'compute-1', '0' * 31, '0' * 33, 'g' * 32, '0' * 32 + '\n' + '1' * 32,
                     '4f1c9c7e-2d0b-4f0e-9a55-0c6d7e8f9a10', 'A' * 32):
            with open(path, 'w', encoding='ascii') as file:
                file.write(text)
            error: Any = self.assertRaises(exception.InvalidConfiguration, host.machine_digest, path)
            self.assertEqual('[devicetrack] machine_id_path', error.option)
            self.assertNotIn('compute-1', str(error))
        for unusable in (self.temp_dir(), path + '-missing', '/dev/zero'):
            self.assertRaises(exception.InvalidConfiguration, host.machine_digest, unusable)
