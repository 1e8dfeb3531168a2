"""The options of the kind ``scratch``."""

from __future__ import annotations

from oslo_config import cfg

GROUP = 'scratch'
OPTIONS = [
    cfg.StrOpt('directory', help='A directory whose files guests may get. Unset: none.'),
    cfg.IntOpt('numa_node', min=0, help='The NUMA node of the memory behind the directory. Unset: unknown.'),
    cfg.StrOpt('sysfs_root', default='/sys', help='Where sysfs is. Only tests change it.'),
]


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """List the options for ``oslo-config-generator``. The entry point ``oslo.config.opts`` names this function."""
    return [(GROUP, OPTIONS)]
