"""The one place that calls libvirt.

This module translates libvirt's errors, with the cause chained. Without a connection it raises
:class:`~devicetrack.exception.HypervisorUnreachable`, and :class:`~devicetrack.exception.DomainGone` if the domain went
away. Every other error is a :class:`Refused`, with a meaning if that is known. If the connection was lost, the next
call opens another one. Calls may come from any thread, and block until libvirt answers, at most for a time that an
option sets. After that it is unknown whether libvirt carries a call out, as when the connection breaks.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import enum
import functools
import os
import re
import threading
from typing import Any
from typing import NamedTuple
from typing import TypeVar

import libvirt

from devicetrack import exception
from devicetrack import log
from devicetrack.virt.libvirt import bounded
from devicetrack.virt.libvirt import vfio_migration

LOG = log.logger(__name__)

DEFAULT_URI = 'qemu:///system'
TIMEOUT = '[devicetrack_libvirt] call_timeout_s'
_KEEPALIVE_S = 5
# The user's name, and perhaps a password, of a URI.
_ACCOUNT = re.compile('//[^/]*@')

_Answer = TypeVar('_Answer')


class Meaning(enum.Enum):
    """The meaning of a refusal to the caller."""

    FULL = 'the parent has no room'
    IN_USE = 'the device is in use'
    EXISTS = 'the device exists already'
    NO_SUCH_DEVICE = 'there is no such node device'
    NO_SUCH_SNAPSHOT = 'there is no such snapshot'
    BEHIND = 'the hypervisor does not know of a change yet'
    UNTOLD = 'the hypervisor did not say why'
    UNSUPPORTED = 'this hypervisor cannot do it'
    OTHER = 'refused'


# libvirt passes on the errors of mdevctl and the kernel as VIR_ERR_INTERNAL_ERROR, so only the texts tell these apart.
# libvirt 9.0 with mdevctl 1.2 and libvirt 11.3 with mdevctl 1.4 have the same texts. A text that matches nothing is
# OTHER, and callers look at the device itself again rather than believe a text.
_TEXTS = (
    ('No available instances of', Meaning.FULL),
    ('device in use', Meaning.IN_USE),
    ('Device already exists', Meaning.EXISTS),
    ('Device is already active', Meaning.EXISTS),
)
_CODES = {
    libvirt.VIR_ERR_NO_NODE_DEVICE: Meaning.NO_SUCH_DEVICE,
    libvirt.VIR_ERR_NO_DOMAIN_SNAPSHOT: Meaning.NO_SUCH_SNAPSHOT,
    libvirt.VIR_ERR_NO_SUPPORT: Meaning.UNSUPPORTED,
    # libvirt says so when it is asked to destroy a node device that is not active, or to undefine or autostart one that
    # is not defined. It also says so of active or defined devices that it does not know of yet.
    libvirt.VIR_ERR_OPERATION_INVALID: Meaning.BEHIND,
    # A thread's last error is lost if Python frees another libvirt object before it reads the error. Then it is unknown
    # whether libvirt carried out the call.
    None: Meaning.UNTOLD,
}

# The first tag of a running guest's definition. Only such a definition has an id.
_LIVE = re.compile(r"""\s*<domain(?:\s[\w:.-]+\s*=\s*(?:"[^"]*"|'[^']*'))*?\sid\s*=""")

# A guest that waits for its memory is paused: first while its process starts, then until the source has sent all its
# memory. At the source the guest is paused for migration only at the moment of the hand-over.
_ARRIVING = frozenset((libvirt.VIR_DOMAIN_PAUSED_MIGRATION, libvirt.VIR_DOMAIN_PAUSED_STARTING_UP))

# libvirt's own client code raises these errors when the daemon is gone.
_LOST_DOMAINS = frozenset((libvirt.VIR_FROM_REMOTE, libvirt.VIR_FROM_RPC))
_LOST_CODES = frozenset((libvirt.VIR_ERR_SYSTEM_ERROR, libvirt.VIR_ERR_INTERNAL_ERROR, libvirt.VIR_ERR_RPC,
                         libvirt.VIR_ERR_NO_CONNECT, libvirt.VIR_ERR_INVALID_CONN, libvirt.VIR_ERR_AUTH_FAILED))


class Refused(exception.CommandFailed):
    """libvirt refused a call; ``meaning`` says why, if that is known."""

    meaning: Meaning = Meaning.OTHER


class Definitions(NamedTuple):
    """The definitions of one domain as the hypervisor gave them.

    ``current`` is the live definition of a running guest, or else the inactive one. ``defined`` is the inactive
    definition of a running guest; None if the guest is off or its domain transient.
    """

    uuid: str
    running: bool
    current: str
    defined: str | None


class Unreadable(NamedTuple):
    """A domain whose definitions the hypervisor did not give."""

    uuid: str
    reason: str


class NodeDevice:
    """One node device of the connection that found it."""

    def __init__(self, connection: Connection, device: Any) -> None:
        self._connection, self._device = connection, device
        self.name: str = device.name()

    def xml(self) -> str:
        """Return its document.

        :raises Refused: the device is gone (``NO_SUCH_DEVICE``)
        """
        return str(self._connection.call('virNodeDeviceGetXMLDesc', self._device.XMLDesc, 0))

    def is_active(self) -> bool:
        """Whether it exists in the kernel. All devices of a hypervisor that cannot say are active."""
        return bool(self._connection.call('virNodeDeviceIsActive', _if_supported, self._device.isActive, True))

    def is_persistent(self) -> bool:
        """Whether it is defined, so that it can be there again after the host boots."""
        return bool(self._connection.call('virNodeDeviceIsPersistent', _if_supported, self._device.isPersistent, False))

    def start(self) -> None:
        self._connection.call('virNodeDeviceCreate', self._device.create)

    def destroy(self) -> None:
        self._connection.call('virNodeDeviceDestroy', self._device.destroy)

    def undefine(self) -> None:
        self._connection.call('virNodeDeviceUndefine', self._device.undefine)

    def set_autostart(self) -> None:
        self._connection.call('virNodeDeviceSetAutostart', self._device.setAutostart, 1)


class Domain:
    """One domain of the connection that found it. Every call raises DomainGone if the domain is gone."""

    def __init__(self, call: Callable[..., Any], domain: Any) -> None:
        self._call, self._domain = call, domain
        self.uuid: str = domain.UUIDString()

    def xml(self, flags: int) -> str:
        """Return a definition; ``flags`` are libvirt's ``VIR_DOMAIN_XML_…``."""
        return str(self._call('virDomainGetXMLDesc', self._domain.XMLDesc, flags, uuid=self.uuid))

    def is_active(self) -> bool:
        return bool(self._call('virDomainIsActive', self._domain.isActive, uuid=self.uuid))

    def is_persistent(self) -> bool:
        return bool(self._call('virDomainIsPersistent', self._domain.isPersistent, uuid=self.uuid))

    def saved(self) -> str | None:
        """Return the definition in the saved state that the guest will start from; None without such a state."""
        if not self._call('virDomainHasManagedSaveImage', _if_supported,
                                     functools.partial(self._domain.hasManagedSaveImage, 0), False, uuid=self.uuid):
            return None
        return str(self._call('virDomainManagedSaveGetXMLDesc', self._domain.managedSaveGetXMLDesc,
                                         libvirt.VIR_DOMAIN_SAVE_IMAGE_XML_SECURE, uuid=self.uuid))

    def snapshots(self) -> list[str]:
        """Return the documents of its snapshots. A snapshot that goes away meanwhile is left out."""
        documents = []
        for snapshot in self._call('virDomainListAllSnapshots', self._domain.listAllSnapshots, 0,
                                              uuid=self.uuid):
            try:
                documents.append(str(self._call('virDomainSnapshotGetXMLDesc', snapshot.getXMLDesc, 0,
                                                           uuid=self.uuid)))
            except Refused as error:
                if error.meaning is not Meaning.NO_SUCH_SNAPSHOT:
                    raise
        return documents

    def define_saved(self, definition: str) -> None:
        """Put another definition into the saved state."""
        self._call('virDomainManagedSaveDefineXML', self._domain.managedSaveDefineXML, definition, 0,
                              uuid=self.uuid)

    def destroy(self) -> None:
        self._call('virDomainDestroy', self._domain.destroy, uuid=self.uuid)

    def undefine(self, flags: int) -> None:
        self._call('virDomainUndefineFlags', self._domain.undefineFlags, flags, uuid=self.uuid)


class Connection:
    """A connection to one hypervisor. The first call opens it, and so does the next one after it was lost.

    :param uri: as libvirt takes it; empty means ``qemu:///system``
    :param connect: opens the connection instead of ``libvirt.open``. The connection stays the caller's: :meth:`close`
        does not close it, and ``uri`` only names it in messages.
    :param timeout_s: how long libvirt may take for an answer; after that a call may still be carried out
    """

    def __init__(self, uri: str = '', connect: Callable[[], Any] | None = None, timeout_s: int = 120) -> None:
        self.uri = uri or DEFAULT_URI
        self._name = _ACCOUNT.sub('//', self.uri)       # for messages
        self._connect = connect or self._open
        self._shared = connect is not None
        self._calls = bounded.Calls(timeout_s, into_c=True)
        self._lock = threading.Lock()
        self._raw: Any = None

    def raw(self) -> Any:
        """Return the open ``libvirt.virConnect``.

        :raises HypervisorUnreachable: it cannot be opened
        """
        with self._lock:
            if self._raw is None:
                # libvirt prints every error to stderr, even an error that is an answer that we expect. A process has
                # only one handler; compute services set a quiet one too.
                libvirt.registerErrorHandler(_quiet, None)
                try:
                    self._raw = self._calls.call(self._connect)
                except bounded.Late as error:
                    raise self._unreachable(error) from error
                except libvirt.libvirtError as error:
                    raise exception.HypervisorUnreachable(
                        # No guest is named here, so libvirt's own words can be shown.
                        self._name, f'{_code_of(error)}: {error.get_error_message()}; check that its daemon runs, that '
                                    'this user may connect to it, and that [libvirt] connection_uri names it'
                    ) from error
            return self._raw

    def close(self) -> None:
        """Close the connection, if it is our own. The next call begins again."""
        with self._lock:
            raw, self._raw = self._raw, None
        if raw is not None and not self._shared:
            with contextlib.suppress(libvirt.libvirtError, bounded.Late):
                self._calls.call(raw.close)

    def definitions(self, told: Callable[[int, int], None] | None = None,
                    only: Collection[str] | None = None) -> Iterator[Definitions | Unreadable]:
        """Yield every domain's definitions, one after the other. A domain that goes away meanwhile is left out.

        :param told: as for :meth:`devicetrack.virt.driver.VirtDriver.guest_records`
        :param only: the UUIDs of the domains to read; by default all
        :raises HypervisorUnreachable: no answer, perhaps after some domains were read. From then on, a domain about
            which it gives no answer is Unreadable until that answer has come
        """
        domains = [domain for domain in self._list(0) if only is None or domain.UUIDString() in only]
        # Listing the transient domains costs a fraction of asking every domain. The list is read second, so a domain in
        # it had no definition when all domains were listed, or has lost it since.
        transient = {domain.UUIDString() for domain in self._list(libvirt.VIR_CONNECT_LIST_DOMAINS_TRANSIENT)}

        def ask(domain: Domain) -> Sequence[Definitions]:
            current = domain.xml(0)
            # The document itself says whether the guest runs. Another call to ask would be a race, and would cost half
            # as much as the document.
            running = _LIVE.match(current) is not None
            return [Definitions(domain.uuid, running, current, domain.xml(libvirt.VIR_DOMAIN_XML_INACTIVE)
                                if running and domain.uuid not in transient else None)]

        return self._each(domains, ask, told=told)

    def saved(self) -> Iterator[Definitions | Unreadable]:
        """Yield the definition in the saved state of every guest that has one (managed save), as ``current``.

        :raises HypervisorUnreachable: no answer
        """
        def ask(domain: Domain) -> Sequence[Definitions]:
            try:
                text = domain.saved()
            except Refused as error:
                # libvirt's test driver: nobody can read or change its saved states. QEMU's driver can since 3.7.
                if error.meaning is not Meaning.UNSUPPORTED:
                    raise
                return []
            return [] if text is None else [Definitions(domain.uuid, False, text, None)]

        return self._each(self._list(libvirt.VIR_CONNECT_LIST_DOMAINS_MANAGEDSAVE), ask, 'its saved state: ')

    def snapshots(self) -> Iterator[Definitions | Unreadable]:
        """Yield the document of every snapshot of every guest, as ``current``.

        :raises HypervisorUnreachable: no answer
        """
        def ask(domain: Domain) -> Sequence[Definitions]:
            return [Definitions(domain.uuid, False, document, None) for document in domain.snapshots()]

        return self._each(self._list(libvirt.VIR_CONNECT_LIST_DOMAINS_HAS_SNAPSHOT), ask, 'its snapshots: ')

    def _each(self, domains: Sequence[Any], ask: Callable[[Domain], Sequence[Definitions]], what: str = '',
              told: Callable[[int, int], None] | None = None) -> Iterator[Definitions | Unreadable]:
        """Ask about one domain after the other.

        :param what: begins the reason why a domain is unreadable
        """
        def look(raw: Any) -> Sequence[Definitions | Unreadable]:
            domain = Domain(functools.partial(self.call, by=self._calls.natively), raw)
            try:
                # One more question would keep one more thread.
                return ask(domain) if not self._calls.is_late(domain.uuid) else [
                    Unreadable(domain.uuid, 'the hypervisor has not answered an earlier question about it yet')]
            except exception.DomainGone:
                return ()
            except Refused as error:
                return [Unreadable(domain.uuid, f'{what}{error}')]

        try:
            for number, found in enumerate(self._calls.each(domains, look), 1):
                yield from found
                if told is not None:
                    told(number, len(domains))
        except bounded.Late as error:
            self._drop(self._raw)
            raise self._unreachable(error) from error

    def returning(self) -> frozenset[tuple[int, str]]:
        """List the domains that may get other definitions than they have: from a saved state or a snapshot.

        :returns: the UUIDs, each with the flag of its list: a guest with both may have lost one of them
        :raises HypervisorUnreachable: no answer
        """
        return frozenset((flags, domain.UUIDString()) for flags in (
            libvirt.VIR_CONNECT_LIST_DOMAINS_MANAGEDSAVE, libvirt.VIR_CONNECT_LIST_DOMAINS_HAS_SNAPSHOT)
            for domain in self._list(flags))

    def _list(self, flags: int) -> list[Any]:
        domains: list[Any] = self._asked('virConnectListAllDomains', lambda raw: raw.listAllDomains(flags))
        return domains

    def domain(self, uuid: str) -> Domain | None:
        """Look up the domain of this UUID; None if there is none."""
        try:
            return Domain(self.call, self._asked('virDomainLookupByUUIDString',
                                            lambda raw: raw.lookupByUUIDString(uuid), uuid))
        except exception.DomainGone:
            return None

    def arriving(self) -> frozenset[str]:
        """Find the running domains that wait for an incoming migration, by their UUIDs.

        :raises HypervisorUnreachable: no answer
        """
        found = set()
        for domain in self._list(libvirt.VIR_CONNECT_LIST_DOMAINS_PAUSED):
            uuid = domain.UUIDString()
            try:
                state, reason = self.call('virDomainGetState', domain.state, uuid=uuid)
            except exception.DomainGone:
                continue
            except Refused as error:
                # If that is wrong, the manager only waits a little longer for the guest to run.
                LOG.warning('Assuming that domain %s waits for a migration; its state is unknown: %s', uuid, error)
                found.add(uuid)
                continue
            if state == libvirt.VIR_DOMAIN_PAUSED and reason in _ARRIVING:
                found.add(uuid)
        return frozenset(found)

    def define_domain(self, definition: str, uuid: str) -> None:
        """Replace the inactive definition of a domain."""
        self.call('virDomainDefineXML', self.raw().defineXML, definition, uuid=uuid)

    def versions(self) -> vfio_migration.Versions | None:
        """Read the versions of this host's software; None if the hypervisor is not QEMU."""
        def ask(raw: Any) -> vfio_migration.Versions | None:
            if raw.getType() != 'QEMU':
                return None
            return vfio_migration.Versions(raw.getLibVersion(), raw.getVersion(), os.uname().release)

        return self._asked('virConnectGetVersion', ask)

    def mdevs(self) -> list[NodeDevice]:
        """List every mediated device, inactive ones too."""
        return self._node_devices(libvirt.VIR_CONNECT_LIST_NODE_DEVICES_CAP_MDEV)

    def node_device(self, name: str) -> NodeDevice | None:
        """Look up the node device of this name, active or not; None if there is none."""
        try:
            return NodeDevice(self, self._asked('virNodeDeviceLookupByName',
                                                lambda raw: raw.nodeDeviceLookupByName(name)))
        except Refused as error:
            if error.meaning is Meaning.NO_SUCH_DEVICE:
                return None
            raise

    def mdev_parents(self) -> list[NodeDevice]:
        """List every node device that can make mediated devices."""
        return self._node_devices(libvirt.VIR_CONNECT_LIST_NODE_DEVICES_CAP_MDEV_TYPES)

    def _node_devices(self, flags: int) -> list[NodeDevice]:
        return [NodeDevice(self, device) for device in
                self._asked('virConnectListAllNodeDevices', lambda raw: raw.listAllDevices(flags))]

    def define_node_device(self, document: str) -> NodeDevice:
        """Define a node device, without starting it."""
        return NodeDevice(self, self.call('virNodeDeviceDefineXML', self.raw().nodeDeviceDefineXML, document, 0))

    def _asked(self, command: str, call: Callable[[Any], _Answer], domain_uuid: str | None = None) -> _Answer:
        """List or look something up. That changes nothing, so a lost connection makes this repeat the call once."""
        try:
            return self._ask(command, call, domain_uuid)
        except exception.HypervisorUnreachable as error:
            if isinstance(error.__cause__, bounded.Late):
                raise
            LOG.info('%s; asking once more.', error)
        return self._ask(command, call, domain_uuid)

    def _ask(self, command: str, call: Callable[[Any], _Answer], domain_uuid: str | None) -> _Answer:
        answer: _Answer = self.call(command, call, self.raw(), uuid=domain_uuid)
        return answer

    def call(self, command: str, call: Callable[..., Any], *arguments: Any, uuid: str | None = None,
             by: Callable[..., Any] | None = None) -> Any:
        """Call libvirt, wait for its answer at most until the timeout, and translate its errors.

        :param uuid: the domain that the call is about. Its errors are reported by their numbers alone, because their
            texts quote the domain's name
        :param by: makes the call; by default :meth:`.bounded.Calls.call`
        """
        used = self._raw
        try:
            return (by or self._calls.call)(functools.partial(call, *arguments), uuid)
        except bounded.Late as error:
            if not isinstance(error, bounded.NotMade):
                self._drop(used)
            raise self._unreachable(error) from error
        except libvirt.libvirtError as error:
            code = error.get_error_code()
            if code == libvirt.VIR_ERR_NO_DOMAIN and uuid is not None:
                raise exception.DomainGone(uuid) from error
            if self._is_lost(error, uuid):
                self._drop(used)
                raise exception.HypervisorUnreachable(self._name, _code_of(error)) from error
            text = error.get_error_message() or ''
            meaning = next((found for part, found in _TEXTS if part in text), None) or _CODES.get(code, Meaning.OTHER)
            if uuid is not None:
                reason = _code_of(error)
            else:
                reason = meaning.value if meaning in (Meaning.UNSUPPORTED, Meaning.UNTOLD) else text.strip()
            raise Refused(command, reason, meaning) from error

    def _unreachable(self, error: bounded.Late) -> exception.HypervisorUnreachable:
        return exception.HypervisorUnreachable(
            self._name, f'{error}; check whether its daemon hangs, or raise {TIMEOUT}')

    def _drop(self, lost: Any) -> None:
        """Let the next call open another connection, unless another thread has already opened one."""
        with self._lock:
            if self._raw is lost:
                self._raw = None

    def _is_lost(self, error: libvirt.libvirtError, domain_uuid: str | None) -> bool:
        code = error.get_error_code()
        # A daemon that cannot send a domain's definition, which is too long, must not hide all the other domains.
        maybe = code == libvirt.VIR_ERR_RPC and domain_uuid is not None
        if error.get_error_domain() in _LOST_DOMAINS and code in _LOST_CODES and not maybe:
            return True
        raw = self._raw
        try:
            return raw is None or not raw.isAlive()
        except libvirt.libvirtError:
            return True

    def _open(self) -> Any:
        raw = libvirt.open(self.uri)
        # In a process that runs libvirt's event loop, keepalive ends a connection whose other end vanished silently,
        # and with it the calls that wait for an answer.
        with contextlib.suppress(libvirt.libvirtError):
            raw.setKeepAlive(_KEEPALIVE_S, max(1, int(self._calls.timeout_s) // _KEEPALIVE_S))
        return raw


def _if_supported(call: Callable[[], Any], otherwise: bool) -> Any:
    """Call, and return ``otherwise`` if the hypervisor does not support the call."""
    try:
        return call()
    except libvirt.libvirtError as error:
        if error.get_error_code() != libvirt.VIR_ERR_NO_SUPPORT:
            raise
        return otherwise


def _quiet(_context: object, _error: object) -> None:
    """Print nothing. Every error reaches the caller as an exception; its text may quote names of guests."""


def _code_of(error: libvirt.libvirtError) -> str:
    return f'libvirt error {error.get_error_code()} of subsystem {error.get_error_domain()}'
