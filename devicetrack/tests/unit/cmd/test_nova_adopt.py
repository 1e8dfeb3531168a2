"""What devicetrack-nova-adopt prints, and how it ends, for what a host's guests have."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
import io
import json
import os
import pathlib
import re
import subprocess
import sys
import types
from typing import Any
from unittest import mock

from alembic import command
import fixtures
import sqlalchemy as sa

import devicetrack
from devicetrack import exception
from devicetrack.claims.host import check_unmanaged
from devicetrack.cmd import base as cmd_base
from devicetrack.cmd import nova_adopt
from devicetrack.cmd import nova_host
from devicetrack.nova import adoption
from devicetrack.nova.adoption import AdoptionLine
from devicetrack.nova.adoption import AdoptionPlan
from devicetrack.nova.adoption import HostCheck
from devicetrack.nova.adoption import Instance
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import InventoryDevice
from devicetrack.objects.values import Usage
from devicetrack.objects.values import Use
from devicetrack.store.sql import database
from devicetrack.store.sql import schema
from devicetrack.testing import fixtures as host_fixtures
from devicetrack.tests import base
from devicetrack.tests.unit.nova import fake_nova

PAGE = pathlib.Path(devicetrack.__file__).parents[1] / 'doc/source/nova/adopt.rst'
HOST = 'compute-7'
MATCHED, ODD, MOVING, OFF = (f'{number:08x}-4f1a-4c2e-9d57-{number:012x}' for number in (
    0x1b6e52c0, 0x5d0c7e11, 0x8a3f1290, 0xc47719e5))
VGPU = '4b20d080-1b54-4048-85b3-a6a62d165c01'
SMALL, NODE, CARD = 'CUSTOM_PMEM_NAMESPACE_SMALL', 'node', 'card'


def story() -> adoption.AdoptedHost:
    """The host of the page: a guest that all agree on, one that nobody can tell of, one that moves, one that is off."""
    devices = [InventoryDevice('vpmem', f'ns{number}', '', SMALL, None, None, '') for number in range(4)]
    devices.append(InventoryDevice('mdev', VGPU, 'pci_0000_84_00_0', 'VGPU', 'pci_0000_84_00_0', None, ''))
    uses = [Use('vpmem', 'ns0', '/dev/dax0.0', MATCHED, True, True, True),
            Use('mdev', VGPU, VGPU, MATCHED, True, True, True),
            Use('vpmem', 'ns2', '/dev/dax0.2', ODD, False, False, True),
            Use('vpmem', 'ns3', '/dev/dax0.3', MOVING, False, False, True)]
    moving = ('migration 7d1c9f02-33aa-4d0b-8a55-0f6b6a1f9d11 (resize, from compute-7 to compute-8) is finished: '
              'confirm or revert it')
    instances = {uuid: Instance(
        uuid, HOST, namespaces=(adoption.NamedNamespace(f'ns{number}', 'SMALL', f'/dev/dax0.{number}', NODE),),
        moving=moving if uuid == MOVING else '') for number, uuid in enumerate((MATCHED, OFF, ODD, MOVING))}
    allocations: dict[str, dict[tuple[str, str], int]] = {uuid: {(NODE, SMALL): 1} for uuid in instances}
    allocations[MATCHED][CARD, 'VGPU'] = 1
    allocations[ODD][CARD, 'VGPU'] = 1
    return adoption.AdoptedHost(
        HOST, instances, allocations, Usage(uses, frozenset((MATCHED, ODD, MOVING)), frozenset((MATCHED,))), devices,
        {'': NODE, 'pci_0000_84_00_0': CARD}, frozenset((SMALL, 'VGPU')))


class Told:
    """Stands for :class:`devicetrack.cmd.nova_host.NovaHost`, which asks a Nova that runs."""

    def __init__(self, plan: AdoptionPlan | Exception, *unmet: str) -> None:
        self._plan, self.unmet = plan, unmet
        self.applied = False

    def plan(self, upgrade: bool = False) -> AdoptionPlan:
        if isinstance(self._plan, Exception):
            raise self._plan
        return self._plan

    def apply(self, plan: AdoptionPlan) -> Iterator[AdoptionLine]:
        self.applied = True
        for line in plan.lines:
            yield line._replace(outcome=adoption.ADOPTED) if line.outcome == adoption.ADOPT else line

    def checks(self) -> Iterator[HostCheck]:
        yield HostCheck('state directory', adoption.OK, '')
        plan = self.plan()
        yield from adoption.checks_of_host(plan.obstacles, self.unmet, plan.unread)
        yield from adoption.checks_of_guests(plan)


class AdoptTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.told = Told(AdoptionPlan(adoption.plan(story(), lambda _uuid, _keys: None), [], [], 1, False))

    def run_to(self, code: int, *arguments: str) -> tuple[str, str]:
        """Run the program; returns what it printed."""
        out, err = io.StringIO(), io.StringIO()

        def begin(_parsed_args: argparse.Namespace) -> Any:
            return HOST, self.told

        with (fixtures.MonkeyPatch('sys.stdout', out), fixtures.MonkeyPatch('sys.stderr', err),
              fixtures.MonkeyPatch('devicetrack.cmd.nova_adopt.begin', begin)):
            found = nova_adopt.Program().run([*arguments])
        self.assertEqual((code, err.getvalue()), (found, err.getvalue()))
        return out.getvalue(), err.getvalue()

    def outcomes(self, code: int, *arguments: str) -> dict[str, str]:
        return {line['instance_uuid']: line['outcome']
                for line in json.loads(self.run_to(code, '-f', 'json', *arguments)[0])}

    def agreed(self) -> None:
        """Leave only what all agree on."""
        line = AdoptionLine(adoption.ADOPT, MATCHED, (DeviceKey('vpmem', 'ns0'),), 'they agree')
        self.told = Told(AdoptionPlan([line], [], [], 0, False))

    def test_it_prints_what_the_page_shows(self) -> None:
        shown = re.search(r'^    \$ devicetrack-nova-adopt(?P<arguments>[^\n]*)\n(?P<answer>(?:    [^\n]*\n)*)',
                          PAGE.read_text(), re.MULTILINE)
        assert shown is not None
        self.assertEqual(shown['answer'], ''.join(f'    {line}\n' for line in self.run_to(
            cmd_base.ATTENTION, *shown['arguments'].split())[0].splitlines()))

    def test_without_apply_nothing_is_done(self) -> None:
        self.assertEqual({MATCHED: 'adopt', ODD: 'withheld', MOVING: 'withheld', OFF: 'adopt'},
                         self.outcomes(cmd_base.ATTENTION))
        self.assertFalse(self.told.applied)
        self.assertIn('nothing was recorded', self.run_to(cmd_base.ATTENTION)[1])

    def test_apply_says_what_became_of_each(self) -> None:
        self.assertEqual({MATCHED: 'adopted', ODD: 'withheld', MOVING: 'withheld', OFF: 'adopted'},
                         self.outcomes(cmd_base.ATTENTION, '--apply'))
        self.assertTrue(self.told.applied)

    def test_when_all_can_be_told_it_ends_well(self) -> None:
        self.agreed()
        self.assertEqual({MATCHED: 'adopt'}, self.outcomes(cmd_base.OK))
        self.assertEqual({MATCHED: 'adopted'}, self.outcomes(cmd_base.OK, '--apply'))
        [line] = json.loads(self.run_to(cmd_base.OK, '-f', 'json')[0])
        self.assertEqual({'host': HOST, 'outcome': 'adopt', 'instance_uuid': MATCHED, 'devices': ['vpmem/ns0'],
                          'reason': 'they agree'}, line)

    def test_a_host_without_devices_is_said(self) -> None:
        self.told = Told(AdoptionPlan([], [], [], 0, False))
        self.assertIn('no instance has devices', self.run_to(cmd_base.OK)[1])

    def test_warnings_are_said(self) -> None:
        self.told = Told(AdoptionPlan([], ['the option is wrong'], ['domain a: no answer'], 0, True))
        said = self.run_to(cmd_base.ATTENTION)[1]
        for text in ('the service does not start: the option is wrong', 'could not be read: domain a',
                     'if it runs, stop it'):
            self.assertIn(text, said)

    def test_an_error_is_one_sentence(self) -> None:
        self.told = Told(exception.NovaUnavailable('placement', 'EndpointNotFound'))
        self.assertEqual(('', 'devicetrack-nova-adopt: placement does not answer: EndpointNotFound\n'),
                         self.run_to(cmd_base.ERROR))

    def test_a_table_without_a_package_is_a_mistake(self) -> None:
        self.assertEqual('devicetrack-nova-adopt: --write-table needs --check-package\n',
                         self.run_to(cmd_base.USAGE, '--write-table', 'a')[1])

    def test_checks(self) -> None:
        checks = json.loads(self.run_to(cmd_base.ATTENTION, '--check', '-f', 'json')[0])
        found = {line['check']: line['result'] for line in checks}
        [left] = [line['details'] for line in checks if line['check'] == 'guests']
        self.assertIn('instances that have or ask for devices that are not recorded: ', left)
        self.assertEqual({'state directory': 'ok', 'options': 'ok', 'privileges': 'ok', 'moves': 'warning',
                          'guests': 'warning', 'nova-compute': 'ok'}, found)
        self.told = Told(AdoptionPlan([AdoptionLine(adoption.ALREADY, MATCHED, (), '')], [], [], 0, False))
        self.run_to(cmd_base.OK, '--check')
        self.told = Told(AdoptionPlan([], [], [], 0, False), 'the host has no such parent')
        self.assertIn('warning options\n    the host has no such parent', self.run_to(cmd_base.ATTENTION, '--check')[0])
        self.told = Told(AdoptionPlan([], ['a'], ['b'], 0, True))
        found = {line['check']: line['result'] for line in json.loads(
            self.run_to(cmd_base.ATTENTION, '--check', '-f', 'json')[0])}
        self.assertEqual(('failure', 'failure', 'warning'),
                         (found['options'], found['privileges'], found['nova-compute']))

    def test_each_problem_has_its_own_level(self) -> None:
        self.told = Told(AdoptionPlan([], ['ns0 is missing; create it', 'ns1 is missing'], ['a', 'b'], 0, False),
                         'no such parent', 'no such type')
        found = [(line['check'], line['result'], line['details']) for line in json.loads(
            self.run_to(cmd_base.ATTENTION, '--check', '-f', 'json')[0])]
        self.assertEqual([
            ('options', 'failure', 'ns0 is missing; create it'), ('options', 'failure', 'ns1 is missing'),
            ('options', 'warning', 'no such parent'), ('options', 'warning', 'no such type'),
            ('privileges', 'failure', 'a'), ('privileges', 'failure', 'b')], found[1:7])
        self.assertIn('failure options\n    ns1 is missing\nwarning options\n    no such parent\n',
                      self.run_to(cmd_base.ATTENTION, '--check')[0])


class PackageTestCase(base.TestCase):
    """A package of Nova is read where there may be no Nova and no configuration."""

    def setUp(self) -> None:
        super().setUp()
        self.nova = self.useFixture(fake_nova.FakeNova())
        self.nova.write('../nova-34.0.9.dist-info/METADATA', 'Name: nova\nVersion: 34.0.9\n')

    def run_to(self, code: int, *arguments: str) -> tuple[str, str]:
        done = subprocess.run(
            [sys.executable, '-c', 'import sys; from devicetrack.cmd import nova; sys.exit(nova.adopt())', *arguments],
            capture_output=True, text=True, check=False)
        self.assertEqual((code, done.stderr), (done.returncode, done.stderr))
        return done.stdout, done.stderr

    def test_the_differences_of_a_package_are_named(self) -> None:
        [line] = json.loads(self.run_to(cmd_base.ATTENTION, f'--check-package={self.nova.root}', '-f', 'json')[0])
        self.assertEqual(('34.0.9', 'failure'), (line['release'], line['result']))
        self.assertIn('nova.cmd.compute:main: ', line['details'])
        self.assertIn(f'failure Nova 34.0.9 in {self.nova.root}', self.run_to(
            cmd_base.ATTENTION, '--check-package', str(self.nova.root), '--max-width', '1000')[0])

    def test_a_table_accepts_them(self) -> None:
        table = self.nova.path / 'accepted.txt'
        [line] = json.loads(self.run_to(cmd_base.OK, '--check-package', str(self.nova.root), '--write-table',
                                        str(table), '-f', 'json')[0])
        self.assertIn(f'{table} accepts: nova.cmd.compute:main: ', line['details'])
        self.assertIn('release 34.0.9\n', table.read_text())

    def test_a_table_that_cannot_be_written_is_one_sentence(self) -> None:
        said = self.run_to(cmd_base.ERROR, '--check-package', str(self.nova.root), '--write-table',
                           f'{self.nova.path}/gone/accepted.txt')[1]
        self.assertIn(f'devicetrack-nova-adopt: --write-table = {self.nova.path}/gone/accepted.txt: ', said)
        self.assertIn('its directory must be there', said)
        self.assertEqual(1, said.count('\n'))

    def test_a_refusal_says_how_a_patch_is_accepted(self) -> None:
        [line] = json.loads(self.run_to(cmd_base.ATTENTION, f'--check-package={self.nova.root}', '-f', 'json')[0])
        self.assertIn('devicetrack-nova-adopt --check-package PACKAGE --write-table FILE', line['details'])

    def test_what_cannot_be_read_is_one_sentence(self) -> None:
        said = self.run_to(cmd_base.ERROR, '--check-package', f'{self.nova.path}/gone.deb')[1]
        self.assertIn('devicetrack-nova-adopt: --check-package = ', said)
        self.assertIn('gone.deb', said)
        self.assertEqual(1, said.count('\n'))


class HostTestCase(base.TestCase):

    def test_a_store_of_an_earlier_release_is_changed_only_for_a_plan_that_is_applied(self) -> None:
        host = self.useFixture(host_fixtures.Host(name=HOST))
        host.manager.close()
        conf, path = host.configuration.conf, self.useFixture(fixtures.TempDir()).path
        os.chmod(path, 0o700)
        engine = sa.create_engine(f'sqlite:///{path}/devicetrack.sqlite')
        self.addCleanup(engine.dispose)
        with engine.begin() as connection:
            config = schema.config()
            config.attributes['connection'] = connection
            command.upgrade(config, '0012')
        os.chmod(os.path.join(path, 'devicetrack.sqlite'), 0o600)
        self.useFixture(fixtures.MonkeyPatch('devicetrack.load_driver', lambda *_arguments: host.driver))

        def node() -> None:
            raise exception.NovaUnavailable('the conductor', 'it is a test')

        record: Any = types.SimpleNamespace(host=HOST, node=node, check_release=lambda: None)
        nova = nova_host.NovaHost(conf, record, lambda: None, path)

        def revision() -> Any:
            with engine.connect() as connection:
                return connection.execute(sa.text('SELECT version_num FROM alembic_version')).scalar()

        # The service will bring it to its own schema, so nothing is wrong with it.
        self.assertEqual([('options', 'ok'), ('privileges', 'ok'), ('record', 'failure')],
                         [(one.check, one.result) for one in nova.checks()][3:])
        self.assertRaises(exception.NovaUnavailable, nova.plan)
        self.assertEqual('0012', revision())
        with mock.patch.object(database.Database, 'path', None):        # as on a server
            error = self.assertRaises(exception.SchemaMismatch, nova.plan)
            self.assertEqual('0012', error.found)
            *_before, last = nova.checks()
            self.assertEqual(('host', 'warning'), (last.check, last.result))
            self.assertIn('has schema 0012, and the service brings it to', last.details)
        self.assertRaises(exception.NovaUnavailable, nova.plan, upgrade=True)
        self.assertNotEqual('0012', revision())
        with engine.begin() as connection:
            connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
        *_before, last = nova.checks()
        self.assertEqual(('host', 'failure'), (last.check, last.result))
        self.assertIn('upgrade this one', last.details)

    def test_entries_that_the_installed_nova_ignores_are_a_warning(self) -> None:
        host = self.useFixture(host_fixtures.Host(devices=1, name=HOST))
        host.manager.close()
        host.configuration.set('pci', device_spec=['{"vendor_id": "144d", "one_time_use": "true"}'])
        self.useFixture(fixtures.MonkeyPatch('devicetrack.load_driver', lambda *_arguments: host.driver))
        self.useFixture(fixtures.MonkeyPatch('devicetrack.nova.seams.installed', lambda: '31.2.0'))

        def node() -> None:
            raise exception.NovaUnavailable('the conductor', 'it is a test')

        record: Any = types.SimpleNamespace(host=HOST, node=node, check_release=lambda: None)
        [options] = [one for one in nova_host.NovaHost(
            host.configuration.conf, record, lambda: None, host.configuration.state_path).checks()
            if one.check == 'options']
        self.assertEqual('warning', options.result)
        self.assertIn('Nova 31.2.0 ignores one_time_use', options.details)

    def test_whoever_finds_the_host_taken_learns_that_a_command_works(self) -> None:
        host = self.useFixture(host_fixtures.Host(devices=1, name=HOST))
        host.manager.close()
        self.useFixture(fixtures.MonkeyPatch('devicetrack.load_driver', lambda *_arguments: host.driver))
        record: Any = types.SimpleNamespace(
            host=HOST, node=lambda: check_unmanaged(HOST, host.configuration.state_path))
        error = self.assertRaises(exception.HostInUse, nova_host.NovaHost(
            host.configuration.conf, record, lambda: None, host.configuration.state_path).plan)
        self.assertTrue(error.by_command)
