"""``make debian-test``: Debian's own Nova takes up devicetrack by the commands of the operator's guide."""

from __future__ import annotations

import argparse
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
from typing import Any
from typing import Final

from devicetrack.tests.cloud import guest
from devicetrack.tests.debian import guide
from devicetrack.tests.debian import inside
from devicetrack.tests.debian import package
from devicetrack.tests.debian import roots
from devicetrack.tests.host import image as images

KIND: Final = '13root'
PACKAGES: Final = (
    # The compute host, and Nova's services around it.
    'nova-compute-kvm', 'nova-conductor', 'nova-scheduler', 'libvirt-clients', 'libvirt-daemon-system',
    'qemu-system-x86', 'qemu-utils', 'dbus', 'sudo', 'systemd-sysv',
    # What devicetrack.tests.cloud.services starts besides, and imports.
    'mariadb-client-core', 'mariadb-server-core', 'python3-fixtures', 'python3-hypothesis', 'python3-placement',
    'python3-pymysql', 'python3-testscenarios', 'rabbitmq-server', 'iproute2')

# Where the sources are inside, and the image of the guests.
PROJECT: Final = '/srv/devicetrack'
IMAGE: Final = '/srv/image'

# For hanging, not for slowness.
BOOT_S: Final = 600
_LOOK_AGAIN_S: Final = 1.0


def main() -> int:
    parser = argparse.ArgumentParser(
        prog='make debian-test', description='Install devicetrack beside the Nova of Debian 13 by the commands of the '
        'documentation, adopt two guests, and go back.')
    parser.add_argument('ways', nargs='*', metavar='WAY', help=f'how it is installed: {", ".join(inside.WAYS)}; both '
                        'by default, one after the other')
    parser.add_argument('--keep', action='store_true', help='leave what changed in the root directory, and say where')
    options = parser.parse_args()
    # Ends by an exception, so that nothing is left behind.
    signal.signal(signal.SIGTERM, _end)
    try:
        made = roots.made(KIND, PACKAGES)
        statuses = []
        for way in options.ways or inside.WAYS:
            with roots.work(options.keep) as work:
                _FILL[way](made, work)
                statuses.append(_play(made, work, way))
            if options.keep:
                _say(f'kept: {work}')
    except images.CannotBuild as error:
        _say(str(error))
        return 1
    failed = len(list(filter(None, statuses)))
    _say(f'{len(statuses) - failed} passed, {failed} failed')
    return int(failed > 0)


def _fill(made: pathlib.Path, work: pathlib.Path, where: str, *blocks: str) -> None:
    """Bring the sources and the image of the guests, and install devicetrack by commands of the guide."""
    roots.bring_sources(work / 'upper' / PROJECT[1:])
    (work / 'upper' / IMAGE[1:]).write_bytes(guest.image())
    # The packages that the mirror has now are those that a host upgrades to.
    upgrade, *_later = guide.blocks('install', 'Packages of Nova')
    for block in (*blocks, upgrade):
        _say(f'# {block.rstrip()}')
        roots.enter(made, work, f'cd {where}\n{block}')


def _fill_environment(made: pathlib.Path, work: pathlib.Path) -> None:
    environment, rights, *_later = guide.blocks('install', 'Debian and Ubuntu')
    _fill(made, work, PROJECT, environment, rights)


def _fill_packages(made: pathlib.Path, work: pathlib.Path) -> None:
    directory = work / 'upper' / str(inside.PACKAGES)[1:]
    directory.mkdir(parents=True)
    for built in package.build():
        if not built.name.startswith('devicetrack-doc_'):
            shutil.copy(built, directory)
    install, *_later = guide.blocks('install', 'Packages for Debian 13')
    _fill(made, work, str(inside.PACKAGES), install)


_FILL: Final = {'environment': _fill_environment, 'packages': _fill_packages}


def _play(made: pathlib.Path, work: pathlib.Path, way: str) -> int:
    """Run inside.py in the booted root directory, and end all that runs there.

    :returns: its status
    """
    with subprocess.Popen(['setpriv', '--pdeathsig', 'KILL', '--', roots.ROOT, 'boot', made, work]) as booted:
        try:
            return subprocess.run([*_inside(booted), 'python3', '-W', 'ignore', '-m', inside.__name__, IMAGE, way],
                                  stdin=subprocess.DEVNULL).returncode
        finally:
            # With process 1 all others end, and only then unshare.
            for process in _children(booted):
                os.kill(int(process), signal.SIGKILL)


def _children(booted: subprocess.Popen[bytes]) -> list[str]:
    """The process that unshare has started, which is process 1 inside."""
    return pathlib.Path(f'/proc/{booted.pid}/task/{booted.pid}/children').read_text().split()


def _inside(booted: subprocess.Popen[bytes]) -> list[str]:
    """Wait until the system has started, and return what runs a command in it.

    :raises TimeoutError: it does not start
    """
    until = time.monotonic() + BOOT_S
    while booted.poll() is None and time.monotonic() < until:
        enter = ['nsenter', '--target', *_children(booted), '--all', '--root', '--wdns=/', 'env',
                  '--ignore-environment', 'HOME=/root', 'LANG=C.UTF-8', f'PYTHONPATH={PROJECT}',
                  'PYTHONDONTWRITEBYTECODE=1', 'PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin']
        asked = subprocess.run([*enter, 'systemctl', 'is-system-running', '--wait'], text=True,
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        # Units of a machine's own hardware fail here.
        if asked.stdout.strip() in ('running', 'degraded'):
            return enter
        time.sleep(_LOOK_AGAIN_S)
    raise TimeoutError('systemd does not run')


def _end(number: int, _frame: Any) -> None:
    raise SystemExit(128 + number)


def _say(text: str) -> None:
    sys.stdout.write(f'{text}\n')
    sys.stdout.flush()


if __name__ == '__main__':
    sys.exit(main())
