"""Devices that fail for a cause of their own: claims go on with others, and the failing ones wait for a while."""

from __future__ import annotations

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.engine import findings
from devicetrack.engine.withholding import Target
from devicetrack.objects import DeviceRequest
from devicetrack.objects.values import DeviceKey
from devicetrack.testing import fake_guests
from devicetrack.testing import fixtures
from devicetrack.testing.fixtures import FREE
from devicetrack.testing.fixtures import Instance
from devicetrack.testing.fixtures import PMEM
from devicetrack.testing.fixtures import WITHHELD
from devicetrack.tests import base

EINVAL = 'Invalid argument'
NOT_REALIZED = WITHHELD + vocabulary.NOT_REALIZED
D0 = DeviceKey('vpmem', 'd0')
P0 = Target.named('mdev', 'p0', parent=True)


class HostTestCase(base.TestCase):

    def host(self, **facts: object) -> fixtures.Host:
        host: fixtures.Host = self.useFixture(fixtures.Host(**facts))       # type: ignore[arg-type]
        return host

    def found(self, host: fixtures.Host) -> list[tuple[str, str]]:
        """The findings of the next audit about devices that could not be made ready."""
        return [(one.device.identifier, one.detail) for one in host.audit() if one.kind == findings.NOT_REALIZED]

    def reasons(self, host: fixtures.Host) -> dict[str, str]:
        return {str(one.target): one.causes[vocabulary.NOT_REALIZED].text for one in host.manager.operator.withheld()
                if vocabulary.NOT_REALIZED in one.causes}


class ParentTestCase(HostTestCase):
    """Three parents, of which one shows room and cannot make a device."""

    scenarios = base.table(*((policy, policy) for policy in vocabulary.SELECTION_POLICIES), names=('policy',))

    def staged(self, **broken: str) -> fixtures.Host:
        host = self.host(parents={'p0': 2, 'p1': 2, 'p2': 2}, policy=self.policy)
        host.machine.broken = dict(broken)
        return host

    def test_every_boot_that_the_others_have_room_for_succeeds(self) -> None:
        host = self.staged(p0=EINVAL)
        for _ in range(4):
            host.spawn(vgpu=1)
        self.assertEqual((4, {'p1', 'p2'}), (len(host.records()), {row.parent for row in host.records()}))
        error = self.assertRaises(exception.NoFit, host.spawn, vgpu=1)
        self.assertIn('2 withheld (not realized)', str(error))
        self.assertIn(f'parent mdev/p0: {EINVAL}', str(error))

    def test_several_in_one_boot_are_passed_over(self) -> None:
        host = self.staged(p0=EINVAL, p1='Input/output error')
        instance = host.spawn(vgpu=2)
        self.assertEqual([('p2', instance.uuid)] * 2, [(row.parent, row.instance_uuid) for row in host.records()])

    def test_it_makes_no_more_and_what_it_has_can_be_had(self) -> None:
        host = self.host(parents={'p0': 2}, policy=self.policy)
        there = host.machine.add_mdev('p0')
        host.audit()
        host.machine.broken['p0'] = EINVAL
        instance = Instance()
        claim = host.claim(instance, vgpu=2)
        self.assertRaises(exception.NoFit, host.manager.realize, host.context, instance)
        claim.abort()
        self.assertEqual(1, host.free())
        self.assertEqual({there.identifier: host.spawn(vgpu=1).uuid}, host.owners())

    def test_an_audit_names_it_and_placement_hears_of_it(self) -> None:
        host = self.staged(p0=EINVAL)
        for _ in range(3):
            host.spawn(vgpu=1)
        self.assertEqual([('p0', f'this parent could not make a device: {EINVAL}')], self.found(host))
        reserved = {one.name: one.reserved['VGPU'] for one in host.manager.providers() if 'VGPU' in one.totals}
        self.assertEqual({'host_p0': 2, 'host_p1': 0, 'host_p2': 0}, reserved)
        [mark] = [one for one in host.manager.operator.withheld() if one.target == P0]
        self.assertEqual((EINVAL, vocabulary.BY_HOST), mark.causes[vocabulary.NOT_REALIZED][1:3])
        self.assertGreater(mark.causes[vocabulary.NOT_REALIZED].since, 0)


class OfOneProviderTestCase(HostTestCase):

    def test_if_placement_chose_the_provider_the_claim_fails_and_says_why(self) -> None:
        host = self.host(parents={'p0': 2, 'p1': 2})
        host.machine.broken['p0'] = EINVAL
        [provider] = [one.uuid for one in host.manager.providers() if one.name == 'host_p0']
        instance = Instance()
        with host.claim(instance, {provider: {'resources': {'VGPU': 1}}}) as claim:
            error = self.assertRaises(exception.NoFit, host.manager.realize, host.context, instance)
            self.assertIn(f'parent mdev/p0: {EINVAL}', str(error))
            self.assertIsInstance(error.__cause__, exception.RealizeFailed)
            claim.abort()
        self.assertEqual([], host.records())


class DeviceTestCase(HostTestCase):
    """A device that exists and cannot be made ready."""

    def setUp(self) -> None:
        super().setUp()
        self.here = self.host(devices=3)
        self.here.machine.broken['d0'] = 'it does not answer'

    def test_another_one_takes_its_place_and_it_goes_back_and_is_withheld(self) -> None:
        host = self.here
        instance = host.spawn(pmem=1)
        host.wait()
        self.assertEqual({'d1': instance.uuid}, host.owners())
        self.assertEqual({'d0': NOT_REALIZED, 'd1': 'active', 'd2': FREE}, host.states())
        self.assertEqual({'vpmem/d0': 'it does not answer'}, self.reasons(host))
        self.assertEqual([('d0', 'it could not be made ready for a guest: it does not answer')], self.found(host))

    def test_each_device_of_a_claim_is_replaced_in_its_place(self) -> None:
        host, instance = self.here, Instance()
        host.spawn(instance, pmem=2)
        host.wait()
        self.assertEqual([('d2', 0), ('d1', 1)], sorted(
            ((row.identifier, row.position) for row in host.records()), key=lambda one: one[1]))
        self.assertEqual(['d2', 'd1'], [one.identifier for one in host.manager.assignments(instance.uuid)])

    def test_without_another_one_it_stays_the_claims_until_the_claim_is_given_back(self) -> None:
        host, instance = self.here, Instance()
        claim = host.claim(instance, pmem=3)
        error = self.assertRaises(exception.NoFit, host.manager.realize, host.context, instance)
        self.assertIn('vpmem/d0: it does not answer', str(error))
        self.assertEqual(dict.fromkeys(('d0', 'd1', 'd2'), instance.uuid), host.owners())
        claim.abort()
        self.assertEqual(([], {'d0': NOT_REALIZED, 'd1': FREE, 'd2': FREE}), (host.records(), host.states()))
        self.assertIn('vpmem/d0: it does not answer', str(self.assertRaises(
            exception.NoFit, host.claim, Instance(), pmem=3)))

    def test_it_is_withheld_before_the_first_claim_of_the_next_start(self) -> None:
        self.here.spawn(pmem=1)
        self.here.restart()
        self.assertEqual(NOT_REALIZED, self.here.states()['d0'])
        self.assertEqual({'vpmem/d0': 'it does not answer'}, self.reasons(self.here))

    def test_a_boot_of_the_host_lets_claims_try_it(self) -> None:
        self.here.spawn(pmem=1)
        self.here.machine.reboot()
        self.here.restart()
        self.assertEqual(FREE, self.here.states()['d0'])

    def test_a_guests_own_device_is_never_replaced(self) -> None:
        host = self.here
        host.machine.broken.clear()
        instance = host.spawn(pmem=1)
        host.stop_guest(instance.uuid)
        host.machine.broken['d0'] = 'it does not answer'
        self.assertRaises(exception.RealizeFailed, host.manager.realize, host.context, instance)
        self.assertEqual({'d0': instance.uuid}, host.owners())
        host.machine.broken.clear()
        host.manager.realize(host.context, instance)
        self.assertEqual({}, self.reasons(host))

    def test_the_history_tells_it_once(self) -> None:
        self.here.spawn(pmem=1)
        self.here.wait()
        events = [event.event.event for event in self.here.store.store.events_of_device('d0', 0, 1 << 62)]
        self.assertEqual(1, events.count('withheld'))


class TriedAgainTestCase(HostTestCase):

    def setUp(self) -> None:
        super().setUp()
        self.here = self.host(parents={'p0': 1, 'p1': 8})
        self.here.machine.broken['p0'] = EINVAL
        self.here.spawn(vgpu=1)

    def audits_until_it_is_tried(self) -> int:
        """Let audits pass until claims may try the parent again, and let it fail again."""
        audits = 0
        while self.reasons(self.here):
            self.here.audit()
            audits += 1
        self.here.delete(self.here.spawn(vgpu=1))
        self.assertEqual(1, len(self.reasons(self.here)))
        return audits

    def test_after_each_failure_more_audits_pass(self) -> None:
        self.assertEqual([2, 4, 8, 16], [self.audits_until_it_is_tried() for _ in range(4)])

    def test_a_restart_forgets_no_failure(self) -> None:
        self.assertEqual([2, 4], [self.audits_until_it_is_tried() for _ in range(2)])
        self.here.restart()
        self.assertEqual({'parent mdev/p0': f'{EINVAL}; tried 3 times'}, self.reasons(self.here))
        self.assertEqual(8, self.audits_until_it_is_tried())

    def test_at_once_when_the_host_reports_a_change(self) -> None:
        self.here.audit()
        self.here.machine.broken.clear()
        self.here.machine.parents['p0'].units = 2
        self.here.audit()
        self.assertEqual({}, self.reasons(self.here))
        self.here.spawn(vgpu=1)
        self.assertEqual({'p0', 'p1'}, {row.parent for row in self.here.records()})

    def test_a_success_forgets_the_failures(self) -> None:
        self.audits_until_it_is_tried()
        while self.reasons(self.here):
            self.here.audit()
        self.here.machine.broken.clear()
        instance = self.here.spawn(vgpu=1)
        self.here.delete(instance)
        self.here.machine.broken['p0'] = EINVAL
        self.here.spawn(vgpu=1)
        self.assertEqual({'parent mdev/p0': EINVAL}, self.reasons(self.here))

    def test_a_failure_of_a_kind_that_could_not_be_read_since_stays(self) -> None:
        self.here.machine.unknown_kinds['mdev'] = 'no answer'
        self.here.audit()
        self.assertEqual(1, len(self.reasons(self.here)))


class NobodysFaultTestCase(HostTestCase):
    """Errors of the whole host withhold nothing."""

    scenarios = base.table(
        ('no answer', exception.HypervisorUnreachable('fake', 'gone')),
        ('unknown', exception.RealizeUnknown('vpmem', 'd0', 'the host cannot be read')),
        ('a command', exception.CommandFailed('ndctl', 'no memory')),
        names=('error',))

    def test_nothing_is_withheld(self) -> None:
        host, instance = self.host(devices=2), Instance()
        host.claim(instance, pmem=1)
        host.machine.before('realize', self.error, times=1)
        self.assertRaises(type(self.error), host.manager.realize, host.context, instance)
        self.assertEqual(({'d0': instance.uuid}, {}), (host.owners(), self.reasons(host)))


    def test_somebody_who_works_on_a_device_costs_the_claim_only_that_device(self) -> None:
        host, busy = self.host(devices=2), exception.DeviceBusy(*D0, 'another process holds its lock')
        host.machine.before('realize', busy, times=1)
        host.machine.before('unclaim', busy, times=1)
        instance = host.spawn(pmem=1)
        self.assertIn('d1', host.owners())
        self.assertEqual({}, self.reasons(host))
        host.wait()                             # the first try to release it has ended
        host.audit()
        host.wait()
        self.assertEqual(({'d1': instance.uuid}, FREE), (host.owners(), host.states()['d0']))


class UsedByOthersTestCase(HostTestCase):
    """What others do with a device that was only claimed is theirs."""

    scenarios = base.table(
        ('in use', exception.DeviceInUse('vpmem', 'd0', 'a process has it open')),
        ('written', exception.NotProven('vpmem', 'd0', 'somebody wrote to it')),
        names=('error',))

    def setUp(self) -> None:
        super().setUp()
        self.here = self.host(devices=2)
        self.here.machine.contents[D0] = b'of a stranger'

    def use(self) -> None:
        path = fixtures.path_of(self.here.machine.devices[D0])
        self.here.machine.start_guest('stranger', [fake_guests.element('vpmem', path)])

    def check_is_untouched(self) -> None:
        self.here.wait()
        self.assertNotIn('d0', self.here.owners())
        self.here.stop_guest('stranger')
        self.here.delete_guest('stranger')
        self.here.restart()
        self.here.audit()
        self.assertEqual(b'of a stranger', self.here.machine.contents[D0])
        self.assertIn(vocabulary.UNPROVEN, self.here.states()['d0'])

    def test_it_has_not_failed_by_itself(self) -> None:
        for _attempt in range(3):
            self.here.machine.before('realize', self.error, times=1)
            self.here.delete(self.here.spawn(pmem=1))
            self.here.wait()
            self.assertEqual({'vpmem/d0': self.error.reason}, self.reasons(self.here))
            self.here.audit()
            self.assertEqual({}, self.reasons(self.here))
            self.here.machine.unproven.discard(D0)      # a person has cleaned it
            self.here.audit()
            self.assertEqual(FREE, self.here.states()['d0'])

    def test_a_boot_takes_another_one_and_never_wipes_it(self) -> None:
        self.here.machine.before('realize', self.use, times=1)
        self.here.machine.before('realize', self.error, times=1)
        instance = self.here.spawn(pmem=1)
        self.check_is_untouched()
        self.assertEqual({'d1': instance.uuid}, self.here.owners())

    def test_a_move_that_gets_no_other_leaves_nothing_in_the_store(self) -> None:
        self.here.machine.before('realize', self.error, times=2)       # also for the device in its place
        instance = Instance(host='elsewhere')
        migration = fixtures.Migration('elsewhere', self.here.name, instance.uuid)
        request = fixtures.a_request(pmem=1)
        with self.assertRaises(exception.NoFit), \
                self.here.manager.rebuild_claim(None, instance, self.here.name, request, migration=migration):
            self.here.manager.realize(None, instance)
        self.assertEqual(([], []), (self.here.records(), self.here.store.contexts(self.here.manager.state().host_uuid)))

    def test_a_claim_that_is_given_back_never_wipes_it(self) -> None:
        claim = self.here.claim(Instance(), pmem=1)
        self.use()
        claim.abort()
        self.check_is_untouched()


class LeftBehindTestCase(HostTestCase):

    def test_no_boot_leaves_a_device_on_its_way_back(self) -> None:
        """The physical function is out of reach: neither realize nor the release can do anything."""
        host = self.host()
        for number in range(4):
            host.machine.add_function(f'0000:03:00.{number}', 'CUSTOM_FUNCTION')
        host.audit()
        request = DeviceRequest.of(('CUSTOM_FUNCTION', 1))
        for number in range(3):
            name = f'0000:03:00.{number}'
            host.machine.broken[name] = 'its physical function is not here'
        host.spawn(Instance(), request)
        host.wait()
        self.assertEqual(['0000:03:00.3'], list(host.owners()))

    def test_what_was_only_claimed_and_is_gone_leaves_no_row(self) -> None:
        host = self.host(devices=1)
        claim = host.claim(Instance(), pmem=1)
        host.machine.remove(D0)
        claim.abort()
        self.assertEqual(([], []), (host.records(), host.audit()))


class PMEMTestCase(HostTestCase):

    def test_the_class_stays(self) -> None:
        """A claim of one class never gets a device of another."""
        host = self.host(devices=1)
        host.machine.add_namespace('small', 'SMALL')
        host.audit()
        host.machine.broken['d0'] = 'it does not answer'
        instance = Instance()
        host.claim(instance, DeviceRequest.of((PMEM, 1)))
        self.assertRaises(exception.NoFit, host.manager.realize, host.context, instance)
