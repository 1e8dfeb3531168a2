"""Keeps placement's tree of one node in agreement with its host."""

from __future__ import annotations

import collections
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
import contextlib
import threading
import time
from typing import Final
from typing import NamedTuple

from devicetrack import log
from devicetrack.objects import Provider
from devicetrack.placement import errors
from devicetrack.placement import pauses
from devicetrack.placement import tree
from devicetrack.placement import values
from devicetrack.placement.client import Client

LOG = log.logger(__name__)

# Called with the step of a report, how many providers have been through that step, and how many will be.
Progress = Callable[[str, int, int], None]
READING: Final = 'read'
WRITING: Final = 'written'

# Somebody else changed the tree between our reading and our writing: read it again, and compare again.
_MOVED: Final = (errors.ProviderConflict, errors.InventoryInUse, errors.ProviderInUse, errors.ProviderExists,
                 errors.NoSuchProvider)


class Report(NamedTuple):
    """The changes that a report made, or with ``dry_run`` would make.

    ``left`` are inventories that should be removed but cannot be yet. ``refused`` has, by UUID, the errors of providers
    that could not be reported; the next report tries again. ``layout`` may differ from the one that was asked for: see
    :func:`devicetrack.placement.tree.possible`.
    """

    root: tree.ProviderState
    changes: tuple[tree.ProviderChange, ...]
    left: tuple[tree.Left, ...]
    refused: Mapping[str, errors.PlacementError]
    layout: str

    @property
    def difference(self) -> tree.Difference:
        return tree.Difference(self.changes, self.left)


class PlacementReporter:
    """Reports the providers of one node. Threads may share it; it makes one report after the other.

    It remembers each provider with its generation. So a report without changes takes one request. It reads a provider
    again only if that changed, for example by an allocation.

    :param attempts: how often a report writes to one provider at most when others change it at the same time
    :param pause: called with the seconds before each attempt after the first; at random, and longer each time
    """

    def __init__(self, client: Client, attempts: int = 5, pause: Callable[[float], object] = time.sleep) -> None:
        self._client, self._attempts, self._pause = client, attempts, pause
        self._lock = threading.Lock()
        self._seen: dict[str, tree.ProviderState] = {}
        self._strangers: set[str] = set()       # others' providers in the tree
        # The custom names that placement has. A class and a trait may have the same name, and neither makes the other.
        self._classes: set[str] = set()
        self._traits: set[str] = set()
        self._left: frozenset[tree.Left] = frozenset()

    def sync(self, providers: Collection[Provider], layout: str = tree.NESTED, classes: Collection[str] = (),
             complete: bool = True, dry_run: bool = False, progress: Progress | None = None) -> Report:
        """Make placement's tree agree with these providers. Blocks for as long as placement takes.

        If placement refuses one provider, or others change it each time before we write, the rest is reported all the
        same.

        :param providers: the node and everything below it, as ``ClaimManager.providers()`` gives them
        :param layout: where devices are counted: ``flat``, ``nested`` or ``announced``
        :param classes: the classes that count devices of this host, even if it has none now
        :param complete: False when a part of the host could not be read: nothing is deleted because it is missing
        :param dry_run: only say what would change
        :raises PlacementUnavailable: no usable answer; everything written so far stays, and the next report continues
        :raises ProviderExists: placement has another provider of the node's name
        """
        with self._lock:
            report = self._sync(providers, layout, tree.counted(providers) | frozenset(classes), complete, dry_run,
                                progress or (lambda *_progress: None))
            if not dry_run:
                self._log(report)
        return report

    def _sync(self, providers: Collection[Provider], layout: str, classes: frozenset[str], complete: bool,
              dry_run: bool, progress: Progress) -> Report:
        written: list[tree.ProviderChange] = []
        refused: dict[str, errors.PlacementError] = {}
        conflicts: collections.Counter[str] = collections.Counter()
        while True:
            actual, wanted, now = self._compared(providers, layout, classes, progress)
            difference = tree.diff(actual, wanted, classes, complete)
            root = actual.providers.get(wanted.root, wanted.providers[wanted.root])
            if dry_run:
                return Report(root, *difference, {}, now)
            # Room that could not be removed at one provider is not added at others.
            stay = frozenset(name for change in difference.changes if change.provider.uuid in refused
                             for name in tree.closed(change))
            changes = [change for change in (tree.without_room(one, stay) for one in difference.changes)
                       if change.provider.uuid not in refused and change.before != change.after]
            of = len(written) + len(changes)
            for change in changes:
                uuid = change.provider.uuid
                try:
                    self._write(change)
                except _MOVED as error:
                    self._seen.pop(uuid, None)
                    conflicts[uuid] += 1
                    if conflicts[uuid] >= self._attempts:
                        if uuid == wanted.root and change.before is None:
                            raise               # without the node the other providers have no parent
                        refused[uuid] = error
                    else:
                        self._pause(pauses.after(conflicts[uuid]))
                except errors.PlacementRefused as error:
                    self._classes.clear()
                    self._traits.clear()
                    refused[uuid] = error
                else:
                    written.append(change)
                    progress(WRITING, len(written), of)
                    continue
                # Compare anew, since later changes may need this one: devices that move leave before they arrive.
                break
            else:
                return Report(root, tuple(written), difference.left, refused, now)

    def _log(self, report: Report) -> None:
        for uuid, error in report.refused.items():
            LOG.warning('Provider %(uuid)s was not reported: %(error)s', {'uuid': uuid, 'error': error})
        for left in report.left:
            if left not in self._left:          # warn once, although each report finds it again
                LOG.warning('%s', left)
        self._left = frozenset(report.left)
        if report.changes:
            LOG.info('Node %(node)s was reported to placement; providers that changed: %(count)s', {
                'node': report.root.name, 'count': len(report.changes)})

    # -- reading ------------------------------------------------------------------------------------------------------

    def _compared(self, providers: Collection[Provider], layout: str, classes: frozenset[str],
                  progress: Progress) -> tuple[tree.ProviderTree, tree.ProviderTree, str]:
        """Return placement's tree, the wanted tree, and the layout of the wanted one."""
        wanted = tree.desired(providers, layout)
        self._seen = self._read(wanted, progress)
        actual = self._used(tree.ProviderTree(wanted.root, dict(self._seen)), wanted, tree.desired(providers), classes)
        possible = tree.possible(actual, providers, layout, classes)
        wanted = tree.desired(providers, possible, tree.held_below(actual, providers, possible),
                              tree.surplus_at_node(actual, providers, possible))
        return self._aggregated(actual, wanted), wanted, possible

    def _read(self, wanted: tree.ProviderTree, progress: Progress) -> dict[str, tree.ProviderState]:
        """Read all providers of the tree. One whose generation has not changed is not read again."""
        listed = self._client.get_tree(wanted.root)
        states = {}
        changed = []
        for provider in listed:
            seen = self._seen.get(provider.uuid)
            if provider.uuid in self._strangers - wanted.known:
                states[provider.uuid] = _state(provider)
            elif (seen is not None and seen.generation == provider.generation
                  and provider.uuid not in self._strangers):
                states[provider.uuid] = seen
            else:
                changed.append(provider)
        for number, provider in enumerate(changed, 1):
            try:
                states[provider.uuid] = self._read_one(provider, wanted)
            except errors.NoSuchProvider:
                continue                        # somebody has just deleted it
            progress(READING, number, len(changed))
        return states

    def _read_one(self, provider: values.ListedProvider, wanted: tree.ProviderTree) -> tree.ProviderState:
        traits = self._client.get_traits(provider.uuid)
        state = _state(provider)._replace(traits=frozenset(traits.traits))
        if not tree.is_ours(state, wanted):
            self._strangers.add(provider.uuid)
            return _state(provider)
        self._strangers.discard(provider.uuid)
        inventories = self._client.get_inventories(provider.uuid)
        # Keep the older generation, so that a write between the two reads makes our own write conflict.
        return state._replace(inventories=inventories.inventories,
                             generation=min(traits.generation, inventories.generation))

    def _used(self, actual: tree.ProviderTree, wanted: tree.ProviderTree, nested: tree.ProviderTree,
              classes: frozenset[str]) -> tree.ProviderTree:
        """Return the tree with the usages of the providers where they matter."""
        states = dict(actual.providers)
        for uuid in tree.to_ask(actual, wanted, nested, classes):
            # Usages are never remembered: a provider keeps its generation when one of its allocations is removed.
            with contextlib.suppress(errors.NoSuchProvider):           # a write to it will fail
                states[uuid] = states[uuid]._replace(used=self._client.get_usages(uuid))
        return actual._replace(providers=states)

    def _aggregated(self, actual: tree.ProviderTree, wanted: tree.ProviderTree) -> tree.ProviderTree:
        """Return the tree with the aggregates of the providers that may be deleted."""
        states = dict(actual.providers)
        for uuid, state in states.items():
            if state.aggregated is None and uuid not in wanted.providers and tree.MADE in state.traits:
                with contextlib.suppress(errors.NoSuchProvider):
                    aggregated = bool(self._client.get_aggregates(uuid))
                    states[uuid] = state._replace(aggregated=aggregated)
                    self._seen[uuid] = self._seen[uuid]._replace(aggregated=aggregated)
        return actual._replace(providers=states)

    # -- writing ------------------------------------------------------------------------------------------------------

    def _write(self, change: tree.ProviderChange) -> None:
        before, after = change
        if after is None:
            assert before is not None
            self._client.delete_provider(before.uuid)
            del self._seen[before.uuid]
            return
        if before is None:
            before = _state(self._client.create_provider(after.uuid, after.name, after.parent_uuid))
            self._seen[after.uuid] = before
        self._ensure(before, after)
        # Write an inventory's mark before the inventory, and remove the mark after it, so that a later process always
        # recognizes the inventory.
        if before.inventories != after.inventories:
            before = self._write_traits(before, before.traits | after.traits)
            assert before.generation is not None
            answer = self._client.put_inventories(after.uuid, before.generation, after.inventories)
            before = before._replace(inventories=after.inventories, generation=answer.generation)
            self._seen[after.uuid] = before
        self._write_traits(before, after.traits)

    def _write_traits(self, state: tree.ProviderState, traits: frozenset[str]) -> tree.ProviderState:
        if traits != state.traits:
            assert state.generation is not None
            answer = self._client.put_traits(state.uuid, state.generation, traits)
            state = self._seen[state.uuid] = state._replace(traits=traits, generation=answer.generation)
        return state

    def _ensure(self, before: tree.ProviderState, after: tree.ProviderState) -> None:
        """Make the custom classes and traits that placement lacks. It has all standard ones."""
        for name in _custom(after.inventories.keys() - before.inventories.keys()):
            if name not in self._classes:
                self._client.ensure_class(name)
                self._classes.add(name)
        for name in _custom(after.traits - before.traits):
            if not self._traits:                # a change without new traits needs no list of them
                self._traits |= self._client.find_traits(_CUSTOM)
            if name not in self._traits:
                self._client.ensure_trait(name)
                self._traits.add(name)


_CUSTOM: Final = 'CUSTOM_'


def _custom(names: Iterable[str]) -> list[str]:
    return sorted(name for name in names if name.startswith(_CUSTOM))


def _state(provider: values.ListedProvider) -> tree.ProviderState:
    return tree.ProviderState(provider.uuid, provider.name, provider.parent_uuid, generation=provider.generation)
