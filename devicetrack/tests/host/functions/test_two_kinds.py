"""A card of one device kind and its virtual functions of another kind, on the kernel's own bus.

The second kind stands for one of another package, which knows nothing of the first.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import os
import threading
from typing import Any

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.engine import findings
from devicetrack.objects import details
from devicetrack.objects import DeviceAssignment
from devicetrack.objects import DeviceRequest
from devicetrack.objects import VFDetails
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import InventoryDevice
from devicetrack.objects.values import Realized
from devicetrack.objects.values import Record
from devicetrack.testing import fixtures
from devicetrack.tests.host import machine
from devicetrack.tests.host.functions import hosts
from devicetrack.tests.host.functions.hosts import address_of
from devicetrack.tests.host.functions.hosts import driver_of
from devicetrack.tests.host.functions.hosts import put
from devicetrack.tests.host.functions.hosts import virtual
from devicetrack.virt.libvirt import domain_xml
from devicetrack.virt.libvirt import guest_xml
from devicetrack.virt.libvirt.kinds import api
from devicetrack.virt.libvirt.kinds import pci

CARD, FUNCTION = 'CUSTOM_CARD', 'CUSTOM_FUNCTION'
ROUNDS = 5


class Functions(api.DeviceKind):
    """Every virtual function of one card, as it is."""

    name = 'functions'
    keeps_bytes = False
    form = guest_xml.PCI
    configured = True
    resource_classes = frozenset((FUNCTION,))

    def stock(self) -> api.Stock:
        card = address_of(machine.SPLIT)
        return api.Stock(tuple(InventoryDevice(self.name, address, '', FUNCTION, card, None, details.to_text(VFDetails(
            type='1', parent=card, parent_address=card, device_api='vfio-pci', origin=vocabulary.EXISTING)))
            for address in sorted(virtual(card))))

    def addresses(self, domain: domain_xml.Domain) -> Sequence[str]:
        return domain.pci_addresses

    def identify(self, addresses: Iterable[str]) -> Mapping[str, str | None]:
        return {address: address for address in addresses if os.path.exists(hosts.SYSFS / address / 'physfn')}

    def realize(self, assignment: DeviceAssignment) -> Realized:
        return Realized(DeviceKey(self.name, assignment.identifier), details.to_text(assignment.details))

    def unclaim(self, assignment: DeviceAssignment, lock_fd: int) -> None:
        pass

    def guest_elements(self, assignments: Sequence[DeviceAssignment]) -> Sequence[str]:
        return [hostdev(assignment.identifier) for assignment in assignments]


def hostdev(address: str) -> str:
    domain, bus, rest = address.split(':')
    slot, function = rest.split('.')
    return ("<hostdev mode='subsystem' type='pci' managed='yes'><source>"
            f"<address domain='0x{domain}' bus='0x{bus}' slot='0x{slot}' function='0x{function}'/></source></hostdev>")


class Host(hosts.Host):

    kinds = (pci.PCI, Functions)


class TwoKindsTestCase(hosts.FunctionsTestCase):

    def setUp(self) -> None:
        super().setUp()
        self.card = address_of(machine.SPLIT)
        put(self.card, 'sriov_drivers_autoprobe', '0')
        self.addCleanup(put, self.card, 'sriov_drivers_autoprobe', '1')
        put(self.card, 'sriov_numvfs', '2')
        self.addCleanup(put, self.card, 'sriov_numvfs', '0')
        domain, bus, rest = self.card.split(':')
        # The address as a text would mean the virtual functions, too.
        only = {'domain': domain, 'bus': bus, 'slot': rest.partition('.')[0], 'function': '[0]'}
        self.compute: Any = self.useFixture(Host({'address': only, 'resource_class': 'CARD'}, cleaning='none'))
        self.machine = self.compute.machine

    def claim(self, resource_class: str) -> fixtures.Instance:
        instance = fixtures.Instance()
        self.compute.claim(instance, DeviceRequest.of((resource_class, 1)))
        return instance

    def test_a_card_and_its_function_are_asked_for_at_once(self) -> None:
        for _ in range(ROUNDS):
            got: list[fixtures.Instance] = []
            barrier = threading.Barrier(2)

            def ask(resource_class: str, got: list[fixtures.Instance] = got,
                    barrier: threading.Barrier = barrier) -> None:
                barrier.wait()
                try:
                    got.append(self.claim(resource_class))
                except exception.NoFit as error:
                    self.assertIn('withheld (excluded)', str(error))

            asking = [threading.Thread(target=ask, args=(name,)) for name in (CARD, FUNCTION)]
            for thread in asking:
                thread.start()
            for thread in asking:
                thread.join()
            [instance] = got
            self.assertEqual(1, len(self.compute.records()))
            self.assertEqual([], list(self.compute.audit()))
            self.compute.manager.release(None, instance)
            self.compute.wait()

    def test_a_card_waits_for_the_guest_that_has_its_function(self) -> None:
        instance = self.compute.spawn(request=DeviceRequest.of((FUNCTION, 1)))
        address = self.held_by(self.compute, instance)
        self.assertEqual('vfio-pci', driver_of(address))
        for look in (self.compute.audit, self.compute.restart):
            # Kind pci has its own word for a function with the driver for guests that it does not offer.
            self.assertEqual({(findings.UNHEALTHY, self.card)}, {(one.kind, one.device.identifier) for one in look()})
            self.assertIn('excluded', str(self.assertRaises(exception.NoFit, self.claim, CARD)))
        # Nor does anybody clean the card under this guest.
        [card] = [one for one in self.machine.driver.get_inventory().devices if one.kind == 'pci']
        error = self.machine.driver.unclaim([self.assigned(card)])[card.key]
        self.assertIn(f'domain {instance.uuid} names {address}', str(error))
        self.machine.delete_guest(instance.uuid)
        self.compute.manager.release(None, instance)
        self.assertEqual([], list(self.compute.audit()))
        self.compute.manager.release(None, self.claim(CARD))

    def assigned(self, device: InventoryDevice) -> DeviceAssignment:
        return DeviceAssignment.from_record(Record(
            self.compute.manager.state().host_uuid, device.kind, device.identifier, fixtures.Instance().uuid, None,
            vocabulary.CURRENT, vocabulary.RELEASING, 0, 'other', 4, self.compute.manager.state().host_uuid,
            device.resource_class, device.parent, None, device.details, 0))

    def test_functions_wait_for_the_foreign_guest_that_is_to_have_their_card(self) -> None:
        guest = fixtures.Instance().uuid
        self.machine.connection.defineXML(f"<domain type='qemu'><name>{guest}</name><uuid>{guest}</uuid><memory>65536"
                                         '</memory><os><type>hvm</type></os><devices>'
                                         f'{hostdev(self.card)}</devices></domain>')
        self.addCleanup(self.machine.delete_guest, guest)
        self.compute.audit()
        self.assertRaises(exception.NoFit, self.claim, FUNCTION)
        self.machine.delete_guest(guest)
        self.compute.audit()
        self.compute.manager.release(None, self.claim(FUNCTION))
