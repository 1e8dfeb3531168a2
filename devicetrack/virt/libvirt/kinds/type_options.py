"""The options of the kinds whose parents make devices of some types, read and checked: mediated devices and vGPUs."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
import re
from typing import Any
from typing import NamedTuple

from oslo_config import cfg

from devicetrack import exception
from devicetrack import log
from devicetrack.conf import libvirt as options
from devicetrack.objects import details
from devicetrack.objects import things

LOG = log.logger(__name__)

MDEV_ENABLED = f'[{options.DEVICES_GROUP}] enabled_mdev_types'
VF_ENABLED = f'[{options.VF_GROUP}] enabled_types'

_PARENT_NAME = re.compile(r'[A-Za-z0-9][A-Za-z0-9_.-]*')
_RESOURCE_CLASS = re.compile(r'VGPU|CUSTOM_[A-Z0-9_]{1,248}')    # placement takes 255 characters


class TypeOptions(NamedTuple):
    """The options of one type. ``addresses`` name parents in the normal form of the kind."""

    id: str
    addresses: frozenset[str]
    resource_class: str
    max_instances: int | None


class Options(NamedTuple):
    """All options of a kind. ``default`` is the type for the parents that no type names, or None."""

    types: Mapping[str, TypeOptions]
    default: str | None
    use_existing: bool
    release_wait_s: int
    sysfs_root: str = '/sys'

    def types_of(self, *names: str) -> tuple[TypeOptions, ...]:
        """Return the types that the parent with these names and addresses may make, one for each resource class."""
        found: dict[str, TypeOptions] = {}
        for one in self.types.values():
            if not one.addresses.isdisjoint(names):
                found.setdefault(one.resource_class, one)
        return tuple(found.values()) or ((self.types[self.default],) if self.default is not None else ())

    @property
    def resource_classes(self) -> frozenset[str]:
        return frozenset(one.resource_class for one in self.types.values())

    def are_naming(self, stored: str) -> bool:
        """Whether they let the parent of a device make its type, by the stored text of its details."""
        try:
            device = details.peek(stored)
            return any(one.id == device.type for one in self.types_of(*(
                normal_address(name) for name in (device.parent, device.parent_address) if name)))
        except (exception.UnknownObject, exception.MalformedObject):
            return True                         # nobody knows its type


def normal_address(text: str) -> str:
    """Return a PCI address in the form of sysfs, and the name of any other parent as it is."""
    return things.address_in(text) or text


class _Words(NamedTuple):
    """The differences between kinds.

    ``enabled`` is the option that names the types. ``register`` registers the group of a type, and ``group`` returns
    the group's name. ``class_option`` is the option in the group that names the resource class. ``is_type`` matches a
    type. ``address`` returns the normal form of a parent's name or address, and None for any other text. ``no_type``
    and ``no_parent`` are the messages about any other text.
    """

    enabled: str
    register: Callable[[cfg.ConfigOpts, str], None]
    group: Callable[[str], str]
    class_option: str
    is_type: re.Pattern[str]
    no_type: str
    address: Callable[[str], str | None]
    no_parent: str


_MDEVS = _Words(
    MDEV_ENABLED, options.register_mdev_type, options.mdev_group, 'mdev_class',
    re.compile(r'[A-Za-z0-9][A-Za-z0-9_.+-]*'), 'not the name of a type of mediated devices',
    lambda text: things.address_in(text) or (text if _PARENT_NAME.fullmatch(text) else None),
    'neither a PCI address like 0000:84:00.0 nor the name of a node device')
# Options name a vGPU type by its number, as the driver does: names have blanks, and a full card does not show them.
_VFS = _Words(
    VF_ENABLED, options.register_vf_type, options.vf_group, 'resource_class', re.compile('[1-9][0-9]{0,9}'),
    'not the number of a vGPU type, as creatable_vgpu_types of a virtual function lists it',
    things.address_in, 'not a PCI address like 0000:3d:00.0')


def read_mdevs(conf: cfg.ConfigOpts) -> Options:
    """Read ``[devices]``, ``[devicetrack_mdev]`` and the group of each enabled type, and register these groups.

    :raises InvalidConfiguration: an option cannot be used; the message names it, its value and the reason
    """
    options.register(conf)
    devices = conf[options.DEVICES_GROUP]
    return Options(*_read(conf, devices.enabled_mdev_types, _MDEVS), devices.use_existing_mdevs,
                   conf[options.MDEV_GROUP].release_wait_s)


def read_vfs(conf: cfg.ConfigOpts) -> Options:
    """Read ``[devicetrack_vf]`` and the group of each enabled type, and register these groups.

    :raises InvalidConfiguration: as :func:`read_mdevs`
    """
    options.register(conf)
    ours = conf[options.VF_GROUP]
    return Options(*_read(conf, ours.enabled_types, _VFS), ours.use_existing, ours.release_wait_s, ours.sysfs_root)


def _read(conf: cfg.ConfigOpts, names: Iterable[str], words: _Words) -> tuple[Mapping[str, TypeOptions], str | None]:
    """Read the group of each enabled type.

    A parent makes devices of the type that names it. Several types may name it if they have different resource classes;
    then its driver must be able to make both. A type without addresses takes every parent that no other type names. A
    second type without addresses is an error, because a parent cannot make both. Nova, which has the same options for
    mediated devices, silently enables only the first type. The log names the group of each type that is not enabled.

    :returns: the types by name, and the name of the one without addresses or None
    """
    types: dict[str, TypeOptions] = {}
    owners: dict[tuple[str, str], str] = {}
    for name in map(str.strip, names):
        if not words.is_type.fullmatch(name):
            raise exception.InvalidConfiguration(words.enabled, name, words.no_type)
        if name in types:
            raise exception.InvalidConfiguration(words.enabled, name, 'the type is named twice')
        words.register(conf, name)
        types[name] = _type(name, words.group(name), conf[words.group(name)], owners, words)
    _warn_of_unread_groups(conf, types, words)
    without = [one.id for one in types.values() if not one.addresses]
    if len(without) > 1:
        raise exception.InvalidConfiguration(
            words.enabled, ','.join(types),
            f'{" and ".join(without)} have no device_addresses, and only one type may take the parents that no '
            f'other names: set [{words.group(without[1])}] device_addresses')
    return types, without[0] if without else None


def _warn_of_unread_groups(conf: cfg.ConfigOpts, names: Collection[str], words: _Words) -> None:
    """Log the groups of types in the configuration files that nobody reads: a type is misspelt, or forgotten."""
    # oslo.config compares the names of groups without regard to case.
    enabled, start = {words.group(name).lower() for name in names}, words.group('')
    for section in conf.list_all_sections():
        if section.lower().startswith(start) and section.lower() not in enabled:
            name = section[len(start):]
            LOG.warning('[%s] of the configuration is ignored, since %s does not name %s: name it there, or remove the '
                        'group', section, words.enabled, name)


def _type(name: str, group_name: str, group: Any, owners: dict[tuple[str, str], str], words: _Words) -> TypeOptions:
    addresses = set()
    option = f'[{group_name}] device_addresses'
    resource_class = group[words.class_option]
    for text in map(str.strip, group.device_addresses):
        address = words.address(text)
        if address is None:
            raise exception.InvalidConfiguration(option, text, words.no_parent)
        owner = owners.setdefault((address, resource_class), group_name)
        if address in addresses or owner != group_name:
            by = 'twice' if owner == group_name else (
                f'by [{owner}] too: it can make both only if they have different resource classes')
            raise exception.InvalidConfiguration(option, text, f'the parent is named {by}')
        addresses.add(address)
    if not _RESOURCE_CLASS.fullmatch(resource_class):
        raise exception.InvalidConfiguration(
            f'[{group_name}] {words.class_option}', resource_class,
            'it is neither VGPU nor CUSTOM_ followed by capital letters, digits and underscores')
    return TypeOptions(name, frozenset(addresses), resource_class, group.max_instances)
