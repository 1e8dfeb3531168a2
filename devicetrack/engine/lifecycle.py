"""The life of an assignment: one table of (state, event) -> state. Everyone asks it."""

from __future__ import annotations

from typing import Final

from devicetrack import exception
from devicetrack import vocabulary

STARTED: Final = 'started'
RELEASE: Final = 'release'

TRANSITIONS: Final = {
    # The guest runs on the device. Saying so twice is harmless: the audit may have settled it first.
    (vocabulary.CLAIMED, STARTED): vocabulary.ACTIVE,
    (vocabulary.ACTIVE, STARTED): vocabulary.ACTIVE,
    # Giving back begins: from here on nothing leads back to a guest, only to the end of the row.
    (vocabulary.CLAIMED, RELEASE): vocabulary.RELEASING,
    (vocabulary.ACTIVE, RELEASE): vocabulary.RELEASING,
    (vocabulary.RELEASING, RELEASE): vocabulary.RELEASING,
}


def next_state(state: str, event: str) -> str:
    """The state after an event.

    :raises InvalidTransition: the table has no such line
    """
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise exception.InvalidTransition(state, event) from None
