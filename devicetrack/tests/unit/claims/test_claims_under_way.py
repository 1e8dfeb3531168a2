"""An audit leaves a claim that is under way in this process alone, whatever the ledger remembers of it."""

from __future__ import annotations

from devicetrack import exception
from devicetrack.claims.claim import Claim
from devicetrack.engine import findings
from devicetrack.engine import migrations
from devicetrack.testing import fixtures
from devicetrack.testing.fixtures import FREE
from devicetrack.testing.fixtures import Instance
from devicetrack.tests import base

GONE = exception.StoreUnavailable('store', 'gone')


def nothing(host: fixtures.Host, claim: Claim) -> None:
    """The ledger knows who took the devices."""


def rebuilt(host: fixtures.Host, claim: Claim) -> None:
    """As after an interrupt in another thread."""
    host.running.ledger.discard()


def settled(host: fixtures.Host, claim: Claim) -> None:
    """The answer of the commit in ``realize`` is lost, and the service calls it again."""
    host.store.lose_answer()
    try:
        host.manager.realize(host.context, claim.instance)
    except exception.OutcomeUnknown:
        host.audit()
        host.manager.realize(host.context, claim.instance)


class UnderWayTestCase(base.TestCase):

    scenarios = base.table(('the ledger is as it was', nothing), ('it is built again', rebuilt),
                           ('a commit was in doubt', settled), names=('happens',))

    def setUp(self) -> None:
        super().setUp()
        self.host = self.useFixture(fixtures.Host(devices=2))
        self.instance = Instance()

    def check_it_stays(self, kind: str | None = None) -> None:
        claim = self.host.claim(self.instance, pmem=1)
        self.happens(self.host, claim)
        for _audit in range(2):
            self.assertNotIn(kind, [finding.kind for finding in self.host.audit()])
        [row] = self.host.records()
        self.assertEqual(('claimed', claim.claim_id), (row.state, row.claim_id))
        self.host.boot(self.instance)
        self.assertEqual(['active'], [row.state for row in self.host.records()])

    def test_of_an_instance_that_comes_back_while_the_service_says_that_it_is_offloaded(self) -> None:
        self.host.service.known = {self.instance.uuid: migrations.INSTANCE_OFFLOADED}
        self.check_it_stays()

    def test_of_one_that_the_service_names_as_evacuated_from_here(self) -> None:
        self.host.service.evacuated = [self.instance.uuid]
        self.check_it_stays()

    def test_of_one_that_the_service_has_not_saved_yet(self) -> None:
        self.host.service.known = {}
        self.check_it_stays(findings.UNKNOWN_OWNER)


class HostTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.host = self.useFixture(fixtures.Host(devices=3))
        self.instance = Instance()
        self.host.service.known = {self.instance.uuid: migrations.INSTANCE_OFFLOADED}

    def test_an_earlier_device_that_is_still_being_cleaned_changes_nothing(self) -> None:
        host, instance = self.host, self.instance
        host.spawn(instance, pmem=1)
        host.machine.delete_guest(instance.uuid)
        host.machine.before('wipe', exception.UnclaimFailed('vpmem', 'd0', 'a bad block'))
        self.assertRaises(exception.UnclaimFailed, host.manager.release, self.context, instance)
        host.restart()
        with host.claim(instance, pmem=1):
            host.manager.realize(self.context, instance)
            config = host.manager.guest_config(instance)
            host.audit()
            host.machine.clear()
            for _audit in range(2):
                host.audit()
            host.claim(other := Instance(), pmem=2)
            host.start_guest(instance.uuid, config)
            host.manager.started(self.context, instance)
        self.assertEqual({'d0': other.uuid, 'd1': instance.uuid, 'd2': other.uuid}, host.owners())
        self.assertEqual([], host.disagreements())

    def test_one_of_an_earlier_start_goes_back(self) -> None:
        self.host.claim(self.instance, pmem=1)
        self.host.restart()
        self.host.audit()
        self.assertEqual({FREE}, set(self.host.states().values()))

    def test_so_does_one_that_failed_though_nothing_could_be_remembered(self) -> None:
        claim = self.host.claim(self.instance, pmem=1)
        self.host.store.before('write', GONE, times=1)
        with open(f'{self.host.conf.devicetrack.state_path}/given-up', 'w', encoding='ascii'):
            self.assertRaises(exception.StoreUnavailable, claim.abort)
        self.host.audit()
        self.assertEqual({FREE}, set(self.host.states().values()))

    def test_so_does_one_of_an_instance_that_was_deleted(self) -> None:
        self.host.claim(self.instance, pmem=1)
        self.host.service.known = {self.instance.uuid: migrations.INSTANCE_DELETED}
        self.host.audit()
        self.assertEqual({FREE}, set(self.host.states().values()))
