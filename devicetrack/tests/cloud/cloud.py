"""The whole cloud: services on this machine, two compute hosts, and what an administrator has of them."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent import futures
import contextlib
import datetime
import os
import pathlib
import tempfile
from typing import Final

import fixtures

from devicetrack.tests.cloud import checker
from devicetrack.tests.cloud import compute_client
from devicetrack.tests.cloud import guest
from devicetrack.tests.cloud import hosts
from devicetrack.tests.cloud import services
from devicetrack.tests.host import image as images
from devicetrack.tests.host import machine as machines

FLAVORS: Final[Mapping[str, Mapping[str, str]]] = {
    'small': {'hw:pmem': 'SMALL', 'resources:VGPU': '1'},
    'large': {'hw:pmem': 'LARGE', 'resources:VGPU': '1'},
}


class Cloud(fixtures.Fixture):
    """A new cloud without instances.

    :param program: the compute service that both hosts run
    :param directory: for the disks of the hosts
    :param with_disks: it has one host alone, whose disks Nova gives to guests
    """

    def __init__(self, image: images.Image, booted: Mapping[str, pathlib.Path], directory: str, program: str,
                 with_disks: bool = False) -> None:
        super().__init__()
        self._image, self._booted, self._directory, self.program = image, booted, directory, program
        self._with_disks = with_disks

    def _setUp(self) -> None:
        self.services = self.useFixture(services.Services(
            guest.image(), options=hosts.ALIASES if self._with_disks else None))
        self.hosts: dict[str, hosts.Host] = {}
        self.nova = compute_client.Client(self.services.url, lambda: {
            name: host.audits() for name, host in self.hosts.items() if host.serves})
        link = machines.Link()
        for name in list(machines.ADDRESSES)[:1 if self._with_disks else None]:
            own = os.path.join(tempfile.mkdtemp(dir=self._directory), name)
            os.mkdir(own)
            machine = machines.Machine(self._image, own, name, link, self._booted.get(name), self.services.ports,
                                       functions=self._with_disks)
            self.hosts[name] = hosts.Host(machine, self.program, self.services.inside(machines.SERVICES),
                                          self._with_disks)
        self.addCleanup(self._off)
        with futures.ThreadPoolExecutor() as pool:
            for done in [pool.submit(self._begin, host) for host in self.hosts.values()]:
                done.result()
        self.start_services(*self.hosts.values())
        flavors = {serial: {'pci_passthrough:alias': f'{serial}:1'} for serial in hosts.DISKS} if (
            self._with_disks) else FLAVORS
        self.flavors = {name: self.nova.flavor(name, specs) for name, specs in flavors.items()}

    def _begin(self, host: hosts.Host) -> None:
        host.boot()
        if host.name not in self._booted:
            hosts.prepare(host.machine)
            host.machine.learn(hosts.MODULES)
        host.configure()

    def _off(self) -> None:
        for host in self.hosts.values():
            if host.machine.runs:
                host.cut()

    def start_services(self, *of: hosts.Host) -> None:
        """Start the compute services of hosts, and wait until Nova has heard from each.

        :raises TooLate: one of them ended
        """
        for host in of:
            host.start_service()
        # The database has seconds.
        since = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
        for host in of:
            try:
                self.nova.wait_for_host(host.name, since, lambda host=host: host.serves)
            except compute_client.TooLate as late:
                raise compute_client.TooLate(f'{late}\n{host.logs()}') from None

    def logs(self) -> str:
        """The ends of all logs."""
        return '\n'.join([self.services.logs(), *(host.logs() for host in self.hosts.values())])

    @property
    def has_record(self) -> bool:
        """Whether the library runs on the hosts."""
        return self.program == hosts.ADAPTED

    def has_room(self, host: hosts.Host, flavor: str) -> bool:
        """Whether the scheduler can choose a host for another guest of a flavor."""
        return checker.has_room(self.services.placement.url, host.name, FLAVORS[flavor])

    def is_reserved(self, serial: str) -> bool:
        """Whether placement keeps a disk from guests."""
        return checker.is_reserved(self.services.placement.url, hosts.DISKS[serial])

    def delete_allocations(self) -> None:
        """Delete all allocations of devices, whoever they are for."""
        checker.delete_allocations(self.services.placement.url)

    def disagreements(self) -> list[str]:
        """What Nova, placement, libvirt and the record do not agree on, once nothing is under way.

        They agree eventually: hosts wipe in the background, and each audit ends what another one had to leave. What
        stays the same while each host is audited many times is a disagreement.

        :raises Hangs: what they do not agree on changes all the time
        """
        found: list[str] = []

        def agree() -> bool:
            found[:] = checker.differences(checker.read(self))
            return not found

        with contextlib.suppress(compute_client.TooLate):
            compute_client.wait_for('Nova, placement, libvirt and the record agree', agree,
                                    stands_still=self.nova.stillness(lambda: sorted(found)))
        return found
