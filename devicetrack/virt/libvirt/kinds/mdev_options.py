"""The options of mediated devices, read and checked."""

from __future__ import annotations

from collections.abc import Mapping
import re
from typing import NamedTuple

from oslo_config import cfg

from devicetrack.conf import libvirt as options
from devicetrack.objects import things
from devicetrack.virt.libvirt.kinds import type_options

ENABLED = f'[{options.DEVICES_GROUP}] enabled_mdev_types'

_PARENT_NAME = re.compile(r'[A-Za-z0-9][A-Za-z0-9_.-]*')


class MdevOptions(NamedTuple):
    """All options of mediated devices. ``default`` is the type for the parents that no type names, or None."""

    types: Mapping[str, type_options.TypeOptions]
    default: str | None
    adopt_existing: bool

    def types_of(self, parent_names: frozenset[str]) -> tuple[type_options.TypeOptions, ...]:
        """Return the types that the parent with these names and addresses may make."""
        return type_options.of(self.types, self.default, parent_names)


def normal_address(text: str) -> str:
    """Return a PCI address in the form of sysfs, and the name of any other parent as it is."""
    return things.address_in(text) or text


_WORDS = type_options.Words(
    ENABLED, options.register_mdev_type, options.mdev_group, 'mdev_class',
    re.compile(r'[A-Za-z0-9][A-Za-z0-9_.+-]*'), 'not the name of a type of mediated devices',
    lambda text: things.address_in(text) or (text if _PARENT_NAME.fullmatch(text) else None),
    'neither a PCI address like 0000:84:00.0 nor the name of a node device')


def read(conf: cfg.ConfigOpts) -> MdevOptions:
    """Read ``[devices]`` and the group of each enabled type, and register these groups.

    :raises InvalidConfiguration: an option cannot be used; the message names it, its value and the reason
    """
    options.register(conf)
    devices = conf[options.DEVICES_GROUP]
    return MdevOptions(*type_options.read(conf, devices.enabled_mdev_types, _WORDS), devices.adopt_existing_mdevs)
