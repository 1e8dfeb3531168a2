"""Devices that may not be held beside one another: a part and its whole of any kinds, functions of one IOMMU group.

Each device has pairs of a token and a mode: its kind reports some, and others follow from what contains what on the
host (:mod:`devicetrack.engine.containment`). Several instances may hold ``part`` devices of one token.
A ``whole`` device may not be held beside a part or another whole. All ``together`` devices of a token that are held
belong to one instance. If somebody has a device, each free device that may not be held beside it is withheld as
excluded.

A claim of a part checks only the wholes, and usually there is one. A claim of a whole checks all its parts.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Final

from devicetrack import vocabulary
from devicetrack.engine import withholding
from devicetrack.engine.selection import FREE
from devicetrack.engine.selection import HELD
from devicetrack.engine.selection import RELEASING
from devicetrack.engine.selection import Unit
from devicetrack.objects.things import Exclusions

# For each mode, the modes of the devices that may not be held beside such a device. The relation is symmetric.
_AGAINST: Final = {
    vocabulary.PART: (vocabulary.WHOLE,),
    vocabulary.WHOLE: (vocabulary.PART, vocabulary.WHOLE),
    vocabulary.TOGETHER: (vocabulary.TOGETHER,),
}

# The reason of a free device that is being wiped on its own, for nobody. A wipe of a card may reach the data of its
# functions, so nobody may have these meanwhile.
BEING_WIPED: Final = 'being wiped'

# If a free device is withheld for one of these reasons, somebody whom the ledger does not know has it, or may have it.
_TAKEN_BY_OTHERS: Final = frozenset((vocabulary.FOREIGN, vocabulary.IN_DOUBT, BEING_WIPED))

EXCLUDED: Final = frozenset((vocabulary.EXCLUDED,))

_STATES: Final = (FREE, HELD, RELEASING)

# A text names at most this many devices.
_SHOWN: Final = 3


class _Token:
    """The devices of one token by mode: all, and those that somebody has, in the order in which they were added."""

    __slots__ = ('members', 'taken')

    def __init__(self) -> None:
        self.members: dict[str, dict[Unit, None]] = {mode: {} for mode in _AGAINST}
        self.taken: dict[str, dict[Unit, None]] = {mode: {} for mode in _AGAINST}


class Exclusion:
    """The tokens of one host. It knows which device excludes which; its owner changes the devices' reasons."""

    def __init__(self) -> None:
        self._tokens: dict[str, _Token] = {}

    def __bool__(self) -> bool:
        """Whether the host has devices that exclude others."""
        return bool(self._tokens)

    def join(self, unit: Unit, exclusions: Exclusions) -> list[Unit]:
        """Replace the exclusions of a device.

        :returns: the devices that may be excluded now, or no longer
        :raises ValueError: a mode is unknown, or a token is named twice; the device keeps its old exclusions
        """
        if len(exclusions) > 1 and len({name for name, _mode in exclusions}) < len(exclusions):
            raise ValueError(f'{unit.pool.kind}/{unit.identifier}: the exclusions {exclusions} name a token twice')
        for name, mode in exclusions:
            if mode not in _AGAINST:
                raise ValueError(f'{unit.pool.kind}/{unit.identifier}: the exclusion ({name}, {mode}) must be one of '
                                 f'{", ".join(vocabulary.EXCLUSION_MODES)}')
        touched: list[Unit] = []
        for name, mode in unit.exclusions:
            token = self._tokens[name]
            if unit in token.taken[mode]:
                touched += self._set_taken(token, mode, unit, False)
            del token.members[mode][unit]
            if not any(token.members.values()):
                del self._tokens[name]
        unit.exclusions = exclusions
        for name, mode in exclusions:
            self._tokens.setdefault(name, _Token()).members[mode][unit] = None
        return touched + self.note(unit)

    def note(self, unit: Unit) -> list[Unit]:
        """Note whether somebody has a device, after its state or its reasons changed.

        :returns: the devices that may be excluded now, or no longer
        """
        touched: list[Unit] = []
        taken = is_taken(unit)
        for name, mode in unit.exclusions:
            token = self._tokens[name]
            if taken != (unit in token.taken[mode]):
                touched += self._set_taken(token, mode, unit, taken)
        return touched

    @staticmethod
    def _set_taken(token: _Token, mode: str, unit: Unit, taken: bool) -> Iterable[Unit]:
        of_mode = token.taken[mode]
        if taken:
            of_mode[unit] = None
        else:
            del of_mode[unit]
        # If two are taken, a third one changes nothing. A card has many functions, and claims take one after another.
        if len(of_mode) > 1 + taken:
            return ()
        return [other for against in _AGAINST[mode] for other in token.members[against]]

    def is_excluded(self, unit: Unit) -> bool:
        """Whether somebody has a device that may not be held beside a free one."""
        for name, mode in unit.exclusions:
            taken = self._tokens[name].taken
            for against in _AGAINST[mode]:
                if len(taken[against]) > (unit in taken[against]):
                    return True
        return False

    def beside(self, ours: Collection[Unit]) -> Iterator[Unit]:
        """The free devices that only these devices exclude, and that the owner of these devices may have too."""
        for unit in ours:
            for name, mode in unit.exclusions:
                if mode == vocabulary.TOGETHER:
                    for other in self._tokens[name].members[mode]:
                        if other.state == FREE and other.withheld == EXCLUDED and all(
                                mode_of == vocabulary.TOGETHER and one in ours
                                for _name, mode_of, one in self._excluding(other)):
                            yield other

    def groups(self) -> Iterator[list[Unit]]:
        """The free devices of each group that goes together and that nobody has a part of, if there are two or more."""
        for token in self._tokens.values():
            together = token.members[vocabulary.TOGETHER]
            if len(together) > 1 and not token.taken[vocabulary.TOGETHER]:
                free = [unit for unit in together if unit.state == FREE and not unit.withheld]
                if len(free) > 1:
                    yield free

    def _excluding(self, unit: Unit) -> Iterator[tuple[str, str, Unit]]:
        """The devices that somebody has and that exclude a device, each with the token and the device's own mode."""
        for name, mode in unit.exclusions:
            for against in _AGAINST[mode]:
                for other in self._tokens[name].taken[against]:
                    if other is not unit:
                        yield name, mode, other

    def why(self, unit: Unit, states: Collection[int] = _STATES,
            modes: Collection[str] = vocabulary.EXCLUSION_MODES) -> str:
        """Name the owners whose devices exclude a device, for people.

        :param states: only devices in one of these states
        :param modes: only for tokens of which the device is one of these
        """
        found = [f'{_who_has(other)} of {name}' for name, mode, other in self._excluding(unit)
                 if other.state in states and mode in modes]
        more = f' and {len(found) - _SHOWN} more' if len(found) > _SHOWN else ''
        return ', '.join(sorted(found)[:_SHOWN]) + more


def is_taken(unit: Unit) -> bool:
    """Whether somebody has a device, or may have it."""
    return unit.state != FREE or not _TAKEN_BY_OTHERS.isdisjoint(unit.withheld)


def shared(ours: Exclusions, theirs: Exclusions, same_owner: bool) -> str | None:
    """The token for which two devices may not be held beside one another; None if they may."""
    of_theirs = dict(theirs)
    return next((token for token, mode in ours if of_theirs.get(token) in _AGAINST[mode]
                 and not (same_owner and mode == vocabulary.TOGETHER)), None)


def of_device(kind: str, identifier: str, exclusions: Exclusions) -> Exclusions:
    """The exclusions of a device. A whole also excludes those of its parts that the host does not have now.

    A host that boots has a card before it has the card's virtual functions, and these may have owners.
    """
    if any(mode == vocabulary.WHOLE for _name, mode in exclusions):
        return (*exclusions, (_away(kind, identifier), vocabulary.WHOLE))
    return exclusions


def of_row(kind: str, parent: str | None) -> Exclusions:
    """The exclusions of a device that only a row names: it is a part of its parent, if the parent is a whole."""
    return () if parent is None else ((_away(kind, parent), vocabulary.PART),)


def _away(kind: str, parent: str) -> str:
    return f'{kind}/{parent}'


def _who_has(unit: Unit) -> str:
    if not unit.pool.kind:
        return f'a domain has {unit.identifier}'
    device = f'{unit.pool.kind}/{unit.identifier}'
    if BEING_WIPED in unit.withheld:
        return f'a wipe has {device}'
    if unit.state == FREE:
        return f'somebody may have ({withholding.text(unit.withheld & _TAKEN_BY_OTHERS)}) {device}'
    owner = 'somebody' if unit.holding is None else f'instance {unit.holding.instance_uuid}'
    return f'{owner} {"gives back" if unit.state == RELEASING else "has"} {device}'
