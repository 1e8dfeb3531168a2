"""Chapters 1, 2 and 5: who gets which device, and who gets it next."""

from __future__ import annotations

import itertools

from machine import FLAVORS
from machine import NAMESPACES
from machine import needs
from observer import expect
from observer import text_of
from page import a
from page import chapter
from page import listed
from page import quote
from page import say
from page import table
from stage import Stage

THREADS = 32
STOPPED = 2


def the_host(stage: Stage) -> None:
    chapter('1. The host')
    began = stage.start_service()
    expect(not began['findings'], 'a new host has nothing to report')
    offers = stage.service.call('providers')['offers']
    expect(sum(offer[-1] for offer in offers) == len(stage.seen.devices), 'the host offers every device')
    say("""
        The service is a separate process, and its record is an SQLite file. The hypervisor is libvirt's
        in-process test driver. It simulates a host with PCI cards and mediated devices. Plain files stand for
        the namespaces. This is the inventory that the host reports to placement:""")
    table(('provider', 'resource class', 'devices'), offers)
    say('Guests come in these flavors:')
    table(('flavor', 'extra specs'), [
        (flavor, ', '.join(f'{name}={value}' for name, value in specs.items()))
        for flavor, specs in FLAVORS.items()])


def the_race(stage: Stage) -> list[str]:
    """Let all instances ask at once.

    :returns: the instances that have their devices but no guest yet
    """
    chapter(f'2. {THREADS} threads race')
    names = [f'instance-{number:02}' for number in range(1, THREADS + 1)]
    flavors = dict(zip(names, itertools.cycle(FLAVORS)))
    stage.instances.add(flavors)
    race = stage.service.call('race', names=names, stopped=STOPPED)
    expect(not race['failed'], f'no thread fails in another way: {race["failed"]}')
    winners, stopped = sorted(race['won'] | race['stopped']), sorted(race['stopped'])
    stage.refused = sorted(race['lost'])
    rows = stage.seen.rows()
    expect(sorted({row.owner for row in rows}) == winners, 'who won is recorded, and nobody else')
    stage.seen.check_owners(stage.refused)
    say(f"""
        {THREADS} instances, {THREADS // len(FLAVORS)} of each flavor, claim their devices at once, each in its
        own thread. A claim gets all devices of its flavor or none. After {race['milliseconds']} ms,
        {len(winners)} got all they asked for, {len(stage.refused)} were refused and hold nothing.""")
    stage.print_owners(rows)
    wanted = sum(needs(flavor).total() for flavor in flavors.values())
    say(f"""
        The instances asked for {wanted} devices. The host has {len(stage.seen.devices)}.
        {len(stage.seen.free())} are still free, but no refused instance can use them alone.""")
    loser = max(stage.refused, key=lambda name: len(race['lost'][name]))
    say(f'Why was {loser}, {a(flavors[loser])}, refused? This is the error:')
    quote(race['lost'][loser])
    stage.service.call('audit')
    say(f"""
        The service's next audit writes the refusals into the history. `devicetrack-manage instance history
        --refused` lists them by the UUIDs of the instances. {loser} has the UUID
        {stage.instances.get(loser).uuid}.""")

    running = [name for name in winners if name not in stopped]
    stage.seen.check_guests(running)
    stage.seen.let_write(running)
    say(f"""
        {len(running)} guests were defined and started in libvirt, with the device elements that the library
        returned. Each then filled its namespaces with its name. (The test driver does not run guest code, so
        the demo writes for the guests.) {listed(stopped)} stopped at `claimed`: their devices are recorded, and
        their guests are not booted yet.""")
    return stopped


def release_and_reuse(stage: Stage) -> None:
    chapter('5. Release and reuse')
    leaving = next(row.owner for row in stage.seen.rows() if row.identifier in NAMESPACES['16MB'])
    stage.service.call('delete', name=leaving)
    newcomers = [name for name in stage.refused if 'refusal' not in stage.service.call('build', name=name)]
    rows = stage.seen.rows()
    stage.seen.check_owners(set(stage.refused) - set(newcomers))
    stage.seen.check_guests({row.owner for row in rows})
    theirs = [row for row in rows if row.owner in newcomers]
    say(f"""
        {leaving} is deleted without an accident. Then the refused instances try again in the order of their
        names, and {len(newcomers)} of {len(stage.refused)} get devices:""")
    stage.print_owners(theirs)
    wrote = stage.seen.wrote
    reused = [row for row in theirs if row.identifier in wrote]
    expect(reused, 'what was given back is used again')
    say('This is what the new guests read in reused namespaces:')
    table(('namespace', 'first guest', 'wrote', 'next guest', 'finds'), [
        (row.identifier, wrote[row.identifier], text_of(wrote[row.identifier]), row.owner,
         stage.seen.read(row.identifier)) for row in reused])
    stage.seen.let_write(newcomers)
