"""Checks the values that callers, operators and the compute service pass, before anything uses them."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterable
from typing import Any
from typing import Final

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.objects.values import DeviceKey

# The longest reason for which a device or a node may not be used, in characters.
REASON_LENGTH: Final = 255


def check_uuid(where: str, value: Any) -> str:
    """:raises BadRequest: it is not a UUID in canonical form"""
    if vocabulary.is_uuid(value):
        return str(value)
    raise exception.BadRequest(where, value, 'must be a UUID as a string: lower case, with hyphens')


def instance_uuid(instance: Any) -> str:
    """:raises BadRequest: the instance has no UUID"""
    return check_uuid('instance.uuid', getattr(instance, 'uuid', None))


def migration_uuid(migration: Any) -> str:
    """:raises BadRequest: the migration has no UUID"""
    return check_uuid('migration.uuid', getattr(migration, 'uuid', None))


def check_text(where: str, value: Any) -> str:
    """:raises BadRequest: it is not a string"""
    if isinstance(value, str):
        return value
    raise exception.BadRequest(where, value, 'must be a string')


def check_name(where: str, value: Any) -> str:
    """:raises BadRequest: it is not text that UTF-8 can write, so no store and no host can have it"""
    if vocabulary.is_text(value):
        return str(value)
    raise exception.BadRequest(where, value, 'must be a string that UTF-8 can write')


def check_devices(value: Any) -> list[DeviceKey]:
    """:raises BadRequest: these are not pairs of a kind and an identifier"""
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise exception.BadRequest('devices', value, 'must be pairs of a kind and an identifier')
    devices = []
    for one in value:
        if not isinstance(one, (tuple, list)) or len(one) != 2:
            raise exception.BadRequest('devices', one, 'must be a pair of a kind and an identifier')
        devices.append(DeviceKey(check_name('kind', one[0]), check_name('identifier', one[1])))
    return devices


def check_affinity(numa_nodes: Any, policy: Any) -> tuple[frozenset[int], str | None]:
    """:raises BadRequest: the nodes are not numbers of NUMA nodes, or there is no such policy"""
    if isinstance(numa_nodes, str) or not isinstance(numa_nodes, Collection) or any(
            type(node) is not int or node < 0 for node in numa_nodes):
        raise exception.BadRequest('numa_nodes', numa_nodes, 'must be a collection of whole numbers from 0')
    if policy is not None and policy not in vocabulary.NUMA_AFFINITY_POLICIES:
        raise exception.BadRequest('numa_affinity_policy', policy,
                                   f'must be one of {", ".join(vocabulary.NUMA_AFFINITY_POLICIES)}')
    return frozenset(numa_nodes), policy


def check_reason(value: Any) -> str:
    """:raises BadRequest: it is not one short, printable line"""
    if isinstance(value, str) and len(value) <= REASON_LENGTH and value.isprintable():
        return value
    raise exception.BadRequest('reason', value, f'must be one line of at most {REASON_LENGTH} printable characters')
