"""The facts of the versioned objects as plain tuples, for use inside one process.

A versioned object takes tens of microseconds to make and to serialize, so callers and the wire get versioned objects,
and the layers hand these tuples to one another. ``details`` is always the stored text of a
:class:`~devicetrack.objects.details.DeviceDetails` object. It is made once, when the inventory is read, and never
changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import Final
from typing import NamedTuple

from devicetrack import vocabulary
from devicetrack.objects.choice import Features
from devicetrack.objects.choice import NO_FEATURES
from devicetrack.objects.compact import Compact
from devicetrack.objects.things import Exclusions


class DeviceKey(NamedTuple):
    """The identity of a device on its host. Everything else about the device may change."""

    kind: str
    identifier: str

    def __str__(self) -> str:
        return f'{self.kind}/{self.identifier}'


# The generation of a row that was written once.
FIRST_GENERATION: Final = 1
# The generation of a row with a value of a wrong type. No write names it, so the row stays as it is.
UNKNOWN_GENERATION: Final = -1
# Longer names of instances are cut: those of compute services have so many characters.
NAME_LENGTH: Final = 255
# Begins the escape of each byte in such a row that is no text.
ESCAPE: Final = '\\x'


class Record(NamedTuple):
    """One row of the store: one assignment, with the fields of :class:`~devicetrack.objects.DeviceAssignment`.

    ``seen`` is in the form major.minor.patch. ``instance_name`` is what people called the instance when it was claimed,
    None if that was not recorded. It is only shown.
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
    was_realized: bool = True
    instance_name: str | None = None

    @property
    def key(self) -> DeviceKey:
        return DeviceKey(self.kind, self.identifier)

    def changed(self, **facts: Any) -> Record:
        """The row as its next write leaves it. If its guest runs then, its device was realized."""
        after = self._replace(generation=self.generation + 1, **facts)
        return after._replace(was_realized=True) if after.state == vocabulary.ACTIVE else after


class Leftover(NamedTuple):
    """A confirm or a revert that has yet to reach placement.

    ``verb`` is ``confirm`` or ``revert``, or None when nobody knows which of them it is. ``own`` are the
    allocations that the move gave to the instance, as a JSON object; None when they are unknown.
    """

    instance_uuid: str
    migration_uuid: str
    verb: str | None = None
    own: str | None = None


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

    ``provider`` is the stable name of the provider that placement counts the device at, or '' for the node itself.
    ``parent`` is the name of the device that this one is a part of or was made by, or None. Both have no slash.
    ``unhealthy`` is None, or the reason why the device must not be handed out. A device that is not ``assignable`` is
    healthy, but somebody else made it for their own use, so we do not hand it out. ``details`` comes from
    :func:`devicetrack.objects.details.to_text` and is never ''. Assignments of the device are read with it.
    ``migration_type`` is the same as in these details, or None: then the details are read for it. A kind that may have
    thousands of devices sets it.

    ``exclusions`` are pairs of a token and a mode (:data:`devicetrack.vocabulary.EXCLUSION_MODES`), each token once.
    They say which devices may not be held beside it: a physical function is the whole of a token and its virtual
    functions are the parts, and the functions of one IOMMU group go together. If a row names a whole as the parent of
    its device, the whole also excludes that device while the host does not have it. Its token for that is its kind, a
    slash and its identifier, which a whole does not name itself.

    ``features`` are words by which a request chooses among the devices of a class (:class:`.choice.Choice`), each once
    and in their order.
    """

    kind: str
    identifier: str
    provider: str
    resource_class: str
    parent: str | None
    numa_node: int | None
    details: str
    unhealthy: str | None = None
    assignable: bool = True
    migration_type: str | None = None
    exclusions: Exclusions = ()
    features: Features = NO_FEATURES

    @property
    def key(self) -> DeviceKey:
        return DeviceKey(self.kind, self.identifier)

    def row(self, host_uuid: str, instance_uuid: str, state: str, position: int, claim_id: str,
            provider_uuid: str) -> Record:
        """The row for an owner whom no claim made one. ``created_at`` is 0: the writer knows the time."""
        return Record(host_uuid, self.kind, self.identifier, instance_uuid, None, vocabulary.CURRENT, state, position,
                      claim_id, FIRST_GENERATION, provider_uuid, self.resource_class, self.parent, self.numa_node,
                      self.details, 0)


class Capacity(NamedTuple):
    """How many devices of one type a parent could still make when it was read.

    The types of one parent share its capacity, and not linearly: one device of a type may cost any number of devices of
    another type. No two of these types have one resource class. Every device that the parent makes starts with the text
    ``details``. ``taken_by`` says what takes the room of a parent that has none left, '' if only such devices do.
    """

    kind: str
    parent: str
    device_type: str
    provider: str
    resource_class: str
    numa_node: int | None
    available: int
    details: str
    taken_by: str = ''


class Unknown(NamedTuple):
    """A part of a view that could not be read. Unknown is never empty: nothing is freed on it.

    ``what`` begins with ``domain`` and a UUID if it is a part of that domain.
    """

    what: str
    reason: str

    def is_of_another(self, domain_uuid: str) -> bool:
        """Whether it is a part of another domain than this one."""
        return self.what.startswith('domain ') and not self.what.startswith(f'domain {domain_uuid}')


class Holding(NamedTuple):
    """A device that the compute service itself hands out, by the service's own record.

    ``instance_uuid`` is the instance that has it, None for none. The guest of that instance ``is_expected`` to have it
    now: nothing of the service is under way that gives it to the guest or takes it away. A guest that has it
    ``by_interface`` has an interface that the host makes of it, so its definition does not name the device. The
    options of the service ``name`` it: otherwise the service only keeps it until its instance is gone. ``serial`` is
    its serial number in the service's record, '' if that has none.
    """

    kind: str
    identifier: str
    instance_uuid: str | None = None
    is_expected: bool = False
    by_interface: bool = False
    is_named: bool = True
    serial: str = ''

    @property
    def key(self) -> DeviceKey:
        return DeviceKey(self.kind, self.identifier)


class SeenDevice(NamedTuple):
    """A device of the service as it was when its present owner got it, or when it was first seen without one.

    ``instance_uuid`` is the owner, None for none. ``details`` is the stored text of its details, and ``serial`` the
    serial number of its card, '' if that was unknown.
    """

    instance_uuid: str | None
    details: str
    serial: str


class Missing(NamedTuple):
    """A device that an option names and that the host does not have.

    ``option`` is the option as people name it, ``[group] name``, for example ``[scratch] directory``.
    Either the option is wrong, or the device has gone since: the rows tell which.
    """

    key: DeviceKey
    option: str
    reason: str


class Fault(NamedTuple):
    """A part of the host that does not follow an option, and why. ``key`` is its name as a device.

    ``option`` is as in :class:`Missing`. A fault concerns no other device.
    """

    key: DeviceKey
    option: str
    reason: str


class Overlap(NamedTuple):
    """Two devices that are the same thing on the host. ``what`` is its PCI address, or the path of its node or file."""

    devices: tuple[DeviceKey, DeviceKey]
    what: str


# The instance of the assignments in which drivers get devices without an owner.
NOBODY: Final = '00000000-0000-0000-0000-000000000000'


class Word(NamedTuple):
    """A person's word that a device is clean: who gives it, and why that person knows."""

    who: str
    why: str

    @property
    def how(self) -> str:
        """How the device was proven clean, for the proof, the history and people."""
        return f'{vocabulary.WORD_OF}{self.who}: {self.why}'


class Containment(NamedTuple):
    """The exclusions that follow from what contains what on the host, beside those of the devices that the host has.

    ``recorded`` are those of devices that only rows name, and ``made`` those that each device has which a parent makes,
    by the kind and the name of the parent. ``strangers`` are those of things that domains use and that are neither a
    device of the host nor one of a row, by address. ``unread`` are those of devices that an earlier look showed, and
    whose kind could not be read now.
    """

    recorded: Mapping[DeviceKey, Exclusions] = {}
    made: Mapping[tuple[str, str], Exclusions] = {}
    strangers: Mapping[str, Exclusions] = {}
    unread: Mapping[DeviceKey, Exclusions] = {}


NOTHING_CONTAINED: Final = Containment()


class Inventory(NamedTuple):
    """The devices that exist on the host, and those that its parents can still make.

    ``known_kinds`` are the device kinds whose part was read in full. For every other configured kind ``unknown`` says
    why it was not, and nobody may conclude anything from the absence of its devices. ``missing`` are devices that
    options name and that the host does not have.

    ``keeping`` are the kinds whose devices keep what a guest wrote to them. ``unproven`` are those of their devices
    that nothing on this host proves clean. Most held devices are among them, and for these it means nothing.
    ``by_person`` are those that nothing here can clean, by the options: only the word of a person proves them clean.
    Devices that are in ``overlaps`` are unhealthy: a guest on one of them would be a guest on both. ``faults`` is for
    people.

    ``observed`` are devices that the service itself hands out, for people: nothing here gives them to a guest.

    ``sockets`` are pairs of a NUMA node and its processor socket. It is empty if the socket of any node is unknown.
    ``mediated_devices`` are the UUIDs of all that exist, whoever made them, and whether a kind knows them or not.
    """

    devices: Sequence[InventoryDevice]
    capacities: tuple[Capacity, ...]
    known_kinds: frozenset[str]
    unknown: tuple[Unknown, ...] = ()
    missing: tuple[Missing, ...] = ()
    keeping: frozenset[str] = frozenset()
    unproven: frozenset[tuple[str, str]] = frozenset()
    overlaps: tuple[Overlap, ...] = ()
    faults: tuple[Fault, ...] = ()
    sockets: tuple[tuple[int, int], ...] = ()
    by_person: frozenset[tuple[str, str]] = frozenset()
    mediated_devices: frozenset[str] = frozenset()
    observed: tuple[InventoryDevice, ...] = ()

    @property
    def providers(self) -> frozenset[str]:
        """The stable names of the providers of all devices and capacities."""
        of_devices: Iterator[str] = Compact(InventoryDevice, self.devices).column('provider')
        return frozenset(of_devices).union(capacity.provider for capacity in self.capacities)


class Attribute(NamedTuple):
    """An attribute of the host: its text, or the problem that kept it from being read.

    Without either, the host has no such attribute.
    """

    text: str | None = None
    problem: str | None = None


class MigrationType(NamedTuple):
    """What a parent declares for the live migration of its devices of one type.

    ``version`` and ``aggregation`` are the host's own text, not yet interpreted. ``driver`` is the version of the
    parent's driver, if it has one. ``obstacle`` says why the host cannot migrate the type.
    """

    kind: str
    parent: str | None
    type: str
    version: Attribute = Attribute()
    aggregation: Attribute = Attribute()
    driver: str | None = None
    obstacle: str | None = None


class Use(NamedTuple):
    """A domain of the hypervisor names a device.

    ``identifier`` is None when the address in the definition (a path) belongs to no device of this host's inventory.
    ``running`` says whether the domain runs. ``live`` and ``defined`` say which of its definitions name the device. If
    neither does, only a snapshot of the domain names it.
    """

    kind: str
    identifier: str | None
    address: str
    domain_uuid: str
    running: bool
    live: bool
    defined: bool

    @property
    def in_snapshot_only(self) -> bool:
        """Whether the domain gets the device only if somebody reverts it to a snapshot."""
        return not (self.live or self.defined)

    def may_mean(self, key: DeviceKey, owner: str | None) -> bool:
        """Whether this may be a use of a device by an address that leads to no device now.

        So it may if the address is the device's identifier, or if the domain is that of the device's owner and has the
        address in a definition: an old snapshot may name a device that is long gone.

        :param owner: the instance that has the device; None for a device without an owner
        """
        return self.identifier is None and self.kind == key.kind and (
            self.address == key.identifier or (self.domain_uuid == owner and not self.in_snapshot_only))


class Usage(NamedTuple):
    """Which domains of this host use which devices. A device without a use is unused only if ``unknown`` is empty.

    ``arriving`` are the domains of ``running`` that wait for an incoming migration: they use their devices, but their
    guest does not run here yet. :meth:`runs_here` tells them from the others. ``others`` are addresses in definitions
    that mean PCI functions of no device kind, each after the UUID of its domain. ``without_record`` are the domains
    that use devices and whose definitions have no record of ours: if the store is lost, nothing says whose these are.
    """

    uses: Sequence[Use]
    domains: frozenset[str]
    running: frozenset[str]
    unknown: tuple[Unknown, ...] = ()
    arriving: frozenset[str] = frozenset()
    others: tuple[tuple[str, str], ...] = ()
    without_record: frozenset[str] = frozenset()

    def without(self, domain_uuid: str) -> Usage:
        """Return the usage by all other domains."""
        return self._replace(uses=tuple(use for use in self.uses if use.domain_uuid != domain_uuid),
                             others=tuple(one for one in self.others if one[0] != domain_uuid))

    def runs_here(self, domain_uuid: str) -> bool:
        """Say whether a guest runs on this host, and does not merely wait here for an incoming migration."""
        return domain_uuid in self.running and domain_uuid not in self.arriving


class GuestConfig(NamedTuple):
    """What a guest's definition needs for its devices.

    ``devices`` has one element for each device, in the order of the guest. ``metadata`` is the element for the
    definition's metadata, or '' when the guest has no devices.
    """

    devices: tuple[str, ...] = ()
    metadata: str = ''


class Realized(NamedTuple):
    """One realized assignment: the present details of its device, and its parent's capacities as read afterwards."""

    key: DeviceKey
    details: str
    capacities: tuple[Capacity, ...] = ()


class RecordedDevice(NamedTuple):
    """One device in the record of a guest's definition; ``details`` is the stored text of its details.

    A device that is ``beside`` belongs to the instance, but the definition has no element for it.
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

    @property
    def key(self) -> DeviceKey:
        return DeviceKey(self.kind, self.identifier)

    def row(self, host_uuid: str, instance_uuid: str, role: str, state: str) -> Record:
        """The row that a store without it lacks. ``created_at`` is 0: the writer knows the time."""
        return Record(host_uuid, self.kind, self.identifier, instance_uuid, self.migration_uuid, role, state,
                      self.position, self.claim_id, FIRST_GENERATION, self.provider_uuid, self.resource_class,
                      self.parent, self.numa_node, self.details, 0)


class GuestRecord(NamedTuple):
    """The record of one instance's devices in the definition of its guest.

    The addresses in the definition are those of the boot ``boot_id`` of the host, or of an unknown boot if it is None.
    """

    instance_uuid: str
    host_uuid: str
    flavor: str | None
    devices: tuple[RecordedDevice, ...]
    boot_id: str | None = None


class MigrationDefinitions(NamedTuple):
    """The definitions to migrate a guest with. They name the destination's devices.

    ``persistent`` is None for a transient guest. Definitions hold secrets of the guest: hand them to the hypervisor,
    and write them nowhere.
    """

    live: str
    persistent: str | None

    def __repr__(self) -> str:
        lengths = (f'{name}=<{len(text)} characters>' for name, text in zip(self._fields, self, strict=True) if text)
        return f'MigrationDefinitions({", ".join(lengths)})'


# The phase of a device that is not wiped: every byte is read, to see that the device is clean.
READ: Final = 'read'

_DONE_IN: Final = {'zero': 'written', 'discard': 'discarded', 'format': 'erased', 'sanitize': 'erased', READ: 'read'}


class WipeProgress(NamedTuple):
    """How far the wipe of a device is: first every byte is written or erased, then every byte is read back.

    ``phase`` is ``zero``, ``discard``, ``format``, ``sanitize`` or ``verify``. An operator's program has the phase
    ``program``, in which 100 "bytes" are the whole. In ``read`` nothing is wiped: a device without a proof is read.
    ``left_s`` is an estimate for all phases together, None when nobody can say.
    """

    phase: str
    done_bytes: int
    size_bytes: int
    bytes_per_s: int
    left_s: int | None

    @property
    def is_wipe(self) -> bool:
        """Whether the device is wiped, and not only read."""
        return self.phase != READ

    def __str__(self) -> str:
        if self.phase == 'program':
            return f'{self.done_bytes} of 100 % by its program'
        done = _DONE_IN.get(self.phase, 'read back')
        left = '' if self.left_s is None else f', about {self.left_s:,} s left'
        shift, unit = _unit(self.size_bytes)
        amount = f'{self.done_bytes >> shift:,} of {self.size_bytes >> shift:,} {unit}'
        shift, unit = _unit(self.bytes_per_s)
        return f'{amount} {done}, {self.bytes_per_s >> shift:,} {unit}/s{left}'


def _unit(size_bytes: int) -> tuple[int, str]:
    """The number of bits by which an amount is shifted for people, and the unit that it then has."""
    return (20, 'MiB') if size_bytes >> 20 else (10, 'KiB') if size_bytes >> 10 else (0, 'bytes')
