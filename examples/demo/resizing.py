"""Chapter 6: an instance gets other devices of the same host, and keeps its old ones until the move has ended."""

from __future__ import annotations

import signal

from observer import expect
from observer import text_of
from page import a
from page import chapter
from page import listed
from page import say
from page import show
from page import table
import record
from stage import make_room
from stage import reported
from stage import Stage

# Both flavors have a namespace of 16 MiB.
OTHER_FLAVOR = {'m1.small': 'g1.small', 'g1.small': 'm1.small'}


def resized_twice(stage: Stage) -> None:
    chapter('6. Resized, killed, reverted; resized, confirmed')
    name = next(name for flavor in OTHER_FLAVOR for name in stage.running() if stage.flavor_of(name) == flavor)
    flavor = OTHER_FLAVOR[stage.flavor_of(name)]
    leaving = make_room(stage, flavor, but=name)
    before, devices = stage.rows_of(name), stage.seen.guest(name).devices()
    [old] = _namespaces(before)
    stage.seen.check_written(old, name)
    say(f"""
        {name}, {a(stage.flavor_of(name))}, is resized to {a(flavor)} on this host. It gets new devices, and
        keeps its old ones until its user confirms. To make room for both, the demo deleted {listed(leaving)}.
        From its first byte to its last, {old} still reads `{text_of(name)}`.""")
    _killed_and_reverted(stage, name, flavor, before, devices, old)
    _confirmed(stage, name, flavor, old)


def _killed_and_reverted(stage: Stage, name: str, flavor: str, before: list[record.Row], devices: list[str],
                         old: str) -> None:
    stage.service.call('resize', name=name, flavor=flavor, stopped=True)
    stage.seen.let_write([name])
    guests = len(list(stage.machine.guests))
    expect(stage.service.kill() == -signal.SIGKILL, 'the service is killed')
    killed, guest = stage.rows_of(name), stage.seen.guest(name)
    left = [row for row in killed if row.role == 'old']
    new = [row for row in killed if row.role == 'incoming']
    [namespace] = _namespaces(new)
    expect([row.identifier for row in left] == devices, f'what {name} had is old')
    expect(guest.devices() == [row.identifier for row in new], 'the one definition names the new devices')
    say("""
        One transaction wrote the new rows and marked the present ones as old. The guest was stopped, started on
        its new devices, and wrote to them. Before the service recorded that the guest runs there, the demo
        kills the service. The guest's definition has the new devices:""")
    show(guest.elements())

    began = stage.start_service()
    started = stage.rows_of(name)
    expect(began['guests'] == guests, 'the guests are there')
    expect(began['went_on'] == [name], f'the service goes on with {name}, and with nothing else')
    expect({row.identifier: row.role for row in started}
           == {row.identifier: 'old' for row in left} | {row.identifier: 'current' for row in new},
           'init_host sees where the guest runs')
    [migration] = {row.migration for row in killed + started}
    expect(migration == stage.instances.migration_of(name).uuid, 'both name the migration')
    say(f"""
        The service starts again. `init_host` sees the guest run on its new devices, and corrects the record.
        The rows of migration {migration}, before and after:""")
    now = {row.identifier: row for row in started}
    table(('device', 'when it was killed', 'after init_host'), [
        (row, _role(row), _role(now[row.identifier])) for row in (*left, *new)])
    say(f'{reported(began)} Now the user reverts the resize:')

    stage.service.call('revert', name=name)
    expect(stage.rows_of(name) == before, f'the rows of {name} are those that it had')
    expect(stage.seen.guest(name).devices() == devices, f'the guest of {name} has the devices that it had')
    stage.seen.check_written(old, name)
    stage.seen.check_clean(namespace)
    table(('namespace', 'owner', 'reads'), [
        (old, stage.seen.owner(old), stage.seen.read(old)),
        (namespace, stage.seen.owner(namespace), stage.seen.read(namespace))])
    say(f"""
        {name} is {a(stage.flavor_of(name))} again. Its guest has the same devices as before, in the same order,
        with all their data. The new devices were wiped and freed.""")


def _confirmed(stage: Stage, name: str, flavor: str, old: str) -> None:
    stage.service.call('resize', name=name, flavor=flavor)
    both = stage.rows_of(name)
    stage.seen.check_guests(stage.running())
    stage.seen.let_write([name])
    stage.seen.check_written(old, name)
    stage.service.call('confirm', name=name)
    rows = stage.rows_of(name)
    [new] = _namespaces(rows)
    expect(rows == [row._replace(migration=None) for row in both if row.role == 'current'],
           f'{name} has its new devices and no others')
    expect({row.role for row in both} == {'old', 'current'}, 'until then it had both')
    stage.seen.check_guests(stage.running())
    stage.seen.check_written(new, name)
    stage.seen.check_clean(old)
    say(f"""
        Later it is resized again, this time without a kill, and the user confirms. Before the confirmation it
        owned {len(both)} devices. Now it owns the {len(rows)} that its guest uses:""")
    stage.print_owners(rows)
    table(('namespace', 'owner', 'reads'), [
        (old, stage.seen.owner(old), stage.seen.read(old)), (new, stage.seen.owner(new), stage.seen.read(new))])


def _namespaces(rows: list[record.Row]) -> list[str]:
    return [row.identifier for row in rows if row.kind == 'vpmem']


def _role(row: record.Row) -> str:
    return f'{row.role}, {row.state}'
