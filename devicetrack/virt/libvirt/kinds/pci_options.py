"""The options of PCI functions, read and checked."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Final
from typing import NamedTuple

from oslo_config import cfg

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.conf import nova
from devicetrack.conf import pci as options
from devicetrack.objects import network_port
from devicetrack.objects import pci_alias
from devicetrack.objects.choice import Features
from devicetrack.objects.pci_alias import PCIAlias
from devicetrack.objects.pci_alias import PCIChoice
from devicetrack.objects.traits import PCI_LIVE_MIGRATABLE
from devicetrack.virt.libvirt.kinds import json_entries
from devicetrack.virt.libvirt.kinds import pci_cleaning
from devicetrack.virt.libvirt.kinds import pci_matching
from devicetrack.virt.libvirt.kinds import pci_vfs
from devicetrack.virt.libvirt.kinds import placement_names
from devicetrack.virt.libvirt.pci_sysfs import Function

SPECS: Final = f'[{options.SERVICE_GROUP}] device_spec'
FUNCTIONS: Final = f'[{options.GROUP}] functions'
ALL: Final = 'all'

# Traits of os-traits. Nova's scheduler asks for the first with every alias.
MANAGED_HERE: Final = 'COMPUTE_MANAGED_PCI_DEVICE'
LIVE_MIGRATABLE: Final = PCI_LIVE_MIGRATABLE
ONE_TIME_USE: Final = 'HW_PCI_ONE_TIME_USE'

_KEYS: Final = pci_matching.KEYS | {
    'physical_network', 'trusted', 'remote_managed', 'resource_class', 'traits', 'managed', 'live_migratable',
    'one_time_use'}

ALIASES: Final = f'[{options.SERVICE_GROUP}] alias'

DEVICE_TYPES: Final = ('type-PCI', 'type-PF', 'type-VF')
_POLICIES: Final = (vocabulary.REQUIRED, vocabulary.LEGACY, vocabulary.PREFERRED, vocabulary.SOCKET)
_ALIAS_KEYS: Final = frozenset(('name', 'capability_type', 'vendor_id', 'product_id', 'device_type', 'numa_policy',
                                'resource_class', 'traits', 'live_migratable'))
_LONGEST: Final = 256                   # characters of a name, in Nova


class DeviceSpec(NamedTuple):
    """One object of ``[pci] device_spec``.

    ``resource_class`` and ``traits`` are in placement's form. Without a class of its own, a function is counted by its
    product. ``managed``: libvirt unbinds the function from its driver on the host, and binds it again afterwards.
    ``live_migratable`` is None where the spec says nothing. ``place`` says which value of the option the object is in.
    """

    match: pci_matching.Match
    physical_network: str | None = None
    trusted: bool = False
    resource_class: str | None = None
    traits: frozenset[str] = frozenset()
    managed: bool = True
    live_migratable: bool | None = None
    one_time_use: bool = False
    place: str = ''


def resource_class_of(spec: DeviceSpec, function: Function) -> str:
    """Return the resource class of a function that a spec matches."""
    return _own_class(spec) or placement_names.of_product(function.vendor_id or spec.match.vendor_id or '',
                                                          function.product_id or spec.match.product_id or '')


def _own_class(spec: DeviceSpec) -> str | None:
    """Return the class that a spec or its network gives its functions; None if they are counted by product.

    Ports have the class of their network, because no alias asks for ports.
    """
    if spec.resource_class is None and spec.physical_network:
        return network_port.resource_class_of(spec.physical_network)
    return spec.resource_class


def traits_of(spec: DeviceSpec) -> frozenset[str]:
    """Return the traits of the provider of functions that a spec matches. Nova reports the same traits."""
    traits = spec.traits | {MANAGED_HERE}
    if spec.live_migratable:
        traits |= {LIVE_MIGRATABLE}
    return traits | {ONE_TIME_USE} if spec.one_time_use else traits


def features_of(spec: DeviceSpec, function: Function, device_type: str) -> Features:
    """Return the features of a function that a spec matches, which an alias may ask for."""
    found = pci_alias.features(function.vendor_id, function.product_id, device_type, traits_of(spec),
                               spec.live_migratable)
    if not spec.physical_network:
        return found
    return tuple(sorted({*found, *network_port.features(spec.physical_network, spec.trusted)}))


class PCIOptions(NamedTuple):
    """All options of PCI functions. ``aliases`` is None if this library hands out no functions.

    ``observed`` are the specs of functions that the service hands out, if this library is to look at them. ``cleans``
    says whether it also cleans those with ``one_time_use``.
    """

    specs: tuple[DeviceSpec, ...] = ()
    functions: tuple[pci_matching.Match, ...] = ()
    cleaning: tuple[pci_cleaning.CleaningRule, ...] = ()
    aliases: Mapping[str, PCIAlias] | None = None
    release_wait_s: int = 0
    vfs: tuple[pci_vfs.VFRule, ...] = ()
    vfs_timeout_s: int = 0
    sysfs_root: str = '/sys'
    observed: tuple[DeviceSpec, ...] = ()
    cleans: bool = False

    @property
    def resource_classes(self) -> frozenset[str]:
        """The classes that the specs alone tell. For a spec without a product, its functions tell the class."""
        return frozenset(
            _own_class(spec) or placement_names.of_product(spec.match.vendor_id or '', spec.match.product_id or '')
            for spec in self.specs if _own_class(spec) or (spec.match.vendor_id and spec.match.product_id))

    def may_give(self, resource_class: str) -> bool:
        """Whether a spec gives this class to some product, or an alias names it.

        The host need not have such a function: it may be away, or flavors ask for what nobody here has.
        """
        product = placement_names.product_of(resource_class)
        return (product is not None and any(
            _own_class(spec) is None and all(wanted in (None, has) for wanted, has in zip(
                (spec.match.vendor_id, spec.match.product_id), product, strict=True)) for spec in self.specs)
            or any(resource_class in alias.resource_classes for alias in (self.aliases or {}).values()))

    def spec_of(self, function: Function) -> DeviceSpec | None:
        """Return the first spec that matches a function."""
        return next((spec for spec in self.specs if spec.match.matches(function)), None)

    def ours(self, function: Function) -> DeviceSpec | None:
        """Return the spec of a function that this library hands out; None for any other.

        Among functions with a physical network, it hands out only virtual functions: see :meth:`not_a_port`. Any spec
        that may mean a function whose product cannot be read counts, so that the function stays known by its name.
        """
        if function.product_id:
            spec = self._meant(function)
            return None if spec is None or (spec.physical_network and function.physfn is None) else spec
        if not any(match.may_match(function) for match in self.functions):
            return None
        return next((spec for spec in self.specs if spec.match.may_match(function)
                     and not (spec.physical_network and function.physfn is None)), None)

    def of_service(self, function: Function) -> DeviceSpec | None:
        """Return the spec of a function that the service hands out itself; None for any other."""
        spec = self.spec_of(function)
        return None if any(match.may_match(function) for match in self.functions) else spec

    @property
    def devnames(self) -> frozenset[str]:
        """The names of network interfaces that decide about policies."""
        matches = (*(rule.match for rule in self.cleaning), *(spec.match for spec in self.specs))
        return frozenset(match.devname for match in matches if match.devname is not None)

    def observed_spec(self, function: Function) -> DeviceSpec | None:
        """Return the spec by which the service hands out a function that this library only looks at."""
        if function.is_bridge:
            return None
        return next((spec for spec in self.observed if spec.match.may_match(function)), None)

    def nothing_observed(self, functions: Iterable[Function]) -> str | None:
        """Say which specs of the service's functions match nothing, or that nothing is cleaned; None if all is well."""
        there = [function for function in functions if not function.is_bridge]
        without = [spec.place for spec in self.observed if not any(map(spec.match.may_match, there))]
        if without:
            return f'no function of this host matches {", ".join(without)}'
        if self.observed and self.cleans and not any(spec.one_time_use for spec in self.observed):
            return 'no entry has one_time_use, so nothing is cleaned'
        return None

    def not_a_port(self, function: Function) -> str | None:
        """Say why a function with a physical network is not handed out; None for any other.

        The caller leaves out cards with virtual functions: a spec for these often matches the card too.
        """
        spec = self._meant(function) if function.physfn is None else None
        if spec is None or not spec.physical_network:
            return None
        return (f'it is not offered: it has the physical_network {spec.physical_network}, but it is not a virtual '
                'function, and the host can set a MAC address and a VLAN only for virtual functions')

    def _meant(self, function: Function) -> DeviceSpec | None:
        spec = self.spec_of(function)
        return spec if spec is not None and any(match.matches(function) for match in self.functions) else None

    def cleaning_of(self, function: Function,
                    is_alone: Callable[[str], bool] = lambda _address: False) -> pci_cleaning.Policy:
        """Return the policy for a function that comes back from a guest. A person cleans a one-time-use function.

        :param is_alone: as for :func:`.pci_cleaning.of`
        """
        if any(spec.one_time_use for spec in self.specs) and (
                spec := self.spec_of(function)) is not None and spec.one_time_use:
            return pci_cleaning.Policy(pci_cleaning.PERSON)
        return pci_cleaning.of(self.cleaning, function, is_alone)


def read(conf: cfg.ConfigOpts) -> PCIOptions:
    """Read ``[pci]`` and ``[devicetrack_pci]``.

    While ``[devicetrack_pci] functions`` names none, ``[pci]`` belongs to the service alone, and is not read unless
    ``[devicetrack_nova] pci`` says to look at the service's functions.

    :raises InvalidConfiguration: an option cannot be used; the message names the option, the number of its entry, the
        key and what to do
    """
    options.register(conf)
    nova.register(conf)
    ours, service = conf[options.GROUP], conf[options.SERVICE_GROUP]
    functions = _functions(ours.functions)
    cleaning = pci_cleaning.read(ours.cleaning)
    vfs = pci_vfs.read(ours.vfs)
    if not functions:
        observed = () if conf[nova.GROUP].pci == nova.OFF else tuple(
            DeviceSpec(pci_matching.read(entry), entry.text('physical_network'),
                       one_time_use=bool(entry.flag('one_time_use')), place=entry.place)
            for entry in json_entries.read(SPECS, service.device_spec))
        return PCIOptions(cleaning=cleaning, vfs=vfs, sysfs_root=ours.sysfs_root, observed=observed,
                          cleans=conf[nova.GROUP].pci == nova.CLEAN)
    specs = tuple(_spec(entry) for entry in json_entries.read(SPECS, service.device_spec))
    return PCIOptions(specs, functions, cleaning, read_aliases(service.alias), ours.release_wait_s, vfs,
                      ours.vfs_timeout_s, ours.sysfs_root)


def of_service(conf: cfg.ConfigOpts, match: pci_matching.Match) -> PCIOptions:
    """Read the options for functions that the service hands out itself, and this library only cleans.

    :param match: matches these functions
    :raises InvalidConfiguration: an option cannot be used
    """
    options.register(conf)
    ours = conf[options.GROUP]
    return PCIOptions((DeviceSpec(match),), (match,), pci_cleaning.read(ours.cleaning),
                      release_wait_s=ours.release_wait_s, sysfs_root=ours.sysfs_root)


def _functions(values: Iterable[str]) -> tuple[pci_matching.Match, ...]:
    values = list(values)
    if ALL in map(str.strip, values):
        if len(values) > 1:
            raise exception.InvalidConfiguration(FUNCTIONS, ' '.join(values), f'"{ALL}" is there with other entries: '
                                                                              'remove it, or the others')
        return (pci_matching.EVERYTHING,)
    found = []
    for entry in json_entries.read(FUNCTIONS, values):
        entry.check_keys(pci_matching.KEYS)
        match = pci_matching.read(entry)
        if match == pci_matching.EVERYTHING:
            raise entry.mistake(None, f'it names every function: write "{ALL}" alone, without braces, if that is meant')
        found.append(match)
    return tuple(found)


def _spec(entry: json_entries.Entry) -> DeviceSpec:
    entry.check_keys(_KEYS)
    if entry.flag('remote_managed'):
        raise entry.mistake('remote_managed', 'this library hands out no functions that a remote network backend '
                                              f'manages: remove the object, or every value of {FUNCTIONS}')
    managed = entry.flag('managed')
    physical_network = entry.text('physical_network')
    if physical_network:
        entry.read('physical_network', network_port.resource_class_of)
    return DeviceSpec(
        pci_matching.read(entry), physical_network, bool(entry.flag('trusted')),
        entry.read('resource_class', placement_names.resource_class) if entry.text('resource_class') else None,
        entry.read('traits', placement_names.traits) or frozenset(), managed is not False,
        entry.flag('live_migratable'), bool(entry.flag('one_time_use')))


def read_aliases(values: Iterable[str]) -> Mapping[str, PCIAlias]:
    """Read the aliases by which flavors ask for functions. Objects with the same name are choices of one alias.

    :returns: the aliases by name
    :raises InvalidConfiguration: a value cannot be used
    """
    aliases: dict[str, PCIAlias] = {}
    said: dict[str, tuple[str | None, str]] = {}        # by name: the device type and policy of its objects
    for entry in json_entries.read(ALIASES, values, lists=False):
        entry.check_keys(_ALIAS_KEYS)
        name = _name(entry)
        choice = _choice(entry)
        entry.choice('capability_type', ('pci',))
        device_type = entry.choice('device_type', DEVICE_TYPES)
        policy = entry.choice('numa_policy', _POLICIES) or vocabulary.LEGACY
        if name not in aliases:
            said[name] = device_type, policy
            aliases[name] = PCIAlias(name, (choice,), policy, device_type)
            continue
        for key, mine, first in zip(('device_type', 'numa_policy'), (device_type, policy), said[name], strict=True):
            if mine != first:
                raise entry.mistake(key, f'it is {mine or "missing"}, but {first or "missing"} in the first object '
                                         f'named {name!r}: write the same in all of them')
        aliases[name] = aliases[name]._replace(choices=(*aliases[name].choices, choice))
    return aliases


def _name(entry: json_entries.Entry) -> str:
    name = (entry.text('name') or '').strip()
    if not name:
        raise entry.mistake('name', 'it is missing: write the name that flavors ask for')
    if len(name) > _LONGEST:
        raise entry.mistake('name', f'it has more than {_LONGEST} characters: write a shorter one')
    if ':' in name or ',' in name:
        raise entry.mistake('name', 'no flavor can ask for a name with a colon or a comma: remove it')
    return name


def _choice(entry: json_entries.Entry) -> PCIChoice:
    vendor_id, product_id = (entry.read(key, pci_matching.hex_id) for key in ('vendor_id', 'product_id'))
    resource_class = entry.read('resource_class', placement_names.resource_class) if entry.text('resource_class') \
        else None
    if resource_class is None:
        if vendor_id is None or product_id is None:
            raise entry.mistake('product_id' if vendor_id else 'vendor_id',
                                'it is missing: write vendor_id and product_id, or resource_class')
        resource_class = placement_names.of_product(vendor_id, product_id)
    return PCIChoice(resource_class, entry.read('traits', placement_names.traits) or frozenset(),
                     entry.flag('live_migratable'), vendor_id, product_id)
