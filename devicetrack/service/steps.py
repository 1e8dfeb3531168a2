"""The steps that a host takes with an instance: each does one thing and saves it, and may be taken again."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import dataclasses
import functools
import json
from typing import Any
from typing import Final

from devicetrack import exception
from devicetrack import log
from devicetrack import vocabulary
from devicetrack.claims.manager import ClaimManager
from devicetrack.objects import DeviceMap
from devicetrack.objects import DeviceRequest
from devicetrack.objects import InstanceResources
from devicetrack.objects import LiveMigrationCheck
from devicetrack.objects import MigrationContext
from devicetrack.service import document as documents
from devicetrack.service.document import Document
from devicetrack.service.document import Move
from devicetrack.service.protocols import Guests
from devicetrack.service.protocols import Instances

LOG = log.logger(__name__)

# After these nobody knows, so nothing is undone, and the step is taken again.
UNKNOWN: Final = (exception.StoreError, exception.HypervisorUnreachable, exception.UsersUnknown,
                  exception.RealizeUnknown, exception.MigrationUndecided, exception.NotReady, exception.StartIsOver,
                  exception.ForkedManager)

# Where a host has the guest of an instance.
RUNS: Final = 'runs'
WAITS: Final = 'waits'                          # for its live migration
IS_OFF: Final = 'off'
NONE: Final = 'none'


class Changed(Exception):
    """Another host saved the document meanwhile. The step counts as not taken, and whoever took it looks again."""


class Failed(Exception):
    """A step failed, and the document says what comes in its place. The cause is the error of the step."""


@dataclasses.dataclass
class Flavor:
    name: str | None
    extra_specs: dict[str, str]


@dataclasses.dataclass
class Instance:
    """An instance as the manager reads and sets it."""

    uuid: str
    host: str
    flavor: Flavor
    resources: InstanceResources | None
    migration_context: Any = None


def checked(flavor: Any) -> dict[str, Any]:
    """A flavor as it is read from a document.

    :raises BadRequest: it cannot be written there, or asks for something that has no meaning
    """
    plain = _plain('flavor', flavor)
    DeviceRequest.from_extra_specs(plain.get('extra_specs', {}))
    return plain


def checked_allocations(allocations: Mapping[str, Any] | DeviceRequest | None) -> dict[str, Any] | None:
    """Allocations, or a request, as they are read from a document.

    :raises BadRequest: they cannot be written there
    """
    if allocations is None:
        return None
    return _plain('allocations',
                  allocations.obj_to_primitive() if isinstance(allocations, DeviceRequest) else allocations)


def _plain(name: str, value: Any) -> dict[str, Any]:
    try:
        plain = json.loads(json.dumps(value))
    except (TypeError, ValueError) as error:
        raise exception.BadRequest(name, value, f'JSON cannot write it: {error}') from error
    if not isinstance(plain, dict):
        raise exception.BadRequest(name, value, 'must be a mapping')
    return plain


class Steps:
    """Takes the steps of one host. The caller works on the instance alone."""

    def __init__(self, host: str, manager: ClaimManager, instances: Instances, guests: Guests, context: Any) -> None:
        self._host, self._manager, self._context = host, manager, context
        self._instances, self._guests = instances, guests

    def candidates(self, document: Document) -> Iterator[Callable[[], bool]]:
        """The steps that this host could take now, in order. Each says whether it saved anything."""
        here, move = self._host, document.move
        if here in document.leaving:
            yield functools.partial(self._leave, document)
        for ended in document.ended:
            if here in ended.unsettled:
                yield functools.partial(self._settle, document, ended)
        if document.turn == here:
            if document.state == documents.BUILDING:
                yield functools.partial(self._build, document)
            elif document.state == documents.STARTING:
                yield functools.partial(self._start, document)
            elif move is not None:
                yield functools.partial(self._MOVING[move.kind, move.status], self, document, move)

    def save(self, new: Document, old: Document | None) -> bool:
        """:raises Changed: another host was faster"""
        if not self._instances.save(new.uuid, new.text, None if old is None else old.saved, new.hosts):
            raise Changed
        return True

    # -- on one host --------------------------------------------------------------------------------------------------

    def _build(self, document: Document) -> bool:
        def boot() -> InstanceResources:
            instance = _instance(document)
            with contextlib.suppress(exception.InstanceHasClaim):       # by a process that ended
                self._manager.instance_claim(self._context, instance, self._manager.nodename,
                                             self._wanted(document.flavor, document.allocations))
            return self.run(document)

        resources = self._try(boot, document, Document.deleting)
        return self.save(_runs(document, resources), document)

    def _start(self, document: Document) -> bool:
        return self.save(_runs(document, self.run(document)), document)

    def run(self, document: Document) -> InstanceResources:
        """Start the guest unless it runs, and record that it does."""
        instance = _instance(document)
        if self.state_of(document.uuid) != RUNS:
            self._manager.realize(self._context, instance, new_definition=True)
            config = self._manager.guest_config(instance)       # the last call before the guest starts
            self._guests.start(document.uuid, document.flavor, config)
        return self._manager.started(self._context, instance)

    def stop(self, uuid: str) -> None:
        """Turn a guest off, unless a newer process has this host."""
        self._manager.store.check_epoch()
        self._guests.stop(uuid)

    def _delete(self, uuid: str) -> None:
        self._manager.store.check_epoch()
        self._guests.delete(uuid)

    def _leave(self, document: Document) -> bool:
        self._delete(document.uuid)
        with contextlib.suppress(exception.DeviceError):        # the rows are right, and audits go on
            self._manager.release(self._context, _instance(document), wait=False)
        return self.save(document.left(self._host), document)

    def _settle(self, document: Document, move: Move) -> bool:
        """End a move at this host. Before an instance comes back, its host has settled its earlier moves."""
        arrived = move.status in documents.ARRIVED
        comes = document.move is not None and self._host in document.move.ends
        if not move.on_one_host and document.host != self._host and not comes:
            self._delete(document.uuid)
        instance = _instance(document)
        drop = self._manager.drop_move_claim_at_source if arrived else self._manager.drop_move_claim_at_dest
        try:
            drop(self._context, instance, move, wait=False)
        except exception.UsersUnknown:
            raise
        except exception.DeviceError as error:
            # On one host the guest's definition may still name the devices, until the guest is started anew.
            LOG.info('Instance %s: %s', document.uuid, error)
            return False
        has = self._manager.assignments(document.uuid) if move.on_one_host else ()
        if has and all(one.state == vocabulary.RELEASING for one in has):
            return False                        # a start needs to know why the guest has none of these
        return self.save(document.settled(move, self._host), document)

    def state_of(self, uuid: str) -> str:
        """Where this host has the guest.

        :raises HypervisorUnreachable: nobody knows
        """
        usage = self._manager.usage()
        if usage.runs_here(uuid):
            return RUNS
        if usage.unknown:
            raise exception.HypervisorUnreachable(self._host, f'a guest could not be read: {usage.unknown}')
        return WAITS if uuid in usage.arriving else IS_OFF if uuid in usage.domains else NONE

    # -- resize -------------------------------------------------------------------------------------------------------

    def _claim_resize(self, document: Document, move: Move) -> bool:
        instance, flavor = _instance(document), move.new_flavor
        self._try(lambda: self._claimed(
            self._manager.resize_claim, instance, self._wanted(flavor, move.new_allocations), move, _flavor(flavor)),
            document, Document.given_up)
        return self.save(document.moving(status=documents.PRE_MIGRATING), document)

    def _hand_over(self, document: Document, move: Move) -> bool:
        def leave() -> None:
            instance = _instance(document)
            instance.migration_context = MigrationContext(
                instance_uuid=document.uuid, migration_uuid=move.uuid, old_resources=None, new_resources=None)
            self._manager.update_usage(self._context, instance, self._manager.nodename)
            self.stop(document.uuid)

        self._try(leave, document, Document.given_up)
        return self.save(document.moving(status=documents.POST_MIGRATING).but(host=move.dest_compute), document)

    def _finish_resize(self, document: Document, move: Move) -> bool:
        new = document.but(flavor=move.new_flavor, allocations=move.new_allocations)
        if document.state == documents.OFF:     # a start makes its guest run
            return self.save(new.moving(status=documents.FINISHED), document)
        resources = self._try(lambda: self.run(new), document, lambda failed, reason: failed.moving(
            status=documents.REVERTING).but(reason=reason))
        return self.save(_runs(new.moving(status=documents.FINISHED), resources), document)

    def _revert(self, document: Document, move: Move) -> bool:
        if move.on_one_host:
            self.stop(document.uuid)
        else:
            self._delete(document.uuid)
        with contextlib.suppress(exception.DeviceInUse):        # on one host, until the guest is defined anew
            self._manager.drop_move_claim_at_dest(self._context, _instance(document), move, wait=False)
        return self.save(document.after(
            documents.REVERTED, host=move.source_compute, flavor=move.old_flavor, allocations=move.old_allocations,
            state=documents.OFF if document.state == documents.OFF else documents.STARTING), document)

    # -- evacuation ---------------------------------------------------------------------------------------------------

    def _evacuate(self, document: Document, move: Move) -> bool:
        def rebuild() -> InstanceResources | None:
            instance = _instance(document)
            wanted = self._wanted(document.flavor, move.new_allocations)
            self._claimed(self._manager.rebuild_claim, instance, wanted, move)
            if document.state == documents.OFF:
                return None
            try:
                return self.run(document)
            except UNKNOWN:
                raise
            except Exception:
                self._delete(document.uuid)     # before its host may start it again
                raise

        resources = self._try(rebuild, document, Document.given_up)
        self._manager.finish_evacuation(self._context, _instance(document), self._manager.nodename, move)
        return self.save((document if resources is None else _runs(document, resources)).after(
            documents.DONE, host=self._host, allocations=move.new_allocations), document)

    # -- live migration -----------------------------------------------------------------------------------------------

    def _check_destination(self, document: Document, _move: Move) -> bool:
        check = self._try(lambda: self._manager.check_can_live_migrate_destination(_instance(document)),
                          document, Document.given_up)
        return self.save(document.moving(check=check.to_text(), status=documents.ACCEPTED), document)

    def _check_source(self, document: Document, move: Move) -> bool:
        check = self._try(lambda: self._manager.check_can_live_migrate_source(
            _instance(document), LiveMigrationCheck.from_text(str(move.check))), document, Document.given_up)
        return self.save(document.moving(check=check.to_text(), status=documents.PREPARING), document)

    def _prepare(self, document: Document, move: Move) -> bool:
        def prepare() -> DeviceMap:
            instance = _instance(document)
            self._claimed(functools.partial(self._manager.live_migration_claim,
                                            check=LiveMigrationCheck.from_text(str(move.check))),
                          instance, self._wanted(document.flavor, move.new_allocations), move)
            self._manager.realize(self._context, instance)
            return self._manager.device_map(instance, move)

        device_map = self._try(prepare, document, Document.given_up)
        return self.save(document.moving(device_map=device_map.to_text(), status=documents.PRE_MIGRATING), document)

    def _copy(self, document: Document, move: Move) -> bool:
        definitions = self._try(lambda: self._manager.migration_definitions(
            self._context, _instance(document), move, DeviceMap.from_text(str(move.device_map))),
            document, Document.given_up)
        self.save(document.moving(status=documents.RUNNING), document)
        try:
            self._guests.migrate(document.uuid, move.dest_compute, definitions)
        except Exception as error:              # it does not say where the guest is
            LOG.warning('The live migration of instance %s to %s: %s', document.uuid, move.dest_compute, error)
        return True

    def _look(self, document: Document, _move: Move) -> bool:
        """At the source, or at the destination when the source has looked: end a migration where the guest is."""
        if self._guests.is_migrating(document.uuid):
            return False
        return self.save(document.moving(left=self.state_of(document.uuid)), document)

    def _arrive(self, document: Document, move: Move) -> bool:
        ends = move.left, self.state_of(document.uuid)
        if ends in ((NONE, RUNS), (IS_OFF, RUNS), (NONE, IS_OFF)):
            return self.save(document.after(documents.COMPLETED, host=self._host, state=documents.STARTING,
                                            allocations=move.new_allocations), document)
        if ends in ((RUNS, NONE), (IS_OFF, NONE), (RUNS, WAITS)):
            self._delete(document.uuid)         # before its devices go
            state = documents.STARTING if move.left == IS_OFF else document.state
            return self.save(document.after(documents.FAILED, state=state, reason='the guest did not arrive'), document)
        LOG.warning('The live migration of instance %s cannot end yet; at source and destination: %s', document.uuid,
                    ends)
        return self.save(document.moving(left=None), document)          # the source looks again

    _MOVING: Final = {
        (documents.RESIZE, documents.ACCEPTED): _claim_resize,
        (documents.RESIZE, documents.PRE_MIGRATING): _hand_over,
        (documents.RESIZE, documents.POST_MIGRATING): _finish_resize,
        (documents.RESIZE, documents.REVERTING): _revert,
        (documents.EVACUATION, documents.ACCEPTED): _evacuate,
        (documents.LIVE_MIGRATION, documents.QUEUED): _check_destination,
        (documents.LIVE_MIGRATION, documents.ACCEPTED): _check_source,
        (documents.LIVE_MIGRATION, documents.PREPARING): _prepare,
        (documents.LIVE_MIGRATION, documents.PRE_MIGRATING): _copy,
        (documents.LIVE_MIGRATION, documents.RUNNING): lambda self, document, move: (
            self._look if move.left is None else self._arrive)(document, move),
    }

    # -- all ----------------------------------------------------------------------------------------------------------

    def _wanted(self, flavor: Any, allocations: Any) -> Mapping[str, Any] | DeviceRequest:
        """What a claim asks for on this host."""
        if allocations is None:
            return DeviceRequest.from_extra_specs(flavor.get('extra_specs', {}), aliases=self._manager.state().aliases)
        wanted: Mapping[str, Any] | DeviceRequest = allocations if 'versioned_object.name' not in allocations \
            else DeviceRequest.obj_from_primitive(allocations)
        return wanted

    def _claimed(self, claim: Callable[..., Any], instance: Instance, wanted: Mapping[str, Any] | DeviceRequest,
                 move: Move, *more: Any) -> None:
        """Claim for a move, unless a process that ended has done it."""
        try:
            claim(self._context, instance, self._manager.nodename, wanted, move, *more)
        except exception.InstanceHasStaleRows:
            raise
        except exception.InstanceHasClaim:
            pass

    def _try(self, work: Callable[[], Any], document: Document, instead: Callable[[Document, str], Document]) -> Any:
        """Do the work of a step; after an error save what comes in place of the step.

        :raises Failed: it failed, and that is saved
        :raises Exception: nobody knows, and nothing was saved
        """
        try:
            return work()
        except UNKNOWN:
            raise
        except Exception as error:
            failed = instead(document, f'{type(error).__name__}: {error}')
            self.save(failed.but(for_tenant=getattr(error, 'for_tenant', '')), document)
            raise Failed from error


def _flavor(flavor: Any) -> Flavor:
    return Flavor(flavor.get('name'), dict(flavor.get('extra_specs', {})))


def _instance(document: Document) -> Instance:
    return Instance(document.uuid, document.host, _flavor(document.flavor), document.instance_resources)


def _runs(document: Document, resources: InstanceResources) -> Document:
    return document.but(state=documents.ACTIVE, reason='',
                        resources=json.loads(json.dumps(resources.obj_to_primitive())))
