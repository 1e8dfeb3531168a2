"""Errors of placement: one class for each thing that a caller may do next.

The status, ``errors[].code`` and reading again decide the class. The text of an answer never does: it is only passed on
for people to read.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence
from typing import ClassVar
from typing import Final

from devicetrack.exception import DeviceTrackError
from devicetrack.exception import several
from devicetrack.placement.values import Result


class PlacementError(DeviceTrackError):
    """Base of every error about placement.

    An operation of :class:`~devicetrack.placement.allocations.AllocationClient` sets ``result`` on its error; an error
    that was raised elsewhere has none.
    """

    _result: ClassVar[Result]

    @property
    def result(self) -> Result:
        return self._result

    @result.setter
    def result(self, result: Result) -> None:
        vars(self)['_result'] = result


# The statuses of an answer that refuses the login, or the role. Nothing was done, and repeating changes nothing.
FORBIDDEN: Final = (401, 403)


class PlacementUnavailable(PlacementError):
    """No answer, an unreadable one, an error of the server, or a refused login. Try later.

    The outcome of the request is unknown. If it was a write, it may have happened, unless ``status`` is 401 or 403.
    ``status`` is the HTTP status of the answer, None if there was none.
    """
    request: str
    reason: str
    status: int | None = None
    template = 'placement gave no usable answer to {request}: {reason}'


class PlacementTooOld(PlacementError):
    """The server lacks the microversion that this library uses. Nothing was done; upgrade placement."""
    wanted: str
    found: str
    template = 'placement must have microversion {wanted}; it has {found}'


class GenerationConflict(PlacementError):
    """A generation that the request named is not the present one. Nothing was changed; read again, decide again."""
    request: str
    template = '{request}: something moved on since it was read'


class ConsumerConflict(GenerationConflict):
    """Somebody else changed a consumer's allocations. Nothing was changed; ``consumers`` names those that changed."""
    consumers: Collection[str] = several()

    def __str__(self) -> str:
        return f'{self.request}: somebody else changed the allocations of {", ".join(self.consumers)}'


class ProviderConflict(GenerationConflict):
    """Somebody else changed a provider. Nothing was changed; ``providers`` names the possible providers."""
    providers: Collection[str] = several()

    def __str__(self) -> str:
        return f'{self.request}: somebody else changed a provider, one of {", ".join(self.providers)}'


class NoCapacity(PlacementError):
    """A provider has no room for the allocation, or no such inventory. Nothing was changed; choose another host."""
    request: str
    detail: str
    template = '{request}: no capacity: {detail}'


class UnknownConsumer(PlacementError):
    """The consumer holds nothing, so there is nothing to work on. Nothing was changed."""
    consumer: str
    template = 'consumer {consumer} has no allocations'


class ConsumerExists(PlacementError):
    """A consumer that should be new has allocations that this call did not make. Nothing was changed."""
    consumer: str
    template = 'consumer {consumer} has allocations already, and not those that it is to get'


class NoSuchProvider(PlacementError):
    """Placement has no such provider. Nothing was changed; report the provider first, or choose another host."""
    provider: str
    template = 'placement has no provider {provider}'


class ProviderExists(PlacementError):
    """Another provider has this name or this UUID. Nothing was made; read it."""
    provider: str
    name: str
    template = 'placement has another provider of the name {name} or the UUID {provider}'


class ProviderInUse(PlacementError):
    """The provider has allocations, or children. It stays."""
    provider: str
    detail: str
    template = 'provider {provider} cannot go: {detail}'


class InventoryInUse(PlacementError):
    """The request would remove an inventory with allocations. Nothing was changed; move these too, or reserve it."""
    request: str
    detail: str
    template = '{request}: inventory in use: {detail}'


class StillFlat(PlacementError):
    """Consumers hold devices of the node itself that must be counted below it. Nothing was changed; heal the node."""
    node: str
    consumers: Sequence[str] = several()

    def __str__(self) -> str:
        some = ', '.join(self.consumers[:3]) + (', …' if self.consumers[3:] else '')
        return (f'[placement] nested = refuse, and {len(self.consumers)} consumers hold devices of node {self.node} '
                f'itself ({some}): run devicetrack-manage placement heal --node {self.node}, or move them away')


class PlacementRefused(PlacementError):
    """Placement refused the request, for a reason that has no class here. Nothing was changed."""
    request: str
    status: int
    code: str
    detail: str
    template = 'placement refused {request}: {status} {code}: {detail}'
