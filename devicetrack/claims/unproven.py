"""Proves free devices clean: a quick look, reading in the background, or a wipe that an operator asks for.

A device that stores data keeps the data of its guests, but rows come and go: a store is new, is restored to an older
state, or loses a row by hand. So a device of such a kind is free only while a proof on the host itself says that it is
clean (:meth:`devicetrack.virt.driver.VirtDriver.prove`). The thread here reads one device at a time, and never writes
unless the option or an operator says so. Meanwhile it holds no lock of this process, and neither a start nor an audit
nor :meth:`Unproven.close` waits until it has read a whole device.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import operator
import threading
import time
from typing import Final
from typing import NamedTuple

from devicetrack import exception
from devicetrack import log
from devicetrack import vocabulary
from devicetrack.claims import arguments
from devicetrack.claims import locks
from devicetrack.claims import public_calls
from devicetrack.claims.gate import Gate
from devicetrack.claims.host import ThisHost
from devicetrack.claims.rows import Rows
from devicetrack.claims.withheld import Withheld
from devicetrack.claims.withheld import WithheldDevices
from devicetrack.claims.workers import Workers
from devicetrack.engine import withholding
from devicetrack.engine.exclusion import BEING_WIPED
from devicetrack.engine.selection import FREE
from devicetrack.engine.states import DeviceState
from devicetrack.engine.withholding import Cause
from devicetrack.engine.withholding import Marks
from devicetrack.engine.withholding import Target
from devicetrack.objects import DeviceAssignment
from devicetrack.objects import identity
from devicetrack.objects import values
from devicetrack.objects.event import Wiped
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Record

LOG = log.logger(__name__)

TO_BE_READ: Final = 'nothing proves that it is clean; it has not been read through yet'
TO_BE_WIPED: Final = 'nothing proves that it is clean; it will be wiped'
WIPED_NOW: Final = 'it is being wiped, and will be handed out when the wipe is proven'
_AWAY: Final = 'the host does not have it'

# At most this many devices are checked with their locks held at a time, since each lock is a descriptor.
_AT_A_TIME: Final = 100
_LOOK_EVERY_S: Final = 0.1
# Seconds that close() waits for a wipe, which cannot be stopped. The wipe holds the device's lock and goes on.
_CLOSE_WAIT_S: Final = 5.0

# For each device None, or the error that keeps it withheld.
_Answers = Mapping[DeviceKey, exception.DriverError | None]


class _Task(NamedTuple):
    """A device, and how to prove it. If an operator asked for that wipe, ``request_id`` is that of the call."""

    device: DeviceState
    how: str
    is_requested: bool = False
    request_id: str | None = None


class _Request(NamedTuple):
    """A wipe that an operator requested: the id of the call, and the cordons and details of the device at that time."""

    request_id: str | None
    cordons: tuple[Cause, ...]
    details: str


class _NotBegun(exception.DeviceTrackError):
    """A wipe must not begin."""
    reason: str
    template = '{reason}'


class _LeftAlone(_NotBegun):
    """The device is withheld for another reason by now. It is due again when that reason ends."""


class Unproven:
    """The unproven devices of a started host, and the thread that proves them clean.

    :param interrupted: called with an exception from outside that reaches the thread
    :param then: called by the thread after its work on a device
    """

    def __init__(self, host: ThisHost, rows: Rows, gate: Gate, withheld: WithheldDevices,
                 interrupted: Callable[[BaseException], None], then: Callable[[], object]) -> None:
        # With ``trust`` the driver calls no device unproven.
        self._host_uuid, self._policy = host.uuid, host.options.unproven_devices
        self._driver, self._ledger, self._rows, self._gate = host.driver, rows.ledger, rows, gate
        self.withheld = withheld
        self._lock = locks.Lock(locks.BACKGROUND)              # for the fields below; no call while it is held
        self._workers = Workers('devicetrack-unproven', 1, self._next, self._work, interrupted, then)
        self._begun = False
        self._requested: list[DeviceKey] = []                   # operators want these wiped
        self._wiping: dict[DeviceKey, _Request] = {}            # these, and the one whose wipe runs
        self._answers: dict[DeviceKey, tuple[str, str]] = {}    # details of the tried device, why it is not clean
        self._later: set[DeviceKey] = set()                     # tried, and due again after the next audit
        self._looked_at: list[list[DeviceKey]] = []             # by the looks under way, which hold these devices
        self._stop = threading.Event()

    # -- what a start and every audit do ------------------------------------------------------------------------------

    def look(self) -> None:
        """Admit the devices that the host knows to be empty without reading a byte. Quick."""
        if self._gate.report_only is not None:
            return
        unproven = self._ledger.now.unproven()
        with self._lock.held():
            waiting = [device for device in unproven if device.key not in self._wiping and self._is_untried(device)]
            keys = [device.key for device in waiting]
            self._looked_at.append(keys)
        try:
            for start in range(0, len(waiting), _AT_A_TIME):
                devices = waiting[start:start + _AT_A_TIME]
                try:
                    answers = self._look_at([self._assignment(device) for device in devices], vocabulary.BLANK)
                except (exception.DriverError, exception.StoreError) as error:
                    LOG.warning('Unproven devices cannot be checked: %s', error)
                    return
                self._admit([key for key, error in answers.items() if error is None], vocabulary.BLANK)
        finally:
            with self._lock.held():
                self._looked_at = [others for others in self._looked_at if others is not keys]

    def _wait_for_looks(self, key: DeviceKey) -> None:
        """Wait until no look that has begun holds a device. The thread would find it busy, and fail."""
        while not self._stop.wait(0.0):
            with self._lock.held():
                if not any(key in keys for keys in self._looked_at):
                    return
            self._stop.wait(_LOOK_EVERY_S)

    def disprove(self, keys: Iterable[DeviceKey]) -> None:
        """Remove the proofs of devices that somebody uses without a row, since they will not be clean after that."""
        try:
            self._driver.disprove(keys)
        except exception.DriverError as error:
            LOG.error('Devices that others use may later count as clean: %s', error)

    def details(self) -> Mapping[DeviceKey, str]:
        """Say why each unproven device is not proven clean, for the list of withheld devices."""
        to_be_done = TO_BE_WIPED if self._policy == vocabulary.WIPE else TO_BE_READ
        unproven = (device.key for device in self._ledger.now.unproven())
        with self._lock.held():
            # The ledger's list lacks tried devices that are also withheld for another reason.
            return {**dict.fromkeys(unproven, to_be_done), **{key: why for key, (_, why) in self._answers.items()},
                    **dict.fromkeys(self._wiping, WIPED_NOW)}

    def begin(self) -> None:
        """Read devices in the background from now on, until :meth:`close`."""
        self._begun = True
        self.go_on()

    def go_on(self) -> None:
        """Allow another try for devices that failed, and start the thread if it has work. Quick."""
        with self._lock.held():
            self._later.clear()
        if self._is_waiting():
            self._workers.start()

    def wait(self) -> None:
        """Wait until the thread has no more work. For tests, and for commands on a host without a manager."""
        self._workers.wait()

    def stop(self) -> None:
        """Begin nothing more, and wait for nobody."""
        self._stop.set()
        self._driver.stop_proving()

    def close(self) -> None:
        """Stop reading. A wipe goes on to its end, with the lock of the device, unless the process ends."""
        self._stop.set()
        deadline = time.monotonic() + _CLOSE_WAIT_S
        while not self._workers.wait(0.0) and time.monotonic() < deadline:
            self._driver.stop_proving()         # again: it may have just begun to read
            self._workers.wait(_LOOK_EVERY_S)

    # -- what operators ask for ---------------------------------------------------------------------------------------

    def admit(self, key: DeviceKey, wipe: bool = False, word: values.Word | None = None,
              seen: str | None = None) -> Withheld:
        """Admit a device that was forgotten or retired; with ``wipe``, wipe a withheld device in the background.

        Without ``word`` this ends only the doubt: if the device stores data, the thread then reads all of it. A device
        that is being wiped is admitted when the wipe is proven.

        :param word: a person's word that a withheld device is clean, which is its proof from now on
        :param seen: the details of the device that the operator meant; None for whatever has the name now
        :raises NotAdmitted: also with ``wipe`` and ``word`` while the host is report-only, and if the host has another
            device of this name than the one that the operator meant
        :raises Exception: as :meth:`.WithheldDevices.admit` and :meth:`.WithheldDevices.check_for_proof`
        """
        if (wipe or word is not None) and (closed := self._gate.why_not_end) is not None:
            raise exception.NotAdmitted(str(Target.of(key)), closed)
        if seen is not None and (there := self._ledger.now.device(key)) is not None and not _is_same(seen, there):
            raise exception.NotAdmitted(str(Target.of(key)), 'the host has another device of this name than when you '
                                                             'asked, or nobody can tell: look again')
        if word is not None:
            return self._admit_by_word(key, word)
        if wipe:
            marks = self.withheld.marks        # first: a cordon that comes now is a later word
            self.withheld.check_for_proof(key, vocabulary.WIPE)
            device = self._ledger.now.device(key)
            if device is None:
                raise exception.NotAdmitted(str(Target.of(key)), _AWAY)
            self._request_wipe(key, _Request(
                public_calls.present(), _cordons(marks, key, device.parent), device.details))
            state = self.state_of(key)          # before the thread starts, which may finish at once
            self._workers.start()
            return state
        self.withheld.admit(key)
        self.look()
        self.go_on()
        return self.state_of(key)

    def _admit_by_word(self, key: DeviceKey, word: values.Word) -> Withheld:
        arguments.check_reason(word.who)
        if not arguments.check_reason(word.why).strip():
            raise exception.BadRequest('reason', word.why, 'it is empty: say how you know that the device is clean')
        self.withheld.check_for_proof(key, word.how)
        device = self._ledger.now.device(key)
        with self._lock.held():
            is_wiping = key in self._wiping
        if device is None or is_wiping:
            raise exception.NotAdmitted(str(Target.of(key)), WIPED_NOW if is_wiping else _AWAY)
        LOG.info('Host %(host)s: %(kind)s/%(identifier)s is clean by the %(how)s', {
            'host': self._host_uuid, 'kind': key.kind, 'identifier': key.identifier, 'how': word.how})
        try:
            error = self._look_at([self._assignment(device)], word.how)[key]
        except exception.DeviceError as failed:
            error = failed
        if error is not None:
            raise exception.NotAdmitted(str(Target.of(key)), getattr(error, 'reason', str(error)))
        self._admit([key], word.how, vocabulary.BY_OPERATOR)
        state = self.state_of(key)
        if not {vocabulary.IN_DOUBT, vocabulary.RETIRED}.isdisjoint(state.causes):
            raise exception.NotAdmitted(str(state.target), 'the store could not note that: admit it again')
        return state

    def wiped(self, key: DeviceKey) -> Withheld:
        """The state of a device after the wipe that :meth:`admit` requested. Call it after :meth:`wait`.

        :raises NotAdmitted: the wipe is not proven, or the store does not have that yet; the device stays withheld
        """
        with self._lock.held():
            why = WIPED_NOW if key in self._wiping else self._answers.get(key, ('', ''))[1]
        state = self.state_of(key)
        if not why and not {vocabulary.IN_DOUBT, vocabulary.RETIRED}.isdisjoint(state.causes):
            why = 'it was wiped, but the store could not note that: admit it again'
        if why:
            raise exception.NotAdmitted(str(Target.of(key)), why)
        return state

    def state_of(self, key: DeviceKey) -> Withheld:
        """The present state of a device, with a reason that no audit has noted yet."""
        state = self.withheld.state_of(Target.of(key))
        device = self._ledger.now.device(key)
        if device is None or vocabulary.UNPROVEN not in device.withheld:
            return state
        with self._lock.held():
            why = WIPED_NOW if key in self._wiping else self._answers.get(key, ('', TO_BE_READ))[1]
        return state._replace(causes={**state.causes, vocabulary.UNPROVEN: Cause(0, why, vocabulary.BY_HOST)})

    def _request_wipe(self, key: DeviceKey, request: _Request) -> None:
        with self._lock.held():
            self._answers.pop(key, None)
            self._later.discard(key)
            if key in self._wiping:
                self._wiping[key] = request._replace(request_id=self._wiping[key].request_id)
            else:
                self._requested.append(key)
                self._wiping[key] = request

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _is_waiting(self) -> bool:
        unproven = self._ledger.now.unproven() if self._begun else []
        with self._lock.held():
            return self._gate.report_only is None and (bool(self._requested) or any(map(self._is_untried, unproven)))

    def _is_untried(self, device: DeviceState) -> bool:
        """The caller holds the lock."""
        key = device.key
        return key not in self._later and self._answers.get(key, ('',))[0] != device.details

    def _work(self, task: _Task) -> None:
        device = task.device
        try:
            with public_calls.during(task.request_id):
                self._prove(task)
        except _LeftAlone as error:
            LOG.info('%(kind)s/%(identifier)s is not wiped: %(error)s', {
                'kind': device.kind, 'identifier': device.identifier, 'error': error})
        except MemoryError:
            raise                               # as any interrupt
        except Exception as error:
            expected = isinstance(error, exception.DeviceTrackError)
            LOG.warning('%(kind)s/%(identifier)s stays withheld: %(error)s',
                        {'kind': device.kind, 'identifier': device.identifier, 'error': error},
                        exc_info=not expected)
            self._answer(task, str(error), final=not expected)
        finally:
            if task.is_requested:               # else a wipe of the device may still wait for its turn
                with self._lock.held():
                    self._wiping.pop(device.key, None)

    def _next(self) -> _Task | None:
        """The next device and how to prove it. None ends the thread: nothing is left now, or it must stop."""
        how = vocabulary.WIPE if self._policy == vocabulary.WIPE else vocabulary.READ
        unproven = sorted(self._ledger.now.unproven(), key=operator.attrgetter('key')) if self._begun else []
        while True:
            with self._lock.held():
                ended = self._stop.is_set() or self._gate.report_only is not None
                requested = self._requested[0] if self._requested and not ended else None
                request = self._wiping.get(requested) if requested is not None else None
                if requested is None:
                    for device in unproven if not ended else ():
                        if self._is_untried(device):
                            return _Task(device, how)
                    return None
            known = self._ledger.now.device(requested)
            if known is not None and request is not None and not _is_same(request.details, known):
                known = None                    # another device has its name by now
            with self._lock.held():
                self._requested.remove(requested)
                if known is None:
                    self._wiping.pop(requested, None)
                    self._answers[requested] = ('', 'wiping it failed: the host does not have it any more')
            if known is not None:
                return _Task(known, vocabulary.WIPE, True, request.request_id if request is not None else None)
            LOG.warning('%(kind)s/%(identifier)s is not wiped: the host does not have it any more',
                        requested._asdict())

    def _prove(self, task: _Task) -> None:
        device, how = task.device, task.how
        key = device.key
        self._wait_for_looks(key)
        self._rows.check_unowned([key])         # long before the last check, which comes after the lock or the reading
        LOG.info('%(kind)s/%(identifier)s has no owner, and nothing proves it clean: %(how)s',
                 {'kind': key.kind, 'identifier': key.identifier, 'how': how})
        error = (self._wipe(task) if how == vocabulary.WIPE else self._look_at([self._assignment(device)], how))[key]
        if self._stop.is_set():
            return
        if error is None:
            if how != vocabulary.WIPE:
                self._admit([key], how)
                return
            by = vocabulary.BY_OPERATOR if task.is_requested else vocabulary.BY_HOST
            self._admit([key], vocabulary.WIPED, by, self._driver.wipes_of([key]))
            return
        LOG.warning('%s', error)
        self._answer(task, error.reason if isinstance(error, exception.DeviceError) else str(error),
                     final=isinstance(error, exception.NotProven))

    def _look_at(self, assignments: Sequence[DeviceAssignment], how: str) -> _Answers:
        """Prove devices without a change of them. One that gets an owner meanwhile has no proof in the end.

        Its owner's guest may write to it without a call of ours. An adoption holds a device before it removes the
        proof. So either it removes this proof, or one of the checks here sees the new owner.

        :raises DeviceInUse, HostTakenOver, StoreError: a device was not free all the time, or nobody can tell; none of
            them has a proof
        """
        keys = [one.key for one in assignments]
        is_checked = False

        def confirm(_assignment: DeviceAssignment) -> None:
            nonlocal is_checked
            if not is_checked:                  # once is enough: the driver has the locks of all of them
                self._check_free(keys)
                is_checked = True

        answers = self._driver.prove(assignments, how, confirm)
        clean = [key for key, error in answers.items() if error is None]
        if clean:
            try:
                self._check_free(clean)
            except exception.DeviceTrackError:
                self.disprove(clean)
                raise
        return answers

    def _check_free(self, keys: Collection[DeviceKey]) -> None:
        """:raises DeviceInUse, HostTakenOver, StoreError: as :meth:`_look_at`"""
        self._rows.check_unowned(keys)
        for key in keys:
            device = self._ledger.now.device(key)
            # Whoever has a whole card can write to its parts, too.
            if device is not None and (device.state != FREE or vocabulary.EXCLUDED in device.withheld):
                raise exception.DeviceInUse(*key, 'it was given to an instance, or excluded, while it was looked at')

    def _wipe(self, task: _Task) -> _Answers:
        """Wipe a device, and let nobody have a device meanwhile that the wipe may reach.

        :raises DeviceInUse: somebody has such a device, or this one
        """
        key = task.device.key
        try:
            if (reason := self._ledger.begin_wipe(key)) is not None:
                raise exception.DeviceInUse(*key, reason)
            return self._driver.prove([self._assignment(task.device)], vocabulary.WIPE,
                                      lambda _assignment: self._check_wipe(task))
        finally:
            self._ledger.end_wipe(key)

    def _check_wipe(self, task: _Task) -> None:
        """Check under the lock of a device that it may still be wiped: the last moment in which its bytes can stay.

        :raises DeviceInUse: an instance has it by now
        :raises HostTakenOver: another manager of the host has started, and may have given it to an instance
        :raises StoreError: no answer
        :raises _NotBegun: the host is report-only, this manager closes, or an operator cordoned it after the request
        :raises _LeftAlone: nobody asked for its wipe by name, and it is cordoned or withheld for another reason
        """
        key = task.device.key
        closed = 'the service stops' if self._stop.is_set() else self._gate.why_not_end
        if closed is not None:
            raise _NotBegun(closed)
        self._rows.check_unowned([key])
        if task.is_requested:
            with self._lock.held():
                known = self._wiping[key].cordons
            # By identity: each cordon makes a new cause, also one in the words of the last one.
            if any(all(one is not other for other in known)
                   for one in _cordons(self.withheld.marks, key, task.device.parent)):
                raise _NotBegun('it was cordoned after its wipe was requested')
            return
        device = self._ledger.now.device(key)
        others = (device.withheld if device is not None else frozenset()) - {vocabulary.UNPROVEN, BEING_WIPED}
        if others:
            raise _LeftAlone(withholding.text(others))

    def _answer(self, task: _Task, why: str, final: bool) -> None:
        """Keep the reason why a device was not admitted. If it is not final, the next audit allows another try.

        A wipe that an operator requested is tried once. Reading the device instead would hide why the wipe failed.
        """
        key = task.device.key
        if task.how == vocabulary.WIPE:
            why = f'wiping it failed: {why}'
        final = final or task.is_requested
        with self._lock.held():
            self._answers[key] = (task.device.details if final else '', why)
            if not final:
                self._later.add(key)
        device = self._ledger.now.device(key)
        if device is not None and vocabulary.UNPROVEN in device.withheld:
            self.withheld.not_proven(key, why)

    def _admit(self, keys: Sequence[DeviceKey], proof: str, by: str = vocabulary.BY_HOST,
               wiped: Mapping[DeviceKey, Wiped] | None = None) -> None:
        with self._lock.held():
            for key in keys:
                self._answers.pop(key, None)
        self._ledger.proven(keys)
        self.withheld.proven(keys, proof, by, wiped)

    def _assignment(self, device: DeviceState) -> DeviceAssignment:
        """The device in the form for drivers, without an owner."""
        return DeviceAssignment.from_record(Record(
            self._host_uuid, device.kind, str(device.identifier), values.NOBODY, None, vocabulary.CURRENT,
            vocabulary.RELEASING, 0, '', 1, device.provider_uuid, device.resource_class, device.parent,
            device.numa_node, device.details, 0))


def _is_same(seen: str, device: DeviceState) -> bool:
    """Whether a device is the one of these details, as far as the host shows."""
    return identity.alike(seen, device.details) or identity.same_device(seen, device.details)


def _cordons(marks: Marks, key: DeviceKey, parent: str | None) -> tuple[Cause, ...]:
    """The cordons of a device and of its parent."""
    targets = [Target.of(key), *([] if parent is None else [Target.named(key.kind, parent, parent=True)])]
    return tuple(marks[target][vocabulary.CORDONED] for target in targets
                 if vocabulary.CORDONED in marks.get(target, {}))
