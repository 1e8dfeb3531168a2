"""The image service of the cloud."""

from __future__ import annotations

from collections.abc import Iterator

import requests

from devicetrack.tests import base
from devicetrack.tests.cloud import neighbours


class ImagesTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        served = self.useFixture(neighbours.Neighbours(b'counts boots'))
        self.url = f'http://127.0.0.1:{served.port}/v2/images'
        self.session = requests.Session()
        self.addCleanup(self.session.close)
        self.session.trust_env = False

    def test_has_one_image_to_begin_with(self) -> None:
        self.assertEqual(len(b'counts boots'), self.session.get(f'{self.url}/{neighbours.IMAGE}').json()['size'])
        self.assertEqual(b'counts boots', self.session.get(f'{self.url}/{neighbours.IMAGE}/file').content)

    def test_keeps_an_image_until_it_is_deleted(self) -> None:
        def chunks() -> Iterator[bytes]:
            yield from (b'one', b'two')

        image = self.session.post(self.url, json={'name': 'shelved'}).json()
        url = f'{self.url}/{image["id"]}'
        self.session.patch(url, json=[{'op': 'replace', 'path': '/name', 'value': 'renamed'}])
        self.session.put(f'{url}/file', data=chunks())
        found = self.session.get(url).json()
        self.assertEqual(('renamed', 'active', 6), (found['name'], found['status'], found['size']))
        self.assertEqual(b'onetwo', self.session.get(f'{url}/file').content)
        self.session.delete(url)
        for gone in (url, f'{url}/file'):
            self.assertEqual(404, self.session.get(gone).status_code)
