"""Options about whether running guests can move with their devices."""

from __future__ import annotations

from oslo_config import cfg

from devicetrack import conf as registry

GROUP = 'devicetrack_compatibility'

OPTIONS = [
    cfg.ListOpt('sources', default=['sysfs', 'table'], help="""
Who says which migration version, features and units devices of a type have: names of entry points of
``devicetrack.compatibility.sources``. They are asked in this order, and of each of the three the first that knows it
counts. ``sysfs`` has what drivers declare, ``table`` what the deployment's table says.
"""),
    cfg.StrOpt('table', help="""
Absolute path of the deployment's table of migration versions and features, in YAML of at most 1 MiB. Unset or empty
means that there is none. It is read when the service starts and at every audit; one that cannot be read keeps the
service from starting, and later the last one that could be read counts.
"""),
    cfg.BoolOpt('require_version', default=False, help="""
Whether a live migration is refused when the migration version of a device is unknown at either end. Otherwise it is
allowed, and the log says so: the drivers of the kernel itself declare no version and check at the destination what they
are sent. Set it where all types that guests have are in the table or declared by their drivers.
"""),
    cfg.StrOpt('version_attribute', default='migration_version', help="""
Attribute in sysfs with the migration version of a type: a path below the directory of the type of mediated devices, or
of the physical function of a virtual one. It is read and never written. Empty means that none is read.
"""),
    cfg.StrOpt('aggregation_attribute', default='aggregation', help="""
Attribute in sysfs with the number of units that a device of a type has, where types are made of units: a path as for
``version_attribute``. Empty means that none is read.
"""),
    cfg.BoolOpt('opaque_versions', default=False, help="""
Whether a version in sysfs that is not ``major.minor.patch`` is a vendor's own string, which equals another or does not.
Otherwise it is unknown.
"""),
]


def register(conf: cfg.ConfigOpts) -> None:
    registry.register(conf, GROUP, OPTIONS)
