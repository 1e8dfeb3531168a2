"""A compute service on two hosts: what it saves and when, and resizes, a live migration and an evacuation.

The hosts are machines in memory (``[devicetrack] virt_driver = fake``), each with a state directory and a store of its
own. The service's database is one file (``database.py``). Each step of a move reads the instance from it, as a host
does that gets a call from another host: what a step did not save, the next one does not know. ``restart.py`` finishes
what a host that ended left half done.
"""

from __future__ import annotations

from collections.abc import Callable
import os
import pathlib
import uuid

from oslo_config import cfg

from database import Answers
from database import Database
from database import Flavor
from database import Instance
from database import Migration
import devicetrack
from devicetrack import exception
from devicetrack import objects
from devicetrack.objects.values import MigrationDefinitions
from devicetrack.testing import fake

CONTEXT = None                                  # the service's request context, which the library hands through


class Compute:
    """The compute service of one host.

    ``machine`` stands for the hypervisor: a service on libvirt defines, starts and undefines domains in its place
    (``examples/compute/service.py`` does).
    """

    def __init__(self, name: str, directory: pathlib.Path, database: Database) -> None:
        self.name, self.database = name, database
        self._conf = configuration(directory)
        self.machine = fake.FakeHost.named(name)
        for number in range(2):
            self.machine.add_namespace(f'd{number}')
        devicetrack.sync_store(self._conf)
        self.start()

    def start(self) -> None:
        """What each start of the service begins with; ``restart.go_on`` is next, as soon as all hosts can be called."""
        driver, store = devicetrack.load_driver(self._conf, self.name), devicetrack.open_store(self._conf)
        self.manager = devicetrack.ClaimManager(self.name, driver, store, self._conf,
                                                service=Answers(self.database, self.name))
        self.manager.init_host(CONTEXT)         # finishes what the last process left half done

    def boot(self, instance: Instance) -> None:
        """Build an instance here."""
        request = request_of(instance.flavor)
        with self.manager.instance_claim(CONTEXT, instance, self.name, request):
            instance.host = self.name
            self.database.save(instance)        # 1: the host and the resources, before the guest exists
            self._start_guest(instance)
            self.database.save(instance)        # 2: the resources again, which ``started`` has set

    def prep_resize(self, instance_uuid: str, migration: Migration, flavor: Flavor) -> None:
        """At the destination: claim the new devices."""
        instance, request = self.database.instance(instance_uuid), request_of(flavor)
        migration.old_flavor, migration.new_flavor = instance.flavor, flavor
        self.database.save(migration)           # 3: the migration, before any row names it
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

    def finish_resize(self, instance_uuid: str, migration: Migration) -> None:
        """At the destination: start the guest on the new devices. May be repeated."""
        instance = self.database.instance(instance_uuid)
        instance.flavor = migration.new_flavor
        self.start_unless_it_runs(instance)
        migration.status = 'finished'
        self.database.save(instance, migration)  # 7: the resources, which ``started`` has set

    def confirm_resize(self, instance_uuid: str, migration: Migration) -> None:
        """At the source: give back what the instance left. May be repeated."""
        instance = self.database.instance(instance_uuid)
        migration.status = 'confirmed'
        self.database.save(migration)           # 8: the decision, before anything is given back
        if not migration.on_one_host:           # else there is one guest, and it runs on the new devices
            self.machine.delete_guest(instance.uuid)
        self.manager.drop_move_claim_at_source(CONTEXT, instance, migration)
        self.database.save(instance)            # 9: there is no migration context any more

    def revert_resize(self, instance_uuid: str, migration: Migration) -> None:
        """At the destination: give back the new devices. May be repeated."""
        migration.status = 'reverting'
        self.database.save(migration)           # 10: the decision, before anything is given back
        instance = self.database.instance(instance_uuid)
        if not migration.on_one_host:
            self.machine.delete_guest(instance.uuid)
        elif self.guest_state(instance.uuid) == 'runs':
            self.machine.stop_guest(instance.uuid)      # it stays defined, with the new devices
        try:
            self.manager.drop_move_claim_at_dest(CONTEXT, instance, migration)
        except exception.DeviceError:
            # The rows are right, and an audit gives the devices back. On one host this is a DeviceInUse: the definition
            # names the new devices until ``finish_revert_resize``.
            pass
        self.database.save(instance)            # 11: the old resources, and no migration context any more

    def finish_revert_resize(self, instance_uuid: str, migration: Migration) -> None:
        """At the source: start the guest on its old devices. May be repeated."""
        instance = self.database.instance(instance_uuid)
        instance.host, instance.flavor = self.name, migration.old_flavor
        self.start_unless_it_runs(instance)
        migration.status = 'reverted'
        self.database.save(instance, migration)  # 12: host and status, in one transaction

    def evacuate(self, instance_uuid: str, migration: Migration) -> None:
        """At the destination: build the guest of a host that is down and cannot come back unnoticed."""
        instance = self.database.instance(instance_uuid)
        request = request_of(instance.flavor)
        self.database.save(migration)           # 13: the migration, before any row names it
        try:
            with self.manager.rebuild_claim(CONTEXT, instance, self.name, request, migration):
                migration.status = 'pre-migrating'
                self.database.save(instance, migration)     # 14: the migration context, in the block of the claim
                self._start_guest(instance)
        except Exception:
            self.manager.store.check_epoch()    # raises HostTakenOver: then a newer process decides
            if self.guest_state(instance_uuid) != 'runs':   # else only ``started`` failed: the next start goes on
                migration.status = 'error'
                self.database.save(migration)   # 15: the failure, when no guest runs here
            raise
        self.finish_evacuation(instance, migration)

    def finish_evacuation(self, instance: Instance, migration: Migration) -> None:
        """At the destination, where the guest runs now."""
        self.manager.finish_evacuation(CONTEXT, instance, self.name, migration)
        instance.host, migration.status = self.name, 'done'
        self.database.save(instance, migration)     # 16: host, status and resources, in one transaction

    def live_migrate(self, instance_uuid: str, migration: Migration, call: Callable[[str], Compute]) -> None:
        """At the source: conduct a live migration. ``call`` reaches the service of a host; texts go over the wire."""
        instance, destination = self.database.instance(instance_uuid), call(migration.dest_compute)
        check = objects.LiveMigrationCheck.from_text(destination.check_can_migrate_destination(instance_uuid))
        check = self.manager.check_can_live_migrate_source(instance, check)
        try:
            device_map = objects.DeviceMap.from_text(
                destination.prepare_live_migration(instance_uuid, migration, check.to_text()))
            definitions = self.manager.migration_definitions(CONTEXT, instance, migration, device_map)
        except Exception:
            self.manager.store.check_epoch()    # as in ``evacuate``
            migration.status = 'error'
            self.database.save(migration)       # 17: the failure. The guest runs here, and was not touched
            raise
        migration.status = 'running'
        self.database.save(migration)           # 18: the status, before the copy begins
        try:
            self._copy(instance, migration, definitions)
        except Exception:
            self.finish_live_migration(migration, call)     # the error does not say where the guest runs
            raise
        self.finish_live_migration(migration, call)

    def check_can_migrate_destination(self, instance_uuid: str) -> str:
        """At the destination, before anything is claimed."""
        return self.manager.check_can_live_migrate_destination(self.database.instance(instance_uuid)).to_text()

    def prepare_live_migration(self, instance_uuid: str, migration: Migration, check: str) -> str:
        """At the destination: claim partners of the guest's devices, and make them ready."""
        instance = self.database.instance(instance_uuid)
        request = request_of(instance.flavor)
        self.database.save(migration)           # 19: the migration, before any row names it
        with self.manager.live_migration_claim(CONTEXT, instance, self.name, request, migration,
                                               check=objects.LiveMigrationCheck.from_text(check)):
            migration.status = 'pre-migrating'
            self.database.save(instance, migration)     # 20: the migration context, in the block of the claim
            self.manager.realize(CONTEXT, instance)
            return self.manager.device_map(instance, migration).to_text()

    def finish_live_migration(self, migration: Migration, call: Callable[[str], Compute]) -> None:
        """At either end, after the copy or after a start: end a migration that is ``running`` where its guest is."""
        self.manager.store.check_epoch()        # raises HostTakenOver: then a newer process decides
        source, destination = call(migration.source_compute), call(migration.dest_compute)
        instance_uuid = migration.instance_uuid
        states = source.guest_state(instance_uuid), destination.guest_state(instance_uuid)
        if states in (('none', 'runs'), ('off', 'runs'), ('none', 'off')):
            destination.arrived(instance_uuid, migration)
            source.left(instance_uuid, migration)
        elif states in (('runs', 'none'), ('off', 'none')) \
                or (states == ('runs', 'waits') and not source.is_copying(instance_uuid)):
            destination.roll_back(instance_uuid, migration)
        else:                                   # the copy goes on, or nobody knows: remove nothing, start nothing
            raise RuntimeError(f'migration {migration.uuid} cannot end yet; at source and destination: {states}')

    def arrived(self, instance_uuid: str, migration: Migration) -> None:
        """At the destination: the guest runs here."""
        instance = self.database.instance(instance_uuid)
        try:
            self.manager.started(CONTEXT, instance)
        except exception.HostTakenOver:
            raise
        except exception.StoreError:
            pass                                # the guest runs all the same, and the audit records it
        instance.host, migration.status = self.name, 'completed'
        self.database.save(instance, migration)     # 21: host, status and resources, in one transaction

    def left(self, instance_uuid: str, migration: Migration) -> None:
        """At the source: the guest runs at the destination."""
        instance = self.database.instance(instance_uuid)
        self.machine.delete_guest(instance_uuid)    # what may still be defined of it
        self.manager.drop_move_claim_at_source(CONTEXT, instance, migration)
        self.database.save(instance)            # 22: there is no migration context any more

    def roll_back(self, instance_uuid: str, migration: Migration) -> None:
        """At the destination: the guest did not arrive."""
        instance = self.database.instance(instance_uuid)
        self.machine.delete_guest(instance_uuid)    # what may still wait here; it goes before its devices do
        self.manager.drop_move_claim_at_dest(CONTEXT, instance, migration)
        migration.status = 'failed'
        self.database.save(instance, migration)     # 23: the failure, and no migration context any more

    def guest_state(self, instance_uuid: str) -> str:
        """Say whether the guest ``runs`` here, ``waits`` for a live migration, is ``off``, or there is ``none``."""
        _rows, usage = self.manager.placed()
        if usage.runs_here(instance_uuid):
            return 'runs'
        if usage.unknown:
            raise RuntimeError(f'host {self.name} cannot say: {usage.unknown}')
        return 'waits' if instance_uuid in usage.arriving else 'off' if instance_uuid in usage.domains else 'none'

    def is_copying(self, instance_uuid: str) -> bool:
        """Whether the hypervisor copies the guest from here at this moment, as ``jobInfo`` of libvirt says."""
        return False                            # a machine in memory copies within one call

    def delete(self, instance_uuid: str) -> None:
        """Delete an instance that is here and does not move; a resize is confirmed first. May be repeated."""
        instance = self.database.instance(instance_uuid)
        instance.deleting = True
        self.database.save(instance)            # 24: the decision, before the guest stops
        self.machine.delete_guest(instance.uuid)
        self.manager.release(CONTEXT, instance)
        instance.deleted = True
        self.database.save(instance)            # 25: deleted, after the devices were given back

    def audit(self) -> None:
        """The periodic task."""
        for finding in self.manager.update_available_resource(CONTEXT, self.name):
            print(f'{self.name}: {finding}')
        self.manager.wait_for_wipes()           # only to show the end: an audit itself waits for no wipe

    def start_unless_it_runs(self, instance: Instance) -> None:
        """Start a guest, or record that it runs: the service may have ended before it did."""
        if self.guest_state(instance.uuid) == 'runs':
            self.manager.started(CONTEXT, instance)
        else:
            self._start_guest(instance)

    def _start_guest(self, instance: Instance) -> None:
        try:
            self.manager.realize(CONTEXT, instance)
            config = self.manager.guest_config(instance)    # the last call before the guest starts
            self.machine.start_guest(instance.uuid, config.devices, metadata=config.metadata)
        except Exception:
            self.manager.store.check_epoch()    # raises HostTakenOver: then the guest is that of a newer process
            self.machine.delete_guest(instance.uuid)    # the guest goes before its devices do
            raise
        self.manager.started(CONTEXT, instance)

    def _copy(self, instance: Instance, migration: Migration, definitions: MigrationDefinitions) -> None:
        """What ``migrateToURI3`` of libvirt does (``doc/source/user/live_migration.py``)."""
        there = fake.FakeHost.named(migration.dest_compute)
        there.receive_guest(instance.uuid, definitions)
        there.arrived(instance.uuid)
        self.machine.delete_guest(instance.uuid)


def request_of(flavor: Flavor) -> devicetrack.DeviceRequest:
    """Say which devices a flavor asks for, or raise BadRequest. Called before anything is saved or claimed."""
    return devicetrack.DeviceRequest.from_extra_specs(flavor.extra_specs)


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
