"""The kernel's answers about the settings of virtual functions, for :class:`devicetrack.testing.pci.PCIHost`.

pyroute2 makes the requests and reads the answers, which are bytes in the layout of Linux (rtnl_fill_vfinfo and
do_setvfinfo in net/core/rtnetlink.c). The settings follow the rules of igb
(drivers/net/ethernet/intel/igb/igb_main.c).
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import errno
import os
import struct
from typing import Any
from typing import Final
from typing import NamedTuple

from devicetrack.virt.libvirt import vf_link
from devicetrack.virt.libvirt.vf_link import Settings

_NLMSG_ERROR, _RTM_NEWLINK, _RTM_GETLINK = 2, 16, 18
_IFLA_IFNAME, _IFLA_NUM_VF, _IFLA_VFINFO_LIST = 3, 21, 22
_VF_MAC, _VF_VLAN, _VF_SPOOFCHK, _VF_TRUST, _VF_VLAN_LIST = 1, 2, 4, 9, 12
_NESTED: Final = 1 << 15
_UNSAID: Final = 0xFFFFFFFF
_INTERFACE_BYTES: Final = 16
_IEEE_802_1Q: Final = 0x81


class Card(NamedTuple):
    """The name of an interface, and the addresses of its virtual functions by number."""

    interface: str
    vfs: Mapping[int, str]


class Links:
    """The settings of all virtual functions of one host. ``settings`` has them by PCI address.

    :param card: finds an interface by its number, or returns None

    A test adds the PCI addresses of functions to these sets. The driver of a function in ``untrusting`` has no setting
    for trust: it does not report trust, and refuses to set it. The driver of a function in ``silent`` sets trust and
    does not report it. The driver of a function in ``clinging`` refuses to remove the MAC address. The driver of a
    function in ``deaf`` reports success and changes nothing. The driver of a function in ``resetting`` is in a reset:
    it refuses as many settings, each with the number of an error. The driver of a function in ``unique`` refuses a MAC
    address that another function of the card has. ``written`` has every PCI address with the settings that somebody
    wrote.
    """

    def __init__(self, card: Callable[[int], Card | None]) -> None:
        self._card = card
        self.settings: dict[str, Settings] = {}
        self.untrusting: set[str] = set()
        self.silent: set[str] = set()
        self.clinging: set[str] = set()
        self.deaf: set[str] = set()
        self.unique: set[str] = set()
        self.resetting: dict[str, list[int]] = {}
        self.written: list[tuple[str, str]] = []

    def of(self, address: str) -> Settings:
        found = self.settings.get(address, vf_link.BLANK)
        return found._replace(trusted=None) if address in self.untrusting | self.silent else found

    def link(self, command: str, **arguments: Any) -> Sequence[Any]:
        """In the place of :func:`devicetrack.virt.libvirt.vf_link.link`."""
        # As there: it takes long to load, and few tests set a port.
        import pyroute2
        from pyroute2.netlink.rtnl.iprsocket import MarshalRtnl
        with pyroute2.IPBatch() as batch:
            batch.link(command, **arguments)
            messages = tuple(MarshalRtnl().parse(self.exchange(bytes(batch.batch))))
        for message in messages:
            refused = message['header']['error']
            if refused is not None:
                raise OSError(refused.code, os.strerror(refused.code))
        return messages

    def exchange(self, request: bytes) -> bytes:
        """Answer a request."""
        length, kind, _flags, sequence, port = struct.unpack_from('=IHHII', request)
        assert length == len(request), request
        _family, _type, index, _flags, _change = struct.unpack_from('=BxHiII', request, 16)
        card = self._card(index)
        attributes = request[16 + _INTERFACE_BYTES:]
        if card is None:
            error = errno.ENODEV
        elif kind == _RTM_GETLINK:
            return _message(_RTM_NEWLINK, sequence, port, self._link(index, card))
        elif kind == _RTM_NEWLINK:
            error = self._set(card, attributes)
        else:
            error = errno.EOPNOTSUPP
        return _message(_NLMSG_ERROR, sequence, port, struct.pack('=i', -error) + request)

    def _link(self, index: int, card: Card) -> bytes:
        vfs = b''.join(_attribute(1 | _NESTED, self._vf(number, address)) for number, address in card.vfs.items())
        return struct.pack('=BxHiII', 0, 1, index, 0x1002, 0) + b''.join((
            _attribute(_IFLA_IFNAME, os.fsencode(card.interface) + b'\0'),
            _attribute(_IFLA_NUM_VF, struct.pack('=I', len(card.vfs))),
            _attribute(_IFLA_VFINFO_LIST | _NESTED, vfs)))

    def _vf(self, number: int, address: str) -> bytes:
        found = self.of(address)
        vlan = struct.pack('=IIIH2x', number, found.vlan, 0, _IEEE_802_1Q)
        return b''.join((
            _attribute(_VF_MAC, struct.pack('=I32s', number, bytes.fromhex(found.mac.replace(':', '')))),
            _attribute(_VF_VLAN, struct.pack('=III', number, found.vlan, 0)),
            _attribute(_VF_SPOOFCHK, struct.pack('=II', number, 1)),
            _attribute(_VF_TRUST, struct.pack('=II', number, _UNSAID if found.trusted is None else found.trusted)),
            _attribute(_VF_VLAN_LIST | _NESTED, _attribute(1, vlan))))

    def _set(self, card: Card, attributes: bytes) -> int:
        """Carry out a request; returns 0 or the number of an error."""
        [(kind, vfs)] = _attributes(attributes)
        assert kind == _IFLA_VFINFO_LIST, kind
        [(_info, settings)] = _attributes(vfs)
        for kind, value in _attributes(settings):
            [number] = struct.unpack_from('=I', value)
            if number not in card.vfs:
                return errno.EINVAL
            address = card.vfs[number]
            others = {self.of(one).mac for one in card.vfs.values() if one != address} - {vf_link.NO_MAC}
            if kind == _VF_MAC and address in self.unique and value[4:10].hex(':') in others:
                return errno.EINVAL
            error = self._set_one(address, kind, value[4:])
            if error:
                return error
        return 0

    def _set_one(self, address: str, kind: int, value: bytes) -> int:
        found = self.settings.get(address, vf_link.BLANK)
        if self.resetting.get(address):
            return self.resetting[address].pop(0)
        if kind == _VF_MAC:
            mac = value[:6].hex(':')
            if value[0] & 1 or (mac == vf_link.NO_MAC and address in self.clinging):
                return errno.EINVAL
            found = found._replace(mac=mac)
        elif kind == _VF_VLAN:
            vlan, priority = struct.unpack('=II', value)
            if vlan > vf_link.MAX_VLAN or priority > 7:
                return errno.EINVAL
            found = found._replace(vlan=vlan)
        elif kind == _VF_TRUST:
            if address in self.untrusting:
                return errno.EOPNOTSUPP
            found = found._replace(trusted=bool(*struct.unpack('=I', value)))
        else:
            return errno.EOPNOTSUPP
        self.written.append((address, str(found)))
        if address not in self.deaf:
            self.settings[address] = found
        return 0


def _message(kind: int, sequence: int, port: int, body: bytes) -> bytes:
    return struct.pack('=IHHII', 16 + len(body), kind, 0, sequence, port) + body


def _attribute(kind: int, value: bytes) -> bytes:
    return struct.pack('=HH', 4 + len(value), kind) + value + bytes(-len(value) % 4)


def _attributes(data: bytes) -> list[tuple[int, bytes]]:
    found = []
    while data:
        length, kind = struct.unpack_from('=HH', data)
        assert 4 <= length <= len(data), data
        found.append((kind, data[4:length]))
        data = data[length + -length % 4:]
    return found
