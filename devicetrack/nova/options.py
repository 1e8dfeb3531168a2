"""Checks for options of devicetrack that cannot be used together with Nova."""

from __future__ import annotations

from typing import Any

from devicetrack import exception
from devicetrack.conf import pci


def check(conf: Any) -> None:
    """Check the options that would let both Nova and devicetrack hand out the same devices.

    :param conf: the configuration, with Nova's options
    :raises InvalidConfiguration: one cannot be used
    """
    pci.register(conf)
    functions = conf[pci.GROUP].functions
    if functions:
        raise exception.InvalidConfiguration(
            f'[{pci.GROUP}] functions', ' '.join(functions), 'Nova hands out the functions of [pci] device_spec '
            'itself, and would give the same ones to other guests: remove the option')
