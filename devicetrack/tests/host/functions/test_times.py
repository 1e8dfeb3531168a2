"""How long a function takes to a guest and back, beside libvirt alone: a table for the guide of operators.

It asserts no time. An emulated processor makes all of them long, and both columns alike.
"""

from __future__ import annotations

from collections.abc import Callable
import statistics
import subprocess
import time
from typing import Any
from typing import NamedTuple
import uuid

from testtools import content

from devicetrack.objects import DeviceRequest
from devicetrack.objects import NetworkPort
from devicetrack.testing import fixtures
from devicetrack.tests.host import machine
from devicetrack.tests.host import results
from devicetrack.tests.host.functions import hosts
from devicetrack.tests.host.functions.hosts import address_of
from devicetrack.tests.host.functions.hosts import DISK
from devicetrack.tests.host.functions.hosts import put
from devicetrack.tests.host.functions.hosts import virtual
from devicetrack.tests.host.functions.test_vf_ports import CardTestCase
from devicetrack.tests.host.functions.test_vf_ports import MAC

TIMES = 3


class Took(NamedTuple):
    """Seconds."""

    start: float
    stop: float


class Row(NamedTuple):
    """The medians of one sort of function. ``prepare`` is the part of the start that claim and realize take."""

    bare: Took
    ours: Took
    prepare: float

    def text(self, what: str) -> str:
        cells = (what, f'{self.bare.start:.1f}', f'{self.ours.start:.1f}', f'{self.prepare:.2f}',
                 f'{self.bare.stop:.1f}', f'{self.ours.stop:.1f}')
        return '   * - ' + '\n     - '.join(cells) + '\n'


class MeasuringTestCase(hosts.FunctionsTestCase):

    def measure(self, host: Any, wanted: DeviceRequest, what: str) -> None:
        """Start and end guests with the library, and then without it, and put the medians into the results.

        After a guest without it a disk is not proven clean any more.
        """
        measured = [self.ours(host, wanted) for _ in range(TIMES)]
        ours, prepares = [took for _, took, _ in measured], [prepare for _, _, prepare in measured]
        bare = [self.bare(measured[-1][0]) for _ in range(TIMES)]
        self.assertEqual([], list(host.records()))
        row = Row(_median(bare), _median(ours), statistics.median(prepares))
        self.addDetail(results.TABLE, content.text_content(row.text(what)))

    def ours(self, host: Any, wanted: DeviceRequest) -> tuple[Any, Took, float]:
        """The elements of the guest, how long it took, and the part of claim and realize."""
        instance = fixtures.Instance()
        self.addCleanup(self.machine.delete_guest, instance.uuid)
        began = time.monotonic()
        with host.claim(instance, wanted):
            host.manager.realize(None, instance)
            prepared = time.monotonic()
            config = host.manager.guest_config(instance)
            host.start_guest(instance.uuid, config)
            host.manager.started(None, instance)
        started = time.monotonic()
        stop = _timed(lambda: (self.machine.delete_guest(instance.uuid), host.manager.release(None, instance)))
        return config.devices, Took(started - began, stop), prepared - began

    def bare(self, elements: Any) -> Took:
        """The same guest by libvirt alone, which gives it the function and takes it back."""
        guest = str(uuid.uuid4())
        self.addCleanup(self.machine.delete_guest, guest)
        start = _timed(lambda: self.machine.start_guest(guest, elements))
        took = Took(start, _timed(lambda: self.machine.delete_guest(guest)))
        # udev looks at a disk that has come back; a claim finds it in use meanwhile.
        subprocess.run(['udevadm', 'settle'], check=True)
        return took


class TimesTestCase(MeasuringTestCase):

    def test_a_disk(self) -> None:
        self.measure(self.host(*self.disks(), cleaning='none'), DeviceRequest.of((DISK, 1)),
                     'NVMe disk, policy ``none``')

    def test_a_disk_that_is_formatted(self) -> None:
        self.measure(self.host(*self.disks(), cleaning='nvme-format'), DeviceRequest.of((DISK, 1)),
                     f'NVMe disk of {machine.DISK_MIB} MiB, policy ``nvme-format``')

    def test_a_disk_that_is_overwritten(self) -> None:
        self.measure(self.host(*self.disks(), cleaning='zero'), DeviceRequest.of((DISK, 1)),
                     f'NVMe disk of {machine.DISK_MIB} MiB, policy ``zero``')

    def test_a_virtual_function(self) -> None:
        physical = address_of(machine.SPLIT)
        put(physical, 'sriov_drivers_autoprobe', '0')
        put(physical, 'sriov_numvfs', '2')
        self.addCleanup(put, physical, 'sriov_numvfs', '0')
        host = self.host(*({'address': address, 'resource_class': 'PART'} for address in virtual(physical)),
                         cleaning='none', vfs=({'address': physical, 'private_namespaces': True},))
        self.measure(host, DeviceRequest.of(('CUSTOM_PART', 1)), 'Virtual function of an NVMe disk')


class PortTimesTestCase(CardTestCase, MeasuringTestCase):

    def test_a_port(self) -> None:
        host = self.host({'vendor_id': '8086', 'product_id': '10ca', 'physical_network': 'physnet1'}, cleaning='none')
        port = NetworkPort(physical_network='physnet1', mac=MAC, vlan=41)
        self.measure(host, DeviceRequest.of().with_ports([port]), 'Port of a network')


def _timed(call: Callable[[], object]) -> float:
    began = time.monotonic()
    call()
    return time.monotonic() - began


def _median(all_of_them: list[Took]) -> Took:
    return Took(*(statistics.median(took) for took in zip(*all_of_them, strict=True)))
