"""What people see: tables that fit, times, colours, the progress of long work."""

from __future__ import annotations

import io
import types
from typing import Any

import fixtures

from devicetrack.cmd import base as cmd_base
from devicetrack.cmd import progress
from devicetrack.cmd import screen
from devicetrack.objects.values import DeviceKey
from devicetrack.testing import fake
from devicetrack.tests import base
from devicetrack.tests.unit.cmd.test_repair import RepairCommandTestCase

UUID = '0c3f9a52-0b1a-4f0e-9d0c-3a7f8a1e2b01'


class Terminal(io.StringIO):

    def isatty(self) -> bool:
        return True


class FitTestCase(base.TestCase):

    def test_sentences_go_over_lines_and_identifiers_stay_whole(self) -> None:
        sentence = f'domain {UUID} names it and no row does, which is more than one line has room for'
        names, rows, _left_out = screen.fit(('device', 'detail'), [[f'mdev/{UUID}', sentence], ['vpmem/ns0', '']], 90,
                                 ('detail',))
        self.assertEqual(['device', 'detail'], names)
        self.assertEqual((f'mdev/{UUID}', sentence), (rows[0][0], ' '.join(rows[0][1].split('\n'))))
        self.assertTrue(any(UUID in line for line in rows[0][1].split('\n')))
        self.assertLessEqual(41 + max(map(len, rows[0][1].split('\n'))) + 7, 90)

    def test_without_room_the_spare_columns_go_one_by_one(self) -> None:
        rows = [['a' * 30, 'b' * 30, 'c' * 30]]
        for width, left in ((100, ['x', 'y', 'z']), (99, ['x', 'z']), (66, ['x'])):
            fitted = screen.fit(('x', 'y', 'z'), rows, width, spare=('y', 'z'))
            self.assertEqual((left, {'x', 'y', 'z'} - set(left)), (fitted.names, set(fitted.left_out)))

    def test_without_room_still_cells_stand_below_those_of_the_first_column(self) -> None:
        rows = [['mdev/a', 'held', UUID, 'cordoned: new firmware'], ['mdev/b', 'free', '', '']]
        names = ('device', 'status', 'owner', 'reasons')

        def table(width: int) -> tuple[list[str], list[list[str]]]:
            return screen.fit(names, rows, width, ('reasons',), below=('owner', 'reasons'))[:2]

        self.assertEqual((list(names), rows), table(83))
        self.assertEqual((['device / owner', 'status', 'reasons'], [
            [f'mdev/a\n  {UUID}', 'held', 'cordoned: new\nfirmware'], ['mdev/b', 'free', '']]), table(74))
        self.assertEqual((['device / owner / reasons', 'status'], [
            [f'mdev/a\n  {UUID}\n  cordoned: new firmware', 'held'], ['mdev/b', 'free']]), table(60))

    def test_one_thing_is_no_things(self) -> None:
        self.assertEqual(['0 devices', '1 device', '2,000 devices'],
                         [cmd_base.count(number, 'device') for number in (0, 1, 2000)])


class ColourTestCase(base.TestCase):

    def test_colours_are_for_terminals_that_want_them(self) -> None:
        self.useFixture(fixtures.EnvironmentVariable('TERM', 'xterm'))
        self.useFixture(fixtures.EnvironmentVariable('NO_COLOR', None))
        self.assertEqual('\x1b[31mcritical\x1b[0m', screen.paint('critical', Terminal()))
        self.assertEqual('critical', screen.paint('critical', io.StringIO()))
        self.assertEqual('ns0', screen.paint('ns0', Terminal()))
        for name, value in (('NO_COLOR', '1'), ('TERM', 'dumb')):
            with fixtures.EnvironmentVariable(name, value):
                self.assertEqual('critical', screen.paint('critical', Terminal()))


class ProgressTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.said: list[str] = []

    def command(self, stderr: io.StringIO) -> Any:
        return types.SimpleNamespace(app=types.SimpleNamespace(stderr=stderr), say=self.said.append)

    def test_a_terminal_has_one_line_that_goes(self) -> None:
        stream = Terminal()
        with progress.Progress(self.command(stream)) as shown:
            shown.show('1 of 2')
            shown.show('2 of 2')
        self.assertEqual(['', '| 1 of 2', '/ 2 of 2', ''], stream.getvalue().split('\r\x1b[K'))
        self.assertEqual([], self.said)

    def test_elsewhere_it_is_a_line_now_and_then(self) -> None:
        now = [0.0]
        self.useFixture(fixtures.MonkeyPatch('devicetrack.cmd.progress.time', types.SimpleNamespace(
            monotonic=lambda: now[0])))
        stream = io.StringIO()
        with progress.Progress(self.command(stream)) as shown:
            for number in range(7):
                now[0] = number * 10.0
                shown.show(f'{number} of 7')
        self.assertEqual((['3 of 7', '6 of 7'], ''), (self.said, stream.getvalue()))

    def test_the_time_that_has_passed_differs_from_line_to_line(self) -> None:
        self.assertEqual(['59 s', '1 min 0 s', '2 min 30 s', '121 min 0 s'],
                         [progress.duration(one) for one in (59, 60, 150, 7260)])


class OwnersTestCase(RepairCommandTestCase):

    def test_the_owner_the_class_and_the_node_of_a_mediated_device_are_listed_in_80_characters(self) -> None:
        instance = self.host.spawn(vgpu=1)
        answer = self.program.run('device', 'list', '--max-width', '80')
        self.assertIn(f'|   {instance.uuid} ', answer.out)
        self.assertRegex(answer.out, r'\| device / resource_class / instance_uuid +\| status ')
        self.assertIn('VGPU', answer.out)
        self.assertIn('numa_node', answer.out)
        self.assertEqual([], [line for line in answer.out.splitlines() if len(line) > 80])
        self.assertEqual('', self.program.run('device', 'list', '--long').err)

    def test_a_pipe_gets_all_columns_a_device_a_line(self) -> None:
        instance = self.host.spawn(vgpu=1)
        answer = self.program.run('device', 'list')
        self.assertEqual('', answer.err)
        [line] = [line for line in answer.out.splitlines() if instance.uuid in line]
        for told in (self.host.mdevs()[0], 'held', 'VGPU', 'gpu'):
            self.assertIn(told, line)


class TimesTestCase(RepairCommandTestCase):

    def test_a_screen_has_how_long_ago_it_was_and_a_pipe_the_time(self) -> None:
        self.host.spawn(pmem=1)
        self.program.run('device', 'cordon', 'vpmem/d0', '--no-wait')
        self.host.audit()
        self.assertRegex(self.program.run('request', 'list').out, r'asked 20\d\d-\d\d-\d\dT\S+; answered 20')
        self.useFixture(fixtures.MonkeyPatch('devicetrack.cmd.screen.is_terminal', lambda _stream: True))
        self.useFixture(fixtures.EnvironmentVariable('TERM', 'dumb'))
        self.assertRegex(self.program.run('request', 'list').out, r'asked \d+ s ago; answered \d+ s ago')
        self.assertRegex(self.program.run('device', 'list', '--long').out, r'\d+ s ago')
        self.assertRegex(self.program.run('device', 'show', 'vpmem/d0').out, r'created_at +\| \d+ s ago')
        self.assertRegex(self.program.run('device', 'history', 'vpmem/d0').out, r'^20\d\d-\d\d-\d\dT')
        for row in self.program.ask('request', 'list'):
            self.assertRegex(row['created_at'], r'^20\d\d-\S+Z$')


class ScreensTestCase(RepairCommandTestCase):
    """Every list of default columns fits 80 characters, with the longest names that there are."""

    def test_no_line_is_longer_than_80(self) -> None:
        self.useFixture(fixtures.EnvironmentVariable('CLIFF_MAX_TERM_WIDTH', '80'))
        self.host.spawn(pmem=1)
        instance = self.host.spawn(vgpu=2)
        self.host.manager.operator.cordon('mdev', 'gpu', parent=True,
                                           reason='new firmware, and then a look at the fans')
        self.program.run('device', 'cordon', f'mdev/{self.host.mdevs()[0]}', '--no-wait', '--reason', 'why ' * 20)
        [request] = self.program.ask('request', 'list')
        self.machine.delete_guest(instance.uuid)
        self.machine.change(DeviceKey(fake.VPMEM, 'd0'), devpath='/dev/dax9.0')
        for command in (('device', 'list'), ('device', 'list', '--withheld'), ('device', 'show', self.host.mdevs()[0]),
                        ('instance', 'list'), ('instance', 'show', instance.uuid), ('host', 'list'), ('host', 'show'),
                        ('request', 'list'), ('request', 'show', request['request_uuid']), ('audit',), ('--help',),
                        ('audit', '--repair', '--dry-run'), ('migration', 'facts'), ('recover', '--from-hypervisor',
                                                                                     '--dry-run'),
                        ('explain', '--resource', 'CUSTOM_PMEM_NAMESPACE_4GB=2', '--resource', 'VGPU=9')):
            answer = self.program.run(*command)
            self.assertTrue(answer.out, command)
            self.assertEqual([], [line for line in answer.out.splitlines() if len(line) > 80], ' '.join(command))
