"""``make debian-test``: Debian's own Nova takes up devicetrack by the commands of the operator's guide."""

from __future__ import annotations

import argparse
import hashlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any
from typing import Final

from devicetrack.tests.cloud import guest
from devicetrack.tests.debian import guide
from devicetrack.tests.host import image as images

ROOT: Final = pathlib.Path(__file__).with_name('root')
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
    parser.add_argument('--keep', action='store_true', help='leave what changed in the root directory, and say where')
    options = parser.parse_args()
    # Ends by an exception, so that nothing is left behind.
    signal.signal(signal.SIGTERM, _end)
    try:
        made = _made()
    except images.CannotBuild as error:
        _say(str(error))
        return 1
    work = pathlib.Path(tempfile.mkdtemp(prefix='run-', dir=images.cache()))
    try:
        _fill(made, work)
        status = _play(made, work)
    finally:
        if options.keep:
            _say(f'kept: {work}')
        else:
            shutil.rmtree(work)
    _say(f'{int(not status)} passed, {int(bool(status))} failed')
    return status


def _made() -> pathlib.Path:
    """The root directory, made if there is none of this recipe: that takes minutes, and root.

    :raises CannotBuild: it cannot be made here
    """
    if os.geteuid() != 0:
        raise images.CannotBuild('The test makes and enters a root directory, which takes root.')
    digest = hashlib.sha256(ROOT.read_bytes() + repr(PACKAGES).encode()).hexdigest()[:16]
    made = images.cache() / f'debian{KIND}-{digest}'
    images.cache().mkdir(mode=0o700, parents=True, exist_ok=True)
    with images.one_builder(KIND):
        if not made.exists():
            for old in images.cache().glob(f'debian{KIND}-*'):
                if not images.is_kept(old):
                    shutil.rmtree(old)
            new = made.with_suffix('.new')
            if subprocess.run([ROOT, 'make', new, images.mirror(), *PACKAGES], stdin=subprocess.DEVNULL).returncode:
                raise images.CannotBuild(f'The root directory was not made; {new} has what there is of it.')
            new.rename(made)
        images.keep(made)
    return made


def _fill(made: pathlib.Path, work: pathlib.Path) -> None:
    """Bring the sources, committed or not, and install devicetrack by the first commands of the guide."""
    project = work / 'upper' / PROJECT[1:]
    project.parent.mkdir(parents=True)
    subprocess.run(['git', 'clone', '--quiet', images.PROJECT, project], check=True)
    listed = subprocess.run(['git', 'ls-files', '-z', '--cached', '--others', '--exclude-standard'],
                            cwd=images.PROJECT, stdout=subprocess.PIPE, check=True).stdout
    for name in filter(None, listed.decode().split('\0')):
        if (images.PROJECT / name).is_file():
            (project / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(images.PROJECT / name, project / name)
    (work / 'upper' / IMAGE[1:]).write_bytes(guest.image())
    environment, rights, *_later = guide.blocks('install', 'Debian and Ubuntu')
    # The packages that the mirror has now are those that a host upgrades to.
    upgrade, *_later = guide.blocks('install', 'Packages of Nova')
    for block in (environment, rights, upgrade):
        _say(f'# {block.rstrip()}')
        subprocess.run([ROOT, 'enter', made, work, 'sh', '-ec', f'cd {PROJECT}\n{block}'], check=True)


def _play(made: pathlib.Path, work: pathlib.Path) -> int:
    """Run inside.py in the booted root directory, and end all that runs there.

    :returns: its status
    """
    with subprocess.Popen(['setpriv', '--pdeathsig', 'KILL', '--', ROOT, 'boot', made, work]) as booted:
        try:
            inside = _inside(booted)
            return subprocess.run([*inside, 'python3', '-W', 'ignore', '-m', 'devicetrack.tests.debian.inside', IMAGE],
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
        inside = ['nsenter', '--target', *_children(booted), '--all', '--root', '--wdns=/', 'env',
                  '--ignore-environment', 'HOME=/root', 'LANG=C.UTF-8', f'PYTHONPATH={PROJECT}',
                  'PYTHONDONTWRITEBYTECODE=1', 'PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin']
        asked = subprocess.run([*inside, 'systemctl', 'is-system-running', '--wait'], text=True,
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        # Units of a machine's own hardware fail here.
        if asked.stdout.strip() in ('running', 'degraded'):
            return inside
        time.sleep(_LOOK_AGAIN_S)
    raise TimeoutError('systemd does not run')


def _end(number: int, _frame: Any) -> None:
    raise SystemExit(128 + number)


def _say(text: str) -> None:
    sys.stdout.write(f'{text}\n')
    sys.stdout.flush()


if __name__ == '__main__':
    sys.exit(main())
