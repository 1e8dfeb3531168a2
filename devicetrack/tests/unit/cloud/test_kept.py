"""What runs keep for the table."""

from __future__ import annotations

import pathlib

import fixtures

from devicetrack.tests import base
from devicetrack.tests.cloud import __main__ as cloud_test
from devicetrack.tests.cloud import hosts
from devicetrack.tests.cloud import story


class KeptTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.results = pathlib.Path(self.temp_dir(), 'kept')
        self.useFixture(fixtures.MonkeyPatch(f'{cloud_test.__name__}.RESULTS', self.results))

    def test_the_last_result_of_each_scene_and_program(self) -> None:
        first = story.Result('resize, confirmed', story.KILL, [story.DISAGREE], ['why'])
        last = story.Result('resize, confirmed', story.KILL, [], [])
        other = story.Result('resize, confirmed', story.NOT, [story.CONTENTS], [])
        for program, result in ((hosts.ADAPTED, first), (hosts.ADAPTED, last), (hosts.ADAPTED, other),
                                (hosts.STOCK, first)):
            cloud_test._keep(program, result)
        self.assertEqual({hosts.STOCK: [first], hosts.ADAPTED: [last, other]}, cloud_test._kept())

    def test_nothing_yet(self) -> None:
        self.assertEqual({hosts.STOCK: [], hosts.ADAPTED: []}, cloud_test._kept())
