"""The compute service of ``examples/compute`` with a real libvirtd and real guests."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
import json
import os
import pathlib
import runpy
import subprocess
import sys
from typing import Any
from unittest import mock
import uuid
from xml.etree import ElementTree

from oslo_config import cfg

import devicetrack
from devicetrack import exception
from devicetrack.objects.values import Record
from devicetrack.objects.values import Use
from devicetrack.store.sql import schema
from devicetrack.testing import libvirt as testing_libvirt
from devicetrack.tests import base
from devicetrack.tests import processes
from devicetrack.virt.libvirt.driver import LibvirtDriver

ROOT = pathlib.Path(devicetrack.__file__).parent.parent
SERVICE = ROOT / 'examples' / 'compute' / 'one_host.py'
MIB = 1 << 20

CONFIGURATION = """\
[devicetrack]
state_path = {directory}/state
machine_id_path = {directory}/machine-id

[libvirt]
connection_uri = {uri}
pmem_namespaces = 16MB:ns0

[devicetrack_vpmem]
directory = {directory}/pmem
"""


def uuid_of(name: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_DNS, name))


def in_new_python(*arguments: str, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False,
                          timeout=base.HANGS_S, env=env)


class TestComputeService(base.TestCase):
    """One namespace, a file of 16 MiB."""

    def setUp(self) -> None:
        super().setUp()
        self.daemon = self.useFixture(testing_libvirt.Libvirtd())
        directory = pathlib.Path(self.temp_dir())
        self.namespace = directory / 'pmem' / 'ns0'
        self.namespace.parent.mkdir()
        self.namespace.touch()
        os.truncate(self.namespace, 16 * MIB)
        (directory / 'machine-id').write_text('0' * 32)
        self.file = directory / 'service.conf'
        self.file.write_text(CONFIGURATION.format(directory=directory, uri=self.daemon.uri))
        self.service_conf = cfg.ConfigOpts()
        devicetrack.register_options(self.service_conf)
        self.service_conf(['--config-file', str(self.file)], project='compute')
        self.store = devicetrack.open_store(self.service_conf)
        self.addCleanup(self.store.close)
        schema.sync(self.store)
        self.driver = LibvirtDriver('host-1', self.service_conf, self.service_conf.devicetrack.state_path)
        self.addCleanup(self.driver.close)

    def run_service(self, *order: str, run: Callable[..., Any] = processes.run) -> subprocess.CompletedProcess[str]:
        done: subprocess.CompletedProcess[str] = run(
            str(SERVICE), '--config-file', str(self.file), '--host', 'host-1', '--virt-type', 'qemu', *order, env={
                **os.environ, 'PYTHONPATH': os.pathsep.join([str(ROOT), os.environ.get('PYTHONPATH', '')])})
        return done

    def order(self, *order: str) -> list[str]:
        """Give an order that succeeds.

        :returns: the lines that the service printed
        """
        done = self.run_service(*order)
        self.assertEqual(0, done.returncode, done.stderr)
        return done.stdout.splitlines()

    def records(self) -> list[Record]:
        return self.store.records()

    def domains(self) -> list[Any]:
        connection = self.daemon.connect()
        self.addCleanup(connection.close)
        return list(connection.listAllDomains())

    def test_guest_runs_on_the_devices_of_its_record_and_the_audit_agrees(self) -> None:
        booted = self.run_service('boot', 'web-1', 'hw:pmem=16MB', run=in_new_python)
        self.assertEqual((0, 'web-1 has vpmem ns0\n'), (booted.returncode, booted.stdout), booted.stderr)

        [record], [domain] = self.records(), self.domains()
        self.assertTrue(domain.isActive())
        [path] = ElementTree.fromstring(domain.XMLDesc()).findall("devices/memory[@model='nvdimm']/source/path")
        self.assertEqual(path.text, json.loads(record.details)['versioned_object.data']['devpath'])
        self.assertEqual(('ns0', 'active'), (record.identifier, record.state))
        # What the library reads from the live and from the inactive definition.
        usage = self.driver.get_usage()
        self.assertEqual((), usage.unknown)
        self.assertEqual(
            [Use('vpmem', record.identifier, str(self.namespace), record.instance_uuid, True, True, True)],
            list(usage.uses))
        self.assertEqual([], self.order('audit'))

    def test_refused_instance_leaves_nothing_and_disturbs_nobody(self) -> None:
        self.order('boot', 'web-1', 'hw:pmem=16MB')
        before = self.records()

        refused = self.run_service('boot', 'web-2', 'hw:pmem=16MB')

        self.assertNotEqual(0, refused.returncode)
        self.assertIn('1 CUSTOM_PMEM_NAMESPACE_16MB wanted, 0 of 1 free: 1 held by 1 instance', refused.stderr)
        self.assertEqual(before, self.records())
        self.assertEqual([uuid_of('web-1')], [domain.UUIDString() for domain in self.domains()])
        self.assertEqual([], self.order('audit'))

    def test_guest_that_cannot_be_made_leaves_nothing(self) -> None:
        connection = self.daemon.connect()
        self.addCleanup(connection.close)
        connection.defineXML(f"<domain type='qemu'><name>{uuid_of('web-1')}</name><memory>65536</memory>"
                             "<os><type arch='x86_64'>hvm</type></os></domain>")

        refused = self.run_service('boot', 'web-1', 'hw:pmem=16MB')

        self.assertNotEqual(0, refused.returncode)
        self.assertIn('already exists', refused.stderr)
        self.assertEqual([], self.records())
        self.assertEqual([], self.order('audit'))

    def test_extra_specs_that_nobody_can_read_leave_nothing(self) -> None:
        refused = self.run_service('boot', 'web-1', 'resources:VGPU=many')

        self.assertIn('BadRequest', refused.stderr)
        self.assertEqual(([], []), (self.records(), self.domains()))
        self.assertEqual([], self.order('audit'))

    def test_newer_process_keeps_the_guest_that_it_started(self) -> None:
        with mock.patch.object(sys, 'path', [str(SERVICE.parent), *sys.path]):
            names = runpy.run_path(str(SERVICE.with_name('service.py')))
        connection = self.daemon.connect()
        self.addCleanup(connection.close)
        database = names['Database'](os.path.join(self.temp_dir(), 'service.sqlite'), None)

        def opened(state_path: str | None) -> devicetrack.Lifecycle:
            conf = names['configured'](str(self.file))
            if state_path is not None:          # else the lock of the host would be in its way
                conf.set_override('state_path', state_path, 'devicetrack')
                conf.set_override('connection', f'sqlite:///{self.store.path}', 'devicetrack_database')
            guests = names['Guests'](connection)
            lifecycle: devicetrack.Lifecycle = names['open_host']('host-1', conf, database, guests)
            self.addCleanup(lifecycle.close)
            return lifecycle

        start, instance = names['Guests'].start, uuid_of('web-1')
        flavor = {'memory_mb': 128, 'virt_type': 'qemu', 'extra_specs': {'hw:pmem': '16MB'}}

        def start_and_be_taken_over(*arguments: Any) -> None:
            names['Guests'].start = start
            opened(self.temp_dir())             # it goes on with the boot
            raise ZeroDivisionError

        older = opened(None)
        names['Guests'].start = start_and_be_taken_over
        self.assertEqual(['ns0'], [device.identifier for device in older.claim(instance, flavor)])

        [domain], [record] = self.domains(), self.records()
        self.assertEqual((True, 'active'), (bool(domain.isActive()), record.state))
        self.assertRaises(exception.HostTakenOver, older.release, instance)
        self.assertEqual('active', json.loads(database.document(instance))['state'])

    def test_deleted_instance_gives_back_a_clean_device_for_the_next(self) -> None:
        self.order('boot', 'web-1', 'hw:pmem=16MB')
        with open(self.namespace, 'r+b') as file:
            file.write(b'secret of web-1')

        self.assertEqual([], self.order('delete', 'web-1'))

        self.assertEqual(([], []), (self.records(), self.domains()))
        self.assertEqual(bytes(16 * MIB), self.namespace.read_bytes())
        self.assertEqual(['web-2 has vpmem ns0'], self.order('boot', 'web-2', 'hw:pmem=16MB'))
