"""A quick reader of the tracked devices in a definition. It reads the text, without a parser, where that is safe.

A parser makes a tree of the whole definition, which costs several times as much. libvirtd writes every definition in
one layout and escapes all that others put into it. This module reads only that layout. It leaves a text that differs
anywhere that matters to the parser.

A match is reliable in a well-formed document, for three reasons:

- Without comments, CDATA, processing instructions and a document type every ``<`` begins a tag, since text and
  attributes cannot contain one. So a name after a ``<`` is the name of an element.
- If the name of an element is opened once and closed once, everything between belongs to the element. So the metadata,
  which may hold anybody's XML, can be set aside.
- The difference between opening and closing tags gives the depth of a tag. Text may contain a ``/>``, which is counted
  as a tag. Then the count is not even at the end, and the text is left to the parser.

libvirt has other elements that can name a device of ours: network interfaces, disks, file systems, arguments for QEMU.
A few searches tell that a document has none of them. Only the paths of block devices are read here, since many guests
have disks on them; all else is left to the parser.

If a document is not well-formed, this module may read it where a parser refuses it. It never hides a device: it finds
every tag that begins or ends a tracked device, as many of each and in their right places, or gives up.
"""

from __future__ import annotations

from collections.abc import Collection
import re
from typing import Final
from typing import NamedTuple

from devicetrack.virt import metadata

# Characters that a parser does not change.
_PLAIN = r'[^<&\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff'
_ATTRIBUTE = rf" (?!xmlns)[A-Za-z][\w-]*='{_PLAIN}']*'"
_UUID = '[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}'

_HEAD = re.compile(rf"<domain type='[a-z]+'( id='[0-9]+')?(?: xmlns:[a-z]+='{_PLAIN}']*')*>\n"
                   rf'  <name>[^<]*</name>\n  <uuid>({_UUID})</uuid>\n')
_MEMORY = re.compile(rf"\n    <memory model='([a-z-]+)'(?:{_ATTRIBUTE})*>\n(?:      <uuid>[^<]*</uuid>\n)?"
                     rf'(?:      <source>\n        <path>({_PLAIN}]+)</path>\n)?')
_PCI = (r"domain='0x([0-9a-f]{4}|[1-9a-f][0-9a-f]{4,7})' bus='0x([0-9a-f]{2})' slot='0x([01][0-9a-f])' "
        r"function='0x([0-7])'")
_HOSTDEV = re.compile(rf"\n    <hostdev mode='[a-z]+' type='([a-z_]+)'((?:{_ATTRIBUTE})*)>\n"
                      rf"(?:      <driver(?:{_ATTRIBUTE})*/>\n)?"
                      rf"(?:      <source>\n        <address (?:uuid='({_UUID})'|{_PCI})/>\n)?")
_RECORD_LINE = '\n    '
_RECORD = f'{_RECORD_LINE}<devicetrack:{metadata.ELEMENT} xmlns:devicetrack="{metadata.NAMESPACE}"'
_RECORD_END = f'</devicetrack:{metadata.ELEMENT}>'
# An address inside a source lies as deep as no other: those of host devices, and of disks and interfaces that are one.
# A search goes by the last character: a rare one makes it several times as fast as a space.
_SOURCE_ADDRESS = '\n        <address'
_BLOCK = '<source dev'
_BLOCK_PATH = re.compile(rf"<source dev='({_PLAIN}']*)'")
# If a namespace is declared in another way, for example with references, it may be ours. Nova's own name has '/xmlns/'.
_NAMESPACE = re.compile(r"""xmlns(?::[\w.-]{1,64})?=(?:"[^"&]{1,256}"|'[^'&]{1,256}')""")


class Excerpt(NamedTuple):
    """The devices in a definition. ``record`` is the text of our element among its metadata, or ''."""

    uuid: str
    live: bool
    memory_paths: tuple[str, ...]
    mdev_uuids: tuple[str, ...]
    pci_addresses: tuple[str, ...]
    record: str
    other_paths: tuple[str, ...] = ()


class _Doubt(Exception):
    """The text is not quite what libvirtd writes."""


def read(text: str, path_backed: Collection[str], hints: Collection[str] = ()) -> Excerpt | None:
    """Read a definition; None if its text leaves a doubt. Then only a parser can tell what the definition says.

    :param path_backed: the models of memory devices that have a path
    :param hints: what the paths of tracked devices begin with. A device that has one of them elsewhere than in such
        memory is for the parser
    """
    try:
        return _read(text, path_backed, hints)
    except _Doubt:
        return None


def _read(text: str, path_backed: Collection[str], hints: Collection[str]) -> Excerpt:
    head = _HEAD.match(text)
    # The search for one rare character is many times as fast as for two of which one is common. libvirtd declares a
    # namespace at the root only for arguments of a hypervisor, which may name anything.
    if head is None or 'xmlns' in head[0] or ('!' in text and '<!' in text) or ('?' in text and '<?' in text):
        raise _Doubt
    start = head.end()
    own = _own_element(text, 'metadata', start)
    devices = _own_element(text, 'devices', start if own is None else own.after)
    if devices is None or (own is not None and text.count('<devices', start, own.before)):
        raise _Doubt
    record = '' if own is None else _record(text, own)
    memories, memory_runs = _spots(text, 'memory', devices)
    hostdevs, hostdev_runs = _spots(text, 'hostdev', devices)
    for name in ('<memory model=', '<hostdev'):
        if text.find(name, start, devices.before) >= 0 or text.find(name, devices.after) >= 0:
            raise _Doubt
    if record or memories or hostdevs:
        _check_depths(text, start, own, devices, sorted(memory_runs + hostdev_runs))
    paths = _paths(text, memories, devices, path_backed) if memories else ()
    mdevs, functions = _addresses(text, hostdevs)
    if (text.count(_SOURCE_ADDRESS, devices.begin, devices.end) != len(mdevs) + len(functions)
            or text.find('<filesystem', devices.begin, devices.end) >= 0):
        raise _Doubt
    for hint in hints:
        if text.count(hint, devices.begin, devices.end) != sum(path.count(hint) for path in paths):
            raise _Doubt
    return Excerpt(head[2], head[1] is not None, paths, mdevs, functions, record, _blocks(text, devices))


def _blocks(text: str, devices: _Element) -> tuple[str, ...]:
    """Return the paths of block devices, and of whatever else a source calls a device."""
    count = text.count(_BLOCK, devices.begin, devices.end)
    if not count:
        return ()
    found = _BLOCK_PATH.findall(text, devices.begin, devices.end)
    if len(found) != count:
        raise _Doubt
    return tuple(path for path in found if path[:1] == '/')


class _Element(NamedTuple):
    """Positions in the text: where the first tag begins and ends, and where the last tag begins and ends."""

    before: int
    begin: int
    end: int
    after: int


def _own_element(text: str, name: str, start: int) -> _Element | None:
    """Find the one element of this name after ``start``, where libvirtd puts a child of the root."""
    first, last = f'\n  <{name}>\n', f'\n  </{name}>\n'
    before = text.find(first, start - 1)
    end = text.find(last, before + len(first) - 1)
    # Nearly always the name stands nowhere else, and then one search tells what otherwise takes two.
    if before < 0 or end < 0 or (text.count(name, start) != 2 and (
            text.count(f'<{name}', start), text.count(f'</{name}', start)) != (1, 1)):
        if text.find(f'<{name}', start) < 0 and text.find(f'</{name}', start) < 0:
            return None
        raise _Doubt
    # The line breaks before the tags are not part of the element.
    return _Element(before + 1, before + len(first), end + 1, end + len(last))


def _record(text: str, own: _Element) -> str:
    """Find our element among the metadata."""
    declared = text.count('xmlns', own.begin, own.end) - text.count('/xmlns/', own.begin, own.end)
    if declared != len(_NAMESPACE.findall(text, own.begin, own.end)):
        raise _Doubt
    mentioned = text.count(metadata.NAMESPACE)
    if not mentioned:
        return ''
    begin = text.find(_RECORD, own.begin - 1, own.end)
    end = text.find(_RECORD_END, begin, own.end) + len(_RECORD_END)
    if (mentioned != 1 or begin < 0 or end < begin or text.count('<devicetrack:devices', begin, own.end) != 1
            or text.count('</devicetrack:devices', begin, own.end) != 1
            or _opened(text, own.begin, begin) or _opened(text, end, own.end)):
        raise _Doubt
    return text[begin + len(_RECORD_LINE):end]


def _opened(text: str, start: int, end: int) -> int:
    """Count how many more tags open than close; ``/>`` does both."""
    return text.count('<', start, end) - 2 * text.count('</', start, end) - text.count('/>', start, end)


def _spots(text: str, name: str, devices: _Element) -> tuple[list[int], list[int]]:
    """Find where elements of this name begin, each at the end of the line before it.

    The second list has only the first of each run of neighbours. The others of a run lie as deep as the first, since
    each begins where the one before it ends.
    """
    line, last = f'\n    <{name}', f'</{name}>'
    found: list[int] = []
    runs: list[int] = []
    before = devices.begin - 1
    spot = text.find(line, before, devices.end)
    while spot >= 0:
        if spot != before or not found:
            runs.append(spot)
        found.append(spot)
        before = text.find(last, spot, devices.end) + len(last)
        if before <= spot:
            raise _Doubt
        spot = text.find(line, before, devices.end)
    if (text.count(f'<{name}', devices.begin, devices.end), text.count(last, devices.begin, devices.end)) != (
            len(found), len(found)):
        raise _Doubt
    return found, runs


_TO_THE_ROOT: Final = -1


def _check_depths(text: str, start: int, own: _Element | None, devices: _Element, spots: list[int]) -> None:
    """Check the parents of the elements: the tags before, between and after the elements must be balanced."""
    even = [(start, devices.before)] if own is None else [(start, own.before), (own.after, devices.before)]
    since = devices.begin
    for spot in spots:
        even.append((since, spot))
        since = spot
    even.append((since, devices.end))
    if any(_opened(text, *stretch) for stretch in even) or _opened(text, devices.after, len(text)) != _TO_THE_ROOT:
        raise _Doubt


def _paths(text: str, memories: list[int], devices: _Element, path_backed: Collection[str]) -> tuple[str, ...]:
    """Return the paths of memory devices whose model has one."""
    # One search instead of a match at each spot, which takes twice as long. It finds nothing elsewhere.
    found = _MEMORY.findall(text, memories[0], devices.end)
    if len(found) != len(memories):
        raise _Doubt
    for model, path in found:
        if not (path.strip() if model in path_backed else not path):
            raise _Doubt
    return tuple([path.strip() for _model, path in found if path])


def _addresses(text: str, hostdevs: list[int]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the UUIDs of mediated devices and the addresses of PCI devices."""
    uuids, addresses = [], []
    for spot in hostdevs:
        found = _HOSTDEV.match(text, spot)
        if found is None or " type='" in found[2]:
            raise _Doubt
        sort, _others, uuid, domain, bus, slot, function = found.groups()
        if sort == 'mdev' and uuid is not None:
            uuids.append(uuid)
        elif sort == 'pci' and domain is not None:
            addresses.append(f'{domain}:{bus}:{slot}.{function}')
        elif sort in ('mdev', 'pci', 'storage', 'misc'):        # the last two have paths
            raise _Doubt
    return tuple(uuids), tuple(addresses)
