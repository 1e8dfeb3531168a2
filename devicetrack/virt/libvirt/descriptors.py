"""Hands an open file from a privileged daemon to the service that asked for it.

oslo.privsep returns no descriptor. So the service listens on a unix socket of its own, calls a function of the daemon
with the path of that socket, and the daemon opens the file and sends the descriptor (SCM_RIGHTS, unix(7)). A child of
the service can work on the file then: it outlives the service and the daemon, and the descriptor is its only right.

A device kind with a context of its own uses both halves::

    def opened(name, handle, size_bytes):               # in the service
        return descriptors.receive(lambda socket_path: send_file(name, handle, size_bytes, socket_path))

    @context.entrypoint
    def send_file(name, handle, size_bytes, socket_path):       # in the daemon
        descriptors.send(lambda: open_as_root(name, handle, size_bytes), socket_path)

Everybody who has the service's rights may call such a function with any arguments. :func:`send` sees that the socket
belongs to the caller. The function that opens the file checks everything else, and follows no link.
"""

from __future__ import annotations

from collections.abc import Callable
import errno
import os
import re
import socket
import stat
import struct
import tempfile
from typing import Final

# How long the descriptor may take after the daemon answered.
_TIMEOUT_S: Final = 30.0

_SOCKET: Final = re.compile(r'/.*/devicetrack-[a-z0-9_]+/fd')


def receive(ask: Callable[[str], object]) -> int:
    """Have a daemon open something, and receive the descriptor. The caller closes it; no child inherits it by itself.

    For a service that does not run as root. This blocks until the daemon has answered.

    :param ask: calls the function of the daemon, which calls :func:`send` with the path of the socket that it gets. Its
        errors pass
    :raises OSError: the daemon sent no descriptor, or not in time
    """
    with tempfile.TemporaryDirectory(prefix='devicetrack-') as directory, \
            socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(os.path.join(directory, 'fd'))
        listener.listen(1)
        listener.settimeout(_TIMEOUT_S)
        ask(listener.getsockname())
        connection, _address = listener.accept()
        with connection:
            _message, descriptors, _flags, _peer = socket.recv_fds(connection, 1, 1)
    if len(descriptors) != 1:
        raise OSError(errno.EINVAL, 'the privileged daemon sent no descriptor')
    os.set_inheritable(descriptors[0], False)
    return descriptors[0]


def send(opened: Callable[[], int], socket_path: str) -> None:
    """Open something in the daemon, and send the descriptor to the caller. The daemon's own one is closed.

    :param opened: opens it and returns the descriptor. Its errors pass
    :param socket_path: as :func:`receive` hands it out
    :raises OSError: it is no such socket (EINVAL), then nothing was opened; or somebody else listens on it (EPERM)
    """
    owner = _owner(socket_path)
    fd = opened()
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(socket_path)
            _pid, uid, _gid = struct.unpack('3i', connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            if uid != owner:
                raise PermissionError(errno.EPERM, 'somebody else listens on this socket')
            socket.send_fds(connection, [b'.'], [fd])
    finally:
        os.close(fd)


def _owner(socket_path: str) -> int:
    """Return the user whose directory a socket is in. The daemon must not send to any other socket of the host.

    :raises OSError: it is no socket as :func:`receive` makes it
    """
    directory = os.path.dirname(socket_path)
    if _SOCKET.fullmatch(socket_path) and socket_path == os.path.normpath(socket_path):
        inside, outside = os.lstat(socket_path), os.lstat(directory)
        if stat.S_ISSOCK(inside.st_mode) and outside.st_mode == stat.S_IFDIR | stat.S_IRWXU \
                and 0 != inside.st_uid == outside.st_uid:
            return inside.st_uid
    raise OSError(errno.EINVAL, 'not a socket of the caller')
