"""Completion for bash: bash loads the file that is installed, and completes by it."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

from devicetrack.tests import base

_INSTALLED = pathlib.Path(__file__).parents[4] / 'share' / 'bash-completion' / 'completions' / 'devicetrack-manage'
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


class BashTestCase(base.TestCase):

    def test_commands_and_options_are_completed(self) -> None:
        self.assertTrue(os.path.exists(_LIBRARY), 'apt-get install bash-completion')
        path = f'{os.path.dirname(sys.executable)}:{os.environ["PATH"]}'
        done = subprocess.run(
            ['bash', '--norc', '-c', _COMPLETE, 'bash', _LIBRARY, str(_INSTALLED)], env={**os.environ, 'PATH': path},
            input='d\ndevice h\ndevice history --si\nhost sh\n', capture_output=True, text=True, check=False)
        self.assertEqual((0, ''), (done.returncode, done.stderr))
        self.assertEqual(['db device', 'history', '--since', 'show'], done.stdout.splitlines())
