"""Which interfaces have an IPv4 address, asked of the kernel that runs the tests, and of answers made of bytes."""

from __future__ import annotations

import errno
import socket
import struct

from devicetrack.tests import base
from devicetrack.virt.libvirt import interface_addresses

ERROR, DONE, NEWADDR = 2, 3, 20
INTERRUPTED = 0x10


def message(kind: int, body: bytes, flags: int = 2) -> bytes:
    return struct.pack('=IHHII', 16 + len(body), kind, flags, 0, 0) + body + bytes(-len(body) % 4)


def address(interface: int, flags: int = 2) -> bytes:
    attribute = struct.pack('=HH4s', 8, 1, b'abcd')
    return message(NEWADDR, struct.pack('=BBBBI', 2, 24, 0x80, 0, interface) + attribute, flags)


END = message(DONE, bytes(4))


class AnswerTestCase(base.TestCase):

    def answers(self, *dumps: tuple[bytes, ...]) -> None:
        left = list(dumps)
        self.patch(interface_addresses, '_answer', lambda: (part for part in left.pop(0)))

    def test_has_several_parts_with_several_messages(self) -> None:
        self.answers((address(2) + address(3), address(3), address(700) + END))
        self.assertEqual({2, 3, 700}, interface_addresses.with_ipv4())

    def test_that_was_interrupted_is_asked_for_again(self) -> None:
        self.answers((address(2, INTERRUPTED), END), (address(2), message(DONE, bytes(4), INTERRUPTED)),
                     (address(2) + address(3) + END,))
        self.assertEqual({2, 3}, interface_addresses.with_ipv4())

    def test_that_never_is_whole_is_none(self) -> None:
        self.answers(*[(address(2, INTERRUPTED),)] * 5)
        self.assertEqual(errno.EAGAIN, self.assertRaises(OSError, interface_addresses.with_ipv4).errno)

    def test_that_refuses_or_is_damaged_is_none(self) -> None:
        for number, part in ((errno.EPERM, message(ERROR, struct.pack('=i', -errno.EPERM))),
                             (errno.ENOMEM, message(DONE, struct.pack('=i', -errno.ENOMEM))),
                             (errno.EBADMSG, address(2)[:-4]), (errno.EBADMSG, b'\1'),
                             (errno.EBADMSG, message(NEWADDR, b'')), (errno.EBADMSG, message(16, bytes(16)))):
            self.answers((address(5) + part,))
            self.assertEqual(number, self.assertRaises(OSError, interface_addresses.with_ipv4).errno)


class ThisMachineTestCase(base.TestCase):

    def test_tells_of_the_loopback_interface(self) -> None:
        self.assertIn(socket.if_nametoindex('lo'), interface_addresses.with_ipv4())
