"""Reasons why devices are withheld: how they are written, which stand for absent devices, and which are stored.

A device may have several reasons. An operator's reason for it, or for its parent, stands until an operator takes it
back, whether the device is there or not. All other reasons come from the host and the hypervisor, and end when these
show otherwise. A view that could not be read ends no reason.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
import json
from typing import Final
from typing import NamedTuple

from devicetrack import vocabulary
from devicetrack.engine.views import kinds_with_unread_names
from devicetrack.engine.views import Views
from devicetrack.objects import event as events
from devicetrack.objects.compact import Compact
from devicetrack.objects.event import Event
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import InventoryDevice

# All devices without a reason share it.
NO_REASON: Final[frozenset[str]] = frozenset()

# The reasons that an audit sees by itself, and their sources. Whether a device of others counts is said by an option,
# which is read at every start.
SEEN: Final = {vocabulary.UNHEALTHY: vocabulary.BY_HOST, vocabulary.FOREIGN: vocabulary.BY_AUDIT,
               vocabulary.IN_DOUBT: vocabulary.BY_AUDIT, vocabulary.UNPROVEN: vocabulary.BY_HOST}

_ORDER: Final = {reason: number for number, reason in enumerate(vocabulary.WITHHELD_REASONS)}

UNREADABLE: Final = 'its reasons in the store cannot be read'
UNREAD: Final = 'who uses it could not be read'
OWNED: Final = 'the store says that it has an owner'
UNNAMED: Final = 'it may be the device of a row whose kind or identifier is damaged'


class Target(NamedTuple):
    """A device that is withheld or, by ``scope``, a parent with everything it has and could make, or the whole host."""

    kind: str
    scope: str
    name: str

    @classmethod
    def of(cls, key: DeviceKey) -> Target:
        return cls(key.kind, vocabulary.DEVICE, key.identifier)

    @classmethod
    def named(cls, kind: str, name: str, parent: bool) -> Target:
        return cls(kind, vocabulary.PARENT if parent else vocabulary.DEVICE, name)

    @classmethod
    def host(cls, name: str) -> Target:
        return cls('', vocabulary.HOST, name)

    def __str__(self) -> str:
        if self.scope == vocabulary.HOST:
            return f'host {self.name}'
        return f'{"parent " if self.scope == vocabulary.PARENT else ""}{self.kind}/{self.name}'

    def has(self, kind: str, identifier: str | None, parent: str | None) -> bool:
        """Whether a device is this one, or of this parent or host."""
        return self.scope == vocabulary.HOST or kind == self.kind and self.name == (
            parent if self.scope == vocabulary.PARENT else identifier)


# Reasons by the names that an earlier release stored.
_EARLIER: Final = {'drained': vocabulary.CORDONED}


class Cause(NamedTuple):
    """The facts of one reason: ``since`` when it holds, why (``detail``), and who set it (``by``).

    ``since`` is in seconds since the epoch, and only a label. ``tries`` counts the failed releases, or the failed tries
    to make it ready for a guest, if they are the reason.
    """

    since: int
    detail: str
    by: str
    tries: int = 0

    @property
    def text(self) -> str:
        """Why, for people."""
        return f'{self.detail}; tried {self.tries} times' if self.tries > 1 else self.detail

    @property
    def stands(self) -> bool:
        """Whether it holds until an operator takes it back."""
        return self.by == vocabulary.BY_OPERATOR


# The reasons of one target.
Causes = Mapping[str, Cause]
Marks = Mapping[Target, Causes]


def in_order(reasons: Iterable[str]) -> list[str]:
    """Reasons as people see them, always in the same order."""
    return sorted(reasons, key=lambda reason: (_ORDER.get(reason, len(_ORDER)), reason))


def text(reasons: Iterable[str]) -> str:
    return ', '.join(in_order(reasons))


def to_json(causes: Causes) -> str:
    """The stored text of the reasons of one target."""
    return json.dumps({reason: {name: value for name, value in cause._asdict().items() if value or name != 'tries'}
                       for reason, cause in causes.items()}, sort_keys=True)


def from_json(stored: str, scope: str) -> dict[str, Cause]:
    """The reasons of one target. An unreadable text withholds the target too, until an operator acts."""
    try:
        return {_EARLIER.get(reason, str(reason)): Cause(int(cause['since']), str(cause['detail']), str(cause['by']),
                                   int(cause.get('tries', 0)))
                for reason, cause in json.loads(stored).items()}
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        reason = vocabulary.CORDONED if scope != vocabulary.DEVICE else vocabulary.IN_DOUBT
        return {reason: Cause(0, UNREADABLE, vocabulary.BY_OPERATOR)}


# The reasons that a ledger keeps until somebody ends them, whatever the host reports.
KEPT: Final = frozenset((vocabulary.NOT_REALIZED,))

_Named = tuple[str, str | None]


class Standing(NamedTuple):
    """The standing reasons of a ledger, by device and by parent, and those of the host. False when there are none.

    The devices of a cordoned parent or host are cordoned. A parent that could make no device makes no more, but the
    devices that it has are not concerned. ``why`` has the cause of :data:`.vocabulary.NOT_REALIZED`, for people.
    """

    devices: Mapping[_Named, frozenset[str]] = {}
    parents: Mapping[_Named, frozenset[str]] = {}
    why: Mapping[Target, str] = {}
    host: frozenset[str] = NO_REASON

    def __bool__(self) -> bool:
        return bool(self.devices or self.parents or self.host)

    def of(self, key: _Named, parent: str | None) -> frozenset[str]:
        """The reasons that stand for a device."""
        reasons = self.devices.get(key, NO_REASON)
        return reasons | {vocabulary.CORDONED} if vocabulary.CORDONED in self.closing(key[0], parent) else reasons

    def closing(self, kind: str, parent: str | None) -> frozenset[str]:
        """The reasons of a parent, and of its host."""
        return self.parents.get((kind, parent), NO_REASON) | self.host

    def with_reason(self, target: Target, reason: str, why: str = '') -> Standing:
        """Return the reasons with one more of a target."""
        after = self._of(target, self._reasons(target) | {reason})
        return after._replace(why={**self.why, target: why}) if reason == vocabulary.NOT_REALIZED else after

    def without(self, target: Target, reason: str) -> Standing:
        """Return the reasons without one of a target."""
        after = self._of(target, self._reasons(target) - {reason})
        return after._replace(why={other: why for other, why in self.why.items() if other != target}) \
            if reason == vocabulary.NOT_REALIZED else after

    def _reasons(self, target: Target) -> frozenset[str]:
        if target.scope == vocabulary.HOST:
            return self.host
        of_scope = self.parents if target.scope == vocabulary.PARENT else self.devices
        return of_scope.get((target.kind, target.name), NO_REASON)

    def _of(self, target: Target, reasons: frozenset[str]) -> Standing:
        if target.scope == vocabulary.HOST:
            return self._replace(host=reasons)
        name, of_parent = (target.kind, target.name), target.scope == vocabulary.PARENT
        others = {other: of_other for other, of_other in (self.parents if of_parent else self.devices).items()
                  if other != name}
        after = {**others, name: reasons} if reasons else others
        return self._replace(parents=after) if of_parent else self._replace(devices=after)


def after_audit(marks: Marks, withheld: Mapping[DeviceKey, Collection[str]], known: Collection[DeviceKey],
                details: Mapping[tuple[DeviceKey, str], str], now: int) -> dict[Target, dict[str, Cause]]:
    """The reasons to store after an audit: those stored before it that still hold, and the new ones.

    :param withheld: the reasons of devices that have any
    :param known: the devices with marks that the ledger has, or would have if they were there; the audit saw nothing
        of the others
    :param details: the cause of a reason of a device, where the audit could see it
    """
    after: dict[Target, dict[str, Cause]] = {}
    for target, causes in marks.items():
        key = DeviceKey(target.kind, target.name)
        seen = target.scope == vocabulary.DEVICE and key in known
        kept = {reason: cause for reason, cause in causes.items()
                if cause.stands or reason in KEPT or not seen or reason in withheld.get(key, ())}
        if kept:
            after[target] = kept
    for key, reasons in withheld.items():
        for reason in reasons:
            if reason not in SEEN:
                continue
            causes = after.setdefault(Target.of(key), {})
            before = causes.get(reason)
            detail = details.get((key, reason))
            if before is None:
                causes[reason] = Cause(now, detail or '', SEEN[reason])
            elif detail and not before.stands and detail != before.detail:
                causes[reason] = before._replace(detail=detail)
    return after


def details_of(reasons: Mapping[DeviceKey, frozenset[str]], views: Views,
               unproven: Mapping[DeviceKey, str] | None = None) -> dict[tuple[DeviceKey, str], str]:
    """The causes that the views show for the reasons of devices.

    :param unproven: why each unproven device is not proven clean
    """
    found = {(DeviceKey(kind, identifier), vocabulary.UNHEALTHY): unhealthy for kind, identifier, unhealthy
               in Compact(InventoryDevice, views.inventory.devices).columns('kind', 'identifier', 'unhealthy')
               if unhealthy is not None}
    users: dict[DeviceKey, set[str]] = {}
    for use in views.usage.uses if reasons else ():
        if use.identifier is not None and (use.kind, use.identifier) in reasons:
            users.setdefault(DeviceKey(use.kind, use.identifier), set()).add(use.domain_uuid)
    found.update(((key, vocabulary.UNPROVEN), why) for key, why in (unproven or {}).items())
    doubt, unread = UNREAD if views.usage.unknown else OWNED, kinds_with_unread_names(views.records)
    for key in reasons:
        found[key, vocabulary.IN_DOUBT] = UNNAMED if key.kind in unread else doubt
        if key in users:
            found[key, vocabulary.FOREIGN] = f'named by domain {", ".join(sorted(users[key]))}'
    return found


def without(marks: Marks, target: Target, reason: str) -> Marks:
    """The marks without one reason of one target."""
    causes = {other: cause for other, cause in marks[target].items() if other != reason}
    after = {other: of_other for other, of_other in marks.items() if other != target}
    return {**after, target: causes} if causes else after


class Ended(NamedTuple):
    """Who ended a reason, and the proof that the device is clean, if there is one."""

    by: str
    proof: str | None = None


def events_of(host_uuid: str, before: Marks, after: Marks, at_ms: int, request_id: str | None = None,
              ended: Mapping[tuple[Target, str], Ended] | None = None) -> list[Event]:
    """The events between two sets of marks: one for each reason that began, ended or changed.

    What fails is tried again and again; only the first failure is an event.

    :param ended: how reasons of targets were ended. The others ended because their source no longer shows them
    """
    found = []
    for target in sorted(before.keys() | after.keys()):
        was, now = before.get(target, {}), after.get(target, {})
        for reason in in_order(was.keys() | now.keys()):
            cause = now.get(reason)
            if cause is not None:
                if reason in was and (reason in _TRIED or _is_same(was[reason], cause)):
                    continue
                event = events.RETIRED if reason == vocabulary.RETIRED else events.WITHHELD
                more = {'reason': reason, 'why': cause.text, 'by': cause.by}
            else:
                event, cause = events.ADMITTED, was[reason]
                by, proof = (ended or {}).get((target, reason), (cause.by, None))
                more = {'reason': reason, 'why': cause.text, 'by': by}
                if proof is not None:
                    more['proof'] = proof
            if target.scope != vocabulary.DEVICE:
                more['scope'] = target.scope
            found.append(Event(host_uuid, target.kind, target.name, event, at_ms, request_id=request_id,
                               details=events.text(**more)))
    return found


# The reasons whose causes count failed tries.
_TRIED: Final = (vocabulary.NOT_GIVEN_BACK, vocabulary.NOT_REALIZED)


def _is_same(before: Cause, after: Cause) -> bool:
    return (before.by, before.detail) == (after.by, after.detail)


def retired(marks: Marks) -> frozenset[DeviceKey]:
    """The devices that an operator gave up."""
    return frozenset(DeviceKey(target.kind, target.name)
                     for target, causes in marks.items() if vocabulary.RETIRED in causes)


def not_realized(marks: Marks) -> dict[Target, Cause]:
    """The devices that could not be made ready, and the parents that could make none, with the last reason."""
    return {target: causes[vocabulary.NOT_REALIZED] for target, causes in marks.items()
            if vocabulary.NOT_REALIZED in causes}


# The report about a device that the host does not have.
AWAY: Final = 'away'


def report_of(target: Target, views: Views) -> object:
    """What the host reports about a device or a parent, to compare it with a later report.

    :returns: None if the report is unknown, or if the device has an owner, whose use of it changes the report
    """
    if target.kind not in views.inventory.known_kinds:
        return None
    if target.scope == vocabulary.PARENT:
        return frozenset(one for one in views.inventory.capacities if target.has(one.kind, None, one.parent))
    key = DeviceKey(target.kind, target.name)
    return None if key in views.owners else views.devices.get(key, AWAY)


def failures(marks: Marks) -> dict[DeviceKey, Cause]:
    """The devices that could not be given back, with the first time and the last reason."""
    return {DeviceKey(target.kind, target.name): causes[vocabulary.NOT_GIVEN_BACK]
            for target, causes in marks.items() if vocabulary.NOT_GIVEN_BACK in causes}
