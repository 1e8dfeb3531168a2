"""All objects of a started host: ``init_host`` makes them, ``close`` drops them.

Each object owns one part of the state, and gets the objects that it uses. :mod:`.locks` has the order of all locks.

An exception from outside may interrupt a step between any two lines, and leave these objects in any state. It ends this
start of the host, and the next call starts the host anew: see :meth:`Running.start_anew`.
"""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import time
from typing import Any
from typing import NamedTuple

from devicetrack import exception
from devicetrack import log
from devicetrack.claims import locks
from devicetrack.claims import scheduling
from devicetrack.claims import withheld
from devicetrack.claims.audit import Audit
from devicetrack.claims.audit import FindingsLog
from devicetrack.claims.boot import Boot
from devicetrack.claims.claiming import Claiming
from devicetrack.claims.declarations import Declarations
from devicetrack.claims.definitions import Definitions
from devicetrack.claims.failed_claims import FailedClaims
from devicetrack.claims.gate import Gate
from devicetrack.claims.given_up import ClaimIds
from devicetrack.claims.given_up import GivenUpClaims
from devicetrack.claims.giving import Giving
from devicetrack.claims.guest_rows import GuestRows
from devicetrack.claims.history import History
from devicetrack.claims.host import HostLock
from devicetrack.claims.host import identify
from devicetrack.claims.host_state import Audited
from devicetrack.claims.host_state import HostState
from devicetrack.claims.instance_fields import Fields
from devicetrack.claims.instance_fields import InstanceFields
from devicetrack.claims.known_rows import KnownRows
from devicetrack.claims.life import Life
from devicetrack.claims.live import LiveMigrations
from devicetrack.claims.locked_ledger import LockedLedger
from devicetrack.claims.metering import Meter
from devicetrack.claims.metering import Metering
from devicetrack.claims.moves import Moves
from devicetrack.claims.narrowing import Narrowing
from devicetrack.claims.operator_requests import OperatorRequests
from devicetrack.claims.own_process import OwnProcess
from devicetrack.claims.providers import DerivedProviders
from devicetrack.claims.providers import KnownProviders
from devicetrack.claims.providers import ProviderResolver
from devicetrack.claims.repairs import Repairs
from devicetrack.claims.resume import Resume
from devicetrack.claims.rows import Rows
from devicetrack.claims.service import ComputeService
from devicetrack.claims.service import ServiceView
from devicetrack.claims.unproven import Unproven
from devicetrack.claims.unrecorded_starts import UnrecordedStarts
from devicetrack.claims.views import HostReader
from devicetrack.claims.views import HostViews
from devicetrack.claims.wipes import Wipes
from devicetrack.claims.withheld_devices import WithheldDevices
from devicetrack.compatibility.sources import Declarer
from devicetrack.conf import manager as options
from devicetrack.engine.demand import Demand
from devicetrack.engine.findings import Finding
from devicetrack.engine.migrations import Endpoint
from devicetrack.engine.states import HeldDevice
from devicetrack.objects import Provider
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Record
from devicetrack.objects.values import Usage
from devicetrack.store.api import Host
from devicetrack.store.api import Store
from devicetrack.virt.driver import VirtDriver

LOG = log.logger(__name__)


class Parts(NamedTuple):
    """The parts that a service passes for one host; ``service``, ``resolver`` and ``metering`` may be None.

    ``instances`` reads and sets fields of the service's instances. ``metering`` reports the work. ``by_command`` says
    that a command starts the host in the place of its manager. ``starts`` is the manager's, for all its starts of the
    host; a command, which has no claims, leaves it out. ``go_on`` calls a function with the start that goes on with
    what an earlier one began.
    """

    here: Endpoint
    driver: VirtDriver
    store: Store
    conf: Any
    service: ComputeService | None = None
    resolver: ProviderResolver | None = None
    instances: InstanceFields = InstanceFields()
    metering: Metering | None = None
    by_command: bool = False
    starts: UnrecordedStarts | None = None
    go_on: Callable[[Running, Callable[[Running], Any]], Any] = lambda began, work: work(began)

    @property
    def state_path(self) -> str:
        """The state directory of the host's driver, which also has the locks of the devices.

        If the driver has none, the one of the options, which must be registered by then.
        """
        return self.driver.state_path or self.conf[options.GROUP].state_path


class Memory(NamedTuple):
    """What a process knows of a host that it has taken, from one start to the next.

    ``being_wiped`` are devices without a row that a thread wipes. ``epochs`` has the last epoch that the process took;
    after a start that failed or was interrupted, also those that it took since, or may have taken.
    """

    gate: Gate
    rows: KnownRows
    given_up: GivenUpClaims
    claim_ids: ClaimIds
    being_wiped: set[DeviceKey]
    epochs: set[int]

    def copy(self) -> Memory:
        """That of the next start. Threads of this one go on, and learn nothing more that is true of it."""
        return self._replace(gate=self.gate.copy(), rows=self.rows.copy())


class Running:
    """One start of one host.

    :param host: the host's row in the store, with the epoch of this start
    :param service_store: the store for the service, which goes on over starts anew
    """

    def __init__(self, host: Host, parts: Parts, memory: Memory, service_store: Store) -> None:
        self._parts, self._memory, self._is_taken_over = parts, memory, False
        here, driver, conf = parts.here, parts.driver, parts.conf[options.GROUP]
        self.store = store = parts.store.at_epoch(host)
        self.service_store = service_store
        self.service = service = ServiceView(parts.service, conf.service_late_s)
        known = KnownProviders(parts.resolver or DerivedProviders(host.uuid))
        boot = Boot(driver, store, host.uuid, host.boot_id)
        self.host_uuid, self.boot, self._driver, self._nodename = host.uuid, boot, driver, here.node
        self.gate = memory.gate
        self.ledger = LockedLedger(conf.selection_policy, known.uuid_of, memory.being_wiped, here.host)
        self._metering = metering = parts.metering or Metering()
        self._by_command = parts.by_command
        self.rows = Rows(store, self.ledger, host.uuid, metering, memory.rows, driver.rows_ended)
        self.views = HostViews(HostReader(driver, store, host.uuid, here, boot, service, self.rows.known), driver,
                               self.ledger, known)
        self.declarations = Declarations(driver, store, host.uuid, Declarer(parts.conf, here.host))
        self.withheld = WithheldDevices(here.host, host.uuid, store, self.ledger, self.rows, driver)
        giving = Giving(self.ledger, self.rows, driver, self.withheld, metering)
        self.wipes = Wipes(conf.wipes_at_once, driver, self.ledger, self.rows, self.gate, self.withheld, giving)
        self.guest_rows = GuestRows(self.rows, service, here)
        process, starts = OwnProcess(here.host), parts.starts or UnrecordedStarts()
        self.life = Life(self.rows, self.guest_rows, self.declarations, giving, self.wipes, starts)
        self.failed_claims = FailedClaims(self.rows, self.life, memory.given_up, driver, process, starts, self._go_on)
        self.claiming = Claiming(host.uuid, self.ledger, self.rows, driver, self.views, self.declarations,
                                 self.failed_claims, memory.claim_ids, self.life, self.withheld, conf.claim_attempts)
        self.definitions = Definitions(driver, self.ledger, self.rows, self.guest_rows, self.claiming, boot)
        self.instances = parts.instances
        self.moves = Moves(here, host.uuid, service, self.instances, self.rows, self.guest_rows, self.views, self.life,
                           self.wipes, self.claiming, self.failed_claims, conf.claim_attempts)
        self.live = LiveMigrations(here.host, driver, self.instances, self.rows, self.ledger, self.declarations,
                                   self.moves, self.failed_claims)
        self.narrowing = Narrowing(self.ledger, self.rows, self.life, self.claiming, self.declarations)
        self.repairs = Repairs(here.host, driver, self.ledger, self.rows, self.views, self.life, self.withheld,
                               self.wipes, service, self.gate)
        self.unproven = Unproven(host.uuid, conf.unproven_devices, driver, self.ledger, self.rows, self.gate,
                                 self.withheld)
        self.operator_requests = OperatorRequests(here.host, host.uuid, store, self.repairs, self.withheld,
                                                  self.unproven, self.end)
        self._audit = Audit(self.ledger, self.rows, self.views, self.gate, self.withheld,
                            self.unproven, self.declarations, self.claiming, self.failed_claims, self.wipes, Resume(
                                here, driver, service, self.rows, self.gate, boot, self.life, self.claiming,
                                self.definitions, self.moves))
        self._audited: Audited | None = None    # assigned as one value
        self._findings_log = FindingsLog(here.host)
        self._history = History(here.host, host.uuid, store, conf)
        self._auditing = locks.Lock(locks.AUDITING, here.host)
        self._lock: HostLock | None = None
        self.is_closed = False

    @classmethod
    def start(cls, parts: Parts, prepare: Callable[[], object] = lambda: None) -> tuple[Running, list[Finding]]:
        """Take the host, read every view and continue what a crash interrupted.

        The errors are those of :meth:`.manager.ClaimManager.init_host`; after an error another process can take the
        host.

        :param prepare: as for ``init_host``
        """
        options.register(parts.conf)
        with contextlib.ExitStack() as undo:
            lock = undo.enter_context(HostLock(parts.here.host, parts.state_path, parts.by_command))
            prepare()
            running, findings = cls._open(parts, Memory(
                Gate(*parts.here), KnownRows(), GivenUpClaims(parts.state_path, OwnProcess(parts.here.host)),
                ClaimIds(), set(), set()))
            running._lock = lock
            undo.pop_all()
        return running, findings

    def start_anew(self) -> tuple[Running, list[Finding]]:
        """Start the host again in this process, after an interrupt ended this start. It goes on as after a crash.

        What other threads do for this start comes to its end at their next write, since the store refuses it: the next
        start has a later epoch. What they have committed before, the next start reads.

        :raises HostTakenOver: another manager of this host has started since; so does every later call
        :raises StoreError, HypervisorUnreachable: no answer; this start stays over, and the next call tries again
        """
        LOG.warning('An interrupt ended this start of host %s, so the host starts anew', self.gate.host)
        self.wipes.close()
        self.unproven.stop()
        try:
            running, findings = self._open(self._parts, self._memory, self.service_store)
        except exception.HostTakenOver:
            self._is_taken_over = True
            raise
        running._lock = self._lock
        if not self._by_command:                # even if the interrupt came before this start began it
            running.work_in_background()
        return running, findings

    @classmethod
    def _open(cls, parts: Parts, memory: Memory, service_store: Store | None = None) -> tuple[Running, list[Finding]]:
        anew = service_store is not None
        parts.store.check()
        host = identify(parts.store, parts.here.host, parts.conf[options.GROUP].machine_id_path)
        withheld.carry_over(parts.store, host)
        # Before the first read: an older manager can write nothing more, and its earlier writes are visible.
        # A start anew does not take the host back from a manager that took it over.
        host = host._replace(epoch=parts.store.take_epoch(host.uuid, memory.epochs))
        memory.epochs.intersection_update((host.epoch,))
        running = cls(host, parts, memory.copy(), service_store or parts.store.at_epoch(host, memory.epochs))
        began = time.perf_counter()
        findings = running._audit.start(anew)
        running._note_audit(began, findings)
        running._findings_log.tell(findings)
        return running, findings

    def close(self) -> None:
        """Release the host. Its devices stay recorded for their instances. Repeat it after an interrupt."""
        self.is_closed = True
        try:                                    # these end before another process can take the host
            self.wipes.close()
            self.unproven.close()
        finally:
            if self._lock is not None:
                self._lock.unlock()

    @property
    def is_over(self) -> bool:
        """Whether an interrupt has ended this start of the host."""
        return self.ledger.is_discarded

    def end(self) -> None:
        """End this start of the host, since an interrupt may have left it in any state."""
        self._is_taken_over = self.is_taken_over
        self.ledger.discard()

    @property
    def is_taken_over(self) -> bool:
        """Whether the store has told that another manager of this host has started.

        Once this start is over, a refusal of its own store tells nothing: the epoch may be that of a start anew.
        """
        # In this order: if it was not over after the refusal, it was not over at the refusal.
        return self._is_taken_over or self.service_store.is_taken_over or (
            self.store.is_taken_over and not self.is_over)

    def _go_on(self, work: Callable[[FailedClaims], Fields]) -> Fields:
        fields: Fields = self._parts.go_on(self, lambda running: work(running.failed_claims))
        return fields

    def check(self) -> None:
        """:raises HostTakenOver: the store has refused a write, because another manager of this host has started"""
        if self.is_taken_over:
            raise exception.HostTakenOver(self.gate.host)

    def audit(self) -> list[Finding]:
        """Audit the host, and carry out the requests of commands.

        A command in the place of the manager leaves them to the manager: it does not have the compute service, which
        may refuse them, and ends before the wipes that they ask for.

        :raises HostTakenOver: another manager of this host has started; nothing was read
        """
        began = time.perf_counter()
        try:
            findings = self._run_audit()
        except exception.DeviceTrackError:
            self._metering.tell(Meter.audited, time.perf_counter() - began, None)
            raise
        self._note_audit(began, findings)
        if not self.is_over:
            self.unproven.go_on()
            self.wipes.go_on()
        self._findings_log.tell(findings)
        return findings

    def _run_audit(self) -> list[Finding]:
        self.store.check_epoch()
        with self._auditing.held():
            findings = self._audit.run()
            # The next audit sees their changes.
            if not self._by_command and self.operator_requests.answer_waiting() and not self.is_over:
                findings = self._audit.run()
            self._history.trim()
        return findings

    def _note_audit(self, began: float, findings: list[Finding]) -> None:
        took, reasons = time.perf_counter() - began, None
        is_counted = self._metering.meter is not None
        if is_counted:                                  # else nobody needs it, and it reads every device
            with contextlib.suppress(exception.StartIsOver):
                reasons = self.ledger.now.reasons().values()
        self._audited = Audited.of(time.time(), findings, reasons)
        if is_counted:
            self._metering.tell(Meter.audited, took, self.state())

    def state(self) -> HostState:
        """The host in numbers, only from memory. Quick."""
        try:
            pools = self.ledger.now.pool_states()
        except exception.StartIsOver:
            pools = None
        return HostState(self.gate.host, pools, self._audited, self.gate.is_open, len(self.rows.doubts),
                         self.wipes.counted())

    def providers(self) -> list[Provider]:
        """The resource providers of the host."""
        # The scheduler counts no device for a claim whose caller was told that it failed.
        undone = {record.key for doubt in self.rows.doubts if doubt.undo for record in doubt.changes.insert}
        over, now = undone | self._audit.devices_of_instances_that_are_over(), self.ledger.now
        unclaimed = [device for key in over if (device := now.device(key)) is not None]
        counts = scheduling.counts(now.pool_states(), unclaimed, self.gate.report_only is not None)
        return scheduling.providers(self.views.providers.present, self._nodename, counts,
                                    list(self.declarations.known.values()))

    def held(self, instance_uuid: str | None) -> tuple[HeldDevice, ...]:
        """The devices of one instance, or of all, only from memory."""
        # Read the doubts before and after, so that a commit whose doubt begins or ends meanwhile counts as in doubt.
        before, held = self.rows.doubts, self.ledger.now.held(instance_uuid)
        doubted = {key for doubt in (*before, *self.rows.doubts) for key in doubt.changes.keys}
        return tuple(held if not doubted else [
            one._replace(in_doubt=(one.kind, one.identifier) in doubted) for one in held])

    def take(self, instance_uuid: str, demand: Demand, claim_id: str) -> list[Record]:
        """Take the devices of a claim without a move.

        The errors are those of :meth:`.claiming.Claiming.take` and :meth:`claim_none`.
        """
        if demand.items:
            return self.claiming.take(instance_uuid, demand, claim_id)
        self.failed_claims.make_way(instance_uuid)
        return self.claim_none(instance_uuid)

    def claim_none(self, instance_uuid: str) -> list[Record]:
        """Claim no devices for an instance that boots here. Only if it has some here, this asks the store.

        :returns: no rows
        :raises InstanceHasClaim: it has others than those on their way back, and its guest would start on them
        :raises StoreError: as :meth:`.life.Life.set_aside`
        """
        if self.held(instance_uuid):
            with self.rows.working(instance_uuid):
                there = self.rows.there(instance_uuid)
                if there:
                    raise exception.InstanceHasClaim(instance_uuid, [record.key for record in there])
                self.life.set_aside(instance_uuid)
        return []

    def placed(self) -> tuple[list[Record], Usage]:
        """The rows of the host, as their devices are counted now, and the usage by guests."""
        usage = self._driver.get_usage()                # before the rows: a device that is taken meanwhile has a row
        return self.ledger.now.counted_now(self.rows.all_shown()), usage

    def work_in_background(self) -> None:
        """Wipe and read devices in the background from now on, until :meth:`close`."""
        self.unproven.begin()
        self.wipes.begin()
