"""Names of traits, by which placement may be asked what a device is.

A trait of os-traits is used where there is one. Everything else has a name of ours:
``CUSTOM_DEVICETRACK_<SUBJECT>_<VALUE>``, the value in capitals, with an underscore for each character that placement
does not take in a name. So ``nvidia-35`` becomes ``CUSTOM_DEVICETRACK_MDEV_TYPE_NVIDIA_35``.

What a host has for guests that come while they run is said by names that begin with ``CUSTOM_MIG_``:
:mod:`devicetrack.compatibility.traits`.
"""

from __future__ import annotations

import re
from typing import Final

PREFIX: Final = 'CUSTOM_DEVICETRACK_'
MIGRATION: Final = 'CUSTOM_MIG_'
LONGEST: Final = 255                        # that placement takes

# Of os-traits.
NUMA_ROOT: Final = 'HW_NUMA_ROOT'

_NOT_IN_A_NAME = re.compile('[^A-Z0-9_]')

# Not the prefix alone: MIG is also how a vendor calls the slices of its cards, and operators have traits for these.
_OF_MIGRATION = re.compile(
    MIGRATION + '[A-Z0-9_]+_(ANY|V[0-9]+_[0-9]+|VOPAQUE_[0-9A-F]{16}|VNONE|VUNKNOWN|F_[A-Z0-9_]+)')


def is_of_migration(name: str) -> bool:
    """Whether a trait says what a host has for guests that come while they run."""
    return _OF_MIGRATION.fullmatch(name) is not None


def is_ours(name: str) -> bool:
    """Whether a trait is ours by its name alone."""
    return name.startswith(PREFIX) or is_of_migration(name)


def ours(subject: str, value: str) -> str:
    """The trait that says a value of a subject; one that would be too long is cut."""
    return (PREFIX + _NOT_IN_A_NAME.sub('_', f'{subject}_{value}'.upper()))[:LONGEST]
