"""Watches the reads and changes of a block of code by the interpreter's audit events (PEP 578)."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import os
import sys
import threading
from typing import Any

_CHANGES = frozenset((
    'os.chmod', 'os.chown', 'os.link', 'os.mkdir', 'os.remove', 'os.rename', 'os.rmdir', 'os.setxattr', 'os.symlink',
    'os.truncate', 'os.utime'))
_READS = frozenset(('os.listdir', 'os.scandir', 'subprocess.Popen', 'socket.connect', 'os.posix_spawn', 'os.fork'))
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC

_watched = threading.local()
_installed = threading.Lock()
_hooks: list[bool] = []


def _see(event: str, arguments: tuple[Any, ...]) -> None:
    seen = getattr(_watched, 'seen', None)
    if seen is None:
        return
    if event == 'open':
        path, _mode, flags = arguments
        if isinstance(path, str) and path.endswith(('.py', '.pyc', '.so')):
            return                              # an import inside a function
        seen.append(('change' if flags & _WRITING else 'read', f'open {path}'))
    elif event in _CHANGES:
        seen.append(('change', f'{event} {arguments[0]}'))
    elif event in _READS:
        seen.append(('read', f'{event} {arguments[0]}'))
    else:
        return
    if (before := _watched.before) is not None:
        _watched.seen = None                    # what it does itself is not seen
        try:
            before(len(seen))
        finally:
            _watched.seen = seen


@contextlib.contextmanager
def watching(before: Callable[[int], object] | None = None) -> Iterator[Sequence[tuple[str, str]]]:
    """Give the block the list of its thread's actions, as pairs: ``change`` or ``read``, and the event as text.

    :param before: called before each action, with its number from 1. It must raise no error
    Nobody can remove an audit hook, so it stays in the process. Outside a block it costs one comparison.
    """
    with _installed:
        if not _hooks:
            sys.addaudithook(_see)
            _hooks.append(True)
    seen: list[tuple[str, str]] = []
    _watched.before, _watched.seen = before, seen
    try:
        yield seen
    finally:
        _watched.seen = None
