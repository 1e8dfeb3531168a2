"""The examples that the help of each command shows."""

from __future__ import annotations

import pathlib
import re
import shlex
from typing import Any

from oslo_config import cfg

import devicetrack
from devicetrack.cmd import device
from devicetrack.cmd import examples
from devicetrack.cmd import manage
from devicetrack.tests import base
from devicetrack.tests.unit.cmd.test_repair import RepairCommandTestCase


class ExamplesTestCase(base.TestCase):

    def test_every_command_has_examples_that_it_takes(self) -> None:
        app = manage.Manage(cfg.ConfigOpts())
        names = {name for name, _entry_point in app.command_manager} - {'help'}
        self.assertEqual(names, set(examples.EXAMPLES))
        for name, lines in examples.EXAMPLES.items():
            command, _name, _rest = app.command_manager.find_command(name.split())
            for line in lines:
                parser = command(app, None, cmd_name=name).get_parser(name)
                parser.parse_args(shlex.split(line))

    def test_the_tables_of_the_documentation_have_every_command(self) -> None:
        pages = pathlib.Path(devicetrack.__file__).parents[1] / 'doc' / 'source'
        table = (pages / 'cli' / 'index.rst').read_text(encoding='utf-8').partition('The name of a device')[0]
        rows = re.findall(r'\* - ``(.+)``\n     - ((?:.+\n)+?)     - ', table)
        self.assertEqual(sorted(examples.EXAMPLES), sorted(
            f'{name} {action}'.strip() for name, actions in rows
            for action in ([''] if actions.startswith('alone') else re.findall('``(.+?)``', actions))))
        table = (pages / 'admin' / 'commands.rst').read_text(encoding='utf-8').partition('Commands that only report')[0]
        there = {name for cell in re.findall(r'\* - ((?:``.+\n)(?: {7}.+\n)*)', table)
                 for name in re.findall('``(.+?)``', cell)}
        self.assertEqual(set(), examples.EXAMPLES.keys() - there)

    def test_the_documentation_has_a_command_without_a_program(self) -> None:
        none: Any = None
        self.assertIn('--host', device.List(none, None).get_parser('device list').format_help())


class HelpTestCase(RepairCommandTestCase):

    def test_it_ends_with_the_examples_line_by_line(self) -> None:
        for arguments in (('device', 'cordon', '--help'), ('help', 'device', 'cordon')):
            text = self.program.run(*arguments).out
            self.assertIn("\nExamples:\n\n    devicetrack-manage device cordon vpmem/ns3 --reason 'bad blocks soon'\n"
                          '    devicetrack-manage device cordon mdev/pci_0000_84_00_0 --parent --no-wait\n', text)
