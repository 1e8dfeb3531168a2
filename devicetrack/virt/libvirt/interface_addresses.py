"""The network interfaces that have an IPv4 address, as rtnetlink tells them (rtnetlink(7), netlink(7)).

No file below ``/proc/net`` has them: ``route`` shows the main table only, and an address may have no route in it (a
``/32``, ``noprefixroute``, policy routing). Everybody may ask. pyroute2 does not say that the addresses changed while
the kernel told them, so the messages are taken apart here.
"""

from __future__ import annotations

from collections.abc import Generator
from collections.abc import Iterator
import contextlib
import errno
import os
import socket
import struct
from typing import Final

_TIMEOUT_S: Final = 10.0
_MOST_BYTES: Final = 1 << 15                            # a part of an answer has at most so many (netlink_dump)
_HEADER: Final = struct.Struct('=IHHII')                # nlmsghdr: length, type, flags, sequence, port
_ERROR: Final = struct.Struct('=i')                     # the beginning of nlmsgerr
_NLM_F_REQUEST: Final = 0x1
_NLMSG_ERROR: Final = 2
_ADDRESS: Final = struct.Struct('=BBBBI')               # ifaddrmsg: family, prefix, flags, scope, interface
_NLMSG_DONE, _RTM_NEWADDR, _RTM_GETADDR = 3, 20, 22
_NLM_F_DUMP_INTR, _NLM_F_DUMP = 0x10, 0x300
_TRIES: Final = 5
_REQUEST: Final = _HEADER.pack(_HEADER.size + _ADDRESS.size, _RTM_GETADDR, _NLM_F_REQUEST | _NLM_F_DUMP, 0,
                               0) + _ADDRESS.pack(socket.AF_INET, 0, 0, 0, 0)


class _Changed(Exception):
    """The addresses changed while the kernel told them, so some may be missing."""


def with_ipv4() -> frozenset[int]:
    """Return the numbers of the interfaces with an IPv4 address, in this thread's network namespace.

    :raises OSError: the kernel does not tell, or its answer is not what Linux documents
    """
    for _try in range(_TRIES):
        try:
            with contextlib.closing(_answer()) as parts:
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
            kind, flags, body, part = _first_message(part)
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


def _answer() -> Generator[bytes, None, None]:
    """Send the request, and yield the parts of the answer, without an end. Close the iterator after the last one.

    :raises OSError: the request cannot be sent, there is no answer in time, or a part is too long
    """
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE) as connection:
        connection.settimeout(_TIMEOUT_S)
        connection.bind((0, 0))
        connection.sendto(_REQUEST, (0, 0))
        while True:
            part, _more, flags, sender = connection.recvmsg(_MOST_BYTES)
            if flags & socket.MSG_TRUNC:
                raise OSError(errno.EMSGSIZE, f'the answer has more than {_MOST_BYTES} bytes')
            if sender[0] != 0:
                raise OSError(errno.EPROTO, 'the answer did not come from the kernel')
            yield part


def _first_message(data: bytes) -> tuple[int, int, bytes, bytes]:
    """Return the type, the flags and the body of the first message, and what follows it.

    :raises ValueError: it is no message
    """
    if len(data) < _HEADER.size:
        raise ValueError(f'{len(data)} bytes')
    length, kind, flags, _sequence, _port = _HEADER.unpack_from(data)
    if not _HEADER.size <= length <= len(data):
        raise ValueError(f'a message of {length} bytes in {len(data)}')
    return kind, flags, data[_HEADER.size:length], data[length + -length % 4:]
