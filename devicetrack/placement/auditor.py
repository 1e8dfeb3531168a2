"""Reads a host's devices from placement and from the host, and makes the repairs that are certain."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
from typing import NamedTuple

from devicetrack import exception
from devicetrack.objects import Provider
from devicetrack.objects.values import Leftover
from devicetrack.objects.values import Usage
from devicetrack.placement import allocations
from devicetrack.placement import audit
from devicetrack.placement import errors
from devicetrack.placement import reporter
from devicetrack.placement import tree
from devicetrack.placement import values
from devicetrack.placement.allocations import Leftovers
from devicetrack.placement.audit import Mismatch
from devicetrack.placement.audit import PlacementRepair
from devicetrack.placement.audit import PlacementViews
from devicetrack.placement.client import Client
from devicetrack.placement.expected import Assigned


class HostView(NamedTuple):
    """A host's providers and whether they are complete, its rows, and the devices that guests use, from its manager."""

    providers: Sequence[Provider]
    complete: bool
    records: Sequence[Assigned]
    usage: Usage


class Auditor:
    """Audits one node.

    It looks twice. A look takes two requests, one for each provider of the tree and two for each that changed since
    the last look, and one for each consumer that differs and for the instance of a noted migration that differs.

    :param look: reads the host anew
    :param layout: the wanted layout
    :param classes: the classes that count devices of this host, even if it has none now
    :param leftovers: keeps the notes of the host's confirms and reverts
    :param record: called with each report that a repair made, for example to record that the node is nested
    """

    def __init__(self, client: Client, look: Callable[[], HostView], layout: str, classes: Collection[str],
                 leftovers: Leftovers, record: Callable[[reporter.Report], None] | None = None) -> None:
        self._client, self._look, self._layout, self._leftovers = client, look, layout, leftovers
        self._classes, self._record = frozenset(classes), record
        self._reporter = reporter.PlacementReporter(client)

    def audit(self) -> list[Mismatch]:
        """Look twice, and return the differences that both looks show: a passing difference is not a mismatch.

        :raises PlacementUnavailable, HypervisorUnreachable, StoreError: no answer
        """
        return self._audit()[0]

    def plan(self) -> tuple[list[PlacementRepair], list[Mismatch]]:
        """Return the certain repairs, for :meth:`repair`, and the mismatches that need attention but have no repair."""
        found, views = self._audit()
        repairs = audit.repairs(views, found)
        repaired = {mismatch for repair in repairs for mismatch in repair.why}
        return repairs, [one for one in found if one.needs_attention and one not in repaired]

    def repair(self, repairs: Sequence[PlacementRepair]) -> Iterator[tuple[PlacementRepair, str | None]]:
        """Make the repairs one by one; yield each with None or why it failed: something may have changed meanwhile."""
        for repair in repairs:
            try:
                yield repair, self._repair(repair)
            except exception.DeviceTrackError as error:
                yield repair, str(error)

    def _repair(self, repair: PlacementRepair) -> str | None:
        if repair.consumer is None:
            report = self._report(self._look(), dry_run=False)
            if self._record is not None:
                self._record(report)
            return '; '.join(map(str, report.refused.values())) or None
        self._client.replace_allocations([change.after for change in repair.changes])
        if repair.verb in (audit.REMOVE, audit.REVERT):
            assert repair.instance_uuid is not None
            allocations.forget(self._leftovers, Leftover(repair.instance_uuid, repair.consumer))
        return None

    # -- reading ------------------------------------------------------------------------------------------------------

    def _audit(self) -> tuple[list[Mismatch], PlacementViews]:
        first, views = audit.compare(self._read()), self._read()
        return [mismatch for mismatch in audit.compare(views) if mismatch in first], views

    def _read(self) -> PlacementViews:
        # Read the host first: a consumer that comes meanwhile has no row in this view, which leads to no repair.
        host = self._look()
        report = self._report(host, dry_run=True)
        classes = tree.counted(host.providers) | self._classes
        names = self._names(host.providers)
        held: dict[str, values.Consumer] = {}
        for provider in names:
            for uuid, holding in self._client.list_consumers(provider).consumers.items():
                if classes & holding.resources.keys():
                    before = held.get(uuid, values.Consumer(uuid, {}, holding.generation)).resources
                    held[uuid] = values.Consumer(uuid, {**before, provider: holding.resources}, holding.generation)
        notes = self._leftovers.kept()
        views = PlacementViews(report, self._layout, host.complete, names, classes, host.records, host.usage, notes,
                               held)
        differ = {mismatch.consumer for mismatch in audit.compare(views) if mismatch.consumer is not None}
        differ |= {note.instance_uuid for note in notes if note.migration_uuid in differ}
        return views._replace(consumers={**held, **{uuid: self._client.get_allocations(uuid) for uuid in differ}})

    def _names(self, providers: Sequence[Provider]) -> dict[str, str]:
        """Return, by UUID, the names of the providers that count devices of this host now, or once did."""
        [root] = [provider for provider in providers if provider.parent_uuid is None]
        known = {provider.uuid for provider in providers}
        names = {}
        for found in self._client.get_tree(root.uuid):
            with contextlib.suppress(errors.NoSuchProvider):           # somebody has just deleted it
                if found.uuid in known or tree.is_marked(self._client.get_traits(found.uuid).traits):
                    names[found.uuid] = found.name
        return names

    def _report(self, host: HostView, dry_run: bool) -> reporter.Report:
        return self._reporter.sync(host.providers, self._layout, self._classes, host.complete, dry_run)
