"""``devicetrack-manage fleet drain``: how many other hosts can take the guests of some hosts now."""

from __future__ import annotations

import argparse
import collections
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import itertools
from typing import Any
from typing import Final
from typing import NamedTuple

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.claims import report
from devicetrack.cmd import base
from devicetrack.cmd import migration
from devicetrack.cmd import mirrored
from devicetrack.compatibility import host_facts
from devicetrack.compatibility.host_facts import HostFacts
from devicetrack.fleet import drain
from devicetrack.fleet import models
from devicetrack.fleet import reading
from devicetrack.fleet.reading import Picture
from devicetrack.fleet.reading import Reader
from devicetrack.objects.values import Record
from devicetrack.pictures import moments
from devicetrack.pictures import natural

_UNKNOWN: Final = 'unknown'


class _Guest(NamedTuple):
    """A guest of a host that is to be drained. ``need`` is None while nobody knows it, and ``doubt`` says why.

    Without that, ``doubt`` says what else is known of the guest.
    """

    host: Picture
    instance_uuid: str
    devices: Mapping[str, int]
    need: drain.Need | None
    doubt: str = ''


class _Answer:
    """The answer for all guests with the same need. The nearest host is the first one that lacks the fewest devices."""

    def __init__(self) -> None:
        self.live = self.cold = 0
        self.nearest: tuple[str, drain.Refusal] | None = None
        self.not_live: tuple[bool, str, str] | None = None

    def add(self, name: str, destination: drain.Destination, need: drain.Need) -> None:
        if destination.takes_live(need):
            self.live += 1
            self.cold += 1                      # A host that can take the running guest has room for it.
            return
        refusal = destination.cold(need)
        if refusal is None:
            self.cold += 1
        elif self.nearest is None or refusal[:2] < self.nearest[1][:2]:
            self.nearest = name, refusal
        if self.not_live is None or (refusal is None and not self.not_live[0]):
            # The most telling host is one with room.
            self.not_live = refusal is None, name, destination.live(need) or ''


class Drain(mirrored.OfMirror):
    """Show for each guest of some hosts how many other hosts can take its devices now: while it runs, or shut off.

    It lists the instances to which the rows of these hosts give devices. "live" counts the hosts with a free compatible
    device for each of its devices, by the rules of this configuration, as "migration check"; "cold" counts those with
    enough free devices of the same resource classes. Both ask the allocator that claims use. If no host can take a
    guest, "reason" is that of the nearest one, which lacks the fewest devices. "not_live" says why none can take it
    while it runs.

    It plans nothing: each guest is answered for as if it moved alone, so several may count the same devices. It counts
    no host that is silent, report-only, cordoned or to be drained itself, and no device that is withheld. Rows do not
    say which traits and NUMA nodes a flavor wants: see --numa-nodes. Exit code 3 when a guest cannot go anywhere, a
    guest or a host is unknown, or a host to drain is report-only. Reads only the mirror, and reserves nothing.
    """

    columns = ('host', 'instance_uuid', 'devices', 'live', 'cold', 'nearest', 'reason', 'not_live', *mirrored.AGE,
               'host_uuid')
    in_table = ('host', 'instance_uuid', 'devices', 'live', 'cold', 'reason')
    in_long = ('host', 'instance_uuid', 'devices', 'live', 'cold', 'reason', 'not_live', *mirrored.AGE)
    if_filled = ('reason', 'not_live', 'unknown_since')
    prose = ('devices', 'reason', 'not_live')
    below = ('instance_uuid', 'devices', 'reason')

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument('hosts', metavar='HOST', nargs='+',
                            help="The hosts to drain: names, or patterns of a shell, such as 'rack7-?'.")
        mirrored.add_numa(parser, 'By default the devices may be anywhere on a host.',
                          'By default "required" with --numa-nodes.')

    def nothing(self, parsed_args: argparse.Namespace) -> str:
        return 'no instance has devices of ' + ('this host' if len(parsed_args.hosts) == 1 else 'these hosts')

    def rows(self, parsed_args: argparse.Namespace) -> Iterator[Mapping[str, Any]]:
        nodes, policy = parsed_args.numa_nodes or 0, parsed_args.numa_policy
        if policy is not None and not nodes:
            raise base.UsageError('--numa-policy is about NUMA nodes: add --numa-nodes')
        reader = self.read()
        drained = mirrored.in_order(reader.pictures(parsed_args.hosts))
        ours = {one.uuid for one in drained}
        taking = [one for one in self._pictures
                  if one.uuid not in ours and not one.is_silent and one.report_only is None]
        guests = self._guests(reader, drained, policy or (vocabulary.REQUIRED if nodes else vocabulary.NONE))
        answers = {one.need: _Answer() for one in guests if one.need is not None}
        self._ask(reader, taking, answers, nodes)
        oldest = max((one.age_s for one in taking), default=0)
        for one in guests:
            fields = self._fields(one, None if one.need is None else answers[one.need], oldest)
            if not fields['cold'].data and not fields['live'].data:
                self.exit_code = base.ATTENTION
            yield fields
        closed = [one.name for one in self._pictures
                  if one.report_only is not None and not one.is_silent and one.uuid not in ours]
        if guests and closed:
            self.say(f'not counted, because they are report-only: {exception.in_short(closed)}')
        of_service = {one.line['instance_uuid'] for one in reader.devices(
            drained, reading.Wanted(statuses=(report.OBSERVED, report.UNKNOWN)))
                      if one.line['status'] == report.OBSERVED} - {None, *(one.instance_uuid for one in guests)}
        if of_service:
            self.say(f'not listed: {base.count(len(of_service), "guest")} with devices that the compute service hands '
                     f'out itself: {exception.in_short(sorted(of_service))}')

    def _guests(self, reader: Reader, drained: Sequence[Picture], policy: str) -> list[_Guest]:
        """Return the guests of hosts, in the order of the hosts."""
        found: list[tuple[Picture, HostFacts, str, list[Record]]] = []
        for picture, parts in reader.parts(drained, (models.ROWS, models.DECLARATIONS)):
            if picture.report_only is not None:
                self.exit_code = base.ATTENTION
                self.say(f'host {picture.name} is report-only, so guests may be missing here: {picture.report_only}')
            if models.ROWS not in parts:
                self.exit_code = base.ATTENTION
                self.say(f'host {picture.name} has pushed no rows, so all of its guests are missing here')
                continue
            rows = sorted(reading.records(picture, parts), key=lambda one: (one.instance_uuid, one.position))
            if releasing := sum(row.state == vocabulary.RELEASING for row in rows):
                self.say(f'host {picture.name} is still giving {base.count(releasing, "device")} back')
            facts = reader.declared(picture, parts)
            found += [(picture, facts, uuid, list(its)) for uuid, its in itertools.groupby(
                (row for row in rows if row.state != vocabulary.RELEASING), key=lambda one: one.instance_uuid)]
        hosts_of = reader.hosts_of(list({uuid for _picture, _facts, uuid, _its in found}))
        names = {one.uuid: one for one in self._pictures}
        return [_guest(picture, facts, uuid, its, [names[one] for one in hosts_of.get(uuid, ())
                                                   if one != picture.uuid and one in names], policy)
                for picture, facts, uuid, its in found]

    def _ask(self, reader: Reader, taking: Sequence[Picture], answers: Mapping[drain.Need, _Answer],
             nodes: int) -> None:
        """Ask each host that takes claims, one after the other, for each need."""
        if not answers:
            return
        rules = migration.rules(self.app)
        for picture, parts in reader.parts(taking, (models.INVENTORY, models.DECLARATIONS)):
            if models.INVENTORY not in parts:
                self.say(f'host {picture.name} has pushed no inventory, and counts as full')
                continue
            destination = drain.Destination(parts[models.INVENTORY], reader.declared(picture, parts), rules, nodes)
            for need, answer in answers.items():
                answer.add(picture.name, destination, need)

    def _fields(self, one: _Guest, answer: _Answer | None, oldest: int) -> dict[str, Any]:
        nearest, refusal = (answer.nearest if answer is not None else None) or (None, None)
        live = None if answer is None or one.host.is_silent or one.need is None or one.need.running is None \
            else answer.live
        cold = None if answer is None else answer.cold
        reason = one.doubt or None
        if answer is not None and not answer.cold and not answer.live:
            why = 'no other host takes claims now' if refusal is None else f'on host {nearest}: {refusal.text}'
            reason = f'{why}; {reason}' if reason else why
        else:
            nearest = None
        return {'host': one.host.name, 'instance_uuid': one.instance_uuid,
                'devices': base.Shown(one.devices, ', '.join(f'{amount} {name}'
                                                             for name, amount in one.devices.items())),
                'live': base.Shown(live, _UNKNOWN if live is None else live),
                'cold': base.Shown(cold, _UNKNOWN if cold is None else cold),
                'nearest': nearest, 'reason': reason, 'not_live': _not_live(one, answer, live),
                **mirrored.age_fields(one.host), 'age_s': max(one.host.age_s, oldest), 'host_uuid': one.host.uuid}


def _guest(picture: Picture, facts: HostFacts, uuid: str, records: Sequence[Record], elsewhere: Sequence[Picture],
           policy: str) -> _Guest:
    """Return a guest with its need.

    :param elsewhere: the other hosts that have devices for it
    """
    devices = dict(sorted(collections.Counter(record.resource_class for record in records).items()))
    there = sorted((one for one in elsewhere), key=lambda one: natural.key(one.name))
    says = [f'host {one.name} has devices for it too' + (
        f', as it looked {moments.local(one.read_at)}' if one.is_silent else '') for one in there]
    if drain.is_moving(records):
        moves = sorted({record.migration_uuid for record in records if record.migration_uuid is not None})
        return _Guest(picture, uuid, devices, None, '; '.join([f'it moves, by migration {", ".join(moves)}', *says]))
    if any(not one.is_silent for one in there):
        # The pictures of two hosts are of two moments, so the guest may have moved between them.
        return _Guest(picture, uuid, devices, None, '; '.join(
            [*says, 'it is moving, or the rows of one host are out of date']))
    guest = host_facts.find_guest(uuid, records, {picture.uuid: picture.name}, {picture.name: facts})
    return _Guest(picture, uuid, devices, drain.need_of(records, guest, policy), '; '.join(says))


def _not_live(one: _Guest, answer: _Answer | None, live: int | None) -> str | None:
    """Return why no host can take a running guest."""
    if live or answer is None or one.need is None:
        return None
    if one.host.is_silent:
        return 'its host is silent: nobody knows whether it runs'
    if one.need.running is None:
        return one.need.unknown
    return None if answer.not_live is None else f'on host {answer.not_live[1]}: {answer.not_live[2]}'
