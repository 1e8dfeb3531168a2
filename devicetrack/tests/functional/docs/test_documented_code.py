"""The code in the documentation runs, and does what stands beside it."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import logging
import os
import pathlib
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import textwrap
import types
from typing import Any
import unittest

import fixtures as base_fixtures
import libvirt
import testtools

import devicetrack
from devicetrack import conf as registry
from devicetrack import exception
from devicetrack import objects
from devicetrack.claims import report
from devicetrack.claims.claim import Claim
from devicetrack.claims.instance_fields import Fields
from devicetrack.claims.manager import ClaimManager
from devicetrack.claims.releasing import Wipe
from devicetrack.cmd import audit
from devicetrack.cmd import base as cmd_base
from devicetrack.engine import findings
from devicetrack.objects import DeviceRequest
from devicetrack.objects import values
from devicetrack.objects.values import Attribute
from devicetrack.objects.values import MigrationType
from devicetrack.store.sql import open_store
from devicetrack.testing import fake
from devicetrack.testing import fixtures
from devicetrack.testing import libvirt as libvirt_fixtures
from devicetrack.testing import region as regions
from devicetrack.testing.staged_store import StagedStore
from devicetrack.tests import base
from devicetrack.tests import processes
from devicetrack.tests.unit.cmd import program
from devicetrack.tests.unit.testing import scratch_package
from devicetrack.virt.libvirt import driver as libvirt_driver

ROOT = pathlib.Path(__file__).parents[4]
DOCS = ROOT / 'doc' / 'source'
GUESTS = str(DOCS / 'user' / 'guests.py')


def code_blocks(path: pathlib.Path) -> list[str]:
    """The blocks of Python in a page of reStructuredText."""
    found = re.findall(r'^\.\. code-block:: python\n\n((?:(?:   .*)?\n)+)', path.read_text(encoding='utf-8'), re.M)
    return [textwrap.dedent(block) for block in found]


class ReadmeTestCase(base.TestCase):

    def test_ten_lines_take_a_device_and_give_it_back(self) -> None:
        [ten_lines] = code_blocks(ROOT / 'README.rst')
        self.useFixture(fixtures.SQLiteStore(self.conf))
        self.configuration.set('devicetrack', virt_driver='fake')
        machine = fake.FakeHost.named('compute-7')
        self.addCleanup(fake.FakeHost.forget, 'compute-7')
        machine.add_namespace('ns0')
        instance, seen = fixtures.Instance(flavor=fixtures.Flavor({'hw:pmem': '4GB'})), []

        def boot(booted: Any, config: Any) -> None:
            machine.start_guest(booted.uuid, config.devices)
            seen.append([one.identifier for one in booted.resources])

        def delete(deleted: Any) -> None:
            machine.delete_guest(deleted.uuid)

        names: dict[str, Any] = {'conf': self.conf, 'context': self.context, 'instance': instance, 'boot': boot,
                                 'delete': delete}
        exec(compile(ten_lines, 'README.rst', 'exec'), names)
        self.addCleanup(names['manager'].close)
        self.assertEqual([['ns0']], seen)
        self.assertEqual(0, len(names['manager'].assignments(instance.uuid)))

    def test_they_are_about_ten(self) -> None:
        [ten_lines] = code_blocks(ROOT / 'README.rst')
        statements = [line for line in ten_lines.splitlines() if line.strip()]
        self.assertTrue(len(statements) <= 12, ten_lines)


class QuickStartTestCase(base.TestCase):

    def test_it_prints_what_the_page_says(self) -> None:
        answer = subprocess.run([sys.executable, str(DOCS / 'user' / 'quick_start.py')], cwd=self.temp_dir(),
                                capture_output=True, text=True, check=False, timeout=base.HANGS_S)
        self.assertEqual('', answer.stderr if answer.returncode else '')
        page = (DOCS / 'user' / 'quick_start.rst').read_text(encoding='utf-8')
        self.assertIn(textwrap.indent(answer.stdout, '    '), page)


class LiveMigrationTestCase(base.TestCase):

    def test_it_prints_what_the_page_says(self) -> None:
        answer = processes.run(str(DOCS / 'user' / 'live_migration.py'), cwd=self.temp_dir())
        self.assertEqual('', answer.stderr if answer.returncode else '')
        page = (DOCS / 'user' / 'live_migration.rst').read_text(encoding='utf-8')
        self.assertIn('::\n\n' + textwrap.indent(answer.stdout, '    ') + '\n', page)

    def test_it_lists_the_versions_of_objects(self) -> None:
        page = (DOCS / 'user' / 'live_migration.rst').read_text(encoding='utf-8')
        listed = {name: version for names, version in re.findall(r'^   \* - (``.*``)\n     - (\d\.\d)$', page, re.M)
                  for name in re.findall(r'``(\w+)``', names)}
        self.assertEqual({name: getattr(objects, name).VERSION for name in listed}, listed)
        self.assertEqual(11, len(listed))


class TestingTestCase(base.TestCase):

    def test_hosts_have_the_versions_that_a_test_gives_them(self) -> None:
        [example] = [block for block in code_blocks(DOCS / 'user' / 'testing.rst') if 'region.Region' in block]
        names = {'self': self, 'region': regions, 'exception': exception, 'MigrationType': MigrationType,
                 'Attribute': Attribute}
        exec(compile(example, 'testing.rst', 'exec'), names)

    def test_a_service_of_ones_own_is_tested(self) -> None:
        service, failures = [block for block in code_blocks(DOCS / 'user' / 'testing.rst') if 'def test_' in block]
        names: dict[str, Any] = {'devicetrack': devicetrack, 'testtools': testtools, 'fixtures': fixtures, 'fake': fake,
                                 'StagedStore': StagedStore, 'exception': exception}
        exec(compile(service, 'testing.rst', 'exec'), names)
        methods: dict[str, Any] = {}
        exec(compile(failures, 'testing.rst', 'exec'), names, methods)
        for name, method in methods.items():
            setattr(names['TestService'], name, method)
        result = testtools.TestResult()
        unittest.defaultTestLoader.loadTestsFromTestCase(names['TestService']).run(result)
        self.assertEqual((4, []), (result.testsRun, [text for _test, text in result.errors + result.failures]))


class CompatibilityTestCase(base.TestCase):

    def test_hosts_are_found_for_a_guest_and_why_others_are_none(self) -> None:
        page = (DOCS / 'user' / 'compatibility.rst').read_text(encoding='utf-8').split('Several devices\n====')[1]
        [example] = re.findall(r'::\n\n((?:(?:    .*)?\n)+)', page.split('\n====')[0])
        example = textwrap.dedent(example).replace('/etc/devicetrack', str(DOCS / 'user')).replace('compute-8', 'two')
        region = self.useFixture(regions.Region(parents={'p0': 2}, shared_store=True))
        instance = region.spawn('one', vgpu=1)

        class Refused(Exception):
            pass

        for versions, able in ((('2.1.0', '2.2.0'), ('one', 'two')), (('2.3.0', '2.2.0'), ('one',))):
            for host, version in zip((region.one, region.two), versions, strict=True):
                host.machine.declare(MigrationType('mdev', 'p0', 'nvidia-35', Attribute(version)))
                host.audit()
            region.one.manager.rebooted(self.context, instance)
            names: dict[str, Any] = {
                'manager': region.one.manager, 'context': self.context, 'instance': instance, 'Refused': Refused,
                'store': region.one.store, 'free': lambda host, one: int(one.facts.sort.kind == 'mdev'),
                'LOG': logging.getLogger(__name__)}
            with contextlib.suppress(Refused):
                exec(compile(example, 'compatibility.rst', 'exec'), names)
            self.assertEqual((able, 'two' in able), (names['able'], names['found'].accepted))


class InterruptedBootsTestCase(base.TestCase):
    """What the page about calls does after a start with the claims of a process that was killed."""

    def setUp(self) -> None:
        super().setUp()
        [self.example] = [block for block in code_blocks(DOCS / 'user' / 'calls.rst')
                          if 'manager.assignments()' in block]
        self.failed: list[tuple[str, Exception]] = []
        self.host = self.useFixture(fixtures.Host(devices=3))
        self.wanted, self.unwanted, self.unknown = (fixtures.Instance() for _ in range(3))
        self.wants = [self.wanted]
        for instance in (self.wanted, self.unwanted, self.unknown):
            self.host.claim(instance, pmem=1)
        self.host.service.known = {}
        self.host.restart()
        self.assertEqual(3, len([found for found in self.host.findings if found.kind == findings.UNKNOWN_OWNER]))

    def go_on(self) -> None:
        host, known, failed = self.host, {one.uuid: one for one in (self.wanted, self.unwanted)}, self.failed
        saved: dict[str, str] = {}

        class Service:
            find = staticmethod(known.get)

            @staticmethod
            def wants(instance: Any) -> bool:
                return instance in self.wants

            @staticmethod
            def save(instance: Any) -> None:
                saved[instance.uuid] = 'here'
                host.service.known = saved

            @staticmethod
            def start_guest(instance: Any, config: Any) -> None:
                host.machine.start_guest(instance.uuid, config.devices, metadata=config.metadata)

            remove_guest = staticmethod(host.machine.delete_guest)

            @staticmethod
            def mark_failed(instance: Any, error: Exception) -> None:
                failed.append((instance.uuid, error))

        exec(compile(self.example, 'calls.rst', 'exec'), {
            'manager': host.manager, 'context': self.context, 'service': Service, 'host': host.manager.host,
            'types': types, 'LOG': logging.getLogger(__name__)})

    def test_an_instance_boots_on_what_it_has_and_the_others_are_released(self) -> None:
        held = self.host.owners()
        self.go_on()
        self.assertEqual({key: owner for key, owner in held.items() if owner == self.wanted.uuid}, self.host.owners())
        self.assertEqual(['active'], [row.state for row in self.host.records()])
        self.assertEqual(([], self.host.manager.host, 1),
                         (self.host.audit(), self.wanted.host, len(self.wanted.resources)))

    def test_an_instance_that_cannot_boot_is_released_and_the_next_one_boots(self) -> None:
        self.wants = [self.wanted, self.unwanted]
        error = exception.RealizeUnknown('vpmem', 'd0', 'no')
        self.host.machine.before('realize', error, times=1)
        self.go_on()
        first, second = sorted(one.uuid for one in self.wants)
        self.assertEqual(([(first, error)], [second]), (self.failed, list(self.host.owners().values())))
        self.assertEqual(['active'], [row.state for row in self.host.records()])

    def test_a_guest_that_runs_is_recorded_and_may_be_started_again(self) -> None:
        self.host.manager.realize(self.context, self.wanted)
        config = self.host.manager.guest_config(self.wanted)
        self.host.machine.start_guest(self.wanted.uuid, config.devices, metadata=config.metadata)
        self.host.restart()
        self.wanted.resources = None
        self.assertEqual(1, len(self.host.manager.started(self.context, self.wanted)))
        self.assertEqual(['active'], [row.state for row in self.wanted.resources])


class FindingsTestCase(base.TestCase):

    def test_a_service_reads_the_fields_of_a_finding(self) -> None:
        [example] = [block for block in code_blocks(DOCS / 'user' / 'calls.rst') if 'for finding in' in block]
        host = self.useFixture(fixtures.Host(devices=1))
        alarms: list[str] = []
        instance = host.spawn(pmem=1)
        host.machine.start_guest(fixtures.Instance().uuid, host.manager.guest_config(instance).devices)
        exec(compile(example, 'calls.rst', 'exec'), {
            'manager': host.manager, 'context': self.context, 'nodename': host.manager.host,
            'service': types.SimpleNamespace(alarm=alarms.append)})
        self.assertEqual(1, len(alarms))
        self.assertTrue(alarms[0].startswith(f'vpmem/d0 of {instance.uuid}: {findings.SHARED}: '), alarms)


class MediatedDevicesTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.page = (DOCS / 'user' / 'quick_start.rst').read_text(encoding='utf-8')
        self.uri = f'test://{DOCS / "user" / "host.xml"}'
        self.useFixture(fixtures.SQLiteStore(self.conf))

    def test_the_service_gets_what_the_page_says(self) -> None:
        [request] = re.findall(r'``DeviceRequest(\.of\(.*\))``', self.page)
        self.configuration.set('libvirt', connection_uri=self.uri)
        self.configuration.set('devices', enabled_mdev_types=['nvidia-35'])
        driver = libvirt_driver.LibvirtDriver('compute-7', self.conf, self.state_path)
        self.addCleanup(driver.close)
        store = open_store(self.conf)
        self.addCleanup(store.close)
        manager = ClaimManager('compute-7', driver, store, self.conf)
        self.addCleanup(manager.close)
        manager.init_host(self.context)
        wanted = eval(f'DeviceRequest{request}')        # of our own page
        for _ in range(2):
            instance = fixtures.Instance()
            manager.instance_claim(self.context, instance, 'compute-7', wanted)
            manager.realize(self.context, instance)
            self.assertEqual(1, len(manager.guest_config(instance).devices))
        self.assertRaises(exception.NoFit, manager.instance_claim, self.context, fixtures.Instance(), 'compute-7',
                          wanted)

    def test_the_command_prints_what_the_page_says(self) -> None:
        [options] = re.findall(r'\$ devicetrack-manage --config-file service.conf (device list .*)', self.page)
        path = pathlib.Path(self.state_path, 'service.conf')
        path.write_text(f'[devicetrack]\nstate_path = {self.state_path}\n'
                        f'machine_id_path = {self.conf.devicetrack.machine_id_path}\n[libvirt]\n'
                        f'connection_uri = {self.uri}\n[devices]\nenabled_mdev_types = nvidia-35\n')
        answer = processes.run('devicetrack.cmd.manage', '--config-file', str(path), *options.split())
        self.assertEqual((0, ''), (answer.returncode, answer.stderr))
        self.assertIn(textwrap.indent(answer.stdout, '    '), self.page)


class CardsTestCase(base.TestCase):

    def test_the_card_without_a_card_is_listed_as_the_page_says(self) -> None:
        page = DOCS / 'admin' / 'configuration.rst'
        [cards] = [block for block in code_blocks(page) if 'vgpu.Cards' in block]
        [options] = re.findall(r'\$ devicetrack-manage (device list .*)', page.read_text(encoding='utf-8'))
        self.useFixture(fixtures.SQLiteStore(self.conf))
        with open(os.devnull, 'w') as nothing:
            process = processes.Process('-c', cards, stderr=nothing)
        self.addCleanup(process.communicate)
        path = pathlib.Path(self.state_path, 'service.conf')
        path.write_text(f'[devicetrack]\nstate_path = {self.state_path}\n'
                        f'machine_id_path = {self.conf.devicetrack.machine_id_path}\n[libvirt]\n'
                        'connection_uri = test:///default\n[devicetrack_vf]\nenabled_types = 558\n'
                        + process.stdout.readline())
        answer = processes.run('devicetrack.cmd.manage', '--config-file', str(path), *options.split())
        self.assertEqual((0, ''), (answer.returncode, answer.stderr))
        self.assertIn(textwrap.indent(answer.stdout, '    '), page.read_text(encoding='utf-8'))


class GuestsTestCase(base.TestCase):
    """The guests that every process sees on the test driver, and what the commands make of them."""

    def run_line(self, line: str) -> subprocess.CompletedProcess[str]:
        name, *arguments = shlex.split(line)
        if name == 'python':
            return processes.run(*arguments, cwd=str(DOCS / 'user'))
        if name == 'devicetrack-manage':
            return processes.run('devicetrack.cmd.manage', *arguments)
        return subprocess.run(line, shell=True, capture_output=True, text=True, check=False)

    def test_every_command_prints_what_the_page_says(self) -> None:
        # The page shows a terminal.
        self.useFixture(base_fixtures.EnvironmentVariable('CLIFF_MAX_TERM_WIDTH', '80'))
        page = (DOCS / 'user' / 'quick_start.rst').read_text(encoding='utf-8').split('Guests that the commands see')[1]
        directory = os.path.join(self.temp_dir(), 'try')
        steps = re.findall(r'^    \$ (.*)\n((?:    [^$].*\n)*)', page, re.M)
        self.assertEqual(19, len(steps))
        for command, printed in steps:
            if '--serve' in command:
                self.assertEqual(printed, textwrap.indent(self.serve(directory).stdout.readline(), '    '))
                continue
            answer = self.run_line(command.replace('/srv/try', directory))
            self.assertEqual(printed, textwrap.indent(answer.stdout, '    '), f'{command}: {answer.stderr}')
            if 'instance release' in command:
                [says] = re.findall(r'ends with exit code 1: ``(.*)``', page)
                self.assertEqual((1, True), (answer.returncode, says in answer.stderr))

    def serve(self, directory: str) -> processes.Process:
        process = processes.Process(GUESTS, '--serve', directory)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def test_of_a_host_that_is_there_none_is_made(self) -> None:
        directory = os.path.join(self.temp_dir(), 'try')
        # It makes the host first.
        self.assertTrue(self.serve(directory).stdout.readline().startswith("['ns0', "))
        answer = processes.run(GUESTS, directory)
        self.assertEqual((1, ''), (answer.returncode, answer.stdout))
        [line] = answer.stderr.splitlines()
        self.assertTrue(line.startswith(f'{directory} has a host already. Run a manager on it'), line)

    def test_one_manager_runs_at_a_time(self) -> None:
        directory = os.path.join(self.temp_dir(), 'try')
        process = self.serve(directory)
        process.stdout.readline()
        self.assertIn('a manager of compute-7 runs', process.stdout.readline())
        answer = processes.run(GUESTS, '--serve', directory)
        self.assertEqual((1, ''), (answer.returncode, answer.stdout))
        [line] = answer.stderr.splitlines()
        self.assertTrue(line.startswith('the manager does not start: '), line)

    def test_its_guest_takes_devices_of_a_kind_of_another_package(self) -> None:
        package = self.useFixture(scratch_package.Installed())
        files = self.temp_dir()
        for name in ('one', 'two'):
            with open(os.path.join(files, name), 'wb') as file:
                file.truncate(2 << 20)
        options = pathlib.Path(self.temp_dir(), 'scratch.conf')
        options.write_text(f'[devicetrack]\ndevice_kinds = scratch\n[scratch]\ndirectory = {files}\n')
        directory = pathlib.Path(self.temp_dir(), 'try')
        answer = processes.run(GUESTS, '--options', str(options), '--extra-spec', 'resources:CUSTOM_SCRATCH=1',
                               str(directory), env={**os.environ, 'PYTHONPATH': os.pathsep.join(
                                   (package.path, str(ROOT)))})
        self.assertEqual((0, "['one']\n"), (answer.returncode, answer.stdout), answer.stderr)
        self.assertIn(f'<path>{files}/one</path>', directory.joinpath('guest.xml').read_text())

    def test_without_a_proven_device_it_names_the_option(self) -> None:
        package = self.useFixture(scratch_package.Installed())
        files, directory = self.temp_dir(), pathlib.Path(self.temp_dir(), 'try')
        pathlib.Path(files, 'one').write_bytes(b'a secret'.ljust(2 << 20))
        options = pathlib.Path(self.temp_dir(), 'scratch.conf')
        options.write_text(f'[devicetrack]\ndevice_kinds = scratch\n[scratch]\ndirectory = {files}\n')
        answer = processes.run(GUESTS, '--options', str(options), '--extra-spec', 'resources:CUSTOM_SCRATCH=1',
                               str(directory), env={**os.environ, 'PYTHONPATH': os.pathsep.join(
                                   (package.path, str(ROOT)))})
        self.assertEqual((1, ''), (answer.returncode, answer.stdout))
        self.assertNotIn('Traceback', answer.stderr)
        self.assertIn('set unproven_devices = trust in [devicetrack]', answer.stderr)

    def test_a_guest_that_is_off_is_written_as_the_page_says(self) -> None:
        page = (DOCS / 'user' / 'quick_start.rst').read_text(encoding='utf-8')
        [(root, inside)] = re.findall(
            r"^    (<domain type='test' .*>)\n      \.\.\.\n((?:      .*\n)+)    </domain>", page, re.M)
        directory = pathlib.Path(self.temp_dir(), 'try')
        processes.run(str(DOCS / 'user' / 'guests.py'), str(directory)).check_returncode()
        self.assertEqual([('web-1', 1)], self.guests(directory))
        guest = directory / 'guest.xml'
        text = guest.read_text(encoding='utf-8')
        guest.write_text(text.replace("<domain type='test'>", root).replace('</domain>', f'{inside}</domain>'))
        self.assertEqual([('web-1', 0)], self.guests(directory))

    @staticmethod
    def guests(directory: pathlib.Path) -> list[tuple[str, int]]:
        connection = libvirt.open(f'test://{directory}/host.xml')
        try:
            return [(domain.name(), domain.isActive()) for domain in connection.listAllDomains()]
        finally:
            connection.close()


class DefinitionsTestCase(base.TestCase):
    """``Guests`` of the same program, on libvirt's test driver."""

    def setUp(self) -> None:
        super().setUp()
        self.connection = self.useFixture(libvirt_fixtures.TestNode()).connect()
        self.guests = runpy.run_path(GUESTS)['Guests'](self.connection)
        self.uuid = fixtures.Instance().uuid

    def test_a_guest_without_devices_has_neither(self) -> None:
        self.guests.start_guest(self.uuid, [])
        self.assertEqual(([], ''), self.guests.read(self.uuid))

    def test_a_guest_is_stopped_and_started_again_and_deleted(self) -> None:
        self.guests.start_guest(self.uuid, [])
        self.guests.stop_guest(self.uuid)
        self.assertEqual(0, self.connection.lookupByUUIDString(self.uuid).isActive())
        self.guests.start_guest(self.uuid, [])
        self.assertEqual(1, self.connection.lookupByUUIDString(self.uuid).isActive())
        for _ in range(2):                      # there is none the second time
            self.guests.delete_guest(self.uuid)
            self.assertEqual([], [one for one in self.connection.listAllDomains() if one.UUIDString() == self.uuid])


class KeptGuestsTestCase(base.TestCase):
    """``Guests`` with the file of its connection."""

    def setUp(self) -> None:
        super().setUp()
        self.node = pathlib.Path(self.temp_dir(), 'host.xml')
        shutil.copy(DOCS / 'user' / 'host.xml', self.node)
        self.made = runpy.run_path(GUESTS)['Guests']

    def connect(self) -> Any:
        connection = libvirt.open(f'test://{self.node}')
        self.addCleanup(connection.close)
        return self.made(connection, str(self.node))

    def states(self) -> dict[str, int]:
        return {domain.UUIDString(): domain.isActive() for domain in self.connect().connection.listAllDomains()}

    def test_the_next_connection_has_them_as_they_were(self) -> None:
        guests, (runs, off, gone) = self.connect(), [fixtures.Instance().uuid for _ in range(3)]
        guests.start_guest(runs, [
            "<hostdev mode='subsystem' type='mdev' model='vfio-pci'>"
            "<source><address uuid='4b20d080-1b54-4048-85b3-a6a62d165c01'/></source></hostdev>"],
            "<devices xmlns='urn:devicetrack:guest-devices:1'><device kind='mdev'/></devices>")
        for uuid in (off, gone):
            guests.start_guest(uuid, [])
        guests.stop_guest(off)
        guests.delete_guest(gone)
        read = guests.read(runs)
        self.assertIn('4b20d080-1b54-4048-85b3-a6a62d165c01', read[0][0])
        self.assertIn('mdev', read[1])
        self.assertEqual({runs: 1, off: 0}, self.states())
        later = self.connect()
        self.assertEqual(read, later.read(runs))
        later.start_guest(off, [])
        later.delete_guest(runs)
        self.assertEqual({off: 1}, self.states())


class SourceTestCase(base.TestCase):
    """The source of versions that the page about compatibility has, installed."""

    def test_a_host_declares_what_it_says(self) -> None:
        page = (DOCS / 'user' / 'compatibility.rst').read_text(encoding='utf-8').split('To try a source')[1]
        site, directory = pathlib.Path(self.temp_dir()), pathlib.Path(self.temp_dir(), 'try')
        shutil.copy(DOCS / 'user' / 'vendor.py', site)
        info = site / 'vendor_source-1.0.dist-info'
        info.mkdir()
        info.joinpath('METADATA').write_text('Metadata-Version: 2.1\nName: vendor-source\nVersion: 1.0\n')
        [namespace] = re.findall(r'\[project.entry-points."(.*)"\]', page)
        info.joinpath('entry_points.txt').write_text(f'[{namespace}]\nvendor = vendor:Vendor\n')
        processes.run(GUESTS, str(directory)).check_returncode()
        [options] = re.findall(r'^    \[devicetrack_compatibility\]\n(?:    .*\n)+', page, re.M)
        with open(directory / 'service.conf', 'a', encoding='utf-8') as file:
            file.write(textwrap.dedent(options).replace('/srv/try', str(directory)))
        [versions] = re.findall(r'^    ({.*})$', page, re.M)
        directory.joinpath('versions.json').write_text(versions)
        for command, printed in re.findall(r'^    \$ devicetrack-manage (.*)\n((?:    [^$].*\n)*)', page, re.M)[:2]:
            answer = processes.run('devicetrack.cmd.manage', *command.replace('/srv/try', str(directory)).split(),
                                   env={**os.environ, 'PYTHONPATH': str(site)})
            self.assertEqual((0, printed), (answer.returncode, textwrap.indent(answer.stdout.lstrip(), '    ')),
                             answer.stderr)


def is_test(name: str) -> bool:
    """Whether a dotted name is of a module of tests, of a class of tests in one, or of a test in such a class."""
    parts = name.split('.')
    end = next((number for number, part in enumerate(parts) if part[0].isupper()), len(parts))
    module = '.'.join(parts[:end])
    try:
        found: Any = importlib.import_module(module)
    except ImportError:
        # Those beside Nova can be imported where Nova is, which is not here.
        return '.integration_nova.' in module and end == len(parts) and importlib.util.find_spec(module) is not None
    for part in parts[end:]:
        found = getattr(found, part, None)
    if isinstance(found, type):
        return any(member.startswith('test_') for member in dir(found))
    return found is not None and (end == len(parts) or parts[-1].startswith('test_'))


class PagesTestCase(base.TestCase):
    """What a page lists is all that there is, and nothing else."""

    def text(self, *parts: str) -> str:
        return DOCS.joinpath(*parts).read_text(encoding='utf-8')

    def test_every_kind_of_finding_and_every_field_is_explained(self) -> None:
        page = self.text('admin', 'audit.rst')
        self.assertEqual(list(findings.KINDS), [kind for kind in findings.KINDS if f'* - {kind}\n' in page])
        fields = ', '.join(re.findall(r'^   \* - ([a-z_, ]+)$', page.split('Kinds')[0], re.M)).split(', ')
        self.assertEqual(set(audit.Findings.columns), set(fields))

    def test_every_field_of_what_calls_return_is_listed(self) -> None:
        table = self.text('user', 'calls.rst').split('What calls return\n---')[1].split('\nThe fields of all')[0]
        rows = {name: set(re.findall(r'(?:^| )``(\w+)``', fields)) for name, fields in re.findall(
            r'^   \* - (\w+)\n     - (?:.*\n)(?:       .*\n)*?     - ((?:.*\n)(?:       .*\n)*)', table, re.M)}
        fields = {
            'Claim': {name for name in dir(Claim) if name[0] != '_'} - {'abort', 'keep', 'has_now'},
            'InstanceResources': set(objects.InstanceResources.fields),
            'DeviceAssignment': set(objects.DeviceAssignment.fields), 'GuestConfig': set(values.GuestConfig._fields),
            'Fields': set(Fields.__annotations__) | {'release'},
            'Finding': {*findings.Finding._fields, 'critical', 'warning', 'note', 'identifier'},
            'Usage': set(values.Usage._fields),
            'Use': set(values.Use._fields),
            'Wipe': {*Wipe._fields, *values.DeviceKey._fields}}
        self.assertEqual(fields, {name: rows[name] for name in fields})

    def test_every_error_is_explained(self) -> None:
        page = self.text('user', 'errors.rst')
        listed = {name.strip() for line in re.findall(r'^   \* - ([A-Z][A-Za-z, ]+)$', page, re.M)
                  for name in line.split(',')} - {'Error'}
        leaves = {name for name, error in vars(exception).items()
                  if isinstance(error, type) and issubclass(error, exception.DeviceTrackError)
                  and error.__module__ == exception.__name__}
        bases = {'DeviceTrackError', 'StoreError', 'NothingWritten', 'DriverError', 'DeviceError'}
        self.assertEqual(leaves - bases, listed)

    def test_every_test_that_stops_a_threat_exists(self) -> None:
        names = re.findall(r'``(devicetrack\.tests\.[\w.]+)``', self.text('admin', 'security.rst'))
        self.assertLess(50, len(names))
        self.assertEqual([], [name for name in names if not is_test(name)])

    def test_every_test_of_a_fault_from_the_field_exists(self) -> None:
        names = re.findall(r'``((?:unit|functional|drivers|host)\.[\w.]+)``', self.text('contributor', 'field.rst'))
        self.assertLess(50, len(names))
        self.assertEqual([], [name for name in names if not is_test(f'devicetrack.tests.{name}')])

    def test_every_status_of_the_inventory_is_explained(self) -> None:
        page = self.text('admin', 'commands.rst')
        self.assertEqual(list(report.STATUSES), [one for one in report.STATUSES if f'* - {one}\n' in page])

    def test_every_exit_code_is_explained(self) -> None:
        page = self.text('admin', 'commands.rst')
        codes = {cmd_base.OK, cmd_base.ERROR, cmd_base.USAGE, cmd_base.ATTENTION, cmd_base.INTERRUPTED,
                 cmd_base.BROKEN_PIPE}
        self.assertEqual(codes, {int(code) for code in re.findall(r'^   \* - ([0-9]+)$', page, re.M)})


class DeviceKindTestCase(base.TestCase):
    """The device kind of the contributors' page, under a manager."""

    def setUp(self) -> None:
        super().setUp()
        self.package = self.useFixture(scratch_package.Loaded())
        self.scratch = self.package.kind
        directory = self.temp_dir()
        self.file = os.path.join(directory, 'one')
        with open(self.file, 'wb') as file:
            file.truncate(2 << 20)
        registry.register(self.conf, 'scratch', self.scratch.options.OPTIONS)
        self.configuration.set('scratch', directory=directory)
        self.node = self.useFixture(libvirt_fixtures.TestNode())
        driver = libvirt_driver.LibvirtDriver('compute-7', self.conf, self.state_path, kinds=[self.scratch.Scratch],
                                              connect=self.node.connect)
        store = self.useFixture(fixtures.SQLiteStore(self.conf)).store
        self.manager = ClaimManager('compute-7', driver, store, self.conf)
        self.addCleanup(self.manager.close)
        self.manager.init_host(self.context)
        self.instance = fixtures.Instance()

    def claim(self) -> None:
        self.manager.instance_claim(self.context, self.instance, 'compute-7',
                                    DeviceRequest.of((self.scratch.RESOURCE_CLASS, 1)))
        self.manager.realize(self.context, self.instance)

    def test_a_device_is_taken_used_and_given_back_clean(self) -> None:
        self.claim()
        connection = self.node.connect()
        domain = connection.createXML(libvirt_fixtures.guest(
            self.instance.uuid, self.manager.guest_config(self.instance)), 0)
        with open(self.file, 'r+b') as file:
            file.write(b'a secret')
        self.assertRaises(exception.DeviceInUse, self.manager.release, self.context, self.instance)
        domain.destroy()
        self.manager.release(self.context, self.instance)
        with open(self.file, 'rb') as file:
            self.assertEqual(bytes(2 << 20), file.read())
        self.assertEqual([], self.manager.update_available_resource(self.context, 'compute-7'))

    def test_another_file_of_the_name_is_not_touched(self) -> None:
        self.claim()
        with open(self.file, 'wb') as file:
            file.write(b'of somebody else')
        self.assertRaises(exception.DeviceGone, self.manager.release, self.context, self.instance)
        with open(self.file, 'rb') as file:
            self.assertEqual(b'of somebody else', file.read())

    def command(self, *arguments: str, installed: bool = True, named: bool = True) -> tuple[int, Any]:
        """The exit code and the answer of ``devicetrack-manage``, where the kind is installed and named, or is not."""
        path = self.package.path if installed else self.temp_dir()
        lines = ['device_kinds = scratch'] if named else []
        config_file = program.write_configuration(self.state_path, self.conf, *lines)
        answer = processes.run('devicetrack.cmd.manage', '--config-file', config_file, *arguments, '-f', 'json',
                               env={**os.environ, 'PYTHONPATH': path})
        return answer.returncode, json.loads(answer.stdout)

    def test_a_start_proves_what_commands_only_look_at(self) -> None:
        """The last section of the page, with its program as the service."""
        directory = pathlib.Path(self.temp_dir())
        (directory / 'scratch').mkdir()
        for name in ('one', 'two'):
            with open(directory / 'scratch' / name, 'wb') as file:
                file.truncate(2 << 20)
        page = (DOCS / 'contributor' / 'device_kind.rst').read_text(encoding='utf-8')
        [section] = re.findall(r'^    \[devicetrack\]\n    state_path(?:.*\n|\n)*?    directory = .*$', page, re.M)
        (directory / 'service.conf').write_text(
            textwrap.dedent(section).replace('/srv/try', str(directory)).replace('/srv/scratch', f'{directory}/scratch')
            .replace('[devicetrack]', f'[devicetrack]\nmachine_id_path = {self.conf.devicetrack.machine_id_path}'))
        [start] = [block for block in code_blocks(DOCS / 'contributor' / 'device_kind.rst') if 'init_host' in block]
        env = {**os.environ, 'PYTHONPATH': self.package.path}

        def command(*arguments: str) -> tuple[int, Any]:
            answer = processes.run('devicetrack.cmd.manage', '--config-file', 'service.conf', *arguments, '-f', 'json',
                                   cwd=str(directory), env=env)
            return answer.returncode, json.loads(answer.stdout)

        explain = ('explain', '--resource', 'CUSTOM_SCRATCH=1')
        self.assertEqual(0, command('db', 'sync')[0])
        self.assertEqual(['withheld', 'withheld'], [one['status'] for one in command('device', 'list')[1]])
        self.assertEqual(cmd_base.ATTENTION, command(*explain)[0])
        started = processes.run('-c', start, cwd=str(directory), env=env)
        self.assertEqual((0, '[]\n'), (started.returncode, started.stdout), started.stderr)
        self.assertEqual(['free', 'free'], [one['status'] for one in command('device', 'list')[1]])
        self.assertEqual(0, command(*explain)[0])

    def test_commands_read_what_it_stored_where_it_is_installed(self) -> None:
        self.claim()
        code, shown = self.command('device', 'show', 'scratch/one')
        self.assertEqual((0, 'ScratchDetails', 2 << 20),
                         (code, shown['details'].get('class'), shown['details'].get('size_bytes')))
        code, migrated = self.command('db', 'online-data-migrations')
        self.assertEqual((0, []), (code, migrated['unreadable']))

    def test_commands_say_what_is_not_loaded(self) -> None:
        self.claim()
        for installed in (True, False):         # a package that is there is loaded only if the option names its kind
            code, shown = self.command('device', 'show', 'scratch/one', installed=installed, named=False)
            self.assertIn('from a device kind that is not installed', shown['details']['unreadable'])
            self.assertIn('[devicetrack] device_kinds', shown['details']['unreadable'])
            code, migrated = self.command('db', 'online-data-migrations', installed=installed, named=False)
            self.assertEqual((cmd_base.ATTENTION, ['scratch/one']), (code, migrated['unreadable']))

    def test_a_directory_that_cannot_be_read_frees_nothing(self) -> None:
        self.claim()
        os.rename(os.path.dirname(self.file), os.path.dirname(self.file) + '.away')
        # Not DeviceGone: the file may be there, and its file system not mounted.
        with testtools.ExpectedException(exception.UnclaimFailed):
            self.manager.release(self.context, self.instance)
        self.assertEqual(1, len(self.manager.assignments(self.instance.uuid)))
        os.rename(os.path.dirname(self.file) + '.away', os.path.dirname(self.file))
        self.manager.release(self.context, self.instance)
        self.assertEqual(0, len(self.manager.assignments(self.instance.uuid)))
