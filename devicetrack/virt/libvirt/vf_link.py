"""The MAC address, VLAN and trust of virtual functions, which the kernel keeps at their physical function's interface.

Only rtnetlink can read and write them (rtnetlink(7)); pyroute2 knows its messages. do_setvfinfo and rtnl_fill_vfinfo in
Linux (net/core/rtnetlink.c) show what the kernel does with them. Everybody may read. Writing needs CAP_NET_ADMIN in the
network namespace of the interface.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import errno
import functools
import os
import struct
from typing import Any
from typing import Final
from typing import NamedTuple

from devicetrack import ethernet
from devicetrack import exception
from devicetrack.virt.libvirt import bounded

TIMEOUT_S: Final = 10.0
NO_MAC: Final = ethernet.NO_MAC
# libvirt writes this address where a driver refuses to remove one (virNetDevSetVfConfig: src/util/virnetdev.c).
INSTEAD_OF_NO_MAC: Final = '02:00:00:00:00:00'
MAX_VLAN: Final = ethernet.MAX_VLAN

# Ask for virtual functions, without their counters, which take time and room.
_FILTER: Final = 1 << 0 | 1 << 3                        # RTEXT_FILTER_VF, RTEXT_FILTER_SKIP_STATS
_UNSAID: Final = 0xFFFFFFFF                             # rtnl_fill_vfinfo sets this where the driver says nothing
_TRUST_OFF: Final = 'trust off'
# One for all calls of the process: it also bounds how many late ones are on their way, each with a thread and sockets.
_CALLS: Final = bounded.Calls(TIMEOUT_S, into_c=True)


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
        [message] = link('get', index=index, ext_mask=_FILTER)
        listed = message.get_attr('IFLA_VFINFO_LIST')
        return Link(message.get_attr('IFLA_IFNAME') or '',
                    dict(map(_vf, listed.get_attrs('IFLA_VF_INFO'))) if listed is not None else {})
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise _unknown_form(error) from error


def _vf(found: Any) -> tuple[int, Settings]:
    mac, vlan, trust = map(found.get_attr, ('IFLA_VF_MAC', 'IFLA_VF_VLAN', 'IFLA_VF_TRUST'))
    is_said = trust is not None and trust['trust'] != _UNSAID
    return mac['vf'], Settings(mac['mac'], vlan['vlan'] if vlan is not None else 0,
                               bool(trust['trust']) if is_said else None)


def write(index: int, number: int, before: Settings, after: Settings) -> None:
    """Have the kernel change the settings of one virtual function of an interface that differ, one at a time.

    A driver may accept one setting and refuse the next. After an interruption the caller calls again. Trust that the
    driver does not report may differ. If such a driver knows no trust (EOPNOTSUPP), there is none to remove.

    :raises OSError: the kernel refuses a setting, which the message names; the settings before it are written
    """
    for what, setting in _changes(before, after):
        try:
            link('set', index=index, vf={'vf': number, **setting})
        except OSError as error:
            if error.errno == errno.EOPNOTSUPP and what == _TRUST_OFF and before.trusted is None:
                continue
            raise OSError(error.errno, f'{what} is refused: {os.strerror(error.errno or 0)}') from error


def _changes(before: Settings, after: Settings) -> Iterator[tuple[str, dict[str, str | int]]]:
    """Yield each setting that changes, with its name for messages and in the form of pyroute2."""
    if before.mac != after.mac:
        yield f'the MAC address {after.mac}', {'mac': after.mac}
    if before.vlan != after.vlan:
        yield f'the VLAN {after.vlan}', {'vlan': after.vlan}
    if before.trusted is None or before.trusted != bool(after.trusted):
        yield 'trust on' if after.trusted else _TRUST_OFF, {'trust': int(bool(after.trusted))}


def link(command: str, **arguments: Any) -> Sequence[Any]:
    """Have the kernel carry out ``IPRoute.link``, and return the messages of its answer.

    pyroute2 runs an event loop of asyncio in the calling thread, which fails in the threads of eventlet and in one that
    runs a loop already. So another thread makes the call.

    :raises OSError: the kernel refuses, does not answer in time, has not answered many earlier calls, or gives an
        answer that pyroute2 cannot read
    """
    try:
        return _CALLS.call(functools.partial(_ask, command, arguments))
    except bounded.Late as late:
        raise OSError(errno.ETIMEDOUT, f'the kernel: {late}') from late


def _ask(command: str, arguments: Mapping[str, Any]) -> Sequence[Any]:
    try:
        # Loading it takes 0.2 s, and most hosts set no port.
        import pyroute2
        from pyroute2.netlink.exceptions import NetlinkDecodeError
    except ModuleNotFoundError as missing:
        raise OSError(errno.ENOPKG, str(exception.MissingExtra('pyroute2', 'libvirt'))) from missing
    try:
        with pyroute2.IPRoute(groups=0) as route:
            return tuple(route.link(command, **arguments))
    except pyroute2.NetlinkError as error:
        raise OSError(error.code, os.strerror(error.code)) from error
    except (NetlinkDecodeError, struct.error) as error:
        raise _unknown_form(error) from error


def _unknown_form(error: Exception) -> OSError:
    return OSError(errno.EBADMSG, f'the kernel gave an answer of an unknown form: {error}')
