"""Decides what each operation on allocations writes, and recognizes one that has already happened. Pure.

An operation takes the present allocations and returns the wanted ones. :mod:`devicetrack.placement.allocations` reads,
writes and repeats.
"""

from __future__ import annotations

import abc
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
from typing import ClassVar
from typing import TypeAlias

from devicetrack.placement import errors
from devicetrack.placement import merging
from devicetrack.placement import values
from devicetrack.placement.values import Consumer
from devicetrack.placement.values import Resources

# Consumers by UUID, with their allocations.
Views: TypeAlias = Mapping[str, Consumer]


class Operation(abc.ABC):
    """A change of the allocations of some consumers.

    ``name`` is the name of its policy. ``types`` has the types of the consumers, in their order. ``read_first`` names
    the consumers that must be read before any decision; the others count as new until a conflict shows that they are
    not. :meth:`begin` is called once, with the first views.
    """

    name: ClassVar[str]
    types: tuple[str, ...] = (values.INSTANCE,)
    ends_move: ClassVar[bool] = False           # if True, a failure leaves the move pending

    def __init__(self, consumers: Sequence[str], read_first: Sequence[str]) -> None:
        self.consumers, self.read_first = tuple(consumers), tuple(read_first)

    def begin(self, views: Views) -> None:
        """Take the present allocations as the expected ones, where the caller did not say which to expect."""

    @abc.abstractmethod
    def is_done(self, views: Views) -> bool:
        """Whether the purpose has been reached already, by an earlier call whose answer was lost or by anybody else."""

    @abc.abstractmethod
    def is_as_believed(self, views: Views) -> bool:
        """Whether the part that this operation changes is as expected."""

    @abc.abstractmethod
    def plan(self, views: Views) -> list[Consumer]:
        """Return the consumers to write, under the generations of the views.

        :raises UnknownConsumer: a consumer that must hold something holds nothing
        :raises ConsumerExists: a consumer that must be new is not
        """


def is_own_write(written: Consumer, found: Consumer) -> bool:
    """Whether a consumer is exactly as our write made it. A consumer without allocations proves nothing."""
    return found.exists and found == written._replace(
        resources=merging.plain(written.resources), generation=(written.generation or 0) + 1)


class Spawn(Operation):
    """Gives a new instance its allocations."""

    name = 'spawn'

    def __init__(self, instance: str, resources: Resources, project_id: str, user_id: str) -> None:
        super().__init__((instance,), ())
        self._wanted = Consumer(instance, merging.plain(resources), None, project_id, user_id, values.INSTANCE)

    def is_done(self, views: Views) -> bool:
        return is_own_write(self._wanted, views[self._wanted.uuid])

    def is_as_believed(self, views: Views) -> bool:
        return not views[self._wanted.uuid].exists

    def plan(self, views: Views) -> list[Consumer]:
        if views[self._wanted.uuid].exists:
            raise errors.ConsumerExists(self._wanted.uuid)
        return [self._wanted._replace(generation=views[self._wanted.uuid].generation)]


class StartMove(Operation):
    """Gives the instance's allocations to the migration, and the new ones to the instance.

    :param own: the allocations that the instance is expected to have. In a merge, the instance keeps all others
    """

    name = 'move'
    types = (values.INSTANCE, values.MIGRATION)

    def __init__(self, instance: str, migration: str, new: Resources, own: Resources | None) -> None:
        super().__init__((instance, migration), (instance,))
        self._instance, self._migration = instance, migration
        self._new = merging.plain(new)
        self._said = self._own = None if own is None else merging.plain(own)

    def begin(self, views: Views) -> None:
        if self._own is None:
            self._own = views[self._instance].resources

    def is_done(self, views: Views) -> bool:
        # Only a move writes a migration's consumer, and always as a new one: its first generation comes from a move.
        migration, held = views[self._migration], views[self._instance].resources
        if migration.generation != 1:
            return False
        return held == self._new or (       # or others put something there, before or since
            self._said is not None and merging.contains(self._said, migration.resources)
            and merging.contains(held, self._new))

    def is_as_believed(self, views: Views) -> bool:
        return views[self._instance].resources == self._own

    def plan(self, views: Views) -> list[Consumer]:
        assert self._own is not None
        instance, migration = views[self._instance], views[self._migration]
        if migration.exists:
            raise errors.ConsumerExists(self._migration)
        if not instance.exists:
            raise errors.UnknownConsumer(self._instance)
        return [instance._replace(resources=merging.merge(self._own, instance.resources, self._new)),
                instance._replace(uuid=self._migration, generation=migration.generation, type=values.MIGRATION,
                                  resources=merging.common(self._own, instance.resources))]


class Confirm(Operation):
    """Removes the migration's allocations."""

    name = 'confirm'
    types = (values.MIGRATION,)
    ends_move = True

    def __init__(self, migration: str) -> None:
        super().__init__((migration,), (migration,))
        self._migration = migration
        self._believed: Resources = {}

    def begin(self, views: Views) -> None:
        self._believed = views[self._migration].resources

    def is_done(self, views: Views) -> bool:
        return not views[self._migration].exists

    def is_as_believed(self, views: Views) -> bool:
        return views[self._migration].resources == self._believed

    def plan(self, views: Views) -> list[Consumer]:
        return [views[self._migration]._replace(resources={})]


class Delete(Confirm):
    """Removes all allocations of a consumer."""

    name = 'delete'
    types = (values.INSTANCE,)
    ends_move = False


class Revert(Operation):
    """Gives the migration's allocations back to the instance.

    :param own: the allocations that the move gave to the instance, which must still be all that it holds. In a merge,
        the instance keeps all others
    :param old: the least that the instance holds after the revert; this tells a revert that happened from a confirm
    :param create: make the instance's consumer if it holds nothing
    :param noted: without ``own``, the allocations that the move gave by the note of an earlier call. What else the
        instance holds by now came from others, and it keeps that
    """

    name = 'revert'
    types = (values.INSTANCE, values.MIGRATION)
    ends_move = True

    def __init__(self, instance: str, migration: str, own: Resources | None, old: Resources | None,
                 create: bool = False, noted: Resources | None = None) -> None:
        super().__init__((instance, migration), (instance, migration))
        self._instance, self._migration = instance, migration
        given = noted if own is None else own
        self.own = None if given is None else merging.plain(given)
        self._expected = None if own is None else self.own
        self._old, self._create = merging.plain(old or {}), create
        self._believed: Resources = {}

    def begin(self, views: Views) -> None:
        self._believed = views[self._migration].resources
        if self._expected is None:
            self._expected = views[self._instance].resources
        if self.own is None and self._believed:         # else the move is over, and this is not what it gave
            self.own = self._expected

    def is_done(self, views: Views) -> bool:
        held = views[self._instance].resources
        if views[self._migration].exists or not merging.contains(held, self._old):
            return False
        # After a confirm the instance has its new allocations, which may contain the old ones.
        may_be_confirmed = self.own is None or (
            merging.contains(self.own, self._old) and merging.contains(held, self.own))
        return bool(self._old) and (held == self._old or not may_be_confirmed)

    def is_as_believed(self, views: Views) -> bool:
        return (views[self._instance].resources == self._expected
                and views[self._migration].resources == self._believed)

    def plan(self, views: Views) -> list[Consumer]:
        instance, migration = views[self._instance], views[self._migration]
        if not migration.exists:
            raise errors.UnknownConsumer(self._migration)
        if not instance.exists:
            if not self._create:
                raise errors.UnknownConsumer(self._instance)
            instance = migration._replace(uuid=self._instance, resources={}, generation=instance.generation,
                                          type=values.INSTANCE)
        assert self.own is not None
        return [instance._replace(resources=merging.merge(self.own, instance.resources, migration.resources)),
                migration._replace(resources={})]


class Part(Operation):
    """Changes a part of one consumer's allocations; the rest stays as it is found."""

    def __init__(self, consumer: str) -> None:
        super().__init__((consumer,), (consumer,))
        self._consumer = consumer
        self._first: Resources = {}

    def begin(self, views: Views) -> None:
        self._first = views[self._consumer].resources

    @abc.abstractmethod
    def changed(self, resources: Resources) -> Resources:
        """Return the allocations that the consumer should get, given its present ones."""

    def is_done(self, views: Views) -> bool:
        consumer = views[self._consumer]
        return consumer.exists and self.changed(consumer.resources) == consumer.resources

    def plan(self, views: Views) -> list[Consumer]:
        consumer = views[self._consumer]
        if not consumer.exists:
            raise errors.UnknownConsumer(self._consumer)
        return [consumer._replace(resources=self.changed(consumer.resources))]


class Evacuate(Part):
    """Adds the destination's allocations to the instance."""

    name = 'evacuate'

    def __init__(self, instance: str, new: Resources) -> None:
        super().__init__(instance)
        self._new = merging.plain(new)

    def changed(self, resources: Resources) -> Resources:
        return merging.either(resources, self._new)

    def is_as_believed(self, views: Views) -> bool:
        return merging.agree(views[self._consumer].resources, self._first, self._new)


class FinishEvacuation(Part):
    """Removes the instance's allocations at the source's providers."""

    name = 'evacuate'

    def __init__(self, instance: str, providers: Collection[str]) -> None:
        super().__init__(instance)
        self._providers = frozenset(providers)

    def changed(self, resources: Resources) -> Resources:
        return merging.without(resources, self._providers)

    def is_done(self, views: Views) -> bool:
        return not views[self._consumer].exists or super().is_done(views)

    def plan(self, views: Views) -> list[Consumer]:
        writes = super().plan(views)
        if not writes[0].resources:             # nothing is left of what the evacuation gave at the destination
            raise errors.ConsumerConflict(self.name, (self._consumer,))
        return writes

    def is_as_believed(self, views: Views) -> bool:
        return self._part(views[self._consumer].resources) == self._part(self._first)

    def _part(self, resources: Resources) -> Resources:
        return {provider: amounts for provider, amounts in resources.items() if provider in self._providers}


class ChangeOwn(Part):
    """Replaces our part of a consumer's allocations.

    :param generation: the consumer's generation when our part was ``own``; tells our change from one of others
    :param kind: the type of the consumer
    """

    name = 'change'

    def __init__(self, consumer: str, generation: int, own: Resources, wanted: Resources, kind: str) -> None:
        super().__init__(consumer)
        self.types = (kind,)
        self._generation, self._own, self._wanted = generation, own, wanted

    def changed(self, resources: Resources) -> Resources:
        return merging.merge(self._own, resources, self._wanted)

    def is_done(self, views: Views) -> bool:
        consumer = views[self._consumer]
        return super().is_done(views) or (
            consumer.generation == self._generation + 1
            and merging.agree(consumer.resources, self._wanted, self._wanted, self._own))

    def is_as_believed(self, views: Views) -> bool:
        return merging.agree(views[self._consumer].resources, self._own, self._own, self._wanted)
