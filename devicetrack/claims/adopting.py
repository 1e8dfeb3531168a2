"""Checks whether devices that guests of a host have without a row can be recorded for their instances."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator

from devicetrack import exception
from devicetrack.claims import withheld
from devicetrack.engine import adoption
from devicetrack.engine import exclusion
from devicetrack.engine.repair_plan import Repair
from devicetrack.engine.views import Views
from devicetrack.engine.withholding import Marks
from devicetrack.objects import DeviceAssignment
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Inventory
from devicetrack.objects.values import Record
from devicetrack.objects.values import Usage
from devicetrack.virt.driver import VirtDriver


def adoptions(views: Views, driver: VirtDriver, instance_uuid: str, keys: Iterable[DeviceKey],
              provider_uuid_of: Callable[[str], str | None]) -> list[Repair]:
    """Plan the rows for devices that an instance has, as its service says and one look shows.

    :raises NotAdopted: as :func:`.adoption.adoptions`, or one of the devices, or what may not be held beside it, is
        being wiped
    """
    wanted = adoption.adoptions(views, instance_uuid, keys, provider_uuid_of)
    reached = {one.device for one in wanted}
    for ours in filter(None, map(views.exclusions_of, [*reached])):
        reached.update(one.key for one in views.devices.values() if exclusion.shared(ours, one.exclusions, False))
    for key, progress in driver.wiping(reached).items() if wanted else ():
        if progress.is_wipe:
            raise exception.NotAdopted(instance_uuid, str(key), f'it is being wiped: {progress}')
    return wanted


def check_idle(driver: VirtDriver, repairs: Iterable[Repair]) -> None:
    """Check that no process of the host wipes devices that get an owner. Nobody but the caller holds them now.

    A manager asks the store whether it was taken over after it has a device's lock, and before the wipe. So if the lock
    is free now, no older manager begins a wipe later. Whoever reads a device may go on.

    :raises DeviceBusy: somebody wipes one, or may
    :raises DriverError: nobody can tell
    """
    assignments = [DeviceAssignment.from_record(one.after) for one in repairs if one.after is not None]
    busy = driver.being_worked_on(assignments)
    progress = driver.wiping(busy) if busy else {}
    for key in sorted(busy):
        if key not in progress or progress[key].is_wipe:
            raise exception.DeviceBusy(*key, 'another process or thread works on it')


class Adopting:
    """One look at a host. It changes nothing, and reads nothing again.

    Made by :meth:`devicetrack.claims.report.Observer.adopting`.

    :param provider_uuid_of: returns the UUID of the provider with a stable name, or None while it has none
    """

    def __init__(self, views: Views, marks: Marks, driver: VirtDriver,
                 provider_uuid_of: Callable[[str], str | None]) -> None:
        self._views, self._marks, self._driver, self._provider_uuid_of = views, marks, driver, provider_uuid_of

    @property
    def usage(self) -> Usage:
        """What the guests use."""
        return self._views.usage

    @property
    def inventory(self) -> Inventory:
        """The devices of the host."""
        return self._views.inventory

    @property
    def records(self) -> list[Record]:
        """The rows of the host."""
        return list(self._views.records)

    def check(self, instance_uuid: str, keys: Iterable[DeviceKey]) -> None:
        """Check that :meth:`.ClaimManager.adopt` would record these devices now. It makes the same checks.

        :raises NotAdopted: it would refuse; ``reason`` says why
        """
        adoptions(self._views, self._driver, instance_uuid, keys, self._provider_uuid_of)

    def obstacles(self) -> Iterator[str]:
        """Describe the mistakes in the options that keep every manager of this host from starting."""
        for missing in withheld.mistakes(self._views, self._marks):
            yield f'{missing.option} names {missing.key.identifier}: {missing.reason}: {withheld.FIX_MISSING}'
        for overlap in self._views.inventory.overlaps:
            one, other = overlap.devices
            yield f'{one} and {other} are both {overlap.what}: let only one option name it'
