"""Finds the resource providers that Nova makes, by name, and reserves the devices that nobody may be scheduled to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

from keystoneauth1 import exceptions as keystoneauth1_exceptions
from nova import context as nova_context
from nova import exception as nova_exception

from devicetrack import log
from devicetrack.objects import Provider
from devicetrack.objects import traits

LOG = log.logger(__name__)


class NovaProviders:
    """The providers of one compute host, as Nova's driver last had them in its tree.

    Nova makes the provider of a parent device, with a random UUID, when it first reports the device. The provider's
    name has the node's name and the parent's. Until Nova makes its first report after a start, placement is asked for
    the providers.
    """

    def __init__(self, driver: Any, nodename: str) -> None:
        self._driver, self._nodename = driver, nodename
        self._in_placement: Mapping[str, str] | None = None

    def uuid_of(self, name: str) -> str | None:
        """As :meth:`devicetrack.claims.providers.ProviderResolver.uuid_of`."""
        if not name:
            return self.node_uuid
        tree, known_as = self._driver.provider_tree, f'{self._nodename}_{name}'
        if tree is None:
            return self._ask_placement().get(known_as)
        if not tree.exists(known_as):
            return None
        uuid: str = tree.data(known_as).uuid
        return uuid

    @property
    def node_uuid(self) -> str:
        uuid: str = self._driver._host.get_node_uuid()
        return uuid

    def _ask_placement(self) -> Mapping[str, str]:
        if self._in_placement is None:
            try:
                found = self._driver.virtapi.reportclient.get_providers_in_tree(
                    nova_context.get_admin_context(), self.node_uuid)
            except (keystoneauth1_exceptions.ClientException, nova_exception.NovaException) as error:
                LOG.warning('Placement did not list the providers of this host and will be asked again: %s', error)
                return {}
            self._in_placement = {one['name']: one['uuid'] for one in found}
        return self._in_placement

    def _allocated(self, uuid: str) -> Mapping[str, int] | None:
        """Return what is allocated at a provider, by class; None if placement does not say."""
        try:
            found = self._driver.virtapi.reportclient.get_allocations_for_resource_provider(
                nova_context.get_admin_context(), uuid).allocations
        except (keystoneauth1_exceptions.ClientException, nova_exception.NovaException) as error:
            LOG.warning('Placement did not list the allocations at provider %(provider)s: %(error)s',
                        {'provider': uuid, 'error': error})
            return None
        allocated: Counter[str] = Counter()
        for one in found.values():
            allocated.update(one['resources'])
        return allocated

    def mark(self, tree: Any, ours: Iterable[Provider]) -> None:
        """Reserve in Nova's tree the devices that nobody may be scheduled to, and set the devices' traits.

        Totals stay as Nova sets them. Devices that the manager would not hand out are reserved: those that are
        cordoned, unhealthy, foreign, or being wiped. What is allocated is never reserved: placement before 14.0 would
        refuse every later change of such an allocation, and the instance could not leave. While nobody says what is
        allocated, all of it may be, so Nova's reservations stay: a claim refuses what it cannot have.
        """
        for provider in ours:
            name = provider.name
            if not tree.exists(name):
                continue
            data = tree.data(name)
            inventory = {resource_class: dict(counts) for resource_class, counts in data.inventory.items()}
            unusable = {resource_class: max(0, counts['total'] - max(0, (
                provider.totals[resource_class] - provider.reserved.get(resource_class, 0))))
                for resource_class, counts in inventory.items() if resource_class in provider.totals}
            allocated = self._allocated(data.uuid) if any(unusable.values()) else {}
            if allocated is not None:
                for resource_class, number in unusable.items():
                    counts = inventory[resource_class]
                    counts['reserved'] = max(0, min(number, counts['total'] - allocated.get(resource_class, 0)))
            tree.update_inventory(name, inventory)
            stale = {trait for trait in data.traits if traits.is_ours(trait)}.difference(provider.traits)
            tree.remove_traits(name, *stale)
            tree.add_traits(name, *provider.traits)
