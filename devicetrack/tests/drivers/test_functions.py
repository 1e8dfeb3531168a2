"""The suite for PCI functions, on every driver that needs nothing but this process."""

from __future__ import annotations

from devicetrack.tests.drivers import functions


class FakeDriverTestCase(functions.FunctionsContract):
    world_class = functions.FakeWorld


class LibvirtTestDriverTestCase(functions.FunctionsContract):
    """The libvirt driver on libvirt's in-process test driver."""

    world_class = functions.LibvirtTestWorld
