"""Virtual functions of NVMe controllers, on a host that is made of files and of controllers that answer."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import json
import os
import socket
from typing import Any

import fixtures
from oslo_privsep import comm

from devicetrack import exception
from devicetrack.testing import nvme
from devicetrack.tests import base
from devicetrack.tests.unit.virt import pci_hosts
from devicetrack.virt.libvirt import nvme_admin
from devicetrack.virt.libvirt import nvme_controllers
from devicetrack.virt.libvirt import privileged
from devicetrack.virt.libvirt import root
from devicetrack.virt.libvirt.kinds import pci

CARD = '0000:02:00.0'
GIVE_QUEUES, GIVE_INTERRUPTS, ONLINE = 8, 1 << 8 | 8, 9


class SecondariesTestCase(pci_hosts.PCIHostTestCase):

    def setUp(self) -> None:
        super().setUp()
        self.controllers = self.useFixture(nvme.Controllers(self.host))
        self.host.add_nvme_with_vfs(CARD, 'S2')
        self.controller = self.controllers.add_secondaries(CARD)
        self.vf, self.other = self.host.make_vfs(CARD, 2)
        # Those of the functions that do not exist.
        for number in (3, 4):
            del self.controller.namespaces[number + 1]
        self.busy: set[str] = set()

    def kind_with(self, **rule: Any) -> pci.PCI:
        self.configuration.set('devicetrack_pci', vfs=[json.dumps({'address': CARD, **rule})])
        return self.kind({'address': self.vf}, {'address': self.other}, cleaning='none')

    def prepare(self, kind: pci.PCI, *recorded: str) -> None:
        @contextlib.contextmanager
        def locked(identifier: str) -> Iterator[bool]:
            yield identifier not in self.busy

        kind.prepare(dict.fromkeys(recorded, '{}'), locked)

    def problems(self, kind: pci.PCI) -> dict[str, str | None]:
        return {address: device.unhealthy for address, device in self.devices(kind).items()}

    def virtualized(self) -> int:
        return self.controller.commands.count(0x1C)


class DaemonTestCase(SecondariesTestCase):

    def through_messages(self, of: Callable[..., Any], *arguments: Any) -> Any:
        """Ask as the privileged daemon is asked, in this process."""
        with fixtures.MonkeyPatch(f'{root.__name__}.is_daemon', True):
            answer = of(*self.through_message(arguments))
        return self.through_message(answer)

    def through_message(self, said: Any) -> Any:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            comm.Serializer(ours).send(said)
            return next(comm.Deserializer(theirs))

    def test_it_tells_the_same_of_a_controller_as_the_controller(self) -> None:
        self.prepare(self.kind_with())
        self.controller.oacs |= 1 << 3
        asked = ((nvme_controllers.read_controller, CARD), (nvme_controllers.read_namespaces, CARD),
                 (nvme_controllers.read_subsystem, CARD), (nvme_controllers.sanitize_status, CARD))
        itself = [of(self.host.root, address) for of, address in asked]
        self.patch(root, 'SYSFS', self.host.root)
        self.patch(os, 'geteuid', lambda: 65534)
        self.patch(privileged, '_ask_daemon', self.through_messages)
        for said, (of, address) in zip(itself, asked, strict=True):
            told = of(self.host.root, address)
            self.assertEqual((said, repr(said)), (told, repr(told)))


class OnlineTestCase(SecondariesTestCase):

    def test_an_offline_one_gets_its_share_and_is_online_before_it_is_offered(self) -> None:
        kind = self.kind_with()
        for problem in self.problems(kind).values():
            self.assertIn('is offline: the next audit brings it online', str(problem))
        self.prepare(kind)
        self.assertEqual({self.vf: None, self.other: None}, self.problems(kind))
        self.assertEqual({1: [1, 2, 1], 2: [1, 2, 1], 3: [0, 0, 0], 4: [0, 0, 0]}, self.controller.secondaries)
        # Whoever does it again asks, and changes nothing.
        done = self.virtualized()
        self.prepare(kind)
        self.assertEqual((6, 6), (done, self.virtualized()))

    def test_what_somebody_gave_it_stays(self) -> None:
        self.controller.flexible = ((8, 0, 4), (4, 0, 2))
        self.controller.secondaries[1] = [0, 3, 2]
        self.prepare(self.kind_with())
        self.assertEqual([[1, 3, 2], [1, 4, 2]], [self.controller.secondaries[number] for number in (1, 2)])

    def test_the_driver_looks_again_at_one_that_it_gave_up(self) -> None:
        probe = ('bus/pci/drivers_probe', self.vf)
        self.prepare(self.kind_with())
        self.assertIn(probe, self.host.written)
        self.controller.secondaries[1][0] = 0
        self.host.written.clear()
        with open(self.host.path(CARD, 'sriov_drivers_autoprobe'), 'w') as file:
            file.write('0\n')
        self.prepare(self.kind_with())
        self.assertEqual((1, []), (self.controller.secondaries[1][0], self.host.written))

    def test_one_that_somebody_works_on_is_left_alone_until_its_guest_starts(self) -> None:
        self.busy.update((self.vf, self.other))
        kind = self.kind_with()
        self.prepare(kind)
        self.assertEqual(0, self.virtualized())
        kind.realize(self.assigned(kind, self.vf))
        self.assertEqual([1, 0], [self.controller.secondaries[number][0] for number in (1, 2)])

    def test_one_that_an_instance_has_keeps_the_driver_that_it_has(self) -> None:
        self.prepare(self.kind_with(), self.vf)
        self.assertEqual([1, 1], [self.controller.secondaries[number][0] for number in (1, 2)])
        self.assertEqual([('bus/pci/drivers_probe', self.other)], self.host.written)

    def test_one_that_a_guest_has_is_not_touched(self) -> None:
        self.host.bind(self.vf, 'vfio-pci')
        with self.host.opened(self.vf):
            error = self.assertRaises(OSError, nvme_controllers.bring_online, self.host.root, self.vf)
            self.assertIn('a guest has', str(error))
        self.assertEqual(0, self.virtualized())

    def test_one_that_does_not_come_online_is_not_handed_out(self) -> None:
        self.controller.stubborn = True
        kind = self.kind_with()
        self.prepare(kind)
        self.assertEqual('its secondary controller 1 is offline: its secondary controller 1 is offline after it was '
                         'brought online', self.problems(kind)[self.vf])
        error = self.assertRaises(exception.RealizeFailed, kind.realize, self.assigned(kind, self.vf))
        self.assertIn('cannot be brought online', str(error))

    def test_too_few_resources(self) -> None:
        self.controller.flexible = ((8, 5, 4), (4, 0, 2))
        kind = self.kind_with(private_namespaces=True)
        self.prepare(kind)
        self.assertIn('of 8 flexible resources the physical function has 5, and 2 virtual functions need 2 each',
                      str(self.problems(kind)[self.vf]))
        self.assertEqual(0, self.virtualized())

    def test_those_that_are_not_offered_stay_as_they_are(self) -> None:
        self.prepare(self.kind({'address': self.other}, cleaning='none'))
        self.assertEqual([0, 1], [self.controller.secondaries[number][0] for number in (1, 2)])

    def test_of_a_virtual_function_alone(self) -> None:
        for address, reason in ((CARD, 'is not a virtual function'), ('0000:09:00.0', 'No such file')):
            error = self.assertRaises(OSError, nvme_controllers.bring_online, self.host.root, address)
            self.assertIn(reason, str(error))


class ShareTestCase(base.TestCase):

    scenarios = base.table(
        ('all alike', (True, 8, 0, 4, 1), 2, 4), ('no more than one can have', (True, 80, 0, 4, 1), 2, 4),
        ('without those of the card', (True, 80, 70, 9, 1), 2, 5), ('by steps', (True, 80, 0, 99, 6), 7, 6),
        ('less than a step', (True, 20, 0, 99, 6), 7, 2), ('one', (True, 7, 0, 99, 0), 1, 7),
        names=('resource', 'vfs', 'expected'))

    def test_is(self) -> None:
        self.assertEqual(self.expected, nvme_controllers.share(nvme_admin.Resource(*self.resource), self.vfs, 2))


class NamespacesTestCase(SecondariesTestCase):

    def setUp(self) -> None:
        super().setUp()
        for number in (1, 2):
            self.controller.secondaries[number] = [1, 2, 1]

    def refused(self, reason: str, **rule: Any) -> None:
        """Nobody gets the function, unless the operator vouches for it."""
        kind = self.kind_with(**rule)
        self.assertIn(reason, str(self.problems(kind)[self.vf]))
        error = self.assertRaises(exception.RealizeFailed, kind.realize, self.assigned(kind, self.vf))
        self.assertIn(reason, str(error))
        kind = self.kind_with(private_namespaces=True)
        self.assertIsNone(self.problems(kind)[self.vf])
        kind.realize(self.assigned(kind, self.vf))

    def test_one_with_a_private_namespace_is_offered(self) -> None:
        for rule in ({}, {'private_namespaces': False}):
            kind = self.kind_with(**rule)
            self.assertIsNone(self.problems(kind)[self.vf])
            kind.realize(self.assigned(kind, self.vf))

    def test_one_that_may_come_to_have_a_shared_one_is_not(self) -> None:
        self.controller.namespaces[1].shared = True
        self.refused('a guest would see the namespace 1, which may be attached to several controllers')

    def test_one_without_a_namespace_is_not(self) -> None:
        self.controller.namespaces[2].attached_to = {2}
        self.refused('no namespace is attached to its secondary controller 1: attach one (nvme attach-ns -c 1)',
                     private_namespaces=False)

    def test_one_that_could_attach_what_nobody_has_is_not(self) -> None:
        self.controller.add(9).attached_to = set()
        self.refused('a guest could attach the namespace 9, which is attached to no controller')

    def test_one_that_the_card_does_not_know_is_not(self) -> None:
        del self.controller.secondaries[1]
        self.refused('does not know it')

    def test_a_card_that_cannot_be_asked(self) -> None:
        self.controller.secondaries.clear()             # Identify is refused: it has no secondary controllers
        self.refused(f'the namespaces that a guest would see are unknown: for its physical function {CARD}, its '
                     'controller cannot be asked')

    def test_the_physical_function_is_offered_whatever_they_are(self) -> None:
        self.controller.namespaces[1].shared = True
        self.configuration.set('devicetrack_pci', vfs=[])
        kind = self.kind({'address': CARD}, cleaning='none')
        self.assertIsNone(self.devices(kind)[CARD].unhealthy)

    def test_a_card_is_asked_once_for_all(self) -> None:
        asked = []
        read = nvme_controllers.read_subsystem

        def noted(*one: str) -> nvme_controllers.NVMeSubsystem:
            asked.append(one)
            return read(*one)

        self.patch(nvme_controllers, 'read_subsystem', noted)
        self.kind_with().stock()
        self.assertEqual(1, len(asked))
