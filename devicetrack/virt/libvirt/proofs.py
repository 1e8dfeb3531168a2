"""The proofs that devices are clean: a file in the state directory, apart from the rows and from their database.

A proof says which device was clean (its details, with its identity), since when, how that was established, and what the
host showed of writes to it. It counts while the host has the same device by that identity, and shows no further write,
until the device is made ready for a guest. Taking a proof
back returns only when that is on the disk. So after a crash at any moment, a device has no proof or no guest has it.
A device whose proof was taken back for a guest of ours is noted as given until it is proven clean again. So the bytes
on a device without a proof are those of our guest, or of somebody unknown.

The file has a line with a checksum for each proof, and each change replaces the file. (Earlier releases added lines, so
the last line of a device counts.) If the file cannot be trusted, devices are read again. Before a guest gets one of
them, such a file is replaced, because somebody may repair the old one and start the service again:

- A file with a line that cannot be read proves nothing: the line may have said anything.
- The file names its own inode. A copy of it, for example from a backup of the state directory, proves nothing: the copy
  does not know of the guests that came after it. That holds for a copy that is written into the file, too: since a
  proof was taken back, the file has another inode.
- A file that others could write to proves nothing.

A file that cannot be read at the moment, for example without a free descriptor, may prove anything. It stays, and
nobody gets a device until it can be read.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import datetime
import errno
import fcntl
import os
import threading
import time
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
_GIVEN: Final = '-'
# The digits of a line's checksum. A tab follows them.
_CHECKSUM: Final = 8
# The number that tells a file from an earlier one with the same inode (ioctl_getversion(2) of several file systems).
_FS_IOC_GETVERSION: Final = 0x80087601


# The stored details of the device when it was proven clean, the time of the proof (only a label), how that was proven,
# and what the host showed then of writes to the device, '' for nothing. A host has thousands of proofs, and the garbage
# collector does not go through plain tuples of texts.
_Proof = tuple[str, str, str, str]
_Key = tuple[str, str]
_Known = dict[_Key, _Proof]
# A file that is not there. Others have an inode, a size and a time.
_NO_FILE: Final = ()


class _NotProofs(OSError):
    """The file cannot be trusted."""


class Proofs:
    """The proofs of one host. Threads and processes may share them.

    :param state_path: the state directory, which exists
    """

    def __init__(self, state_path: str) -> None:
        self.path = os.path.join(state_path, 'proofs')
        self._mutex = threading.Lock()
        self._known: _Known = {}
        self._given: frozenset[_Key] = frozenset()      # none of these has a proof
        # The state of the file when it was last read or written here. It is the last to change, so that the file is
        # read again after an error or an interrupt anywhere before.
        self._read: tuple[int, ...] | None = None
        self._logged: str | None = None         # why the file proves nothing

    def unproven(self, devices: Iterable[InventoryDevice], nothing_kept: Collection[str] = ()) -> list[_Key]:
        """Return the devices that no proof calls clean. After an error of the file, which is logged, these are all.

        :param nothing_kept: the identifiers of devices that keep nothing of a guest. Their proofs with
            ``vocabulary.NOTHING_KEPT`` count
        """
        fields = Compact(InventoryDevice, devices)
        with self._mutex:
            self._refresh()
            return [key for key, details in zip(fields.columns('kind', 'identifier'), fields.column('details'),
                                                strict=True)
                    if (proof := self._known.get(key)) is None
                    or (proof[2] == vocabulary.NOTHING_KEPT and key[1] not in nothing_kept)
                    or (proof[0] != details and not _is_same(proof[0], details))]

    def how(self, key: DeviceKey, details: str) -> str | None:
        """How this one device was proven clean; None if no proof calls it clean."""
        with self._mutex:
            self._refresh()
            proof = self._known.get((key.kind, key.identifier))
        return proof[2] if proof is not None and _is_same(proof[0], details) else None

    def said(self, key: DeviceKey, details: str) -> str | None:
        """How this one device was proven clean, and when, for people; None if no proof calls it clean."""
        how = self.how(key, details)
        proof = self._known.get((key.kind, key.identifier))
        if how is None or proof is None:
            return None
        when = datetime.datetime.fromtimestamp(int(proof[1]), datetime.UTC).isoformat()
        return f'{how} ({when})'

    def of_kind(self, kind: str) -> dict[str, str]:
        """The devices of a kind that are proven clean, by identifier, each with its details of that time.

        :raises OSError: as :meth:`keys`
        """
        return {name: proof[0] for (of, name), proof in self._counting().items() if of == kind}

    def keys(self) -> set[_Key]:
        """The devices of all kinds that are proven clean, whether a kind offers them now or not.

        No proof of another device comes back later.

        :raises OSError: another one may
        """
        return set(self._counting())

    def _counting(self) -> _Known:
        with self._mutex:
            if self._refresh() is None:
                return dict(self._known)
        with self._writing():
            return dict(self._known)

    def evidence(self, kind: str) -> dict[str, str]:
        """What the host showed of writes to the devices of a kind when they were proven clean, by identifier.

        It is '' for nothing. Devices that keep nothing anyway are left out.
        """
        with self._mutex:
            self._refresh()
            return {name: proof[3] for (of, name), proof in self._known.items()
                    if of == kind and proof[2] != vocabulary.NOTHING_KEPT}

    def renew(self, kind: str, evidence: Mapping[str, tuple[str, str]]) -> None:
        """Replace the evidence of proofs, if they still are as they were.

        :param evidence: what each proof has, and what it gets, by identifier
        :raises OSError: it is not replaced
        """
        if not evidence:
            return
        with self._writing():
            new: _Known = {(kind, name): (*proof[:3], now) for name, (before, now) in evidence.items()
                           if (proof := self._known.get((kind, name))) is not None and proof[3] == before}
            if new:
                self._replace({**self._known, **new}, self._given)

    def record(self, proven: Mapping[DeviceKey, str], how: str,
               evidence: Mapping[DeviceKey, str] | None = None) -> None:
        """Record that devices are clean. The caller holds their locks.

        :param proven: the devices, each with its details as they are stored
        :param evidence: what the host shows of writes to them
        :raises OSError: the proofs are not recorded
        """
        now = str(int(time.time()))
        if proven:
            with self._writing():
                new: _Known = {(key.kind, key.identifier): (text, now, how, (evidence or {}).get(key, ''))
                               for key, text in proven.items()}
                self._replace({**self._known, **new}, self._given)

    def is_given(self, key: DeviceKey) -> bool:
        """Whether the last proof of a device was taken back for a guest of ours, and nothing else is known of it since.

        After an error of the file, which is logged, the answer is no.
        """
        with self._mutex:
            self._refresh()
            return (key.kind, key.identifier) in self._given

    def take_back(self, keys: Iterable[_Key], given: Iterable[_Key] = ()) -> None:
        """Take the proofs of devices back: after this returns, no crash and no restart brings the proofs back.

        :param given: those of the devices that are for a guest of ours. Without a proof before, they are not noted
        :raises OSError: the devices may still count as clean
        """
        wanted = {(kind, identifier) for kind, identifier in keys}
        ours = {(kind, identifier) for kind, identifier in given}
        with self._mutex:
            if self._refresh() is None and wanted.isdisjoint(self._known) and self._given.isdisjoint(wanted - ours):
                return                          # nearly always when a device is given back
        with self._writing():
            now = frozenset({one for one in self._given if one not in wanted or one in ours}
                            | {one for one in ours if one in self._known})
            if now != self._given or not wanted.isdisjoint(self._known):
                self._replace({key: proof for key, proof in self._known.items() if key not in wanted}, now)

    # -- the file -----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Keep other threads and processes from writing, and first read what they wrote.

        A file that cannot be trusted is replaced by one without proofs.

        :raises OSError: the lock cannot be taken, or the file can be neither read nor replaced
        """
        with self._mutex, filelock.writing(self.path):
            error = self._refresh()
            if isinstance(error, ownfiles.NotOurs | _NotProofs):
                try:
                    self._replace({}, frozenset())
                except OSError as failed:
                    raise OSError(failed.errno, f'{self.path} cannot be trusted ({error.strerror}) and not be '
                                                f'replaced ({failed.strerror or failed})') from failed
            elif error is not None:
                raise OSError(error.errno, f'{self.path} cannot be read ({error.strerror or error}). If that lasts, '
                                           'delete the file: its devices are then read again') from error
            yield

    def _refresh(self) -> OSError | None:
        """Read the file if somebody else wrote to it since the last time.

        :returns: an error, which is logged: the file may have proofs that do not count now and would count later
        """
        try:
            now = self._state()
            if now == self._read:
                return None
            known, given = ({}, set()) if now == _NO_FILE else self._load()
            # Whoever replaced or deleted the file may have been killed before that was durable. After a power cut the
            # old file would be back, with proofs that are not known here.
            ownfiles.sync_directory(os.path.dirname(self.path))
        except OSError as error:
            self._read, self._known, self._given = None, {}, frozenset()
            if self._logged != str(error):      # not again for each device
                LOG.error('%(path)s proves no device clean: %(error)s', {'path': self.path, 'error': error})
                self._logged = str(error)
            return error
        self._read = None                       # of the file before
        self._known, self._given = known, frozenset(given)
        self._read, self._logged = now, None
        return None

    def _state(self) -> tuple[int, ...]:
        """:raises OSError: it is unknown, also whether there is a file"""
        try:
            status = os.lstat(self.path)
        except FileNotFoundError:
            return _NO_FILE
        return _state_of(status)

    def _load(self) -> tuple[_Known, set[_Key]]:
        """Read the proofs in the file, and the devices that were given to guests.

        :raises OSError: nothing counts
        """
        ownfiles.check_file(self.path)
        with open(self.path, 'rb', opener=lambda path, flags: os.open(path, flags | os.O_NOFOLLOW)) as file:
            itself = _itself(file.fileno())
            head, *lines = file.read().split(b'\n')
        if _text(head) != f'{_FORM}\t{itself}':
            raise _NotProofs(errno.EINVAL, 'it is not a file of proofs, or is a copy of one')
        if not lines or lines.pop():
            raise _NotProofs(errno.EINVAL, 'its last line is torn')
        known: _Known = {}
        given: set[_Key] = set()
        for number, line in enumerate(lines, 2):
            fields = (_text(line) or '').split('\t')
            done = fields[0]
            if len(fields) in (6, 7) and done == _PROVEN:       # without evidence there are six
                _done, kind, name, when, how, details, *evidence = fields
                key = kind, urllib.parse.unquote(name) if '%' in name else name
                known[key] = details, when, how, evidence[0] if evidence else ''
                given.discard(key)
            elif len(fields) == 3 and done == _GIVEN:
                given.add((fields[1], urllib.parse.unquote(fields[2])))
            else:
                raise _NotProofs(errno.EINVAL, f'its line {number} cannot be read')
        return known, given

    def _replace(self, known: _Known, given: frozenset[_Key]) -> None:
        """Write a new file that has these proofs and no others. The caller is in :meth:`_writing`.

        :param given: the devices that were given to guests, but for those that are proven clean since
        :raises OSError: the file has its new or its old content, and is read again before it is used
        """
        given = given.difference(known)
        self._read, new = None, f'{self.path}.new'
        with contextlib.suppress(FileNotFoundError):
            os.unlink(new)
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(fd, 'w', encoding='utf-8') as file:
            file.write(_checked(f'{_FORM}\t{_itself(fd)}'))
            file.writelines(_checked('\t'.join((_GIVEN, kind, urllib.parse.quote(name, safe=''))))
                            for kind, name in sorted(given))
            file.writelines(_line(key, proof) for key, proof in known.items())
            file.flush()
            os.fsync(fd)
            os.rename(new, self.path)
            status = os.fstat(fd)
        ownfiles.sync_directory(os.path.dirname(self.path))
        self._known, self._given = known, given
        self._read = _state_of(status)


def _state_of(status: os.stat_result) -> tuple[int, ...]:
    return status.st_ino, status.st_size, status.st_mtime_ns


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
    details, when, how, evidence = proof        # details are JSON, which has no tabs and no newlines
    fields = (_PROVEN, key[0], urllib.parse.quote(key[1], safe=''), when, how, details)
    return _checked('\t'.join((*fields, evidence) if evidence else fields))


def _checked(text: str) -> str:
    return f'{zlib.crc32(text.encode()):0{_CHECKSUM}x}\t{text}\n'


def _text(line: bytes) -> str | None:
    """Return the text of a line without its checksum; None if the line is damaged."""
    text = line[_CHECKSUM + 1:]
    try:
        return text.decode() if int(line[:_CHECKSUM], 16) == zlib.crc32(text) else None
    except ValueError:
        return None
