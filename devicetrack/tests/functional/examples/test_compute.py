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
SERVICE = ROOT / 'examples' / 'compute' / 'service.py'
MIB = 1 << 20

CONFIGURATION = """\
[DEFAULT]
host = host-1
virt_type = qemu

[devicetrack]
state_path = {directory}/state
machine_id_path = {directory}/machine-id

[libvirt]
connection_uri = {uri}
pmem_namespaces = 16MB:ns0

[devicetrack_vpmem]
directory = {directory}/pmem
"""


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
        done: subprocess.CompletedProcess[str] = run(str(SERVICE), '--config-file', str(self.file), *order, env={
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
        self.assertEqual(['web-1'], [domain.name() for domain in self.domains()])
        self.assertEqual([], self.order('audit'))

    def test_guest_that_cannot_be_made_leaves_nothing(self) -> None:
        connection = self.daemon.connect()
        self.addCleanup(connection.close)
        connection.defineXML("<domain type='qemu'><name>web-1</name><memory>65536</memory>"
                             "<os><type arch='x86_64'>hvm</type></os></domain>")

        refused = self.run_service('boot', 'web-1', 'hw:pmem=16MB')

        self.assertNotEqual(0, refused.returncode)
        self.assertIn('already exists', refused.stderr)
        self.assertEqual([], self.records())
        self.assertEqual([], self.order('audit'))

    def test_extra_specs_that_nobody_can_read_leave_nothing(self) -> None:
        refused = self.run_service('boot', 'web-1', 'resources:VGPU=many')

        self.assertIn('BadRequest', refused.stderr)
        [known] = json.loads((self.namespace.parent.parent / 'state' / 'instances.json').read_text()).values()
        self.assertEqual(('deleted', []), (known['state'], self.records()))

    def test_newer_process_keeps_the_guest_that_it_started(self) -> None:
        names = runpy.run_path(str(SERVICE))
        elsewhere = self.temp_dir()

        def conf() -> cfg.ConfigOpts:
            made = cfg.ConfigOpts()
            made.register_opts(names['OPTIONS'])
            devicetrack.register_options(made)
            made(['--config-file', str(self.file)], project='compute')
            made.set_override('connection', f'sqlite:///{self.store.path}', 'devicetrack_database')
            return made

        instance = names['Instance']('web-1', str(uuid.uuid4()), names['Flavor']({'hw:pmem': '16MB'}))
        older = names['ComputeService'](conf())
        self.addCleanup(older.manager.close)
        start_guest = older._start_guest

        def start_guest_after_the_newer_one(wanted: Any) -> None:
            newer_conf = conf()
            newer_conf.set_override('state_path', elsewhere, 'devicetrack')
            newer = names['ComputeService'](newer_conf)
            self.addCleanup(newer.manager.close)
            newer.manager.realize(None, wanted)
            newer._start_guest(wanted)
            newer.manager.started(None, wanted)
            start_guest(wanted)

        older._start_guest = start_guest_after_the_newer_one
        self.assertRaises(exception.HostTakenOver, older.boot, instance)

        [domain], [record] = self.domains(), self.records()
        self.assertEqual((True, 'active'), (bool(domain.isActive()), record.state))
        self.assertEqual({instance.uuid: 'here'}, older.instances({instance.uuid}))

    def test_deleted_instance_gives_back_a_clean_device_for_the_next(self) -> None:
        self.order('boot', 'web-1', 'hw:pmem=16MB')
        with open(self.namespace, 'r+b') as file:
            file.write(b'secret of web-1')

        self.assertEqual([], self.order('delete', 'web-1'))

        self.assertEqual(([], []), (self.records(), self.domains()))
        self.assertEqual(bytes(16 * MIB), self.namespace.read_bytes())
        self.assertEqual(['web-2 has vpmem ns0'], self.order('boot', 'web-2', 'hw:pmem=16MB'))
