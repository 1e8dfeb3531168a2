"""The program that zeroes a namespace and proves it: one process for one namespace.

It is a process of its own so that it can outlive the service: the descriptors of the device and of the lock file
are inherited, and as long as it runs nobody else can take the lock. It imports nothing of the project and is
started by its path, so that an upgrade in the middle of a wipe does not touch it. On standard output it writes
one JSON object a line::

    {"phase": "zero", "done": 67108864, "of": 130023424}
    {"phase": "verify", "done": 67108864, "of": 130023424}
    {"phase": "clean", "done": 130023424, "of": 130023424}

The last line and exit status 0 together are the proof: every byte was read back after the last was written and
is zero. A reader that went away does not stop it. ``{"phase": "failed", "reason": …}`` and status 1 say that it
is not clean.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
import ctypes
import json
import mmap
import os
import stat
import sys
import time

CHUNK = 16 << 20
REPORT_EVERY_S = 1.0


class Unproven(Exception):
    """The device is not clean, or nothing shows that it is."""


class File:
    """A regular file: zeroed by writing, and by nothing that could change its size."""

    def __init__(self, fd: int, size: int) -> None:
        if os.fstat(fd).st_size != size:
            raise Unproven('its size is not the recorded one')
        self._fd = fd
        self.chunk = CHUNK
        self._zeros = memoryview(bytes(CHUNK))
        self._buffer = bytearray(CHUNK)

    def zero(self, offset: int, length: int) -> None:
        while length:
            written = os.pwrite(self._fd, self._zeros[:length], offset)
            offset, length = offset + written, length - written

    def flush(self) -> None:
        os.fsync(self._fd)
        # What is read back shall come from where it was written to.
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
    """A device-dax character device, which has no write(2): it is mapped, in pieces of its alignment.

    Stores reach the processor's caches first, and device-dax has no fsync; a power cut would bring the old bytes
    back. libpmem flushes them (pmem_flush(3)). It comes with any QEMU that gives such devices to guests.
    """

    def __init__(self, fd: int, size: int, align: int) -> None:
        self._fd = fd
        align = max(align, mmap.ALLOCATIONGRANULARITY)
        self.chunk = -(-CHUNK // align) * align
        try:
            self._libpmem = ctypes.CDLL('libpmem.so.1')
        except OSError:
            raise Unproven('libpmem is not there to make the zeroes durable') from None
        self._libpmem.pmem_memset_persist.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)
        self._libpmem.pmem_memset_persist.restype = ctypes.c_void_p
        self._memcmp = ctypes.CDLL(None).memcmp
        self._memcmp.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t)

    def zero(self, offset: int, length: int) -> None:
        with self._mapped(offset, length) as mapped:
            first = ctypes.c_char.from_buffer(mapped)
            try:
                self._libpmem.pmem_memset_persist(ctypes.addressof(first), 0, length)
            finally:
                del first    # a mapping with a pointer into it cannot be closed

    def flush(self) -> None:
        """Every piece is durable when it was zeroed."""

    def is_zero(self, offset: int, length: int) -> bool:
        zeros = bytes(CHUNK)
        with self._mapped(offset, length) as mapped:
            first = ctypes.c_char.from_buffer(mapped)
            try:
                return not any(self._memcmp(ctypes.addressof(first) + at, zeros, min(CHUNK, length - at))
                               for at in range(0, length, CHUNK))
            finally:
                del first

    def _mapped(self, offset: int, length: int) -> mmap.mmap:
        # Populated at once: one call instead of a fault for each page.
        return mmap.mmap(self._fd, length, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE, offset=offset)


def wipe(device: File | Dax, size: int, rate: int, report: Callable[[str, int], None],
         clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep) -> None:
    """Zero ``size`` bytes, at most ``rate`` bytes a second (0: as fast as it goes), and read every one back.

    :raises Unproven: a byte is not zero
    :raises OSError: the device cannot be written or read
    """
    # With a rate, pieces are small enough for it to be felt.
    chunk = device.chunk
    if rate and not isinstance(device, Dax):
        chunk = min(chunk, max(1, rate // 10 // 4096) * 4096)
    started = clock()
    for offset in range(0, size, chunk):
        device.zero(offset, min(chunk, size - offset))
        done = min(offset + chunk, size)
        report('zero', done)
        if rate:
            sleep(max(0.0, started + done / rate - clock()))
    device.flush()
    for offset in range(0, size, device.chunk):
        length = min(device.chunk, size - offset)
        if not device.is_zero(offset, length):
            raise Unproven(f'not all zero between bytes {offset} and {offset + length}')
        report('verify', offset + length)


class Reporter:
    """Writes progress, once a second and at the end of a phase; a reader that is gone is no reason to stop."""

    def __init__(self, size: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._size, self._clock, self._next, self._gone = size, clock, 0.0, False

    def __call__(self, phase: str, done: int) -> None:
        now = self._clock()
        if now >= self._next or done == self._size:
            self._next = now + REPORT_EVERY_S
            self.write({'phase': phase, 'done': done, 'of': self._size})

    def write(self, line: dict[str, object]) -> None:
        if self._gone:
            return
        try:
            os.write(sys.stdout.fileno(), (json.dumps(line) + '\n').encode())
        except OSError:
            self._gone = True


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description='Zero a namespace and prove it.')
    parser.add_argument('--device-fd', type=int, required=True)
    parser.add_argument('--lock-fd', type=int, required=True, help='held open until the end, and otherwise unused')
    parser.add_argument('--size', type=int, required=True, help='in bytes')
    parser.add_argument('--align', type=int, required=True, help='in bytes')
    parser.add_argument('--rate', type=int, default=0, help='in bytes a second')
    options = parser.parse_args(arguments)
    reporter = Reporter(options.size)
    try:
        os.fstat(options.lock_fd)
        character = stat.S_ISCHR(os.fstat(options.device_fd).st_mode)
        device = Dax(options.device_fd, options.size, options.align) if character \
            else File(options.device_fd, options.size)
        wipe(device, options.size, options.rate, reporter)
    except Unproven as error:
        reporter.write({'phase': 'failed', 'reason': str(error)})
        return 1
    except OSError as error:
        reporter.write({'phase': 'failed', 'reason': error.strerror or 'an error of the device'})
        return 1
    reporter.write({'phase': 'clean', 'done': options.size, 'of': options.size})
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
