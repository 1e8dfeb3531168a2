"""Devices that were claimed and never made ready go back as they are, unless a guest may have had them all the same."""

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.objects.values import DeviceKey
from devicetrack.store.api import Changes
from devicetrack.testing import fake_guests
from devicetrack.testing import fixtures
from devicetrack.testing.compute_service import Migration
from devicetrack.testing.fixtures import a_request
from devicetrack.testing.fixtures import FREE
from devicetrack.testing.fixtures import Instance
from devicetrack.testing.fixtures import WITHHELD
from devicetrack.tests import base

D0 = DeviceKey('vpmem', 'd0')


class OnlyClaimedTestCase(base.TestCase):

    def setUp(self):
        super().setUp()
        self.host = self.useFixture(fixtures.Host(devices=1))
        self.instance = Instance()
        # No guest wrote it: it shows whether the device was wiped.
        self.host.machine.contents[D0] = b'a mark'

    def move_and_revert(self):
        """Begin a resize to no device on this host, and undo it: the row is written twice."""
        migration = Migration('host', 'host', self.instance.uuid)
        self.host.service.moves = [migration]
        self.host.resize(self.instance, migration=migration)
        self.host.manager.drop_move_claim_at_dest(self.host.context, self.instance, migration)
        self.assertEqual([('current', 'claimed')], [(row.role, row.state) for row in self.host.records()])

    def check_was_wiped(self, was):
        self.assertEqual(([], {'d0': FREE}, not was),
                         (self.host.records(), self.host.states(), D0 in self.host.machine.contents))


class GoesBackTestCase(OnlyClaimedTestCase):
    """Without a wipe."""

    def test_by_an_abort(self):
        self.host.claim(self.instance, pmem=1).abort()
        self.check_was_wiped(False)

    def test_by_an_error_in_the_block(self):
        def refuses():
            with self.host.claim(self.instance, pmem=1):
                raise exception.NodeUnavailable('host', 'refused late')
        self.assertRaises(exception.NodeUnavailable, refuses)
        self.check_was_wiped(False)

    def test_by_a_release_in_the_background(self):
        self.host.claim(self.instance, pmem=1)
        self.host.manager.release(self.host.context, self.instance, wait=False)
        self.host.wait()
        self.check_was_wiped(False)

    def test_by_an_abort_whose_manager_ended_in_its_middle(self):
        claim = self.host.claim(self.instance, pmem=1)
        self.host.machine.before('unclaim', exception.HypervisorUnreachable('fake', 'gone'), times=1)
        self.assertRaises(exception.HypervisorUnreachable, claim.abort)
        self.host.restart()
        self.check_was_wiped(False)

    def test_by_a_move_that_is_reverted_before_its_guest_came(self):
        migration = Migration('another', 'host', self.instance.uuid)
        self.host.service.moves = [migration]
        self.host.manager.resize_claim(self.host.context, self.instance, 'host', a_request(pmem=1), migration)
        self.host.manager.drop_move_claim_at_dest(self.host.context, self.instance, migration)
        self.check_was_wiped(False)

    def test_after_a_move_that_was_reverted(self):
        self.host.claim(self.instance, pmem=1)
        self.move_and_revert()
        self.host.manager.release(self.host.context, self.instance)
        self.check_was_wiped(False)

    def test_after_a_release_that_was_set_aside(self):
        self.host.claim(self.instance, pmem=1)
        self.host.machine.before('unclaim', exception.HypervisorUnreachable('fake', 'gone'), times=1)
        self.assertRaises(exception.HypervisorUnreachable, self.host.manager.release, self.host.context, self.instance)
        self.host.claim(self.instance)          # it comes back, for no device
        self.host.audit()
        self.host.wait()
        self.check_was_wiped(False)

    def test_after_a_restart_by_a_release(self):
        self.host.claim(self.instance, pmem=1)
        self.host.restart()
        self.host.manager.release(self.host.context, self.instance)
        self.check_was_wiped(False)


class IsSomebodyElsesTestCase(OnlyClaimedTestCase):
    """Somebody else may have written to it, and no guest of ours did: its row ends, and nothing wipes it."""

    def check_is_left_alone(self):
        self.host.wait()
        self.assertIn(WITHHELD + vocabulary.UNPROVEN, self.host.states()['d0'])
        self.assertEqual(([], True), (self.host.records(), D0 in self.host.machine.contents))

    def test_after_another_guest_used_it(self):
        self.host.claim(self.instance, pmem=1)
        [device] = self.host.machine.devices.values()
        self.host.machine.start_guest('another', [fake_guests.element('vpmem', fixtures.path_of(device))])
        self.host.audit()
        self.host.stop_guest('another')
        self.host.delete_guest('another')
        self.host.manager.release(self.host.context, self.instance)
        self.check_is_left_alone()

    def test_after_a_crash_between_the_end_of_its_proof_and_that_of_its_row(self):
        self.host.claim(self.instance, pmem=1)
        self.host.machine.written.add(D0)
        self.host.driver.disprove((D0,))
        self.host.machine.written.discard(D0)
        self.host.restart()
        self.host.manager.release(self.host.context, self.instance)
        self.check_is_left_alone()

    def test_after_realize_found_a_user_and_the_store_did_not_answer(self):
        self.host.claim(self.instance, pmem=1)
        self.host.machine.written.add(D0)
        self.host.store.before('write', exception.StoreUnavailable('store', 'gone'), times=1)
        self.assertRaises(exception.StoreUnavailable, self.host.manager.realize, self.host.context, self.instance)
        self.host.machine.written.discard(D0)
        self.host.restart()
        self.host.manager.release(self.host.context, self.instance)
        self.check_is_left_alone()


class GoesToNoGuestTestCase(OnlyClaimedTestCase):
    """A stranger used it and left, before our guest first got it."""

    def setUp(self):
        super().setUp()
        self.host.claim(self.instance, pmem=1)
        [device] = self.host.machine.devices.values()
        self.host.machine.start_guest('another', [fake_guests.element('vpmem', fixtures.path_of(device))])
        self.host.audit()
        self.host.machine.write(D0, b'of a stranger')
        self.host.stop_guest('another')
        self.host.delete_guest('another')

    def test_after_a_move_that_was_reverted_it_is_left_alone(self):
        self.move_and_revert()
        self.test_it_is_left_alone()

    def test_after_a_move_that_was_reverted_its_claim_goes_on_with_another_one(self):
        self.move_and_revert()
        self.test_its_claim_goes_on_with_another_one()

    def test_after_a_move_that_was_reverted_its_release_leaves_it_alone(self):
        self.move_and_revert()
        self.host.manager.release(self.host.context, self.instance)
        self.assertEqual(b'of a stranger', self.host.machine.read(D0))
        self.assertIn(WITHHELD + vocabulary.UNPROVEN, self.host.states()['d0'])

    def test_it_is_left_alone(self):
        self.host.restart()
        self.assertRaises(exception.NoFit, self.host.manager.realize, self.host.context, self.instance)
        self.assertEqual(b'of a stranger', self.host.machine.read(D0))
        self.assertIn(WITHHELD + vocabulary.UNPROVEN, self.host.states()['d0'])
        self.assertEqual([], self.host.records())

    def test_its_claim_goes_on_with_another_one(self):
        self.host.machine.add_namespace('d1')
        self.host.audit()
        self.host.manager.realize(self.host.context, self.instance)
        self.assertEqual(['d1'], [record.identifier for record in self.host.records()])
        self.assertIn(WITHHELD + vocabulary.UNPROVEN, self.host.states()['d0'])
        self.assertEqual(b'of a stranger', self.host.machine.read(D0))


class IsWipedTestCase(OnlyClaimedTestCase):
    """A guest may have written to it."""

    def test_after_realize(self):
        claim = self.host.claim(self.instance, pmem=1)
        self.host.manager.realize(self.host.context, self.instance)
        claim.abort()
        self.check_was_wiped(True)

    def test_after_a_realize_that_failed(self):
        host = self.useFixture(fixtures.Host(devices=2))
        host.machine.contents[D0] = b'a mark'
        claim = host.claim(self.instance, pmem=2)
        host.machine.remove(DeviceKey('vpmem', 'd1'))
        self.assertRaises(exception.NoFit, host.manager.realize, host.context, self.instance)
        claim.abort()
        self.assertEqual(([], False), (host.records(), D0 in host.machine.contents))

    def test_after_a_realize_that_could_not_be_recorded(self):
        claim = self.host.claim(self.instance, pmem=1)
        self.host.store.before('write', exception.StoreUnavailable('store', 'gone'), times=1)
        self.assertRaises(exception.StoreUnavailable, self.host.manager.realize, self.host.context, self.instance)
        claim.abort()
        self.check_was_wiped(True)

    def test_after_a_start_that_nobody_recorded(self):
        self.host.claim(self.instance, pmem=1)
        self.host.manager.realize(self.host.context, self.instance)
        self.host.start_guest(self.instance.uuid, self.host.manager.guest_config(self.instance))
        self.assertEqual(['claimed'], [record.state for record in self.host.records()])
        self.host.stop_guest(self.instance.uuid)
        self.host.delete_guest(self.instance.uuid)
        self.host.restart()
        self.host.manager.release(self.host.context, self.instance)
        self.check_was_wiped(True)

    def test_after_a_start_by_a_manager_with_another_state_directory(self):
        self.host.claim(self.instance, pmem=1)
        self.host.manager.realize(self.host.context, self.instance)
        # What this state directory has to say is older than that.
        self.host.machine.unproven.discard(D0)
        self.host.restart()
        self.host.manager.release(self.host.context, self.instance)
        self.check_was_wiped(True)

    def test_after_a_start_that_a_restored_store_does_not_know_of(self):
        self.host.claim(self.instance, pmem=1)
        [before] = self.host.records()
        self.host.manager.realize(self.host.context, self.instance)
        [row] = self.host.records()
        self.host.manager.close()
        self.host.store.store.write(Changes(delete=(row,)))
        self.host.store.store.write(Changes(insert=(before,)))
        self.host.restart()
        self.host.manager.release(self.host.context, self.instance)
        self.check_was_wiped(True)

    def test_after_nothing_proved_it_clean_when_it_was_claimed(self):
        self.host.configuration.set('devicetrack', unproven_devices='trust')
        self.host.machine.unproven.add(D0)
        self.host.restart()
        self.host.claim(self.instance, pmem=1).abort()
        self.check_was_wiped(True)

    def test_after_a_guest_that_was_there_before_its_row(self):
        [device] = self.host.machine.devices.values()
        self.host.machine.start_guest(self.instance.uuid, [fake_guests.element('vpmem', fixtures.path_of(device))])
        self.host.manager.adopt(self.host.context, self.instance, [D0])
        self.host.machine.unproven.discard(D0)              # nobody noticed the guest before it had its row
        self.host.stop_guest(self.instance.uuid)
        self.host.delete_guest(self.instance.uuid)
        self.host.manager.release(self.host.context, self.instance)
        self.check_was_wiped(True)
