"""What ndctl prints, captured and made up."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
import testtools

from devicetrack import exception
from devicetrack.tests import base
from devicetrack.tests.unit.virt import data
from devicetrack.virt.libvirt import ndctl

ONE: dict[str, Any] = {'dev': 'namespace0.0', 'mode': 'devdax', 'map': 'dev', 'size': 130023424, 'align': 2097152,
                       'uuid': '233f0db2-8d42-452a-a439-27c1c88e7c9f', 'chardev': 'dax0.0', 'name': 'ns0'}


def changed(**facts: Any) -> dict[str, Any]:
    return {key: value for key, value in {**ONE, **facts}.items() if value is not None}


class CapturedTestCase(base.TestCase):
    scenarios = base.table(
        *((f'ndctl {version} list -{options}', f'ndctl-{version}-list-{options}.json', options, uuid)
          for version, uuid in zip(data.NDCTLS, ('822f99e8-515f-4bf1-98b3-cd11cf70c217',
                                                 '233f0db2-8d42-452a-a439-27c1c88e7c9f'), strict=True)
          for options in ('N', 'NDRX', 'NDX', 'NRi')),
        names=('document', 'options', 'uuid'))

    def test_all_forms_say_the_same(self) -> None:
        found = {listed.name: listed for listed in ndctl.parse(data.read(self.document)) if listed.name}
        self.assertEqual([f'ns{region}_{number}' for region in (0, 1) for number in (0, 1, 2)], sorted(found))
        region = 'region0' if 'R' in self.options else None
        self.assertEqual(ndctl.Namespace('ns0_0', self.uuid, '/dev/dax0.0', 130023424, 2097152, region, None, True),
                         found['ns0_0'])


class CapturedOddTestCase(base.TestCase):
    scenarios = base.table(*((version, version) for version in data.NDCTLS), names=('version',))

    def test_raw_namespaces_have_neither_name_nor_uuid(self) -> None:
        found = ndctl.parse(data.read(f'ndctl-{self.version}-list-NDRX-before-labels.json'))
        self.assertEqual([('', '', '', 'its mode is raw, not devdax')] * 2,
                         [(listed.name, listed.uuid, listed.path, listed.problem) for listed in found])

    def test_sizes_for_people_are_problems(self) -> None:
        found = ndctl.parse(data.read(f'ndctl-{self.version}-list-NDRXu.json'))
        self.assertEqual(6, len(found))
        for listed in found:
            self.assertEqual((None, 0), (listed.uuid, listed.size_bytes))
            self.assertIn('not a number of bytes', str(listed.problem))


class ErrorTestCase(base.TestCase):
    scenarios = [(text, {'text': text}) for text in (
        '{"error": "no access"}', '{"error": "no access", "namespaces": []}', '{"dimms": []}', '7', '"none"')]

    def test_an_object_without_namespaces_is_not_an_empty_list(self) -> None:
        self.assertRaises(exception.InvalidDocument, ndctl.parse, self.text)


class CapturedInFullTestCase(base.TestCase):
    """As it is asked for."""

    scenarios = base.table(('81', '81'), names=('version',))

    def test_disabled_ones_and_other_modes_are_listed_with_what_is_wrong(self) -> None:
        found = ndctl.parse(data.read(f'ndctl-{self.version}-list-NRXcv.json'))
        self.assertEqual({'pmem0': 'it is disabled', 'pmem1': None, 'pmem2': 'its character device is disabled',
                          'pmem3': None, 'pmem4': None, 'pmem5': 'its mode is fsdax, not devdax', 'small': None},
                         {listed.name: listed.problem for listed in found})
        self.assertEqual({('region0', 0), ('region1', 0)}, {(listed.region, listed.numa_node) for listed in found})
        self.assertEqual([4096], [listed.align_bytes for listed in found if listed.name == 'small'])
        # While one is disabled ndctl prints the UUID and the size of the whole in place of its own.
        self.assertEqual({'pmem0': (None, 0)}, {listed.name: (listed.uuid, listed.size_bytes) for listed in found
                                                if listed.uuid is None or not listed.size_bytes})


class MadeUpTestCase(base.TestCase):

    def test_no_namespaces_are_no_output(self) -> None:
        for text in ('', '\n', '[]', '{}', '{"dimms": [], "regions": []}'):
            self.assertEqual([], ndctl.parse(text))

    def test_one_alone_is_no_list(self) -> None:
        self.assertEqual(ndctl.parse(json.dumps([ONE])), ndctl.parse(json.dumps(ONE)))

    def test_nodes(self) -> None:
        for namespace, region, wanted in ((None, None, None), (1, None, 1), (None, 0, 0), (1, 0, 1), (-1, 0, None)):
            text = json.dumps({'regions': [{'dev': 'region3', 'numa_node': region,
                                            'namespaces': [changed(numa_node=namespace)]}]})
            found, = ndctl.parse(text)
            self.assertEqual(('region3', wanted), (found.region, found.numa_node))

    def test_one_of_an_unknown_mode_has_no_size(self) -> None:
        found, = ndctl.parse(json.dumps([changed(mode=None, size=None)]))
        self.assertEqual((0, 'its mode is unknown, not devdax'), (found.size_bytes, found.problem))

    def test_which_one_it_is_can_be_read_only_while_it_is_enabled_in_its_mode(self) -> None:
        for facts, readable in (({'mode': 'raw'}, False), ({'mode': None}, False), ({'state': 'disabled'}, False),
                                ({'mode': 'raw', 'state': 'disabled'}, False), ({'mode': 'fsdax'}, True),
                                ({'state': 'disabled', 'raw_uuid': ONE['uuid']}, True)):
            found, = ndctl.parse(json.dumps([changed(**facts)]))
            self.assertEqual((ONE['uuid'], ONE['size']) if readable else (None, 0), (found.uuid, found.size_bytes))
            self.assertIsNotNone(found.problem)

    def test_namespaces_that_no_guest_can_have(self) -> None:
        for facts, problem in (({'mode': 'fsdax'}, 'fsdax'), ({'mode': None}, 'unknown'),
                               ({'state': 'disabled'}, 'disabled'), ({'chardev': None}, 'no character device'),
                               ({'badblock_count': 3}, 'bad blocks'),
                               ({'daxregion': {'devices': [{'chardev': 'dax0.0', 'mode': 'system-ram'}]}}, 'as memory'),
                               ({'daxregion': {'devices': [{'chardev': 'dax0.0', 'mode': 'devdax', 'state': 'disabled'}
                                                           ]}}, 'device is disabled'),
                               ({'daxregion': {'devices': [{'chardev': 'dax0.0'}, {'chardev': 'dax0.1'}]}}, 'divided')):
            found, = ndctl.parse(json.dumps([changed(**facts)]))
            self.assertIn(problem, str(found.problem))


class BadOutputTestCase(base.TestCase):
    scenarios = base.table(
        ('garbage', 'Segmentation fault', 'document'),
        ('truncated', json.dumps([ONE])[:-3], 'document'),
        ('very deep', '[' * 100000, 'document'),
        ('a number', '7', 'document'),
        ('a list of numbers', '[7]', 'document[0]'),
        ('regions that are none', '{"regions": 7}', 'regions'),
        ('namespaces that are none', '{"regions": [{"namespaces": 7}]}', 'regions[0].namespaces'),
        ('a name that is none', json.dumps([changed(name=7)]), 'document[0].name'),
        ('a size in words without a name', json.dumps([changed(size='1 GiB', name=None)]), 'document[0].size'),
        ('huge', ' ' * (ndctl.MAX_LENGTH + 1), 'length'),
        names=('text', 'where'))

    def test_it_is_refused(self) -> None:
        error = self.assertRaises(exception.InvalidDocument, ndctl.parse, self.text)
        self.assertEqual((ndctl.DOCUMENT, self.where), (error.document, error.where))


class OneBadTestCase(base.TestCase):
    scenarios = base.table(
        ('a size in words', changed(size='1 GiB'), 'size'), ('a size that is true', changed(size=True), 'size'),
        ('a size below zero', changed(size=-1), 'size'), ('a UUID that is none', changed(uuid='x'), 'uuid'),
        ('a UUID that is a number', changed(uuid=7), 'uuid'), ('a name without a UUID', changed(uuid=None), 'uuid'),
        ('a device out of place', changed(chardev='../sda'), 'chardev'),
        ('a region of dax devices that is none', changed(daxregion=7), 'daxregion'),
        names=('bad', 'where'))

    def test_it_costs_itself_alone(self) -> None:
        good = changed(name='ns1', chardev='dax0.1')
        bad, other = ndctl.parse(json.dumps({'regions': [
            {'dev': 'region0', 'namespaces': [self.bad, good]}]}))
        self.assertEqual(('ns0', None, '', 0), (bad.name, bad.uuid, bad.path, bad.size_bytes))
        self.assertIn(f'ndctl list cannot be understood at regions[0][0].{self.where}', str(bad.problem))
        self.assertEqual([other], ndctl.parse(json.dumps({'regions': [{'dev': 'region0', 'namespaces': [good]}]})))

    def test_so_does_a_region(self) -> None:
        bad, good = ndctl.parse(json.dumps({'regions': [
            {'dev': '../region0', 'namespaces': [ONE]}, {'dev': 'region1', 'namespaces': [changed(name='ns1')]}]}))
        self.assertIn('not the name of a region', str(bad.problem))
        self.assertIsNone(good.problem)


JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
                        st.sampled_from(('regions', 'namespaces', 'daxregion', 'devices', *ONE)), inner, max_size=4))


class PropertiesTestCase(testtools.TestCase):

    @given(JSON)
    def test_whatever_is_json_is_read_or_refused(self, value: Any) -> None:
        try:
            ndctl.parse(json.dumps(value))
        except exception.InvalidDocument:
            pass
