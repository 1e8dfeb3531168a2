"""Why devices are withheld: the words for it, what holds though a device is not there, and what is to be stored.

A device may have several reasons. What an operator said of it, or of its parent, stands until an operator takes it
back, whether the device is there at the moment or not. All else is what the host and the hypervisor say, and ends when
they are seen to say otherwise: a view that could not be read ends nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
import json
from typing import Final
from typing import NamedTuple

from devicetrack import vocabulary
from devicetrack.objects.values import DeviceKey

# Every device that is well shares it.
NO_REASON: Final[frozenset[str]] = frozenset()

# What an audit sees by itself, and by whose word. An option says what is not to be adopted: it is read at every start.
SEEN: Final = {vocabulary.UNHEALTHY: vocabulary.BY_HOST, vocabulary.FOREIGN: vocabulary.BY_AUDIT,
               vocabulary.IN_DOUBT: vocabulary.BY_AUDIT}

_ORDER: Final = {reason: number for number, reason in enumerate(vocabulary.WITHHELD_REASONS)}

UNREADABLE: Final = 'what the store says of it cannot be read'


class Target(NamedTuple):
    """What is withheld: the device of this name, or by ``scope`` all of the parent of this name."""

    kind: str
    scope: str
    name: str

    @classmethod
    def of(cls, key: DeviceKey) -> Target:
        return cls(key.kind, vocabulary.DEVICE, key.identifier)

    @classmethod
    def named(cls, kind: str, name: str, parent: bool) -> Target:
        return cls(kind, vocabulary.PARENT if parent else vocabulary.DEVICE, name)

    def __str__(self) -> str:
        return f'{"parent " if self.scope == vocabulary.PARENT else ""}{self.kind}/{self.name}'

    def has(self, kind: str, identifier: str | None, parent: str | None) -> bool:
        """Whether a device is this one, or of this parent."""
        return kind == self.kind and self.name == (parent if self.scope == vocabulary.PARENT else identifier)


class Cause(NamedTuple):
    """More on one reason: since when, in seconds since the epoch and only a label; why; and by whose word."""

    since: int
    detail: str
    by: str

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
    return json.dumps({reason: cause._asdict() for reason, cause in causes.items()}, sort_keys=True)


def from_json(stored: str, scope: str) -> dict[str, Cause]:
    """The reasons of one target. What cannot be read withholds it all the same, until an operator has seen to it."""
    try:
        return {str(reason): Cause(int(cause['since']), str(cause['detail']), str(cause['by']))
                for reason, cause in json.loads(stored).items()}
    except (ValueError, TypeError, KeyError, AttributeError):
        reason = vocabulary.DRAINED if scope == vocabulary.PARENT else vocabulary.IN_DOUBT
        return {reason: Cause(0, UNREADABLE, vocabulary.BY_OPERATOR)}


class Standing:
    """What stands, for a ledger: reasons by device, and parents that are drained. False when there is nothing."""

    __slots__ = ('devices', 'parents')

    def __init__(self) -> None:
        self.devices: dict[tuple[str, str | None], frozenset[str]] = {}
        self.parents: dict[tuple[str, str | None], None] = {}

    def __bool__(self) -> bool:
        return bool(self.devices or self.parents)

    def of(self, key: tuple[str, str | None], parent: str | None) -> frozenset[str]:
        """The reasons that stand for a device."""
        reasons = self.devices.get(key, NO_REASON)
        return reasons | {vocabulary.DRAINED} if (key[0], parent) in self.parents else reasons

    def add(self, key: DeviceKey, reason: str) -> None:
        self.devices[key] = self.devices.get(key, NO_REASON) | {reason}

    def discard(self, key: DeviceKey, reason: str) -> None:
        reasons = self.devices.pop(key, NO_REASON) - {reason}
        if reasons:
            self.devices[key] = reasons


def after_audit(marks: Marks, withheld: Mapping[DeviceKey, Collection[str]], known: Collection[DeviceKey],
                details: Mapping[tuple[DeviceKey, str], str], now: int) -> dict[Target, dict[str, Cause]]:
    """What is to be stored after an audit: what was stored before it, as far as that still holds, and what is new.

    :param withheld: the reasons of devices that have any
    :param known: of devices with marks, those that the ledger has, or would have if they were there: of all others
        nothing was seen
    :param details: why, for a reason of a device, where the audit could see that
    """
    after: dict[Target, dict[str, Cause]] = {}
    for target, causes in marks.items():
        key = DeviceKey(target.kind, target.name)
        seen = target.scope == vocabulary.DEVICE and key in known
        kept = {reason: cause for reason, cause in causes.items()
                if cause.stands or not seen or reason in withheld.get(key, ())}
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
