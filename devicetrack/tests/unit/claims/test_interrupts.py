"""Whatever line an exception from outside interrupts: without a restart, every device has a row or is free."""

from __future__ import annotations

from collections.abc import Callable
import contextlib
from typing import Any

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.claims.claim import Claim
from devicetrack.objects.values import DeviceKey
from devicetrack.testing import fixtures
from devicetrack.testing.fixtures import HELD
from devicetrack.testing.fixtures import Instance
from devicetrack.tests import base
from devicetrack.tests import interrupts


class EveryLineTestCase(base.TestCase):
    """Runs an operation again and again, each time interrupted at another line."""

    scenarios = base.table(
        ('interrupt', interrupts.Interrupt), ('no memory', MemoryError), names=('error',))

    def setUp(self) -> None:
        super().setUp()
        self.host = self.useFixture(fixtures.Host(devices=2, parents={'card': 1}))
        self.instance = Instance()

    def check(self, where: str) -> None:
        """Nothing is wedged, and nobody needs a restart."""
        host = self.host
        host.audit()
        self.assertEqual([], host.audit(), where)
        self.assertEqual((), host.running.rows.doubts, where)
        self.assertNotIn(HELD, host.states().values(), where)
        self.assertEqual(host.owners(), host.held(), where)
        self.assertEqual([], host.disagreements(), where)
        host.manager.release(host.context, self.instance)
        host.audit()
        self.assertEqual(({}, {}, 3), (host.owners(), host.held(), host.free()), where)
        with self.host.claim(other := Instance(), pmem=2, vgpu=1):
            host.manager.realize(host.context, other)
        host.manager.release(host.context, other)
        self.assertEqual(({}, {}, 3), (host.owners(), host.held(), host.free()), where)

    def interrupt(self, operation: Callable[[], Any], prepare: Callable[[], Any] = lambda: None,
                  check: Callable[[str], None] | None = None,
                  lines_of: type[interrupts.Lines] = interrupts.Lines) -> None:
        lines = lines_of()
        for _warm in range(2):                  # the first time, statements are compiled and modules are loaded
            prepare()
            lines = lines_of()
            lines.run(operation)
            (check or self.check)('nowhere')
        self.assertLess(50, lines.count)
        interrupted = 0
        for number in interrupts.chosen(lines.count, len(self.id())):
            self.instance = Instance()
            prepare()
            lines = lines_of(number, self.error)
            came_out = lines.run(operation)
            interrupted += came_out
            where = f'{lines.where}, line {number} of {lines.count}'
            try:
                (check or self.check)(where)
            except exception.DeviceTrackError as error:
                raise AssertionError(where) from error
        self.assertLess(0, interrupted)

    def claim(self) -> Claim:
        return self.host.claim(self.instance, pmem=1, vgpu=1)

    def release(self) -> None:
        self.host.manager.release(self.host.context, self.instance)

    def test_of_a_claim(self) -> None:
        got: list[Claim] = []
        kept: list[Claim] = []                  # claims that are on their way to the caller
        keep = Claim.keep

        def kept_by(claim: Claim) -> Claim:
            kept.append(keep(claim))
            return claim

        def prepare() -> None:
            got.clear()
            kept.clear()

        def check(where: str) -> None:
            self.host.audit()
            if not got and not kept:
                self.assertEqual({}, self.host.owners(), where)
            self.check(where)

        self.patch(Claim, 'keep', kept_by)
        self.interrupt(lambda: got.append(self.claim()), prepare, check)

    def test_of_a_claim_in_its_locks(self) -> None:
        self.interrupt(self.claim, lines_of=interrupts.LinesOfLocks)

    def test_of_a_release(self) -> None:
        def prepare() -> None:
            self.host.spawn(self.instance, pmem=1, vgpu=1)
            self.host.delete_guest(self.instance.uuid)

        self.interrupt(self.release, prepare)

    def test_of_a_claim_whose_block_fails(self) -> None:
        def fail() -> None:
            try:
                with self.claim():
                    self.host.manager.realize(self.host.context, self.instance)
                    raise RuntimeError
            except RuntimeError:
                pass

        self.interrupt(fail)

    def test_of_a_boot(self) -> None:
        def boot() -> None:
            with self.claim():
                self.host.manager.realize(self.host.context, self.instance)
                self.host.manager.guest_config(self.instance)
                self.host.manager.started(self.host.context, self.instance)

        self.interrupt(boot)

    def test_of_a_boot_past_a_device_that_fails(self) -> None:
        host = self.host

        def boot() -> None:
            with host.claim(self.instance, pmem=1):
                host.manager.realize(host.context, self.instance)
                host.manager.started(host.context, self.instance)

        def prepare() -> None:
            host.machine.before('realize', exception.RealizeFailed('vpmem', 'one', 'it does not answer'), times=1)

        def check(where: str) -> None:
            host.machine.clear()
            host.audit()
            # Claims may try again what the host reports in another way than before.
            for unhealthy in ('a bad block', None):
                for name in ('d0', 'd1'):
                    host.machine.change(DeviceKey('vpmem', name), unhealthy=unhealthy)
                host.audit()
            host.manager.release(host.context, self.instance)
            for unhealthy in ('a bad block', None):
                for name in ('d0', 'd1'):
                    host.machine.change(DeviceKey('vpmem', name), unhealthy=unhealthy)
                host.audit()
            self.check(where)

        self.interrupt(boot, prepare, check)

    def test_of_a_retire(self) -> None:
        host = self.host

        def prepare() -> None:
            host.spawn(self.instance, pmem=1)
            host.delete_guest(self.instance.uuid)
            host.machine.before('wipe', exception.UnclaimFailed('vpmem', 'd0', 'a bad block'), times=1)
            with contextlib.suppress(exception.UnclaimFailed):
                self.release()

        def retire() -> None:
            for name in host.owners():
                host.manager.operator.retire('vpmem', name, self.instance.uuid, 'a bad block')

        def check(where: str) -> None:
            host.audit()                        # settles the commit
            host.wait()
            for one in host.manager.operator.withheld():
                if vocabulary.RETIRED in one.causes and one.target.name not in host.owners():
                    host.manager.operator.admit('vpmem', one.target.name, wipe=True)
                    host.running.unproven.wait()
            if host.owners():                   # then an audit gives it back
                host.audit()
                host.wait()
            for name in ('d0', 'd1'):
                with contextlib.suppress(exception.BadRequest):
                    host.manager.operator.admit('vpmem', name)
            self.check(where)

        self.interrupt(retire, prepare, check)

    def test_of_a_cordon_and_its_end(self) -> None:
        host = self.host

        def check(where: str) -> None:
            host.audit()
            cordoned = [name for name in ('d0', 'd1') if host.states()[name] == 'withheld: cordoned']
            self.assertEqual(cordoned, [one.target.name for one in host.manager.operator.withheld()], where)
            host.manager.operator.uncordon('vpmem', 'd0')        # as an operator repeats it
            self.check(where)

        self.interrupt(lambda: host.manager.operator.cordon('vpmem', 'd0'), check=check)
        self.interrupt(lambda: host.manager.operator.uncordon('vpmem', 'd0'),
                       lambda: host.manager.operator.cordon('vpmem', 'd0'), check)

    def test_of_a_forget(self) -> None:
        host = self.host

        def prepare() -> None:
            host.spawn(self.instance, pmem=1)
            host.delete_guest(self.instance.uuid)
            [record] = host.records()
            host.machine.remove(record.key)
            host.audit()

        def forget() -> None:
            """As an audit does it for a command, within a call."""
            host.manager._go_on(host.running, lambda running: [
                running.repairs.forget(record.key, self.instance.uuid) for record in host.records()])

        def check(where: str) -> None:
            host.audit()
            self.assertEqual(host.owners(), host.held(), where)
            for record in host.records():
                host.running.repairs.forget(record.key, self.instance.uuid)
            self.assertEqual({}, host.held(), where)
            for name in ('d0', 'd1'):
                if DeviceKey('vpmem', name) not in host.machine.devices:
                    host.machine.add_namespace(name)
            host.audit()
            for name in ('d0', 'd1'):
                with contextlib.suppress(exception.BadRequest):
                    host.manager.operator.admit('vpmem', name)
            host.running.unproven.wait()
            self.check(where)

        self.interrupt(forget, prepare, check)

    def test_of_an_audit(self) -> None:
        self.interrupt(self.host.audit, lambda: self.host.claim(self.instance, pmem=1))

    def test_of_a_close(self) -> None:
        def check(where: str) -> None:
            manager = self.host.manager
            manager.close()
            self.assertRaises(exception.NotReady, manager.assignments)
            self.host.manager = self.host.another_manager()
            self.host.manager.init_host(self.host.context)
            self.check(where)

        def closes_and_starts(where: str) -> None:
            self.host.manager.init_host(self.host.context)
            self.check(where)

        for then in (check, closes_and_starts):
            self.interrupt(self.host_closes, lambda: self.host.claim(self.instance, pmem=1), then)

    def host_closes(self) -> None:
        self.host.manager.close()

    def test_of_a_start(self) -> None:
        def prepare() -> None:
            self.host.spawn(self.instance, pmem=1, vgpu=1)
            self.host.delete_guest(self.instance.uuid)
            self.host.manager.close()
            self.host.manager = self.host.another_manager()

        def start() -> None:
            self.host.manager.init_host(self.host.context)

        def check(where: str) -> None:
            start()
            self.check(where)

        self.interrupt(start, prepare, check)
