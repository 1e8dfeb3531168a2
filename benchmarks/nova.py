"""The adapter beside Nova's own code: what a claim takes under the tracker's lock, and what a guest's start takes.

It needs Nova with its tests, which choose Nova's threads before anything of ours is imported: ``make bench-nova``. Half
of the devices have owners. Nova's hypervisor is that of its own functional tests, which answers from memory at once,
and our driver asks the same one.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import functools
import tempfile
import time
from typing import Any
import uuid

from benchmarks.host import Host
from benchmarks.measure import Effort
from benchmarks.measure import side_by_side
from benchmarks.report import Row
from benchmarks.report import Table
from devicetrack.objects import DeviceRequest
from devicetrack.testing import fixtures

CLASS = Host.resource_class
ROUNDS = 15
STOCK, LOCKED, BEFORE, CHOOSES, STARTS = 'stock', 'locked', 'before', 'chooses', 'starts'

Subjects = dict[tuple[str, int], Callable[[], float]]
_MS = 1000


def run(effort: Effort) -> Table:
    from nova import objects
    objects.register_all()
    sizes = [size for size in (10, 100, 1_000) if size <= max(effort.sizes)] or list(effort.sizes)
    rounds = min(ROUNDS, effort.rounds)
    rows: list[Row] = []
    with contextlib.ExitStack() as stack:
        subjects = {}
        for size in sizes:
            subjects |= _claims(stack, size) | _starts(stack, size)
        samples = side_by_side({f'{what} {size}': call for (what, size), call in subjects.items()}, rounds)
    for size in sizes:
        rows += [
            Row(f'claim of a namespace, {size:,} devices: Nova, under its lock',
                samples.median(f'{STOCK} {size}') * _MS, 'ms'),
            Row('  the adapter, under the lock', samples.median(f'{LOCKED} {size}') * _MS, 'ms', at_most=0.5),
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
        ]
    return Table('Beside Nova: half of the devices have owners', rows)


def _timed(call: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    answer = call()
    return time.perf_counter() - began, answer


# -- claims -----------------------------------------------------------------------------------------------------------


def _claims(stack: contextlib.ExitStack, size: int) -> Subjects:
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

    def locked() -> float:
        with tracker._claiming(claim):
            seconds, _ = _timed(lambda: tracker.claim_resources(_refused, stock.tracker, allocations))
        return seconds

    return {(STOCK, size): nova, (LOCKED, size): locked, (BEFORE, size): before}


def _refused(*_arguments: Any) -> Any:
    raise AssertionError('the adapter asked Nova')


class _Tracker:
    """Nova's tracker with so many namespaces, half of them assigned."""

    def __init__(self, tracker: Any, root: str) -> None:
        self.tracker, self.root = tracker, root


def _tracker(size: int) -> _Tracker:
    from nova import objects
    from nova.compute import provider_tree
    from nova.compute import resource_tracker
    from nova.virt.libvirt import driver as nova_driver

    from devicetrack.nova import binding
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
    tracker.driver = nova_driver.LibvirtDriver.__new__(nova_driver.LibvirtDriver)
    setattr(tracker.driver, binding._ATTRIBUTE, binding.Binding.__new__(binding.Binding))
    return _Tracker(tracker, root)


# -- starts -----------------------------------------------------------------------------------------------------------


def _starts(stack: contextlib.ExitStack, size: int) -> Subjects:
    from nova.tests.fixtures import libvirt as fakelibvirt

    from devicetrack.claims.manager import ClaimManager
    from devicetrack.tests.nova import hypervisor
    from devicetrack.virt.libvirt import driver as libvirt_driver
    from devicetrack.virt.libvirt import mdev_sysfs
    from devicetrack.virt.libvirt.kinds import mdev
    device_type = fakelibvirt.NVIDIA_11_VGPU_TYPE
    stack.enter_context(_keeping_metadata())
    fake = fakelibvirt.Connection('qemu:///system', hostname='host', pci_info=fakelibvirt.HostPCIDevicesInfo(
        num_pci=0, num_pfs=0, num_vfs=0, num_mdevcap=max(2, size // 16 + 2)))
    parents = sorted(name for name in fake.pci_info.devices if 'mdev' in fake.pci_info.devices[name].XMLDesc(0))
    configuration = stack.enter_context(fixtures.Configuration())
    configuration.set('devices', enabled_mdev_types=[device_type])
    configuration.set('devicetrack_mdev', release_wait_s=0)
    driver = libvirt_driver.LibvirtDriver('host', configuration.conf, configuration.state_path, [mdev.Mdev],
                                          lambda: hypervisor.Connection(lambda: fake))
    kinds: Any = driver._kinds
    kinds['mdev'].devices.kernel = mdev_sysfs.Kernel(stack.enter_context(tempfile.TemporaryDirectory()))
    store = stack.enter_context(fixtures.SQLiteStore(configuration.conf)).store
    manager = ClaimManager('host', driver, store, configuration.conf)
    stack.callback(manager.close)
    manager.init_host(None)
    request = DeviceRequest.of(('VGPU', 1))

    def start(instance: Any) -> Any:
        with manager.instance_claim(None, instance, 'host', request):
            manager.realize(None, instance)
            config = manager.guest_config(instance)
            text = _definition(instance.uuid, config)
            manager.check_definition(instance, text)
            domain = fake.defineXML(text)
            manager.started(None, instance)
        return domain

    for _ in range(size // 2):
        start(fixtures.Instance()).create()

    def adapter() -> float:
        instance = fixtures.Instance()
        seconds, domain = _timed(lambda: start(instance))
        domain.undefine()
        manager.release(None, instance)
        return seconds

    stock = _stock_driver(fake, device_type, parents)
    for number in range(size // 2):              # what stock finds made already, and free
        made = f'mdev_{uuid.uuid4()}'.replace('-', '_')
        fake.mdev_info.devices[made] = fakelibvirt.FakeMdevDevice(made, device_type, parents[number % len(parents)])
    allocations = {stock.provider_tree.data(f'host_{parents[0]}').uuid: {'resources': {'VGPU': 1}}}

    def nova() -> float:
        return _timed(functools.partial(stock._allocate_mdevs, allocations))[0]

    return {(CHOOSES, size): nova, (STARTS, size): adapter}


def _stock_driver(fake: Any, device_type: str, parents: list[str]) -> Any:
    from nova.compute import provider_tree
    from nova.virt.libvirt import driver as nova_driver
    from nova.virt.libvirt import host as nova_host
    host = nova_host.Host('qemu:///system')
    host.get_connection = lambda: fake
    driver = nova_driver.LibvirtDriver.__new__(nova_driver.LibvirtDriver)
    driver._host, driver.instance_claimed_mdevs = host, {}
    driver.supported_vgpu_types, driver.pgpu_type_default = [device_type], device_type
    driver.pgpu_type_mapping, driver.mdev_classes, driver.virtual_mdevs = {}, {'VGPU'}, set()
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


