"""The view from outside on the machine, the record and the guests, without the library."""

from __future__ import annotations

import collections
from collections.abc import Iterable
import fcntl
import os
import signal
import time

from instances import Instances
from machine import Guest
from machine import Machine
from machine import MIB
from machine import needs
from machine import text_to_fill
import record


class NotAsPromised(Exception):
    """Something is not as the demo says. The text says what."""


def expect(fact: object, promise: str) -> None:
    if not fact:
        raise NotAsPromised(promise)


class Observer:
    """Looks at the machine and checks it. It remembers names, and who wrote into which namespace."""

    def __init__(self, machine: Machine, instances: Instances) -> None:
        self._machine, self._instances = machine, instances
        self.devices = machine.devices()
        self.wrote: dict[str, str] = {}     # the last instance that wrote into a namespace, by namespace

    # -- owners -------------------------------------------------------------------------------------------

    def rows(self) -> list[record.Row]:
        """The rows of the record, sorted by the owner's name and by the order in the guest."""
        names = {instance.uuid: instance.name for instance in self._instances.all()}
        rows = [row._replace(owner=names[row.owner]) for row in record.read(self._machine.directory)]
        return sorted(rows, key=lambda row: row.owner)

    def owner(self, device: str) -> str:
        """The owner of a device, as text for people."""
        return owners(self.rows()).get(device, 'nobody')

    def free(self) -> list[str]:
        """The devices that have no owner in the record."""
        return sorted(self.devices.keys() - {row.identifier for row in self.rows()})

    def check_owners(self, waiting: Iterable[str]) -> None:
        """Check that each owner has the devices of its flavor, and that too few are left for anyone who waits."""
        owned: dict[str, collections.Counter[str]] = {}
        for row in self.rows():
            expect(self.devices.get(row.identifier) == row.resource_class,
                   f'{row.identifier} is a device of the host')
            owned.setdefault(row.owner, collections.Counter())[row.resource_class] += 1
        for name, amounts in owned.items():
            expect(amounts == needs(self._instances.get(name).flavor.name),
                   f'{name} has all of its devices or none')
        left = collections.Counter(self.devices[device] for device in self.free())
        for name in waiting:
            expect(name not in owned, f'{name} was refused and holds nothing')
            expect(not needs(self._instances.get(name).flavor.name) <= left,
                   f'{name} was refused for a reason')

    def users(self) -> dict[str, str]:
        """The instance whose guest names a device, by device."""
        names = {instance.uuid: instance.name for instance in self._instances.all()}
        return {device: names[guest.uuid] for guest in self._machine.guests for device in guest.devices()}

    # -- guests -------------------------------------------------------------------------------------------

    def check_guests(self, running: Iterable[str]) -> None:
        """Check that exactly these instances have guests, with the devices of their rows in the order of the rows.

        A guest must not have the devices that its instance has left, even if it may come back to them.
        """
        names = {instance.uuid: instance.name for instance in self._instances.all()}
        guests = {names[guest.uuid]: guest.devices() for guest in self._machine.guests}
        expect(guests.keys() == set(running), 'who is said to run has a guest, and nobody else')
        rows = self.rows()
        for name, devices in guests.items():
            expect(devices == [row.identifier for row in rows if row.owner == name and row.role != 'old'],
                   f'the guest of {name} has the devices of its record, in their order')

    def guest(self, name: str) -> Guest:
        """The definition of an instance's guest."""
        [found] = [guest for guest in self._machine.guests if guest.uuid == self._instances.get(name).uuid]
        return found

    # -- namespaces ---------------------------------------------------------------------------------------

    def let_write(self, guests: Iterable[str]) -> None:
        """Let guests check that their namespaces are clean, and fill the namespaces with their names."""
        for row in self.rows():
            if row.kind == 'vpmem' and row.owner in guests and row.role != 'old':
                self.check_clean(row.identifier)
                self._machine.fill_namespace(row.identifier, text_of(row.owner))
                self.wrote[row.identifier] = row.owner

    def check_clean(self, namespace: str) -> None:
        content = self._machine.read_namespace(namespace)
        expect(content.count(0) == len(content), f'every byte of {namespace} is zero')

    def check_written(self, namespace: str, name: str) -> None:
        content = self._machine.read_namespace(namespace)
        expect(content == text_to_fill(text_of(name), len(content)), f'every byte of {namespace} is of {name}')

    def read(self, namespace: str) -> str:
        """The contents of a namespace, as text for people."""
        content = self._machine.read_namespace(namespace)
        clean = content.count(0) == len(content)
        return f'{len(content) // MIB} MiB of zeros' if clean else repr(content[:24])

    def halt_in_a_wipe(self, namespace: str, wiper: int) -> None:
        """Stop the process that overwrites a namespace in the middle of its work. SIGCONT lets it go on."""
        while True:
            os.kill(wiper, signal.SIGSTOP)
            content = self._machine.read_namespace(namespace)
            if content.count(0):
                expect(content.count(0) < len(content), f'the wipe of {namespace} is slow enough to be halted')
                return
            os.kill(wiper, signal.SIGCONT)
            time.sleep(0.05)

    def is_worked_on(self, namespace: str) -> bool:
        """Whether a process holds the lock file of a namespace."""
        with open(self._machine.directory / 'state' / 'locks' / f'vpmem-{namespace}.lock', 'rb') as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            return False

    def dirty_mib(self, namespace: str) -> int:
        """How much of a namespace is not zero yet, in MiB, rounded up."""
        content = self._machine.read_namespace(namespace)
        return -(-(len(content) - content.count(0)) // MIB)


def text_of(name: str) -> str:
    return f'secret of {name}'


def owners(rows: Iterable[record.Row]) -> dict[str, str]:
    """The owner of each device, by device."""
    return {row.identifier: row.owner for row in rows}


