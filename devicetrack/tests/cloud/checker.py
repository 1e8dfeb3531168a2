"""Whether Nova, placement, libvirt and the record agree on who has which device.

One reading of all four is a :class:`Views`, of plain values; :func:`differences` compares them and does nothing else.
Stock Nova has no record: what only the record can say is then not asked.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from concurrent import futures
import contextlib
from typing import Any
from typing import Final
from typing import NamedTuple
from typing import TypeAlias

import requests

from devicetrack.tests.cloud import trusting

VPMEM_CLASS: Final = 'CUSTOM_PMEM_NAMESPACE_'
VGPU_CLASS: Final = 'VGPU'

#: Host and device, as ``vpmem/pmem0`` or ``mdev/UUID``.
Device: TypeAlias = tuple[str, str]


class Instance(NamedTuple):
    """What Nova's API says of an instance.

    :param wants: resource classes of devices that its flavor asks for
    """

    host: str
    status: str
    wants: tuple[str, ...]


class Move(NamedTuple):
    """A resize that was neither confirmed nor reverted."""

    uuid: str
    instance: str
    source: str
    destination: str


class Row(NamedTuple):
    """A row of the record."""

    host: str
    device: str
    instance: str
    role: str
    state: str
    resource_class: str
    migration: str | None


class Domain(NamedTuple):
    """A domain of libvirt. None of devices: it is not defined, or does not run."""

    runs: bool
    defined: frozenset[str] | None
    live: frozenset[str] | None


class Namespace(NamedTuple):
    """A namespace, and whether all of its bytes are zero."""

    name: str
    is_zero: bool


class Host(NamedTuple):
    """One host by itself."""

    domains: Mapping[str, Domain]
    mdevs: frozenset[str]
    namespaces: tuple[Namespace, ...]


class Views(NamedTuple):
    """What each of the four says at one time.

    :param allocations: amounts of devices' resource classes by consumer, host and class
    :param rows: None without a record
    :param findings: what the library reports itself
    """

    instances: Mapping[str, Instance]
    moves: Sequence[Move]
    allocations: Mapping[str, Mapping[tuple[str, str], int]]
    hosts: Mapping[str, Host]
    rows: Sequence[Row] | None
    findings: Sequence[str]


def differences(views: Views) -> list[str]:
    """Every disagreement, a line each; none when all is well and nothing is under way."""
    found = [*_nova_and_placement(views), *_nova_and_libvirt(views), *_devices_twice(views)]
    if views.rows is not None:
        found += [*_record_and_nova(views, views.rows), *_record_and_libvirt(views, views.rows),
                  *_record_and_placement(views, views.rows), *_bytes_left(views, views.rows), *views.findings]
    return found


def _amounts(classes: Sequence[str], host: str) -> dict[tuple[str, str], int]:
    return {(host, name): number for name, number in collections.Counter(classes).items()}


def _nova_and_placement(views: Views) -> Iterator[str]:
    consumers = {consumer: dict(amounts) for consumer, amounts in views.allocations.items()}
    for uuid, instance in views.instances.items():
        has, wants = consumers.pop(uuid, {}), _amounts(instance.wants, instance.host)
        if instance.status != 'ERROR' and has != wants:
            yield f'instance {uuid} ({instance.status}) wants {wants}, and placement counts {has}'
    moving = {move.uuid: move for move in views.moves}
    for uuid, has in consumers.items():
        move = moving.get(uuid)
        if move is None:
            yield f'placement counts {has} for {uuid}, which is no instance and no resize that is open'
        elif {host for host, _name in has} - {move.source}:
            yield f'placement counts {has} for the migration {uuid}, which left {move.source}'


def _nova_and_libvirt(views: Views) -> Iterator[str]:
    sources = {move.instance: move.source for move in views.moves}
    for name, host in views.hosts.items():
        for uuid, domain in host.domains.items():
            instance = views.instances.get(uuid)
            if instance is None:
                yield f'{name} has a domain {uuid} of no instance'
            elif name != instance.host and (domain.runs or sources.get(uuid) != name):
                yield f'{name} has a domain {uuid}, whose instance is on {instance.host}'
            elif name == instance.host and instance.status != 'ERROR' and (
                    domain.runs != (instance.status in ('ACTIVE', 'VERIFY_RESIZE'))):
                power = 'runs' if domain.runs else 'does not run'
                yield f'the guest of {uuid} {power}, and Nova says {instance.status}'
            if domain.live is not None and domain.live != domain.defined:
                defined = sorted(domain.defined or ())
                yield f'the guest of {uuid} on {name} has {sorted(domain.live)}, and its definition {defined}'
    for uuid, instance in views.instances.items():
        if instance.status in ('ACTIVE', 'VERIFY_RESIZE') and uuid not in views.hosts[instance.host].domains:
            yield f'instance {uuid} is {instance.status}, and {instance.host} has no domain of it'


def _devices_twice(views: Views) -> Iterator[str]:
    for name, host in views.hosts.items():
        users = collections.defaultdict(list)
        for uuid, domain in host.domains.items():
            for device in (domain.defined or frozenset()) | (domain.live or frozenset()):
                users[device].append(uuid)
        for device, uuids in users.items():
            if len(uuids) > 1:
                yield f'{device} of {name} is in the definitions of {" and ".join(sorted(uuids))}'


def _record_and_nova(views: Views, rows: Sequence[Row]) -> Iterator[str]:
    moving = {move.uuid for move in views.moves}
    has: dict[str, list[str]] = collections.defaultdict(list)
    for row in rows:
        instance = views.instances.get(row.instance)
        if instance is None:
            yield f'the record of {row.host} has {row.device} for {row.instance}, which is no instance'
        elif row.role == 'current' and row.host == instance.host:
            has[row.instance].append(row.resource_class)
        elif row.migration not in moving:
            yield f'the record of {row.host} has {row.device} as {row.role} for {row.instance} without an open move'
        if row.state != 'active' and (instance is None or instance.status != 'ERROR'):
            yield f'the record of {row.host} has {row.device} for {row.instance} as {row.state}'
    for uuid, instance in views.instances.items():
        if instance.status != 'ERROR' and sorted(has[uuid]) != sorted(instance.wants):
            yield f'instance {uuid} wants {sorted(instance.wants)}, and the record has {sorted(has[uuid])}'


def _record_and_libvirt(views: Views, rows: Sequence[Row]) -> Iterator[str]:
    current: dict[Device, set[str]] = collections.defaultdict(set)
    for row in rows:
        current[row.host, row.instance].add(row.device)
    for name, host in views.hosts.items():
        for uuid, domain in host.domains.items():
            expected = current[name, uuid]
            if domain.defined is not None and domain.defined != expected:
                yield f'the domain {uuid} of {name} has {sorted(domain.defined)}, and the record {sorted(expected)}'
        recorded = {row.device: row for row in rows if row.host == name and row.device.startswith('mdev/')}
        there = {f'mdev/{uuid}' for uuid in host.mdevs}
        # A device that was only claimed may not be there yet, and never is for a boot that failed.
        if not {device for device, row in recorded.items() if row.state == 'active'} <= there <= set(recorded):
            yield f'{name} has the mediated devices {sorted(there)}, and the record {sorted(recorded)}'


def _record_and_placement(views: Views, rows: Sequence[Row]) -> Iterator[str]:
    recorded: dict[str, collections.Counter[tuple[str, str]]] = collections.defaultdict(collections.Counter)
    for row in rows:
        consumer = row.migration if row.role == 'old' and row.migration else row.instance
        recorded[consumer][row.host, row.resource_class] += 1
    for consumer in sorted({*recorded, *views.allocations}):
        has, counted = dict(recorded[consumer]), dict(views.allocations.get(consumer, {}))
        if has != counted:
            yield f'the record has {has} for {consumer}, and placement counts {counted}'


def _bytes_left(views: Views, rows: Sequence[Row]) -> Iterator[str]:
    owned = {(row.host, row.device) for row in rows}
    for name, host in views.hosts.items():
        for namespace in host.namespaces:
            if (name, f'vpmem/{namespace.name}') not in owned and not namespace.is_zero:
                yield f'{namespace.name} of {name} has no owner, and bytes that are not zero'


# -- reading ----------------------------------------------------------------------------------------------------------


def read(cloud: Any) -> Views:
    """Read all four of a cloud whose hosts run."""
    instances = {found['id']: _instance(found) for found in cloud.nova.instances()}
    commands = [('look',), *((('manage', 'instance', 'list'), ('manage', 'audit')) if cloud.has_record else ())]
    with futures.ThreadPoolExecutor() as pool:
        reading = {name: pool.submit(host.read, *commands) for name, host in cloud.hosts.items()}
    looks: dict[str, Any] = {}
    rows: list[Row] | None = [] if cloud.has_record else None
    findings: list[str] = []
    for name, read_there in reading.items():
        looks[name], *record = read_there.result()
        if rows is not None:
            rows += [_row(device) for instance in record[0] for device in instance['devices']]
            findings += [f'{name}: {found}' for found in record[1]]
    moves = [Move(found['uuid'], found['instance_uuid'], found['source_compute'], found['dest_compute'])
             for found in cloud.nova.migrations() if found['status'] == 'finished'
             and found['migration_type'] in ('migration', 'resize') and found['instance_uuid'] in instances
             and instances[found['instance_uuid']].status == 'VERIFY_RESIZE']
    return Views(instances, moves, _allocations(cloud.services.placement.url), {
        name: _host(look) for name, look in looks.items()}, rows, findings)


def _instance(found: Mapping[str, Any]) -> Instance:
    task = found['OS-EXT-STS:task_state']
    # An instance that is shelved has no devices, on no host.
    wants = [] if found['status'] == 'SHELVED_OFFLOADED' else _wants(found['flavor']['extra_specs'])
    return Instance(found['OS-EXT-SRV-ATTR:host'], f'{found["status"]} ({task})' if task else found['status'],
                    tuple(wants))


def _wants(specs: Mapping[str, str]) -> list[str]:
    """The resource class of each device that a flavor asks for."""
    wants = [f'{VPMEM_CLASS}{label}' for label in specs.get('hw:pmem', '').split(',') if label]
    return wants + [VGPU_CLASS] * int(specs.get('resources:VGPU', 0))


def _row(found: Mapping[str, Any]) -> Row:
    return Row(found['host'], f'{found["kind"]}/{found["identifier"]}', found['instance_uuid'], found['role'],
               found['state'], found['resource_class'], found['migration_uuid'])


def _host(look: Mapping[str, Any]) -> Host:
    def devices(found: Sequence[str] | None) -> frozenset[str] | None:
        return None if found is None else frozenset(found)

    return Host(
        {uuid: Domain(found['runs'], devices(found['defined']), devices(found['live']))
         for uuid, found in look['domains'].items()},
        frozenset(look['mdevs']),
        tuple(Namespace(name, found['is_zero']) for name, found in look['namespaces'].items()))


def has_room(url: str, host: str, specs: Mapping[str, str]) -> bool:
    """Whether placement offers a host to a guest of a flavor with these extra specs."""
    with _asking(url) as ask:
        [node] = [found['uuid'] for found in ask(f'/resource_providers?name={host}')['resource_providers']]
        wanted = ','.join(f'{name}:{amount}' for name, amount in collections.Counter(_wants(specs)).items())
        return bool(ask(f'/allocation_candidates?resources={wanted}&in_tree={node}')['allocation_requests'])


def is_reserved(url: str, resource_class: str) -> bool:
    """Whether placement keeps the only device of a class from guests."""
    with _asking(url) as ask:
        [inventory] = [
            found for provider in ask('/resource_providers')['resource_providers'] for name, found in ask(
                f'/resource_providers/{provider["uuid"]}/inventories')['inventories'].items() if name == resource_class]
        return bool(inventory['reserved'])


def delete_allocations(url: str) -> None:
    """Delete all allocations of devices."""
    with _asking(url) as ask:
        for consumer in _allocations(url):
            ask(f'/allocations/{consumer}', 'DELETE')


@contextlib.contextmanager
def _asking(url: str) -> Iterator[Callable[..., Any]]:
    """By placement's own API and no client of ours."""
    session = requests.Session()
    session.trust_env = False
    session.headers.update({'X-Auth-Token': trusting.TOKEN, 'OpenStack-API-Version': 'placement 1.39'})

    def ask(path: str, method: str = 'GET') -> Any:
        answer = session.request(method, f'{url}{path}', timeout=900)
        answer.raise_for_status()
        return answer.json() if answer.content else None

    with session:
        yield ask


def _allocations(url: str) -> dict[str, dict[tuple[str, str], int]]:
    with _asking(url) as ask:
        providers = {found['uuid']: found for found in ask('/resource_providers')['resource_providers']}
        amounts: dict[str, dict[tuple[str, str], int]] = collections.defaultdict(dict)
        for uuid, provider in providers.items():
            host = providers[provider['root_provider_uuid']]['name']
            for consumer, found in ask(f'/resource_providers/{uuid}/allocations')['allocations'].items():
                for name, amount in found['resources'].items():
                    if name == VGPU_CLASS or name.startswith(VPMEM_CLASS):
                        amounts[consumer][host, name] = amounts[consumer].get((host, name), 0) + amount
    return dict(amounts)
