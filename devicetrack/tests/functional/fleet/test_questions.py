"""The commands that read a mirror, on each database."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import json
import os
import re
from typing import Any
import uuid

import fixtures as base_fixtures
import sqlalchemy as sa

from devicetrack import exception
from devicetrack.cmd import base as cmd_base
from devicetrack.fleet import models
from devicetrack.objects.values import Attribute
from devicetrack.objects.values import MigrationType
from devicetrack.testing import databases
from devicetrack.testing import fake
from devicetrack.testing import fixtures
from devicetrack.tests import base
from devicetrack.tests.unit.cmd import program
from devicetrack.tests.unit.fleet import fleets


class QuestionsTestCase(base.TestCase):
    """A fleet of some hosts, each with its own store."""

    scenarios = databases.SCENARIOS
    database: type[databases.StoreFixture]

    def setUp(self) -> None:
        super().setUp()
        fixture = self.useFixture(self.database(synced=False))
        url = fixture.conf.devicetrack_database.connection or f'sqlite:///{getattr(fixture, "path", "")}'
        self.fleet = self.useFixture(fleets.Fleet(url))

    def host(self, name: str, **options: Any) -> fixtures.Host:
        return self.useFixture(fixtures.Host(
            name=name, configuration=self.useFixture(fixtures.Configuration(machine=name)), **options))


class TwoHostsTestCase(QuestionsTestCase):

    def setUp(self) -> None:
        super().setUp()
        self.ten, self.seven = self.host('rack2-10', devices=2, parents={'gpu': 4}), self.host('rack1-7', devices=2)
        self.ten.manager.operator.cordon('vpmem', 'd1', reason='firmware')
        self.instance = self.ten.spawn(pmem=1)
        self.fleet.push(self.ten, {'d0': 'S-10'})
        self.fleet.push(self.seven)

    def names(self, *arguments: str) -> list[tuple[str, str]]:
        return [(one['host'], one['identifier']) for one in self.fleet.ask('fleet', 'device', 'list', *arguments)
                if one['kind'] == 'vpmem']


class DeviceListTestCase(TwoHostsTestCase):

    def test_the_lines_are_those_of_the_hosts_in_the_order_of_names_and_say_their_age(self) -> None:
        found = self.fleet.ask('fleet', 'device', 'list')
        self.assertEqual(['rack1-7', 'rack2-10'], list(dict.fromkeys(one['host'] for one in found)))
        self.assertEqual({None}, {one['unknown_since'] for one in found})
        self.assertEqual([], [one for one in found if not 0 <= one['age_s'] <= 60])
        told = {one['identifier']: one['status'] for one in found if one['host'] == 'rack2-10'}
        self.assertEqual(('held', 'withheld'), (told['d0'], told['d1']))
        self.assertEqual(sum(len(self.own(one)) for one in (self.ten, self.seven)), len(found))
        for own in self.own(self.ten):
            self.assertIn(own, [{name: one[name] for name in own} for one in found])

    def own(self, host: fixtures.Host) -> list[dict[str, Any]]:
        """What ``device list`` prints on a host."""
        lines: list[dict[str, Any]] = self.useFixture(
            program.Program(host.configuration, host.machine)).ask('device', 'list')
        return lines

    def test_each_option_leaves_out_the_others(self) -> None:
        of_ten = ('rack2-10', 'd0')
        for option in (['--serial', 'S-10'], ['--instance', self.instance.uuid.upper()], ['--status', 'held'],
                       ['--host', '*-10', '--status', 'held', '--status', 'missing']):
            self.assertEqual([of_ten], self.names(*option), str(option))
        self.assertEqual([('rack1-7', 'd0'), ('rack1-7', 'd1'), of_ten, ('rack2-10', 'd1')],
                         self.names('--class', 'CUSTOM_PMEM_NAMESPACE_4GB'))
        self.assertEqual({'gpu'}, {one['parent'] for one in self.fleet.ask(
            'fleet', 'device', 'list', '--parent', 'mdev/gpu')})
        self.assertEqual([], self.names('--parent', 'vpmem/gpu'))
        answer = self.fleet.run('fleet', 'device', 'list', '--host', 'rack9-*')
        self.assertEqual(cmd_base.USAGE, answer.code)
        self.assertIn('rack9-*', answer.err)
        for question in (['device', 'list', '--host', 'rack2-1'], ['device', 'history', 'd0', '--host', 'rack2-1'],
                         ['forget', 'rack2-1'], ['capacity', '--host', 'rack2-1', '--request', 'VGPU=1']):
            self.assertIn('close to it: rack2-10', self.fleet.run('fleet', *question).err)

    def test_no_device_of_a_silent_host_is_free(self) -> None:
        self.fleet.grow_old(self.seven, 120)
        self.assertEqual([], self.names('--status', 'unknown'))
        self.fleet.grow_old(self.seven, 3600)
        answer = self.fleet.run('fleet', 'device', 'list', '-f', 'json')
        self.assertEqual(cmd_base.ATTENTION, answer.code)
        silent = [one for one in answer.data if one['host'] == 'rack1-7']
        self.assertEqual({'unknown'}, {one['status'] for one in silent})
        self.assertNotIn(None, {one['unknown_since'] for one in silent})
        answer = self.fleet.run('fleet', 'device', 'list', '-f', 'json', '--status', 'free', '--status',
                                'creatable')
        self.assertEqual({'rack2-10'}, {one['host'] for one in answer.data})
        answer = self.fleet.run('fleet', 'device', 'list', '-f', 'json', '--status', 'unknown', '--status', 'held')
        self.assertEqual({('rack1-7', 'unknown'), ('rack2-10', 'held')},
                         {(one['host'], one['status']) for one in answer.data})
        table = self.fleet.run('fleet', 'device', 'list', '--host', 'rack1-7')
        self.assertIn('unknown', table.out)
        self.assertIn('free when it was last read', ' '.join(table.column(
            next(line for line in table.out.splitlines() if 'reasons' in line).split('|')[-2].strip()).split()))
        self.assertIn('silent: rack1-7 since', table.err)


class DeviceListFormTestCase(TwoHostsTestCase):
    """How it is printed, whatever database the lines are from."""

    scenarios = databases.SCENARIOS[:1]

    def test_a_table_fits_80_columns_and_says_the_age_beside_it(self) -> None:
        answer = self.fleet.run('fleet', 'device', 'list', '--max-width', '80')
        self.assertEqual(cmd_base.OK, answer.code)
        self.assertLessEqual(max(map(len, answer.out.splitlines())), 80)
        self.assertIn(self.instance.uuid, answer.out)
        self.assertIn('cordoned: firmware', ' '.join(answer.out.replace('|', ' ').split()))
        self.assertIn('as 2 hosts looked', answer.err)

    def test_every_form_has_every_line(self) -> None:
        lines = self.fleet.ask('fleet', 'device', 'list')
        again = json.loads(self.fleet.run('fleet', 'device', 'list', '-f', 'json', '--noindent').out)
        for one in (*lines, *again):
            one['age_s'] = None                 # both answers have their own moment
        self.assertEqual(lines, again)
        self.assertEqual([{'host': one['host'], 'identifier': one['identifier']} for one in lines],
                         self.fleet.ask('fleet', 'device', 'list', '-c', 'identifier', '-c', 'host'))
        self.assertEqual([], self.fleet.ask('fleet', 'device', 'list', '--serial', 'nobody'))
        for form in ('csv', 'value', 'yaml'):
            out = self.fleet.run('fleet', 'device', 'list', '-f', form, '-c', 'host').out
            self.assertEqual(len(lines), out.count('rack'), form)
        ordered = self.fleet.ask('fleet', 'device', 'list', '--sort-column', 'identifier', '--class',
                                 'CUSTOM_PMEM_NAMESPACE_4GB')
        self.assertEqual(['d0', 'd0', 'd1', 'd1'], [one['identifier'] for one in ordered])

    def test_lines_of_another_release_have_the_same_form(self) -> None:
        def lines() -> list[str]:
            return re.sub('"age_s": [0-9]+', '', self.fleet.run(
                'fleet', 'device', 'list', '-f', 'json').out).splitlines()

        before = lines()
        self.fleet.mirror.transact(lambda connection: connection.execute(
            sa.update(models.fleet_hosts).values(release='0.0.1')))
        self.assertEqual(before, lines())

    def test_a_long_table_is_several_and_says_once_what_has_no_room(self) -> None:
        self.useFixture(base_fixtures.MonkeyPatch('devicetrack.cmd.base._PAGE', 2))
        answer = self.fleet.run('fleet', 'device', 'list', '--max-width', '80')
        self.assertEqual(3, answer.out.count(' status '))
        self.assertEqual(1, answer.err.count('no room'))

    def test_it_needs_the_mirror_alone_and_says_when_there_is_none(self) -> None:
        answer = self.fleet.program.run('fleet', 'device', 'list')
        self.assertEqual(cmd_base.ERROR, answer.code)
        self.assertIn('[devicetrack_fleet] connection', answer.err)


class HistoryTestCase(QuestionsTestCase):

    def setUp(self) -> None:
        super().setUp()
        self.one, self.two = self.host('one', devices=1), self.host('two', devices=1)
        self.first, self.second = self.one.spawn(pmem=1), self.two.spawn(pmem=1)
        self.one.delete(self.first)
        # The same module was moved from a host to another.
        self.fleet.push(self.one, {'d0': 'S-1'})
        self.fleet.push(self.two, {'d0': 'S-1'})

    def test_a_serial_number_is_followed_over_hosts_and_after_deletion(self) -> None:
        found = self.fleet.ask('fleet', 'device', 'history', '--serial', 'S-1')
        self.assertEqual({('one', self.first.uuid), ('two', self.second.uuid)},
                         {(one['host'], one['instance_uuid']) for one in found})
        self.assertEqual(sorted(one['at_ms'] for one in found), [one['at_ms'] for one in found])
        self.assertEqual({'one'}, {one['host'] for one in self.fleet.ask(
            'fleet', 'device', 'history', '--serial', 'S-1', '--host', 'one')})
        self.assertEqual([], [one for one in found if not 0 <= one['age_s'] <= 60 or one['unknown_since']])

    def test_it_is_that_of_the_hosts_own_commands(self) -> None:
        ours = self.useFixture(program.Program(self.one.configuration, self.one.machine))
        self.assertRaises(exception.NoFit, self.one.claim, fixtures.Instance(), pmem=2)
        self.one.audit()
        self.fleet.push(self.one)
        for question in (['instance', 'history', self.first.uuid], ['instance', 'history', '--refused'],
                         ['device', 'history', 'vpmem/d0', '--host', 'one']):
            there = ours.ask(*question)
            here = self.fleet.ask('fleet', *question)
            self.assertTrue(there)
            self.assertEqual(there, [{name: one[name] for name in there[0]} for one in here])
            self.assertEqual(ours.run(*question).out, self.fleet.run('fleet', *question).out)

    def test_a_forgotten_host_keeps_its_history(self) -> None:
        self.fleet.forget(self.one)
        found = self.fleet.ask('fleet', 'instance', 'history', self.first.uuid)
        self.assertEqual({'one'}, {one['host'] for one in found})
        self.assertNotIn('one', {one['host'] for one in self.fleet.ask('fleet', 'device', 'list')})

    def test_what_was_before_comes_first_with_since(self) -> None:
        last = self.fleet.ask('fleet', 'instance', 'history', self.second.uuid)[-1]
        found = self.fleet.ask('fleet', 'device', 'history', 'd0', '--since', '2100-01-01')
        self.assertEqual([{**last, 'before_since': True}], [{**one, 'age_s': last['age_s']} for one in found])

    def test_an_unknown_name_is_an_error_and_a_silent_host_needs_attention(self) -> None:
        for question in (['device', 'history', '--serial', 'nobody'], ['device', 'history', 'd9'],
                         ['instance', 'history', str(uuid.UUID(int=5))], ['device', 'history', 'd0', '--host', 'x'],
                         ['device', 'history'], ['device', 'history', 'd0', '--serial', 'S-1']):
            self.assertEqual(cmd_base.USAGE, self.fleet.run('fleet', *question).code, str(question))
        self.fleet.grow_old(self.two, 3600)
        answer = self.fleet.run('fleet', 'device', 'history', '--serial', 'S-1', '-f', 'json')
        self.assertEqual(cmd_base.ATTENTION, answer.code)
        self.assertIn('silent: two since', answer.err)


class ThreeHostsTestCase(QuestionsTestCase):
    """Three hosts: one with two namespaces on one NUMA node, one with a namespace on each of two, and a full one."""

    def setUp(self) -> None:
        super().setUp()
        self.near, self.far, self.full = self.host('near', devices=2), self.host('far'), self.host('full', devices=1)
        for number, node in enumerate((0, 1)):
            self.far.machine.add_namespace(f'd{number}', numa_node=node)
        self.far.audit()
        self.full.spawn(pmem=1)
        for host in (self.near, self.far, self.full):
            self.fleet.push(host)

    def row(self, *arguments: str) -> dict[str, Any]:
        answer = self.fleet.run('fleet', 'capacity', *arguments, '-f', 'json')
        self.assertNotIn(answer.code, (1, 2), answer.err)
        found: dict[str, Any] = answer.data[0]
        return found

    def numbers(self, row: dict[str, Any], *names: str) -> tuple[Any, ...]:
        return tuple(row[name] for name in names)


class CapacityTestCase(ThreeHostsTestCase):

    def test_each_class_has_its_numbers(self) -> None:
        self.near.manager.operator.cordon('vpmem', 'd1')
        self.fleet.push(self.near)
        row = self.row()
        self.assertEqual(('CUSTOM_PMEM_NAMESPACE_4GB', 5, 1, 3, 1, 0, 3, 0, None), self.numbers(
            row, 'resource_class', 'total', 'held', 'free', 'withheld', 'unknown', 'hosts', 'unknown_hosts', 'fits'))
        self.fleet.grow_old(self.near, 3600)
        self.fleet.close(self.far)
        self.assertEqual((5, 1, 0, 2, 2, 1), self.numbers(
            self.row(), 'total', 'held', 'free', 'withheld', 'unknown', 'unknown_hosts'))
        self.assertEqual(cmd_base.ATTENTION, self.fleet.run('fleet', 'capacity').code)

    def test_instances_are_counted_by_the_allocator_and_say_where_room_is_lost(self) -> None:
        asked = '--request', 'CUSTOM_PMEM_NAMESPACE_4GB=2'
        self.assertEqual((2, 2, 0, 0), self.numbers(self.row(*asked), 'fits', 'fits_on', 'stranded', 'lost'))
        row = self.row(*asked, '--numa-nodes', '1')
        self.assertEqual((1, 1, 2, 1), self.numbers(row, 'fits', 'fits_on', 'stranded', 'lost'))
        self.assertEqual([{'host': 'far', 'amount': 2}], row['stranded_on'])
        for option in (['--numa-nodes', '1', '--numa-policy', 'preferred'], ['--numa-nodes', '2']):
            self.assertEqual(2, self.row(*asked, *option)['fits'] + (option[1] == '2' and 1), str(option))

    def test_no_instance_fits_on_a_host_that_takes_no_claim(self) -> None:
        asked = '--request', 'CUSTOM_PMEM_NAMESPACE_4GB=1'
        self.assertEqual(4, self.row(*asked)['fits'])
        self.assertEqual(2, self.row(*asked, '--host', 'n*')['fits'])
        self.fleet.grow_old(self.near, 3600)
        self.assertEqual(2, self.row(*asked)['fits'])
        self.fleet.close(self.far)
        answer = self.fleet.run('fleet', 'capacity', *asked, '--host', 'far', '--host', 'full')
        self.assertEqual(cmd_base.ATTENTION, answer.code)
        self.assertIn('0 instances', answer.err)


class CapacityWordsTestCase(ThreeHostsTestCase):
    """How a request is written, and how the answer is, whatever database it is from."""

    scenarios = databases.SCENARIOS[:1]

    def test_extra_specs_and_aliases_say_the_same_as_a_request(self) -> None:
        path = f'{self.state_path}/specs.json'
        for data in ({'hw:pmem': '4GB,4GB', 'hw:numa_nodes': '1', 'hw:pci_numa_affinity_policy': 'required'},
                     {'properties': {'resources:CUSTOM_PMEM_NAMESPACE_4GB': '4'}}):
            with open(path, 'w', encoding='utf-8') as file:
                json.dump(data, file)
            row = self.row('--extra-specs', path)
            self.assertEqual(1 if 'hw:pmem' in data else 0, row['fits'])
        with open(self.fleet.config_file, 'a', encoding='utf-8') as file:
            file.write('[pci]\nalias = {"name": "pm", "resource_class": "PMEM_NAMESPACE_4GB"}\n')
        self.assertEqual((4, 1), self.numbers(self.row('--request', 'pm'), 'fits', 'wanted'))
        self.assertEqual(2, self.row('--request', 'pm:2')['fits'])
        with open(path, 'w', encoding='utf-8') as file:
            file.write('[1]')
        for wrong in (['--request', 'nobody'], ['--request', 'A=1,A=2'], ['--extra-specs', path],
                      ['--extra-specs', f'{path}.gone'], ['--numa-nodes', '1'], ['--request', ',']):
            self.assertEqual(cmd_base.USAGE, self.fleet.run('fleet', 'capacity', *wrong).code, str(wrong))

    def test_a_table_fits_80_columns(self) -> None:
        for arguments in ([], ['--request', 'CUSTOM_PMEM_NAMESPACE_4GB=2', '--numa-nodes', '1']):
            answer = self.fleet.run('fleet', 'capacity', *arguments, '--max-width', '80')
            self.assertLessEqual(max(map(len, answer.out.splitlines())), 80)
            self.assertIn('as 3 hosts looked', answer.err)
            self.assertNotIn('no room', answer.err)
        self.assertIn('1 instance with that would fit now on 1 host; 1 more', answer.err)


class MapTestCase(QuestionsTestCase):

    def setUp(self) -> None:
        super().setUp()
        self.hosts = [self.host(name, devices=2) for name in ('rack2-10', 'rack1-7', 'spare')]
        self.instance = self.hosts[0].spawn(pmem=1)
        for host in self.hosts:
            self.fleet.push(host)
        self.page = os.path.join(self.state_path, 'fleet.html')

    def draw(self, *arguments: str, code: int = cmd_base.OK) -> str:
        answer = self.fleet.run('fleet', 'map', '--output', self.page, *arguments)
        self.assertEqual((code, ''), (answer.code, answer.out), answer.err)
        self.said = answer.err
        with open(self.page, encoding='utf-8') as file:
            return file.read()

    def groups(self, page: str) -> list[tuple[str, str]]:
        return re.findall(r'<h2>(.*?)</h2>\n<p class="told">(.*?)</p>', page)

    def test_hosts_stand_in_their_groups_with_the_sums(self) -> None:
        self.assertEqual([('rack1', '1 host: 2 free'), ('rack2', '1 host: 1 held, 1 free'),
                          ('Without a group', '1 host: 2 free')], self.groups(self.draw('--group', '^(rack[0-9]+)-')))
        self.assertIn('as 3 hosts looked', self.said)
        self.assertEqual(['rack', 'Without a group'], [
            name for name, _sums in self.groups(self.draw('--group', '^rack'))])
        self.assertEqual([], self.groups(self.draw('--host', 'rack*')))
        self.fleet.mirror.transact(lambda connection: connection.execute(sa.update(models.fleet_hosts).values(
            group_name='<b>')))
        self.assertEqual([('&lt;b&gt;', '3 hosts: 1 held, 5 free')], self.groups(self.draw()))

    def test_a_host_that_needs_attention_is_named_and_none_of_a_silent_host_is_free(self) -> None:
        self.fleet.grow_old(self.hosts[0], 3600)
        self.fleet.close(self.hosts[1])
        page = self.draw('--group', '^(rack[0-9]+)-', code=cmd_base.ATTENTION)
        self.assertEqual(('rack2', '1 host: 2 unknown'), self.groups(page)[1])
        self.assertIn('2 hosts need attention', page)
        self.assertRegex(page, r'rack2-10</a> <span>unknown since \d{4}-')
        self.assertIn('rack1-7</a> <span>report-only: its store is older', page)
        self.assertIn('silent: rack2-10 since', self.said)

    def test_it_takes_as_many_statements_for_more_devices(self) -> None:
        before = len(self.statements())
        for host in self.hosts:
            host.machine.add_namespace('d9')
            host.audit()
            self.fleet.push(host)
        self.assertEqual(before, len(self.statements()))

    def statements(self) -> list[str]:
        seen: list[str] = []

        def note(_connection: Any, _cursor: Any, statement: str, *_others: Any) -> None:
            seen.append(statement)

        sa.event.listen(sa.Engine, 'after_cursor_execute', note)
        try:
            self.draw()
        finally:
            sa.event.remove(sa.Engine, 'after_cursor_execute', note)
        return seen

    def test_a_request_that_cannot_be_meant_is_refused_and_the_page_stays(self) -> None:
        before = self.draw()
        for wrong in (['--group', '('], ['--link', 'maps/all.html'], ['--link', 'javascript:{host}'], ['--host', 'x*']):
            answer = self.fleet.run('fleet', 'map', '--output', self.page, *wrong)
            self.assertEqual(cmd_base.USAGE, answer.code, str(wrong))
        with open(self.page, encoding='utf-8') as file:
            self.assertEqual(before, file.read())
        self.assertEqual(cmd_base.USAGE, self.fleet.run('fleet', 'map').code)


class MigrationMatrixTestCase(QuestionsTestCase):

    def setUp(self) -> None:
        super().setUp()
        for name, version in (('a1', '2.1.0'), ('a2', '2.1.0'), ('a3', '2.1.0'), ('b1', '2.0.0')):
            host = self.host(name, parents={'gpu': 4})
            host.machine.declare(MigrationType(fake.MDEV, 'gpu', 'nvidia-35', Attribute(version)))
            host.audit()
            self.fleet.push(host)
        self.last = host

    def test_hosts_that_declare_alike_are_one(self) -> None:
        found = self.fleet.ask('fleet', 'migration', 'matrix', '--type', 'nvidia-35')
        alike = ['a1', 'a2', 'a3']
        self.assertEqual([(alike, alike, 'yes'), (alike, ['b1'], 'no'), (['b1'], alike, 'yes')],
                         [(one['sources'], one['destinations'], one['verdict']) for one in found])
        self.assertEqual(['minor version'], [one['about'] for one in found[1]['reasons']])
        self.assertEqual([], [one for one in found if not 0 <= one['age_s'] <= 60])
        answer = self.fleet.run('fleet', 'migration', 'matrix', '--max-width', '80')
        self.assertLessEqual(max(map(len, answer.out.splitlines())), 80)
        self.assertIn('a1 and 2 more', answer.out)

    def test_a_silent_host_is_left_out(self) -> None:
        self.fleet.grow_old(self.last, 3600)
        answer = self.fleet.run('fleet', 'migration', 'matrix', '--type', 'nvidia-35', '-f', 'json')
        self.assertEqual(cmd_base.ATTENTION, answer.code)
        self.assertEqual([['a1', 'a2', 'a3']], [one['destinations'] for one in answer.data])
        self.assertIn('silent: b1', answer.err)


class StatementsTestCase(QuestionsTestCase):

    def test_a_question_about_one_device_takes_as_many_statements_in_a_large_fleet(self) -> None:
        host = self.host('compute', devices=1)
        self.fleet.push(host, {'d0': 'S-1'})
        before = self.statements('--serial', 'S-1')
        row = dict(self.fleet.mirror.rows(sa.select(models.fleet_hosts))[0]._mapping)
        self.fleet.mirror.transact(lambda connection: connection.execute(sa.insert(models.fleet_hosts), [
            {**row, 'host_uuid': str(uuid.UUID(int=number)), 'name': f'compute-{number}'} for number in range(300)]))
        self.assertEqual(before, self.statements('--serial', 'S-1'))
        self.assertEqual(before, self.statements('--host', 'compute'))

    def statements(self, *arguments: str) -> int:
        with counted() as seen:
            self.assertEqual('d0', self.fleet.ask('fleet', 'device', 'list', *arguments)[0]['identifier'])
        return len(seen)


@contextlib.contextmanager
def counted() -> Iterator[list[str]]:
    """The statements to a mirror, in a list that grows meanwhile."""
    seen: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_others: Any) -> None:
        if 'fleet_' in statement:
            seen.append(statement)

    sa.event.listen(sa.Engine, 'after_cursor_execute', note)
    try:
        yield seen
    finally:
        sa.event.remove(sa.Engine, 'after_cursor_execute', note)
