"""PCI functions of a host in memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from typing import Final

from devicetrack import vocabulary
from devicetrack.objects import network_port
from devicetrack.objects import PCIDetails
from devicetrack.objects import things
from devicetrack.objects.values import InventoryDevice

PCI: Final = 'pci'

# Those fields that tests change and that tell a function from another one in its slot.
IDENTITY: Final = ('vendor_id', 'product_id', 'serial', 'parent_card', 'parent_serial', 'vf_number')


def function(address: str, resource_class: str, physfn: str | None, has_vfs: bool, vf_number: int, group: str | None,
             serial: str, numa_node: int | None, traits: Iterable[str],
             physical_network: str = '') -> tuple[InventoryDevice, dict[str, Any]]:
    """Make a function as the inventory has it, but without details, and the fields of its details."""
    device_type = 'type-VF' if physfn is not None else 'type-PF' if has_vfs else 'type-PCI'
    exclusions = [*things.of_card(address, physfn, has_vfs)]
    if group is not None:
        exclusions.append((things.of_group(group), vocabulary.TOGETHER))
    card = physfn or address
    device = InventoryDevice(PCI, address, card.upper(), resource_class, card, numa_node, '',
                             exclusions=tuple(exclusions),
                             features=network_port.features(physical_network, True) if physical_network else ())
    return (device,
            {'address': address, 'vendor_id': '1b36', 'product_id': '0010', 'subsystem': '1af4:1100', 'serial': serial,
             'parent_address': physfn or '', 'vf_number': vf_number, 'device_type': device_type, 'driver': 'nvme',
             'parent_card': '' if physfn is None else f'1b36:0010 1af4:1100 {physfn.rpartition(".")[2]}',
             'parent_serial': '', 'disks': '', 'config': '', 'traits_of_spec': sorted(traits),
             'physical_network': physical_network})


def differs(found: dict[str, Any], recorded: PCIDetails) -> str | None:
    """Return the first field in which a function differs from the recorded one; None if it is the same function."""
    return next((name for name in IDENTITY if found[name] != getattr(recorded, name)), None)
