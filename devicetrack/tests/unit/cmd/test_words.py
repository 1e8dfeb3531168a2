"""Words of others in what commands print: no escape sequence, no line and no command of a shell comes out of them."""

from __future__ import annotations

import json
import subprocess
import uuid

from devicetrack.cmd import base as cmd_base
from devicetrack.store import api
from devicetrack.tests.unit.cmd.test_repair import RepairCommandTestCase

HOSTILE = 'why\n\x1b[2Jdevicetrack-manage: forged \u202e"$(echo run)`echo run`\\'


class WordsTestCase(RepairCommandTestCase):

    def setUp(self) -> None:
        super().setUp()
        self.request = api.OperatorRequest(str(uuid.UUID(int=0)), self.host.store.hosts()[0].uuid, 'cordon', HOSTILE, 1)
        self.host.store.add_operator_request(self.request)

    def test_every_format_prints_a_line_of_text(self) -> None:
        for command in (('list',), ('show', self.request.uuid)):
            for form in ('table', 'value', 'csv', 'json', 'yaml', *(('shell',) if command[0] == 'show' else ())):
                answer = self.program.run('request', *command, '-f', form)
                lines = answer.out.splitlines()
                self.assertTrue(all(line.isprintable() for line in lines), f'{form}: {answer.out!r}')
                self.assertFalse([line for line in lines if line.startswith('devicetrack-manage')])

    def test_structure_keeps_the_words(self) -> None:
        answer = self.program.run('request', 'show', self.request.uuid, '-f', 'json')
        self.assertEqual(HOSTILE, json.loads(answer.out)['arguments'])

    def test_a_shell_that_evaluates_them_runs_nothing(self) -> None:
        answer = self.program.run('request', 'show', self.request.uuid, '-f', 'shell')
        done = subprocess.run(('sh', '-c', f'{answer.out}\nprintf %s "$arguments"'), capture_output=True, text=True,
                              check=True)
        self.assertEqual(HOSTILE.replace('\n', r'\n').replace('\x1b', r'\x1b').replace('\u202e', r'\u202e'),
                         done.stdout)

    def test_an_error_that_quotes_them_is_a_line(self) -> None:
        answer = self.program.run('--debug', 'device', 'show', HOSTILE)
        self.assertEqual(cmd_base.ERROR, answer.code)
        self.assertTrue(all(line.isprintable() for line in answer.err.splitlines()), repr(answer.err))
        self.assertFalse([line for line in answer.err.splitlines() if line.startswith('\x1b')])
