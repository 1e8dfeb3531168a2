"""``fleet host list``, from a mirror in an SQLite file."""

from __future__ import annotations

import os

import fixtures as base_fixtures

from devicetrack.cmd import base as cmd_base
from devicetrack.testing import fixtures
from devicetrack.tests import base
from devicetrack.tests.unit.fleet import fleets


class TestHostList(base.TestCase):
    def setUp(self) -> None:
        super().setUp()
        directory = self.useFixture(base_fixtures.TempDir()).path
        self.fleet = self.useFixture(fleets.Fleet(f'sqlite:///{os.path.join(directory, "mirror.sqlite")}'))
        self.hosts = [self.useFixture(fixtures.Host(
            devices=3, parents={'gpu': 2}, name=name, configuration=self.useFixture(
                fixtures.Configuration(machine=name)))) for name in ('compute-10', 'compute-9')]
        for host in self.hosts:
            host.spawn(pmem=1, vgpu=1)
            host.manager.operator.cordon('vpmem', 'd2', reason='firmware')
            self.fleet.push(host)

    def test_a_host_has_its_numbers_and_its_age(self) -> None:
        found = self.fleet.ask('fleet', 'host', 'list')
        self.assertEqual(['compute-9', 'compute-10'], [one['host'] for one in found])
        for one in found:
            self.assertEqual((4, 1, 1, 2, 1, 0), tuple(one[name] for name in (
                'devices', 'free', 'creatable', 'held', 'withheld', 'critical')))
            self.assertIsNone(one['unknown_since'])

    def test_nothing_of_a_silent_host_counts_as_free(self) -> None:
        self.fleet.grow_old(self.hosts[0], 181)
        answer = self.fleet.run('fleet', 'host', 'list', '-f', 'json')
        self.assertEqual(cmd_base.ATTENTION, answer.code)
        known, unknown = answer.data
        self.assertEqual((None, None, 2), (unknown['free'], unknown['creatable'], unknown['held']))
        self.assertIsNotNone(unknown['unknown_since'])
        self.assertEqual(1, known['free'])
        self.assertIn('unknown, because they are silent: compute-10', answer.err)

    def test_the_hosts_of_a_pattern_fit_a_terminal(self) -> None:
        self.fleet.grow_old(self.hosts[1], 3600)
        self.fleet.close(self.hosts[1])
        answer = self.fleet.run('fleet', 'host', 'list', '--max-width', '80', '--host', '*-9')
        self.assertNotIn('compute-10', answer.out)
        self.assertTrue(all(len(line) <= 80 for line in answer.out.splitlines()), answer.out)
        self.assertIn('compute-9', answer.out)
