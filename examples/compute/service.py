"""A compute service that boots and deletes guests with devices. It shows the library's calls in order.

    devicetrack-manage --config-file FILE db sync
    service.py --config-file FILE boot NAME hw:pmem=4GB resources:VGPU=1
    service.py --config-file FILE delete NAME
    service.py --config-file FILE audit

A real service keeps running. This one starts for each order, which shows that nothing depends on its memory.
"""

from __future__ import annotations

from collections.abc import Set
import dataclasses
import json
import pathlib
import sys
from typing import Any
import uuid

import libvirt
from oslo_config import cfg

import devicetrack
from devicetrack import exception

OPTIONS = [
    cfg.StrOpt('host', default='localhost', help='Name of this host, unique among the hosts of the store.'),
    cfg.StrOpt('virt_type', default='kvm', choices=['kvm', 'qemu'], help='How QEMU runs guests.'),
]
ORDER = [
    cfg.StrOpt('order', positional=True, required=True, choices=['boot', 'delete', 'audit']),
    cfg.MultiStrOpt('words', positional=True, default=[], metavar='NAME [SPEC=VALUE …]'),
]
DOMAIN = """\
<domain type='{virt_type}'>
  <name>{instance.name}</name>
  <uuid>{instance.uuid}</uuid>
  <metadata>{config.metadata}</metadata>
  <maxMemory slots='16' unit='GiB'>64</maxMemory>
  <memory unit='MiB'>128</memory>
  <vcpu>1</vcpu>
  <os><type arch='x86_64' machine='q35'>hvm</type></os>
  <features><acpi/></features>
  <cpu><numa><cell id='0' cpus='0' memory='128' unit='MiB'/></numa></cpu>
  <devices>{devices}</devices>
</domain>
"""


@dataclasses.dataclass
class Flavor:
    extra_specs: dict[str, str]


@dataclasses.dataclass
class Instance:
    """An instance. The library reads ``uuid`` and ``flavor``, and sets ``resources``."""
    name: str
    uuid: str
    flavor: Flavor
    resources: Any = None


class ComputeService:
    """The compute service of one host. The library only hands its request context on, so it is None here."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._virt_type = conf.virt_type
        self._database = pathlib.Path(conf.devicetrack.state_path, 'instances.json')
        self._hypervisor = libvirt.open(conf.libvirt.connection_uri)
        driver, store = devicetrack.load_driver(conf, conf.host), devicetrack.open_store(conf)
        self.manager = devicetrack.ClaimManager(conf.host, driver, store, conf, service=self)
        self.manager.init_host(None)        # finishes or undoes the unfinished work of the last process

    def boot(self, instance: Instance) -> None:
        """Boot an instance with the devices of its flavor, or leave nothing of it behind."""
        self._save(instance, 'here')            # this service has one host, so it knows the host before the claim
        try:
            # This may raise BadRequest, and so may the claim.
            request = devicetrack.DeviceRequest.from_extra_specs(instance.flavor.extra_specs)
            with self.manager.instance_claim(None, instance, self.manager.nodename, request):
                self.manager.realize(None, instance)
                try:
                    self._start_guest(instance)
                except Exception:
                    self.manager.store.check_epoch()    # raises HostTakenOver if a newer process has the guest
                    self._remove_guest(instance)        # before the claim gives its devices back
                    raise
                self.manager.started(None, instance)
        except exception.HostTakenOver:
            raise                                       # the guest and the database belong to the newer process
        except Exception:
            if not self._domains(instance):             # else the guest runs, and the audit settles it
                self._save(instance, 'deleted')
            raise

    def delete(self, instance: Instance) -> None:
        """Delete an instance. Nobody else gets its devices before they are clean."""
        self._remove_guest(instance)
        self.manager.release(None, instance)
        self._save(instance, 'deleted')

    def instances(self, uuids: Set[str]) -> dict[str, str]:
        """Answer the library: the states of these instances."""
        return {known: facts['state'] for known, facts in self._load().items() if known in uuids}

    def find(self, name: str) -> Instance:
        """The only instance of this name on this host."""
        [found] = [Instance(name, known, Flavor(facts['extra_specs'])) for known, facts in self._load().items()
                   if (facts['name'], facts['state']) == (name, 'here')]
        return found

    def _start_guest(self, instance: Instance) -> None:
        config = self.manager.guest_config(instance)
        self._hypervisor.defineXML(DOMAIN.format(
            virt_type=self._virt_type, instance=instance, config=config, devices=''.join(config.devices))).create()

    def _remove_guest(self, instance: Instance) -> None:
        for domain in self._domains(instance):
            if domain.isActive():
                domain.destroy()
            domain.undefine()

    def _domains(self, instance: Instance) -> list[libvirt.virDomain]:
        """The guest of the instance, if it is defined."""
        return [domain for domain in self._hypervisor.listAllDomains() if domain.UUIDString() == instance.uuid]

    def _load(self) -> dict[str, dict[str, Any]]:
        return json.loads(self._database.read_text()) if self._database.exists() else {}

    def _save(self, instance: Instance, state: str) -> None:
        facts = {'name': instance.name, 'extra_specs': instance.flavor.extra_specs, 'state': state}
        new = self._database.with_suffix('.new')
        new.write_text(json.dumps(self._load() | {instance.uuid: facts}, indent=2))
        new.replace(self._database)


def main(arguments: list[str]) -> None:
    conf = cfg.ConfigOpts()
    conf.register_opts(OPTIONS)
    conf.register_cli_opts(ORDER)
    devicetrack.register_options(conf)
    conf(arguments, project='compute')
    service = ComputeService(conf)
    if conf.order == 'boot':
        name, *specs = conf.words
        instance = Instance(name, str(uuid.uuid4()), Flavor(dict(spec.split('=', 1) for spec in specs)))
        service.boot(instance)
        for device in instance.resources:
            print(f'{name} has {device.kind} {device.identifier}')
    elif conf.order == 'delete':
        service.delete(service.find(conf.words[0]))
    for finding in service.manager.update_available_resource(None, service.manager.nodename):
        print(finding)


if __name__ == '__main__':
    main(sys.argv[1:])
