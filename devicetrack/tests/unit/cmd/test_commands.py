"""What each command says, changes and answers with."""

from __future__ import annotations

import os
import sqlite3

import fixtures as base_fixtures
import sqlalchemy as sa

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.claims import report
from devicetrack.cmd import assignment
from devicetrack.cmd import audit
from devicetrack.cmd import base as cmd_base
from devicetrack.engine import reconcile
from devicetrack.objects import DeviceRequest
from devicetrack.objects.pci_alias import PCIAlias
from devicetrack.objects.pci_alias import PCIChoice
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Missing
from devicetrack.store import api as store_api
from devicetrack.store.sql import models
from devicetrack.testing import fixtures
from devicetrack.tests import base
from devicetrack.tests.unit.cmd import program
from devicetrack.virt import fake

D0 = DeviceKey(fake.VPMEM, 'd0')


class CommandTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.host = self.useFixture(fixtures.Host(devices=2, parents={'gpu': 1}, name='compute-7'))
        self.program = self.useFixture(program.Program(self.host.configuration, self.host.machine))


class InventoryListTestCase(CommandTestCase):

    def test_lists_devices_with_their_owners(self) -> None:
        instance = self.host.spawn(pmem=1)
        found = {(one['identifier'], one['status'], one['instance_uuid'])
                 for one in self.program.ask('inventory', 'list')}
        self.assertEqual({('d0', 'held', instance.uuid), ('d1', 'free', None), (None, 'creatable', None)}, found)

    def test_a_part_that_cannot_be_read_needs_attention(self) -> None:
        self.host.machine.unknown_kinds[fake.VPMEM] = 'ndctl failed'
        answer = self.program.run('inventory', 'list', '-f', 'json')
        self.assertEqual(cmd_base.ATTENTION, answer.code)
        self.assertEqual([(fake.VPMEM, 'ndctl failed')],
                         [(one['kind'], one['reason']) for one in answer.data if one['status'] == report.UNKNOWN])

    def test_a_device_that_an_option_names_in_vain_needs_attention(self) -> None:
        self.host.machine.missing = (Missing(DeviceKey(fake.VPMEM, 'd9'), '[x] y', 'this host has d0'),)
        answer = self.program.run('inventory', 'list', '-f', 'json')
        self.assertEqual((cmd_base.ATTENTION, [('d9', 'missing', 0, '[x] y names it: this host has d0')]), (
            answer.code, [(one['identifier'], one['status'], one['amount'], one['reason']) for one in answer.data
                          if one['reason']]))
        answer = self.program.run('audit', '-f', 'json')
        [finding] = answer.data
        self.assertEqual((cmd_base.ATTENTION, 'd9', reconcile.GONE, '[x] y names it: this host has d0'),
                         (answer.code, finding['device'], finding['kind'], finding['detail']))

    def test_a_device_that_an_option_names_and_somebody_owns_is_listed_once(self) -> None:
        self.host.spawn(pmem=1)
        self.host.machine.remove(D0)
        self.host.machine.missing = (Missing(D0, '[x] y', 'this host has d1'),)
        self.assertEqual(['held'], [one['status'] for one in self.program.ask('inventory', 'list')
                                    if one['identifier'] == 'd0'])
        answer = self.program.run('audit', '-f', 'json')
        self.assertEqual(1, sum(finding['kind'] == reconcile.GONE for finding in answer.data))

    def test_a_cordoned_device_that_an_option_names_and_that_is_away_is_withheld(self) -> None:
        self.host.manager.cordon(*D0)
        self.host.machine.remove(D0)
        self.host.machine.missing = (Missing(D0, '[x] y', 'this host has d1'),)
        self.assertEqual([('withheld', 0, 'cordoned, gone from the host')],
                         [(one['status'], one['amount'], one['reason']) for one in self.program.ask('inventory', 'list')
                          if one['identifier'] == 'd0'])

    def test_a_parent_that_can_make_no_more_is_not_creatable(self) -> None:
        self.host.spawn(vgpu=1)
        self.assertEqual({'held', 'free'}, {one['status'] for one in self.program.ask('inventory', 'list')})


class AssignmentListTestCase(CommandTestCase):

    def setUp(self) -> None:
        super().setUp()
        self.first, self.second = self.host.spawn(pmem=1), self.host.spawn(pmem=1, vgpu=1)

    def identifiers(self, *arguments: str) -> set[str]:
        return {one['identifier'] for one in self.program.ask('assignment', 'list', *arguments)}

    def test_lists_everything_or_what_matches(self) -> None:
        self.assertEqual(3, len(self.identifiers()))
        self.assertEqual({'d0'}, self.identifiers('--instance', self.first.uuid))
        self.assertEqual({'d1'}, self.identifiers('--device', 'd1'))
        self.assertEqual({'d1'}, self.identifiers('--device', 'vpmem/d1', '--host', 'compute-7'))
        self.assertEqual(set(), self.identifiers('--device', 'mdev/d1'))

    def test_gives_every_field_of_the_row(self) -> None:
        one = self.program.ask('assignment', 'list', '--device', 'd0')[0]
        self.assertEqual(list(assignment.COLUMNS), list(one))
        self.assertEqual(('compute-7', 'active', 'current', 0), (one['host'], one['state'], one['role'],
                                                                 one['position']))
        self.assertEqual('4GB', one['details']['label'])

    def test_asks_the_store_and_not_the_host(self) -> None:
        self.host.machine.calls.clear()
        self.program.ask('assignment', 'list')
        self.assertEqual({}, self.host.machine.calls)


    def test_waits_for_no_writer(self) -> None:
        writer = sqlite3.connect(os.path.join(self.host.configuration.state_path, 'devicetrack.sqlite'))
        self.addCleanup(writer.close)
        writer.execute('BEGIN IMMEDIATE')
        self.assertEqual(3, len(self.identifiers()))
        self.assertEqual([], self.program.ask('audit'))


class AssignmentShowTestCase(CommandTestCase):

    def test_shows_one(self) -> None:
        instance = self.host.spawn(pmem=1)
        for name in ('d0', 'vpmem/d0'):
            self.assertEqual(instance.uuid, self.program.ask('assignment', 'show', name)['instance_uuid'])

    def test_one_that_nobody_holds_is_an_error(self) -> None:
        answer = self.program.run('assignment', 'show', 'd0', '--host', 'compute-7')
        self.assertEqual(cmd_base.ERROR, answer.code)
        self.assertIn('device d0 is not assigned on host compute-7', answer.err)

    def test_of_devices_on_several_hosts_one_must_be_named(self) -> None:
        instance = self.host.spawn(pmem=1)
        store = self.host.store.store
        store.add_host(store_api.Host('7c9e6f2e-3a58-4a0e-8a53-0b8a3f8f0001', 'compute-8', 'another machine'))
        record = self.host.records()[0]
        store.write(store_api.Changes(insert=(record._replace(host_uuid='7c9e6f2e-3a58-4a0e-8a53-0b8a3f8f0001'),)))
        answer = self.program.run('assignment', 'show', 'd0')
        self.assertEqual(cmd_base.USAGE, answer.code)
        self.assertIn('vpmem/d0 on compute-8', answer.err)
        shown = self.program.ask('assignment', 'show', 'd0', '--host', 'compute-7')
        self.assertEqual(instance.uuid, shown['instance_uuid'])


class ExplainTestCase(CommandTestCase):

    def test_what_fits(self) -> None:
        parts = self.program.ask('explain', '--resource', f'{fixtures.PMEM}=2', '--resource', 'VGPU=1@gpu')
        self.assertEqual([(2, True), (1, True)], [(part['wanted'], part['fits']) for part in parts])
        self.assertEqual([], self.host.records())

    def test_what_does_not_fit_says_why_and_needs_attention(self) -> None:
        self.host.spawn(pmem=2)
        answer = self.program.run('explain', '--extra-spec', 'hw:pmem=4GB', '--extra-spec', 'resources:VCPU=2',
                                  '-f', 'json')
        self.assertEqual(cmd_base.ATTENTION, answer.code)
        self.assertEqual([(fixtures.PMEM, 2, 1)],
                         [(part['resource_class'], part['held'], part['instances']) for part in answer.data])
        self.assertIn('2 held by 1 instance', answer.data[0]['explanation'])

    def test_an_alias_of_the_options_is_asked_for_by_its_class(self) -> None:
        self.host.machine.aliases = {'tape': PCIAlias('tape', (PCIChoice(fixtures.PMEM),), vocabulary.LEGACY)}
        wanted = ('explain', '-f', 'json', '--extra-spec')
        parts = self.program.run(*wanted, 'pci_passthrough:alias=tape:2').data
        self.assertEqual([(fixtures.PMEM, 2, True)],
                         [(part['resource_class'], part['wanted'], part['fits']) for part in parts])
        self.assertIn('this host has tape', self.program.run(*wanted, 'pci_passthrough:alias=disc:2').err)

    def test_nodes_are_required_unless_said_otherwise(self) -> None:
        wanted = ('explain', '--resource', f'{fixtures.PMEM}=1', '--numa-node', '1', '-f', 'json')
        self.assertEqual(cmd_base.ATTENTION, self.program.run(*wanted).code)
        self.assertEqual(cmd_base.OK, self.program.run(*wanted, '--numa-policy', 'preferred').code)

    def test_too_much_together_is_told(self) -> None:
        answer = self.program.run('explain', '--resource', 'VGPU=1@gpu', '--resource', 'VGPU=1')
        self.assertEqual(cmd_base.ATTENTION, answer.code)
        self.assertIn('each part would fit alone', answer.err)

    def test_what_could_not_be_read_is_told(self) -> None:
        self.host.machine.unknown_kinds[fake.VPMEM] = 'ndctl failed'
        answer = self.program.run('explain', '--extra-spec', 'hw:pmem=4GB', '-f', 'json')
        self.assertIn('could not be read, and counts as none: vpmem: ndctl failed', answer.err)
        self.assertEqual(f'1 {fixtures.PMEM} wanted, none is known, and a part of this host could not be read',
                         answer.data[0]['explanation'])

    def test_who_has_what_excludes_a_device_is_told(self) -> None:
        for number, mode in enumerate((vocabulary.WHOLE, *[vocabulary.PART] * 12)):
            self.host.machine.add_namespace(f'f{number}', 'card', parent=None, exclusions=(('card', mode),))
        self.host.audit()
        instance = self.host.spawn(request=DeviceRequest.of(('CUSTOM_PMEM_NAMESPACE_CARD', 1)))
        owned, = self.host.owners()
        self.assertEqual('f0', owned)
        answer = self.program.run('explain', '--resource', 'CUSTOM_PMEM_NAMESPACE_CARD=1', '-f', 'json')
        self.assertIn(f'vpmem/f1 is excluded: instance {instance.uuid} has vpmem/f0 of card', answer.err)
        self.assertIn('2 more are excluded', answer.err)
        self.assertEqual({'excluded': 12}, answer.data[0]['withheld'])
        lines = {line['identifier']: line for line in self.program.ask('inventory', 'list')}
        self.assertEqual(('withheld', f'excluded; instance {instance.uuid} has vpmem/f0 of card'),
                         (lines['f1']['status'], lines['f1']['reason']))
        [withheld] = [one for one in self.program.ask('withheld', 'list') if one['name'] == 'f1']
        self.assertEqual(('excluded', f'instance {instance.uuid} has vpmem/f0 of card'),
                         (withheld['reason'], withheld['detail']))

    def test_a_provider_that_nobody_knows_means_nothing(self) -> None:
        answer = self.program.run('explain', '--resource', 'VGPU=1@nowhere')
        self.assertEqual(cmd_base.USAGE, answer.code)
        self.assertIn("'nowhere': no parent device of this host has this name; it has gpu", answer.err)
        answer = self.program.run('explain', '--resource', 'VGPU=1@c5d2ac06-4b3f-4c2f-8a8f-1f6c35c7a001')
        self.assertEqual(cmd_base.USAGE, answer.code)
        self.assertIn('no provider of this host', answer.err)
        self.assertIn('placement may have others: name the parent device', answer.err)

    def test_a_provider_that_could_not_be_read_may_be_there(self) -> None:
        self.host.machine.unknown_kinds[fake.MDEV] = 'libvirt failed'
        answer = self.program.run('explain', '--resource', 'VGPU=1@gpu')
        self.assertIn('it has none (a part of them could not be read)', answer.err)

    def test_a_part_from_one_provider_names_its_parent(self) -> None:
        parts = self.program.ask('explain', '--resource', f'{fixtures.PMEM}=1', '--resource', 'VGPU=1@gpu')
        self.assertEqual([None, 'gpu'], [part['provider'] for part in parts])


class AuditTestCase(CommandTestCase):

    def test_a_clean_host(self) -> None:
        self.host.spawn(pmem=1)
        self.assertEqual([], self.program.ask('audit'))
        answer = self.program.run('audit')
        self.assertEqual((cmd_base.OK, '', 'devicetrack-manage: host compute-7: no differences\n'),
                         (answer.code, answer.out.strip(), answer.err))

    def test_a_finding_has_all_its_fields_and_needs_attention(self) -> None:
        instance = self.host.spawn(pmem=1)
        self.host.machine.change(D0, unhealthy='read-only')
        answer = self.program.run('audit', '-f', 'json')
        self.assertEqual(cmd_base.ATTENTION, answer.code)
        [finding] = answer.data
        self.assertEqual(list(audit.Findings.columns), list(finding))
        self.assertEqual(
            ('compute-7', reconcile.UNHEALTHY, 'vpmem', 'd0', instance.uuid, []),
            tuple(finding[name] for name in ('host', 'kind', 'device_kind', 'device', 'recorded_owner', 'users')))

    def test_a_note_needs_no_attention(self) -> None:
        instance = self.host.spawn(pmem=1)
        self.host.machine.before('unclaim', exception.HypervisorUnreachable('fake', 'restarting'), times=1)
        self.assertRaises(exception.HypervisorUnreachable, self.host.manager.release, self.host.context, instance)
        self.host.machine.delete_guest(instance.uuid)
        answer = self.program.run('audit', '-f', 'json')
        self.assertEqual([reconcile.NOTE], [finding['severity'] for finding in answer.data])
        self.assertEqual(cmd_base.OK, answer.code)


class DbTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.program = self.useFixture(program.Program(self.configuration))
        self.file = os.path.join(self.state_path, 'devicetrack.sqlite')

    def test_sync_makes_a_store_for_its_user_alone_and_check_agrees(self) -> None:
        self.assertEqual(cmd_base.ATTENTION, self.program.run('db', 'check').code)
        self.assertEqual(models.REVISION, self.program.ask('db', 'sync')['schema'])
        self.assertEqual(0o600, os.stat(self.file).st_mode & 0o777)
        self.assertEqual(True, self.program.ask('db', 'check')['usable'])

    def test_sync_of_a_store_that_is_current_changes_nothing(self) -> None:
        self.program.ask('db', 'sync')
        self.assertEqual(models.REVISION, self.program.ask('db', 'sync')['schema'])

    def test_version_of_no_store_and_of_one(self) -> None:
        self.assertIsNone(self.program.ask('db', 'version')['schema'])
        self.assertFalse(os.path.exists(self.file))
        self.program.ask('db', 'sync')
        self.assertEqual(models.REVISION, self.program.ask('db', 'version')['schema'])

    def test_a_store_of_a_newer_release(self) -> None:
        self._set_revision('9999')
        answer = self.program.run('db', 'check', '-f', 'json')
        self.assertEqual((cmd_base.ATTENTION, False, '9999'),
                         (answer.code, answer.data['usable'], answer.data['schema']))
        for command in (('audit',), ('db', 'sync')):
            answer = self.program.run(*command)
            self.assertEqual(cmd_base.ERROR, answer.code)
            self.assertIn('newer release', answer.err)

    def test_a_store_of_an_older_release(self) -> None:
        self.program.ask('db', 'sync')
        present = models.REVISION
        self.useFixture(base_fixtures.MonkeyPatch('devicetrack.store.sql.models.REVISION', '9999'))
        answer = self.program.run('db', 'check', '-f', 'json')
        self.assertEqual((cmd_base.ATTENTION, "run devicetrack-manage db sync with the service's --config-file"),
                         (answer.code, answer.data['remedy']))
        self.assertIn(f'schema {present}, this release needs 9999', self.program.run('assignment', 'list').err)

    def test_old_details_are_converted_in_portions(self) -> None:
        host = self.useFixture(fixtures.Host(devices=2, configuration=self.configuration))
        host.spawn(pmem=2)
        # As a later release has it, with one minor version more.
        self.useFixture(base_fixtures.MonkeyPatch('devicetrack.objects.details.VPMEMDetails.VERSION', '1.1'))
        first = self.program.run('db', 'online-data-migrations', '--max-count', '1', '-f', 'json')
        self.assertEqual((cmd_base.ATTENTION, 1, 1), (first.code, first.data['converted'], first.data['left']))
        second = self.program.run('db', 'online-data-migrations', '-f', 'json')
        self.assertEqual((cmd_base.OK, 1, 0), (second.code, second.data['converted'], second.data['left']))

    def test_details_of_a_newer_release_need_attention(self) -> None:
        host = self.useFixture(fixtures.Host(devices=1, configuration=self.configuration))
        host.spawn(pmem=1)
        self._write_version(host, '1.999')
        answer = self.program.run('db', 'online-data-migrations', '-f', 'json')
        self.assertEqual((cmd_base.ATTENTION, ['vpmem/d0']), (answer.code, answer.data['unreadable']))

    def _set_revision(self, revision: str) -> None:
        self.program.ask('db', 'sync')
        engine = sa.create_engine(f'sqlite:///{self.file}')
        with engine.begin() as connection:
            connection.execute(sa.text('UPDATE alembic_version SET version_num = :revision'), {'revision': revision})
        engine.dispose()

    def _write_version(self, host: fixtures.Host, version: str) -> None:
        """Give stored details another version."""
        host.store.store.write(store_api.Changes(update=tuple(
            store_api.Update(record, record._replace(generation=record.generation + 1, details=record.details.replace(
                '"versioned_object.version":"1.0"', f'"versioned_object.version":"{version}"')))
            for record in host.records())))
