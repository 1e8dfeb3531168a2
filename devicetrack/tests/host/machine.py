"""A compute host: one virtual machine, driven from outside.

It has no network but a link to one other machine, and a way to the services that it is given; everything goes through
its agent (see agent.py). It writes to files in its directory, a root disk above the image's and two NVDIMMs, so it can
lose its power and start again.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import functools
import importlib.metadata
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid

from devicetrack.tests.host import agent
from devicetrack.tests.host import image as images
from devicetrack.tests.host import interpreter
from devicetrack.tests.host import monitor
from devicetrack.tests.host import relay
from devicetrack.tests.host.clock import Clock
from devicetrack.tests.host.clock import LOOK_EVERY_S
from devicetrack.tests.host.programs import Done
from devicetrack.tests.host.programs import Failed
from devicetrack.tests.host.programs import Gone
from devicetrack.tests.host.programs import NoBoot
from devicetrack.tests.host.programs import Process
from devicetrack.tests.host.programs import Programs

__all__ = ['Done', 'Failed', 'Gone', 'Link', 'Machine', 'Process']

MIB = 1 << 20

MEMORY_MIB = 3072
CPUS = 1

# Namespaces of each NVDIMM, in MiB. Their names are pmem0 to pmem5; two of a size are on different NVDIMMs. The kernel
# keeps a part of each for itself.
NAMESPACES = (32, 48, 64)
OVERHEAD_MIB = 2
NVDIMMS = 2
# The NVDIMMs are neighbours in memory, and namespaces begin at multiples of 16 MiB, so NVDIMMs do too.
NVDIMM_MIB = 160
LABEL_MIB = 16

# The serial numbers of the disks of a machine with functions, and their size.
DISKS = ('disk-a', 'disk-b')
OTHER_DISK = 'disk-c'                           # in no slot
SPLIT = 'split'
PARTS = {2: 'part-a', 3: 'part-b'}              # private namespaces of it, attached to no controller
DISK_MIB = 64

# Where the project is, and what runs its programs.
JOB = '/job'
INTERPRETER = [f'{images.VENV}/bin/python', '-W', 'ignore', f'{JOB}/interpreter.py']

# The memory of a host when it was saved.
MEMORY = 'memory'

# Files that a test must not leave.
LEFT_OVER = """
virsh list --all --name | sed '/^$/d; s/^/guest /'
ls /sys/bus/mdev/devices | sed 's/^/mediated device /'
find /etc/mdevctl.d -type f ! -path '*/scripts.d/*' | sed 's/^/definition /'
"""

# By the machine's own clock, as all that follow. An emulated host with functions boots in a hundred seconds.
BOOT_S = 300
IMPORTS_S = 600
# The emulator breaks one boot in some hundreds: the kernel gets a debug trap that nobody set and goes down, or it waits
# for ever. Nothing of ours runs there before the agent speaks.
BOOTS = 3
STOP_S = 120
TESTS_S = 1800

KERNEL_ARGUMENTS = (
    'root=/dev/vda', 'rw', 'fsck.mode=skip',
    'console=ttyS0', 'loglevel=5', 'systemd.show_status=0',
    'panic=-1',
    # The same card, whatever slot it is in.
    'net.ifnames=0',
    # Clocks are right even when nothing else here gets its turn in time.
    'no_timer_check', 'tsc=reliable', 'nowatchdog', 'rcupdate.rcu_cpu_stall_suppress=1',
    'mitigations=off', 'apparmor=0',
)

ADDRESSES = {'host-a': '192.0.2.1', 'host-b': '192.0.2.2'}

# Where a machine reaches the services that it is given, and where it is itself on the way to them.
SERVICES = '10.0.2.100'
OWN_ADDRESS = '10.0.2.15/24'


@functools.cache
def listed_devices() -> bytes:
    listed = subprocess.run(['qemu-system-x86_64', '-device', 'help'], stdout=subprocess.PIPE, timeout=60, check=True)
    return listed.stdout


def emulates(device: str) -> bool:
    """Whether the QEMU here knows a device."""
    return f'name "{device}",'.encode() in listed_devices()


@functools.cache
def qemu_version() -> str:
    said = subprocess.run(['qemu-system-x86_64', '--version'], stdout=subprocess.PIPE, timeout=60, check=True)
    return said.stdout.decode().partition('\n')[0]


class Link:
    """A cable between two machines; they may start and stop in any order."""

    def __init__(self) -> None:
        self._free = list(socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM))

    def end(self) -> socket.socket:
        return self._free.pop()


class Machine:
    """A compute host, as root sees it."""

    def __init__(self, image: images.Image, directory: str, name: str = 'host-a', link: Link | None = None,
                 started: pathlib.Path | None = None, services: Mapping[int, int] | None = None,
                 functions: bool = False) -> None:
        """A machine that has never run. Its files will be in ``directory``, which must exist and be empty.

        :param started: what :meth:`save` left: the first start goes on from there
        :param services: ports of :data:`SERVICES` as the machine sees it, each with the port of this machine's loopback
            where the service is. It reaches nothing else. Such a machine has its mediated devices below a PCI device,
            for Nova's sake: their types are ``virtio-pci-1`` and ``virtio-pci-2`` in place of ``mtty-1`` and
            ``mtty-2``
        :param functions: with an IOMMU and PCI functions to give away: ``DISKS``, :data:`SPLIT` and a group of
            three. It cannot be saved
        """
        self.name = name
        self.address = ADDRESSES[name]
        self.image = image
        self._directory = pathlib.Path(directory)
        self._started = started
        self._cable = (link or Link()).end()
        self._services = services
        self._functions = functions
        # libvirt takes two machines with one UUID for one host. A host that goes on keeps its UUID.
        self._uuid = uuid.uuid5(uuid.NAMESPACE_DNS, name)
        self._monitor: monitor.Monitor | None = None
        self._qemu: subprocess.Popen[bytes] | None = None
        self._programs: Programs | None = None
        # Another one after each start.
        self.boot_id = ''

    @property
    def runs(self) -> bool:
        return self._qemu is not None

    @property
    def pid(self) -> int | None:
        """The process of the emulator, while the machine runs."""
        return self._qemu.pid if self._qemu else None

    # -- power --------------------------------------------------------------------------------------------------------

    def start(self, nvdimms: Sequence[int] | None = None) -> None:
        """Boot, and wait for the agent.

        :param nvdimms: the order in which the host finds its NVDIMMs: another gives regions, namespaces and /dev/dax
            other numbers; what they contain stays
        """
        if self.runs:
            raise ValueError(f'{self.name} runs already')
        new = not self._path('root.qcow2').exists()
        if new:
            self._make_disks()
        order = nvdimms or range(NVDIMMS)
        if new and self._started is not None:
            self._go_on(self._started, order)
            return
        self._boot(order)
        self._join()
        if new:
            self._make_namespaces(order)

    def cut(self) -> None:
        """Take the power away: what was not written to a disk is lost."""
        assert self._qemu is not None
        self._qemu.kill()
        self._down()

    def replace_disk(self, number: int, serial: str) -> None:
        """Take out the disk in the slot of one of ``DISKS``, while the host runs, and put another one there.

        :param serial: one of ``DISKS``, which is in no slot now, or ``OTHER_DISK``. Each keeps its bytes; after
            the power is cut each of ``DISKS`` is in its own slot again
        """
        assert self._monitor is not None
        self._monitor.replace_disk(f'slot{number}', {'driver': 'nvme', 'bus': f'port{number}', 'serial': serial},
                                   str(self._path(serial)))

    def disk(self, serial: str) -> pathlib.Path:
        """The file with the bytes of a disk, whoever has the disk now."""
        return self._path(serial)

    def stop(self) -> None:
        """Shut the host down in order."""
        assert self._qemu is not None
        self.run(['systemctl', 'poweroff', '--no-block'])
        clock = self._inside().clock
        until = clock.now() + STOP_S
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._qemu.wait(LOOK_EVERY_S)
                break
            if clock.now() >= until:
                raise TimeoutError(f'{self.name}: still runs after {STOP_S} s')
        self._down()

    def _down(self) -> None:
        assert self._qemu is not None and self._programs is not None
        self._qemu.wait()
        self._programs.close()
        assert self._monitor is not None
        self._monitor.close()
        self._qemu = self._programs = self._monitor = None

    def save(self, directory: pathlib.Path) -> None:
        """Save to a directory what other machines of this name go on from, and end.

        They bring their own copy of the project, so the disk with this copy is not saved.
        """
        assert self._qemu is not None and self._monitor is not None
        self.run(['umount', JOB])
        self.run(['sync'])
        with open(directory / MEMORY, 'xb') as memory:
            self._monitor.migrate(memory)
        self._qemu.kill()
        self._down()
        shutil.copy(self._path('root.qcow2'), directory / 'root.qcow2')

    def _go_on(self, started: pathlib.Path, nvdimms: Sequence[int]) -> None:
        """Start in the state in which another machine was saved."""
        reader, writer = os.pipe()
        with open(started / MEMORY, 'rb') as memory, os.fdopen(reader), os.fdopen(writer, 'wb') as pipe:
            self._power_on(nvdimms, reader)
            with contextlib.suppress(BrokenPipeError):          # the machine ended, which is noticed below
                shutil.copyfileobj(memory, pipe, 1 << 20)
        try:
            self.run(['date', '--set', f'@{time.time():.0f}'])
            self.run(['mount', JOB])
            self.boot_id = self.read('/proc/sys/kernel/random/boot_id').decode().strip()
        except Gone as error:
            self.cut()
            raise Gone(f'{error}\n{self.logs()}') from None

    def _power_on(self, nvdimms: Sequence[int], incoming: int | None = None) -> None:
        ours, port = socket.socketpair()
        control, controlled = socket.socketpair()
        passed = [port.fileno(), controlled.fileno(), self._cable.fileno(), *([] if incoming is None else [incoming])]
        command = self._command(port.fileno(), controlled.fileno(), nvdimms)
        if incoming is not None:
            command += ['-incoming', f'fd:{incoming}']
        with port, controlled, self._path('qemu.log').open('ab') as log:
            self._qemu = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=passed)
        # All that this takes is the machine's own time: a limit is for a machine that hangs, not for one that is slow.
        self._programs = Programs(self.name, ours, Clock(self._qemu.pid))
        self._monitor = monitor.Monitor(control)

    def _boot(self, nvdimms: Sequence[int]) -> None:
        """Start, and wait until the host is up."""
        broken = ''
        for again in reversed(range(BOOTS)):
            self._power_on(nvdimms)
            try:
                self.boot_id = self._inside().boot_id(BOOT_S)
                return
            except NoBoot as error:
                broken += f'{error}\n{self.logs()}\n'
                self.cut()
                if not again:
                    raise Gone(broken) from None
                sys.stderr.write(f'{broken}{self.name} boots again\n')

    def _command(self, port: int, controlled: int, nvdimms: Sequence[int]) -> list[str]:
        command = [
            'qemu-system-x86_64',
            '-name', self.name,
            '-uuid', str(self._uuid),
            '-accel', 'tcg,thread=multi',
            # Without what is slow to emulate: a fifth level of page tables, wide registers, guards of memory.
            '-cpu', 'qemu64,+ssse3,+sse4.1,+sse4.2,+popcnt,+cx16,+rdrand,+clflushopt,+pdpe1gb',
            '-smp', str(CPUS),
            '-machine', 'q35,nvdimm=on',
            '-m', f'{MEMORY_MIB}M,slots={NVDIMMS},maxmem={MEMORY_MIB + NVDIMMS * (NVDIMM_MIB + LABEL_MIB)}M',
            '-nodefaults', '-no-user-config', '-no-reboot', '-display', 'none',
            '-serial', f'file:{self._path("console.log")}',
            '-kernel', str(self.image.kernel),
            '-initrd', str(self.image.initrd),
            '-append', ' '.join([*KERNEL_ARGUMENTS, f'systemd.hostname={self.name}',
                                 *(['intel_iommu=on'] if self._functions else [])]),
            # Before the devices that it is for.
            *(['-device', 'intel-iommu,intremap=on'] if self._functions else []),
            '-device', 'virtio-rng-pci',
            '-drive', f'if=virtio,format=qcow2,cache=writethrough,file={self._path("root.qcow2")}',
            '-drive', f'if=virtio,format=raw,cache=writethrough,file={self._path("job.img")}',
            '-device', 'virtio-serial-pci',
            '-chardev', f'socket,id=agent,fd={port}',
            '-device', 'virtserialport,chardev=agent,name=agent',
            '-chardev', f'socket,id=control,fd={controlled}',
            '-mon', 'chardev=control,mode=control',
            '-netdev', f'dgram,id=link,local.type=fd,local.str={self._cable.fileno()}',
            '-device', f'virtio-net-pci,netdev=link,mac=52:54:00:00:00:0{self.address[-1]}',
        ]
        if self._services is not None:
            # QEMU starts the relay for each connection, and itself connects to nothing.
            ways = [f'guestfwd=tcp:{SERVICES}:{inside}-cmd:{sys.executable} -S {relay.__file__} {outside}'
                    for inside, outside in self._services.items()]
            command += ['-netdev', ','.join(['user,id=services,restrict=on,ipv6=off', *ways]),
                        '-device', f'virtio-net-pci,netdev=services,mac=52:54:00:00:01:0{self.address[-1]}',
                        # mtty makes it the parent of its devices, as recipe/build-modules says.
                        '-device', 'virtio-balloon-pci-non-transitional']
        if self._functions:
            for number, serial in enumerate(DISKS):
                command += ['-device', f'pcie-root-port,id=port{number},chassis={number + 1},slot={number + 1}',
                            '-drive', f'if=none,id={serial},format=raw,discard=unmap,file={self._path(serial)}',
                            '-device', f'nvme,id=slot{number},bus=port{number},serial={serial},drive={serial}']
            command += [
                # A disk that can have virtual functions, a namespace of its own, and two for these.
                '-device', 'pcie-root-port,id=split,chassis=20,slot=20',
                '-drive', f'if=none,id={SPLIT},format=raw,discard=unmap,file={self._path(SPLIT)}',
                '-device', f'nvme-subsys,id=subsystem,nqn={SPLIT}',
                '-device', f'nvme,id=controller,bus=split,serial={SPLIT},subsys=subsystem,sriov_max_vfs=4,'
                           'sriov_vq_flexible=8,sriov_vi_flexible=4,max_ioqpairs=10,msix_qsize=9',
                '-device', f'nvme-ns,bus=controller,drive={SPLIT},nsid=1,shared=off',
                *(word for nsid, name in PARTS.items() for word in (
                    '-drive', f'if=none,id={name},format=raw,discard=unmap,file={self._path(name)}',
                    '-device', f'nvme-ns,bus=controller,drive={name},nsid={nsid},shared=off,detached=on')),
                # Three functions that the bus does not keep apart, so that they are one IOMMU group.
                '-device', 'pcie-root-port,id=shared,chassis=21,slot=21',
                '-device', 'pcie-pci-bridge,id=bridge,bus=shared',
                '-device', 'e1000,bus=bridge,addr=1.0', '-device', 'edu,bus=bridge,addr=2.0',
                '-device', 'pci-testdev,bus=bridge,addr=3.0',
            ]
            if emulates('igb'):
                # A network card that can have virtual functions. Its cable leads nowhere.
                command += ['-device', 'pcie-root-port,id=network,chassis=22,slot=22',
                            '-netdev', 'hubport,id=card,hubid=1', '-device', 'igb,bus=network,netdev=card']
        # A slot is a serial number, which the labels name. QEMU shows NVDIMMs to the host as a hash orders their names.
        for position, number in enumerate(nvdimms):
            command += [
                '-object', f'memory-backend-file,id=memory{number},share=on,size={NVDIMM_MIB + LABEL_MIB}M,'
                           f'mem-path={self._path(f"nvdimm{number}")}',
                '-device', f'nvdimm,id=nvdimm{position},memdev=memory{number},slot={number},label-size={LABEL_MIB}M',
            ]
        return command

    # -- programs -----------------------------------------------------------------------------------------------------

    def spawn(self, argv: Sequence[str], env: Mapping[str, str] | None = None) -> Process:
        """Start a program and go on; its standard input stays open.

        :raises Gone: the machine does not run; so say all that need it
        """
        return self._inside().spawn(argv, env)

    def run(
        self, argv: Sequence[str], stdin: bytes = b'', timeout_s: float = 120, env: Mapping[str, str] | None = None,
        check: bool = True,
    ) -> Done:
        """Run a program to its end, and to the end of what holds its output.

        :raises Failed: it could not start, or with ``check`` its status is not 0
        :raises TimeoutError: it took longer, and was killed
        """
        status, out, err = self._inside().run(argv, stdin, timeout_s, env)
        done = Done(status, out.decode(errors='replace'), err)
        if check and status:
            raise Failed(f'{self.name}: {list(argv)} ended with {status}\n{done.out}{done.err}')
        return done

    def _inside(self) -> Programs:
        if self._programs is None:
            raise Gone(f'{self.name} is off')
        return self._programs

    def python(self) -> list[str]:
        """The command of an interpreter that has devicetrack and the packages that it needs."""
        return [f'{images.VENV}/bin/python']

    def write(self, path: str, data: bytes, mode: int = 0o600) -> None:
        self.run(['install', '-m', f'{mode:o}', '/dev/stdin', path], stdin=data)

    def read(self, path: str) -> bytes:
        status, out, err = self._inside().run(['cat', path])
        if status:
            raise Failed(f'{self.name}: {err}')
        return out

    def spawn_module(self, argv: Sequence[str], imported: bool = True) -> Process:
        """Run ``python -m`` with these arguments, in a fork of an interpreter that has imported the module.

        :param imported: False when the fork is to import it, because others of the same interpreter must not have it
        """
        return self._inside().spawn(argv, fork=_fork(*argv[:1] if imported else ()))

    def learn(self, modules: Sequence[str]) -> None:
        """Let the interpreter import what modules need of other projects."""
        self._inside().learn(modules, INTERPRETER).wait(IMPORTS_S)

    def run_tests(self, names: Sequence[str], modules: Sequence[str]) -> tuple[bytes, str]:
        """Run modules, classes or methods of tests inside, which are in these modules.

        :returns: subunit, and why a test that it lacks did not end. Tests that hang are ended, and say where each of
            their threads was; the journal has where the kernel was for them
        """
        tests = self._inside().spawn(['subunit.run', *names], fork=_fork('subunit.run', *modules))
        tests.close()
        try:
            status = tests.wait(TESTS_S)
        except TimeoutError:
            self.run(['sh', '-c', 'echo w > /proc/sysrq-trigger'], check=False)
            tests.kill(signal.SIGABRT)
            with contextlib.suppress(TimeoutError):
                tests.wait(STOP_S)
            tests.kill()
            return tests.output_so_far(), f'{tests}: hung for {TESTS_S} s\n{tests.err}'
        return tests.output(), f'{tests}: ended early, with {status}\n{tests.err}'

    def logs(self, since: float = 0) -> str:
        """The output on its console at the boot, and its journal while it runs.

        :param since: a time, before which the journal does not matter
        """
        console = self._path('console.log')
        parts = [('console', console.read_text(errors='replace') if console.exists() else '')]
        parts.append(('qemu', self._path('qemu.log').read_text(errors='replace')))
        if self.runs:
            with contextlib.suppress(Gone, TimeoutError):
                parts.append(('journal', self.run(
                    ['journalctl', '--no-pager', '--lines=300', f'--since=@{since:.0f}'], check=False).out))
        return '\n'.join(f'--- {self.name}: {name}\n{text}' for name, text in parts if text)

    def left_over(self) -> str:
        """Guests, mediated devices and definitions that tests left behind, where other tests would find them."""
        return self.run(['sh', '-c', LEFT_OVER]).out

    # -- what it is made of -------------------------------------------------------------------------------------------

    def _path(self, name: str) -> pathlib.Path:
        return self._directory / name

    def _make_disks(self) -> None:
        below = self._started / 'root.qcow2' if self._started else self.image.disk
        subprocess.run(
            ['qemu-img', 'create', '-q', '-f', 'qcow2', '-F', 'qcow2' if self._started else 'raw', '-b', below,
             self._path('root.qcow2')], check=True)
        with tempfile.TemporaryDirectory() as job:
            bring(pathlib.Path(job))
            with open(self._path('job.img'), 'xb') as disk:
                disk.truncate(128 * MIB)
            subprocess.run(['mke2fs', '-q', '-t', 'ext4', '-E', 'lazy_itable_init=0', '-d', job, self._path('job.img')],
                           check=True)
        for name in (*DISKS, OTHER_DISK, SPLIT, *PARTS.values()) if self._functions else ():
            with open(self._path(name), 'xb') as disk:
                disk.truncate(DISK_MIB * MIB)
        for number in range(NVDIMMS):
            with open(self._path(f'nvdimm{number}'), 'xb') as disk:
                disk.truncate((NVDIMM_MIB + LABEL_MIB) * MIB)

    def _join(self) -> None:
        self.run(['ip', 'address', 'add', f'{self.address}/24', 'dev', 'eth0'])
        self.run(['ip', 'link', 'set', 'eth0', 'up'])
        if self._services is not None:
            self.run(['ip', 'address', 'add', OWN_ADDRESS, 'dev', 'eth1'])
            self.run(['ip', 'link', 'set', 'eth1', 'up'])

    def _make_namespaces(self, nvdimms: Sequence[int]) -> None:
        self.run(['ndctl', 'disable-region', 'all'])
        self.run(['ndctl', 'init-labels', '-f', 'all'])
        self.run(['ndctl', 'enable-region', 'all'])
        for region, nvdimm in enumerate(nvdimms):
            for number, size in enumerate(NAMESPACES, nvdimm * len(NAMESPACES)):
                self.run(['ndctl', 'create-namespace', '--mode=devdax', f'--name=pmem{number}',
                          f'--region=region{region}', f'--size={size}M'])


def _fork(*imports: str) -> dict[str, object]:
    """The part of an order that asks for a fork of an interpreter with these modules imported."""
    return {'interpreter': INTERPRETER, 'imports': imports}


def bring(job: pathlib.Path) -> None:
    """Fill the job disk: the agent, and the project with the metadata by which its plug-ins are found."""
    for module in (agent, interpreter):
        shutil.copy(str(module.__file__), job)
    project = job / 'project'
    shutil.copytree(
        images.PROJECT / 'devicetrack', project / 'devicetrack', ignore=shutil.ignore_patterns('__pycache__'))
    metadata = project / 'devicetrack.dist-info'
    metadata.mkdir()
    installed = importlib.metadata.distribution('devicetrack')
    for name in ['METADATA', 'entry_points.txt']:
        (metadata / name).write_text(installed.read_text(name) or '')
