"""The names of instances, as a line for people has room for them. Users choose them freely."""

from __future__ import annotations

from typing import Final

from devicetrack import exception
from devicetrack import log

_MOST: Final = 40
_MOST_WIDE: Final = 20                          # characters that may take two columns each


def shown(name: str) -> str:
    """Return a name on one line, and only the beginning of a long one."""
    text = log.printable(name)
    return exception.shown(text, _MOST if text.isascii() else _MOST_WIDE)
