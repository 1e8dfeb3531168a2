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


# Every class, function and method of Nova that is loaded, before and after the adapter is.
NOVA = """
import sys
import types
import nova.cmd.compute
from nova.compute import manager
from nova.virt.libvirt import driver
def changeable():
    for name, module in sorted(sys.modules.items()):
        if name.partition('.')[0] == 'nova':
            for scope in (module, *(one for one in vars(module).values() if isinstance(one, type))):
                for attribute, value in sorted(vars(scope).items()):
                    yield f'{name} {scope} {attribute} {id(value)}'
before = set(changeable())
from devicetrack.nova import compute
print('of', len(before), *sorted(before.difference(changeable())), sep='\\n')
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

    def test_the_table_has_every_method_that_the_adapter_relies_on_and_no_other(self) -> None:
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

    def test_the_adapter_changes_nothing_of_it(self) -> None:
        _of, number, *changed = self.run_program(NOVA)
        self.assertGreater(int(number), 10_000)
        self.assertEqual([], changed)
