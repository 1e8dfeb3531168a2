"""Finds the command with which systemd starts Nova's compute service, so that other programs read the same files."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from collections.abc import Mapping
import os
import re
import shlex
import string
import subprocess
from typing import Final
from typing import NamedTuple

from oslo_concurrency import processutils

from devicetrack import exception

# Debian and Ubuntu; RDO.
UNITS: Final = ('nova-compute', 'openstack-nova-compute')
# The program, and the one that replaces it.
_PROGRAMS: Final = ('nova-compute', 'devicetrack-nova-compute')
# With the first word a unit of Debian or Ubuntu runs its script (openstack-pkg-tools), which prints the command that it
# would run if it gets the second one.
_START, _SHOW = 'systemd-start', 'show-args'
_TIMEOUT_S: Final = 30


class ServiceCommand(NamedTuple):
    """The command of a unit.

    :ivar user: the user that runs it, by name or number
    :ivar program: its program
    :ivar arguments: what the program gets; None if nobody can tell
    """

    unit: str
    user: str
    program: str
    arguments: tuple[str, ...] | None

    @property
    def files(self) -> tuple[list[str], list[str]]:
        """The configuration files and directories that its arguments name."""
        parser = argparse.ArgumentParser(add_help=False)
        for option in ('--config-file', '--config-dir'):
            parser.add_argument(option, action='append', default=[])
        found, _others = parser.parse_known_args(self.arguments or ())
        return found.config_file, found.config_dir


def find(units: Iterable[str] = UNITS) -> ServiceCommand | None:
    """Find the command of the first of these units that the host has.

    :returns: None if the host has none of them, or systemd does not run here, as in a container
    :raises InvalidConfiguration: the unit starts nothing
    """
    for unit in units:
        shown = _run('systemctl', 'show', '--property=LoadState,ExecStart,Environment,User', '--', unit)
        found = dict(line.partition('=')[::2] for line in (shown or '').splitlines())
        if found.get('LoadState') == 'loaded':
            return _command(unit, found)
    return None


def _command(unit: str, shown: Mapping[str, str]) -> ServiceCommand:
    environment = dict(word.partition('=')[::2] for word in shlex.split(shown.get('Environment', '')))
    started = re.search(r' argv\[\]=(.*?) ; ignore_errors=', shown.get('ExecStart', ''))
    words = string.Template(started[1] if started else '').safe_substitute(environment).split()
    if _START in words[1:]:
        script, words = words[0], (_run(words[0], _SHOW, environment=environment) or '').split()
        if not words:
            raise exception.InvalidConfiguration(unit, f'{script} {_START}', (
                f'this starts nothing: {environment.get("DAEMON", "its program")} is missing or cannot be run'))
    user = shown.get('User') or 'root'
    place = next((index for index, word in enumerate(words) if os.path.basename(word) in _PROGRAMS), None)
    if place is None or any('$' in word for word in words):
        return ServiceCommand(unit, user, words[0] if words else '', None)
    return ServiceCommand(unit, user, words[place], tuple(words[place + 1:]))


def _run(*command: str, environment: Mapping[str, str] | None = None) -> str | None:
    """Run a command and return what it prints, or None if it cannot be run or fails."""
    try:
        printed, _errors = processutils.execute(*command, timeout=_TIMEOUT_S,
                                                env_variables={**os.environ, **(environment or {})})
    except (OSError, processutils.ProcessExecutionError, subprocess.TimeoutExpired):
        return None
    return str(printed)
