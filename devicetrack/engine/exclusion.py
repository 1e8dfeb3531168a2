"""Devices that may not be held beside one another: a part and its whole of any kinds, functions of one IOMMU group.

Each device has pairs of a token and a mode: its kind reports some, and others follow from what contains what on the
host (:mod:`devicetrack.engine.containment`). Several instances may hold ``part`` devices of one token.
A ``whole`` device may not be held beside a part or another whole. All ``together`` devices of a token that are held
belong to one instance. If somebody has a device, each free device that may not be held beside it is withheld as
excluded. Nobody notes that at the free device: it follows from the number of devices of each token that somebody has.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
from typing import Final
from typing import NamedTuple

from devicetrack import vocabulary
from devicetrack.engine.selection import Place
from devicetrack.objects.things import Exclusions
from devicetrack.objects.values import DeviceKey

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
TAKEN_BY_OTHERS: Final = frozenset((vocabulary.FOREIGN, vocabulary.IN_DOUBT, vocabulary.MADE_BY_OTHERS, BEING_WIPED))

EXCLUDED: Final = frozenset((vocabulary.EXCLUDED,))


class Token(NamedTuple):
    """The devices of one token, each with its mode, and how many of each mode somebody has.

    ``lines`` counts the members of each line: the devices of one pool that have the same exclusions.
    """

    members: Mapping[DeviceKey, str] = {}
    taken: Mapping[str, int] = {}
    lines: Mapping[tuple[Place, Exclusions], int] = {}

    @property
    def is_group(self) -> bool:
        """Whether several devices of the token go together."""
        return list(self.members.values()).count(vocabulary.TOGETHER) > 1

    def excludes(self, mode: str, is_taken: bool = False) -> bool:
        """Whether somebody has a device that may not be held beside one of a mode.

        :param is_taken: somebody has that one itself
        """
        return any(self.taken.get(against, 0) > (is_taken and against == mode) for against in _AGAINST[mode])

    def against(self, mode: str) -> Iterator[DeviceKey]:
        """The devices that may not be held beside one of a mode."""
        return (key for key, other in self.members.items() if other in _AGAINST[mode])


def check(key: DeviceKey, exclusions: Exclusions) -> None:
    """:raises ValueError: a mode is unknown, or a token is named twice"""
    if len({name for name, _mode in exclusions}) < len(exclusions):
        raise ValueError(f'{key}: the exclusions {exclusions} name a token twice')
    for name, mode in exclusions:
        if mode not in _AGAINST:
            raise ValueError(f'{key}: the exclusion ({name}, {mode}) must be one of '
                             f'{", ".join(vocabulary.EXCLUSION_MODES)}')


def is_excluded(tokens: Mapping[str, Token], exclusions: Exclusions, is_taken: bool = False) -> bool:
    """Whether somebody has a device that may not be held beside a free one.

    :param is_taken: somebody may have the free one itself
    """
    return any(tokens[name].excludes(mode, is_taken) for name, mode in exclusions if name in tokens)


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
