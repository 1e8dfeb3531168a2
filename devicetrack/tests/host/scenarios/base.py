"""The base of tests that drive machines."""

from __future__ import annotations

import time

import testtools
from testtools import content

from devicetrack.tests.host import machine as machines
from devicetrack.tests.host import suites


class MachineTestCase(testtools.TestCase):
    """A test whose details have the logs of its machines when it fails."""

    #: Whether it drives host-a alone, which then is no neighbour of the one that other tests use meanwhile.
    ALONE = False

    def setUp(self) -> None:
        super().setUp()
        self._used: dict[str, machines.Machine] = {}
        self._began = time.time()
        self.addOnException(lambda _: self._add_logs())

    @property
    def release(self) -> int:
        """The Debian that the hosts have."""
        return self._hosts().release

    def machine(self, name: str) -> machines.Machine:
        """The running machine of this name. Other tests have used it, and others will."""
        self._used[name] = self._hosts().running(name)
        return self._used[name]

    def _hosts(self) -> suites.Hosts:
        hosts = suites.hosts.get(None)
        assert hosts is not None, 'run by: make host-test ARGS=...'
        return hosts

    def _add_logs(self) -> None:
        for name, machine in self._used.items():
            self.addDetail(name, content.text_content(machine.logs(self._began)))
