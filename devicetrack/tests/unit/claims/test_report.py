"""What a report says of a host whose manager may be working."""

from __future__ import annotations

import threading
from typing import Any

import fixtures as testing_fixtures

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.claims import audit
from devicetrack.claims import repairs
from devicetrack.claims import report
from devicetrack.engine import findings
from devicetrack.engine.findings import Finding
from devicetrack.objects import details
from devicetrack.objects import DeviceRequest
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Missing
from devicetrack.store import api as store_api
from devicetrack.store.api import Changes
from devicetrack.testing import fake
from devicetrack.testing import fixtures
from devicetrack.tests import base

PMEM = fixtures.PMEM
VGPU = fixtures.VGPU


def observer_of(host: fixtures.Host) -> report.Observer:
    known = host.store.host(host.name)
    assert known is not None
    driver = fake.FakeDriver(host.name, host.conf, host.configuration.state_path, host.machine)
    return report.Observer(known, driver, host.store, host.conf)


class InventoryTestCase(base.TestCase):

    def statuses(self, host: fixtures.Host) -> dict[str, tuple[str, str | None]]:
        return {line.identifier or f'{line.amount} more': (line.status, line.reason)
                for line in observer_of(host).inventory()}

    def test_says_what_is_free_and_what_is_held_and_by_whom(self) -> None:
        host = self.useFixture(fixtures.Host(devices=2))
        instance = host.spawn(pmem=1)
        lines = {line.identifier: line for line in observer_of(host).inventory()}
        self.assertEqual((report.HELD, instance.uuid), (lines['d0'].status, lines['d0'].instance_uuid))
        self.assertEqual((report.FREE, None), (lines['d1'].status, lines['d1'].instance_uuid))
        self.assertEqual(1, lines['d1'].amount)

    def test_counts_what_can_still_be_made(self) -> None:
        host = self.useFixture(fixtures.Host(parents={'gpu': 4}))
        host.spawn(vgpu=1)
        amounts = [line.amount for line in observer_of(host).inventory() if line.status == report.CREATABLE]
        self.assertEqual([3], amounts)

    def test_a_device_that_is_claimed_and_not_made_takes_from_what_can_be_made(self) -> None:
        host = self.useFixture(fixtures.Host(parents={'gpu': 4}))
        host.claim(fixtures.Instance(), vgpu=1)
        lines = observer_of(host).inventory()
        self.assertEqual([(report.HELD, report.NOT_MADE_YET, 1), (report.CREATABLE, None, 3)],
                         [(line.status, line.reason, line.amount) for line in lines])

    def test_it_does_so_too_when_the_service_has_its_own_names_for_providers(self) -> None:
        host = self.useFixture(fixtures.Host(parents={'gpu': 4}))
        host.claim(fixtures.Instance(), vgpu=1)
        [record] = host.records()
        renamed = record._replace(provider_uuid='9b0a2f5e-6d43-4f5b-8d5e-2d9c0f5f0001', generation=2)
        host.store.write(store_api.Changes(update=(store_api.Update(record, renamed),)))
        self.assertEqual([(report.HELD, report.NOT_MADE_YET, 'gpu'), (report.CREATABLE, None, 'gpu')],
                         [(line.status, line.reason, line.provider) for line in observer_of(host).inventory()])

    def test_a_device_on_its_way_back_is_not_free(self) -> None:
        host = self.useFixture(fixtures.Host(devices=1))
        instance = host.spawn(pmem=1)
        self.assertRaises(exception.DeviceInUse, host.manager.release, host.context, instance)
        self.assertEqual({'d0': (report.RELEASING, None)}, self.statuses(host))

    def test_a_device_that_is_another_one_of_its_name_says_so(self) -> None:
        host = self.useFixture(fixtures.Host(devices=2))
        instance = host.spawn(pmem=1)
        [record] = host.records(instance)
        recorded: Any = details.from_text(record.details)
        recorded.namespace_uuid = '11111111-1b54-4048-85b3-a6a62d165c01'
        host.store.write(store_api.Changes(update=(store_api.Update(record, record._replace(
            details=details.to_text(recorded), generation=record.generation + 1)),)))
        observer = observer_of(host)
        lines = {line.identifier: line for line in observer.inventory()}
        [reason] = lines['d0'].reasons
        self.assertEqual((report.HELD, vocabulary.UNHEALTHY, vocabulary.BY_AUDIT),
                         (lines['d0'].status, reason.reason, reason.by))
        self.assertIn('another device has its name: namespace_uuid is ', reason.detail)
        [finding] = observer.audit()
        self.assertIn(reason.detail, finding.detail)
        self.assertEqual((), lines['d1'].reasons)

    def test_a_device_that_a_strange_guest_uses_is_withheld(self) -> None:
        host = self.useFixture(fixtures.Host(devices=2))
        path = next(iter(fake.addresses_in(host.manager.guest_config(host.spawn(pmem=1)).devices)))
        host.machine.start_guest('e9d3fd0c-6a0a-4c4f-9c8f-6d5c3f6d0a01', [])
        self.assertEqual((report.FREE, None), self.statuses(host)['d1'])
        other = path.replace('0', '1')
        host.machine.start_guest('e9d3fd0c-6a0a-4c4f-9c8f-6d5c3f6d0a02', [f'<device kind="vpmem" address="{other}"/>'])
        self.assertEqual((report.WITHHELD, 'foreign: named by domain e9d3fd0c-6a0a-4c4f-9c8f-6d5c3f6d0a02'),
                         self.statuses(host)['d1'])

    def test_an_unhealthy_device_says_so(self) -> None:
        host = self.useFixture(fixtures.Host(devices=1))
        host.machine.change(DeviceKey(fake.VPMEM, 'd0'), unhealthy='read-only')
        self.assertEqual({'d0': (report.WITHHELD, 'unhealthy: read-only')}, self.statuses(host))

    def test_a_detail_of_two_reasons_is_said_once(self) -> None:
        line = report.Line('vpmem', 'd0', report.WITHHELD, 1, None, None, None, None, None, None, (
            report.Reason('cordoned', 'a visit'), report.Reason('unhealthy', 'a bad block'), report.Reason('in doubt'),
            report.Reason('not given back', 'a bad block'), report.Reason('retired'),
            report.Reason('cordoned', 'a visit', parent='gpu')), '')
        self.assertEqual('cordoned: a visit; unhealthy, not given back: a bad block; in doubt; retired; cordoned with '
                         'parent gpu', line.reason)

    def test_what_is_cordoned_says_so_with_every_other_reason(self) -> None:
        host = self.useFixture(fixtures.Host(devices=2, parents={'gpu': 3}))
        host.spawn(vgpu=1)
        host.manager.operator.cordon('vpmem', 'd0')
        host.manager.operator.cordon('mdev', 'gpu', parent=True)
        host.machine.change(DeviceKey(fake.VPMEM, 'd0'), unhealthy='read-only')
        statuses = self.statuses(host)
        self.assertEqual(((report.WITHHELD, 'cordoned; unhealthy: read-only'), (report.FREE, None),
                          (report.WITHHELD, 'cordoned')),
                         (statuses['d0'], statuses['d1'], statuses['2 more']))
        self.assertEqual((report.HELD, 'cordoned with parent gpu'), statuses[host.mdevs()[0]])

    def test_what_is_withheld_is_what_the_manager_says(self) -> None:
        host = self.useFixture(fixtures.Host(devices=3, parents={'gpu': 3}))
        host.spawn(pmem=1, vgpu=1)
        host.manager.operator.cordon('vpmem', 'd0', reason='firmware')
        host.manager.operator.cordon('mdev', 'gpu', parent=True)
        host.machine.change(DeviceKey(fake.VPMEM, 'd1'), unhealthy='read-only')
        observer = observer_of(host)
        self.assertEqual([None], [reason.since for line in observer.inventory() for reason in line.reasons
                                  if reason.reason == 'unhealthy'])
        host.audit()
        told = {(line.kind, line.identifier or line.parent, *reason) for line in observer.inventory()
                for reason in line.reasons if reason.parent is None}
        self.assertEqual({(one.target.kind, one.target.name, reason, cause.text, cause.since, cause.by, None)
                          for one in host.manager.operator.withheld() for reason, cause in one.causes.items()}, told)
        self.assertEqual(3, len(told))

    def test_with_an_unreadable_guest_nothing_is_free(self) -> None:
        host = self.useFixture(fixtures.Host(devices=1))
        host.machine.unknown_domains['e9d3fd0c-6a0a-4c4f-9c8f-6d5c3f6d0a01'] = 'no root element'
        lines = observer_of(host).inventory()
        self.assertEqual([(report.WITHHELD, 'in doubt: who uses it could not be read'),
                          (report.UNKNOWN, 'no root element')],
                         [(line.status, line.reason) for line in lines])

    def test_a_held_device_that_the_host_lost_is_listed(self) -> None:
        host = self.useFixture(fixtures.Host(devices=1))
        host.spawn(pmem=1)
        host.machine.remove(DeviceKey(fake.VPMEM, 'd0'))
        self.assertEqual({'d0': (report.HELD, 'gone from the host')}, self.statuses(host))

    def test_what_nobody_could_look_for_is_not_called_gone(self) -> None:
        host = self.useFixture(fixtures.Host(devices=3))
        host.spawn(pmem=1)
        host.manager.operator.cordon(fake.VPMEM, 'd1')
        host.machine.unknown_kinds[fake.VPMEM] = 'no answer'
        lines = observer_of(host).inventory()
        self.assertEqual({'d0': (report.HELD, 'unknown: its kind could not be read'),
                          'd1': (report.WITHHELD, 'cordoned; unknown: its kind could not be read')},
                         {line.identifier: (line.status, line.reason) for line in lines if line.identifier})


class ExplainTestCase(base.TestCase):

    def test_answers_as_the_manager_does(self) -> None:
        host = self.useFixture(fixtures.Host(devices=2, parents={'gpu': 2}))
        host.spawn(pmem=1)
        host.spawn(vgpu=1)
        request = DeviceRequest.of((PMEM, 2), (VGPU, 1))
        explanation = observer_of(host).explain(request)
        self.assertEqual(host.manager.explain(request), list(explanation.parts))
        self.assertFalse(explanation.fits)

    def test_says_that_a_request_fits_and_takes_nothing(self) -> None:
        host = self.useFixture(fixtures.Host(devices=1))
        observer = observer_of(host)
        self.assertTrue(observer.explain(DeviceRequest.of((PMEM, 1))).fits)
        self.assertTrue(observer.explain(DeviceRequest.of((PMEM, 1))).fits)
        self.assertEqual({'d0': fixtures.FREE}, host.states())

    def test_parts_that_fit_alone_may_be_too_much_together(self) -> None:
        host = self.useFixture(fixtures.Host())
        host.machine.add_parent('gpu', {'small': 1}, units=1, resource_class='CUSTOM_SMALL')
        observer = observer_of(host)
        provider = observer.provider_uuid('gpu')
        explanation = observer.explain(DeviceRequest.of(('CUSTOM_SMALL', 1, provider), ('CUSTOM_SMALL', 1)))
        self.assertEqual([True, True], [part.fits for part in explanation.parts])
        self.assertFalse(explanation.fits)

    def test_a_cordoned_parent_is_no_full_one(self) -> None:
        host = self.useFixture(fixtures.Host(parents={'gpu': 4}))
        host.manager.operator.cordon('mdev', 'gpu', parent=True)
        request = DeviceRequest.of((VGPU, 1))
        explanation = observer_of(host).explain(request)
        self.assertEqual((False, f'1 {VGPU} wanted, 0 of 4 free: 4 withheld (cordoned)'),
                         (explanation.fits, str(explanation.parts[0])))
        self.assertEqual(host.manager.explain(request), list(explanation.parts))

    def test_names_what_could_not_be_read(self) -> None:
        host = self.useFixture(fixtures.Host(devices=1))
        host.machine.unknown_kinds[fake.VPMEM] = 'ndctl failed'
        explanation = observer_of(host).explain(DeviceRequest.of((PMEM, 1)))
        self.assertEqual((f'{fake.VPMEM}: ndctl failed',), explanation.unknown)
        self.assertFalse(explanation.fits)

    def test_a_request_for_nothing_means_nothing(self) -> None:
        host = self.useFixture(fixtures.Host(devices=1))
        self.assertRaises(exception.BadRequest, observer_of(host).explain, DeviceRequest.of())

    def test_a_provider_of_another_host_is_refused(self) -> None:
        host = self.useFixture(fixtures.Host(devices=1))
        request = DeviceRequest.of((PMEM, 1, 'c5d2ac06-4b3f-4c2f-8a8f-1f6c35c7a001'))
        self.assertRaises(exception.UnknownProvider, observer_of(host).explain, request)


class RequestFromExtraSpecsTestCase(base.TestCase):

    def test_leaves_out_what_the_service_counts_itself(self) -> None:
        request = DeviceRequest.from_extra_specs(
            {'hw:pmem': '4GB', 'resources:VGPU': '2', 'resources:VCPU': '4', 'hw:cpu_policy': 'dedicated'})
        self.assertEqual([(PMEM, 1), (VGPU, 2)], [(one.resource_class, one.amount) for one in request.wanted])

    def test_an_asked_policy_stands_in_the_place_of_the_flavors(self) -> None:
        extra_specs = {'hw:pmem': '4GB', 'hw:pci_numa_affinity_policy': vocabulary.PREFERRED}
        self.assertEqual(vocabulary.PREFERRED, DeviceRequest.from_extra_specs(extra_specs).numa_affinity_policy)
        self.assertEqual(vocabulary.REQUIRED, DeviceRequest.from_extra_specs(
            extra_specs, [0], vocabulary.REQUIRED).numa_affinity_policy)


class AuditTestCase(base.TestCase):

    def test_a_host_at_rest_is_clean(self) -> None:
        host = self.useFixture(fixtures.Host(devices=2, parents={'gpu': 1}))
        host.spawn(pmem=1, vgpu=1)
        self.assertEqual([], observer_of(host).audit())

    def test_a_cordoned_device_that_is_away_is_no_mistake_in_an_option(self) -> None:
        host = self.useFixture(fixtures.Host(devices=2))
        host.manager.operator.cordon('vpmem', 'd0')
        host.machine.remove(DeviceKey(fake.VPMEM, 'd0'))
        host.machine.missing = (Missing(DeviceKey(fake.VPMEM, 'd0'), '[x] y', 'there is none'),)
        self.assertEqual([], observer_of(host).audit())
        host.manager.operator.uncordon('vpmem', 'd0')
        self.assertEqual([findings.GONE], [finding.kind for finding in observer_of(host).audit()])

    def test_finds_what_the_manager_finds(self) -> None:
        host = self.useFixture(fixtures.Host(devices=2))
        host.spawn(pmem=1)
        host.machine.remove(DeviceKey(fake.VPMEM, 'd0'))
        found = observer_of(host).audit()
        self.assertIn(findings.GONE, [finding.kind for finding in found])
        self.assertEqual([finding._replace(since=None) for finding in host.audit()], found)

    def test_plans_to_give_a_device_to_the_guest_that_an_older_store_does_not_know(self) -> None:
        host = self.useFixture(fixtures.Host(devices=2))
        instance, other = host.spawn(pmem=1), host.spawn(pmem=1)
        [row] = host.records(instance)
        host.store.store.write(Changes(delete=(row,)))
        host.store.store.write(Changes(insert=(row._replace(instance_uuid=fixtures.Instance().uuid),)))
        [planned] = observer_of(host).plan(repairs.Accepted(True, lambda _move: True)).repairs
        self.assertEqual((row.key, instance.uuid), (planned.device, planned.instance_uuid))
        host.restart()
        self.assertEqual(2, len(host.records()))
        host.delete(other)

    def test_what_passes_between_two_looks_is_no_finding(self) -> None:
        host = self.useFixture(fixtures.Host(devices=1))
        host.machine.unknown_kinds[fake.VPMEM] = 'busy'
        looks = iter([lambda: None, host.machine.unknown_kinds.clear])
        host.machine.before('get_inventory', lambda: next(looks)())
        self.assertEqual([], observer_of(host).audit())

    def test_beside_a_manager_that_works_nothing_needs_attention(self) -> None:
        host = self.useFixture(fixtures.Host(devices=4, parents={'gpu': 4}))
        observer, done = observer_of(host), threading.Event()

        def work() -> None:
            for _ in range(10):
                host.delete(host.spawn(pmem=1, vgpu=1))

        def work_all() -> list[object]:
            try:
                return self.together(*[work] * 4)
            finally:
                done.set()

        def look() -> list[Finding]:
            found = []
            while not done.is_set():
                found += [finding for finding in observer.audit() if finding.severity != vocabulary.NOTE]
            return found

        worked, found = self.together(work_all, look)
        self.assertEqual(([None] * 4, []), (worked, found))

    def test_changes_no_row_and_no_device_and_takes_no_lock(self) -> None:
        host = self.useFixture(fixtures.Host(devices=1))
        instance = host.spawn(pmem=1)
        self.assertRaises(exception.DeviceInUse, host.manager.release, host.context, instance)
        host.machine.delete_guest(instance.uuid)
        before, calls = host.records(), host.machine.calls['unclaim']
        found = observer_of(host).audit()
        self.assertEqual([findings.RELEASE_PENDING], [finding.kind for finding in found])
        self.assertEqual((before, calls), (host.records(), host.machine.calls['unclaim']))

    def test_no_answer_of_the_hypervisor_is_an_error_and_no_empty_report(self) -> None:
        host = self.useFixture(fixtures.Host(devices=1))
        host.machine.before('get_usage', exception.HypervisorUnreachable('fake', 'restarting'))
        self.assertRaises(exception.HypervisorUnreachable, observer_of(host).audit)


class LocateTestCase(base.TestCase):

    def locate(self, host: fixtures.Host, name: str | None = None) -> store_api.Host:
        return report.locate(host.store, name, host.conf.devicetrack.machine_id_path)

    def test_by_default_the_host_that_this_machine_is(self) -> None:
        host = self.useFixture(fixtures.Host(name='compute-7'))
        self.assertEqual(host.store.host('compute-7'), self.locate(host))

    def test_a_host_that_never_started_gets_the_uuid_that_it_will_have(self) -> None:
        host = self.useFixture(fixtures.Host(name='compute-7', ready=False))
        located = self.locate(host, 'compute-7')
        self.assertEqual([], host.store.hosts())
        host.manager.init_host(host.context)
        recorded = host.store.host('compute-7')
        assert recorded is not None
        self.assertEqual(recorded._replace(boot_id=None, epoch=0), located)

    def test_another_machine_is_refused(self) -> None:
        host = self.useFixture(fixtures.Host(name='compute-7'))
        host.store.add_host(store_api.Host('7c9e6f2e-3a58-4a0e-8a53-0b8a3f8f0001', 'compute-8', 'of another machine'))
        self.assertRaises(exception.NotThisMachine, self.locate, host, 'compute-8')

    def test_a_name_that_nobody_has_is_no_new_host_of_a_known_machine(self) -> None:
        host = self.useFixture(fixtures.Host(name='compute-7'))
        error = self.assertRaises(exception.UnknownHost, self.locate, host, 'compute-77')
        self.assertEqual(('compute-7',), error.known)

    def test_a_machine_that_the_store_does_not_know_is_no_host_of_its_own_making(self) -> None:
        host = self.useFixture(fixtures.Host(name='compute-7'))
        with open(host.conf.devicetrack.machine_id_path, 'w', encoding='ascii') as file:
            file.write('b' * 32)
        error = self.assertRaises(exception.UnknownHost, self.locate, host)
        self.assertEqual((None, ('compute-7',)), (error.host, error.known))
        self.assertIn('--host', str(error))
        renamed = self.assertRaises(exception.NotThisMachine, self.locate, host, 'compute-7')
        self.assertIn('machine_id_path', str(renamed))
        self.assertEqual('compute-8', self.locate(host, 'compute-8').name)      # one that is new beside others

    def test_of_several_hosts_on_one_machine_one_must_be_named(self) -> None:
        host = self.useFixture(fixtures.Host(name='compute-7'))
        this = host.store.host('compute-7')
        assert this is not None
        second = this._replace(uuid='7c9e6f2e-3a58-4a0e-8a53-0b8a3f8f0001', name='compute-7b')
        host.store.add_host(second)
        error = self.assertRaises(exception.AmbiguousHost, self.locate, host)
        self.assertIn('the store has several hosts of this machine (compute-7, compute-7b): choose one with --host',
                      str(error))
        self.assertEqual(second, self.locate(host, 'compute-7b'))


class FindingsLogTestCase(base.TestCase):

    def test_a_finding_is_logged_when_it_appears_and_ends_and_now_and_then(self) -> None:
        log = self.useFixture(testing_fixtures.FakeLogger())
        host = self.useFixture(fixtures.Host(devices=2))
        host.spawn(pmem=1)
        host.machine.remove(DeviceKey('vpmem', 'd0'))
        for _ in range(audit.AUDITS_PER_REMINDER):
            self.assertNotEqual([], host.audit())
        self.assertEqual(1, log.output.count('proposed:'))
        host.audit()
        self.assertEqual(2, log.output.count('proposed:'))
        self.assertNotIn(': over: ', log.output)
        host.machine.add_namespace('d0')
        host.audit()
        self.assertEqual(1, log.output.count(': over: '))

    def test_a_finding_that_changes_is_one_line_that_says_what_it_was(self) -> None:
        log = self.useFixture(testing_fixtures.FakeLogger())
        host = self.useFixture(fixtures.Host(devices=2))
        for why in ('too hot', 'too cold'):
            for name in ('d0', 'd1'):
                host.machine.change(DeviceKey('vpmem', name), unhealthy=f'{name} is {why}')
            for _ in range(2):
                host.audit()
        [*_first, one, other] = lines = [line for line in log.output.splitlines() if 'proposed:' in line]
        self.assertEqual((4, False), (len(lines), ': over: ' in log.output))
        self.assertIn('changed, it was warning: vpmem/d0: unhealthy: d0 is too hot', one)
        self.assertIn('changed, it was warning: vpmem/d1: unhealthy: d1 is too hot', other)
