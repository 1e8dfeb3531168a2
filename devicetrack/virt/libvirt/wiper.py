"""The program that zeroes a namespace and proves that it is zero: one process for one namespace.

It is a process of its own so that it can outlive the service. It inherits the descriptors of the device and of the lock
file, and as long as it runs nobody else can take the lock. It imports nothing of the project and is started by its
path, so an upgrade in the middle of a wipe does not affect it. On standard output it writes one JSON object a line::

    {"phase": "zero", "done": 67108864, "of": 130023424}
    {"phase": "verify", "done": 67108864, "of": 130023424}
    {"phase": "clean", "done": 130023424, "of": 130023424}

The last line and exit status 0 together are the proof: after the last byte was written, every byte was read back and is
zero. With ``--how discard`` the wiper first tells a block device to discard its blocks. A device may choose what a
discarded block reads as. So if a byte is not zero after that, or if the device cannot discard, the wiper has the device
write zeroes instead, and reads every byte again. With ``--how read`` the wiper only reads the bytes back, after a
controller erased them. The wiper goes on if the process that reads its output goes away.
``{"phase": "failed", "reason": …}`` and status 1 say that the namespace is not clean.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import ctypes
import errno
import fcntl
import json
import mmap
import os
import stat
import struct
import sys
import time

# The ways to zero a device.
ZERO = 'zero'
DISCARD = 'discard'
READ = 'read'
WAYS = (ZERO, DISCARD, READ)

# _IO(0x12, 119) and _IO(0x12, 127) of linux/fs.h; both take the first byte and the number of bytes.
BLKDISCARD = 0x1277
BLKZEROOUT = 0x127F
# No device refuses a request of this size, and the progress is reported often enough.
DISCARDED_AT_ONCE = 1 << 30

CHUNK = 16 << 20
REPORT_EVERY_S = 1.0
LINE = 512


class Unproven(Exception):
    """The device is not clean, or nothing shows that it is."""


class File:
    """A regular file or a block device. The wiper zeroes it only with writes that cannot change its size."""

    def __init__(self, fd: int, size: int) -> None:
        if os.lseek(fd, 0, os.SEEK_END) != size:            # fstat(2) says nothing of a block device
            raise Unproven('its size is not the recorded one')
        if not size:
            raise Unproven('it has no bytes that can be written or read')
        self._fd = fd
        # If somebody wrote before, and the kernel could not bring it to the device, the next fsync(2) says so, once.
        # An example is a write while the controller changes the size of the blocks. It says nothing of what follows.
        with contextlib.suppress(OSError):
            os.fsync(fd)
        self._zeros = memoryview(bytes(CHUNK))
        self._buffer = bytearray(CHUNK)

    def zero(self, offset: int, length: int) -> None:
        while length:
            written = os.pwrite(self._fd, self._zeros[:length], offset)
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
        # With this the bytes are read back from the disk, not from the cache.
        os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def is_zero(self, offset: int, length: int) -> bool:
        view = memoryview(self._buffer)[:length]
        read = 0
        while read < length:
            got = os.preadv(self._fd, [view[read:]], offset + read)
            if not got:
                raise Unproven('it became shorter while it was read')
            read += got
        if length == len(self._zeros):
            return self._buffer == self._zeros.obj
        return bytes(view) == bytes(length)


class Dax:
    """A device-dax character device. It has no write(2), so it is mapped, in whole pages of its alignment.

    Stores reach the processor's caches first, and device-dax has no fsync, so a power cut could bring the old bytes
    back. libpmem flushes the caches (pmem_flush(3)). Any QEMU that gives such devices to guests needs libpmem too.
    """

    def __init__(self, fd: int, size: int, align: int) -> None:
        self._fd, self._size = fd, size
        self._align = max(align, mmap.ALLOCATIONGRANULARITY)
        self._zeros = bytes(CHUNK)
        try:
            self._libpmem = ctypes.CDLL('libpmem.so.1')
        except OSError:
            raise Unproven('libpmem is not there to make the zeroes durable') from None
        self._libpmem.pmem_memset_persist.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)
        self._libpmem.pmem_memset_persist.restype = ctypes.c_void_p
        self._memcmp = ctypes.CDLL(None).memcmp
        self._memcmp.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t)

    def zero(self, offset: int, length: int) -> None:
        with self._mapped(offset, length) as address:
            self._libpmem.pmem_memset_persist(address, 0, length)

    def flush(self) -> None:
        """Do nothing: :meth:`zero` makes every piece durable."""

    def is_zero(self, offset: int, length: int) -> bool:
        with self._mapped(offset, length) as address:
            return not self._memcmp(address, self._zeros, length)

    @contextlib.contextmanager
    def _mapped(self, offset: int, length: int) -> Iterator[int]:
        """Map the pages around a piece and give the piece's address. A page may be much larger than the piece."""
        start = offset // self._align * self._align
        end = min(-(-(offset + length) // self._align) * self._align, self._size)
        # Populate the mapping at once: one call instead of a fault for each page.
        with mmap.mmap(self._fd, end - start, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE, offset=start) as mapped:
            first = ctypes.c_char.from_buffer(mapped)
            try:
                yield ctypes.addressof(first) + offset - start
            finally:
                del first    # a mapping with a pointer into it cannot be closed


def started_at(pid: int) -> int:
    """Return a process's start time in clock ticks (proc_pid_stat(5)). A later process of the same number has another.

    :raises OSError: there is no such process, or it has ended
    """
    with open(f'/proc/{pid}/stat') as file:
        fields = file.read().rpartition(')')[2].split()
    if fields[0] in ('Z', 'X'):
        raise ProcessLookupError(pid)
    return int(fields[19])


def wipe(device: File | Dax, size: int, rate: int, report: Callable[[str, int], None],
         clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep,
         how: str = ZERO) -> None:
    """Zero ``size`` bytes and read every one back, at most ``rate`` bytes a second (0: no limit).

    :param how: one of :data:`WAYS`; only a block device can be discarded
    :raises Unproven: a byte is not zero
    :raises OSError: the device cannot be written or read
    """
    # With a rate limit the pieces are small, so that the limit holds at any moment.
    piece = min(CHUNK, max(1, rate // 10 // 4096) * 4096) if rate else CHUNK

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
            if not device.is_zero(offset, length):
                raise Unproven(f'not all zero between bytes {offset} and {offset + length}')

    if how == DISCARD:
        if not isinstance(device, File):
            raise Unproven('only a block device can be discarded')
        # A discarded block reads the same until it is written again (NVM Command Set Specification, "Deallocated or
        # Unwritten Logical Blocks"), so reading zeroes once is a proof.
        if all(device.discard(*one) for one in pieces('discard', DISCARDED_AT_ONCE)):
            with contextlib.suppress(Unproven):
                verify()
                return
        for one in pieces('zero', DISCARDED_AT_ONCE):
            device.zero_out(*one)
    elif how == ZERO:
        for offset, length in pieces('zero', piece):
            device.zero(offset, length)
    verify()


class Reporter:
    """Writes progress, once a second and at the end of a phase. It goes on when nobody reads it any more.

    It writes to standard output, for the process that started the wiper, and into the lock file, for everybody else: a
    command, or a manager that starts while the wiper of an earlier one goes on. The line in the lock file also has the
    rate, the time left and the number of this process. A reader needs that number, because it must not take the lock
    to see whether anybody has it.
    """

    def __init__(self, size: int, lock_fd: int | None = None, quiet: bool = False) -> None:
        """``quiet``: write nothing to standard output, for a caller that is not a separate program."""
        self._size, self._lock_fd, self._next, self._gone = size, lock_fd, 0.0, quiet
        self._process = {'pid': os.getpid(), 'started': 0}
        with contextlib.suppress(OSError):      # without it nobody else sees the progress
            self._process['started'] = started_at(os.getpid())
        self._began = time.monotonic()

    def __call__(self, phase: str, done: int) -> None:
        now = time.monotonic()
        if now >= self._next or done == self._size:
            self._next = now + REPORT_EVERY_S
            self.write({'phase': phase, 'done': done, 'of': self._size})
            self._tell(phase, done, now)
        if done == self._size:
            self._began = now                   # the start of the next phase

    def _tell(self, phase: str, done: int, now: float) -> None:
        if self._lock_fd is None:
            return
        rate = int(done / max(now - self._began, 0.001))
        to_do = self._size - done + (self._size if phase in (ZERO, DISCARD) else 0)
        line = json.dumps({**self._process, 'phase': phase, 'done': done, 'of': self._size, 'rate': rate,
                           'left': to_do // rate if rate else None})
        # Write a line of constant length in one call, so that a reader sees either the old line or the new one.
        with contextlib.suppress(OSError):
            os.pwrite(self._lock_fd, line.ljust(LINE).encode(), 0)

    def end(self) -> None:
        """Remove the progress from the lock file."""
        if self._lock_fd is not None:
            with contextlib.suppress(OSError):
                os.ftruncate(self._lock_fd, 0)

    def write(self, line: dict[str, object]) -> None:
        if self._gone:
            return
        try:
            os.write(sys.stdout.fileno(), (json.dumps(line) + '\n').encode())
        except OSError:
            self._gone = True


def lock_file(lock_fd: int, device_fd: int) -> int | None:
    """Return the lock's descriptor if it is a file of its own, into which progress may be written; None if it is not.

    :raises OSError: one of them is not open
    """
    lock, device = os.fstat(lock_fd), os.fstat(device_fd)
    return lock_fd if stat.S_ISREG(lock.st_mode) and not os.path.samestat(lock, device) else None


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description='Zero a namespace and prove it.')
    parser.add_argument('--device-fd', type=int, required=True)
    parser.add_argument('--lock-fd', type=int, required=True, help='held open until the end; progress is written there')
    parser.add_argument('--size', type=int, required=True, help='in bytes')
    parser.add_argument('--align', type=int, required=True, help='in bytes')
    parser.add_argument('--rate', type=int, default=0, help='in bytes a second')
    parser.add_argument('--how', choices=WAYS, default=ZERO)
    options = parser.parse_args(arguments)
    reporter = Reporter(options.size)
    try:
        reporter = Reporter(options.size, lock_file(options.lock_fd, options.device_fd))
        character = stat.S_ISCHR(os.fstat(options.device_fd).st_mode)
        device = Dax(options.device_fd, options.size, options.align) if character \
            else File(options.device_fd, options.size)
        wipe(device, options.size, options.rate, reporter, how=options.how)
    except Unproven as error:
        reporter.write({'phase': 'failed', 'reason': str(error)})
        return 1
    except OSError as error:
        reporter.write({'phase': 'failed', 'reason': error.strerror or 'an error of the device'})
        return 1
    finally:
        reporter.end()
    reporter.write({'phase': 'clean', 'done': options.size, 'of': options.size})
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
