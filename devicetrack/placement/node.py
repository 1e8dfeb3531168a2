"""Reports a service's host to placement, when the service starts and after each audit."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence
import time
from typing import NamedTuple
from typing import Protocol

from oslo_config import cfg

from devicetrack import exception
from devicetrack import log
from devicetrack.conf import placement as options
from devicetrack.objects import DeviceAssignment
from devicetrack.objects import Provider
from devicetrack.objects.values import Usage
from devicetrack.placement import errors
from devicetrack.placement import healer
from devicetrack.placement import tree
from devicetrack.placement.client import Client
from devicetrack.placement.healer import Healer
from devicetrack.placement.healer import Healing
from devicetrack.placement.reporter import PlacementReporter
from devicetrack.placement.reporter import Report

LOG = log.logger(__name__)


class ReportedState(Protocol):
    """The state of a host, as far as a report needs it."""

    @property
    def classes(self) -> Collection[str]: ...

    @property
    def complete(self) -> bool: ...


class ReportedHost(Protocol):
    """The facts of a host that a report needs. A ``ClaimManager`` that is ready has them."""

    host: str
    nodename: str

    def state(self) -> ReportedState: ...

    def providers(self) -> Sequence[Provider]: ...

    def assignments(self) -> Sequence[DeviceAssignment]: ...

    def usage(self) -> Usage: ...


class HostRow(Protocol):
    """A host's row, as far as a report needs it."""

    @property
    def uuid(self) -> str: ...

    @property
    def nested_version(self) -> int | None: ...


class HostRows(Protocol):
    """The store, as far as it records whether a host's node is nested."""

    def host(self, name: str) -> HostRow | None: ...

    def set_nested(self, host_uuid: str, version: int | None, at: int | None) -> None: ...


class Start(NamedTuple):
    """The results of a start: ``healing`` is None unless it healed, ``report`` None when placement gave no answer."""

    healing: Healing | None
    report: Report | None


def record_layout(store: HostRows, host: HostRow, wanted: str, report: Report) -> None:
    """Record whether a host's node is nested or flat after this report. A report that was refused in part says neither.

    :param wanted: the layout that the report tried to reach
    :raises StoreError: the store cannot keep it
    """
    if report.layout != wanted or report.refused:
        return                                  # allocations or a refusal keep the tree in its present layout
    if wanted == tree.NESTED and host.nested_version != healer.VERSION:
        store.set_nested(host.uuid, healer.VERSION, int(time.time()))
    elif wanted == tree.FLAT and host.nested_version is not None:
        store.set_nested(host.uuid, None, None)


class NodeReporter:
    """Reports a host's node as ``[placement] nested`` says. Never call it under the ledger's lock.

    :param host: a ``ClaimManager`` that is ready
    :param store: the ``store`` of that manager, whose writes end when another manager takes the host over
    :param nested: the option's value
    """

    def __init__(self, client: Client, host: ReportedHost, store: HostRows, nested: str) -> None:
        self._host, self._store, self._nested = host, store, nested
        self._reporter, self._healer = PlacementReporter(client), Healer(client)

    @classmethod
    def from_conf(cls, conf: cfg.ConfigOpts, host: ReportedHost, store: HostRows) -> NodeReporter:
        """Make the reporter that ``[placement]`` describes.

        :raises InvalidConfiguration: the options cannot be used
        """
        options.register(conf)
        return cls(Client.from_conf(conf), host, store, conf[options.GROUP].nested)

    def start(self) -> Start:
        """Report for the first time. Call it once, when the manager is ready and before instances come. Blocks.

        ``at_start`` heals first. Obstacles are logged and returned: the node stays flat until the next start or a heal
        by hand. The service starts all the same, since otherwise guests would be trapped on a host that cannot start.

        :raises StillFlat: with ``refuse``: consumers hold devices at the node that should be counted below it
        :raises PlacementError: with ``refuse``: it is unknown whether any consumer does
        """
        healing = None
        if self._nested == 'refuse':
            consumers = self._healer.at_node(self._node())
            if consumers:
                raise errors.StillFlat(self._host.nodename, consumers)
        elif self._nested == 'at_start':
            healing = self._heal()
        try:
            return Start(healing, self.report())
        except exception.DeviceTrackError as error:
            LOG.warning('Node %(node)s was not reported to placement: %(error)s',
                        {'node': self._host.nodename, 'error': error})
            return Start(healing, None)

    def report(self) -> Report:
        """Report again. Call it after each ``update_available_resource``. Blocks for as long as placement takes.

        :raises PlacementError: as :meth:`PlacementReporter.sync`; the next report continues
        :raises StoreError: the store does not say whether the host is nested, or cannot keep it
        """
        row = self._store.host(self._host.host)
        assert row is not None                  # the manager is ready
        layout = tree.wanted_layout(self._nested, row.nested_version is not None)
        state = self._host.state()
        report = self._reporter.sync(self._host.providers(), layout, state.classes, state.complete)
        record_layout(self._store, row, layout, report)
        return report

    def _node(self) -> healer.NodeToHeal:
        return healer.NodeToHeal.of_host(self._look, self._host.providers(), self._host.state().complete)

    def _look(self) -> tuple[Sequence[DeviceAssignment], Usage]:
        usage = self._host.usage()              # first: what is assigned meanwhile is in both, or in the second
        return self._host.assignments(), usage

    def _heal(self) -> Healing:
        healing = self._healer.attempt(self._node)
        for obstacle in healing.obstacles:
            LOG.warning('Node %(node)s is not healed: %(obstacle)s',
                        {'node': self._host.nodename, 'obstacle': obstacle})
        if healing.consumers:
            LOG.info('Node %(node)s is healed; consumers that moved: %(count)s',
                     {'node': self._host.nodename, 'count': len(healing.consumers)})
        return healing
