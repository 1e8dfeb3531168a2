"""Admin commands of NVM Express: the bytes that a host sends to a controller, and those that it answers.

The offsets are those of the NVM Express Base Specification 2.0 and of the NVM Command Set Specification 1.0. Versions
1.4 and earlier have the same fields in the same places. Commands go through the ioctl that the kernel has for
them (Linux: include/uapi/linux/nvme_ioctl.h). It needs CAP_SYS_ADMIN for nearly all of them (nvme_cmd_allowed in Linux:
drivers/nvme/host/ioctl.c).

This module imports nothing of the project: a program that outlives the service uses it.
"""

from __future__ import annotations

from collections.abc import Sequence
import ctypes
import errno
import fcntl
import struct
from typing import Final
from typing import NamedTuple

# Opcodes of the admin command set.
_GET_LOG_PAGE: Final = 0x02
_IDENTIFY: Final = 0x06
_NAMESPACE_MANAGEMENT: Final = 0x0D
_NAMESPACE_ATTACHMENT: Final = 0x15
_VIRTUALIZATION_MANAGEMENT: Final = 0x1C
_FORMAT_NVM: Final = 0x80
_SANITIZE: Final = 0x84

# Identify: the values of CNS.
NAMESPACE: Final = 0x00
CONTROLLER: Final = 0x01
ACTIVE: Final = 0x02                # identifiers of the namespaces that are attached to the controller
ALLOCATED: Final = 0x10             # identifiers of all namespaces of the NVM subsystem
ALLOCATED_NAMESPACE: Final = 0x11   # as NAMESPACE, for a namespace that may be attached to no controller
ATTACHED_TO: Final = 0x12           # the controllers that a namespace is attached to
CONTROLLERS: Final = 0x13           # the controllers of the NVM subsystem
CAPABILITIES: Final = 0x14          # the resources that a primary controller can give to secondary ones
SECONDARIES: Final = 0x15           # the secondary controllers of a primary one
PAGE: Final = 4096                  # bytes of every answer to Identify
_NAMESPACES_A_LIST: Final = PAGE // 4
_SECONDARIES_A_LIST: Final = 127
_LAST_NSID: Final = 0xFFFFFFFD

# Namespace Management and Namespace Attachment: the values of SEL.
_CREATE, _DELETE = 0, 1
_ATTACH, _DETACH = 0, 1
_MOST_CONTROLLERS: Final = PAGE // 2 - 1

# Virtualization Management: the actions on a secondary controller, and the resources that it is given.
OFFLINE: Final = 7
ASSIGN: Final = 8
ONLINE: Final = 9
QUEUES: Final = 0
INTERRUPTS: Final = 1

# Get Log Page: the Sanitize Status log.
_SANITIZE_STATUS: Final = 0x81
_LOG_BYTES: Final = 512
_ANY_NAMESPACE: Final = 0xFFFFFFFF

# Format NVM: the values of the Secure Erase Settings.
NO_ERASURE: Final = 0
USER_DATA: Final = 1
CRYPTOGRAPHIC: Final = 2

# Sanitize: the values of the Sanitize Action.
BLOCK_ERASE: Final = 2
OVERWRITE: Final = 3
CRYPTO_ERASE: Final = 4

# The values for the status of the most recent sanitize operation (SSTAT, bits 2:0).
NEVER: Final = 0
COMPLETED: Final = 1
IN_PROGRESS: Final = 2
FAILED: Final = 3
COMPLETED_DEALLOCATED: Final = 4
_DONE: Final = 0xFFFF               # the value of SPROG when no operation is in progress

_TIMEOUT_S: Final = 30                 # nearly all commands take far less


class CommandRefused(OSError):
    """The controller answered a command with an error. ``errno`` is EIO, and ``status`` is its status code."""

    def __init__(self, command: str, status: int) -> None:
        # Bits 10:8 are the type of the status code, bits 7:0 the code; the rest says whether to retry.
        self.status = status & 0x7FF
        super().__init__(errno.EIO, f'the controller refused {command} with status {self.status:#05x}'
                                    f'{_STATUS.get(self.status, "")}')
        # pickle and oslo.privsep make the error again from these.
        self.args = command, self.status


# The generic and command-specific status codes that operators are likely to meet.
_STATUS: Final = {
    0x001: ' (invalid opcode)', 0x002: ' (invalid field)', 0x00B: ' (invalid namespace or format)',
    0x01C: ' (sanitize failed)', 0x01D: ' (sanitize in progress)', 0x020: ' (namespace is write protected)',
    0x084: ' (format in progress)', 0x10A: ' (invalid format)', 0x115: ' (insufficient capacity)',
    0x116: ' (no identifier is left)', 0x117: ' (sanitize prohibited)', 0x118: ' (namespace already attached)',
    0x119: ' (namespace is private)', 0x11A: ' (namespace not attached)',
    0x11F: ' (invalid controller identifier)', 0x120: ' (invalid secondary controller state)',
    0x121: ' (invalid number of controller resources)', 0x122: ' (invalid resource identifier)',
    0x286: ' (access denied)'}


class Command(ctypes.Structure):
    """``struct nvme_passthru_cmd``. :func:`submit` sets ``addr`` and ``data_len``."""

    _fields_ = [
        ('opcode', ctypes.c_uint8), ('flags', ctypes.c_uint8), ('rsvd1', ctypes.c_uint16), ('nsid', ctypes.c_uint32),
        ('cdw2', ctypes.c_uint32), ('cdw3', ctypes.c_uint32), ('metadata', ctypes.c_uint64), ('addr', ctypes.c_uint64),
        ('metadata_len', ctypes.c_uint32), ('data_len', ctypes.c_uint32), ('cdw10', ctypes.c_uint32),
        ('cdw11', ctypes.c_uint32), ('cdw12', ctypes.c_uint32), ('cdw13', ctypes.c_uint32), ('cdw14', ctypes.c_uint32),
        ('cdw15', ctypes.c_uint32), ('timeout_ms', ctypes.c_uint32), ('result', ctypes.c_uint32)]

    def __init__(self, opcode: int, timeout_s: int = _TIMEOUT_S, **fields: int) -> None:
        super().__init__(opcode=opcode, timeout_ms=timeout_s * 1000, **fields)


# _IOWR('N', 0x41, struct nvme_passthru_cmd) (asm-generic/ioctl.h)
IOCTL: Final = 3 << 30 | ctypes.sizeof(Command) << 16 | ord('N') << 8 | 0x41
RESCAN: Final = ord('N') << 8 | 0x46        # _IO('N', 0x46)


class Controller(NamedTuple):
    """The fields of the Identify Controller data structure that devicetrack uses.

    ``total_bytes`` and ``unallocated_bytes`` are 0 where the controller has no namespace management. ``fna`` has the
    attributes of Format NVM, ``sanicap`` the capabilities of Sanitize. ``cntlid`` is the controller's number in its NVM
    subsystem, and ``is_one_of_several`` says that this subsystem may have more controllers (CMIC).
    ``manages_secondaries`` says that it may have secondary controllers: it has Virtualization Management.

    ``others`` are the numbers of the other controllers of the subsystem, without secondary ones of this one. None: it
    may have some, and the controller does not name them. :func:`.nvme_controllers.read_controller` asks for them, since
    they are not in the structure.
    """

    formats: bool
    manages_namespaces: bool
    total_bytes: int
    unallocated_bytes: int
    sanicap: int
    fna: int
    cntlid: int = 0
    is_one_of_several: bool = False
    manages_secondaries: bool = False
    others: Sequence[int] | None = ()

    @property
    def formats_cryptographically(self) -> bool:
        return bool(self.fna & 1 << 2)

    @property
    def formats_all_at_once(self) -> bool:
        """Whether Format NVM, or the erasure with it, reaches all namespaces, whichever it names."""
        return bool(self.fna & 0b11)

    def sanitizes(self, action: int) -> bool:
        """Whether it can carry out a sanitize action."""
        return bool(self.sanicap & {CRYPTO_ERASE: 1, BLOCK_ERASE: 1 << 1, OVERWRITE: 1 << 2}[action])


class Format(NamedTuple):
    """The layout of a namespace's blocks: the number of the LBA format, and the use of metadata and protection."""

    lbaf: int
    extended: bool = False
    protection: int = 0
    protection_first: bool = False

    def __str__(self) -> str:
        protection = f'p{self.protection}{"f" if self.protection_first else ""}' if self.protection else ''
        return f'{self.lbaf}{"x" if self.extended else ""}{protection}'


class NVMeNamespace(NamedTuple):
    """The fields of the Identify Namespace data structure that devicetrack uses.

    ``blocks`` is 0 for a namespace that does not exist or is not attached. ``zeroes``: blocks that were deallocated
    read as zeroes. ``remaining_percent`` of a format operation is None where the controller does not tell.

    ``attached`` says whether it is attached to the controller that was asked. If not, ``attached_to`` has the numbers
    of the controllers that it is attached to. :func:`.nvme_controllers.read_namespaces` asks for both, since they are
    not in the structure either.
    """

    blocks: int
    block_bytes: int
    format: Format
    shared: bool
    zeroes: bool
    remaining_percent: int | None
    attached: bool = True
    attached_to: Sequence[int] = ()

    @property
    def size_bytes(self) -> int:
        return self.blocks * self.block_bytes


class Resource(NamedTuple):
    """A primary controller's numbers for one sort of flexible resource: queues, or interrupts.

    ``total`` is how many there are, ``primary`` how many of them the primary controller has itself, and ``most`` how
    many one secondary controller can have. They should be given in multiples of ``granularity``.
    """

    is_flexible: bool
    total: int
    primary: int
    most: int
    granularity: int


class Secondary(NamedTuple):
    """A secondary controller: its number, the number of its virtual function from 1, and the resources it was given."""

    cntlid: int
    is_online: bool
    vf: int
    queues: int
    interrupts: int


class SanitizeStatus(NamedTuple):
    """The Sanitize Status log page. ``progress`` goes from 0 to 65535; ``action`` is that of the last operation."""

    progress: int
    status: int
    action: int

    @property
    def is_completed(self) -> bool:
        return self.status in (COMPLETED, COMPLETED_DEALLOCATED) and self.progress == _DONE


def submit(fd: int, command: Command, size: int = 0, data: bytes = b'') -> bytes:
    """Send a command to the controller whose device is open, and wait for its answer. Nothing ends this wait early.

    :param size: how many bytes the controller writes
    :param data: the bytes that the controller reads, for a command where it writes none
    :returns: the bytes that it wrote
    :raises CommandRefused: the controller refused the command
    :raises OSError: EACCES: the kernel refused the command, because this process has no CAP_SYS_ADMIN; else, it was not
        sent, or its outcome is unknown
    """
    buffer = ctypes.create_string_buffer(data or size, len(data) or size) if data or size else None
    command.addr, command.data_len = (ctypes.addressof(buffer), len(buffer)) if buffer is not None else (0, 0)
    status = fcntl.ioctl(fd, IOCTL, command)
    if status:
        raise CommandRefused(_NAMES[command.opcode], status)
    return b'' if buffer is None else buffer.raw


_NAMES: Final = {_GET_LOG_PAGE: 'Get Log Page', _IDENTIFY: 'Identify', _FORMAT_NVM: 'Format NVM',
                 _SANITIZE: 'Sanitize', _NAMESPACE_MANAGEMENT: 'Namespace Management',
                 _NAMESPACE_ATTACHMENT: 'Namespace Attachment',
                 _VIRTUALIZATION_MANAGEMENT: 'Virtualization Management'}


# -- commands ---------------------------------------------------------------------------------------------------------
#
# Each raises OSError as submit() does.


def _identify(fd: int, cns: int, nsid: int = 0, cntlid: int = 0) -> bytes:
    return submit(fd, Command(_IDENTIFY, nsid=nsid, cdw10=cns | cntlid << 16), PAGE)


def identify_controller(fd: int) -> Controller:
    data = _identify(fd, CONTROLLER)
    oacs, = struct.unpack_from('<H', data, 256)
    sanicap, = struct.unpack_from('<I', data, 328)
    manages = bool(oacs & 1 << 3)
    total, unallocated = (int.from_bytes(data[start:start + 16], 'little') if manages else 0 for start in (280, 296))
    cntlid, = struct.unpack_from('<H', data, 78)
    return Controller(bool(oacs & 1 << 1), manages, total, unallocated, sanicap, data[524], cntlid,
                      bool(data[76] & 1 << 1), bool(oacs & 1 << 7))


def identify_namespace(fd: int, nsid: int, cns: int = NAMESPACE) -> NVMeNamespace:
    data = _identify(fd, cns, nsid)
    blocks, = struct.unpack_from('<Q', data, 0)
    flbas, dps, nmic, fpi, dlfeat = data[26], data[29], data[30], data[32], data[33]
    lbaf = flbas & 0xF | (flbas >> 5 & 0b11) << 4
    shift = data[128 + 4 * lbaf + 2]            # 0: the format does not exist
    return NVMeNamespace(
        blocks, 1 << shift if shift else 0, Format(lbaf, bool(flbas & 1 << 4), dps & 0b111, bool(dps & 1 << 3)),
        bool(nmic & 1), dlfeat & 0b111 == 1, fpi & 0x7F if fpi & 1 << 7 else None)


def namespaces(fd: int, cns: int) -> list[int]:
    """List the identifiers of namespaces: :data:`ACTIVE` or :data:`ALLOCATED`."""
    found: list[int] = []
    while True:
        page = [nsid for nsid, in struct.iter_unpack('<I', _identify(fd, cns, found[-1] if found else 0))]
        more = page[:page.index(0)] if 0 in page else page      # a list ends with a zero or is full
        found += more
        if len(more) < _NAMESPACES_A_LIST or found[-1] >= _LAST_NSID:
            return found


def controllers(fd: int) -> list[int]:
    """List the numbers of the controllers of the NVM subsystem."""
    return _numbers(_identify(fd, CONTROLLERS))


def attached_to(fd: int, nsid: int) -> list[int]:
    """List the numbers of the controllers that a namespace is attached to."""
    return _numbers(_identify(fd, ATTACHED_TO, nsid))


def _numbers(data: bytes) -> list[int]:
    count, = struct.unpack_from('<H', data)
    return list(struct.unpack_from(f'<{min(count, _MOST_CONTROLLERS)}H', data, 2))


def secondaries(fd: int) -> list[Secondary]:
    """List the secondary controllers of a primary one."""
    found: list[Secondary] = []
    while True:
        data = _identify(fd, SECONDARIES, cntlid=found[-1].cntlid + 1 if found else 0)
        for number in range(count := min(data[0], _SECONDARIES_A_LIST)):
            cntlid, _primary, state, vf, queues, interrupts = struct.unpack_from('<HHB3xHHH', data, 32 * (number + 1))
            found.append(Secondary(cntlid, bool(state & 1), vf, queues, interrupts))
        if count < _SECONDARIES_A_LIST:
            return found


def capabilities(fd: int) -> dict[int, Resource]:
    """Ask a primary controller what it can give to secondary ones: :data:`QUEUES` and :data:`INTERRUPTS`."""
    data, found = _identify(fd, CAPABILITIES), {}
    for resource, start in ((QUEUES, 32), (INTERRUPTS, 64)):
        total, _assigned, primary, _private, most, granularity = struct.unpack_from('<IIHHHH', data, start)
        found[resource] = Resource(bool(data[4] & 1 << resource), total, primary, most, granularity)
    return found


def virtualize(fd: int, cntlid: int, action: int, resource: int = 0, number: int = 0) -> None:
    """Manage a secondary controller.

    :param action: :data:`OFFLINE`, :data:`ASSIGN` or :data:`ONLINE`
    :param resource: to assign, :data:`QUEUES` or :data:`INTERRUPTS`
    :param number: to assign, how many
    """
    submit(fd, Command(_VIRTUALIZATION_MANAGEMENT, cdw10=action | resource << 8 | cntlid << 16, cdw11=number))


def attach(fd: int, nsid: int, cntlids: Sequence[int], is_to_be: bool) -> None:
    """Attach a namespace to controllers, or detach it."""
    listed = struct.pack(f'<{len(cntlids) + 1}H', len(cntlids), *sorted(cntlids))
    submit(fd, Command(_NAMESPACE_ATTACHMENT, nsid=nsid, cdw10=_ATTACH if is_to_be else _DETACH),
           data=listed.ljust(PAGE, b'\0'))


def create_namespace(fd: int, blocks: int, wanted: Format, shared: bool) -> int:
    """Make a namespace that is attached to no controller, with capacity for all its blocks.

    :param shared: whether it may be attached to several controllers
    :returns: its identifier, which the controller chooses
    """
    # The fields of the Identify Namespace data structure that the host chooses.
    data = bytearray(PAGE)
    struct.pack_into('<QQ', data, 0, blocks, blocks)
    data[26] = wanted.lbaf & 0xF | wanted.extended << 4 | (wanted.lbaf >> 4 & 0b11) << 5
    data[29] = wanted.protection | wanted.protection_first << 3
    data[30] = shared
    command = Command(_NAMESPACE_MANAGEMENT, cdw10=_CREATE)
    submit(fd, command, data=bytes(data))
    return int(command.result)


def delete_namespace(fd: int, nsid: int) -> None:
    """Delete a namespace and all its data, which also detaches it from every controller."""
    submit(fd, Command(_NAMESPACE_MANAGEMENT, nsid=nsid, cdw10=_DELETE))


def format_namespace(fd: int, nsid: int, wanted: Format, erase: int, timeout_s: int) -> None:
    """Format a namespace, and erase its data unless ``erase`` is :data:`NO_ERASURE`. Blocks until that is done."""
    # The lower four bits of the format's number and the upper two are in separate fields.
    submit(fd, Command(_FORMAT_NVM, timeout_s, nsid=nsid, cdw10=(
        (wanted.lbaf & 0xF) | wanted.extended << 4 | wanted.protection << 5 | wanted.protection_first << 8
        | erase << 9 | (wanted.lbaf >> 4 & 0b11) << 12)))


def start_sanitize(fd: int, action: int) -> None:
    """Start to sanitize the whole NVM subsystem. The controller goes on until it is done, even after a power cut.

    The mode is the restricted one: after a failure, only another sanitize operation makes the disk usable again. An
    overwrite makes one pass, with zeroes.
    """
    submit(fd, Command(_SANITIZE, cdw10=action | (1 << 4 if action == OVERWRITE else 0)))


def sanitize_status(fd: int) -> SanitizeStatus:
    progress, status, command = struct.unpack_from('<HHI', submit(fd, Command(
        _GET_LOG_PAGE, nsid=_ANY_NAMESPACE, cdw10=_SANITIZE_STATUS | (_LOG_BYTES // 4 - 1) << 16), _LOG_BYTES))
    return SanitizeStatus(progress, status & 0b111, command & 0b111)


def rescan(fd: int) -> None:
    """Have the driver look again for the namespaces of a controller: not every controller tells it of a change."""
    fcntl.ioctl(fd, RESCAN)
