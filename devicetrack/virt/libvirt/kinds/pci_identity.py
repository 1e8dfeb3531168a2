"""The row of a PCI function: which one it is, the state to restore after a guest, and whether that one is there.

Another card in the slot is another device.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any
from typing import Final

from devicetrack import exception
from devicetrack.objects import details
from devicetrack.objects import DeviceAssignment
from devicetrack.objects import PCIDetails
from devicetrack.virt.libvirt import pci_sysfs
from devicetrack.virt.libvirt.kinds import pci_cards
from devicetrack.virt.libvirt.kinds import pci_places

# In the details of a function that is no disk.
_NO_DISKS: Final = '"disks":""'


def as_details(function: pci_sysfs.Function, evidence: pci_cards.Evidence, **of_row: Any) -> PCIDetails:
    """Make the details from a function's identity and the other fields, such as the state to restore."""
    return PCIDetails(**{
        **of_row, 'address': function.address, 'vendor_id': function.vendor_id, 'product_id': function.product_id,
        'subsystem': function.subsystem or '', 'serial': evidence.serial, 'parent_address': function.physfn or '',
        'parent_card': evidence.parent_card, 'parent_serial': evidence.parent_serial,
        'vf_number': -1 if function.vf_number is None else function.vf_number, 'device_type': function.device_type,
        'no_serial': evidence.no_serial, 'nvm_subsystem': evidence.nvm_subsystem})


def as_text(function: pci_sysfs.Function, evidence: pci_cards.Evidence, disks: str | None,
            traits: frozenset[str], physical_network: str, interfaces: tuple[str, ...] | None) -> str:
    """Return the details of a function in stock, in its present state, as text."""
    return details.to_text(as_details(
        function, evidence, driver=function.driver or '', disks=disks, config='', traits_of_spec=sorted(traits),
        physical_network=physical_network, mac='', vlan=0, trusted=False,
        interfaces=None if interfaces is None else list(interfaces), claimed_parent=function.physfn or ''))


def same_disk(owned: Collection[str], proven: Mapping[str, str], apart: Collection[str]) -> Iterator[str]:
    """Find the functions of the NVM subsystems of whole functions, as :meth:`.api.DeviceKind.within_reach`.

    A guest that has one whole function reaches the namespaces of its virtual functions, and often those of the other
    controllers. All controllers of a subsystem have one serial number. The number may be unknown, but a physical
    function has virtual ones only in this boot then, and they name its address.

    :param apart: the names of functions that share a serial number with others and nothing else
    """
    wholes = [one for one in pci_places.rows({text: text for text in owned}).values() if one.vf_number < 0]
    addresses, serials = {one.address for one in wholes}, {one.serial for one in wholes if one.serial}
    disks = {name: text for name, text in proven.items() if _NO_DISKS not in text} if wholes else {}
    read = pci_places.rows(disks)
    for name in disks:
        # Details that nobody can read may be of any disk.
        one = read.get(name)
        if one is None or one.parent_address in addresses or (
                (one.parent_serial or one.serial) in serials and name not in apart):
            yield name


def is_written(before: str, now: str) -> bool:
    """Whether a function's disks may have been written to between two texts of :meth:`.PCI.evidence`.

    They begin with a boot, and where the disks are that nothing tells apart from these (:mod:`.pci_cards`): if that
    changes at a boot, these may be other disks. Earlier releases did not write it. A disk that came back to its driver
    in the same boot may have been written to elsewhere, for example by a program with VFIO. The kernel counts anew in
    each boot, so there a disk has to count no write, and no partition that it did not have. Fewer partitions are no
    write: the host notices some time after a wipe that they are gone.
    """
    (first, *old), (first_now, *new) = before.split(';'), now.split(';')
    (boot, told, alike), (boot_now, _told, alike_now) = first.partition('@'), first_now.partition('@')
    if told and boot != boot_now and alike != alike_now:
        return True
    had, has = ({disk: int(partitions) for disk, _colon, partitions in (one.rpartition(':') for one in disks)}
                for disks in (old, new))
    if boot == boot_now and any(has.get(disk, partitions + 1) > partitions for disk, partitions in had.items()):
        return True
    counted = {disk: partitions for disk, partitions in has.items() if partitions > had.get(disk, -1)}
    return (any(count != '0' for disk in counted for count in disk.split(':')[1:-1])
            or sum(counted.values()) > sum(had.values()))


class Identity:
    """Reads the functions of rows.

    :param places: the present addresses of functions by their names
    :param alike: says where the disks like that of a row are now (:meth:`.pci_cards.Alike.of_row`)
    """

    def __init__(self, tree: pci_sysfs.Tree, serials: pci_cards.SerialNumbers,
                 places: Callable[[], pci_places.Places], alike: Callable[[PCIDetails], str]) -> None:
        self._tree, self._serials, self._places, self._alike = tree, serials, places, alike

    def evidence(self, function: pci_sysfs.Function, recorded: PCIDetails) -> pci_cards.Evidence:
        """Return the facts that tell a function from others of its sort.

        :param recorded: the facts in its row
        """
        return self._serials.of([function]).evidence(function, pci_cards.of_row(recorded))

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
            raise exception.DeviceGone(*assignment.key,
                                       f'another function is there: it is {came} that is at {address} now')
        function = self._tree.function(address)
        if function is None:
            raise exception.DeviceGone(*assignment.key, 'no PCI function has its address' + (
                f', {address} now' if address != assignment.identifier else ''))
        if function.problem is not None:
            raise exception.CommandFailed('reading sysfs', function.problem)
        recorded = assignment.details
        if recorded.vf_number >= 0 and function.physfn is None and (
                (function.vendor_id, function.product_id) == (recorded.vendor_id, recorded.product_id)):
            raise exception.DeviceGone(
                *assignment.key, 'it is no longer a virtual function of '
                f'{recorded.parent_address}: its card takes its virtual functions away, or has lost its driver')
        found = as_details(function, self.evidence(function, recorded))
        for name in PCIDetails.IDENTITY:
            before, now = getattr(recorded, name), getattr(found, name)
            if (before != now and None not in (before, now) and name not in recorded.unknown_identity
                    and not PCIDetails.means_same(name, before, now)):
                raise exception.DeviceGone(*assignment.key,
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
        if (unread := pci_cards.unread(assignment.details, evidence)) is not None:
            raise exception.UnclaimFailed(
                *assignment.key, f'it may not be the recorded one: its {unread} cannot be read '
                f'with the driver {function.driver or "(none)"}, or could not be read when it was claimed')


def _said(value: str | int) -> str:
    return 'none' if value in ('', -1) else str(value)
