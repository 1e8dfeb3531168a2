"""Sort names as people count."""

from __future__ import annotations

import re
from typing import Any
from typing import Final

# The digits of a UUID are no number.
_NUMBERS: Final = re.compile('((?:[0-9a-f]{4}){2}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9]+)')


def key(value: object) -> tuple[Any, ...]:
    """A key to sort by: compute-7 comes before compute-10, and None or an empty text comes last."""
    if value is None or value == '':
        return (1,)
    if isinstance(value, (int, float)):
        return (0, (0, value, ''))
    return (0, *((0, int(part), '') if part.isdecimal() else (1, 0, part)
                 for part in _NUMBERS.split(str(value)) if part))
