"""Options, by subject. The caller hands the configuration in; no code of ours reads a global one.

A compute service may have registered some of these options itself (``[libvirt] pmem_namespaces``,
``[devices] enabled_mdev_types``, ``[mdev_<type>] …``). We read such an option as the service registered it, and
do not register it again.
"""

from __future__ import annotations

from collections.abc import Iterable
import contextlib

from oslo_config import cfg

from devicetrack import exception


def register(conf: cfg.ConfigOpts, group: str, options: Iterable[cfg.Opt]) -> None:
    """Register the options of a group that are not registered there yet.

    Then check every value, if the configuration files have been read: oslo.config's own error for a bad value names the
    file but not the section.

    :raises InvalidConfiguration: a value has another type, or is none of the choices
    """
    options = list(options)
    for option in options:
        with contextlib.suppress(cfg.DuplicateOptError):
            conf.register_opt(option, group=group)
    for option in options:
        try:
            conf[group][option.dest]
        except (cfg.ConfigFileValueError, cfg.ConfigSourceValueError) as error:
            raise exception.InvalidConfiguration(f'[{group}] {option.name}', _as_written(conf, group, option),
                                                 str(error.__context__)) from error


def _as_written(conf: cfg.ConfigOpts, group: str, option: cfg.Opt) -> str:
    text = cfg.ConfigOpts()
    text.register_opt(cfg.StrOpt(option.name, dest=option.dest), group=group)
    text([], default_config_files=conf.config_file, default_config_dirs=conf.config_dir)
    return str(text[group][option.dest])
