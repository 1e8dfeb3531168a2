"""Makes every byte of a device zero and proves it, or sees whether every byte is zero.

The program that does jobs (:mod:`.worker`) imports this module and has the standard library alone.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import stat
import struct
import time

from devicetrack.virt.libvirt import progress

# _IO(0x12, 119) and _IO(0x12, 127) of linux/fs.h; both take the first byte and the number of bytes.
BLKDISCARD = 0x1277
BLKZEROOUT = 0x127F
# No device refuses a request of this size, and the progress is reported often enough.
DISCARDED_AT_ONCE = 1 << 30

CHUNK = 16 << 20

Report = Callable[[str, int], None]


class _Device:
    """An open device, whose bytes are read into one buffer."""

    def __init__(self, fd: int, size: int) -> None:
        self._fd, self._size = fd, size
        self._zeros = bytes(CHUNK)
        self._buffer = bytearray(CHUNK)

    def is_zero(self, offset: int, length: int) -> bool:
        """Whether a piece of at most :data:`CHUNK` bytes is zero.

        :raises Failed: the device has become shorter
        """
        piece = memoryview(self._buffer)[:length]
        self._read_into(piece, offset)
        return self._buffer == self._zeros if length == CHUNK else bytes(piece) == bytes(length)

    def _read_into(self, piece: memoryview, offset: int) -> None:
        raise NotImplementedError


class File(_Device):
    """A regular file or a block device. It is zeroed only with writes that cannot change its size."""

    def __init__(self, fd: int, size: int) -> None:
        if os.lseek(fd, 0, os.SEEK_END) != size:            # fstat(2) says nothing of a block device
            raise progress.Failed('its size is not the recorded one')
        if not size:
            raise progress.Failed('it has no bytes that can be read')
        super().__init__(fd, size)

    def prepare(self) -> None:
        """Get ready to zero it: let the next flush say nothing of writes of others.

        If somebody wrote before, and the kernel could not bring it to the device, the next fsync(2) says so, once. An
        example is a write while the controller changes the size of the blocks. It says nothing of what follows.
        """
        with contextlib.suppress(OSError):
            os.fsync(self._fd)

    def zero(self, offset: int, length: int) -> None:
        zeros = memoryview(self._zeros)
        while length:
            written = os.pwrite(self._fd, zeros[:length], offset)
            offset, length = offset + written, length - written

    def discard(self, offset: int, length: int) -> bool:
        """Discard blocks of a block device; False if the device cannot discard."""
        try:
            fcntl.ioctl(self._fd, BLKDISCARD, struct.pack('QQ', offset, length))
        except OSError as error:
            if error.errno in (errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL):
                return False
            raise
        return True

    def zero_out(self, offset: int, length: int) -> None:
        """Have a block device write zeroes itself; if it cannot, the kernel writes them."""
        fcntl.ioctl(self._fd, BLKZEROOUT, struct.pack('QQ', offset, length))

    def flush(self) -> None:
        os.fsync(self._fd)
        self.uncache()

    def uncache(self) -> None:
        """Let bytes that are read come from the disk, not from the cache."""
        os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def next_data(self, offset: int) -> int:
        """Return the first offset from here on that has to be read; the size if there is none.

        The holes of a file need not be read: the file system says that they are zero.
        """
        try:
            return min(self._size, os.lseek(self._fd, offset, os.SEEK_DATA))
        except OSError as error:
            if error.errno == errno.ENXIO:      # nothing but a hole up to the end (lseek(2))
                return self._size
            if error.errno == errno.EINVAL:     # this file system does not tell, nor does a block device
                return offset
            raise

    def _read_into(self, piece: memoryview, offset: int) -> None:
        read = 0
        while read < len(piece):
            got = os.preadv(self._fd, [piece[read:]], offset + read)
            if not got:
                raise progress.Failed('it became shorter while it was read')
            read += got


class Dax(_Device):
    """A device-dax character device. It has no write(2) and no read(2), so it is mapped, in pages of its alignment.

    Stores reach the processor's caches first, and device-dax has no fsync, so a power cut could bring the old bytes
    back. libpmem flushes the caches (pmem_flush(3)). Any QEMU that gives such devices to guests needs libpmem too.
    """

    def __init__(self, fd: int, size: int, align: int) -> None:
        super().__init__(fd, size)
        self._align = max(align, mmap.ALLOCATIONGRANULARITY)

    def prepare(self) -> None:
        """Get ready to zero it.

        :raises Failed: the zeroes cannot be made durable
        """
        try:
            self._libpmem = ctypes.CDLL('libpmem.so.1')
        except OSError:
            raise progress.Failed('libpmem is not there to make the zeroes durable') from None
        self._libpmem.pmem_memset_persist.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)
        self._libpmem.pmem_memset_persist.restype = ctypes.c_void_p

    def zero(self, offset: int, length: int) -> None:
        with self._mapped(offset, length, mmap.PROT_READ | mmap.PROT_WRITE) as (mapped, start):
            first = ctypes.c_char.from_buffer(mapped)
            try:
                self._libpmem.pmem_memset_persist(ctypes.addressof(first) + start, 0, length)
            finally:
                del first    # a mapping with a pointer into it cannot be closed

    def flush(self) -> None:
        """Do nothing: :meth:`zero` makes every piece durable."""

    def uncache(self) -> None:
        """Do nothing: a mapping has no cache."""

    def next_data(self, offset: int) -> int:
        return offset

    def _read_into(self, piece: memoryview, offset: int) -> None:
        with self._mapped(offset, len(piece), mmap.PROT_READ) as (mapped, start), memoryview(mapped) as view, \
                view[start:start + len(piece)] as found:
            piece[:] = found

    @contextlib.contextmanager
    def _mapped(self, offset: int, length: int, access: int) -> Iterator[tuple[mmap.mmap, int]]:
        """Map the pages around a piece, and say where in the mapping it begins. A page may be larger than the piece."""
        start = offset // self._align * self._align
        end = min(-(-(offset + length) // self._align) * self._align, self._size)
        # Populate the mapping at once: one call instead of a fault for each page.
        with mmap.mmap(self._fd, end - start, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE, prot=access,
                       offset=start) as mapped:
            yield mapped, offset - start


def device(fd: int, size: int, align: int) -> File | Dax:
    """Take an open regular file, block device or device-dax character device.

    :param align: as for :func:`devicetrack.virt.libvirt.jobs.wipe`
    :raises Failed: it has another size
    :raises OSError: it is not open
    """
    return Dax(fd, size, align) if stat.S_ISCHR(os.fstat(fd).st_mode) else File(fd, size)


def wipe(device: File | Dax, size: int, rate: int, report: Report, clock: Callable[[], float] = time.monotonic,
         sleep: Callable[[float], None] = time.sleep, how: str = progress.ZERO) -> None:
    """Zero ``size`` bytes and read every one back, at most ``rate`` bytes a second (0: no limit).

    :param how: ``zero``: write zeroes. ``discard``: first tell a block device to discard its blocks. A device may
        choose what these read as, so if a byte is not zero then, or if the device cannot discard, it writes zeroes
        instead, and every byte is read again. ``read``: only read the bytes back, after a controller erased them
    :raises Failed: a byte is not zero
    :raises OSError: the device cannot be written or read
    """
    piece = _piece(rate)

    def pieces(phase: str, most: int) -> Iterator[tuple[int, int]]:
        started = clock()
        for offset in range(0, size, most):
            length = min(most, size - offset)
            yield offset, length
            report(phase, offset + length)
            if rate:
                sleep(max(0.0, started + (offset + length) / rate - clock()))

    def verify() -> None:
        device.flush()
        for offset, length in pieces('verify', piece):
            _check_zero(device, offset, length)

    device.prepare()
    if how == progress.DISCARD:
        if not isinstance(device, File):
            raise progress.Failed('only a block device can be discarded')
        # A discarded block reads the same until it is written again (NVM Command Set Specification, "Deallocated or
        # Unwritten Logical Blocks"), so reading zeroes once is a proof.
        if all(device.discard(*one) for one in pieces('discard', DISCARDED_AT_ONCE)):
            with contextlib.suppress(progress.Failed):
                verify()
                return
        for one in pieces('zero', DISCARDED_AT_ONCE):
            device.zero_out(*one)
    elif how == progress.ZERO:
        for offset, length in pieces('zero', piece):
            device.zero(offset, length)
    verify()


def read_through(device: File | Dax, size: int, rate: int, report: Report,
                 clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep) -> None:
    """See that ``size`` bytes are zero, and read at most ``rate`` bytes a second (0: no limit). This writes nothing.

    :raises Failed: a byte is not zero
    :raises OSError: the device cannot be read
    """
    piece = _piece(rate)
    device.uncache()
    started, read, offset = clock(), 0, device.next_data(0)
    while offset < size:
        length = min(piece, size - offset)
        _check_zero(device, offset, length)
        read, offset = read + length, offset + length
        if offset < size:
            offset = device.next_data(offset)
        report(progress.READ, offset)
        if rate:
            sleep(max(0.0, started + read / rate - clock()))


def _piece(rate: int) -> int:
    """Return how much to read or write at once. With a rate the pieces are small, so that it holds at any moment."""
    return min(CHUNK, max(1, rate // 10 // 4096) * 4096) if rate else CHUNK


def _check_zero(device: File | Dax, offset: int, length: int) -> None:
    if not device.is_zero(offset, length):
        raise progress.Failed(f'not all zero between bytes {offset} and {offset + length}')
