"""Which devices of a resource class fit a request: those with some features and without others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from typing import NamedTuple

# The words by which a device kind describes a device, each once and sorted. A tuple of texts costs the garbage
# collector nothing; a set for each of thousands of devices would.
Features = tuple[str, ...]

NO_FEATURES: Final[Features] = ()
_NONE: Final[frozenset[str]] = frozenset()


class Choice(NamedTuple):
    """Devices of one resource class that have all features of ``needs`` and none of ``refuses``.

    The features of a device are in :class:`~devicetrack.objects.values.InventoryDevice`.
    """

    resource_class: str
    needs: frozenset[str] = _NONE
    refuses: frozenset[str] = _NONE

    def accepts(self, features: Features) -> bool:
        """Whether a device of the class with these features fits."""
        return self.needs.issubset(features) and self.refuses.isdisjoint(features)


def classes(choices: Iterable[Choice]) -> tuple[str, ...]:
    """The resource classes of choices, each once, in their order."""
    return tuple(dict.fromkeys(choice.resource_class for choice in choices))
