"""What reads a host of the cloud."""

from __future__ import annotations

from importlib import metadata
import json

from devicetrack.tests import base
from devicetrack.tests import processes


class ReaderTestCase(base.TestCase):

    def test_a_line_for_each_line(self) -> None:
        version, unknown = ['manage', '--version'], ['manage', 'no', 'such', 'command']
        lines = [[version], [unknown, version]]
        reader = processes.Process('devicetrack.tests.cloud.inside.reader')
        for line in lines:
            reader.stdin.write(f'{json.dumps(line)}\n')
            reader.stdin.flush()
        answers = [json.loads(reader.stdout.readline()) for _ in lines]
        reader.stdin.close()
        self.assertEqual(0, reader.wait())
        [[[status, out, errors]], [[refused, nothing, why], again]] = answers
        self.assertEqual((0, ''), (status, errors))
        self.assertIn(metadata.version('devicetrack'), out)
        self.assertEqual((2, ''), (refused, nothing))
        self.assertIn('there is no command no such command', why)
        self.assertEqual([status, out, errors], again)
