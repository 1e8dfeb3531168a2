"""The network interfaces that have an IPv4 address, as rtnetlink tells them (rtnetlink(7), netlink(7)).

No file below ``/proc/net`` has them: ``route`` shows the main table only, and an address may have no route in it (a
``/32``, ``noprefixroute``, policy routing). Everybody may ask.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import errno
import os
import socket
import struct
from typing import Final

from devicetrack.virt.libvirt import netlink

_ADDRESS: Final = struct.Struct('=BBBBI')               # ifaddrmsg: family, prefix, flags, scope, interface
_NLMSG_DONE, _RTM_NEWADDR, _RTM_GETADDR = 3, 20, 22
_NLM_F_DUMP_INTR, _NLM_F_DUMP = 0x10, 0x300
_TRIES: Final = 5
_REQUEST: Final = netlink.HEADER.pack(netlink.HEADER.size + _ADDRESS.size, _RTM_GETADDR,
                                      netlink.REQUEST | _NLM_F_DUMP, 0, 0) + _ADDRESS.pack(socket.AF_INET, 0, 0, 0, 0)


class _Changed(Exception):
    """The addresses changed while the kernel told them, so some may be missing."""


def with_ipv4() -> frozenset[int]:
    """Return the numbers of the interfaces with an IPv4 address, in this thread's network namespace.

    :raises OSError: the kernel does not tell, or its answer is not what Linux documents
    """
    for _try in range(_TRIES):
        try:
            with contextlib.closing(netlink.ask(_REQUEST)) as parts:
                return frozenset(_parsed(parts))
        except _Changed:
            continue
        except (ValueError, struct.error) as error:
            raise OSError(errno.EBADMSG, f'the kernel gave an answer of an unknown form: {error}') from error
    raise OSError(errno.EAGAIN, 'the addresses changed whenever they were read')


def _parsed(parts: Iterator[bytes]) -> Iterator[int]:
    """Yield the interfaces in an answer, up to its end."""
    for part in parts:
        while part:
            kind, flags, body, part = netlink.first_message(part)
            if flags & _NLM_F_DUMP_INTR:
                raise _Changed
            if kind in (_NLMSG_DONE, netlink.ERROR_TYPE):
                [number] = netlink.ERROR.unpack_from(body)
                if number < 0 or kind == netlink.ERROR_TYPE:
                    raise OSError(-number, os.strerror(-number))
                return
            if kind != _RTM_NEWADDR:
                raise ValueError(f'a message of type {kind}')
            _family, _prefix, _flags, _scope, interface = _ADDRESS.unpack_from(body)
            yield interface
