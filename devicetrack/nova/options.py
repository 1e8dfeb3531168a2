"""Checks for options of devicetrack that cannot be used together with Nova."""

from __future__ import annotations

from typing import Any
from typing import Final

from devicetrack import exception
from devicetrack.conf import nova
from devicetrack.conf import pci
from devicetrack.nova import seams

# The first release of Nova that knows one_time_use.
_CLEANS_SINCE: Final = 33


def check(conf: Any) -> None:
    """Check the options that would let both Nova and devicetrack hand out the same devices, or that do nothing.

    :param conf: the configuration, with Nova's options
    :raises InvalidConfiguration: one cannot be used
    """
    pci.register(conf)
    functions = conf[pci.GROUP].functions
    if functions:
        raise exception.InvalidConfiguration(
            f'[{pci.GROUP}] functions', ' '.join(functions), 'Nova assigns the functions of [pci] device_spec '
            'itself, and may assign the same ones to other guests: remove the option. To observe or clean them, set '
            '[devicetrack_nova] pci')
    nova.register(conf)
    if conf[nova.GROUP].pci == nova.CLEAN and int(seams.installed().partition('.')[0]) < _CLEANS_SINCE:
        raise exception.InvalidConfiguration(
            f'[{nova.GROUP}] pci', nova.CLEAN, f'Nova {seams.installed()} has no one_time_use in [pci] device_spec, so '
            f'nothing would wait for its cleaning: use {nova.OBSERVE}')
