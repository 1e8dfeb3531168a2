"""``make deb``: Debian packages, built and checked in a root directory of Debian 13, whatever this machine runs."""

from __future__ import annotations

import pathlib
import shutil
import signal
import sys
from typing import Any
from typing import Final

from devicetrack.tests.debian import roots
from devicetrack.tests.host import image as images

KIND: Final = '13build'
CONTROL: Final = images.PROJECT / 'debian' / 'control'
RESULTS: Final = images.PROJECT / 'dist' / 'debian'

# Where the sources are inside; the packages are written beside them.
_BUILT: Final = '/srv/build'
# dpkg-buildpackage ends if debian/control names a package that the root directory lacks.
_BUILD: Final = f"""
cd {_BUILT}/devicetrack
dpkg-buildpackage --unsigned-source --unsigned-changes --build=binary
lintian --allow-root --fail-on error ../devicetrack_*.changes
"""


def build_packages(control: str) -> list[str]:
    """The packages that ``debian/control`` wants for a build, and what checks its result."""
    source = control.partition('\n\n')[0]
    wanted: list[str] = []
    for line in source.splitlines():
        field, colon, _value = line.partition(':')
        if not line.startswith(' '):
            collecting = colon and field.startswith('Build-Depends')
        elif collecting:
            name = line.split()[0].rstrip(',')
            wanted.append('debhelper' if name == 'debhelper-compat' else name)
    return ['build-essential', 'lintian', *wanted]


def build() -> list[pathlib.Path]:
    """Build the packages into ``dist/debian``, and return them.

    :raises CannotBuild: there is no root directory to build in
    :raises subprocess.CalledProcessError: they are not built, or lintian finds an error
    """
    made = roots.made(KIND, build_packages(CONTROL.read_text()))
    shutil.rmtree(RESULTS, ignore_errors=True)
    RESULTS.mkdir(parents=True)
    with roots.work() as work:
        roots.bring_sources(work / 'upper' / _BUILT[1:] / 'devicetrack')
        roots.enter(made, work, _BUILD)
        for package in (work / 'upper' / _BUILT[1:]).glob('*.deb'):
            shutil.copy(package, RESULTS)
    return sorted(RESULTS.iterdir())


def _end(number: int, _frame: Any) -> None:
    raise SystemExit(128 + number)


def main() -> int:
    # Ends by an exception, so that nothing is left behind.
    signal.signal(signal.SIGTERM, _end)
    for package in build():
        sys.stdout.write(f'{package}\n')
    return 0


if __name__ == '__main__':
    sys.exit(main())
