"""Refused claims are events of the history."""

from __future__ import annotations

from typing import Any

import fixtures as test_fixtures

from devicetrack import exception
from devicetrack.claims import refusals
from devicetrack.objects import DeviceRequest
from devicetrack.objects import RequestedDevices
from devicetrack.objects.event import Event
from devicetrack.testing import fixtures
from devicetrack.testing.fixtures import Instance
from devicetrack.tests import base
from devicetrack.tests.unit.cmd import program

REQUEST = 'req-7b0c5a3e-91d1-4a0e-9c55-2f1f4f6c7d80'


class Context:
    request_id, user_id, project_id = REQUEST, 'ann', 'research'


class RefusalsTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.host = self.useFixture(fixtures.Host(devices=2, name='compute-7'))
        self.host.context = Context()
        self.instance, self.uuid = Instance(), self.host.manager.state().host_uuid

    def refuse(self, instance: Instance | None = None, times: int = 1, **wanted: Any) -> None:
        for _time in range(times):
            self.assertRaises(exception.NoFit, self.host.claim, instance or self.instance, **(wanted or {'pmem': 3}))

    def events(self) -> list[Event]:
        return [one.event for one in reversed(self.host.store.store.latest_events(self.uuid, 10 ** 6))
                if one.event.event == 'refused']

    def counts(self) -> list[int]:
        return [one.more['count'] for one in self.events()]


class NotedTestCase(RefusalsTestCase):

    def test_the_history_of_the_instance_says_why_and_who_asked(self) -> None:
        self.refuse()
        self.host.audit()
        shell = self.useFixture(program.Program(self.host.configuration, self.host.machine))
        [found] = shell.ask('instance', 'history', self.instance.uuid)
        self.assertEqual(
            ('refused', None, None, f'{fixtures.PMEM}=3', 1, 'NoFit', 'user ann of project research', REQUEST,
             'compute-7'), tuple(found[name] for name in (
                'event', 'device', 'scope', 'wanted', 'count', 'reason', 'by', 'request_id', 'host')))
        self.assertIn('3 CUSTOM_PMEM_NAMESPACE_4GB wanted, 2 of 2 free', found['why'])
        self.assertEqual(found['first_at'], found['at'])
        text = shell.run('instance', 'history', self.instance.uuid).out
        self.assertIn(f'refused   {fixtures.PMEM}=3', text)
        self.assertIn('2 of 2 free', ' '.join(text.split()))

    def test_a_list_of_all_names_the_instances(self) -> None:
        self.host.spawn(pmem=1)
        self.refuse()
        self.host.audit()
        shell = self.useFixture(program.Program(self.host.configuration, self.host.machine))
        self.assertEqual(shell.ask('instance', 'history', self.instance.uuid),
                         shell.ask('instance', 'history', '--refused', '--since', '1h'))
        text = ' '.join(shell.run('instance', 'history', '--refused').out.split())
        self.assertIn(f'refused {self.instance.uuid} on compute-7; {fixtures.PMEM}=3; NoFit', text)
        answer = shell.run('instance', 'history', '--refused', '--until', '2020-01-01')
        self.assertEqual((0, '', 'devicetrack-manage: there is no event of a refused claim in that time\n'), answer)

    def test_each_reason_of_a_refusal_is_noted(self) -> None:
        self.assertRaises(exception.NodeUnavailable, self.host.manager.instance_claim, self.host.context, self.instance,
                          'compute-8', fixtures.a_request(pmem=1))
        self.host.store.before('write', exception.StoreUnavailable('store', 'full'))
        self.assertRaises(exception.StoreUnavailable, self.host.claim, self.instance, pmem=1)
        self.host.claim(self.instance, pmem=1)
        self.assertRaises(exception.InstanceHasClaim, self.host.claim, self.instance, pmem=1)
        self.host.audit()
        self.assertEqual(['NodeUnavailable', 'StoreUnavailable', 'InstanceHasClaim'],
                         [one.more['reason'] for one in self.events()])

    def test_a_claim_that_may_have_happened_is_not_refused(self) -> None:
        self.host.store.after('write', exception.OutcomeUnknown('store'))
        self.assertRaises(exception.OutcomeUnknown, self.host.claim, self.instance, pmem=1)
        self.host.audit()
        self.assertEqual([], self.events())

    def test_no_store_is_asked_during_the_claim(self) -> None:
        for name in ('set_withheld', 'latest_events'):
            self.host.store.before(name, exception.StoreUnavailable('store', 'full'), times=1)
        self.refuse()
        self.host.audit()
        self.assertEqual([], self.events())
        self.host.audit()
        self.host.audit()
        self.assertEqual([1], self.counts())

    def test_a_claim_whose_request_cannot_be_read_gets_its_own_error(self) -> None:
        self.assertRaises(exception.BadRequest, self.host.claim, self.instance, request={'p': 1})
        self.assertRaises(exception.BadRequest, self.host.claim, self.instance, request={'p': {'resources': {1: 'x'}}})
        log = self.useFixture(test_fixtures.FakeLogger())
        for unset in (DeviceRequest(), DeviceRequest(wanted=[RequestedDevices()])):
            self.assertRaises(exception.BadRequest, self.host.claim, self.instance, request=unset)
        self.assertNotIn('is not noted', log.output)
        self.host.audit()
        self.assertEqual(['BadRequest'], sorted({one.more['reason'] for one in self.events()}))

    def test_a_stop_writes_what_no_audit_has_written(self) -> None:
        self.refuse()
        self.host.manager.close()
        self.assertEqual([1], self.counts())
        self.host.manager.init_host(None)

    def test_an_unanswered_commit_writes_none_twice(self) -> None:
        self.refuse()
        self.host.store.after('set_withheld', exception.OutcomeUnknown('store'))
        self.host.audit()
        self.host.audit()
        self.assertEqual([1], self.counts())


class CountTestCase(RefusalsTestCase):

    def test_equal_ones_are_one_event_with_their_number(self) -> None:
        self.refuse(times=5)
        self.refuse(Instance(), times=2)
        self.refuse(times=3, pmem=4)
        self.host.audit()
        self.assertEqual([5, 2, 3], self.counts())
        first = self.events()[0]
        self.assertLessEqual(first.more['first_ms'], first.at_ms)

    def test_those_that_go_on_become_rare_and_all_are_counted(self) -> None:
        for _audit in range(200):
            self.refuse(times=2)
            self.host.audit()
        self.host.manager.close()
        self.assertEqual(400, sum(self.counts()))
        self.assertEqual([2, 4, 8, 16, 32, 64], self.counts()[:6])
        self.assertLess(len(self.counts()), 12)
        self.host.manager.init_host(None)

    def test_one_that_comes_again_after_a_while_is_written_at_once(self) -> None:
        self.refuse()
        for _audit in range(5):
            self.host.audit()
        self.refuse()
        self.host.audit()
        self.assertEqual([1, 1], self.counts())

    def test_too_many_to_tell_apart_are_counted_together(self) -> None:
        for _number in range(refusals.MOST + 7):
            self.refuse(Instance())
        self.host.audit()
        self.assertEqual(refusals.MOST + 7, sum(self.counts()))
        self.assertEqual((7, None), (self.counts()[-1], self.events()[-1].instance_uuid))
