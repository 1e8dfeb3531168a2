"""Reads which devices a flavor's extra specs ask for, and the policy of the guest's image.

``hw:pmem`` lists labels of persistent-memory namespaces in the order of the guest. ``resources:CLASS`` and the grouped
``resources_GROUP:CLASS`` are amounts of resource classes. ``pci_passthrough:alias`` lists names of PCI functions, each
with a number, in the order of the guest; it is read where the host has such names. ``hw:pci_numa_affinity_policy`` says
how strictly devices follow the guest's NUMA nodes, and so does the image's ``hw_pci_numa_affinity_policy``.
``trait:NAME`` and the grouped ``trait_GROUP:NAME`` limit the devices; they are read where no scheduler follows them.
All other extra specs and properties are ignored, but for those that are one of these with a mistake.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Container
from collections.abc import Mapping
import difflib
import functools
import re
from typing import Any
from typing import NamedTuple
from typing import Protocol

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.objects.choice import Choice
from devicetrack.objects.pci_alias import PCIAlias
from devicetrack.objects.traits import is_of_device

# The compute service's own tracker counts these on every host.
OF_THE_SERVICE = frozenset(('VCPU', 'PCPU', 'MEMORY_MB', 'DISK_GB'))

# A group has any name that the scheduler reads as one. A line break in what follows is part of the name, so that the
# name is refused, and its devices are not left out.
_GROUP = '[A-Za-z0-9_-]{0,64}'
_RESOURCES = re.compile(f'resources{_GROUP}:(?P<resource_class>.+)', re.DOTALL)
_GROUPED = re.compile(f'(?P<what>resources|trait)(?P<group>{_GROUP}):(?P<name>.+)', re.DOTALL)
_GROUP_POLICY = 'group_policy'
# What a host is, by os-traits. It says nothing about a device, and is for the service's own tracker.
_OF_HOSTS = ('HW_CPU_', 'HW_ARCH_', 'COMPUTE_', 'STORAGE_')
_PMEM = 'hw:pmem'
_POLICY = 'hw:pci_numa_affinity_policy'
_POLICY_OF_IMAGE = 'hw_pci_numa_affinity_policy'
ALIAS = 'pci_passthrough:alias'
# It asks other software (Cyborg) for accelerators, and does not name their classes.
ACCELERATORS = 'accel:device_profile'
# How alike a mistaken name and the right one are. Compute services have "hw:pmu", whose likeness to "hw:pmem" is 0.77.
_ALIKE = 0.85
_ALIKE_START = 0.8                          # "triat" for "trait"
_NAMESPACE = vocabulary.pmem_resource_class('')
_FLAVORS = 100                              # a region has some dozens, and a claim reads one of them
_DIGITS = 32                                # Python has an error of its own for numbers of thousands of digits
_NAME_AND_COUNT = re.compile(rf'(?P<name>[^:]*[^:\s])\s*:\s*(?P<count>[0-9]{{1,{_DIGITS}}})')


class Properties(Protocol):
    """The image's properties, as far as they are read; a dictionary will do."""

    def get(self, name: str, /) -> Any: ...


class Asked(NamedTuple):
    """An amount of devices. Each of them fits at least one of the choices.

    ``numa_policy`` is that of the alias that asks for them; None without an alias.
    """

    choices: tuple[Choice, ...]
    amount: int
    numa_policy: str | None = None


class Needs(NamedTuple):
    """What a flavor needs.

    ``namespaces`` has one resource class for each namespace of ``hw:pmem``, in the order of the guest. ``functions`` is
    what ``pci_passthrough:alias`` asks for. ``amounts`` has the amount of each resource class, the namespaces included
    and the functions not, without :data:`OF_THE_SERVICE`. ``policy`` is the flavor's own, for all of its devices, or
    None when it names none.
    """

    namespaces: tuple[str, ...]
    functions: tuple[Asked, ...]
    amounts: dict[str, int]
    policy: str | None

    def classes(self, ours: Container[str]) -> frozenset[str]:
        """Return those of our classes that it asks for."""
        asked = {one.resource_class for function in self.functions for one in function.choices}
        return frozenset(name for name in asked.union(name for name, amount in self.amounts.items() if amount)
                         if name in ours)


def means_devices(resource_class: str) -> bool:
    """Whether a class in a flavor can only mean devices of this library, whatever the options name now."""
    return resource_class == 'VGPU' or resource_class.startswith(_NAMESPACE)


def nobody_knows(_resource_class: str) -> bool | None:
    """Answer as :meth:`devicetrack.virt.driver.VirtDriver.may_count` of a driver that knows nothing."""
    return None


class Counted(Container[str]):
    """The resource classes that can only count devices of this host, whether it has any or not.

    :param named: those that its options or its devices name
    :param may_count: of the driver, for all others
    """

    def __init__(self, named: Container[str], may_count: Callable[[str], bool | None] = nobody_knows) -> None:
        self._named, self._may_count = named, may_count

    def __contains__(self, name: object) -> bool:
        return name in self._named or (isinstance(name, str) and name not in OF_THE_SERVICE and (
            means_devices(name) or bool(self._may_count(name))))


def read(extra_specs: Mapping[str, str], aliases: Mapping[str, PCIAlias] | None = None,
         ours: Container[str] | None = None) -> Needs:
    """Read the needs of a flavor.

    :param aliases: the names that ``pci_passthrough:alias`` may have; None leaves that extra spec to others
    :param ours: the resource classes that count devices here. If an alias asks for other classes, its functions are
        left out, because the service hands them out itself. None means that every class counts
    :raises BadRequest: a value is not valid; the error names the extra spec
    """
    # Nearly every one is a dictionary: isinstance() takes many times as long to find that one is a Mapping.
    if not isinstance(extra_specs, (dict, Mapping)):
        raise exception.BadRequest('flavor.extra_specs', extra_specs, 'must be a mapping by name')
    namespaces: tuple[str, ...] = ()
    functions: tuple[Asked, ...] = ()
    amounts: dict[str, int] = {}
    policy = None
    for name, value in extra_specs.items():
        if name == _PMEM:
            namespaces = _labels(value)
        elif name == ALIAS:
            if aliases is not None:
                functions = _functions(value, aliases, ours)
        elif name == _POLICY:
            policy = _policy(name, value)
        elif not isinstance(name, str):
            raise exception.BadRequest('flavor.extra_specs', extra_specs, 'must be a mapping by name')
        elif name.startswith('resources') and (match := _RESOURCES.fullmatch(name)):
            resource_class = match['resource_class']
            if not vocabulary.PLACEMENT_NAME.fullmatch(resource_class):
                raise exception.BadRequest(name, value, 'a resource class has capital letters, digits and _ only')
            if resource_class not in OF_THE_SERVICE:
                amounts[resource_class] = amounts.get(resource_class, 0) + _amount(name, value)
        elif (meant := _meant(name)) is not None:
            raise exception.BadRequest(name, value, f'there is no such extra spec; is it {meant}?')
    for resource_class in namespaces:
        amounts[resource_class] = amounts.get(resource_class, 0) + 1
    return Needs(namespaces, functions, amounts, policy)


@functools.lru_cache(_FLAVORS)
def _meant(name: str) -> str | None:
    """Return the extra spec that a name has a mistake in. A guest would start without the devices."""
    if _GROUPED.fullmatch(name):
        return None
    prefix, colon, rest = name.partition(':')
    whole = difflib.get_close_matches(name, (_PMEM, ALIAS, _POLICY), 1, _ALIKE)
    start = difflib.get_close_matches(prefix, ('resources', 'trait'), 1, _ALIKE_START)
    return whole[0] if whole else f'{start[0]}:{rest}' if start and colon else None


def limited(extra_specs: Mapping[str, str]) -> list[Asked]:
    """Read the devices that a flavor limits by traits, each with one choice. They are a part of :attr:`Needs.amounts`.

    A host knows the traits that the types of its devices have by themselves. Only placement knows whether a provider
    has any other trait, since an operator may have set it there. So any other trait is refused, required or forbidden.
    So is a group of several devices: they come from one provider, which nobody has chosen.

    :raises BadRequest: nobody here can follow a trait or a group; the error names the extra spec
    """
    amounts: dict[str, dict[str, int]] = {}     # by group, those of devices with traits
    traits: dict[str, dict[str, str]] = {}
    with_namespaces = set[str]()
    for name, value in extra_specs.items():
        if match := _GROUPED.fullmatch(name):
            if match['what'] == 'trait':
                traits.setdefault(match['group'], {})[match['name']] = value
                continue
            of_group = amounts.setdefault(match['group'], {})
            if match['name'].startswith(_NAMESPACE):        # the node itself counts all of them, in one provider
                with_namespaces.add(match['group'])
            elif match['name'] not in OF_THE_SERVICE:
                of_group[match['name']] = _amount(name, value)
    groups = [group for group, of_group in amounts.items() if group and any(of_group.values())]
    if extra_specs.get(_GROUP_POLICY) == 'isolate' and len(groups) > 1:
        raise exception.BadRequest(_GROUP_POLICY, 'isolate', 'no scheduler has chosen providers that differ: let one '
                                                             'choose, and pass its allocations')
    for group, of_group in amounts.items():
        if group and sum(of_group.values()) > 1:
            raise exception.BadRequest(f'resources{group}', of_group, (
                'the devices of a group come from one provider, and no scheduler has chosen it: let one choose, and '
                'pass its allocations, or ask without a group'))
    found = []
    for group, asked in traits.items():
        devices = {name: amount for name, amount in amounts.get(group, {}).items() if amount}
        if group in amounts and not devices and group and group not in with_namespaces:
            continue                            # it limits processors or memory
        words: dict[str, set[str]] = {'required': set(), 'forbidden': set()}
        for trait, value in asked.items():
            if group or not trait.startswith(_OF_HOSTS):
                _check_trait(f'trait{group}:{trait}', trait, value, len(devices))
                words[value].add(trait)
        if any(words.values()):
            found += [Asked((Choice(name, frozenset(words['required']), frozenset(words['forbidden'])),), amount)
                      for name, amount in devices.items()]
    return found


def _check_trait(name: str, trait: str, value: str, classes: int) -> None:
    if value not in ('required', 'forbidden'):
        raise exception.BadRequest(name, value, 'must be required or forbidden')
    if not is_of_device(trait):
        raise exception.BadRequest(name, value, 'only the scheduler knows whether a provider has this trait: let it '
                                                'choose, and pass its allocations')
    if value == 'required' and classes != 1:
        raise exception.BadRequest(name, value, 'it is not certain which devices it limits: put it into a group '
                                                'with them, such as resources_A:VGPU and trait_A:…')


def asked_aliases(extra_specs: Mapping[str, str], aliases: Mapping[str, PCIAlias]) -> list[PCIAlias]:
    """Return the aliases by which a flavor asks for PCI functions, without those that this host does not know.

    It accepts any value, because it is for guests that have their functions already.
    """
    names = (item.partition(':')[0].strip() for item in str(extra_specs.get(ALIAS, '')).split(','))
    return [aliases[name] for name in names if name in aliases]


def numa_policy(of_flavor: str | None, image_properties: Properties | None) -> str | None:
    """The policy of the flavor or the image, which comes before the policies of aliases.

    :param of_flavor: :attr:`Needs.policy`
    :raises BadRequest: the image's policy is not valid, or both have one and they differ
    """
    said = None if image_properties is None else image_properties.get(_POLICY_OF_IMAGE)
    if said is None:
        return of_flavor
    of_image = _policy(_POLICY_OF_IMAGE, said)
    if of_flavor not in (None, of_image):
        raise exception.BadRequest(_POLICY_OF_IMAGE, said, f'the flavor says {of_flavor}: let one of them say nothing, '
                                                           'or both the same')
    return of_image


def has_policy(image_properties: Properties) -> bool:
    """Whether an image names a policy, which is then part of what its guests need."""
    return image_properties.get(_POLICY_OF_IMAGE) is not None


def _policy(name: str, value: Any) -> str:
    if value not in vocabulary.NUMA_AFFINITY_POLICIES:
        raise exception.BadRequest(name, value, f'must be one of {", ".join(vocabulary.NUMA_AFFINITY_POLICIES)}')
    return str(value)


def _functions(value: str, aliases: Mapping[str, PCIAlias], ours: Container[str] | None) -> tuple[Asked, ...]:
    """The functions that each alias asks for, with only its choices of our classes."""
    if not isinstance(value, str):
        raise exception.BadRequest(ALIAS, value, 'must be NAME:COUNT, separated by commas')
    asked = []
    for item in value.split(','):
        match = _NAME_AND_COUNT.fullmatch(item.strip())
        if match is None:
            raise exception.BadRequest(ALIAS, value, f'{exception.shown(item.strip(), 80)!r} is not NAME:COUNT, the '
                                                      f'count a whole number of at most {_DIGITS} digits')
        name, amount = match['name'], int(match['count'])
        if name not in aliases:
            raise exception.BadRequest(ALIAS, value, f'no alias has the name {name!r}; this host has '
                                                      f'{", ".join(sorted(aliases)) or "none"}')
        choices = tuple(choice for choice in aliases[name].asked if ours is None or choice.resource_class in ours)
        if amount and choices:
            asked.append(Asked(choices, amount, aliases[name].numa_policy))
    if sum(one.amount for one in asked) > vocabulary.MAX_AMOUNT:
        raise exception.BadRequest(ALIAS, value, f'must ask for at most {vocabulary.MAX_AMOUNT} functions')
    return tuple(asked)


def _labels(value: str) -> tuple[str, ...]:
    if not isinstance(value, str):
        raise exception.BadRequest(_PMEM, value, 'must be labels separated by commas')
    return _classes(value)


@functools.lru_cache(_FLAVORS)
def _classes(value: str) -> tuple[str, ...]:
    # Nova's API accepts a comma at the end, and Nova leaves out empty labels when it asks placement.
    labels = [label.strip() for label in value.split(',')]
    return tuple([vocabulary.pmem_resource_class(label) for label in labels if label])


def _amount(name: str, value: str) -> int:
    """The amount that a flavor asks for; with ``resources:CLASS=0`` it asks for none.

    A flavor also names classes that count no devices of ours, such as a port's bandwidth in kilobits per second. So no
    amount is too large here. A caller that knows our classes checks that the allocations hold as much of them.
    """
    text = str(value)
    if not (text.isascii() and text.isdigit()):
        raise exception.BadRequest(name, value, 'must be a whole number, 0 or more')
    if len(text) > _DIGITS:
        raise exception.BadRequest(name, value, f'must have at most {_DIGITS} digits')
    return int(text)
