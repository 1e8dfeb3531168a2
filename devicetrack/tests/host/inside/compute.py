"""A compute service in one process, which can be stopped wherever it changes something.

``compute.py HOST CONFIGURATION_FILE`` runs it. Orders come as lines of JSON on standard input, each is answered by a
line on standard output. Its database is outside: every order brings the instances and migrations as they are now.

An order with ``stop`` says ``{"at": …}`` when it is there, and goes no further, while other orders run.
When enough of them wait, it is time to kill the process, or to cut the power.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import glob
import json
import logging
import mmap
import os
import sys
import threading
import traceback
from typing import Any

import libvirt
from oslo_config import cfg

import devicetrack
from devicetrack import exception
from devicetrack.objects import DeviceMap
from devicetrack.objects import DeviceRequest
from devicetrack.objects import InstanceResources
from devicetrack.objects import LiveMigrationCheck
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import GuestConfig
from devicetrack.objects.values import MigrationDefinitions
from devicetrack.store.sql import schema
from devicetrack.testing import compute_service
from devicetrack.testing import fixtures
from devicetrack.testing.libvirt import guest
from devicetrack.tests import service_devices
from devicetrack.tests.host.inside import firmware
from devicetrack.virt.libvirt import connection
from devicetrack.virt.libvirt import domain_xml
from devicetrack.virt.libvirt import guest_xml
from devicetrack.virt.libvirt import jobs
from devicetrack.virt.libvirt import pci_privileged

LOG = '/var/log/compute.log'
CONTEXT = None

PMEM = 'CUSTOM_PMEM_NAMESPACE_SMALL'
VGPU = 'VGPU'

# Where an order can be stopped.
RECORDED = 'recorded'                           # the claim's commit happened
DEFINED = 'defined'                             # an mdev is defined, and does not exist
MADE = 'made'                                   # it exists, and nobody was told
BOOTED = 'booted'                               # the guest runs, and nobody was told
WIPING = 'wiping'                               # a part of a namespace is zero
DESTROYED = 'destroyed'                         # an mdev is gone, and still defined
RESETTING = 'resetting'                         # a PCI function has the driver for guests, and is not reset
UNBOUND = 'unbound'                             # it is reset, and has no driver
CLEANING = 'cleaning'                           # a device is open for the worker, which has not begun
PROVEN = 'proven'                               # a device of the service is clean, and still reserved
LIFTED = 'lifted'                               # its reservation is lifted, and nobody was told


def say(answer: object) -> None:
    sys.stdout.write(json.dumps(answer) + '\n')
    sys.stdout.flush()


class _LogTap(logging.Handler):
    """Passes each record of a log to a function."""

    def __init__(self, tell: Callable[[logging.LogRecord], None]) -> None:
        super().__init__()
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        self._tell(record)


class Stops(threading.local):
    """The point at which the order of this thread is to be stopped."""

    wanted: str | None = None

    def reach(self, point: str) -> None:
        if self.wanted == point:
            say({'at': point})
            threading.Event().wait()            # for good

    def watch(self) -> None:
        """Reach the points that are inside the library."""
        self._around(connection.NodeDevice, 'start', DEFINED, MADE)
        self._around(connection.NodeDevice, 'undefine', DESTROYED, None)
        self._around(pci_privileged, 'reset', RESETTING, None)
        self._around(pci_privileged, 'unbind', None, UNBOUND)
        self._around(jobs, 'wipe', CLEANING, None)
        logging.getLogger('devicetrack.virt.libvirt.jobs').addHandler(_LogTap(self._wipes))

    def _around(self, of: Any, name: str, before: str | None, after: str | None) -> None:
        call: Callable[..., Any] = getattr(of, name)

        def watched(*args: Any) -> Any:
            if before is not None:
                self.reach(before)
            answer = call(*args)
            if after is not None:
                self.reach(after)
            return answer

        setattr(of, name, watched)

    def _wipes(self, record: logging.LogRecord) -> None:
        if isinstance(record.args, tuple) and 'zero' in record.args:
            self.reach(WIPING)


class Devices(service_devices.ServiceDevices):
    """The devices that the service hands out itself. Its database, outside, hears of each lifted reservation."""

    def __init__(self, stops: Stops) -> None:
        super().__init__()
        self._stops = stops
        self.stop: str | None = None

    def know(self, devices: Mapping[str, Any]) -> None:
        self.times = {address: fields['times'] for address, fields in devices.items()}
        self.reserved = {address for address, fields in devices.items() if fields['reserved']}
        self.users = {address: fields['user'] for address, fields in devices.items() if fields['user']}

    def check_waits(self, key: DeviceKey, told: str) -> None:
        self._stops.wanted = self.stop          # this is the thread that cleans
        super().check_waits(key, told)

    def hand_out(self, key: DeviceKey, told: str) -> None:
        self._stops.reach(PROVEN)
        super().hand_out(key, told)
        say({'lifted': key.identifier})
        self._stops.reach(LIFTED)


class Compute(compute_service.Compute):
    """The service on this host's libvirt."""

    def __init__(self, host: str, configuration: str, stops: Stops) -> None:
        self.host, self._stops = host, stops
        conf = cfg.ConfigOpts()
        devicetrack.register_options(conf)
        conf(['--config-file', configuration], project='compute', default_config_dirs=[])
        self.driver: Any = devicetrack.load_driver(conf, host)
        self.store: Any = devicetrack.open_store(conf)
        self.service = fixtures.Service()
        self.service.known, self.service.evacuated = {}, []
        self.manager = devicetrack.ClaimManager(self.host, self.driver, self.store, conf, self.service)
        # Also on a host where guests only arrive.
        self._firmware = firmware.path()

    def domain(self, instance_uuid: str) -> Any:
        return self.driver.hypervisor.raw().lookupByUUIDString(instance_uuid)

    def run_guest(self, instance: Any) -> None:
        super().run_guest(instance)
        self._stops.reach(BOOTED)

    def start_guest(self, instance_uuid: str, config: GuestConfig) -> None:
        self.driver.hypervisor.raw().defineXML(
            guest(instance_uuid, config, 'qemu', firmware=self._firmware)).create()

    def stop_guest(self, instance_uuid: str) -> None:
        self.domain(instance_uuid).destroy()

    def delete_guest(self, instance_uuid: str) -> None:
        with contextlib.suppress(libvirt.libvirtError):
            domain = self.domain(instance_uuid)
            with contextlib.suppress(libvirt.libvirtError):
                domain.destroy()
            domain.undefine()

    def save(self, *changed: Any) -> None:
        """The claim is recorded by the time that a service saves its instance."""
        self._stops.reach(RECORDED)


class Orders:
    """The orders that the service obeys: each method is one."""

    def __init__(self, host: str, configuration: str, stops: Stops) -> None:
        self.host, self._stops = host, stops
        self.compute = Compute(host, configuration, stops)
        self.manager, self.driver, self.store = self.compute.manager, self.compute.driver, self.compute.store
        self.devices = Devices(stops)
        self._instances: dict[str, fixtures.Instance] = {}
        self._migrations: dict[str, fixtures.Migration] = {}

    def know(self, instances: Mapping[str, Any], migrations: Mapping[str, Any], devices: Mapping[str, Any]) -> None:
        """Hear how everything stands."""
        self.devices.know(devices)
        self._migrations = {uuid: fixtures.Migration(uuid=uuid, **fields) for uuid, fields in migrations.items()}
        self.compute.service.moves = list(self._migrations.values())
        self.compute.service.known = {uuid: fields['word'] for uuid, fields in instances.items()}
        for uuid, fields in instances.items():
            instance = self._instances.setdefault(uuid, fixtures.Instance(uuid=uuid))
            instance.host = instance.node = fields['host']
            if fields.get('resources') is not None:
                instance.resources = InstanceResources.obj_from_primitive(fields['resources'])

    # -- start and audit ----------------------------------------------------------------------------------------------

    def start(self) -> dict[str, Any]:
        schema.sync(self.store)
        before = self.look()
        findings = self.manager.init_host(CONTEXT)
        self.manager.wait_for_wipes()           # for whoever looks next
        return {'findings': _texts(findings), 'before': before, 'after': self.look()}

    def audit(self) -> dict[str, Any]:
        findings = self.manager.update_available_resource(CONTEXT, self.host)
        self.manager.wait_for_wipes()
        return {'findings': _texts(findings)}

    def look_after(self) -> dict[str, Any]:
        """Clean the devices that the service hands out itself, and audit."""
        self.devices.stop = self._stops.wanted
        self.manager.look_after(self.devices)
        self.manager._started().service_cleaning.wait()
        return self.audit()

    # -- one host -----------------------------------------------------------------------------------------------------

    def run_with(self, instance: str, address: str) -> dict[str, Any]:
        """Start the guest of an instance with a device that the service hands out itself."""
        self.compute.start_guest(instance, GuestConfig((guest_xml.pci_hostdev(address, 'yes'),), ''))
        return {}

    def boot(self, instance: str, pmem: int = 0, vgpu: int = 0, **others: int) -> dict[str, Any]:
        """Boot an instance with so many namespaces and vGPUs, and with devices of other classes by their names."""
        self.compute.spawn(self._instances[instance], _request(pmem, vgpu, **others))
        return self.show(instance)

    def power_on(self, instance: str) -> dict[str, Any]:
        """Start a guest with the definition that it has, as after a boot of the host."""
        one = self._instances[instance]
        self.manager.realize(CONTEXT, one)
        self.compute.domain(instance).create()
        self.manager.started(CONTEXT, one)
        return self.show(instance)

    def resize(self, instance: str, migration: str, pmem: int = 0, vgpu: int = 0) -> dict[str, Any]:
        """To other devices of this host, in one block."""
        one, move = self._of(instance, migration)
        with self.manager.resize_claim(CONTEXT, one, self.host, _request(pmem, vgpu), move, one.flavor):
            self._stops.reach(RECORDED)
            self.compute.stop_guest(instance)
            self.compute.boot(one)
        return self.show(instance)

    def confirm(self, instance: str, migration: str) -> dict[str, Any]:
        self.compute.confirm_resize(*self._of(instance, migration))
        return self.show(instance)

    def revert(self, instance: str, migration: str) -> dict[str, Any]:
        of = self._of(instance, migration)
        self.compute.revert_resize(*of)
        self.compute.finish_revert_resize(*of)
        return self.show(instance)

    def delete(self, instance: str) -> dict[str, Any]:
        self.compute.delete(self._instances[instance])
        return self.show(instance)

    def _of(self, instance: str, migration: str) -> tuple[fixtures.Instance, fixtures.Migration]:
        return self._instances[instance], self._migrations[migration]

    # -- two hosts ----------------------------------------------------------------------------------------------------

    def check_destination(self, instance: str) -> dict[str, Any]:
        return {'check': self.compute.check_destination(self._instances[instance]).obj_to_primitive()}

    def check_source(self, instance: str, check: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Give what this host declares, for the destination.

        :param check: what the destination said; None from one that was not asked
        """
        asked = None if check is None else LiveMigrationCheck.obj_from_primitive(check)
        return {'check': self.compute.check_source(self._instances[instance], asked).obj_to_primitive()}

    def claim_live(self, instance: str, migration: str, check: Mapping[str, Any], pmem: int = 0,
                   vgpu: int = 0) -> dict[str, Any]:
        device_map = self.compute.prepare_live_migration(
            *self._of(instance, migration), _request(pmem, vgpu), LiveMigrationCheck.obj_from_primitive(check))
        return {'map': device_map.obj_to_primitive()}

    def claim_unchecked(self, instance: str, migration: str, pmem: int = 0, vgpu: int = 0) -> dict[str, Any]:
        """Claim for a running guest as for one that is off, whose devices are compared with nothing."""
        one, move = self._of(instance, migration)
        with self.manager.resize_claim(CONTEXT, one, self.host, _request(pmem, vgpu), move, one.flavor):
            self.manager.realize(CONTEXT, one)
            return {'map': self.manager.device_map(one, move).obj_to_primitive()}

    def live_migrate(self, instance: str, migration: str, device_map: Mapping[str, Any], uri: str) -> dict[str, Any]:
        """Let the hypervisors do it.

        :returns: what it failed with, or nothing
        """
        return self._migrate(instance, uri, self.compute.begin_live_migration(
            *self._of(instance, migration), DeviceMap.obj_from_primitive(device_map)))

    def live_migrate_unchecked(self, instance: str, migration: str, device_map: Mapping[str, Any],
                               uri: str) -> dict[str, Any]:
        """As :meth:`live_migrate`, also where the manager does not take part."""
        return self._migrate(instance, uri, self.driver.migration_definitions(DeviceMap.obj_from_primitive(device_map)))

    def _migrate(self, instance: str, uri: str, definitions: MigrationDefinitions) -> dict[str, Any]:
        parameters = {libvirt.VIR_MIGRATE_PARAM_DEST_XML: definitions.live}
        if definitions.persistent is not None:
            parameters[libvirt.VIR_MIGRATE_PARAM_PERSIST_XML] = definitions.persistent
        try:
            self.compute.domain(instance).migrateToURI3(
                uri, parameters, libvirt.VIR_MIGRATE_LIVE | libvirt.VIR_MIGRATE_PEER2PEER
                | libvirt.VIR_MIGRATE_PERSIST_DEST | libvirt.VIR_MIGRATE_UNDEFINE_SOURCE)
        except libvirt.libvirtError as error:
            return {'failed': error.get_error_message()}
        return {}

    def arrived(self, instance: str) -> dict[str, Any]:
        self.compute.arrived(self._instances[instance])
        return self.show(instance)

    def left(self, instance: str, migration: str) -> dict[str, Any]:
        self.compute.left(*self._of(instance, migration))
        return self.show(instance)

    def roll_back(self, instance: str, migration: str) -> dict[str, Any]:
        self.compute.roll_back(*self._of(instance, migration))
        return self.show(instance)

    # -- what is asked ------------------------------------------------------------------------------------------------

    def show(self, instance: str) -> dict[str, Any]:
        """One instance's rows and definitions."""
        rows = [[record.kind, record.identifier, record.role, record.state]
                for record in self.store.records_of_instance(self.manager.state().host_uuid, instance)]
        resources = self.manager.assignments(instance)
        found: dict[str, Any] = {'rows': rows, 'resources': resources.obj_to_primitive(), 'live': None, 'defined': None}
        with contextlib.suppress(libvirt.libvirtError):
            domain = self.compute.domain(instance)
            if domain.isActive():
                found['live'] = self._named(domain.XMLDesc(0))
            if domain.isPersistent():
                found['defined'] = self._named(domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE))
        return found

    def _named(self, definition: str) -> list[list[str | None]]:
        """The devices that a definition names, mediated ones first."""
        read = domain_xml.parse(definition)
        named = []
        for name, kind in sorted(self.driver._kinds.items()):
            addresses = kind.addresses(read)
            means = kind.identify(addresses)
            # Two kinds give functions to guests, and each of them knows its own.
            named += [[name, means[address]] for address in addresses if address in means]
        return named

    def look(self) -> dict[str, Any]:
        """Every row, and what the kernel, mdevctl and libvirt report."""
        directory = '/sys/bus/mdev/devices'
        rows: list[list[str]] = []
        with contextlib.suppress(exception.NotReady):
            rows = [[record.kind, record.identifier, record.instance_uuid, record.role, record.state]
                    for record in self.store.records_of_host(self.manager.state().host_uuid)]
        return {'rows': rows, 'mdevs': sorted(os.listdir(directory)) if os.path.isdir(directory) else [],
                'defined': sorted(os.path.basename(path) for path in glob.glob('/etc/mdevctl.d/*/*')
                                  if os.path.isfile(path)),
                'running': sorted(domain.UUIDString() for domain in self.driver.hypervisor.raw().listAllDomains()
                                  if domain.isActive())}

    def paths(self) -> dict[str, str]:
        """Where this boot has each namespace."""
        return {name: path for path, name in self.driver._kinds['vpmem']._source.paths().items()}

    def fill(self, name: str, byte: int) -> dict[str, Any]:
        """Leave a byte all over a namespace, as its guest may, and read it back."""
        with self._mapped(name) as mapped:
            mapped[:] = bytes([byte]) * len(mapped)
        return self.contents(name, byte)

    def contents(self, name: str, byte: int = 0) -> dict[str, Any]:
        """Whether a byte is all that there is in a namespace, and whether it is there at all."""
        with self._mapped(name) as mapped:
            data = mapped[:]
        return {'all': data == bytes([byte]) * len(data), 'any': byte in data, 'size': len(data)}

    @contextlib.contextmanager
    def _mapped(self, name: str) -> Any:
        path = self.paths()[name]
        with open(path, 'r+b', buffering=0) as file:
            number = os.fstat(file.fileno()).st_rdev
            with open(f'/sys/dev/char/{os.major(number)}:{os.minor(number)}/size', encoding='ascii') as of_device:
                size = int(of_device.read())
            with mmap.mmap(file.fileno(), size) as mapped:
                yield mapped


def _request(pmem: int, vgpu: int, **others: int) -> DeviceRequest:
    return DeviceRequest.of(*((name, amount) for name, amount in ((VGPU, vgpu), (PMEM, pmem), *others.items())
                              if amount))


def _texts(findings: Sequence[Any]) -> list[str]:
    return [str(finding) for finding in findings]


def obey(orders: Orders, name: str, arguments: Mapping[str, Any]) -> None:
    try:
        say(getattr(orders, name)(**arguments))
    except Exception as error:
        logging.exception('An order failed')
        say({'error': type(error).__name__, 'text': str(error), 'trace': traceback.format_exc()})


def obey_until(orders: Orders, stops: Stops, point: str, name: str, arguments: Mapping[str, Any]) -> None:
    stops.wanted = point
    obey(orders, name, arguments)


def main(host: str, configuration: str) -> None:
    logging.basicConfig(filename=LOG, level=logging.INFO, format='%(asctime)s %(process)d %(name)s %(message)s')
    stops = Stops()
    stops.watch()
    orders = Orders(host, configuration, stops)
    say({'there': os.getpid()})
    for line in sys.stdin:
        order: dict[str, Any] = json.loads(line)
        name, point = order.pop('order'), order.pop('stop', None)
        orders.know(order.pop('instances', {}), order.pop('migrations', {}), order.pop('devices', {}))
        if point is None:
            obey(orders, name, order)
        else:
            # It goes no further than the point; other orders go on beside it.
            threading.Thread(target=obey_until, args=(orders, stops, point, name, order), daemon=True).start()


if __name__ == '__main__':
    main(*sys.argv[1:])
