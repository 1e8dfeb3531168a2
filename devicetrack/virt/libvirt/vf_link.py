"""The MAC address, VLAN and trust of virtual functions, which the kernel keeps at their physical function's interface.

Only rtnetlink can read and write them (rtnetlink(7), netlink(7)). Linux defines the messages in
include/uapi/linux/rtnetlink.h, if_link.h and netlink.h; do_setvfinfo and rtnl_fill_vfinfo in net/core/rtnetlink.c show
what the kernel does with them. Everybody may read. Writing needs CAP_NET_ADMIN in the network namespace of the
interface.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import errno
import os
import socket
import struct
from typing import Final
from typing import NamedTuple

from devicetrack import ethernet
from devicetrack.virt.libvirt import netlink

NO_MAC: Final = ethernet.NO_MAC
# libvirt writes this address where a driver refuses to remove one (virNetDevSetVfConfig: src/util/virnetdev.c).
INSTEAD_OF_NO_MAC: Final = '02:00:00:00:00:00'
MAX_VLAN: Final = ethernet.MAX_VLAN

_MAC_BYTES: Final = 6
_INTERFACE: Final = struct.Struct('=BxHiII')            # ifinfomsg: family, type, index, flags, change
_ATTRIBUTE: Final = struct.Struct('=HH')                # rtattr: length, type
_VF_MAC: Final = struct.Struct('=I32s')                 # ifla_vf_mac: number, address
_VF_VLAN: Final = struct.Struct('=III')                 # ifla_vf_vlan: number, VLAN, priority
_VF_TRUST: Final = struct.Struct('=II')                 # ifla_vf_trust: number, setting
_NUMBER: Final = struct.Struct('=I')
_RTM_NEWLINK, _RTM_GETLINK, _RTM_SETLINK = 16, 18, 19
_NLM_F_ACK: Final = 4
_IFLA_IFNAME, _IFLA_VFINFO_LIST, _IFLA_EXT_MASK = 3, 22, 29
_IFLA_VF_INFO: Final = 1
_IFLA_VF_MAC, _IFLA_VF_VLAN, _IFLA_VF_TRUST = 1, 2, 9
# Ask for virtual functions, without their counters, which take time and room.
_FILTER: Final = 1 << 0 | 1 << 3                        # RTEXT_FILTER_VF, RTEXT_FILTER_SKIP_STATS
_TRUST_OFF: Final = 'trust off'
_TYPE: Final = 0x3FFF                                   # NLA_TYPE_MASK
_UNSAID: Final = 0xFFFFFFFF                             # rtnl_fill_vfinfo sets this where the driver says nothing


class Settings(NamedTuple):
    """The kernel's settings of one virtual function.

    ``mac`` is in lower case, and is :data:`NO_MAC` if no administrator set one. ``vlan`` is 0 for none. ``trusted`` is
    None where the driver does not say.
    """

    mac: str = NO_MAC
    vlan: int = 0
    trusted: bool | None = False

    @property
    def is_blank(self) -> bool:
        """Whether no setting of a port is left."""
        return self.mac in (NO_MAC, INSTEAD_OF_NO_MAC) and not self.vlan and not self.trusted

    def __str__(self) -> str:
        trust = 'the driver does not say whether it is trusted' if self.trusted is None else (
            'trusted' if self.trusted else 'not trusted')
        return f'MAC {self.mac}, VLAN {self.vlan or "none"}, {trust}'


BLANK: Final = Settings()


class Link(NamedTuple):
    """An interface, and its virtual functions by their numbers."""

    name: str
    vfs: Mapping[int, Settings]


def check(mac: str, vlan: int, trusted: bool) -> None:
    """Check that these can be the settings of a virtual function; a MAC address of zeroes means none.

    :raises ValueError: one cannot; the message says which, and why
    """
    ethernet.check_mac(mac)
    ethernet.check_vlan(vlan)
    if type(trusted) is not bool:
        raise ValueError(f'trusted is {trusted!r}: it must be true or false')


def read(index: int) -> Link:
    """Ask the kernel for an interface by its number.

    :raises OSError: there is none, or the answer is not what Linux documents
    """
    try:
        return parse_link(exchange(get_request(index)))
    except ValueError as error:
        raise OSError(errno.EBADMSG, f'the kernel gave an answer of an unknown form: {error}') from error


def write(index: int, number: int, before: Settings, after: Settings) -> None:
    """Have the kernel change the settings of one virtual function of an interface that differ, one at a time.

    A driver may accept one setting and refuse the next. After an interruption the caller calls again. Trust that the
    driver does not report may differ. If such a driver knows no trust (EOPNOTSUPP), there is none to remove.

    :raises OSError: the kernel refuses a setting, which the message names; the settings before it are written
    """
    for what, request in set_requests(index, number, before, after):
        try:
            check_answer(exchange(request))
        except ValueError as error:
            raise OSError(errno.EBADMSG, f'the kernel gave an answer of an unknown form: {error}') from error
        except OSError as error:
            if error.errno == errno.EOPNOTSUPP and what == _TRUST_OFF and before.trusted is None:
                continue
            raise OSError(error.errno, f'{what} is refused: {os.strerror(error.errno or 0)}') from error


def get_request(index: int) -> bytes:
    """Make the request for an interface with its virtual functions."""
    return _message(_RTM_GETLINK, netlink.REQUEST, index, _attribute(_IFLA_EXT_MASK, _NUMBER.pack(_FILTER)))


def set_requests(index: int, number: int, before: Settings, after: Settings) -> Iterator[tuple[str, bytes]]:
    """Make the requests that change settings, each with its name for messages."""
    if before.mac != after.mac:
        mac = bytes.fromhex(after.mac.replace(':', ''))
        yield f'the MAC address {after.mac}', _set_request(index, _IFLA_VF_MAC, _VF_MAC.pack(number, mac))
    if before.vlan != after.vlan:
        yield f'the VLAN {after.vlan}', _set_request(index, _IFLA_VF_VLAN, _VF_VLAN.pack(number, after.vlan, 0))
    if before.trusted is None or before.trusted != bool(after.trusted):
        yield 'trust on' if after.trusted else _TRUST_OFF, _set_request(
            index, _IFLA_VF_TRUST, _VF_TRUST.pack(number, bool(after.trusted)))


def _set_request(index: int, attribute: int, value: bytes) -> bytes:
    inner = _attribute(_IFLA_VF_INFO, _attribute(attribute, value))
    return _message(_RTM_SETLINK, netlink.REQUEST | _NLM_F_ACK, index, _attribute(_IFLA_VFINFO_LIST, inner))


def _message(kind: int, flags: int, index: int, attributes: bytes) -> bytes:
    body = _INTERFACE.pack(socket.AF_UNSPEC, 0, index, 0, 0) + attributes
    return netlink.HEADER.pack(netlink.HEADER.size + len(body), kind, flags, 0, 0) + body


def _attribute(kind: int, value: bytes) -> bytes:
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + len(value), kind) + value + bytes(-len(value) % 4)


def check_answer(answer: bytes) -> None:
    """Check that the kernel carried out a request of :func:`set_requests`.

    :raises OSError: the kernel did not
    :raises ValueError: the bytes are not an answer to such a request
    """
    kind, body = _read_message(answer)
    if kind != netlink.ERROR_TYPE:
        raise ValueError(f'a message of type {kind}')


def parse_link(answer: bytes) -> Link:
    """Read the answer to :func:`get_request`.

    :raises OSError: the kernel refused the request
    :raises ValueError: the bytes are not an answer to such a request
    """
    kind, body = _read_message(answer)
    if kind != _RTM_NEWLINK or len(body) < _INTERFACE.size:
        raise ValueError(f'a message of type {kind} with {len(body)} bytes')
    name, vfs = '', dict[int, Settings]()
    for attribute, value in _attributes(body[_INTERFACE.size:]):
        if attribute == _IFLA_IFNAME:
            name = os.fsdecode(value.rstrip(b'\0'))
        elif attribute == _IFLA_VFINFO_LIST:
            vfs = dict(_vf(inner) for sort, inner in _attributes(value) if sort == _IFLA_VF_INFO)
    return Link(name, vfs)


def _vf(data: bytes) -> tuple[int, Settings]:
    found = dict(_attributes(data))
    try:
        number, mac = _VF_MAC.unpack(found[_IFLA_VF_MAC])
        numbers, vlan, trust = {number}, 0, _UNSAID
        if _IFLA_VF_VLAN in found:
            of_vlan, vlan, _priority = _VF_VLAN.unpack(found[_IFLA_VF_VLAN])
            numbers.add(of_vlan)
        if _IFLA_VF_TRUST in found:
            of_trust, trust = _VF_TRUST.unpack(found[_IFLA_VF_TRUST])
            numbers.add(of_trust)
    except (KeyError, struct.error) as error:
        raise ValueError(f'a virtual function without its address, or settings of another size: {error}') from error
    if len(numbers) > 1:
        raise ValueError(f'one virtual function has the numbers {sorted(numbers)}')
    return number, Settings(mac[:_MAC_BYTES].hex(':'), vlan, None if trust == _UNSAID else bool(trust))


def _read_message(data: bytes) -> tuple[int, bytes]:
    """Return the type and the body of the first message. An error message with the number 0 is an acknowledgement."""
    kind, _flags, body, _rest = netlink.first_message(data)
    if kind == netlink.ERROR_TYPE:
        if len(body) < netlink.ERROR.size:
            raise ValueError('an error without a number')
        [number] = netlink.ERROR.unpack_from(body)
        if number:
            raise OSError(-number, os.strerror(abs(number)))
    return kind, body


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    while data:
        if len(data) < _ATTRIBUTE.size:
            raise ValueError(f'{len(data)} bytes after the last attribute')
        length, kind = _ATTRIBUTE.unpack_from(data)
        if not _ATTRIBUTE.size <= length <= len(data):
            raise ValueError(f'an attribute of {length} bytes in {len(data)}')
        yield kind & _TYPE, data[_ATTRIBUTE.size:length]
        data = data[length + -length % 4:]


def exchange(request: bytes) -> bytes:
    """Send a request to the kernel, and receive its answer. The errors are those of :func:`.netlink.ask`."""
    with contextlib.closing(netlink.ask(request)) as parts:
        return next(parts)
