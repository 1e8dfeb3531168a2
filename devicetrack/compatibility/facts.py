"""What is declared about devices, and about which: types, facts, and who said them."""

from __future__ import annotations

import functools
from typing import Final
from typing import NamedTuple

from devicetrack import exception
from devicetrack.compatibility.versions import MigrationVersion
from devicetrack.compatibility.versions import STATELESS
from devicetrack.compatibility.versions import Unknown
from devicetrack.objects import details
from devicetrack.objects import DeviceAssignment

# What a source can say of a type.
SUBJECTS: Final = ('version', 'required', 'offered', 'aggregation')


class Sort(NamedTuple):
    """The type of a device, within its kind."""

    kind: str
    type: str

    def __str__(self) -> str:
        return f'{self.kind} {self.type}'


class Facts(NamedTuple):
    """What a host declares about a device.

    ``type`` of ``sort`` is the id of an mdev type; the number of a virtual function's vGPU type; label, size and
    alignment of a namespace. ``api`` is the device API (``vfio-pci``), or what backs memory (``devdax``). A guest on
    the device needs the features that are ``required``; one that comes finds those that are ``offered``.
    ``aggregation`` counts the units of a type that is made of units, None for others. ``obstacle`` says why the host's
    software cannot migrate the kind.
    """

    sort: Sort
    api: str
    version: MigrationVersion
    required: frozenset[str] = frozenset()
    offered: frozenset[str] = frozenset()
    aggregation: int | None = None
    obstacle: str | None = None


class TypeAtParent(NamedTuple):
    """What a declaration is about, within its host. Types of a kind without parents are at None."""

    kind: str
    parent: str | None
    type: str


class Declaration(NamedTuple):
    """Facts about devices of one type at one parent.

    ``sources`` names who said what, by subject. ``driver`` is the version of the parent's driver, where it has one: the
    deployment's table may go by it.
    """

    parent: str | None
    facts: Facts
    sources: tuple[tuple[str, str], ...] = ()
    driver: str | None = None

    @property
    def about(self) -> TypeAtParent:
        return TypeAtParent(self.facts.sort.kind, self.parent, self.facts.sort.type)


class Look(NamedTuple):
    """What the details of a device say of its type."""

    type: str
    api: str
    is_stateless: bool

    @classmethod
    def of(cls, known: details.DeviceDetails) -> Look:
        return cls(known.migration_type, getattr(known, 'device_api', ''), known.is_stateless)


@functools.lru_cache(maxsize=1 << 14)
def look_at(text: str) -> Look:
    """What details say as they are stored. Those of a newer release or of another kind say nothing that we know."""
    try:
        return Look.of(details.peek(text))
    except (exception.UnknownObject, exception.MalformedObject):
        return Look('', '', False)


def facts_undeclared(device: DeviceAssignment) -> Facts:
    """What is known of a device of another host that declares nothing."""
    look = Look.of(device.details)
    version = STATELESS if look.is_stateless else Unknown('its host declares nothing')
    return Facts(Sort(device.kind, look.type), look.api, version)
