"""What the page on moves says is what the code does."""

from __future__ import annotations

import inspect
import re

from devicetrack.claims.service import MovingService
from devicetrack.engine import moves as statuses
from devicetrack.testing.region import Region
from devicetrack.tests import base
from devicetrack.tests.functional.docs import moves
from devicetrack.tests.functional.docs.test_documented_code import DOCS


class MovesTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.page = (DOCS / 'user' / 'moves.rst').read_text(encoding='utf-8')
        # Literal blocks, without their indentation.
        self.blocks = [re.sub(r'^    ', '', block, flags=re.M)
                       for block in re.findall(r'::\n\n((?:(?:    .*)?\n)+)', self.page)]

    def test_its_diagrams_are_what_happens(self) -> None:
        drawn = [block.rstrip('\n') for block in self.blocks if '─' in block]
        names = [operation.__name__ for operation in moves.OPERATIONS]
        happens = [moves.diagram(operation, self.useFixture(Region())).rstrip('\n') for operation in moves.OPERATIONS]
        for name, diagram in zip(names, happens, strict=True):
            self.assertIn(diagram, drawn, f'the page does not have {name} as it is now:\n{diagram}')
        self.assertEqual(len(happens), len(drawn), 'a diagram of the page is of no operation')

    def test_they_are_the_same_with_one_store(self) -> None:
        for operation in moves.OPERATIONS:
            self.assertEqual(moves.diagram(operation, self.useFixture(Region())),
                             moves.diagram(operation, self.useFixture(Region(shared_store=True))), operation.__name__)

    def test_every_status_of_a_migration_is_listed_with_its_meaning(self) -> None:
        table = self.page.split('What a status means')[1].split('What the service hands in')[0]
        listed = {meaning: set(re.findall(r'``([a-z-]+)``', words))
                  for meaning, words in re.findall(r'^   \* - ([a-z]+)\n     - ((?:.*\n)+?)     - ', table, re.M)}
        known = {meaning: {status for status, means in statuses.STATUSES.items() if means == meaning}
                 for meaning in (statuses.PENDING, statuses.DONE, statuses.UNDONE, statuses.UNKNOWN)}
        self.assertEqual(known, listed)

    def test_everything_that_a_service_hands_in_is_listed(self) -> None:
        table = self.page.split('What the service hands in')[1]
        methods = {name for name, _ in inspect.getmembers(MovingService, inspect.isfunction) if name[0] != '_'}
        self.assertEqual(methods, set(re.findall(r'^   \* - ``([a-z_]+)', table, re.M)))
