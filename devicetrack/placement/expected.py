"""What consumers should hold of a host's devices, by the record. Pure.

The consumer of a device is its instance, and for one that the instance moves away from, its migration: the move gave
the migration what the instance held, and the instance the new. A device counts one of its row's resource class.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple
from typing import TypeAlias

from devicetrack import vocabulary
from devicetrack.objects.values import Record
from devicetrack.placement import tree
from devicetrack.placement.values import Resources


class Share(NamedTuple):
    """What one consumer should hold of a host's devices.

    ``leaving`` is of devices on their way back: the consumer may hold it still beside ``held``, all or some of it, and
    need not. ``instance_uuid`` is the consumer's own UUID unless it is a migration.
    """

    instance_uuid: str
    held: Resources
    leaving: Resources


def consumer_of(record: Record) -> str:
    """Who holds the device of a row in placement."""
    if record.role == vocabulary.OLD and record.migration_uuid is not None:
        return record.migration_uuid
    return record.instance_uuid


def shares(records: Iterable[Record], root_uuid: str, layout: str) -> dict[str, Share]:
    """By consumer, what it should hold.

    :param records: rows of one host, each with the provider and resource class that its device is counted at now
    :param root_uuid: the node's provider, where everything is counted unless the layout is nested
    :param layout: as :mod:`devicetrack.placement.tree` names them
    """
    amounts: dict[str, tuple[_Amounts, _Amounts]] = {}
    instances: dict[str, str] = {}
    for record in records:
        consumer = consumer_of(record)
        instances[consumer] = record.instance_uuid
        held, leaving = amounts.setdefault(consumer, ({}, {}))
        part = leaving if record.state == vocabulary.RELEASING else held
        of_provider = part.setdefault(record.provider_uuid if layout == tree.NESTED else root_uuid, {})
        of_provider[record.resource_class] = of_provider.get(record.resource_class, 0) + 1
    return {consumer: Share(instances[consumer], held, leaving) for consumer, (held, leaving) in amounts.items()}


_Amounts: TypeAlias = dict[str, dict[str, int]]
