"""NVMe controllers without the hardware. Their answers to admin commands are bytes as in the specification.

::

    controllers = self.useFixture(nvme.Controllers(host))           # host: devicetrack.testing.pci.PCIHost
    made = controllers.add('0000:01:00.0')                          # one namespace of 1 MiB
    made.sanicap = 0b010

A file stands for the block device of a namespace. A format that erases fills it with zeroes, and any other format fills
it with other bytes. The controller of a physical function has secondary controllers for the virtual functions. They
are offline and have no queues or interrupts until somebody assigns some.
"""

from __future__ import annotations

from collections.abc import Sequence
import errno
import os
import shutil
import struct
from typing import Any
from typing import Final

import fixtures

from devicetrack.testing import pci
from devicetrack.virt.libvirt import disk_nodes
from devicetrack.virt.libvirt import jobs
from devicetrack.virt.libvirt import nvme_admin
from devicetrack.virt.libvirt import nvme_controllers
from devicetrack.virt.libvirt import pci_privileged

MIB: Final = 1 << 20
# The block sizes of the LBA formats, by their numbers, as shifts: 512 and 4096 bytes.
FORMATS: Final = (9, 12)


class Namespace:
    """One namespace. ``path`` is the file with its bytes."""

    def __init__(self, path: str, size: int) -> None:
        self.path, self.size = path, size
        self.lbaf, self.shared, self.zeroes = 0, False, True
        self.attached_to = {0}
        self.fill(b'\0')

    def fill(self, data: bytes) -> None:
        with open(self.path, 'wb') as file:
            file.write(data * (self.size // len(data)))

    @property
    def content(self) -> bytes:
        with open(self.path, 'rb') as file:
            return file.read()

    @property
    def attached(self) -> bool:
        """Whether the namespace is attached to the controller of the function itself."""
        return 0 in self.attached_to

    @attached.setter
    def attached(self, attached: bool) -> None:
        (self.attached_to.add if attached else self.attached_to.discard)(0)

    @property
    def block(self) -> int:
        return 1 << FORMATS[self.lbaf]


class Controller:
    """One controller.

    ``commands``
        The opcodes that it got, without Identify. It refuses those in ``refuses``.
    ``secondaries``
        The secondary controllers by number, which is also the number of the virtual function, from 1. The value says
        whether the controller is online, and how many queues and interrupts it has.
    ``flexible``
        For queues and for interrupts: how many can be assigned, how many of these the physical function has, and how
        many one controller can have at most.
    ``others``
        The numbers of other controllers of the subsystem. None: there may be some, and the controller does not name
        them.
    ``stubborn``
        The controller reports that it brought a secondary controller online, but does not do it.
    ``first``
        The lowest number that a new namespace gets.
    ``sanitizing``
        The progress that it reports during a sanitize operation, one value for each question. After the last value the
        operation is over. If ``fails`` is set, the operation fails then.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self.oacs, self.sanicap, self.fna, self.unallocated = 0b0010, 0, 0b100, 0
        self.namespaces: dict[int, Namespace] = {}
        self.commands: list[int] = []
        self.refuses: set[int] = set()
        self.sanitizing: list[int] = []
        self.fails = False
        self.secondaries: dict[int, list[int]] = {}
        self.flexible = ((8, 0, 2), (4, 0, 1))
        self.others: set[int] | None = set()
        self.first = 1
        self.stubborn = False
        self.status = (0xFFFF, nvme_admin.NEVER, 0)

    def add(self, nsid: int, size: int = MIB) -> Namespace:
        self.namespaces[nsid] = Namespace(os.path.join(self._directory, str(nsid)), size)
        return self.namespaces[nsid]

    def answer(self, command: nvme_admin.Command, size: int, sent: bytes = b'') -> bytes:
        opcode, nsid = command.opcode, command.nsid
        if opcode == 0x06:
            return self._identify(command.cdw10 & 0xFF, nsid, command.cdw10 >> 16).ljust(size, b'\0')
        self.commands.append(opcode)
        if opcode in self.refuses:
            raise nvme_admin.CommandRefused('it', 0x2002)
        if opcode == 0x80:
            namespace = self.namespaces[nsid]
            namespace.lbaf = command.cdw10 & 0xF
            namespace.fill(b'\0' if command.cdw10 >> 9 & 0b111 else b'\xa5')
        elif opcode == 0x0D:
            if command.cdw10 & 0xF == 1:
                self.unallocated += self.namespaces.pop(nsid).size
            else:
                command.result = self._create(sent)
        elif opcode == 0x15:
            self._attach(self.namespaces[nsid], command.cdw10 & 0xF, sent)
        elif opcode == 0x1C:
            self._virtualize(command.cdw10 & 0xF, command.cdw10 >> 8 & 7, command.cdw10 >> 16, command.cdw11)
        elif opcode == 0x84:
            self.status = 0, nvme_admin.IN_PROGRESS, command.cdw10 & 0b111
        elif opcode == 0x02:
            if self.status[1] == nvme_admin.IN_PROGRESS:
                if self.sanitizing:
                    self.status = self.sanitizing.pop(0), *self.status[1:]
                else:
                    self.status = 0xFFFF, nvme_admin.FAILED if self.fails else nvme_admin.COMPLETED, self.status[2]
                    for namespace in self.namespaces.values():
                        namespace.fill(b'\0')
            return struct.pack('<HHI', *self.status).ljust(size, b'\0')
        return b''

    def _create(self, sent: bytes) -> int:
        assert len(sent) == 4096, len(sent)
        size, capacity = struct.unpack_from('<QQ', sent)
        lbaf = sent[26] & 0xF
        if capacity != size or capacity << FORMATS[lbaf] > self.unallocated:
            raise nvme_admin.CommandRefused('it', 0x115)
        nsid = next(number for number in range(self.first, 99) if number not in self.namespaces)
        made = self.add(nsid, size << FORMATS[lbaf])
        # Unless a controller says otherwise, a new namespace may have the bytes of an old one.
        made.fill(b'\xa5')
        made.lbaf, made.shared, made.attached_to = lbaf, bool(sent[30] & 1), set()
        self.unallocated -= made.size
        return nsid

    @staticmethod
    def _attach(namespace: Namespace, select: int, sent: bytes) -> None:
        assert len(sent) == 4096, len(sent)
        count, = struct.unpack_from('<H', sent)
        named = set(struct.unpack_from(f'<{count}H', sent, 2))
        if select == 0 and named & namespace.attached_to:
            raise nvme_admin.CommandRefused('it', 0x118)
        if select == 1 and not named <= namespace.attached_to:
            raise nvme_admin.CommandRefused('it', 0x11A)
        namespace.attached_to ^= named

    def _virtualize(self, action: int, resource: int, cntlid: int, number: int) -> None:
        if cntlid not in self.secondaries:
            raise nvme_admin.CommandRefused('it', 0x11F)
        one = self.secondaries[cntlid]
        if action == 8:
            total, primary, most = self.flexible[resource]
            given = sum(other[1 + resource] for other in self.secondaries.values()) - one[1 + resource]
            if number > most or primary + given + number > total:
                raise nvme_admin.CommandRefused('it', 0x121)
            one[1 + resource] = number
        elif action == 9:
            if one[1] < 2 or one[2] < 1:
                raise nvme_admin.CommandRefused('it', 0x120)
            one[0] = int(not self.stubborn)
        else:
            one[:] = 0, 0, 0

    def _identify(self, cns: int, nsid: int, cntlid: int = 0) -> bytes:
        if cns == 0x12:
            return _list(self.namespaces[nsid].attached_to)
        if cns == 0x13:
            if self.others is None:
                raise nvme_admin.CommandRefused('it', 0x002)
            return _list({0, *self.secondaries, *self.others})
        if cns == 0x14:
            data = bytearray(4096)
            data[4] = 0b11
            for (total, primary, most), start in zip(self.flexible, (32, 64), strict=True):
                struct.pack_into('<IIHHHH', data, start, total, 0, primary, 1, most, 1)
            return bytes(data)
        if cns == 0x15:
            if not self.secondaries:
                raise nvme_admin.CommandRefused('it', 0x002)
            listed = [(number, one) for number, one in sorted(self.secondaries.items()) if number >= cntlid]
            return bytes([len(listed)]).ljust(32, b'\0') + b''.join(
                struct.pack('<HHB3xHHH', number, 0, one[0], number, *one[1:]).ljust(32, b'\0')
                for number, one in listed)
        if cns == nvme_admin.CONTROLLER:
            data = bytearray(4096)
            data[76] = 0b10 if self.secondaries or self.others != set() else 0
            struct.pack_into('<H', data, 256, self.oacs)
            struct.pack_into('<QQQQ', data, 280, 8 * MIB, 0, self.unallocated, 0)
            struct.pack_into('<I', data, 328, self.sanicap)
            data[524] = self.fna
            return bytes(data)
        if cns in (nvme_admin.ACTIVE, nvme_admin.ALLOCATED):
            return b''.join(struct.pack('<I', number) for number, one in sorted(self.namespaces.items())
                            if number > nsid and (one.attached or cns == nvme_admin.ALLOCATED))
        namespace = self.namespaces[nsid]
        data = bytearray(4096)
        struct.pack_into('<QQQBB', data, 0, *[namespace.size // namespace.block] * 3, 0, len(FORMATS) - 1)
        data[26], data[30], data[33] = namespace.lbaf, namespace.shared, namespace.zeroes
        for number, shift in enumerate(FORMATS):
            data[128 + 4 * number + 2] = shift
        return bytes(data)


def _list(cntlids: set[int]) -> bytes:
    return struct.pack(f'<{len(cntlids) + 1}H', len(cntlids), *sorted(cntlids))


class Controllers(fixtures.Fixture):
    """The NVMe controllers of a :class:`.pci.PCIHost`. ``controllers`` has them by the addresses of their functions."""

    def __init__(self, host: pci.PCIHost) -> None:
        super().__init__()
        self._host = host
        self.controllers: dict[str, Controller] = {}
        self._open: dict[int, str] = {}

    def _setUp(self) -> None:
        for module, name, made in ((nvme_controllers, 'open_controller', self._open_controller),
                                   (nvme_admin, 'submit', self._submit),
                                   (nvme_admin, 'rescan', self._rescan), (jobs, 'format_namespace', self._format),
                                   (disk_nodes, 'open_here', self._open_disk)):
            self.useFixture(fixtures.MonkeyPatch(f'{module.__name__}.{name}', made))

    def add(self, address: str, size: int = MIB) -> Controller:
        """Give a disk of the host a controller that answers, with one namespace."""
        controller = self.controllers[address] = Controller(self.useFixture(fixtures.TempDir()).path)
        controller.add(1, size)
        self.show(address)
        return controller

    def add_secondaries(self, address: str) -> Controller:
        """Give a physical function a controller, with a secondary controller for each virtual function it can have.

        Each controller has its own namespace. The namespace's number is one more than the number of the function.
        """
        controller = self.add(address)
        total = self._host.total_vfs_of(address)
        controller.oacs |= 1 << 7
        controller.secondaries = {number: [0, 0, 0] for number in range(1, total + 1)}
        for number in controller.secondaries:
            controller.add(number + 1).attached_to = {number}
        return controller

    def show(self, address: str) -> None:
        """Let the host's driver read the namespaces of a controller again."""
        name = self._host.controller_of(address)
        directory = self._host.path(address, f'nvme/{name}')
        self._put(os.path.join(directory, 'state'), 'live')
        attached = {f'{name}n{nsid}' for nsid, one in self.controllers[address].namespaces.items() if one.attached}
        for entry in os.listdir(directory):
            if entry.startswith(f'{name}n') and entry not in attached:
                shutil.rmtree(os.path.join(directory, entry))
        for nsid, namespace in self.controllers[address].namespaces.items():
            if namespace.attached:
                inside = os.path.join(directory, f'{name}n{nsid}')
                os.makedirs(os.path.join(inside, 'queue'), exist_ok=True)
                self._put(os.path.join(inside, 'nsid'), str(nsid))
                self._put(os.path.join(inside, 'size'), str(namespace.size // 512))
                self._put(os.path.join(inside, 'queue/logical_block_size'), str(namespace.block))

    def _open_controller(self, _sysfs: str, address: str) -> int:
        pci_privileged.path_of(self._host.root, address)
        if address not in self.controllers:
            raise OSError(errno.ENODEV, f'{address} has no NVMe controller now')
        fd = os.open('/dev/null', os.O_RDWR | os.O_CLOEXEC)
        self._open[fd] = address
        return fd

    def _open_disk(self, sysfs: str, address: str, name: str, _size_bytes: int, _writing: bool) -> int:
        pci_privileged.check_own_use(sysfs, address)
        return os.open(self.controllers[address].namespaces[int(name.rpartition('n')[2])].path, os.O_RDWR)

    def _submit(self, fd: int, command: nvme_admin.Command, size: int = 0, data: bytes = b'') -> bytes:
        address = self._open[fd]
        answer = self.controllers[address].answer(command, size, data)
        if command.opcode == 0x80:
            self.show(address)
        return answer

    def _rescan(self, fd: int) -> None:
        self.show(self._open[fd])

    @staticmethod
    def _format(_name: str, fd: int, _disks: Sequence[int], _lock_fd: int, nsid: int, wanted: nvme_admin.Format,
                erase: int, timeout_s: int, _size: Any) -> None:
        nvme_admin.format_namespace(fd, nsid, wanted, erase, timeout_s)

    @staticmethod
    def _put(path: str, text: str) -> None:
        with open(path, 'w') as file:
            file.write(text)
