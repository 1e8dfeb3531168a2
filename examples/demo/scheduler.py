"""The scheduler of the demo: it asks placement by plain HTTP, without the library."""

from __future__ import annotations

from collections.abc import Mapping
import json
from typing import Any
from typing import NamedTuple
from urllib import request

from machine import NAME
from machine import needs

_HEADERS = {'X-Auth-Token': 'admin', 'OpenStack-API-Version': 'placement 1.39', 'Content-Type': 'application/json'}

Resources = dict[str, dict[str, int]]       # by provider's UUID and resource class


class Line(NamedTuple):
    """One resource class at one provider, as placement reports it."""

    provider: str
    resource_class: str
    total: int
    reserved: int
    allocated: int


class Scheduler:
    """Asks the placement server at a URL."""

    def __init__(self, url: str) -> None:
        self._url = url

    def tree(self) -> list[Line]:
        """Everything that the providers of the host count. Providers below the node are indented."""
        lines = []
        for uuid, name in self.names().items():
            used = self._ask(f'/resource_providers/{uuid}/usages')['usages']
            counted = self._ask(f'/resource_providers/{uuid}/inventories')['inventories']
            lines += [Line('  ' * (name != NAME) + name, one, inventory['total'], inventory['reserved'], used[one])
                      for one, inventory in sorted(counted.items())]
        return lines

    def names(self) -> dict[str, str]:
        """The names of the host's providers by UUID, in order."""
        [node] = self._ask(f'/resource_providers?name={NAME}')['resource_providers']
        found = self._ask(f'/resource_providers?in_tree={node["uuid"]}')['resource_providers']
        return {one['uuid']: one['name'] for one in sorted(found, key=lambda provider: provider['name'])}

    def choose(self, flavor: str) -> Resources | None:
        """Choose the providers for an instance of a flavor, or return None."""
        wanted = ','.join(f'{name}:{amount}' for name, amount in needs(flavor).items())
        found = self._ask(f'/allocation_candidates?resources={wanted}&limit=1')['allocation_requests']
        return _resources(found[0]['allocations']) if found else None

    def allocations(self, consumer: str) -> Resources:
        """The allocations of an instance or a migration."""
        return _resources(self._ask(f'/allocations/{consumer}')['allocations'])

    def touch(self, consumer: str) -> None:
        """Write a consumer's allocations again. Its generation rises, as when another service changes them."""
        path = f'/allocations/{consumer}'
        self._ask(path, self._ask(path))

    def _ask(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        asked = request.Request(self._url + path, None if body is None else json.dumps(body).encode(), _HEADERS,
                                method='GET' if body is None else 'PUT')
        with request.urlopen(asked) as answer:
            return json.loads(answer.read() or 'null')


def _resources(allocations: Mapping[str, Any]) -> Resources:
    return {provider: held['resources'] for provider, held in allocations.items()}
