"""Compares the adapter with Nova's own code: claims under the tracker's lock, starts of guests and hosts, and audits.

It needs Nova with its tests. These choose Nova's threads before anything of ours is imported: ``make bench-nova``. Half
of the devices have owners. The hypervisor is that of Nova's own functional tests, which answers from memory at once.
Nova's driver and ours ask the same one.

A first claim does not count. A claim by the adapter takes microseconds under the lock. Without the first claim, the
processor would spend most of them on reloading its caches, which the subject before has overwritten: more after Nova
looked at 1,000 devices than after it looked at 10. The claim after a pause is measured separately.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import functools
import os
import statistics
import tempfile
import time
from typing import Any
import uuid

from benchmarks import recovery
from benchmarks.host import Host
from benchmarks.measure import Effort
from benchmarks.measure import side_by_side
from benchmarks.report import Row
from benchmarks.report import Table
from devicetrack.claims.manager import ClaimManager
from devicetrack.conf import opts
from devicetrack.objects import DeviceRequest
from devicetrack.testing import databases
from devicetrack.testing import fixtures

CLASS = Host.resource_class
ROUNDS = 15
STOCK, LOCKED, RESTED, BEFORE, CHOOSES, STARTS = 'stock', 'locked', 'rested', 'before', 'chooses', 'starts'
STARTS_VPMEM, READS, AUDITS, BEGINS = 'starts vpmem', 'reads', 'audits', 'begins'
PARSES, RECOVERY, AUDIT = 'parses', 'recovery', 'audit'

Subjects = dict[tuple[str, int], Callable[[], float]]
_MS = 1000
_PAUSE_S = 0.03
_NAMESPACE_BYTES = 4 << 20


def run(effort: Effort) -> Table:
    from nova import objects
    objects.register_all()
    sizes = [size for size in (10, 100, 1_000) if size <= max(effort.sizes)] or list(effort.sizes)
    rounds = min(ROUNDS, effort.rounds)
    rows: list[Row] = []
    with contextlib.ExitStack() as stack:
        subjects = {}
        for size in sizes:
            subjects |= _claims(stack, size, effort.batch) | _mdevs(stack, size) | _namespaces(stack, size)
        samples = side_by_side({f'{what} {size}': call for (what, size), call in subjects.items()}, rounds)
        definitions = side_by_side(_definitions(stack, effort.recovered_guests), effort.recovery_rounds)
    for size in sizes:
        rows += [
            Row(f'claim of a namespace, {size:,} devices: Nova, under its lock',
                samples.median(f'{STOCK} {size}') * _MS, 'ms'),
            Row('  the adapter, under the lock', samples.median(f'{LOCKED} {size}') * _MS, 'ms', at_most=0.5),
            Row('  the same after a pause', samples.median(f'{RESTED} {size}') * _MS, 'ms', at_most=0.5),
            Row('  the adapter, before the lock, with its commit', samples.median(f'{BEFORE} {size}') * _MS, 'ms'),
        ]
    rows += [
        Row(f'under the lock, {sizes[-1]:,} devices against {sizes[0]:,}',
            samples.ratio(f'{LOCKED} {sizes[-1]}', f'{LOCKED} {sizes[0]}'), at_most=1.2),
        Row(f'Nova against the adapter, under the lock, {sizes[-1]:,} devices',
            samples.ratio(f'{STOCK} {sizes[-1]}', f'{LOCKED} {sizes[-1]}')),
    ]
    for size in sizes:
        rows += [
            Row(f'start of a guest with a vGPU, {size:,} devices: Nova chooses',
                samples.median(f'{CHOOSES} {size}') * _MS, 'ms'),
            Row('  the adapter claims, makes, checks and records', samples.median(f'{STARTS} {size}') * _MS, 'ms'),
            Row('  the same with a namespace, for which Nova has nothing to do',
                samples.median(f'{STARTS_VPMEM} {size}') * _MS, 'ms'),
            Row(f'update_available_resource, {size:,} mediated devices: Nova reads what it reports',
                samples.median(f'{READS} {size}') * _MS, 'ms'),
            Row('  the adapter audits and reports', samples.median(f'{AUDITS} {size}') * _MS, 'ms'),
            Row(f'start of the service, {size:,} mediated devices: the adapter reads and compares everything',
                samples.median(f'{BEGINS} {size}') * _MS, 'ms'),
        ]
    # When it starts, Nova reads the definitions of all guests for their mediated devices, and those of the guests that
    # run once more for their disks. The latter is also a part of every update_available_resource.
    rows.append(Row(f'{effort.recovered_guests:,} guests of twelve namespaces: Nova reads their definitions once',
                    definitions.median(PARSES) * _MS, 'ms'))
    rows += [Row(f'  the adapter {what}, to that', definitions.ratio(subject, PARSES), at_most=0.5,
                 note=f'{definitions.median(subject) * _MS:,.0f} ms')
             for what, subject in (('starts', RECOVERY), ('audits', AUDIT))]
    return Table('Beside Nova: half of the devices have owners', rows)


def _definitions(stack: contextlib.ExitStack, guests: int) -> dict[str, Callable[[], float]]:
    """The guests of the subject ``recovery``, as Nova's own code reads them and as the adapter does."""
    from nova.virt.libvirt import guest as nova_guest
    database = stack.enter_context(databases.SQLiteStore(durable=True))
    host = stack.enter_context(recovery.Guests(database.store, database.conf, guests))
    host.define(guests)

    def parse() -> None:
        for domain in host.connection.listAllDomains(0):
            nova_guest.Guest(domain).get_config()

    return {PARSES: lambda: _timed(parse)[0], RECOVERY: host.restart, AUDIT: host.audit}


def _timed(call: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    answer = call()
    return time.perf_counter() - began, answer


# -- claims -----------------------------------------------------------------------------------------------------------


def _claims(stack: contextlib.ExitStack, size: int, batch: int) -> Subjects:
    from devicetrack.nova import tracker
    stock = _tracker(size)
    configuration = stack.enter_context(fixtures.Configuration())
    store = stack.enter_context(fixtures.SQLiteStore(configuration.conf)).store
    host = stack.enter_context(Host(store, configuration.conf, size + 1))
    for _ in range(size // 2):
        host.claim(host.instance())
    allocations = {stock.root: {'resources': {CLASS: 1}}}

    def nova() -> float:
        seconds, claimed = _timed(lambda: stock.tracker._claim_resources(allocations))
        stock.tracker._release_assigned_resources(claimed)
        return seconds

    def before() -> float:
        seconds, claim = _timed(functools.partial(host.claim, host.instance()))
        claim.abort()
        return seconds

    claim = host.claim(host.instance())

    ours = tracker.ResourceTracker.__new__(tracker.ResourceTracker)
    carrying = tracker.Allocations(allocations, claim)

    def locked() -> float:
        return _timed(lambda: ours._claim_resources(carrying))[0]

    def rested() -> float:
        time.sleep(_PAUSE_S)
        return locked()

    return {(STOCK, size): lambda: _warm(nova, 1), (LOCKED, size): lambda: _warm(locked, batch),
            (RESTED, size): rested, (BEFORE, size): lambda: _warm(before, batch)}


def _warm(call: Callable[[], float], times: int) -> float:
    """The mean time of some calls, right after a first call that does not count."""
    call()
    return statistics.fmean(call() for _ in range(times))


class _Tracker:
    """Nova's tracker with so many namespaces. Half of them are assigned."""

    def __init__(self, tracker: Any, root: str) -> None:
        self.tracker, self.root = tracker, root


def _tracker(size: int) -> _Tracker:
    from nova import objects
    from nova.compute import provider_tree
    from nova.compute import resource_tracker
    root = str(uuid.uuid4())
    found = [objects.Resource(provider_uuid=root, resource_class=CLASS, identifier=f'ns{number}',
                              metadata=objects.LibvirtVPMEMDevice(label='4GB', name=f'ns{number}', size=1 << 32,
                                                                  devpath=f'/dev/dax0.{number}', align=1 << 21))
             for number in range(size)]
    tracker = resource_tracker.ResourceTracker.__new__(resource_tracker.ResourceTracker)
    tracker.provider_tree = provider_tree.ProviderTree()
    tracker.provider_tree.new_root('node', root)
    tracker.provider_tree.update_resources('node', {CLASS: set(found)})
    tracker.assigned_resources = collections.defaultdict(lambda: collections.defaultdict(set))
    tracker._add_assigned_resources(found[:size // 2])
    return _Tracker(tracker, root)


# -- hosts ------------------------------------------------------------------------------------------------------------


class _Host:
    """A host of Nova's tests with our devices. Guests that run own half of them.

    :param kind: the class of the device kind
    :param request: the request of each guest
    :param groups: options by group
    """

    def __init__(self, stack: contextlib.ExitStack, fake: Any, kind: Any, request: DeviceRequest,
                 groups: dict[str, dict[str, Any]]) -> None:
        from devicetrack.tests.nova import hypervisor
        from devicetrack.virt.libvirt import driver as libvirt_driver
        configuration = stack.enter_context(fixtures.Configuration())
        opts.register_options(configuration.conf)
        for group, values in groups.items():
            configuration.set(group, **values)
        self.fake, self._request, self._conf = fake, request, configuration.conf
        self.driver = libvirt_driver.LibvirtDriver('host', configuration.conf, configuration.state_path, [kind],
                                                   lambda: hypervisor.Connection(lambda: fake))
        self._store = stack.enter_context(fixtures.SQLiteStore(configuration.conf)).store
        self.manager = self._manager()
        stack.callback(lambda: self.manager.close())

    def _manager(self) -> ClaimManager:
        return ClaimManager('host', self.driver, self._store, self._conf)

    def begin(self) -> float:
        """Start the service's manager. Returns the seconds."""
        self.manager.close()
        self.manager = self._manager()
        return _timed(lambda: self.manager.init_host(None))[0]

    def audit(self) -> float:
        return _timed(lambda: (self.manager.update_available_resource(None, 'host'),
                               self.manager.providers(wait=False)))[0]

    def start(self, instance: Any) -> Any:
        """Start a guest through the adapter. Returns its domain."""
        with self.manager.instance_claim(None, instance, 'host', self._request):
            self.manager.realize(None, instance)
            text = _definition(instance.uuid, self.manager.guest_config(instance))
            domain = self.fake.defineXML(self.manager.kept_definition(instance, text))
            self.manager.started(None, instance)
        return domain

    def start_and_end(self) -> float:
        """Start a guest and delete it. Returns the seconds of the start."""
        instance = fixtures.Instance()
        seconds, domain = _timed(lambda: self.start(instance))
        domain.undefine()
        self.manager.release(None, instance)
        return seconds


def _mdevs(stack: contextlib.ExitStack, size: int) -> Subjects:
    from nova.tests.fixtures import libvirt as fakelibvirt

    from devicetrack.virt.libvirt import mdev_sysfs
    from devicetrack.virt.libvirt.kinds import mdev
    device_type = fakelibvirt.NVIDIA_11_VGPU_TYPE
    stack.enter_context(_keeping_metadata())
    fake = fakelibvirt.Connection('qemu:///system', hostname='host', pci_info=fakelibvirt.HostPCIDevicesInfo(
        num_pci=0, num_pfs=0, num_vfs=0, num_mdevcap=max(2, size // 16 + 2)))
    parents = sorted(name for name in fake.pci_info.devices if 'mdev' in fake.pci_info.devices[name].XMLDesc(0))
    host = _Host(stack, fake, mdev.Mdev, DeviceRequest.of(('VGPU', 1)), {
        'devices': {'enabled_mdev_types': [device_type]}, 'devicetrack_mdev': {'release_wait_s': 0}})
    kinds: Any = host.driver._kinds
    kinds['mdev'].devices.kernel = mdev_sysfs.Kernel(stack.enter_context(tempfile.TemporaryDirectory()))
    host.begin()
    for _ in range(size // 2):
        host.start(fixtures.Instance()).create()
    stock = _stock_driver(fake, device_type, parents)
    for number in range(size // 2):              # free devices that exist already
        made = f'mdev_{uuid.uuid4()}'.replace('-', '_')
        fake.mdev_info.devices[made] = fakelibvirt.FakeMdevDevice(made, device_type, parents[number % len(parents)])
    allocations = {stock.provider_tree.data(f'host_{parents[0]}').uuid: {'resources': {'VGPU': 1}}}
    return {
        (CHOOSES, size): lambda: _timed(functools.partial(stock._allocate_mdevs, allocations))[0],
        (STARTS, size): host.start_and_end,
        (READS, size): lambda: _timed(lambda: (stock._get_gpu_inventories(),
                                               stock._get_all_assigned_mediated_devices()))[0],
        (AUDITS, size): host.audit,
        (BEGINS, size): host.begin,
    }


def _namespaces(stack: contextlib.ExitStack, size: int) -> Subjects:
    from nova.tests.fixtures import libvirt as fakelibvirt

    from devicetrack.virt.libvirt.kinds import vpmem
    fake = fakelibvirt.Connection('qemu:///system', hostname='host')
    directory = stack.enter_context(tempfile.TemporaryDirectory())
    names = [f'ns{number}' for number in range(size)]
    for name in names:
        with open(os.path.join(directory, name), 'wb') as file:
            file.truncate(_NAMESPACE_BYTES)
    host = _Host(stack, fake, vpmem.VPMEM, DeviceRequest.of((CLASS, 1)), {
        'libvirt': {'pmem_namespaces': [f'4GB:{"|".join(names)}']}, 'devicetrack_vpmem': {'directory': directory}})
    host.begin()
    for _ in range(size // 2):
        host.start(fixtures.Instance()).create()
    return {(STARTS_VPMEM, size): host.start_and_end}


def _stock_driver(fake: Any, device_type: str, parents: list[str]) -> Any:
    from nova.compute import provider_tree
    from nova.virt.libvirt import driver as nova_driver
    from nova.virt.libvirt import host as nova_host
    host = nova_host.Host('qemu:///system')
    host.get_connection = lambda: fake
    driver = nova_driver.LibvirtDriver.__new__(nova_driver.LibvirtDriver)
    driver._host, driver.instance_claimed_mdevs = host, {}
    driver.supported_vgpu_types, driver.pgpu_type_default = [device_type], device_type
    driver.pgpu_type_mapping, driver.mdev_type_max_mapping = {}, {}
    driver.mdev_classes, driver.virtual_mdevs = {'VGPU'}, set()
    driver.provider_tree = provider_tree.ProviderTree()
    driver.provider_tree.new_root('host', str(uuid.uuid4()))
    for parent in parents:
        driver.provider_tree.new_child(f'host_{parent}', 'host')
    return driver


@contextlib.contextmanager
def _keeping_metadata() -> Iterator[None]:
    from devicetrack.tests.nova import hypervisor
    before: list[tuple[Any, str, Any]] = []

    def put(owner: Any, name: str, value: Any) -> None:
        before.append((owner, name, vars(owner)[name]))
        setattr(owner, name, value)

    hypervisor.keep_metadata(put)
    try:
        yield
    finally:
        for owner, name, value in reversed(before):
            setattr(owner, name, value)


def _definition(instance_uuid: str, config: Any) -> str:
    return (f"<domain type='kvm'><name>guest-{instance_uuid}</name><uuid>{instance_uuid}</uuid>"
            f"<metadata>{config.metadata}</metadata><memory>65536</memory><vcpu>1</vcpu>"
            f"<os><type arch='x86_64'>hvm</type></os><devices>{''.join(config.devices)}</devices></domain>")


