"""How people write times on the command line."""

from __future__ import annotations

import argparse
import datetime
import time

import fixtures as base_fixtures

from devicetrack.cmd import options
from devicetrack.tests import base
from devicetrack.tests.unit.cmd.test_repair import RepairCommandTestCase


class MomentTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.useFixture(base_fixtures.EnvironmentVariable('TZ', 'Europe/Berlin'))
        time.tzset()
        self.addCleanup(time.tzset)

    def test_how_long_ago(self) -> None:
        for text, seconds in (('90s', 90), ('30m', 1800), ('1h', 3600), ('-1h', 3600), ('7d', 7 * 86_400),
                              ('2w', 14 * 86_400), ('now', 0)):
            before = time.time()
            found = options.moment(text) / 1000 + seconds
            self.assertTrue(before - 4000 <= found <= time.time() + 4000, text)      # a day may have another hour

    def test_days_begin_at_local_midnight(self) -> None:
        today = datetime.date.today()
        for text, days in (('today', 0), ('yesterday', 1)):
            found = datetime.datetime.fromtimestamp(options.moment(text) / 1000)
            self.assertEqual((today - datetime.timedelta(days=days), datetime.time()), (found.date(), found.time()))

    def test_iso_times_are_local_without_a_zone(self) -> None:
        self.assertEqual(options.moment('2026-11-20T13:30:00Z'), options.moment('2026-11-20T14:30'))

    def test_what_is_no_time_is_refused(self) -> None:
        for text in ('', '7', 'd', '7y', '--7d', 'tomorrow', '9999999999d', '1h ago', '999999999w'):
            self.assertRaises(argparse.ArgumentTypeError, options.moment, text)


class PeriodTestCase(RepairCommandTestCase):

    def test_each_command_with_times_takes_them_in_each_form(self) -> None:
        instance = self.host.spawn(pmem=1)
        self.program.run('device', 'cordon', 'vpmem/d0', '--no-wait')
        for command in (('device', 'history', 'vpmem/d0'), ('instance', 'history', instance.uuid), ('request', 'list')):
            for since in (('--since', '-1h'), ('--since=-1h',), ('--since', '7d'), ('--since', 'yesterday')):
                self.assertTrue(self.program.ask(*command, *since), since)
            for none in (('--until', '-1h'), ('--since', '-1w', '--until', '2h')):
                answer = self.program.run(*command, *none)
                self.assertEqual((0, ''), (answer.code, answer.out))
                self.assertIn('in that time', answer.err)
            self.assertEqual(2, self.program.run(*command, '--since', 'soon').code)
