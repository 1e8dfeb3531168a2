"""What a flavor's extra specs ask of devices.

``hw:pmem`` lists labels of persistent-memory namespaces in the order of the guest. ``resources:CLASS`` and the grouped
``resources_GROUP:CLASS`` are amounts of resource classes. ``hw:pci_numa_affinity_policy`` says how strictly devices
follow the guest's NUMA nodes, and ``socket`` means ``preferred`` there. All other extra specs are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
import re
from typing import NamedTuple

from devicetrack import exception
from devicetrack import vocabulary

# The compute service's own tracker counts these on every host.
OF_THE_SERVICE = frozenset(('VCPU', 'PCPU', 'MEMORY_MB', 'DISK_GB'))

_RESOURCES = re.compile(r'resources(?:\d+|_[A-Za-z0-9_-]{1,64})?:(?P<resource_class>.+)')
_RESOURCE_CLASS = re.compile(r'[A-Z0-9_]{1,255}')
_PMEM = 'hw:pmem'
_POLICY = 'hw:pci_numa_affinity_policy'
_SOCKET = 'socket'
_DIGITS = 32                                # Python has an error of its own for numbers of thousands of digits


class Needs(NamedTuple):
    """What a flavor needs.

    ``order`` has one resource class for each namespace of ``hw:pmem``, in the order of the guest. ``amounts`` has the
    amount of each resource class, these namespaces included, without :data:`OF_THE_SERVICE`. ``policy`` is None when
    the flavor names none.
    """

    order: tuple[str, ...]
    amounts: dict[str, int]
    policy: str | None


def read(extra_specs: Mapping[str, str]) -> Needs:
    """Read the needs of a flavor.

    :raises BadRequest: a value is not valid; the error names the extra spec
    """
    if not isinstance(extra_specs, Mapping) or not all(isinstance(name, str) for name in extra_specs):
        raise exception.BadRequest('flavor.extra_specs', extra_specs, 'must be a mapping by name')
    order: tuple[str, ...] = ()
    amounts: dict[str, int] = {}
    policy = None
    for name, value in extra_specs.items():
        if name == _PMEM:
            order = _labels(value)
        elif name == _POLICY:
            # Of a device the NUMA node is known and the socket is not: near is on the same socket too.
            policy = vocabulary.PREFERRED if value == _SOCKET else value
            if policy not in vocabulary.NUMA_AFFINITY_POLICIES:
                raise exception.BadRequest(
                    name, value, f'must be one of {", ".join(vocabulary.NUMA_AFFINITY_POLICIES)}')
        elif name.startswith('resources') and (match := _RESOURCES.fullmatch(name)):
            resource_class = match['resource_class']
            if not _RESOURCE_CLASS.fullmatch(resource_class):
                raise exception.BadRequest(name, value, 'a resource class has capital letters, digits and _ only')
            if resource_class not in OF_THE_SERVICE:
                amounts[resource_class] = amounts.get(resource_class, 0) + _amount(name, value)
    for resource_class in order:
        amounts[resource_class] = amounts.get(resource_class, 0) + 1
    return Needs(order, amounts, policy)


def _labels(value: str) -> tuple[str, ...]:
    if not isinstance(value, str):
        raise exception.BadRequest(_PMEM, value, 'must be labels separated by commas')
    labels = [label.strip() for label in value.split(',')]
    if not all(labels):
        raise exception.BadRequest(_PMEM, value, 'must be labels separated by commas, none of them empty')
    return tuple(vocabulary.pmem_resource_class(label) for label in labels)


def _amount(name: str, value: str) -> int:
    """The amount that a flavor asks for; with ``resources:CLASS=0`` it asks for none.

    A flavor also names classes that count no devices of ours, such as a port's bandwidth in kilobits per second. So no
    amount is too large here. Whoever knows which classes are ours sees that the allocations hold as much of them.
    """
    text = str(value)
    if not (text.isascii() and text.isdigit()):
        raise exception.BadRequest(name, value, 'must be a whole number, 0 or more')
    if len(text) > _DIGITS:
        raise exception.BadRequest(name, value, f'must have at most {_DIGITS} digits')
    return int(text)
