"""The outside of the compute services that run inside hosts: their database, and a handle on each of them."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence
import json
from typing import Any
import uuid

from devicetrack.tests.host import machine

NAMESPACES = ('pmem0', 'pmem1', 'pmem2', 'pmem3', 'pmem4', 'pmem5')
EQUAL = ('pmem1', 'pmem4')
LARGER = 'pmem5'
SMALLER = 'pmem0'
CONFIGURATION = '/etc/compute.conf'


class Database:
    """Instances and migrations, as a compute service keeps them somewhere else than on its hosts.

    ``devices`` has those that the service hands out itself, by their addresses.
    """

    def __init__(self) -> None:
        self.devices: dict[str, dict[str, Any]] = {}
        self.instances: dict[str, dict[str, Any]] = {}
        self.migrations: dict[str, dict[str, Any]] = {}

    def instance(self, host: str) -> str:
        """A new instance that is to be built on a host."""
        made = str(uuid.uuid4())
        self.instances[made] = {'word': 'here', 'host': host, 'resources': None}
        return made

    def migration(self, instance: str, source: str, destination: str) -> str:
        """A new migration of an instance."""
        made = str(uuid.uuid4())
        self.migrations[made] = {'source_compute': source, 'dest_compute': destination, 'instance_uuid': instance,
                                 'status': 'migrating', 'id': len(self.migrations) + 1}
        return made

    def set_status(self, migration: str, status: str) -> None:
        self.migrations[migration]['status'] = status

    def device(self, address: str) -> None:
        """Hand out a device by the service itself."""
        self.devices[address] = {'user': None, 'reserved': False, 'times': 0}

    def claim(self, address: str, instance: str | None) -> None:
        """Give a device to an instance, which reserves it; or take it back, which does not end that."""
        before = self.devices[address]
        self.devices[address] = {'user': instance, 'reserved': True, 'times': before['times'] + 1}

    def seen_from(self, host: str) -> dict[str, Any]:
        """The instances and migrations as the service on a host is told of them."""
        instances = {}
        for name, fields in self.instances.items():
            word = fields['word']
            if word == 'here' and fields['host'] != host:
                word = 'elsewhere'
            instances[name] = {**fields, 'word': word}
        return {'instances': instances, 'migrations': self.migrations, 'devices': self.devices}


class OrderFailed(AssertionError):
    """An order failed inside; ``error`` is the name of the error's type."""

    def __init__(self, answer: dict[str, Any]) -> None:
        super().__init__(answer['trace'])
        self.error, self.text = answer['error'], answer['text']


class Host:
    """The compute service of one machine."""

    def __init__(self, of: machine.Machine, database: Database) -> None:
        self.machine, self.database = of, database
        self.name = of.name
        self._process: machine.Process | None = None
        self._lines: Iterator[str] = iter(())
        self.configure()

    def configure(self, wipe_rate_mib_s: int = 0, pmem: Sequence[str] = NAMESPACES,
                  mdev_type: str = 'mtty-2') -> None:
        """Write the configuration that the next :meth:`start` reads."""
        self.machine.write(CONFIGURATION, f"""
[devicetrack]
virt_driver = libvirt
state_path = /var/lib/compute
unproven_devices = trust
[libvirt]
pmem_namespaces = SMALL:{'|'.join(pmem)}
[devices]
enabled_mdev_types = {mdev_type}
[devicetrack_vpmem]
wipe_rate_mib_s = {wipe_rate_mib_s}
""".encode())

    # -- the process --------------------------------------------------------------------------------------------------

    def launch(self) -> None:
        """Start the process, which looks at nothing before :meth:`start`."""
        self._process = self.machine.spawn_module(
            ['devicetrack.tests.host.inside.compute', self.name, CONFIGURATION])
        self._lines = self._process.lines()
        self._answer()

    def start(self) -> dict[str, Any]:
        """Let the service settle what the last one left.

        :returns: what it found, and how the host was before and after
        """
        return self.order('start')

    def kill(self) -> None:
        """Kill the service with SIGKILL."""
        assert self._process is not None
        self._process.kill(9)
        self._process.wait(timeout_s=30)
        self._process = None

    def cut(self, nvdimms: Sequence[int] = (0, 1)) -> None:
        """Cut the power of the whole host, and boot it again with its memory in another order."""
        self._process = None
        self.machine.cut()
        self.machine.start(nvdimms)

    # -- orders -------------------------------------------------------------------------------------------------------

    def order(self, name: str, /, **arguments: Any) -> dict[str, Any]:
        """Have the service do something, and wait until it is done.

        :raises OrderFailed: it was not
        """
        self._send(name, arguments)
        answer = self._answer()
        instance = arguments.get('instance')
        if instance is not None and 'resources' in answer and self.database.instances[instance]['host'] == self.name:
            self.database.instances[instance]['resources'] = answer['resources']
        return answer

    def order_until(self, point: str, name: str, /, **arguments: Any) -> None:
        """Have the service begin something, and stop for good where it is at a point of it."""
        self._send(name, {**arguments, 'stop': point})
        answer = self._answer()
        if answer != {'at': point}:
            raise AssertionError(f'{name} was not stopped: {answer}')

    def _send(self, name: str, arguments: dict[str, Any]) -> None:
        assert self._process is not None, 'the service does not run'
        order = {'order': name, **arguments, **self.database.seen_from(self.name)}
        self._process.send(json.dumps(order).encode() + b'\n')

    def _answer(self) -> dict[str, Any]:
        for line in self._lines:
            answer: dict[str, Any] = json.loads(line)
            if 'error' in answer:
                raise OrderFailed(answer)
            if 'lifted' in answer:
                self.database.devices[answer['lifted']]['reserved'] = False
                continue
            return answer
        raise AssertionError(f'the service of {self.name} ended:\n{self.log()}')

    def log(self) -> str:
        """The service's log."""
        return self.machine.run(['tail', '-n', '100', '/var/log/compute.log'], check=False).out
