"""A row whose details cannot be read: it is its own problem, and no other instance's."""

import json

from devicetrack import exception
from devicetrack.objects import details
from devicetrack.store.api import Changes
from devicetrack.store.api import Update
from devicetrack.testing import fixtures
from devicetrack.testing.fixtures import FREE
from devicetrack.tests import base

GONE = object()


def damaged(text, **fields):
    """Stored details with other values, or (GONE) without some."""
    primitive = json.loads(text)
    primitive['versioned_object.data'].update(fields)
    primitive['versioned_object.data'] = {
        name: value for name, value in primitive['versioned_object.data'].items() if value is not GONE}
    return json.dumps(primitive)


class DamagedRowTestCase(base.TestCase):

    scenarios = base.table(
        ('a missing text', 0, {'namespace_uuid': GONE}),
        ('a missing number', 0, {'size_bytes': GONE}),
        ('nothing at all', 0, dict.fromkeys(('namespace_uuid', 'label', 'devpath', 'size_bytes', 'align_bytes'), GONE)),
        ('a number as text', 0, {'namespace_uuid': 7}),
        ('no uuid', 0, {'namespace_uuid': 'ns'}),
        ('a text that no file can have', 0, {'devpath': 'a\0b'}),
        ('an infinite number', 0, {'size_bytes': float('inf')}),
        ('a broken number', 0, {'size_bytes': 1.5}),
        ('a missing origin', 1, {'origin': GONE}),
        ('a missing type', 1, {'type': GONE, 'parent': GONE}),
        ('a list', 1, {'type': []}),
        ('yes', 1, {'iommu_group': True}),
        names=('index', 'fields'))

    def setUp(self):
        super().setUp()
        self.host = self.useFixture(fixtures.Host(devices=3, parents={'p0': 2}))
        self.instance = self.host.spawn(pmem=1, vgpu=1)
        self.other = self.host.spawn(pmem=1)
        before = self.host.records(self.instance)[self.index]
        self.after = before._replace(details=damaged(before.details, **self.fields), generation=before.generation + 1)
        self.host.store.store.write(Changes(update=(Update(before, self.after),)))

    def test_it_is_not_read(self):
        self.assertRaises(exception.MalformedObject, details.from_text, self.after.details)
        self.assertRaises(exception.MalformedObject, details.peek, self.after.details)

    def test_audits_and_starts_go_on(self):
        self.host.audit()
        self.host.restart()
        self.host.manager.list_withheld()
        self.host.manager.providers()
        self.assertIn(self.after, self.host.records())

    def test_it_keeps_its_device_and_others_are_served(self):
        self.host.delete(self.other)
        self.host.delete_guest(self.instance.uuid)
        self.assertRaises(exception.DeviceTrackError, self.host.manager.release, None, self.instance)
        self.host.service.known = {self.instance.uuid: 'deleted'}
        for _ in range(2):
            self.host.audit()
            self.host.restart()
            self.assertEqual({self.after.identifier: 'releasing'}, {
                name: state for name, state in self.host.states().items() if state != FREE})
