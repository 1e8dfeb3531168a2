"""What Prometheus' own tool says of the metrics, and of the alerts in the documentation."""

from __future__ import annotations

import json
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
from devicetrack.engine import findings
from devicetrack.metrics import families
from devicetrack.metrics.reasons import REASONS
from devicetrack.testing import fixtures
from devicetrack.tests import base

ADMIN = pathlib.Path(devicetrack.__file__).parent.parent / 'doc' / 'source' / 'admin'
ALERTS, TESTS = ADMIN / 'metrics-alerts.yaml', ADMIN / 'metrics-alerts-test.yaml'
FLEET, FLEET_TESTS = ADMIN / 'metrics-fleet.yaml', ADMIN / 'metrics-fleet-test.yaml'
DASHBOARD = ADMIN.parent.parent.parent / 'share' / 'devicetrack' / 'grafana' / 'devicetrack.json'

KNOWN = {family.shown for family in families.FAMILIES} | {
    family.name + ending for family in families.FAMILIES if family.type in ('histogram', 'summary')
    for ending in ('_bucket', '_count', '_sum')}

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
        texts = [rule['expr'] for rule in self.rules] + [series['series'] for test in self.tests
                                                         for series in test['input_series']]
        named = {name for text in texts for name in re.findall(r'\bdevicetrack_\w+', text)}
        self.assertLess(8, len(named))
        self.assertEqual(set(), named - KNOWN)

    def test_rules_name_values_of_labels_that_there_are(self) -> None:
        text = '\n'.join(rule['expr'] for rule in self.rules)
        [refusals, withheld] = re.findall('reason=~"([^"]*)"', text)
        self.assertEqual(set(), set(refusals.split('|')) - set(REASONS))
        self.assertEqual(set(), set(withheld.split('|')) - set(vocabulary.WITHHELD_REASONS))
        self.assertEqual(set(), set(re.findall('severity="([^"]*)"', text)) - set(vocabulary.SEVERITIES))
        self.assertEqual(set(), set(re.findall('kind="([^"]*)"', text)) - set(findings.KINDS))


class FleetTestCase(PromtoolTestCase):
    """Numbers of all hosts: the recording rules of the page, and the dashboard for Grafana."""

    def test_the_rules_pass_their_tests_and_each_has_one(self) -> None:
        self.check(promtool('check', 'rules', str(FLEET)))
        self.check(promtool('test', 'rules', str(FLEET_TESTS)))
        rules = {rule['record'] for group in yaml.safe_load(FLEET.read_text())['groups'] for rule in group['rules']}
        tested = {case['expr'] for test in yaml.safe_load(FLEET_TESTS.read_text())['tests']
                  for case in test['promql_expr_test']}
        self.assertEqual(rules, tested)

    def test_the_dashboard_asks_for_metrics_and_labels_that_there_are(self) -> None:
        dashboard = json.loads(DASHBOARD.read_text())
        asked = [target['expr'] for panel in dashboard['panels'] for target in panel['targets']]
        self.assertLess(20, len(asked))
        path = pathlib.Path(self.temp_dir(), 'asked.yaml')
        path.write_text(yaml.safe_dump({'groups': [{'name': 'asked', 'rules': [
            {'record': f'asked:{number}', 'expr': expr.replace('$__rate_interval', '5m')}
            for number, expr in enumerate(asked)]}]}))
        self.check(promtool('check', 'rules', str(path)))
        texts = [*asked, FLEET.read_text(), *(variable['query']['query'] for variable in dashboard['templating']['list']
                                              if variable['type'] == 'query')]
        named = {name for text in texts for name in re.findall(r'(?<![:\w])devicetrack_\w+', text)}
        self.assertEqual(set(), named - KNOWN)
        labels = {label for family in families.FAMILIES for label in family.labels} | {families.HOST, 'instance', 'le'}
        used = {label for text in texts for names in re.findall(r'\b(?:by|on) \(([^)]*)\)', text)
                for label in names.split(', ')} | {label for text in texts for label in re.findall(r'(\w+)=~?"', text)}
        self.assertEqual(set(), used - labels)
        self.assertLess({'resource_class', 'state', 'reason', 'severity'}, used)

    def test_the_panels_of_the_dashboard_lie_beside_each_other(self) -> None:
        panels = json.loads(DASHBOARD.read_text())['panels']
        fields = [(x, y) for panel in panels for at in [panel['gridPos']]
                  for x in range(at['x'], at['x'] + at['w']) for y in range(at['y'], at['y'] + at['h'])]
        self.assertEqual(len(fields), len(set(fields)))
        self.assertLess(max(x for x, _ in fields), 24)
        self.assertEqual(len(panels), len({panel['id'] for panel in panels}))


class PageTestCase(base.TestCase):

    def test_the_page_has_every_metric_with_its_labels_and_no_other(self) -> None:
        text = (ADMIN / 'metrics.rst').read_text()
        rows = dict(re.findall(r'^   \* - ``(devicetrack_\w+)``\n     - (.*)$', text, re.MULTILINE))
        self.assertEqual({family.shown: ', '.join(f'``{label}``' for label in family.labels) or '–'
                          for family in families.FAMILIES}, rows)
        for reason in REASONS:
            self.assertIn(f'``{reason}``', text)
