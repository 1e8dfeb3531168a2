"""``devicetrack-manage metrics``: what it prints, where it comes from, and what it writes for node_exporter."""

from __future__ import annotations

import os

import prometheus_client
from prometheus_client import parser

from devicetrack import exception
from devicetrack import metrics
from devicetrack.cmd import base as cmd_base
from devicetrack.metrics import textfile
from devicetrack.testing import fixtures
from devicetrack.testing.fixtures import Instance
from devicetrack.tests import base
from devicetrack.tests.unit.cmd import program


def values_of(text: str) -> dict[str, float]:
    """By name, the sum of the samples."""
    found: dict[str, float] = {}
    for metric in parser.text_string_to_metric_families(text):
        for sample in metric.samples:
            found[sample.name] = found.get(sample.name, 0) + sample.value
    return found


class MetricsTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.host = self.useFixture(fixtures.Host(devices=2, parents={'gpu': 1}, name='compute-7'))
        self.program = self.useFixture(program.Program(self.host.configuration, self.host.machine))
        self.left = os.path.join(self.host.configuration.state_path, textfile.NAME)

    def count(self) -> None:
        """Let the manager count from now on, and leave its numbers."""
        metrics.register(self.host.manager, prometheus_client.CollectorRegistry())
        self.host.claim(Instance(), pmem=1)
        self.host.audit()

    def run_program(self, *arguments: str) -> dict[str, float]:
        answer = self.program.run('metrics', *arguments)
        self.assertEqual((cmd_base.OK, ''), (answer.code, answer.err))
        return values_of(answer.out)

    def test_it_prints_what_the_manager_left(self) -> None:
        self.count()
        asked = self.host.machine.calls.copy()
        found = self.run_program()
        self.assertEqual(asked, self.host.machine.calls)        # it is cheap
        self.assertEqual((1, 2, 1), (found['devicetrack_claims_total'], found['devicetrack_devices'],
                                     found['devicetrack_audit_duration_seconds_count']))
        self.assertIn('devicetrack_last_audit_timestamp_seconds', found)

    def test_where_nobody_counts_it_reads_devices_and_findings(self) -> None:
        self.host.spawn(vgpu=1)
        self.host.machine.unknown_kinds['vpmem'] = 'ndctl failed'
        found = self.run_program()
        self.assertEqual((1, 1), (found['devicetrack_devices'], found['devicetrack_findings']))
        self.assertNotIn('devicetrack_claims_total', found)
        self.assertNotIn('devicetrack_last_audit_timestamp_seconds', found)

    def test_devices_are_read_anew_on_demand_and_the_rest_stays(self) -> None:
        self.count()
        self.host.machine.add_namespace('d2')
        found = self.run_program('--read')
        self.assertEqual((1, 3), (found['devicetrack_claims_total'], found['devicetrack_devices']))
        self.assertIn('devicetrack_last_audit_timestamp_seconds', found)

    def test_a_file_for_a_collector_of_another_user(self) -> None:
        self.count()
        path = os.path.join(self.temp_dir(), 'devicetrack.prom')
        before = os.umask(0o077)
        self.addCleanup(os.umask, before)
        self.assertEqual({}, self.run_program('--output', path))
        self.assertEqual(0o644, os.stat(path).st_mode & 0o777)
        with open(path, encoding='utf-8') as file:
            self.assertEqual(1, values_of(file.read())['devicetrack_claims_total'])

    def test_an_error_leaves_the_old_file(self) -> None:
        path = os.path.join(self.temp_dir(), 'devicetrack.prom')
        with open(path, 'w', encoding='utf-8') as file:
            file.write('old')
        self.host.machine.before('get_usage', exception.HypervisorUnreachable('fake', 'away'))
        answer = self.program.run('metrics', '--output', path)
        self.assertEqual((cmd_base.ERROR, True), (answer.code, 'away' in answer.err))
        with open(path, encoding='utf-8') as file:
            self.assertEqual('old', file.read())

    def test_a_directory_that_is_not_there(self) -> None:
        self.count()
        answer = self.program.run('metrics', '--output', '/nowhere/devicetrack.prom')
        self.assertEqual((cmd_base.ERROR, 'devicetrack-manage: the metrics file /nowhere/devicetrack.prom could not be '
                                          'read or written: No such file or directory\n'), (answer.code, answer.err))

    def test_what_the_manager_left_and_cannot_be_read(self) -> None:
        with open(self.left, 'w', encoding='utf-8') as file:
            file.write('no metrics at all {')
        answer = self.program.run('metrics')
        self.assertEqual(cmd_base.ERROR, answer.code)
        self.assertIn(self.left, answer.err)

    def test_without_the_extra(self) -> None:
        def missing() -> None:
            raise exception.MissingExtra('prometheus_client', 'metrics')

        self.patch(metrics, 'check', missing)
        answer = self.program.run('metrics')
        self.assertEqual((cmd_base.ERROR, 'devicetrack-manage: prometheus_client is not installed: pip install '
                                          'devicetrack[metrics]\n'), (answer.code, answer.err))
