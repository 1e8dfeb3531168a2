"""Which options of devicetrack cannot be used beside Nova."""

from __future__ import annotations

from typing import Any

from devicetrack import exception
from devicetrack.conf import pci


def check(conf: Any) -> None:
    """Check the options that would give one thing two owners.

    :param conf: with Nova's options
    :raises InvalidConfiguration: one cannot be used
    """
    pci.register(conf)
    functions = conf[pci.GROUP].functions
    if functions:
        raise exception.InvalidConfiguration(
            f'[{pci.GROUP}] functions', ' '.join(functions), 'Nova hands out the functions of [pci] device_spec '
            'itself, and would give the same ones to other guests: remove the option')
