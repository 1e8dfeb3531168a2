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
        The service is gone (SIGKILL). The demo reads the record by plain SQL: the same {len(before)}
        rows. While no service is there, the user of {given_up} gives up and deletes it, which the
        service's own database keeps; {goes_on} is still wanted.""")
    say("""
        On a real host the guests run on. Those of the test driver live and die with the process
        that opened it, so the demo kept their definitions and hands them to the next one as
        running guests.""")

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
        Started again, the service calls `init_host`, which compares {len(before)} rows,
        {count(guests, 'guest')}, {len(stage.seen.devices)} devices and the service's word. {given_up} has
        no guest and is deleted, says the service: what it held went back ({given_back}). {goes_on}
        has no guest and is here, says the service: its devices stayed its own, and the service has
        just booted it on them. {reported(began)}""")
    stage.print_owners(after)
    say(f"""
        Compared row by row with the table above: apart from {given_up}, all
        {instances_in(kept)} own the {count(len(kept), 'device')} that they owned. Nothing is lost, and
        nothing is owned twice.""")


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
        {name} is deleted. Its guest is gone, its namespace {namespace} is being overwritten
        (slowly, and halted for a moment, for the sake of this chapter), and the service is killed.
        At that moment {dirty} of {SIZES['32MB'] // MIB} MiB still read `{text_of(name)}`. The record
        says:""")
    stage.print_owners(rows)
    say(f"""
        On its way back, and still held: nobody else can be given it. What overwrites is a process of
        its own. It outlived the service and keeps the lock file of {namespace}, which the demo has
        just tried to take in vain: no new service can work on the namespace beside it.""")

    began = stage.start_service()
    after = stage.seen.rows()
    expect(began['went_on'] == [name], f'the service goes on with {name}, and with nothing else')
    expect(owners(after) == owners(row for row in before if row.owner != name), 'nothing else changed')
    stage.seen.check_clean(namespace)
    say(f"""
        Started again, `init_host` finds the row and waits for nothing. In the background the lock is
        taken as soon as the old process has ended. libvirt has no guest with {namespace}. Nobody
        heard that it is clean, so it is overwritten once more and read back; then, and only then, the
        row goes. The demo has read it too: {stage.seen.read(namespace)}. {reported(began)} The other
        {instances_in(after)} own what they owned.""")
