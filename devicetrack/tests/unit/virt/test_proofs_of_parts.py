"""A guest that gets a whole can write to its parts, whichever kinds offer the two: then no part is proven clean.

The oracle is the promise itself: what the owner of a device can write to, by what contains what on the host, has no
proof from the moment when the device is made ready for its guest, also after a crash.
"""

from __future__ import annotations

from collections.abc import Mapping
import contextlib
import os
import threading
import types
from typing import Any
from typing import ClassVar
from typing import Final
import uuid

import libvirt

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.claims.manager import ClaimManager
from devicetrack.objects import DeviceAssignment
from devicetrack.objects import DeviceRequest
from devicetrack.objects.things import Exclusions
from devicetrack.objects.values import InventoryDevice
from devicetrack.objects.values import Realized
from devicetrack.testing import fixtures
from devicetrack.testing.kinds import base as contract
from devicetrack.tests import base
from devicetrack.tests import interrupts
from devicetrack.tests.model import memory
from devicetrack.tests.unit.virt.test_installed import DETAILS
from devicetrack.tests.unit.virt.test_installed import Tape
from devicetrack.virt.libvirt import bounded
from devicetrack.virt.libvirt import connection
from devicetrack.virt.libvirt import driver as libvirt_driver
from devicetrack.virt.libvirt.kinds import api

FUNCTION: Final = '0000:3d:00.0'
VF: Final = '0000:3d:00.1'
OTHER: Final = '0000:3e:00.0'

# Both devices by their kinds: the node or file of each, the parent of the part, and the tokens that the kinds declare.
_TOKENS: Final = {'whole': (('hub:1', vocabulary.WHOLE),), 'part': (('hub:1', vocabulary.PART),)}


class Kind(Tape):
    """A kind of files: a guest that gets a device writes to the files that it reaches."""

    keeps_bytes = True
    directory = ''
    nodes: Mapping[str, str] = {}
    containers: Mapping[str, str] = {}
    parents: Mapping[str, str] = {}
    tokens: Mapping[str, Exclusions] = {}
    writes_to: tuple[str, ...] = ()
    read: ClassVar[list[str]] = []              # what guests found on their devices
    is_unreadable = False
    is_broken = False

    def stock(self) -> api.Stock:
        if self.is_unreadable:
            raise exception.CommandFailed('look', 'no answer')
        return api.Stock(tuple(
            InventoryDevice(self.name, name, '', f'CUSTOM_{self.name.upper()}', self.parents.get(name), None, DETAILS,
                            exclusions=self.tokens.get(name, ())) for name in self.names))

    @property
    def names(self) -> list[str]:
        return sorted(one for one in os.listdir(self.directory) if one in self.nodes)

    def node(self, device: InventoryDevice) -> str | None:
        if self.is_broken:
            raise ZeroDivisionError('in its code')
        return self.nodes[device.identifier]

    def container(self, parent: str) -> str | None:
        return self.containers.get(parent)

    def check_free(self, assignment: DeviceAssignment) -> None:
        """Every process may have ``/dev/null`` open, which stands for a disk."""

    def realize(self, assignment: DeviceAssignment) -> Realized:
        with open(os.path.join(self.directory, assignment.identifier), 'rb') as file:
            if (found := file.read()) not in (b'', assignment.instance_uuid.encode()):
                self.read.append(f'{assignment} has {found!r}')
        for name in (assignment.identifier, *self.writes_to):
            with open(os.path.join(self.directory, name), 'wb') as file:
                file.write(assignment.instance_uuid.encode())
        return Realized(assignment.key, DETAILS)

    def unclaim(self, assignment: DeviceAssignment, lock_fd: int) -> None:
        with open(os.path.join(self.directory, assignment.identifier), 'wb'):
            pass

    def read_through(self, assignment: DeviceAssignment, lock_fd: int, stop: threading.Event) -> None:
        if os.path.getsize(os.path.join(self.directory, assignment.identifier)):
            raise exception.NotProven(*assignment.key, 'it is not empty')

    def guest_elements(self, assignments: Any) -> list[str]:
        return ['<hostdev/>' for _one in assignments]

    def migration_types(self) -> Any:
        return ()


class Lines(interrupts.Lines):
    """All but those of the connection, which has plain locks with a return in their block (:mod:`.interrupts`)."""

    def _calls(self, frame: types.FrameType, event: str, argument: Any) -> Any:
        return None if frame.f_code.co_filename in (connection.__file__, bounded.__file__) else super()._calls(
            frame, event, argument)


class HostTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.directory = self.temp_dir()
        for name in ('whole', 'part', 'sibling', 'hub'):
            with open(os.path.join(self.directory, name), 'wb'):
                pass
        self.sysfs = os.path.join(self.temp_dir(), 'sys')
        # /dev/null and /dev/zero, of which every host has one, are behind two PCI functions.
        for function, number in ((FUNCTION, '1:3'), (OTHER, '1:5')):
            disk = os.path.join(self.sysfs, f'devices/pci0000:3c/{function}/nvme/nvme0/node')
            os.makedirs(disk)
            os.makedirs(os.path.join(self.sysfs, 'dev/char'), exist_ok=True)
            os.symlink(disk, os.path.join(self.sysfs, 'dev/char', number))
        functions = os.path.join(self.sysfs, 'bus/pci/devices')
        os.makedirs(functions)
        for function in (FUNCTION, VF, OTHER):
            os.makedirs(os.path.join(self.sysfs, f'devices/pci0000:3c/{function}'), exist_ok=True)
            os.symlink(f'../../../devices/pci0000:3c/{function}', os.path.join(functions, function))
        os.symlink(f'../{FUNCTION}', os.path.join(functions, VF, 'physfn'))
        self.configuration.set('devicetrack_pci', sysfs_root=self.sysfs)

    def kinds(self, nodes: Mapping[str, str], keeps_bytes: bool = True, **members: Any) -> None:
        """Make the kinds ``whole`` and ``part``. Of ``part`` there is also a device ``sibling``."""
        self.made: list[Any] = [
            type(name.title(), (Kind,), {
                'name': name, 'resource_classes': frozenset((f'CUSTOM_{name.upper()}',)), 'directory': self.directory,
                'nodes': {one: nodes.get(one, self.path(one)) for one in names}, **members, **own})
            for name, names, own in (('whole', ('whole',), {'keeps_bytes': keeps_bytes, 'writes_to': ('part',)}),
                                     ('part', ('part', 'sibling'), {}))]

    def path(self, name: str) -> str:
        return os.path.join(self.directory, name)

    def driver(self) -> libvirt_driver.LibvirtDriver:
        """A driver as a service makes it at a start. It has read the host."""
        driver = libvirt_driver.LibvirtDriver('host', self.conf, self.state_path, self.made,
                                              lambda: libvirt.open('test:///default'))
        self.addCleanup(driver.close)
        return driver

    def assignment(self, kind: str, name: str, owner: str = '', **row: Any) -> DeviceAssignment:
        return contract.assignment(owner or str(uuid.uuid4()), kind, name, self.made[0].parents.get(name), DETAILS,
                                   **row)

    def prove(self, driver: libvirt_driver.LibvirtDriver) -> None:
        for kind in self.made:
            ours = [self.assignment(kind.name, name) for name in sorted(kind.nodes)] if kind.keeps_bytes else []
            self.assertEqual({None}, {*driver.prove(ours, vocabulary.READ).values()} or {None})

    def proven(self) -> set[str]:
        """The proven devices, as another process reads them."""
        return {name for _kind, name in self.driver()._proofs.keys()}


class WritingTestCase(HostTestCase):
    """Each relation of two kinds: the guest of which device takes which proofs with it."""

    scenarios = base.table(
        ('a container that the kind of the part names', {},
         {'parents': {'part': 'hub'}, 'containers': {'hub': '{whole}'}}),
        ('tokens that the kinds declare', {}, {'tokens': _TOKENS}),
        ('a disk behind a function', {'whole': FUNCTION, 'part': '/dev/null', 'sibling': '/dev/zero'}, {}),
        ('a virtual function', {'whole': FUNCTION, 'part': VF, 'sibling': OTHER}, {}),
        names=('nodes', 'members'))

    nodes: Mapping[str, str]
    members: Mapping[str, Any]

    def start(self, keeps_bytes: bool = True) -> libvirt_driver.LibvirtDriver:
        members = dict(self.members)
        if 'containers' in members:
            members['containers'] = {'hub': self.path('whole')}
        self.kinds(self.nodes, keeps_bytes, **members)
        driver = self.driver()
        self.prove(driver)
        driver.get_inventory()
        return driver

    def test_the_guest_of_a_whole(self) -> None:
        for keeps_bytes in (True, False):
            self.start(keeps_bytes).realize(self.assignment('whole', 'whole'))
            self.assertEqual({'sibling'}, self.proven())
            os.truncate(self.path('part'), 0)
            os.truncate(self.path('whole'), 0)

    def test_the_guest_of_a_part(self) -> None:
        self.start().realize(self.assignment('part', 'part'))
        self.assertEqual({'sibling'}, self.proven())

    def test_the_guest_of_another_part(self) -> None:
        self.start().realize(self.assignment('part', 'sibling'))
        self.assertEqual({'whole', 'part'}, self.proven())

    def test_a_guest_whose_device_is_not_made_ready_first(self) -> None:
        self.start().elements([self.assignment('whole', 'whole')])
        self.assertEqual({'sibling'}, self.proven())

    def test_a_part_that_stores_nothing_leaves_its_whole_clean(self) -> None:
        driver = self.start()
        self.made[1].keeps_bytes = False
        driver.realize(self.assignment('part', 'part'))
        self.assertEqual({'whole', 'sibling'}, self.proven())

    def test_one_that_somebody_else_uses(self) -> None:
        self.start().disprove([self.assignment('whole', 'whole').key])
        self.assertEqual({'sibling'}, self.proven())

    def test_a_part_that_is_away_now(self) -> None:
        driver = self.start()
        os.rename(self.path('part'), self.path('away'))
        driver.get_inventory()
        driver.realize(self.assignment('whole', 'whole'))
        self.assertEqual({'sibling'}, self.proven())

    def test_a_part_whose_kind_cannot_be_read_now(self) -> None:
        driver = self.start()
        self.made[1].is_unreadable = True
        driver.get_inventory()
        driver.realize(self.assignment('whole', 'whole'))
        self.assertEqual({'sibling'}, self.proven())

    def test_a_part_that_no_inventory_has_shown_may_be_anywhere(self) -> None:
        self.start()
        for broken in ({'is_unreadable': True}, {'is_broken': True}, {'configured': False}):
            driver = self.driver()
            for name, value in broken.items():
                setattr(self.made[1], name, value)
            driver.get_inventory()
            for name in broken:
                setattr(self.made[1], name, Kind.__dict__.get(name, True))
            driver.realize(self.assignment('whole', 'whole'))
            self.assertEqual(set(), self.proven(), str(broken))
            for name in ('whole', 'part'):
                os.truncate(self.path(name), 0)
            self.prove(driver)

    def test_a_whole_whose_kind_could_not_be_read(self) -> None:
        """Only its kind knows its tokens."""
        for keeps_bytes in (True, False):
            for does_restart in (True, False):
                driver = self.start(keeps_bytes)
                if does_restart:
                    driver = self.driver()
                self.made[0].is_unreadable = True
                driver.get_inventory()
                self.made[0].is_unreadable = False
                driver.realize(self.assignment('whole', 'whole'))
                self.assertNotIn('part', self.proven())
                for name in ('whole', 'part'):
                    os.truncate(self.path(name), 0)

    def test_nobody_gets_a_whole_while_its_kind_cannot_say_what_it_is(self) -> None:
        driver = self.start()
        self.made[0].is_broken = True
        self.assertRaises(exception.RealizeFailed, driver.realize, self.assignment('whole', 'whole'))
        self.assertEqual({'whole', 'part', 'sibling'}, self.proven())

    def test_an_interrupt_anywhere_leaves_no_proof_of_what_a_guest_could_write_to(self) -> None:
        def run(at: int | None) -> interrupts.Lines:
            for name in ('whole', 'part'):
                os.truncate(self.path(name), 0)
            driver = self.start()
            lines = Lines(at)
            lines.run(lambda: driver.realize(self.assignment('whole', 'whole')))
            return lines

        for at in interrupts.chosen(run(None).count, 5):
            where = run(at).where
            if os.path.getsize(self.path('part')):
                self.assertEqual({'sibling'}, self.proven(), where)


class ManagerTestCase(HostTestCase):

    def setUp(self) -> None:
        super().setUp()
        self.store: Any = self.useFixture(fixtures.SQLiteStore(self.conf)).store

    def start(self) -> ClaimManager:
        manager = ClaimManager('host', self.driver(), self.store, self.conf)
        self.addCleanup(manager.close)
        manager.init_host(self.context)
        memory.running(manager).unproven.wait()
        return manager


class ForeignTestCase(ManagerTestCase):

    def test_a_domain_of_others_that_has_what_contains_a_device_of_ours(self) -> None:
        """No kind offers the function. The domain writes to the disk behind it, and is gone before the next audit."""
        self.kinds({'whole': '/nowhere', 'part': '/dev/null', 'sibling': '/dev/zero'})
        for kind in self.made:
            kind.addresses, kind.identify = lambda _kind, domain: domain.pci_addresses, lambda _kind, addresses: {}
        manager = self.start()
        self.assertEqual({'whole', 'part', 'sibling'}, self.proven())
        domain, bus, rest = FUNCTION.split(':')
        host = libvirt.open('test:///default')
        guest = host.defineXML(
            f"<domain type='test'><name>theirs</name><memory>1024</memory><os><type>hvm</type></os><devices><hostdev "
            f"mode='subsystem' type='pci' managed='no'><source><address domain='0x{domain}' bus='0x{bus}' "
            f"slot='0x{rest[:2]}' function='0x{rest[3:]}'/></source></hostdev></devices></domain>")
        self.addCleanup(host.close)
        try:
            manager.update_available_resource(self.context, 'host')
        finally:
            guest.undefine()
        self.assertEqual({'whole', 'sibling'}, self.proven())


class NextGuestTestCase(ManagerTestCase):
    """Whatever line a crash ends the life of a whole at: no later guest of a part reads what its guest wrote."""

    def setUp(self) -> None:
        super().setUp()
        self.kinds({}, False, parents={'part': 'hub', 'sibling': 'other'}, containers={'hub': self.path('whole')})

    def next_guests(self, manager: ClaimManager) -> None:
        """Claim the parts that are free, for a guest each: none finds bytes."""
        instances = [fixtures.Instance() for _part in range(2)]
        for instance in instances:
            with contextlib.suppress(exception.NoFit, exception.RealizeFailed), \
                    manager.instance_claim(self.context, instance, 'host', DeviceRequest.of(('CUSTOM_PART', 1))):
                manager.realize(self.context, instance)
        self.assertEqual([], Kind.read)
        for instance in instances:
            manager.release(self.context, instance)
        manager.wait_for_wipes()

    def life(self, at: int | None) -> interrupts.Lines:
        """Give the whole to a guest and take it back, with a crash at a line. Then start again."""
        manager, instance = self.start(), fixtures.Instance()

        def of_whole() -> None:
            manager.instance_claim(self.context, instance, 'host', DeviceRequest.of(('CUSTOM_WHOLE', 1)))
            manager.realize(self.context, instance)
            manager.guest_config(instance)
            manager.release(self.context, instance)
            manager.wait_for_wipes()
            self.next_guests(manager)

        lines = Lines(at)
        lines.run(of_whole)
        manager.close()
        after = self.start()
        self.next_guests(after)
        after.release(self.context, instance)
        after.wait_for_wipes()
        self.next_guests(after)
        after.update_available_resource(self.context, 'host')
        memory.running(after).unproven.wait()
        self.next_guests(after)
        after.close()
        return lines

    def test_no_next_guest_of_a_part_reads_what_the_guest_of_the_whole_wrote(self) -> None:
        count = self.life(None).count
        for at in interrupts.chosen(count, 7):
            os.truncate(self.path('part'), 0)
            self.life(at)
