"""A guest whose definition does not say which devices are its own cannot be found again if the store is lost."""

from __future__ import annotations

from devicetrack.engine import findings
from devicetrack.testing import fixtures
from devicetrack.tests import base


class NotRecoverableTestCase(base.TestCase):

    def test_a_guest_without_the_element_is_one_note_until_it_starts_with_it(self) -> None:
        host = self.useFixture(fixtures.Host(devices=2))
        instance = host.spawn(pmem=2)
        self.assertEqual([], host.audit())
        config = host.manager.guest_config(instance)
        host.start_guest(instance.uuid, config._replace(metadata=''))
        [note] = host.audit()
        self.assertEqual((findings.NOT_RECOVERABLE, 'note', 'd0', (instance.uuid,), 'nothing'), (
            note.kind, note.severity, note.device.identifier, note.users, note.held))
        host.restart()
        self.assertEqual([note.kind], [one.kind for one in host.audit()])
        host.start_guest(instance.uuid, config)
        self.assertEqual([], host.audit())
