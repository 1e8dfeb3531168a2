"""Which device of a destination takes the place of which device of the source, when a guest moves live.

A guest that runs goes on with the device that it sees, so a partner is of the same kind and resource class and has the
same traits to the last byte: a larger namespace would do for the way there and not for the way back. That is an
equivalence, so the devices fall into classes, and taking partners within a class in their order finds as many pairs as
there can be. What has an order among the source's devices has it among their partners.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from collections.abc import Sequence
from typing import NamedTuple

from devicetrack import exception


class Paired(NamedTuple):
    """One device as pairing sees it.

    ``traits`` is what the guest sees of it: the type of a mediated device; label and size in bytes of a namespace.
    """

    kind: str
    identifier: str
    resource_class: str
    traits: tuple[Hashable, ...]


def pair(source: Sequence[Paired], destination: Sequence[Paired]) -> tuple[tuple[int, int], ...]:
    """Find a partner for every device of the source, and no device twice.

    The same devices in the same order give the same pairs. Devices of the destination may be left over.

    :returns: indices into ``source`` and ``destination``, in the order of the source
    :raises NoDevicePair: names the first device that has none, and says why
    """
    free: dict[Hashable, deque[int]] = {}
    for index, device in enumerate(destination):
        free.setdefault(_class_of(device), deque()).append(index)
    pairs = []
    for index, device in enumerate(source):
        partners = free.get(_class_of(device))
        if not partners:
            raise exception.NoDevicePair(device.kind, device.identifier, _why(device, destination))
        pairs.append((index, partners.popleft()))
    return tuple(pairs)


def _class_of(device: Paired) -> Hashable:
    return device.kind, device.resource_class, device.traits


def _why(device: Paired, destination: Sequence[Paired]) -> str:
    """Why nothing of the destination is a partner, or one more partner, of a device."""
    of_kind = [other for other in destination if other.kind == device.kind]
    of_class = [other for other in of_kind if other.resource_class == device.resource_class]
    alike = [other for other in of_class if other.traits == device.traits]
    if alike:
        return f'all {len(alike)} devices like it stand for others'
    wanted = _text(device.traits)
    if of_class:
        there = sorted({_text(other.traits) for other in of_class})
        return f'it has {wanted}, and the devices of class {device.resource_class} there have {" or ".join(there)}'
    if of_kind:
        classes = sorted({other.resource_class for other in of_kind})
        return f'it is of class {device.resource_class}, and the devices there are of {" or ".join(classes)}'
    return 'the claim there has no device of its kind'


def _text(traits: tuple[Hashable, ...]) -> str:
    return ' '.join(map(str, traits)) or 'nothing'
