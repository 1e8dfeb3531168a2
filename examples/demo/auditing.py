"""Chapter 7: an old copy replaces the record. The demo audits, repairs the record, and audits again."""

from __future__ import annotations

from observer import expect
from page import a
from page import chapter
from page import count
from page import quote
from page import say
from page import table
from process import ATTENTION
from process import OK
import record
from stage import Stage

SMALL = 'm1.small'


def repaired(stage: Stage) -> None:
    chapter('7. The audit, before and after a repair')
    new, next_one = (f'instance-{len(stage.instances.all()) + number:02}' for number in (1, 2))
    stage.instances.add({new: SMALL, next_one: SMALL})
    before, gone = _an_old_copy_of_the_record(stage, new)
    _found(stage, new, next_one, gone)
    _put_right(stage, before, new, gone)
    _works_again(stage, next_one)


def _an_old_copy_of_the_record(stage: Stage, new: str) -> tuple[list[record.Row], str]:
    """Build an instance and delete another one. The old copy of the record knows nothing of either.

    :returns: the rows before the copy came back, and the deleted instance
    """
    directory = stage.machine.directory
    gone = next(name for flavor in (SMALL, 'g1.small') for name in reversed(stage.running())
                if stage.flavor_of(name) == flavor)
    copy = record.copy(directory)
    expect('refusal' not in stage.service.call('build', name=new), f'there is room for {new}')
    stage.seen.let_write([new])
    stage.service.call('delete', name=gone)
    before = stage.seen.rows()
    expect(stage.service.end() == 0, 'the service ends in peace')
    record.put_back(directory, copy)
    users = stage.seen.users()
    wrong = [(device, stage.seen.owner(device), users.get(device, 'no guest')) for device in sorted(stage.seen.devices)
             if stage.seen.owner(device) != users.get(device, 'nobody')]
    expect({owner for _device, owner, _user in wrong} == {'nobody', gone}, f'the copy knows {gone} and not {new}')
    say(f"""
        An operator makes a backup of the record. Later {new} is built, {gone} is deleted, and the service
        stops. Then somebody restores the old backup. The demo compares it with the guests. These devices
        differ:""")
    table(('device', 'owner in the record', 'guest that uses it'), wrong)
    return before, gone


def _found(stage: Stage, new: str, next_one: str, gone: str) -> None:
    """Show the findings of the audits. Check that nobody gets or gives devices while the record is incomplete."""
    old = stage.seen.rows()
    say('The operator runs an audit:')
    stage.run_command(ATTENTION, 'audit')
    began = stage.start_service()
    lost, over = (stage.instances.get(name).uuid for name in (new, gone))
    expect(all(lost in finding or over in finding for finding in began['findings']), 'nothing else differs')
    expect(any(lost in finding for finding in began['findings']), f'{new} has lost its row')
    say(f"""
        The exit status was {ATTENTION}: something needs attention. The command cannot know that {gone} is
        deleted; only the compute service knows. When the service starts, `init_host` finds
        {count(len(began['findings']), 'difference')}:""")
    for finding in began['findings']:
        quote(finding)
    refusal = stage.service.call('build', name=next_one)['refusal']
    expect(stage.seen.rows() == old, 'nothing is taken or given')
    say(f"""
        It releases nothing yet. A record that lacks one row may lack others, so no device is certainly free. A
        claim for {next_one}, {a(stage.flavor_of(next_one))}, is refused:""")
    quote(refusal)


def _put_right(stage: Stage, before: list[record.Row], new: str, gone: str) -> None:
    say(f"""
        {new} is a guest of this host, so the operator accepts the repair. Only the running manager writes rows,
        so the command shows the plan and leaves a request for the manager. (--no-wait: the command does not
        wait for the answer.)""")
    stage.run_command(OK, 'audit', '--repair', '--accept', '--no-wait')
    [request] = record.requests(stage.machine.directory)
    returned = stage.rows_of(gone)
    stage.service.call('audit')
    say('At its next audit the service does the repair. The answer:')
    stage.run_command(OK, 'request', 'show', request, '-c', 'outcome', '-c', 'text')
    expect(stage.seen.rows() == before, 'the record is what it was before the accident')
    stage.seen.check_guests(stage.running())
    say(f"""
        The repair restored the row of {new} from the guest's definition. Then the record was complete, so the
        same audit released the device of {gone}: {', '.join(map(str, returned))}. The demo compares each row:
        the record is the same as before the service stopped. The operator's audit:""")
    stage.run_command(OK, 'audit')


def _works_again(stage: Stage, next_one: str) -> None:
    expect('refusal' not in stage.service.call('build', name=next_one), f'{next_one} gets what it needs')
    theirs = stage.rows_of(next_one)
    [finds] = [stage.seen.read(row.identifier) for row in theirs]
    stage.seen.let_write([next_one])
    findings = stage.service.call('audit')['findings']
    expect(not findings, f'the audit finds no difference: {findings}')
    rows, guests = stage.seen.rows(), list(stage.machine.guests)
    named = [device for guest in guests for device in guest.devices()]
    expect(len(set(named)) == len(named) == len(rows), 'no device is in two guests')
    stage.seen.check_guests({row.owner for row in rows})
    expect(stage.service.end() == 0, 'the service ends in peace')
    say(f"""
        {next_one} tries again, gets {theirs[0]}, and reads {finds} in it. The service's next audit compares the
        record, libvirt, the host and the service's instances, and found {count(len(findings), 'difference')}.
        The demo checks independently: {count(len(rows), 'row')}, {count(len(guests), 'guest')},
        {count(len(named), 'device')} in their definitions, no device in two of them, and each device has a row.""")
