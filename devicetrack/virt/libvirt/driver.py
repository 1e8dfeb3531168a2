"""The libvirt driver: what is the same for all device kinds."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Container
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import hashlib
import logging
import os
import time
from typing import Any
import urllib.parse

from oslo_config import cfg

from devicetrack import exception
from devicetrack import filelock
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

LOG = logging.getLogger(__name__)

BOOT_ID = '/proc/sys/kernel/random/boot_id'    # random(4)


# One address of one domain, as in Use; the identifier is None before it is known which device it means. A plain tuple,
# for there are thousands.
_Named = tuple[str, str | None, str, str, bool, bool, bool]


class LibvirtDriver(driver.VirtDriver):
    """A hypervisor that libvirt manages, on this host.

    :param kinds: the classes of the device kinds; by default those of the entry points
    :param connect: opens the connection, when not ``libvirt.open`` with ``[libvirt] connection_uri``; see
        :func:`devicetrack.virt.loader.load_driver`
    :raises InvalidConfiguration: an option cannot be used, or a device kind cannot be loaded or is none
    """

    takes_connection = True

    def __init__(self, host: str, conf: cfg.ConfigOpts, state_path: str,
                 kinds: Sequence[type[api.DeviceKind]] | None = None,
                 connect: Callable[[], Any] | None = None) -> None:
        super().__init__(host, conf, state_path)
        options.register(conf)
        self.hypervisor = connection.Connection(conf[options.LIBVIRT_GROUP].connection_uri, connect)
        self._kinds = installed.make(installed.classes() if kinds is None else kinds, conf, self.hypervisor)
        self._guests = guests.Guests(self.hypervisor, self._kinds, self.boot_id)
        self._locks = os.path.join(state_path, 'locks')

    def boot_id(self) -> str:
        with open(BOOT_ID) as file:
            return file.read().strip()

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
                # Of a mistake in a kind's code its author needs to see where.
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

        :param needed: the kinds whose devices must be identified, or else are unknown. Of the others it does no harm
            when their tools are not even installed; but they are asked, for a kind that no option names any more may
            still have owners here.
        """
        named: list[_Named] = []
        domains: set[str] = set()
        running: set[str] = set()
        unknown: list[Unknown] = []
        boot_id = self.boot_id()
        for found in self.hypervisor.definitions():
            if found.uuid in domains:
                unknown.append(Unknown(f'domain {found.uuid}', 'two domains have this UUID'))
            domains.add(found.uuid)
            if isinstance(found, connection.Unreadable):
                unknown.append(Unknown(f'domain {found.uuid}', found.reason))
                continue
            if found.running:
                running.add(found.uuid)
            try:
                # It is appended to, not returned: what comes before an error counts.
                self._name(found, boot_id, named)
            except exception.InvalidDocument as error:
                unknown.append(Unknown(error.document, f'{error.where}: {error.reason}'))
        means: dict[str, Mapping[str, str | None]] = {}
        for kind in self._kinds.values():
            addresses = {address for name, identifier, address, *_ in named if name == kind.name and identifier is None}
            try:
                means[kind.name] = kind.identify(addresses)
            except exception.DriverError as error:
                if kind.name in needed:
                    unknown.append(Unknown(f'{kind.name} devices that domains name', str(error)))
        uses = (Use(name, identifier or means.get(name, {}).get(address), address, uuid, is_running, live, defined)
                for name, identifier, address, uuid, is_running, live, defined in named
                if identifier or name not in means or address in means[name])
        return Usage(tuple(uses), frozenset(domains), frozenset(running), tuple(unknown),
                     self._guests.arriving(running))

    def _name(self, found: connection.Definitions, boot_id: str, named: list[_Named]) -> None:
        """Add what one domain names; what its live definition names comes before an error about its inactive one."""
        document = f'domain {found.uuid}'
        current = domain_xml.parse(found.current, document)
        defined = None if found.defined is None else domain_xml.parse(found.defined, f'{document}, inactive')
        for domain in (current, defined):
            if domain is not None and domain.uuid != found.uuid:
                raise exception.InvalidDocument(document, 'uuid', 'not the one of the domain')
        # A guest's definition is live while it runs. One that is off has a single definition.
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
            named += [(kind.name, None, address, found.uuid, found.running, address in now, address in later)
                      for address in dict.fromkeys((*now, *later))]
        for form, keys in recorded.items():
            named += [(key.kind, key.identifier, address, found.uuid, found.running, False, True)
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
            # In one order everywhere, so that two callers with devices in common cannot wait for each other.
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
                # After the locks: whoever made a device ready for a guest since then would have needed its lock.
                usage = self._usage({kind.name for _assignment, kind, _lock in held})
                for assignment, kind, lock in held:
                    results[_key(assignment)] = _unclaim(assignment, kind, lock, usage)
                    lock.unlock()               # it answered, so no wiper of it lives
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
                LOG.warning('No guest with a device of kind %s moves live: %s', name, error, exc_info=True)
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
                LOG.warning('What the types of kind %s say for live migrations is unknown: %s', kind.name, error,
                            exc_info=isinstance(error, exception.DeviceKindFailed))
        return found

    def can_become(self, source: str, destination: str) -> bool:
        # libvirt refuses a definition of a running guest with another sort of element in the place of one: "Target host
        # device subsystem pci does not match source mdev" (virDomainHostdevDefCheckABIStability in its source).
        forms = [self._kinds[name].form if name in self._kinds else None for name in (source, destination)]
        return source == destination or (forms[0] is not None and forms[0] is forms[1])

    def migration_definitions(self, device_map: DeviceMap) -> MigrationDefinitions:
        return self._guests.migration_definitions(device_map)

    def _lock(self, assignment: DeviceAssignment, timeout_s: float) -> filelock.FileLock:
        """Take the lock file of one device, which no release ever removes.

        :raises FileLocked: another process or thread holds it still
        """
        os.makedirs(self._locks, mode=0o700, exist_ok=True)
        # Percent encoding leaves no slash and no two names alike; a name that grows too long for a file gets its
        # digest, marked with a character that the encoding never leaves bare.
        name = urllib.parse.quote(f'{assignment.kind}-{assignment.identifier}', safe='')
        if len(name) > 200:
            name = '+' + hashlib.sha256(name.encode()).hexdigest()
        lock = filelock.FileLock(os.path.join(self._locks, f'{name}.lock'))
        lock.acquire(max(0.0, timeout_s))
        return lock


_NO_KIND = 'no device kind of this name is installed'


def _unclaim(assignment: DeviceAssignment, kind: api.DeviceKind, lock: filelock.FileLock,
             usage: Usage) -> exception.DriverError | None:
    key = _key(assignment)
    users = sorted({use.domain_uuid for use in usage.uses if (use.kind, use.identifier) == key})
    if users:
        return exception.DeviceInUse(*key, f'named by domain {", ".join(users)}')
    if usage.unknown:
        unknown = usage.unknown[0]
        return exception.UnclaimFailed(*key, f'nobody knows who uses it: {unknown.what}: {unknown.reason}')
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
    return exception.DeviceBusy(*_key(assignment), 'somebody else holds its lock file')


def _no_lock(error: OSError) -> str:
    return f'its lock file cannot be used: {error.strerror}'
