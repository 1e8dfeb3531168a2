"""The object that a claim call returns."""

from __future__ import annotations

from types import TracebackType
from typing import Any
from typing import Self

from devicetrack import exception
from devicetrack import log
from devicetrack.claims import requests
from devicetrack.claims.failed_claims import FailedClaims
from devicetrack.claims.instance_fields import Fields
from devicetrack.claims.instance_fields import InstanceFields
from devicetrack.objects import InstanceResources

LOG = log.logger(__name__)


class Claim:
    """Devices that are held and recorded for an instance.

    A claim holds its devices from the call on, so it needs no ``with``. If an exception leaves a ``with`` block, the
    claim gives back the devices that it took, and the exception goes on. But if ``started`` failed in the block while
    the guest runs, the guest keeps its devices, and the audit records that it runs. ``migration`` is the migration of a
    claim for a move, else None. ``skipped`` lists the UUIDs of other hosts' providers that the allocations also named,
    with resource classes of this library. ``instance`` is the caller's object. ``fields`` has the values that the claim
    set on the instance, or would have set: see :class:`.InstanceFields`. ``claim_id`` is in the rows of the devices. In
    a forked child of the manager's process, a ``with`` block gives nothing back: the claim belongs to the parent.
    """

    __slots__ = ('resources', 'fields', 'claim_id', 'migration', 'skipped', '_failed', 'instance', '_instances',
                 '_over', '_request', '_since')

    def __init__(self, failed: FailedClaims, instances: InstanceFields, instance: Any, resources: InstanceResources,
                 fields: Fields, claim_id: str, migration: Any = None, over: bool | None = None,
                 skipped: tuple[str, ...] = ()) -> None:
        self.resources, self.fields, self.claim_id = resources, fields, claim_id
        self.migration, self.skipped = migration, skipped
        self._failed, self._instances, self.instance = failed, instances, instance
        self._over = not resources.assignments if over is None else over
        self._request, self._since = requests.present(), failed.starts.now()

    def keep(self) -> Self:
        """Set the claim's fields on the instance. If the instance refuses them, give the claim back."""
        with self:
            self._instances.set(self.instance, self.fields)
        return self

    def has_now(self, resources: InstanceResources, fields: Fields) -> Fields:
        """Set other devices on the claim and its instance, in place of those that the claim has."""
        self.resources, self.fields = resources, fields
        self._instances.set(self.instance, fields)
        return fields

    @property
    def is_over(self) -> bool:
        """Whether the claim has nothing to give back."""
        return self._over

    def abort(self) -> Fields:
        """Give back the devices of this claim, and none of a later claim. A second call does nothing.

        A later claim of the same migration stays as it is, with the migration context and the devices that it left.

        Devices that are being wiped in the background already, because another call ended the claim, stay held for
        that time, and the call does not wait for them.

        :returns: the fields that it set on the instance, with the values from before the claim
        :raises ForkedManager: this process is a child of the manager's, and the claim belongs to its parent
        :raises DeviceInUse: the guest is still there; its devices stay recorded and held
        :raises DriverError, StoreError: not all devices could be given back; the audit continues
        """
        self._failed.process.check()
        if self._over:
            return {}
        migration_uuid = None if self.migration is None else self.migration.uuid
        def then() -> Fields:
            self._over = True                   # also if the instance refuses the fields
            fields = take_off(self._instances, self.instance, self.fields, self.claim_id, migration_uuid)
            self._over = False                  # the caller may repeat the call until the devices are back
            return fields

        with requests.during(self._request):
            fields = self._failed.go_on(lambda failed: failed.abort(
                self.instance.uuid, self.claim_id, migration_uuid, takes=bool(self.resources.assignments), then=then))
        self._over = True
        return fields

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        if kind is None or self.is_over or not self._failed.process.is_this:
            return
        if self._failed.guest_may_run_unrecorded(self.instance.uuid, self._since):
            LOG.warning('The guest of instance %(instance)s runs, but that could not be recorded: claim %(claim)s '
                        'keeps its devices, and the audit records that the guest runs',
                        {'instance': self.instance.uuid, 'claim': self.claim_id})
            return
        try:
            self.abort()
        except exception.HostTakenOver as taken_over:
            LOG.warning('Claim %(claim)s keeps its devices until the service boots or releases instance %(instance)s: '
                        '%(error)s', {'claim': self.claim_id, 'instance': self.instance.uuid, 'error': taken_over})
        except Exception as not_given:
            if self._over:                      # only setting the fields failed, as it may have in the block
                return
            # The caller gets the error of the block; the audit handles this one.
            LOG.warning('Claim %(claim)s could not be given back, so the audit will try again: %(error)s',
                        {'claim': self.claim_id, 'error': not_given})


class Taking:
    """A claim call, from its first device to the claim that it returns.

    An exception from outside may come after the devices were recorded and before the caller has the claim. Then the
    next audit gives them back. ``claim_id`` is for the rows; set ``claim`` as soon as there is one.

    :param takes: whether the claim is for devices
    """

    __slots__ = ('claim_id', 'claim', '_failed', '_instance_uuid', '_migration_uuid', '_takes')

    def __init__(self, failed: FailedClaims, instance_uuid: str, claim_id: str, migration_uuid: str | None = None,
                 takes: bool = True) -> None:
        self._failed, self._instance_uuid, self._migration_uuid = failed, instance_uuid, migration_uuid
        self._takes = takes
        self.claim_id = claim_id
        self.claim: Claim | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        if kind is None or issubclass(kind, exception.DeviceTrackError):
            return
        if self.claim is None or not self.claim.is_over:
            self._failed.give_up(self._instance_uuid, self.claim_id, self._migration_uuid, self._takes)


def take_off(instances: InstanceFields, instance: Any, claimed: Fields, claim_id: str,
             migration_uuid: str | None) -> Fields:
    """Remove from the instance the devices that a claim took and gave back.

    :param claimed: the fields that the claim set, as far as they are known
    :returns: the fields that it set on the instance
    """
    after, now = Fields(), Fields(**{**claimed, **instances.read(instance)})
    resources, context = now.get('resources'), now.get('migration_context')
    # The instance may have the context of another migration: of an earlier one that nobody cleared, or of a later one.
    ours = [one for one in (context, claimed.get('migration_context'))
            if one is not None and one.migration_uuid == migration_uuid]
    before = ours[0].old_resources if ours else None
    if resources is not None:
        names_it = any(one.claim_id == claim_id for one in resources)
    else:
        names_it = 'resources' not in now and (migration_uuid is None or before is not None)
    if names_it:
        after['resources'] = before
    if migration_uuid is not None and (context is None or context in ours):
        after['migration_context'] = None
    instances.set(instance, after)
    return after
