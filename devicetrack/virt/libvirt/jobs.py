"""Has the program :mod:`.worker` do jobs on devices: starts it, follows it, stops it, and judges its outcome.

The program inherits the devices and their locks, and a job that changes a device goes on when this process dies. Then
the lock lasts until its last write, and :func:`progress_of` finds it and says how far it is. The next service waits for
the lock. It does not take over the outcome, but has the job done anew: nobody has looked meanwhile who uses the device.
The program has a session of its own, so a signal for this process's group does not reach it.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import errno
import json
import logging
import os
import select
import subprocess
import sys
import threading
from typing import Any
from typing import Final

import devicetrack
from devicetrack import exception
from devicetrack import log
from devicetrack.objects.values import WipeProgress
from devicetrack.virt.libvirt import children
from devicetrack.virt.libvirt import progress
from devicetrack.virt.libvirt import worker

LOG = log.logger(__name__)

STOPPED: Final = 'reading it was stopped'

# The directory of the project. It is last on the program's path, so that nothing beside the project hides the standard
# library.
_PROJECT: Final = os.path.dirname(os.path.dirname(os.path.abspath(devicetrack.__file__)))
_START: Final = ('import importlib, sys; sys.path.append(sys.argv.pop(1)); '
                 'sys.exit(importlib.import_module(sys.argv.pop(1)).main(sys.argv[1:]))')
_LOOK_S: Final = 0.5                            # how often to look whether to stop
_LINES_A_PHASE: Final = 20


def wipe(name: str, device_fd: int, lock_fd: int, size_bytes: int, align_bytes: int, rate_mib_s: int,
         how: str = progress.ZERO) -> None:
    """Zero a device in a child process and wait for its proof. Blocks as long as the wipe takes.

    The device is a regular file, a block device or a device-dax character device. After this the caller need not flush
    or read. Before the call, the caller checks that ``device_fd`` is the intended device.

    :param name: the device's name in the log
    :param device_fd: open for reading and writing, without ``O_APPEND``. The caller closes it
    :param lock_fd: of the lock, as :meth:`.api.DeviceKind.unclaim` gets it. The child writes its progress there
    :param size_bytes: the recorded size. If a file or block device has another size, nothing is written
    :param align_bytes: the alignment of a device-dax device, which can be mapped only in whole units of it; 0 for
        others
    :param rate_mib_s: how many MiB a second the child writes, and then reads, at most; 0 for no limit
    :param how: ``zero``: write zeroes; ``discard``: discard the blocks of a block device; ``read``: only read the
        zeroes that something else made
    :raises CommandFailed: nothing proves that the device is clean
    """
    try:
        _do(worker.WIPE, f'Wiping namespace {name}', (lock_fd, device_fd), size_bytes, align=align_bytes,
            rate=rate_mib_s << 20, how=how)
    except progress.Failed as error:
        raise exception.CommandFailed('the wiper', str(error)) from error
    LOG.info('Namespace %s is clean: %d bytes were zeroed and read back.', name, size_bytes)


def read_through(name: str, device_fd: int, lock_fd: int, size_bytes: int, align_bytes: int, rate_mib_s: int,
                 stop: threading.Event) -> str | None:
    """Read a device in a child process, and check that every byte is zero. Blocks until the child ends or has to stop.

    The device is a regular file, whose holes count as zeroes, a block device or a device-dax character device. The
    child writes nothing to it, and ends soon after this process.

    :param name: the device's name in the log
    :param device_fd: open for reading. The caller closes it
    :param lock_fd: of the lock, as :meth:`.api.DeviceKind.read_through` gets it. The child writes its progress there
    :param size_bytes: the recorded size. A file or block device of another size is not clean
    :param align_bytes: as for :func:`wipe`
    :param rate_mib_s: how many MiB a second the child reads at most; 0 for no limit
    :param stop: once it is set, the child is ended
    :returns: why the device is not clean, or None if it is
    :raises CommandFailed: the child cannot be run
    """
    try:
        _do(worker.READ, f'Reading namespace {name}', (lock_fd, device_fd), size_bytes, stop, align=align_bytes,
            rate=rate_mib_s << 20)
    except _NotRun as error:
        raise exception.CommandFailed('the reader', str(error)) from error
    except progress.Failed as error:
        return str(error)
    LOG.info('Namespace %s is clean: %d bytes were read, and all are zero.', name, size_bytes)
    return None


def format_namespace(name: str, controller_fd: int, disk_fds: Sequence[int], lock_fd: int, nsid: int,
                     wanted: Sequence[Any], erase: int, timeout_s: int, size_bytes: int) -> None:
    """Have a child process format a namespace of an NVMe controller. Blocks until the controller has formatted it.

    :param wanted: a :class:`.nvme_admin.Format`
    :raises OSError: the controller did not format it, or nothing shows whether it did
    """
    try:
        _do(worker.FORMAT, f'Formatting namespace {name}', (lock_fd, controller_fd, *disk_fds), size_bytes, nsid=nsid,
            wanted=list(wanted), erase=erase, timeout_s=timeout_s)
    except progress.Failed as error:
        raise OSError(errno.EIO, str(error)) from error
    LOG.info('The controller of namespace %s has formatted it.', name)


def run_program(program: str, arguments: Sequence[str], environment: Mapping[str, str], lock_fd: int,
                limit_s: int) -> Mapping[str, Any]:
    """Have a child process run an operator's program on a device. Blocks for ``limit_s`` seconds at most.

    The program inherits the lock. If this process dies, it has the same limit.

    :param environment: all of the program's environment
    :returns: the program's ``status``, negative if a signal ended it; ``proof``, the last line of its standard output;
        and ``said``, the end of its output
    :raises Failed: it was not run, or did not end and was killed
    """
    return _do(worker.PROGRAM, f'Running {program} {" ".join(arguments)}', (lock_fd,), 100, environment=environment,
               unit='percent', command=[program, *arguments], limit_s=limit_s)


def progress_of(lock_path: str) -> WipeProgress | None:
    """Return the progress of the job on the device with this lock file; None if there is none, or it is unknown.

    The progress of a program in another PID namespace (another container) is unknown. A program that was killed leaves
    an old line. The line names the process, so one can tell that it is old.
    """
    try:
        fd = os.open(lock_path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            said = json.loads(os.pread(fd, progress.LINE, 0))
        finally:
            os.close(fd)
        if progress.started_at(int(said['pid'])) != said['started']:
            return None
        left = said['left']
        return WipeProgress(str(said['phase']), int(said['done']), int(said['of']), int(said['rate']),
                            None if left is None else int(left))
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


class _NotRun(progress.Failed):
    """The program was not run."""


def command() -> Sequence[str]:
    """Return the command of the program, without its argument and without this process's environment."""
    return sys.executable, '-I', '-S', '-c', _START, _PROJECT, worker.__name__


def _do(job: str, doing: str, fds: Sequence[int], of: int, stop: threading.Event | None = None,
        environment: Mapping[str, str] | None = None, unit: str = 'bytes', **parameters: object) -> Mapping[str, Any]:
    """Have the program do a job, and follow it to its end.

    :param doing: begins the lines of the log
    :param fds: the lock's and the devices'
    :param of: how many units there are to do
    :param stop: once it is set, the program is ended
    :returns: its last line
    :raises Failed: nothing shows that the job is done. The text says why
    """
    LOG.info('%s.', doing)
    try:
        child = subprocess.Popen(
            (*command(), json.dumps({'job': job, 'fds': fds, 'of': of, **parameters})), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, pass_fds=fds, start_new_session=True, cwd='/',
            env=environment or {})              # PMEM_NO_FLUSH would keep libpmem from making the zeroes durable
    except OSError as error:
        raise _NotRun(f'cannot be run: {error.strerror}') from error
    last: dict[str, Any] = {}
    told: dict[str, Any] = {}
    with child if stop is None else _ended(child, doing):
        for line in _lines(child, stop):
            last = _parsed(line)
            news = _is_news(last, told, of)
            if last.get('phase') != 'failed':           # the error below has the reason
                LOG.log(logging.INFO if news else logging.DEBUG, '%s: %s, %s of %d %s.', doing,
                        last.get('phase'), last.get('done'), of, unit)
            told = last if news else told
        if stop is not None and stop.is_set():
            raise progress.Failed(STOPPED)
        child.wait()
    if child.returncode != 0 or [last.get(key) for key in ('phase', 'job', 'done', 'of')] != ['ended', job, of, of]:
        raise progress.Failed(str(last.get('reason') or f'{children.end(child.returncode)} without proof'))
    return last


@contextlib.contextmanager
def _ended(child: subprocess.Popen[bytes], doing: str) -> Iterator[None]:
    """Leave no child after the block. One that the kernel blocks is left: it ends when that call returns."""
    try:
        yield
    finally:
        if not children.kill(child):
            LOG.warning('%s: process %d was killed and has not ended: the kernel blocks it. It writes nothing, and '
                        'keeps the device locked.', doing, child.pid)
        assert child.stdout is not None
        child.stdout.close()


def _lines(child: subprocess.Popen[bytes], stop: threading.Event | None) -> Iterator[bytes]:
    """Yield the lines of a child's output until their end, or until it has to stop."""
    assert child.stdout is not None
    fd, rest = child.stdout.fileno(), b''
    while stop is None or not stop.is_set():
        if not _is_readable(fd, None if stop is None else _LOOK_S):
            continue
        data = os.read(fd, 1 << 16)
        if not data:
            break
        *lines, rest = (rest + data).split(b'\n')
        yield from lines


def _is_readable(fd: int, timeout_s: float | None) -> bool:
    if not hasattr(select, 'poll'):             # eventlet has patched this process; its select() takes any descriptor
        return bool(select.select([fd], [], [], timeout_s)[0])
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(None if timeout_s is None else timeout_s * 1000))


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {'phase': 'unreadable'}


def _is_news(line: Mapping[str, Any], told: Mapping[str, Any], of: int) -> bool:
    """Whether to log progress at level INFO: about twenty lines a phase, however long it takes.

    :param told: the line that was logged last at this level, empty when none was
    """
    done, before = line.get('done'), told.get('done')
    if line.get('phase') != told.get('phase') or not isinstance(done, int) or not isinstance(before, int):
        return True
    return done == of or (done - before) * _LINES_A_PHASE >= of
