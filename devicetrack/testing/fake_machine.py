"""The machine in memory under :mod:`devicetrack.testing.fake`, and what hardware, operators and software do to it."""

from __future__ import annotations

import collections
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import json
import threading
from typing import Any
from typing import Self
import uuid

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.objects import details
from devicetrack.objects import MdevDetails
from devicetrack.objects import PCIDetails
from devicetrack.objects import VPMEMDetails
from devicetrack.objects.network_port import Port
from devicetrack.objects.pci_alias import PCIAlias
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import InventoryDevice
from devicetrack.objects.values import MigrationDefinitions
from devicetrack.objects.values import MigrationType
from devicetrack.objects.values import Missing
from devicetrack.objects.values import Overlap
from devicetrack.objects.values import WipeProgress
from devicetrack.testing import fake_functions
from devicetrack.testing import fake_guests

VPMEM = 'vpmem'
MDEV = 'mdev'
PCI = fake_functions.PCI
KINDS = frozenset((VPMEM, MDEV))                # every host has these; a host with PCI functions has PCI too
KEEPING = frozenset((VPMEM, PCI))               # devices that keep what guests write

Action = BaseException | Callable[[], object]


@dataclasses.dataclass
class Parent:
    """A device that makes mediated devices of one type. A device of the type takes ``costs`` of the ``units``."""

    name: str
    units: int
    costs: dict[str, int]
    resource_class: str
    numa_node: int | None
    address: str | None
    templates: dict[str, str]
    used: int = 0


class Machine:
    """One machine in memory. Its methods do what hardware, an operator and other software do to a machine.

    Threads may share it. ``calls`` counts the calls of drivers by name. ``unknown_kinds`` (kind to reason) makes parts
    of the inventory unreadable, ``unknown_domains`` (domain UUID to reason) makes documents unreadable, and with a
    reason in ``disconnected`` the hypervisor gives no answer at all. ``live_migration_obstacles`` (kind to reason)
    keeps guests from moving, and ``migration_obstacles`` (device to reason) one guest. ``unproven`` are the namespaces
    and functions that no proof on this machine calls clean; the machine keeps its proofs when managers and stores are
    gone. Of those, our guests got the ``given`` ones since their proof. ``by_person`` are those that only a person can
    clean. ``opened`` (device to user) are devices that a process beside the guests has open, and ``written`` those that
    somebody wrote to since they were proven clean, as the host's counters show. ``wiping`` holds the progress of wipes,
    for tests that look at it. ``sockets`` are pairs of a NUMA node and its socket. ``lent`` are the functions that are
    bound to the driver for guests. The hypervisor binds them when it starts a guest and never unbinds them, as libvirt
    does when it is killed at the wrong moment. ``ports`` has the network port that each function is. ``broken`` are the
    devices that cannot be made ready for a guest, and the parents that can make none although they show room, by name,
    each with the error of the host.
    """

    _hosts: dict[str, Self] = {}

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
        self.domains: dict[str, fake_guests.Domain] = {}
        self.contents: dict[DeviceKey, bytes] = {}
        self.unproven: set[DeviceKey] = set()
        self.given: set[DeviceKey] = set()
        self.by_person: set[DeviceKey] = set()
        self.opened: dict[DeviceKey, str] = {}
        self.written: set[DeviceKey] = set()
        self.lent: set[DeviceKey] = set()
        self.ports: dict[DeviceKey, Port] = {}
        self.broken: dict[str, str] = {}
        self.wiping: dict[DeviceKey, WipeProgress] = {}
        self.busy: set[DeviceKey] = set()
        self.missing: tuple[Missing, ...] = ()
        self.unnamed: set[DeviceKey] = set()
        self.overlaps: tuple[Overlap, ...] = ()
        self.resource_classes: set[str] = set()
        self.idle_parents: set[str] = set()
        self.aliases: dict[str, PCIAlias] | None = None
        self.sockets: tuple[tuple[int, int], ...] = ()
        self._declared: dict[tuple[str, str | None, str], MigrationType] = {}
        self._addresses: dict[DeviceKey, str] = {}
        self._owners_of_addresses: dict[str, DeviceKey] = {}
        self._actions: dict[str, list[tuple[Action, int | None]]] = {}
        self._devices: tuple[InventoryDevice, ...] | None = None

    @classmethod
    def named(cls, name: str) -> Self:
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

        :param proven: whether the machine has a proof of that; without a proof a manager has to check for itself
        :param exclusions: which devices may not be held beside it, as if it were a function of a PCI device: see
            :class:`~devicetrack.objects.values.InventoryDevice`
        """
        key = DeviceKey(VPMEM, name)
        with self.lock:
            path = f'/dev/fakedax{len(self._addresses)}'
            made = details_text(VPMEMDetails, namespace_uuid=str(uuid.uuid4()), label=label, devpath=path,
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
        """Add a PCI function without any bytes of a guest in it.

        :param physfn: for a virtual function, the address of its physical one; the two are never held at the same time
        :param has_vfs: whether it is a physical function with virtual ones
        :param group: functions of one group are given to the same guest or stay free
        :param proven: as in :meth:`add_namespace`
        :param traits: the traits from the options; with ``HW_PCI_LIVE_MIGRATABLE`` its guest can move live
        :param physical_network: the network of which it can be a port, trusted or not; see ``ports``
        """
        device, fields = fake_functions.function(address, resource_class, physfn, has_vfs, vf_number, group, serial,
                                                 numa_node, traits, physical_network)
        with self.lock:
            self.kinds |= {PCI}
            self._put(device._replace(details=details_text(PCIDetails, **fields)), address)
            if not proven or device.key in self.contents:
                self.unproven.add(device.key)
        return device.key

    def add_card(self, address: str, vfs: int, of_pf: str = 'CUSTOM_PF', of_vf: str = 'CUSTOM_VF',
                 traits: Sequence[str] = ()) -> list[DeviceKey]:
        """Add a physical function ``….0`` and its virtual ones, each with its resource class.

        :param traits: those of the virtual ones, as in :meth:`add_function`
        """
        return [self.add_function(address, of_pf, has_vfs=True), *(
            self.add_function(f'{address[:-1]}{number + 1}', of_vf, address, vf_number=number, traits=traits)
            for number in range(vfs))]

    def add_parent(self, name: str, costs: Mapping[str, int] | None = None, units: int = 16,
                   resource_class: str = 'VGPU', numa_node: int | None = 0, address: str | None = None,
                   serial: str = '') -> None:
        """Add a parent. By default it makes 16 devices of the type ``nvidia-35``, which count as ``VGPU``.

        :param costs: how many of the ``units`` one device of the type takes
        :param serial: the serial number of its card
        :raises ValueError: ``costs`` has several types, and a parent makes one type of a resource class
        """
        costs = dict(costs or {'nvidia-35': 1})
        if len(costs) > 1:
            raise ValueError(f'{name}: a claim of class {resource_class} could not choose one of {", ".join(costs)}')
        templates = {
            device_type: details_text(
                MdevDetails, type=device_type, parent=name, parent_address=address, device_api='vfio-pci',
                iommu_group=None, origin=vocabulary.CREATED, parent_serial=serial)
            for device_type in costs}
        self.resource_classes.add(resource_class)
        self.parents[name] = Parent(name, units, costs, resource_class, numa_node, address, templates)

    def declare(self, said: MigrationType) -> None:
        """Let a parent declare this about a type of its devices. By default parents declare nothing."""
        with self.lock:
            self._declared[said[:3]] = said

    def add_mdev(self, parent: str, device_type: str = 'nvidia-35', identifier: str | None = None) -> DeviceKey:
        """Make a mediated device as other software does. It may be assigned.

        :raises ParentFull: the parent has no room for it
        """
        key = DeviceKey(MDEV, identifier or str(uuid.uuid4()))
        with self.lock:
            self._create(key, self.parents[parent], device_type)
        return key

    def prove(self, keys: Iterable[DeviceKey]) -> None:
        """Note that devices are clean."""
        with self.lock:
            done = set(keys)
            self.unproven -= done
            self.given -= done

    def give(self, keys: Iterable[DeviceKey]) -> None:
        """Note that devices which store data are not clean, and that a guest of ours writes on those that were."""
        with self.lock:
            keeping = {key for key in keys if key.kind in KEEPING}
            self.given |= keeping - self.unproven
            self.unproven |= keeping

    def disprove(self, keys: Iterable[DeviceKey]) -> None:
        """Note that somebody else may have written to devices which store data."""
        with self.lock:
            keeping = {key for key in keys if key.kind in KEEPING}
            self.unproven |= keeping
            self.given -= keeping

    def remove(self, key: DeviceKey) -> None:
        """Take a device away, as broken hardware or an operator does."""
        with self.lock:
            device = self.devices.pop(key)
            self._devices = None
            self._owners_of_addresses.pop(self._addresses.pop(key), None)
            if device.kind == MDEV:
                parent = self.parents[str(device.parent)]
                parent.used -= parent.costs[fields_of(device.details)['type']]

    def change(self, key: DeviceKey, **values: Any) -> None:
        """Change fields of a device's details (for example ``namespace_uuid``), or fields of the device itself.

        Those are ``unhealthy``, ``assignable`` and ``exclusions``.
        """
        with self.lock:
            device = self.devices[key]
            of_device = {name: values.pop(name) for name in ('unhealthy', 'assignable', 'exclusions') if name in values}
            device = device._replace(**of_device)
            if {'namespace_uuid', 'size_bytes', *fake_functions.IDENTITY} & values.keys():
                self.disprove((key,))                   # the proof was for another namespace or function
            self._put(device._replace(details=changed(device.details, **values)), self._addresses[key])

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
                self._put(device._replace(details=changed(device.details, devpath=path)), path)

    # -- guests ------------------------------------------------------------------------------------------------

    def start_guest(self, domain_uuid: str, elements: Iterable[str], define: bool = True, metadata: str = '',
                    arriving: bool = False) -> None:
        """Start a guest with device elements of ``guest_config``; without ``define`` it is a transient one.

        :param metadata: the element of ``guest_config`` for its metadata
        :param arriving: it waits for a live migration, and :meth:`arrived` defines it
        """
        addresses = tuple(fake_guests.addresses_in(elements))
        with self.lock:
            self._lend(addresses)
            defined = addresses if define else None
            now, later = (None, defined) if arriving else (defined, None)
            self.domains[domain_uuid] = fake_guests.Domain(domain_uuid, addresses, now, metadata, arriving, later)

    def receive_guest(self, domain_uuid: str, definitions: MigrationDefinitions) -> None:
        """Let a guest arrive with what the source's ``migration_definitions`` returned."""
        self.start_guest(domain_uuid, fake_guests.elements_in(definitions.live), definitions.persistent is not None,
                         fake_guests.metadata_in(definitions.live), arriving=True)

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
        """Save a guest that runs and is defined (managed save). It is off then, and :meth:`power_on` resumes it."""
        with self.lock:
            domain = self.domains[domain_uuid]
            domain.saved, domain.live = domain.live, None

    def redefine_guest(self, domain_uuid: str) -> None:
        """Define a guest anew without devices, as somebody does who edits its definition."""
        with self.lock:
            self.domains[domain_uuid].defined = ()

    def power_on(self, domain_uuid: str) -> None:
        """Start a guest that is defined: from its managed-save image, or else by its definition."""
        with self.lock:
            domain = self.domains[domain_uuid]
            domain.live = domain.defined if domain.saved is None else domain.saved
            domain.saved = None
            self._lend(domain.live or ())

    def _lend(self, addresses: Iterable[str]) -> None:
        """Bind functions to the driver for guests."""
        self.lent.update(key for address in addresses if (key := DeviceKey(PCI, address)) in self.devices)

    def delete_guest(self, domain_uuid: str) -> None:
        """Turn a guest off and undefine it, with its managed-save image. Do nothing if the guest is gone already."""
        with self.lock:
            self.domains.pop(domain_uuid, None)

    def write(self, key: DeviceKey, data: bytes) -> None:
        """Leave bytes on a device, as a guest does."""
        self.contents[key] = data

    def write_beside(self, key: DeviceKey, data: bytes) -> None:
        """Leave bytes on a device that no guest has, as a program of the host does. The host's counters show it."""
        self.write(key, data)
        self.written.add(key)

    def read(self, key: DeviceKey) -> bytes:
        """Return the bytes that the last writer left on a device; empty for a wiped one."""
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

    def _create(self, key: DeviceKey, parent: Parent, device_type: str) -> None:
        cost = parent.costs[device_type]
        if parent.used + cost > parent.units:
            raise exception.ParentFull(MDEV, parent.name, device_type, 'no available instances')
        parent.used += cost
        made = changed(parent.templates[device_type], origin=vocabulary.EXISTING, iommu_group=len(self._addresses))
        self._put(InventoryDevice(MDEV, key.identifier, parent.name, parent.resource_class, parent.name,
                                  parent.numa_node, made), key.identifier)

    def _put(self, device: InventoryDevice, address: str) -> None:
        self.devices[device.key] = device
        self.resource_classes.add(device.resource_class)
        self._addresses[device.key] = address
        self._owners_of_addresses[address] = device.key
        self._devices = None


_TEXTS: dict[type[details.DeviceDetails], str] = {}


def details_text(cls: type[details.DeviceDetails], **values: Any) -> str:
    """Make stored details as text. A test may want a hundred thousand devices, and making an object takes 90 µs."""
    if cls not in _TEXTS:
        _TEXTS[cls] = details.to_text(cls(**values))
    return changed(_TEXTS[cls], **values)


def fields_of(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text)['versioned_object.data']
    return found


def changed(text: str, **values: Any) -> str:
    primitive = json.loads(text)
    primitive['versioned_object.data'].update(values)
    return json.dumps(primitive, separators=(',', ':'), sort_keys=True)
