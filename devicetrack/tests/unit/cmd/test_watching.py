"""Commands with ``--watch``."""

from __future__ import annotations

import io
from typing import Any

import fixtures as base_fixtures
from oslo_config import cfg

from devicetrack import exception
from devicetrack.cmd import base as cmd_base
from devicetrack.cmd import manage
from devicetrack.pictures import moments
from devicetrack.tests.unit.cmd.test_repair import RepairCommandTestCase


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class WatchTestCase(RepairCommandTestCase):

    def setUp(self) -> None:
        super().setUp()
        for name, value in (('COLUMNS', '80'), ('LINES', '24'), ('NO_COLOR', '1')):
            self.useFixture(base_fixtures.EnvironmentVariable(name, value))

    def watch(self, *arguments: str, acts: Any = ()) -> tuple[int, list[str], str]:
        """The exit code, each screen, and what is on stderr. Between two screens something happens."""
        acts = iter(acts)

        def sleep(_seconds: float) -> None:
            try:
                next(acts)()
            except StopIteration:
                raise KeyboardInterrupt from None

        self.useFixture(base_fixtures.MonkeyPatch('devicetrack.cmd.watching.time.sleep', sleep))
        out, err = _Terminal(), _Terminal()
        code = manage.Manage(cfg.ConfigOpts(), out, err).run(
            ['--config-file', self.program.config_file, *arguments, '--watch'])
        return code, out.getvalue().split('\x1b[2J\x1b[H')[1:], err.getvalue()

    def test_each_screen_is_the_answer_of_that_moment(self) -> None:
        gone = exception.HypervisorUnreachable('test', 'it is gone')
        code, screens, err = self.watch('device', 'list', acts=[
            lambda: self.host.spawn(pmem=1), lambda: self.machine.before('get_inventory', gone, times=1), lambda: None])
        self.assertEqual((cmd_base.INTERRUPTED, 4, ''), (code, len(screens), err))
        self.assertNotIn(' held ', screens[0])
        self.assertIn(' held ', screens[1])
        self.assertIn('it is gone', screens[2])
        self.assertIn(' held ', screens[3])
        self.assertEqual([True] * 4, [' Ctrl-C ends this\n' in one for one in screens])

    def test_every_command_that_people_watch_has_it_and_draws_as_without_it(self) -> None:
        # How long ago something was may differ between two screens.
        self.useFixture(base_fixtures.MonkeyPatch('devicetrack.pictures.moments.ago', moments.local))
        instance = self.host.spawn(pmem=1)
        self.program.run('device', 'cordon', 'vpmem/d1', '--no-wait')
        for command in (('device', 'list'), ('device', 'list', '--all'), ('device', 'show', 'vpmem/d0'),
                        ('host', 'list'), ('host', 'show'), ('host', 'map'), ('instance', 'list'), ('request', 'list')):
            code, screens, err = self.watch(*command, acts=[lambda: None])
            self.assertEqual((cmd_base.INTERRUPTED, 2, ''), (code, len(screens), err), str(command))
            self.assertIn('d0' if command[0] == 'device' or 'map' in command else '', screens[1])
            self.assertEqual(*[one.partition('\n')[2].split('claimed')[0].rstrip() for one in screens])
            self.assertNotIn('\x1b', screens[1])
        self.assertIn(instance.uuid, self.watch('instance', 'list')[1][0])

    def test_what_does_not_fit_is_counted(self) -> None:
        self.useFixture(base_fixtures.EnvironmentVariable('LINES', '6'))
        _code, [screen], _err = self.watch('host', 'map')
        self.assertLessEqual(screen.rstrip().count('\n'), 5)
        self.assertRegex(screen, r'\n\d+ more lines: a higher terminal shows them\n')

    def test_an_error_at_once_ends_it_and_another_form_is_refused(self) -> None:
        code, screens, err = self.watch('device', 'show', 'vpmem/d00')
        self.assertEqual((cmd_base.ERROR, []), (code, screens))
        self.assertIn('no instance has it', err)
        for more in (('-f', 'json'), ('-f', 'csv')):
            code, screens, err = self.watch('device', 'list', *more)
            self.assertEqual((cmd_base.USAGE, []), (code, screens))
            self.assertIn('goes with no other format', err)
        for command in (('device', 'list'), ('host', 'map', '--output', f'{self.state_path}/map.html')):
            self.assertEqual(cmd_base.USAGE, self.program.run(*command, '--watch').code)
