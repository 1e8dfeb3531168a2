"""One owner for every device: the demo, ``make demo``.

This process is the outside world. It owns the machine, starts the service as a child process, kills it,
and looks with its own eyes: it reads the record by plain SQL, the guests' definitions by a plain XML parser
and the namespaces' bytes, none of it through the library. Every fact that is printed was looked up just
then; one that is not as it must be ends the demo with status 1.
"""

from __future__ import annotations

from collections.abc import Iterable
import itertools
import pathlib
import shutil
import signal
import sys
import tempfile
from typing import Any

from instances import DELETED
from instances import Instances
from machine import FLAVORS
from machine import Machine
from machine import MIB
from machine import NAMESPACES
from machine import needs
from machine import SIZES
from machine import SLOW_WIPE_MIB_S
from observer import expect
from observer import NotAsPromised
from observer import Observer
from observer import owners
from observer import text_of
from page import chapter
from page import count
from page import listed
from page import quote
from page import say
from page import table
from page import title
from process import Process
from process import ServiceFailed
import record

THREADS = 32
STOPPED = 2
PATIENCE_S = 180        # with the whole demo


class Demo:
    """The story, a method for each chapter."""

    def __init__(self, directory: pathlib.Path) -> None:
        self.machine = Machine(directory)
        self.machine.make()
        self.instances = Instances(directory)
        self.seen = Observer(self.machine, self.instances)
        self.refused: list[str] = []
        self.service: Process

    def tell(self) -> None:
        title('devicetrack: one owner for every device')
        say("""
            A compute service on this machine will build guests that want persistent-memory namespaces
            and vGPUs. There are fewer devices than guests, and the service will be killed twice.
            Watch who owns what.""")
        self.the_host()
        stopped = self.the_race()
        self.killed_between_record_and_boot(stopped)
        self.killed_in_a_wipe()
        self.release_and_reuse()
        self.the_audit()
        chapter('From here')
        say("""
            README.rst has the ten lines with which a service calls the library, and
            examples/compute/service.py is a whole service that boots real guests. `make test` proves
            on real servers and a real libvirt daemon what was shown here; `make docs` explains it.""")

    def start_service(self, wipe_rate_mib_s: int = 0) -> dict[str, Any]:
        self.machine.configure(wipe_rate_mib_s)
        self.service = Process(self.machine)
        return self.service.call('start')

    # -- 1 ------------------------------------------------------------------------------------------------

    def the_host(self) -> None:
        chapter('1. The host')
        began = self.start_service()
        expect(not began['findings'], 'a new host has nothing to report')
        offers = self.service.call('providers')['offers']
        expect(sum(offer[-1] for offer in offers) == len(self.seen.devices), 'the host offers every device')
        say("""
            The service runs as a process of its own. Its record is one SQLite file. Its hypervisor is
            libvirt's in-process test driver, which plays a host with PCI cards and with the mediated
            devices that an operator made on them; plain files stand for the namespaces. To the
            placement service this host offers:""")
        table(('provider', 'resource class', 'devices'), offers)
        say('Guests come in these flavors:')
        table(('flavor', 'extra specs'), [
            (flavor, ', '.join(f'{name}={value}' for name, value in specs.items()))
            for flavor, specs in FLAVORS.items()])

    # -- 2 ------------------------------------------------------------------------------------------------

    def the_race(self) -> list[str]:
        """Let all instances ask at once.

        :returns: those that have their devices and no guest yet
        """
        chapter(f'2. {THREADS} threads race')
        names = [f'instance-{number:02}' for number in range(1, THREADS + 1)]
        flavors = dict(zip(names, itertools.cycle(FLAVORS)))
        self.instances.add(flavors)
        race = self.service.call('race', names=names, stopped=STOPPED)
        expect(not race['failed'], f'no thread fails in another way: {race["failed"]}')
        winners, stopped = sorted(race['won'] | race['stopped']), sorted(race['stopped'])
        self.refused = sorted(race['lost'])
        rows = self.seen.rows()
        expect(sorted({row.owner for row in rows}) == winners, 'who won is recorded, and nobody else')
        self.seen.check_owners(self.refused)
        say(f"""
            {THREADS} instances, {THREADS // len(FLAVORS)} of each flavor, asked at once, each in a thread of
            its own and each for all of its devices or none. After {race['milliseconds']} ms everyone had an
            answer: {len(winners)} got all they asked for, {len(self.refused)} were refused and hold
            nothing.""")
        self.print_owners(rows)
        wanted = sum(needs(flavor).total() for flavor in flavors.values())
        say(f"""
            Wanted were {wanted} devices. The host has {len(self.seen.devices)}; {len(self.seen.free())} of
            them stayed free, too few for anyone who was refused.""")
        loser = max(self.refused, key=lambda name: len(race['lost'][name]))
        say(f'Why did {loser}, a {flavors[loser]}, lose? The library says it in one sentence:')
        quote(race['lost'][loser])

        running = [name for name in winners if name not in stopped]
        self.seen.check_guests(running)
        self.seen.let_write(running)
        say(f"""
            The guests of {len(running)} owners were defined and started in libvirt with the elements that the
            library returned for their devices. Each then wrote its name all over its namespaces; the
            test driver runs no guest's code, so the demo writes for them. {listed(stopped)} came as
            far as `claimed`: recorded, not yet booted.""")
        return stopped

    # -- 3 ------------------------------------------------------------------------------------------------

    def killed_between_record_and_boot(self, stopped: list[str]) -> None:
        chapter('3. Killed between record and boot')
        before, guests = self.seen.rows(), len(list(self.machine.guests))
        expect(self.service.kill() == -signal.SIGKILL, 'the service is killed')
        expect(self.seen.rows() == before, 'the record is what it was')
        # The next chapter wants a guest with a large namespace.
        large = {row.owner for row in before if row.identifier in NAMESPACES['32MB']}
        goes_on, given_up = sorted(stopped, key=lambda name: (name not in large, name))
        self.instances.set_state(given_up, DELETED)
        say(f"""
            The service is gone (SIGKILL). The demo reads the record by plain SQL: the same {len(before)}
            rows. While no service is there, the user of {given_up} gives up and deletes it, which the
            service's own database keeps; {goes_on} is still wanted.""")
        say("""
            On a real host the guests run on. Those of the test driver live and die with the process
            that opened it, so the demo kept their definitions and hands them to the next one as
            running guests.""")

        began = self.start_service(wipe_rate_mib_s=SLOW_WIPE_MIB_S)
        after = self.seen.rows()
        kept = [row for row in before if row.owner != given_up]
        expect(began['guests'] == guests, 'the guests are there')
        expect(began['went_on'] == [goes_on], f'the service goes on with {goes_on}, and with nothing else')
        expect(owners(after) == owners(kept), 'every device has the owner that it had')
        expect({row.state for row in after} == {'active'}, 'every owner runs')
        self.seen.check_guests({row.owner for row in after})
        self.seen.let_write([goes_on])
        given_back = count(len(before) - len(kept), 'device')
        say(f"""
            Started again, the service calls `init_host`, which compares {len(before)} rows,
            {count(guests, 'guest')}, {len(self.seen.devices)} devices and the service's word. {given_up} has
            no guest and is deleted, says the service: what it held went back ({given_back}). {goes_on}
            has no guest and is here, says the service: its devices stayed its own, and the service has
            just booted it on them. {reported(began)}""")
        self.print_owners(after)
        say(f"""
            Compared row by row with the table above: apart from {given_up}, all
            {instances_in(kept)} own the {count(len(kept), 'device')} that they owned. Nothing is lost, and
            nothing is owned twice.""")

    # -- 4 ------------------------------------------------------------------------------------------------

    def killed_in_a_wipe(self) -> None:
        chapter('4. Killed in the middle of a wipe')
        before = self.seen.rows()
        leaving = next(row for row in before if row.identifier in NAMESPACES['32MB'])
        name, namespace = leaving.owner, leaving.identifier
        self.service.send('delete', name=name)
        self.seen.wait_for_a_wipe(namespace)
        expect(self.service.kill() == -signal.SIGKILL, 'the service is killed')
        dirty, outlived = self.seen.dirty_mib(namespace), self.seen.is_worked_on(namespace)
        rows = [row for row in self.seen.rows() if row.owner == name]
        expect({row.state for row in rows} == {'releasing'}, f'what {name} had is held')
        expect(outlived, 'the wiper outlives the service and keeps its lock')
        say(f"""
            {name} is deleted. Its guest is gone, its namespace {namespace} is being overwritten
            (slowly, for the sake of this chapter), and the service is killed. At that moment {dirty} of
            {SIZES['32MB'] // MIB} MiB still read `{text_of(name)}`. The record says:""")
        self.print_owners(rows)
        say(f"""
            On its way back, and still held: nobody else can be given it. What overwrites is a process of
            its own. It outlived the service and keeps the lock file of {namespace}, which the demo has
            just tried to take in vain: no new service can work on the namespace beside it.""")

        began = self.start_service()
        after = self.seen.rows()
        expect(began['went_on'] == [name], f'the service goes on with {name}, and with nothing else')
        expect(owners(after) == owners(row for row in before if row.owner != name), 'nothing else changed')
        self.seen.check_clean(namespace)
        say(f"""
            Started again, `init_host` finds the row and takes the lock as soon as the old process has
            ended. libvirt has no guest with {namespace}. Nobody heard that it is clean, so it is
            overwritten once more and read back; then, and only then, the row goes. The demo has read
            it too: {self.seen.read(namespace)}. {reported(began)} The other {instances_in(after)} own
            what they owned.""")

    # -- 5 ------------------------------------------------------------------------------------------------

    def release_and_reuse(self) -> None:
        chapter('5. Release and reuse')
        leaving = next(row.owner for row in self.seen.rows() if row.identifier in NAMESPACES['16MB'])
        self.service.call('delete', name=leaving)
        newcomers = [name for name in self.refused if 'refusal' not in self.service.call('build', name=name)]
        rows = self.seen.rows()
        self.seen.check_owners(set(self.refused) - set(newcomers))
        self.seen.check_guests({row.owner for row in rows})
        theirs = [row for row in rows if row.owner in newcomers]
        say(f"""
            {leaving} is deleted too, without an accident. Then all who were refused ask again, in the
            order of their names, and {len(newcomers)} of {len(self.refused)} get what is free by now:""")
        self.print_owners(theirs)
        wrote = self.seen.wrote
        reused = [row for row in theirs if row.identifier in wrote]
        expect(reused, 'what was given back is used again')
        say('What these guests find in the namespaces that others had before them:')
        table(('namespace', 'first guest', 'wrote', 'next guest', 'finds'), [
            (row.identifier, wrote[row.identifier], text_of(wrote[row.identifier]), row.owner,
             self.seen.read(row.identifier)) for row in reused])
        self.seen.let_write(newcomers)

    # -- 6 ------------------------------------------------------------------------------------------------

    def the_audit(self) -> None:
        chapter('6. The audit')
        findings = self.service.call('audit')['findings']
        expect(not findings, f'the audit finds no difference: {findings}')
        rows, guests = self.seen.rows(), list(self.machine.guests)
        named = [device for guest in guests for device in guest.devices()]
        expect(len(set(named)) == len(named) == len(rows), 'no device is in two guests')
        self.seen.check_guests({row.owner for row in rows})
        expect(self.service.end() == 0, 'the service ends in peace')
        say(f"""
            The audit has looked twice at the record, at libvirt, at the host and at the service, and
            found {count(len(findings), 'difference')}. The demo counts for itself:
            {count(len(rows), 'row')}, {count(len(guests), 'guest')}, {count(len(named), 'device')} in their
            definitions, none of them in two, and all of them those of the rows.""")

    def print_owners(self, rows: Iterable[record.Row]) -> None:
        table(('owner', 'flavor', 'state', 'devices, in the order of the guest'), [
            (owner, self.instances.get(owner).flavor.name, state, ', '.join(map(str, devices)))
            for (owner, state), devices in itertools.groupby(rows, key=lambda row: (row.owner, row.state))])


def instances_in(rows: Iterable[record.Row]) -> str:
    return count(len({row.owner for row in rows}), 'instance')


def reported(began: dict[str, Any]) -> str:
    findings = began['findings']
    return f'It reports: {"; ".join(findings)}.' if findings else 'It has nothing left to report.'


def out_of_patience(*_: object) -> None:
    raise NotAsPromised(f'the demo takes less than {PATIENCE_S} s')


def main() -> int:
    signal.signal(signal.SIGALRM, out_of_patience)
    signal.alarm(PATIENCE_S)
    directory = pathlib.Path(tempfile.mkdtemp(prefix='devicetrack-demo-'))
    try:
        Demo(directory).tell()
    except (NotAsPromised, ServiceFailed) as error:
        print(f'\nThe demo failed. This did not hold: {error}. See {directory}/service.log', file=sys.stderr)
        return 1
    shutil.rmtree(directory)
    return 0


if __name__ == '__main__':
    sys.exit(main())
