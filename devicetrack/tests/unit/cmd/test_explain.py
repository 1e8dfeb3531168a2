"""``explain`` by an instance, and by the extra specs of a flavor in a file."""

from __future__ import annotations

import json
import pathlib

from devicetrack import exception
from devicetrack.cmd import base as cmd_base
from devicetrack.testing import fixtures
from devicetrack.testing.fixtures import Instance
from devicetrack.tests.unit.cmd.test_repair import ANOTHER
from devicetrack.tests.unit.cmd.test_repair import RepairCommandTestCase


class InstanceTestCase(RepairCommandTestCase):

    def test_what_its_refused_claim_wanted(self) -> None:
        refused = Instance()
        owner = self.host.spawn(pmem=1)
        self.assertRaises(exception.NoFit, self.host.claim, refused, pmem=2)
        self.host.audit()
        answer = self.run_to(cmd_base.ATTENTION, 'explain', '--instance', refused.uuid)
        self.assertIn(f'{fixtures.PMEM}=2 (NoFit: 2 {fixtures.PMEM} wanted', answer.err)
        [row] = answer.data
        self.assertEqual((fixtures.PMEM, 2, 1, False), tuple(row[name] for name in (
            'resource_class', 'wanted', 'free', 'fits')))
        self.host.delete(owner)
        self.assertTrue(self.run_to(cmd_base.OK, 'explain', '--instance', refused.uuid).data[0]['fits'])

    def test_the_devices_that_it_has(self) -> None:
        instance = self.host.spawn(pmem=1, vgpu=2)
        found = self.run_to(cmd_base.ATTENTION, 'explain', '--instance', instance.uuid).data
        self.assertEqual({fixtures.PMEM: (1, True), 'VGPU': (2, False)}, {
            row['resource_class']: (row['wanted'], row['fits']) for row in found})

    def test_only_what_does_not_fit_has_a_reason(self) -> None:
        self.host.spawn(pmem=1)
        self.assertEqual([(1, None), (2, '1 held by 1 instance')], [
            (row['wanted'], row['why']) for amount, code in ((1, cmd_base.OK), (2, cmd_base.ATTENTION))
            for row in self.run_to(code, 'explain', '--resource', f'{fixtures.PMEM}={amount}').data])

    def test_more_than_the_host_has(self) -> None:
        answer = self.program.run('explain', '--resource', f'{fixtures.PMEM}=5')
        self.assertEqual(cmd_base.ATTENTION, answer.code)
        self.assertIn('that exist are free, and there are no more', answer.column('why'))

    def test_one_that_the_store_does_not_know(self) -> None:
        answer = self.program.run('explain', '--instance', ANOTHER)
        self.assertEqual(cmd_base.ERROR, answer.code)
        self.assertIn('no claim of it was refused', answer.err)


class FileTestCase(RepairCommandTestCase):

    def test_a_flavor_as_openstack_prints_it(self) -> None:
        path = pathlib.Path(self.host.configuration.state_path, 'flavor.json')
        for data in ({'hw:pmem': '4GB', 'resources:VGPU': '1'},
                     {'name': 'm1', 'properties': {'hw:pmem': '4GB', 'resources:VGPU': '1'}}):
            path.write_text(json.dumps(data), encoding='utf-8')
            found = self.run_to(cmd_base.OK, 'explain', '--extra-specs', str(path)).data
            self.assertEqual({fixtures.PMEM, 'VGPU'}, {row['resource_class'] for row in found})

    def test_what_is_none_is_refused(self) -> None:
        path = pathlib.Path(self.host.configuration.state_path, 'flavor.json')
        for text in ('[]', '{"a": 1}', '{', '{}'):
            path.write_text(text, encoding='utf-8')
            self.assertEqual(cmd_base.USAGE, self.program.run('explain', '--extra-specs', str(path)).code)
        self.assertEqual(cmd_base.USAGE, self.program.run('explain', '--extra-specs', f'{path}.gone').code)
