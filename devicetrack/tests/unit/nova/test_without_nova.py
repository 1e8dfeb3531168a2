"""The programs for Nova where Nova is not installed."""

from __future__ import annotations

import subprocess
import sys

from devicetrack.tests import base

PROGRAMS = {'devicetrack-nova-compute': 'from devicetrack.nova.command import main',
            'devicetrack-nova-adopt': 'from devicetrack.cmd.nova import adopt as main'}


class WithoutNovaTestCase(base.TestCase):

    def run_without(self, package: str, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, '-W', 'ignore', '-c', f'import sys; sys.modules[{package!r}] = None; {PROGRAMS[program]}; '
             'sys.exit(main())', *arguments], capture_output=True, text=True, check=False, timeout=base.HANGS_S)

    def test_one_line_says_what_to_install(self) -> None:
        for program in PROGRAMS:
            for arguments in ((), ('--help',), ('--version',)):
                done = self.run_without('nova', program, *arguments)
                [line] = done.stderr.splitlines()
                self.assertEqual((1, ''), (done.returncode, done.stdout))
                self.assertTrue(line.startswith(f'{program} does not start: '), line)
                self.assertIn('has no package nova: install devicetrack with the extra nova', line)
