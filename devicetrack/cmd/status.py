"""``devicetrack-status upgrade check``: checks whether this release can start with the existing files and store.

Run it with the new release installed and before any service is started with it. Exit codes are those of
oslo.upgradecheck: 0 success, 1 a warning, 2 a failure, 255 it could not check.
"""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import functools
from importlib import metadata
import itertools
import os
import socket
import sys
from typing import Any
from typing import Final

from oslo_config import cfg
from oslo_upgradecheck import upgradecheck

from devicetrack import exception
from devicetrack import ownfiles
from devicetrack.cmd import base
from devicetrack.cmd import kinds
from devicetrack.cmd import placement
from devicetrack.cmd import remedies
from devicetrack.compatibility.sources import Declarer
from devicetrack.conf import manager as manager_options
from devicetrack.conf import opts
from devicetrack.conf import placement as placement_options
from devicetrack.conf import spelling
from devicetrack.nova import options as nova_options
from devicetrack.nova import process
from devicetrack.placement import healer
from devicetrack.placement import session
from devicetrack.placement.client import Client
from devicetrack.store import sql
from devicetrack.store.sql import schema
from devicetrack.virt import loader

NAME = 'devicetrack-status'
PROJECT = 'devicetrack'
COULD_NOT_CHECK = 255

# The files in the state directory that decide who gets a device, beside the locks and the store.
_STATE_FILES: Final = ('pci.json', 'proofs')

_SAID: Final = upgradecheck.Result(upgradecheck.Code.WARNING, 'not checked: the error above comes first')
_SCHEMA_FIRST: Final = upgradecheck.Result(upgradecheck.Code.WARNING, 'not checked: the schema comes first')


def _failing_on_errors(check: Callable[[Any], upgradecheck.Result]) -> Callable[[Any], upgradecheck.Result]:
    """Turn devicetrack's own errors, and errors of options, into the result of a check. One error fails one check."""
    @functools.wraps(check)
    def checked(self: Any) -> upgradecheck.Result:
        try:
            return check(self)
        except (exception.DeviceTrackError, cfg.Error) as error:
            said = base.sentence(error)
            if said in self.said:
                return _SAID
            self.said.add(said)
            return upgradecheck.Result(upgradecheck.Code.FAILURE, said)

    return checked


class Checks(upgradecheck.UpgradeCommands):
    """The checks, in the order in which an operator fixes what they find."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        super().__init__()
        self._conf = conf
        self.said: set[str] = set()             # the errors that a check has reported

    @_failing_on_errors
    def check_configuration(self) -> upgradecheck.Result:
        """Check that the options can be used, and their driver, sources and table loaded. Connects to nothing.

        A key of the files that nothing reads is a warning: the option that it was to set has its default. So is a key
        of an entry that the installed Nova ignores.
        """
        opts.register_options(self._conf)               # this checks every value that was read
        loader.load_driver(self._conf).close()
        Declarer(self._conf, socket.gethostname()).refresh()
        sql.open_store(self._conf).close()
        unread = spelling.unread(self._conf)
        if process.has_nova() and (ignored := nova_options.ignored(self._conf)) is not None:
            unread.append(ignored)
        return upgradecheck.Result(upgradecheck.Code.WARNING if unread else upgradecheck.Code.SUCCESS,
                                   '; '.join(unread) or None)

    @_failing_on_errors
    def check_files(self) -> upgradecheck.Result:
        """Check that the state directory, the files in it and an SQLite store belong to this user alone."""
        state_path = self._conf[manager_options.GROUP].state_path
        store = sql.open_store(self._conf)
        store.close()
        directories = [state_path, *(os.path.join(state_path, name) for name in ('locks', 'given-up'))]
        files, unread = [], {}
        for directory in directories:
            try:
                files += [os.path.join(directory, name) for name in sorted(os.listdir(directory))
                          if name.endswith('.lock') or name in _STATE_FILES]
            except FileNotFoundError:
                pass
            except OSError as error:
                unread[directory] = f'{directory}: {error.strerror}'
        if store.path is not None:
            directories.append(os.path.dirname(store.path))
            files.append(store.path)
        wrong = {}
        for check, paths in ((ownfiles.check_directory, directories), (ownfiles.check_file, files)):
            for path in paths:
                try:
                    check(path)
                except FileNotFoundError:
                    pass                            # the directory is made when it is needed
                except OSError as error:
                    wrong[path] = f'{path}: {error.strerror}'
        wrong = unread | wrong
        return upgradecheck.Result(upgradecheck.Code.FAILURE if wrong else upgradecheck.Code.SUCCESS,
                                   '; '.join(wrong.values()) or None)

    @_failing_on_errors
    def check_schema(self) -> upgradecheck.Result:
        """Check that the store is there, can be written, and has the schema of this release, or will get it."""
        with contextlib.closing(sql.open_store(self._conf)) as store:
            try:
                store.check()
            except exception.SchemaMismatch as error:
                if not remedies.is_made_at_start(error):
                    raise
                return upgradecheck.Result(upgradecheck.Code.SUCCESS, (
                    f'schema {error.found or "none"}: the service makes it {error.wanted} when it starts'))
        return upgradecheck.Result(upgradecheck.Code.SUCCESS)

    @_failing_on_errors
    def check_details(self) -> upgradecheck.Result:
        """Check that this release can read all stored details, and that none is of an older version."""
        with contextlib.closing(sql.open_store(self._conf)) as store:
            try:
                store.check()
            except exception.SchemaMismatch as error:
                return _SCHEMA_FIRST if not remedies.is_made_at_start(error) else upgradecheck.Result(
                    upgradecheck.Code.SUCCESS, None if error.found is None else (
                        'not checked: check them once the service has started'))
            kinds.load(self._conf)
            found = schema.migrate_details(store, max_rows=0)
        if found.unreadable:
            names = ', '.join(f'{key}' for key in found.unreadable)
            return upgradecheck.Result(upgradecheck.Code.FAILURE,
                                       f'details that this release cannot read: {names}; they are from a newer '
                                       f'release, from a device kind that is not installed or that [devicetrack] '
                                       f'device_kinds does not name, or damaged')
        if found.left:
            return upgradecheck.Result(upgradecheck.Code.WARNING,
                                       f'{found.left} stored details are of an older version: run devicetrack-manage '
                                       f'db online-data-migrations once the services run')
        return upgradecheck.Result(upgradecheck.Code.SUCCESS)

    @_failing_on_errors
    def check_placement(self) -> upgradecheck.Result:
        """Report the layout of each host's node in placement, by the host's name."""
        client = Client.from_conf(self._conf)
        nodes: dict[str, list[str]] = {}
        with contextlib.closing(sql.open_store(self._conf)) as store:
            try:
                store.check()
            except exception.SchemaMismatch:
                return _SCHEMA_FIRST
            for host in store.hosts():
                found = client.find_provider(host.name)
                standing = healer.EMPTY
                if found is not None:
                    node = placement.recorded_node(client, store, host, found)
                    standing = healer.Healer(client).standing(node, host.nested_version is not None)
                nodes.setdefault(standing, []).append(host.name)
        text = '; '.join(f'{standing}{_ADVICE.get(standing, "")}: {", ".join(names)}'
                         for standing, names in sorted(nodes.items()))
        to_heal = nodes.keys() & {healer.GUESTS, healer.DRIFTED}
        refused = to_heal and self._conf[placement_options.GROUP].nested == 'refuse'
        return upgradecheck.Result(upgradecheck.Code.FAILURE if refused else upgradecheck.Code.WARNING if to_heal
                                   else upgradecheck.Code.SUCCESS, text or None)

    _upgrade_checks: tuple[tuple[str, Callable[[Any], upgradecheck.Result]], ...] = (
        ('Configuration', check_configuration),
        ('Files', check_files),
        ('Store schema', check_schema),
        ('Stored details', check_details),
    )

    def check(self) -> upgradecheck.Code:
        """Run the checks; the one of placement only if it is configured and this library reports the host there."""
        if not process.has_nova() and _has_placement(self._conf):
            self._upgrade_checks = (*self._upgrade_checks, ('Placement', type(self).check_placement))
        return super().check()


_ADVICE: Final = {
    'flat and empty': ' (can start nested)',
    'flat with guests': ' (heal with devicetrack-manage placement heal --node NODE before they are nested)',
    'drifted': ' (devices are allocated at the node again: heal with devicetrack-manage placement heal --node NODE)',
}


def _has_placement(conf: cfg.ConfigOpts) -> bool:
    try:
        return session.is_configured(conf)
    except ModuleNotFoundError:                         # a host without a scheduler lacks what reads the options
        return False
    except exception.InvalidConfiguration:
        return True                                     # the check reports the error


def run(argv: list[str]) -> int:
    conf = cfg.ConfigOpts()
    opts.register_options(conf)
    upgradecheck.register_cli_options(conf, Checks(conf))
    try:
        conf(argv, project=PROJECT, prog=NAME, version=metadata.version('devicetrack'))
    except cfg.Error as error:
        sys.stderr.write(f'{NAME}: {base.sentence(error)}\n')
        return COULD_NOT_CHECK
    except (OSError, UnicodeDecodeError) as error:
        words = [word for one in argv for word in (one.split('=', 1) if one.startswith('--') else (one,))]
        places = [value for option, value in itertools.pairwise(words) if option in ('--config-file', '--config-dir')]
        sys.stderr.write(f'{NAME}: {base.unreadable(error, places)}\n')
        return COULD_NOT_CHECK
    if conf.command.name is None:
        sys.stderr.write(f"{NAME}: no command given: the only one is '{NAME} upgrade check'\n")
        return base.USAGE
    # oslo.upgradecheck looks for --json there.
    settings: Any = upgradecheck
    settings.CONF = conf
    return int(upgradecheck.run(conf))


def main(argv: list[str] | None = None) -> int:
    return base.run_to_the_end(NAME, lambda: run(sys.argv[1:] if argv is None else argv), COULD_NOT_CHECK)


if __name__ == '__main__':
    sys.exit(main())
