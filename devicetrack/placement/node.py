"""What a service tells placement of its host, when it starts and after each audit."""

from __future__ import annotations

from collections.abc import Collection
import time
from typing import Any
from typing import NamedTuple
from typing import Protocol

from oslo_config import cfg
from oslo_log import log as logging

from devicetrack import exception
from devicetrack.conf import placement as options
from devicetrack.objects import Provider
from devicetrack.objects.values import Record
from devicetrack.objects.values import Usage
from devicetrack.placement import errors
from devicetrack.placement import healer
from devicetrack.placement import tree
from devicetrack.placement.client import Client
from devicetrack.placement.healer import Healer
from devicetrack.placement.healer import Healing
from devicetrack.placement.reporter import PlacementReporter
from devicetrack.placement.reporter import Report

LOG = logging.getLogger(__name__)


class Manager(Protocol):
    """What is asked of a claim manager."""

    host: str
    nodename: str
    complete: bool
    store: Any

    @property
    def classes(self) -> Collection[str]: ...

    def providers(self) -> list[Provider]: ...

    def placed(self) -> tuple[list[Record], Usage]: ...


class Start(NamedTuple):
    """What came of a start: ``healing`` is None unless it healed, ``report`` None when placement gave no answer."""

    healing: Healing | None
    report: Report | None


def keep_layout(store: Any, host: Any, wanted: str, report: Report) -> None:
    """Record with a host whether its node is nested now, or flat.

    :param wanted: the layout that was to be reported
    :raises StoreError: the store cannot keep it
    """
    if report.layout != wanted:
        return                                  # devices are allocated where they were
    if wanted == tree.NESTED and host.nested_version != healer.VERSION:
        store.set_nested(host.uuid, healer.VERSION, int(time.time()))
    elif wanted == tree.FLAT and host.nested_version is not None:
        store.set_nested(host.uuid, None, None)


class NodeReporter:
    """Reports a manager's node as ``[placement] nested`` says. Nothing of it is called under the ledger's lock.

    :param manager: a ``ClaimManager`` that is ready
    :param nested: the option's value
    """

    def __init__(self, client: Client, manager: Manager, nested: str) -> None:
        self._manager, self._nested = manager, nested
        self._reporter, self._healer = PlacementReporter(client), Healer(client)

    @classmethod
    def from_conf(cls, conf: cfg.ConfigOpts, manager: Manager) -> NodeReporter:
        """As ``[placement]`` says.

        :raises InvalidConfiguration: the options cannot be used
        """
        options.register(conf)
        return cls(Client.from_conf(conf), manager, conf[options.GROUP].nested)

    def start(self) -> Start:
        """Once, when the manager is ready, before instances come. Blocks.

        ``at_start`` heals. What keeps it from that is logged and in the answer: the node stays flat until the next
        start or a heal by hand, and the service starts, for guests must not be trapped on a host that cannot come up.

        :raises StillFlat: with ``refuse``: consumers hold of the node itself what is counted below it
        :raises PlacementError: with ``refuse``: nobody knows whether they do
        """
        healing = None
        if self._nested == 'refuse':
            consumers = self._healer.at_node(self._node())
            if consumers:
                raise errors.StillFlat(self._manager.nodename, consumers)
        elif self._nested == 'at_start':
            healing = self._heal()
        try:
            return Start(healing, self.report())
        except exception.DeviceTrackError as error:
            LOG.warning('Placement was told nothing of %(node)s: %(error)s',
                        {'node': self._manager.nodename, 'error': error})
            return Start(healing, None)

    def report(self) -> Report:
        """After each ``update_available_resource``. Blocks for as long as placement takes.

        :raises PlacementError: as :meth:`PlacementReporter.sync`; the next report goes on
        :raises StoreError: the store does not say whether the host is nested, or cannot keep it
        """
        manager = self._manager
        host = manager.store.host(manager.host)
        layout = tree.wanted_layout(self._nested, host.nested_version is not None)
        report = self._reporter.sync(manager.providers(), layout, manager.classes, manager.complete)
        keep_layout(manager.store, host, layout, report)
        return report

    def _node(self) -> healer.Node:
        return healer.Node.of_host(self._manager.placed, self._manager.providers(), self._manager.complete)

    def _heal(self) -> Healing:
        healing = self._healer.attempt(self._node())
        for obstacle in healing.obstacles:
            LOG.warning('Node %(node)s is not healed: %(obstacle)s',
                        {'node': self._manager.nodename, 'obstacle': obstacle})
        if healing.consumers:
            LOG.info('Node %(node)s is healed; consumers that moved: %(count)s',
                     {'node': self._manager.nodename, 'count': len(healing.consumers)})
        return healing
