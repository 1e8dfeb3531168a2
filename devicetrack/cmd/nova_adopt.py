"""``devicetrack-nova-adopt``: records the devices that the guests of a Nova compute host already have.

Its entry point is :mod:`devicetrack.cmd.nova`, since Nova must choose its threads before this is imported.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import logging
import pathlib
import sys
from typing import Any
from typing import TYPE_CHECKING

from devicetrack import exception
from devicetrack.cmd import base
from devicetrack.nova import adoption
from devicetrack.nova import process
from devicetrack.nova import seam_table
from devicetrack.nova import unit

if TYPE_CHECKING:
    from devicetrack.cmd.nova_host import NovaHost

NAME = 'devicetrack-nova-adopt'
PROJECT = 'devicetrack'


class Adopt(base.Blocks):
    """Show which devices the guests of this compute host have, and record them.

    Run it on the host, as the user of nova-compute and with its configuration, while nova-compute is stopped. It asks
    Nova, placement, libvirt and the host for the owner of each device, and prints an entry for each instance. Without
    --apply it changes nothing. Exit code 3 if it cannot determine the owner of a device: the device stays withheld, so
    no guest gets it.
    """

    columns: tuple[str, ...] = ('host', 'outcome', 'instance_uuid', 'devices', 'reason')
    in_block = ('outcome', 'instance_uuid', 'devices', 'reason', 'check', 'package', 'release', 'result', 'details')
    prose = ('reason', 'details')

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        for option, what in (('file', 'A configuration file of Nova'),
                             ('dir', 'A directory with configuration files of Nova')):
            parser.add_argument(f'--config-{option}', action='append', default=[], metavar=option.upper(),
                                help=f'{what}; may be repeated. By default those of the service.')
        parser.add_argument('--unit', help='The systemd unit of the service, whose configuration files are read. By '
                                           f'default {" or ".join(unit.UNITS)}, if the host has it.')
        parser.add_argument('--version', action='version', version=process.versions(NAME),
                            help='Show the versions of this program and of Nova.')
        parser.add_argument('--debug', action='store_true', help='Show the traceback of an error.')
        parser.add_argument('-v', '--verbose', action='store_true', help='Print the log, too.')
        action = parser.add_mutually_exclusive_group()
        action.add_argument('--apply', action='store_true',
                            help='Record what the plan lists, end interrupted moves from this host, and show the '
                                 'result for each instance.')
        action.add_argument('--check', action='store_true',
                            help='Check whether you can change this host to devicetrack-nova-compute now.')
        action.add_argument('--check-package', type=pathlib.Path, metavar='PATH',
                            help="Check whether devicetrack supports the Nova of a package before you install it: a "
                                 ".deb file, or a directory with the package's files. This needs no privileges and "
                                 "no Nova.")
        parser.add_argument('--write-table', type=pathlib.Path, metavar='FILE',
                            help='With --check-package: accept the Nova of the package, whose patches you have read. '
                                 f'The service reads the files {seam_table.OPERATORS}/*.txt.')

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Sequence[Any]]]:
        if parsed_args.check:
            self.columns = ('host', 'check', 'result', 'details')
        elif parsed_args.check_package:
            self.columns = ('package', 'release', 'result', 'details')
        elif parsed_args.write_table:
            raise base.UsageError('--write-table needs --check-package')
        return super().take_action(parsed_args)

    def rows(self, parsed_args: argparse.Namespace) -> Iterator[Mapping[str, Any]]:
        if parsed_args.check_package:
            return self._package(parsed_args.check_package, parsed_args.write_table)
        host, nova_host = begin(parsed_args)
        return self._checks(host, nova_host) if parsed_args.check else self._lines(host, nova_host, parsed_args)

    def nothing(self, parsed_args: argparse.Namespace) -> str:
        return 'no instance has devices'

    def head(self, row: Mapping[str, Any]) -> tuple[str, str]:
        if 'package' in row:
            return row['result'], f'Nova {row["release"]} in {row["package"]}'
        return (row['result'], row['check']) if 'check' in row else (row['outcome'], f'instance {row["instance_uuid"]}')

    def body(self, row: Mapping[str, Any]) -> Iterator[str]:
        if 'result' in row:
            yield row['details']
        else:
            yield ', '.join(row['devices'].split('\n'))
            yield row['reason']

    def _checks(self, host: str, nova_host: NovaHost) -> Iterator[Mapping[str, Any]]:
        for check in nova_host.checks():
            if check.result != adoption.OK:
                self.exit_code = base.ATTENTION
            yield {'host': host, **check._asdict()}

    def _package(self, path: pathlib.Path, table: pathlib.Path | None) -> Iterator[Mapping[str, Any]]:
        from devicetrack.nova import package
        from devicetrack.nova import seams
        with package.opened(path) as found:
            result = adoption.OK
            try:
                accepted = seams.check_package(found, table)
                details = '' if table is None else f'{table} accepts: {"; ".join(accepted) or "no difference"}'
            except exception.UnknownNova as error:
                self.exit_code, result, details = base.ATTENTION, adoption.FAILURE, str(error)
            yield {'package': str(path), 'release': found.release, 'result': result, 'details': details}

    def _lines(self, host: str, nova_host: NovaHost, parsed_args: argparse.Namespace) -> Iterator[Mapping[str, Any]]:
        plan = nova_host.plan(upgrade=parsed_args.apply)
        for warning in plan.warnings:
            self.say(warning)
        if plan.obstacles or plan.unread:
            self.exit_code = base.ATTENTION
        for line in nova_host.apply(plan) if parsed_args.apply else plan.lines:
            if line.outcome == adoption.WITHHELD:
                self.exit_code = base.ATTENTION
            yield {'host': host, **line._asdict(), 'devices': list(map(str, line.devices))}
        if not parsed_args.apply:
            self.say('nothing was recorded; --apply records the lines that are listed as adopt')


class Program:
    """The program of one command. It has only what cliff needs from the program of a command."""

    NAME = NAME

    def __init__(self) -> None:
        self.stdout, self.stderr = sys.stdout, sys.stderr
        self.options = argparse.Namespace(debug=False)

    def run(self, argv: list[str]) -> int:
        program: Any = self
        command = Adopt(program, None)
        parsed_args = command.get_parser(NAME).parse_args(argv)
        self.options.debug = parsed_args.debug
        handler = logging.StreamHandler(self.stderr)
        handler.setFormatter(logging.Formatter(f'{NAME}: %(levelname)s: %(message)s'))
        handler.addFilter(logging.Filter(PROJECT))
        # The library's log of a start is for the audit; the lines of this command show the result for each instance.
        handler.setLevel(logging.INFO if parsed_args.verbose else logging.ERROR)
        root = logging.getLogger()
        root.addHandler(handler)
        try:
            return command.run(parsed_args)
        finally:
            root.removeHandler(handler)


def begin(parsed_args: argparse.Namespace) -> tuple[str, NovaHost]:
    """Read Nova's configuration, and return the host with its name.

    :raises cfg.Error, UsageError, InvalidConfiguration: a file or an option cannot be used
    """
    given = [f'--config-{option}={path}' for option in ('file', 'dir')
             for path in getattr(parsed_args, f'config_{option}')]
    command = None
    if parsed_args.check or not given:
        command = unit.find([parsed_args.unit] if parsed_args.unit else unit.UNITS)
        if command is None and parsed_args.unit:
            raise base.UsageError(f'systemd has no unit {parsed_args.unit}')
        if command is not None and command.arguments is None and not given:
            raise base.UsageError(f'the arguments with which the unit {command.unit} starts the service are unknown: '
                                  'give its --config-file and --config-dir')
    try:
        conf = process.begin(given or (command and command.arguments) or [])
    except (OSError, UnicodeDecodeError) as error:
        raise base.UsageError(base.unreadable(error, parsed_args.config_file + parsed_args.config_dir)) from error
    except SystemExit as error:
        raise base.UsageError(f'the service does not accept {" ".join(command.arguments or ()) if command else given}'
                              ) from error
    from devicetrack.cmd.nova_host import NovaHost
    from devicetrack.nova.record import NovaRecord
    return conf.host, NovaHost(conf, NovaRecord(conf.host), process.connect,
                               check_start=lambda: process.check_start(conf, command))


def main(argv: list[str] | None = None) -> int:
    return base.run_to_the_end(NAME, lambda: Program().run(sys.argv[1:] if argv is None else argv))
