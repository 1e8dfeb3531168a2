"""What each command says, changes and answers with."""

from __future__ import annotations

import glob
import io
import os
import re
import sqlite3

import fixtures as base_fixtures
from oslo_config import cfg
import sqlalchemy as sa

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.claims import report
from devicetrack.cmd import audit
from devicetrack.cmd import base as cmd_base
from devicetrack.cmd import manage
from devicetrack.cmd import records
from devicetrack.engine import findings
from devicetrack.objects import DeviceRequest
from devicetrack.objects.pci_alias import PCIAlias
from devicetrack.objects.pci_alias import PCIChoice
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Missing
from devicetrack.store import api as store_api
from devicetrack.store.sql import models
from devicetrack.testing import fake
from devicetrack.testing import fixtures
from devicetrack.tests import base
from devicetrack.tests.unit.cmd import program

D0 = DeviceKey(fake.VPMEM, 'd0')


class CommandTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.host = self.useFixture(fixtures.Host(devices=2, parents={'gpu': 1}, name='compute-7'))
        self.program = self.useFixture(program.Program(self.host.configuration, self.host.machine))


class DeviceListTestCase(CommandTestCase):

    def test_lists_devices_with_their_owners(self) -> None:
        instance = self.host.spawn(pmem=1)
        found = {(one['identifier'], one['status'], one['instance_uuid'])
                 for one in self.program.ask('device', 'list')}
        self.assertEqual({('d0', 'held', instance.uuid), ('d1', 'free', None), (None, 'creatable', None)}, found)

    def test_a_part_that_cannot_be_read_needs_attention(self) -> None:
        self.host.machine.unknown_kinds[fake.VPMEM] = 'ndctl failed'
        answer = self.program.run('device', 'list', '-f', 'json')
        self.assertEqual(cmd_base.ATTENTION, answer.code)
        self.assertEqual([(fake.VPMEM, 'ndctl failed')],
                         [(one['kind'], one['reasons'][0]['reason']) for one in answer.data
                          if one['status'] == report.UNKNOWN])

    def test_a_device_that_an_option_names_in_vain_needs_attention(self) -> None:
        self.host.machine.missing = (Missing(DeviceKey(fake.VPMEM, 'd9'), '[x] y', 'this host has d0'),)
        answer = self.program.run('device', 'list', '-f', 'json')
        self.assertEqual((cmd_base.ATTENTION, [('d9', 'missing', 0, '[x] y names it', 'this host has d0')]), (
            answer.code, [(one['identifier'], one['status'], one['amount'], reason['reason'], reason['detail'])
                          for one in answer.data for reason in one['reasons']]))
        answer = self.program.run('audit', '-f', 'json')
        [finding] = answer.data
        self.assertEqual((cmd_base.ATTENTION, 'vpmem/d9', findings.GONE, '[x] y names it: this host has d0'),
                         (answer.code, finding['device'], finding['finding'], finding['detail']))

    def test_a_device_that_an_option_names_and_somebody_owns_is_listed_once(self) -> None:
        self.host.spawn(pmem=1)
        self.host.machine.remove(D0)
        self.host.machine.missing = (Missing(D0, '[x] y', 'this host has d1'),)
        self.assertEqual(['held'], [one['status'] for one in self.program.ask('device', 'list')
                                    if one['identifier'] == 'd0'])
        answer = self.program.run('audit', '-f', 'json')
        self.assertEqual(1, sum(finding['finding'] == findings.GONE for finding in answer.data))

    def test_a_device_of_an_instance_that_no_option_names_needs_attention(self) -> None:
        self.host.spawn(pmem=1)
        self.host.machine.remove(D0)
        self.host.machine.unnamed = {D0}
        answer = self.program.run('device', 'list', '-f', 'json')
        [line] = [one for one in answer.data if one['identifier'] == 'd0']
        self.assertEqual((cmd_base.ATTENTION, 'held', [('gone from the host', 'no option names it')]), (
            answer.code, line['status'], [(reason['reason'], reason['detail']) for reason in line['reasons']]))
        self.assertIn('gone from the host: no option names it',
                      self.program.run('device', 'list', '-c', 'reasons', '-f', 'value').out)

    def test_a_cordoned_device_that_an_option_names_and_that_is_away_is_withheld(self) -> None:
        self.host.manager.operator.cordon(*D0)
        self.host.machine.remove(D0)
        self.host.machine.missing = (Missing(D0, '[x] y', 'this host has d1'),)
        self.assertEqual([('withheld', 0, ['cordoned', 'gone from the host'])],
                         [(one['status'], one['amount'], [reason['reason'] for reason in one['reasons']])
                          for one in self.program.ask('device', 'list') if one['identifier'] == 'd0'])

    def test_a_parent_that_can_make_no_more_is_not_creatable(self) -> None:
        self.host.spawn(vgpu=1)
        self.assertEqual({'held', 'free'}, {one['status'] for one in self.program.ask('device', 'list')})


    def test_a_cordoned_parent_has_a_line_also_when_it_can_make_no_more_or_is_away(self) -> None:
        self.host.spawn(vgpu=1)
        for parent, reasons in (('gpu', ['cordoned']), ('card', ['cordoned', 'gone from the host'])):
            if parent == 'card':
                self.host.machine.add_parent(parent)
                self.host.audit()
            self.host.manager.operator.cordon('mdev', parent, parent=True)
            self.host.machine.parents.pop('card', None)
            lines = [one for one in self.program.ask('device', 'list', '--parent', parent) if one['device'] is None]
            self.assertEqual([('withheld', 0, reasons)], [
                (one['status'], one['amount'], [reason['reason'] for reason in one['reasons']]) for one in lines])

    def test_lists_what_is_asked_for(self) -> None:
        self.host.spawn(pmem=1)
        for arguments, names in ((('--status', 'free'), {'vpmem/d1'}), (('--parent', 'gpu'), {None}),
                                 (('--parent', 'mdev/gpu'), {None}),
                                 (('--status', 'free', '--status', 'held'), {'vpmem/d0', 'vpmem/d1'}),
                                 (('--withheld',), set())):
            self.assertEqual(names, {one['device'] for one in self.program.ask('device', 'list', *arguments)})
        answer = self.program.run('device', 'list', '--withheld')
        self.assertEqual(('', 'devicetrack-manage: nothing is withheld\n'), (answer.out, answer.err))

    def test_a_parent_that_this_host_does_not_have_is_an_error(self) -> None:
        answer = self.program.run('device', 'list', '--parent', 'gpv')
        self.assertEqual((cmd_base.USAGE, ''), (answer.code, answer.out))
        self.assertIn("'gpv': no device of this host has this parent; the parents are mdev/gpu", answer.err)
        self.assertNotIn('could not be read', answer.err)
        self.host.machine.unknown_kinds[fake.MDEV] = 'libvirt failed'
        self.assertIn('the parents are vpmem/region0 (a part of this host could not be read)',
                      self.program.run('device', 'list', '--parent', 'gpu').err)

    def test_devices_come_as_people_count(self) -> None:
        for name in ('d10', 'd9'):
            self.host.machine.add_namespace(name)
        self.assertEqual(['d0', 'd1', 'd9', 'd10'], [one['identifier'] for one in self.program.ask('device', 'list')
                                                     if one['kind'] == 'vpmem'])


class InstanceListTestCase(CommandTestCase):

    def setUp(self) -> None:
        super().setUp()
        self.first, self.second = self.host.spawn(pmem=1), self.host.spawn(pmem=1, vgpu=1)

    def instances(self, *arguments: str) -> set[str]:
        return {one['instance_uuid'] for one in self.program.ask('instance', 'list', *arguments)}

    def test_lists_everything_or_what_matches(self) -> None:
        first, second = self.first.uuid, self.second.uuid
        self.assertEqual({first, second}, self.instances())
        self.assertEqual({second}, self.instances('--device', 'd1'))
        self.assertEqual({second}, self.instances('--device', 'vpmem/d1', '--host', 'compute-7'))
        self.assertEqual(set(), self.instances('--device', 'mdev/d1'))
        self.assertIn('no instance has mdev/d1', self.program.run('instance', 'list', '--device', 'mdev/d1').err)

    def test_gives_all_devices_with_every_field_of_their_rows(self) -> None:
        [one] = self.program.ask('instance', 'list', '--device', 'd1')
        self.assertEqual(('compute-7', ['active'], ['current'], []), (one['host'], one['states'], one['roles'],
                                                                      one['migration_uuids']))
        self.assertEqual(['vpmem', 'mdev'], [device['kind'] for device in one['devices']])
        device = one['devices'][0]
        self.assertEqual(list(records.FIELDS), list(device))
        self.assertEqual(('vpmem/d1', 0, '4GB'), (device['device'], device['position'], device['details']['label']))
        self.assertRegex(device['created_at'], r'^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$')

    def test_people_get_the_number_of_devices_and_with_long_their_names(self) -> None:
        self.assertIn('1 vpmem, 1 mdev', self.program.run('instance', 'list').out)
        self.assertIn(' vpmem/d1 ', self.program.run('instance', 'list', '--long').out)

    def test_asks_the_store_and_not_the_host(self) -> None:
        self.host.machine.calls.clear()
        self.program.ask('instance', 'list')
        self.program.ask('instance', 'show', self.first.uuid)
        self.program.ask('host', 'list')
        self.assertEqual({}, self.host.machine.calls)

    def test_waits_for_no_writer(self) -> None:
        writer = sqlite3.connect(os.path.join(self.host.configuration.state_path, 'devicetrack.sqlite'))
        self.addCleanup(writer.close)
        writer.execute('BEGIN IMMEDIATE')
        self.assertEqual(2, len(self.instances()))
        self.assertEqual([], self.program.ask('audit'))

    def test_shows_one_and_refuses_one_that_nobody_knows(self) -> None:
        shown = self.program.ask('instance', 'show', self.second.uuid)
        self.assertEqual((['compute-7'], ['d1', self.host.mdevs()[0]]),
                         (shown['hosts'], [device['identifier'] for device in shown['devices']]))
        answer = self.program.run('instance', 'show', '0c3f9a52-0b1a-4f0e-9d0c-3a7f8a1e2b01')
        self.assertEqual((cmd_base.ERROR, ''), (answer.code, answer.out))
        self.assertIn('the store has no instance 0c3f9a52-0b1a-4f0e-9d0c-3a7f8a1e2b01', answer.err)


class HostTestCase(CommandTestCase):

    def test_lists_hosts_as_people_count(self) -> None:
        store = self.host.store.store
        for number in (10, 8):
            store.add_host(store_api.Host(f'7c9e6f2e-3a58-4a0e-8a53-0b8a3f8f00{number:02}', f'compute-{number}',
                                          'another'))
        self.host.spawn(pmem=1)
        self.host.manager.operator.cordon('vpmem', 'd1')
        listed = self.program.ask('host', 'list')
        self.assertEqual([('compute-7', True, 1, 1, 1), ('compute-8', False, 0, 0, 0), ('compute-10', False, 0, 0, 0)],
                         [(one['host'], one['here'], one['instances'], one['held'], one['withheld_entries'])
                          for one in listed])
        sorted_down = self.program.run('host', 'list', '-f', 'value', '-c', 'host', '--sort-column', 'host',
                                       '--sort-descending')
        self.assertEqual(['compute-10', 'compute-8', 'compute-7'], sorted_down.out.split())

    def test_shows_what_this_machine_has_by_class(self) -> None:
        self.host.spawn(pmem=1)
        shown = self.program.ask('host', 'show')
        self.assertEqual(('compute-7', True, []), (shown['host'], shown['here'], shown['unknown']))
        self.assertEqual({('VGPU', 0, 0, 1), (fixtures.PMEM, 1, 1, 0)}, {
            (one['resource_class'], one['free'], one['held'], one['creatable']) for one in shown['classes']})

    def test_withheld_are_devices_and_entries_are_what_the_store_has(self) -> None:
        self.host.machine.add_parent('card', units=4)
        self.host.audit()
        self.host.spawn(pmem=1)
        self.host.manager.operator.cordon('vpmem', 'd0')
        self.host.manager.operator.cordon('mdev', 'card', parent=True)
        shown = self.program.ask('host', 'show')
        self.assertEqual((2, {'VGPU': 4, fixtures.PMEM: 0}), (
            shown['withheld_entries'], {one['resource_class']: one['withheld'] for one in shown['classes']}))
        self.assertIn('4 withheld', self.program.run('host', 'map').out)

    def test_a_terminal_that_has_only_ascii_gets_the_rest_escaped(self) -> None:
        self.host.manager.operator.cordon('vpmem', 'd0', reason='dañado')
        for words in (('host', 'map'), ('host', 'show'), ('device', 'list', '--withheld'), ('device', 'show', 'd0'),
                      ('device', 'history', 'd0'), ('device', 'list', '--withheld', '-f', 'json')):
            raw, errors = io.BytesIO(), io.BytesIO()
            out, err = io.TextIOWrapper(raw, encoding='ascii'), io.TextIOWrapper(errors, encoding='ascii')
            self.addCleanup(out.close)
            self.addCleanup(err.close)
            code = manage.Manage(cfg.ConfigOpts(), out, err).run(['--config-file', self.program.config_file, *words])
            out.flush()
            err.flush()
            self.assertEqual((0, b''), (code, errors.getvalue()))
            raw.getvalue().decode('ascii')
            if words != ('host', 'show'):
                self.assertRegex(raw.getvalue(), rb'da\\(xf1|u00f1)ado')

    def test_of_another_machine_it_says_what_it_cannot_know(self) -> None:
        self.host.store.store.add_host(store_api.Host('7c9e6f2e-3a58-4a0e-8a53-0b8a3f8f0008', 'compute-8', 'another'))
        shown = self.program.ask('host', 'show', 'compute-8')
        self.assertEqual((False, None, 1), (shown['here'], shown['classes'], len(shown['unknown'])))
        self.assertIn('compute-8', shown['unknown'][0])
        self.assertEqual(cmd_base.ERROR, self.program.run('host', 'show', 'compute-9').code)

    def test_what_cannot_be_read_needs_attention(self) -> None:
        self.host.machine.unknown_kinds[fake.VPMEM] = 'ndctl failed'
        answer = self.program.run('host', 'show', '-f', 'json')
        self.assertEqual((cmd_base.ATTENTION, ['vpmem: ndctl failed']), (answer.code, answer.data['unknown']))

    def ghost(self) -> store_api.Host:
        """Another name of this machine, from a rename that was taken back."""
        ghost = self.host.store.hosts()[0]._replace(uuid='7c9e6f2e-3a58-4a0e-8a53-0b8a3f8f0001', name='compute-8')
        self.host.store.add_host(ghost)
        return ghost

    def names(self) -> list[str]:
        return [host.name for host in self.host.store.hosts()]

    def of_nova(self, name: str) -> str:
        return program.write_configuration(self.temp_dir(), self.host.conf, '[DEFAULT]', f'host = {name}')

    def test_novas_configuration_says_which_host_this_machine_is(self) -> None:
        self.ghost()
        self.assertIn('host forget', self.program.run('device', 'list').err)
        for name in ('compute-7', 'compute-8'):
            self.assertEqual({name}, {one['host'] for one in self.program.ask(
                'device', 'list', config_file=self.of_nova(name))})
        answer = self.program.run('device', 'list', config_file=self.of_nova('compute-9'))
        self.assertEqual(cmd_base.ERROR, answer.code)
        self.assertIn('the store has no host compute-9; its hosts: compute-7, compute-8', answer.err)

    def test_a_process_that_has_imported_nova_runs_commands(self) -> None:
        conf = cfg.ConfigOpts()
        conf.register_opt(cfg.HostDomainOpt('host', default='of-this-machine'))
        out = io.StringIO()
        arguments = ['--config-file', self.of_nova('compute-7'), 'host', 'show']
        self.assertEqual(0, manage.Manage(conf, out, out).run(arguments), out.getvalue())
        self.assertIn('compute-7', out.getvalue())

    def test_a_name_that_this_machine_had_is_forgotten_while_its_manager_runs(self) -> None:
        ghost = self.ghost()
        self.assertEqual({'outcome': 'forgotten', 'host': 'compute-8', 'host_uuid': ghost.uuid}, self.program.ask(
            'host', 'forget', 'compute-8', config_file=self.of_nova('compute-7')))
        self.assertEqual(['compute-7'], self.names())
        self.host.spawn(pmem=1)

    def test_a_host_whose_manager_may_run_is_not_forgotten(self) -> None:
        self.ghost()
        for name, config_file in (('compute-7', self.of_nova('compute-7')), ('compute-8', None), ('compute-7', None)):
            answer = self.program.run('host', 'forget', name, config_file=config_file)
            self.assertEqual(cmd_base.ERROR, answer.code)
            self.assertIn(f'it manages host {name}', answer.err)
        self.host.manager.close()
        self.program.ask('host', 'forget', 'compute-8')
        self.program.ask('host', 'forget', 'compute-7')
        self.assertEqual([], self.names())

    def test_a_host_with_devices_is_not_forgotten(self) -> None:
        self.host.spawn(pmem=1)
        self.host.manager.close()
        answer = self.program.run('host', 'forget', 'compute-7')
        self.assertEqual(cmd_base.ERROR, answer.code)
        self.assertIn('still has devices in the store (1)', answer.err)
        self.assertEqual(['compute-7'], self.names())

    def test_an_unknown_host_is_not_forgotten(self) -> None:
        answer = self.program.run('host', 'forget', 'compute-9')
        self.assertEqual(cmd_base.ERROR, answer.code)
        self.assertIn('the store has no host compute-9: there is nothing to forget', answer.err)
        self.assertNotIn('start', answer.err)


class DeviceShowTestCase(CommandTestCase):

    def test_shows_one(self) -> None:
        instance = self.host.spawn(pmem=1)
        for name in ('d0', 'vpmem/d0'):
            shown = self.program.ask('device', 'show', name)
            self.assertEqual((instance.uuid, 'held', 'active', []), tuple(
                shown[field] for field in ('instance_uuid', 'status', 'state', 'reasons')))

    def test_shows_one_that_nobody_holds_and_why_it_is_withheld(self) -> None:
        self.host.machine.change(D0, unhealthy='read-only')
        shown = self.program.ask('device', 'show', 'd0')
        self.assertEqual(('withheld', None, [('unhealthy', 'read-only', 'host')], '4GB'), (
            shown['status'], shown['instance_uuid'],
            [(one['reason'], one['detail'], one['by']) for one in shown['reasons']], shown['details']['label']))
        self.assertIn('unhealthy: read-only (by host)', self.program.run('device', 'show', 'd0').out)

    def test_one_that_nobody_knows_is_an_error(self) -> None:
        answer = self.program.run('device', 'show', 'd9', '--host', 'compute-7')
        self.assertEqual(cmd_base.ERROR, answer.code)
        self.assertIn('the store has no device d9 on host compute-7', answer.err)

    def test_without_the_host_it_shows_what_the_store_has(self) -> None:
        instance = self.host.spawn(pmem=1)
        self.host.machine.before('get_inventory', exception.HypervisorUnreachable('fake', 'restarting'), times=1)
        shown = self.program.ask('device', 'show', 'd0')
        self.assertEqual((None, instance.uuid, True), (shown['status'], shown['instance_uuid'],
                                                       'restarting' in shown['unknown']))

    def test_of_devices_on_several_hosts_one_must_be_named(self) -> None:
        instance = self.host.spawn(pmem=1)
        store = self.host.store.store
        store.add_host(store_api.Host('7c9e6f2e-3a58-4a0e-8a53-0b8a3f8f0001', 'compute-8', 'another machine'))
        record = self.host.records()[0]
        store.write(store_api.Changes(insert=(record._replace(host_uuid='7c9e6f2e-3a58-4a0e-8a53-0b8a3f8f0001'),)))
        answer = self.program.run('device', 'show', 'd0')
        self.assertEqual(cmd_base.USAGE, answer.code)
        self.assertIn('vpmem/d0 on compute-8', answer.err)
        shown = self.program.ask('device', 'show', 'd0', '--host', 'compute-7')
        self.assertEqual((instance.uuid, 'held'), (shown['instance_uuid'], shown['status']))
        shown = self.program.ask('device', 'show', 'd0', '--host', 'compute-8')
        self.assertEqual(('compute-8', None, 'active'), (shown['host'], shown['status'], shown['state']))
        self.assertIn('compute-8', shown['unknown'])


class FirstStartTestCase(base.TestCase):
    """A store without a host: the manager has never run, or the store was lost."""

    def setUp(self) -> None:
        super().setUp()
        self.host = self.useFixture(fixtures.Host(devices=1, parents={'gpu': 2}, name='compute-7'))
        self.host.spawn(pmem=1)
        self.host.machine.add_namespace('d9', proven=False)
        self.host.manager.close()
        self.host.store.close()
        for path in glob.glob(os.path.join(self.host.configuration.state_path, 'devicetrack.sqlite*')):
            os.remove(path)
        self.program = self.useFixture(program.Program(self.host.configuration, self.host.machine))
        self.program.ask('db', 'sync')

    def test_a_host_that_nobody_made_yet(self) -> None:
        answer = self.program.run('host', 'show', 'compute-7')
        self.assertEqual((cmd_base.ERROR, 'devicetrack-manage: the store has no host compute-7; its hosts: none. The '
                                          'first start of its manager makes it\n'), (answer.code, answer.err))

    def test_no_declarations(self) -> None:
        for command in ('facts', 'matrix'):
            answer = self.program.run('migration', command)
            self.assertEqual((cmd_base.OK, ''), (answer.code, answer.out))
            self.assertIn('the store has no host: the first start of its manager makes it', answer.err)

    def test_a_lost_store_is_not_accepted(self) -> None:
        for more in ((), ('--accept',)):
            answer = self.program.run('audit', '--repair', *more, '--host', 'compute-7')
            self.assertEqual(cmd_base.ERROR, answer.code)
            self.assertIn('it was lost: stop the service and run devicetrack-manage recover --from-hypervisor --host '
                          'compute-7', answer.err)

    def test_every_proposal_to_recover_names_the_host(self) -> None:
        for command in (('audit', '--host', 'compute-7', '-f', 'json'), ('host', 'map', 'compute-7')):
            answer = self.program.run(*command)
            said = ' '.join((answer.out + answer.err).split())
            self.assertEqual((cmd_base.ATTENTION, 0), (
                answer.code, len(re.findall(r'recover --from-hypervisor(?! --host compute-7)', said))))
            self.assertIn('recover --from-hypervisor --host compute-7', said)


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

    def test_options_with_which_no_manager_starts_are_told(self) -> None:
        self.host.machine.missing = (Missing(DeviceKey('vpmem', 'd9'), '[libvirt] pmem_namespaces', 'not there'),)
        answer = self.program.run('explain', '--resource', f'{fixtures.PMEM}=1')
        self.assertEqual(cmd_base.OK, answer.code)
        self.assertIn('until this is corrected no manager starts: [libvirt] pmem_namespaces names d9: not there\n',
                      answer.err)

    def test_a_held_device_that_nobody_gets_next_is_told_with_its_reasons(self) -> None:
        self.host.spawn(pmem=2)
        self.host.manager.operator.cordon('vpmem', 'd0', reason='a new DIMM')
        answer = self.program.run('explain', '--resource', f'{fixtures.PMEM}=1')
        self.assertEqual(cmd_base.ATTENTION, answer.code)
        self.assertIn('vpmem/d0 is held, and will not be reassigned when it is released: cordoned: a new DIMM\n',
                      answer.err)
        self.assertNotIn('d1', answer.err)

    def test_an_alias_of_the_options_is_asked_for_by_its_class(self) -> None:
        self.host.machine.aliases = {'tape': PCIAlias('tape', (PCIChoice(fixtures.PMEM),), vocabulary.LEGACY)}
        wanted = ('explain', '-f', 'json', '--extra-spec')
        parts = self.program.run(*wanted, 'pci_passthrough:alias=tape:2').data
        self.assertEqual([(fixtures.PMEM, 2, True)],
                         [(part['resource_class'], part['wanted'], part['fits']) for part in parts])
        self.assertIn('this host has tape', self.program.run(*wanted, 'pci_passthrough:alias=disc:2').err)

    def test_an_alias_where_the_options_have_none_is_named(self) -> None:
        alias = ('--extra-spec', 'pci_passthrough:alias=gpu:1')
        answer = self.program.run('explain', *alias)
        self.assertEqual((cmd_base.USAGE, ''), (answer.code, answer.out))
        self.assertIn("pci_passthrough:alias: 'gpu:1': this host knows no alias", answer.err)
        answer = self.program.run('explain', *alias, '--extra-spec', 'hw:pmem=4GB')
        self.assertEqual(cmd_base.OK, answer.code)
        self.assertIn('pci_passthrough:alias is left out: this host knows no alias', answer.err)

    def test_extra_specs_that_ask_for_no_device_are_named(self) -> None:
        answer = self.program.run('explain', '--extra-spec', 'resources:VCPU=2')
        self.assertEqual((cmd_base.USAGE, True), (answer.code, 'ask for no device: resources:VCPU' in answer.err))

    def test_a_cordoned_parent_is_named_with_its_reason_and_nothing_else(self) -> None:
        self.host.spawn(vgpu=1)
        self.host.manager.operator.cordon('mdev', 'gpu', parent=True, reason='new card')
        answer = self.program.run('explain', '--resource', 'VGPU=1', '-f', 'json')
        self.assertEqual(cmd_base.ATTENTION, answer.code)
        self.assertNotIn('no room left', answer.data[0]['explanation'])
        self.assertIn('parent mdev/gpu is withheld, with all its devices: cordoned: new card', answer.err)
        self.assertNotIn('new card', self.program.run('explain', '--resource', f'{fixtures.PMEM}=1').err)

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
        self.assertIn(f'vpmem/f1 is withheld: excluded: instance {instance.uuid} has vpmem/f0 of card', answer.err)
        self.assertIn('2 more are withheld', answer.err)
        self.assertEqual([{'reasons': 'excluded', 'amount': 12}], answer.data[0]['withheld'])
        [named] = [one for one in answer.data[0]['withheld_devices'] if one['device'] == 'vpmem/f1']
        [listed] = [one for one in self.program.ask('device', 'list', '--withheld') if one['device'] == 'vpmem/f1']
        for reasons in (named['reasons'], listed['reasons']):
            self.assertEqual([('excluded', f'instance {instance.uuid} has vpmem/f0 of card')],
                             [(one['reason'], one['detail']) for one in reasons])

    def test_a_provider_that_nobody_knows_means_nothing(self) -> None:
        answer = self.program.run('explain', '--resource', 'VGPU=1@nowhere')
        self.assertEqual(cmd_base.USAGE, answer.code)
        self.assertIn("'nowhere': this host has no provider of this name; it has gpu", answer.err)
        answer = self.program.run('explain', '--resource', 'VGPU=1@c5d2ac06-4b3f-4c2f-8a8f-1f6c35c7a001')
        self.assertEqual(cmd_base.USAGE, answer.code)
        self.assertIn('no provider of this host', answer.err)
        self.assertIn('placement may have others: name the parent device', answer.err)

    def test_a_provider_that_could_not_be_read_may_be_there(self) -> None:
        self.host.machine.unknown_kinds[fake.MDEV] = 'libvirt failed'
        answer = self.program.run('explain', '--resource', 'VGPU=1@gpu')
        self.assertIn('it has none (some could not be read)', answer.err)

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
            ('compute-7', findings.UNHEALTHY, 'vpmem/d0', 'vpmem', 'd0', instance.uuid, []),
            tuple(finding[name] for name in ('host', 'finding', 'device', 'kind', 'identifier', 'recorded_owner',
                                             'users')))

    def test_people_get_a_block_for_each_with_the_repair(self) -> None:
        self.host.spawn(pmem=1)
        self.host.machine.change(D0, devpath='/dev/dax9.0')
        self.host.machine.change(DeviceKey(fake.VPMEM, 'd1'), unhealthy='read-only')
        self.assertEqual([
            'warning unhealthy: vpmem/d1', '    read-only',
            '    To do: remove the cause; then the device comes back by itself',
            'note details differ: vpmem/d0', '    devpath is /dev/dax9.0 and was recorded as /dev/fakedax0',
            '    To do: write what the host shows into the row', '    Repair: update details (--repair)'],
            self.program.run('audit').out.splitlines())
        self.assertIn('    held: the device\n', self.program.run('audit', '--long').out)
        self.assertIn('| update details |', self.program.run('audit', '-c', 'repair').out)

    def test_a_note_needs_no_attention(self) -> None:
        instance = self.host.spawn(pmem=1)
        self.host.machine.before('unclaim', exception.HypervisorUnreachable('fake', 'restarting'), times=1)
        self.assertRaises(exception.HypervisorUnreachable, self.host.manager.release, self.host.context, instance)
        self.host.machine.delete_guest(instance.uuid)
        answer = self.program.run('audit', '-f', 'json')
        self.assertEqual([vocabulary.NOTE], [finding['severity'] for finding in answer.data])
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

    def test_a_store_that_may_be_there_is_not_said_to_be_none(self) -> None:
        """A link to itself leads nowhere for every user, root too, as a directory does that a user cannot look into."""
        loop = os.path.join(self.temp_dir(), 'loop')
        os.symlink(loop, loop)
        self.configuration.set('devicetrack', state_path=loop)
        config_file = program.write_configuration(self.temp_dir(), self.conf)
        for command in (('db', 'version'), ('db', 'check'),
                        ('recover', '--from-hypervisor', '--host', 'compute-7', '--dry-run')):
            answer = self.program.run(*command, config_file=config_file)
            self.assertEqual((cmd_base.ERROR, ''), (answer.code, answer.out))
            self.assertIn('run this as the user of the service', answer.err)

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
        self.assertEqual(
            (cmd_base.ATTENTION, "run devicetrack-manage db sync as the service's user and with its --config-file"),
            (answer.code, answer.data['remedy']))
        self.assertIn(f'schema {present}, this release needs 9999', self.program.run('instance', 'list').err)

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
