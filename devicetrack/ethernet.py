"""Checks the MAC address and the VLAN of a port of an Ethernet network."""

from __future__ import annotations

import re
from typing import Final

NO_MAC: Final = '00:00:00:00:00:00'
MAX_VLAN: Final = 4094                  # 802.1Q: 0 is none, and 4095 is reserved

_MAC: Final = re.compile('[0-9a-f]{2}(:[0-9a-f]{2}){5}')


def check_mac(mac: object) -> None:
    """Check that a MAC address can belong to one station, and is in lower case. All zeroes are allowed.

    :raises ValueError: it cannot; says why
    """
    if not isinstance(mac, str) or not _MAC.fullmatch(mac):
        raise ValueError(f'{mac!r} is not a MAC address: write six pairs of lower-case hexadecimal digits with colons')
    if int(mac[:2], 16) & 1:
        raise ValueError(f'the MAC address {mac} is a group address: a port needs an individual address')


def check_vlan(vlan: object) -> None:
    """Check that a value is the number of a VLAN, or 0 for no VLAN.

    :raises ValueError: it is not; says why
    """
    if type(vlan) is not int or not 0 <= vlan <= MAX_VLAN:
        raise ValueError(f'{vlan!r} is not a VLAN: write a number from 1 to {MAX_VLAN}, or 0 for no VLAN')
