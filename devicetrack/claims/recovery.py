"""What a start and every audit do: read the views, go on with what was interrupted, say what differs.

It works on a manager's ledger, store and driver by the manager's own steps: interrupted work is finished or undone by
the code that does it first.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import itertools
from typing import NamedTuple
from typing import TYPE_CHECKING

from oslo_concurrency import lockutils
from oslo_log import log as logging

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.engine import ledger as ledgers
from devicetrack.engine import lifecycle
from devicetrack.engine import reconcile
from devicetrack.engine.reconcile import Finding
from devicetrack.engine.reconcile import Views
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Record
from devicetrack.objects.values import Usage
from devicetrack.store.api import Changes

if TYPE_CHECKING:
    from devicetrack.claims.manager import ClaimManager

LOG = logging.getLogger(__name__)


class Doubt(NamedTuple):
    """A commit whose outcome is not known and the holding that keeps its devices until it is.

    ``undo`` when the caller was told that its claim failed: if it happened after all, it is given back.
    """

    holding: ledgers.Holding
    changes: Changes
    undo: bool = False


# -- the two entries --------------------------------------------------------------------------------------------------


def start(manager: ClaimManager) -> list[Finding]:
    """Build the ledger of a manager that starts, and go on with what the last one left."""
    views = read(manager)
    _refuse_mistakes(views)
    with manager.lock:
        manager.ledger.read_inventory(views.inventory)
        for records in _by_instance(views.records):
            manager.ledger.hold(records)
        _withhold(manager.ledger, (views,))
    manager.refresh()
    _go_on(manager, views)
    return reconcile.compare(views._replace(records=tuple(manager.store.records(manager.host_uuid))))


def _refuse_mistakes(views: Views) -> None:
    """A device that an option names, that the host does not have and that nobody ever owned is a mistake in the option.

    One with an owner went away; that is a finding, and the rest of the host works.

    :raises InvalidConfiguration: names the first mistake
    """
    owned = {record.key for record in views.records}
    for missing in views.inventory.missing:
        if missing.key not in owned:
            raise exception.InvalidConfiguration(missing.option, missing.key.identifier, missing.reason)


def audit(manager: ClaimManager) -> list[Finding]:
    """Look twice, and act and report only on what both looks show."""
    _settle(manager)
    first = read(manager)
    with manager.reading() as watch:
        second = _look(manager)
        with manager.lock:
            manager.ledger.read_inventory(second.inventory, watch)
            _withhold(manager.ledger, (first, second))
    second = second._replace(instances=_instances(manager))
    manager.refresh()
    _follow_rows(manager, second.records)
    _go_on(manager, second)
    findings = reconcile.confirmed(reconcile.compare(first), reconcile.compare(second))
    return findings + [_in_doubt(doubt) for doubt in manager.doubts]


def read(manager: ClaimManager) -> Views:
    """Innermost first: a device that is taken meanwhile shows up as recorded and never as used without a row."""
    return _look(manager)._replace(instances=_instances(manager))


def _look(manager: ClaimManager) -> Views:
    """The views of this host, without the service's."""
    usage = manager.driver.get_usage()
    inventory = manager.read_inventory()
    records = tuple(manager.store.records(manager.host_uuid))
    return Views(usage, inventory, records, None)


def _instances(manager: ClaimManager) -> Mapping[str, str] | None:
    if manager.service is None:
        return None
    try:
        return manager.service.instances()
    except Exception as error:
        # Whatever goes wrong in the service's own code means the same here: it cannot tell.
        LOG.warning('The compute service cannot say which instances it has: %s', type(error).__name__)
        return None


def _by_instance(records: Iterable[Record]) -> list[list[Record]]:
    return [list(rows) for _, rows in itertools.groupby(records, key=lambda record: record.instance_uuid)]


@contextlib.contextmanager
def _if_idle(manager: ClaimManager, instance_uuid: str) -> Iterator[bool]:
    """Say whether nothing works on an instance's devices, and if so let nothing begin."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(manager.working(instance_uuid, wait=False))
        except lockutils.AcquireLockFailedException:
            yield False
            return
        yield True


# -- devices that nobody may have -------------------------------------------------------------------------------------


def _foreign(views: Views) -> set[DeviceKey]:
    """Devices that a domain names and no row does."""
    return _used(views.usage) - {record.key for record in views.records}


def _used(usage: Usage) -> set[DeviceKey]:
    return {DeviceKey(use.kind, use.identifier) for use in usage.uses if use.identifier is not None}


def _withhold(ledger: ledgers.Ledger, looks: Sequence[Views]) -> None:
    """Withhold free devices that a domain names without a row, or that nobody can vouch for; admit the others.

    Under the lock, and in one go with taking over the inventory that brought new devices. A device is withheld when
    every look that can tell shows it in use, and admitted when every look can tell and none shows it.
    """
    seen = [(_foreign(look), bool(look.usage.unknown)) for look in looks]
    suspected = {key for foreign, _ in seen for key in foreign}
    confirmed = {key for key in suspected if all(key in foreign or unknown for foreign, unknown in seen)}
    if not any(unknown for _, unknown in seen):
        for key in ledger.withheld(vocabulary.FOREIGN):
            if key not in suspected:
                ledger.admit(key, vocabulary.FOREIGN)
        recorded = {record.key for record in looks[-1].records}
        for key in ledger.withheld(vocabulary.IN_DOUBT):
            if key not in recorded and (key not in suspected or key in confirmed):
                ledger.admit(key, vocabulary.IN_DOUBT)
    for key in confirmed:
        ledger.withhold_free(key, vocabulary.FOREIGN)
    if all(unknown for _, unknown in seen):
        for unit in ledger.units():
            ledger.withhold_free(DeviceKey(unit.pool.kind, unit.identifier or ''), vocabulary.IN_DOUBT)


def distrust(manager: ClaimManager, holding: ledgers.Holding, taken: Iterable[tuple[str, str]]) -> None:
    """The store refused devices because they have owners: withhold those, and every other that it knows so.

    All rows are read at once, since whoever wrote one behind our back may have written many, and a claim that learned
    of them one at a time would give up before it found a free device.
    """
    owned = {DeviceKey(*key) for key in taken} | {record.key for record in manager.store.records(manager.host_uuid)}
    with manager.lock:
        manager.ledger.put_back(holding)
        for key in owned:
            manager.ledger.withhold_free(key, vocabulary.IN_DOUBT)


def reconsider(manager: ClaimManager) -> bool:
    """Before a claim is refused: see whether devices that were distrusted have no owner any more.

    :returns: whether any was admitted
    """
    with manager.lock:
        distrusted = set(manager.ledger.withheld(vocabulary.IN_DOUBT))
    if not distrusted:
        return False
    usage = manager.driver.get_usage()
    owned = {record.key for record in manager.store.records(manager.host_uuid)}
    free = distrusted - owned - _used(usage) if not usage.unknown else set()
    with manager.lock:
        for key in free:
            manager.ledger.admit(key, vocabulary.IN_DOUBT)
    return bool(free)


# -- commits in doubt -------------------------------------------------------------------------------------------------


def _settle(manager: ClaimManager) -> None:
    """Ask the store what became of commits whose answer was lost; what it cannot say yet stays held."""
    for doubt in list(manager.doubts):
        instance_uuid = doubt.holding.instance_uuid
        with _if_idle(manager, instance_uuid) as idle:
            if not idle:
                continue
            try:
                happened = bool(doubt.changes.keys) and manager.store.settle(doubt.changes)
                manager.doubts.remove(doubt)
                with manager.lock:
                    doubt.holding.in_doubt = any(other.holding is doubt.holding for other in manager.doubts)
                    doubt.holding.from_rows = True
                LOG.info('The commit in doubt for instance %(instance)s %(outcome)s', {
                    'instance': instance_uuid, 'outcome': 'happened' if happened else 'did not happen'})
                if happened and doubt.undo:
                    claims = {record.claim_id for record in doubt.changes.insert}
                    manager.give([record for record in manager.records_of(instance_uuid)
                                  if record.claim_id in claims])
            except exception.DeviceTrackError as error:
                LOG.warning('Instance %(instance)s stays as it is for now: %(error)s',
                            {'instance': instance_uuid, 'error': error})


def settle_instance(manager: ClaimManager, instance_uuid: str) -> None:
    """Before an instance is claimed for again: settle what is in doubt for it, if the store can say by now."""
    if any(doubt.holding.instance_uuid == instance_uuid for doubt in manager.doubts):
        _settle(manager)
        _let_go(manager, instance_uuid)


def _in_doubt(doubt: Doubt) -> Finding:
    keys = doubt.changes.keys
    names = ', '.join(f'{key.kind} {key.identifier}' for key in keys)
    return Finding(reconcile.IN_DOUBT, reconcile.WARNING, keys[0] if keys else reconcile.NO_DEVICE,
                   doubt.holding.instance_uuid, (), 0, f'nobody knows yet whether the commit for {names} happened',
                   'the devices of the commit', 'none: the next audit asks the store again')


# -- what rows say ----------------------------------------------------------------------------------------------------


def _follow_rows(manager: ClaimManager, records: Sequence[Record]) -> None:
    """Hold what rows say and nobody in this process knows of; free what was held for rows that are gone.

    Rows of a host are written by its manager alone. Such rows are of a commit that became visible late, or of
    somebody who should not have written them; either way their devices have an owner.
    """
    with manager.lock:
        strange = {record.instance_uuid for record in records if not manager.ledger.holds(record)}
    for instance_uuid in sorted(strange):
        with _if_idle(manager, instance_uuid) as idle:
            if idle:
                current = manager.records_of(instance_uuid)
                with manager.lock:
                    unknown = [record for record in current if not manager.ledger.holds(record)]
                    if unknown:
                        manager.ledger.hold(unknown)
    recorded = {(record.instance_uuid, record.key) for record in records}
    with manager.lock:
        doubtful = [holding.instance_uuid for holding in manager.ledger.holdings()
                    if holding.from_rows and not holding.in_doubt
                    and any((holding.instance_uuid, unit.key) not in recorded for unit in holding.units)]
    for instance_uuid in doubtful:
        _let_go(manager, instance_uuid)


def _let_go(manager: ClaimManager, instance_uuid: str) -> None:
    """Free what is held for an instance because of rows that are gone; never what a claim is just taking."""
    with _if_idle(manager, instance_uuid) as idle:
        if not idle:
            return
        with manager.lock:
            holding = manager.ledger.holding(instance_uuid)
            if holding is None or holding.in_doubt or not holding.from_rows:
                return
        keys = {record.key for record in manager.records_of(instance_uuid)}
        with manager.lock:
            for unit in holding.units:
                if unit.key not in keys:
                    manager.ledger.free(unit)


# -- interrupted work -------------------------------------------------------------------------------------------------


def _go_on(manager: ClaimManager, views: Views) -> None:
    """Finish what was on its way back, settle what runs, give back what belongs to instances that are over."""
    for rows in _by_instance(views.records):
        instance_uuid = rows[0].instance_uuid
        if not _work_waits(rows, views):
            continue
        with _if_idle(manager, instance_uuid) as idle:
            if not idle:
                continue
            current = [record for record in manager.records_of(instance_uuid) if record in rows]
            try:
                if _is_over(instance_uuid, views):
                    manager.give(_left_behind(manager, current, views))
                    continue
                manager.give([record for record in current if record.state == vocabulary.RELEASING])
                manager.advance([record for record in current if _runs(record, views.usage)], lifecycle.STARTED)
            except exception.DeviceTrackError as error:
                LOG.warning('Work for instance %(instance)s has to wait: %(error)s',
                            {'instance': instance_uuid, 'error': error})


def _work_waits(rows: Sequence[Record], views: Views) -> bool:
    return (_is_over(rows[0].instance_uuid, views)
            or any(record.state == vocabulary.RELEASING or _runs(record, views.usage) for record in rows))


def _is_over(instance_uuid: str, views: Views) -> bool:
    """The service says so and the hypervisor, whose every document could be read, has no domain of it."""
    return ((views.instances or {}).get(instance_uuid) in reconcile.INSTANCE_OVER
            and not views.usage.unknown and instance_uuid not in views.usage.domains)


def _left_behind(manager: ClaimManager, rows: Sequence[Record], views: Views) -> list[Record]:
    """Of an instance that is over, the rows that no operation of this process is about to use.

    An instance that was offloaded comes back by a new claim, and the service's answer may be older than that claim.
    """
    deleted = (views.instances or {}).get(rows[0].instance_uuid) == reconcile.INSTANCE_DELETED if rows else False
    with manager.lock:
        holding = manager.ledger.holding(rows[0].instance_uuid) if rows else None
    return [record for record in rows if deleted or record.state != vocabulary.CLAIMED
            or (holding is not None and holding.from_rows)]


def _runs(record: Record, usage: Usage) -> bool:
    return record.state == vocabulary.CLAIMED and record.instance_uuid in usage.running and any(
        use.identifier == record.identifier and use.kind == record.kind and use.live
        and use.domain_uuid == record.instance_uuid for use in usage.uses)


def report(host: str, findings: Iterable[Finding]) -> None:
    """Write findings to the log."""
    for finding in findings:
        log = LOG.info if finding.severity == reconcile.NOTE else LOG.warning
        log('Host %(host)s: %(severity)s: %(finding)s; held: %(held)s; proposed: %(proposal)s', {
            'host': host, 'severity': finding.severity, 'finding': finding, 'held': finding.held,
            'proposal': finding.proposal})
