"""The world of a run: processes, and the machines, stores and service's data that outlive killed processes."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
import multiprocessing
import os
import pickle
import signal
import time
from typing import Any
from typing import Final
import uuid

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.objects import DeviceAssignment
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import GuestConfig
from devicetrack.objects.values import MigrationDefinitions
from devicetrack.objects.values import Record
from devicetrack.store import api
from devicetrack.testing import fake
from devicetrack.testing import fixtures
from devicetrack.testing.crash import machines
from devicetrack.testing.crash import moments
from devicetrack.testing.crash import process
from devicetrack.testing.crash.seats import Seats
from devicetrack.testing.crash.stores import Contents
from devicetrack.testing.crash.stores import Stores

# The domain of a guest that somebody else starts on devices with another owner.
STRANGER: Final = str(uuid.uuid5(uuid.NAMESPACE_DNS, 'stranger'))


class Crashed(Exception):
    """The process of a host is dead, or was killed while it worked on an order."""


class Stuck(Exception):
    """A run takes too long: a process hangs, or works without end."""


class _Killed(BaseException):
    """Ends a driver's call: its process was killed inside the call."""


class Hypervisor:
    """Starts and ends the guests of one host, for the host's compute service."""

    def __init__(self, machine: machines.Machine, host: str, world: World) -> None:
        self._machine, self._host, self._world = machine, host, world

    def start_guest(self, instance_uuid: str, config: GuestConfig, define: bool = True) -> None:
        """Start a guest with the result of ``guest_config``. The guest writes its name to devices that store data."""
        self._machine.start_guest(instance_uuid, config.devices, define, config.metadata)
        self._world.guest_writes(self._host, instance_uuid)

    def receive_guest(self, instance_uuid: str, definitions: MigrationDefinitions) -> None:
        """Let a guest wait here for its live migration, with the source's ``migration_definitions``."""
        self._machine.receive_guest(instance_uuid, definitions)
        self._world.guest_writes(self._host, instance_uuid)

    def arrived(self, instance_uuid: str) -> None:
        """Let a guest run that has waited for its migration."""
        self._machine.arrived(instance_uuid)

    def power_on(self, instance_uuid: str) -> None:
        """Start a guest from its managed-save image or, without one, from its definition."""
        self._machine.power_on(instance_uuid)

    def save_guest(self, instance_uuid: str) -> None:
        """Save a guest (managed save), and define it anew without devices."""
        self._machine.save_guest(instance_uuid)
        self._machine.redefine_guest(instance_uuid)

    def send_guest(self, instance_uuid: str, host: str, definitions: MigrationDefinitions) -> None:
        """Begin a live migration: the guest runs here, and waits on the other host with these definitions."""
        self._world[host].hypervisor.receive_guest(instance_uuid, definitions)

    def hand_over(self, instance_uuid: str, host: str) -> None:
        """End a live migration: the guest runs on the other host and is gone here."""
        self._world[host].hypervisor.arrived(instance_uuid)
        self.delete_guest(instance_uuid)

    def stop_guest(self, instance_uuid: str) -> None:
        """Turn a guest off. It is no error if the guest is off or gone already."""
        if instance_uuid in self._machine.domains:
            self._machine.stop_guest(instance_uuid)

    def delete_guest(self, instance_uuid: str) -> None:
        """Turn a guest off and undefine it. It is no error if the guest is gone already."""
        self._machine.delete_guest(instance_uuid)

    def guests(self) -> dict[str, bool]:
        """Whether each guest runs, by its name."""
        return {name: domain.live is not None for name, domain in self._machine.domains.items()}


class Host:
    """A host, and the compute service's process on it after its start.

    All other methods are those of the process's :class:`~devicetrack.testing.crash.process.ComputeProcess`. They run in
    the process. They raise the process's errors, or :class:`Crashed`.
    """

    def __init__(self, name: str, machine: machines.Machine, world: World,
                 configuration: fixtures.Configuration) -> None:
        self.name, self.machine, self.world = name, machine, world
        self.configuration = configuration
        self.driver = machines.Driver(name, configuration.conf, configuration.state_path, machine)
        self.hypervisor = Hypervisor(machine, name, world)
        self.down = False                       # switched off: nobody starts its process
        self.late: tuple[Any, ...] | None = None        # the call that its store carries out when it comes back
        self.waits_for: str | None = None       # the host whose method its process calls
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
        """Start the process. Its manager is not ready yet."""
        ours, theirs = multiprocessing.Pipe()
        pid = os.fork()
        if pid == 0:
            ours.close()
            process.run(theirs, make, self.name, self.configuration.conf, store, log)
        theirs.close()
        self.pid, self._line = pid, ours

    def kill(self) -> None:
        """Kill the process if it lives."""
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self._line.close()
            self.pid, self._line = 0, None

    def tell(self, name: str, *args: Any) -> Any:
        """Give the process an order, serve its calls, and return its answer."""
        if not self.alive:
            raise Crashed(self.name)
        try:
            return self._order(name, *args)
        except (EOFError, ConnectionError):
            self.kill()
            raise Crashed(self.name) from None
        except Stuck:
            self.kill()
            raise
        except _Killed:
            self.kill()
            fault = self.world.course.fault
            if fault is not None and fault.how == moments.ORPHAN:
                self.world.orphans.append(self.machine.leave_to_child())
            raise Crashed(self.name) from None

    def tell_other(self, host: str, name: str, *args: Any) -> Any:
        """Give the process of another host an order for the one of this host."""
        before, self.waits_for = self.waits_for, host
        try:
            return self.world[host].tell(name, *args)
        finally:
            self.waits_for = before

    def _order(self, name: str, *args: Any) -> Any:
        """Give the process an order, and serve its calls until it answers."""
        self._line.send((process.ORDER, self.world.course.attention(), name, args))
        while True:
            left_s = self.world.deadline - time.monotonic()
            if left_s <= 0 or not self._line.poll(left_s):
                raise Stuck(f'host {self.name}: {name} did not end, and the run took longer than '
                            f'{self.world.timeout_s:g} s')
            tag, passed, *message = self._line.recv()
            for moment in passed:
                self.world.course.reach(self.name, *moment)
            if tag == process.ANSWER:
                return message[0]
            if tag == process.ERROR:
                raise message[0]
            answer = self._moment(*message) if tag == process.MOMENT else self._call(*message)
            if not self.alive:                  # it was killed by an order that it got while it waited for this answer
                raise EOFError
            self._line.send((process.ANSWER, self.world.course.attention(), answer))

    def _confirm(self, assignment: DeviceAssignment) -> None:
        """Let the process confirm what its driver is about to do."""
        try:
            self._order(process.CONFIRM, assignment)
        except (EOFError, ConnectionError):
            raise _Killed from None             # no exception, so the driver does not handle it

    def _moment(self, kind: str, call: str, when: str, state: object, view: process.LedgerView | None) -> str | None:
        return self.world.reach(self, kind, call, when, state, view)

    def _call(self, kind: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, Any]:
        if kind == process.LATE:
            self.late = args
            return process.ANSWER, None
        target = {moments.DRIVER: self.driver, moments.HYPERVISOR: self.hypervisor, moments.DATA: self.world.data,
                  moments.HOST: self}[kind]
        if kind == moments.DRIVER and name in moments.CONFIRMED:
            kwargs = {'confirm': self._confirm}
        try:
            if kind == moments.HYPERVISOR and self.machine.disconnected is not None:
                raise exception.HypervisorUnreachable('fake', self.machine.disconnected)
            return process.ANSWER, getattr(target, name)(*args, **kwargs)
        except (moments.WentAnotherWay, Stuck):
            raise
        except Exception as error:
            return process.ERROR, error


class World:
    """The hosts by name, as ``world['a']``, their stores, and the service's data, ``world.data``.

    ``contents`` has the rows of all stores while somebody keeps it up to date, else None. ``written`` has the
    row that a device had when a guest last wrote to it, by host and device. ``trouble`` collects the errors found in a
    recording run, each with its moments. ``older`` has the processes whose hosts others took over. After ``deadline``
    (by the monotonic clock) every order raises ``Stuck``, and its process is killed.

    :param newcomer: the kit calls this when a manager that took over a host has started and audited
    """

    def __init__(self, machines: Mapping[str, machines.Machine], data: Any, stores: Stores, seats: Seats,
                 make: Callable[[process.Parts], process.ComputeProcess], timeout_s: float,
                 newcomer: Callable[[World, str], object] = lambda world, host: None) -> None:
        self.data, self.stores = data, stores
        self.timeout_s, self.deadline = timeout_s, time.monotonic() + timeout_s
        self.log = os.path.join(seats.directory, 'log')
        self.course = moments.Course()
        self.contents: Contents | None = None
        self.written: dict[tuple[str, DeviceKey], Record] = {}
        self.trouble: dict[str, list[str]] = {}
        self.orphans: list[Callable[[], None]] = []
        self.look: Callable[[Host, str, str, process.LedgerView | None], list[str]] | None = None
        self.older: list[Host] = []
        self._make = make
        self._newcomer = newcomer
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
        for host in (*self, *self.older):
            host.kill()

    # -- processes ----------------------------------------------------------------------------------------------------

    def fork(self, host: Host) -> None:
        """Start a host's process. The service in it has not started yet."""
        newer = host.configuration is self._seats.configuration(host.name, newer=True)
        host.fork(self._make, self._seats.store(host.name, self.stores.url(), newer), self.log)

    def take_over(self, host: Host) -> None:
        """Start another manager of a host while the old one is in the middle of a call, and let its service work.

        The moments of the new manager do not count.
        """
        course, self.course = self.course, moments.Course()
        newer = Host(host.name, host.machine, self, self._seats.configuration(host.name, newer=True))
        newer.driver = host.driver
        self._hosts[host.name] = newer
        self.older.append(host)
        self.restart()
        newer.audit()
        self._newcomer(self, host.name)
        self.course = course

    def start_while_it_hangs(self, host: Host, without_store: bool) -> list[str]:
        """Start the service on a host whose hypervisor or database hangs.

        :returns: an error as text if the service started, which it must not
        """
        self.fork(host)
        if without_store:
            host.tell(process.CUT)
        try:
            host.start()
        except (exception.DriverError, exception.StoreError):
            return []
        finally:
            host.kill()
        return [f'host {host.name} starts without an answer']

    def come_back(self) -> None:
        """Let hypervisors and databases that hang carry out the requests of running processes, and answer again."""
        for host in self:
            host.machine.come_back()
            if host.alive:
                host.tell(process.MEND)

    def do_late(self) -> None:
        """Let the database carry out the calls of processes that are dead by now."""
        for host in self:
            late, host.late = host.late, None
            if late is not None:
                server = Host(host.name, host.machine, self, host.configuration)
                self.fork(server)
                try:
                    server.tell(process.DO_LATE, *late)
                finally:
                    server.kill()

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
        """Let every process audit. Returns the findings by host."""
        return {host.name: host.audit() for host in self if host.alive}

    def switch_off(self, name: str) -> None:
        """Switch a machine off, and with it everything that runs on it."""
        host = self[name]
        host.kill()
        host.down = True
        host.machine.reboot()

    def switch_on(self, name: str) -> None:
        """Switch a machine on again and start the service on it. Guests stay off."""
        self[name].down = False
        self.restart()

    def records(self) -> list[tuple[str, Record]]:
        """Every row, with the name of its host."""
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
                here = moments.Moment(len(self.course.moments), host.name, kind, call, when)
                for wrong in self.look(host, kind, when, view):
                    self.trouble.setdefault(wrong, []).append(str(here))
        action = self.course.reach(host.name, kind, call, when, state)
        if action == moments.TAKEOVER:
            self.take_over(host)
        elif action == moments.GUEST:
            self.start_stranger(host)
        elif action in moments.HANGS and kind != moments.STORE:
            host.machine.hang()
        elif self.stores.cuts_for_real and action not in moments.HANGS:
            return self._cut_for_real(action, kind, when)
        return action

    def _cut_for_real(self, action: str | None, kind: str, when: str) -> str | None:
        fault = self.course.fault
        if action in moments.CUTS:
            self.stores.cut()
        elif (kind == moments.STORE and when == moments.BEFORE and fault is not None and fault.how in moments.LOSSES
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
        if action == moments.TAKEOVER:
            self.take_over(host)
        elif action == moments.GUEST:
            self.start_stranger(host, call)
        elif action in moments.HANGS:
            host.machine.hang(call)
            raise exception.HypervisorUnreachable('fake', str(host.machine.disconnected))

    # -- guests -------------------------------------------------------------------------------------------------------

    def start_stranger(self, host: Host, call: str = '') -> None:
        """Start somebody else's guest on the devices of a host that are being given back.

        :param call: the step of the driver in which this happens. The guest does not get a device that the step may be
            changing
        """
        changes = host.machine.works_on if call in moments.CHANGES else None
        keys = [record.key for name, record in self.records()
                if name == host.name and record.state == vocabulary.RELEASING and record.key in host.machine.devices
                and record.key != changes]
        host.machine.start_strange_guest(STRANGER, keys)

    def end_stranger(self) -> None:
        """End somebody else's guest. What it wrote to a device without a row stays until an operator wipes it."""
        owned = {(name, record.key) for name, record in self.records()}
        for host in self:
            host.machine.delete_guest(STRANGER)
            for key in host.machine.unproven - {key for name, key in owned if name == host.name}:
                if host.machine.read(key) == STRANGER.encode():
                    host.machine.clean(key)

    def guest_writes(self, host_name: str, instance_uuid: str) -> None:
        """Let a running guest write its name to each of its devices that stores data."""
        machine = self[host_name].machine
        rows = {(name, record.key): record for name, record in self.records()}
        for use in machine.usage().uses:
            if use.domain_uuid == instance_uuid and use.live and use.kind in fake.KEEPING:
                if use.identifier is None:
                    continue
                key = DeviceKey(use.kind, use.identifier)
                if not machine.read(key):
                    machine.write(key, instance_uuid.encode())
                if (host_name, key) in rows:
                    self.written[host_name, key] = rows[host_name, key]
