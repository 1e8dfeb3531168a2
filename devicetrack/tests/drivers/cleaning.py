"""How a driver takes devices back, and proves that they are clean."""

from __future__ import annotations

import uuid

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.objects import DeviceAssignment
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Word
from devicetrack.tests.drivers import case
from devicetrack.tests.drivers import worlds
from devicetrack.virt.driver import Confirm


class CleaningContract(case.DriverTestCase):

    # -- unclaim ------------------------------------------------------------------------------------------------------

    def test_unclaiming_leaves_no_byte(self) -> None:
        wanted = self.assigned('vpmem', 'ns0')
        self.world.write('ns0', b'secret')
        for _again in range(2):
            self.assertEqual({DeviceKey('vpmem', 'ns0'): None}, self.driver.unclaim([wanted]))
            self.assertTrue(self.world.is_clean('ns0'))

    def test_what_a_guest_names_is_not_touched(self) -> None:
        used, free = self.assigned('vpmem', 'ns0'), self.assigned('vpmem', 'ns1')
        for name in worlds.NAMESPACES:
            self.world.write(name, b'secret')
        self.start(used)
        results = self.driver.unclaim([used, free])
        self.assertIsInstance(results[DeviceKey('vpmem', 'ns0')], exception.DeviceInUse)
        self.assertIsNone(results[DeviceKey('vpmem', 'ns1')])
        self.world.stop_guest(self.instance)
        self.assertIsInstance(self.driver.unclaim([used])[DeviceKey('vpmem', 'ns0')], exception.DeviceInUse)
        self.assertEqual([False, True], [self.world.is_clean(name) for name in worlds.NAMESPACES])
        self.world.delete_guest(self.instance)
        self.assertEqual({DeviceKey('vpmem', 'ns0'): None}, self.driver.unclaim([used]))
        self.assertTrue(self.world.is_clean('ns0'))

    def test_what_its_owners_guest_may_name_by_an_address_that_leads_nowhere_is_not_touched(self) -> None:
        maybe, gone = self.assigned('vpmem', 'ns0'), self.assigned('vpmem', 'ns1')
        of_another = case.assignment(str(uuid.uuid4()), 'vpmem', 'ns0', maybe.parent, worlds.text_of(maybe))
        self.world.write('ns0', b'secret')
        config = self.driver.guest_config([gone])
        self.world.start_guest(self.instance, config._replace(metadata=''))
        self.world.stop_guest(self.instance)
        self.world.remove('ns1')
        for wanted in (maybe, gone):
            [error] = self.driver.unclaim([wanted]).values()
            self.assertIsInstance(error, exception.DeviceInUse)
        self.assertFalse(self.world.is_clean('ns0'))
        self.assertEqual({DeviceKey('vpmem', 'ns0'): None}, self.driver.unclaim([of_another]))
        self.world.delete_guest(self.instance)
        self.assertEqual({DeviceKey('vpmem', 'ns0'): None}, self.driver.unclaim([maybe]))

    # -- use by others, before a guest first gets a device ------------------------------------------------------------

    def free(self, name: str = 'ns0') -> DeviceAssignment:
        """A namespace that is proven clean, and that the instance claimed."""
        self.assertEqual([None], list(self.driver.unclaim([self.assigned('vpmem', name)]).values()))
        return self.assigned('vpmem', name)

    def check_in_use(self, wanted: DeviceAssignment, by: str) -> None:
        error = self.assertRaises(exception.DeviceInUse, self.driver.realize, wanted)
        self.assertIn(by, error.reason)
        self.assertIn('ns0', self.unproven())

    def check_has_lost_its_proof(self, wanted: DeviceAssignment) -> None:
        """Its user has left, and nobody knows what it has written."""
        for driver in (self.driver, self.world.driver()):
            error = self.assertRaises(exception.NotProven, driver.realize, wanted)
            self.assertIn('lost the proof', str(error))
            self.assertIn('ns0', self.unproven())
        self.driver.unclaim([wanted])
        self.driver.realize(wanted)

    def test_what_was_disproved_before_its_guest_got_it_goes_to_no_guest(self) -> None:
        wanted = self.free()
        self.world.write('ns0', b'of a database')
        self.driver.disprove([wanted.key])
        self.assertRaises(exception.NotProven, self.driver.realize, wanted)
        self.assertFalse(self.world.is_clean('ns0'))
        self.check_has_lost_its_proof(wanted)

    def test_what_a_process_has_open_goes_to_no_guest(self) -> None:
        wanted = self.free()
        with self.world.opened('ns0'):
            self.check_in_use(wanted, 'process')
        self.check_has_lost_its_proof(wanted)

    def test_what_another_domain_names_goes_to_no_guest(self) -> None:
        wanted, other = self.free(), str(uuid.uuid4())
        config = self.driver.guest_config([case.assignment(
            other, 'vpmem', 'ns0', wanted.parent, worlds.text_of(wanted))])
        self.driver.unclaim([wanted])
        self.world.start_guest(other, config._replace(metadata=''))
        self.check_in_use(wanted, other)
        self.world.stop_guest(other)
        self.check_in_use(wanted, other)
        self.world.delete_guest(other)
        self.check_has_lost_its_proof(wanted)

    def test_an_existing_device_that_another_domain_names_goes_to_no_guest(self) -> None:
        wanted, other = self.assigned('mdev', self.world.mdev), str(uuid.uuid4())
        config = self.driver.guest_config([wanted])
        self.world.start_guest(other, config._replace(metadata=''))
        error = self.assertRaises(exception.DeviceInUse, self.driver.realize, wanted)
        self.assertIn(other, error.reason)

    def test_the_own_guest_of_a_device_is_no_stranger(self) -> None:
        wanted = self.free()
        self.driver.realize(wanted)
        self.start(wanted)
        with self.world.opened('ns0'):          # as its QEMU has
            self.driver.realize(wanted)
            self.world.driver().realize(wanted)

    def test_a_device_that_was_ready_before_is_made_ready_again(self) -> None:
        wanted = self.free()
        self.driver.realize(wanted)
        again = case.assignment(self.instance, 'vpmem', 'ns0', wanted.parent, worlds.text_of(wanted), 0,
                                vocabulary.ACTIVE)
        with self.world.opened('ns0'):
            self.driver.realize(again)

    def check_written(self, wanted: DeviceAssignment) -> None:
        error = self.assertRaises(exception.NotProven, self.driver.realize, wanted)
        self.assertIn('somebody wrote to it', error.reason)
        self.assertIn('ns0', self.unproven())

    def test_what_somebody_wrote_between_release_and_claim_goes_to_no_guest(self) -> None:
        wanted = self.free()
        self.world.write_beside('ns0', b'of a database')
        self.check_written(wanted)
        self.assertFalse(self.world.is_clean('ns0'))
        self.driver.unclaim([wanted])
        self.driver.realize(wanted)

    def test_what_somebody_wrote_after_its_wipe_while_another_device_was_wiped_goes_to_no_guest(self) -> None:
        later = self.assigned('vpmem', 'ns0')
        self.driver.unclaim([self.assigned('vpmem', name) for name in worlds.NAMESPACES], self.writing_at('ns1'))
        self.check_written(later)
        self.assertFalse(self.world.is_clean('ns0'))

    def test_what_somebody_wrote_after_it_was_looked_at_goes_to_no_guest(self) -> None:
        for how in (vocabulary.READ, Word('alice', 'it is new').how):
            wanted = self.free()
            self.driver.disprove([wanted.key])
            self.assertEqual({wanted.key: None}, self.driver.prove([wanted], how, self.writing_at('ns0')))
            self.check_written(wanted)

    def writing_at(self, name: str) -> Confirm:
        """The last question before a device is wiped, or recorded as clean; a program writes to ns0 at that moment."""
        def confirm(assignment: DeviceAssignment) -> None:
            if assignment.identifier == name:
                self.world.write_beside('ns0', b'of a database')
        return confirm

    def test_an_audit_sees_that_somebody_wrote_to_a_free_device(self) -> None:
        self.free()
        self.world.write_beside('ns0', b'of a database')
        self.assertIn('ns0', self.unproven())

    def test_a_proof_of_an_earlier_release_is_compared_from_the_next_audit_on(self) -> None:
        self.free()
        self.world.forget_writes()
        self.assertNotIn('ns0', self.unproven())
        self.world.write_beside('ns0', b'of a database')
        self.assertIn('ns0', self.unproven())

    def test_an_audit_sees_that_a_process_has_a_free_device_open(self) -> None:
        self.free()
        with self.world.opened('ns0'):
            self.assertIn('ns0', self.unproven())
        self.assertIn('ns0', self.unproven())

    def test_what_nobody_wrote_to_stays_proven(self) -> None:
        wanted = self.free()
        for _again in range(2):
            self.assertNotIn('ns0', self.unproven())
        self.world.reboot()
        self.assertNotIn('ns0', self.unproven())
        self.driver.realize(self.assigned('vpmem', 'ns0'))
        self.assertEqual('ns0', wanted.identifier)

    # -- proofs -------------------------------------------------------------------------------------------------------

    def unproven(self) -> set[str]:
        """What is unproven to another driver, which knows what is on the host alone."""
        inventory = self.world.driver().get_inventory()
        self.assertEqual({'vpmem'}, inventory.keeping)
        return {identifier for kind, identifier in inventory.unproven if kind == 'vpmem'}

    def prove(self, name: str, how: str) -> exception.DriverError | None:
        return self.driver.prove([self.assigned('vpmem', name)], how)[DeviceKey('vpmem', name)]

    def test_what_was_wiped_is_proven_until_it_is_realized(self) -> None:
        wanted = self.assigned('vpmem', 'ns0')
        for _again in range(2):
            self.assertEqual({DeviceKey('vpmem', 'ns0'): None}, self.driver.unclaim([wanted]))
            self.assertNotIn('ns0', self.unproven())
            self.driver.realize(wanted)
            self.assertIn('ns0', self.unproven())

    def released(self, name: str, was_realized: bool = False, state: str = vocabulary.RELEASING) -> DeviceAssignment:
        """The assignment of a namespace that is being released."""
        device = self.devices()[DeviceKey('vpmem', name)]
        return case.assignment(self.instance, 'vpmem', name, device.parent, device.details, 0, state, was_realized)

    def test_what_was_only_claimed_goes_back_as_it_is(self) -> None:
        key = DeviceKey('vpmem', 'ns0')
        self.driver.unclaim([self.assigned('vpmem', 'ns0')])
        self.assertIn(key, self.driver.wipes_of([key]))
        for driver in (self.driver, self.world.driver()):
            self.assertEqual({key: None}, driver.unclaim([self.released('ns0')]))
            self.assertEqual({}, driver.wipes_of([key]))
            self.assertNotIn('ns0', self.unproven())

    def test_what_was_only_claimed_and_somebody_wrote_to_is_theirs(self) -> None:
        self.driver.unclaim([self.assigned('vpmem', 'ns0')])
        released = self.released('ns0')
        self.world.write_beside('ns0', b'of a database')
        [error] = self.driver.unclaim([released]).values()
        self.assertIsInstance(error, exception.NotProven)
        self.assertFalse(self.world.is_clean('ns0'))
        self.assertIn('ns0', self.unproven())

    def check_is_wiped(self, assignment: DeviceAssignment) -> None:
        self.world.write('ns0', b'secret')
        self.assertEqual({DeviceKey('vpmem', 'ns0'): None}, self.driver.unclaim([assignment]))
        self.assertTrue(self.world.is_clean('ns0'))
        self.assertNotIn('ns0', self.unproven())

    def check_is_left_alone(self, assignment: DeviceAssignment) -> None:
        [error] = self.driver.unclaim([assignment]).values()
        self.assertIsInstance(error, exception.NotProven)
        self.assertFalse(self.world.is_clean('ns0'))
        self.assertIn('ns0', self.unproven())

    def test_what_was_only_claimed_and_has_lost_its_proof_is_theirs(self) -> None:
        self.driver.unclaim([self.assigned('vpmem', 'ns0')])
        self.driver.disprove([DeviceKey('vpmem', 'ns0')])
        self.world.write('ns0', b'of a database')
        for driver in (self.driver, self.world.driver()):
            self.driver = driver
            self.check_is_left_alone(self.released('ns0'))

    def test_what_another_used_and_left_before_its_guest_got_it_is_theirs(self) -> None:
        wanted = self.free()
        self.world.write_beside('ns0', b'of a database')
        self.assertRaises(exception.NotProven, self.driver.realize, wanted)
        self.check_is_left_alone(self.released('ns0'))

    def test_what_was_given_to_its_guest_is_wiped_until_somebody_else_used_it(self) -> None:
        self.driver.unclaim([self.assigned('vpmem', 'ns0')])
        self.driver.realize(self.assigned('vpmem', 'ns0'))
        self.driver = self.world.driver()
        self.check_is_wiped(self.released('ns0'))
        self.driver.realize(self.assigned('vpmem', 'ns0'))
        self.driver.disprove([DeviceKey('vpmem', 'ns0')])
        self.world.write('ns0', b'of a database')
        self.check_is_left_alone(self.released('ns0'))

    def test_what_was_realized_is_wiped_whatever_its_row_says(self) -> None:
        self.driver.unclaim([self.assigned('vpmem', 'ns0')])
        self.driver.realize(self.assigned('vpmem', 'ns0'))
        self.check_is_wiped(self.released('ns0'))
        self.driver.guest_config([self.assigned('vpmem', 'ns0')])
        self.check_is_wiped(self.released('ns0'))

    def test_what_a_kept_definition_has_is_wiped_whatever_its_row_says(self) -> None:
        wanted = self.assigned('vpmem', 'ns0')
        self.start(wanted)
        kept = self.world.definition(self.instance)
        self.world.stop_guest(self.instance)
        self.world.delete_guest(self.instance)
        self.driver.unclaim([wanted])
        self.driver.rewrite_definition(kept, [wanted])
        self.check_is_wiped(self.released('ns0'))

    def test_what_its_row_says_was_more_than_claimed_is_wiped_whatever_is_proven(self) -> None:
        for state in (vocabulary.RELEASING, vocabulary.ACTIVE):
            self.driver.unclaim([self.assigned('vpmem', 'ns0')])
            self.check_is_wiped(self.released('ns0', True, state))

    def test_what_was_only_claimed_and_a_guest_names_is_wiped_when_that_is_gone(self) -> None:
        self.driver.unclaim([self.assigned('vpmem', 'ns0')])
        config = self.driver.guest_config([self.assigned('vpmem', 'ns0')])
        self.driver.unclaim([self.assigned('vpmem', 'ns0')])
        self.world.start_guest(self.instance, config)
        self.assertIsInstance(self.driver.unclaim([self.released('ns0')])[DeviceKey('vpmem', 'ns0')],
                              exception.DeviceInUse)
        self.world.stop_guest(self.instance)
        self.world.delete_guest(self.instance)
        self.check_is_wiped(self.released('ns0'))

    def test_another_device_of_the_name_of_what_was_only_claimed_does_not_go_back(self) -> None:
        self.driver.unclaim([self.assigned('vpmem', 'ns0')])
        released = self.released('ns0')
        self.world.replace('ns0')
        self.assertIsInstance(self.driver.unclaim([released])[DeviceKey('vpmem', 'ns0')], exception.DeviceGone)
        self.check_is_left_alone(self.released('ns0'))

    def test_what_another_uses_is_proven_no_more(self) -> None:
        self.driver.unclaim([self.assigned('vpmem', 'ns0')])
        self.driver.disprove([DeviceKey('vpmem', 'ns0'), DeviceKey('vpmem', 'ns9')])
        self.assertIn('ns0', self.unproven())

    def test_another_device_of_the_name_is_not_proven(self) -> None:
        self.driver.unclaim([self.assigned('vpmem', 'ns0')])
        self.world.replace('ns0')
        self.assertIn('ns0', self.unproven())

    def test_zeros_are_proven_by_reading(self) -> None:
        self.driver.disprove([DeviceKey('vpmem', 'ns0')])
        self.world.write('ns0', bytes(99))
        self.assertIsInstance(self.prove('ns0', vocabulary.BLANK), exception.NotProven)
        self.assertIn('ns0', self.unproven())
        self.assertIsNone(self.prove('ns0', vocabulary.READ))
        self.assertNotIn('ns0', self.unproven())

    def test_what_nobody_wrote_to_is_proven_without_reading(self) -> None:
        self.driver.disprove([DeviceKey('vpmem', 'ns0')])
        self.assertIsNone(self.prove('ns0', vocabulary.BLANK))
        self.assertNotIn('ns0', self.unproven())

    def test_reading_writes_nothing(self) -> None:
        self.driver.disprove([DeviceKey('vpmem', 'ns0')])
        self.world.write('ns0', b'secret')
        for how in (vocabulary.BLANK, vocabulary.READ):
            self.assertIsInstance(self.prove('ns0', how), exception.NotProven)
        self.assertIn('ns0', self.unproven())
        self.assertFalse(self.world.is_clean('ns0'))

    def test_what_an_operator_gives_up_is_wiped(self) -> None:
        self.driver.disprove([DeviceKey('vpmem', 'ns0')])
        self.world.write('ns0', b'secret')
        self.assertIsNone(self.prove('ns0', vocabulary.WIPE))
        self.assertTrue(self.world.is_clean('ns0'))
        self.assertNotIn('ns0', self.unproven())

    def test_a_persons_word_is_a_proof_until_the_device_is_realized(self) -> None:
        wanted = self.assigned('vpmem', 'ns0')
        self.driver.disprove([wanted.key])
        self.world.write('ns0', b'what a person left')
        self.assertIsNone(self.prove('ns0', Word('alice', 'nobody needs that').how))
        self.assertNotIn('ns0', self.unproven())
        self.assertFalse(self.world.is_clean('ns0'))
        self.driver.realize(wanted)
        self.assertIn('ns0', self.unproven())

    def test_no_word_proves_what_a_guest_names_or_another_process_works_on(self) -> None:
        wanted = self.assigned('vpmem', 'ns0')
        with self.world.hold(wanted.key):
            self.assertIsInstance(self.prove('ns0', Word('alice', 'why').how), exception.DeviceBusy)
        self.driver.realize(wanted)
        self.start(wanted)
        self.assertIsInstance(self.prove('ns0', Word('alice', 'why').how), exception.DeviceInUse)
        self.assertIn('ns0', self.unproven())

    def test_what_a_guest_names_is_neither_proven_nor_wiped(self) -> None:
        used = self.assigned('vpmem', 'ns0')
        self.driver.realize(used)
        self.start(used)
        for how in (vocabulary.BLANK, vocabulary.READ, vocabulary.WIPE):
            if how == vocabulary.WIPE:
                self.world.write('ns0', b'secret')
            self.assertIsInstance(self.driver.prove([used], how)[DeviceKey('vpmem', 'ns0')], exception.DeviceError)
        self.assertIn('ns0', self.unproven())
        self.assertFalse(self.world.is_clean('ns0'))

    def test_what_another_process_works_on_is_neither_proven_nor_wiped(self) -> None:
        wanted = self.assigned('vpmem', 'ns0')
        self.world.write('ns0', b'secret')
        with self.world.hold(DeviceKey('vpmem', 'ns0')):
            for how in (vocabulary.BLANK, vocabulary.READ, vocabulary.WIPE):
                self.assertIsInstance(self.driver.prove([wanted], how)[DeviceKey('vpmem', 'ns0')],
                                      exception.DeviceBusy)
        self.assertFalse(self.world.is_clean('ns0'))

    def asked(self, how: str, error: Exception | None = None) -> list[tuple[bool, bool]]:
        """Prove ns0, and say of each call of ``confirm`` whether the device was locked, and whether it was clean."""
        wanted, told = self.assigned('vpmem', 'ns0'), []

        def confirm(assignment: DeviceAssignment) -> None:
            self.assertEqual(wanted.key, assignment.key)
            told.append((wanted.key in self.world.driver().being_worked_on([wanted]), self.world.is_clean('ns0')))
            if error is not None:
                raise error

        if error is None:
            self.driver.prove([wanted], how, confirm)
        else:
            self.assertIs(error, self.assertRaises(type(error), self.driver.prove, [wanted], how, confirm))
        return told

    def test_a_caller_confirms_under_the_lock_that_a_guest_is_to_get_it(self) -> None:
        wanted, told, error = self.free(), [], exception.HostTakenOver('host')

        def confirm(assignment: DeviceAssignment) -> None:
            told.append((assignment.key, wanted.key in self.world.driver().being_worked_on([wanted])))
            raise error

        self.assertIs(error, self.assertRaises(exception.HostTakenOver, self.driver.realize, wanted, confirm))
        self.assertEqual([(wanted.key, True)], told)
        self.assertNotIn('ns0', self.unproven())
        self.assertEqual([], [*self.driver.being_worked_on([wanted])])

    def test_a_caller_confirms_under_the_lock_that_it_is_wiped(self) -> None:
        self.world.write('ns0', b'secret')
        self.driver.disprove([DeviceKey('vpmem', 'ns0')])
        for error in (exception.DeviceInUse('vpmem', 'ns0', 'an instance has it'), exception.HostTakenOver('host')):
            self.assertEqual([(True, False)], self.asked(vocabulary.WIPE, error))
            self.assertFalse(self.world.is_clean('ns0'))
        self.assertIn('ns0', self.unproven())
        self.assertEqual([(True, False)], self.asked(vocabulary.WIPE))
        self.assertTrue(self.world.is_clean('ns0'))
        self.assertNotIn('ns0', self.unproven())

    def test_a_caller_confirms_under_the_lock_that_it_is_called_clean(self) -> None:
        for how in (vocabulary.BLANK, vocabulary.READ):
            self.driver.disprove([DeviceKey('vpmem', 'ns0')])
            for error in (exception.DeviceInUse('vpmem', 'ns0', 'an instance has it'),
                          exception.HostTakenOver('host')):
                self.assertEqual([(True, True)], self.asked(how, error))
                self.assertIn('ns0', self.unproven())
            self.assertEqual([(True, True)], self.asked(how))
            self.assertNotIn('ns0', self.unproven())

    def test_there_is_nothing_to_confirm_about_what_is_not_clean(self) -> None:
        self.world.write('ns0', b'secret')
        self.driver.disprove([DeviceKey('vpmem', 'ns0')])
        for how in (vocabulary.BLANK, vocabulary.READ):
            self.assertEqual([], self.asked(how))

    def test_what_another_process_works_on(self) -> None:
        one, other = self.assigned('vpmem', 'ns0'), self.assigned('vpmem', 'ns1')
        with self.world.hold(one.key):
            self.assertEqual({one.key}, self.driver.being_worked_on([one, other]))
        for _again in range(2):                 # the question locks nothing
            self.assertEqual(set(), self.driver.being_worked_on([one, other]))

    def test_no_answer_proves_nothing(self) -> None:
        wanted = self.assigned('vpmem', 'ns0')
        self.driver.disprove([DeviceKey('vpmem', 'ns0')])
        self.world.unreachable()
        try:
            answer = self.world.driver().prove([wanted], vocabulary.READ)[DeviceKey('vpmem', 'ns0')]
        except exception.HypervisorUnreachable as error:
            answer = error
        self.assertIsNotNone(answer)

    # -- what is kept -------------------------------------------------------------------------------------------------

    def test_what_existed_is_kept(self) -> None:
        wanted = self.assigned('mdev', self.world.mdev)
        self.driver.realize(wanted)
        self.assertEqual({DeviceKey('mdev', self.world.mdev): None}, self.driver.unclaim([wanted]))
        self.assertIn(DeviceKey('mdev', self.world.mdev), self.devices())

    def test_what_another_process_works_on_is_not_touched(self) -> None:
        wanted = self.assigned('vpmem', 'ns0')
        self.world.write('ns0', b'secret')
        with self.world.hold(DeviceKey('vpmem', 'ns0')):
            self.assertIsInstance(self.driver.unclaim([wanted])[DeviceKey('vpmem', 'ns0')], exception.DeviceBusy)
        self.assertFalse(self.world.is_clean('ns0'))

    def test_no_answer_frees_nothing(self) -> None:
        wanted = self.assigned('vpmem', 'ns0')
        self.world.write('ns0', b'secret')
        self.world.unreachable()
        self.assertRaises(exception.HypervisorUnreachable, self.world.driver().unclaim, [wanted])
        self.assertFalse(self.world.is_clean('ns0'))

    def test_unclaiming_nothing_is_nothing(self) -> None:
        self.assertEqual({}, self.driver.unclaim([]))

    def test_a_virtual_function_has_its_type_until_it_is_given_back(self) -> None:
        for function in self.world.functions[:1]:
            key, wanted = DeviceKey('vf', function), self.assigned('vf', function)
            self.assertRaises(exception.DeviceGone, self.driver.guest_config, [wanted])
            with self.world.hold(key):
                self.assertRaises(exception.DeviceBusy, self.driver.realize, wanted)
            self.driver.realize(wanted)
            self.start(wanted)
            self.assertEqual({key}, set(self.uses()))
            self.assertIsInstance(self.driver.unclaim([wanted])[key], exception.DeviceInUse)
            self.world.stop_guest(self.instance)
            self.assertIsInstance(self.driver.unclaim([wanted])[key], exception.DeviceInUse)
            self.assertEqual(worlds.FUNCTION_TYPE, self.world.type_of(function))
            self.world.delete_guest(self.instance)
            for _again in range(2):
                self.assertEqual({key: None}, self.driver.unclaim([wanted]))
                self.assertEqual('0', self.world.type_of(function))
