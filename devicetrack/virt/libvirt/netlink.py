"""Asks the kernel by rtnetlink, and takes its answers apart (netlink(7))."""

from __future__ import annotations

from collections.abc import Generator
import errno
import socket
import struct
from typing import Final

TIMEOUT_S: Final = 10.0
# A dump has at most 32 KiB at once (netlink_dump). All virtual functions of an interface are in one attribute, whose
# length has 16 bits.
MOST_BYTES: Final = 1 << 17

HEADER: Final = struct.Struct('=IHHII')                 # nlmsghdr: length, type, flags, sequence, port
ERROR: Final = struct.Struct('=i')                      # the beginning of nlmsgerr
REQUEST: Final = 0x1                                    # NLM_F_REQUEST
ERROR_TYPE: Final = 2                                   # NLMSG_ERROR


def ask(request: bytes) -> Generator[bytes, None, None]:
    """Send a request, and yield the parts of the answer, without an end. Close the iterator after the last one.

    :raises OSError: the request cannot be sent, there is no answer in time, or a part is too long
    """
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE) as connection:
        connection.settimeout(TIMEOUT_S)
        connection.bind((0, 0))
        connection.sendto(request, (0, 0))
        while True:
            part, _more, flags, sender = connection.recvmsg(MOST_BYTES)
            if flags & socket.MSG_TRUNC:
                raise OSError(errno.EMSGSIZE, f'the answer has more than {MOST_BYTES} bytes')
            if sender[0] != 0:
                raise OSError(errno.EPROTO, 'the answer did not come from the kernel')
            yield part


def first_message(data: bytes) -> tuple[int, int, bytes, bytes]:
    """Return the type, the flags and the body of the first message, and what follows it.

    :raises ValueError: it is no message
    """
    if len(data) < HEADER.size:
        raise ValueError(f'{len(data)} bytes')
    length, kind, flags, _sequence, _port = HEADER.unpack_from(data)
    if not HEADER.size <= length <= len(data):
        raise ValueError(f'a message of {length} bytes in {len(data)}')
    return kind, flags, data[HEADER.size:length], data[length + -length % 4:]
