"""Finds, reads and changes the kernel's settings of the virtual functions of network cards.

Changing them needs privileged.
"""

from __future__ import annotations

import errno
import os
import re
from typing import Final
from typing import NamedTuple

from devicetrack.virt.libvirt import kernel_files
from devicetrack.virt.libvirt import pci_privileged
from devicetrack.virt.libvirt import privileged
from devicetrack.virt.libvirt import vf_link

# The name of a card's switch port that leads to one of its functions (Linux: Documentation/networking/switchdev.rst).
_REPRESENTOR: Final = re.compile(r'(c[0-9]+)?pf[0-9]+(vf|sf)[0-9]+')
_UP: Final = 1                          # IFF_UP (netdevice(7))


@privileged.in_sysfs
def set_port(sysfs: str, address: str, mac: str, vlan: int, trusted: bool) -> None:
    """Give a virtual function of a network card these settings; :data:`.vf_link.NO_MAC`, 0 and False remove them.

    This writes only the settings that differ, one after the other, and reads them back. Trust that the driver does not
    report is written each time, unless a guest has the function and all reported settings are as wanted. If the driver
    refuses to remove a MAC address, the function gets :data:`.vf_link.INSTEAD_OF_NO_MAC`.

    :raises OSError: EINVAL: it is not a virtual function, or the settings are invalid; EBUSY: somebody uses it, as
        :func:`.pci_privileged.unbind` says; ENODEV: its physical function does not have exactly one network interface
        here; EIO: the kernel reports other settings afterwards; else, the kernel refuses a setting, which the message
        names, or there is no privileged daemon. After an error the function may have some of the settings
    """
    try:
        vf_link.check(mac, vlan, trusted)
    except ValueError as error:
        raise OSError(errno.EINVAL, str(error)) from error
    place, wanted = place_of(sysfs, address), vf_link.Settings(mac, vlan, trusted)
    before = place.read()
    # Trust that the driver does not report may be left over from an earlier port. A guest that has the function got it
    # after that trust was written.
    if is_set(before, wanted) and (before.trusted is not None or (
            not wanted.is_blank and _has_guest(sysfs, address))):
        return
    # A guest that uses the function would lose its network, and so would the host.
    pci_privileged.check_unused(sysfs, address)
    try:
        vf_link.write(place.interface_index, place.number, before, wanted)
    except OSError as error:
        # Some drivers let nobody remove an address.
        if mac != vf_link.NO_MAC or error.errno not in (errno.EINVAL, errno.EADDRNOTAVAIL):
            raise
        wanted = wanted._replace(mac=vf_link.INSTEAD_OF_NO_MAC)
        vf_link.write(place.interface_index, place.number, place.read(), wanted)
    after = place.read()
    if not is_set(after, wanted):
        raise OSError(errno.EIO, f'it was set to {wanted}, but {place.interface} reports {after}')


def _has_guest(sysfs: str, address: str) -> bool:
    try:
        pci_privileged.check_no_guest(sysfs, address)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        return True
    return False


def is_set(found: vf_link.Settings, wanted: vf_link.Settings) -> bool:
    """Whether a function has the wanted settings, as far as its driver tells."""
    return found == wanted or (found.is_blank and wanted.is_blank) or (
        found.trusted is None and not wanted.trusted and found[:2] == wanted[:2])


class VFPlace(NamedTuple):
    """The place of a virtual function's settings: an interface, that interface's number, and the function's number."""

    interface: str
    interface_index: int
    number: int

    def read(self) -> vf_link.Settings:
        """:raises OSError: the kernel does not tell"""
        link = self.link()
        if self.number not in link.vfs:
            raise OSError(errno.ENODEV, f'the kernel tells nothing of virtual function {self.number} of '
                                        f'{self.interface}')
        return link.vfs[self.number]

    def link(self) -> vf_link.Link:
        """Read all virtual functions of the interface.

        :raises OSError: the kernel does not tell, or another interface has the number now
        """
        link = vf_link.read(self.interface_index)
        if link.name != self.interface:
            raise OSError(errno.ESTALE, f'{self.interface} is {link.name} now')
        return link


def place_of(sysfs: str, address: str) -> VFPlace:
    """Find where the kernel keeps the settings of a virtual function.

    :raises OSError: it is not a virtual function, or its physical function does not have exactly one interface here
    """
    physfn, number = pci_privileged.vf_of(sysfs, address)
    name = _only_uplink(physfn)
    index = int(kernel_files.text(physfn, 'net', name, 'ifindex'))
    return VFPlace(name, index, number)


def of_mac(sysfs: str, address: str, mac: str) -> dict[str, vf_link.Settings]:
    """Find the other virtual functions of a card that have a MAC address, with their settings, by PCI address.

    :raises OSError: as :func:`place_of`, or the kernel does not tell
    """
    place = place_of(sysfs, address)
    numbered = pci_privileged.numbered_vfs(os.path.join(pci_privileged.path_of(sysfs, address), 'physfn'))
    return {numbered[number]: settings for number, settings in place.link().vfs.items()
            if settings.mac == mac and number in numbered.keys() - {place.number}}


class NoUplink(OSError):
    """A physical function does not have exactly one interface in this network namespace."""


class Uplink(NamedTuple):
    """The interface of a physical function.

    While it is down, no guest can start with a port of it: its driver does not pass the settings on (igb_set_vf_mac in
    Linux: drivers/net/ethernet/intel/igb/igb_main.c), and libvirt refuses (virNetDevSaveNetConfig:
    src/util/virnetdev.c).
    """

    name: str
    is_up: bool


def uplink(sysfs: str, physfn: str) -> Uplink:
    """Read the interface of a physical function.

    :raises NoUplink: there is none here, or not exactly one
    :raises OSError: it cannot be read
    """
    directory = pci_privileged.path_of(sysfs, physfn)
    name = _only_uplink(directory)
    return Uplink(name, bool(int(kernel_files.text(directory, 'net', name, 'flags'), 16) & _UP))


def has_no_uplink(sysfs: str, physfn: str) -> bool:
    """Whether a physical function certainly has no interface here."""
    try:
        return not _uplinks(os.path.join(pci_privileged.path_of(sysfs, physfn), 'net'))
    except OSError:
        return False


def _only_uplink(physfn: str) -> str:
    names = _uplinks(os.path.join(physfn, 'net'))
    if len(names) != 1:
        raise NoUplink(errno.ENODEV, f'the physical function {os.path.basename(physfn)} has the interfaces '
                                     f'{", ".join(names) or "none"}, and one is needed')
    return names[0]


def _uplinks(directory: str) -> list[str]:
    """Return a physical function's own interfaces. A switch in the card adds one for each virtual function."""
    try:
        names = sorted(os.listdir(directory))
    except FileNotFoundError:
        return []
    found = []
    for name in names:
        try:
            port = kernel_files.text(directory, name, 'phys_port_name')
        except OSError:                 # nearly all drivers give none: ENOENT, EOPNOTSUPP
            port = ''
        if not _REPRESENTOR.fullmatch(port):
            found.append(name)
    return found
