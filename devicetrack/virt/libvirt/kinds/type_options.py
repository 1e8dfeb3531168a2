"""The options of the types that parents make, read and checked, for every kind that has such types."""

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
from devicetrack.objects import details

LOG = log.logger(__name__)

_RESOURCE_CLASS = re.compile(r'VGPU|CUSTOM_[A-Z0-9_]{1,248}')    # placement takes 255 characters


class TypeOptions(NamedTuple):
    """The options of one type. ``addresses`` name parents in the normal form of the kind."""

    id: str
    addresses: frozenset[str]
    resource_class: str
    max_instances: int | None


class Words(NamedTuple):
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


def is_named(stored: str, types_of: Callable[[str, str | None], Iterable[TypeOptions]]) -> bool:
    """Whether the options let the parent of a device make its type, by the stored text of its details.

    :param types_of: returns the types that the options give a parent, by its name and its PCI address
    """
    try:
        device = details.peek(stored)
        return any(one.id == device.type for one in types_of(device.parent, device.parent_address))
    except (exception.UnknownObject, exception.MalformedObject):
        return True                             # nobody knows its type


def read(conf: cfg.ConfigOpts, names: Iterable[str], words: Words) -> tuple[Mapping[str, TypeOptions], str | None]:
    """Read the group of each enabled type.

    A parent makes devices of the type that names it. Several types may name it if they have different resource classes;
    then its driver must be able to make both. A type without addresses takes every parent that no other type names. A
    second type without addresses is an error, because a parent cannot make both. Nova, which has the same options for
    mediated devices, silently enables only the first type. The log names the group of each type that is not enabled.

    :returns: the types by name, and the name of the one without addresses or None
    :raises InvalidConfiguration: an option cannot be used; the message names it, its value and the reason
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


def _warn_of_unread_groups(conf: cfg.ConfigOpts, names: Collection[str], words: Words) -> None:
    """Log the groups of types in the configuration files that nobody reads: a type is misspelt, or forgotten."""
    # oslo.config compares the names of groups without regard to case.
    enabled, start = {words.group(name).lower() for name in names}, words.group('')
    for section in conf.list_all_sections():
        if section.lower().startswith(start) and section.lower() not in enabled:
            name = section[len(start):]
            LOG.warning('[%s] of the configuration is ignored, since %s does not name %s: name it there, or remove the '
                        'group', section, words.enabled, name)


def of(types: Mapping[str, TypeOptions], default: str | None, names: frozenset[str]) -> tuple[TypeOptions, ...]:
    """Return the types that the parent with these names may make, one for each resource class, in their order."""
    found: dict[str, TypeOptions] = {}
    for one in types.values():
        if one.addresses & names:
            found.setdefault(one.resource_class, one)
    return tuple(found.values()) or ((types[default],) if default is not None else ())


def _type(name: str, group_name: str, group: Any, owners: dict[tuple[str, str], str], words: Words) -> TypeOptions:
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
