"""The demo's compute service: one process for one host.

``python service.py DIRECTORY`` runs it on the machine in that directory. It reads orders as lines of JSON from its
standard input, and answers each with a line on its standard output. It ends at the end of the input.
``examples/compute`` is a service to learn from. This one calls the manager itself, and the demo can stop
it anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from collections.abc import Set
import json
import sys
import threading
import time
from typing import Any

import libvirt
from oslo_config import cfg
from oslo_log import log as logging

import devicetrack
from devicetrack import exception
from devicetrack.store.sql import schema
from instances import BUILDING
from instances import CONFIRMED
from instances import DELETED
from instances import DELETING
from instances import FINISHED
from instances import Flavor
from instances import Instance
from instances import Instances
from instances import MIGRATING
from instances import Migration
from instances import POST_MIGRATING
from instances import REFUSED
from instances import REVERTED
from instances import REVERTING
from instances import RUNNING
from machine import guest_document
from machine import Machine

# The choice of a scheduler, by provider's UUID and resource class.
Chosen = Mapping[str, Mapping[str, int]]

CONTEXT = None      # the service's request context: the library hands it on and never reads it


class Service:
    """Builds and deletes instances on the devices that the library chooses."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._instances = Instances(machine.directory)
        conf = cfg.ConfigOpts()
        logging.register_options(conf)
        devicetrack.register_options(conf)
        conf(['--config-file', str(machine.configuration)], project='demo')
        logging.setup(conf, 'demo')
        self._conf = conf
        driver = self._load_driver(conf)
        # The test driver has another host for every connection. Start guests on the host that the library looks at.
        self._hypervisor = driver.hypervisor.raw()
        self._store = devicetrack.open_store(conf)
        self._manager = devicetrack.ClaimManager(self._machine.name, driver, self._store, conf, service=self)

    def _load_driver(self, conf: cfg.ConfigOpts) -> Any:
        return devicetrack.load_driver(conf, self._machine.name)

    def instances(self, uuids: Set[str]) -> Mapping[str, str]:
        """Answer the library: the states of these instances."""
        return {instance.uuid: 'deleted' if instance.state == DELETED else 'here'
                for instance in self._instances.all() if instance.uuid in uuids}

    def migrations(self, uuids: Sequence[str]) -> Mapping[str, Migration]:
        """Answer the library: the migrations of instances."""
        return {migration.uuid: migration for migration in self._instances.migrations()}

    # -- orders -------------------------------------------------------------------------------------------

    def start(self) -> dict[str, Any]:
        """Start the manager, then go on with the work that the last process left unfinished."""
        schema.sync(self._store)        # in a real deployment an operator runs devicetrack-manage db sync
        guests = len(self._hypervisor.listAllDomains())
        findings = self._manager.init_host(CONTEXT)
        self._manager.wait_for_wipes()  # no service has to wait; the demo shows the result of the wipes
        self._began()
        went_on = []
        for instance in self._instances.all():
            if instance.state == BUILDING and self._manager.assignments(instance.uuid):
                self._boot(instance)
                went_on.append(instance.name)
            elif instance.state == DELETING:
                self._delete(instance)
                went_on.append(instance.name)
        for migration in self._instances.migrations():
            if migration.status in (MIGRATING, POST_MIGRATING):
                self._instances.set_status(migration, FINISHED)     # the library has seen its guest run
                went_on.append(migration.name)
        return {'findings': [str(finding) for finding in findings], 'went_on': went_on, 'guests': guests}

    def _began(self) -> None:
        """Called when the manager is ready, before anything else."""

    def providers(self) -> dict[str, Any]:
        return {'offers': [(provider.name, resource_class, total) for provider in self._manager.providers()
                           for resource_class, total in sorted(provider.totals.items())]}

    def race(self, names: Sequence[str], stopped: int) -> dict[str, Any]:
        """Build instances at once, each in a thread of its own.

        The first ``stopped`` instances with devices stop for good after the record and before the boot.
        """
        race = Race(len(names), stopped)

        def run(instance: Instance) -> None:
            race.line_up()
            try:
                self._build(instance, race)
            except exception.NoFit as refusal:
                race.lost(instance.name, str(refusal))
                self._instances.set_state(instance.name, REFUSED)
            except BaseException as error:
                race.failed(instance.name, repr(error))
            else:
                race.won(instance.name)

        for name in names:
            threading.Thread(target=run, args=(self._instances.get(name),), daemon=True).start()
        return race.result()

    def build(self, name: str, chosen: Chosen | None = None) -> dict[str, Any]:
        instance = self._instances.get(name)
        self._instances.set_state(name, BUILDING)
        try:
            self._build(instance, chosen=chosen)
        except (exception.NoFit, exception.NodeUnavailable) as refusal:
            self._instances.set_state(name, REFUSED)
            return {'refusal': str(refusal)}
        return {}

    def delete(self, name: str) -> dict[str, Any]:
        self._delete(self._instances.get(name))
        return {}

    def resize(self, name: str, flavor: str, stopped: bool = False) -> dict[str, Any]:
        """Move an instance to the devices of another flavor on this host. The user confirms or reverts that later.

        :param stopped: stop for good when its guest runs on the new devices, before anybody is told
        """
        self._resize(self._instances.migrate(name, flavor), stopped)
        return {}

    def confirm(self, name: str) -> dict[str, Any]:
        """Confirm a resize: the user keeps the new devices."""
        migration = self._instances.migration_of(name)
        self._instances.set_status(migration, CONFIRMED)
        self._manager.drop_move_claim_at_source(CONTEXT, self._instances.get(name), migration)
        return {}

    def revert(self, name: str) -> dict[str, Any]:
        """Revert a resize: the user wants the old devices again."""
        instance, migration = self._instances.get(name), self._instances.migration_of(name)
        self._instances.set_status(migration, REVERTING)
        self._stop_guest(instance)
        self._manager.drop_move_claim_at_dest(CONTEXT, instance, migration)
        self._start_guest(self._with_flavor(instance, migration.old_flavor))
        self._manager.started(CONTEXT, instance)
        self._instances.set_status(migration, REVERTED)
        return {}

    def audit(self) -> dict[str, Any]:
        findings = self._manager.update_available_resource(CONTEXT, self._machine.name)
        self._manager.wait_for_wipes()
        return {'findings': [str(finding) for finding in findings]}

    # -- the work -----------------------------------------------------------------------------------------

    def _build(self, instance: Instance, race: Race | None = None, chosen: Chosen | None = None) -> None:
        request = self._request(instance.flavor, chosen)
        with self._manager.instance_claim(CONTEXT, instance, self._machine.name, request):
            if race is not None:
                race.recorded(instance.name)
            self._boot(instance)

    def _resize(self, migration: Migration, stopped: bool = False, chosen: Chosen | None = None) -> None:
        instance, flavor = self._instances.get(migration.name), Flavor(migration.new_flavor)
        with self._manager.resize_claim(CONTEXT, instance, self._machine.name, self._request(flavor, chosen),
                                        migration, flavor):
            self._stop_guest(instance)
            self._instances.set_status(migration, POST_MIGRATING)
            self._start_guest(self._with_flavor(instance, flavor.name))
            if not stopped:
                self._manager.started(CONTEXT, instance)
                self._instances.set_status(migration, FINISHED)

    def _boot(self, instance: Instance) -> None:
        """Start the guest. If ``started`` fails, the guest runs and keeps its devices, and the audit records it."""
        self._start_guest(instance)
        self._manager.started(CONTEXT, instance)
        self._instances.set_state(instance.name, RUNNING)

    def _start_guest(self, instance: Instance) -> None:
        self._manager.realize(CONTEXT, instance)
        document = guest_document(instance.name, instance.uuid, *self._manager.guest_config(instance))
        domain = self._hypervisor.defineXML(document)
        domain.create()
        self._machine.guests.put(instance.uuid, domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE))

    def _stop_guest(self, instance: Instance) -> None:
        for domain in self._hypervisor.listAllDomains():
            if domain.UUIDString() == instance.uuid:
                domain.destroy()
                domain.undefine()
        self._machine.guests.remove(instance.uuid)

    def _with_flavor(self, instance: Instance, flavor: str) -> Instance:
        self._instances.set_flavor(instance.name, flavor)
        instance.flavor = Flavor(flavor)
        return instance

    def _request(self, flavor: Flavor, chosen: Chosen | None) -> Any:
        """The request to the library: the choice of a scheduler, or the devices of the instance's flavor."""
        if chosen is None:
            return devicetrack.DeviceRequest.from_extra_specs(flavor.extra_specs, aliases=self._manager.state().aliases)
        return {provider: {'resources': amounts} for provider, amounts in chosen.items()}

    def _delete(self, instance: Instance) -> None:
        self._instances.set_state(instance.name, DELETING)
        self._stop_guest(instance)
        self._manager.release(CONTEXT, instance)
        self._instances.set_state(instance.name, DELETED)


class Race:
    """The state that the threads of a race share."""

    def __init__(self, runners: int, to_stop: int) -> None:
        self._runners, self._to_stop = runners, to_stop
        self._line = threading.Barrier(runners, action=self._begin)
        self._changed = threading.Condition()
        self._began = self._answered = 0.0
        self._answers: list[str] = []
        self._results: dict[str, dict[str, str]] = {'won': {}, 'lost': {}, 'stopped': {}, 'failed': {}}

    def line_up(self) -> None:
        self._line.wait()

    def _begin(self) -> None:
        self._began = time.monotonic()

    def recorded(self, name: str) -> None:
        """Called when the devices of a runner are recorded and its guest does not exist yet.

        Wait until all runners have their answers, so that the measured time has no boot in it. Then stop or go on.
        """
        with self._changed:
            stops = len(self._results['stopped']) < self._to_stop
            if stops:
                self._results['stopped'][name] = ''
            self._answer(name)
            self._changed.wait_for(lambda: len(self._answers) == self._runners)
        if stops:
            threading.Event().wait()

    def won(self, name: str) -> None:
        self._end('won', name)

    def lost(self, name: str, refusal: str) -> None:
        self._end('lost', name, refusal)

    def failed(self, name: str, error: str) -> None:
        self._end('failed', name, error)

    def _end(self, result: str, name: str, text: str = '') -> None:
        with self._changed:
            self._results[result][name] = text
            self._answer(name)

    def _answer(self, name: str) -> None:
        if name not in self._answers:
            self._answers.append(name)
            self._answered = time.monotonic()
        self._changed.notify_all()

    def result(self) -> dict[str, Any]:
        """Wait for every runner, and return the results."""
        with self._changed:
            self._changed.wait_for(lambda: sum(map(len, self._results.values())) == self._runners)
        return {**self._results, 'milliseconds': round((self._answered - self._began) * 1000)}


def serve(service: Service) -> None:
    for line in sys.stdin:
        order = json.loads(line)
        answer = getattr(service, order.pop('order'))(**order)
        print(json.dumps(answer), flush=True)


if __name__ == '__main__':
    serve(Service(Machine(sys.argv[1])))
