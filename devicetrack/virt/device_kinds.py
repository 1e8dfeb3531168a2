"""Which device kinds are loaded: our own, and those of other packages that an option names.

This module imports no kind, so commands that ask the store alone work without libvirt-python.
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
    """Find them, in the order of their names, and load none. Our own are told by the code that they name.

    :raises InvalidConfiguration: the option names one that no package has
    """
    options.register(conf)
    named = conf[options.GROUP].device_kinds
    found = [one for one in metadata.entry_points(group=NAMESPACE) if one.value.startswith(_OURS) or one.name in named]
    for name in named:
        if name not in {one.name for one in found}:
            raise exception.InvalidConfiguration(
                OPTION, name, f'no package has an entry point of this name in {NAMESPACE}')
    return sorted(found, key=lambda one: one.name)
