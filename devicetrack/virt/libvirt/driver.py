"""The libvirt driver: the work that is the same for all device kinds."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Container
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import functools
import hashlib
import os
import time
import types
from typing import Any
from typing import Final
import urllib.parse

from oslo_config import cfg

from devicetrack import exception
from devicetrack import filelock
from devicetrack import log
from devicetrack import ownfiles
from devicetrack import vocabulary
from devicetrack.conf import libvirt as options
from devicetrack.conf import manager as manager_options
from devicetrack.conf import pci as pci_options
from devicetrack.objects import DeviceAssignment
from devicetrack.objects import things
from devicetrack.objects.compact import Compact
from devicetrack.objects.event import Wiped
from devicetrack.objects.pci_alias import PCIAlias
from devicetrack.objects.things import Exclusions
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Fault
from devicetrack.objects.values import GuestConfig
from devicetrack.objects.values import Inventory
from devicetrack.objects.values import InventoryDevice
from devicetrack.objects.values import MigrationType
from devicetrack.objects.values import Realized
from devicetrack.objects.values import Record
from devicetrack.objects.values import Unknown
from devicetrack.objects.values import Usage
from devicetrack.objects.values import WipeProgress
from devicetrack.virt import driver
from devicetrack.virt import metadata
from devicetrack.virt.libvirt import connection
from devicetrack.virt.libvirt import containment
from devicetrack.virt.libvirt import guests
from devicetrack.virt.libvirt import jobs
from devicetrack.virt.libvirt import numa_sysfs
from devicetrack.virt.libvirt import overlaps
from devicetrack.virt.libvirt import privileged
from devicetrack.virt.libvirt import proofs
from devicetrack.virt.libvirt import proving
from devicetrack.virt.libvirt.domain_usage import DomainUsage
from devicetrack.virt.libvirt.kinds import api
from devicetrack.virt.libvirt.kinds import installed
from devicetrack.virt.libvirt.kinds import pci_of_service

LOG = log.logger(__name__)

BOOT_ID = '/proc/sys/kernel/random/boot_id'    # random(4)

# Stands for an option in the fault of a kind whose preparation failed.
_PREPARE: Final = 'prepare'

_NO_KIND: Final = proving.NO_KIND

# The state directory of the driver for devices of the service, below the one of the host.
_OF_SERVICE: Final = 'of-service'


class LibvirtDriver(guests.Guests):
    """A hypervisor that libvirt manages, on this host.

    :param kinds: the classes of the device kinds; by default our own, and those that ``[devicetrack] device_kinds``
        names
    :param connect: opens the connection instead of ``libvirt.open``; see :func:`devicetrack.virt.loader.load_driver`
    :param trusts: whether devices without a proof count as clean, by default as ``[devicetrack] unproven_devices`` says
    :raises InvalidConfiguration: an option cannot be used, a device kind cannot be loaded, or a class is not a kind
    """

    takes_connection = True

    def __init__(self, host: str, conf: cfg.ConfigOpts, state_path: str,
                 kinds: Sequence[type[api.DeviceKind]] | None = None,
                 connect: Callable[[], Any] | None = None, trusts: bool | None = None) -> None:
        super().__init__(host, conf, state_path)
        options.register(conf)
        self.hypervisor = connection.Connection(conf[options.LIBVIRT_GROUP].connection_uri, connect,
                                                conf[options.DEADLINES_GROUP].call_timeout_s)
        self._kinds = installed.make(installed.classes(conf) if kinds is None else kinds, conf, self.hypervisor,
                                     state_path, self.boot_id)
        self._unprepared: dict[str, Fault] = {}         # by kind: the error that ended its last preparation
        self.forms = {name: kind.form for name, kind in self._kinds.items() if kind.form is not None}
        self._usage = DomainUsage(self.hypervisor, self._kinds, self.forms, self.boot_id)
        self._locks = os.path.join(state_path, 'locks')
        manager_options.register(conf)
        self._trusts = conf[manager_options.GROUP].unproven_devices == vocabulary.TRUST if trusts is None else trusts
        pci_options.register(conf)
        self._sysfs = conf[pci_options.GROUP].sysfs_root
        # What devices are on the host, as the last inventory found it: containment() is asked right after it.
        self._seen: tuple[Mapping[DeviceKey, str], containment.Look] = {}, containment.Look(self._sysfs)
        # What excludes each device of several kinds, as the last inventory found it that showed the device.
        self._tokens: dict[DeviceKey, Exclusions] = {}
        self._placed: Collection[str] = ()      # the kinds of which the last inventory found all of that
        self._topology = numa_sysfs.Topology(self._sysfs)
        self._proofs = proofs.Proofs(state_path)
        self._proving = proving.Proving(self._kinds, self._proofs, self._held, self._usage.read,
                                        self._part_in_use, self._reached, self._trusts)
        self._cleaner_of_service: LibvirtDriver | None = None

    def boot_id(self) -> str:
        try:
            with open(BOOT_ID) as file:
                return file.read().strip()
        except OSError as error:                # there may be no descriptor left
            raise exception.CommandFailed(f'read {BOOT_ID}', str(error.strerror)) from error

    def close(self) -> None:
        if self._cleaner_of_service is not None:
            self._cleaner_of_service.close()
        self.hypervisor.close()

    def cleaner_of_service(self, are_free: Callable[[], Mapping[DeviceKey, bool]]) -> LibvirtDriver:
        path = os.path.join(self.state_path, _OF_SERVICE)
        try:
            ownfiles.make_directory(path)
        except OSError as error:
            raise exception.CommandFailed('make a directory', ownfiles.reason(error, path)) from error
        made = self._cleaner_of_service = LibvirtDriver(self.host, self.conf, path, [pci_of_service.OfService],
                                                        self.hypervisor.raw, trusts=True)
        for kind in made._functions_of_service():
            kind.are_free = lambda: {key.identifier: is_free for key, is_free in are_free().items()
                                     if key.kind == pci_of_service.OfService.name}
        return made

    def lent(self) -> Mapping[DeviceKey, bool]:
        return {DeviceKey(kind.name, name): is_free for kind in self._functions_of_service()
                for name, is_free in kind.lent.items()}

    def note_given(self, keys: Collection[DeviceKey]) -> None:
        for kind in self._functions_of_service():
            kind.note_given({key.identifier for key in keys if key.kind == kind.name})

    def _functions_of_service(self) -> Iterator[pci_of_service.OfService]:
        return (kind for kind in self._kinds.values() if isinstance(kind, pci_of_service.OfService))

    def check_host(self) -> None:
        for kind in self._kinds.values():
            if kind.configured:
                with contextlib.suppress(exception.DriverError):        # the inventory says that it is unknown
                    installed.check_host(kind)

    def check_rights(self) -> None:
        try:
            privileged.check_rights()
        except OSError as error:
            raise exception.CommandFailed('privsep-helper', error.strerror or str(error)) from error

    def resource_classes(self) -> frozenset[str]:
        return frozenset().union(*(kind.resource_classes for kind in self._kinds.values()))

    def may_count(self, resource_class: str) -> bool | None:
        said = {kind.may_count(resource_class) for kind in self._kinds.values()} - {None}
        return any(said) if said else None

    def possible_parents(self) -> frozenset[str]:
        return frozenset().union(*map(installed.possible_parents, self._kinds.values()))

    def aliases(self) -> Mapping[str, PCIAlias] | None:
        return next((found for kind in self._kinds.values() if (found := kind.aliases) is not None), None)

    # -- views -------------------------------------------------------------------------------------------------

    def prepared_kinds(self) -> frozenset[str]:
        return frozenset(name for name, kind in self._kinds.items()
                         if type(kind).prepare is not api.DeviceKind.prepare and kind.configured)

    def prepare(self, records: Sequence[Record]) -> None:
        for name in sorted(self.prepared_kinds()):
            recorded = {record.identifier or '': record.details for record in records if record.kind == name}
            self._unprepared.pop(name, None)
            try:
                installed.call(self._kinds[name], 'prepare', recorded, functools.partial(self._try_lock, name))
            except exception.DriverError as error:
                self._unprepared[name] = Fault(DeviceKey(name, ''), _PREPARE, str(error))
                LOG.warning('The devices of kind %s could not be prepared: %s', name, error,
                            exc_info=isinstance(error, exception.DeviceKindFailed))

    def call_in_place(self, key: DeviceKey) -> bool:
        kind = self._kinds.get(key.kind)
        if kind is None:
            return False
        with installed.mistakes(kind, 'call_in_place'):
            return kind.call_in_place(key.identifier) is True

    def rows_ended(self, keys: Iterable[DeviceKey]) -> None:
        for key in keys:
            if (kind := self._kinds.get(key.kind)) is not None:
                try:
                    with installed.mistakes(kind, 'row_ended'):
                        kind.row_ended(key.identifier)
                except exception.DriverError as error:
                    LOG.warning('The end of the row of %s is not noted: %s', key, error,
                                exc_info=isinstance(error, exception.DeviceKindFailed))

    def get_inventory(self) -> Inventory:
        stocks: dict[str, api.Stock] = {}       # of the kinds that are known
        faults: list[Fault] = list(self._unprepared.values())
        unknown: list[Unknown] = []
        nodes: dict[DeviceKey, str] = {}
        several = sum(kind.configured for kind in self._kinds.values()) > 1
        unreachable = None
        for kind in self._kinds.values():
            try:
                stock = installed.stock(kind)
                if several:                     # one kind knows its own devices apart
                    nodes |= _nodes(kind, stock.devices)
                written = self._written(kind, stock)
            except exception.DriverError as error:
                # The author of a kind needs the traceback of a mistake in its code.
                LOG.warning('The devices of kind %s are unknown: %s', kind.name, error,
                            exc_info=isinstance(error, exception.DeviceKindFailed))
                unknown.append(Unknown(kind.name, str(error)))
                if isinstance(error, exception.HypervisorUnreachable):
                    unreachable = error
                continue
            stocks[kind.name] = stock
            faults.extend(stock.faults)
            if written:
                self._proving.take_back(DeviceKey(kind.name, name) for name in written)
        if unreachable is not None and not any(self._kinds[name].configured for name in stocks):
            raise unreachable
        keeping = {name: stock for name, stock in stocks.items() if self._kinds[name].keeps_bytes and not self._trusts}
        observed = tuple(self._observed(faults))
        look = containment.Look(self._sysfs)
        self._seen = nodes, look
        found = overlaps.find(nodes, look)
        devices = Compact.joined(InventoryDevice, [stock.devices for stock in stocks.values()])
        if several:
            self._note_tokens(devices, frozenset(stocks))
        return Inventory(overlaps.unhealthy(devices, found) if found else devices,
                         tuple(one for stock in stocks.values() for one in stock.capacities),
                         frozenset(stocks), tuple(unknown),
                         tuple(one for stock in stocks.values() for one in stock.missing), frozenset(keeping),
                         frozenset(key for stock in keeping.values()
                                   for key in self._proofs.unproven(stock.devices, stock.nothing_kept)),
                         tuple(found), tuple(faults), self._sockets(),
                         frozenset((name, one) for name, stock in keeping.items() for one in stock.by_person),
                         frozenset(look.mediated_devices()), observed)

    def _note_tokens(self, devices: Iterable[InventoryDevice], known: Collection[str]) -> None:
        """Remember what excludes the devices. If one that stores data vanishes or cannot be read, this stays known."""
        nodes, look = self._seen
        tokens = {key: found for key, found in self._tokens.items() if self._kinds[key.kind].keeps_bytes}
        for device in devices:
            try:
                tokens[device.key] = (*device.exclusions, *look.exclusions(*self._told_place(device, nodes)))
            except exception.DeviceKindFailed as error:
                LOG.warning('%s', error, exc_info=True)
                tokens.pop(device.key, None)
        # Without an answer from the host some of them may lack a token.
        self._tokens, self._placed = ({}, ()) if look.unread is not None else (tokens, known)

    def _observed(self, faults: list[Fault]) -> Iterator[InventoryDevice]:
        """Find the devices that the service hands out itself. No claim needs them, so an error is only a fault."""
        for kind in self._kinds.values():
            try:
                found = installed.observed(kind)
                faults.extend(found.faults)
                yield from found.devices
            except exception.DriverError as error:
                LOG.warning('The devices of kind %s that the service hands out are unknown: %s', kind.name, error,
                            exc_info=isinstance(error, exception.DeviceKindFailed))
                faults.append(Fault(DeviceKey(kind.name, ''), 'observed', str(error)))

    def _written(self, kind: api.DeviceKind, stock: api.Stock) -> Collection[str]:
        """Find the devices whose proofs no longer count: the host uses them, or shows that somebody wrote to them."""
        if not kind.keeps_bytes:
            return stock.written
        return {*stock.written, *self._proving.used(
            kind, {device.identifier for device in stock.devices if device.unhealthy is None})}

    def _sockets(self) -> numa_sysfs.Sockets:
        """Read which NUMA nodes share a socket. Only requests by an alias need that."""
        return () if self.aliases() is None else self._topology.sockets()

    def get_usage(self) -> Usage:
        return self._usage.read({kind.name for kind in self._kinds.values() if kind.configured})

    # -- devices -----------------------------------------------------------------------------------------------

    def realize(self, assignment: DeviceAssignment, confirm: driver.Confirm | None = None) -> Realized:
        kind = self._kinds.get(assignment.kind)
        if kind is None:
            raise exception.RealizeUnknown(*assignment.key, _NO_KIND)
        with self._held(assignment, kind, 0.0, exception.RealizeUnknown) as lock:
            try:
                if confirm is not None:
                    confirm(assignment)
                self._proving.check_free(assignment, kind)
                self._proving.take_back_for_guest((assignment,))
                return installed.realize(kind, assignment)
            except connection.Refused as error:         # libvirt works, and refuses this device
                raise exception.RealizeFailed(*assignment.key, str(error)) from error
            except (exception.InvalidDocument, exception.CommandFailed, exception.DeviceKindFailed) as error:
                raise exception.RealizeUnknown(*assignment.key, str(error)) from error
            finally:
                lock.unlock()

    def unclaim(self, assignments: Sequence[DeviceAssignment],
                confirm: driver.Confirm | None = None) -> Mapping[DeviceKey, exception.DriverError | None]:
        results: dict[DeviceKey, exception.DriverError | None] = {}
        with contextlib.ExitStack() as locks:
            held: list[tuple[DeviceAssignment, api.DeviceKind, filelock.FileLock]] = []
            started = time.monotonic()
            # All callers take the locks in the same order, so that two of them cannot wait for each other.
            for assignment in sorted(assignments, key=lambda one: one.key):
                kind = self._kinds.get(assignment.kind)
                if kind is None:
                    results[assignment.key] = exception.UnclaimFailed(*assignment.key, _NO_KIND)
                    continue
                try:
                    held.append((assignment, kind, locks.enter_context(self._held(
                        assignment, kind, started + kind.wait_s - time.monotonic(), exception.UnclaimFailed))))
                except exception.DeviceError as error:
                    results[assignment.key] = error
            # The driver asks after it has the locks: nobody can make a device ready for a guest without its lock. It
            # asks anew for each device, since the wipe of the one before may have taken hours.
            keys = frozenset(assignment.key for assignment, _kind, _lock in held)
            asked = self._usage.read({kind.name for _assignment, kind, _lock in held}, keys) if held else None
            for assignment, kind, lock in held:
                if confirm is not None:
                    confirm(assignment)
                usage = asked or self._usage_or_doubt({kind.name}, keys)
                results[assignment.key] = self._proving.give_back(assignment, kind, lock, usage)
                asked = None
            done = [(assignment, kind) for assignment, kind, _lock in held if results[assignment.key] is None]
            for assignment, kind in done[:-1]:          # the last one was looked at just now
                results[assignment.key] = self._proving.check_unused(assignment, kind)
            done = [(assignment, kind) for assignment, kind in done if results[assignment.key] is None]
            if done:
                usage = self._usage_or_doubt({kind.name for _assignment, kind in done}, keys)
                results.update(self._proving.proven([one for one, _kind in done], usage))
            for assignment, _kind, lock in held:
                # After an error a child may still work on the device, and keeps the lock until it ends.
                if results[assignment.key] is None:
                    lock.unlock()
        return {assignment.key: results[assignment.key] for assignment in assignments}

    def vacate(self, assignment: DeviceAssignment) -> None:
        kind = self._kinds.get(assignment.kind)
        if kind is None:
            return
        with self._try_lock(*assignment.key) as is_locked:
            if not is_locked:
                raise _busy(assignment)
            installed.ask(kind, 'vacate', assignment)

    def _usage_or_doubt(self, needed: Container[str], guarding: Collection[DeviceKey]) -> Usage:
        """Ask the hypervisor again. Without an answer, report everything as unknown rather than raise.

        An error would lose the results of the work that is done.
        """
        try:
            return self._usage.read(needed, guarding)
        except exception.HypervisorUnreachable as error:
            return Usage((), frozenset(), frozenset(), (Unknown('the hypervisor', str(error)),))

    def prove(self, assignments: Sequence[DeviceAssignment], how: str,
              confirm: driver.Confirm | None = None) -> Mapping[DeviceKey, exception.DriverError | None]:
        return self._proving.prove(assignments, how, confirm)

    def being_worked_on(self, assignments: Sequence[DeviceAssignment]) -> frozenset[DeviceKey]:
        found = set()
        for one in assignments:
            try:
                with self._held(one, self._kinds.get(one.kind), 0.0, exception.DeviceError) as lock:
                    lock.unlock()
            except exception.DeviceBusy:
                found.add(one.key)
        return frozenset(found)

    def wiped_kinds(self) -> frozenset[str]:
        return frozenset(kind.name for kind in self._kinds.values() if kind.keeps_bytes)

    def wipes_of(self, keys: Iterable[DeviceKey]) -> Mapping[DeviceKey, Wiped]:
        return self._proving.wipes_of(keys)

    def unnamed(self, devices: Sequence[tuple[DeviceKey, str]]) -> frozenset[DeviceKey]:
        found = set()
        for key, stored in devices:
            kind = self._kinds.get(key.kind)
            # A kind that cannot say it makes no statement about the device.
            with contextlib.suppress(exception.DeviceKindFailed):
                if kind is None or installed.call(kind, 'is_named', key.identifier, stored) is False:
                    found.add(key)
        return frozenset(found)

    def containment(self, devices: Sequence[InventoryDevice]) -> Sequence[Exclusions]:
        nodes, look = self._seen
        found = [look.exclusions(*self._place(device, nodes)) for device in devices]
        if look.unread is not None:
            raise look.unread
        return found

    def _place(self, device: InventoryDevice,
               nodes: Mapping[DeviceKey, str] = types.MappingProxyType({})) -> tuple[str | None, str | None]:
        """The thing that a device is on the host, and the one that contains it, as its kind says; or by their names."""
        if not device.kind:
            return device.identifier, None
        try:
            return self._told_place(device, nodes)
        except exception.DeviceKindFailed as error:
            LOG.warning('%s', error, exc_info=True)
        return _place_by_name(device)

    def _told_place(self, device: InventoryDevice, nodes: Mapping[DeviceKey, str]) -> tuple[str | None, str | None]:
        """As :meth:`_place`.

        :raises DeviceKindFailed: the kind made a mistake
        """
        kind = self._kinds.get(device.kind)
        if kind is None:
            return _place_by_name(device)
        node = nodes.get(device.key)
        if node is None and device.details:
            node = _nodes(kind, (device,)).get(device.key)
        return node, None if device.parent is None else installed.call(kind, 'container', device.parent)

    def _reached(self, assignments: Collection[DeviceAssignment],
                 proven: Collection[tuple[str, str]]) -> Collection[tuple[str, str]]:
        """Find the devices of other kinds on which the guests of some devices can write.

        :raises DriverError: nothing tells what contains what
        """
        look, found = containment.Look(self._sysfs), set[tuple[str, str]]()
        for one in assignments:
            if one.kind in self._kinds and any(kind != one.kind for kind, _identifier in proven):
                found |= self._beyond(one.key, look.exclusions(*self._told_place(api.as_device(one), {})), proven)
                if look.unread is not None:
                    raise look.unread
        return found

    def _beyond(self, key: DeviceKey, now: Exclusions, proven: Collection[tuple[str, str]]) -> set[tuple[str, str]]:
        """Find the proven devices of other kinds that are inside of a device, are the same thing, or contain it.

        What contains it counts if the device stores data. A proven device that no inventory of this process has shown
        may be anywhere. If the kind of the device itself could not be read, they all may be inside of it.

        :param now: what contains what now
        """
        if (of_kind := self._tokens.get(key)) is None and key.kind not in self._placed:
            return {one for one in proven if one[0] != key.kind}
        own = {*now, *(of_kind or ())}
        against = {(token, mode) for token, of_own in own for mode in (
            (vocabulary.PART, vocabulary.WHOLE) if of_own == vocabulary.WHOLE else
            (vocabulary.WHOLE,) if of_own == vocabulary.PART and self._kinds[key.kind].keeps_bytes else ())}
        return {one for one in proven if against and one[0] != key.kind and (
            (tokens := self._tokens.get(DeviceKey(*one))) is None or not against.isdisjoint(tokens))}

    def _part_in_use(self, assignment: DeviceAssignment,
                     usage: Usage) -> exception.DeviceInUse | exception.UsersUnknown | None:
        """Say which domain has a part of a device, or a thing that contains it, or what is in it; None if none has."""
        place = self._place(api.as_device(assignment))
        if place == (None, None):
            return None
        look = containment.Look(self._sysfs)
        relatives = look.relatives(*place)
        if look.unread is not None:
            return exception.UsersUnknown(*assignment.key, f'the users of its parts are unknown: {look.unread}')
        return driver.part_in_use(assignment.key, relatives, usage)

    def wiping(self, keys: Iterable[DeviceKey]) -> Mapping[DeviceKey, WipeProgress]:
        found = {key: jobs.progress_of(self._lock_path(key)) for key in keys}
        return {key: said for key, said in found.items() if said is not None}

    def proof_of(self, key: DeviceKey, details: str) -> str | None:
        return self._proofs.said(key, details)

    def stop_proving(self) -> None:
        self._proving.stop()

    def disprove(self, keys: Iterable[DeviceKey]) -> None:
        wanted = set(keys)
        proven = self._proving.proven_keys() if wanted else ()
        self._proving.take_back(wanted.union(*(
            map(DeviceKey._make, self._beyond(key, (), proven)) for key in wanted if key.kind in self._kinds)))

    # -- guests ------------------------------------------------------------------------------------------------

    def guest_config(self, assignments: Sequence[DeviceAssignment], flavor: str | None = None,
                     beside: Sequence[DeviceAssignment] = ()) -> GuestConfig:
        return GuestConfig(self.elements(assignments),
                           metadata.element(assignments, flavor, beside, self.boot_id()))

    def rewrite_definition(self, definition: str, assignments: Sequence[DeviceAssignment],
                           beside: Sequence[DeviceAssignment] = (),
                           is_untracked: driver.IsUntracked = driver.is_never_untracked) -> str:
        text = super().rewrite_definition(definition, assignments, beside, is_untracked)
        self._proving.take_back_for_guest(assignments)      # as in elements
        return text

    def elements(self, assignments: Sequence[DeviceAssignment]) -> tuple[str, ...]:
        # For a caller that starts a guest without realizing its devices first: the guest writes to them all the same.
        self._proving.take_back_for_guest(assignments)
        elements: dict[DeviceKey, str] = {}
        for name in sorted({assignment.kind for assignment in assignments}):
            ours = [assignment for assignment in assignments if assignment.kind == name]
            kind = self._kinds.get(name)
            if kind is None:
                raise exception.DeviceGone(*ours[0].key, _NO_KIND)
            with installed.mistakes(kind, 'guest_elements'):
                elements.update(zip((one.key for one in ours), kind.guest_elements(ours), strict=True))
        return tuple(elements[assignment.key] for assignment in assignments)

    def live_migration_obstacles(self) -> Mapping[str, str]:
        found: dict[str, str] = {}
        for name, kind in self._kinds.items():
            try:
                obstacle = installed.call(kind, 'live_migration_obstacle')
            except exception.DeviceKindFailed as error:
                LOG.warning('No guest with a device of kind %s can move live: %s', name, error, exc_info=True)
                obstacle = str(error)
            if obstacle is not None:
                found[name] = obstacle
        return found

    def migration_obstacle_of(self, assignment: DeviceAssignment) -> str | None:
        kind = self._kinds.get(assignment.kind)
        if kind is None:
            return None
        try:
            found: str | None = installed.call(kind, 'migration_obstacle_of', assignment)
            return found
        except exception.HypervisorUnreachable:
            raise
        except exception.DriverError as error:
            LOG.warning('No guest with %s/%s can move live: %s', *assignment.key, error,
                        exc_info=isinstance(error, exception.DeviceKindFailed))
            return str(error)

    def migration_types(self) -> Sequence[MigrationType]:
        found: list[MigrationType] = []
        for kind in self._kinds.values():
            try:
                with installed.mistakes(kind, 'migration_types', tell=False):
                    types = list(kind.migration_types()) if kind.configured else []
                    if not all(isinstance(one, MigrationType) and one.kind == kind.name for one in types):
                        raise TypeError('not all of its answers are types of this kind')
                found += types
            except exception.HypervisorUnreachable:
                raise
            except exception.DriverError as error:
                LOG.warning('The live migration types of kind %s are unknown: %s', kind.name, error,
                            exc_info=isinstance(error, exception.DeviceKindFailed))
        return found

    @contextlib.contextmanager
    def _held(self, assignment: DeviceAssignment, kind: api.DeviceKind | None, timeout_s: float,
              failed: type[exception.DeviceError]) -> Iterator[filelock.FileLock]:
        """Hold the lock file of a device, and the device itself, in the block. Yields the lock of the file.

        :param timeout_s: how long to wait for the lock file
        :param failed: the error if one of the locks cannot be used
        :raises DeviceBusy: somebody else holds one of them
        """
        with contextlib.ExitStack() as locks:
            try:
                lock = locks.enter_context(self._lock(assignment.key, timeout_s))
                if kind is not None:
                    locks.enter_context(self.own_lock(assignment, kind))
            except filelock.FileLocked:
                raise _busy(assignment) from None
            except OSError as error:
                path = self._lock_path(assignment.key)
                raise failed(*assignment.key,
                             f'its lock file cannot be used: {ownfiles.reason(error, path)}') from error
            except exception.DeviceKindFailed as error:
                raise failed(*assignment.key, str(error)) from error
            yield lock

    @staticmethod
    def own_lock(assignment: DeviceAssignment, kind: api.DeviceKind) -> contextlib.AbstractContextManager[object]:
        """Hold the lock on the node or file that is the device on the host, if there is one.

        :raises FileLocked: somebody else holds it, perhaps a manager with another state directory
        :raises OSError: it cannot be opened
        :raises DeviceKindFailed: the kind made a mistake
        """
        with installed.mistakes(kind, 'own_path'):
            path = kind.own_path(assignment)
        if path is None:
            return contextlib.nullcontext()
        lock = filelock.NodeLock(path)
        try:
            lock.acquire()
        except FileNotFoundError:
            return contextlib.nullcontext()
        return lock

    @contextlib.contextmanager
    def _try_lock(self, kind: str, identifier: str) -> Iterator[bool]:
        """Hold the lock file of one device in the block; yield False if somebody else holds it."""
        try:
            lock = self._lock(DeviceKey(kind, identifier), 0.0)
        except (OSError, filelock.FileLocked):
            yield False
            return
        with lock:
            try:
                yield True
            finally:
                lock.unlock()

    def _lock(self, key: DeviceKey, timeout_s: float) -> filelock.FileLock:
        """Take the lock file of one device. Nothing ever removes the file.

        :raises FileLocked: another process or thread still holds it
        :raises OSError: it cannot be used, or others can change it
        """
        for directory in (self.state_path, self._locks):        # each with mode 0700
            ownfiles.make_directory(directory)
        lock = filelock.FileLock(self._lock_path(key))
        lock.acquire(max(0.0, timeout_s))
        return lock

    def _lock_path(self, key: DeviceKey) -> str:
        # Percent encoding removes slashes and keeps different names different. It never leaves a bare "+", so a "+" can
        # mark the digest of a name that is too long for a file.
        name = urllib.parse.quote(f'{key.kind}-{key.identifier}', safe='')
        if len(name) > 200:
            name = '+' + hashlib.sha256(name.encode()).hexdigest()
        return os.path.join(self._locks, f'{name}.lock')


def _nodes(kind: api.DeviceKind, devices: Iterable[InventoryDevice]) -> dict[DeviceKey, str]:
    """Ask the kind what its devices are on the host. Devices that no other kind can offer are left out.

    :raises DeviceKindFailed: the kind made a mistake
    """
    with installed.mistakes(kind, 'node', tell=False):
        return {device.key: node for device in devices if (node := kind.node(device)) is not None}


def _place_by_name(device: InventoryDevice) -> tuple[str | None, str | None]:
    return things.address_in(device.identifier), things.address_in(device.parent)


def _busy(assignment: DeviceAssignment) -> exception.DeviceBusy:
    return exception.DeviceBusy(*assignment.key, 'another process or thread holds its lock')
