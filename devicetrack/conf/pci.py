"""Options of PCI functions.

``[pci]`` has the names and formats that operators of Nova know. Nova registers these options itself.
"""

from __future__ import annotations

from typing import Final

from oslo_config import cfg

from devicetrack import conf as registry

SERVICE_GROUP: Final = 'pci'
GROUP: Final = 'devicetrack_pci'

SERVICE_OPTIONS: list[cfg.Opt] = [
    cfg.MultiStrOpt('device_spec', default=[], deprecated_opts=[
        cfg.DeprecatedOpt('passthrough_whitelist', group='pci'),
        cfg.DeprecatedOpt('pci_passthrough_whitelist', group='DEFAULT'),
    ], help="""
PCI functions for guests: a JSON object, or a list of such objects. Repeat the option for more. The first object that
matches a function applies.

``vendor_id``, ``product_id`` (four hexadecimal digits), ``address`` and ``devname`` (the name of a network interface,
instead of an address) say which functions an object matches; a key that is left out matches every function. An address
is a text like ``0000:0a:00.0``, in which ``*`` or nothing stands for any value (``*:0a:00.*``), or an object with a
regular expression for each of ``domain``, ``bus``, ``slot`` and ``function``. The address of a physical function, or
the name of its interface, also matches its virtual functions.

``resource_class`` is the class of the functions in placement, by default ``CUSTOM_PCI_<VENDOR>_<PRODUCT>``, and
``traits`` are names separated by commas. Names that placement does not know become capital letters after ``CUSTOM_``.
``managed`` (``yes`` by default): libvirt detaches the function from its host driver and reattaches it.
``live_migratable`` and ``one_time_use`` are ``no`` by default. Guests move live only with functions that are
``live_migratable``. A function with ``one_time_use`` is withheld after its guest until an operator admits it again.
Functions that Nova assigns itself can be cleaned automatically instead (``[devicetrack_nova] pci``). A virtual function
with a ``physical_network`` becomes a port of that network, with the MAC address and VLAN that the service asks for. No
alias by vendor and product matches it. It can become a trusted port only if its object has ``trusted``. A whole
function with a ``physical_network`` is never assigned.
"""),
    cfg.MultiStrOpt('alias', default=[], deprecated_opts=[cfg.DeprecatedOpt('pci_alias', group='DEFAULT')], help="""
A name by which flavors request PCI functions (``pci_passthrough:alias = NAME:COUNT``): a JSON object with ``name``, and
with ``vendor_id`` and ``product_id``, or ``resource_class``. Repeat the option for more; a function may match any of
several objects with one name. ``device_type`` (``type-PCI``, ``type-PF`` or ``type-VF``), ``numa_policy``
(``required``, ``legacy``, ``preferred`` or ``socket``), ``traits`` and ``live_migratable`` are optional. A guest gets a
function only if the function matches everything in the object. An object without ``device_type`` never matches a
physical function that can have virtual ones. Objects of one name have the same ``device_type`` and ``numa_policy``.
Give every compute host the aliases of the API.
"""),
]

OPTIONS: list[cfg.Opt] = [
    cfg.MultiStrOpt('functions', default=[], help="""
The PCI functions that devicetrack assigns, among those that ``[pci] device_spec`` matches: ``all``, or a JSON object
with ``vendor_id``, ``product_id``, ``address`` or ``devname`` as in ``[pci] device_spec``, or a list of such objects.
Repeat the option for more. By default there are none, and a service that assigns PCI functions itself continues to do
so. A function must not be assigned by both.
"""),
    cfg.MultiStrOpt('cleaning', default=[], help="""
How to clean a released PCI function, after its reset and before another guest gets it: a JSON object with ``policy``
and, as in ``[pci] device_spec``, ``vendor_id``, ``product_id``, ``address`` or ``devname``, or a list of such objects.
Repeat the option for more. The first object that matches a function applies. If none matches, the default for a mass
storage controller is ``person``, and for any other function ``none``: a reset is enough for most functions. A function
without a reset waits for a person too. A bus reset does not count if another function shares the bus.

``none``: no cleaning. A reset does not erase a disk: with ``none`` the next guest can read the data of the last one.
``person``: the function is withheld until an operator confirms that it is clean. This policy applies to every function
with ``one_time_use`` in ``[pci] device_spec``, except those that Nova assigns itself. For NVMe disks: ``zero`` writes
zeroes over every namespace and reads them back; ``blkdiscard`` discards every block, and reads every byte back as zero;
``nvme-format`` has the controller format and erase every namespace (``erase``: ``user-data``, or ``cryptographic``;
``timeout_s``: how long one may take, 3600 by default); ``nvme-sanitize`` has it sanitize all of its NVM subsystem
(``erase``: ``block``, ``cryptographic`` or ``overwrite``; ``timeout_s``: how long the service waits for it, 86400 by
default). A service that does not run as root needs CAP_SYS_ADMIN in ``[devicetrack_privileged] capabilities`` for
these. The service does not start with a policy that a controller does not support, and does not assign a disk while the
policy would erase other data. ``program``: a program of the operator (``program``: its absolute path; ``timeout_s``:
when it is killed, 3600 by default). "PCI functions" in the guide for operators says what each policy proves, how long
it takes, and what a program has to do.
"""),
    cfg.MultiStrOpt('vfs', default=[], help="""
The virtual functions to create on physical functions: a JSON object with ``number`` and, as in ``[pci] device_spec``,
``vendor_id``, ``product_id``, ``address`` or ``devname`` of the physical function, or a list of such objects. Repeat
the option for more. The first object that matches a physical function applies. For example ``{"address":
"0000:3b:00.0", "number": 8, "autoprobe": false}``.

A host has no virtual functions after a boot. The service creates them when it starts and in audits, if a physical
function has none and neither an instance nor the host uses it. It never changes existing ones. Some drivers reset their
card when virtual functions are created. ``autoprobe``: whether host drivers bind to them. ``false`` is faster, and
right if the functions are only for guests. Without ``autoprobe`` the kernel's setting stays. Without ``number`` the
service creates none.

The service brings the controllers of an NVMe disk's virtual functions online before it assigns them. It asks the
physical function's controller about namespaces, and does not assign a function that can access a namespace of another
controller. ``private_namespaces`` is for a controller that does not report this: with ``true`` you confirm that no
namespace is attached to more than one controller, and the service does not check.
"""),
    cfg.IntOpt('vfs_timeout_s', default=60, min=1, help="""
Seconds that the kernel may take to create the virtual functions of one physical function. Some drivers take a second
for each. After this time the service continues without them, and uses them when they appear.
"""),
    cfg.IntOpt('release_wait_s', default=30, min=0, help="""
Seconds that a release waits until libvirt has reattached a function to its host driver, until the driver shows its
disks, and until programs that open new disks, such as udev, have closed them. After this time the function stays held,
and the next audit checks again. A claim waits as long for the same.
"""),
    registry.PathOpt('sysfs_root', default='/sys', help="""
Directory where sysfs is mounted. Development and tests use a tree of the same form.
"""),
]


def register(conf: cfg.ConfigOpts) -> None:
    registry.register(conf, SERVICE_GROUP, SERVICE_OPTIONS)
    registry.register(conf, GROUP, OPTIONS)
