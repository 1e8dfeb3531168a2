"""The operations of moves.rst, each as the steps of its diagram.

``python -m devicetrack.tests.functional.docs.moves`` prints the diagrams as they are now; a test compares them with the
page. A step that is told in two lines has its rows beside the second.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import sys

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.objects.values import Record
from devicetrack.testing import compute_service
from devicetrack.testing import fixtures
from devicetrack.testing.fixtures import Instance
from devicetrack.testing.fixtures import Migration
from devicetrack.testing.region import Region

Steps = Iterator[str]
WIDTHS = (47, 34, 24)
NO_ROWS = '–'
MIGRATIONS = 'MN'                               # the first migration of an operation, and a second one


def at_rest(region: Region) -> Instance:
    return region.spawn('one', pmem=1)


def claimed(region: Region, instance: Instance, name: str) -> Migration:
    migration = region.migration(instance, name)
    region.hosts[name].resize(instance, pmem=1, migration=migration)
    return migration


def boot(region: Region, instance: Instance, name: str) -> Steps:
    host = region.hosts[name]
    host.run_guest(instance)
    yield f'{name}: realize, guest_config, the guest starts'
    host.manager.started(None, instance)
    host.manager.wait_for_wipes()           # of what the guest's definition had before
    yield f'{name}: started'


def finish(region: Region, instance: Instance, migration: Migration) -> Steps:
    region.one.manager.update_usage(None, instance, 'one')
    yield 'one: update_usage'
    region.one.machine.stop_guest(instance.uuid)
    yield 'one: the guest stops'
    instance.host, migration.status = migration.dest_compute, 'post-migrating'
    yield from boot(region, instance, str(migration.dest_compute))
    migration.status = 'finished'


def resize_confirmed(region: Region, instance: Instance) -> Steps:
    migration = claimed(region, instance, 'two')
    yield 'two: resize_claim'
    yield from finish(region, instance, migration)
    region.one.machine.delete_guest(instance.uuid)
    yield 'one: the guest is undefined'
    region.one.manager.drop_move_claim_at_source(None, instance, migration)
    migration.status = 'confirmed'
    yield 'one: drop_move_claim_at_source'
    region.two.audit()
    yield 'two: update_available_resource'


def resize_reverted(region: Region, instance: Instance) -> Steps:
    migration = claimed(region, instance, 'two')
    yield 'two: resize_claim'
    yield from finish(region, instance, migration)
    region.two.machine.delete_guest(instance.uuid)
    yield 'two: the guest is undefined'
    region.two.manager.drop_move_claim_at_dest(None, instance, migration)
    yield 'two: drop_move_claim_at_dest'
    instance.host = 'one'
    yield from boot(region, instance, 'one')
    migration.status = 'reverted'


def same_host_confirmed(region: Region, instance: Instance) -> Steps:
    migration = claimed(region, instance, 'one')
    yield 'one: resize_claim'
    yield from finish(region, instance, migration)
    region.one.manager.drop_move_claim_at_source(None, instance, migration)
    migration.status = 'confirmed'
    yield 'one: drop_move_claim_at_source'


def same_host_reverted(region: Region, instance: Instance) -> Steps:
    migration = claimed(region, instance, 'one')
    yield 'one: resize_claim'
    yield from finish(region, instance, migration)
    try:
        region.one.manager.drop_move_claim_at_dest(None, instance, migration)
    except exception.DeviceInUse:
        yield 'one: drop_move_claim_at_dest, which says that\n     the definition still names d1'
    yield from boot(region, instance, 'one')
    migration.status = 'reverted'
    region.one.audit()
    yield 'one: update_available_resource'


def same_host_failed(region: Region, instance: Instance) -> Steps:
    migration = claimed(region, instance, 'one')
    yield 'one: resize_claim'
    region.one.machine.stop_guest(instance.uuid)
    yield 'one: the guest stops'
    yield from boot(region, instance, 'one')
    migration.status = 'error'
    region.one.audit()
    yield 'one: update_available_resource'


def claim_aborted(region: Region, instance: Instance) -> Steps:
    claim = region.two.manager.resize_claim(None, instance, 'two',
                                            fixtures.a_request(pmem=1), region.migration(instance, 'two'))
    yield 'two: resize_claim'
    region.two.manager.realize(None, instance)
    yield 'two: realize'
    claim.abort()
    yield 'two: an error leaves the block of the claim'


def claim_lost(region: Region, instance: Instance) -> Steps:
    migration = claimed(region, instance, 'two')
    yield 'two: resize_claim, whose answer is lost'
    region.two.restart()
    yield 'two: the service starts anew: init_host'
    migration.status = 'error'
    region.two.audit()
    yield 'two: update_available_resource; the service says\n     that the migration failed'


def refused_first(region: Region, instance: Instance) -> Steps:
    region.spawn('two', pmem=2)
    migration = region.migration(instance, 'two')
    try:
        region.two.resize(instance, pmem=1, migration=migration)
    except exception.NoFit:
        yield 'two: resize_claim, which says NoFit'
    migration.dest_compute = 'one'
    region.one.resize(instance, pmem=1, migration=migration)
    yield 'one: resize_claim, for the same migration'
    yield from finish(region, instance, migration)
    region.one.manager.drop_move_claim_at_source(None, instance, migration)
    migration.status = 'confirmed'
    yield 'one: drop_move_claim_at_source'


def claimed_twice(region: Region, instance: Instance) -> Steps:
    claimed(region, instance, 'two')
    yield 'two: resize_claim for M, whose answer is lost'
    migration = claimed(region, instance, 'two')
    yield 'two: resize_claim for N; fail_migration for M'
    yield from finish(region, instance, migration)
    region.one.machine.delete_guest(instance.uuid)
    region.one.manager.drop_move_claim_at_source(None, instance, migration)
    migration.status = 'confirmed'
    yield 'one: the guest is undefined,\n     drop_move_claim_at_source'
    region.two.audit()
    yield 'two: update_available_resource'


def live_migrated(region: Region, instance: Instance) -> Steps:
    one, two = region.one, region.two
    migration = region.migration(instance, 'two')
    two.manager.live_migration_claim(None, instance, 'two', fixtures.a_request(pmem=1), migration)
    yield 'two: live_migration_claim'
    two.manager.realize(None, instance)
    found = two.manager.device_map(instance, migration)
    yield 'two: realize, device_map'
    definitions = one.manager.migration_definitions(None, instance, migration, found)
    yield 'one: migration_definitions'
    two.machine.receive_guest(instance.uuid, definitions)
    yield 'the copy begins; the guest waits on two'
    two.machine.arrived(instance.uuid)
    one.machine.delete_guest(instance.uuid)
    instance.host, migration.status = 'two', 'completed'
    yield 'the guest runs on two and is gone on one'
    one.audit()
    yield 'one: update_available_resource'
    two.audit()
    yield 'two: update_available_resource'


def live_rolled_back(region: Region, instance: Instance) -> Steps:
    migration = region.live_migration(instance, 'two', pmem=1)
    yield 'as before, until the guest waits on two'
    region.two.machine.delete_guest(instance.uuid)
    yield 'two: the guest that waited is removed'
    region.two.manager.drop_move_claim_at_dest(None, instance, migration)
    migration.status = 'failed'
    yield 'two: drop_move_claim_at_dest'
    region.one.audit()
    yield 'one: update_available_resource'


def evacuated(region: Region, instance: Instance) -> Steps:
    one, two = region.one, region.two
    one.manager.close()
    yield 'one: the host is lost'
    migration = region.migration(instance, 'two', compute_service.EVACUATION)
    two.manager.rebuild_claim(None, instance, 'two', fixtures.a_request(pmem=1), migration=migration)
    yield 'two: rebuild_claim'
    yield from boot(region, instance, 'two')
    two.manager.finish_evacuation(None, instance, 'two', migration)
    instance.host, migration.status = 'two', 'done'
    yield 'two: finish_evacuation'
    one.restart()
    yield 'one: init_host; the service names the guest,\n     which is removed'


def deleted_while_it_waits(region: Region, instance: Instance) -> Steps:
    region.resize(instance, 'two', pmem=1)
    region.one.manager.update_usage(None, instance, 'one')
    yield 'resized to two, not confirmed'
    region.two.machine.delete_guest(instance.uuid)
    region.two.manager.release(None, instance)
    instance.state = compute_service.DELETED
    yield 'two: the guest is undefined, release'
    region.one.machine.delete_guest(instance.uuid)
    region.one.audit()
    yield 'one: the guest is undefined,\n     update_available_resource'


def rebuilt_in_place(region: Region, instance: Instance) -> Steps:
    region.one.machine.stop_guest(instance.uuid)
    yield 'one: the guest stops'
    region.one.manager.rebuild_claim(None, instance, 'one', fixtures.a_request(pmem=1))
    yield 'one: rebuild_claim, without a migration'
    yield from boot(region, instance, 'one')


def rebooted(region: Region, instance: Instance) -> Steps:
    region.one.machine.stop_guest(instance.uuid)
    yield 'one: the guest stops'
    yield from boot(region, instance, 'one')


def shelved(region: Region, instance: Instance) -> Steps:
    region.one.machine.delete_guest(instance.uuid)
    region.one.manager.release(None, instance)
    instance.host, instance.state = None, compute_service.OFFLOADED
    yield 'one: the guest is undefined, release'
    region.two.claim(instance, pmem=1)
    instance.host, instance.state = 'two', compute_service.ACTIVE
    yield 'two: instance_claim'
    yield from boot(region, instance, 'two')


OPERATIONS: tuple[Callable[[Region, Instance], Steps], ...] = (
    resize_confirmed, resize_reverted, same_host_confirmed, same_host_reverted, same_host_failed, claim_aborted,
    claim_lost, refused_first, claimed_twice, live_migrated, live_rolled_back, evacuated, deleted_while_it_waits,
    rebuilt_in_place, rebooted, shelved)


def diagram(operation: Callable[[Region, Instance], Steps], region: Region) -> str:
    """One operation, a line or two for each step: what is called, and the rows of each host after it."""
    instance = at_rest(region)
    lines = [('step', 'rows of host one', 'rows of host two'), tuple('─' * width for width in WIDTHS),
             ('at rest', *_rows(region, instance))]
    for step in operation(region, instance):
        *first, last = step.split('\n')
        lines += [(line,) for line in first]
        lines.append((last, *_rows(region, instance)))
    return '\n'.join(' '.join(cell.ljust(width) for cell, width in zip(line, WIDTHS, strict=False)).rstrip()
                     for line in lines) + '\n'


def _rows(region: Region, instance: Instance) -> tuple[str, ...]:
    return tuple(', '.join(_row(region, record) for record in host.records(instance)) or NO_ROWS
                 for host in region.hosts.values())


def _row(region: Region, record: Record) -> str:
    """A device, its role, its state unless its guest runs on it, and the migration that its row names."""
    words = [record.identifier, record.role]
    if record.state != vocabulary.ACTIVE:
        words.append(record.state)
    if record.migration_uuid is not None:
        words.append(MIGRATIONS[[migration.uuid for migration in region.migrations].index(record.migration_uuid)])
    return ' '.join(words)


def main() -> None:
    for operation in OPERATIONS:
        region = Region()
        with region:
            sys.stdout.write(f'{operation.__name__}\n\n{diagram(operation, region)}\n')


if __name__ == '__main__':
    main()
