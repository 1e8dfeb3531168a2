"""The answers of the ledger: frozen values, which its callers may keep."""

from __future__ import annotations

from typing import NamedTuple

from devicetrack.objects.values import Candidate
from devicetrack.objects.values import DeviceKey


class Hold(NamedTuple):
    """The devices that one take holds for an instance, in the order of the guest.

    A device that will be made has no identifier in ``candidates``, and a temporary name of the ledger in ``keys``.
    :func:`.ledger.name` replaces that by the driver's name.
    """

    instance_uuid: str
    keys: tuple[DeviceKey, ...]
    candidates: tuple[Candidate, ...]

    @property
    def is_named(self) -> bool:
        return None not in [candidate.identifier for candidate in self.candidates]


class DeviceState(NamedTuple):
    """One device as the ledger has it. ``identifier`` is None while it is claimed and not named yet."""

    kind: str
    identifier: str | None
    provider_uuid: str
    resource_class: str
    parent: str | None
    numa_node: int | None
    details: str
    state: int
    instance_uuid: str | None
    withheld: frozenset[str]
    unborn: bool

    @property
    def key(self) -> DeviceKey:
        return DeviceKey(self.kind, self.identifier or '')


class PoolState(NamedTuple):
    """The devices of one pool, counted.

    ``total`` counts the devices that exist or are claimed, and ``makes`` those that the parent could make in addition.
    ``room`` is the number that claims can take now, existing devices (``free``) and new ones. ``details`` are those of
    one of its devices. ``excluded`` names who has what contains the devices that the parent could make.
    """

    kind: str
    provider_uuid: str
    resource_class: str
    parent: str | None
    numa_node: int | None
    details: str
    total: int
    makes: int
    room: int
    free: int
    held: int
    releasing: int
    excluded: str | None = None
