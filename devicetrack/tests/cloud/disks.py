"""Disks that Nova gives to guests with ``one_time_use``, on a real kernel, cleaned by the library between two guests.

A scene is played on a cloud of one host, which has the disks of :data:`.machine.DISKS` in slots of their own. Guests
count their boots in the first sector of their disk. The test reads the bytes of a disk where the machine's emulator
keeps them, so it sees them whoever has the disk, and does not disturb anybody.
"""

from __future__ import annotations

import mmap
import pathlib
import subprocess
import tempfile
import time
from typing import Final

from devicetrack.tests.cloud import compute_client
from devicetrack.tests.cloud import hosts
from devicetrack.tests.cloud import story
from devicetrack.tests.host import machine as machines
from devicetrack.tests.host.functions import test_interrupted

# What is lost.
NEVER: Final = 'no guest gets the disk again'
DIRTY: Final = 'guests may get the disk before it is clean'
CLEANED: Final = "bytes that are nobody's to clean"
SILENT: Final = 'nobody says why the disk is not cleaned'

_FIRST, _OTHER = machines.DISKS
_COUNTER_SIZE: Final = 4
# Before this, a disk has what its guest wrote, and after it what the test did.
_FILLED_FROM: Final = 1 << 20
_SIZE: Final = machines.DISK_MIB << 20
_LOOK_AGAIN_S: Final = 0.002
# A disk that stays as it is through so many audits stays so.
_AUDITS: Final = 2

_MOUNT: Final = f'{test_interrupted.WHERE} until mount $disk /mnt; do sleep 0.1; done'


class _Disk:
    """The bytes of a disk, by the file of the emulator."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path

    def fill(self) -> None:
        """Write all over the disk, as its guest may."""
        with self._path.open('r+b') as file:
            file.seek(_FILLED_FROM)
            file.write(bytes([story.OURS]) * (_SIZE - _FILLED_FROM))

    def make_file_system(self) -> None:
        """Leave a file system on the disk, as its guest may."""
        with tempfile.TemporaryDirectory() as directory:
            made = pathlib.Path(directory, 'made')
            made.touch()
            subprocess.run(['mke2fs', '-q', '-t', 'ext4', made, f'{machines.DISK_MIB}M'], check=True)
            with self._path.open('r+b') as file:
                file.write(made.read_bytes())

    @property
    def boots(self) -> int:
        with self._path.open('rb') as file:
            return int.from_bytes(file.read(_COUNTER_SIZE), 'little')

    @property
    def is_zero(self) -> bool:
        return not any(self._path.read_bytes())

    @property
    def is_full(self) -> bool:
        return self._path.read_bytes()[_FILLED_FROM:] == bytes([story.OURS]) * (_SIZE - _FILLED_FROM)

    @property
    def is_half_clean(self) -> bool:
        with self._path.open('rb') as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return not content[_FILLED_FROM] and bool(content[-1])


class _Scene(story.Scene):

    DISKS = True

    def disk(self, serial: str) -> _Disk:
        return _Disk(self.a.machine.disk(serial))

    def boot_with(self, serial: str) -> str:
        """Boot a guest with a disk, which must be all zeros, and wait until it has counted there. Fill the disk."""
        disk = self.disk(serial)
        # The first audit notes which disk is there, before a guest has it.
        compute_client.wait_for('the host was audited', lambda: self.a.audits() > 1)
        self.expect_handed_out(serial)
        uuid = self.nova.boot('guest', self.cloud.flavors[serial], self.a.name)
        booted = self.nova.wait(uuid, 'ACTIVE')
        if booted['status'] != 'ACTIVE':
            raise compute_client.TooLate(f'{uuid} was not booted: {booted.get("fault")}')
        compute_client.wait_for(f'{uuid} has counted', lambda: disk.boots, stands_still=self.nova.stillness(
            lambda: disk.boots))
        if disk.boots != 1:
            self.lost.append(story.SEEN)
            self.details.append(f'the guest of {uuid} found {disk.boots - 1} boots on {serial}')
        disk.fill()
        return uuid

    def expect_handed_out(self, serial: str) -> None:
        """Wait until placement offers a disk to guests, and note when it has bytes, or when that never comes."""
        try:
            compute_client.wait_for(
                f'{serial} is handed out', lambda: not self.cloud.is_reserved(serial),
                stands_still=self.nova.stillness(lambda: self.cloud.is_reserved(serial)))
        except compute_client.TooLate as late:
            self.lost.append(NEVER)
            self.details.append(str(late))
            return
        if not self.disk(serial).is_zero:
            self.lost.append(DIRTY)
            self.details.append(f'placement offers {serial}, which has bytes')

    def said(self, why: str) -> int:
        """How often the log of the service has a text."""
        return int(self.a.machine.run(['grep', '--count', '--fixed-strings', '--', why, hosts.LOG], check=False).out)

    def expect_kept_from_guests(self, serial: str, why: str, before: int) -> None:
        """Wait until the service has said why a disk is not cleaned, and note when it is cleaned or offered anyhow.

        :param before: how often that was in its log before there was a reason for it
        """
        try:
            compute_client.wait_for(f'the service says: {why}', lambda: self.said(why) > before,
                                    stands_still=self.nova.stillness(lambda: None))
        except compute_client.TooLate as late:
            self.lost.append(SILENT)
            self.details.append(str(late))
        audits = self.a.audits()
        compute_client.wait_for('the host is audited again', lambda: self.a.audits() >= audits + _AUDITS)
        if not self.cloud.is_reserved(serial):
            self.lost.append(DIRTY)
            self.details.append(f'placement offers {serial} in spite of: {why}')

    def delete_and_interrupt_cleaning(self, uuid: str, serial: str) -> None:
        """Delete a guest, and kill the service or cut the power while its disk is being cleaned.

        :raises Missed: it was clean already
        """
        disk = self.disk(serial)
        self.nova.delete(uuid)
        stands_still = self.nova.stillness(lambda: (disk.is_zero, self.cloud.is_reserved(serial)))
        while not disk.is_half_clean:
            if disk.is_zero:
                raise story.Missed(f'{self.NAME}, {self.how}: the disk was clean before that could be disturbed')
            if stands_still():
                raise compute_client.TooLate(f'{serial} is cleaned: nobody works on it')
            time.sleep(_LOOK_AGAIN_S)
        if self.how != story.RESET:
            self.a.kill_service()
            return
        self.a.cut()
        if disk.is_zero:
            raise story.Missed(f'{self.NAME}, {self.how}: the disk was clean when the power was cut')
        self.a.boot_renumbered()

    def expect_next_owner(self, serial: str) -> None:
        """The next guest finds zeros, and so does the one after it."""
        self.delete(self.boot_with(serial))
        self.expect_handed_out(serial)


class NextOwner(_Scene):
    NAME = 'a disk and its next owner'

    def play(self) -> None:
        uuid = self.boot_with(_FIRST)
        if self.how == story.NOT:
            self.nova.delete(uuid)
        else:
            self.delete_and_interrupt_cleaning(uuid, _FIRST)
            self.cloud.start_services(self.a)
        self.nova.wait_until_gone(uuid)
        self.expect_handed_out(_FIRST)
        self.expect_next_owner(_FIRST)


class Mounted(_Scene):
    NAME = 'a disk that the host mounts meanwhile'
    HOWS = (story.NOT,)

    def play(self) -> None:
        uuid, why, address = self.boot_with(_FIRST), '/mnt is mounted from', self.a.addresses[_FIRST]
        self.disk(_FIRST).make_file_system()
        before = self.said(why)
        # Somebody waits for the disk as Nova does, and is quicker.
        mount = self.a.machine.spawn(['sh', '-c', _MOUNT, 'sh', address])
        self.delete(uuid)
        mount.wait(hosts.PROGRAM_S)
        self.expect_kept_from_guests(_FIRST, why, before)
        if self.disk(_FIRST).is_zero:
            self.lost.append(CLEANED)
        self.a.machine.run(['umount', '/mnt'])
        self.expect_handed_out(_FIRST)
        self.expect_next_owner(_FIRST)


class CannotSanitize(_Scene):
    NAME = 'a disk that cannot sanitize'
    HOWS = (story.NOT,)

    def play(self) -> None:
        self.restart_with('nvme-sanitize')
        uuid, why = self.boot_with(_OTHER), 'SANICAP'
        before = self.said(why)
        self.delete(uuid)
        self.expect_kept_from_guests(_OTHER, why, before)
        if not self.disk(_OTHER).is_full:
            self.lost.append(CLEANED)
        # The disk now waits for a person: a disk that cannot be cleaned is not noted before a guest has it.
        self.restart_with('zero')

    def restart_with(self, policy: str) -> None:
        self.a.kill_service()
        self.a.configure([{'policy': policy}])
        self.cloud.start_services(self.a)


class OtherInTheSlot(_Scene):
    NAME = 'another disk in the slot'
    HOWS = (story.NOT,)

    def play(self) -> None:
        other, number = self.disk(machines.OTHER_DISK), machines.DISKS.index(_FIRST)
        other.fill()
        why = f'its serial is {machines.OTHER_DISK}, recorded was {_FIRST}'
        before = self.said(why)
        self.delete_and_interrupt_cleaning(self.boot_with(_FIRST), _FIRST)
        self.a.machine.replace_disk(number, machines.OTHER_DISK)
        self.cloud.start_services(self.a)
        self.expect_kept_from_guests(_FIRST, why, before)
        if not other.is_full:
            self.lost.append(CLEANED)
            self.details.append('the other disk in the slot was written to')
        self.a.kill_service()
        self.a.machine.replace_disk(number, _FIRST)
        self.cloud.start_services(self.a)
        self.expect_handed_out(_FIRST)
        self.expect_next_owner(_FIRST)


SCENES: Final[tuple[type[story.Scene], ...]] = (NextOwner, Mounted, CannotSanitize, OtherInTheSlot)
