"""Scenes that come to no result."""

from __future__ import annotations

import pathlib
import types
from typing import Any
from typing import Final

import fixtures

from devicetrack.tests import base
from devicetrack.tests.cloud import __main__ as cloud_test
from devicetrack.tests.cloud import cloud as clouds
from devicetrack.tests.cloud import compute_client
from devicetrack.tests.cloud import hosts
from devicetrack.tests.cloud import image
from devicetrack.tests.cloud import story
from devicetrack.tests.host import image as images

AT_REST: Final = {'id': 'a guest', 'status': 'ACTIVE', 'OS-EXT-STS:task_state': None}


class _Cloud(fixtures.Fixture):
    """A cloud in which nothing happens."""

    made = 0

    def __init__(self, *_made_of: object) -> None:
        super().__init__()
        type(self).made += 1
        self.hosts: dict[str, Any] = {'host-a': None, 'host-b': None}
        self.nova = types.SimpleNamespace(instances=lambda: [AT_REST])

    def logs(self) -> str:
        return 'what the services said'


class _Over(story.Scene):
    NAME = 'boot'
    cleared = 0

    def play(self) -> None:
        self.disturb(self.a, lambda: None, lambda: False)

    def clear(self) -> None:
        type(self).cleared += 1
        self.is_clear = True


class _Hangs(_Over):

    def play(self) -> None:
        raise compute_client.Hangs('for ever')


class _HangsOnce(_Hangs):
    hung = 0

    def play(self) -> None:
        type(self).hung += 1
        if self.hung == 1:
            super().play()


class NoResultTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.said: list[str] = []
        for name, value in {
                f'{cloud_test.__name__}.RESULTS': pathlib.Path(self.temp_dir()),
                f'{cloud_test.__name__}._say': self.said.append,
                f'{images.__name__}.cache': self.temp_dir,
                f'{image.__name__}.get': lambda: None, f'{hosts.__name__}.begin': lambda _image: {},
                f'{clouds.__name__}.Cloud': _Cloud}.items():
            self.useFixture(fixtures.MonkeyPatch(name, value))
        _Cloud.made = _Over.cleared = _HangsOnce.hung = 0

    def play(self, *scenes: tuple[type[story.Scene], str]) -> list[story.Result]:
        return cloud_test._play(hosts.ADAPTED, list(scenes), keep=False)

    def test_over_before_it_could_be_disturbed(self) -> None:
        self.assertEqual([], self.play((_Over, story.KILL)))
        self.assertEqual(cloud_test.TRIES, _Over.cleared)
        self.assertEqual(1, _Cloud.made)
        self.assertIn('boot, kill -9: no result', self.said[1])
        self.assertEqual([], [*cloud_test.RESULTS.glob('*.json')])

    def test_undisturbed_it_cannot_come_too_late(self) -> None:
        self.assertEqual([story.Result('boot', story.NOT, [], [])], self.play((_Over, story.NOT)))

    def test_one_that_hangs_ends_its_cloud(self) -> None:
        self.assertEqual([], self.play((_Hangs, story.NOT)))
        self.assertEqual(cloud_test.TRIES, _Cloud.made)
        [log] = cloud_test.RESULTS.glob('*.log')
        self.assertEqual('what the services said', log.read_text())

    def test_is_played_again_after_the_others(self) -> None:
        results = self.play((_HangsOnce, story.KILL), (_Over, story.NOT))
        self.assertEqual([story.NOT, story.KILL], [result.how for result in results])
        self.assertEqual(2, _Cloud.made)
