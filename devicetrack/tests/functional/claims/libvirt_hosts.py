"""Hosts whose machine is a libvirt, with files for namespaces: the test's own libvirtd, or libvirt's test driver."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import os
from typing import Any

import libvirt

from devicetrack.claims.manager import ClaimManager
from devicetrack.objects.values import GuestConfig
from devicetrack.objects.values import MigrationDefinitions
from devicetrack.objects.values import Usage
from devicetrack.testing import fixtures
from devicetrack.testing import libvirt as libvirt_fixtures
from devicetrack.testing.staged_store import StagedStore
from devicetrack.virt.libvirt import domain_xml
from devicetrack.virt.libvirt.driver import LibvirtDriver
from devicetrack.virt.libvirt.kinds import api
from devicetrack.virt.libvirt.kinds import mdev
from devicetrack.virt.libvirt.kinds import vpmem

QEMU = 'qemu'
TEST = 'test'


class Machine:
    """What a compute service asks of libvirt, in the words of :class:`~devicetrack.testing.fake.FakeHost`.

    :param connect: gives a connection
    :param kind: the type of the guests
    :param directory: has the files that stand for namespaces
    :param firmware: of its guests, if not QEMU's own
    """

    def __init__(self, connect: Callable[[], Any], kind: str, directory: str, firmware: str | None = None) -> None:
        self.connection = connect()
        self._firmware = firmware
        self.driver: LibvirtDriver | None = None
        self._kind, self._directory = kind, directory
        self.received: dict[str, MigrationDefinitions] = {}

    # -- guests -------------------------------------------------------------------------------------------------------

    def start_guest(self, domain_uuid: str, elements: Collection[str], define: bool = True, metadata: str = '') -> None:
        """Define a guest, in place of what was defined before, and start it."""
        definition = libvirt_fixtures.guest(domain_uuid, GuestConfig(tuple(elements), metadata), self._kind,
                                            firmware=self._firmware)
        if define:
            self.connection.defineXML(definition).create()
        else:
            self.connection.createXML(definition, 0)

    def stop_guest(self, domain_uuid: str) -> None:
        self.domain(domain_uuid).destroy()

    def delete_guest(self, domain_uuid: str) -> None:
        """Turn a guest off and undefine it. One that is gone already is no error."""
        with contextlib.suppress(libvirt.libvirtError):
            domain = self.domain(domain_uuid)
            with contextlib.suppress(libvirt.libvirtError):
                domain.destroy()
            domain.undefine()

    def receive_guest(self, domain_uuid: str, definitions: MigrationDefinitions) -> None:
        """Let a guest arrive with what the source's ``migration_definitions`` returned.

        The test driver has no guests that arrive: this one is paused as any other may be.
        """
        self.received[domain_uuid] = definitions
        self.connection.createXML(definitions.live, 0).suspend()

    def arrived(self, domain_uuid: str) -> None:
        self.connection.defineXML(self.received[domain_uuid].persistent).resume()

    def domain(self, domain_uuid: str) -> Any:
        return self.connection.lookupByUUIDString(domain_uuid)

    # -- what is asked in tests ---------------------------------------------------------------------------------------

    def live(self, domain_uuid: str) -> domain_xml.Domain:
        return domain_xml.parse(self.domain(domain_uuid).XMLDesc(0))

    def defined(self, domain_uuid: str) -> domain_xml.Domain:
        return domain_xml.parse(self.domain(domain_uuid).XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE))

    def domains(self) -> set[str]:
        return {domain.UUIDString() for domain in self.connection.listAllDomains()}

    def usage(self) -> Usage:
        assert self.driver is not None
        return self.driver.get_usage()

    def path(self, name: str) -> str:
        """The file that stands for a namespace."""
        return os.path.join(self._directory, name)

    def write(self, name: str, data: bytes) -> None:
        """Leave bytes in a namespace from its start on, as its guest does."""
        with open(self.path(name), 'r+b') as file:
            file.write(data)

    def read(self, name: str) -> bytes:
        """All bytes of a namespace."""
        with open(self.path(name), 'rb') as file:
            return file.read()


class LibvirtHost(fixtures.Host):
    """A compute host on a libvirt.

    :param connect: gives connections to it
    :param namespaces: the names by label; files of these names are made where there are none
    :param directory: for those files
    :param kind: the type of its guests
    :param mdev_types: the types of mediated devices that may be handed out
    :param kinds: the device kinds; what others need is in the host's configuration
    """

    def __init__(self, connect: Callable[[], Any], namespaces: Mapping[str, Collection[str]], directory: str,
                 kind: str = TEST, mdev_types: Collection[str] = (), size: int = 4 << 20,
                 kinds: Sequence[type[api.DeviceKind]] = (mdev.Mdev, vpmem.VPMEM), **host: Any) -> None:
        super().__init__(**host)
        self._kinds = kinds
        self._connect, self._namespaces, self._directory = connect, namespaces, directory
        self._kind, self._mdev_types, self._size = kind, mdev_types, size
        self.names = tuple(name for names in namespaces.values() for name in names)

    def _setUp(self) -> None:
        for name in self.names:
            path = os.path.join(self._directory, name)
            if not os.path.exists(path):
                with open(path, 'xb') as file:
                    file.truncate(self._size)
        self._configuration = self._configuration or self.useFixture(fixtures.Configuration())
        self._configuration.set('libvirt', pmem_namespaces=[
            f'{label}:{"|".join(names)}' for label, names in self._namespaces.items()])
        self._configuration.set('devicetrack_vpmem', directory=self._directory)
        self._configuration.set('devices', enabled_mdev_types=list(self._mdev_types))
        self.machine: Any = self.make_machine()
        super()._setUp()

    def make_machine(self) -> Machine:
        return Machine(self._connect, self._kind, self._directory)

    def reopen(self) -> None:
        """Open the store again, which may be another one by now."""
        self.store = StagedStore(self.useFixture(fixtures.SQLiteStore(self.conf)).store)

    def another_manager(self) -> ClaimManager:
        driver = LibvirtDriver(self.name, self.conf, self.configuration.state_path, self._kinds, self._connect)
        if self._kind == QEMU:                  # else all parts share the connection that is the host
            self.addCleanup(driver.close)
        self.machine.driver = driver
        manager = ClaimManager(self.name, driver, self.store, self.conf, self.service, self.providers)
        self._managers.append(manager)
        return manager
