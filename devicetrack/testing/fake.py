"""A host in memory, and the driver for it. The library ships it, so that other projects can test against it too.

:class:`FakeHost` is the machine: devices, parents that make more of them, domains that name them by their addresses of
this boot, and the bytes that a guest left on them. A manager uses a :class:`FakeDriver`. Any number of drivers share a
host, so a new manager finds the host as a killed one left it. The driver passes the tests that every driver passes.

Failures are staged with :meth:`FakeHost.before`, by call and not by chance::

    host.before('realize', exception.HypervisorUnreachable('fake', 'restarting'), times=1)
    host.before('unclaim', lambda: barrier.wait())
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import time
from typing import Any

from devicetrack import exception
from devicetrack import log
from devicetrack import vocabulary
from devicetrack.conf import manager as manager_options
from devicetrack.objects import details
from devicetrack.objects import DeviceAssignment
from devicetrack.objects import DeviceMap
from devicetrack.objects import things
from devicetrack.objects.event import Wiped
from devicetrack.objects.pci_alias import PCIAlias
from devicetrack.objects.things import Exclusions
from devicetrack.objects.values import Capacity
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import GuestConfig
from devicetrack.objects.values import GuestRecord
from devicetrack.objects.values import Inventory
from devicetrack.objects.values import InventoryDevice
from devicetrack.objects.values import MigrationDefinitions
from devicetrack.objects.values import MigrationType
from devicetrack.objects.values import Realized
from devicetrack.objects.values import Unknown
from devicetrack.objects.values import Usage
from devicetrack.objects.values import Use
from devicetrack.objects.values import WipeProgress
from devicetrack.testing import fake_functions
from devicetrack.testing import fake_guests
from devicetrack.testing import fake_machine
from devicetrack.virt import driver
from devicetrack.virt import metadata

LOG = log.logger(__name__)

VPMEM = fake_machine.VPMEM
MDEV = fake_machine.MDEV
PCI = fake_machine.PCI
KINDS = fake_machine.KINDS
KEEPING = fake_machine.KEEPING
Action = fake_machine.Action
Parent = fake_machine.Parent
Domain = fake_guests.Domain
addresses_in = fake_guests.addresses_in
elements_in = fake_guests.elements_in
metadata_in = fake_guests.metadata_in


class FakeHost(fake_machine.Machine):
    """A machine in memory, and what the driver reads and changes of it."""

    def inventory(self) -> Inventory:
        with self.lock:
            self.unproven.update(key for key in (*self.written, *self.opened) if key.kind in KEEPING)
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
                         self.overlaps, sockets=self.sockets, by_person=frozenset(self.by_person))

    @property
    def keeping(self) -> frozenset[str]:
        """The kinds of this host whose devices keep what guests write."""
        return KEEPING & self.kinds

    def usage(self, guarding: bool = False) -> Usage:
        """Read who uses what.

        :param guarding: True before a device is taken back. Then a definition of another boot uses the devices that its
            addresses mean now as well as those that it recorded
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
                         tuple(Unknown(what, reason) for what, reason in unknown.items()), arriving,
                         without_record=frozenset(use.domain_uuid for use in uses
                                                  if not self.domains[use.domain_uuid].metadata))

    def _meant(self, address: str) -> DeviceKey | None:
        """Find the device that an address of this boot means.

        A UUID or the address of a function means its device even while the device is gone.
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

    def guest_records(self, told: Callable[[int, int], None] | None = None,
                      unread: Callable[[Unknown], object] | None = None) -> list[GuestRecord]:
        found = []
        with self.lock:
            domains = [domain for domain in self.domains.values() if domain.uuid not in self.unknown_domains]
        for number, domain in enumerate(domains, 1):
            if told is not None:
                told(number, len(domains))
            try:
                record = domain.record
            except exception.InvalidDocument as error:
                LOG.warning('The device record of %s cannot be read: %s', error.document, error.reason)
                if unread is not None:
                    unread(Unknown(f'the device record of {error.document}', error.reason))
            else:
                found += [] if record is None else [record]
        return found

    def rewrite_guest(self, assignments: Sequence[DeviceAssignment], beside: Sequence[DeviceAssignment],
                      is_untracked: driver.IsUntracked) -> bool:
        document = f'domain {assignments[0].instance_uuid}, inactive'
        with self.lock:
            domain = self.domains.get(assignments[0].instance_uuid)
            if domain is None or domain.defined is None:
                return False
            if domain.is_of_boot(self.boot):
                if ' boot="' not in domain.metadata and any(_kind_of(address) == VPMEM for address in domain.defined):
                    raise exception.InvalidDocument(document, 'metadata', 'it does not name the boot of its paths')
                return False
            domain.defined, domain.metadata = self._of_this_boot(domain, document, assignments, beside,
                                                                 is_untracked)
            return True

    def rewrite_definition(self, definition: str, assignments: Sequence[DeviceAssignment],
                           beside: Sequence[DeviceAssignment], is_untracked: driver.IsUntracked) -> str:
        uuid = assignments[0].instance_uuid
        with self.lock:
            named = tuple(fake_guests.addresses_in(fake_guests.elements_in(definition)))
            domain = Domain(uuid, None, named, fake_guests.metadata_in(definition))
            if domain.is_of_boot(self.boot):
                return definition
            addresses, element = self._of_this_boot(domain, f'definition for domain {uuid}', assignments, beside,
                                                    is_untracked)
            return fake_guests.definition(uuid, (fake_guests.element(_kind_of(address), address)
                                                 for address in addresses), element)

    def _of_this_boot(self, domain: Domain, document: str, assignments: Sequence[DeviceAssignment],
                      beside: Sequence[DeviceAssignment], is_untracked: driver.IsUntracked,
                      ) -> tuple[tuple[str, ...], str]:
        """Return the addresses and the metadata that a definition of another boot has to get."""
        ours = {assignment.key: assignment for assignment in assignments}
        record = domain.record
        named = self._named_by_definition(domain)
        stay = {key for _address, key in named if key is not None and key.kind == MDEV and key not in ours
                and is_untracked(key)}
        own = [key for _address, key in named if key is not None and key not in stay]
        if sorted(own) != sorted(ours) or any(key is None for _address, key in named):
            raise exception.InvalidDocument(document, 'devices', 'they are not those that are assigned')
        return (tuple(self.address_of(ours[key]) if key in ours else address for address, key in named
                      if key is not None),
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

    def check_free(self, assignment: DeviceAssignment, trusts: bool = False) -> None:
        """Check before a guest first gets a device that nobody else uses it, or wrote to it since it was proven clean.

        :raises DeviceInUse, UsersUnknown, NotProven: as :meth:`.driver.VirtDriver.realize`
        """
        key = assignment.key

        def check() -> None:
            if key in self.opened:
                raise exception.DeviceInUse(*key, f'open in process {self.opened[key]}')
            if key in self.written:
                raise exception.NotProven(*key, driver.WRITTEN)
            if key.kind in KEEPING and not trusts:
                self._there(assignment)
                if self.lost_its_proof(key):
                    raise exception.NotProven(*key, driver.NO_PROOF)

        driver.check_free(assignment, key.kind in KEEPING and key not in self.unproven, self.usage, self.obstacle,
                          check, self.disprove)

    def realize(self, assignment: DeviceAssignment) -> Realized:
        key = assignment.key
        if key.identifier in self.broken:
            raise exception.RealizeFailed(*key, self.broken[key.identifier])
        if key.kind in KEEPING:
            there = self._there(assignment)
            self.give((key,))
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
                if wanted.parent in self.broken:
                    raise exception.RealizeFailed(*key, self.broken[wanted.parent])
                if wanted.parent not in self.parents:
                    raise exception.RealizeFailed(*key, f'its parent {wanted.parent} is not there')
                self._create(key, self.parents[wanted.parent], wanted.type)
            self.enter('created')
        with self.lock:
            device = self.devices.get(key)
            if device is None:
                raise exception.DeviceGone(*key, 'it existed when it was chosen')
            found = fake_machine.fields_of(device.details)
            if (found['type'], found['parent']) != (wanted.type, wanted.parent):
                raise exception.DeviceGone(*key, 'another device has its UUID')
            return Realized(key, fake_machine.changed(device.details, origin=wanted.origin),
                            _capacities(self.parents[found['parent']]))

    def unrealize(self, assignment: DeviceAssignment) -> None:
        key = assignment.key
        if key.kind in KEEPING:
            self._there(assignment)
            self.lent.discard(key)
            self.ports.pop(key, None)
            self.enter('wipe')
            self.give((key,))                   # a wipe that ends half-way goes on with the next try
            self.contents.pop(key, None)
            self.written.discard(key)
            self.enter('wiped')
        elif assignment.details.origin == vocabulary.CREATED and key in self.devices:
            self.enter('destroy')
            self.remove(key)
            self.contents.pop(key, None)
            self.enter('destroyed')

    def place_of(self, device: InventoryDevice) -> tuple[str | None, tuple[str, ...]]:
        """Return the PCI function that a device is, or None, and those that contain it, the nearest first."""
        own = device.identifier if vocabulary.PCI_ADDRESS.fullmatch(device.identifier) else None
        with self.lock:
            if not device.kind:                 # an address of a domain
                device = self.devices.get(self._owners_of_addresses.get(
                    device.identifier, DeviceKey(MDEV, device.identifier)), device)
            parent = self.parents.get(device.parent or '')
            card = own if parent is None else parent.address
            function = None if card is None else self.devices.get(DeviceKey(PCI, card))
            beyond = things.address_in(device.parent if card is None or function is None else function.parent)
        return own, tuple(one for one in dict.fromkeys((card, beyond)) if one not in (None, own))

    def containment(self, devices: Sequence[InventoryDevice]) -> list[Exclusions]:
        """Return the tokens of devices by what contains them."""
        if PCI not in self.kinds and not any(parent.address for parent in self.parents.values()):
            return [()] * len(devices)          # for hosts with thousands of namespaces
        return [things.exclusions(None if own is None else things.of_function(own), map(things.of_function, within))
                for own, within in map(self.place_of, devices)]

    def relatives(self, assignment: DeviceAssignment) -> set[str]:
        """Return the addresses of what contains a device, and of what is in it."""
        key = assignment.key
        with self.lock:
            devices = [*self.devices.values(), *([] if key in self.devices else [InventoryDevice(
                *key, '', '', assignment.parent, None, '')])]
        places = {device.key: self.place_of(device) for device in devices}
        own, within = places[key]
        inside = [other for other, (_own, around) in places.items() if own in around] if own is not None else []
        return {*within, *(self._addresses.get(other, other.identifier) for other in inside)}

    def obstacle(self, assignment: DeviceAssignment, usage: Usage,
                 owner: str | None = None) -> exception.DeviceInUse | exception.UsersUnknown | None:
        """As :func:`.driver.obstacle`, and also for whoever has a part of a device, or what contains it."""
        return driver.obstacle(assignment.key, usage, owner) or driver.part_in_use(
            assignment.key, self.relatives(assignment), usage)

    def is_untouched(self, assignment: DeviceAssignment) -> bool:
        """Whether a device that stores data was claimed and never made ready for a guest, and is as clean as then."""
        if assignment.key in self.lent or not self.was_never_ready(assignment):
            return False
        self._there(assignment)
        return assignment.key not in self.unproven

    def was_never_ready(self, assignment: DeviceAssignment, trusts: bool = False) -> bool:
        """Whether a device that stores data was claimed, and no guest of ours got it since it was proven clean."""
        key = assignment.key
        return key.kind in KEEPING and assignment.was_only_claimed and (
            key not in self.unproven or not trusts and self.lost_its_proof(key))

    def lost_its_proof(self, key: DeviceKey) -> bool:
        """Whether a device has no proof, though it had one and went to no guest of ours since."""
        return key in self.unproven and key not in self.given

    def check_clean(self, assignment: DeviceAssignment, how: str) -> None:
        """Check that a namespace or a function is clean."""
        key = assignment.key
        self._there(assignment)
        if how == vocabulary.BLANK and key in self.contents:
            raise exception.NotProven(*key, 'it has to be read')
        if how == vocabulary.READ:
            self.enter('read')
        if any(self.contents.get(key, b'')):
            raise exception.NotProven(*key, 'not every byte is zero')

    def address_of(self, assignment: DeviceAssignment) -> str:
        """Return the address for the guest's element. It is valid in this boot."""
        if assignment.kind == VPMEM:
            address: str = fake_machine.fields_of(self._there(assignment).details)['devpath']
            return address
        if assignment.kind == PCI:
            return self._there(assignment).identifier
        with self.lock:
            if assignment.key not in self.devices:
                raise exception.DeviceGone(assignment.kind, assignment.identifier, 'no device has its UUID')
        identifier: str = assignment.identifier
        return identifier

    def _there(self, assignment: DeviceAssignment) -> InventoryDevice:
        """:raises DeviceGone: no namespace or function has the name, or another one has it"""
        with self.lock:
            device = self.devices.get(assignment.key)
        if device is None:
            raise exception.DeviceGone(assignment.kind, assignment.identifier, 'no device has this name')
        found, recorded = fake_machine.fields_of(device.details), assignment.details
        if assignment.kind == PCI:
            name = fake_functions.differs(found, recorded)
            if name is not None:
                raise exception.DeviceGone(PCI, assignment.identifier, f'another function is there: its {name} is '
                                           f'{found[name]}, recorded was {getattr(recorded, name)}')
        elif (found['namespace_uuid'], found['size_bytes']) != (recorded.namespace_uuid, recorded.size_bytes):
            raise exception.DeviceGone(assignment.kind, assignment.identifier, 'another namespace has its name')
        return device

class FakeDriver(driver.VirtDriver):
    """The driver for a :class:`FakeHost`: by default the one that has the name ``host`` in this process."""

    def __init__(self, host: str, conf: Any = None, state_path: str = '', machine: FakeHost | None = None) -> None:
        super().__init__(host, conf, state_path)
        self.machine = machine or FakeHost.named(host)
        self._trusts = False
        self._wipes: dict[DeviceKey, Wiped] = {}
        if conf is not None:
            manager_options.register(conf)
            self._trusts = conf[manager_options.GROUP].unproven_devices == vocabulary.TRUST

    def boot_id(self) -> str:
        return self.machine.boot

    def resource_classes(self) -> frozenset[str]:
        return frozenset(self.machine.resource_classes)

    def possible_parents(self) -> frozenset[str]:
        return frozenset(self.machine.idle_parents)

    def aliases(self) -> Mapping[str, PCIAlias] | None:
        return self.machine.aliases

    def wiped_kinds(self) -> frozenset[str]:
        return KEEPING

    def unnamed(self, devices: Sequence[tuple[DeviceKey, str]]) -> frozenset[DeviceKey]:
        return frozenset(key for key, _stored in devices if key in self.machine.unnamed)

    def containment(self, devices: Sequence[InventoryDevice]) -> Sequence[Exclusions]:
        return self.machine.containment(devices)

    def wiping(self, keys: Iterable[DeviceKey]) -> Mapping[DeviceKey, WipeProgress]:
        return {key: progress for key in keys if (progress := self.machine.wiping.get(key)) is not None}

    def get_inventory(self) -> Inventory:
        self.machine.enter('get_inventory')
        inventory = self.machine.inventory()
        return inventory._replace(keeping=frozenset(), unproven=frozenset()) if self._trusts else inventory

    def get_usage(self) -> Usage:
        self.machine.enter('get_usage')
        return self.machine.usage()

    def realize(self, assignment: DeviceAssignment, confirm: driver.Confirm | None = None) -> Realized:
        with self.machine.working_on(assignment.kind, assignment.identifier):
            self.machine.enter('realize')
            if confirm is not None:
                confirm(assignment)
            self.machine.check_free(assignment, self._trusts)
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
                    results[assignment.key] = error
                else:
                    held.append(assignment)
            self.machine.enter('unclaim')
            for assignment in held:
                if confirm is not None:
                    confirm(assignment)
                results[assignment.key] = self._unclaim(assignment)
            done = {assignment.key: assignment for assignment in held if results[assignment.key] is None}
            if done:
                usage = self.machine.usage(guarding=True)
                results.update((key, self.machine.obstacle(one, usage, one.instance_uuid)) for key, one in done.items())
                # Not earlier: a guest that used a device meanwhile may have written to it after its wipe.
                self.machine.prove(key for key in done if results[key] is None)
                self.disprove(key for key in done if results[key] is not None)
        return results

    def vacate(self, assignment: DeviceAssignment) -> None:
        with self.machine.working_on(*assignment.key):
            if not any(use.live and use.identifier == assignment.identifier for use in self.machine.usage().uses):
                self.machine.ports.pop(assignment.key, None)

    def _unclaim(self, assignment: DeviceAssignment) -> exception.DriverError | None:
        key = assignment.key
        self._wipes.pop(key, None)
        usage = self.machine.usage(guarding=True)
        obstacle = self.machine.obstacle(assignment, usage, assignment.instance_uuid)
        of_others = driver.is_of_others(key, usage, assignment.instance_uuid)
        try:
            untouched = obstacle is None and self.machine.is_untouched(assignment)
        except exception.DeviceError as error:
            return error
        changed = key in self.machine.written or key in self.machine.unproven
        if (of_others if obstacle is not None else changed) and self.machine.was_never_ready(assignment, self._trusts):
            return exception.NotProven(*key, driver.WRITTEN if obstacle is None else obstacle.reason)
        if obstacle is not None:                # its user may write to it, and be gone at the next try
            (self.machine.disprove if of_others or usage.unknown else self.machine.give)((key,))
            return obstacle
        try:
            if not untouched:
                self._unrealize(assignment)
        except exception.DeviceError as error:
            return error
        return None

    def _unrealize(self, assignment: DeviceAssignment) -> None:
        began = time.monotonic()
        self.machine.unrealize(assignment)
        if assignment.kind in KEEPING:
            self._note_wipe(assignment, began)

    def _note_wipe(self, assignment: DeviceAssignment, began: float) -> None:
        self._wipes[assignment.key] = Wiped(
            getattr(assignment.details, 'size_bytes', None), time.monotonic() - began, vocabulary.WIPED)

    def wipes_of(self, keys: Iterable[DeviceKey]) -> Mapping[DeviceKey, Wiped]:
        return {key: wiped for key in keys if (wiped := self._wipes.get(key)) is not None}

    def prove(self, assignments: Sequence[DeviceAssignment], how: str,
              confirm: driver.Confirm | None = None) -> Mapping[DeviceKey, exception.DriverError | None]:
        self.machine.enter('prove')
        results: dict[DeviceKey, exception.DriverError | None] = {}
        with contextlib.ExitStack() as locks:
            held = []
            for assignment in assignments:
                try:
                    locks.enter_context(self.machine.working_on(*assignment.key))
                except exception.DeviceBusy as error:
                    results[assignment.key] = error
                else:
                    held.append(assignment)
            for assignment in held:
                results[assignment.key] = self._prove(assignment, how, confirm)
        return results

    def _prove(self, assignment: DeviceAssignment, how: str,
               confirm: driver.Confirm | None) -> exception.DriverError | None:
        key = assignment.key
        used = self.machine.obstacle(assignment, self.machine.usage(guarding=True))
        if used is not None:
            return used
        self.machine.inventory()                # what was written until now has no proof
        self.machine.written.discard(key)
        try:
            if how in (vocabulary.BLANK, vocabulary.READ):
                self.machine.check_clean(assignment, how)
        except exception.DeviceError as error:
            return error
        if confirm is not None:
            confirm(assignment)
        try:
            if how == vocabulary.WIPE:
                self._unrealize(assignment)
        except exception.DeviceError as error:
            return error
        used = self.machine.obstacle(assignment, self.machine.usage(guarding=True))      # reading and wiping take long
        if used is None:
            self.machine.prove((key,))
        return used

    def being_worked_on(self, assignments: Sequence[DeviceAssignment]) -> frozenset[DeviceKey]:
        with self.machine.lock:
            return frozenset(self.machine.busy.intersection(one.key for one in assignments))

    def disprove(self, keys: Iterable[DeviceKey]) -> None:
        self.machine.disprove(keys)

    def guest_config(self, assignments: Sequence[DeviceAssignment], flavor: str | None = None,
                     beside: Sequence[DeviceAssignment] = ()) -> GuestConfig:
        self.machine.enter('guest_config')
        # For a caller that starts a guest without realizing its devices first: the guest writes to them all the same.
        self.machine.give(assignment.key for assignment in assignments)
        elements = tuple(fake_guests.element(assignment.kind, self.machine.address_of(assignment))
                         for assignment in assignments)
        return GuestConfig(elements, metadata.element(assignments, flavor, beside, self.machine.boot))

    def guest_records(self, told: Callable[[int, int], None] | None = None,
                      unread: Callable[[Unknown], object] | None = None) -> Sequence[GuestRecord]:
        self.machine.enter('guest_records')
        return self.machine.guest_records(told, unread)

    def destroy_guest(self, domain_uuid: str, stop: bool = True) -> None:
        self.machine.enter('destroy_guest')
        if not stop and self.machine.usage().runs_here(domain_uuid):
            raise exception.GuestNotRemoved(domain_uuid, 'it runs')
        self.machine.delete_guest(domain_uuid)

    def rewrite_guest(self, assignments: Sequence[DeviceAssignment], beside: Sequence[DeviceAssignment] = (),
                      is_untracked: driver.IsUntracked = driver.is_never_untracked) -> bool:
        self.machine.enter('rewrite_guest')
        return self.machine.rewrite_guest(assignments, beside, is_untracked)

    def rewrite_definition(self, definition: str, assignments: Sequence[DeviceAssignment],
                           beside: Sequence[DeviceAssignment] = (),
                           is_untracked: driver.IsUntracked = driver.is_never_untracked) -> str:
        self.machine.enter('rewrite_definition')
        text = self.machine.rewrite_definition(definition, assignments, beside, is_untracked)
        self.machine.give(assignment.key for assignment in assignments)
        return text

    def live_migration_obstacles(self) -> Mapping[str, str]:
        self.machine.enter('live_migration_obstacles')
        return self.machine.live_migration_obstacles

    def migration_obstacle_of(self, assignment: DeviceAssignment) -> str | None:
        return self.machine.migration_obstacles.get(assignment.key)

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
    return VPMEM if address.startswith('/') else PCI if vocabulary.PCI_ADDRESS.fullmatch(address) else MDEV


def _capacities(parent: Parent) -> tuple[Capacity, ...]:
    return tuple(
        Capacity(MDEV, parent.name, device_type, parent.name, parent.resource_class, parent.numa_node,
                 (parent.units - parent.used) // cost, parent.templates[device_type])
        for device_type, cost in parent.costs.items())
