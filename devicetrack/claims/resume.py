"""Continues interrupted work: releases, moves, guests that were evacuated, the host's own boot.

Each step is the same as in a call, except that nothing here waits for a wipe. Work that cannot be done now is logged
and waits for the next audit.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
from typing import Any

from devicetrack import exception
from devicetrack import log
from devicetrack import vocabulary
from devicetrack.claims.boot import Boot
from devicetrack.claims.claiming import Claiming
from devicetrack.claims.definitions import Definitions
from devicetrack.claims.gate import Gate
from devicetrack.claims.life import Life
from devicetrack.claims.moves import Moves
from devicetrack.claims.rows import Rows
from devicetrack.claims.service import ServiceView
from devicetrack.engine import migrations
from devicetrack.engine.views import by_instance
from devicetrack.engine.views import Views
from devicetrack.objects.compact import Compact
from devicetrack.objects.values import Record
from devicetrack.objects.values import Usage
from devicetrack.virt.driver import VirtDriver

LOG = log.logger(__name__)


class Resume:
    """Finishes or undoes work that a crash, a lost call or another host left behind.

    :param here: this host, as migrations name it
    """

    def __init__(self, here: migrations.Endpoint, driver: VirtDriver, service: ServiceView, rows: Rows, gate: Gate,
                 boot: Boot, life: Life, claiming: Claiming, definitions: Definitions, moving: Moves) -> None:
        self._here, self._driver, self._service = here, driver, service
        self._rows, self._gate, self._boot = rows, gate, boot
        self._life, self._claiming, self._definitions, self._moves = life, claiming, definitions, moving

    def waits(self, views: Views) -> bool:
        """Whether :meth:`go_on` may have work to do."""
        return (not self._boot.is_recorded or self._service.tells_of_evacuations
                or any(_work_waits(rows, views) for rows in _odd(views)))

    def go_on(self, views: Views, left: Collection[str] = (), forgotten: Collection[Record] = (),
              defined: Collection[str] = ()) -> bool:
        """Finish interrupted work, settle started guests and moves, give back the devices of instances that are over.

        :param left: instances that live elsewhere without a migration, as two looks show: they are over here
        :param forgotten: claims of which the service has forgotten everything, as two audits show
        :param defined: instances that left for good, and whose guests are off and still defined, as two looks show
        :returns: whether it tried anything
        """
        tried = self._definitions.bring_all(views)
        if tried:
            # The details may be new now, and that must not look as if others had changed a row.
            views = views._replace(records=tuple(self._rows.all()))
        if self._gate.report_only is not None:
            return tried
        removed = self._remove_guests(self.evacuated(views), views, stop=True)
        removed |= self._remove_guests({rows[0].instance_uuid: rows for rows in by_instance(
            record for record in views.records if record.instance_uuid in defined)}, views, stop=False)
        for rows in _odd(views):
            instance_uuid = rows[0].instance_uuid
            if instance_uuid in removed or not _work_waits(rows, views):
                continue
            with self._rows.if_idle(instance_uuid) as idle, _unless_lost(instance_uuid):
                if idle and self._life.are_wiped(rows):
                    # This changes nothing in the views, so nobody needs to read them again.
                    self._give_back(instance_uuid, rows, self._rows.of_instance(instance_uuid))
                elif idle:
                    tried = True
                    self._go_on_with(instance_uuid, rows, views, instance_uuid in left, forgotten)
        return tried or bool(removed)

    def _go_on_with(self, instance_uuid: str, rows: Sequence[Record], views: Views, left: bool,
                    forgotten: Collection[Record]) -> None:
        """Continue the work for one instance. The caller works on it."""
        now = self._rows.of_instance(instance_uuid)
        if now and forgotten and set(now) <= set(forgotten):
            _try(instance_uuid, self._life.release, now, False)
            return
        unchanged = [record for record in now if record in rows]
        if left or is_over(instance_uuid, views):
            over = self._left_behind(instance_uuid, unchanged, views)
            _try(instance_uuid, self._life.release, over, False)
            # These may be a claim by which the instance comes back, unless its migration failed.
            others = [record for record in unchanged if record not in over]
            if others and unchanged == now:
                _try(instance_uuid, self._moves.settle_by, others, views)
            return
        self._give_back(instance_uuid, rows, now)
        if unchanged == now:
            _try(instance_uuid, self._moves.settle_by, unchanged, views)
            _try(instance_uuid, self._settle_running, instance_uuid, views.usage)
        # Ask again: whoever reverts a move says so before the guest's devices are made ready for it.
        self._life.vacate(instance_uuid, lambda uuids: [
            uuid for uuid, move in (self._service.migrations(uuids) or {}).items() if move.has_left])

    def _give_back(self, instance_uuid: str, rows: Sequence[Record], now: Sequence[Record]) -> None:
        """Continue a release. The caller works on the instance."""
        _try(instance_uuid, self._life.give, [record for record in now if record in rows
                                              and record.state == vocabulary.RELEASING], False)

    def _settle_running(self, instance_uuid: str, usage: Usage) -> None:
        """Record that a guest runs, although its service did not say so."""
        self._life.settle(migrations.Settlement(arrive=tuple(
            record for record in self._rows.of_instance(instance_uuid)
            if record.role != vocabulary.OLD and _runs(record, usage))))

    def _left_behind(self, instance_uuid: str, rows: Sequence[Record], views: Views) -> list[Record]:
        """The rows of an instance that is over, without those that an operation of this process is about to use.

        An offloaded instance comes back by a new claim, and the service's answer may be older than that claim.
        """
        deleted = (views.instances or {}).get(instance_uuid) == migrations.INSTANCE_DELETED
        return [record for record in rows
                if deleted or record.state != vocabulary.CLAIMED or not self._claiming.is_own(record)]

    # -- guests that left ---------------------------------------------------------------------------------------------

    def _remove_guests(self, rows_of: Mapping[str, Sequence[Record]], views: Views, stop: bool) -> set[str]:
        """Remove guests whose instances live elsewhere, and give back their devices.

        :param stop: also if they run: the service evacuated them while this host was down
        :returns: the instances for which it tried that
        """
        tried: set[str] = set()
        for uuid, rows in sorted(rows_of.items()):
            with self._rows.if_idle(uuid) as idle, _unless_lost(uuid):
                if idle and sorted(self._rows.of_instance(uuid)) == sorted(rows):
                    tried.add(uuid)
                    _try(uuid, self._remove, uuid, rows, views, stop)
        return tried

    def evacuated(self, views: Views) -> dict[str, list[Record]]:
        """The rows of each instance that was evacuated from here and left rows or a guest, and did not come back.

        A guest may be here without rows: the host lost its power before the removal of its definition was on the disk.
        """
        evacuated = self._service.evacuated_from_here()
        rows_of = {rows[0].instance_uuid: rows for rows in by_instance(
            record for record in views.records if record.instance_uuid in evacuated)} if evacuated else {}
        return {uuid: rows for uuid in evacuated
                if ((rows := rows_of.get(uuid, [])) or uuid in views.usage.domains)
                and self._may_remove(uuid, rows, views)}

    def _may_remove(self, instance_uuid: str, rows: Sequence[Record], views: Views) -> bool:
        """Whether nothing shows that the instance came back here after its evacuation."""
        arriving = any(record.role == vocabulary.INCOMING or self._comes_here(record, views) for record in rows)
        back = (views.instances or {}).get(instance_uuid) == migrations.INSTANCE_HERE
        if (arriving or back or any(map(self._claiming.is_own, rows))
                or self._may_move_back(instance_uuid, rows, views)):
            LOG.warning('The compute service says that instance %s was evacuated from here, but it has come back '
                        'since, or may have; its guest and devices stay as they are', instance_uuid)
            return False
        return True

    def _may_move_back(self, instance_uuid: str, rows: Sequence[Record], views: Views) -> bool:
        """Whether the end of a move away from here may bring the instance back.

        The service may go on naming an evacuation after the instance came back, and even when it leaves again. What it
        left for that move is here, and is all that a revert has.
        """
        left_for = {record.migration_uuid for record in rows if record.role == vocabulary.OLD}
        if views.migrations is None:
            return bool(left_for) or not self._service.ends_moves_by_calls
        return migrations.may_come_back(instance_uuid, left_for, views.migrations, self._here)

    def _comes_here(self, record: Record, views: Views) -> bool:
        move = (views.migrations or {}).get(record.migration_uuid or '')
        return move is not None and record.role == vocabulary.CURRENT and self._here.is_at(move.destination)

    def _remove(self, instance_uuid: str, rows: Sequence[Record], views: Views, stop: bool) -> None:
        if instance_uuid in views.usage.domains or views.usage.unknown:
            LOG.info('Removing the guest of instance %(instance)s, which %(why)s', {
                'instance': instance_uuid,
                'why': 'was evacuated from here' if stop else 'is off and left by a migration that is done'})
            self._driver.destroy_guest(instance_uuid, stop)
        self._life.release(rows, wait=False)


def is_over(instance_uuid: str, views: Views) -> bool:
    """Whether the service says that an instance is over and the hypervisor certainly has no domain of it."""
    return ((views.instances or {}).get(instance_uuid) in migrations.INSTANCE_OVER
            and not views.usage.unknown and instance_uuid not in views.usage.domains)


@contextlib.contextmanager
def _unless_lost(instance_uuid: str) -> Iterator[None]:
    """Leave an instance whose rows the store does not show since the looks. The next audit reports it."""
    try:
        yield
    except exception.RowsMissing as error:
        LOG.warning('Work for instance %(instance)s has to wait: %(error)s',
                    {'instance': instance_uuid, 'error': error})


def _try(instance_uuid: str, work: Callable[..., None], *arguments: Any) -> None:
    try:
        work(*arguments)
    except exception.DeviceTrackError as error:
        LOG.warning('Work for instance %(instance)s has to wait: %(error)s',
                    {'instance': instance_uuid, 'error': error})


def _odd(views: Views) -> Iterator[list[Record]]:
    """The rows of the few instances that are not here and at rest. Nearly all of thousands are."""
    states, rows = views.instances or {}, Compact(Record, views.records)
    at_rest = {None, migrations.INSTANCE_HERE}
    odd = {uuid for uuid in set(rows.column('instance_uuid')) if states.get(uuid) not in at_rest}
    if set(rows.column('state')) != {vocabulary.ACTIVE} or any(rows.column('migration_uuid')):
        odd |= {uuid for uuid, state, migration in rows.columns('instance_uuid', 'state', 'migration_uuid')
                if state != vocabulary.ACTIVE or migration is not None}
    return by_instance(record for record in views.records if record.instance_uuid in odd) if odd else iter(())


def _work_waits(rows: Sequence[Record], views: Views) -> bool:
    uuid = rows[0].instance_uuid
    return (is_over(uuid, views) or (views.instances or {}).get(uuid) == migrations.INSTANCE_ELSEWHERE
            or any(record.state == vocabulary.RELEASING or record.migration_uuid is not None
                   or _runs(record, views.usage) for record in rows))


def _runs(record: Record, usage: Usage) -> bool:
    uuid = record.instance_uuid
    return record.state == vocabulary.CLAIMED and usage.runs_here(uuid) and any(
        use.identifier == record.identifier and use.kind == record.kind and use.live
        and use.domain_uuid == record.instance_uuid for use in usage.uses)
