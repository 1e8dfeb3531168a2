"""A service receives a descriptor from a daemon, or an error. The daemon itself runs in the functional tests."""

from __future__ import annotations

import errno
import os
import socket
import stat

from devicetrack.tests import base
from devicetrack.virt.libvirt import descriptors


class ReceiveTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.asked: list[str] = []

    def ask(self, *fds: int) -> int:
        def ask(socket_path: str) -> None:
            self.asked.append(socket_path)
            directory = os.stat(os.path.dirname(socket_path))
            self.assertEqual(0o700, stat.S_IMODE(directory.st_mode), 'others could listen there')
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.connect(socket_path)
                socket.send_fds(connection, [b'.'], fds)

        return descriptors.receive(ask)

    def test_the_open_file_comes_and_no_child_inherits_it(self) -> None:
        path = os.path.join(self.temp_dir(), 'device')
        with open(path, 'w+b') as file:
            fd = self.ask(file.fileno())
            self.addCleanup(os.close, fd)
            self.assertTrue(os.path.sameopenfile(file.fileno(), fd))
        self.assertFalse(os.get_inheritable(fd))
        self.assertFalse(os.path.exists(self.asked[0]))

    def test_no_descriptor_is_an_error(self) -> None:
        error = self.assertRaises(OSError, self.ask)
        self.assertEqual(errno.EINVAL, error.errno)

    def test_a_daemon_that_sends_nothing_is_not_waited_for(self) -> None:
        self.patch(descriptors, '_TIMEOUT_S', 0.0001)
        self.assertRaises(TimeoutError, descriptors.receive, lambda _socket_path: None)

    def test_an_error_of_the_daemon_passes(self) -> None:
        def refuses(_socket_path: str) -> None:
            raise PermissionError(errno.EPERM, 'no')

        self.assertRaises(PermissionError, descriptors.receive, refuses)


class SendTestCase(base.TestCase):

    def test_nothing_is_opened_for_a_socket_that_is_not_the_callers(self) -> None:
        directory = os.path.join(self.temp_dir(), 'devicetrack-open')
        os.mkdir(directory)
        os.chmod(directory, 0o777)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(os.path.join(directory, 'fd'))
            listener.listen(1)
            for path in (listener.getsockname(), os.path.join(self.temp_dir(), 'fd')):
                error = self.assertRaises(OSError, descriptors.send, self.fail, path)
                self.assertEqual('not a socket of the caller', error.strerror)
