"""The base class of the host on which the contract of a device kind runs. The author of the kind derives from it."""

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
    """The world cannot do this. A test that needs it is skipped, and says so."""


class KindWorld(fixtures.Fixture, abc.ABC):
    """A host with at least two devices of the kind ``kind_class``. Nobody uses them, and they are clean.

    It is a fixture of the library ``fixtures``: :meth:`make_host` may call ``useFixture`` and ``addCleanup``. Make the
    devices there and set ``devices``. The base class sets these attributes before that:

    ``configuration``
        The options of the host (:class:`devicetrack.testing.fixtures.Configuration`). Register the kind's own options
        in ``configuration.conf`` first. Then ``configuration.set(group, option=value)`` sets them.
    ``libvirt``
        A host of libvirt's in-process test driver (:class:`devicetrack.testing.libvirt.TestNode`). If the kind asks
        libvirt for node devices, add them before anything connects.
    ``hypervisor``
        The connection to ``libvirt`` that the kind gets. Replace it in :meth:`make_host` if the kind needs another.
    ``boot``
        The value that the kind's ``boot_id()`` returns.

    A subclass sets these, in its class or in :meth:`make_host`:

    ``kind_class``
        The class of the kind. The entry point names the same class.
    ``devices``
        The identifiers of at least two devices that are healthy and free, and that two guests may have at once:
        ``('one', 'two')``. They may be parts of one whole.
    ``numa``
        The NUMA nodes of devices, by identifier: ``{'one': 1, 'two': None}``. None means that the node is unknown. Only
        the devices that you name are checked. If this or one of the next four is empty, its test is skipped.
    ``groups``
        The numbers of the IOMMU groups of devices, by identifier: ``{'one': 17, 'two': 17, 'three': 18}``. Devices of
        one group must have a common token with the mode ``together``, and devices of two groups must not.
    ``parts``
        The identifiers of the parts, by the identifier of their whole: ``{'card': ['vf0', 'vf1']}``. All of them must
        be in the stock. A part must have the whole as its ``parent``. If the kind stores data, a test realizes the
        whole and writes to a part, as the guest that has the whole may. If the parts are away while a guest has the
        whole, or store no data, let :meth:`write` raise :class:`NotOnThisHost` for them.
    ``rivals``
        Pairs of identifiers of devices that two guests cannot have at once: ``[('three', 'three-again')]``. Both must
        be in the stock.
    ``refused``
        Calls of privileged functions with an attacker's arguments, as functions without arguments:
        ``[lambda: privileged.clear_as_root('/srv', '../etc/passwd', ...)]``. Each must raise ``OSError`` or
        ``ValueError``. Call the function that does the work, not the one that asks the daemon.
    ``layers``
        The names of the subpackages of ``devicetrack`` that no module of the kind may import. Do not change it.

    Methods that change the host raise :class:`NotOnThisHost` until a subclass overrides them. Override each method
    whose effect can happen to a device of the kind: a skipped test tests nothing.
    """

    kind_class: type[api.DeviceKind]

    layers: ClassVar[Sequence[str]] = ('claims', 'cmd', 'engine', 'nova', 'placement', 'store', 'testing', 'tests')
    devices: Sequence[str]
    numa: Mapping[str, int | None] = {}
    groups: Mapping[str, int] = {}
    parts: Mapping[str, Sequence[str]] = {}
    rivals: Sequence[tuple[str, str]] = ()
    refused: Sequence[Callable[[], Any]] = ()

    def _setUp(self) -> None:
        self.configuration = self.useFixture(our_fixtures.Configuration())
        self.libvirt = self.useFixture(libvirt_fixtures.TestNode())
        self.hypervisor = connection.Connection('', self.libvirt.connect)
        self.boot = 'first boot'
        self.make_host()

    @abc.abstractmethod
    def make_host(self) -> None:
        """Make the devices, and set the options that make the kind offer them."""

    def adjust(self, kind: api.DeviceKind) -> None:
        """Make a new kind use this host's files where no option can. By default this does nothing."""

    def reboot(self) -> None:
        """Boot the host again. By default only ``boot`` changes. Override it if nodes or paths change too."""
        self.boot = f'after {self.boot}'

    # -- what happens to a device -------------------------------------------------------------------------------------

    def remove(self, identifier: str) -> None:
        """Take the device away from the host."""
        raise NotOnThisHost('remove')

    def replace(self, identifier: str) -> None:
        """Replace the device by another one of the same name. If the kind stores data, the new one must not be clean.

        Take the old device away first. Give the new one everything that the host may reuse: a new file gets the size of
        the old one, and may get its inode number.
        """
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
        """Whether no byte of a guest is left on the device. Read the device, and do not ask the kind."""
        raise NotOnThisHost('is_clean')

    def hide_identity(self, identifier: str) -> None:
        """Hide which device this is: its serial number cannot be read, or its label is lost.

        Override this if a device of the kind can be there without its identity.
        """
        raise NotOnThisHost('hide_identity')

    def other_addresses(self, identifier: str) -> Sequence[str]:
        """Return other addresses with which definitions can name the device, for example links to its path."""
        raise NotOnThisHost('other_addresses')

    # -- what fails ---------------------------------------------------------------------------------------------------

    def unreadable(self) -> None:
        """Make the host's devices unreadable."""
        raise NotOnThisHost('unreadable')

    def cannot_clean(self) -> None:
        """Let cleaning leave the bytes on the devices, without an error if the kind itself has to notice that.

        A kind that uses :func:`devicetrack.virt.libvirt.jobs.wipe` need not read back, because ``wipe`` does. Its
        world patches that function in the kind's module by one that raises ``CommandFailed``, as ``wipe`` does if
        nothing proves that the device is clean.
        """
        raise NotOnThisHost('cannot_clean')

    def without_privileges(self) -> None:
        """Let every privileged function of the kind raise ``PermissionError``."""
        raise NotOnThisHost('without_privileges')
