"""The two compute hosts of the cloud: virtual machines that run Nova's compute service, with the library or without."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
import json
import pathlib
from typing import Any
from typing import Final

from devicetrack.tests.cloud import services
from devicetrack.tests.cloud import settings
from devicetrack.tests.host import image as images
from devicetrack.tests.host import machine as machines
from devicetrack.tests.host import started
from devicetrack.tests.host.functions import test_interrupted

STOCK: Final = 'nova-compute'
ADAPTED: Final = 'devicetrack-nova-compute'

CONFIGURATION: Final = '/etc/nova/nova.conf'
LOG: Final = '/var/log/nova/nova-compute.log'
# What it says at the end of each audit.
AUDITED: Final = 'Compute_service record updated for'
PID_FILE: Final = '/run/nova-compute.pid'
INSTANCES: Final = '/var/lib/nova/instances'
# libvirt starts the next guest while there is the one, and does not return from that while there is the other.
HOLD: Final = '/run/hold-the-next-start'
HELD: Final = '/run/held-start'

# Two namespaces of each size, on different NVDIMMs.
NAMESPACES: Final = {'SMALL': ('pmem0', 'pmem3'), 'LARGE': ('pmem1', 'pmem4')}
# mtty's, below a PCI device: recipe/build-modules.
MDEV_TYPE: Final = 'virtio-pci-2'

# The resource class of each disk that a guest can ask for, by serial number.
DISKS: Final = {serial: f'CUSTOM_{serial.upper().replace("-", "_")}' for serial in machines.DISKS}
# What all of Nova's services are told of them, and what makes placement the one who offers them.
ALIASES: Final[dict[str, dict[str, Any]]] = {
    'pci': {'alias': [json.dumps({'name': serial, 'resource_class': name}) for serial, name in DISKS.items()]},
    'filter_scheduler': {'pci_in_placement': True}}

# For hanging, not for slowness.
PROGRAM_S: Final = 900
LONGEST_LOG: Final = 60_000

# Nova's compute service reads options while its manager and its driver are imported, so these two are left to it.
MODULES: Final = (
    'nova.cmd.compute', 'nova.service', 'nova.conductor.rpcapi', 'nova.image.glance', 'nova.network.neutron',
    'oslo_messaging._drivers.impl_rabbit', 'kombu.transport.pyamqp', 'oslo_privsep.daemon', 'oslo_db.sqlalchemy.models',
    'os_brick.initiator.connector', 'os_vif', 'os_resource_classes', 'os_traits', 'glanceclient.v2.client',
    'neutronclient.v2_0.client', 'cinderclient.v3.client', 'keystoneauth1.loading', 'keystoneauth1.token_endpoint',
    'openstack.connection', 'castellan.key_manager', 'cursive.signature_utils', 'libvirt', 'lxml.etree', 'libvirt_qemu',
    'cryptography.x509', 'alembic.command', 'alembic.context', 'sqlalchemy.dialects.sqlite', 'cliff.lister',
    'cliff.show', 'oslo_upgradecheck.upgradecheck', 'xml.etree.ElementTree', 'oslo_utils.imageutils')

# Both hosts have the keys of one image, so the key of the host is a key to the other.
PREPARE: Final = f"""
set -eu
install -d -m 700 /root/.ssh /var/lib/devicetrack
cp /etc/ssh/ssh_host_ed25519_key /root/.ssh/id_ed25519
cp /etc/ssh/ssh_host_ed25519_key.pub /root/.ssh/authorized_keys
for name in {' '.join(f'{name},{address}' for name, address in machines.ADDRESSES.items())}; do
    echo "$name $(cut -d' ' -f1,2 /etc/ssh/ssh_host_ed25519_key.pub)" >>/root/.ssh/known_hosts
done
install -d /etc/nova {INSTANCES} {pathlib.PurePath(LOG).parent}
# sudo looks for programs where a distribution puts them.
ln -s {images.VENV}/bin/privsep-helper /usr/local/bin/
# libvirt calls it when the processors of a guest run, and looks for it when it starts itself.
install -d /etc/libvirt/hooks
cat >/etc/libvirt/hooks/qemu <<'HOOK'
#!/bin/sh
if [ "$2" = started ] && [ -e {HOLD} ]; then
    mv {HOLD} {HELD}
    while [ -e {HELD} ]; do sleep 0.2; done
fi
HOOK
chmod +x /etc/libvirt/hooks/qemu
systemctl restart libvirtd
systemctl start ssh
"""


def begin(image: images.Image) -> Mapping[str, pathlib.Path]:
    """Hosts that have booted and have imported what Nova imports; made once for an image, which takes minutes."""
    return started.get(image, MODULES, dict.fromkeys(services.PORTS, 0), prepare, PREPARE)


def prepare(machine: machines.Machine) -> None:
    """Do what every host needs once."""
    machine.run(['sh', '-c', PREPARE], timeout_s=PROGRAM_S)


class Host:
    """A compute host, as its operator sees it. ``program`` is the compute service that it is to run."""

    def __init__(self, machine: machines.Machine, program: str, at: settings.Addresses,
                 with_disks: bool = False) -> None:
        self.machine, self.name = machine, machine.name
        self.program, self._with_disks = program, with_disks
        self._at = at
        self._service: machines.Process | None = None
        self._reader: machines.Process | None = None
        # Where each disk is: they keep their slots.
        self.addresses: Mapping[str, str] = {}
        self._nvdimms = tuple(range(machines.NVDIMMS))

    def boot(self) -> None:
        self.machine.start(self._nvdimms)
        self.machine.run(['systemctl', 'start', 'ssh'], timeout_s=PROGRAM_S)

    def boot_renumbered(self) -> None:
        """Boot, and find NVDIMMs in another order than the last time."""
        self._nvdimms = self._nvdimms[::-1]
        self.boot()
        # The service would import them anyhow, and every command of the checker once more.
        self.machine.learn(MODULES)

    def configure(self, cleaning: Sequence[Mapping[str, Any]] = ({'policy': 'zero'},)) -> None:
        """Write Nova's configuration.

        :param cleaning: how disks are cleaned, the objects of ``[devicetrack_pci] cleaning``
        """
        options = _options(self.machine, self._at)
        if self._with_disks:
            options = settings.merged(settings.merged(options, ALIASES), self._disk_options(cleaning))
        self.machine.write(CONFIGURATION, settings.text(options).encode())

    def _disk_options(self, cleaning: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        if not self.addresses:
            self.addresses = {serial: self.machine.run(['sh', '-e', '-c', test_interrupted.ADDRESS_OF, 'sh', serial])
                              .out.strip() for serial in DISKS}
        specs = [{'address': self.addresses[serial], 'resource_class': name, 'one_time_use': 'true'}
                 for serial, name in DISKS.items()]
        # Nobody waits for audits of another host.
        return {'DEFAULT': {'update_resources_interval': 20},
                'pci': {'report_in_placement': True, 'device_spec': list(map(json.dumps, specs))},
                'devicetrack_nova': {'pci': 'clean'},
                # Drivers and udev of an emulated host are slow.
                'devicetrack_pci': {'release_wait_s': 60, 'cleaning': list(map(json.dumps, cleaning))}}

    def start_service(self) -> None:
        """Start the compute service, and do not wait for it."""
        self._service = self.machine.spawn_module(
            ['devicetrack.tests.cloud.inside.service', PID_FILE, self.program, '--config-file', CONFIGURATION],
            imported=False)

    def kill_service(self) -> None:
        """``kill -9`` of the service itself: what it started may go on, and so does a start that was held."""
        assert self._service is not None
        self.machine.run(['sh', '-c', f'kill -9 $(cat {PID_FILE}) && rm -f {HELD}'])
        self._service.wait(PROGRAM_S)
        self._service = None

    def hold_next_start(self) -> None:
        """Let libvirt not return from its next start of a guest, which runs then, until something is killed."""
        self.machine.run(['touch', HOLD])

    def holds_start(self) -> bool:
        """Whether a guest runs whose start is held."""
        return not self.machine.run(['test', '-e', HELD], check=False).status

    def hold_no_start(self) -> None:
        self.machine.run(['rm', '-f', HOLD, HELD])

    def kill_libvirt(self) -> None:
        """``kill -9`` of libvirt's daemon, which systemd starts again. Guests run on."""
        self.machine.run(['sh', '-c', f'systemctl kill --kill-whom=main --signal=KILL libvirtd && rm -f {HELD}'])

    @property
    def serves(self) -> bool:
        """Whether the compute service's process runs."""
        return self._service is not None and not self._service.ended

    def audits(self) -> int:
        """How many times Nova has audited the host, by its log."""
        said = self.machine.run(['grep', '--count', AUDITED, LOG], check=False).out
        return int(said or 0)

    def cut(self) -> None:
        """Take the power away."""
        self.machine.cut()
        self._service = self._reader = None

    def undefine(self, uuid: str) -> None:
        """Stop and undefine a domain, as an operator does by hand."""
        self.machine.run(['virsh', 'destroy', uuid], check=False)       # it may be off
        self.machine.run(['virsh', 'undefine', uuid])

    def look(self, *fill: str) -> Any:
        """What libvirt and the kernel have: see inside/look.py."""
        [found] = self.read(('look', *fill))
        return found

    def look_briefly(self) -> Any:
        """The same without whether namespaces are zero."""
        return self.look('--briefly')

    def read(self, *commands: Sequence[str]) -> list[Any]:
        """The answers of commands of inside/reader.py, one after the other.

        What ``devicetrack-manage`` finds is an answer.

        :raises machines.Failed: one of them failed
        """
        if self._reader is None:
            self._reader = self.machine.spawn_module(['devicetrack.tests.cloud.inside.reader'], imported=False)
        orders = [_order(*command) for command in commands]
        self._reader.send(f'{json.dumps(orders)}\n'.encode())
        try:
            ends = json.loads(next(self._reader.lines(PROGRAM_S)))
        except StopIteration:
            raise machines.Failed(f'{self.name}: what reads it has ended\n{self._reader.err}') from None
        for order, (status, out, err) in zip(orders, ends, strict=True):
            if status not in ((0, 3) if order[0] == 'manage' else (0,)):
                raise machines.Failed(f'{self.name}: {order} ended with {status}\n{out}\n{err}')
        return [json.loads(out or '[]') for _status, out, _err in ends]

    def logs(self) -> str:
        """The end of the compute service's log."""
        if not self.machine.runs:
            return f'--- {self.name} is off\n'
        said = self._service.err if self._service is not None else ''
        log = self.machine.run(['tail', '-c', str(LONGEST_LOG), LOG], check=False).out
        return f'--- {self.name}: {self.program}\n{log}\n{said[-LONGEST_LOG:]}'


def _order(name: str, *arguments: str) -> list[str]:
    """A command for inside/reader.py, whose output is to be JSON."""
    if name == 'manage':
        return [name, '--config-file', CONFIGURATION, *arguments, '--format', 'json']
    return [name, *arguments]


def _options(machine: machines.Machine, at: settings.Addresses) -> dict[str, dict[str, Any]]:
    made = settings.common(at)
    made['DEFAULT'] |= {
        'host': machine.name, 'my_ip': machine.address, 'compute_driver': 'libvirt.LibvirtDriver',
        'state_path': '/var/lib/nova', 'instances_path': INSTANCES, 'log_file': LOG, 'debug': True,
        'reserved_host_memory_mb': 256, 'reserved_host_disk_mb': 0,
        'vif_plugging_is_fatal': False, 'resume_guests_state_on_host_boot': True,
        # Often enough for a test. An audit takes an emulated processor some seconds.
        'update_resources_interval': 60, 'sync_power_state_interval': -1, 'heal_instance_info_cache_interval': -1,
        'report_interval': 5,
        # The guest hears no request to shut down.
        'shutdown_timeout': 2,
    }
    return made | {
        'workarounds': {'disable_rootwrap': True},
        'vnc': {'enabled': False}, 'spice': {'enabled': False},
        'oslo_concurrency': {'lock_path': '/var/lib/nova/locks'},
        'devices': {'enabled_mdev_types': MDEV_TYPE},
        'libvirt': {
            'virt_type': 'qemu', 'cpu_mode': 'none', 'swtpm_enabled': False,
            'pmem_namespaces': ','.join(f'{label}:{"|".join(names)}' for label, names in NAMESPACES.items()),
            'live_migration_uri': 'qemu+tcp://%s/system', 'live_migration_inbound_addr': machine.address,
            'remote_filesystem_transport': 'ssh', 'images_type': 'qcow2',
            # Nova would give up by the clock.
            'live_migration_completion_timeout': 0,
        },
    }
