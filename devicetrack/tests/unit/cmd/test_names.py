"""What operators are told about a name that they mistyped, and commands that they are told to run."""

from __future__ import annotations

import ast
from collections.abc import Iterator
import io
import itertools
import logging
import pathlib
import re
from typing import Any

import fixtures as base_fixtures
from oslo_config import cfg

import devicetrack
from devicetrack import exception
from devicetrack.cmd import manage
from devicetrack.store import api
from devicetrack.testing import fixtures
from devicetrack.testing.fixtures import FREE
from devicetrack.testing.fixtures import Instance
from devicetrack.tests import base
from devicetrack.tests.unit.cmd.test_repair import ANOTHER
from devicetrack.tests.unit.cmd.test_repair import D0
from devicetrack.tests.unit.cmd.test_repair import RepairCommandTestCase


class TypoTestCase(RepairCommandTestCase):

    def test_it_is_refused_at_once_with_the_nearest_names_and_leaves_no_request(self) -> None:
        for arguments, near in ((('device', 'cordon', 'vpmem/d00'), 'vpmem/d0'),
                                (('device', 'cordon', 'vpmen/d1'), 'vpmem/d1'),
                                (('device', 'uncordon', 'mdev/gpuu', '--parent'), 'mdev/gpu'),
                                (('device', 'admit', 'vpmem/d11'), 'vpmem/d1'),
                                (('device', 'wipe', 'vpmem/d11'), 'vpmem/d1'),
                                (('device', 'retire', 'vpmem/d00', '--confirm', ANOTHER), 'vpmem/d0'),
                                (('device', 'forget', 'vpmem/d00', '--confirm', ANOTHER), 'vpmem/d0')):
            answer = self.program.run(*arguments)
            self.assertEqual((1, ''), (answer.code, answer.out))
            self.assertRegex(answer.err, f'close to it: {near}\\b')
        self.assertEqual([], self.waiting())

    def test_every_command_says_which_hosts_the_store_knows(self) -> None:
        for arguments in (('host', 'show'), ('host', 'map'), ('host', 'forget'), ('host', 'cordon'),
                          ('device', 'list', '--host'), ('device', 'show', 'd0', '--host'), ('audit', '--host'),
                          ('device', 'history', 'd0', '--host'), ('instance', 'list', '--host'),
                          ('request', 'list', '--host'), ('explain', '--resource', 'VGPU=1', '--host')):
            answer = self.program.run(*arguments, 'comptue-7')
            self.assertEqual((1, ''), (answer.code, answer.out))
            self.assertRegex(answer.err, r'hosts( of the store)?: compute-7\b')

    def test_of_many_hosts_the_nearest_are_named(self) -> None:
        for number in range(20, 40):
            self.host.store.add_host(api.Host(f'{number:036}', f'compute-{number}', f'digest {number}'))
        self.assertIn('its hosts: 21, close to it: compute-27', self.program.run('host', 'show', 'comptue-27').err)
        self.assertRegex(self.program.run('host', 'show', 'x').err, 'its hosts: compute-20, .* and 11 more')

    def test_a_name_like_no_other_gets_those_of_the_host(self) -> None:
        self.assertIn('it has these devices of this kind: d0, d1', self.program.run('device', 'cordon', 'vpmem/x').err)


class AdviceTestCase(RepairCommandTestCase):
    """No command advises what another one refuses."""

    def setUp(self) -> None:
        super().setUp()
        self.instance = self.host.spawn(pmem=1)
        self.machine.delete_guest(self.instance.uuid)

    def follow(self, *arguments: str) -> None:
        """Run a command that is refused, and the one that it advises."""
        answer = self.program.run(*arguments)
        self.assertEqual(1, answer.code, answer.err)
        [advised] = re.findall(r'run devicetrack-manage (.+?)$', answer.err, re.MULTILINE)
        more = ('--yes',) if advised.startswith('instance release') else ()
        self.run_to(0, *advised.split(), *more)

    def test_forget_of_a_device_that_cannot_be_wiped(self) -> None:
        self.machine.before('wipe', exception.UnclaimFailed('vpmem', 'd0', 'a bad block'), times=3)
        self.assertRaises(exception.UnclaimFailed, self.host.manager.release, None, self.instance)
        self.host.manager.close()
        self.follow('device', 'forget', 'vpmem/d0', '--confirm', self.instance.uuid)
        self.assertEqual([], self.host.records())

    def test_forget_and_retire_of_a_device_whose_instance_the_service_has_lost(self) -> None:
        self.host.manager.close()
        for verb in ('forget', 'retire'):
            answer = self.program.run('device', verb, 'vpmem/d0', '--confirm', self.instance.uuid)
            self.assertIn('delete its instance in the compute service', answer.err)
        self.follow('device', 'retire', 'vpmem/d0', '--confirm', self.instance.uuid)
        self.assertEqual([], self.host.records())


    def test_a_host_that_still_has_devices(self) -> None:
        other = self.useFixture(fixtures.Host(
            devices=1, name='compute-8', store=self.host.store.store,
            configuration=self.useFixture(fixtures.Configuration(machine='b'))))
        other.spawn(pmem=1)
        other.manager.close()
        self.follow('host', 'forget', 'compute-8')
        self.assertEqual(['compute-7'], [one.name for one in self.host.store.hosts()])

    def proposed(self) -> str:
        """The command that the only finding proposes."""
        [finding] = self.program.run('audit', '-f', 'json').data
        [advised] = re.findall(r'run devicetrack-manage (.+?)$', finding['proposal'])
        return str(advised)

    def test_a_finding_about_a_device_that_is_gone(self) -> None:
        self.host.manager.close()
        self.machine.remove(D0)
        self.run_to(0, *self.proposed().split())
        self.assertEqual([], self.host.records())

    def test_a_finding_about_a_device_that_is_gone_and_that_a_domain_names(self) -> None:
        self.machine.start_guest(self.instance.uuid, ['<device kind="vpmem" address="/dev/fakedax0"/>'])
        self.host.manager.close()
        self.machine.remove(D0)
        advised = self.proposed().split()
        self.assertIn('remove it from the domain and', self.program.run('audit').out)
        self.assertEqual(1, self.program.run(*advised).code)
        self.machine.delete_guest(self.instance.uuid)
        self.run_to(0, *advised)

    def test_a_finding_about_a_device_that_cannot_be_wiped(self) -> None:
        self.machine.before('wipe', exception.UnclaimFailed('vpmem', 'd0', 'a bad block'), times=None)
        self.assertRaises(exception.UnclaimFailed, self.host.manager.release, None, self.instance)
        self.host.audit()
        self.host.manager.close()
        self.run_to(0, *self.proposed().split())
        self.assertEqual([], self.host.records())


class AdvisedCommandTestCase(base.TestCase):
    """A command in a message is complete: a person may copy it, and fill in the words in capitals."""

    def test_each_in_the_code_is_one_of_the_program(self) -> None:
        program_ = manage.Manage(cfg.ConfigOpts(), io.StringIO(), io.StringIO())
        found = [(path.name, advice.split()) for path in sorted(_CODE.rglob('*.py'))
                 if not {'tests', 'testing', 'conf'}.intersection(path.relative_to(_CODE).parts)
                 for text in _texts(ast.parse(path.read_text('utf-8')))
                 for advice in re.findall(r'devicetrack-manage ([a-z][^;,:"()]*)', text)]
        self.assertGreater(len(found), 30)
        parsers: dict[str, Any] = {}
        for name, words in found:
            command, named, rest = program_.command_manager.find_command(words)
            given = list(itertools.takewhile(re.compile(f'--|.*{_ANY}|.*[{{%]|[A-Z]+$').match, rest))
            parser = parsers.get(named) or command(program_, None, cmd_name=named).get_parser(named)
            parsers[named] = parser
            with self.subTest(name, advice=' '.join(words)), base_fixtures.MonkeyPatch('sys.stderr', io.StringIO()):
                try:
                    parser.parse_args([one if one.startswith('--') else ANOTHER if number or words[0] != 'device'
                                       else f'vpmem/{ANOTHER}' for number, one in enumerate(given)])
                except SystemExit:
                    self.fail(f'{name}: devicetrack-manage {" ".join(words)} is not complete')


_CODE = pathlib.Path(devicetrack.__file__).parent
_ANY = '\x01'


def _texts(tree: ast.AST) -> Iterator[str]:
    """Each text in a module but those of docstrings. What a text is formatted with is ``_ANY``."""
    whole = [one for one in ast.walk(tree) if isinstance(one, ast.JoinedStr)]
    parts = {id(part) for one in whole for part in ast.walk(one)}
    documented = {id(one.body[0].value) for one in ast.walk(tree)
                  if isinstance(one, (ast.Module, ast.ClassDef, ast.FunctionDef)) and one.body
                  and isinstance(one.body[0], ast.Expr)}
    for text in whole:
        yield ''.join(str(part.value) if isinstance(part, ast.Constant) else _ANY for part in text.values)
    for one in ast.walk(tree):
        if isinstance(one, ast.Constant) and isinstance(one.value, str) and id(one) not in parts | documented:
            yield one.value


class WrittenTestCase(RepairCommandTestCase):
    """A device is written as KIND/NAME wherever a person may copy it from."""

    def test_logs_findings_and_errors_of_a_run(self) -> None:
        logged = self.useFixture(base_fixtures.FakeLogger(level=logging.DEBUG))
        said = []
        instance, other = self.host.spawn(pmem=1, vgpu=1), Instance()
        [mdev] = self.host.mdevs()
        for wrong in ({'pmem': 1}, {'pmem': 9}):
            said.append(str(self.assertRaises(exception.DeviceTrackError, self.host.claim, instance, **wrong)))
        self.machine.before('realize', exception.RealizeFailed('vpmem', 'd1', 'a bad block'), times=1)
        self.assertRaises(exception.DeviceTrackError, self.host.spawn, other, pmem=1)
        said.append(str(self.assertRaises(exception.DeviceInUse, self.host.manager.release, None, instance)))
        self.machine.change(D0, unhealthy='read-only')
        said += map(str, self.host.audit())
        self.machine.delete_guest(instance.uuid)
        self.machine.before('wipe', exception.UnclaimFailed('vpmem', 'd0', 'a bad block'), times=2)
        said.append(str(self.assertRaises(exception.UnclaimFailed, self.host.manager.release, None, instance)))
        said += map(str, self.host.audit())
        for arguments in (('audit',), ('device', 'list'), ('device', 'retire', 'vpmem/d0'), ('explain', '--instance',
                          instance.uuid), ('request', 'list'), ('instance', 'history', instance.uuid)):
            answer = self.program.run(*arguments)
            said += [answer.out, answer.err]
        self.host.manager.close()
        self.program.run('device', 'retire', 'vpmem/d0', '--confirm', instance.uuid)
        text = '\n'.join([*said, logged.output])
        for kind, name in (('vpmem', 'd0'), ('vpmem', 'd1'), ('mdev', mdev)):
            self.assertNotRegex(text, rf'\b{kind}:? {name}\b')
        self.assertIn('vpmem/d0', logged.output)


class WipeTestCase(RepairCommandTestCase):

    def test_it_has_a_name_of_its_own(self) -> None:
        [d1] = [key for key in self.machine.devices if key.identifier == 'd1']
        self.machine.write(d1, b'secret')
        self.machine.unproven.add(d1)
        self.host.manager.close()
        self.assertEqual('admitted', self.run_to(0, 'device', 'wipe', 'vpmem/d1').data['outcome'])
        self.assertNotEqual(b'secret', self.machine.read(d1)[:6])
        self.host.restart()
        self.assertEqual({'d0': FREE, 'd1': FREE}, self.host.states())
