"""Boots an instance on one of two hosts, moves it in each way there is, and prints what each host holds after a step.

    python examples/compute/two_hosts.py

Both hosts are on libvirt's test driver, in this process. A real service is a process on each host, ``ask`` is a call
from one to the other, and ``Guests.migrate`` is that of ``service.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
import os
import pathlib
import tempfile
import uuid

import libvirt

import devicetrack
from devicetrack.objects.values import MigrationDefinitions
from service import configured
from service import Database
from service import Guests
from service import open_host

# What an operator writes into the configuration file of a host. A real host has its own /etc/machine-id.
CONFIGURATION = """
[devicetrack]
state_path = {directory}/state
machine_id_path = {directory}/machine-id
[libvirt]
connection_uri = test://{directory}/host.xml
pmem_namespaces = 4GB:ns0|ns1
[devicetrack_vpmem]
directory = {directory}/memory
"""
SMALL = {'memory_mb': 1024, 'virt_type': 'test', 'extra_specs': {'hw:pmem': '4GB'}}
LARGE = SMALL | {'extra_specs': {'hw:pmem': '4GB,4GB'}}


class TrialGuests(Guests):
    """Guests on libvirt's test driver, which cannot migrate any.

    :param connections: those of all hosts
    """

    def __init__(self, name: str, connections: Mapping[str, libvirt.virConnect]) -> None:
        super().__init__(connections[name])
        self._connections = connections

    def migrate(self, instance_uuid: str, host: str, definitions: MigrationDefinitions) -> None:
        """Start the guest at the other host, with the definition that a migration would give it."""
        self._connections[host].defineXML(definitions.persistent).create()
        self.delete(instance_uuid)

    def is_migrating(self, instance_uuid: str) -> bool:
        return False                            # ``migrate`` ends with its process


def make_host(directory: pathlib.Path) -> libvirt.virConnect:
    """Make a host with two namespaces, and its store as ``devicetrack-manage db sync`` does."""
    directory.joinpath('memory').mkdir(parents=True)
    for name in ('ns0', 'ns1'):
        directory.joinpath('memory', name).touch()
        os.truncate(directory / 'memory' / name, 4 << 20)
    directory.joinpath('machine-id').write_text(uuid.uuid4().hex)
    directory.joinpath('host.xml').write_text('<node/>')
    directory.joinpath('service.conf').write_text(CONFIGURATION.format(directory=directory))
    conf = configured(os.fspath(directory / 'service.conf'))
    devicetrack.sync_store(conf)
    return libvirt.open(conf.libvirt.connection_uri)


def main() -> None:
    hosts: dict[str, devicetrack.Lifecycle] = {}

    def show(step: str) -> None:
        for host in hosts.values():
            host.manager.wait_for_wipes()       # only to show the end: no call waits for a wipe
        held = {name: sorted(f'{one.identifier} {one.role}' for one in host.manager.assignments(instance))
                for name, host in hosts.items()}
        print(f'{step}:', '; '.join(f'{name} has {", ".join(rows) or "none"}' for name, rows in held.items()))

    def ask(host: str, instance_uuid: str) -> None:
        hosts[host].go_on(instance_uuid)

    def open_(name: str) -> None:
        conf = configured(os.fspath(directory / name / 'service.conf'))
        hosts[name] = open_host(name, conf, database, TrialGuests(name, connections))

    with tempfile.TemporaryDirectory() as temporary:
        directory = pathlib.Path(temporary)
        database = Database(os.fspath(directory / 'service.sqlite'), ask)
        connections = {name: make_host(directory / name) for name in ('one', 'two')}
        for name in connections:
            open_(name)
        one, two, instance = hosts['one'], hosts['two'], str(uuid.uuid4())

        one.claim(instance, SMALL)
        show('booted')
        one.resize(instance, LARGE, 'two')
        show('resized to host two')
        one.revert(instance)
        show('reverted')
        one.resize(instance, LARGE, 'two')
        one.confirm(instance)
        show('resized again, and confirmed')

        # Host two loses its power, and comes back after its instance was evacuated.
        two.close()
        connections['two'].lookupByUUIDString(instance).destroy()
        one.evacuate(instance)
        open_('two')
        show('evacuated, and host two is back')

        one.live_migrate(instance, 'two')
        show('migrated live')

        one.release(instance)
        show('deleted')
        for name, host in hosts.items():
            print(f'{name}: {len(host.audit())} findings')
            host.close()


if __name__ == '__main__':
    main()
