"""A compute service on two hosts: what it saves and when, and a resize from one host to the other.

    python examples/two_hosts/service.py

The hosts are machines in memory (``[devicetrack] virt_driver = fake``), each with a state directory and a store of its
own. The service's database is one file. Each step of a move reads the instance from it, as a host does that gets a
call from another host: what a step did not save, the next one does not know.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set
import dataclasses
import itertools
import json
import os
import pathlib
import tempfile
from typing import Any
import uuid

from oslo_config import cfg

import devicetrack
from devicetrack import objects
from devicetrack.virt import fake

CONTEXT = None                                  # the service's request context, which the library hands through


@dataclasses.dataclass
class Flavor:
    name: str
    extra_specs: dict[str, str]


@dataclasses.dataclass
class Instance:
    """The library reads ``uuid``, ``host`` and ``flavor``. It sets the last two fields, and the service saves them."""

    uuid: str
    flavor: Flavor
    host: str | None = None
    deleted: bool = False
    resources: objects.InstanceResources | None = None
    migration_context: objects.MigrationContext | None = None


@dataclasses.dataclass
class Migration:
    uuid: str
    id: int                                     # a newer migration has a greater one
    instance_uuid: str
    source_compute: str
    dest_compute: str
    status: str = 'accepted'

    @property
    def source_node(self) -> str:
        return self.source_compute

    @property
    def dest_node(self) -> str:
        return self.dest_compute


class Database:
    """The service's own database: one file, which each save replaces as a whole."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path

    def _read(self) -> dict[str, dict[str, Any]]:
        return json.loads(self._path.read_text()) if self._path.exists() else {'instances': {}, 'migrations': {}}

    def save(self, *changed: Instance | Migration) -> None:
        """Save instances and migrations in one transaction."""
        data = self._read()
        for one in changed:
            if isinstance(one, Migration):
                data['migrations'][one.uuid] = dataclasses.asdict(one)
            else:
                facts = {field.name: getattr(one, field.name) for field in dataclasses.fields(one)}
                facts['flavor'] = dataclasses.asdict(one.flavor)
                for name in ('resources', 'migration_context'):
                    facts[name] = None if facts[name] is None else facts[name].obj_to_primitive()
                data['instances'][one.uuid] = facts
        new = self._path.with_suffix('.new')
        new.write_text(json.dumps(data))
        new.replace(self._path)

    def instance(self, instance_uuid: str) -> Instance:
        facts = dict(self._read()['instances'][instance_uuid])
        facts['flavor'] = Flavor(**facts['flavor'])
        for name, cls in (('resources', objects.InstanceResources), ('migration_context', objects.MigrationContext)):
            facts[name] = None if facts[name] is None else cls.obj_from_primitive(facts[name])
        return Instance(**facts)

    def instances(self) -> list[Instance]:
        return [self.instance(one) for one in self._read()['instances']]

    def migrations(self) -> list[Migration]:
        return [Migration(**facts) for facts in self._read()['migrations'].values()]


class Answers:
    """What the manager of one host asks of the service. Every answer comes from the database."""

    def __init__(self, database: Database, host: str) -> None:
        self._database, self._host = database, host

    def instances(self, uuids: Set[str]) -> dict[str, str]:
        """Leaves out an instance that has never had a host, unless it was deleted: its claim may be under way."""
        return {one.uuid: 'deleted' if one.deleted else 'here' if one.host == self._host else 'elsewhere'
                for one in self._database.instances()
                if one.uuid in uuids and (one.deleted or one.host is not None)}

    def migrations(self, uuids: Sequence[str]) -> dict[str, Migration]:
        return {one.uuid: one for one in self._database.migrations()
                if one.uuid in uuids or one.source_compute == self._host}

    def evacuated_from_here(self) -> list[str]:
        return []                               # this service has no evacuations


class Compute:
    """The compute service of one host.

    ``machine`` stands for the hypervisor: a service on libvirt defines, starts and undefines domains in its place
    (``examples/compute/service.py`` does).
    """

    def __init__(self, name: str, directory: pathlib.Path, database: Database) -> None:
        self.name, self.database = name, database
        conf = configuration(directory)
        self.machine = fake.FakeHost.named(name)
        for number in range(2):
            self.machine.add_namespace(f'd{number}')
        devicetrack.sync_store(conf)
        self.manager = devicetrack.ClaimManager(name, devicetrack.load_driver(conf, name), devicetrack.open_store(conf),
                                                conf, service=Answers(database, name))
        self.manager.init_host(CONTEXT)         # finishes what the last process left half done

    def boot(self, instance: Instance) -> None:
        """Build an instance here."""
        request = devicetrack.DeviceRequest.from_extra_specs(instance.flavor.extra_specs)
        with self.manager.instance_claim(CONTEXT, instance, self.name, request):
            instance.host = self.name
            self.database.save(instance)        # 1: the host and the resources, before the guest exists
            self._start_guest(instance)
            self.database.save(instance)        # 2: the resources again, which ``started`` has set

    def prep_resize(self, instance_uuid: str, migration: Migration, flavor: Flavor) -> None:
        """At the destination: claim the new devices."""
        instance = self.database.instance(instance_uuid)
        self.database.save(migration)           # 3: the migration, before any row names it
        request = devicetrack.DeviceRequest.from_extra_specs(flavor.extra_specs)
        with self.manager.resize_claim(CONTEXT, instance, self.name, request, migration, flavor):
            migration.status = 'pre-migrating'
            self.database.save(instance, migration)     # 4: the migration context, in the block of the claim

    def resize_instance(self, instance_uuid: str, migration: Migration) -> None:
        """At the source: end the guest, and hand the instance over."""
        instance = self.database.instance(instance_uuid)
        self.manager.update_usage(CONTEXT, instance, self.name)
        migration.status = 'migrating'
        self.database.save(migration)           # 5: the status, before the guest stops
        self.machine.stop_guest(instance.uuid)
        instance.host = migration.dest_compute
        migration.status = 'post-migrating'
        self.database.save(instance, migration)  # 6: host and status, in one transaction

    def finish_resize(self, instance_uuid: str, migration: Migration, flavor: Flavor) -> None:
        """At the destination: start the guest on the new devices."""
        instance = self.database.instance(instance_uuid)
        instance.flavor = flavor
        self._start_guest(instance)
        migration.status = 'finished'
        self.database.save(instance, migration)  # 7: the resources, which ``started`` has set

    def confirm_resize(self, instance_uuid: str, migration: Migration) -> None:
        """At the source: give back what the instance left."""
        instance = self.database.instance(instance_uuid)
        migration.status = 'confirmed'
        self.database.save(migration)           # 8: the decision, before anything is given back
        self.machine.delete_guest(instance.uuid)
        self.manager.drop_move_claim_at_source(CONTEXT, instance, migration)
        self.database.save(instance)            # 9: there is no migration context any more

    def delete(self, instance_uuid: str) -> None:
        """Delete an instance that is here."""
        instance = self.database.instance(instance_uuid)
        self.machine.delete_guest(instance.uuid)
        self.manager.release(CONTEXT, instance)
        instance.deleted = True
        self.database.save(instance)            # 10: deleted, after the devices were given back

    def audit(self) -> None:
        """The periodic task."""
        for finding in self.manager.update_available_resource(CONTEXT, self.name):
            print(f'{self.name}: {finding}')
        self.manager.wait_for_wipes()           # only to show the end: an audit itself waits for no wipe

    def _start_guest(self, instance: Instance) -> None:
        try:
            self.manager.realize(CONTEXT, instance)
            config = self.manager.guest_config(instance)
            self.machine.start_guest(instance.uuid, config.devices, metadata=config.metadata)
        except Exception:
            self.machine.delete_guest(instance.uuid)    # the guest goes before its devices do
            raise
        self.manager.started(CONTEXT, instance)


def configuration(directory: pathlib.Path) -> cfg.ConfigOpts:
    """The configuration of one host, as its operator writes it. A real host has its own ``/etc/machine-id``."""
    directory.mkdir()
    (directory / 'machine-id').write_text(uuid.uuid4().hex)
    path = directory / 'service.conf'
    path.write_text('[devicetrack]\nvirt_driver = fake\n'
                    f'state_path = {directory}/state\nmachine_id_path = {directory}/machine-id\n')
    conf = cfg.ConfigOpts()
    devicetrack.register_options(conf)
    conf(['--config-file', os.fspath(path)], project='compute')
    return conf


def show(hosts: dict[str, Compute], instance_uuid: str, step: str) -> None:
    """Print which devices each host holds for the instance."""
    held = {name: [f'{row.identifier} {row.role}' for row in host.manager.resources_of(instance_uuid)]
            for name, host in hosts.items()}
    print(f'{step}:', '; '.join(f'{name} has {", ".join(rows) or "none"}' for name, rows in held.items()))


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        database = Database(pathlib.Path(directory, 'database.json'))
        hosts = {name: Compute(name, pathlib.Path(directory, name), database) for name in ('one', 'two')}
        one, two = hosts['one'], hosts['two']
        small, large = Flavor('small', {'hw:pmem': '4GB'}), Flavor('large', {'hw:pmem': '4GB,4GB'})
        numbers = itertools.count(1)

        instance = Instance(str(uuid.uuid4()), small)
        one.boot(instance)
        show(hosts, instance.uuid, 'booted')

        migration = Migration(str(uuid.uuid4()), next(numbers), instance.uuid, 'one', 'two')
        two.prep_resize(instance.uuid, migration, large)
        show(hosts, instance.uuid, 'claimed')
        one.resize_instance(instance.uuid, migration)
        show(hosts, instance.uuid, 'handed over')
        two.finish_resize(instance.uuid, migration, large)
        show(hosts, instance.uuid, 'finished')
        one.confirm_resize(instance.uuid, migration)
        show(hosts, instance.uuid, 'confirmed')

        # Back again. This time the service of host two ends after save 8, before it called the library.
        migration = Migration(str(uuid.uuid4()), next(numbers), instance.uuid, 'two', 'one')
        one.prep_resize(instance.uuid, migration, small)
        two.resize_instance(instance.uuid, migration)
        one.finish_resize(instance.uuid, migration, small)
        migration.status = 'confirmed'
        database.save(migration)
        two.machine.delete_guest(instance.uuid)
        show(hosts, instance.uuid, 'back, and the last call is lost')
        two.audit()
        show(hosts, instance.uuid, 'after the audit of host two')

        one.delete(instance.uuid)
        show(hosts, instance.uuid, 'deleted')
        for host in hosts.values():
            host.manager.close()
            fake.FakeHost.forget(host.name)


if __name__ == '__main__':
    main()
