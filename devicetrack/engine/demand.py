"""The request of a claim, in the form that the ledger works on."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import itertools
from types import MappingProxyType
from typing import Any
from typing import NamedTuple
from typing import TypeVar

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.engine import shares
from devicetrack.objects import choice
from devicetrack.objects import details as stored_details
from devicetrack.objects import extra_specs as specs
from devicetrack.objects.choice import Choice
from devicetrack.objects.network_port import Port
from devicetrack.objects.pci_alias import PCIAlias


class Item(NamedTuple):
    """An amount of devices of one resource class, from one provider; None means any provider of this host.

    ``accepts`` limits the devices: it gets the parent's name and the details of a device, and says whether a claim may
    take it. With ``choices`` each device fits at least one choice; ``resource_class`` is then the class of the first
    choice. ``numa_policy`` is the policy for these devices, in place of the demand's.
    """

    resource_class: str
    amount: int
    provider_uuid: str | None = None
    accepts: Callable[[str | None, str], bool] | None = None
    choices: tuple[Choice, ...] = ()
    numa_policy: str | None = None


class Demand(NamedTuple):
    """Everything that one claim wants, in the order of the request.

    ``order`` names the resource class of the first, second, … device of the guest; devices that it does not name
    follow in the order of the items. ``skipped`` are the providers of other hosts that the request names too.
    ``alternatives`` has items that ask for the same devices, divided among the providers in other ways. ``ports`` has
    the port of the first, second, … device of the guest, with None for a device that is not a port; it is empty if no
    device is one.
    """

    items: tuple[Item, ...]
    order: tuple[str, ...] = ()
    numa_nodes: frozenset[int | None] = frozenset()
    numa_policy: str = vocabulary.NONE
    skipped: tuple[str, ...] = ()
    alternatives: tuple[tuple[Item, ...], ...] = ()
    ports: tuple[Port | None, ...] = ()

    def as_asked(self) -> Demand:
        """Return the demand without ``accepts``, which only this process can use."""
        return self.with_items(tuple(item._replace(accepts=None) for item in self.items))

    def with_items(self, items: tuple[Item, ...]) -> Demand:
        """Return the demand with these items and no alternatives."""
        return self._replace(items=items, alternatives=())


NOTHING = Demand(())
_CUSTOM = 'CUSTOM_'
_NONE_BELOW: Mapping[str, Collection[str]] = MappingProxyType({})
_NO_NEEDS = specs.Needs((), (), {}, None)


def from_allocations(allocations: Any, providers: Collection[str], ours: Collection[str],
                     extra_specs: Mapping[str, str] | None = None,
                     below: Mapping[str, Collection[str]] = _NONE_BELOW, certain: bool = True,
                     aliases: Mapping[str, PCIAlias] | None = None,
                     image_properties: specs.Properties | None = None,
                     may_count: Callable[[str], bool | None] = specs.nobody_knows) -> Demand:
    """Read placement's allocations ``{provider UUID: {'resources': {CLASS: amount}}}``, and compare them with the need.

    This is the one place where the need of an instance is compared with what it gets; every claim goes through it.
    The classes of :class:`~devicetrack.objects.extra_specs.Counted` count here. So does a custom class at our own
    providers, unless ``may_count`` says that it is somebody else's: options that are gone may have named it. The claim
    has all that was asked of these classes, or is refused. It leaves every other class to other software: processors,
    bandwidth, accelerators.

    The allocations of an instance that moves may name providers of both hosts. The parts at providers of other hosts
    are skipped, if the part at this host is certainly complete: if it covers the flavor's need or, if the flavor names
    none, if it has at least as much of each class as there is elsewhere.

    :param providers: UUIDs of this host's providers
    :param ours: the resource classes that count our devices
    :param extra_specs: the flavor's, when known: they order the devices, and the allocations must not hold less
    :param below: by provider, the classes that only providers below it count. What is allocated at the provider comes
        from any of those below it. Other software also counts at these providers
    :param certain: whether ``providers`` are all of this host's; if not, only the flavor's need counts
    :param aliases: the names that the flavor's ``pci_passthrough:alias`` may have; None leaves that extra spec to
        others. Functions whose alias names only classes that do not count here are left to others too
    :param image_properties: those of the guest's image, when known, for its NUMA policy
    :param may_count: as :meth:`.virt.driver.VirtDriver.may_count`, for the classes that are not in ``ours``
    :raises BadRequest: the allocations have another shape, or hold less than the flavor needs, or flavor and image have
        different policies
    :raises UnknownProvider: devices were allocated on unknown providers, and fewer or none on those of this host
    """
    if allocations is None:
        allocations = {}
    # Nearly all of these are dictionaries: isinstance() takes many times as long to find that one is a Mapping.
    if not isinstance(allocations, (dict, Mapping)):
        raise exception.BadRequest('allocations', type(allocations).__name__, 'must be a mapping by provider UUID')
    counted = specs.Counted(ours, may_count)
    needs = specs.read(extra_specs, aliases, counted) if extra_specs else _NO_NEEDS
    items = []
    elsewhere: dict[str, dict[str, int]] = {}
    for provider, allocation in allocations.items():
        resources = allocation.get('resources') if isinstance(allocation, (dict, Mapping)) else None
        if not isinstance(resources, (dict, Mapping)):
            raise exception.BadRequest(
                f'allocations[{provider}]', allocation, "must be {'resources': {CLASS: amount}}")
        is_own = provider in providers and bool(below) and provider not in below
        for resource_class, amount in resources.items():
            # Other software has no such class either, so to skip it would leave out what somebody asked for.
            if not isinstance(resource_class, str) or vocabulary.PLACEMENT_NAME.fullmatch(resource_class) is None:
                raise exception.BadRequest(f'allocations[{provider}]', resource_class,
                                           'a resource class must be of capital letters, digits and _ only')
            if resource_class in counted or (
                    is_own and resource_class.startswith(_CUSTOM) and may_count(resource_class) is None):
                if type(amount) is not int or not 0 < amount <= vocabulary.MAX_AMOUNT:
                    raise exception.BadRequest(f'allocations[{provider}][{resource_class}]', amount,
                                               f'must be a whole number from 1 to {vocabulary.MAX_AMOUNT}')
                if provider in providers:
                    items.append(Item(resource_class, amount,
                                      None if resource_class in below.get(provider, ()) else provider))
                elif needs.amounts.get(resource_class) or not (extra_specs and specs.ACCELERATORS in extra_specs):
                    elsewhere.setdefault(str(provider), {})[resource_class] = amount
    policy = specs.numa_policy(needs.policy, image_properties if items else None)
    if elsewhere:
        _check_complete(items, elsewhere, needs, providers, certain)
    demand = Demand(tuple(items), needs.namespaces, numa_policy=policy or vocabulary.NONE, skipped=tuple(elsewhere))
    if not extra_specs:
        return demand
    _check_enough(items, needs, counted)
    return demand if not needs.functions else _for_functions(demand, needs, policy)


def _for_functions(demand: Demand, needs: specs.Needs, policy: str | None) -> Demand:
    """Choose the items that supply the functions which the flavor asks for by alias.

    :param policy: replaces the policies of the aliases
    :raises BadRequest: too little was allocated for all aliases together
    """
    allocated: dict[str, int] = {}
    for item in demand.items:
        allocated[item.resource_class] = allocated.get(item.resource_class, 0) + item.amount
    free = {name: amount - needs.amounts.get(name, 0) for name, amount in allocated.items()}
    given = shares.classes([(choice.classes(one.choices), one.amount) for one in needs.functions], free)
    if given is None:
        raise exception.BadRequest(
            'allocations', allocated, 'the flavor needs ' + ' and '.join(
                f'{one.amount} {" or ".join(choice.classes(one.choices))}' for one in needs.functions))
    order = [resource_class for one in given for resource_class, amount in one.items() for _ in range(amount)]
    ways: list[list[list[Item]]] = []           # for each class, the ways to share out its items
    counted = list(dict.fromkeys(order))
    for resource_class in counted:
        ways.append(list(_ways(
            [item for item in demand.items if item.resource_class == resource_class],
            [(Item(resource_class, one[resource_class], None, None,
                   tuple(choice for choice in asked.choices if choice.resource_class == resource_class),
                   policy or asked.numa_policy))
             for asked, one in zip(needs.functions, given, strict=True) if resource_class in one])))
    others = tuple(item for item in demand.items if item.resource_class not in counted)
    first, *alternatives = (others + tuple(itertools.chain.from_iterable(way))
                            for way in itertools.islice(itertools.product(*ways), shares.MOST))
    return demand._replace(items=first, alternatives=tuple(alternatives), order=(*demand.order, *order))


def _ways(items: Sequence[Item], asked: Sequence[Item]) -> Iterator[list[Item]]:
    """The ways to take the named functions from the items of one class. The rest of an item may be any device."""
    same = len({(one.choices, one.numa_policy) for one in asked}) == 1
    if same and sum(one.amount for one in asked) == sum(item.amount for item in items):
        yield [item._replace(choices=asked[0].choices, numa_policy=asked[0].numa_policy) for item in items]
        return
    for way in shares.ways([one.amount for one in asked], [item.amount for item in items]):
        left = [item.amount for item in items]
        shared = []
        for one, amounts in zip(asked, way, strict=True):
            for index, amount in amounts.items():
                shared.append(one._replace(amount=amount, provider_uuid=items[index].provider_uuid))
                left[index] -= amount
        yield shared + [item._replace(amount=amount) for item, amount in zip(items, left, strict=True) if amount]


def _check_complete(items: Sequence[Item], elsewhere: Mapping[str, Mapping[str, int]], needs: specs.Needs,
                    providers: Collection[str], certain: bool) -> None:
    """Check that the allocations at unknown providers are for another host, and are no part of this host's.

    After a mistake (a resolver that returns other UUIDs than the scheduler has, a parent that is gone) this host has
    less of a class than the unknown providers, or nothing.
    """
    classes = sorted({resource_class for resources in elsewhere.values() for resource_class in resources})
    amounts = _certain_amounts(needs)
    for resource_class in classes:
        here = _amount_of(resource_class, items)
        there = sum(resources.get(resource_class, 0) for resources in elsewhere.values())
        needed = amounts.get(resource_class, 0)
        if here < (needed or there) or not (needed or certain):
            first, *others = elsewhere
            raise exception.UnknownProvider(first, classes, providers, others)


def _check_enough(items: Sequence[Item], needs: specs.Needs, counted: specs.Counted) -> None:
    """Refuse a flavor that needs more than the allocations hold: its guest would boot with less, in silence."""
    for resource_class, needed in _certain_amounts(needs).items():
        if needed and resource_class in counted:
            found = _amount_of(resource_class, items)
            if found < needed:
                raise exception.BadRequest(
                    'allocations', {resource_class: found},
                    f'the flavor needs {needed} {resource_class}, allocated on providers of this host is {found}')


def _certain_amounts(needs: specs.Needs) -> Mapping[str, int]:
    """The least amount of each class, without the functions that may be of several classes."""
    if not needs.functions:
        return needs.amounts
    amounts = dict(needs.amounts)
    for one in needs.functions:
        if len(counted := choice.classes(one.choices)) == 1:
            amounts[counted[0]] = amounts.get(counted[0], 0) + one.amount
    return amounts


def _amount_of(resource_class: str, items: Sequence[Item]) -> int:
    return sum([item.amount for item in items if item.resource_class == resource_class])


def from_request(request: Any, providers: Collection[str]) -> Demand:
    """Read a :class:`devicetrack.objects.DeviceRequest`.

    :raises BadRequest: a field is not set, or an amount is out of range
    :raises UnknownProvider: it names a provider that this host does not have
    """
    items: list[Item] = []
    ports: list[tuple[int, list[Port]]] = []        # for each RequestedDevices, its amount and its ports
    _check_set(request, 'request')
    for index, wanted in enumerate(request.wanted):
        _check_set(wanted, f'wanted[{index}]')
        if not 0 < wanted.amount <= vocabulary.MAX_AMOUNT:
            raise exception.BadRequest(f'wanted[{index}].amount', wanted.amount,
                                       f'must be a whole number from 1 to {vocabulary.MAX_AMOUNT}')
        if wanted.provider_uuid is not None and wanted.provider_uuid not in providers:
            raise exception.UnknownProvider(wanted.provider_uuid, [wanted.resource_class], providers)
        for number, one in enumerate(wanted.choices):
            _check_set(one, f'wanted[{index}].choices[{number}]')
        item = Item(wanted.resource_class, wanted.amount, wanted.provider_uuid, None,
                    tuple(one.as_choice() for one in wanted.choices), wanted.numa_affinity_policy)
        some = _ports(wanted, f'wanted[{index}]') if wanted.networks else []
        items += [item._replace(amount=1, choices=(port.choice(wanted.resource_class),)) for port in some] or [item]
        ports.append((wanted.amount, some))
    return Demand(tuple(items), (), frozenset(request.numa_nodes), request.numa_affinity_policy,
                  ports=_by_device(ports))


def _ports(wanted: Any, where: str) -> list[Port]:
    """The ports of requested devices.

    :raises BadRequest: a port is not valid, or there are more or fewer ports than devices
    """
    if wanted.amount != len(wanted.networks) or wanted.choices:
        raise exception.BadRequest(f'{where}.networks', len(wanted.networks),
                                   f'there must be one for each of the {wanted.amount} devices, and no choices')
    ports = []
    for number, one in enumerate(wanted.networks):
        _check_set(one, f'{where}.networks[{number}]')
        ports.append(one.as_port())
        try:
            ports[-1].check()
        except ValueError as error:
            raise exception.BadRequest(f'{where}.networks[{number}]', tuple(ports[-1]), str(error)) from error
    return ports


def _by_device(ports: Sequence[tuple[int, Sequence[Port]]]) -> tuple[Port | None, ...]:
    """The ports in the form of a demand.

    :raises BadRequest: two ports have the same MAC address
    """
    seen: set[str] = set()
    for port in itertools.chain.from_iterable(some for _amount, some in ports):
        if port.mac in seen:
            raise exception.BadRequest('networks', port.mac, 'two ports have this MAC address: give each its own')
        seen.add(port.mac)
    if not seen:
        return ()
    return tuple(itertools.chain.from_iterable(some or itertools.repeat(None, amount) for amount, some in ports))


def of_row(details: str) -> Demand | None:
    """The port that a device must be to replace the device of a row; None if that device is not a port.

    :raises UnknownObject, MalformedObject: the row cannot be read
    """
    port = stored_details.port_of(details)
    return None if port is None else NOTHING._replace(ports=(port,))


def _check_set(one: Any, where: str) -> None:
    unset = one.unset_fields()
    if unset:
        raise exception.BadRequest(where, ', '.join(unset), 'must be set')


Held = TypeVar('Held')


def arrange(held: Sequence[Held], classes: Sequence[str], order: Sequence[str]) -> list[Held]:
    """Put the taken devices, whose resource classes are in ``classes``, into the order of the guest."""
    if not order or len(held) == 1:
        return list(held)
    waiting: dict[str, list[Held]] = {}
    for one, resource_class in zip(held, classes, strict=True):
        waiting.setdefault(resource_class, []).append(one)
    arranged = []
    for resource_class in order:
        if waiting.get(resource_class):
            arranged.append(waiting[resource_class].pop(0))
    return arranged + [one for rest in waiting.values() for one in rest]
