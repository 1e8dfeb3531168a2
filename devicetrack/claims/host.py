"""The identity of a host, and the process that is its manager: its lock, and what no child of it may do."""

from __future__ import annotations

from collections.abc import Iterable
import contextlib
import hashlib
import hmac
import os
import re
import time
from typing import Any
from typing import Final
from typing import NamedTuple
from typing import Self
import uuid
import weakref

from devicetrack import exception
from devicetrack import filelock
from devicetrack import ownfiles
from devicetrack.claims.metering import Metering
from devicetrack.claims.service import ServiceView
from devicetrack.conf import manager as manager_options
from devicetrack.engine.migrations import Endpoint
from devicetrack.store import api as store_api
from devicetrack.virt.driver import VirtDriver

_NAMESPACE = uuid.UUID('6f2d1d5c-8f3c-5d0e-9f53-3c1a0c7a4e55')

# If a manager dies while it starts a child, the child has the lock until it runs its own program.
_PATIENCE_S = 0.5

OPTION = '[devicetrack] machine_id_path'
_MACHINE_ID: Final = re.compile('[0-9a-f]{32}')
# The lock file has this word while a command has the host, and after one that was killed until the next start. An empty
# file, or one that cannot be read, means a manager.
_COMMAND: Final = b'command\n'
# The word of a manager that looks for requests before a claim when the time of the file has changed. That of an earlier
# release leaves the file empty.
_HEARS: Final = b'hears\n'
_LONGEST_FILE: Final = 64          # the file has one line of 33 characters

REMEDY = 'make the id of this machine (systemd-machine-id-setup), or name another file that has one'


class ThisHost(NamedTuple):
    """One start of a host, as each of its rooms gets it: what it is called, and whom a room may ask.

    ``here`` is the host and its node, as migrations name them, and ``uuid`` is the host's in the store. The ``store``
    refuses the writes of this start when another one has begun. ``options`` are those of ``[devicetrack]``.
    """

    here: Endpoint
    uuid: str
    driver: VirtDriver
    store: store_api.Store
    service: ServiceView
    options: Any
    metering: Metering

    @property
    def name(self) -> str:
        return self.here.host

    @property
    def state_path(self) -> str:
        """The state directory of the driver, which also has the locks of the devices; else the one of the options."""
        return self.driver.state_path or self.options.state_path


class HostLock:
    """A lock for a ``with`` block, or until the end of the process; no child inherits it.

    There is one lock for each state directory, whatever the host's name. The lock files of the devices are in the same
    directory, and two hosts that share it would work on each other's devices.

    It also locks the directory itself, so that nobody becomes a second manager if the lock file is removed.

    :param by_command: a command takes the host in place of its manager; the lock file says so to others
    :raises HostInUse: another process, or another manager in this one, holds it
    :raises UnsafePath: users other than the service's can change the directory or the file
    :raises InvalidConfiguration: the directory cannot be created or used
    """

    def __init__(self, host: str, state_path: str, by_command: bool = False) -> None:
        self._host, self._state_path, self._by_command = host, state_path, by_command
        file, directory = _locked_paths(state_path)
        self._locks = filelock.FileLock(file), filelock.DirectoryLock(directory)
        # A forked child closes its copies of the descriptors, so that the lock ends with the manager's process.
        forget = weakref.WeakMethod(self._unlock)
        os.register_at_fork(after_in_child=lambda: (unlock := forget()) and unlock())

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as undo:
            undo.callback(self._unlock)
            try:
                ownfiles.make_directory(self._state_path)
                for lock in self._locks:
                    lock.acquire(timeout_s=_PATIENCE_S)
            except filelock.FileLocked as error:
                raise _in_use(self._host, self._state_path, str(error), filelock.holder(str(error))) from None
            except ownfiles.NotOurs as error:
                raise exception.UnsafePath(error.filename, error.strerror) from error
            except OSError as error:
                raise exception.InvalidConfiguration(manager_options.STATE_PATH, self._state_path,
                                                     ownfiles.reason(error, self._state_path)) from error
            self._write(_COMMAND if self._by_command else _HEARS)
            undo.pop_all()
        return self

    def _write(self, word: bytes) -> None:
        with contextlib.suppress(OSError):              # on a full disk the file stays empty
            os.ftruncate(self._locks[0].fd, 0)
            os.pwrite(self._locks[0].fd, word, 0)

    @property
    def told(self) -> int | None:
        """A number that changes with each call of :func:`tell_manager`. None once the lock has ended. Quick."""
        try:
            return os.fstat(self._locks[0].fd).st_mtime_ns
        except (OSError, ValueError):           # a close in another thread, between the two
            return None

    def _unlock(self) -> None:
        for lock in self._locks:
            lock.unlock()

    def __exit__(self, *_error: object) -> None:
        self.unlock()

    def unlock(self) -> None:
        """End the lock, if it is held."""
        try:
            with contextlib.suppress(ValueError):           # a forked child has closed its copy
                self._write(b'')                # a manager of an earlier release may come next
        finally:
            self._unlock()


def check_unmanaged(host: str, state_path: str) -> None:
    """Refuse at once a host that a living process manages, where :class:`HostLock` first waits for a dying one.

    A host that passes may have a manager all the same: this kernel does not always say who holds a lock.

    :raises HostInUse: a living process holds the host
    """
    for path in _locked_paths(state_path):
        pid = filelock.holder(path)
        if pid is not None and os.path.exists(f'/proc/{pid}'):
            raise _in_use(host, state_path, path, pid)


def tell_manager(state_path: str) -> bool:
    """Tell the manager of a host that the store has a request for it.

    :returns: whether it hears that, and so carries out requests to cordon before its next claim
    """
    path = _locked_paths(state_path)[0]
    now = time.time_ns()
    try:
        os.utime(path, ns=(now, now))
    except OSError:
        return False
    return _word(path) == _HEARS


def _in_use(host: str, state_path: str, path: str, pid: int | None) -> exception.HostInUse:
    return exception.HostInUse(host, path, pid, _word(_locked_paths(state_path)[0]) == _COMMAND)


def _word(path: str) -> bytes:
    try:
        with open(path, 'rb') as file:
            return file.read(_LONGEST_FILE)
    except OSError:
        return b''


def _locked_paths(state_path: str) -> tuple[str, str]:
    return os.path.join(state_path, 'manager.lock'), state_path


def machine_digest(machine_id_path: str) -> str:
    """A digest of this machine's id for this library; machine-id(5) asks programs not to store or show the id.

    :raises InvalidConfiguration: the file cannot be read or has no machine id
    """
    try:
        with open(machine_id_path, encoding='ascii') as file:
            machine_id = file.read(_LONGEST_FILE).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise exception.InvalidConfiguration(OPTION, machine_id_path, f'{error}: {REMEDY}') from error
    if not _MACHINE_ID.fullmatch(machine_id):
        raise exception.InvalidConfiguration(OPTION, machine_id_path,
                                             f'the file does not have 32 hexadecimal digits in lower case: {REMEDY}')
    return hmac.new(machine_id.encode(), b'devicetrack', hashlib.sha256).hexdigest()


def new_host(name: str, digest: str) -> store_api.Host:
    """The row of a host that the store does not know yet.

    The UUID is derived from the machine and the name, so a new store after a loss has the same one.
    """
    return store_api.Host(str(uuid.uuid5(_NAMESPACE, f'{digest}/{name}')), name, digest)


def check_not_moved(hosts: Iterable[store_api.Host], digest: str) -> None:
    """Check that no host of this machine has moved to another store: its rows here are old.

    :raises HostMoved: one has
    """
    for host in hosts:
        if host.moved_to is not None and host.machine == digest:
            raise exception.HostMoved(host.name, host.moved_to)


def identify(store: store_api.Store, name: str, machine_id_path: str) -> store_api.Host:
    """Return the host's row, and create it at the first start.

    :raises HostMoved: the store is not the host's any more
    :raises HostIdentityChanged: the name belongs to another machine
    :raises MachineHasHost: this machine has devices in the store under another name
    """
    digest = machine_digest(machine_id_path)
    check_not_moved(store.hosts(), digest)
    known = store.host(name)
    if known is not None and known.machine_id != digest:
        raise exception.HostIdentityChanged(name)
    # A device is unique within its host: under a second name, all devices of the machine would be free again.
    for other in store.hosts():
        if other.machine_id == digest and other.name != name:
            rows = len(store.records_of_host(other.uuid))
            if rows:
                raise exception.MachineHasHost(name, other.name, rows)
    if known is None:
        known = new_host(name, digest)
        store.add_host(known)
    return known


class OwnProcess:
    """The process that makes this object.

    :param host: the host's name
    """

    __slots__ = ('_host', '_pid')

    def __init__(self, host: str) -> None:
        self._host, self._pid = host, os.getpid()

    @property
    def is_this(self) -> bool:
        """Whether this process is the one, and no forked child of it."""
        return os.getpid() == self._pid

    def check(self) -> None:
        """:raises ForkedManager: this process is a child of the manager's"""
        if not self.is_this:
            raise exception.ForkedManager(self._host, self._pid)
