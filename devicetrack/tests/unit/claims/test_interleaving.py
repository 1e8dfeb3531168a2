"""An audit between any two steps of a move, and beside claims of many threads, changes no owner."""

import threading

from devicetrack import exception
from devicetrack.testing import fixtures
from devicetrack.testing import region as regions
from devicetrack.testing.fixtures import Instance
from devicetrack.tests import base
from devicetrack.tests.functional.docs import moves


def owned(region):
    """By host, which devices have an owner and which."""
    return {name: sorted((record.identifier, record.instance_uuid) for record in host.records())
            for name, host in region.hosts.items()}


class MoveTestCase(base.TestCase):

    scenarios = [(operation.__name__, {'operation': operation}) for operation in moves.OPERATIONS]

    def region(self):
        region = self.useFixture(regions.Region(parents={'card': 1}))
        return region, moves.at_rest(region)

    def test_audits_at_every_step_change_no_owner(self):
        region, instance = self.region()
        bystander = region.spawn('two', vgpu=1)
        [before] = self.rows_of(region, bystander)
        for step in self.operation(region, instance):
            owners = owned(region)
            for host in region.hosts.values():
                if not host.is_ready:
                    continue                    # the host is down
                findings = host.audit()
                self.assertEqual([], [finding for finding in findings if finding.severity == 'critical'], step)
            after = owned(region)
            for name in region.hosts:
                # What the service says is over may go back; nobody gets what was another's, or loses what is in use.
                self.assertLessEqual(set(after[name]), set(owners[name]), step)
                wrong = region.hosts[name].disagreements()
                self.assertEqual([], wrong, step)
            self.assertEqual([before], self.rows_of(region, bystander))
        self.assertEqual([], region.audit())

    def test_the_end_is_the_same_as_without_audits(self):
        ends = []
        for audits in (False, True):
            region, instance = self.region()
            for _step in self.operation(region, instance):
                for host in region.hosts.values() if audits else ():
                    try:
                        host.audit()
                    except exception.NotReady:
                        continue
            region.audit()
            ends.append(region.rows(instance))
        self.assertEqual(*ends)

    @staticmethod
    def rows_of(region, instance):
        return [record for host in region.hosts.values() for record in host.records(instance)]


class ClaimsTestCase(base.TestCase):

    def test_audits_beside_twenty_claims_change_no_owner(self):
        host = self.useFixture(fixtures.Host(devices=12, parents={'card': 8}))
        done = threading.Event()
        instances = [Instance() for _ in range(20)]

        def life(number):
            instance = instances[number]
            for _turn in range(3):
                try:
                    host.spawn(instance, pmem=number % 2, vgpu=1 - number % 2)
                except exception.NoFit:
                    continue
                mine = [(record.identifier, record.claim_id) for record in host.records(instance)]
                self.assertEqual(mine, [(record.identifier, record.claim_id) for record in host.records(instance)])
                self.assertEqual(1, len(mine))
                host.delete(instance)

        def audits():
            found = []
            while not done.is_set():
                found += host.audit()
            return found

        def lives():
            try:
                return self.together(*(lambda number=number: life(number) for number in range(20)))
            finally:
                done.set()

        answers, found = self.together(lives, audits)
        self.assertEqual([None] * 20, answers)
        self.assertEqual([], found)
        self.assertEqual(([], 20), (host.records(), host.free()))
