"""What goes wrong with placement: one class for each thing that a caller may do next.

They are told apart by the status, by ``errors[].code`` and by reading again, never by the text of an answer, which is
passed on for people to read.
"""

from __future__ import annotations

from collections.abc import Iterable

from devicetrack.exception import DeviceTrackError
from devicetrack.placement.values import Result


class PlacementError(DeviceTrackError):
    """Base of every error about placement.

    ``result`` is what an operation of :class:`~devicetrack.placement.allocations.AllocationClient` says with it; an
    error that was raised elsewhere has none.
    """

    result: Result


class PlacementUnavailable(PlacementError):
    """No answer, one that cannot be read, an error of the server, or it does not let us in. Try later.

    Nothing is known about what was asked. If it was a write, it may have happened.
    """

    def __init__(self, request: str, reason: str) -> None:
        super().__init__(request, reason)
        self.request, self.reason = request, reason

    def __str__(self) -> str:
        return f'placement gave no usable answer to {self.request}: {self.reason}'


class PlacementTooOld(PlacementError):
    """The server does not have the microversion that is spoken here. Nothing was done; upgrade placement."""

    def __init__(self, wanted: str, found: str) -> None:
        super().__init__(wanted, found)
        self.wanted, self.found = wanted, found

    def __str__(self) -> str:
        return f'placement must have microversion {self.wanted}; it has {self.found}'


class GenerationConflict(PlacementError):
    """A generation that the request named is not the one of now. Nothing was changed; read again, decide again."""

    def __init__(self, request: str) -> None:
        super().__init__(request)
        self.request = request

    def __str__(self) -> str:
        return f'{self.request}: something moved on since it was read'


class ConsumerConflict(GenerationConflict):
    """Somebody else changed what a consumer holds. Nothing was changed; ``consumers`` names those that moved."""

    def __init__(self, request: str, consumers: Iterable[str]) -> None:
        self.consumers = tuple(consumers)
        super().__init__(request)
        self.args = (request, self.consumers)

    def __str__(self) -> str:
        return f'{self.request}: somebody else changed the allocations of {", ".join(self.consumers)}'


class ProviderConflict(GenerationConflict):
    """Somebody else changed a provider. Nothing was changed; ``providers`` names those that it may be."""

    def __init__(self, request: str, providers: Iterable[str]) -> None:
        self.providers = tuple(providers)
        super().__init__(request)
        self.args = (request, self.providers)

    def __str__(self) -> str:
        return f'{self.request}: somebody else changed a provider, one of {", ".join(self.providers)}'


class NoCapacity(PlacementError):
    """A provider has no room for the allocation, or no such inventory. Nothing was changed; choose another host."""

    def __init__(self, request: str, detail: str) -> None:
        super().__init__(request, detail)
        self.request, self.detail = request, detail

    def __str__(self) -> str:
        return f'{self.request}: no capacity: {self.detail}'


class UnknownConsumer(PlacementError):
    """The consumer holds nothing, so there is nothing to work on. Nothing was changed."""

    def __init__(self, consumer: str) -> None:
        super().__init__(consumer)
        self.consumer = consumer

    def __str__(self) -> str:
        return f'consumer {self.consumer} has no allocations'


class ConsumerExists(PlacementError):
    """A consumer that is to be new holds something that this call did not put there. Nothing was changed."""

    def __init__(self, consumer: str) -> None:
        super().__init__(consumer)
        self.consumer = consumer

    def __str__(self) -> str:
        return f'consumer {self.consumer} has allocations already, and not those that it is to get'


class UnknownProvider(PlacementError):
    """Placement has no such provider. Nothing was changed; report the provider first, or choose another host."""

    def __init__(self, provider: str) -> None:
        super().__init__(provider)
        self.provider = provider

    def __str__(self) -> str:
        return f'placement has no provider {self.provider}'


class ProviderExists(PlacementError):
    """Another provider has this name or this UUID. Nothing was made; read it."""

    def __init__(self, provider: str, name: str) -> None:
        super().__init__(provider, name)
        self.provider, self.name = provider, name

    def __str__(self) -> str:
        return f'placement has another provider of the name {self.name} or the UUID {self.provider}'


class ProviderInUse(PlacementError):
    """The provider has allocations, or children. It stays."""

    def __init__(self, provider: str, detail: str) -> None:
        super().__init__(provider, detail)
        self.provider, self.detail = provider, detail

    def __str__(self) -> str:
        return f'provider {self.provider} cannot go: {self.detail}'


class InventoryInUse(PlacementError):
    """An inventory that has allocations would have gone. Nothing was changed; move the allocations too, or reserve."""

    def __init__(self, request: str, detail: str) -> None:
        super().__init__(request, detail)
        self.request, self.detail = request, detail

    def __str__(self) -> str:
        return f'{self.request}: inventory in use: {self.detail}'


class StillFlat(PlacementError):
    """Consumers hold of the node itself what is to be counted below it. Nothing was changed; heal the node."""

    def __init__(self, node: str, consumers: Iterable[str]) -> None:
        self.node, self.consumers = node, tuple(consumers)
        super().__init__(node, self.consumers)

    def __str__(self) -> str:
        some = ', '.join(self.consumers[:3]) + (', …' if self.consumers[3:] else '')
        return (f'[placement] nested = refuse, and {len(self.consumers)} consumers hold devices of node {self.node} '
                f'itself ({some}): run devicetrack-manage placement heal --node {self.node}, or move them away')


class PlacementRefused(PlacementError):
    """Placement does not take the request, for a reason that has no class here. Nothing was changed."""

    def __init__(self, request: str, status: int, code: str, detail: str) -> None:
        super().__init__(request, status, code, detail)
        self.request, self.status, self.code, self.detail = request, status, code, detail

    def __str__(self) -> str:
        return f'placement refused {self.request}: {self.status} {self.code}: {self.detail}'
