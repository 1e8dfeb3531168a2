"""Decides before every claim whether this host takes claims at the moment."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from devicetrack import exception
from devicetrack import log
from devicetrack.engine.views import lost_rows
from devicetrack.engine.views import Views

LOG = log.logger(__name__)


class StoreBehind(NamedTuple):
    """The store is older than the guests. ``instances`` have devices that the store does not know."""

    reason: str
    instances: frozenset[str]


def behind(views: Views, left: Collection[str] = ()) -> StoreBehind | None:
    """Say how the store is older than the guests, as one look shows; None if it is not.

    :param left: guests that do not count: their instances live elsewhere, and the manager removes them
    """
    known = {record.instance_uuid for one in views.lost for record in (one.known, one.shown) if record is not None}
    lost = {key: record for key, record in lost_rows(views).items() if record.instance_uuid not in left}
    if known:
        return StoreBehind('its store does not show rows that it had confirmed: '
                           f'{sum(one.known is not None for one in views.lost)}, of instance '
                           f'{_some(known)}; see '
                           'whether it was restored, or one of its servers lags behind; do not restart this service, '
                           'which knows them; devicetrack-manage audit --repair --accept has it write them again',
                           frozenset(known | {record.instance_uuid for record in lost.values()}))
    if not lost:
        return None
    guests = frozenset(record.instance_uuid for record in lost.values())
    reason = (f'its store is older than its guests: devices that lack the row of their guest: {len(lost)}, of guest '
              f'{_some(guests)}')
    if not views.records or any(record.host_uuid != views.host_uuid for record in lost.values()):
        reason += ('; it has no rows at all, or belongs to another host, so it was lost: stop this service and run '
                   f'devicetrack-manage recover --from-hypervisor --host {views.host}')
    else:
        reason += '; run devicetrack-manage audit to see them, and audit --repair --accept to record them'
        if any(key in views.owners for key in lost):
            reason += ', with --accept-move for each device whose row belongs to another instance'
    return StoreBehind(reason, guests)


def _some(instances: Collection[str]) -> str:
    return ', '.join(sorted(instances)[:3]) + (', …' if len(instances) > 3 else '')


class Gate:
    """The node's name, and whether the store is behind.

    :param host: the host's name
    :param nodename: its hypervisor node
    """

    def __init__(self, host: str, nodename: str) -> None:
        self.host, self.nodename = host, nodename
        # Assigned as one value, so that no claim sees a state between the verdicts of two audits.
        self._behind: StoreBehind | None = None

    @property
    def report_only(self) -> str | None:
        """Why the host claims and frees nothing now; None if it works."""
        return self._behind.reason if self._behind is not None else None

    @property
    def why_not_end(self) -> str | None:
        """Why no operator may end a row or have a device wiped now; None if one may."""
        behind = self._behind
        return None if behind is None else f'host {self.host} is report-only: {behind.reason}'

    def judge(self, behind: StoreBehind | None) -> None:
        """Take over the verdict of an audit."""
        before, self._behind = self._behind, behind
        if behind is not None and behind != before:
            LOG.warning('Host %(host)s takes no claims and gives nothing back: %(reason)s',
                        {'host': self.host, 'reason': behind.reason})
        elif behind is None and before is not None:
            LOG.info('Host %s takes claims again: each guest has its rows', self.host)

    def check_name(self, nodename: str) -> None:
        """:raises NodeUnavailable: the node does not belong to this host"""
        if nodename != self.nodename:
            raise exception.NodeUnavailable(nodename, f'it is not on host {self.host} (its node: {self.nodename})')

    def check(self, nodename: str) -> None:
        """:raises NodeUnavailable: the node does not belong to this host, or takes no claims at the moment"""
        if nodename != self.nodename:           # every claim runs this, and a call would take longer
            self.check_name(nodename)
        behind = self._behind
        if behind is not None:
            raise exception.NodeUnavailable(nodename, behind.reason)

    @property
    def is_open(self) -> bool:
        """Whether :meth:`check` lets claims for this node pass."""
        return self._behind is None

    def check_complete(self, instance_uuid: str) -> None:
        """Refuse to define a guest anew without one of its devices, since it would lose the data on it.

        :raises RowsMissing: the guest has devices that the store does not know
        """
        behind = self._behind
        if behind is not None and instance_uuid in behind.instances:
            raise exception.RowsMissing(instance_uuid, behind.reason)
