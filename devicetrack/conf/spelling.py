"""Finds keys of configuration files that nothing reads. Most are misspelt names of options."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterator
import difflib
import glob
import os
from typing import Final

from oslo_config import cfg

from devicetrack.conf import libvirt
from devicetrack.conf import opts
from devicetrack.conf import pci
from devicetrack.conf import placement

_OURS: Final = ('devicetrack', libvirt.vf_group(''))
# A service has groups of these names too, and may have options of its own there.
_SHARED: Final = (libvirt.LIBVIRT_GROUP, libvirt.DEVICES_GROUP, pci.SERVICE_GROUP, libvirt.mdev_group(''))
# The daemon that runs as root registers its options when it is first used.
_OF_THE_DAEMON: Final = {'devicetrack_privileged': (
    'user', 'group', 'capabilities', 'helper_command', 'thread_pool_size', 'logger_name')}
# pmem_namespace is nearer to pmem_namespaces than this. No option of Nova in a shared group is so near to one of ours.
_NEAR: Final = 0.85


def unread(conf: cfg.ConfigOpts) -> list[str]:
    """Name the keys in our groups that nothing reads, each with the option that may be meant.

    In a group that a service shares with us, such a key may be the service's. There a key is named only if it is nearly
    one of our options, or if the files have only groups that we know.

    :param conf: with the files read, and all options registered, those of the driver and its kinds too
    """
    sections = _read(conf)
    alone = all(section == 'DEFAULT' and not keys or section in conf or _is_of(section, (*_OURS, *_SHARED))
                for section, keys in sections.items())
    return [told for section, keys in sections.items() for told in _in_section(conf, section, keys, alone)]


def _read(conf: cfg.ConfigOpts) -> dict[str, Collection[str]]:
    """The keys of each section of the files that were read."""
    paths = [*(conf.config_file or ()), *(path for directory in conf.config_dir or ()
                                          for path in sorted(glob.glob(os.path.join(directory, '*.conf'))))]
    sections: dict[str, dict[str, list[str]]] = {}
    for path in paths:
        cfg.ConfigParser(path, sections).parse()
    return {name: keys.keys() for name, keys in sections.items()}


def _is_of(section: str, groups: Collection[str]) -> bool:
    return any(section == group or (group.endswith('_') or group == _OURS[0]) and section.startswith(group)
               for group in groups)


def _in_section(conf: cfg.ConfigOpts, section: str, keys: Collection[str], alone: bool) -> Iterator[str]:
    ours, shared = _is_of(section, _OURS), _is_of(section, _SHARED)
    if not (ours or shared or section == placement.GROUP):
        return
    known = set(conf[section] if section in conf else ()) | set(_OF_THE_DAEMON.get(section, ()))
    if not known:
        if section.startswith((libvirt.vf_group(''), libvirt.mdev_group(''))):
            yield f'[{section}]: nothing reads it, because no enabled type has this name'
        elif ours:
            yield f'[{section}]: there is no such group{_meant(section, _groups(conf))}'
        return
    for key in keys:
        if key.replace('-', '_') in known or key in _deprecated(section):
            continue
        meant = _meant(key, _options(section) or known)
        if ours or (shared and alone) or meant:
            yield f'[{section}] {key}: there is no such option{meant}'


def _groups(conf: cfg.ConfigOpts) -> set[str]:
    return {group for group, _options_of_it in opts.list_opts() if group in conf} | _OF_THE_DAEMON.keys()


def _options(section: str) -> set[str]:
    return {option.dest for group, options in opts.list_opts() for option in options if group == section}


def _deprecated(section: str) -> set[str]:
    return {str(old.name) for group, options in opts.list_opts() for option in options
            for old in option.deprecated_opts if (old.group or group) == section}


def _meant(name: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(name, sorted(known), 1, _NEAR)
    return f'; perhaps {near[0]} is meant' if near else ''
