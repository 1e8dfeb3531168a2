"""Texts that the cloud is configured with."""

from __future__ import annotations

from devicetrack.tests import base
from devicetrack.tests.cloud import settings

ASKS_KEYSTONE = '[filter:authtoken]\npaste.filter_factory = keystonemiddleware.auth_token:filter_factory\n'


class SettingsTestCase(base.TestCase):

    def test_a_file_has_its_sections(self) -> None:
        self.assertEqual('[a]\nb = 1\nc = two\n\n[d]\n', settings.text({'a': {'b': 1, 'c': 'two'}, 'd': {}}))

    def test_an_option_is_there_once_for_each_value(self) -> None:
        self.assertEqual('[a]\nb = 1\nb = 2\n', settings.text({'a': {'b': [1, 2]}}))

    def test_the_pipeline_asks_our_filter(self) -> None:
        self.assertEqual('[filter:authtoken]\npaste.filter_factory = devicetrack.tests.cloud.trusting:filter_factory\n',
                         settings.pipeline(ASKS_KEYSTONE))

    def test_an_unknown_pipeline_is_refused(self) -> None:
        for pipeline in ('', ASKS_KEYSTONE * 2):
            self.assertRaises(ValueError, settings.pipeline, pipeline)
