"""Two hosts with the service of ``examples/compute``. Each can be killed before and after each save and each call."""

from __future__ import annotations

import inspect
import os
import pathlib
import runpy
from typing import Any
from unittest import mock
import uuid

import libvirt

import devicetrack
from devicetrack.service.document import Document
from devicetrack.tests import base

ROOT = pathlib.Path(devicetrack.__file__).parent.parent / 'examples' / 'compute'
SMALL = {'name': 'small', 'memory_mb': 1024, 'virt_type': 'test', 'extra_specs': {'hw:pmem': '4GB'}}
VGPU = {**SMALL, 'name': 'vgpu', 'extra_specs': {'resources:VGPU': '1'}}
LARGE = {**SMALL, 'name': 'large', 'extra_specs': {'hw:pmem': '4GB,4GB'}}


class Killed(BaseException):
    """The process of a host ends here: no handler of the service or of the library sees it."""


class Watched:
    """An object of a host whose process may be killed before and after each call of the object's methods."""

    def __init__(self, host: Host, name: str, watched: Any) -> None:
        self._host, self._name, self._watched = host, name, watched

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._watched, name)
        if not inspect.ismethod(found):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            self._host.pass_by(f'before {self._name}.{name}')
            answer = found(*args, **kwargs)
            self._host.pass_by(f'after {self._name}.{name}')
            return answer

        return call


class Host:
    """A host with two namespaces and two mediated devices, on libvirt's test driver. It outlives its processes."""

    def __init__(self, name: str, directory: pathlib.Path, hosts: TwoHostsTestCase) -> None:
        self.name, self._hosts = name, hosts
        self.file = make_host(name, directory, hosts)
        self.connection = libvirt.open(f'test://{directory}/host.xml')
        self.lifecycle: Any = None
        self.nodename: str | None = None
        self.passed: list[str] = []
        self.kill_at = 0                        # the number of the moment; none for 0

    def pass_by(self, moment: str) -> None:
        self.passed.append(moment)
        if len(self.passed) == self.kill_at:
            raise Killed(f'host {self.name}, {moment}')

    def start(self) -> None:
        """Start the process. It can be killed while it opens the host."""
        names, database = self._hosts.names, self._hosts.database
        real = devicetrack.Lifecycle

        def make(*args: Any) -> Any:
            instances: Any = Watched(self, 'Instances', args[4])
            guests: Any = Watched(self, 'Guests', args[5])
            driver, store, conf = args[1:4]
            self.lifecycle = made = real(self.name, driver, store, conf, instances, guests,
                                         nodename=self.nodename)
            watched: Any = Watched(self, 'ClaimManager', made.manager)
            vars(made)['manager'] = vars(vars(made)['_steps'])['_manager'] = watched
            return made

        with mock.patch.dict(vars(devicetrack), {'Lifecycle': make}):
            names['open_host'](self.name, names['configured'](self.file), database, names['Guests'](self.connection))

    def end(self) -> None:
        """What is left of a process that was killed is its devices, guests and rows."""
        self.kill_at = 0
        if self.lifecycle is not None:
            self.lifecycle.close()
        self.lifecycle = None

    def lose_power(self) -> None:
        self.end()
        for domain in self.connection.listAllDomains(libvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE):
            domain.destroy()

    def guests(self) -> dict[str, bool]:
        return {domain.UUIDString(): bool(domain.isActive()) for domain in self.connection.listAllDomains()}


def make_host(name: str, directory: pathlib.Path, test: base.TestCase) -> str:
    (directory / 'memory').mkdir(parents=True)
    for namespace in ('ns0', 'ns1', 'ns2'):
        (directory / 'memory' / namespace).touch()
        os.truncate(directory / 'memory' / namespace, 4 << 20)
    (directory / 'machine-id').write_text(uuid.uuid4().hex)
    node = (ROOT.parent.parent / 'doc' / 'source' / 'user' / 'host.xml').read_text()
    (directory / 'host.xml').write_text(node.replace('4b20d080', uuid.uuid5(uuid.NAMESPACE_DNS, name).hex[:8]))
    file = directory / 'service.conf'
    file.write_text(f"""
[devicetrack]
state_path = {directory}/state
machine_id_path = {directory}/machine-id
[libvirt]
connection_uri = test://{directory}/host.xml
pmem_namespaces = 4GB:ns0|ns1|ns2
[devices]
enabled_mdev_types = nvidia-35
[devicetrack_vpmem]
directory = {directory}/memory
""")
    return os.fspath(file)


class TwoHostsTestCase(base.TestCase):
    """Two hosts with the service of the example."""

    def setUp(self) -> None:
        super().setUp()
        self.names = runpy.run_path(os.fspath(ROOT / 'service.py'))
        directory = pathlib.Path(self.temp_dir())
        self.database = self.names['Database'](os.fspath(directory / 'service.sqlite'), self.ask)
        self.hosts = {name: Host(name, directory / name, self) for name in ('one', 'two')}
        self.names['Guests'].migrate = lambda *args: self.migrate(*args)
        self.names['Guests'].is_migrating = lambda _guests, _uuid: False        # the test driver cannot say it
        for host in self.hosts.values():
            self.addCleanup(host.connection.close)
            devicetrack.sync_store(self.names['configured'](host.file))
            host.start()
            self.addCleanup(host.end)
        self.instance = str(uuid.uuid4())

    @property
    def one(self) -> Any:
        return self.hosts['one'].lifecycle

    @property
    def two(self) -> Any:
        return self.hosts['two'].lifecycle

    def ask(self, host: str, instance_uuid: str) -> None:
        """A call from one host to the other."""
        asked = self.hosts[host]
        if asked.lifecycle is None:
            raise ConnectionRefusedError(host)
        try:
            asked.lifecycle.go_on(instance_uuid)
        except Killed as killed:
            if not killed.args[0].startswith(f'host {host},'):
                raise
            asked.end()                         # it answers nobody any more
            raise ConnectionResetError(host) from killed

    def migrate(self, guests: Any, instance_uuid: str, host: str, definitions: Any) -> None:
        """The test driver cannot migrate a guest."""
        self.hosts[host].connection.defineXML(definitions.persistent).create()
        guests.delete(instance_uuid)

    # -- what must hold -----------------------------------------------------------------------------------------------

    def document(self) -> Any:
        text = self.database.document(self.instance)
        return None if text is None else Document.read(text)

    def settle(self) -> None:
        """Some rounds of the periodic task."""
        for _ in range(2):
            for host in self.hosts.values():
                host.lifecycle.audit()
                host.lifecycle.manager.wait_for_wipes()

    def check(self, moment: str) -> Any:
        """Check that the instance has what its document says, and nothing else has anything."""
        self.settle()
        document = self.document()
        where = None if document is None or document.state == 'deleted' else document.host
        waits = document is not None and document.move is not None      # for its confirmation
        for name, host in self.hosts.items():
            rows = host.lifecycle.manager.assignments()
            held = sorted((row.instance_uuid, row.role, row.state) for row in rows)
            expected = []
            if name == where:
                expected += [(self.instance, 'current', 'active')] * devices_of(document.flavor)
            if waits and name == document.move.source_compute:
                expected += [(self.instance, 'old', 'active')] * devices_of(document.move.old_flavor)
            self.assertEqual(sorted(expected), held, f'{moment}: rows of {name}')
            guests = host.guests()
            runs = {self.instance: True} if name == where else {}
            if waits and name == document.move.source_compute and name != where:
                runs = {self.instance: False}
            self.assertEqual(runs, guests, f'{moment}: guests of {name}')
            self.assertEqual([], host.lifecycle.audit(), f'{moment}: findings of {name}')
        if document is not None:
            rest = ('active', 'off', 'deleted') if not waits else ('active',)
            self.assertIn(document.state, rest, moment)
            self.assertEqual(((), ()), (document.ended, document.leaving), moment)
        return document


def devices_of(flavor: Any) -> int:
    specs = flavor['extra_specs']
    return len([one for one in specs.get('hw:pmem', '').split(',') if one]) + int(specs.get('resources:VGPU', 0))
