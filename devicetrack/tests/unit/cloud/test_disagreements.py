"""When a cloud's disagreement is one."""

from __future__ import annotations

import pathlib

import fixtures

from devicetrack.tests import base
from devicetrack.tests.cloud import checker
from devicetrack.tests.cloud import cloud as clouds
from devicetrack.tests.cloud import compute_client
from devicetrack.tests.host import image as images


class DisagreementsTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        for name in ('_STILL_S', '_LOOK_AGAIN_S'):
            self.useFixture(fixtures.MonkeyPatch(f'{compute_client.__name__}.{name}', 0))
        self.useFixture(fixtures.MonkeyPatch(f'{checker.__name__}.read', lambda _cloud: None))
        self.useFixture(fixtures.MonkeyPatch(f'{checker.__name__}.differences', self.differences))
        self.cloud = clouds.Cloud(images.Image(13, pathlib.Path(self.temp_dir())), {}, '', 'any')
        self.audits = 0
        self.cloud.nova = compute_client.Client('', lambda: {'host-a': self.audits})
        # What is found at each look; each look takes one audit.
        self.found: list[list[str]] = []

    def differences(self, _views: object) -> list[str]:
        self.audits += 1
        return self.found.pop(0)

    def test_none_when_they_agree_in_the_end(self) -> None:
        self.found = [[f'{left} bytes'] for left in range(3 * compute_client.STILL_AUDITS)] + [[]]
        self.assertEqual([], self.cloud.disagreements())

    def test_what_many_audits_have_left_as_it_was(self) -> None:
        self.found = [['first'], *(['a', 'b'] for _ in range(compute_client.STILL_AUDITS + 1))]
        self.assertEqual(['a', 'b'], self.cloud.disagreements())
        self.assertEqual([], self.found)
