"""A device without an owner gets one while it is proven clean: its bytes stay, and it has no proof in the end."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
import contextlib

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.claims.gate import StoreBehind
from devicetrack.claims.manager import ClaimManager
from devicetrack.objects import DeviceAssignment
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import WipeProgress
from devicetrack.testing import fake
from devicetrack.testing import fixtures
from devicetrack.testing.fixtures import FREE
from devicetrack.testing.fixtures import Instance
from devicetrack.tests import base
from devicetrack.virt.driver import Confirm

D0 = DeviceKey('vpmem', 'd0')
DATA = b'of a guest that is off'


class OwnersTestCase(base.TestCase):

    policy = vocabulary.VERIFY

    def setUp(self) -> None:
        super().setUp()
        self.host = self.useFixture(fixtures.Host(devices=1, ready=False))
        self.host.configuration.set('devicetrack', unproven_devices=self.policy)
        self.elsewhere = self.useFixture(fixtures.Configuration(self.temp_dir()))
        self.machine, self.instance = self.host.machine, Instance()
        self.machine.unproven.add(D0)

    def start(self, data: bytes) -> None:
        """Start the manager. It begins no work in the background until :meth:`work`."""
        if data:
            self.machine.write(D0, data)
        self.host.manager.init_host(self.context, background=False)

    def work(self) -> None:
        """Let the manager of this moment prove what is unproven, and wait for that."""
        unproven = self.host.running.unproven
        unproven.begin()
        unproven.wait()

    def adopt(self) -> None:
        self.host.manager.adopt(None, self.instance, [D0])

    def adopt_by_newer(self) -> None:
        """Let another manager, which has taken the host over, adopt the device."""
        driver = fake.FakeDriver(self.host.name, self.elsewhere.conf, self.elsewhere.state_path, self.machine)
        newer = ClaimManager(self.host.name, driver, self.host.store, self.elsewhere.conf, self.host.service)
        self.addCleanup(newer.close)
        newer.init_host(self.context, background=False)
        self.host.manager = newer               # whose ledger and rows must agree when the test ends
        newer.adopt(None, self.instance, [D0])

    def refused(self, adopt: Callable[[], None], reason: str) -> None:
        self.assertIn(reason, self.assertRaises(exception.NotAdopted, adopt).reason)

    def before(self, how: str, action: Callable[[], None]) -> None:
        """Do something once, after the manager chose the device and before the driver takes its lock."""
        plain = self.host.driver.prove
        done: list[None] = []

        def prove(assignments: Sequence[DeviceAssignment], wanted: str, *confirm: object) -> object:
            if wanted == how and not done:
                done.append(None)
                action()
            return plain(assignments, wanted, *confirm)     # type: ignore[arg-type]

        self.patch(self.host.driver, 'prove', prove)

    def check_adopted(self) -> None:
        """The instance has the device, and nothing on the host calls the device clean."""
        self.assertEqual({'d0': self.instance.uuid}, self.host.owners())
        self.assertIn(D0, self.machine.unproven)


class WipedTestCase(OwnersTestCase):

    policy = vocabulary.WIPE

    def test_what_is_about_to_be_wiped_is_not_adopted(self) -> None:
        self.start(DATA)
        self.before(vocabulary.WIPE, lambda: self.refused(self.adopt, 'wiped right now'))
        self.work()
        self.assertEqual(({}, FREE, b''), (self.host.owners(), self.host.states()['d0'], self.machine.read(D0)))
        self.adopt()
        self.check_adopted()

    def test_what_is_about_to_be_wiped_is_not_adopted_after_the_ledger_was_rebuilt(self) -> None:
        def action() -> None:
            self.host.running.ledger.discard()
            self.refused(self.adopt, 'wiped right now')

        self.start(DATA)
        self.before(vocabulary.WIPE, action)
        self.work()
        self.assertEqual({}, self.host.owners())

    def test_what_is_being_adopted_is_not_wiped(self) -> None:
        self.start(DATA)
        self.host.store.before('write', self.work)
        self.adopt()
        self.check_adopted()
        self.assertEqual(DATA, self.machine.read(D0))

    def test_a_manager_that_was_taken_over_wipes_nothing(self) -> None:
        self.start(DATA)
        self.before(vocabulary.WIPE, self.adopt_by_newer)
        self.work()
        self.check_adopted()
        self.assertEqual(DATA, self.machine.read(D0))

    def test_what_the_older_manager_wipes_is_not_adopted(self) -> None:
        self.start(DATA)
        self.machine.before('wipe', lambda: self.refused(self.adopt_by_newer, 'works on it'), times=1)
        self.work()
        self.assertEqual({}, self.host.owners())

    def test_a_host_that_is_report_only_by_now(self) -> None:
        self.start(DATA)
        self.before(vocabulary.WIPE, lambda: self.host.running.gate.judge(StoreBehind('behind', frozenset())))
        self.work()
        self.assertEqual(DATA, self.machine.read(D0))

    def test_a_manager_that_closes_begins_no_wipe(self) -> None:
        self.start(DATA)
        self.before(vocabulary.WIPE, self.host.running.unproven._stop.set)
        self.work()
        self.assertEqual(DATA, self.machine.read(D0))


class RequestedTestCase(WipedTestCase):
    """As with the policy, when an operator names the device."""

    policy = vocabulary.VERIFY

    def work(self) -> None:
        unproven = self.host.running.unproven
        with contextlib.suppress(exception.BadRequest):         # it is held by now, so the request is refused
            self.host.manager.operator.admit('vpmem', 'd0', wipe=True)
        unproven.wait()


class ReadTestCase(OwnersTestCase):
    """Reading changes nothing, so the device may get an owner meanwhile."""

    def check_read(self) -> None:
        self.machine.wiping[D0] = WipeProgress('read', 1, 2, 1, None)
        self.work()
        self.check_adopted()

    def test_what_is_adopted_while_it_is_read_is_not_proven(self) -> None:
        self.start(b'\0')
        self.machine.before('read', self.adopt, times=1)
        self.check_read()

    def test_nor_if_that_happens_after_the_last_look_at_its_row(self) -> None:
        plain = self.host.driver.prove

        def prove(assignments: Sequence[DeviceAssignment], how: str, confirm: Confirm) -> object:
            def adopted(assignment: DeviceAssignment) -> None:
                confirm(assignment)
                self.adopt()

            return plain(assignments, how, adopted)

        self.start(b'\0')
        self.patch(self.host.driver, 'prove', prove)
        self.check_read()

    def test_nor_a_part_of_a_card_that_is_claimed_whole(self) -> None:
        self.machine.change(D0, exclusions=(('card', vocabulary.WHOLE),))
        part = self.machine.add_namespace('d1', proven=False, exclusions=[('card', vocabulary.PART)])
        self.machine.write(part, b'\0')
        self.start(b'')
        self.machine.before('read', lambda: self.host.spawn(self.instance, pmem=1), times=1)
        self.check_read()
        self.assertIn(part, self.machine.unproven)

    def test_nor_what_a_newer_manager_adopts(self) -> None:
        self.start(b'\0')
        self.machine.before('read', self.adopt_by_newer, times=1)
        self.check_read()

    def test_nor_what_is_adopted_while_the_host_is_asked_whether_it_is_blank(self) -> None:
        self.machine.add_namespace('d1', proven=False)
        self.start(DATA)
        self.machine.contents.clear()
        self.before(vocabulary.BLANK, self.adopt)
        self.host.running.unproven.look()
        self.check_adopted()
        self.host.running.unproven.look()
        self.assertEqual({D0}, self.machine.unproven)
