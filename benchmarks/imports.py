"""Compares importing the library with importing its dependencies, in fresh interpreters."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
import functools
import os
import subprocess
import sys
import tempfile

from benchmarks.measure import Effort
from benchmarks.measure import side_by_side
from benchmarks.report import Row
from benchmarks.report import Table

BASE = 'SQLAlchemy, enginefacade of oslo.db, oslo.versionedobjects'
LIGHT = 'import devicetrack'
ALL = 'everything loaded'

_PROGRAMS = {
    BASE: """
import sqlalchemy
import oslo_db.sqlalchemy.enginefacade
import oslo_versionedobjects.base
""",
    LIGHT: 'import devicetrack',
    # The modules that a running compute service has loaded.
    ALL: """
import devicetrack
for name in devicetrack.__all__:
    getattr(devicetrack, name)
import devicetrack.claims.manager
import devicetrack.store.sql.store
import devicetrack.virt.libvirt.driver
import devicetrack.virt.libvirt.kinds.mdev
import devicetrack.virt.libvirt.kinds.vpmem
""",
}
# Processor time: other processes do not add to it. After the first round all files and bytecode are in their caches.
# The hypervisor's own binding does not count. The collector begins anew in each program: a collection of all objects
# takes a seventh of the whole time, and the interpreter's own start must not decide whether there is one more.
_TIMED = """
import contextlib
import gc
import time
with contextlib.suppress(ImportError):
    import libvirt
gc.collect()
began = time.process_time()
{}
print(time.process_time() - began)
"""
MILLISECONDS = 1e3


def run(effort: Effort) -> Table:
    with tempfile.TemporaryDirectory() as cache:
        # Load all code from bytecode, as where it is installed. Where PYTHONDONTWRITEBYTECODE is set, a checkout has
        # none, and every round would compile our code alone.
        elsewhere = {'PYTHONPYCACHEPREFIX': cache, 'PYTHONDONTWRITEBYTECODE': ''} if sys.dont_write_bytecode else {}
        environment = {**os.environ, **elsewhere}
        subjects: dict[str, Callable[[], float]] = {
            name: functools.partial(_seconds, program, environment) for name, program in _PROGRAMS.items()}
        samples = side_by_side(subjects, effort.imports, warm_up=min(1, effort.imports - 1))
    return Table('Imports', [
        Row(BASE, samples.median(BASE) * MILLISECONDS, 'ms'),
        Row(f'{LIGHT} to that', samples.ratio(LIGHT, BASE), at_most=0.25,
            note=f'{samples.median(LIGHT) * MILLISECONDS:.0f} ms'),
        Row(f'{ALL} to that', samples.ratio(ALL, BASE), at_most=1.35,
            note=f'{samples.median(ALL) * MILLISECONDS:.0f} ms'),
    ])


def _seconds(program: str, environment: Mapping[str, str]) -> float:
    done = subprocess.run([sys.executable, '-W', 'ignore', '-c', _TIMED.format(program)], check=True,
                          capture_output=True, text=True, env=environment)
    return float(done.stdout)
