"""What a manager tells its meter, and that no meter can harm it."""

from __future__ import annotations

import os
from typing import Any

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.claims import locks
from devicetrack.claims import metering
from devicetrack.claims.gate import StoreBehind
from devicetrack.claims.metering import HostState
from devicetrack.claims.metering import Meter
from devicetrack.engine import findings
from devicetrack.testing import fixtures
from devicetrack.testing.fixtures import FREE
from devicetrack.testing.fixtures import Instance
from devicetrack.tests import base

UNKNOWN = exception.OutcomeUnknown('store')


class Notebook(Meter):
    """Writes down what it is told, without the times, of which it sees that they are some."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []
        self.states: list[HostState] = []

    def _note(self, seconds: float, *facts: Any) -> None:
        if seconds < 0:
            raise AssertionError(f'{facts} took {seconds} s')
        self.told.append(facts)

    def called(self, call: str, seconds: float, error: BaseException | None) -> None:
        self._note(seconds, call, type(error).__name__ if error is not None else 'done')

    def committed(self, seconds: float, error: BaseException | None) -> None:
        self._note(seconds, 'commit', type(error).__name__ if error is not None else 'done')

    def settled(self, happened: bool) -> None:
        self.told.append(('settled', happened))

    def wiped(self, kind: str, size_bytes: int | None, seconds: float) -> None:
        self._note(seconds, 'wiped', kind, size_bytes)

    def wipe_failed(self, kind: str) -> None:
        self.told.append(('wipe failed', kind))

    def audited(self, seconds: float, state: HostState | None) -> None:
        self._note(seconds, 'audit', 'given up' if state is None else 'done')
        if state is not None:
            self.states.append(state)


class MeteringTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.host = self.useFixture(fixtures.Host(devices=2, parents={'card': 2}, ready=False))
        self.notebook = self.host.manager.metering.meter = Notebook()
        self.host.manager.init_host(None)
        self.told().clear()

    def told(self, *wanted: str) -> list[tuple[Any, ...]]:
        """What was told, or of it what begins with one of some words."""
        return [one for one in self.notebook.told if one[0] in wanted] if wanted else self.notebook.told

    def instance_of_a_guest_that_is_gone(self) -> Instance:
        instance = self.host.spawn(pmem=1)
        [record] = self.host.records(instance)
        self.host.machine.write(record.key, b'secret')
        self.host.machine.delete_guest(instance.uuid)
        return instance


class CallsTestCase(MeteringTestCase):

    def test_a_guest_from_its_claim_to_its_release(self) -> None:
        instance = self.host.spawn(vgpu=1)
        self.host.delete(instance)
        self.assertEqual([(metering.INSTANCE_CLAIM, 'done'), (metering.REALIZE, 'done'), (metering.RELEASE, 'done')],
                         self.told(*metering.CALLS))
        self.assertEqual({('commit', 'done')}, set(self.told('commit')))
        self.assertEqual([], self.told('wiped'))                # no wiped device is among them

    def test_a_refusal_has_its_error(self) -> None:
        self.assertRaises(exception.NoFit, self.host.claim, Instance(), pmem=3)
        self.assertRaises(exception.BadRequest, self.host.claim, Instance(), {'x': {'resources': 'y'}})
        self.assertEqual([(metering.INSTANCE_CLAIM, 'NoFit'), (metering.INSTANCE_CLAIM, 'BadRequest')], self.told())

    def test_a_claim_that_takes_nothing_is_none(self) -> None:
        self.host.manager.instance_claim(None, Instance(), 'host', None)
        instance = self.host.spawn(pmem=1)
        self.told().clear()
        instance.host = 'host'
        self.host.manager.rebuild_claim(None, instance, 'host', None)
        self.assertEqual([], self.told())

    def test_every_claim_has_its_name(self) -> None:
        instance = self.host.spawn(vgpu=1)
        self.told().clear()
        self.host.resize(instance, vgpu=1)
        manager = self.host.manager
        for call in (manager.live_migration_claim, manager.rebuild_claim):
            self.assertRaises(exception.NodeUnavailable, call, None, Instance(), 'elsewhere', None, None)
        self.assertEqual([(metering.RESIZE_CLAIM, 'done'), (metering.LIVE_MIGRATION_CLAIM, 'NodeUnavailable'),
                          (metering.REBUILD_CLAIM, 'NodeUnavailable')], self.told(*metering.CALLS))

    def test_a_meter_may_come_and_go(self) -> None:
        self.host.manager.metering.meter = None
        self.host.claim(Instance(), pmem=1)
        self.assertEqual([], self.told())
        self.host.manager.metering.meter = self.notebook
        self.host.claim(Instance(), pmem=1)
        self.assertEqual([('commit', 'done'), (metering.INSTANCE_CLAIM, 'done')], self.told())

    def test_a_child_of_the_process_tells_nothing(self) -> None:
        child = os.getpid() + 1
        self.patch(os, 'getpid', lambda: child)
        self.assertRaises(exception.ForkedManager, self.host.claim, Instance(), pmem=1)
        self.assertEqual([], self.told())


class CommitsTestCase(MeteringTestCase):

    def test_a_commit_in_doubt_and_its_end(self) -> None:
        for stage, happened in (('before', False), ('after', True)):
            getattr(self.host.store, stage)('write', UNKNOWN)
            self.assertRaises(exception.OutcomeUnknown, self.host.claim, Instance(), pmem=1)
            self.assertEqual([('commit', 'OutcomeUnknown'), (metering.INSTANCE_CLAIM, 'OutcomeUnknown')], self.told())
            self.assertEqual(1, self.host.manager.state().in_doubt)
            self.host.audit()
            self.assertEqual([('settled', happened)], self.told('settled'))
            self.assertEqual(0, self.host.manager.state().in_doubt)
            self.told().clear()

    def test_a_commit_that_is_refused(self) -> None:
        self.host.store.before('write', exception.StoreUnavailable('store', 'full'))
        self.assertRaises(exception.StoreUnavailable, self.host.claim, Instance(), pmem=1)
        self.assertEqual([('commit', 'StoreUnavailable'), (metering.INSTANCE_CLAIM, 'StoreUnavailable')], self.told())


class WipesTestCase(MeteringTestCase):

    def test_a_wipe_has_the_bytes_of_its_device(self) -> None:
        self.host.manager.release(None, self.instance_of_a_guest_that_is_gone())
        self.assertEqual([('wiped', 'vpmem', 4 << 30)], self.told('wiped'))

    def test_a_wipe_in_the_background_too(self) -> None:
        self.host.manager.release(None, self.instance_of_a_guest_that_is_gone(), wait=False)
        self.host.wait()
        self.assertEqual([('wiped', 'vpmem', 4 << 30)], self.told('wiped'))

    def test_a_device_that_no_guest_had_is_not_wiped(self) -> None:
        self.host.claim(Instance(), pmem=1).abort()
        self.assertEqual(([], {'d0': FREE, 'd1': FREE}), (self.told('wiped'), self.host.states()))

    def test_each_try_that_fails(self) -> None:
        instance = self.instance_of_a_guest_that_is_gone()
        self.host.machine.before('wipe', exception.UnclaimFailed('vpmem', 'd0', 'a bad block'), times=2)
        for _ in range(2):
            self.assertRaises(exception.UnclaimFailed, self.host.manager.release, None, instance)
        self.host.manager.release(None, instance)
        self.assertEqual([('wipe failed', 'vpmem')] * 2 + [('wiped', 'vpmem', 4 << 30)],
                         self.told('wiped', 'wipe failed'))

    def test_a_guest_that_is_still_there_is_no_failure(self) -> None:
        instance = self.host.spawn(pmem=1)
        self.assertRaises(exception.DeviceInUse, self.host.manager.release, None, instance)
        self.assertEqual([], self.told('wiped', 'wipe failed'))


class AuditsTestCase(MeteringTestCase):

    def test_a_start_is_an_audit(self) -> None:
        self.assertEqual(1, len(self.notebook.states))

    def test_an_audit_says_what_it_found(self) -> None:
        self.host.machine.start_guest(Instance().uuid, self.host.manager.guest_config(self.host.spawn(vgpu=1)).devices)
        self.host.manager.operator.cordon('vpmem', 'd0')
        self.host.audit()
        state = self.notebook.states[-1]
        assert state.audited is not None
        self.assertEqual({finding.kind for finding in self.host.findings},
                         {kind for kind, _severity in state.audited.findings})
        self.assertEqual({'cordoned': 1}, state.audited.withheld)
        self.assertEqual(state.audited, self.host.manager.state().audited)

    def test_an_audit_that_is_given_up(self) -> None:
        self.host.machine.before('get_usage', exception.HypervisorUnreachable('fake', 'away'))
        self.assertRaises(exception.HypervisorUnreachable, self.host.audit)
        self.assertEqual([('audit', 'given up')], self.told('audit'))

    def test_findings_are_those_of_the_last_audit(self) -> None:
        seen = []
        for reason in ('the card is lost', ''):
            self.host.machine.unknown_kinds = {'mdev': reason} if reason else {}
            self.host.audit()
            audited = self.host.manager.state().audited
            assert audited is not None
            seen.append(dict(audited.findings))
        self.assertEqual([{(findings.VIEW_UNKNOWN, vocabulary.WARNING): 1}, {}], seen)


class HarmlessTestCase(MeteringTestCase):

    def test_a_meter_that_fails_harms_no_call(self) -> None:
        class Broken(Meter):
            pass

        def fail(*_facts: Any) -> None:
            raise ZeroDivisionError

        for name in ('called', 'committed', 'settled', 'wiped', 'wipe_failed', 'audited'):
            setattr(Broken, name, staticmethod(fail))
        self.host.manager.metering.meter = Broken()
        instance = self.instance_of_a_guest_that_is_gone()
        self.host.manager.release(None, instance)
        self.assertRaises(exception.NoFit, self.host.claim, Instance(), pmem=3)
        self.host.store.after('write', UNKNOWN)
        self.assertRaises(exception.OutcomeUnknown, self.host.claim, Instance(), pmem=1)
        self.host.audit()
        self.assertEqual({'d0': FREE, 'd1': FREE}, self.host.states())

    def test_no_lock_is_held_while_a_meter_is_told(self) -> None:
        held: list[object] = []

        class Looking(Meter):
            def called(self, call: str, seconds: float, error: BaseException | None) -> None:
                held.extend(locks.held())

            def committed(self, seconds: float, error: BaseException | None) -> None:
                held.append(locks.ledger_is_held())

            def audited(self, seconds: float, state: HostState | None) -> None:
                held.extend(locks.held())

        self.host.manager.metering.meter = Looking()
        self.host.delete(self.host.spawn(pmem=1, vgpu=1))
        self.host.audit()
        self.assertEqual({False}, set(held))


class StateTestCase(base.TestCase):

    def test_no_state_before_the_start_and_after_the_end(self) -> None:
        host = self.useFixture(fixtures.Host(devices=1, ready=False))
        self.assertRaises(exception.NotReady, host.manager.state)
        host.manager.init_host(None)
        host.running.gate.judge(StoreBehind('for a test', frozenset()))
        state = host.manager.state()
        self.assertEqual((False, 0, [(1, 1)]), (state.takes_claims, state.in_doubt,
                                                [(pool.total, pool.free) for pool in state.pools or ()]))
        assert state.audited is not None
        self.assertIsNone(state.audited.withheld)               # nobody counted them
        host.running.ledger.discard()
        self.assertIsNone(host.manager.state().pools)
        host.audit()
        host.manager.close()
        self.assertRaises(exception.NotReady, host.manager.state)
