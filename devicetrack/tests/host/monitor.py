"""QEMU's own line to a machine: https://www.qemu.org/docs/master/interop/qmp-spec.html."""

from __future__ import annotations

import collections
from collections.abc import Mapping
import itertools
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
        self._is_open = False
        self._numbers = itertools.count()
        # What came before the answer to an order.
        self._events: collections.deque[dict[str, Any]] = collections.deque()
        # What was put in since the start, by the device.
        self._drives: dict[str, str] = {}

    def close(self) -> None:
        self._answers.close()
        self._port.close()

    def migrate(self, to: BinaryIO) -> None:
        """Write all that the machine has in its memory and devices to a file; the machine is stopped then.

        :raises RuntimeError: it could not be written
        """
        self._open()
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

    def replace_disk(self, device: str, of: Mapping[str, Any], image: str) -> None:
        """Take a PCI device out of its slot, when the host has let it go, and put a disk there.

        :param device: the identifier of both
        :param of: the properties of the disk, but for that and its drive
        :param image: the file with its bytes
        :raises RuntimeError: one of them does not go in, or out
        """
        self._open()
        self._order('device_del', id=device)
        while self._event('DEVICE_DELETED').get('device') != device:
            pass
        if device in self._drives:              # QEMU itself takes away what it was started with
            self._order('blockdev-del', **{'node-name': self._drives.pop(device)})
        drive = f'drive{next(self._numbers)}'
        self._order('blockdev-add', **{
            'node-name': drive, 'driver': 'raw', 'discard': 'unmap', 'file': {'driver': 'file', 'filename': image}})
        self._drives[device] = drive
        self._order('device_add', id=device, drive=drive, **of)

    def _open(self) -> None:
        """Say that orders will come; QEMU wants to hear it once."""
        if not self._is_open:
            self._order('qmp_capabilities')
            self._is_open = True

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
            self._events.append(answer)

    def _event(self, name: str) -> Any:
        while True:
            answer = self._events.popleft() if self._events else self._read()
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
