"""Devices of which nobody can say whether they are free: withheld, or held, until somebody can.

A domain names one without a row, the store refused one that looked free, a commit was not answered, or a row is there
that this process did not write.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
from typing import NamedTuple
from typing import TYPE_CHECKING

from oslo_concurrency import lockutils
from oslo_log import log as logging

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.claims import looking
from devicetrack.engine import ledger as ledgers
from devicetrack.engine import reconcile
from devicetrack.engine.reconcile import Finding
from devicetrack.engine.reconcile import Views
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Record
from devicetrack.store.api import Changes

if TYPE_CHECKING:
    from devicetrack.claims.steps import Steps

LOG = logging.getLogger(__name__)


class Doubt(NamedTuple):
    """A commit whose outcome is not known and the holding that keeps its devices until it is.

    ``undo`` when the caller was told that its claim failed: if it happened after all, it is given back.
    """

    holding: ledgers.Holding
    changes: Changes
    undo: bool = False


@contextlib.contextmanager
def if_idle(manager: Steps, instance_uuid: str) -> Iterator[bool]:
    """Say whether nothing works on an instance's devices, and if so let nothing begin."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(manager.working(instance_uuid, wait=False))
        except lockutils.AcquireLockFailedException:
            yield False
            return
        yield True


# -- devices that nobody may have -------------------------------------------------------------------------------------


def withhold(ledger: ledgers.Ledger, looks: Sequence[Views]) -> None:
    """Withhold free devices that a domain names without a row, or that nobody can vouch for; admit the others.

    Under the lock, and in one go with taking over the inventory that brought new devices. A device is withheld when
    every look that can tell shows it in use, and admitted when every look can tell and none shows it.
    """
    seen = [(looking.foreign(look), bool(look.usage.unknown)) for look in looks]
    suspected = {key for foreign, _ in seen for key in foreign}
    confirmed = {key for key in suspected if all(key in foreign or unknown for foreign, unknown in seen)}
    if not any(unknown for _, unknown in seen):
        for key in ledger.withheld(vocabulary.FOREIGN):
            if key not in suspected:
                ledger.admit(key, vocabulary.FOREIGN)
        doubtful = ledger.withheld(vocabulary.IN_DOUBT)
        # Of a device that is held for the owner that its row names nobody doubts any more whose it is.
        taken = {record.key for record in looks[-1].records if not ledger.holds(record)} if doubtful else set()
        for key in doubtful:
            if key not in taken and (key not in suspected or key in confirmed):
                ledger.admit(key, vocabulary.IN_DOUBT)
    for key in confirmed:
        ledger.withhold(key, vocabulary.FOREIGN)
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
    free = distrusted - owned - looking.used(usage) if not usage.unknown else set()
    with manager.lock:
        for key in free:
            manager.ledger.admit(key, vocabulary.IN_DOUBT)
    return bool(free)


# -- commits in doubt -------------------------------------------------------------------------------------------------


def settle(manager: Steps) -> None:
    """Ask the store what became of commits whose answer was lost; what it cannot say yet stays held."""
    for doubt in list(manager.doubts):
        instance_uuid = doubt.holding.instance_uuid
        with if_idle(manager, instance_uuid) as idle:
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
        settle(manager)
        _let_go(manager, instance_uuid)


def finding(doubt: Doubt) -> Finding:
    keys = doubt.changes.keys
    names = ', '.join(f'{key.kind} {key.identifier}' for key in keys)
    return Finding(reconcile.IN_DOUBT, reconcile.WARNING, keys[0] if keys else reconcile.NO_DEVICE,
                   doubt.holding.instance_uuid, (), 0, f'nobody knows yet whether the commit for {names} happened',
                   'the devices of the commit', 'none: the next audit asks the store again')


# -- what rows say ----------------------------------------------------------------------------------------------------


def follow_rows(manager: Steps, records: Sequence[Record]) -> None:
    """Hold what rows say and nobody in this process knows of; free what was held for rows that are gone.

    Rows of a host are written by its manager alone. Such rows are of a commit that became visible late, or of
    somebody who should not have written them; either way their devices have an owner.
    """
    with manager.lock:
        strange = {record.instance_uuid for record in records if not manager.ledger.holds(record)}
    for instance_uuid in sorted(strange):
        with if_idle(manager, instance_uuid) as idle:
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
    with if_idle(manager, instance_uuid) as idle:
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
