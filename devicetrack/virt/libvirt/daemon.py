"""The privileged daemon of oslo.privsep: the capabilities that it keeps, and the functions that it runs.

These functions are in :mod:`devicetrack.virt.libvirt.privileged` and the modules that it names.
"""

from __future__ import annotations

from collections.abc import Callable
import ctypes
import errno
import os
import re
import subprocess
import tempfile
from typing import Any
from typing import Final

from oslo_config import cfg
from oslo_privsep import capabilities

from devicetrack import lean_imports
from devicetrack import log
from devicetrack.virt.libvirt import root

with lean_imports.without_eventlet():
    from oslo_privsep import daemon
    from oslo_privsep import priv_context

LOG = log.logger(__name__)

# More bytes than the traceback of one import takes.
_MOST_OF_LOG: Final = 20_000

# A device node belongs to the hypervisor's user while a guest has it, and to root otherwise. So the daemon needs
# CAP_DAC_OVERRIDE (capabilities(7)) to open any of them, and CAP_SYS_PTRACE to see which process has one open. ndctl
# reads sysfs, where root needs no capability.
KEPT: Final = frozenset({capabilities.CAP_DAC_OVERRIDE, capabilities.CAP_SYS_PTRACE})
# The daemon keeps these if the operator adds them to [devicetrack_privileged] capabilities. Without the first the
# kernel passes no command to an NVMe controller (nvme_cmd_allowed in Linux: drivers/nvme/host/ioctl.c), and without the
# second it changes no setting of a virtual function (rtnetlink_rcv_msg in net/core/rtnetlink.c).
KEPT_IF_GIVEN: Final = frozenset({capabilities.CAP_SYS_ADMIN, capabilities.CAP_NET_ADMIN})

# prctl(2) and securebits (capabilities(7)), from linux/prctl.h and linux/securebits.h.
_PR_CAPBSET_DROP: Final = 24
_PR_SET_SECUREBITS: Final = 28
_PR_SET_NO_NEW_PRIVS: Final = 38
_NOROOT: Final = 1 << 0
_NO_AMBIENT: Final = 1 << 6
_LOCKED: Final = 1          # shift: the bit that locks another one is the next higher bit


class _Context(priv_context.PrivContext):
    """A daemon whose programs get no capability. oslo.privsep alone would let root get them back by execve(2)."""

    _refusal = ''

    def start(self, method: priv_context.Method = priv_context.Method.ROOTWRAP) -> None:
        """Start the daemon.

        :raises OSError: EIO: its helper command cannot be run, or fails. The command's own error, such as ENOENT, would
            look like the daemon's answer about a device
        """
        try:
            super().start(method)
        except (OSError, daemon.FailedToDropPrivileges) as error:
            why = self._complaint() if isinstance(error, daemon.FailedToDropPrivileges) else str(error)
            LOG.error('The privileged daemon cannot be started: %s', why)
            raise OSError(errno.EIO, f'the privileged daemon cannot be started: {why}') from error

    def helper_command(self, sockpath: str) -> list[str]:
        """Return the command that starts the daemon. sudo asks nobody for a password: there may be a terminal."""
        first, *more = super().helper_command(sockpath)
        return [first, *(['-n'] if os.path.basename(first) == 'sudo' else []), *more]

    def _complaint(self) -> str:
        """Return what the helper says when it fails. oslo.privsep tells only its exit status.

        This runs it once more. It has ended each time, and here it ends before it does anything, since nobody listens
        at the socket.
        """
        with tempfile.TemporaryDirectory() as directory:
            command = self.helper_command(os.path.join(directory, 'privsep.sock'))
            length, _earlier = _logged()
            done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  check=False, text=True, errors='replace', start_new_session=True)
        said = f'{done.stdout}{_logged(length)[1]}'.strip() or f'it ended with status {done.returncode}'
        lacks = re.search(r"No module named '(devicetrack\b[^']*)'", said)
        return f'{" ".join(command)}: {said.splitlines()[-1]}' if lacks is None else (
            f'the Python that runs its helper has no {lacks[1]}: install devicetrack there, or have the helper run in '
            f'the environment of devicetrack; the command is {" ".join(command)}')

    def set_client_mode(self, enabled: bool) -> None:
        """Give up rights for good. oslo.privsep passes False only in the daemon, before the daemon reads a request.

        By then oslo.privsep has set the daemon's capabilities.
        """
        if not enabled:
            root.is_daemon = True
            try:
                _give_up_for_good()
            except OSError as error:
                # An error here would lead a forked child back into the code of the service.
                capabilities.drop_all_caps_except((), (), ())
                self._refusal = (f'the privileged daemon cannot give up its rights ({error.strerror}): '
                                 f'[{self.cfg_section}] capabilities needs CAP_SETPCAP for that')
        super().set_client_mode(enabled)

    def is_entrypoint(self, func: Callable[..., Any]) -> bool:
        """Whether the daemon runs a function. It asks before it calls one.

        :raises OSError: this daemon runs none, because it could not give up its rights
        """
        if self._refusal:
            raise PermissionError(errno.EPERM, self._refusal)
        return func in root.ENTRY_POINTS


def _logged(since: int = 0) -> tuple[int, str]:
    """Read what a helper added to its log, if the options of the configuration files give it one.

    :param since: the length of the log before
    :returns: the length of the log now, and the new text
    """
    name, directory = (getattr(cfg.CONF, option, None) for option in ('log_file', 'log_dir'))
    try:
        with open(os.path.join(directory or '', name or 'privsep-helper.log'), 'rb') as file:
            file.seek(since)
            return os.fstat(file.fileno()).st_size, file.read(_MOST_OF_LOG).decode(errors='replace')
    except OSError:
        return 0, ''


def _give_up_for_good() -> None:
    """Keep the capabilities of :data:`KEPT` and :data:`KEPT_IF_GIVEN`, and leave none to programs that the daemon runs.

    :raises OSError: the kernel refuses it
    """
    for capability in range(64):
        try:
            _prctl(_PR_CAPBSET_DROP, capability)
        except OSError as error:
            if error.errno == errno.EINVAL:             # the kernel has no higher capability
                break
            raise
    bits = _NOROOT | _NO_AMBIENT
    _prctl(_PR_SET_SECUREBITS, bits | bits << _LOCKED)
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _effective, permitted, _inheritable = capabilities.get_caps()
    kept = (KEPT | KEPT_IF_GIVEN).intersection(permitted)
    capabilities.drop_all_caps_except(kept, kept, ())


def _prctl(option: int, value: int) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    arguments = map(ctypes.c_ulong, (value, 0, 0, 0))
    if library.prctl(option, *arguments) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


# CAP_SETPCAP is for _give_up_for_good, and goes with it.
context = _Context(
    'devicetrack', cfg_section='devicetrack_privileged', pypath=f'{__name__}.context',
    capabilities=[*sorted(KEPT), capabilities.CAP_SETPCAP])
