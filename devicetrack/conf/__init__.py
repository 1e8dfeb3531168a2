"""Options, by subject. They are handed in: nothing here or elsewhere reads a global configuration.

A compute service may have registered some of these options itself (``[libvirt] pmem_namespaces``,
``[devices] enabled_mdev_types``, ``[mdev_<type>] …``). Such an option is read as the service registered it and not
registered twice.
"""

from __future__ import annotations

from collections.abc import Iterable
import contextlib

from oslo_config import cfg

from devicetrack import exception


def register(conf: cfg.ConfigOpts, group: str, options: Iterable[cfg.Opt]) -> None:
    """Register options in a group, except those that somebody registered there before.

    Where the configuration has been read already, every value is seen to be one: oslo.config says of a bad one in which
    file it is, and not in which section.

    :raises InvalidConfiguration: a value is of another type, or none of the choices
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
