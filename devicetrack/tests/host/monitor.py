"""QEMU's own line to a machine: https://www.qemu.org/docs/master/interop/qmp-spec.html."""

from __future__ import annotations

import json
import os
import shutil
import socket
import threading
from typing import Any
from typing import BinaryIO


class Monitor:
    """The control of one QEMU, from its start to its end."""

    def __init__(self, port: socket.socket) -> None:
        self._port = port
        self._answers = port.makefile('rb')

    def close(self) -> None:
        self._answers.close()
        self._port.close()

    def migrate(self, to: BinaryIO) -> None:
        """Write all that the machine has in its memory and devices to a file; the machine is stopped then.

        :raises RuntimeError: it could not be written
        """
        self._order('qmp_capabilities')
        self._order('migrate-set-capabilities', capabilities=[{'capability': 'events', 'state': True}])
        # Nothing waits for it, so as fast as it goes.
        self._order('migrate-set-parameters', **{'max-bandwidth': 1 << 40, 'downtime-limit': 60_000})
        reader, writer = os.pipe()
        # Newer versions of QEMU write no file by its descriptor.
        copying = threading.Thread(target=_copy, args=(reader, to))
        copying.start()
        socket.send_fds(self._port, [_packed('getfd', fdname='state')], [writer])
        os.close(writer)
        self._returned()
        self._order('migrate', uri='fd:state')
        while (status := self._event('MIGRATION')['status']) != 'completed':
            if status == 'failed':
                raise RuntimeError(self._order('query-migrate'))
        copying.join()

    def _order(self, name: str, /, **arguments: Any) -> Any:
        self._port.sendall(_packed(name, **arguments))
        return self._returned()

    def _returned(self) -> Any:
        while True:
            answer = self._read()
            if 'error' in answer:
                raise RuntimeError(answer['error']['desc'])
            if 'return' in answer:
                return answer['return']

    def _event(self, name: str) -> Any:
        while True:
            answer = self._read()
            if answer.get('event') == name:
                return answer['data']

    def _read(self) -> dict[str, Any]:
        if not (line := self._answers.readline()):
            raise RuntimeError('QEMU ended')
        answer: dict[str, Any] = json.loads(line)
        return answer


def _packed(name: str, /, **arguments: Any) -> bytes:
    return json.dumps({'execute': name, 'arguments': arguments}).encode()


def _copy(descriptor: int, to: BinaryIO) -> None:
    with os.fdopen(descriptor, 'rb') as source:
        shutil.copyfileobj(source, to, 1 << 20)
