"""Carries out what :mod:`devicetrack.engine.repair` planned, and forgets dead devices: by the steps of a manager.

The manager works, or it was made by a command for nothing else; either way it holds the host's lock, and each repair
counts only on a row that is still as the plan saw it.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
import contextlib
import itertools
import time
from typing import NamedTuple
from typing import TYPE_CHECKING

from oslo_concurrency import lockutils
from oslo_log import log as logging

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.claims import looking
from devicetrack.claims import withheld
from devicetrack.engine import ledger as ledgers
from devicetrack.engine import reconcile
from devicetrack.engine import repair
from devicetrack.engine.reconcile import Finding
from devicetrack.engine.reconcile import Views
from devicetrack.engine.repair import Repair
from devicetrack.engine.withholding import Place
from devicetrack.objects import details
from devicetrack.objects import DeviceAssignment
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import GuestRecord
from devicetrack.objects.values import Record
from devicetrack.store.api import Changes
from devicetrack.store.api import ContextChange
from devicetrack.store.api import Host
from devicetrack.store.api import Store
from devicetrack.store.api import Update

if TYPE_CHECKING:
    from devicetrack.claims.steps import Steps
    from devicetrack.virt.driver import VirtDriver

LOG = logging.getLogger(__name__)


class Plan(NamedTuple):
    """What is to be done, and what has to wait: for somebody who accepts the store, or until the rows are complete."""

    repairs: tuple[Repair, ...]
    waiting: tuple[Repair, ...]

    @property
    def to_accept(self) -> int:
        """How many rows are written only when somebody accepts the store."""
        return sum(one.verb == repair.ADOPT for one in self.waiting)


class Outcome(NamedTuple):
    """What became of a repair; ``error`` says why it was not done."""

    repair: Repair
    error: str | None


def plan(read: Callable[[], Views], accept: bool = False) -> tuple[list[Finding], Plan]:
    """Look twice and say what to do about what both looks show.

    :param read: reads the views of the host
    :param accept: write the rows of guests that are newer than their store
    :raises StoreLost: the store has no row at all, and to accept it would hand out what nobody can vouch for
    """
    first = read()
    views = read()
    findings = reconcile.confirmed(reconcile.compare(first), reconcile.compare(views))
    lost = looking.lost_rows(views)
    if accept and lost and not views.records:
        raise exception.StoreLost(views.host)
    return findings, choose(repair.plan(findings, views), bool(lost), accept)


def choose(repairs: Iterable[Repair], behind: bool, accept: bool) -> Plan:
    """Of a plan, what may be done now.

    :param behind: the store is older than its guests: until its rows are complete nothing is given back
    """
    now: list[Repair] = []
    waiting: list[Repair] = []
    for one in repairs:
        may = accept if one.verb == repair.ADOPT else not behind or one.verb == repair.UPDATE_DETAILS
        (now if may else waiting).append(one)
    return Plan(tuple(now), tuple(waiting))


def repair_host(manager: Steps, accept: bool) -> list[Outcome]:
    """Plan for a manager's host and carry that out."""
    return carry_out(manager, plan(lambda: looking.read(manager), accept)[1].repairs)


def carry_out(manager: Steps, repairs: Sequence[Repair]) -> list[Outcome]:
    """Do what a plan says, instance by instance, and log each row before and after.

    :returns: what became of each, in the order of the plan
    """
    errors: dict[Repair, str | None] = {}
    for (verb, instance_uuid), some in itertools.groupby(
            sorted(repairs, key=lambda one: (repair.VERBS.index(one.verb), one.instance_uuid)),
            key=lambda one: (one.verb, one.instance_uuid)):
        of_instance = list(some)
        try:
            with manager.working(instance_uuid, wait=False):
                errors.update(_WORK[verb](manager, of_instance))
        except lockutils.AcquireLockFailedException:
            errors.update(dict.fromkeys(of_instance, 'something works on the devices of its instance just now'))
        except exception.DeviceTrackError as error:
            errors.update(dict.fromkeys(of_instance, str(error)))
    for one in repairs:
        if errors[one] is None:
            LOG.warning('Host %(host)s repaired: %(repair)s', {'host': manager.host, 'repair': one})
        else:
            LOG.warning('Host %(host)s not repaired: %(repair)s: %(error)s',
                        {'host': manager.host, 'repair': one, 'error': errors[one]})
    return [Outcome(one, errors[one]) for one in repairs]


# Each of these works on rows of one instance whose ``working`` lock is held, and says of each what went wrong.
_Errors = dict[Repair, str | None]
_CHANGED = 'its row has changed since'


def _adopt(manager: Steps, repairs: Sequence[Repair]) -> _Errors:
    """Hold, then record: all rows of the instance in one transaction, those that an older store has for others too."""
    with contextlib.ExitStack() as others:
        for owner in sorted({one.before.instance_uuid for one in repairs if one.before is not None}):
            others.enter_context(manager.working(owner, wait=False))
        return _adopt_from(manager, repairs, int(time.time()))


def _adopt_from(manager: Steps, repairs: Sequence[Repair], now: int) -> _Errors:
    rows = {one: one.after._replace(created_at=now) for one in repairs if one.after is not None}
    known = {row.key: row for row in manager.store.records(manager.host_uuid, keys=[one.device for one in rows])}
    for one in rows:
        if known.get(one.device) != one.before:
            return dict.fromkeys(repairs, f'{_name(one.device)} has another row by now')
    with manager.lock:
        taken = [one.device for one in rows if _is_taken(manager.ledger.find(one.device), one.before)]
        if not taken:
            manager.ledger.hold(list(rows.values()))
    if taken:
        return dict.fromkeys(repairs, f'{_name(taken[0])} is being taken or given back just now')
    try:
        manager.write(Changes(insert=tuple(row for one, row in rows.items() if one.before is None),
                              update=tuple(Update(one.before, row) for one, row in rows.items()
                                           if one.before is not None)))
    except exception.NothingWritten:
        with manager.lock:
            for one, row in rows.items():
                unit = manager.ledger.find(row.key)
                if one.before is not None:
                    manager.ledger.hold([one.before])
                elif unit is not None:
                    manager.ledger.free(unit)       # a device that a domain names is withheld still
        raise
    return dict.fromkeys(repairs)


def _is_taken(unit: ledgers.Unit | None, before: Record | None) -> bool:
    """Whether a device is held for another than the row says."""
    if unit is None or unit.holding is None:
        return False
    return before is None or unit.holding.instance_uuid != before.instance_uuid


def _update(manager: Steps, repairs: Sequence[Repair]) -> _Errors:
    errors = _unchanged(manager, repairs)
    changes = tuple(Update(one.before, one.after) for one in repairs
                    if errors[one] is None and one.before is not None and one.after is not None)
    if changes:
        manager.write(Changes(update=changes))
    return errors


def _give(manager: Steps, repairs: Sequence[Repair]) -> _Errors:
    errors = _unchanged(manager, repairs)
    rows = [one.before for one in repairs if errors[one] is None and one.before is not None]
    everything = len(rows) == len(manager.records_of(repairs[0].instance_uuid))
    try:
        if rows:
            (manager.release_all if everything else manager.give)(rows)
    except exception.DriverError as error:
        left = {record.key for record in manager.records_of(repairs[0].instance_uuid)}
        errors.update({one: str(error) for one in repairs if errors[one] is None and one.device in left})
    return errors


_WORK = {repair.ADOPT: _adopt, repair.UPDATE_DETAILS: _update, repair.RETRY_RELEASE: _give, repair.GIVE_BACK: _give}


def _unchanged(manager: Steps, repairs: Sequence[Repair]) -> _Errors:
    rows = {record.key: record for record in manager.records_of(repairs[0].instance_uuid)}
    return {one: None if rows.get(one.device) == one.before else _CHANGED for one in repairs}


# -- forgetting -------------------------------------------------------------------------------------------------------


def forget(manager: Steps, key: DeviceKey, instance_uuid: str) -> Record:
    """End the row of a device that the host does not have any more. Nothing is wiped: there is nothing to wipe.

    If it comes back, it is in doubt until somebody says that it is clean. That is noted first: after an error it may be
    noted of a device that keeps its row.

    :param instance_uuid: its owner, as somebody confirmed it
    :returns: the row as it was
    :raises NotAssigned: nobody holds the device
    :raises NotForgotten: it has another owner, the host may still have it or get it back as it is, a guest may use
        it, or one of these cannot be told
    :raises HypervisorUnreachable, StoreError: no answer
    """
    with manager.working(instance_uuid):
        record = _owned(manager.store, manager.host_uuid, manager.host, key, instance_uuid)
        for _look in range(2):
            _refuse(looking.read(manager), manager.driver.guest_records(), record)
        _refuse_present(manager.driver, record)
        if not _leaves_nothing(record):
            with manager.marking:
                withheld.say(manager, Place.of(key), vocabulary.IN_DOUBT, withheld.FORGOTTEN.format(instance_uuid),
                             int(time.time()))
        contexts: tuple[ContextChange, ...] = ()
        if record.migration_uuid is not None and len(manager.records_of(instance_uuid)) == 1:
            contexts = (ContextChange(manager.host_uuid, instance_uuid, None, None),)
        manager.write(Changes(delete=(record,), contexts=contexts))
        with manager.lock:
            unit = manager.ledger.find(key)
            if unit is not None:
                manager.ledger.withhold(key, ledgers.GONE)
                manager.ledger.free(unit)
    _tell_forgotten(manager.host, record)
    return record


def forget_of_machine(store: Store, host: Host, machine_id: str, key: DeviceKey, instance_uuid: str) -> Record:
    """End the row of a device of a machine that is gone for good, as somebody says who knows.

    :param machine_id: the digest of this machine's
    :raises NotForgotten: the host is this machine, or the device has another owner
    :raises NotAssigned, StoreError: as :func:`forget`
    """
    if host.machine_id == machine_id:
        raise exception.NotForgotten(_name(key), f'host {host.name} is this machine')
    record = _owned(store, host.uuid, host.name, key, instance_uuid)
    if not _leaves_nothing(record):
        withheld.forget(store, host.uuid, key, instance_uuid)
    store.write(Changes(delete=(record,)))
    _tell_forgotten(host.name, record)
    return record


def _leaves_nothing(record: Record) -> bool:
    """Whether a device of this name that comes back is certainly another one."""
    try:
        return details.from_text(record.details).goes_with_its_assignment
    except (exception.UnknownObject, exception.MalformedObject):
        return False


def _tell_forgotten(host: str, record: Record) -> None:
    LOG.warning('Host %(host)s: %(repair)s', {'host': host, 'repair': Repair(
        'forget', record.key, record.instance_uuid, record, None, 'somebody confirmed it')})


def _owned(store: Store, host_uuid: str, host: str, key: DeviceKey, instance_uuid: str) -> Record:
    found = store.records(host_uuid, keys=[key])
    if not found:
        raise exception.NotAssigned(_name(key), host)
    if found[0].instance_uuid != instance_uuid:
        raise exception.NotForgotten(_name(key), f'it belongs to instance {found[0].instance_uuid}, and '
                                     f'{instance_uuid} was confirmed')
    return found[0]


def _refuse(views: Views, guests: Iterable[GuestRecord], record: Record) -> None:
    """Say why a device must not be forgotten by what the views say.

    :raises NotForgotten: there is a reason
    """
    key, usage, inventory = record.key, views.usage, views.inventory

    def refuse(reason: str) -> None:
        raise exception.NotForgotten(_name(key), reason)

    for unknown in (*usage.unknown, *inventory.unknown):
        refuse(f'{unknown.what} cannot be read ({unknown.reason}): mend that first')
    if key.kind not in inventory.known_kinds:
        refuse(f'nobody reads the {key.kind} devices of this host: see its options')
    if any(device.key == key for device in inventory.devices):
        refuse('the host has it, or another device of its name: release its instance, which wipes it')
    recording = {guest.instance_uuid for guest in guests
                 if any((device.kind, device.identifier) == key and not device.beside for device in guest.devices)}
    for use in usage.uses:
        # The address of a device that is not there leads to nothing; it may be this one's all the same.
        maybe = use.identifier is None and (
            use.address == key.identifier or use.domain_uuid == record.instance_uuid or use.domain_uuid in recording)
        if use.kind == key.kind and (use.identifier == key.identifier or maybe):
            refuse(f'domain {use.domain_uuid} names {"a device that is not there" if maybe else "it"}: '
                   'remove it from the domain')


def _refuse_present(driver: VirtDriver, record: Record) -> None:
    """A namespace that no option names is not in the inventory; its driver finds it all the same."""
    try:
        driver.guest_config([DeviceAssignment.from_record(record)])
    except exception.DeviceGone:
        return
    raise exception.NotForgotten(_name(record.key), 'the host has it, though no option names it: name it again and '
                                 'release its instance, which wipes it')


def _name(key: DeviceKey) -> str:
    return f'{key.kind}/{key.identifier}'
