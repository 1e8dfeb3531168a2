"""What placement says and is told, and what becomes of a change of allocations, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set
import enum
from typing import Final
from typing import NamedTuple
from typing import TypeAlias

INSTANCE: Final = 'INSTANCE'
MIGRATION: Final = 'MIGRATION'
# What is read as the type of a consumer that was written by microversions before 1.38; no write takes it.
UNTYPED: Final = 'unknown'

# The generation of a consumer that a server was making when it was killed: refused as new, and not shown when read.
HALF_MADE: Final = 0

# By provider UUID and resource class, how much.
Resources: TypeAlias = Mapping[str, Mapping[str, int]]


class Provider(NamedTuple):
    """A resource provider. ``parent_uuid`` is None for a root, whose ``root_uuid`` is its own."""

    uuid: str
    name: str
    generation: int
    parent_uuid: str | None
    root_uuid: str


class Inventory(NamedTuple):
    """How much of a resource class a provider has; what is not given is placement's own default."""

    total: int
    reserved: int = 0
    min_unit: int = 1
    max_unit: int = 2147483647
    step_size: int = 1
    allocation_ratio: float = 1.0


class Inventories(NamedTuple):
    """All inventories of a provider by resource class, and the provider's generation with them."""

    generation: int
    inventories: Mapping[str, Inventory]


class Traits(NamedTuple):
    """All traits of a provider, and the provider's generation with them."""

    generation: int
    traits: Set[str]


class Aggregates(NamedTuple):
    """The UUIDs of the aggregates that a provider is in, and the provider's generation with them."""

    generation: int
    aggregates: Set[str]


class Holding(NamedTuple):
    """What one consumer holds of one provider: amounts by resource class; the generation is the consumer's."""

    generation: int
    resources: Mapping[str, int]


class ProviderAllocations(NamedTuple):
    """All allocations of a provider by consumer UUID, and the provider's generation with them."""

    generation: int
    consumers: Mapping[str, Holding]


class Consumer(NamedTuple):
    """What a consumer holds, all of it.

    ``generation`` is the one that was read, and None for a consumer that does not exist: it holds nothing, and its
    project, user and type are empty. A write names the generation and replaces all that the consumer holds; written
    with nothing, a consumer is forgotten.
    """

    uuid: str
    resources: Resources
    generation: int | None
    project_id: str = ''
    user_id: str = ''
    type: str = ''

    @property
    def exists(self) -> bool:
        return bool(self.generation)


class Outcome(enum.Enum):
    """How things stand after an operation on allocations."""

    DONE = 'done'
    REPEATED = 'it was so already; nothing was written'
    UNCHANGED = 'nothing was changed'
    PENDING = 'the move stays as it is, neither ended nor lost: call again'
    UNKNOWN = 'it may have happened, or may yet: call again, which finds out'


class Result(NamedTuple):
    """What became of an operation on allocations: returned when it succeeds, else the ``result`` of its error.

    ``revert_possible`` is set by a confirm that failed: whether the move can be reverted instead; None when nobody
    knows.
    """

    operation: str
    outcome: Outcome
    revert_possible: bool | None = None
