"""A device kind of another package: disks, each at the address of its slot, with a serial that may not be readable."""

from __future__ import annotations

from typing import Any

from oslo_versionedobjects import fields

from devicetrack.objects import base
from devicetrack.objects import details
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import InventoryDevice
from devicetrack.objects.values import Realized
from devicetrack.virt.libvirt.kinds import api


@base.register
class SlotDetails(details.DeviceDetails):
    """``serial`` is None while the disk does not answer."""

    VERSION = '1.0'
    IDENTITY = ('serial',)
    fields = {'serial': fields.StringField(nullable=True), 'firmware': fields.StringField()}


@base.register
class PlainDetails(details.DeviceDetails):
    """Declares no identity."""

    VERSION = '1.0'
    fields = {'serial': fields.StringField(nullable=True)}


def text(serial: str | None, firmware: str = '1') -> str:
    return details.to_text(SlotDetails(serial=serial, firmware=firmware))


class Disks(api.DeviceKind):
    """``slots`` has the serial by slot; ``reset`` has the serials of disks that were cleaned."""

    name = 'slot'
    keeps_bytes = True
    configured = True
    resource_classes = frozenset(('CUSTOM_DISK',))

    def __init__(self, conf: Any, hypervisor: Any) -> None:
        super().__init__(conf, hypervisor)
        self.slots: dict[str, str | None] = {'s1': 'A'}
        self.firmware = '1'
        self.reset: list[str | None] = []

    def stock(self) -> api.Stock:
        return api.Stock(tuple(InventoryDevice(self.name, slot, '', 'CUSTOM_DISK', None, None,
                                               text(serial, self.firmware)) for slot, serial in self.slots.items()))

    def addresses(self, domain: Any) -> Any:
        return ()

    def identify(self, addresses: Any) -> Any:
        return {}

    def realize(self, assignment: Any) -> Realized:
        return Realized(DeviceKey(self.name, assignment.identifier),
                        text(self.slots[assignment.identifier], self.firmware))

    def unclaim(self, assignment: Any, lock_fd: int) -> None:
        self.reset.append(self.slots[assignment.identifier])

    def guest_elements(self, assignments: Any) -> Any:
        return [f'<disk>{assignment.identifier}</disk>' for assignment in assignments]
