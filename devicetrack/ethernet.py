"""What a port of an Ethernet network may have."""

from __future__ import annotations

import re
from typing import Final

NO_MAC: Final = '00:00:00:00:00:00'
MAX_VLAN: Final = 4094                  # 802.1Q: 0 is none, and 4095 is reserved

_MAC: Final = re.compile('[0-9a-f]{2}(:[0-9a-f]{2}){5}')


def check_mac(mac: object) -> None:
    """Check that it can be the address of one station, in small digits; one of zeroes can.

    :raises ValueError: it cannot; says why
    """
    if not isinstance(mac, str) or not _MAC.fullmatch(mac):
        raise ValueError(f'the MAC address {mac!r} is none: write six pairs of small hexadecimal digits with colons')
    if int(mac[:2], 16) & 1:
        raise ValueError(f'the MAC address {mac} is one of a group: a port has one of its own')


def check_vlan(vlan: object) -> None:
    """Check that it is the number of a VLAN, or 0 for none.

    :raises ValueError: it is not; says why
    """
    if type(vlan) is not int or not 0 <= vlan <= MAX_VLAN:
        raise ValueError(f'the VLAN {vlan!r} is none: write a number from 1 to {MAX_VLAN}, or 0 for no VLAN')
