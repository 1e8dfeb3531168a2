"""Virtual functions that guests get as ports of networks: their MAC address, VLAN and trust.

The kernel keeps these at the physical function, and gives them to the function whenever it starts anew. libvirt writes
MAC address and VLAN when a guest starts, and afterwards what it found before, which is not always nothing. So the port
is written before the guest starts, and all of it is taken away, and read back, before the function is anybody else's.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Final
from xml.sax.saxutils import quoteattr

from devicetrack import exception
from devicetrack.conf import pci as options
from devicetrack.objects import DeviceAssignment
from devicetrack.objects import PCIDetails
from devicetrack.objects.network_port import Port
from devicetrack.virt.libvirt import pci_sysfs
from devicetrack.virt.libvirt import privileged
from devicetrack.virt.libvirt import vf_link
from devicetrack.virt.libvirt import vf_ports

OPTION: Final = f'[{options.SERVICE_GROUP}] device_spec'


def problem(tree: pci_sysfs.Tree, function: pci_sysfs.Function, down: dict[str, str | None]) -> str | None:
    """Say why a virtual function can be no port now; None if it can.

    :param down: by physical function, what was read of it already
    """
    physfn = function.physfn
    if physfn is None:
        return None
    if physfn not in down:
        try:
            name = vf_ports.interface_down(tree.root, physfn)
            down[physfn] = None if name is None else (
                f'the interface {name} of its physical function is down, and no guest starts with a port of it: turn '
                f'it on (ip link set {name} up)')
        except (OSError, ValueError) as error:
            down[physfn] = f'the interface of its physical function cannot be read: {error}'
    return down[physfn]


def realize(tree: pci_sysfs.Tree, assignment: DeviceAssignment, function: pci_sysfs.Function) -> None:
    """Write the port of a function, if it is one.

    :raises RealizeFailed: it cannot be written, or nothing says which port it is
    """
    if not assignment.details.needs_port:
        return
    port = assignment.details.port
    if port is None:
        raise exception.RealizeFailed(
            assignment.kind, assignment.identifier, 'it is of the physical network '
            f'{assignment.details.physical_network}, and its row has no port: its guest was adopted; claim it anew')
    try:
        privileged.set_vf_port(tree.root, function.address, port.mac, port.vlan, port.trusted)
    except OSError as error:
        raise exception.RealizeFailed(assignment.kind, assignment.identifier,
                                      f'its port cannot be set: {error.strerror or error}') from error


def take_away(tree: pci_sysfs.Tree, assignment: DeviceAssignment, function: pci_sysfs.Function) -> None:
    """Take the port from a function that nobody uses, and see that nothing is left of it.

    :raises UnclaimFailed: something is left, or the kernel does not tell
    """
    if not assignment.details.needs_port:
        return
    try:
        privileged.set_vf_port(tree.root, function.address, vf_link.NO_MAC, 0, False)
    except OSError as error:
        raise exception.UnclaimFailed(assignment.kind, assignment.identifier,
                                      f'its port cannot be taken away: {error.strerror or error}') from error


def element(address: str, port: Port, managed: str) -> str:
    """The element of a port in a guest's definition.

    :param address: the attributes of its function's address
    """
    vlan = f"<vlan><tag id='{port.vlan}'/></vlan>" if port.vlan else ''
    return (f"<interface type='hostdev' managed='{managed}'><mac address={quoteattr(port.mac)}/>"
            f"<source><address type='pci' {address}/></source>{vlan}</interface>")


def differences(tree: pci_sysfs.Tree, recorded: Mapping[str, PCIDetails],
                in_guest: Callable[[str], pci_sysfs.Function | None]) -> Iterator[tuple[str, str]]:
    """Find the ports of guests that run of which the kernel says something else than rows.

    Without a guest nothing is wrong: what libvirt leaves differs, and the port is written before a guest starts.

    :param in_guest: the function of a row by its name, while a guest has it
    :returns: names, with what differs
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
            yield name, (f'its guest has the port {wanted}, and {link.name} says of it: {found}. Stop the guest and '
                         'start it again')


def _link(tree: pci_sysfs.Tree, address: str) -> vf_link.Link | OSError:
    try:
        return vf_ports.place_of(tree.root, address).link()
    except OSError as error:
        return error
