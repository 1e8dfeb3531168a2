"""Different operations on one instance, all at once: the end is as if they had come one after the other."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import NamedTuple
import uuid

from devicetrack.placement import errors
from devicetrack.placement import values
from devicetrack.placement.allocations import AllocationClient
from devicetrack.placement.allocations import Policies
from devicetrack.placement.allocations import Policy
from devicetrack.placement.values import Outcome
from devicetrack.testing import database_servers
from devicetrack.testing import placement as placements
from devicetrack.tests import base
from devicetrack.tests.functional.placement import worlds

_ROUNDS = 5

# By consumer, the name of what it holds: 'old' and the like.
State = dict[str, str]


class Step(NamedTuple):
    """One operation as it is meant: what it needs to succeed, and what it makes of that."""

    call: Callable[[AllocationClient], object]
    effect: Callable[[State], State | None]     # None: it cannot succeed here


def _move(migration: str, new: str) -> Callable[[State], State | None]:
    return lambda state: None if 'instance' not in state or migration in state else (
        state | {'instance': new, migration: state['instance']})


def _revert(migration: str) -> Callable[[State], State | None]:
    def effect(state: State) -> State | None:
        if migration not in state or 'instance' not in state:
            return None
        return {**{name: held for name, held in state.items() if name != migration}, 'instance': state[migration]}

    return effect


def _gone(consumer: str) -> Callable[[State], State | None]:
    return lambda state: {name: held for name, held in state.items() if name != consumer}


def _orders(programs: Sequence[Sequence[Step]]) -> Iterator[list[Step]]:
    """Every order of the steps in which those of one program stay in theirs."""
    if not any(programs):
        yield []
    for index, program in enumerate(programs):
        if program:
            rest = [*programs[:index], program[1:], *programs[index + 1:]]
            for order in _orders(rest):
                yield [program[0], *order]


class TestTogether(base.TestCase):

    scenarios = [(f'{kind}, {policy.value}', {'database': database, 'policy': policy})
                 for kind, database in (('sqlite', None), ('postgresql', database_servers.PostgreSQLServer))
                 for policy in (Policy.FAIL, Policy.RETRY)]
    policy: Policy

    def setUp(self) -> None:
        super().setUp()
        server = placements.PlacementServer.shared(self.database.shared() if self.database else None)
        self.placement = self.useFixture(placements.Placement(server))
        providers = {name: self.placement.provider(VCPU=1000, VGPU=1000)
                     for name in ('old', 'resized', 'migrated')}
        self.needs: dict[str, values.Resources] = {
            name: {provider: {worlds.CPU: 2, worlds.GPU: 1}} for name, provider in providers.items()}
        self.clients = [
            AllocationClient(self.placement.open(server.url), Policies(*[self.policy] * len(Policies._fields)))
            for _program in range(4)]

    def test_a_resize_a_live_migration_a_delete_and_a_forced_one(self):
        for _round in range(_ROUNDS):
            self.run_together()

    def run_together(self) -> None:
        consumers = {name: str(uuid.uuid4()) for name in ('instance', 'resize', 'migration')}
        instance, resize, migration = consumers.values()
        self.clients[0].spawn(instance, self.needs['old'], worlds.PROJECT, worlds.USER)
        programs = [
            [Step(lambda client: client.move(instance, resize, self.needs['resized']), _move('resize', 'resized')),
             Step(lambda client: client.confirm(instance, resize), _gone('resize'))],
            [Step(lambda client: client.move(instance, migration, self.needs['migrated']),
                  _move('migration', 'migrated')),
             Step(lambda client: client.revert(instance, migration), _revert('migration'))],
            [Step(lambda client: client.delete(instance), _gone('instance'))],
            [Step(lambda client: client.delete(instance, force=True), _gone('instance'))],
        ]
        happened = self.together(*(
            lambda client=client, program=program: self.run_program(client, program)
            for client, program in zip(self.clients, programs, strict=True)))
        for answer in happened:
            if isinstance(answer, BaseException):
                raise answer
        found = self.found(consumers)
        # Placement deletes the rows that it has read in a transaction before: what another one has written in between
        # stays. So a forced delete may miss, but only where somebody else has written.
        missed = [*happened[:-1], []] if any(happened[:-1]) else happened
        self.assertTrue(any(self.after(order) == found for order in (*_orders(happened), *_orders(missed))),
                        f'no order of {[len(steps) for steps in happened]} steps ends in {found}')

    def run_program(self, client: AllocationClient, program: Sequence[Step]) -> list[Step]:
        """:returns: the steps that succeeded; the others say that they changed nothing"""
        succeeded = []
        for step in program:
            try:
                step.call(client)
                succeeded.append(step)
            except (errors.ConsumerConflict, errors.ProviderConflict, errors.UnknownConsumer) as error:
                self.assertIn(error.result.outcome, (Outcome.UNCHANGED, Outcome.PENDING))
        return succeeded

    def found(self, consumers: dict[str, str]) -> State:
        """What each consumer holds, by the name of it: nothing is ever held in part."""
        named = {}
        for name, consumer in consumers.items():
            resources = self.placement.direct.get_allocations(consumer).resources
            if resources:
                [named[name]] = [need for need, held in self.needs.items() if held == resources]
        return named

    @staticmethod
    def after(order: Sequence[Step]) -> State | None:
        state: State | None = {'instance': 'old'}
        for step in order:
            if state is None:
                return None
            state = step.effect(state)
        return state
