"""Obeys orders inside a host that come from outside, through one serial port.

A frame is a head, which is JSON, and a body of bytes, each with its length in front. An order has a number, ``id``, and
so has every answer to it, so orders run side by side:

``{"id": 1, "argv": […], "env": {…}}``
    Starts a program. Answers: ``{"id": 1, "stream": "out"}`` or ``"err"`` with what it wrote, as it comes; at its end
    ``{"id": 1, "status": 0}``, a signal's number negative as in subprocess; or ``{"id": 1, "error": "…"}`` alone.

``{"id": 1, "argv": […], "env": {…}, "interpreter": […], "imports": […]}``
    The same, and ``argv`` is a Python module with its arguments, which a fork of that interpreter runs (see
    interpreter.py). It is started when it is first wanted.

``{"id": 1, "learn": […], "interpreter": […]}``
    Lets that interpreter import what modules need of other projects. Answer: a status, or an error.

``{"id": 1, "stdin": true}``
    The body goes to the program's standard input; with ``false`` that is the end of it. No answer of its own.

``{"id": 1, "signal": 9}``
    Sends a signal to that program and all that it started. No answer of its own.

The first frame after a start of the host is ``{"boot_id": "…"}``.

The host runs this file by itself, so it needs nothing but the standard library.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import json
import os
import queue
import socket
import struct
import subprocess
import sys
import threading
from typing import Any
from typing import BinaryIO
from typing import NamedTuple

LENGTHS = struct.Struct('>II')
CHUNK = 1 << 16

# Heads are commands. A longer one means that somebody else wrote to the port.
LONGEST_HEAD = 1 << 20


class Frame(NamedTuple):
    head: Mapping[str, Any]
    body: bytes = b''


class Broken(Exception):
    """The data is no frame."""


def pack(frame: Frame) -> bytes:
    head = json.dumps(frame.head).encode()
    return LENGTHS.pack(len(head), len(frame.body)) + head + frame.body


def read(port: BinaryIO) -> Frame | None:
    """The next frame of a buffered stream, or None where the stream ends between two.

    :raises Broken: it ends within one, or this is another protocol
    """
    lengths = port.read(LENGTHS.size)
    if not lengths:
        return None
    if len(lengths) < LENGTHS.size:
        raise Broken('the stream ends within the lengths of a frame')
    head_length, body_length = LENGTHS.unpack(lengths)
    if head_length > LONGEST_HEAD:
        raise Broken(f'a head of {head_length} bytes')
    head, body = port.read(head_length), port.read(body_length)
    if len(head) + len(body) < head_length + body_length:
        raise Broken('the stream ends within a frame')
    try:
        return Frame(json.loads(head), body)
    except ValueError as error:
        raise Broken(f'a head that is not JSON: {error}') from None


class Interpreter:
    """A process that has imported what programs need, and its forks, which run them; interpreter.py is its side."""

    def __init__(self, argv: list[str]) -> None:
        self._port, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [*argv, str(theirs.fileno())], pass_fds=[theirs.fileno()], cwd='/', start_new_session=True,
                stdin=subprocess.DEVNULL)
        self._lock = threading.Lock()
        self._answers: dict[int, queue.SimpleQueue[Mapping[str, Any]]] = {}
        self._ended: Mapping[str, Any] | None = None
        threading.Thread(target=self._listen, daemon=True).start()

    def ask(self, order: Mapping[str, Any], descriptors: Sequence[int] = ()) -> Mapping[str, Any]:
        """Send an order, and wait for its answer; :meth:`next` waits for one that follows.

        :raises ChildProcessError: it has ended
        """
        answers = self._answers[order['id']] = queue.SimpleQueue()
        with self._lock:
            if self._ended is not None:
                answers.put(self._ended)
        # The interpreter has ended, and answers nothing.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            socket.send_fds(self._port, [json.dumps(order).encode()], descriptors)
        return self.next(order['id'])

    def next(self, number: int) -> Mapping[str, Any]:
        answer = self._answers[number].get()
        if 'ended' in answer:
            raise ChildProcessError(f'the interpreter ended with {answer["ended"]}')
        return answer

    def _listen(self) -> None:
        with contextlib.suppress(ConnectionResetError):
            while packet := self._port.recv(LONGEST_HEAD):
                answer = json.loads(packet)
                self._answers[answer['id']].put(answer)
        status = self._process.wait()
        with self._lock:
            self._ended = {'ended': status}
            for waiting in self._answers.values():
                waiting.put(self._ended)


class Program:
    """A running program, and its pending input, which it may be slow to read."""

    def __init__(self, number: int) -> None:
        self.stdin: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._number = number
        self._pid: queue.SimpleQueue[int] = queue.SimpleQueue()

    def start(self, argv: list[str], env: Mapping[str, str]) -> None:
        process = subprocess.Popen(
            argv, env=os.environ | env, cwd='/', start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self._started(process.pid, process.stdin, process.stdout, process.stderr)
        self.wait: Callable[[], int] = process.wait

    def start_fork(self, of: Interpreter, head: Mapping[str, Any]) -> None:
        pipes = [os.pipe() for _ in range(3)]
        theirs = [pipes[0][0], pipes[1][1], pipes[2][1]]
        ours = [pipes[0][1], pipes[1][0], pipes[2][0]]
        try:
            answer = of.ask(head, theirs)
        except OSError:
            for descriptor in ours:
                os.close(descriptor)
            raise
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        self._started(answer['pid'], os.fdopen(ours[0], 'wb'), os.fdopen(ours[1], 'rb'), os.fdopen(ours[2], 'rb'))
        self.wait = lambda: int(of.next(self._number)['status'])

    def _started(self, pid: int, stdin: Any, stdout: Any, stderr: Any) -> None:
        self._stdin: BinaryIO = stdin
        self.streams: Sequence[tuple[str, BinaryIO]] = (('out', stdout), ('err', stderr))
        self._pid.put(pid)

    def feed(self) -> None:
        with contextlib.suppress(BrokenPipeError), self._stdin as stdin:
            while (chunk := self.stdin.get()) is not None:
                stdin.write(chunk)
                stdin.flush()

    def signal(self, number: int) -> None:
        """Send a signal to the program and all that it started, once it has started."""
        pid = self._pid.get()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, number)
        self._pid.put(pid)


class Agent:
    """Starts programs and passes their output on."""

    def __init__(self, orders: BinaryIO, answers: BinaryIO) -> None:
        self._orders, self._answers = orders, answers
        self._answering = threading.Lock()
        self._programs: dict[int, Program] = {}
        self._interpreter: Interpreter | None = None

    def serve(self) -> None:
        """Obey orders until they end."""
        while (frame := read(self._orders)) is not None:
            head = frame.head
            if 'interpreter' in head and self._interpreter is None:
                self._interpreter = Interpreter(head['interpreter'])
            if 'argv' in head or 'learn' in head:
                program = self._programs[head['id']] = Program(head['id'])
                # Nobody waits for a thread when the orders end.
                threading.Thread(target=self._attend, args=(head, program), daemon=True).start()
            # The program may have ended while the order was on its way.
            elif (sought := self._programs.get(head['id'])) is not None:
                if 'signal' in head:
                    threading.Thread(target=sought.signal, args=(head['signal'],), daemon=True).start()
                else:
                    sought.stdin.put(frame.body if head['stdin'] else None)

    def say(self, head: Mapping[str, Any], body: bytes = b'') -> None:
        # When the other side hung up, the end of the orders says so.
        with self._answering, contextlib.suppress(BrokenPipeError):
            self._answers.write(pack(Frame(head, body)))
            self._answers.flush()

    def _attend(self, head: Mapping[str, Any], program: Program) -> None:
        number = head['id']
        try:
            status = self._run(head, program)
        except (OSError, ValueError) as error:
            self.say({'id': number, 'error': str(error)})
        else:
            self.say({'id': number, 'status': status})
        finally:
            program.stdin.put(None)
            del self._programs[number]

    def _run(self, head: Mapping[str, Any], program: Program) -> int:
        if 'learn' in head:
            assert self._interpreter is not None
            return int(self._interpreter.ask(head)['status'])
        if 'interpreter' in head:
            assert self._interpreter is not None
            program.start_fork(self._interpreter, head)
        else:
            program.start(head['argv'], head['env'])
        threading.Thread(target=program.feed, daemon=True).start()
        readers = [threading.Thread(target=self._pass_on, args=(head['id'], *stream), daemon=True)
                   for stream in program.streams]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        return program.wait()

    def _pass_on(self, number: int, name: str, stream: BinaryIO) -> None:
        with stream:
            while chunk := os.read(stream.fileno(), CHUNK):
                self.say({'id': number, 'stream': name}, chunk)


def main(path: str) -> None:
    with open('/proc/sys/kernel/random/boot_id') as file:
        boot_id = file.read().strip()
    # Opened once: a second time the port is busy.
    port = os.open(path, os.O_RDWR)
    agent = Agent(os.fdopen(port, 'rb'), os.fdopen(os.dup(port), 'wb'))
    agent.say({'boot_id': boot_id})
    agent.serve()


if __name__ == '__main__':
    main(sys.argv[1])
