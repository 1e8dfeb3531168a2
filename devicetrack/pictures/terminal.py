"""Draws pictures of hosts with the characters of a terminal."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
import re
import textwrap
from typing import Final

from devicetrack import log
from devicetrack import vocabulary
from devicetrack.claims import report
from devicetrack.claims.report import Reason
from devicetrack.objects.event import Event
from devicetrack.objects.values import WipeProgress
from devicetrack.pictures import instance_names
from devicetrack.pictures import moments
from devicetrack.pictures import timeline
from devicetrack.pictures.host import counted
from devicetrack.pictures.host import Field
from devicetrack.pictures.host import HostPicture
from devicetrack.pictures.host import ParentPicture
from devicetrack.pictures.pages import node_name

# The mark of each state, and the mark for a terminal that has only ASCII.
_MARKS: Final = {report.HELD: ('■', '#'), report.FREE: ('□', '.'), report.CREATABLE: ('+', '+'),
                 report.RELEASING: ('◧', '~'), report.WITHHELD: ('⊠', 'x'), report.MISSING: ('!', '!'),
                 report.OBSERVED: ('○', 'o')}

# Some of the eight colours that every terminal has, in the shades that its user chose.
_COLOURS: Final = {report.HELD: '34', report.FREE: '32', report.CREATABLE: '32', report.RELEASING: '33',
                   report.WITHHELD: '31', report.MISSING: '35', report.OBSERVED: '36', vocabulary.CRITICAL: '31',
                   vocabulary.WARNING: '33', vocabulary.NOTE: '36'}
_BOLD: Final = '1'

_ESCAPE: Final = re.compile('\x1b\\[[0-9]+m')

_GAP: Final = '  '
_GAUGE: Final = 16
_EVENTS: Final = 10


class Pen:
    """Draws for one terminal.

    :param width: the number of columns; a longer identifier gets a line of its own and is not broken
    :param colour: whether to write escape sequences of colours
    :param encoding: that of the terminal. One that lacks a mark gets only ASCII
    """

    def __init__(self, width: int, colour: bool = False, encoding: str = 'utf-8') -> None:
        self._width, self._colour, self._ascii = max(width, 20), colour, False
        try:
            ''.join(mark for mark, _ascii in _MARKS.values()).encode(encoding)
        except (UnicodeEncodeError, LookupError):
            self._ascii = True

    def hosts(self, hosts: Iterable[HostPicture]) -> Iterator[str]:
        """Draw some hosts; yield lines without line ends."""
        for number, host in enumerate(hosts):
            if number:
                yield ''
            yield from self._host(host)

    def _host(self, host: HostPicture) -> Iterator[str]:
        yield self._painted(f'Host {log.printable(host.name)}', _BOLD)
        if host.report_only is not None:
            yield from self._wrapped(f'report-only: no claims, and nothing is given back: {host.report_only}', 10,
                                     vocabulary.CRITICAL)
        if host.counts:
            yield from self._flow(0, [self._count(state, count) for state, count in host.counts.items()])
        elif not host.unread:
            yield 'no devices' if host.is_read else 'no devices in the store'
        if not host.is_read:
            yield from self._wrapped('Drawn from the store alone: free devices, findings and wipes are known on the '
                                     'host itself.', 0)
        for finding in host.findings:
            yield from self._wrapped(f'{finding}', 10, finding.severity)
            if finding.proposal:
                yield from self._wrapped(f'to do: {finding.proposal}', 10)
        for unread in host.unread:
            yield from self._wrapped(f'could not be read: {unread.what}: {unread.why}', 10, vocabulary.WARNING)
        for node in host.nodes:
            yield ''
            yield self._painted(node_name(node.number), _BOLD)
            for parent in node.parents:
                yield from self._parent(parent)
        if host.events:
            yield ''
            yield self._painted('Last events', _BOLD)
            for event in host.events[:_EVENTS]:
                yield from self._event(event)

    def _event(self, event: Event) -> Iterator[str]:
        said = [moments.local(event.at_ms / 1000), log.printable(timeline.subject(event))]
        if event.instance_uuid is not None:
            said.append(f'for {log.printable(event.instance_uuid)}')
        head, *rest = self._flow(16, said)
        of_device = timeline.state(event)
        yield f'    {self._mark(of_device)} {self._painted(f"{event.event:10}", _COLOURS[of_device])}{head[16:]}'
        yield from rest
        if words := timeline.words(event):
            yield from self._wrapped(words, 16)

    def _parent(self, parent: ParentPicture) -> Iterator[str]:
        strip = ''.join(self._mark(field.state) * (1 if field.identifier is not None else min(field.amount, 8))
                        for field in parent.fields)
        title = log.printable(' '.join(filter(None, (parent.kind, parent.name, *parent.resource_classes))))
        if len(title) + len(_GAP) * 2 + _length(strip) <= self._width:
            yield f'{_GAP}{title}{_GAP}{strip}'
        else:
            yield f'{_GAP}{title}'
        for reason in parent.reasons:
            yield from self._wrapped(f'the whole parent: {_why(reason)}', 4)
        plain = {state: [field for field in parent.fields if field.state == state and field.is_plain]
                 for state in counted(parent.fields)}
        for field in parent.fields:
            if not field.is_plain:
                yield from self._field(field)
        for state, fields in plain.items():
            if fields:
                yield from self._plain(state, fields)

    def _plain(self, state: str, fields: Iterable[Field]) -> Iterator[str]:
        """Draw devices that show only their names, side by side."""
        names = [log.printable(field.identifier or f'{field.amount} of {field.resource_class}') for field in fields]
        for number, line in enumerate(self._flow(16, names)):
            yield self._head(state) + line[16:] if not number else line

    def _field(self, field: Field) -> Iterator[str]:
        name = log.printable(field.identifier or f'{field.amount} of {field.resource_class}')
        yield self._head(field.state, vocabulary.CRITICAL if field.critical else field.state) + name
        for finding in field.critical:
            yield from self._wrapped(f'critical: {finding.kind}: {finding.detail}', 6)
        if field.owner is not None:
            said = [f'for {log.printable(field.owner.instance_uuid)}',
                    f'claimed {moments.local(field.owner.created_at)}']
            if field.owner.instance_name is not None:
                said.append(f'named "{instance_names.shown(field.owner.instance_name)}"')
            if field.owner.state == vocabulary.CLAIMED:
                said.append('not started yet')
            if field.owner.migration_uuid is not None and field.owner.role != vocabulary.CURRENT:
                said.append('leaves by a migration' if field.owner.role == vocabulary.OLD else 'comes by a migration')
            yield from self._flow(6, said, ' ')     # so that both fit in 80 columns
        if field.wipe is not None:
            gauge = self._gauge(field.wipe)
            yield from self._flow(6, [*[self._painted(gauge, _COLOURS[field.state])] * bool(gauge), str(field.wipe)])
        for reason in field.reasons:
            yield from self._wrapped(_why(reason), 6)

    def _gauge(self, wipe: WipeProgress) -> str:
        """Draw the progress of a wipe; '' if the total is unknown."""
        if wipe.size_bytes <= 0:
            return ''
        done = _GAUGE * min(wipe.done_bytes, wipe.size_bytes) // wipe.size_bytes
        full, empty = '#.' if self._ascii else '█░'
        return full * done + empty * (_GAUGE - done)

    # -- lines --------------------------------------------------------------------------------------------------------

    def _head(self, state: str, colour: str | None = None) -> str:
        return f'    {self._mark(state)} {self._painted(f"{state:10}", _COLOURS[colour or state])}'

    def _count(self, state: str, count: int) -> str:
        return f'{self._mark(state)} {self._painted(f"{count} {state}", _COLOURS[state])}'

    def _mark(self, state: str) -> str:
        return self._painted(_MARKS[state][self._ascii], _COLOURS[state])

    def _painted(self, text: str, code: str) -> str:
        return f'\x1b[{code}m{text}\x1b[0m' if self._colour else text

    def _flow(self, indent: int, parts: Iterable[str], gap: str = _GAP) -> Iterator[str]:
        """Put parts side by side, as many as fit on a line, without breaking any."""
        line, used = '', 0
        for part in parts:
            length = _length(part)
            if used and indent + used + len(gap) + length > self._width:
                yield ' ' * indent + line
                line, used = '', 0
            line, used = (line + gap + part, used + len(gap) + length) if used else (part, length)
        if used:
            yield ' ' * indent + line

    def _wrapped(self, text: str, indent: int, head: str | None = None) -> Iterator[str]:
        """Wrap a text into lines, the first with a word in its margin. Words are not broken."""
        lines = textwrap.wrap(log.printable(text), self._width - indent, break_long_words=False,
                              break_on_hyphens=False)
        for number, line in enumerate(lines):
            if number == 0 and head is not None:
                yield self._painted(f'{head:{indent}}', _COLOURS[head]) + line
            else:
                yield ' ' * indent + line


def _length(text: str) -> int:
    return len(_ESCAPE.sub('', text))


def _why(reason: Reason) -> str:
    known = [reason.by] if reason.by else []
    if reason.since is not None:
        known.append(f'since {moments.local(reason.since)}')
    return str(reason) + (f' ({", ".join(known)})' if known else '')
