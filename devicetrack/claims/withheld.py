"""What is withheld on a host: said by operators, seen by audits, kept in the store, in force before the first claim.

What is said is in force in the ledger before it is stored, and what is taken back is stored before it is in force: so
a crash between the two hands nothing out. The manager's memory decides; the store follows it.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import time
from typing import Final
from typing import NamedTuple
from typing import TYPE_CHECKING

from oslo_log import log as logging

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.engine import withholding
from devicetrack.engine.ledger import Ledger
from devicetrack.engine.reconcile import Views
from devicetrack.engine.withholding import Cause
from devicetrack.engine.withholding import Causes
from devicetrack.engine.withholding import Marks
from devicetrack.engine.withholding import Place
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Missing
from devicetrack.objects.values import Record
from devicetrack.store.api import Store
from devicetrack.store.api import WithheldRow

if TYPE_CHECKING:
    from devicetrack.claims.steps import Steps

LOG = logging.getLogger(__name__)

UNREAD: Final = 'who uses it could not be read'
OWNED: Final = 'the store said that it has an owner'
FORGOTTEN: Final = 'forgotten while instance {} had it: nothing proves that it is clean'

MEND_MISSING: Final = 'take it out of the option, or bring it back'

# Of devices or parents that an error lists: enough to see what names look like.
_SHOWN: Final = 10


class Withheld(NamedTuple):
    """A device or a parent, why it is withheld, and the rows of those who have it, or a part of it, still.

    ``causes`` are its own; ``parent`` is the parent of a device that is drained as all of its parent, None when it is
    not. ``warning`` says what somebody has to do now, '' when nothing. ``changed`` is False of one that was to be
    undrained and was not drained.
    """

    place: Place
    causes: Causes
    left: tuple[Record, ...]
    parent: str | None = None
    warning: str = ''
    changed: bool = True

    def __str__(self) -> str:
        causes = [reason + (f' ({self.causes[reason].detail})' if self.causes[reason].detail else '')
                  for reason in withholding.in_order(self.causes)]
        if self.parent is not None:
            causes.append(f'its parent {self.parent} is drained')
        left = ', '.join(f'instance {record.instance_uuid} has {record.identifier}, {record.state}'
                         for record in self.left)
        return (f'{self.place} is {"withheld: " + ", ".join(causes) if causes else "not withheld"}'
                + (f'; {left}' if left else '') + (f'; {self.warning}' if self.warning else ''))


class Register:
    """What a manager knows to be withheld, and what the store has of it: None while nobody knows that."""

    def __init__(self, rows: Iterable[WithheldRow] = ()) -> None:
        self.stored: dict[Place, tuple[Causes, int]] | None = _by_place(rows)
        self.marks: Marks = {place: causes for place, (causes, _generation) in (self.stored or {}).items()}


def _by_place(rows: Iterable[WithheldRow]) -> dict[Place, tuple[Causes, int]]:
    return {Place(row.kind, row.scope, row.name): (withholding.from_json(row.reasons, row.scope), row.generation)
            for row in rows}


def load(store: Store, host_uuid: str) -> Register:
    """Read what is withheld. One query."""
    return Register(store.withheld(host_uuid))


def mistakes(views: Views, marks: Marks) -> list[Missing]:
    """Devices that an option names, that the host does not have and that nobody ever knew: no manager starts so.

    One with an owner went away; that is a finding, and the rest of the host works. One that was drained or forgotten
    may be away to be mended.
    """
    known = {Place.of(record.key) for record in views.records} | marks.keys()
    return [missing for missing in views.inventory.missing if Place.of(missing.key) not in known]


# -- in the ledger ----------------------------------------------------------------------------------------------------


def enforce(ledger: Ledger, marks: Marks) -> None:
    """Let a new ledger withhold what operators said, before it reads an inventory."""
    for place, causes in marks.items():
        for reason, cause in causes.items():
            if cause.stands:
                _stand(ledger, place, reason)


def resume(ledger: Ledger, marks: Marks, views: Views) -> None:
    """Let a new ledger withhold what the last audits saw, until this one has seen otherwise.

    The inventory says again what is unhealthy, where it could be read.
    """
    for place, causes in marks.items():
        key = DeviceKey(place.kind, place.name)
        for reason, cause in causes.items():
            if cause.stands or place.scope != vocabulary.DEVICE:
                continue
            if reason != vocabulary.UNHEALTHY:
                ledger.withhold_free(key, reason)
            elif key.kind not in views.inventory.known_kinds:
                ledger.withhold(key, reason)


def _stand(ledger: Ledger, place: Place, reason: str) -> None:
    if place.scope == vocabulary.PARENT:
        ledger.drain(place.kind, place.name)
    else:
        ledger.stand(DeviceKey(place.kind, place.name), reason)


def _stand_down(ledger: Ledger, place: Place, reason: str) -> None:
    if place.scope == vocabulary.PARENT:
        ledger.undrain(place.kind, place.name)
    else:
        ledger.stand_down(DeviceKey(place.kind, place.name), reason)


# -- in the store -----------------------------------------------------------------------------------------------------


def note(manager: Steps, views: Views) -> None:
    """After a look: have the store say what the ledger says. Where nothing differs nothing is written.

    A store that refuses is asked again by the next audit; what is withheld stays so meanwhile.
    """
    with manager.marking:
        register = manager.withheld
        with manager.lock:
            reasons = manager.ledger.reasons()
            known = {key for place in register.marks if (key := DeviceKey(place.kind, place.name)) in reasons
                     or key.kind in views.inventory.known_kinds or manager.ledger.find(key) is not None}
        if not reasons and not register.marks and register.stored == {}:
            return
        register.marks = withholding.after_audit(register.marks, reasons, known, _details(reasons, views),
                                                 int(time.time()))
        try:
            _bring(manager, register.marks)
        except exception.StoreError as error:
            LOG.warning('What is withheld on host %(host)s is not stored yet: %(error)s',
                        {'host': manager.host, 'error': error})


def _details(reasons: Mapping[DeviceKey, frozenset[str]], views: Views) -> dict[tuple[DeviceKey, str], str]:
    details = {(device.key, vocabulary.UNHEALTHY): device.unhealthy
               for device in views.inventory.devices if device.unhealthy is not None}
    users: dict[DeviceKey, set[str]] = {}
    for use in views.usage.uses:
        if use.identifier is not None and (use.kind, use.identifier) in reasons:
            users.setdefault(DeviceKey(use.kind, use.identifier), set()).add(use.domain_uuid)
    doubt = UNREAD if views.usage.unknown else OWNED
    for key in reasons:
        details[key, vocabulary.IN_DOUBT] = doubt
        if key in users:
            details[key, vocabulary.FOREIGN] = f'named by domain {", ".join(sorted(users[key]))}'
    return details


def _bring(manager: Steps, marks: Marks) -> None:
    """Have the store say this. For who holds ``marking``.

    :raises StoreError: it may have been written when nobody knows; then it is read anew before the next time
    """
    register = manager.withheld
    if register.stored is None:
        register.stored = _by_place(manager.store.withheld(manager.host_uuid))
    stored, now = register.stored, int(time.time())

    def row(place: Place, causes: Causes, generation: int) -> WithheldRow:
        return WithheldRow(manager.host_uuid, *place, withholding.to_json(causes), generation, now)

    after = {place: stored[place] if place in stored and stored[place][0] == causes
             else (causes, stored[place][1] + 1 if place in stored else 1) for place, causes in marks.items()}
    write = [row(place, *entry) for place, entry in after.items() if stored.get(place) != entry]
    delete = [row(place, *entry) for place, entry in stored.items() if place not in after]
    if write or delete:
        try:
            manager.store.set_withheld(write, delete)
        except exception.NothingWritten:
            raise
        except BaseException:
            register.stored = None
            raise
        register.stored = after


# -- what operators say -----------------------------------------------------------------------------------------------


def drain(manager: Steps, place: Place, detail: str) -> Withheld:
    """Let nobody have a device, or anything of a parent, from now on; whoever has it keeps it. May be repeated.

    :param detail: why; '' keeps what was said before
    :raises BadRequest: this host has no such device or parent
    :raises StoreError: it is not drained; after OutcomeUnknown it is, and the next audit stores it
    """
    with manager.marking:
        before = manager.withheld.marks.get(place, {}).get(vocabulary.DRAINED)
        if before is None:
            _check_known(manager, place)
        since, said = (before.since, before.detail) if before is not None else (int(time.time()), '')
        say(manager, place, vocabulary.DRAINED, detail or said, since)
        LOG.warning('Host %(host)s: %(place)s is drained: %(detail)s', {
            'host': manager.host, 'place': place, 'detail': detail or said or 'no reason given'})
    return state_of(manager, place)


def undrain(manager: Steps, place: Place) -> Withheld:
    """End what :func:`drain` began. May be repeated.

    :raises BadRequest: it is not drained, and this host has no such device or parent
    :raises StoreError: it stays drained; after OutcomeUnknown too
    """
    with manager.marking:
        drained = vocabulary.DRAINED in manager.withheld.marks.get(place, {})
        if drained:
            take_back(manager, place, vocabulary.DRAINED)
            LOG.warning('Host %(host)s: %(place)s is not drained any more', {'host': manager.host, 'place': place})
        else:
            _check_known(manager, place)
        return state_of(manager, place)._replace(warning=_warning(manager, place), changed=drained)


def _warning(manager: Steps, place: Place) -> str:
    """What keeps the next manager from starting: an option names a device that is away and not drained any more."""
    if place in manager.withheld.marks:
        return ''
    for missing in _missing(manager, place):
        if not left_at(place, manager.store.records(manager.host_uuid)):
            return (f'no manager starts while {missing.option} names it and this host does not have it: '
                    f'{MEND_MISSING}')
    return ''


def _missing(manager: Steps, place: Place) -> list[Missing]:
    """What an option says of a device that is not there. The hypervisor is not asked about any other."""
    with manager.lock:
        there = manager.ledger.find(DeviceKey(place.kind, place.name)) is not None
    if there or place.scope == vocabulary.PARENT:
        return []
    try:
        return [missing for missing in manager.driver.get_inventory().missing if Place.of(missing.key) == place]
    except exception.DriverError:
        return []


def admit(manager: Steps, key: DeviceKey) -> Withheld:
    """End the doubt about a device that was forgotten: somebody knows that it is clean.

    :raises BadRequest: nobody forgot it
    :raises NotAdmitted: the host does not have it, somebody owns or uses it, or one of these cannot be told
    :raises HypervisorUnreachable, StoreError: no answer; it stays withheld
    """
    place = Place.of(key)
    with manager.marking:
        cause = manager.withheld.marks.get(place, {}).get(vocabulary.IN_DOUBT)
        if cause is None or not cause.stands:
            forgotten = [str(other) for other, causes in manager.withheld.marks.items()
                         if vocabulary.IN_DOUBT in causes and causes[vocabulary.IN_DOUBT].stands]
            drained = 'it is drained: device undrain; ' if (
                vocabulary.DRAINED in manager.withheld.marks.get(place, {})) else ''
            raise exception.BadRequest('device', str(place), 'it was not forgotten, and admit is for those alone; '
                                       f'{drained}those that were forgotten are {_some(forgotten)}')
        usage = manager.driver.get_usage()
        for unknown in usage.unknown:
            raise exception.NotAdmitted(str(place), f'{unknown.what} cannot be read ({unknown.reason}): mend that '
                                        'first')
        for use in usage.uses:
            if (use.kind, use.identifier) == key:
                raise exception.NotAdmitted(str(place), f'domain {use.domain_uuid} names it')
        for record in manager.store.records(manager.host_uuid, keys=[key]):
            raise exception.NotAdmitted(str(place), f'instance {record.instance_uuid} has it')
        _check_there(manager, key)
        take_back(manager, place, vocabulary.IN_DOUBT)
        LOG.warning('Host %(host)s: %(place)s is clean, as somebody said', {'host': manager.host, 'place': place})
    return state_of(manager, place)


def _check_there(manager: Steps, key: DeviceKey) -> None:
    """See that the host has a device that somebody calls clean: one that comes back later has its old bytes.

    :raises NotAdmitted: it has not, or that cannot be told
    """
    inventory = manager.driver.get_inventory()
    if any(device.key == key for device in inventory.devices):
        return
    for unknown in inventory.unknown:
        raise exception.NotAdmitted(str(Place.of(key)), f'{unknown.what} cannot be read ({unknown.reason}): mend that '
                                    'first')
    raise exception.NotAdmitted(str(Place.of(key)), 'the host does not have it, or no option names it, so nobody can '
                                'have cleaned it: admit it when it is there and zeroed')


def say(manager: Steps, place: Place, reason: str, detail: str, since: int) -> None:
    """Withhold something until an operator takes it back. For who holds ``marking``."""
    register, before = manager.withheld, manager.withheld.marks
    earlier = before.get(place, {}).get(reason)
    with manager.lock:
        _stand(manager.ledger, place, reason)
    register.marks = {**before, place: {**before.get(place, {}),
                                        reason: Cause(since, detail, vocabulary.BY_OPERATOR)}}
    try:
        _bring(manager, register.marks)
    except exception.NothingWritten:
        register.marks = before
        if earlier is None or not earlier.stands:
            with manager.lock:
                _stand_down(manager.ledger, place, reason)
                if earlier is not None:
                    manager.ledger.withhold(DeviceKey(place.kind, place.name), reason)
        raise


def take_back(manager: Steps, place: Place, reason: str) -> None:
    """End what :func:`say` began. For who holds ``marking``."""
    register = manager.withheld
    causes = {other: cause for other, cause in register.marks[place].items() if other != reason}
    after = {other: of_other for other, of_other in register.marks.items() if other != place}
    if causes:
        after[place] = causes
    _bring(manager, after)
    register.marks = after
    with manager.lock:
        _stand_down(manager.ledger, place, reason)


def forget(store: Store, host_uuid: str, key: DeviceKey, instance_uuid: str) -> None:
    """Say of a device of a host without a manager that it was forgotten."""
    place = Place.of(key)
    causes, generation = _by_place(store.withheld(host_uuid)).get(place, ({}, 0))
    cause = Cause(int(time.time()), FORGOTTEN.format(instance_uuid), vocabulary.BY_OPERATOR)
    store.set_withheld([WithheldRow(host_uuid, *place, withholding.to_json({**causes, vocabulary.IN_DOUBT: cause}),
                                    generation + 1, cause.since)])


def _check_known(manager: Steps, place: Place) -> None:
    """:raises BadRequest: this host has no such device or parent, and no option names it."""
    with manager.lock:
        parents = manager.ledger.parents()
        devices = [unit.key for unit in manager.ledger.units()]
    known = parents if place.scope == vocabulary.PARENT else devices
    if (place.kind, place.name) in known or _missing(manager, place):
        return
    names = sorted(str(name) for kind, name in known if kind == place.kind)
    if place.scope == vocabulary.DEVICE and (place.kind, place.name) in parents:
        reason = 'it is a parent of devices: say --parent'
    elif names:
        reason = f'of the {place.scope}s of this kind this host has {_some(names)}'
    else:
        kinds = sorted({kind for kind, _name in known})
        reason = f'this host has no {place.scope} of this kind; it has some of kind {_some(kinds)}'
    raise exception.BadRequest(place.scope, str(place), reason)


def _some(names: Sequence[str]) -> str:
    shown = ', '.join(names[:_SHOWN]) or 'none'
    return f'{shown} and {len(names) - _SHOWN} more' if len(names) > _SHOWN else shown


# -- what is asked ----------------------------------------------------------------------------------------------------


def state_of(manager: Steps, place: Place) -> Withheld:
    """One device or parent as it is now."""
    marks = manager.withheld.marks
    with manager.lock:
        unit = manager.ledger.find(DeviceKey(place.kind, place.name)) if place.scope == vocabulary.DEVICE else None
        parent = unit.pool.parent_name if unit is not None else None
    drained = parent is not None and vocabulary.DRAINED in marks.get(Place.named(place.kind, parent, parent=True), {})
    return Withheld(place, marks.get(place, {}), left_at(place, manager.store.records(manager.host_uuid)),
                    parent if drained else None)


def left_at(place: Place, records: Iterable[Record]) -> tuple[Record, ...]:
    """The rows of those who have a device, or devices of a parent."""
    return tuple(record for record in records if place.has(record.kind, record.identifier, record.parent))


def listed(marks: Marks, reasons: Mapping[DeviceKey, frozenset[str]], records: Sequence[Record],
           views: Views | None = None) -> list[Withheld]:
    """All that is withheld.

    :param reasons: what a ledger says: what no audit has noted yet has no time, and neither has what an option says
    :param views: say why, of what no audit has noted yet
    """
    details = {} if views is None else _details(reasons, views)
    found: dict[Place, dict[str, Cause]] = {place: dict(causes) for place, causes in marks.items()}
    for key, of_device in reasons.items():
        # Drained are those that have a mark, or all of a parent, which has one.
        for reason in of_device.intersection(vocabulary.WITHHELD_REASONS) - {vocabulary.DRAINED}:
            found.setdefault(Place.of(key), {}).setdefault(reason, Cause(
                0, details.get((key, reason), ''), withholding.SEEN.get(reason, vocabulary.BY_HOST)))
    return [Withheld(place, causes, left_at(place, records)) for place, causes in sorted(found.items()) if causes]
