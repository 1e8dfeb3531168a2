"""What options say about devices that are not there, or not ours."""

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.engine import findings
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Missing
from devicetrack.testing import fixtures
from devicetrack.testing.fixtures import Flavor
from devicetrack.testing.fixtures import FREE
from devicetrack.testing.fixtures import Instance
from devicetrack.tests import base

OPTION = '[libvirt] pmem_namespaces'


class MissingDeviceTestCase(base.TestCase):

    def test_a_device_that_nobody_ever_owned_is_a_mistake_and_refused_at_start(self):
        host = self.useFixture(fixtures.Host(devices=1, ready=False))
        host.machine.missing = (Missing(DeviceKey('vpmem', 'd9'), OPTION, 'this host has d0'),)
        error = self.assertRaises(exception.InvalidConfiguration, host.manager.init_host, None)
        self.assertEqual((OPTION, 'd9', 'this host has d0: take it out of the option, or bring it back'),
                         (error.option, error.value, error.reason))
        self.assertRaises(exception.NotReady, host.manager.assignments, Instance().uuid)

    def test_one_that_has_an_owner_went_away_and_the_rest_of_the_host_works(self):
        host = self.useFixture(fixtures.Host(devices=2))
        instance = host.spawn(pmem=1)
        lost = host.manager.assignments(instance.uuid).assignments[0].identifier
        host.machine.stop_guest(instance.uuid)
        host.machine.remove(DeviceKey('vpmem', lost))
        host.machine.missing = (Missing(DeviceKey('vpmem', lost), OPTION, 'this host has another'),)
        found = host.restart()
        self.assertIn((findings.GONE, lost, instance.uuid),
                      [(finding.kind, finding.device.identifier, finding.recorded_owner) for finding in found])
        host.claim(Instance(), pmem=1)


class ForeignMakeTestCase(base.TestCase):

    def test_a_device_made_by_others_is_not_handed_out_and_worth_a_note(self):
        host = self.useFixture(fixtures.Host(devices=1))
        host.machine.change(DeviceKey('vpmem', 'd0'), assignable=False)
        self.assertEqual([(findings.LEFT_OVER, vocabulary.NOTE)],
                         [(finding.kind, finding.severity) for finding in host.restart()])
        self.assertEqual({'d0': 'withheld: made by others'}, host.states())
        self.assertIn('1 withheld (made by others)',
                      str(self.assertRaises(exception.NoFit, host.claim, Instance(), pmem=1)))

    def test_its_owner_keeps_it_without_a_finding(self):
        host = self.useFixture(fixtures.Host(devices=1))
        host.spawn(pmem=1)
        host.machine.change(DeviceKey('vpmem', 'd0'), assignable=False)
        self.assertEqual([], host.restart())
        self.assertEqual({'d0': 'active'}, host.states())

    def test_one_that_may_be_used_again_is_handed_out(self):
        host = self.useFixture(fixtures.Host(devices=1))
        host.machine.change(DeviceKey('vpmem', 'd0'), assignable=False)
        host.restart()
        host.machine.change(DeviceKey('vpmem', 'd0'), assignable=True)
        host.audit()
        self.assertEqual({'d0': FREE}, host.states())


class UnreadableKindTestCase(base.TestCase):

    def test_a_claim_for_devices_that_cannot_be_read_is_refused_and_never_skipped(self):
        host = self.useFixture(fixtures.Host(devices=1))
        provider = host.manager.providers()[0].uuid
        host.machine.unknown_kinds['vpmem'] = 'ndctl failed'
        host.restart()
        allocations = {provider: {'resources': {fixtures.PMEM: 1, 'VCPU': 2}}}
        self.assertRaises(exception.NoFit, host.manager.instance_claim, None,
                          Instance(flavor=Flavor()), host.manager.nodename, allocations)
