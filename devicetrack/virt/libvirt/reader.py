"""The program that reads a namespace through, to see that every byte is zero: one process for one namespace.

It is a process of its own because a bad block of a device ends it (SIGBUS), and because reading takes long. It has the
device open for reading only, and has the descriptor of the device's lock, so that nobody gives the device to a guest
while it reads. It ends soon after the process that started it, because then nobody reads its output. It imports nothing
of the project and is started by its path. On standard output it writes one JSON object a line::

    {"phase": "read", "done": 67108864, "of": 130023424}
    {"phase": "zero", "done": 130023424, "of": 130023424}

The last line and exit status 0 together say that every byte is zero. ``{"phase": "failed", "reason": …}`` and status 1
say that a byte is not zero, or that it is unknown.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
import errno
import json
import mmap
import os
import stat
import sys
import time

CHUNK = 16 << 20
REPORT_EVERY_S = 1.0


class NotZero(Exception):
    """A byte is not zero, or nothing shows that all are."""


class File:
    """A regular file or a block device. A file's holes are not read: the file system says that they are zero."""

    def __init__(self, fd: int, size: int) -> None:
        if os.lseek(fd, 0, os.SEEK_END) != size:            # fstat(2) says nothing of a block device
            raise NotZero('its size is not the recorded one')
        if not size:
            raise NotZero('it has no bytes that can be read')
        self._fd, self._size = fd, size
        # With this the bytes come from the disk, not from the cache.
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def next_data(self, offset: int) -> int:
        """Return the first offset from here on that has to be read; the size if there is none."""
        try:
            return min(self._size, os.lseek(self._fd, offset, os.SEEK_DATA))
        except OSError as error:
            if error.errno == errno.ENXIO:      # nothing but a hole up to the end (lseek(2))
                return self._size
            if error.errno == errno.EINVAL:     # this file system does not tell
                return offset
            raise

    def read(self, offset: int, length: int) -> bytes:
        return os.pread(self._fd, length, offset)


class Dax:
    """A device-dax character device. It has no read(2), so it is mapped, for reading alone."""

    def __init__(self, fd: int, size: int, align: int) -> None:
        self._fd, self._size = fd, size
        self._align = max(align, mmap.ALLOCATIONGRANULARITY)

    def next_data(self, offset: int) -> int:
        return offset

    def read(self, offset: int, length: int) -> bytes:
        start = offset // self._align * self._align
        end = min(-(-(offset + length) // self._align) * self._align, self._size)
        with mmap.mmap(self._fd, end - start, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ, offset=start) as mapped:
            return mapped[offset - start:offset - start + length]


def read_through(device: File | Dax, size: int, rate: int, report: Callable[[int], None],
                 clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep) -> None:
    """Read ``size`` bytes, at most ``rate`` bytes a second (0: no limit).

    :raises NotZero: a byte is not zero
    :raises OSError: the device cannot be read, or nobody reads the progress any more
    """
    piece = min(CHUNK, max(1, rate // 10 // 4096) * 4096) if rate else CHUNK
    zeros = bytes(piece)
    started, done, offset = clock(), 0, device.next_data(0)
    while offset < size:
        wanted = min(piece, size - offset)
        found = device.read(offset, wanted)
        if not found:
            raise NotZero('it became shorter while it was read')
        if found != (zeros if len(found) == piece else zeros[:len(found)]):
            raise NotZero(f'not all zero between bytes {offset} and {offset + len(found)}')
        done, offset = done + len(found), device.next_data(offset + len(found)) if offset + len(found) < size else size
        report(offset)
        if rate:
            sleep(max(0.0, started + done / rate - clock()))


class Reporter:
    """Writes progress, once a second."""

    def __init__(self, size: int) -> None:
        self._size, self._next = size, 0.0

    def __call__(self, done: int) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + REPORT_EVERY_S
            self.write({'phase': 'read', 'done': done, 'of': self._size})

    def write(self, line: dict[str, object]) -> None:
        os.write(sys.stdout.fileno(), (json.dumps(line) + '\n').encode())


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description='Read a namespace through, to see that every byte is zero.')
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
        read_through(device, options.size, options.rate, reporter)
    except NotZero as error:
        reporter.write({'phase': 'failed', 'reason': str(error)})
        return 1
    except OSError as error:
        reporter.write({'phase': 'failed', 'reason': error.strerror or 'an error of the device'})
        return 1
    reporter.write({'phase': 'zero', 'done': options.size, 'of': options.size})
    return 0


if __name__ == '__main__':
    try:
        sys.exit(main(sys.argv[1:]))
    except BrokenPipeError:
        os._exit(1)
