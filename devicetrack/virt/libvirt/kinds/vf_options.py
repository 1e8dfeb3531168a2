"""The options of virtual functions with a vGPU type, read and checked."""

from __future__ import annotations

from collections.abc import Mapping
import re
from typing import NamedTuple

from oslo_config import cfg

from devicetrack.conf import libvirt as options
from devicetrack.objects import things
from devicetrack.virt.libvirt.kinds import type_options

ENABLED = f'[{options.VF_GROUP}] enabled_types'

# Options name a type by its number, as the driver does: names have blanks, and a full card does not show them.
_WORDS = type_options.Words(
    ENABLED, options.register_vf_type, options.vf_group, 'resource_class', re.compile('[1-9][0-9]{0,9}'),
    'not the number of a vGPU type, as creatable_vgpu_types of a virtual function lists it',
    things.address_in, 'not a PCI address like 0000:3d:00.0')


class VFOptions(NamedTuple):
    """All options of virtual functions. ``default`` is the type for the cards that no type names, or None."""

    types: Mapping[str, type_options.TypeOptions]
    default: str | None
    adopt_existing: bool
    release_wait_s: int
    sysfs_root: str

    def types_of(self, parent: str) -> tuple[type_options.TypeOptions, ...]:
        """Return the types for the virtual functions of the physical function with this PCI address."""
        return type_options.of(self.types, self.default, frozenset((parent,)))


def read(conf: cfg.ConfigOpts) -> VFOptions:
    """Read ``[devicetrack_vf]`` and the group of each enabled type, and register these groups.

    :raises InvalidConfiguration: an option cannot be used; the message names it, its value and the reason
    """
    options.register(conf)
    ours = conf[options.VF_GROUP]
    return VFOptions(*type_options.read(conf, ours.enabled_types, _WORDS), ours.adopt_existing, ours.release_wait_s,
                     ours.sysfs_root)
