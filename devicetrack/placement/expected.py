"""Computes from the record which part of a host's devices each consumer should hold. Pure.

A device's consumer is its instance. If the instance moves away from the device, the consumer is the migration: the move
gave the old allocations to the migration, and new ones to the instance. A device counts as one of its row's resource
class.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple
from typing import TypeAlias

from devicetrack import vocabulary
from devicetrack.objects import DeviceAssignment
from devicetrack.objects.values import Record
from devicetrack.placement import tree
from devicetrack.placement.values import Resources

# A device that an instance has, by a manager or by the store.
Assigned: TypeAlias = DeviceAssignment | Record


class Share(NamedTuple):
    """The part of a host's devices that one consumer should hold.

    ``leaving`` counts devices that are being released: in addition to ``held``, the consumer may still hold all, some
    or none of them. ``instance_uuid`` is the consumer's own UUID unless the consumer is a migration.
    """

    instance_uuid: str
    held: Resources
    leaving: Resources


def consumer_of(record: Assigned) -> str:
    """Return the UUID of the consumer that holds the device of a row."""
    if record.role == vocabulary.OLD and record.migration_uuid is not None:
        return record.migration_uuid
    return record.instance_uuid


def shares(records: Iterable[Assigned], root_uuid: str, layout: str) -> dict[str, Share]:
    """Return each consumer's share, by its UUID.

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
