"""A deployment's table: what it says, and what it cannot say."""

from __future__ import annotations

import os
import pathlib

import devicetrack
from devicetrack import exception
from devicetrack.compatibility import table as tables
from devicetrack.compatibility.facts import Sort
from devicetrack.compatibility.facts import Version
from devicetrack.tests import base

MDEV = Sort('mdev', 'nvidia-35')
VF = Sort('vf', '558')
DISPLAY = frozenset({'CUSTOM_DISPLAY'})

TABLE = """\
types:
  mdev:
    nvidia-35:
      version: 2.1.0
      requires: [CUSTOM_DISPLAY]
      offers: [CUSTOM_DISPLAY]
      drivers:
        535.10: {version: 2.0.1, offers: []}
      hosts:
        compute-7: {version: 2.0.0}
  vf:
    1022:1480: {offers: [A]}
"""


class DeclaredTestCase(base.TestCase):

    scenarios = base.table(
        ('the type', MDEV, 'compute-1', None, Version(2, 1, 0), DISPLAY, DISPLAY),
        ('a driver without an entry', MDEV, 'compute-1', '535.1', Version(2, 1, 0), DISPLAY, DISPLAY),
        ('a driver', MDEV, 'compute-1', '535.10', Version(2, 0, 1), DISPLAY, frozenset()),
        ('a host', MDEV, 'compute-7', None, Version(2, 0, 0), DISPLAY, DISPLAY),
        ('a host before a driver', MDEV, 'compute-7', '535.10', Version(2, 0, 0), DISPLAY, frozenset()),
        ('a type that looks like a time, without a version', Sort('vf', '1022:1480'), 'compute-1', None, None,
         None, frozenset('A')),
        ('the type of another kind', Sort('vf', 'nvidia-35'), 'compute-1', None, None, None, None),
        names=('sort', 'host', 'driver', 'version', 'required', 'offered'))

    def test_declared(self) -> None:
        declared = tables.parse(TABLE, 'table').declared(self.sort, self.host, self.driver)
        self.assertEqual((self.version, self.required, self.offered), declared)


class RulesTestCase(base.TestCase):

    def test_the_table_of_the_documentation(self) -> None:
        path = pathlib.Path(devicetrack.__file__).parents[1] / 'doc' / 'source' / 'user' / 'compatibility.yaml'
        table = tables.read(str(path))
        self.assertEqual({(MDEV, VF)}, table.crossings)
        self.assertEqual({Sort('mdev', 'i915-GVTg_V5_4')}, table.growing)
        self.assertEqual({'mdev', 'vf'}, table.kinds)
        self.assertEqual(Version(2, 0, 1), table.declared(MDEV, 'compute-1', '535.104.06').version)
        self.assertEqual(DISPLAY, table.declared(VF, 'compute-1').required)


    def test_every_entry(self) -> None:
        rule = 'cross_kind: [{from: {kind: mdev, type: a}, to: {kind: vf, type: b}}]'
        table = tables.parse(TABLE + rule, 'table')
        mdev, driver, host, vf, source, destination = table.entries()
        self.assertEqual(('everywhere', None, None), (mdev.where, mdev.driver, mdev.host))
        self.assertEqual((MDEV, 'driver 535.10', '535.10', None, Version(2, 0, 1)),
                         (driver.sort, driver.where, driver.driver, driver.host, driver.stated.version))
        self.assertEqual(('host compute-7', None, 'compute-7'), (host.where, host.driver, host.host))
        self.assertEqual((Sort('vf', '1022:1480'), frozenset('A')), (vf.sort, vf.stated.offered))
        self.assertEqual([(Sort('mdev', 'a'), 'cross_kind to vf b'), (Sort('vf', 'b'), 'cross_kind from mdev a')],
                         [one[:2] for one in (source, destination)])


class MeaninglessTestCase(base.TestCase):

    scenarios = base.table(
        ('nothing', '', '^table = empty'),
        ('no YAML', 'types: [', '^table, line 1 = no YAML'),
        ('no text', 'types: \x00', '^table = no YAML: unacceptable character'),
        ('an impossible character', 'types:\n  mdev:\n    "\\U00110000": {}', '^table, line 3 = no YAML: .*too large'),
        ('one that C cannot hold', 'types: {mdev: {"\\UFFFFFFFF": {}}}', '^table, line 1 = no YAML: .*too large'),
        ('a version of YAML', f'%YAML 1.{"1" * 5000}\n---\ntypes: {{}}', '^table, line 1 = no YAML: .*too large'),
        ('half of a pair', 'types:\n  mdev:\n    "\\uD800": {}', r"line 3, a name in types.mdev = '\\ud800': has half"),
        ('half of a pair for a mapping', 'types: "\\uD800"', r"types = '\\ud800': must be a mapping"),
        ('two documents', 'types: {}\n---\ntypes: {}', '^table, line 2 = no YAML'),
        ('very deep', '[' * 5000, '^table = no table: .*deep'),
        ('a list', '- types', 'line 1, the table = a list: must be a mapping'),
        ('an unknown part', 'types: {}\ntipes: {}', 'line 2, the table = tipes: .*there are types, cross_kind'),
        ('a part twice', 'types: {}\ntypes: {}', 'line 2, the table = types: is there twice'),
        ('types that are none', 'types: 1', 'line 1, types = 1: must be a mapping'),
        ('a type twice', 'types:\n  mdev:\n    a: {}\n    a: {}', 'line 4, types.mdev = a: is there twice'),
        ('an unknown part of a type', 'types: {mdev: {a: {versoin: 1.0.0}}}', 'types.mdev.a = versoin: .*version'),
        ('a host in a host', 'types: {mdev: {a: {hosts: {h: {hosts: {}}}}}}', r'types.mdev.a.hosts.h = hosts: '),
        ('two numbers', 'types:\n  mdev:\n    a:\n      version: 2.1', 'line 4, types.mdev.a.version = 2.1: .*2.1.0'),
        ('no version', 'types: {mdev: {a: {version: }}}', 'types.mdev.a.version = nothing'),
        ('a version of a driver', 'types: {mdev: {a: {drivers: {1: {version: x}}}}}',
         r'types.mdev.a.drivers.1.version = x: '),
        ('one feature', 'types: {mdev: {a: {offers: A}}}', 'types.mdev.a.offers = A: must be a list'),
        ('a feature that is no trait', 'types: {mdev: {a: {offers: [A, b-c]}}}', r'types.mdev.a.offers\[1\] = b-c: '),
        ('a feature that is none', 'types: {mdev: {a: {requires: [{}]}}}', r'requires\[0\] = a mapping: '),
        ('perhaps', 'types: {mdev: {a: {aggregation_may_grow: perhaps}}}', 'may_grow = perhaps: must be true or false'),
        ('perhaps growing', 'types: {mdev: {a: {aggregation_may_grow: 2}}}', 'aggregation_may_grow = 2: '),
        ('no destination', 'cross_kind: [{from: {kind: mdev, type: a}}]', r'cross_kind\[0\] = a mapping: to is miss'),
        ('no type', 'cross_kind: [{from: {kind: mdev}, to: {}}]', r'cross_kind\[0\].from = .*type is missing'),
        ('one kind', 'cross_kind:\n  - {from: {kind: vf, type: a}, to: {kind: vf, type: b}}',
         r'line 2, cross_kind\[0\] = vf a to vf b: '),
        ('a rule twice', 'cross_kind:\n' + '  - {from: {kind: mdev, type: a}, to: {kind: vf, type: b}}\n' * 2,
         r'line 3, cross_kind\[1\] = .*is there twice'),
        ('an alias', 'types: {mdev: {a: &a {version: 1.0.0}, b: *a}}', r'types.mdev.b = an alias: write it out'),
        ('itself', 'types: &t {mdev: *t}', r'types.mdev = an alias'),
        names=('text', 'words'))

    def test_the_error_names_the_place_and_what_to_do(self) -> None:
        error = self.assertRaises(exception.InvalidConfiguration, tables.parse, self.text, 'table')
        self.assertRegex(str(error), self.words)


class UnreadableTestCase(base.TestCase):

    def test_a_file_that_is_not_there(self) -> None:
        path = os.path.join(self.temp_dir(), 'none')
        error = self.assertRaises(exception.InvalidConfiguration, tables.read, path, '--table')
        self.assertIn(f'--table = {path}: cannot be read: No such file', str(error))

    def test_a_file_that_is_too_large_is_not_looked_at(self) -> None:
        path = pathlib.Path(self.temp_dir(), 'table')
        path.write_bytes(b'#' * (1 << 20) + b'\ntypes: {}')
        error = self.assertRaises(exception.InvalidConfiguration, tables.read, str(path))
        self.assertIn(f'table = {path}: has more than 1048576 bytes', str(error))

    def test_a_file_that_is_no_text(self) -> None:
        path = pathlib.Path(self.temp_dir(), 'table')
        path.write_bytes(b'types: \xff')
        error = self.assertRaises(exception.InvalidConfiguration, tables.read, str(path))
        self.assertIn('write it in UTF-8', str(error))
