"""The numbers of hosts in a registry: which there are, and what they say."""

from __future__ import annotations

import bisect
import builtins
from collections.abc import Sequence
import os
import re
import threading
import types
from typing import Any

import prometheus_client
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.openmetrics import parser as openmetrics_parser

from devicetrack import exception
from devicetrack import metrics
from devicetrack import ownfiles
from devicetrack.claims import metering
from devicetrack.claims.gate import StoreBehind
from devicetrack.claims.metering import HostState
from devicetrack.claims.metering import Wiping
from devicetrack.metrics import families
from devicetrack.metrics import samples
from devicetrack.metrics import tally
from devicetrack.metrics import textfile
from devicetrack.metrics.reasons import reason_of
from devicetrack.metrics.reasons import REASONS
from devicetrack.objects.values import WipeProgress
from devicetrack.testing import fixtures
from devicetrack.testing.fixtures import Instance
from devicetrack.tests import base

UUID = re.compile('[0-9a-f]{8}-[0-9a-f]{4}')


class MetricsTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.registry = prometheus_client.CollectorRegistry()
        self.host = self.useFixture(fixtures.Host(devices=3, parents={'card': 2}, name='compute-7', ready=False))
        self.registration = metrics.register(self.host.manager, self.registry)

    def start(self) -> None:
        self.host.manager.init_host(None)

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, {'host': 'compute-7', **labels})

    def text(self) -> str:
        return prometheus_client.generate_latest(self.registry).decode()


class EventsTestCase(MetricsTestCase):

    def setUp(self) -> None:
        super().setUp()
        self.start()

    def test_claims_and_refusals(self) -> None:
        self.host.claim(Instance(), pmem=1)
        self.assertRaises(exception.NoFit, self.host.claim, Instance(), pmem=3)
        self.assertEqual((1, 1, 0, 2), (
            self.value('devicetrack_claims_total', call='instance_claim'),
            self.value('devicetrack_claim_refusals_total', call='instance_claim', reason='no_fit'),
            self.value('devicetrack_claim_refusals_total', call='instance_claim', reason='store'),
            self.value('devicetrack_claim_duration_seconds_count', call='instance_claim')))

    def test_the_class_that_a_refused_claim_lacked(self) -> None:
        self.assertRaises(exception.NoFit, self.host.claim, Instance(), pmem=4, vgpu=9)
        self.assertRaises(exception.NoFit, self.host.claim, Instance(), vgpu=3)
        self.assertEqual((1, 2), tuple(
            self.value('devicetrack_claim_shortages_total', resource_class=name, reason='no_fit')
            for name in (fixtures.PMEM, 'VGPU')))

    def test_buckets_have_all_that_took_less(self) -> None:
        meter = self.registration.tally
        before = self.value('devicetrack_commit_duration_seconds_count') or 0
        for seconds in (.0005, .00051, 5, 11):
            meter.committed(seconds, None)
        buckets = {bound: (self.value('devicetrack_commit_duration_seconds_bucket', le=bound) or 0)
                   for bound in ('0.0005', '0.001', '2.5', '5.0', '10.0', '+Inf')}
        self.assertEqual([1, 1, 0, 1], [buckets['0.001'] - buckets['0.0005'], buckets['5.0'] - buckets['2.5'],
                                        buckets['10.0'] - buckets['5.0'], buckets['+Inf'] - buckets['10.0']])
        self.assertEqual(before + 4, buckets['+Inf'])
        self.assertEqual(before + 4, self.value('devicetrack_commit_duration_seconds_count'))

    def test_commits_by_their_outcome(self) -> None:
        self.host.store.before('write', exception.StoreUnavailable('store', 'full'))
        self.assertRaises(exception.StoreUnavailable, self.host.claim, Instance(), pmem=1)
        self.host.store.after('write', exception.OutcomeUnknown('store'))
        self.assertRaises(exception.OutcomeUnknown, self.host.claim, Instance(), pmem=1)
        self.assertEqual(1, self.value('devicetrack_commits_in_doubt'))
        self.host.audit()
        self.assertEqual((1, 1, 1, 0, 0), (
            self.value('devicetrack_commits_total', outcome='refused'),
            self.value('devicetrack_commits_total', outcome='unanswered'),
            self.value('devicetrack_commits_settled_total', outcome='happened'),
            self.value('devicetrack_commits_settled_total', outcome='undone'),
            self.value('devicetrack_commits_in_doubt')))

    def test_the_rate_of_wipes_is_bytes_to_seconds(self) -> None:
        self.assertEqual(0, self.value('devicetrack_wiped_bytes_total', device_kind='vpmem'))
        self.assertEqual(0, self.value('devicetrack_wipe_failures_total', device_kind='vpmem'))
        meter = self.registration.tally
        meter.wiped('vpmem', 8 << 30, 16)
        meter.wiped('vpmem', None, 1)
        meter.wipe_failed('vpmem')
        self.assertEqual((8 << 30, 17, 2, 1), (
            self.value('devicetrack_wiped_bytes_total', device_kind='vpmem'),
            self.value('devicetrack_wipe_duration_seconds_sum', device_kind='vpmem'),
            self.value('devicetrack_wipe_duration_seconds_count', device_kind='vpmem'),
            self.value('devicetrack_wipe_failures_total', device_kind='vpmem')))

    def test_what_making_ready_and_giving_back_take_and_how_they_fail(self) -> None:
        instance = self.host.spawn(vgpu=1)
        self.assertRaises(exception.DeviceInUse, self.host.manager.release, None, instance)
        self.host.machine.before('realize', exception.RealizeFailed('vpmem', 'd0', 'a bad block'))
        self.assertRaises(exception.NoFit, self.host.spawn, pmem=1)
        self.assertEqual((2, 1, 1, 1), (
            self.value('devicetrack_realize_duration_seconds_count'),
            self.value('devicetrack_realize_failures_total', reason='no_fit'),
            self.value('devicetrack_release_duration_seconds_count'),
            self.value('devicetrack_release_failures_total', reason='in_use')))


class StateTestCase(MetricsTestCase):

    def devices(self, state: str, kind: str = 'vpmem', parent: str = 'region0',
                resource_class: str = fixtures.PMEM) -> float | None:
        return self.value('devicetrack_devices', device_kind=kind, parent=parent, resource_class=resource_class,
                          state=state)

    def test_devices_by_state_class_and_parent(self) -> None:
        self.start()
        self.host.spawn(pmem=1, vgpu=1)
        self.host.manager.operator.cordon('vpmem', 'd2')
        self.assertEqual([1, 1, 0, 1], [self.devices(state) for state in ('free', 'held', 'releasing', 'withheld')])
        self.assertEqual([0, 1], [self.devices(state, 'mdev', 'card', 'VGPU') for state in ('free', 'held')])
        self.assertEqual((1, 1), (
            self.value('devicetrack_devices_available', device_kind='vpmem', parent='region0',
                       resource_class=fixtures.PMEM),
            self.value('devicetrack_devices_available', device_kind='mdev', parent='card', resource_class='VGPU')))

    def test_the_last_audit(self) -> None:
        self.assertIsNone(self.value('devicetrack_last_audit_timestamp_seconds'))
        self.start()
        first = self.value('devicetrack_last_audit_timestamp_seconds') or 0
        self.host.machine.unknown_kinds['mdev'] = 'the card is lost'
        self.host.manager.operator.cordon('vpmem', 'd2')
        self.host.audit()
        self.assertLess(first, self.value('devicetrack_last_audit_timestamp_seconds') or 0)
        self.assertEqual((1, 0, 1, 2, 0), (
            self.value('devicetrack_findings', kind='view unknown', severity='warning'),
            self.value('devicetrack_findings', kind='view unknown', severity='critical'),
            self.value('devicetrack_devices_withheld', reason='cordoned'),
            self.value('devicetrack_audit_duration_seconds_count'),
            self.value('devicetrack_audit_failures_total')))
        self.host.machine.before('get_usage', exception.HypervisorUnreachable('fake', 'away'))
        self.assertRaises(exception.HypervisorUnreachable, self.host.audit)
        self.assertEqual(1, self.value('devicetrack_audit_failures_total'))

    def test_a_host_whose_store_is_older_than_its_guests(self) -> None:
        self.start()
        self.assertEqual(1, self.value('devicetrack_accepts_claims'))
        self.host.running.gate.judge(StoreBehind('for a test', frozenset()))
        self.assertEqual(0, self.value('devicetrack_accepts_claims'))

    def test_the_rate_of_what_is_wiped_now(self) -> None:
        progress = [WipeProgress('zero', 1 << 20, 1 << 30, 500, 10), WipeProgress('program', 50, 100, 7, None), None]
        state = HostState('compute-7', [], None, True, 0, Wiping(progress, 4))
        found = {sample.name: sample.value for metric in samples.metrics_of([samples.Numbers('compute-7', None, state)])
                 for sample in metric.samples}
        self.assertEqual((3, 4, 500), (found['devicetrack_wipes_running'], found['devicetrack_wipes_waiting'],
                                       found['devicetrack_wipe_bytes_per_second']))

    def test_what_nobody_knows_is_not_0(self) -> None:
        counted = {metric.name for metric in self.registry.collect()}
        self.assertIn('devicetrack_claims', counted)
        of_a_host_that_works = {'devicetrack_devices', 'devicetrack_findings', 'devicetrack_commits_in_doubt',
                                'devicetrack_accepts_claims', 'devicetrack_last_audit_timestamp_seconds'}
        self.assertEqual(set(), counted & of_a_host_that_works)
        self.start()
        self.host.running.ledger.discard()
        self.assertIsNone(self.devices('free'))
        self.assertIsNotNone(self.value('devicetrack_commits_in_doubt'))
        self.host.audit()
        self.host.manager.close()
        self.assertIsNone(self.devices('free'))
        self.assertIsNotNone(self.value('devicetrack_claims_total', call='instance_claim'))


class NamesTestCase(MetricsTestCase):

    def test_every_metric_is_told_of_a_host_that_works(self) -> None:
        self.start()
        names = {family.name for family in families.FAMILIES}
        self.assertEqual(names, {metric.name for metric in self.registry.collect()})

    def test_no_sample_names_an_instance_or_a_device(self) -> None:
        self.start()
        for _ in range(2):
            self.host.delete(self.host.spawn(pmem=1, vgpu=1))
        instance = self.host.spawn(pmem=2, vgpu=2)
        self.assertRaises(exception.NoFit, self.host.claim, Instance(), pmem=3)
        self.host.machine.delete_guest(instance.uuid)
        self.host.audit()
        self.assertIsNone(UUID.search(self.text()))
        values = {value for metric in self.registry.collect() for sample in metric.samples
                  for value in sample.labels.values()}
        self.assertEqual(set(), values & {'d0', 'd1', 'd2', *self.host.mdevs()})

    def test_the_number_of_series_does_not_grow_with_what_happens(self) -> None:
        self.start()
        before = len(self.text().splitlines())
        for _ in range(20):
            self.host.delete(self.host.spawn(pmem=1, vgpu=1))
            self.assertRaises(exception.NoFit, self.host.claim, Instance(), pmem=9)
            self.host.audit()
        self.assertEqual(before, len(self.text().splitlines()))

    def test_openmetrics_readers_understand_it(self) -> None:
        self.start()
        text = openmetrics.generate_latest(self.registry).decode()
        found = {metric.name: metric.type for metric in openmetrics_parser.text_string_to_metric_families(text)}
        self.assertEqual({family.name: family.type for family in families.FAMILIES}, found)

    def test_endings_say_the_unit(self) -> None:
        for family in families.FAMILIES:
            self.assertTrue(family.name.startswith('devicetrack_'), family)
            self.assertNotIn(family.name.rpartition('_')[2], ('total', 'info', 'count', 'sum', 'bucket', 'ms'))
            if family.bounds:
                self.assertTrue(family.name.endswith('_seconds'), family)
                self.assertEqual(sorted(family.bounds), list(family.bounds))


class ReasonsTestCase(base.TestCase):

    def test_every_error_has_a_word_that_is_known(self) -> None:
        errors = [error for error in vars(exception).values()
                  if isinstance(error, type) and issubclass(error, exception.DeviceTrackError)]
        self.assertLess(40, len(errors))
        for error in errors:
            self.assertIn(reason_of(error.__new__(error)), REASONS)

    def test_a_word_is_not_hidden_by_an_earlier_one(self) -> None:
        self.assertEqual(set(REASONS), {reason_of(error.__new__(error)) for error in vars(exception).values()
                                        if isinstance(error, type) and issubclass(error, exception.DeviceTrackError)}
                         | {reason_of(KeyboardInterrupt())})


class RegistriesTestCase(MetricsTestCase):

    def test_hosts_of_one_process_share_each_metric(self) -> None:
        other = self.useFixture(fixtures.Host(devices=1, name='compute-8', ready=False,
                                              configuration=self.useFixture(fixtures.Configuration(machine='b'))))
        metrics.register(other.manager, self.registry)
        self.start()
        other.manager.init_host(None)
        other.claim(Instance(), pmem=1)
        self.assertEqual(0, self.value('devicetrack_claims_total', call='instance_claim'))
        self.assertEqual(1, self.value('devicetrack_claims_total', call='instance_claim', host='compute-8'))
        types = [line for line in self.text().splitlines() if line.startswith('# TYPE')]
        self.assertEqual(sorted(set(types)), sorted(types))

    def test_a_host_can_leave(self) -> None:
        self.start()
        for _ in range(2):
            self.registration.unregister()
        self.host.claim(Instance(), pmem=1)
        self.assertEqual('', self.text())
        self.assertIsNone(self.host.manager.metering.meter)
        metrics.register(self.host.manager, self.registry)
        self.assertEqual(0, self.value('devicetrack_claims_total', call='instance_claim'))

    def test_a_manager_is_counted_once(self) -> None:
        error = self.assertRaises(exception.BadRequest, metrics.register, self.host.manager,
                                  prometheus_client.CollectorRegistry())
        self.assertIn('unregister', str(error))

    def test_names_of_others_are_not_taken_over(self) -> None:
        registry = prometheus_client.CollectorRegistry()
        prometheus_client.Counter('devicetrack_claims', 'Of somebody else.', registry=registry)
        self.registration.unregister()
        self.assertRaises(ValueError, metrics.register, self.host.manager, registry)
        self.assertIsNone(self.host.manager.metering.meter)

    def test_the_default_registry_is_that_of_the_process(self) -> None:
        self.registration.unregister()
        registration = metrics.register(self.host.manager)
        self.addCleanup(registration.unregister)
        self.assertIsNotNone(prometheus_client.REGISTRY.get_sample_value(
            'devicetrack_claims_total', {'host': 'compute-7', 'call': 'instance_claim'}))

    def test_without_the_extra(self) -> None:
        self.registration.unregister()
        real = builtins.__import__

        def without(name: str, *arguments: Any, **named: Any) -> Any:
            if name == 'prometheus_client':
                raise ModuleNotFoundError(name)
            return real(name, *arguments, **named)

        self.patch(builtins, '__import__', without)
        error = self.assertRaises(exception.MissingExtra, metrics.register, self.host.manager)
        self.assertEqual('prometheus_client is not installed: pip install devicetrack[metrics]', str(error))


class ThreadsTestCase(base.TestCase):

    def test_nothing_is_lost_between_threads(self) -> None:
        meter = tally.Tally()

        def count() -> None:
            for _ in range(2000):
                meter.called(metering.INSTANCE_CLAIM, .001, None)
                meter.committed(.001, None)

        self.assertEqual([None] * 4, self.together(*[count] * 4))
        counted: Any = meter.counted()
        self.assertEqual((8000, 8000), (counted[families.CLAIMS][metering.INSTANCE_CLAIM,],
                                        sum(counted[families.COMMIT_SECONDS][()].counts)))

    def test_a_signal_handler_that_claims_does_not_wait_for_the_call_that_it_came_into(self) -> None:
        meter, calls = tally.Tally(), [metering.INSTANCE_CLAIM]

        def interrupted(bounds: Sequence[float], seconds: float) -> int:
            if calls:
                meter.called(calls.pop(), .1, None)
            return bisect.bisect_left(bounds, seconds)

        self.patch(tally, 'bisect', types.SimpleNamespace(bisect_left=interrupted))
        thread = threading.Thread(target=meter.called, args=(metering.INSTANCE_CLAIM, .1, None), daemon=True)
        thread.start()
        thread.join(60)
        self.assertFalse(thread.is_alive())
        self.assertEqual(2, meter.counted()[families.CLAIMS][metering.INSTANCE_CLAIM,])


class LeftBehindTestCase(MetricsTestCase):
    """What the manager leaves for ``devicetrack-manage metrics``."""

    @property
    def path(self) -> str:
        return os.path.join(self.host.configuration.state_path, textfile.NAME)

    def test_each_audit_leaves_the_numbers_and_no_other_file(self) -> None:
        self.start()
        self.host.claim(Instance(), pmem=1)
        before = set(os.listdir(os.path.dirname(self.path)))
        self.host.audit()
        self.assertEqual(before, set(os.listdir(os.path.dirname(self.path))))
        with open(self.path, encoding='utf-8') as file:
            left = file.read()
        self.assertIn('devicetrack_claims_total{call="instance_claim",host="compute-7"} 1.0\n', left)
        self.assertIn('state="held"} 1.0\n', left)
        self.assertEqual(0o600, os.stat(self.path).st_mode & 0o777)

    def test_a_directory_that_takes_none_is_told_once_and_harms_nothing(self) -> None:
        self.start()
        self.patch(ownfiles, 'replace_text', self.full)
        self.told = 0
        for _ in range(3):
            self.host.audit()
        self.assertEqual(3, self.told)
        self.assertEqual(4, self.value('devicetrack_audit_duration_seconds_count'))

    def full(self, path: str, text: str, mode: int) -> None:
        self.told += 1
        raise OSError(28, 'No space left on device', path)
