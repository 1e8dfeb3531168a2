"""What an administrator asks nova-api for, and waits for."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
import datetime
import time
from typing import Any
from typing import Final

import requests

from devicetrack.tests.cloud import neighbours

# The newest that Nova 34 has is newer; a test states what it knows.
MICROVERSION: Final = '2.96'

# For what hangs: two emulated hosts work on one machine, and others may work there too.
WAIT_S: Final = 7200
_LOOK_AGAIN_S: Final = 1.0
# An operation that somebody works on says so more often than a host is audited so many times.
STILL_AUDITS: Final = 5
_STILL_S: Final = 10
_REQUEST_S: Final = 900

# What the library answers to a live migration that it refuses, and what Nova answers, are the end of it too.
MIGRATION_ENDS: Final = {'completed', 'finished', 'confirmed', 'reverted', 'failed', 'error', 'cancelled', 'done'}


class Refused(Exception):
    """nova-api refused a request; the text says why."""


class TooLate(Exception):
    """Something did not become true, and nobody works on it any more."""


class Hangs(Exception):
    """Something neither became true nor stood still in hours: that says nothing about it."""


def wait_for(what: str, is_so: Callable[[], Any], timeout_s: float = WAIT_S,
             stands_still: Callable[[], bool] = lambda: False) -> Any:
    """Wait until something is true, and return it.

    :param stands_still: whether nobody works on it any more
    :raises TooLate: it is not, and nobody works on it
    :raises Hangs: it was not within the limit, which says nothing about it
    """
    until = time.monotonic() + timeout_s
    while not (answer := is_so()):
        if stands_still():
            raise TooLate(f'{what}: nobody works on it')
        if time.monotonic() > until:
            raise Hangs(f'{what}: not within {timeout_s:.0f} s')
        time.sleep(_LOOK_AGAIN_S)
    return answer


class Stillness:
    """Whether something has not changed while every compute service has audited its host many times.

    How long that takes is their business: a machine that is slow is slow at both.

    :param state: what may change
    :param audits: the audits of each compute service that runs, counted from any time on
    """

    def __init__(self, state: Callable[[], Any], audits: Callable[[], Mapping[str, int]]) -> None:
        self._state, self._audits = state, audits
        self._seen: Any = None
        self._then: Mapping[str, int] = {}
        self._next = 0.0

    def __call__(self) -> bool:
        if time.monotonic() < self._next:
            return False
        self._next = time.monotonic() + _STILL_S
        state, audits = self._state(), self._audits()
        if state != self._seen or audits.keys() != self._then.keys():
            self._seen, self._then = state, audits
            return False
        return bool(audits) and all(audits[name] - then >= STILL_AUDITS for name, then in self._then.items())


class Client:
    """nova-api, for its administrator.

    :param audits: as :class:`Stillness` has it
    """

    def __init__(self, url: str, audits: Callable[[], Mapping[str, int]]) -> None:
        self._url, self._audits = url, audits
        self._session = requests.Session()
        self._session.trust_env = False
        self._session.headers['OpenStack-API-Version'] = f'compute {MICROVERSION}'

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """:raises Refused: the answer is an error"""
        answer = self._session.request(method, f'{self._url}{path}', json=body, timeout=_REQUEST_S)
        if not answer.ok:
            raise Refused(f'{method} {path}: {answer.status_code} {answer.text}')
        return answer.json() if answer.content else None

    # -- hosts --------------------------------------------------------------------------------------------------------

    def services(self) -> dict[str, dict[str, Any]]:
        """The compute services by host."""
        found = self.ask('GET', '/os-services?binary=nova-compute')['services']
        return {service['host']: service for service in found}

    def wait_for_host(self, name: str, since: datetime.datetime, runs: Callable[[], bool]) -> None:
        """Wait until the compute service of a host has reported after a time, and Nova knows its hypervisor.

        :raises TooLate: it ended instead
        """
        def reported() -> bool:
            if not runs():
                raise TooLate(f'the compute service of {name} ended')
            service = self.services().get(name)
            if service is None or not service['updated_at']:
                return False
            when = datetime.datetime.fromisoformat(service['updated_at']).replace(tzinfo=datetime.UTC)
            return when > since and any(known['hypervisor_hostname'] == name for known in self.hypervisors())

        wait_for(f'the compute service of {name} reports', reported)

    def hypervisors(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.ask('GET', '/os-hypervisors')['hypervisors']
        return found

    def force_down(self, name: str, down: bool) -> None:
        """Say of a host that it is fenced, or is no more."""
        self.ask('PUT', f'/os-services/{self.services()[name]["id"]}', {'forced_down': down})

    # -- instances ----------------------------------------------------------------------------------------------------

    def flavor(self, name: str, extra_specs: Mapping[str, str]) -> str:
        made = self.ask('POST', '/flavors', {'flavor': {'name': name, 'ram': 64, 'vcpus': 1, 'disk': 0}})
        flavor = str(made['flavor']['id'])
        self.ask('POST', f'/flavors/{flavor}/os-extra_specs', {'extra_specs': dict(extra_specs)})
        return flavor

    def boot(self, name: str, flavor: str, host: str) -> str:
        """Ask for an instance on a host.

        :returns: its UUID
        """
        made = self.ask('POST', '/servers', {'server': {
            'name': name, 'flavorRef': flavor, 'imageRef': neighbours.IMAGE, 'networks': 'none', 'host': host}})
        return str(made['server']['id'])

    def instances(self) -> list[dict[str, Any]]:
        """All that are not gone: those that a user can restore too."""
        found: list[dict[str, Any]] = self.ask('GET', '/servers/detail?all_tenants=1&soft_deleted=1')['servers']
        return found

    def instance(self, uuid: str) -> dict[str, Any]:
        found: dict[str, Any] = self.ask('GET', f'/servers/{uuid}')['server']
        return found

    def act(self, uuid: str, action: str, arguments: Any = None) -> None:
        self.ask('POST', f'/servers/{uuid}/action', {action: arguments})

    def delete(self, uuid: str) -> None:
        """Delete an instance for good."""
        self.act(uuid, 'forceDelete')

    def soft_delete(self, uuid: str) -> None:
        """Delete an instance so that it can be restored for some time."""
        self.ask('DELETE', f'/servers/{uuid}')

    def exists(self, uuid: str) -> bool:
        return any(found['id'] == uuid for found in self.instances())

    def wait(self, uuid: str, *statuses: str) -> dict[str, Any]:
        """Wait until an instance has one of these statuses and no task, or ``ERROR``.

        :raises TooLate: nobody works on it
        """
        def settled() -> dict[str, Any] | None:
            found = self.instance(uuid)
            at_rest = not found['OS-EXT-STS:task_state'] and found['status'] in (*statuses, 'ERROR')
            return found if at_rest else None

        found: dict[str, Any] = wait_for(f'instance {uuid} is {" or ".join(statuses)}', settled,
                                         stands_still=self._of_instance(uuid))
        return found

    def wait_until_gone(self, uuid: str) -> None:
        wait_for(f'instance {uuid} is gone', lambda: not self.exists(uuid), stands_still=self._of_instance(uuid))

    def _of_instance(self, uuid: str) -> Stillness:
        def state() -> Any:
            instances = [(found['updated'], found['status'], found['OS-EXT-STS:task_state'])
                         for found in self.instances() if found['id'] == uuid]
            return instances, [(found['updated_at'], found['status']) for found in self.migrations(uuid)]

        return self.stillness(state)

    def stillness(self, state: Callable[[], Any]) -> Stillness:
        """Whether this has not changed for long."""
        return Stillness(state, self._audits)

    def migrations(self, uuid: str = '') -> list[dict[str, Any]]:
        """The newest first."""
        found = self.ask('GET', f'/os-migrations{f"?instance_uuid={uuid}" if uuid else ""}')['migrations']
        return sorted(found, key=lambda migration: -migration['id'])

    def wait_for_migration(self, uuid: str, before: int, *statuses: str) -> dict[str, Any]:
        """Wait for the end of the migration of an instance that came after another one, which has this number.

        :param statuses: what counts as its end besides those that always do
        """
        def ended() -> dict[str, Any] | None:
            newest = next(iter(self.migrations(uuid)), None)
            if newest is None or newest['id'] <= before:
                return None
            return newest if newest['status'] in MIGRATION_ENDS.union(statuses) else None

        found: dict[str, Any] = wait_for(f'the migration of {uuid} ends', ended, stands_still=self._of_instance(uuid))
        return found

    def newest_migration(self, uuid: str) -> int:
        return next((int(migration['id']) for migration in self.migrations(uuid)), 0)
