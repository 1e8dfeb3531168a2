"""Completion for bash and zsh: the shell loads the file that is installed, and completes by it."""

from __future__ import annotations

import os
import pathlib
import pty
import shutil
import subprocess
import sys
import tempfile

from devicetrack.tests import base

_SHARE = pathlib.Path(__file__).parents[4] / 'share'
_INSTALLED = _SHARE / 'bash-completion' / 'completions' / 'devicetrack-manage'
_FUNCTIONS = _SHARE / 'zsh' / 'site-functions'
_LIBRARY = '/usr/share/bash-completion/bash_completion'

# What bash does when the user presses Tab after the words of each line.
_COMPLETE = r"""
source "$1" && source "$2" || exit
while read -r line; do
    COMP_WORDS=(devicetrack-manage $line) COMP_LINE="devicetrack-manage $line" COMP_POINT=${#COMP_LINE}
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    _devicetrack_manage && echo "${COMPREPLY[@]}"
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


class BashTestCase(base.TestCase):

    def test_commands_and_options_are_completed(self) -> None:
        self.assertTrue(os.path.exists(_LIBRARY), 'apt-get install bash-completion')
        path = f'{os.path.dirname(sys.executable)}:{os.environ["PATH"]}'
        done = subprocess.run(
            ['bash', '--norc', '-c', _COMPLETE, 'bash', _LIBRARY, str(_INSTALLED)], env={**os.environ, 'PATH': path},
            input='d\ndevice h\ndevice history --si\nhost sh\n', capture_output=True, text=True, check=False)
        self.assertEqual((0, ''), (done.returncode, done.stderr))
        self.assertEqual(['db device', 'history', '--since', 'show'], done.stdout.splitlines())


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
                ('host --debug sh', 'host --debug show ')):
            self.assertEqual(f'devicetrack-manage {expected.removeprefix("devicetrack-manage ")}',
                             self.completed(f'devicetrack-manage {line}'))

    def test_an_argument_may_be_a_file(self) -> None:
        path = os.path.join(os.path.dirname(self.pipe), 'facts.json')
        pathlib.Path(path).touch()
        self.assertEqual(f'devicetrack-manage migration matrix --facts {path} ',
                         self.completed(f'devicetrack-manage migration matrix --facts {path[:-4]}'))
