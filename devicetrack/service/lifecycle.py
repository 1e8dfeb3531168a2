"""Instances with devices on one host: boot, start and stop, resize, migrate, evacuate, delete."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import threading
from typing import Any
from typing import Final
import uuid as uuids

from devicetrack import exception
from devicetrack import log
from devicetrack.claims.instance_fields import InstanceFields
from devicetrack.claims.manager import ClaimManager
from devicetrack.claims.providers import ProviderResolver
from devicetrack.engine.findings import Finding
from devicetrack.objects import DeviceRequest
from devicetrack.objects import InstanceResources
from devicetrack.service import document as documents
from devicetrack.service import steps
from devicetrack.service.answers import Answers
from devicetrack.service.document import Document
from devicetrack.service.document import Move
from devicetrack.service.protocols import Guests
from devicetrack.service.protocols import Instances
from devicetrack.store.api import Store
from devicetrack.virt.driver import VirtDriver

LOG = log.logger(__name__)

# What the owner of an instance may read if the error of a step has no text for it.
FAILED: Final = 'The operation failed. The instance is as it was before.'


class _Named(InstanceFields):
    """The fields of instances whose service gives names."""

    def __init__(self, name_of: Callable[[str], str | None]) -> None:
        self._name_of = name_of

    def display_name(self, instance: Any) -> str | None:
        return self._name_of(instance.uuid)


class Lifecycle:
    """The instances of one host, their guests and their devices.

    Each operation saves its decision in the instance's document, and then takes its steps, on this host and by asking
    the other one. If a process ends in between, at any moment, on either host, :meth:`open` of the next one or
    :meth:`audit` continues. You may repeat every operation after a crash or an error: it continues, or does nothing if
    it was done.

    An operation either reaches its end, or raises an error:

    * ``BadRequest``, :exc:`~devicetrack.exception.InstanceBusy`: nothing was changed.
    * :exc:`~devicetrack.exception.OperationFailed`: a step failed, and the earlier steps are undone. The error of the
      step is the cause (``__cause__``) if it happened on this host. A boot leaves nothing; a move leaves the instance
      where it was.
    * Every other error: the outcome of the step is unknown, for example because the store or the hypervisor does not
      answer. Nothing is undone, and the next audit continues. :exc:`~devicetrack.exception.OperationPending` is the
      same for the other host. :exc:`~devicetrack.exception.DocumentNotSaved` says that a save of the service did not
      hold.

    Operations on one instance wait for one another; those on different instances do not. Any number of threads may
    call.

    :param host: the host's name, unique among the hosts of the service
    :param instances: keeps the documents
    :param guests: starts and ends the guests of this host
    :param context: the service's request context, which the library hands through
    :param nodename: as for the manager, like ``providers`` and ``after_wipe``
    :param display_name: returns what people call an instance, by its UUID, as for
        :meth:`.InstanceFields.display_name`; by default no name is recorded

    ``manager`` is the :class:`~devicetrack.claims.manager.ClaimManager`, for questions and for operators' calls.
    """

    def __init__(self, host: str, driver: VirtDriver, store: Store, conf: Any, instances: Instances, guests: Guests, *,
                 context: Any = None, nodename: str | None = None, providers: ProviderResolver | None = None,
                 after_wipe: Callable[[], object] = lambda: None,
                 display_name: Callable[[str], str | None] = lambda _uuid: None) -> None:
        self.host, self._instances, self._context = host, instances, context
        self.manager = ClaimManager(host, driver, store, conf, Answers(host, instances), providers=providers,
                                    nodename=nodename, instance_fields=_Named(display_name), after_wipe=after_wipe)
        self._steps = steps.Steps(host, self.manager, instances, guests, context)
        self._changed, self._busy, self._conducted = threading.Condition(), set[str](), set[str]()
        self._failures: dict[str, BaseException | None] = {}    # of steps of this host, by instance

    # -- the host -----------------------------------------------------------------------------------------------------

    def open(self) -> list[Finding]:
        """Take the host, and go on with everything that was interrupted. Call it before the service takes requests.

        Guests of this host that are off are started, unless :meth:`stop` turned them off. What cannot go on now is
        logged, and waits for the next audit.

        :returns: the findings of the start
        :raises Exception: as :meth:`.ClaimManager.init_host`
        """
        findings = self.manager.init_host(self._context)
        self._go_on_with_all(restarted=True)
        return findings

    def close(self) -> None:
        """Release the host. Guests and devices stay as they are."""
        self.manager.close()

    def audit(self) -> list[Finding]:
        """Go on with everything that waits for this host, then compare the views. Call it every minute or so.

        :returns: the findings
        :raises Exception: as :meth:`.ClaimManager.update_available_resource`
        """
        self._go_on_with_all(restarted=False)
        return self.manager.update_available_resource(self._context, self.manager.nodename)

    def go_on(self, instance_uuid: str) -> None:
        """Take the steps of this host that an instance waits for. For ``ask`` of another host's :class:`.Instances`.

        :raises Exception: the outcome of a step is unknown
        """
        self._check_open()
        self._advance(instance_uuid)
        self._failures.pop(instance_uuid, None)         # the document says so

    # -- one host -----------------------------------------------------------------------------------------------------

    def claim(self, instance_uuid: str, flavor: Mapping[str, Any],
              allocations: Mapping[str, Any] | DeviceRequest | None = None) -> InstanceResources:
        """Boot an instance here: claim its devices, make them ready and start its guest.

        :param flavor: what JSON can write; ``extra_specs`` says which devices, and ``Guests.start`` gets all of it
        :param allocations: those of the instance in placement, or a request that says more than the flavor, for example
            the NUMA nodes, as for :meth:`.ClaimManager.instance_claim`. The document keeps them. None leaves the
            providers to this host
        :returns: the devices
        :raises BadRequest: the flavor or the allocations have no meaning
        :raises OperationFailed: there are no such devices (the cause is NoFit), or the guest did not start; nothing
            of the instance is left, and the next call tries again
        """
        new = Document(instance_uuid, self.host, steps.checked(flavor), steps.checked_allocations(allocations))

        def decide(document: Document) -> Document | None:
            if document.state == documents.DELETED:
                return new.but(moves=document.moves)
            if document.state not in (documents.BUILDING, documents.STARTING, documents.ACTIVE) or \
                    (document.host, document.flavor, document.allocations) != (self.host, new.flavor, new.allocations):
                raise _busy(document, 'boot')
            return None

        document = self._operate(instance_uuid, decide, lambda document: document.state == documents.ACTIVE, new)
        resources = document.instance_resources
        assert resources is not None
        return resources

    def start(self, instance_uuid: str) -> None:
        """Start the guest on the devices that it has."""
        self._power(instance_uuid, documents.STARTING, (documents.OFF, documents.ACTIVE, documents.STARTING),
                    documents.ACTIVE)

    def stop(self, instance_uuid: str) -> None:
        """Turn the guest off, or record that its user did. It keeps its devices, and :meth:`open` does not start it."""
        self._power(instance_uuid, documents.OFF, (documents.ACTIVE, documents.STARTING), documents.OFF)
        self._steps.stop(instance_uuid)

    def release(self, instance_uuid: str) -> None:
        """Delete an instance, in any state, on any host that has something of it. Do nothing if there is none.

        Its guest is gone here when the call returns, and its devices are free or being released. A host that does
        not answer follows when it is back.
        """
        try:
            self._operate(instance_uuid, lambda document: None if document.is_over else document.deleting(),
                          lambda document: document.is_over)
        except exception.BadRequest:
            if self._read(instance_uuid) is not None:
                raise                           # else there is none, or another call has ended it meanwhile

    # -- moves --------------------------------------------------------------------------------------------------------

    def resize(self, instance_uuid: str, flavor: Mapping[str, Any], host: str | None = None,
               allocations: Mapping[str, Any] | DeviceRequest | None = None) -> None:
        """Resize an instance to another flavor or host, or both (a cold migration). Call it on its host.

        The guest runs at the destination afterwards, or is off there if it was off, and the instance keeps its old
        devices until :meth:`confirm` or :meth:`revert`.

        :param host: the destination; None means this host
        :param allocations: those at the destination, as for :meth:`claim`. A move of an instance that was claimed with
            some has to have some
        :raises OperationFailed: the instance is here, with its old devices
        """
        wanted, destination, there = steps.checked(flavor), host or self.host, steps.checked_allocations(allocations)

        def decide(document: Document) -> Document | None:
            if document.move is not None and document.move.new_flavor == wanted and _is_same(
                    document.move, documents.RESIZE, destination, there):
                return None
            self._check_at_rest(document, self.host, 'resize', documents.ACTIVE, documents.OFF)
            return self._begun(document, documents.RESIZE, documents.ACCEPTED, destination, there,
                               old_flavor=document.flavor, new_flavor=wanted)

        self._operate(instance_uuid, decide, lambda document: (
            document.move is not None and document.move.status == documents.FINISHED and document.turn is None))

    def confirm(self, instance_uuid: str) -> None:
        """Confirm a resize, on either host: release the devices that the instance left."""
        def decide(document: Document) -> Document | None:
            if document.move is None:
                return None
            if document.move.status != documents.FINISHED:
                raise _busy(document, 'confirm')
            return document.after(documents.CONFIRMED)

        self._operate(instance_uuid, decide, lambda document: document.move is None)

    def revert(self, instance_uuid: str) -> None:
        """Revert a resize that is not confirmed, on either host: the instance has its old devices again."""
        def decide(document: Document) -> Document | None:
            move = document.move
            if document.is_over:
                raise _busy(document, 'revert')
            if move is None or move.status == documents.REVERTING:
                return None
            if move.kind != documents.RESIZE or move.status not in (documents.FINISHED, documents.POST_MIGRATING):
                raise _busy(document, 'revert')
            return document.moving(status=documents.REVERTING)

        self._operate(instance_uuid, decide, lambda document: document.turn is None and not document.is_over)

    def live_migrate(self, instance_uuid: str, host: str,
                     allocations: Mapping[str, Any] | DeviceRequest | None = None) -> None:
        """Migrate a running guest to another host. Call it on the instance's host.

        :param allocations: those at the destination, as for :meth:`resize`
        :raises OperationFailed: the guest runs here, as before
        """
        there = steps.checked_allocations(allocations)

        def decide(document: Document) -> Document | None:
            if _is_at(document, host) and document.move is None:
                return None                     # it was repeated
            if document.move is not None and _is_same(document.move, documents.LIVE_MIGRATION, host, there):
                return None
            self._check_at_rest(document, self.host, 'migrate', documents.ACTIVE)
            return self._begun(document, documents.LIVE_MIGRATION, documents.QUEUED, host, there)

        self._operate(instance_uuid, decide, lambda document: _is_at(document, host))

    def evacuate(self, instance_uuid: str, allocations: Mapping[str, Any] | DeviceRequest | None = None) -> None:
        """Build here the guest of a host that is down and cannot come back unnoticed. A guest that was off stays off.

        When that host is back, its :meth:`open` removes what is left there.

        :param allocations: those here, as for :meth:`resize`; they may name other hosts too
        :raises OperationFailed: the instance is at its host, as before
        """
        there = steps.checked_allocations(allocations)

        def decide(document: Document) -> Document | None:
            if (document.host == self.host and not document.is_over) or (document.move is not None and _is_same(
                    document.move, documents.EVACUATION, self.host, there)):
                return None
            self._check_at_rest(document, document.host, 'evacuate',
                                documents.ACTIVE, documents.STARTING, documents.OFF)
            if document.state == documents.STARTING:
                document = document.but(state=documents.ACTIVE)         # not there
            return self._begun(document, documents.EVACUATION, documents.ACCEPTED, self.host, there)

        self._operate(instance_uuid, decide, lambda document: _is_at(document, self.host))

    # -- how they work ------------------------------------------------------------------------------------------------

    def _check_at_rest(self, document: Document, host: str, operation: str, *states: str) -> None:
        """:raises InstanceBusy: an instance is not at rest on a host in one of these states"""
        if document.move is not None or document.state not in states or document.host != host:
            raise _busy(document, operation)

    def _begun(self, document: Document, kind: str, status: str, destination: str, allocations: Any,
               **flavors: Any) -> Document:
        if allocations is None and document.allocations is not None:
            raise exception.BadRequest('allocations', None, 'the instance was claimed by its allocations: pass those '
                                       'that it has at the destination')
        number = document.moves + 1
        return document.but(moves=number, reason='', for_tenant='', move=Move(
            str(uuids.uuid5(uuids.UUID(document.uuid), f'{kind} {number}')), number, kind, document.uuid,
            document.host, destination, status, old_allocations=document.allocations, new_allocations=allocations,
            **flavors))

    def _power(self, instance_uuid: str, state: str, states: tuple[str, ...], end: str) -> None:
        def decide(document: Document) -> Document | None:
            if document.state == end and (end == documents.OFF or self._steps.state_of(instance_uuid) == steps.RUNS):
                return None
            self._check_at_rest(document, self.host, 'start or stop', *states)
            return None if document.state == state else document.but(state=state)

        self._operate(instance_uuid, decide, lambda document: document.state == end)

    def _check_open(self) -> None:
        """:raises NotReady, HostTakenOver: :meth:`open` has not succeeded, or a newer process has this host"""
        self.manager.store.check_epoch()

    def _read(self, instance_uuid: str, replaced: str | None = '') -> Document | None:
        """Read the document of an instance.

        :param replaced: what a save of this thread has just replaced; '' if it made none
        :raises DocumentNotSaved: the service still returns that
        """
        text = self._instances.document(instance_uuid)
        document = None if text is None else Document.read(text)
        if text == replaced:
            raise exception.DocumentNotSaved(instance_uuid, 'none' if document is None else document.progress)
        return document

    def _operate(self, instance_uuid: str, decide: Callable[[Document], Document | None],
                 is_reached: Callable[[Document], bool], new: Document | None = None) -> Document:
        """Save the decision of an operation, and take its steps on all hosts.

        :param decide: returns the document with the decision, or None if there is nothing to decide any more
        :param is_reached: whether a document is that of the end
        :param new: the document of an instance that has none
        :raises OperationFailed, OperationPending: the end is not reached
        """
        self._check_open()
        with self._conducting(instance_uuid):
            self._failures.pop(instance_uuid, None)
            document = self._conduct(instance_uuid, self._decide(instance_uuid, decide, new))
            cause = self._failures.pop(instance_uuid, None)
        if is_reached(document):
            return document
        if document.turn is not None:
            raise exception.OperationPending(instance_uuid, document.turn) from cause
        raise exception.OperationFailed(instance_uuid, document.reason or f'it is {document.state}',
                                        document.for_tenant or FAILED) from cause

    def _decide(self, instance_uuid: str, decide: Callable[[Document], Document | None],
                new: Document | None) -> str | None:
        """Save the decision of an operation. Before a move begins, its destination must answer.

        :returns: what the save replaced; '' if there was nothing to decide
        :raises OperationFailed: the destination does not answer, and nothing was saved
        """
        replaced: str | None = ''
        answered = {self.host}
        while True:
            with self._working(instance_uuid):
                document = self._read(instance_uuid, replaced)
                if document is None and new is None:
                    raise exception.BadRequest('instance_uuid', instance_uuid, 'there is no document of it')
                decided = new if document is None else decide(document)
                if decided is None:
                    return ''
                begun = decided.move if document is not None and document.move is None else None
                if begun is None or begun.dest_compute in answered:
                    replaced = None if document is None else document.saved
                    with contextlib.suppress(steps.Changed):
                        self._steps.save(decided, document)
                        return replaced
                    continue
            try:
                self._instances.ask(begun.dest_compute, instance_uuid)
            except Exception as error:
                raise exception.OperationFailed(
                    instance_uuid, _not_answered(begun.dest_compute, error), FAILED) from error
            answered.add(begun.dest_compute)

    def _conduct(self, instance_uuid: str, replaced: str | None = '') -> Document:
        """Take the steps of this host, and ask other hosts for theirs, until nothing is left or nobody goes on."""
        asked = set()
        while True:
            document = self._advance(instance_uuid, replaced)
            replaced = ''
            new = [host for host in document.turns if host != self.host and (host, document.saved) not in asked]
            if not new:
                return document
            asked.add((new[0], document.saved))
            try:
                self._instances.ask(new[0], instance_uuid)
            except Exception as error:
                is_its_turn = new[0] == document.turn       # else it follows when it is back, as after an evacuation
                say = LOG.warning if is_its_turn else LOG.info
                say('Host %s does not go on with instance %s: %s', new[0], instance_uuid, error)
                if is_its_turn:
                    self._give_up(document, _not_answered(new[0], error))

    def _give_up(self, document: Document, reason: str) -> None:
        """End a move that has not left its source, unless somebody went on with it meanwhile."""
        if document.move is not None and document.move.status in documents.EARLY:
            with contextlib.suppress(steps.Changed):
                self._steps.save(document.given_up(reason), document)

    def _advance(self, instance_uuid: str, replaced: str | None = '') -> Document:
        """Take the steps of this host that an instance waits for. Work on it alone.

        :returns: the document without any such step, or with one that cannot be taken now
        :raises DocumentNotSaved: a save did not hold
        """
        with self._working(instance_uuid):
            while True:
                document = self._read(instance_uuid, replaced)
                if document is None:            # no host had work with it any more, so the service has removed it
                    cause = self._failures.get(instance_uuid)
                    return Document(instance_uuid, self.host, {}, state=documents.DELETED,
                                    reason='' if cause is None else f'{type(cause).__name__}: {cause}',
                                    for_tenant=getattr(cause, 'for_tenant', ''))
                try:
                    if not any(step() for step in self._steps.candidates(document)):
                        return document
                except steps.Changed:
                    pass
                except steps.Failed as failed:
                    self._failures[instance_uuid] = failed.__cause__
                    LOG.warning('Instance %s: %s', instance_uuid, failed.__cause__)
                replaced = document.saved

    def _go_on_with_all(self, restarted: bool) -> None:
        for instance_uuid, text in sorted(self._instances.documents(self.host).items()):
            try:
                document = Document.read(text)
                if not restarted and not document.turns and document.state != documents.OFF:
                    continue                    # it is at rest
                with self._conducting(instance_uuid, alone=True):
                    self._go_on_after(instance_uuid, restarted)
            except exception.HostTakenOver:
                raise
            except _Conducted:
                pass
            except Exception:
                LOG.exception('Instance %s waits for the next audit', instance_uuid)

    def _go_on_after(self, instance_uuid: str, restarted: bool) -> None:
        """Go on with an instance that no operation of this process works on."""
        document = self._read(instance_uuid)
        if document is None:
            return
        move, here = document.move, document.host == self.host
        if move is not None and move.kind == documents.LIVE_MIGRATION and move.status in documents.EARLY:
            # Only the operation itself goes on before the copy: after a boot the map of the devices is another one.
            if restarted or here:
                self._give_up(document, 'it was interrupted before the copy')
            else:
                return
        elif here and (move is None or move.status == documents.FINISHED):
            if document.state == documents.OFF:
                self._steps.stop(instance_uuid)         # the call that saved this may have failed then
            elif restarted and document.state == documents.ACTIVE and \
                    self._steps.state_of(instance_uuid) != steps.RUNS:
                with contextlib.suppress(steps.Changed):
                    self._steps.save(document.but(state=documents.STARTING), document)
        if self._advance(instance_uuid).saved != document.saved:
            self._conduct(instance_uuid)

    # -- threads ------------------------------------------------------------------------------------------------------

    def _working(self, instance_uuid: str) -> contextlib.AbstractContextManager[None]:
        """Take steps with an instance in one thread at a time. Nobody asks another host meanwhile."""
        return self._in_turn(self._busy, instance_uuid)

    def _conducting(self, instance_uuid: str, alone: bool = False) -> contextlib.AbstractContextManager[None]:
        """Conduct an operation in one thread at a time.

        :raises _Conducted: somebody does, and the caller wants to be ``alone``
        """
        return self._in_turn(self._conducted, instance_uuid, alone)

    @contextlib.contextmanager
    def _in_turn(self, taken: set[str], instance_uuid: str, alone: bool = False) -> Iterator[None]:
        with self._changed:
            if alone and instance_uuid in self._busy | self._conducted:
                raise _Conducted
            self._changed.wait_for(lambda: instance_uuid not in taken)
            taken.add(instance_uuid)
        try:
            yield
        finally:
            with self._changed:
                taken.discard(instance_uuid)
                self._changed.notify_all()


def _busy(document: Document, operation: str) -> exception.InstanceBusy:
    move = document.move
    if move is None:
        return exception.InstanceBusy(document.uuid, operation, document.state, document.host)
    first = ': confirm or revert that first' if move.status == documents.FINISHED else ''
    return exception.InstanceBusy(document.uuid, operation, move.text + first, document.host)


def _is_same(move: Move, kind: str, destination: str, allocations: Any) -> bool:
    return (move.kind, move.dest_compute, move.new_allocations) == (kind, destination, allocations)


def _is_at(document: Document, host: str) -> bool:
    return document.host == host and document.turn is None and not document.is_over


class _Conducted(Exception):
    """An operation of this process works on the instance."""


def _not_answered(host: str, error: Exception) -> str:
    return f'host {host} does not answer, or failed: {type(error).__name__}: {error}'
