"""The sources of persistent-memory namespaces: ndctl, or a directory whose files stand for them.

A source reads everything anew at each call, since a path may soon lead to another namespace.
"""

from __future__ import annotations

import abc
import collections
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import errno
import functools
import os
import stat
import uuid

from devicetrack import exception
from devicetrack import filelock
from devicetrack import ownfiles
from devicetrack.virt.libvirt import device_users
from devicetrack.virt.libvirt import kernel_files
from devicetrack.virt.libvirt import ndctl
from devicetrack.virt.libvirt import privileged
from devicetrack.virt.libvirt.ndctl import Namespace

_FILE_ALIGN = 2 << 20
# The kernel's libnvdimm devices. The kernel makes a region read-only when it is no longer persistent, for example
# because its battery failed. ndctl does not report that.
REGIONS = '/sys/bus/nd/devices'
# Names the space of the files' UUIDs. The UUIDs are in records, so this never changes.
_FILES = uuid.UUID('5f1d5d3e-8f2e-4a6c-9c3b-0b1f6f0f7a11')


class NamespaceSource(abc.ABC):
    """Reads the namespaces of this host.

    All their paths begin with ``beginning``. ``has_holes`` says that :meth:`blank` may return namespaces.
    """

    beginning: str
    has_holes = False

    def read(self) -> dict[str, Namespace]:
        """Return what :meth:`each` yields, by name."""
        return {namespace.name: namespace for namespace in self.each()}

    @abc.abstractmethod
    def each(self) -> Iterator[Namespace]:
        """Read every namespace that has a name. No two of them have the same name.

        :raises CommandFailed: they cannot be listed
        :raises InvalidDocument: the list cannot be read
        """

    @abc.abstractmethod
    def paths(self) -> dict[str, str]:
        """Read the names of all namespaces that have a path, by path.

        :raises CommandFailed, InvalidDocument: as :meth:`read`
        """

    def blank(self, namespaces: Iterable[Namespace]) -> Sequence[Namespace]:
        """Find the namespaces of which the file system tells, without reading a byte, that all bytes are zero.

        A namespace that :meth:`open` would refuse is left out.
        """
        return ()

    @abc.abstractmethod
    def evidence(self, names: Collection[str], boot_id: Callable[[], str]) -> dict[str, str]:
        """As :meth:`.api.DeviceKind.evidence`.

        :raises CommandFailed, InvalidDocument: as :meth:`read`
        """

    def is_written(self, before: str, now: str) -> bool:
        """As :meth:`.api.DeviceKind.is_written`."""
        return before != now

    def opened(self, names: Collection[str]) -> Collection[str]:
        """As :meth:`.api.DeviceKind.opened`.

        :raises CommandFailed, InvalidDocument: as :meth:`read`, or their users are unknown
        """
        try:
            return self._opened(names)
        except OSError as error:
            raise exception.CommandFailed('see who has namespaces open', str(error.strerror)) from error

    @abc.abstractmethod
    def _opened(self, names: Collection[str]) -> Collection[str]:
        """:raises OSError: their users are unknown"""

    @abc.abstractmethod
    def open(self, namespace: Namespace, writing: bool = True) -> int:
        """Open a namespace for reading, and for writing if wanted, and take the lock on its own node or file.

        The caller closes the descriptor. A process that inherits the descriptor has the lock too.

        :raises BlockingIOError: somebody else holds the lock
        :raises OSError: another process has it open or mapped (EBUSY), it cannot be opened, or is no namespace of this
            source
        """

    @abc.abstractmethod
    def is_locked(self, namespace: Namespace) -> bool:
        """Whether some process has the namespace open by :meth:`open`.

        :raises OSError: it cannot be opened
        """


class NdctlSource(NamespaceSource):
    """The namespaces that ndctl lists."""

    beginning = '/dev/dax'

    def __init__(self, command: str, timeout_s: int = privileged.NDCTL_TIMEOUT_S) -> None:
        self._command, self._timeout_s = command, timeout_s

    def each(self) -> Iterator[Namespace]:
        everything = self._list()
        listed = [found for found in everything if found.name]
        of_regions = {region: _region_problem(region) for region in {found.region for found in listed}}
        names = collections.Counter(found.name for found in listed)
        paths = collections.Counter(found.path for found in everything)
        # The last entry of a name wins. ndctl lists in no particular order, so sorting by UUID decides which is last.
        listed.sort(key=lambda found: found.uuid or '', reverse=True)
        for found in {found.name: found for found in listed}.values():
            problem = found.problem or of_regions[found.region]
            if found.path and paths[found.path] > 1:
                problem = f'another namespace has its character device {os.path.basename(found.path)} too'
            yield found._replace(
                problem=problem if names[found.name] == 1 else 'another namespace has this name too')

    def paths(self) -> dict[str, str]:
        # If two namespaces have one name, the result has both.
        return {found.path: found.name for found in self._list() if found.name and found.path}

    def _list(self) -> list[Namespace]:
        try:
            status, output = privileged.run_ndctl(self._command, self._timeout_s)
        except OSError as error:
            raise exception.CommandFailed(self._command, f'cannot be run: {error.strerror}') from error
        if status != 0:
            raise exception.CommandFailed(' '.join((self._command, *ndctl.ARGUMENTS)), f'failed with status {status}')
        return ndctl.parse(output)

    def evidence(self, names: Collection[str], boot_id: Callable[[], str]) -> dict[str, str]:
        # Nothing shows a write to mapped memory. But the kernel makes a new node when a namespace comes back from
        # another mode, in which it may have been a disk or the host's own memory.
        return {name: f'{boot_id()};{os.stat(path).st_ino}' for path, name in self._nodes(names).items()}

    def is_written(self, before: str, now: str) -> bool:
        is_of_this_boot = before.rpartition(';')[0] == now.rpartition(';')[0]
        return is_of_this_boot and before != now

    def _opened(self, names: Collection[str]) -> Collection[str]:
        nodes = self._nodes(names)
        return [nodes[path] for path in privileged.open_daxes(list(nodes))]

    def _nodes(self, names: Collection[str]) -> dict[str, str]:
        return {path: name for path, name in self.paths().items() if name in names and os.path.exists(path)}

    def open(self, namespace: Namespace, writing: bool = True) -> int:
        # A caller that only reads maps the device for reading alone.
        return privileged.open_dax(namespace.path, namespace.size_bytes)

    def is_locked(self, namespace: Namespace) -> bool:
        return privileged.is_dax_locked(namespace.path)


class DirectorySource(NamespaceSource):
    """Regular files of one directory. This class never makes or resizes them.

    The UUID of a file comes from its name and its inode number. So a replaced file is another namespace, unless the
    file system gave the deleted file's inode number to the new one: then nobody can tell the two apart. Records of
    earlier releases have these UUIDs, so the inode's generation cannot become a part of them.
    """

    has_holes = True

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self.beginning = os.path.join(directory, '')

    def each(self) -> Iterator[Namespace]:
        with self._entries() as entries:
            for entry in entries:
                name, path = entry.name, self.beginning + entry.name
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue                    # somebody has just removed it
                except OSError as error:
                    yield Namespace(name, None, path, 0, _FILE_ALIGN, None, None, False,
                                    f'it cannot be read: {error.strerror}')
                    continue
                if stat.S_ISREG(status.st_mode):
                    yield Namespace(name, _file_uuid(name, status.st_ino), path, status.st_size, _FILE_ALIGN, None,
                                    None, False, 'the file has another name too' if status.st_nlink > 1 else None)

    def paths(self) -> dict[str, str]:
        with self._entries() as entries:
            return {self.beginning + entry.name: entry.name for entry in entries
                    if entry.is_file(follow_symlinks=False)}

    @contextlib.contextmanager
    def _entries(self) -> Iterator[Iterator[os.DirEntry[str]]]:
        """Yield the entries of the directory without symbolic links: a link's owner could choose what gets wiped."""
        try:
            with os.scandir(self._directory) as entries:
                yield entries
        except OSError as error:
            raise exception.CommandFailed(f'list {self._directory}', str(error.strerror)) from error

    def blank(self, namespaces: Iterable[Namespace]) -> Sequence[Namespace]:
        with contextlib.ExitStack() as opened:
            found: dict[int, Namespace] = {}
            for namespace in namespaces:
                with contextlib.suppress(OSError):
                    fd = self._open(namespace, os.O_RDONLY)
                    opened.callback(filelock.close, fd)
                    status = os.fstat(fd)
                    if (_file_uuid(namespace.name, status.st_ino), status.st_size) == (namespace.uuid,
                                                                                       namespace.size_bytes):
                        found[fd] = namespace
            return unused_holes(found)

    def evidence(self, names: Collection[str], boot_id: Callable[[], str]) -> dict[str, str]:
        # A program can set the time of the last write, but not that of the last change of the file's attributes.
        return {os.path.basename(path): f'{status.st_mtime_ns} {status.st_ctime_ns}'
                for path, status in self._there(names).items()}

    def _opened(self, names: Collection[str]) -> Collection[str]:
        return [os.path.basename(path) for path in device_users.opened(self._there(names))]

    def _there(self, names: Collection[str]) -> dict[str, os.stat_result]:
        there: dict[str, os.stat_result] = {}
        for name in names:
            with contextlib.suppress(OSError):  # the stock says what is gone
                there[self.beginning + name] = os.lstat(self.beginning + name)
        return there

    def open(self, namespace: Namespace, writing: bool = True) -> int:
        fd = self._open(namespace, os.O_RDWR if writing else os.O_RDONLY)
        with ownfiles.closed_by_error(fd):
            # The service opens the file with its own rights: files are for trials, and belong to the service.
            device_users.check_alone(fd)
        return fd

    @staticmethod
    def _open(namespace: Namespace, access: int) -> int:
        fd = os.open(namespace.path, access | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(errno.EINVAL, 'not a regular file')
        return fd

    def is_locked(self, namespace: Namespace) -> bool:
        lock = filelock.NodeLock(namespace.path)
        try:
            lock.acquire()
        except filelock.FileLocked:
            return True
        lock.unlock()
        return False


def unused_holes(files: Mapping[int, Namespace]) -> Sequence[Namespace]:
    """Find the files that are holes, and that no other process has open, mapped or locked. Takes their locks.

    :param files: the namespaces that open files stand for, by the descriptors
    """
    holes = [fd for fd in files if is_hole(fd)]
    with contextlib.suppress(OSError):          # their users are unknown
        alone = device_users.check_each_alone(holes)
        # A process may have written to a file just before it closed it.
        return [files[fd] for fd in holes if alone[fd] is None and is_hole(fd)]
    return ()


def is_hole(fd: int) -> bool:
    """Whether a whole file is a hole, so that all of its bytes are zero (lseek(2))."""
    try:
        os.lseek(fd, 0, os.SEEK_DATA)
    except OSError as error:
        return error.errno == errno.ENXIO
    return False


# Every audit needs the UUID of every file.
@functools.lru_cache(maxsize=1 << 16)
def _file_uuid(name: str, inode: int) -> str:
    return str(uuid.uuid5(_FILES, f'{name}:{inode}'))


def _region_problem(region: str | None) -> str | None:
    """Say why no guest can have a namespace of a region, or None."""
    if region is None:
        return None
    path = os.path.join(REGIONS, region, 'read_only')
    try:
        return None if kernel_files.text(path) == '0' else f'{region} is read-only'
    except FileNotFoundError:
        return f'{region} is gone'
    except OSError as error:
        return f'{path} cannot be read: {error.strerror}'
