"""Finds the function of a row, and says whether it is the one that was recorded."""

from __future__ import annotations

from collections.abc import Callable

from devicetrack import exception
from devicetrack.objects import DeviceAssignment
from devicetrack.objects import PCIDetails
from devicetrack.virt.libvirt import pci_sysfs
from devicetrack.virt.libvirt.kinds import pci_places
from devicetrack.virt.libvirt.kinds import pci_row
from devicetrack.virt.libvirt.kinds import pci_serials


class Identity:
    """Reads functions. Another card in the slot is another device.

    :param places: the present addresses of functions by their names
    :param alike: says where the disks like that of a row are now (:meth:`.pci_alike.Disks.of_row`)
    """

    def __init__(self, tree: pci_sysfs.Tree, serials: pci_serials.SerialNumbers,
                 places: Callable[[], pci_places.Places], alike: Callable[[PCIDetails], str]) -> None:
        self._tree, self._serials, self._places, self._alike = tree, serials, places, alike

    def evidence(self, function: pci_sysfs.Function, recorded: PCIDetails) -> pci_serials.Evidence:
        """Return the facts that tell a function from others of its sort.

        :param recorded: the facts in its row
        """
        return self._serials.of([function]).evidence(function, pci_serials.of_row(recorded))

    def there(self, assignment: DeviceAssignment) -> pci_sysfs.Function:
        """Read the assignment's function.

        :raises DeviceGone: there is none at its address, or it is another one
        :raises CommandFailed: it cannot be read, or may be the disk of another row
        """
        places = self._places()
        address = places.address(assignment.identifier)
        # A row without a serial number could not tell that card from its own.
        came = places.came_to(address)
        if came not in (None, assignment.identifier):
            raise exception.DeviceGone(assignment.kind, assignment.identifier,
                                       f'another function is there: it is {came} that is at {address} now')
        function = self._tree.function(address)
        if function is None:
            raise exception.DeviceGone(assignment.kind, assignment.identifier, 'no PCI function has its address' + (
                f', {address} now' if address != assignment.identifier else ''))
        if function.problem is not None:
            raise exception.CommandFailed('reading sysfs', function.problem)
        recorded = assignment.details
        if recorded.vf_number >= 0 and function.physfn is None and (
                (function.vendor_id, function.product_id) == (recorded.vendor_id, recorded.product_id)):
            raise exception.DeviceGone(
                assignment.kind, assignment.identifier, 'it is no longer a virtual function of '
                f'{recorded.parent_address}: its card takes its virtual functions away, or has lost its driver')
        found = pci_row.as_details(function, self.evidence(function, recorded),
                                   pci_row.Before('', ''), ())
        for name in PCIDetails.IDENTITY:
            before, now = getattr(recorded, name), getattr(found, name)
            if (before != now and None not in (before, now) and name not in recorded.unknown_identity
                    and not PCIDetails.means_same(name, before, now)):
                raise exception.DeviceGone(assignment.kind, assignment.identifier,
                                           f'another function is there: its {name.replace("_", " ")} is {_said(now)}, '
                                           f'recorded was {_said(before)}')
        doubt = places.doubt(assignment.identifier)
        if doubt is not None and self._alike(recorded) != places.doubted[assignment.identifier]:
            raise exception.CommandFailed(f'tell which disk is at {address}', doubt)
        return function

    def check(self, assignment: DeviceAssignment) -> None:
        """:raises DriverError: another function is there than the recorded one, or it may be another one"""
        self.check_known(assignment, self.there(assignment))

    def check_known(self, assignment: DeviceAssignment, function: pci_sysfs.Function) -> None:
        """:raises UnclaimFailed: the function may not be the recorded one"""
        evidence = self.evidence(function, assignment.details)
        if (unread := pci_serials.unread(assignment.details, evidence)) is not None:
            raise exception.UnclaimFailed(
                assignment.kind, assignment.identifier, f'it may not be the recorded one: its {unread} cannot be read '
                f'with the driver {function.driver or "(none)"}, or could not be read when it was claimed')


def _said(value: str | int) -> str:
    return 'none' if value in ('', -1) else str(value)
