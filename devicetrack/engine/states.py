"""What the ledger says: frozen values, which its callers keep."""

from __future__ import annotations

from typing import NamedTuple

from devicetrack.objects.values import Candidate
from devicetrack.objects.values import DeviceKey


class Hold(NamedTuple):
    """What one take holds for an instance, in the order of the guest.

    A device that is to be made has no identifier in ``candidates`` and a name of the ledger's own in ``keys``, until
    :meth:`.Ledger.name` gives it the driver's.
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
    def key(self) -> tuple[str, str | None]:
        return self.kind, self.identifier


class HeldDevice(NamedTuple):
    """One device that an instance has, as the manager's memory knows it.

    ``identifier`` is None while it is being claimed and not named yet. ``provider_uuid`` is where it is counted now,
    None while its provider was not created yet. ``releasing`` when it is on its way back. ``in_doubt`` when a commit
    about it got no answer: whether the instance has it, or gave it up, is for the store to say at the next audit.
    """

    kind: str
    identifier: str | None
    instance_uuid: str
    provider_uuid: str | None
    resource_class: str
    parent: str | None
    releasing: bool
    in_doubt: bool = False


class PoolState(NamedTuple):
    """The devices of one pool, counted.

    ``total`` counts those that are there or claimed, and ``makes`` what the parent could make beside them. ``room`` is
    what can be had now, of existing devices (``free``) and new ones. ``details`` are those of one of its devices.
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


class Available(NamedTuple):
    """A free device, or with ``identifier`` None as many as a parent can make."""

    kind: str
    parent: str | None
    identifier: str | None
    details: str
    amount: int
