"""The content of a PCI function's row: which function it is, and the state to restore after a guest."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Final
from typing import NamedTuple

from devicetrack.objects import details
from devicetrack.objects import PCIDetails
from devicetrack.objects.network_port import Port
from devicetrack.virt.libvirt import pci_sysfs
from devicetrack.virt.libvirt.kinds import pci_places
from devicetrack.virt.libvirt.kinds import pci_serials

# In the details of a function that is no disk.
_NO_DISKS: Final = '"disks":""'


class Before(NamedTuple):
    """The state of a function to restore after a guest."""

    driver: str
    disks: str | None
    config: str = ''
    physical_network: str = ''
    port: Port | None = None
    interfaces: Sequence[str] | None = None
    claimed_parent: str = ''


def as_details(function: pci_sysfs.Function, evidence: pci_serials.Evidence, before: Before,
               traits: Collection[str]) -> PCIDetails:
    """Make the details from a function's identity and the state to restore."""
    port = before.port or Port(before.physical_network, '')
    return PCIDetails(
        address=function.address, vendor_id=function.vendor_id, product_id=function.product_id,
        subsystem=function.subsystem or '', serial=evidence.serial, parent_address=function.physfn or '',
        parent_card=evidence.parent_card, parent_serial=evidence.parent_serial,
        vf_number=-1 if function.vf_number is None else function.vf_number, device_type=function.device_type,
        driver=before.driver, disks=before.disks, config=before.config, traits_of_spec=sorted(traits),
        physical_network=before.physical_network, mac=port.mac, vlan=port.vlan, trusted=port.trusted,
        interfaces=None if before.interfaces is None else list(before.interfaces), claimed_parent=before.claimed_parent,
        no_serial=evidence.no_serial, nvm_subsystem=evidence.nvm_subsystem)


def as_text(function: pci_sysfs.Function, evidence: pci_serials.Evidence, disks: str | None,
            traits: frozenset[str], physical_network: str, interfaces: tuple[str, ...] | None) -> str:
    """Return the details of a function in stock, in its present state, as text."""
    before = Before(function.driver or '', disks, physical_network=physical_network, interfaces=interfaces,
                    claimed_parent=function.physfn or '')
    return details.to_text(as_details(function, evidence, before, traits))


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

    They begin with a boot, and where the disks are that nothing tells apart from these (:mod:`.pci_alike`): if that
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
