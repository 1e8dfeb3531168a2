"""Reads the records of one compute host from Nova and placement, as its compute service would."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Set
import concurrent.futures
import contextlib
import functools
from typing import Any
from typing import Final
from typing import NamedTuple
from typing import TypeVar

from keystoneauth1 import exceptions as keystone
from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from nova import servicegroup
import nova.conf
from nova.scheduler.client import report
from nova.virt import hardware
import oslo_messaging

from devicetrack import exception
from devicetrack import threads
from devicetrack.nova import adoption
from devicetrack.nova import interrupted
from devicetrack.nova import resources
from devicetrack.nova import seams
from devicetrack.nova import service
from devicetrack.nova import startup
from devicetrack.objects.values import Usage

# The fields of an instance that are loaded in addition to those of every query.
_ATTRIBUTES = ['flavor', 'migration_context', 'resources']
# How many seconds later than Nova itself this gives up on a question. Nova may never give up.
_MORE_S: Final = 2

_T = TypeVar('_T')


class ComputeNode(NamedTuple):
    """The hypervisor node of a host: its name, and its UUID in Nova, which is also its provider's UUID."""

    name: str
    uuid: str


class ListedProviders:
    """The providers of one node in placement, by the stable names of the parents that they count.

    :param known: their UUIDs by Nova's names for them
    """

    def __init__(self, nodename: str, known: dict[str, str]) -> None:
        self._nodename, self._known = nodename, known

    def uuid_of(self, name: str) -> str | None:
        """As :meth:`devicetrack.claims.providers.ProviderResolver.uuid_of`."""
        return self._known.get(f'{self._nodename}_{name}' if name else self._nodename)

    @property
    def uuids(self) -> dict[str, str]:
        """Return all UUIDs by stable name."""
        prefix = f'{self._nodename}_'
        return {'' if name == self._nodename else name.removeprefix(prefix): uuid
                for name, uuid in self._known.items() if name == self._nodename or name.startswith(prefix)}


class NovaRecord:
    """Nova's records of one compute host. Every method asks Nova or placement anew.

    :param host: its name in Nova

    ``service`` tells a claim manager about the host's instances and migrations.
    """

    def __init__(self, host: str) -> None:
        self.host, self.service = host, service.NovaService(host)

    def check_release(self) -> None:
        """Check that the adapter knows the installed Nova.

        :raises UnknownNova: it does not
        """
        seams.check(startup.targets())

    def node(self) -> ComputeNode:
        """Return the node of the host.

        Call this first: without a message broker Nova's other calls wait forever.

        :raises InvalidConfiguration: Nova knows no compute service on it, or one with several nodes
        :raises NovaUnavailable: no answer, within some seconds more than ``[DEFAULT] rpc_response_timeout``
        """
        with _asking('the conductor'):
            nodes = _in_time(self._nodes, nova.conf.CONF.rpc_response_timeout + _MORE_S)
        if len(nodes) != 1:
            # A libvirt driver has one node, except at the moment when a host gets another name.
            names = ', '.join(one.hypervisor_hostname for one in nodes) or 'none'
            raise exception.InvalidConfiguration(
                '[DEFAULT] host', self.host, f'Nova has these nodes for a host of this name: {names}; it must have one')
        return ComputeNode(nodes[0].hypervisor_hostname, nodes[0].uuid)

    def _nodes(self) -> list[Any]:
        try:
            return list(objects.ComputeNodeList.get_all_by_host(nova_context.get_admin_context(), self.host))
        except nova_exception.ComputeHostNotFound:
            return []

    def is_reported_up(self) -> bool:
        """Whether Nova takes the host's compute service for up: it reported within ``[DEFAULT] service_down_time``.

        :raises NovaUnavailable: no answer
        """
        with _asking('the conductor'):
            found = objects.Service.get_by_host_and_binary(nova_context.get_admin_context(), self.host, 'nova-compute')
            return found is not None and bool(servicegroup.API().service_is_up(found))

    def instances(self, node: ComputeNode, domains: Set[str], classes: Set[str]) -> dict[str, adoption.Instance]:
        """Return the instances that Nova has on the host, those that move from or to it, and those of these domains.

        :param classes: the classes that count devices of the host
        :raises NovaUnavailable: no answer
        """
        context = nova_context.get_admin_context(read_deleted='yes')
        with _asking('the conductor'):
            # Read the migrations first: the instance of a move that begins meanwhile is still on this host.
            moves = self._moves(node)
            found = {one.uuid: one for one in objects.InstanceList.get_by_host(
                nova_context.get_admin_context(), self.host, expected_attrs=_ATTRIBUTES)}
            others = sorted((domains | moves.keys()) - found.keys())
            for some in service.batches(others):
                found.update((one.uuid, one) for one in objects.InstanceList.get_by_filters(
                    context, {'uuid': some}, expected_attrs=_ATTRIBUTES))
            return {uuid: _instance(one, moves.get(uuid), classes) for uuid, one in found.items()}

    def _moves(self, node: ComputeNode) -> dict[str, Any]:
        """Return the unfinished moves from and to the host, by instance.

        Nova never ends the record of a move that was interrupted. When the instance has a newer one, it means nothing.
        """
        context = nova_context.get_admin_context()
        found = {one.instance_uuid: one for one in sorted(
            objects.MigrationList.get_in_progress_by_host_and_node(context, self.host, node.name),
            key=lambda one: one.id)}
        last = {uuid: service.last_move(context, uuid) for uuid in found}
        return {uuid: one for uuid, one in found.items() if last[uuid] is not None and one.id == last[uuid].id}

    def end_moves(self, node: ComputeNode, uuids: Set[str], usage: Usage,
                  classes: Set[str]) -> list[interrupted.MoveOutcome]:
        """End the moves of these instances away from the host that were interrupted, as the service does at its start.

        Call it while the service is stopped. The moves of other instances stay as they are.

        :param usage: the domains of the host
        :param classes: the resource classes of its devices
        """
        return interrupted.end(interrupted.SourceHost(
            self.host, node.uuid, uuids, functools.partial(interrupted.runs, usage), classes),
                               report.report_client_singleton(), only=uuids)

    def providers(self, node: ComputeNode) -> ListedProviders:
        """Return the providers of a node.

        :raises NovaUnavailable: no answer
        """
        with _asking('placement'):
            found = report.report_client_singleton().get_providers_in_tree(nova_context.get_admin_context(), node.uuid)
        return ListedProviders(node.name, {one['name']: one['uuid'] for one in found})

    def allocations(self, known: Iterable[str]) -> dict[str, dict[tuple[str, str], int]]:
        """Return the allocations of each consumer at these providers.

        :param known: the UUIDs of the providers
        :raises NovaUnavailable: no answer
        """
        found: dict[str, dict[tuple[str, str], int]] = {}
        with _asking('placement'):
            for provider in known:
                at = report.report_client_singleton().get_allocations_for_resource_provider(
                    nova_context.get_admin_context(), provider)
                for consumer, allocation in at.allocations.items():
                    for resource_class, amount in allocation['resources'].items():
                        found.setdefault(consumer, {})[provider, resource_class] = amount
        return found


def _instance(instance: Any, migration: Any, classes: Set[str]) -> adoption.Instance:
    moving = instance.migration_context
    lists = [instance.resources] + ([] if moving is None else [moving.old_resources, moving.new_resources])
    return adoption.Instance(
        instance.uuid, instance.host, bool(instance.deleted), tuple(dict.fromkeys(_namespaces(lists))),
        tuple(hardware.get_vpmems(instance.flavor)), _move(instance, migration), _wants(instance, classes))


def _wants(instance: Any, classes: Set[str]) -> frozenset[str]:
    try:
        return resources.asked(instance.flavor, classes)
    except exception.BadRequest:                # Nova would not have scheduled such a flavor to this host
        return frozenset()


def _namespaces(lists: Iterable[Any]) -> Iterator[adoption.NamedNamespace]:
    for found in lists:
        for provider, _class, name, details in resources.namespaces(found):
            yield adoption.NamedNamespace(name, details.label, details.devpath, provider)


def _move(instance: Any, migration: Any) -> str:
    """Describe the unfinished move of an instance, and how to end it; '' if there is none."""
    if migration is not None:
        what = (f'migration {migration.uuid} ({migration.migration_type}, from {migration.source_compute} to '
                f'{migration.dest_compute}) is {migration.status}')
        if migration.status == 'finished':
            return f'{what}: confirm or revert it'
        if interrupted.was_interrupted(migration, instance):
            return f'{what}, but it was interrupted: --apply on {migration.source_compute} ends it'
        return f'{what}: wait until it is over'
    if instance.migration_context is not None:
        return (f'a move of it is not over: Nova keeps the migration context of migration '
                f'{instance.migration_context.migration_id}')
    return ''


def _in_time(ask: Callable[[], _T], timeout_s: float) -> _T:
    """Return the answer to a question.

    :raises MessagingTimeout: no answer in this time; the asking thread goes on waiting, and ends with the process
    """
    answer: concurrent.futures.Future[_T] = concurrent.futures.Future()

    def wait() -> None:
        try:
            answer.set_result(ask())
        except Exception as error:
            answer.set_exception(error)

    threads.Thread('devicetrack-conductor', wait).start()
    try:
        return answer.result(timeout_s)
    except concurrent.futures.TimeoutError as error:
        raise oslo_messaging.MessagingTimeout(
            f'nothing within {timeout_s} s; see [DEFAULT] transport_url and whether the message broker runs') from error


@contextlib.contextmanager
def _asking(what: str) -> Iterator[None]:
    try:
        yield
    except (nova_exception.NovaException, oslo_messaging.MessagingException, keystone.ClientException) as error:
        raise exception.NovaUnavailable(what, f'{type(error).__name__}: {error}') from error
