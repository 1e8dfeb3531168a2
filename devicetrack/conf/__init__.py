"""Options, by subject. The caller hands the configuration in; no code of ours reads a global one.

A compute service may have registered some of these options itself (``[libvirt] pmem_namespaces``,
``[devices] enabled_mdev_types``, ``[mdev_<type>] …``). We read such an option as the service registered it, and
do not register it again.
"""

from __future__ import annotations

from collections.abc import Iterable
import contextlib
import os
from typing import Any

from oslo_config import cfg

from devicetrack import exception

# No number of ours is greater. Python accepts a longer timeout, and overflows only when something waits for it.
_MOST = 10 ** 9
_LONGEST_PATH = 4000


class PathOpt(cfg.StrOpt):
    """The absolute path of a file or directory. If it has a default, it cannot be left empty."""


def register(conf: cfg.ConfigOpts, group: str, options: Iterable[cfg.Opt]) -> None:
    """Register the options of a group that are not registered there yet.

    Then check every value, if the configuration files have been read: oslo.config's own error for a bad value names the
    file but not the section.

    :raises InvalidConfiguration: a value is missing, has the wrong type, is not one of the choices, is out of range, or
        is not an absolute path
    """
    options = list(options)
    for option in options:
        with contextlib.suppress(cfg.DuplicateOptError):            # the service has registered it in its own way
            conf.register_opt(option, group=group)
    values = conf[group]
    for option in options:
        # As oslo.config finds it in a file: keystoneauth1 has hyphens in the names of its options.
        name = f'[{group}] {option.dest}'
        try:
            value = values[option.dest]
        except (cfg.ConfigFileValueError, cfg.ConfigSourceValueError) as error:
            reason = str(error.__context__)
            if reason.startswith('invalid literal for int()'):
                reason = 'must be a whole number'               # int's own words are for programmers
            raise exception.InvalidConfiguration(name, _as_written(conf, group, option), reason) from error
        mistake = _mistake(option, value)
        if mistake is not None:
            raise exception.InvalidConfiguration(name, '(empty)' if value in (None, '') else value, mistake)


def load_plugin(namespace: str, option: str, name: str) -> Any:
    """Load the code of the entry point that an option names.

    :raises InvalidConfiguration: no entry point or several have the name, or the code cannot be loaded (that error is
        the cause)
    """
    from stevedore import named
    # stevedore only logs why it cannot load an entry point, for example because libvirt-python is not installed. The
    # operator needs that reason.
    failures: list[BaseException] = []
    manager: Any = named.NamedExtensionManager(
        namespace, [name], on_missing_entrypoints_callback=lambda _missing: None,
        on_load_failure_callback=lambda _manager, _entry_point, error: failures.append(error))
    found = [extension.plugin for extension in manager]
    if len(found) == 1:
        return found[0]
    if failures:
        raise exception.InvalidConfiguration(option, name, f'cannot be loaded: {failures[0]}') from failures[0]
    how_many = 'several entry points have' if found else 'there is no entry point of'
    raise exception.InvalidConfiguration(option, name, f'{how_many} this name in {namespace}')


def class_path(cls: Any) -> str:
    """Return the path of a class in the form of entry points."""
    return f'{getattr(cls, "__module__", "")}:{getattr(cls, "__qualname__", repr(cls))}'


def _mistake(option: cfg.Opt, value: Any) -> str | None:
    """The mistake in a value of the right type. A service may have registered the option without our limits."""
    if value is None or (value == '' and isinstance(option, PathOpt)):
        return None if option.default in (None, '') else f'needs a value; without the line it is {option.default}'
    if isinstance(value, (int, float)) and not 0 <= value <= _MOST:
        return f'must be a number from 0 to {_MOST}'
    if isinstance(option, PathOpt) and not os.path.isabs(value):
        return 'must be absolute: a service starts in any directory'
    if isinstance(option, PathOpt) and len(os.fsencode(value)) > _LONGEST_PATH:
        return f'has more than {_LONGEST_PATH} bytes, which no path may have'
    return None


def _as_written(conf: cfg.ConfigOpts, group: str, option: cfg.Opt) -> str:
    text = cfg.ConfigOpts()
    text.register_opt(cfg.StrOpt(option.name, dest=option.dest), group=group)
    text([], default_config_files=conf.config_file, default_config_dirs=conf.config_dir)
    return str(text[group][option.dest])
