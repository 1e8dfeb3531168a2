"""The facts of the versioned objects, in the form in which they are used inside one process.

A versioned object costs tens of microseconds to make and to serialize, so it stands at the boundary: on the wire, in
the caller's hands. Between the layers the same facts travel as these tuples. ``details`` is always the stored text of
a :class:`~devicetrack.objects.details.DeviceDetails` object: made once, when the inventory is read, and handed on
untouched.
"""

from __future__ import annotations

from typing import NamedTuple


class DeviceKey(NamedTuple):
    """What names a device on its host. Nothing else about a device is part of its identity."""

    kind: str
    identifier: str


class Record(NamedTuple):
    """One assignment as it stands in the store: one row.

    ``position`` counts from 0 in the order of the request. ``generation`` counts the writes of the row from 1.
    ``created_at`` is in seconds since the epoch and only a label. ``seen`` is the highest migration version, as
    major.minor.patch, that the guest may have seen of the device since its boot; None when nobody knows, as of a row
    that was made again of what a guest records.
    """

    host_uuid: str
    kind: str
    identifier: str
    instance_uuid: str
    migration_uuid: str | None
    role: str
    state: str
    position: int
    claim_id: str
    generation: int
    provider_uuid: str
    resource_class: str
    parent: str | None
    numa_node: int | None
    details: str
    created_at: int
    seen: str | None = None

    @property
    def key(self) -> DeviceKey:
        return DeviceKey(self.kind, self.identifier)


class Leftover(NamedTuple):
    """A migration whose allocations in placement must go, sooner or later."""

    instance_uuid: str
    migration_uuid: str


class Candidate(NamedTuple):
    """A device that the ledger holds for an instance; ``identifier`` is None for one that does not exist yet."""

    kind: str
    identifier: str | None
    provider_uuid: str
    resource_class: str
    parent: str | None
    numa_node: int | None
    details: str


class InventoryDevice(NamedTuple):
    """One device that exists on the host.

    ``provider`` is the stable name of the parent that placement counts it at, or '' for the node itself.
    ``unhealthy`` is None, or the reason why the device must not be handed out. A device that is not ``adoptable`` was
    made by somebody else for a purpose of his own: well, and not for us to hand out. ``details`` is what
    :func:`devicetrack.objects.details.to_text` makes, never '': an assignment of the device is read with it.
    """

    kind: str
    identifier: str
    provider: str
    resource_class: str
    parent: str | None
    numa_node: int | None
    details: str
    unhealthy: str | None = None
    adoptable: bool = True

    @property
    def key(self) -> DeviceKey:
        return DeviceKey(self.kind, self.identifier)


class Capacity(NamedTuple):
    """How many devices of one type a parent can still make, as it said when it was read.

    The types of one parent share its capacity, and not linearly: creating one of a type may take any number of
    another away. ``details`` is the text that every device made here starts with.
    """

    kind: str
    parent: str
    device_type: str
    provider: str
    resource_class: str
    numa_node: int | None
    available: int
    details: str


class Unknown(NamedTuple):
    """A part of a view that could not be read. Unknown is never empty: nothing is freed on it."""

    what: str
    reason: str


class Missing(NamedTuple):
    """A device that an option names and that the host does not have.

    It is a mistake in the option, or a device that went away since: the rows tell which.
    """

    key: DeviceKey
    option: str
    reason: str


class Inventory(NamedTuple):
    """What the host has: devices that exist, and what can still be made.

    ``known_kinds`` are the device kinds whose part was read in full; for every other configured kind ``unknown``
    says why it was not, and nothing is concluded from the absence of its devices. ``missing`` are devices that options
    name.
    """

    devices: tuple[InventoryDevice, ...]
    capacities: tuple[Capacity, ...]
    known_kinds: frozenset[str]
    unknown: tuple[Unknown, ...] = ()
    missing: tuple[Missing, ...] = ()

    @property
    def providers(self) -> frozenset[str]:
        """The stable names of the providers of what there is and of what can be made."""
        return frozenset((*(device.provider for device in self.devices),
                          *(capacity.provider for capacity in self.capacities)))


class Attribute(NamedTuple):
    """What a host says when it is asked for an attribute: its text, or why that cannot be told.

    With neither of them the host has no such attribute.
    """

    text: str | None = None
    problem: str | None = None


class MigrationType(NamedTuple):
    """What a parent says of a type of its devices, for guests that move with one of them while they run.

    ``version`` and ``aggregation`` are as the host has them, and nobody has looked at them. ``driver`` is the version
    of the parent's driver, where it has one.
    """

    kind: str
    parent: str | None
    type: str
    version: Attribute = Attribute()
    aggregation: Attribute = Attribute()
    driver: str | None = None


class Use(NamedTuple):
    """A domain names a device, by the hypervisor's word.

    ``identifier`` is None when the address in the definition (a path) belongs to no device of this host's inventory.
    ``running`` is about the domain, ``live`` and ``defined`` about which of its definitions names the device.
    """

    kind: str
    identifier: str | None
    address: str
    domain_uuid: str
    running: bool
    live: bool
    defined: bool


class Usage(NamedTuple):
    """Who uses what on this host. Only with ``unknown`` empty does absence mean that nobody uses a device.

    ``arriving`` are domains, all of them in ``running`` too, that wait for an incoming migration: they use their
    devices, and their guest does not run here yet.
    """

    uses: tuple[Use, ...]
    domains: frozenset[str]
    running: frozenset[str]
    unknown: tuple[Unknown, ...] = ()
    arriving: frozenset[str] = frozenset()


class GuestConfig(NamedTuple):
    """What a guest's definition needs for its devices.

    One element for each device, in the order of the guest, and one for the definition's metadata, '' without devices.
    """

    devices: tuple[str, ...] = ()
    metadata: str = ''


class Realized(NamedTuple):
    """What realizing one assignment found: its details as they are now, and its parent's capacities read after it."""

    key: DeviceKey
    details: str
    capacities: tuple[Capacity, ...] = ()


class RecordedDevice(NamedTuple):
    """One device as the definition of its guest records it; ``details`` is the stored text of its details.

    One that is ``beside`` belongs to the instance and not to this definition: the guest has no element for it.
    """

    kind: str
    identifier: str
    resource_class: str
    provider_uuid: str
    parent: str | None
    numa_node: int | None
    position: int
    claim_id: str
    role: str
    migration_uuid: str | None
    details: str
    beside: bool = False


class GuestRecord(NamedTuple):
    """All devices of one instance as the definition of its guest records them.

    ``boot_id`` names the boot of the host whose addresses the definition has; None where it does not say.
    """

    instance_uuid: str
    host_uuid: str
    flavor: str | None
    devices: tuple[RecordedDevice, ...]
    boot_id: str | None = None


class MigrationDefinitions(NamedTuple):
    """The definitions that a live migration takes along, with the destination's devices in them.

    ``persistent`` is None for a transient guest. They hold a guest's secrets: hand them to the hypervisor, and write
    them nowhere.
    """

    live: str
    persistent: str | None

    def __repr__(self) -> str:
        lengths = (f'{name}=<{len(text)} characters>' for name, text in zip(self._fields, self, strict=True) if text)
        return f'MigrationDefinitions({", ".join(lengths)})'
