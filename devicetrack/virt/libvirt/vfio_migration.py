"""Tells whether this host's software can migrate a running guest with a VFIO device at all. Pure.

The device's own driver decides in the end, but only when the migration begins.
"""

from __future__ import annotations

import re
from typing import Final
from typing import NamedTuple

# The first versions that can do it.
# libvirt leaves the decision to QEMU and does not refuse such a guest itself (its release notes, v8.6.0).
_LIBVIRT: Final = (8, 6, 0)
# QEMU uses the kernel's second protocol, and no longer as an experiment (docs/devel/migration/vfio.rst, v8.1).
_QEMU: Final = (8, 1, 0)
# Linux has that protocol (include/uapi/linux/vfio.h: VFIO_DEVICE_FEATURE_MIGRATION).
_LINUX: Final = (5, 18, 0)


class Versions(NamedTuple):
    """libvirt's and QEMU's versions in libvirt's form (a million for each major version); the kernel's, by uname(2)."""

    libvirt: int
    qemu: int
    kernel: str


def obstacle(versions: Versions | None) -> str | None:
    """Say why no guest with a VFIO device can move live from or to this host; None if it may, or nothing is known."""
    if versions is None:
        return None
    for name, found, needed in (('libvirt', _numbers(versions.libvirt), _LIBVIRT),
                                ('QEMU', _numbers(versions.qemu), _QEMU),
                                ('Linux', _release(versions.kernel), _LINUX)):
        if found < needed:
            return f'{name} {_text(found)} cannot migrate VFIO devices, {name} {_text(needed)} can'
    return None


def _numbers(version: int) -> tuple[int, int, int]:
    return version // 1_000_000, version // 1000 % 1000, version % 1000


def _release(release: str) -> tuple[int, int, int]:
    found = re.match(r'(\d+)\.(\d+)(?:\.(\d+))?', release)
    return (int(found[1]), int(found[2]), int(found[3] or 0)) if found is not None else (0, 0, 0)


def _text(version: tuple[int, int, int]) -> str:
    return '.'.join(map(str, version))


def text(version: int) -> str:
    """Return a version of libvirt or QEMU in readable form."""
    return _text(_numbers(version))
