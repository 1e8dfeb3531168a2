"""Ports of networks that guests get as virtual functions of the host's network cards."""

from __future__ import annotations

import re
from typing import Final
from typing import NamedTuple

from oslo_versionedobjects import fields as ovo_fields

from devicetrack import ethernet
from devicetrack import vocabulary
from devicetrack.objects import base
from devicetrack.objects.choice import Choice
from devicetrack.objects.choice import Features

_PREFIX: Final = 'CUSTOM_PCI_NETWORK_'
_BETWEEN: Final = re.compile('[^0-9A-Z]+')
_TRUSTED: Final = 'trusted=yes'


class Port(NamedTuple):
    """The settings of a virtual function in a physical network. ``vlan`` is 0 for none."""

    physical_network: str
    mac: str
    vlan: int = 0
    trusted: bool = False

    def check(self) -> None:
        """:raises ValueError: no guest can have this port; says why"""
        resource_class_of(self.physical_network)
        ethernet.check_mac(self.mac)
        if self.mac == ethernet.NO_MAC:
            raise ValueError(f'the MAC address {self.mac} is none: write the one that the guest is to have')
        ethernet.check_vlan(self.vlan)

    def choice(self, resource_class: str) -> Choice:
        """The functions of a class that can be this port."""
        return Choice(resource_class, frozenset(features(self.physical_network, self.trusted)))


def resource_class_of(physical_network: str) -> str:
    """Return the resource class that counts the virtual functions of a physical network.

    :raises ValueError: placement does not accept the name
    """
    name = _PREFIX + _BETWEEN.sub('_', physical_network.upper())
    if name == _PREFIX or not vocabulary.PLACEMENT_NAME.fullmatch(name):
        raise ValueError(f'the physical network {physical_network!r} cannot be counted: write a name of 1 to '
                         f'{255 - len(_PREFIX)} letters and digits')
    return name


def features(physical_network: str, trusted: bool) -> Features:
    """The features that a function of a physical network has, and that a port needs.

    The resource class is not enough: names that differ only in punctuation have the same class.

    :param trusted: whether the options let a trusted guest have the function
    """
    return f'physical_network={physical_network}', *((_TRUSTED,) if trusted else ())


@base.register
class NetworkPort(base.DeviceTrackObject):
    """A port of a physical network, which a guest gets as a virtual function.

    ``physical_network`` is the name that ``[pci] device_spec`` has for it. ``mac`` is the address of the port, in lower
    case, and ``vlan`` its VLAN, 0 for none. A ``trusted`` guest may change its address and see traffic that is not
    for it; it gets only a function for which the options allow that.
    """

    VERSION = '1.0'
    fields = {
        'physical_network': ovo_fields.StringField(),
        'mac': ovo_fields.StringField(),
        'vlan': ovo_fields.IntegerField(default=0),
        'trusted': ovo_fields.BooleanField(default=False),
    }
    physical_network: str
    mac: str
    vlan: int
    trusted: bool

    def as_port(self) -> Port:
        return Port(self.physical_network, self.mac, self.vlan, self.trusted)
