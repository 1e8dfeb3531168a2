"""What the ledger makes of inventories, of devices that are withheld, and of what stands."""

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.engine import selection
from devicetrack.engine import snapshot
from devicetrack.objects import values
from devicetrack.tests import base
from devicetrack.tests.unit.engine import hosts
from devicetrack.tests.unit.engine.hosts import capacity
from devicetrack.tests.unit.engine.hosts import inventory
from devicetrack.tests.unit.engine.hosts import mdev
from devicetrack.tests.unit.engine.hosts import namespace
from devicetrack.tests.unit.engine.hosts import PMEM
from devicetrack.tests.unit.engine.hosts import provider
from devicetrack.tests.unit.engine.hosts import SMALL
from devicetrack.tests.unit.engine.hosts import VGPU
from devicetrack.tests.unit.engine.hosts import VGPU_B
from devicetrack.tests.unit.engine.hosts import wants


class InventoryTestCase(base.TestCase):

    def setUp(self):
        super().setUp()
        self.a, self.b = namespace('a'), namespace('b')
        self.ledger = hosts.ledger(self.a, self.b)

    def free(self):
        return {pool.resource_class: pool.room for pool in self.ledger.pools() if pool.room}

    def test_a_new_device_is_free(self):
        self.ledger.read_inventory(inventory(self.a, self.b, namespace('c')))
        self.assertEqual({PMEM: 3}, self.free())

    def test_a_free_device_that_vanishes_is_forgotten(self):
        self.ledger.read_inventory(inventory(self.b))
        self.assertEqual(['b'], hosts.taken(self.ledger.take('i', wants((PMEM, 1)))))
        self.assertIsNone(self.ledger.device(self.a.key))

    def test_a_free_device_that_another_replaces_is_forgotten(self):
        self.ledger.read_inventory(inventory(self.b, namespace('c')))
        self.assertEqual(['b', 'c'], hosts.taken(self.ledger.take('i', wants((PMEM, 2)))))
        self.assertIsNone(self.ledger.device(self.a.key))

    def test_a_free_device_that_vanishes_is_forgotten_though_one_that_was_given_back_was_still_seen(self):
        keys = self.ledger.take('i', wants((PMEM, 1))).keys
        before = self.ledger.now
        self.ledger.free(keys, removed=keys)
        self.ledger.read_inventory(inventory(self.a), before)
        self.assertEqual([], self.ledger.devices())

    def test_a_held_device_that_vanishes_stays_held(self):
        self.ledger.take('i', wants((PMEM, 1)))
        self.ledger.read_inventory(inventory(self.b))
        [device] = hosts.held(self.ledger, 'i')
        self.assertEqual((self.a.key, selection.HELD, {snapshot.GONE}), (device.key, device.state, device.withheld))

    def test_nothing_vanishes_from_a_kind_that_could_not_be_read(self):
        self.ledger.read_inventory(inventory(known=('mdev',)))
        self.assertEqual({PMEM: 2}, self.free())

    def test_a_device_counts_elsewhere_and_keeps_its_owner(self):
        [key] = self.ledger.take('i', wants((PMEM, 1))).keys
        moved = namespace('a', SMALL, parent='region1', numa_node=1, provider_name='region1')
        self.ledger.read_inventory(inventory(moved, self.b))
        device = self.ledger.device(key)
        self.assertEqual((SMALL, provider('region1'), 'i'),
                         (device.resource_class, device.provider_uuid, device.instance_uuid))
        self.ledger.free([key])
        self.assertEqual({PMEM: 1, SMALL: 1}, self.free())

    def test_it_is_held_there_and_nowhere_else(self):
        self.ledger.take('i', wants((PMEM, 1)))
        self.ledger.read_inventory(inventory(namespace('a', SMALL), self.b))
        self.assertEqual({PMEM: 0, SMALL: 1}, {pool.resource_class: pool.held for pool in self.ledger.pools()})

    def test_a_free_device_counts_elsewhere(self):
        self.ledger.read_inventory(inventory(namespace('a', SMALL), self.b))
        self.assertEqual({PMEM: 1, SMALL: 1}, self.free())
        self.assertEqual(['a'], hosts.taken(self.ledger.take('i', wants((SMALL, 1)))))

    def test_a_device_that_a_row_held_counts_elsewhere_and_is_free_there(self):
        keys = hosts.hold_rows(self.ledger, hosts.row(self.a, 'i'))
        self.ledger.read_inventory(inventory(namespace('a', SMALL), self.b))
        self.ledger.free(keys)
        self.assertEqual(['a'], hosts.taken(self.ledger.take('k', wants((SMALL, 1)))))

    def test_an_unhealthy_device_comes_back_by_itself(self):
        self.ledger.read_inventory(inventory(namespace('a', unhealthy='hot'), self.b))
        self.assertEqual({PMEM: 1}, self.free())
        self.ledger.read_inventory(inventory(self.a, self.b))
        self.assertEqual({PMEM: 2}, self.free())

    def test_what_was_given_back_meanwhile_is_known_better(self):
        ledger = hosts.ledger(capacity('p0', 2))
        [key] = hosts.name_all(ledger, ledger.take('i', wants((VGPU, 1)))).keys
        ledger.realized(key, 'details')
        before = ledger.now
        old = inventory(capacity('p0', 1), mdev(key.identifier, 'p0'))
        ledger.free([key], removed=[key])
        ledger.read_inventory(old, before)
        self.assertIsNone(ledger.device(key))
        self.assertEqual(2, ledger.pools()[0].room)

    def test_and_what_did_not_change_meanwhile_is_read(self):
        keys = self.ledger.take('i', wants((PMEM, 1))).keys
        before = self.ledger.now
        self.ledger.free(keys)
        self.ledger.read_inventory(inventory(namespace('a', unhealthy='hot'), namespace('b', unhealthy='hot'),
                                             namespace('c')), before)
        self.assertEqual([set(), {'unhealthy'}, set()], [
            self.ledger.device(namespace(name).key).withheld for name in 'abc'])

    def test_a_parent_that_has_more_room_than_was_read_is_chosen_by_it(self):
        ledger = hosts.ledger(capacity('p0', 2), capacity('p1', 0), mdev('a', 'p1'), policy='spread')
        keys = ledger.take('i', wants((VGPU, 1, provider('p1')))).keys
        before = ledger.now
        ledger.free(keys, removed=keys)
        # It can make two beside the device, which was there when it was read and is gone now.
        ledger.read_parents(inventory(capacity('p0', 2), capacity('p1', 2), mdev('a', 'p1')), before)
        self.assertEqual(['p1'], hosts.parents(ledger.take('k', wants((VGPU, 1)))))

    def test_what_was_made_and_removed_meanwhile_is_not_there_though_it_was_seen(self):
        ledger = hosts.ledger(capacity('p0', 2))
        before = ledger.now
        [key] = hosts.name_all(ledger, ledger.take('i', wants((VGPU, 1)))).keys
        ledger.realized(key, 'details')
        seen = inventory(capacity('p0', 1), mdev(key.identifier, 'p0'))
        ledger.free([key], removed=[key])
        ledger.read_inventory(seen, before)
        self.assertEqual((None, 2), (ledger.device(key), ledger.pools()[0].room))

    def test_a_look_that_begins_later_sees_what_is_there(self):
        ledger = hosts.ledger(capacity('p0', 2))
        [key] = hosts.name_all(ledger, ledger.take('i', wants((VGPU, 1)))).keys
        ledger.realized(key, 'details')
        ledger.free([key], removed=[key])
        ledger.read_inventory(inventory(capacity('p0', 1), mdev(key.identifier, 'p0')), ledger.now)
        self.assertEqual((key, 2), (ledger.devices()[0].key, ledger.pools()[0].room))

    def test_what_was_made_meanwhile_is_known_better(self):
        ledger = hosts.ledger(capacity('p0', 2))
        [key] = hosts.name_all(ledger, ledger.take('i', wants((VGPU, 1)))).keys
        before = ledger.now
        old = inventory(capacity('p0', 2))
        ledger.realized(key, 'details')
        ledger.read_inventory(old, before)
        self.assertFalse(ledger.device(key).withheld)
        self.assertEqual(1, ledger.pools()[0].room)


class ReadAgainTestCase(base.TestCase):
    """Whatever the host says otherwise than before is taken over, and nothing else changes."""

    scenarios = base.table(
        ('the same', {}),
        ('its details', {'details': 'others'}),
        ('that it is broken', {'unhealthy': 'hot'}),
        ('that somebody else made it', {'assignable': False}),
        ('its class', {'resource_class': SMALL}),
        ('its parent', {'parent': 'region1'}),
        ('its node', {'numa_node': 1}),
        ('its provider', {'provider': 'region1'}),
        names=('now',))

    def test_a_device_is_what_the_host_says_of_it_and_what_it_was_when_that_is_over(self):
        before, others = namespace('a'), (namespace('b'), mdev('m', 'p0'))
        after = before._replace(**self.now)
        ledger = hosts.ledger(before, *others)
        for device in (after, after, before):
            ledger.read_inventory(inventory(device, *others))
            read_first = hosts.ledger(device, *others)
            self.assertEqual(sorted(read_first.devices()), sorted(ledger.devices()))
            self.assertEqual([pool._replace(details='') for pool in read_first.pools()],
                             [pool._replace(details='') for pool in ledger.pools() if pool.total])


class WithheldTestCase(base.TestCase):

    def setUp(self):
        super().setUp()
        self.ledger = hosts.ledger(namespace('a'))
        self.key = values.DeviceKey('vpmem', 'a')

    def test_nobody_gets_it(self):
        self.ledger.withhold(self.key, vocabulary.FOREIGN)
        self.assertRaises(exception.NoFit, self.ledger.take, 'i', wants((PMEM, 1)))
        self.assertEqual([self.key], self.ledger.withheld(vocabulary.FOREIGN))

    def test_only_its_own_reason_admits_it(self):
        self.ledger.withhold(self.key, vocabulary.FOREIGN)
        self.ledger.admit(self.key, vocabulary.IN_DOUBT)
        self.assertRaises(exception.NoFit, self.ledger.take, 'i', wants((PMEM, 1)))
        self.ledger.admit(self.key, vocabulary.FOREIGN)
        self.ledger.take('i', wants((PMEM, 1)))

    def test_it_is_free_when_no_reason_is_left(self):
        for reason in (vocabulary.FOREIGN, vocabulary.IN_DOUBT):
            self.ledger.withhold_free([self.key], reason)
        self.ledger.admit(self.key, vocabulary.FOREIGN)
        error = self.assertRaises(exception.NoFit, self.ledger.take, 'i', wants((PMEM, 1)))
        self.assertEqual((('in doubt', 1),), error.shortages[0].withheld)
        self.ledger.admit(self.key, vocabulary.IN_DOUBT)
        self.ledger.take('i', wants((PMEM, 1)))

    def test_the_host_takes_back_only_what_it_said(self):
        self.ledger.withhold(self.key, vocabulary.IN_DOUBT)
        for device, reasons in ((namespace('a', unhealthy='hot')._replace(assignable=False),
                                 {'in doubt', 'unhealthy', 'made by others'}), (namespace('a'), {'in doubt'})):
            self.ledger.read_inventory(inventory(device))
            self.assertEqual(reasons, self.ledger.device(self.key).withheld)

    def test_what_was_made_for_its_owner_is_nobody_elses_when_it_is_given_back(self):
        theirs = namespace('a')._replace(assignable=False, details='{"origin":"created"}')
        for known in (False, True):
            ledger = hosts.ledger(theirs if not known else namespace('a'))
            keys = hosts.hold_rows(ledger, hosts.row(theirs, 'i'))
            ledger.read_inventory(inventory(theirs))
            self.assertEqual(frozenset(), ledger.device(theirs.key).withheld)
            ledger.free(keys)
            self.assertEqual((theirs.key,), ledger.take('k', wants((PMEM, 1))).keys)

    def test_what_existed_is_somebody_elses_again(self):
        theirs = namespace('a')._replace(assignable=False, details='{"origin":"adopted"}')
        ledger = hosts.ledger(theirs)
        keys = hosts.hold_rows(ledger, hosts.row(theirs, 'i'))
        ledger.read_inventory(inventory(theirs))
        ledger.free(keys)
        self.assertEqual({'made by others'}, ledger.device(theirs.key).withheld)
        self.assertRaises(exception.NoFit, ledger.take, 'k', wants((PMEM, 1)))

    def test_devices_that_are_well_share_one_empty_set(self):
        self.ledger.withhold(self.key, vocabulary.IN_DOUBT)
        self.ledger.admit(self.key, vocabulary.IN_DOUBT)
        ledger = hosts.ledger(namespace('b'))
        self.assertIs(self.ledger.device(self.key).withheld, ledger.devices()[0].withheld)

    def test_who_has_it_keeps_it(self):
        keys = self.ledger.take('i', wants((PMEM, 1))).keys
        self.ledger.withhold(self.key, vocabulary.FOREIGN)
        self.assertEqual('i', self.ledger.device(self.key).instance_uuid)
        self.ledger.free(keys)
        self.assertRaises(exception.NoFit, self.ledger.take, 'k', wants((PMEM, 1)))

    def test_a_held_one_is_not_withheld_as_free(self):
        self.ledger.take('i', wants((PMEM, 1)))
        self.ledger.withhold_free([self.key], vocabulary.IN_DOUBT)
        self.assertEqual([], self.ledger.withheld(vocabulary.IN_DOUBT))

    def test_an_unknown_one_is_no_error(self):
        nobody = values.DeviceKey('vpmem', 'nobody')
        for change in (self.ledger.withhold, self.ledger.admit, self.ledger.stand_down):
            change(nobody, vocabulary.FOREIGN)
        self.ledger.withhold_free([nobody], vocabulary.FOREIGN)
        for change in (self.ledger.releasing, self.ledger.free, self.ledger.trust_rows):
            change([nobody])
        self.ledger.realized(nobody, 'details')
        self.assertIsNone(self.ledger.exchange(nobody))
        self.assertIsNone(self.ledger.device(nobody))


class StandingTestCase(base.TestCase):
    """What an operator said, of a device or of a parent."""

    def setUp(self):
        super().setUp()
        self.ledger = hosts.ledger(namespace('a'), capacity('p0', 2), hosts.mdev('m', 'p0'))
        self.key = values.DeviceKey('vpmem', 'a')

    def room(self, resource_class=PMEM):
        return sum(pool.room for pool in self.ledger.pools() if pool.resource_class == resource_class)

    def test_nothing_but_standing_down_ends_it(self):
        self.ledger.stand(self.key, vocabulary.CORDONED)
        self.ledger.admit(self.key, vocabulary.CORDONED)
        self.ledger.read_inventory(inventory(namespace('a')))
        self.assertEqual((0, []), (self.room(), self.ledger.withheld(vocabulary.CORDONED)))
        self.ledger.stand_down(self.key, vocabulary.CORDONED)
        self.assertEqual(1, self.room())

    def test_it_outlasts_the_device(self):
        self.ledger.stand(self.key, vocabulary.CORDONED)
        for devices in ((), (namespace('a', unhealthy='hot'),), (namespace('a'),)):
            self.ledger.read_inventory(inventory(*devices))
            self.assertEqual(0, self.room())

    def test_it_is_there_before_the_device(self):
        key = values.DeviceKey('vpmem', 'b')
        self.ledger.stand(key, vocabulary.CORDONED)
        self.ledger.read_inventory(inventory(namespace('a'), namespace('b')))
        self.assertEqual((1, {'cordoned'}), (self.room(), self.ledger.device(key).withheld))

    def test_it_is_there_for_a_device_that_only_a_row_names(self):
        key = values.DeviceKey('vpmem', 'b')
        self.ledger.stand(key, vocabulary.CORDONED)
        self.ledger.hold([hosts.row(namespace('b'), 'i')])
        self.assertEqual({'cordoned', snapshot.GONE}, self.ledger.device(key).withheld)

    def test_whatever_else_withholds_such_a_device_it_is_withheld_for_that_too(self):
        ledger = hosts.Ledger(vocabulary.PACK, lambda _name: '')
        ledger.stand(self.key, vocabulary.CORDONED)
        ledger.hold([hosts.row(namespace('a'), 'i')._replace(provider_uuid='')])
        self.assertEqual({self.key: {'cordoned', 'no provider yet', snapshot.GONE}}, ledger.reasons())

    def test_it_is_there_for_a_device_that_gets_its_name_later(self):
        made = hosts.mdev('new', 'p0')
        self.ledger.stand(made.key, vocabulary.CORDONED)
        hold = self.ledger.take('i', wants((VGPU, 3)))
        self.ledger.name(hold, [one._replace(identifier=one.identifier or name)
                                for one, name in zip(hold.candidates, ('m', 'new', 'other'), strict=True)])
        self.ledger.realized(made.key, made.details)
        self.ledger.read_inventory(inventory(made, hosts.mdev('m', 'p0')))
        self.assertEqual({'cordoned'}, self.ledger.device(made.key).withheld)

    def test_a_parent_makes_no_more_and_its_devices_are_withheld(self):
        self.assertEqual(3, self.room(VGPU))
        self.ledger.close_parent('mdev', 'p0', vocabulary.CORDONED)
        error = self.assertRaises(exception.NoFit, self.ledger.take, 'i', wants((VGPU, 1)))
        [shortage] = error.shortages
        self.assertEqual((3, 0, (('cordoned', 3),), ()), (shortage.exist, shortage.free, shortage.withheld,
                                                         shortage.full_parents))
        self.assertEqual(f'1 {VGPU} wanted, 0 of 3 free: 3 withheld (cordoned)', str(shortage))
        self.ledger.reopen_parent('mdev', 'p0', vocabulary.CORDONED)
        self.assertEqual(3, self.room(VGPU))
        self.ledger.take('i', wants((VGPU, 3)))

    def test_what_comes_back_to_a_cordoned_parent_is_withheld(self):
        hold = hosts.name_all(self.ledger, self.ledger.take('i', wants((VGPU, 2))))
        self.ledger.close_parent('mdev', 'p0', vocabulary.CORDONED)
        self.ledger.free(hold.keys)
        self.assertEqual(0, self.room(VGPU))

    def test_another_kind_with_a_parent_of_this_name_goes_on(self):
        self.ledger.close_parent('vpmem', 'p0', vocabulary.CORDONED)
        self.assertEqual(3, self.room(VGPU))

    def test_a_parent_that_comes_later_is_cordoned(self):
        self.ledger.close_parent('mdev', 'p1', vocabulary.CORDONED)
        self.ledger.read_inventory(inventory(capacity('p1', 2), hosts.mdev('n', 'p1')))
        self.assertEqual(0, self.room(VGPU))

    def test_a_device_of_its_own_stays_cordoned_when_its_parent_is_not(self):
        key = values.DeviceKey('mdev', 'm')
        self.ledger.close_parent('mdev', 'p0', vocabulary.CORDONED)
        self.ledger.stand(key, vocabulary.CORDONED)
        self.ledger.reopen_parent('mdev', 'p0', vocabulary.CORDONED)
        self.assertEqual(2, self.room(VGPU))
        self.ledger.close_parent('mdev', 'p0', vocabulary.CORDONED)
        self.ledger.stand_down(key, vocabulary.CORDONED)
        self.assertEqual(0, self.room(VGPU))
        self.ledger.reopen_parent('mdev', 'p0', vocabulary.CORDONED)
        self.assertEqual(3, self.room(VGPU))

    def test_a_device_that_moves_follows_its_parents(self):
        self.ledger.close_parent('vpmem', 'region0', vocabulary.CORDONED)
        self.assertEqual(0, self.room())
        self.ledger.read_inventory(inventory(namespace('a', parent='region1')))
        self.assertEqual(1, self.room())
        self.ledger.read_inventory(inventory(namespace('a')))
        self.assertEqual(0, self.room())

    def test_what_is_made_or_removed_meanwhile_makes_no_room(self):
        hold = hosts.name_all(self.ledger, self.ledger.take('i', wants((VGPU, 3))))
        for key in hold.keys:
            self.ledger.realized(key, 'details')
        self.ledger.close_parent('mdev', 'p0', vocabulary.CORDONED)
        self.ledger.free(hold.keys, removed=hold.keys)
        self.ledger.read_capacities([capacity('p0', 3)])
        self.assertEqual(0, self.room(VGPU))


class ReadParentsTestCase(base.TestCase):

    def test_a_parent_that_was_not_there_before_makes_devices_from_now_on(self):
        ledger = hosts.ledger(capacity('p1', 1))
        ledger.read_capacities([capacity('p0', 1), capacity('p1', 1)])
        self.assertEqual(['p0'], hosts.parents(ledger.take('i', wants((VGPU, 1)))))

    def test_a_free_device_that_is_gone_is_forgotten_and_a_held_one_is_not(self):
        ledger = hosts.ledger(capacity('p0', 0), mdev('a', 'p0'), mdev('b', 'p0'))
        [held] = ledger.take('i', wants((VGPU, 1))).keys
        before = ledger.now
        ledger.read_parents(inventory(capacity('p0', 2)), before)
        self.assertEqual([held.identifier], [device.identifier for device in ledger.devices()])
        self.assertEqual(frozenset((snapshot.GONE,)), ledger.reasons()[held])

    def test_a_parent_that_was_full_makes_devices_again(self):
        ledger = hosts.ledger(capacity('p0', 0))
        self.assertRaises(exception.NoFit, ledger.take, 'i', wants((VGPU, 1)))
        ledger.read_parents(inventory(capacity('p0', 1)), ledger.now)
        self.assertEqual(['p0'], hosts.parents(ledger.take('i', wants((VGPU, 1)))))

    def test_a_held_device_that_is_there_again_is_not_gone_whatever_else_is_there(self):
        ledger = hosts.ledger(mdev('a', 'p0'), mdev('b', 'p0'))
        keys = ledger.take('i', wants((VGPU, 2))).keys
        ledger.read_parents(inventory(), ledger.now)
        ledger.withhold(keys[0], vocabulary.FOREIGN)
        ledger.read_parents(inventory(mdev('unknown', 'p0'), mdev('a', 'p0'), mdev('b', 'p0')), ledger.now)
        self.assertEqual({keys[0]: {vocabulary.FOREIGN}}, ledger.reasons())

    def test_what_was_given_back_meanwhile_is_known_better(self):
        ledger = hosts.ledger(mdev('a', 'p0'))
        keys = ledger.take('i', wants((VGPU, 1))).keys
        before = ledger.now
        ledger.free(keys)
        ledger.read_parents(inventory(mdev('a', 'p0', unhealthy='in use')), before)
        self.assertEqual(keys, ledger.take('j', wants((VGPU, 1))).keys)

    def test_what_a_claim_does_not_take_after_all_is_room_for_other_types_of_its_parent(self):
        ledger = hosts.ledger(capacity('p0', 1), capacity('p0', 1, VGPU_B, device_type='b'))
        hold = ledger.take('i', wants((VGPU, 1)))
        self.assertRaises(exception.NoFit, ledger.take, 'j', wants((VGPU_B, 1)))
        ledger.put_back(hold)
        self.assertEqual(['p0'], hosts.parents(ledger.take('j', wants((VGPU_B, 1)))))


class ReadWhileMakingTestCase(base.TestCase):
    """What a parent says of itself when a device is made counts, unless something else happened there meanwhile."""

    def room(self, *realized):
        ledger = hosts.ledger(capacity('p0', 3))
        keys = hosts.name_all(ledger, ledger.take('i', wants((VGPU, 2)))).keys
        before = ledger.now
        for number, said in realized:
            ledger.realized(keys[number], 'details', [capacity('p0', said)], before)
        [pool] = ledger.pools()
        return pool.room

    def test_it_says_what_is_left(self):
        ledger = hosts.ledger(capacity('p0', 3))
        [key] = hosts.name_all(ledger, ledger.take('i', wants((VGPU, 1)))).keys
        before = ledger.now
        ledger.realized(key, 'details', [capacity('p0', 7)], before)
        self.assertEqual([7], [pool.room for pool in ledger.pools()])

    def test_not_while_another_device_is_still_to_be_made(self):
        self.assertEqual(1, self.room((0, 7)))

    def test_not_when_another_device_was_made_meanwhile(self):
        self.assertEqual(1, self.room((0, 7), (1, 8)))
