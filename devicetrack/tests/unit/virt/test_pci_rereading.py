"""PCI functions that are read again: what is read at all, and that nothing which changed is missed."""

from __future__ import annotations

from collections.abc import Iterable
import os
import random

import testscenarios

from devicetrack.testing import pci
from devicetrack.testing import pci_models
from devicetrack.tests import base
from devicetrack.virt.libvirt import pci_sysfs

NVME, IGB, E1000E = '0000:01:00.0', '0000:03:00.0', '0000:04:00.0'
DRIVERS = (pci.VFIO_PCI, 'igb', 'igbvf', 'nvme')


class Recording(pci_sysfs.Tree):
    """Keeps which functions were read."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.was_read: list[str] = []

    def read(self, addresses: Iterable[str], look: pci_sysfs.Listing) -> list[pci_sysfs.Function]:
        addresses = list(addresses)
        self.was_read += addresses
        return super().read(addresses, look)


class RereadingTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.host = self.useFixture(pci.PCIHost())
        self.tree = Recording(self.host.root)

    def read(self) -> list[str]:
        """Read the functions again, see that they are as they are, and return which were read in full."""
        self.tree.was_read.clear()
        found = self.tree.functions_again()
        was_read = list(self.tree.was_read)
        self.assertEqual(pci_sysfs.Tree(self.host.root).functions(), found)
        return was_read

    def read_late(self) -> list[str]:
        """The same, at a look whose turn is that of no function: there are fewer functions than looks."""
        addresses = sorted(os.listdir(os.path.join(self.host.root, 'bus/pci/devices')))
        while True:
            turn = self.tree._turn
            if turn * len(addresses) // pci_sysfs.LOOKS == (turn + 1) * len(addresses) // pci_sysfs.LOOKS:
                return self.read()
            self.tree.functions_again()


class ReadInFullTestCase(RereadingTestCase):

    def test_all_at_first(self) -> None:
        self.host.add_igb(IGB)
        vfs = self.host.make_vfs(IGB, 3)
        self.assertEqual([IGB, *vfs], self.read())

    def test_none_after_that(self) -> None:
        self.host.add_igb(IGB)
        self.host.make_vfs(IGB, 3)
        self.read()
        self.assertEqual([], self.read_late())

    def test_all_of_them_in_some_looks(self) -> None:
        self.host.add_igb(IGB)
        vfs = self.host.make_vfs(IGB, 7)
        self.read()
        found = [address for _look in range(pci_sysfs.LOOKS) for address in self.read()]
        self.assertEqual(sorted([IGB, *vfs]), sorted(found))

    def test_what_has_another_driver(self) -> None:
        self.host.add_igb(IGB)
        first, _second = self.host.make_vfs(IGB, 2)
        self.read()
        self.host.unbind(first)
        self.assertEqual([first], self.read_late())
        self.host.bind(first, pci.VFIO_PCI)
        self.assertEqual([first], self.read_late())

    def test_a_card_whose_functions_came_or_went(self) -> None:
        self.host.add_igb(IGB)
        self.read()
        first, second = self.host.make_vfs(IGB, 2)
        self.assertEqual([IGB, first, second], self.read_late())
        self.host.remove(second)
        self.assertEqual([IGB], self.read_late())

    def test_another_card_in_the_slot_with_the_same_driver(self) -> None:
        self.host.add(E1000E, pci_models.E1000E)
        self.read()
        self.host.remove(E1000E)
        self.host.add(E1000E, pci_models.E1000E._replace(product='8086:10d4'))
        self.assertEqual([E1000E], self.read_late())

    def test_a_disk_every_time(self) -> None:
        self.host.add_nvme(NVME, 'S1')
        self.read()
        self.assertEqual([NVME], self.read_late())
        self.host.unbind(NVME)
        self.assertEqual([NVME], self.read_late())
        # Nothing tells its serial number now, so nothing else can change either.
        self.assertEqual([], self.read_late())
        self.host.bind(NVME, 'nvme')
        self.assertEqual([NVME], self.read_late())

    def test_what_has_no_group_every_time(self) -> None:
        self.host.add_igb(IGB)
        os.unlink(self.host.path(IGB, 'iommu_group'))
        self.read()
        self.assertEqual([IGB], self.read_late())

    def test_what_could_not_be_read_every_time(self) -> None:
        self.host.add_igb(IGB)
        with open(self.host.path(IGB, 'numa_node'), 'w') as file:
            file.write('here\n')
        self.read()
        self.assertEqual([IGB], self.read_late())

    def test_an_interface_that_is_called_otherwise(self) -> None:
        self.host.add_igb(IGB)
        self.read()
        self.host.hide_interface(IGB)
        self.assertEqual([IGB], self.read_late())

    def test_virtual_functions_that_are_kept_belong_to_their_card_as_it_is_now(self) -> None:
        self.host.add_igb(IGB)
        first, second = self.host.make_vfs(IGB, 2)
        self.read()
        self.host.hide_interface(IGB)
        self.assertEqual([IGB], self.read_late())
        card, *vfs = self.tree.functions_again()
        self.assertEqual([(first, card), (second, card)], [(vf.address, vf.parent) for vf in vfs])

    def test_what_an_administrator_writes_shows_in_time(self) -> None:
        self.host.add_igb(IGB)
        self.tree.functions_again()
        with open(self.host.path(IGB, 'numa_node'), 'w') as file:
            file.write('1\n')
        found = [self.tree.functions_again()[0].numa_node for _look in range(pci_sysfs.LOOKS)]
        self.assertEqual({None, 1}, set(found))
        self.assertEqual(1, found[-1])


class AnythingChangesTestCase(testscenarios.TestWithScenarios, RereadingTestCase):
    """Whatever changes by the kernel's own doing, the next look has it."""

    scenarios = [(f'seed {seed}', {'seed': seed}) for seed in range(8)]
    seed: int

    def test_every_look_is_as_if_it_were_the_first(self) -> None:
        chance = random.Random(self.seed)
        self.host.add_igb(IGB)
        self.host.add_nvme(NVME, 'S0')
        for step in range(60):
            for _change in range(chance.randrange(3)):
                self._change(chance, step)
            self.read()

    def _change(self, chance: random.Random, step: int) -> None:
        there = sorted(os.listdir(os.path.join(self.host.root, 'bus/pci/devices')))
        address = chance.choice(there)
        what = chance.choice(('driver', 'functions', 'card', 'group'))
        if what == 'driver':
            before = self.host.driver_of(address)
            self.host.unbind(address)
            usual = {'0108': 'nvme'}.get(self._class_of(address)[:4]) if self._is_there(address) else None
            driver = chance.choice((None, pci.VFIO_PCI, usual, before))
            if driver is not None and self._is_there(address):
                self.host.bind(address, driver)
        elif what == 'functions' and self._is_there(IGB) and not self.host.vfs_of(IGB):
            self.host.make_vfs(IGB, chance.randrange(1, 8))
        elif what == 'card':
            if self._is_there(E1000E):
                self.host.remove(E1000E)
            else:
                self.host.add(E1000E, pci_models.E1000E, numa_node=step % 3)
        elif what == 'group' and not self.host.vfs_of(address):
            self.host.remove(address)
            if address == NVME:
                self.host.add_nvme(NVME, f'S{step}')
            elif address == IGB:
                self.host.add_igb(IGB)

    def _is_there(self, address: str) -> bool:
        return os.path.exists(os.path.join(self.host.root, 'bus/pci/devices', address))

    def _class_of(self, address: str) -> str:
        with open(self.host.path(address, 'class')) as file:
            return file.read().removeprefix('0x')
