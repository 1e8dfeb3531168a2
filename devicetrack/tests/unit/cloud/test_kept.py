"""What runs keep for the table."""

from __future__ import annotations

import pathlib

import fixtures

from devicetrack.tests import base
from devicetrack.tests.cloud import __main__ as cloud_test
from devicetrack.tests.cloud import hosts
from devicetrack.tests.cloud import story
from devicetrack.tests.cloud import table


class KeptTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.results = pathlib.Path(self.temp_dir(), 'kept')
        self.useFixture(fixtures.MonkeyPatch(f'{cloud_test.__name__}.RESULTS', self.results))

        self.table = pathlib.Path(self.temp_dir(), 'table')
        read = table.read
        self.useFixture(fixtures.MonkeyPatch(f'{table.__name__}.read', lambda: read(self.table)))
        table.write({}, self.table)

    def test_the_last_result_of_each_scene_and_program(self) -> None:
        first = story.Result('resize, confirmed', story.KILL, [story.DISAGREE], ['why'])
        last = story.Result('resize, confirmed', story.KILL, [], [])
        other = story.Result('resize, confirmed', story.NOT, [story.CONTENTS], [])
        for program, result in ((hosts.ADAPTED, first), (hosts.ADAPTED, last), (hosts.ADAPTED, other),
                                (hosts.STOCK, first)):
            cloud_test._keep(program, result)
        self.assertEqual({hosts.STOCK: [first], hosts.ADAPTED: [last, other]}, cloud_test._kept())

    def test_what_the_table_says_of_other_scenes(self) -> None:
        before = story.Result('boot', story.NOT, [], [])
        table.write({hosts.ADAPTED: [before, story.Result('boot', story.KILL, [], [])]}, self.table)
        now = story.Result('boot', story.KILL, [story.STATUS], ['why'])
        cloud_test._keep(hosts.ADAPTED, now)
        self.assertEqual({hosts.STOCK: [], hosts.ADAPTED: [before, now]}, cloud_test._kept())

    def test_nothing_yet(self) -> None:
        self.assertEqual({hosts.STOCK: [], hosts.ADAPTED: []}, cloud_test._kept())
