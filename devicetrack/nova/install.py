"""Wraps Nova's methods, so that they call the adapter's."""

from __future__ import annotations

from collections.abc import Callable
import contextlib
from typing import Any

from devicetrack.nova import binding
from devicetrack.nova import compute
from devicetrack.nova import driver
from devicetrack.nova import errors
from devicetrack.nova import tracker
from devicetrack.nova import wrapping

# Importing these modules registers their wrappers.
_SUBJECTS = (tracker, driver, compute)


def targets() -> list[str]:
    """Return every method of Nova that is wrapped."""
    return [compute.CHECK_FOR_RENAME, *wrapping.wrappers()]


def install(connect: Callable[[Any], Any] | None = None,
            state_path: Callable[[str], str] | None = None) -> wrapping.Installed:
    """Wrap Nova's methods. Each host gets its claim manager when Nova's service for the host starts.

    Import ``nova.cmd.compute`` first, which chooses native threads or eventlet.

    :param connect: takes Nova's driver and returns a connection to libvirt; by default a new one to its URI
    :param state_path: takes the name of a host and returns its state directory; by default that of
        ``[devicetrack] state_path``. For processes that play several hosts
    :raises UnknownNova: this Nova differs from those that are known; nothing was wrapped
    """
    settings = binding.HostSettings(connect or binding.connect, state_path or binding.state_path)
    installed = wrapping.Installed()
    with contextlib.ExitStack() as undo:
        undo.callback(installed.remove)
        # Nova must not start without the manager, and the operator must read why.
        installed.wrap(compute.CHECK_FOR_RENAME, compute.starts(settings), lambda error: error)
        for target, wrapper in wrapping.wrappers().items():
            installed.wrap(target, wrapper, errors.untold)
        undo.pop_all()
    return installed
