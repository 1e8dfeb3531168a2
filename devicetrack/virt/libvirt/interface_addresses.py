"""The network interfaces that have an IPv4 address, as rtnetlink tells them (rtnetlink(7), netlink(7)).

No file below ``/proc/net`` has them: ``route`` shows the main table only, and an address may have no route in it (a
``/32``, ``noprefixroute``, policy routing). Everybody may ask.
"""

from __future__ import annotations

from collections.abc import Iterator
import errno
import os
import socket
import struct
from typing import Final

TIMEOUT_S: Final = 10.0

_HEADER: Final = struct.Struct('=IHHII')                # nlmsghdr: length, type, flags, sequence, port
_ADDRESS: Final = struct.Struct('=BBBBI')               # ifaddrmsg: family, prefix, flags, scope, interface
_ERROR: Final = struct.Struct('=i')
_NLMSG_ERROR, _NLMSG_DONE, _RTM_NEWADDR, _RTM_GETADDR = 2, 3, 20, 22
_NLM_F_REQUEST, _NLM_F_DUMP_INTR, _NLM_F_DUMP = 0x1, 0x10, 0x300
_MOST_BYTES: Final = 1 << 17                            # the kernel sends at most 32 KiB at once (netlink_dump)
_TRIES: Final = 5
_REQUEST: Final = _HEADER.pack(_HEADER.size + _ADDRESS.size, _RTM_GETADDR, _NLM_F_REQUEST | _NLM_F_DUMP, 0, 0) + (
    _ADDRESS.pack(socket.AF_INET, 0, 0, 0, 0))


class _Changed(Exception):
    """The addresses changed while the kernel told them, so some may be missing."""


def with_ipv4() -> frozenset[int]:
    """Return the numbers of the interfaces with an IPv4 address, in this thread's network namespace.

    :raises OSError: the kernel does not tell, or its answer is not what Linux documents
    """
    for _try in range(_TRIES):
        try:
            return frozenset(_parsed(_dump()))
        except _Changed:
            continue
        except (ValueError, struct.error) as error:
            raise OSError(errno.EBADMSG, f'the kernel gave an answer of an unknown form: {error}') from error
    raise OSError(errno.EAGAIN, 'the addresses changed whenever they were read')


def _dump() -> Iterator[bytes]:
    """Ask the kernel, and yield the parts of its answer, without an end."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE) as connection:
        connection.settimeout(TIMEOUT_S)
        connection.bind((0, 0))
        connection.sendto(_REQUEST, (0, 0))
        while True:
            part, _more, flags, sender = connection.recvmsg(_MOST_BYTES)
            if flags & socket.MSG_TRUNC:
                raise OSError(errno.EMSGSIZE, f'a part of the answer has more than {_MOST_BYTES} bytes')
            if sender[0] != 0:
                raise OSError(errno.EPROTO, 'the answer did not come from the kernel')
            yield part


def _parsed(parts: Iterator[bytes]) -> Iterator[int]:
    """Yield the interfaces in an answer, up to its end."""
    for part in parts:
        while part:
            length, kind, flags, _sequence, _port = _HEADER.unpack_from(part)
            if not _HEADER.size <= length <= len(part):
                raise ValueError(f'a message of {length} bytes in {len(part)}')
            body, part = part[_HEADER.size:length], part[length + -length % 4:]
            if flags & _NLM_F_DUMP_INTR:
                raise _Changed
            if kind in (_NLMSG_DONE, _NLMSG_ERROR):
                [number] = _ERROR.unpack_from(body)
                if number < 0 or kind == _NLMSG_ERROR:
                    raise OSError(-number, os.strerror(-number))
                return
            if kind != _RTM_NEWADDR:
                raise ValueError(f'a message of type {kind}')
            _family, _prefix, _flags, _scope, interface = _ADDRESS.unpack_from(body)
            yield interface
