"""Completion for bash and zsh: the shell loads the file that is installed, and completes by it."""

from __future__ import annotations

import io
import os
import pathlib
import pty
import shutil
import subprocess
import sys
import tempfile

from oslo_config import cfg

from devicetrack.cmd import manage
from devicetrack.tests import base

_SHARE = pathlib.Path(__file__).parents[4] / 'share'
_INSTALLED = _SHARE / 'bash-completion' / 'completions' / 'devicetrack-manage'
_FUNCTIONS = _SHARE / 'zsh' / 'site-functions'

# What bash does when the user presses Tab after each line. At "=" it begins a new word. Nothing else is loaded:
# people may have no package bash-completion.
_COMPLETE = r"""
source "$1" || exit
while read -r line; do
    COMP_LINE="devicetrack-manage $line" COMP_POINT=${#COMP_LINE}
    read -ra COMP_WORDS <<<"devicetrack-manage ${line//=/ = }"
    [[ $line == *" '" || $line == *= ]] && COMP_WORDS+=("")
    COMP_WORDS=("${COMP_WORDS[@]/\'/}")
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    _devicetrack_manage devicetrack-manage && echo "${COMPREPLY[@]}"
done
"""

# A line editor needs a terminal. Control-X writes the line into a pipe, once Tab has completed it.
_RC = r"""
fpath=($FUNCTIONS $fpath)
autoload -U compinit && compinit -u -D
told() { print -r -- "$BUFFER" >$PIPE; BUFFER= }
zle -N told && bindkey '^I' complete-word '^X' told
setopt no_list_beep
PS1=
print >$PIPE
"""


class PrintedTestCase(base.TestCase):

    def test_the_program_prints_what_each_shell_loads(self) -> None:
        for shell, has in (('zsh', (_FUNCTIONS / '_devicetrack-manage').read_text('utf-8')),
                           ('bash', 'complete -F _devicetrack_manage devicetrack-manage'), ('none', "cmds_device='")):
            out = io.StringIO()
            self.assertEqual(0, manage.Manage(cfg.ConfigOpts(), out).run(['complete', '--shell', shell]))
            self.assertIn(has, out.getvalue())


class BashTestCase(base.TestCase):

    def completed(self, *lines: str) -> list[str]:
        """What bash offers after each line. A quote stands for a word that has not begun."""
        path = f'{os.path.dirname(sys.executable)}:{os.environ["PATH"]}'
        done = subprocess.run(
            ['bash', '--norc', '-c', _COMPLETE, 'bash', str(_INSTALLED)], env={**os.environ, 'PATH': path},
            input='\n'.join((*lines, '')), capture_output=True, text=True, check=False)
        self.assertEqual((0, ''), (done.returncode, done.stderr))
        return done.stdout.splitlines()

    def test_commands_and_options_are_completed(self) -> None:
        self.assertEqual(['db device', 'history', '--since', 'show', 'show', '--long'], self.completed(
            'd', 'device h', 'device history --si', 'host sh', 'host --debug sh', 'device history vpmem/ns0 --lo'))

    def test_options_of_the_program_may_stand_before_a_command(self) -> None:
        directory = self.temp_dir()
        path = os.path.join(directory, 'device')
        pathlib.Path(path).touch()
        self.assertEqual(
            ['--config-file --config-dir', '--debug', path, path, directory + '/device', 'db device', 'history',
             'history', 'show', 'audit'],
            self.completed('--con', '-v --de', f'--config-file {path[:-2]}', f'--config-file={path[:-2]}',
                           f'--config-dir {directory}/', f'--config-file {path} d', f'--config-file={path} device h',
                           f'--config-file {path} --config-file=host device h', f'-v --log-file {path} host sh',
                           f'--config-file {path} au'))

    def test_a_word_that_has_not_begun(self) -> None:
        [commands] = self.completed("--config-file /etc/nova/nova.conf '")
        self.assertIn(' device ', commands)
        self.assertNotIn('--', commands)


class ProgramOptionsTestCase(base.TestCase):

    def test_both_shells_know_the_options_of_the_program(self) -> None:
        parser = manage.Manage(cfg.ConfigOpts()).parser
        flags, valued = ({name for action in parser._actions for name in action.option_strings
                          if (action.nargs == 0) == is_flag} for is_flag in (True, False))
        for path, quotes in ((_INSTALLED, "''"), (_FUNCTIONS / '_devicetrack-manage', '()')):
            text = path.read_text()
            for name, expected in (('flags', flags), ('valued', valued)):
                found = text.partition(f'{name}={quotes[0]}')[2].partition(quotes[1])[0]
                self.assertEqual(expected, set(found.split()), f'{path} {name}')


class ZshTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.assertTrue(shutil.which('zsh'), 'apt-get install zsh')
        home = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, home)
        self.pipe = os.path.join(home, 'pipe')
        os.mkfifo(self.pipe)
        pathlib.Path(home, '.zshrc').write_text(_RC)
        controller, terminal = pty.openpty()
        self.terminal = controller
        shell = subprocess.Popen(
            ['zsh', '-d', '-i'], stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True,
            env={'HOME': home, 'ZDOTDIR': home, 'TERM': 'dumb', 'PIPE': self.pipe, 'FUNCTIONS': str(_FUNCTIONS),
                 'PATH': f'{os.path.dirname(sys.executable)}:{os.environ["PATH"]}'})
        os.close(terminal)
        self.addCleanup(os.close, controller)
        self.addCleanup(shell.wait)
        self.addCleanup(shell.kill)
        self.told()

    def told(self) -> str:
        with open(self.pipe) as file:
            return file.read().rstrip('\n')

    def completed(self, line: str) -> str:
        """What becomes of a line when the user presses Tab after it."""
        os.write(self.terminal, f'{line}\t\x18'.encode())
        return self.told()

    def test_commands_and_options_are_completed(self) -> None:
        for line, expected in (
                ('dev', 'devicetrack-manage device '), ('device his', 'device history '),
                ('device history vpmem/ns0 --sin', 'device history vpmem/ns0 --since '),
                ('host --debug sh', 'host --debug show '), ('--config-f', '--config-file '),
                ('--config-file device device his', '--config-file device device history ')):
            self.assertEqual(f'devicetrack-manage {expected.removeprefix("devicetrack-manage ")}',
                             self.completed(f'devicetrack-manage {line}'))

    def test_an_argument_may_be_a_file(self) -> None:
        path = os.path.join(os.path.dirname(self.pipe), 'facts.json')
        pathlib.Path(path).touch()
        self.assertEqual(f'devicetrack-manage migration matrix --facts {path} ',
                         self.completed(f'devicetrack-manage migration matrix --facts {path[:-4]}'))
        for option in ('--config-file ', '--config-file='):
            self.assertEqual(f'devicetrack-manage {option}{path} ',
                             self.completed(f'devicetrack-manage {option}{path[:-4]}'))
