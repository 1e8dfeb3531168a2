"""``make demo``: it runs, and what it says is what happened."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import devicetrack
from devicetrack.tests import base

ROOT = pathlib.Path(devicetrack.__file__).parent.parent
DEMO = ROOT / 'examples' / 'demo'


class TestDemo(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.temporary = self.temp_dir()

    def run_demo(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run the demo, which keeps everything below a directory of this test's."""
        return subprocess.run(
            [sys.executable, *(command or [str(DEMO / 'main.py')])], capture_output=True, text=True, timeout=300,
            env=os.environ | {'TMPDIR': self.temporary, 'PYTHONPATH': os.pathsep.join(
                [str(ROOT), str(DEMO), os.environ.get('PYTHONPATH', '')])})

    def test_it_tells_its_story_to_the_end_and_leaves_nothing(self) -> None:
        told = self.run_demo()

        self.assertEqual((0, ''), (told.returncode, told.stderr))
        chapters = re.findall(r'^(\d)\. ', told.stdout, re.MULTILINE)
        self.assertEqual(['1', '2', '3', '4', '5', '6'], chapters)
        text = ' '.join(told.stdout.split())
        [(won, lost)] = re.findall(r'(\d+) got all they asked for, (\d+) were refused and hold nothing', text)
        self.assertEqual(32, int(won) + int(lost))
        self.assertRegex(text, r'\d+ [A-Z0-9_]+ wanted, \d+ of \d+ free: \d+ held by \d+ instance')
        self.assertIn('Nothing is lost, and nothing is owned twice.', text)
        self.assertRegex(text, r'At that moment \d+ of 32 MiB still read `secret of instance-\d+`')
        self.assertIn('found 0 differences', text)
        self.assertEqual([], [line for line in told.stdout.splitlines() if len(line) > 100 or line != line.rstrip()])
        self.assertEqual([], os.listdir(self.temporary))

    def test_broken_promise_ends_it_with_status_1_and_says_which(self) -> None:
        """Somebody takes a row away while the service is dead."""
        told = self.run_demo('-c', '\n'.join((
            'import sqlite3, sys',
            'import main, process',
            'kill = process.Process.kill',
            'def kill_and_lose_a_row(self):',
            '    status = kill(self)',
            '    record = sqlite3.connect(self._host.directory / "state" / "devicetrack.sqlite")',
            '    record.execute("DELETE FROM assignments WHERE identifier =" '
            '                   " (SELECT min(identifier) FROM assignments)")',
            '    record.commit()',
            '    return status',
            'process.Process.kill = kill_and_lose_a_row',
            'sys.exit(main.main())')))

        self.assertEqual(1, told.returncode)
        self.assertIn('The demo failed. This did not hold: the record is what it was.', told.stderr)
        self.assertNotIn('4. Killed', told.stdout)
