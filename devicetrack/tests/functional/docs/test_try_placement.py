"""The placement server that the documentation has for trying the commands."""

from __future__ import annotations

import itertools

from devicetrack.testing import fixtures
from devicetrack.tests import base
from devicetrack.tests import processes
from devicetrack.tests.functional.docs.test_documented_code import DOCS
from devicetrack.tests.unit.cmd import program as programs


class TryPlacementTestCase(base.TestCase):
    def test_what_it_prints_is_the_section_that_commands_need(self) -> None:
        host = self.useFixture(fixtures.Host(devices=2, parents={'p0': 1}))
        program = self.useFixture(programs.Program(host.configuration, host.machine))
        server = processes.Process(str(DOCS / 'user' / 'try_placement.py'))
        section = [line.rstrip() for line in itertools.islice(server.stdout, 4)]
        path = programs.write_configuration(self.temp_dir(), host.conf, *section)
        codes = [program.run('placement', *arguments, config_file=path).code for arguments in (
            ('sync', '--dry-run'), ('sync',), ('sync', '--dry-run'), ('audit',))]
        server.stdin.write('\n')
        server.communicate()
        self.assertEqual(([3, 0, 0, 0], 0), (codes, server.returncode))
