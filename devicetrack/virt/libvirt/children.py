"""Child processes that the kernel may not let end."""

from __future__ import annotations

import subprocess
from typing import Final

_KILLED_S: Final = 5.0


def kill(child: subprocess.Popen[bytes]) -> bool:
    """Kill a child, if it has not ended. Returns False if it has not ended soon after that.

    The kernel may block a child in a call, and then the kill takes effect when that call returns.
    """
    child.kill()                                # no effect if it has ended
    try:
        child.wait(_KILLED_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def end(status: int) -> str:
    """Say how a child ended. A bad block of a device ends it with SIGBUS."""
    return f'was ended by signal {-status}' if status < 0 else f'ended with status {status}'
