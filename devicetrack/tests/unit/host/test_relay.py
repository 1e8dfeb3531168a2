"""The way from a machine to a service, with a socket in place of the machine."""

from __future__ import annotations

import socket
import subprocess
import sys

from devicetrack.tests import base
from devicetrack.tests.host import relay


class RelayTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        listener = socket.create_server(('127.0.0.1', 0))
        self.addCleanup(listener.close)
        self.machine, theirs = socket.socketpair()
        self.addCleanup(self.machine.close)
        self.relay = subprocess.Popen([sys.executable, '-S', str(relay.__file__), str(listener.getsockname()[1])],
                                      stdin=theirs.fileno(), stdout=theirs.fileno())
        self.addCleanup(self.relay.wait)
        self.addCleanup(self.relay.kill)
        theirs.close()
        self.service, _address = listener.accept()
        self.addCleanup(self.service.close)

    def receive(self, port: socket.socket, size: int) -> bytes:
        received = b''
        while len(received) < size and (chunk := port.recv(size - len(received))):
            received += chunk
        return received

    def test_passes_on_what_both_say(self) -> None:
        said = bytes(range(256)) * (relay.CHUNK // 256)
        for sender, receiver in ((self.machine, self.service), (self.service, self.machine)):
            sender.sendall(said)
            self.assertEqual(said, self.receive(receiver, len(said)))

    def test_ends_when_the_machine_hangs_up(self) -> None:
        self.machine.close()
        self.assertEqual(b'', self.service.recv(1))
        self.assertEqual(0, self.relay.wait(base.HANGS_S))

    def test_ends_when_the_service_hangs_up(self) -> None:
        self.service.close()
        self.assertEqual(b'', self.machine.recv(1))
        self.assertEqual(0, self.relay.wait(base.HANGS_S))
