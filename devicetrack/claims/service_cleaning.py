"""Cleans the devices that the compute service hands out itself, between two guests.

These devices have no rows and are in no ledger: the service decides who gets them. After a guest, the service keeps
such a device reserved, and leaves it to others to clean the device and to end the reservation. Here a thread does that:

#. It notes durably which device the service may give to a guest, while nobody has it
   (:meth:`.VirtDriver.cleaner_of_service`). When the service gives the device to a guest, that is noted before the
   guest starts, else at the next look. A device that is reserved without such a guest was reserved by somebody else.
#. When a device waits for its cleaning, the thread has the driver clean the noted one, by the same steps as a device of
   ours: under the device's lock, after the same questions about users, with a proof.
   Clean, it is as it was noted.
#. It writes the proof into the history, and then the service hands out the device again.

The reservation is the only mark that a device is not clean yet. A crash at any moment leaves it, and the next start
begins with the second step again. The service is asked before the first byte changes, and again after the last one. If
it gives no answer then, the device is not cleaned again while no guest had it, and its proof counts.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
from typing import Final
from typing import NamedTuple
from typing import Protocol

from devicetrack import exception
from devicetrack import log
from devicetrack import vocabulary
from devicetrack.claims import arguments
from devicetrack.claims import locks
from devicetrack.claims import public_calls
from devicetrack.claims.gate import Gate
from devicetrack.claims.host import ThisHost
from devicetrack.claims.withheld import now_ms
from devicetrack.claims.withheld import Withheld
from devicetrack.claims.workers import Workers
from devicetrack.engine import findings
from devicetrack.engine.findings import Finding
from devicetrack.engine.withholding import Cause
from devicetrack.engine.withholding import Target
from devicetrack.objects import DeviceAssignment
from devicetrack.objects import event as events
from devicetrack.objects import identity
from devicetrack.objects import values
from devicetrack.objects.cleanable import Cleanable
from devicetrack.objects.cleanable import FREE
from devicetrack.objects.cleanable import UNKNOWN
from devicetrack.objects.cleanable import USED
from devicetrack.objects.cleanable import WAITING
from devicetrack.objects.details import serial_of
from devicetrack.objects.event import Event
from devicetrack.objects.event import Wiped
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import InventoryDevice
from devicetrack.objects.values import Record
from devicetrack.objects.values import Word
from devicetrack.virt.driver import VirtDriver

LOG = log.logger(__name__)

_AWAY: Final = 'the host does not have it'
_BY_HAND: Final = ('no guest was noted since it was clean, so a person or another program reserved it: it is not '
                   'cleaned, and stays reserved until they lift that')
_NOT_NOTED: Final = 'which device its guest had was not noted'
_HELD: Final = 'the device: the service keeps it reserved'
_ADVICE: Final = ('fix that, and the next audit tries again; or devicetrack-manage device admit {} --wipe cleans the '
                  'device that is there now, or --clean-by-my-word REASON confirms that it is clean')


class DeviceService(Protocol):
    """The compute service as the one who hands out devices. A thread of the manager calls it; it may block.

    An error is one of this library, and says why the service gives no answer or refuses.
    """

    def devices(self) -> Mapping[DeviceKey, Cleanable]:
        """Return the devices that are to be cleaned between two guests, whoever has them now."""

    def check_waits(self, key: DeviceKey, told: str) -> None:
        """Check that a device still waits for its cleaning, and that the service gives it to nobody meanwhile.

        :raises DeviceInUse: somebody has it, or may get it
        """

    def hand_out(self, key: DeviceKey, told: str) -> None:
        """Let the service give a device to guests again, if :meth:`check_waits` still holds, in one step with that.

        :raises DeviceInUse: it does not hold; nothing was changed
        """


class _Order(NamedTuple):
    """What an operator says about a device: how it is proven clean, and the id of the request.

    It is about the device that was there then, and counts until the service gives that to a guest (``told``).
    """

    how: str
    request_id: str | None
    device: InventoryDevice
    told: str


class ServiceCleaning:
    """The devices of the service on a started host, and the threads that clean them.

    :param interrupted: called with an exception from outside that reaches a thread
    """

    def __init__(self, host: ThisHost, gate: Gate, interrupted: Callable[[BaseException], None]) -> None:
        self._host, self._store, self._gate = host, host.store, gate
        self._driver: VirtDriver | None = None              # when there was a look
        self._service: DeviceService | None = None
        self._lock = locks.Lock(locks.BACKGROUND)           # for the fields below; no call while it is held
        self._is_due = False
        self._told: Mapping[DeviceKey, Cleanable] = {}
        self._there: Mapping[DeviceKey, InventoryDevice] = {}
        self._noted: dict[DeviceKey, str] = {}              # what this process noted
        self._given: set[DeviceKey] = set()                 # what the service gave to guests since the last look began
        self._handed_out: set[DeviceKey] = set()            # clean, and handed out since the last look began
        # What the service told of a device when this process proved it clean. An earlier proof says nothing of a guest
        # that came after it: a reservation may be lifted by hand.
        self._proven: dict[DeviceKey, str] = {}
        self._waiting: dict[DeviceKey, None] = {}
        self._working: set[DeviceKey] = set()
        self._orders: dict[DeviceKey, _Order] = {}
        self._problems: dict[DeviceKey, str] = {}
        self._is_closed = False
        self._workers = Workers('devicetrack-service-devices', host.options.wipes_at_once, self._next, self._work,
                                interrupted)

    def look(self, service: DeviceService) -> None:
        """Have a thread ask the service which devices wait for their cleaning, and clean them. Quick."""
        with self._lock.held():
            self._service, self._is_due = service, True
        self._workers.start()

    def note_given(self, keys: Collection[DeviceKey]) -> None:
        """Note durably that the service gave devices to guests that have not started yet.

        :raises DriverError: that cannot be noted, and the next look tries again
        """
        with self._lock.held():
            self._given.update(keys)
            driver = self._driver               # without it, the look that makes it notes them
        if driver is not None:
            driver.note_given(keys)

    def wait(self) -> None:
        """Wait until the threads have no more work. For tests."""
        self._workers.wait()

    def close(self) -> None:
        """Begin no other work. What is being cleaned goes on in a process of its own, and stays reserved."""
        self._is_closed = True

    def has(self, key: DeviceKey) -> bool:
        """Whether the service hands out a device, as it said last."""
        return key in self._told

    def findings(self) -> list[Finding]:
        """Return why devices are not cleaned, and which are being cleaned. Quick."""
        with self._lock.held():
            problems = dict(self._problems)
            working = (self._working | self._waiting.keys()) - {findings.NO_DEVICE}
        keys = working | problems.keys()
        # A process that an earlier service began may still work on one.
        progress = self._driver.wiping(keys) if self._driver is not None and keys else {}
        said = {key: f'it is being cleaned: {progress[key]}' if key in progress else 'it is being cleaned'
                for key in working | progress.keys()}
        return [Finding(findings.NOT_CLEANED, vocabulary.NOTE if key in said else vocabulary.WARNING, key, None, (), 0,
                        '; '.join(filter(None, (said.get(key), problems.get(key)))), _HELD,
                        'none: it is handed out when it is proven clean' if key in said else
                        _ADVICE.format(f'{key.kind}/{key.identifier}'))
                for key in sorted(problems.keys() | said.keys())]

    def admit(self, key: DeviceKey, wipe: bool, word: Word | None, seen: str | None = None) -> Withheld:
        """Clean a device that waits, whatever is there now, or take a person's word that it is clean.

        A thread does that, and hands out the device; the findings and the history tell the outcome.

        :param seen: as for :meth:`.Unproven.admit`
        :raises BadRequest: neither is asked for, or the word has no reason
        :raises NotAdmitted: it does not wait for its cleaning, or the host does not have it, or has another one than
            the operator meant
        """
        target = Target.of(key)
        if word is not None and not arguments.check_reason(word.why).strip():
            raise exception.BadRequest('reason', word.why, 'it is empty: say how you know that the device is clean')
        if word is None and not wipe:
            raise exception.BadRequest('device', str(target), 'the service hands it out, and keeps it reserved until '
                                       'it is clean: use --wipe, or --clean-by-my-word REASON')
        with self._lock.held():
            if key in self._working or key not in self._told or self._told[key].state != WAITING or (
                    key not in self._there):
                raise exception.NotAdmitted(str(target), 'it is being cleaned' if key in self._working else
                                            'it does not wait for its cleaning, or the host does not have it')
            device, there = self._there[key], self._there[key].details
            if seen is not None and not (identity.alike(seen, there) or identity.same_device(seen, there)):
                raise exception.NotAdmitted(str(target), 'the host has another device of this name than when you '
                                                         'asked, or nobody can tell: look again')
            self._orders[key] = _Order(vocabulary.WIPE if word is None else word.how, public_calls.present(), device,
                                       self._told[key].told)
            self._waiting[key] = None
        self._workers.start()
        return Withheld(target, {vocabulary.UNPROVEN: Cause(0, 'the service keeps it reserved until it is clean',
                                                            vocabulary.BY_HOST)}, ())

    # -- the threads --------------------------------------------------------------------------------------------------

    def _next(self) -> DeviceKey | None:
        """Return the next device, or :data:`.findings.NO_DEVICE` for a look at all of them."""
        with self._lock.held():
            if self._is_closed or self._gate.report_only is not None:
                return None
            if self._is_due and findings.NO_DEVICE not in self._working:
                self._is_due = False
                self._working.add(findings.NO_DEVICE)
                return findings.NO_DEVICE
            for key in self._waiting:
                self._working.add(key)
                del self._waiting[key]
                return key
        return None

    def _work(self, key: DeviceKey) -> None:
        try:
            if key == findings.NO_DEVICE:
                self._look()
            else:
                self._clean(key)
                self._set(key, None)
        except exception.DeviceTrackError as error:
            LOG.warning('Devices of the service cannot be looked at: %s' if key == findings.NO_DEVICE else
                        'A device of the service stays reserved: %s', error)
            if key != findings.NO_DEVICE:
                self._set(key, error.reason if isinstance(error, exception.DeviceError) else str(error))
        finally:
            with self._lock.held():
                self._working.discard(key)

    def _set(self, key: DeviceKey, problem: str | None) -> None:
        with self._lock.held():
            self._problems.pop(key, None)
            if problem is not None:
                self._problems[key] = problem

    def _look(self) -> None:
        """Note the devices that the service may hand out, and queue those that wait."""
        assert self._service is not None
        with self._lock.held():
            self._given.clear()
            self._handed_out.clear()
        told = self._service.devices()
        with self._lock.held():
            self._told = told
            self._problems = {key: problem for key, problem in self._problems.items() if key in told}
        if self._driver is None:
            self._driver = self._host.driver.cleaner_of_service(lambda: {
                key: one.state == FREE and key not in self._given for key, one in self._told.items()})
        if self._driver is None or not told:
            return
        with self._lock.held():
            given = self._given.union(key for key, one in told.items() if one.state == USED)
        self._driver.note_given(given)
        self._driver.prepare(())
        inventory, lent = self._driver.get_inventory(), self._driver.lent()
        for unknown in inventory.unknown:       # never empty
            raise exception.CommandFailed('read the devices of the service', unknown.reason)
        there = {device.key: device for device in inventory.devices}
        with self._lock.held():
            self._there = there
            # What the service told may be from before their end.
            over = self._working | self._handed_out
        for key, one in sorted(told.items()):
            if key in over:
                continue
            self._set(key, self._judge(key, one, lent.get(key)))
        self._workers.start(len(self._waiting))

    def _judge(self, key: DeviceKey, one: Cleanable, is_lent: bool | None) -> str | None:
        """Note or queue one device. Return why it is not cleaned, or could not be after a guest; None if all is well.

        What a running guest does to the device is nobody's business here.
        """
        if one.state in (USED, UNKNOWN):
            return one.told if one.state == UNKNOWN else None
        if key not in self._there:
            return _AWAY
        if one.state == FREE:
            try:
                device = self._there[key]
                if self._noted.get(key) != device.details or not is_lent:
                    self._note(device)
                    self._noted[key] = device.details
            except exception.DeviceTrackError as error:
                return f'it could not be cleaned after its next guest: {getattr(error, "reason", error)}'
            return None
        if key not in self._orders and is_lent is not False:
            unhealthy = self._there[key].unhealthy
            return _BY_HAND if is_lent else _NOT_NOTED + (f'; {unhealthy}' if unhealthy else '')
        with self._lock.held():
            self._waiting[key] = None
            return self._problems.get(key)      # until this try has ended

    def _note(self, device: InventoryDevice) -> None:
        """Note durably which device the service hands out from now on. This ends its proof.

        :raises DriverError: it could not be cleaned after a guest, or somebody uses it, or another one is there
        """
        assert self._driver is not None
        self._driver.realize(self._assignment(device))

    def _clean(self, key: DeviceKey) -> None:
        """Clean a device that waits, and let the service hand it out.

        :raises DeviceTrackError: it stays reserved
        """
        assert self._service is not None
        service = self._service
        with self._lock.held():
            order = self._orders.pop(key, None)
            if key not in self._told or key not in self._there:         # a look has found that meanwhile
                raise exception.DeviceGone(*key, _AWAY)
            device, told = (self._there[key], self._told[key].told) if order is None else (order.device, order.told)

        def check(_assignment: object = None) -> None:
            if self._is_closed:
                raise exception.DeviceInUse(*key, 'the service stops')
            self._store.check_epoch()
            service.check_waits(key, told)

        check()
        if order is not None or not self._is_proven(device, told):
            self._prove(device, order, check)
            self._proven[key] = told
            check()
        service.hand_out(key, told)
        with self._lock.held():
            self._handed_out.add(key)
        LOG.info('%s of the service is clean, and handed out again', key)

    def _is_proven(self, device: InventoryDevice, told: str) -> bool:
        """Whether this process proved a device clean, and only the service did not answer then."""
        assert self._driver is not None
        return (self._proven.get(device.key) == told
                and self._driver.proof_of(device.key, device.details) is not None)

    def _prove(self, device: InventoryDevice, order: _Order | None, check: Callable[..., None]) -> None:
        """Clean a device, or take a word for it, and write its proof into the history.

        :raises DeviceTrackError: it is not proven clean
        """
        assert self._driver is not None
        driver, key = self._driver, device.key
        how, request_id = (vocabulary.WIPE, None) if order is None else (order.how, order.request_id)
        if order is not None and how == vocabulary.WIPE:
            self._note(device)                  # the operator means the device that is there now
        error = driver.prove([self._assignment(device)], how, check)[key]
        if error is not None:
            raise error
        if (proof := driver.proof_of(key, device.details)) is None:
            raise exception.NotProven(*key, 'somebody used it since it was cleaned')
        LOG.info('%s of the service had a guest and is clean now (%s)', key, how)
        wiped = driver.wipes_of([key]).get(key) or Wiped(None, 0.0, '')
        self._store.set_withheld((), events=[Event(
            self._host.uuid, *key, events.WIPED, now_ms(), request_id=request_id,
            details=wiped._replace(proof=proof).as_details(), serial=serial_of(device.details))])
        if how != vocabulary.WIPE:
            self._note(device)                  # nobody cleaned the noted one, and this may be another one

    def _assignment(self, device: InventoryDevice) -> DeviceAssignment:
        """The device in the form for drivers, without an owner, as one that was never made ready for a guest."""
        return DeviceAssignment.from_record(Record(
            self._host.uuid, device.kind, device.identifier, values.NOBODY, None, vocabulary.CURRENT,
            vocabulary.RELEASING, 0, '', 1, values.NOBODY, device.resource_class, device.parent, device.numa_node,
            device.details, 0, was_realized=False))
