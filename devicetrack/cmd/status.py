"""``devicetrack-status upgrade check``: whether this release can start on what is here.

Run it with the new release installed and before any service is started with it. Exit codes are those of
oslo.upgradecheck: 0 success, 1 a warning, 2 a failure, 255 it could not check.
"""

from __future__ import annotations

from importlib import metadata
import sys
from typing import Any

from oslo_config import cfg
from oslo_upgradecheck import upgradecheck

from devicetrack import exception
from devicetrack.cmd import base
from devicetrack.cmd import kinds
from devicetrack.conf import opts
from devicetrack.store import sql
from devicetrack.store.sql import schema
from devicetrack.virt import loader

NAME = 'devicetrack-status'
PROJECT = 'devicetrack'
COULD_NOT_CHECK = 255


class Checks(upgradecheck.UpgradeCommands):
    """The checks, in the order in which they are mended."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        super().__init__()
        self._conf = conf

    def check_configuration(self) -> upgradecheck.Result:
        """The options can be used and the driver that they name can be loaded. Nothing is connected."""
        try:
            _check_options(self._conf)
            loader.load_driver(self._conf).close()
            sql.open_store(self._conf).close()
        except (exception.DeviceTrackError, cfg.Error) as error:
            return _failure(error)
        return upgradecheck.Result(upgradecheck.Code.SUCCESS)

    def check_schema(self) -> upgradecheck.Result:
        """The store is there, can be written, and its schema is the one of this release."""
        try:
            store = sql.open_store(self._conf)
            try:
                store.check()
            finally:
                store.close()
        except (exception.DeviceTrackError, cfg.Error) as error:
            return _failure(error)
        return upgradecheck.Result(upgradecheck.Code.SUCCESS)

    def check_details(self) -> upgradecheck.Result:
        """Every stored details object is of a class and version that this release reads, and of its own version."""
        try:
            store = sql.open_store(self._conf)
            try:
                store.check()
                kinds.load()
                found = schema.migrate_details(store, max_rows=0)
            finally:
                store.close()
        except exception.SchemaMismatch:
            return upgradecheck.Result(upgradecheck.Code.WARNING, 'not checked: the schema comes first')
        except (exception.DeviceTrackError, cfg.Error) as error:
            return _failure(error)
        if found.unreadable:
            names = ', '.join(f'{key.kind} {key.identifier}' for key in found.unreadable)
            return upgradecheck.Result(upgradecheck.Code.FAILURE,
                                       f'details that this release cannot read: {names}; they are of a newer '
                                       f'release, of a device kind that is not installed, or damaged')
        if found.left:
            return upgradecheck.Result(upgradecheck.Code.WARNING,
                                       f'{found.left} stored details are of an older version: run devicetrack-manage '
                                       f'db online-data-migrations once the services run')
        return upgradecheck.Result(upgradecheck.Code.SUCCESS)

    _upgrade_checks = (
        ('Configuration', check_configuration),
        ('Store schema', check_schema),
        ('Stored details', check_details),
    )


def _check_options(conf: cfg.ConfigOpts) -> None:
    """Read every option: a value of the wrong type is only seen when it is read."""
    for group, options in opts.list_opts():
        for option in options if group in conf else ():
            _ = conf[group][option.dest]


def _failure(error: Exception) -> upgradecheck.Result:
    return upgradecheck.Result(upgradecheck.Code.FAILURE, base.sentence(error))


def run(argv: list[str]) -> int:
    conf = cfg.ConfigOpts()
    opts.register_options(conf)
    upgradecheck.register_cli_options(conf, Checks(conf))
    try:
        conf(argv, project=PROJECT, prog=NAME, version=metadata.version('devicetrack'))
    except cfg.Error as error:
        sys.stderr.write(f'{NAME}: {base.sentence(error)}\n')
        return COULD_NOT_CHECK
    if conf.command.name is None:
        sys.stderr.write(f"{NAME}: no command given: '{NAME} upgrade check' is what there is\n")
        return base.USAGE
    # Where oslo.upgradecheck looks for --json.
    settings: Any = upgradecheck
    settings.CONF = conf
    return int(upgradecheck.run(conf))


def main(argv: list[str] | None = None) -> int:
    return base.run_to_the_end(NAME, lambda: run(sys.argv[1:] if argv is None else argv))


if __name__ == '__main__':
    sys.exit(main())
