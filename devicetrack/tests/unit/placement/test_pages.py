"""The pages about conflicts and the audit name everything that there is, and nothing else."""

from __future__ import annotations

import pathlib
import re

from devicetrack.cmd import placement_heal
from devicetrack.placement import audit
from devicetrack.placement import errors
from devicetrack.placement import healer
from devicetrack.placement import healing
from devicetrack.placement.allocations import Policies
from devicetrack.placement.allocations import Policy
from devicetrack.placement.values import Outcome
from devicetrack.tests import base

PAGES = pathlib.Path(__file__).parents[4] / 'doc' / 'source' / 'user'


class TestConflictsPage(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.page = (PAGES / 'placement-conflicts.rst').read_text(encoding='utf-8')

    def rows(self, pattern: str) -> set[str]:
        lines = re.findall(rf'^   \* - {pattern}', self.page, re.M)
        return {name.strip() for line in lines for name in line.split(',')}

    def test_every_error(self):
        there_are = {name for name, error in vars(errors).items()
                     if isinstance(error, type) and error.__module__ == errors.__name__}
        self.assertEqual(there_are - {'PlacementError'}, self.rows(r'([A-Z][A-Za-z, ]+)$') - {'Operation', 'Error'})

    def test_every_operation(self):
        self.assertEqual({*Policies._fields, 'finish_evacuation'}, self.rows('``([a-z_]+)``'))

    def test_every_outcome_and_policy(self):
        self.assertEqual({outcome.name for outcome in Outcome}, self.rows('``([A-Z]+)``$'))
        self.assertEqual({policy.value for policy in Policy}, set(re.findall(r'^``([a-z]+)``$', self.page, re.M)))


class TestAuditPage(base.TestCase):

    def test_every_kind_and_repair(self):
        page = (PAGES / 'placement-audit.rst').read_text(encoding='utf-8')
        self.assertEqual({*audit.KINDS, *(f'``{repair}``' for repair in audit.REPAIRS)},
                         set(re.findall(r'^   \* - ([a-z` -]+)$', page, re.M)))


class TestNestedPage(base.TestCase):

    def test_every_obstacle_and_standing(self):
        page = (PAGES / 'placement-nested.rst').read_text(encoding='utf-8')
        obstacles = {healing.NO_RECORD, healing.OTHER_AMOUNT, healing.NO_GUEST, healing.OTHER_GUEST,
                     healing.NO_PROVIDER, healing.NO_ROOM, healing.UNREAD, healing.FAILED}
        self.assertEqual(obstacles | {'what'}, set(re.findall(r'^   \* - ``([a-z ]+)``$', page, re.M)))
        for word in (healer.HEALED, healer.EMPTY, healer.GUESTS, healer.DRIFTED):
            self.assertIn(f'   * - {word}\n', page)
        for word in (healer.HEALED, healer.NOTHING, healer.LEFT, placement_heal.ALREADY, placement_heal.WOULD_HEAL):
            self.assertIn(f'``{word}``', ' '.join(page.split()))
