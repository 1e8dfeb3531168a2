"""The machines of a run, in memory, and their drivers."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Sequence
import functools
from typing import Any
import uuid

from devicetrack.objects import DeviceAssignment
from devicetrack.objects.values import Candidate
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Realized
from devicetrack.testing import fake
from devicetrack.testing import fake_guests


class Machine(fake.FakeHost):
    """A machine in memory. It reports moments in the middle of a driver's call."""

    def __init__(self) -> None:
        super().__init__()
        self.at_work: Callable[[str, fake.FakeHost], None] | None = None
        self.not_ours: frozenset[DeviceKey] = frozenset()
        self._works_on: DeviceAssignment | None = None
        self._late: Callable[[], object] | None = None

    def reboot(self) -> None:
        """Boot again. Mediated devices that somebody made in this run are gone, as on a real machine."""
        for key in [key for key in self.devices if key.kind == fake.MDEV and key not in self.not_ours]:
            self.remove(key)
            self._owners_of_addresses[key.identifier] = key     # the UUID still names the device that is gone
        super().reboot()

    def realize(self, assignment: DeviceAssignment) -> Realized:
        self._works_on = assignment
        return super().realize(assignment)

    def unrealize(self, assignment: DeviceAssignment) -> None:
        self._works_on = assignment
        super().unrealize(assignment)

    @property
    def works_on(self) -> DeviceKey | None:
        """The device that the driver realized or gave back last."""
        return DeviceKey(self._works_on.kind, self._works_on.identifier) if self._works_on is not None else None

    def hang(self, late: str | None = None) -> None:
        """Let the hypervisor hang until :meth:`come_back`.

        :param late: ``create`` or ``destroy``: the request that the hypervisor will carry out when it comes back
        """
        self.disconnected = 'it hangs'
        if late is not None and self._works_on is not None:
            step = fake.FakeHost.realize if late == 'create' else fake.FakeHost.unrealize
            self._late = functools.partial(step, self, self._works_on)

    def come_back(self) -> None:
        """Let the hypervisor carry out the pending request, and answer again."""
        self.disconnected = None
        late, self._late = self._late, None
        at_work, self.at_work = self.at_work, None
        if late is not None:
            late()
        self.at_work = at_work

    def start_strange_guest(self, domain_uuid: str, keys: Collection[DeviceKey]) -> None:
        """Start an unknown guest on these devices. The guest writes its name to the devices that store data."""
        self.start_guest(domain_uuid, [fake_guests.element(key.kind, self._addresses[key]) for key in keys],
                         define=False)
        for key in keys:
            if key.kind in fake.KEEPING:
                self.write(key, domain_uuid.encode())

    def clean(self, key: DeviceKey) -> None:
        """Wipe a device without an owner, and prove that, as an operator has it done."""
        self.contents.pop(key, None)
        self.prove((key,))
        self.lent.discard(key)

    def leave_to_child(self) -> Callable[[], None]:
        """Act as a child that outlives its process: keep the lock of the device that is being given back.

        :returns: a function that ends the child's work and then releases the lock
        """
        assignment = self._works_on
        assert assignment is not None
        key = assignment.key
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
    """A driver that gives new devices the same names in every run."""

    _numbers = 0

    def claim_for_instance(self, instance_uuid: str, request: Any,
                           candidates: Sequence[Candidate]) -> Sequence[Candidate]:
        return super().claim_for_instance(instance_uuid, request, [
            candidate if candidate.identifier is not None else candidate._replace(identifier=self._name())
            for candidate in candidates])

    def _name(self) -> str:
        self._numbers += 1
        return str(uuid.uuid5(uuid.NAMESPACE_DNS, f'{self._numbers}.{self.host}'))
