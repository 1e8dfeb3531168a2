"""A quick reader of the tracked devices in a definition. It reads the text, without a parser, where that is safe.

A parser makes a tree of the whole definition, which costs several times as much. libvirtd writes every definition in
one layout and escapes everything that others put into it. This module reads only that layout. If a text differs from
the layout where it matters, this module leaves that text to the parser.

A match is reliable in a well-formed document, for three reasons:

- If there are no comments, CDATA sections, processing instructions or document type, every ``<`` begins a tag, since
  text and attributes cannot contain one. So a name after a ``<`` is the name of an element.
- If the name of an element is opened once and closed once, everything between belongs to the element. So the metadata,
  which may hold anybody's XML, can be set aside. If the tags of a name open and close in turn, each pair of them is an
  element.
- The difference between opening and closing tags gives the depth of a tag. Text may contain a ``>``, and then a ``/>``
  may be no tag. But then there are more ``>`` than ``<``, and the text is left to the parser. The content of an element
  is balanced, so the tags in one part of it need not be counted if those in all other parts are.

libvirt has other elements that can name a device of ours: network interfaces, disks, file systems, arguments for QEMU,
the firmware and the kernel that a guest boots. A few searches show that a document has none of them. This module reads
only the paths of block devices, since many guests have disks on them, and the paths of files if somebody needs them. It
leaves a document with any other such element to the parser.

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
_PATH_BEGIN, _PATH_END = '<path>', '</path>\n'
_ALL_PLAIN = re.compile(f'{_PLAIN}]*')
_PCI = (r"domain='0x([0-9a-f]{4}|[1-9a-f][0-9a-f]{4,7})' bus='0x([0-9a-f]{2})' slot='0x([01][0-9a-f])' "
        r"function='0x([0-7])'")
_HOSTDEV = re.compile(rf"\n    <hostdev mode='[a-z]+' type='([a-z_]+)'((?:{_ATTRIBUTE})*)>\n"
                      rf"(?:      <driver(?:{_ATTRIBUTE})*/>\n)?"
                      rf"(?:      <source>\n        <address (?:uuid='({_UUID})'|{_PCI})/>\n)?")
_RECORD_LINE = '\n    '
_RECORD_NAME = f'devicetrack:{metadata.ELEMENT}'
_RECORD = f'{_RECORD_LINE}<{_RECORD_NAME} xmlns:devicetrack="{metadata.NAMESPACE}"'
_RECORD_END = f'</{_RECORD_NAME}>'
# Only an address inside a source is indented this deep: it belongs to a host device, or to a disk or interface that is
# one. str.find() looks for the last character first; a rare one makes the search several times as fast as a space.
_SOURCE_ADDRESS = '\n        <address'
# In the backing file or mirror of a disk, the address of a function is indented deeper.
_NVME = "type='nvme'"
# An interface of the guest that has an interface of the host to itself.
_PASSTHROUGH = "'passthrough"
_BLOCK = '<source dev'
_FILE, _SOURCE_FILE, _PATH = "file='", "<source file='", "path='"
_SOCKET = " mode='", " type='unix'"
# Outside of the devices, most paths are texts: those of the firmware, for example.
_TEXT_PATH, _ATTRIBUTE_PATH, _NODE = '>/', "='/", '/dev/'
# libvirt makes the files of a guest's firmware and its sockets in the first two of these by itself. Others than its own
# user may often not enter them. The last is a control group: every running guest has one.
_LIBVIRTS = '/var/lib/libvirt/qemu/', '/run/libvirt/qemu/', '/machine/'
_MOST_BEFORE = 128                  # characters of a tag before such an attribute
_BLOCK_PATH = re.compile(rf"<source dev='({_PLAIN}']*)'")
# If a namespace is declared in another way, for example with references, it may be ours. Nova's own name has '/xmlns/'.
_NAMESPACE = re.compile(r"""xmlns(?::[\w.-]{1,64})?=(?:"[^"&]{1,256}"|'[^'&]{1,256}')""")
_DECLARATION, _NOVA = 'xmlns', '/xmlns/'


class Excerpt(NamedTuple):
    """The devices in a definition. ``record`` is the text of our element among its metadata, or ''."""

    uuid: str
    live: bool
    memory_paths: tuple[str, ...]
    mdev_uuids: tuple[str, ...]
    pci_addresses: tuple[str, ...]
    record: str
    other_paths: tuple[str, ...] = ()
    files: tuple[str, ...] = ()


class _Doubt(Exception):
    """The text is not quite what libvirtd writes."""


def read(text: str, path_backed: Collection[str], hints: Collection[str] = (), files: bool = False) -> Excerpt | None:
    """Read a definition; None if its text leaves a doubt. Then only a parser can tell what the definition says.

    :param path_backed: the models of memory devices that have a path
    :param hints: the beginnings of the paths of tracked devices. If an element other than such memory has such a path,
        the document is left to the parser
    :param files: whether to read ``files``. That takes a quarter of the time of all the rest
    """
    try:
        return _read(text, path_backed, hints, files)
    except _Doubt:
        return None


def _read(text: str, path_backed: Collection[str], hints: Collection[str], files: bool) -> Excerpt:
    head = _HEAD.match(text)
    # Searching for one rare character is many times as fast as searching for two of which one is common. libvirtd
    # declares a namespace at the root only for arguments of a hypervisor, which may name anything.
    if head is None or 'xmlns' in head[0] or ('!' in text and '<!' in text) or ('?' in text and '<?' in text):
        raise _Doubt
    start = head.end()
    own = _own_element(text, 'metadata', start)
    devices = _own_element(text, 'devices', start if own is None else own.after)
    if devices is None or (own is not None and text.count('<devices', start, own.before)):
        raise _Doubt
    record = '' if own is None else _record(text, own)
    memories, memory_runs = _elements(text, 'memory', devices)
    hostdevs, hostdev_runs = _elements(text, 'hostdev', devices)
    for name in ('<memory model=', '<hostdev'):
        if text.find(name, start, devices.before) >= 0 or text.find(name, devices.after) >= 0:
            raise _Doubt
    _check_parents(text, start, own, devices)
    if memories or hostdevs:
        _check_depths(text, devices, sorted(memory_runs + hostdev_runs))
    paths = _paths(memories, path_backed) if memories else ()
    mdevs, functions = _addresses(hostdevs)
    if (text.count(_SOURCE_ADDRESS, devices.begin, devices.end) != len(mdevs) + len(functions)
            or text.find('<filesystem', devices.begin, devices.end) >= 0
            or text.find(_PASSTHROUGH, devices.begin, devices.end) >= 0
            or text.find(_NVME, devices.begin, devices.end) >= 0):
        raise _Doubt
    outside = _outside(text, start, own, devices)
    if _NODE in outside or _BLOCK in outside:
        raise _Doubt
    for hint in hints:
        if hint in outside or text.count(hint, devices.begin, devices.end) != sum([path.count(hint) for path in paths]):
            raise _Doubt
    blocks = _blocks(text, devices)
    return Excerpt(head[2], head[1] is not None, paths, mdevs, functions, record, blocks,
                   (*blocks, *_files(text, devices), *_files_outside(outside)) if files else ())


def _outside(text: str, start: int, own: _Element | None, devices: _Element) -> str:
    """Return the text of all elements except the metadata and the devices."""
    if own is None:
        return text[start:devices.before] + text[devices.after:]
    return text[start:own.before] + text[own.after:devices.before] + text[devices.after:]


def _files_outside(outside: str) -> list[str]:
    """Return the absolute paths in texts and attributes, except those of libvirt's own files."""
    # A parser takes away the blanks before a path.
    if ('&' in outside or '"' in outside or '\t' in outside or '\r' in outside or '\n/' in outside or ' /' in outside
            or not outside.isascii()):
        raise _Doubt
    found = ['/' + one.partition('<')[0].rstrip() for one in outside.split(_TEXT_PATH)[1:]]
    found += ['/' + one.partition("'")[0] for one in outside.split(_ATTRIBUTE_PATH)[1:]]
    _check_plain(found)
    return [path for path in found if not is_libvirts(path)]


def is_libvirts(path: str) -> bool:
    """Whether a path is of a file or group that libvirt makes for itself, so that it is certainly no device of ours."""
    return f'{path}/'.startswith(_LIBVIRTS) and '/..' not in path


def _blocks(text: str, devices: _Element) -> tuple[str, ...]:
    """Return the paths of block devices, and of anything else that a source names in its attribute ``dev``."""
    count = text.count(_BLOCK, devices.begin, devices.end)
    if not count:
        return ()
    found = _BLOCK_PATH.findall(text, devices.begin, devices.end)
    if len(found) != count:
        raise _Doubt
    return tuple(path for path in found if path[:1] == '/')


def _files(text: str, devices: _Element) -> list[str]:
    """Return the paths in the attributes ``file`` and ``path`` of elements, except those of sockets."""
    within = text[devices.begin:devices.end]
    # One rare character is found several times as fast as two.
    if '"' in within and '="' in within:
        raise _Doubt
    found = [one.partition("'")[0] for one in within.split(_SOURCE_FILE)[1:]]
    if within.count(_FILE) != len(found):               # nearly always each is the first attribute of a source
        found = _values(within, _FILE)
    if _PATH in within:
        found += _values(within, _PATH)
    _check_plain(found)
    return [path for path in found if path[:1] == '/']


def _values(within: str, name: str) -> list[str]:
    """Return the values of an attribute, except those in tags of sockets."""
    found = []
    spot = within.find(name)
    while spot >= 0:
        begin = spot + len(name)
        end = within.find("'", begin)
        before = within.rfind('<', max(0, spot - _MOST_BEFORE), spot)
        if end < 0 or before < 0:
            raise _Doubt
        tag = within[before:spot]
        if tag[-1] == ' ' and not any(socket in tag for socket in _SOCKET):
            found.append(within[begin:end])
        spot = within.find(name, end)
    return found


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
    # Below, the first one must be the only one. A search from the end would take ten times as long.
    end = text.find(last, before + len(first) - 1) if before >= 0 else -1
    # Nearly always the name occurs nowhere else. Then one search is enough where otherwise two are needed.
    if before < 0 or end < 0 or (text.count(name, start) != 2 and (
            text.count(f'<{name}', start), text.count(f'</{name}', start)) != (1, 1)):
        if text.find(f'<{name}', start) < 0 and text.find(f'</{name}', start) < 0:
            return None
        raise _Doubt
    # The line breaks before the tags are not part of the element.
    return _Element(before + 1, before + len(first), end + 1, end + len(last))


def _record(text: str, own: _Element) -> str:
    """Find our element among the metadata."""
    spot = text.find(_DECLARATION, own.begin, own.end)
    while spot >= 0:
        if not text.startswith(_NOVA, spot - 1) and _NAMESPACE.match(text, spot, own.end) is None:
            raise _Doubt
        spot = text.find(_DECLARATION, spot + 1, own.end)
    mentioned = text.count(metadata.NAMESPACE, own.begin, own.end)
    if not mentioned:
        return ''
    begin = text.find(_RECORD, own.begin - 1, own.end)
    end = text.find(_RECORD_END, begin, own.end) + len(_RECORD_END)
    if mentioned != 1 or begin < 0 or end < begin or text.count(_RECORD_NAME, begin, own.end) != 2:
        raise _Doubt
    # The depth before and after a child of the metadata is the same, so checking one side is enough.
    if _opened(text, own.begin, begin) if begin - own.begin < own.end - end else _opened(text, end, own.end):
        raise _Doubt
    return text[begin + len(_RECORD_LINE):end]


def _opened(text: str, start: int, end: int) -> int:
    """Count how many more tags open than close between two tags; ``/>`` does both."""
    tags = text.count('<', start, end)
    if tags != text.count('>', start, end):             # one of these, perhaps a />, is inside text
        raise _Doubt
    return tags - 2 * text.count('</', start, end) - text.count('/>', start, end)


# Positions in the text: where the first of some neighbours begins, at the end of the line before it, and where the last
# of them ends.
_Run = tuple[int, int]


def _elements(text: str, name: str, devices: _Element) -> tuple[list[str], list[_Run]]:
    """Find the elements of this name in their places in the lines, each from the end of the line before it to its end.

    The second list has the runs of neighbours. All elements of a run are at one depth, since each begins where the one
    before it ends.
    """
    opening, line, last = f'<{name}', f'\n    <{name}', f'</{name}>'
    first = text.find(opening, devices.begin, devices.end)
    # A closing tag without an opening tag that was found would mean a hidden element.
    if text.find(last, devices.begin, first if first >= 0 else devices.end) >= 0:
        raise _Doubt
    if first < 0:
        return [], []
    spot = first - len(line) + len(opening)
    found = text[spot:devices.end].split(last)
    behind = found.pop()
    if text.count(opening, first, devices.end) != len(found):
        raise _Doubt
    if all(one.startswith(line) for one in found):      # nearly always; so each has one
        return found, [(spot, devices.end - len(behind))]
    runs: list[_Run] = []
    elements: list[str] = []
    for one in found:
        before = one.find(line)
        if before < 0 or one.count(opening) != 1:
            raise _Doubt
        end = spot + len(one) + len(last)
        if before or not runs:
            runs.append((spot + before, end))
        else:
            runs[-1] = (runs[-1][0], end)
        elements.append(one[before:])
        spot = end
    return elements, runs


_TO_THE_ROOT: Final = -1


def _check_parents(text: str, start: int, own: _Element | None, devices: _Element) -> None:
    """Check that the metadata and the devices are children of the root.

    The tags between them need not be counted: both are balanced, and so is the root.
    """
    if own is not None and _opened(text, start, own.before):
        raise _Doubt
    if _opened(text, devices.after, len(text)) != _TO_THE_ROOT:
        raise _Doubt


def _check_depths(text: str, devices: _Element, runs: list[_Run]) -> None:
    """Check that elements are children of the devices: each part of the text between them must be balanced.

    The longest part is balanced if all others are, so it is not counted. Nearly always it is most of the devices.
    """
    between = []
    since = devices.begin
    for begin, end in runs:
        if begin < since - 1:                           # one is inside another; the first begins at its line break
            raise _Doubt
        between.append((since, begin))
        since = end
    between.append((since, devices.end))
    longest = max(between, key=lambda part: part[1] - part[0])
    if any(_opened(text, *part) for part in between if part is not longest):
        raise _Doubt


def _paths(memories: list[str], path_backed: Collection[str]) -> tuple[str, ...]:
    """Return the paths of memory devices whose model has one."""
    paths = []
    alike = None                # the text before the path in the last device that was matched
    for memory in memories:
        before, _begin, rest = memory.partition(_PATH_BEGIN)
        if before == alike:
            path, end, _rest = rest.partition(_PATH_END)
            if not end or not path.strip():
                raise _Doubt
            paths.append(path)
            continue
        found = _MEMORY.match(memory)
        if found is None:
            raise _Doubt
        model, plain = found.groups('')
        if not (plain.strip() if model in path_backed else not plain):
            raise _Doubt
        if plain:
            paths.append(plain)
            alike = before
    _check_plain(paths)
    return tuple([path.strip() for path in paths])


def _check_plain(paths: list[str]) -> None:
    """Check that a parser changes none of these."""
    text = ''.join(paths)
    if not (text.isascii() and text.isprintable() and '<' not in text and '&' not in text) and not all(
            map(_ALL_PLAIN.fullmatch, paths)):
        raise _Doubt


def _addresses(hostdevs: list[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the UUIDs of mediated devices and the addresses of PCI devices."""
    uuids, addresses = [], []
    for hostdev in hostdevs:
        found = _HOSTDEV.match(hostdev)
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
