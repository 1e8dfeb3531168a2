"""What goes wrong around PCI functions while the service runs: many at once, guests of others, and the host itself.

After each there is one owner, nothing of the former one, and no function is lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent import futures
import contextlib
import pathlib
import struct
import subprocess
import tempfile
import threading
from typing import Any
from unittest import mock
import uuid

from devicetrack import exception
from devicetrack.engine import findings
from devicetrack.objects import DeviceRequest
from devicetrack.objects.values import DeviceKey
from devicetrack.testing import fixtures
from devicetrack.tests.host import machine
from devicetrack.tests.host.functions import hosts
from devicetrack.tests.host.functions.hosts import address_of
from devicetrack.tests.host.functions.hosts import DISK
from devicetrack.tests.host.functions.hosts import driver_of
from devicetrack.virt.libvirt import jobs

OWNERS = 4
# Somebody who waits for longer will wait for ever.
HANGS_S = 900


class FaultsTestCase(hosts.FunctionsTestCase):

    def setUp(self) -> None:
        super().setUp()
        self.compute = self.host(*self.disks())

    def spawn(self) -> tuple[fixtures.Instance, str]:
        """An instance that runs with a disk, and where that is."""
        instance = self.compute.spawn(request=DeviceRequest.of((DISK, 1)))
        return instance, self.held_by(self.compute, instance)

    def assert_withheld(self, address: str, owner: fixtures.Instance) -> None:
        """The instance that is over keeps its disk, so that nobody else gets it."""
        self.assertEqual({address: owner.uuid}, self.compute.owners())
        self.assertRaises(exception.NoFit, self.compute.claim, fixtures.Instance(), DeviceRequest.of((DISK, 2)))

    def assert_comes_back_clean(self, *addresses: str) -> None:
        """An audit ends what a release could not, without being asked."""
        for _ in range(hosts.TRIES):
            if not self.compute.records():
                break
            self.compute.audit()
        self.assertEqual([], list(self.compute.records()))
        self.assertEqual(['nvme' for _ in addresses], list(map(driver_of, addresses)))
        self.assertEqual([True for _ in addresses], list(map(self.is_zero, addresses)))
        self.assertEqual([], list(self.compute.audit()))

    def test_a_card_that_does_not_answer_is_passed_over(self) -> None:
        """The kernel still shows it with all that it knows, and its registers read as ones."""
        first = min(self.compute.states())
        ones = pathlib.Path(self.temp_dir()) / 'ones'
        ones.write_bytes(b'\xff' * 256)
        config = str((hosts.SYSFS / first / 'config').resolve())
        subprocess.run(['mount', '--bind', str(ones), config], check=True)
        with contextlib.ExitStack() as mounted:
            mounted.callback(subprocess.run, ['umount', config], check=True)
            self.compute.wait_at_release(HANGS_S)
            instance, address = self.spawn()
            self.assertNotEqual(first, address)
            self.assertEqual({address: instance.uuid}, self.compute.owners())
            found = [(one.kind, one.device.identifier) for one in self.compute.audit()]
            self.assertEqual([(findings.UNHEALTHY, first)], found)
        self.compute.delete(instance)
        self.compute.audit()                    # it sees that the card answers again
        self.wait_until_proven(self.compute)
        self.assertEqual([], list(self.compute.audit()))

    def test_guests_that_start_at_once_have_a_disk_of_their_own_and_find_it_clean(self) -> None:
        """Twice as many as there are disks: who gets none waits until somebody has given one back."""
        turn, given_back = threading.Condition(), [0]
        owner_of: dict[str, str] = {}
        served: list[str] = []

        def claim(instance: fixtures.Instance) -> Any:
            while True:
                before = given_back[0]
                try:
                    return self.compute.claim(instance, DeviceRequest.of((DISK, 1)))
                except exception.NoFit:
                    with turn:
                        while given_back[0] == before:
                            self.assertTrue(turn.wait(HANGS_S), 'none comes back')

        def live(instance: fixtures.Instance) -> None:
            with claim(instance):
                address = self.held_by(self.compute, instance)
                self.assertEqual(instance.uuid, owner_of.setdefault(address, instance.uuid))
                self.assertTrue(self.is_zero(address))
                self.compute.boot_or_clean_up(instance)
            self.assertIn((DeviceKey('pci', address), instance.uuid),
                          [(DeviceKey(use.kind, str(use.identifier)), use.domain_uuid)
                           for use in self.machine.usage().uses])
            self.machine.delete_guest(instance.uuid)
            self.fill(address)
            del owner_of[address]
            self.compute.manager.release(None, instance)
            served.append(address)

        def live_and_say_so(instance: fixtures.Instance) -> None:
            self.addCleanup(self.machine.delete_guest, instance.uuid)
            try:
                live(instance)
            finally:
                with turn:
                    given_back[0] += 1
                    turn.notify_all()

        with futures.ThreadPoolExecutor(OWNERS) as pool:
            for done in [pool.submit(live_and_say_so, fixtures.Instance()) for _ in range(OWNERS)]:
                done.result()
        self.assertEqual(OWNERS, len(served))
        self.assert_comes_back_clean(*map(address_of, machine.DISKS))

    def test_a_guest_that_somebody_starts_on_a_disk_that_is_being_cleaned(self) -> None:
        """libvirt takes the disk from under the cleaning, which ends without proof: the disk stays withheld."""
        instance, address = self.spawn()
        elements = self.compute.manager.guest_config(instance).devices
        self.machine.delete_guest(instance.uuid)
        self.fill(address)
        stranger = str(uuid.uuid4())
        self.addCleanup(self.machine.delete_guest, stranger)
        wipe = jobs.wipe

        def start_and_wipe(*args: Any) -> None:
            self.machine.start_guest(stranger, elements)
            wipe(*args)

        # The disk is open for the worker, which has not begun.
        with mock.patch.object(jobs, 'wipe', start_and_wipe):
            self.assertRaises(exception.DriverError, self.compute.manager.release, None, instance)
        self.assertEqual('vfio-pci', driver_of(address))
        self.assert_withheld(address, instance)
        # While that guest runs, nobody tries again.
        self.assertRaises(exception.DeviceInUse, self.compute.manager.release, None, instance)
        self.assertTrue(self.machine.domain(stranger).isActive())
        self.assert_withheld(address, instance)

        self.machine.delete_guest(stranger)
        self.fill(address)
        self.assert_comes_back_clean(address)

    def test_a_disk_that_the_host_mounted_when_its_guest_was_gone(self) -> None:
        instance, address = self.spawn()
        self.machine.delete_guest(instance.uuid)
        path = self.block_device(address)
        make_file_system(path)
        with tempfile.TemporaryDirectory() as directory:
            kept = pathlib.Path(directory) / 'kept'
            with mounted(path, directory):
                kept.write_bytes(hosts.PATTERN)
                error = self.assertRaises(exception.DeviceInUse, self.compute.manager.release, None, instance)
                self.assertIn(f'{directory} is mounted from', str(error))
                self.assert_withheld(address, instance)
                # A service that starts now does not touch it either.
                self.compute.restart()
                self.assert_withheld(address, instance)
                self.assertEqual('nvme', driver_of(address))
            with mounted(path, directory):
                self.assertEqual(hosts.PATTERN, kept.read_bytes())
        self.assert_comes_back_clean(address)


def make_file_system(path: str) -> None:
    """Make a FAT16 on a disk that is all zeroes (ECMA-107): the host has no program for any."""
    sector, fat, fats = 512, 128, 2
    boot = struct.pack(
        '<3s8sHBHBHHBHHHIIBBBI11s8s', b'\xeb\x3c\x90', b'', sector, 4, 1, fats, 512, 0, 0xf8, fat, 63, 255, 0,
        (machine.DISK_MIB << 20) // sector, 0x80, 0, 0x29, 1, b'NO NAME    ', b'FAT16   ')
    with open(path, 'r+b') as disk:
        disk.write(boot.ljust(sector - 2, b'\0') + b'\x55\xaa')
        for number in range(fats):
            disk.seek((1 + number * fat) * sector)
            disk.write(b'\xf8\xff\xff\xff')


@contextlib.contextmanager
def mounted(path: str, directory: str) -> Iterator[None]:
    subprocess.run(['mount', '-t', 'vfat', path, directory], check=True)
    try:
        yield
    finally:
        subprocess.run(['umount', directory], check=True)
