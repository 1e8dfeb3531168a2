"""Passes on bytes between a machine, which is this program's input and output, and a port of the loopback.

QEMU starts it for each connection that a machine makes to a service outside, so it needs nothing but the standard
library.
"""

from __future__ import annotations

import os
import socket
import sys
import threading

CHUNK = 1 << 16


def main(port: int) -> None:
    with socket.create_connection(('127.0.0.1', port)) as service:
        threading.Thread(target=_to_service, args=(service,), daemon=True).start()
        while chunk := service.recv(CHUNK):
            while chunk:
                chunk = chunk[os.write(1, chunk):]


def _to_service(service: socket.socket) -> None:
    try:
        while chunk := os.read(0, CHUNK):
            service.sendall(chunk)
    finally:
        # The machine has hung up, or the service has; what it still says nobody hears.
        os._exit(0)


if __name__ == '__main__':
    main(int(sys.argv[1]))
