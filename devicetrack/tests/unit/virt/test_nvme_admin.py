"""Admin commands of NVM Express, against bytes laid out as the specification says."""

from __future__ import annotations

import copy
import ctypes
import errno
import fcntl
import os
import pickle
import struct

from devicetrack.tests import base
from devicetrack.virt.libvirt import nvme_admin

# Where Command Dword 10 is in struct nvme_passthru_cmd (Linux: include/uapi/linux/nvme_ioctl.h).
CDW10 = 40


def words(command: nvme_admin.Command) -> tuple[int, ...]:
    """The bytes of a command: opcode, namespace, dword 10 and the time limit."""
    data = bytes(command)
    return data[0], *(struct.unpack_from('<I', data, offset)[0] for offset in (4, CDW10, 64))


def page(**places: bytes) -> bytes:
    """An answer of 4096 bytes with some of them at offsets, ``at_256=…``."""
    data = bytearray(nvme_admin.PAGE)
    for name, part in places.items():
        start = int(name.partition('_')[2])
        data[start:start + len(part)] = part
    return bytes(data)


class AnsweredTestCase(base.TestCase):
    """Every command is answered with :attr:`data`, and is kept."""

    data: bytes = bytes(nvme_admin.PAGE)

    def setUp(self) -> None:
        super().setUp()
        self.sent: list[nvme_admin.Command] = []
        self.patch(nvme_admin, 'submit', self.submit)

    def submit(self, _fd: int, command: nvme_admin.Command, _size: int = 0, data: bytes = b'') -> bytes:
        self.sent.append(command)
        return self.data


class CommandTestCase(AnsweredTestCase):

    scenarios = base.table(
        ('identify the controller', (nvme_admin.identify_controller,), (0x06, 0, 1, 30_000)),
        ('identify a namespace', (nvme_admin.identify_namespace, 5), (0x06, 5, 0, 30_000)),
        ('list all namespaces', (nvme_admin.namespaces, nvme_admin.ALLOCATED), (0x06, 0, 0x10, 30_000)),
        # LBAFL in bits 3:0, SES in bits 11:9.
        ('format and erase', (nvme_admin.format_namespace, 1, nvme_admin.Format(4), 1, 60), (0x80, 1, 0x204, 60_000)),
        ('format by a new key', (nvme_admin.format_namespace, 2, nvme_admin.Format(0), 2, 9), (0x80, 2, 0x400, 9000)),
        # MSET bit 4, PI bits 7:5, PIL bit 8, LBAFU bits 13:12.
        ('format with all that there is',
         (nvme_admin.format_namespace, 1, nvme_admin.Format(0x2F, True, 5, True), 1, 1), (0x80, 1, 0x23BF, 1000)),
        ('sanitize by blocks', (nvme_admin.start_sanitize, 2), (0x84, 0, 2, 30_000)),
        ('sanitize by a new key', (nvme_admin.start_sanitize, 4), (0x84, 0, 4, 30_000)),
        # OWPASS in bits 7:4: one pass.
        ('sanitize by overwriting', (nvme_admin.start_sanitize, 3), (0x84, 0, 0x13, 30_000)),
        # SEL in bits 3:0.
        ('delete a namespace', (nvme_admin.delete_namespace, 5), (0x0D, 5, 1, 30_000)),
        ('make a namespace', (nvme_admin.create_namespace, 8, nvme_admin.Format(0), False), (0x0D, 0, 0, 30_000)),
        ('attach a namespace', (nvme_admin.attach, 5, [1], True), (0x15, 5, 0, 30_000)),
        ('detach a namespace', (nvme_admin.attach, 5, [1], False), (0x15, 5, 1, 30_000)),
        # ACT in bits 3:0, RT in bits 10:8, CNTLID in bits 31:16.
        ('bring a controller online', (nvme_admin.virtualize, 2, 9), (0x1C, 0, 2 << 16 | 9, 30_000)),
        ('give it interrupts', (nvme_admin.virtualize, 2, 8, 1, 4), (0x1C, 0, 2 << 16 | 1 << 8 | 8, 30_000)),
        # LID in bits 7:0, NUMDL in bits 31:16, which counts from 0.
        ('the status of sanitize', (nvme_admin.sanitize_status,), (0x02, 0xFFFFFFFF, 0x007F0081, 30_000)),
        names=('asked', 'expected'))

    def test_is_these_bytes(self) -> None:
        function, *arguments = self.asked
        function(0, *arguments)
        self.assertEqual([self.expected], list(map(words, self.sent)))

    def test_the_kernels_number_of_the_call(self) -> None:
        self.assertEqual((0xC0484E41, 72), (nvme_admin.IOCTL, len(bytes(nvme_admin.Command(0)))))


class ResourcesTestCase(AnsweredTestCase):

    def test_their_number_is_in_dword_11(self) -> None:
        nvme_admin.virtualize(0, 2, nvme_admin.ASSIGN, nvme_admin.QUEUES, 7)
        self.assertEqual(7, struct.unpack_from('<I', bytes(self.sent[0]), CDW10 + 4)[0])


class ControllerTestCase(AnsweredTestCase):

    def test_what_it_can_do(self) -> None:
        self.data = page(
            at_256=struct.pack('<H', 0x8A), at_280=struct.pack('<QQ', 1 << 40, 0), at_296=struct.pack('<QQ', 5, 1),
            at_328=struct.pack('<I', 0b011), at_524=bytes([0b101]), at_78=struct.pack('<H', 0x1FF), at_76=b'\x02')
        said = nvme_admin.identify_controller(0)
        self.assertEqual(nvme_admin.Controller(True, True, 1 << 40, (1 << 64) + 5, 0b011, 0b101, 0x1FF, True, True),
                         said)
        self.assertEqual((True, True), (said.formats_cryptographically, said.formats_all_at_once))
        self.assertEqual([True, False, True], [said.sanitizes(action) for action in (
            nvme_admin.BLOCK_ERASE, nvme_admin.OVERWRITE, nvme_admin.CRYPTO_ERASE)])

    def test_one_without_namespace_management_has_no_capacities(self) -> None:
        self.data = page(at_280=b'\xff' * 32)
        said = nvme_admin.identify_controller(0)
        self.assertEqual(nvme_admin.Controller(False, False, 0, 0, 0, 0), said)
        self.assertFalse(said.formats_all_at_once or said.formats_cryptographically)


class NamespaceTestCase(AnsweredTestCase):

    def test_what_it_is(self) -> None:
        # NSZE, FLBAS, DPS, NMIC, FPI, DLFEAT, and the fifth LBA format with blocks of 2^12 bytes.
        self.data = page(at_0=struct.pack('<Q', 1000), at_26=bytes([0x14]), at_29=bytes([0x0A]), at_30=b'\x01',
                         at_32=bytes([0x80 | 30]), at_33=bytes([0b1001]), at_144=bytes([0, 0, 12, 2]))
        said = nvme_admin.identify_namespace(0, 1)
        form = nvme_admin.Format(4, True, 2, True)
        self.assertEqual(nvme_admin.NVMeNamespace(1000, 4096, form, True, True, 30), said)
        self.assertEqual(4_096_000, said.size_bytes)

    def test_a_format_beyond_the_sixteenth(self) -> None:
        self.data = page(at_0=b'\x01', at_26=bytes([0x43]), at_268=bytes([0, 0, 9, 0]))
        said = nvme_admin.identify_namespace(0, 1)
        self.assertEqual((35, 512, False, None), (said.format.lbaf, said.block_bytes, said.zeroes,
                                                  said.remaining_percent))

    def test_one_that_is_not_there_has_no_bytes(self) -> None:
        self.assertEqual(0, nvme_admin.identify_namespace(0, 1).size_bytes)

    def test_only_zeroes_are_promised_where_the_controller_promises_them(self) -> None:
        for said, zeroes in ((0, False), (1, True), (2, False), (0b11001, True)):
            self.data = page(at_33=bytes([said]))
            self.assertEqual(zeroes, nvme_admin.identify_namespace(0, 1).zeroes)


class ListTestCase(AnsweredTestCase):

    def test_ends_with_a_zero(self) -> None:
        self.data = struct.pack('<4I', 1, 7, 0, 9)
        self.assertEqual([1, 7], nvme_admin.namespaces(0, nvme_admin.ACTIVE))

    def test_one_that_is_full_goes_on_in_the_next(self) -> None:
        pages = {0: struct.pack('<1024I', *range(1, 1025)), 1024: struct.pack('<I', 2000).ljust(4096, b'\0')}
        self.patch(nvme_admin, 'submit', lambda fd, command, size: pages[command.nsid])
        self.assertEqual([*range(1, 1025), 2000], nvme_admin.namespaces(0, nvme_admin.ACTIVE))


class ControllerListTestCase(AnsweredTestCase):

    def test_has_its_length_first(self) -> None:
        self.data = struct.pack('<4H', 3, 1, 2, 9).ljust(4096, b'\0')
        self.assertEqual(([1, 2, 9], [1, 2, 9]), (nvme_admin.controllers(0), nvme_admin.attached_to(0, 5)))
        self.data = bytes(4096)
        self.assertEqual([], nvme_admin.controllers(0))

    def test_says_no_more_than_there_is_room_for(self) -> None:
        self.data = b'\xff' * 4096
        self.assertEqual(2047, len(nvme_admin.controllers(0)))


class SecondaryTestCase(AnsweredTestCase):

    def test_what_a_primary_controller_can_give(self) -> None:
        # CRT says which sorts are flexible; VQFRT, VQRFA, VQRFAP, VQPRT, VQFRSM and VQGRAN, and the same of interrupts.
        self.data = page(
            at_0=struct.pack('<HHB', 0, 0, 0b10), at_32=struct.pack('<IIHHHH', 80, 5, 16, 1, 9, 3),
            at_64=struct.pack('<IIHHHH', 70000, 5, 6, 7, 8, 2))
        self.assertEqual({nvme_admin.QUEUES: nvme_admin.Resource(False, 80, 16, 9, 3),
                          nvme_admin.INTERRUPTS: nvme_admin.Resource(True, 70000, 6, 8, 2)}, nvme_admin.capabilities(0))

    def entry(self, cntlid: int, state: int, vf: int, queues: int = 0, interrupts: int = 0) -> bytes:
        """SCID, PCID, SCS, VFN, NVQ and NVI."""
        return struct.pack('<HHB3xHHH', cntlid, 0, state, vf, queues, interrupts).ljust(32, b'\xff')

    def test_how_they_stand(self) -> None:
        data = bytes([2]).ljust(32, b'\0') + self.entry(1, 0, 1) + self.entry(7, 1, 2, 9, 3) + self.entry(9, 1, 3)
        self.data = data.ljust(4096, b'\0')
        self.assertEqual([nvme_admin.Secondary(1, False, 1, 0, 0), nvme_admin.Secondary(7, True, 2, 9, 3)],
                         nvme_admin.secondaries(0))

    def test_a_list_that_is_full_goes_on_in_the_next(self) -> None:
        pages = {0: (1, 128), 128: (128, 130)}
        asked = []

        def submit(_fd: int, command: nvme_admin.Command, _size: int) -> bytes:
            asked.append(command.cdw10 & 0xFFFF)
            numbers = range(*pages[command.cdw10 >> 16])
            return bytes([len(numbers)]).ljust(32, b'\0') + b''.join(self.entry(one, 1, one) for one in numbers)

        self.patch(nvme_admin, 'submit', submit)
        self.assertEqual([*range(1, 130)], [one.cntlid for one in nvme_admin.secondaries(0)])
        self.assertEqual([0x15, 0x15], asked)


class SanitizeStatusTestCase(AnsweredTestCase):

    scenarios = base.table(
        ('never', (0xFFFF, 0, 0), False), ('done', (0xFFFF, 1, 2), True), ('in progress', (100, 2, 2), False),
        ('failed', (0xFFFF, 3, 2), False), ('done, with blocks deallocated', (0xFFFF, 4, 4), True),
        names=('status', 'completed'))

    def test_is(self) -> None:
        progress, status, action = self.status
        # SPROG, SSTAT with the passes and "global data erased" above, and the command's dword 10 with more bits.
        self.data = struct.pack('<HHI', progress, status | 0x108, action | 0x10)
        said = nvme_admin.sanitize_status(0)
        self.assertEqual((self.status, self.completed), (tuple(said), said.is_completed))


class SubmitTestCase(base.TestCase):

    def test_a_device_that_is_no_controller(self) -> None:
        fd = os.open('/dev/null', os.O_RDWR)
        self.addCleanup(os.close, fd)
        error = self.assertRaises(OSError, nvme_admin.identify_controller, fd)
        self.assertEqual(errno.ENOTTY, error.errno)

    def test_what_the_controller_reads_and_writes_is_in_the_same_place(self) -> None:
        def answer(_fd: int, number: int, command: nvme_admin.Command) -> int:
            seen.append((number, ctypes.string_at(command.addr, command.data_len)))
            return 0

        seen: list[tuple[int, bytes]] = []
        self.patch(fcntl, 'ioctl', answer)
        nvme_admin.attach(0, 5, [9, 3], True)
        nvme_admin.delete_namespace(0, 5)
        self.assertEqual([(nvme_admin.IOCTL, struct.pack('<HHH', 2, 3, 9).ljust(4096, b'\0')),
                          (nvme_admin.IOCTL, b'')], seen)

    def test_a_new_namespace_is_as_large_as_it_says_and_has_the_number_that_the_controller_chose(self) -> None:
        def answer(_fd: int, _number: int, command: nvme_admin.Command) -> int:
            seen.append(ctypes.string_at(command.addr, command.data_len))
            if command.opcode == 0x06:
                ctypes.memmove(command.addr, seen[0], command.data_len)
            command.result = 7
            return 0

        seen: list[bytes] = []
        self.patch(fcntl, 'ioctl', answer)
        form = nvme_admin.Format(0x14, extended=True, protection=2, protection_first=True)
        self.assertEqual(7, nvme_admin.create_namespace(0, 1000, form, True))
        self.assertEqual([page(at_0=struct.pack('<QQ', 1000, 1000), at_26=bytes([0x34]), at_29=bytes([0x0A]),
                               at_30=b'\x01')], seen)
        # What the controller says of it then is what was asked for.
        read = nvme_admin.identify_namespace(0, 7)
        self.assertEqual((1000, form, True), (read.blocks, read.format, read.shared))

    def test_an_error_of_the_controller_names_the_command_and_the_status(self) -> None:
        self.patch(fcntl, 'ioctl', lambda *_arguments: 0x4001)
        error = self.assertRaises(nvme_admin.CommandRefused, nvme_admin.start_sanitize, 0, nvme_admin.BLOCK_ERASE)
        self.assertEqual((1, errno.EIO), (error.status, error.errno))
        self.assertEqual('the controller refused Sanitize with status 0x001 (invalid opcode)', error.strerror)

    def test_an_error_of_the_controller_is_the_same_elsewhere(self) -> None:
        error = nvme_admin.CommandRefused('Format NVM', 0x410A)
        # oslo.privsep hands an error on as its class and its arguments.
        for again in (pickle.loads(pickle.dumps(error)), copy.copy(error), nvme_admin.CommandRefused(*error.args)):
            self.assertEqual((error.errno, error.status, error.strerror, str(error)),
                             (again.errno, again.status, again.strerror, str(again)))
