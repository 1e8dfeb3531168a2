"""The libvirt driver: the work that is the same for all device kinds."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Container
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import functools
import hashlib
import os
import time
from typing import Any
from typing import NamedTuple
import urllib.parse

from oslo_config import cfg

from devicetrack import exception
from devicetrack import filelock
from devicetrack import log
from devicetrack import ownfiles
from devicetrack.conf import libvirt as options
from devicetrack.objects import DeviceAssignment
from devicetrack.objects import DeviceMap
from devicetrack.objects.values import Capacity
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import GuestConfig
from devicetrack.objects.values import GuestRecord
from devicetrack.objects.values import Inventory
from devicetrack.objects.values import InventoryDevice
from devicetrack.objects.values import MigrationDefinitions
from devicetrack.objects.values import MigrationType
from devicetrack.objects.values import Missing
from devicetrack.objects.values import Realized
from devicetrack.objects.values import Unknown
from devicetrack.objects.values import Usage
from devicetrack.objects.values import Use
from devicetrack.virt import driver
from devicetrack.virt import metadata
from devicetrack.virt.libvirt import connection
from devicetrack.virt.libvirt import domain_xml
from devicetrack.virt.libvirt import guest_xml
from devicetrack.virt.libvirt import guests
from devicetrack.virt.libvirt.kinds import api
from devicetrack.virt.libvirt.kinds import installed

LOG = log.logger(__name__)

BOOT_ID = '/proc/sys/kernel/random/boot_id'    # random(4)


class _Named(NamedTuple):
    """The addresses of one device kind that a domain names, for the kind to identify."""

    kind: str
    domain_uuid: str
    running: bool
    now: Sequence[str]              # in the live definition
    later: Sequence[str]            # in the inactive one


class _Guest(NamedTuple):
    """What the definitions of one domain say. ``uses`` are the devices that its record identifies."""

    uuid: str
    running: bool
    named: Sequence[_Named]
    uses: Sequence[Use]
    unknown: Unknown | None


class LibvirtDriver(driver.VirtDriver):
    """A hypervisor that libvirt manages, on this host.

    :param kinds: the classes of the device kinds; by default our own, and those that ``[devicetrack] device_kinds``
        names
    :param connect: opens the connection instead of ``libvirt.open``; see :func:`devicetrack.virt.loader.load_driver`
    :raises InvalidConfiguration: an option cannot be used, or a device kind cannot be loaded or is none
    """

    takes_connection = True

    def __init__(self, host: str, conf: cfg.ConfigOpts, state_path: str,
                 kinds: Sequence[type[api.DeviceKind]] | None = None,
                 connect: Callable[[], Any] | None = None) -> None:
        super().__init__(host, conf, state_path)
        options.register(conf)
        self.hypervisor = connection.Connection(conf[options.LIBVIRT_GROUP].connection_uri, connect,
                                                conf[options.DEADLINES_GROUP].call_timeout_s)
        self._kinds = installed.make(installed.classes(conf) if kinds is None else kinds, conf, self.hypervisor)
        self._guests = guests.Guests(self.hypervisor, self._kinds, self.boot_id)
        self._locks = os.path.join(state_path, 'locks')

    def boot_id(self) -> str:
        try:
            with open(BOOT_ID) as file:
                return file.read().strip()
        except OSError as error:                # there may be no descriptor left
            raise exception.CommandFailed(f'read {BOOT_ID}', str(error.strerror)) from error

    def close(self) -> None:
        self.hypervisor.close()

    def resource_classes(self) -> frozenset[str]:
        return frozenset().union(*(kind.resource_classes for kind in self._kinds.values()))

    # -- views -------------------------------------------------------------------------------------------------

    def get_inventory(self) -> Inventory:
        devices: list[InventoryDevice] = []
        capacities: list[Capacity] = []
        missing: list[Missing] = []
        unknown: list[Unknown] = []
        known: set[str] = set()
        unreachable = None
        for kind in self._kinds.values():
            try:
                stock = installed.stock(kind)
            except exception.DriverError as error:
                # The author of a kind needs the traceback of a mistake in its code.
                LOG.warning('The devices of kind %s are unknown: %s', kind.name, error,
                            exc_info=isinstance(error, exception.DeviceKindFailed))
                unknown.append(Unknown(kind.name, str(error)))
                if isinstance(error, exception.HypervisorUnreachable):
                    unreachable = error
                continue
            devices.extend(stock.devices)
            capacities.extend(stock.capacities)
            missing.extend(stock.missing)
            known.add(kind.name)
        if unreachable is not None and not any(self._kinds[name].configured for name in known):
            raise unreachable
        return Inventory(tuple(devices), tuple(capacities), frozenset(known), tuple(unknown),
                         tuple(missing))

    def get_usage(self) -> Usage:
        return self._usage({kind.name for kind in self._kinds.values() if kind.configured})

    def _usage(self, needed: Container[str]) -> Usage:
        """Ask the hypervisor once.

        :param needed: the kinds that must identify their devices, or else the usage is unknown. The other kinds are
            asked too, since devices of a kind that no option names any more may still have owners here. Their errors
            do no harm: their tools may not even be installed.
        """
        named: list[_Named] = []
        uses: list[Use] = []
        domains: set[str] = set()
        running: set[str] = set()
        unknown: list[Unknown] = []
        boot_id = self.boot_id()
        for guest in self.hypervisor.definitions(functools.partial(self._read_guest, boot_id)):
            if guest.uuid in domains:
                unknown.append(Unknown(f'domain {guest.uuid}', 'two domains have this UUID'))
            domains.add(guest.uuid)
            if guest.running:
                running.add(guest.uuid)
            if guest.unknown is not None:
                unknown.append(guest.unknown)
            named += guest.named
            uses += guest.uses
        for kind in self._kinds.values():
            ours = [one for one in named if one.kind == kind.name]
            means: Mapping[str, str | None] | None = None
            try:
                means = kind.identify({address for one in ours for address in (*one.now, *one.later)})
            except exception.DriverError as error:
                if kind.name in needed:
                    unknown.append(Unknown(f'{kind.name} devices that domains name', str(error)))
            uses += [Use(kind.name, None if means is None else means[address], address, uuid, runs, address in now,
                         address in later)
                     for _kind, uuid, runs, now, later in ours for address in dict.fromkeys((*now, *later))
                     if means is None or address in means]
        return Usage(tuple(uses), frozenset(domains), frozenset(running), tuple(unknown),
                     self._guests.arriving(running))

    def _read_guest(self, boot_id: str, found: connection.Definitions | connection.Unreadable) -> _Guest:
        """Read what one domain names, as far as that can be read. Several threads do this at the same time."""
        named: list[_Named] = []
        uses: list[Use] = []
        if isinstance(found, connection.Unreadable):
            return _Guest(found.uuid, False, named, uses, Unknown(f'domain {found.uuid}', found.reason))
        unknown = None
        try:
            self._read_definitions(found, boot_id, named, uses)
        except exception.InvalidDocument as error:
            unknown = Unknown(error.document, f'{error.where}: {error.reason}')
        return _Guest(found.uuid, found.running, named, uses, unknown)

    def _read_definitions(self, found: connection.Definitions, boot_id: str, named: list[_Named],
                          uses: list[Use]) -> None:
        """Add what one domain names.

        :raises InvalidDocument: a definition cannot be read. The devices of a readable live one were added before
        """
        document = f'domain {found.uuid}'
        current = domain_xml.parse(found.current, document)
        defined = None if found.defined is None else domain_xml.parse(found.defined, f'{document}, inactive')
        for domain in (current, defined):
            if domain is not None and domain.uuid != found.uuid:
                raise exception.InvalidDocument(document, 'uuid', 'not the one of the domain')
        # A guest that is off has only an inactive definition.
        live, inactive = (current, defined) if found.running else (None, current)
        recorded: Mapping[guest_xml.Form, Sequence[DeviceKey]] = {}
        problem = None
        if inactive is not None:
            try:
                recorded = guest_xml.recorded(inactive, self._guests.forms, boot_id, document)
            except exception.InvalidDocument as error:
                inactive, problem = None, error
        for kind in self._kinds.values():
            now = kind.addresses(live) if live is not None else ()
            later = kind.addresses(inactive) if inactive is not None and kind.form not in recorded else ()
            if now or later:
                named.append(_Named(kind.name, found.uuid, found.running, now, later))
        for form, keys in recorded.items():
            uses += [Use(*key, address, found.uuid, found.running, False, True)
                     for key, address in zip(keys, () if inactive is None else form.addresses(inactive), strict=True)]
        if problem is not None:
            raise problem

    # -- devices -----------------------------------------------------------------------------------------------

    def realize(self, assignment: DeviceAssignment) -> Realized:
        kind = self._kinds.get(assignment.kind)
        if kind is None:
            raise exception.RealizeFailed(*_key(assignment), _NO_KIND)
        try:
            lock = self._lock(assignment, 0.0)
        except filelock.FileLocked:
            raise _busy(assignment) from None
        except OSError as error:
            raise exception.RealizeFailed(*_key(assignment), _no_lock(error)) from error
        with lock:
            try:
                return kind.realize(assignment)
            except (exception.InvalidDocument, exception.CommandFailed) as error:
                raise exception.RealizeFailed(*_key(assignment), str(error)) from error
            finally:
                lock.unlock()

    def unclaim(self, assignments: Sequence[DeviceAssignment]) -> Mapping[DeviceKey, exception.DriverError | None]:
        results: dict[DeviceKey, exception.DriverError | None] = {}
        with contextlib.ExitStack() as locks:
            held: list[tuple[DeviceAssignment, api.DeviceKind, filelock.FileLock]] = []
            started = time.monotonic()
            # All callers take the locks in the same order, so that two of them cannot wait for each other.
            for assignment in sorted(assignments, key=_key):
                kind = self._kinds.get(assignment.kind)
                if kind is None:
                    results[_key(assignment)] = exception.UnclaimFailed(*_key(assignment), _NO_KIND)
                    continue
                try:
                    lock = self._lock(assignment, started + kind.wait_s - time.monotonic())
                except filelock.FileLocked:
                    results[_key(assignment)] = _busy(assignment)
                except OSError as error:
                    results[_key(assignment)] = exception.UnclaimFailed(*_key(assignment), _no_lock(error))
                else:
                    locks.enter_context(lock)
                    held.append((assignment, kind, lock))
            if held:
                # The driver asks after it has the locks: nobody can make a device ready for a guest without its lock.
                usage = self._usage({kind.name for _assignment, kind, _lock in held})
                for assignment, kind, lock in held:
                    results[_key(assignment)] = _unclaim(assignment, kind, lock, usage)
                    lock.unlock()               # the kind answered, so its wiper has ended
        return {_key(assignment): results[_key(assignment)] for assignment in assignments}

    # -- guests ------------------------------------------------------------------------------------------------

    def guest_config(self, assignments: Sequence[DeviceAssignment], flavor: str | None = None,
                     beside: Sequence[DeviceAssignment] = ()) -> GuestConfig:
        return GuestConfig(self._elements(assignments),
                           metadata.element(assignments, flavor, beside, self.boot_id()))

    def _elements(self, assignments: Sequence[DeviceAssignment]) -> tuple[str, ...]:
        elements: dict[DeviceKey, str] = {}
        for name in sorted({assignment.kind for assignment in assignments}):
            ours = [assignment for assignment in assignments if assignment.kind == name]
            kind = self._kinds.get(name)
            if kind is None:
                raise exception.DeviceGone(*_key(ours[0]), _NO_KIND)
            elements.update(zip(map(_key, ours), kind.guest_elements(ours), strict=True))
        return tuple(elements[_key(assignment)] for assignment in assignments)

    def guest_records(self) -> Sequence[GuestRecord]:
        return self._guests.records()

    def destroy_guest(self, domain_uuid: str) -> None:
        self._guests.destroy(domain_uuid)

    def rewrite_guest(self, assignments: Sequence[DeviceAssignment], beside: Sequence[DeviceAssignment] = ()) -> bool:
        return self._guests.rewrite(assignments, beside, self._elements)

    def live_migration_obstacles(self) -> Mapping[str, str]:
        found: dict[str, str] = {}
        for name, kind in self._kinds.items():
            try:
                obstacle = installed.live_migration_obstacle(kind)
            except exception.DeviceKindFailed as error:
                LOG.warning('No guest with a device of kind %s can move live: %s', name, error, exc_info=True)
                obstacle = str(error)
            if obstacle is not None:
                found[name] = obstacle
        return found

    def migration_types(self) -> Sequence[MigrationType]:
        found: list[MigrationType] = []
        for kind in self._kinds.values():
            try:
                found += installed.migration_types(kind)
            except exception.HypervisorUnreachable:
                raise
            except exception.DriverError as error:
                LOG.warning('The live migration types of kind %s are unknown: %s', kind.name, error,
                            exc_info=isinstance(error, exception.DeviceKindFailed))
        return found

    def can_become(self, source: str, destination: str) -> bool:
        # libvirt refuses another sort of element in the definition of a running guest: "Target host device subsystem
        # pci does not match source mdev" (virDomainHostdevDefCheckABIStability in its source).
        forms = [self._kinds[name].form if name in self._kinds else None for name in (source, destination)]
        return source == destination or (forms[0] is not None and forms[0] is forms[1])

    def migration_definitions(self, device_map: DeviceMap) -> MigrationDefinitions:
        return self._guests.migration_definitions(device_map)

    def _lock(self, assignment: DeviceAssignment, timeout_s: float) -> filelock.FileLock:
        """Take the lock file of one device. Nothing ever removes the file.

        :raises FileLocked: another process or thread still holds it
        :raises OSError: it cannot be used, or others can change it
        """
        ownfiles.make_directory(self._locks)
        # Percent encoding removes slashes and keeps different names different. It never leaves a bare "+", which marks
        # the digest of a name that is too long for a file.
        name = urllib.parse.quote(f'{assignment.kind}-{assignment.identifier}', safe='')
        if len(name) > 200:
            name = '+' + hashlib.sha256(name.encode()).hexdigest()
        lock = filelock.FileLock(os.path.join(self._locks, f'{name}.lock'))
        lock.acquire(max(0.0, timeout_s))
        return lock


_NO_KIND = 'no device kind of this name is installed, or [devicetrack] device_kinds does not name it'


def _unclaim(assignment: DeviceAssignment, kind: api.DeviceKind, lock: filelock.FileLock,
             usage: Usage) -> exception.DriverError | None:
    key = _key(assignment)
    users = sorted({use.domain_uuid for use in usage.uses if (use.kind, use.identifier) == key})
    if users:
        return exception.DeviceInUse(*key, f'domain {", ".join(users)} names it')
    if usage.unknown:
        unknown = usage.unknown[0]
        return exception.UnclaimFailed(*key, f'its users are unknown: {unknown.what}: {unknown.reason}')
    try:
        kind.unclaim(assignment, lock.fd)
    except exception.DeviceError as error:
        return error
    except exception.DriverError as error:
        return exception.UnclaimFailed(*key, str(error))
    return None


def _key(assignment: DeviceAssignment) -> DeviceKey:
    return DeviceKey(assignment.kind, assignment.identifier)


def _busy(assignment: DeviceAssignment) -> exception.DeviceBusy:
    return exception.DeviceBusy(*_key(assignment), 'another process or thread holds its lock file')


def _no_lock(error: OSError) -> str:
    where = f' {error.filename}' if isinstance(error, ownfiles.NotOurs) else ''
    return f'its lock file{where} cannot be used: {error.strerror}'
