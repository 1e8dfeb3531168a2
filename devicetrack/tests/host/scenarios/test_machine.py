"""That each machine reaches its neighbour."""

from __future__ import annotations

from devicetrack.tests.host import machine as machines
from devicetrack.tests.host.scenarios import base


class LinkTestCase(base.MachineTestCase):

    def test_each_libvirt_answers_the_other_host(self) -> None:
        hosts = [self.machine(name) for name in machines.ADDRESSES]
        for here, there in [hosts, hosts[::-1]]:
            answer = here.run(['virsh', '--connect', f'qemu+tcp://{there.address}/system', 'hostname'])
            self.assertEqual(there.name, answer.out.strip())
