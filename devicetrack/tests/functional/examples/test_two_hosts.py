"""The compute service of ``examples/two_hosts`` prints what the page about wiring says, and saves what it lists."""

from __future__ import annotations

import pathlib
import re
import runpy
import sys
import textwrap
from typing import Any
from unittest import mock
import uuid

import libvirt
from oslo_config import cfg

import devicetrack
from devicetrack import exception
from devicetrack.engine import findings
from devicetrack.tests import base
from devicetrack.tests import processes
from devicetrack.tests.functional.docs.test_documented_code import DOCS
from devicetrack.tests.functional.docs.test_documented_code import GUESTS
from devicetrack.tests.functional.examples import two_hosts

ROOT = pathlib.Path(devicetrack.__file__).parent.parent
PAGE = ROOT / 'doc' / 'source' / 'user' / 'wiring.rst'


class TestTwoHosts(base.TestCase):

    def test_it_prints_what_the_page_says(self) -> None:
        answer = processes.run(str(two_hosts.PROGRAM.with_name('main.py')), cwd=self.temp_dir())
        self.assertEqual('', answer.stderr if answer.returncode else '')
        self.assertIn('::\n\n' + textwrap.indent(answer.stdout, '    ') + '\n', PAGE.read_text(encoding='utf-8'))

    def test_the_page_lists_every_save_of_the_program(self) -> None:
        numbered = re.findall(r'self\.database\.save\(.*# ([0-9]+): ', two_hosts.PROGRAM.read_text(encoding='utf-8'))
        listed = re.findall(r'^   \* - ([0-9]+)$', PAGE.read_text(encoding='utf-8'), re.M)
        self.assertEqual(numbered, listed)
        self.assertEqual(two_hosts.PROGRAM.read_text(encoding='utf-8').count('self.database.save('), len(numbered))


class TestResizeThatDoesNotStart(two_hosts.TwoHostsTestCase):
    """The destination cannot start the guest after the instance was handed over."""

    def setUp(self) -> None:
        super().setUp()
        self.hand_over()
        self.two.machine.before('realize', ZeroDivisionError(), times=1)
        self.assertRaises(ZeroDivisionError, self.finish)
        self.assertEqual({'one': ['old'], 'two': ['incoming'] * 2}, self.roles())

    def test_nothing_goes_back_until_the_service_decides(self) -> None:
        self.assertEqual([], self.audit())
        self.assertEqual({'one': ['old'], 'two': ['incoming'] * 2}, self.roles())

    def test_it_can_be_tried_again(self) -> None:
        self.finish()
        self.assertEqual({'one': ['old'], 'two': ['current'] * 2}, self.roles())

    def test_it_is_reverted_as_the_page_says(self) -> None:
        self.two.revert_resize(self.instance.uuid, self.migration)
        self.assertEqual({'one': ['old'], 'two': []}, self.roles())
        self.finish_revert()
        self.check_reverted()
        self.assertIsNone(self.database.instance(self.instance.uuid).migration_context)

    def test_the_audit_of_the_destination_does_the_work_of_a_call_that_is_lost(self) -> None:
        self.migration.status = 'reverting'
        self.database.save(self.migration)
        self.assertEqual([], self.audit())
        self.assertEqual({'one': ['old'], 'two': ['incoming'] * 2}, self.roles())
        self.finish_revert()
        self.assertEqual([], self.audit())
        self.two.manager.wait_for_wipes()
        self.check_reverted()

    def test_after_an_error_the_destination_keeps_it(self) -> None:
        self.migration.status = 'error'
        self.database.save(self.migration)
        self.audit()
        self.assertEqual([findings.STALE_MIGRATION], self.audit())
        self.assertEqual({'one': ['old'], 'two': ['current'] * 2}, self.roles())


class TestOnLibvirt(base.TestCase):
    """The program on libvirt's test driver, with the parts that the page lists for that."""

    def setUp(self) -> None:
        super().setUp()
        with mock.patch.object(sys, 'path', [str(two_hosts.PROGRAM.parent), *sys.path]):
            names = runpy.run_path(str(two_hosts.PROGRAM))
        self.guests_class = runpy.run_path(GUESTS)['Guests']
        self.directory = pathlib.Path(self.temp_dir())
        self.database = names['Database'](self.directory / 'database.json')
        self.names = names
        self.one, self.two = self.host('one'), self.host('two')
        self.small, self.other = (names['Flavor'](name, {'hw:pmem': '4GB'}) for name in ('small', 'other'))
        self.instance = names['Instance'](str(uuid.uuid4()), self.small)
        self.one.boot(self.instance)

    def host(self, name: str) -> Any:
        directory = self.directory / name
        (directory / 'memory').mkdir(parents=True)
        for namespace in ('ns0', 'ns1'):
            with open(directory / 'memory' / namespace, 'wb') as file:
                file.truncate(64 << 20)
        (directory / 'machine-id').write_text(uuid.uuid4().hex)
        (directory / 'host.xml').write_text((DOCS / 'user' / 'host.xml').read_text())
        (directory / 'service.conf').write_text(
            f'[devicetrack]\nstate_path = {directory}/state\nmachine_id_path = {directory}/machine-id\n'
            f'[libvirt]\nconnection_uri = test://{directory}/host.xml\npmem_namespaces = 4GB:ns0|ns1\n'
            f'[devicetrack_vpmem]\ndirectory = {directory}/memory\n')
        conf = cfg.ConfigOpts()
        devicetrack.register_options(conf)
        conf(['--config-file', str(directory / 'service.conf')], project='compute')
        devicetrack.sync_store(conf)
        connection = libvirt.open(conf.libvirt.connection_uri)
        self.addCleanup(connection.close)
        driver = devicetrack.load_driver(conf, name, connect=lambda: connection)
        host = object.__new__(self.names['Compute'])
        host.name, host.database, host.machine, host._conf = name, self.database, self.guests_class(connection), conf
        with mock.patch.object(devicetrack, 'load_driver', autospec=True, return_value=driver):
            host.start()
        self.addCleanup(host.manager.close)
        return host

    def migration(self, number: int, destination: str) -> Any:
        return self.names['Migration'](str(uuid.uuid4()), number, self.instance.uuid, 'one', destination)

    def named(self, host: Any) -> list[str | None]:
        return [use.identifier for use in host.manager.placed()[1].uses if use.running]

    def check_definition(self, host: Any, device: str) -> None:
        """The definition names the device, and has the library's record of it."""
        self.assertEqual([device], self.named(host))
        [element], metadata = host.machine.read(self.instance.uuid)
        self.assertIn(f'/{device}</path>', element)
        self.assertIn(f'identifier="{device}"', metadata)

    def test_a_resize_on_one_host_is_reverted_and_another_one_confirmed(self) -> None:
        self.check_definition(self.one, 'ns0')
        migration = self.migration(1, 'one')
        self.one.prep_resize(self.instance.uuid, migration, self.other)
        self.one.resize_instance(self.instance.uuid, migration)
        self.one.finish_resize(self.instance.uuid, migration)
        self.check_definition(self.one, 'ns1')
        self.one.revert_resize(self.instance.uuid, migration)
        self.one.finish_revert_resize(self.instance.uuid, migration)
        self.check_definition(self.one, 'ns0')
        self.assertEqual([], self.one.manager.update_available_resource(None, 'one'))
        self.one.manager.wait_for_wipes()

        migration = self.migration(2, 'one')
        self.one.prep_resize(self.instance.uuid, migration, self.other)
        self.one.resize_instance(self.instance.uuid, migration)
        self.one.finish_resize(self.instance.uuid, migration)
        self.one.confirm_resize(self.instance.uuid, migration)
        self.check_definition(self.one, 'ns1')
        self.assertEqual(['ns1'], [row.identifier for row in self.one.manager.resources_of(self.instance.uuid)])

    def test_a_resize_to_the_other_host_and_a_delete(self) -> None:
        migration = self.migration(1, 'two')
        self.two.prep_resize(self.instance.uuid, migration, self.other)
        self.one.resize_instance(self.instance.uuid, migration)
        self.two.finish_resize(self.instance.uuid, migration)
        self.assertEqual(('off', 'runs'), tuple(host.guest_state(self.instance.uuid) for host in (self.one, self.two)))
        self.one.confirm_resize(self.instance.uuid, migration)
        self.two.delete(self.instance.uuid)
        for host in (self.one, self.two):
            self.assertEqual(('none', 0, []), (
                host.guest_state(self.instance.uuid), len(host.manager.resources_of(self.instance.uuid)),
                host.manager.update_available_resource(None, host.name)))


class TestTakenOver(two_hosts.TwoHostsTestCase):
    """A newer process of host one, with a state directory of its own, starts while the older one boots a guest."""

    def setUp(self) -> None:
        super().setUp()
        self.other = self.names['Instance'](str(uuid.uuid4()), self.small)

    def take_over(self) -> None:
        conf = self.confs['one']
        conf.set_override('state_path', self.temp_dir(), 'devicetrack')
        self.newer = devicetrack.ClaimManager('one', devicetrack.load_driver(conf, 'one'), self.one.manager.store, conf,
                                              service=self.names['Answers'](self.database, 'one'))
        self.addCleanup(self.newer.close)
        self.newer.init_host(None)
        self.newer.realize(None, self.other)
        config = self.newer.guest_config(self.other)
        self.one.machine.start_guest(self.other.uuid, config.devices, metadata=config.metadata)
        self.newer.started(None, self.other)

    def check_other(self) -> None:
        self.assertTrue(self.one.machine.usage().runs_here(self.other.uuid))
        self.assertEqual([], self.newer.update_available_resource(None, 'one'))
        self.assertEqual('one', self.database.instance(self.other.uuid).host)

    def test_the_older_one_leaves_the_guest_of_the_newer_one(self) -> None:
        self.one.machine.before('guest_config', self.take_over, times=1)
        self.assertRaises(exception.HostTakenOver, self.one.boot, self.other)
        self.check_other()

    def test_also_when_its_own_guest_does_not_start(self) -> None:
        real, calls = self.one.machine.start_guest, []

        def start_guest(*arguments: Any, **options: Any) -> None:
            calls.append(arguments)
            if len(calls) == 1:
                self.take_over()
                raise ZeroDivisionError()       # it runs already
            real(*arguments, **options)

        with mock.patch.object(self.one.machine, 'start_guest', start_guest):
            self.assertRaises(exception.HostTakenOver, self.one.boot, self.other)
        self.check_other()

    def test_the_older_one_ends_no_live_migration(self) -> None:
        migration = self.names['Migration'](str(uuid.uuid4()), 1, self.instance.uuid, 'one', 'two', 'live-migration')

        def take_over(*_arguments: Any) -> None:
            self.other = self.instance
            self.take_over()
            raise ZeroDivisionError()           # the copy fails

        with mock.patch.object(self.one, '_copy', take_over):
            self.assertRaises(exception.HostTakenOver, self.one.live_migrate, self.instance.uuid, migration,
                              self.hosts.__getitem__)
        self.assertEqual('running', self.database.migrations()[-1].status)
