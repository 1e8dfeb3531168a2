"""The names of instances in what commands print: beside the UUIDs, on one line, within 80 columns."""

from __future__ import annotations

import os
from typing import Any

import fixtures as base_fixtures

from devicetrack.claims.instance_fields import InstanceFields
from devicetrack.cmd import base as cmd_base
from devicetrack.testing import fixtures
from devicetrack.testing.fixtures import Instance
from devicetrack.tests import base
from devicetrack.tests.unit.cmd import program
from devicetrack.tests.unit.fleet import fleets

UUIDS = ('0c3f9a52-0b1a-4f0e-9d0c-3a7f8a1e2b01', '1c9e5b7a-4d20-4683-9f0e-3f635b5b9d0e')
HOSTILE = '<script>document.title = "run"</script>"\' onload=x\n\u202e\x1b[31m$(echo run)&amp;'


class Named(InstanceFields):

    def display_name(self, instance: Any) -> str | None:
        return str(instance.display_name)


class NamedInstance(Instance):
    display_name = ''


class NamesTestCase(base.TestCase):

    scenarios = base.table(
        ('a short one', 'web-1'), ('words of others', HOSTILE), ('a long one', 'x' * 255),
        ('a long one of wide characters', '\u540d' * 255), ('wide characters', '\u540d' * 20), names=('name',))
    name: str

    def setUp(self) -> None:
        super().setUp()
        host = fixtures.Host(devices=1, parents={'pci_0000_84_00_0': 2}, name='compute-7')
        host.instance_fields = Named()
        self.host = self.useFixture(host)
        self.program = self.useFixture(program.Program(self.host.configuration, self.host.machine))
        for uuid, wanted in zip(UUIDS, ({'pmem': 1}, {'vgpu': 1}), strict=True):
            instance = NamedInstance(uuid)
            instance.display_name = self.name
            self.host.spawn(instance, **wanted)

    def lines(self, *arguments: str) -> list[str]:
        """What people see, on a terminal of 80 columns."""
        answer = self.program.run(*arguments)
        self.assertNotIn(answer.code, (cmd_base.ERROR, cmd_base.USAGE), answer.err)
        self.assertTrue(all(line.isprintable() for line in (answer.out + answer.err).splitlines()))
        return answer.out.splitlines()

    @property
    def begins(self) -> str:
        """The beginning of the name, as a line shows it."""
        return 'web-1' if self.name == 'web-1' else self.name[:8]

    def test_programs_get_the_whole_name(self) -> None:
        held = [line for line in self.program.ask('device', 'list') if line['status'] == 'held']
        asked = [*self.program.ask('instance', 'list'), self.program.ask('instance', 'show', UUIDS[0]), *held,
                 self.program.ask('device', 'show', 'd0'), *self.program.ask('device', 'list', '--all'),
                 self.program.ask('instance', 'history', UUIDS[0])[0]]
        self.assertEqual({self.name}, {one['instance_name'] for one in asked})
        self.assertEqual({self.name}, {one['instance_name'] for one in asked[0]['devices']})
        self.assertEqual({None}, {line['instance_name'] for line in self.program.ask('device', 'list')
                                  if line['status'] != 'held'})

    def test_people_get_one_line_beside_the_uuid(self) -> None:
        for command in (('instance', 'list'), ('instance', 'list', '--long'), ('instance', 'show', UUIDS[1]),
                        ('device', 'list'), ('device', 'list', '--all'), ('device', 'show', 'd0'),
                        ('device', 'history', 'd0'), ('instance', 'history', UUIDS[0]), ('host', 'map')):
            self.assertIn(self.begins, '\n'.join(self.lines(*command)), str(command))

    def test_a_terminal_has_room_for_it(self) -> None:
        for command in (('instance', 'list'), ('device', 'list'), ('device', 'list', '--all')):
            lines = self.lines(*command, '--max-width', '80')
            self.assertIn(self.begins, '\n'.join(lines), str(command))
            self.assertEqual([], [line for line in lines if _columns(line) > 80])

    def test_a_picture_shows_it_and_runs_nothing(self) -> None:
        path = os.path.join(self.useFixture(base_fixtures.TempDir()).path, 'map.html')
        self.lines('host', 'map', '--output', path)
        with open(path, encoding='utf-8') as file:
            page = file.read()
        self.assertIn('>named</span>', page)
        self.assertNotIn('<script>document', page)
        self.assertNotIn('\x1b', page)

    def test_explain_says_who_has_the_devices(self) -> None:
        answer = self.program.run('explain', '--instance', UUIDS[0])
        self.assertIn(f'it is named "{self.begins}', answer.err)

    def test_nobody_finds_an_instance_by_it(self) -> None:
        for command in ('show', 'history'):
            answer = self.program.run('instance', command, self.name)
            self.assertEqual(cmd_base.USAGE, answer.code)
            self.assertTrue(all(line.isprintable() for line in answer.err.splitlines()))

    def test_the_mirror_of_a_fleet_has_it(self) -> None:
        fleet = self.useFixture(fleets.Fleet(f'sqlite:///{self.useFixture(base_fixtures.TempDir()).path}/mirror'))
        fleet.push(self.host)
        held = fleet.ask('fleet', 'device', 'list', '--status', 'held')
        self.assertEqual([self.name] * 2, [line['instance_name'] for line in held])
        answer = fleet.run('fleet', 'device', 'list', '--max-width', '80')
        self.assertIn(self.begins, answer.out)
        self.assertTrue(all(line.isprintable() for line in answer.out.splitlines()))
        self.assertEqual(self.name, fleet.ask('fleet', 'instance', 'history', UUIDS[0])[0]['instance_name'])


def _columns(line: str) -> int:
    return sum(2 if one == '\u540d' else 1 for one in line)


class UnnamedTestCase(base.TestCase):

    def test_a_table_has_no_column_for_it(self) -> None:
        host = self.useFixture(fixtures.Host(devices=1, name='compute-7'))
        host.spawn(pmem=1)
        run = self.useFixture(program.Program(host.configuration, host.machine)).run
        for command in (('instance', 'list'), ('device', 'list')):
            self.assertNotIn('instance_name', run(*command).out)
