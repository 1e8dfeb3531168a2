"""The proofs that devices are clean: a file in the state directory, apart from the rows and from their database.

A proof says which device was clean (its details, with its identity), since when, and how that was established. It
counts while the host has the same device by that identity, until the device is made ready for a guest. Taking a proof
back returns only when that is on the disk. So after a crash at any moment, a device has no proof or no guest has it.

The file has a line with a checksum for each proof; the last line of a device counts. It is written anew when a proof is
taken back, and when it has become long. If the file cannot be trusted, devices are read again:

- A line that cannot be read may have said anything, so the proofs before it no longer count. Only a torn line after the
  last newline is ignored: a crash tore it, so the call that wrote it never returned.
- The file names its own inode. A copy of it, for example from a backup of the state directory, proves nothing: the copy
  does not know of the guests that came after it. That holds for a copy that is written into the file, too: since a
  proof was taken back, the file has another inode.
- A file that others could write to proves nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import errno
import fcntl
import os
import threading
import time
from typing import cast
from typing import Final
import urllib.parse
import zlib

from devicetrack import filelock
from devicetrack import log
from devicetrack import objects
from devicetrack import ownfiles
from devicetrack import vocabulary
from devicetrack.objects import identity
from devicetrack.objects.compact import Compact
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import InventoryDevice
from devicetrack.virt.libvirt import pci_namespaces

LOG = log.logger(__name__)

_FORM: Final = 'devicetrack proofs 1'
_PROVEN: Final = '+'
# The digits of a line's checksum. A tab follows them.
_CHECKSUM: Final = 8
# The file is written anew when it has this many lines more than twice the number of proofs that count.
_LINES: Final = 1000
# The number that tells a file from an earlier one with the same inode (ioctl_getversion(2) of several file systems).
_FS_IOC_GETVERSION: Final = 0x80087601


# The stored details of the device when it was proven clean, the time of the proof (only a label), and how that was
# proven. A host has thousands of proofs, and the garbage collector does not go through plain tuples of texts.
_Proof = tuple[str, str, str]
_Key = tuple[str, str]
_Known = dict[_Key, _Proof]


class Proofs:
    """The proofs of one host. Threads and processes may share them.

    :param state_path: the state directory, which exists
    """

    def __init__(self, state_path: str) -> None:
        self._path = os.path.join(state_path, 'proofs')
        self._mutex = threading.Lock()
        self._known: _Known = {}
        self._lines = 0                         # lines in the file; 0: it must be written anew before a line is added
        self._read: tuple[int, ...] | None = None       # the state of the file when it was last read or written here

    def unproven(self, devices: Iterable[InventoryDevice], nothing_kept: Collection[str] = ()) -> list[_Key]:
        """Return the devices that no proof calls clean. After an error of the file, which is logged, these are all.

        :param nothing_kept: the identifiers of devices that keep nothing of a guest. Their proofs with
            ``vocabulary.NOTHING_KEPT`` count
        """
        fields = Compact(InventoryDevice, devices)
        with self._mutex:
            self._refresh()
            known = self._known
            if not known:                       # for example on a host whose devices all have owners
                # Whoever compares the devices uses these very keys.
                return list(cast(Iterable[_Key], fields.by('kind', 'identifier')))
            return [key for key, details in zip(fields.columns('kind', 'identifier'), fields.column('details'),
                                                strict=True)
                    if (proof := known.get(key)) is None
                    or (proof[2] == vocabulary.NOTHING_KEPT and key[1] not in nothing_kept)
                    or (proof[0] != details and not self._is_same(key, proof, details))]

    def _is_same(self, key: _Key, proof: _Proof, details: str) -> bool:
        """Whether a proof is for the same device, although its details differ now."""
        if not _is_same(proof[0], details):
            return False
        if _disks_of(details) or not _disks_of(proof[0]):
            self._known[key] = (details, *proof[1:])                    # this is quicker the next time
        return True

    def how(self, key: DeviceKey, details: str) -> str | None:
        """How this one device was proven clean; None if no proof calls it clean."""
        with self._mutex:
            self._refresh()
            proof = self._known.get((key.kind, key.identifier))
        return proof[2] if proof is not None and _is_same(proof[0], details) else None

    def of_kind(self, kind: str) -> dict[str, str]:
        """The devices of a kind that are proven clean, by identifier, each with its details of that time."""
        with self._mutex:
            self._refresh()
            return {name: proof[0] for (of, name), proof in self._known.items() if of == kind}

    def record(self, proven: Mapping[DeviceKey, str], how: str) -> None:
        """Record that devices are clean. The caller holds their locks.

        :param proven: the devices, each with its details as they are stored
        :raises OSError: the proofs are not recorded
        """
        now = str(int(time.time()))
        if proven:
            with self._writing():
                new: _Known = {(key.kind, key.identifier): (text, now, how) for key, text in proven.items()}
                self._known.update(new)
                self._write([_line(key, proof) for key, proof in new.items()])

    def take_back(self, keys: Iterable[_Key]) -> None:
        """Take the proofs of devices back: after this returns, no crash brings the proofs back.

        :raises OSError: the devices may still count as clean
        """
        wanted = [(kind, identifier) for kind, identifier in keys]
        with self._mutex:
            self._refresh()
            if not any(key in self._known for key in wanted):
                return                          # nearly always when a device is given back
        with self._writing():
            for key in wanted:
                self._known.pop(key, None)
            self._lines = 0
            self._write([])

    # -- the file -----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Keep other threads and processes from writing, and first read what they wrote.

        :raises OSError: the lock cannot be taken
        """
        with self._mutex, filelock.writing(self._path):
            self._refresh()
            yield

    def _refresh(self) -> None:
        """Read the file if somebody else wrote to it since the last time."""
        try:
            status = os.lstat(self._path)
        except OSError:
            now = None
        else:
            now = (status.st_ino, status.st_size, status.st_mtime_ns)
        if now is None or now != self._read:
            self._known, self._lines, self._read = {}, 0, now
            if now is not None:
                try:
                    self._known = self._load()
                except OSError as error:
                    LOG.error('%(path)s proves no device clean: %(error)s', {'path': self._path, 'error': error})

    def _load(self) -> _Known:
        ownfiles.check_file(self._path)
        with open(self._path, 'rb', opener=lambda path, flags: os.open(path, flags | os.O_NOFOLLOW)) as file:
            itself = _itself(file.fileno())
            lines = file.read().split(b'\n')
        if _text(lines[0]) != f'{_FORM}\t{itself}':
            raise OSError(errno.EINVAL, 'it is not a file of proofs, or is a copy of one')
        known: _Known = {}
        # After the last newline there is nothing, or a line that a crash tore.
        for number, line in enumerate(lines[1:-1], 2):
            fields = (_text(line) or '').split('\t')
            done = fields[0]
            if len(fields) == 6 and done == _PROVEN:
                _done, kind, name, when, how, details = fields
                known[kind, urllib.parse.unquote(name) if '%' in name else name] = details, when, how
            else:
                LOG.error('Line %(line)d of %(path)s cannot be read: no line before it proves a device clean',
                          {'line': number, 'path': self._path})
                known.clear()
        return known

    def _write(self, lines: list[str]) -> None:
        """Write the known proofs to the file. The caller is in :meth:`_writing`.

        :param lines: the lines to add to the existing file
        :raises OSError: the file has its new or its old content, and is read again before it is used
        """
        known = self._known
        before, self._read = self._read, None           # an error below leaves None, so the file is read again
        if before is None or not self._lines or self._lines + len(lines) > 2 * len(known) + _LINES:
            self._replace(known)
        else:
            fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                _write_all(fd, ''.join(lines).encode())
                os.fsync(fd)
                status = os.fstat(fd)
            finally:
                os.close(fd)
            self._lines += len(lines)
            self._read = (status.st_ino, status.st_size, status.st_mtime_ns)

    def _replace(self, known: _Known) -> None:
        new = f'{self._path}.new'
        with contextlib.suppress(FileNotFoundError):
            os.unlink(new)
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            text = ''.join([_checked(f'{_FORM}\t{_itself(fd)}'),
                            *(_line(key, proof) for key, proof in known.items())])
            _write_all(fd, text.encode())
            os.fsync(fd)
            os.rename(new, self._path)
            status = os.fstat(fd)
        finally:
            os.close(fd)
        ownfiles.sync_directory(os.path.dirname(self._path))
        self._lines = 1 + len(known)
        self._read = (status.st_ino, status.st_size, status.st_mtime_ns)


def _is_same(proven: str, now: str) -> bool:
    """Whether details describe what was proven clean: the same device, with the namespaces that it had then."""
    return identity.same_device(proven, now) and not pci_namespaces.differ(_disks_of(proven), _disks_of(now))


def _disks_of(text: str) -> str | None:
    disks: str | None = getattr(objects.details.from_text(text), 'disks', None)
    return disks


def _itself(fd: int) -> str:
    """Return a text that tells an open file from a copy of it, and from a later file that got its inode."""
    version = bytearray(8)
    with contextlib.suppress(OSError):          # not every file system has it
        fcntl.ioctl(fd, _FS_IOC_GETVERSION, version)
    return f'{os.fstat(fd).st_ino} {int.from_bytes(version[:4], "little")}'


def _line(key: _Key, proof: _Proof) -> str:
    details, when, how = proof                  # details are JSON, which has no tabs and no newlines
    return _checked('\t'.join((_PROVEN, key[0], urllib.parse.quote(key[1], safe=''), when, how, details)))


def _checked(text: str) -> str:
    return f'{zlib.crc32(text.encode()):0{_CHECKSUM}x}\t{text}\n'


def _text(line: bytes) -> str | None:
    """Return the text of a line without its checksum; None if the line is damaged."""
    text = line[_CHECKSUM + 1:]
    try:
        return text.decode() if int(line[:_CHECKSUM], 16) == zlib.crc32(text) else None
    except ValueError:
        return None


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data):]
