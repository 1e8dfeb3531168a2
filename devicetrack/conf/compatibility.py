"""Options for live migration of guests with their devices."""

from __future__ import annotations

from oslo_config import cfg

from devicetrack import conf as registry

GROUP = 'devicetrack_compatibility'

OPTIONS = [
    cfg.ListOpt('sources', default=['sysfs', 'table'], help="""
Sources of the migration version, the features and the units of a device type: names of entry points of
``devicetrack.compatibility.sources``, in order. Each of the three comes from the first source that knows it. ``sysfs``
reads the declarations of drivers, ``table`` reads the deployment's table.
"""),
    registry.PathOpt('table', help="""
Absolute path of the deployment's table of migration versions and features: a YAML file of at most 1 MiB. Unset or
empty means that there is no table. The service reads the file when it starts and at every audit. If the file cannot be
read, the service does not start, and an audit keeps the table that was read last.
"""),
    cfg.BoolOpt('require_version', default=False, help="""
Whether to refuse a live migration when the migration version of a device is unknown at either end. By default it is
allowed and logged, because the kernel's own drivers declare no version and check the state that they receive at the
destination. Turn it on once every type in use is in the table or declared by its driver.
"""),
    cfg.StrOpt('version_attribute', default='migration_version', help="""
Sysfs attribute with the migration version of a type: a path below the directory of the mediated device type, or below
that of the physical function. The attribute is only read. Empty means that no version is read.
"""),
    cfg.StrOpt('aggregation_attribute', default='aggregation', help="""
Sysfs attribute with the number of units in a device of a type, for types that are made of units: a path as for
``version_attribute``. Empty means that no number is read.
"""),
    cfg.BoolOpt('opaque_versions', default=False, help="""
Whether to accept a version in sysfs that does not have the form ``major.minor.patch``. Such versions are a vendor's own
strings and are compatible only when they are equal. By default they are treated as unknown.
"""),
]


def register(conf: cfg.ConfigOpts) -> None:
    registry.register(conf, GROUP, OPTIONS)
