"""What happens on the host: Debian's own Nova takes up devicetrack as the operator's guide says, and goes back.

``make debian-test`` runs this as root in the root that it made, with systemd as process 1 and no network but loopback.
The distribution's Python runs it: Nova's API, scheduler and conductor are those of the packages too.
"""

from __future__ import annotations

from collections.abc import Callable
import datetime
import json
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
from typing import Any
from typing import Final
import uuid

from devicetrack.tests.cloud import compute_client
from devicetrack.tests.cloud import services
from devicetrack.tests.cloud import settings
from devicetrack.tests.debian import guide

UNIT: Final = 'nova-compute'
LOG: Final = pathlib.Path('/var/log/nova/nova-compute.log')
STATE: Final = pathlib.Path('/var/lib/devicetrack')
PACKAGES: Final = pathlib.Path('/srv/packages')
FILES: Final = ('/etc/nova/nova.conf', '/etc/nova/nova-compute.conf')
# The kernel of this machine need not have persistent memory. A file stands for each namespace, for devicetrack by its
# option and for Nova by what our ndctl prints: Nova makes /dev/pmem/NAME of it.
MEMORY: Final = pathlib.Path('/dev/pmem')
NAMESPACES: Final = ('ns0', 'ns1', 'ns2')
SIZE: Final = 16 << 20
ALIGN: Final = 2 << 20

# For hanging, not for slowness.
COMMAND_S: Final = 900

# Guests run as Nova's user, who may then see what they have open, and without the cgroups of a whole machine.
QEMU: Final = """
user = "nova"
group = "nova"
security_driver = "none"
cgroup_controllers = []
namespaces = []
"""


class Failed(Exception):
    """Something is not as the guide says."""


def say(text: str) -> None:
    sys.stdout.write(f'{text}\n')
    sys.stdout.flush()


def run(command: str, *ends: int) -> str:
    """Run a command of the guide as an operator does, as root by a shell.

    :param ends: the statuses that it may end with; 0 by default
    :returns: what it printed
    """
    say(f'# {command.rstrip()}')
    done = subprocess.run(['sh', '-ec', command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=COMMAND_S, cwd='/')
    say(done.stdout.rstrip())
    if done.returncode not in (ends or (0,)):
        raise Failed(f'{command.strip()} ended with {done.returncode}')
    return done.stdout


def check(is_so: object, what: str) -> None:
    if not is_so:
        raise Failed(what)
    say(f'-- {what}')


def install(block: str) -> None:
    """Write a file of the guide."""
    path, text = guide.file_of(block)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    pathlib.Path(path).write_text(text)
    say(f'# {path}\n{text.rstrip()}')


class Host:
    """The host, as its operator sees it."""

    def __init__(self, cloud: services.Services) -> None:
        self.cloud = cloud
        self.nova = compute_client.Client(cloud.url, lambda: {
            'host': LOG.read_text(errors='replace').count('Compute_service record updated for')})
        self.name = os.uname().nodename

    def configure(self) -> None:
        made = settings.common(self.cloud.own)
        made['DEFAULT'] |= {
            'my_ip': '127.0.0.1', 'state_path': '/var/lib/nova', 'reserved_host_memory_mb': 256,
            'vif_plugging_is_fatal': False, 'update_resources_interval': 5, 'sync_power_state_interval': -1,
            'heal_instance_info_cache_interval': -1, 'report_interval': 2, 'shutdown_timeout': 2}
        made |= {
            'vnc': {'enabled': False}, 'spice': {'enabled': False},
            'oslo_concurrency': {'lock_path': '/var/lock/nova'},
            'libvirt': {'pmem_namespaces': f'SMALL:{"|".join(NAMESPACES)}', 'cpu_mode': 'none',
                        'swtpm_enabled': False},
            'devicetrack_vpmem': {'directory': MEMORY}}
        # The files of the package, with its owners and modes.
        pathlib.Path(FILES[0]).write_text(settings.text(made))
        other = pathlib.Path(FILES[1])
        other.write_text(other.read_text().replace('virt_type=kvm', 'virt_type=qemu'))
        with open('/etc/libvirt/qemu.conf', 'a') as file:
            file.write(QEMU)
        MEMORY.mkdir()
        for name in NAMESPACES:
            with open(MEMORY / name, 'wb') as content:
                content.truncate(SIZE)
            shutil.chown(content.name, 'nova', 'nova')
        listed = [{'dev': f'namespace{number}.0', 'name': name, 'mode': 'devdax', 'size': SIZE,
                   'uuid': str(uuid.uuid4()), 'daxregion': {
                       'id': number, 'size': SIZE, 'align': ALIGN, 'devices': [{
                           'chardev': f'{MEMORY.name}/{name}', 'size': SIZE}]}}
                  for number, name in enumerate(NAMESPACES)]
        ndctl = pathlib.Path('/usr/bin/ndctl')
        ndctl.unlink(missing_ok=True)
        ndctl.write_text(f'#!/bin/sh\necho {shlex.quote(json.dumps(listed))}\n')
        ndctl.chmod(0o755)
        # Stock Nova zeroes the namespace of a guest that it reboots by daxio, which Debian 13 does not have.
        daxio = pathlib.Path('/usr/bin/daxio')
        daxio.write_text(f'#!/bin/sh\nexec head --bytes {SIZE} /dev/zero >"$3"\n')
        daxio.chmod(0o755)

    def boots(self) -> dict[str, int]:
        """How many boots of guests each namespace has seen: the guest counts them in it."""
        return {name: int.from_bytes((MEMORY / name).read_bytes()[:8], 'little') for name in NAMESPACES}

    def wait_for_boots(self, *counts: int) -> None:
        """Wait until the namespaces have seen so many boots."""
        compute_client.wait_for(f'namespaces have seen {counts} boots',
                                lambda: sorted(self.boots().values()) == sorted(counts))
        say(f'-- boots: {self.boots()}')

    def started(self, start: Callable[[], Any]) -> list[str]:
        """Start the service, wait until Nova has heard from it, and return its command line."""
        start()
        # From here on, the process that ended reports no more: a request before the new one serves may be lost.
        since = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
        self.nova.wait_for_host(self.name, since, lambda: subprocess.run(
            ['systemctl', 'is-active', '--quiet', UNIT]).returncode == 0)
        pid = run(f'systemctl show --property MainPID --value {UNIT}').strip()
        command = pathlib.Path(f'/proc/{pid}/cmdline').read_text().split('\0')[:-1]
        say(f'-- runs {" ".join(command)}')
        return command

    def enable(self, enabled: bool) -> None:
        service = self.nova.services()[self.name]
        self.nova.ask('PUT', f'/os-services/{service["id"]}', {'status': 'enabled' if enabled else 'disabled'})

    def force_down(self, down: bool) -> None:
        self.nova.force_down(self.name, down)


class Environment:
    """devicetrack is in a virtual environment, and the operator writes the drop-in."""

    def __init__(self) -> None:
        # The first two blocks have run already, where they reach the network.
        _environment, _rights, self.check, self._drop_in, self._show, self._start = guide.blocks(
            'install', 'Debian and Ubuntu')

    def start(self, host: Host) -> list[str]:
        """Start the service with devicetrack, and return its command line."""
        install(self._drop_in)
        shown = shlex.split(run(self._show))
        run('systemctl daemon-reload')
        running = host.started(lambda: run(self._start))
        # An interpreter runs both programs.
        check(running[1:] == shown, 'the unit starts what the guide says it shows')
        return running

    def end(self, host: Host) -> list[str]:
        """Start stock Nova, and return its command line."""
        run(f'systemctl stop {UNIT}')
        os.remove(guide.file_of(self._drop_in)[0])
        run('systemctl daemon-reload')
        return host.started(lambda: run(f'systemctl start {UNIT}'))

    def remove(self) -> None:
        """The operator removes the virtual environment: it is a directory."""


class Packages:
    """devicetrack comes from its packages for Debian."""

    def __init__(self) -> None:
        # The first block has run already, where it reaches the network.
        _install, self.check, self._link, self._remove = guide.blocks('install', 'Packages for Debian 13')

    def start(self, host: Host) -> list[str]:
        shown = run(f'systemctl show --property Environment --value {UNIT}')
        check('DAEMON' not in shown, 'the packages leave the unit as it is')
        return host.started(lambda: run(self._link))

    def end(self, host: Host) -> list[str]:
        return host.started(lambda: run(self._remove))

    def remove(self) -> None:
        """Nothing is left of the packages but the record, and not even that if the operator asks for it."""
        purge = 'apt-get purge --yes devicetrack-nova python3-devicetrack'
        run(purge)
        check((STATE / 'devicetrack.sqlite').is_file(), 'a purge keeps the record')
        run(f'dpkg --install {PACKAGES}/*.deb')
        (STATE / 'remove-on-purge').touch()
        run(purge)
        left = run(f'find / -xdev -path {PACKAGES.parent} -prune -o -name "*devicetrack*" -print')
        check(left == '', 'no file is left')


def play(host: Host, way: Environment | Packages) -> None:
    """Run the commands of the guide in their order.

    :raises Failed: one of them does not do what the guide says
    """
    host.configure()
    nova = host.nova
    # The system starts it too, and ends it when it was idle for two minutes. It may have read the file of before.
    run('systemctl restart libvirtd')
    stock = host.started(lambda: run(f'systemctl start {UNIT}'))
    flavor = nova.flavor('small', {'hw:pmem': 'SMALL'})
    guests = [nova.boot(name, flavor, host.name) for name in ('one', 'two')]
    for guest in guests:
        check(nova.wait(guest, 'ACTIVE')['status'] == 'ACTIVE', f'stock Nova has booted {guest}')
    host.wait_for_boots(0, 1, 1)

    answer = run(way.check, 3)
    check('\nfailure' not in answer, 'the check finds nothing that keeps the host from changing')
    _check, plan, apply = guide.blocks('adopt', 'On one host')
    host.enable(False)
    run(f'systemctl stop {UNIT}')
    host.force_down(True)
    answer = run(plan)
    check(answer.count('adopt instance') == len(guests), 'the plan adopts both guests')
    answer = run(apply)
    check(answer.count('adopted instance') == len(guests), 'both guests are adopted')

    host.force_down(False)
    running = way.start(host)
    check(running[2:] == stock[2:], 'devicetrack-nova-compute has the arguments of nova-compute')
    check('devicetrack decides who gets them' in LOG.read_text(), "it says so in Nova's log")
    host.enable(True)
    commands = [f'sudo -u nova {command} {" ".join(f"--config-file {name}" for name in FILES)}'
                for command in ('devicetrack-status', 'devicetrack-manage')]
    run(f'{commands[0]} upgrade check')
    answer = run(f'{commands[1]} audit')
    check('critical' not in answer and 'warning' not in answer, 'record, libvirt, host and Nova agree')
    check(answer.count('not recoverable') == len(guests), 'the guests have our record only from their next start on')
    [listed] = guide.blocks('install', 'Installation')[-1:]
    answer = run(listed)
    check(all(guest in answer for guest in guests), 'both guests have their devices')

    # The upgrade of devicetrack itself needs the network.
    [upgrade] = guide.blocks('install', 'Upgrades')
    pip, _newline, others = upgrade.partition('\n')
    check(pip.startswith('pip '), 'an upgrade begins with pip')
    host.started(lambda: run(others))

    nova.act(guests[0], 'reboot', {'type': 'HARD'})
    check(nova.wait(guests[0], 'ACTIVE')['status'] == 'ACTIVE', 'the first guest is rebooted')
    host.wait_for_boots(0, 1, 2)
    nova.delete(guests[1])
    nova.wait_until_gone(guests[1])
    host.wait_for_boots(0, 0, 2)

    host.enable(False)
    host.started(lambda: run(f'systemctl restart {UNIT}'))
    [withheld] = guide.blocks('operate', 'Back to Nova alone')
    compute_client.wait_for('nothing is withheld', lambda: 'nothing is withheld' in run(withheld))
    check(way.end(host) == stock, 'the unit starts stock nova-compute again')
    host.enable(True)
    nova.act(guests[0], 'reboot', {'type': 'HARD'})
    check(nova.wait(guests[0], 'ACTIVE')['status'] == 'ACTIVE', 'stock Nova reboots the guest')
    way.remove()


WAYS: Final[dict[str, type[Environment | Packages]]] = {'environment': Environment, 'packages': Packages}


def main(image: str, way: str) -> int:
    with services.Services(pathlib.Path(image).read_bytes(), threads=False) as cloud:
        host = Host(cloud)
        try:
            play(host, WAYS[way]())
        except (Failed, compute_client.TooLate, compute_client.Hangs, compute_client.Refused) as error:
            if LOG.exists():
                say(LOG.read_text(errors='replace')[-services.LONGEST_LOG:])
            say(f'{cloud.logs()}\nfailed: {error}')
            return 1
    return 0


if __name__ == '__main__':
    sys.exit(main(*sys.argv[1:]))
