"""How long to wait before placement is asked again. Pure, but for the dice."""

from __future__ import annotations

import random
from typing import Final

_FIRST_S: Final = 0.1
_LONGEST_S: Final = 2.0


def after(failures: int) -> float:
    """Return the seconds to wait after so many failures in a row.

    They are longer each time and at random: perhaps many were refused at the same moment.
    """
    return random.uniform(0.5, 1) * min(_LONGEST_S, _FIRST_S * 2.0 ** min(failures - 1, 10))
