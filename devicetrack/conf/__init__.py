"""Options, by subject. They are handed in: nothing here or elsewhere reads a global configuration.

A compute service may have registered some of these options itself (``[libvirt] pmem_namespaces``,
``[devices] enabled_mdev_types``, ``[mdev_<type>] …``). Such an option is read as the service registered it and not
registered twice.
"""

from __future__ import annotations

from collections.abc import Iterable

from oslo_config import cfg


def register(conf: cfg.ConfigOpts, group: str, options: Iterable[cfg.Opt]) -> None:
    """Register options in a group, except those that somebody registered there before."""
    for option in options:
        try:
            conf.register_opt(option, group=group)
        except cfg.DuplicateOptError:
            continue
