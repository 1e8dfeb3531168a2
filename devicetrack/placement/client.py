"""Placement's REST interface: typed requests, typed answers, no policy.

Every call is one request and blocks until it is answered; threads may share a client.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from collections.abc import Set
from typing import Any
from typing import Final
from typing import TYPE_CHECKING
from typing import TypeVar
from urllib import parse

from oslo_config import cfg

from devicetrack import log
from devicetrack.placement import errors
from devicetrack.placement import session
from devicetrack.placement import values

if TYPE_CHECKING:
    from keystoneauth1 import adapter as ks_adapter
    import requests

LOG = log.logger(__name__)

MICROVERSION: Final = '1.39'

_CONCURRENT_UPDATE: Final = 'placement.concurrent_update'
_INVENTORY_IN_USE: Final = 'placement.inventory.inuse'
_DUPLICATE: Final = 'placement.duplicate_name'
_PROVIDER_IN_USE: Final = ('placement.resource_provider.inuse', 'placement.resource_provider.cannot_delete_parent')
_UNDEFINED: Final = 'placement.undefined_code'

# The statuses of placement's answers without a body. A class or a trait that was made is a 201.
_WITHOUT_BODY: Final = (201, 204)
# Another program listens there, or a proxy answered.
_OF_ANOTHER: Final = 'the answer is not one of placement'

Parsed = TypeVar('Parsed')


# Makes the error of a conflict, from its request and its detail.
Conflict = Callable[[str, str], errors.PlacementError]


class Client:
    """Placement through a keystoneauth1 adapter, which handles authentication, endpoint, timeouts and retries.

    :param adapter: it repeats a request that could not be delivered as often as its options say, but never a write of
        allocations: the caller reads again and decides whether to repeat that

    Every method raises :class:`~devicetrack.placement.errors.PlacementUnavailable` when there is no usable answer,
    :class:`~devicetrack.placement.errors.PlacementTooOld`, and
    :class:`~devicetrack.placement.errors.PlacementRefused` for whatever its docstring does not name. One that takes the
    UUID of a provider raises :class:`~devicetrack.placement.errors.NoSuchProvider` if there is no such provider,
    unless it says otherwise.
    """

    def __init__(self, adapter: ks_adapter.Adapter) -> None:
        self._adapter = adapter

    @classmethod
    def from_conf(cls, conf: cfg.ConfigOpts) -> Client:
        """Make the client that ``[placement]`` describes. It connects to nothing yet.

        :raises InvalidConfiguration: the options cannot be used
        """
        return cls(session.open_adapter(conf))

    # -- providers ----------------------------------------------------------------------------------------------------

    def get_tree(self, root_uuid: str) -> list[values.ListedProvider]:
        """Return all providers of a tree, by the UUID of any of them; none if there is no such provider."""
        return self._get(f'/resource_providers?in_tree={root_uuid}', _providers)

    def find_provider(self, name: str) -> values.ListedProvider | None:
        """Return the provider of this name, or None."""
        found = self._get(f'/resource_providers?name={parse.quote(name, safe="")}', _providers)
        return found[0] if found else None

    def get_provider(self, uuid: str) -> values.ListedProvider:
        return self._get(f'/resource_providers/{uuid}', _provider, uuid)

    def create_provider(self, uuid: str, name: str, parent_uuid: str | None) -> values.ListedProvider:
        """:raises ProviderExists: the name or the UUID is taken"""
        body: dict[str, Any] = {'uuid': uuid, 'name': name}
        if parent_uuid is not None:
            body['parent_provider_uuid'] = parent_uuid
        return self._answer('POST', '/resource_providers', _provider, body,
                            conflicts={_DUPLICATE: lambda _request, _detail: errors.ProviderExists(uuid, name)})

    def delete_provider(self, uuid: str) -> None:
        """Delete a provider.

        :raises ProviderInUse: it has allocations or children
        """
        self._do('DELETE', f'/resource_providers/{uuid}', provider=uuid, conflicts=dict.fromkeys(
            _PROVIDER_IN_USE, lambda _request, detail: errors.ProviderInUse(uuid, detail)))

    def get_inventories(self, uuid: str) -> values.Inventories:
        return self._get(f'/resource_providers/{uuid}/inventories', _inventories, uuid)

    def put_inventories(self, uuid: str, generation: int,
                        inventories: Mapping[str, values.ClassInventory]) -> values.Inventories:
        """Replace all inventories of a provider; the answer has its new generation.

        :raises ProviderConflict: ``generation`` is not the present one
        :raises InventoryInUse: it would remove an inventory that has allocations
        """
        body = _inventories_body(values.Inventories(generation, inventories))
        return self._put(f'/resource_providers/{uuid}/inventories', body, _inventories, uuid)

    def get_traits(self, uuid: str) -> values.Traits:
        return self._get(f'/resource_providers/{uuid}/traits', _traits, uuid)

    def put_traits(self, uuid: str, generation: int, traits: Set[str]) -> values.Traits:
        """Replace all traits of a provider; the answer has its new generation.

        :raises ProviderConflict: ``generation`` is not the present one
        """
        body = {'resource_provider_generation': generation, 'traits': sorted(traits)}
        return self._put(f'/resource_providers/{uuid}/traits', body, _traits, uuid)

    def get_aggregates(self, uuid: str) -> frozenset[str]:
        """Return the UUIDs of the aggregates that a provider is in."""
        return self._get(f'/resource_providers/{uuid}/aggregates', lambda body: frozenset(body['aggregates']), uuid)

    def get_usages(self, uuid: str) -> dict[str, int]:
        """Return the amounts that are allocated at a provider, by resource class."""
        return self._get(f'/resource_providers/{uuid}/usages', lambda body: dict(body['usages']), uuid)

    def list_consumers(self, uuid: str) -> values.ProviderAllocations:
        """Return all allocations of a provider, and none of one that is gone: placement deletes none with some."""
        try:
            return self._get(f'/resource_providers/{uuid}/allocations', _provider_allocations, uuid)
        except errors.NoSuchProvider:
            return values.ProviderAllocations(0, {})

    def ensure_class(self, name: str) -> None:
        """Make a custom resource class unless there is one."""
        self._do('PUT', f'/resource_classes/{parse.quote(name, safe="")}')

    def ensure_trait(self, name: str) -> None:
        """Make a custom trait unless there is one."""
        self._do('PUT', f'/traits/{parse.quote(name, safe="")}')

    def find_traits(self, prefix: str) -> frozenset[str]:
        """Return the names of all traits with this prefix, whichever provider has them."""
        return self._get(f'/traits?name=startswith:{parse.quote(prefix, safe="")}',
                         lambda body: frozenset(map(str, body['traits'])))

    # -- candidates ---------------------------------------------------------------------------------------------------

    def find_roots(self, query: Iterable[tuple[str, str]]) -> frozenset[str]:
        """Return the roots of the trees that have allocation candidates.

        :param query: names and values, as placement documents them; a name may occur several times
        """
        return self._get(f'/allocation_candidates?{parse.urlencode(tuple(query))}', lambda body: frozenset(
            str(summary['root_provider_uuid']) for summary in body['provider_summaries'].values()))

    # -- allocations --------------------------------------------------------------------------------------------------

    def get_allocations(self, consumer_uuid: str) -> values.Consumer:
        """Return a consumer with its allocations. One that does not exist has none, and its generation is None."""
        return self._get(f'/allocations/{consumer_uuid}', lambda body: _consumer(consumer_uuid, body))

    def replace_allocations(self, consumers: Sequence[values.Consumer]) -> None:
        """Replace the allocations of one or more consumers, all of them or none. Sent once.

        :raises GenerationConflict: a consumer or a provider has changed; reading again shows which
        :raises NoCapacity: no room, or no inventory of a class
        """
        if len(consumers) == 1:
            self._write('PUT', f'/allocations/{consumers[0].uuid}', _consumer_body(consumers[0]))
        else:
            self._write('POST', '/allocations', {consumer.uuid: _consumer_body(consumer) for consumer in consumers})

    def delete_allocations(self, consumer_uuid: str) -> bool:
        """Remove all allocations of a consumer, whatever its generation; False if it had none."""
        try:
            self._do('DELETE', f'/allocations/{consumer_uuid}')
        except errors.PlacementRefused as refusal:
            if refusal.status == 404:
                return False
            raise
        return True

    def reshape(self, inventories: Mapping[str, values.Inventories], consumers: Iterable[values.Consumer]) -> None:
        """Replace the inventories of providers and the allocations of consumers, all of it or nothing. Sent once.

        ``consumers`` must have every consumer of an inventory that is removed. Placement demands the role ``service``.

        :raises GenerationConflict: a provider or a consumer has changed; reading again shows which
        :raises InventoryInUse: a consumer was left out
        :raises NoCapacity: the allocations do not fit the new inventories
        """
        self._write('POST', '/reshaper', {
            'inventories': {uuid: _inventories_body(wanted) for uuid, wanted in inventories.items()},
            'allocations': {consumer.uuid: _consumer_body(consumer) for consumer in consumers}})

    # -- requests -----------------------------------------------------------------------------------------------------

    def _get(self, path: str, parsed: Callable[[Any], Parsed], provider: str | None = None) -> Parsed:
        return self._answer('GET', path, parsed, provider=provider)

    def _put(self, path: str, body: Any, parsed: Callable[[Any], Parsed], provider: str) -> Parsed:
        """Change a provider under its generation."""
        return self._answer('PUT', path, parsed, body, provider, {
            _CONCURRENT_UPDATE: lambda request, _detail: errors.ProviderConflict(request, (provider,)),
            _INVENTORY_IN_USE: errors.InventoryInUse})

    def _write(self, method: str, path: str, body: Any) -> None:
        """Change allocations under their generations."""
        self._do(method, path, body, again=False, conflicts={
            _CONCURRENT_UPDATE: lambda request, _detail: errors.GenerationConflict(request),
            _INVENTORY_IN_USE: errors.InventoryInUse,
            _UNDEFINED: errors.NoCapacity})             # all other conflicts of allocations have a code

    def _answer(self, method: str, path: str, parsed: Callable[[Any], Parsed], body: Any = None,
                provider: str | None = None, conflicts: Mapping[str, Conflict] | None = None) -> Parsed:
        answer = self._send(method, path, body, provider=provider, conflicts=conflicts)
        try:
            return parsed(answer.json())
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            # An unknown answer is not an empty one.
            raise errors.PlacementUnavailable(f'{method} {path}', _OF_ANOTHER) from error

    def _do(self, method: str, path: str, body: Any = None, **options: Any) -> None:
        """Send a request that placement answers without a body. The options are those of a request."""
        status = self._send(method, path, body, **options).status_code
        if status not in _WITHOUT_BODY:
            raise errors.PlacementUnavailable(f'{method} {path}', f'{_OF_ANOTHER}: {status}')

    def _send(self, method: str, path: str, body: Any = None, again: bool = True, provider: str | None = None,
              conflicts: Mapping[str, Conflict] | None = None) -> requests.Response:
        """Send a request, and turn all answers but a success into an error.

        :param again: let the adapter repeat a request that could not be delivered
        :param provider: the provider that does not exist if the answer is a 404
        :param conflicts: the errors of conflicts, by placement's code
        """
        from keystoneauth1 import exceptions as ks_exceptions  # a host without a scheduler lacks it
        request = f'{method} {path}'
        options: dict[str, Any] = {'log': False}        # bodies name projects and users
        if not again:
            options |= {'connect_retries': 0, 'status_code_retries': 0}
        if body is not None:
            options['json'] = body
        try:
            answer = self._adapter.request(path, method, raise_exc=False, microversion=MICROVERSION, **options)
        except ks_exceptions.ClientException as error:
            raise errors.PlacementUnavailable(request, f'{type(error).__name__}: {error}',
                                              getattr(error, 'http_status', None)) from error
        LOG.debug('%s: %s', request, answer.status_code)
        if answer.status_code < 300:
            return answer
        code, detail = _reason(answer)
        if answer.status_code == 406:
            raise errors.PlacementTooOld(MICROVERSION, detail)
        if answer.status_code >= 500 or answer.status_code in (401, 403, 429):
            raise errors.PlacementUnavailable(request, f'{answer.status_code} {detail}', answer.status_code)
        if code is None:
            raise errors.PlacementUnavailable(request, f'{_OF_ANOTHER}: {answer.status_code} {detail}',
                                              answer.status_code)
        if answer.status_code == 404 and provider is not None:
            raise errors.NoSuchProvider(provider)
        if answer.status_code == 409 and conflicts is not None and code in conflicts:
            raise conflicts[code](request, detail)
        raise errors.PlacementRefused(request, answer.status_code, code, detail)


def _reason(answer: requests.Response) -> tuple[str | None, str]:
    """Return the code and the text of an error. The code is None if a proxy answers instead of placement."""
    try:
        error = answer.json()['errors'][0]
        return str(error.get('code', _UNDEFINED)), ' '.join(str(error.get('detail', '')).split())
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None, str(answer.reason)


# -- bodies -----------------------------------------------------------------------------------------------------------


def _provider(body: Any) -> values.ListedProvider:
    return values.ListedProvider(body['uuid'], body['name'], body['generation'], body['parent_provider_uuid'],
                    body['root_provider_uuid'])


def _providers(body: Any) -> list[values.ListedProvider]:
    return [_provider(provider) for provider in body['resource_providers']]


def _inventories(body: Any) -> values.Inventories:
    return values.Inventories(body['resource_provider_generation'], {
        name: values.ClassInventory(*(given[field] for field in values.ClassInventory._fields))
        for name, given in body['inventories'].items()})


def _inventories_body(wanted: values.Inventories) -> dict[str, Any]:
    return {'resource_provider_generation': wanted.generation,
            'inventories': {name: inventory._asdict() for name, inventory in wanted.inventories.items()}}


def _traits(body: Any) -> values.Traits:
    return values.Traits(body['resource_provider_generation'], frozenset(body['traits']))


def _provider_allocations(body: Any) -> values.ProviderAllocations:
    return values.ProviderAllocations(body['resource_provider_generation'], {
        uuid: values.Holding(held['consumer_generation'], dict(held['resources']))
        for uuid, held in body['allocations'].items()})


def _consumer(uuid: str, body: Any) -> values.Consumer:
    allocations = {provider: dict(held['resources']) for provider, held in body['allocations'].items()}
    if not allocations:
        return values.Consumer(uuid, {}, None)
    if not isinstance(body['consumer_generation'], int):
        raise TypeError('allocations without a generation')
    return values.Consumer(uuid, allocations, body['consumer_generation'], body['project_id'], body['user_id'],
                    body['consumer_type'])


def _consumer_body(consumer: values.Consumer) -> dict[str, Any]:
    return {'allocations': {provider: {'resources': dict(resources)}
                            for provider, resources in consumer.resources.items() if resources},
            'consumer_generation': consumer.generation, 'consumer_type': consumer.type,
            'project_id': consumer.project_id, 'user_id': consumer.user_id}
