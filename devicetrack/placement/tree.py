"""What placement should say of a host's devices, what it says, and the difference. No I/O.

A tree has the node as its root, and below it a provider for each parent device. Others report on the same providers:
the compute service its processors on the node, an operator traits of his own. So what is written here is marked by
traits, by which any later process knows it again:

- every trait that starts with ``CUSTOM_DEVICETRACK_`` is ours, and every ``CUSTOM_MIG_…`` of the form that
  :mod:`devicetrack.compatibility.traits` gives them;
- ``…_COUNTS_<CLASS>`` says that the inventory of this class is ours;
- ``…_SETS_<TRAIT>`` says that this trait is ours, whose own name does not tell;
- ``…_PROVIDER`` says that we made the provider, and may take it away.

A class that counts devices of this host now is ours on every provider of its devices, whoever wrote the inventory
before. Whatever is not ours by these rules stays as it is.

What ought to go stays for as long as it is allocated, reserved in full: nothing more is scheduled to it, and nobody
loses an allocation.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
import hashlib
from typing import Final
from typing import NamedTuple

from devicetrack.objects import Provider
from devicetrack.objects import traits as names
from devicetrack.placement.values import Inventory

# Where devices are counted.
FLAT: Final = 'flat'                            # all of them at the node
NESTED: Final = 'nested'                        # each at its own provider
ANNOUNCED: Final = 'announced'                  # at the node; their own providers are there too, reserved in full
LAYOUTS: Final = (FLAT, NESTED, ANNOUNCED)

# By what the option ``[placement] nested`` says, for a node whose devices nobody has moved yet.
LAYOUT_OF: Final = {'off': FLAT, 'manual': ANNOUNCED, 'at_start': NESTED, 'refuse': NESTED}


def wanted_layout(nested: str, healed: bool) -> str:
    """Where devices of a node are to be counted.

    :param nested: what the option ``[placement] nested`` says
    :param healed: whether they are counted at their own providers already, by the host's row
    """
    return NESTED if healed and nested == 'manual' else LAYOUT_OF[nested]


MADE: Final = names.PREFIX + 'PROVIDER'
COUNTS: Final = names.PREFIX + 'COUNTS_'
SETS: Final = names.PREFIX + 'SETS_'


class Node(NamedTuple):
    """One provider.

    ``generation`` is None for one that placement does not have. ``used`` is what is allocated by class, ``aggregated``
    whether it is in an aggregate; both are None where nobody asked, which never means nothing.
    """

    uuid: str
    name: str
    parent_uuid: str | None
    inventories: Mapping[str, Inventory] = {}
    traits: frozenset[str] = frozenset()
    generation: int | None = None
    used: Mapping[str, int] | None = None
    aggregated: bool | None = None


class Tree(NamedTuple):
    """Providers by UUID, of which ``root`` is the node.

    ``known`` are the providers of this host's devices, with those that a flat tree has no use for.
    """

    root: str
    nodes: Mapping[str, Node]
    known: frozenset[str] = frozenset()


class Change(NamedTuple):
    """What becomes of one provider. ``before`` is None for one to be made, ``after`` for one to be taken away."""

    before: Node | None
    after: Node | None

    @property
    def node(self) -> Node:
        node = self.after or self.before
        assert node is not None
        return node


class Left(NamedTuple):
    """An inventory that ought to go and stays, reserved in full.

    ``used`` is how much of it is allocated, None while nobody knows whether the host has the devices.
    """

    provider_uuid: str
    provider: str
    resource_class: str
    used: int | None

    @property
    def why(self) -> str:
        return 'reserved in full: ' + (
            'this part of the host could not be read' if self.used is None
            else f'{self.used} allocated, and the host counts none here')

    def __str__(self) -> str:
        return f'{self.resource_class} at {self.provider} is {self.why}'


class Difference(NamedTuple):
    """What has to change, in the order in which to do it, and what cannot go yet."""

    changes: tuple[Change, ...]
    left: tuple[Left, ...]


# -- what it should be ------------------------------------------------------------------------------------------------


def desired(providers: Iterable[Provider], layout: str = NESTED) -> Tree:
    """The tree that reports these providers, one of which is the node."""
    nodes = {provider.uuid: _node(provider) for provider in providers}
    [root] = [node for node in nodes.values() if node.parent_uuid is None]
    known = frozenset(nodes)
    if layout == NESTED:
        return Tree(root.uuid, nodes, known)
    everything: dict[str, Inventory] = {}
    for node in nodes.values():
        for name, inventory in node.inventories.items():
            other = everything.get(name, Inventory(0))
            everything[name] = _inventory(other.total + inventory.total, other.reserved + inventory.reserved)
    # Where a device is counted, there it is asked what running guest may have it.
    at_node = root._replace(inventories=everything, traits=root.traits.union(
        trait for node in nodes.values() for trait in node.traits if names.is_of_migration(trait)))
    if layout == FLAT:
        return Tree(root.uuid, {root.uuid: at_node}, known)
    announced = {node.uuid: node._replace(inventories={
        name: _in_full(inventory) for name, inventory in node.inventories.items()}) for node in nodes.values()}
    return Tree(root.uuid, {**announced, root.uuid: at_node}, known)


def _node(provider: Provider) -> Node:
    return Node(provider.uuid, provider.name, provider.parent_uuid, {
        name: _inventory(total, provider.reserved.get(name, 0))
        for name, total in provider.totals.items() if total > 0}, frozenset(provider.traits))


def _inventory(total: int, reserved: int) -> Inventory:
    """One guest may have all of them; nobody has a part of one, or one that another has."""
    return Inventory(total, min(reserved, total), max_unit=total)


def _in_full(inventory: Inventory) -> Inventory:
    return inventory._replace(reserved=inventory.total)


def counted(providers: Iterable[Provider]) -> frozenset[str]:
    """The classes that count devices of these providers."""
    return frozenset(name for provider in providers for name in provider.totals)


def possible(actual: Tree, providers: Collection[Provider], layout: str) -> str:
    """The layout that can be reported now.

    A report moves no allocation. While devices are allocated at the node, their own providers are announced only, or
    what a guest has would count as free there; while they are allocated at their own providers, the tree stays nested.
    """
    nested = desired(providers)
    root = nested.nodes[nested.root]
    below = [node for node in nested.nodes.values() if node is not root]
    moved = {name for node in below for name in node.inventories} - root.inventories.keys()
    if any(_used(actual, root.uuid, name) for name in moved):
        return ANNOUNCED if layout == NESTED else layout
    return NESTED if any(_used(actual, node.uuid, name) for node in below for name in node.inventories) else layout


def _used(tree: Tree, uuid: str, name: str) -> int:
    node = tree.nodes.get(uuid)
    return 0 if node is None or node.used is None else node.used.get(name, 0)


# -- whose is what ----------------------------------------------------------------------------------------------------


def mark(prefix: str, name: str) -> str:
    """The trait that says of something that it is ours. A name that is too long to stand in it is known by a digest."""
    if len(prefix) + len(name) <= names.LONGEST:
        return prefix + name
    return prefix + hashlib.sha256(name.encode()).hexdigest().upper()


def is_ours(node: Node, wanted: Tree) -> bool:
    """Whether a provider counts devices of this host, or did so, or was made by us."""
    return node.uuid in wanted.known or is_marked(node.traits)


def is_marked(traits: Iterable[str]) -> bool:
    """Whether the traits of a provider say that it counts devices of this host, or did so, or was made by us."""
    return any(trait == MADE or trait.startswith(COUNTS) for trait in traits)


def to_ask(node: Node, wanted: Tree, classes: Collection[str]) -> bool:
    """Whether it matters what of a provider is allocated: something of ours is to go, or all of it to be reserved."""
    want = wanted.nodes.get(node.uuid)
    closes = want is not None and any(_room(node, name) > 0 >= _room(want, name) for name in want.inventories)
    return closes or bool(to_go(node, wanted, classes))


def to_go(node: Node, wanted: Tree, classes: Collection[str]) -> frozenset[str]:
    """The classes of ours that a provider has and is not to count any more.

    :param classes: those that count devices of this host now
    """
    if not is_ours(node, wanted):
        return frozenset()
    stay = wanted.nodes[node.uuid].inventories if node.uuid in wanted.nodes else {}
    return frozenset(name for name in node.inventories
                     if name not in stay and (name in classes or mark(COUNTS, name) in node.traits))


# -- the difference ---------------------------------------------------------------------------------------------------


def diff(actual: Tree, wanted: Tree, classes: Collection[str], complete: bool = True) -> Difference:
    """What has to change for placement to say what it should.

    :param classes: those that count devices of this host now
    :param complete: False when a part of the host could not be read: what is missing then stays, reserved in full
    """
    changes: list[Change] = []
    left: list[Left] = []
    parents = {node.parent_uuid for node in actual.nodes.values()}
    for uuid, want in wanted.nodes.items():
        if uuid not in actual.nodes:
            bare = want._replace(inventories={}, traits=frozenset(), generation=0)
            changes.append(Change(None, _merged(bare, want, frozenset(), frozenset(), complete)))
    for uuid, before in actual.nodes.items():
        if not is_ours(before, wanted):
            continue
        going = to_go(before, wanted, classes)
        held = {name: before.used.get(name, 0) if complete and before.used is not None else None
                for name in sorted(going)}
        stays = {name: used for name, used in held.items() if used != 0}
        left += [Left(uuid, before.name, name, used) for name, used in stays.items()]
        after = _merged(before, wanted.nodes.get(uuid), going, stays.keys(), complete)
        if uuid not in wanted.nodes and complete and uuid not in parents and _is_bare(after):
            changes.append(Change(before, None))
        elif after != before:
            changes.append(Change(before, after))
    return Difference(tuple(sorted(changes, key=lambda change: (_turn(change, wanted), change.node.name))), tuple(left))


def _merged(before: Node, want: Node | None, going: Collection[str], stays: Collection[str], complete: bool) -> Node:
    """A provider as it becomes: what is wanted, what cannot go yet, and what is not ours."""
    inventories = {name: _in_full(inventory) if name in stays else inventory
                   for name, inventory in before.inventories.items() if name in stays or name not in going}
    own = frozenset(trait for trait in before.traits
                    if names.is_ours(trait) or mark(SETS, trait) in before.traits)
    traits = set(before.traits if not complete else before.traits - own)
    counts = set(stays)
    if want is not None:
        inventories |= want.inventories
        counts |= want.inventories.keys()
        traits |= {mark(SETS, trait) for trait in want.traits
                   if not names.is_ours(trait) and trait not in before.traits - own}
        traits |= want.traits
    traits |= {mark(COUNTS, name) for name in counts}
    # One that nobody has written to since it was made is ours too: we were interrupted before we could say so.
    if before.parent_uuid is not None and (MADE in before.traits or before.generation == 0):
        traits.add(MADE)
    return before._replace(inventories=inventories, traits=frozenset(traits))


def _is_bare(node: Node) -> bool:
    """Whether we made a provider on which nobody has anything any more."""
    return not node.inventories and node.traits == {MADE} and node.aggregated is False


def _turn(change: Change, wanted: Tree) -> int:
    """Room goes before it comes: devices that move from one provider to another are never counted at both."""
    before, after = change
    if before is None:
        return 0 if change.node.uuid == wanted.root else 2
    if after is None:
        return 1
    return 2 if any(_room(after, name) > _room(before, name) for name in after.inventories) else 1


def _room(node: Node, name: str) -> int:
    inventory = node.inventories.get(name)
    return 0 if inventory is None else inventory.total - inventory.reserved


# -- for people -------------------------------------------------------------------------------------------------------

PROVIDER: Final = 'provider'
INVENTORY: Final = 'inventory'
TRAIT: Final = 'trait'
LEFT: Final = 'left'


class Fact(NamedTuple):
    """One thing of a provider that changes or, with ``what`` LEFT, that cannot.

    ``name`` is that of the provider, class or trait; ``before`` is None for what is new, ``after`` for what goes.
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
    """Everything in a difference, change by change."""
    found = []
    for change in difference.changes:
        node = change.node
        nothing = node._replace(inventories={}, traits=frozenset())
        old, new = change.before or nothing, change.after or nothing
        if change.before is None or change.after is None:
            found.append(Fact(node.uuid, node.name, PROVIDER, node.name, _there(change.before), _there(change.after)))
        for name in sorted({*old.inventories, *new.inventories}):
            before, after = old.inventories.get(name), new.inventories.get(name)
            if before != after:
                found.append(Fact(node.uuid, node.name, INVENTORY, name, _described(before), _described(after)))
        found += [Fact(node.uuid, node.name, TRAIT, name, '' if name in old.traits else None,
                       '' if name in new.traits else None) for name in sorted(old.traits ^ new.traits)]
    return found + [Fact(left.provider_uuid, left.provider, LEFT, left.resource_class, None, left.why)
                    for left in difference.left]


def _there(node: Node | None) -> str | None:
    return None if node is None else ''


def _described(inventory: Inventory | None) -> str | None:
    """What differs from an inventory of ours is said too: an operator may have allowed overcommit."""
    if inventory is None:
        return None
    usual = _inventory(inventory.total, inventory.reserved)
    others = [f', {field} {value:g}' for field, value in inventory._asdict().items() if value != getattr(usual, field)]
    return f'{inventory.total}, {inventory.reserved} reserved{"".join(others)}'


def render(root: Node, difference: Difference) -> str:
    """The difference as a tree: each provider with what changes there, or '' when nothing does."""
    by_provider: dict[str, list[Fact]] = {root.uuid: []}
    for fact in facts(difference):
        by_provider.setdefault(fact.provider_uuid, []).append(fact)
    lines = []
    for uuid, found in by_provider.items():
        signs = [str(fact)[0] for fact in found if fact.what == PROVIDER]
        name = ' '.join([*signs, found[0].provider if found else root.name])
        indent = '' if uuid == root.uuid else '  '
        lines.append(indent + name)
        lines += [f'{indent}  {fact}' for fact in found if fact.what != PROVIDER]
    return '\n'.join(lines) if len(lines) > 1 or by_provider[root.uuid] else ''
