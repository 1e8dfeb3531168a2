"""That each machine starts, and reaches its neighbour."""

from __future__ import annotations

import os
import signal
import threading
import time

from devicetrack.tests.host import machine as machines
from devicetrack.tests.host.scenarios import base


class LinkTestCase(base.MachineTestCase):

    def test_each_libvirt_answers_the_other_host(self) -> None:
        hosts = [self.machine(name) for name in machines.ADDRESSES]
        for here, there in [hosts, hosts[::-1]]:
            answer = here.run(['virsh', '--connect', f'qemu+tcp://{there.address}/system', 'hostname'])
            self.assertEqual(there.name, answer.out.strip())


class BootTestCase(base.MachineTestCase):

    def test_a_boot_that_breaks_is_tried_again(self) -> None:
        host = self.machine('host-a')
        before = host.boot_id
        host.cut()
        pids: list[int] = []

        def break_the_first() -> None:
            while (pid := host.pid) is None:
                time.sleep(0.01)
            pids.append(pid)
            os.kill(pid, signal.SIGKILL)

        breaking = threading.Thread(target=break_the_first)
        breaking.start()
        host.start()
        breaking.join()
        self.assertNotIn(host.boot_id, ['', before])
        self.assertNotEqual(pids, [host.pid])
