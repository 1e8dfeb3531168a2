"""Every option, for oslo.config's sample generator and the documentation."""

from __future__ import annotations

from oslo_config import cfg

from devicetrack.conf import compatibility
from devicetrack.conf import fleet
from devicetrack.conf import libvirt
from devicetrack.conf import manager
from devicetrack.conf import nova
from devicetrack.conf import pci
from devicetrack.conf import placement
from devicetrack.conf import store


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    return [
        (manager.GROUP, manager.OPTIONS),
        (store.GROUP, store.OPTIONS),
        (fleet.GROUP, fleet.OPTIONS),
        (libvirt.LIBVIRT_GROUP, libvirt.LIBVIRT_OPTIONS),
        (libvirt.DEADLINES_GROUP, libvirt.DEADLINES_OPTIONS),
        (libvirt.DEVICES_GROUP, libvirt.DEVICES_OPTIONS),
        (libvirt.mdev_group('nvidia-35'), libvirt.MDEV_TYPE_OPTIONS),
        (libvirt.MDEV_GROUP, libvirt.MDEV_OPTIONS),
        (libvirt.VF_GROUP, libvirt.VF_OPTIONS),
        (libvirt.vf_group('558'), libvirt.VF_TYPE_OPTIONS),
        (libvirt.VPMEM_GROUP, libvirt.VPMEM_OPTIONS),
        (pci.SERVICE_GROUP, pci.SERVICE_OPTIONS),
        (pci.GROUP, pci.OPTIONS),
        (nova.GROUP, nova.OPTIONS),
        (placement.GROUP, placement.OPTIONS),
        (compatibility.GROUP, compatibility.OPTIONS),
    ]


def register_options(conf: cfg.ConfigOpts) -> None:
    """Register every option that is not registered already. Do it before the configuration files are read."""
    for subject in (manager, store, fleet, libvirt, pci, nova, placement, compatibility):
        subject.register(conf)
