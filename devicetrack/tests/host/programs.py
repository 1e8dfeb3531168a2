"""Programs inside a machine, from one start of it to its end: the other side of agent.py."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import itertools
import queue
import socket
import threading
from typing import BinaryIO
from typing import NamedTuple

from devicetrack.tests.host import agent
from devicetrack.tests.host.clock import Clock
from devicetrack.tests.host.clock import LOOK_EVERY_S

# A program that is silent for longer hangs.
SILENCE_S = 900


class Gone(Exception):
    """The machine does not run, or went down while something ran there."""


class NoBoot(Gone):
    """The machine went down or hung while its kernel booted: nothing of the project had run there yet."""


class Failed(Exception):
    """A program could not start, or ended otherwise than was expected."""


class Done(NamedTuple):
    """The end of a program; its output as text."""

    status: int
    out: str
    err: str


class Process:
    """A program that runs inside."""

    def __init__(self, programs: Programs, number: int, argv: Sequence[str]) -> None:
        self._programs, self._number, self._argv = programs, number, list(argv)
        self._out: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._err = bytearray()
        self._ended = threading.Event()
        self._status: int | None = None
        self._error: Exception | None = None

    def __str__(self) -> str:
        return f'{self._programs.name}: {self._argv}'

    def hear(self, frame: agent.Frame) -> bool:
        """Take an answer of the agent; called by the thread that reads them.

        :returns: whether that was the last
        """
        match frame.head:
            case {'stream': 'out'}:
                self._out.put(frame.body)
            case {'stream': 'err'}:
                self._err += frame.body
            case {'status': status}:
                self.end(status)
            case {'error': error}:
                self.end(None, Failed(f'{self}: {error}'))
        return self._ended.is_set()

    def end(self, status: int | None, error: Exception | None = None) -> None:
        self._status, self._error = status, error
        self._out.put(None)
        self._ended.set()

    @property
    def ended(self) -> bool:
        """Whether it ended, or its machine went down."""
        return self._ended.is_set()

    @property
    def err(self) -> str:
        """Its standard error until now."""
        return self._err.decode(errors='replace')

    def send(self, data: bytes) -> None:
        """Write to its standard input."""
        self._programs.order({'id': self._number, 'stdin': True}, data)

    def close(self) -> None:
        """End its standard input."""
        self._programs.order({'id': self._number, 'stdin': False})

    def lines(self, silence_s: float = SILENCE_S) -> Iterator[str]:
        """The lines of its standard output as they come, without their ends.

        :raises TimeoutError: none came for so long
        """
        rest = b''
        for chunk in self._chunks(silence_s):
            *whole, rest = (rest + chunk).split(b'\n')
            for line in whole:
                yield line.decode(errors='replace')
        if rest:
            yield rest.decode(errors='replace')

    def output(self) -> bytes:
        """The rest of its standard output; it has ended."""
        return b''.join(self._chunks(0))

    def output_so_far(self) -> bytes:
        """What it has written and nobody has read."""
        chunks = []
        with contextlib.suppress(queue.Empty):
            while (chunk := self._out.get_nowait()) is not None:
                chunks.append(chunk)
        return b''.join(chunks)

    def _chunks(self, silence_s: float) -> Iterator[bytes]:
        try:
            while (chunk := self._programs.clock.get(self._out, silence_s)) is not None:
                yield chunk
        except queue.Empty:
            raise TimeoutError(f'{self}: silent for {silence_s} s\n{self.err}') from None
        # So that the next call ends at once.
        self._out.put(None)

    def kill(self, signal: int = 9) -> None:
        """Send a signal to it and to what it started."""
        self._programs.order({'id': self._number, 'signal': signal})

    def wait(self, timeout_s: float) -> int:
        """Its exit status, a signal's number negative.

        :raises TimeoutError: it still runs
        :raises Gone: the machine went down
        :raises Failed: it could not start
        """
        clock = self._programs.clock
        until = clock.now() + timeout_s
        while not self._ended.wait(max(0.0, min(LOOK_EVERY_S, until - clock.now()))):
            if clock.now() < until:
                continue
            raise TimeoutError(f'{self}: still runs after {timeout_s} s\n{self.err}')
        if self._error is not None:
            raise self._error
        assert self._status is not None
        return self._status


class Programs:

    def __init__(self, name: str, port: socket.socket, clock: Clock | None = None) -> None:
        """Begin to listen at the port of the machine of this name.

        :param clock: measures how long one waits for the machine
        """
        self.name, self.clock = name, clock or Clock()
        self._port = port
        self._sending = threading.Lock()
        self._numbers = itertools.count()
        self._processes: dict[int, Process] = {}
        self._boot_id: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._listener = threading.Thread(target=self._listen, args=(port.makefile('rb'),), daemon=True)
        self._listener.start()

    def boot_id(self, timeout_s: float) -> str:
        """Wait for the host to be up; asked once.

        :raises NoBoot: it went down instead, or took longer
        """
        try:
            boot_id = self.clock.get(self._boot_id, timeout_s)
        except queue.Empty:
            raise NoBoot(f'{self.name} did not start within {timeout_s:.0f} s') from None
        if boot_id is None:
            raise NoBoot(f'{self.name} went down while it booted')
        return boot_id

    def close(self) -> None:
        """After the machine went down."""
        self._listener.join()
        self._port.close()

    def order(self, head: Mapping[str, object], body: bytes = b'') -> None:
        """Send a frame to the agent."""
        with self._sending:
            self._send(head, body)

    def _send(self, head: Mapping[str, object], body: bytes = b'') -> None:
        try:
            self._port.sendall(agent.pack(agent.Frame(head, body)))
        except OSError as error:
            raise Gone(f'{self.name} went down') from error

    def spawn(self, argv: Sequence[str], env: Mapping[str, str] | None = None, fork: Mapping[str, object] | None = None,
              ) -> Process:
        """Start a program and go on; its standard input stays open.

        :param fork: what an order says besides for a fork of an interpreter
        """
        return self._begin(argv, {'argv': list(argv), 'env': dict(env or {}), **(fork or {})})

    def learn(self, modules: Sequence[str], interpreter: Sequence[str]) -> Process:
        """Let an interpreter import what modules need, for the forks that come."""
        return self._begin(interpreter, {'learn': list(modules), 'interpreter': list(interpreter)})

    def _begin(self, argv: Sequence[str], order: Mapping[str, object]) -> Process:
        process = Process(self, number := next(self._numbers), argv)
        with self._sending:
            self._processes[number] = process
            self._send({'id': number, **order})
        return process

    def run(
        self, argv: Sequence[str], stdin: bytes = b'', timeout_s: float = 120, env: Mapping[str, str] | None = None,
        fork: Mapping[str, object] | None = None,
    ) -> tuple[int, bytes, str]:
        """Run a program to its end, and to the end of what holds its output.

        :returns: its status, and what it wrote
        :raises TimeoutError: it took longer, and was killed
        """
        process = self.spawn(argv, env, fork)
        if stdin:
            process.send(stdin)
        process.close()
        try:
            status = process.wait(timeout_s)
        except TimeoutError:
            process.kill()
            raise
        return status, process.output(), process.err

    def _listen(self, answers: BinaryIO) -> None:
        with contextlib.suppress(agent.Broken, ConnectionError), answers:
            while (frame := agent.read(answers)) is not None:
                if 'boot_id' in frame.head:
                    self._boot_id.put(frame.head['boot_id'])
                elif self._processes[frame.head['id']].hear(frame):
                    del self._processes[frame.head['id']]
        self._boot_id.put(None)
        with self._sending:
            # Nothing can be sent any more, so these are all.
            self._port.shutdown(socket.SHUT_RDWR)
            left = list(self._processes.values())
        for process in left:
            process.end(None, Gone(f'{process}: the machine went down'))
