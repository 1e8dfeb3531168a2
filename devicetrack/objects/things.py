"""The names of things on a host, by which drivers and device kinds say what contains what.

A PCI function is its address. Names of parents may also have libvirt's form of an address (``pci_0000_84_00_0``).
"""

from __future__ import annotations

from collections.abc import Iterable
import re
from typing import Final

from devicetrack import vocabulary

Exclusions = tuple[tuple[str, str], ...]

_NODE_DEVICE: Final = re.compile(r'pci_([0-9a-f]{4,8})_([0-9a-f]{2})_([01][0-9a-f])_([0-7])')


def address_in(name: str | None) -> str | None:
    """The address of the PCI function that a name means, as the kernel writes it; None if it means none."""
    if name is None:
        return None
    name = name.lower()
    if (found := _NODE_DEVICE.fullmatch(name)) is not None:
        name = '{}:{}:{}.{}'.format(*found.groups())
    if vocabulary.PCI_ADDRESS.fullmatch(name) is None:
        return None
    domain, rest = name.split(':', 1)
    return f'{int(domain, 16):04x}:{rest}'


def of_function(address: str) -> str:
    """The token of a PCI function. The function is the whole, and everything in it is a part."""
    return f'sriov:{address}'


def of_group(number: object) -> str:
    """The token of an IOMMU group."""
    return f'iommu:{number}'


# How people name the things of a token. No path names a file better than the devices that are on it.
_WORDS: Final = {'sriov': 'function {}', 'iommu': 'IOMMU group {}', 'block': '/dev/block/{}', 'char': '/dev/char/{}',
                 'path': '{}', 'file': 'the same file'}


def in_words(token: str) -> str:
    """A token, for people. That of another thing is returned as it is."""
    sort, _, name = token.partition(':')
    return _WORDS[sort].format(name) if sort in _WORDS else token


def of_card(address: str, physfn: str | None, has_vfs: bool) -> Exclusions:
    """What excludes a PCI function for its card: a part of a physical function, or such a function."""
    return exclusions(of_function(address) if has_vfs and physfn is None else None,
                      [] if physfn is None else [of_function(physfn)])


def exclusions(own: str | None, within: Iterable[str]) -> Exclusions:
    """What excludes a device that is a thing, or none with a name of its own, and lies within others.

    :param own: the token of the thing
    :param within: the tokens of all that contains it
    """
    found = {} if own is None else {own: vocabulary.WHOLE}
    for token in within:
        found.setdefault(token, vocabulary.PART)
    return tuple(found.items())
