"""Policies, from options and by hand; and what need not be loaded for them."""

from __future__ import annotations

import subprocess
import sys

from devicetrack.placement.allocations import AllocationClient
from devicetrack.placement.allocations import Policies
from devicetrack.placement.allocations import Policy
from devicetrack.tests import base


class TestPolicies(base.TestCase):

    def test_all_fail_unless_an_option_says_otherwise(self):
        self.assertEqual(Policies(), Policies.from_conf(self.conf))
        self.configuration.set('placement', on_conflict_delete='retry', on_conflict_change='merge')
        self.assertEqual(Policies(delete=Policy.RETRY, change=Policy.MERGE), Policies.from_conf(self.conf))

    def test_a_spawn_is_never_merged(self):
        self.assertRaises(ValueError, self.configuration.set, 'placement', on_conflict_spawn='merge')
        self.assertRaises(ValueError, AllocationClient, None, Policies(spawn=Policy.MERGE))

    def test_who_does_not_speak_with_placement_loads_nothing_for_it(self):
        program = ('import sys, devicetrack.conf.opts, devicetrack.claims.manager, devicetrack.placement.tree;'
                   'print(*[name for name in ("keystoneauth1", "requests") if name in sys.modules])')
        answer = subprocess.run([sys.executable, '-c', program], capture_output=True, text=True, check=True)
        self.assertEqual('', answer.stdout.strip())
