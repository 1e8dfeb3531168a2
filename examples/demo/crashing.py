"""Chapters 3 and 4: the service is killed."""

from __future__ import annotations

import os
import signal

from instances import DELETED
from machine import MIB
from machine import NAMESPACES
from machine import SIZES
from machine import SLOW_WIPE_MIB_S
from observer import expect
from observer import owners
from observer import text_of
from page import chapter
from page import count
from page import say
from stage import instances_in
from stage import reported
from stage import Stage


def killed_between_record_and_boot(stage: Stage, stopped: list[str]) -> None:
    chapter('3. Killed between record and boot')
    before, guests = stage.seen.rows(), len(list(stage.machine.guests))
    expect(stage.service.kill() == -signal.SIGKILL, 'the service is killed')
    expect(stage.seen.rows() == before, 'the record is what it was')
    # The next chapter needs a guest with a large namespace.
    large = {row.owner for row in before if row.identifier in NAMESPACES['32MB']}
    goes_on, given_up = sorted(stopped, key=lambda name: (name not in large, name))
    stage.instances.set_state(given_up, DELETED)
    say(f"""
        The demo kills the service (SIGKILL), and reads the record with plain SQL: the same {len(before)} rows.
        While the service is down, a user deletes {given_up}. The service's own database knows that. {goes_on}
        is still wanted.""")
    say("""
        On a real host the guests keep running. Guests of the test driver end with the process that opened it,
        so the demo keeps their definitions and starts them again in the next process.""")

    began = stage.start_service(wipe_rate_mib_s=SLOW_WIPE_MIB_S)
    after = stage.seen.rows()
    kept = [row for row in before if row.owner != given_up]
    expect(began['guests'] == guests, 'the guests are there')
    expect(began['went_on'] == [goes_on], f'the service goes on with {goes_on}, and with nothing else')
    expect(owners(after) == owners(kept), 'every device has the owner that it had')
    expect({row.state for row in after} == {'active'}, 'every owner runs')
    stage.seen.check_guests({row.owner for row in after})
    stage.seen.let_write([goes_on])
    given_back = count(len(before) - len(kept), 'device')
    say(f"""
        The service starts again and calls `init_host`, which compares {len(before)} rows,
        {count(guests, 'guest')} and {len(stage.seen.devices)} devices, and asks the service about each
        instance. {given_up} has no guest and is deleted, so its devices were released ({given_back}). {goes_on}
        has no guest either but still exists: it kept its devices, and the service has just booted it on them.
        {reported(began)}""")
    stage.print_owners(after)
    say(f"""
        The demo compares each row with the table above: except {given_up}, all {instances_in(kept)} own the
        same {count(len(kept), 'device')}. Nothing is lost, and nothing is owned twice.""")


def killed_in_a_wipe(stage: Stage) -> None:
    chapter('4. Killed in the middle of a wipe')
    before = stage.seen.rows()
    leaving = next(row for row in before if row.identifier in NAMESPACES['32MB'])
    name, namespace = leaving.owner, leaving.identifier
    stage.service.send('delete', name=name)
    wiper = stage.service.wait_for_wiper(namespace)
    try:
        stage.seen.halt_in_a_wipe(namespace, wiper)
        expect(stage.service.kill() == -signal.SIGKILL, 'the service is killed')
        dirty, outlived = stage.seen.dirty_mib(namespace), stage.seen.is_worked_on(namespace)
    finally:
        os.kill(wiper, signal.SIGCONT)
    rows = [row for row in stage.seen.rows() if row.owner == name]
    expect({row.state for row in rows} == {'releasing'}, f'what {name} had is held')
    expect(outlived, 'the wiper outlives the service and keeps its lock')
    say(f"""
        {name} is deleted. Its guest is gone, and its namespace {namespace} is being wiped, slowly for this
        chapter. In the middle, the demo kills the service. At that moment {dirty} of {SIZES['32MB'] // MIB} MiB
        still read `{text_of(name)}`. The record:""")
    stage.print_owners(rows)
    say(f"""
        The devices are being released and are still held, so no other instance can get them. The wipe runs in a
        process that survives the service and holds the lock of {namespace}. The demo tried to take that lock
        and could not: a new service cannot touch the namespace at the same time.""")

    began = stage.start_service()
    after = stage.seen.rows()
    expect(began['went_on'] == [name], f'the service goes on with {name}, and with nothing else')
    expect(owners(after) == owners(row for row in before if row.owner != name), 'nothing else changed')
    stage.seen.check_clean(namespace)
    say(f"""
        The service starts again without waiting for the wipe. In the background it takes the lock when the old
        process ends, checks that no guest uses {namespace}, wipes it again because no result of the first wipe
        is known, reads it back, and only then deletes the row. The demo reads the namespace:
        {stage.seen.read(namespace)}. {reported(began)} The other {instances_in(after)} own the same devices as
        before.""")
