"""Tests of devices that share bytes: a whole and its parts, and devices that are one thing under two names."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import itertools
import os
import threading
from typing import Any

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import InventoryDevice
from devicetrack.objects.values import Realized
from devicetrack.testing.kinds import answers
from devicetrack.testing.kinds import base
from devicetrack.testing.kinds import world
from devicetrack.virt.libvirt import driver
from devicetrack.virt.libvirt.kinds import api


class Neighbour(api.DeviceKind):
    """Another kind of the host, whose one device is the thing that a test names."""

    name = 'neighbour'
    keeps_bytes = False
    configured = True
    resource_classes = frozenset(('CUSTOM_NEIGHBOUR',))
    thing = ''
    details = ''

    def stock(self) -> api.Stock:
        return api.Stock([InventoryDevice(self.name, 'thing', '', 'CUSTOM_NEIGHBOUR', None, None, self.details)])

    def node(self, device: InventoryDevice) -> str:
        return self.thing

    def addresses(self, domain: Any) -> tuple[str, ...]:
        return ()

    def identify(self, addresses: Any) -> Mapping[str, str | None]:
        return {}

    def realize(self, assignment: Any) -> Realized:
        return Realized(assignment.key, self.details)

    def unclaim(self, assignment: Any, lock_fd: int) -> None:
        pass

    def guest_elements(self, assignments: Any) -> list[str]:
        return []


class ReachContract(base.KindTestCase):

    def sharing(self) -> Iterator[tuple[str, str]]:
        """Find the pairs of a device and another whose bytes its owner reaches. Writes to the others.

        A part may store data that its whole does not show, and rivals may have none in common.
        """
        if not self.kind.keeps_bytes:
            self.skipTest('its devices store no data')
        if not self.world.parts and not self.world.rivals:
            self.skipTest('the world names no parts and no rivals')
        for whole, parts in self.world.parts.items():
            for part in parts:
                self.world.write(part)
                self.assertFalse(self.world.is_clean(part), 'the world does not see what it wrote')
                yield whole, part
        for one, other in itertools.chain.from_iterable(itertools.permutations(pair) for pair in self.world.rivals):
            self.world.write(other)
            if not self.world.is_clean(one):
                yield one, other

    def reached(self, owned: str, proven: Mapping[str, str]) -> Collection[str]:
        found = self.kind.within_reach([proven[owned]], proven)
        self.assertIsInstance(found, (list, tuple, set, frozenset))
        self.assertEqual(set(), set(found) - set(proven), 'the driver did not ask for these')
        return found

    def test_what_a_guest_leaves_on_a_part_goes_with_the_whole(self) -> None:
        """Otherwise the next guest that has the whole, or the part, reads it."""
        for whole, part in self.sharing():
            wanted = self.realized(whole)
            self.world.write(part)
            self.unclaim(wanted)
            self.assertTrue(self.world.is_clean(part), f'{whole} was taken back, and {part} has bytes of its guest')

    def test_a_whole_is_not_proven_clean_while_a_part_holds_bytes(self) -> None:
        for whole, part in self.sharing():
            wanted = self.assigned(whole)
            self.assertNotIn(whole, set(self.kind.is_blank([wanted])))
            with open(os.devnull) as lock:
                self.assertRaises(exception.NotProven, self.kind.read_through, wanted, lock.fileno(), threading.Event())
            self.assertFalse(self.world.is_clean(part))

    def test_the_owner_of_a_whole_reaches_its_parts(self) -> None:
        proven = {name: device.details for name, device in self.stock().items()}
        pairs = list(self.sharing())
        for whole, part in pairs:
            self.assertIn(part, self.reached(whole, proven), f'{part} stays proven, and the guest of {whole} writes')
        for whole, part in pairs:
            with contextlib.suppress(world.NotOnThisHost):
                self.world.remove(part)
                self.assertIn(part, self.reached(whole, proven), f'{part} may come back')

    def test_the_owner_of_a_device_reaches_no_neighbour(self) -> None:
        if not self.kind.keeps_bytes:
            self.skipTest('its devices store no data')
        proven = {name: device.details for name, device in self.stock().items()}
        first, second = self.world.devices[:2]
        self.assertNotIn(second, self.reached(first, proven))

    def test_a_guest_of_another_kinds_device_takes_the_proofs_of_what_is_in_it(self) -> None:
        """The driver removes them by what ``node`` and ``container`` answer."""
        if not self.kind.keeps_bytes:
            self.skipTest('its devices store no data')
        name, device = next(iter(self.stock().items()))
        thing = (None if device.parent is None else self.kind.container(device.parent)) or self.kind.node(device)
        if thing is None:
            self.skipTest('no other kind can offer its devices, or what contains them')
        neighbour: Any = type('Named', (Neighbour,), {'thing': thing, 'details': device.details})
        host = driver.LibvirtDriver('host', self.world.configuration.conf, self.world.configuration.state_path,
                                    [self.world.kind_class, neighbour], self.world.libvirt.connect)
        self.addCleanup(host.close)
        host._kinds[self.kind.name] = self.kind         # type: ignore[index]  # as the world adjusted it
        key = DeviceKey(self.kind.name, name)
        host.get_inventory()
        host._proofs.record({key: device.details}, vocabulary.WIPED)
        self.assertIsNotNone(host.proof_of(key, device.details))
        host.realize(base.assignment(self.instance, neighbour.name, 'thing', None, device.details))
        self.assertIsNone(host.proof_of(key, device.details), f'{key} stays proven, and the guest of {thing} writes')

    def test_the_stock_names_what_keeps_nothing(self) -> None:
        """Otherwise a device that was not cleaned counts as clean, or one that was cleaned does not."""
        found = answers.stock(self.kind)
        for device in found.devices:
            wanted = base.assignment(self.instance, self.kind.name, device.identifier, device.parent, device.details)
            self.assertIs(device.identifier in found.nothing_kept, self.kind.keeps_nothing(wanted), device.identifier)

    def test_a_device_that_was_taken_back_is_unused_until_the_host_uses_it(self) -> None:
        wanted = self.realized()
        self.unclaim(wanted)
        self.kind.check_unused(wanted)
        if type(self.kind).check_unused is api.DeviceKind.check_unused:
            self.skipTest('the kind has no check_unused')
        self.world.use(wanted.identifier)
        self.check_refuses(lambda: self.kind.check_unused(wanted), (
            'the host uses the device, and check_unused returned: it must see the use (sections 6 and 8 of the page)'))
