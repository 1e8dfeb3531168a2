"""The suite, on every driver that needs nothing but this process."""

from __future__ import annotations

from devicetrack.tests.drivers import contract
from devicetrack.tests.drivers import worlds


class FakeDriverTestCase(contract.Contract):
    world_class = worlds.FakeWorld


class LibvirtTestDriverTestCase(contract.Contract):
    """The libvirt driver on libvirt's in-process test driver."""

    world_class = worlds.LibvirtTestWorld
