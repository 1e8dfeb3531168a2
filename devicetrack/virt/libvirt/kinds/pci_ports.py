"""Virtual functions that guests get as ports of networks: their MAC address, VLAN and trust.

The kernel keeps these settings at the physical function, and applies them whenever the virtual function starts anew.
libvirt writes the MAC address and the VLAN when a guest starts, and afterwards restores the values that it found, which
may be those of an earlier port. So devicetrack writes the port before the guest starts, and removes all settings and
reads them back before anybody else gets the function.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import errno
import functools
from typing import Final
from xml.sax.saxutils import quoteattr

from devicetrack import exception
from devicetrack import filelock
from devicetrack import log
from devicetrack.objects import DeviceAssignment
from devicetrack.objects import PCIDetails
from devicetrack.objects.network_port import Port
from devicetrack.virt.libvirt import guest_xml
from devicetrack.virt.libvirt import pci_sysfs
from devicetrack.virt.libvirt import vf_link
from devicetrack.virt.libvirt import vf_ports
from devicetrack.virt.libvirt.kinds import busy

LOG = log.logger(__name__)

# How drivers refuse a MAC address that another function of the card has (ice_set_vf_mac in Linux 5.15:
# drivers/net/ethernet/intel/ice; hclge_set_vf_mac in Linux 5.10: drivers/net/ethernet/hisilicon/hns3).
_TAKEN: Final = frozenset((errno.EINVAL, errno.EEXIST))


def problem(tree: pci_sysfs.Tree, physfn: str) -> str | None:
    """Say why no virtual function of a physical one can be a port now; None if they can."""
    try:
        found = vf_ports.uplink(tree.root, physfn)
    except vf_ports.NoUplink as none:
        return f'{none.strerror}, in the network namespace of this service'
    except (OSError, ValueError) as error:
        return f'the interface of its physical function cannot be read: {error}'
    return None if found.is_up else (f'the interface {found.name} of its physical function is down, so no guest can '
                                     f'start with a port of it: turn it on (ip link set {found.name} up)')


def realize(tree: pci_sysfs.Tree, assignment: DeviceAssignment, function: pci_sysfs.Function, wait_s: float,
            is_ours: Callable[[str], bool]) -> None:
    """Write the port of a function, if it is one.

    :param wait_s: how long the function may be busy, for example in a reset
    :param is_ours: whether this library hands out the function at an address
    :raises RealizeFailed: the port cannot be written, or the row does not say which port it is
    :raises CommandFailed: another function of the card has its MAC address, and the driver refuses that
    """
    if not assignment.details.needs_port:
        return
    port = assignment.details.port
    if port is None:
        raise exception.RealizeFailed(
            *assignment.key, 'it belongs to the physical network '
            f'{assignment.details.physical_network}, but its row has no port: its guest was adopted; claim it anew')
    others: Collection[str] = ()
    try:
        others = _free_address(tree, function.address, port, is_ours)
        _set(tree, function, port.mac, port.vlan, port.trusted, wait_s)
    except OSError as error:
        reason = f'its port cannot be set: {error.strerror or error}'
        if others and error.errno in _TAKEN:
            raise exception.CommandFailed(f'pci/{assignment.identifier}', f'{reason}; {", ".join(others)} of the same '
                                          'card has that address too') from error
        raise exception.RealizeFailed(*assignment.key, reason) from error


def _free_address(tree: pci_sysfs.Tree, address: str, port: Port, is_ours: Callable[[str], bool]) -> Collection[str]:
    """Remove a port from the other functions of its card that have it, and that no guest has.

    :param is_ours: as for :func:`realize`
    :returns: the functions that have its MAC address afterwards
    :raises OSError: the kernel does not tell
    """
    found = vf_ports.of_mac(tree.root, address, port.mac)
    for other, settings in found.items():
        if settings.vlan != port.vlan or not is_ours(other):
            continue
        # One that a guest has is left as it is, and so is one on which somebody works.
        with contextlib.suppress(OSError, filelock.FileLocked), filelock.NodeLock(tree.path(other)):
            vf_ports.set_port(tree.root, other, vf_link.NO_MAC, 0, False)
    return vf_ports.of_mac(tree.root, address, port.mac) if found else ()


def take_away(tree: pci_sysfs.Tree, assignment: DeviceAssignment, function: pci_sysfs.Function, wait_s: float) -> None:
    """Remove the port's settings from a function that nobody uses, and check that none is left.

    If its physical function has no interface here, nobody can do that. Then nobody gets the function as a port either,
    and once the interface is back, the next port replaces all settings.

    :param wait_s: as for :func:`realize`
    :raises UnclaimFailed: a setting is left, or the kernel does not tell
    """
    if not assignment.details.needs_port:
        return
    try:
        _set(tree, function, vf_link.NO_MAC, 0, False, wait_s)
    except OSError as error:
        if function.physfn is not None and vf_ports.has_no_uplink(tree.root, function.physfn):
            LOG.warning('%(kind)s/%(identifier)s: its port stays set, since its physical function has no interface '
                        'here', {'kind': assignment.kind, 'identifier': assignment.identifier})
            return
        raise exception.UnclaimFailed(*assignment.key,
                                      f'its port cannot be taken away: {error.strerror or error}') from error


def _set(tree: pci_sysfs.Tree, function: pci_sysfs.Function, mac: str, vlan: int, trusted: bool, wait_s: float) -> None:
    busy.retried(functools.partial(vf_ports.set_port, tree.root, function.address, mac, vlan, trusted), wait_s)


def element(address: str, port: Port, managed: str) -> str:
    """Make the element of a port in a guest's definition."""
    vlan = f"<vlan><tag id='{port.vlan}'/></vlan>" if port.vlan else ''
    return (f"<interface type='hostdev' managed='{managed}'><mac address={quoteattr(port.mac)}/>"
            f"<source><address type='pci' {guest_xml.pci_attributes(address)}/></source>{vlan}</interface>")


def differences(tree: pci_sysfs.Tree, recorded: Mapping[str, PCIDetails],
                in_guest: Callable[[str], pci_sysfs.Function | None]) -> Iterator[tuple[str, str]]:
    """Find the ports of running guests whose settings in the kernel differ from the rows.

    Without a guest a difference is harmless: libvirt leaves other settings behind, and the port is written before a
    guest starts.

    :param in_guest: returns the function with a row's name, while a guest has it
    :returns: names, each with the difference
    """
    links: dict[str, vf_link.Link | OSError] = {}
    for name, row in sorted(recorded.items()):
        port = row.port
        function = None if port is None else in_guest(name)
        if port is None or function is None or function.physfn is None or function.vf_number is None:
            continue
        if function.physfn not in links:
            links[function.physfn] = _link(tree, function.address)
        link = links[function.physfn]
        if isinstance(link, OSError):
            yield name, f'the settings of its port cannot be read: {link.strerror or link}'
            continue
        found = link.vfs.get(function.vf_number)
        wanted = vf_link.Settings(port.mac, port.vlan, port.trusted)
        if found is None:
            yield name, f'{link.name} has no virtual function {function.vf_number}'
        elif not vf_ports.is_set(found, wanted):
            yield name, (f'its guest has the port {wanted}, but {link.name} reports {found}. Stop the guest and start '
                         'it again')


def _link(tree: pci_sysfs.Tree, address: str) -> vf_link.Link | OSError:
    try:
        return vf_ports.place_of(tree.root, address).link()
    except OSError as error:
        return error
