"""The host that the contract of a device kind runs on. The author of the kind writes it."""

from __future__ import annotations

import abc
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import ClassVar

import fixtures

from devicetrack.testing import fixtures as our_fixtures
from devicetrack.testing import libvirt as libvirt_fixtures
from devicetrack.virt.libvirt import connection
from devicetrack.virt.libvirt.kinds import api


class NotOnThisHost(NotImplementedError):
    """The world cannot do this. Tests that need it are skipped, and say so."""


class KindWorld(fixtures.Fixture, abc.ABC):
    """A host with two devices of the kind ``kind_class`` or more, which nobody uses and which are clean.

    It is a fixture of the library ``fixtures``: :meth:`make_host` may call ``useFixture`` and ``addCleanup``. Make the
    devices there and set ``devices``. The base class sets these attributes before:

    ``configuration``
        The options of the host (:class:`devicetrack.testing.fixtures.Configuration`): ``configuration.set(group,
        option=value)`` sets them, after the kind's own were registered in ``configuration.conf``.
    ``libvirt``
        A host of libvirt's in-process test driver (:class:`devicetrack.testing.libvirt.TestNode`). Add the node devices
        that the kind asks libvirt for before anything connects.
    ``hypervisor``
        The connection to ``libvirt`` that the kind gets. Replace it in :meth:`make_host` if the kind needs another.
    ``boot``
        The answer of the kind's ``boot_id()``.

    Methods that change the host raise :class:`NotOnThisHost` until a subclass overrides them. Override each method
    whose effect can happen to a device of the kind: a skipped test tests nothing.
    """

    kind_class: type[api.DeviceKind]

    layers: ClassVar[Sequence[str]] = ('claims', 'cmd', 'engine', 'nova', 'placement', 'store', 'testing', 'tests')
    """Parts of ``devicetrack`` that the kind's modules must not import."""

    devices: Sequence[str]
    """The identifiers of at least two devices that are healthy and free."""

    numa: Mapping[str, int | None] = {}
    """The NUMA nodes of devices, by identifier; None for a device without one. Devices left out are not checked."""

    groups: Mapping[str, int] = {}
    """The IOMMU groups of devices, by identifier. Devices of one group go to one guest only."""

    parts: Mapping[str, Sequence[str]] = {}
    """Devices that are parts of another one, by the identifier of the whole."""

    rivals: Sequence[tuple[str, str]] = ()
    """Pairs of other devices that two guests cannot have at once."""

    refused: Sequence[Callable[[], Any]] = ()
    """Calls of privileged functions with arguments that these must refuse: a path elsewhere, another device."""

    def _setUp(self) -> None:
        self.configuration = self.useFixture(our_fixtures.Configuration())
        self.libvirt = self.useFixture(libvirt_fixtures.TestNode())
        self.hypervisor = connection.Connection('', self.libvirt.connect)
        self.boot = 'first boot'
        self.make_host()

    @abc.abstractmethod
    def make_host(self) -> None:
        """Make the devices, and set the options with which the kind offers them."""

    def adjust(self, kind: api.DeviceKind) -> None:
        """Make a new kind use this host's files where options cannot. By default nothing."""

    def reboot(self) -> None:
        """Boot the host again. By default only its name changes; override it if nodes or paths change too."""
        self.boot = f'after {self.boot}'

    # -- what happens to a device -------------------------------------------------------------------------------------

    def remove(self, identifier: str) -> None:
        """Take the device away from the host."""
        raise NotOnThisHost('remove')

    def replace(self, identifier: str) -> None:
        """Replace the device by another one of the same name. If the kind keeps bytes, the new one is not clean."""
        raise NotOnThisHost('replace')

    def use(self, identifier: str) -> None:
        """Let the host itself use the device."""
        raise NotOnThisHost('use')

    def let_go(self, identifier: str) -> None:
        """Let the host stop using the device."""
        raise NotOnThisHost('let_go')

    def write(self, identifier: str) -> None:
        """Leave bytes on the device, as a guest does."""
        raise NotOnThisHost('write')

    def is_clean(self, identifier: str) -> bool:
        """Whether no byte of a guest is left on the device. The world looks itself and does not ask the kind."""
        raise NotOnThisHost('is_clean')

    def hide_identity(self, identifier: str) -> None:
        """Let the host not tell which device this is: its serial number gives no answer, or its label is lost.

        Only for kinds whose devices can be there without it.
        """
        raise NotOnThisHost('hide_identity')

    def other_addresses(self, identifier: str) -> Sequence[str]:
        """Return other addresses by which definitions can name the device, for example links to its path."""
        raise NotOnThisHost('other_addresses')

    # -- what fails ---------------------------------------------------------------------------------------------------

    def unreadable(self) -> None:
        """Let the host give no answer about its devices."""
        raise NotOnThisHost('unreadable')

    def cannot_clean(self) -> None:
        """Let cleaning leave the bytes where they are, without an error of the device."""
        raise NotOnThisHost('cannot_clean')

    def without_privileges(self) -> None:
        """Let every privileged function of the kind raise ``PermissionError``."""
        raise NotOnThisHost('without_privileges')
