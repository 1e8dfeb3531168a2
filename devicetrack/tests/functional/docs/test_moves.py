"""What the page on moves says is what the code does."""

from __future__ import annotations

import inspect
import re
import runpy
import time
import types
from typing import Any

from devicetrack.claims.service import MovingService
from devicetrack.engine import migrations as statuses
from devicetrack.testing import compute_service
from devicetrack.testing import fixtures
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
        table = self.page.split('Statuses of a migration')[1].split('Answers of the service')[0]
        listed = {meaning: set(re.findall(r'``([a-z-]+)``', words))
                  for meaning, words in re.findall(r'^   \* - ([a-z]+)\n     - ((?:.*\n)+?)     - ', table, re.M)}
        known = {meaning: {status for status, means in statuses.STATUSES.items() if means == meaning}
                 for meaning in (statuses.PENDING, statuses.DONE, statuses.UNDONE, statuses.UNKNOWN)}
        self.assertEqual(known, listed)

    def test_everything_that_a_service_hands_in_is_listed(self) -> None:
        table = self.page.split('Answers of the service')[1]
        methods = {name for name, _ in inspect.getmembers(MovingService, inspect.isfunction) if name[0] != '_'}
        self.assertEqual(methods, set(re.findall(r'^   \* - ``([a-z_]+)', table, re.M)))


class MovingServiceTestCase(base.TestCase):
    """The service of the page, asked by the managers of two hosts."""

    def setUp(self) -> None:
        super().setUp()
        self.region = self.useFixture(Region())
        example = runpy.run_path(str(DOCS / 'user' / 'moving_service.py'))
        self.long_s = example['LONG_S']
        for host in self.region.hosts.values():
            host.service = example['MovingService'](self, host.name)
            host.restart()
        self.updated_at = time.time()

    # -- the database -------------------------------------------------------------------------------------------------

    @property
    def instances(self) -> list[Any]:
        return [types.SimpleNamespace(uuid=one.uuid, host=one.host, deleted=one.state == compute_service.DELETED,
                                      offloaded=one.state == compute_service.OFFLOADED)
                for one in self.region.instances]

    @property
    def migrations(self) -> list[Any]:
        for one in self.region.migrations:
            made: Any = one
            made.updated_at = self.updated_at
            made.migration_type = one.kind
        return list(self.region.migrations)

    def create_migration(self, instance: Any, nodename: str, move_type: str) -> Any:
        return self.region.create_migration(instance, nodename, move_type)

    def set_status(self, migration_uuid: str, status: str) -> None:
        [one] = [one for one in self.region.migrations if one.uuid == migration_uuid]
        one.status = status

    # -- what its answers do ------------------------------------------------------------------------------------------

    def leave_untold(self) -> fixtures.Instance:
        """A resize whose source hears of it from the audit alone."""
        instance = self.region.spawn('one', pmem=1)
        migration = self.region.resize(instance, 'two', pmem=1)
        self.region.one.machine.delete_guest(instance.uuid)
        migration.status = 'confirmed'
        return instance

    def test_a_source_that_nobody_told_hears_of_the_move(self) -> None:
        self.leave_untold()
        self.region.one.audit()
        self.region.one.audit()
        self.assertEqual([], self.region.one.records())

    def test_an_instance_that_never_had_a_host_keeps_what_was_claimed_for_it(self) -> None:
        host, instance = self.region.one, fixtures.Instance()
        self.region.instances.append(instance)
        host.claim(instance, pmem=1)
        self.assertEqual([], host.audit())
        host.restart()
        self.assertEqual(['claimed'], [record.state for record in host.records()])
        instance.state = compute_service.DELETED
        host.restart()
        self.assertEqual([], host.records())

    def test_one_that_is_long_over_is_told_no_more(self) -> None:
        self.leave_untold()
        self.updated_at -= self.long_s + 60
        self.assertEqual({}, self.region.one.service.migrations([]))

    def test_what_a_move_left_goes_when_it_is_told_no_more(self) -> None:
        self.leave_untold()
        self.updated_at -= self.long_s + 60
        self.region.one.audit()
        self.assertEqual([], self.region.one.records())

    def test_what_an_evacuation_left_goes_when_its_host_is_back(self) -> None:
        instance = self.region.spawn('one', pmem=1)
        self.region.one.manager.close()
        self.region.evacuate(instance, 'two', pmem=1)
        self.region.one.restart()
        self.assertEqual(([], 1), (self.region.one.records(), len(self.region.two.records())))
        self.assertEqual({}, self.region.one.machine.domains)

    def test_a_claim_without_a_migration_gets_one(self) -> None:
        instance = self.region.spawn('one', pmem=1)
        claim = self.region.two.manager.resize_claim(None, instance, 'two', fixtures.a_request(pmem=1), None)
        self.assertEqual([claim.migration], self.region.migrations)
        claim.abort()
