"""The namespaces of an NVMe controller: as its driver shows them now, and as a claim found them before its guest.

The driver shows a disk for each. The names of the disks change whenever a controller comes back to the host. Three
things stay the same: the identifier of a namespace in its controller (NVM Express Base Specification, "Namespace
Identifier"), its size and its block size.

A record is for a comparison after the guest. Its text is in the details of an assignment, and has these words::

    1:1073741824:512            namespace 1: its bytes, and the bytes of a block
    1:1073741824:512:0          the same, and the LBA format, as the controller numbers it
    1:1073741824:512:0:shared   the same of one that may be attached to several controllers
    detached:2:1048576:4096     a namespace that is attached to no controller that was asked
    capacity:2147483648:0       all bytes of the NVM subsystem, and those that no namespace has

The last four come from the controller itself, and only root can ask it. A record without them is compared without them.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import os
import re
from typing import Final
from typing import NamedTuple

from devicetrack.virt.libvirt import kernel_files
from devicetrack.virt.libvirt import nvme_admin
from devicetrack.virt.libvirt import pci_sysfs

# With multipath in the kernel, nvme0c1n1 is the path of one controller to nvme0n1, and is no block device to open.
_NAMESPACE = re.compile(r'nvme[0-9]+(?:c[0-9]+)?n[0-9]+')
# The unit of a block device's size in sysfs, whatever its blocks (Linux: Documentation/ABI/stable/sysfs-block).
_SECTOR = 512
_FORMAT: Final = re.compile(r'([0-9]+)(x?)(?:p([0-7])(f?))?')


class Disk(NamedTuple):
    """One namespace. ``name`` is that of its block device now."""

    name: str
    nsid: int
    size_bytes: int
    block_bytes: int


def shown(tree: pci_sysfs.Tree, address: str) -> Sequence[Disk] | None:
    """Read the disks of a function, by their identifiers.

    :returns: None while its driver is not ready to tell, or while they are just appearing or vanishing
    """
    directory = os.path.join(tree.path(address), 'nvme')
    found = []
    try:
        for controller in filter(pci_sysfs.NVME_NAME.fullmatch, os.listdir(directory)):
            inside = os.path.join(directory, controller)
            if kernel_files.text(inside, 'state') != 'live':
                return None
            for name in filter(_NAMESPACE.fullmatch, os.listdir(inside)):
                path = os.path.join(inside, name)
                found.append(Disk(re.sub('c[0-9]+(?=n)', '', name), int(kernel_files.text(path, 'nsid')),
                                  int(kernel_files.text(path, 'size')) * _SECTOR,
                                  int(kernel_files.text(path, 'queue/logical_block_size'))))
    except (OSError, ValueError):
        return None
    return sorted(found, key=lambda disk: disk.nsid)


class Size(NamedTuple):
    """The bytes of a namespace, and those of a block."""

    size_bytes: int
    block_bytes: int


class NamespaceRecord(NamedTuple):
    """The namespaces of a controller by their identifiers. ``formats`` is None if the controller was not asked.

    ``shared`` are the namespaces in ``formats`` that may be attached to several controllers. ``elsewhere`` has those of
    ``detached`` that other controllers have, with the numbers of these. The text does not have it.
    """

    sizes: Mapping[int, Size]
    formats: Mapping[int, nvme_admin.Format] | None = None
    detached: Mapping[int, Size] = {}
    total_bytes: int = 0
    unallocated_bytes: int = 0
    shared: Collection[int] = ()
    elsewhere: Mapping[int, Collection[int]] = {}

    def __str__(self) -> str:
        formats = {nsid: f':{form}{":shared" if nsid in self.shared else ""}'
                   for nsid, form in (self.formats or {}).items()}
        words = [f'{nsid}:{size.size_bytes}:{size.block_bytes}{formats.get(nsid, "")}'
                 for nsid, size in sorted(self.sizes.items())]
        words += [f'detached:{nsid}:{size.size_bytes}:{size.block_bytes}'
                  for nsid, size in sorted(self.detached.items())]
        if self.total_bytes or self.unallocated_bytes:
            words.append(f'capacity:{self.total_bytes}:{self.unallocated_bytes}')
        return ' '.join(words)


def sizes(disks: Iterable[Disk]) -> dict[int, Size]:
    return {disk.nsid: Size(disk.size_bytes, disk.block_bytes) for disk in disks}


def parse(text: str) -> NamespaceRecord:
    """Read a text of :class:`NamespaceRecord`.

    :raises ValueError: the text is no such record
    """
    found: dict[int, Size] = {}
    formats: dict[int, nvme_admin.Format] = {}
    detached: dict[int, Size] = {}
    shared: set[int] = set()
    total = unallocated = 0
    for word in text.split():
        first, *rest = word.split(':')
        if first == 'capacity':
            total, unallocated = map(int, rest)
        elif first == 'detached':
            nsid, size, block = map(int, rest)
            detached[nsid] = Size(size, block)
        else:
            found[int(first)] = Size(int(rest[0]), int(rest[1]))
            if len(rest) > 2:
                formats[int(first)] = _format(rest[2])
            if rest[3:] == ['shared']:
                shared.add(int(first))
    if formats and formats.keys() != found.keys():
        raise ValueError(text)
    return NamespaceRecord(found, formats or None, detached, total, unallocated, frozenset(shared))


def differ(before: str | None, now: str | None) -> bool:
    """Whether two texts name other namespaces, or others of their sizes. A text that is unknown or empty names none.

    :raises ValueError: a text is no such record
    """
    return bool(before and now) and parse(before or '').sizes != parse(now or '').sizes


def _format(text: str) -> nvme_admin.Format:
    found = _FORMAT.fullmatch(text)
    if found is None:
        raise ValueError(text)
    return nvme_admin.Format(int(found[1]), bool(found[2]), int(found[3] or 0), bool(found[4]))


def difference(recorded: NamespaceRecord, found: NamespaceRecord, formatted: bool = False) -> str | None:
    """Say what differs from the record; None if nothing does.

    Facts that the record did not get from the controller are not compared.

    :param formatted: whether sizes and formats of attached namespaces are left out, since they are about to be restored
    """
    for what, before, now in (('namespaces', recorded.sizes, found.sizes),
                              ('detached namespaces', recorded.detached, found.detached)):
        if what != 'namespaces' and recorded.formats is None:
            continue
        if before.keys() != now.keys():
            return f'there are the {what} {ids(now)}, and the claim found {ids(before)}'
    for nsid, size in recorded.sizes.items():
        now_size = found.sizes[nsid]
        if not formatted and size != now_size:
            return (f'namespace {nsid} has {now_size.size_bytes} bytes in blocks of {now_size.block_bytes}, and the '
                    f'claim found {size.size_bytes} in blocks of {size.block_bytes}')
    if recorded.formats is None:
        return None
    for nsid, form in recorded.formats.items():
        now_form = (found.formats or {}).get(nsid)
        if not formatted and form != now_form:
            return f'namespace {nsid} has the LBA format {now_form}, and the claim found {form}'
    for nsid, size in recorded.detached.items():
        if size != found.detached[nsid]:
            return f'the detached namespace {nsid} has another size'
    if not formatted and (recorded.total_bytes, recorded.unallocated_bytes) != (
            found.total_bytes, found.unallocated_bytes):
        return (f'{found.unallocated_bytes} of {found.total_bytes} bytes are in no namespace, and the claim found '
                f'{recorded.unallocated_bytes} of {recorded.total_bytes}')
    return None


def mismatch(told: Mapping[int, Size], shown: Mapping[int, Size], formatted: bool = False) -> str | None:
    """Say which namespaces of a controller the kernel shows otherwise, or not at all; None if it shows all of them.

    The driver may not have read them yet.

    :param told: the attached namespaces as the controller tells them
    :param shown: the same as the kernel shows them
    :param formatted: whether sizes are left out
    """
    if told.keys() - shown.keys():
        return (f'its controller has the namespace {ids(told.keys() - shown.keys())}, and the kernel shows no disk of '
                'it, so nobody can read or wipe it: if that stays so, detach or delete it')
    if shown.keys() - told.keys():
        return (f'the kernel shows the namespace {ids(shown.keys() - told.keys())}, and its controller does not have '
                'it now')
    for nsid, size in told.items():
        if not formatted and size != shown[nsid]:
            return (f'the kernel shows its namespace {nsid} with {shown[nsid].size_bytes} bytes in blocks of '
                    f'{shown[nsid].block_bytes}, and its controller has {size.size_bytes} in blocks of '
                    f'{size.block_bytes}, so nobody can read or wipe all of it: if that stays so, give it an LBA '
                    'format that the kernel can use, for example one without metadata')
    return None


def ids(numbers: Collection[int]) -> str:
    """Name namespaces or controllers in a message."""
    return ', '.join(map(str, sorted(numbers))) or 'none'
