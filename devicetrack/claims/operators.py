"""What operators ask of a host through its manager: which devices it may hand out."""

from __future__ import annotations

from collections.abc import Callable

from devicetrack.claims import arguments
from devicetrack.claims import public_calls
from devicetrack.claims.running import Running
from devicetrack.claims.withheld import Withheld
from devicetrack.engine.withholding import Target
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Word


@public_calls.ending_starts
class Operator:
    """The calls of operators, ``operator`` of a :class:`~devicetrack.claims.manager.ClaimManager`.

    As every call of the manager, each checks its arguments first, and raises ``NotReady`` before ``init_host``.
    """

    def __init__(self, started: Callable[[], Running], call_failed: Callable[[BaseException], None]) -> None:
        self._started, self._call_failed = started, call_failed

    def cordon(self, kind: str, name: str, parent: bool = False, reason: str = '') -> Withheld:
        """Withhold a device or, with ``parent``, all devices that a parent has or could make.

        An instance that has such a device keeps it. The cordon lasts until :meth:`uncordon`, also over restarts and
        while the device is away. Idempotent. A request to uncordon the target that waits for the next audit is older,
        and is refused. A free device that is cordoned is not wiped until a call of :meth:`admit` after the cordon; a
        wipe that has begun continues.

        :returns: why the target is withheld, and the rows of the instances that still have such devices; ``warning``
            lists the free devices whose wipes continue
        :raises BadRequest: this host has no such device or parent
        :raises NothingWritten: it is not cordoned
        :raises OutcomeUnknown: it is cordoned, and the next audit makes sure that the store has it
        """
        return self._started().operator_requests.cordon_now(Target.named(kind, name, parent), reason)

    def uncordon(self, kind: str, name: str, parent: bool = False) -> Withheld:
        """End a cordon. Idempotent. Other reasons to withhold the device stay.

        A request to cordon the target that waits for the next audit is older, and is refused.

        :raises BadRequest: it is not cordoned, and this host has no such device or parent
        :raises StoreError: it stays cordoned
        """
        return self._started().operator_requests.uncordon_now(Target.named(kind, name, parent))

    def admit(self, kind: str, identifier: str, wipe: bool = False, word: Word | None = None) -> Withheld:
        """Make a device available again that was forgotten or retired.

        If the device stores data and is not proven clean, the manager then reads all of it in the background first.

        :param wipe: wipe a device that was forgotten or retired, or is unproven, whatever is on it. The wipe runs in
            the background, and the device is admitted when it is proven clean. A restart drops the request
        :param word: a person's word that such a device is clean. It is the device's proof until its next use, and is in
            the history
        :raises BadRequest: it was neither forgotten nor retired and, with ``wipe`` or ``word``, is not unproven either;
            or it is to be wiped, and only a person can clean it; or the word has no reason
        :raises NotAdmitted: the host does not have it, somebody owns or uses it, or one of these is unknown. With
            ``wipe`` and ``word`` also while the host is report-only
        :raises HypervisorUnreachable, StoreError: no answer; it stays withheld
        """
        host = self._started()
        key = DeviceKey(arguments.check_name('kind', kind), arguments.check_name('name', identifier))
        host.store.check_epoch()                # a requested wipe begins before anything is written
        if host.service_cleaning.has(key):
            return host.service_cleaning.admit(key, wipe, word)
        return host.unproven.admit(key, wipe, word)

    def withheld(self) -> list[Withheld]:
        """List every withheld device and parent, the reasons, and the instances that still have such devices."""
        return self._started().withheld.all()

    def retire(self, kind: str, identifier: str, instance_uuid: str, reason: str = '') -> Withheld:
        """End the row of a device that is being released and cannot be wiped.

        The device is withheld as retired until :meth:`admit`, also over restarts. Nothing is wiped. Idempotent.

        :param instance_uuid: the device's owner, which confirms that the caller means this device
        :returns: why the device is withheld; ``changed`` is False if it was retired already
        :raises NotAssigned: the device has no owner and is not retired
        :raises RowStays: it is not being released, has another owner or is being wiped, a domain uses it, one of these
            is unknown, or the host is report-only; nothing was changed
        :raises BadRequest: a name is not a string that UTF-8 can write, ``instance_uuid`` is not a UUID, or ``reason``
            is not one printable line
        :raises HypervisorUnreachable, StoreError: no answer; it may be withheld as retired, and its row may remain
        """
        host = self._started()
        key = DeviceKey(arguments.check_name('kind', kind), arguments.check_name('identifier', identifier))
        return host.repairs.retire(key, arguments.check_uuid('instance_uuid', instance_uuid), reason)
