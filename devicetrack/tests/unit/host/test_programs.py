"""Both ends of the line into a host, with programs of this machine."""

from __future__ import annotations

import io
import itertools
import os
import socket
import sys
import threading

import fixtures

from devicetrack.tests import base
from devicetrack.tests.host import agent
from devicetrack.tests.host import interpreter
from devicetrack.tests.host import programs

PROMPT_S = base.HANGS_S


class FrameTestCase(base.TestCase):

    def test_what_was_packed_is_read(self) -> None:
        frames = [agent.Frame({'id': 1, 'argv': ['ä']}), agent.Frame({'id': 2}, b'\0\n' * 70000), agent.Frame({})]
        stream = io.BytesIO(b''.join(agent.pack(frame) for frame in frames))
        self.assertEqual([*frames, None], [agent.read(stream) for _ in range(4)])


class BrokenFrameTestCase(base.TestCase):

    scenarios = base.table(
        ('lengths that end', agent.pack(agent.Frame({'id': 1}))[:7]),
        ('a head that ends', agent.pack(agent.Frame({'id': 1}))[:-1]),
        ('a body that ends', agent.pack(agent.Frame({'id': 1}, b'body'))[:-1]),
        ('another protocol', b'login: root\r\n' * 10),
        ('a head that is no JSON', agent.LENGTHS.pack(3, 0) + b'{x}'),
        names=('stream',),
    )

    def test_is_an_error(self) -> None:
        self.assertRaises(agent.Broken, agent.read, io.BytesIO(self.stream))


class ProgramsTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        ours, self.theirs = socket.socketpair()
        self.served = agent.Agent(self.theirs.makefile('rb'), self.theirs.makefile('wb'))
        thread = threading.Thread(target=self.served.serve)
        thread.start()
        self.programs = programs.Programs('host-a', ours)
        self.addCleanup(self.programs.close)
        self.addCleanup(self.theirs.close)
        self.addCleanup(thread.join)
        self.addCleanup(self.hang_up)

    def hang_up(self) -> None:
        """As when the machine goes down."""
        self.theirs.shutdown(socket.SHUT_RDWR)

    def test_the_host_is_up_when_the_agent_says_so(self) -> None:
        self.served.say({'boot_id': 'b'})
        self.assertEqual('b', self.programs.boot_id(PROMPT_S))

    def test_a_host_that_goes_down_was_never_up(self) -> None:
        self.hang_up()
        self.assertRaises(programs.NoBoot, self.programs.boot_id, PROMPT_S)

    def test_a_host_that_hangs_was_never_up(self) -> None:
        hung = self.assertRaises(programs.NoBoot, self.programs.boot_id, 0.0)
        self.assertEqual('host-a did not start within 0 s', str(hung))

    def test_status_and_both_streams_come_back(self) -> None:
        script = 'cat; echo "$WORD" >&2; exit 3'
        answer = self.programs.run(['sh', '-c', script], b'\0in' * 100000, PROMPT_S, {'WORD': 'err'})
        self.assertEqual((3, b'\0in' * 100000, 'err\n'), answer)

    def test_a_program_that_reads_nothing_ends_all_the_same(self) -> None:
        self.assertEqual((0, b'', ''), self.programs.run(['true'], b'in' * 1000000, PROMPT_S))

    def test_a_program_that_is_not_there_is_named(self) -> None:
        failed = self.assertRaises(programs.Failed, self.programs.run, ['/no/such'])
        self.assertRegex(str(failed), r'host-a.*No such file.*/no/such|host-a.*/no/such.*No such file')

    def test_lines_come_while_the_program_runs(self) -> None:
        process = self.programs.spawn(['sh', '-c', 'while read line; do echo "got $line"; done; printf rest'])
        lines = process.lines()
        for word in ('one', 'two'):
            process.send(f'{word}\n'.encode())
            self.assertEqual(f'got {word}', next(lines))
        process.close()
        self.assertEqual(['rest'], list(lines))
        self.assertEqual([], list(process.lines()))
        self.assertEqual(0, process.wait(PROMPT_S))

    def test_programs_run_side_by_side(self) -> None:
        waiting = [self.programs.spawn(['cat']) for _ in range(3)]
        for process, number in zip(waiting[::-1], itertools.count()):
            process.send(str(number).encode())
            process.close()
        self.assertEqual([0, 0, 0], [process.wait(PROMPT_S) for process in waiting])
        self.assertEqual([b'2', b'1', b'0'], [process.output() for process in waiting])

    def test_a_signal_reaches_what_the_program_started(self) -> None:
        # Its output ends when the last one that holds it does.
        process = self.programs.spawn(['sh', '-c', 'sleep 1000 & echo started; wait'])
        self.assertEqual('started', next(process.lines()))
        process.kill(15)
        self.assertEqual(-15, process.wait(PROMPT_S))

    def test_a_program_that_takes_too_long_is_killed(self) -> None:
        process = self.programs.spawn(['cat'])
        self.assertRaises(TimeoutError, process.wait, 0)
        self.assertRaises(TimeoutError, next, process.lines(0))
        process.kill()
        self.assertEqual(-9, process.wait(PROMPT_S))
        late = self.assertRaises(TimeoutError, self.programs.run, ['sh', '-c', 'echo why >&2; exec sleep 1000'],
                                 timeout_s=0.2)
        self.assertIn('sleep 1000', str(late))

    def test_what_runs_when_the_machine_goes_down_is_gone(self) -> None:
        process = self.programs.spawn(['sh', '-c', 'echo first; read line'])
        lines = process.lines()
        self.assertEqual('first', next(lines))
        self.hang_up()
        self.assertEqual([], list(lines))
        self.assertRaises(programs.Gone, process.wait, PROMPT_S)
        self.assertRaises(programs.Gone, self.programs.run, ['true'])


class ForkTestCase(ProgramsTestCase):
    """Programs of an interpreter that has imported what they need, beside others."""

    def setUp(self) -> None:
        super().setUp()
        self.interpreter = [sys.executable, '-W', 'ignore', interpreter.__file__]
        self.modules = self.useFixture(fixtures.TempDir()).path

    def write(self, name: str, main: str, imports: str = 'sys') -> None:
        with open(os.path.join(self.modules, f'{name}.py'), 'w') as file:
            file.write(f"import {imports}\nif __name__ == '__main__':\n    {main}\n")

    def spawn(self, name: str, *arguments: str) -> programs.Process:
        return self.programs.spawn([name, *arguments], {'WORD': 'word'}, {
            'interpreter': ['env', f'PYTHONPATH={self.modules}', *self.interpreter], 'imports': [name]})

    def test_status_and_both_streams_come_back(self) -> None:
        self.write('echo', "print(sys.stdin.read(), end=''); sys.exit(os.environ['WORD'] + sys.argv[1])", 'os, sys')
        process = self.spawn('echo', 's')
        process.send(b'in')
        process.close()
        self.assertEqual((1, b'in', 'words\n'), (process.wait(PROMPT_S), process.output(), process.err))

    def test_it_has_imported_the_module_once(self) -> None:
        with open(os.path.join(self.modules, 'once.py'), 'w') as file:
            file.write('import os; BY = os.getpid()')
        self.write('says', 'print(once.BY == os.getppid())', 'once, os')
        said = []
        for _ in range(2):
            process = self.spawn('says')
            self.assertEqual(0, process.wait(PROMPT_S))
            said.append(process.output())
        self.assertEqual([b'True\n'] * 2, said)

    def test_a_module_that_cannot_be_imported_is_told(self) -> None:
        process = self.spawn('nothing')
        self.assertEqual(1, process.wait(PROMPT_S))
        self.assertIn('No module named nothing', process.err)

    def test_it_learns_what_others_have_and_nothing_of_ours(self) -> None:
        learned = self.programs.learn(['devicetrack.conf'], ['env', f'PYTHONPATH={self.modules}', *self.interpreter])
        self.assertEqual(0, learned.wait(PROMPT_S))
        self.write('says', 'print([name in sys.modules for name in ("oslo_config", "devicetrack")])')
        process = self.spawn('says')
        self.assertEqual((0, b'[True, False]\n'), (process.wait(PROMPT_S), process.output()))

    def test_a_signal_reaches_what_the_program_started(self) -> None:
        self.write('family', 'with subprocess.Popen(["sleep", "1000"]): print(1, flush=True)', 'subprocess')
        process = self.spawn('family')
        self.assertEqual('1', next(process.lines()))
        process.kill(15)
        self.assertEqual(-15, process.wait(PROMPT_S))

    def test_an_interpreter_that_ends_is_an_error(self) -> None:
        failed = self.assertRaises(
            programs.Failed, self.programs.learn(['json'], ['false']).wait, PROMPT_S)
        self.assertIn('the interpreter ended with 1', str(failed))
