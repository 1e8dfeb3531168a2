"""Fails every thread that does I/O while it holds the ledger's lock.

The lock of a claim manager covers the ledger in memory and nothing else. One slow file, query or request under it would
make every claim of the host wait. :class:`NoIOUnderTheLock` enforces this while it is in use::

    class TestCase(oslotest.base.BaseTestCase):
        def setUp(self):
            super().setUp()
            self.useFixture(no_io.NoIOUnderTheLock())

I/O under the lock raises :class:`IOUnderTheLock` where it happens. The fixture raises the error again at its end, in
case somebody caught the first one. The fixture sees I/O in two ways:

- An audit hook (PEP 578) sees the I/O that the interpreter reports: opening, listing, making, renaming or removing
  files, sockets, subprocesses, sqlite3 connections, and file locks.
- Wrapped entry points see the rest: statements of any SQL driver (the store's backends and SQLAlchemy's engines), every
  function of libvirt's C module, HTTP requests, ``os.stat``, ``os.read``, ``os.write``, ``os.fsync``, waiting
  (``time.sleep``), and records that reach a logger's handlers.

Nobody can remove an audit hook. So the hook and the wrappers stay in the process. Each costs one comparison while no
fixture is in use.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import functools
import http.client
import importlib
import importlib.util
import logging
import os
import sys
import threading
import time
import traceback
import types
from typing import Any

import fixtures

from devicetrack.claims import locks

# Events of the audit hook: by their whole name, or by the part before the first dot.
_EVENTS = frozenset((
    'open', 'subprocess.Popen', 'time.sleep', 'syslog.syslog', 'mmap.__new__',
    'os.chdir', 'os.chflags', 'os.chmod', 'os.chown', 'os.exec', 'os.fork', 'os.forkpty', 'os.getxattr', 'os.link',
    'os.listdir', 'os.listxattr', 'os.lockf', 'os.mkdir', 'os.posix_spawn', 'os.remove', 'os.removexattr', 'os.rename',
    'os.rmdir', 'os.scandir', 'os.setxattr', 'os.spawn', 'os.symlink', 'os.system', 'os.truncate', 'os.utime'))
_FAMILIES = frozenset(('socket', 'sqlite3', 'fcntl', 'shutil', 'tempfile', 'glob', 'urllib', 'ftplib', 'smtplib'))

# Functions that do I/O or wait without an audit event.
_FUNCTIONS = (
    (os, ('stat', 'lstat', 'fstat', 'access', 'read', 'write', 'pread', 'pwrite', 'fsync', 'fdatasync', 'sendfile')),
    (time, ('sleep',)),
)


class IOUnderTheLock(AssertionError):
    """A thread did I/O while it held the ledger's lock. Do it before or after."""

    def __init__(self, what: str, where: str) -> None:
        super().__init__(what, where)
        self.what, self.where = what, where

    def __str__(self) -> str:
        return f'{self.what} under the lock of the ledger:\n{self.where}'


class _Watch:
    """The only watch of this process. It counts the fixtures that use it, and keeps the I/O that it has seen."""

    def __init__(self) -> None:
        self.wanted = 0
        self.installed = False
        self.lock = threading.Lock()
        self.seen: list[IOUnderTheLock] = []
        self.inside = threading.local()         # the watch must not watch itself

    def see(self, what: str) -> None:
        """Fail the calling thread if it holds a ledger's lock."""
        if not self.wanted or not locks.ledger_is_held() or getattr(self.inside, 'now', False):
            return
        if _collected():
            return
        self.inside.now = True
        try:
            where = ''.join(traceback.format_list(traceback.extract_stack(limit=16)[:-2]))
        finally:
            self.inside.now = False
        error = IOUnderTheLock(what, where)
        self.seen.append(error)
        raise error

    def install(self) -> None:
        with self.lock:
            if not self.installed:
                self.installed = True
                sys.addaudithook(_audit)
                for module, names in _FUNCTIONS:
                    _wrap(module, names, module.__name__)
                _wrap(http.client.HTTPConnection, ('putrequest', 'send', 'getresponse'), 'HTTP')
                _wrap(logging.Handler, ('handle',), 'a log record')
                _wrap_libvirt()
                _wrap_requests()
                _wrap_sql()


def _collected() -> bool:
    """Whether the caller is a finalizer. The garbage collector may run one in any thread, also one with the lock.

    A finalizer closes an object that nobody uses any more, so its I/O is allowed.
    """
    frame: types.FrameType | None = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_name == '__del__':
            return True
        frame = frame.f_back
    return False


_WATCH = _Watch()


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _WATCH.wanted and (event in _EVENTS or event.partition('.')[0] in _FAMILIES):
        _WATCH.see(f'{event}{arguments[:1]!r}' if _is_plain(arguments) else event)


def _is_plain(arguments: tuple[Any, ...]) -> bool:
    return bool(arguments) and isinstance(arguments[0], (str, bytes, int))


def _wrap(owner: Any, names: Iterator[str] | tuple[str, ...], what: str) -> None:
    """Replace each attribute by a function that asks the watch first."""
    for name in names:
        plain = getattr(owner, name, None)
        if plain is None:
            continue
        setattr(owner, name, _watched(plain, f'{what} {name}'))


def _watched(plain: Callable[..., Any], what: str) -> Callable[..., Any]:
    @functools.wraps(plain)
    def watched(*args: Any, **kwargs: Any) -> Any:
        _WATCH.see(what)
        return plain(*args, **kwargs)

    return watched


def _wrap_libvirt() -> None:
    """Wrap libvirt's C module. libvirt.py looks up each function there at each call."""
    with contextlib.suppress(ImportError):
        module = importlib.import_module('libvirtmod')
        _wrap(module, tuple(name for name in vars(module) if name.startswith('vir')), 'libvirt')
        # Other threads make the driver's calls to libvirt, and they hold no lock. So wrap the driver's own call too.
        _wrap(importlib.import_module('devicetrack.virt.libvirt.bounded').Calls, ('call',), 'libvirt')


def _wrap_requests() -> None:
    """Wrap requests, so the watch sees a request even if a test has replaced the network by an adapter."""
    if importlib.util.find_spec('requests') is not None:
        _wrap(importlib.import_module('requests').Session, ('send',), 'HTTP')


def _wrap_sql() -> None:
    """Listen to SQLAlchemy: its events show everybody who uses a database."""
    if importlib.util.find_spec('sqlalchemy') is None:
        return
    sa = importlib.import_module('sqlalchemy')

    def heard(*_args: Any, **_kwargs: Any) -> None:
        _WATCH.see('SQL')

    for event in ('engine_connect', 'before_cursor_execute', 'begin', 'commit', 'rollback'):
        sa.event.listen(sa.Engine, event, heard)
    for event in ('connect', 'checkout'):
        sa.event.listen(sa.pool.Pool, event, heard)


class NoIOUnderTheLock(fixtures.Fixture):
    """Fails each thread of this process that does I/O while it holds a ledger's lock.

    It also fails a thread that takes locks in another order than :mod:`devicetrack.claims.locks` gives.

    The fixture fails again when it is cleaned up, in case somebody caught the first failure. ``seen`` has every
    :class:`IOUnderTheLock` since the set-up. A test that provokes such an error removes it with :meth:`expect`.
    """

    def _setUp(self) -> None:
        _WATCH.install()
        self.traced = locks.traced()
        self.traced.__enter__()
        self._from = len(_WATCH.seen)
        _WATCH.wanted += 1
        self.addCleanup(self._stop)

    def _stop(self) -> None:
        _WATCH.wanted -= 1
        self.traced.__exit__(None, None, None)
        seen = self.seen
        del _WATCH.seen[self._from:]
        if seen:
            raise seen[0]

    @property
    def seen(self) -> list[IOUnderTheLock]:
        return _WATCH.seen[self._from:]

    def expect(self) -> list[IOUnderTheLock]:
        """Remove and return the I/O seen up to now, because the test provoked it."""
        seen = self.seen
        del _WATCH.seen[self._from:]
        return seen
