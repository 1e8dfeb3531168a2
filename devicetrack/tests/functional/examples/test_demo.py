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

# The demo, with the processes that it starts as forks: ten new interpreters load the library for longer than the story
# takes. ``make demo`` starts them as they are, and so does the test of a broken promise.
WITH_FORKS = """
import sys
import main, process
from devicetrack.tests.functional.examples import forks
process.subprocess = forks
sys.exit(main.main())
"""


class TestDemo(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.temporary = self.temp_dir()

    def run_demo(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run the demo, which keeps everything below a directory of this test's."""
        return subprocess.run(
            [sys.executable, *command], capture_output=True, text=True,
            timeout=base.HANGS_S, env=os.environ | {'TMPDIR': self.temporary, 'PYTHONPATH': os.pathsep.join(
                [str(ROOT), str(DEMO), os.environ.get('PYTHONPATH', '')])})

    def test_it_tells_its_story_to_the_end_and_leaves_nothing(self) -> None:
        told = self.run_demo('-c', WITH_FORKS)

        self.assertEqual((0, ''), (told.returncode, told.stderr))
        chapters = re.findall(r'^(\d+)\. ', told.stdout, re.MULTILINE)
        self.assertEqual([str(number) for number in range(1, 11)], chapters)
        text = ' '.join(told.stdout.split())
        [(won, lost)] = re.findall(r'(\d+) got all they asked for, (\d+) were refused and hold nothing', text)
        self.assertEqual(32, int(won) + int(lost))
        self.assertRegex(text, r'\d+ [A-Z0-9_]+ wanted, \d+ of \d+ free: \d+ held by \d+ instance')
        self.assertIn('Nothing is lost, and nothing is owned twice.', text)
        self.assertRegex(text, r'At that moment \d+ of 32 MiB still read `secret of instance-\d+`')
        self.check_resizes(text)
        self.check_repair(text)
        self.check_placement(text)
        self.check_functions(text)
        self.check_fleet(text)
        self.assertEqual([], [line for line in told.stdout.splitlines() if len(line) > 100 or line != line.rstrip()])
        self.assertEqual([], os.listdir(self.temporary))

    def check_resizes(self, text: str) -> None:
        [(name, flavor, other, old)] = re.findall(
            r'(instance-\d+), an? (\w+\.small), is resized to an? (\w+\.small) .* its last, (ns\d) still reads', text)
        self.assertNotEqual(flavor, other)
        [tried] = re.findall(r'definition has the new devices: .*<path>\S+/(ns\d)</path>', text)
        self.assertNotEqual(old, tried)
        self.assertIn(f'{old} (16MB) old, active old, active', text)
        self.assertIn(f'{tried} (16MB) incoming, claimed current, active', text)
        reads = re.findall(r"(ns\d) (instance-\d+|nobody) (b'secret of instance-\d+|16 MiB of zeros)", text)
        self.assertEqual([(old, name, f"b'secret of {name}"), (tried, 'nobody', '16 MiB of zeros'),
                          (old, 'nobody', '16 MiB of zeros')], reads[:3])
        kept, owner, read = reads[3]
        self.assertNotEqual(old, kept)
        self.assertEqual((name, f"b'secret of {name}"), (owner, read))
        self.assertRegex(text, rf'{name} {other} active {kept} \(16MB\)')

    def check_repair(self, text: str) -> None:
        [lost] = re.findall(r' (ns\d) nobody instance-33', text)
        [over] = re.findall(r' (ns\d) instance-\d+ no guest', text)
        self.assertRegex(text, rf'\$ devicetrack-manage audit .*critical used but unrecorded: vpmem/{lost} ')
        self.assertRegex(text, rf'{lost}: used but unrecorded: .* orphaned: its definition records it as ours')
        self.assertIn(f'{over}: owned by an instance that is over: ', text)
        self.assertIn('takes no claims: its store is older than its guests: ', text)
        self.assertRegex(text, rf'audit --repair --accept --no-wait .*adopt vpmem/{lost} of instance \S+ '
                               'no row -> current, active')
        [request] = re.findall(r'the host.s manager runs: request (\S+) waits for its next audit', text)
        self.assertRegex(text, rf'request show {request} .* outcome \| done \| .* 1 of 1 repairs done')
        self.assertIn('$ devicetrack-manage audit devicetrack-manage: host demo-host: no differences', text)
        self.assertRegex(text, r'instance-34 tries again, gets ns\d \(16MB\), and reads 16 MiB of zeros in it')
        self.assertIn('found 0 differences', text)

    def check_placement(self, text: str) -> None:
        self.assertRegex(text, r'demo-host_pci_0000_84_00_0 VGPU 4 0 \d ')
        [(name, card, also)] = re.findall(
            r'For (instance-\d+), .* demo-host_pci_0000_(8\d)_00_0: 1 VGPU \w+ \(card (\d+)\)', text)
        self.assertEqual(card, also)
        self.assertRegex(text, rf'{name} demo-host 1 CUSTOM_PMEM_\w+ its migration demo-host_pci_0000_{card}')
        before, after = [[int(figure) for figure in figures] for figures in re.findall(
            r'demo-host CUSTOM_PMEM_NAMESPACE_16MB 6 (\d) (\d)', text)[1:3]]
        self.assertEqual(([0, after[1]], 6), (before, sum(after)))
        self.assertIn('The error of the service: confirm: somebody else changed the allocations of ', text)
        self.assertIn('$ devicetrack-manage placement audit devicetrack-manage: host demo-host: no differences', text)
        self.assertRegex(text, r'\d+ devices of \d+ instances are allocated where the record has them')

    def check_functions(self, text: str) -> None:
        self.assertRegex(text, r'0000:01:00\.0 disk nvme 0000:03:00\.0 card igb 0000:03:10\.0 port of the card igbvf')
        self.assertIn('<address domain="0x0000" bus="0x01" slot="0x00" function="0x0" />', text)
        self.assertIn('it reads 8 MiB of zeros. Only then second-tenant gets it.', text)
        self.assertIn('1 CUSTOM_PCI_8086_10C9 wanted, 0 of 1 free: 1 withheld (excluded)', text)
        self.assertIn('1 CUSTOM_PCI_8086_10CA wanted, 0 of 2 free: 2 withheld (excluded)', text)

    def check_fleet(self, text: str) -> None:
        self.assertRegex(text, r'fleet device history --serial SN-compute-2 .* claimed \S+ on compute-2; .* released ')
        self.assertEqual([('2', '2'), ('1', '1'), ('2', '2')], re.findall(
            r'(\d) instances? with that would fit now on (\d) hosts?', text))
        self.assertEqual(2, text.count('unknown, because they are silent: compute-3 since'))

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
