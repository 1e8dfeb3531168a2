"""Answers the claim manager's questions about instances and migrations from Nova's database, by its conductor."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from collections.abc import Set
import contextlib
from typing import Any
from typing import Final

from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from nova.compute import vm_states
from nova.objects import fields

from devicetrack.nova import pci_functions
from devicetrack.nova import resources
from devicetrack.objects.values import Holding

# How many instances one message to the conductor asks for.
_AT_ONCE: Final = 500
# How many of the last ended migrations away from here are told: their source may have missed the end.
_TOLD: Final = 200
# Statuses of migrations that are under way, however long ago they began.
_UNDER_WAY: Final = ('queued', 'accepted', 'preparing', 'pre-migrating', 'running', 'migrating', 'post-migrating',
                     'finished', 'confirming', 'reverting')
_COMPLETED: Final = 'completed'
# Statuses of moves that brought the instance to their destination for good.
OVER: Final = (_COMPLETED, 'confirmed', 'done')
# A migration with such a status may have left the only data of its instance here, however long ago.
_ERROR: Final = ('error',)
# The states of instances whose guests have all their PCI functions, even if they are off.
_SETTLED: Final = (vm_states.ACTIVE, vm_states.PAUSED, vm_states.STOPPED)
# The filters of instances that are not deleted. Soft-deleted ones keep their devices, because users may restore them,
# but Nova leaves them out unless it is asked for them.
NOT_DELETED: Final[Mapping[str, bool]] = {'deleted': False, 'soft_deleted': True}


class NovaService:
    """The :class:`~devicetrack.claims.service.MovingService` of one compute host.

    It does not report instances that were evacuated from here: when the service starts, Nova itself destroys their
    guests, with their disks and ports, and reports the instances as elsewhere. Nor does it report the hidden copy of an
    instance that a resize from another cell makes in this cell. Nova removes the copy with its migration if that fails.
    Then it has no record of the instance, as after an operator has archived or purged deleted instances.

    :param functions: returns the PCI functions that Nova hands out itself; None if they are not read
    """

    def __init__(self, host: str, functions: Callable[[], pci_functions.PCIFunctions | None] = lambda: None) -> None:
        self._host, self._functions = host, functions

    def instances(self, uuids: Set[str]) -> Mapping[str, str]:
        found = {one.uuid: self._state(one) for one in _instances(uuids)}
        missing = uuids - found.keys()
        if missing and self._is_known():
            missing -= {one.uuid for one in _instances(missing, hidden=True)}
            found.update(dict.fromkeys(missing, 'forgotten'))
        return {uuid: state for uuid, state in found.items() if state is not None}

    def _is_known(self) -> bool:
        """Whether Nova knows this host. A database that does not says nothing about the instances of the host."""
        try:
            return bool(objects.ComputeNodeList.get_all_by_host(nova_context.get_admin_context(), self._host))
        except nova_exception.ComputeHostNotFound:
            return False

    def _state(self, instance: Any) -> str | None:
        """Return where an instance is; None while Nova works on one that is on no host."""
        if instance.deleted:
            return 'deleted'
        if instance.host is not None:
            return 'here' if instance.host == self._host else 'elsewhere'
        if instance.task_state is not None:
            return None                         # it is being built, or unshelved: it gets its host after its devices
        if instance.vm_state == vm_states.SHELVED_OFFLOADED:
            return 'offloaded'
        return 'elsewhere' if instance.vm_state == vm_states.ERROR else None

    def migrations(self, uuids: Sequence[str]) -> Mapping[str, Any]:
        context = nova_context.get_admin_context(read_deleted='yes')
        get = objects.MigrationList.get_by_filters
        found = [get(context, {'source_compute': self._host, 'status': [*_UNDER_WAY, *_ERROR]}),
                 get(context, {'source_compute': self._host, 'status': list(OVER)}, sort_keys=['updated_at'],
                     sort_dirs=['desc'], limit=_TOLD),
                 *(get(context, {'uuid': some}) for some in batches(sorted(uuids)))]
        told = {one.uuid: one for answer in found for one in answer}
        for one in self._moved_after_all(told.values()):
            one.status = _COMPLETED             # only in this copy, which is never saved
        return told

    def _moved_after_all(self, told: Collection[Any]) -> list[Any]:
        """Return those live migrations away from here that failed only after the guest had left.

        The source waits for the destination to finish, perhaps in vain. Then Nova gives the instance its new host, and
        the migration stays in error for good. An instance gets a new host only by a move that leaves its old one, or by
        being shelved. So if no newer move left from here, the end of this migration brings nothing back here.
        """
        newest: dict[str, Any] = {}
        for one in told:
            if one.source_compute == self._host and (
                    one.instance_uuid not in newest or newest[one.instance_uuid].id < one.id):
                newest[one.instance_uuid] = one
        failed = {uuid: one for uuid, one in newest.items() if one.status in _ERROR
                  and one.migration_type == fields.MigrationType.LIVE_MIGRATION and one.dest_compute != self._host}
        context = nova_context.get_admin_context()
        return [failed[instance.uuid] for some in batches(sorted(failed))
                for instance in objects.InstanceList.get_by_filters(context, {'uuid': some}, expected_attrs=[])
                if instance.host not in (None, self._host)]

    def holdings(self) -> list[Holding] | None:
        functions = self._functions()
        if functions is None:
            return None
        found = functions.all()
        settled = self._settled(sorted({one.instance_uuid for one in found if one.instance_uuid is not None}))
        return [Holding('pci', one.address, one.instance_uuid,
                        one.instance_uuid in settled and one.status == fields.PciDeviceStatus.ALLOCATED,
                        one.dev_type == fields.PciDeviceType.VDPA or bool((one.tags or {}).get('physical_network')),
                        one.tags is not None, one.card_serial) for one in found]

    def _settled(self, uuids: Sequence[str]) -> set[str]:
        """Find the instances here whose guests have all their devices, as far as Nova says: nothing of it is under way.

        Nova takes the functions from a guest that it suspends, and keeps those of both ends while a guest moves.
        """
        context, found = nova_context.get_admin_context(), set()
        for some in batches(uuids):
            for instance in objects.InstanceList.get_by_filters(
                    context, {'uuid': some, 'host': self._host, **NOT_DELETED}, expected_attrs=[]):
                if instance.task_state is None and instance.vm_state in _SETTLED:
                    found.add(instance.uuid)
        return found

    def fail_migration(self, migration_uuid: str) -> None:
        migration = objects.Migration.get_by_uuid(nova_context.get_admin_context(), migration_uuid)
        migration.status = 'error'
        migration.save()


def _instances(uuids: Set[str], **filters: bool) -> Iterator[Any]:
    """Yield those of these instances that Nova has a record of, also if they were deleted."""
    context = nova_context.get_admin_context(read_deleted='yes')
    for some in batches(sorted(uuids)):
        yield from objects.InstanceList.get_by_filters(context, {'uuid': some, **filters}, expected_attrs=[])


def record_paths(host: str, uuids: Collection[str], paths: Mapping[str, str]) -> None:
    """Write the paths of this boot to Nova's record of the namespaces of instances.

    Nova alone takes a namespace with another path for another namespace, and never corrects a path. So after a boot
    that changed the paths it would give a namespace that an instance has to the next one.

    :param uuids: the instances, also those that are soft-deleted; those that are not on the host stay as they are
    :param paths: of the namespaces of the host, by name
    :raises NovaException, MessagingException: no answer, for example
    """
    context = nova_context.get_admin_context()
    for some in batches(sorted(uuids)):
        for instance in objects.InstanceList.get_by_filters(
                context, {'uuid': some, **NOT_DELETED}, expected_attrs=['resources']):
            changed = resources.at_paths(instance.resources, paths) if instance.host == host else None
            if changed is not None:
                instance.resources = changed
                with contextlib.suppress(nova_exception.InstanceNotFound):      # it was deleted meanwhile
                    instance.save()


def last_move(context: Any, instance_uuid: str, **filters: str) -> Any:
    """Return the last migration of an instance that passes the filters; None for none."""
    return next(iter(moves(context, instance_uuid, **filters)), None)


def moves(context: Any, instance_uuid: str, **filters: str) -> list[Any]:
    """Return the migrations of an instance that pass the filters, the newest first.

    The migrations of an instance that was deleted are deleted too.
    """
    return sorted(objects.MigrationList.get_by_filters(context, {'instance_uuid': instance_uuid, **filters}),
                  key=lambda one: one.id, reverse=True)


def batches(uuids: Sequence[str]) -> Iterator[list[str]]:
    """Yield the UUIDs in batches that fit into a message to the conductor."""
    for first in range(0, len(uuids), _AT_ONCE):
        yield list(uuids[first:first + _AT_ONCE])
