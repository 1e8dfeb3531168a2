"""The world of a run: machines, stores and the service's data, which outlive a killed process, and the processes."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import multiprocessing
import os
import pickle
import signal
from typing import Any
from typing import Final
import uuid

from devicetrack.objects import DeviceAssignment
from devicetrack.objects.values import Candidate
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import GuestConfig
from devicetrack.objects.values import MigrationDefinitions
from devicetrack.objects.values import Record
from devicetrack.store import api
from devicetrack.testing import databases
from devicetrack.testing import fixtures
from devicetrack.testing.crash import moments
from devicetrack.testing.crash import process
from devicetrack.testing.crash.stores import Contents
from devicetrack.testing.crash.stores import Stores
from devicetrack.virt import fake

_PATIENCE_S: Final = 900


class Crashed(Exception):
    """The process that was told to do something was killed."""


class Stuck(Exception):
    """A process did not answer for an hour: it hangs."""


class _Killed(BaseException):
    """Ends a driver's call whose process was killed inside it."""


class Machine(fake.FakeHost):
    """A machine that says when a driver's call is in the middle of its work."""

    def __init__(self) -> None:
        super().__init__()
        self.at_work: Callable[[str, fake.FakeHost], None] | None = None
        self.not_ours: frozenset[DeviceKey] = frozenset()
        self._given_back: DeviceAssignment | None = None

    def reboot(self) -> None:
        """Boot again. Mediated devices that were made since the beginning are gone, as they are on a real machine."""
        for key in [key for key in self.devices if key.kind == fake.MDEV and key not in self.not_ours]:
            self.remove(key)
            self._owners_of_addresses[key.identifier] = key     # its UUID names the device while it is away too
        super().reboot()

    def unrealize(self, assignment: DeviceAssignment) -> None:
        self._given_back = assignment
        super().unrealize(assignment)

    def leave_to_child(self) -> Callable[[], None]:
        """Keep the lock of the device that is being given back, for a child that outlives its process.

        :returns: what ends the child's work, and then the lock
        """
        assignment = self._given_back
        assert assignment is not None
        key = DeviceKey(assignment.kind, assignment.identifier)
        self.busy.add(key)

        def end() -> None:
            fake.FakeHost.unrealize(self, assignment)
            self.busy.discard(key)

        return end

    def enter(self, call: str) -> None:
        super().enter(call)
        if self.at_work is not None and not hasattr(fake.FakeDriver, call):
            self.at_work(call, self)


class Driver(fake.FakeDriver):
    """Chooses the same names in every run for devices that are to be made."""

    _numbers = 0

    def claim_for_instance(self, instance_uuid: str, request: Any,
                           candidates: Sequence[Candidate]) -> Sequence[Candidate]:
        return [candidate if candidate.identifier is not None else candidate._replace(identifier=self._name())
                for candidate in candidates]

    def _name(self) -> str:
        self._numbers += 1
        return str(uuid.uuid5(uuid.NAMESPACE_DNS, f'{self._numbers}.{self.host}'))


class Hypervisor:
    """Starts and ends the guests of one host for its compute service."""

    def __init__(self, machine: Machine, host: str, world: World) -> None:
        self._machine, self._host, self._world = machine, host, world

    def start_guest(self, instance_uuid: str, config: GuestConfig, define: bool = True) -> None:
        """Start a guest with what ``guest_config`` said. It leaves its name on the memory that it got."""
        self._machine.start_guest(instance_uuid, config.devices, define, config.metadata)
        self._world.guest_writes(self._host, instance_uuid)

    def receive_guest(self, instance_uuid: str, definitions: MigrationDefinitions) -> None:
        """Let a guest wait for its live migration, with what the source's ``migration_definitions`` said."""
        self._machine.receive_guest(instance_uuid, definitions)
        self._world.guest_writes(self._host, instance_uuid)

    def arrived(self, instance_uuid: str) -> None:
        """Let a guest that waited run."""
        self._machine.arrived(instance_uuid)

    def power_on(self, instance_uuid: str) -> None:
        """Start a guest by the definition that is there."""
        domain = self._machine.domains[instance_uuid]
        domain.live = domain.defined

    def send_guest(self, instance_uuid: str, host: str, definitions: MigrationDefinitions) -> None:
        """Begin a live migration: the guest runs here, and another host waits for it with these definitions."""
        self._world[host].hypervisor.receive_guest(instance_uuid, definitions)

    def hand_over(self, instance_uuid: str, host: str) -> None:
        """End a live migration: the guest runs there and nothing of it is here."""
        self._world[host].hypervisor.arrived(instance_uuid)
        self.delete_guest(instance_uuid)

    def stop_guest(self, instance_uuid: str) -> None:
        """Turn a guest off."""
        self._machine.stop_guest(instance_uuid)

    def delete_guest(self, instance_uuid: str) -> None:
        """Turn a guest off and undefine it; one that is gone is no error."""
        self._machine.delete_guest(instance_uuid)

    def guests(self) -> dict[str, bool]:
        """Every guest, and whether it runs."""
        return {name: domain.live is not None for name, domain in self._machine.domains.items()}


class Host:
    """A host and the compute service's process on it, once it is started.

    Any other method is one of the process's :class:`~devicetrack.testing.crash.process.ComputeProcess`: it is called
    there, and raises what it raises there, or :class:`Crashed`.
    """

    def __init__(self, name: str, machine: Machine, world: World, configuration: fixtures.Configuration) -> None:
        self.name, self.machine, self.world = name, machine, world
        self.configuration = configuration
        self.driver = Driver(name, configuration.conf, configuration.state_path, machine)
        self.hypervisor = Hypervisor(machine, name, world)
        self.down = False                       # switched off: nobody starts its process
        self.pid = 0
        self._line: Any = None

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith('_'):
            raise AttributeError(name)
        return lambda *args: self.tell(name, *args)

    @property
    def alive(self) -> bool:
        return self.pid != 0

    def fork(self, make: Callable[[process.Parts], process.ComputeProcess], store: api.Store, log: str) -> None:
        """Start the process. It has a manager that is not ready."""
        ours, theirs = multiprocessing.Pipe()
        pid = os.fork()
        if pid == 0:
            ours.close()
            process.run(theirs, make, self.name, self.configuration.conf, store, log)
        theirs.close()
        self.pid, self._line = pid, ours

    def kill(self) -> None:
        """Kill the process, if it lives."""
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            self._bury()

    def _bury(self) -> None:
        os.waitpid(self.pid, 0)
        self._line.close()
        self.pid, self._line = 0, None

    def tell(self, name: str, *args: Any) -> Any:
        """Have the process do something, and serve it until it has."""
        if not self.alive:
            raise Crashed(self.name)
        self._line.send((name, args, self.world.course.attention()))
        while True:
            try:
                if not self._line.poll(_PATIENCE_S):
                    raise Stuck(f'host {self.name} in {name}')
                tag, passed, *message = self._line.recv()
                for moment in passed:
                    self.world.course.reach(self.name, *moment)
                if tag == process.ANSWER:
                    return message[0]
                if tag == process.ERROR:
                    raise message[0]
                answer = self._moment(*message) if tag == process.MOMENT else self._call(*message)
                self._line.send((answer, self.world.course.attention()))
            except (EOFError, ConnectionError):
                self._bury()
                raise Crashed(self.name) from None
            except _Killed:
                self.kill()
                fault = self.world.course.fault
                if fault is not None and fault.how == moments.ORPHAN:
                    self.world.orphans.append(self.machine.leave_to_child())
                raise Crashed(self.name) from None

    def _moment(self, kind: str, call: str, when: str, state: object, view: process.LedgerView | None) -> str | None:
        return self.world.reach(self, kind, call, when, state, view)

    def _call(self, kind: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, Any]:
        target = {moments.DRIVER: self.driver, moments.HYPERVISOR: self.hypervisor,
                  moments.DATA: self.world.data}[kind]
        try:
            return process.ANSWER, getattr(target, name)(*args, **kwargs)
        except moments.WentAnotherWay:
            raise
        except Exception as error:
            return process.ERROR, error


class Seats:
    """The configuration of each host, and its store, for the processes to start with. Nobody has the store open.

    Both are kept from run to run, because they take longer to make than a run takes.
    """

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self._configurations: dict[str, fixtures.Configuration] = {}
        self._stores: dict[tuple[str, str | None], Any] = {}
        self._stack = contextlib.ExitStack()

    def configuration(self, host: str) -> fixtures.Configuration:
        if host not in self._configurations:
            path = os.path.join(self.directory, host)
            os.makedirs(path)
            made = fixtures.Configuration(path, machine=host)
            self._configurations[host] = self._stack.enter_context(made)
        return self._configurations[host]

    def store(self, host: str, url: str | None) -> Any:
        """The store of a host that is reached by an URL. It is there."""
        if (host, url) not in self._stores:
            conf = self.configuration(host).conf
            conf.set_override('connection', url, 'devicetrack_database')
            store = self._stores[host, url] = databases.open_store(conf)
            # The store is used once here, so that a forked process has all that the first use makes.
            store.check()
            store.hosts()
            store.host(host)
            store.records_of_host(host)
            store.contexts(host)
            store.close()
        return self._stores[host, url]

    def close(self) -> None:
        self._stack.close()


class World:
    """Hosts by name, as ``world['a']``; their stores; and the service's data, ``world.data``.

    ``contents`` is what stands in the stores, while somebody sees to it that it is up to date; else None. ``written``
    has, by host and device, the row for which a guest wrote to the device. ``trouble`` collects what was
    wrong at some moment of a run that records.
    """

    def __init__(self, machines: Mapping[str, Machine], data: Any, stores: Stores, seats: Seats,
                 make: Callable[[process.Parts], process.ComputeProcess]) -> None:
        self.data, self.stores = data, stores
        self.log = os.path.join(seats.directory, 'log')
        self.course = moments.Course()
        self.contents: Contents | None = None
        self.written: dict[tuple[str, DeviceKey], Record] = {}
        self.trouble: list[str] = []
        self.orphans: list[Callable[[], None]] = []
        self.look: Callable[[Host, str, str, process.LedgerView | None], list[str]] | None = None
        self._make = make
        self._seats = seats
        self._hosts: dict[str, Host] = {}
        for name, machine in machines.items():
            machine.not_ours = frozenset(machine.devices)
            machine.at_work = self._reach_inside
            self._hosts[name] = Host(name, machine, self, seats.configuration(name))
        stores.reset({host.name: host.configuration.state_path for host in self})
        with open(self.log, 'w'):
            pass

    def __getitem__(self, name: str) -> Host:
        return self._hosts[name]

    def __iter__(self) -> Iterator[Host]:
        return iter(self._hosts.values())

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_error: object) -> None:
        for host in self:
            host.kill()

    # -- processes ----------------------------------------------------------------------------------------------------

    def fork(self, host: Host) -> None:
        """Start a host's process. The service in it has not started yet."""
        host.fork(self._make, self._seats.store(host.name, self.stores.url()), self.log)

    def restart(self) -> None:
        """Start the service on every host where it does not run, unless the host is down.

        A process that cannot start ends.
        """
        for host in self:
            if not host.alive and not host.down:
                self.fork(host)
                try:
                    host.start()
                except Exception:
                    host.kill()
                    raise

    def audit(self) -> dict[str, list[Any]]:
        """Have every process audit; what they found."""
        return {host.name: host.audit() for host in self if host.alive}

    def switch_off(self, name: str) -> None:
        """Switch a machine off, with all that runs on it."""
        host = self[name]
        host.kill()
        host.down = True
        host.machine.reboot()

    def switch_on(self, name: str) -> None:
        """Switch it on again, and start the service on it. Guests stay off."""
        self[name].down = False
        self.restart()

    def records(self) -> list[tuple[str, Record]]:
        """Every row, with the name of the host that it is of."""
        contents = self.contents or self.stores.read()
        names = {row[0]: row[1] for tables in contents.values() for row in tables['hosts']}
        records = [Record(*row) for tables in contents.values() for row in tables['assignments']]
        return [(names[record.host_uuid], record) for record in records]

    # -- moments ------------------------------------------------------------------------------------------------------

    def reach(self, host: Host, kind: str, call: str, when: str, state: object,
              view: process.LedgerView | None) -> str | None:
        if self.course.recording:
            if kind == moments.STORE:
                if when == moments.AFTER or self.contents is None:
                    self.contents = self.stores.read()
                state = self.contents
            elif kind == moments.DATA:
                state = pickle.dumps(vars(self.data))
            elif kind == moments.HYPERVISOR:
                state = pickle.dumps([one.machine.domains for one in self])
            if self.look is not None:
                here = f'{host.name}: {kind}.{call}, {when}'
                self.trouble += [f'at the moment [{here}]: {wrong}' for wrong in self.look(host, kind, when, view)]
        action = self.course.reach(host.name, kind, call, when, state)
        if self.stores.cuts_for_real:
            return self._cut_for_real(action, kind, when)
        return action

    def _cut_for_real(self, action: str | None, kind: str, when: str) -> str | None:
        fault = self.course.fault
        if action in (moments.CUT, moments.OUTAGE):
            self.stores.cut()
        elif (kind == moments.STORE and when == moments.BEFORE and fault is not None and fault.how != moments.KILL
                and fault.number == len(self.course.moments)):
            self.stores.lose_answer()           # the fault is at the moment after this commit
        return action if action == moments.KILL else None

    def _reach_inside(self, call: str, machine: fake.FakeHost) -> None:
        host = next(host for host in self if host.machine is machine)
        if not host.alive:
            return
        if self.course.recording and self.look is not None:
            self.look(host, moments.MACHINE, moments.INSIDE, None)
        action = self.course.reach(host.name, moments.MACHINE, call, moments.INSIDE)
        if action in (moments.KILL, moments.ORPHAN):
            raise _Killed

    # -- guests -------------------------------------------------------------------------------------------------------

    def guest_writes(self, host_name: str, instance_uuid: str) -> None:
        """Let a running guest write its name on each of its devices that keeps bytes."""
        machine = self[host_name].machine
        rows = {(name, record.key): record for name, record in self.records()}
        for use in machine.usage().uses:
            if use.domain_uuid == instance_uuid and use.live and use.kind == fake.VPMEM and use.identifier is not None:
                key = DeviceKey(use.kind, use.identifier)
                if not machine.read(key):
                    machine.write(key, instance_uuid.encode())
                if (host_name, key) in rows:
                    self.written[host_name, key] = rows[host_name, key]
