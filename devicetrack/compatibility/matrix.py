"""Decides from hosts' declarations whether guests could move to them, regardless of free devices there.

It assumes that a host has enough devices of each type that it declares. So no device takes the partner of another, and
each can be decided by itself.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any
from typing import Final
from typing import NamedTuple

from devicetrack.compatibility.facts import Facts
from devicetrack.compatibility.facts import Sort
from devicetrack.compatibility.facts import Version
from devicetrack.compatibility.facts import version_as_data
from devicetrack.compatibility.host_facts import HostFacts
from devicetrack.compatibility.host_facts import NOTHING_DECLARED
from devicetrack.compatibility.rules import decide
from devicetrack.compatibility.rules import DESTINATION_HOST
from devicetrack.compatibility.rules import KIND
from devicetrack.compatibility.rules import Rules
from devicetrack.compatibility.rules import SOURCE_HOST
from devicetrack.compatibility.rules import TYPE
from devicetrack.compatibility.rules import Verdict

# The answers for a device and a host.
YES: Final = 'yes'
NOTED: Final = 'yes*'                           # an option or the table allows it
NO: Final = 'no'
UNKNOWN: Final = 'unknown'

_MATCHING: Final = (KIND, TYPE)


class Prospect(NamedTuple):
    """Facts that a host declares, and the verdict on a device that would move there."""

    facts: Facts
    verdict: Verdict

    def as_data(self) -> dict[str, Any]:
        form, version = version_as_data(self.facts.version)
        return {**self.facts.sort._asdict(), 'version_form': form, 'version': version, **self.verdict.as_data()}


class Outlook(NamedTuple):
    """A host's possible partners for one device.

    ``choices`` are those of the device's type; if there are none, those of its kind; if there are none either, all that
    the host declares. ``unknown`` says why it is unknown whether the device has a partner.
    """

    sort: Sort
    choices: tuple[Prospect, ...] = ()
    unknown: tuple[str, ...] = ()

    @property
    def best(self) -> Prospect | None:
        """The partner for the device: one without notes, if there is any."""
        accepted = [choice for choice in self.choices if choice.verdict.accepted]
        return min(accepted, key=lambda choice: len(choice.verdict.notes), default=None)

    @property
    def answer(self) -> str:
        best = self.best
        if best is not None:
            return NOTED if best.verdict.notes else YES
        return UNKNOWN if self.unknown else NO

    @property
    def reasons(self) -> str:
        """Why not, as text for an operator; empty for a yes."""
        if self.best is not None:
            return ''
        if self.unknown:
            return ' | '.join(self.unknown)
        matching = [choice for choice in self.choices
                    if not any(reason.about in _MATCHING for reason in choice.verdict.reasons)]
        if matching:
            return ' | '.join(dict.fromkeys(
                ('' if choice.facts.sort == self.sort else f'{choice.facts.sort}: ')
                + '; '.join(map(str, choice.verdict.reasons)) for choice in matching))
        # The reason for each other choice would only repeat that it has another type.
        there = ', '.join(dict.fromkeys(str(choice.facts.sort) for choice in self.choices))
        more = dict.fromkeys(str(reason) for choice in self.choices for reason in choice.verdict.reasons
                             if reason.about in (SOURCE_HOST, DESTINATION_HOST))
        return '; '.join([f'the destination declares no {self.sort}: it declares {there}', *more])

    @property
    def notes(self) -> str:
        """The reasons that an option or the table allowed, as text for an operator."""
        best = self.best
        return '; '.join(map(str, best.verdict.notes)) if best is not None else ''

    def as_data(self) -> dict[str, Any]:
        # Keep a yes short: a matrix has one for each pair of hosts and each type.
        best = self.best
        return {'verdict': self.answer,
                'reasons': [] if best is not None else [
                    {**choice.facts.sort._asdict(), **reason.as_data()}
                    for choice in self.choices for reason in choice.verdict.reasons],
                'notes': [] if best is None else [note.as_data() for note in best.verdict.notes],
                'unknown': [] if best is not None else list(self.unknown)}


class MatrixRow(NamedTuple):
    """Devices with the same facts on hosts that declare alike, and the outlook for them at such hosts, by their names.

    Among the hosts of a destination may be those of the row: guests may go from one of them to another.
    """

    hosts: tuple[str, ...]
    facts: Facts
    outlooks: tuple[tuple[tuple[str, ...], Outlook], ...]


class Destination:
    """The declarations of a host, indexed for :meth:`outlook`."""

    def __init__(self, host: HostFacts, rules: Rules) -> None:
        self._rules = rules
        self._facts = tuple(dict.fromkeys(one.facts for one in host.declarations))
        self._unread = host.unread
        self._of_sort: dict[Sort, list[Facts]] = {}
        for facts in self._facts:
            self._of_sort.setdefault(facts.sort, []).append(facts)

    def outlook(self, device: Facts, seen: Version | None = None) -> Outlook:
        """Say which partners there are for a device."""
        if not self._facts and not self._unread:
            return Outlook(device.sort, unknown=(NOTHING_DECLARED,))
        wanted = [device.sort, *sorted(there for here, there in self._rules.crossings if here == device.sort)]
        choices = tuple(Prospect(facts, decide(device, facts, self._rules, seen))
                        for facts in self._of_type_or_else(wanted))
        unknown = tuple(dict.fromkeys(one.problem for one in self._unread if one.sort in wanted or not choices))
        return Outlook(device.sort, choices, unknown)

    def _of_type_or_else(self, wanted: Sequence[Sort]) -> Sequence[Facts]:
        found = [facts for sort in wanted for facts in self._of_sort.get(sort, ())]
        return found or [facts for facts in self._facts if facts.sort.kind == wanted[0].kind] or self._facts


def rows(hosts: Sequence[HostFacts], rules: Rules, types: Collection[str] = ()) -> Iterator[MatrixRow]:
    """The outlook for hosts' devices at other hosts, with one row for all hosts that declare alike.

    So the matrix grows with the models of hosts, and not with the square of the hosts. A host alone is no destination
    of its own.

    :param types: only rows of these; none means all
    """
    groups = _alike(hosts, rules)
    names = {group: tuple(one.host for one in some) for group, some in groups}
    for source, some in groups:
        for facts in dict.fromkeys(one.facts for one in some[0].declarations
                                   if not types or one.facts.sort.type in types):
            yield MatrixRow(names[source], facts, tuple(
                (there, group.outlook(facts)) for group, there in names.items()
                if group is not source or len(there) > 1))


def _alike(hosts: Sequence[HostFacts], rules: Rules) -> list[tuple[Destination, list[HostFacts]]]:
    """The groups of hosts that declare alike, whatever the names of their parents, in the order of ``hosts``."""
    groups: dict[object, tuple[Destination, list[HostFacts]]] = {}
    for host in hosts:
        alike = frozenset(one.facts for one in host.declarations), host.unread
        if alike not in groups:
            groups[alike] = Destination(host, rules), []
        groups[alike][1].append(host)
    return list(groups.values())
