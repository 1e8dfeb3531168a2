"""A device that the compute service hands out itself, as the service tells of it."""

from __future__ import annotations

from typing import Final
from typing import NamedTuple

# What the service does with it: it may give it to the next guest, a guest has it, it waits for its cleaning, or that is
# unknown.
FREE: Final = 'free'
USED: Final = 'used'
WAITING: Final = 'waiting'
UNKNOWN: Final = 'unknown'


class Cleanable(NamedTuple):
    """A device of the service. ``state`` is one of the words above.

    While this process runs, ``told`` is a text that is another one after the service has given the device to a guest.
    Of an unknown state, it is the reason.
    """

    state: str
    told: str
