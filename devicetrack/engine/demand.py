"""The request of a claim, in the form that the ledger works on."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any
from typing import NamedTuple
from typing import TypeVar

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.objects import extra_specs as specs
from devicetrack.objects.pci_alias import PCIAlias


class Item(NamedTuple):
    """So many devices of a resource class, from one provider or (None) from any of this host.

    ``accepts`` limits them: it gets the parent's name and the details of a device, and says whether it may be taken.
    """

    resource_class: str
    amount: int
    provider_uuid: str | None = None
    accepts: Callable[[str | None, str], bool] | None = None


class Demand(NamedTuple):
    """Everything that one claim wants, in the order of the request.

    ``order`` names the resource class of the first, second, … device of the guest; devices that it does not name
    follow in the order of the items. ``skipped`` are the providers of other hosts that the request names too.
    """

    items: tuple[Item, ...]
    order: tuple[str, ...] = ()
    numa_nodes: frozenset[int | None] = frozenset()
    numa_policy: str = vocabulary.NONE
    skipped: tuple[str, ...] = ()

    def as_asked(self) -> Demand:
        """The same without ``accepts``, which is of use in this process only."""
        return self._replace(items=tuple(item._replace(accepts=None) for item in self.items))


NOTHING = Demand(())
_NONE_BELOW: Mapping[str, Collection[str]] = MappingProxyType({})
_NO_NEEDS = specs.Needs((), {}, None)


def from_allocations(allocations: Any, providers: Collection[str], ours: Collection[str],
                     extra_specs: Mapping[str, str] | None = None,
                     below: Mapping[str, Collection[str]] = _NONE_BELOW, certain: bool = True,
                     aliases: Mapping[str, PCIAlias] | None = None) -> Demand:
    """Read placement's allocations ``{provider UUID: {'resources': {CLASS: amount}}}``.

    Those of an instance that moves may name providers of both hosts. What is allocated at providers that are not of
    this host is skipped, where what is allocated here is surely all that was meant for here: the flavor's need, or, if
    the flavor says none, no less of each class than is allocated elsewhere.

    :param providers: UUIDs of this host's providers
    :param ours: the resource classes that count our devices; every other class is skipped
    :param extra_specs: the flavor's, when known: they order the devices, and the allocations must not hold less
    :param below: by provider, the classes that only providers below it count: allocated at it, they come from any of
        them
    :param certain: whether ``providers`` are all of this host's; if not, only the flavor's need counts
    :param aliases: the names that the flavor's ``pci_passthrough:alias`` may have; None leaves that extra spec to
        others, and so are functions of an alias for classes that are not ``ours``
    :raises BadRequest: the allocations have another shape, or hold less than the flavor needs
    :raises UnknownProvider: devices were allocated on providers that are not of this host, and nothing here or less
    """
    if allocations is None or allocations == {}:
        return NOTHING
    if not isinstance(allocations, Mapping):
        raise exception.BadRequest('allocations', type(allocations).__name__, 'must be a mapping by provider UUID')
    items = []
    elsewhere: dict[str, dict[str, int]] = {}
    for provider, allocation in allocations.items():
        resources = allocation.get('resources') if isinstance(allocation, Mapping) else None
        if not isinstance(resources, Mapping):
            raise exception.BadRequest(
                f'allocations[{provider}]', allocation, "must be {'resources': {CLASS: amount}}")
        for resource_class, amount in resources.items():
            if resource_class in ours:
                if type(amount) is not int or not 0 < amount <= vocabulary.MAX_AMOUNT:
                    raise exception.BadRequest(f'allocations[{provider}][{resource_class}]', amount,
                                               f'must be a whole number from 1 to {vocabulary.MAX_AMOUNT}')
                if provider in providers:
                    items.append(Item(resource_class, amount,
                                      None if resource_class in below.get(provider, ()) else provider))
                else:
                    elsewhere.setdefault(str(provider), {})[resource_class] = amount
    needs = specs.read(extra_specs, aliases, ours) if extra_specs else _NO_NEEDS
    if elsewhere:
        _check_complete(items, elsewhere, needs, providers, certain)
    if not extra_specs:
        return Demand(tuple(items), skipped=tuple(elsewhere))
    _check_enough(items, needs, ours)
    return Demand(tuple(items), needs.order, numa_policy=needs.policy or vocabulary.NONE, skipped=tuple(elsewhere))


def _check_complete(items: Sequence[Item], elsewhere: Mapping[str, Mapping[str, int]], needs: specs.Needs,
                    providers: Collection[str], certain: bool) -> None:
    """See that what is allocated at providers of nobody here is another host's, and not a part of what is meant here.

    A mistake (a resolver that says other UUIDs than the scheduler has, a parent that is gone) shows as a class of which
    less is allocated here than elsewhere, or none.
    """
    classes = sorted({resource_class for resources in elsewhere.values() for resource_class in resources})
    for resource_class in classes:
        here = _amount_of(resource_class, items)
        there = sum(resources.get(resource_class, 0) for resources in elsewhere.values())
        needed = needs.amounts.get(resource_class, 0)
        if here < (needed or there) or not (needed or certain):
            first, *others = elsewhere
            raise exception.UnknownProvider(first, classes, providers, others)


def _check_enough(items: Sequence[Item], needs: specs.Needs, ours: Collection[str]) -> None:
    """A flavor that needs more than the allocations hold would boot a guest with less in silence."""
    for resource_class, needed in needs.amounts.items():
        if needed and (resource_class in ours or resource_class in needs.order):
            found = _amount_of(resource_class, items)
            if found < needed:
                raise exception.BadRequest(
                    'allocations', {resource_class: found},
                    f'the flavor needs {needed} {resource_class}, allocated on providers of this host is {found}')


def _amount_of(resource_class: str, items: Sequence[Item]) -> int:
    return sum(item.amount for item in items if item.resource_class == resource_class)


def from_request(request: Any, providers: Collection[str]) -> Demand:
    """Read a :class:`devicetrack.objects.DeviceRequest`.

    :raises BadRequest: a field is not set, or an amount is out of range
    :raises UnknownProvider: it names a provider that is not of this host
    """
    items = []
    _check_set(request, 'request')
    for index, wanted in enumerate(request.wanted):
        _check_set(wanted, f'wanted[{index}]')
        if not 0 < wanted.amount <= vocabulary.MAX_AMOUNT:
            raise exception.BadRequest(f'wanted[{index}].amount', wanted.amount,
                                       f'must be a whole number from 1 to {vocabulary.MAX_AMOUNT}')
        if wanted.provider_uuid is not None and wanted.provider_uuid not in providers:
            raise exception.UnknownProvider(wanted.provider_uuid, [wanted.resource_class], providers)
        items.append(Item(wanted.resource_class, wanted.amount, wanted.provider_uuid))
    return Demand(tuple(items), (), frozenset(request.numa_nodes), request.numa_affinity_policy)


def _check_set(one: Any, where: str) -> None:
    unset = one.unset_fields()
    if unset:
        raise exception.BadRequest(where, ', '.join(unset), 'must be set')


Held = TypeVar('Held')


def arrange(held: Sequence[Held], classes: Sequence[str], order: Sequence[str]) -> list[Held]:
    """Put the taken devices, whose resource classes are in ``classes``, into the order of the guest."""
    if not order:
        return list(held)
    waiting: dict[str, list[Held]] = {}
    for one, resource_class in zip(held, classes, strict=True):
        waiting.setdefault(resource_class, []).append(one)
    arranged = []
    for resource_class in order:
        if waiting.get(resource_class):
            arranged.append(waiting[resource_class].pop(0))
    return arranged + [one for rest in waiting.values() for one in rest]
