"""The little that is asked of a definition, read from its text where that is safe.

A parser makes a tree of the whole definition, which costs several times what is wanted of it. libvirtd writes every
definition with one layout and escapes what others put into it. So this reads that layout and nothing else; whatever
differs from it anywhere that matters is left to the parser.

Why a match means what it seems to mean, in a well-formed document:

- Without comments, CDATA, processing instructions and a document type every ``<`` begins a tag, since text and
  attributes cannot contain one. So a name behind a ``<`` is an element's.
- An element whose name is opened once and closed once is all that lies between. That is how the metadata, where
  anybody's XML stands, is set aside whatever is in it.
- How deep a tag lies is counted: tags that open, less those that close. Text may contain a ``/>``, which the count
  takes for a tag's; but then the count does not come out even at the end, and nothing is believed.

Of a document that is not well-formed this may read what a parser refuses. It hides no device: the tags that begin and
end tracked devices are all found, as many of the one as of the other and where they must be, or nothing is said.
"""

from __future__ import annotations

from collections.abc import Collection
import re
from typing import Final
from typing import NamedTuple

from devicetrack.virt import metadata

# Characters that a parser hands on as they are.
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
_RECORD = f'\n    <devicetrack:{metadata.ELEMENT} xmlns:devicetrack="{metadata.NAMESPACE}"'
_RECORD_END = f'</devicetrack:{metadata.ELEMENT}>'
# A namespace that is declared in another way, as with references, may be ours.
_DECLARED = re.compile(r'xmlns[\s:=]')
_NAMESPACE = re.compile(r"""xmlns(?::[\w.-]{1,64})?=(?:"[^"&]{1,256}"|'[^'&]{1,256}')""")


class Excerpt(NamedTuple):
    """What a definition says. ``record`` is the text of our element among its metadata, '' when there is none."""

    uuid: str
    live: bool
    memory_paths: tuple[str, ...]
    mdev_uuids: tuple[str, ...]
    pci_addresses: tuple[str, ...]
    record: str


class _Doubt(Exception):
    """The text is not quite what libvirtd writes."""


def read(text: str, path_backed: Collection[str]) -> Excerpt | None:
    """Read a definition; None when its text leaves a doubt, which says nothing about the definition.

    :param path_backed: the models of memory devices that have a path
    """
    try:
        return _read(text, path_backed)
    except _Doubt:
        return None


def _read(text: str, path_backed: Collection[str]) -> Excerpt:
    head = _HEAD.match(text)
    # To look for one rare character is many times as fast as for two of which one is common.
    if head is None or ('!' in text and '<!' in text) or ('?' in text and '<?' in text):
        raise _Doubt
    start = head.end()
    own = _own_element(text, 'metadata', start)
    devices = _own_element(text, 'devices', start if own is None else own.after)
    if devices is None or (own is not None and text.count('<devices', start, own.before)):
        raise _Doubt
    record = '' if own is None else _record(text, own)
    memories, memory_runs = _spots(text, 'memory', devices)
    hostdevs, hostdev_runs = _spots(text, 'hostdev', devices)
    if (text.count('<memory model=', start), text.count('<hostdev', start)) != (len(memories), len(hostdevs)):
        raise _Doubt
    if record or memories or hostdevs:
        _check_depths(text, start, own, devices, sorted(memory_runs + hostdev_runs))
    return Excerpt(
        head[2], head[1] is not None,
        tuple(path for spot in memories if (path := _path(text, spot, path_backed)) is not None),
        *_addresses(text, hostdevs),
        record)


class _Element(NamedTuple):
    """Positions in the text: of the first tag and behind it, of the last tag and behind it."""

    before: int
    begin: int
    end: int
    after: int


def _own_element(text: str, name: str, start: int) -> _Element | None:
    """The one element of this name behind ``start``, where libvirtd puts a child of the root."""
    opened, closed = text.count(f'<{name}', start), text.count(f'</{name}', start)
    if not opened and not closed:
        return None
    first, last = f'\n  <{name}>\n', f'\n  </{name}>\n'
    before = text.find(first, start - 1)
    end = text.find(last, before + len(first) - 1)
    if (opened, closed) != (1, 1) or before < 0 or end < 0:
        raise _Doubt
    # The line breaks around it belong to what is around it.
    return _Element(before + 1, before + len(first), end + 1, end + len(last))


def _record(text: str, own: _Element) -> str:
    """Our element among the metadata."""
    if len(_DECLARED.findall(text, own.begin, own.end)) != len(_NAMESPACE.findall(text, own.begin, own.end)):
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
    return text[begin + 1:end].lstrip()


def _opened(text: str, start: int, end: int) -> int:
    """How many more tags open than close; ``/>`` does both."""
    return text.count('<', start, end) - 2 * text.count('</', start, end) - text.count('/>', start, end)


def _spots(text: str, name: str, devices: _Element) -> tuple[list[int], list[int]]:
    """Where elements of this name begin, each at the end of the line before it.

    The second list has those that do not follow one of the same name at once: the others lie as deep as the one before
    them, since none of them begins before another has ended.
    """
    line, last = f'\n    <{name} ', f'</{name}>'
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
    """See that elements are children of what they must be, by the balance of the tags before, between and behind."""
    even = [(start, devices.before)] if own is None else [(start, own.before), (own.after, devices.before)]
    since = devices.begin
    for spot in spots:
        even.append((since, spot))
        since = spot
    even.append((since, devices.end))
    if any(_opened(text, *stretch) for stretch in even) or _opened(text, devices.after, len(text)) != _TO_THE_ROOT:
        raise _Doubt


def _path(text: str, spot: int, path_backed: Collection[str]) -> str | None:
    found = _MEMORY.match(text, spot)
    if found is None:
        raise _Doubt
    if found[1] not in path_backed:
        return None
    path = (found[2] or '').strip()
    if not path:
        raise _Doubt
    return path


def _addresses(text: str, hostdevs: list[int]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The UUIDs of mediated devices, and the addresses of PCI devices."""
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
        elif sort in ('mdev', 'pci'):
            raise _Doubt
    return tuple(uuids), tuple(addresses)
