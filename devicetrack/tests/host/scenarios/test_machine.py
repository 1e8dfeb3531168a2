"""That a machine loses and keeps what a host loses and keeps, and reaches its neighbour."""

from __future__ import annotations

import json
from typing import Any

from devicetrack.tests.host import machine as machines
from devicetrack.tests.host.scenarios import base

LOST = '/var/tmp/lost'
KEPT = '/var/tmp/kept'

# Copies standard input to the first bytes of a device-dax, which can only be mapped, and says what was there.
EXCHANGE = """
import mmap, os, sys
new = sys.stdin.buffer.read()
with open(sys.argv[1], 'r+b', buffering=0) as file, mmap.mmap(file.fileno(), 2 << 20) as mapped:
    sys.stdout.buffer.write(mapped[:len(new)])
    mapped[:len(new)] = new
"""


class CutTestCase(base.MachineTestCase):

    def setUp(self) -> None:
        super().setUp()
        self.host = self.machine('host-a')

    def namespaces(self) -> dict[str, Any]:
        """By name, what stays of each and where it is in this boot."""
        listed = json.loads(self.host.run(['ndctl', 'list', '--namespaces']).out)
        return {one['name']: ((one['uuid'], one['size']), f'/dev/{one["chardev"]}') for one in listed}

    def exchange(self, name: str, new: str) -> str:
        _, path = self.namespaces()[name]
        return self.host.run([*self.host.python(), '-c', EXCHANGE, path], stdin=new.encode()).out

    def test_what_was_not_synced_is_lost(self) -> None:
        self.host.run(['dd', f'of={KEPT}', 'conv=fsync'], stdin=b'data')
        self.host.run(['dd', f'of={LOST}'], stdin=b'data')
        boot_id = self.host.boot_id
        self.host.cut()
        self.assertRaises(machines.Gone, self.host.run, ['true'])
        self.host.start()
        self.assertNotEqual(boot_id, self.host.boot_id)
        self.assertEqual(b'data', self.host.read(KEPT))
        self.assertEqual('', self.host.run(['cat', LOST], check=False).out)

    def test_namespaces_stay_and_their_devices_have_other_numbers(self) -> None:
        before = self.namespaces()
        self.assertEqual('\0' * 6, self.exchange('pmem0', 'secret'))
        self.host.cut()
        self.host.start([1, 0] if before['pmem0'][1].startswith('/dev/dax0.') else [0, 1])
        after = self.namespaces()
        self.assertEqual({name: what for name, (what, _) in before.items()},
                         {name: what for name, (what, _) in after.items()})
        self.assertEqual([], [name for name, (_, path) in after.items() if path == before[name][1]])
        self.assertEqual('secret', self.exchange('pmem0', '\0' * 6))


class LinkTestCase(base.MachineTestCase):

    def test_each_libvirt_answers_the_other_host(self) -> None:
        hosts = [self.machine(name) for name in machines.ADDRESSES]
        for here, there in [hosts, hosts[::-1]]:
            answer = here.run(['virsh', '--connect', f'qemu+tcp://{there.address}/system', 'hostname'])
            self.assertEqual(there.name, answer.out.strip())
