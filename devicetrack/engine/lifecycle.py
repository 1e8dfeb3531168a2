"""The life of an assignment: one table of (state, event) -> state and one for roles. All code asks them."""

from __future__ import annotations

from typing import Final

from devicetrack import exception
from devicetrack import vocabulary

STARTED: Final = 'started'
RELEASE: Final = 'release'

TRANSITIONS: Final = {
    # The guest runs on the device. A second report is harmless: the audit may have settled it first.
    (vocabulary.CLAIMED, STARTED): vocabulary.ACTIVE,
    (vocabulary.ACTIVE, STARTED): vocabulary.ACTIVE,
    # The release begins. A releasing row never returns to a guest; it can only end.
    (vocabulary.CLAIMED, RELEASE): vocabulary.RELEASING,
    (vocabulary.ACTIVE, RELEASE): vocabulary.RELEASING,
    (vocabulary.RELEASING, RELEASE): vocabulary.RELEASING,
}

# The role of an assignment while its instance moves. A release leaves the role as it is: it still belongs to the
# migration that took or left the device.
LEAVES: Final = 'leaves'                    # a migration moves the instance to other devices
STAYS: Final = 'stays'                      # the guest runs on it, or the migration is over and left it the device
SET_ASIDE: Final = 'set aside'              # being released, it is none of the devices that the guest should have

ROLE_TRANSITIONS: Final = {
    (vocabulary.CURRENT, LEAVES): vocabulary.OLD,
    # A second call that names the migration, or a newer migration of an instance whose last one nobody ended.
    (vocabulary.OLD, LEAVES): vocabulary.OLD,
    (vocabulary.INCOMING, STAYS): vocabulary.CURRENT,
    (vocabulary.CURRENT, STAYS): vocabulary.CURRENT,
    # The guest was started again at its source. That undoes the move at this end, as a failed move does.
    (vocabulary.OLD, STAYS): vocabulary.CURRENT,
    # The instance came here anew, by a claim for no device. Whatever an earlier stay or move left here is not its own.
    (vocabulary.CURRENT, SET_ASIDE): vocabulary.OLD,
    (vocabulary.OLD, SET_ASIDE): vocabulary.OLD,
    (vocabulary.INCOMING, SET_ASIDE): vocabulary.OLD,
}


def next_role(role: str, event: str) -> str:
    """The role after an event.

    :raises InvalidTransition: the table has no such line
    """
    try:
        return ROLE_TRANSITIONS[role, event]
    except KeyError:
        raise exception.InvalidTransition(role, event) from None


def next_state(state: str, event: str) -> str:
    """The state after an event.

    :raises InvalidTransition: the table has no such line
    """
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise exception.InvalidTransition(state, event) from None
