"""A store that is lost, and what comes back of it from the guests."""

from __future__ import annotations

import contextlib
import glob
import os
import pathlib
import re
import sqlite3
from typing import Any
from unittest import mock

from devicetrack import exception
from devicetrack.cmd import base as cmd_base
from devicetrack.cmd import progress
from devicetrack.cmd import recover
from devicetrack.objects.values import DeviceKey
from devicetrack.store import api as store_api
from devicetrack.testing import fake
from devicetrack.testing import fixtures
from devicetrack.testing.fixtures import FREE
from devicetrack.tests import base
from devicetrack.tests.unit.cmd import program

D0, D1, D2 = (DeviceKey(fake.VPMEM, name) for name in ('d0', 'd1', 'd2'))


class RecoverTestCase(base.TestCase):

    devices = 2

    def setUp(self) -> None:
        super().setUp()
        self.host = self.useFixture(fixtures.Host(devices=self.devices, parents={'gpu': 4}, name='compute-7'))
        self.machine = self.host.machine
        self.program = self.useFixture(program.Program(self.host.configuration, self.machine))
        self.file = os.path.join(self.host.configuration.state_path, 'devicetrack.sqlite')

    def lose_the_store(self) -> None:
        """The manager dies and takes the file along."""
        self.host.manager.close()
        self.host.store.close()
        for path in glob.glob(self.file + '*'):
            os.remove(path)

    def recover(self, *arguments: str, code: int = cmd_base.OK) -> list[dict[str, Any]]:
        answer = self.program.run('recover', '--from-hypervisor', '--host', 'compute-7', *arguments, '-f', 'json')
        self.assertEqual(code, answer.code, answer.err)
        self.said = answer.err
        return answer.data

    def outcomes(self, found: list[dict[str, Any]]) -> set[tuple[str, str]]:
        return {(one['identifier'], one['outcome']) for one in found}


class LostStoreTestCase(RecoverTestCase):

    def test_the_rows_come_back_as_they_were(self) -> None:
        for amount in (1, 0):
            self.host.spawn(pmem=amount, vgpu=1)
        host_uuid = self.host.manager.state().host_uuid
        before = self.host.records()
        self.lose_the_store()
        self.recover('--wipe-unrecorded')
        self.assertEqual([], self.host.restart())
        self.assertEqual([], self.host.audit())
        self.assertEqual(host_uuid, self.host.manager.state().host_uuid)
        self.assertEqual(list(map(self.like, before)), list(map(self.like, self.host.records())))
        self.assertEqual(FREE, self.host.states()['d1'])

    @staticmethod
    def like(record: Any) -> Any:
        """A row without what counts its writes, and what a definition from before the device was made cannot know."""
        return record._replace(generation=0, created_at=0)

    def test_nothing_is_wiped_while_the_record_of_a_guest_cannot_be_read(self) -> None:
        """No definition names a device that its guest has left in a move, and only the record knows it."""
        instance = self.host.spawn(pmem=1)
        self.machine.write(D0, b'what a revert needs')
        migration = self.host.resize(instance, pmem=1)
        self.machine.stop_guest(instance.uuid)
        migration.status = 'post-migrating'
        self.host.boot(instance)
        domain = self.machine.domains[instance.uuid]
        domain.metadata = domain.metadata.replace('claim=', 'torn=')
        self.lose_the_store()
        found = self.recover('--wipe-unrecorded', code=cmd_base.ATTENTION)
        self.assertEqual({('d0', 'unrecorded'), ('d1', 'foreign')}, self.outcomes(found))
        self.assertIn(f'could not be read: the device record of domain {instance.uuid}', self.said)
        self.host.restart()
        self.assertEqual(b'what a revert needs', self.machine.read(D0))

    def test_says_how_many_guests_are_read(self) -> None:
        for _number in range(2):
            self.host.spawn(pmem=1, vgpu=1)
        self.lose_the_store()
        with mock.patch.object(progress, 'LINE_EVERY_S', 0.0):
            self.recover()
        self.assertRegex(self.said, '1 of 2 guests read\n(.*\n)*.*: 2 of 2 guests read')

    def test_a_row_has_all_its_columns(self) -> None:
        instance = self.host.spawn(pmem=1)
        self.lose_the_store()
        found = self.recover(code=cmd_base.ATTENTION)
        self.assertEqual(list(recover.Recover.columns), list(found[0]))
        self.assertEqual(('write', 'vpmem', 'd0', instance.uuid, 'current', 'active', 0),
                         tuple(found[0][name] for name in ('outcome', 'kind', 'identifier', 'instance_uuid', 'role',
                                                           'state', 'position')))

    def test_a_dry_run_writes_nothing_and_makes_no_store(self) -> None:
        self.host.spawn(pmem=2)
        self.lose_the_store()
        found = self.recover('--dry-run')
        self.assertEqual({('d0', 'write'), ('d1', 'write')}, self.outcomes(found))
        self.assertIn('host compute-7: 2 rows would be written, and nothing was', self.said)
        self.assertFalse(os.path.exists(self.file))

    def test_another_application_has_the_file(self) -> None:
        self.lose_the_store()
        with contextlib.closing(sqlite3.connect(self.file)) as theirs:
            theirs.execute('CREATE TABLE hosts (id INTEGER)')
        os.chmod(self.file, 0o600)
        for command in ((), ('--dry-run',)):
            answer = self.program.run('recover', '--from-hypervisor', '--host', 'compute-7', *command)
            self.assertEqual((cmd_base.ERROR, ''), (answer.code, answer.out))
            self.assertIn('it has tables of another application (hosts)', answer.err)

    def test_a_dry_run_beside_a_manager_that_works(self) -> None:
        self.host.spawn(pmem=2)
        self.assertEqual({('d0', 'present'), ('d1', 'present')}, self.outcomes(self.recover('--dry-run')))

    def test_not_while_the_manager_works(self) -> None:
        self.host.spawn(pmem=2)
        answer = self.program.run('recover', '--from-hypervisor', '--host', 'compute-7')
        self.assertEqual(cmd_base.ERROR, answer.code)
        self.assertIn(f'process {os.getpid()} holds ', answer.err)

    def test_another_command_learns_that_a_command_works(self) -> None:
        self.host.spawn(pmem=2)
        self.lose_the_store()
        answers: list[program.Answer] = []
        self.machine.before('get_usage', lambda: answers.append(self.program.run(
            'recover', '--from-hypervisor', '--host', 'compute-7')), times=1)
        self.recover()
        self.assertIn('a command works on host compute-7', answers[0].err)

    def test_devices_that_no_option_names_need_attention(self) -> None:
        self.host.spawn(pmem=2)
        self.lose_the_store()
        self.machine.unnamed = {D1, D2}
        found = self.recover(code=cmd_base.ATTENTION)
        self.assertEqual([False, True], ['no option names it' in one['reason'] for one in found])
        self.assertIn('guests record devices that no option names: vpmem/d1. Give the command the configuration of the '
                      'service', self.said)

    def test_twice_is_once(self) -> None:
        self.host.spawn(pmem=2)
        self.lose_the_store()
        self.recover()
        rows = self.host.records()
        self.assertEqual({('d0', 'present'), ('d1', 'present')}, self.outcomes(self.recover()))
        self.assertEqual(rows, self.host.records())

    def test_the_source_has_to_be_named(self) -> None:
        self.assertEqual(cmd_base.USAGE, self.program.run('recover').code)

    def test_a_guest_that_is_off(self) -> None:
        instance = self.host.spawn(pmem=2)
        self.machine.stop_guest(instance.uuid)
        self.lose_the_store()
        self.recover()
        self.assertEqual([], self.host.restart())
        self.host.boot(instance)
        self.host.delete(instance)
        self.assertEqual({'d0': FREE, 'd1': FREE}, self.host.states())

    def test_two_guests_on_one_device(self) -> None:
        instance = self.host.spawn(pmem=2)
        domain = self.machine.domains[instance.uuid]
        other = self.host.spawn(vgpu=1)
        self.machine.domains[other.uuid].metadata = domain.metadata.replace(instance.uuid, other.uuid)
        domain.live = domain.defined = ()
        self.lose_the_store()
        found = self.recover(code=cmd_base.ATTENTION)
        self.assertEqual({('d0', 'contested'), ('d1', 'contested')},
                         {one for one in self.outcomes(found) if one[0] in ('d0', 'd1')})
        self.assertEqual([], self.host.records())


class DamagedRecordTestCase(RecoverTestCase):

    scenarios = base.table(
        ('a position beyond the column', 'position="0"', f'position="{10 ** 18}"'),
        ('a NUMA node beyond the column', 'numaNode="0"', f'numaNode="{1 << 40}"'),
        ('a claim that is too long', 'claim="', 'claim="' + 'x' * 65),
        ('a class that is too long', 'resourceClass="', 'resourceClass="' + 'X' * 256),
        ('a field is missing', '"size_bytes"', '"bytes"'),
        ('a field is of another type', '"align_bytes":2097152', '"align_bytes":"2 MiB"'),
        ('nested too deep', '{"versioned_object.data"', '[' * 100_000 + '{"versioned_object.data"'),
        names=('right', 'wrong'))

    def test_others_come_back(self) -> None:
        instance, other = self.host.spawn(pmem=1), self.host.spawn(pmem=1)
        domain = self.machine.domains[instance.uuid]
        self.assertIn(self.right, domain.metadata)
        domain.metadata = domain.metadata.replace(self.right, self.wrong)
        self.lose_the_store()
        found = self.recover(code=cmd_base.ATTENTION)
        self.assertEqual({('d0', 'unreadable'), ('d1', 'write')}, self.outcomes(found))
        self.assertEqual([other.uuid], [record.instance_uuid for record in self.host.records()])


class BytesTestCase(RecoverTestCase):
    """Devices that no guest records: nobody can say what is on them."""

    devices = 3

    def setUp(self) -> None:
        super().setUp()
        self.host.spawn(pmem=1)
        gone = self.host.spawn(pmem=1)
        self.machine.delete_guest(gone.uuid)
        self.machine.write(D1, b'of an instance whose guest is gone')

    def test_they_are_told(self) -> None:
        self.lose_the_store()
        found = self.recover(code=cmd_base.ATTENTION)
        self.assertEqual({('d0', 'write'), ('d1', 'unrecorded'), ('d2', 'unrecorded')}, self.outcomes(found))
        self.assertIn('no guest records 2 devices', self.said)
        self.assertEqual(['d0'], [record.identifier for record in self.host.records()])

    def test_a_free_mediated_device_holds_nothing(self) -> None:
        for _number in range(2):
            self.host.spawn(pmem=0, vgpu=1)
        left, kept = self.host.mdevs()
        [owner] = {record.instance_uuid for record in self.host.records() if record.identifier == left}
        self.machine.delete_guest(owner)
        self.lose_the_store()
        found = self.recover('--wipe-unrecorded')
        self.assertEqual({(left, 'unused'), (kept, 'write')},
                         {one for one in self.outcomes(found) if one[0] in (left, kept)})

    def test_they_are_wiped_when_that_is_said(self) -> None:
        self.lose_the_store()
        found = self.recover('--wipe-unrecorded')
        self.assertEqual({('d0', 'write'), ('d1', 'wipe'), ('d2', 'wipe')}, self.outcomes(found))
        self.host.restart()
        self.assertEqual((b'', {'d0': 'active', 'd1': FREE, 'd2': FREE}), (self.machine.read(D1), self.host.states()))

    def test_nothing_is_wiped_while_a_definition_cannot_be_read(self) -> None:
        self.machine.unknown_domains['torn'] = 'no end tag'
        self.lose_the_store()
        found = self.recover('--wipe-unrecorded', code=cmd_base.ATTENTION)
        self.assertEqual({('d0', 'write'), ('d1', 'unrecorded'), ('d2', 'unrecorded')}, self.outcomes(found))
        self.assertIn('could not be read: domain torn: no end tag', self.said)

    def test_what_a_guest_names_by_then_is_not_wiped(self) -> None:
        self.lose_the_store()
        self.recover('--wipe-unrecorded')
        device = next(one for one in self.machine.inventory().devices if one.key == D1)
        self.machine.start_guest('somebody', [f'<device kind="vpmem" address="{fixtures.path_of(device)}"/>'])
        self.host.restart()
        self.assertEqual(b'of an instance whose guest is gone', self.machine.read(D1))


class PendingResizeTestCase(RecoverTestCase):
    """A resize on one host that waits for its confirmation, and a store that is lost meanwhile."""

    def setUp(self) -> None:
        super().setUp()
        self.instance = self.host.spawn(pmem=1)
        self.machine.write(D0, b'before')
        self.migration = fixtures.Migration('compute-7', 'compute-7', self.instance.uuid)
        self.host.service.moves = [self.migration]
        self.host.resize(self.instance, pmem=1, migration=self.migration)
        self.machine.stop_guest(self.instance.uuid)
        self.migration.status = 'post-migrating'
        self.host.boot(self.instance)
        self.migration.status = 'finished'
        self.before = self.roles()
        self.lose_the_store()
        self.recover()

    def roles(self) -> list[tuple[str, str, str, str | None]]:
        return [(record.identifier, record.role, record.state, record.migration_uuid)
                for record in self.host.records(self.instance)]

    def test_the_rows_are_those_of_the_move(self) -> None:
        self.assertEqual(sorted(self.before), sorted(self.roles()))
        self.assertIn(f'migration {self.migration.uuid} has not ended', self.said)
        self.assertEqual([], self.host.restart())
        self.assertEqual([], self.host.audit())
        self.assertEqual(sorted(self.before), sorted(self.roles()))

    def test_it_is_reverted(self) -> None:
        self.host.restart()
        self.machine.delete_guest(self.instance.uuid)
        self.host.manager.drop_move_claim_at_dest(self.context, self.instance, self.migration)
        self.host.boot(self.instance)
        self.migration.status = 'reverted'
        self.assertEqual([('d0', 'current', 'active', None)], self.roles())
        self.assertEqual((b'before', FREE, []), (self.machine.read(D0), self.host.states()['d1'], self.host.audit()))
        self.assertEqual(['d0'], [one.identifier for one in self.instance.resources])

    def test_it_is_confirmed(self) -> None:
        self.host.restart()
        self.host.manager.drop_move_claim_at_source(self.context, self.instance, self.migration)
        self.migration.status = 'confirmed'
        self.assertEqual([('d1', 'current', 'active', None)], self.roles())
        self.assertEqual((b'', FREE, []), (self.machine.read(D0), self.host.states()['d0'], self.host.audit()))

    def test_it_was_confirmed_before_and_the_definition_does_not_know(self) -> None:
        self.migration.status = 'confirmed'
        self.host.restart()
        self.host.audit()
        self.assertEqual([('d1', 'current', 'active', None)], self.roles())
        self.assertEqual(FREE, self.host.states()['d0'])

    def test_the_guest_starts_again_on_its_new_devices(self) -> None:
        self.host.restart()
        self.machine.stop_guest(self.instance.uuid)
        self.host.boot(self.instance)
        self.assertEqual(['d1'], [one.identifier for one in self.instance.resources])


class AnotherBootTestCase(RecoverTestCase):

    def test_definitions_get_the_addresses_of_this_boot(self) -> None:
        instances = [self.host.spawn(pmem=1), self.host.spawn(pmem=1)]
        self.lose_the_store()
        self.machine.reboot()
        self.recover()
        self.assertEqual([], self.host.restart())
        for instance, key in zip(instances, (D0, D1), strict=True):
            path = fixtures.path_of(self.machine.devices[key])
            self.assertEqual((path,), self.machine.domains[instance.uuid].defined)
        self.assertEqual([], self.host.audit())


class IdentityTestCase(RecoverTestCase):
    """Which host the rows are written for."""

    def setUp(self) -> None:
        super().setUp()
        self.host.spawn(pmem=2)
        self.uuid = self.host.manager.state().host_uuid

    def new_machine_id(self) -> None:
        with open(self.host.conf.devicetrack.machine_id_path, 'w', encoding='ascii') as file:
            file.write('b' * 32)

    def test_a_machine_that_was_installed_anew_is_the_host_that_its_guests_know(self) -> None:
        self.lose_the_store()
        self.new_machine_id()
        self.recover()
        self.host.restart()
        self.assertEqual((self.uuid, []), (self.host.manager.state().host_uuid, self.host.audit()))

    def test_a_host_that_was_registered_anew_gets_its_uuid_back(self) -> None:
        self.lose_the_store()
        self.new_machine_id()
        self.program.ask('db', 'sync')
        self.host.restart()
        self.assertNotEqual(self.uuid, self.host.manager.state().host_uuid)
        self.host.manager.close()
        self.recover()
        self.host.restart()
        self.assertEqual((self.uuid, []), (self.host.manager.state().host_uuid, self.host.audit()))

    def test_one_that_has_rows_by_now_keeps_them(self) -> None:
        self.lose_the_store()
        self.new_machine_id()
        self.machine.add_namespace('d2')
        self.program.ask('db', 'sync')
        self.host.restart()
        self.host.running.gate.judge(None)
        self.host.claim(fixtures.Instance(), pmem=1)
        self.host.manager.close()
        answer = self.program.run('recover', '--from-hypervisor', '--host', 'compute-7')
        self.assertEqual(cmd_base.ERROR, answer.code)
        self.assertIn('still has devices in the store (1)', answer.err)
        self.assertEqual(['d2'], [record.identifier for record in self.host.records()])

    def test_a_new_machine_id_does_not_take_the_rows_of_the_old_one(self) -> None:
        self.host.manager.close()
        rows = self.host.records()
        self.new_machine_id()
        answer = self.program.run('recover', '--from-hypervisor', '--host', 'compute-7')
        self.assertEqual(cmd_base.ERROR, answer.code)
        self.assertIn('machine_id_path', answer.err)
        self.assertEqual(rows, self.host.records())

    def test_guests_that_do_not_agree(self) -> None:
        other = self.host.spawn(vgpu=1)
        domain = self.machine.domains[other.uuid]
        domain.metadata = domain.metadata.replace(self.uuid, '7c9e6f2e-3a58-4a0e-8a53-0b8a3f8f0001')
        self.lose_the_store()
        answer = self.program.run('recover', '--from-hypervisor', '--host', 'compute-7')
        self.assertEqual(cmd_base.ERROR, answer.code)
        self.assertIn('record that they belong to different hosts', answer.err)

    def test_the_name_of_another_machine(self) -> None:
        self.lose_the_store()
        self.program.ask('db', 'sync')
        store = self.host.store.store
        store.add_host(store_api.Host('7c9e6f2e-3a58-4a0e-8a53-0b8a3f8f0001', 'compute-7', 'another'))
        answer = self.program.run('recover', '--from-hypervisor', '--host', 'compute-7')
        self.assertEqual(cmd_base.ERROR, answer.code)
        self.assertIn('host compute-7 is another machine', answer.err)
        self.assertEqual('another', store.hosts()[0].machine_id)

    def test_the_store_knows_it_by_another_name(self) -> None:
        answer = self.program.run('recover', '--from-hypervisor', '--dry-run', '--host', 'compute-8')
        self.assertEqual(cmd_base.ERROR, answer.code)
        self.assertIn('this machine is host compute-7', answer.err)

    def test_a_store_that_does_not_know_this_machine_needs_its_name(self) -> None:
        self.lose_the_store()
        for command in ((), ('--dry-run',)):
            answer = self.program.run('recover', '--from-hypervisor', *command)
            self.assertEqual(cmd_base.USAGE, answer.code)
            self.assertIn('--host', answer.err)
        self.assertFalse(os.path.exists(self.file))

    def test_of_several_names_one_must_be_said(self) -> None:
        known = self.host.store.hosts()[0]
        self.host.store.add_host(known._replace(uuid='7c9e6f2e-3a58-4a0e-8a53-0b8a3f8f0001', name='compute-8'))
        answer = self.program.run('recover', '--from-hypervisor', '--dry-run')
        self.assertEqual(cmd_base.ERROR, answer.code)
        self.assertIn('compute-7, compute-8', answer.err)

    def recover_under_a_wrong_name(self) -> None:
        self.lose_the_store()
        answer = self.program.run('recover', '--from-hypervisor', '--host', 'build-host')
        self.assertEqual(cmd_base.OK, answer.code)
        self.assertIn('host build-host: wrote 2 rows', answer.err)
        self.assertRaises(exception.MachineHasHost, self.host.restart)
        answer = self.program.run('recover', '--from-hypervisor', '--host', 'compute-7')
        self.assertEqual(cmd_base.ERROR, answer.code)
        self.assertIn('recover got a wrong name', answer.err)

    def test_after_a_wrong_name_the_file_goes_and_the_rows_come_back(self) -> None:
        self.recover_under_a_wrong_name()
        self.lose_the_store()
        self.recover()
        self.host.restart()
        self.assertEqual((self.uuid, []), (self.host.manager.state().host_uuid, self.host.audit()))

    def test_after_a_wrong_name_a_database_of_several_hosts_is_told_the_right_one(self) -> None:
        self.recover_under_a_wrong_name()
        page = pathlib.Path(__file__).parents[4].joinpath('doc', 'source', 'admin', 'recovery.rst').read_text('utf-8')
        [statement] = re.findall(r'^ +(UPDATE hosts .*;)$', page, re.M)
        with contextlib.closing(sqlite3.connect(self.file)) as database, database:
            database.execute(statement.replace('WRONG', 'build-host').replace('RIGHT', 'compute-7'))
        self.assertEqual({('d0', 'present'), ('d1', 'present')}, self.outcomes(self.recover()))
        self.host.restart()
        self.assertEqual((self.uuid, []), (self.host.manager.state().host_uuid, self.host.audit()))

    def test_its_name_is_the_one_that_the_store_knows(self) -> None:
        found = self.program.run('recover', '--from-hypervisor', '--dry-run', '-f', 'json')
        self.assertEqual(cmd_base.OK, found.code, found.err)
        self.assertEqual({'compute-7'}, {one['host'] for one in found.data})

    def test_a_hypervisor_that_does_not_answer(self) -> None:
        self.lose_the_store()
        self.machine.disconnected = 'restarting'
        answer = self.program.run('recover', '--from-hypervisor', '--host', 'compute-7')
        self.assertEqual(cmd_base.ERROR, answer.code)
        self.assertEqual([], self.host.store.store.hosts())
