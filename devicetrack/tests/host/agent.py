"""Carries out inside a host what comes from outside, through one serial port.

A frame is a head, which is JSON, and a body of bytes, each with its length in front. An order has a number, ``id``, and
so has every answer to it, so orders run side by side:

``{"id": 1, "argv": […], "env": {…}}``
    Starts a program. Answers: ``{"id": 1, "stream": "out"}`` or ``"err"`` with what it wrote, as it comes; at its end
    ``{"id": 1, "status": 0}``, a signal's number negative as in subprocess; or ``{"id": 1, "error": "…"}`` alone.

``{"id": 1, "stdin": true}``
    The body goes to the program's standard input; with ``false`` that is the end of it. No answer of its own.

``{"id": 1, "signal": 9}``
    Sends a signal to that program and all that it started. No answer of its own.

The first frame after a start of the host is ``{"boot_id": "…"}``.

The host runs this file by itself, so it needs nothing but the standard library.
"""

from __future__ import annotations

from collections.abc import Mapping
import contextlib
import json
import os
import queue
import struct
import subprocess
import sys
import threading
from typing import Any
from typing import BinaryIO
from typing import NamedTuple

LENGTHS = struct.Struct('>II')
CHUNK = 1 << 16

# Heads are commands; a longer one comes from a line that somebody else wrote on.
LONGEST_HEAD = 1 << 20


class Frame(NamedTuple):
    head: Mapping[str, Any]
    body: bytes = b''


class Broken(Exception):
    """What came is no frame."""


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


class Program:
    """One that runs, and what is to be written to it: it may be slow to read that."""

    def __init__(self, argv: list[str], env: Mapping[str, str]) -> None:
        self.stdin: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.process = subprocess.Popen(
            argv, env=os.environ | env, cwd='/', start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def feed(self) -> None:
        assert self.process.stdin
        with contextlib.suppress(BrokenPipeError), self.process.stdin as stdin:
            while (chunk := self.stdin.get()) is not None:
                stdin.write(chunk)
                stdin.flush()


class Agent:
    """Starts programs and says what they say."""

    def __init__(self, orders: BinaryIO, answers: BinaryIO) -> None:
        self._orders, self._answers = orders, answers
        self._answering = threading.Lock()
        self._programs: dict[int, Program] = {}

    def serve(self) -> None:
        """Until the orders end."""
        while (frame := read(self._orders)) is not None:
            number = frame.head['id']
            if 'argv' in frame.head:
                self._start(number, frame.head['argv'], frame.head['env'])
            # It may have ended while the order was under way.
            elif (program := self._programs.get(number)) is not None:
                if 'signal' in frame.head:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(program.process.pid, frame.head['signal'])
                else:
                    program.stdin.put(frame.body if frame.head['stdin'] else None)

    def say(self, head: Mapping[str, Any], body: bytes = b'') -> None:
        # Of the other side that hung up the orders tell.
        with self._answering, contextlib.suppress(BrokenPipeError):
            self._answers.write(pack(Frame(head, body)))
            self._answers.flush()

    def _start(self, number: int, argv: list[str], env: Mapping[str, str]) -> None:
        try:
            program = Program(argv, env)
        except (OSError, ValueError) as error:
            self.say({'id': number, 'error': str(error)})
            return
        self._programs[number] = program
        # No thread is waited for when the orders end.
        threading.Thread(target=program.feed, daemon=True).start()
        threading.Thread(target=self._attend, args=(number, program), daemon=True).start()

    def _attend(self, number: int, program: Program) -> None:
        streams = [('out', program.process.stdout), ('err', program.process.stderr)]
        readers = [threading.Thread(target=self._pass_on, args=(number, *named), daemon=True) for named in streams]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        status = program.process.wait()
        program.stdin.put(None)
        del self._programs[number]
        self.say({'id': number, 'status': status})

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
