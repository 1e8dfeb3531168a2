"""The libvirt driver's work to make devices clean and to prove it: wipe, read, record proofs and take them back.

The caller of each step has the device's lock. A proof is taken back before a device changes, and recorded after the
last byte of the device was checked.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Container
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import threading
import time
from typing import Final

from devicetrack import exception
from devicetrack import filelock
from devicetrack import log
from devicetrack import ownfiles
from devicetrack import vocabulary
from devicetrack.objects import details
from devicetrack.objects import DeviceAssignment
from devicetrack.objects.event import Wiped
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Usage
from devicetrack.virt.driver import check_free
from devicetrack.virt.driver import Confirm
from devicetrack.virt.driver import is_of_others
from devicetrack.virt.driver import NO_PROOF
from devicetrack.virt.driver import obstacle
from devicetrack.virt.driver import WRITTEN
from devicetrack.virt.libvirt import proofs
from devicetrack.virt.libvirt.kinds import api
from devicetrack.virt.libvirt.kinds import installed

LOG = log.logger(__name__)

NO_KIND: Final = 'no device kind of this name is installed, or [devicetrack] device_kinds does not name it'

NO_BYTES: Final = 'its kind stores no data, so it needs no proof: devicetrack-manage device admit {} makes it free'

_Key = tuple[str, str]
_Held = tuple[DeviceAssignment, api.DeviceKind, filelock.FileLock]
_Results = dict[DeviceKey, exception.DriverError | None]
_Obstacle = exception.DeviceInUse | exception.UsersUnknown | None


class Proving:
    """Proves the devices of one host clean.

    :param kinds: by name
    :param hold: holds the locks of one device, waiting at most so many seconds; a lock that cannot be used is an error
        of this class
    :param usage: asks the hypervisor which domains name devices; its argument are the kinds that must be able to tell
    :param part_in_use: finds the domain that has a part of a device, or a thing that contains it
    :param reached: finds those of some proven devices on which a guest that gets one device can write, because one of
        the two contains the other, or because nothing tells that
    :param trusts: whether devices without a proof count as clean
    """

    def __init__(self, kinds: Mapping[str, api.DeviceKind], known: proofs.Proofs,
                 hold: Callable[[DeviceAssignment, api.DeviceKind, float, type[exception.DeviceError]],
                                contextlib.AbstractContextManager[filelock.FileLock]],
                 usage: Callable[[Container[str]], Usage],
                 part_in_use: Callable[[DeviceAssignment, Usage], _Obstacle],
                 reached: Callable[[Collection[DeviceAssignment], Collection[_Key]], Collection[_Key]],
                 trusts: bool) -> None:
        self._kinds, self._proofs, self._hold, self._usage = kinds, known, hold, usage
        self._part_in_use, self._reached, self._trusts = part_in_use, reached, trusts
        self._wipes: dict[DeviceKey, Wiped] = {}       # what the last call that may wipe a device wiped
        self._shown: dict[DeviceKey, Mapping[DeviceKey, str]] = {}     # the evidence at the end of that wipe
        self._guests, self._giving = 0, threading.Lock()       # how often a guest got devices
        self._reading: list[threading.Event] = []       # one for each device that is being read; setting it ends that

    def check_free(self, assignment: DeviceAssignment, kind: api.DeviceKind) -> None:
        """As :func:`devicetrack.virt.driver.check_free`, with the errors of :meth:`.VirtDriver.realize`."""
        def check() -> None:
            installed.ask(kind, 'check_free', assignment)
            if self._is_written(assignment, kind):
                raise exception.NotProven(*assignment.key, WRITTEN)
            if self._lost_its_proof(assignment, kind):
                raise exception.NotProven(*assignment.key, NO_PROOF)

        try:
            check_free(assignment, self._is_proven(assignment), lambda: self._usage({kind.name}), self._obstacle, check,
                       self.take_back)
        except exception.UsersUnknown:
            raise
        except exception.UnclaimFailed as failed:       # kinds share these questions with their unclaim
            raise exception.RealizeFailed(*assignment.key, failed.reason) from failed

    def used(self, kind: api.DeviceKind, names: Collection[str]) -> Collection[str]:
        """Find those devices of a kind that are proven clean, and that somebody has open or wrote to since.

        :raises DriverError: that cannot be read
        """
        proven = [name for name in self._proofs.evidence(kind.name) if name in names]
        return {*installed.some_of(kind, 'opened', proven, proven), *self._written(kind, proven)} if proven else ()

    def _written(self, kind: api.DeviceKind, names: Collection[str], must: bool = False) -> Collection[str]:
        """Find those devices of a kind to which somebody may have written since they were proven clean.

        What the host shows of the others may begin anew, for example with a boot. Then their proofs get it.

        :param must: whether a device counts as written if nothing tells now what told before
        :raises DriverError: that cannot be read
        """
        before = {name: text for name, text in self._proofs.evidence(kind.name).items() if name in names}
        if not before:
            return ()
        now = installed.evidence(kind, list(before))
        # Proofs of earlier releases tell nothing yet: from now on they do.
        found = {name for name, text in now.items() if before[name] and installed.is_written(kind, before[name], text)}
        begun = {name: (before[name], text) for name, text in now.items() if text != before[name]}
        try:
            self._proofs.renew(kind.name, {name: one for name, one in begun.items() if name not in found})
        except OSError as error:                # the next look compares with what the proof has
            LOG.warning('What shows writes to devices of kind %s cannot be noted: %s', kind.name, error)
        return found | {name for name, text in before.items() if must and text and name not in now}

    def _is_written(self, assignment: DeviceAssignment, kind: api.DeviceKind) -> bool:
        return bool(self._written(kind, (assignment.identifier,), must=True))

    def _is_proven(self, assignment: DeviceAssignment) -> bool:
        return self._proofs.how(assignment.key, details.to_text(assignment.details)) is not None

    def _lost_its_proof(self, assignment: DeviceAssignment, kind: api.DeviceKind) -> bool:
        """Whether a device that stores data has no proof, though it had one and went to no guest of ours since.

        What is on it is somebody else's then.
        """
        return kind.keeps_bytes and not self._trusts and not self._proofs.is_given(assignment.key) \
            and not self._is_proven(assignment)

    def give_back(self, assignment: DeviceAssignment, kind: api.DeviceKind, lock: filelock.FileLock,
                  usage: Usage) -> exception.DriverError | None:
        """Take one device back, if nobody uses it. A device that was never made ready for a guest is left as it is.

        After this the device is clean; :meth:`proven` records that. If others use or changed a device that was never
        made ready, or it has lost its proof, what is on it is theirs: the answer is NotProven.
        """
        key = assignment.key
        self._wipes.pop(key, None)
        self._shown.pop(key, None)
        try:
            error: exception.DeviceError | None = self._obstacle(assignment, usage, assignment.instance_uuid)
            never_ready = kind.keeps_bytes and assignment.was_only_claimed and (
                key in self.proven_keys() or self._lost_its_proof(assignment, kind))
            try:
                if error is None and self._is_untouched(assignment, kind):
                    return None
            except exception.DeviceError as failed:
                error = failed
            of_others = is_of_others(key, usage, assignment.instance_uuid)
            if never_ready and (error is None or isinstance(error, exception.DeviceInUse) and of_others):
                return exception.NotProven(
                    *key, 'it is not as it was when it was proven' if error is None else error.reason)
            if error is not None:
                # Its user may write to it, and be gone at the next try.
                self.take_back((key,), () if of_others or usage.unknown else (key,))
                return error
        except exception.DriverError as failed:
            return exception.UnclaimFailed(*key, str(failed))
        return self.unclaim(assignment, kind, lock)

    def _obstacle(self, assignment: DeviceAssignment, usage: Usage, owner: str | None = None) -> _Obstacle:
        """As :func:`.driver.obstacle`, and also for whoever has a part of a device, or a thing that contains it."""
        return obstacle(assignment.key, usage, owner) or self._part_in_use(assignment, usage)

    def _is_untouched(self, assignment: DeviceAssignment, kind: api.DeviceKind) -> bool:
        """Whether a device was claimed and never made ready for a guest, and is as clean as it was then.

        The row and the proof must both say so. Either may be older than a guest that had the device: the row in a store
        that was restored, the proof in a state directory that another manager did not use. The proof is kept.

        :raises DriverError: the device cannot be given back
        """
        if not (kind.keeps_bytes and assignment.was_only_claimed and self._is_clean(assignment, kind)):
            return False
        with installed.mistakes(kind, 'is_untouched'):
            untouched = kind.is_untouched(assignment) is True
        return untouched and not self._is_written(assignment, kind)

    def _is_clean(self, assignment: DeviceAssignment, kind: api.DeviceKind) -> bool:
        how = self._proofs.how(assignment.key, details.to_text(assignment.details))
        return how is not None and (how != vocabulary.NOTHING_KEPT or self._keeps_nothing(assignment, kind))

    @staticmethod
    def _keeps_nothing(assignment: DeviceAssignment, kind: api.DeviceKind) -> bool:
        with installed.mistakes(kind, 'keeps_nothing'):
            return kind.keeps_nothing(assignment) is True

    def proven(self, assignments: Iterable[DeviceAssignment], usage: Usage) -> _Results:
        """Record that devices that were taken back are clean, unless somebody uses them by now.

        :returns: an error for each device that cannot be given to somebody else, and None for the others
        """
        results: _Results = {}
        clean = []
        for assignment in assignments:
            key = assignment.key
            results[key] = self._obstacle(assignment, usage, assignment.instance_uuid)
            if results[key] is None:
                clean.append(assignment)
        try:
            self.take_back(key for key, error in results.items() if error is not None)
        except exception.DriverError as failed:
            results.update((key, exception.UnclaimFailed(*key, str(failed)))
                           for key, error in results.items() if error is not None)
        return results | self.wiped(clean)

    def unclaim(self, assignment: DeviceAssignment, kind: api.DeviceKind,
                lock: filelock.FileLock) -> exception.DriverError | None:
        """Clean or remove one device that nobody uses; :meth:`wiped` records that."""
        key = assignment.key
        try:
            # Usually the device has no proof. A state directory that is older than the guests may have one.
            self.take_back((key,), (key,))      # a wipe that ends half-way goes on with the next try
            began = time.monotonic()
            installed.ask(kind, 'unclaim', assignment, lock.fd)
            if kind.keeps_bytes:
                # The wipes of other devices may take hours before this one is recorded as clean.
                self._shown[key] = self._evidence((assignment,))
                self._wipes[key] = Wiped(getattr(assignment.details, 'size_bytes', None), time.monotonic() - began,
                                         vocabulary.WIPED)
        except exception.DeviceError as failed:
            return failed
        except exception.DriverError as failed:
            return exception.UnclaimFailed(*key, str(failed))
        return None

    def check_unused(self, assignment: DeviceAssignment, kind: api.DeviceKind) -> exception.DriverError | None:
        """Ask the kind of a device that was taken back again whether anybody uses it."""
        key = assignment.key
        try:
            try:
                installed.ask(kind, 'check_unused', assignment)
            except exception.DriverError:
                self.take_back((key,))          # its user may write to it, and be gone at the next try
                raise
        except exception.DeviceError as failed:
            return failed
        except exception.DriverError as failed:
            return exception.UnclaimFailed(*key, str(failed))
        return None

    def wipes_of(self, keys: Iterable[DeviceKey]) -> Mapping[DeviceKey, Wiped]:
        """As :meth:`devicetrack.virt.driver.VirtDriver.wipes_of`."""
        return {key: wiped for key in keys if (wiped := self._wipes.get(key)) is not None}

    def wiped(self, assignments: Iterable[DeviceAssignment]) -> _Results:
        """Record that devices that were taken back, and that nobody has used since, are clean.

        :returns: an error for each device that has no proof now
        """
        results: _Results = {}
        clean: list[DeviceAssignment] = []
        for one in assignments:
            kind = self._kinds[one.kind]
            try:
                if kind.keeps_bytes and one.key in self._wipes:
                    clean.append(one)
                elif kind.keeps_bytes and not (self._is_clean(one, kind) and not self._is_written(one, kind)):
                    results[one.key] = exception.UnclaimFailed(*one.key, WRITTEN)
            except exception.DriverError as failed:
                results[one.key] = exception.UnclaimFailed(*one.key, str(failed))
        try:
            self._record(clean, vocabulary.WIPED,
                         {key: text for one in clean for key, text in self._shown[one.key].items()})
        except exception.DriverError as failed:
            results |= {one.key: exception.UnclaimFailed(*one.key, str(failed)) for one in clean}
        return results

    def take_back_for_guest(self, assignments: Collection[DeviceAssignment]) -> None:
        """Forget durably that devices are clean which a guest is about to get, or whose bytes it can reach with them.

        A kind finds the devices of its own, and what contains what finds those of the other kinds.

        :raises CommandFailed: they may still count as clean
        :raises DriverError: nothing tells which those are
        """
        with self._giving:
            self._guests += 1
        keys = {assignment.key for assignment in assignments}
        keys.update(map(DeviceKey._make, self._reached(assignments, self.proven_keys())))
        for name in {assignment.kind for assignment in assignments}:
            kind = self._kinds.get(name)
            if kind is not None and kind.keeps_bytes and (proven := self._proven(name)):
                owned = [details.to_text(one.details) for one in assignments if one.kind == name]
                reached = installed.some_of(kind, 'within_reach', proven, owned, proven)
                keys.update(DeviceKey(name, one) for one in reached)
        self.take_back(keys, {assignment.key for assignment in assignments})

    def _no_proof(self, error: OSError) -> exception.DriverError:
        return exception.CommandFailed('use the proofs that devices are clean',
                                       ownfiles.reason(error, self._proofs.path))

    def _proven(self, kind: str) -> Mapping[str, str]:
        try:
            return self._proofs.of_kind(kind)
        except OSError as error:
            raise self._no_proof(error) from error

    def proven_keys(self) -> Collection[_Key]:
        """The proven devices of all kinds."""
        try:
            return self._proofs.keys()
        except OSError as error:
            raise self._no_proof(error) from error

    def take_back(self, keys: Iterable[DeviceKey], given: Iterable[DeviceKey] = ()) -> None:
        """Forget durably that devices are clean.

        :param given: those of them on which our own guests write, or may have written
        :raises CommandFailed: they may still count as clean
        """
        try:
            self._proofs.take_back(keys, given)
        except OSError as error:
            raise self._no_proof(error) from error

    def _evidence(self, assignments: Collection[DeviceAssignment]) -> dict[DeviceKey, str]:
        """What the host shows of writes to devices now.

        :raises DriverError: the host cannot be read
        """
        evidence: dict[DeviceKey, str] = {}
        for name in {one.kind for one in assignments}:
            told = installed.evidence(self._kinds[name], [one.identifier for one in assignments if one.kind == name])
            evidence |= {DeviceKey(name, one): text for one, text in told.items()}
        return evidence

    def _record(self, assignments: Iterable[DeviceAssignment], how: str, evidence: Mapping[DeviceKey, str]) -> None:
        """Record proofs.

        :param evidence: from before the look that found the devices clean, or from the end of their wipe. Then nobody
            wrote in between without a trace
        :raises CommandFailed: they are not recorded
        :raises DeviceKindFailed: a kind made a mistake
        """
        proven: dict[str, dict[DeviceKey, str]] = {how: {}, vocabulary.NOTHING_KEPT: {}}
        for one in assignments:
            kept = not self._keeps_nothing(one, self._kinds[one.kind])
            proven[how if kept else vocabulary.NOTHING_KEPT][one.key] = details.to_text(one.details)
        try:
            for each, devices in proven.items():
                self._proofs.record(devices, each, evidence)
        except OSError as error:
            raise self._no_proof(error) from error

    # -- devices without an owner ---------------------------------------------------------------------------------

    def stop(self) -> None:
        """As :meth:`devicetrack.virt.driver.VirtDriver.stop_proving`."""
        for stop in list(self._reading):        # one step, which tuple() is not
            stop.set()

    def prove(self, assignments: Sequence[DeviceAssignment], how: str, confirm: Confirm | None = None) -> _Results:
        """As :meth:`devicetrack.virt.driver.VirtDriver.prove`."""
        results: _Results = {}
        with contextlib.ExitStack() as locks:
            held: list[_Held] = []
            for assignment in assignments:
                key, kind = assignment.key, self._kinds.get(assignment.kind)
                if kind is None or not kind.keeps_bytes:
                    results[key] = exception.NotProven(*key, NO_KIND if kind is None else NO_BYTES.format(key))
                    continue
                try:
                    held.append((assignment, kind, locks.enter_context(
                        self._hold(assignment, kind, 0.0, exception.UnclaimFailed))))
                except exception.DriverError as error:
                    results[key] = error
            if how == vocabulary.BLANK:
                results |= self._prove_blank(held, confirm)
            else:
                for one in held:
                    results[one[0].key] = (
                        self._wipe_one(*one, confirm) if how == vocabulary.WIPE else
                        self._take_word(*one[:2], how, confirm) if how.startswith(vocabulary.WORD_OF) else
                        self._read_one(*one, confirm))
            for assignment, _kind, lock in held:
                # After an error a child may still have the device, and keeps the lock until it ends.
                if results[assignment.key] is None:
                    lock.unlock()
        return results

    def _prove_blank(self, held: Sequence[_Held], confirm: Confirm | None) -> _Results:
        keys = [assignment.key for assignment, _kind, _lock in held]
        results: _Results = {key: exception.NotProven(*key, 'it has to be read') for key in keys}
        blank: list[DeviceAssignment] = []
        evidence: dict[DeviceKey, str] = {}
        for kind in {kind.name: kind for _assignment, kind, _lock in held}.values():
            ours = [assignment for assignment, of_kind, _lock in held if of_kind is kind]
            try:
                evidence |= self._evidence(ours)
                names = installed.some_of(kind, 'is_blank', {one.identifier for one in ours}, ours)
                blank += [assignment for assignment in ours if assignment.identifier in names]
            except exception.DriverError as error:
                # The devices of the other kinds are looked at all the same.
                LOG.warning('Devices that nothing proves clean cannot be looked at: %s', error)
                results |= {assignment.key: error for assignment in ours}
        if blank:
            usage = self._usage({assignment.kind for assignment in blank})
            results |= {one.key: self._obstacle(one, usage) for one in blank}
            clean = [one for one in blank if results[one.key] is None]
            if (failed := self._record_confirmed(clean, vocabulary.BLANK, evidence, confirm)) is not None:
                raise failed
        return results

    def _wipe_one(self, assignment: DeviceAssignment, kind: api.DeviceKind, lock: filelock.FileLock,
                  confirm: Confirm | None) -> exception.DriverError | None:
        key = assignment.key
        error: exception.DriverError | None = self._obstacle(assignment, self._usage({kind.name}))
        if error is None:
            _confirmed(assignment, confirm)     # after the answer of the hypervisor, which may take long
            error = self.unclaim(assignment, kind, lock) or self._obstacle(assignment, self._usage({kind.name}))
        return error or self.wiped((assignment,)).get(key)

    def _take_word(self, assignment: DeviceAssignment, kind: api.DeviceKind, how: str,
                   confirm: Confirm | None) -> exception.DriverError | None:
        key = assignment.key
        try:
            evidence = self._evidence((assignment,))
            installed.ask(kind, 'check_free', assignment)
            # The next reading of the stock would remove the proof again.
            if assignment.identifier in installed.stock(kind).written:
                return exception.DeviceInUse(*key, 'the host uses it, or has given it the driver for guests: end that '
                                                   'first, because it may be written to meanwhile')
            error = self._obstacle(assignment, self._usage({kind.name}))
        except exception.DriverError as failed:
            return failed
        return error or self._record_confirmed((assignment,), how, evidence, confirm)

    def _read_one(self, assignment: DeviceAssignment, kind: api.DeviceKind, lock: filelock.FileLock,
                  confirm: Confirm | None) -> exception.DriverError | None:
        try:
            evidence = self._evidence((assignment,))
        except exception.DriverError as failed:
            return failed
        return self._read_through(assignment, kind, lock, evidence) or self._record_confirmed(
            (assignment,), vocabulary.READ, evidence, confirm)

    def _record_confirmed(self, assignments: Collection[DeviceAssignment], how: str,
                          evidence: Mapping[DeviceKey, str], confirm: Confirm | None) -> exception.DriverError | None:
        """As :meth:`_record`, unless the caller objects. Its error goes on to it.

        A guest that gets what contains a device has no lock of that device. So a proof is recorded only if no guest got
        a device since the caller was asked: that guest's start would have found no proof to take back.
        """
        while True:
            before = self._guests
            for one in assignments:
                _confirmed(one, confirm)
            failed = None
            with self._giving:
                if is_over := self._guests == before:
                    try:
                        self._record(assignments, how, evidence)
                    except exception.DriverError as error:
                        failed = error
            if is_over:
                return failed

    def _read_through(self, assignment: DeviceAssignment, kind: api.DeviceKind, lock: filelock.FileLock,
                      before: Mapping[DeviceKey, str]) -> exception.DriverError | None:
        stop = threading.Event()
        self._reading.append(stop)
        try:
            error = self._obstacle(assignment, self._usage({kind.name}))
            if error is None:
                installed.ask(kind, 'read_through', assignment, lock.fd, stop)
                if before != self._evidence((assignment,)):
                    return exception.NotProven(*assignment.key, 'somebody wrote to it while it was read')
                error = self._obstacle(assignment, self._usage({kind.name}))       # reading takes long
        except exception.DriverError as failed:
            return failed
        finally:
            self._reading.remove(stop)
        return error


def _confirmed(assignment: DeviceAssignment, confirm: Confirm | None) -> None:
    if confirm is not None:
        confirm(assignment)
