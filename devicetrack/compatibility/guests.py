"""What a guest has on the host where it is, by the rows of the store and by what the host declares."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
from typing import NamedTuple

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.compatibility.facts import Facts
from devicetrack.compatibility.facts import facts_undeclared
from devicetrack.compatibility.facts import Sort
from devicetrack.compatibility.facts import TypeAtParent
from devicetrack.compatibility.host_facts import HostFacts
from devicetrack.objects import DeviceAssignment
from devicetrack.objects.values import Record


class GuestDevice(NamedTuple):
    """A device that an instance has. Without ``facts`` its host declares nothing of it, and ``untold`` says so."""

    record: Record
    sort: Sort
    facts: Facts | None
    untold: str = ''


class Guest(NamedTuple):
    """An instance on the host where it is, and what it has there."""

    source: HostFacts
    devices: tuple[GuestDevice, ...]


def find(instance_uuid: str, rows: Iterable[Record], names: Mapping[str, str], hosts: Mapping[str, HostFacts]) -> Guest:
    """The devices that an instance has now, and what their host declares of them.

    :param rows: all of the instance, wherever they are
    :param names: of hosts, by UUID
    :param hosts: what they declare, by name
    :raises MigrationUntold: the rows have the instance nowhere, or at two hosts
    """
    records = [row for row in rows if row.role == vocabulary.CURRENT and row.state != vocabulary.RELEASING]
    found = sorted({names.get(record.host_uuid, record.host_uuid) for record in records})
    if not found:
        raise exception.MigrationUntold(instance_uuid, 'the store has no device that it has now')
    if len(found) > 1:
        raise exception.MigrationUntold(instance_uuid, f'the store has it at {" and at ".join(found)}')
    host = hosts.get(found[0], HostFacts(found[0]))
    return Guest(host, tuple(_device(record, host) for record in records))


def _device(record: Record, host: HostFacts) -> GuestDevice:
    try:
        sort = facts_undeclared(DeviceAssignment.from_record(record)).sort
    except (exception.UnknownObject, exception.MalformedObject) as error:
        return GuestDevice(record, Sort(record.kind, ''), None, f'at the source, its row cannot be read: {error}')
    about = TypeAtParent(record.kind, record.parent, sort.type)
    for one in host.declarations:
        if one.about == about:
            return GuestDevice(record, sort, one.facts)
    for unread in host.unread:
        if unread.about == about:
            return GuestDevice(record, sort, None, f'at the source, {unread.problem}')
    return GuestDevice(record, sort, None, f'at the source, host {host.host} declares nothing of it')
