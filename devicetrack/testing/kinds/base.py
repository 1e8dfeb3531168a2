"""The base of the contract's tests."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import os
from typing import Any
import uuid

import testtools

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.objects import DeviceAssignment
from devicetrack.objects.values import InventoryDevice
from devicetrack.objects.values import Record
from devicetrack.testing.kinds import answers
from devicetrack.testing.kinds import world
from devicetrack.virt.libvirt.kinds import api
from devicetrack.virt.libvirt.kinds import installed

HOST = '0f9f5cf6-5b0e-45f5-9f3f-0d4ad5c1a1f0'
PROVIDER = '9c0f1e5e-6d5b-4f7a-9b57-0c8f2f1f9a01'


def assignment(instance_uuid: str, kind: str, identifier: str, parent: str | None, text: str,
               position: int = 0, state: str = vocabulary.CLAIMED,
               was_realized: bool | None = None) -> DeviceAssignment:
    """Make an assignment as the claim manager hands it to a driver.

    :param text: its details
    :param was_realized: None means: unless its state is that of a claim
    """
    return DeviceAssignment.from_record(Record(
        host_uuid=HOST, kind=kind, identifier=identifier, instance_uuid=instance_uuid, migration_uuid=None,
        role=vocabulary.CURRENT, state=state, position=position, claim_id='claim', generation=1,
        provider_uuid=PROVIDER, resource_class='CLASS', parent=parent, numa_node=None, details=text, created_at=0,
        was_realized=state != vocabulary.CLAIMED if was_realized is None else was_realized))


class KindTestCase(testtools.TestCase):
    """A test of a kind on a host of ``world_class``. A scenario (testscenarios) may also set ``world_class``.

    ``world`` is the host. ``kind`` is the kind as a starting service makes it on this host.
    """

    world_class: type[world.KindWorld]

    def setUp(self) -> None:
        super().setUp()
        self.world = self.useFixture(self.world_class())
        self.instance = str(uuid.uuid4())
        self.kind = self.made()

    def run(self, result: Any = None) -> Any:
        """Run the test. If it needs something that the world cannot do, it is skipped."""
        method = getattr(self, self._testMethodName)

        def skips_what_the_world_cannot_do() -> None:
            try:
                method()
            except world.NotOnThisHost as error:
                self.skipTest(f'{type(self.world).__name__} has no {error}')

        setattr(self, self._testMethodName, skips_what_the_world_cannot_do)
        return super().run(result)

    def made(self) -> api.DeviceKind:
        """Make the kind as a starting service does."""
        kind = self.make(self.world.configuration.conf)
        self.world.adjust(kind)
        return kind

    def make(self, conf: Any) -> api.DeviceKind:
        """Make the kind with the host's state directory, as the driver does."""
        cls = self.world.kind_class
        return installed.make([cls], conf, self.world.hypervisor, self.world.configuration.state_path,
                              lambda: self.world.boot)[cls.name]

    def stock(self, kind: api.DeviceKind | None = None) -> Mapping[str, InventoryDevice]:
        """Read the stock as the driver does, and check it. Returns the devices by identifier."""
        devices = list(answers.stock(kind or self.kind).devices)
        found = {device.identifier: device for device in devices}
        self.assertEqual(len(devices), len(found), 'two devices have one identifier')
        return found

    def assigned(self, identifier: str | None = None, position: int = 0, **row: Any) -> DeviceAssignment:
        """Make an assignment as a claim records it, for a device of the stock.

        :param identifier: the device; by default the first one of the world
        :param row: ``state`` and ``was_realized``, if they are not those of a claim
        """
        device = self.stock()[identifier or self.world.devices[0]]
        return assignment(self.instance, self.kind.name, device.identifier, device.parent, device.details, position,
                          **row)

    def realized(self, identifier: str | None = None, position: int = 0) -> DeviceAssignment:
        """Realize a device and return its assignment."""
        wanted = self.assigned(identifier, position)
        answers.own_path(self.kind.own_path(wanted))
        made = self.kind.realize(wanted)
        answers.realized(self.kind, made)
        return assignment(self.instance, wanted.kind, wanted.identifier, wanted.parent, made.details, position)

    def unclaim(self, wanted: DeviceAssignment) -> None:
        """Take a device back, with a lock file like that of the driver."""
        with open(os.path.join(self.world.configuration.state_path, 'contract.lock'), 'w') as lock:
            self.kind.unclaim(wanted, lock.fileno())
            self.assertTrue(os.fstat(lock.fileno()), 'the lock belongs to the driver')

    def check_refuses(self, call: Callable[[], object], otherwise: str) -> None:
        """Check that a call to the kind raises a DriverError.

        :param otherwise: what is wrong if the call returns, and what to do
        """
        try:
            call()
        except exception.DriverError:
            return
        self.fail(otherwise)

    def definition(self, elements: Sequence[str]) -> str:
        """A guest's definition with these elements and no other devices."""
        return f"<domain><uuid>{self.instance}</uuid><devices>{''.join(elements)}</devices></domain>"
