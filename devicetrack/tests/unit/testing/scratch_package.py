"""The package of the example kind ``scratch``, installed."""

from __future__ import annotations

import atexit
from collections.abc import Callable
import functools
import importlib
import os
import pathlib
import shutil
import subprocess
import sys
from typing import Any
from typing import Final

import fixtures
from oslo_versionedobjects import base as ovo_base

from devicetrack.testing import scratch
from devicetrack.tests import base

EXAMPLE: Final = pathlib.Path(__file__).parents[4] / 'examples' / 'scratch_kind'


@functools.cache
def installed(files: Callable[[pathlib.Path], object]) -> str:
    """The directory that a package was installed into. pip takes longer than most tests that need it.

    :param files: puts the files of the package into a directory that does not exist yet
    """
    top, process_id = pathlib.Path(scratch.make('example')), os.getpid()

    def remove() -> None:
        if process_id == os.getpid():           # and not in a forked child
            shutil.rmtree(top, ignore_errors=True)

    atexit.register(remove)
    source, site = top / 'source', str(top / 'site')
    files(source)
    subprocess.run([sys.executable, '-m', 'pip', 'install', '--quiet', '--no-deps', '--no-build-isolation',
                    '--no-index', '--disable-pip-version-check', '--target', site, str(source)],
                   check=True, capture_output=True, timeout=base.HANGS_S)
    return site


def _example(source: pathlib.Path) -> None:
    shutil.copytree(EXAMPLE, source, ignore=shutil.ignore_patterns('__pycache__', 'build', '*.egg-info'))


class Installed(fixtures.Fixture):
    """The example package, installed from its own ``pyproject.toml``, for this process and for others (``path``).

    The tests of a process share it, and change nothing there.
    """

    def _setUp(self) -> None:
        self.path = installed(_example)


class Loaded(Installed):
    """The package in this process; ``kind`` and ``tests`` are its modules."""

    def _setUp(self) -> None:
        super()._setUp()
        sys.path.insert(0, self.path)
        importlib.invalidate_caches()
        self.addCleanup(self._forget)
        self.kind: Any = importlib.import_module('scratch_kind.kind')
        self.tests: Any = importlib.import_module('scratch_kind.tests.test_contract')

    def _forget(self) -> None:
        sys.path.remove(self.path)
        for name in [name for name in sys.modules if name.split('.')[0] == 'scratch_kind']:
            del sys.modules[name]
        ovo_base.VersionedObjectRegistry.obj_classes().pop('devicetrack.ScratchDetails', None)
