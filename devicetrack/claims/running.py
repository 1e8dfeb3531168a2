"""All objects of a started host: ``init_host`` makes them, ``close`` drops them.

Each object owns one part of the state, and gets the objects that it uses. :mod:`.locks` has the order of all locks.

An exception from outside may interrupt a step between any two lines, and leave these objects in any state. It ends this
start of the host, and the next call starts the host anew: see :func:`start_anew`.
"""

from __future__ import annotations

from collections.abc import Callable
import contextlib
from typing import Any
from typing import NamedTuple

from devicetrack import exception
from devicetrack import log
from devicetrack.claims import locks
from devicetrack.claims import public_calls
from devicetrack.claims import withheld
from devicetrack.claims.audit import Audit
from devicetrack.claims.audit import Resume
from devicetrack.claims.claim import Claiming
from devicetrack.claims.declarations import Declarations
from devicetrack.claims.definitions import Definitions
from devicetrack.claims.failed_claims import FailedClaims
from devicetrack.claims.failed_claims import RememberedClaims
from devicetrack.claims.gate import Gate
from devicetrack.claims.host import HostLock
from devicetrack.claims.host import identify
from devicetrack.claims.host import OwnProcess
from devicetrack.claims.host import ThisHost
from devicetrack.claims.instance_fields import Fields
from devicetrack.claims.instance_fields import InstanceFields
from devicetrack.claims.life import Life
from devicetrack.claims.live import LiveMigrations
from devicetrack.claims.locked_ledger import LockedLedger
from devicetrack.claims.metering import Metering
from devicetrack.claims.moves import Moves
from devicetrack.claims.operator_requests import OperatorRequests
from devicetrack.claims.providers import DerivedProviders
from devicetrack.claims.providers import KnownProviders
from devicetrack.claims.providers import ProviderResolver
from devicetrack.claims.refusals import Refusals
from devicetrack.claims.releasing import Releasing
from devicetrack.claims.releasing import Wipes
from devicetrack.claims.repairs import Repairs
from devicetrack.claims.rows import KnownRows
from devicetrack.claims.rows import Rows
from devicetrack.claims.service import ComputeService
from devicetrack.claims.service import ServiceView
from devicetrack.claims.service_cleaning import ServiceCleaning
from devicetrack.claims.unfinished import Unfinished
from devicetrack.claims.unproven import Unproven
from devicetrack.claims.views import Boot
from devicetrack.claims.views import HostViews
from devicetrack.claims.withheld import WithheldDevices
from devicetrack.compatibility.sources import Declarer
from devicetrack.conf import manager as options
from devicetrack.engine.findings import Finding
from devicetrack.engine.migrations import Endpoint
from devicetrack.store.api import Host
from devicetrack.store.api import Store
from devicetrack.virt.driver import VirtDriver

LOG = log.logger(__name__)


class Parts(NamedTuple):
    """The parts that a service passes for one host; ``service`` and ``resolver`` may be None.

    ``instances`` reads and sets fields of the service's instances. ``after_wipe`` is called when the background has
    wiped or read a device.
    """

    here: Endpoint
    driver: VirtDriver
    store: Store
    conf: Any
    service: ComputeService | None = None
    resolver: ProviderResolver | None = None
    instances: InstanceFields = InstanceFields()
    after_wipe: Callable[[], object] = lambda: None

    @property
    def state_path(self) -> str:
        """The state directory of the host's driver, which also has the locks of the devices.

        If the driver has none, the one of the options, which must be registered by then.
        """
        return self.driver.state_path or self.conf[options.GROUP].state_path


class Starter(NamedTuple):
    """Who starts a host.

    ``metering`` reports the work. ``refusals`` has the refused claims, and ``unfinished`` what the manager has begun,
    over all its starts of the host. ``go_on`` calls a function with the start that goes on with what an earlier one
    began. ``by_command`` says that a command starts the host in place of its manager.
    """

    metering: Metering
    refusals: Refusals
    unfinished: Unfinished
    go_on: Callable[[Running, Callable[[Running], Any]], Any]
    by_command: bool = False

    @classmethod
    def command(cls) -> Starter:
        """A command, which makes no claims."""
        return cls(Metering(), Refusals(), Unfinished(), lambda began, work: work(began), by_command=True)


class Memory(NamedTuple):
    """What a process knows of a host that it has taken, from one start to the next.

    ``epochs`` has the last epoch that the process took; after a start that failed or was interrupted, also those that
    it took since, or may have taken.
    """

    rows: KnownRows
    unfinished: Unfinished
    failed_claims: RememberedClaims
    epochs: set[int]
    lock: HostLock

    def copy(self) -> Memory:
        """That of the next start. Threads of this one go on, and learn nothing more that is true of it."""
        return self._replace(rows=self.rows.copy(), unfinished=self.unfinished.of_next_start())


class Running:
    """One start of one host.

    :param row: the host's row in the store, with the epoch of this start
    :param service_store: the store for the service, which goes on over starts anew
    """

    def __init__(self, row: Host, parts: Parts, starter: Starter, memory: Memory, service_store: Store) -> None:
        self.parts, self.starter, self.memory = parts, starter, memory
        self.is_closed = self.was_taken_over = False
        self._told: int | None = None           # what the lock file had when the last request was carried out
        self.host_uuid, self.store, self.service_store = row.uuid, parts.store.at_epoch(row), service_store
        conf = parts.conf[options.GROUP]
        self.service = ServiceView(parts.service, conf.service_late_s)
        host = ThisHost(parts.here, row.uuid, parts.driver, self.store, self.service, conf, starter.metering)
        known = KnownProviders(parts.resolver or DerivedProviders(row.uuid))
        self.gate, self.boot = Gate(*parts.here), Boot(host, row.boot_id)
        self.ledger = LockedLedger(conf.selection_policy, known.uuid_of, memory.unfinished, host.name)
        self.rows = rows = Rows(host, self.ledger, memory.rows, memory.unfinished)
        self.views = HostViews(host, rows, self.boot, known)
        self.declarations = Declarations(host, Declarer(parts.conf, host.name))
        self.withheld = WithheldDevices(host, rows)
        releasing = Releasing(host, rows, self.withheld)
        self.wipes = Wipes(host, rows, self.gate, self.withheld, releasing, self._interrupted, parts.after_wipe)
        self.life = Life(host, rows, self.declarations, releasing, self.wipes)
        self.failed_claims = FailedClaims(host, rows, self.life, memory.failed_claims, parts.instances, self._go_on)
        self.claiming = Claiming(host, rows, self.views, self.declarations, self.withheld, self.life,
                                 self.failed_claims)
        self.definitions = Definitions(host, rows, self.life, self.claiming, self.boot)
        self.moves = Moves(host, rows, self.views, self.life, self.claiming, self.failed_claims)
        self.live = LiveMigrations(host, rows, self.declarations, self.moves, self.failed_claims)
        self.repairs = Repairs(host, rows, self.views, self.gate, self.withheld, self.life)
        self.unproven = Unproven(host, rows, self.gate, self.withheld, self._interrupted, parts.after_wipe)
        self.service_cleaning = ServiceCleaning(host, self.gate, self._interrupted)
        self.operator_requests = OperatorRequests(host, self.repairs, self.withheld, self.unproven,
                                                  self.service_cleaning, self.end)
        self.audits = Audit(host, rows, self.views, self.declarations, self.unproven, Resume(
            host, rows, self.gate, self.life, self.claiming, self.definitions, self.moves),
            self.service_cleaning.findings)

    def audit(self) -> list[Finding]:
        """Audit the host, and carry out the requests of commands: see :meth:`.Audit.run`.

        A command in place of the manager leaves them to the manager: it does not have the compute service, which
        may refuse them, and ends before the wipes that they ask for.
        """
        return self.audits.run(self._write_refusals, lambda: (
            not self.starter.by_command and self.operator_requests.answer_waiting()))

    def hear(self) -> None:
        """Carry out the requests to cordon that commands have left. Call it before devices are chosen. Mostly quick.

        :raises StoreError: they cannot be read, or not carried out; no device may be chosen
        """
        if locks.held():                        # a call within another one of this thread, which has heard
            return
        told = self.memory.lock.told
        if told not in (None, self._told) and not self.starter.by_command:
            self.operator_requests.cordon_waiting()
            self._told = told

    def _write_refusals(self, at_once: bool = False) -> None:
        self.starter.refusals.write(self.store, self.gate.host, self.host_uuid, at_once)

    def work_in_background(self) -> None:
        """Wipe and read devices in the background from now on, until :meth:`close`."""
        self.unproven.begin()
        self.wipes.begin()

    def close(self) -> None:
        """Release the host. Its devices stay recorded for their instances. Repeat it after an interrupt."""
        self.is_closed = True
        self.service_cleaning.close()
        try:
            self._write_refusals(at_once=True)
            # These end before another process can take the host.
            self.wipes.close()
            self.unproven.close()
        finally:
            self.memory.lock.unlock()

    @property
    def is_over(self) -> bool:
        """Whether an interrupt has ended this start of the host."""
        return self.ledger.is_discarded

    def end(self) -> None:
        """End this start of the host, since an interrupt may have left it in any state."""
        self.was_taken_over = self.is_taken_over
        self.ledger.discard()

    def _interrupted(self, error: BaseException) -> None:
        if not public_calls.is_answer(error):
            self.end()

    @property
    def is_taken_over(self) -> bool:
        """Whether the store has told that another manager of this host has started.

        Once this start is over, a refusal of its own store tells nothing: the epoch may be that of a start anew.
        """
        # In this order: if it was not over after the refusal, it was not over at the refusal.
        return self.was_taken_over or self.service_store.is_taken_over or (
            self.store.is_taken_over and not self.is_over)

    def _go_on(self, work: Callable[[FailedClaims], Fields]) -> Fields:
        fields: Fields = self.starter.go_on(self, lambda running: work(running.failed_claims))
        return fields


def start(parts: Parts, starter: Starter,
          prepare: Callable[[], object] = lambda: None) -> tuple[Running, list[Finding]]:
    """Take the host, read every view and continue what a crash interrupted.

    The errors are those of :meth:`.manager.ClaimManager.init_host`; after an error another process can take the host.

    :param prepare: as for ``init_host``
    """
    options.register(parts.conf)
    with contextlib.ExitStack() as undo:
        lock = undo.enter_context(HostLock(parts.here.host, parts.state_path, starter.by_command))
        prepare()
        unfinished = starter.unfinished.of_next_host()
        failed_claims = RememberedClaims(parts.state_path, OwnProcess(parts.here.host), unfinished)
        memory = Memory(KnownRows(), unfinished, failed_claims, set(), lock)
        running, findings = _open(parts, starter, memory)
        undo.pop_all()
    return running, findings


def start_anew(before: Running) -> tuple[Running, list[Finding]]:
    """Start the host again in this process, after an interrupt ended its last start. It goes on as after a crash.

    What other threads do for the last start comes to its end at their next write, since the store refuses it: the next
    start has a later epoch. What they have committed before, the next start reads.

    :raises HostTakenOver: another manager of this host has started since; so does every later call
    :raises StoreError, HypervisorUnreachable: no answer; the last start stays over, and the next call tries again
    """
    LOG.warning('An interrupt ended this start of host %s, so the host starts anew', before.gate.host)
    before.wipes.close()
    before.service_cleaning.close()
    before.unproven.stop()
    try:
        running, findings = _open(before.parts, before.starter, before.memory, before)
    except exception.HostTakenOver:
        before.was_taken_over = True
        raise
    if not before.starter.by_command:           # even if the interrupt came before the last start began it
        running.work_in_background()
    return running, findings


def _open(parts: Parts, starter: Starter, memory: Memory,
          before: Running | None = None) -> tuple[Running, list[Finding]]:
    parts.store.check()
    row = identify(parts.store, parts.here.host, parts.conf[options.GROUP].machine_id_path)
    withheld.carry_over(parts.store, row)
    # Before the first read: an older manager can write nothing more, and its earlier writes are visible.
    # A start anew does not take the host back from a manager that took it over.
    row = row._replace(epoch=parts.store.take_epoch(row.uuid, memory.epochs))
    memory.epochs.intersection_update((row.epoch,))
    running = Running(row, parts, starter, memory.copy(),
                      parts.store.at_epoch(row, memory.epochs) if before is None else before.service_store)
    if before is not None:
        before.memory = running.memory          # if this start fails, the next one has what this one learned
    return running, running.audits.start(anew=before is not None)
