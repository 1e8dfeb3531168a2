"""The steps of taking and giving, in the order of the invariant. Calls, recovery and moves are made of these."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import itertools
import secrets
import threading
import time
from typing import Any
from typing import NamedTuple

from oslo_concurrency import lockutils
from oslo_log import log as logging

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.claims import declaring
from devicetrack.claims import doubt
from devicetrack.claims import providers as provider_resolvers
from devicetrack.claims import withheld
from devicetrack.claims.ledger_lock import LedgerLock
from devicetrack.claims.service import ComputeService
from devicetrack.compatibility.facts import Declaration
from devicetrack.compatibility.facts import TypeAtParent
from devicetrack.compatibility.sources import Declarer
from devicetrack.conf import manager as options
from devicetrack.engine import demand as demands
from devicetrack.engine import ledger as ledgers
from devicetrack.engine import lifecycle
from devicetrack.engine import moves
from devicetrack.objects import DeviceAssignment
from devicetrack.objects.values import Candidate
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Inventory
from devicetrack.objects.values import Record
from devicetrack.store import api as store_api
from devicetrack.store.api import Changes
from devicetrack.store.api import ContextChange
from devicetrack.store.api import Update
from devicetrack.virt.driver import VirtDriver

LOG = logging.getLogger(__name__)


class Moving(NamedTuple):
    """What a claim for a move writes besides its rows, in their transaction.

    ``leaving`` are rows of this host that the instance leaves. ``arrange`` puts the new rows into their order before
    anything is written, or raises to refuse them; ``contexts`` says from them what the store keeps of the move.
    """

    migration_uuid: str
    leaving: tuple[Update, ...]
    arrange: Callable[[Sequence[Record]], list[Record]]
    contexts: Callable[[Sequence[Record]], tuple[ContextChange, ...]]


class Steps:
    """A host's ledger, store and driver, and what is done with them. :class:`ClaimManager` is what callers use."""

    def __init__(self, host: str, driver: VirtDriver, store: store_api.Store, conf: Any,
                 service: ComputeService | None, providers: provider_resolvers.ProviderResolver | None,
                 nodename: str | None) -> None:
        options.register(conf)
        self.host, self.nodename = host, nodename or host
        self.driver, self.store, self.service = driver, store, service
        self._conf = conf[options.GROUP]
        self._providers = providers
        self._host_uuid = ''
        self.boot_id: str | None = None         # the host's boot that guests' definitions were last brought to
        self._provider_names: dict[str, str] = {}               # by stable name, its UUID
        self._provider_uuids: frozenset[str] = frozenset()
        self.present: dict[str, str] = {}       # of those names the ones that the host has something of now
        self.complete = False                   # whether the last reading of the host left nothing unknown
        self._classes: frozenset[str] = frozenset()
        # What the node does not count itself is allocated there where the scheduler's view of it is flat.
        self._below: dict[str, frozenset[str]] = {}
        self._lock = LedgerLock()
        self._ledger = self.new_ledger()
        self._working = lockutils.Semaphores()
        self._doubts: list[doubt.Doubt] = []
        self.declarer = Declarer(conf, host)
        self.declarations: dict[TypeAtParent, Declaration] = {}
        self.withheld = withheld.Register()
        self.marking = threading.Lock()         # held while what is withheld changes, there and in the store
        self._reading = threading.Lock()
        self.brought_back: set[str] = set()     # instances that are ready after the host booted, while not all are
        self.first_seen: dict[tuple[str, DeviceKey], int] = {}  # by finding, when this process first saw it
        self.lacking: frozenset[str] = frozenset()              # instances whose guests have more than the store knows
        self.report_only: str | None = None     # why nothing is claimed and nothing freed, while that is so
        # Claim ids only have to differ from one another, over restarts too; a UUID for each would cost more.
        self._claim_prefix = secrets.token_hex(8)
        self._claim_numbers = itertools.count(1)

    def new_ledger(self) -> ledgers.Ledger:
        return ledgers.Ledger(self._conf.selection_policy, self._provider_names.__getitem__)

    def new_claim_id(self) -> str:
        return f'{self._claim_prefix}-{next(self._claim_numbers):x}'

    @property
    def claim_attempts(self) -> int:
        """How often a claim chooses devices."""
        attempts: int = self._conf.claim_attempts
        return attempts

    @property
    def host_uuid(self) -> str:
        """The host's UUID in the store; '' before ``init_host``."""
        return self._host_uuid

    @property
    def node(self) -> moves.Node:
        """This host as migrations name it."""
        return moves.Node(self.host, self.nodename)

    @property
    def lock(self) -> LedgerLock:
        """The ledger's lock."""
        return self._lock

    @property
    def ledger(self) -> ledgers.Ledger:
        """The ledger; every call of it is made under :attr:`lock`."""
        return self._ledger

    @property
    def doubts(self) -> list[doubt.Doubt]:
        """Commits whose outcome the store has not said yet."""
        return self._doubts

    @property
    def provider_uuids(self) -> frozenset[str]:
        """The UUIDs of this host's providers."""
        return self._provider_uuids

    @property
    def classes(self) -> frozenset[str]:
        """The resource classes that count devices of ours."""
        return self._classes

    # -- taking -------------------------------------------------------------------------------------------------------

    def take(self, instance_uuid: str, claim_id: str, demand: demands.Demand,
             moving: Moving | None = None) -> list[Record]:
        """Hold and record; when the store says that devices have owners we did not know of, choose again."""
        attempts, reconsidered = 0, False
        while True:
            try:
                with self._lock:
                    holding = self._ledger.take(instance_uuid, demand, beside=moving is not None)
            except exception.InstanceHasClaim:
                if not self._doubts or reconsidered:
                    raise
                reconsidered = True
                doubt.settle_instance(self, instance_uuid)
                continue
            except exception.NoFit as short:
                if not reconsidered and doubt.reconsider(self):
                    reconsidered = True
                    continue
                raise exception.NoFit(self.with_owners(short.shortages)) from None
            changes = Changes()
            try:
                records = self._records_for(holding, claim_id, demand, moving)
                if moving is None:
                    changes = Changes(insert=tuple(records))
                else:
                    records = moving.arrange(records)
                    changes = Changes(insert=tuple(records), update=moving.leaving, contexts=moving.contexts(records))
                self.store.write(changes)
                return records
            except exception.DeviceTaken as taken:
                doubt.distrust(self, holding, taken.devices)
                attempts += 1
                if attempts >= self.claim_attempts:
                    raise
            except exception.NothingWritten:
                self._put_back(holding)
                raise
            except (exception.DriverError, exception.BadRequest, exception.NoDevicePair):
                self._put_back(holding)
                raise
            except BaseException:
                # Whatever interrupted the commit, its outcome is for the store to say.
                self._doubt(holding, changes, undo=True)
                raise

    def _put_back(self, holding: ledgers.Holding) -> None:
        with self._lock:
            self._ledger.put_back(holding)

    def _doubt(self, holding: ledgers.Holding, changes: Changes, undo: bool = False) -> None:
        holding.in_doubt = True
        self._doubts.append(doubt.Doubt(holding, changes, undo))

    def _records_for(self, holding: ledgers.Holding, claim_id: str, demand: demands.Demand,
                     moving: Moving | None) -> list[Record]:
        """The rows of what was taken, in the order of the guest; the driver names what will be made."""
        units: Sequence[ledgers.Unit] = holding.units
        if demand.order:
            units = demands.arrange(units, [unit.pool.resource_class for unit in units], demand.order)
        candidates = self._named(units, demand if moving is None else demand.as_asked())
        now = int(time.time())
        migration_uuid, role = None, vocabulary.CURRENT
        if moving is not None:
            migration_uuid, role = moving.migration_uuid, vocabulary.INCOMING
        # Each has its name by now, which the type cannot say: a check for each would be paid by every claim.
        return [Record(self._host_uuid, candidate.kind, candidate.identifier,       # type: ignore[arg-type]
                       holding.instance_uuid, migration_uuid, role, vocabulary.CLAIMED, position,
                       claim_id, 1, candidate.provider_uuid, candidate.resource_class, candidate.parent,
                       candidate.numa_node, candidate.details, now)
                for position, candidate in enumerate(candidates)]

    def _named(self, units: Sequence[ledgers.Unit], demand: demands.Demand | None = None) -> Sequence[Candidate]:
        """Let the driver name what will be made, and the ledger know the names."""
        holding = units[0].holding
        assert holding is not None
        candidates = self.driver.claim_for_instance(holding.instance_uuid, demand,
                                                    [unit.candidate() for unit in units])
        for unit in units:
            if unit.identifier is None:
                with self._lock:
                    self._ledger.name(units, candidates)
                break
        return candidates

    def with_owners(self, shortages: Sequence[Any], but: ledgers.Holding | None = None) -> list[Any]:
        """Shortages with how many instances hold what there is, a holding left out."""
        return [shortage._replace(instances=self._ledger.owners(shortage.resource_class, shortage.provider_uuid, but))
                for shortage in shortages]

    # -- making it real -----------------------------------------------------------------------------------------------

    def make_real(self, records: Sequence[Record]) -> list[Record]:
        """Make devices of one instance ready for its guest and record what is new of them.

        :returns: the rows as they are then
        """
        realized = [self._ready_to_start(*self._realize(record)) for record in records]
        changed = tuple(Update(before, after) for before, after in realized if before != after)
        if changed:
            self.write(Changes(update=changed))
        return [after for _before, after in realized]

    def _ready_to_start(self, before: Record, after: Record) -> tuple[Record, Record]:
        """A row with what the guest will have seen: noted before it starts, for nobody may hear that it did."""
        seen = declaring.seen_before_start(self, after)
        if seen == after.seen:
            return before, after
        return before, after._replace(seen=seen, generation=before.generation + 1)

    def _realize(self, record: Record, again: bool = True) -> tuple[Record, Record]:
        try:
            with self.watching() as watch:
                realized = self.driver.realize(DeviceAssignment.from_record(record))
                # Providers that nobody resolved yet wait for the next audit.
                capacities = [one for one in realized.capacities if one.provider in self._provider_names]
                with self._lock:
                    unit = self._ledger.find(record.key)
                    if unit is not None:
                        self._ledger.realized(unit, realized.details, capacities, watch)
        except exception.ParentFull as full:
            if not again:
                raise
            return self._realize(self._exchange(record, full), again=False)
        if realized.details == record.details:
            return record, record
        return record, record._replace(details=realized.details, generation=record.generation + 1)

    def _exchange(self, record: Record, full: exception.ParentFull) -> Record:
        """Put another device in the place of one whose parent turned out to be full: one transaction."""
        LOG.warning('%(full)s; choosing another device for instance %(instance)s',
                    {'full': full, 'instance': record.instance_uuid})
        accepts = None
        if record.role == vocabulary.INCOMING:
            # The guest may come running: what takes the place of its device's partner must be as good a partner.
            accepts = declaring.like(self, record)
        with self.reading() as watch:
            inventory = self.read_inventory()
            with self._lock:
                self._ledger.read_parents(inventory, watch)
                unit = self._ledger.find(record.key)
                if unit is None or unit.holding is None:
                    raise full
                holding = unit.holding
                try:
                    other = self._ledger.exchange(unit, accepts)
                except exception.NoFit as short:
                    raise exception.NoFit(self.with_owners(short.shortages, holding)) from None
        changes = Changes()
        try:
            candidate = self._named([other])[0]
            chosen = record._replace(
                kind=candidate.kind, identifier=candidate.identifier or '', provider_uuid=candidate.provider_uuid,
                parent=candidate.parent, numa_node=candidate.numa_node, details=candidate.details, generation=1,
                state=vocabulary.CLAIMED)
            changes = Changes(insert=(chosen,), delete=(record,))
            self.store.write(changes)
        except exception.NothingWritten:
            with self._lock:
                self._ledger.free(other)
            raise
        except BaseException:
            self._doubt(holding, changes)
            raise
        with self._lock:
            self._ledger.free(unit)
        return chosen

    # -- giving back --------------------------------------------------------------------------------------------------

    def give(self, records: Sequence[Record]) -> None:
        """The give path, for rows of one instance whose ``working`` lock the caller holds."""
        self.carry_out(moves.Settlement(give=tuple(records)))

    def carry_out(self, settlement: moves.Settlement) -> None:
        """Change rows of one instance as a settlement says, in one transaction; then devices that go back are given.

        For who holds the instance's ``working`` lock.
        """
        self.give_back(self.advance(settlement))

    def advance(self, settlement: moves.Settlement) -> list[Record]:
        """The transaction of a settlement alone.

        :returns: the rows of ``give`` as they are after it, for :meth:`give_back`
        """
        after = [(record, record._replace(role=lifecycle.next_role(record.role, lifecycle.ARRIVED),
                                          state=lifecycle.next_state(record.state, lifecycle.STARTED),
                                          seen=declaring.seen_at_start(self, record)))
                 for record in settlement.arrive]
        after += [(record, record._replace(
            role=lifecycle.next_role(record.role, lifecycle.STAYS if record.role != vocabulary.INCOMING
                                     else lifecycle.ARRIVED), migration_uuid=None)) for record in settlement.settle]
        after += [(record, record._replace(role=lifecycle.next_role(record.role, lifecycle.LEAVES),
                                           migration_uuid=migration_uuid))
                  for record, migration_uuid in settlement.leave]
        give = [(record, record._replace(state=lifecycle.next_state(record.state, lifecycle.RELEASE)))
                for record in settlement.give]
        changed = [Update(before, later._replace(generation=before.generation + 1))
                   for before, later in (*after, *give) if before != later]
        if changed:
            contexts: tuple[ContextChange, ...] = ()
            if settlement.over:
                contexts = (ContextChange(self._host_uuid, changed[0].before.instance_uuid, None, None),)
            self.write(Changes(update=tuple(changed), contexts=contexts))
        now = {update.before.key: update.after for update in changed}
        return [now.get(record.key, record) for record in settlement.give]

    def note_reboot(self, records: Sequence[Record]) -> None:
        """Write what the guest may have seen of its devices since it rebooted, where that is more than before."""
        seen = [(record, declaring.seen_at_reboot(self, record)) for record in self.used_by_guest(records)
                if record.state == vocabulary.ACTIVE]
        changed = tuple(Update(record, record._replace(seen=now, generation=record.generation + 1))
                        for record, now in seen if record.seen != now)
        if changed:
            self.write(Changes(update=changed))

    def give_back(self, records: Sequence[Record]) -> None:
        """Take devices of rows that are on their way back from the host, and then the rows from the store."""
        if not records:
            return
        with self._lock:
            units = {record.key: self._ledger.find(record.key) for record in records}
            self._ledger.releasing(unit for unit in units.values() if unit is not None)
        assignments = [DeviceAssignment.from_record(record) for record in records]
        answers = self.driver.unclaim(assignments)
        given = [record for record in records if answers[record.key] is None]
        if given:
            self.write(Changes(delete=tuple(given)))
            removed = {DeviceKey(one.kind, one.identifier) for one in assignments
                       if one.details.goes_with_its_assignment}
            with self._lock:
                for record in given:
                    unit = units[record.key]
                    if unit is not None:
                        self._ledger.free(unit, gone=record.key in removed)
        for error in answers.values():
            if error is not None:
                raise error

    def release_all(self, records: Sequence[Record]) -> None:
        """Give back everything that an instance holds here, in whatever role."""
        self.carry_out(moves.Settlement(give=tuple(records),
                                        over=any(record.migration_uuid is not None for record in records)))

    def undo(self, records: Sequence[Record], taken: Sequence[Record] | None = None,
             migrations: Collection[str] = ()) -> None:
        """Give back what a claim took; rows that it made old for one of ``migrations`` are current again.

        :param records: every row of the instance on this host
        :param taken: those that the claim took; None means every row of the migrations that is not old
        """
        ours = [record for record in records if record.migration_uuid in migrations]
        if taken is None:
            taken = [record for record in ours if record.role != vocabulary.OLD]
        stay = [record for record in ours if record.role == vocabulary.OLD and record.state != vocabulary.RELEASING]
        self.carry_out(moves.Settlement(give=tuple(taken), settle=tuple(stay), over=bool(migrations)))

    def leave(self, moving: Moving) -> None:
        """Make rows old for a move that takes no device of this host. Without such rows there is nothing to write."""
        if moving.leaving:
            self.write(Changes(update=moving.leaving, contexts=moving.contexts(())))

    # -- rows ---------------------------------------------------------------------------------------------------------

    def write(self, changes: Changes) -> None:
        """Write rows of devices that are held; when the outcome is unknown they stay so until the store has said."""
        try:
            self.store.write(changes)
        except exception.NothingWritten:
            raise
        except BaseException:
            with self._lock:
                holdings = {id(unit.holding): unit.holding for key in changes.keys
                            if (unit := self._ledger.find(key)) is not None and unit.holding is not None}
            for holding in holdings.values():
                self._doubt(holding, changes)
            raise

    def records_of(self, instance_uuid: str) -> list[Record]:
        """The rows of one instance on this host, in the order of the request."""
        return self.store.records(self._host_uuid, instance_uuid)

    def used_by_guest(self, records: Sequence[Record], before_move: bool = False) -> list[Record]:
        """Of the rows of one instance, those whose devices its guest is to have now.

        While the instance moves to devices of this host those are the new ones.

        :param before_move: the old ones: the guest is to be as it was before the move
        """
        there = [record for record in records if record.state != vocabulary.RELEASING]
        roles = {record.role for record in there}
        order = (vocabulary.INCOMING, vocabulary.CURRENT, vocabulary.OLD)
        for role in reversed(order) if before_move else order:
            if role in roles:
                break
        else:
            return []
        if role == vocabulary.OLD and not before_move and self._moves_to_nothing(there):
            return []
        return [record for record in there if record.role == role]

    def _moves_to_nothing(self, old: Sequence[Record]) -> bool:
        """Whether an instance that has old rows alone is to have no devices, on this same host: its claim was here."""
        contexts = self.store.contexts(self._host_uuid, old[0].instance_uuid)
        return any(context.migration_uuid == old[0].migration_uuid for context in contexts)

    @contextlib.contextmanager
    def working(self, instance_uuid: str, wait: bool = True) -> Iterator[None]:
        """One operation at a time on one instance's devices.

        :raises lockutils.AcquireLockFailedException: with ``wait`` false, when one is under way
        """
        with lockutils.lock(instance_uuid, semaphores=self._working, do_log=False, blocking=wait):
            yield

    # -- reading the host ---------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def reading(self) -> Iterator[ledgers.Watch]:
        """Read the host and take it over into the ledger: one at a time, so that none is overtaken by a later one."""
        with self._reading, self.watching() as watch:
            yield watch

    @contextlib.contextmanager
    def watching(self) -> Iterator[ledgers.Watch]:
        """Have the ledger note what changes while the host is read."""
        with self._lock:
            watch = self._ledger.watch()
        try:
            yield watch
        finally:
            with self._lock:
                self._ledger.unwatch(watch)

    def read_inventory(self) -> Inventory:
        """Read what the host has, and resolve its providers, which may block."""
        inventory = self.driver.get_inventory()
        names = inventory.providers | {''}
        self.resolve(names)
        self.complete = not inventory.unknown
        known = names if self.complete else names | self.present.keys()
        self.present = {name: self._provider_names[name] for name in known}
        return inventory

    def resolve(self, names: Collection[str]) -> None:
        assert self._providers is not None
        for name in names:
            if name not in self._provider_names:
                self._provider_names[name] = self._providers.uuid_of(name)

    def refresh(self) -> None:
        """Let requests see the providers and classes that the ledger knows now."""
        with self._lock:
            self._classes = self._ledger.resource_classes() | self.driver.resource_classes()
            self._provider_uuids = self._ledger.provider_uuids() | frozenset(self._provider_names.values())
            root = self._provider_names['']
            self._below = {root: self._ledger.resource_classes() - {
                pool.resource_class for pool in self._ledger.pools() if pool.provider_uuid == root}}
