"""Chooses the device kinds to load: devicetrack's own, and those of other packages that an option names.

This module imports no kind, so commands that ask only the store work without libvirt-python.
"""

from __future__ import annotations

from importlib import metadata
from typing import Final

from oslo_config import cfg

from devicetrack import exception
from devicetrack.conf import manager as options

NAMESPACE: Final = 'devicetrack.libvirt.device_kinds'
OPTION: Final = f'[{options.GROUP}] device_kinds'

_OURS: Final = 'devicetrack.virt.libvirt.kinds.'


def entry_points(conf: cfg.ConfigOpts) -> list[metadata.EntryPoint]:
    """Return the entry points of the chosen kinds, sorted by name, without loading them.

    An entry point is devicetrack's own if it points to a module in ``devicetrack.virt.libvirt.kinds``.

    :raises InvalidConfiguration: the option names an entry point that no installed package has
    """
    options.register(conf)
    named = conf[options.GROUP].device_kinds
    found = [one for one in metadata.entry_points(group=NAMESPACE) if one.value.startswith(_OURS) or one.name in named]
    for name in named:
        if name not in {one.name for one in found}:
            raise exception.InvalidConfiguration(
                OPTION, name, f'no package has an entry point of this name in {NAMESPACE}')
    return sorted(found, key=lambda one: one.name)
