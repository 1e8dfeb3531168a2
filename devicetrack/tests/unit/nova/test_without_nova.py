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
        for program, arguments in (
                *((program, ()) for program in PROGRAMS), ('devicetrack-nova-adopt', ('--check',)),
                # Its options are those of nova-compute.
                ('devicetrack-nova-compute', ('--help',)), ('devicetrack-nova-compute', ('--version',))):
            done = self.run_without('nova', program, *arguments)
            [line] = done.stderr.splitlines()
            self.assertEqual((1, ''), (done.returncode, done.stdout))
            self.assertTrue(line.startswith(f'{program} does not start: '), line)
            self.assertIn('has no package nova: install devicetrack with the extra nova', line)

    def test_the_program_that_adopts_explains_itself(self) -> None:
        for package in ('nova', 'libvirt'):
            for arguments, says in ((('--help',), '--apply'), (('-h',), '--apply'),
                                    (('--version',), 'devicetrack-nova-adopt ')):
                done = self.run_without(package, 'devicetrack-nova-adopt', *arguments)
                self.assertEqual((0, ''), (done.returncode, done.stderr))
                self.assertIn(says, done.stdout)
