"""A Python process inside a host that has imported what programs there need, and runs each of them in a fork.

Where a processor is emulated, imports take ten times as long as most programs run. The agent talks to it by one socket,
a packet for each message:

``{"id": 1, "learn": ["module", …]}``
    Imports what these modules import of other projects. Answer: ``{"id": 1, "status": 0}``.

``{"id": 1, "argv": ["module", …], "env": {…}, "imports": ["module", …]}``
    With three descriptors: imports, and runs ``python -m module …`` in a fork, with these for its input, output and
    errors. Answers: ``{"id": 1, "pid": 2}``, and when it has ended its status, a signal's number negative.

It has no thread, so that a fork is whole.
"""

from __future__ import annotations

from collections.abc import Sequence
import contextlib
import faulthandler
import gc
import importlib
import json
import os
import runpy
import selectors
import socket
import sys
import traceback
from typing import Any

OWN = 'devicetrack'
LONGEST = 1 << 20


class Interpreter:

    def __init__(self, port: socket.socket) -> None:
        self._port = port
        self._selector = selectors.DefaultSelector()
        self._selector.register(port, selectors.EVENT_READ)

    def serve(self) -> dict[str, Any] | None:
        """Serve until the port is closed.

        :returns: in a fork, the order that it is there for
        """
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is not self._port:
                    self._say_end(key.fd, *key.data)
                    continue
                packet, descriptors, _, _ = socket.recv_fds(self._port, LONGEST, 3)
                if not packet:
                    return None
                order = json.loads(packet)
                if 'learn' in order:
                    learn(order['learn'])
                    self._say({'id': order['id'], 'status': 0})
                elif self._fork(order, descriptors):
                    return order

    def _say(self, answer: dict[str, Any]) -> None:
        self._port.sendall(json.dumps(answer).encode())

    def _fork(self, order: dict[str, Any], descriptors: list[int]) -> bool:
        """Start a program.

    :returns: whether this is the fork
    """
        importlib.invalidate_caches()
        for name in order['imports']:
            # The import of the program itself says better what is wrong.
            with contextlib.suppress(Exception):
                importlib.import_module(name)
        # A collection would write to memory that forks share.
        gc.freeze()
        pid = os.fork()
        if not pid:
            self._selector.close()
            self._port.close()
            os.setpgid(0, 0)
            for number, descriptor in enumerate(descriptors):
                os.dup2(descriptor, number)
                os.close(descriptor)
            return True
        # Whichever of the two is first: from now on signals reach the whole group.
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)
        for descriptor in descriptors:
            os.close(descriptor)
        self._selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, order['id']))
        self._say({'id': order['id'], 'pid': pid})
        return False

    def _say_end(self, descriptor: int, pid: int, number: int) -> None:
        self._selector.unregister(descriptor)
        os.close(descriptor)
        _, status = os.waitpid(pid, 0)
        self._say({'id': number, 'status': os.waitstatus_to_exitcode(status)})


def learn(names: Sequence[str]) -> None:
    """Import what these modules import, and nothing of this project, which may have changed by the next run.

    Those of other projects are imported themselves, in this order.
    """
    ours = [name for name in names if name.partition('.')[0] == OWN]
    theirs = [name for name in names if name not in ours]
    for name in [*theirs, *_imported(ours)]:
        if name.partition('.')[0] != OWN:
            # Other modules make some of them, which exist once their makers are imported.
            with contextlib.suppress(Exception):
                importlib.import_module(name)


def _imported(names: Sequence[str]) -> list[str]:
    """All modules that exist once a child process has imported these; those that need others come first."""
    ours, theirs = os.pipe()
    if not (pid := os.fork()):
        try:
            os.close(ours)
            with os.fdopen(theirs, 'w') as answer:
                for name in names:
                    importlib.import_module(name)
                # Each module is the last one when its own imports are done.
                answer.write('\n'.join(reversed(sys.modules)))
        except Exception:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(theirs)
    with os.fdopen(ours) as answer:
        found = answer.read().splitlines()
    os.waitpid(pid, 0)
    return found


def main() -> None:
    with socket.socket(fileno=int(sys.argv[1])) as port:
        order = Interpreter(port).serve()
    if order is not None:
        # What hangs is ended with SIGABRT, and then says where each thread is.
        faulthandler.enable()
        os.environ.update(order['env'])
        sys.argv = order['argv']
        runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)


if __name__ == '__main__':
    main()
