"""Starts the reader of a namespace, follows it, and judges its output."""

from __future__ import annotations

import logging
import queue
import subprocess
import sys
import threading
from typing import Any
from typing import Final

from devicetrack import exception
from devicetrack import log
from devicetrack import threads
from devicetrack.objects import values
from devicetrack.virt.libvirt import children
from devicetrack.virt.libvirt import reader
from devicetrack.virt.libvirt import wiper

LOG = log.logger(__name__)

STOPPED: Final = 'reading it was stopped'
_LOOK_S: Final = 0.5                            # how often to look whether to stop


def read_through(name: str, device_fd: int, lock_fd: int, size_bytes: int, align_bytes: int, rate_mib_s: int,
                 stop: threading.Event) -> str | None:
    """Read a device in a child process, and check that every byte is zero. Blocks until the child ends or has to stop.

    The device is a regular file, whose holes count as zeroes, a block device or a device-dax character device.

    The child inherits the device and the lock, writes nothing, and ends soon after this process. This process writes
    the progress into the lock file.

    :param name: the device's name in the log
    :param device_fd: open for reading. The caller closes it
    :param lock_fd: of the lock, as :meth:`.api.DeviceKind.read_through` gets it
    :param size_bytes: the recorded size. A file or block device of another size is not clean
    :param align_bytes: as for :func:`devicetrack.virt.libvirt.wiping.wipe`
    :param rate_mib_s: how many MiB a second the child reads at most; 0 for no limit
    :param stop: once it is set, the child is ended
    :returns: why the device is not clean, or None if it is
    :raises CommandFailed: the child cannot be run
    """
    command = (sys.executable, '-I', '-S', reader.__file__,
               '--device-fd', str(device_fd), '--lock-fd', str(lock_fd), '--size', str(size_bytes),
               '--align', str(align_bytes), '--rate', str(rate_mib_s << 20))
    shown = wiper.Reporter(size_bytes, wiper.lock_file(lock_fd, device_fd), quiet=True)
    LOG.info('Reading namespace %s of %d bytes through.', name, size_bytes)
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                 pass_fds=(device_fd, lock_fd), env={}, cwd='/')
    except OSError as error:
        raise exception.CommandFailed('the reader', f'cannot be run: {error.strerror}') from error
    try:
        last = _follow(child, stop, _Teller(name, size_bytes, shown))
    except threads.NotStarted as error:
        raise exception.CommandFailed('the reader', f'cannot be followed: {error.strerror}') from error
    finally:
        if not children.kill(child):
            LOG.warning('The reader of namespace %s (process %d) was killed and has not ended: the kernel blocks it. '
                        'It writes nothing, and keeps the namespace locked.', name, child.pid)
        shown.end()
    if stop.is_set():
        return STOPPED
    if child.returncode == 0 and last == {'phase': 'zero', 'done': size_bytes, 'of': size_bytes}:
        LOG.info('Namespace %s is clean: %d bytes were read, and all are zero.', name, size_bytes)
        return None
    return str(last.get('reason') or f'the reader {children.end(child.returncode)}')


class _Teller:
    """Reports the child's progress in the log and in the lock file."""

    def __init__(self, name: str, size_bytes: int, shown: wiper.Reporter) -> None:
        self._name, self._size_bytes, self._shown = name, size_bytes, shown
        self._told: dict[str, Any] = {}

    def tell(self, line: dict[str, Any]) -> None:
        done = line.get('done')
        if line.get('phase') != values.READ or not isinstance(done, int):
            return
        self._shown(values.READ, done)
        news = children.is_news(line, self._told, self._size_bytes)
        LOG.log(logging.INFO if news else logging.DEBUG, 'Reading namespace %s: %d of %d bytes.',
                self._name, done, self._size_bytes)
        self._told = line if news else self._told


def _follow(child: subprocess.Popen[bytes], stop: threading.Event, teller: _Teller) -> dict[str, Any]:
    """Read the child's output until it ends or has to stop; return the last line.

    The child says something every second, unless the kernel blocks it. So another thread reads: in a process that
    eventlet has patched there is no select.poll(), and pipes have no read1().
    """
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    listener = threads.Thread('devicetrack-reading', _listen, (child, lines))
    listener.start()
    last: dict[str, Any] = {}
    while not stop.is_set():
        try:
            line = lines.get(timeout=_LOOK_S)
        except queue.Empty:
            if listener.is_alive():
                continue
            break                               # it found no memory
        if not line:
            child.wait()
            break
        last = children.read(line)
        teller.tell(last)
    return last


def _listen(child: subprocess.Popen[bytes], lines: queue.SimpleQueue[bytes]) -> None:
    """Pass on the lines of the child's output, and an empty one at its end."""
    assert child.stdout is not None
    try:
        for line in child.stdout:
            lines.put(line)
    finally:
        child.stdout.close()
        lines.put(b'')
