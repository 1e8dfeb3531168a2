"""Forks of a process that has the library loaded behave like programs that were started."""

from __future__ import annotations

import json
import os
import signal

from devicetrack.tests import base
from devicetrack.tests import processes

_SAY = 'import json, os, sys; print(json.dumps([sys.argv, os.getcwd(), os.environ.get("WORD"), sys.stdin.read()]))'


class ProcessTestCase(base.TestCase):

    def test_it_has_arguments_files_a_directory_and_an_environment_of_its_own(self) -> None:
        directory = self.temp_dir()
        process = processes.Process('-c', _SAY, 'a', 'b', cwd=directory, env={**os.environ, 'WORD': 'w'})
        self.assertNotEqual(os.getpid(), process.pid)
        process.stdin.write('in')
        self.assertEqual([['-c', 'a', 'b'], directory, 'w', 'in'], json.loads(process.communicate()[0]))
        self.assertEqual(0, process.returncode)

    def test_its_end_is_told_as_of_every_process(self) -> None:
        for program, status in (('', 0), ('raise SystemExit(3)', 3), ('import sys; sys.exit("words")', 1),
                                ('import os; os._exit(4)', 4), ('1 / 0', 1),
                                ('import os, signal; os.kill(os.getpid(), signal.SIGTERM)', -signal.SIGTERM)):
            self.assertEqual(status, processes.run('-c', program).returncode, program)

    def test_what_it_says_of_an_error_is_kept_apart(self) -> None:
        answer = processes.run('-c', 'import sys; print("out"); sys.exit("err")')
        self.assertEqual(('out\n', 'err\n'), (answer.stdout, answer.stderr))

    def test_it_can_be_killed(self) -> None:
        process = processes.Process('-c', 'print("there", flush=True); input()')
        self.assertEqual('there\n', process.stdout.readline())
        process.kill()
        self.assertEqual(-signal.SIGKILL, process.wait())
        process.communicate()
