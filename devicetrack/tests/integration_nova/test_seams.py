"""What the adapter knows of the Nova that is installed.

Each test is a process of its own: another plugin may change Nova only there, and Nova chooses its threads once.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import textwrap

import devicetrack
from devicetrack.nova import seam_table
from devicetrack.tests import base

ROOT = pathlib.Path(devicetrack.__file__).parent

CHECK = """
import time
import nova.cmd.compute
from devicetrack import exception
from devicetrack.nova import seams
from devicetrack.nova import startup
targets = startup.targets()
{change}
try:
    seams.check(targets)
except exception.UnknownNova as error:
    print(*error.differences, sep='\\n')
"""

# Another plugin's way of wrapping, which hides behind the name of what it wraps.
WRAP = """
import functools
from nova.compute import manager, resource_tracker
from nova.virt.libvirt import driver
def wrap(owner, name):
    original = getattr(owner, name)
    @functools.wraps(original)
    def method(*args, **kwargs):
        return original(*args, **kwargs)
    setattr(owner, name, method)
"""


class InstalledNovaTestCase(base.TestCase):

    def run_program(self, program: str) -> list[str]:
        done = subprocess.run([sys.executable, '-W', 'ignore', '-c', program], capture_output=True, text=True,
                              check=False, env=os.environ | {'PYTHONPATH': str(ROOT.parent)})
        self.assertEqual(0, done.returncode, done.stderr)
        return done.stdout.splitlines()

    def differences(self, change: str = '') -> list[str]:
        return self.run_program(CHECK.format(change=change))

    def test_it_is_known(self) -> None:
        self.assertEqual([], self.differences())

    def test_the_table_has_every_method_that_is_wrapped_and_no_other(self) -> None:
        targets = self.run_program(CHECK.format(change='print(*targets); raise SystemExit(0)'))[0].split()
        for major, table in seam_table.load().items():
            self.assertEqual((major, set(targets)), (major, set(table.targets)))

    def test_a_method_that_somebody_else_wrapped_is_named(self) -> None:
        names = ['ResourceTracker.instance_claim', 'LibvirtDriver._allocate_mdevs', 'ComputeManager._shutdown_instance']
        found = self.differences(WRAP + textwrap.dedent("""
            wrap(resource_tracker.ResourceTracker, 'instance_claim')
            wrap(driver.LibvirtDriver, '_allocate_mdevs')
            wrap(manager.ComputeManager, '_shutdown_instance')
        """))
        self.assertEqual(['changed in this process by <string>:14'] * 3, [one.partition(': ')[2] for one in found])
        self.assertEqual(sorted(names), sorted(one.partition(': ')[0].partition(':')[2] for one in found))

    def test_a_caller_that_somebody_else_wrapped_is_named(self) -> None:
        [found] = self.differences(WRAP + "wrap(driver.LibvirtDriver, 'spawn')")
        self.assertIn('nova.virt.libvirt.driver:LibvirtDriver.spawn: changed in this process by ', found)

    def test_it_is_not_known_any_more_once_the_adapter_is_installed(self) -> None:
        found = self.differences('from devicetrack.nova import install; install.install()')
        self.assertTrue(all('changed in this process by ' in one and 'wrapping.py' in one for one in found), found)
        self.assertIn('nova.compute.manager:ComputeManager._check_for_host_rename',
                      {one.partition(': ')[0] for one in found})

    def test_once_the_adapter_is_removed_it_is_known_again(self) -> None:
        self.assertEqual([], self.differences('from devicetrack.nova import install; install.install().remove()'))
