"""The programs as a person or a script runs them: processes, with a libvirt driver and files that stand for memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from devicetrack.claims.manager import ClaimManager
from devicetrack.objects import DeviceRequest
from devicetrack.store.sql import open_store
from devicetrack.testing import fixtures
from devicetrack.tests import base
from devicetrack.tests import processes
from devicetrack.virt import loader

HOST = 'compute-7'


class ProgramsTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.configuration.set('devicetrack', virt_driver='libvirt')
        self.configuration.set('libvirt', connection_uri='test:///default', pmem_namespaces=['4GB:ns0|ns1'])
        memory = self.temp_dir()
        for name in ('ns0', 'ns1'):
            with open(os.path.join(memory, name), 'wb') as file:
                file.truncate(4 << 20)
        self.configuration.set('devicetrack_vpmem', directory=memory)
        self.config_file = os.path.join(self.state_path, 'devicetrack.conf')
        with open(self.config_file, 'w', encoding='utf-8') as file:
            file.write(f"""
[devicetrack]
state_path = {self.state_path}
machine_id_path = {self.conf.devicetrack.machine_id_path}
[libvirt]
connection_uri = test:///default
pmem_namespaces = 4GB:ns0|ns1
[devicetrack_vpmem]
directory = {memory}
""")

    def program(self, name: str, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        return processes.run(f'devicetrack.cmd.{name}', '--config-file', self.config_file, *arguments, **options)

    def manage(self, *arguments: str, code: int = 0) -> Any:
        answer = self.program('manage', *arguments, '-f', 'json')
        self.assertEqual((code, ''), (answer.returncode, answer.stderr))
        return json.loads(answer.stdout)

    def start_manager(self) -> ClaimManager:
        store = open_store(self.conf)
        self.addCleanup(store.close)
        manager = ClaimManager(HOST, loader.load_driver(self.conf, HOST), store, self.conf)
        self.addCleanup(manager.close)
        manager.init_host(self.context)
        return manager

    def test_from_an_empty_directory_to_a_report_beside_a_manager_that_works(self) -> None:
        self.manage('db', 'sync')
        self.assertEqual(True, self.manage('db', 'check')['usable'])
        manager, instance = self.start_manager(), fixtures.Instance()
        manager.instance_claim(self.context, instance, HOST, DeviceRequest.of((fixtures.PMEM, 1)))
        self.assertEqual(instance.uuid, self.manage('device', 'show', 'vpmem/ns0')['instance_uuid'])
        self.assertEqual({'ns0': 'held', 'ns1': 'free'},
                         {one['identifier']: one['status'] for one in self.manage('device', 'list')})
        self.assertEqual([], self.manage('audit'))
        [part] = self.manage('explain', '--resource', f'{fixtures.PMEM}=2', code=3)
        self.assertEqual((2, 1, 1), (part['wanted'], part['free'], part['held']))
        self.assertEqual(0, self.program('status', 'upgrade', 'check').returncode)
        manager.release(self.context, instance)
        self.assertEqual([], self.manage('instance', 'list'))

    def test_a_request_to_a_manager_that_works_and_its_answer(self) -> None:
        self.manage('db', 'sync')
        manager = self.start_manager()
        answer = self.program('manage', 'audit', '--repair', '--no-wait', '-f', 'json')
        self.assertEqual((0, []), (answer.returncode, json.loads(answer.stdout)))
        [request] = self.manage('request', 'list', '--waiting')
        self.assertIn(request['request_uuid'], answer.stderr)
        self.assertEqual([], manager.update_available_resource(self.context, HOST))
        shown = self.manage('request', 'show', request['request_uuid'])
        self.assertEqual(('done', 'there was nothing to repair'), (shown['outcome'], shown['text']))
        self.assertEqual(1, self.program('manage', 'recover', '--from-hypervisor').returncode)
        manager.close()
        self.assertEqual([], self.manage('audit', '--repair'))

    def test_no_store_is_one_line_on_stderr(self) -> None:
        for arguments in (('audit',), ('instance', 'list')):
            # Not a fork: what is loaded says nothing either.
            answer = subprocess.run(
                [sys.executable, '-m', 'devicetrack.cmd.manage', '--config-file', self.config_file, *arguments],
                capture_output=True, text=True, check=False, timeout=base.HANGS_S)
            self.assertEqual((1, ''), (answer.returncode, answer.stdout))
            self.assertEqual(1, len(answer.stderr.splitlines()), answer.stderr)
            self.assertIn('run devicetrack-manage db sync', answer.stderr)

    def test_a_reader_that_goes_away_hears_nothing_more(self) -> None:
        self.manage('db', 'sync')
        reading, writing = os.pipe()
        os.close(reading)
        with os.fdopen(writing, 'w') as closed:
            answer = self.program('manage', 'device', 'list', stdout=closed)
        self.assertEqual((141, ''), (answer.returncode, answer.stderr))

    def test_an_answer_that_cannot_be_written_is_an_error(self) -> None:
        self.manage('db', 'sync')
        self.have_full_device()
        with open('/dev/full', 'w') as full:
            answer = self.program('manage', 'device', 'list', stdout=full)
        self.assertEqual((1, 'devicetrack-manage: the answer cannot be written: No space left on device\n'),
                         (answer.returncode, answer.stderr))

    def test_a_command_that_nobody_knows(self) -> None:
        self.assertEqual(2, self.program('manage', 'abolish').returncode)
        self.assertEqual(2, self.program('manage').returncode)
        self.assertEqual(2, self.program('status').returncode)

    def test_the_exit_code_of_status_is_that_of_the_worst_check(self) -> None:
        answer = self.program('status', 'upgrade', 'check')
        self.assertEqual((2, ''), (answer.returncode, answer.stderr))
        self.assertIn('Result: Failure', answer.stdout)
