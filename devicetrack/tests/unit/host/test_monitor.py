"""Disks that are put into a machine that runs, with a stand-in for QEMU at the other end of its line."""

from __future__ import annotations

import json
import socket
import threading
from typing import Any

from devicetrack.tests import base
from devicetrack.tests.host import monitor

DISK = {'driver': 'nvme', 'bus': 'port0', 'serial': 'other'}


class MonitorTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        ours, theirs = socket.socketpair()
        self.orders: list[dict[str, Any]] = []
        self.before: list[str] = []             # events that come before the answer to device_del
        self.after: list[str] = []
        self.errors: dict[str, str] = {}
        self.qemu = threading.Thread(target=self.answer, args=(theirs,))
        self.qemu.start()
        self.monitor = monitor.Monitor(ours)
        self.addCleanup(self.qemu.join)
        self.addCleanup(self.monitor.close)

    def answer(self, port: socket.socket) -> None:
        with port:
            while text := port.recv(1 << 16):         # nobody sends another one before the answer
                order = json.loads(text)
                self.orders.append(order)
                name = order['execute']
                error = self.errors.get(name)
                answer = {'return': {}} if error is None else {'error': {'desc': error}}
                removes = name == 'device_del'
                for said in [*map(deleted, self.before if removes else ()), answer,
                             *map(deleted, self.after if removes else ())]:
                    port.sendall(json.dumps(said).encode() + b'\n')

    def names(self) -> list[str]:
        return [order['execute'] for order in self.orders]

    def test_a_disk_goes_in_when_the_other_one_is_out(self) -> None:
        self.after = ['', 'slot0']              # a part of it goes first
        self.monitor.replace_disk('slot0', DISK, '/disk-c')
        self.assertEqual(['qmp_capabilities', 'device_del', 'blockdev-add', 'device_add'], self.names())
        self.assertEqual('/disk-c', self.orders[2]['arguments']['file']['filename'])
        self.assertEqual({'id': 'slot0', 'drive': self.orders[2]['arguments']['node-name'], **DISK},
                         self.orders[3]['arguments'])

    def test_an_event_may_come_before_the_answer(self) -> None:
        self.before = ['slot0']
        self.monitor.replace_disk('slot0', DISK, '/disk-c')
        self.assertEqual('device_add', self.names()[-1])

    def test_what_was_put_in_leaves_no_drive(self) -> None:
        self.after = ['slot0']
        for image in ('/disk-c', '/disk-a'):
            self.monitor.replace_disk('slot0', DISK, image)
        self.assertEqual(['device_del', 'blockdev-del', 'blockdev-add', 'device_add'], self.names()[4:])
        self.assertEqual(self.orders[2]['arguments']['node-name'], self.orders[5]['arguments']['node-name'])

    def test_a_refusal_says_why(self) -> None:
        self.errors = {'device_del': 'no such device'}
        error = self.assertRaises(RuntimeError, self.monitor.replace_disk, 'slot0', DISK, '/disk-c')
        self.assertEqual('no such device', str(error))
        self.assertEqual('device_del', self.names()[-1])


def deleted(device: str) -> dict[str, Any]:
    return {'event': 'DEVICE_DELETED', 'data': {'path': '/machine/slot0', **({'device': device} if device else {})}}
