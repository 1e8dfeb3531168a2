"""The PCI functions of the hosts of Nova's functional tests, as a kernel would show them to our kind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lxml import etree

from devicetrack.virt.libvirt import pci_sysfs
from devicetrack.virt.libvirt.kinds import pci


def functions(fake: Any) -> Iterator[pci_sysfs.Function]:
    """Read those of a connection of Nova's tests from their node devices."""
    found: dict[str, pci_sysfs.Function] = {}
    for device in fake.pci_info.devices.values():
        described: Any = etree.fromstring(device.XMLDesc(0)).find('capability[@type="pci"]')
        physfn = described.find('capability[@type="phys_function"]/address')
        vfs = described.findall('capability[@type="virt_functions"]/address')
        address = _address(*(int(described.findtext(name)) for name in ('domain', 'bus', 'slot', 'function')))
        found[address] = pci_sysfs.Function(
            address, _id(described, 'vendor'), _id(described, 'product'), class_code='020000',
            iommu_group=len(found) + 1, physfn=None if physfn is None else _read(physfn),
            vf_number=None if physfn is None else 0, vfs=tuple(map(_read, vfs)), total_vfs=len(vfs))
    for _address_of, function in sorted(found.items()):
        yield function._replace(parent=found.get(function.physfn or ''))


def _id(described: Any, name: str) -> str:
    found: str = described.find(name).get('id')
    return found.removeprefix('0x')


def _read(element: Any) -> str:
    return _address(*(int(element.get(name), 16) for name in ('domain', 'bus', 'slot', 'function')))


def _address(domain: int, bus: int, slot: int, function: int) -> str:
    return f'{domain:04x}:{bus:02x}:{slot:02x}.{function}'


class _Tree(pci_sysfs.Tree):
    """The functions of one host, all of which answer."""

    kind: Any

    def functions(self) -> list[pci_sysfs.Function]:
        return list(functions(self.kind.hypervisor.raw().fake))

    def silence(self, address: str) -> str | None:
        return None


class _Unused:
    """A host that uses none of its functions."""

    def of(self, address: str) -> str | None:
        return None


def show(kind: pci.PCI) -> None:
    """Have a kind see them."""
    tree = _Tree(kind.tree.root)
    tree.kind = kind
    kind.tree = kind._serials._tree = kind._health._tree = tree
    kind.host_use = _Unused     # type: ignore[assignment]
