"""The privileged daemon: the functions that oslo.privsep runs in it, with one capability."""

from __future__ import annotations

import os
import socket

from oslo_privsep import capabilities
from oslo_privsep import priv_context

from devicetrack.virt.libvirt import root

# A device node belongs to the hypervisor's user while a guest has it, and to root otherwise: opening any needs
# CAP_DAC_OVERRIDE (capabilities(7)). Reading sysfs, which is what ndctl does for a list, needs no more than
# root's own.
context = priv_context.PrivContext(
    'devicetrack', cfg_section='devicetrack_privileged', pypath=f'{__name__}.context',
    capabilities=[capabilities.CAP_DAC_OVERRIDE])


@context.entrypoint
def run_ndctl(arguments: list[str]) -> tuple[int, str]:
    return root.run_ndctl(arguments)


@context.entrypoint
def send_dax(path: str, socket_path: str) -> None:
    fd = root.open_dax(path)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(socket_path)
            socket.send_fds(connection, [b'.'], [fd])
    finally:
        os.close(fd)


@context.entrypoint
def is_vfio_group_open(number: int) -> bool:
    return root.is_vfio_group_open(number)


@context.entrypoint
def remove_lost_definitions() -> None:
    root.remove_lost_definitions()


@context.entrypoint
def set_vgpu_type(address: str, number: int) -> None:
    root.set_vgpu_type(root.SYSFS, address, number)
