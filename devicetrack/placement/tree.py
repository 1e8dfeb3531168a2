"""Compares the tree of providers that a host should have with the one that placement has. No I/O.

A tree has the node as its root, and below it a provider for each parent device. Others report on the same providers:
the compute service reports its processors on the node, and an operator may add traits. So devicetrack marks everything
that it writes with traits, by which any later process recognizes it:

- every trait that starts with ``CUSTOM_DEVICETRACK_`` is ours, and every ``CUSTOM_MIG_…`` of the form that
  :mod:`devicetrack.compatibility.traits` gives them;
- ``…_COUNTS_<CLASS>`` says that the inventory of this class is ours;
- ``…_SETS_<TRAIT>`` says that this trait is ours, if its own name does not say so;
- ``…_PROVIDER`` says that we made the provider, and may delete it.

A class that counts devices of this host now is ours on every provider of its devices, whoever wrote the inventory
before. devicetrack leaves everything else as it is. ``classes`` are the classes that count devices of this host now.

An inventory that should be removed stays as long as it is allocated, and everything that is not allocated is reserved:
nothing more is scheduled to it, and nobody loses an allocation. More is never reserved than is not allocated. Placement
before 14.0 compares each write of a consumer's allocations with the capacity, also where nothing changes, and would
refuse every later one: the instance could neither move nor be resized.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
import hashlib
from types import MappingProxyType
from typing import Final
from typing import NamedTuple

from devicetrack import log
from devicetrack.objects import Provider
from devicetrack.objects import traits as names
from devicetrack.placement.values import ClassInventory

# Where devices are counted.
FLAT: Final = 'flat'                            # all of them at the node
NESTED: Final = 'nested'                        # each at its own provider
ANNOUNCED: Final = 'announced'                  # at the node; their own providers are there too, reserved in full

# The layout for each value of ``[placement] nested``, for a node whose devices nobody has moved yet.
LAYOUT_OF: Final = {'off': FLAT, 'manual': ANNOUNCED, 'at_start': NESTED, 'refuse': NESTED}


def wanted_layout(nested: str, healed: bool) -> str:
    """Return the layout in which devices of a node should be counted.

    :param nested: the value of the option ``[placement] nested``
    :param healed: whether the host's row says that they are already counted at their own providers
    """
    return NESTED if healed and nested == 'manual' else LAYOUT_OF[nested]


MADE: Final = names.PREFIX + 'PROVIDER'
COUNTS: Final = names.PREFIX + 'COUNTS_'
SETS: Final = names.PREFIX + 'SETS_'


class ProviderState(NamedTuple):
    """One provider as placement has it, or should have it.

    ``generation`` is None for a provider that placement does not have. ``used`` has the allocated amounts by class, and
    ``aggregated`` says whether the provider is in an aggregate; both are None if they were not read.
    """

    uuid: str
    name: str
    parent_uuid: str | None
    inventories: Mapping[str, ClassInventory] = {}
    traits: frozenset[str] = frozenset()
    generation: int | None = None
    used: Mapping[str, int] | None = None
    aggregated: bool | None = None


class ProviderTree(NamedTuple):
    """Providers by UUID; ``root`` is the node.

    ``known`` are all providers of this host's devices, including those that a flat tree does not use.
    """

    root: str
    providers: Mapping[str, ProviderState]
    known: frozenset[str] = frozenset()


class ProviderChange(NamedTuple):
    """A change of one provider. ``before`` is None for a provider to make, ``after`` for one to delete."""

    before: ProviderState | None
    after: ProviderState | None

    @property
    def provider(self) -> ProviderState:
        provider = self.after or self.before
        assert provider is not None
        return provider


class Left(NamedTuple):
    """An inventory that should be removed but stays, with all reserved that is not allocated.

    ``used`` is its allocated amount, or None while it is unknown whether the host has the devices.
    """

    provider_uuid: str
    provider: str
    resource_class: str
    used: int | None

    @property
    def why(self) -> str:
        return 'kept without room: ' + (
            'this part of the host could not be read' if self.used is None
            else f'{self.used} allocated, and the host counts none here')

    def __str__(self) -> str:
        return f'{self.resource_class} at {self.provider} is {self.why}'


class Difference(NamedTuple):
    """The changes, in the order in which to make them, and the inventories that cannot be removed yet."""

    changes: tuple[ProviderChange, ...]
    left: tuple[Left, ...]


# -- the wanted tree --------------------------------------------------------------------------------------------------

_NOTHING: Final[Mapping[str, int]] = MappingProxyType({})


def desired(providers: Iterable[Provider], layout: str = NESTED, held: Mapping[str, int] = _NOTHING,
            surplus: Mapping[str, int] = _NOTHING) -> ProviderTree:
    """Make the tree that reports these providers, one of which is the node.

    :param held: from :func:`held_below`: amounts by class that the node reserves in addition
    :param surplus: from :func:`surplus_at_node`: amounts by class that each provider below a nested node reserves in
        addition
    """
    states = {provider.uuid: _state(provider) for provider in providers}
    [root] = [state for state in states.values() if state.parent_uuid is None]
    known = frozenset(states)
    if layout == NESTED:
        below = {uuid: _reserving(state, surplus) for uuid, state in states.items()}
        return ProviderTree(root.uuid, {**below, root.uuid: _reserving(root, held)}, known)
    everything: dict[str, ClassInventory] = {}
    for state in states.values():
        for name, inventory in state.inventories.items():
            other = everything.get(name, ClassInventory(0))
            everything[name] = _inventory(other.total + inventory.total, other.reserved + inventory.reserved)
    # The scheduler looks for migration traits at the provider that counts the device.
    at_node = _reserving(root._replace(inventories=everything), held)._replace(traits=root.traits.union(
        trait for state in states.values() for trait in state.traits if names.is_of_migration(trait)))
    if layout == FLAT:
        return ProviderTree(root.uuid, {root.uuid: at_node}, known)
    announced = {state.uuid: state._replace(inventories={
        name: _in_full(inventory) for name, inventory in state.inventories.items()}) for state in states.values()}
    return ProviderTree(root.uuid, {**announced, root.uuid: at_node}, known)


def _state(provider: Provider) -> ProviderState:
    return ProviderState(provider.uuid, provider.name, provider.parent_uuid, {
        name: _inventory(total, provider.reserved.get(name, 0))
        for name, total in provider.totals.items() if total > 0}, frozenset(provider.traits))


def _inventory(total: int, reserved: int) -> ClassInventory:
    """Make an inventory in which one guest may have all devices, and no device is divided or shared."""
    return ClassInventory(total, min(reserved, total), max_unit=total)


def _reserving(state: ProviderState, amounts: Mapping[str, int]) -> ProviderState:
    return state._replace(inventories={
        name: _inventory(inventory.total, inventory.reserved + amounts.get(name, 0))
        for name, inventory in state.inventories.items()})


def _in_full(inventory: ClassInventory) -> ClassInventory:
    return inventory._replace(reserved=inventory.total)


def counted(providers: Iterable[Provider]) -> frozenset[str]:
    """Return the classes that count devices of these providers."""
    return frozenset(name for provider in providers for name in provider.totals)


def counted_below(actual: ProviderTree, nested: ProviderTree, classes: Collection[str]) -> frozenset[str]:
    """Return the classes that count devices at providers below the node, by the host or by placement.

    :param nested: the nested tree of the host's providers
    """
    return frozenset(name for state in (*_below(nested, nested), *_below(actual, nested)) for name in state.inventories
                     if name in classes or mark(COUNTS, name) in state.traits)


def possible(actual: ProviderTree, providers: Collection[Provider], layout: str, classes: Collection[str]) -> str:
    """Return the layout that can be reported now.

    A report moves no allocation. While devices are allocated at the node, their own providers are only announced,
    because otherwise they would count a guest's devices as free. While devices are allocated at their own providers
    alone, the tree stays nested, also if the host no longer has these providers. It also stays nested if the node
    counts devices of a class itself, and fewer now than are allocated there: no heal could move these.
    """
    nested = desired(providers)
    own = nested.providers[nested.root].inventories     # what the node counts although the tree is nested
    classes_below = counted_below(actual, nested, classes)
    if any(_used(actual, nested.root, name) > (own[name].total if name in own else 0)
           and not (layout == NESTED and name in own and _is_nested(actual, nested, name)) for name in classes_below):
        return ANNOUNCED if layout == NESTED else layout
    if any(_used(actual, state.uuid, name) for state in _below(actual, nested) for name in classes_below):
        return NESTED
    return layout


def held_below(actual: ProviderTree, providers: Collection[Provider], layout: str) -> Mapping[str, int]:
    """Return the amounts by class that are allocated below the node, but whose devices the node counts.

    The node counts the devices of all providers unless the tree is nested. It may also count those of a provider that
    the host no longer has, if it counts devices of the class itself: a NUMA node's, when the option was set back.
    """
    nested = desired(providers)
    own = nested.providers[nested.root].inventories
    held: dict[str, int] = {}
    for state in _below(actual, nested):
        there = nested.providers[state.uuid].inventories if state.uuid in nested.providers else {}
        for name, used in (state.used or {}).items():
            node_counts = layout != NESTED if name in there else name in own
            if node_counts:
                held[name] = held.get(name, 0) + used
    return held


def surplus_at_node(actual: ProviderTree, providers: Collection[Provider], layout: str) -> Mapping[str, int]:
    """Return the amounts by class that are allocated at a nested node beyond the devices that it counts itself.

    They may be for devices that the host no longer has, or that are counted below the node now.
    """
    nested = desired(providers)
    own = nested.providers[nested.root].inventories if layout == NESTED else {}
    return {name: _used(actual, nested.root, name) - inventory.total for name, inventory in own.items()
            if _used(actual, nested.root, name) > inventory.total}


def _is_nested(actual: ProviderTree, nested: ProviderTree, name: str) -> bool:
    """Whether placement counts a class, which the node counts too, at its own providers now."""
    root = actual.providers.get(nested.root)
    at_node = root.inventories.get(name) if root is not None else None
    own = nested.providers[nested.root].inventories[name]
    return (at_node is not None and at_node.total <= own.total
            or any(_room(state, name) > (state.used or {}).get(name, 0) for state in _below(actual, nested)))


def _below(tree: ProviderTree, nested: ProviderTree) -> list[ProviderState]:
    """Return a tree's providers below the node that count devices of this host, or once did."""
    return [state for uuid, state in tree.providers.items() if uuid != nested.root and is_ours(state, nested)]


def _used(tree: ProviderTree, uuid: str, name: str) -> int:
    state = tree.providers.get(uuid)
    return 0 if state is None or state.used is None else state.used.get(name, 0)


# -- ours and others' -------------------------------------------------------------------------------------------------


def mark(prefix: str, name: str) -> str:
    """Return the trait that marks the class or trait of this name as ours. A name that is too long becomes a digest."""
    if len(prefix) + len(name) <= names.LONGEST:
        return prefix + name
    return prefix + hashlib.sha256(name.encode()).hexdigest().upper()


def is_ours(state: ProviderState, wanted: ProviderTree) -> bool:
    """Whether a provider counts devices of this host, once did, or was made by us."""
    return state.uuid in wanted.known or is_marked(state.traits)


def is_marked(traits: Iterable[str]) -> bool:
    """Whether a provider's traits say that it counts devices of this host, once did, or was made by us."""
    return any(trait == MADE or trait.startswith(COUNTS) for trait in traits)


def to_ask(actual: ProviderTree, wanted: ProviderTree, nested: ProviderTree, classes: Collection[str]) -> list[str]:
    """Return the providers whose usages matter.

    These are the providers from which something of ours has to be removed, or reserved in full, and with them the
    node. If the node counts anything else than wanted of a class that is counted below it, these are all of ours:
    allocations anywhere may keep the tree in its layout. So they are if a provider below gets room of a class that the
    node counts too: allocations at the node may keep it reserved.
    """
    ours = {uuid: state for uuid, state in actual.providers.items() if is_ours(state, wanted)}
    root, want = ours.get(wanted.root), wanted.providers[wanted.root]
    if root is not None and (any(root.inventories.get(name) != want.inventories.get(name)
                                 for name in counted_below(actual, nested, classes))
                             or any(_opens(actual.providers.get(uuid), state, nested.providers[nested.root].inventories)
                                    for uuid, state in wanted.providers.items() if uuid != wanted.root)):
        return list(ours)
    asked = {uuid for uuid, state in ours.items()
             if to_go(state, wanted, classes) or _closes(state, wanted.providers.get(uuid))}
    return [uuid for uuid in ours if asked and uuid in asked | {wanted.root}]


def _opens(state: ProviderState | None, want: ProviderState, classes: Collection[str]) -> bool:
    return any(_room(want, name) > (0 if state is None else _room(state, name)) for name in classes)


def _closes(state: ProviderState, want: ProviderState | None) -> bool:
    return want is not None and any(inventory.reserved and _room(state, name) > _room(want, name)
                                    for name, inventory in want.inventories.items())


def to_go(state: ProviderState, wanted: ProviderTree, classes: Collection[str]) -> frozenset[str]:
    """Return the classes of ours that a provider has but should no longer count."""
    if not is_ours(state, wanted):
        return frozenset()
    stay = wanted.providers[state.uuid].inventories if state.uuid in wanted.providers else {}
    return frozenset(name for name in state.inventories
                     if name not in stay and (name in classes or mark(COUNTS, name) in state.traits))


# -- the difference ---------------------------------------------------------------------------------------------------


def diff(actual: ProviderTree, wanted: ProviderTree, classes: Collection[str], complete: bool = True) -> Difference:
    """Return the difference between placement's tree and the wanted one.

    :param complete: False when a part of the host could not be read: missing devices then stay, reserved in full
    """
    changes: list[ProviderChange] = []
    left: list[Left] = []
    parents = {state.parent_uuid for state in actual.providers.values()}
    for uuid, want in wanted.providers.items():
        if uuid not in actual.providers:
            bare = want._replace(inventories={}, traits=frozenset(), generation=0)
            changes.append(ProviderChange(None, _merged(bare, want, frozenset(), frozenset(), complete)))
    for uuid, before in actual.providers.items():
        if not is_ours(before, wanted):
            continue
        going = to_go(before, wanted, classes)
        held = {name: before.used.get(name, 0) if complete and before.used is not None else None
                for name in sorted(going)}
        stays = {name: used for name, used in held.items() if used != 0}
        left += [Left(uuid, before.name, name, used) for name, used in stays.items()]
        after = _merged(before, wanted.providers.get(uuid), going, stays.keys(), complete)
        if uuid not in wanted.providers and complete and uuid not in parents and _is_bare(after):
            changes.append(ProviderChange(before, None))
        elif after != before:
            changes.append(ProviderChange(before, after))
    changes.sort(key=lambda change: (_turn(change, wanted), change.provider.name))
    return Difference(tuple(changes), tuple(left))


def _merged(before: ProviderState, want: ProviderState | None, going: Collection[str], stays: Collection[str],
            complete: bool) -> ProviderState:
    """Return the provider after the change: everything wanted, all that cannot be removed yet, and all of others."""
    inventories = {name: _but_allocated(_in_full(inventory), before, name) if name in stays else inventory
                   for name, inventory in before.inventories.items() if name in stays or name not in going}
    own = frozenset(trait for trait in before.traits
                    if names.is_ours(trait) or mark(SETS, trait) in before.traits)
    traits = set(before.traits if not complete else before.traits - own)
    counts = set(stays)
    if want is not None:
        inventories |= {name: _but_allocated(inventory, before, name) for name, inventory in want.inventories.items()}
        counts |= want.inventories.keys()
        traits |= {mark(SETS, trait) for trait in want.traits
                   if not names.is_ours(trait) and trait not in before.traits - own}
        traits |= want.traits
    traits |= {mark(COUNTS, name) for name in counts}
    # A provider that nobody has written to since it was made is ours too: we were interrupted before marking it.
    if before.parent_uuid is not None and (MADE in before.traits or before.generation == 0):
        traits.add(MADE)
    return before._replace(inventories=inventories, traits=frozenset(traits))


def _but_allocated(inventory: ClassInventory, state: ProviderState, name: str) -> ClassInventory:
    """Return the inventory with only that reserved which is not allocated, as far as the usage was read."""
    unused = inventory.total - (state.used or {}).get(name, 0)
    return inventory if inventory.reserved <= unused else inventory._replace(reserved=max(0, unused))


def _is_bare(state: ProviderState) -> bool:
    """Whether we made a provider and nobody has anything on it any more."""
    return not state.inventories and state.traits == {MADE} and state.aggregated is False


def _turn(change: ProviderChange, wanted: ProviderTree) -> int:
    """Return the turn of a change. Room is removed before it is added, so that moving devices never count twice."""
    before, after = change
    if before is None:
        return 0 if change.provider.uuid == wanted.root else 2
    if after is None:
        return 1
    return 2 if any(_room(after, name) > _room(before, name) for name in after.inventories) else 1


def closed(change: ProviderChange) -> frozenset[str]:
    """Return the classes of which a change removes room."""
    before, after = change
    return frozenset() if before is None else frozenset(
        name for name in before.inventories if after is None or _room(after, name) < _room(before, name))


def without_room(change: ProviderChange, classes: Collection[str]) -> ProviderChange:
    """Return the change without the room of these classes that it adds: that is reserved."""
    before, after = change
    if after is None:
        return change
    return ProviderChange(before, after._replace(inventories={
        name: inventory if name not in classes else inventory._replace(reserved=max(
            inventory.reserved, inventory.total - (0 if before is None else _room(before, name))))
        for name, inventory in after.inventories.items()}))


def _room(state: ProviderState, name: str) -> int:
    inventory = state.inventories.get(name)
    return 0 if inventory is None else inventory.total - inventory.reserved


# -- for people -------------------------------------------------------------------------------------------------------

PROVIDER: Final = 'provider'
INVENTORY: Final = 'inventory'
TRAIT: Final = 'trait'
LEFT: Final = 'left'


class Fact(NamedTuple):
    """One provider, inventory or trait that changes or, with ``what`` LEFT, an inventory that cannot be removed.

    ``name`` is that of the provider, class or trait. ``before`` is None for a new one, ``after`` for a removed one.
    """

    provider_uuid: str
    provider: str
    what: str
    name: str
    before: str | None
    after: str | None

    def __str__(self) -> str:
        sign = '!' if self.what == LEFT else '+' if self.before is None else '-' if self.after is None else '~'
        values = ' -> '.join(value for value in (self.before, self.after) if value)
        return f'{sign} {self.name}: {values}' if values else f'{sign} {self.name}'


def facts(difference: Difference) -> list[Fact]:
    """Return everything in a difference, change by change."""
    found = []
    for change in difference.changes:
        state = change.provider
        nothing = state._replace(inventories={}, traits=frozenset())
        old, new = change.before or nothing, change.after or nothing
        if change.before is None or change.after is None:
            there = [None if one is None else '' for one in change]
            found.append(Fact(state.uuid, state.name, PROVIDER, state.name, *there))
        for name in sorted({*old.inventories, *new.inventories}):
            before, after = old.inventories.get(name), new.inventories.get(name)
            if before != after:
                found.append(Fact(state.uuid, state.name, INVENTORY, name, _described(before), _described(after)))
        found += [Fact(state.uuid, state.name, TRAIT, name, '' if name in old.traits else None,
                       '' if name in new.traits else None) for name in sorted(old.traits ^ new.traits)]
    return found + [Fact(left.provider_uuid, left.provider, LEFT, left.resource_class, None, left.why)
                    for left in difference.left]


def _described(inventory: ClassInventory | None) -> str | None:
    """Describe an inventory, with the fields in which it differs from ours: an operator may have set overcommit."""
    if inventory is None:
        return None
    usual = _inventory(inventory.total, inventory.reserved)
    others = [f', {field} {value:g}' for field, value in inventory._asdict().items() if value != getattr(usual, field)]
    return f'{inventory.total}, {inventory.reserved} reserved{"".join(others)}'


def render(root: ProviderState, difference: Difference) -> str:
    """Return the difference as a tree: each provider with its changes, or '' if there are none."""
    by_provider: dict[str, list[Fact]] = {root.uuid: []}
    for fact in facts(difference):
        by_provider.setdefault(fact.provider_uuid, []).append(fact)
    lines = []
    for uuid, found in by_provider.items():
        signs = [str(fact)[0] for fact in found if fact.what == PROVIDER]
        name = ' '.join([*signs, found[0].provider if found else root.name])
        indent = '' if uuid == root.uuid else '  '
        # Others choose the names of providers and traits.
        lines.append(indent + log.printable(name))
        lines += [f'{indent}  {log.printable(str(fact))}' for fact in found if fact.what != PROVIDER]
    return '\n'.join(lines) if len(lines) > 1 or by_provider[root.uuid] else ''
