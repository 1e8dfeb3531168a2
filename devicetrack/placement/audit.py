"""Compares placement with the record of one host's devices, and plans the repairs that are certain. Pure.

Four repairs are certain:

- report the host's own inventories;
- allocate to an instance that is at rest here and whose guest has exactly the devices of its rows;
- remove the allocations of a migration that is noted as confirmed and that the record no longer has;
- give such an instance back the allocations of its migration, which is noted as reverted.

While a move begins or ends, placement and the record differ and neither is wrong. A migration that the record does not
know may have just begun.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import functools
from typing import Final
from typing import NamedTuple

from devicetrack import vocabulary
from devicetrack.objects import traits
from devicetrack.objects.values import Leftover
from devicetrack.objects.values import Usage
from devicetrack.placement import expected
from devicetrack.placement import merging
from devicetrack.placement import notes
from devicetrack.placement import operations
from devicetrack.placement import tree
from devicetrack.placement import values
from devicetrack.placement.expected import Assigned
from devicetrack.placement.expected import Share
from devicetrack.placement.reporter import Report
from devicetrack.placement.values import Consumer
from devicetrack.placement.values import Resources

UNRECORDED: Final = 'allocated without a record'
UNALLOCATED: Final = 'recorded without an allocation'
WRONG_PROVIDER: Final = 'allocated at another provider'
WRONG_AMOUNT: Final = 'another amount allocated'
LEFT_OVER_MIGRATION: Final = 'left-over migration'
INVENTORY_DIFFERS: Final = 'inventory differs'
OTHER_LAYOUT: Final = 'other layout'
VIEW_UNKNOWN: Final = 'view unknown'
KINDS: Final = (UNRECORDED, UNALLOCATED, WRONG_PROVIDER, WRONG_AMOUNT, LEFT_OVER_MIGRATION, INVENTORY_DIFFERS,
                OTHER_LAYOUT, VIEW_UNKNOWN)

# The repairs, in the order in which they are done: those that make room come first.
REMOVE: Final = 'remove'                    # remove all allocations of a migration
REVERT: Final = 'revert'                    # give an instance back the allocations that a migration holds for it
SYNC: Final = 'sync'                        # report the host's inventories
ALLOCATE: Final = 'allocate'                # give a consumer the allocations of its rows, and keep its other ones
REPAIRS: Final = (REMOVE, REVERT, SYNC, ALLOCATE)


class Mismatch(NamedTuple):
    """One difference, with the fields of every finding.

    ``consumer`` is None for a mismatch of the tree. ``provider`` is the name of the provider, if there is one.
    ``instance_uuid`` is the instance of the rows, ``generation`` that of the consumer. ``repair`` is one of
    ``REPAIRS``, or None when a person must decide or nothing needs to be done.
    """

    kind: str
    severity: str
    consumer: str | None
    provider: str | None
    resource_class: str | None
    instance_uuid: str | None
    has_guest: bool
    generation: int
    detail: str
    held: str
    proposal: str
    repair: str | None = None

    @property
    def needs_attention(self) -> bool:
        return self.severity != vocabulary.NOTE


class PlacementViews(NamedTuple):
    """Everything that an audit read.

    :param report: a dry report, with its own reading of the tree
    :param layout: the wanted layout; ``report`` has the present one
    :param complete: False when a part of the host could not be read
    :param names: by UUID, the providers whose allocations are about this host's devices
    :param classes: the resource classes that count them
    :param records: the host's rows, each with the provider and class that its device is counted at now
    :param notes: confirms and reverts that have yet to reach placement
    :param consumers: the consumers that hold any of these devices, or should, as far as they were read; whoever
        differs, and the instance of a noted migration that differs, with all that it holds
    """

    report: Report
    layout: str
    complete: bool
    names: Mapping[str, str]
    classes: frozenset[str]
    records: Sequence[Assigned]
    usage: Usage
    notes: Collection[Leftover]
    consumers: Mapping[str, Consumer]


class ConsumerChange(NamedTuple):
    """All that a consumer holds before and after a repair. ``after`` has the generation that was read."""

    before: Consumer
    after: Consumer


class PlacementRepair(NamedTuple):
    """One repair. ``changes`` are made together or not at all; a repair of the tree has none.

    ``consumer`` is the consumer of the first change, and names the repair. ``why`` are its mismatches.
    """

    verb: str
    consumer: str | None
    changes: tuple[ConsumerChange, ...]
    instance_uuid: str | None
    why: tuple[Mismatch, ...]

    def __str__(self) -> str:
        return self.verb if self.consumer is None else f'{self.verb} {self.consumer}'


def compare(views: PlacementViews) -> list[Mismatch]:
    """Return every mismatch once, in a stable order."""
    seen = _Comparison(views)
    return [*seen.unknown(), *seen.tree(), *seen.consumers()]


def repairs(views: PlacementViews, mismatches: Iterable[Mismatch]) -> list[PlacementRepair]:
    """Return the repairs for mismatches of these views, in the order in which to make them.

    A revert needs the mismatch of its migration. Without it, for example because the migration has just changed, the
    mismatch of the instance has no repair.
    """
    seen = _Comparison(views)
    mismatches = list(mismatches)
    # A revert changes two consumers. It is named for the migration's.
    reverted = {mismatch.instance_uuid: mismatch.consumer for mismatch in mismatches
                if mismatch.repair == REVERT and mismatch.kind == LEFT_OVER_MIGRATION}
    together: dict[tuple[str, str | None], list[Mismatch]] = {}
    for mismatch in mismatches:
        if mismatch.repair == REVERT and mismatch.instance_uuid not in reverted:
            continue
        if mismatch.repair is not None:
            consumer = reverted[mismatch.instance_uuid] if mismatch.repair == REVERT else mismatch.consumer
            together.setdefault((mismatch.repair, consumer), []).append(mismatch)
    found = []
    for (verb, uuid), why in together.items():
        changes = seen.changes(verb, uuid, why) if uuid is not None else ()
        found.append(PlacementRepair(verb, uuid, changes, why[0].instance_uuid, tuple(why)))
    return sorted(found, key=lambda repair: (REPAIRS.index(repair.verb), _growth(repair)))


class _Comparison:
    def __init__(self, views: PlacementViews) -> None:
        self._views = views
        self._root = views.report.root.uuid
        self._layouts = dict.fromkeys((views.report.layout, tree.NESTED))
        self._shares = {layout: expected.shares(views.records, self._root, layout) for layout in self._layouts}

    # -- the tree -----------------------------------------------------------------------------------------------------

    def unknown(self) -> Iterator[Mismatch]:
        if not self._views.complete:
            yield _of_tree(VIEW_UNKNOWN, None, 'a part of the host could not be read',
                           'what is missing there stays, without room for more', 'see devicetrack-manage device list')
        for unknown in self._views.usage.unknown:
            yield _of_tree(VIEW_UNKNOWN, None, f'{unknown.what}: {unknown.reason}',
                           'no allocation is repaired: it is unknown what guests use', 'see devicetrack-manage audit')

    def tree(self) -> Iterator[Mismatch]:
        report, layout = self._views.report, self._views.layout
        if report.layout != layout:
            yield _of_tree(OTHER_LAYOUT, report.root.name, f'the tree is {report.layout} and not {layout}: devices '
                           'are allocated that would have to move', 'the present layout',
                           f'run devicetrack-manage placement heal --node {report.root.name}; if it has nothing to '
                           'move, move away the guests whose devices are gone' if layout == tree.NESTED else
                           'move the guests away, or set [placement] nested = at_start')
        for change in report.changes:
            facts = '; '.join(str(fact) for fact in tree.facts(tree.Difference((change,), ())))
            name = change.provider.name
            if _says_more(change):
                yield _of_tree(INVENTORY_DIFFERS, name, f'placement reserves or marks more than this audit expects: '
                               f'{facts}', 'the reserved amount',
                               'nothing: the service may know why, and its next report corrects it if not',
                               severity=vocabulary.NOTE)
            else:
                yield _of_tree(INVENTORY_DIFFERS, name, facts, 'nothing: the scheduler uses the present inventory',
                               'run devicetrack-manage placement sync', SYNC)
        for left in report.left:
            yield _of_tree(INVENTORY_DIFFERS, left.provider, str(left), 'all of it',
                           'nothing: it goes with its last allocation')

    # -- consumers ----------------------------------------------------------------------------------------------------

    def consumers(self) -> list[Mismatch]:
        unsure = [mismatch for uuid in sorted({*self._views.consumers, *self._shares[self._views.report.layout]})
                  for mismatch in self._of(uuid)]
        wrong = {mismatch.consumer for mismatch in unsure}
        moves = {record.migration_uuid for record in self._views.records}
        ended = {note.migration_uuid: note for note in self._views.notes
                 if note.migration_uuid in wrong and note.migration_uuid not in moves and notes.is_readable(note)}
        over = {uuid: note.instance_uuid for uuid, note in ended.items()
                if note.verb == vocabulary.CONFIRM and note.instance_uuid not in wrong}
        back = {uuid: note.instance_uuid for uuid, note in ended.items()
                if note.verb == vocabulary.REVERT and self._came_back(note.instance_uuid, uuid)}
        # A consumer whose writer gave no type may also be a migration.
        begun = any(mismatch.kind in (LEFT_OVER_MIGRATION, UNRECORDED)
                    and mismatch.consumer not in over and mismatch.consumer not in back
                    and self._views.consumers[str(mismatch.consumer)].type != values.INSTANCE for mismatch in unsure)
        found = []
        for mismatch in unsure:
            uuid = mismatch.consumer
            assert uuid is not None
            if mismatch.kind == LEFT_OVER_MIGRATION and uuid in over:
                mismatch = mismatch._replace(repair=REMOVE, instance_uuid=over[uuid], proposal='remove it: its '
                                             'confirmation is recorded, and no row waits for it')
            elif mismatch.kind == LEFT_OVER_MIGRATION and uuid in back:
                mismatch = mismatch._replace(repair=REVERT, instance_uuid=back[uuid], proposal='give it back to its '
                                             'instance: its revert is recorded, and the instance has its devices '
                                             'from before the move')
            elif mismatch.kind in _IN_PART and uuid in back.values():
                mismatch = mismatch._replace(repair=REVERT)
            elif mismatch.kind in _IN_PART and not begun and self._is_at_rest(uuid):
                mismatch = mismatch._replace(repair=ALLOCATE)
            found.append(mismatch)
        return found

    def _of(self, uuid: str) -> Iterator[Mismatch]:
        consumer = self._views.consumers.get(uuid, Consumer(uuid, {}, None))
        have = self._ours(consumer.resources)
        shares = [share for share in (self._shares[layout].get(uuid) for layout in self._layouts) if share is not None]
        if not shares:
            if have:
                yield self._unrecorded(consumer, have)
            return
        share = shares[0]
        for name in sorted({name for part in (have, share.held) for amounts in part.values() for name in amounts}):
            if not any(_fits(_only(have, name), _only(one.held, name), _only(one.leaving, name)) for one in shares):
                yield self._differs(consumer, share, name, have)

    def _unrecorded(self, consumer: Consumer, have: Resources) -> Mismatch:
        has_guest = consumer.uuid in self._views.usage.domains
        of = functools.partial(self._mismatch, consumer, None, None,
                               held='the allocated amount: no other instance is scheduled to it')
        detail = f'{self._said(have)} allocated, but the record has no device for it'
        if consumer.type == values.MIGRATION:
            return of(LEFT_OVER_MIGRATION, f'{detail}; it is a migration that has just begun or is over',
                      proposal='look up the migration in the service; if it is over, delete its allocations')
        if has_guest:
            return of(UNRECORDED, f'{detail}; it has a guest here', proposal='see devicetrack-manage audit, which '
                      'names the devices that guests use without a row')
        return of(UNRECORDED, f'{detail}, and it has no guest here', proposal='look up the instance in the '
                  'service: it is on its way, elsewhere or over; if it is over, delete its allocations')

    def _differs(self, consumer: Consumer, share: Share, name: str, have: Resources) -> Mismatch:
        mine, held, leaving = (_only(part, name) for part in (have, share.held, share.leaving))
        recorded = f'the record has {self._said(held) or "none"}'
        if leaving:
            recorded += f', and {self._said(leaving)} being released'
        of = functools.partial(self._mismatch, consumer, share, name)
        proposal = 'see whether it is moving, or being built or deleted; else give it the allocations of its rows'
        if not mine:
            return of(UNALLOCATED, f'nothing is allocated, but {recorded}', held='the recorded devices; the '
                      'scheduler offers them to other instances, whose claims fail', proposal=proposal)
        amount, least, most = _sum(mine), _sum(held), _sum(held) + _sum(leaving)
        kind = WRONG_PROVIDER if least <= amount <= most else WRONG_AMOUNT
        return of(kind, f'{self._said(mine)} allocated, but {recorded}', proposal=proposal,
                  held='the recorded devices; the scheduler counts other devices')

    def _mismatch(self, consumer: Consumer, share: Share | None, name: str | None, kind: str, detail: str, held: str,
                  proposal: str) -> Mismatch:
        return Mismatch(kind, vocabulary.WARNING, consumer.uuid, None, name,
                        share.instance_uuid if share is not None else None,
                        consumer.uuid in self._views.usage.domains, consumer.generation or 0, detail, held, proposal)

    def _came_back(self, instance_uuid: str, migration_uuid: str) -> bool:
        """Whether an instance's rows and guest here have exactly the devices that a migration holds for it."""
        migration = self._views.consumers[migration_uuid]
        shares = [share for share in (self._shares[layout].get(instance_uuid) for layout in self._layouts)
                  if share is not None]
        return (migration.type == values.MIGRATION and self._has_its_devices(instance_uuid)
                and any(self._ours(migration.resources) == merging.plain(share.held) for share in shares))

    def _is_at_rest(self, uuid: str) -> bool:
        """Whether all views place an instance here, all its devices are active, and its guest has exactly those."""
        return self._has_its_devices(uuid) and self._is_placed_here(uuid)

    def _has_its_devices(self, uuid: str) -> bool:
        """Whether all devices of an instance are active, none is moving, and its guest has exactly those."""
        rows = [record for record in self._views.records if record.instance_uuid == uuid]
        named = {(use.kind, use.identifier) for use in self._views.usage.uses if use.domain_uuid == uuid}
        return (bool(rows) and not self._views.usage.unknown
                and all((record.role, record.state, record.migration_uuid) == _AT_REST for record in rows)
                and named == {record.key for record in rows})

    def _is_placed_here(self, uuid: str) -> bool:
        """Whether placement has the consumer on this host, and none of its devices on another."""
        resources = self._views.consumers[uuid].resources if uuid in self._views.consumers else {}
        return bool(self._views.names.keys() & resources.keys()) and not any(
            self._views.classes & amounts.keys() for provider, amounts in resources.items()
            if provider not in self._views.names)

    # -- the wanted allocations ---------------------------------------------------------------------------------------

    def changes(self, verb: str, uuid: str, why: Sequence[Mismatch]) -> tuple[ConsumerChange, ...]:
        """Return what a repair for these mismatches of a consumer changes, the consumer first."""
        instance_uuid = why[0].instance_uuid
        if verb == REVERT:
            assert instance_uuid is not None
            [own] = [notes.given(note) for note in self._views.notes if note.migration_uuid == uuid]
            return self._planned(operations.Revert(instance_uuid, uuid, own, None, create=True))[::-1]
        if verb == REMOVE:
            return self._planned(operations.Confirm(uuid))
        before = self._views.consumers[uuid]
        after = before._replace(resources=self.wanted(before, {one.resource_class for one in why}))
        return ConsumerChange(before, after.typed(values.INSTANCE)),

    def _planned(self, operation: operations.Operation) -> tuple[ConsumerChange, ...]:
        before = {uuid: self._views.consumers.get(uuid, Consumer(uuid, {}, None)) for uuid in operation.consumers}
        operation.begin(before)
        return tuple(ConsumerChange(before[after.uuid], after.typed(kind))
                     for after, kind in zip(operation.plan(before), operation.types, strict=True))

    def wanted(self, consumer: Consumer, classes: Collection[str | None]) -> Resources:
        """Return the allocations of a consumer after those of some classes are repaired."""
        share = self._shares[self._views.report.layout][consumer.uuid]
        wrong = {provider: {name: amount for name, amount in amounts.items() if name in classes}
                 for provider, amounts in self._ours(consumer.resources).items()}
        right = {provider: {name: amount for name, amount in amounts.items() if name in classes}
                 for provider, amounts in share.held.items()}
        return merging.merge(wrong, consumer.resources, right)

    def _ours(self, resources: Resources) -> Resources:
        return merging.plain({
            provider: {name: amount for name, amount in amounts.items() if name in self._views.classes}
            for provider, amounts in resources.items() if provider in self._views.names})

    def _said(self, resources: Resources) -> str:
        return ', '.join(f'{amount} {name} at {self._views.names.get(provider, provider)}'
                         for provider, amounts in sorted(resources.items()) for name, amount in sorted(amounts.items()))


_IN_PART: Final = (UNALLOCATED, WRONG_PROVIDER, WRONG_AMOUNT)
_AT_REST: Final = (vocabulary.CURRENT, vocabulary.ACTIVE, None)


def _of_tree(kind: str, provider: str | None, detail: str, held: str, proposal: str, repair: str | None = None,
             severity: str = vocabulary.WARNING) -> Mismatch:
    return Mismatch(kind, severity, None, provider, None, None, False, 0, detail, held, proposal, repair)


def _says_more(change: tree.ProviderChange) -> bool:
    """Whether placement only reserves more than wanted. That is safe: a service knows more than its rows say.

    A heal also leaves such a tree, with marks of classes that the node no longer counts, and with migration traits.
    """
    before, after = change
    if before is None or after is None or before.inventories.keys() != after.inventories.keys():
        return False
    counted = {tree.mark(tree.COUNTS, name) for name in before.inventories}
    went = before.traits - after.traits
    marks = {trait for trait in went if trait.startswith(tree.COUNTS) and trait not in counted}
    of_migration = {trait for trait in went if marks and traits.is_of_migration(trait)}
    if after.traits != before.traits - marks - of_migration:
        return False
    return all(inventory._replace(reserved=0) == after.inventories[name]._replace(reserved=0)
               and inventory.reserved >= after.inventories[name].reserved
               for name, inventory in before.inventories.items())


def _growth(repair: PlacementRepair) -> int:
    """Return the amount that a repair allocates in addition."""
    return sum(_sum(after.resources) - _sum(before.resources) for before, after in repair.changes)


def _fits(have: Resources, held: Resources, leaving: Resources) -> bool:
    """Whether each provider has allocations for all held devices, and at most for the leaving ones in addition."""
    return merging.contains(have, held) and merging.contains(merging.merge({}, leaving, held), have)


def _only(resources: Resources, name: str) -> Resources:
    return {provider: {name: amounts[name]} for provider, amounts in resources.items() if name in amounts}


def _sum(resources: Resources) -> int:
    return sum(amount for amounts in resources.values() for amount in amounts.values())
