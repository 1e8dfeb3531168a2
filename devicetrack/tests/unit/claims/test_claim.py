"""Taking and giving back, as a compute service does it: the real store, a host in memory."""

import logging
import time
from unittest import mock
import uuid

import fixtures as fixtures_of_tests

from devicetrack import exception
from devicetrack import objects
from devicetrack.objects import details
from devicetrack.testing import fake
from devicetrack.testing import fixtures
from devicetrack.testing.fixtures import FREE
from devicetrack.testing.fixtures import Instance
from devicetrack.testing.fixtures import PMEM
from devicetrack.testing.fixtures import VGPU
from devicetrack.tests import base

OTHER = str(uuid.uuid4())
UNREACHABLE = exception.HypervisorUnreachable('fake', 'restarting')


class BootFails(Exception):
    """Stands for whatever a compute service raises."""


class HostTestCase(base.TestCase):

    def host(self, **kwargs):
        return self.useFixture(fixtures.Host(**kwargs))


class StartedFailsTestCase(HostTestCase):
    """An error of ``started`` in the block of a claim: the devices of a guest that may run stay its own."""

    scenarios = base.table(
        ('the guest runs', lambda machine, uuid: None, True),
        ('nobody can say', lambda machine, uuid: machine.before('get_usage', UNREACHABLE, times=1), True),
        ('another guest cannot be read', lambda machine, uuid: (
            machine.delete_guest(uuid), machine.unknown_domains.update({OTHER: 'no XML'})), True),
        ('the guest is gone', lambda machine, uuid: machine.delete_guest(uuid), False),
        names=('happens', 'stays'))

    def test_the_claim(self):
        host, instance = self.host(devices=1), Instance()
        host.machine.start_guest(OTHER, ())
        claim = host.claim(instance, pmem=1)
        host.manager.realize(self.context, instance)
        host.machine.start_guest(instance.uuid, host.manager.guest_config(instance).devices)
        host.store.before('write', exception.StoreUnavailable('store', 'gone'), times=1)

        def block():
            with claim:
                try:
                    host.manager.started(self.context, instance)
                finally:
                    self.happens(host.machine, instance.uuid)

        self.assertRaises(exception.StoreUnavailable, block)
        self.assertEqual({'d0': 'claimed' if self.stays else FREE}, host.states())


class LifeTestCase(HostTestCase):

    def test_from_claim_to_release(self):
        host, instance = self.host(devices=2), Instance()
        claim = host.claim(instance, pmem=1)
        self.assertEqual({'d0': 'claimed', 'd1': FREE}, host.states())
        self.assertEqual(['d0'], [one.identifier for one in claim.resources])
        self.assertIs(claim.resources, instance.resources)
        with claim:
            host.manager.realize(self.context, instance)
            host.machine.start_guest(instance.uuid, host.manager.guest_config(instance).devices)
            host.manager.started(self.context, instance)
        self.assertEqual({'d0': 'active', 'd1': FREE}, host.states())
        host.delete(instance)
        self.assertEqual({'d0': FREE, 'd1': FREE}, host.states())

    def test_what_a_guest_left_is_gone_before_the_next_owner(self):
        host = self.host(devices=1)
        instance = host.spawn(pmem=1)
        key = host.records()[0].key
        host.machine.write(key, b'secret')
        host.delete(instance)
        self.assertEqual(b'', host.machine.read(key))

    def test_realize_and_started_may_be_said_twice(self):
        host = self.host(devices=1, parents={'p0': 1})
        instance = host.spawn(pmem=1, vgpu=1)
        self.assertEqual(host.manager.realize(self.context, instance), host.manager.started(self.context, instance))
        self.assertEqual({'active'}, set(host.states().values()))

    def test_the_assignments_of_an_instance_are_what_is_recorded(self):
        host = self.host(devices=1)
        instance = host.spawn(pmem=1)
        self.assertEqual([('d0', 'active')],
                         [(one.identifier, one.state) for one in host.manager.assignments(instance.uuid)])
        self.assertEqual([], list(host.manager.assignments(str(uuid.uuid4()))))

    def test_release_twice_is_harmless(self):
        host = self.host(devices=1)
        instance = host.spawn(pmem=1)
        host.delete(instance)
        host.delete(instance)
        self.assertEqual({'d0': FREE}, host.states())


class StrictInstance(Instance):
    """An instance that, like a versioned object that lacks a field, refuses to have its devices set."""

    def __setattr__(self, name, value):
        if name in ('resources', 'migration_context') and 'migration_context' in vars(self):
            raise AttributeError(name)
        super().__setattr__(name, value)


class StrictInstanceTestCase(HostTestCase):

    def test_a_claim_that_its_instance_does_not_take_is_given_back(self):
        host, instance = self.host(devices=1, parents={'p0': 1}), StrictInstance()
        self.assertRaises(AttributeError, host.claim, instance, pmem=1, vgpu=1)
        self.assertEqual(([], {'d0': FREE}, 2), (host.records(), host.states(), host.free()))
        host.claim(Instance(), pmem=1, vgpu=1)

    def test_so_is_a_claim_for_a_move_and_what_it_made_old_is_current_again(self):
        host = self.host(devices=2)
        guest = host.spawn(pmem=1)
        instance = StrictInstance(**vars(guest))
        before = [(row.identifier, row.role, row.state, row.migration_uuid) for row in host.records()]
        self.assertRaises(AttributeError, host.resize, instance, pmem=1)
        self.assertEqual(before, [(row.identifier, row.role, row.state, row.migration_uuid) for row in host.records()])
        self.assertEqual({'d0': 'active', 'd1': FREE}, host.states())
        self.assertEqual([], host.store.contexts(host.manager.state().host_uuid))
        host.resize(guest, pmem=1)


class NothingToClaimTestCase(HostTestCase):

    scenarios = base.table(
        ('none', None),
        ('empty', {}),
        ('a request for nothing', objects.DeviceRequest.of()),
        ('classes that are not ours', {'somebody': {'resources': {'VCPU': 4}}}),
        names=('asked',))

    def test_claims_nothing_and_writes_nothing(self):
        host, instance = self.host(devices=1), Instance()
        claim = host.manager.instance_claim(self.context, instance, 'host', self.asked)
        self.assertEqual([], list(claim.resources))
        self.assertEqual([], list(instance.resources))
        claim.abort()
        self.assertEqual([], host.store.written)
        self.assertEqual(((), ''), host.manager.guest_config(instance))


class AllocationsTestCase(HostTestCase):

    def allocations(self, host, **amounts):
        root = next(provider for provider in host.manager.providers() if provider.parent_uuid is None)
        return {root.uuid: {'resources': amounts}}

    def test_of_placement_are_claimed(self):
        host, instance = self.host(devices=2), Instance()
        host.claim(instance, self.allocations(host, VCPU=4, **{PMEM: 2}))
        self.assertEqual({'d0': instance.uuid, 'd1': instance.uuid}, host.owners())

    def test_of_a_child_provider_come_from_its_parent(self):
        host, instance = self.host(parents={'p0': 2, 'p1': 2}), Instance()
        of_p1 = next(provider for provider in host.manager.providers() if provider.name == 'host_p1')
        host.claim(instance, {of_p1.uuid: {'resources': {VGPU: 2}}})
        self.assertEqual({'p1'}, {record.parent for record in host.records()})

    def test_of_a_node_without_children_in_placement_come_from_any_parent(self):
        host, instance = self.host(devices=1, parents={'p0': 2, 'p1': 1}), Instance()
        flat = self.allocations(host, **{PMEM: 1, VGPU: 3})
        host.claim(instance, flat)
        self.assertEqual(['p0', 'p0', 'p1'], sorted(record.parent for record in host.records()
                                                    if record.kind == 'mdev'))
        self.assertRaises(exception.NoFit, host.claim, Instance(), flat)

    def test_come_in_the_order_of_hw_pmem(self):
        host = self.host()
        for name, label in (('a', '4GB'), ('b', 'SMALL'), ('c', '4GB'), ('d', 'SMALL')):
            host.machine.add_namespace(name, label)
        host.audit()
        instance = Instance(flavor=fixtures.Flavor({'hw:pmem': 'SMALL,4GB,4GB,SMALL'}))
        host.claim(instance, self.allocations(host, **{PMEM: 2, 'CUSTOM_PMEM_NAMESPACE_SMALL': 2}))
        self.assertEqual(['b', 'a', 'c', 'd'], [record.identifier for record in host.records()])
        host.manager.realize(self.context, instance)
        paths = list(fake.addresses_in(host.manager.guest_config(instance).devices))
        self.assertEqual([one.details.devpath for one in instance.resources], paths)

    def test_that_hold_less_than_the_flavor_needs_are_refused(self):
        host = self.host(devices=2)
        instance = Instance(flavor=fixtures.Flavor({'hw:pmem': '4GB,4GB'}))
        self.assertRaises(exception.BadRequest, host.claim, instance, self.allocations(host, **{PMEM: 1}))
        self.assertEqual({'d0': FREE, 'd1': FREE}, host.states())

    def test_of_a_flavor_without_placement(self):
        host = self.host(devices=1, parents={'p0': 1})
        host.claim(Instance(), objects.DeviceRequest.from_extra_specs({'hw:pmem': '4GB', 'resources:VGPU': '1'}))
        self.assertEqual({'claimed'}, {record.state for record in host.records()})


class BadRequestTestCase(HostTestCase):

    scenarios = base.table(
        ('no mapping', ['VGPU'], exception.BadRequest),
        ('no resources', {'p': {}}, exception.BadRequest),
        ('a negative amount', {'p': {'resources': {PMEM: -1}}}, exception.BadRequest),
        ('a provider that nobody knows', {'p': {'resources': {PMEM: 1}}}, exception.UnknownProvider),
        ('a request for none', objects.DeviceRequest.of((PMEM, 0)), exception.BadRequest),
        ('a request at an unknown provider', objects.DeviceRequest.of((PMEM, 1, str(uuid.uuid4()))),
         exception.UnknownProvider),
        ('too many', objects.DeviceRequest.of((PMEM, 3)), exception.NoFit),
        ('a class that nobody has', objects.DeviceRequest.of(('CUSTOM_ODD', 1)), exception.NoFit),
        names=('asked', 'error'))

    def test_changes_nothing(self):
        host, instance = self.host(devices=2), Instance()
        refused = self.assertRaises(self.error, host.claim, instance, self.asked)
        if isinstance(refused, exception.NoFit):
            self.assertRegex(refused.for_tenant,
                             r'^Not enough devices are free for the instance\. It needs: (\d )?CUSTOM_[A-Z0-9_]+\.$')
        self.assertEqual({'d0': FREE, 'd1': FREE}, host.states())
        self.assertEqual([], host.store.written)
        self.assertIsNone(instance.resources)


class OtherHostTestCase(HostTestCase):
    """Allocations that name providers of this host and of another one."""

    def setUp(self):
        super().setUp()
        self.one = self.host(devices=2)
        [here] = [one.uuid for one in self.one.manager.providers()]
        self.allocations = {here: {'resources': {PMEM: 1}}, OTHER: {'resources': {PMEM: 1}}}

    def moving(self):
        instance = Instance(host='elsewhere')
        return instance, fixtures.Migration('elsewhere', 'host', instance.uuid)

    def test_a_claim_takes_what_is_of_this_host_and_says_what_it_left_out(self):
        logged = self.useFixture(fixtures_of_tests.FakeLogger(level=logging.DEBUG))
        claim = self.one.claim(Instance(), self.allocations)
        self.assertEqual((1, (OTHER,)), (len(claim.resources), claim.skipped))
        self.assertIn(f'providers of other hosts: {OTHER}', logged.output)

    def test_so_do_claims_of_moves(self):
        manager = self.one.manager
        for claim in (manager.resize_claim, manager.rebuild_claim):
            instance, migration = self.moving()
            with claim(None, instance, 'host', self.allocations, migration) as made:
                self.assertEqual((1, (OTHER,)), (len(made.resources), made.skipped))
            made.abort()

    def test_so_does_the_claim_of_a_live_migration(self):
        source = self.host(devices=1, name='elsewhere')
        instance = source.spawn(pmem=1)
        instance.host = 'elsewhere'
        migration = fixtures.Migration('elsewhere', 'host', instance.uuid)
        claim = self.one.manager.live_migration_claim(None, instance, 'host', self.allocations, migration)
        self.assertEqual((1, (OTHER,)), (len(claim.resources), claim.skipped))

    def test_one_that_left_nothing_out_says_so(self):
        del self.allocations[OTHER]
        self.assertEqual((), self.one.claim(Instance(), self.allocations).skipped)
        self.assertEqual((), self.one.claim(Instance(), pmem=1).skipped)
        self.assertEqual((), self.one.claim(Instance(), None).skipped)

    def test_nothing_but_other_hosts_is_an_error_of_every_claim(self):
        [here] = set(self.allocations) - {OTHER}
        del self.allocations[here]
        manager = self.one.manager
        for claim in (manager.resize_claim, manager.rebuild_claim, manager.live_migration_claim):
            instance, migration = self.moving()
            error = self.assertRaises(exception.UnknownProvider, claim, None, instance, 'host', self.allocations,
                                      migration)
            self.assertEqual((OTHER, (PMEM,)), (error.provider_uuid, error.resource_classes))
        self.assertRaises(exception.UnknownProvider, self.one.claim, Instance(), self.allocations)
        self.assertEqual({'d0': FREE, 'd1': FREE}, self.one.states())

    def test_a_host_that_could_not_be_read_leaves_nothing_out_that_may_be_its_own(self):
        self.one.machine.unknown_kinds['mdev'] = 'no answer'
        self.one.audit()
        self.assertRaises(exception.UnknownProvider, self.one.claim, Instance(), self.allocations)


class ParentGoneTestCase(HostTestCase):

    def test_does_not_fit_before_and_after_a_restart(self) -> None:
        host = self.host(parents={'p0': 2, 'p1': 2})
        [gone] = [one.uuid for one in host.manager.providers() if one.name.endswith('p1')]
        request = objects.DeviceRequest.of((VGPU, 1, gone))
        host.machine.parents.pop('p1')
        host.audit()
        self.assertRaises(exception.NoFit, host.claim, Instance(), request)
        host.restart()
        error = self.assertRaises(exception.NoFit, host.claim, Instance(), request)
        self.assertIn(f'{gone!r}: no provider of this host', str(error))


class NodeTestCase(HostTestCase):

    def test_an_unknown_node_is_refused_before_anything_changes(self):
        host = self.host(devices=1)
        self.assertRaises(exception.NodeUnavailable, host.manager.instance_claim, self.context, Instance(),
                          'elsewhere', fixtures.a_request(pmem=1))
        self.assertRaises(exception.NodeUnavailable, host.manager.update_available_resource, self.context,
                          'elsewhere')
        self.assertEqual([], host.store.written)


class SecondClaimTestCase(HostTestCase):

    def test_is_refused_with_what_the_first_has(self):
        host, instance = self.host(devices=3), Instance()
        host.claim(instance, pmem=2)
        error = self.assertRaises(exception.InstanceHasClaim, host.claim, instance, pmem=1)
        self.assertEqual({('vpmem', 'd0'), ('vpmem', 'd1')}, set(error.held))
        self.assertEqual({'d0': 'claimed', 'd1': 'claimed', 'd2': FREE}, host.states())

    def test_at_the_same_time_one_of_them_wins(self):
        for _ in range(20):
            host, instance = self.host(devices=4), Instance()
            answers = self.together(*[lambda host=host, instance=instance: host.claim(instance, pmem=1)] * 4)
            self.assertEqual(3, sum(isinstance(answer, exception.InstanceHasClaim) for answer in answers))
            self.assertEqual([instance.uuid], list(host.owners().values()))
            host.manager.close()

    def test_after_a_release_is_a_new_claim(self):
        host, instance = self.host(devices=1), Instance()
        host.spawn(instance, pmem=1)
        host.delete(instance)
        host.spawn(instance, pmem=1)
        self.assertEqual({'d0': 'active'}, host.states())


class AbortTestCase(HostTestCase):

    def test_an_error_in_the_block_gives_back_and_passes_through(self):
        host = self.host(devices=2)

        def boot():
            with host.claim(Instance(), pmem=2):
                raise BootFails
        self.assertRaises(BootFails, boot)
        self.assertEqual({'d0': FREE, 'd1': FREE}, host.states())

    def test_after_realize_too(self):
        host = self.host(parents={'p0': 2})

        def boot():
            instance = Instance()
            with host.claim(instance, vgpu=2):
                host.manager.realize(self.context, instance)
                raise BootFails
        self.assertRaises(BootFails, boot)
        self.assertEqual(({}, {}, 2), (host.states(), host.machine.devices, host.free()))

    def test_without_an_error_everything_stays(self):
        host = self.host(devices=1)
        with host.claim(Instance(), pmem=1):
            pass
        self.assertEqual({'d0': 'claimed'}, host.states())

    def test_twice_frees_nothing_that_another_took(self):
        host = self.host(devices=1)
        claim = host.claim(Instance(), pmem=1)
        claim.abort()
        other = Instance()
        host.claim(other, pmem=1)
        claim.abort()
        host.manager.abort_instance_claim(self.context, Instance(claim.instance.uuid), claim.claim_id)
        self.assertEqual({'d0': other.uuid}, host.owners())

    def test_frees_nothing_that_a_later_claim_of_its_instance_took(self):
        host, instance = self.host(devices=1), Instance()
        claim = host.claim(instance, pmem=1)
        host.manager.release(self.context, instance)
        host.claim(instance, pmem=1)
        claim.abort()
        self.assertEqual({'d0': instance.uuid}, host.owners())

    def test_with_the_guest_there_keeps_the_row_and_passes_the_error_through(self):
        host, instance = self.host(devices=1), Instance()

        def boot():
            with host.claim(instance, pmem=1):
                host.manager.realize(self.context, instance)
                host.machine.start_guest(instance.uuid, host.manager.guest_config(instance).devices)
                raise BootFails
        self.assertRaises(BootFails, boot)
        self.assertEqual({'d0': 'releasing'}, host.states())
        host.machine.delete_guest(instance.uuid)
        host.audit()
        self.assertEqual({'d0': FREE}, host.states())

    def test_an_error_of_the_driver_does_not_hide_the_first(self):
        for error in (exception.HypervisorUnreachable('fake', 'gone'), ZeroDivisionError()):
            host = self.host(devices=1)

            def boot(host=host, error=error):
                with host.claim(Instance(), pmem=1):
                    host.machine.before('unclaim', error, times=1)
                    raise BootFails
            self.assertRaises(BootFails, boot)
            self.assertEqual({'d0': 'releasing'}, host.states())
            host.audit()
            self.assertEqual({'d0': FREE}, host.states())

    def test_an_abort_that_failed_can_be_said_again(self):
        host = self.host(devices=1)
        claim = host.claim(Instance(), pmem=1)
        host.machine.before('unclaim', exception.HypervisorUnreachable('fake', 'gone'), times=1)
        self.assertRaises(exception.HypervisorUnreachable, claim.abort)
        claim.abort()
        self.assertEqual({'d0': FREE}, host.states())


class ReleaseTestCase(HostTestCase):

    def test_with_the_guest_there_is_refused_and_goes_on_later(self):
        host = self.host(devices=2)
        instance = host.spawn(pmem=1)
        error = self.assertRaises(exception.DeviceInUse, host.manager.release, self.context, instance)
        self.assertEqual('d0', error.identifier)
        self.assertEqual({'d0': 'releasing', 'd1': FREE}, host.states())
        host.audit()
        self.assertEqual({'d0': 'releasing', 'd1': FREE}, host.states())
        host.machine.delete_guest(instance.uuid)
        host.audit()
        self.assertEqual({'d0': FREE, 'd1': FREE}, host.states())

    def test_gives_what_can_be_given(self):
        host = self.host(devices=2)
        instance = host.spawn(pmem=2)
        host.machine.delete_guest(instance.uuid)
        host.machine.before('wipe', exception.UnclaimFailed('vpmem', 'd0', 'a bad block'), times=1)
        self.assertRaises(exception.UnclaimFailed, host.manager.release, self.context, instance)
        self.assertEqual({'d0': 'releasing', 'd1': FREE}, host.states())
        host.audit()
        self.assertEqual({'d0': FREE, 'd1': FREE}, host.states())

    def test_that_was_cut_after_the_wipe_wipes_again(self):
        host = self.host(devices=1)
        instance = host.spawn(pmem=1)
        host.machine.delete_guest(instance.uuid)
        host.machine.before('wiped', exception.UnclaimFailed('vpmem', 'd0', 'nothing proves it'), times=1)
        self.assertRaises(exception.UnclaimFailed, host.manager.release, self.context, instance)
        self.assertEqual({'d0': 'releasing'}, host.states())
        host.manager.release(self.context, instance)
        self.assertEqual(({'d0': FREE}, 2), (host.states(), host.machine.calls['wipe']))

    def test_of_a_device_that_another_one_replaced_keeps_it_held(self):
        host = self.host(devices=1)
        instance = host.spawn(pmem=1)
        key = host.records()[0].key
        host.machine.delete_guest(instance.uuid)
        host.machine.change(key, namespace_uuid=str(uuid.uuid4()))
        host.machine.write(key, b'of somebody else')
        self.assertRaises(exception.DeviceGone, host.manager.release, self.context, instance)
        self.assertEqual({'d0': 'releasing'}, host.states())
        self.assertEqual(b'of somebody else', host.machine.read(key))

    def test_while_nobody_can_read_a_domain_gives_nothing(self):
        host = self.host(devices=1)
        instance = host.spawn(pmem=1)
        host.machine.delete_guest(instance.uuid)
        host.machine.unknown_domains['x'] = 'garbage'
        self.assertRaises(exception.UnclaimFailed, host.manager.release, self.context, instance)
        self.assertEqual({'d0': 'releasing'}, host.states())

    def test_nothing_may_be_realized_or_started_after_it_began(self):
        host = self.host(devices=1)
        instance = host.spawn(pmem=1)
        self.assertRaises(exception.DeviceInUse, host.manager.release, self.context, instance)
        self.assertRaises(exception.InstanceNotClaimed, host.manager.realize, self.context, instance)
        self.assertRaises(exception.InvalidTransition, host.manager.started, self.context, instance)
        self.assertEqual(((), ''), host.manager.guest_config(instance))


class MdevTestCase(HostTestCase):

    def test_is_named_at_the_claim_and_made_at_realize(self):
        host, instance = self.host(parents={'p0': 1}), Instance()
        name = next(iter(host.claim(instance, vgpu=1).resources)).identifier
        self.assertEqual(({name: 'claimed'}, {}), (host.states(), host.machine.devices))
        host.manager.realize(self.context, instance)
        self.assertEqual([name], [key.identifier for key in host.machine.devices])

    def test_what_its_parent_can_still_make_counts_as_soon_as_it_is_made(self):
        host, instance = self.host(parents={'p0': 3}), Instance()
        host.claim(instance, vgpu=1)
        host.machine.add_mdev('p0')             # somebody else's, which no audit has seen
        self.assertEqual(2, host.free())
        host.manager.realize(self.context, instance)
        self.assertEqual(1, host.free())

    def test_that_was_made_is_removed(self):
        host = self.host(parents={'p0': 1})
        host.delete(host.spawn(vgpu=1))
        self.assertEqual(({}, 1), (host.machine.devices, host.free()))

    def test_that_was_there_is_handed_out_and_kept(self):
        host = self.host(parents={'p0': 1})
        key = host.machine.add_mdev('p0')
        host.audit()
        instance = host.spawn(vgpu=1)
        self.assertEqual({key.identifier: 'active'}, host.states())
        self.assertEqual('adopted', details.from_text(host.records()[0].details).origin)
        host.delete(instance)
        self.assertEqual(({key.identifier: FREE}, [key]), (host.states(), list(host.machine.devices)))

    def test_details_that_only_the_device_has_are_recorded_when_it_is_made(self):
        host, instance = self.host(parents={'p0': 1}), Instance()
        host.claim(instance, vgpu=1)
        self.assertIsNone(details.from_text(host.records()[0].details).iommu_group)
        resources = host.manager.realize(self.context, instance)
        found = details.from_text(host.records()[0].details)
        self.assertIsNotNone(found.iommu_group)
        self.assertEqual(('created', True), (found.origin, host.records()[0].was_realized))
        self.assertEqual(found, next(iter(resources)).details)

    def test_a_path_of_another_boot_is_recorded_anew(self):
        host = self.host(devices=2)
        instance = host.spawn(pmem=1)
        before = details.from_text(host.records()[0].details).devpath
        host.machine.reboot()
        host.restart()
        host.manager.realize(self.context, instance)
        after = details.from_text(host.records()[0].details).devpath
        self.assertNotEqual(before, after)
        self.assertEqual([after], list(fake.addresses_in(host.manager.guest_config(instance).devices)))


class FullParentTestCase(HostTestCase):

    def test_another_is_chosen_once(self):
        host, instance = self.host(parents={'p0': 1, 'p1': 1}), Instance()
        host.claim(instance, vgpu=1)
        host.machine.add_mdev('p0')
        host.manager.realize(self.context, instance)
        record = host.records()[0]
        self.assertEqual(('p1', 'claimed', 0), (record.parent, record.state, record.position))
        self.assertEqual({record.identifier: instance.uuid}, host.held())

    def test_when_none_is_left_everything_stays_held(self):
        host, instance = self.host(parents={'p0': 1}), Instance()
        host.claim(instance, vgpu=1)
        host.machine.add_mdev('p0', identifier='foreign')
        host.machine.start_guest('x', ['<device kind="mdev" address="foreign"/>'])
        self.assertRaises(exception.NoFit, host.manager.realize, self.context, instance)
        record = host.records()[0]
        self.assertEqual({record.identifier: instance.uuid}, host.held())
        host.manager.release(self.context, instance)
        self.assertEqual([], host.records())

    def test_the_new_choice_is_kept_when_its_commit_is_refused(self):
        host, instance = self.host(parents={'p0': 1, 'p1': 1}), Instance()
        host.claim(instance, vgpu=1)
        before = host.records()
        host.machine.add_mdev('p0')
        host.store.before('write', exception.StoreUnavailable('store', 'gone'))
        self.assertRaises(exception.StoreUnavailable, host.manager.realize, self.context, instance)
        self.assertEqual(before, host.records())
        host.manager.realize(self.context, instance)
        self.assertEqual('p1', host.records()[0].parent)
        host.delete(instance)

    def test_and_is_settled_when_nobody_knows(self):
        for lose in ('lose_answer', 'lose_commit'):
            host, instance = self.host(parents={'p0': 1, 'p1': 1}), Instance()
            host.claim(instance, vgpu=1)
            host.machine.add_mdev('p0', identifier='foreign')
            host.machine.start_guest('x', ['<device kind="mdev" address="foreign"/>'])
            getattr(host.store, lose)()
            self.assertRaises(exception.OutcomeUnknown, host.manager.realize, self.context, instance)
            host.audit()
            host.manager.realize(self.context, instance)
            self.assertEqual(['p1'], [record.parent for record in host.records()])
            self.assertEqual({record.identifier: instance.uuid for record in host.records()}, host.held())
            host.delete(instance)
            self.assertEqual(['foreign'], [key.identifier for key in host.machine.devices])
            host.manager.close()

    def test_a_realize_that_failed_goes_on_when_it_is_called_again(self):
        host, instance = self.host(devices=1, parents={'p0': 2}), Instance()
        host.claim(instance, pmem=1, vgpu=2)
        host.machine.before('created', exception.HypervisorUnreachable('fake', 'gone'), times=1)
        self.assertRaises(exception.HypervisorUnreachable, host.manager.realize, self.context, instance)
        self.assertEqual({'claimed'}, set(host.states().values()))
        host.manager.realize(self.context, instance)
        self.assertEqual(2, host.machine.parents['p0'].used)

    def test_one_too_many_for_a_parent_is_told_who_has_the_others(self) -> None:
        host = self.useFixture(fixtures.Host(parents={'p0': 3}))
        for _ in range(2):
            host.spawn(vgpu=1)
        host.machine.parents['p0'].used = 3
        error = self.assertRaises(exception.NoFit, host.spawn, vgpu=1)
        self.assertEqual('1 VGPU wanted, 0 of 2 free: 2 held by 2 instances, no room left on p0', str(error))


class ExplainTestCase(HostTestCase):

    def test_says_what_a_refusal_says_and_claims_nothing(self):
        host = self.host(devices=2)
        host.claim(Instance(), pmem=2)
        request = fixtures.a_request(pmem=1)
        explained = host.manager.explain(request)
        error = self.assertRaises(exception.NoFit, host.claim, Instance(), request)
        self.assertEqual(explained, list(error.shortages))
        self.assertEqual(f'1 {PMEM} wanted, 0 of 2 free: 2 held by 1 instance', str(error))

    def test_of_what_fits_says_so(self):
        host = self.host(devices=2)
        self.assertTrue(host.manager.explain(fixtures.a_request(pmem=2))[0].fits)
        self.assertEqual({'d0': FREE, 'd1': FREE}, host.states())


class OneGuestTestCase(HostTestCase):

    def test_from_claim_to_config_no_other_guest_is_read(self):
        host = self.host(devices=2)
        host.spawn(pmem=1)
        host.machine.calls.clear()
        instance = Instance()
        host.claim(instance, pmem=1)
        host.manager.realize(self.context, instance)
        host.manager.guest_config(instance)
        self.assertEqual({'realize': 1, 'guest_config': 1}, dict(host.machine.calls))


class ClockTestCase(HostTestCase):

    scenarios = base.table(
        ('backwards', 0),
        ('far back', -10 ** 9),
        ('forwards', 10 ** 11),
        names=('now',))

    def test_a_clock_that_jumps_changes_no_decision(self):
        host = self.host(devices=2, parents={'p0': 1})
        first = host.spawn(pmem=1)
        with mock.patch.object(time, 'time', autospec=True, return_value=max(0, self.now)):
            second = host.spawn(pmem=1, vgpu=1)
            host.delete(first)
            host.audit()
            host.restart()
        self.assertEqual({'d0': FREE, 'd1': 'active'},
                         {name: state for name, state in host.states().items() if name in ('d0', 'd1')})
        host.delete(second)
        self.assertEqual({'d0': FREE, 'd1': FREE}, host.states())
