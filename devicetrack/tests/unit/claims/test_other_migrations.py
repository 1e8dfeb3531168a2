"""The late end of a claim leaves what a later claim has."""

from __future__ import annotations

from devicetrack import exception
from devicetrack.claims.claim import Claim
from devicetrack.testing import fixtures
from devicetrack.tests import base


class LaterClaimTestCase(base.TestCase):
    """A service undoes a move on one host, claims again for the same migration, and then aborts the first claim."""

    scenarios = base.table(('by the claim', 'abort', 1), ('by its id', 'abort_instance_claim', 1),
                           ('the later one takes no device', 'abort', 0), names=('how', 'after'))

    def setUp(self) -> None:
        super().setUp()
        self.host = self.useFixture(fixtures.Host(devices=4))
        self.instance = self.host.spawn(pmem=1)
        self.instance.host = self.host.name
        self.migration = self.host.service.create_migration(None, self.instance, self.host.name, 'resize')

    def claim(self, pmem: int = 1) -> Claim:
        return self.host.manager.resize_claim(self.context, self.instance, self.host.name,
                                              fixtures.a_request(pmem=pmem), self.migration)

    def test_stays_as_it_is(self) -> None:
        first = self.claim()
        self.host.manager.drop_move_claim_at_dest(self.context, self.instance, self.migration)
        self.claim(self.after)
        rows, context = self.host.records(), self.instance.migration_context
        stored = self.host.store.contexts(self.host.manager.host_uuid)
        if self.how == 'abort':
            fields = first.abort()
        else:
            fields = self.host.manager.abort_instance_claim(self.context, self.instance, first.claim_id,
                                                            self.migration.uuid)
        self.assertEqual(({}, rows, stored), (fields, self.host.records(),
                                              self.host.store.contexts(self.host.manager.host_uuid)))
        self.assertIs(context, self.instance.migration_context)
        self.host.stop_guest(self.instance.uuid)
        self.host.boot(self.instance)
        self.host.manager.drop_move_claim_at_source(self.context, self.instance, self.migration)
        self.assertEqual(self.after, len(self.host.manager.guest_config(self.instance).devices))
        self.assertEqual(self.after, len(self.host.records()))

    def test_also_while_a_device_of_the_first_one_cannot_be_wiped(self) -> None:
        first = self.claim()
        self.host.manager.realize(self.context, self.instance)
        self.host.machine.before('wipe', exception.UnclaimFailed('vpmem', 'd1', 'a bad block'), times=2)
        self.assertRaises(exception.UnclaimFailed, self.host.manager.drop_move_claim_at_dest, self.context,
                          self.instance, self.migration)
        self.claim()
        rows = [row for row in self.host.records() if row.identifier != 'd1']
        self.assertRaises(exception.UnclaimFailed, first.abort)
        self.assertEqual(rows, [row for row in self.host.records() if row.identifier != 'd1'])
        self.assertEqual({}, first.abort())
        self.assertEqual(rows, self.host.records())
