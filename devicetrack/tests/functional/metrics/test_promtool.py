"""What Prometheus' own tool says of the metrics, and of the alerts in the documentation."""

from __future__ import annotations

import pathlib
import re
import shutil
import subprocess
from typing import Any

import prometheus_client
import yaml

import devicetrack
from devicetrack import metrics
from devicetrack import vocabulary
from devicetrack.metrics import families
from devicetrack.metrics.reasons import REASONS
from devicetrack.testing import fixtures
from devicetrack.tests import base

ADMIN = pathlib.Path(devicetrack.__file__).parent.parent / 'doc' / 'source' / 'admin'
ALERTS, TESTS = ADMIN / 'metrics-alerts.yaml', ADMIN / 'metrics-alerts-test.yaml'

_HANGS_S = 300


def promtool(*arguments: str, stdin: str = '') -> subprocess.CompletedProcess[str]:
    if shutil.which('promtool') is None:
        raise AssertionError('promtool is not installed: it is in the package prometheus, which bindep.txt names')
    return subprocess.run(('promtool', *arguments), input=stdin, capture_output=True, text=True, timeout=_HANGS_S)


class PromtoolTestCase(base.TestCase):

    def check(self, done: subprocess.CompletedProcess[str]) -> None:
        self.assertEqual((0, ''), (done.returncode, done.stderr), done.stdout)


class MetricsTestCase(PromtoolTestCase):

    def test_it_finds_no_fault_with_names_types_and_units(self) -> None:
        registry = prometheus_client.CollectorRegistry()
        host = self.useFixture(fixtures.Host(devices=1, parents={'card': 1}, ready=False))
        metrics.register(host.manager, registry)
        host.manager.init_host(None)
        host.delete(host.spawn(pmem=1, vgpu=1))
        text = prometheus_client.generate_latest(registry).decode()
        self.assertIn('devicetrack_wiped_bytes_total', text)
        self.check(promtool('check', 'metrics', stdin=text))

    def test_it_would_find_one(self) -> None:
        self.assertNotEqual(0, promtool('check', 'metrics', stdin='# TYPE a counter\na 1\n').returncode)


class AlertsTestCase(PromtoolTestCase):

    def setUp(self) -> None:
        super().setUp()
        self.rules = [rule for group in yaml.safe_load(ALERTS.read_text())['groups'] for rule in group['rules']]
        self.tests: list[dict[str, Any]] = yaml.safe_load(TESTS.read_text())['tests']

    def test_the_rules_pass_their_tests(self) -> None:
        self.check(promtool('check', 'rules', str(ALERTS)))
        self.check(promtool('test', 'rules', str(TESTS)))

    def test_each_alert_is_seen_to_fire_and_not_to_fire(self) -> None:
        cases = [case for test in self.tests for case in test.get('alert_rule_test', ())]
        alerts = {rule['alert'] for rule in self.rules if 'alert' in rule}
        self.assertLess(8, len(alerts))
        self.assertEqual(alerts, {case['alertname'] for case in cases if case.get('exp_alerts')})
        self.assertEqual(alerts, {case['alertname'] for case in cases if not case.get('exp_alerts')})

    def test_a_rule_that_is_wrong_fails_its_test(self) -> None:
        directory = pathlib.Path(self.temp_dir())
        (directory / TESTS.name).write_text(TESTS.read_text())
        (directory / ALERTS.name).write_text(ALERTS.read_text().replace('== 0', '== 7'))
        self.assertNotEqual(0, promtool('test', 'rules', str(directory / TESTS.name)).returncode)

    def test_rules_and_their_tests_name_metrics_that_there_are(self) -> None:
        known = {family.shown for family in families.FAMILIES} | {
            family.name + ending for family in families.FAMILIES if family.type in ('histogram', 'summary')
            for ending in ('_bucket', '_count', '_sum')}
        texts = [rule['expr'] for rule in self.rules] + [series['series'] for test in self.tests
                                                         for series in test['input_series']]
        named = {name for text in texts for name in re.findall(r'\bdevicetrack_\w+', text)}
        self.assertLess(8, len(named))
        self.assertEqual(set(), named - known)

    def test_rules_name_values_of_labels_that_there_are(self) -> None:
        text = '\n'.join(rule['expr'] for rule in self.rules)
        [refusals, withheld] = re.findall('reason=~"([^"]*)"', text)
        self.assertEqual(set(), set(refusals.split('|')) - set(REASONS))
        self.assertEqual(set(), set(withheld.split('|')) - set(vocabulary.WITHHELD_REASONS))
        self.assertEqual({'critical'}, set(re.findall('severity="([^"]*)"', text)) & set(vocabulary.SEVERITIES))


class PageTestCase(base.TestCase):

    def test_the_page_has_every_metric_with_its_labels_and_no_other(self) -> None:
        text = (ADMIN / 'metrics.rst').read_text()
        rows = dict(re.findall(r'^   \* - ``(devicetrack_\w+)``\n     - (.*)$', text, re.MULTILINE))
        self.assertEqual({family.shown: ', '.join(f'``{label}``' for label in family.labels) or '–'
                          for family in families.FAMILIES}, rows)
        for reason in REASONS:
            self.assertIn(f'``{reason}``', text)
