"""``devicetrack-manage``: the operator's program for devices and their owners."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import functools
from importlib import metadata
import logging
import sys
from typing import Any
from typing import TextIO

from cliff import app
from cliff import command as cliff_command
from cliff import commandmanager
from oslo_config import cfg

from devicetrack import exception
from devicetrack.claims import audit
from devicetrack.claims import host as host_identity
from devicetrack.claims import repairs
from devicetrack.claims import report
from devicetrack.claims.providers import ProviderResolver
from devicetrack.claims.running import Parts
from devicetrack.claims.running import Running
from devicetrack.claims.running import start
from devicetrack.claims.running import Starter
from devicetrack.cmd import base
from devicetrack.cmd import complete
from devicetrack.cmd import kinds
from devicetrack.cmd import records
from devicetrack.cmd import remedies
from devicetrack.cmd import screen
from devicetrack.conf import manager as manager_options
from devicetrack.conf import opts
from devicetrack.engine.migrations import Endpoint
from devicetrack.fleet.mirror import Mirror
from devicetrack.nova import process
from devicetrack.store import sql
from devicetrack.store.api import Host
from devicetrack.store.sql import schema
from devicetrack.store.sql.store import SQLStore
from devicetrack.virt import driver as virt_driver
from devicetrack.virt import loader

NAME = 'devicetrack-manage'
NAMESPACE = 'devicetrack.manage'
PROJECT = 'devicetrack'

_LEVELS = (logging.ERROR, logging.WARNING, logging.INFO)


class _Commands(commandmanager.CommandManager):
    """Imports the module of a command only when it is needed.

    cliff's imports all of them, and does not know a command whose module cannot be imported.
    """

    def load_commands(self, namespace: str) -> None:
        self.group_list.append(namespace)
        self.commands.update(_commands(namespace))


@functools.cache
def _commands(group: str) -> Mapping[str, metadata.EntryPoint]:
    """The commands by their names. To read the metadata of all packages takes longer than most commands."""
    return {one.name.replace('_', ' '): one for one in metadata.entry_points(group=group)}


class Manage(app.App):
    """The program. It makes the configuration, the store and the driver for its commands when they are first needed."""

    NAME = NAME

    def __init__(self, conf: cfg.ConfigOpts, stdout: TextIO | None = None, stderr: TextIO | None = None) -> None:
        super().__init__('Show the devices of hosts and their owners, and repair the record.',
                         metadata.version('devicetrack'),
                         _Commands(NAMESPACE), stdout=stdout, stderr=stderr,
                         deferred_help=True)    # so that --help after a command is about that command
        screen.escape_what_is_lacking(self.stdout, self.stderr)
        self.command_manager.add_command('complete', complete.Complete)
        self._conf, self._conf_is_read = conf, False
        self._kinds_are_loaded = False
        self._store: SQLStore | None = None
        self._mirror: Mirror | None = None
        self._driver: virt_driver.VirtDriver | None = None
        self._running: Running | None = None
        self._handlers: list[logging.Handler] = []

    def build_option_parser(self, description: str | None, version: str | None,
                            argparse_kwargs: dict[str, Any] | None = None) -> argparse.ArgumentParser:
        # With abbreviations, this parser would take options that belong to a command.
        parser = super().build_option_parser(description, version,
                                             {'prog': NAME, 'allow_abbrev': False, **(argparse_kwargs or {})})
        parser.add_argument(
            '--config-file', action='append', default=[], metavar='PATH',
            help='A configuration file; may be repeated, and later files override earlier ones. Default: '
                 'devicetrack.conf in ~/.devicetrack, ~, /etc/devicetrack and /etc.')
        parser.add_argument(
            '--config-dir', action='append', default=[], metavar='DIR',
            help='A directory whose *.conf files are read after the configuration files; may be repeated.')
        return parser

    def configure_logging(self) -> None:
        """Send what the library logs to stderr: warnings by default, more with -v, less with -q.

        Other libraries' log lines about an error add nothing to the sentence that the command prints for it, so they
        are shown only with -vv.
        """
        level = _LEVELS[self.options.verbose_level] if self.options.verbose_level < len(_LEVELS) else logging.DEBUG
        console = logging.StreamHandler(self.stderr)
        console.setFormatter(logging.Formatter(f'{NAME}: %(levelname)s: %(message)s'))
        console.setLevel(level)
        if level > logging.DEBUG:
            console.addFilter(logging.Filter(PROJECT))
        if level > logging.INFO:
            # A command says itself what it did. If it starts a host it audits it twice, and each audit logs all its
            # findings; a repair logs the row before and after it.
            console.addFilter(lambda record: record.name not in (audit.__name__, repairs.__name__))
        self._handlers.append(console)
        if self.options.log_file:
            file = logging.FileHandler(self.options.log_file)
            file.setFormatter(logging.Formatter(self.LOG_FILE_MESSAGE_FORMAT))
            self._handlers.append(file)
        root = logging.getLogger()
        root.setLevel(logging.DEBUG if self.options.log_file else level)
        for handler in self._handlers:
            root.addHandler(handler)

    def print_help_if_requested(self) -> None:
        if self.options.deferred_help:
            self._print_help()

    def _print_help(self) -> None:
        """Print the options, and all commands with a sentence about each, in aligned columns."""
        told = {}
        for name, entry_point in sorted(self.command_manager):
            try:
                told[name] = ' '.join((entry_point.load().__doc__ or '').split()).partition('. ')[0].rstrip('.')
            except ImportError as error:
                told[name] = base.not_loaded(error)
        wide = max(map(len, told))
        self.stdout.write(f'{self.parser.format_help()}\nCommands:\n')
        for name, sentence in told.items():
            first, *more = screen.wrap(sentence, screen.width_of(self.stdout), ' ' * (wide + 4))
            self.stdout.write('\n'.join((f'  {name:{wide}}  {first.strip()}', *more)) + '\n')
        raise SystemExit(base.OK)

    def initialize_app(self, argv: Sequence[str]) -> None:
        if not argv:                    # cliff would start its own shell
            self.print_help_if_requested()
            self.parser.error(f"no command given; '{NAME} help' lists them")

    def run(self, argv: list[str]) -> int:
        root = logging.getLogger()
        level = root.level
        try:
            return super().run(argv)
        finally:
            root.setLevel(level)
            for handler in self._handlers:
                root.removeHandler(handler)
                handler.close()
            self._handlers = []

    def run_subcommand(self, argv: list[str]) -> int:
        if argv == ['help']:
            self._print_help()
        # cliff turns a command with --help into "help COMMAND", where options of the command would be in the way.
        asks_for_help = argv[0] == 'help' and len(argv) > 1
        command = argv[1:] if asks_for_help else argv
        try:
            options = self.command_manager.find_command(command)[2]
            if asks_for_help:
                argv = argv[:len(argv) - len(options)]
        except ValueError:
            close = self.get_fuzzy_matches(command[0])
            if not asks_for_help or not any(name.startswith(f'{command[0]} ') for name in close):
                # cliff would print this to stdout, where an answer is expected.
                self.parser.error(f'there is no command {" ".join(command)}; close to it: {", ".join(close)}')
        except ImportError as error:
            if self.options.debug:
                raise
            self.stderr.write(f'{NAME}: {base.not_loaded(error)}\n')
            return base.ERROR
        return super().run_subcommand(argv)

    def clean_up(self, cmd: cliff_command.Command, result: int, err: BaseException | None) -> None:
        if self._running is not None:
            self._running.close()
        if self._store is not None:
            self._store.close()
        if self._mirror is not None:
            self._mirror.close()
        if self._driver is not None:
            self._driver.close()

    # -- objects for commands -----------------------------------------------------------------------------------------

    @property
    def conf(self) -> cfg.ConfigOpts:
        """The configuration.

        :raises cfg.Error, UsageError: a file is missing or cannot be read
        :raises InvalidConfiguration: an option cannot be used
        """
        if not self._conf_is_read:
            self._read(self._conf)
            self._conf_is_read = True
        return self._conf

    def conf_with(self, path: str) -> cfg.ConfigOpts:
        """Another configuration: the files of this one, and after them another file. The errors are the same."""
        conf = cfg.ConfigOpts()
        self._read(conf, path)
        return conf

    def _read(self, conf: cfg.ConfigOpts, *more: str) -> None:
        opts.register_options(conf)
        # Nova's own: its file names the host that its service is. A file of devicetrack alone does not have it.
        with contextlib.suppress(cfg.DuplicateOptError):        # Nova is in this process, and has registered it
            conf.register_opt(cfg.StrOpt('host'))
        given = [('config-file', path) for path in self.options.config_file]
        given += [('config-dir', path) for path in self.options.config_dir]
        if more and not given:
            given += [('config-file', path) for path in cfg.find_config_files(PROJECT, NAME)]
        given += [('config-file', path) for path in more]
        try:
            conf([f'--{option}={path}' for option, path in given], project=PROJECT, prog=NAME)
        except (OSError, UnicodeDecodeError) as error:
            places = [path for _option, path in given] or cfg.find_config_files(PROJECT, NAME)
            raise base.UsageError(base.unreadable(error, places)) from error
        opts.register_options(conf)                     # once more, to check the values that were read

    @property
    def store(self) -> SQLStore:
        """The store, whatever its schema."""
        if self._store is None:
            self._store = sql.open_store(self.conf)
        return self._store

    @property
    def checked_store(self) -> SQLStore:
        """The store, for reading: commands can ask who holds which device even of a store that is full or read-only.

        An SQLite file is the exception if no process has it open: whoever opens it first makes its log and its index
        beside it, and so needs room and a directory that can be written.

        From now on the details of every installed device kind can be read.

        :raises SchemaMismatch, StoreUnavailable: this release cannot read it
        """
        try:
            schema.check(self.store)
        except exception.SchemaMismatch as error:
            remedy = remedies.of(error)
            if not (self.conf.config_file or self.conf.config_dir):
                remedy = ('no configuration file was read, so this is the store of the defaults: give the '
                          f'--config-file of the service. If it has none: {remedy}')
            raise exception.SchemaMismatch(error.store, error.found, error.wanted, remedy) from error
        if not self._kinds_are_loaded:
            kinds.load(self.conf)
            self._kinds_are_loaded = True
        return self.store

    @property
    def mirror(self) -> Mirror:
        """The mirror of the fleet, whatever its schema. It needs no store and no host.

        :raises InvalidConfiguration: ``[devicetrack_fleet] connection`` is missing or cannot be used
        """
        if self._mirror is None:
            self._mirror = Mirror(self.conf)
        return self._mirror

    @property
    def machine_id(self) -> str:
        """The id by which the store knows this machine.

        :raises InvalidConfiguration: the machine's id cannot be read
        """
        return host_identity.machine_digest(self.conf[manager_options.GROUP].machine_id_path)

    def present_host(self, name: str | None = None) -> Host:
        """Return a host of this machine; by default the one that Nova's configuration names, or that this machine is.

        :raises DeviceTrackError: as :func:`.report.locate`
        """
        return report.locate(self.checked_store, name or self.conf.host,
                             self.conf[manager_options.GROUP].machine_id_path)

    def observer(self, name: str | None,
                 providers: Callable[[Host], ProviderResolver] | None = None) -> report.Observer:
        """Return an observer of a host of this machine; by default of the host that this machine is.

        :param providers: makes the object that knows the UUIDs of the host's providers; by default they are derived
        """
        host = self.present_host(name)
        return report.Observer(host, self.driver(host.name), self.checked_store, self.conf,
                               None if providers is None else providers(host))

    def start_host(self, host: str) -> Running:
        """Start this machine's host, without a compute service, until the command ends.

        Like any start it goes on with work that was interrupted. It never adds a host to the store: an unknown name may
        be a mistake, and then the command's work would be recorded for the wrong host.

        :raises HostInUse: the host's manager runs, or another command in its place
        :raises UnknownHost: its manager has never run
        """
        if self._running is None:
            records.host_of(self.checked_store, host)
            parts = self.parts(host)
            host_identity.check_unmanaged(host, parts.state_path)         # a person waits for the command
            self._running, _findings = start(parts, Starter.command())
        return self._running

    def parts(self, host: str) -> Parts:
        """Return the parts of a start of this machine's host."""
        return Parts(Endpoint(host, host), self.driver(host), self.checked_store, self.conf)

    def driver(self, host: str) -> virt_driver.VirtDriver:
        """Return the virt driver of this machine, for the host of this name."""
        if self._driver is None:
            process.share_root_helper(self.conf)
            self._driver = loader.load_driver(self.conf, host)
        return self._driver


def main(argv: list[str] | None = None) -> int:
    # oslo.privsep, which lists namespaces for users other than root, knows only the global configuration.
    return base.run_to_the_end(NAME, lambda: Manage(cfg.CONF).run(sys.argv[1:] if argv is None else argv))


if __name__ == '__main__':
    sys.exit(main())
