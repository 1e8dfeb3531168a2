"""The content of a picture of a host, as values: its NUMA nodes, their parents, and a field for each device."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import Final
from typing import NamedTuple

from devicetrack import vocabulary
from devicetrack.claims import report
from devicetrack.claims.report import Line
from devicetrack.claims.report import Reason
from devicetrack.engine.findings import Finding
from devicetrack.engine.withholding import Marks
from devicetrack.objects.details import serial_of
from devicetrack.objects.event import Event
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Record
from devicetrack.objects.values import WipeProgress
from devicetrack.pictures import natural

# The states of fields, in the order of legends. A part that could not be read has no field.
STATES: Final = (report.HELD, report.FREE, report.CREATABLE, report.RELEASING, report.WITHHELD, report.MISSING,
                 report.OBSERVED)

# How many events of a host and of a device a person reads; "device history" and "instance history" show all.
_EVENTS: Final = 40
_EVENTS_OF_DEVICE: Final = 6

# Kind, parent, and for devices without a parent the resource class.
_Group = tuple[str, str | None, str | None]


class Field(NamedTuple):
    """One device or, if ``identifier`` is None, the ``amount`` of devices that a parent can still make.

    ``state`` is one of :data:`STATES`. ``owner`` is the row of the device's owner, None without one. ``reasons`` say
    why the device is withheld or missing; such a device may have an owner too. ``wipe`` is the progress of its wipe or
    its reading, None if neither goes on or the progress is unknown. ``serial`` is the serial number of the device or of
    its card, None if it has none. ``critical`` has the critical findings about the device. ``events`` are its last, the
    newest first, as far as they are among those that the picture was made of.
    """

    kind: str
    identifier: str | None
    state: str
    amount: int
    resource_class: str | None
    owner: Record | None
    reasons: tuple[Reason, ...] = ()
    wipe: WipeProgress | None = None
    serial: str | None = None
    critical: tuple[Finding, ...] = ()
    events: tuple[Event, ...] = ()

    @property
    def is_plain(self) -> bool:
        """Whether there is nothing to say about it except its name and its state."""
        return self.owner is None and self.wipe is None and not self.reasons and not self.critical


class ParentPicture(NamedTuple):
    """The devices of one parent on one NUMA node.

    ``name`` is None for devices that have no parent: then they are of one kind and one resource class.
    """

    kind: str
    name: str | None
    fields: tuple[Field, ...]
    reasons: tuple[Reason, ...] = ()

    @property
    def resource_classes(self) -> list[str]:
        return sorted({field.resource_class for field in self.fields if field.resource_class is not None})


class NodePicture(NamedTuple):
    """A NUMA node; ``number`` is None for devices whose node is unknown."""

    number: int | None
    parents: tuple[ParentPicture, ...]


class UnreadPart(NamedTuple):
    """A part of the host that could not be read, and why. Its devices are not in the picture."""

    what: str
    why: str | None


class HostPicture(NamedTuple):
    """A picture of one host.

    ``is_read`` is False if only the store was asked: then the picture has the devices that somebody holds or that are
    withheld, but no free devices, findings or wipes. ``events`` are the last of the host's history, the newest first.
    ``report_only`` says why the host takes no claims and gives nothing back; None if it works, or was not asked.
    """

    name: str
    is_read: bool
    nodes: tuple[NodePicture, ...]
    findings: tuple[Finding, ...] = ()
    unread: tuple[UnreadPart, ...] = ()
    events: tuple[Event, ...] = ()
    report_only: str | None = None

    @property
    def fields(self) -> list[Field]:
        return [field for node in self.nodes for parent in node.parents for field in parent.fields]

    @property
    def counts(self) -> dict[str, int]:
        """Count the devices by state, without states that no device has."""
        return counted(self.fields)

    @property
    def needs_attention(self) -> bool:
        """Whether a finding is not a note, a part was not read, a device is missing, or the host takes no claims."""
        return bool(self.unread or self.report_only or self.counts.get(report.MISSING)
                    or any(finding.severity != vocabulary.NOTE for finding in self.findings))


def counted(fields: Iterable[Field]) -> dict[str, int]:
    """Count the devices by state, in the order of :data:`STATES` and without states that no device has."""
    counts = dict.fromkeys(STATES, 0)
    for field in fields:
        counts[field.state] += field.amount if field.identifier is None else 1
    return {state: count for state, count in counts.items() if count}


def read(name: str, lines: Sequence[Line], findings: Sequence[Finding], records: Iterable[Record],
         events: Sequence[Event] = (), report_only: str | None = None) -> HostPicture:
    """Make the picture of a host that was read.

    :param lines: its inventory
    :param findings: the findings of an audit
    :param records: its rows
    :param events: the last events of its history, the newest first
    :param report_only: why it takes no claims, or None
    """
    owners = {record.key: record for record in records}
    histories = _histories(events)
    critical: dict[DeviceKey, tuple[Finding, ...]] = {}
    for finding in findings:
        if finding.severity == vocabulary.CRITICAL:
            critical[finding.device] = (*critical.get(finding.device, ()), finding)
    fields = []
    parents: dict[tuple[str, str], tuple[Reason, ...]] = {}
    for line in lines:
        if line.status == report.UNKNOWN:
            continue
        reasons, owner, key = line.reasons, None, DeviceKey(line.kind, line.identifier or '')
        if line.identifier is not None:
            # The cordon of a whole parent is shown once, at the parent.
            reasons = tuple(reason for reason in line.reasons if reason.parent is None)
            if line.status in (report.HELD, report.RELEASING):
                owner = owners.get(key)
        elif line.status == report.WITHHELD and line.parent is not None:
            parents[line.kind, line.parent], reasons = reasons, ()
            if not line.amount:
                continue
        fields.append((line.numa_node, line.parent, Field(
            line.kind, line.identifier, line.status, line.amount, line.resource_class, owner, reasons, line.wipe,
            serial_of(line.details), critical.get(key, ()), histories.get(key, ()))))
    unread = tuple(UnreadPart(line.kind, line.reason) for line in lines if line.status == report.UNKNOWN)
    worst_first = sorted(findings, key=lambda finding: vocabulary.SEVERITIES.index(finding.severity))
    return HostPicture(name, True, _nodes(fields, parents), tuple(worst_first), unread, tuple(events[:_EVENTS]),
                       report_only)


def stored(name: str, records: Sequence[Record], marks: Marks, events: Sequence[Event] = ()) -> HostPicture:
    """Make the picture of a host from the store alone."""
    return read(name, report.stored(records, marks), (), records, events)._replace(is_read=False)


def _histories(events: Sequence[Event]) -> dict[DeviceKey, tuple[Event, ...]]:
    """Return the last events of each device."""
    found: dict[DeviceKey, list[Event]] = {}
    for one in events:
        if one.device_key is not None:
            found.setdefault(one.device_key, []).append(one)
    return {key: tuple(some[:_EVENTS_OF_DEVICE]) for key, some in found.items()}


def _nodes(fields: Iterable[tuple[int | None, str | None, Field]],
           withheld: Mapping[tuple[str, str], tuple[Reason, ...]]) -> tuple[NodePicture, ...]:
    """Group the fields by node and parent; ``withheld`` has the reasons of whole parents, by kind and name."""
    grouped: dict[int | None, dict[_Group, list[Field]]] = {}
    for numa_node, parent, field in fields:
        group = field.kind, parent, field.resource_class if parent is None else None
        grouped.setdefault(numa_node, {}).setdefault(group, []).append(field)
    there = {(kind, parent) for parents in grouped.values() for kind, parent, _class in parents}
    for kind, parent in withheld:
        if (kind, parent) not in there:     # a withheld parent without devices is shown all the same
            grouped.setdefault(None, {})[kind, parent, None] = []
    return tuple(NodePicture(number, tuple(
        ParentPicture(kind, parent, tuple(sorted(parents[kind, parent, of_class], key=_place)),
                      withheld.get((kind, parent or ''), ()))
        for kind, parent, of_class in sorted(
            parents, key=lambda group: (group[0], natural.key(group[1]), group[2] or ''))))
        for number, parents in sorted(grouped.items(), key=lambda item: natural.key(item[0])))


def _place(field: Field) -> tuple[Any, ...]:
    return natural.key(field.identifier), field.resource_class or ''
