"""Programs that tests run as processes of their own: ``python -m devicetrack.tests.functional.claims.programs``.

The first argument names the program, the second has its options as JSON. They print a line for what a test waits for.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import traceback
from typing import Any

import libvirt
from oslo_config import cfg

from devicetrack import exception
from devicetrack.claims.manager import ClaimManager
from devicetrack.conf import opts
from devicetrack.objects import DeviceRequest
from devicetrack.objects.values import Record
from devicetrack.store import api
from devicetrack.store.sql import open_store
from devicetrack.testing import fake
from devicetrack.testing import fixtures
from devicetrack.tests import processes
from devicetrack.tests.functional.claims import libvirt_hosts
from devicetrack.virt.libvirt.driver import LibvirtDriver
from devicetrack.virt.libvirt.kinds import vpmem


def start(program: str, options: dict[str, Any]) -> processes.Process:
    """Start a program; its standard output can be read, its standard input is open until it is closed."""
    return processes.Process(__name__, program, json.dumps(options))


def options_of(conf: cfg.ConfigOpts, **more: Any) -> dict[str, Any]:
    """What a program needs to use the same store and host."""
    return {'connection': conf.devicetrack_database.connection, 'state_path': conf.devicetrack.state_path,
            'machine_id_path': conf.devicetrack.machine_id_path, **more}


def configuration(options: dict[str, Any]) -> cfg.ConfigOpts:
    conf = cfg.ConfigOpts()
    opts.register_options(conf)
    conf([], default_config_files=[], default_config_dirs=[])
    conf.set_override('connection', options['connection'], 'devicetrack_database')
    for name in ('state_path', 'machine_id_path'):
        conf.set_override(name, options[name], 'devicetrack')
    for group, values in options.get('settings', {}).items():
        for name, value in values.items():
            conf.set_override(name, value, group)
    return conf


def libvirt_driver(conf: cfg.ConfigOpts) -> LibvirtDriver:
    """A driver of namespaces alone, made without entry points: those are of an installed package."""
    return LibvirtDriver('host', conf, conf.devicetrack.state_path, kinds=[vpmem.VPMEM])


def say(*words: object) -> None:
    sys.stdout.write(' '.join(map(str, words)) + '\n')
    sys.stdout.flush()


def manage(options: dict[str, Any]) -> None:
    """Try to manage the host, once the input has a line; say ``ready`` or why not; hold it until the input ends."""
    conf = configuration(options)
    machine = fake.FakeHost()
    machine.add_namespace('d0')
    driver = fake.FakeDriver('host', conf, options['state_path'], machine)
    manager = ClaimManager('host', driver, open_store(conf), conf)
    say('there')
    sys.stdin.readline()
    try:
        manager.init_host(None)
    except exception.DeviceTrackError as error:
        say(type(error).__name__)
        return
    say('ready')
    sys.stdin.read()


def write_rows(options: dict[str, Any]) -> None:
    """Take and give devices by writing rows, as no service should: one at a time, until the input ends.

    Says ``two owners`` when a row that it wrote is not its own any more, and at the end how many it wrote.
    """
    store = open_store(configuration(options))
    ended = threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    lots = random.Random(options['seed'])
    template = Record(*options['record'])
    written = 0
    say('there')
    while not ended.is_set():
        claim_id = f'{options["seed"]}-{lots.random()}'
        mine = template._replace(identifier=lots.choice(options['devices']), claim_id=claim_id,
                                 instance_uuid=fixtures.Instance().uuid)
        try:
            store.write(api.Changes(insert=(mine,)))
        except exception.DeviceTaken:
            continue
        written += 1
        found = store.records_of_devices(mine.host_uuid, [mine.key])
        if found != [mine]:
            say('two owners', found)
        try:
            store.write(api.Changes(delete=(mine,)))
        except exception.StaleAssignment:
            say('two owners', mine)
    say('written', written)


def live(options: dict[str, Any]) -> None:
    """Claim, realize, start and release by many threads until somebody kills this process; a line for each life."""
    conf = configuration(options)
    manager = ClaimManager('host', libvirt_driver(conf), open_store(conf), conf)
    manager.init_host(None)
    say('ready')

    def lives() -> None:
        try:
            live_and_die()
        except BaseException:                   # whatever ends a thread is a failure
            traceback.print_exc()
        finally:
            os._exit(1)

    def live_and_die() -> None:
        while True:
            instance = fixtures.Instance()
            with manager.instance_claim(None, instance, 'host', DeviceRequest.of((options['resource_class'], 1))):
                manager.realize(None, instance)
                manager.guest_config(instance)
                manager.started(None, instance)
            manager.release(None, instance)
            say(instance.uuid)

    threads = [threading.Thread(target=lives) for _ in range(options['threads'])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def resize(options: dict[str, Any]) -> None:
    """Be the service of a host that boots a guest and resizes it there. Say each step, and wait for a line after it."""
    with fixtures.Configuration(options['state_path']) as configuration, libvirt_hosts.LibvirtHost(
            lambda: libvirt.open(options['uri']), options['namespaces'], options['directory'], libvirt_hosts.QEMU,
            configuration=configuration) as host:
        instance = host.spawn(fixtures.Instance(uuid=options['instance_uuid']), pmem=1)
        _said('spawned')
        migration = fixtures.Migration(host.name, host.name, instance.uuid, uuid=options['migration_uuid'])
        host.service.moves = [migration]
        host.resize(instance, pmem=1, migration=migration)
        _said('claimed')
        host.machine.stop_guest(instance.uuid)
        migration.status = 'post-migrating'
        host.run_guest(instance)
        _said('booted')


def _said(step: str) -> None:
    say(step)
    sys.stdin.readline()


PROGRAMS = {'manage': manage, 'write_rows': write_rows, 'live': live, 'resize': resize}

if __name__ == '__main__':
    PROGRAMS[sys.argv[1]](json.loads(sys.argv[2]))
