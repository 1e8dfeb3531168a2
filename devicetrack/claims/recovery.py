"""What a start and every audit do: read the views, go on with what was interrupted, say what differs.

It works on a manager's ledger, store and driver by the manager's own steps: interrupted work is finished or undone by
the code that does it first.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from concurrent import futures
import contextlib
import gc
import itertools
import time
from typing import Any
from typing import Final
from typing import NamedTuple
from typing import TYPE_CHECKING

from oslo_concurrency import lockutils
from oslo_log import log as logging

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.engine import ledger as ledgers
from devicetrack.engine import moves
from devicetrack.engine import reconcile
from devicetrack.engine.reconcile import Finding
from devicetrack.engine.reconcile import Views
from devicetrack.objects import DeviceAssignment
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import GuestRecord
from devicetrack.objects.values import Inventory
from devicetrack.objects.values import Record
from devicetrack.objects.values import Usage
from devicetrack.store.api import Changes
from devicetrack.store.api import Host

if TYPE_CHECKING:
    from devicetrack.claims.steps import Steps

LOG = logging.getLogger(__name__)

NO_INVENTORY: Final = Inventory((), (), frozenset())


class Doubt(NamedTuple):
    """A commit whose outcome is not known and the holding that keeps its devices until it is.

    ``undo`` when the caller was told that its claim failed: if it happened after all, it is given back.
    """

    holding: ledgers.Holding
    changes: Changes
    undo: bool = False


# -- the two entries --------------------------------------------------------------------------------------------------


def start(manager: Steps, host: Host) -> list[Finding]:
    """Build the ledger of a manager that starts, and go on with what the last one left.

    :param host: as the store knew it when the last manager ended
    """
    with _uncollected():
        views = read(manager, alone=True)
        _refuse_mistakes(views)
        with manager.lock:
            manager.ledger.read_inventory(views.inventory)
            for records in _by_instance(views.records):
                manager.ledger.hold(records)
            _withhold(manager.ledger, (views,))
        manager.refresh()
        manager.report_only = _older_than_guests(views)
    if _go_on(manager, views, host.boot_id):
        views = read(manager)
    return _remember(manager, reconcile.compare(views))


def _refuse_mistakes(views: Views) -> None:
    """A device that an option names, that the host does not have and that nobody ever owned is a mistake in the option.

    One with an owner went away; that is a finding, and the rest of the host works.

    :raises InvalidConfiguration: names the first mistake
    """
    owned = {record.key for record in views.records}
    for missing in views.inventory.missing:
        if missing.key not in owned:
            raise exception.InvalidConfiguration(missing.option, missing.key.identifier, missing.reason)


def audit(manager: Steps, boot_id: str | None) -> list[Finding]:
    """Look, and where anything differs look again; act and report only on what both looks show.

    :param boot_id: the boot that the definitions of guests were last seen to, None for this one
    """
    _settle(manager)
    with _uncollected(), manager.reading() as watch:
        looks = [read(manager)]
        found = reconcile.compare(looks[0])
        with manager.lock:
            withheld = manager.ledger.withheld(vocabulary.FOREIGN) or manager.ledger.withheld(vocabulary.IN_DOUBT)
        if found or withheld:
            found = _of_idle(manager, found)
            looks.append(read(manager))
            found = reconcile.confirmed(found, reconcile.compare(looks[1]))
        views = looks[-1]
        with manager.lock:
            manager.ledger.read_inventory(views.inventory, watch)
            _withhold(manager.ledger, looks)
    manager.refresh()
    _follow_rows(manager, views.records)
    manager.report_only = _older_than_guests(views)
    _go_on(manager, views, boot_id)
    return _remember(manager, found + [_in_doubt(doubt) for doubt in manager.doubts])


def _of_idle(manager: Steps, findings: Sequence[Finding]) -> list[Finding]:
    """Findings without those on devices that an operation of this process works on.

    Asked between the looks: an operation that both of them fall into is under way then.
    """
    busy = set()
    for owner in {finding.recorded_owner for finding in findings if finding.recorded_owner is not None}:
        with _if_idle(manager, owner) as idle:
            if not idle:
                busy.add(owner)
    return [finding for finding in findings if finding.recorded_owner not in busy]


def _remember(manager: Steps, findings: Iterable[Finding]) -> list[Finding]:
    """Say of each finding since when this process has seen it without a break."""
    now = int(time.time())
    dated = [finding._replace(since=manager.first_seen.get((finding.kind, finding.device), now))
             for finding in findings]
    manager.first_seen = {(finding.kind, finding.device): finding.since or now for finding in dated}
    return dated


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Let the garbage collector wait for as long as the views are read and compared.

    They are some objects a device, nearly all of which stay; the collector would look through them all again and again,
    and find nothing: a third of the time, on a host with thousands of devices.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def read(manager: Steps, alone: bool = False) -> Views:
    """Innermost first: a device that is taken meanwhile shows up as recorded and never as used without a row.

    :param alone: as for :func:`_look`
    """
    return _ask_service(manager, _look(manager, alone))


def _look(manager: Steps, alone: bool = False) -> Views:
    """The views of this host, without the service's.

    :param alone: nothing is taken or given back meanwhile, so the order does not matter and they are read side by side
    """
    def recorded() -> tuple[Record, ...]:
        return tuple(manager.store.records(manager.host_uuid))

    if alone:
        with futures.ThreadPoolExecutor(1, 'devicetrack-look') as beside:
            others = beside.submit(lambda: (manager.read_inventory(), recorded()))
            usage = manager.driver.get_usage()
            inventory, records = others.result()
    else:
        usage = manager.driver.get_usage()
        inventory, records = manager.read_inventory(), recorded()
    views = Views(usage, inventory, records, None, host=manager.host, host_uuid=manager.host_uuid,
                  node=manager.nodename, boot_changed=manager.boot_id not in (None, manager.driver.boot_id()))
    # What guests record of themselves is read only where a row is missing that it may be about.
    return views._replace(guests=tuple(manager.driver.guest_records())) if _foreign(views) else views


# -- the service's word -----------------------------------------------------------------------------------------------


def _ask_service(manager: Steps, views: Views) -> Views:
    named = sorted({record.migration_uuid for record in views.records if record.migration_uuid is not None})
    return views._replace(instances=_instances(manager), migrations=migrations(manager, named))


def _instances(manager: Steps) -> Mapping[str, str] | None:
    found: Mapping[str, str] | None = _answer(manager, 'instances')
    return found


def migrations(manager: Steps, uuids: Sequence[str]) -> dict[str, moves.Move] | None:
    """The service's migrations: those with these UUIDs, and others that it tells of; None when it does not answer."""
    found = _answer(manager, 'migrations', uuids)
    if found is None:
        return None
    answer = {}
    for uuid, migration in found.items():
        try:
            answer[uuid] = moves.Move.of(migration)
        except AttributeError as error:
            LOG.warning('The compute service says something of migration %(uuid)s that means nothing: %(error)s',
                        {'uuid': uuid, 'error': error})
    return answer


def fail_migration(manager: Steps, migration_uuid: str) -> None:
    """Tell the service that a newer migration took the place of this one."""
    LOG.warning('Migration %s was replaced by a newer one of its instance', migration_uuid)
    _answer(manager, 'fail_migration', migration_uuid)


def _answer(manager: Steps, question: str, *arguments: Any) -> Any:
    """What the service says; None when it was not handed in, has no such method, or cannot tell."""
    ask = getattr(manager.service, question, None)
    if ask is None:
        return None
    try:
        return ask(*arguments)
    except Exception as error:
        # Whatever goes wrong in the service's own code means the same here: it cannot tell.
        LOG.warning('The compute service does not answer %(question)s: %(error)s',
                    {'question': question, 'error': type(error).__name__})
        return None


def _by_instance(records: Iterable[Record]) -> list[list[Record]]:
    return [list(rows) for _, rows in itertools.groupby(records, key=lambda record: record.instance_uuid)]


@contextlib.contextmanager
def _if_idle(manager: Steps, instance_uuid: str) -> Iterator[bool]:
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
    # Plain tuples, hashed as keys are: there are thousands, and nearly all of them have a row.
    recorded = {(record.kind, record.identifier) for record in views.records}
    return {DeviceKey(use.kind, use.identifier) for use in views.usage.uses
            if use.identifier is not None and (use.kind, use.identifier) not in recorded}


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
        doubtful = ledger.withheld(vocabulary.IN_DOUBT)
        recorded = {record.key for record in looks[-1].records} if doubtful else set()
        for key in doubtful:
            if key not in recorded and (key not in suspected or key in confirmed):
                ledger.admit(key, vocabulary.IN_DOUBT)
    for key in confirmed:
        ledger.withhold_free(key, vocabulary.FOREIGN)
    if all(unknown for _, unknown in seen):
        for unit in ledger.units():
            ledger.withhold_free(DeviceKey(unit.pool.kind, unit.identifier or ''), vocabulary.IN_DOUBT)


def distrust(manager: Steps, holding: ledgers.Holding, taken: Iterable[tuple[str, str]]) -> None:
    """The store refused devices because they have owners: withhold those, and every other that it knows so.

    All rows are read at once, since whoever wrote one behind our back may have written many, and a claim that learned
    of them one at a time would give up before it found a free device.
    """
    owned = {DeviceKey(*key) for key in taken} | {record.key for record in manager.store.records(manager.host_uuid)}
    with manager.lock:
        manager.ledger.put_back(holding)
        for key in owned:
            manager.ledger.withhold_free(key, vocabulary.IN_DOUBT)


def reconsider(manager: Steps) -> bool:
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


def _settle(manager: Steps) -> None:
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
                    records = manager.records_of(instance_uuid)
                    manager.undo(records, [record for record in records if record.claim_id in claims],
                                 {context.migration_uuid for context in doubt.changes.contexts
                                  if context.migration_uuid is not None})
            except exception.DeviceTrackError as error:
                LOG.warning('Instance %(instance)s stays as it is for now: %(error)s',
                            {'instance': instance_uuid, 'error': error})


def settle_instance(manager: Steps, instance_uuid: str) -> None:
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


def _follow_rows(manager: Steps, records: Sequence[Record]) -> None:
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
    with manager.lock:
        if not strange and manager.ledger.held_count() == len(records):
            return                              # one device is held for each row, and nothing else
    recorded = {(record.instance_uuid, record.key) for record in records}
    with manager.lock:
        doubtful = [holding.instance_uuid for holding in manager.ledger.holdings()
                    if holding.from_rows and not holding.in_doubt
                    and any((holding.instance_uuid, unit.key) not in recorded for unit in holding.units)]
    for instance_uuid in doubtful:
        _let_go(manager, instance_uuid)


def _let_go(manager: Steps, instance_uuid: str) -> None:
    """Free what is held for an instance because of rows that are gone; never what a claim is just taking."""
    with _if_idle(manager, instance_uuid) as idle:
        if not idle:
            return
        with manager.lock:
            holdings = [holding for holding in manager.ledger.holdings_of(instance_uuid)
                        if holding.from_rows and not holding.in_doubt]
        if not holdings:
            return
        keys = {record.key for record in manager.records_of(instance_uuid)}
        with manager.lock:
            for holding in holdings:
                for unit in holding.units:
                    if unit.key not in keys:
                        manager.ledger.free(unit)


# -- interrupted work -------------------------------------------------------------------------------------------------


def _go_on(manager: Steps, views: Views, boot_id: str | None) -> bool:
    """Finish what was interrupted, settle what runs and what moved, give back what belongs to instances that are over.

    :returns: whether anything was tried
    """
    tried = _after_boot(manager, views, boot_id)
    if manager.report_only is not None:
        return tried
    evacuated = _remove_evacuated(manager, views)
    for rows in _by_instance(views.records):
        instance_uuid = rows[0].instance_uuid
        if instance_uuid in evacuated or not _work_waits(rows, views):
            continue
        with _if_idle(manager, instance_uuid) as idle:
            if not idle:
                continue
            tried = True
            now = manager.records_of(instance_uuid)
            current = [record for record in now if record in rows]
            if _is_over(instance_uuid, views):
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
    settlement = moves.settle(_situation(manager, records, views))
    for migration_uuid in settlement.failed:
        fail_migration(manager, migration_uuid)
    if settlement.is_needed:
        manager.carry_out(settlement)


def settle_moves(manager: Steps, instance_uuid: str) -> None:
    """Do at once for one instance what the next audit would do. For who holds its ``working`` lock."""
    usage = manager.driver.get_usage()
    records = manager.records_of(instance_uuid)
    named = sorted({record.migration_uuid for record in records if record.migration_uuid is not None})
    views = Views(usage, NO_INVENTORY, tuple(records), _instances(manager), migrations(manager, named))
    _try(instance_uuid, _settle_moves, manager, records, views)


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
    by_instance = {rows[0].instance_uuid: rows for rows in _by_instance(views.records)}
    for uuid in sorted(set(_answer(manager, 'evacuated_from_here') or ())):
        rows = by_instance.get(uuid, [])
        if (not rows and uuid not in views.usage.domains) or not _may_remove(manager, uuid, rows, views):
            continue
        with _if_idle(manager, uuid) as idle:
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


# -- another boot -----------------------------------------------------------------------------------------------------


def _after_boot(manager: Steps, views: Views, boot_id: str | None) -> bool:
    """After the host booted: make devices real again and definitions name them by their addresses of this boot.

    :param boot_id: the boot up to which that is done
    :returns: whether there was anything to do
    """
    now = manager.driver.boot_id()
    if boot_id == now:
        return False
    done = True
    if boot_id is not None:
        named: dict[str, set[DeviceKey]] = {}
        for use in views.usage.uses:
            named.setdefault(use.domain_uuid, set()).add(DeviceKey(use.kind, use.identifier or ''))
        for rows in _by_instance(views.records):
            done = _bring_back(manager, rows, named.get(rows[0].instance_uuid, set()), views) and done
    if done:
        manager.store.set_boot_id(manager.host_uuid, now)
        manager.boot_id = now
    return boot_id is not None


def _bring_back(manager: Steps, rows: Sequence[Record], named: Collection[DeviceKey], views: Views) -> bool:
    """The devices of one instance, before its guest starts.

    :param named: the devices that its definition names. They need not be those that it is to have: it may have been
        about to move, or its service was cut before it said that the guest started
    :returns: False when it has to be tried again
    """
    instance_uuid = rows[0].instance_uuid
    if not any(record.state == vocabulary.ACTIVE or record.key in named for record in rows):
        return True
    with _if_idle(manager, instance_uuid) as idle:
        if not idle:
            return False
        try:
            records = [record for record in manager.records_of(instance_uuid) if record.state != vocabulary.RELEASING]
            real = manager.make_real([record for record in records
                                      if record.state == vocabulary.ACTIVE or record.key in named])
            used = [record for record in real if record.key in named]
            if used and instance_uuid not in views.usage.running:
                manager.driver.rewrite_guest(
                    [DeviceAssignment.from_record(record) for record in used],
                    [DeviceAssignment.from_record(record) for record in records if record.key not in named])
        except (exception.HypervisorUnreachable, exception.StoreError) as error:
            LOG.warning('The devices of instance %(instance)s are made ready later: %(error)s',
                        {'instance': instance_uuid, 'error': error})
            return False
        except exception.DeviceTrackError as error:
            # Its service meets the same when it starts the guest; the rest of the host works.
            LOG.warning('The devices of instance %(instance)s are not ready after the host booted: %(error)s',
                        {'instance': instance_uuid, 'error': error})
    return True


# -- a store that is older than the guests ----------------------------------------------------------------------------


def lost_rows(views: Views) -> dict[DeviceKey, GuestRecord]:
    """Devices that a guest of ours uses, by its own record, and that no row has: the store is older than the guest."""
    if not views.guests:
        return {}
    foreign = _foreign(views)
    records = {record.instance_uuid: record for record in views.guests}
    lost = {}
    for use in views.usage.uses:
        key = DeviceKey(use.kind, use.identifier or '')
        record = records.get(use.domain_uuid)
        if key in foreign and record is not None and any(
                (device.kind, device.identifier) == key for device in record.devices):
            lost[key] = record
    return lost


def _older_than_guests(views: Views) -> str | None:
    lost = lost_rows(views)
    if not lost:
        return None
    guests = sorted({record.instance_uuid for record in lost.values()})
    return (f'its store is older than its guests: devices without a row: {len(lost)}, of guest {", ".join(guests[:3])}'
            f'{", …" if guests[3:] else ""}; run devicetrack-manage audit to see them, and audit --repair --accept to '
            'record them')


# -- what waits -------------------------------------------------------------------------------------------------------


def _work_waits(rows: Sequence[Record], views: Views) -> bool:
    uuid = rows[0].instance_uuid
    return (_is_over(uuid, views) or (views.instances or {}).get(uuid) == moves.ELSEWHERE
            or any(record.state == vocabulary.RELEASING or record.migration_uuid is not None
                   or _runs(record, views.usage) for record in rows))


def _is_over(instance_uuid: str, views: Views) -> bool:
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


def report(host: str, findings: Iterable[Finding]) -> None:
    """Write findings to the log."""
    for finding in findings:
        log = LOG.info if finding.severity == reconcile.NOTE else LOG.warning
        log('Host %(host)s: %(severity)s: %(finding)s; held: %(held)s; proposed: %(proposal)s', {
            'host': host, 'severity': finding.severity, 'finding': finding, 'held': finding.held,
            'proposal': finding.proposal})
