"""Checks for options of devicetrack that cannot be used together with Nova."""

from __future__ import annotations

import contextlib
import json
from typing import Any
from typing import Final

from oslo_utils import strutils

from devicetrack import exception
from devicetrack.conf import nova
from devicetrack.conf import pci
from devicetrack.nova import seams

# The first supported release of Nova that reads one_time_use.
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
    if conf[nova.GROUP].pci == nova.CLEAN and not _cleans():
        raise exception.InvalidConfiguration(
            f'[{nova.GROUP}] pci', nova.CLEAN, f'Nova {seams.installed()} has no one_time_use in [pci] device_spec, so '
            f'nothing would wait for its cleaning: use {nova.OBSERVE}')


def ignored(conf: Any) -> str | None:
    """Say which entries of ``[pci] device_spec`` have ``one_time_use`` although Nova does not read it; None if none do.

    :param conf: the configuration, with Nova's options or without
    """
    pci.register(conf)
    found = []
    for number, written in enumerate(conf[pci.SERVICE_GROUP].device_spec, 1):
        with contextlib.suppress(ValueError):           # Nova refuses an entry that is no JSON
            read = json.loads(written)
            if any(isinstance(one, dict) and strutils.bool_from_string(one.get('one_time_use'))
                   for one in (read if isinstance(read, list) else [read])):
                found.append(f'entry {number}')
    if not found or _cleans():
        return None
    return (f'[{pci.SERVICE_GROUP}] device_spec: {", ".join(found)}: Nova {seams.installed()} ignores one_time_use, so '
            'the next guest gets the device with the data of the last one: reserve it in placement and clean it '
            'yourself, or upgrade Nova')


def _cleans() -> bool:
    return int(seams.installed().partition('.')[0]) >= _CLEANS_SINCE
