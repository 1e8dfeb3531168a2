"""A compute host: one virtual machine, driven from outside.

It has no network but a link to one other machine; everything goes through its agent (see agent.py). What it wrote is in
files of its directory, so it can lose its power and start again: a root disk above the image's, and two NVDIMMs.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import importlib.metadata
import itertools
import pathlib
import queue
import shutil
import socket
import subprocess
import tempfile
import threading
from typing import NamedTuple
import uuid

from devicetrack.tests.host import agent
from devicetrack.tests.host import image as images

MIB = 1 << 20

MEMORY_MIB = 3072
CPUS = 2

# Namespaces of each NVDIMM, in MiB. Their names are pmem0 to pmem5; two of a size are on different NVDIMMs. The kernel
# keeps a part of each for itself.
NAMESPACES = (32, 48, 64)
OVERHEAD_MIB = 2
NVDIMMS = 2
# Two NVDIMMs are neighbours in memory, and namespaces begin at multiples of 16 MiB: so do these.
NVDIMM_MIB = 160
LABEL_MIB = 16

# Two that start at once on a busy machine take two minutes.
BOOT_S = 600
STOP_S = 120
TESTS_S = 1800

KERNEL_ARGUMENTS = (
    'root=/dev/vda', 'rw', 'fsck.mode=skip',
    'console=ttyS0', 'loglevel=5', 'systemd.show_status=0',
    'panic=-1',
    # One card, whatever slot it is in.
    'net.ifnames=0',
    # Clocks are right even when nothing else here gets its turn in time.
    'no_timer_check', 'tsc=reliable', 'nowatchdog', 'rcupdate.rcu_cpu_stall_suppress=1',
    'mitigations=off', 'apparmor=0',
)

ADDRESSES = {'host-a': '192.0.2.1', 'host-b': '192.0.2.2'}


class Gone(Exception):
    """The machine does not run, or went down while something ran there."""


class Failed(Exception):
    """A program inside ended otherwise than was expected."""


class Done(NamedTuple):
    status: int
    out: str
    err: str


class Link:
    """A cable between two machines; they may start and stop in any order."""

    def __init__(self) -> None:
        self._free = list(socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM))

    def end(self) -> socket.socket:
        return self._free.pop()


class Process:
    """A program that runs inside."""

    def __init__(self, machine: Machine, number: int, argv: Sequence[str]) -> None:
        self._machine, self._number, self._argv = machine, number, argv
        self._out: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._err = bytearray()
        self._ended = threading.Event()
        self._status: int | None = None
        self._error: str | None = None

    def hear(self, frame: agent.Frame) -> None:
        """Take an answer of the agent; called by the thread that reads them."""
        if frame.head.get('stream') == 'out':
            self._out.put(frame.body)
        elif frame.head.get('stream') == 'err':
            self._err += frame.body
        else:
            self.end(frame.head.get('status'), frame.head.get('error'))

    def end(self, status: int | None, error: str | None) -> None:
        self._status, self._error = status, error
        self._out.put(None)
        self._ended.set()

    @property
    def err(self) -> str:
        """What it wrote to standard error until now."""
        return self._err.decode(errors='replace')

    def send(self, data: bytes) -> None:
        """Write to its standard input."""
        self._machine.order({'id': self._number, 'stdin': True}, data)

    def close(self) -> None:
        """End its standard input."""
        self._machine.order({'id': self._number, 'stdin': False})

    def chunks(self) -> Iterator[bytes]:
        """Its standard output as it comes, until its end."""
        while (chunk := self._out.get()) is not None:
            yield chunk

    def lines(self) -> Iterator[str]:
        """The lines of its standard output as they come, without their ends."""
        rest = b''
        for chunk in self.chunks():
            *whole, rest = (rest + chunk).split(b'\n')
            for line in whole:
                yield line.decode(errors='replace')
        if rest:
            yield rest.decode(errors='replace')

    def kill(self, signal: int = 9) -> None:
        """Send a signal to it and to what it started."""
        self._machine.order({'id': self._number, 'signal': signal})

    def wait(self, timeout_s: float) -> int:
        """Its exit status, a signal's number negative.

        :raises TimeoutError: it still runs
        :raises Gone: the machine went down, or the program could not start
        """
        if not self._ended.wait(timeout_s):
            raise TimeoutError(f'after {timeout_s} s there still runs: {self._argv}')
        if self._status is None:
            raise Gone(f'{self._machine.name}: {self._error}: {self._argv}')
        return self._status


class Machine:

    def __init__(self, image: images.Image, directory: str, name: str = 'host-a', link: Link | None = None) -> None:
        """One that has never run; its files will be in ``directory``, which must be there and empty."""
        self.name = name
        self.image = image
        self._directory = pathlib.Path(directory)
        self._cable = link.end() if link else None
        self.address = ADDRESSES[name]
        # Two machines with one UUID are one host to libvirt.
        self._uuid = uuid.uuid4()
        self._qemu: subprocess.Popen[bytes] | None = None
        self._port: socket.socket | None = None
        self._orders = threading.Lock()
        self._numbers = itertools.count(1)
        self._processes: dict[int, Process] = {}
        self._ready: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self.boot_id: str | None = None

    @property
    def runs(self) -> bool:
        return self._qemu is not None

    # -- power --------------------------------------------------------------------------------------------------------

    def start(self, nvdimms: Sequence[int] | None = None) -> None:
        """Boot, and wait for the agent.

        :param nvdimms: the order in which the host finds its NVDIMMs: another gives regions, namespaces and /dev/dax
            other numbers; what they contain stays
        """
        if self._qemu is not None:
            raise ValueError(f'{self.name} runs already')
        new = not self._path('root.qcow2').exists()
        if new:
            self._make_disks()
        self._power_on(nvdimms or range(NVDIMMS))
        if self._cable is not None:
            self._join()
        if new:
            self._make_namespaces()

    def cut(self) -> None:
        """Take the power away: what was not written to a disk is lost."""
        assert self._qemu is not None
        self._qemu.kill()
        self._down()

    def stop(self) -> None:
        """Shut the host down in order."""
        assert self._qemu is not None
        self.run(['systemctl', 'poweroff', '--no-block'])
        self._qemu.wait(STOP_S)
        self._down()

    def _down(self) -> None:
        assert self._qemu is not None and self._port is not None
        self._qemu.wait()
        self._reader.join()
        self._port.close()
        self._qemu = self._port = None

    def _power_on(self, nvdimms: Sequence[int]) -> None:
        self._port, theirs = socket.socketpair()
        descriptors = [theirs.fileno()]
        if self._cable is not None:
            descriptors.append(self._cable.fileno())
        self._ready = queue.SimpleQueue()
        with theirs, open(self._path('qemu.log'), 'ab') as log:
            self._qemu = subprocess.Popen(
                self._command(theirs.fileno(), nvdimms), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                pass_fds=descriptors)
        self._answers = self._port.makefile('rb')
        self._reader = threading.Thread(target=self._hear, args=(self._answers,), daemon=True)
        self._reader.start()
        try:
            self.boot_id = self._ready.get(timeout=BOOT_S)
        except queue.Empty:
            self.boot_id = None
        if self.boot_id is None:
            self.cut()
            raise Gone(f'{self.name} did not start\n{self.logs()}')

    def _command(self, port: int, nvdimms: Sequence[int]) -> list[str]:
        command = [
            'qemu-system-x86_64',
            '-name', self.name,
            '-uuid', str(self._uuid),
            '-accel', 'tcg,thread=multi',
            '-cpu', 'max',
            '-smp', str(CPUS),
            '-machine', 'q35,nvdimm=on',
            '-m', f'{MEMORY_MIB}M,slots={NVDIMMS},maxmem={MEMORY_MIB + NVDIMMS * (NVDIMM_MIB + LABEL_MIB)}M',
            '-nodefaults', '-no-user-config', '-no-reboot', '-display', 'none',
            '-serial', f'file:{self._path("console.log")}',
            '-kernel', str(self.image.kernel),
            '-initrd', str(self.image.initrd),
            '-append', ' '.join([*KERNEL_ARGUMENTS, f'systemd.hostname={self.name}']),
            '-device', 'virtio-rng-pci',
            '-drive', f'if=virtio,format=qcow2,cache=writethrough,file={self._path("root.qcow2")}',
            '-drive', f'if=virtio,format=raw,cache=writethrough,file={self._path("job.img")}',
            '-device', 'virtio-serial-pci',
            '-chardev', f'socket,id=agent,fd={port}',
            '-device', 'virtserialport,chardev=agent,name=agent',
        ]
        # A slot is a serial number, which the labels name. QEMU shows NVDIMMs to the host as a hash orders their names.
        for position, number in enumerate(nvdimms):
            command += [
                '-object', f'memory-backend-file,id=memory{number},share=on,size={NVDIMM_MIB + LABEL_MIB}M,'
                           f'mem-path={self._path(f"nvdimm{number}")}',
                '-device', f'nvdimm,id=nvdimm{position},memdev=memory{number},slot={number},label-size={LABEL_MIB}M',
            ]
        if self._cable is not None:
            command += [
                '-netdev', f'dgram,id=link,local.type=fd,local.str={self._cable.fileno()}',
                '-device', f'virtio-net-pci,netdev=link,mac=52:54:00:00:00:0{self.address[-1]}',
            ]
        return command

    def _hear(self, answers) -> None:
        """Pass on what the agent says, until the machine is down."""
        with contextlib.suppress(agent.Broken, ConnectionError), answers:
            while (frame := agent.read(answers)) is not None:
                if 'boot_id' in frame.head:
                    self._ready.put(frame.head['boot_id'])
                elif 'stream' in frame.head:
                    self._processes[frame.head['id']].hear(frame)
                else:
                    self._processes.pop(frame.head['id']).hear(frame)
        self._ready.put(None)
        with self._orders:
            left, self._processes = self._processes, {}
        for process in left.values():
            process.end(None, 'the machine went down')

    # -- programs -----------------------------------------------------------------------------------------------------

    def order(self, head: Mapping[str, object], body: bytes = b'') -> None:
        """Send a frame to the agent."""
        with self._orders:
            self._send(head, body)

    def _send(self, head: Mapping[str, object], body: bytes = b'') -> None:
        if self._port is None:
            raise Gone(f'{self.name} is not running')
        self._port.sendall(agent.pack(agent.Frame(head, body)))

    def spawn(self, argv: Sequence[str], env: Mapping[str, str] | None = None) -> Process:
        """Start a program and go on."""
        number = next(self._numbers)
        process = Process(self, number, argv)
        with self._orders:
            self._processes[number] = process
            self._send({'id': number, 'argv': list(argv), 'env': dict(env or {})})
        return process

    def run(
        self, argv: Sequence[str], stdin: bytes = b'', timeout_s: float = 120, env: Mapping[str, str] | None = None,
        check: bool = True,
    ) -> Done:
        """Run a program to its end, and to the end of what it left behind with its output.

        :raises Failed: its status is not 0, with ``check``
        :raises TimeoutError: it took longer, and was killed
        """
        status, out, err = self._run(argv, stdin, timeout_s, env)
        done = Done(status, out.decode(errors='replace'), err)
        if check and status:
            raise Failed(f'{self.name}: {list(argv)} ended with {status}\n{done.out}{done.err}')
        return done

    def _run(
        self, argv: Sequence[str], stdin: bytes, timeout_s: float, env: Mapping[str, str] | None,
    ) -> tuple[int, bytes, str]:
        process = self.spawn(argv, env)
        if stdin:
            process.send(stdin)
        process.close()
        try:
            status = process.wait(timeout_s)
        except TimeoutError:
            process.kill()
            raise
        return status, b''.join(process.chunks()), process.err

    def python(self) -> list[str]:
        """What starts an interpreter that has devicetrack and what it needs."""
        return [f'{images.VENV}/bin/python']

    def write(self, path: str, data: bytes, mode: int = 0o600) -> None:
        self.run(['install', '-m', f'{mode:o}', '/dev/stdin', path], stdin=data)

    def read(self, path: str) -> bytes:
        status, out, err = self._run(['cat', path], b'', 120, None)
        if status:
            raise Failed(f'{self.name}: {err}')
        return out

    def run_tests(self, names: Sequence[str]) -> bytes:
        """Run modules, classes or methods of tests inside; the result is subunit."""
        status, out, err = self._run([*self.python(), '-m', 'subunit.run', *names], b'', TESTS_S, None)
        if not out:
            raise Failed(f'{self.name}: no test ran, status {status}: {names}\n{err}')
        return out

    def logs(self) -> str:
        """What it said on its console, and its journal while it runs."""
        console = self._path('console.log')
        parts = [('console', console.read_text(errors='replace') if console.exists() else '')]
        parts.append(('qemu', self._path('qemu.log').read_text(errors='replace')))
        if self._port is not None:
            with contextlib.suppress(Gone, TimeoutError):
                parts.append(('journal', self.run(['journalctl', '--no-pager', '--lines=300'], check=False).out))
        return '\n'.join(f'--- {self.name}: {name}\n{text}' for name, text in parts)

    # -- what it is made of -------------------------------------------------------------------------------------------

    def _path(self, name: str) -> pathlib.Path:
        return self._directory / name

    def _make_disks(self) -> None:
        subprocess.run(
            ['qemu-img', 'create', '-q', '-f', 'qcow2', '-F', 'raw', '-b', self.image.disk, self._path('root.qcow2')],
            check=True)
        with tempfile.TemporaryDirectory() as job:
            bring(pathlib.Path(job))
            with open(self._path('job.img'), 'xb') as disk:
                disk.truncate(128 * MIB)
            subprocess.run(['mke2fs', '-q', '-t', 'ext4', '-d', job, self._path('job.img')], check=True)
        for number in range(NVDIMMS):
            with open(self._path(f'nvdimm{number}'), 'xb') as disk:
                disk.truncate((NVDIMM_MIB + LABEL_MIB) * MIB)

    def _join(self) -> None:
        self.run(['ip', 'address', 'add', f'{self.address}/24', 'dev', 'eth0'])
        self.run(['ip', 'link', 'set', 'eth0', 'up'])

    def _make_namespaces(self) -> None:
        self.run(['ndctl', 'disable-region', 'all'])
        self.run(['ndctl', 'init-labels', '-f', 'all'])
        self.run(['ndctl', 'enable-region', 'all'])
        names = (f'pmem{number}' for number in itertools.count())
        for region in range(NVDIMMS):
            for size in NAMESPACES:
                self.run(['ndctl', 'create-namespace', '--mode=devdax', f'--name={next(names)}',
                          f'--region=region{region}', f'--size={size}M'])


def bring(job: pathlib.Path) -> None:
    """What the job disk holds: the agent, and the project with the metadata that its plug-ins are found by."""
    shutil.copy(agent.__file__, job / 'agent.py')
    project = job / 'project'
    shutil.copytree(
        images.PROJECT / 'devicetrack', project / 'devicetrack', ignore=shutil.ignore_patterns('__pycache__'))
    metadata = project / 'devicetrack.dist-info'
    metadata.mkdir()
    installed = importlib.metadata.distribution('devicetrack')
    for name in ['METADATA', 'entry_points.txt']:
        (metadata / name).write_text(installed.read_text(name) or '')
