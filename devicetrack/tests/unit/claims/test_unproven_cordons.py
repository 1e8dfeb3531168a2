"""An operator who cordons a device keeps its bytes, until somebody uncordons it or asks for its wipe by name."""

from __future__ import annotations

from collections.abc import Callable

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.objects.values import DeviceKey
from devicetrack.testing import fixtures
from devicetrack.testing.fixtures import FREE
from devicetrack.tests import base

D0, D1 = DeviceKey('vpmem', 'd0'), DeviceKey('vpmem', 'd1')
DATA = b'of another program'
KEPT = 'withheld: cordoned, unproven'


class CordonsTestCase(base.TestCase):

    policy = vocabulary.WIPE
    parent = False

    def setUp(self) -> None:
        super().setUp()
        self.host = self.useFixture(fixtures.Host(devices=1, ready=False))
        self.host.configuration.set('devicetrack', unproven_devices=self.policy)
        self.machine = self.host.machine
        self.leave(D0)

    def leave(self, key: DeviceKey, data: bytes = DATA) -> None:
        self.machine.write(key, data)
        self.machine.unproven.add(key)

    def start(self) -> None:
        """Start the manager; it begins no work in the background."""
        self.host.manager.init_host(self.context, background=False)

    def work(self) -> None:
        unproven = self.host.running.unproven
        unproven.begin()
        unproven.wait()

    def cordon(self) -> str:
        name = 'region0' if self.parent else 'd0'
        return self.host.manager.operator.cordon('vpmem', name, parent=self.parent).warning

    def uncordon(self) -> None:
        self.host.manager.operator.uncordon('vpmem', 'region0' if self.parent else 'd0', parent=self.parent)

    def admit(self) -> None:
        self.host.manager.operator.admit('vpmem', 'd0', wipe=True)

    def before_prove(self, action: Callable[[], object]) -> None:
        """Do something after the manager chose the device, and before the driver takes its lock."""
        self.machine.before('prove', action, times=1)

    def check_kept(self) -> None:
        self.assertEqual((KEPT, DATA), (self.host.states()['d0'], self.machine.read(D0)))

    def check_wiped(self) -> None:
        self.assertEqual(b'', self.machine.read(D0))


class OfADeviceTestCase(CordonsTestCase):

    def test_no_audit_and_no_start_has_it_wiped(self) -> None:
        self.start()
        self.cordon()
        self.work()
        for _again in range(2):
            self.host.audit()
            self.work()
            self.check_kept()
            self.host.restart()
            self.work()
            self.check_kept()
        self.uncordon()
        self.host.audit()
        self.work()
        self.assertEqual((FREE, b''), (self.host.states()['d0'], self.machine.read(D0)))

    def test_it_comes_before_the_first_byte(self) -> None:
        self.start()
        self.before_prove(self.cordon)
        self.work()
        self.check_kept()
        self.host.audit()
        self.work()
        self.check_kept()
        self.assertNotIn('wiping it failed', str(self.host.manager.operator.withheld()))
        self.uncordon()
        self.host.audit()
        self.work()
        self.assertEqual((FREE, b''), (self.host.states()['d0'], self.machine.read(D0)))

    def test_a_wipe_that_has_begun_goes_on_and_the_operator_is_told(self) -> None:
        told: list[str] = []
        self.start()
        self.machine.before('wipe', lambda: told.append(self.cordon()), times=1)
        self.work()
        self.check_wiped()
        self.assertEqual(['a wipe of vpmem/d0 began before, and goes on'], told)
        self.assertEqual(('withheld: cordoned', ''), (self.host.states()['d0'], self.cordon()))

    def test_an_operator_who_names_the_device_has_it_wiped(self) -> None:
        self.start()
        self.cordon()
        self.admit()
        self.host.running.unproven.wait()
        self.check_wiped()
        self.assertEqual('withheld: cordoned', self.host.states()['d0'])

    def test_the_last_word_counts(self) -> None:
        for cordoned in (False, True):
            self.leave(D0)
            self.host.manager.close()
            self.host.manager = self.host.another_manager()
            self.start()
            if cordoned:
                self.cordon()
            self.before_prove(self.cordon)      # again, and in the same words
            self.admit()
            self.host.running.unproven.wait()
            self.check_kept()
            error = self.assertRaises(exception.NotAdmitted, self.host.running.unproven.wiped, D0)
            self.assertIn('it was cordoned after its wipe was requested', str(error))
            self.admit()
            self.host.running.unproven.wait()
            self.check_wiped()

    def test_the_last_word_may_be_the_request_once_more(self) -> None:
        def both() -> None:
            self.cordon()
            self.admit()

        self.start()
        self.before_prove(both)
        self.admit()
        self.host.running.unproven.wait()
        self.check_wiped()


class OfItsParentTestCase(OfADeviceTestCase):

    parent = True


class OtherReasonsTestCase(CordonsTestCase):

    def test_what_is_withheld_for_another_reason_by_now_is_not_wiped(self) -> None:
        """An adoption that the store refused leaves such a reason."""
        self.start()
        self.before_prove(lambda: self.host.running.ledger.not_adopted(fixtures.Instance().uuid, [D0]))
        self.work()
        self.assertEqual(DATA, self.machine.read(D0))


class ReadTestCase(CordonsTestCase):

    policy = vocabulary.VERIFY

    def test_a_device_that_is_being_read_is_proven_and_stays_cordoned(self) -> None:
        self.leave(D0, b'\0')
        self.start()
        self.machine.before('read', self.cordon, times=1)
        self.work()
        self.assertEqual(('withheld: cordoned', set()), (self.host.states()['d0'], self.machine.unproven))
