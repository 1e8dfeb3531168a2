"""Names of traits, by which placement may be asked what a device is.

A trait of os-traits is used where there is one. Everything else has a name of ours:
``CUSTOM_DEVICETRACK_<SUBJECT>_<VALUE>``, the value in capitals, with an underscore for each character that placement
does not take in a name. So ``nvidia-35`` becomes ``CUSTOM_DEVICETRACK_MDEV_TYPE_NVIDIA_35``.
"""

from __future__ import annotations

import re
from typing import Final

PREFIX: Final = 'CUSTOM_DEVICETRACK_'
LONGEST: Final = 255                        # that placement takes

# Of os-traits.
NUMA_ROOT: Final = 'HW_NUMA_ROOT'

_NOT_IN_A_NAME = re.compile('[^A-Z0-9_]')


def ours(subject: str, value: str) -> str:
    """The trait that says a value of a subject; one that would be too long is cut."""
    return (PREFIX + _NOT_IN_A_NAME.sub('_', f'{subject}_{value}'.upper()))[:LONGEST]
