"""The privileged daemon of oslo.privsep: the capabilities that it keeps, and the functions that it runs.

These functions are in :mod:`devicetrack.virt.libvirt.privileged` and the modules that it names.
"""

from __future__ import annotations

from collections.abc import Callable
import ctypes
import errno
import os
from typing import Any
from typing import Final

from oslo_privsep import capabilities
from oslo_privsep import priv_context

from devicetrack.virt.libvirt import root

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

        :raises OSError: EIO: its helper command cannot be run. The command's own error, such as ENOENT, would look like
            the daemon's answer about a device
        """
        try:
            super().start(method)
        except OSError as error:
            raise OSError(errno.EIO, f'the privileged daemon cannot be started: {error}') from error

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
