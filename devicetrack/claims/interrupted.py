"""Goes on with what was interrupted: releases, moves, guests that were evacuated, the host's own boot.

By the manager's own steps: whatever is done here is done by the code that does it first. What cannot be done now is
logged and waits for the next audit.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Sequence
from typing import Any
from typing import Final
from typing import TYPE_CHECKING

from oslo_log import log as logging

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.claims import doubt
from devicetrack.claims import looking
from devicetrack.engine import moves
from devicetrack.engine import reconcile
from devicetrack.engine.reconcile import Views
from devicetrack.objects import DeviceAssignment
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Inventory
from devicetrack.objects.values import Record
from devicetrack.objects.values import Usage

if TYPE_CHECKING:
    from devicetrack.claims.steps import Steps

LOG = logging.getLogger(__name__)

NO_INVENTORY: Final = Inventory((), (), frozenset())


def waits(manager: Steps, views: Views) -> bool:
    """Whether :func:`go_on` may have anything to do."""
    return (manager.boot_id != manager.driver.boot_id() or hasattr(manager.service, 'evacuated_from_here')
            or any(_work_waits(rows, views) for rows in looking.by_instance(views.records)))


def go_on(manager: Steps, views: Views) -> bool:
    """Finish what was interrupted, settle what runs and what moved, give back what belongs to instances that are over.

    :returns: whether anything was tried
    """
    tried = _after_boot(manager, views)
    if tried:
        # With what is new of devices, which is no sign that anybody else worked on them.
        views = views._replace(records=tuple(manager.store.records(manager.host_uuid)))
    if manager.report_only is not None:
        return tried
    evacuated = _remove_evacuated(manager, views)
    for rows in looking.by_instance(views.records):
        instance_uuid = rows[0].instance_uuid
        if instance_uuid in evacuated or not _work_waits(rows, views):
            continue
        with doubt.if_idle(manager, instance_uuid) as idle:
            if not idle:
                continue
            tried = True
            now = manager.records_of(instance_uuid)
            current = [record for record in now if record in rows]
            if is_over(instance_uuid, views):
                _try(instance_uuid, manager.release_all, _left_behind(manager, current, views))
                continue
            _try(instance_uuid, manager.give, [record for record in current if record.state == vocabulary.RELEASING])
            if current == now:
                _try(instance_uuid, _settle_moves, manager, current, views)
                _try(instance_uuid, _settle_running, manager, instance_uuid, views.usage)
    return tried or bool(evacuated)


def _try(instance_uuid: str, work: Callable[..., None], *arguments: Any) -> None:
    try:
        work(*arguments)
    except exception.DeviceTrackError as error:
        LOG.warning('Work for instance %(instance)s has to wait: %(error)s',
                    {'instance': instance_uuid, 'error': error})


def _settle_running(manager: Steps, instance_uuid: str, usage: Usage) -> None:
    """Record that a guest runs, which its service did not say."""
    manager.carry_out(moves.Settlement(arrive=tuple(
        record for record in manager.records_of(instance_uuid)
        if record.role != vocabulary.OLD and _runs(record, usage))))


def _settle_moves(manager: Steps, records: Sequence[Record], views: Views) -> None:
    """Bring rows of one instance to where its migrations, its guest and the service say that it is."""
    manager.give_back(_advance_moves(manager, records, views))


def _advance_moves(manager: Steps, records: Sequence[Record], views: Views) -> list[Record]:
    """The transaction of that alone.

    :returns: the rows whose devices go back, for ``give_back``
    """
    settlement = moves.settle(_situation(manager, records, views))
    for migration_uuid in settlement.failed:
        looking.fail_migration(manager, migration_uuid)
    return manager.advance(settlement)


def settle_moves(manager: Steps, instance_uuid: str) -> None:
    """Do at once for one instance what the next audit would do. For who holds its ``working`` lock.

    What cannot be given back now waits for that audit.

    :raises StoreError: nothing was changed, or nobody knows
    """
    usage = manager.driver.get_usage()
    records = manager.records_of(instance_uuid)
    views = Views(usage, NO_INVENTORY, tuple(records), looking.instances(manager),
                  looking.migrations(manager, looking.named_migrations(records)))
    _try(instance_uuid, manager.give_back, _advance_moves(manager, records, views))


def _situation(manager: Steps, records: Sequence[Record], views: Views) -> moves.Situation:
    usage = views.usage
    uuid = records[0].instance_uuid if records else ''
    uses = [use for use in usage.uses if use.domain_uuid == uuid and use.identifier is not None]
    named = {DeviceKey(use.kind, str(use.identifier)) for use in uses}
    live = {DeviceKey(use.kind, str(use.identifier)) for use in uses if use.live}
    there: bool | None = uuid in usage.domains
    if not there and usage.unknown:
        there = None
    return moves.Situation(manager.node, records, views.migrations, there,
                           uuid in usage.running and uuid not in usage.arriving, named, live,
                           (views.instances or {}).get(uuid))


def _remove_evacuated(manager: Steps, views: Views) -> set[str]:
    """Remove the guests that the service evacuated from here while this host was away, and give back what they had.

    :returns: the instances that this was tried for
    """
    tried: set[str] = set()
    by_instance = {rows[0].instance_uuid: rows for rows in looking.by_instance(views.records)}
    for uuid in sorted(set(looking.answer(manager, 'evacuated_from_here') or ())):
        rows = by_instance.get(uuid, [])
        if (not rows and uuid not in views.usage.domains) or not _may_remove(manager, uuid, rows, views):
            continue
        with doubt.if_idle(manager, uuid) as idle:
            if idle and sorted(manager.records_of(uuid)) == sorted(rows):
                tried.add(uuid)
                _try(uuid, _remove, manager, uuid, rows, views)
    return tried


def _may_remove(manager: Steps, instance_uuid: str, rows: Sequence[Record], views: Views) -> bool:
    """Whether nothing says that the instance came back here since it was evacuated."""
    with manager.lock:
        fresh = any(not holding.from_rows for holding in manager.ledger.holdings_of(instance_uuid))
    arriving = any(record.role == vocabulary.INCOMING or _comes_here(manager, record, views) for record in rows)
    back = (views.instances or {}).get(instance_uuid) == reconcile.INSTANCE_HERE
    if fresh or arriving or back:
        LOG.warning('Instance %s was evacuated from here, says the compute service, and has come back since; '
                    'its guest and devices are left alone', instance_uuid)
        return False
    return True


def _comes_here(manager: Steps, record: Record, views: Views) -> bool:
    move = (views.migrations or {}).get(record.migration_uuid or '')
    return move is not None and record.role == vocabulary.CURRENT and manager.node.is_at(move.destination)


def _remove(manager: Steps, instance_uuid: str, rows: Sequence[Record], views: Views) -> None:
    if instance_uuid in views.usage.domains or views.usage.unknown:
        LOG.info('Removing the guest of instance %s, which was evacuated from here', instance_uuid)
        manager.driver.destroy_guest(instance_uuid)
    manager.release_all(rows)


# -- what waits -------------------------------------------------------------------------------------------------------


def _work_waits(rows: Sequence[Record], views: Views) -> bool:
    uuid = rows[0].instance_uuid
    return (is_over(uuid, views) or (views.instances or {}).get(uuid) == moves.ELSEWHERE
            or any(record.state == vocabulary.RELEASING or record.migration_uuid is not None
                   or _runs(record, views.usage) for record in rows))


def is_over(instance_uuid: str, views: Views) -> bool:
    """The service says so and the hypervisor, whose every document could be read, has no domain of it."""
    return ((views.instances or {}).get(instance_uuid) in reconcile.INSTANCE_OVER
            and not views.usage.unknown and instance_uuid not in views.usage.domains)


def _left_behind(manager: Steps, rows: Sequence[Record], views: Views) -> list[Record]:
    """Of an instance that is over, the rows that no operation of this process is about to use.

    An instance that was offloaded comes back by a new claim, and the service's answer may be older than that claim.
    """
    deleted = (views.instances or {}).get(rows[0].instance_uuid) == reconcile.INSTANCE_DELETED if rows else False
    with manager.lock:
        holdings = manager.ledger.holdings_of(rows[0].instance_uuid) if rows else ()
    return [record for record in rows if deleted or record.state != vocabulary.CLAIMED
            or any(holding.from_rows for holding in holdings)]


def _runs(record: Record, usage: Usage) -> bool:
    uuid = record.instance_uuid
    return record.state == vocabulary.CLAIMED and uuid in usage.running and uuid not in usage.arriving and any(
        use.identifier == record.identifier and use.kind == record.kind and use.live
        and use.domain_uuid == record.instance_uuid for use in usage.uses)


# -- another boot -----------------------------------------------------------------------------------------------------


def _rewrite(manager: Steps, instance_uuid: str, named: Collection[DeviceKey]) -> None:
    """Have the definition of a guest that is off name its devices by their addresses of this boot."""
    records = [record for record in manager.records_of(instance_uuid) if record.state != vocabulary.RELEASING]
    used = [record for record in records if record.key in named]
    if used:
        manager.driver.rewrite_guest(
            [DeviceAssignment.from_record(record) for record in used],
            [DeviceAssignment.from_record(record) for record in records if record.key not in named])


def bring_definition(manager: Steps, instance_uuid: str) -> None:
    """Before a guest starts, maybe by the definition that it has: what a start after a boot could not do for it.

    For who holds the ``working`` lock and has realized its devices.
    """
    if manager.boot_id in (None, manager.driver.boot_id()) or instance_uuid in manager.brought_back:
        return
    usage = manager.driver.get_usage()
    if instance_uuid not in usage.running:
        _rewrite(manager, instance_uuid, _named(usage).get(instance_uuid, set()))
    manager.brought_back.add(instance_uuid)


def _named(usage: Usage) -> dict[str, set[DeviceKey]]:
    """The devices that each domain names."""
    named: dict[str, set[DeviceKey]] = {}
    for use in usage.uses:
        if use.identifier is not None:
            named.setdefault(use.domain_uuid, set()).add(DeviceKey(use.kind, use.identifier))
    return named


def _after_boot(manager: Steps, views: Views) -> bool:
    """After the host booted: make devices real again and definitions name them by their addresses of this boot.

    :returns: whether there was anything to do
    """
    before, now = manager.boot_id, manager.driver.boot_id()
    if before == now:
        return False
    done = True
    if before is not None:
        named = _named(views.usage)
        for rows in looking.by_instance(views.records):
            instance_uuid = rows[0].instance_uuid
            if instance_uuid not in manager.brought_back:
                if _bring_back(manager, rows, named.get(instance_uuid, set()), views):
                    manager.brought_back.add(instance_uuid)
                else:
                    done = False
    if done:
        manager.store.set_boot_id(manager.host_uuid, now)
        manager.boot_id = now
        manager.brought_back.clear()
    return before is not None


def _bring_back(manager: Steps, rows: Sequence[Record], named: Collection[DeviceKey], views: Views) -> bool:
    """The devices of one instance, before its guest starts.

    :param named: the devices that its definition names. They need not be those that it is to have: it may have been
        about to move, or its service was cut before it said that the guest started
    :returns: False when it has to be tried again
    """
    instance_uuid = rows[0].instance_uuid
    if not any(record.state == vocabulary.ACTIVE or record.key in named for record in rows):
        return True
    with doubt.if_idle(manager, instance_uuid) as idle:
        if not idle:
            return False
        try:
            manager.make_real([record for record in manager.records_of(instance_uuid)
                               if record.state != vocabulary.RELEASING
                               and (record.state == vocabulary.ACTIVE or record.key in named)])
            if instance_uuid not in views.usage.running:
                _rewrite(manager, instance_uuid, named)
        except exception.DeviceTrackError as error:
            # Its service may meet the same when it starts the guest; the rest of the host works.
            LOG.warning('The devices of instance %(instance)s are not ready after the host booted; every audit tries '
                        'again: %(error)s', {'instance': instance_uuid, 'error': error})
            return False
    return True
