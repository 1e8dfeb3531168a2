"""Checks, pair by pair, which devices the ledger must not hand out beside one another.

Tests compare the ledger with this module. So nothing here uses the ledger's own tokens and counts. The time grows with
the square of the number of devices.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
import itertools
from typing import NamedTuple

from devicetrack import vocabulary
from devicetrack.engine import exclusion
from devicetrack.engine.selection import Place
from devicetrack.engine.snapshot import Device
from devicetrack.engine.snapshot import Snapshot
from devicetrack.objects.values import DeviceKey


class ExclusiveDevice(NamedTuple):
    """A device with its exclusions, as the ledger has it.

    ``owner`` is the instance that has the device, or None. With ``in_strange_hands`` the ledger knows no owner, but
    somebody may have the device. With ``excluded`` the ledger withholds the device because another one excludes it.
    """

    key: DeviceKey
    exclusions: tuple[tuple[str, str], ...]
    owner: str | None
    in_strange_hands: bool
    excluded: bool

    @property
    def is_taken(self) -> bool:
        return self.owner is not None or self.in_strange_hands


def of_snapshot(now: Snapshot) -> list[ExclusiveDevice]:
    """The devices of a snapshot that have exclusions, and what domains use."""
    return [ExclusiveDevice(
        device.key, device.exclusions, device.instance_uuid,
        device.owner is None and device.is_taken, vocabulary.EXCLUDED in now.withheld(device))
        for device in now.devices.each() if device.exclusions] + [
            ExclusiveDevice(DeviceKey('', address), found, None, True, now.is_excluded(Device(
                DeviceKey('', address), Place('', '', '', None, None), '', reasons=exclusion.TAKEN_BY_OTHERS,
                exclusions=found))) for address, found in now.strangers.items()]


def may_not_go_beside(one: ExclusiveDevice, other: ExclusiveDevice) -> bool:
    """Whether two devices, with their present owners, exclude one another."""
    for token, mode in one.exclusions:
        for other_token, other_mode in other.exclusions:
            if token == other_token:
                modes = {mode, other_mode}
                if vocabulary.WHOLE in modes and vocabulary.TOGETHER not in modes:
                    return True
                if modes == {vocabulary.TOGETHER} and (one.owner is None or one.owner != other.owner):
                    return True
    return False


def disagreements(devices: Iterable[ExclusiveDevice]) -> Iterator[str]:
    """The devices that the ledger excludes without a reason, and those that it should exclude but does not."""
    devices = list(devices)
    for device in devices:
        by = [other.key.identifier for other in devices
              if other is not device and other.is_taken and may_not_go_beside(device, other)]
        if device.owner is not None and device.excluded:
            yield f'{device.key.identifier} is excluded while {device.owner} has it'
        elif device.owner is None and device.excluded != bool(by):
            yield (f'{device.key.identifier} is {"" if device.excluded else "not "}excluded, and what excludes it is '
                   f'{", ".join(map(str, by)) or "nothing"}')


def broken(devices: Iterable[ExclusiveDevice]) -> Iterator[str]:
    """The pairs of devices that have owners although they exclude one another."""
    for one, other in itertools.combinations(devices, 2):
        if one.owner is not None and other.owner is not None and may_not_go_beside(one, other):
            yield f'{one.owner} has {one.key.identifier} beside {other.key.identifier} of {other.owner}'
