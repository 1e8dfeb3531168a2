"""Options of the libvirt driver and its device kinds.

``[libvirt]``, ``[devices]`` and ``[mdev_<type>]`` have the names and formats that operators of compute services know.
"""

from __future__ import annotations

from oslo_config import cfg

from devicetrack import conf as registry

LIBVIRT_GROUP = 'libvirt'
DEADLINES_GROUP = 'devicetrack_libvirt'
DEVICES_GROUP = 'devices'
MDEV_GROUP = 'devicetrack_mdev'
VF_GROUP = 'devicetrack_vf'
VPMEM_GROUP = 'devicetrack_vpmem'

LIBVIRT_OPTIONS = [
    cfg.StrOpt('connection_uri', default='', help="""
libvirt URI of the hypervisor. Empty means ``qemu:///system``.
"""),
    cfg.ListOpt('pmem_namespaces', default=[], help="""
Persistent-memory namespaces for guests, by label: ``LABEL:NAME[|NAME…][,LABEL:…]``, for example
``4GB:ns0,SMALL:ns1|ns2``. Placement counts them as ``CUSTOM_PMEM_NAMESPACE_<LABEL>``. A namespace has exactly one
label.
"""),
]

DEADLINES_OPTIONS: list[cfg.Opt] = [
    cfg.IntOpt('call_timeout_s', default=120, min=1, help="""
Timeout in seconds for a call to libvirt, and for a file system of the host that resolves the paths of guests' disks.
After this time the result of the call is unknown: no device is freed, and the next audit checks again. libvirt
handles one device after the other, so on a busy host less than a minute may be too short. A process that runs libvirt's
event loop also closes the connection.
"""),
]

DEVICES_OPTIONS = [
    cfg.ListOpt('enabled_mdev_types', default=[], help="""
Types of mediated devices for guests, for example ``nvidia-35,nvidia-36``. With more than one type, assign each parent
device to a type in ``[mdev_<type>] device_addresses``.
"""),
    # Without its former name, a file that turns this off would have the devices of others assigned.
    cfg.BoolOpt('use_existing_mdevs', default=True, deprecated_name='adopt_existing_mdevs', help="""
Whether to assign existing free mediated devices of enabled types before new ones are created. Such a device is not
removed when its guest is gone. A device in the definition of any domain is never assigned to another instance. Turn
this off if other programs create devices on these parents for their own use.
"""),
]

MDEV_TYPE_OPTIONS = [
    cfg.ListOpt('device_addresses', default=[], help="""
Parent devices of this type: PCI addresses (``0000:84:00.0``), or node-device names of virtual parents (``mtty_mtty``).
Empty means every parent that is not listed for another type. Several types may list the same parent if they have
different resource classes and its driver supports both.
"""),
    cfg.StrOpt('mdev_class', default='VGPU', help="""
Resource class of the devices of this type: ``VGPU`` or a name that starts with ``CUSTOM_``.
"""),
    cfg.IntOpt('max_instances', min=1, help="""
Maximum number of devices of this type on this host, on all its parents together, as in Nova. Unset means no maximum. A
parent contributes its full capacity, or nothing if that exceeds the rest of the maximum, so set this to a sum of full
capacities.
"""),
]

MDEV_OPTIONS: list[cfg.Opt] = [
    cfg.IntOpt('release_wait_s', default=10, min=0, help="""
Seconds that a release waits until no process has the mediated device open. The guest's process closes it when it exits,
which takes longer for a guest with more memory. After this time the device stays held, and the next audit checks again
without waiting. Raise it if audits often report devices in use whose guests are gone. Each release may then take that
much longer.
"""),
]

VF_OPTIONS = [
    cfg.ListOpt('enabled_types', default=[], help="""
Numbers of the vGPU types for guests on virtual functions; ``nvidia/creatable_vgpu_types`` of a virtual function lists
numbers and names. This is for cards whose driver has NVIDIA's own VFIO interface instead of mediated devices. With more
than one type, assign each physical function to a type in ``[vf_<type>] device_addresses``.
"""),
    cfg.BoolOpt('use_existing', default=False, help="""
Whether to assign virtual functions that already have an enabled type and that no domain and no record uses. Such a
function keeps its type when its guest is gone. Turn this on if something else, for example a systemd unit, sets types
before the service starts. It is off by default because the host does not show for whom a type was set.
"""),
    cfg.IntOpt('release_wait_s', default=10, min=0, help="""
Seconds that a release waits until no process has the virtual function open. After this time the function stays held,
and the next audit checks again.
"""),
    registry.PathOpt('sysfs_root', default='/sys', help="""
Directory where sysfs is mounted. Development and tests use a tree of the same form.
"""),
]

VF_TYPE_OPTIONS = [
    cfg.ListOpt('device_addresses', default=[], help="""
PCI addresses of the physical functions whose virtual functions get this type (``0000:3d:00.0``). Empty means every one
that is not listed for another type. Several types may list the same card if they have different resource classes and
its driver supports both. Then set ``max_instances`` of all but the last.
"""),
    cfg.StrOpt('resource_class', default='VGPU', help="""
Resource class of the devices of this type: ``VGPU`` or a name that starts with ``CUSTOM_``.
"""),
    cfg.IntOpt('max_instances', min=0, help="""
Maximum number of devices of this type on each physical function. Set it to what the card can hold (``Max Instances`` in
the output of ``nvidia-smi vgpu -s -v``) or less. Sysfs does not have this number: without the option, every virtual
function is reported as available for the type until the card is full.
"""),
]

VPMEM_OPTIONS = [
    cfg.StrOpt('ndctl_command', default='/usr/bin/ndctl', help="""
Absolute path of the ndctl program. It runs as root, so only root may have write access to it and to the directories
above it. If the service does not run as root, its privileged daemon reads this option from the files in
``[devicetrack_privileged] helper_command``, and not from the service's files.
"""),
    cfg.IntOpt('ndctl_timeout_s', default=60, min=1, help="""
Seconds that ndctl may take to list the namespaces. After this time the namespaces are unknown until the next audit.
"""),
    registry.PathOpt('directory', default='', help="""
Directory whose regular files represent persistent-memory namespaces, each with the name and size of its file. When it
is set, ndctl is not called. For development and tests on hosts without persistent memory. A file is identified by its
name, inode number and size. A file system may give the number of a deleted file to the next new file. So do not replace
a file by another one of its name and size.
"""),
    cfg.IntOpt('wipe_rate_mib_s', default=0, min=0, help="""
Maximum rate of wiping one namespace, in MiB per second: for writing zeros, for reading them back, and for reading an
unproven namespace. 0 means no limit. Set it if wipes slow down running guests. A released namespace is free only after
the wipe, so a lower rate holds it longer.
"""),
    cfg.IntOpt('wipe_wait_s', default=60, min=0, help="""
Seconds to wait for another process that wipes the same namespace, for example one of a killed service. After this time
the namespace stays held, and the next audit checks again.
"""),
]


def mdev_group(mdev_type: str) -> str:
    return f'mdev_{mdev_type}'


def vf_group(vgpu_type: str) -> str:
    return f'vf_{vgpu_type}'


def register(conf: cfg.ConfigOpts) -> None:
    registry.register(conf, LIBVIRT_GROUP, LIBVIRT_OPTIONS)
    registry.register(conf, DEADLINES_GROUP, DEADLINES_OPTIONS)
    registry.register(conf, DEVICES_GROUP, DEVICES_OPTIONS)
    registry.register(conf, MDEV_GROUP, MDEV_OPTIONS)
    registry.register(conf, VF_GROUP, VF_OPTIONS)
    registry.register(conf, VPMEM_GROUP, VPMEM_OPTIONS)


def register_mdev_type(conf: cfg.ConfigOpts, mdev_type: str) -> None:
    """Register ``[mdev_<type>]``; the group exists once a type is enabled."""
    registry.register(conf, mdev_group(mdev_type), MDEV_TYPE_OPTIONS)


def register_vf_type(conf: cfg.ConfigOpts, vgpu_type: str) -> None:
    """Register ``[vf_<type>]``; the group exists once a type is enabled."""
    registry.register(conf, vf_group(vgpu_type), VF_TYPE_OPTIONS)
