"""Whether this process may do itself what needs root, and where that happens."""

from __future__ import annotations

from collections.abc import Callable
import os
from typing import Any
from typing import Final

SYSFS = '/sys'
DEVICES = '/dev'
# The kernel's VFIO groups, by the numbers of their IOMMU groups (Linux: Documentation/driver-api/vfio.rst).
VFIO = '/dev/vfio'

# The functions that the privileged daemon runs.
ENTRY_POINTS: Final[set[Callable[..., Any]]] = set()

# Whether this process is that daemon. It may have another user than root, and capabilities instead.
is_daemon = False


def has_rights(sysfs: str | None = None) -> bool:
    """Whether this process does the work itself: it is the daemon or root's, or the tree belongs to the caller.

    :param sysfs: where the work happens; None for the host's directories
    """
    return is_daemon or os.geteuid() == 0 or sysfs not in (None, SYSFS)
