"""Policies, from options and by hand; and what need not be loaded for them."""

from __future__ import annotations

from collections.abc import Sequence
import subprocess
import sys

from devicetrack import vocabulary
from devicetrack.objects.values import Leftover
from devicetrack.placement import errors
from devicetrack.placement.allocations import AllocationClient
from devicetrack.placement.allocations import Policies
from devicetrack.placement.allocations import Policy
from devicetrack.placement.client import Client
from devicetrack.placement.values import Consumer
from devicetrack.tests import base


class TestPolicies(base.TestCase):

    def test_all_fail_unless_an_option_says_otherwise(self):
        self.assertEqual(Policies(), Policies.from_conf(self.conf))
        self.configuration.set('placement', on_conflict_delete='retry', on_conflict_change='merge')
        self.assertEqual(Policies(delete=Policy.RETRY, change=Policy.MERGE), Policies.from_conf(self.conf))

    def test_a_spawn_is_never_merged(self):
        self.assertRaises(ValueError, self.configuration.set, 'placement', on_conflict_spawn='merge')
        self.assertRaises(ValueError, AllocationClient, None, Policies(spawn=Policy.MERGE))

    def test_who_does_not_speak_with_placement_loads_nothing_for_it(self):
        program = ('import sys, devicetrack.conf.opts, devicetrack.claims.manager, devicetrack.placement.tree;'
                   'print(*[name for name in ("keystoneauth1", "requests") if name in sys.modules])')
        answer = subprocess.run([sys.executable, '-c', program], capture_output=True, text=True, check=True)
        self.assertEqual('', answer.stdout.strip())


class Refusing(Client):
    """A client whose writes others are always faster than, and that has no consumer."""

    def __init__(self, *errors_of_writes: errors.PlacementError) -> None:
        self.errors = list(errors_of_writes)
        self.written: list[list[int | None]] = []

    def get_allocations(self, consumer_uuid: str) -> Consumer:
        return Consumer(consumer_uuid, {}, None)

    def replace_allocations(self, consumers: Sequence[Consumer]) -> None:
        """Refuse, as often as was said."""
        self.written.append([consumer.generation for consumer in consumers])
        if self.errors:
            raise self.errors.pop(0)


class TestAttempts(base.TestCase):

    def spawn(self, refusals: int, attempts: int = 4) -> tuple[Refusing, list[float], bool]:
        client = Refusing(*(errors.GenerationConflict('PUT') for _number in range(refusals)))
        pauses: list[float] = []
        allocations = AllocationClient(client, Policies(spawn=Policy.RETRY), attempts=attempts, pause=pauses.append)
        try:
            allocations.spawn('instance', {'provider': {'VGPU': 1}}, 'project', 'user')
        except errors.ProviderConflict:
            return client, pauses, False
        return client, pauses, True

    def test_each_after_the_first_comes_after_a_pause_that_grows(self):
        client, pauses, _done = self.spawn(refusals=100, attempts=7)
        self.assertEqual(len(client.written) - 1, len(pauses))
        for pause, most in zip(pauses[::2], (0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0), strict=True):
            self.assertTrue(most / 2 <= pause <= most, pauses)

    def test_whether_a_consumer_was_half_made_is_a_question_and_no_attempt(self):
        for attempts in (1, 2, 4):
            client, _pauses, done = self.spawn(refusals=100, attempts=attempts)
            self.assertEqual(([[None], [0]] * attempts, False), (client.written, done))
            client, _pauses, done = self.spawn(refusals=2 * attempts - 2, attempts=attempts)
            self.assertTrue(done)

    def test_an_answer_about_a_move_that_is_no_yes_and_no_no_is_unknown(self):
        class Kept:
            def kept(self) -> list[Leftover]:
                return [Leftover('instance', 'migration', vocabulary.REVERT)]

            def record(self, leftover: Leftover) -> None:
                raise AssertionError(leftover)

            def remove(self, leftover: Leftover) -> None:
                raise AssertionError(leftover)

        class Holding(Refusing):
            def get_allocations(self, consumer_uuid: str) -> Consumer:
                return Consumer(consumer_uuid, {'provider': {'VGPU': 1}}, 1)

        for answer in ('reverted', 'completed', 1, 0, [], object()):
            client = Holding()
            allocations = AllocationClient(client, leftovers=Kept())
            self.assertEqual(({}, []), (allocations.finish_moves(lambda _uuid, answer=answer: answer), client.written))
