"""The pools of one host, in the order of names, and the scopes that look over them."""

from __future__ import annotations

from collections.abc import Iterator

from devicetrack.engine.selection import Parent
from devicetrack.engine.selection import Pool
from devicetrack.engine.selection import Scope
from devicetrack.objects.choice import Choice
from devicetrack.objects.choice import Features
from devicetrack.objects.choice import NO_FEATURES


class Pools:
    """Every pool since the start, and by (resource class, provider's UUID or None) the scope of the pools there.

    :param policy: ``pack`` or ``spread``
    """

    def __init__(self, policy: str) -> None:
        self._policy = policy
        self._pools: dict[tuple[str, str, str, str | None, int | None, Features], Pool] = {}
        self._parents: dict[tuple[str, str], Parent] = {}
        self.scopes: dict[tuple[str, str | None], Scope] = {}
        self._chosen: dict[tuple[tuple[Choice, ...], str | None], Scope] = {}

    def __iter__(self) -> Iterator[Pool]:
        return iter(self._pools.values())

    def get(self, kind: str, provider_uuid: str, resource_class: str, parent: str | None,
            numa_node: int | None, features: Features = NO_FEATURES) -> tuple[Pool, bool]:
        """Return a pool, and whether it is new. Scopes see a new pool only after :meth:`index`."""
        key = (kind, provider_uuid, resource_class, parent, numa_node, features)
        pool = self._pools.get(key)
        if pool is not None:
            return pool, False
        shared = Parent(None) if parent is None else self._parents.setdefault((kind, parent), Parent(parent))
        pool = self._pools[key] = Pool(kind, provider_uuid, resource_class, shared, numa_node, features)
        return pool, True

    def index(self) -> None:
        """Sort the pools by name, and let every scope see them."""
        ordered = sorted(self, key=lambda pool: (
            pool.parent_name or '', -1 if pool.numa_node is None else pool.numa_node, pool.provider_uuid,
            pool.resource_class, pool.kind, pool.features))
        self.scopes, self._chosen = {}, {}
        for index, pool in enumerate(ordered):
            pool.index = index
            scopes = []
            for provider_uuid in (None, pool.provider_uuid):
                scope = self.scopes.setdefault((pool.resource_class, provider_uuid), Scope(self._policy))
                scope.pools.append(pool)
                scopes.append(scope)
            pool.scopes = tuple(scopes)
        for scope in self.scopes.values():
            scope.rebuild()

    def scope(self, resource_class: str, provider_uuid: str | None, choices: tuple[Choice, ...] = ()) -> Scope | None:
        """Return the scope of a class or, with choices, of all pools that fit a choice; None if there is no pool.

        The scope of choices is made when somebody first asks for it, from the scopes of their classes.
        """
        if not choices:
            return self.scopes.get((resource_class, provider_uuid))
        scope = self._chosen.get((choices, provider_uuid))
        if scope is None:
            scope = Scope(self._policy)
            found = {pool.index: pool for choice in choices
                     if (counted := self.scopes.get((choice.resource_class, provider_uuid))) is not None
                     for pool in counted.pools if choice.accepts(pool.words)}
            if not found:
                return None
            for index in sorted(found):
                scope.pools.append(found[index])
                found[index].scopes += (scope,)
            scope.rebuild()
            self._chosen[choices, provider_uuid] = scope
        return scope

    def parent(self, kind: str, name: str) -> Parent | None:
        return self._parents.get((kind, name))

    def parents(self) -> list[tuple[str, str]]:
        """Kind and name of every parent."""
        return sorted(self._parents)

    def of_parent(self, parent: Parent) -> list[Pool]:
        return [pool for pool in self if pool.parent is parent]

    def use_up(self, parent: Parent) -> None:
        """Note that a parent made one more device. Until the parent is read again, it counts for every type."""
        for pool in self.of_parent(parent):
            pool.available -= 1

    def siblings_grew(self, pool: Pool) -> None:
        """Note that a parent has one pending device less, and so more room for every type."""
        if pool.creatable:
            for other in self.of_parent(pool.parent):
                if other.scopes:
                    other.grew()
