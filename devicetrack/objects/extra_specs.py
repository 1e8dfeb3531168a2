"""What a flavor's extra specs ask of devices.

``hw:pmem`` lists labels of persistent-memory namespaces in the order of the guest. ``resources:CLASS`` and the grouped
``resources_GROUP:CLASS`` are amounts of resource classes. ``pci_passthrough:alias`` lists names of PCI functions, each
with a number, in the order of the guest; it is read where the host has such names. ``hw:pci_numa_affinity_policy`` says
how strictly devices follow the guest's NUMA nodes, and ``socket`` means ``preferred`` there. All other extra specs are
ignored.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Mapping
import re
from typing import NamedTuple

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.objects.pci_alias import PCIAlias

# The compute service's own tracker counts these on every host.
OF_THE_SERVICE = frozenset(('VCPU', 'PCPU', 'MEMORY_MB', 'DISK_GB'))

_RESOURCES = re.compile(r'resources(?:\d+|_[A-Za-z0-9_-]{1,64})?:(?P<resource_class>.+)')
_RESOURCE_CLASS = re.compile(r'[A-Z0-9_]{1,255}')
_PMEM = 'hw:pmem'
_POLICY = 'hw:pci_numa_affinity_policy'
_ALIAS = 'pci_passthrough:alias'
_STRICTEST_FIRST = (vocabulary.REQUIRED, vocabulary.LEGACY, vocabulary.PREFERRED)
_DIGITS = 32                                # Python has an error of its own for numbers of thousands of digits
_NAME_AND_COUNT = re.compile(rf'(?P<name>[^:]*[^:\s])\s*:\s*(?P<count>[0-9]{{1,{_DIGITS}}})')


class Needs(NamedTuple):
    """What a flavor needs.

    ``order`` has one resource class for each namespace of ``hw:pmem``, in the order of the guest, and after them one
    for each function of ``pci_passthrough:alias``. ``amounts`` has the amount of each resource class, these devices
    included, without :data:`OF_THE_SERVICE`. ``policy`` is the flavor's own. If it names none, it is the strictest of
    its aliases, for all of its devices: a request has one policy. It is None when neither names one.
    """

    order: tuple[str, ...]
    amounts: dict[str, int]
    policy: str | None


def read(extra_specs: Mapping[str, str], aliases: Mapping[str, PCIAlias] | None = None,
         ours: Collection[str] | None = None) -> Needs:
    """Read the needs of a flavor.

    :param aliases: the names that ``pci_passthrough:alias`` may have; None leaves that extra spec to others
    :param ours: the resource classes that count devices here. Functions of an alias for others are left out, because
        the service hands them out itself. None means that every class counts
    :raises BadRequest: a value is not valid; the error names the extra spec
    """
    if not isinstance(extra_specs, Mapping) or not all(isinstance(name, str) for name in extra_specs):
        raise exception.BadRequest('flavor.extra_specs', extra_specs, 'must be a mapping by name')
    namespaces: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()
    amounts: dict[str, int] = {}
    policy = of_aliases = None
    for name, value in extra_specs.items():
        if name == _PMEM:
            namespaces = _labels(value)
        elif name == _ALIAS:
            if aliases is not None:
                functions, of_aliases = _functions(value, aliases, ours)
        elif name == _POLICY:
            policy = str(vocabulary.numa_policy(value))
            if policy not in vocabulary.NUMA_AFFINITY_POLICIES:
                raise exception.BadRequest(
                    name, value, f'must be one of {", ".join(vocabulary.NUMA_AFFINITY_POLICIES)}')
        elif name.startswith('resources') and (match := _RESOURCES.fullmatch(name)):
            resource_class = match['resource_class']
            if not _RESOURCE_CLASS.fullmatch(resource_class):
                raise exception.BadRequest(name, value, 'a resource class has capital letters, digits and _ only')
            if resource_class not in OF_THE_SERVICE:
                amounts[resource_class] = amounts.get(resource_class, 0) + _amount(name, value)
    order = namespaces + functions
    for resource_class in order:
        amounts[resource_class] = amounts.get(resource_class, 0) + 1
    return Needs(order, amounts, policy or of_aliases)


def asked_aliases(extra_specs: Mapping[str, str], aliases: Mapping[str, PCIAlias]) -> list[PCIAlias]:
    """Return the aliases by which a flavor asks for PCI functions; those that this host does not know are left out.

    For guests that have their functions already: it takes any value.
    """
    names = (item.partition(':')[0].strip() for item in str(extra_specs.get(_ALIAS, '')).split(','))
    return [aliases[name] for name in names if name in aliases]


def _functions(value: str, aliases: Mapping[str, PCIAlias],
               ours: Collection[str] | None) -> tuple[tuple[str, ...], str | None]:
    """The resource class of each PCI function, and the strictest policy of the aliases that stand for them."""
    if not isinstance(value, str):
        raise exception.BadRequest(_ALIAS, value, 'must be NAME:COUNT, separated by commas')
    counted: list[tuple[str, int]] = []
    policies = set()
    for item in value.split(','):
        match = _NAME_AND_COUNT.fullmatch(item.strip())
        if match is None:
            raise exception.BadRequest(_ALIAS, value, f'{exception.shown(item.strip(), 80)!r} is not NAME:COUNT, the '
                                                      f'count a whole number of at most {_DIGITS} digits')
        name, amount = match['name'], int(match['count'])
        if name not in aliases:
            raise exception.BadRequest(_ALIAS, value, f'no alias has the name {name!r}; this host has '
                                                      f'{", ".join(sorted(aliases)) or "none"}')
        classes = aliases[name].resource_classes
        if amount and (ours is None or not set(classes).isdisjoint(ours)):
            if len(classes) > 1:
                raise exception.BadRequest(
                    _ALIAS, value, f'the alias {name!r} stands for {" or ".join(classes)}, and a request names one '
                                   'class: give all of its objects the same resource_class')
            counted.append((classes[0], amount))
            policies.add(aliases[name].numa_policy)
    if sum(amount for _class, amount in counted) > vocabulary.MAX_AMOUNT:
        raise exception.BadRequest(_ALIAS, value, f'must ask for at most {vocabulary.MAX_AMOUNT} functions')
    return (tuple(resource_class for resource_class, amount in counted for _ in range(amount)),
            next((policy for policy in _STRICTEST_FIRST if policy in policies), None))


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
