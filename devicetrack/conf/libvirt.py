"""Options of the libvirt driver and its device kinds.

``[libvirt]``, ``[devices]`` and ``[mdev_<type>]`` have the names and formats that operators of compute services know.
"""

from __future__ import annotations

from oslo_config import cfg

from devicetrack import conf as registry

LIBVIRT_GROUP = 'libvirt'
DEVICES_GROUP = 'devices'
MDEV_GROUP = 'devicetrack_mdev'
VF_GROUP = 'devicetrack_vf'
VPMEM_GROUP = 'devicetrack_vpmem'

LIBVIRT_OPTIONS = [
    cfg.StrOpt('connection_uri', default='', help="""
URI of the hypervisor, as libvirt takes it. Empty means ``qemu:///system``.
"""),
    cfg.ListOpt('pmem_namespaces', default=[], help="""
Persistent-memory namespaces that guests may get, by label: ``LABEL:NAME[|NAME…][,LABEL:…]``, for example
``4GB:ns0,SMALL:ns1|ns2``. A label's devices are counted as ``CUSTOM_PMEM_NAMESPACE_<LABEL>``. A namespace has one
label.
"""),
]

DEVICES_OPTIONS = [
    cfg.ListOpt('enabled_mdev_types', default=[], help="""
Types of mediated devices that guests may get, for example ``nvidia-35,nvidia-36``. With more than one type each parent
device must belong to one of them: name the addresses in ``[mdev_<type>] device_addresses``.
"""),
    cfg.BoolOpt('adopt_existing_mdevs', default=True, help="""
Whether a free mediated device of an enabled type that exists already is handed out before a new one is made. An adopted
device is kept when its guest is gone; one that any domain names is never adopted. Turn it off where somebody else makes
devices on these parents for a purpose of his own.
"""),
]

MDEV_TYPE_OPTIONS = [
    cfg.ListOpt('device_addresses', default=[], help="""
Parents that make this type: PCI addresses (``0000:84:00.0``), or node-device names of virtual parents (``mtty_mtty``).
Empty means every parent that no other type names.
"""),
    cfg.StrOpt('mdev_class', default='VGPU', help="""
Resource class that devices of this type are counted as: ``VGPU`` or a name that starts with ``CUSTOM_``.
"""),
    cfg.IntOpt('max_instances', min=0, help="""
At most so many devices of this type on each parent, when fewer are wanted than the parent can make. Unset means as many
as it can make.
"""),
]

MDEV_OPTIONS: list[cfg.Opt] = [
    cfg.IntOpt('release_wait_s', default=10, min=0, help="""
How many seconds to wait until no process has a mediated device open that is to be given back. The guest's process lets
go of it when it ends, which takes longer the more memory the guest had. After that the device stays held and the next
audit looks again, without waiting. Raise it when audits often report devices as in use whose guests are gone; a release
takes so much longer at most for each device.
"""),
]

VF_OPTIONS = [
    cfg.ListOpt('enabled_types', default=[], help="""
vGPU types that guests may get on virtual functions, by their numbers: ``nvidia/creatable_vgpu_types`` of a virtual
function lists number and name. It is for cards whose driver has NVIDIA's own VFIO interface in the place of mediated
devices. With more than one type each physical function must belong to one of them: name the addresses in
``[vf_<type>] device_addresses``.
"""),
    cfg.BoolOpt('adopt_existing', default=False, help="""
Whether a virtual function that has an enabled type already, and that no domain and no record names, is handed out; its
type is kept when its guest is gone. Turn it on where types are set before the service starts, by a unit of systemd for
example. It is off because nothing says for whom a type was set, and a function without a type does as well.
"""),
    cfg.IntOpt('release_wait_s', default=10, min=0, help="""
How many seconds to wait until no process has a virtual function open that is to be given back. After that it stays held
and the next audit looks again.
"""),
    cfg.StrOpt('sysfs_root', default='/sys', help="""
Where sysfs is mounted, or a tree that has the same form: for development and tests.
"""),
]

VF_TYPE_OPTIONS = [
    cfg.ListOpt('device_addresses', default=[], help="""
PCI addresses of the physical functions whose virtual functions get this type (``0000:3d:00.0``). Empty means every one
that no other type names.
"""),
    cfg.StrOpt('resource_class', default='VGPU', help="""
Resource class that devices of this type are counted as: ``VGPU`` or a name that starts with ``CUSTOM_``.
"""),
    cfg.IntOpt('max_instances', min=0, help="""
At most so many devices of this type on each physical function. Set it to what the card can hold of the type
(``nvidia-smi vgpu -s -v`` calls it ``Max Instances``) or less: sysfs does not say it, and until the card is full each
virtual function counts as one that can still get the type.
"""),
]

VPMEM_OPTIONS = [
    cfg.StrOpt('ndctl_command', default='ndctl', help="""
The ndctl program: a name on the path or a file.
"""),
    cfg.StrOpt('directory', default='', help="""
A directory whose regular files stand for persistent-memory namespaces: the file's name is the namespace's name, its
size the namespace's size. Set, ndctl is not asked. For hosts without such memory, in development and in tests.
"""),
    cfg.IntOpt('wipe_rate_mib_s', default=0, min=0, help="""
Upper bound for wiping one namespace, in MiB a second; 0 means none. It is kept while zeroes are written and while they
are read back. Lower it when wiping disturbs running guests; a released namespace is free only when it is wiped.
"""),
    cfg.IntOpt('wipe_wait_s', default=60, min=0, help="""
How many seconds to wait for a wipe of the same namespace that another process has under way, for example one that
outlived a killed service. After that the namespace stays held and the next audit looks again.
"""),
]


def mdev_group(mdev_type: str) -> str:
    return f'mdev_{mdev_type}'


def vf_group(vgpu_type: str) -> str:
    return f'vf_{vgpu_type}'


def register(conf: cfg.ConfigOpts) -> None:
    registry.register(conf, LIBVIRT_GROUP, LIBVIRT_OPTIONS)
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
