"""Names of the traits that describe a device in placement.

We use a trait of os-traits where one exists. Other names are ours:
``CUSTOM_DEVICETRACK_<SUBJECT>_<VALUE>``, the value in capitals, with an underscore for each character that placement
does not accept in a name. So ``nvidia-35`` becomes ``CUSTOM_DEVICETRACK_MDEV_TYPE_NVIDIA_35``.

Names that begin with ``CUSTOM_MIG_`` say what a host offers to guests that migrate live:
:mod:`devicetrack.compatibility.traits`.
"""

from __future__ import annotations

import re
from typing import Final

PREFIX: Final = 'CUSTOM_DEVICETRACK_'
MIGRATION: Final = 'CUSTOM_MIG_'
LONGEST: Final = 255                        # what placement accepts

# Traits of os-traits. The compute service's own name for the second is live_migratable.
NUMA_ROOT: Final = 'HW_NUMA_ROOT'
PCI_LIVE_MIGRATABLE: Final = 'HW_PCI_LIVE_MIGRATABLE'

_NOT_IN_A_NAME = re.compile('[^A-Z0-9_]')

# The prefix alone would not do: MIG is also a vendor's name for slices of a card, and operators have traits for these.
_OF_MIGRATION = re.compile(
    MIGRATION + '[A-Z0-9_]+_(ANY|V[0-9]+_[0-9]+|VOPAQUE_[0-9A-F]{16}|VNONE|VUNKNOWN|F_[A-Z0-9_]+)')


# The other names with our prefix mark what a report wrote into placement.
_OF_DEVICE = re.compile(PREFIX + '(?!PROVIDER$|COUNTS_|SETS_)[A-Z0-9_]+')


def is_of_device(name: str) -> bool:
    """Whether a trait says of which type, maker or interface a device is, so its details tell whether it has it."""
    return _OF_DEVICE.fullmatch(name) is not None


def is_of_migration(name: str) -> bool:
    """Whether a trait says what a host offers to guests that migrate live."""
    return _OF_MIGRATION.fullmatch(name) is not None


def is_ours(name: str) -> bool:
    """Whether a name is one of our traits."""
    return name.startswith(PREFIX) or is_of_migration(name)


def ours(subject: str, value: str) -> str:
    """The trait for a value of a subject, cut to the length that placement accepts."""
    return (PREFIX + _NOT_IN_A_NAME.sub('_', f'{subject}_{value}'.upper()))[:LONGEST]
