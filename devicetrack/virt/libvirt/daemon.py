"""The functions that oslo.privsep runs in the privileged daemon, and the capabilities that the daemon keeps for them.

Anybody with the service's rights may call these functions with any arguments. So none of them takes a program, the path
of a file to write, or a descriptor.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import ctypes
import errno
import os
import threading
from typing import Any
from typing import Final

from oslo_config import cfg
from oslo_privsep import capabilities
from oslo_privsep import priv_context

from devicetrack.conf import libvirt as options
from devicetrack.virt.libvirt import descriptors
from devicetrack.virt.libvirt import disk_nodes
from devicetrack.virt.libvirt import nvme_controllers
from devicetrack.virt.libvirt import root
from devicetrack.virt.libvirt import vf_ports

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
            try:
                _give_up_for_good()
            except OSError as error:
                # An error here would lead a forked child back into the code of the service.
                capabilities.drop_all_caps_except((), (), ())
                self._refusal = (f'the privileged daemon cannot give up its rights ({error.strerror}): '
                                 f'[{self.cfg_section}] capabilities needs CAP_SETPCAP for that')
        super().set_client_mode(enabled)

    def is_entrypoint(self, func: Callable[..., Any]) -> bool:
        """Refuse every function if the rights could not be given up. The daemon asks before it calls a function.

        :raises OSError: this daemon calls no function
        """
        if self._refusal:
            raise PermissionError(errno.EPERM, self._refusal)
        return super().is_entrypoint(func)


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


class _Formats:
    """Counts the formats that run in this daemon. Each one blocks a thread until its controller has ended.

    No child can format in the thread's place, because the daemon's programs have no capability.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running = 0

    @contextlib.contextmanager
    def one_more(self, most: int) -> Iterator[None]:
        """Count a format during the block. At least one may run.

        :raises OSError: EUSERS: as many formats run already
        """
        with self._lock:
            if self._running >= max(most, 1):
                raise OSError(errno.EUSERS, f'{self._running} formats run already, and other requests need a thread')
            self._running += 1
        try:
            yield
        finally:
            with self._lock:
                self._running -= 1


_FORMATS: Final = _Formats()

# CAP_SETPCAP is for _give_up_for_good, and goes with it.
context = _Context(
    'devicetrack', cfg_section='devicetrack_privileged', pypath=f'{__name__}.context',
    capabilities=[*sorted(KEPT), capabilities.CAP_SETPCAP])


@context.entrypoint
def run_ndctl() -> tuple[int, str]:
    options.register(cfg.CONF)
    read = cfg.CONF[options.VPMEM_GROUP]
    return root.run_ndctl(read.ndctl_command, read.ndctl_timeout_s)


@context.entrypoint
def send_dax(path: str, size_bytes: int, socket_path: str) -> None:
    descriptors.send(lambda: root.open_dax(path, size_bytes), socket_path)


@context.entrypoint
def send_disk(address: str, name: str, size_bytes: int, writing: bool, socket_path: str) -> None:
    descriptors.send(lambda: disk_nodes.open_disk(root.SYSFS, address, name, size_bytes, writing), socket_path)


@context.entrypoint
def is_dax_locked(path: str) -> bool:
    return root.is_dax_locked(path)


@context.entrypoint
def open_daxes(paths: Sequence[str]) -> list[str]:
    return root.open_daxes(paths)


@context.entrypoint
def is_vfio_group_open(number: int) -> bool:
    return root.is_vfio_group_open(number)


@context.entrypoint
def remove_lost_definitions() -> None:
    root.remove_lost_definitions()


@context.entrypoint
def remove_mdev(uuid: str) -> None:
    root.remove_mdev(uuid)


@context.entrypoint
def remove_mdev_definition(parent: str, uuid: str) -> None:
    root.remove_mdev_definition(parent, uuid)


@context.entrypoint
def set_vgpu_type(address: str, number: int) -> None:
    root.set_vgpu_type(root.SYSFS, address, number)


@context.entrypoint
def set_driver_override(address: str, driver: str | None) -> None:
    root.set_driver_override(root.SYSFS, address, driver)


@context.entrypoint
def check_host_use(address: str) -> None:
    root.check_host_use(root.SYSFS, address)


@context.entrypoint
def unbind(address: str) -> None:
    root.unbind(root.SYSFS, address)


@context.entrypoint
def probe(address: str) -> None:
    root.probe(root.SYSFS, address)


@context.entrypoint
def reset(address: str, method: str | None) -> None:
    root.reset(root.SYSFS, address, method)


@context.entrypoint
def set_vfs(address: str, number: int, autoprobe: bool | None) -> None:
    root.set_vfs(root.SYSFS, address, number, autoprobe)


@context.entrypoint
def set_vf_port(address: str, mac: str, vlan: int, trusted: bool) -> None:
    vf_ports.set_port(root.SYSFS, address, mac, vlan, trusted)


@context.entrypoint
def read_serial(address: str) -> str | None:
    return root.read_serial(root.SYSFS, address)


@context.entrypoint
def nvme_read_controller(address: str) -> tuple[Any, ...]:
    return nvme_controllers.read_controller(root.SYSFS, address)


@context.entrypoint
def nvme_read_namespaces(address: str) -> list[tuple[int, bool, tuple[Any, ...]]]:
    return nvme_controllers.read_namespaces(root.SYSFS, address)


@context.entrypoint
def nvme_read_subsystem(address: str) -> tuple[Any, ...]:
    return nvme_controllers.read_subsystem(root.SYSFS, address)


@context.entrypoint
def nvme_bring_online(address: str) -> None:
    nvme_controllers.bring_online(root.SYSFS, address)


@context.entrypoint
def nvme_attach(address: str, disks: Sequence[tuple[str, int]], nsid: int, is_to_be: bool) -> None:
    nvme_controllers.attach(root.SYSFS, address, disks, nsid, is_to_be)


@context.entrypoint
def nvme_create_namespace(address: str, disks: Sequence[tuple[str, int]], nsid: int, blocks: int,
                          wanted: Sequence[Any], shared: bool) -> None:
    nvme_controllers.create_namespace(root.SYSFS, address, disks, nsid, blocks, wanted, shared)


@context.entrypoint
def nvme_delete_namespace(address: str, disks: Sequence[tuple[str, int]], nsid: int) -> None:
    nvme_controllers.delete_namespace(root.SYSFS, address, disks, nsid)


@context.entrypoint
def format_nvme_namespace(address: str, disks: Sequence[tuple[str, int]], nsid: int, wanted: Sequence[Any], erase: int,
                          timeout_s: int) -> None:
    with _FORMATS.one_more(context.conf.thread_pool_size - 1):
        nvme_controllers.format_namespace(root.SYSFS, address, disks, nsid, wanted, erase, timeout_s)


@context.entrypoint
def nvme_start_sanitize(address: str, disks: Sequence[tuple[str, int]], action: int) -> None:
    nvme_controllers.start_sanitize(root.SYSFS, address, disks, action)


@context.entrypoint
def nvme_sanitize_status(address: str) -> tuple[int, ...]:
    return nvme_controllers.sanitize_status(root.SYSFS, address)
