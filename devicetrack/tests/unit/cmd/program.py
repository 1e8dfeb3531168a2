"""Runs ``devicetrack-manage`` in this process, on the store and the machine of a host that a test has made."""

from __future__ import annotations

import io
import json
import os
from typing import Any
from typing import NamedTuple

import fixtures
from oslo_config import cfg

from devicetrack.cmd import manage
from devicetrack.testing import fake
from devicetrack.testing import fixtures as our_fixtures


class Answer(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        return json.loads(self.out)

    def column(self, name: str) -> str:
        """The text in a column of a table, without the ends of lines."""
        head, *rows = [line.split('|')[1:-1] for line in self.out.splitlines() if line.startswith('|')]
        place = [cell.strip() for cell in head].index(name)
        return ' '.join(' '.join(row[place].split()) for row in rows).strip()


def write_configuration(directory: str, conf: Any, *lines: str) -> str:
    """A configuration file that says what ``conf`` says of directories; returns its path."""
    path = os.path.join(directory, 'devicetrack.conf')
    with open(path, 'w', encoding='utf-8') as file:
        file.write('\n'.join([
            '[devicetrack]',
            f'state_path = {conf.devicetrack.state_path}',
            f'machine_id_path = {conf.devicetrack.machine_id_path}',
            'virt_driver = fake',
            *lines, '']))
    return path


class Program(fixtures.Fixture):
    """The program with a configuration file for ``configuration``; its driver sees ``machine``."""

    def __init__(self, configuration: our_fixtures.Configuration, machine: fake.FakeHost | None = None) -> None:
        self._configuration, self._machine = configuration, machine or fake.FakeHost()

    def _setUp(self) -> None:
        self.config_file = write_configuration(self._configuration.state_path, self._configuration.conf)
        self.useFixture(fixtures.MonkeyPatch('devicetrack.virt.loader.load_driver', self._load_driver))

    def _load_driver(self, conf: Any, host: str | None = None) -> fake.FakeDriver:
        return fake.FakeDriver(host or 'host', conf, '', self._machine)

    def run(self, *arguments: str, config_file: str | None = None) -> Answer:
        """Run it as from a shell, with the configuration file before the arguments."""
        out, err = io.StringIO(), io.StringIO()
        whole = ['--config-file', config_file or self.config_file, *arguments]
        with fixtures.MonkeyPatch('sys.stdout', out), fixtures.MonkeyPatch('sys.stderr', err):
            try:
                code = manage.Manage(cfg.ConfigOpts(), out, err).run(whole)
            except SystemExit as end:           # what argparse does after it said what is wrong
                code = int(end.code or 0)
        return Answer(code, out.getvalue(), err.getvalue())

    def ask(self, *arguments: str, config_file: str | None = None) -> Any:
        """The answer as data, of a command that must find nothing to attend to."""
        answer = self.run(*arguments, '-f', 'json', config_file=config_file)
        if answer.code:
            raise AssertionError(f'exit code {answer.code}: {answer.err}')
        return answer.data
