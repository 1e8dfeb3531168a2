"""The one place that calls libvirt.

What libvirt raises is translated here, with the cause chained: no connection is
:class:`~devicetrack.exception.HypervisorUnreachable`, a domain that went away is
:class:`~devicetrack.exception.DomainGone`, and everything else that libvirt refuses is :class:`Refused`, which
says what the refusal means as far as that is known. A lost connection is opened again by the next call.
Calls block, release the interpreter's lock, and may come from any thread.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
import contextlib
import enum
import functools
import logging
import os
import re
import threading
from typing import Any
from typing import NamedTuple
from typing import TypeVar

import libvirt

from devicetrack import exception
from devicetrack.virt.libvirt import ahead
from devicetrack.virt.libvirt import vfio_migration

LOG = logging.getLogger(__name__)

DEFAULT_URI = 'qemu:///system'

_Answer = TypeVar('_Answer')


class Meaning(enum.Enum):
    """What a refusal means to the caller."""

    FULL = 'the parent has no room'
    IN_USE = 'the device is in use'
    EXISTS = 'the device exists already'
    NO_SUCH_DEVICE = 'there is no such node device'
    BEHIND = 'the hypervisor has not heard of a change yet'
    UNTOLD = 'the hypervisor did not say why'
    UNSUPPORTED = 'this hypervisor cannot do it'
    OTHER = 'refused'


# libvirt hands mdevctl's and the kernel's words on as VIR_ERR_INTERNAL_ERROR, so the text is all that tells these
# apart. Read from libvirt 9.0 with mdevctl 1.2 and from libvirt 11.3 with mdevctl 1.4, which agree. What
# matches nothing is OTHER, and callers look at the device itself again rather than believe a text.
_TEXTS = (
    ('No available instances of', Meaning.FULL),
    ('device in use', Meaning.IN_USE),
    ('Device already exists', Meaning.EXISTS),
    ('Device is already active', Meaning.EXISTS),
)
_CODES = {
    libvirt.VIR_ERR_NO_NODE_DEVICE: Meaning.NO_SUCH_DEVICE,
    libvirt.VIR_ERR_NO_SUPPORT: Meaning.UNSUPPORTED,
    # Of a node device: not active, when it is to be destroyed; not defined, when it is to be undefined or to start with
    # the host. It says so of devices that are, until it has heard of them.
    libvirt.VIR_ERR_OPERATION_INVALID: Meaning.BEHIND,
    # The last error of a thread is lost when Python frees another object of libvirt before it is read. Whether the call
    # was carried out nobody knows.
    None: Meaning.UNTOLD,
}

# The first tag of a definition, with the id that only a running guest's has.
_LIVE = re.compile(r"""\s*<domain(?:\s[\w:.-]+\s*=\s*(?:"[^"]*"|'[^']*'))*?\sid\s*=""")

# Errors that libvirt's own client code raises when the daemon is not there any more.
_LOST_DOMAINS = frozenset((libvirt.VIR_FROM_REMOTE, libvirt.VIR_FROM_RPC))
_LOST_CODES = frozenset((libvirt.VIR_ERR_SYSTEM_ERROR, libvirt.VIR_ERR_INTERNAL_ERROR, libvirt.VIR_ERR_RPC,
                         libvirt.VIR_ERR_NO_CONNECT, libvirt.VIR_ERR_INVALID_CONN, libvirt.VIR_ERR_AUTH_FAILED))


class Refused(exception.CommandFailed):
    """libvirt refused a call; ``meaning`` says why, as far as it is known."""

    meaning: Meaning = Meaning.OTHER


class Definitions(NamedTuple):
    """The definitions of one domain as the hypervisor gave them.

    ``current`` is that of its running guest, or else the one that it has. ``defined`` is what it will start with next:
    None when that is ``current``, and for a transient domain, which has none.
    """

    uuid: str
    running: bool
    current: str
    defined: str | None


class Unreadable(NamedTuple):
    """A domain whose definitions could not be had."""

    uuid: str
    reason: str


class NodeDevice:
    """One node device of the connection that found it."""

    def __init__(self, connection: Connection, device: Any) -> None:
        self._connection, self._device = connection, device
        self.name: str = device.name()

    def xml(self) -> str:
        """Its document.

        :raises Refused: it is not there any more (``NO_SUCH_DEVICE``)
        """
        with self._connection.calling('virNodeDeviceGetXMLDesc'):
            text: str = self._device.XMLDesc(0)
            return text

    def is_active(self) -> bool:
        """Whether it exists in the kernel. A hypervisor that has no inactive devices has active ones only."""
        try:
            with self._connection.calling('virNodeDeviceIsActive'):
                return bool(self._device.isActive())
        except Refused as error:
            if error.meaning is Meaning.UNSUPPORTED:
                return True
            raise

    def is_persistent(self) -> bool:
        """Whether it is defined, so that it can be there again after the host boots."""
        try:
            with self._connection.calling('virNodeDeviceIsPersistent'):
                return bool(self._device.isPersistent())
        except Refused as error:
            if error.meaning is Meaning.UNSUPPORTED:
                return False
            raise

    def start(self) -> None:
        with self._connection.calling('virNodeDeviceCreate'):
            self._device.create()

    def destroy(self) -> None:
        with self._connection.calling('virNodeDeviceDestroy'):
            self._device.destroy()

    def undefine(self) -> None:
        with self._connection.calling('virNodeDeviceUndefine'):
            self._device.undefine()

    def set_autostart(self) -> None:
        with self._connection.calling('virNodeDeviceSetAutostart'):
            self._device.setAutostart(1)


class Domain:
    """One domain of the connection that found it. Every call raises DomainGone when it is not there any more."""

    def __init__(self, connection: Connection, domain: Any) -> None:
        self._connection, self._domain = connection, domain
        self.uuid: str = domain.UUIDString()

    def xml(self, flags: int) -> str:
        """A definition of it; ``flags`` are libvirt's ``VIR_DOMAIN_XML_…``."""
        with self._connection.calling('virDomainGetXMLDesc', self.uuid):
            text: str = self._domain.XMLDesc(flags)
            return text

    def is_active(self) -> bool:
        with self._connection.calling('virDomainIsActive', self.uuid):
            return bool(self._domain.isActive())

    def is_persistent(self) -> bool:
        with self._connection.calling('virDomainIsPersistent', self.uuid):
            return bool(self._domain.isPersistent())

    def saved(self) -> str | None:
        """The definition in the state that its guest was saved with and will start from; None without such a state."""
        try:
            with self._connection.calling('virDomainHasManagedSaveImage', self.uuid):
                if not self._domain.hasManagedSaveImage(0):
                    return None
        except Refused as error:
            if error.meaning is Meaning.UNSUPPORTED:
                return None
            raise
        with self._connection.calling('virDomainManagedSaveGetXMLDesc', self.uuid):
            text: str = self._domain.managedSaveGetXMLDesc(libvirt.VIR_DOMAIN_SAVE_IMAGE_XML_SECURE)
            return text

    def define_saved(self, definition: str) -> None:
        """Put another definition into the saved state."""
        with self._connection.calling('virDomainManagedSaveDefineXML', self.uuid):
            self._domain.managedSaveDefineXML(definition, 0)

    def state(self) -> tuple[int, int]:
        """Its state and the reason for it, as libvirt numbers them."""
        with self._connection.calling('virDomainGetState', self.uuid):
            state, reason = self._domain.state()
            return state, reason

    def destroy(self) -> None:
        with self._connection.calling('virDomainDestroy', self.uuid):
            self._domain.destroy()

    def undefine(self, flags: int) -> None:
        with self._connection.calling('virDomainUndefineFlags', self.uuid):
            self._domain.undefineFlags(flags)


class Connection:
    """A connection to one hypervisor, opened when it is first needed and again after it was lost.

    :param uri: as libvirt takes it; empty means ``qemu:///system``
    :param connect: opens it, when not ``libvirt.open``. The connection stays the caller's: :meth:`close` does not close
        it, and ``uri`` only names it in messages.
    """

    def __init__(self, uri: str = '', connect: Callable[[], Any] | None = None) -> None:
        self.uri = uri or DEFAULT_URI
        self._connect = connect or self._open
        self._shared = connect is not None
        self._lock = threading.Lock()
        self._raw: Any = None

    def raw(self) -> Any:
        """The ``libvirt.virConnect``, for who shares it.

        :raises HypervisorUnreachable: it cannot be opened
        """
        with self._lock:
            if self._raw is None:
                # libvirt prints every error to stderr, also those that are answers to us. The handler is one for the
                # process, and quiet is what services of this kind set too.
                libvirt.registerErrorHandler(_quiet, None)
                try:
                    self._raw = self._connect()
                except libvirt.libvirtError as error:
                    raise exception.HypervisorUnreachable(self.uri, _code_of(error)) from error
            return self._raw

    def close(self) -> None:
        """Let go of the connection; the next call opens it again. One that was handed in stays open."""
        with self._lock:
            raw, self._raw = self._raw, None
        if raw is not None and not self._shared:
            with contextlib.suppress(libvirt.libvirtError):
                raw.close()

    def definitions(self) -> Iterator[Definitions | Unreadable]:
        """Every domain's definitions, one domain in memory at a time.

        A domain that goes away meanwhile is skipped.

        :raises HypervisorUnreachable: also in the middle; then nothing that came before may be taken for all
        """
        domains = self._asked('virConnectListAllDomains', lambda raw: raw.listAllDomains(0))
        # One list of these costs a fraction of asking every domain. It is read second: what it calls transient had no
        # definition when all domains were listed, or lost it since.
        transient = {domain.UUIDString() for domain in self._asked(
            'virConnectListAllDomains', lambda raw: raw.listAllDomains(libvirt.VIR_CONNECT_LIST_DOMAINS_TRANSIENT))}
        # Fetched ahead while the caller reads: most of the time that a document takes is libvirtd's, in its process.
        with contextlib.closing(ahead.of(functools.partial(self._of_domains, domains, transient))) as found:
            yield from found

    def _of_domains(self, domains: Iterable[Any], transient: Collection[str]) -> Iterator[Definitions | Unreadable]:
        for domain in domains:
            uuid = domain.UUIDString()
            try:
                yield self._definitions_of(domain, uuid, uuid in transient)
            except exception.DomainGone:
                continue
            except Refused as error:
                yield Unreadable(uuid, str(error))

    def _definitions_of(self, domain: Any, uuid: str, transient: bool) -> Definitions:
        with self.calling('virDomainGetXMLDesc', uuid):
            current = domain.XMLDesc(0)
            # The document itself says whether the guest runs; asking beside it would be a race, and costs half as
            # much as the document.
            running = _LIVE.match(current) is not None
            return Definitions(uuid, running, current, domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE)
                               if running and not transient else None)

    def domain(self, uuid: str) -> Domain | None:
        """The domain of this UUID, or None when there is none."""
        try:
            return Domain(self, self._asked('virDomainLookupByUUIDString',
                                            lambda raw: raw.lookupByUUIDString(uuid), uuid))
        except exception.DomainGone:
            return None

    def paused_domains(self) -> list[Domain]:
        """Every domain that is there and does not run at the moment, for whatever reason."""
        flags = libvirt.VIR_CONNECT_LIST_DOMAINS_PAUSED
        return [Domain(self, domain) for domain in
                self._asked('virConnectListAllDomains', lambda raw: raw.listAllDomains(flags))]

    def define_domain(self, definition: str, uuid: str) -> None:
        """Put an inactive definition of a domain in the place of the one that it has."""
        with self.calling('virDomainDefineXML', uuid):
            self.raw().defineXML(definition)

    def versions(self) -> vfio_migration.Versions | None:
        """What this host runs; None when the hypervisor is not QEMU."""
        def ask(raw: Any) -> vfio_migration.Versions | None:
            if raw.getType() != 'QEMU':
                return None
            return vfio_migration.Versions(raw.getLibVersion(), raw.getVersion(), os.uname().release)

        return self._asked('virConnectGetVersion', ask)

    def mdevs(self) -> list[NodeDevice]:
        """Every mediated device, inactive ones too."""
        return self._node_devices(libvirt.VIR_CONNECT_LIST_NODE_DEVICES_CAP_MDEV)

    def node_device(self, name: str) -> NodeDevice | None:
        """The node device of this name, active or not, or None when there is none."""
        try:
            return NodeDevice(self, self._asked('virNodeDeviceLookupByName',
                                                lambda raw: raw.nodeDeviceLookupByName(name)))
        except Refused as error:
            if error.meaning is Meaning.NO_SUCH_DEVICE:
                return None
            raise

    def mdev_parents(self) -> list[NodeDevice]:
        """Every node device that can make mediated devices."""
        return self._node_devices(libvirt.VIR_CONNECT_LIST_NODE_DEVICES_CAP_MDEV_TYPES)

    def _node_devices(self, flags: int) -> list[NodeDevice]:
        return [NodeDevice(self, device) for device in
                self._asked('virConnectListAllNodeDevices', lambda raw: raw.listAllDevices(flags))]

    def define_node_device(self, document: str) -> NodeDevice:
        """Define a node device, without starting it."""
        with self.calling('virNodeDeviceDefineXML'):
            return NodeDevice(self, self.raw().nodeDeviceDefineXML(document, 0))

    def _asked(self, command: str, call: Callable[[Any], _Answer], domain_uuid: str | None = None) -> _Answer:
        """List or look up. That changes nothing, so a call that finds the connection lost is made once more."""
        try:
            with self.calling(command, domain_uuid):
                return call(self.raw())
        except exception.HypervisorUnreachable as error:
            LOG.info('%s; asking once more.', error)
        with self.calling(command, domain_uuid):
            return call(self.raw())

    @contextlib.contextmanager
    def calling(self, command: str, domain_uuid: str | None = None) -> Iterator[None]:
        """Translate what libvirt raises in the block.

        :param domain_uuid: the domain that the call is about; its errors are told by their numbers alone, because
            their texts quote its name
        """
        used = self._raw
        try:
            yield
        except libvirt.libvirtError as error:
            code = error.get_error_code()
            if code == libvirt.VIR_ERR_NO_DOMAIN and domain_uuid is not None:
                raise exception.DomainGone(domain_uuid) from error
            if self._is_lost(error):
                self._drop(used)
                raise exception.HypervisorUnreachable(self.uri, _code_of(error)) from error
            text = error.get_error_message() or ''
            meaning = next((found for part, found in _TEXTS if part in text), None) or _CODES.get(code, Meaning.OTHER)
            if domain_uuid is not None:
                reason = _code_of(error)
            else:
                reason = meaning.value if meaning in (Meaning.UNSUPPORTED, Meaning.UNTOLD) else text.strip()
            raise Refused(command, reason, meaning) from error

    def _drop(self, lost: Any) -> None:
        """Open another connection next time, unless another thread has done so. It closes with its last user."""
        with self._lock:
            if self._raw is lost:
                self._raw = None

    def _is_lost(self, error: libvirt.libvirtError) -> bool:
        if error.get_error_domain() in _LOST_DOMAINS and error.get_error_code() in _LOST_CODES:
            return True
        raw = self._raw
        try:
            return raw is None or not raw.isAlive()
        except libvirt.libvirtError:
            return True

    def _open(self) -> Any:
        return libvirt.open(self.uri)


def _quiet(_context: object, _error: object) -> None:
    """Every error reaches the caller as an exception; printed, it would quote names of guests."""


def _code_of(error: libvirt.libvirtError) -> str:
    return f'libvirt error {error.get_error_code()} of subsystem {error.get_error_domain()}'
