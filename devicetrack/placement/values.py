"""Placement's answers and requests, and the results of operations on allocations, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set
import enum
from typing import Final
from typing import NamedTuple
from typing import TypeAlias

INSTANCE: Final = 'INSTANCE'
MIGRATION: Final = 'MIGRATION'
# The type that placement returns for a consumer written with a microversion before 1.38; no write may contain it.
UNTYPED: Final = 'unknown'

# Amounts by provider UUID and resource class.
Resources: TypeAlias = Mapping[str, Mapping[str, int]]


class ListedProvider(NamedTuple):
    """A resource provider. ``parent_uuid`` is None for a root, whose ``root_uuid`` is its own."""

    uuid: str
    name: str
    generation: int
    parent_uuid: str | None
    root_uuid: str


class ClassInventory(NamedTuple):
    """The amount of a resource class that a provider has. The defaults are placement's own."""

    total: int
    reserved: int = 0
    min_unit: int = 1
    max_unit: int = 2147483647
    step_size: int = 1
    allocation_ratio: float = 1.0


class Inventories(NamedTuple):
    """All inventories of a provider by resource class, and the provider's generation with them."""

    generation: int
    inventories: Mapping[str, ClassInventory]


class Traits(NamedTuple):
    """All traits of a provider, and the provider's generation with them."""

    generation: int
    traits: Set[str]


class Holding(NamedTuple):
    """One consumer's allocations at one provider: amounts by resource class. The generation is the consumer's."""

    generation: int
    resources: Mapping[str, int]


class ProviderAllocations(NamedTuple):
    """All allocations of a provider by consumer UUID, and the provider's generation with them."""

    generation: int
    consumers: Mapping[str, Holding]


class Consumer(NamedTuple):
    """A consumer with all its allocations.

    ``generation`` is the one that was read. It is None for a consumer that does not exist, which holds nothing and has
    an empty project, user and type. A write names the generation and replaces all allocations; placement forgets a
    consumer that is written without any.
    """

    uuid: str
    resources: Resources
    generation: int | None
    project_id: str = ''
    user_id: str = ''
    type: str = ''

    @property
    def exists(self) -> bool:
        """Whether it holds anything: placement shows no other consumer. Its generation may be 0."""
        return bool(self.resources)

    def typed(self, kind: str) -> Consumer:
        """Return it with this type if its writer gave none, because a write must give one now."""
        return self._replace(type=kind) if self.type == UNTYPED else self


class Outcome(enum.Enum):
    """The outcome of an operation on allocations."""

    DONE = 'done'
    REPEATED = 'it was so already; nothing was written'
    UNCHANGED = 'nothing was changed'
    PENDING = 'the move stays as it is, neither ended nor lost: call again'
    UNKNOWN = 'it may have happened, or may yet: call again, which finds out'


class Result(NamedTuple):
    """The result of an operation on allocations: returned if it succeeds, else the ``result`` of its error.

    A failed confirm sets ``revert_possible``: whether the move can be reverted instead, or None if that is unknown.
    """

    operation: str
    outcome: Outcome
    revert_possible: bool | None = None
