"""The options of mediated devices, read and checked."""

from __future__ import annotations

from collections.abc import Mapping
import re
from typing import NamedTuple

from oslo_config import cfg

from devicetrack import exception
from devicetrack.conf import libvirt as options
from devicetrack.virt.libvirt import nodedev_xml

ENABLED = f'[{options.DEVICES_GROUP}] enabled_mdev_types'

_TYPE = re.compile(r'[A-Za-z0-9][A-Za-z0-9_.+-]*')
_PARENT_NAME = re.compile(r'[A-Za-z0-9][A-Za-z0-9_.-]*')
_RESOURCE_CLASS = re.compile(r'VGPU|CUSTOM_[A-Z0-9_]{1,248}')    # placement takes 255 characters


class TypeOptions(NamedTuple):
    """What the operator says of one type. ``addresses`` are normal forms, as :func:`normal_address` makes them."""

    id: str
    addresses: frozenset[str]
    resource_class: str
    max_instances: int | None


class MdevOptions(NamedTuple):
    """All options of mediated devices. ``default`` is the type of the parents that no type names, or None."""

    types: Mapping[str, TypeOptions]
    default: str | None
    adopt_existing: bool

    def types_of(self, parent_names: frozenset[str]) -> tuple[TypeOptions, ...]:
        """The type that the parent with these names and addresses may make, as a tuple of one or none."""
        for mdev_type in self.types.values():
            if mdev_type.addresses & parent_names:
                return (mdev_type,)
        return (self.types[self.default],) if self.default is not None else ()


def normal_address(text: str) -> str:
    """One form for a parent: a PCI device has the form of sysfs, however it was named; others keep their name."""
    return nodedev_xml.pci_address(text) or text


def read(conf: cfg.ConfigOpts) -> MdevOptions:
    """Read ``[devices]`` and the group of each enabled type, which is registered here.

    A parent makes devices of one type, the one that names it. A type without addresses takes every parent that no
    other type names; with a second type like it, nobody could say which of the two a parent should make. Nova,
    whose options these are, then silently enables the first type alone; here the mistake is refused.

    :raises InvalidConfiguration: an option cannot be used; names it, its value and the reason
    """
    options.register(conf)
    devices = conf[options.DEVICES_GROUP]
    types: dict[str, TypeOptions] = {}
    owners: dict[str, str] = {}
    for mdev_type in (name.strip() for name in devices.enabled_mdev_types):
        if not _TYPE.fullmatch(mdev_type):
            raise exception.InvalidConfiguration(ENABLED, mdev_type, 'not the name of a type of mediated devices')
        if mdev_type in types:
            raise exception.InvalidConfiguration(ENABLED, mdev_type, 'the type is named twice')
        types[mdev_type] = _type(conf, mdev_type, owners)
    without = [mdev_type.id for mdev_type in types.values() if not mdev_type.addresses]
    if len(without) > 1:
        raise exception.InvalidConfiguration(
            ENABLED, ','.join(types),
            f'{" and ".join(without)} have no device_addresses, and only one type may take the parents that no '
            f'other names: set [{options.mdev_group(without[1])}] device_addresses')
    return MdevOptions(types, without[0] if without else None, devices.adopt_existing_mdevs)


def _type(conf: cfg.ConfigOpts, mdev_type: str, owners: dict[str, str]) -> TypeOptions:
    options.register_mdev_type(conf, mdev_type)
    group_name = options.mdev_group(mdev_type)
    group = conf[group_name]
    addresses = set()
    option = f'[{group_name}] device_addresses'
    for text in (address.strip() for address in group.device_addresses):
        address = normal_address(text)
        if not (nodedev_xml.pci_address(text) or _PARENT_NAME.fullmatch(text)):
            raise exception.InvalidConfiguration(
                option, text, 'neither a PCI address like 0000:84:00.0 nor the name of a node device')
        if address in owners:
            by = 'twice' if owners[address] == mdev_type else f'by [{options.mdev_group(owners[address])}] too'
            raise exception.InvalidConfiguration(option, text, f'the parent is named {by}')
        owners[address] = mdev_type
        addresses.add(address)
    if not _RESOURCE_CLASS.fullmatch(group.mdev_class):
        raise exception.InvalidConfiguration(
            f'[{group_name}] mdev_class', group.mdev_class,
            'it is neither VGPU nor CUSTOM_ followed by capital letters, digits and underscores')
    # The service may have registered the option without our lower bound.
    most = group.max_instances
    if most is not None and most < 0:
        raise exception.InvalidConfiguration(f'[{group_name}] max_instances', most, 'it is negative')
    return TypeOptions(mdev_type, frozenset(addresses), group.mdev_class, most)
