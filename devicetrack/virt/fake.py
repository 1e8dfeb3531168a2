"""A host in memory, and the driver for it. The library ships it, so that other projects can test against it too.

:class:`FakeHost` is the machine: devices, parents that make more of them, domains that name them by their addresses of
this boot, and the bytes that a guest left on them. A manager uses a :class:`FakeDriver`. Any number of drivers share a
host, so a new manager finds the host as a killed one left it. The driver passes the tests that every driver passes.

Failures are staged with :meth:`FakeHost.before`, by call and not by chance::

    host.before('realize', exception.HypervisorUnreachable('fake', 'restarting'), times=1)
    host.before('unclaim', lambda: barrier.wait())
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import dataclasses
import json
import threading
from typing import Any
import uuid

from devicetrack import exception
from devicetrack import log
from devicetrack import vocabulary
from devicetrack.conf import manager as manager_options
from devicetrack.objects import details
from devicetrack.objects import DeviceAssignment
from devicetrack.objects import DeviceMap
from devicetrack.objects import MdevDetails
from devicetrack.objects import PCIDetails
from devicetrack.objects import VPMEMDetails
from devicetrack.objects.network_port import Port
from devicetrack.objects.pci_alias import PCIAlias
from devicetrack.objects.values import Capacity
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import GuestConfig
from devicetrack.objects.values import GuestRecord
from devicetrack.objects.values import Inventory
from devicetrack.objects.values import InventoryDevice
from devicetrack.objects.values import MigrationDefinitions
from devicetrack.objects.values import MigrationType
from devicetrack.objects.values import Missing
from devicetrack.objects.values import Overlap
from devicetrack.objects.values import Realized
from devicetrack.objects.values import Unknown
from devicetrack.objects.values import Usage
from devicetrack.objects.values import Use
from devicetrack.objects.values import WipeProgress
from devicetrack.virt import driver
from devicetrack.virt import fake_functions
from devicetrack.virt import fake_guests
from devicetrack.virt import metadata

LOG = log.logger(__name__)

VPMEM = 'vpmem'
MDEV = 'mdev'
PCI = fake_functions.PCI
KINDS = frozenset((VPMEM, MDEV))                # of every host; one that gets PCI functions has these too
KEEPING = frozenset((VPMEM, PCI))               # devices that keep what guests write

Domain = fake_guests.Domain
addresses_in = fake_guests.addresses_in
elements_in = fake_guests.elements_in
metadata_in = fake_guests.metadata_in

Action = BaseException | Callable[[], object]


@dataclasses.dataclass
class Parent:
    """A device that makes mediated devices. Its types share ``units``; a device of a type takes ``costs`` of them."""

    name: str
    units: int
    costs: dict[str, int]
    resource_class: str
    numa_node: int | None
    address: str | None
    templates: dict[str, str]
    used: int = 0


class FakeHost:
    """One machine in memory. Its methods do what hardware, an operator and other software do to a machine.

    Threads may share it. ``calls`` counts the calls of drivers by name. ``unknown_kinds`` (kind to reason) makes parts
    of the inventory unreadable, ``unknown_domains`` (domain UUID to reason) makes documents unreadable, and with a
    reason in ``disconnected`` the hypervisor gives no answer at all. ``live_migration_obstacles`` (kind to reason)
    keeps guests from moving, and ``migration_obstacles`` (device to reason) one guest. ``unproven`` are the namespaces
    and functions that no proof on this machine calls clean; the machine keeps its proofs when managers and stores are
    gone. ``wiping`` says how far wipes are, for tests that look at that. ``sockets`` are pairs of a NUMA node and its
    socket. ``lent`` are the functions that have the driver for guests: the hypervisor gives them that when it starts a
    guest, and never takes it away, as libvirt does when it is killed at the wrong moment. ``ports`` are the ports of
    networks that functions are.
    """

    _hosts: dict[str, FakeHost] = {}

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.calls: collections.Counter[str] = collections.Counter()
        self.unknown_kinds: dict[str, str] = {}
        self.unknown_domains: dict[str, str] = {}
        self.disconnected: str | None = None
        self.live_migration_obstacles: dict[str, str] = {}
        self.migration_obstacles: dict[DeviceKey, str] = {}
        self.boot = str(uuid.uuid4())
        self.kinds = KINDS
        self.devices: dict[DeviceKey, InventoryDevice] = {}
        self.parents: dict[str, Parent] = {}
        self.domains: dict[str, Domain] = {}
        self.contents: dict[DeviceKey, bytes] = {}
        self.unproven: set[DeviceKey] = set()
        self.lent: set[DeviceKey] = set()
        self.ports: dict[DeviceKey, Port] = {}
        self.wiping: dict[DeviceKey, WipeProgress] = {}
        self.busy: set[DeviceKey] = set()
        self.missing: tuple[Missing, ...] = ()
        self.overlaps: tuple[Overlap, ...] = ()
        self.resource_classes: set[str] = set()
        self.aliases: dict[str, PCIAlias] | None = None
        self.sockets: tuple[tuple[int, int], ...] = ()
        self._declared: dict[tuple[str, str | None, str], MigrationType] = {}
        self._addresses: dict[DeviceKey, str] = {}
        self._owners_of_addresses: dict[str, DeviceKey] = {}
        self._actions: dict[str, list[tuple[Action, int | None]]] = {}
        self._devices: tuple[InventoryDevice, ...] | None = None

    @classmethod
    def named(cls, name: str) -> FakeHost:
        """Return the host of this name in this process. The first call makes it."""
        return cls._hosts.setdefault(name, cls())

    @classmethod
    def forget(cls, name: str) -> None:
        """Let the next :meth:`named` make a new one."""
        cls._hosts.pop(name, None)

    # -- hardware ----------------------------------------------------------------------------------------------

    def add_namespace(self, name: str, label: str = '4GB', size_bytes: int = 4 << 30, numa_node: int | None = 0,
                      parent: str | None = 'region0', align_bytes: int = 2 << 20, proven: bool = True,
                      exclusions: Iterable[tuple[str, str]] = ()) -> DeviceKey:
        """Add a persistent-memory namespace. Its bytes are zero.

        :param proven: whether the machine has a proof of that; without it a manager has to see for itself
        :param exclusions: which devices may not be held beside it, as if it were a function of a PCI device: see
            :class:`~devicetrack.objects.values.InventoryDevice`
        """
        key = DeviceKey(VPMEM, name)
        with self.lock:
            path = f'/dev/fakedax{len(self._addresses)}'
            made = _details_text(VPMEMDetails, namespace_uuid=str(uuid.uuid4()), label=label, devpath=path,
                                        size_bytes=size_bytes, align_bytes=align_bytes)
            self._put(InventoryDevice(VPMEM, name, '', f'CUSTOM_PMEM_NAMESPACE_{label.upper()}', parent, numa_node,
                                      made, exclusions=tuple(exclusions)), path)
            if not proven or key in self.contents:
                self.unproven.add(key)
        return key

    def add_function(self, address: str, resource_class: str = 'CUSTOM_FUNCTION', physfn: str | None = None,
                     has_vfs: bool = False, vf_number: int = -1, group: str | None = None, serial: str = '',
                     numa_node: int | None = 0, proven: bool = True, traits: Iterable[str] = (),
                     physical_network: str = '') -> DeviceKey:
        """Add a PCI function. What guests leave in it is empty.

        :param physfn: the address of the physical function of a virtual one; neither goes beside the other
        :param has_vfs: whether it is a physical function with virtual ones
        :param group: functions of one group go together
        :param proven: as in :meth:`add_namespace`
        :param traits: what the options give it; guests move live with ``HW_PCI_LIVE_MIGRATABLE``
        :param physical_network: the network of which it can be a port, trusted or not; see ``ports``
        """
        device, fields = fake_functions.function(address, resource_class, physfn, has_vfs, vf_number, group, serial,
                                                 numa_node, traits, physical_network)
        with self.lock:
            self.kinds |= {PCI}
            self._put(device._replace(details=_details_text(PCIDetails, **fields)), address)
            if not proven or device.key in self.contents:
                self.unproven.add(device.key)
        return device.key

    def add_card(self, address: str, vfs: int, of_pf: str = 'CUSTOM_PF', of_vf: str = 'CUSTOM_VF',
                 traits: Sequence[str] = ()) -> list[DeviceKey]:
        """Add a physical function ``….0`` and its virtual ones, with the resource classes of either.

        :param traits: those of the virtual ones, as in :meth:`add_function`
        """
        return [self.add_function(address, of_pf, has_vfs=True), *(
            self.add_function(f'{address[:-1]}{number + 1}', of_vf, address, vf_number=number, traits=traits)
            for number in range(vfs))]

    def add_parent(self, name: str, costs: Mapping[str, int] | None = None, units: int = 16,
                   resource_class: str = 'VGPU', numa_node: int | None = 0, address: str | None = None) -> None:
        """Add a parent. By default it makes 16 devices of the type ``nvidia-35``, which count as ``VGPU``.

        :param costs: how many of the ``units`` one device of each type takes
        """
        costs = dict(costs or {'nvidia-35': 1})
        templates = {
            device_type: _details_text(
                MdevDetails, type=device_type, parent=name, parent_address=address, device_api='vfio-pci',
                iommu_group=None, origin=vocabulary.CREATED)
            for device_type in costs}
        self.resource_classes.add(resource_class)
        self.parents[name] = Parent(name, units, costs, resource_class, numa_node, address, templates)

    def declare(self, said: MigrationType) -> None:
        """Let a parent declare this of a type of its devices. By default parents declare nothing."""
        with self.lock:
            self._declared[said[:3]] = said

    def add_mdev(self, parent: str, device_type: str = 'nvidia-35', identifier: str | None = None) -> DeviceKey:
        """Make a mediated device as other software does. It may be adopted.

        :raises ParentFull: the parent has no room for it
        """
        key = DeviceKey(MDEV, identifier or str(uuid.uuid4()))
        with self.lock:
            self._create(key, self.parents[parent], device_type)
        return key

    def remove(self, key: DeviceKey) -> None:
        """Take a device away, as broken hardware or an operator does."""
        with self.lock:
            device = self.devices.pop(key)
            self._devices = None
            self._owners_of_addresses.pop(self._addresses.pop(key), None)
            if device.kind == MDEV:
                parent = self.parents[str(device.parent)]
                parent.used -= parent.costs[_fields(device.details)['type']]

    def change(self, key: DeviceKey, **values: Any) -> None:
        """Change fields of a device's details (for example ``namespace_uuid``), or fields of the device itself.

        Those are ``unhealthy``, ``adoptable`` and ``exclusions``.
        """
        with self.lock:
            device = self.devices[key]
            of_device = {name: values.pop(name) for name in ('unhealthy', 'adoptable', 'exclusions') if name in values}
            device = device._replace(**of_device)
            if {'namespace_uuid', 'size_bytes', *fake_functions.IDENTITY} & values.keys():
                self.unproven.add(key)                  # the proof was of another namespace or function
            self._put(device._replace(details=_changed(device.details, **values)), self._addresses[key])

    def reboot(self) -> None:
        """Boot again: guests are off, transient ones are gone, and namespaces have other paths.

        Functions have the host's driver again.
        """
        with self.lock:
            self.lent.clear()
            self.ports.clear()
            self.boot = str(uuid.uuid4())
            self.domains = {name: dataclasses.replace(domain, live=None, arriving=False)
                            for name, domain in self.domains.items() if domain.defined is not None}
            namespaces = [device for device in self.devices.values() if device.kind == VPMEM]
            paths = [self._addresses[device.key] for device in namespaces]
            for device, path in zip(namespaces, paths[1:] + paths[:1], strict=True):
                self._put(device._replace(details=_changed(device.details, devpath=path)), path)

    # -- guests ------------------------------------------------------------------------------------------------

    def start_guest(self, domain_uuid: str, elements: Iterable[str], define: bool = True, metadata: str = '',
                    arriving: bool = False) -> None:
        """Start a guest with device elements of ``guest_config``; without ``define`` it is a transient one.

        :param metadata: the element of ``guest_config`` for its metadata
        :param arriving: it waits for a live migration, and :meth:`arrived` defines it
        """
        addresses = tuple(addresses_in(elements))
        with self.lock:
            self._lend(addresses)
            defined = addresses if define else None
            self.domains[domain_uuid] = Domain(domain_uuid, addresses, None if arriving else defined, metadata,
                                               arriving, defined if arriving else None)

    def receive_guest(self, domain_uuid: str, definitions: MigrationDefinitions) -> None:
        """Let a guest arrive with what the source's ``migration_definitions`` returned."""
        self.start_guest(domain_uuid, elements_in(definitions.live), definitions.persistent is not None,
                         metadata_in(definitions.live), arriving=True)

    def arrived(self, domain_uuid: str) -> None:
        """Let a guest that was arriving run."""
        with self.lock:
            domain = self.domains[domain_uuid]
            domain.arriving = False
            domain.defined, domain.will_be_defined = domain.will_be_defined, None

    def stop_guest(self, domain_uuid: str) -> None:
        """Turn a guest off. A transient one is gone after that."""
        with self.lock:
            domain = self.domains[domain_uuid]
            domain.live, domain.arriving = None, False
            if domain.defined is None:
                del self.domains[domain_uuid]

    def save_guest(self, domain_uuid: str) -> None:
        """Save a guest that runs and is defined (managed save). It is off, and comes back by :meth:`power_on`."""
        with self.lock:
            domain = self.domains[domain_uuid]
            domain.saved, domain.live = domain.live, None

    def redefine_guest(self, domain_uuid: str, elements: Iterable[str]) -> None:
        """Define a guest anew with other devices, as somebody does who edits its definition."""
        with self.lock:
            self.domains[domain_uuid].defined = tuple(addresses_in(elements))

    def power_on(self, domain_uuid: str) -> None:
        """Start a guest that is defined: from its managed-save image, or else by its definition."""
        with self.lock:
            domain = self.domains[domain_uuid]
            domain.live = domain.defined if domain.saved is None else domain.saved
            domain.saved = None
            self._lend(domain.live or ())

    def _lend(self, addresses: Iterable[str]) -> None:
        """Give functions the driver for guests."""
        self.lent.update(key for address in addresses if (key := DeviceKey(PCI, address)) in self.devices)

    def delete_guest(self, domain_uuid: str) -> None:
        """Turn a guest off and undefine it, with its managed-save image. One that is gone already is no error."""
        with self.lock:
            self.domains.pop(domain_uuid, None)

    def write(self, key: DeviceKey, data: bytes) -> None:
        """Leave bytes on a device, as a guest does."""
        self.contents[key] = data

    def read(self, key: DeviceKey) -> bytes:
        """Return the bytes that the last writer left on a device; none on a wiped one."""
        return self.contents.get(key, b'')

    # -- failures ----------------------------------------------------------------------------------------------

    def before(self, call: str, action: Action, times: int | None = None) -> None:
        """Raise an error or call a function before the next ``times`` calls (None: every one) of a driver's method.

        ``call`` is ``get_inventory``, ``get_usage``, ``realize``, ``unclaim``, ``guest_config``, ``guest_records``,
        ``destroy_guest``, ``rewrite_guest``, ``rewrite_definition``, ``devices_in``, ``live_migration_obstacles``,
        ``migration_types``, ``migration_definitions``, ``prove``, or one of the steps inside: ``read``, ``wipe``,
        ``create``, ``destroy`` (before the change) and ``wiped``, ``created``, ``destroyed`` (after it, when the answer
        can still be lost). Actions run in their order, outside the host's lock.
        """
        with self.lock:
            self._actions.setdefault(call, []).append((action, times))

    def clear(self) -> None:
        """Forget every staged failure, and everything that was unknown."""
        with self.lock:
            self._actions.clear()
            self.unknown_kinds.clear()
            self.unknown_domains.clear()
            self.disconnected = None

    # -- for the driver ----------------------------------------------------------------------------------------

    def enter(self, call: str) -> None:
        """Count a call and run the actions that were staged before it."""
        with self.lock:
            self.calls[call] += 1
            if self.disconnected is not None:
                raise exception.HypervisorUnreachable('fake', self.disconnected)
            if call not in self._actions:
                return
            staged = self._actions[call]
            self._actions[call] = [(action, times if times is None else times - 1)
                                   for action, times in staged if times is None or times > 1]
        for action, _times in staged:
            if isinstance(action, BaseException):
                raise action
            action()

    def inventory(self) -> Inventory:
        with self.lock:
            if self._devices is None:
                self._devices = tuple(self.devices.values())
            unknown = dict(self.unknown_kinds)
            devices = tuple(device for device in self._devices if device.kind not in unknown) if unknown \
                else self._devices
            capacities = () if MDEV in unknown else tuple(
                capacity for parent in self.parents.values() for capacity in _capacities(parent))
        return Inventory(devices, capacities, self.kinds.difference(unknown),
                         tuple(Unknown(kind, reason) for kind, reason in unknown.items()), self.missing,
                         self.keeping, frozenset(self.unproven.intersection(self.devices)),
                         self.overlaps, sockets=self.sockets)

    @property
    def keeping(self) -> frozenset[str]:
        """The kinds of this host whose devices keep what guests write."""
        return KEEPING & self.kinds

    def usage(self, guarding: bool = False) -> Usage:
        """Read who uses what.

        :param guarding: before a device is taken back: a definition of another boot then uses what its addresses mean
            now, beside what it recorded
        """
        with self.lock:
            uses = []
            unknown = {f'domain {name}': reason for name, reason in self.unknown_domains.items()}
            for domain in self.domains.values():
                if domain.uuid in self.unknown_domains:
                    continue
                live = [(address, self._meant(address)) for address in domain.live or ()]
                try:
                    defined = self._named_by_definition(domain)
                    defined += self._named(domain, domain.saved or ())
                    if guarding:
                        defined += [(address, self._meant(address)) for address in domain.defined or ()]
                except exception.InvalidDocument as error:
                    unknown[error.document] = f'{error.where}: {error.reason}'
                    defined = []
                for address, key in dict.fromkeys((*live, *defined)):
                    uses.append(Use(
                        key.kind if key else _kind_of(address), key.identifier if key else None, address, domain.uuid,
                        domain.live is not None, (address, key) in live, (address, key) in defined))
            running = frozenset(domain.uuid for domain in self.domains.values() if domain.live is not None)
            arriving = frozenset(domain.uuid for domain in self.domains.values() if domain.arriving)
            return Usage(tuple(uses), frozenset(self.domains), running,
                         tuple(Unknown(what, reason) for what, reason in unknown.items()), arriving)

    def _meant(self, address: str) -> DeviceKey | None:
        """Find the device that an address of this boot means.

        A UUID, and the address of a function, mean their device even while that is gone.
        """
        kind = _kind_of(address)
        return self._owners_of_addresses.get(address) if kind == VPMEM else DeviceKey(kind, address)

    def _named_by_definition(self, domain: Domain) -> list[tuple[str, DeviceKey | None]]:
        """Find the devices of an inactive definition: by its addresses, and for paths of another boot by its record."""
        return self._named(domain, domain.defined or ())

    def _named(self, domain: Domain, addresses: Sequence[str]) -> list[tuple[str, DeviceKey | None]]:
        means: dict[str, DeviceKey | None] = {address: self._meant(address) for address in addresses}
        paths = [address for address in addresses if _kind_of(address) == VPMEM]
        if paths and not domain.is_of_boot(self.boot):
            means.update(fake_guests.recorded(domain, VPMEM, paths))
        return [(address, means[address]) for address in addresses]

    def definition(self, domain_uuid: str) -> str:
        """Write the inactive definition of a domain."""
        with self.lock:
            domain = self.domains[domain_uuid]
            return fake_guests.definition(domain.uuid, (fake_guests.element(_kind_of(address), address)
                                                        for address in domain.defined or ()), domain.metadata)

    def guest_records(self) -> list[GuestRecord]:
        found = []
        with self.lock:
            domains = [domain for domain in self.domains.values() if domain.uuid not in self.unknown_domains]
        for domain in domains:
            try:
                record = domain.record
            except exception.InvalidDocument as error:
                LOG.warning('The device record of %s cannot be read: %s', error.document, error.reason)
            else:
                found += [] if record is None else [record]
        return found

    def rewrite_guest(self, assignments: Sequence[DeviceAssignment], beside: Sequence[DeviceAssignment]) -> bool:
        document = f'domain {assignments[0].instance_uuid}, inactive'
        with self.lock:
            domain = self.domains.get(assignments[0].instance_uuid)
            if domain is None or domain.defined is None:
                return False
            if domain.is_of_boot(self.boot):
                if ' boot="' not in domain.metadata and any(_kind_of(address) == VPMEM for address in domain.defined):
                    raise exception.InvalidDocument(document, 'metadata', 'nothing says of which boot its paths are')
                return False
            domain.defined, domain.metadata = self._of_this_boot(domain, document, assignments, beside)
            return True

    def rewrite_definition(self, definition: str, assignments: Sequence[DeviceAssignment],
                           beside: Sequence[DeviceAssignment]) -> str:
        uuid = assignments[0].instance_uuid
        with self.lock:
            named = tuple(fake_guests.addresses_in(fake_guests.elements_in(definition)))
            domain = Domain(uuid, None, named, fake_guests.metadata_in(definition))
            if domain.is_of_boot(self.boot):
                return definition
            addresses, element = self._of_this_boot(domain, f'definition for domain {uuid}', assignments, beside)
            return fake_guests.definition(uuid, (fake_guests.element(_kind_of(address), address)
                                                 for address in addresses), element)

    def _of_this_boot(self, domain: Domain, document: str, assignments: Sequence[DeviceAssignment],
                      beside: Sequence[DeviceAssignment]) -> tuple[tuple[str, ...], str]:
        """The addresses and the metadata that a definition of another boot is to have."""
        ours = {DeviceKey(assignment.kind, assignment.identifier): assignment for assignment in assignments}
        record = domain.record
        named = [key for _address, key in self._named_by_definition(domain) if key is not None]
        if sorted(named) != sorted(ours) or len(named) != len(domain.defined or ()):
            raise exception.InvalidDocument(document, 'devices', 'they are not those that are assigned')
        return (tuple(self.address_of(ours[key]) for key in named),
                metadata.element(assignments, record.flavor if record else None, beside, self.boot))

    def migration_types(self) -> tuple[MigrationType, ...]:
        with self.lock:
            made = (MigrationType(MDEV, parent.name, device_type)
                    for parent in self.parents.values() for device_type in parent.costs)
            return tuple(({said[:3]: said for said in made} | self._declared).values())

    def devices_in(self, definition: str) -> frozenset[DeviceKey]:
        with self.lock:
            meant = map(self._meant, fake_guests.addresses_in(fake_guests.elements_in(definition)))
            return frozenset(key for key in meant if key is not None)

    def migration_definitions(self, device_map: DeviceMap, definition: str | None = None) -> MigrationDefinitions:
        with self.lock:
            domain = self.domains.get(device_map.instance_uuid)
            if domain is None or domain.live is None:
                raise exception.DomainGone(device_map.instance_uuid)
            if definition is not None:
                named = fake_guests.addresses_in(fake_guests.elements_in(definition))
                return MigrationDefinitions(fake_guests.moved([self._meant(one) for one in named], device_map), None)
            live = fake_guests.moved([self._meant(address) for address in domain.live], device_map)
            if domain.defined is None:
                return MigrationDefinitions(live, None)
            defined = [key for _address, key in self._named_by_definition(domain)]
            return MigrationDefinitions(live, fake_guests.moved(defined, device_map))

    @contextlib.contextmanager
    def working_on(self, kind: str, identifier: str) -> Iterator[None]:
        """Hold a device against every other driver of this host."""
        key = DeviceKey(kind, identifier)
        with self.lock:
            if key in self.busy:
                raise exception.DeviceBusy(kind, identifier, 'another driver works on it')
            self.busy.add(key)
        try:
            yield
        finally:
            with self.lock:
                self.busy.discard(key)

    def realize(self, assignment: DeviceAssignment) -> Realized:
        key = DeviceKey(assignment.kind, assignment.identifier)
        if key.kind in KEEPING:
            there = self._there(assignment)
            self.unproven.add(key)
            port = assignment.details.port
            if port is None:
                if assignment.details.needs_port:
                    raise exception.RealizeFailed(*key, 'its row has no port')
                return Realized(key, there.details)
            self.ports[key] = port
            return Realized(key, details.as_port(there.details, port))
        wanted = assignment.details
        create = wanted.origin == vocabulary.CREATED
        if create and key not in self.devices:
            self.enter('create')
            with self.lock:
                if wanted.parent not in self.parents:
                    raise exception.RealizeFailed(*key, f'its parent {wanted.parent} is not there')
                self._create(key, self.parents[wanted.parent], wanted.type)
            self.enter('created')
        with self.lock:
            device = self.devices.get(key)
            if device is None:
                raise exception.DeviceGone(*key, 'it existed when it was chosen')
            found = _fields(device.details)
            if (found['type'], found['parent']) != (wanted.type, wanted.parent):
                raise exception.DeviceGone(*key, 'another device has its UUID')
            return Realized(key, _changed(device.details, origin=wanted.origin),
                            _capacities(self.parents[found['parent']]))

    def unrealize(self, assignment: DeviceAssignment) -> None:
        key = DeviceKey(assignment.kind, assignment.identifier)
        if key.kind in KEEPING:
            self._there(assignment)
            self.lent.discard(key)
            self.ports.pop(key, None)
            self.enter('wipe')
            self.unproven.add(key)
            self.contents.pop(key, None)
            self.enter('wiped')
        elif assignment.details.origin == vocabulary.CREATED and key in self.devices:
            self.enter('destroy')
            self.remove(key)
            self.contents.pop(key, None)
            self.enter('destroyed')

    def is_untouched(self, assignment: DeviceAssignment) -> bool:
        """Whether a device that keeps bytes was claimed and never made ready for a guest, and is as clean as then."""
        key = DeviceKey(assignment.kind, assignment.identifier)
        if key.kind not in KEEPING or key in self.unproven or key in self.lent or not assignment.was_only_claimed:
            return False
        self._there(assignment)
        return True

    def prove(self, assignment: DeviceAssignment, how: str) -> None:
        """Look whether a namespace or a function is clean, or wipe it; then the machine has a proof."""
        key = DeviceKey(assignment.kind, assignment.identifier)
        if how == vocabulary.WIPE:
            self.unrealize(assignment)
            self.unproven.discard(key)
            return
        self._there(assignment)
        if how == vocabulary.BLANK and key in self.contents:
            raise exception.NotProven(*key, 'it has to be read')
        if how == vocabulary.READ:
            self.enter('read')
        if any(self.contents.get(key, b'')):
            raise exception.NotProven(*key, 'not every byte is zero')
        self.unproven.discard(key)

    def address_of(self, assignment: DeviceAssignment) -> str:
        """Return the address for the guest's element. It is valid in this boot."""
        if assignment.kind == VPMEM:
            address: str = _fields(self._there(assignment).details)['devpath']
            return address
        if assignment.kind == PCI:
            return self._there(assignment).identifier
        with self.lock:
            if DeviceKey(assignment.kind, assignment.identifier) not in self.devices:
                raise exception.DeviceGone(assignment.kind, assignment.identifier, 'no device has its UUID')
        identifier: str = assignment.identifier
        return identifier

    def _there(self, assignment: DeviceAssignment) -> InventoryDevice:
        """:raises DeviceGone: no namespace or function has the name, or another one"""
        with self.lock:
            device = self.devices.get(DeviceKey(assignment.kind, assignment.identifier))
        if device is None:
            raise exception.DeviceGone(assignment.kind, assignment.identifier, 'no device has this name')
        found, recorded = _fields(device.details), assignment.details
        if assignment.kind == PCI:
            name = fake_functions.differs(found, recorded)
            if name is not None:
                raise exception.DeviceGone(PCI, assignment.identifier, f'another function is there: its {name} is '
                                           f'{found[name]}, recorded was {getattr(recorded, name)}')
        elif (found['namespace_uuid'], found['size_bytes']) != (recorded.namespace_uuid, recorded.size_bytes):
            raise exception.DeviceGone(assignment.kind, assignment.identifier, 'another namespace has its name')
        return device

    def _create(self, key: DeviceKey, parent: Parent, device_type: str) -> None:
        cost = parent.costs[device_type]
        if parent.used + cost > parent.units:
            raise exception.ParentFull(MDEV, parent.name, device_type, 'no available instances')
        parent.used += cost
        made = _changed(parent.templates[device_type], origin=vocabulary.ADOPTED,
                                    iommu_group=len(self._addresses))
        self._put(InventoryDevice(MDEV, key.identifier, parent.name, parent.resource_class, parent.name,
                                  parent.numa_node, made), key.identifier)

    def _put(self, device: InventoryDevice, address: str) -> None:
        self.devices[device.key] = device
        self.resource_classes.add(device.resource_class)
        self._addresses[device.key] = address
        self._owners_of_addresses[address] = device.key
        self._devices = None


class FakeDriver(driver.VirtDriver):
    """The driver for a :class:`FakeHost`: by default the one of the name ``host`` in this process."""

    def __init__(self, host: str, conf: Any = None, state_path: str = '', machine: FakeHost | None = None) -> None:
        super().__init__(host, conf, state_path)
        self.machine = machine or FakeHost.named(host)
        self._trusts = False
        if conf is not None:
            manager_options.register(conf)
            self._trusts = conf[manager_options.GROUP].unproven_devices == vocabulary.TRUST

    def boot_id(self) -> str:
        return self.machine.boot

    def resource_classes(self) -> frozenset[str]:
        return frozenset(self.machine.resource_classes)

    def aliases(self) -> Mapping[str, PCIAlias] | None:
        return self.machine.aliases

    def wiped_kinds(self) -> frozenset[str]:
        return KEEPING

    def wiping(self, keys: Iterable[DeviceKey]) -> Mapping[DeviceKey, WipeProgress]:
        return {key: progress for key in keys if (progress := self.machine.wiping.get(key)) is not None}

    def get_inventory(self) -> Inventory:
        self.machine.enter('get_inventory')
        inventory = self.machine.inventory()
        return inventory._replace(keeping=frozenset(), unproven=frozenset()) if self._trusts else inventory

    def get_usage(self) -> Usage:
        self.machine.enter('get_usage')
        return self.machine.usage()

    def realize(self, assignment: DeviceAssignment) -> Realized:
        with self.machine.working_on(assignment.kind, assignment.identifier):
            self.machine.enter('realize')
            return self.machine.realize(assignment)

    def unclaim(self, assignments: Sequence[DeviceAssignment],
                confirm: driver.Confirm | None = None) -> Mapping[DeviceKey, exception.DriverError | None]:
        results: dict[DeviceKey, exception.DriverError | None] = {}
        with contextlib.ExitStack() as locks:
            held = []
            for assignment in assignments:
                try:
                    locks.enter_context(self.machine.working_on(assignment.kind, assignment.identifier))
                except exception.DeviceBusy as error:
                    results[DeviceKey(assignment.kind, assignment.identifier)] = error
                else:
                    held.append(assignment)
            self.machine.enter('unclaim')
            for assignment in held:
                if confirm is not None:
                    confirm(assignment)
                results[DeviceKey(assignment.kind, assignment.identifier)] = self._unclaim(assignment)
            done = [key for key, error in results.items() if error is None]
            if done:
                usage = self.machine.usage(guarding=True)
                results.update((key, driver.obstacle(key, usage)) for key in done)
                # No sooner: whoever used a device meanwhile may have written to it after its wipe.
                self.machine.unproven.difference_update(key for key in done if results[key] is None)
                self.disprove(key for key in done if results[key] is not None)
        return results

    def _unclaim(self, assignment: DeviceAssignment) -> exception.DriverError | None:
        key = DeviceKey(assignment.kind, assignment.identifier)
        obstacle = driver.obstacle(key, self.machine.usage(guarding=True))
        if obstacle is not None:
            self.disprove((key,))               # whoever has it may write to it, and be gone at the next try
            return obstacle
        try:
            if not self.machine.is_untouched(assignment):
                self.machine.unrealize(assignment)
        except exception.DeviceError as error:
            return error
        return None

    def prove(self, assignments: Sequence[DeviceAssignment],
              how: str) -> Mapping[DeviceKey, exception.DriverError | None]:
        self.machine.enter('prove')
        results: dict[DeviceKey, exception.DriverError | None] = {}
        for assignment in assignments:
            key = DeviceKey(assignment.kind, assignment.identifier)
            users = [use.domain_uuid for use in self.machine.usage().uses if (use.kind, use.identifier) == key]
            try:
                if users:
                    raise exception.DeviceInUse(*key, f'domain {users[0]} names it')
                with self.machine.working_on(*key):
                    self.machine.prove(assignment, how)
                results[key] = None
            except exception.DeviceError as error:
                results[key] = error
        return results

    def disprove(self, keys: Iterable[DeviceKey]) -> None:
        with self.machine.lock:
            self.machine.unproven.update(key for key in keys if key.kind in KEEPING)

    def guest_config(self, assignments: Sequence[DeviceAssignment], flavor: str | None = None,
                     beside: Sequence[DeviceAssignment] = ()) -> GuestConfig:
        self.machine.enter('guest_config')
        # For who starts a guest without realizing its devices before: it writes to them all the same.
        self.disprove(DeviceKey(assignment.kind, assignment.identifier) for assignment in assignments)
        elements = tuple(fake_guests.element(assignment.kind, self.machine.address_of(assignment))
                         for assignment in assignments)
        return GuestConfig(elements, metadata.element(assignments, flavor, beside, self.machine.boot))

    def guest_records(self) -> Sequence[GuestRecord]:
        self.machine.enter('guest_records')
        return self.machine.guest_records()

    def destroy_guest(self, domain_uuid: str) -> None:
        self.machine.enter('destroy_guest')
        self.machine.delete_guest(domain_uuid)

    def rewrite_guest(self, assignments: Sequence[DeviceAssignment], beside: Sequence[DeviceAssignment] = ()) -> bool:
        self.machine.enter('rewrite_guest')
        return self.machine.rewrite_guest(assignments, beside)

    def rewrite_definition(self, definition: str, assignments: Sequence[DeviceAssignment],
                           beside: Sequence[DeviceAssignment] = ()) -> str:
        self.machine.enter('rewrite_definition')
        return self.machine.rewrite_definition(definition, assignments, beside)

    def live_migration_obstacles(self) -> Mapping[str, str]:
        self.machine.enter('live_migration_obstacles')
        return self.machine.live_migration_obstacles

    def migration_obstacle_of(self, assignment: DeviceAssignment) -> str | None:
        return self.machine.migration_obstacles.get(DeviceKey(assignment.kind, assignment.identifier))

    def migration_types(self) -> Sequence[MigrationType]:
        self.machine.enter('migration_types')
        return self.machine.migration_types()

    def devices_in(self, definition: str) -> frozenset[DeviceKey]:
        self.machine.enter('devices_in')
        return self.machine.devices_in(definition)

    def migration_definitions(self, device_map: DeviceMap, definition: str | None = None) -> MigrationDefinitions:
        self.machine.enter('migration_definitions')
        return self.machine.migration_definitions(device_map, definition)


def _kind_of(address: str) -> str:
    return VPMEM if address.startswith('/') else PCI if fake_functions.is_address(address) else MDEV


def _capacities(parent: Parent) -> tuple[Capacity, ...]:
    return tuple(
        Capacity(MDEV, parent.name, device_type, parent.name, parent.resource_class, parent.numa_node,
                 (parent.units - parent.used) // cost, parent.templates[device_type])
        for device_type, cost in parent.costs.items())


_TEXTS: dict[type[details.DeviceDetails], str] = {}


def _details_text(cls: type[details.DeviceDetails], **values: Any) -> str:
    """Make stored details. A test may want a hundred thousand devices, and an object takes ninety microseconds."""
    if cls not in _TEXTS:
        _TEXTS[cls] = details.to_text(cls(**values))
    return _changed(_TEXTS[cls], **values)


def _fields(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text)['versioned_object.data']
    return found


def _changed(text: str, **values: Any) -> str:
    primitive = json.loads(text)
    primitive['versioned_object.data'].update(values)
    return json.dumps(primitive, separators=(',', ':'), sort_keys=True)
