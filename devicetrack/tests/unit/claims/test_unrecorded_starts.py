"""A guest runs, and ``started`` fails in the block of its claim: the devices stay the guest's, until it is gone."""

from __future__ import annotations

from collections.abc import Callable
import inspect
import sys
from typing import Any

from devicetrack import exception
from devicetrack.claims.claim import Claim
from devicetrack.claims.manager import ClaimManager
from devicetrack.objects.values import DeviceKey
from devicetrack.testing import fixtures
from devicetrack.testing.fixtures import Instance
from devicetrack.tests import base
from devicetrack.tests import interrupts

GONE = exception.StoreUnavailable('store', 'gone')
DATA = b'what the guest wrote'


def _line_that_returns() -> str:
    lines, first = inspect.getsourcelines(ClaimManager.started)
    return f'claims/manager.py:{first + len(lines) - 1}'


RETURN = _line_that_returns()


class Refused(Exception):
    """Stands for whatever the service's own object raises."""


class Armed(Instance):
    """An instance that refuses its devices from some moment on."""

    armed = False

    def __setattr__(self, name: str, value: Any) -> None:
        if name == 'resources' and self.armed:
            raise Refused
        super().__setattr__(name, value)


class HostTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.host = self.useFixture(fixtures.Host(devices=2))

    def boot(self, claim: Claim) -> None:
        """Start the guest of a claim, which writes to its device."""
        host, instance = self.host, claim.instance
        host.manager.realize(self.context, instance)
        host.start_guest(instance.uuid, host.manager.guest_config(instance))
        for record in host.records(instance):
            host.machine.write(record.key, DATA)

    def start_without_record(self, instance: Instance, afterwards: Callable[[], object] = lambda: None) -> None:
        """Start a guest in the block of its claim. The store does not record it.

        :param afterwards: what happens before the block ends
        """
        with self.host.claim(instance, pmem=1) as claim:
            self.boot(claim)
            self.host.store.before('write', GONE, times=1)
            try:
                self.host.manager.started(self.context, instance)
            finally:
                afterwards()

    def check_it_runs(self, instance: Instance, where: str = '') -> None:
        """It has its device and its data, also when its domain is undefined for a hard reboot."""
        host = self.host
        host.audit()
        [row] = host.records(instance)
        self.assertEqual('active', row.state, where)
        host.machine.delete_guest(instance.uuid)
        host.audit()
        self.assertEqual((['active'], DATA), ([row.state for row in host.records(instance)],
                                              host.machine.read(row.key)))
        host.manager.release(self.context, instance)
        self.assertEqual([], host.records(instance))


class ErrorsTestCase(HostTestCase):

    def test_the_manager_was_closed_meanwhile(self) -> None:
        instance = Instance()

        def block() -> None:
            with self.host.claim(instance, pmem=1) as claim:
                self.boot(claim)
                self.host.manager.close()
                self.host.manager.started(self.context, instance)

        self.assertRaises(exception.NotReady, block)
        self.assertEqual(['claimed'], [row.state for row in self.host.records()])
        self.host.manager.init_host(self.context)
        self.check_it_runs(instance)

    def test_the_manager_was_closed_and_started_again(self) -> None:
        instance = Instance()

        def block() -> None:
            with self.host.claim(instance, pmem=1) as claim:
                self.boot(claim)
                try:
                    self.host.manager.close()
                    self.host.manager.started(self.context, instance)
                finally:
                    self.host.manager.init_host(self.context)

        self.assertRaises(exception.NotReady, block)
        self.check_it_runs(instance)

    def test_the_instance_refuses_its_devices(self) -> None:
        instance = Armed()

        def block() -> None:
            with self.host.claim(instance, pmem=1) as claim:
                self.boot(claim)
                instance.resources, instance.armed = None, True
                self.host.manager.started(self.context, instance)

        self.assertRaises(Refused, block)
        instance.armed = False
        self.check_it_runs(instance)

    def test_an_audit_records_it_before_the_block_ends(self) -> None:
        instance = Instance()

        self.assertRaises(exception.StoreUnavailable, self.start_without_record, instance, self.host.audit)
        self.check_it_runs(instance)

    def test_once_it_is_recorded_an_error_in_the_block_gives_back_as_any_other(self) -> None:
        instance = Instance()

        def block() -> None:
            with self.host.claim(instance, pmem=1) as claim:
                self.boot(claim)
                self.host.manager.started(self.context, instance)
                raise Refused

        self.assertRaises(Refused, block)
        self.assertEqual(['releasing'], [row.state for row in self.host.records()])

    def test_a_claim_that_the_service_aborts_itself_goes_back(self) -> None:
        instance = Instance()

        def block() -> None:
            with self.host.claim(instance, pmem=1) as claim:
                self.boot(claim)
                self.host.store.before('write', GONE, times=1)
                try:
                    self.host.manager.started(self.context, instance)
                finally:
                    self.host.machine.delete_guest(instance.uuid)
                    claim.abort()

        self.assertRaises(exception.StoreUnavailable, block)
        self.assertEqual(([], b''), (self.host.records(), self.host.machine.read(DeviceKey('vpmem', 'd0'))))


class LaterClaimTestCase(HostTestCase):
    """The store did not answer when a guest started, and an audit recorded that. Then the guest moves on its host."""

    def setUp(self) -> None:
        super().setUp()
        self.instance = Instance(host='host')
        self.assertRaises(exception.StoreUnavailable, self.start_without_record, self.instance)
        self.host.audit()

    def resize(self) -> None:
        migration = fixtures.Migration('host', 'host', self.instance.uuid)
        with self.host.manager.resize_claim(self.context, self.instance, 'host', fixtures.a_request(pmem=1), migration):
            raise Refused

    def check_it_is_undone(self) -> None:
        self.assertRaises(Refused, self.resize)
        self.assertEqual([('d0', 'current', 'active')],
                         [(row.identifier, row.role, row.state) for row in self.host.records()])
        self.check_it_runs(self.instance)

    def test_its_failure_is_undone(self) -> None:
        self.check_it_is_undone()

    def test_also_after_a_reboot_whose_record_needed_no_change(self) -> None:
        self.host.store.before('check_epoch', GONE, times=1)
        self.assertRaises(exception.StoreUnavailable, self.host.manager.started, self.context, self.instance)
        self.check_it_is_undone()


class InterruptsTestCase(HostTestCase):
    """Whatever line of ``started`` an exception from outside interrupts, the guest has its devices.

    Only the lines that note the call, before all others, and the one that returns, are as those of the block.
    """

    def start(self, at: int | None) -> interrupts.Lines:
        instance, lines = Instance(), interrupts.Lines(at)
        try:
            with self.host.claim(instance, pmem=1) as claim:
                self.boot(claim)
                try:
                    raise LookupError
                except LookupError:             # as in Lines.run, which would not let the error through
                    before = sys.gettrace()
                    sys.settrace(lines._calls)
                    try:
                        self.host.manager.started(self.context, instance)
                    finally:
                        sys.settrace(before)
        except (interrupts.Interrupt, exception.StoreError):        # the store may make one of the other
            pass
        if lines.where != RETURN:
            self.check_it_runs(instance, lines.where)
        return lines

    def test_at_every_line(self) -> None:
        for _warm in range(2):
            lines = self.start(None)
        for number in (7, *(7 + number for number in interrupts.chosen(lines.count - 7, 7)), lines.count - 2):
            self.start(number)
