"""Chapter 8: a placement server joins, and agrees with the record about the host."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING
import warnings

from machine import NAME
from machine import NAMESPACES
from machine import needs
from machine import pmem_class
from observer import expect
from page import a
from page import chapter
from page import count
from page import quote
from page import say
from page import table
from process import OK
import record
from scheduler import Line
from scheduler import Scheduler
from stage import make_room
from stage import Stage

if TYPE_CHECKING:
    from devicetrack.testing import placement as placements

FLAVOR, OTHER = 'g1.small', 'm1.small'
LABEL = '16MB'                              # the namespaces that both flavors need


def placed(stage: Stage) -> None:
    chapter('8. A scheduler that knows')
    with warnings.catch_warnings(action='ignore'):      # a dependency warns about another dependency
        from devicetrack.testing import placement as placements
    with placements.PlacementServer() as server, placements.Placement(server) as placement:
        scheduler = Scheduler(server.url)
        _reported(stage, scheduler, placement.url)
        name = _spawned(stage, scheduler)
        _cordoned(stage, scheduler, name)
        _in_conflict(stage, scheduler, placement, name)
        expect(stage.service.end() == 0, 'the service ends in peace')


def _reported(stage: Stage, scheduler: Scheduler, url: str) -> None:
    stage.start_placed_service(url)
    _check(stage, scheduler)
    say(f"""
        The demo starts a real placement server with an empty database, and restarts the service with its
        address. The service reports the host's inventory and the allocations of the {len(stage.running())}
        instances. The demo asks placement over plain HTTP:""")
    _show(scheduler.tree())


def _spawned(stage: Stage, scheduler: Scheduler) -> str:
    """Build one more instance, with devices of providers that the scheduler chooses."""
    make_room(stage, FLAVOR)
    name = f'instance-{len(stage.instances.all()) + 1:02}'
    stage.instances.add({name: FLAVOR})
    chosen = scheduler.choose(FLAVOR)
    expect(chosen is not None, f'the scheduler finds room for {name}')
    expect('refusal' not in stage.service.call('place', name=name, chosen=chosen), f'{name} gets what was chosen')
    stage.seen.let_write([name])
    stage.seen.check_guests(stage.running())
    _check(stage, scheduler)
    held = scheduler.allocations(stage.instances.get(name).uuid)
    expect(held == chosen, f'{name} holds what was chosen')
    say(f"""
        For {name}, {a(FLAVOR)}, the scheduler asks placement for candidates and takes the first. The claim uses
        that choice. The allocations in placement, and the devices of {name}:""")
    names = scheduler.names()
    table(('chosen', 'devices'), [
        (f'{names[provider]}: {", ".join(f"{amount} {one}" for one, amount in amounts.items())}',
         ', '.join(str(row) for row in stage.rows_of(name) if row.resource_class in amounts))
        for provider, amounts in held.items()])
    return name


def _cordoned(stage: Stage, scheduler: Scheduler, name: str) -> None:
    """Cordon the free namespaces."""
    make_room(stage, OTHER, but=name)
    free = [device for device in stage.seen.free() if device in NAMESPACES[LABEL]]
    before = _line(scheduler)
    expect((before.reserved, before.total - before.allocated) == (0, len(free)), 'what is free can be had')
    for device in free:
        stage.service.call('cordon', name=device)
    after = _line(scheduler)
    expect(after.reserved == len(free) and scheduler.choose(OTHER) is None, 'what is cordoned cannot be had')
    say(f"""
        An operator cordons {count(len(free), 'namespace')}: every free one of {LABEL}. The next report marks
        them as reserved, and placement has no candidate for {a(OTHER)} until they are uncordoned. Before and
        after:""")
    _show([before, after])
    for device in free:
        stage.service.call('uncordon', name=device)
    expect(_line(scheduler) == before, 'what is admitted can be had')


def _in_conflict(stage: Stage, scheduler: Scheduler, placement: placements.Placement, name: str) -> None:
    """Resize an instance. While the resize is confirmed, another service changes the migration's allocations."""
    stage.service.call('move', name=name, flavor=OTHER, chosen=scheduler.choose(OTHER))
    stage.seen.let_write([name])
    instance, migration = stage.instances.get(name).uuid, stage.instances.migration_of(name).uuid
    names = scheduler.names()
    _check(stage, scheduler)
    say(f"""
        {name} is resized to {a(OTHER)}. One request moves its allocations to the migration, and allocates the
        new devices to the instance.""")
    table(('consumer', 'provider', 'holds'), [
        (who, names[provider], ', '.join(f'{amount} {one}' for one, amount in amounts.items()))
        for who, consumer in ((name, instance), ('its migration', migration))
        for provider, amounts in scheduler.allocations(consumer).items()])
    placement.proxy.before_next('PUT', '/allocations/', lambda: scheduler.touch(migration))
    answer = stage.service.call('confirm', name=name)
    expect(answer.get('revert_possible') and scheduler.allocations(migration), 'the move is as it was')
    expect(record.leftovers(stage.machine.directory) == [migration], 'what must go is written down')
    _check(stage, scheduler)
    say("""
        The user confirms. At the same time somebody else changes the migration's allocations, so placement
        rejects the request. The error of the service:""")
    quote(answer['refusal'])
    expect('refusal' not in stage.service.call('confirm', name=name), 'it can be confirmed again')
    expect(not scheduler.allocations(migration), 'the migration holds nothing')
    expect(record.leftovers(stage.machine.directory) == [], 'nothing is left to remove')
    findings = stage.service.call('audit')['findings']
    expect(not findings, f'the audit finds no difference: {findings}')
    _check(stage, scheduler)
    stage.seen.check_guests(stage.running())
    say(f"""
        The resize is still open, and the record has a note of the allocations to remove. The user could revert
        now. The user confirms again, which works and removes the note. The demo compares each row:
        {count(len(stage.seen.rows()), 'device')} of {count(len(stage.running()), 'instance')} are allocated
        where the record has them:""")
    _show(scheduler.tree())
    stage.run_command(OK, 'placement', 'audit')


def _check(stage: Stage, scheduler: Scheduler) -> None:
    """Check that placement counts each device of the record, for its owner and at its parent."""
    rows = stage.seen.rows()
    at_parents = collections.Counter((f'{NAME}_{row.parent}' if row.kind == 'mdev' else NAME, row.resource_class)
                                     for row in rows)
    said = {(line.provider.strip(), line.resource_class): line.allocated for line in scheduler.tree()}
    expect(at_parents == collections.Counter(said), 'placement counts the devices of the record')
    for name in stage.running():
        of_owner = collections.Counter(row.resource_class for row in rows if row.owner == name and row.role != 'old')
        held: collections.Counter[str] = collections.Counter()
        for amounts in scheduler.allocations(stage.instances.get(name).uuid).values():
            held.update(amounts)
        expect(held == of_owner == needs(stage.flavor_of(name)), f'{name} holds in placement what it has')


def _line(scheduler: Scheduler) -> Line:
    [line] = [line for line in scheduler.tree() if line.resource_class == pmem_class(LABEL)]
    return line


def _show(lines: list[Line]) -> None:
    table(('provider', 'resource class', 'total', 'reserved', 'allocated'), lines)
